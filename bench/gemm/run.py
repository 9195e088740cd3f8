#!/usr/bin/env python3
"""Compares block-scaled GEMM on a Hopper GPU with its alternatives. Builds, measures, checks and prints."""

import argparse
import datetime
import json
import platform
import shlex
import sys
import time
from pathlib import Path

import formats
import gate
import picture
import report
import shapes as shape_list

EXIT_FAILED, EXIT_MISUSED, EXIT_ENVIRONMENT = 1, 2, 3
VERSION = 2
PEERS = ["ours", "cublas_f16", "cublas_bf16", "dequantize_cublas", "fp8", "humming"]
FOLDER = Path(__file__).resolve().parents[2] / "target" / "bench-gemm"

EPILOG = """\
Examples:
  python3 bench/gemm/run.py --json gemm.json --html gemm.html
  python3 bench/gemm/run.py --require bench/gemm/h200.require.json
  python3 bench/gemm/run.py --format w4a16 --output bf16 --json w4a16.json

Compare a prototype with another library on two shapes, quickly:
  python3 bench/gemm/run.py --library new=./prototype.so --library old=./kernel.so \\
      --shapes "128,7168,2048 1,8192,8192" --peers ours,cublas_f16,humming --quick

Exit codes: 0 ok, 1 an output is wrong or a requirement of the gate fails, 2 bad arguments,
3 no GPU, no torch, or no kernel of Fourfold.
"""


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--format",
        choices=list(formats.FORMATS),
        default="nvfp4",
        help="A x B: nvfp4 for both, w4a16 for bf16 x NVFP4, w4a8 for MXFP8 x MXFP4, mxfp8 for both [default: nvfp4]",
    )
    add("--shapes", default="contest decode large", help="M,N,K ..., contest, decode or large [default: all three]")
    add("--peers", default=",".join(PEERS), help=f"columns to measure, from {', '.join(PEERS)} [default: all]")
    add("--library", action="append", metavar="[NAME=]FILE.so", help="measure this kernel; ratios use the first one")
    add("--fourfold", metavar="FILE", help="the command line to build with [default: on PATH, or target/release]")
    add("--target", default="sm_90a", help="the target of the kernel [default: sm_90a]")
    add("--nvcc", metavar="FILE", help="the CUDA compiler [default: FOURFOLD_NVCC, CUDA_HOME, PATH, /usr/local/cuda]")
    add("--build", metavar="DIR", type=Path, default=FOLDER, help="folder for built files [default: target/bench-gemm]")
    add("--output", choices=["f16", "bf16", "f32"], default="f16", help="the output type of the kernel [default: f16]")
    add("--replays", type=int, metavar="N", help="timed replays of each graph [default: 11, with --quick 7]")
    add("--calls", type=int, metavar="N", default=24, help="GEMMs in a graph [default: 24]")
    add("--quick", action="store_true", help="fewer replays and a shorter warm-up")
    add("--require", metavar="FILE", type=Path, help="judge the run by these requirements [default: print ratios only]")
    add("--json", metavar="FILE", type=Path, help="write all figures")
    add("--html", metavar="FILE", type=Path, help="write a page with a chart")
    add("--svg", metavar="FILE", type=Path, help="write the chart")
    add("--png", metavar="FILE", type=Path, help="write the chart, if matplotlib is installed")
    chosen = parser.parse_args()
    chosen.format = formats.FORMATS[chosen.format]
    try:
        chosen.shapes = shape_list.parse_shapes(chosen.shapes)
    except ValueError as error:
        parser.error(f"--shapes: {error}")
    chosen.peers = [name for name in chosen.peers.replace(",", " ").split() if name]
    for name in chosen.peers:
        if name not in PEERS:
            parser.error(f"--peers: {name!r} is not one of {', '.join(PEERS)}")
    try:
        chosen.requirements = gate.load(chosen.require) if chosen.require else None
    except gate.BadRequirements as error:
        parser.error(f"--require: {error}")
    chosen.replays = chosen.replays or (7 if chosen.quick else 11)
    chosen.warm_up_s = 0.05 if chosen.quick else 0.2
    if chosen.replays < 1 or chosen.calls < 4:
        parser.error("--replays must be at least 1, --calls at least 4")
    return chosen


def say(text):
    """Prints progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def main():
    chosen = arguments()
    try:
        import torch
    except ImportError as error:
        say(f"cannot import torch: {error}")
        return EXIT_ENVIRONMENT
    if not torch.cuda.is_available():
        say("torch finds no GPU; nothing is measured")
        return EXIT_ENVIRONMENT
    import session

    began = time.monotonic()
    result = {
        "version": VERSION,
        "command": shlex.join(["python3", *sys.argv]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "format": chosen.format.name,
        "output": chosen.output,
        "protocol": {
            "calls_per_graph": chosen.calls,
            "replays": chosen.replays,
            "warm_up_s": chosen.warm_up_s,
            "statistic": "median",
        },
    }
    run = session.Session(chosen, say)
    result["environment"] = run.environment()
    result["columns"], result["missing"] = run.columns()
    if "ours" in chosen.peers and "ours" in result["missing"]:
        say(f"ours cannot be measured: {result['missing']['ours']}")
        return EXIT_ENVIRONMENT
    result["ceilings"] = run.ceilings()
    result["shapes"] = []
    try:
        for shape in chosen.shapes:
            result["shapes"].append(run.measure(shape, result["ceilings"]))
    # Results measured before the failure are still written.
    except (session.DeviceLost, RuntimeError) as error:
        result["error"] = str(error)
        say(result["error"])
    result["seconds"] = round(time.monotonic() - began, 1)
    measured = result["shapes"] if "ours" in chosen.peers else []
    result["verdict"] = gate.judge(measured, chosen.requirements)
    save(chosen, result)
    print(report.table(result))
    return EXIT_FAILED if "error" in result or gate.failed(result["verdict"], result["shapes"]) else 0


def save(chosen, result):
    """Writes the requested files. A failure to draw a chart does not affect the other files."""
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    if chosen.html:
        chosen.html.write_text(report.html(result))
    if chosen.svg:
        chosen.svg.write_text(picture.standalone(result))
    if chosen.png and (problem := report.png(result, chosen.png)):
        say(f"cannot draw {chosen.png}: {problem}")


if __name__ == "__main__":
    sys.exit(main())
