"""Ratios of a run to its peers, and the check of a run against a file of requirements."""

import json
import math

from shapes import CONTEST, DECODE, GROUPS, LARGE

PASS, FAIL, UNKNOWN = "pass", "FAIL", "not measured"
LEVELS = ("gate", "stretch")


def median(row, name):
    """A peer's time for a shape, in microseconds, or None."""
    return (row["peers"].get(name) or {}).get("median_us")


def rivals(row):
    """The exact peers of a shape that follow the protocol and have correct outputs: names and times."""
    found = {}
    for name, peer in row["peers"].items():
        if peer.get("rival") and peer.get("median_us") and (peer.get("check") or {}).get("ok"):
            found[name] = peer["median_us"]
    return found


def best_rival(row):
    """The fastest of them, as its name and time, or None."""
    return min(rivals(row).items(), key=lambda item: item[1], default=None)


def speedup(row, name="ours"):
    """The speed relative to the best exact peer, or None."""
    best, ours = best_rival(row), median(row, name)
    return best[1] / ours if best and ours else None


def share(row, name="ours"):
    """The share of the reference rate, or None."""
    ours = median(row, name)
    return row["reference_us"] / ours if ours else None


def geometric_mean(values):
    """The geometric mean of at least one value."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


# The figures of requirements: the value of one row, the combination of values before the check, and the format.
FIGURES = {
    "geometric_mean_us": (lambda row: median(row, "ours"), lambda values: [geometric_mean(values)], "{:.2f} us"),
    "speedup": (speedup, list, "{:.3f}"),
    "reference_share": (share, list, "{:.1%}"),
}

NAMES = {
    "geometric_mean_us": "geometric mean of ours",
    "speedup": "speed against the best exact peer",
    "reference_share": "share of the reference rate",
}


class BadRequirements(ValueError):
    """A file of requirements is invalid. The message names the error."""


def load(path):
    """Reads a file of requirements: per level a list of {group, figure, at_least or at_most}."""
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
    """The error in one requirement, or None."""
    if rule.get("group") not in (CONTEST, DECODE, LARGE):
        return f"group {rule.get('group')!r} is none of {CONTEST}, {DECODE}, {LARGE}"
    if rule.get("figure") not in FIGURES:
        return f"figure {rule.get('figure')!r} is none of {', '.join(FIGURES)}"
    bounds = [key for key in ("at_least", "at_most") if isinstance(rule.get(key), (int, float))]
    return None if len(bounds) == 1 else "expected a number for one of at_least and at_most"


def line(what, values, holds, shown):
    """One line of the result. It is unknown if any figure is missing, because a subset proves nothing."""
    if not values or any(value is None for value in values):
        return {"what": what, "outcome": UNKNOWN, "shown": ""}
    return {"what": what, "outcome": PASS if holds(values) else FAIL, "shown": shown(values)}


def requirement(rows, rule):
    """The line of one requirement. A group is measured if all of its shapes are."""
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
    """The rows of a group in its order, with None for a shape that was not measured."""
    by_shape = {(row["m"], row["n"], row["k"]): row for row in rows}
    return [by_shape.get((shape.m, shape.n, shape.k)) for shape, of in GROUPS.items() if of == group]


def correctness(rows):
    """The line for outputs: all of ours are within their bounds, and have equal bits where sums are exact."""
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
    """The result of a run: a line for correct outputs, and one for each requirement."""
    levels = {level: [requirement(rows, rule) for rule in (requirements or {}).get(level, [])] for level in LEVELS}
    return {"correctness": correctness(rows), **levels}


def failed(verdict, rows):
    """Returns whether a line of the gate fails, an output of ours is wrong, or ours could not run."""
    wrong = any(not (peer.get("check") or {}).get("ok") for row in rows for _, peer in own(row))
    return wrong or any(line["outcome"] == FAIL for line in verdict["gate"])


def own(row):
    """The names of the columns of ours, one per library."""
    return [(name, peer) for name, peer in row["peers"].items() if name == "ours" or name.startswith("ours:")]
