"""A vLLM plug-in: NVFP4 W4A4 linear layers on Hopper GPUs.

vLLM calls `register` in each of its processes, through the entry-point group `vllm.general_plugins`.
"""

TESTED = ("0.20.0", "0.26.0", "0.33.0")

__all__ = ["RegistrationError", "register"]


class RegistrationError(RuntimeError):
    """This version of vLLM has no registry of NVFP4 kernels that the plug-in knows."""

    def __init__(self, reason):
        try:
            from vllm import __version__ as version
        except ImportError:
            version = "of an unknown version"
        super().__init__(
            f"fourfold-vllm cannot register its kernel in vLLM {version}\n"
            f"note: {reason}\n"
            f"help: install a tested version of vLLM ({', '.join(TESTED)}), or list the plug-ins to load in "
            "VLLM_PLUGINS, without `fourfold`"
        )


def register():
    """Puts `FourfoldNvFp4LinearKernel` in front of vLLM's NVFP4 kernels for CUDA. Further calls change nothing."""
    try:
        from vllm.model_executor.kernels import linear
        # `kernel.py` needs the others. There, an import can also fail for reasons other than the version of vLLM.
        from vllm.model_executor.kernels.linear import NvFp4LinearKernel, register_linear_kernel
        from vllm.model_executor.utils import replace_parameter
        from vllm.platforms import PlatformEnum, current_platform
    except ImportError as error:
        raise RegistrationError(error) from error
    from .kernel import FourfoldNvFp4LinearKernel as kernel

    if not _lists(linear, PlatformEnum.CUDA, kernel):
        try:
            register_linear_kernel(kernel, PlatformEnum.CUDA, "nvfp4")
        except (TypeError, ValueError) as error:
            raise RegistrationError(f"`register_linear_kernel` refuses the kernel type `nvfp4`: {error}") from error
    lists = _lists(linear, PlatformEnum.CUDA, kernel)
    if not lists:
        raise RegistrationError(
            "`vllm.model_executor.kernels.linear` has no dict of lists that contains the registered kernel, so that "
            "it cannot be moved in front of Marlin"
        )
    for kernels in lists:
        # In place: vLLM's modules may hold references to the list.
        kernels[:] = [kernel, *(other for other in kernels if other is not kernel)]


def _lists(module, platform, kernel):
    """The lists with this kernel, found by content, because the name of vLLM's list is private."""
    tables = [table for table in vars(module).values() if isinstance(table, dict)]
    lists = [table[platform] for table in tables if isinstance(table.get(platform), list)]
    return [kernels for kernels in lists if kernel in kernels]
