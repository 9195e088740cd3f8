"""Tests of the ops of a tuning manifest's kernels. On the CPU, operands have sums that are exact in f32."""

import json

import numpy as np
import pytest
import torch

import fourfold.torch as ff
import reference

MANIFEST = """schema = 1

[[sweep]]
generator = "scaled_mma.sm90"
targets = ["sm_90a"]
product = { tile = ["8", "128x64"], d = ["f32", "bf16"] }
list = [{ tile = "64x128", format = "bf16 x nvfp4" }, { tile = "3x5" }]

[[sweep]]
generator = "scaled_mma.sm120"
targets = ["sm_120a"]
list = [{ tile = "128x128x128" }]

[[sweep]]
generator = "block_quantize"
targets = ["sm_90a"]
"""
N, K = 136, 352


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    file = tmp_path_factory.mktemp("manifest") / "kernels.toml"
    file.write_text(MANIFEST)
    return ff.kernels(file)


def operands(m, seed=0):
    rng = np.random.default_rng(seed + m)
    a, sfa = reference.random_operand(rng, m, K, 16)
    b, sfb = reference.random_operand(rng, N, K, 16)
    return [torch.from_numpy(np.ascontiguousarray(x)) for x in (a, reference.swizzle(sfa), b, reference.swizzle(sfb))]


def test_every_kernel_is_an_op_or_has_a_reason(kernels):
    hopper = {f"sm_90a_nvfp4_{d}_{tile}_auto" for d in ("f32", "bf16") for tile in ("8", "128x64")}
    others = {name for name in kernels if name.startswith("sm_120a_nvfp4_bf16_128x128x128")}
    assert set(kernels) == hopper | others | {"sm_90a_bf16_x_nvfp4_bf16_64x128_auto"} and len(others) == 1
    tile, quantize = "sm_90a_nvfp4_bf16_3x5_auto", [name for name in kernels.skipped if "3x5" not in name]
    assert "3x5" in kernels.skipped[tile]
    assert [kernels.skipped[name] for name in quantize] == ["a dispatch table cannot name this kernel"]


@pytest.mark.parametrize("m", [0, 1, 7])
def test_results_are_those_of_scaled_mm(kernels, m):
    alpha = torch.tensor([0.75])
    for name, op in kernels.items():
        if "bf16_x" in name:
            continue
        d = torch.float32 if "_f32_" in name else torch.bfloat16
        found = op(*operands(m), alpha)
        wanted = ff.scaled_mm(*operands(m), alpha=alpha, swizzled=True, out_dtype=d)
        assert found.dtype == d and found.shape == (m, N) and torch.equal(found, wanted), name
    a, _, b, sfb = operands(m)
    a = torch.randint(-8, 9, (m, K)).to(torch.bfloat16)
    found = kernels["sm_90a_bf16_x_nvfp4_bf16_64x128_auto"](a, None, b, sfb)
    assert torch.equal(found, ff.scaled_mm(a, None, b, sfb, swizzled=True))


def test_a_problem_that_the_kernel_does_not_take_is_an_error(kernels):
    small, tiled = kernels["sm_90a_nvfp4_f32_8_auto"], kernels["sm_90a_nvfp4_f32_128x64_auto"]
    assert tiled(*operands(9)).shape == (9, N)
    with pytest.raises(RuntimeError, match="sm_90a_nvfp4_f32_8_auto does not take 9x136x352: M = 9 exceeds .* 8"):
        small(*operands(9))
    a, _, b, sfb = operands(3)
    other = kernels["sm_90a_bf16_x_nvfp4_bf16_64x128_auto"]
    with pytest.raises(RuntimeError, match="does not take 3x136x352"):
        other(torch.ones(3, K, dtype=torch.float16), None, b, sfb)
    with pytest.raises(RuntimeError, match="equally many axes"):
        tiled(*[x.unsqueeze(0) if place < 2 else x for place, x in enumerate(operands(3))])


def test_kernels_that_a_call_names_wrongly_are_errors():
    a, sfa, b, sfb = operands(3)
    named = {"generator": "scaled_mma.sm90", "target": "sm_90a", "parameters": {"tile": "8", "d": "f32", "format": "nvfp4"}}
    for change, message in [
        ({"generator": "none"}, "no generator is named `none`"),
        ({"target": "sm_1"}, "no target is named `sm_1`"),
        ({"parameters": {"tile": "x"}}, "tile=x"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            torch.ops.fourfold.scaled_mm_kernel(a, sfa, b, sfb, kernel=json.dumps(named | change))
    with pytest.raises(RuntimeError, match="kernel is text"):
        torch.ops.fourfold.scaled_mm_kernel(a, sfa, b, sfb, kernel="text")


def test_ops_pass_opcheck_compile_and_refuse_gradients(kernels):
    op = kernels["sm_90a_nvfp4_bf16_128x64_auto"]
    torch.library.opcheck(op, (*operands(5), torch.tensor([2.0])), test_utils=("test_schema", "test_faketensor"))
    compiled = torch.compile(lambda *tensors: op(*tensors) + 1, fullgraph=True)
    assert torch.equal(compiled(*operands(5)), op(*operands(5)) + 1)
    with pytest.raises(RuntimeError, match="has no gradient"):
        op(*operands(5), torch.tensor([2.0], requires_grad=True)).sum().backward()


def test_wrong_manifests_are_errors(tmp_path):
    for text, message in [("schema = 9", "schema"), ('schema = 1\n[[sweep]]\ngenerator = "x"\ntargets = []\n', "`x`")]:
        file = tmp_path / "wrong.toml"
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            ff.kernels(file)
    with pytest.raises(FileNotFoundError):
        ff.kernels(tmp_path / "absent.toml")
