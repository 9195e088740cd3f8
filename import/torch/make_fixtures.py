"""Exports small models and records what they compute in eager mode.

    python import/torch/make_fixtures.py FOLDER

Requires torch, torchao, numpy, safetensors, onnx and onnxscript, and no GPU. Writes graph.json and weights.safetensors,
or model.onnx, to FOLDER/NAME, and data.safetensors, which holds `x` and the expected result. The CPU has no FP4
multiplication. The product of quantized operands is computed in float64 instead, and rounded once to f32.
"""

import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import torch
import torchao.prototype.mx_formats.inference_workflow as workflow
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torchao.quantization import quantize_

sys.path.insert(0, str(Path(__file__).parent))
from fourfold_export import save

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


class Mlp(nn.Module):
    """A feed-forward block with a residual."""

    def __init__(self, hidden, inner):
        super().__init__()
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return x + self.down(functional.silu(self.up(x)))


class Block(nn.Module):
    """A block as in BERT."""

    def __init__(self, hidden, inner, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dense = nn.Linear(hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape

        def heads(y):
            return y.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        attended = functional.scaled_dot_product_attention(query, key, value)
        attended = attended.transpose(1, 2).reshape(batch, length, hidden)
        x = self.norm1(x + self.dense(attended))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Llama(nn.Module):
    """An embedding and a block as in Llama: rotary positions, shared key heads, a causal mask. Returns the last row."""

    def __init__(self, words, hidden, inner, heads, groups):
        super().__init__()
        self.size = hidden // heads
        self.widths = [heads * self.size, groups * self.size, groups * self.size]
        self.embedding = nn.Embedding(words, hidden)
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, sum(self.widths), bias=False)
        self.dense = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        frequencies = 10000.0 ** -(torch.arange(0, self.size, 2).float() / self.size)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x):
        x = self.embedding(x)
        batch, length, hidden = x.shape
        angles = torch.arange(length)[:, None].float() * self.frequencies[None, :].float()
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

        def rotated(y):
            half = self.size // 2
            return y * cos + torch.cat((-y[..., half:], y[..., :half]), dim=-1) * sin

        parts = self.qkv(self.norm1(x)).split(self.widths, dim=-1)
        query, key, value = (part.view(batch, length, -1, self.size).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(
            rotated(query), rotated(key), value, is_causal=True, enable_gqa=True
        )
        x = x + self.dense(attended.transpose(1, 2).reshape(batch, length, hidden))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return (x + self.down(functional.silu(gate) * up))[:, -1]


class Parts(nn.Module):
    """Ops that take, join, repeat and choose elements, and functions that no other model has."""

    def forward(self, x):
        batch, length, width = x.shape
        rows = x[:, 1:-1:2, 3:].narrow(2, 0, 4).repeat(1, 2, 3)[:, :length, :width]
        columns = torch.stack(x.unbind(1)[:3], dim=2).transpose(1, 2)
        columns = functional.pad(columns, (0, 0, 1, length - columns.shape[1] - 1), value=0.5)
        picked = torch.index_select(x, 2, torch.tensor([width - 1, 0, 2])).repeat_interleave(4, dim=2)
        order = torch.tensor([-1, 0, 3, 2, 1] + list(range(5, length)))
        turned = x[:, order]
        whole = torch.floor(x) + torch.ceil(x * 1.5) + torch.round(x * 2) + (3 * x).int()
        smooth = torch.log(x.abs() + 1) + torch.sin(x) * torch.cos(x) + x.abs().pow(1.7) + 2.0**x
        # Distances of positions decide, as in a sliding window.
        at = torch.arange(length)
        near = (at[:, None] - at[None, :]) * 2 + 1
        near = (near >= -3) & ~(near > 5) | (near == 9)
        scores = torch.where(near, x @ x.transpose(1, 2), -1e4).softmax(-1)
        scores = scores.masked_fill(scores < 0.01, 0.0).tril(1) + torch.ones(length, length).triu(2)
        variance, mean = torch.var_mean(x, dim=-1, correction=1, keepdim=True)
        scaled = (1 - (x - mean) * torch.rsqrt(variance + 1e-5)).clamp_min(-1.5)
        positive = (x > 1.5).any(dim=-1, keepdim=True).float()
        return torch.cat((rows, columns, picked, turned, whole, smooth, scores @ x, scaled * positive), dim=1)


def unpacked(codes):
    codes = codes.view(torch.uint8)
    pairs = torch.stack([codes & 15, codes >> 4], dim=-1)
    return E2M1[pairs.reshape(codes.shape[0], -1).long()]


def unblocked(scales, rows, columns):
    tiles = scales.contiguous().view(torch.float8_e4m3fn).reshape(-(-rows // 128), -(-columns // 4), 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-(-rows // 128) * 128, -1)[:rows, :columns].double()


def scaled_mm(a, b, scale_a, scale_b, bias=None, out_dtype=None, **_):
    """Stands for torch._scaled_mm on NVFP4 operands with scales in blocked layout."""
    a, b = unpacked(a), unpacked(b.t().contiguous())
    blocks = a.shape[1] // 16
    a = a * unblocked(scale_a, a.shape[0], blocks).repeat_interleave(16, dim=1)
    b = b * unblocked(scale_b, b.shape[0], blocks).repeat_interleave(16, dim=1)
    product = (a @ b.t()).float()
    if bias is not None:
        product = product + bias.float()
    return product.to(out_dtype)


def make(folder, model, shape, axes, dtype, words=None, quantized=True, decomposed=False, onnx=False):
    """Exports a model of numbers, or of identifiers below `words`."""
    torch.manual_seed(7)
    model = model().to(dtype).eval()
    for name, parameter in model.named_parameters():
        # Every bias and factor of a norm differs from its usual constant.
        if name.endswith("bias") or "norm" in name:
            parameter.data += torch.randn(parameter.shape).to(dtype) / 4
    if quantized:
        quantize(model)
    x = torch.randn(shape).to(dtype) if words is None else torch.randint(0, words, shape)
    dynamic = {axis: torch.export.Dim(axes[axis]) if onnx else torch.export.Dim.AUTO for axis in axes}
    program = torch.export.export(model, (x,), dynamic_shapes=(dynamic,), strict=False)
    if decomposed:
        program = program.run_decompositions()
    if onnx:
        folder.mkdir(parents=True, exist_ok=True)
        torch.onnx.export(
            model, (x,), folder / "model.onnx", dynamo=True, dynamic_shapes=(dynamic,), external_data=False
        )
    else:
        save(program, folder, (axes,))
    with torch.no_grad():
        expected = model(x)
    output = list(program.graph.nodes)[-1].args[0][0].name
    # Programs take identifiers as i32.
    x = x.int() if words else x
    save_file({"x": x, f"expected.{output}": expected.contiguous()}, folder / "data.safetensors")


def quantize(model):
    config = workflow.NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=False)
    quantize_(model, config, filter_fn=lambda module, _: isinstance(module, nn.Linear))


def main(folder):
    # Quantization asks for a GPU that multiplies; exporting needs none.
    workflow.is_sm_at_least_100 = lambda: True
    torch._scaled_mm = scaled_mm
    make(folder / "mlp", lambda: Mlp(96, 288), (7, 96), {0: "M"}, torch.bfloat16)
    make(folder / "block", lambda: Block(64, 160, 4), (2, 9, 64), {0: "B", 1: "S"}, torch.bfloat16)
    make(folder / "block_f32", lambda: Block(64, 224, 2), (3, 5, 64), {0: "B", 1: "S"}, torch.float32)
    llama = (3, 6), {0: "B"}
    make(folder / "llama", lambda: Llama(50, 64, 96, 4, 2), *llama, torch.bfloat16, words=50)
    make(folder / "llama_f32", lambda: Llama(50, 64, 96, 4, 2), *llama, torch.float32, words=50)
    parts = Parts, (2, 7, 12), {0: "B"}, torch.float32
    make(folder / "parts", *parts, quantized=False)
    make(folder / "parts_core", *parts, quantized=False, decomposed=True)
    core = {"words": 50, "quantized": False, "decomposed": True}
    onnx = {"words": 50, "quantized": False, "onnx": True}
    make(folder / "llama_onnx", lambda: Llama(50, 32, 48, 4, 2), *llama, torch.float32, **onnx)
    make(folder / "llama_core", lambda: Llama(50, 32, 48, 4, 2), *llama, torch.float32, **core)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
