"""Tests of `quantize_` and of the contest example."""

import pathlib
import runpy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F

import fourfold.torch as ff
import fourfold.torch.linear


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.odd = torch.nn.Linear(64, 72), torch.nn.Linear(72, 24)
        self.inner = torch.nn.Sequential(torch.nn.Linear(64, 40, bias=False))

    def forward(self, x):
        return self.inner(x), self.odd(F.relu(self.up(x)))


def dense(layer):
    """The values of a layer's weight, from the op that dequantizes them."""
    scale = layer.weight_global_scale if layer.format == "nvfp4" else None
    return ff.dequantize(
        layer.weight, layer.weight_scale, scale, format=layer.format, swizzled=True, out_dtype=torch.float32
    )


KINDS = [("nvfp4", None), (None, None), (None, "mxfp4"), ("mxfp8", None), ("mxfp4", None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("activations", "weights"), KINDS)
def test_dense_models(activations, weights, dtype):
    torch.manual_seed(0)
    model, x = Mlp().to(dtype), torch.randn(2, 3, 64).to(dtype)
    before = [parameter.clone() for parameter in (model.up.weight, model.inner[0].weight)]
    expected = model(x)
    assert ff.quantize_(model, activations, weights=weights) == ["up", "inner.0"], "K = 72 is no multiple of 16"
    assert type(model.odd) is torch.nn.Linear
    for layer, weight in zip((model.up, model.inner[0]), before):
        assert layer.activations == activations
        assert (dense(layer) - weight).abs().max() < weight.abs().max() / (6 if layer.format == "nvfp4" else 3)
        a = x.double()
        if activations == "mxfp8":
            codes, scales, _ = ff.quantize(x, format="mxfp8")
            a = ff.dequantize(codes, scales, format="mxfp8", out_dtype=torch.float32).double()
        if activations in (None, "mxfp8"):
            y = a @ dense(layer).double().T
            y = y if layer.bias is None else y + layer.bias.double()
            half_ulp = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
            torch.testing.assert_close(layer(x).double(), y, rtol=half_ulp, atol=1e-6)
    limit = 0.4 if activations == "mxfp4" else 0.25
    for found, wanted in zip(model(x), expected):
        assert found.shape == wanted.shape and (found - wanted).norm() < limit * wanted.norm()
    for m in (0, 1, 200):
        assert model(torch.randn(m, 64).to(dtype))[0].shape == (m, 40)


@pytest.mark.parametrize(("weights", "names"), [("nvfp4", ("nvfp4", None)), ("mxfp4", ("mxfp8", "mxfp4", None))])
def test_activations_share_a_weight(weights, names):
    torch.manual_seed(1)
    x = torch.randn(3, 64).bfloat16()
    models = [torch.nn.Sequential(torch.nn.Linear(64, 40)).bfloat16() for _ in names]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    for model, name in zip(models, names):
        ff.quantize_(model, name, weights=weights)
    for model, name in zip(models, names):
        assert torch.equal(model[0].weight, models[0][0].weight)
        assert torch.equal(model[0].weight_scale, models[0][0].weight_scale)
        expected = model(x)
        models[0][0].activations = name
        assert torch.equal(models[0](x), expected)
    with pytest.raises(ValueError, match=f"for a weight in {weights}"):
        models[0][0].activations = "mxfp8" if weights == "nvfp4" else "nvfp4"


def test_refused_activations():
    model = torch.nn.Sequential(torch.nn.Linear(64, 40))
    for arguments, words in [
        (dict(activations="w8a8"), "expected \"nvfp4\", \"mxfp8\""),
        (dict(activations="mxfp8", weights="nvfp4"), "expected 'nvfp4', None, 'by_m' for a weight in nvfp4"),
        (dict(weights="mxfp4"), "need activations"),
    ]:
        with pytest.raises(ValueError, match=words):
            ff.quantize_(model, **arguments)
    assert type(model[0]) is torch.nn.Linear


def test_models_of_layers_that_have_rules_of_their_own():
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    x = torch.randn(2, 5, 64)
    with torch.no_grad():
        dense = layer(x)
        assert ff.quantize_(layer) == ["linear1", "linear2"]
        assert not layer.linear1.training
        error = (layer(x) - dense).norm() / dense.norm()
    assert 0 < error < 0.2

    shared = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU())
    shared.append(shared[0])
    assert ff.quantize_(shared) == ["0", "2"] and shared[0] is shared[2]

    hooked = torch.nn.Sequential(torch.nn.Linear(32, 32))
    hooked[0].register_forward_hook(lambda *_: None)
    assert ff.quantize_(hooked) == []


@pytest.mark.parametrize("activations", ["nvfp4", None])
def test_conversion_keeps_the_scale(activations):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48))
    with torch.no_grad():
        model[0].weight *= 1e-3
        x = torch.randn(3, 64)
        dense = torch.nn.functional.linear(x, model[0].weight, model[0].bias)
        ff.quantize_(model, activations)
        scale = model[0].weight_global_scale.clone()
        model.to(torch.bfloat16)
        assert model[0].weight_global_scale.dtype == torch.float32
        assert torch.equal(model[0].weight_global_scale, scale)
        assert (model(x.bfloat16()).float() - dense).norm() / dense.norm() < 0.2


def test_layers_refuse_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 16))
    ff.quantize_(model, filter=lambda module, name: name == "1")
    with pytest.raises(RuntimeError, match="has no gradient"):
        model(torch.randn(3, 32)).sum().backward()


def test_torchao_models(monkeypatch):
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats import inference_workflow as workflow
    from torchao.quantization import quantize_

    monkeypatch.setattr(workflow, "is_sm_at_least_100", lambda: True)
    torch.manual_seed(0)
    for config, activations in (
        (workflow.NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=False), "nvfp4"),
        (workflow.NVFP4WeightOnlyConfig(), None),
    ):
        model = torch.nn.Sequential(torch.nn.Linear(64, 128)).bfloat16()
        quantize_(model, config)
        weight = model[0].weight.dequantize(torch.float32)
        assert ff.quantize_(model) == ["0"] and model[0].activations == activations
        # torchao multiplies in another order, with one more rounding.
        torch.testing.assert_close(dense(model[0]), weight, rtol=2**-22, atol=0)
        x = torch.randn(5, 64).bfloat16()
        close = x.float() @ weight.T + model[0].bias.float()
        assert (model(x).float() - close).norm() < (0.2 if activations == "nvfp4" else 0.005) * close.norm()


def test_calibrated_torchao_models():
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats import inference_workflow as workflow
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization import quantize_

    config = workflow.NVFP4DynamicActivationNVFP4WeightConfig
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32)).bfloat16()
    x = torch.randn(5, 64).bfloat16()
    quantize_(model, config(use_triton_kernel=False, step="prepare"))
    model(x)
    quantize_(model, config(use_triton_kernel=False, step="convert"))
    weight = model[0].weight
    assert ff.quantize_(model) == ["0", "2"]
    layer = model[0]
    assert layer.activations == "nvfp4" and layer.input_scale.item() == weight.act_per_tensor_scale.item()
    assert layer.alpha.item() == (layer.input_scale * layer.weight_global_scale).item()
    # Values above those of calibration are clamped.
    for x in (x, 3 * x):
        a = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=weight.act_per_tensor_scale).dequantize(torch.float32)
        exact = a.double() @ weight.dequantize(torch.float32).double().T + layer.bias.double()
        torch.testing.assert_close(layer(x).double(), exact, rtol=2**-8, atol=2**-10)
    model.half()
    assert layer.alpha.dtype == layer.input_scale.dtype == torch.float32

    state = model.state_dict()
    state["0.input_scale"] = torch.tensor([0.5])
    model.load_state_dict(state)
    assert layer.alpha.item() == (0.5 * layer.weight_global_scale).item()


def test_siblings_share_a_scale():
    layers = torch.nn.Module()
    for name, scale in (("q", 0.5), ("k", 0.5), ("o", 0.25)):
        codes, scales = torch.zeros(16, 16, dtype=torch.uint8), torch.zeros(128, 4, dtype=torch.uint8)
        layer = ff.linear.Linear(codes, scales, torch.ones(1), None, "nvfp4", torch.tensor([scale]))
        setattr(layers, name, layer)
        ff.linear._share_input_scale(layers, layer)
    assert layers.q.input_scale is layers.k.input_scale is not layers.o.input_scale
    layers.k.load_state_dict(layers.o.state_dict())
    assert (layers.q.input_scale.item(), layers.k.input_scale.item()) == (0.5, 0.25)


def test_contest_example(capsys):
    path = pathlib.Path(__file__).resolve().parents[1] / "examples/contest/submission.py"
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "M=128 N=256 K=256 L=1: 0 of 32768 differ",
        "M=128 N=128 K=512 L=3: 0 of 49152 differ",
        "M=384 N=256 K=192 L=2: 0 of 196608 differ",
    ]
