//! Portable block-scaled multiplication: decodes B panel by panel, and multiplies panels.

use std::ops::{Add, Mul, Range};

use gemm::Parallelism;

use super::operand::{BlockScaled, Decoder};
use crate::fallback::codec::Number;
use crate::fallback::memory::{NoMemory, Zeroed, check_gemm, grow, zeroed};
use crate::parallel::{for_each_chunk, try_for_each_chunk};

/// Columns of D (rows of B) per tile.
pub(super) const TILE_COLUMNS: usize = 128;

/// Elements of a row of B decoded at a time. A panel of f32 takes half of a 512 KiB cache. A multiple of four blocks,
/// as [`Decoder::row`] requires.
const PANEL_K: usize = 512;

/// Up to this many rows of A, decoding and multiplying one row of B at a time is faster than packing panels for
/// `gemm`.
const FEW_ROWS: usize = 6;

/// Independent partial sums of a dot product, enough to keep the vector units busy.
const LANES: usize = 16;

/// A number type that holds the products exactly.
pub(super) trait Real: Number + Zeroed + Add<Output = Self> + Mul<Output = Self> {
    const ZERO: Self;
    const ONE: Self;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

/// Σ_k (a·sfa)(b·sfb) for some rows of A and of B, rounded to f32. The result consists of tiles `[a_rows.len(),
/// TILE_COLUMNS]`; columns beyond the last row of B are not written.
pub(super) fn accumulate<T: Real>(
    a: &BlockScaled,
    a_rows: Range<usize>,
    b: &BlockScaled,
    b_rows: Range<usize>,
    tiles: &mut [f32],
) -> Result<(), NoMemory> {
    let (rows, k) = (a_rows.len(), a.shape().k);
    if k == 0 {
        tiles.fill(0.0);
        return Ok(());
    }
    let decoder = Decoder::<T>::new(a);
    let mut a_values = zeroed::<T>(rows.saturating_mul(k))?;
    for_each_chunk(&mut a_values, k, |index, out| decoder.row(a, a_rows.start + index, 0, out));

    if rows > FEW_ROWS {
        check_gemm(0)?;
    }
    let decoder = Decoder::<T>::new(b);
    try_for_each_chunk(tiles, rows * TILE_COLUMNS, Scratch::default, |scratch, tile, out| {
        let first = b_rows.start + tile * TILE_COLUMNS;
        let columns = first..b_rows.end.min(first + TILE_COLUMNS);
        if rows <= FEW_ROWS {
            scratch.dot(&decoder, &a_values, b, columns, out)
        } else {
            scratch.multiply(&decoder, &a_values, b, columns, out)
        }
    })
}

/// Decode buffers of one thread.
struct Scratch<T> {
    panel: Vec<T>,
    product: Vec<T>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Scratch { panel: Vec::new(), product: Vec::new() }
    }
}

impl<T: Real> Scratch<T> {
    /// Multiplies every row of A with one row of B at a time.
    fn dot(
        &mut self,
        decoder: &Decoder<T>,
        a: &[T],
        b: &BlockScaled,
        columns: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), NoMemory> {
        let k = b.shape().k;
        grow(&mut self.panel, PANEL_K.min(k), T::ZERO)?;
        for (column, b_row) in columns.enumerate() {
            let mut sums = [[T::ZERO; LANES]; FEW_ROWS];
            for start in (0..k).step_by(PANEL_K) {
                let panel = &mut self.panel[..PANEL_K.min(k - start)];
                decoder.row(b, b_row, start / b.shape().block, panel);
                for (a_row, sums) in a.chunks_exact(k).zip(&mut sums) {
                    add_products(&a_row[start..][..panel.len()], panel, sums);
                }
            }
            for (out, sums) in out.chunks_exact_mut(TILE_COLUMNS).zip(sums) {
                out[column] = fold_lanes(sums).to_f32();
            }
        }
        Ok(())
    }

    /// Computes a tile as products of panels.
    fn multiply(
        &mut self,
        decoder: &Decoder<T>,
        a: &[T],
        b: &BlockScaled,
        columns: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), NoMemory> {
        let k = b.shape().k;
        let (rows, width) = (a.len() / k, columns.len());
        grow(&mut self.product, rows * width, T::ZERO)?;
        grow(&mut self.panel, TILE_COLUMNS * PANEL_K.min(k), T::ZERO)?;
        for start in (0..k).step_by(PANEL_K) {
            let depth = PANEL_K.min(k - start);
            let panel = &mut self.panel[..width * depth];
            for (out, row) in panel.chunks_exact_mut(depth).zip(columns.clone()) {
                decoder.row(b, row, start / b.shape().block, out);
            }
            assert!(a.len() >= (rows - 1) * k + start + depth);
            // SAFETY: every stride is that of a row-major matrix inside its slice. `product` is [rows, width]; the
            // rows of A are k apart and read from `start` for `depth` elements (asserted above); `panel` is [width,
            // depth]. The destination is borrowed mutably and overlaps neither operand.
            unsafe {
                gemm::gemm(
                    rows,
                    width,
                    depth,
                    self.product.as_mut_ptr(),
                    1,
                    width as isize,
                    start > 0,
                    a.as_ptr().add(start),
                    1,
                    k as isize,
                    panel.as_ptr(),
                    depth as isize,
                    1,
                    T::ONE,
                    T::ONE,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
        for (out, product) in out.chunks_exact_mut(TILE_COLUMNS).zip(self.product.chunks_exact(width)) {
            for (out, product) in out.iter_mut().zip(product) {
                *out = product.to_f32();
            }
        }
        Ok(())
    }
}

/// Adds a·b to partial sums. Piece lengths are multiples of [`LANES`], so each element's lane does not depend on
/// them.
#[inline]
fn add_products<T: Real>(a: &[T], b: &[T], sums: &mut [T; LANES]) {
    let mut lanes = *sums;
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = *lane + *a * *b;
        }
    }
    *sums = lanes;
}

fn fold_lanes<T: Real>(mut lanes: [T; LANES]) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = lanes[lane] + lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
