"""References in float64, independent of Fourfold: values of FP4 codes and scales, layouts, products, roundings."""

import numpy as np

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
FP4 = np.concatenate([FP4, -FP4])


def e4m3(codes):
    """Values of unsigned E4M3 codes below NaN."""
    codes = codes.astype(np.int64) & 0x7F
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


def e8m0(codes):
    """Values of E8M0 codes below NaN."""
    return 2.0 ** (codes.astype(np.float64) - 127)


def scale_values(codes, block):
    """Values of NVFP4 scales (block 16) or MX scales (block 32)."""
    return e4m3(codes) if block == 16 else e8m0(codes)


def unpack(data):
    """The codes of packed FP4, the low nibble first."""
    return np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], data.shape[-1] * 2)


def swizzle(scales):
    """The padded 128 x 4 storage of linear scales, by the formula of the language reference."""
    *batch, rows, columns = scales.shape
    padded_rows, tiles = (rows + 127) // 128 * 128, (columns + 3) // 4
    out = np.zeros((*batch, padded_rows * tiles * 4), scales.dtype)
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    place = ((r // 128) * tiles + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4
    out[..., place] = scales
    return out.reshape(*batch, padded_rows, tiles * 4)


def random_operand(rng, rows, k, block=16, batch=()):
    """Packed codes of every value, and linear scales: all E4M3 mantissas at two exponents, or five E8M0 exponents."""
    codes = rng.integers(0, 256, (*batch, rows, k // 2), dtype=np.uint8)
    shape = (*batch, rows, k // block)
    scales = rng.integers(0x34, 0x44, shape) if block == 16 else rng.integers(125, 130, shape)
    return codes, scales.astype(np.uint8)


def dequantize(data, scales, block):
    """Values of a block-scaled matrix, exact in float64."""
    return FP4[unpack(data)] * np.repeat(scale_values(scales, block), block, -1)


def product(a, sfa, b, sfb, block=16, alpha=None):
    """The product, whose sums are exact in float64, rounded to f32, then multiplied by alpha in f32."""
    left, right = dequantize(a, sfa, block), dequantize(b, sfb, block)
    exact = left @ np.swapaxes(right, -1, -2)
    result = exact.astype(np.float32)
    return result if alpha is None else (result * np.float32(alpha)).astype(np.float32)
