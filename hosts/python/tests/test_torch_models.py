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
    n, k = layer.out_features, layer.in_features
    program = f"""fir 1
func @f(%w: tensor<[{n}, {k}], f4E2M1FN>, %s: tensor<[{n}, {k // 16}], f8E4M3FN, blocked>, %g: tensor<[1], f32>) {{
  %l = swizzle_scales %s : tensor<[{n}, {k // 16}], f8E4M3FN, linear>
  %d = block_dequantize %w, %l, %g {{block = 16}} : tensor<[{n}, {k}], f32>
  return %d
}}
"""
    return ff.segment(program, layer.weight, layer.weight_scale, layer.weight_global_scale)[0]


@pytest.mark.parametrize("mode", ["w4a4", "w4a16"])
def test_dense_models(mode):
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(2, 3, 64)
    before = [parameter.clone() for parameter in (model.up.weight, model.inner[0].weight)]
    expected = model(x)
    assert ff.quantize_(model, mode) == ["up", "inner.0"], "K = 72 is no multiple of 16"
    assert type(model.odd) is torch.nn.Linear
    for layer, weight in zip((model.up, model.inner[0]), before):
        assert (dense(layer) - weight).abs().max() < weight.abs().max() / 6
        if mode == "w4a16":
            y = x.double() @ dense(layer).double().T
            y = y if layer.bias is None else y + layer.bias.double()
            torch.testing.assert_close(layer(x), y.float(), rtol=1e-6, atol=1e-6)
    for found, wanted in zip(model(x), expected):
        assert found.shape == wanted.shape and (found - wanted).norm() < 0.25 * wanted.norm()
    for m in (0, 1, 200):
        assert model(torch.randn(m, 64))[0].shape == (m, 40)
    with pytest.raises(ValueError, match="w4a4"):
        ff.quantize_(model, "w8a8")


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


@pytest.mark.parametrize("mode", ["w4a4", "w4a16"])
def test_conversion_keeps_the_scale(mode):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48))
    with torch.no_grad():
        model[0].weight *= 1e-3
        x = torch.randn(3, 64)
        dense = torch.nn.functional.linear(x, model[0].weight, model[0].bias)
        ff.quantize_(model, mode)
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
    for config, mode in (
        (workflow.NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=False), "w4a4"),
        (workflow.NVFP4WeightOnlyConfig(), "w4a16"),
    ):
        model = torch.nn.Sequential(torch.nn.Linear(64, 128)).bfloat16()
        quantize_(model, config)
        weight = model[0].weight.dequantize(torch.float32)
        assert ff.quantize_(model) == ["0"] and model[0].mode == mode
        # torchao multiplies in another order, with one more rounding.
        torch.testing.assert_close(dense(model[0]), weight, rtol=2**-22, atol=0)
        x = torch.randn(5, 64).bfloat16()
        close = x.float() @ weight.T + model[0].bias.float()
        assert (model(x).float() - close).norm() < (0.2 if mode == "w4a4" else 0.005) * close.norm()


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
    assert layer.mode == "w4a4" and layer.input_scale.item() == weight.act_per_tensor_scale.item()
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
        layer = ff.linear.Linear(codes, scales, torch.ones(1), None, "w4a4", torch.tensor([scale]))
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
