//! Converts codes of the 4-bit, 6-bit, 8-bit and 16-bit formats to `f32` and back.
//!
//! Codes are the raw bits, right-aligned in a `u8` or `u16`. The rules for overflow and NaN are in the
//! table of the [parent module](super).

use super::round::{BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, FloatFormat, decode_f32, round_f64};
use crate::named::named;

/// The rounding of a positive number to a power of two (an `f8E8M0FNU` scale).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScaleRounding {
    /// Round down to a power of two, as in the OCP MX specification, section 6.3.
    Floor,
    /// Round up to a power of two, as CUDA's `cudaRoundPosInf`.
    Ceil,
    /// Round to two significant bits, half up, then down to a power of two: up from 1.75 times a power of two. AMD
    /// Quark names it so, and compressed-tensors has the same rule.
    Even,
}

named!(ScaleRounding { Floor => "floor", Ceil => "ceil", Even => "even", });

/// The value of each `f4E2M1FN` code.
pub const E2M1_VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Decoding is the inner loop of the CPU fallback, and a lookup in 1 KiB is faster than extracting bit fields.
static E2M3_VALUES: [f32; 64] = value_of_each_code(&E2M3);
static E3M2_VALUES: [f32; 64] = value_of_each_code(&E3M2);
static E4M3_VALUES: [f32; 256] = value_of_each_code(&E4M3);
static E5M2_VALUES: [f32; 256] = value_of_each_code(&E5M2);

/// The magnitude bits of an e4m3 byte.
const UE4M3_MASK: u8 = 0x7F;

/// The code that `f8E8M0FNU` reserves for NaN.
const E8M0_NAN: u8 = 0xFF;
/// The code of the largest `f8E8M0FNU` value, 2^127.
const E8M0_MAX: u8 = 0xFE;

/// Mantissa bits of an `f32`. The exponent field above them has the same bias as `f8E8M0FNU`.
const F32_MANTISSA_BITS: u32 = 23;
/// The mantissa bits of 1.75.
pub(super) const ONE_POINT_75: u32 = 3 << (F32_MANTISSA_BITS - 2);
/// The bits of 2^-127: a subnormal in `f32`, code 0 in `f8E8M0FNU`.
const TWO_POW_MINUS_127: u32 = 1 << (F32_MANTISSA_BITS - 1);

const fn value_of_each_code<const CODES: usize>(format: &FloatFormat) -> [f32; CODES] {
    let mut values = [0.0; CODES];
    let mut code = 0;
    while code < values.len() {
        values[code] = decode_f32(code as u16, format);
        code += 1;
    }
    values
}

/// Decodes an `f4E2M1FN` code. Ignores the high four bits of `code`.
#[inline]
pub fn e2m1_to_f32(code: u8) -> f32 {
    E2M1_VALUES[usize::from(code & 0xF)]
}

/// Rounds `v` to an `f4E2M1FN` code (`0x0..=0xF`): nearest, ties to even. Saturates at ±6, keeps the sign of
/// zero; NaN gives `0x7`.
#[inline]
pub fn e2m1_from_f32(v: f32) -> u8 {
    e2m1_from_f64(f64::from(v))
}

/// Rounds like [`e2m1_from_f32`], once, from `f64`.
#[inline]
pub fn e2m1_from_f64(v: f64) -> u8 {
    round_f64(v, &E2M1) as u8
}

/// Decodes an `f6E2M3FN` code. Ignores the high two bits of `code`.
#[inline]
pub fn e2m3_to_f32(code: u8) -> f32 {
    E2M3_VALUES[usize::from(code & 0x3F)]
}

/// Rounds `v` to an `f6E2M3FN` code (`0x00..=0x3F`): nearest, ties to even. Saturates at ±7.5, keeps the sign of zero;
/// NaN gives `0x1F`.
#[inline]
pub fn e2m3_from_f64(v: f64) -> u8 {
    round_f64(v, &E2M3) as u8
}

/// Decodes an `f6E3M2FN` code. Ignores the high two bits of `code`.
#[inline]
pub fn e3m2_to_f32(code: u8) -> f32 {
    E3M2_VALUES[usize::from(code & 0x3F)]
}

/// Rounds `v` to an `f6E3M2FN` code (`0x00..=0x3F`): nearest, ties to even. Saturates at ±28, keeps the sign of zero;
/// NaN gives `0x1F`.
#[inline]
pub fn e3m2_from_f64(v: f64) -> u8 {
    round_f64(v, &E3M2) as u8
}

/// Decodes an `f8E4M3FN` byte as an unsigned NVFP4 scale. Bit 7 is ignored: `0x7F` and `0xFF` are NaN, `0x80` is
/// zero.
#[inline]
pub fn ue4m3_to_f32(byte: u8) -> f32 {
    E4M3_VALUES[usize::from(byte & UE4M3_MASK)]
}

/// Rounds `v` to an unsigned `f8E4M3FN` byte (`0x00..=0x7F`): nearest, ties to even. Saturates at 448; NaN gives
/// `0x7F`. Negative numbers and -0 give `0x00`.
#[inline]
pub fn ue4m3_from_f32(v: f32) -> u8 {
    if v < 0.0 { 0x00 } else { e4m3_from_f32(v) & UE4M3_MASK }
}

/// Decodes an `f8E4M3FN` byte; `0x7F` and `0xFF` are NaN.
#[inline]
pub fn e4m3_to_f32(byte: u8) -> f32 {
    E4M3_VALUES[usize::from(byte)]
}

/// Rounds `v` to an `f8E4M3FN` byte: nearest, ties to even. Saturates at ±448, as infinities do; keeps the sign of
/// zero; NaN gives `0x7F`.
#[inline]
pub fn e4m3_from_f32(v: f32) -> u8 {
    e4m3_from_f64(f64::from(v))
}

/// Rounds like [`e4m3_from_f32`], once, from `f64`.
#[inline]
pub fn e4m3_from_f64(v: f64) -> u8 {
    round_f64(v, &E4M3) as u8
}

/// Decodes an `f8E5M2` byte. `0x7C` and `0xFC` are infinite; larger magnitudes are NaN.
#[inline]
pub fn e5m2_to_f32(byte: u8) -> f32 {
    E5M2_VALUES[usize::from(byte)]
}

/// Rounds `v` to an `f8E5M2` byte: nearest, ties to even. Saturates at ±57344, as infinities do although the format
/// has its own; keeps the sign of zero; NaN gives `0x7F`.
#[inline]
pub fn e5m2_from_f32(v: f32) -> u8 {
    e5m2_from_f64(f64::from(v))
}

/// Rounds like [`e5m2_from_f32`], once, from `f64`.
#[inline]
pub fn e5m2_from_f64(v: f64) -> u8 {
    round_f64(v, &E5M2) as u8
}

/// Decodes an `f8E8M0FNU` byte, 2^(byte - 127). No byte is zero; byte 0 is a subnormal `f32`; `0xFF` is NaN.
#[inline]
pub fn e8m0_to_f32(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(TWO_POW_MINUS_127),
        E8M0_NAN => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << F32_MANTISSA_BITS),
    }
}

/// Rounds `v` to the `f8E8M0FNU` byte of a power of two. The result is exact: no logarithm is computed.
///
/// Saturates at both ends: zero of either sign and values up to 2^-127 give `0x00`; values from 2^127, infinity
/// included, give `0xFE`. NaN and negative numbers give `0xFF`.
#[inline]
pub fn e8m0_from_f32(v: f32, rounding: ScaleRounding) -> u8 {
    if v.is_nan() || v < 0.0 {
        return E8M0_NAN;
    }
    let magnitude = v.abs().to_bits();
    let below = (magnitude >> F32_MANTISSA_BITS) as u8;
    // The bits of the power of two that `below` encodes; for subnormals, of 2^-127.
    let exact = (u32::from(below) << F32_MANTISSA_BITS).max(TWO_POW_MINUS_127);
    let byte = match rounding {
        ScaleRounding::Floor => below,
        ScaleRounding::Ceil => below.saturating_add(u8::from(magnitude > exact)),
        // A subnormal is 2^-127 up to 1.75 times that, and no larger subnormal reaches 1.75 · 2^-126.
        ScaleRounding::Even => match below {
            0 => u8::from(magnitude >= TWO_POW_MINUS_127 / 4 * 7),
            _ => below.saturating_add(u8::from(magnitude - exact >= ONE_POINT_75)),
        },
    };
    byte.min(E8M0_MAX)
}

/// Rounds `v` to `f16` bits: nearest, ties to even. Overflow gives infinity, NaN gives `0x7FFF`.
#[inline]
pub fn f32_to_f16_bits(v: f32) -> u16 {
    f64_to_f16_bits(f64::from(v))
}

/// Rounds like [`f32_to_f16_bits`], once, from `f64`.
#[inline]
pub fn f64_to_f16_bits(v: f64) -> u16 {
    round_f64(v, &F16)
}

/// Decodes `f16` bits.
#[inline]
pub fn f16_bits_to_f32(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

/// Rounds `v` to `bf16` bits: nearest, ties to even. Overflow gives infinity, NaN gives `0x7FFF`.
#[inline]
pub fn f32_to_bf16_bits(v: f32) -> u16 {
    f64_to_bf16_bits(f64::from(v))
}

/// Rounds like [`f32_to_bf16_bits`], once, from `f64`.
#[inline]
pub fn f64_to_bf16_bits(v: f64) -> u16 {
    round_f64(v, &BF16)
}

/// Decodes `bf16` bits, the upper half of an `f32`.
#[inline]
pub fn bf16_bits_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds `v` to `f32`: nearest, ties to even. Overflow gives infinity.
#[inline]
pub fn f64_to_f32(v: f64) -> f32 {
    v as f32
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{self, Table};
    use super::*;

    /// Checks that `0..=last_finite` and its negatives decode to the values of `table`, the sign of zero included.
    #[track_caller]
    fn check_finite_codes(decode: impl Fn(u16) -> f32, sign: u16, last_finite: u16, table: &Table) {
        for code in 0..=last_finite {
            let expected = table.magnitudes()[usize::from(code)] as f32;
            assert_eq!(decode(code).to_bits(), expected.to_bits(), "code {code:#x}");
            assert_eq!(decode(code | sign).to_bits(), (-expected).to_bits(), "code {:#x}", code | sign);
        }
    }

    #[test]
    fn finite_codes_decode_as_the_definition_of_their_format_says() {
        check_finite_codes(|code| e2m1_to_f32(code as u8), 0x8, 0x7, &oracle::e2m1());
        check_finite_codes(|code| e2m3_to_f32(code as u8), 0x20, 0x1F, &oracle::e2m3());
        check_finite_codes(|code| e3m2_to_f32(code as u8), 0x20, 0x1F, &oracle::e3m2());
        check_finite_codes(|code| e4m3_to_f32(code as u8), 0x80, 0x7E, &oracle::e4m3());
        check_finite_codes(|code| e5m2_to_f32(code as u8), 0x80, 0x7B, &oracle::e5m2());
        check_finite_codes(f16_bits_to_f32, 0x8000, 0x7BFF, &oracle::f16());
        check_finite_codes(bf16_bits_to_f32, 0x8000, 0x7F7F, &oracle::bf16());
    }

    #[test]
    fn nan_and_infinite_codes_decode_as_such() {
        for byte in [0x7F, 0xFF] {
            assert!(e4m3_to_f32(byte).is_nan());
            assert!(ue4m3_to_f32(byte).is_nan());
        }
        for sign in [0x00, 0x80] {
            for code in 0x7D..=0x7F {
                assert!(e5m2_to_f32(sign | code).is_nan());
            }
        }
        assert_eq!([e5m2_to_f32(0x7C), e5m2_to_f32(0xFC)], [f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!([f16_bits_to_f32(0x7C00), bf16_bits_to_f32(0xFF80)], [f32::INFINITY, f32::NEG_INFINITY]);
        assert!(f16_bits_to_f32(0x7C01).is_nan() && bf16_bits_to_f32(0x7F81).is_nan());
        assert!(e8m0_to_f32(0xFF).is_nan());
    }

    #[test]
    fn every_finite_code_survives_decoding_and_encoding() {
        for code in 0..16 {
            assert_eq!(e2m1_from_f32(e2m1_to_f32(code)), code);
        }
        for code in 0..64 {
            assert_eq!(e2m3_from_f64(f64::from(e2m3_to_f32(code))), code);
            assert_eq!(e3m2_from_f64(f64::from(e3m2_to_f32(code))), code);
        }
        for code in (0..=255u8).filter(|code| code & 0x7F != 0x7F) {
            assert_eq!(e4m3_from_f32(e4m3_to_f32(code)), code);
            assert_eq!(ue4m3_from_f32(ue4m3_to_f32(code)), code & 0x7F);
        }
        for code in (0..=255u8).filter(|code| code & 0x7F < 0x7C) {
            assert_eq!(e5m2_from_f32(e5m2_to_f32(code)), code);
        }
        for code in 0..=u16::MAX {
            if !f16_bits_to_f32(code).is_nan() {
                assert_eq!(f32_to_f16_bits(f16_bits_to_f32(code)), code);
            }
            if !bf16_bits_to_f32(code).is_nan() {
                assert_eq!(f32_to_bf16_bits(bf16_bits_to_f32(code)), code);
            }
        }
    }

    #[test]
    fn the_high_bits_of_a_byte_do_not_change_its_e2m1_code() {
        for byte in 0..=255u8 {
            assert_eq!(e2m1_to_f32(byte).to_bits(), E2M1_VALUES[usize::from(byte % 16)].to_bits());
        }
    }

    #[test]
    fn e2m1_ties_go_to_the_even_code_and_both_ends_saturate() {
        let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
        assert_eq!(ties.map(e2m1_from_f32), [0x0, 0x2, 0x2, 0x4, 0x4, 0x6, 0x6]);
        assert_eq!(ties.map(|v| e2m1_from_f32(-v)), [0x8, 0xA, 0xA, 0xC, 0xC, 0xE, 0xE]);
        assert_eq!([6.0, 7.0, 1e30, f32::INFINITY].map(e2m1_from_f32), [0x7; 4]);
        assert_eq!([-6.0, -7.0, -1e30, f32::NEG_INFINITY].map(e2m1_from_f32), [0xF; 4]);
        assert_eq!([f32::NAN, -f32::NAN].map(e2m1_from_f32), [0x7; 2]);
    }

    #[test]
    fn fp6_ties_go_to_the_even_code_and_both_ends_saturate() {
        // Halfway between codes 0 and 1, 2 and 3, and the last two; beyond the last.
        let wide = [0.0625, 0.3125, 7.25, 8.0, f64::INFINITY, f64::NAN];
        assert_eq!(wide.map(e2m3_from_f64), [0x00, 0x02, 0x1E, 0x1F, 0x1F, 0x1F]);
        let wide = [0.03125, 0.15625, 26.0, 30.0, f64::INFINITY, f64::NAN];
        assert_eq!(wide.map(e3m2_from_f64), [0x00, 0x02, 0x1E, 0x1F, 0x1F, 0x1F]);
        assert_eq!([-0.0, -1.0, f64::NEG_INFINITY].map(e2m3_from_f64), [0x20, 0x28, 0x3F]);
        assert_eq!([-0.0, -1.0, f64::NEG_INFINITY].map(e3m2_from_f64), [0x20, 0x2C, 0x3F]);
    }

    #[test]
    fn an_f64_is_rounded_once() {
        // Just above the tie between 2 and 3; the nearest f32 is the tie itself, which would give 2.
        let v = 2.5 + 1e-12;
        assert_eq!([e2m1_from_f64(v), e2m1_from_f32(v as f32)], [0x5, 0x4]);
        // The ties between 1 and 1.125, and between 1 and 1.25.
        let v = 1.0625 + 1e-12;
        assert_eq!([e4m3_from_f64(v), e4m3_from_f32(v as f32)], [0x39, 0x38]);
        let v = 1.125 + 1e-12;
        assert_eq!([e5m2_from_f64(v), e5m2_from_f32(v as f32)], [0x3D, 0x3C]);
        let v = 1.0 + 2f64.powi(-11) + 1e-12;
        assert_eq!([f64_to_f16_bits(v), f32_to_f16_bits(f64_to_f32(v))], [0x3C01, 0x3C00]);
        let v = 1.0 + 2f64.powi(-8) + 1e-12;
        assert_eq!([f64_to_bf16_bits(v), f32_to_bf16_bits(f64_to_f32(v))], [0x3F81, 0x3F80]);
    }

    #[test]
    fn infinities_saturate_in_eight_bits_and_stay_infinite_in_sixteen() {
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(e4m3_from_f32), [0x7E, 0xFE]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(e5m2_from_f32), [0x7B, 0xFB]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(f32_to_f16_bits), [0x7C00, 0xFC00]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(f32_to_bf16_bits), [0x7F80, 0xFF80]);
    }

    #[test]
    fn sixteen_bit_nans_are_quiet() {
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7F80_0001)] {
            assert_eq!([f32_to_f16_bits(nan), f32_to_bf16_bits(nan)], [0x7FFF; 2]);
        }
    }

    #[test]
    fn an_unsigned_scale_ignores_bit_seven_and_has_no_negative_numbers() {
        for byte in 0..=255u8 {
            assert_eq!(ue4m3_to_f32(byte).to_bits(), e4m3_to_f32(byte & 0x7F).to_bits());
        }
        assert_eq!([-0.0, -1.0, -1e30, f32::NEG_INFINITY].map(ue4m3_from_f32), [0x00; 4]);
        assert_eq!([448.0, 449.0, 1e30, f32::INFINITY].map(ue4m3_from_f32), [0x7E; 4]);
        assert_eq!([f32::NAN, -f32::NAN].map(ue4m3_from_f32), [0x7F; 2]);
    }

    #[test]
    fn e8m0_is_the_power_of_two_below_or_above() {
        use ScaleRounding::{Ceil, Floor};
        for byte in 0..=E8M0_MAX {
            let power = e8m0_to_f32(byte);
            assert_eq!(f64::from(power), 2f64.powi(i32::from(byte) - 127));
            assert_eq!([Floor, Ceil].map(|rounding| e8m0_from_f32(power, rounding)), [byte; 2]);
            let below = [Floor, Ceil].map(|rounding| e8m0_from_f32(power.next_down(), rounding));
            assert_eq!(below, [byte.saturating_sub(1), byte]);
            let above = [Floor, Ceil].map(|rounding| e8m0_from_f32(power.next_up(), rounding));
            assert_eq!(above, [byte, (byte + 1).min(E8M0_MAX)]);
        }
    }

    #[test]
    fn e8m0_with_even_rounds_up_from_seven_quarters() {
        let even = |v| e8m0_from_f32(v, ScaleRounding::Even);
        for byte in 0..E8M0_MAX {
            let power = e8m0_to_f32(byte);
            let tie = (f64::from(power) * 1.75) as f32;
            assert_eq!([power, tie.next_down(), tie].map(even), [byte, byte, byte + 1], "{byte}");
        }
    }

    #[test]
    fn e8m0_saturates_at_both_ends_and_refuses_negative_numbers() {
        for rounding in [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even] {
            for v in [0.0, -0.0, f32::from_bits(1), f32::from_bits(TWO_POW_MINUS_127)] {
                assert_eq!(e8m0_from_f32(v, rounding), 0x00);
            }
            for v in [f32::MAX, f32::INFINITY] {
                assert_eq!(e8m0_from_f32(v, rounding), 0xFE);
            }
            for v in [f32::NAN, -f32::NAN, -1.0, -f32::from_bits(1), f32::NEG_INFINITY] {
                assert_eq!(e8m0_from_f32(v, rounding), 0xFF);
            }
        }
    }

    /// Magnitudes of one NVFP4 operand, code times scale, in units of 2^-10: the unit of e2m1 is 2^-1 and
    /// the unit of e4m3 is 2^-9.
    fn nvfp4_operand_units() -> Vec<u64> {
        let mut units: Vec<u64> = (0..16)
            .flat_map(|code| (0..=255).map(move |scale| (code, scale)))
            .map(|(code, scale)| f64::from(e2m1_to_f32(code)) * f64::from(ue4m3_to_f32(scale)))
            .filter(|operand| !operand.is_nan())
            .map(|operand| {
                let units = operand.abs() * 1024.0;
                assert_eq!(units.fract(), 0.0, "{operand} is not a multiple of 2^-10");
                units as u64
            })
            .collect();
        units.sort_unstable();
        units.dedup();
        units
    }

    fn significant_bits(n: u64) -> u32 {
        if n == 0 { 0 } else { 64 - n.leading_zeros() - n.trailing_zeros() }
    }

    #[test]
    fn an_nvfp4_operand_has_six_significant_bits_and_is_exact_in_sixteen_bits() {
        let units = nvfp4_operand_units();
        assert_eq!(units.len(), 238, "zero included");
        assert_eq!(units.iter().copied().map(significant_bits).max(), Some(6));
        for &n in &units {
            let operand = (n as f64 / 1024.0) as f32;
            assert_eq!(f16_bits_to_f32(f32_to_f16_bits(operand)), operand);
            assert_eq!(bf16_bits_to_f32(f32_to_bf16_bits(operand)), operand);
        }
    }

    #[test]
    fn a_product_of_two_nvfp4_operands_is_a_multiple_of_2_to_the_minus_20_and_at_most_7225344() {
        let units = nvfp4_operand_units();
        let (mut largest, mut smallest, mut bits) = (0, u64::MAX, 0);
        for &a in &units {
            for &b in &units {
                // In units of 2^-20 by construction. Below, `smallest` shows that no coarser unit would do.
                let product = a * b;
                largest = largest.max(product);
                bits = bits.max(significant_bits(product));
                if product > 0 {
                    smallest = smallest.min(product);
                }
                // The f32 product of the decoded operands is exact.
                let in_f32 = (a as f32 / 1024.0) * (b as f32 / 1024.0);
                assert_eq!(f64::from(in_f32) * 2f64.powi(20), product as f64);
            }
        }
        assert_eq!(largest >> 20, 7_225_344);
        assert_eq!(largest % (1 << 20), 0);
        assert_eq!(smallest, 1, "2^-20 itself occurs, so no coarser unit is exact");
        assert_eq!(bits, 11);
    }
}
