"""Groups of sibling layers, such as those of q, k and v, whose weights are one behind the other in memory.

A compiled model then multiplies their common input once; see `_siblings.py`.
"""

import torch

# A product with so many columns fills a GPU by itself.
MAX_COLUMNS = 8192
# Scales are swizzled in tiles of so many rows, so that those of whole tiles join.
TILE_ROWS = 128


class Group:
    """The tensors of all members: weight, weight_scale [rows, ..], alpha [rows], and bias or None.

    Rows are those of all weights. A member has slices of the tensors. `scales` are the members' scales of activations:
    one, unless a state with different ones was loaded.
    """

    def __init__(self, tensors, scales):
        self.tensors, self.scales, self._moved = tensors, scales, (None, None)

    def moved(self, fn):
        """The group with `fn` applied. All members have the same one after a model is converted."""
        if self._moved[0] is not fn:
            names = ("weight", "weight_scale", "bias")
            moved = {name: None if self.tensors[name] is None else fn(self.tensors[name]) for name in names}
            device = moved["weight"].device
            moved["alpha"] = self.tensors["alpha"].to(device)
            self._moved = (fn, Group(moved, [scale.to(device) for scale in self.scales]))
        return self._moved[1]

    def has_scale(self, scale):
        return any(known is scale for known in self.scales)

    def place(self, scale):
        """The index of a member's scale."""
        return next(place for place, known in enumerate(self.scales) if known is scale)

    def shared(self, scale):
        """The tensor with the value of this scale, so that members that load equal scales share one."""
        if scale.is_meta:
            return self.scales[0]
        for known in self.scales:
            if torch.equal(known, scale):
                return known
        self.scales.append(scale)
        return scale

    def __getstate__(self):
        return self.__dict__ | {"_moved": (None, None)}


def group_siblings(layers):
    """Groups those of these sibling layers that may have a common input."""
    kinds = {}
    for layer in layers:
        if is_groupable(layer):
            bias = None if layer.bias is None else layer.bias.dtype
            key = (id(layer.input_scale), layer.in_features, bias, layer.weight.device)
            kinds.setdefault(key, []).append(layer)
    for members in kinds.values():
        if len(members) > 1:
            _join(members)


def is_groupable(layer):
    if layer.activations != "nvfp4" or layer.is_dynamic or layer.group is not None:
        return False
    n, columns = layer.out_features, -(-layer.in_features // 64) * 4
    is_whole = n % TILE_ROWS == 0 and layer.weight_scale.numel() == n * columns
    return is_whole and n < MAX_COLUMNS and layer.weight_scale.is_contiguous()


def _join(members):
    first = members[0]
    tensors = {
        "weight": torch.cat([layer.weight for layer in members]),
        "weight_scale": torch.cat([layer.weight_scale.view(layer.out_features, -1) for layer in members]),
        "alpha": torch.cat([layer.alpha.expand(layer.out_features) for layer in members]),
        "bias": None if first.bias is None else torch.cat([layer.bias for layer in members]),
    }
    group, start = Group(tensors, [first.input_scale]), 0
    for layer in members:
        layer.join(group, (start, start + layer.out_features), first.input_scale)
        start += layer.out_features
