"""Linear layers with FP4 weights, for compiled models and others."""

import math

import torch

from . import dequantize, quantize, scaled_mm, segment
from . import experts
from ._group import group_siblings
from ._ops import FORMATS, ops

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# The formats of weights that a layer has for its activations, by default first.
WEIGHTS = {
    "nvfp4": ("nvfp4",), "mxfp8": ("mxfp4",), "mxfp4": ("mxfp4",), None: ("nvfp4", "mxfp4"), "by_m": ("nvfp4",),
}
# The numbers that a weight in NVFP4 is multiplied with.
NAMES = {None: "W4A16", "nvfp4": "W4A4"}
# Buffers of a member that are slices of its group's tensors.
SLICES = ("weight", "weight_scale", "alpha", "bias")


@torch.compiler.assume_constant_result
def is_exporting():
    """`torch.compiler.is_exporting`, for which PyTorch 2.11 traces True in compiled models, too."""
    return torch.compiler.is_exporting()


class Linear(torch.nn.Module):
    """A linear layer with an FP4 weight in NVFP4 or MXFP4, `format`.

    `activations` is the format that they are quantized to: "nvfp4" (W4A4) for an NVFP4 weight, "mxfp8" (W4A8) or "mxfp4"
    for an MXFP4 weight, None (W4A16) for either. It may be assigned at any time, since the weight is the same.

    For an NVFP4 weight and 16-bit activations, each call may choose by its number of rows, M: "by_m" takes what was
    measured to be faster on the GPU (on the CPU None), and a dict has the largest M of each choice, in ascending order:
    `{64: None, math.inf: "nvfp4"}` quantizes more than 64 rows. `fourfold.torch.report` counts the choices. float32
    activations are quantized.

    The per-tensor scale of NVFP4 activations is `input_scale`, one float32 number that torchao's calibration found, or
    "dynamic": that of each call. With the former, codes and scales are those that torchao computes. 16-bit activations
    are multiplied as they are; float32 ones by the weight's numbers in float32.

    A layer may be a member of a group of siblings; see `quantize_`. It leaves its group when its tensors are replaced.
    """

    def __init__(self, codes, scales, scale, bias, activations, input_scale="dynamic", format="nvfp4"):
        """codes [N, K/2] and swizzled scales are uint8, scale is one float32 number, 1 for MXFP4."""
        super().__init__()
        self.format, self.activations, self.is_dynamic = format, activations, isinstance(input_scale, str)
        self.out_features, self.in_features = codes.shape[0], codes.shape[1] * 2
        self.register_buffer("weight", codes)
        self.register_buffer("weight_scale", scales)
        self.register_buffer("weight_global_scale", scale.reshape(1).float())
        self.register_buffer("input_scale", None if self.is_dynamic else input_scale)
        # What a static product is multiplied by; a product of the two scales in each call would be a launch.
        alpha = None if self.is_dynamic else self.input_scale * self.weight_global_scale
        self.register_buffer("alpha", alpha, persistent=False)
        self.register_buffer("bias", bias)
        self.group, self._rows, self._slices, self._scale_shape = None, None, None, scales.shape

    def join(self, group, rows, input_scale):
        """Makes the layer's tensors these rows, from the first up to the last, of a group's."""
        own = slice(*rows)
        slices = {name: None if joint is None else joint[own] for name, joint in group.tensors.items()}
        slices["weight_scale"] = slices["weight_scale"].view(self._scale_shape)
        self._buffers.update(slices, input_scale=input_scale)
        self.group, self._rows, self._slices = group, rows, slices

    def leave(self):
        """Keeps the layer's tensors, and forgets its group."""
        self.group = self._rows = self._slices = None

    def has_slices(self):
        """True if the layer's tensors are those that it got from its group. Functional calls replace them."""
        own = self._slices
        return (
            own is not None
            and self.weight is own["weight"]
            and self.weight_scale is own["weight_scale"]
            and self.alpha is own["alpha"]
            and self.bias is own["bias"]
        )

    def _settle(self):
        """Leaves the group if a tensor was replaced, or its memory by an assignment to `data`."""
        if self.group is None:
            return
        pairs = [(own, self.group.tensors[name]) for name, own in self._slices.items() if own is not None]
        is_shared = all(own.untyped_storage()._cdata == joint.untyped_storage()._cdata for own, joint in pairs)
        if not (self.has_slices() and is_shared and self.group.has_scale(self.input_scale)):
            self.leave()

    def __setattr__(self, name, value):
        if name == "activations":
            check_activations(value, self.format)
            super().__setattr__("_choice", _choice(value))
        super().__setattr__(name, value)
        if name in (*SLICES, "input_scale") and self.__dict__.get("group") is not None:
            self.leave()

    def __getstate__(self):
        self._settle()
        state = self.__dict__.copy()
        if self.group is not None:
            # The group has them.
            state["_buffers"] = self._buffers | dict.fromkeys(SLICES)
            state["_slices"] = None
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        if self.group is not None:
            self.join(self.group, self._rows, self.input_scale)

    def _apply(self, fn, recurse=True):
        """Keeps the per-tensor scales in float32, whatever the model is converted to."""
        self._settle()
        group, before = self.group, dict(self._buffers)
        scales = {name: before[name] for name in ("weight_global_scale", "alpha", "input_scale")}
        if group is not None:
            del scales["alpha"]
            place, moved = group.place(scales.pop("input_scale")), group.moved(fn)
            self._buffers.update(dict.fromkeys((*SLICES, "input_scale")))
        try:
            super()._apply(fn, recurse)
        except BaseException:
            self._buffers.update(before)
            raise
        if group is not None:
            self.join(moved, self._rows, moved.scales[place])
        for name, scale in scales.items():
            if scale is not None:
                self._buffers[name] = scale.to(self.weight.device)
        return self

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.input_scale is not None:
            # The files of safetensors take no tensors that share memory.
            destination[f"{prefix}input_scale"] = self.input_scale.clone()

    def _load_from_state_dict(self, state, prefix, *args):
        self._settle()
        if not self.is_dynamic:
            # Layers may share their scale, and a loaded state must not change that of others.
            self._buffers["input_scale"] = self.input_scale.clone()
        super()._load_from_state_dict(state, prefix, *args)
        if self.is_dynamic:
            return
        alpha = self.input_scale * self.weight_global_scale
        if self.group is None:
            self._buffers["alpha"] = alpha
        else:
            self._buffers["input_scale"] = self.group.shared(self.input_scale)
            self.alpha.copy_(alpha)

    def forward(self, x):
        rows = x.reshape(-1, self.in_features)
        if self._choice is not None:
            y = self._nvfp4(rows) if x.dtype == torch.float32 else self._by_m(rows)
        else:
            y = {"nvfp4": self._nvfp4, None: self._dense}.get(self.activations, self._mx)(rows)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _nvfp4(self, x):
        if self.is_dynamic:
            codes, scales, scale = quantize(x, "dynamic", swizzled=True)
            alpha = scale * self.weight_global_scale
        else:
            codes, scales, _ = quantize(x, self.input_scale, swizzled=True, rounding="torchao")
            alpha = self.alpha
        weight, weight_scale, bias = self.weight, self.weight_scale, self.bias
        is_compiled = torch.compiler.is_dynamo_compiling() and not is_exporting()
        if is_compiled and self.has_slices():
            # Slices in the graph tell the pass which products are one. An exported program has each weight once.
            # The compiled graph has guards for `has_slices`.
            joint, own = self.group.tensors, slice(*self._rows)
            weight, weight_scale, alpha = joint["weight"][own], joint["weight_scale"][own], joint["alpha"][own]
            bias = None if bias is None else joint["bias"][own]
        return scaled_mm(
            codes, scales, weight, weight_scale, alpha=alpha, bias=bias, out_dtype=x.dtype, format="nvfp4",
            swizzled=True,
        )

    def _by_m(self, x):
        first, ends = self._choice
        # The alpha of a member of a group is repeated for each column.
        scale, alpha = (None, None) if self.is_dynamic else (self.input_scale, self.alpha[:1])
        return ops.scaled_mm_by_m(
            x, self.weight, self.weight_scale, self.weight_global_scale, scale, alpha, self.bias, first=first, ends=ends,
            out_dtype=x.dtype,
        )

    def _mx(self, x):
        codes, scales, _ = quantize(x, format=self.activations, swizzled=True)
        pair = "mxfp4" if self.activations == "mxfp4" else f"{self.activations} x mxfp4"
        return scaled_mm(
            codes, scales, self.weight, self.weight_scale, bias=self.bias, out_dtype=x.dtype, format=pair, swizzled=True
        )

    def _dense(self, x):
        scale = self.weight_global_scale if self.format == "nvfp4" else None
        if x.dtype == torch.float32:
            weight = dequantize(
                self.weight, self.weight_scale, scale, format=self.format, swizzled=True, out_dtype=torch.float32
            )
            return torch.nn.functional.linear(x, weight, None if self.bias is None else self.bias.float())
        return scaled_mm(
            x, None, self.weight, self.weight_scale, alpha=scale, bias=self.bias, out_dtype=x.dtype, format=self.format,
            swizzled=True,
        )

    def extra_repr(self):
        extents = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{extents}, format={self.format}, activations={self.activations}"


def _choice(activations):
    """The first choice and the largest M of each but the last, for the op; None for the same choice for every M."""
    if activations == "by_m":
        return "measured", []
    if not isinstance(activations, dict):
        return None
    chosen = []
    for end, form in activations.items():
        if chosen and chosen[-1][1] == form:
            chosen.pop()
        chosen.append((end, form))
    return NAMES[chosen[0][1]], [end for end, _ in chosen[:-1]]


def check_activations(activations, format):
    if isinstance(activations, dict):
        ends = list(activations)
        whole = all(isinstance(end, int) and 0 <= end < 2**32 for end in ends[:-1])
        ascending = all(end < following for end, following in zip(ends, ends[1:]))
        forms = all(form is None or form == "nvfp4" for form in activations.values())
        if format != "nvfp4" or not (ends and ends[-1] == math.inf and whole and ascending and forms):
            raise ValueError(
                f"activations is {activations!r}; expected the largest M of each choice in ascending order, math.inf "
                'last, with None or "nvfp4", for a weight in nvfp4: {64: None, math.inf: "nvfp4"}'
            )
        return
    if activations not in WEIGHTS or format not in WEIGHTS[activations]:
        known = ", ".join(repr(name) for name in WEIGHTS if format in WEIGHTS[name])
        raise ValueError(f"activations is {activations!r}; expected {known} for a weight in {format}")


def _from_torchao(weight, activations):
    """Codes, swizzled scales, per-tensor scale, activations and their scale of an NVFP4Tensor of torchao."""
    codes, (n, k) = weight.qdata, weight.shape
    scales = weight.scale.contiguous().view(torch.uint8)
    if not weight.is_swizzled_scales:
        scales = _swizzle(scales.reshape(n, k // 16))
    scale = weight.per_tensor_scale
    scale = torch.ones(1, device=codes.device) if scale is None else scale
    given = weight.act_quant_kwargs
    input_scale = "dynamic"
    if given is not None and not given.use_dynamic_per_tensor_scale:
        input_scale = weight.act_per_tensor_scale
        input_scale = torch.ones(1, device=codes.device) if input_scale is None else input_scale.reshape(1).float()
    if activations == "auto":
        activations = None if given is None else "nvfp4"
    return codes, scales, scale, activations, input_scale


def _swizzle(scales):
    n, count = scales.shape
    program = (
        f"fir 1\nfunc @swizzle(%s: tensor<[{n}, {count}], f8E4M3FN, linear>) {{\n"
        f"  %b = swizzle_scales %s : tensor<[{n}, {count}], f8E4M3FN, blocked>\n  return %b\n}}\n"
    )
    return segment(program, scales)[0]


@torch.no_grad()
def quantize_(model, activations="auto", filter=None, group=True, weights=None):
    """Replaces linear layers and experts of a model by layers with FP4 weights, in place. Returns their names.

    Takes `torch.nn.Linear` with dense weights, which it quantizes, and those that torchao quantized to NVFP4; and modules
    of the transformers library with the stacked weights of experts, which become `fourfold.torch.experts.Experts`.
    Others, such as those with forward hooks, or whose K is not a multiple of 16 (MXFP4: 32), stay as they are.

    `activations`: the format of activations: "nvfp4" (W4A4), "mxfp8" (W4A8), "mxfp4", or None (W4A16), which multiplies
    16-bit activations as they are, or "by_m" or a dict, which choose between "nvfp4" and None by the number of rows; see
    `Linear` [default: "auto", torchao's, "nvfp4" for dense weights]. With the latter two, experts stay as they are.
    `weights`: "nvfp4" or "mxfp4" [default: "mxfp4" for MX activations, else "nvfp4"].
    `filter`: a function of module and name that says if a layer is replaced [default: all].
    `group`: join the tensors of sibling layers, such as those of q, k and v, for which torchao found one scale of
    activations. A compiled model then multiplies their common input once. Members have fewer than 8,192 columns, in
    multiples of 128, and the same K. [default: True]
    """
    if activations == "auto":
        weights = weights or "nvfp4"
        if weights != "nvfp4":
            raise ValueError('weights in mxfp4 need activations: "mxfp8", "mxfp4" or None')
    elif isinstance(activations, dict) or activations in WEIGHTS:
        weights = weights or ("nvfp4" if isinstance(activations, dict) else WEIGHTS[activations][0])
        check_activations(activations, weights)
    else:
        raise ValueError(
            f'activations is {activations!r}; expected "nvfp4", "mxfp8", "mxfp4", None, "by_m", a dict or "auto"'
        )
    replaced, made, parents = [], {}, {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        is_known = type(module) is torch.nn.Linear or experts.is_experts(module)
        if not is_known or (filter is not None and not filter(module, name)):
            continue
        if not name:
            raise ValueError("the model itself is a layer that is replaced: wrap it in a module")
        if module not in made:
            made[module] = _replacement(module, activations, weights)
        if made[module] is None:
            continue
        parent, _, child = name.rpartition(".")
        parent = model.get_submodule(parent)
        setattr(parent, child, made[module])
        if isinstance(made[module], Linear):
            _share_input_scale(parent, made[module])
        parents[parent] = None
        if isinstance(parent, torch.nn.TransformerEncoderLayer):
            # PyTorch's fast path would read the weight of the layer.
            parent.activation_relu_or_gelu = 0
        replaced.append(name)
    for parent in parents if group else ():
        group_siblings([child for child in parent.children() if isinstance(child, Linear)])
    return replaced


def _share_input_scale(parent, layer):
    """Lets sibling layers with equal scales, such as those of q, k and v, share one tensor.

    A compiled model then quantizes their common input once.
    """
    for other in parent.children():
        if isinstance(other, Linear) and None not in (other.input_scale, layer.input_scale):
            if torch.equal(other.input_scale, layer.input_scale):
                layer.input_scale = other.input_scale
                return


def _replacement(module, activations, weights):
    """The layer that replaces a module, or None if the module stays."""
    if experts.is_experts(module):
        return experts.replacement(module, "nvfp4" if activations == "auto" else activations, weights)
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
    if type(weight).__name__ == "NVFP4Tensor" and weights == "nvfp4":
        parts = _from_torchao(weight, activations)
    elif type(weight) is torch.Tensor and weight.dtype in FLOATS and weight.shape[1] % FORMATS[weights][0] == 0:
        codes, scales, scale = quantize(weight, "dynamic" if weights == "nvfp4" else None, format=weights, swizzled=True)
        scale = torch.ones(1, device=codes.device) if scale is None else scale
        parts = (codes, scales, scale, "nvfp4" if activations == "auto" else activations, "dynamic")
    else:
        return None
    return Linear(*parts[:3], bias, *parts[3:], format=weights).train(module.training)
