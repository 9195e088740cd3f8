"""Tests of the ops, models and the compile pass on a Hopper GPU.

    PYTHONPATH=<unpacked wheel> python3 -m pytest hosts/python/tests/test_torch_gpu.py

Results are compared with those of the same ops on the CPU. Operands have sums that are exact in f32, in any order.
"""

import concurrent.futures
import math
import pathlib
import runpy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F

import fourfold.torch as ff
import fourfold.torch.linear
import reference
import test_torch_experts
import test_torch_grouped
import test_torch_groups
import test_torch_ops

HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = pytest.mark.skipif(not HAS_HOPPER, reason="no Hopper GPU")

SIZES = (0, 1, 3, 91, 129)
N, K = 136, 352
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def operands(m, format="nvfp4", swizzled=True, k=K, n=N):
    """Both operands on the CPU."""
    rng, block = np.random.default_rng(m), 16 if format == "nvfp4" else 32
    a, sfa = reference.random_operand(rng, m, k, block)
    b, sfb = reference.random_operand(rng, n, k, block)
    layout = reference.swizzle if swizzled else np.asarray
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in (a, layout(sfa), b, layout(sfb))]


def numbers(m, k, seed=0):
    """Values with many scales."""
    generator = torch.Generator().manual_seed(m * 7919 + seed)
    exponents = torch.randint(-6, 7, (m, k // 16), generator=generator).repeat_interleave(16, -1)
    return torch.randn(m, k, generator=generator) * torch.exp2(exponents.float())


def linear(scales, rows, columns):
    """The scales in swizzled storage, without its padding."""
    found = scales.cpu().numpy().reshape(-1)
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    tiles = (columns + 3) // 4
    place = ((r // 128) * tiles + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4
    return torch.from_numpy(found[place])


def products(format, swizzled, activation, out, has_bias):
    def run(m, device):
        a, sfa, b, sfb = (tensor.to(device) for tensor in operands(m, format, swizzled))
        bias = (torch.arange(N, dtype=torch.bfloat16) - 40).to(device) if has_bias else None
        alpha = torch.tensor([0.0625], device=device) if has_bias else None
        return [ff.scaled_mm(a, sfa, b, sfb, alpha=alpha, bias=bias, activation=activation, out_dtype=DTYPES[out],
                             format=format, swizzled=swizzled)]

    return run


def other_formats(format):
    def run(m, device):
        a, sfa, b, sfb, name, _ = test_torch_ops.mixed(m, 72, 160, format)
        a, sfa, b, sfb = (None if tensor is None else tensor.to(device) for tensor in (a, sfa, b, sfb))
        bias = (torch.arange(72, dtype=torch.bfloat16) - 40).to(device)
        return [ff.scaled_mm(a, sfa, b, sfb, bias=bias, activation="relu", format=name)]

    return run


def alphas_of_columns(m, device):
    a, sfa, b, sfb = (tensor.to(device) for tensor in operands(m))
    alphas = torch.exp2(torch.arange(N) % 7 - 3.0).to(device)
    bias = (torch.arange(N, dtype=torch.bfloat16) - 40).to(device)
    options = dict(alpha=alphas, out_dtype=torch.float32, swizzled=True)
    return [ff.scaled_mm(a, sfa, b, sfb, **options), ff.scaled_mm(a, sfa, b, sfb, bias=bias, **options)]


def quantizations(format, dtype, swizzled, scale, rounding="floor"):
    def run(m, device):
        x = numbers(m, 96).to(device, DTYPES[dtype])
        g = torch.tensor([0.37], device=device) if scale == "given" else scale
        codes, scales, found = ff.quantize(x, g, format=format, swizzled=swizzled, rounding=rounding)
        scales = linear(scales, m, 96 // (16 if format == "nvfp4" else 32)) if swizzled else scales
        return [codes, scales] + ([found] if scale == "dynamic" and m else [])

    return run


def quantized_product(m, device):
    a, sfa, b, sfb = (tensor.to(device) for tensor in operands(m, k=64, n=96))
    g = torch.tensor([0.5], device=device)
    codes, scales = ff.scaled_mm(a, sfa, b, sfb, activation="relu", out_format="nvfp4", out_scale=g, out_swizzled=True,
                                 swizzled=True)
    return [codes, linear(scales, m, 6)]


def segment(m, device):
    x = numbers(m, 32).to(device, torch.bfloat16)
    scales = np.random.default_rng(m).integers(0, 127, (m, 4), dtype=np.uint8)
    given = torch.from_numpy(reference.swizzle(scales)).flatten().to(device)
    a = torch.zeros(m, 32, dtype=torch.uint8, device=device)
    y, codes, blocked, found = ff.segment(test_torch_ops.PROGRAM, x, a, given)
    return [y, codes, linear(blocked, m, 1), found]


def reductions(kind, axes):
    return lambda m, device: [ff.reduce(numbers(m, 96).to(device), kind, axes)]


# Those whose results have the bits of the CPU's. `run(m, device)` returns tensors.
EXACT = {
    "nvfp4": products("nvfp4", True, "none", "bf16", False),
    "nvfp4 linear scales": products("nvfp4", False, "relu", "f32", True),
    "nvfp4 f16": products("nvfp4", True, "relu", "f16", True),
    "alphas of columns": alphas_of_columns,
    "mxfp4": products("mxfp4", True, "none", "bf16", False),
    "mxfp4 linear scales": products("mxfp4", False, "relu", "f32", True),
    **{name: other_formats(name) for name in test_torch_ops.MIXED},
    **{
        f"grouped {name}{', bias' if has_bias else ''}": test_torch_grouped.case(name, has_bias)
        for name in test_torch_grouped.FORMATS
        for has_bias in (False, True)
    },
    "quantize mxfp8": quantizations("mxfp8", "bf16", True, None),
    "quantize bf16": quantizations("nvfp4", "bf16", True, "given"),
    "quantize as torchao": quantizations("nvfp4", "bf16", True, "given", "torchao"),
    "quantize f32": quantizations("nvfp4", "f32", False, None),
    "quantize dynamic": quantizations("nvfp4", "bf16", True, "dynamic"),
    "quantize mxfp4": quantizations("mxfp4", "bf16", True, None),
    "quantized product": quantized_product,
    "segment": segment,
    "maxima of rows": reductions("max", [1]),
    "largest of all": reductions("amax", [0, 1]),
    "transpose": lambda m, device: [ff.copy_transpose(numbers(m, 96).to(device, torch.bfloat16))],
}
# Those with a bound: functions within 4 ulp of f32, sums in another order.
CLOSE = {
    "gelu": products("nvfp4", True, "gelu", "f32", True),
    "silu": products("nvfp4", True, "silu", "f32", True),
    "sums of rows": reductions("sum", [1]),
    "sums of columns": reductions("sum", [0]),
    "softmax": lambda m, device: [ff.softmax(numbers(m, 96).to(device))],
    "softmax backward": lambda m, device: [
        torch.ops.fourfold.softmax_backward(
            numbers(m, 96, 1).to(device), torch.softmax(numbers(m, 96), 1).to(device), 1
        )
    ],
}


EXPERTS = {
    f"experts {' '.join(map(str, kind))}": test_torch_experts.case(*kind)
    for kind in [
        ("mixtral", None, "nvfp4"), ("mixtral", "nvfp4", "nvfp4"), ("mixtral", "mxfp8", "mxfp4"),
        ("gpt-oss", None, "mxfp4"), ("gpt-oss", "mxfp8", "mxfp4"),
    ]
}


def softmax_backward_bound(m):
    """What both devices' results may differ by: twice the error of each.

    dx = y * (g - s) with s = sum(y * g) over K = 96 columns. With u = 2^-24, s has the error K * u * sum(|y * g|), as
    K products and K - 1 sums are rounded. The difference and the last product add 2 * u * (|g| + sum(|y * g|)). K + 3
    instead of K + 2 covers terms of u^2. A result below 2^-126 is rounded to a multiple of 2^-149.
    """
    g, y = numbers(m, 96, 1).double(), torch.softmax(numbers(m, 96), 1).double()
    return 2 * (y * (96 + 3) * 2.0**-24 * (g.abs() + (g * y).abs().sum(1, keepdim=True)) + 2.0**-149)


BOUNDS = {"softmax backward": softmax_backward_bound}


@pytest.fixture(scope="module")
def built(request):
    """Builds the kernels of all selected cases side by side. A case that fails here fails in its test."""
    selected = [item.callspec.params["name"] for item in request.session.items if "built" in item.fixturenames]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        futures = [pool.submit((EXACT | CLOSE | EXPERTS)[name], 3, "cuda") for name in dict.fromkeys(selected)]
        concurrent.futures.wait(futures)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("name", list(EXACT))
def test_equals_the_cpu(built, name, m):
    if m == 0 and name == "largest of all":
        pytest.skip("there is no largest of no elements")
    for found, expected in zip(EXACT[name](m, "cuda"), EXACT[name](m, "cpu"), strict=True):
        assert torch.equal(found.cpu(), expected.cpu())


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("name", list(CLOSE))
def test_is_close_to_the_cpu(built, name, m):
    for found, expected in zip(CLOSE[name](m, "cuda"), CLOSE[name](m, "cpu"), strict=True):
        if name in BOUNDS:
            assert ((found.cpu().double() - expected.double()).abs() <= BOUNDS[name](m)).all()
            continue
        limit = expected.abs().max().item() if expected.numel() else 0
        torch.testing.assert_close(found.cpu(), expected, rtol=2**-20, atol=2**-20 * limit)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("name", list(EXPERTS))
def test_layers_of_experts(built, name, m):
    found, host, y, bound = EXPERTS[name](m, "cuda")
    if "None" in name:
        assert ((found.cpu().double() - y).abs() <= bound).all()
    # Functions and sums differ between the devices in the last bits, and so may codes of the second product.
    assert (found.cpu().double() - host.double()).norm() <= (0.005 if "None" in name else 0.05) * host.double().norm()


@pytest.mark.parametrize("name", ["experts mixtral nvfp4 nvfp4", "experts gpt-oss None mxfp4"])
def test_experts_in_a_graph_take_fresh_tokens(built, name):
    _, mixture, activations, weights = name.split()
    _, layer = test_torch_experts.layers(mixture, None if activations == "None" else activations, weights, torch.bfloat16)
    layer = layer.cuda()
    cases = [[tensor.cuda() for tensor in test_torch_experts.tokens(19, 2, torch.bfloat16, seed)] for seed in range(20)]
    # All tokens to two experts, so that the others are empty.
    cases[1][1][:] = torch.tensor([4, 2], device="cuda")
    expected = [layer(*case).clone() for case in cases]
    torch.cuda.synchronize()
    inputs, graph = [tensor.clone() for tensor in cases[0]], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(*inputs)
    for case, wanted in zip(cases, expected, strict=True):
        for tensor, fresh in zip(inputs, case):
            tensor.copy_(fresh)
        graph.replay()
        assert torch.equal(y, wanted)
    assert len({wanted.double().sum().item() for wanted in expected}) == len(cases), "the values differ"


@pytest.mark.parametrize("name", list(test_torch_ops.samples()))
def test_opcheck(name):
    op, args, kwargs = test_torch_ops.samples()[name]

    def moved(value):
        if isinstance(value, list):
            return [moved(item) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().cuda().requires_grad_(value.requires_grad)

    checks = test_torch_ops.OPCHECK
    result = torch.library.opcheck(op.default, tuple(map(moved, args)), kwargs, test_utils=checks)
    assert result == {check: "SUCCESS" for check in checks}


@pytest.fixture
def own():
    """The pass for this GPU."""
    installed = ff.inductor_pass()
    torch._dynamo.reset()
    with torch._inductor.config.patch({"post_grad_custom_pre_pass": installed, "force_disable_caches": True}):
        yield installed


@pytest.mark.parametrize("m", [1, 3, 91, 129])
def test_compiled_chain_is_one_kernel(own, m):
    a, sfa, b, sfb = (tensor.cuda() for tensor in operands(m))
    residual = numbers(m, N * 2, 4)[:, :N].cuda().bfloat16()

    def chain(a, sfa, residual):
        y = ff.scaled_mm(a, sfa, b, sfb, swizzled=True)
        return F.relu(y * 0.5) + residual

    found = torch.compile(chain, fullgraph=True, dynamic=False)(a, sfa, residual)
    assert torch.equal(found, chain(a, sfa, residual))
    assert len(own.planned) == 1


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="its tracer does not know F.scaled_mm")
@pytest.mark.parametrize("m", [3, 91])
def test_compiled_torch_product(own, m):
    from torch.nn.functional import ScalingType, SwizzleType

    a, sfa, b, sfb = (tensor.cuda() for tensor in operands(m))
    expected = F.relu(ff.scaled_mm(a, sfa, b, sfb, swizzled=True) * 0.5)
    blocks, swizzle = ScalingType.BlockWise1x16, SwizzleType.SWIZZLE_32_4_4
    a, b = a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2)
    sfa, sfb = (scales.view(torch.float8_e4m3fn).flatten() for scales in (sfa, sfb))

    def chain(a, sfa):
        y = F.scaled_mm(a, b.t(), sfa, blocks, sfb, blocks, swizzle_a=swizzle, swizzle_b=swizzle,
                        output_dtype=torch.bfloat16)
        return F.relu(y * 0.5)

    assert torch.equal(torch.compile(chain, fullgraph=True)(a, sfa), expected)
    assert len(own.planned) == 1


class Block(torch.nn.Module):
    """A norm with two linear layers behind it, whose gated product a third one takes."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.rand(256) + 0.5)
        self.gate, self.up = torch.nn.Linear(256, 512, bias=False), torch.nn.Linear(256, 512, bias=False)
        self.down = torch.nn.Linear(512, 256)

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        y = self.norm * wide.to(x.dtype)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def block(activations, device="cuda", weights=None):
    torch.manual_seed(0)
    model = Block().bfloat16().requires_grad_(False).to(device)
    dense = Block().bfloat16().to(device)
    dense.load_state_dict(model.state_dict())
    assert ff.quantize_(model, activations, weights=weights) == ["gate", "up", "down"]
    for layer in (model.gate, model.up, model.down) if activations == "nvfp4" else ():
        layer.is_dynamic = False
        layer.input_scale = torch.tensor([0.002], device=device)
        layer.alpha = layer.input_scale * layer.weight_global_scale
    model.up.input_scale = model.gate.input_scale
    return model, dense


@pytest.mark.parametrize(("activations", "weights"), [("nvfp4", None), (None, None), (None, "mxfp4"), ("mxfp8", None)])
@pytest.mark.parametrize("m", [1, 3, 91])
def test_models(activations, weights, m):
    (model, dense), (host, _) = block(activations, weights=weights), block(activations, "cpu", weights)
    x = torch.randn(2, m, 256, generator=torch.Generator().manual_seed(m)).bfloat16()
    with torch.no_grad():
        found, exact, expected = model(x.cuda()), dense(x.cuda()), host(x)
    assert found.shape == x.shape
    assert (found - exact).norm() / exact.norm() < (0.1 if activations is None and weights is None else 0.25)
    # Functions and sums of PyTorch differ between the devices, and so may codes of the third layer.
    assert (found.cpu() - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize("m", [1, 91])
def test_compiled_models(own, m):
    model, dense = block("nvfp4")
    x = torch.randn(m, 1, 256, generator=torch.Generator().manual_seed(m)).bfloat16().cuda()
    with torch.no_grad():
        found, eager = torch.compile(model, fullgraph=True, dynamic=False)(x), model(x)
        assert (found - eager).norm() / eager.norm() < 0.02
        assert (found - dense(x)).norm() / found.norm() < 0.2
    launches = [[segment.name.split()[0] for segment in plan.segments] for _, plan in own.planned]
    assert sorted(launches) == [["nvfp4"], ["nvfp4"], ["nvfp4"], ["row"], ["row"]], "one quantization for gate and up"


@pytest.mark.parametrize("m", [1, 3, 16, 91, 600])
def test_siblings_are_one_product(own, m):
    model = test_torch_groups.siblings(bias=m == 3).cuda()
    assert test_torch_groups.is_joint(model)
    x = test_torch_groups.numbers(m, 1, test_torch_groups.K).cuda()
    found, expected = torch.compile(model, fullgraph=True, dynamic=False)(x), model(x)
    for result, wanted in zip(found, expected, strict=True):
        # The kernel for more columns may add in another order.
        torch.testing.assert_close(result, wanted, rtol=2**-7, atol=2**-20 * wanted.abs().max().item())
    launches = [plan.segments[-1].name.split()[0] for _, plan in own.planned]
    assert sorted(launches) == ["block_quantize", "nvfp4"]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_graph_replays_take_fresh_values(own, is_compiled):
    model, _ = block("nvfp4")
    call = torch.compile(model, fullgraph=True, dynamic=False) if is_compiled else model
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(16, 1, 256, generator=generator).bfloat16().cuda() for _ in range(100)]
    with torch.no_grad():
        expected = [call(x).clone() for x in inputs]
        torch.cuda.synchronize()
        x = inputs[0].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(x)
    for given, wanted in zip(inputs, expected):
        x.copy_(given)
        graph.replay()
        assert torch.equal(y, wanted)
    assert len({wanted.double().sum().item() for wanted in expected}) > 90, "the values differ"


def test_grouped_product_in_a_graph_takes_fresh_ends():
    def case(counts, rest):
        a, sfa, _, _, ends, _, _ = test_torch_grouped.sample("nvfp4", counts, rest, sum(counts))
        return a, sfa, ends

    _, _, b, sfb, _, _, _ = test_torch_grouped.sample("nvfp4", [1] * 8, 0)
    cases = [case([0, 5, 1, 0, 0, 0, 9, 1], 0), case([16] + [0] * 7, 0), case([1] * 8, 8), case([0] * 8, 16)]

    def call(a, sfa, ends):
        device = a.device
        return ff.grouped_mm(a, sfa, b.to(device), sfb.to(device), ends, out_dtype=torch.float32)

    inputs = [tensor.cuda() for tensor in cases[0]]
    call(*inputs)
    torch.cuda.synchronize()
    graph, weights = torch.cuda.CUDAGraph(), (b.cuda(), sfb.cuda())
    with torch.cuda.graph(graph):
        a, sfa, ends = inputs
        y = ff.grouped_mm(a, sfa, *weights, ends, out_dtype=torch.float32)
    for given in cases:
        for tensor, fresh in zip(inputs, given):
            tensor.copy_(fresh)
        graph.replay()
        assert torch.equal(y.cpu(), call(*given))
    assert not y.any(), "rows of no expert are 0"


def test_two_streams():
    """Launches of one program on two streams do not share a workspace."""
    cases = [[tensor.cuda() for tensor in operands(m, k=2048, n=512)] for m in (129, 130)]
    # Equal sizes, so that both streams launch the same prepared program if it were shared.
    cases[1] = [cases[0][0].flip(0).contiguous(), *cases[0][1:]]
    expected = [ff.scaled_mm(*case, swizzled=True).clone() for case in cases]
    assert not torch.equal(*expected)
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in cases], [[], []]
    for _ in range(50):
        for place, (stream, case) in enumerate(zip(streams, cases)):
            with torch.cuda.stream(stream):
                results[place].append(ff.scaled_mm(*case, swizzled=True))
    torch.cuda.synchronize()
    for found, wanted in zip(results, expected):
        assert all(torch.equal(result, wanted) for result in found)


def test_contest_example():
    path = pathlib.Path(__file__).resolve().parents[1] / "examples/contest/submission.py"
    if not path.exists():
        pytest.skip("the examples are not beside the tests")
    example = runpy.run_path(str(path), run_name="example")
    for shape in ((128, 256, 256, 1), (128, 128, 512, 3), (384, 256, 192, 2)):
        data = example["generate_input"](*shape, seed=1111)
        found = example["custom_kernel"](tuple(tensor.cuda() for tensor in data))
        torch.testing.assert_close(found.cpu(), example["ref_kernel"](data), rtol=1e-3, atol=1e-3)


def test_refusals():
    a, sfa, b, sfb = operands(3)
    with pytest.raises(RuntimeError, match="others are on"):
        ff.scaled_mm(a.cuda(), sfa, b.cuda(), sfb.cuda(), swizzled=True)
    x = numbers(7, 48).cuda()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="was not run with these shapes before its capture"):
        with torch.cuda.graph(graph):
            ff.quantize(x)


@pytest.mark.parametrize("is_static", [True, False])
def test_a_layer_that_chooses_by_m_has_the_bits_of_its_forms(is_static):
    layers = {}
    torch.manual_seed(5)
    codes, scales, scale = ff.quantize(torch.randn(N, K), "dynamic", swizzled=True)
    bias, input_scale = torch.randn(N).bfloat16(), torch.tensor([0.002]) if is_static else "dynamic"
    for name, form in (("W4A16", None), ("W4A4", "nvfp4"), ("both", {16: None, math.inf: "nvfp4"}), ("by_m", "by_m")):
        layers[name] = fourfold.torch.linear.Linear(codes, scales, scale, bias, form, input_scale).cuda()
    with torch.no_grad():
        for m in (0, 1, 16, 17, 64, 129, 600):
            x = numbers(m, K).bfloat16().cuda()
            expected = layers["W4A16" if m <= 16 else "W4A4"](x)
            assert torch.equal(layers["both"](x), expected), m
            # Measured on Hopper: a quantization takes more than it saves.
            assert torch.equal(layers["by_m"](x), layers["W4A16"](x)), m
    calls = {(it["up_to"], it["activations"]): it["calls"] for it in ff.report() if it["n"] == N}
    assert min(calls[16, "W4A16"], calls[None, "W4A4"], calls[None, "W4A16"]) > 0


def test_a_choice_is_captured_with_its_m():
    torch.manual_seed(6)
    codes, scales, scale = ff.quantize(torch.randn(N, K), "dynamic", swizzled=True)
    layer = fourfold.torch.linear.Linear(codes, scales, scale, None, {16: None, math.inf: "nvfp4"}).cuda()
    with torch.no_grad():
        for m in (16, 17):
            inputs = [numbers(m, K, seed).bfloat16().cuda() for seed in range(3)]
            expected = [layer(x).clone() for x in inputs]
            x, graph = inputs[0].clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = layer(x)
            for fresh, wanted in zip(inputs, expected, strict=True):
                x.copy_(fresh)
                graph.replay()
                assert torch.equal(y, wanted), m


def test_manifest_kernels(tmp_path):
    manifest = tmp_path / "kernels.toml"
    tiles = '["1", "16", "64x128", "128x64", "128x128"]'
    manifest.write_text(f'schema = 1\n[[sweep]]\ngenerator = "scaled_mma.sm90"\ntargets = ["sm_90a"]\n'
                        f'product = {{ tile = {tiles} }}\n'
                        '[[sweep]]\ngenerator = "scaled_mma.sm120"\ntargets = ["sm_120a"]\n')
    kernels = ff.kernels(manifest)
    alpha = torch.tensor([0.5])
    for name, op in kernels.items():
        m = 1 if name.endswith("_1_auto") else 13
        given = [*operands(m), alpha]
        if name.startswith("sm_120a"):
            with pytest.raises(RuntimeError, match="is for sm_120a, and GPU 0 is sm_90a"):
                op(*[tensor.cuda() for tensor in given])
        else:
            assert torch.equal(op(*[tensor.cuda() for tensor in given]).cpu(), op(*given)), name
    assert len(kernels) == 6
