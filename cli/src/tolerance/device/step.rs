//! The interval of one step of a row kernel.
//!
//! A step of single numbers is evaluated as the definition evaluates it, NaN and infinities included. A function that
//! the device computes within 4 ulp then widens the result. Every other interval has the rules of
//! [`interval`](super::super::interval), which treat operands as independent, except that a square is not negative.

use fourfold_ir::{BinaryKind, ElementType, UnaryKind, scalar};
use fourfold_scheduler::{RowStep, RowStepKind};

use super::super::interval::{self, Interval, UNKNOWN, as_point, sound, widened};
use super::integers;
use crate::precision::is_correctly_rounded;

/// The operands of a step at one element.
pub(super) struct Operands<'a> {
    /// Their intervals.
    pub(super) ends: &'a [Interval],
    /// Their element types.
    pub(super) elements: &'a [ElementType],
    /// True if the first two are the same value.
    pub(super) is_square: bool,
}

/// Returns true if the device computes a step without any error on exact operands.
pub(super) fn is_exact(kind: RowStepKind) -> bool {
    match kind {
        RowStepKind::Unary(kind) => is_correctly_rounded(kind),
        RowStepKind::Binary(kind) => kind != BinaryKind::Pow,
        RowStepKind::Reduce(kind) => super::super::reduced::is_exact(kind),
        _ => true,
    }
}

/// Returns the interval of a step before it is rounded. Reductions are not steps of one element.
pub(super) fn unrounded(step: &RowStep, operands: &Operands<'_>) -> Interval {
    let element = step.element;
    let x = |index: usize| operands.ends.get(index).copied().unwrap_or(UNKNOWN);
    match step.kind {
        RowStepKind::Constant(bits) => [constant(element, bits); 2],
        RowStepKind::Unary(kind) => unary(kind, x(0)),
        RowStepKind::Binary(kind) if element == ElementType::I32 => integers::binary(kind, x(0), x(1)),
        RowStepKind::Binary(BinaryKind::Mul) if operands.is_square => square(x(0)),
        RowStepKind::Binary(kind) => binary(kind, x(0), x(1)),
        RowStepKind::Bitwise(kind) => integers::bitwise(kind, x(0), x(1)),
        RowStepKind::Bitcast => {
            let from = operands.elements.first().copied().unwrap_or(element);
            integers::bitcast(from, element, x(0))
        }
        RowStepKind::Dequantize => {
            let scaled = binary(BinaryKind::Mul, x(0), x(1));
            if operands.ends.len() > 2 { binary(BinaryKind::Mul, scaled, x(2)) } else { scaled }
        }
        RowStepKind::Clamp { lower, upper } => {
            let (lower, upper) = (constant(element, lower), constant(element, upper));
            let clamped = x(0).map(|x| scalar::clamp(x, lower, upper));
            if as_point(x(0)).is_some() { clamped } else { sound(clamped) }
        }
        RowStepKind::Compare(predicate) => match (as_point(x(0)), as_point(x(1))) {
            (Some(a), Some(b)) => [f64::from(u8::from(scalar::compare(predicate, a, b))); 2],
            _ => interval::compare(predicate, x(0), x(1)),
        },
        RowStepKind::Select => interval::select(x(0), x(1), x(2)),
        RowStepKind::Convert => x(0),
        RowStepKind::Reduce(_) => UNKNOWN,
    }
}

/// Returns the number that the bits of a constant state.
fn constant(element: ElementType, bits: u32) -> f64 {
    match element {
        ElementType::I32 => f64::from(bits as i32),
        ElementType::I1 => f64::from(u8::from(bits != 0)),
        _ => f64::from(f32::from_bits(bits)),
    }
}

fn unary(kind: UnaryKind, x: Interval) -> Interval {
    let exact = match as_point(x) {
        Some(x) => [scalar::unary(kind, x); 2],
        // The sign of a zero in an interval is unknown.
        None if matches!(kind, UnaryKind::Reciprocal | UnaryKind::Rsqrt) && spans_zero(x) => UNKNOWN,
        None => sound(interval::unary(kind, x)),
    };
    if is_correctly_rounded(kind) {
        return exact;
    }
    let [low, high] = with_error(exact);
    // These functions have no negative values, and a device's are no exception.
    let is_positive =
        matches!(kind, UnaryKind::Exp | UnaryKind::Exp2 | UnaryKind::Sigmoid | UnaryKind::Rsqrt);
    [if is_positive && exact[0] >= 0.0 { low.max(0.0) } else { low }, high]
}

fn binary(kind: BinaryKind, a: Interval, b: Interval) -> Interval {
    let exact = match (as_point(a), as_point(b)) {
        (Some(a), Some(b)) => [scalar::binary(kind, a, b); 2],
        (_, None) if kind == BinaryKind::Div && spans_zero(b) => UNKNOWN,
        _ => sound(interval::binary(kind, a, b)),
    };
    if kind == BinaryKind::Pow { with_error(exact) } else { exact }
}

/// Widens an interval by the error of a function. NaN stays certain.
fn with_error(exact: Interval) -> Interval {
    if exact.iter().all(|end| end.is_nan()) { exact } else { widened(exact) }
}

fn square(x: Interval) -> Interval {
    match as_point(x) {
        Some(x) => [x * x; 2],
        None => {
            let [least, most] = super::super::reduced::magnitudes(x);
            sound([least * least, most * most])
        }
    }
}

fn spans_zero([low, high]: Interval) -> bool {
    low <= 0.0 && 0.0 <= high
}
