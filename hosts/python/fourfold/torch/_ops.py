"""The ops of PyTorch: registration, fake kernels and gradients.

The native library defines the ops and their CPU and CUDA kernels (`hosts/python/src/register.rs`).
"""

import ctypes as c
import functools

import torch

from .. import _abi
from .._backend import Backend
from .._types import Signature, solve

TESTED = ("2.11", "2.15")
# Elements for each scale, and codes in a byte.
FORMATS = {"nvfp4": (16, 2), "mxfp4": (32, 2), "mxfp8": (32, 1), "mxfp8_e5m2": (32, 1)}
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
_MEMORY = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i1": torch.bool}


def _register():
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 10):
        raise ImportError(f"fourfold.torch needs PyTorch 2.10 or newer; this is {torch.__version__}")
    register = _abi.library.fourfold_torch_register
    register.restype = c.c_char_p
    message = register()
    if message is not None:
        raise ImportError(f"PyTorch {torch.__version__}: {message.decode()}; tested versions: {', '.join(TESTED)}")


_register()
ops = torch.ops.fourfold


def choices():
    """The calls of `scaled_mm_by_m` so far."""
    read = _abi.library.fourfold_torch_choices
    read.restype = c.c_char_p
    found = []
    for line in read().decode().splitlines():
        n, k, end, activations, calls = line.split()
        up_to = None if end == "-" else int(end)
        found.append(dict(n=int(n), k=int(k), up_to=up_to, activations=activations, calls=int(calls)))
    return found


def fail(op, message):
    raise RuntimeError(f"fourfold::{op}: {message}")


def _rows(tensor, op, name="x"):
    if tensor.dim() not in (2, 3):
        fail(op, f"{name} has the shape {list(tensor.shape)}; expected 2 or 3 axes")
    return list(tensor.shape[:-1]), tensor.shape[-1]


def _scales(rows, columns, block, swizzled):
    """The shape of scales in memory."""
    *batch, m = rows
    count = columns // block
    return [*batch, (m + 127) // 128 * 128, (count + 3) // 4 * 4] if swizzled else [*rows, count]


def _byte(like, shape):
    return like.new_empty(shape, dtype=torch.uint8)


def _axes(op, axes, rank):
    found = [axis + rank if axis < 0 else axis for axis in axes]
    if len(set(found)) < len(found) or any(not 0 <= axis < rank for axis in found):
        fail(op, f"the axes {list(axes)} do not fit a tensor of {rank} axes")
    return found


@functools.lru_cache(maxsize=256)
def signature(ir):
    """The inputs and outputs of a program, which is verified first."""
    _verifier().plan(ir)
    return Signature.parse(ir)


@functools.cache
def _verifier():
    return Backend(device="none", target="cpu")


@torch.library.register_fake("fourfold::segment")
def _segment(ir, tensors):
    ports = signature(ir)
    if len(tensors) != len(ports.inputs):
        fail("segment", f"the program has {len(ports.inputs)} inputs, not {len(tensors)}")
    shapes = []
    for (name, ty), tensor in zip(ports.inputs, tensors):
        shape = None if ty.layout == "blocked" else list(tensor.shape)
        if shape is not None and len(shape) != len(ty.extents):
            fail("segment", f"the tensor for `%{name}: {ty}` has the shape {shape}")
        if shape is not None and ty.element == "f4E2M1FN":
            shape[-1] = shape[-1] * 2
        shapes.append(shape)
    known = solve(ports.inputs, shapes)
    results = []
    for name, ty in ports.outputs:
        shape = ty.shape(known)
        if None in shape:
            fail("segment", f"no dense input determines the extents of `%{name}: {ty}`")
        results.append(tensors[0].new_empty(ty.storage(shape), dtype=_MEMORY.get(ty.element, torch.uint8)))
    return results


def formats(format, has_scales):
    """The formats of A, None without scales, and of B; None if the name is wrong."""
    a, _, b = format.partition(" x ") if has_scales else (format, "", format)
    b = b or a
    if a not in FORMATS or b not in FORMATS or FORMATS[a][0] != FORMATS[b][0]:
        return None
    return (a if has_scales else None), b


def _known(op, format, argument="format"):
    if format not in FORMATS:
        fail(op, f'{argument} is "{format}"; expected {", ".join(FORMATS)}')
    return FORMATS[format]


def _product(op, a, sfa, b, format, activation, out_dtype):
    if formats(format, sfa is not None) is None:
        fail(op, f'format is "{format}"; expected {", ".join(FORMATS)} or, with scales of a, "mxfp8 x mxfp4"')
    if sfa is None and a.dtype not in (torch.float16, torch.bfloat16):
        fail(op, f"a has no scales and is {a.dtype}; expected float16 or bfloat16. Convert a, or quantize it and pass "
                 "its scales as sfa")
    if activation not in ACTIVATIONS:
        fail(op, f'activation is "{activation}"; expected one of {", ".join(ACTIVATIONS)}')
    if out_dtype not in (torch.float32, torch.float16, torch.bfloat16):
        fail(op, f"out_dtype is {out_dtype}; expected float16, bfloat16 or float32")
    rows, _ = _rows(a, op, "a")
    _rows(b, op, "b")
    return rows, b.shape[-2]


@torch.library.register_fake("fourfold::scaled_mm")
def _scaled_mm(
    a, sfa, b, sfb, alpha=None, bias=None, *, format="nvfp4", swizzled_a=False, swizzled_b=False, activation="none",
    out_dtype,
):
    rows, n = _product("scaled_mm", a, sfa, b, format, activation, out_dtype)
    return a.new_empty([*rows, n], dtype=out_dtype)


@torch.library.register_fake("fourfold::scaled_mm_quantized")
def _scaled_mm_quantized(
    a, sfa, b, sfb, alpha=None, bias=None, scale=None, *, format="nvfp4", swizzled_a=False, swizzled_b=False,
    activation="none", out_dtype, out_format="nvfp4", swizzled_out=False,
):
    op = "scaled_mm_quantized"
    rows, n = _product(op, a, sfa, b, format, activation, out_dtype)
    block, packed = _known(op, out_format, "out_format")
    return _byte(a, [*rows, n // packed]), _byte(a, _scales(rows, n, block, swizzled_out))


@torch.library.register_fake("fourfold::scaled_mm_by_m")
def _scaled_mm_by_m(
    a, b, sfb, scale, input_scale=None, alpha=None, bias=None, *, first="measured", ends=(), out_dtype
):
    op = "scaled_mm_by_m"
    if a.dtype not in (torch.float16, torch.bfloat16):
        fail(op, f"a is {a.dtype}; expected float16 or bfloat16")
    if a.dim() != 2 or b.dim() != 2:
        fail(op, f"a has the shape {list(a.shape)} and b {list(b.shape)}; expected two axes each")
    return a.new_empty([a.shape[0], b.shape[0]], dtype=out_dtype)


@torch.library.register_fake("fourfold::grouped_mm")
def _grouped_mm(
    a, sfa, b, sfb, ends, alpha=None, bias=None, expert=None, *, format="nvfp4", swizzled_b=False, activation="none",
    out_dtype,
):
    op = "grouped_mm"
    _product(op, a, sfa, b, format, activation, out_dtype)
    if a.dim() != 2 or b.dim() != 3:
        fail(op, f"a has the shape {list(a.shape)} and b {list(b.shape)}; expected [T, K] and [E, N, K] (FP4: K/2)")
    for name, tensor in (("ends", ends), ("expert", expert)):
        if tensor is not None and tensor.dtype != torch.int32:
            fail(op, f"{name} is not int32; pass {name}.to(torch.int32)")
    if (bias is None) != (expert is None):
        fail(op, "bias and expert, the expert of each row, are given together; fourfold.torch.grouped_mm computes expert")
    return a.new_empty([a.shape[0], b.shape[1]], dtype=out_dtype)


@torch.library.register_fake("fourfold::quantize")
def _quantize(x, scale=None, *, format="nvfp4", swizzled=False, rounding="floor"):
    block, packed = _known("quantize", format)
    rows, k = _rows(x, "quantize")
    return _byte(x, [*rows, k // packed]), _byte(x, _scales(rows, k, block, swizzled))


@torch.library.register_fake("fourfold::dequantize")
def _dequantize(codes, scales, scale=None, *, format="nvfp4", swizzled=False, out_dtype):
    _, packed = _known("dequantize", format)
    if out_dtype not in (torch.float32, torch.float16, torch.bfloat16):
        fail("dequantize", f"out_dtype is {out_dtype}; expected float16, bfloat16 or float32")
    rows, stored = _rows(codes, "dequantize", "codes")
    return codes.new_empty([*rows, stored * packed], dtype=out_dtype)


@torch.library.register_fake("fourfold::quantize_dynamic")
def _quantize_dynamic(x, *, swizzled=False):
    rows, k = _rows(x, "quantize_dynamic")
    codes, scales = _byte(x, [*rows, k // 2]), _byte(x, _scales(rows, k, 16, swizzled))
    return codes, scales, x.new_empty([1], dtype=torch.float32)


@torch.library.register_fake("fourfold::reduce")
def _reduce(x, kind, axes, keep_dims=False):
    places = _axes("reduce", axes, x.dim())
    shape = [1 if axis in places else size for axis, size in enumerate(x.shape) if keep_dims or axis not in places]
    return x.new_empty(shape)


@torch.library.register_fake("fourfold::softmax")
def _softmax(x, axis):
    _axes("softmax", [axis], x.dim())
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("fourfold::softmax_backward")
def _softmax_backward(grad, y, axis):
    return torch.empty_like(y, memory_format=torch.contiguous_format)


@torch.library.register_fake("fourfold::copy_transpose")
def _copy_transpose(x, permutation):
    places = _axes("copy_transpose", permutation, x.dim())
    if len(places) != x.dim():
        fail("copy_transpose", f"{list(permutation)} is no permutation of {x.dim()} axes")
    return x.new_empty([x.shape[axis] for axis in places])


def _refuse(op):
    def backward(ctx, *grads):
        fail(op, "has no gradient: it computes with FP4 or FP8 codes. Call it under torch.no_grad(), or detach its inputs")

    torch.library.register_autograd(f"fourfold::{op}", backward)


for _op in (
    "segment", "scaled_mm", "scaled_mm_quantized", "scaled_mm_by_m", "grouped_mm", "quantize", "quantize_dynamic",
    "dequantize", "softmax_backward",
):
    _refuse(_op)


def _softmax_setup(ctx, inputs, output):
    ctx.save_for_backward(output)
    ctx.axis = inputs[1]


def _softmax_gradient(ctx, grad):
    (y,) = ctx.saved_tensors
    return ops.softmax_backward(grad, y, ctx.axis), None


torch.library.register_autograd("fourfold::softmax", _softmax_gradient, setup_context=_softmax_setup)


def _reduce_setup(ctx, inputs, output):
    x, ctx.kind, axes, ctx.keep_dims = inputs
    ctx.shape, ctx.axes = x.shape, sorted(_axes("reduce", axes, x.dim()))


def _reduce_gradient(ctx, grad):
    if ctx.kind not in ("sum", "mean"):
        fail("reduce", f'the kind "{ctx.kind}" has no gradient; "sum" and "mean" have one')
    if not ctx.keep_dims:
        for axis in ctx.axes:
            grad = grad.unsqueeze(axis)
    if ctx.kind == "mean":
        count = 1
        for axis in ctx.axes:
            count = count * ctx.shape[axis]
        grad = grad / count
    return grad.expand(ctx.shape), None, None, None


torch.library.register_autograd("fourfold::reduce", _reduce_gradient, setup_context=_reduce_setup)


def _transpose_setup(ctx, inputs, output):
    x, permutation = inputs
    places = _axes("copy_transpose", permutation, x.dim())
    ctx.inverse = sorted(range(len(places)), key=places.__getitem__)


def _transpose_gradient(ctx, grad):
    return ops.copy_transpose(grad, ctx.inverse), None


torch.library.register_autograd("fourfold::copy_transpose", _transpose_gradient, setup_context=_transpose_setup)
