//! The part of a signature that names the rounding and the formula of a quantization.

use fourfold_ir::ScaleRounding;
use fourfold_ir::numeric::Nvfp4Formula;

/// The suffix of a quantized output: empty by default, else `:floor`, `:unguarded_min3c800000` or both.
pub(super) fn rounding_suffix(rounding: Option<ScaleRounding>, formula: Nvfp4Formula) -> String {
    match rounding {
        None if formula == Nvfp4Formula::DEFAULT => String::new(),
        None => format!(":{formula}"),
        Some(rounding) if formula == Nvfp4Formula::DEFAULT => format!(":{}", rounding.name()),
        Some(rounding) => format!(":{}_{formula}", rounding.name()),
    }
}
