//! Compares a tensor with the expected one.

use fourfold_ir::{ElementType, ScaleLayout, Tensor, scalar};

/// The largest difference at which two tensors still agree.
#[derive(Clone, Debug, PartialEq)]
pub enum Tolerance {
    /// Allows this difference relative to the largest magnitude of the expected tensor; 0 demands equal bits,
    /// except that -0 equals 0.
    Relative(f64),
    /// Allows each element a difference of its own, in logical row-major order.
    Each(Vec<f64>),
    /// Allows this number of elements to differ by any amount. Used for codes of a quantization, where an input
    /// that moved in its last bit can move a code.
    Count(usize),
}

/// The outcome of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The largest |got - want|, moved roundings left out. It is infinite where one side is NaN or infinite and
    /// the other is not the same.
    pub max_abs_err: f64,
    /// The largest difference over the largest finite magnitude of `want`.
    pub max_rel_err: f64,
    /// The number of elements that are too far apart.
    pub mismatches: usize,
    /// The number of elements that differ because a value near the middle of two neighbours of a narrow type was
    /// rounded the other way. One is accepted if the unrounded value lies within the tolerance of that middle,
    /// or, where that value is unknown ([`Rounding::OneStep`]), if it is one step off.
    pub moved_roundings: usize,
    /// The largest |got - want| among the moved roundings: at most one step of the narrow type.
    pub moved_max_abs_err: f64,
    /// The mismatch with the largest difference.
    pub worst: Option<Mismatch>,
    /// True if no element is wrong, but too few have a bound for the tensors to count as equal. Then `ok` is false.
    pub unbounded: bool,
    /// True if the tensors agree.
    pub ok: bool,
}

/// One element that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The index, outermost first.
    pub index: Vec<usize>,
    /// The computed value.
    pub got: f64,
    /// The expected value.
    pub want: f64,
}

/// The legitimate difference between two computations of a value of a narrow type. A value near the middle of two
/// neighbours can be rounded either way.
#[derive(Clone, Copy)]
pub enum Rounding<'a> {
    /// No difference is legitimate.
    Same,
    /// The value is the conversion of this operand, which may itself be off by the tolerance. Both sides must lie
    /// between the roundings of operand - δ and operand + δ. δ is the tolerance times the largest magnitude.
    Converted(&'a dyn Fn() -> Option<Tensor>),
    /// One step of the type is legitimate: the value is the rounded result of an inexact accumulation, or follows
    /// from one.
    OneStep,
}

/// At most one element in this many may have a moved rounding. Accumulation in another order moves a sum by about
/// 1e-5 of itself, which is at most 1/200 of a step of bf16.
pub(crate) const MOVED_ONE_IN: usize = 50;

/// Expected values, in logical row-major order.
pub(crate) trait Wanted {
    /// Returns the values.
    fn values(&self) -> Vec<f64>;
    /// Returns the codes, as a tensor of the type of `got` has them.
    fn codes(&self, got: &Tensor) -> Vec<u8>;
    /// Returns the bits of each byte of a code that have a meaning: bit 7 of an e4m3 scale has none.
    fn meaning(&self) -> u8;
    /// Returns the number of elements.
    fn count(&self) -> usize;
}

impl Wanted for Tensor {
    fn values(&self) -> Vec<f64> {
        self.to_f64()
    }

    fn codes(&self, _got: &Tensor) -> Vec<u8> {
        self.to_codes()
    }

    fn meaning(&self) -> u8 {
        match (self.element(), self.layout()) {
            (ElementType::F8E4M3FN, Some(_)) => 0x7F,
            _ => 0xFF,
        }
    }

    fn count(&self) -> usize {
        Tensor::count(self)
    }
}

/// Expected values in f64, which no tensor has.
impl Wanted for Vec<f64> {
    fn values(&self) -> Vec<f64> {
        self.clone()
    }

    /// Rounds the values to the type of `got`.
    fn codes(&self, got: &Tensor) -> Vec<u8> {
        let rounded = Tensor::from_f64(got.element(), got.dims().to_vec(), got.layout(), self);
        rounded.map(|tensor| tensor.to_codes()).unwrap_or_default()
    }

    fn meaning(&self) -> u8 {
        0xFF
    }

    fn count(&self) -> usize {
        self.len()
    }
}

/// Rounds a positive number up to three digits.
pub(crate) fn rounded_up(value: f64) -> f64 {
    let nearest = format!("{value:.2e}");
    let parsed = nearest.parse().unwrap_or(value);
    if parsed >= value {
        return parsed;
    }
    let bumped = nearest.split_once('e').and_then(|(mantissa, exponent)| {
        let hundredths: i32 = mantissa.replace('.', "").parse().ok()?;
        let exponent: i32 = exponent.parse().ok()?;
        format!("{}e{}", hundredths + 1, exponent - 2).parse().ok()
    });
    bumped.unwrap_or(value)
}

/// Returns a tolerance as text, rounded up to three digits, so that no error within it reads as larger.
pub(crate) fn tolerance_text(tolerance: f64) -> String {
    let text = format!("{:.2e}", rounded_up(tolerance));
    match text.split_once('e') {
        Some((mantissa, exponent)) if mantissa.contains('.') => {
            format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Compares two tensors of one shape element by element.
pub(crate) fn compare(
    got: &Tensor,
    want: &dyn Wanted,
    tolerance: &Tolerance,
    rounding: Rounding<'_>,
) -> Comparison {
    compare_or(got, want, tolerance, rounding, &|_, _, _| false)
}

/// Compares like [`compare`], and also accepts an element that differs if `allows` returns true for its position,
/// computed value and expected value.
pub(crate) fn compare_or(
    got: &Tensor,
    want: &dyn Wanted,
    tolerance: &Tolerance,
    rounding: Rounding<'_>,
    allows: &dyn Fn(usize, f64, f64) -> bool,
) -> Comparison {
    match tolerance {
        Tolerance::Relative(relative) => {
            let largest = largest(&want.values());
            compare_values(got, want, &|_| relative * largest, rounding, allows)
        }
        Tolerance::Each(bounds) => {
            let bound = |index: usize| bounds.get(index).copied().unwrap_or(0.0);
            compare_values(got, want, &bound, rounding, allows)
        }
        Tolerance::Count(count) => compare_codes(got, want, *count),
    }
}

/// The verdict on one element by a caller that knows more about it than the two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The element is as expected.
    Same,
    /// The element differs, but is a legitimate result. Only a few elements may be.
    Moved,
    /// The element has no bound, so any value is accepted.
    Free,
    /// The element is too far from the expected one.
    Wrong,
}

impl Verdict {
    /// `Same` or `Wrong`.
    pub(crate) fn of(is_right: bool) -> Verdict {
        if is_right { Verdict::Same } else { Verdict::Wrong }
    }
}

/// Tallies one verdict per element, in logical row-major order.
pub(crate) fn compare_by(got: &Tensor, want: &Tensor, verdicts: &[Verdict]) -> Comparison {
    let (got_values, want_values) = (got.to_f64(), want.to_f64());
    let mut tally = Tally::new(got);
    for (index, verdict) in verdicts.iter().enumerate() {
        let (got, want) = (got_values[index], want_values[index]);
        let error = (got - want).abs();
        let error = if error.is_nan() { f64::INFINITY } else { error };
        match verdict {
            Verdict::Same if error.is_finite() => tally.within(error),
            Verdict::Same | Verdict::Free => {}
            Verdict::Moved => tally.moved(error),
            Verdict::Wrong => tally.mismatch(index, got, want, error),
        }
    }
    tally.result.finished(&want_values)
}

impl Comparison {
    /// Counts padding bytes of blocked scales that are not zero as mismatches: a producer writes zero there.
    pub(crate) fn with_padding_of(mut self, got: &Tensor) -> Comparison {
        let (Some(ScaleLayout::Blocked), [batch @ .., rows, columns]) = (got.layout(), got.dims()) else {
            return self;
        };
        let (padded_rows, padded_columns) = (rows.next_multiple_of(ROWS), columns.next_multiple_of(COLUMNS));
        let dims = [batch, &[padded_rows, padded_columns]].concat();
        // The padded shape has the same bytes, and the padding bytes are elements of it.
        let Ok(padded) = Tensor::new(got.element(), dims, got.layout(), got.bytes().to_vec()) else {
            return self;
        };
        for (index, code) in padded.to_codes().into_iter().enumerate() {
            let position = unravel(index, padded.dims());
            let is_padding = matches!(position[..], [.., row, column] if row >= *rows || column >= *columns);
            if code != 0 && is_padding {
                self.mismatches += 1;
                self.ok = false;
                self.worst.get_or_insert(Mismatch { index: position, got: f64::from(code), want: 0.0 });
            }
        }
        self
    }

    /// Sets the fields that follow from the tallies.
    fn finished(mut self, want: &[f64]) -> Comparison {
        let most_moved = 1 + want.len() / MOVED_ONE_IN;
        self.max_rel_err = if self.max_abs_err == 0.0 { 0.0 } else { self.max_abs_err / largest(want) };
        self.ok = self.mismatches == 0 && self.moved_roundings <= most_moved;
        self
    }
}

/// The multiples to which the extents of blocked scales are padded.
const ROWS: usize = 128;
const COLUMNS: usize = 4;

/// Returns the largest finite magnitude.
pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().filter(|v| v.is_finite()).fold(0.0f64, |largest, v| largest.max(v.abs()))
}

fn compare_values(
    got: &Tensor,
    want: &dyn Wanted,
    bound: &dyn Fn(usize) -> f64,
    rounding: Rounding<'_>,
    allows: &dyn Fn(usize, f64, f64) -> bool,
) -> Comparison {
    let (got_values, want_values) = (got.to_f64(), want.values());
    let mut tally = Tally::new(got);
    let mut operand: Option<Option<Vec<f64>>> = None;
    for (index, (&got_value, &want_value)) in got_values.iter().zip(&want_values).enumerate() {
        if got_value == want_value || (got_value.is_nan() && want_value.is_nan()) {
            continue;
        }
        let delta = bound(index);
        let error = (got_value - want_value).abs();
        // NaN and infinity agree only with themselves, whatever the tolerance.
        if !error.is_finite() {
            match allows(index, got_value, want_value) {
                true => tally.result.moved_roundings += 1,
                false => tally.mismatch(index, got_value, want_value, f64::INFINITY),
            }
            continue;
        }
        if error <= delta || allows(index, got_value, want_value) {
            tally.within(error);
            continue;
        }
        let moved = delta > 0.0
            && match rounding {
                Rounding::Same => false,
                Rounding::Converted(unrounded) => {
                    let operand = operand.get_or_insert_with(|| {
                        unrounded().filter(|t| t.count() == got_values.len()).map(|t| t.to_f64())
                    });
                    operand.as_ref().is_some_and(|operand| {
                        is_rounding_of(got.element(), operand[index], delta, got_value)
                            && is_rounding_of(got.element(), operand[index], delta, want_value)
                    })
                }
                Rounding::OneStep => error <= step(got.element(), got_value.abs().max(want_value.abs())),
            };
        if moved {
            tally.moved(error);
        } else {
            tally.mismatch(index, got_value, want_value, error);
        }
    }
    tally.result.finished(&want_values)
}

/// Counts codes that differ.
fn compare_codes(got: &Tensor, want: &dyn Wanted, may_differ: usize) -> Comparison {
    let width = got.element().storage_bits().div_ceil(8);
    let (got_values, want_values) = (got.to_f64(), want.values());
    let (got_codes, want_codes) = (got.to_codes(), want.codes(got));
    let mut tally = Tally::new(got);
    for (index, (got_code, want_code)) in got_codes.chunks(width).zip(want_codes.chunks(width)).enumerate() {
        let same = got_code.iter().zip(want_code).all(|(a, b)| a & got.meaning() == b & want.meaning());
        if !same {
            let (got_value, want_value) = (got_values[index], want_values[index]);
            let error = (got_value - want_value).abs();
            let error = if error.is_nan() { f64::INFINITY } else { error };
            tally.mismatch(index, got_value, want_value, error);
        }
    }
    let largest = largest(&want_values);
    let mut result = tally.result;
    result.max_rel_err = if result.max_abs_err == 0.0 { 0.0 } else { result.max_abs_err / largest };
    result.ok = result.mismatches <= may_differ;
    result
}

struct Tally<'a> {
    dims: &'a [usize],
    worst_error: f64,
    result: Comparison,
}

impl Tally<'_> {
    fn new(got: &Tensor) -> Tally<'_> {
        let result = Comparison {
            max_abs_err: 0.0,
            max_rel_err: 0.0,
            mismatches: 0,
            moved_roundings: 0,
            moved_max_abs_err: 0.0,
            worst: None,
            unbounded: false,
            ok: true,
        };
        Tally { dims: got.dims(), worst_error: -1.0, result }
    }

    fn within(&mut self, error: f64) {
        self.result.max_abs_err = self.result.max_abs_err.max(error);
    }

    fn moved(&mut self, error: f64) {
        self.result.moved_roundings += 1;
        self.result.moved_max_abs_err = self.result.moved_max_abs_err.max(error);
    }

    fn mismatch(&mut self, index: usize, got: f64, want: f64, error: f64) {
        self.within(error);
        self.result.mismatches += 1;
        if error > self.worst_error {
            self.worst_error = error;
            self.result.worst = Some(Mismatch { index: unravel(index, self.dims), got, want });
        }
    }
}

/// Returns true if `rounded` is a value of the type between the roundings of `value` - δ and `value` + δ.
fn is_rounding_of(element: ElementType, value: f64, delta: f64, rounded: f64) -> bool {
    let low = scalar::round_to(element, value - delta);
    let high = scalar::round_to(element, value + delta);
    low <= rounded && rounded <= high && scalar::round_to(element, rounded) == rounded
}

/// Returns the distance of neighbours of a 16-bit type at a magnitude; zero for other types, which round less
/// coarsely.
fn step(element: ElementType, magnitude: f64) -> f64 {
    let (mantissa_bits, least_exponent) = match element {
        ElementType::F16 => (10, -14),
        ElementType::BF16 => (7, -126),
        _ => return 0.0,
    };
    // The exponent of an f64, which is normal for every normal value of either type.
    let exponent = ((magnitude.to_bits() >> 52) as i32) - 1023;
    2f64.powi(exponent.max(least_exponent) - mantissa_bits)
}

fn unravel(mut flat: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (slot, extent) in index.iter_mut().zip(dims).rev() {
        *slot = flat % extent;
        flat /= extent;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16(values: &[f64]) -> Tensor {
        Tensor::from_f64(ElementType::BF16, vec![values.len()], None, values).expect("one extent")
    }

    fn f32s(values: &[f64]) -> Tensor {
        Tensor::from_f64(ElementType::F32, vec![values.len()], None, values).expect("one extent")
    }

    #[test]
    fn the_text_of_a_tolerance_is_no_smaller_than_the_tolerance() {
        for (tolerance, text) in [
            (0.0, "0e0"),
            (1e-5, "1e-5"),
            (0.25, "2.5e-1"),
            (2f64.powi(-7), "7.82e-3"),
            (2f64.powi(-10), "9.77e-4"),
            (0.9991, "1e0"),
            (0.1 + 0.2, "3.01e-1"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(tolerance_text(tolerance), text);
            assert!(rounded_up(tolerance) >= tolerance, "{tolerance}");
        }
    }

    #[test]
    fn an_error_of_a_thousandth_names_its_element() {
        let want: Vec<f64> = (0..35).map(|i| f64::from(i) - 17.0).collect();
        let mut got = want.clone();
        got[23] += 17.0 * 1e-3;
        let got = Tensor::from_f64(ElementType::F32, vec![5, 7], None, &got).expect("35 values");
        let want = Tensor::from_f64(ElementType::F32, vec![5, 7], None, &want).expect("35 values");
        let comparison = compare(&got, &want, &Tolerance::Relative(1e-5), Rounding::Same);
        assert!(!comparison.ok);
        assert_eq!(comparison.mismatches, 1);
        assert_eq!(comparison.worst.expect("one mismatch").index, vec![3, 2]);
    }

    #[test]
    fn a_rounding_moves_only_near_the_middle_of_two_neighbours() {
        // Neighbours of bf16 at 1: 1 and 1.0078125; their middle is 1.00390625.
        let source = f32s(&[1.003906, 1.002, 1.003906]);
        let got = bf16(&[1.0, 1.0, 1.0]);
        let want = bf16(&[1.0078125, 1.0078125, 1.015625]);
        let operand = || Some(source.clone());
        let comparison = compare(&got, &want, &Tolerance::Relative(1e-5), Rounding::Converted(&operand));
        assert_eq!(comparison.moved_roundings, 1, "only the first is near the middle");
        assert_eq!(comparison.mismatches, 2, "one is far from the middle, one is two steps away");
        assert!(!comparison.ok);
    }

    #[test]
    fn a_wrong_conversion_is_no_moved_rounding() {
        // The expected value is the rounded operand; the computed value is not.
        let operand = || Some(f32s(&[1.0, 1.003906]));
        let rounding = Rounding::Converted(&operand);
        let comparison =
            compare(&bf16(&[100.0, 7.0]), &bf16(&[1.0, 1.0]), &Tolerance::Relative(1e-5), rounding);
        assert_eq!((comparison.mismatches, comparison.moved_roundings), (2, 0));
        assert!(!comparison.ok);
    }

    #[test]
    fn moved_roundings_are_bounded() {
        let count = 200;
        let operand = || Some(f32s(&vec![1.003906; count]));
        let rounding = Rounding::Converted(&operand);
        let (got, want) = (bf16(&vec![1.0; count]), bf16(&vec![1.0078125; count]));
        let comparison = compare(&got, &want, &Tolerance::Relative(1e-5), rounding);
        assert_eq!((comparison.mismatches, comparison.moved_roundings), (0, count));
        assert!(!comparison.ok, "every element rounded the other way is no accident");
    }

    #[test]
    fn an_inexact_sum_may_round_one_step_away_and_not_two() {
        let (got, want) = (bf16(&[1.0, 1.0, 0.25]), bf16(&[1.0078125, 1.015625, 0.25]));
        let comparison = compare(&got, &want, &Tolerance::Relative(1e-5), Rounding::OneStep);
        assert_eq!((comparison.mismatches, comparison.moved_roundings), (1, 1));
        assert_eq!(comparison.worst.expect("a mismatch").index, vec![1]);
        let f32_got = f32s(&[1.0]);
        let f32_want = f32s(&[1.0078125]);
        assert!(!compare(&f32_got, &f32_want, &Tolerance::Relative(1e-5), Rounding::OneStep).ok);
    }

    #[test]
    fn bit_equality_accepts_no_moved_rounding() {
        let operand = || Some(f32s(&[1.003906]));
        for rounding in [Rounding::Converted(&operand), Rounding::OneStep] {
            let comparison = compare(&bf16(&[1.0]), &bf16(&[1.0078125]), &Tolerance::Relative(0.0), rounding);
            assert_eq!((comparison.mismatches, comparison.moved_roundings), (1, 0));
        }
    }

    #[test]
    fn each_element_has_a_bound_of_its_own() {
        let (got, want) = (f32s(&[1.5, 2.5, 3.0]), f32s(&[1.0, 2.0, 3.0]));
        let compare =
            |bounds: &[f64]| compare(&got, &want, &Tolerance::Each(bounds.to_vec()), Rounding::Same);
        assert!(compare(&[0.5, 0.5, 0.0]).ok);
        assert_eq!(compare(&[0.5, 0.25, 9.0]).worst.expect("the second").index, vec![1]);
        assert_eq!(compare(&[]).mismatches, 2, "without a bound the bits must be equal");
    }

    #[test]
    fn nan_and_infinity_agree_only_with_themselves() {
        let got = f32s(&[f64::NAN, f64::INFINITY, f64::NAN, 1.0, f64::INFINITY]);
        let want = f32s(&[f64::NAN, f64::INFINITY, 1.0, f64::NAN, f64::NEG_INFINITY]);
        let comparison = compare(&got, &want, &Tolerance::Relative(1.0), Rounding::Same);
        assert_eq!(comparison.mismatches, 3);
        assert_eq!(comparison.max_abs_err, f64::INFINITY);
    }

    #[test]
    fn codes_may_differ_up_to_the_count() {
        let codes = |values: &[f64]| {
            Tensor::from_f64(ElementType::F4E2M1FN, vec![4], None, values).expect("four codes")
        };
        let (got, want) = (codes(&[1.0, 2.0, 3.0, 6.0]), codes(&[1.0, 3.0, 3.0, -6.0]));
        assert!(compare(&got, &want, &Tolerance::Count(2), Rounding::Same).ok);
        assert!(!compare(&got, &want, &Tolerance::Count(1), Rounding::Same).ok);
    }

    #[test]
    fn f64_expectations_keep_their_value() {
        let got = f32s(&[1.0, 3.0]);
        let off = |error: f64| vec![1.0 + error, 3.0];
        let compare = |want: &Vec<f64>| compare(&got, want, &Tolerance::Relative(1e-12), Rounding::Same);
        assert!(compare(&off(1e-12)).ok);
        // f32 cannot tell this value from 1.
        let comparison = compare(&off(1e-11));
        assert_eq!((comparison.ok, comparison.worst.expect("one").want), (false, 1.0 + 1e-11));
        let codes = super::compare(&got, &off(1e-11), &Tolerance::Count(0), Rounding::Same);
        assert!(codes.ok, "codes are those of the rounded value");
    }

    #[test]
    fn codes_of_the_two_zeros_differ() {
        let zeros = |code| {
            Tensor::from_codes(ElementType::F4E2M1FN, vec![2], None, vec![code, 0]).expect("two codes")
        };
        assert!(!compare(&zeros(8), &zeros(0), &Tolerance::Count(0), Rounding::Same).ok);
        assert!(compare(&zeros(8), &zeros(8), &Tolerance::Count(0), Rounding::Same).ok);
    }
}
