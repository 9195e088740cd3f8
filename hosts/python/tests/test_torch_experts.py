"""Tests of expert layers, on the CPU: modules as transformers has them, and models of that library if it is installed."""

import copy
import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F

import fourfold.torch as ff
from fourfold.torch import _gates as experts_gates

E, H, INNER = 6, 64, 96
KINDS = [(None, "nvfp4"), (None, "mxfp4"), ("nvfp4", "nvfp4"), ("mxfp8", "mxfp4"), ("mxfp4", "mxfp4")]


class Mixture(torch.nn.Module):
    """Stacked weights with the attributes that transformers gives its modules of experts."""

    has_gate = True

    def __init__(self, is_concatenated=True, is_transposed=False, has_bias=False):
        super().__init__()
        self.is_concatenated, self.is_transposed, self.has_bias = is_concatenated, is_transposed, has_bias
        for name, rows, columns in (("gate_up_proj", 2 * INNER, H), ("down_proj", H, INNER)):
            # Experts of different magnitudes, so that no two have one scale.
            weight = torch.randn(E, rows, columns) * columns**-0.5 * 1.5 ** torch.arange(E)[:, None, None]
            weight = weight.transpose(1, 2).contiguous() if is_transposed else weight
            setattr(self, name, torch.nn.Parameter(weight, requires_grad=False))
            if has_bias:
                setattr(self, f"{name}_bias", torch.nn.Parameter(torch.randn(E, rows), requires_grad=False))

    def _apply_gate(self, both):
        gate, up = both.chunk(2, -1) if self.is_concatenated else (both[..., ::2], both[..., 1::2])
        return self.gate(gate, up)

    def gate(self, gate, up):
        return F.silu(gate) * up

    def forward(self, x, selected, weights):
        y = torch.zeros_like(x)
        for expert in range(E):
            token, place = torch.where(selected == expert)
            gate_up, down = (weight if self.is_transposed else weight.T
                             for weight in (self.gate_up_proj[expert], self.down_proj[expert]))
            both = x[token] @ gate_up + (self.gate_up_proj_bias[expert] if self.has_bias else 0)
            out = self._apply_gate(both) @ down + (self.down_proj_bias[expert] if self.has_bias else 0)
            y.index_add_(0, token, (out * weights[token, place, None]).to(x.dtype))
        return y


class Clamped(Mixture):
    """As in gpt-oss."""

    alpha, limit = 1.702, 7.0

    def __init__(self):
        super().__init__(is_concatenated=False, is_transposed=True, has_bias=True)

    def gate(self, gate, up):
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(gate * self.alpha) * (up + 1)


MIXTURES = {"mixtral": Mixture, "biases": lambda: Mixture(has_bias=True), "gpt-oss": Clamped}


def layers(name, activations, weights, dtype):
    """A module of experts, and the layer that replaces it."""
    torch.manual_seed(len(name))
    dense = MIXTURES[name]().to(dtype)
    model = torch.nn.ModuleDict({"experts": dense})
    assert ff.quantize_(model, activations, weights=weights) == ["experts"]
    return dense, model["experts"]


def tokens(m, k, dtype, seed=0, weights=torch.float32):
    """Tokens, the experts of each, and their weights. The last expert has no token, and expert 1 has most."""
    generator = torch.Generator().manual_seed(m * 31 + seed)
    likely = torch.tensor([1.0, 8, 1, 1, 1, 0]).expand(m, -1)
    selected = torch.multinomial(likely, k, generator=generator) if m else torch.zeros(0, k, dtype=torch.int64)
    x = torch.randn(m, H, generator=generator).to(dtype)
    return x, selected, torch.rand(m, k, generator=generator).softmax(1).to(weights)


def numbers(layer):
    """The numbers of both weights in float64, [E, N, K]. Rows of gate and up alternate."""
    found = []
    for name in ("gate_up", "down"):
        codes, scales, factors = (getattr(layer, f"{name}{end}") for end in ("", "_scale", "_global_scale"))
        options = dict(format=layer.format, swizzled=True, out_dtype=torch.float32)
        plain = torch.stack([ff.dequantize(*pair, **options) for pair in zip(codes, scales)])
        found.append(plain.double() * factors.double()[:, None, None])
    return found


def exact(dense, layer, x, selected, weights):
    """The result in float64 with the layer's weights, and the bound of a W4A16 layer.

    A layer rounds the result of the gate to the type of x, whose unit is u, and the sum of a token. An error of the first
    is multiplied with the weights of down. Everything else is in f32: K products and sums of 2^-24 each, in both
    products, functions within 4 ulp, and a few roundings. 2^-16 of all magnitudes covers them: a gate passes on at most
    (1 + |up|) of the relative error of its arguments.
    """
    unit = torch.finfo(x.dtype).eps / 2
    gate_up, down = numbers(layer)
    y, bound, wide, weights = x.double() * 0, x.double() * 0, x.double(), weights.double()
    for place in range(selected.shape[1]):
        chosen = selected[:, place]
        products = torch.einsum("mk,mnk->mn", wide, gate_up[chosen])
        sizes = torch.einsum("mk,mnk->mn", wide.abs(), gate_up[chosen].abs())
        gate, up = products[:, ::2], products[:, 1::2]
        if dense.has_bias:
            gate, up = gate + layer.gate_bias.double()[chosen], up + layer.up_bias.double()[chosen]
        hidden = dense.gate(gate, up)
        error = unit * hidden.abs() + 2.0**-16 * (1 + gate.abs()) * (1 + up.abs()) * (1 + sizes[:, ::2] + sizes[:, 1::2])
        out = torch.einsum("mk,mnk->mn", hidden, down[chosen])
        spread = torch.einsum("mk,mnk->mn", error + 2.0**-16 * hidden.abs(), down[chosen].abs())
        if dense.has_bias:
            out = out + layer.down_bias.double()[chosen]
        weight = weights[:, place, None]
        y, bound = y + weight * out, bound + weight * (spread + 2.0**-16 * out.abs())
    return y, bound + unit * (y.abs() + bound)


def case(mixture, activations, weights):
    """A call on a device, for GPU tests: the result, that of the CPU, the value in float64, and the bound of W4A16."""

    def run(m, device):
        dense, layer = layers(mixture, activations, weights, torch.bfloat16)
        given = tokens(m, 2, torch.bfloat16)
        found = layer.to(device)(*(tensor.to(device) for tensor in given))
        layer.cpu()
        return found, layer(*given), *exact(dense, layer, *given)

    return run


@pytest.mark.parametrize("m", [0, 1, 5, 37])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("name", list(MIXTURES))
def test_results_are_within_the_bound(name, weights, dtype, m):
    dense, layer = layers(name, None, weights, dtype)
    for k, of_router in ((1, torch.float32), (2, dtype)):
        given = tokens(m, k, dtype, weights=of_router)
        found = layer(*given)
        y, bound = exact(dense, layer, *given)
        assert found.dtype == dtype and found.shape == given[0].shape
        assert ((found.double() - y).abs() <= bound).all()
        # The bound is worth something: a wrong weight of one expert exceeds it.
        if m:
            assert not ((layer(*given[:2], given[2] * 1.1).double() - y).abs() <= bound).all()
            other = given[1].roll(1, 1) if k == 2 and m > 1 else (given[1] + 1) % (E - 1)
            assert not ((layer(given[0], other, given[2]).double() - y).abs() <= bound).all()


def chain(layer, x, selected, weights):
    """The result by ops of Fourfold, one after the other."""
    expert, order = torch.sort(selected.flatten(), stable=True)
    ends = torch.tensor([int((expert <= index).sum()) for index in range(E)], dtype=torch.int32)

    def product(value, codes, scales, factors, bias):
        alpha = factors if layer.format == "nvfp4" else None
        sfa, format = None, layer.format
        if layer.activations == "nvfp4":
            value, sfa, g = ff.quantize(value, "dynamic")
            alpha = factors * g
        elif layer.activations is not None:
            value, sfa, _ = ff.quantize(value, format=layer.activations)
            format = f"{layer.activations} x mxfp4"
        return ff.grouped_mm(value, sfa, codes, scales, ends, alpha=alpha, bias=bias, format=format, swizzled=True,
                             out_dtype=torch.float32)

    biases = (None, None)
    if layer.gate_bias is not None:
        biases = (torch.stack([layer.gate_bias, layer.up_bias], -1).flatten(1), layer.down_bias)
    rows = x[order // selected.shape[1]]
    both = product(rows, layer.gate_up, layer.gate_up_scale, layer.gate_up_global_scale, biases[0])
    lines = "\n  ".join(layer.gate.lines(f"[M, {INNER}]"))
    program = f"""fir 1
func @gate(%gate: tensor<[M, {INNER}], f32>, %up: tensor<[M, {INNER}], f32>) {{
  {lines}
  return %gated
}}
"""
    gated = ff.segment(program, both[:, ::2].contiguous(), both[:, 1::2].contiguous())[0].to(x.dtype)
    out = product(gated, layer.down, layer.down_scale, layer.down_global_scale, biases[1])
    weighted = torch.empty_like(out)
    weighted[order] = out * weights.flatten()[order][:, None].float()
    return ff.reduce(weighted.unflatten(0, selected.shape), "sum", 1).to(x.dtype)


@pytest.mark.parametrize("m", [0, 1, 5, 37])
@pytest.mark.parametrize(("activations", "weights"), KINDS)
@pytest.mark.parametrize("name", list(MIXTURES))
def test_results_have_the_bits_of_the_ops(name, activations, weights, m):
    for dtype in (torch.bfloat16, torch.float16) + ((torch.float32,) if activations is not None else ()):
        _, layer = layers(name, activations, weights, dtype)
        given = tokens(m, 2, dtype)
        assert torch.equal(layer(*given), chain(layer, *given))
        # Tokens of a batch, and the names that gpt-oss gives its arguments.
        batch = layer(given[0][None], router_indices=given[1], routing_weights=given[2])
        assert torch.equal(batch[0], layer(*given))


@pytest.mark.parametrize(("activations", "weights"), KINDS)
@pytest.mark.parametrize("name", list(MIXTURES))
def test_results_are_close_to_dense_experts(name, activations, weights):
    dense, layer = layers(name, activations, weights, torch.bfloat16)
    given = tokens(64, 2, torch.bfloat16)
    found, wanted = layer(*given).float(), dense(*given).float()
    assert (found - wanted).norm() < (0.2 if (activations, weights) == (None, "nvfp4") else 0.35) * wanted.norm()
    # Experts of another process have a number beyond the last, and the weight 0.
    x, selected, weight = given
    masked = layer(x, torch.where(selected == 1, E, selected), torch.where(selected == 1, 0, weight))
    if activations is None:
        assert torch.equal(masked, layer(x, selected, torch.where(selected == 1, 0, weight)))
    assert masked.isfinite().all()


@pytest.mark.parametrize(("activations", "weights"), KINDS)
@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
def test_one_graph_serves_every_number_of_tokens(name, activations, weights):
    _, layer = layers(name, activations, weights, torch.bfloat16)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for m in (5, 37, 2):
            given = tokens(m, 2, torch.bfloat16)
            assert torch.equal(compiled(*given), layer(*given))


def test_reports_have_two_kernels():
    for name, biases in (("mixtral", 0), ("gpt-oss", 3)):
        for activations, weights in KINDS:
            _, layer = layers(name, activations, weights, torch.bfloat16)
            model = torch.nn.ModuleDict({"mlp": layer, "other": torch.nn.Linear(32, 32)})
            (found,) = ff.report(model, target="sm_90a")
            assert found["name"] == "mlp" and found["fallback"] == []
            assert found["activations"] == {None: "W4A16", "mxfp8": "W4A8"}.get(activations, "W4A4")
            first, second = found["kernels"]
            assert "grouped" in first and "pair" in first and "grouped" in second, "gate, up and their function are one"
            device = [segment.split()[0] for segment in found["device"]]
            assert device.count("move") == 3 + biases, "rows, weights and tokens are gathered, and biases"
            assert device.count("block_quantize") == (0 if activations is None else 2)
            assert device.count("column") == (3 if activations == "nvfp4" else 1), "the sum, and amax for each scale"
    (found,) = ff.report(model, target="cpu")
    assert found["kernels"] == [] and len(found["fallback"]) > 10
    assert all("n" in entry for entry in ff.report())


def test_layers_are_converted_and_saved():
    dense, layer = layers("gpt-oss", None, "nvfp4", torch.bfloat16)
    given = tokens(9, 2, torch.bfloat16)
    expected, factors = layer(*given), layer.down_global_scale.clone()
    _, other = layers("gpt-oss", "nvfp4", "nvfp4", torch.bfloat16)
    for buffer in other.buffers():
        buffer.zero_() if buffer is not other.expert_ids else None
    other.load_state_dict(layer.state_dict())
    assert not torch.equal(other(*given), expected)
    other.activations = None
    assert torch.equal(other(*given), expected)
    layer.half()
    assert torch.equal(layer.down_global_scale, factors) and layer.gate_bias.dtype == torch.float16
    y, bound = exact(dense, layer, *tokens(9, 2, torch.float16))
    assert ((layer(*tokens(9, 2, torch.float16)).double() - y).abs() <= bound).all()
    assert "gate=Gate(activation=None, slope=1.702, limit=7.0, shift=1.0)" in repr(layer)
    with pytest.raises(ValueError, match="expected None, 'nvfp4' for experts in nvfp4"):
        layer.activations = "mxfp8"
    with pytest.raises(TypeError, match="convert the model to bfloat16 or float16"):
        layer(*tokens(3, 2, torch.float32))
    with pytest.raises(RuntimeError, match="has no gradient"):
        layer(given[0].half().requires_grad_(), *given[1:]).sum().backward()


class Odd(Mixture):
    def gate(self, gate, up):
        return torch.tanh(gate) * up


class Weighted(Mixture):
    """The gate has a factor of each column."""

    def __init__(self):
        super().__init__()
        self.register_buffer("columns", torch.rand(INNER))

    def gate(self, gate, up):
        return F.silu(gate) * up * self.columns


class Late(Mixture):
    """Clamps behind the function, which no gate does."""

    limit = 2.0

    def gate(self, gate, up):
        return F.silu(gate).clamp(max=self.limit) * up.clamp(-self.limit, self.limit)


def test_other_modules_stay():
    def without(name):
        module = Mixture()
        setattr(module, name, False)
        return module

    hooked, narrow = Mixture(), Mixture()
    hooked.register_forward_hook(lambda *_: None)
    narrow.down_proj = torch.nn.Parameter(torch.randn(E, H, 24))
    for module in (Odd(), Late(), Weighted(), without("has_gate"), hooked, narrow):
        model = torch.nn.ModuleDict({"experts": module, "dense": torch.nn.Linear(32, 32)})
        assert ff.quantize_(model, None) == ["dense"] and model["experts"] is module
    for activations in ("by_m", {64: None, math.inf: "nvfp4"}):
        model = torch.nn.ModuleDict({"experts": Mixture()})
        assert ff.quantize_(model, activations) == []
    assert ff.quantize_(model, filter=lambda module, name: name != "experts") == []
    assert ff.quantize_(model) == ["experts"] and model["experts"].activations == "nvfp4"


@pytest.mark.parametrize("name", [*experts_gates.ACTIVATIONS])
def test_gates_are_found(name):
    for limit in (None, 3.0):
        module = Mixture()
        module.limit = limit
        gate = experts_gates.Gate(activation=name, limit=limit)
        module.gate = gate
        assert experts_gates.find_gate(module, True) == gate


def dequantize_in_place(dense, layer):
    """Gives a module of experts the numbers of the layer that replaces it."""
    gate_up, down = numbers(layer)
    if dense.is_concatenated:
        gate_up = torch.cat([gate_up[:, ::2], gate_up[:, 1::2]], 1)
    for name, weight in (("gate_up_proj", gate_up), ("down_proj", down)):
        weight = weight.transpose(1, 2) if dense.is_transposed else weight
        getattr(dense, name).data.copy_(weight)


def transformers_model(name):
    transformers = pytest.importorskip("transformers")
    common = dict(
        hidden_size=H, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=101,
        max_position_embeddings=64, num_experts_per_tok=2,
    )
    if name == "mixtral":
        config = transformers.MixtralConfig(intermediate_size=INNER, num_local_experts=E, **common)
    elif name == "qwen3_moe":
        common["num_experts_per_tok"] = 3
        config = transformers.Qwen3MoeConfig(moe_intermediate_size=INNER, num_experts=8, norm_topk_prob=True, **common)
    else:
        config = transformers.GptOssConfig(intermediate_size=INNER, num_local_experts=4, **common)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    return model.bfloat16().eval().requires_grad_(False)


MODELS = ("mixtral", "qwen3_moe", "gpt_oss")


def is_of_experts(module, name):
    return name.endswith(".experts")


@pytest.mark.parametrize(("activations", "weights"), KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(name, activations, weights):
    dense = transformers_model(name)
    model = copy.deepcopy(dense)
    names = ff.quantize_(model, activations, weights=weights, filter=is_of_experts)
    assert names == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]
    calls = {}
    for path in names:
        module = dense.get_submodule(path)
        dequantize_in_place(module, model.get_submodule(path))
        module.register_forward_hook(lambda module, given, y: calls.setdefault(module, []).append((given, y)))
    for m in (1, 7, 33):
        ids = torch.randint(0, 101, (1, m), generator=torch.Generator().manual_seed(m))
        with torch.no_grad():
            wanted, found = dense(ids).logits.double(), model(ids).logits.double()
        assert found.isfinite().all()
        if activations is None and m == 7:
            # The bound of the model, which holds as no token has another expert: 16 roundings to bf16 in a layer.
            assert (found - wanted).norm() < 2 * 16 * 2.0**-9 * wanted.norm()
    for path in names:
        layer, module = model.get_submodule(path), dense.get_submodule(path)
        for given, _ in calls[module]:
            # The same call in float64, by the code of transformers.
            wide = copy.deepcopy(module).double()
            dequantize_in_place(wide, layer)
            wide._forward_hooks.clear()
            y, found = wide(given[0].double(), given[1], given[2].double()), layer(*given).double()
            if activations is None:
                wide.gate = lambda gate, up: layer.gate(gate, up)
                _, bound = exact(wide, layer, *given)
                assert ((found - y).abs() <= bound).all()
            else:
                limit = 0.1 if activations == "mxfp8" else 0.3
                assert (found - y).norm() < limit * y.norm()


@pytest.mark.parametrize("name", MODELS)
def test_compiled_models_of_transformers(name):
    model = transformers_model(name)
    assert len(ff.quantize_(model, None, filter=is_of_experts)) == 2
    torch._dynamo.reset()
    compiled = torch.compile(model.model, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for m in (7, 12):
            ids = torch.randint(0, 101, (1, m), generator=torch.Generator().manual_seed(m))
            options = dict(use_cache=False)
            found = compiled(ids, **options).last_hidden_state
            assert torch.equal(found, model.model(ids, **options).last_hidden_state)
