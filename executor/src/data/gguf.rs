//! FP4 blocks of GGUF files, which hold scales and codes side by side.

use fourfold_ir::{ElementType, ScaleLayout};

use super::allocation::zeros;
use super::reference::TensorEncoding;

/// A block of a row: its scales, then the codes of each scale. A byte holds a code of the first half of its scale's
/// codes in the low nibble, and one of the second half in the high nibble.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    scale: ElementType,
    /// Scales per block.
    scales: usize,
    /// Codes per scale.
    codes: usize,
}

impl Blocks {
    /// The blocks of an encoding; `None` for other encodings.
    pub(super) fn of(encoding: Option<TensorEncoding>) -> Option<Blocks> {
        match encoding? {
            TensorEncoding::GgufMxfp4 => Some(Blocks { scale: ElementType::F8E8M0FNU, scales: 1, codes: 32 }),
            TensorEncoding::GgufNvfp4 => Some(Blocks { scale: ElementType::F8E4M3FN, scales: 4, codes: 16 }),
            TensorEncoding::HighNibbleFirst | TensorEncoding::Transposed => None,
        }
    }

    /// The bytes of the codes of a block.
    fn code_bytes(self) -> usize {
        self.scales * self.codes / 2
    }

    /// Returns true if a tensor of this type is the codes or the scales of blocks.
    pub(super) fn hold(self, element: ElementType, layout: Option<ScaleLayout>) -> bool {
        element == ElementType::F4E2M1FN || element == self.scale && layout == Some(ScaleLayout::Linear)
    }

    /// The bytes of the blocks whose codes or scales have these extents; `None` if rows end within a block.
    pub(super) fn size(self, element: ElementType, dims: &[usize]) -> Option<u64> {
        let of_block = if element == ElementType::F4E2M1FN { self.scales * self.codes } else { self.scales };
        let (last, rows) = dims.split_last()?;
        let blocks = last.is_multiple_of(of_block).then_some((last / of_block) as u64)?;
        let blocks = rows.iter().try_fold(blocks, |product, dim| product.checked_mul(*dim as u64))?;
        blocks.checked_mul((self.scales + self.code_bytes()) as u64)
    }

    /// Takes the codes or the scales out of blocks; the error is the size in bytes that memory lacks.
    pub(super) fn take(self, element: ElementType, bytes: &[u8]) -> Result<Vec<u8>, usize> {
        let blocks = bytes.chunks_exact(self.scales + self.code_bytes());
        let is_codes = element == ElementType::F4E2M1FN;
        let size = if is_codes { self.code_bytes() } else { self.scales };
        let count = blocks.len() * size;
        let mut result = zeros(count as u64).ok_or(count)?;
        for (to, block) in result.chunks_exact_mut(size).zip(blocks) {
            let (scales, codes) = block.split_at(self.scales);
            if is_codes {
                let halves = codes.chunks_exact(self.codes / 2);
                to.chunks_exact_mut(self.codes / 2).zip(halves).for_each(|(to, from)| interleave(to, from));
            } else {
                to.copy_from_slice(scales);
                to.iter_mut().for_each(|scale| *scale = self.scale_of(*scale));
            }
        }
        Ok(result)
    }

    /// ggml ignores the sign of an E4M3 scale, and reads NaN as 0.
    fn scale_of(self, byte: u8) -> u8 {
        match (self.scale, byte & 0x7F) {
            (ElementType::F8E4M3FN, 0x7F) => 0,
            (ElementType::F8E4M3FN, magnitude) => magnitude,
            _ => byte,
        }
    }
}

/// Packs codes in their order. The low nibbles of `from` are the first half, the high nibbles the second.
fn interleave(to: &mut [u8], from: &[u8]) {
    let half = from.len() / 2;
    let (first, second) = to.split_at_mut(half);
    for ((first, second), pair) in first.iter_mut().zip(second).zip(from.as_chunks::<2>().0) {
        *first = pair[0] & 0xF | pair[1] << 4;
        *second = pair[0] >> 4 | pair[1] & 0xF0;
    }
}
