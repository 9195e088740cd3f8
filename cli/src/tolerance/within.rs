//! Compares results, each of which must lie in an interval of its own.

use fourfold_ir::{ElementType, Tensor};

use super::interval::{self, Interval};
use crate::compare::{Comparison, MOVED_ONE_IN, Verdict, compare_by};

/// The interval of each element of a value.
pub(super) struct Bounds {
    /// The intervals, rounded to the type of the value.
    ends: Vec<Interval>,
    /// The largest distance of each element from the expected one before rounding to its type.
    pub(super) distances: Vec<f64>,
    /// True for each element that may be anything.
    is_free: Vec<bool>,
}

impl Bounds {
    pub(super) fn with_capacity(count: usize) -> Bounds {
        Bounds {
            ends: Vec::with_capacity(count),
            distances: Vec::with_capacity(count),
            is_free: Vec::with_capacity(count),
        }
    }

    /// Adds the next element: it lies within `ends` before it is rounded to `element`, and the exact expectation
    /// is `at`. `range` is the interval of every possible value.
    pub(super) fn push(&mut self, element: ElementType, ends: Interval, at: f64, range: Interval) {
        let distance = (ends[1] - at).max(at - ends[0]);
        // NaN agrees only with NaN, so the distance is not used.
        self.distances.push(if distance.is_nan() { f64::INFINITY } else { distance });
        // An infinite or NaN end is no bound.
        let is_above = ends[0] > range[0];
        let is_below = ends[1] < range[1];
        self.is_free.push(!is_above && !is_below);
        // Truth values are not rounded.
        let is_rounded = element != ElementType::I1;
        self.ends.push(if is_rounded { interval::round(element, ends) } else { ends });
    }

    /// Compares a result with the bounds; also returns the number of elements without a bound.
    pub(super) fn compare(&self, got: &Tensor, want: &Tensor) -> (Comparison, usize) {
        let pairs: Vec<(f64, f64)> = got.to_f64().into_iter().zip(want.to_f64()).collect();
        let verdict = |(index, (got, want)): (usize, &(f64, f64))| self.verdict(index, *got, *want);
        let verdicts: Vec<Verdict> = pairs.iter().enumerate().map(verdict).collect();
        let is_free = |(index, (_, want)): &(usize, &(f64, f64))| self.is_free[*index] && want.is_finite();
        let free = pairs.iter().enumerate().filter(is_free).count();
        (with_free(compare_by(got, want, &verdicts), free, pairs.len()), free)
    }

    fn verdict(&self, index: usize, got: f64, want: f64) -> Verdict {
        if got == want || (got.is_nan() && want.is_nan()) {
            return Verdict::Same;
        }
        let [low, high] = self.ends[index];
        if got.is_nan() || want.is_nan() || got < low || got > high {
            return Verdict::Wrong;
        }
        if self.is_free[index] {
            return Verdict::Free;
        }
        // A difference larger than that before rounding is a rounding that went the other way.
        if (got - want).abs() <= self.distances[index] { Verdict::Same } else { Verdict::Moved }
    }
}

/// Fails a comparison in which more elements are free than [`most_free`].
pub(super) fn with_free(comparison: Comparison, free: usize, count: usize) -> Comparison {
    let lacks_bounds = free > most_free(count);
    Comparison { unbounded: comparison.ok && lacks_bounds, ok: comparison.ok && !lacks_bounds, ..comparison }
}

/// Returns the words in a rule for elements without a bound.
pub(super) fn free_text(free: usize, count: usize) -> String {
    match free {
        0 => String::new(),
        _ if free <= most_free(count) => format!(" ({free} without a bound)"),
        _ => format!(" ({free} without a bound, more than 1 in {MOVED_ONE_IN})"),
    }
}

/// Returns the largest number of elements without a bound in a useful comparison.
fn most_free(count: usize) -> usize {
    (count / MOVED_ONE_IN).max(1)
}

#[cfg(test)]
mod tests {
    use fourfold_ir::{OperandShape, ReduceKind};

    use super::super::interval::UNKNOWN;
    use super::super::reduced::Reduced;
    use super::*;

    fn f32s(values: &[f64]) -> Tensor {
        Tensor::from_f64(ElementType::F32, vec![values.len()], None, values).expect("one extent")
    }

    fn bounds(element: ElementType, each: &[(Interval, f64)]) -> Bounds {
        let mut bounds = Bounds::with_capacity(each.len());
        each.iter().for_each(|(ends, at)| bounds.push(element, *ends, *at, UNKNOWN));
        bounds
    }

    #[test]
    fn an_element_lies_within_its_interval_and_not_as_far_off_on_the_other_side() {
        let bounds = bounds(ElementType::F32, &[([1.0, 2.0], 1.875)]);
        let is_right = |got: f64| bounds.compare(&f32s(&[got]), &f32s(&[1.875])).0.ok;
        assert!([1.0, 1.5, 2.0].into_iter().all(is_right));
        assert!(![0.99, 2.01, 2.75, f64::NAN, f64::INFINITY].into_iter().any(is_right));
    }

    #[test]
    fn one_unbounded_element_frees_an_amax_only_upwards() {
        let mut reduced = Reduced::new(ReduceKind::Amax, OperandShape::Scalar, 3, 1);
        for (index, ends) in [[-4.0, -3.5], UNKNOWN, [1.0, 2.0]].into_iter().enumerate() {
            reduced.add(index, ends);
        }
        let bounds = reduced.bounds(&[4.0]);
        let compare = |got: f64| bounds.compare(&f32s(&[got]), &f32s(&[4.0]));
        for (got, is_right) in [(3.5, true), (3.4, false), (0.0, false), (1e30, true), (f64::NAN, false)] {
            let (comparison, free) = compare(got);
            assert_eq!((comparison.ok, free), (is_right, 0), "{got}");
        }
        let mut unbounded = Reduced::new(ReduceKind::Amax, OperandShape::Scalar, 3, 1);
        unbounded.add(0, UNKNOWN);
        assert_eq!(unbounded.bounds(&[4.0]).compare(&f32s(&[9.0]), &f32s(&[4.0])).1, 1);
        let mut sum = Reduced::new(ReduceKind::Sum, OperandShape::Scalar, 3, 1);
        sum.add(0, [1.0, 2.0]);
        sum.add(1, UNKNOWN);
        assert_eq!(sum.bounds(&[4.0]).compare(&f32s(&[9.0]), &f32s(&[4.0])).1, 1);
    }

    #[test]
    fn more_than_one_free_element_in_fifty_is_no_comparison() {
        for (count, free, is_right) in
            [(1, 1, true), (10, 1, true), (10, 2, false), (130, 2, true), (130, 3, false)]
        {
            let each = |index| (if index < free { UNKNOWN } else { [1.0; 2] }, 1.0);
            let bounds = bounds(ElementType::F32, &(0..count).map(each).collect::<Vec<_>>());
            let ones = f32s(&vec![1.0; count]);
            let (comparison, found) = bounds.compare(&ones, &ones);
            assert_eq!((comparison.ok, found, comparison.mismatches), (is_right, free, 0));
            assert_eq!(comparison.unbounded, !is_right, "nothing is wrong, so it is not a mismatch");
            assert_eq!(free_text(found, count).contains("more than 1 in 50"), !is_right);
        }
    }

    #[test]
    fn a_wrong_element_is_wrong_even_among_elements_without_a_bound() {
        let bounds = bounds(ElementType::F32, &[(UNKNOWN, 1.0), (UNKNOWN, 1.0), ([1.0; 2], 1.0)]);
        let (comparison, free) = bounds.compare(&f32s(&[1.0, 1.0, 7.0]), &f32s(&[1.0; 3]));
        assert_eq!((comparison.ok, comparison.unbounded, comparison.mismatches, free), (false, false, 1, 2));
    }

    #[test]
    fn a_rounding_that_went_the_other_way_is_counted() {
        let near = [1.00390, 1.00391];
        let bounds = bounds(ElementType::BF16, &[(near, 1.003905), (near, 1.003905)]);
        let bf16 = |values: &[f64]| Tensor::from_f64(ElementType::BF16, vec![2], None, values).expect("two");
        let compare = |got: &[f64]| bounds.compare(&bf16(got), &bf16(&[1.0, 1.0078125])).0;
        assert_eq!(compare(&[1.0, 1.0]).moved_roundings, 1);
        assert_eq!(compare(&[1.0, 1.015625]).mismatches, 1);
        assert!(compare(&[1.0, 1.0078125]).ok);
    }
}
