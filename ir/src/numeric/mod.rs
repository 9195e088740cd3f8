//! Bit-exact definitions of the small number formats: decoding, rounding, packing, block quantization and the two
//! layouts of scale factors.
//!
//! The interpreter, the CPU fallback and the tests that compare a kernel with either use this module for all FP4, FP6,
//! FP8 and block-scale arithmetic. Conversions follow CUDA's `satfinite` rules, which the hardware implements:
//!
//! | format | overflow, infinity | NaN becomes | sign of zero |
//! |---|---|---|---|
//! | `f4E2M1FN` | saturates at ±6 | `0x7` (+6) | kept |
//! | `f6E2M3FN` | saturates at ±7.5 | `0x1F` (+7.5) | kept |
//! | `f6E3M2FN` | saturates at ±28 | `0x1F` (+28) | kept |
//! | `f8E4M3FN` | saturates at ±448 | `0x7F` | kept |
//! | `f8E4M3FN` as an NVFP4 scale | saturates at 448 | `0x7F` | no sign: negative gives `0x00` |
//! | `f8E5M2` | saturates at ±57344 | `0x7F` | kept |
//! | `f8E8M0FNU` | saturates at 2^127 | `0xFF` | no sign, no zero |
//! | `f16`, `bf16` | infinity | `0x7FFF` | kept |
//!
//! Every conversion rounds once, to nearest even; only `f8E8M0FNU` takes a [`ScaleRounding`] instead.
//! Decoding is exact: each value of each format is an `f32`.
//!
//! The module does no I/O, allocates only the vectors it returns, and panics only where a `# Panics`
//! section says so.

mod formats;
mod formula;
mod mx_element;
mod mx_formula;
#[cfg(test)]
mod oracle;
mod pack;
mod quantize;
mod round;
mod scale_layout;

pub use formats::{
    E2M1_VALUES, ScaleRounding, bf16_bits_to_f32, e2m1_from_f32, e2m1_from_f64, e2m1_to_f32, e2m3_from_f64,
    e2m3_to_f32, e3m2_from_f64, e3m2_to_f32, e4m3_from_f32, e4m3_from_f64, e4m3_to_f32, e5m2_from_f32,
    e5m2_from_f64, e5m2_to_f32, e8m0_from_f32, e8m0_to_f32, f16_bits_to_f32, f32_to_bf16_bits,
    f32_to_f16_bits, f64_to_bf16_bits, f64_to_f16_bits, f64_to_f32, ue4m3_from_f32, ue4m3_to_f32,
};
pub use formula::{CodeFormula, Nvfp4Formula, Nvfp4Step, ScaleMin, Scaling, UnknownFormula};
pub use mx_element::MxElement;
pub use mx_formula::{InfinityScale, LeastScale, LeastStep, MxEdges, NanScale};
pub use pack::{PackError, code_at, e2m1_at, pack_codes, pack_e2m1, set_e2m1, unpack_e2m1};
pub use quantize::{quantize_mx_block, quantize_mx_block_by, quantize_nvfp4_block, quantize_nvfp4_block_by};
pub use scale_layout::{
    LayoutError, TILE_ROWS, blocked_len, blocked_offset, blocked_to_linear, checked_blocked_len,
    linear_to_blocked,
};
