"""Fourfold's kernels: built by the command line, called through the C interface of generated kernels.

executor/src/kernel/abi.rs defines the interface.
"""

import ctypes
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from device_code import Unavailable

REPOSITORY = Path(__file__).resolve().parents[2]

ABI_VERSION = 6
MAX_EXTENTS, MAX_OPERANDS, MAX_SCALARS, MAX_OUTPUTS = 16, 32, 8, 8

OUTPUT_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


class Device(ctypes.Structure):
    """Properties of the device, for a kernel."""

    _fields_ = [("sm_count", ctypes.c_int32), ("max_active_clusters", ctypes.c_int32)]


class Extents(ctypes.Structure):
    """The extents of one call, in the order of the library's metadata."""

    _fields_ = [("values", ctypes.c_int64 * MAX_EXTENTS), ("count", ctypes.c_uint32)]

    @classmethod
    def of(cls, metadata, named):
        """Returns the extents with these names, in the library's order."""
        values = [named[name] for name in metadata["extents"]]
        return cls((ctypes.c_int64 * MAX_EXTENTS)(*values), len(values))


class Requirements(ctypes.Structure):
    """The sizes of the buffers of a call, in bytes."""

    _fields_ = [
        ("workspace", ctypes.c_uint64),
        ("operands", ctypes.c_uint64 * MAX_OPERANDS),
        ("outputs", ctypes.c_uint64 * MAX_OUTPUTS),
    ]


class Addresses(ctypes.Structure):
    """The device addresses of one call, in the order of the library's metadata."""

    _fields_ = [
        ("operands", ctypes.c_void_p * MAX_OPERANDS),
        ("operand_count", ctypes.c_uint32),
        ("scalars", ctypes.c_void_p * MAX_SCALARS),
        ("scalar_count", ctypes.c_uint32),
        ("outputs", ctypes.c_void_p * MAX_OUTPUTS),
        ("output_count", ctypes.c_uint32),
    ]

    @classmethod
    def of(cls, operands, scalars, outputs):
        """Builds the structure from three lists."""
        return cls(
            (ctypes.c_void_p * MAX_OPERANDS)(*operands),
            len(operands),
            (ctypes.c_void_p * MAX_SCALARS)(*scalars),
            len(scalars),
            (ctypes.c_void_p * MAX_OUTPUTS)(*outputs),
            len(outputs),
        )


def find_fourfold(named=None):
    """Finds the command line: the named one, the one on PATH, or the one built in this repository."""
    built = REPOSITORY / "target" / "release" / "fourfold"
    for candidate in [named] if named else [shutil.which("fourfold"), built]:
        if candidate and Path(candidate).is_file():
            return str(candidate)
    raise Unavailable(
        f"{named or 'fourfold'} not found; build it with `cargo build --release`, or pass its path with --fourfold"
    )


def compile_library(fourfold, target, of, output, folder, nvcc=None):
    """Builds the program of a format for a target, with an output of the given type. Returns the library's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as sources:
        source = Path(sources) / f"{of.name}_{output}.fir"
        source.write_text(of.program(output))
        command = [fourfold, "compile", str(source), "--target", target, "--device", "none"]
        command += ["--dump", str(folder), "--json", *(["--nvcc", nvcc] if nvcc else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise Unavailable(f"fourfold compile: {(done.stderr or done.stdout).strip()[-500:]}") from None
    kernels = report.get("kernels", [])
    for kernel in kernels:
        if error := kernel.get("error"):
            raise Unavailable(f"fourfold compile: {error['code']}: {error['message']}")
    libraries = [file for kernel in kernels for file in kernel["files"] if file.endswith(".so")]
    if len(libraries) != 1:
        problem = report.get("error", f"{len(libraries)} kernels; see `fourfold explain --target {target}`")
        raise Unavailable(f"fourfold compile: {problem}")
    return libraries[0]


class Library:
    """A kernel's library."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        try:
            self.functions = ctypes.CDLL(self.path)
        except OSError as error:
            raise Unavailable(str(error)) from None
        void, i32, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t
        device, extents, addresses = (ctypes.POINTER(kind) for kind in (Device, Extents, Addresses))
        text = ctypes.c_char_p
        signatures = {
            "abi_version": (ctypes.c_uint32, []),
            "metadata": (text, []),
            "query": (i32, [device, extents, ctypes.POINTER(Requirements), text, size]),
            "prepare": (
                i32,
                [device, extents, addresses, void, size, void, ctypes.POINTER(void), text, size],
            ),
            "launch": (i32, [void, void]),
            "destroy": (None, [void]),
        }
        for name, (result, arguments) in signatures.items():
            try:
                function = getattr(self.functions, f"fourfold_{name}")
            except AttributeError:
                raise Unavailable(f"{self.path} has no fourfold_{name}") from None
            function.restype, function.argtypes = result, arguments
            if name == "abi_version" and function() != ABI_VERSION:
                raise Unavailable(f"{self.path} has version {function()} of the interface, not {ABI_VERSION}")
        self.metadata = json.loads(self.functions.fourfold_metadata().decode())

    def query(self, device, extents):
        """Returns the requirements of a call with these extents."""
        requirements, message = Requirements(), ctypes.create_string_buffer(512)
        code = self.functions.fourfold_query(
            ctypes.byref(device), ctypes.byref(extents), ctypes.byref(requirements), message, len(message)
        )
        if code != 0:
            raise Unavailable(f"query: {code}: {message.value.decode(errors='replace')}")
        return requirements

    def prepare(self, shape, of, operands, alpha, output):
        """Prepares a call on a set of operands that writes `output`."""
        properties = torch.cuda.get_device_properties(output.device)
        device = Device(properties.multi_processor_count, 0)
        extents = Extents.of(self.metadata, {"L": 1, "M": shape.m, "N": shape.n, "K": shape.k})
        required = self.query(device, extents)
        roles = [role["role"] for role in self.metadata["operands"]]
        if sorted(roles) != of.roles or self.metadata["scalars"] != ["alpha"]:
            raise Unavailable(f"the kernel reads {roles} and {self.metadata['scalars']}; expected one of {of.title}")
        sizes = {"D": (output.numel() * output.element_size(), required.outputs[0])}
        for role, what, scales in [("sfa", "A", operands.a.blocked), ("sfb", "B", operands.b.blocked)]:
            if scales is not None:
                sizes[f"the scales of {what}"] = scales.numel(), required.operands[roles.index(role)]
        for what, (have, need) in sizes.items():
            if have != need:
                raise Unavailable(f"{what} has {have} bytes, but the kernel expects {need}; check type and layout")
        return Call(self, device, extents, required, operands, alpha, output)


class Call:
    """A prepared launch, with the tensors that it reads and writes."""

    def __init__(self, library, device, extents, required, operands, alpha, output):
        self.library, self.operands, self.output = library, operands, output
        self.alpha = torch.tensor([alpha], dtype=torch.float32, device=output.device)
        # At least 16 bytes, because a tensor without elements has no address.
        self.workspace = torch.zeros(max(required.workspace, 16), dtype=torch.uint8, device=output.device)
        tensors = {
            "a": operands.a.data,
            "sfa": operands.a.blocked,
            "b": operands.b.data,
            "sfb": operands.b.blocked,
        }
        operand_addresses = [tensors[role["role"]].data_ptr() for role in library.metadata["operands"]]
        addresses = Addresses.of(operand_addresses, [self.alpha.data_ptr()], [output.data_ptr()])
        self.prepared, message = ctypes.c_void_p(), ctypes.create_string_buffer(512)
        stream = torch.cuda.current_stream().cuda_stream
        code = library.functions.fourfold_prepare(
            ctypes.byref(device),
            ctypes.byref(extents),
            ctypes.byref(addresses),
            self.workspace.data_ptr(),
            required.workspace,
            stream,
            ctypes.byref(self.prepared),
            message,
            len(message),
        )
        if code != 0:
            raise Unavailable(f"prepare: {code}: {message.value.decode(errors='replace')}")
        # Another stream may launch the call, so the work queued by `prepare` must have finished.
        torch.cuda.current_stream().synchronize()

    def launch(self):
        """Launches on the current stream."""
        code = self.library.functions.fourfold_launch(self.prepared, torch.cuda.current_stream().cuda_stream)
        if code != 0:
            raise RuntimeError(f"fourfold_launch: {code}")

    def close(self):
        """Frees the prepared launch. No graph may use it afterwards."""
        if self.prepared:
            self.library.functions.fourfold_destroy(self.prepared)
            self.prepared = None
