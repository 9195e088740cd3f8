#!/usr/bin/env python3
"""Draws a run: for each shape a bar for Fourfold and marks for the peers, relative to the best exact peer.

Example: python3 bench/gemm/picture.py bench/gemm/h200.json --svg docs/images/gemm-h200.svg
"""

import argparse
import html as markup
import json
import re
from pathlib import Path

import formats
import gate

LARGEST = 2.0
LABEL, PLOT, BEYOND, FIGURES, ROW, TOP, GAP = 160, 440, 118, 272, 34, 72, 26
WIDTH = LABEL + PLOT + BEYOND + FIGURES
TITLES = {"contest": "M = 128", "decode": "decode, M ≤ 16", "large": "larger", "other": "others"}

# The colours of a standalone chart, which has no page that defines them.
COLOURS = {
    "--paper": "#ffffff",
    "--ink": "#1c1f26",
    "--soft": "#5b6270",
    "--rule": "#d9dde4",
    "--ours": "#2563eb",
    "--orange": "#c2570c",
    "--purple": "#7c3aed",
    "--teal": "#0f766e",
    "--grey": "#737a87",
    "--bad": "#b91c1c",
}
MARGIN, HEAD = 16, 62

# Shape and colour by column, so that marks differ without colour.
MARKS = {
    "cublas_f16": ("circle", "--orange", "#c2570c"),
    "cublas_bf16": ("ring", "--orange", "#c2570c"),
    "dequantize_cublas": ("square", "--purple", "#7c3aed"),
    "humming": ("diamond", "--teal", "#0f766e"),
    "fp8": ("triangle", "--grey", "#737a87"),
}
OTHER_MARK = ("plus", "--ours", "#2563eb")


def mark_of(name):
    """Returns the mark of a column."""
    return MARKS.get(name, OTHER_MARK)


def draw_mark(name, x, y, size=5):
    """Draws a mark around a point."""
    shape, colour, _ = mark_of(name)
    filled = f'fill="var({colour})" stroke="var(--paper)" stroke-width="1"'
    hollow = f'fill="var(--paper)" stroke="var({colour})" stroke-width="1.8"'
    if shape in ("circle", "ring"):
        style = filled if shape == "circle" else hollow
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size - 0.5}" {style}/>'
    if shape == "square":
        side = 2 * size - 1
        return f'<rect x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side}" height="{side}" {filled}/>'
    if shape == "plus":
        line = f"M{x - size:.1f} {y:.1f}h{2 * size}m{-size} {-size}v{2 * size}"
        return f'<path d="{line}" stroke="var({colour})" stroke-width="2"/>'
    corners = {
        "triangle": [(0, -size), (size, size - 1), (-size, size - 1)],
        "diamond": [(0, -size - 1), (size + 1, 0), (0, size + 1), (-size - 1, 0)],
    }[shape]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {hollow if shape == "triangle" else filled}/>'


def rows_of(result):
    """Returns the rows that can be drawn, each with the time that its times are relative to."""
    found = []
    for row in result["shapes"]:
        best = gate.best_rival(row)
        base = best[1] if best else gate.median(row, "ours")
        if base:
            found.append((row, base))
    return found


def text(x, y, words, size=13, anchor="start", colour="--ink", weight=400):
    """Draws text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="var({colour})">{markup.escape(words)}</text>'
    )


def svg(result):
    """Draws the chart with the colours of its page."""
    rows = rows_of(result)
    groups = list(dict.fromkeys(row["group"] for row, _ in rows))
    height = TOP + len(rows) * ROW + len(groups) * GAP + 50
    bottom = height - 46

    def at(ratio):
        return LABEL + min(ratio, LARGEST) / LARGEST * PLOT

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" font-family="system-ui,-apple-system,Segoe UI,sans-serif" '
        'xmlns="http://www.w3.org/2000/svg"><title>Time of one GEMM relative to the best exact peer</title>'
    ]
    parts += legend(result)
    for tick in (0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0):
        major = tick == 1.0
        parts.append(
            f'<line x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{TOP}" y2="{bottom}" '
            f'stroke="var({"--soft" if major else "--rule"})" stroke-width="{1.5 if major else 1}"/>'
        )
        if tick % 0.5 == 0:
            parts.append(text(at(tick), bottom + 16, f"{tick:.1f}", 12, "middle", "--soft"))
    parts.append(text(at(1.0), bottom + 36, "time / time of the best exact peer", 12, "middle", "--soft"))
    parts.append(text(at(1.0), TOP - 6, "best exact peer", 12, "middle", "--soft"))
    parts.append(text(at(LARGEST) + 12, TOP - 6, "above 2", 12, "start", "--soft"))
    parts.append(text(8, TOP - 6, "M × N × K", 12, "start", "--soft"))
    columns = [WIDTH - FIGURES + right for right in (62, 134, 204, 268)]
    for x, words in zip(columns, ["ours µs", "best µs", "speedup", "of ref."], strict=True):
        parts.append(text(x, TOP - 6, words, 12, "end", "--soft"))
    y, group = TOP, None
    for row, base in rows:
        if row["group"] != group:
            group = row["group"]
            y += GAP
            parts.append(text(8, y - 8, TITLES[group], 12, "start", "--soft", 600))
        parts += draw_row(result, row, base, y, at, columns)
        y += ROW
    return "\n".join([*parts, "</svg>"])


def standalone(result):
    """Draws the chart as a standalone file: title, machine, and fixed colours on a white background."""
    inner = svg(result)
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', inner).group(1))
    environment = result["environment"]
    heading = f"One {formats.of(result).title} GEMM on {environment['gpu']}, against the fastest exact alternative"
    day = result["date"][:10]
    about = f"Shorter is faster: a bar that ends before 1.0 beats every exact peer. Medians of one run, {day}."
    width, whole = WIDTH + 2 * MARGIN, height + HEAD + 2 * MARGIN
    body = inner.replace("<svg ", f'<svg x="{MARGIN}" y="{HEAD + MARGIN}" width="{WIDTH}" height="{height:.0f}" ', 1)
    drawn = "\n".join(
        [
            f'<svg viewBox="0 0 {width} {whole:.0f}" width="{width}" height="{whole:.0f}" role="img" '
            'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" '
            'xmlns="http://www.w3.org/2000/svg">',
            f'<rect width="{width}" height="{whole:.0f}" rx="8" fill="var(--paper)"/>',
            text(MARGIN + 8, 34, heading, 19, "start", "--ink", 600),
            text(MARGIN + 8, 58, about, 14, "start", "--soft"),
            body,
            "</svg>",
        ]
    )
    return re.sub(r"var\((--[a-z]+)\)", lambda found: COLOURS[found.group(1)], drawn) + "\n"


def draw_row(result, row, base, y, at, columns):
    """Draws one shape: Fourfold's bar, the reference time as a tick, the marks of the peers, and the figures."""
    middle = y + ROW / 2
    ours, best = gate.median(row, "ours"), gate.best_rival(row)
    parts = [text(8, middle + 4, f"{row['m']} × {row['n']} × {row['k']}")]
    if ours:
        parts.append(
            f'<rect x="{LABEL}" y="{middle - 9:.1f}" width="{at(ours / base) - LABEL:.1f}" height="18" rx="2" '
            'fill="var(--ours)" fill-opacity="0.85"/>'
        )
        if ours / base > LARGEST:
            parts.append(text(at(LARGEST) - 6, middle + 4, f"{ours / base:.1f} ▸", 12, "end", "--paper", 600))
    reference = at(row["reference_us"] / base)
    parts.append(
        f'<line x1="{reference:.1f}" x2="{reference:.1f}" y1="{middle - 13:.1f}" y2="{middle + 13:.1f}" '
        'stroke="var(--ink)" stroke-width="2" stroke-dasharray="3 2"/>'
    )
    near, beyond = [], []
    for column in result["columns"]:
        time = gate.median(row, column["name"])
        if column["name"] != "ours" and time is not None:
            (beyond if time / base > LARGEST else near).append((time / base, column["name"]))
    # Marks that would overlap alternate above and below the middle.
    taken = []
    for ratio, name in sorted(near):
        x = at(ratio)
        close = [height for other, height in taken if x - other < 13]
        height = next(height for height in (0, -9, 9, -4, 4, *[0] * len(near)) if height not in close or len(close) > 4)
        taken.append((x, height))
        parts.append(draw_mark(name, x, middle + height))
    # Marks beyond the scale are drawn behind it, with their figures.
    x = at(LARGEST) + 18
    for ratio, name in sorted(beyond):
        parts += [draw_mark(name, x, middle), text(x + 9, middle + 4, f"{ratio:.1f}", 11, "start", "--soft")]
        x += 40
    figures = [
        "-" if ours is None else f"{ours:.1f}",
        "-" if best is None else f"{best[1]:.1f}",
        "-" if gate.speedup(row) is None else f"{gate.speedup(row):.2f}×",
        "-" if gate.share(row) is None else f"{gate.share(row):.0%}",
    ]
    slower = (gate.speedup(row) or 1) < 1
    for x, words, weight, colour in zip(
        columns, figures, [600, 400, 600, 400], ["--ink", "--ink", "--bad" if slower else "--ink", "--ink"], strict=True
    ):
        parts.append(text(x, middle + 4, words, 13, "end", colour, weight))
    return parts


def legend(result):
    """Draws the legend on one or two lines."""
    parts, x, y = [], 8, 16
    entries = [(column["name"], column["label"]) for column in result["columns"]]
    for name, label in [*entries, ("reference", "memory or compute limit (reference)")]:
        room = 40 + 6.8 * len(label)
        if x + room > WIDTH:
            x, y = 8, y + 20
        if name == "ours":
            box = f'x="{x}" y="{y - 9}" width="14" height="12" rx="2"'
            parts.append(f'<rect {box} fill="var(--ours)" fill-opacity="0.85"/>')
        elif name == "reference":
            parts.append(
                f'<line x1="{x + 7}" x2="{x + 7}" y1="{y - 10}" y2="{y + 4}" stroke="var(--ink)" stroke-width="2" '
                'stroke-dasharray="3 2"/>'
            )
        else:
            parts.append(draw_mark(name, x + 7, y - 3))
        parts.append(text(x + 20, y + 1, label, 12))
        x += room
    return parts


def png(result, path):
    """Draws the chart with matplotlib. Raises ImportError if it is missing."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = rows_of(result)
    markers = {"circle": "o", "ring": "o", "square": "s", "plus": "+", "triangle": "^", "diamond": "D"}
    figure, axes = pyplot.subplots(figsize=(11, 1.6 + 0.42 * len(rows)))
    heights = list(range(len(rows)))[::-1]
    bars = [
        (height, min(gate.median(row, "ours") / base, LARGEST))
        for height, (row, base) in zip(heights, rows, strict=True)
        if gate.median(row, "ours")
    ]
    if bars:
        axes.barh(*zip(*bars, strict=True), height=0.62, color="#2563eb", alpha=0.85, label="Fourfold")
    drawn = [column for column in result["columns"] if column["name"] != "ours"]
    for lane, column in enumerate(drawn):
        # One lane per column, so that marks do not overlap.
        lift = 0.3 * (lane - (len(drawn) - 1) / 2) / max(len(drawn) - 1, 1) * 2
        points = [
            (min(gate.median(row, column["name"]) / base, LARGEST), height - lift)
            for height, (row, base) in zip(heights, rows, strict=True)
            if gate.median(row, column["name"])
        ]
        if not points:
            continue
        shape, _, colour = mark_of(column["name"])
        face = "white" if shape in ("ring", "triangle") else colour
        look = {"color": colour} if shape == "plus" else {"facecolor": face, "edgecolor": colour}
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, marker=markers[shape], s=30, zorder=3, label=column["label"], clip_on=False, **look)
    for height, (row, base) in zip(heights, rows, strict=True):
        at = min(row["reference_us"] / base, LARGEST)
        label = "reference time" if height == 0 else None
        dashes = {"color": "#1c1f26", "linestyle": (0, (2, 1.5)), "linewidth": 1.6, "zorder": 4}
        axes.plot([at, at], [height - 0.4, height + 0.4], label=label, **dashes)
        share, faster = gate.share(row), gate.speedup(row)
        ours = gate.median(row, "ours")
        words = "-" if ours is None else f"{ours:.1f} µs"
        words += "" if faster is None else f"   {faster:.2f}x"
        words += "" if share is None else f"   {share:.0%} of ref."
        axes.text(LARGEST + 0.05, height, words, va="center", fontsize=9)
    axes.axvline(1.0, color="#5b6270", linewidth=1.2)
    axes.set_yticks(heights, [f"{row['m']} x {row['n']} x {row['k']}" for row, _ in rows], fontsize=9)
    axes.set_xlim(0, LARGEST)
    axes.set_xlabel(f"time relative to the best exact peer (marks at {LARGEST:.0f} lie beyond)")
    axes.set_title(f"{formats.of(result).title} on {result['environment']['gpu']}", loc="left", fontsize=12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=160, bbox_inches="tight")
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="a file that run.py wrote with --json")
    parser.add_argument("--svg", type=Path, metavar="FILE", required=True, help="write the chart here")
    chosen = parser.parse_args()
    try:
        result = json.loads(chosen.result.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"{chosen.result}: {error}")
    chosen.svg.write_text(standalone(result))


if __name__ == "__main__":
    main()
