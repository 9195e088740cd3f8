"""Ratios against peers, and the verdict on a run under a file of requirements."""

import json
import math

from shapes import CONTEST, DECODE, GROUPS, LARGE

PASS, FAIL, UNKNOWN = "pass", "FAIL", "not measured"
LEVELS = ("gate", "stretch")


def median(row, name):
    """Returns a peer's time for a shape in microseconds, or None."""
    return (row["peers"].get(name) or {}).get("median_us")


def rivals(row):
    """Returns the times of exact peers with correct outputs that follow the protocol, by name."""
    found = {}
    for name, peer in row["peers"].items():
        if peer.get("rival") and peer.get("median_us") and (peer.get("check") or {}).get("ok"):
            found[name] = peer["median_us"]
    return found


def best_rival(row):
    """Returns name and time of the fastest rival, or None."""
    return min(rivals(row).items(), key=lambda item: item[1], default=None)


def speedup(row, name="ours"):
    """Returns the time of the best exact peer divided by ours, or None."""
    best, ours = best_rival(row), median(row, name)
    return best[1] / ours if best and ours else None


def share(row, name="ours"):
    """Returns the achieved share of the reference rate, or None."""
    ours = median(row, name)
    return row["reference_us"] / ours if ours else None


def geometric_mean(values):
    """Returns the geometric mean of at least one value."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


# The figures of requirements: value of one row, combination over rows, and print format.
FIGURES = {
    "geometric_mean_us": (lambda row: median(row, "ours"), lambda values: [geometric_mean(values)], "{:.2f} us"),
    "speedup": (speedup, list, "{:.3f}"),
    "reference_share": (share, list, "{:.1%}"),
}

NAMES = {
    "geometric_mean_us": "geometric mean of Fourfold",
    "speedup": "speed against the best exact peer",
    "reference_share": "share of the reference rate",
}


class BadRequirements(ValueError):
    """An invalid file of requirements; the message names the problem."""


def load(path):
    """Reads a file of requirements: for each level, a list of {group, figure, at_least or at_most}."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadRequirements(f"{path}: {error}") from None
    if not isinstance(found, dict) or not set(LEVELS) & set(found):
        raise BadRequirements(f"{path}: expected an object with {' or '.join(LEVELS)}")
    for level in LEVELS:
        for rule in found.get(level, []):
            problem = wrong_with(rule)
            if problem:
                raise BadRequirements(f"{path}: {level}: {problem}")
    return {level: found.get(level, []) for level in LEVELS}


def wrong_with(rule):
    """Returns the problem of one requirement, or None."""
    if rule.get("group") not in (CONTEST, DECODE, LARGE):
        return f"group {rule.get('group')!r} is not one of {CONTEST}, {DECODE}, {LARGE}"
    if rule.get("figure") not in FIGURES:
        return f"figure {rule.get('figure')!r} is not one of {', '.join(FIGURES)}"
    bounds = [key for key in ("at_least", "at_most") if isinstance(rule.get(key), (int, float))]
    return None if len(bounds) == 1 else "expected a number for exactly one of at_least and at_most"


def line(what, values, holds, shown):
    """Returns one line of the verdict. It is unknown if any figure is missing."""
    if not values or any(value is None for value in values):
        return {"what": what, "outcome": UNKNOWN, "shown": ""}
    return {"what": what, "outcome": PASS if holds(values) else FAIL, "shown": shown(values)}


def requirement(rows, rule):
    """Returns the line of one requirement. A group is measured if all of its shapes are."""
    of_row, combined, text = FIGURES[rule["figure"]]
    bound = "at_least" if "at_least" in rule else "at_most"
    limit = rule[bound]
    values = [of_row(row) if row else None for row in group_rows(rows, rule["group"])]

    def holds(values):
        return all(value >= limit if bound == "at_least" else value <= limit for value in combined(values))

    return line(
        f"{rule['group']}: {NAMES[rule['figure']]} {bound.replace('_', ' ')} {text.format(limit)}",
        values,
        holds,
        lambda values: ", ".join(text.format(value) for value in combined(values)),
    )


def group_rows(rows, group):
    """Returns the rows of a group in its order, with None for shapes that were not measured."""
    by_shape = {(row["m"], row["n"], row["k"]): row for row in rows}
    return [by_shape.get((shape.m, shape.n, shape.k)) for shape, of in GROUPS.items() if of == group]


def correctness(rows):
    """Returns the line on correctness: outputs of Fourfold within bounds, and equal bits where sums are exact."""
    checks = [row["peers"].get("ours", {}).get("check") for row in rows]
    if not checks or any(check is None for check in checks):
        return {"what": "every output is right", "outcome": UNKNOWN, "shown": ""}
    bits = [check["bit_equal"] for check in checks]
    right = all(check["ok"] for check in checks)
    counted = [check["elements"] for check in checks if check.get("elements") is not None]
    shown = f"{sum(counted):,} elements in bounds" if right and counted else ""
    wrong = sum(check.get("wrong") or 0 for check in checks)
    if wrong:
        shown = f"{wrong:,} elements out of bounds"
    shown += f"; bit-equal {sum(bit is True for bit in bits)} of {sum(bit is not None for bit in bits)}"
    return {"what": "every output is right", "outcome": PASS if right else FAIL, "shown": shown.strip("; ")}


def judge(rows, requirements=None):
    """Returns the verdict on a run: correctness, and a line for each requirement."""
    levels = {level: [requirement(rows, rule) for rule in (requirements or {}).get(level, [])] for level in LEVELS}
    return {"correctness": correctness(rows), **levels}


def failed(verdict, rows):
    """Returns whether a requirement of the gate fails, an output of Fourfold is wrong, or Fourfold could not run."""
    wrong = any(not (peer.get("check") or {}).get("ok") for row in rows for _, peer in own(row))
    return wrong or any(line["outcome"] == FAIL for line in verdict["gate"])


def own(row):
    """Returns the columns of Fourfold with their names, one for each library."""
    return [(name, peer) for name, peer in row["peers"].items() if name == "ours" or name.startswith("ours:")]
