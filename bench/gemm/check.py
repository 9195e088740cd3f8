"""Checks outputs: a bound for f32 sums in any order, and equal bits where every such sum is exact."""

import math

import torch

# Half a unit in the last place, relative to the value, and half the smallest subnormal.
ROUNDING = {
    torch.float16: (2.0**-11, 2.0**-25),
    torch.bfloat16: (2.0**-8, 2.0**-134),
    torch.float32: (2.0**-24, 2.0**-150),
}

# Rows of A per multiplication.
STEP = 2048


def gamma(k):
    """The bound on the relative error of k additions in f32, in any order."""
    unit = k * 2.0**-24
    return unit / (1 - unit)


def references(operands, alpha=1.0):
    """Yields, for slices of the rows, alpha times the exact product in f64, and the sums of magnitudes.

    With the scales of `operands` the f64 sums are exact: a product is a multiple of 2^-18 below 2^10. Magnitudes are
    summed in f32 and scaled up slightly, to exceed the exact sums despite rounding.
    """
    a, b = operands.a.f16, operands.b.f16
    wide, magnitudes = b.double().t(), b.abs().float().t()
    for row in range(0, a.shape[0], STEP):
        rows = slice(row, row + STEP)
        exact = a[rows].double() @ wide
        sums = (a[rows].abs().float() @ magnitudes).double() * (1.002 * abs(alpha))
        yield rows, exact * alpha, sums


class Judgement:
    """The result of checking one peer's outputs."""

    def __init__(self, exact, reduced=False):
        self.exact, self.reduced = exact, reduced
        self.outputs, self.elements, self.wrong, self.rounded_otherwise = 0, 0, 0, 0
        self.worst, self.squares, self.reference_squares = 0.0, 0.0, 0.0
        self.bit_equal = None

    def add(self, output, reference, sums, k):
        """Checks some rows. `reduced` admits partial sums rounded to the output's type."""
        relative, smallest = ROUNDING[output.dtype]
        found = output.double()
        error = (found - reference).abs()
        bound = gamma(k) * sums + 4 * 2.0**-23 * reference.abs()
        if self.reduced:
            bound = bound + 2 * relative * sums
        bound = bound + relative * (reference.abs() + bound) + smallest
        # A comparison with NaN is false, so NaN is out of bounds.
        within = error <= bound if self.exact else torch.isfinite(found)
        self.elements += output.numel()
        self.wrong += int((~within).sum())
        self.rounded_otherwise += int((output != reference.to(output.dtype)).sum())
        self.worst = max(self.worst, float((error / bound).nan_to_num(nan=torch.inf).max()))
        self.squares += float((error * error).sum())
        self.reference_squares += float((reference * reference).sum())

    @property
    def relative_error(self):
        """The norm of the error divided by the norm of the reference."""
        return (self.squares / max(self.reference_squares, 1e-300)) ** 0.5

    @property
    def ok(self):
        """True if every element is within the bound, or, for an approximate peer, if the relative error is small."""
        near = self.exact or self.relative_error < 0.1
        return self.wrong == 0 and self.elements > 0 and near and self.bit_equal is not False

    def record(self):
        """The JSON form."""
        return {
            "ok": self.ok,
            "outputs": self.outputs,
            "elements": self.elements,
            "wrong": self.wrong,
            "worst_of_bound": self.worst if self.exact and math.isfinite(self.worst) else None,
            "relative_error": self.relative_error if math.isfinite(self.relative_error) else None,
            "not_nearest": self.rounded_otherwise / max(self.elements, 1),
            "bit_equal": self.bit_equal,
        }


def judge(rotation, outputs, judgements):
    """Checks every output of every peer. `outputs` maps a peer to one tensor per set."""
    for index in range(max((len(tensors) for tensors in outputs.values()), default=0)):
        operands = rotation[index]
        written = {name: tensors[index] for name, tensors in outputs.items() if index < len(tensors)}
        for rows, reference, sums in references(operands):
            for name, tensor in written.items():
                judgements[name].add(tensor[rows], reference, sums, rotation.shape.k)
        for name in written:
            judgements[name].outputs += 1


def exact_sums(operands, unit):
    """Returns whether every f32 sum of products is exact: the sums of magnitudes are below 2^24 units."""
    return all(float(sums.max()) < 2.0**24 * unit for _, _, sums in references(operands))


def bit_equal(operands, output, alpha):
    """Returns whether an output has the bits of the exact product, rounded once. Alpha must be a power of two."""
    integers = {2: torch.int16, 4: torch.int32}[output.element_size()]
    # Exact in f32 by `exact_sums`, so the output is rounded once.
    return all(
        torch.equal(output[rows].view(integers), reference.float().to(output.dtype).view(integers))
        for rows, reference, _ in references(operands, alpha)
    )
