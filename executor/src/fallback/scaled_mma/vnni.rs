//! FP4 with e4m3 scales on AVX-512 VNNI: sums within a block are exact integers, scaled by one multiplication.
//!
//! Codes are doubled to integers of magnitude at most 12. The 8-bit dot product requires one unsigned factor, so B is
//! stored plus 12, and the sum starts at -12·Σa of the block to compensate. A block's sum is at most 32·144 (13
//! bits); times a product of two scales (8 bits), it is exact in f32. So only the addition of K/V numbers to the
//! accumulator rounds, far fewer than the K additions that the error bound allows.
//!
//! A tile is [`TILE_ROWS`] rows of A by [`TILE_COLUMNS`] of B: one lane per column, with four elements of a row of A
//! broadcast at a time. Within eight elements, the order follows the nibbles of B: even elements first.

use std::arch::x86_64::*;
use std::ops::Range;

use fourfold_ir::numeric;

use super::operand::BlockScaled;
use crate::fallback::memory::{NoMemory, Zeroed, grow, zeroed};
use crate::parallel::{for_each_chunk, try_for_each_chunk};

/// Columns of D (rows of B) per tile: two vectors of 32-bit lanes.
pub(super) const TILE_COLUMNS: usize = 2 * LANES;

/// Rows of A multiplied at once: two accumulators each, and a block of B, fill the registers. Measured on (128, 4096,
/// 4096): 6 rows take 6.7 ms, 4 take 6.9; 8 spill and take 10.1.
const TILE_ROWS: usize = 6;

/// 32-bit lanes per vector.
const LANES: usize = 16;

/// The offset that makes doubled codes of B unsigned.
const OFFSET: i32 = 12;

/// Returns true if this machine can run [`accumulate`].
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
}

/// Σ_k (a·sfa)(b·sfb) for some rows of A and of B. The result consists of tiles `[a_rows.len(), TILE_COLUMNS]`;
/// columns beyond the last row of B are zero.
///
/// # Panics
/// Unless both operands are FP4 with e4m3 scales and [`is_supported`].
pub(super) fn accumulate(
    a: &BlockScaled,
    a_rows: Range<usize>,
    b: &BlockScaled,
    b_rows: Range<usize>,
    tiles: &mut [f32],
) -> Result<(), NoMemory> {
    assert!(a.is_fp4_with_e4m3() && b.is_fp4_with_e4m3() && is_supported());
    match a.shape().block {
        16 => accumulate_blocks::<4>(a, a_rows, b, b_rows, tiles),
        _ => accumulate_blocks::<8>(a, a_rows, b, b_rows, tiles),
    }
}

/// `WORDS` is the number of 32-bit words of a block's codes, with one byte per code.
fn accumulate_blocks<const WORDS: usize>(
    a: &BlockScaled,
    a_rows: Range<usize>,
    b: &BlockScaled,
    b_rows: Range<usize>,
    tiles: &mut [f32],
) -> Result<(), NoMemory> {
    let (rows, blocks) = (a_rows.len(), a.blocks());
    if blocks == 0 {
        tiles.fill(0.0);
        return Ok(());
    }
    let mut prepared = zeroed::<RowBlock<WORDS>>(rows.saturating_mul(blocks))?;
    for_each_chunk(&mut prepared, blocks, |index, out| prepare_row(a, a_rows.start + index, out));

    try_for_each_chunk(tiles, rows * TILE_COLUMNS, Panel::default, |panel, tile, out| {
        let first = b_rows.start + tile * TILE_COLUMNS;
        // SAFETY: `accumulate` has asserted the features that both functions require.
        unsafe {
            panel.fill(b, first..b_rows.end.min(first + TILE_COLUMNS))?;
            for (a, out) in prepared.chunks(TILE_ROWS * blocks).zip(out.chunks_mut(TILE_ROWS * TILE_COLUMNS))
            {
                match a.len() / blocks {
                    1 => multiply::<WORDS, 1>(a, panel, out),
                    2 => multiply::<WORDS, 2>(a, panel, out),
                    3 => multiply::<WORDS, 3>(a, panel, out),
                    4 => multiply::<WORDS, 4>(a, panel, out),
                    5 => multiply::<WORDS, 5>(a, panel, out),
                    6 => multiply::<WORDS, 6>(a, panel, out),
                    7 => multiply::<WORDS, 7>(a, panel, out),
                    _ => multiply::<WORDS, TILE_ROWS>(a, panel, out),
                }
            }
        }
        Ok(())
    })
}

/// A block of a row of A, prepared for broadcasting.
#[derive(Clone, Copy)]
#[repr(C)]
struct RowBlock<const WORDS: usize> {
    /// Four doubled codes per word, in the order of [`Panel::codes`].
    words: [i32; WORDS],
    /// -[`OFFSET`] times the sum of the doubled codes.
    start: i32,
    /// A quarter of the scale, since the codes of both operands are doubled.
    scale: f32,
}

// SAFETY: it consists of i32 and f32, for which all bytes are valid.
unsafe impl<const WORDS: usize> Zeroed for RowBlock<WORDS> {}

/// Twice the value of each FP4 code.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn prepare_row<const WORDS: usize>(a: &BlockScaled, row: usize, out: &mut [RowBlock<WORDS>]) {
    let codes = a.row_codes(row);
    for (four, out) in out.chunks_mut(4).enumerate() {
        let scales = a.four_scales(row, 4 * four);
        for (index, (out, scale)) in out.iter_mut().zip(scales).enumerate() {
            let codes = &codes[(4 * four + index) * 2 * WORDS..][..2 * WORDS];
            let mut sum = 0;
            for (words, bytes) in out.words.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<4>().0) {
                let even = bytes.map(|byte| DOUBLED[usize::from(byte & 0xF)]);
                let odd = bytes.map(|byte| DOUBLED[usize::from(byte >> 4)]);
                sum += even.iter().chain(&odd).map(|code| i32::from(*code)).sum::<i32>();
                *words = [even, odd].map(|codes| i32::from_le_bytes(codes.map(|code| code as u8)));
            }
            out.start = -OFFSET * sum;
            out.scale = 0.25 * numeric::ue4m3_to_f32(scale);
        }
    }
}

/// [`TILE_COLUMNS`] rows of B, side by side; zero beyond the last row.
#[derive(Default)]
struct Panel {
    /// Doubled codes plus [`OFFSET`]. For every 8 elements along K: the even elements of the first 16 rows, four
    /// bytes per lane; those of the other 16 rows; then the odd elements likewise.
    codes: Vec<[__m512i; 2]>,
    /// The rows' scales for every block along K.
    scales: Vec<[__m512; 2]>,
}

impl Panel {
    /// Decodes rows of B.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn fill(&mut self, b: &BlockScaled, rows: Range<usize>) -> Result<(), NoMemory> {
        // Transposes 64 bytes of 16 rows at a time: 16 words of 8 codes, which become two vectors each.
        const STEP: usize = 64;
        let row_bytes = b.shape().k / 2;
        let steps = row_bytes.div_ceil(STEP);
        grow(&mut self.codes, steps * 2 * LANES, [_mm512_setzero_si512(); 2])?;
        grow(&mut self.scales, b.blocks().next_multiple_of(4), [_mm512_setzero_ps(); 2])?;
        for half in 0..2 {
            let row = |lane: usize| Some(rows.start + half * LANES + lane).filter(|row| *row < rows.end);
            for step in 0..steps {
                let start = step * STEP;
                let mut words = [_mm512_setzero_si512(); LANES];
                for (lane, words) in words.iter_mut().enumerate() {
                    if let Some(row) = row(lane) {
                        *words = load(&b.row_codes(row)[start..row_bytes.min(start + STEP)]);
                    }
                }
                let codes = &mut self.codes[step * 2 * LANES..][..2 * LANES];
                for (codes, word) in codes.as_chunks_mut::<2>().0.iter_mut().zip(transpose(words)) {
                    let [even, odd] = offset_codes(word);
                    codes[0][half] = even;
                    codes[1][half] = odd;
                }
            }
            for (four, scales) in self.scales.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let mut bytes = [[0u8; 4]; LANES];
                for (lane, bytes) in bytes.iter_mut().enumerate() {
                    if let Some(row) = row(lane) {
                        *bytes = b.four_scales(row, 4 * four);
                    }
                }
                let mut bytes = load(bytes.as_flattened());
                for scales in scales {
                    scales[half] = decode_scales(_mm512_and_si512(bytes, _mm512_set1_epi32(0x7F)));
                    bytes = _mm512_srli_epi32::<8>(bytes);
                }
            }
        }
        Ok(())
    }
}

/// Loads at most 64 bytes, padded with zeros.
#[target_feature(enable = "avx512f,avx512bw")]
fn load(bytes: &[u8]) -> __m512i {
    let mask = if bytes.len() >= 64 { u64::MAX } else { (1 << bytes.len()) - 1 };
    // SAFETY: the mask selects only bytes of the slice; the others are not accessed.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

/// Transposes 16 x 16 words.
#[target_feature(enable = "avx512f")]
fn transpose(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let zero = _mm512_setzero_si512();
    let mut pairs = [zero; LANES];
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // quads[4 * i + j] holds, in its 128-bit part p, word 4 * p + j of rows 4 * i to 4 * i + 3.
    let mut quads = [zero; LANES];
    for i in 0..4 {
        for j in 0..2 {
            quads[4 * i + 2 * j] = _mm512_unpacklo_epi64(pairs[4 * i + j], pairs[4 * i + j + 2]);
            quads[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[4 * i + j], pairs[4 * i + j + 2]);
        }
    }
    // Transposes the 4 x 4 parts: parts 0 and 2, and parts 1 and 3, of two vectors at a time.
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let mut columns = [zero; LANES];
    for j in 0..4 {
        let even_low = _mm512_shuffle_i32x4::<EVEN>(quads[j], quads[4 + j]);
        let even_high = _mm512_shuffle_i32x4::<EVEN>(quads[8 + j], quads[12 + j]);
        let odd_low = _mm512_shuffle_i32x4::<ODD>(quads[j], quads[4 + j]);
        let odd_high = _mm512_shuffle_i32x4::<ODD>(quads[8 + j], quads[12 + j]);
        columns[j] = _mm512_shuffle_i32x4::<EVEN>(even_low, even_high);
        columns[4 + j] = _mm512_shuffle_i32x4::<EVEN>(odd_low, odd_high);
        columns[8 + j] = _mm512_shuffle_i32x4::<ODD>(even_low, even_high);
        columns[12 + j] = _mm512_shuffle_i32x4::<ODD>(odd_low, odd_high);
    }
    columns
}

/// Looks up the doubled codes plus [`OFFSET`] of the low and the high nibbles.
#[target_feature(enable = "avx512f,avx512bw")]
fn offset_codes(nibbles: __m512i) -> [__m512i; 2] {
    // Bytes 0 to 7 and 8 to 15 of DOUBLED + OFFSET.
    let table = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0004_0608_090A_0B0C, 0x1814_1210_0F0E_0D0C));
    let mask = _mm512_set1_epi8(0xF);
    let low = _mm512_and_si512(nibbles, mask);
    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(nibbles), mask);
    [_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high)]
}

/// Decodes unsigned e4m3 codes.
#[target_feature(enable = "avx512f")]
fn decode_scales(codes: __m512i) -> __m512 {
    // A normal number's exponent is moved and rebiased from 7 to 127; a subnormal number is its mantissa · 2^-9.
    const REBIAS: i32 = (127 - 7) << 23;
    const FIRST_NORMAL: i32 = 8;
    const NAN: i32 = 0x7F;
    let moved = _mm512_add_epi32(_mm512_slli_epi32::<20>(codes), _mm512_set1_epi32(REBIAS));
    let subnormal = _mm512_mul_ps(_mm512_cvtepi32_ps(codes), _mm512_set1_ps(1.0 / 512.0));
    let is_subnormal = _mm512_cmplt_epi32_mask(codes, _mm512_set1_epi32(FIRST_NORMAL));
    let is_nan = _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(NAN));
    let value = _mm512_mask_blend_ps(is_subnormal, _mm512_castsi512_ps(moved), subnormal);
    _mm512_mask_blend_ps(is_nan, value, _mm512_set1_ps(f32::NAN))
}

/// Multiplies `ROWS` rows of A with a panel of B.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn multiply<const WORDS: usize, const ROWS: usize>(a: &[RowBlock<WORDS>], b: &Panel, out: &mut [f32]) {
    let blocks = a.len() / ROWS;
    let a_rows: [&[RowBlock<WORDS>]; ROWS] = std::array::from_fn(|row| &a[row * blocks..][..blocks]);
    let b_codes = &b.codes.as_chunks::<WORDS>().0[..blocks];
    let b_scales = &b.scales[..blocks];
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for block in 0..blocks {
        let (codes, scales) = (&b_codes[block], &b_scales[block]);
        for (a_row, sums) in a_rows.iter().zip(&mut sums) {
            let a = &a_row[block];
            let start = _mm512_set1_epi32(a.start);
            let mut products = [start; 2];
            for (word, codes) in a.words.iter().zip(codes) {
                let word = _mm512_set1_epi32(*word);
                products[0] = _mm512_dpbusd_epi32(products[0], codes[0], word);
                products[1] = _mm512_dpbusd_epi32(products[1], codes[1], word);
            }
            let scale = _mm512_set1_ps(a.scale);
            for half in 0..2 {
                let product = _mm512_cvtepi32_ps(products[half]);
                sums[half] = _mm512_fmadd_ps(product, _mm512_mul_ps(scales[half], scale), sums[half]);
            }
        }
    }
    for (out, sums) in out.as_chunks_mut::<TILE_COLUMNS>().0.iter_mut().zip(sums) {
        let (low, high) = out.split_at_mut(LANES);
        // SAFETY: each half of a row of the tile has exactly `LANES` floats.
        unsafe {
            _mm512_storeu_ps(low.as_mut_ptr(), sums[0]);
            _mm512_storeu_ps(high.as_mut_ptr(), sums[1]);
        }
    }
}
