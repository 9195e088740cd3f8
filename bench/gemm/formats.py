"""The formats of the operands, and the programs that multiply them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """The format of one matrix."""

    name: str
    element: str
    """e2m1, e4m3 or bf16."""
    bits: int
    scales: str | None = None
    """The type of the scales along K, e4m3 or e8m0, if it has scales."""
    group: int = 0
    """Elements that share a scale."""

    def bytes(self, rows, k):
        """Bytes of elements and scales, without padding."""
        return rows * k * self.bits // 8 + (rows * k // self.group if self.scales else 0)


NVFP4 = Kind("NVFP4", "e2m1", 4, "e4m3", 16)
MXFP4 = Kind("MXFP4", "e2m1", 4, "e8m0", 32)
MXFP8 = Kind("MXFP8", "e4m3", 8, "e8m0", 32)
BF16 = Kind("bf16", "bf16", 16)


@dataclass(frozen=True)
class Format:
    """The formats of A and B."""

    name: str
    a: Kind
    b: Kind

    @property
    def title(self):
        """The name in headings."""
        return f"{self.a.name} × {self.b.name}"

    @property
    def roles(self):
        """The roles of a kernel's operands, sorted."""
        return sorted(["a", "b", "sfb", *(["sfa"] if self.a.scales else [])])

    def program(self, output):
        """The program that is measured, for any extents, with an output of the given type."""
        file = "gemm.fir" if self == DEFAULT else f"gemm_{self.name}.fir"
        text = Path(__file__).with_name(file).read_text()
        return text.replace("tensor<[M, N], f16>", f"tensor<[M, N], {output}>")


FORMATS = {
    found.name: found
    for found in [
        Format("nvfp4", NVFP4, NVFP4),
        Format("w4a16", BF16, NVFP4),
        Format("w4a8", MXFP8, MXFP4),
        Format("mxfp8", MXFP8, MXFP8),
    ]
}
DEFAULT = FORMATS["nvfp4"]


def of(result):
    """Returns the format of a run."""
    return FORMATS[result.get("format", DEFAULT.name)]
