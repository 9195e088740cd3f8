"""Tests of `import fourfold`, without PyTorch."""

import copy
import pathlib
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import fourfold
import reference

ml_dtypes = pytest.importorskip("ml_dtypes")

LAYER = """fir 1
func @layer(
    %a: tensor<[M, K], f4E2M1FN>, %sfa: tensor<[M, S], f8E4M3FN, LAYOUT>,
    param %b: tensor<[N, K], f4E2M1FN>, param %sfb: tensor<[N, S], f8E4M3FN, blocked>,
    param %bias: tensor<[N], bf16>
) {
  OPS
  %product = scaled_mma %a, %SFA, %b, %sfb {block = 16} : tensor<[M, N], f32>
  %y = add %product, %bias : tensor<[M, N], f32>
  return %y
}
"""


def layer(n, k, layout="linear"):
    ops = "%sfa.b = swizzle_scales %sfa : tensor<[M, S], f8E4M3FN, blocked>" if layout == "linear" else ""
    text = LAYER.replace("OPS", ops).replace("LAYOUT", layout).replace("%SFA", "%sfa.b" if ops else "%sfa")
    for name, value in (("N", n), ("K", k), ("S", k // 16)):
        text = text.replace(f"[{name},", f"[{value},").replace(f"{name}]", f"{value}]")
    return text


@pytest.fixture(scope="module")
def backend():
    return fourfold.Backend(device="none", target="sm_120a")


def problem(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, sfa = reference.random_operand(rng, m, k)
    b, sfb = reference.random_operand(rng, n, k)
    bias = rng.integers(-8, 8, n).astype(ml_dtypes.bfloat16)
    expected = reference.product(a, sfa, b, sfb) + bias.astype(np.float32)
    return a, sfa, b, sfb, bias, expected


@pytest.mark.parametrize("m", [0, 1, 3, 91, 129, 200])
@pytest.mark.parametrize("layout", ["linear", "blocked"])
def test_products_are_exact(backend, m, layout):
    n, k = 136, 352
    a, sfa, b, sfb, bias, expected = problem(m, n, k, seed=m)
    module = backend.compile(layer(n, k, layout))
    given = sfa if layout == "linear" else reference.swizzle(sfa)
    outputs = module(a=a, sfa=given, b=b, sfb=reference.swizzle(sfb), bias=bias)
    assert outputs.keys() == {"y"} and outputs["y"].shape == (m, n)
    np.testing.assert_array_equal(outputs["y"], expected)
    session = module.session(b=b, sfb=reference.swizzle(sfb), bias=bias)
    for _ in range(2):
        np.testing.assert_array_equal(session(a=a, sfa=given)["y"], expected)
    assert session.was_prepared is False


def test_narrow_types_and_dlpack(backend):
    m, n, k = 5, 136, 64
    a, sfa, b, sfb, bias, expected = problem(m, n, k)
    module = backend.compile(layer(n, k))
    swizzled = reference.swizzle(sfb)
    codes = reference.unpack(a).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    typed = dict(a=codes, sfa=sfa.view(ml_dtypes.float8_e4m3fn), b=b, sfb=swizzled.ravel(), bias=bias.view(np.uint16))
    np.testing.assert_array_equal(module(**typed)["y"], expected)

    class Foreign:
        """An array that is not NumPy's."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **arguments):
            return self.array.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    foreign = dict(a=Foreign(a), sfa=Foreign(sfa), b=Foreign(b), sfb=Foreign(swizzled), bias=bias)
    np.testing.assert_array_equal(module(**foreign)["y"], expected)
    target = np.full((m, n), np.nan, np.float32)
    result = module(a=a, sfa=sfa, b=b, sfb=swizzled, bias=bias, out={"y": target})
    assert result["y"] is target
    np.testing.assert_array_equal(target, expected)
    # Not contiguous: copied.
    wide = np.zeros((m, k), np.uint8)
    wide[:, ::2] = a
    np.testing.assert_array_equal(module(**(typed | {"a": wide[:, ::2]}))["y"], expected)
    with pytest.raises(fourfold.Error, match="not contiguous"):
        module(**(typed | {"a": Foreign(wide[:, ::2])}))


def test_plans_and_reports(backend):
    plan = backend.plan(layer(136, 352))
    assert plan.target == "sm_120a" and len(plan.kernels) == 1
    tiers = {decision.name: decision.tier for decision in plan.decisions}
    assert tiers == {"%sfa.b = swizzle_scales": "device", "%product = scaled_mma": "kernel", "%y = add": "kernel"}
    moved = plan.decisions[0]
    assert moved.reason == "no_scaled_mma_producer" and moved.message
    assert "1 kernel nvfp4 " in backend.explain(layer(136, 352))
    module = backend.compile(layer(136, 352))
    assert [str(port) for port in module.inputs][2] == "param %b: tensor<[136, 352], f4E2M1FN>"
    assert module.inputs[0].shape == ("M", 352) and module.symbols == ("M",)
    report = module.report(M=3)
    assert report.is_ready and not report.is_capturable and "no_device" in report.why_not
    assert "sm_120a" in report.compat and report.workspace is None


def test_background(backend):
    lines = []
    logged = fourfold.Backend(device="none", target="sm_120a", log=lambda level, line: lines.append((level, line)))
    a, sfa, b, sfb, bias, expected = problem(3, 136, 64)
    module = logged.compile(layer(136, 64), background=True)
    assert module.wait(timeout=60)
    module.cancel()
    np.testing.assert_array_equal(module(a=a, sfa=sfa, b=b, sfb=reference.swizzle(sfb), bias=bias)["y"], expected)


def test_errors(backend):
    a, sfa, b, sfb, bias, _ = problem(3, 136, 64)
    module = backend.compile(layer(136, 64))
    good = dict(a=a, sfa=sfa, b=b, sfb=reference.swizzle(sfb), bias=bias)
    for change, code, words in [
        ({"a": a[:, :-1]}, 3, "shape"),
        ({"a": a.astype(np.float32)}, 3, "dtype"),
        ({"a": a[0]}, 3, "axes"),
        ({"sfa": sfa[:2]}, 3, "shape"),
        ({"sfb": sfb}, 3, "padded storage"),
        ({"bias": bias.astype(np.float32)}, 3, "dtype"),
        ({"other": a}, 3, "is no input"),
        ({"out": {"z": a}}, 3, "is no output"),
        ({"out": {"y": np.zeros((3, 137), np.float32)}}, 3, "shape"),
        ({"out": {"y": np.zeros((136, 3), np.float32).T}}, 3, "contiguous"),
    ]:
        with pytest.raises(fourfold.Error, match=words) as caught:
            module(**(good | change))
        assert caught.value.code == code and caught.value.reason
    with pytest.raises(fourfold.Error, match="is missing"):
        module(a=a)
    with pytest.raises(fourfold.Error, match="did you mean|unknown") as caught:
        backend.compile("fir 1\nfunc @f(%x: tensor<[2], f32>) {\n  %y = relo %x : tensor<[2], f32>\n  return %y\n}")
    assert caught.value.reason == "unknown_op" and caught.value.code == fourfold.Error.INVALID_ARGUMENT
    for text in ["", "fir 2", "\0", "fir 1\nfunc @f(", "fir 1\n" + "%" * 1000]:
        with pytest.raises(fourfold.Error):
            backend.plan(text)
    with pytest.raises(fourfold.Error, match="no option is named"):
        fourfold.Backend(colour="red")
    with pytest.raises(fourfold.Error) as caught:
        fourfold.Backend(target="sm_12")
    assert caught.value.code == fourfold.Error.UNIMPLEMENTED
    with pytest.raises(fourfold.Error) as caught:
        module.prepare({"M": 3}, [1] * 5, [1])
    assert caught.value.code == fourfold.Error.FAILED_PRECONDITION and caught.value.reason == "no_device"


def test_symbols_of_products(backend):
    text = """fir 1
func @f(%x: tensor<[2*B*S, 3], f32>) {
  %y = reshape %x : tensor<[B, S, 6], f32>
  return %y
}
"""
    module = backend.compile(text)
    x = np.arange(36, dtype=np.float32).reshape(12, 3)
    with pytest.raises(fourfold.Error, match="not determined"):
        module(x=x)
    result = module(x=x, symbols={"B": 2})["y"]
    np.testing.assert_array_equal(result, x.reshape(2, 3, 6))


def test_threads(backend):
    a, sfa, b, sfb, bias, expected = problem(91, 136, 64)
    module = backend.compile(layer(136, 64))
    failures = []

    def work():
        for _ in range(5):
            result = module(a=a, sfa=sfa, b=b, sfb=reference.swizzle(sfb), bias=bias)["y"]
            if not np.array_equal(result, expected):
                failures.append(result)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_signatures_of_fixtures(backend):
    """The parser of signatures agrees with the library on every fixture that plans."""
    from fourfold._types import Signature

    root = pathlib.Path(__file__).resolve().parents[3] / "fixtures"
    checked = 0
    for path in sorted([*root.glob("*.fir"), *(root / "epilogue").glob("*.fir"), *(root / "device").glob("*.fir")]):
        text = path.read_text()
        try:
            module = backend.compile(text)
        except fourfold.Error:
            continue
        signature = Signature.parse(text)
        assert signature.inputs == tuple((port.name, port.type) for port in module.inputs), path
        assert signature.outputs == tuple((port.name, port.type) for port in module.outputs), path
        checked += 1
    assert checked > 20


def test_handles_are_not_copied():
    backend = fourfold.Backend(device="none")
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            make(backend)


def test_scalars_are_inputs_and_outputs():
    program = """fir 1
func @scale(%x: tensor<[3], f32>, %s: tensor<[], f32>) {
  %y = mul %x, %s : tensor<[3], f32>
  %sum = reduce %y {axes = [0], keep_dims = false, kind = sum} : tensor<[], f32>
  return %y, %sum
}
"""
    module = fourfold.Backend(device="none").compile(program)
    result = module(x=np.array([1, 2, 4], np.float32), s=np.float32(0.5))
    np.testing.assert_array_equal(result["y"], [0.5, 1, 2])
    assert result["sum"].shape == () and result["sum"] == 3.5


def test_codes_are_bytes():
    with pytest.raises(TypeError, match="float32"):
        fourfold.pack(np.zeros((2, 4), np.float32))


ENDING = '''
import fourfold, tempfile
program = """fir 1
func @layer(%a: tensor<[M, 64], f4E2M1FN>, %sfa: tensor<[M, 4], f8E4M3FN, blocked>,
    param %b: tensor<[8, 64], f4E2M1FN>, param %sfb: tensor<[8, 4], f8E4M3FN, blocked>) {
  %y = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 8], f32>
  return %y
}
"""
with tempfile.TemporaryDirectory() as cache:
    log = lambda level, line: None
    backend = fourfold.Backend(target="sm_120a", device="none", build="always", cache=cache, log=log)
    module = backend.compile(program, background=True)
    module.cancel()
'''


def test_a_process_ends_while_kernels_are_built():
    for _ in range(3):
        subprocess.run([sys.executable, "-c", ENDING], check=True, timeout=120)
