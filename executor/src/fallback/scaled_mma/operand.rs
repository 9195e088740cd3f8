//! Operands of a block-scaled multiplication: codes, scales, decoding, and the range of the elements.

use fourfold_ir::numeric;
use fourfold_ir::{ElementType, ScaleLayout};

use crate::fallback::codec::{Codec, Number, unpack_six};

/// A batch of block-scaled matrices `[batch, rows, k]`. Element (r, j) is `code(r, j) · scale(r, j / block)`. A matrix
/// of `f16` or `bf16` has no scales: its codes are its elements.
#[derive(Clone, Copy, Debug)]
pub struct BlockScaled<'a> {
    codes: &'a [u8],
    element: ElementType,
    scales: Option<Scales<'a>>,
    batch: usize,
    rows: usize,
    k: usize,
    block: usize,
}

#[derive(Clone, Copy, Debug)]
struct Scales<'a> {
    bytes: &'a [u8],
    element: ElementType,
    layout: ScaleLayout,
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
    /// The element type requires scales.
    #[error("{data} elements are not an operand without scales; expected f16 or bf16")]
    Unscaled {
        /// The element type.
        data: ElementType,
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
        let blocks = k.checked_div(block).unwrap_or(0);
        if !element.is_block_data() || !scale_element.is_scale() {
            return Err(OperandError::Element { data: element, scale: scale_element });
        }
        check_codes(codes, element, shape)?;
        let scale_bytes = match layout {
            ScaleLayout::Linear => product(&[batch, rows, blocks]),
            ScaleLayout::Blocked => {
                numeric::checked_blocked_len(rows, blocks).and_then(|matrix| matrix.checked_mul(batch))
            }
        };
        check_size("scales", shape, scale_bytes, scales.len())?;
        let scales = Some(Scales { bytes: scales, element: scale_element, layout });
        Ok(BlockScaled { codes, element, scales, batch, rows, k, block })
    }

    /// Wraps a matrix of `f16` or `bf16` elements, which has no scales. `shape` states the block of the other operand.
    ///
    /// # Errors
    /// When the element type is another, K is not a multiple of the block, or the size does not match the shape.
    pub fn unscaled(
        (elements, element): (&'a [u8], ElementType),
        shape: BlockScaledShape,
    ) -> Result<BlockScaled<'a>, OperandError> {
        if !element.is_half() {
            return Err(OperandError::Unscaled { data: element });
        }
        check_codes(elements, element, shape)?;
        let BlockScaledShape { batch, rows, k, block } = shape;
        Ok(BlockScaled { codes: elements, element, scales: None, batch, rows, k, block })
    }

    /// The shape.
    pub fn shape(&self) -> BlockScaledShape {
        BlockScaledShape { batch: self.batch, rows: self.rows, k: self.k, block: self.block }
    }

    /// The element type of the codes.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The element type of the scales; `None` without scales.
    pub fn scale_element(&self) -> Option<ElementType> {
        self.scales.map(|scales| scales.element)
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
        self.element == ElementType::F4E2M1FN && self.scale_element() == Some(ElementType::F8E4M3FN)
    }

    /// The range of the elements: from the type where that is narrow, else from the data.
    pub(super) fn magnitudes(&self) -> Magnitudes {
        let codes = match self.element {
            ElementType::F4E2M1FN => Magnitudes { unit: -1, limit: 3 },
            ElementType::F6E2M3FN => Magnitudes { unit: -3, limit: 3 },
            ElementType::F6E3M2FN => Magnitudes { unit: -4, limit: 5 },
            ElementType::F8E4M3FN => Magnitudes { unit: -9, limit: 9 },
            ElementType::F8E5M2 => Magnitudes { unit: -16, limit: 16 },
            ElementType::F16 => Magnitudes { unit: -24, limit: 16 },
            _ => self.bf16_magnitudes(),
        };
        let scales = match self.scale_element() {
            None => Magnitudes { unit: 0, limit: 0 },
            Some(ElementType::F8E4M3FN) => Magnitudes { unit: -9, limit: 9 },
            Some(_) => self.e8m0_magnitudes(),
        };
        codes.times(scales)
    }

    fn bf16_magnitudes(&self) -> Magnitudes {
        // The exponents of finite elements; subnormals have that of 1.
        let exponents = self.codes.as_chunks::<2>().0.iter().filter_map(|pair| {
            let bits = u16::from_le_bytes(*pair) & 0x7FFF;
            (bits != 0 && bits < 0x7F80).then(|| i32::from(bits >> 7).max(1) - 127)
        });
        let (low, high) = exponents.fold((i32::MAX, i32::MIN), |(low, high), e| (low.min(e), high.max(e)));
        if low > high {
            return Magnitudes { unit: 0, limit: 0 };
        }
        Magnitudes { unit: low - 7, limit: high + 1 }
    }

    fn e8m0_magnitudes(&self) -> Magnitudes {
        let (mut low, mut high) = (0xFF, 0);
        for row in 0..self.all_rows() {
            for first in (0..self.blocks()).step_by(4) {
                let four = self.four_scales(row, first);
                for scale in &four[..4.min(self.blocks() - first)] {
                    // NaN is NaN in any arithmetic.
                    if *scale != 0xFF {
                        (low, high) = (low.min(*scale), high.max(*scale));
                    }
                }
            }
        }
        if low > high {
            return Magnitudes { unit: 0, limit: 0 };
        }
        Magnitudes { unit: i32::from(low) - 127, limit: i32::from(high) - 126 }
    }

    /// The bytes of one row of codes.
    pub(super) fn row_codes(&self, row: usize) -> &'a [u8] {
        let row_bytes = self.k * self.element.storage_bits() / 8;
        &self.codes[row * row_bytes..][..row_bytes]
    }

    /// The bytes of four scales of a row, from block `first` on; 0 after the last block, and without scales.
    #[inline]
    pub(super) fn four_scales(&self, row: usize, first: usize) -> [u8; 4] {
        debug_assert!(first.is_multiple_of(4));
        let Some(Scales { bytes, layout, .. }) = self.scales else { return [0; 4] };
        let columns = self.blocks();
        let start = match layout {
            ScaleLayout::Linear => row * columns + first,
            ScaleLayout::Blocked => {
                let matrix = row / self.rows;
                matrix * numeric::blocked_len(self.rows, columns)
                    + numeric::blocked_offset(row % self.rows, first, columns)
            }
        };
        if columns - first >= 4 {
            return *bytes[start..].first_chunk().expect("the constructor checked the size");
        }
        let mut four = [0; 4];
        for (scale, byte) in four.iter_mut().zip(&bytes[start..][..columns - first]) {
            *scale = *byte;
        }
        four
    }
}

/// Checks the block, and the size of codes or elements.
fn check_codes(codes: &[u8], element: ElementType, shape: BlockScaledShape) -> Result<(), OperandError> {
    let BlockScaledShape { batch, rows, k, block } = shape;
    if !matches!(block, 16 | 32) || !k.is_multiple_of(block) {
        return Err(OperandError::Block { k, block });
    }
    check_size("codes", shape, product(&[batch, rows, k / 4, element.storage_bits() / 2]), codes.len())
}

fn check_size(
    what: &'static str,
    shape: BlockScaledShape,
    expected: Option<usize>,
    found: usize,
) -> Result<(), OperandError> {
    if expected == Some(found) {
        return Ok(());
    }
    Err(OperandError::Size { what, shape, expected: expected.unwrap_or(usize::MAX), found })
}

/// Bounds of the finite elements of an operand: multiples of 2^unit with magnitudes below 2^limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Magnitudes {
    unit: i32,
    limit: i32,
}

impl Magnitudes {
    fn times(self, other: Magnitudes) -> Magnitudes {
        Magnitudes { unit: self.unit + other.unit, limit: self.limit + other.limit }
    }

    /// Returns true if f32 holds the elements, their products with those of `other`, and sums of `terms` products up
    /// to rounding: nothing overflows, and no unit is below the least subnormal. A product has at most 11 + 6
    /// significant bits.
    pub(super) fn fit_f32(self, other: Magnitudes, terms: usize) -> bool {
        let product = self.times(other);
        let doublings = usize::BITS - terms.leading_zeros();
        let fits = |magnitudes: Magnitudes| magnitudes.unit >= -149 && magnitudes.limit <= 127;
        fits(self) && fits(other) && fits(product) && product.limit + doublings as i32 <= 127
    }
}

fn product(factors: &[usize]) -> Option<usize> {
    factors.iter().try_fold(1usize, |product, factor| product.checked_mul(*factor))
}

/// Decodes rows of an operand as `code · scale`; exact if `T` holds the products.
pub(super) struct Decoder<T> {
    /// The two values of an FP4 byte, or the value of an FP6 code or an FP8 byte twice.
    codes: Box<[[T; 2]; 256]>,
    scales: Box<[T; 256]>,
    bits: usize,
}

impl<T: Number + std::ops::Mul<Output = T>> Decoder<T> {
    pub(super) fn new(operand: &BlockScaled) -> Decoder<T> {
        let pair = |byte: u8| match operand.element {
            ElementType::F4E2M1FN => [numeric::e2m1_to_f32(byte & 0xF), numeric::e2m1_to_f32(byte >> 4)],
            ElementType::F6E2M3FN => [numeric::e2m3_to_f32(byte); 2],
            ElementType::F6E3M2FN => [numeric::e3m2_to_f32(byte); 2],
            ElementType::F8E4M3FN => [numeric::e4m3_to_f32(byte); 2],
            _ => [numeric::e5m2_to_f32(byte); 2],
        };
        let scale = |byte: u8| match operand.scale_element() {
            Some(ElementType::F8E4M3FN) => numeric::ue4m3_to_f32(byte),
            _ => numeric::e8m0_to_f32(byte),
        };
        Decoder {
            codes: Box::new(std::array::from_fn(|byte| pair(byte as u8).map(T::from_f32))),
            scales: Box::new(std::array::from_fn(|byte| T::from_f32(scale(byte as u8)))),
            bits: operand.element.storage_bits(),
        }
    }

    /// Decodes elements of `row` from block `first_block` on, which is a multiple of four.
    #[inline]
    pub(super) fn row(&self, operand: &BlockScaled, row: usize, first_block: usize, out: &mut [T]) {
        match operand.block {
            _ if operand.scales.is_none() => {
                Codec::plain(operand.element).read(
                    operand.row_codes(row),
                    first_block * operand.block,
                    1,
                    out,
                );
            }
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
                let codes = &codes[start * self.bits / 8..][..BLOCK * self.bits / 8];
                let value = |code: u8| self.codes[usize::from(code)][0] * scale;
                match self.bits {
                    4 => {
                        for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                            *out = self.codes[usize::from(*byte)].map(|code| code * scale);
                        }
                    }
                    6 => {
                        let threes = codes.as_chunks::<3>().0;
                        for (out, three) in out.as_chunks_mut::<4>().0.iter_mut().zip(threes) {
                            *out = unpack_six(*three).map(value);
                        }
                    }
                    _ => {
                        for (out, byte) in out.iter_mut().zip(codes) {
                            *out = value(*byte);
                        }
                    }
                }
            }
        }
    }
}
