"""An emulation of an NVFP4 linear layer that rounds as vLLM's does on the CPU, with sums in float64.

vLLM's Triton kernels compute `factor` as inverse / scale instead.
"""

import numpy as np
import torch

import reference

EDGES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
# Ties go to even codes: an edge between 2i and 2i + 1 to the lower one, between 2i + 1 and 2i + 2 to the upper one.
INCLUSIVE = np.array([False, True, False, True, False, True, False])
F32 = np.float32


def e4m3(values):
    """Rounds float32 numbers to E4M3."""
    return torch.from_numpy(values).to(torch.float8_e4m3fn).float().numpy()


def round_to(values, dtype):
    """Rounds to f16 or bf16, once."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def quantize(x, inverse):
    """Signed FP4 values and E4M3 scales of x [M, K], with the reciprocal of the per-tensor scale."""
    inverse = F32(inverse)
    blocks = x.reshape(x.shape[0], x.shape[1] // 16, 16).astype(F32)
    largest = np.abs(blocks).max(-1)
    scales = e4m3(np.minimum(inverse * (largest * F32(1 / 6)), F32(448)))
    step = scales * (F32(1) / inverse)
    factor = np.divide(F32(1), step, out=np.zeros_like(step), where=step != 0)
    magnitude = np.minimum(np.abs(blocks * factor[..., None]), F32(6))[..., None]
    codes = np.where(INCLUSIVE, magnitude >= EDGES, magnitude > EDGES).sum(-1)
    return np.copysign(reference.FP4[codes], blocks).reshape(x.shape), scales


def expand(scales):
    return np.repeat(scales, 16, -1)


class Layer:
    """A layer's tensors for the emulation, in float64 unless noted."""

    def __init__(self, weight, scales, weight_global, input_global, dtype):
        self.dtype, self.inverse = dtype, F32(1) / F32(input_global)
        values, weight_scales = reference.FP4[reference.unpack(weight)], reference.e4m3(scales).astype(F32)
        # f32 products, rounded to the dtype of the activations.
        self.weight = round_to(values.astype(F32) * expand(weight_scales * F32(weight_global)), dtype).double().numpy()
        self.exact = values * expand(weight_scales.astype(np.float64)) * float(F32(weight_global))

    def quantized(self, x):
        """The activations after quantization, rounded to their dtype, and exact."""
        values, scales = quantize(x, self.inverse)
        rounded = round_to(values.astype(F32) * expand(scales / self.inverse), self.dtype).double().numpy()
        return rounded, values * expand(scales.astype(np.float64)) / float(self.inverse)

    def apply(self, x, bias=None):
        """The emulated result, rounded after the product and after the bias."""
        y = round_to(self.quantized(x)[0] @ self.weight.T, self.dtype)
        return y if bias is None else y + bias

    def apply_exactly(self, x):
        """The product without roundings after quantization."""
        return self.quantized(x)[1] @ self.exact.T


def distance(a, b):
    """The number of representable numbers between elements of two f16 or bf16 tensors."""
    bits = [tensor.contiguous().view(torch.int16).int() for tensor in (a, b)]
    keys = [torch.where(each < 0, -(each & 0x7FFF), each) for each in bits]
    return (keys[0] - keys[1]).abs()
