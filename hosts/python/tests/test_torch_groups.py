"""Tests of groups of sibling layers, whose products a compiled model computes at once."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F

import fourfold.torch as ff
import fourfold.torch.linear
from fourfold.torch._group import group_siblings

K = 64
SIZES = {"q": 256, "k": 128, "v": 128}


class Siblings(torch.nn.Module):
    """Layers with one input.

    `forward` mirrors the columns of their results, because products that a model returns are not merged.
    """

    def __init__(self, sizes=SIZES, bias=False):
        super().__init__()
        self.names = list(sizes)
        for place, (name, n) in enumerate(sizes.items()):
            layer = torch.nn.Linear(K, n, bias=bias)
            # Weights of different magnitudes, so that no two layers have one alpha.
            layer.weight.data *= 1.7**place
            setattr(self, name, layer)

    def forward(self, x):
        return [y.flip(-1) for y in self.products(x)]

    def products(self, x):
        return [getattr(self, name)(x) for name in self.names]

    def layers(self):
        return [getattr(self, name) for name in self.names if hasattr(self, name)]


def calibrate(model):
    """Quantizes a model with one static scale of activations, as torchao's calibration would find."""
    ff.quantize_(model)
    scale = torch.tensor([0.0013])
    for layer in model.layers():
        layer.is_dynamic, layer.input_scale = False, scale
        layer.alpha = scale * layer.weight_global_scale
    return model


def siblings(sizes=SIZES, bias=False, dtype=torch.bfloat16, group=True):
    torch.manual_seed(0)
    model = calibrate(Siblings(sizes, bias).to(dtype).requires_grad_(False))
    if group:
        group_siblings(model.layers())
    return model


def numbers(*shape, seed=1, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def compiled(model, *inputs, dynamic=False, many_rows=None):
    """The results of a compiled model, and the names of the launches that the pass planned."""
    own = ff.inductor_pass(target="sm_90a")
    own.many_rows = many_rows
    torch._dynamo.reset()
    with torch._inductor.config.patch({"post_grad_custom_pre_pass": own, "force_disable_caches": True}):
        call = torch.compile(model, fullgraph=True, dynamic=dynamic)
        results = call(*inputs)
    return results, [plan.segments[-1].name.split(" ", 1) for _, plan in own.planned], call


def products(launches):
    return [rest for kind, *rest in launches if kind == "nvfp4"]


def assert_equal(found, expected):
    for result, wanted in zip(found, expected, strict=True):
        assert result.dtype == wanted.dtype and torch.equal(result, wanted)
        assert result.stride() == wanted.stride()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_alpha_of_columns(has_bias, out):
    rows, n = 5, 48
    codes, scales, _ = ff.quantize(numbers(rows, K), None, swizzled=True)
    b, sfb, _ = ff.quantize(numbers(n, K, seed=2), None, swizzled=True)
    alphas = torch.rand(n, generator=torch.Generator().manual_seed(3)) + 0.5
    options = dict(bias=numbers(n, seed=4) if has_bias else None, out_dtype=out, swizzled=True)
    found = ff.scaled_mm(codes, scales, b, sfb, alpha=alphas, **options)
    for column in range(n):
        wanted = ff.scaled_mm(codes, scales, b, sfb, alpha=alphas[column], **options)
        assert torch.equal(found[:, column], wanted[:, column])
    with pytest.raises(RuntimeError, match="alpha must be one float32 number"):
        ff.scaled_mm(codes, scales, b, sfb, alpha=alphas[:-1], **options)
    with pytest.raises(RuntimeError, match="alpha must be one float32 number"):
        ff.scaled_mm(codes, scales, b, sfb, alpha=alphas.half(), **options)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (2, 3), (91,), (600,)])
def test_siblings_are_one_product(shape, has_bias):
    model, alone = siblings(bias=has_bias), siblings(bias=has_bias, group=False)
    assert len({layer.alpha[0].item() for layer in model.layers()}) == 3
    x = numbers(*shape, K)
    expected = alone(x)
    assert_equal(model(x), expected)
    found, launches, _ = compiled(model, x)
    assert_equal(found, expected)
    assert products(launches) == [["row=f32 row=bf16 d=bf16" if has_bias else "row=f32 d=bf16"]]
    assert len(launches) == 2, "one quantization and one product"
    found, launches, _ = compiled(alone, x)
    assert_equal(found, expected)
    assert len(products(launches)) == 3


def test_siblings_without_the_pass_and_with_symbolic_rows():
    model = siblings(bias=True)
    torch._dynamo.reset()
    x = numbers(7, K)
    assert_equal(torch.compile(model, fullgraph=True)(x), model(x))
    found, launches, call = compiled(model, x, dynamic=True)
    assert_equal(found, model(x))
    assert len(products(launches)) == 1
    x = numbers(130, K)
    assert_equal(call(x), model(x))


def test_columns_are_views():
    """No kernel copies the columns that attention takes."""
    from torch._inductor.utils import run_and_get_code

    class Attention(Siblings):
        def forward(self, x):
            q, k, v = (y.view(1, -1, y.shape[-1] // 64, 64).transpose(1, 2) for y in self.products(x))
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    torch.manual_seed(0)
    model, x = calibrate(Attention().bfloat16().requires_grad_(False)), numbers(91, K)
    expected = model(x)
    own = ff.inductor_pass(target="sm_90a")
    kernels = []
    for group in (False, True):
        if group:
            group_siblings(model.layers())
        torch._dynamo.reset()
        with torch._inductor.config.patch({"post_grad_custom_pre_pass": own, "force_disable_caches": True}):
            found, code = run_and_get_code(torch.compile(model, fullgraph=True, dynamic=False), x)
        assert torch.equal(found, expected)
        kernels.append("\n".join(code).count("cpp_fused"))
    assert kernels[1] <= kernels[0]
    assert len(own.planned) == 4 + 2


class Gated(Siblings):
    def forward(self, x):
        gate, up = self.products(x)
        return self.down(F.silu(gate) * up)

    def layers(self):
        return [*super().layers(), self.down]


@pytest.mark.parametrize("rows, is_epilogue", [(3, False), (600, False), (600, True)])
def test_products_with_other_kernels_behind_them_stay(rows, is_epilogue):
    """A kernel that quantizes, or an epilogue, would need a copy of the columns."""
    torch.manual_seed(0)
    model = Gated({"gate": 256, "up": 256})
    model.down = torch.nn.Linear(256, 128, bias=False)
    model = calibrate(model.bfloat16().requires_grad_(False))
    model.down.input_scale = torch.tensor([0.001])
    model.down.alpha = model.down.input_scale * model.down.weight_global_scale
    x = numbers(rows, K)
    expected = model(x)
    group_siblings(model.layers())
    assert model.gate.group is model.up.group is not None and model.down.group is None
    found, launches, _ = compiled(model, x, many_rows=600 if is_epilogue else 601)
    assert torch.equal(found, expected)
    kinds = [kind for kind, *_ in launches]
    # For many rows, the gate's kernel has the elementwise ops.
    second = "block_quantize" if is_epilogue else "row"
    assert sorted(kinds) == sorted(["block_quantize", second, "nvfp4", "nvfp4", "nvfp4"])
    assert sum("matrix" in rest for (rest,) in products(launches)) == is_epilogue


def test_neighbours_of_an_epilogue():
    class Mixed(Siblings):
        def forward(self, x):
            q, k, v = self.products(x)
            return F.relu(q), k.flip(-1), v.flip(-1)

    torch.manual_seed(0)
    model, x = calibrate(Mixed().bfloat16().requires_grad_(False)), numbers(5, K)
    expected = model(x)
    group_siblings(model.layers())
    found, launches, _ = compiled(model, x)
    assert_equal(found, expected)
    assert len(products(launches)) == 2, "q with relu, and k with v"

    class Outer(Mixed):
        def forward(self, x):
            return self.q(x).flip(-1), self.v(x).flip(-1)

    model.__class__ = Outer
    found, launches, _ = compiled(model, x)
    assert_equal(found, [model.q(x).flip(-1), expected[2]])
    assert len(products(launches)) == 2, "k is between them"


def test_different_inputs_stay_apart():
    class Two(Siblings):
        def forward(self, x, y):
            return self.q(x).flip(-1), self.k(y).flip(-1), self.v(y).flip(-1)

    torch.manual_seed(0)
    model = calibrate(Two().bfloat16().requires_grad_(False))
    group_siblings(model.layers())
    x, y = numbers(5, K), numbers(5, K, seed=6)
    found, launches, _ = compiled(model, x, y)
    assert_equal(found, model(x, y))
    assert len(products(launches)) == 2 and len(launches) == 4


@pytest.mark.parametrize("is_joint, columns, rows", [(True, 4, 128), (False, 8, 64)])
def test_scales_of_slices(is_joint, columns, rows):
    """64 rows of 8 bytes are padded scales of 64 x 64 codes, too, but two of them are not those of 128 x 64."""
    weights = [ff.quantize(numbers(rows, K, seed=seed), None, swizzled=True) for seed in (1, 2)]
    b = torch.cat([codes for codes, _, _ in weights])
    sfb = torch.cat([scales.reshape(rows, columns) for _, scales, _ in weights])
    alphas = torch.rand(2 * rows, generator=torch.Generator().manual_seed(3)) + 0.5

    def both(x):
        codes, scales, _ = ff.quantize(x, None, swizzled=True)
        own = (slice(0, rows), slice(rows, None))
        parts = [ff.scaled_mm(codes, scales, b[at], sfb[at], alpha=alphas[at], swizzled=True) for at in own]
        return [part.flip(-1) for part in parts]

    x = numbers(5, K)
    found, launches, _ = compiled(both, x)
    assert_equal(found, both(x))
    assert len(products(launches)) == (1 if is_joint else 2)


@pytest.mark.parametrize("name", ["odd columns", "many columns", "dynamic", "scale", "weights only"])
def test_layers_without_group(name):
    sizes = {"q": 256, "k": 200 if name == "odd columns" else 8192 if name == "many columns" else 128}
    model = siblings(sizes, group=False)
    if name == "dynamic":
        model.k.is_dynamic = True
    if name == "scale":
        model.k.input_scale = model.k.input_scale.clone()
    if name == "weights only":
        model.k.activations = None
    group_siblings(model.layers())
    assert model.q.group is None and model.k.group is None


def is_joint(model):
    """True if the members' tensors are those of one group."""
    layers = model.layers()
    group = layers[0].group
    if group is None or any(layer.group is not group for layer in layers):
        return False
    storages = {layer.weight.untyped_storage().data_ptr() for layer in layers}
    shared = {id(layer.input_scale) for layer in layers} | {id(group.scales[0])}
    joint = all(layer.has_slices() for layer in layers)
    return joint and len(shared) == 1 and storages == {group.tensors["weight"].untyped_storage().data_ptr()}


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model)), "torch.save": saved}


@pytest.mark.parametrize("name", list(COPIES))
def test_copies(name):
    model, x = siblings(bias=True), numbers(5, K)
    found = COPIES[name](model)
    assert is_joint(model) and is_joint(found) and found.q.group is not model.q.group
    assert_equal(found(x), model(x))
    assert_equal(compiled(found, x)[0], model(x))
    # The copy has memory of its own.
    model.q.weight.zero_()
    assert found.q.weight.any() and not model.q(x).sub(model.q.bias).any()


def test_state():
    model, other, x = siblings(bias=True), siblings(bias=True, group=False), numbers(5, K)
    assert is_joint(model)
    state = other.state_dict()
    assert state.keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[key]) and tensor.shape == state[key].shape

    # Other values reach the products that are one.
    for name in SIZES:
        state[f"{name}.weight"] = state[f"{name}.weight"].flip(0)
        state[f"{name}.weight_scale"] = state[f"{name}.weight_scale"].flip(0)
        state[f"{name}.weight_global_scale"] = state[f"{name}.weight_global_scale"] * 1.25
        state[f"{name}.input_scale"] = torch.tensor([0.002])
        state[f"{name}.bias"] = -state[f"{name}.bias"]
    before, _, call = compiled(model, x)
    for loaded in (model, other):
        loaded.load_state_dict(state)
    expected = other(x)
    assert not torch.equal(expected[0], before[0])
    assert_equal(model(x), expected)
    found, launches, call = compiled(model, x)
    assert_equal(found, expected)
    assert len(launches) == 2, "equal scales are shared again"
    assert model.q.input_scale is model.k.input_scale is model.v.input_scale

    # Scales that differ are right, too.
    state["k.input_scale"] = torch.tensor([0.004])
    for loaded in (model, other):
        loaded.load_state_dict(state)
    found, launches, _ = compiled(model, x)
    assert_equal(found, other(x))
    assert len(launches) == 5, "two quantizations; q and v are no neighbours"
    moved = copy.deepcopy(model).to(torch.float16)
    assert moved.q.input_scale is moved.v.input_scale is not moved.k.input_scale
    assert moved.k.input_scale.item() == model.k.input_scale.item()

    model.load_state_dict(siblings(bias=True, group=False).state_dict(), assign=True)
    assert all(layer.group is None for layer in model.layers())
    assert_equal(compiled(model, x)[0], siblings(bias=True)(x))


def test_state_in_safetensors(tmp_path):
    files = pytest.importorskip("safetensors.torch")
    model, other, x = siblings(bias=True), siblings(bias=True), numbers(5, K)
    for layer in other.layers():
        layer.weight.zero_()
    files.save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(files.load_file(tmp_path / "model.safetensors"))
    assert is_joint(other)
    assert_equal(compiled(other, x)[0], model(x))


def test_conversions():
    model, x = siblings(bias=True), numbers(5, K, dtype=torch.float16)
    expected = siblings(bias=True, group=False).half()(x)
    model.half()
    assert is_joint(model) and model.q.bias.dtype == torch.float16
    assert all(layer.alpha.dtype == torch.float32 for layer in model.layers())
    assert_equal(compiled(model, x)[0], expected)
    meta = copy.deepcopy(model).to("meta")
    assert is_joint(meta) and meta.q.weight.is_meta and meta.q.input_scale.is_meta
    # A conversion that fails changes nothing.
    for when in (0, 2, 3):
        calls = []

        def fail(tensor):
            calls.append(tensor)
            if len(calls) > when:
                raise MemoryError
            return tensor.clone()

        with pytest.raises(MemoryError):
            model._apply(fail)
        assert_equal(model(x), expected)
    # One layer alone gets tensors of its own.
    model.k.to(torch.bfloat16)
    assert model.q.group is model.v.group is not model.k.group
    q, k, v = model(x)
    assert torch.equal(q, expected[0]) and torch.equal(v, expected[2])
    assert (k.float() - expected[1].float()).norm() < 0.01 * expected[1].float().norm()


def test_members_that_go():
    model, x = siblings(), numbers(5, K)
    q, k, v = model(x)
    model.k.weight = model.k.weight.flip(0).clone()
    found = model(x)
    assert model.k.group is None and not torch.equal(found[1], k)
    assert torch.equal(found[0], q) and torch.equal(found[2], v)
    expected = found
    found, launches, _ = compiled(model, x)
    assert_equal(found, expected)
    assert len(products(launches)) == 3

    model = siblings()
    model.v = torch.nn.Identity()
    found, launches, _ = compiled(model, x)
    assert_equal(found, [q, k, x.flip(-1)])
    assert len(products(launches)) == 1
    del model.v
    model.names = ["q", "k"]
    assert_equal(compiled(copy.deepcopy(model), x)[0], [q, k])


def test_calibrated_torchao_models_are_grouped():
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats import inference_workflow as workflow
    from torchao.quantization import quantize_

    config = workflow.NVFP4DynamicActivationNVFP4WeightConfig
    torch.manual_seed(0)
    model, x = Siblings(bias=True).bfloat16().requires_grad_(False), numbers(5, K)
    quantize_(model, config(use_triton_kernel=False, step="prepare"))
    model(x)
    quantize_(model, config(use_triton_kernel=False, step="convert"))
    alone = copy.deepcopy(model)
    assert ff.quantize_(model) == ff.quantize_(alone, group=False) == list(SIZES)
    assert is_joint(model) and all(layer.group is None for layer in alone.layers())
    assert_equal(model(x), alone(x))
    found, launches, _ = compiled(model, x)
    assert_equal(found, alone(x))
    assert len(launches) == 2


@pytest.mark.parametrize("strict", [False, True])
def test_exported_models(strict):
    """They have the tensors of the layers, each once."""
    sizes = []
    for group in (True, False):
        model, x = siblings(bias=True, group=group), numbers(5, K)
        exported = torch.export.export(model, (x,), strict=strict)
        assert_equal(exported.module()(x), model(x))
        file = io.BytesIO()
        torch.export.save(exported, file)
        sizes.append(file.tell())
        file.seek(0)
        loaded = torch.export.load(file)
        assert_equal(loaded.module()(x), model(x))
        tensors = [*loaded.state_dict.values(), *loaded.constants.values()]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        sizes.append(sum(storages.values()))
    rows = sum(SIZES.values())
    # Alphas are one for each row. Names and paddings differ.
    assert sizes[0] < sizes[2] + 4 * rows + 2048
    assert sizes[1] <= sizes[3] + 4 * rows
    exported.state_dict["q.weight"].zero_()
    assert not exported.module()(x)[0].sub(model.q.bias.flip(0)).any()


def replaced_in_a_call(model, weight, x):
    return torch.func.functional_call(model, {"q.weight": weight}, (x,))


REPLACEMENTS = {
    "register_buffer": lambda layer, weight: layer.register_buffer("weight", weight),
    "_buffers": lambda layer, weight: layer._buffers.update(weight=weight),
    "attribute": lambda layer, weight: setattr(layer, "weight", weight),
    "in place": lambda layer, weight: layer.weight.copy_(weight),
    "alpha": lambda layer, weight: layer.alpha.mul_(2),
    "bias": lambda layer, weight: layer._buffers.update(bias=-layer.bias),
    "scales": lambda layer, weight: layer._buffers.update(weight_scale=layer.weight_scale.flip(0)),
}


@pytest.mark.parametrize("name", list(REPLACEMENTS))
def test_replaced_tensors(name):
    """A model that is compiled, or was before, uses the new tensors."""
    model, x = siblings(bias=True), numbers(5, K)
    before, launches, call = compiled(model, x)
    assert len(products(launches)) == 1
    REPLACEMENTS[name](model.q, model.q.weight.flip(0).clone())
    expected = model(x)
    assert not torch.equal(expected[0], before[0]) and torch.equal(expected[1], before[1])
    assert_equal(call(x), expected)
    found, launches, _ = compiled(model, x)
    assert_equal(found, expected)
    assert len(products(launches)) == (1 if name in ("in place", "alpha") else 2)
    for name in COPIES:
        assert_equal(COPIES[name](model)(x), expected)
    model.to(torch.float32)
    assert_equal([result.bfloat16() for result in copy.deepcopy(model).bfloat16()(x)], expected)


def test_replaced_memory():
    """An assignment to `data` is seen when a model is copied or converted."""
    model, x = siblings(), numbers(5, K)
    model.q.weight.data = model.q.weight.flip(0).clone()
    expected = model(x)
    assert_equal(copy.deepcopy(model)(x), expected)
    assert_equal(model.float().bfloat16()(x), expected)
    assert model.q.group is None and model.k.group is not None
    assert_equal(compiled(model, x)[0], expected)


def test_functional_calls():
    model, x = siblings(), numbers(5, K)
    weight, old = model.q.weight.flip(0).clone(), model(x)
    expected = replaced_in_a_call(model, weight, x)
    assert not torch.equal(expected[0], old[0])
    found, launches, _ = compiled(lambda weight, x: replaced_in_a_call(model, weight, x), weight, x)
    assert_equal(found, expected)
    assert len(products(launches)) == 2, "q, and k with v"
    assert model.q.group is model.k.group is not None
    found, launches, call = compiled(model, x)
    assert_equal(found, old)
    assert len(products(launches)) == 1
    assert_equal(torch.func.functional_call(call, {"_orig_mod.q.weight": weight}, (x,)), expected)
    assert_equal(call(x), old)


@torch.library.custom_op("fourfold_tests::mirror_pairs", mutates_args=("pairs",))
def mirror_pairs(pairs: torch.Tensor) -> None:
    pairs.copy_(pairs.flip(0))


def with_mirrored_pairs(q, k, v):
    mirror_pairs(q.view(-1, 2))
    return q.flip(-1), k.flip(-1), v.flip(-1)


# Results of q, k and v, and the number of products.
USES = {
    "results": (lambda q, k, v: (q, k, v), 3),
    "one result": (lambda q, k, v: (q, k.flip(-1), v.flip(-1)), 2),
    "view": (lambda q, k, v: (q.view(6, 2, 128).transpose(0, 1), k.flip(-1), v.flip(-1)), 2),
    "select": (lambda q, k, v: (q.view(6, 2, 128).select(1, 0).view(3, 2, 128), k.flip(-1), v.flip(-1)), 2),
    "split": (lambda q, k, v: (*q.split(128, 1), k.flip(-1), v.flip(-1)), 2),
    "alias": (lambda q, k, v: (q.detach().view(-1), k.flip(-1), v.flip(-1)), 2),
    "dtype": (lambda q, k, v: (q.view(torch.int16).view(-1), k.flip(-1), v.flip(-1)), 2),
    "unfold": (lambda q, k, v: (q.unfold(1, 128, 128), k.flip(-1), v.flip(-1)), 2),
    "as_strided": (lambda q, k, v: (q.as_strided((12, 128), (128, 1)).flip(-1), k.flip(-1), v.flip(-1)), 2),
    "as_strided of k": (lambda q, k, v: (torch.as_strided(k, (3, 256), (256, 1)) + 1, q.flip(-1), v.flip(-1)), 3),
    "in place": (lambda q, k, v: (q.view(-1)[3:7].zero_(), q.flip(-1), k.flip(-1), v.flip(-1)), None),
    "op that changes a view": (with_mirrored_pairs, 2),
    "inner view": (lambda q, k, v: (q.view(-1).flip(0), k.view(3, 256).flip(0), v.flip(-1)), 1),
}


@pytest.mark.parametrize("name", list(USES))
def test_results_have_their_strides(name):
    use, count = USES[name]

    class Used(Siblings):
        def forward(self, x):
            return use(*self.products(x))

    torch.manual_seed(0)
    model, x = calibrate(Used().bfloat16().requires_grad_(False)), numbers(6, K)
    expected = model(x)
    group_siblings(model.layers())
    found, launches, _ = compiled(model, x)
    assert_equal(found, expected)
    assert count is None or len(products(launches)) == count


def test_results_of_a_graph_that_breaks():
    class Broken(Siblings):
        def forward(self, x):
            q, k, v = self.products(x)
            torch._dynamo.graph_break()
            return q.view(-1), k, v

    model, x = siblings(), numbers(5, K)
    model.__class__ = Broken
    torch._dynamo.reset()
    with torch._inductor.config.patch(post_grad_custom_pre_pass=ff.inductor_pass(target="sm_90a")):
        assert_equal(torch.compile(model, dynamic=False)(x), model(x))


def test_alphas_of_other_types():
    codes, scales, _ = ff.quantize(numbers(5, K), None, swizzled=True)
    b, sfb, _ = ff.quantize(numbers(48, K, seed=2), None, swizzled=True)

    def product(alpha):
        return torch.relu(ff.scaled_mm(codes, scales, b, sfb, alpha=alpha, swizzled=True))

    for call in (product, lambda alpha: compiled(product, alpha)[0]):
        with pytest.raises(Exception, match="alpha must be one float32 number"):
            call(torch.rand(48).bfloat16())
