#!/usr/bin/env python3
"""Rebuilds the recorded block-scaled configurations with a compiler and a CUTLASS, and records each outcome.

A line of combos.jsonl describes one configuration. Under a key for each CUTLASS version it has the outcome: stages,
shared memory, threads, registers and spills, or the compiler's errors. Lines whose outcomes differ between versions
are rebuilt first.
"""

import argparse
import concurrent.futures
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EPILOG = """\
Example, every configuration with CUTLASS 4.5.0 on eight cores:
  python3 bench/compile/combos.py fixtures/combos.jsonl --key v45 --nvcc /opt/cuda/bin/nvcc \\
      --cutlass /opt/cutlass --jobs 8 --out combos.jsonl

Exit codes: 0 every line was built or rejected by the compiler, 1 some lines were skipped or timed out,
2 bad arguments.
"""

ELEMENTS = {
    "nv4": "cutlass::nv_float4_t<cutlass::float_e2m1_t>",
    "mx4": "cutlass::mx_float4_t<cutlass::float_e2m1_t>",
    "mx6": "cutlass::mx_float6_t<cutlass::float_e3m2_t>",
    "mx8": "cutlass::mx_float8_t<cutlass::float_e4m3_t>",
    "mx8e5": "cutlass::mx_float8_t<cutlass::float_e5m2_t>",
    "u4nv": "cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>",
    "u4mx": "cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue8m0_t>",
}

# Limits on the recorded errors; later errors mostly follow from the first ones.
LONGEST, MOST = 230, 3

SOURCE = """\
#include <cutlass/cutlass.h>
#include <cute/tensor.hpp>
#include <cutlass/device_kernel.h>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/gemm/kernel/tile_scheduler.hpp>

using Tile = cute::Shape<{tile}>;
using Cluster = cute::Shape<{cluster}>;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::{arch}, cutlass::arch::{epilogue_class}, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float,
    {c}, {layout_c}{star}, {align_c}, {d}, {layout_d}{star}, {align_d}, {epilogue}>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::{arch}, cutlass::arch::OpClassBlockScaledTensorOp,
    {a}, {layout_a}{star}, {align_a}, {b}, {layout_b}{star}, {align_b}, float, Tile, Cluster,
    {stages}, {mainloop}>::CollectiveOp;
using Problem = {problem};
using Kernel = cutlass::gemm::kernel::GemmUniversal<Problem, Mainloop, Epilogue{scheduler}>;

extern "C" __device__ int combo_stages = Kernel::CollectiveMainloop::DispatchPolicy::Stages;
extern "C" __device__ int combo_shared = Kernel::SharedStorageSize;
extern "C" __device__ int combo_threads = Kernel::MaxThreadsPerBlock;
"""

# Instantiates the kernel itself, because its body has additional checks.
BODY = """\
template __global__ void cutlass::device_kernel<Kernel>(CUTLASS_GRID_CONSTANT typename Kernel::Params const);
"""


def source(row):
    """Returns the program that instantiates a configuration."""
    grouped = row.get("grouped", False)
    m, n, k = row["tile"]
    cluster = "int, int, cute::_1" if row["cl"][0] == 0 else ", ".join(f"cute::_{extent}" for extent in row["cl"])
    c = {"void": "void", None: "cutlass::bfloat16_t"}.get(row.get("C"), row.get("C"))
    d = row.get("D", "cutlass::bfloat16_t")
    bits = lambda element: 32 if element == "float" else 16
    major = lambda is_first, k_major: f"cutlass::layout::{'RowMajor' if is_first == bool(k_major) else 'ColumnMajor'}"
    layout_d = "cutlass::layout::" + ("RowMajor" if row.get("LD", 1) == 1 else "ColumnMajor")
    auto = "cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>"
    text = SOURCE.format(
        arch=row["arch"],
        tile=f"cute::Int<{m}>, cute::Int<{n}>, cute::Int<{k}>",
        cluster=cluster,
        epilogue_class=row.get("eop", "OpClassBlockScaledTensorOp"),
        c=c,
        d=d,
        layout_c=layout_d,
        layout_d=layout_d,
        star=" *" if grouped else "",
        align_c=1 if c == "void" else 128 // bits(c),
        align_d=128 // bits(d),
        epilogue="cutlass::epilogue::collective::EpilogueScheduleAuto"
        if row["es"] == "Auto"
        else f"cutlass::epilogue::{row['es']}",
        a=ELEMENTS[row["A"]],
        b=ELEMENTS[row["B"]],
        layout_a=major(True, row["LA"]),
        layout_b=major(False, row["LB"]),
        align_a=row["alA"],
        align_b=row["alB"],
        stages=f"cutlass::gemm::collective::StageCount<{row['stages']}>" if "stages" in row else auto,
        mainloop="cutlass::gemm::collective::KernelScheduleAuto" if row["ms"] == "Auto" else f"cutlass::gemm::{row['ms']}",
        problem="cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>"
        if grouped
        else "cute::Shape<int, int, int, int>",
        scheduler=", cutlass::gemm::StreamKScheduler" if row.get("sched") == "streamk" else "",
    )
    return text + (BODY if row["mode"] == "full" else "")


def messages(log):
    """Returns the distinct errors of a log in order, without source positions."""
    found = []
    for line in log.splitlines():
        error = re.search(r"error: (.*)", line)
        if error and error[1][:LONGEST] not in found:
            found.append(error[1][:LONGEST])
    return found[:MOST]


def build(row, options):
    """Returns the outcome of one configuration, or None after a timeout of the compiler."""
    with tempfile.TemporaryDirectory(prefix="combo-") as folder:
        folder = Path(folder)
        (folder / "combo.cu").write_text(source(row))
        architecture = row["sm"].removeprefix("sm_")
        command = [
            str(options.nvcc),
            *("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-w", "-Xptxas=-v", "--keep"),
            f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
            *(f"-I{path}" for path in options.include),
            f"-I{options.cutlass}/include",
            f"-I{options.cutlass}/tools/util/include",
            *(("-cubin",) if row["mode"] == "full" else ("-ptx",)),
            *("-o", "combo.out", "combo.cu"),
        ]
        try:
            run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=options.time_limit)
        except subprocess.TimeoutExpired:
            return None
        log = run.stdout + run.stderr
        if run.returncode != 0:
            return {"ok": False, "errs": messages(log) or [log.strip()[-300:]]}
        ptx = "".join(path.read_text() for path in [*folder.glob("*.ptx"), *folder.glob("combo.out")][:1])
        value = lambda name: int(re.search(rf"{name} = (\d+)", ptx)[1])
        outcome = {
            "ok": True,
            "stages": value("combo_stages"),
            "smem": value("combo_shared"),
            "threads": value("combo_threads"),
        }
        if row["mode"] == "full":
            outcome["regs"] = int(re.search(r"Used (\d+) registers", log)[1])
            outcome["spill"] = int(re.search(r"(\d+) bytes spill stores", log)[1])
        return outcome


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("records", type=Path, help="the file of configurations")
    add("--key", required=True, help="the key for the outcomes, such as v45")
    add("--nvcc", required=True, type=Path, help="the compiler")
    add("--cutlass", required=True, type=Path, help="the folder of CUTLASS, with include/ and tools/util/include/")
    add("--include", action="append", default=[], help="an include folder of the toolkit")
    add("--jobs", type=int, default=2, help="concurrent compilers [default: 2]")
    add("--time-limit", type=float, default=300, metavar="S", help="time limit of one build in seconds [default: 300]")
    add("--stop-after", type=float, default=1e9, metavar="S", help="start no build after this many seconds")
    add("--out", type=Path, help="the output file for all lines [default: overwrite the input]")
    return parser.parse_args()


def main():
    options = arguments()
    rows = [json.loads(line) for line in options.records.read_text().splitlines()]
    verdicts = lambda row: {outcome["ok"] for key, outcome in row.items() if re.fullmatch(r"v\d+", key)}
    order = sorted((row for row in rows if options.key not in row), key=lambda row: (len(verdicts(row)) < 2, row["mode"] == "full"))
    began, missing, done = time.monotonic(), 0, 0

    def one(row):
        late = time.monotonic() - began > options.stop_after
        return row, None if late else build(row, options)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row, outcome in pool.map(one, order):
            done += 1
            if outcome is None:
                missing += 1
            else:
                row[options.key] = outcome
            if done % 20 == 0 or done == len(order):
                print(f"{done} of {len(order)}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    (options.out or options.records).write_text("".join(json.dumps(row) + "\n" for row in rows))
    built = [row[options.key]["ok"] for row in rows if options.key in row]
    print(f"{len(built)} outcomes: {sum(built)} built, {len(built) - sum(built)} rejected, {missing} missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
