#!/usr/bin/env python3
"""Compares `explain --json` of two binaries over every fixture and target.

    cli/tests/compare_explain.py BASE NEW [--fixtures DIR] [--jobs N]

Everything must be equal except the texts for people: exit codes, keys, reason codes, places, segments, kernels,
configurations, constraints, rules and proofs. Exit codes: 0 equal, 1 something differs, 2 bad arguments.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TARGETS = ["sm_100a", "sm_103a", "sm_120a", "sm_121a", "sm_90a", "cpu"]
# Keys whose values are texts for people.
TEXTS = {"message", "advice", "why", "error", "notes"}


def explain(binary, file, target, cache):
    """Returns the exit code and the object that `explain --json` prints."""
    environment = dict(os.environ, FOURFOLD_DEVICE="none", FOURFOLD_CACHE_DIR=cache)
    command = [binary, "explain", str(file), "--target", target, "--json"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        return run.returncode, json.loads(run.stdout)
    except json.JSONDecodeError:
        return run.returncode, {"no object": run.stdout + run.stderr}


def difference(base, new, path, texts):
    """Returns the first place at which two values differ, or None. Counts texts that differ in `texts`, by key."""
    if type(base) is not type(new):
        return f"{path}: {base!r} is now {new!r}"
    if isinstance(base, dict):
        if base.keys() != new.keys():
            return f"{path}: keys {sorted(base)} are now {sorted(new)}"
        for key in base:
            if key in TEXTS and (base[key] is None) == (new[key] is None):
                texts[key] += base[key] != new[key]
                continue
            found = difference(base[key], new[key], f"{path}.{key}", texts)
            if found:
                return found
        return None
    if isinstance(base, list):
        if len(base) != len(new):
            return f"{path}: {len(base)} items are now {len(new)}"
        pairs = enumerate(zip(base, new))
        return next(filter(None, (difference(a, b, f"{path}[{i}]", texts) for i, (a, b) in pairs)), None)
    return None if base == new else f"{path}: {base!r} is now {new!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the binary to compare with")
    parser.add_argument("new", help="the binary to check")
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--fixtures", type=pathlib.Path, default=root / "fixtures", help="the folder of programs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at once")
    arguments = parser.parse_args()
    files = sorted(arguments.fixtures.rglob("*.fir"))
    if not files:
        parser.error(f"{arguments.fixtures} has no .fir file")
    texts, codes, differences = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as cache, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:

        def compare(case):
            file, target = case
            return case, *(explain(binary, file, target, cache) for binary in (arguments.base, arguments.new))

        cases = [(file, target) for file in files for target in TARGETS]
        for (file, target), base, new in pool.map(compare, cases):
            codes[base[0]] += 1
            found = difference(list(base), list(new), "", texts)
            if found:
                differences.append(f"{file.relative_to(arguments.fixtures)} for {target}: {found}")
    for line in differences:
        print(line)
    counted = ", ".join(f"{count} with exit code {code}" for code, count in sorted(codes.items()))
    print(f"{len(files)} programs, {len(TARGETS)} targets: {counted}")
    print(f"{len(differences)} differ; texts that differ: {dict(texts) or 'none'}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
