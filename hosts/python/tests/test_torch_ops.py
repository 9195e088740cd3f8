"""Tests of the ops of `import fourfold.torch`, on the CPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fourfold.torch as ff
import reference

OPCHECK = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def operand(rng, rows, k, block, batch=()):
    data, scales = reference.random_operand(rng, rows, k, block, batch)
    return data, scales, torch.from_numpy(data), torch.from_numpy(scales)


def rounded(expected, dtype):
    return torch.from_numpy(np.ascontiguousarray(expected)).to(dtype)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("m", [0, 1, 3, 91, 200])
@pytest.mark.parametrize("swizzled", [(False, False), (True, True), (False, True)])
def test_products(format, m, swizzled):
    block, n, k = (16, 136, 352) if format == "nvfp4" else (32, 72, 160)
    rng = np.random.default_rng(m)
    a, sfa, at, sfat = operand(rng, m, k, block)
    b, sfb, bt, sfbt = operand(rng, n, k, block)
    given = [
        torch.from_numpy(reference.swizzle(scales)) if flag else tensor
        for flag, scales, tensor in zip(swizzled, (sfa, sfb), (sfat, sfbt))
    ]
    alpha, bias = torch.tensor(0.0625), torch.arange(n, dtype=torch.bfloat16) - 40
    expected = reference.product(a, sfa, b, sfb, block, alpha=0.0625)
    result = ff.scaled_mm(at, given[0], bt, given[1], alpha=alpha, bias=bias, format=format, swizzled=swizzled,
                          activation="relu", out_dtype=torch.float32)
    biased = expected + bias.float().numpy()
    torch.testing.assert_close(result, torch.from_numpy(np.maximum(biased, 0)), rtol=0, atol=0)
    plain = ff.scaled_mm(at, given[0], bt, given[1], format=format, swizzled=swizzled, out_dtype=torch.bfloat16)
    torch.testing.assert_close(plain, rounded(reference.product(a, sfa, b, sfb, block), torch.bfloat16), rtol=0, atol=0)
    # Views of the FP4 and FP8 dtypes.
    dtype = torch.float8_e4m3fn if format == "nvfp4" else torch.float8_e8m0fnu
    typed = ff.scaled_mm(at.view(torch.float4_e2m1fn_x2), given[0].view(dtype), bt.view(torch.float4_e2m1fn_x2),
                         given[1].view(dtype), swizzled=swizzled)
    assert torch.equal(typed, plain)


@pytest.mark.parametrize("shared", [False, True])
def test_batches(shared):
    rng = np.random.default_rng(7)
    a, sfa, at, sfat = operand(rng, 5, 64, 16, (3,))
    b, sfb, bt, sfbt = operand(rng, 24, 64, 16, () if shared else (3,))
    result = ff.scaled_mm(at, sfat, bt, sfbt, out_dtype=torch.float32)
    torch.testing.assert_close(result, torch.from_numpy(reference.product(a, sfa, b, sfb)), rtol=0, atol=0)
    swizzled = [torch.from_numpy(reference.swizzle(scales)) for scales in (sfa, sfb)]
    assert torch.equal(ff.scaled_mm(at, swizzled[0], bt, swizzled[1], out_dtype=torch.float32, swizzled=True), result)


def nearest_fp4(values):
    """The codes of f32 numbers, ties to even codes."""
    magnitude = np.minimum(np.abs(values), 6)
    distance = np.abs(magnitude[..., None].astype(np.float64) - reference.FP4[:8])
    least = distance.min(-1, keepdims=True)
    ties = distance == least
    even = ties & (np.arange(8) % 2 == 0)
    codes = np.where(even.any(-1), even.argmax(-1), ties.argmax(-1))
    return codes | np.signbit(values).astype(np.int64) << 3


def quantize_nvfp4(x, g):
    """NVFP4 by the formula of the language reference, in f32."""
    g = np.float32(g)
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // 16, 16).astype(np.float32)
    amax = np.abs(blocks).max(-1)
    wanted = (amax / np.float32(6)).astype(np.float32) / g
    scales = torch.from_numpy(np.minimum(wanted, 448)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    step = (reference.e4m3(scales).astype(np.float32) * g).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(step[..., None] == 0, 0, nearest_fp4(blocks / step[..., None]))
    codes = codes.reshape(x.shape).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales


@pytest.mark.parametrize("m", [0, 1, 3, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("swizzled", [False, True])
def test_quantization_to_nvfp4(m, dtype, swizzled):
    generator = torch.Generator().manual_seed(m)
    # Many distinct scales, and a block of zeros.
    x = torch.randn(m, 96, generator=generator) * torch.exp2(torch.randint(-6, 7, (m, 6), generator=generator)
                                                             .repeat_interleave(16, -1).float())
    if m:
        x[0, :16] = 0
    x = x.to(dtype)
    for g in (None, torch.tensor([0.37])):
        codes, scales, returned = ff.quantize(x, g, swizzled=swizzled)
        assert returned is g
        expected = quantize_nvfp4(x.float().numpy(), 1.0 if g is None else g.item())
        np.testing.assert_array_equal(codes.numpy(), expected[0])
        np.testing.assert_array_equal(scales.numpy(), reference.swizzle(expected[1]) if swizzled else expected[1])
    codes, scales, g = ff.quantize(x, "dynamic", swizzled=swizzled, typed=True)
    assert codes.dtype == torch.float4_e2m1fn_x2 and scales.dtype == torch.float8_e4m3fn and g.shape == (1,)
    if m:
        assert g.item() == (x.float().abs().max() / 2688).item()
        expected = quantize_nvfp4(x.float().numpy(), g.item())
        np.testing.assert_array_equal(codes.view(torch.uint8).numpy(), expected[0])


def test_quantization_to_mxfp4():
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(3)) * 5
    codes, scales, none = ff.quantize(x, format="mxfp4")
    assert none is None
    blocks = x.reshape(7, 3, 32)
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
    np.testing.assert_array_equal(scales.numpy(), exponent.numpy() + 127)
    expected = nearest_fp4((blocks / torch.exp2(exponent)[..., None]).numpy()).reshape(7, 96)
    np.testing.assert_array_equal(reference.unpack(codes.numpy()), expected)


def test_quantized_products():
    """A product with a quantized result equals the product followed by a quantization."""
    rng = np.random.default_rng(1)
    _, _, a, sfa = operand(rng, 3, 64, 16)
    _, _, b, sfb = operand(rng, 96, 64, 16)
    g = torch.tensor([0.5])
    for out_format, scale in (("nvfp4", g), ("mxfp4", None)):
        dense = ff.scaled_mm(a, sfa, b, sfb, activation="relu", out_dtype=torch.bfloat16)
        for swizzled in (False, True):
            result = ff.scaled_mm(a, sfa, b, sfb, activation="relu", out_format=out_format, out_scale=scale,
                                  out_swizzled=swizzled)
            expected = ff.quantize(dense, scale, format=out_format, swizzled=swizzled)
            assert torch.equal(result[0], expected[0]) and torch.equal(result[1], expected[1])


PROGRAM = """fir 1
func @f(%x: tensor<[M, 32], bf16>, %a: tensor<[M, 64], f4E2M1FN>, %s: tensor<[M, 4], f8E4M3FN, blocked>) {
  %y = relu %x : tensor<[M, 32], bf16> ; a comment, with -> and {
  %c, %t = block_quantize %x {block = 32, scale_rounding = floor} :
    tensor<[M, 32], f4E2M1FN>, tensor<[M, 1], f8E8M0FNU, blocked>
  %l = swizzle_scales %s : tensor<[M, 4], f8E4M3FN, linear>
  return %y, %c, %t, %l
}
"""


@pytest.mark.parametrize("m", [0, 1, 3, 130])
def test_segments(m):
    x = torch.randn(m, 32, generator=torch.Generator().manual_seed(m)).bfloat16()
    scales = np.random.default_rng(m).integers(0, 127, (m, 4), dtype=np.uint8)
    a = torch.zeros(m, 32, dtype=torch.uint8)
    y, codes, blocked, linear = ff.segment(PROGRAM, x, a, torch.from_numpy(reference.swizzle(scales)).flatten())
    assert torch.equal(y, x.relu()) and codes.shape == (m, 16) and blocked.shape == ((m + 127) // 128 * 128, 4)
    np.testing.assert_array_equal(linear.numpy(), scales)


def test_reductions_and_softmax():
    x = torch.randn(5, 7, 33, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    for axes, keep in (([0], False), ([1, 2], True), ([-1], False), ([2, 0], False), ([0, 1, 2], True)):
        assert torch.equal(ff.reduce(x, "sum", axes, keep), x.double().sum(axes, keepdim=keep).float())
        assert torch.equal(ff.reduce(x, "max", axes, keep), x.amax(axes, keepdim=keep))
        assert torch.equal(ff.reduce(x, "min", axes, keep), x.amin(axes, keepdim=keep))
        assert torch.equal(ff.reduce(x, "amax", axes, keep), x.abs().amax(axes, keepdim=keep))
        torch.testing.assert_close(ff.reduce(x, "mean", axes, keep), x.mean(axes, keepdim=keep))
    for axis in (0, 1, -1):
        torch.testing.assert_close(ff.softmax(x, axis), torch.softmax(x, axis))
        for dtype in (torch.float16, torch.bfloat16):
            expected = torch.softmax(x.to(dtype).double(), axis)
            torch.testing.assert_close(ff.softmax(x.to(dtype), axis).double(), expected, rtol=2**-8, atol=1e-4)
    for permutation in ([2, 0, 1], [0, 2, 1], [1, 0, 2], [0, 1, 2]):
        for tensor in (x, x.bfloat16(), x.to(torch.int32)):
            result = ff.copy_transpose(tensor, permutation)
            assert torch.equal(result, tensor.permute(permutation)) and result.is_contiguous()
    # A view that is not contiguous.
    assert torch.equal(ff.copy_transpose(x.transpose(0, 2)), x.permute(2, 0, 1))


def test_gradients():
    x = torch.randn(3, 5, dtype=torch.float32, requires_grad=True)
    for run, plain in (
        (lambda x: ff.softmax(x, 1), lambda x: torch.softmax(x, 1)),
        (lambda x: ff.softmax(x, 0), lambda x: torch.softmax(x, 0)),
        (lambda x: ff.reduce(x, "sum", 1), lambda x: x.sum(1)),
        (lambda x: ff.reduce(x, "mean", [0, 1], True), lambda x: x.mean((0, 1), keepdim=True)),
        (lambda x: ff.copy_transpose(x), lambda x: x.T),
    ):
        weight = torch.randn(run(x).shape)
        (found,) = torch.autograd.grad((run(x) * weight).sum(), x)
        (expected,) = torch.autograd.grad((plain(x) * weight).sum(), x)
        torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="has no gradient"):
        ff.reduce(x, "max", 1).sum().backward()
    rng = np.random.default_rng(0)
    _, _, a, sfa = operand(rng, 3, 64, 16)
    _, _, b, sfb = operand(rng, 8, 64, 16)
    bias = torch.zeros(8, requires_grad=True)
    result = ff.scaled_mm(a, sfa, b, sfb, bias=bias)
    with pytest.raises(RuntimeError, match="has no gradient: it computes with FP4 or FP8 codes"):
        result.sum().backward()


def samples():
    rng = np.random.default_rng(0)
    _, _, a, sfa = operand(rng, 3, 64, 16)
    _, _, b, sfb = operand(rng, 32, 64, 16)
    bias, alpha, g = torch.randn(32), torch.tensor([0.5]), torch.tensor([0.25])
    x = torch.randn(3, 64)
    grad = x.clone().requires_grad_()
    ops = torch.ops.fourfold
    plain = dict(out_dtype=torch.bfloat16)
    return {
        "scaled_mm": (ops.scaled_mm, (a, sfa, b, sfb, alpha, bias), plain),
        "scaled_mm_grad": (ops.scaled_mm, (a, sfa, b, sfb, None, None), dict(activation="gelu", **plain)),
        "scaled_mm_quantized": (
            ops.scaled_mm_quantized, (a, sfa, b, sfb, alpha, bias, g), dict(swizzled_out=True, **plain)
        ),
        "quantize": (ops.quantize, (x, g), {}),
        "quantize_mx": (ops.quantize, (x,), dict(format="mxfp4", swizzled=True)),
        "quantize_dynamic": (ops.quantize_dynamic, (x,), {}),
        "reduce": (ops.reduce, (grad, "sum", [1]), {}),
        "softmax": (ops.softmax, (grad, 1), {}),
        "softmax_backward": (ops.softmax_backward, (x, x.softmax(1), 1), {}),
        "copy_transpose": (ops.copy_transpose, (grad, [1, 0]), {}),
        "segment": (ops.segment, (PROGRAM, [x[:, :32].bfloat16(), a, torch.zeros(512, dtype=torch.uint8)]), {}),
    }


@pytest.mark.parametrize("name", list(samples()))
def test_opcheck(name):
    op, args, kwargs = samples()[name]
    checks = OPCHECK
    result = torch.library.opcheck(op.default, args, kwargs, test_utils=checks)
    assert result == {check: "SUCCESS" for check in checks}


def test_refusals():
    rng = np.random.default_rng(0)
    _, _, a, sfa = operand(rng, 3, 64, 16)
    _, _, b, sfb = operand(rng, 32, 64, 16)
    ops, plain = torch.ops.fourfold, dict(out_dtype=torch.bfloat16)
    for call, words in [
        (lambda: ops.scaled_mm(a, sfa, b[:, :-8].contiguous(), sfb, **plain), "expected \\[M, K/2\\]"),
        (lambda: ops.scaled_mm(a, sfa[:2], b, sfb, **plain), "elements in memory"),
        (lambda: ops.scaled_mm(a, sfa, b, sfb, swizzled_b=True, **plain), "elements in memory; expected 512"),
        (lambda: ops.scaled_mm(a, sfa, b, sfb, torch.zeros(2), **plain), "alpha must be one float32 number"),
        (lambda: ops.scaled_mm(a, sfa, b, sfb, None, torch.zeros(31), **plain), "bias"),
        (lambda: ops.scaled_mm(a, sfa, b, sfb, format="nvfp8", **plain), "format is"),
        (lambda: ops.scaled_mm(a, sfa, b, sfb, activation="tanh", **plain), "activation is"),
        (lambda: ops.scaled_mm(a, sfa, b, sfb, out_dtype=torch.int32), "out_dtype is"),
        (lambda: ops.scaled_mm(a.float(), sfa, b, sfb, **plain), "has the dtype Float32"),
        (lambda: ops.scaled_mm(a.double(), sfa, b, sfb, **plain), "dtype that Fourfold does not take"),
        (lambda: ops.scaled_mm(a[0], sfa, b, sfb, **plain), "expected 2 to 3 axes"),
        (lambda: ops.quantize(torch.zeros(3, 40)), "no multiple of the block"),
        (lambda: ops.quantize(torch.zeros(3, 64), torch.ones(1), format="mxfp4"), "no per-tensor scale"),
        (lambda: ops.quantize(torch.zeros(3, 64), format="mxfp4", rounding="up"), "rounding is"),
        (lambda: ops.reduce(torch.zeros(3), "product", [0]), "kind is"),
        (lambda: ops.reduce(torch.zeros(3), "sum", [1]), "do not fit"),
        (lambda: ops.softmax(torch.zeros(3), 5), "do not fit"),
        (lambda: ops.copy_transpose(torch.zeros(3, 2), [0]), "no permutation"),
        (lambda: ops.segment("fir 1\nfunc @f(", [a]), "syntax"),
        (lambda: ops.segment(PROGRAM, [a]), "has 3 inputs, not 1"),
    ]:
        with pytest.raises(RuntimeError, match=words) as caught:
            call()
        assert str(caught.value).startswith("fourfold::")
    with pytest.raises(ValueError, match="at least one tensor"):
        ff.segment(PROGRAM)


def test_results_are_freed():
    """Arguments belong to the op, results to the caller: neither leaks, not even on errors."""
    import gc
    import resource

    x = torch.zeros(1 << 16, 16)
    before = None
    for turn in range(60):
        ff.copy_transpose(x)
        with pytest.raises(RuntimeError):
            ff.softmax(x.clone(), 9)
        if turn == 20:
            gc.collect()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024, "about 4 MiB leak in each turn"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_with_a_dynamic_m(backend):
    rng = np.random.default_rng(0)
    _, _, b, sfb = operand(rng, 32, 64, 16)

    def layer(x):
        codes, scales, g = ff.quantize(x, "dynamic")
        return ff.scaled_mm(codes, scales, b, sfb, alpha=g, activation="relu")

    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    for m in (3, 9, 200):
        x = torch.randn(m, 64)
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("m", [1, 3, 91])
def test_bound_of_the_gradient_of_softmax(m):
    """The bound that GPU tests use for two results holds with half of it for one, in any order of sums."""
    import test_torch_gpu

    g, y = test_torch_gpu.numbers(m, 96, 1), torch.softmax(test_torch_gpu.numbers(m, 96), 1)
    bound = test_torch_gpu.softmax_backward_bound(m) / 2
    exact = y.double() * (g.double() - (g.double() * y.double()).sum(1, keepdim=True))
    total = torch.zeros(m, 1)
    for column in reversed(range(96)):
        total += (g * y)[:, column : column + 1]
    for found in (torch.ops.fourfold.softmax_backward(g, y, 1), y * (g - total)):
        assert ((found.double() - exact).abs() <= bound).all()
    assert (bound < 2**-16 * g.abs().max()).all()


def values(codes, scales, format):
    """The numbers of an MXFP8 or FP4 operand, exact in float64."""
    if not format.startswith("mxfp8"):
        return reference.dequantize(codes.numpy(), scales.numpy(), 16 if format == "nvfp4" else 32)
    dtype = torch.float8_e4m3fn if format == "mxfp8" else torch.float8_e5m2
    return codes.view(dtype).double().numpy() * np.repeat(reference.e8m0(scales.numpy()), 32, -1)


def mixed_operand(rng, rows, k, format):
    """Codes without NaN and infinities, and many scales."""
    if not format.startswith("mxfp8"):
        block = 16 if format == "nvfp4" else 32
        return [torch.from_numpy(array) for array in reference.random_operand(rng, rows, k, block)]
    first, last = (0x30, 0x48) if format == "mxfp8" else (0x38, 0x44)
    codes = rng.integers(first, last, (rows, k)) | rng.integers(0, 2, (rows, k)) << 7
    scales = rng.integers(125, 130, (rows, k // 32))
    return torch.from_numpy(codes.astype(np.uint8)), torch.from_numpy(scales.astype(np.uint8))


MIXED = [
    "bf16 x nvfp4", "f16 x nvfp4", "bf16 x mxfp4", "f16 x mxfp4", "bf16 x mxfp8", "mxfp8 x mxfp4", "mxfp8_e5m2 x mxfp4",
    "mxfp8 x mxfp8", "mxfp8_e5m2 x mxfp8_e5m2",
]


def mixed(m, n, k, format):
    """A, its scales or None, B, its scales, the name of the format, and the product, exact in float64."""
    rng, (left, right) = np.random.default_rng(m), format.split(" x ")
    b, sfb = mixed_operand(rng, n, k, right)
    if left in ("bf16", "f16"):
        dtype = torch.bfloat16 if left == "bf16" else torch.float16
        a, sfa = torch.from_numpy(rng.integers(-64, 65, (m, k)) / 16.0).to(dtype), None
        exact, name = a.double().numpy(), right
    else:
        a, sfa = mixed_operand(rng, m, k, left)
        exact, name = values(a, sfa, left), left if left == right else format
    return a, sfa, b, sfb, name, exact @ values(b, sfb, right).T


@pytest.mark.parametrize("m", [0, 1, 3, 130])
@pytest.mark.parametrize("format", MIXED)
def test_products_of_other_formats(format, m):
    a, sfa, b, sfb, name, exact = mixed(m, 72, 160, format)
    expected = torch.from_numpy(exact.astype(np.float32))
    found = ff.scaled_mm(a, sfa, b, sfb, format=name, out_dtype=torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    bias = torch.arange(72, dtype=torch.bfloat16) - 40
    swizzled = [None if scales is None else torch.from_numpy(reference.swizzle(scales.numpy())) for scales in (sfa, sfb)]
    found = ff.scaled_mm(a, swizzled[0], b, swizzled[1], format=name, swizzled=True, alpha=torch.tensor(0.125), bias=bias,
                         activation="relu")
    wanted = torch.relu(expected * 0.125 + bias.float()).bfloat16()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    if m == 3:
        assert torch.library.opcheck(
            torch.ops.fourfold.scaled_mm.default, (a, sfa, b, sfb), dict(format=name, out_dtype=torch.bfloat16),
            test_utils=OPCHECK,
        ) == dict.fromkeys(OPCHECK, "SUCCESS")
    # Typed views determine the format.
    codes = {"mxfp8": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2}
    left, right = format.split(" x ")
    scale = torch.float8_e4m3fn if right == "nvfp4" else torch.float8_e8m0fnu
    typed = (a, None) if sfa is None else (a.view(codes[left]), sfa.view(scale))
    b = b.view(codes.get(right, torch.float4_e2m1fn_x2))
    assert torch.equal(ff.scaled_mm(*typed, b, sfb.view(scale), out_dtype=torch.float32), expected)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8", "mxfp8_e5m2"])
@pytest.mark.parametrize("swizzled", [False, True])
def test_dequantization(format, swizzled):
    codes, scales = mixed_operand(np.random.default_rng(5), 7, 96, format)
    given = torch.from_numpy(reference.swizzle(scales.numpy())) if swizzled else scales
    expected = torch.from_numpy(values(codes, scales, format)).float()
    found = ff.dequantize(codes, given, format=format, swizzled=swizzled, out_dtype=torch.float32)
    assert torch.equal(found, expected)
    g = torch.tensor([0.3])
    if format == "nvfp4":
        found = ff.dequantize(codes, given, g, format=format, swizzled=swizzled)
        assert torch.equal(found, (expected.double() * g.double()).float().bfloat16())
    else:
        with pytest.raises(RuntimeError, match="no per-tensor scale"):
            ff.dequantize(codes, given, g, format=format, swizzled=swizzled)


@pytest.mark.parametrize("format", ["mxfp8", "mxfp8_e5m2"])
def test_quantization_to_mxfp8(format):
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(3)) * 5
    codes, scales, none = ff.quantize(x, format=format, typed=True)
    blocks, largest = x.reshape(7, 3, 32), 8 if format == "mxfp8" else 15
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1))) - largest
    assert none is None and torch.equal(scales.view(torch.uint8), (exponent + 127).byte())
    limit = torch.finfo(codes.dtype).max
    expected = (blocks / torch.exp2(exponent)[..., None]).clamp(-limit, limit).to(codes.dtype)
    assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8).reshape(7, 96))


def test_refusals_of_formats():
    b, sfb = mixed_operand(np.random.default_rng(0), 32, 64, "nvfp4")
    x, plain = torch.zeros(3, 64), dict(out_dtype=torch.bfloat16)
    ops = torch.ops.fourfold
    for call, words in [
        (lambda: ops.scaled_mm(x, None, b, sfb, **plain), "a has no scales and is Float32; expected float16"),
        (lambda: ops.scaled_mm(x.bfloat16()[:, :32], None, b, sfb, **plain), "expected \\[M, K\\] and \\[N, K/2\\]"),
        (lambda: ops.scaled_mm(b, sfb, b, sfb, format="mxfp8 x nvfp4", **plain), "NVFP4 multiplies NVFP4 only"),
        (lambda: ops.scaled_mm(x.bfloat16(), None, b, sfb, format="mxfp8 x mxfp4", **plain), "format is"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            call()
