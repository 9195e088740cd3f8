"""Programs that the compile pass writes."""

import math

import numpy as np
import torch

FLOATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class Unsupported(Exception):
    """A node that is not translated. The text says why."""


class Program:
    """A program under construction.

    With `whole`, each distinct expression of an extent is one symbol, such as the rows of a batch of sequences.
    Otherwise an extent is a product of symbols, as a reshape of such rows needs.

    `rows` is the number of rows if it is known. It becomes the symbol R nevertheless, so that one program and its
    kernels serve every number of rows. Values are then matrices: leading axes are joined. With `is_rowwise`, rows are
    reduced, too.
    """

    def __init__(self, whole=True, rows=None, is_rowwise=False):
        self.inputs = []  # FX nodes
        self.rows, self.is_rowwise = rows, is_rowwise
        self._whole = whole
        self._head, self._ops, self._symbols = [], [], {}
        self._values = {}  # FX node: name, extents, element
        self._count = 0

    def text(self, outputs):
        """The text of the program with these values as outputs."""
        returned = ", ".join(f"%{name}" for name in outputs)
        head, ops = ",\n    ".join(self._head), "".join(f"  {op}\n" for op in self._ops)
        return f"fir 1\nfunc @segment(\n    {head}\n) {{\n{ops}  return {returned}\n}}\n"

    def extent(self, size):
        """The text of an extent: a number, or a product of a number and symbols."""
        expression = size.node.expr if isinstance(size, torch.SymInt) else size
        if isinstance(expression, int) or expression.is_Integer:
            return str(int(expression))
        number, rest = expression.as_coeff_Mul()
        if not number.is_Integer or number < 1:
            raise Unsupported(f"the extent {expression} is no multiple of a symbol")
        factors = [str(int(number))] if number > 1 else []
        for factor in rest.args if rest.is_Mul and not self._whole else [rest]:
            if not self._whole and not factor.is_Symbol:
                raise Unsupported(f"the extent {expression} is no product of symbols")
            # Graphs name symbols differently; equal programs share one compiled module.
            factors.append(self._symbols.setdefault(factor, f"M{len(self._symbols)}"))
        return "*".join(factors)

    def extents(self, shape):
        """The texts of a value's extents."""
        if self.rows is None or len(shape) < 2:
            return [self.extent(size) for size in shape]
        rows = math.prod(shape[:-1])
        if rows not in (1, self.rows):
            raise Unsupported(f"the shape {list(shape)} has other rows than the product")
        return ["R" if rows == self.rows else "1", self.extent(shape[-1])]

    def type(self, extents, element):
        return f"tensor<[{', '.join(extents)}], {element}>"

    def op(self, text, extents, element):
        """Adds an op, and returns the name of its result."""
        name = self.name()
        self._ops.append(f"%{name} = {text} : {self.type(extents, element)}")
        return name

    def name(self):
        self._count += 1
        return f"v{self._count}"

    def line(self, text):
        self._ops.append(text)

    def input(self, node, extents, element):
        """Adds an input, and returns its name."""
        name = f"a{len(self.inputs)}"
        self.inputs.append(node)
        self._head.append(f"%{name}: {self.type(extents, element)}")
        return name

    def define(self, node, name, extents, element):
        self._values[node] = (name, extents, element)
        return name

    def value(self, node):
        """The name, extents and element type of a dense value, which becomes an input if it is not computed here."""
        if node not in self._values:
            value = tensor(node)
            if value.dtype not in FLOATS:
                raise Unsupported(f"{node} is no float tensor")
            extents, element = self.extents(value.shape), FLOATS[value.dtype]
            self.define(node, self.input(node, extents, element), extents, element)
        return self._values[node]

    def is_input(self, node):
        return self._values[node][0].startswith("a")

    def convert(self, name, extents, element, wanted):
        return name if element == wanted else self.op(f"convert %{name}", extents, wanted)

    def constant(self, number):
        number = float(np.float32(number))
        return self.op(f"constant {{value = {number!r}}}", ["1"], "f32")


def tensor(node):
    """The fake tensor of a node's result."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        raise Unsupported(f"{node} is no tensor")
    return value


def result(node):
    """The shape and element type of a node's result."""
    value = tensor(node)
    if value.dtype not in FLOATS:
        raise Unsupported(f"{node} is no float tensor")
    return list(value.shape), FLOATS[value.dtype]
