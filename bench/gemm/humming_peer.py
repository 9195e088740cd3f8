"""Humming (PyPI: humming-kernels), which multiplies f16 activations by NVFP4 weights transformed in advance.

It gets the same codes and scales for the weights, and the dequantized activations. It compiles a kernel for each shape
at first use; `compile_all` compiles the kernels of all shapes in parallel.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import torch

import formats
from device_code import Unavailable
from peers import Peer


def load(nvcc):
    """Imports the package and makes it use the given nvcc."""
    os.environ.setdefault("HUMMING_COMPILER", "nvcc")
    if nvcc:
        os.environ.setdefault("CUDA_HOME", os.path.dirname(os.path.dirname(os.path.realpath(nvcc))))
    try:
        import humming
        import humming.forward
        import humming.kernel.humming
        import humming.schema
        import humming.transform
        import humming.tune
    # The package compiles and loads code at import, so any exception may occur.
    except Exception as error:
        raise Unavailable(f"humming-kernels cannot be imported: {error!r}") from None
    return humming


class Humming(Peer):
    """The Humming peer, with the kernel that the package chooses for a shape."""

    name, label, reduced = "humming", "Humming W4A16", True

    def __init__(self, package, of):
        super().__init__()
        if of.b != formats.NVFP4:
            raise Unavailable(f"measured for weights in NVFP4 only, not {of.b.name}")
        self.package = package
        self.version = getattr(package, "__version__", None)
        self.layers, self.config, self.tuning = [], None, ""

    def operand_bytes(self, shape):
        return shape.bytes(0, formats.FORMATS["w4a16"])

    def schema(self):
        """Describes NVFP4 weights without a per-tensor scale, which would be alpha."""
        return self.package.schema.HummingWeightSchema(
            b_dtype="float4e2m1", bs_dtype="float8e4m3", weight_scale_group_size=16
        )

    def layer_config(self, shape, device):
        """Returns the package's configuration of a layer."""
        return self.package.transform.prepare_layer_config(
            shape_n=shape.n,
            shape_k=shape.k,
            weight_schema=self.schema(),
            torch_dtype=torch.float16,
            device=device,
        )

    def tuning_config(self, config, shape, device):
        """Returns the package's heuristic choice for M rows."""
        chosen = dict(self.package.tune.get_heuristics_config(config, shape_m=shape.m, device=device))
        # The protocol for all peers: no GEMM begins before the previous one has ended.
        chosen["use_pdl"] = False
        return json.dumps(chosen)

    def compile_all(self, shapes, device):
        """Compiles the kernels of all shapes. Returns the errors, which `bind` will raise again."""

        def compile_one(shape):
            try:
                config = self.layer_config(shape, device)
                tuning = self.tuning_config(config, shape, device)
                self.package.kernel.humming.HummingKernel.prepare_kernels(config.to_str(), "{}", tuning, device)
            except Exception as error:
                return f"{shape}: {error!r}"
            return None

        with ThreadPoolExecutor(max_workers=max(1, min(len(shapes), os.cpu_count() or 1))) as pool:
            return [error for error in pool.map(compile_one, shapes) if error]

    def bind(self, rotation, sets):
        super().bind(rotation, sets)
        shape, device = rotation.shape, rotation.device
        self.layers = []
        for index in range(sets):
            operands = rotation[index]
            weights = {
                "weight": operands.b.codes.view(torch.int32),
                "weight_scale": operands.b.scales.view(torch.float8_e4m3fn),
            }
            self.config, tensors = self.package.transform.prepare_and_transform_humming_tensors(
                weights,
                shape_n=shape.n,
                shape_k=shape.k,
                weight_schema=self.schema(),
                torch_dtype=torch.float16,
                device=device,
            )
            # The locks of stream-K, as many as in the package's own layer.
            locks = torch.zeros(2048, dtype=torch.int32, device=device)
            self.layers.append((operands.a.f16, tensors, locks))
        self.tuning = self.tuning_config(self.config, shape, device)

    def launch(self, index):
        inputs, tensors, locks = self.layers[index]
        self.package.forward.humming_forward(
            self.config,
            inputs=inputs,
            weight=tensors["weight"],
            weight_scale=tensors["weight_scale"],
            weight_scale_2=tensors.get("weight_scale_2"),
            outputs=self.outputs[index],
            locks=locks,
            tuning_config=self.tuning,
            use_pdl=False,
        )

    def release(self):
        super().release()
        self.layers = []
