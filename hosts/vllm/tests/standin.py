"""A stand-in for the parts of vLLM that the plug-in uses, with their names, signatures and order of selection.

`install(...)` puts it into `sys.modules`. The real vLLM has the same interface, but needs a GPU build.
"""

import abc
import enum
import os
import sys
import types

import torch


class PlatformEnum(enum.Enum):
    CUDA = enum.auto()
    ROCM = enum.auto()


class Capability(tuple):
    def to_int(self):
        return self[0] * 10 + self[1]


class Platform:
    """A platform, by default one without a GPU."""

    _enum = PlatformEnum.CUDA

    def __init__(self, capability=None, is_cuda=True):
        self.capability, self.cuda = capability, is_cuda

    def is_cuda(self):
        return self.cuda

    def get_device_capability(self):
        return None if self.capability is None else Capability(self.capability)


class NvFp4LinearLayerConfig:
    pass


class NvFp4LinearKernel(abc.ABC):
    def __init__(self, config):
        assert self.can_implement(config)[0]
        assert self.is_supported()[0]
        self.config = config

    def input_quant_key(self):
        return None

    @classmethod
    @abc.abstractmethod
    def is_supported(cls, compute_capability=None): ...

    @classmethod
    @abc.abstractmethod
    def can_implement(cls, config): ...

    @abc.abstractmethod
    def process_weights_after_loading(self, layer): ...

    @abc.abstractmethod
    def apply_weights(self, layer, x, bias=None): ...


def _other(name, supported):
    answer = (supported, None if supported else "sm_100 only")
    body = dict(
        is_supported=classmethod(lambda cls, compute_capability=None: answer),
        can_implement=classmethod(lambda cls, config: (True, None)),
        process_weights_after_loading=lambda self, layer: None,
        apply_weights=lambda self, layer, x, bias=None: None,
    )
    return type(name, (NvFp4LinearKernel,), body)


def replace_parameter(layer, name, tensor):
    """Keeps the parameter object where there is one, as vLLM does."""
    old = getattr(layer, name, None)
    if old is None:
        layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    else:
        old.data = tensor


def _linear(kernel_type, table_name, table_type):
    """The module `vllm.model_executor.kernels.linear`."""
    module = types.ModuleType("vllm.model_executor.kernels.linear")
    kernels = table_type([_other("CutlassNvFp4LinearKernel", False), _other("MarlinNvFp4LinearKernel", True)])
    table = {PlatformEnum.CUDA: kernels}
    registered = {"mp": {}, kernel_type: table}

    def register_linear_kernel(kernel_class, platform, kernel_type="mp"):
        if kernel_type not in registered:
            raise ValueError(f"Unrecognized kernel type: {kernel_type}")
        known = registered[kernel_type]
        known[platform] = table_type([*known.get(platform, ()), kernel_class])

    def init_nvfp4_linear_kernel():
        config, reasons = NvFp4LinearLayerConfig(), []
        platform = sys.modules["vllm.platforms"].current_platform
        for kernel in table.get(platform._enum, ()):
            if kernel.__name__ in os.environ.get("VLLM_DISABLED_KERNELS", "").split(","):
                reasons.append(f"{kernel.__name__} disabled by environment variable")
                continue
            for fits, reason in (kernel.is_supported(), kernel.can_implement(config)):
                if not fits:
                    reasons.append(f"{kernel.__name__}: {reason}")
                    break
            else:
                return kernel(config)
        raise ValueError("\n".join(reasons))

    setattr(module, table_name, table)
    module.NvFp4LinearKernel, module.NvFp4LinearLayerConfig = NvFp4LinearKernel, NvFp4LinearLayerConfig
    module.register_linear_kernel, module.init_nvfp4_linear_kernel = register_linear_kernel, init_nvfp4_linear_kernel
    # Tables of other kernel types hold no kernel of ours.
    module._POSSIBLE_KERNELS, module._MAP = registered["mp"], {"cutlass": {kernels[0]}}
    return module


def install(
    kernel_type="nvfp4", table_name="_POSSIBLE_NVFP4_KERNELS", table_type=list, platform=None, version="0.33.0"
):
    """Replaces vLLM and the plug-in in `sys.modules`. Returns the module of linear kernels."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "fourfold_vllm")]:
        del sys.modules[name]
    paths = ("", ".platforms", ".model_executor", ".model_executor.utils", ".model_executor.kernels")
    vllm, platforms, executor, utils, kernels = (types.ModuleType(f"vllm{path}") for path in paths)
    vllm.__version__ = version
    platforms.PlatformEnum, platforms.current_platform = PlatformEnum, platform or Platform()
    utils.replace_parameter = replace_parameter
    linear = _linear(kernel_type, table_name, table_type)
    vllm.platforms, vllm.model_executor = platforms, executor
    executor.utils, executor.kernels, kernels.linear = utils, kernels, linear
    for module in (vllm, platforms, executor, utils, kernels, linear):
        sys.modules[module.__name__] = module
    return linear
