//! Intervals of the values of an epilogue. Each contains every value that a right kernel can compute there.
//!
//! The ends of an interval are rounded as the step rounds; rounding is monotonic, so everything stays inside. A
//! function that the device computes within 4 ulp widens its interval by 4 ulp. Operands of a step are treated as
//! independent, so the difference of equal values may have a wide interval.

use fourfold_ir::{BinaryKind, ElementType, OperandShape, Predicate, UnaryKind, scalar};
use fourfold_scheduler::{EpilogueKind, EpilogueRef, EpilogueStep, ScaledMmaPlan};

use super::{ULPS, ulp};
use crate::precision::is_correctly_rounded;

/// The least and the largest value that a right kernel can compute.
pub(super) type Interval = [f64; 2];

/// More than the relative error of any function in f64.
const ROUNDING: f64 = 1.0 / (1u64 << 50) as f64;

/// The interval of every value.
pub(super) const UNKNOWN: Interval = [f64::NEG_INFINITY, f64::INFINITY];

/// Returns the number in an interval that contains only one, NaN included.
pub(super) fn as_point([low, high]: Interval) -> Option<f64> {
    // An interval between the two zeros is no point.
    (low.to_bits() == high.to_bits() || low.is_nan() && high.is_nan()).then_some(low)
}

/// The inputs from which the intervals of a kernel's values follow.
pub(super) struct Intervals<'a> {
    /// The plan.
    pub(super) plan: &'a ScaledMmaPlan,
    /// The result of the `scaled_mma`: before it is rounded to its type if it has an error, else as it is.
    pub(super) sum: Vec<f64>,
    /// The largest error of each sum, without the 4 ulp; `None` if sums are exact.
    pub(super) error: Option<&'a [f64]>,
    /// The values of each of the plan's operands.
    pub(super) operands: Vec<Vec<f64>>,
    /// The number of columns of D.
    pub(super) columns: usize,
}

impl Intervals<'_> {
    /// Returns the interval of a value at a position of D in row-major order. `steps` is scratch space.
    pub(super) fn value(&self, of: EpilogueRef, index: usize, steps: &mut Vec<Interval>) -> Interval {
        match of {
            EpilogueRef::Accumulator => self.accumulator(index, 0),
            EpilogueRef::Odd => self.accumulator(index, 1),
            EpilogueRef::Step(step) => {
                let ends = self.unrounded(step, index, steps);
                round(self.plan.epilogue[step].element, ends)
            }
            EpilogueRef::Operand(operand) => [self.operand(operand, index); 2],
        }
    }

    /// Returns the interval of a step before it is rounded.
    pub(super) fn unrounded(&self, step: usize, index: usize, steps: &mut Vec<Interval>) -> Interval {
        steps.clear();
        let accumulator = self.accumulator(index, 0);
        let mut last = accumulator;
        for step in &self.plan.epilogue[..=step] {
            last = self.apply(step, |reference| match reference {
                EpilogueRef::Accumulator => accumulator,
                EpilogueRef::Odd => self.accumulator(index, 1),
                EpilogueRef::Step(step) => steps[step],
                EpilogueRef::Operand(operand) => [self.operand(operand, index); 2],
            });
            steps.push(round(step.element, last));
        }
        last
    }

    /// Returns the number of elements of D.
    pub(super) fn elements(&self) -> usize {
        if self.plan.pair.is_some() { self.sum.len() / 2 } else { self.sum.len() }
    }

    /// Returns the interval of the sum of an element of D: `half` is 1 for the odd column of a pair.
    fn accumulator(&self, index: usize, half: usize) -> Interval {
        let index = if self.plan.pair.is_some() { 2 * index + half } else { index };
        let sum = self.sum[index];
        let Some(error) = self.error else { return [sum; 2] };
        let error = error[index] + ULPS * ulp(sum);
        round(self.plan.accumulator, [sum - error, sum + error])
    }

    /// Returns the value of an operand at an element of D.
    pub(super) fn operand(&self, operand: usize, index: usize) -> f64 {
        let at = match self.plan.operands[operand].shape {
            OperandShape::Scalar => 0,
            OperandShape::Row => index % self.columns,
            OperandShape::Column => index / self.columns,
            OperandShape::Matrix => index,
        };
        self.operands[operand][at]
    }

    fn apply(&self, step: &EpilogueStep, value: impl Fn(EpilogueRef) -> Interval) -> Interval {
        let operand = |index: usize| value(step.operands[index]);
        match step.kind {
            EpilogueKind::Constant { bits } => [f64::from(f32::from_bits(bits)); 2],
            EpilogueKind::Unary(kind) => {
                let exact = sound(unary(kind, operand(0)));
                if is_correctly_rounded(kind) { exact } else { widened(exact) }
            }
            EpilogueKind::Binary(kind) => sound(binary(kind, operand(0), operand(1))),
            EpilogueKind::Clamp { min, max } => sound(operand(0).map(|x| scalar::clamp(x, min, max))),
            EpilogueKind::Compare(predicate) => compare(predicate, operand(0), operand(1)),
            EpilogueKind::Select => select(operand(0), operand(1), operand(2)),
            EpilogueKind::Convert => operand(0),
        }
    }
}

/// Evaluates a step on single values, without rounding.
pub(super) fn point(step: &EpilogueStep, operands: &[f64]) -> f64 {
    match step.kind {
        EpilogueKind::Constant { bits } => f64::from(f32::from_bits(bits)),
        EpilogueKind::Unary(kind) => scalar::unary(kind, operands[0]),
        EpilogueKind::Binary(kind) => scalar::binary(kind, operands[0], operands[1]),
        EpilogueKind::Clamp { min, max } => scalar::clamp(operands[0], min, max),
        EpilogueKind::Compare(predicate) => {
            f64::from(u8::from(scalar::compare(predicate, operands[0], operands[1])))
        }
        EpilogueKind::Select => operands[if operands[0] == 0.0 { 2 } else { 1 }],
        EpilogueKind::Convert => operands[0],
    }
}

/// Rounds both ends to an element type.
pub(super) fn round(element: ElementType, interval: Interval) -> Interval {
    interval.map(|end| scalar::round_to(element, end))
}

/// Returns the chosen interval, or the hull of both if the condition is not certain.
pub(super) fn select(condition: Interval, x: Interval, y: Interval) -> Interval {
    match condition {
        [1.0, _] => x,
        [_, 0.0] => y,
        _ => hull([x, y].concat()),
    }
}

pub(super) fn widened([low, high]: Interval) -> Interval {
    [low - ULPS * ulp(low), high + ULPS * ulp(high)]
}

/// Returns the interval, or [`UNKNOWN`] if an end is NaN.
pub(super) fn sound([low, high]: Interval) -> Interval {
    if low.is_nan() || high.is_nan() { UNKNOWN } else { [low, high] }
}

fn hull(ends: impl AsRef<[f64]>) -> Interval {
    let ends = ends.as_ref();
    if ends.iter().any(|end| end.is_nan()) {
        return UNKNOWN;
    }
    let low = ends.iter().copied().fold(f64::INFINITY, f64::min);
    [low, ends.iter().copied().fold(f64::NEG_INFINITY, f64::max)]
}

pub(super) fn unary(kind: UnaryKind, [low, high]: Interval) -> Interval {
    let f = |x| scalar::unary(kind, x);
    match kind {
        UnaryKind::Exp
        | UnaryKind::Exp2
        | UnaryKind::Sqrt
        | UnaryKind::Tanh
        | UnaryKind::Erf
        | UnaryKind::Sigmoid
        | UnaryKind::Relu
        | UnaryKind::Log
        | UnaryKind::Log2
        | UnaryKind::Floor
        | UnaryKind::Ceil
        | UnaryKind::Round => [f(low), f(high)],
        UnaryKind::Sin | UnaryKind::Cos if low == high => [f(low); 2],
        // No point is farther from the value in the middle than from the middle. The last term covers roundings.
        UnaryKind::Sin | UnaryKind::Cos => {
            let middle = low + (high - low) / 2.0;
            let reach = (high - middle).max(middle - low) * (1.0 + ROUNDING) + ROUNDING;
            [(f(middle) - reach).max(-1.0), (f(middle) + reach).min(1.0)]
        }
        UnaryKind::Neg => [-high, -low],
        UnaryKind::Abs if low < 0.0 && 0.0 < high => [0.0, f(low).max(high)],
        UnaryKind::Abs => hull([f(low), f(high)]),
        // The function falls on either side of the pole.
        UnaryKind::Reciprocal | UnaryKind::Rsqrt if low <= 0.0 && 0.0 <= high && low < high => UNKNOWN,
        UnaryKind::Reciprocal | UnaryKind::Rsqrt => [f(high), f(low)],
        UnaryKind::Gelu | UnaryKind::GeluTanh | UnaryKind::Silu => {
            // The function falls to its one minimum and rises from there.
            const MINIMUM_LIES_WITHIN: [f64; 2] = [-1.3, -0.7];
            let least = match kind {
                UnaryKind::Silu => -0.278_464_543,
                _ => -0.170_040_76,
            };
            let [bottom, top] = hull([f(low), f(high)]);
            let passes = low < MINIMUM_LIES_WITHIN[1] && MINIMUM_LIES_WITHIN[0] < high && low < high;
            [if passes { bottom.min(least) } else { bottom }, top]
        }
    }
}

pub(super) fn binary(kind: BinaryKind, a: Interval, b: Interval) -> Interval {
    let f = |x, y| scalar::binary(kind, x, y);
    match kind {
        BinaryKind::Add | BinaryKind::Max | BinaryKind::Min => [f(a[0], b[0]), f(a[1], b[1])],
        BinaryKind::Sub => [f(a[0], b[1]), f(a[1], b[0])],
        BinaryKind::Pow if a[0] == a[1] && b[0] == b[1] => [f(a[0], b[0]); 2],
        // Monotonic in each operand. The ends cover the roundings of `pow`.
        BinaryKind::Pow if a[0] > 0.0 => {
            let [low, high] = hull([f(a[0], b[0]), f(a[0], b[1]), f(a[1], b[0]), f(a[1], b[1])]);
            [low - low.abs() * ROUNDING, high + high.abs() * ROUNDING]
        }
        BinaryKind::Pow => UNKNOWN,
        BinaryKind::Div if b[0] <= 0.0 && 0.0 <= b[1] && b[0] < b[1] => UNKNOWN,
        BinaryKind::Mul | BinaryKind::Div => {
            hull([f(a[0], b[0]), f(a[0], b[1]), f(a[1], b[0]), f(a[1], b[1])])
        }
    }
}

/// Returns `[1, 1]` if the comparison is certainly true, `[0, 0]` if it is certainly false, else `[0, 1]`.
pub(super) fn compare(predicate: Predicate, a: Interval, b: Interval) -> Interval {
    let known = match predicate {
        Predicate::Lt => (a[1] < b[0], a[0] >= b[1]),
        Predicate::Le => (a[1] <= b[0], a[0] > b[1]),
        Predicate::Gt => (a[0] > b[1], a[1] <= b[0]),
        Predicate::Ge => (a[0] >= b[1], a[1] < b[0]),
        Predicate::Eq | Predicate::Ne => {
            let same = a[0] == a[1] && b[0] == b[1] && a[0] == b[0];
            let apart = a[1] < b[0] || b[1] < a[0];
            if predicate == Predicate::Eq { (same, apart) } else { (apart, same) }
        }
    };
    match known {
        (true, _) => [1.0, 1.0],
        (_, true) => [0.0, 0.0],
        _ => [0.0, 1.0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a few hundred intervals and points inside them.
    #[test]
    fn every_function_stays_within_its_interval() {
        let mut ends: Vec<f64> = (-40..=40).map(|i| f64::from(i) * 0.171).collect();
        ends.extend([-0.7517915, -0.7524, -1.2784645, 0.0, 1e-30, -1e-30, 300.0, -300.0]);
        for &low in &ends {
            for width in [0.0, 1e-6, 0.3, 4.0] {
                let x = [low, low + width];
                let inside = [0.0, 0.25, 0.5, 0.9, 1.0].map(|part| low + part * width);
                for kind in UnaryKind::ALL {
                    let [bottom, top] = sound(unary(*kind, x));
                    for point in inside {
                        let value = scalar::unary(*kind, point);
                        assert!(
                            value.is_nan() || (bottom <= value && value <= top),
                            "{kind} of {point} in {x:?}"
                        );
                    }
                }
                for other in [[-2.0, -1.0], [-0.5, 0.25], [3.0, 3.0]] {
                    for kind in BinaryKind::ALL {
                        let [bottom, top] = sound(binary(*kind, x, other));
                        for value in inside.map(|point| scalar::binary(*kind, point, other[1])) {
                            assert!(
                                value.is_nan() || (bottom <= value && value <= top),
                                "{kind} of {x:?} {other:?}"
                            );
                        }
                    }
                    for predicate in Predicate::ALL {
                        let [bottom, top] = compare(*predicate, x, other);
                        for point in inside {
                            let holds = f64::from(u8::from(scalar::compare(*predicate, point, other[0])));
                            assert!(bottom <= holds && holds <= top, "{predicate} of {x:?} and {other:?}");
                        }
                    }
                }
            }
        }
    }
}
