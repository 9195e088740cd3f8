//! Quantizes blocks of `f32` values: one scale for the block and one small code for each value.
//!
//! A block may have any length; 16 (NVFP4) and 32 (MX) are the caller's business. Codes come out one to a
//! byte, see [`pack_e2m1`](super::pack_e2m1). Every division and product is IEEE `f32`, rounded to nearest
//! even, with subnormals: rn() in the formulas.

use super::formats::{
    ScaleRounding, e2m1_from_f32, e2m1_to_f32, e4m3_from_f32, e4m3_to_f32, e5m2_from_f32, e5m2_to_f32,
    e8m0_from_f32, e8m0_to_f32, ue4m3_from_f32, ue4m3_to_f32,
};

/// The largest `f4E2M1FN` value: a block's largest magnitude is mapped to it.
const E2M1_MAX: f32 = 6.0;

/// The code of the largest `f8E8M0FNU` value, 2^127.
const E8M0_MAX: u8 = 0xFE;

/// The element format of an MX block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MxElement {
    /// `f4E2M1FN`: MXFP4.
    E2M1,
    /// `f8E4M3FN`: MXFP8 with more precision.
    E4M3,
    /// `f8E5M2`: MXFP8 with more range.
    E5M2,
}

impl MxElement {
    /// The exponent of the largest finite value (emax in the OCP MX specification).
    pub fn max_exponent(self) -> u8 {
        match self {
            Self::E2M1 => 2,
            Self::E4M3 => 8,
            Self::E5M2 => 15,
        }
    }

    /// The largest finite value.
    pub fn max_value(self) -> f32 {
        match self {
            Self::E2M1 => E2M1_MAX,
            Self::E4M3 => 448.0,
            Self::E5M2 => 57344.0,
        }
    }

    /// The code nearest to `v`, as the `*_from_f32` function of the format gives it.
    #[inline]
    pub fn encode(self, v: f32) -> u8 {
        match self {
            Self::E2M1 => e2m1_from_f32(v),
            Self::E4M3 => e4m3_from_f32(v),
            Self::E5M2 => e5m2_from_f32(v),
        }
    }

    /// The value of a code, as the `*_to_f32` function of the format gives it.
    #[inline]
    pub fn decode(self, code: u8) -> f32 {
        match self {
            Self::E2M1 => e2m1_to_f32(code),
            Self::E4M3 => e4m3_to_f32(code),
            Self::E5M2 => e5m2_to_f32(code),
        }
    }
}

/// Quantizes one NVFP4 block under the tensor's scale `global`: writes an `f4E2M1FN` code for each value
/// and returns the block's scale, an unsigned `f8E4M3FN` byte.
///
/// ```text
/// s = e4m3(rn(rn(amax / 6) / global))        amax = largest magnitude in the block, 0 if it is empty
/// q = e2m1(rn(v / rn(s * global)))           v is restored as q * s * global
/// ```
///
/// Where `s * global` is zero, every code is `0x0`, whatever the sign of its value; elsewhere a negative
/// value that rounds to zero gives `0x8`. What the formula gives outside its usual domain:
///
/// | input | scale | codes |
/// |---|---|---|
/// | a NaN in the block, or `global` is NaN | `0x7F` (NaN) | all `0x7` |
/// | an infinity, no NaN, `global` > 0 | `0x7E` (448) | infinities `0x7` / `0xF`, others against 448 |
/// | `global` = 0, some value not zero | `0x7E` (448) | all `0x0` |
/// | `global` = 0, all values zero | `0x7F` (NaN) | all `0x7` |
/// | `global` < 0 | `0x00` | all `0x0` |
///
/// # Panics
///
/// If `codes` is not as long as `values`.
pub fn quantize_nvfp4_block(values: &[f32], global: f32, codes: &mut [u8]) -> u8 {
    assert_eq!(values.len(), codes.len(), "one code for each value");
    let scale = ue4m3_from_f32(largest_magnitude(values) / E2M1_MAX / global);
    let step = ue4m3_to_f32(scale) * global;
    if step == 0.0 {
        codes.fill(0x0);
    } else {
        for (code, &v) in codes.iter_mut().zip(values) {
            *code = e2m1_from_f32(v / step);
        }
    }
    scale
}

/// Quantizes one MX block: writes a code of `element` for each value and returns the block's scale, an
/// `f8E8M0FNU` byte.
///
/// ```text
/// floor: scale = 2^(floor(log2(amax)) - emax)     OCP MX specification, section 6.3
/// ceil:  scale = 2^ceil(log2(amax / max))         the smallest scale with which no value saturates
/// q = element(rn(v / scale))                      saturating: with floor, up to 2^(emax + 1) can occur
/// ```
///
/// Both are computed exactly, without a logarithm, and clamped to what the scale can be, 2^-127 to 2^127.
/// An empty block or one of zeros therefore has scale byte `0x00` and zeros for codes, signs kept. A NaN
/// anywhere gives scale `0xFF` (NaN) and NaN for every code (`0x7` in `f4E2M1FN`, which has none). An
/// infinity, without a NaN, gives scale `0xFE`; it saturates, and finite values are coded against 2^127.
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
    assert_eq!(values.len(), codes.len(), "one code for each value");
    let scale = mx_scale(largest_magnitude(values), element, rounding);
    let step = e8m0_to_f32(scale);
    for (code, &v) in codes.iter_mut().zip(values) {
        *code = element.encode(v / step);
    }
    scale
}

/// The `f8E8M0FNU` scale of a block whose largest magnitude is `amax`.
fn mx_scale(amax: f32, element: MxElement, rounding: ScaleRounding) -> u8 {
    let floor = e8m0_from_f32(amax, ScaleRounding::Floor);
    if !amax.is_finite() {
        // NaN, or the scale at which infinity saturates.
        return if amax.is_nan() { floor } else { E8M0_MAX };
    }
    // amax = m * 2^e and max = m' * 2^emax with both m in [1, 2), so amax / max lies in
    // (2^(e - emax - 1), 2^(e - emax)] if m <= m', and in the binade above otherwise. A subnormal amax
    // ends at byte 0 either way.
    let exceeds = mantissa(amax) > mantissa(element.max_value());
    let above = match rounding {
        ScaleRounding::Floor => 0,
        ScaleRounding::Ceil => u8::from(exceeds),
    };
    // No overflow: floor is at most 0xFE.
    (floor + above).saturating_sub(element.max_exponent())
}

/// The bits of `v` below its leading one.
fn mantissa(v: f32) -> u32 {
    v.to_bits() & 0x007F_FFFF
}

/// The largest |v|, zero for an empty block; NaN if there is one. Without their sign, bit patterns are
/// ordered as the numbers are, with NaN above infinity.
fn largest_magnitude(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0))
}
