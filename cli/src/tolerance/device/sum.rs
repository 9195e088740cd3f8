//! The interval of a reduction of one row.
//!
//! A row kernel sums in f32, in an order of its own, and may add a product without rounding it first. So with n
//! elements |error| ≤ γ_(n+1)·Σ|x|, whatever the order. If every partial sum is a whole number of units that f32 can
//! hold, the error is zero.

use fourfold_ir::{BinaryKind, ReduceKind, scalar};

use super::super::interval::{Interval, UNKNOWN, as_point};
use super::super::reduced::magnitudes;
use super::super::ulp;

/// The elements of a row that a reduction combines.
pub(super) struct Elements<'a> {
    /// The intervals, one per element.
    pub(super) ends: &'a [Interval],
    /// True if they are products in f32, which the device may add without rounding.
    pub(super) are_products: bool,
    /// True if no product was rounded.
    pub(super) are_exact_products: bool,
}

/// Returns the interval of a reduction before it is rounded to its type.
pub(super) fn reduce(kind: ReduceKind, elements: &Elements<'_>) -> Interval {
    match kind {
        ReduceKind::Max => extreme(BinaryKind::Max, f64::NEG_INFINITY, elements.ends, |ends| ends),
        ReduceKind::Min => extreme(BinaryKind::Min, f64::INFINITY, elements.ends, |ends| ends),
        ReduceKind::Amax => extreme(BinaryKind::Max, 0.0, elements.ends, magnitudes),
        ReduceKind::Sum => sum(elements),
        ReduceKind::Mean => mean(elements),
    }
}

fn extreme(
    kind: BinaryKind,
    of_nothing: f64,
    ends: &[Interval],
    of: impl Fn(Interval) -> Interval,
) -> Interval {
    let start = [of_nothing; 2];
    ends.iter().fold(start, |found, ends| {
        let ends = of(*ends);
        [scalar::binary(kind, found[0], ends[0]), scalar::binary(kind, found[1], ends[1])]
    })
}

fn mean(elements: &Elements<'_>) -> Interval {
    let count = elements.ends.len();
    let total = sum(elements);
    let ends = total.map(|end| end / count as f64);
    // The device multiplies by the reciprocal of the count, which has one rounding, and rounds the product.
    if as_point(total).is_some_and(|total| !total.is_finite()) || count.is_power_of_two() {
        return ends;
    }
    if ends == [0.0; 2] {
        return ends;
    }
    let room = 2.0 * ends.iter().map(|end| ulp(*end)).fold(0.0, f64::max);
    let [low, high] = [ends[0] - room, ends[1] + room];
    [if ends[0] >= 0.0 { low.max(0.0) } else { low }, if ends[1] <= 0.0 { high.min(0.0) } else { high }]
}

fn sum(elements: &Elements<'_>) -> Interval {
    let (mut ends, mut magnitude) = ([0.0f64; 2], 0.0f64);
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut has_nan, mut infinities) = (false, [false; 2]);
    for [low, high] in elements.ends {
        match as_point([*low, *high]) {
            Some(point) if point.is_nan() => has_nan = true,
            Some(point) if point.is_infinite() => infinities[usize::from(point > 0.0)] = true,
            _ => {
                ends = [ends[0] + low, ends[1] + high];
                magnitude += low.abs().max(high.abs());
                (least, most) = (least.min(*low), most.max(*high));
            }
        }
    }
    // A partial sum may overflow, or an element may be infinite or NaN.
    let is_bounded = magnitude <= f64::from(f32::MAX);
    match (has_nan, infinities, is_bounded) {
        (true, _, _) | (_, [true, true], _) => return [f64::NAN; 2],
        (_, [false, true], true) => return [f64::INFINITY; 2],
        (_, [true, false], true) => return [f64::NEG_INFINITY; 2],
        (_, _, false) => return UNKNOWN,
        (_, [false, false], true) => {}
    }
    if is_exact(elements, magnitude) {
        return ends;
    }
    let error = error(elements, magnitude);
    let ends = [ends[0] - error, ends[1] + error];
    // A sum of numbers of one sign has that sign.
    [
        if least >= 0.0 { ends[0].max(0.0) } else { ends[0] },
        if most <= 0.0 { ends[1].min(0.0) } else { ends[1] },
    ]
}

/// Returns the largest error of a sum.
fn error(elements: &Elements<'_>, magnitude: f64) -> f64 {
    let count = elements.ends.len() as f64;
    let unit = (count + 1.0) * 2f64.powi(-24);
    // A product below the normal numbers has an absolute error.
    let products = if elements.are_products { count * 2f64.powi(-149) } else { 0.0 };
    if unit < 1.0 { magnitude * unit / (1.0 - unit) + products } else { f64::INFINITY }
}

/// Returns true if every order of adding the elements gives the same bits.
fn is_exact(elements: &Elements<'_>, magnitude: f64) -> bool {
    if elements.are_products && !elements.are_exact_products {
        return false;
    }
    let mut unit = i32::MAX;
    for ends in elements.ends {
        match as_point(*ends) {
            Some(0.0) => {}
            Some(point) => unit = unit.min(lowest_bit(point)),
            None => return false,
        }
    }
    unit == i32::MAX || magnitude <= 2f64.powi(unit + 24)
}

/// Returns the exponent of the lowest bit of a finite number that is not zero.
pub(super) fn lowest_bit(x: f64) -> i32 {
    let exponent = ((x.to_bits() >> 52) & 0x7FF) as i32;
    let mantissa = x.to_bits() & ((1 << 52) - 1);
    let (mantissa, exponent) =
        if exponent == 0 { (mantissa, -1074) } else { (mantissa | 1 << 52, exponent - 1075) };
    exponent + mantissa.trailing_zeros() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: ReduceKind, values: &[f64]) -> Interval {
        let ends: Vec<Interval> = values.iter().map(|value| [*value; 2]).collect();
        reduce(kind, &Elements { ends: &ends, are_products: false, are_exact_products: true })
    }

    #[test]
    fn a_sum_of_small_integers_has_no_error() {
        assert_eq!(of(ReduceKind::Sum, &[3.0, -8.0, 0.5, 100.0]), [95.5; 2]);
        assert_eq!(of(ReduceKind::Mean, &[3.0, -8.0, 0.5, 100.0]), [23.875; 2]);
        let [low, high] = of(ReduceKind::Sum, &[2f64.powi(24), 1.0]);
        assert!(low < 16_777_217.0 && 16_777_217.0 < high, "2^24 + 1 is no f32");
        let [low, high] = of(ReduceKind::Mean, &[1.0, 0.0, 0.0]);
        assert!(low < 1.0 / 3.0 && 1.0 / 3.0 < high && high - low < 1e-6);
    }

    #[test]
    fn products_that_were_rounded_have_an_error() {
        let ends = [[1.5; 2], [0.25; 2]];
        let elements = Elements { ends: &ends, are_products: true, are_exact_products: false };
        let [low, high] = reduce(ReduceKind::Sum, &elements);
        assert!(low < 1.75 && 1.75 < high);
        let elements = Elements { are_exact_products: true, ..elements };
        assert_eq!(reduce(ReduceKind::Sum, &elements), [1.75; 2]);
    }

    #[test]
    fn nan_and_infinities_are_certain_where_every_order_gives_them() {
        const INF: f64 = f64::INFINITY;
        assert!(of(ReduceKind::Sum, &[f64::NAN, 1.0])[0].is_nan());
        assert!(of(ReduceKind::Sum, &[INF, -INF])[1].is_nan());
        assert_eq!(of(ReduceKind::Sum, &[INF, 1.0]), [INF; 2]);
        assert_eq!(of(ReduceKind::Mean, &[1.0, -INF, 1.0]), [-INF; 2]);
        assert_eq!(of(ReduceKind::Sum, &[3e38, 3e38, -3e38]), UNKNOWN, "a partial sum may overflow");
        assert!(of(ReduceKind::Max, &[1.0, f64::NAN])[0].is_nan());
        assert_eq!(of(ReduceKind::Max, &[]), [-INF; 2]);
        assert!(of(ReduceKind::Mean, &[])[0].is_nan());
    }

    #[test]
    fn a_sum_of_positive_numbers_is_not_negative() {
        let ends: Vec<Interval> = vec![[0.0, 1e-30]; 100];
        let elements = Elements { ends: &ends, are_products: false, are_exact_products: true };
        assert_eq!(reduce(ReduceKind::Sum, &elements)[0], 0.0);
    }
}
