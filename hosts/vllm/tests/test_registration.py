"""Tests of the plug-in's registration with a stand-in for vLLM."""

import importlib
import importlib.metadata
import sys

import pytest

import standin

NAME = "FourfoldNvFp4LinearKernel"
HOPPER = standin.Platform((9, 0))


def register():
    importlib.import_module("fourfold_vllm").register()


def names(linear, table="_POSSIBLE_NVFP4_KERNELS"):
    return [kernel.__name__ for kernel in vars(linear)[table][standin.PlatformEnum.CUDA]]


@pytest.mark.parametrize("table", ["_POSSIBLE_NVFP4_KERNELS", "_NVFP4_KERNELS"])
def test_registration_puts_the_kernel_first_once(table):
    linear = standin.install(table_name=table)
    for _ in range(2):
        register()
        assert names(linear, table) == [NAME, "CutlassNvFp4LinearKernel", "MarlinNvFp4LinearKernel"]
    # Another plug-in registers itself in front between two calls.
    kernels = vars(linear)[table][standin.PlatformEnum.CUDA]
    kernels.reverse()
    register()
    assert names(linear, table) == [NAME, "MarlinNvFp4LinearKernel", "CutlassNvFp4LinearKernel"]
    assert kernels is vars(linear)[table][standin.PlatformEnum.CUDA]
    assert linear._POSSIBLE_KERNELS == {}


@pytest.mark.parametrize(
    "platform, selected",
    [
        (HOPPER, NAME),
        (standin.Platform((8, 9)), "MarlinNvFp4LinearKernel"),
        (standin.Platform((10, 0)), "MarlinNvFp4LinearKernel"),
        (standin.Platform((12, 0)), "MarlinNvFp4LinearKernel"),
        (standin.Platform(None), "MarlinNvFp4LinearKernel"),
        (standin.Platform((9, 0), is_cuda=False), "MarlinNvFp4LinearKernel"),
    ],
)
def test_selection(platform, selected):
    linear = standin.install(platform=platform)
    register()
    assert type(linear.init_nvfp4_linear_kernel()).__name__ == selected


def test_the_variable_of_vllm_disables_the_kernel(monkeypatch):
    linear = standin.install(platform=HOPPER)
    register()
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", f"MacheteLinearKernel,{NAME}")
    assert type(linear.init_nvfp4_linear_kernel()).__name__ == "MarlinNvFp4LinearKernel"
    monkeypatch.delenv("VLLM_DISABLED_KERNELS")
    assert type(linear.init_nvfp4_linear_kernel()).__name__ == NAME


def test_reasons():
    linear = standin.install(platform=HOPPER)
    register()
    kernel = linear._POSSIBLE_NVFP4_KERNELS[standin.PlatformEnum.CUDA][0]
    assert kernel.is_supported(90) == kernel.is_supported() == (True, None)
    assert kernel.is_supported(100) == (False, "Fourfold serves sm_90; for sm_100, vLLM has kernels of its own")
    config = linear.NvFp4LinearLayerConfig()
    assert kernel.can_implement(config) == (True, None)
    config.group_size = 16
    assert kernel.can_implement(config) == (True, None)
    config.group_size = 32
    assert kernel.can_implement(config) == (False, "Fourfold supports NVFP4 in groups of 16, not 32")


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(kernel_type="fp4"), "refuses the kernel type `nvfp4`: Unrecognized kernel type: nvfp4"),
        (dict(table_type=tuple), "has no dict of lists that contains the registered kernel"),
    ],
)
def test_a_version_without_the_expected_list(options, words):
    standin.install(version="0.99.0", **options)
    with pytest.raises(RuntimeError) as caught:
        register()
    text = str(caught.value)
    assert type(caught.value).__name__ == "RegistrationError" and words in text
    assert "cannot register its kernel in vLLM 0.99.0" in text and "help: install a tested version" in text


@pytest.mark.parametrize(
    "module, name",
    [
        ("kernels.linear", "NvFp4LinearKernel"),
        ("kernels.linear", "register_linear_kernel"),
        ("utils", "replace_parameter"),
    ],
)
def test_a_version_without_the_expected_names(module, name):
    standin.install(version="0.15.0")
    delattr(sys.modules[f"vllm.model_executor.{module}"], name)
    with pytest.raises(RuntimeError, match=f"vLLM 0.15.0\nnote: cannot import name '{name}'"):
        register()


def test_no_vllm(monkeypatch):
    standin.install()
    for name in [name for name in sys.modules if name.startswith("vllm.")]:
        del sys.modules[name]
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(RuntimeError, match="vLLM of an unknown version"):
        register()


def test_the_installed_entry_point_registers():
    linear = standin.install()
    (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="fourfold")
    entry.load()()
    assert names(linear)[0] == NAME
