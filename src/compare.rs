//! Compares a tensor with what was expected of it.

use fourfold_ir::{ElementType, Tensor, scalar};

/// How close two tensors must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// At most this far apart, relative to the largest magnitude of the expected tensor; 0 is bit equality
    /// (of values: -0 equals 0).
    Relative(f64),
    /// At most this many elements may differ, by however much: for codes of a quantization, where an input that
    /// moved in its last bit can move a code.
    Count(usize),
}

/// The outcome of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The largest |got - want| but for moved roundings; infinite where one of them is NaN or infinite and the other
    /// is not the same.
    pub max_abs_err: f64,
    /// The same over the largest finite magnitude of `want`.
    pub max_rel_err: f64,
    /// Elements that are too far apart.
    pub mismatches: usize,
    /// Elements that differ because a value near the middle of two neighbours of a narrow type was rounded the
    /// other way. Accepted only where the unrounded value is within the tolerance of that middle.
    pub moved_roundings: usize,
    /// The largest |got - want| among those: at most one step of the narrow type.
    pub moved_max_abs_err: f64,
    /// The element that is furthest apart among the mismatches.
    pub worst: Option<Mismatch>,
    /// Whether the tensors agree.
    pub ok: bool,
}

/// One element that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Its index, outermost first.
    pub index: Vec<usize>,
    /// What was computed.
    pub got: f64,
    /// What was expected.
    pub want: f64,
}

/// Compares two tensors of one shape element by element.
///
/// `unrounded` is the operand of the conversion that made `got`, when that is how it was made. It may itself be off
/// by the tolerance, so a rounding of it may legitimately fall on either side: an element that differs is
/// accepted when `want` lies between the roundings of `unrounded - δ` and `unrounded + δ`, δ being the tolerance
/// times the largest magnitude.
pub fn compare(
    got: &Tensor,
    want: &Tensor,
    tolerance: Tolerance,
    unrounded: Option<&dyn Fn() -> Option<Tensor>>,
) -> Comparison {
    let (got_values, want_values) = (got.to_f64(), want.to_f64());
    let largest =
        want_values.iter().filter(|v| v.is_finite()).fold(0.0f64, |largest, v| largest.max(v.abs()));
    let delta = match tolerance {
        Tolerance::Relative(relative) => relative * largest,
        Tolerance::Count(_) => 0.0,
    };
    let mut unrounded_values: Option<Option<Vec<f64>>> = None;
    let mut result = Comparison {
        max_abs_err: 0.0,
        max_rel_err: 0.0,
        mismatches: 0,
        moved_roundings: 0,
        moved_max_abs_err: 0.0,
        worst: None,
        ok: true,
    };
    let mut worst_error = -1.0;
    for (index, (&got_value, &want_value)) in got_values.iter().zip(&want_values).enumerate() {
        if got_value == want_value || (got_value.is_nan() && want_value.is_nan()) {
            continue;
        }
        let error = (got_value - want_value).abs();
        let error = if error.is_nan() { f64::INFINITY } else { error };
        if error <= delta {
            result.max_abs_err = result.max_abs_err.max(error);
            continue;
        }
        let source = unrounded_values.get_or_insert_with(|| {
            let tensor = unrounded.filter(|_| delta > 0.0)?()?;
            (tensor.count() == got_values.len()).then(|| tensor.to_f64())
        });
        if let Some(source) = source
            && rounding_may_move(got.element(), source[index], delta, want_value)
        {
            result.moved_roundings += 1;
            result.moved_max_abs_err = result.moved_max_abs_err.max(error);
            continue;
        }
        result.max_abs_err = result.max_abs_err.max(error);
        result.mismatches += 1;
        if error > worst_error {
            worst_error = error;
            let index = unravel(index, got.dims());
            result.worst = Some(Mismatch { index, got: got_value, want: want_value });
        }
    }
    result.max_rel_err = if result.max_abs_err == 0.0 { 0.0 } else { result.max_abs_err / largest };
    let allowed = match tolerance {
        Tolerance::Relative(_) => 0,
        Tolerance::Count(count) => count,
    };
    result.ok = result.mismatches <= allowed;
    result
}

fn rounding_may_move(element: ElementType, unrounded: f64, delta: f64, want: f64) -> bool {
    let low = scalar::round_to(element, unrounded - delta);
    let high = scalar::round_to(element, unrounded + delta);
    low <= want && want <= high
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
    fn an_error_of_a_thousandth_names_its_element() {
        let want: Vec<f64> = (0..35).map(|i| f64::from(i) - 17.0).collect();
        let mut got = want.clone();
        got[23] += 17.0 * 1e-3;
        let got = Tensor::from_f64(ElementType::F32, vec![5, 7], None, &got).expect("35 values");
        let want = Tensor::from_f64(ElementType::F32, vec![5, 7], None, &want).expect("35 values");
        let comparison = compare(&got, &want, Tolerance::Relative(1e-5), None);
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
        let comparison = compare(&got, &want, Tolerance::Relative(1e-5), Some(&|| Some(source.clone())));
        assert_eq!(comparison.moved_roundings, 1, "only the first is near the middle");
        assert_eq!(comparison.mismatches, 2, "one is far from the middle, one is two steps away");
        assert!(!comparison.ok);
    }

    #[test]
    fn bit_equality_accepts_no_moved_rounding() {
        let source = f32s(&[1.003906]);
        let unrounded = || Some(source.clone());
        let comparison =
            compare(&bf16(&[1.0]), &bf16(&[1.0078125]), Tolerance::Relative(0.0), Some(&unrounded));
        assert_eq!((comparison.mismatches, comparison.moved_roundings), (1, 0));
    }

    #[test]
    fn nan_and_infinity_agree_only_with_themselves() {
        let got = f32s(&[f64::NAN, f64::INFINITY, f64::NAN, 1.0, f64::INFINITY]);
        let want = f32s(&[f64::NAN, f64::INFINITY, 1.0, f64::NAN, f64::NEG_INFINITY]);
        let comparison = compare(&got, &want, Tolerance::Relative(1.0), None);
        assert_eq!(comparison.mismatches, 3);
        assert_eq!(comparison.max_abs_err, f64::INFINITY);
    }

    #[test]
    fn codes_may_differ_up_to_the_count() {
        let codes = |values: &[f64]| {
            Tensor::from_f64(ElementType::F4E2M1FN, vec![4], None, values).expect("four codes")
        };
        let (got, want) = (codes(&[1.0, 2.0, 3.0, 6.0]), codes(&[1.0, 3.0, 3.0, -6.0]));
        assert!(compare(&got, &want, Tolerance::Count(2), None).ok);
        assert!(!compare(&got, &want, Tolerance::Count(1), None).ok);
    }
}
