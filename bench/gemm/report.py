#!/usr/bin/env python3
"""Shows a recorded run as a short table, a page with a chart, an SVG or a PNG."""

import argparse
import html as markup
import json
import sys
from pathlib import Path

import formats
import gate
import picture

SHORT = {
    "ours": "ours",
    "cublas_f16": "cuBLAS f16",
    "cublas_bf16": "bf16",
    "dequantize_cublas": "deq+f16",
    "fp8": "FP8 ~",
    "humming": "Humming",
}


def figure(value, digits=1):
    """Formats a number, or a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value):
    """Formats a share, or a dash for None."""
    return "-" if value is None else f"{value:.0%}"


def correct(row):
    """Returns the result of checking Fourfold's outputs."""
    check = row["peers"].get("ours", {}).get("check")
    if check is None:
        return "-"
    if not check["ok"]:
        return "WRONG"
    return "bits" if check["bit_equal"] else "bound"


def measured_share(row):
    """Returns the achieved share of this run's own ceilings."""
    ours = gate.median(row, "ours")
    return row["measured_reference_us"] / ours if ours else None


def headings(result):
    """Returns the measured columns, Fourfold first, with their short names."""
    return [(column["name"], SHORT.get(column["name"], column["name"].split(":")[-1])) for column in result["columns"]]


def cells(result):
    """Returns the table: headings, and a row of texts for each shape."""
    columns = headings(result)
    head = ["M,N,K", "ref us", *[short for _, short in columns], "of ref", "of run", "x best", "check"]
    body = []
    for row in result["shapes"]:
        times = []
        best = gate.best_rival(row)
        for name, _ in columns:
            marked = "*" if best and best[0] == name else ""
            times.append(figure(gate.median(row, name)) + marked)
        body.append(
            [
                name_of(row) + ("!" if moved(row) else ""),
                figure(row["reference_us"]),
                *times,
                percent(gate.share(row)),
                percent(measured_share(row)),
                figure(gate.speedup(row), 2),
                correct(row),
            ]
        )
    return head, body


def name_of(row):
    """Formats the extents of a row."""
    return f"{row['m']},{row['n']},{row['k']}"


def sm_clocks(row):
    """Returns the known SM clocks under load before and after a shape was measured."""
    return [sample["sm_mhz"] for sample in row.get("clocks", []) if sample and sample["sm_mhz"]]


def moved(row):
    """Returns whether the SM clock changed by more than 2 % while a shape was measured."""
    samples = sm_clocks(row)
    return bool(samples) and max(samples) > 1.02 * min(samples)


def notes(result):
    """Returns the legend of the table."""
    text = "us per GEMM, medians; * best exact peer; ~ approximate; of run: of this run's own ceilings"
    samples = [clock for row in result["shapes"] for clock in sm_clocks(row)]
    if samples:
        text += f"; SM clock {min(samples):.0f} to {max(samples):.0f} MHz"
    if any(moved(row) for row in result["shapes"]):
        text += ", ! changed by more than 2 %"
    return text


def failures(result):
    """Returns a line on the shapes that Fourfold could not run, if any."""
    found = []
    for row in result["shapes"]:
        found += [f"{name} at {name_of(row)}: {peer['reason']}" for name, peer in gate.own(row) if peer.get("reason")]
    if not found:
        return []
    return [f"failed: {found[0][:300]}" + (f", and {len(found) - 1} more" if len(found) > 1 else "")]


def ceilings(result):
    """Formats the ceilings of the run on one line."""
    found = result["ceilings"]
    return (
        f"copy {figure(found['copy_tb_per_s'], 2)} TB/s, read {figure(found['read_tb_per_s'], 2)} TB/s, "
        f"cuBLAS f16 8192^3 on NVFP4 data {figure(found['cublas_f16_8192_tflops'], 0)} TFLOP/s"
    )


def judged(result):
    """Returns the lines of a verdict with their levels. Without requirements, the only line is correctness."""
    verdict = result["verdict"]
    levels = [(level, line) for level in gate.LEVELS for line in verdict[level]]
    return [("check", verdict["correctness"]), *levels]


def table(result):
    """Formats a run; all shapes take at most 25 lines."""
    environment = result["environment"]
    lines = [
        f"{environment['gpu']}, driver {environment['driver']}, torch {environment['torch']}; {ceilings(result)}",
    ]
    head, body = cells(result)
    widths = [max(len(text) for text in column) for column in zip(head, *body, strict=True)]
    for texts in [head, *body]:
        first, *rest = zip(texts, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *[text.rjust(width) for text, width in rest]]))
    lines.append(notes(result))
    for level, line in judged(result):
        shown = f" ({line['shown']})" if line["shown"] else ""
        lines.append(f"{level:8}{line['outcome']:13}{line['what']}{shown}")
    lines += failures(result)
    if result["missing"]:
        lines.append("not measured: " + "; ".join(f"{name}: {why}" for name, why in result["missing"].items())[:300])
    if "error" in result:
        lines.append(f"stopped: {result['error']}"[:300])
    return "\n".join(lines)


STYLE = """
:root { --paper:#ffffff; --ink:#1c1f26; --soft:#5b6270; --rule:#d9dde4; --band:#f5f6f9; --ours:#2563eb;
  --orange:#c2570c; --purple:#7c3aed; --teal:#0f766e; --grey:#737a87; --good:#15803d; --bad:#b91c1c; }
@media (prefers-color-scheme: dark) { :root { --paper:#14161b; --ink:#e8eaef; --soft:#a2a9b6; --rule:#343a46;
  --band:#1c1f26; --ours:#6ea0ff; --orange:#f59e5b; --purple:#b794ff; --teal:#4fd1bf; --grey:#98a0ae;
  --good:#5fce86; --bad:#ff8a80; } }
* { box-sizing:border-box } body { margin:0 auto; padding:28px 20px; max-width:1080px; background:var(--paper);
  color:var(--ink); font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif }
h1 { font-size:24px; margin:0 0 4px } h2 { font-size:17px; margin:28px 0 8px } p { margin:0 0 10px; color:var(--soft) }
svg { width:100%; height:auto; display:block } .scroll { overflow-x:auto }
table { border-collapse:collapse; font-size:13px; font-variant-numeric:tabular-nums; white-space:nowrap }
th,td { padding:4px 9px; text-align:right; border-bottom:1px solid var(--rule) }
th { color:var(--soft); font-weight:600 } th:first-child,td:first-child,td.left { text-align:left }
.pass { color:var(--good); font-weight:600 } .FAIL { color:var(--bad); font-weight:600 } .not { color:var(--soft) }
"""


def html(result):
    """Returns a self-contained page."""
    environment, protocol = result["environment"], result["protocol"]
    escape = markup.escape
    head, body = cells(result)
    rows = ["<tr>" + "".join(f"<th>{escape(text)}</th>" for text in head) + "</tr>"]
    rows += ["<tr>" + "".join(f"<td>{escape(text)}</td>" for text in texts) + "</tr>" for texts in body]
    verdict = []
    for level, line in judged(result):
        outcome = line["outcome"]
        if level == "check":
            # Shown in a paragraph, not in the table of requirements.
            checked = f"Every output was compared with the exact sum: {escape(outcome)} {escape(line['shown'])}".strip()
            continue
        verdict.append(
            f'<tr><td>{level}</td><td class="left">{escape(line["what"])}</td>'
            f'<td class="left">{escape(line["shown"])}</td><td class="{outcome.split()[0]}">{outcome}</td></tr>'
        )
    required = '<h2>Requirements</h2>\n<div class="scroll"><table>' + "".join(verdict) + "</table></div>"
    failed = "".join(f'<p class="FAIL">{escape(text)}</p>' for text in failures(result))
    missing = "".join(f"<p>Not measured: {escape(name)}: {escape(why)}</p>" for name, why in result["missing"].items())
    stopped = f'<p class="FAIL">The run stopped: {escape(result["error"])}</p>' if "error" in result else ""
    labels = "; ".join(
        f"{SHORT.get(column['name'], column['name'])}: {column['label']}"
        + (f" {column['version']}" if column.get("version") else "")
        for column in result["columns"]
    )
    title = escape(formats.of(result).title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title} on {escape(environment["gpu"])}</title><style>{STYLE}</style></head><body>
<h1>{title} on {escape(environment["gpu"])}</h1>
<p>Exact products to {escape(result["output"])}, time of one GEMM relative to the
fastest exact alternative of the same run. Shorter is faster.</p>
{picture.svg(result)}
<h2>Microseconds per GEMM</h2>
<div class="scroll"><table>{"".join(rows)}</table></div>
<p>{escape(notes(result))}. &ldquo;ref&rdquo; is the larger of bytes / 4.3 TB/s
and operations / 790 TFLOP/s; &ldquo;of run&rdquo; uses this run's own ceilings instead:
{escape(ceilings(result))}.</p>
<p>{checked}.</p>
{required if verdict else ""}
{failed}{missing}{stopped}
<h2>Method</h2>
<p>CUDA graphs of {protocol["calls_per_graph"]} GEMMs over rotating operands that take more than three times the L2
cache, the columns replayed in turns. Times are medians of {protocol["replays"] or "several"} replays after
{protocol["warm_up_s"]} s of warm-up. An untimed replay of the same graph precedes each. No GEMM reads before the
previous one has ended. All columns get the same random codes and scales. Outputs are poisoned before the last replay,
and every element is compared with the exact sum.</p>
<p>{escape(labels)}.</p>
<p>{escape(environment["gpu"])}, {environment["multiprocessors"]} multiprocessors,
driver {escape(str(environment["driver"]))}, torch {escape(environment["torch"])},
CUDA {escape(str(environment["cuda"]))}, {escape(result["date"])}.<br>
<code>{escape(result["command"])}</code></p>
</body></html>
"""


def png(result, path):
    """Draws with matplotlib. Returns the error if matplotlib is missing."""
    try:
        picture.png(result, path)
    except ImportError as error:
        return str(error)
    return None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Example:\n  python3 bench/gemm/report.py gemm.json --html gemm.html --svg gemm.svg",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("result", type=Path, help="a file that run.py wrote with --json")
    add("--require", type=Path, metavar="FILE", help="judge the run by these requirements [default: ratios only]")
    add("--html", type=Path, metavar="FILE", help="write a page with a chart")
    add("--svg", type=Path, metavar="FILE", help="write the chart")
    add("--png", type=Path, metavar="FILE", help="write the chart, if matplotlib is installed")
    chosen = parser.parse_args()
    try:
        result = json.loads(chosen.result.read_text())
        requirements = gate.load(chosen.require) if chosen.require else None
    except (OSError, ValueError) as error:
        parser.error(f"{chosen.result}: {error}" if not isinstance(error, gate.BadRequirements) else str(error))
    result["verdict"] = gate.judge(result["shapes"], requirements)
    if chosen.html:
        chosen.html.write_text(html(result))
    if chosen.svg:
        chosen.svg.write_text(picture.standalone(result))
    if chosen.png and (problem := png(result, chosen.png)):
        print(f"cannot draw {chosen.png}: {problem}", file=sys.stderr)
        return 3
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
