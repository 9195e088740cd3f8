"""NVFP4 operands: random codes and scales, the blocked layout, and dequantization."""

from dataclasses import dataclass
from functools import cached_property

import torch

GROUP = 16

# The values of the sixteen e2m1 codes.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]

# Every e4m3 value from 0.25 to 3.75.
TIMED_SCALES = list(range(0x28, 0x48))
# 0.5, 1, 1.5 and 2. Every product is a multiple of 1/16, so f32 sums can be exact in any order.
EXACT_SCALES = [0x30, 0x38, 0x3C, 0x40]
EXACT_UNIT = 1 / 16
# If all scales are 1, every product is a multiple of 1/4.
SCALE_OF_ONE = 0x38
CODE_UNIT = 1 / 4


def ceil_div(a, b):
    """Returns a / b, rounded up."""
    return -(-a // b)


def block_scales(scales):
    """Converts scales [rows, groups] to the layout that block-scaled matrix instructions read, as flat bytes.

    Tiles of 128 rows by 4 groups are contiguous along K. In a tile, a scale is at byte (row % 32) * 16 + (row / 32) * 4
    + group. Padding is zero.
    """
    rows, groups = scales.shape
    row_tiles, group_tiles = ceil_div(rows, 128), ceil_div(groups, 4)
    padded = scales.new_zeros(row_tiles * 128, group_tiles * 4)
    padded[:rows, :groups] = scales
    return padded.view(row_tiles, 4, 32, group_tiles, 4).permute(0, 3, 2, 1, 4).reshape(-1).contiguous()


def pair_table(dtype, device):
    """Returns the two values of each byte of codes, low nibble first."""
    pairs = [[E2M1[byte & 15], E2M1[byte >> 4]] for byte in range(256)]
    return torch.tensor(pairs, dtype=dtype, device=device)


def dequantize(codes, scales, dtype=torch.float16):
    """Dequantizes codes [rows, k / 2] and scales [rows, k / 16]. Exact in f16 and bf16: values have six digits."""
    rows, k = codes.shape[0], codes.shape[1] * 2
    values = torch.empty(rows, k, dtype=dtype, device=codes.device)
    table = pair_table(dtype, codes.device)
    # In slices of rows, because the indices take eight times the memory of the codes.
    step = max(1, (1 << 26) // k)
    for row in range(0, rows, step):
        part = codes[row : row + step]
        pairs = table.index_select(0, part.reshape(-1).int())
        factors = scales[row : row + step].view(torch.float8_e4m3fn).to(dtype)
        values[row : row + step] = (pairs.view(part.shape[0], -1, GROUP) * factors[:, :, None]).view(part.shape[0], k)
    return values


@dataclass
class Quantized:
    """One NVFP4 matrix."""

    codes: torch.Tensor
    """[rows, k / 2] bytes."""
    scales: torch.Tensor
    """[rows, k / 16] bytes, row-major."""

    @cached_property
    def blocked(self):
        """The scales in the blocked layout."""
        return block_scales(self.scales)

    @cached_property
    def f16(self):
        """The values. Cached, because several peers read them."""
        return dequantize(self.codes, self.scales)

    @staticmethod
    def random(rows, k, scales, generator, device):
        """Draws codes and scales uniformly from all sixteen codes and the given scales."""
        codes = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, generator=generator, device=device)
        choice = torch.tensor(scales, dtype=torch.uint8, device=device)
        picks = torch.randint(0, len(scales), (rows, k // GROUP), generator=generator, device=device)
        return Quantized(codes, choice[picks])


@dataclass
class Set:
    """The operands of one GEMM."""

    a: Quantized
    b: Quantized

    @staticmethod
    def random(shape, scales, seed, device):
        """Draws operands. Equal seeds give equal operands."""
        generator = torch.Generator(device=device)
        generator.manual_seed(seed)
        a = Quantized.random(shape.m, shape.k, scales, generator, device)
        b = Quantized.random(shape.n, shape.k, scales, generator, device)
        return Set(a, b)


class Rotation:
    """The sets of a shape, created on demand. Every peer gets the same sequence of sets."""

    def __init__(self, shape, device, seed=20):
        self.shape, self.device, self.seed = shape, device, seed
        self.made = []

    def __getitem__(self, index):
        while len(self.made) <= index:
            self.made.append(Set.random(self.shape, TIMED_SCALES, self.seed + len(self.made), self.device))
        return self.made[index]

    def exact(self):
        """Returns a set on which f32 sums are exact in any order, if `check.exact_sums` confirms it."""
        return Set.random(self.shape, EXACT_SCALES, self.seed - 1, self.device)

    def largest(self):
        """Returns a set whose group sums are nearly as large as possible, but cancel.

        Nearly all codes are 6. Each odd group repeats the group before with negated weights, except at one position
        with small codes. Only the products of the small codes remain, so a loss of 1/4 in a sum of 540 is visible.
        """
        generator = torch.Generator(device=self.device)
        generator.manual_seed(self.seed - 2)
        pairs = self.shape.k // (2 * GROUP)

        def pick(codes, *extents):
            choice = torch.tensor(codes, dtype=torch.uint8, device=self.device)
            return choice[torch.randint(0, len(codes), extents, generator=generator, device=self.device)]

        def quantized(*groups):
            codes = torch.stack(groups, 2).view(groups[0].shape[0], -1)
            scales = torch.full((codes.shape[0], codes.shape[1] // GROUP), SCALE_OF_ONE, dtype=torch.uint8, device=self.device)
            return Quantized((codes[:, ::2] | codes[:, 1::2] << 4).contiguous(), scales)

        place = torch.randint(0, GROUP, (pairs, 1), generator=generator, device=self.device)
        is_small = place == torch.arange(GROUP, device=self.device)
        # Small: 0.5 and 1.5 with either sign. Large: 6, and sometimes 4.
        small, large = [0x1, 0x3, 0x9, 0xB], [0x7] * 7 + [0x6]
        tokens, weights = (
            torch.where(is_small, pick(small, rows, pairs, GROUP), pick(large, rows, pairs, GROUP))
            for rows in (self.shape.m, self.shape.n)
        )
        return Set(quantized(tokens, tokens), quantized(weights, torch.where(is_small, 0, weights | 8)))


def rotation_count(bytes_per_set, cache_bytes, calls):
    """Returns the number of sets that exceed three times the cache size; at least four.

    The number divides `calls`, so that every replay has the same rotation. For very small sets it exceeds `calls`;
    then a replay has that many calls.
    """
    needed = max(4, 3 * cache_bytes // bytes_per_set + 1)
    fitting = [count for count in range(4, calls + 1) if calls % count == 0 and count >= needed]
    return fitting[0] if fitting else needed
