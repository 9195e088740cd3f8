//! Reading elements as numbers, and writing numbers as elements with one rounding.

use fourfold_ir::numeric;
use fourfold_ir::{ElementType, Tensor};

/// The interpretation of a tensor's bytes: its element type, and whether it holds scales (whose `f8E4M3FN` is
/// unsigned).
#[derive(Clone, Copy)]
pub(crate) struct Codec {
    pub(crate) element: ElementType,
    pub(crate) scales: bool,
}

/// Four codes of 6 bits in three bytes, low bits first.
pub(crate) fn pack_six([a, b, c, d]: [u8; 4]) -> [u8; 3] {
    [a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2]
}

/// The codes in three bytes of FP6.
#[inline]
pub(crate) fn unpack_six([low, middle, high]: [u8; 3]) -> [u8; 4] {
    [low & 0x3F, (low >> 6 | middle << 2) & 0x3F, (middle >> 4 | high << 4) & 0x3F, high >> 2]
}

/// The number type of a computation: `f32` where that is exact, else `f64`.
pub(crate) trait Number: Copy + Send + Sync + Default + PartialEq + 'static {
    fn from_f32(value: f32) -> Self;
    fn from_i32(value: i32) -> Self;
    /// Rounded to nearest even.
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_f16_bits(self) -> u16;
    fn to_bf16_bits(self) -> u16;
}

impl Codec {
    pub(crate) fn of(tensor: &Tensor) -> Codec {
        Codec { element: tensor.element(), scales: tensor.layout().is_some() }
    }

    pub(crate) fn plain(element: ElementType) -> Codec {
        Codec { element, scales: false }
    }

    /// Reads `out.len()` elements, starting at index `start`, `stride` elements apart. Exact, except for `i32` read
    /// as `f32`.
    pub(crate) fn read<T: Number>(self, bytes: &[u8], start: usize, stride: usize, out: &mut [T]) {
        match (stride, out) {
            (_, []) => {}
            (0, out) => {
                let mut value = [T::default()];
                self.read_run(bytes, start, &mut value);
                out.fill(value[0]);
            }
            (1, out) => self.read_run(bytes, start, out),
            (_, out) => {
                for (index, value) in out.iter_mut().enumerate() {
                    self.read_run(bytes, start + index * stride, std::slice::from_mut(value));
                }
            }
        }
    }

    #[inline]
    fn read_run<T: Number>(self, bytes: &[u8], start: usize, out: &mut [T]) {
        let decode_bytes = |decode: fn(u8) -> f32, out: &mut [T]| {
            for (value, byte) in out.iter_mut().zip(&bytes[start..]) {
                *value = T::from_f32(decode(*byte));
            }
        };
        let decode_six = |decode: fn(u8) -> f32, out: &mut [T]| {
            for (index, value) in out.iter_mut().enumerate() {
                *value = T::from_f32(decode(numeric::code_at(bytes, start + index, 6)));
            }
        };
        match self.element {
            ElementType::F4E2M1FN => {
                for (index, value) in out.iter_mut().enumerate() {
                    *value = T::from_f32(numeric::e2m1_to_f32(numeric::e2m1_at(bytes, start + index)));
                }
            }
            ElementType::F6E2M3FN => decode_six(numeric::e2m3_to_f32, out),
            ElementType::F6E3M2FN => decode_six(numeric::e3m2_to_f32, out),
            ElementType::F8E4M3FN if self.scales => decode_bytes(numeric::ue4m3_to_f32, out),
            ElementType::F8E4M3FN => decode_bytes(numeric::e4m3_to_f32, out),
            ElementType::F8E5M2 => decode_bytes(numeric::e5m2_to_f32, out),
            ElementType::F8E8M0FNU => decode_bytes(numeric::e8m0_to_f32, out),
            ElementType::I1 => decode_bytes(|byte| f32::from(u8::from(byte != 0)), out),
            ElementType::F16 => {
                for (value, pair) in out.iter_mut().zip(bytes[2 * start..].as_chunks::<2>().0) {
                    *value = T::from_f32(f16_to_f32(u16::from_le_bytes(*pair)));
                }
            }
            ElementType::BF16 => {
                for (value, pair) in out.iter_mut().zip(bytes[2 * start..].as_chunks::<2>().0) {
                    *value = T::from_f32(numeric::bf16_bits_to_f32(u16::from_le_bytes(*pair)));
                }
            }
            ElementType::F32 => {
                for (value, quad) in out.iter_mut().zip(bytes[4 * start..].as_chunks::<4>().0) {
                    *value = T::from_f32(f32::from_le_bytes(*quad));
                }
            }
            ElementType::I32 => {
                for (value, quad) in out.iter_mut().zip(bytes[4 * start..].as_chunks::<4>().0) {
                    *value = T::from_i32(i32::from_le_bytes(*quad));
                }
            }
        }
    }

    /// Rounds values to the element type, as `convert` does. `out` has exactly their size; FP4 comes in pairs, FP6 in
    /// fours. NaNs are written as the format's canonical NaN.
    pub(crate) fn write<T: Number>(self, values: &[T], out: &mut [u8]) {
        let encode_bytes = |encode: fn(f64) -> u8, out: &mut [u8]| {
            for (byte, value) in out.iter_mut().zip(values) {
                *byte = encode(value.to_f64());
            }
        };
        let encode_six = |encode: fn(f64) -> u8, out: &mut [u8]| {
            for (three, four) in out.as_chunks_mut::<3>().0.iter_mut().zip(values.as_chunks::<4>().0) {
                *three = pack_six(four.map(|value| encode(value.to_f64())));
            }
        };
        match self.element {
            ElementType::F6E2M3FN => encode_six(numeric::e2m3_from_f64, out),
            ElementType::F6E3M2FN => encode_six(numeric::e3m2_from_f64, out),
            ElementType::F4E2M1FN => {
                for (byte, pair) in out.iter_mut().zip(values.as_chunks::<2>().0) {
                    let [low, high] = pair.map(|value| numeric::e2m1_from_f64(value.to_f64()));
                    *byte = low | high << 4;
                }
            }
            ElementType::F8E4M3FN => encode_bytes(numeric::e4m3_from_f64, out),
            ElementType::F8E5M2 => encode_bytes(numeric::e5m2_from_f64, out),
            ElementType::F8E8M0FNU => {
                encode_bytes(|v| numeric::e8m0_from_f32(v as f32, numeric::ScaleRounding::Floor), out);
            }
            ElementType::I1 => encode_bytes(|v| u8::from(v != 0.0), out),
            ElementType::F16 => {
                for (pair, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *pair = value.to_f16_bits().to_le_bytes();
                }
            }
            ElementType::BF16 => {
                for (pair, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *pair = value.to_bf16_bits().to_le_bytes();
                }
            }
            ElementType::F32 => {
                for (quad, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    let value = value.to_f32();
                    *quad = if value.is_nan() { f32::NAN } else { value }.to_le_bytes();
                }
            }
            ElementType::I32 => {
                for (quad, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    // `as` saturates and sends NaN to 0, but rounds toward zero.
                    *quad = (value.to_f64().round_ties_even() as i32).to_le_bytes();
                }
            }
        }
    }
}

impl Number for f32 {
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn from_i32(value: i32) -> f32 {
        value as f32
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn to_f16_bits(self) -> u16 {
        if self.is_nan() { CANONICAL_NAN_16 } else { half::f16::from_f32(self).to_bits() }
    }
    #[inline(always)]
    fn to_bf16_bits(self) -> u16 {
        if self.is_nan() {
            return CANONICAL_NAN_16;
        }
        // Adds just under half of the lowest kept bit, or exactly half if that bit is odd. This rounds to nearest
        // even; a carry moves into the exponent, up to infinity.
        let bits = self.to_bits();
        ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
    }
}

impl Number for f64 {
    #[inline(always)]
    fn from_f32(value: f32) -> f64 {
        f64::from(value)
    }
    #[inline(always)]
    fn from_i32(value: i32) -> f64 {
        f64::from(value)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn to_f16_bits(self) -> u16 {
        numeric::f64_to_f16_bits(self)
    }
    #[inline(always)]
    fn to_bf16_bits(self) -> u16 {
        numeric::f64_to_bf16_bits(self)
    }
}

/// The canonical NaN of `f16` and `bf16`.
const CANONICAL_NAN_16: u16 = 0x7FFF;

/// Converts `f16` bits without branches, which would prevent vectorization.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    // The exponents of f16 and f32 have biases 15 and 127. The product is exact, subnormals included.
    const REBIAS: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let magnitude = f32::from_bits(u32::from(bits & 0x7FFF) << 13) * REBIAS;
    let special = if bits & 0x7C00 == 0x7C00 { f32::INFINITY.to_bits() } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_code_reads_as_its_value() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (f16_to_f32(bits), numeric::f16_bits_to_f32(bits));
            assert!(
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn f32_narrows_to_sixteen_bits_as_the_definition_does() {
        // Every exponent, with mantissas around the ties of both formats.
        let around =
            [0u32, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x1_8000, 0x7F_F000];
        for high in 0..512u32 {
            for low in around.into_iter().chain([0x7F_7FFF, 0x7F_8000, 0x7F_EFFF, 0x7F_FFFF]) {
                let value = f32::from_bits(high << 23 | low);
                assert_eq!(value.to_f16_bits(), numeric::f32_to_f16_bits(value), "{value:e} to f16");
                assert_eq!(value.to_bf16_bits(), numeric::f32_to_bf16_bits(value), "{value:e} to bf16");
            }
        }
    }

    #[test]
    fn strided_and_repeated_elements_are_read_from_their_places() {
        let bytes = numeric::pack_e2m1(&[1, 2, 3, 4, 5, 6, 7, 9]);
        let codec = Codec::plain(ElementType::F4E2M1FN);
        let mut out = [0f64; 3];
        codec.read(&bytes, 1, 3, &mut out);
        assert_eq!(out, [1.0, 3.0, -0.5]);
        codec.read(&bytes, 2, 0, &mut out);
        assert_eq!(out, [1.5; 3]);
    }
}
