"""Loads NVFP4 layers with the real vLLM, runs them with the plug-in and with vLLM's emulation, and prints both.

Without a GPU, vLLM's Python files suffice, and the platform is a stand-in for a Hopper GPU. Started by `test_vllm.py`.
"""

import os

import numpy as np
import torch
from vllm import platforms
from vllm.model_executor import parameter
from vllm.model_executor.kernels import linear
from vllm.plugins import load_general_plugins

import emulation
import reference
import standin

PLUGIN, N, K = "FourfoldNvFp4LinearKernel", 136, 352
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Hopper(standin.Platform):
    _enum = platforms.PlatformEnum.CUDA

    def is_cuda_alike(self):
        return False

    def is_rocm(self):
        return False

    def is_device_capability_family(self, capability):
        return False

    def has_device_capability(self, capability):
        return False


def pretend():
    """Replaces the platform in the modules that select and run kernels, and the ranks of tensor parallelism."""
    import fourfold_vllm.kernel
    from vllm.model_executor.layers.quantization.utils import nvfp4_emulation_utils

    parameter.get_tensor_model_parallel_rank = lambda: 0
    parameter.get_tensor_model_parallel_world_size = lambda: 1
    if DEVICE == "cpu":
        for module in (linear, fourfold_vllm.kernel, nvfp4_emulation_utils):
            module.current_platform = Hopper((9, 0))


def compressed_tensors():
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsW4A4Fp4

    # Reciprocals of the per-tensor scales.
    return CompressedTensorsW4A4Fp4(), "weight_packed", dict(weight_global_scale=32.0, input_global_scale=64.0)


def quark():
    from vllm.model_executor.layers.quantization.quark.schemes.quark_nvfp4 import QuarkNVFP4
    from vllm.model_executor.layers.quantization.utils.quant_utils import kNvfp4Dynamic

    return QuarkNVFP4(kNvfp4Dynamic), "weight", dict(weight_scale_2=1 / 32, input_scale_2=1 / 64)


def modelopt():
    from types import SimpleNamespace

    from vllm.model_executor.layers.quantization.modelopt import ModelOptLinearMethod, resolve

    method = ModelOptLinearMethod(*resolve("NVFP4", SimpleNamespace(group_size=16), "layer"))
    method.apply_weights = method.apply
    return method, "weight", dict(weight_scale_2=1 / 32, input_scale=1 / 64)


def run(scheme, x, bias, disabled):
    """Creates, fills and loads a layer of two output partitions. Returns the kernel's name and the results."""
    os.environ["VLLM_DISABLED_KERNELS"] = disabled
    method, weight, scales = scheme()
    codes, block_scales = reference.random_operand(np.random.default_rng(0), N, K)
    layer = torch.nn.Module()
    sizes = dict(input_size=K, output_size=N) if scheme is modelopt else {}
    with torch.device(DEVICE):
        method.create_weights(layer, output_partition_sizes=[64, N - 64], input_size_per_partition=K,
                              params_dtype=x.dtype, weight_loader=lambda *a, **k: None, **sizes)
    getattr(layer, weight).data.copy_(torch.from_numpy(codes))
    layer.weight_scale.data.copy_(torch.from_numpy(block_scales).view(torch.float8_e4m3fn))
    for name, scale in scales.items():
        getattr(layer, name).data.fill_(scale)
    method.process_weights_after_loading(layer)
    results = [method.apply_weights(layer, x, None).cpu(), method.apply_weights(layer, x, bias).cpu()]
    return type(method.kernel).__name__, results


def main():
    load_general_plugins()
    load_general_plugins()
    pretend()
    x = torch.randn(7, K, generator=torch.Generator().manual_seed(0)).bfloat16().to(DEVICE)
    bias = torch.randn(N, generator=torch.Generator().manual_seed(1)).bfloat16().to(DEVICE)
    others = ",".join(
        kernel.__name__
        for kernels in vars(linear)["_POSSIBLE_NVFP4_KERNELS"].values()
        for kernel in kernels
        if kernel.__name__ != "EmulationNvFp4LinearKernel"
    )
    for scheme in (compressed_tensors, quark, modelopt):
        name, ours = run(scheme, x, bias, "")
        other, theirs = run(scheme, x, bias, others)
        steps = torch.cat([emulation.distance(*pair) for pair in zip(ours, theirs)])
        print(f"{scheme.__name__}: {name}, {other}: {int((steps > 0).sum())} of {steps.numel()} elements differ, "
              f"by at most {int(steps.max())} ulp")


if __name__ == "__main__":
    main()
