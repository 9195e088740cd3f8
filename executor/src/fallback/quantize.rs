//! Block quantization, dequantization, and scale layouts.

use std::borrow::Cow;

use fourfold_ir::numeric::{self, MxElement, Nvfp4Formula, ScaleRounding};
use fourfold_ir::{ScaleLayout, Tensor};

use super::codec::{Codec, pack_six};
use super::{FallbackError, ResultType};
use crate::parallel::{for_each_chunk, for_each_chunk_of_two};

/// Elements dequantized per step: a multiple of every block size.
const CHUNK: usize = 1024;

/// The largest block size.
const MOST_BLOCK: usize = 32;

/// Quantizes v along its last axis to codes and scales. `global` is the per-tensor scale of NVFP4, whose formula is
/// given.
pub(super) fn block_quantize(
    block: usize,
    (scale_rounding, formula): (Option<ScaleRounding>, Nvfp4Formula),
    v: &Tensor,
    global: Option<&Tensor>,
    results: [ResultType; 2],
) -> Result<Vec<Tensor>, FallbackError> {
    let [codes_type, scales_type] = results;
    let k = v.dims().last().copied().unwrap_or(0);
    let global = global.map_or(1.0, |global| global.to_f32()[0]);
    let from = Codec::of(v);
    let element = codes_type.element;
    let mut codes = codes_type.zeros()?;
    let mut scales = scales_type.linear().zeros()?;
    if v.count() > 0 {
        let code_bits = element.storage_bits();
        let mx = MxElement::of(element).unwrap_or(MxElement::E2M1);
        let rows = (codes.bytes_mut(), k * code_bits / 8);
        for_each_chunk_of_two(rows, (scales.bytes_mut(), k / block), |row, codes, scales| {
            let (mut values, mut block_codes) = ([0f32; MOST_BLOCK], [0u8; MOST_BLOCK]);
            let (values, block_codes) = (&mut values[..block], &mut block_codes[..block]);
            let blocks = codes.chunks_mut(block * code_bits / 8).zip(scales).enumerate();
            for (index, (codes, scale)) in blocks {
                from.read(v.bytes(), row * k + index * block, 1, values);
                *scale = match scale_rounding {
                    None => numeric::quantize_nvfp4_block_by(formula, values, global, block_codes),
                    Some(rounding) => {
                        let rule = (rounding, formula.mx);
                        numeric::quantize_mx_block_by(rule, values, mx, block_codes)
                    }
                };
                store_codes(block_codes, codes);
            }
        });
    }
    if scales_type.layout == Some(ScaleLayout::Blocked) {
        scales = swizzle(&scales, scales_type)?;
    }
    Ok(vec![codes, scales])
}

/// Computes code · scale (· g), which is exact in f64, and rounds once.
pub(super) fn block_dequantize(
    block: usize,
    codes: &Tensor,
    scales: &Tensor,
    global: Option<&Tensor>,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let linear_type = ResultType {
        element: scales.element(),
        dims: scales.dims().to_vec(),
        layout: Some(ScaleLayout::Linear),
    };
    let linear = match scales.layout() {
        Some(ScaleLayout::Blocked) => Cow::Owned(swizzle(scales, linear_type)?),
        _ => Cow::Borrowed(scales),
    };
    let global = global.map_or(1.0, |global| global.to_f64()[0]);
    let (from, scale_from, to) = (Codec::of(codes), Codec::of(&linear), Codec::plain(result.element));
    // Blocks do not cross rows, so elements and scales of the whole tensor advance in step.
    result.fill(CHUNK, |start, out| {
        let (mut values, mut scales_of) = ([0f64; CHUNK], [0f64; CHUNK]);
        let values = &mut values[..out.len() * 8 / to.element.storage_bits()];
        let scales_of = &mut scales_of[..values.len() / block];
        from.read(codes.bytes(), start, 1, values);
        scale_from.read(linear.bytes(), start / block, 1, scales_of);
        for (values, scale) in values.chunks_mut(block).zip(scales_of) {
            values.iter_mut().for_each(|value| *value = *value * *scale * global);
        }
        to.write(values, out);
    })
}

/// Converts scales to the layout of the result.
pub(super) fn swizzle(scales: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    let [.., rows, columns] = *result.dims.as_slice() else {
        return Err(FallbackError::Internal { reason: "scales have rows and columns" });
    };
    let layout = result.layout;
    let from = scales.bytes();
    let mut tensor = result.zeros()?;
    // Without a layout, scales are in row-major order as linear ones are.
    let is_blocked = |layout| layout == Some(ScaleLayout::Blocked);
    if is_blocked(scales.layout()) == is_blocked(layout) || tensor.count() == 0 {
        tensor.bytes_mut().copy_from_slice(from);
        return Ok(tensor);
    }
    let matrix = numeric::blocked_len(rows, columns);
    if layout == Some(ScaleLayout::Blocked) {
        // A row of tiles is contiguous.
        let tile_row = numeric::TILE_ROWS * columns.next_multiple_of(4);
        for_each_chunk(tensor.bytes_mut(), tile_row, |index, out| {
            let (matrix, first) =
                (index * tile_row / matrix, index * tile_row % matrix / tile_row * numeric::TILE_ROWS);
            for row in 0..numeric::TILE_ROWS.min(rows - first) {
                let from = &from[(matrix * rows + first + row) * columns..][..columns];
                for (four, from) in from.chunks(4).enumerate() {
                    let at = numeric::blocked_offset(row, 4 * four, columns);
                    out[at..at + from.len()].copy_from_slice(from);
                }
            }
        });
    } else {
        for_each_chunk(tensor.bytes_mut(), columns, |row, out| {
            let (index, row) = (row / rows, row % rows);
            for (four, out) in out.chunks_mut(4).enumerate() {
                let at = index * matrix + numeric::blocked_offset(row, 4 * four, columns);
                out.copy_from_slice(&from[at..at + out.len()]);
            }
        });
    }
    Ok(tensor)
}

impl ResultType {
    /// The same type in the linear layout, without padding.
    fn linear(&self) -> ResultType {
        let layout = self.layout.map(|_| ScaleLayout::Linear);
        ResultType { element: self.element, dims: self.dims.clone(), layout }
    }
}

/// Stores codes, one per byte, in their memory format.
fn store_codes(codes: &[u8], out: &mut [u8]) {
    if out.len() == codes.len() {
        out.copy_from_slice(codes);
    } else if out.len() * 2 == codes.len() {
        for (byte, pair) in out.iter_mut().zip(codes.as_chunks::<2>().0) {
            *byte = pair[0] | pair[1] << 4;
        }
    } else {
        for (bytes, codes) in out.as_chunks_mut::<3>().0.iter_mut().zip(codes.as_chunks::<4>().0) {
            *bytes = pack_six(*codes);
        }
    }
}
