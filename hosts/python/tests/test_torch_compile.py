"""Tests of `torch.compile` with Fourfold's pass, on the CPU."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch.nn.functional import ScalingType, SwizzleType

import fourfold.torch as ff
import reference

TARGET = "sm_120a"
# The tracer of 2.11 does not know `F.scaled_mm`, and its AOTInductor passes another number than that of a dtype.
IS_2_11 = torch.__version__.startswith("2.11.")
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
        if IS_2_11:
            return torch._scaled_mm(a, self.data.t(), sfa.flatten(), self.sf, out_dtype=torch.bfloat16)
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


def unswizzle(storage, rows, columns):
    """Linear scales from their padded storage in any shape."""
    places = reference.swizzle(np.arange(1, rows * columns + 1, dtype=np.int64).reshape(rows, columns)).ravel()
    linear = np.zeros(rows * columns, np.uint8)
    linear[places[places > 0] - 1] = storage.ravel()[places > 0]
    return linear.reshape(rows, columns)


def emulated(a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """`torch._scaled_mm` of NVFP4 on the CPU, with exact sums."""
    assert bias is None and scale_result is None
    left, right = a.view(torch.uint8).numpy(), b.t().contiguous().view(torch.uint8).numpy()
    scales = [
        unswizzle(scale.contiguous().view(torch.uint8).numpy(), data.shape[0], data.shape[1] // 8)
        for scale, data in ((scale_a, left), (scale_b, right))
    ]
    return torch.from_numpy(reference.product(left, scales[0], right, scales[1])).to(out_dtype)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 48, bias=False)

    def forward(self, x):
        return x.sum(-1, keepdim=True) + self.down(F.relu(self.up(x)))


def with_torchao(model, monkeypatch):
    """The model with linear layers quantized by torchao, which needs a GPU only to run them."""
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats import inference_workflow as workflow
    from torchao.quantization import quantize_

    monkeypatch.setattr(workflow, "is_sm_at_least_100", lambda: True)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model = model.bfloat16()
    quantize_(model, workflow.NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=False))
    return model


@pytest.fixture
def torchao_model(monkeypatch):
    return with_torchao(Mlp(), monkeypatch)


def rest_in_eager(own):
    """A backend that applies the pass, and runs the rest of the graph op by op."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    def compiler(module, inputs):
        own(module.graph)
        module.recompile()
        return make_boxed_func(module.forward)

    return aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table())


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_torchao_model(own, torchao_model, monkeypatch, rest):
    # Inductor's C++ code for the CPU does not take FP8 where torchao pads scales. 128 rows need no padding.
    options = dict(backend=rest_in_eager(own), dynamic=True) if rest == "eager" else dict(dynamic=False)
    compiled = torch.compile(torchao_model, fullgraph=True, **options)
    with torch.no_grad():
        for m in (3, 9, 130) if rest == "eager" else (128,):
            x = torch.randn(m, 64, generator=torch.Generator().manual_seed(m)).bfloat16()
            found = compiled(x)
            with monkeypatch.context() as patch:
                patch.setattr(torch, "_scaled_mm", emulated)
                expected = torchao_model(x)
            assert torch.equal(found, expected), m
    # Two products, two kernels: each with the per-tensor scale in bf16, the first with bias and relu. torchao's padding
    # makes a second graph for more than 128 rows, with the same two programs.
    assert all(len(plan.kernels) == 1 for _, plan in own.planned)
    first, second = dict.fromkeys(text for text, _ in own.planned)
    assert first.count("mul ") == 1 and first.count("relu ") == 1 and first.count("add ") == 1
    assert second.count("mul ") == 1 and second.count("add ") == 1


class Block(torch.nn.Module):
    """A transformer block: attention with two heads, and a feed-forward part with a gate."""

    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(64), torch.nn.RMSNorm(64)])
        self.qkv, self.out = torch.nn.Linear(64, 192, bias=False), torch.nn.Linear(64, 64)
        self.gate, self.up = torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(64, 128, bias=False)
        self.down = torch.nn.Linear(128, 64)

    def forward(self, x):
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, tokens, 3, 2, 32).permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(batch, tokens, 64)
        x = x + self.out(context)
        y = self.norms[1](x)
        return x + self.down(F.relu(self.gate(y)) * self.up(y))


def test_transformer_block(own, monkeypatch):
    model = with_torchao(Block(), monkeypatch)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=rest_in_eager(own))
    with torch.no_grad():
        for batch, tokens in ((2, 5), (3, 7)):
            x = torch.randn(batch, tokens, 64, generator=torch.Generator().manual_seed(tokens)).bfloat16()
            found = compiled(x)
            with monkeypatch.context() as patch:
                patch.setattr(torch, "_scaled_mm", emulated)
                expected = model(x)
            error = (found.float() - expected.float()).norm() / expected.float().norm()
            assert error < 0.01, error
    kernels = [text for text, plan in own.planned]
    assert len(kernels) == 5 and all(len(plan.kernels) == 1 for _, plan in own.planned)
    counts = [tuple(len(re.findall(rf"= {op} ", text)) for op in ("mul", "relu", "add")) for text in kernels]
    # Each product multiplies by its per-tensor scale. The gate's kernel has relu and the product with `up`, which is
    # computed before; the others have bias and residual sum.
    assert counts == [(1, 0, 0), (1, 0, 2), (2, 1, 0), (1, 0, 0), (1, 0, 2)], counts


def test_own_ops_with_quantized_result(own):
    weight = Weight(96, 64, 5)
    linear = torch.from_numpy(weight.scales)
    g = torch.tensor([0.25])

    def layer(x, g, scale):
        a, sfa, _ = ff.quantize(x, g)
        y = ff.scaled_mm(a, sfa, weight.data.view(torch.uint8), linear, alpha=scale, bias=weight.bias)
        y = F.relu(y * 2 + 1)
        return ff.quantize(y, g, swizzled=True)[:2]

    compiled = torch.compile(layer, fullgraph=True)
    x, scale = torch.randn(91, 64).bfloat16(), torch.tensor(0.5)
    for found, expected in zip(compiled(x, g, scale), layer(x, g, scale)):
        assert torch.equal(found, expected)
    assert len(own.planned) == 2, "the product, and the quantization of x"
    assert "block_quantize" in own.planned[0][0], "the quantization of the result is part of the kernel"


@pytest.mark.skipif(IS_2_11, reason="its tracer does not know F.scaled_mm")
def test_recipes(own):
    """Two-level scales of NVFP4, and MXFP4."""
    weight = Weight(72, 96, 8)
    codes, scales, a, sfa = activation(5, 96, 8)
    ga, gb = torch.tensor(0.375), torch.tensor(0.73)
    two = [BLOCKS, ScalingType.TensorWise]

    def two_levels(a, sfa, ga, gb):
        y = F.scaled_mm(
            a, weight.data.t(), [sfa.flatten(), ga], two, [weight.sf, gb], two,
            swizzle_a=[SWIZZLE, SwizzleType.NO_SWIZZLE], swizzle_b=[SWIZZLE, SwizzleType.NO_SWIZZLE],
            output_dtype=torch.bfloat16,
        )
        return F.relu(y)

    alpha = (ga * gb).item()
    expected = reference.product(codes, scales, weight.codes, weight.scales, alpha=alpha)
    found = torch.compile(two_levels, fullgraph=True, dynamic=False)(a, sfa, ga, gb)
    assert torch.equal(found, F.relu(torch.from_numpy(expected).bfloat16()))
    assert len(own.planned) == 1 and "alpha = " in own.planned[0][0] and "relu" in own.planned[0][0]

    rng = np.random.default_rng(3)
    left, sfl = reference.random_operand(rng, 5, 96, 32)
    right, sfr = reference.random_operand(rng, 72, 96, 32)
    typed = [torch.from_numpy(data).view(torch.float4_e2m1fn_x2) for data in (left, right)]
    mx = [torch.from_numpy(reference.swizzle(sf)).view(torch.float8_e8m0fnu).flatten() for sf in (sfl, sfr)]

    def mxfp4(a, b, sfa, sfb):
        recipe = ScalingType.BlockWise1x32
        y = F.scaled_mm(
            a, b.t(), sfa, recipe, sfb, recipe, swizzle_a=SWIZZLE, swizzle_b=SWIZZLE, output_dtype=torch.bfloat16
        )
        return -y

    torch._dynamo.reset()
    found = torch.compile(mxfp4, fullgraph=True, dynamic=False)(*typed, *mx)
    expected = torch.from_numpy(reference.product(left, sfl, right, sfr, 32)).bfloat16()
    assert torch.equal(found, -expected)
    assert len(own.planned) == 2 and "block = 32" in own.planned[1][0] and "neg " in own.planned[1][0]


def test_bias_of_scaled_mm(own):
    """`torch._scaled_mm` adds its bias before it rounds."""
    weight = Weight(72, 96, 9)
    codes, scales, a, sfa = activation(3, 96, 9)

    def layer(a, sfa):
        return torch._scaled_mm(a, weight.data.t(), sfa.flatten(), weight.sf, weight.bias, out_dtype=torch.bfloat16)

    found = torch.compile(layer, fullgraph=True, dynamic=False)(a, sfa)
    product = torch.from_numpy(reference.product(codes, scales, weight.codes, weight.scales))
    assert torch.equal(found, (product + weight.bias.float()).bfloat16())
    assert not torch.equal(found, product.bfloat16() + weight.bias), "another rounding"
    assert len(own.planned) == 1


def test_near_misses(own):
    weight = Weight(136, 64, 6)

    def two_users(a, sfa, other):
        y = weight.product(a, sfa)
        return F.relu(y), y + other

    def late_input(a, sfa, other):
        y = weight.product(a, sfa)
        return y + torch.sort(y).values

    def unrelated(a, sfa, other):
        return F.relu(weight.product(a, sfa)), F.relu(other + 1)

    def long_sum(a, sfa, other):
        return torch.cumsum(weight.product(a, sfa), 1)

    codes, scales, a, sfa = activation(91, 64)
    y = torch.from_numpy(reference.product(codes, scales, weight.codes, weight.scales)).bfloat16()
    other = torch.randn(91, 136).bfloat16()
    for function, expected, inside in (
        (two_users, (F.relu(y), y + other), ()),
        (late_input, y + torch.sort(y).values, ()),
        (unrelated, (F.relu(y), F.relu(other + 1)), ("relu",)),
        (long_sum, torch.cumsum(y.float(), 1).bfloat16(), ()),
    ):
        own.planned.clear()
        torch._dynamo.reset()
        found = torch.compile(function, fullgraph=True, dynamic=False)(a, sfa, other)
        torch.testing.assert_close(found, expected)
        (planned,) = own.planned
        assert [op for op in ("relu", "add") if f"{op} %" in planned[0]] == list(inside), function


def test_fp8_products_stay_with_inductor(own):
    """A product that is not block-scaled is refused, and nothing is replaced."""
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(48, 32).to(torch.float8_e4m3fn)
    one = torch.ones(())

    def layer(a, b):
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)

    found = torch.compile(layer, fullgraph=True, dynamic=False)(a, b)
    torch.testing.assert_close(found, (a.float() @ b.float().T).bfloat16())
    assert not own.planned and "not block-scaled" in own.refused[0][1]


def test_backend_by_name(torchao_model, monkeypatch):
    """`backend="fourfold"`, found by its entry point, equals the emulation too."""
    from importlib.metadata import entry_points

    if not entry_points(group="torch_dynamo_backends", name="fourfold"):
        pytest.skip("the package is not installed")
    torch._dynamo.reset()
    x = torch.randn(128, 64).bfloat16()
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        found = torch.compile(torchao_model, backend="fourfold", options={"fourfold.target": TARGET})(x)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "_scaled_mm", emulated)
            assert torch.equal(found, torchao_model(x))


def test_export_and_aot_inductor(tmp_path):
    """Ops survive `torch.export` and run from a package of AOTInductor."""
    weight = Weight(136, 64, 7)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", weight.data.view(torch.uint8))
            self.register_buffer("sfb", torch.from_numpy(weight.scales))

        def forward(self, x):
            a, sfa, g = ff.quantize(x, "dynamic")
            return ff.scaled_mm(a, sfa, self.b, self.sfb, alpha=g, activation="relu")

    layer, x = Layer(), torch.randn(5, 64)
    m = torch.export.Dim("m", min=2, max=512)
    with torch.no_grad():
        program = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: m}})
        torch.export.save(program, tmp_path / "layer.pt2")
        loaded = torch.export.load(tmp_path / "layer.pt2").module()
        if IS_2_11:
            assert torch.equal(loaded(x), layer(x))
            return
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "aot.pt2"))
        compiled = torch._inductor.aoti_load_package(package)
        for rows in (3, 91):
            x = torch.randn(rows, 64)
            assert torch.equal(loaded(x), layer(x))
            assert torch.equal(compiled(x), layer(x))


class Attention(torch.nn.Module):
    """A norm, and three layers that quantize its result with one static scale."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.rand(64) + 0.5)
        self.q, self.k, self.v = (torch.nn.Linear(64, n, bias=False) for n in (96, 32, 32))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        y = self.norm * wide.to(x.dtype)
        return self.q(y) + 1, self.k(y), self.v(y)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 91), (2, 5)])
def test_norm_and_quantization_are_one_kernel(shape):
    own = ff.inductor_pass(target="sm_90a")
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Attention().bfloat16().requires_grad_(False)
    ff.quantize_(model)
    for layer in (model.q, model.k, model.v):
        layer.is_dynamic = False
        layer.input_scale = model.q.input_scale if layer is not model.q else torch.tensor([0.001])
        layer.alpha = layer.input_scale * layer.weight_global_scale
    x = torch.randn(*shape, 64).bfloat16()
    with torch._inductor.config.patch({"post_grad_custom_pre_pass": own, "force_disable_caches": True}):
        found = torch.compile(model, fullgraph=True, dynamic=False)(x)
    for result, expected in zip(found, model(x)):
        assert result.shape == expected.shape
        # A last bit of a norm may change a code.
        assert (result - expected).norm() <= 0.02 * expected.norm()
    names = [segment.name.split()[0] for _, plan in own.planned for segment in plan.segments]
    assert sorted(names) == ["nvfp4"] * 3 + ["row"], names
    texts = {text for text, _ in own.planned}
    assert all("tensor<[R, " in text for text in texts) and len(texts) == 3, "k and v share a program"


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("name", ["alone", "one row", "one matrix", "product", "relu"])
def test_quantizations_of_batches(own, name, swizzled):
    """A program of matrices would join the scales of a batch, which are padded for each matrix."""
    codes, scales, _ = ff.quantize(torch.randn(128, 64, generator=torch.Generator().manual_seed(1)), swizzled=True)
    shape = {"alone": (2, 5, 64), "one row": (3, 1, 64), "one matrix": (1, 1, 64)}.get(name, (10, 64))

    def quantized(x, scale):
        if name in ("product", "relu"):
            a, sfa, _ = ff.quantize(x, None, swizzled=True)
            x = ff.scaled_mm(a, sfa, codes, scales, swizzled=True).view(2, 5, 128)
        x = torch.relu(x) if name != "product" else x
        return ff.quantize(x, scale, swizzled=swizzled)[:2]

    x = torch.randn(*shape, generator=torch.Generator().manual_seed(2)).bfloat16()
    scale = torch.tensor([0.01])
    found = torch.compile(quantized, fullgraph=True, dynamic=False)(x, scale)
    for result, wanted in zip(found, quantized(x, scale), strict=True):
        assert torch.equal(result, wanted) and result.stride() == wanted.stride()
