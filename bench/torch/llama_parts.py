"""The parts of `llama.py`: numerics, decode, prefill, shares of time, cold start."""

import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

import torch

import llama_model

# Of all sums of magnitudes, those that cancel to less than this part are near zero.
NEAR_ZERO = 2.0**-12
CLASSES = ("products", "attention", "quantization", "rest")
PRODUCTS = re.compile(
    r"gemm|gemv|nvjet|cutlass|cublas|xmma|splitk|triton_tem|_mm(_|$)|addmm|decode_a_kernel|small_m_regs_kernel", re.I
)
ATTENTION = re.compile(r"flash|fmha|attention|sdpa|softmax", re.I)


def ordered(values):
    """bf16 bits as integers in the order of the numbers, so that a difference counts ulps."""
    bits = values.contiguous().view(torch.int16).int()
    return torch.where(bits < 0, -32768 - bits, bits)


def judge(found, exact, sums, k):
    """Counts a layer's elements against the exact product rounded to bf16.

    Every element must be within one ulp, unless it is near zero: its magnitude is at most 2^-12 of the sum of
    magnitudes. Those must be within the bound of f32 sums in any order, plus the rounding to bf16.
    """
    wanted = exact.float().bfloat16()
    ulps = (ordered(found) - ordered(wanted)).abs()
    near = exact.abs() <= NEAR_ZERO * sums
    unit = k * 2.0**-24
    bound = unit / (1 - unit) * sums + 4 * 2.0**-23 * exact.abs()
    bound = bound + 2.0**-8 * (exact.abs() + bound) + 2.0**-134
    outside = ~((found.double() - exact).abs() <= bound)
    finite = torch.isfinite(found)
    return {
        "elements": found.numel(),
        "differ": int((ulps > 0).sum()),
        "near_zero": int(near.sum()),
        "near_zero_beyond_ulp": int(((ulps > 1) & near).sum()),
        "beyond": int((((ulps > 1) & ~near) | outside | ~finite).sum()),
    }


def check(models, inputs, sizes, say):
    """Each linear layer, fed calibration's inputs, against the emulation of torchao's operands."""
    import fourfold.torch as ff

    totals = {"product": {}, "layer": {}, "codes": {}}
    for name, layer in models.layers():
        weight = models.torchao.get_submodule(name).weight
        for m in sizes:
            x = inputs[name]
            x = x.repeat(-(-m // x.shape[0]), 1)[:m].contiguous()
            scale, k = models.input_scale(layer, x), x.shape[1]
            exact, sums, (theirs, their_scales) = llama_model.emulate(x, weight, scale)
            # The product of torchao's own operands.
            alpha = scale.reshape(1) * layer.weight_global_scale
            product = ff.scaled_mm(
                theirs, their_scales, layer.weight, layer.weight_scale, alpha=alpha, swizzled=(False, True)
            )
            found = {"product": judge(product, exact, sums, k)}
            # A dynamic layer divides where torchao multiplies by a reciprocal. Rows that get other codes by that are
            # compared with their own product.
            rounding = "floor" if layer.is_dynamic else "torchao"
            codes, scales, _ = ff.quantize(x, scale.reshape(1), rounding=rounding)
            rows = (codes != theirs).any(1) | (scales != their_scales.view(torch.uint8)).any(1)
            rows = rows.nonzero().flatten()
            if rows.numel():
                exact[rows], sums[rows], _ = llama_model.emulate(x[rows], weight, scale, (codes[rows], scales[rows]))
            found["layer"] = judge(layer(x), exact, sums, k)
            other = (codes & 15 != theirs & 15).sum() + (codes >> 4 != theirs >> 4).sum()
            found["codes"] = {"elements": x.numel(), "other": int(other), "rows": rows.numel()}
            for kind, counts in found.items():
                for key, count in counts.items():
                    totals[kind][key] = totals[kind].get(key, 0) + count
            say(f"  {name} M={m}: {found}")
    return totals


def capture(call):
    """A CUDA graph of a call, and its result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    torch.cuda.synchronize()
    return graph, result


class Clock:
    """Times calls: with events on a GPU, else with the host's clock."""

    def __init__(self, device):
        self.is_cuda = device.type == "cuda"

    def microseconds(self, call, count):
        if not self.is_cuda:
            start = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - start) / count * 1e6
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        for _ in range(count):
            call()
        events[1].record()
        events[1].synchronize()
        return events[0].elapsed_time(events[1]) / count * 1e3


def interleave(sides, device, rounds, milliseconds=20):
    """Medians of microseconds per call, in rounds that time each side in turn, after 250 ms of warm-up each."""
    clock, counts, times = Clock(device), {}, {name: [] for name in sides}
    for name, call in sides.items():
        start = time.perf_counter()
        while time.perf_counter() - start < (0.25 if clock.is_cuda else 0):
            for _ in range(10):
                call()
            if clock.is_cuda:
                torch.cuda.synchronize()
        counts[name] = max(1, int(milliseconds * 1000 / clock.microseconds(call, 3)))
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            times[name].append(clock.microseconds(sides[name], counts[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def compare(models, make, tokens, options, say):
    """Times a step of both models, and checks its results. `make` makes the module of a step from a model."""
    device = tokens.device
    results, graphs, record = {}, {}, {}
    for name, model in (("bf16", models.dense), ("fourfold", models.quantized)):
        start = time.perf_counter()
        step = models.compiled(name, make(model))
        results[name] = step(tokens).clone()
        if device.type == "cuda":
            torch.cuda.synchronize()
        record[f"{name}_first_s"] = time.perf_counter() - start
        say(f"  {name}: first call after {record[f'{name}_first_s']:.1f} s")
        graphs[name] = lambda step=step: step(tokens)
        if device.type == "cuda":
            graph, replayed = capture(graphs[name])
            replayed.zero_()
            graph.replay()
            torch.cuda.synchronize()
            record[f"{name}_replay_equal"] = bool(torch.equal(replayed, results[name]))
            graphs[name] = graph.replay
    emulated = make(models.emulated)(tokens)
    record["finite"] = all(bool(torch.isfinite(result).all()) for result in results.values())
    record["error"] = distance(results["fourfold"], results["bf16"])
    record["error_of_emulation"] = distance(emulated, results["bf16"])
    record["error_to_emulation"] = distance(results["fourfold"], emulated)
    times = interleave(graphs, device, options.rounds)
    record |= {f"{name}_us": found for name, found in times.items()}
    record["ratio"] = times["bf16"] / times["fourfold"]
    if device.type == "cuda":
        record["shares"] = {name: shares(call, say) for name, call in graphs.items()}
    return record


def distance(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def kind(name):
    """The class of a kernel, by its name."""
    ours = re.search(r"fourfold::kernel<([^>]*)>", name)
    if ours is not None or "8fourfold6kernel" in name:
        # Products have the tile as two more template arguments.
        count = len(ours[1].split(",")) if ours is not None else len(re.findall(r"L[ijm]", name))
        return "products" if count > 2 else "quantization"
    if ATTENTION.search(name):
        return "attention"
    return "products" if PRODUCTS.search(name) else "rest"


def shares(call, say, count=20):
    """Microseconds and launches of each class of kernels in one call, and the slowest kernels."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    times, launches, kernels = dict.fromkeys(CLASSES, 0.0), dict.fromkeys(CLASSES, 0.0), {}
    for event in found.key_averages():
        spent = event.self_device_time_total
        if spent <= 0:
            continue
        times[kind(event.key)] += spent / count
        launches[kind(event.key)] += event.count / count
        kernels[event.key[:150]] = (spent / count, event.count / count)
    total = sum(times.values()) or 1.0
    for name in CLASSES:
        say(f"  {name:12} {times[name]:8.1f} us {times[name] / total:4.0%} {launches[name]:5.1f} launches")
    slowest = sorted(kernels.items(), key=lambda item: -item[1][0])
    for name, (spent, number) in slowest[:24]:
        say(f"    {spent:8.1f} us {number:5.1f} x {kind(name):12} {name}")
    return {"us": times, "launches": launches}


def entries(cache):
    """The kernels in a cache folder: name and compile time in seconds."""
    found = []
    for path in sorted(pathlib.Path(cache).glob("kernels/entries/*/metadata.json")):
        data = json.loads(path.read_text())
        found.append((data["kernel"], data["resources"]["compile_time"]))
    return found


# What names compilers, or places with kernels.
TOOLS = ("CUDA_HOME", "CUTLASS_PATH", "FOURFOLD_CUTLASS", "FOURFOLD_NVCC", "FOURFOLD_TOOLCHAIN", "NVCC_CCBIN")


def load(texts, target):
    """Loads programs one after the other. Returns the seconds, the slowest's, and why programs have no kernels."""
    import fourfold

    start, times, failures = time.perf_counter(), [], []
    backend = fourfold.Backend(**target)
    for text in texts:
        before = time.perf_counter()
        try:
            module = backend.compile(text)
            report = module.report(R=1) if "R" in module.symbols else module.report()
            if not report.is_capturable:
                failures.append(report.why_not)
        except fourfold.Error as error:
            failures.append(str(error))
        times.append(time.perf_counter() - before)
    return {"seconds": time.perf_counter() - start, "slowest": max(times, default=0.0), "failures": failures}


def again(texts, cache, folder, options, say):
    """Packs the kernels, and loads them in a second process with an empty cache and no compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    programs, empty = folder / "programs", folder / "empty"
    programs.mkdir(exist_ok=True)
    empty.mkdir(exist_ok=True)
    for index, text in enumerate(texts):
        (programs / f"{index}.fir").write_text(text)
    tool, tier = shutil.which(options.fourfold), pathlib.Path(cache) / "kernels/entries"
    record = {"pack": None, "programs": len(texts)}
    if tool is not None:
        pack = folder / "model.kernels"
        environment = os.environ | {"FOURFOLD_CACHE_DIR": str(cache)}
        command = [tool, "pack", str(programs), "-o", str(pack)]
        packed = subprocess.run(command, env=environment, capture_output=True, text=True)
        if packed.returncode == 0:
            tier, record["pack"] = pack, pack.stat().st_size
        else:
            say(f"  pack failed: {packed.stderr.strip()[-500:]}")
    (folder / "texts.json").write_text(json.dumps(texts))
    # A kernel that the tier lacks cannot be built, so its program fails.
    environment = {name: value for name, value in os.environ.items() if name not in TOOLS}
    environment |= {"FOURFOLD_CACHE_DIR": str(empty), "FOURFOLD_CACHE_TIERS": str(tier), "PATH": str(empty)}
    own = pathlib.Path(__file__).resolve().parent / "llama.py"
    command = [sys.executable, str(own), "--load", str(folder / "texts.json")]
    loaded = subprocess.run(command, env=environment, capture_output=True, text=True)
    if loaded.returncode != 0:
        raise RuntimeError(f"the second process failed: {loaded.stderr[-2000:]}")
    record |= json.loads(loaded.stdout.splitlines()[-1])
    record["tier"] = str(tier)
    record["compiles"] = len(record["failures"])
    return record
