"""Operands: random codes and scales, the blocked layout, and dequantization."""

from dataclasses import dataclass
from functools import cached_property

import torch

import formats

# The values of the sixteen e2m1 codes.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


@dataclass(frozen=True)
class Draw:
    """Scales and codes (None: all) of random data. Every code times scale is a multiple of `unit`, if it is given."""

    scales: list
    codes: list | None
    unit: float | None = None


def signed(codes):
    """Returns e4m3 codes with either sign."""
    return codes + [code | 0x80 for code in codes]


# Every e4m3 scale from 0.25 to 3.75; powers of two from 2^-2 to 2. Codes of e4m3 from 2^-4 to 15.
TIMED = {
    "NVFP4": Draw(list(range(0x28, 0x48)), None),
    "MXFP4": Draw([125, 126, 127, 128], None),
    "MXFP8": Draw([125, 126, 127, 128], signed(list(range(0x18, 0x58)))),
}
# Scales of NVFP4: 0.5, 1, 1.5 and 2; of MX: 1 and 2. Codes of e4m3: 0.5, 1, 1.5, 2, 3 and 4 with either sign. f32 sums
# can be exact in any order.
EXACT = {
    "NVFP4": Draw([0x30, 0x38, 0x3C, 0x40], None, 1 / 4),
    "MXFP4": Draw([127, 128], None, 1 / 2),
    "MXFP8": Draw([127, 128], signed([0x30, 0x38, 0x3C, 0x40, 0x44, 0x48]), 1 / 2),
}
SCALE_OF_ONE = 0x38
# If all scales are 1, every product of two FP4 codes is a multiple of 1/4.
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


def values_of(codes, kind, dtype, table):
    """Returns the values of codes, two of which are in a byte of FP4."""
    if kind.element == "e2m1":
        return table.index_select(0, codes.reshape(-1).int()).view(codes.shape[0], -1)
    return codes.view(torch.float8_e4m3fn).to(dtype)


def factors_of(scales, kind, dtype):
    """Returns the values of scales."""
    if kind.scales == "e4m3":
        return scales.view(torch.float8_e4m3fn).to(dtype)
    return torch.exp2(scales.float() - 127).to(dtype)


def dequantize(codes, scales, dtype=torch.float16, kind=formats.NVFP4):
    """Dequantizes codes [rows, k * bits / 8] and scales [rows, k / group].

    Exact in f16 and bf16 for the scales and codes drawn here: values have at most six digits.
    """
    rows, k = codes.shape[0], codes.shape[1] * 8 // kind.bits
    values = torch.empty(rows, k, dtype=dtype, device=codes.device)
    table = pair_table(dtype, codes.device)
    # In slices of rows, because the indices take eight times the memory of the codes.
    step = max(1, (1 << 26) // k)
    for row in range(0, rows, step):
        part = values_of(codes[row : row + step], kind, dtype, table)
        factors = factors_of(scales[row : row + step], kind, dtype)
        groups = part.view(part.shape[0], -1, kind.group) * factors[:, :, None]
        values[row : row + step] = groups.view(part.shape[0], k)
    return values


@dataclass
class Quantized:
    """One matrix of codes with scales."""

    codes: torch.Tensor
    """[rows, k * bits / 8] bytes."""
    scales: torch.Tensor
    """[rows, k / group] bytes, row-major."""
    kind: formats.Kind = formats.NVFP4

    @property
    def data(self):
        """The elements that a kernel reads."""
        return self.codes

    @cached_property
    def blocked(self):
        """The scales in the blocked layout."""
        return block_scales(self.scales)

    @cached_property
    def f16(self):
        """The values. Cached, because several peers read them."""
        return dequantize(self.codes, self.scales, kind=self.kind)

    @staticmethod
    def random(rows, k, draws, kind, generator, device):
        """Draws codes and scales uniformly, as `draws` says for the format."""
        draw = draws[kind.name]

        def pick(choice, *extents):
            choice = torch.tensor(choice, dtype=torch.uint8, device=device)
            return choice[torch.randint(0, len(choice), extents, generator=generator, device=device)]

        if draw.codes is None:
            extents = (rows, k * kind.bits // 8)
            codes = torch.randint(0, 256, extents, dtype=torch.uint8, generator=generator, device=device)
        else:
            codes = pick(draw.codes, rows, k)
        return Quantized(codes, pick(draw.scales, rows, k // kind.group), kind)


@dataclass
class Half:
    """One matrix of 16-bit elements."""

    f16: torch.Tensor
    """The values, which bf16 represents too."""

    blocked = None

    @cached_property
    def data(self):
        """The elements that a kernel reads."""
        return self.f16.to(torch.bfloat16)

    @staticmethod
    def random(rows, k, draws, generator, device):
        """Draws values of NVFP4, which 16 bits hold exactly."""
        return Half(Quantized.random(rows, k, draws, formats.NVFP4, generator, device).f16)


@dataclass
class Set:
    """The operands of one GEMM."""

    a: Quantized | Half
    b: Quantized

    @staticmethod
    def random(shape, draws, seed, device, of=formats.DEFAULT):
        """Draws operands. Equal seeds give equal operands."""
        generator = torch.Generator(device=device)
        generator.manual_seed(seed)
        if of.a.scales:
            a = Quantized.random(shape.m, shape.k, draws, of.a, generator, device)
        else:
            a = Half.random(shape.m, shape.k, draws, generator, device)
        return Set(a, Quantized.random(shape.n, shape.k, draws, of.b, generator, device))


class Rotation:
    """The sets of a shape, created on demand. Every peer gets the same sequence of sets."""

    def __init__(self, shape, device, seed=20, of=formats.DEFAULT):
        self.shape, self.device, self.seed, self.of = shape, device, seed, of
        self.made = []

    def __getitem__(self, index):
        while len(self.made) <= index:
            self.made.append(Set.random(self.shape, TIMED, self.seed + len(self.made), self.device, self.of))
        return self.made[index]

    def checks(self):
        """Yields sets on which f32 sums are exact in any order, if `check.exact_sums` confirms it, and their units."""
        a, b = (EXACT[(kind if kind.scales else formats.NVFP4).name].unit for kind in (self.of.a, self.of.b))
        yield self.exact(), a * b
        if self.of == formats.DEFAULT:
            yield self.largest(), CODE_UNIT

    def exact(self):
        """Returns a set of small products."""
        return Set.random(self.shape, EXACT, self.seed - 1, self.device, self.of)

    def largest(self):
        """Returns a set of NVFP4 whose group sums are nearly as large as possible, but cancel.

        Nearly all codes are 6. Each odd group repeats the group before with negated weights, except at one position
        with small codes. Only the products of the small codes remain, so a loss of 1/4 in a sum of 540 is visible.
        """
        generator = torch.Generator(device=self.device)
        generator.manual_seed(self.seed - 2)
        group = formats.NVFP4.group
        pairs = self.shape.k // (2 * group)

        def pick(codes, *extents):
            choice = torch.tensor(codes, dtype=torch.uint8, device=self.device)
            return choice[torch.randint(0, len(codes), extents, generator=generator, device=self.device)]

        def quantized(*groups):
            codes = torch.stack(groups, 2).view(groups[0].shape[0], -1)
            scales = torch.full((codes.shape[0], codes.shape[1] // group), SCALE_OF_ONE, dtype=torch.uint8, device=self.device)
            return Quantized((codes[:, ::2] | codes[:, 1::2] << 4).contiguous(), scales)

        place = torch.randint(0, group, (pairs, 1), generator=generator, device=self.device)
        is_small = place == torch.arange(group, device=self.device)
        # Small: 0.5 and 1.5 with either sign. Large: 6, and sometimes 4.
        small, large = [0x1, 0x3, 0x9, 0xB], [0x7] * 7 + [0x6]
        tokens, weights = (
            torch.where(is_small, pick(small, rows, pairs, group), pick(large, rows, pairs, group))
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
