"""Types in the text of a program: parsing, extents and memory."""

import dataclasses
import re

ELEMENTS = ("f4E2M1FN", "f8E4M3FN", "f8E5M2", "f8E8M0FNU", "f16", "bf16", "f32", "i32", "i1")
_TYPE = re.compile(r"tensor\s*<\s*\[([^\]]*)\]\s*,\s*(\w+)\s*(?:,\s*(linear|blocked)\s*)?>")
_INPUT = re.compile(r"(param\s+)?%([\w.]+)\s*:\s*" + _TYPE.pattern)
_OP = re.compile(r"((?:%[\w.]+\s*,\s*)*%[\w.]+)\s*=\s*(?!=)")
_RETURN = re.compile(r"\breturn\b([^}]*)")


@dataclasses.dataclass(frozen=True)
class Extent:
    """A number times symbols, such as `4*B*S`."""

    factor: int
    symbols: tuple

    @classmethod
    def parse(cls, text):
        factor, symbols = 1, []
        for word in text.split("*"):
            word = word.strip()
            if word.isdigit():
                factor *= int(word)
            else:
                symbols.append(word)
        return cls(factor, tuple(symbols))

    def __str__(self):
        words = ([str(self.factor)] if self.factor != 1 or not self.symbols else []) + list(self.symbols)
        return "*".join(words)

    def value(self, known):
        """The extent, or None if a symbol is not known."""
        product = self.factor
        for symbol in self.symbols:
            if symbol not in known:
                return None
            product = product * known[symbol]
        return product


@dataclasses.dataclass(frozen=True)
class Type:
    """A tensor's type: extents of elements, element type, and the layout of scales or None."""

    extents: tuple
    element: str
    layout: str | None = None

    @classmethod
    def parse(cls, text):
        return cls._of(_TYPE.fullmatch(text.strip()).groups())

    @classmethod
    def _of(cls, groups):
        extents, element, layout = groups
        return cls(tuple(Extent.parse(text) for text in extents.split(",") if text.strip()), element, layout)

    def __str__(self):
        layout = f", {self.layout}" if self.layout else ""
        return f"tensor<[{', '.join(map(str, self.extents))}], {self.element}{layout}>"

    def shape(self, known):
        """The extents of elements. None for those that the symbols do not determine."""
        return tuple(extent.value(known) for extent in self.extents)

    def storage(self, shape):
        """The extents of the memory for a shape of elements: bytes for FP4, padded for blocked scales."""
        shape = list(shape)
        if self.layout == "blocked":
            shape[-2:] = [(shape[-2] + 127) // 128 * 128, (shape[-1] + 3) // 4 * 4]
        if self.element == "f4E2M1FN":
            shape[-1] = shape[-1] // 2
        return tuple(shape)


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a program."""

    inputs: tuple  # (name, Type)
    outputs: tuple  # (name, Type)

    @classmethod
    def parse(cls, program):
        """Reads a valid program: one that a backend has planned."""
        program = re.sub(r";[^\n]*", "", program)
        head, body = program.split("{", 1)
        inputs = tuple((match[2], Type._of(match.groups()[2:])) for match in _INPUT.finditer(head))
        types = dict(inputs)
        ops = list(_OP.finditer(body))
        ends = [match.start() for match in ops[1:]] + [_RETURN.search(body).start()]
        for match, end in zip(ops, ends):
            names = [name.strip(" \n%") for name in match[1].split(",")]
            found = [Type._of(groups) for groups in _TYPE.findall(body[match.end() : end])]
            types.update(zip(names, (Type(ty.extents, ty.element, ty.layout or None) for ty in found)))
        names = [name.strip(" \n%") for name in _RETURN.search(body)[1].split(",")]
        return cls(inputs, tuple((name, types[name]) for name in names if name))


def solve(ports, shapes, given=()):
    """The symbols that shapes of elements determine, in the order of (name, type) pairs. A shape may be None."""
    known, progress = dict(given), True
    while progress:
        progress = False
        for (_, ty), shape in zip(ports, shapes):
            if shape is None or len(shape) != len(ty.extents):
                continue
            for extent, size in zip(ty.extents, shape):
                unknown = [symbol for symbol in extent.symbols if symbol not in known]
                if len(unknown) != 1:
                    continue
                factor = Extent(extent.factor, tuple(s for s in extent.symbols if s != unknown[0])).value(known)
                if factor:
                    known[unknown[0]] = size // factor
                    progress = True
    return known
