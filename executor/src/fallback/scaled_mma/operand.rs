//! Operands of a block-scaled multiplication: codes, scales and decoding.

use fourfold_ir::numeric;
use fourfold_ir::{ElementType, ScaleLayout};

use crate::fallback::codec::Number;

/// A batch of block-scaled matrices `[batch, rows, k]`. Element (r, j) is `code(r, j) · scale(r, j / block)`.
#[derive(Clone, Copy, Debug)]
pub struct BlockScaled<'a> {
    codes: &'a [u8],
    element: ElementType,
    scales: &'a [u8],
    scale_element: ElementType,
    layout: ScaleLayout,
    batch: usize,
    rows: usize,
    k: usize,
    block: usize,
}

/// The shape of a [`BlockScaled`] operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockScaledShape {
    /// The number of matrices.
    pub batch: usize,
    /// Rows of one matrix.
    pub rows: usize,
    /// Columns: the reduced extent.
    pub k: usize,
    /// Columns that share a scale: 16 or 32.
    pub block: usize,
}

/// The reason that codes and scales are not a block-scaled operand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperandError {
    /// The element type of the codes or scales does not support block scaling.
    #[error("{data} codes with {scale} scales are not block-scaled data")]
    Element {
        /// The codes' element type.
        data: ElementType,
        /// The scales' element type.
        scale: ElementType,
    },
    /// K is not a multiple of the block, or the block is not 16 or 32.
    #[error("K = {k} is not a whole number of blocks of {block} elements (16 or 32)")]
    Block {
        /// The reduced extent.
        k: usize,
        /// Elements per scale.
        block: usize,
    },
    /// A buffer's size does not match its shape.
    #[error("the {what} of {shape:?} take {expected} bytes, not {found}")]
    Size {
        /// `codes` or `scales`.
        what: &'static str,
        /// The shape.
        shape: BlockScaledShape,
        /// The bytes required; `usize::MAX` if that exceeds the address space.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

impl<'a> BlockScaled<'a> {
    /// Wraps codes and scales in their memory format: FP4 packed in pairs, scales in `layout`, with padding if it is
    /// `blocked`.
    ///
    /// # Errors
    /// When the element types do not support block scaling, K is not a multiple of the block, or a buffer's size does
    /// not match its shape.
    pub fn new(
        (codes, element): (&'a [u8], ElementType),
        (scales, scale_element, layout): (&'a [u8], ElementType, ScaleLayout),
        shape: BlockScaledShape,
    ) -> Result<BlockScaled<'a>, OperandError> {
        let BlockScaledShape { batch, rows, k, block } = shape;
        if !element.is_block_data() || !scale_element.is_scale() {
            return Err(OperandError::Element { data: element, scale: scale_element });
        }
        if !matches!(block, 16 | 32) || !k.is_multiple_of(block) {
            return Err(OperandError::Block { k, block });
        }
        let code_bytes = product(&[batch, rows, k / 2, element.storage_bits() / 4]);
        let scale_bytes = match layout {
            ScaleLayout::Linear => product(&[batch, rows, k / block]),
            ScaleLayout::Blocked => {
                numeric::checked_blocked_len(rows, k / block).and_then(|matrix| matrix.checked_mul(batch))
            }
        };
        for (what, expected, found) in
            [("codes", code_bytes, codes.len()), ("scales", scale_bytes, scales.len())]
        {
            if expected != Some(found) {
                let expected = expected.unwrap_or(usize::MAX);
                return Err(OperandError::Size { what, shape, expected, found });
            }
        }
        Ok(BlockScaled { codes, element, scales, scale_element, layout, batch, rows, k, block })
    }

    /// The shape.
    pub fn shape(&self) -> BlockScaledShape {
        BlockScaledShape { batch: self.batch, rows: self.rows, k: self.k, block: self.block }
    }

    /// The element type of the codes.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The element type of the scales.
    pub fn scale_element(&self) -> ElementType {
        self.scale_element
    }

    /// Blocks per row.
    pub(super) fn blocks(&self) -> usize {
        self.k / self.block
    }

    /// Rows of the whole batch. Row indices below run through all matrices.
    pub(super) fn all_rows(&self) -> usize {
        self.batch * self.rows
    }

    /// Returns true for NVFP4 codes and scales, with any block. Every operand then has at most six significant bits,
    /// and every product of two is a multiple of 2^-20.
    pub(super) fn is_fp4_with_e4m3(&self) -> bool {
        self.element == ElementType::F4E2M1FN && self.scale_element == ElementType::F8E4M3FN
    }

    /// The bytes of one row of codes.
    pub(super) fn row_codes(&self, row: usize) -> &'a [u8] {
        let row_bytes = self.k * self.element.storage_bits() / 8;
        &self.codes[row * row_bytes..][..row_bytes]
    }

    /// The bytes of four scales of a row, from block `first` on; 0 after the last block.
    #[inline]
    pub(super) fn four_scales(&self, row: usize, first: usize) -> [u8; 4] {
        debug_assert!(first.is_multiple_of(4));
        let columns = self.blocks();
        let start = match self.layout {
            ScaleLayout::Linear => row * columns + first,
            ScaleLayout::Blocked => {
                let matrix = row / self.rows;
                matrix * numeric::blocked_len(self.rows, columns)
                    + numeric::blocked_offset(row % self.rows, first, columns)
            }
        };
        if columns - first >= 4 {
            return *self.scales[start..].first_chunk().expect("the constructor checked the size");
        }
        let mut four = [0; 4];
        for (scale, byte) in four.iter_mut().zip(&self.scales[start..][..columns - first]) {
            *scale = *byte;
        }
        four
    }
}

fn product(factors: &[usize]) -> Option<usize> {
    factors.iter().try_fold(1usize, |product, factor| product.checked_mul(*factor))
}

/// Decodes rows of an operand as `code · scale`; exact if `T` holds the products.
pub(super) struct Decoder<T> {
    /// The two values of an FP4 byte, or an FP8 byte's value twice.
    codes: Box<[[T; 2]; 256]>,
    scales: Box<[T; 256]>,
    packed: bool,
}

impl<T: Number + std::ops::Mul<Output = T>> Decoder<T> {
    pub(super) fn new(operand: &BlockScaled) -> Decoder<T> {
        let pair = |byte: u8| match operand.element {
            ElementType::F4E2M1FN => [numeric::e2m1_to_f32(byte & 0xF), numeric::e2m1_to_f32(byte >> 4)],
            ElementType::F8E4M3FN => [numeric::e4m3_to_f32(byte); 2],
            _ => [numeric::e5m2_to_f32(byte); 2],
        };
        let scale = |byte: u8| match operand.scale_element {
            ElementType::F8E4M3FN => numeric::ue4m3_to_f32(byte),
            _ => numeric::e8m0_to_f32(byte),
        };
        Decoder {
            codes: Box::new(std::array::from_fn(|byte| pair(byte as u8).map(T::from_f32))),
            scales: Box::new(std::array::from_fn(|byte| T::from_f32(scale(byte as u8)))),
            packed: operand.element == ElementType::F4E2M1FN,
        }
    }

    /// Decodes elements of `row` from block `first_block` on, which is a multiple of four.
    #[inline]
    pub(super) fn row(&self, operand: &BlockScaled, row: usize, first_block: usize, out: &mut [T]) {
        match operand.block {
            16 => self.row_of::<16>(operand, row, first_block, out),
            _ => self.row_of::<32>(operand, row, first_block, out),
        }
    }

    #[inline]
    fn row_of<const BLOCK: usize>(
        &self,
        operand: &BlockScaled,
        row: usize,
        first_block: usize,
        out: &mut [T],
    ) {
        let codes = operand.row_codes(row);
        let blocks = out.as_chunks_mut::<BLOCK>().0;
        for (four, out) in blocks.chunks_mut(4).enumerate() {
            let first = first_block + 4 * four;
            let scales = operand.four_scales(row, first);
            for (index, (out, scale)) in out.iter_mut().zip(scales).enumerate() {
                let scale = self.scales[usize::from(scale)];
                let start = (first + index) * BLOCK;
                if self.packed {
                    let codes = &codes[start / 2..][..BLOCK / 2];
                    for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        *out = self.codes[usize::from(*byte)].map(|code| code * scale);
                    }
                } else {
                    for (out, byte) in out.iter_mut().zip(&codes[start..][..BLOCK]) {
                        *out = self.codes[usize::from(*byte)][0] * scale;
                    }
                }
            }
        }
    }
}
