"""Models with quantized linears, and their values in float64."""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])
F32_EPS = 2.0**-24


def packed(codes):
    """Two codes a byte, the first in the low nibble."""
    flat = codes.reshape(-1)
    return (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8)


def raw(name, ty, array):
    return helper.make_tensor(name, ty, array.shape, array.tobytes(), raw=True)


def f32(name, array):
    return raw(name, T.FLOAT, np.asarray(array, np.float32))


def value(name, shape, ty=T.FLOAT):
    return helper.make_tensor_value_info(name, ty, shape)


def powers(rng, shape):
    """E4M3 scales from 2^-3 to 2^3: products and sums with them are exact in f32."""
    return (2.0 ** rng.integers(-3, 4, shape)).astype(ml_dtypes.float8_e4m3fn)


def any_scales(rng, shape):
    """E4M3 scales with all mantissas."""
    return rng.uniform(0.1, 8, shape).astype(ml_dtypes.float8_e4m3fn)


@dataclass
class Model:
    """Nodes and initializers in the making."""

    nodes: list = field(default_factory=list)
    initializers: list = field(default_factory=list)

    def node(self, op, inputs, output, domain="", **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"/{output}", domain=domain, **attributes))
        return output

    def constant(self, name, array):
        self.initializers.append(f32(name, array))
        return name

    def scales(self, name, scales, factor, ty=None):
        """Scales of blocks, dequantized by the scale of the tensor."""
        if isinstance(scales, np.ndarray):
            self.initializers.append(raw(f"{name}.scales", T.FLOAT8E4M3FN, scales))
            scales = f"{name}.scales"
        dtype = {None: np.float32, T.FLOAT16: np.float16, T.BFLOAT16: ml_dtypes.bfloat16}[ty]
        self.initializers.append(raw(f"{name}.factor", ty or T.FLOAT, np.array(factor, dtype)))
        return self.node("DequantizeLinear", [scales, f"{name}.factor"], f"{name}.scale")

    def weight(self, name, rng, n, k, factor=0.25, draw=powers, ty=None):
        """An NVFP4 weight [N, K]. Returns its dequantized value, and the numbers."""
        codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
        scales = draw(rng, (n, k // 16))
        data = packed(codes).tobytes()
        self.initializers.append(helper.make_tensor(f"{name}.codes", T.FLOAT4E2M1, (n, k), data, raw=True))
        scale = self.scales(name, scales, factor, ty)
        output = self.node("DequantizeLinear", [f"{name}.codes", scale], f"{name}.value", axis=1, block_size=16)
        return output, dequantized(codes, scales, factor)

    def linear(self, name, x, rng, n, k, **options):
        """x · weightᵀ, as exporters write it. Returns the product, and the weight's numbers."""
        weight, numbers = self.weight(name, rng, n, k, **options)
        transposed = self.node("Transpose", [weight], f"{name}.transposed", perm=[1, 0])
        return self.node("MatMul", [x, transposed], f"{name}.product"), numbers

    def build(self, inputs, outputs, check=True):
        graph = helper.make_graph(self.nodes, "graph", inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", 25), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        if check:
            onnx.checker.check_model(model)
        return model.SerializeToString()


def dequantized(codes, scales, factor):
    return E2M1[codes] * np.repeat(scales.astype(np.float64), 16, axis=1) * factor


def sum_bound(a, b, steps):
    """The error of a · bᵀ in f32, with `steps` further roundings: each term and sum is rounded once."""
    k = a.shape[1]
    return (k + steps) * F32_EPS * (np.abs(a) @ np.abs(b).T) * 1.01
