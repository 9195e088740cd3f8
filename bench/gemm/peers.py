"""The measured columns. Each launches a GEMM on one set of operands on the current stream."""

import torch

import formats
from device_code import Unavailable
from operands import E2M1
from ours import OUTPUT_TYPES

E2M1_LARGEST, E4M3_LARGEST = max(E2M1), 448.0


class Peer:
    """A column. `bind` prepares it for a shape; then `launch(index)` writes `outputs[index]`."""

    name = ""
    label = ""
    exact = True
    """True if it multiplies the given operands exactly."""
    rival = True
    """True if it is compared with Fourfold: it is exact and follows the protocol."""
    reduced = False
    """True if partial sums may be rounded to the output's type, as in torch."""
    output_type = torch.float16

    def __init__(self):
        self.outputs = []
        self.sets = 0

    def operand_bytes(self, shape):
        """Bytes of the operands that a call reads."""
        raise NotImplementedError

    def bytes_per_set(self, shape):
        """Bytes of the operands that a call reads and of the output that it writes."""
        return self.operand_bytes(shape) + shape.m * shape.n * self.output_type.itemsize

    def bind(self, rotation, sets):
        """Prepares `sets` sets of operands, and allocates their outputs."""
        shape = rotation.shape
        self.sets = sets
        self.outputs = [
            torch.empty(shape.m, shape.n, dtype=self.output_type, device=rotation.device) for _ in range(sets)
        ]

    def launch(self, index):
        """Launches one GEMM on the current stream."""
        raise NotImplementedError

    def poison(self):
        """Fills the outputs with NaN, so that elements that are not written are detected."""
        for output in self.outputs:
            output.fill_(float("nan"))

    def release(self):
        """Frees the memory of the shape. No graph may be replayed afterwards."""
        self.outputs = []


class Ours(Peer):
    """A kernel of Fourfold. Its operands are codes and blocked scales, without preparation."""

    rival = False

    def __init__(self, library, name, label, output, of):
        super().__init__()
        self.library, self.name, self.label, self.of = library, name, label, of
        self.output_type = OUTPUT_TYPES[output]
        self.calls = []

    def operand_bytes(self, shape):
        return shape.bytes(0, self.of)

    def bind(self, rotation, sets):
        super().bind(rotation, sets)
        self.calls = []
        for index, output in enumerate(self.outputs):
            self.calls.append(self.library.prepare(rotation.shape, self.of, rotation[index], 1.0, output))

    def launch(self, index):
        self.calls[index].launch()

    def once(self, shape, operands, alpha):
        """Returns the output of one call outside the rotation."""
        output = torch.full((shape.m, shape.n), float("nan"), dtype=self.output_type, device=operands.b.codes.device)
        call = self.library.prepare(shape, self.of, operands, alpha, output)
        call.launch()
        torch.cuda.current_stream().synchronize()
        call.close()
        return output

    def release(self):
        super().release()
        for call in self.calls:
            call.close()
        self.calls = []


class Cublas(Peer):
    """torch.matmul on dequantized operands in 16 bits, which represent the values exactly."""

    reduced = True

    def __init__(self, name, label, dtype):
        super().__init__()
        self.name, self.label, self.output_type = name, label, dtype
        self.operands = []

    def operand_bytes(self, shape):
        return 2 * (shape.m + shape.n) * shape.k

    def bind(self, rotation, sets):
        super().bind(rotation, sets)
        self.operands = []
        for index in range(sets):
            a, b = rotation[index].a.f16, rotation[index].b.f16
            self.operands.append((a.to(self.output_type), b.to(self.output_type).t()))

    def launch(self, index):
        a, b = self.operands[index]
        torch.matmul(a, b, out=self.outputs[index])

    def release(self):
        super().release()
        self.operands = []


class DequantizeCublas(Peer):
    """A kernel that dequantizes each NVFP4 operand to f16, then torch.matmul; all are timed. f16 has one buffer."""

    name, label, reduced = "dequantize_cublas", "dequantize + cuBLAS f16", True

    def __init__(self, code, of):
        super().__init__()
        if of.b != formats.NVFP4:
            raise Unavailable(f"dequantize.cu reads NVFP4, not {of.b.name}")
        self.code, self.of = code, of
        self.operands, self.a, self.b = [], None, None

    def operand_bytes(self, shape):
        return shape.bytes(0, self.of)

    def bind(self, rotation, sets):
        super().bind(rotation, sets)
        shape = rotation.shape
        self.a = torch.empty(shape.m, shape.k, dtype=torch.float16, device=rotation.device)
        self.b = torch.empty(shape.n, shape.k, dtype=torch.float16, device=rotation.device)
        self.operands = [rotation[index] for index in range(sets)]

    def launch(self, index):
        operands = self.operands[index]
        a = operands.a.f16
        if self.of.a == formats.NVFP4:
            self.code.dequantize(operands.a, self.a)
            a = self.a
        self.code.dequantize(operands.b, self.b)
        torch.matmul(a, self.b.t(), out=self.outputs[index])

    def release(self):
        super().release()
        self.operands, self.a, self.b = [], None, None


class Fp8(Peer):
    """torch._scaled_mm on operands rounded to e4m3 with one scale each: a different, easier product."""

    name, label, exact, rival = "fp8", "FP8 tensorwise (approximate)", False, False

    def __init__(self):
        super().__init__()
        self.operands = []

    def operand_bytes(self, shape):
        return (shape.m + shape.n) * shape.k

    def bind(self, rotation, sets):
        super().bind(rotation, sets)
        self.operands = []
        for index in range(sets):
            operands = rotation[index]
            (a, scale_a), (b, scale_b) = fp8(operands.a.f16), fp8(operands.b.f16)
            self.operands.append((a, b.t(), scale_a, scale_b))

    def launch(self, index):
        a, b, scale_a, scale_b = self.operands[index]
        torch._scaled_mm(
            a,
            b,
            scale_a=scale_a,
            scale_b=scale_b,
            out_dtype=self.output_type,
            use_fast_accum=True,
            out=self.outputs[index],
        )

    def release(self):
        super().release()
        self.operands = []


def fp8(values):
    """Quantizes values to e4m3 with one scale. Returns both."""
    scale = (values.abs().max().float() / E4M3_LARGEST).clamp(min=1e-12)
    scaled = (values / scale.to(values.dtype)).clamp(-E4M3_LARGEST, E4M3_LARGEST)
    return scaled.to(torch.float8_e4m3fn), scale.to(values.dtype).float()
