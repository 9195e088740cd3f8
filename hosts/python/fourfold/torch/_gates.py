"""The functions of gate and up projections that experts have, found by evaluating a module's own."""

import dataclasses

import torch
import torch.nn.functional as F

# Names of activations in programs, and the same functions of PyTorch.
ACTIVATIONS = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu,
}


@dataclasses.dataclass(frozen=True)
class Gate:
    """activation(min(gate, limit)) * (clamp(up, -limit, limit) + shift).

    With a `slope` instead of an activation, the first factor is g * sigmoid(slope * g), of g = min(gate, limit).
    """

    activation: str | None = None
    slope: float | None = None
    limit: float | None = None
    shift: float = 0.0

    def __call__(self, gate, up):
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        active = gate * torch.sigmoid(self.slope * gate) if self.activation is None else ACTIVATIONS[self.activation](gate)
        return active * (up + self.shift)

    def lines(self, extents):
        """The ops of a program that compute `%gated` from `%gate` and `%up`, all f32 with these extents."""
        ty, gate, up = f"tensor<{extents}, f32>", "gate", "up"
        if self.limit is not None:
            yield f"%gate.low = clamp %gate {{max = {self.limit}, min = -inf}} : {ty}"
            yield f"%up.bounded = clamp %up {{max = {self.limit}, min = -{self.limit}}} : {ty}"
            gate, up = "gate.low", "up.bounded"
        if self.activation is None:
            yield f"%slope = constant {{value = {self.slope}}} : tensor<[], f32>"
            yield f"%steep = mul %{gate}, %slope : {ty}"
            yield f"%open = sigmoid %steep : {ty}"
            yield f"%active = mul %{gate}, %open : {ty}"
        else:
            yield f"%active = {self.activation} %{gate} : {ty}"
        if self.shift:
            yield f"%shift = constant {{value = {self.shift}}} : tensor<[], f32>"
            yield f"%up.shifted = add %{up}, %shift : {ty}"
            up = "up.shifted"
        yield f"%gated = mul %active, %{up} : {ty}"


def candidates(module):
    """The gates that a module may have, by its attributes."""

    def first(*names):
        numbers = (getattr(module, name, None) for name in names)
        return next((float(number) for number in numbers if isinstance(number, (int, float))), None)

    limit, slope = first("limit", "swiglu_limit"), first("alpha", "swiglu_alpha")
    for bound in dict.fromkeys((None, limit)):
        yield from (Gate(activation=name, limit=bound) for name in ACTIVATIONS)
        if slope is not None:
            yield from (Gate(slope=slope, limit=bound, shift=shift) for shift in (0.0, 1.0))


def find_gate(module, is_concatenated):
    """The gate with the results of `module._apply_gate` on numbers far beyond its limit, or None."""
    width = max([1.0, *(gate.limit for gate in candidates(module) if gate.limit is not None)])
    device = module.down_proj.device
    numbers = torch.linspace(-3 * width, 3 * width, 31, device=device)
    gate, up = (side.flatten() for side in torch.meshgrid(numbers, numbers, indexing="ij"))
    joint = torch.cat([gate, up]) if is_concatenated else torch.stack([gate, up], -1).flatten()
    try:
        found = module._apply_gate(joint[None])[0]
    except (RuntimeError, TypeError, ValueError):
        # A gate with tensors of its own, or of other arguments.
        return None
    if found.shape != gate.shape:
        return None
    for candidate in candidates(module):
        if torch.allclose(candidate(gate, up), found, rtol=1e-4, atol=1e-5):
            return candidate
    return None
