"""Measures a Llama of the transformers library in NVFP4 W4A4 against bf16.

Two decoder layers of the sizes of Llama 3 8B with random weights are quantized by torchao, swapped by
`fourfold.torch.quantize_` and compiled with Fourfold's pass. The peer is the same model in bf16 with `torch.compile`.
"""

import argparse
import collections
import glob
import json
import os
import pathlib
import sys
import tempfile
import time
import traceback

EXAMPLE = """example:
  python3 bench/torch/llama.py --json llama.json --require
  python3 bench/torch/llama.py --device cpu --hidden 256 --intermediate 512 --heads 8 --kv-heads 2 --past 32 \\
      --prefill 64 --rows 1,16,91 --rounds 2

Without a GPU, the parts that need one are left out, and no requirement on time holds."""


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = parser.add_argument_group("model")
    for option, number in (
        ("layers", 2), ("hidden", 4096), ("intermediate", 14336), ("heads", 32), ("kv-heads", 8), ("vocabulary", 1024),
    ):
        sizes.add_argument(f"--{option}", type=int, default=number, metavar="N", help=f"[default: {number}]")
    parser.add_argument("--scale", choices=("static", "dynamic"), default="static",
                        help="per-tensor scale of activations: found by calibration, or of each call [default: static]")
    parser.add_argument("--route", choices=("swap", "torchao"), default="swap",
                        help="swap torchao's layers, or compile them as they are [default: swap]")
    parser.add_argument("--no-group", action="store_true", help="multiply the input of q, k and v three times")
    parser.add_argument("--many-rows", type=int, metavar="N",
                        help="rows from which products compute what follows them [default: never]")
    parser.add_argument("--past", type=int, default=1024, metavar="N", help="past tokens of decode [default: 1024]")
    parser.add_argument("--batches", default="1,16", metavar="LIST", help="batches of decode [default: 1,16]")
    parser.add_argument("--prefill", type=int, default=2048, metavar="N", help="tokens of prefill [default: 2048]")
    parser.add_argument("--rows", default="1,16,91,2048", metavar="LIST", help="M of the check [default: 1,16,91,2048]")
    parser.add_argument("--rounds", type=int, default=21, metavar="N", help="timed rounds [default: 21]")
    parser.add_argument("--parts", default="check,decode,prefill,cold,again", metavar="LIST",
                        help="run these parts only [default: check,decode,prefill,cold,again]")
    parser.add_argument("--device", help="cuda or cpu [default: cuda if there is one]")
    parser.add_argument("--target", help="plan for this target without a GPU [default: sm_90a]")
    parser.add_argument("--cache", metavar="DIR", help="folder for built kernels [default: a temporary one]")
    parser.add_argument("--fourfold", default="fourfold", metavar="FILE",
                        help="command line, which writes the pack [default: that on PATH]")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--require", action="store_true", help="end with exit code 1 if a requirement is missed")
    parser.add_argument("--load", metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


def say(text):
    print(text, flush=True)


def prepare_cache(folder):
    """Uses an empty folder for kernels, with the toolchain of the usual one."""
    usual = os.environ.get("FOURFOLD_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fourfold"
    )
    found = [path for path in sorted(glob.glob(f"{usual}/toolchain/*")) if os.path.isdir(path)]
    if found and not any(os.environ.get(name) for name in ("FOURFOLD_NVCC", "FOURFOLD_TOOLCHAIN")):
        os.environ["FOURFOLD_TOOLCHAIN"] = found[-1]
    os.environ["FOURFOLD_CACHE_DIR"] = folder
    # Kernels of other places would be neither built nor counted.
    os.environ.pop("FOURFOLD_CACHE_TIERS", None)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "inductor"))


def reason(message):
    """The line of an explanation that has a reason."""
    lines = [line.strip() for line in message.splitlines()]
    return next((line for line in lines if ": " in line), lines[0])


class Models:
    """The dense model, torchao's, and the one that runs with Fourfold."""

    def __init__(self, options, device):
        import torch

        import fourfold.torch as ff
        import llama_model

        self.options, self.device = options, device
        self.dense = llama_model.dense(options, device)
        generator = torch.Generator(device).manual_seed(1)
        self.tokens = torch.randint(0, options.vocabulary, (1, options.prefill), generator=generator, device=device)
        self.torchao, self.inputs = llama_model.torchao(self.dense, self.tokens, options.scale)
        # The swap replaces modules, so the copy of the modules shares torchao's tensors.
        self.quantized = self.torchao
        if options.route == "swap":
            import copy

            self.quantized = copy.deepcopy(self.torchao)
            ff.quantize_(self.quantized, filter=llama_model.is_quantized, group=not options.no_group)
        self.emulated = llama_model.emulated(self.torchao)
        self.passes = []

    def layers(self):
        """The swapped linear layers by name."""
        import fourfold.torch.linear as linear

        return [(name, module) for name, module in self.quantized.named_modules() if isinstance(module, linear.Linear)]

    def input_scale(self, layer, x):
        if layer.input_scale is not None:
            return layer.input_scale.reshape(())
        return x.abs().amax().float() / (448 * 6)

    def compiled(self, name, module):
        """A module with `torch.compile`, and for Fourfold with its pass."""
        import torch

        import fourfold.torch as ff

        # Every step compiles the same code, and its compiled form must live as long as its graph.
        torch._dynamo.config.recompile_limit = 64
        options = {}
        if name == "fourfold":
            target = {} if self.device.type == "cuda" else {"target": self.options.target or "sm_90a"}
            own = ff.inductor_pass(**target)
            own.many_rows = self.options.many_rows
            self.passes.append(own)
            # Graphs from Inductor's cache would leave `planned` empty.
            options = {"post_grad_custom_pre_pass": own, "fx_graph_cache": False}
        return torch.compile(module, fullgraph=True, dynamic=False, options=options)

    def texts(self):
        """The distinct programs that the passes planned."""
        return list(dict.fromkeys(text for own in self.passes for text, _ in own.planned))


class Run:
    """The parts, each of which may fail without ending the others."""

    def __init__(self, options):
        self.options, self.rows, self.record, self.failed = options, [], {}, False

    def part(self, name, body):
        if name.split()[0] not in self.options.parts.split(","):
            return
        say(f"{name}:")
        start = time.perf_counter()
        try:
            self.record[name] = body()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            self.failed = True
            self.rows.append((name, "failed", "runs", False))
        say(f"  {time.perf_counter() - start:.1f} s")

    def row(self, what, figure, requirement="", is_met=None):
        self.rows.append((what, figure, requirement, is_met))

    def check(self, models):
        import llama_parts

        sizes = [int(number) for number in self.options.rows.split(",")]
        totals = llama_parts.check(models, models.inputs, sizes, say)
        for kind, what in (("product", "products of torchao's operands"), ("layer", "layers")):
            total = totals[kind]
            near = f"{total['near_zero']:,} near zero, {total['near_zero_beyond_ulp']:,} of them beyond one ulp"
            text = f"{total['beyond']:,} of {total['elements']:,} wrong, {total['differ']:,} differ, {near}"
            self.row(f"{what}: within one bf16 ulp", text, "0 wrong", total["beyond"] == 0)
        codes = totals["codes"]
        text = f"{codes['other']:,} of {codes['elements']:,}"
        most = 0 if self.options.scale == "static" else 0.01 * codes["elements"]
        self.row("codes other than torchao's", text, f"<= {most:.0f}", codes["other"] <= most)
        return totals

    def step(self, what, models, make, tokens, required):
        import llama_parts

        before = len(models.passes)
        found = llama_parts.compare(models, make, tokens, self.options, say)
        for own in models.passes[before:]:
            found["planned"] = [[text, [segment.name for segment in plan.segments]] for text, plan in own.planned]
            found["refused"] = own.refused
            for names, count in collections.Counter(", ".join(names) for _, names in found["planned"]).items():
                say(f"  planned {count} x {names[:150]}")
            for message, count in collections.Counter(reason(message) for _, message in own.refused).items():
                say(f"  refused {count} x {message[:200]}")
            layers = self.options.layers
            quantizations = sum("block_quantize" in text for text, _ in own.planned) / layers
            launches = f"{len(own.planned) / layers:g}, {quantizations:g} quantize"
            self.row(f"{what}: Fourfold's launches in a layer", launches)
        is_timed = models.device.type == "cuda"
        ratio = f"{found['ratio']:.2f} ({found['bf16_us']:.1f} / {found['fourfold_us']:.1f} us)"
        is_met = found["ratio"] >= required if is_timed else None
        self.row(f"{what}: bf16 / Fourfold", ratio, f">= {required}" if is_timed else "", is_met)
        is_right = found["finite"] and found["error"] <= 1.1 * found["error_of_emulation"]
        is_right = is_right and found.get("fourfold_replay_equal", True) and found.get("bf16_replay_equal", True)
        text = f"error {found['error']:.3f}, of the emulation {found['error_of_emulation']:.3f}"
        if is_timed:
            text += f", replay equal: {found['fourfold_replay_equal']}"
        self.row(f"{what}: results", text, "finite, error <= 1.1 of the emulation's, equal", is_right)
        for name, share in found.get("shares", {}).items():
            total = sum(share["us"].values()) or 1
            parts = ", ".join(f"{key} {value:.0f} us {value / total:.0%}" for key, value in share["us"].items())
            launches = sum(share["launches"].values()) / self.options.layers
            self.row(f"{what}: {name}", f"{parts}; {launches:g} launches per layer, head included")
        return found

    def decode(self, models, batch):
        import torch

        import llama_model

        cache = llama_model.Cache(models.dense, batch, self.options.past, models.device)
        generator = torch.Generator(models.device).manual_seed(2)
        tokens = torch.randint(0, self.options.vocabulary, (batch, 1), generator=generator, device=models.device)
        return self.step(f"decode M={batch}", models, lambda model: llama_model.Decode(model, cache), tokens, 1.8)

    def prefill(self, models):
        import llama_model

        return self.step(f"prefill M={self.options.prefill}", models, llama_model.Prefill, models.tokens, 0.95)

    def cold(self, models):
        """Kernels of the model, in the cache folder. Builds those that no part has built, side by side."""
        import fourfold
        import llama_parts

        backend = fourfold.Backend()
        start = time.perf_counter()
        modules = [backend.compile(text, background=True) for text in models.texts()]
        for module in modules:
            module.wait()
        waited = time.perf_counter() - start
        built = llama_parts.entries(os.environ["FOURFOLD_CACHE_DIR"])
        for name, seconds in built:
            say(f"  {seconds:6.1f} s  {name}")
        planned = f"{len(models.texts())} distinct programs"
        self.row("distinct kernels", f"{len(built)} ({planned})", "<= 12", 0 < len(built) <= 12)
        slowest = max((seconds for _, seconds in built), default=0.0)
        total = sum(seconds for _, seconds in built)
        self.row("their build", f"{total:.0f} s of compilers, the slowest {slowest:.0f} s")
        return {"kernels": built, "programs": len(models.texts()), "waited_s": waited}

    def again(self, models, folder):
        import llama_parts

        cache = os.environ["FOURFOLD_CACHE_DIR"]
        found = llama_parts.again(models.texts(), cache, pathlib.Path(folder), self.options, say)
        say(f"  {found}")
        is_fast = found["seconds"] <= 2 and not found["failures"]
        text = f"{found['seconds']:.2f} s, slowest program {found['slowest']:.2f} s"
        self.row("second process, in Fourfold", text, "<= 2 s", is_fast)
        what = "a pack" if found["pack"] else "a folder"
        text = f"{found['compiles']} of {found['programs']}"
        self.row(f"programs without kernels from {what}", text, "0", found["compiles"] == 0)
        return found

    def table(self):
        width = max(len(row[0]) for row in self.rows)
        say("")
        for what, figure, requirement, is_met in self.rows:
            verdict = "" if is_met is None else ("ok" if is_met else "MISSED")
            say(f"{what:{width}}  {verdict:6}  {figure}{f'  (required: {requirement})' if requirement else ''}")


def measure(options, folder):
    import torch
    import transformers

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "device": name}
    import torchao

    versions["torchao"] = torchao.__version__
    say(", ".join(f"{key} {value}" for key, value in versions.items()))
    run = Run(options)
    run.record["versions"], run.record["options"] = versions, {k: v for k, v in vars(options).items()}
    start = time.perf_counter()
    models = Models(options, device)
    say(f"models after {time.perf_counter() - start:.1f} s: route {options.route}, scale {options.scale}")
    # The first call of every kernel builds it, so decode goes first: its passes build kernels side by side.
    for batch in options.batches.split(","):
        run.part(f"decode {batch}", lambda batch=batch: run.decode(models, int(batch)))
    run.part("prefill", lambda: run.prefill(models))
    # Before the check, whose other layouts need kernels of their own.
    if device.type == "cuda":
        run.part("cold", lambda: run.cold(models))
        run.part("again", lambda: run.again(models, folder))
    if options.route == "swap":
        run.part("check", lambda: run.check(models))
    run.table()
    is_missed = run.failed or any(row[3] is False for row in run.rows)
    run.record["table"] = run.rows
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(run.record, indent=1, default=str))
    return 1 if run.failed or (options.require and is_missed) else 0


def main():
    options = arguments()
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    if options.load:
        import llama_parts

        texts = json.loads(pathlib.Path(options.load).read_text())
        say(json.dumps(llama_parts.load(texts, {})))
        return 0
    with tempfile.TemporaryDirectory(prefix="fourfold-llama-") as folder:
        prepare_cache(os.path.abspath(options.cache or os.path.join(folder, "cache")))
        return measure(options, os.path.join(folder, "again"))


if __name__ == "__main__":
    sys.exit(main())
