"""The kernels of a tuning manifest as ops, one for each kernel.

A manifest lists kernels to measure (docs/guide/tuning.md). `fourfold.torch.kernels` registers an op for each of them in
`torch.ops.fourfold_kernels`. An op fails if the kernel does not take the operands, or is for another GPU. On CUDA tensors it uses
no other kernel. On CPU tensors the fallback computes the result.
"""

import ctypes as c
import json
import pathlib

import torch

from .. import _abi
from ._ops import fail, ops

_SCHEMA = "(Tensor a, Tensor? sfa, Tensor b, Tensor sfb, Tensor? alpha=None) -> Tensor"
_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_library = torch.library.Library("fourfold_kernels", "FRAGMENT")
_registered = set()


class Kernels(dict):
    """Ops by name. `skipped` has the reason for each kernel of the manifest that is no op."""

    def __init__(self):
        super().__init__()
        self.skipped = {}


def _result(a, b, d):
    return a.new_empty([*a.shape[:-1], b.shape[-2]], dtype=_TYPES[d])


@torch.library.register_fake("fourfold::scaled_mm_kernel")
def _scaled_mm_kernel(a, sfa, b, sfb, alpha=None, *, kernel):
    return _result(a, b, json.loads(kernel)["parameters"]["d"])


def _no_gradient(name):
    def backward(ctx, *grads):
        fail(name, "has no gradient: it computes with FP4 or FP8 codes. Call it under torch.no_grad(), or detach its inputs")

    return backward


torch.library.register_autograd("fourfold::scaled_mm_kernel", _no_gradient("scaled_mm_kernel"))


def _register(name, kernel, d):
    if name in _registered:
        return
    op = f"fourfold_kernels::{name}"
    _library.define(name + _SCHEMA)

    def run(a, sfa, b, sfb, alpha=None):
        return ops.scaled_mm_kernel(a, sfa, b, sfb, alpha, kernel=kernel)

    def fake(a, sfa, b, sfb, alpha=None):
        return _result(a, b, d)

    for key in ("CPU", "CUDA"):
        _library.impl(name, run, key)
    torch.library.register_fake(op, fake, lib=_library)
    torch.library.register_autograd(op, _no_gradient(name), lib=_library)
    _registered.add(name)


def kernels(manifest):
    """Registers the kernels of a manifest, a TOML file; see `fourfold.torch.kernels`."""
    read = _abi.library.fourfold_torch_manifest
    read.restype, read.argtypes = c.c_char_p, [c.c_char_p]
    found = json.loads(read(pathlib.Path(manifest).read_bytes().replace(b"\0", b" ")))
    if isinstance(found, dict):
        raise ValueError(f"{manifest}: {found['error']}")
    result = Kernels()
    for line in found:
        if line["reason"] is not None:
            result.skipped[line["name"]] = line["reason"]
            continue
        _register(line["name"], line["kernel"], line["d"])
        result[line["name"]] = getattr(torch.ops.fourfold_kernels, line["name"])
    return result
