"""Runs the Python tests against the real packages.

    python3 hosts/python/tests/run.py                  # installs PyTorch into the user's cache folder, once
    python3 hosts/python/tests/run.py --torch 2.11.0   # another version, without torchao
    python3 hosts/python/tests/run.py --package hosts/vllm   # the tests of a package that needs this one
    python3 hosts/python/tests/run.py --script bench/gemm/tests.py   # a script that needs PyTorch only

Builds the wheel with cargo (profile dev), installs it into a folder of its own, and runs pytest with further arguments.
Without enough disk for PyTorch, it says so and runs nothing.
"""

import argparse
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parent

# What an installation of PyTorch takes while pip unpacks it.
NEEDED_BYTES = 10 << 30


def listed(name):
    return [line for line in (TESTS / name).read_text().splitlines() if not line.startswith("#")]


def requirements(torch):
    lines = listed("requirements.txt")
    if torch is not None:
        lines = [line for line in lines if not line.startswith(("torch", "setuptools"))] + [f"torch=={torch}"]
    return lines


def environment(lines, models):
    """The Python of a virtual environment with these packages, made once for each list of them.

    `models` are added to it, so that another version of them does not install PyTorch again.
    """
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fourfold"
    key = hashlib.sha256(repr((sys.version_info[:2], lines)).encode()).hexdigest()[:16]
    folder = cache / f"python-tests-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"python-tests-{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            free = min(shutil.disk_usage(place).free for place in (cache, tempfile.gettempdir()))
            if free < NEEDED_BYTES:
                print(f"skipped: PyTorch needs {NEEDED_BYTES >> 30} GiB, and {free / (1 << 30):.1f} GiB are free")
                sys.exit(0)
            start = time.monotonic()
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            install(folder, lines)
            (folder / "complete").touch()
            print(f"installed {', '.join(lines)} in {time.monotonic() - start:.0f} s: {folder}", flush=True)
        added = folder / "models"
        if not added.exists() or added.read_text() != repr(models):
            install(folder, models)
            added.write_text(repr(models))
    return folder / "bin/python"


def install(folder, lines):
    pip = [folder / "bin/python", "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, *lines], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", metavar="VERSION", help="version of PyTorch [default: tests/requirements.txt]")
    parser.add_argument("--package", metavar="DIR", type=pathlib.Path, help="run the tests of this package instead")
    parser.add_argument("--script", metavar="FILE", help="run this script with the same packages instead")
    options, arguments = parser.parse_known_args()
    python = environment(requirements(options.torch), listed("requirements-models.txt"))
    if options.script is not None:
        sys.exit(subprocess.run([python, options.script, *arguments]).returncode)
    packages = [TESTS.parent] if options.package is None else [TESTS.parent, options.package.resolve()]
    with tempfile.TemporaryDirectory(prefix="fourfold-python-") as target:
        install = [python, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "-q"]
        install += ["--no-build-isolation", "--target", target, *packages, "--config-settings", "profile=dev"]
        subprocess.run(install, check=True)
        ours = {"PYTHONPATH": f"{target}:{TESTS}", "PYTHONDONTWRITEBYTECODE": "1"}
        ours["TORCHINDUCTOR_CACHE_DIR"] = f"{target}/inductor"
        pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no"]
        pytest += [packages[-1] / "tests", *arguments]
        # Python imports from the working folder first, and the sources there have no library.
        sys.exit(subprocess.run(pytest, env=os.environ | ours, cwd=target).returncode)


if __name__ == "__main__":
    main()
