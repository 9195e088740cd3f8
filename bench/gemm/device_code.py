"""Builds and calls dequantize.cu."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("dequantize.cu")


class Unavailable(Exception):
    """A dependency of a column is missing; the message names it."""


def find_nvcc(named=None):
    """Finds nvcc in the order of the command line."""
    home = os.environ.get("CUDA_HOME")
    candidates = [named, os.environ.get("FOURFOLD_NVCC"), home and f"{home}/bin/nvcc", shutil.which("nvcc")]
    for candidate in [*candidates, "/usr/local/cuda/bin/nvcc"]:
        if candidate and Path(candidate).is_file():
            return candidate
    raise Unavailable("nvcc not found; pass its path with --nvcc")


def build(nvcc, architecture, folder):
    """Builds the library, or reuses it. Its name contains a hash of source, compiler and options."""
    options = ["-O3", "-std=c++17", f"-arch={architecture}", "--shared", "-Xcompiler", "-fPIC"]
    # The nvcc of a Python package does not search the folder of its own libraries.
    beside = Path(nvcc).resolve().parents[1] / "lib"
    options += [f"-L{beside}"] if (beside / "libcudart_static.a").exists() else []
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    parts = [SOURCE.read_text(), version, *options]
    library = folder / f"dequantize-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = library.with_suffix(f".{os.getpid()}")
        command = [nvcc, *options, "-o", str(fresh), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"cannot build dequantize.cu: {(done.stderr or done.stdout).strip()[-500:]}")
        fresh.replace(library)
    return DeviceCode(library)


class DeviceCode:
    """The functions of dequantize.cu."""

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))
        pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        for name, result, arguments in [
            ("gemm_dequantize", i32, [pointer, pointer, pointer, i32, i32, pointer]),
            ("gemm_read", i32, [pointer, i64, i32, pointer, pointer]),
            ("gemm_scale_offset", i64, [i32, i32, i32]),
            ("gemm_decode", None, [ctypes.c_uint32, ctypes.c_uint8, pointer]),
        ]:
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments

    def dequantize(self, matrix, values):
        """Writes a matrix's values on the current stream."""
        rows, k = values.shape
        stream = torch.cuda.current_stream().cuda_stream
        code = self.library.gemm_dequantize(
            matrix.codes.data_ptr(), matrix.blocked.data_ptr(), values.data_ptr(), rows, k, stream
        )
        if code != 0:
            raise RuntimeError(f"dequantize: CUDA error {code}")

    def read(self, data, blocks, sink):
        """Reads a tensor on the current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        count = data.numel() * data.element_size() // 16
        code = self.library.gemm_read(data.data_ptr(), count, blocks, sink.data_ptr(), stream)
        if code != 0:
            raise RuntimeError(f"read: CUDA error {code}")
