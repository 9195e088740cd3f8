"""Launches on the stand-in driver, in a process of their own."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
STAND_INS = TESTS.parents[2] / "executor/tests/stand_ins"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_launches(tmp_path):
    for source, library in (
        (STAND_INS / "libcuda.c", "libcuda.so"),
        (STAND_INS / "libcublaslt.c", "libcublasLt.so.13"),
        (TESTS / "stand_in_torch.c", "libtorch_cpu.so"),
    ):
        name = f"-Wl,-soname,{library}"
        flags = ["-O1", "-shared", "-fPIC", name, "-lm", "-ldl"]
        subprocess.run(["cc", source, *flags, "-o", tmp_path / library], check=True)
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so")
    (tmp_path / "libtorch_cuda.so").symlink_to("libtorch_cpu.so")
    ours = {"LD_LIBRARY_PATH": str(tmp_path), "FOURFOLD_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, TESTS / "stand_in.py", tmp_path]
    run = subprocess.run(command, env=os.environ | ours, text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "live tensors, lists, strings, guards: [0, 0, 0, 0]"
