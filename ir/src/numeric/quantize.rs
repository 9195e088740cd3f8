//! Quantizes blocks of `f32` values to one scale per block and one code per value.
//!
//! A block may have any length: the caller chooses 16 for NVFP4 and 32 for MX. Codes are one per byte, as
//! [`pack_e2m1`](super::pack_e2m1) takes them. Every division and product is an IEEE `f32` operation, rounded to
//! nearest even, with subnormals; the formulas write it rn().

use super::formats::ScaleRounding;
use super::formula::Nvfp4Formula;
use super::mx_element::MxElement;
use super::mx_formula::MxEdges;

/// Quantizes one NVFP4 block with the per-tensor scale `global`. Writes an `f4E2M1FN` code for each value and returns
/// the block's scale, an unsigned `f8E4M3FN` byte.
///
/// ```text
/// s = e4m3(rn(rn(amax / 6) / global))        amax = largest magnitude in the block; s = 0 if amax = 0 or it is empty
/// q = e2m1(rn(v / rn(s * global)))           v is restored as q * s * global
/// ```
///
/// - If `amax` is zero, the scale is `0x00` and every code is `0x0` for any `global`. A tensor of zeros has the
///   global scale 0, and the formula would give 0 / 0.
/// - If `s * global` is zero, every code is `0x0`, also of negative values. Otherwise a negative value that rounds to
///   zero gives `0x8`.
///
/// For special values, the first matching row of this table applies:
///
/// | input | scale | codes |
/// |---|---|---|
/// | a NaN in the block | `0x7F` (NaN) | all `0x7` |
/// | `amax` = 0 | `0x00` | all `0x0` |
/// | `global` is NaN | `0x7F` (NaN) | all `0x7` |
/// | `global` = +0, `rn(amax / 6)` not zero | `0x7E` (448) | all `0x0` |
/// | `global` = ±0, `rn(amax / 6)` zero: `amax` <= 3 · 2^-149 | `0x7F` (NaN) | all `0x7` |
/// | `global` = -0 | `0x00` | all `0x0` |
/// | `global` infinite, an infinity in the block | `0x7F` (NaN) | all `0x7` |
/// | `global` infinite, values finite | `0x00` | all `0x7` |
/// | `global` < 0 | `0x00` | all `0x0` |
/// | an infinity in the block | `0x7E` (448) | by the formula: infinities `0x7`, `0xF` |
///
/// # Panics
///
/// If `codes` is not as long as `values`.
pub fn quantize_nvfp4_block(values: &[f32], global: f32, codes: &mut [u8]) -> u8 {
    quantize_nvfp4_block_by(Nvfp4Formula::DEFAULT, values, global, codes)
}

/// Quantizes one NVFP4 block by a formula of its own. Writes an `f4E2M1FN` code for each value and returns the block's
/// scale, an `f8E4M3FN` byte, whose sign bit is 0 if the formula has guards.
///
/// # Panics
///
/// If `codes` is not as long as `values`.
pub fn quantize_nvfp4_block_by(formula: Nvfp4Formula, values: &[f32], global: f32, codes: &mut [u8]) -> u8 {
    assert_eq!(values.len(), codes.len(), "one code for each value");
    let amax = largest_magnitude(values);
    let scale = formula.scale(amax, global);
    let step = formula.step(scale, amax, global);
    for (code, &v) in codes.iter_mut().zip(values) {
        *code = step.code(v);
    }
    scale
}

/// Quantizes one MX block. Writes a code of `element` for each value and returns the block's scale, an `f8E8M0FNU`
/// byte.
///
/// ```text
/// floor: scale = 2^(floor(log2(amax)) - emax)     OCP MX specification, section 6.3
/// ceil:  scale = 2^ceil(log2(amax / max))         the smallest scale with which no value saturates
/// even:  scale = 2^(floor(log2(amax)) - emax), twice that if amax is at least 1.75 times a power of two
/// q = element(rn(v / scale))                      saturating: with floor, up to 2^(emax + 1) can occur
/// ```
///
/// Both scales are computed exactly, without a logarithm, and clamped to the range of the type, 2^-127 to 2^127.
/// - An empty block or one of zeros has the scale byte `0x00` and zero codes, signs kept.
/// - A NaN in the block gives the scale `0xFF` (NaN) and NaN for every code (`0x7` in `f4E2M1FN`, which has no NaN).
/// - An infinity, without a NaN, gives the scale `0xFE`. It saturates; finite values are divided by 2^127.
///
/// # Panics
///
/// If `codes` is not as long as `values`.
pub fn quantize_mx_block(
    values: &[f32],
    element: MxElement,
    rounding: ScaleRounding,
    codes: &mut [u8],
) -> u8 {
    quantize_mx_block_by((rounding, MxEdges::DEFAULT), values, element, codes)
}

/// Quantizes one MX block with edges of its own. Writes a code of `element` for each value and returns the block's
/// scale, an `f8E8M0FNU` byte.
///
/// # Panics
///
/// If `codes` is not as long as `values`.
pub fn quantize_mx_block_by(
    (rounding, edges): (ScaleRounding, MxEdges),
    values: &[f32],
    element: MxElement,
    codes: &mut [u8],
) -> u8 {
    assert_eq!(values.len(), codes.len(), "one code for each value");
    let scale = edges.scale(largest_magnitude(values), element, rounding);
    let step = edges.step(scale);
    for (code, &v) in codes.iter_mut().zip(values) {
        *code = element.encode(v / step);
    }
    scale
}

/// The largest |v|; zero for an empty block, NaN if any value is NaN. Without the sign bit, bit patterns have the
/// order of the numbers, with NaN above infinity.
fn largest_magnitude(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::formats::{
        e2m1_from_f32, e2m1_to_f32, e8m0_from_f32, e8m0_to_f32, ue4m3_from_f32, ue4m3_to_f32,
    };
    use super::super::oracle::{self, Table};
    use super::*;
    use proptest::prelude::*;

    const ELEMENTS: [MxElement; 5] =
        [MxElement::E2M1, MxElement::E2M3, MxElement::E3M2, MxElement::E4M3, MxElement::E5M2];
    const ROUNDINGS: [ScaleRounding; 3] = [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even];

    fn nvfp4(values: &[f32], global: f32) -> (u8, Vec<u8>) {
        // No format produces 0xEE: it shows a code that was not written.
        let mut codes = vec![0xEE; values.len()];
        (quantize_nvfp4_block(values, global, &mut codes), codes)
    }

    fn mx(values: &[f32], element: MxElement, rounding: ScaleRounding) -> (u8, Vec<u8>) {
        let mut codes = vec![0xEE; values.len()];
        (quantize_mx_block(values, element, rounding, &mut codes), codes)
    }

    /// An f32 division computed in f64 and rounded to f32. Double rounding is innocuous for quotients and products of
    /// 24-bit numbers, because 53 >= 2·24 + 2.
    fn div(a: f32, b: f32) -> f32 {
        (f64::from(a) / f64::from(b)) as f32
    }

    fn mul(a: f32, b: f32) -> f32 {
        (f64::from(a) * f64::from(b)) as f32
    }

    fn amax(values: &[f32]) -> f32 {
        values.iter().fold(0.0, |amax, v| amax.max(v.abs()))
    }

    fn signed_code(v: f32, step: f32, table: &Table, sign: u8) -> u8 {
        let magnitude = table.nearest(f64::from(div(v.abs(), step))) as u8;
        if v.is_sign_negative() { sign | magnitude } else { magnitude }
    }

    /// A second implementation of the formula, for finite values and `global` > 0, that searches the format tables.
    fn reference_nvfp4(values: &[f32], global: f32) -> (u8, Vec<u8>) {
        let scales = oracle::e4m3();
        let scale = scales.nearest(f64::from(div(div(amax(values), 6.0), global)));
        let step = mul(scales.magnitudes()[usize::from(scale)] as f32, global);
        let table = oracle::e2m1();
        let code = |&v: &f32| if step == 0.0 { 0 } else { signed_code(v, step, &table, 0x8) };
        (scale as u8, values.iter().map(code).collect())
    }

    /// A second implementation of the MX rules, for finite values, that tries each power of two as the scale.
    fn reference_mx(values: &[f32], element: MxElement, rounding: ScaleRounding) -> (u8, Vec<u8>) {
        let (table, emax, sign) = match element {
            MxElement::E2M1 => (oracle::e2m1(), 2, 0x8),
            MxElement::E2M3 => (oracle::e2m3(), 2, 0x20),
            MxElement::E3M2 => (oracle::e3m2(), 4, 0x20),
            MxElement::E4M3 => (oracle::e4m3(), 8, 0x80),
            MxElement::E5M2 => (oracle::e5m2(), 15, 0x80),
        };
        let amax = f64::from(amax(values));
        let exponent = match rounding {
            ScaleRounding::Floor => {
                let floor = (-149..128).rev().find(|&e| 2f64.powi(e) <= amax).unwrap_or(-1000);
                (floor - emax).max(-127)
            }
            ScaleRounding::Ceil => (-127..128).find(|&e| table.last_finite() * 2f64.powi(e) >= amax).unwrap(),
            ScaleRounding::Even => {
                let even = (-149..129).rev().find(|&e| 2f64.powi(e) <= amax / 0.875).unwrap_or(-1000);
                (even - emax).max(-127)
            }
        };
        let step = 2f64.powi(exponent) as f32;
        let codes = values.iter().map(|&v| signed_code(v, step, &table, sign)).collect();
        ((exponent + 127) as u8, codes)
    }

    #[test]
    fn nvfp4_codes_of_a_block_with_step_one_are_the_e2m1_roundings_of_its_values() {
        let values = [6.0, 0.25, -0.75, 1.25, -1.75, 2.5, 3.5, -5.0, -0.1, 0.0, 4.99, 5.01];
        let (scale, codes) = nvfp4(&values, 1.0);
        assert_eq!(ue4m3_to_f32(scale), 1.0);
        assert_eq!(codes, [0x7, 0x0, 0xA, 0x2, 0xC, 0x4, 0x6, 0xE, 0x8, 0x0, 0x6, 0x7]);
    }

    #[test]
    fn an_nvfp4_scale_halfway_between_two_goes_to_the_even_one() {
        // amax / 6 = 1.0625 and 1.1875, the ties around 1.125 (0x39).
        assert_eq!([6.375, 7.125].map(|amax| nvfp4(&[amax], 1.0).0), [0x38, 0x3A]);
        assert_eq!([6.375f32.next_up(), 7.125f32.next_down()].map(|amax| nvfp4(&[amax], 1.0).0), [0x39; 2]);
    }

    #[test]
    fn the_nvfp4_scale_divides_by_six_first_and_rounds_then() {
        // Found by search: any other order of operations lands on the other side of a tie.
        let (amax, global) = (f32::from_bits(0x3F4B_331E), f32::from_bits(0x3CBC_799E));
        assert_eq!(nvfp4(&[amax], global).0, 0x4B);
        for other in [
            amax / global / 6.0,
            amax / (6.0 * global),
            amax * (1.0 / 6.0) / global,
            (f64::from(amax) / 6.0 / f64::from(global)) as f32,
        ] {
            assert_eq!(ue4m3_from_f32(other), 0x4C);
        }
    }

    #[test]
    fn an_nvfp4_value_is_divided_by_the_rounded_step() {
        // Found by search: v / rn(s * g) is the tie 2.5; any other order of operations is above it.
        let (v, global) = (f32::from_bits(0x3F72_8C28), f32::from_bits(0x3C8D_1E58));
        let (scale, codes) = nvfp4(&[v, 22.0 * 6.0 * global], global);
        assert_eq!(ue4m3_to_f32(scale), 22.0);
        assert_eq!(codes, [0x4, 0x7]);
        for other in [v * (1.0 / (22.0 * global)), v / 22.0 / global] {
            assert_eq!(e2m1_from_f32(other), 0x5);
        }
    }

    #[test]
    fn an_nvfp4_scale_beyond_448_saturates_and_so_do_the_codes() {
        let (scale, codes) = nvfp4(&[1e6, -1e6, 1344.0], 1.0);
        assert_eq!((scale, codes), (0x7E, vec![0x7, 0xF, 0x5]));
    }

    #[test]
    fn nvfp4_codes_are_zero_without_a_sign_where_the_step_is_zero() {
        assert_eq!(nvfp4(&[0.0, -0.0], 1.0), (0x00, vec![0x0; 2]));
        // amax / 6 / g is 2^-10, half of the smallest scale: a tie that goes to zero.
        let amax = 6.0 * 2f32.powi(-10);
        assert_eq!(nvfp4(&[amax, -amax], 1.0), (0x00, vec![0x0; 2]));
        assert_eq!(nvfp4(&[amax.next_up(), -amax], 1.0), (0x01, vec![0x5, 0xD]));
        assert_eq!(nvfp4(&[5.0, -5.0], 0.0), (0x7E, vec![0x0; 2]));
        assert_eq!(nvfp4(&[5.0, -5.0], -1.0), (0x00, vec![0x0; 2]));
    }

    #[test]
    fn a_nan_makes_the_whole_nvfp4_block_nan_scaled_sixes() {
        for nan in [f32::NAN, -f32::NAN] {
            for values in [[nan, 1.0, -2.0], [1.0, -2.0, nan], [f32::INFINITY, nan, 0.0]] {
                assert_eq!(nvfp4(&values, 0.5), (0x7F, vec![0x7; 3]));
            }
        }
        assert_eq!(nvfp4(&[1.0, -2.0], f32::NAN), (0x7F, vec![0x7; 2]));
        assert_eq!(nvfp4(&[1.0, -2.0], f32::INFINITY), (0x00, vec![0x7; 2]));
    }

    /// A tensor of zeros has the global scale 0, and a caller may derive any number from it.
    #[test]
    fn an_nvfp4_block_of_zeros_has_scale_zero_and_codes_zero_whatever_the_global_scale() {
        for global in [1.0, 0.0, -0.0, -1.0, 1e-45, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(nvfp4(&[0.0, -0.0, 0.0], global), (0x00, vec![0x0; 3]), "{global}");
            assert_eq!(nvfp4(&[], global), (0x00, vec![]), "{global}");
        }
    }

    /// The table of [`quantize_nvfp4_block`], row by row.
    #[test]
    fn an_unusual_global_scale_gives_what_the_table_says() {
        const INFINITY: f32 = f32::INFINITY;
        let least = f32::from_bits(3);
        assert_eq!((least / 6.0, f32::from_bits(4) / 6.0 > 0.0), (0.0, true));
        for (values, global, scale, code) in [
            ([0.0, f32::NAN], 0.0, 0x7F, 0x7),
            ([1.0, 0.0], f32::NAN, 0x7F, 0x7),
            ([1.0, INFINITY], 0.0, 0x7E, 0x0),
            ([f32::from_bits(4), 0.0], 0.0, 0x7E, 0x0),
            ([least, 0.0], 0.0, 0x7F, 0x7),
            ([least, 0.0], -0.0, 0x7F, 0x7),
            ([1.0, -INFINITY], -0.0, 0x00, 0x0),
            ([1.0, INFINITY], INFINITY, 0x7F, 0x7),
            ([1.0, INFINITY], -INFINITY, 0x7F, 0x7),
            ([1.0, -f32::MAX], INFINITY, 0x00, 0x7),
            ([1.0, -f32::MAX], -INFINITY, 0x00, 0x7),
            ([1.0, -INFINITY], -1.0, 0x00, 0x0),
        ] {
            assert_eq!(nvfp4(&values, global), (scale, vec![code; 2]), "{values:?} {global}");
        }
    }

    #[test]
    fn an_infinity_saturates_the_nvfp4_scale_and_leaves_the_others_to_the_formula() {
        let (scale, codes) = nvfp4(&[f32::INFINITY, f32::NEG_INFINITY, 448.0, -1.0], 1.0);
        assert_eq!((scale, codes), (0x7E, vec![0x7, 0xF, 0x2, 0x8]));
    }

    #[test]
    fn an_mx_scale_follows_floor_or_ceil_at_the_largest_value_of_the_element() {
        use ScaleRounding::{Ceil, Floor};
        for element in ELEMENTS {
            let max = element.max_value();
            assert_eq!(element.decode(element.encode(f32::MAX)), max);
            assert_eq!(max.log2().floor(), f32::from(element.max_exponent()));
            let power = 2f32.powi(i32::from(element.max_exponent()));

            // Scale 1 is byte 127. Floor changes at powers of two, ceil above the largest value.
            let scale = |amax: f32, rounding| mx(&[0.0, -amax], element, rounding).0;
            assert_eq!(
                [power, max, max.next_up(), 2.0 * power].map(|v| scale(v, Floor)),
                [127, 127, 127, 128]
            );
            assert_eq!(
                [power, max, max.next_up(), 2.0 * power].map(|v| scale(v, Ceil)),
                [127, 127, 128, 128]
            );
            assert_eq!([Floor, Ceil].map(|rounding| scale(power.next_down(), rounding)), [126, 127]);
        }
    }

    #[test]
    fn floor_saturates_what_ceil_rounds() {
        let values = [7.5, -7.5, 3.0, -0.25];
        let floor = mx(&values, MxElement::E2M1, ScaleRounding::Floor);
        let ceil = mx(&values, MxElement::E2M1, ScaleRounding::Ceil);
        assert_eq!(floor, (127, vec![0x7, 0xF, 0x5, 0x8]));
        assert_eq!(ceil, (128, vec![0x6, 0xE, 0x3, 0x8]));
    }

    #[test]
    fn an_mx_block_of_zeros_or_nothing_has_the_smallest_scale() {
        for element in ELEMENTS {
            for rounding in ROUNDINGS {
                let negative_zero = element.encode(-0.0);
                assert_ne!(negative_zero, 0);
                assert_eq!(mx(&[0.0, -0.0], element, rounding), (0x00, vec![0x0, negative_zero]));
                assert_eq!(mx(&[], element, rounding), (0x00, vec![]));
            }
        }
        assert_eq!(nvfp4(&[], 1.0), (0x00, vec![]));
    }

    #[test]
    fn the_smallest_values_meet_the_smallest_mx_scale() {
        // 2^-127 times the smallest e5m2 magnitude, 2^-16, is 2^-143: smaller values round to 0.
        let smallest = 2f32.powi(-126) * 2f32.powi(-17);
        for rounding in ROUNDINGS {
            let (scale, codes) = mx(&[smallest, smallest / 2.0, -smallest], MxElement::E5M2, rounding);
            assert_eq!((scale, codes), (0x00, vec![0x01, 0x00, 0x81]));
        }
    }

    #[test]
    fn a_nan_makes_the_mx_scale_and_every_code_nan() {
        for rounding in ROUNDINGS {
            for nan in [f32::NAN, -f32::NAN] {
                let values = [1.0, nan, f32::INFINITY];
                assert_eq!(mx(&values, MxElement::E2M1, rounding), (0xFF, vec![0x7; 3]));
                assert_eq!(mx(&values, MxElement::E4M3, rounding), (0xFF, vec![0x7F; 3]));
                assert_eq!(mx(&values, MxElement::E5M2, rounding), (0xFF, vec![0x7F; 3]));
            }
        }
    }

    #[test]
    fn an_infinity_saturates_the_mx_scale_and_its_code() {
        for rounding in ROUNDINGS {
            let values = [f32::NEG_INFINITY, 2f32.powi(127), 1.0];
            assert_eq!(mx(&values, MxElement::E2M1, rounding), (0xFE, vec![0xF, 0x2, 0x0]));
            assert_eq!(mx(&values, MxElement::E4M3, rounding), (0xFE, vec![0xFE, 0x38, 0x00]));
            assert_eq!(mx(&values, MxElement::E5M2, rounding), (0xFE, vec![0xFB, 0x3C, 0x00]));
        }
    }

    /// Kernels often compute ceil as `e8m0(rn(amax / max), up)`. The result is the same if the quotient is a normal
    /// f32. It differs for one subnormal quotient: just above `max * 2^-127`, the quotient rounds to 2^-127.
    #[test]
    fn ceil_equals_rounding_the_f32_quotient_up_except_for_one_subnormal_quotient() {
        for element in ELEMENTS {
            let max = element.max_value();
            let quotient = |amax: f32| e8m0_from_f32(amax / max, ScaleRounding::Ceil);
            let exact = |amax: f32| mx(&[amax], element, ScaleRounding::Ceil).0;
            let boundary = max * 2f32.powi(-126) / 2.0;
            for byte in 0..=254u8 {
                // Results change only close to max * 2^e; step over the rest of the binade.
                let centre = (f64::from(max) * f64::from(e8m0_to_f32(byte))) as f32;
                if !centre.is_finite() {
                    continue;
                }
                for offset in (-64i32..64).chain((-1 << 22..1 << 22).step_by(65_537)) {
                    let amax = f32::from_bits(centre.to_bits().saturating_add_signed(offset));
                    if amax.is_finite() && amax != boundary.next_up() {
                        assert_eq!(quotient(amax), exact(amax), "{element:?} {amax:e}");
                    }
                }
            }
            assert_eq!([quotient(boundary.next_up()), exact(boundary.next_up())], [0x00, 0x01]);
        }
    }

    #[test]
    fn a_wrong_number_of_codes_is_the_callers_error() {
        let nvfp4 = std::panic::catch_unwind(|| quantize_nvfp4_block(&[1.0; 2], 1.0, &mut [0; 1]));
        let mx = std::panic::catch_unwind(|| {
            quantize_mx_block(&[1.0; 2], MxElement::E2M1, ScaleRounding::Ceil, &mut [0; 3])
        });
        assert!(nvfp4.is_err() && mx.is_err());
    }

    /// Values that meet ties often: small multiples of 1/8 times a power of two.
    fn coarse() -> impl Strategy<Value = f32> {
        (-64i16..=64).prop_map(|n| f32::from(n) / 8.0)
    }

    /// A block whose values are all scaled by one power of two.
    fn block(exponents: std::ops::Range<i32>) -> impl Strategy<Value = Vec<f32>> {
        let values = prop::collection::vec(prop_oneof![coarse(), -8.0f32..8.0], 1..40);
        (values, exponents).prop_map(|(values, exponent)| {
            // In f64, because the smallest exponents are subnormal.
            values.into_iter().map(|v| (f64::from(v) * 2f64.powi(exponent)) as f32).collect()
        })
    }

    proptest! {
        #![proptest_config(oracle::cases(4096))]

        #[test]
        fn nvfp4_blocks_are_what_the_formula_says(
            values in block(-20..20),
            global in prop_oneof![(-12..12i32).prop_map(|e| 2f32.powi(e)), 1e-6f32..1e3],
        ) {
            prop_assert_eq!(nvfp4(&values, global), reference_nvfp4(&values, global));
        }

        #[test]
        fn a_restored_nvfp4_value_is_within_one_step_or_what_a_subnormal_scale_costs(
            values in block(-4..2),
            global in 0.01f32..1.0,
        ) {
            // amax is at most 16 and amax / 6 / global at most 267, so the scale does not saturate.
            let (scale, codes) = nvfp4(&values, global);
            let step = ue4m3_to_f32(scale) * global;
            // Codes are at most 2 steps apart. A subnormal scale is off by up to half its unit, 2^-9, and a
            // saturated code by six times that. The rest is for the rounding of f32.
            let allowed = step.max(3.0 * 2f32.powi(-9) * global) * (1.0 + 1e-5);
            for (&code, &v) in codes.iter().zip(&values) {
                prop_assert!((e2m1_to_f32(code) * step - v).abs() <= allowed);
            }
            if scale != 0 {
                let top = codes.iter().map(|code| code & 0x7).max();
                prop_assert!(top >= Some(0x5), "the code of the largest value is 3 or more, {:?}", codes);
            }
        }

        #[test]
        fn mx_blocks_are_what_the_rules_say(
            values in prop_oneof![block(-140..124), block(-4..20)],
            element in prop::sample::select(&ELEMENTS[..]),
            rounding in prop::sample::select(&ROUNDINGS[..]),
        ) {
            prop_assert_eq!(mx(&values, element, rounding), reference_mx(&values, element, rounding));
        }

        #[test]
        fn with_ceil_no_mx_value_saturates_and_the_largest_uses_the_upper_binade(
            values in block(-100..100),
            element in prop::sample::select(&ELEMENTS[..]),
        ) {
            let (scale, codes) = mx(&values, element, ScaleRounding::Ceil);
            let amax = amax(&values);
            prop_assert!(f64::from(amax) <= f64::from(element.max_value()) * f64::from(e8m0_to_f32(scale)));
            if amax > 0.0 {
                let top = codes.iter().map(|&code| element.decode(code).abs()).fold(0.0, f32::max);
                prop_assert!(top >= element.max_value() / 2.0, "{:?}", codes);
            }
        }
    }
}
