"""Tests of `grouped_mm`, on the CPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fourfold.torch as ff
import reference
from test_torch_ops import OPCHECK, mixed_operand, values

N, K = 72, 160
# The number of rows of each expert, and of rows of no expert behind them.
DISTRIBUTIONS = {
    "uniform": ([3, 3, 3, 3], 0),
    "one takes all": ([0, 0, 131, 0], 0),
    "empty first and last": ([0, 5, 1, 0], 0),
    "one each": ([1] * 7, 0),
    "one row": ([0, 0, 1], 0),
    "one expert": ([9], 0),
    "rows of no expert": ([2, 0, 6], 4),
    "no rows": ([0, 0, 0], 0),
    "many": ([index % 3 for index in range(67)], 1),
}
# Those that Hopper has a kernel for.
FORMATS = ["nvfp4", "mxfp4", "mxfp8 x mxfp4", "bf16 x nvfp4", "f16 x nvfp4", "bf16 x mxfp4"]


def sample(format, counts, rest, seed=0):
    """A, its scales or None, B, its scales, ends, the name of the format, and the product in float64, which is exact."""
    rng, (left, _, right) = np.random.default_rng(seed), format.partition(" x ")
    right = right or left
    rows, experts = sum(counts) + rest, len(counts)
    b, sfb = mixed_operand(rng, experts * N, K, right)
    if left in ("bf16", "f16"):
        dtype = torch.bfloat16 if left == "bf16" else torch.float16
        a, sfa = torch.from_numpy(rng.integers(-64, 65, (rows, K)) / 16.0).to(dtype), None
        left_values, name = a.double().numpy(), right
    else:
        a, sfa = mixed_operand(rng, rows, K, left)
        left_values, name = values(a, sfa, left), format
    right_values = values(b, sfb, right).reshape(experts, N, K)
    exact, start = np.zeros((rows, N)), 0
    for expert, count in enumerate(counts):
        exact[start : start + count] = left_values[start : start + count] @ right_values[expert].T
        start += count
    ends = torch.tensor(np.cumsum(counts), dtype=torch.int32)
    return a, sfa, b.reshape(experts, N, -1), sfb.reshape(experts, N, -1), ends, name, torch.from_numpy(exact)


def of_rows(values, counts, rest):
    """One row of `values` for each row of A, 0 for those of no expert."""
    repeated = values.repeat_interleave(torch.tensor(counts), 0)
    return torch.cat([repeated, repeated.new_zeros(rest, *values.shape[1:])])


def swizzled(scales):
    return torch.from_numpy(reference.swizzle(scales.numpy()))


def case(format, has_bias):
    """A call on a device, for GPU tests, of m rows of eight experts. Of 129, one has no expert."""

    def run(m, device):
        counts = {1: [0] * 5 + [1, 0, 0], 3: [1, 0, 0, 1, 0, 0, 0, 1], 91: [0, 91, 0, 0, 0, 0, 0, 0]}.get(m, [m // 8] * 8)
        rest = m - sum(counts)
        a, sfa, b, sfb, ends, name, _ = sample(format, counts, rest, m)
        a, sfa, b, ends = (None if tensor is None else tensor.to(device) for tensor in (a, sfa, b, ends))
        if not has_bias:
            return [ff.grouped_mm(a, sfa, b, sfb.to(device), ends, format=name, out_dtype=torch.float32)]
        alphas = (torch.exp2(torch.arange(8) % 5 - 2.0) * 1.25).to(device)
        bias = (torch.arange(8 * N).reshape(8, -1) % 97 - 40).bfloat16().to(device)
        return [ff.grouped_mm(a, sfa, b, swizzled(sfb).to(device), ends, format=name, swizzled=True,
                              alpha=alphas, bias=bias, activation="relu")]

    return run


@pytest.mark.parametrize("distribution", list(DISTRIBUTIONS))
@pytest.mark.parametrize("format", [*FORMATS, "f16 x mxfp4", "mxfp8", "bf16 x mxfp8"])
def test_products(format, distribution):
    counts, rest = DISTRIBUTIONS[distribution]
    a, sfa, b, sfb, ends, name, exact = sample(format, counts, rest)
    expected = exact.float()
    found = ff.grouped_mm(a, sfa, b, sfb, ends, format=name, out_dtype=torch.float32)
    assert torch.equal(found, expected)
    alphas = torch.exp2(torch.arange(len(counts)) % 5 - 2.0) * 1.25
    bias = (torch.arange(len(counts) * N, dtype=torch.float32).reshape(-1, N) % 97 - 40).bfloat16()
    found = ff.grouped_mm(a, sfa, b, swizzled(sfb), ends, format=name, swizzled=True, alpha=alphas, bias=bias,
                          activation="relu")
    scaled = expected * of_rows(alphas, counts, rest)[:, None]
    assert torch.equal(found, torch.relu(scaled + of_rows(bias.float(), counts, rest)).bfloat16())
    found = ff.grouped_mm(a, sfa, b, sfb, ends, format=name, alpha=torch.tensor(0.75), out_dtype=torch.float16)
    assert torch.equal(found, (expected * 0.75).half())


@pytest.mark.parametrize("format", ["nvfp4", "bf16 x mxfp4"])
def test_equals_products_of_each_expert(format):
    counts, rest = DISTRIBUTIONS["uniform"]
    a, sfa, b, sfb, ends, name, _ = sample(format, counts, rest)
    # Numbers whose sums are not exact.
    a = a if sfa is not None else torch.randn(a.shape, generator=torch.Generator().manual_seed(1)).to(a.dtype)
    found = ff.grouped_mm(a, sfa, b, sfb, ends, format=name, activation="silu")
    start = 0
    for expert, end in enumerate(ends.tolist()):
        rows = None if sfa is None else sfa[start:end]
        one = ff.scaled_mm(a[start:end], rows, b[expert], sfb[expert], format=name, activation="silu")
        assert torch.equal(found[start:end], one)
        start = end


def test_typed_views_determine_the_format():
    for format, codes, scales in (
        ("nvfp4", torch.float4_e2m1fn_x2, torch.float8_e4m3fn),
        ("mxfp4", torch.float4_e2m1fn_x2, torch.float8_e8m0fnu),
        ("mxfp8 x mxfp4", torch.float8_e4m3fn, torch.float8_e8m0fnu),
    ):
        a, sfa, b, sfb, ends, _, exact = sample(format, [2, 1], 0)
        typed = (a.view(codes), sfa.view(scales), b.view(torch.float4_e2m1fn_x2), sfb.view(scales))
        assert torch.equal(ff.grouped_mm(*typed, ends, out_dtype=torch.float32), exact.float())


def samples():
    a, sfa, b, sfb, ends, _, _ = sample("nvfp4", [2, 0, 1], 1)
    x, alphas, bias = torch.randn(4, K).bfloat16(), torch.rand(3), torch.randn(3, N)
    expert, plain = torch.tensor([0, 0, 2, 3], dtype=torch.int32), dict(out_dtype=torch.bfloat16)
    return {
        "plain": ((a, sfa, b, sfb, ends), plain),
        "whole": ((a, sfa, b, swizzled(sfb), ends, alphas, bias, expert), dict(swizzled_b=True, activation="silu", **plain)),
        "16 bits": ((x, None, b, sfb, ends, alphas[:1]), dict(out_dtype=torch.float32)),
    }


@pytest.mark.parametrize("name", list(samples()))
def test_opcheck(name):
    args, kwargs = samples()[name]
    result = torch.library.opcheck(torch.ops.fourfold.grouped_mm.default, args, kwargs, test_utils=OPCHECK)
    assert result == dict.fromkeys(OPCHECK, "SUCCESS")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_serves_every_number_of_rows(backend):
    _, _, b, sfb, _, _, _ = sample("nvfp4", [0] * 5, 0)
    bias = torch.randn(5, N, generator=torch.Generator().manual_seed(2))

    def layer(x, ends):
        codes, scales, g = ff.quantize(x, "dynamic")
        return ff.grouped_mm(codes, scales, b, sfb, ends, alpha=g, bias=bias, activation="relu")

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for counts in ([1, 2, 0, 0, 6], [0, 0, 200, 0, 0], [0, 7, 7, 7, 7]):
            x, ends = torch.randn(sum(counts), K), torch.tensor(np.cumsum(counts), dtype=torch.int32)
            assert torch.equal(compiled(x, ends), layer(x, ends))


def test_refusals():
    a, sfa, b, sfb, ends, _, _ = sample("nvfp4", [2, 0, 1], 0)
    x, plain, op = torch.zeros(3, K).bfloat16(), dict(out_dtype=torch.bfloat16), torch.ops.fourfold.grouped_mm
    bias, expert = torch.zeros(3, N), torch.zeros(3, dtype=torch.int32)
    for arguments, options, words in [
        ((a, sfa, b, sfb, ends.long()), plain, "ends is not int32; pass ends.to"),
        ((a, sfa, b, sfb, ends[:2]), plain, r"ends has the shape \[2\]; expected \[3\]"),
        ((a, sfa, b[0], sfb, ends), plain, "b has the shape .*; expected 3 axes"),
        ((a, sfa, b[..., :-8].contiguous(), sfb, ends), plain, r"expected \[T, K/2\] and \[E, N, K/2\]"),
        ((x.float(), None, b, sfb, ends), plain, "a has no scales and is Float32; expected float16"),
        ((a, sfa, b, sfb[:1], ends), plain, "elements in memory"),
        ((a, sfa, b, sfb, ends, torch.ones(2)), plain, "alpha must be one float32 number, or 3, one for each expert"),
        ((a, sfa, b, sfb, ends, None, bias), plain, "bias and expert, the expert of each row, are given together"),
        ((a, sfa, b, sfb, ends, None, bias[:, 1:], expert), plain, "bias"),
        ((a, sfa, b, sfb, ends, None, bias, expert[1:]), plain, "expert has the shape"),
        ((a, sfa, b, sfb, ends), dict(format="nvfp8", **plain), "format is"),
        ((a, sfa, b, sfb, ends), dict(activation="tanh", **plain), "activation is"),
        ((a, sfa, b, sfb, ends.flip(0)), plain, "offset"),
        ((a, sfa, b, sfb, ends + 1), plain, "offset"),
    ]:
        with pytest.raises(RuntimeError, match=words) as caught:
            op(*arguments, **options)
        assert str(caught.value).startswith("fourfold::grouped_mm: ")
    alpha = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="has no gradient"):
        op(a, sfa, b, sfb, ends, alpha, **plain).sum().backward()
