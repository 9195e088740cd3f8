"""Expert layers with FP4 weights: one program computes the experts of a mixture, with two grouped products."""

import torch

from .. import Backend
from . import quantize
from ._gates import find_gate
from ._ops import FORMATS, ops

WORDS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
CODES = {"nvfp4": ("f4E2M1FN", "f8E4M3FN"), "mxfp4": ("f4E2M1FN", "f8E8M0FNU"), "mxfp8": ("f8E4M3FN", "f8E8M0FNU")}
SCALES = ("gate_up_global_scale", "down_global_scale")
# The numbers that weights are multiplied with.
NAMES = {None: "W4A16", "nvfp4": "W4A4", "mxfp4": "W4A4", "mxfp8": "W4A8"}


class Experts(torch.nn.Module):
    """The experts of a mixture, with FP4 weights in NVFP4 or MXFP4, `format`.

    Replaces a module of the transformers library whose `forward` takes tokens, the experts that a router selected for
    each, and their weights. PyTorch sorts the selected rows by expert. One program does the rest: it gathers the rows,
    multiplies them with `gate_up`, combines gate and up, multiplies the result with `down`, and adds up the weighted
    rows of each token. Sums, biases, gate and weights are in f32; the result of the gate is rounded to the tokens' type,
    and so is the sum of each token. Nothing waits for the GPU, so a CUDA graph can capture the layer.

    `activations` is the format that tokens and the result of the gate are quantized to: "nvfp4" (W4A4) for weights in
    NVFP4, with a per-tensor scale of each call, "mxfp8" (W4A8) or "mxfp4" for weights in MXFP4, None (W4A16) for either.

    In `gate_up`, rows of gate and up alternate, as one kernel computes both.
    """

    def __init__(self, gate_up, down, gate, biases, activations, format):
        """gate_up and down: codes [E, 2F, H/2] and [E, H, F/2], swizzled scales, and f32 factors [E].

        `biases`: those of gate and up [E, F], and of down [E, H], or None.
        """
        super().__init__()
        self.format, self.gate = format, gate
        self.num_experts, self.hidden, self.intermediate = gate_up[0].shape[0], down[0].shape[1], down[0].shape[2] * 2
        for name, (codes, scales, factors) in (("gate_up", gate_up), ("down", down)):
            self.register_buffer(name, codes)
            self.register_buffer(f"{name}_scale", scales)
            self.register_buffer(f"{name}_global_scale", factors)
        for name, bias in zip(("gate_bias", "up_bias", "down_bias"), biases or (None, None, None)):
            self.register_buffer(name, bias)
        self.register_buffer("expert_ids", torch.arange(self.num_experts, device=down[0].device), persistent=False)
        self.activations = activations

    def __setattr__(self, name, value):
        if name == "activations" and value not in choices(self.format):
            known = ", ".join(map(repr, choices(self.format)))
            raise ValueError(f"activations is {value!r}; expected {known} for experts in {self.format}")
        super().__setattr__(name, value)
        if name == "activations":
            self._write()

    def _write(self):
        """Writes the programs for all dtypes of tokens and of the router's weights."""
        tokens = [dtype for dtype in WORDS if self.activations is not None or dtype != torch.float32]
        self._texts = {(x, weights): self.program(x, weights) for x in tokens for weights in WORDS}

    def _apply(self, fn, recurse=True):
        """Keeps the factors in float32, whatever the model is converted to."""
        factors = {name: self._buffers[name] for name in SCALES}
        super()._apply(fn, recurse)
        for name, factor in factors.items():
            self._buffers[name] = factor.to(self.down.device)
        self._write()
        return self

    def forward(self, hidden_states, top_k_index=None, top_k_weights=None, router_indices=None, routing_weights=None):
        selected = router_indices if top_k_index is None else top_k_index
        weights = routing_weights if top_k_weights is None else top_k_weights
        x = hidden_states.reshape(-1, self.hidden)
        if (x.dtype, weights.dtype) not in self._texts:
            raise TypeError(
                f"experts with activations={self.activations!r} take no tokens in {x.dtype} with weights in "
                f"{weights.dtype}; convert the model to bfloat16 or float16"
            )
        expert, order = torch.sort(selected.reshape(-1).to(torch.int64), stable=True)
        ends = torch.searchsorted(expert, self.expert_ids, right=True, out_int32=True)
        places = torch.arange(order.shape[0], device=order.device)
        back = torch.zeros_like(order).scatter(0, order, places).reshape(selected.shape)
        rows = order // selected.shape[-1]
        tensors = [x, rows.to(torch.int32), order.to(torch.int32), back.to(torch.int32), ends, weights.reshape(-1)]
        tensors += [self.gate_up, self.gate_up_scale, self.down, self.down_scale]
        if self.format == "nvfp4":
            tensors += [self.gate_up_global_scale, self.down_global_scale]
        if self.gate_bias is not None:
            # An expert of another process has a number beyond the last. Its rows have the product 0 and the weight 0.
            expert = expert.clamp(max=self.num_experts - 1)
            tensors += [expert.to(torch.int32), self.gate_bias, self.up_bias, self.down_bias]
        (y,) = ops.segment(self._texts[x.dtype, weights.dtype], tensors)
        return y.reshape(hidden_states.shape)

    def program(self, x, weights):
        """The text for these dtypes of tokens and of the router's weights."""
        return Writer(self, WORDS[x]).text(WORDS[weights])

    def extra_repr(self):
        extents = f"num_experts={self.num_experts}, hidden={self.hidden}, intermediate={self.intermediate}"
        return f"{extents}, format={self.format}, activations={self.activations}, gate={self.gate}"


class Writer:
    """Writes the program of experts.

    Symbols: M tokens, K experts of each, S = M * K rows sorted by expert. Their relation is not stated, so that one
    program serves every K.
    """

    def __init__(self, layer, element):
        self.layer, self.element = layer, element
        self.inputs, self.lines = [], []
        self.wide, self.narrow = f"[S, {layer.intermediate}]", f"[S, {layer.hidden}]"

    def input(self, name, extents, element):
        self.inputs.append(f"%{name}: tensor<{extents}, {element}>")

    def line(self, line):
        self.lines.append(f"  {line}\n")

    def text(self, weights):
        e, h, f = self.layer.num_experts, self.layer.hidden, self.layer.intermediate
        self.input("x", f"[M, {h}]", self.element)
        for name, extents in (("rows", "[S]"), ("order", "[S]"), ("back", "[M, K]"), ("ends", f"[{e}]")):
            self.input(name, extents, "i32")
        self.input("weights", "[S]", weights)
        self._weights()
        self.line(f"%x.rows = gather %x, %rows {{axis = 0}} : tensor<{self.narrow}, {self.element}>")
        self._product("both", "x", h, f"[S, {2 * f}]", "gate_up")
        halves = ("gate", "up") if self.layer.gate_bias is None else ("gate.plain", "up.plain")
        for start, name in enumerate(halves):
            parts = f"axes = [1], ends = [{2 * f}], starts = [{start}], steps = [2]"
            self.line(f"%{name} = slice %both {{{parts}}} : tensor<{self.wide}, f32>")
        self._bias("gate", self.wide)
        self._bias("up", self.wide)
        for line in self.layer.gate.lines(self.wide):
            self.line(line)
        hidden = "gated"
        if self.element != "f32":
            self.line(f"%hidden = convert %gated : tensor<{self.wide}, {self.element}>")
            hidden = "hidden"
        self._product("down.plain" if self.layer.down_bias is not None else "out", hidden, f, self.narrow, "down")
        self._bias("out", self.narrow, "down")
        self.line(f"%of.rows = gather %weights, %order {{axis = 0}} : tensor<[S], {weights}>")
        self.line(f"%column = reshape %of.rows : tensor<[S, 1], {weights}>")
        self.line(f"%weighted = mul %out, %column : tensor<{self.narrow}, f32>")
        self.line(f"%of.tokens = gather %weighted, %back {{axis = 0}} : tensor<[M, K, {h}], f32>")
        last = f"%sum = reduce %of.tokens {{axes = [1], keep_dims = false, kind = sum}} : tensor<[M, {h}], f32>"
        self.line(last)
        result = "sum"
        if self.element != "f32":
            self.line(f"%y = convert %sum : tensor<[M, {h}], {self.element}>")
            result = "y"
        return f"fir 1\nfunc @experts({', '.join(self.inputs)}) {{\n{''.join(self.lines)}  return %{result}\n}}\n"

    def _weights(self):
        """Declares the layer's tensors, in the order of `Experts.forward`."""
        layer, (codes, scale) = self.layer, CODES[self.layer.format]
        e, h, f, block = layer.num_experts, layer.hidden, layer.intermediate, FORMATS[layer.format][0]
        for name, n, k in (("gate_up", 2 * f, h), ("down", h, f)):
            self.input(name, f"[{e}, {n}, {k}]", codes)
            self.input(f"{name}.scales", f"[{e}, {n}, {k // block}]", f"{scale}, blocked")
        if layer.format == "nvfp4":
            self.input("gate_up.alpha", f"[{e}]", "f32")
            self.input("down.alpha", f"[{e}]", "f32")
        if layer.gate_bias is not None:
            element = WORDS[layer.gate_bias.dtype]
            self.input("expert", "[S]", "i32")
            for name, n in (("gate", f), ("up", f), ("down", h)):
                self.input(f"{name}.bias", f"[{e}, {n}]", element)

    def _product(self, result, value, k, extents, weight):
        """Multiplies rows, `%x.rows` or the result of the gate, with the weights of their experts."""
        layer, block = self.layer, FORMATS[self.layer.format][0]
        rows, element = ("x.rows" if value == "x" else value), "f32" if value == "gated" else self.element
        factor = f", alpha = %{weight}.alpha" if layer.format == "nvfp4" else ""
        left = f"%{rows}"
        if layer.activations is not None:
            codes, scale = CODES[layer.activations]
            attributes = " {block = 32, scale_rounding = floor}"
            if layer.activations == "nvfp4":
                self._scale(value, element, weight)
                attributes, factor = f", %{weight}.g {{block = 16}}", f", alpha = %{weight}.factor"
            quantized = f"tensor<[S, {k}], {codes}>, tensor<[S, {k // block}], {scale}, linear>"
            self.line(f"%{weight}.a, %{weight}.sfa = block_quantize %{rows}{attributes} : {quantized}")
            left = f"%{weight}.a, %{weight}.sfa"
        operands = f"{left}, %{weight}, %{weight}.scales, %ends{factor}"
        self.line(f"%{result} = grouped_scaled_mma {operands} {{block = {block}}} : tensor<{extents}, f32>")

    def _scale(self, value, element, weight):
        """Computes the per-tensor scale of a value, amax / (448 * 6), and its products with those of the weights."""
        self.line(f"%{weight}.amax = reduce %{value} {{axes = [0, 1], kind = amax, keep_dims = true}} : tensor<[1, 1], {element}>")
        self.line(f"%{weight}.one = reshape %{weight}.amax : tensor<[1], {element}>")
        one = f"{weight}.one"
        if element != "f32":
            self.line(f"%{weight}.wide = convert %{one} : tensor<[1], f32>")
            one = f"{weight}.wide"
        self.line(f"%{weight}.largest = constant {{value = 2688}} : tensor<[1], f32>")
        self.line(f"%{weight}.g = div %{one}, %{weight}.largest : tensor<[1], f32>")
        self.line(f"%{weight}.factor = mul %{weight}.alpha, %{weight}.g : tensor<[{self.layer.num_experts}], f32>")

    def _bias(self, result, extents, name=None):
        """Adds the bias of each row's expert to `%{name}.plain`."""
        name = name or result
        if self.layer.gate_bias is None:
            return
        element = WORDS[self.layer.gate_bias.dtype]
        self.line(f"%{name}.of = gather %{name}.bias, %expert {{axis = 0}} : tensor<{extents}, {element}>")
        self.line(f"%{result} = add %{name}.plain, %{name}.of : tensor<{extents}, f32>")


def choices(format):
    """The formats of activations for experts in this format."""
    return (None, "nvfp4") if format == "nvfp4" else (None, "mxfp8", "mxfp4")


def is_experts(module):
    """True for a module of transformers with stacked weights of experts and a gate."""
    weights = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    attributes = ("_apply_gate", "is_transposed", "is_concatenated", "has_bias")
    is_known = getattr(module, "has_gate", False) and all(hasattr(module, name) for name in attributes)
    return is_known and all(type(weight) is torch.nn.Parameter and weight.dim() == 3 for weight in weights)


def replacement(module, activations, format):
    """The layer that replaces experts, or None if the module stays."""
    if module._forward_hooks or module._forward_pre_hooks or activations not in choices(format):
        return None
    weights = [getattr(module, name).detach() for name in ("gate_up_proj", "down_proj")]
    if module.is_transposed:
        weights = [weight.transpose(1, 2) for weight in weights]
    block = FORMATS[format][0]
    if any(weight.dtype not in WORDS or weight.shape[2] % block for weight in weights):
        return None
    gate = find_gate(module, module.is_concatenated)
    if gate is None:
        return None
    gate_up, down = weights
    biases = None
    if module.has_bias:
        gate_up_bias, down_bias = module.gate_up_proj_bias.detach(), module.down_proj_bias.detach()
        if module.is_concatenated:
            gate_bias, up_bias = gate_up_bias.chunk(2, 1)
        else:
            gate_bias, up_bias = gate_up_bias[:, ::2], gate_up_bias[:, 1::2]
        biases = (gate_bias.contiguous(), up_bias.contiguous(), down_bias.clone())
    alternating = module.is_concatenated
    parts = [_quantized(weight, format, alternating and weight is gate_up) for weight in (gate_up, down)]
    return Experts(*parts, gate, biases, activations, format).train(module.training)


def report_of(model, options):
    """The plans of a model's experts; see `fourfold.torch.report`."""
    if "target" in options or not torch.cuda.is_available():
        options = {"device": "none", **options}
    backend, found = Backend(**options), []
    for name, layer in model.named_modules():
        if isinstance(layer, Experts):
            plan = backend.plan(layer.program(torch.bfloat16, torch.float32))
            found.append(dict(
                name=name, activations=NAMES[layer.activations], kernels=[kernel.name for kernel in plan.kernels],
                device=[segment.name for segment in plan.segments if segment.tier == "device" and segment.name != "view"],
                fallback=[decision.name for decision in plan.decisions if decision.tier == "fallback"],
            ))
    return found


def _quantized(weight, format, alternate):
    """Codes, swizzled scales and factors of a weight [E, N, K], expert by expert, so that copies stay small.

    With `alternate`, the first half of the rows and the second one alternate in the result.
    """
    codes, scales, factors = [], [], []
    for matrix in weight:
        if alternate:
            matrix = torch.stack(matrix.chunk(2), 1).flatten(0, 1)
        found = quantize(matrix.contiguous(), "dynamic" if format == "nvfp4" else None, format=format, swizzled=True)
        codes.append(found[0])
        scales.append(found[1])
        factors.append(matrix.new_ones(1, dtype=torch.float32) if found[2] is None else found[2])
    return torch.stack(codes), torch.stack(scales), torch.cat(factors)
