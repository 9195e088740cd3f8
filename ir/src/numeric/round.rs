//! Rounds an `f64` once, to nearest even, to any binary format of at most 16 bits.
//!
//! All formats share one function, parameterized by [`FloatFormat`]. It takes `f64`: an `f32` converts exactly, so
//! both widths round once. (The `f64` conversions of the `half` crate read only the upper 32 bits and lose a low
//! sticky bit.)

/// Mantissa bits of an `f64`.
const F64_MANTISSA_BITS: u32 = 52;
/// The bias of an `f64`'s exponent field.
const F64_EXPONENT_BIAS: i32 = 1023;

/// A sign-magnitude binary format. The magnitude of a code is an exponent field above
/// [`mantissa_bits`](Self::mantissa_bits) bits of mantissa, so codes have the order of their values.
pub(super) struct FloatFormat {
    /// Mantissa bits, without the implicit leading one.
    pub(super) mantissa_bits: u32,
    /// Exponent of the smallest normal value, which subnormals share.
    pub(super) min_exponent: i32,
    /// The code's sign bit.
    pub(super) sign: u16,
    /// Code of the largest finite value.
    pub(super) max_finite: u16,
    /// Unsigned code of results above `max_finite`: `max_finite` if the format saturates, else infinity.
    pub(super) overflow: u16,
    /// Code of infinity, if the format has one. A format with infinity may still saturate.
    pub(super) infinity: Option<u16>,
    /// Code of every NaN, for any sign and payload.
    pub(super) nan: u16,
}

/// `f4E2M1FN` under CUDA's `satfinite`.
pub(super) const E2M1: FloatFormat = FloatFormat {
    mantissa_bits: 1,
    min_exponent: 0,
    sign: 0x8,
    max_finite: 0x7,
    overflow: 0x7,
    infinity: None,
    nan: 0x7,
};

/// `f6E2M3FN` under CUDA's `satfinite`.
pub(super) const E2M3: FloatFormat = FloatFormat {
    mantissa_bits: 3,
    min_exponent: 0,
    sign: 0x20,
    max_finite: 0x1F,
    overflow: 0x1F,
    infinity: None,
    nan: 0x1F,
};

/// `f6E3M2FN` under CUDA's `satfinite`.
pub(super) const E3M2: FloatFormat = FloatFormat {
    mantissa_bits: 2,
    min_exponent: -2,
    sign: 0x20,
    max_finite: 0x1F,
    overflow: 0x1F,
    infinity: None,
    nan: 0x1F,
};

/// `f8E4M3FN` under CUDA's `satfinite`.
pub(super) const E4M3: FloatFormat = FloatFormat {
    mantissa_bits: 3,
    min_exponent: -6,
    sign: 0x80,
    max_finite: 0x7E,
    overflow: 0x7E,
    infinity: None,
    nan: 0x7F,
};

/// `f8E5M2` under CUDA's `satfinite`.
pub(super) const E5M2: FloatFormat = FloatFormat {
    mantissa_bits: 2,
    min_exponent: -14,
    sign: 0x80,
    max_finite: 0x7B,
    overflow: 0x7B,
    infinity: Some(0x7C),
    nan: 0x7F,
};

/// IEEE binary16, with the NaN of CUDA's conversions.
pub(super) const F16: FloatFormat = FloatFormat {
    mantissa_bits: 10,
    min_exponent: -14,
    sign: 0x8000,
    max_finite: 0x7BFF,
    overflow: 0x7C00,
    infinity: Some(0x7C00),
    nan: 0x7FFF,
};

/// bfloat16, with the NaN of CUDA's conversions.
pub(super) const BF16: FloatFormat = FloatFormat {
    mantissa_bits: 7,
    min_exponent: -126,
    sign: 0x8000,
    max_finite: 0x7F7F,
    overflow: 0x7F80,
    infinity: Some(0x7F80),
    nan: 0x7FFF,
};

/// Rounds `v` to a code of `format`: once, to nearest, ties to the even code.
#[inline(always)]
pub(super) fn round_f64(v: f64, format: &FloatFormat) -> u16 {
    if v.is_nan() {
        return format.nan;
    }
    let bits = v.to_bits();
    let sign = if v.is_sign_negative() { format.sign } else { 0 };

    // |v| = significand * 2^(exponent - 52). Zero and f64 subnormals get a wrong leading one; they are so far below
    // the smallest value of every format that rounding discards it.
    let significand = (bits & ((1 << F64_MANTISSA_BITS) - 1)) | (1 << F64_MANTISSA_BITS);
    let exponent = ((bits >> F64_MANTISSA_BITS) & 0x7FF) as i32 - F64_EXPONENT_BIAS;

    // The result is a whole number of units of 2^(binade - mantissa_bits); subnormals use the unit of the
    // smallest normal binade.
    let binade = exponent.max(format.min_exponent);
    let dropped_bits = (F64_MANTISSA_BITS - format.mantissa_bits) + (binade - exponent) as u32;
    let units = shift_right_to_nearest_even(significand, dropped_bits);

    // For normal results `units` includes the leading one, which adds 1 to the exponent field. A carry out of the
    // mantissa increments the field in the same way.
    let magnitude = (((binade - format.min_exponent) as u64) << format.mantissa_bits) + units;
    sign | magnitude.min(u64::from(format.overflow)) as u16
}

/// `significand / 2^shift` to the nearest integer, ties to even; `significand` has 53 bits and `shift` > 0.
#[inline(always)]
fn shift_right_to_nearest_even(significand: u64, shift: u32) -> u64 {
    // A shift of 63 already gives zero.
    let shift = shift.min(u64::BITS - 1);
    // Adding just under one half, plus one if the quotient is odd, carries exactly if the result rounds up.
    let almost_half = (1 << (shift - 1)) - 1;
    let odd = (significand >> shift) & 1;
    (significand + almost_half + odd) >> shift
}

/// Decodes a code of a 4-bit or 8-bit format, exactly; NaN codes give NaN. The format's values must lie between
/// 2^-126 / 2^mantissa_bits and `f32::MAX`.
pub(super) const fn decode_f32(code: u16, format: &FloatFormat) -> f32 {
    let magnitude = code & (format.sign - 1);
    let absolute = if magnitude > format.max_finite {
        match format.infinity {
            Some(infinity) if infinity == magnitude => f32::INFINITY,
            _ => return f32::NAN,
        }
    } else {
        let field = (magnitude >> format.mantissa_bits) as i32;
        let mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
        let (units, binade) = if field == 0 {
            (mantissa, format.min_exponent)
        } else {
            (mantissa | 1 << format.mantissa_bits, format.min_exponent + field - 1)
        };
        units as f32 * power_of_two(binade - format.mantissa_bits as i32)
    };
    if code & format.sign != 0 { -absolute } else { absolute }
}

/// 2^exponent for the exponent of a normal `f32`.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{self, Table};
    use super::*;
    use proptest::prelude::*;

    /// Checks that the table and [`round_f64`] agree on `v` and `-v`.
    #[track_caller]
    fn check(v: f64, format: &FloatFormat, table: &Table) {
        for v in [v, -v] {
            let sign = if v.is_sign_negative() { format.sign } else { 0 };
            let expected = sign | table.nearest(v.abs());
            assert_eq!(round_f64(v, format), expected, "rounding {v:e} = {:#018x}", v.to_bits());
        }
    }

    fn formats() -> [(&'static FloatFormat, Table); 7] {
        [
            (&E2M1, oracle::e2m1()),
            (&E2M3, oracle::e2m3()),
            (&E3M2, oracle::e3m2()),
            (&E4M3, oracle::e4m3()),
            (&E5M2, oracle::e5m2()),
            (&F16, oracle::f16()),
            (&BF16, oracle::bf16()),
        ]
    }

    #[test]
    fn every_value_midpoint_and_f64_neighbour_of_either_rounds_as_the_table_says() {
        for (format, table) in formats() {
            for pair in table.magnitudes().windows(2) {
                for v in [pair[0], f64::midpoint(pair[0], pair[1])] {
                    check(v, format, &table);
                    check(v.next_up(), format, &table);
                    if v > 0.0 {
                        check(v.next_down(), format, &table);
                    }
                }
            }
        }
    }

    #[test]
    fn a_single_low_bit_beyond_a_tie_decides() {
        // 1 + 2^-8 lies halfway between the bf16 neighbours 0x3F80 and 0x3F81.
        let tie = 1.0 + 2f64.powi(-8);
        assert_eq!(round_f64(tie, &BF16), 0x3F80);
        assert_eq!(round_f64(tie + 2f64.powi(-52), &BF16), 0x3F81);
        // The same below the smallest subnormal of f16, 2^-24: 27 + 28 bits are dropped.
        assert_eq!(round_f64(2f64.powi(-25), &F16), 0x0000);
        assert_eq!(round_f64(2f64.powi(-25).next_up(), &F16), 0x0001);
    }

    #[test]
    fn what_is_beyond_the_largest_value_saturates_or_becomes_infinite() {
        for (format, table) in formats() {
            for v in [1e6, 1e39, f64::MAX, f64::INFINITY] {
                if v > table.last_finite() * 2.0 {
                    assert_eq!(round_f64(v, format), format.overflow);
                    assert_eq!(round_f64(-v, format), format.overflow | format.sign);
                }
            }
        }
        // Half a unit above the largest finite f16 is a tie with 2^16, whose code is even.
        assert_eq!(round_f64(65520f64.next_down(), &F16), 0x7BFF);
        assert_eq!(round_f64(65520.0, &F16), 0x7C00);
    }

    #[test]
    fn zeros_and_f64_subnormals_keep_only_their_sign() {
        for (format, _) in formats() {
            for v in [0.0, f64::from_bits(1), f64::MIN_POSITIVE.next_down(), f64::MIN_POSITIVE, 1e-300] {
                assert_eq!(round_f64(v, format), 0);
                assert_eq!(round_f64(-v, format), format.sign);
            }
        }
    }

    #[test]
    fn every_nan_becomes_the_one_nan_of_the_format() {
        for (format, _) in formats() {
            for bits in [0x7FF0_0000_0000_0001, 0x7FF8_0000_0000_0000, 0xFFFF_FFFF_FFFF_FFFF_u64] {
                assert_eq!(round_f64(f64::from_bits(bits), format), format.nan);
            }
        }
    }

    proptest! {
        #![proptest_config(oracle::cases(4096))]
        #[test]
        fn any_f64_near_the_range_rounds_as_the_table_says(
            mantissa in 0u64..1 << 52,
            exponent in -160i32..140,
            format_index in 0usize..5,
        ) {
            // Built per thread, not per case: the 16-bit tables have 32 thousand entries.
            thread_local!(static FORMATS: [(&'static FloatFormat, Table); 7] = formats());
            let v = f64::from_bits(((exponent + 1023) as u64) << 52 | mantissa);
            FORMATS.with(|formats| check(v, formats[format_index].0, &formats[format_index].1));
        }
    }
}
