"""Ops and a compiler backend for PyTorch.

The functions below call the ops `torch.ops.fourfold.*`. CPU tensors run on the fallback. CUDA tensors run on the GPU,
on PyTorch's current stream, or fail: they never fall back.

FP4 tensors are `uint8` with two codes in a byte (the even index in the low nibble), or `float4_e2m1fn_x2`. FP8 tensors
are `uint8`, `float8_e4m3fn` or `float8_e5m2`. Scales are `uint8`, `float8_e4m3fn` (NVFP4) or `float8_e8m0fnu` (MX).
Swizzled scales are the padded storage in any shape.

Formats, with the elements of K for each scale:

- "nvfp4": FP4 and E4M3 scales, 16; with a per-tensor scale
- "mxfp4": FP4 and E8M0 scales, 32
- "mxfp8", "mxfp8_e5m2": FP8 (E4M3 or E5M2) and E8M0 scales, 32
"""

import torch

from ._ops import choices, ops

__all__ = [
    "copy_transpose", "dequantize", "grouped_mm", "inductor_pass", "kernels", "quantize", "quantize_", "reduce", "report",
    "scaled_mm", "segment", "softmax",
]
_FP8 = {torch.float8_e4m3fn: "mxfp8", torch.float8_e5m2: "mxfp8_e5m2"}
_CODES = {"mxfp8": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2}


def _operand_format(codes, scales):
    if codes.dtype in _FP8:
        return _FP8[codes.dtype]
    return "mxfp4" if scales.dtype == torch.float8_e8m0fnu else "nvfp4"


def _format(format, a, sfa, b, sfb):
    if format is not None:
        return format
    right = _operand_format(b, sfb)
    left = right if sfa is None else _operand_format(a, sfa)
    return right if left == right else f"{left} x {right}"


def _pair(swizzled):
    return swizzled if isinstance(swizzled, tuple) else (swizzled, swizzled)


def scaled_mm(
    a, sfa, b, sfb, *, alpha=None, bias=None, activation="none", out_dtype=torch.bfloat16, format=None, swizzled=False,
    out_format=None, out_scale=None, out_swizzled=False,
):
    """Multiplies block-scaled matrices: activation(alpha * (a * sfa) @ (b * sfb).T + bias).

    Shapes: a [.., M, K] and b [N, K] or [L, N, K], of FP4 in bytes, K/2; scales [.., rows, K/16] (NVFP4) or K/32 (MX).
    On a GPU, swizzled scales of a batch of A need a batch of B too.
    The sum, alpha, bias and activation are in f32; the result is rounded once to `out_dtype`.

    `sfa`: None for an a of float16 or bfloat16 numbers (weight-only, W4A16). They are multiplied as they are.
    `alpha`: one float32 number, or one for each of N columns.
    `format`: that of both operands, or of b without `sfa`; "mxfp8 x mxfp4" (W4A8) or another pair of MX formats
    [default: by the dtypes of codes and scales; uint8 codes are FP4, and uint8 scales those of NVFP4].
    `swizzled`: the layout of both scales, or a pair of bools.
    `activation`: "none", "relu", "gelu", "gelu_tanh" or "silu".
    `out_format`: quantizes the result, and returns codes and scales; `out_scale` is its per-tensor scale.
    """
    swizzled_a, swizzled_b = _pair(swizzled)
    if a.dim() == 3 and b.dim() == 2 and not (swizzled_a and sfa is not None) and not out_swizzled:
        # One product of all rows. Swizzled scales are padded for each matrix, so they do not join.
        results = scaled_mm(
            a.flatten(0, 1), None if sfa is None else sfa.flatten(0, 1), b, sfb, alpha=alpha, bias=bias, activation=activation,
            out_dtype=out_dtype, format=format, swizzled=(False, swizzled_b), out_format=out_format,
            out_scale=out_scale,
        )
        if out_format is None:
            return results.unflatten(0, a.shape[:2])
        return tuple(result.unflatten(0, a.shape[:2]) for result in results)
    options = dict(
        format=_format(format, a, sfa, b, sfb), swizzled_a=swizzled_a, swizzled_b=swizzled_b, activation=activation,
        out_dtype=out_dtype,
    )
    if out_format is None:
        if out_scale is not None or out_swizzled:
            raise ValueError("out_scale and out_swizzled need out_format")
        return ops.scaled_mm(a, sfa, b, sfb, alpha, bias, **options)
    return ops.scaled_mm_quantized(
        a, sfa, b, sfb, alpha, bias, out_scale, **options, out_format=out_format, swizzled_out=out_swizzled
    )


def grouped_mm(
    a, sfa, b, sfb, ends, *, alpha=None, bias=None, activation="none", out_dtype=torch.bfloat16, format=None,
    swizzled=False,
):
    """Multiplies rows sorted by expert: activation(alpha[e] * (a * sfa) @ (b[e] * sfb[e]).T + bias[e]), e a row's expert.

    Shapes: a [T, K] and b [E, N, K], of FP4 in bytes, K/2; scales [T, K/16] and [E, N, K/16] (NVFP4) or K/32 (MX).
    Roundings, formats and options are those of `scaled_mm`.

    `ends`: int32 [E] on the device of a, the end of each expert's rows. Expert e has the rows ends[e - 1] to ends[e] - 1.
    Nothing waits for them. Rows after the last end have no expert: their product is 0, without a bias. On a GPU, an
    end that does not ascend from 0 to T counts as the nearest one that does; on the CPU it is an error.
    `sfa`: linear scales, or None for an a of float16 or bfloat16 numbers (W4A16).
    `alpha`: one float32 number, or one for each expert, such as the per-tensor scales of NVFP4 weights.
    `bias`: [E, N].
    `swizzled`: the layout of sfb. On a GPU, linear ones are converted in each call.
    """
    expert = None
    if bias is not None:
        rows = torch.arange(a.shape[0], dtype=torch.int32, device=a.device)
        expert = torch.searchsorted(ends, rows, right=True, out_int32=True)
    return ops.grouped_mm(
        a, sfa, b, sfb, ends, alpha, bias, expert, format=_format(format, a, sfa, b, sfb), swizzled_b=swizzled,
        activation=activation, out_dtype=out_dtype,
    )


def quantize(x, scale=None, *, format="nvfp4", swizzled=False, rounding="floor", typed=False):
    """Quantizes x [.., M, K]. Returns codes, scales and the per-tensor scale (None for MX and where it is 1).

    A value is code * scale * per-tensor scale. `scale` is a float32 tensor of one number, None, or "dynamic":
    amax / (448 * 6). `rounding` is that of MX scales: "floor", "ceil" or "even". For NVFP4 with a given scale or none,
    "torchao" computes torchao's codes and scales: its factors are reciprocals, and its scales at least 2^-6.
    `typed` returns views of PyTorch's FP4 and FP8 dtypes instead of uint8.
    """
    if isinstance(scale, str):
        if scale != "dynamic" or format != "nvfp4" or rounding == "torchao":
            raise ValueError('scale is a tensor, None or, for NVFP4 without "torchao", "dynamic"')
        codes, scales, scale = ops.quantize_dynamic(x, swizzled=swizzled)
    else:
        codes, scales = ops.quantize(x, scale, format=format, swizzled=swizzled, rounding=rounding)
    if typed:
        codes = codes.view(_CODES.get(format, torch.float4_e2m1fn_x2))
        scales = scales.view(torch.float8_e4m3fn if format == "nvfp4" else torch.float8_e8m0fnu)
    return codes, scales, scale


def dequantize(codes, scales, scale=None, *, format=None, swizzled=False, out_dtype=torch.bfloat16):
    """The numbers [.., M, K] of codes and scales: code * scale * per-tensor scale, each rounded once to `out_dtype`.

    `scale`: a float32 tensor of one number, or None; NVFP4 only. `format`: as in `scaled_mm`.
    """
    format = format or _operand_format(codes, scales)
    return ops.dequantize(codes, scales, scale, format=format, swizzled=swizzled, out_dtype=out_dtype)


def segment(ir, *tensors):
    """Runs a program, given as text, on tensors in the order of its inputs. Returns a list of its outputs.

    Outputs of FP4, FP8 and scales are uint8, those of blocked scales the padded storage.
    """
    if not tensors:
        raise ValueError("a segment needs at least one tensor, which determines where it runs")
    return ops.segment(ir, list(tensors))


def reduce(x, kind, axes, keep_dims=False):
    """Combines elements along axes. `kind` is "sum", "mean", "max", "min" or "amax"; sums are rounded once."""
    return ops.reduce(x, kind, [axes] if isinstance(axes, int) else list(axes), keep_dims)


def softmax(x, axis=-1):
    """Normalized exponentials along an axis. Differentiable."""
    return ops.softmax(x, axis)


def copy_transpose(x, permutation=None):
    """The tensor with its axes permuted, in compact memory. Without a permutation, the last two are exchanged."""
    if permutation is None:
        permutation = [*range(x.dim() - 2), x.dim() - 1, x.dim() - 2]
    return ops.copy_transpose(x, list(permutation))


def report(model=None, **options):
    """The calls of layers with `activations="by_m"`, or a dict, so far in this process.

    A list of dicts: `n` and `k` of the weight, `up_to`, the largest M of the range (None for the last range),
    `activations`, "W4A16" or "W4A4", and `calls`. Replays of a CUDA graph are not counted.

    With a model, what is planned for its experts, for tokens in bfloat16. Options are those of `fourfold.Backend`, such as
    `target="sm_90a"` [default: the GPU's]. A list of dicts: `name` of the module, `activations`, `kernels`, the kernels
    with a product, `device`, the other kernels and copies, and `fallback`, the ops that the GPU does not run. With any of
    these, calls with CUDA tensors fail.
    """
    if model is None:
        return choices()
    from .experts import report_of

    return report_of(model, options)


def kernels(manifest):
    """Registers an op for each kernel of a tuning manifest, a TOML file. Returns the ops by name.

    An op takes (a, sfa, b, sfb, alpha=None), as `scaled_mm` does, with swizzled scales and equally many axes of a and b.
    It fails if its kernel does not take the operands. On CUDA tensors it uses no other kernel. On CPU tensors the fallback
    computes the result. `sfa` is None for a kernel with a 16-bit a. The attribute `skipped` has the reason for each kernel without an op, such as a broken rule of its generator.
    """
    from ._kernels import kernels as register

    return register(manifest)


def inductor_pass(**options):
    """The pass of `fourfold.torch.compile`, for `torch._inductor.config.post_grad_custom_pre_pass`.

    Options are those of `fourfold.Backend`, such as `target="sm_120a"` [default: the GPU's].
    """
    from .compile import InductorPass

    return InductorPass(**options)


def quantize_(model, activations="auto", filter=None, group=True, weights=None):
    """Replaces linear layers and experts of a model by layers with FP4 weights, in place; see `fourfold.torch.linear`."""
    from .linear import quantize_ as replace

    return replace(model, activations, filter, group, weights)
