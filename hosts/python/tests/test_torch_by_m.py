"""Tests of layers that choose the format of activations by the number of rows, on the CPU."""

import math

import pytest

torch = pytest.importorskip("torch")

import fourfold.torch as ff
from fourfold.torch.linear import Linear
from test_torch_groups import K, siblings


def layers(dtype, bias, static, activations):
    """Layers of one weight: W4A16, W4A4, and one that chooses."""
    torch.manual_seed(3)
    codes, scales, scale = ff.quantize(torch.randn(72, 96), "dynamic", swizzled=True)
    bias = torch.randn(72).to(dtype) if bias else None
    input_scale = torch.tensor([0.002]) if static else "dynamic"
    return [Linear(codes, scales, scale, bias, form, input_scale) for form in (None, "nvfp4", activations)]


def calls():
    return {(it["n"], it["k"], it["up_to"], it["activations"]): it["calls"] for it in ff.report()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bias", "static"), [(True, True), (True, False), (False, True)])
def test_each_choice_has_the_bits_of_its_form(dtype, bias, static):
    dense, quantized, both = layers(dtype, bias, static, {16: None, 64: "nvfp4", math.inf: None})
    assert both.weight.data_ptr() == dense.weight.data_ptr() == quantized.weight.data_ptr()
    before = calls()
    with torch.no_grad():
        for m in (0, 1, 16, 17, 64, 65, 130):
            x = torch.randn(m, 96).to(dtype)
            expected, other = (quantized, dense) if 16 < m <= 64 else (dense, quantized)
            found = both(x)
            assert found.dtype == dtype and torch.equal(found, expected(x)), m
            assert m == 0 or not torch.equal(found, other(x)), m
        assert both(torch.randn(2, 9, 96).to(dtype)).shape == (2, 9, 72)
        x = torch.randn(5, 96)
        assert torch.equal(both(x), quantized(x)), "float32 is quantized"
    made = {key: count - before.get(key, 0) for key, count in calls().items() if count != before.get(key, 0)}
    assert made == {(72, 96, 16, "W4A16"): 3, (72, 96, 64, "W4A4"): 3, (72, 96, None, "W4A16"): 2}


@pytest.mark.parametrize("is_compiled", [False, True])
def test_members_of_a_group_choose(is_compiled):
    model, alone = siblings(bias=True), siblings(bias=True)
    assert model.q.group is not None
    for layer in model.layers():
        layer.activations = {16: None, math.inf: "nvfp4"}
    torch._dynamo.reset()
    call = torch.compile(model, fullgraph=True, dynamic=True) if is_compiled else model
    with torch.no_grad():
        for m in (16, 17):
            x = torch.randn(m, K).bfloat16()
            for layer in alone.layers():
                layer.activations = None if m == 16 else "nvfp4"
            for found, expected in zip(call(x), alone(x), strict=True):
                assert torch.equal(found, expected), m
        assert model.q.group is not None
        # A scale of each call instead of the group's.
        model.k.is_dynamic = alone.k.is_dynamic = True
        assert torch.equal(model.k(x), alone.k(x))


def test_models_choose_without_another_graph():
    """One compiled graph with a dynamic M serves every choice."""
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32)).bfloat16()
    assert ff.quantize_(model, {64: "nvfp4", math.inf: None}) == ["0", "2"]
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for m in (7, 64, 65, 300):
            x = torch.randn(m, 64).bfloat16()
            found = compiled(x)
            assert torch.equal(found, model(x))
            for layer in (model[0], model[2]):
                layer.activations = "nvfp4" if m <= 64 else None
            assert torch.equal(found, model(x))
            for layer in (model[0], model[2]):
                layer.activations = {64: "nvfp4", math.inf: None}
    assert len(graphs) == 1
    targets = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.fourfold.scaled_mm_by_m) + targets.count(
        torch.ops.fourfold.scaled_mm_by_m.default
    ) == 2


def test_inductor_compiles_a_choice():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48)).bfloat16()
    assert ff.quantize_(model, {16: None, math.inf: "nvfp4"}) == ["0"]
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for m in (9, 40):
            x = torch.randn(m, 64).bfloat16()
            assert torch.equal(compiled(x), model(x))


def test_the_measured_choice_of_the_cpu_is_w4a16():
    dense, _, both = layers(torch.bfloat16, False, False, "by_m")
    with torch.no_grad():
        for m in (1, 200):
            x = torch.randn(m, 96).bfloat16()
            assert torch.equal(both(x), dense(x))
    model = torch.nn.Sequential(torch.nn.Linear(32, 16))
    assert ff.quantize_(model, "by_m") == ["0"] and model[0].activations == "by_m"
    assert "activations=by_m" in repr(model[0])


@pytest.mark.parametrize(
    "activations",
    [{}, {64: None}, {64: None, 16: "nvfp4", math.inf: None}, {-1: None, math.inf: "nvfp4"}, {math.inf: "mxfp8"},
     {1.5: None, math.inf: "nvfp4"}],
)
def test_wrong_choices_are_refused(activations):
    model = torch.nn.Sequential(torch.nn.Linear(32, 16))
    with pytest.raises(ValueError, match="the largest M of each choice"):
        ff.quantize_(model, activations)
    assert type(model[0]) is torch.nn.Linear


def test_wrong_operands_are_refused():
    _, _, layer = layers(torch.bfloat16, False, False, "by_m")
    op, x = torch.ops.fourfold.scaled_mm_by_m, torch.randn(3, 96).bfloat16()
    weight = (layer.weight, layer.weight_scale, layer.weight_global_scale)
    for arguments, options, message in (
        ((x.float(), *weight), {}, "float16 or bfloat16"),
        ((x[:, :80], *weight), {}, "expected"),
        ((x, *weight), dict(first="W4A8"), "first is"),
        ((x, *weight), dict(first="W4A4", ends=[9, 9]), "do not ascend"),
        ((x, *weight), dict(first="measured", ends=[9]), "first is"),
        ((x, *weight, torch.ones(1)), {}, "given together"),
    ):
        with pytest.raises(RuntimeError, match=message):
            op(*arguments, **options, out_dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="no gradient"):
        op(x.requires_grad_(), *weight, out_dtype=torch.bfloat16).sum().backward()
