"""Tests with the real vLLM, where it is installed. They run in a process without the stand-in."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_layers_of_every_checkpoint_format():
    script = pathlib.Path(__file__).with_name("real.py")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"(\w+): (\w+), (\w+): (\d+) of 1904 elements differ, by at most (\d+) ulp", result.stdout)
    kernels = ("FourfoldNvFp4LinearKernel", "EmulationNvFp4LinearKernel")
    assert [line[:3] for line in lines] == [(name, *kernels) for name in ("compressed_tensors", "quark", "modelopt")]
    assert all(int(line[4]) <= 1 for line in lines), result.stdout
    print(result.stdout)
