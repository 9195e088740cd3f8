"""Tests of `torch.compile` with weight-only, W4A8 and MXFP8 products, on the CPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F

import fourfold.torch as ff
import reference
from test_torch_compile import own  # noqa: F401, a fixture


@pytest.mark.parametrize("m", [1, 5, 130])
@pytest.mark.parametrize("has_bias", [False, True])
def test_dequantized_weight_is_weight_only(m, has_bias):
    """A product with NVFP4 numbers in bf16 keeps its bits when a kernel takes the codes."""
    own = ff.inductor_pass(target="sm_90a")
    torch._dynamo.reset()
    rng = np.random.default_rng(m)
    codes, scales = reference.random_operand(rng, 72, 96)
    exact = reference.dequantize(codes, scales, 16)
    b, sfb = torch.from_numpy(codes), torch.from_numpy(reference.swizzle(scales))
    x = torch.from_numpy(rng.integers(-64, 65, (m, 96)) / 16.0).bfloat16()
    bias = torch.arange(72).bfloat16() - 40 if has_bias else None

    def layer(x):
        weight = ff.dequantize(b, sfb, format="nvfp4", swizzled=True)
        return F.relu(F.linear(x, weight, bias) * 0.5)

    with torch._inductor.config.patch({"post_grad_custom_pre_pass": own, "force_disable_caches": True}):
        found = torch.compile(layer, fullgraph=True, dynamic=False)(x)
    y = torch.from_numpy((x.double().numpy() @ exact.T).astype(np.float32))
    y = (y if bias is None else y + bias.float()).bfloat16()
    assert torch.equal(found, F.relu(y * 0.5))
    ((text, plan),) = own.planned
    assert plan.segments[-1].name.startswith("bf16 x nvfp4") and "relu " in text, plan.explain()


def test_inexact_dequantization_stays(own):
    """A per-tensor scale rounds each number, and MX scales exceed the range: these products keep their roundings."""
    rng = np.random.default_rng(3)
    x, g = torch.randn(3, 64).bfloat16(), torch.tensor([0.3])
    for format, factor in (("nvfp4", g), ("mxfp4", None)):
        b, sfb = map(torch.from_numpy, reference.random_operand(rng, 32, 64, 16 if format == "nvfp4" else 32))

        def layer(x):
            return F.linear(x, ff.dequantize(b, sfb, factor, format=format))

        own.planned.clear()
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(layer, fullgraph=True, dynamic=False)(x), layer(x))
        assert not own.planned


def experts(rng, n=72, k=96):
    """Codes and scales of the weights of four experts."""
    codes, scales = reference.random_operand(rng, n, k, batch=(4,))
    return torch.from_numpy(codes), torch.from_numpy(scales)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("swizzled", [False, True])
def test_dequantized_experts_are_one_product(swizzled, dynamic):
    """`grouped_mm` with NVFP4 numbers keeps its bits when a kernel takes the codes."""
    own = ff.inductor_pass(target="sm_90a")
    torch._dynamo.reset()
    rng = np.random.default_rng(8)
    codes, scales = experts(rng)
    given = torch.from_numpy(reference.swizzle(scales.numpy())) if swizzled else scales

    class Layer(torch.nn.Module):
        """Buffers have fixed extents in a graph with dynamic ones."""

        def __init__(self):
            super().__init__()
            self.register_buffer("codes", codes)
            self.register_buffer("scales", given)

        def forward(self, x, ends):
            weight = ff.dequantize(self.codes, self.scales, format="nvfp4", swizzled=swizzled)
            return F.relu(F.grouped_mm(x, weight.transpose(1, 2), offs=ends) * 0.5)

    compiled = torch.compile(Layer(), fullgraph=True, dynamic=dynamic)
    for counts in ([2, 0, 6, 1], [0, 0, 0, 37]):
        x = torch.from_numpy(rng.integers(-64, 65, (sum(counts), 96)) / 16.0).bfloat16()
        ends = torch.tensor(np.cumsum(counts), dtype=torch.int32)
        with torch._inductor.config.patch({"post_grad_custom_pre_pass": own, "force_disable_caches": True}):
            found = compiled(x, ends)
        exact = ff.grouped_mm(x, None, codes, scales, ends, out_dtype=torch.float32)
        assert torch.equal(found, F.relu(exact.bfloat16() * 0.5))
    assert len(own.planned) == (1 if dynamic else 2)
    for text, plan in own.planned:
        name = plan.segments[-1].name
        assert name.startswith("bf16 x nvfp4 grouped") and "relu " in text, plan.explain()


@pytest.mark.parametrize("activations", ["nvfp4", "mxfp8", None])
@pytest.mark.parametrize("alpha", ["none", "one", "each"])
def test_grouped_products_are_one_kernel_with_what_follows(activations, alpha):
    own = ff.inductor_pass(target="sm_90a")
    torch._dynamo.reset()
    rng, swizzled = np.random.default_rng(10), alpha != "one"
    weights = "mxfp4" if activations == "mxfp8" else "nvfp4"
    codes, scales = (torch.from_numpy(array) for array in
                     reference.random_operand(rng, 72, 96, 32 if weights == "mxfp4" else 16, batch=(4,)))
    given = torch.from_numpy(reference.swizzle(scales.numpy())) if swizzled else scales
    factors = {"none": None, "one": torch.tensor([0.75]), "each": torch.tensor([0.5, 1.25, 2.0, 0.375])}[alpha]
    format = weights if activations in (None, weights) else f"{activations} x {weights}"

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, tensor in (("codes", codes), ("scales", given), ("factors", factors)):
                self.register_buffer(name, tensor)

        def forward(self, x, sfa, ends, column):
            y = ff.grouped_mm(x, sfa, self.codes, self.scales, ends, alpha=self.factors, format=format, swizzled=swizzled,
                              activation="relu")
            return F.silu(y * 0.25) * column

    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    with torch._inductor.config.patch({"post_grad_custom_pre_pass": own, "force_disable_caches": True}):
        for counts in ([2, 0, 6, 1], [0, 0, 0, 37]):
            m = sum(counts)
            x, sfa = torch.from_numpy(rng.integers(-64, 65, (m, 96)) / 16.0).bfloat16(), None
            if activations is not None:
                x, sfa, _ = ff.quantize(x, format=activations)
            ends, column = torch.tensor(np.cumsum(counts), dtype=torch.int32), torch.rand(m, 1).bfloat16()
            found, wanted = compiled(x, sfa, ends, column), layer(x, sfa, ends, column)
            # exp of both differs by a few ulp of f32.
            torch.testing.assert_close(found, wanted, rtol=2**-7, atol=2**-30)
    ((text, plan),) = own.planned
    assert "relu " in text and "exp " in text and "grouped" in plan.segments[-1].name, plan.explain()


def test_grouped_products_with_a_bias_stay(own):
    codes, scales = experts(np.random.default_rng(11))
    x, ends, bias = torch.randn(9, 96).bfloat16(), torch.tensor([2, 2, 8, 9], dtype=torch.int32), torch.randn(4, 72)

    def layer(x, ends):
        return F.relu(ff.grouped_mm(x, None, codes, scales, ends, bias=bias, format="nvfp4"))

    assert torch.equal(torch.compile(layer, fullgraph=True, dynamic=False)(x, ends), layer(x, ends))
    assert not own.planned and any("there is a bias" in why for _, why in own.refused)


def test_other_products_of_groups_stay(own):
    """Rounded weights, one matrix for all groups, groups of K, and a target without the kernel."""
    rng = np.random.default_rng(9)
    codes, scales = experts(rng)
    x, ends, g = torch.randn(9, 96).bfloat16(), torch.tensor([2, 2, 8, 9], dtype=torch.int32), torch.tensor([0.3])

    def rounded(x, ends):
        weight = torch.stack([ff.dequantize(codes[e], scales[e], g, format="nvfp4") for e in range(4)])
        return F.grouped_mm(x, weight.transpose(1, 2), offs=ends)

    def scaled(x, ends):
        return F.grouped_mm(x, ff.dequantize(codes, scales, g, format="nvfp4").transpose(1, 2), offs=ends)

    def plain(x, ends):
        return F.grouped_mm(x, ff.dequantize(codes, scales, format="nvfp4").transpose(1, 2), offs=ends)

    for call, target in ((rounded, "sm_90a"), (scaled, "sm_90a"), (plain, "sm_100a")):
        one = ff.inductor_pass(target=target)
        torch._dynamo.reset()
        with torch._inductor.config.patch({"post_grad_custom_pre_pass": one, "force_disable_caches": True}):
            found = torch.compile(call, fullgraph=True, dynamic=False)(x, ends)
        torch.testing.assert_close(found, call(x, ends))
        assert not one.planned
        assert call is rounded or any("grouped_mm" in root for root, _ in one.refused)


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
def test_mxfp8_products(target):
    """`torch._scaled_mm` of FP8 codes with E8M0 scales."""
    own = ff.inductor_pass(target=target)
    torch._dynamo.reset()
    rng = np.random.default_rng(4)
    codes = [rng.integers(0x30, 0x48, (rows, 96)).astype(np.uint8) for rows in (5, 72)]
    codes = [c | (rng.integers(0, 2, c.shape) << 7).astype(np.uint8) for c in codes]
    scales = [rng.integers(125, 130, (rows, 3)).astype(np.uint8) for rows in (5, 72)]
    a, b = (torch.from_numpy(c).view(torch.float8_e4m3fn) for c in codes)
    sfa, sfb = (torch.from_numpy(reference.swizzle(s)).view(torch.float8_e8m0fnu).flatten() for s in scales)
    bias = torch.arange(72).bfloat16() - 40

    def layer(a, b, sfa, sfb):
        return F.relu(torch._scaled_mm(a, b.t(), sfa, sfb, bias, out_dtype=torch.bfloat16))

    with torch._inductor.config.patch({"post_grad_custom_pre_pass": own, "force_disable_caches": True}):
        found = torch.compile(layer, fullgraph=True, dynamic=False)(a, b, sfa, sfb)
    left, right = (c.double().numpy() * np.repeat(reference.e8m0(s), 32, -1) for c, s in zip((a, b), scales))
    exact = torch.from_numpy((left @ right.T).astype(np.float32))
    assert torch.equal(found, F.relu((exact + bias.float()).bfloat16()))
    ((text, plan),) = own.planned
    assert plan.segments[-1].name.startswith("mxfp8") and "relu " in text, plan.explain()


@pytest.mark.parametrize(("activations", "kernel"), [(None, "bf16 x nvfp4"), ("mxfp8", "mxfp8 x mxfp4")])
def test_models_of_other_activations(activations, kernel):
    """W4A16 and W4A8 layers: each product is one kernel with what follows it, and keeps its bits."""
    own = ff.inductor_pass(target="sm_90a")
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 40, bias=False))
    model = model.bfloat16().requires_grad_(False)
    assert ff.quantize_(model, activations) == ["0", "2"]
    x = torch.randn(5, 64).bfloat16()
    with torch._inductor.config.patch({"post_grad_custom_pre_pass": own, "force_disable_caches": True}):
        found = torch.compile(model, fullgraph=True, dynamic=False)(x)
    torch.testing.assert_close(found, model(x), rtol=2**-7, atol=2**-7)
    names = [segment.name for _, plan in own.planned for segment in plan.segments]
    products = [name for name in names if name.startswith(kernel)]
    assert len(products) == 2, names
    assert sum("relu " in text for text, _ in own.planned) == 1
