"""Times functions of torch for `fourfold bench`: one JSON object per line in, one out."""

import json
import os
import sys
import time
import traceback

# Libraries print to the standard output; answers have a descriptor of their own.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(value):
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def in_one_line(error):
    lines = traceback.format_exception_only(type(error), error)
    lines = [line.strip() for line in "".join(lines).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__


try:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device")
    torch.cuda.set_device(int(sys.argv[1]))
    torch.set_grad_enabled(False)
except BaseException as error:  # torch may also exit
    answer({"error": in_one_line(error)})
    sys.exit(0)

TYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "i32": torch.int32,
    "i1": torch.bool,
}


def draw(item):
    dims, dtype = item["dims"], TYPES[item["type"]]
    if item.get("value") is not None:
        return torch.full(dims, item["value"], device="cuda", dtype=dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, dims, device="cuda").to(dtype)
    if dtype is torch.int32:
        return torch.randint(-8, 9, dims, device="cuda", dtype=dtype)
    if not dims or dims == [1]:
        return (0.25 + 1.75 * torch.rand(dims, device="cuda")).to(dtype)
    return torch.randn(dims, device="cuda", dtype=dtype)


def define(request):
    space = {"torch": torch, **request["sizes"]}
    exec(compile(request["setup"], "<peer_setup>", "exec"), space)
    names = ", ".join(item["name"] for item in request["inputs"])
    body = "".join(f"    {line}\n" for line in request["body"].splitlines())
    exec(compile(f"def peer({names}):\n{body}", "<peer>", "exec"), space)
    return space["peer"]


class Timed:
    """Calls of a function over rotating sets, as one graph."""

    def __init__(self, function, request):
        shared = {item["name"]: draw(item) for item in request["inputs"] if not item["rotates"]}
        self.sets = []
        for _ in range(request["sets"]):
            drawn = [shared.get(item["name"]) if not item["rotates"] else draw(item) for item in request["inputs"]]
            self.sets.append(drawn)
        self.request = request
        # The graph reads tensors of the function's module, which must live as long.
        self.function = function
        self.calls = request["calls"]
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for number in range(3):
                function(*self.sets[number % len(self.sets)])
        self.stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # Results are kept as long as their set, so that outputs rotate too.
        self.kept = [None] * len(self.sets)
        with torch.cuda.graph(self.graph, stream=self.stream):
            for number in range(self.calls):
                place = number % len(self.sets)
                self.kept[place] = function(*self.sets[place])

    def sample(self):
        with torch.cuda.stream(self.stream):
            self.graph.replay()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(self.stream)
            self.graph.replay()
            end.record(self.stream)
            end.synchronize()
        return start.elapsed_time(end) * 1000 / self.calls

    def round(self):
        begun = time.monotonic()
        self.sample()
        while time.monotonic() - begun < min(self.request["warm_up"], self.request["limit"]):
            self.sample()
        samples = []
        while len(samples) < 5 or (
            len(samples) < self.request["replays"] and time.monotonic() - begun < self.request["limit"]
        ):
            samples.append(self.sample())
        return samples


def prepare(request):
    peers = {}
    for name in ("eager", "compile"):
        try:
            function = define(request)
            if name == "compile":
                torch._dynamo.reset()
                function = torch.compile(function, dynamic=False)
            peers[name] = Timed(function, request)
        except Exception as error:
            peers[name] = in_one_line(error)
            torch.cuda.synchronize()
    return peers


def measure(peers):
    times = {}
    for name, peer in peers.items():
        if isinstance(peer, str):
            times[name] = {"error": peer}
            continue
        try:
            times[name] = {"samples": peer.round()}
        except Exception as error:
            times[name] = {"error": in_one_line(error)}
    return times


def version(name):
    try:
        return str(__import__(name).__version__)
    except Exception:
        return None


answer(
    {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": version("triton"),
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(),
    }
)
peers = {}
for line in sys.stdin:
    request = json.loads(line)
    try:
        if request["op"] == "open":
            peers = prepare(request)
        if request["op"] == "close":
            peers = {}
            torch.cuda.empty_cache()
            answer({})
        else:
            answer(measure(peers))
    except Exception as error:
        answer({"error": in_one_line(error)})
