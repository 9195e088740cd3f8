"""Translates nodes of FX graphs into ops of a program, each with PyTorch's own roundings.

PyTorch computes an elementwise op on narrow floats in f32, and rounds the result. So an op becomes widening converts,
the op in f32, and a narrowing convert.
"""

import operator

import torch

from ._ops import ACTIVATIONS, FORMATS, formats
from ._program import Unsupported, result, tensor

aten, prims = torch.ops.aten, torch.ops.prims
UNARY = {
    aten.abs.default: "abs",
    aten.erf.default: "erf",
    aten.exp.default: "exp",
    aten.gelu.default: None,
    aten.neg.default: "neg",
    aten.reciprocal.default: "reciprocal",
    aten.relu.default: "relu",
    aten.rsqrt.default: "rsqrt",
    aten.sigmoid.default: "sigmoid",
    aten.silu.default: "silu",
    aten.sqrt.default: "sqrt",
    aten.tanh.default: "tanh",
}
BINARY = {
    aten.add.Tensor: "add",
    aten.sub.Tensor: "sub",
    aten.mul.Tensor: "mul",
    aten.div.Tensor: "div",
    aten.maximum.default: "max",
    aten.minimum.default: "min",
    aten.clamp_min.default: "max",
    aten.clamp_max.default: "min",
}
RESHAPES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default)
# torch.nn.functional.ScalingType and SwizzleType.
TENSOR_WISE, NVFP4_BLOCKS, MX_BLOCKS, SWIZZLED = 0, 2, 3, 1
# The codes of a format: their type, and their dtype beside uint8.
CODES = {
    "nvfp4": ("f4E2M1FN", torch.float4_e2m1fn_x2),
    "mxfp4": ("f4E2M1FN", torch.float4_e2m1fn_x2),
    "mxfp8": ("f8E4M3FN", torch.float8_e4m3fn),
    "mxfp8_e5m2": ("f8E5M2", torch.float8_e5m2),
}
# The attributes of torchao's quantization, as in `hosts/python/src/programs.rs`.
TORCHAO = ", scale_min = 0.015625, codes = reciprocal_scale, guard = false"


def is_root(node):
    """True for block-scaled products, and for dense ones with a dequantized weight."""
    if node.op != "call_function" or node.target not in ROOTS:
        return False
    if node.target is aten._grouped_mm.default:
        return dequantized(node.args[1]) is not None
    return node.target not in DENSE or dequantized(node.args[-1]) is not None


def translate(program, node):
    """Adds a node's ops to the program. Its inputs are values of the program or become inputs."""
    if node.op != "call_function":
        raise Unsupported(f"{node} is no call")
    if is_root(node):
        return ROOTS[node.target](program, node)
    if node.target is torch.ops.fourfold.quantize.default:
        return _quantize(program, node)
    shape, element = result(node)
    extents = program.extents(shape)
    if node.target is prims.convert_element_type.default:
        name, _, given = program.value(node.args[0])
        name = program.convert(name, extents, given, element)
    elif node.target in RESHAPES:
        name, given, _ = program.value(node.args[0])
        name = name if given == extents else program.op(f"reshape %{name}", extents, element)
    elif node.target in UNARY:
        name, given, narrow = program.value(node.args[0])
        wide = program.convert(name, given, narrow, "f32")
        name = program.op(f"{_function(node)} %{wide}", extents, "f32")
        name = program.convert(name, extents, "f32", element)
    elif program.is_rowwise and node.target in (aten.pow.Tensor_Scalar, aten.mean.dim):
        name = _row_op(program, node, extents, element)
    elif node.target in BINARY:
        name = _binary(program, node, extents, element)
    else:
        raise Unsupported(f"{node.target} is not translated")
    return program.define(node, name, extents, element)


def _function(node):
    if node.target is not aten.gelu.default:
        return UNARY[node.target]
    return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"


def _row_op(program, node, extents, element):
    """The square and the mean of a norm, in f32."""
    name, given, found = program.value(node.args[0])
    if found != "f32" or element != "f32":
        raise Unsupported(f"{node} is not in f32")
    if node.target is aten.pow.Tensor_Scalar:
        if node.args[1] != 2:
            raise Unsupported(f"{node} is no square")
        return program.op(f"mul %{name}, %{name}", extents, "f32")
    rank = tensor(node.args[0]).dim()
    if [axis % rank for axis in node.args[1]] != [rank - 1] or list(node.args[2:]) != [True] or node.kwargs:
        raise Unsupported(f"{node} is no mean of rows")
    return program.op(f"reduce %{name} {{axes = [{len(given) - 1}], keep_dims = true, kind = mean}}", extents, "f32")


def _binary(program, node, extents, element):
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.keys() - {"alpha"}:
        raise Unsupported(f"{node} has the options {node.kwargs}")
    names = []
    for argument in node.args:
        if isinstance(argument, (int, float)):
            names.append(program.constant(argument))
        elif isinstance(argument, torch.fx.Node):
            name, given, narrow = program.value(argument)
            # Ops join types. An input stays narrow, because its conversion would not be part of the kernel.
            is_input = program.is_input(argument)
            names.append(name if is_input else program.convert(name, given, narrow, "f32"))
        else:
            raise Unsupported(f"{node} has the argument {argument}")
    name = program.op(f"{BINARY[node.target]} %{names[0]}, %{names[1]}", extents, "f32")
    return program.convert(name, extents, "f32", element)


def _viewed(node):
    """The bytes that a node views as another dtype. Inductor would copy them, and does not know FP4."""
    while node.target is aten.view.dtype and tensor(node.args[0]).dtype == torch.uint8:
        node = node.args[0]
    return node


def _codes(program, node, leading, columns, format):
    """An input of codes, K-major, with these leading extents."""
    node, (element, typed) = _viewed(node), CODES[format]
    if tensor(node).dtype not in (torch.uint8, typed):
        raise Unsupported(f"operands are {tensor(node).dtype}; {format} has {typed}")
    return program.input(node, [*leading, columns], element)


def _scale_element(block):
    return ("f8E4M3FN", torch.float8_e4m3fn) if block == 16 else ("f8E8M0FNU", torch.float8_e8m0fnu)


def _scales(program, node, leading, columns, block, swizzled, wanted="blocked"):
    node, (element, typed) = _viewed(node), _scale_element(block)
    if tensor(node).dtype not in (torch.uint8, typed):
        raise Unsupported(f"scales are {node.meta['val'].dtype}")
    extents, layout = [*leading, str(columns // block)], "blocked" if swizzled else "linear"
    name = program.input(node, extents, f"{element}, {layout}")
    return name if layout == wanted else program.op(f"swizzle_scales %{name}", extents, f"{element}, {wanted}")


def _number(program, node):
    """A value of one element, as an input of the extents [1]."""
    value = tensor(node)
    if value.dtype != torch.float32 or value.numel() != 1:
        raise Unsupported(f"{node} is no f32 number")
    if value.dim() != 1:
        node = _inserted(node, aten.reshape.default, (node, [1]))
    return program.input(node, ["1"], "f32")


def _inserted(node, target, args):
    """A new node behind `node`. It is removed with other dead nodes if the region is not taken."""
    graph = node.graph
    for user in node.users:
        if user.target is target and user.args == args:
            return user
    with graph.inserting_after(max((a for a in args if isinstance(a, torch.fx.Node)), key=_position(graph))):
        made = graph.call_function(target, args)
    values = [tensor(arg) if isinstance(arg, torch.fx.Node) else arg for arg in args]
    made.meta["val"] = target(*values)
    return made


def _position(graph):
    places = {node: place for place, node in enumerate(graph.nodes)}
    return places.__getitem__


def _extents_of_product(program, a, b, packed):
    """The texts of M and N, and K as a number. `b` is [N, K] in memory, with codes in a byte as for each operand."""
    rows, columns = tensor(a).shape, tensor(b).shape
    if len(rows) != 2 or len(columns) != 2:
        raise Unsupported("the product is batched")
    n, k = program.extent(columns[0]), program.extent(columns[1])
    if not (n.isdigit() and k.isdigit()):
        raise Unsupported("N or K is symbolic")
    if isinstance(rows[0], int):
        program.rows = rows[0]
    k = int(k) * packed[1]
    if rows[1] * packed[0] != k:
        raise Unsupported(f"A has {rows[1] * packed[0]} elements of K, and B {k}")
    return program.extents(rows)[0], n, k


def _product(program, a, b, scales, pair, swizzled, alpha, bias, activation, element, node):
    """A product and its first roundings. `b` is [N, K] in memory. `pair` has the format of A, None without scales."""
    block, packed = FORMATS[pair[1]]
    m, n, k = _extents_of_product(program, a, b, (1 if pair[0] is None else FORMATS[pair[0]][1], packed))
    if k % block:
        raise Unsupported(f"K is {k}, no multiple of {block}")
    if pair[0] is None:
        left, right = f"%{program.value(a)[0]}", _codes(program, b, [n], str(k), pair[1])
    else:
        left, right = f"%{_codes(program, a, [m], str(k), pair[0])}", _codes(program, b, [n], str(k), pair[1])
        left += f", %{_scales(program, scales[0], [m], k, block, swizzled[0])}"
    sfb = _scales(program, scales[1], [n], k, block, swizzled[1])
    is_row = alpha is not None and n != "1" and list(tensor(alpha).shape) == [int(n)]
    if is_row and tensor(alpha).dtype != torch.float32:
        raise Unsupported("alpha is not in float32")
    factor = f", alpha = %{_number(program, alpha)}" if alpha is not None and not is_row else ""
    extents = [m, n]
    name = program.op(f"scaled_mma {left}, %{right}, %{sfb}{factor} {{block = {block}}}", extents, "f32")
    if is_row:
        factors, _, _ = program.value(alpha)
        name = program.op(f"mul %{name}, %{factors}", extents, "f32")
    return _rounded(program, name, extents, bias, activation, element, node)


def _rounded(program, name, extents, bias, activation, element, node):
    """The bias, the activation and the rounding of a product in f32."""
    if bias is not None:
        added, _, _ = program.value(bias)
        name = program.op(f"add %{name}, %{added}", extents, "f32")
    if activation != "none":
        name = program.op(f"{activation} %{name}", extents, "f32")
    name = program.convert(name, extents, "f32", element)
    return program.define(node, name, extents, element)


def _transposed(node):
    """The matrix whose transpose a node is, K-major in memory."""
    value = tensor(node)
    if value.dim() != 2:
        raise Unsupported("the product is batched")
    if value.stride(0) != 1:
        raise Unsupported("B is not K-major in memory")
    node = _viewed(node)
    if node.target is aten.permute.default and list(node.args[1]) == [1, 0]:
        return node.args[0]
    return _inserted(node, aten.permute.default, (node, [1, 0]))


def _pair(codes, scales):
    """The formats of operands with these codes and scales."""
    found = []
    for operand, scale in zip(codes, scales):
        dtypes = (tensor(operand).dtype, tensor(scale).dtype)
        block = {torch.float8_e4m3fn: 16, torch.float8_e8m0fnu: 32}.get(dtypes[1])
        names = [name for name in FORMATS if FORMATS[name][0] == block and CODES[name][1] == dtypes[0]]
        if not names:
            raise Unsupported(f"the product is not block-scaled: codes are {dtypes[0]}, and scales {dtypes[1]}")
        found.append(names[0])
    if FORMATS[found[0]][0] != FORMATS[found[1]][0]:
        raise Unsupported(f"{found[0]} and {found[1]} have other blocks")
    return tuple(found)


def arguments(node):
    """The arguments of a node by name, defaults included."""
    schema = node.target._schema.arguments
    given = dict(zip((argument.name for argument in schema), node.args)) | node.kwargs
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema}


def _scaled_mm(program, node):
    given = arguments(node)
    if given["scale_result"] is not None:
        raise Unsupported("scale_result is given")
    scales, element = (given["scale_a"], given["scale_b"]), result(node)[1]
    a, pair = given["self"], _pair((given["self"], given["mat2"]), scales)
    b = _transposed(given["mat2"])
    return _product(program, a, b, scales, pair, (True, True), None, given["bias"], "none", element, node)


def _scaled_mm_v2(program, node):
    given = arguments(node)
    recipes, element = (list(given["recipe_a"]), list(given["recipe_b"])), result(node)[1]
    block = {NVFP4_BLOCKS: 16, MX_BLOCKS: 32}.get(recipes[0][0])
    if block is None or recipes[0] != recipes[1] or recipes[0][1:] not in ([], [TENSOR_WISE]):
        raise Unsupported(f"the recipes are {recipes[0]} and {recipes[1]}")
    if given["contraction_dim"]:
        raise Unsupported("contraction_dim is given")
    scales, swizzled = (given["scale_a"], given["scale_b"]), []
    for swizzles in (given["swizzle_a"], given["swizzle_b"]):
        swizzled.append(bool(swizzles) and swizzles[0] == SWIZZLED)
    alpha = None
    if len(recipes[0]) == 2:
        pair = (scales[0][1], scales[1][1])
        alpha = _inserted(pair[0], aten.mul.Tensor, pair)
    a, first = given["self"], (scales[0][0], scales[1][0])
    pair, b = _pair((a, given["mat2"]), first), _transposed(given["mat2"])
    if FORMATS[pair[0]][0] != block:
        raise Unsupported(f"the recipe has blocks of {block}, and the scales are those of {pair[0]}")
    return _product(program, a, b, first, pair, swizzled, alpha, given["bias"], "none", element, node)


def _fourfold_scaled_mm(program, node):
    given = arguments(node)
    pair = formats(given["format"], given["sfa"] is not None)
    if pair is None or given["activation"] not in ACTIVATIONS:
        raise Unsupported("the arguments are invalid")
    scales, swizzled = (given["sfa"], given["sfb"]), (given["swizzled_a"], given["swizzled_b"])
    return _product(
        program, given["a"], given["b"], scales, pair, swizzled, given["alpha"], given["bias"], given["activation"],
        result(node)[1], node,
    )


def dequantized(node):
    """The arguments of the `fourfold::dequantize` whose [.., N, K] result a [.., K, N] value transposes, or None."""
    transposed = False
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        if node.target is torch.ops.fourfold.dequantize.default:
            return arguments(node) if transposed else None
        rank = tensor(node).dim()
        if node.target is not aten.permute.default or list(node.args[1]) != [*range(rank - 2), rank - 1, rank - 2]:
            return None
        node, transposed = node.args[0], not transposed
    return None


def _dense(program, node):
    """A product in 16 bits with a dequantized weight. The plan says if a kernel takes the codes and keeps the bits."""
    a, given = node.args[-2], dequantized(node.args[-1])
    format, element = given["format"], result(node)[1]
    if format not in FORMATS or element == "f32" or node.kwargs.keys() - {"out_dtype"} or len(node.args) > 3:
        raise Unsupported("the weight-only product has other arguments than 16-bit operands")
    block, packed = FORMATS[format]
    m, n, k = _extents_of_product(program, a, given["codes"], (1, packed))
    left = program.value(a)[0]
    codes = _codes(program, given["codes"], [n], str(k), format)
    scales = _scales(program, given["scales"], [n], k, block, given["swizzled"], "linear")
    factor = "" if given["scale"] is None else f", %{_number(program, given['scale'])}"
    weight = program.op(f"block_dequantize %{codes}, %{scales}{factor} {{block = {block}}}", [n, str(k)], element)
    name = program.op(f"mma %{left}, %{weight}", [m, n], "f32")
    bias = node.args[0] if node.target is aten.addmm.default else None
    return _rounded(program, name, [m, n], bias, "none", element, node)


def _extents_of_groups(program, a, b, packed):
    """The texts of T, of E and N, and K as a number, for codes in a byte as for each operand."""
    rows, columns = tensor(a).shape, tensor(b).shape
    if len(rows) != 2 or len(columns) != 3:
        raise Unsupported("the product of groups is not one of rows and a matrix for each group")
    leading, k = [program.extent(size) for size in columns[:2]], columns[2] * packed[1]
    if not all(extent.isdigit() for extent in leading) or not isinstance(k, int) or rows[1] * packed[0] != k:
        raise Unsupported("E, N or K is symbolic, or A has another K")
    if isinstance(rows[0], int):
        program.rows = rows[0]
    return program.extents(rows)[0], leading, k


def _fourfold_grouped_mm(program, node):
    """A product of rows sorted by expert, without a bias: rows of a bias are gathered by another kernel."""
    given = arguments(node)
    pair, alpha = formats(given["format"], given["sfa"] is not None), given["alpha"]
    if pair is None or given["activation"] not in ACTIVATIONS or given["bias"] is not None:
        raise Unsupported("the arguments are invalid, or there is a bias")
    a, (block, packed) = given["a"], FORMATS[pair[1]]
    m, leading, k = _extents_of_groups(program, a, given["b"], (1 if pair[0] is None else FORMATS[pair[0]][1], packed))
    if k % block:
        raise Unsupported(f"K is {k}, no multiple of {block}")
    if pair[0] is None:
        left = f"%{program.value(a)[0]}"
    else:
        left = f"%{_codes(program, a, [m], str(k), pair[0])}"
        left += f", %{_scales(program, given['sfa'], [m], k, block, False, 'linear')}"
    codes = _codes(program, given["b"], leading, str(k), pair[1])
    scales = _scales(program, given["sfb"], leading, k, block, given["swizzled_b"])
    ends, factor = program.input(given["ends"], leading[:1], "i32"), ""
    if alpha is not None and list(tensor(alpha).shape) == [int(leading[0])]:
        factor = f", alpha = %{program.value(alpha)[0]}"
    elif alpha is not None:
        factor = f", alpha = %{_number(program, alpha)}"
    extents = [m, leading[1]]
    name = program.op(f"grouped_scaled_mma {left}, %{codes}, %{scales}, %{ends}{factor} {{block = {block}}}", extents, "f32")
    return _rounded(program, name, extents, None, given["activation"], result(node)[1], node)


def _grouped(program, node):
    """A product of rows sorted by expert, in 16 bits, with dequantized weights.

    No program has a dense product of groups, so only numbers that are exact in 16 bits are taken.
    """
    given, weight = arguments(node), dequantized(node.args[1])
    a, ends, element = given["self"], given["offs"], result(node)[1]
    others = given.keys() - {"self", "mat2", "offs"}
    if ends is None or tensor(ends).dtype != torch.int32 or any(given[name] is not None for name in others):
        raise Unsupported("the product of groups has other arguments than two operands and int32 ends")
    if weight["format"] != "nvfp4" or weight["scale"] is not None or element == "f32":
        raise Unsupported("numbers of the weights are rounded; NVFP4 without a per-tensor scale is exact in 16 bits")
    m, leading, k = _extents_of_groups(program, a, weight["codes"], (1, 2))
    left, extents = program.value(a)[0], [m, leading[1]]
    codes = _codes(program, weight["codes"], leading, str(k), "nvfp4")
    scales = _scales(program, weight["scales"], leading, k, 16, weight["swizzled"])
    ends = program.input(ends, leading[:1], "i32")
    name = program.op(f"grouped_scaled_mma %{left}, %{codes}, %{scales}, %{ends} {{block = 16}}", extents, "f32")
    return _rounded(program, name, extents, None, "none", element, node)


DENSE = (aten.mm.default, aten.addmm.default)
ROOTS = {
    aten._grouped_mm.default: _grouped,
    aten.mm.default: _dense,
    aten.addmm.default: _dense,
    aten._scaled_mm.default: _scaled_mm,
    aten._scaled_mm_v2.default: _scaled_mm_v2,
    torch.ops.fourfold.scaled_mm.default: _fourfold_scaled_mm,
    torch.ops.fourfold.grouped_mm.default: _fourfold_grouped_mm,
}


def _quantize(program, node):
    """The last op of a region. Its results are codes and scales."""
    given = arguments(node)
    block = FORMATS.get(given["format"], (None,))[0]
    if program.rows is not None and tensor(given["x"]).dim() != 2:
        raise Unsupported("a batch is quantized, and the program has matrices")
    name, extents, _ = program.value(given["x"])
    if block is None or not extents[-1].isdigit() or int(extents[-1]) % block:
        raise Unsupported("the arguments are invalid")
    if block == 16:
        g = _number(program, given["scale"]) if given["scale"] is not None else program.constant(1)
        formula = TORCHAO if given["rounding"] == "torchao" else ""
        operands = f"%{name}, %{g} {{block = 16{formula}}}"
    else:
        operands = f"%{name} {{block = 32, scale_rounding = {given['rounding']}}}"
    layout = "blocked" if given["swizzled"] else "linear"
    scales = program.type([*extents[:-1], str(int(extents[-1]) // block)], f"{_scale_element(block)[0]}, {layout}")
    codes = program.type(extents, CODES[given["format"]][0])
    results = (program.name(), program.name())
    program.line(f"%{results[0]}, %{results[1]} = block_quantize {operands} : {codes}, {scales}")
    return results


def is_item(node):
    return node.op == "call_function" and node.target is operator.getitem
