"""Runs the Python tests against the real packages.

    python3 hosts/python/tests/run.py                  # installs PyTorch into the user's cache folder, once
    python3 hosts/python/tests/run.py --torch 2.11.0   # another version, without torchao

Builds the wheel with cargo (profile dev), installs it into a folder of its own, and runs pytest with further arguments.
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


def requirements(torch):
    lines = [line for line in (TESTS / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    if torch is not None:
        lines = [line for line in lines if not line.startswith(("torch", "setuptools"))] + [f"torch=={torch}"]
    return lines


def environment(lines):
    """The Python of a virtual environment with these packages, made once for each list of them."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fourfold"
    key = hashlib.sha256(repr((sys.version_info[:2], lines)).encode()).hexdigest()[:16]
    folder = cache / f"python-tests-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"python-tests-{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            start = time.monotonic()
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [folder / "bin/python", "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "-q"]
            subprocess.run([*pip, *lines], check=True)
            (folder / "complete").touch()
            print(f"installed {', '.join(lines)} in {time.monotonic() - start:.0f} s: {folder}", flush=True)
    return folder / "bin/python"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", metavar="VERSION", help="version of PyTorch [default: tests/requirements.txt]")
    options, arguments = parser.parse_known_args()
    python = environment(requirements(options.torch))
    with tempfile.TemporaryDirectory(prefix="fourfold-python-") as target:
        install = [python, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "-q"]
        install += ["--target", target, TESTS.parent, "--config-settings", "profile=dev"]
        subprocess.run(install, check=True)
        ours = {"PYTHONPATH": target, "TORCHINDUCTOR_CACHE_DIR": f"{target}/inductor", "PYTHONDONTWRITEBYTECODE": "1"}
        pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no", TESTS, *arguments]
        sys.exit(subprocess.run(pytest, env=os.environ | ours).returncode)


if __name__ == "__main__":
    main()
