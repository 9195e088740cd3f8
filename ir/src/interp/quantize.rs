//! Block quantization and its inverse.

use crate::numeric::{self, MxElement, Nvfp4Formula};
use crate::ops::ScaleRounding;
use crate::tensor::Tensor;
use crate::types::ElementType;

/// The quantization of a block. With a scale rounding the format is MX. Without one it is NVFP4.
#[derive(Clone, Copy)]
pub(super) struct BlockRule {
    pub(super) block: usize,
    pub(super) scale_rounding: Option<ScaleRounding>,
    /// The formula of NVFP4, and the edges of MX.
    pub(super) formula: Nvfp4Formula,
    /// The type of the codes.
    pub(super) element: ElementType,
}

/// Quantizes and returns the codes and the scales, both in logical order. The per-tensor scale `global` of NVFP4
/// defaults to 1.
pub(super) fn block_quantize(
    operand: &Tensor,
    global: Option<&Tensor>,
    rule: BlockRule,
) -> (Vec<u8>, Vec<u8>) {
    let BlockRule { block, scale_rounding, formula, element } = rule;
    let values = operand.to_f32();
    let global = global.map_or(1.0, |global| global.to_f32()[0]);
    let mut codes = vec![0; values.len()];
    // The last axis is a multiple of the block, so no block crosses a row.
    let scales = values
        .chunks(block)
        .zip(codes.chunks_mut(block))
        .map(|(values, codes)| match scale_rounding {
            None => numeric::quantize_nvfp4_block_by(formula, values, global, codes),
            Some(rounding) => numeric::quantize_mx_block_by(
                (rounding, formula.mx),
                values,
                MxElement::of(element).unwrap_or(MxElement::E2M1),
                codes,
            ),
        })
        .collect();
    (codes, scales)
}

/// Computes code · scale · g, exactly: the significands of at most 4, 4 and 24 bits fit f64, as does the range.
pub(super) fn block_dequantize(
    codes: &Tensor,
    scales: &Tensor,
    global: Option<&Tensor>,
    block: usize,
) -> Vec<f64> {
    let global = global.map_or(1.0, |global| global.to_f64()[0]);
    let scales = scales.to_f64();
    codes
        .to_f64()
        .into_iter()
        .enumerate()
        .map(|(index, code)| code * scales[index / block] * global)
        .collect()
}
