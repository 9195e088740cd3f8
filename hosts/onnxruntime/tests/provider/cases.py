"""Tests of the provider in ONNX Runtime: `python cases.py LIBRARY CASE`, on a GPU with `gpu` at the end."""

import gc
import pathlib
import sys
import threading

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T

from contexts import context, context_file, hostile_context
from host import LEVELS, NAME, ROWS, assigned, fails, feed_forward, session, whole
from models import E2M1, Model, any_scales, dequantized, packed, powers, raw, sum_bound, value


def levels():
    """FP4 linears at every level of optimization, for any number of rows. All sums are exact."""
    rng = np.random.default_rng(1)
    model, reference = feed_forward(rng)
    for level in LEVELS:
        made = session(model, level)
        ours, others = assigned(made)
        assert len(ours) == 1 and not others, (level, ours, others)
        for rows in ROWS:
            x = whole(rng, rows, 32)
            [y] = made.run(None, {"x": x})
            assert y.shape == (rows, 80) and np.array_equal(y, reference(x)), (level, rows)
            assert rows == 0 or np.count_nonzero(y) > y.size / 2


def precision():
    """Scales with mantissas, an odd N, Gelu and a residual, with a bound from the number of roundings."""
    rng = np.random.default_rng(2)
    n, k = 53, 176
    model = Model()
    product, w = model.linear("w", "x", rng, n, k, factor=0.0173, draw=any_scales)
    curved = model.node("Gelu", [product], "curved", approximate="tanh")
    scaled = model.node("Mul", [curved, model.constant("gain", [0.3])], "scaled")
    model.node("Add", [scaled, "residual"], "y")
    model = model.build([value("x", ["m", k]), value("residual", ["m", n])], [value("y", ["m", n])])
    made = session(model)
    ours, others = assigned(made)
    assert len(ours) == 1 and not others, (ours, others)
    factor = float(np.float32(0.0173))
    w = w / 0.0173 * factor
    for rows in ROWS:
        x = rng.standard_normal((rows, k)).astype(np.float32)
        residual = rng.standard_normal((rows, n)).astype(np.float32)
        [y] = made.run(None, {"x": x, "residual": residual})
        p = x.astype(np.float64) @ w.T
        gain = float(np.float32(0.3))
        inner = np.sqrt(2 / np.pi) * (p + 0.044715 * p**3)
        exact = 0.5 * p * (1 + np.tanh(inner)) * gain + residual
        # The product's error, at most 1.13 times larger behind Gelu, and a few roundings of the largest value.
        bound = 1.13 * gain * sum_bound(x.astype(np.float64), w, 4) + 16 * 2.0**-24 * (np.abs(p) + np.abs(residual))
        assert np.all(np.abs(y - exact) <= bound), np.max(np.abs(y - exact) / bound)


def gemm():
    """Gemm with transB 0 and 1, alpha, beta and C."""
    rng = np.random.default_rng(3)
    n, k = 40, 64
    for trans_b in (0, 1):
        model = Model()
        weight, w = model.weight("w", rng, n, k)
        if not trans_b:
            weight = model.node("Transpose", [weight], "transposed", perm=[1, 0])
        bias = rng.integers(-4, 5, n)
        inputs = ["x", weight, model.constant("bias", bias)]
        model.node("Gemm", inputs, "y", transB=trans_b, alpha=0.5, beta=2.0)
        made = session(model.build([value("x", ["m", k])], [value("y", ["m", n])]), LEVELS[0])
        ours, others = assigned(made)
        assert len(ours) == 1 and not others, (ours, others)
        for rows in ROWS:
            x = whole(rng, rows, k)
            [y] = made.run(None, {"x": x})
            assert np.array_equal(y, x.astype(np.float64) @ w.T * 0.5 + 2.0 * bias)


def refused_parts():
    """What Fourfold does not take stays with the CPU provider, and results are right."""
    rng = np.random.default_rng(4)
    n, k, last = 48, 32, 64
    model = Model()
    product, w1 = model.linear("first", "x", rng, n, k)
    soft = model.node("Softmax", [product], "soft", axis=-1)
    # A path leaves the region and comes back: this sum must not join the product.
    total = model.node("Add", [product, soft], "total")
    dense = rng.integers(-2, 3, (n, n)).astype(np.float32)
    model.initializers.append(raw("dense", T.FLOAT, dense))
    plain = model.node("MatMul", [total, "dense"], "plain")
    output, w2 = model.linear("second", plain, rng, last, n)
    model.node("Hardmax", [output], "y")
    model = model.build([value("x", ["m", k])], [value("y", ["m", last]), value(output, ["m", last])])
    for level in LEVELS:
        made = session(model, level)
        ours, others = assigned(made)
        assert len(ours) == 2 and all("DequantizeLinear" in region for region in ours), ours
        assert others == ["Add", "Hardmax", "MatMul", "Softmax"], others
        for rows in ROWS:
            x = rng.standard_normal((rows, k)).astype(np.float32) / 8
            y, values = made.run(None, {"x": x})
            if rows == 0:
                assert y.shape == (0, last)
                continue
            p = x.astype(np.float64) @ w1.T
            e = np.exp(p - p.max(axis=1, keepdims=True))
            t = p + e / e.sum(axis=1, keepdims=True)
            d = t @ dense.astype(np.float64)
            exact = d @ w2.T
            error = sum_bound(x.astype(np.float64), w1, 0) + 2.0**-20 * np.abs(t)
            error = error @ np.abs(dense.astype(np.float64)) + sum_bound(np.abs(t), np.abs(dense.T), 0)
            bound = error @ np.abs(w2.T) + sum_bound(np.abs(d), w2, 1)
            assert np.all(np.abs(values - exact) <= bound), np.max(np.abs(values - exact) / bound)
            assert np.array_equal(y.argmax(axis=1), values.argmax(axis=1))


def crossed():
    """Two products, each of which joins with what follows the other: their regions must not wait for each other."""
    rng = np.random.default_rng(18)
    n, k = 48, 32
    model = Model()
    left, w1 = model.linear("left", "x", rng, n, k)
    right, w2 = model.linear("right", "x", rng, n, k)
    model.node("Add", [left, model.node("Hardmax", [right], "after right")], "a")
    model.node("Add", [right, model.node("Hardmax", [left], "after left")], "b")
    model = model.build([value("x", ["m", k])], [value("a", ["m", n]), value("b", ["m", n])])
    for level in LEVELS:
        made = session(model, level)
        ours, others = assigned(made)
        assert len(ours) == 2 and others == ["Add", "Hardmax", "Hardmax"], (ours, others)
        for rows in ROWS:
            x = whole(rng, rows, k)
            p, q = x.astype(np.float64) @ w1.T, x.astype(np.float64) @ w2.T
            hard = lambda y: np.eye(n)[y.argmax(axis=1)].reshape(y.shape)
            a, b = made.run(None, {"x": x})
            assert np.array_equal(a, p + hard(q)) and np.array_equal(b, q + hard(p)), (level, rows)


def must_claim():
    """FP4 that feeds no product is still dequantized here, because no other provider can."""
    rng = np.random.default_rng(5)
    n, k = 24, 32
    model = Model()
    weight, w = model.weight("w", rng, n, k)
    model.node("Gather", [weight, "at"], "rows")
    model.node("ReduceSum", [weight], "sum", keepdims=0)
    model = model.build([value("at", ["m"], T.INT64)], [value("rows", ["m", k]), value("sum", [])])
    for level in LEVELS:
        made = session(model, level)
        ours, others = assigned(made)
        assert all(set(region) == {"DequantizeLinear"} for region in ours) and ours, ours
        assert others == ["Gather", "ReduceSum"], others
        at = np.array([3, 3, 0, n - 1])
        rows, total = made.run(None, {"at": at})
        assert np.array_equal(rows, w[at]) and total == w.sum()


def near_misses():
    """FP4 that no program dequantizes: the session fails, and says so."""
    rng = np.random.default_rng(6)
    codes = packed(rng.integers(0, 16, (16, 32)).astype(np.uint8))

    def model(block, blocks, zero_point=None):
        made = Model()
        tensor = onnx.helper.make_tensor("codes", T.FLOAT4E2M1, (16, 32), codes.tobytes(), raw=True)
        made.initializers += [tensor, raw("scale", T.FLOAT, np.ones((16, blocks), np.float32))]
        inputs = ["codes", "scale"]
        if zero_point is not None:
            points = np.full(16 * blocks // 2, zero_point, np.uint8)
            shape = (16, blocks)
            made.initializers.append(onnx.helper.make_tensor("zero", T.FLOAT4E2M1, shape, points.tobytes(), raw=True))
            inputs.append("zero")
        made.node("DequantizeLinear", inputs, "w", axis=1, block_size=block)
        made.node("MatMul", ["x", "w"], "y")
        return made.build([value("x", ["m", 16])], [value("y", ["m", 32])])

    x = whole(rng, 3, 16)
    assert session(model(16, 2, 0)).run(None, {"x": x})[0].shape == (3, 32)
    fails(lambda: session(model(16, 2, 0x21)), "DequantizeLinear")
    fails(lambda: session(model(16, 2), options={"device": "first"}), "`device`", "first", "number of a GPU")
    fails(lambda: session(model(16, 2), options={"devices": "0"}), "`devices`", "the options are device, target")
    fails(lambda: session(model(16, 2), options={"target": "sm_1"}), "sm_1", "sm_120a")


def wrong_shapes():
    """Shapes that contradict the names of the model's extents are an error of the call; the session goes on."""
    rng = np.random.default_rng(14)
    n, k = 48, 32
    model = Model()
    product, w = model.linear("w", "x", rng, n, k)
    model.node("Add", [product, "residual"], "y")
    inputs = [value("x", ["b", "s", k]), value("residual", ["b", "s", n])]
    made = session(model.build(inputs, [value("y", ["b", "s", n])]))
    x, residual = whole(rng, 6, k).reshape(2, 3, k), whole(rng, 6, n).reshape(2, 3, n)
    fails(lambda: made.run(None, {"x": x, "residual": residual[:1]}), "`residual`", "b = 2", "[1, 3, 48]")
    [y] = made.run(None, {"x": x, "residual": residual})
    assert np.array_equal(y, x.astype(np.float64) @ w.T + residual)


def packed_weight():
    """MatMulBlockQuantizedFp4Weight, whose activations are f16 or bf16, against the product of its exact values."""
    rng = np.random.default_rng(7)
    n, k = 72, 96
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    scales = powers(rng, (n, k // 16))
    w = dequantized(codes, scales, 0.25)
    for ty, dtype, digits in [(T.FLOAT16, np.float16, 11), (T.BFLOAT16, ml_dtypes.bfloat16, 8)]:
        model = Model()
        bias = rng.integers(-9, 10, n).astype(dtype)
        model.initializers += [
            raw("codes", T.UINT8, packed(codes).reshape(n, k // 2)),
            raw("scales", T.UINT8, scales.view(np.uint8)),
            raw("factor", T.FLOAT, np.array(0.25, np.float32)),
            raw("bias", ty, bias),
        ]
        inputs = ["x", "codes", "scales", "factor", "", "bias"]
        model.node("MatMulBlockQuantizedFp4Weight", inputs, "p", domain="com.microsoft")
        model.node("Relu", ["p"], "y")
        made = session(model.build([value("x", ["m", k], ty)], [value("y", ["m", n], ty)], check=False))
        ours, others = assigned(made)
        assert ours == [["MatMulBlockQuantizedFp4Weight", "Relu"]] and not others, (ours, others)
        for rows in ROWS:
            x = whole(rng, rows, k).astype(dtype)
            io = made.io_binding()
            given = np.ascontiguousarray(x.view(np.uint16))
            io.bind_input("x", "cpu", 0, ty, [rows, k], given.ctypes.data)
            found = np.zeros((rows, n), np.uint16)
            io.bind_output("y", "cpu", 0, ty, [rows, n], found.ctypes.data)
            made.run_with_iobinding(io)
            p = x.astype(np.float64) @ w.T
            exact = np.maximum(p + bias.astype(np.float64), 0)
            # The product and the sum are each rounded to the type once.
            bound = 2.0**-digits * (np.abs(p) + np.abs(exact)) * 1.01
            error = np.abs(found.view(dtype).astype(np.float64) - exact)
            assert np.all(error <= bound), (dtype, rows, np.max(error - bound))


def given_codes():
    """Activations that are FP4 already. Python passes them by a packed pointer."""
    rng = np.random.default_rng(8)
    n, k = 40, 64
    model = Model()
    scale = model.scales("x", "x.scales", 0.5)
    a = model.node("DequantizeLinear", ["x.codes", scale], "x", axis=1, block_size=16)
    product, w = model.linear("w", a, rng, n, k)
    model.node("Relu", [product], "y")
    inputs = [value("x.codes", ["m", k], T.FLOAT4E2M1), value("x.scales", ["m", k // 16], T.FLOAT8E4M3FN)]
    model = model.build(inputs, [value("y", ["m", n])])
    for level in LEVELS:
        made = session(model, level)
        ours, others = assigned(made)
        assert len(ours) == 1 and not others, (ours, others)
        for rows in ROWS:
            codes = rng.integers(0, 16, (rows, k)).astype(np.uint8)
            scales = powers(rng, (rows, k // 16))
            given = [packed(codes), scales.view(np.uint8)]
            io = made.io_binding()
            io.bind_input("x.codes", "cpu", 0, T.FLOAT4E2M1, [rows, k], given[0].ctypes.data)
            io.bind_input("x.scales", "cpu", 0, T.FLOAT8E4M3FN, [rows, k // 16], given[1].ctypes.data)
            io.bind_output("y")
            made.run_with_iobinding(io)
            [y] = io.copy_outputs_to_cpu()
            assert np.array_equal(y, np.maximum(dequantized(codes, scales, 0.5) @ w.T, 0)), (level, rows)


def in_subgraphs():
    """FP4 in the branches of an If, with weights of the branch and of the graph around it."""
    rng = np.random.default_rng(15)
    n = k = 32
    outer, then, otherwise = Model(), Model(), Model()
    weight, w1 = outer.weight("outer", rng, n, k)
    then.nodes, outer.nodes = outer.nodes, []
    then.node("Gemm", ["x", weight], "then", transB=1)
    product, w2 = otherwise.linear("inner", "x", rng, n, k)
    otherwise.node("Neg", [product], "else")

    def branch(model, output):
        return onnx.helper.make_graph(model.nodes, output, [], [value(output, ["m", n])], model.initializers)

    outer.node("If", ["c"], "y", then_branch=branch(then, "then"), else_branch=branch(otherwise, "else"))
    inputs = [value("x", ["m", k]), value("c", [], T.BOOL)]
    made = session(outer.build(inputs, [value("y", ["m", n])]))
    ours, others = assigned(made)
    assert len(ours) == 2 and others == ["If"], (ours, others)
    for rows in ROWS:
        x = whole(rng, rows, k)
        [a] = made.run(None, {"x": x, "c": np.array(True)})
        [b] = made.run(None, {"x": x, "c": np.array(False)})
        assert np.array_equal(a, x.astype(np.float64) @ w1.T) and np.array_equal(b, -(x.astype(np.float64) @ w2.T))


def other_forms():
    """MXFP4, blocks along the first axis, a short last block, and FP4 activations that the model quantizes."""
    rng = np.random.default_rng(16)

    def check(model, w, k, expected=lambda x: x):
        made = session(model)
        ours, others = assigned(made)
        assert len(ours) == 1 and not others, (ours, others)
        x = whole(rng, 3, k)
        [y] = made.run(None, {"x": x})
        assert np.array_equal(y, expected(x.astype(np.float64)) @ w.T), ours

    def codes(model, *shape):
        drawn = rng.integers(0, 16, shape).astype(np.uint8)
        tensor = onnx.helper.make_tensor("codes", T.FLOAT4E2M1, shape, packed(drawn).tobytes(), raw=True)
        model.initializers.append(tensor)
        return E2M1[drawn]

    n, k = 48, 64
    model = Model()
    w = codes(model, n, k)
    exponents = rng.integers(124, 131, (n, k // 32)).astype(np.uint8)
    model.initializers.append(raw("scales", T.FLOAT8E8M0, exponents))
    model.node("DequantizeLinear", ["codes", "scales"], "w", axis=1, block_size=32, output_dtype=T.FLOAT)
    model.node("Gemm", ["x", "w"], "y", transB=1)
    built = model.build([value("x", ["m", k])], [value("y", ["m", n])])
    check(built, w * np.repeat(2.0 ** (exponents.astype(np.float64) - 127), 32, axis=1), k)

    for axis, op, options, shape, extent in [(0, "MatMul", {}, (64, 48), 64), (1, "Gemm", {"transB": 1}, (48, 40), 40)]:
        model = Model()
        w = codes(model, *shape)
        count = [-(-extent // 16) if at == axis else shape[at] for at in (0, 1)]
        scales = (2.0 ** rng.integers(-2, 3, count)).astype(np.float32)
        model.initializers.append(raw("scales", T.FLOAT, scales))
        model.node("DequantizeLinear", ["codes", "scales"], "w", axis=axis, block_size=16)
        model.node(op, ["x", "w"], "y", **options)
        w = w * np.take(np.repeat(scales, 16, axis=axis), range(extent), axis=axis)
        check(model.build([value("x", ["m", extent])], [value("y", ["m", 48])]), w if axis else w.T, extent)

    model = Model()
    model.initializers.append(raw("given", T.FLOAT, np.full((3, k // 16), 0.75, np.float32)))
    model.node("QuantizeLinear", ["x", "given"], "q", axis=1, block_size=16, output_dtype=T.FLOAT4E2M1)
    model.node("DequantizeLinear", ["q", "given"], "d", axis=1, block_size=16)
    product, w = model.linear("w", "d", rng, n, k)
    model.node("Identity", [product], "y")
    built = model.build([value("x", [3, k])], [value("y", [3, n])])

    def quantized(x):
        return (x / 0.75).astype(np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * 0.75

    check(built, w, k, quantized)


def fp8():
    """An FP8 chain: quantize, dequantize and multiply with an FP8 weight."""
    rng = np.random.default_rng(9)
    n, k = 40, 48
    model = Model()
    codes = rng.integers(-7, 8, (n, k)).astype(ml_dtypes.float8_e4m3fn)
    model.initializers += [
        raw("codes", T.FLOAT8E4M3FN, codes),
        raw("scale", T.FLOAT, np.array(0.5, np.float32)),
        raw("zero", T.FLOAT8E4M3FN, np.array(0, ml_dtypes.float8_e4m3fn)),
    ]
    quantized = model.node("QuantizeLinear", ["x", "scale", "zero"], "x.codes")
    a = model.node("DequantizeLinear", [quantized, "scale"], "x.value")
    w = model.node("DequantizeLinear", ["codes", "scale"], "w")
    product = model.node("Gemm", [a, w], "product", transB=1)
    model.node("Relu", [product], "y")
    model = model.build([value("x", ["m", k])], [value("y", ["m", n])])
    for level in LEVELS:
        made = session(model, level)
        ours, others = assigned(made)
        assert len(ours) == 1 and not others, (ours, others)
        for rows in ROWS:
            x = whole(rng, rows, k)
            [y] = made.run(None, {"x": x})
            exact = np.maximum(x.astype(np.float64) @ (codes.astype(np.float64) * 0.5).T, 0)
            assert np.array_equal(y, exact), (level, rows)


def threads():
    """Eight threads, each with M of its own, share a session."""
    rng = np.random.default_rng(11)
    model, reference = feed_forward(rng)
    made, wrong = session(model), []

    def work(seed):
        mine = np.random.default_rng(seed)
        for turn in range(20):
            x = whole(mine, seed * 3 + turn, 32)
            if not np.array_equal(made.run(None, {"x": x})[0], reference(x)):
                wrong.append((seed, turn))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not wrong, wrong


def panics():
    """A panic inside Compute is a status, and the process goes on."""
    rng = np.random.default_rng(12)
    model, reference = feed_forward(rng)
    broken = session(model, options={"panic_in_compute": "1"})
    x = whole(rng, 3, 32)
    for _ in range(2):
        fails(lambda: broken.run(None, {"x": x}), "a panic in Fourfold", "panic_in_compute")
    assert np.array_equal(session(model).run(None, {"x": x})[0], reference(x))


def registration():
    """The library can be unregistered, and registered again."""
    rng = np.random.default_rng(13)
    model, reference = feed_forward(rng)
    x = whole(rng, 3, 32)
    for _ in range(3):
        made = session(model)
        assert np.array_equal(made.run(None, {"x": x})[0], reference(x))
        del made
        gc.collect()
        ort.unregister_execution_provider_library("fourfold")
        assert all(device.ep_name != NAME for device in ort.get_ep_devices())
        # Its worker threads still run, so that it must not leave the memory.
        if sys.platform == "linux":
            assert sys.argv[1] in pathlib.Path("/proc/self/maps").read_text()
        ort.register_execution_provider_library("fourfold", sys.argv[1])


CASES = [
    levels, precision, gemm, refused_parts, crossed, must_claim, near_misses, wrong_shapes, packed_weight,
    given_codes, in_subgraphs, other_forms, fp8, context, context_file, hostile_context, threads, panics, registration,
]

if __name__ == "__main__":
    ort.register_execution_provider_library("fourfold", sys.argv[1])
    [case] = [case for case in CASES if case.__name__ == sys.argv[2]]
    case()
    print(f"{case.__name__}: ok")
