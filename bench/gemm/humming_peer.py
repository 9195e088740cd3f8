"""Humming (PyPI: humming-kernels), which multiplies f16 activations by NVFP4 weights that were transformed beforehand.

It is given the same codes and scales for the weights, and the dequantized activations. Its kernels are compiled when
they are first used, one for each shape; `compile_all` has that done for all shapes side by side.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import torch

from device_code import Unavailable
from peers import Peer


def load(nvcc):
    """Imports the package, with the compiler that everything else here is built with."""
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
    # A package that compiles and loads at its import can fail in any way.
    except Exception as error:
        raise Unavailable(f"humming-kernels cannot be imported: {error!r}") from None
    return humming


class Humming(Peer):
    """Its own choice of a kernel for the shape."""

    name, label, reduced = "humming", "Humming W4A16", True

    def __init__(self, package):
        super().__init__()
        self.package = package
        self.version = getattr(package, "__version__", None)
        self.layers, self.config, self.tuning = [], None, ""

    def operand_bytes(self, shape):
        return shape.m * shape.k * 2 + shape.n * shape.k * 9 // 16

    def schema(self):
        """NVFP4 weights without a scale of the tensor, which would be alpha."""
        return self.package.schema.HummingWeightSchema(
            b_dtype="float4e2m1", bs_dtype="float8e4m3", weight_scale_group_size=16
        )

    def layer_config(self, shape, device):
        """What the package wants to know of a layer."""
        return self.package.transform.prepare_layer_config(
            shape_n=shape.n,
            shape_k=shape.k,
            weight_schema=self.schema(),
            torch_dtype=torch.float16,
            device=device,
        )

    def tuning_config(self, config, shape, device):
        """The package's own choice for this many rows."""
        chosen = dict(self.package.tune.get_heuristics_config(config, shape_m=shape.m, device=device))
        # As for everyone: no GEMM begins before the one before it has ended.
        chosen["use_pdl"] = False
        return json.dumps(chosen)

    def compile_all(self, shapes, device):
        """Compiles the kernels of all shapes; what fails is said again where the shape is bound."""

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
            # What stream-K waits on; as many as the package's own layer has.
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
