"""The NVFP4 linear kernel for vLLM."""

import fourfold.torch as ff
import torch
from vllm.model_executor.kernels.linear import NvFp4LinearKernel
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

# vLLM has W4A4 kernels of its own for the others.
CAPABILITIES = (90,)
GROUP = 16
_WORDS = {torch.bfloat16: "bf16", torch.float16: "f16"}


class FourfoldNvFp4LinearKernel(NvFp4LinearKernel):
    """Multiplies activations, quantized to NVFP4 with the layer's static scale, by NVFP4 weights.

    The sum and alpha are in f32, the result is rounded to the dtype of the activations, and a bias is added to the
    rounded result: the roundings of vLLM's emulation.
    """

    @classmethod
    def is_supported(cls, compute_capability=None):
        """Hopper GPUs: `(True, None)`, or `(False, reason)`."""
        if compute_capability is None:
            capability = current_platform.get_device_capability() if current_platform.is_cuda() else None
            if capability is None:
                return False, "Fourfold needs an NVIDIA GPU"
            compute_capability = capability.to_int()
        if compute_capability not in CAPABILITIES:
            return False, f"Fourfold serves sm_90; for sm_{compute_capability}, vLLM has kernels of its own"
        return True, None

    @classmethod
    def can_implement(cls, config):
        """Every NVFP4 layer in groups of 16. vLLM states extents only after loading."""
        group = getattr(config, "group_size", GROUP)
        if group != GROUP:
            return False, f"Fourfold supports NVFP4 in groups of {GROUP}, not {group}"
        return True, None

    def process_weights_after_loading(self, layer):
        """Checks the layer, and swizzles the weight scales [N, K/16] into padded storage, once."""
        reason = _refusal(layer)
        if reason is not None:
            raise ValueError(
                f"Fourfold does not support this NVFP4 layer: {reason}\n"
                f"help: set VLLM_DISABLED_KERNELS={type(self).__name__} to use the next kernel of vLLM"
            )
        replace_parameter(layer, "weight_scale", _swizzle(layer.weight_scale.data))

    def apply_weights(self, layer, x, bias=None):
        """x [.., K] of f16, bf16 or f32, bias [N] of the same dtype: returns [.., N] in the dtype of x."""
        n, k = layer.weight.shape[0], layer.weight.shape[1] * 2
        codes, scales, _ = ff.quantize(x.reshape(-1, x.shape[-1]), layer.input_global_scale, swizzled=True)
        operands = (codes, scales, layer.weight, layer.weight_scale)
        if bias is None or x.dtype == torch.float32:
            y = ff.scaled_mm(*operands, alpha=layer.alpha, bias=bias, out_dtype=x.dtype, swizzled=True)
        else:
            (y,) = ff.segment(_biased(n, k, x.dtype), *operands, layer.alpha.reshape(1), bias)
        return y.reshape(*x.shape[:-1], n)


def _refusal(layer):
    """The reason why a loaded layer cannot run, or None."""
    n, k = layer.output_size_per_partition, layer.input_size_per_partition
    for name in ("input_global_scale", "alpha"):
        if getattr(layer, name, None) is None:
            return f"it has no `{name}`; weight-only layers are not W4A4"
    if layer.weight.dtype != torch.uint8 or tuple(layer.weight.shape) != (n, k // 2):
        return f"its weight is {_show(layer.weight)}; expected uint8 [{n}, {k // 2}]"
    if layer.weight_scale.dtype != torch.float8_e4m3fn or tuple(layer.weight_scale.shape) != (n, k // GROUP):
        return f"its weight_scale is {_show(layer.weight_scale)}; expected float8_e4m3fn [{n}, {k // GROUP}]"
    # Tensor-core instructions take 32 elements of K; rows of the result are written in units of 16 bytes.
    if k % 32 != 0:
        return f"K per partition is {k}, no multiple of 32"
    if n % 8 != 0:
        return f"N per partition is {n}, no multiple of 8"
    return None


def _show(tensor):
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _swizzle(scales):
    """Linear scales [N, K/16] in the 128 x 4 tiles of the tensor cores, padded with zeros."""
    rows, columns = scales.shape
    padded = torch.nn.functional.pad(scales.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    tiles = padded.reshape((rows + 127) // 128, 4, 32, (columns + 3) // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(padded.shape).view(scales.dtype)


def _biased(n, k, dtype):
    """The program of a product with a bias, which `scaled_mm` would add before its only rounding to f16 or bf16."""
    word = _WORDS[dtype]
    return (
        "fir 1\n"
        f"func @linear(%a: tensor<[M, {k}], f4E2M1FN>, %sfa: tensor<[M, {k // GROUP}], f8E4M3FN, blocked>, "
        f"%b: tensor<[{n}, {k}], f4E2M1FN>, %sfb: tensor<[{n}, {k // GROUP}], f8E4M3FN, blocked>, "
        f"%alpha: tensor<[1], f32>, %bias: tensor<[{n}], {word}>) {{\n"
        f"  %product = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha {{block = {GROUP}}} : tensor<[M, {n}], f32>\n"
        f"  %rounded = convert %product : tensor<[M, {n}], {word}>\n"
        f"  %y = add %rounded, %bias : tensor<[M, {n}], {word}>\n"
        "  return %y\n"
        "}\n"
    )
