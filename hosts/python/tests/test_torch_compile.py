"""Tests of `torch.compile` with Fourfold's pass, on the CPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch.nn.functional import ScalingType, SwizzleType

import fourfold.torch as ff
import reference

TARGET = "sm_120a"
BLOCKS, SWIZZLE = ScalingType.BlockWise1x16, SwizzleType.SWIZZLE_32_4_4


@pytest.fixture
def own():
    """A pass, installed for the test, without caches of graphs that an earlier pass took."""
    installed = ff.inductor_pass(target=TARGET)
    torch._dynamo.reset()
    settings = {"post_grad_custom_pre_pass": installed, "force_disable_caches": True}
    with torch._inductor.config.patch(settings):
        yield installed


class Weight(torch.nn.Module):
    """A weight in NVFP4 with swizzled scales, as `F.scaled_mm` takes it."""

    def __init__(self, n, k, seed):
        super().__init__()
        self.codes, self.scales = reference.random_operand(np.random.default_rng(seed), n, k)
        self.register_buffer("data", torch.from_numpy(self.codes).view(torch.float4_e2m1fn_x2))
        self.register_buffer("sf", torch.from_numpy(reference.swizzle(self.scales)).view(torch.float8_e4m3fn).flatten())
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("bias", torch.randn(n, generator=generator).bfloat16())

    def product(self, a, sfa):
        return F.scaled_mm(
            a, self.data.t(), sfa.flatten(), BLOCKS, self.sf, BLOCKS, swizzle_a=SWIZZLE, swizzle_b=SWIZZLE,
            output_dtype=torch.bfloat16,
        )


def activation(m, k, seed=0):
    codes, scales = reference.random_operand(np.random.default_rng(seed), m, k)
    a = torch.from_numpy(codes).view(torch.float4_e2m1fn_x2)
    return codes, scales, a, torch.from_numpy(reference.swizzle(scales)).view(torch.float8_e4m3fn)


class Chain(Weight):
    def forward(self, a, sfa, residual, alpha):
        y = self.product(a, sfa)
        return self.epilogue(y, residual, alpha)

    def epilogue(self, y, residual, alpha):
        y = y * alpha
        y = y + self.bias
        y = F.relu(y)
        y = y * 0.3
        y = y + residual
        return F.layer_norm(y.float(), (y.shape[-1],)) @ torch.ones(y.shape[-1], 3)


def test_chain_is_one_kernel_and_equals_eager(own):
    n, k = 136, 352
    chain = Chain(n, k, 1)
    compiled = torch.compile(chain, fullgraph=True, dynamic=True)
    for m in (3, 9, 200):
        codes, scales, a, sfa = activation(m, k, m)
        generator = torch.Generator().manual_seed(m)
        residual = torch.randn(m, n, generator=generator).bfloat16()
        alpha = torch.tensor(0.0371).bfloat16()
        product = torch.from_numpy(reference.product(codes, scales, chain.codes, chain.scales)).bfloat16()
        result = compiled(a, sfa, residual, alpha)
        expected = chain.epilogue(product, residual, alpha)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert len(own.planned) == 1, "one graph serves every M"
    text, plan = own.planned[0]
    assert len(plan.kernels) == 1 and text.count("scaled_mma") == 1
    # The whole chain of roundings is inside: three products or sums, and what layer_norm needs is outside.
    assert text.count("mul ") == 2 and text.count("add ") == 2 and text.count("relu ") == 1
    assert "bf16" in text.splitlines()[-3], "the trailing widening conversion stays outside"


class Exact(Weight):
    def forward(self, a, sfa, residual, alpha):
        y = F.relu(self.product(a, sfa) * alpha + self.bias) * 0.3
        return (y - residual) / 7


@pytest.mark.parametrize("m", [1, 3, 91, 129])
def test_roundings_are_those_of_eager(own, m):
    n, k = 72, 96
    layer = Exact(n, k, 2)
    codes, scales, a, sfa = activation(m, k, m)
    residual, alpha = torch.randn(m, n).bfloat16(), torch.tensor(0.0371).bfloat16()
    result = torch.compile(layer, fullgraph=True)(a, sfa, residual, alpha)
    y = torch.from_numpy(reference.product(codes, scales, layer.codes, layer.scales)).bfloat16()
    expected = (F.relu(y * alpha + layer.bias) * 0.3 - residual) / 7
    assert torch.equal(result, expected)
    assert len(own.planned) == 1 and "div " in own.planned[0][0]
