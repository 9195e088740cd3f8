"""The measured shapes, and a lower bound on the time of each."""

from dataclasses import dataclass

import formats

# The reference rates of an H200: bytes per microsecond and operations per microsecond.
REFERENCE_BANDWIDTH = 4.3e6
REFERENCE_RATE = 790e6

CONTEST, DECODE, LARGE, OTHER = "contest", "decode", "large", "other"


@dataclass(frozen=True)
class Shape:
    """The extents of D [m, n] = A [m, k] · B [n, k] transposed."""

    m: int
    n: int
    k: int

    @property
    def group(self):
        """The group of requirements that the shape belongs to."""
        return GROUPS.get(self, OTHER)

    @property
    def flops(self):
        """The number of operations of one GEMM."""
        return 2 * self.m * self.n * self.k

    def bytes(self, output_bytes, of=formats.DEFAULT):
        """Bytes of A and B with their scales, each read once, and of D, written once, without padding."""
        return of.a.bytes(self.m, self.k) + of.b.bytes(self.n, self.k) + self.m * self.n * output_bytes

    def reference_us(
        self, output_bytes=2, bandwidth=REFERENCE_BANDWIDTH, rate=REFERENCE_RATE, of=formats.DEFAULT
    ):
        """The larger of the time to move the bytes and the time to do the operations."""
        return max(self.bytes(output_bytes, of) / bandwidth, self.flops / rate)

    def __str__(self):
        return f"{self.m},{self.n},{self.k}"


GROUPS = {
    Shape(128, 7168, 16384): CONTEST,
    Shape(128, 4096, 7168): CONTEST,
    Shape(128, 7168, 2048): CONTEST,
    Shape(1, 8192, 8192): DECODE,
    Shape(16, 8192, 8192): DECODE,
    Shape(1, 28672, 4096): DECODE,
    Shape(64, 8192, 8192): LARGE,
    Shape(512, 8192, 8192): LARGE,
    Shape(4096, 4096, 4096): LARGE,
    Shape(8192, 8192, 8192): LARGE,
}


def parse_shapes(text):
    """Parses group names and `M,N,K`, separated by spaces or semicolons. Raises ValueError for other text."""
    shapes = []
    for word in text.replace(";", " ").split():
        if word in (CONTEST, DECODE, LARGE):
            shapes += [shape for shape, group in GROUPS.items() if group == word]
            continue
        try:
            m, n, k = (int(part) for part in word.split(","))
        except ValueError:
            raise ValueError(f"{word!r} is not a shape; expected M,N,K, or one of contest, decode, large") from None
        if min(m, n, k) < 1 or k % 32 != 0 or n % 8 != 0:
            raise ValueError(f"{word}: M must be at least 1, N a multiple of 8, K a multiple of 32")
        shapes.append(Shape(m, n, k))
    if not shapes:
        raise ValueError("expected at least one shape")
    return list(dict.fromkeys(shapes))
