"""Tests of the kernel's `process_weights_after_loading` and `apply_weights`, as vLLM calls them."""

import importlib

import numpy as np
import pytest
import torch

import emulation
import reference
import standin

DEVICES = ["cpu"]
if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
    DEVICES.append("cuda")
ROWS = [0, 1, 3, 91]
# Powers of two make the emulation's roundings of operands exact; the others do not.
EXACT, INEXACT = (2.0**-5, 2.0**-6), (0.0211, 0.0137)


@pytest.fixture(scope="module")
def kernel():
    linear = standin.install(platform=standin.Platform((9, 0)))
    importlib.import_module("fourfold_vllm").register()
    return linear.init_nvfp4_linear_kernel()


class Linear(torch.nn.Module):
    """A layer of vLLM after loading and before its kernel's processing."""

    def __init__(self, n=136, k=352, scales=EXACT, device="cpu", seed=0):
        super().__init__()
        self.codes, self.scales = reference.random_operand(np.random.default_rng(seed), n, k)
        self.globals = weight_global, input_global = [torch.tensor(scale) for scale in scales]
        self.parameter("weight", torch.from_numpy(self.codes), device)
        self.parameter("weight_scale", torch.from_numpy(self.scales).view(torch.float8_e4m3fn), device)
        self.parameter("weight_global_scale", weight_global, device)
        self.parameter("input_global_scale", input_global, device)
        self.parameter("input_global_scale_inv", 1 / input_global, device)
        self.parameter("alpha", input_global * weight_global, device)
        self.output_size_per_partition, self.input_size_per_partition = n, k

    def parameter(self, name, tensor, device):
        self.register_parameter(name, torch.nn.Parameter(tensor.clone().to(device), requires_grad=False))

    def emulated(self, dtype):
        return emulation.Layer(self.codes, self.scales, *(scale.item() for scale in self.globals), dtype)


def activations(shape, dtype=torch.bfloat16, seed=0):
    """Random numbers with block scales over several exponents, and a block of zeros."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-3, 4, (*shape[:-1], shape[-1] // 16), generator=generator)
    x = torch.randn(shape, generator=generator) * torch.exp2(exponents.repeat_interleave(16, -1).float())
    x[..., :1, 16:32] = 0
    return x.to(dtype)


def bias_of(n, dtype=torch.bfloat16):
    return (torch.randn(n, generator=torch.Generator().manual_seed(9)) * 3).to(dtype)


def ordered(x, layer):
    """The result by the language reference: exact sums, f32, alpha in f32, one rounding."""
    import fourfold.torch as ff

    codes, scales, _ = ff.quantize(x, layer.globals[1])
    alpha = (layer.globals[0] * layer.globals[1]).item()
    product = reference.product(codes.numpy(), scales.numpy(), layer.codes, layer.scales, alpha=alpha)
    return emulation.round_to(product, x.dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scales", [EXACT, INEXACT])
def test_products_are_rounded_once_and_bias_is_added_after(kernel, device, m, dtype, scales):
    layer = Linear(scales=scales, device=device)
    kernel.process_weights_after_loading(layer)
    x, bias = activations((m, 352), dtype, seed=m), bias_of(136, dtype)
    expected = ordered(x, layer)
    # A GPU sums in another order.
    allowed = 0 if device == "cpu" else 1
    for bias in (None, bias):
        y = kernel.apply_weights(layer, x.to(device), None if bias is None else bias.to(device)).cpu()
        assert y.shape == (m, 136) and y.dtype == dtype
        product = expected if bias is None else expected + bias
        assert (emulation.distance(y, product) <= allowed).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biased", [False, True])
def test_f32(kernel, device, biased):
    layer = Linear(scales=INEXACT, device=device)
    kernel.process_weights_after_loading(layer)
    x, bias = activations((91, 352), torch.float32), bias_of(136, torch.float32) if biased else None
    expected = ordered(x, layer) if bias is None else ordered(x, layer) + bias
    y = kernel.apply_weights(layer, x.to(device), None if bias is None else bias.to(device)).cpu()
    # Sums of 352 products in f32.
    assert y.dtype == torch.float32 and ((y - expected).abs() <= 2**-18 * expected.abs().amax(-1, True)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("biased", [False, True])
def test_the_emulation_of_vllm_with_exact_scales(kernel, device, m, biased):
    """Where both quantize to the same codes, equal on the CPU, and at most one bf16 ulp apart on a GPU."""
    layer = Linear(device=device)
    emulated = layer.emulated(torch.bfloat16)
    kernel.process_weights_after_loading(layer)
    x, bias = activations((m, 352), seed=m), bias_of(136) if biased else None
    same = rows_with_equal_codes(x, layer, emulated)
    assert same.sum() >= m * 0.75
    expected = emulated.apply(x.float().numpy(), bias)[same]
    y = kernel.apply_weights(layer, x.to(device), None if bias is None else bias.to(device)).cpu()[same]
    steps = emulation.distance(y, expected)
    print(f"{device}, M = {m}: {int((steps > 0).sum())} of {steps.numel()} elements differ")
    assert (steps <= (0 if device == "cpu" else 1)).all()


def rows_with_equal_codes(x, layer, emulated):
    """The rows that both quantize to the same values. Other rows have elements between two codes, within 2^-22."""
    import fourfold.torch as ff

    codes, scales, _ = ff.quantize(x, layer.globals[1])
    ours = reference.FP4[reference.unpack(codes.numpy())]
    theirs, their_scales = emulation.quantize(x.float().numpy(), emulated.inverse)
    np.testing.assert_array_equal(reference.e4m3(scales.numpy()), their_scales)
    step = emulation.expand(their_scales.astype(np.float64)) * layer.globals[1].item()
    differ = ours != theirs
    quotient = np.abs(x.double().numpy()[differ]) / step[differ]
    nearest = np.abs(quotient[:, None] / emulation.EDGES - 1).min(-1)
    assert (nearest < 2.0**-22).all()
    return ~differ.any(-1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m", ROWS)
def test_the_emulation_of_vllm_with_inexact_scales(kernel, device, m):
    """The emulation rounds scaled operands to bf16: one ulp of the row's largest element apart, and less exact."""
    layer = Linear(n=264, k=2048, scales=INEXACT, device=device)
    emulated = layer.emulated(torch.bfloat16)
    kernel.process_weights_after_loading(layer)
    x = activations((m, 2048), seed=m)
    same = rows_with_equal_codes(x, layer, emulated)
    expected, exact = emulated.apply(x.float().numpy())[same], emulated.apply_exactly(x.float().numpy())[same]
    y = kernel.apply_weights(layer, x.to(device)).cpu()[same]
    steps = emulation.distance(y, expected)
    largest = expected.abs().amax(-1, keepdim=True).double() if same.any() else torch.ones(0, 1)
    print(f"{device}, M = {m}: {int((steps > 0).sum())} of {steps.numel()} elements differ, "
          f"{int((steps > 1).sum())} by more than one ulp of their own")
    ulp = torch.exp2(torch.frexp(largest).exponent.double() - 8)
    assert ((y.double() - expected.double()).abs() <= ulp).all()
    ours, theirs = [np.abs(each.double().numpy() - exact).sum() for each in (y, expected)]
    assert ours <= theirs
    if m:
        assert ours > 0


@pytest.mark.parametrize("device", DEVICES)
def test_batches_and_views(kernel, device):
    layer = Linear(device=device)
    kernel.process_weights_after_loading(layer)
    x, bias = activations((2, 3, 352)).to(device), bias_of(136).to(device)
    flat = kernel.apply_weights(layer, x.reshape(6, 352), bias)
    y = kernel.apply_weights(layer, x, bias)
    assert y.shape == (2, 3, 136) and torch.equal(y.reshape(6, 136), flat)
    # Rows of a larger matrix are not contiguous; a vector is a row.
    wide = torch.cat([x.reshape(6, 352)] * 2, -1)[:, 352:]
    assert not wide.is_contiguous() and torch.equal(kernel.apply_weights(layer, wide, bias), flat)
    assert torch.equal(kernel.apply_weights(layer, x[0, 1], bias), flat[1])
    with torch.inference_mode():
        assert torch.equal(kernel.apply_weights(layer, x, bias).reshape(6, 136), flat)
    assert kernel.apply_weights(layer, x[:, :0], bias).shape == (2, 0, 136)
    with pytest.raises(RuntimeError, match=r"a has the shape \[6, 88\] and b \[136, 176\]"):
        kernel.apply_weights(layer, x[..., :176], None)


def test_partitions_of_a_layer(kernel):
    """Halves of N and of K, as tensor parallelism makes them, give the parts and the summands of the result."""
    whole, x = Linear(n=256, k=192), activations((5, 192))
    parts = {}
    for name, rows, columns in (("top", slice(0, 128), slice(0, 192)), ("left", slice(0, 256), slice(0, 96)),
                                ("bottom", slice(128, 256), slice(0, 192)), ("right", slice(0, 256), slice(96, 192))):
        part = Linear(n=rows.stop - rows.start, k=columns.stop - columns.start)
        part.codes = whole.codes[rows, columns.start // 2 : columns.stop // 2]
        part.scales = whole.scales[rows, columns.start // 16 : columns.stop // 16]
        part.weight.data = torch.from_numpy(part.codes)
        part.weight_scale.data = torch.from_numpy(part.scales).view(torch.float8_e4m3fn)
        kernel.process_weights_after_loading(part)
        parts[name] = kernel.apply_weights(part, x[:, columns])
    kernel.process_weights_after_loading(whole)
    y = kernel.apply_weights(whole, x)
    assert torch.equal(torch.cat([parts["top"], parts["bottom"]], -1), y)
    left, right = parts["left"].double(), parts["right"].double()
    # Each is rounded once, by at most 2^-9 of its binade.
    assert ((left + right - y.double()).abs() <= 2**-8 * (left.abs() + right.abs() + y.abs())).all()


def test_scales_are_swizzled_once_and_the_parameter_stays(kernel):
    layer = Linear(n=136, k=96)
    parameter = layer.weight_scale
    kernel.process_weights_after_loading(layer)
    assert layer.weight_scale is parameter and parameter.dtype == torch.float8_e4m3fn
    np.testing.assert_array_equal(parameter.view(torch.uint8).numpy(), reference.swizzle(layer.scales))
    with pytest.raises(ValueError, match="its weight_scale is float8_e4m3fn \\[256, 8\\]; expected .* \\[136, 6\\]"):
        kernel.process_weights_after_loading(layer)


@pytest.mark.parametrize("n, k, words", [(136, 48, "K per partition is 48, no multiple of 32"),
                                         (132, 64, "N per partition is 132, no multiple of 8"),
                                         (8, 32, None), (136, 96, None)])
def test_extents(kernel, n, k, words):
    layer = Linear(n=n, k=k)
    if words is None:
        kernel.process_weights_after_loading(layer)
        assert kernel.apply_weights(layer, activations((3, k))).shape == (3, n)
        return
    with pytest.raises(ValueError, match=words) as caught:
        kernel.process_weights_after_loading(layer)
    assert "set VLLM_DISABLED_KERNELS=FourfoldNvFp4LinearKernel" in str(caught.value)
    assert layer.weight_scale.shape == (n, k // 16)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(weight_scale=torch.zeros(64, 2).to(torch.float8_e4m3fn)), r"weight_scale is float8_e4m3fn \[64, 2\]"),
        (dict(weight_scale=torch.zeros(64, 4)), r"weight_scale is float32 \[64, 4\]"),
        (dict(weight=torch.zeros(64, 16, dtype=torch.uint8)), r"weight is uint8 \[64, 16\]; expected uint8 \[64, 32\]"),
        (dict(weight=torch.zeros(64, 32, dtype=torch.int8)), r"weight is int8 \[64, 32\]"),
        (dict(input_global_scale=None), "it has no `input_global_scale`; weight-only layers"),
        (dict(alpha=None), "it has no `alpha`"),
    ],
)
def test_layers_that_are_refused(kernel, change, words):
    layer = Linear(n=64, k=64)
    for name, tensor in change.items():
        setattr(layer, name, None if tensor is None else torch.nn.Parameter(tensor, requires_grad=False))
    with pytest.raises(ValueError, match=words):
        kernel.process_weights_after_loading(layer)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compilation_of_the_whole_graph(kernel, device, backend):
    layer = Linear(scales=INEXACT, device=device)
    kernel.process_weights_after_loading(layer)
    bias = bias_of(136).to(device)

    def run(x, bias):
        return torch.relu(kernel.apply_weights(layer, x, bias))

    torch._dynamo.reset()
    compiled = torch.compile(run, backend=backend, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for m in (5, 91, 3):
            x = activations((m, 352), seed=m).to(device)
            assert torch.equal(compiled(x, bias), run(x, bias))
    assert torch.equal(torch.compile(run, backend=backend, fullgraph=True)(x, None), run(x, None))


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a Hopper GPU")
@pytest.mark.parametrize("m", [1, 16, 91])
def test_capture_in_a_graph(kernel, m):
    layer = Linear(n=1024, k=2048, scales=INEXACT, device="cuda")
    kernel.process_weights_after_loading(layer)
    x, bias = activations((m, 2048)).cuda(), bias_of(1024).cuda()
    # vLLM runs every size on the stream of the capture, once before it.
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kernel.apply_weights(layer, x, bias)
        with torch.cuda.graph(graph, stream=stream):
            y = kernel.apply_weights(layer, x, bias)
    torch.cuda.synchronize()
    for seed in range(20):
        x.copy_(activations((m, 2048), seed=seed))
        graph.replay()
        torch.testing.assert_close(y, kernel.apply_weights(layer, x, bias), rtol=0, atol=0)
