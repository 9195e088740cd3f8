"""The models of `llama.py`: a Llama of the transformers library, dense and quantized, and their decode and prefill."""

import copy

import torch
from torch.nn import functional as F

# The seven linear layers of a decoder layer.
LINEARS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
)


def dense(options, device):
    """A Llama in bf16 with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        vocab_size=options.vocabulary,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        attn_implementation="sdpa",
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    # Norms of a trained model differ from 1, which spreads the scales.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model.bfloat16()


def is_quantized(module, name):
    """True for the layers that are quantized: all linear layers but the head."""
    return isinstance(module, torch.nn.Linear) and not name.endswith("lm_head")


def torchao(model, tokens, scale):
    """A copy of a dense model that torchao quantized to NVFP4 W4A4, and the inputs of each layer in calibration.

    `scale` is the per-tensor scale of activations: "static", found by running the model on tokens, or "dynamic".
    """
    from torchao.prototype.mx_formats import inference_workflow as workflow
    from torchao.quantization import quantize_

    config = workflow.NVFP4DynamicActivationNVFP4WeightConfig
    inputs = capture_inputs(model, tokens)
    quantized = copy.deepcopy(model)
    if scale == "static":
        quantize_(quantized, config(use_triton_kernel=False, step="prepare"), filter_fn=is_quantized)
        Prefill(quantized)(tokens)
        quantize_(quantized, config(use_triton_kernel=False, step="convert"), filter_fn=is_quantized)
    else:
        check, workflow.is_sm_at_least_100 = workflow.is_sm_at_least_100, lambda: True
        try:
            quantize_(quantized, config(use_triton_kernel=False), filter_fn=is_quantized)
        finally:
            workflow.is_sm_at_least_100 = check
    return quantized.to(tokens.device), inputs


def capture_inputs(model, tokens):
    """The inputs [M, K] of each of the decoder's linear layers, by name."""
    inputs, hooks = {}, []
    for name, module in model.named_modules():
        if is_quantized(module, name):
            def keep(_, given, name=name):
                inputs[name] = given[0].reshape(-1, given[0].shape[-1]).clone()

            hooks.append(module.register_forward_pre_hook(keep))
    Prefill(model)(tokens)
    for hook in hooks:
        hook.remove()
    return inputs


class Cache:
    """Keys and values of past tokens, and a place for those of one more token.

    The number of tokens is fixed, so that attention needs no mask and one graph replays the step.
    """

    def __init__(self, model, batch, past, device):
        config = model.config
        head = config.hidden_size // config.num_attention_heads
        shape = (batch, config.num_key_value_heads, past + 1, head)
        generator = torch.Generator(device).manual_seed(batch)

        def draw():
            return torch.randn(shape, generator=generator, device=device).bfloat16()

        self.keys = [draw() for _ in range(config.num_hidden_layers)]
        self.values = [draw() for _ in range(config.num_hidden_layers)]
        self.past = past

    def update(self, key, value, layer, *_, **__):
        self.keys[layer][:, :, self.past :] = key
        self.values[layer][:, :, self.past :] = value
        return self.keys[layer], self.values[layer]


class Prefill(torch.nn.Module):
    """The logits of a sequence of tokens [1, M], from position 0."""

    def __init__(self, model):
        super().__init__()
        self.model, self.cache, self.position = model, None, 0

    @torch.no_grad()
    def forward(self, tokens):
        inner = self.model.model
        hidden = inner.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None] + self.position
        embeddings = inner.rotary_emb(hidden, position_ids=positions)
        for layer in inner.layers:
            hidden = layer(
                hidden, attention_mask=None, position_embeddings=embeddings, position_ids=positions,
                past_key_values=self.cache, use_cache=self.cache is not None,
            )
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return self.model.lm_head(inner.norm(hidden))


class Decode(Prefill):
    """The logits of one more token [M, 1] of each of M sequences."""

    def __init__(self, model, cache):
        super().__init__(model)
        self.cache, self.position = cache, cache.past


class Emulated(torch.nn.Module):
    """A linear layer that multiplies dequantized operands, exactly but for the rounding of its result."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        scale = self.weight.act_per_tensor_scale
        scale = x.abs().amax().float() / (448 * 6) if scale is None else scale.reshape(())
        exact, _, _ = emulate(x.reshape(-1, x.shape[-1]), self.weight, scale)
        return exact.to(x.dtype).reshape(*x.shape[:-1], -1)


def emulated(model):
    """A copy of a model that torchao quantized, with emulated layers."""
    found = copy.deepcopy(model)
    for name, module in list(found.named_modules()):
        if is_quantized(module, name):
            parent, _, child = name.rpartition(".")
            setattr(found.get_submodule(parent), child, Emulated(module.weight.detach()))
    return found


def emulate(x, weight, scale, codes=None):
    """The product of a layer by torchao's codes, in f64: exact values, and sums of magnitudes, both [M, N].

    `weight` is torchao's tensor. `codes` replaces those of torchao: codes and linear scales of x.
    """
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    if codes is None:
        quantized = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale)
        codes = quantized.qdata, quantized.scale
    # Without the per-tensor scale, values of f32 are exact.
    a = NVFP4Tensor(codes[0], codes[1].view(torch.float8_e4m3fn), 16, torch.float32).dequantize(torch.float32)
    b = NVFP4Tensor(
        weight.qdata, weight.scale, 16, torch.float32, is_swizzled_scales=weight.is_swizzled_scales
    ).dequantize(torch.float32)
    alpha = (scale.float() * weight.per_tensor_scale).double()
    exact = F.linear(a.double(), b.double()) * alpha
    # f32 sums of magnitudes, scaled up to exceed the exact ones.
    sums = F.linear(a.abs(), b.abs()).double() * (1.002 * alpha)
    return exact, sums, codes
