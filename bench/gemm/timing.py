"""Captures CUDA graphs of GEMMs over rotating operands, and replays them in turns."""

import gc
import math
import shutil
import statistics
import subprocess
import time

import torch


def capture(launch, sets, calls, stream):
    """Captures `calls` consecutive launches over `sets` sets of operands on the current stream."""
    # First calls may load, tune or allocate, which must not happen during the capture.
    for index in range(sets):
        launch(index)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for call in range(calls):
            launch(call % sets)
    return graph


class Timed:
    """A captured graph and the times of its replays."""

    def __init__(self, graph, calls):
        self.graph, self.calls = graph, calls
        self.microseconds = []

    def close(self):
        """Frees the graph."""
        self.graph.reset()

    def record(self):
        """The JSON form, with times per call."""
        return {**summary(self.microseconds), "replays_us": self.microseconds, "calls": self.calls}


def summary(microseconds):
    """Returns median, minimum and 90th percentile."""
    ordered = sorted(microseconds)
    return {
        "median_us": statistics.median(ordered),
        "min_us": ordered[0],
        "p90_us": ordered[math.ceil(0.9 * len(ordered)) - 1],
    }


def measure(timed, replays, stream, warm_up_s=0.2):
    """Replays graphs in turns: A B C, A B C, and so on.

    An untimed replay precedes each timed one. The host enqueues the timed replay while the untimed one runs, so host
    launches are not timed, and the caches are in the state of a long run of this graph.
    """
    until = time.monotonic() + warm_up_s
    while True:
        for one in timed:
            one.graph.replay()
        stream.synchronize()
        if time.monotonic() >= until:
            break
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(replays):
            for one in timed:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                one.graph.replay()
                start.record(stream)
                one.graph.replay()
                end.record(stream)
                end.synchronize()
                one.microseconds.append(start.elapsed_time(end) * 1000 / one.calls)
    finally:
        if collecting:
            gc.enable()


def rate(run, amount, stream, rounds=7, repeat=8):
    """Returns `amount` per microsecond of a call: the median over rounds of `repeat` calls, after an untimed call."""
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        start.record(stream)
        for _ in range(repeat):
            run()
        end.record(stream)
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / repeat)
    return amount / statistics.median(times)


def clocks(busy):
    """Returns clocks, power and temperature from nvidia-smi while `busy` loads the GPU, or None."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    # nvidia-smi ignores CUDA_VISIBLE_DEVICES.
    gpu = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    fields = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"]
    query = [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", gpu]
    try:
        with subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            until = time.monotonic() + 10
            while process.poll() is None:
                if time.monotonic() > until:
                    process.kill()
                busy()
            line = process.communicate()[0].strip().splitlines()[0]
        values = [number(part) for part in line.split(",")]
        return dict(zip(["sm_mhz", "memory_mhz", "watts", "celsius"], values, strict=True))
    except (OSError, ValueError, IndexError):
        return None


def number(text):
    """Parses a number printed by nvidia-smi; None for text such as `[N/A]`."""
    try:
        return float(text)
    except ValueError:
        return None
