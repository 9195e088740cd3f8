"""The lines that a run must hold, from its figures alone."""

import math

from shapes import CONTEST, DECODE, GROUPS, LARGE

PASS, FAIL, UNKNOWN = "pass", "FAIL", "not measured"


def median(row, name):
    """A peer's time for a shape, in microseconds, or None."""
    return (row["peers"].get(name) or {}).get("median_us")


def rivals(row):
    """The exact peers of a shape that follow the protocol and whose outputs are right: names and times."""
    found = {}
    for name, peer in row["peers"].items():
        if peer.get("rival") and peer.get("median_us") and (peer.get("check") or {}).get("ok"):
            found[name] = peer["median_us"]
    return found


def best_rival(row):
    """The fastest of them, as its name and time, or None."""
    return min(rivals(row).items(), key=lambda item: item[1], default=None)


def speedup(row, name="ours"):
    """How many times as fast as the best exact peer, or None."""
    best, ours = best_rival(row), median(row, name)
    return best[1] / ours if best and ours else None


def share(row, name="ours"):
    """Which part of the reference rate is reached, or None."""
    ours = median(row, name)
    return row["reference_us"] / ours if ours else None


def geometric_mean(values):
    """Of at least one."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def line(what, values, holds, shown):
    """One line: unknown as soon as one figure is missing, as a part of it proves nothing."""
    if not values or any(value is None for value in values):
        return {"what": what, "outcome": UNKNOWN, "shown": ""}
    return {"what": what, "outcome": PASS if holds(values) else FAIL, "shown": shown(values)}


def lines(rows, mean_us, decode_share, contest_speedup, large_speedup):
    """The lines of one level. A group counts as measured when all of its shapes were."""
    groups = {group: group_rows(rows, group) for group in (CONTEST, DECODE, LARGE)}

    def at_least(least):
        return lambda values: min(values) >= least

    def shown_as(text):
        return lambda values: ", ".join(text.format(value) for value in values)

    contest, decode, large = groups[CONTEST], groups[DECODE], groups[LARGE]
    return [
        line(
            f"contest shapes: geometric mean at most {mean_us:.1f} us",
            [median(row, "ours") if row else None for row in contest],
            lambda values: geometric_mean(values) <= mean_us,
            lambda values: f"{geometric_mean(values):.2f} us",
        ),
        line(
            f"contest shapes: at least {contest_speedup:.2f} of the best exact peer's speed",
            [speedup(row) if row else None for row in contest],
            at_least(contest_speedup),
            shown_as("{:.2f}"),
        ),
        line(
            f"decode: at least {decode_share:.0%} of the reference rate",
            [share(row) if row else None for row in decode],
            at_least(decode_share),
            shown_as("{:.1%}"),
        ),
        line(
            f"larger shapes: at least {large_speedup:.2f} of the best exact peer's speed",
            [speedup(row) if row else None for row in large],
            at_least(large_speedup),
            shown_as("{:.3f}"),
        ),
    ]


def group_rows(rows, group):
    """The rows of a group in its order, None where a shape was not measured."""
    by_shape = {(row["m"], row["n"], row["k"]): row for row in rows}
    return [by_shape.get((shape.m, shape.n, shape.k)) for shape, of in GROUPS.items() if of == group]


def correctness(rows):
    """Every output of ours within its bound, and bits where sums are exact."""
    checks = [row["peers"].get("ours", {}).get("check") for row in rows]
    if not checks or any(check is None for check in checks):
        return {"what": "every output is right", "outcome": UNKNOWN, "shown": ""}
    bits = [check["bit_equal"] for check in checks]
    right = all(check["ok"] for check in checks)
    shown = f"{sum(check['elements'] for check in checks):,} elements in bounds" if right else ""
    wrong = sum(check["wrong"] for check in checks)
    if wrong:
        shown = f"{wrong:,} elements out of bounds"
    shown += f"; bit-equal {sum(bit is True for bit in bits)} of {sum(bit is not None for bit in bits)}"
    return {"what": "every output is right", "outcome": PASS if right else FAIL, "shown": shown.strip("; ")}


def judge(rows):
    """The gate and the stretch of a run."""
    return {
        "gate": [correctness(rows), *lines(rows, 18.0, 0.75, 1.0, 0.95)],
        "stretch": lines(rows, 15.0, 0.80, 1.0, 1.0),
    }


def failed(verdict, rows):
    """Whether a line of the gate fails, or anything that ours wrote is wrong, or ours could not run."""
    wrong = any(not (peer.get("check") or {}).get("ok") for row in rows for _, peer in own(row))
    return wrong or any(line["outcome"] == FAIL for line in verdict["gate"])


def own(row):
    """The columns of ours, by name: there can be several libraries."""
    return [(name, peer) for name, peer in row["peers"].items() if name == "ours" or name.startswith("ours:")]
