"""Merges products that share A and whose B, SFB, alpha and bias are adjacent rows of joint tensors.

The layers of a group (`_group.py`) multiply slices of joint tensors. Such products become one, whose result has their
columns side by side. Each keeps its columns' alphas, so every element has the bits of its own product.
"""

import operator

import torch

from ._group import TILE_ROWS
from ._ops import FORMATS, formats, ops
from ._translate import arguments

aten = torch.ops.aten
SLICED = ("b", "sfb", "alpha", "bias")
OURS = (ops.segment.default, ops.scaled_mm.default, ops.quantize.default)
# Nodes whose result is a view of their input. With their new strides, some views need `reshape`.
VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default, aten.unsqueeze.default,
    aten.transpose.int, aten.squeeze.dim, aten.slice.Tensor, aten.expand.default,
)


def merge_siblings(graph, is_alone):
    """Merges sibling products for which `is_alone` holds: a larger kernel with an epilogue would not contain them."""
    families = {}
    for node in graph.nodes:
        found = member(node)
        if found is not None:
            families.setdefault(found[0], []).append((*found[1], node))
    for members in families.values():
        members = [(first, last, node) for first, last, node in members if is_alone(node) and not needs_matrix(node)]
        for run in runs(members):
            join(graph, run)


def member(node):
    """Returns the key by which products merge, and this product's rows of B; None for other nodes."""
    if node.op != "call_function" or node.target is not ops.scaled_mm.default:
        return None
    given, bases, rows = arguments(node), [], set()
    for name in SLICED:
        operand = given.pop(name)
        found = (None, None) if operand is None else rows_of(operand)
        if found is None:
            return None
        bases.append(found[0])
        rows.add(found[1])
    rows.discard(None)
    ranks = [given["a"].meta["val"].dim(), *(base.meta["val"].dim() for base in bases if base is not None)]
    if len(rows) != 1 or None in bases[:3] or ranks != [2, 2, 2, 1, 1][: len(ranks)]:
        return None
    (rows,) = rows
    return ((*bases, *given.values()), rows) if do_scales_join(given, *bases[:2], rows) else None


def do_scales_join(given, b, sfb, rows):
    """True if scales of adjacent rows form one matrix: linear, or swizzled in whole tiles."""
    pair = formats(given["format"], given["sfa"] is not None)
    if pair is None:
        return False
    block, packed = FORMATS[pair[1]]
    columns, found = b.meta["val"].shape[1] * packed // block, sfb.meta["val"].shape[1]
    if not given["swizzled_b"]:
        return found == columns
    return found == (columns + 3) // 4 * 4 and all(row % TILE_ROWS == 0 for row in rows)


def rows_of(node):
    """The tensor that a node has consecutive rows of, and the first and last row. None for other nodes."""
    if not isinstance(node, torch.fx.Node) or node.target is not aten.slice.Tensor:
        return None
    base, axis, first, last, step = (*node.args, *(0, None, None, 1)[len(node.args) - 1 :])
    count = base.meta["val"].shape[0]
    if axis != 0 or step != 1 or not isinstance(count, int):
        return None
    first, last = first or 0, count if last is None else min(last, count)
    return (base, (first, last)) if 0 <= first < last else None


def needs_matrix(node):
    """True if a user of the result, or of a view of it, needs the strides of a product of its own."""
    for user in node.users:
        if user.op == "output" or isinstance(user.target, torch._ops.HigherOrderOperator):
            # Callers expect the strides of the model that is not compiled, and ops that change views their own.
            return True
        if user.target in OURS:
            # The kernel would need a copy of the columns.
            return True
        if needs_matrix(user) if user.target in VIEWS else not storages(user).isdisjoint(storages(node)):
            # Other views, such as `as_strided`, may depend on strides.
            return True
    return False


def storages(node):
    """The memory that a node's results are views of."""
    found = node.meta.get("val")
    found = found if isinstance(found, (list, tuple)) else [found]
    tensors = [value for value in found if isinstance(value, torch.Tensor) and torch._C._has_storage(value)]
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def runs(members):
    """Lists of at least two members whose rows are one behind the other."""
    found = []
    for item in sorted(members, key=operator.itemgetter(0)):
        if found and found[-1][-1][1] == item[0]:
            found[-1].append(item)
        else:
            found.append([item])
    return [run for run in found if len(run) > 1]


def join(graph, run):
    """Replaces products by slices of the columns of one."""
    first, last = run[0][0], run[-1][1]
    nodes = {node for _, _, node in run}
    given = arguments(run[0][2])
    with graph.inserting_before(next(node for node in graph.nodes if node in nodes)):
        operands = [given.pop("a"), given.pop("sfa")]
        operands += [rows_between(graph, given.pop(name), first, last) for name in SLICED]
        product = call(graph, ops.scaled_mm.default, tuple(operands), given)
        columns = [call(graph, aten.slice.Tensor, (product, 1, start - first, end - first)) for start, end, _ in run]
    for (_, _, node), part in zip(run, columns):
        node.replace_all_uses_with(part)
        graph.erase_node(node)
        reshape_views(part)


def rows_between(graph, operand, first, last):
    if operand is None:
        return None
    base, _ = rows_of(operand)
    if (first, last) == (0, base.meta["val"].shape[0]):
        return base
    return call(graph, aten.slice.Tensor, (base, 0, first, last))


def call(graph, target, args, kwargs=None):
    node = graph.call_function(target, args, kwargs or {})
    values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
    node.meta["val"] = target(*values, **(kwargs or {}))
    return node


def reshape_views(node):
    for user in node.users:
        if user.target in VIEWS:
            if user.target in (aten.view.default, aten._unsafe_view.default):
                user.target = aten.reshape.default
            reshape_views(user)
