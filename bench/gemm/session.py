"""One run on one GPU: prepares the columns, measures shapes, checks every output."""

import subprocess
import time

import torch

import check
import device_code
import humming_peer
import operands
import ours
import peers
import timing
from device_code import Unavailable
from shapes import Shape

# The least cache size assumed; the GPU may report more.
CACHE_BYTES = 60_000_000
EXACT_ALPHA = 0.5
ROOF = Shape(8192, 8192, 8192)


class DeviceLost(Exception):
    """A kernel failed and left the GPU unusable for this process."""


class Session:
    """The GPU, and the columns to measure on it."""

    def __init__(self, chosen, say):
        self.chosen, self.say = chosen, say
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.properties = torch.cuda.get_device_properties(self.device)
        # All work uses this stream, because the default stream does not support capture.
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.cache = max(CACHE_BYTES, self.properties.L2_cache_size)
        self.peers, self.missing = [], {}
        self.nvcc = attempt(lambda: device_code.find_nvcc(chosen.nvcc))[0]
        self.code, self.code_missing = attempt(self.build_code)
        self.libraries = []

    def build_code(self):
        """Builds the dequantize and read kernels, which use the scale layout of `operands`."""
        major, minor = self.properties.major, self.properties.minor
        architecture = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
        return device_code.build(device_code.find_nvcc(self.chosen.nvcc), architecture, self.chosen.build)

    def environment(self):
        """Returns the properties of the machine that affect the figures."""
        driver = attempt(driver_version)[0]
        compiler = self.nvcc and subprocess.run([self.nvcc, "--version"], capture_output=True, text=True, check=False)
        return {
            "gpu": self.properties.name,
            "multiprocessors": self.properties.multi_processor_count,
            "l2_bytes": self.properties.L2_cache_size,
            "driver": driver,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "nvcc": compiler.stdout.strip().splitlines()[-1] if compiler and compiler.stdout else None,
            "reduced_precision_reductions": {
                "f16": bool(torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
                "bf16": bool(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
            },
        }

    def columns(self):
        """Prepares the columns. Returns the available ones, and the reasons why others are missing."""
        for name in self.chosen.peers:
            made, problem = attempt(lambda name=name: self.make(name))
            if problem is None:
                self.peers += made
            else:
                self.missing[name] = problem
                self.say(f"{name}: not measured: {problem}")
        described = []
        for peer in self.peers:
            version = getattr(peer, "version", None)
            described.append(
                {"name": peer.name, "label": peer.label, "exact": peer.exact, "rival": peer.rival, "version": version}
            )
            if isinstance(peer, peers.Ours):
                described[-1]["library"] = peer.library.path
                described[-1]["kernel"] = peer.library.metadata
        return described, self.missing

    def make(self, name):
        """Creates the columns of a name: one, or one for each library of Fourfold."""
        if name == "ours":
            return self.make_ours()
        if name == "cublas_f16":
            return [peers.Cublas(name, "cuBLAS f16", torch.float16)]
        if name == "cublas_bf16":
            return [peers.Cublas(name, "cuBLAS bf16", torch.bfloat16)]
        if name == "dequantize_cublas":
            if self.code is None:
                raise Unavailable(self.code_missing)
            return [peers.DequantizeCublas(self.code, self.chosen.format)]
        if name == "fp8":
            return [peers.Fp8()]
        package = humming_peer.load(self.nvcc)
        made = humming_peer.Humming(package, self.chosen.format)
        self.say(f"{name}: compiling {len(self.chosen.shapes)} kernels")
        started = time.monotonic()
        for problem in made.compile_all(self.chosen.shapes, self.device):
            self.say(f"{name}: {problem}")
        self.say(f"{name}: {time.monotonic() - started:.0f} s")
        return [made]

    def make_ours(self):
        """Creates a column for each named library, or for the library that the command line builds."""
        named = self.chosen.library
        if not named:
            fourfold = ours.find_fourfold(self.chosen.fourfold)
            self.say("ours: compiling")
            started = time.monotonic()
            chosen = self.chosen
            built = ours.compile_library(
                fourfold, chosen.target, chosen.format, chosen.output, chosen.build / "kernels", nvcc=self.nvcc
            )
            self.say(f"ours: {time.monotonic() - started:.0f} s")
            named = [built]
        made = []
        for index, text in enumerate(named):
            label, found, path = text.partition("=")
            if not found:
                label, path = "", text
            name = "ours" if index == 0 else f"ours:{label or index + 1}"
            title = f"Fourfold {label}".strip()
            made.append(peers.Ours(ours.Library(path), name, title, self.chosen.output, self.chosen.format))
        return made

    def ceilings(self):
        """Measures the peak rates of the memory and the matrix units in this run."""
        self.say("ceilings")
        found = self.bandwidths()
        roof = peers.Cublas("roof", "", torch.float16)
        rotation = operands.Rotation(ROOF, self.device)
        timed = self.ready(roof, rotation)
        timing.measure([timed], self.chosen.replays, self.stream, self.chosen.warm_up_s)
        found["cublas_f16_8192_tflops"] = ROOF.flops / timed.record()["median_us"] / 1e6
        timed.close()
        self.release([roof])
        return found

    def bandwidths(self):
        """Measures the bandwidth of a copy, which reads and writes, and of a kernel that only reads."""
        data = torch.empty(1 << 30, dtype=torch.uint8, device=self.device).zero_()
        other = torch.empty_like(data)
        megabytes = data.numel() / 1e6
        found = {"copy_tb_per_s": timing.rate(lambda: other.copy_(data), 2 * megabytes, self.stream)}
        found["read_tb_per_s"] = None
        if self.code is not None:
            sink = torch.zeros(4, dtype=torch.int32, device=self.device)
            blocks = 8 * self.properties.multi_processor_count
            found["read_tb_per_s"] = timing.rate(lambda: self.code.read(data, blocks, sink), megabytes, self.stream)
        return found

    def ready(self, peer, rotation):
        """Captures a graph of a column."""
        sets = operands.rotation_count(peer.bytes_per_set(rotation.shape), self.cache, self.chosen.calls)
        calls = max(self.chosen.calls, sets)
        peer.bind(rotation, sets)
        return timing.Timed(timing.capture(peer.launch, sets, calls, self.stream), calls)

    def release(self, bound):
        """Frees a shape's memory."""
        torch.cuda.synchronize()
        for peer in bound:
            peer.release()
        torch.cuda.empty_cache()

    def measure(self, shape, ceilings):
        """Times all columns on a shape in turns, and checks every output."""
        self.say(f"{shape}")
        of, itemsize = self.chosen.format, ours.OUTPUT_TYPES[self.chosen.output].itemsize
        bandwidth = max(ceilings["copy_tb_per_s"], ceilings.get("read_tb_per_s") or 0) * 1e6
        row = {
            "m": shape.m,
            "n": shape.n,
            "k": shape.k,
            "group": shape.group,
            "bytes": shape.bytes(itemsize, of),
            "flops": shape.flops,
            "reference_us": shape.reference_us(itemsize, of=of),
            "measured_reference_us": shape.reference_us(
                itemsize, bandwidth, ceilings["cublas_f16_8192_tflops"] * 1e6, of
            ),
            "peers": {name: {"median_us": None, "reason": problem} for name, problem in self.missing.items()},
        }
        rotation = operands.Rotation(shape, self.device, of=of)
        timed = {}
        for peer in self.peers:
            graph, problem = attempt(lambda peer=peer: self.ready(peer, rotation))
            self.must_be_alive(peer, problem)
            if problem is None:
                timed[peer] = graph
            else:
                self.say(f"  {peer.name}: {problem}")
                peer.release()
                row["peers"][peer.name] = {"median_us": None, "reason": problem, **kind(peer)}
        if timed:
            one = next(iter(timed.values()))
            before = timing.clocks(lambda: self.occupy(one))
            timing.measure(list(timed.values()), self.chosen.replays, self.stream, self.chosen.warm_up_s)
            row["clocks"] = [before, timing.clocks(lambda: self.occupy(one))]
            self.check(rotation, timed, row)
        for graph in timed.values():
            graph.close()
        self.release(self.peers)
        return row

    def occupy(self, timed):
        """Keeps the GPU busy for at most some tens of milliseconds."""
        for _ in range(4):
            timed.graph.replay()
        self.stream.synchronize()

    def check(self, rotation, timed, row):
        """Poisons every output, replays each graph once more, and checks the outputs."""
        for peer in timed:
            peer.poison()
        torch.cuda.synchronize()
        for peer, graph in timed.items():
            graph.graph.replay()
            problem = attempt(self.stream.synchronize)[1]
            self.must_be_alive(peer, problem)
        judgements = {peer.name: check.Judgement(peer.exact, peer.reduced) for peer in timed}
        check.judge(rotation, {peer.name: peer.outputs for peer in timed}, judgements)
        own = [peer for peer in timed if isinstance(peer, peers.Ours)]
        if own:
            for exact, unit in rotation.checks():
                if check.exact_sums(exact, unit):
                    for peer in own:
                        judgement, output = judgements[peer.name], peer.once(rotation.shape, exact, EXACT_ALPHA)
                        equal = check.bit_equal(exact, output, EXACT_ALPHA)
                        judgement.bit_equal = equal and judgement.bit_equal is not False
        for peer, graph in timed.items():
            judged = judgements[peer.name].record()
            row["peers"][peer.name] = {**graph.record(), "sets": peer.sets, "check": judged, **kind(peer)}
            if not judged["ok"]:
                self.say(f"  {peer.name}: outputs are wrong: {judged}")

    def must_be_alive(self, peer, problem):
        """Raises DeviceLost after a failure that leaves the GPU in an error state."""
        if problem is not None and (lost := attempt(torch.cuda.synchronize)[1]):
            raise DeviceLost(f"{peer.name}: {problem}; afterwards: {lost}")


def kind(peer):
    """Returns whether a peer is exact, and whether it is compared with Fourfold."""
    return {"exact": peer.exact, "rival": peer.rival}


def attempt(function):
    """Calls a function. Returns its result and None, or None and the error; peers may raise any exception."""
    try:
        return function(), None
    except Unavailable as error:
        return None, str(error)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".strip()[:500]


def driver_version():
    """Returns the driver version that nvidia-smi reports."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0].strip()
