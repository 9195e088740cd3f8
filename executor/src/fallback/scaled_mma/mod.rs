//! Block-scaled matrix multiplication. B is decoded panel by panel, never as a whole.
//!
//! A kernel computes the accumulators of some rows of A with all of B, in parallel over column tiles. The epilogue
//! then scales, adds C and rounds, in parallel over rows. One thread computes each accumulator, in an order
//! determined by the shape, so results do not depend on the number of threads.

mod operand;
mod panels;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::ops::Range;

use fourfold_ir::ElementType;

use self::operand::Decoder;
pub use self::operand::{BlockScaled, BlockScaledShape, OperandError};
use super::codec::Codec;
use super::memory::{NoMemory, zeroed};
use crate::parallel::for_each_chunk;

/// The maximum number of rows of A multiplied at a time. B is decoded again for each group, which costs a few percent
/// of its multiplication.
const ROW_GROUP: usize = 256;

/// Columns of D computed at a time: a multiple of every tile's. It bounds the memory for accumulators. A is decoded
/// again for each group, which costs less than a percent.
const COLUMN_GROUP: usize = 8192;

/// The memory for decoded rows of A, while that leaves at least [`LEAST_ROWS`].
const DECODED_BYTES: usize = 16 << 20;
const LEAST_ROWS: usize = 8;

/// Columns per step of the epilogue.
const EPILOGUE_COLUMNS: usize = 1024;

/// The epilogue: t = rn(alpha · acc), then fma(beta, C, t), then rounding to the result type.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// The factor of the sum; 1 if absent.
    pub alpha: Option<f32>,
    /// The bytes of C, in the shape of D, and its element type.
    pub c: Option<(&'a [u8], ElementType)>,
    /// The factor of C; 1 if absent.
    pub beta: Option<f32>,
}

/// The algorithm that computes the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaledMmaKernel {
    /// Exact integer sums within blocks, f32 across blocks. For FP4 with e4m3 scales, on AVX-512 VNNI.
    Vnni,
    /// Exact f32 operands and f32 sums. For every format, on any machine, while scales and `bf16` elements are within
    /// f32's range: `f16` and FP4 with e4m3 scales always are.
    Float,
    /// Exact f64 operands and f64 sums. For every format, on any machine.
    Double,
}

impl ScaledMmaKernel {
    /// The kernels that support these operands on this machine, fastest first.
    pub fn available(a: &BlockScaled, b: &BlockScaled) -> Vec<ScaledMmaKernel> {
        let mut kernels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if a.is_fp4_with_e4m3() && b.is_fp4_with_e4m3() && vnni::is_supported() {
            kernels.push(ScaledMmaKernel::Vnni);
        }
        if a.magnitudes().fit_f32(b.magnitudes(), a.shape().k) {
            kernels.push(ScaledMmaKernel::Float);
        }
        kernels.push(ScaledMmaKernel::Double);
        kernels
    }

    /// Rows of A multiplied at a time.
    fn row_group(self, k: usize) -> usize {
        let bytes = if self == ScaledMmaKernel::Double { size_of::<f64>() } else { size_of::<f32>() };
        (DECODED_BYTES / (bytes * k.max(1))).clamp(LEAST_ROWS, ROW_GROUP)
    }

    fn tile_columns(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            ScaledMmaKernel::Vnni => vnni::TILE_COLUMNS,
            _ => panels::TILE_COLUMNS,
        }
    }
}

/// The reason that operands and result cannot be multiplied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaledMmaError {
    /// A and B differ in K or block, or B has neither one matrix nor as many as A.
    #[error("A is {a:?} and B is {b:?}: K and block must match, and so must the batch unless B has none")]
    Shapes {
        /// The shape of A.
        a: BlockScaledShape,
        /// The shape of B.
        b: BlockScaledShape,
    },
    /// C or D does not have the size of `[batch, M, N]`.
    #[error("{what} takes {expected} bytes, not {found}")]
    Size {
        /// `C` or `D`.
        what: &'static str,
        /// The required bytes.
        expected: usize,
        /// The bytes given.
        found: usize,
    },
    /// The kernel does not support these operands on this machine.
    #[error("the kernel {0:?} does not support these operands on this machine")]
    Kernel(ScaledMmaKernel),
    /// Memory is insufficient for decoded operands and sums.
    #[error("cannot allocate {bytes} bytes for the decoded operands and sums of a scaled_mma")]
    Memory {
        /// The bytes required; `usize::MAX` if that exceeds the address space.
        bytes: usize,
    },
}

impl From<NoMemory> for ScaledMmaError {
    fn from(NoMemory { bytes }: NoMemory) -> ScaledMmaError {
        ScaledMmaError::Memory { bytes }
    }
}

/// D = alpha · Σ_k (a·sfa)(b·sfb) + beta · C, written to `out` as elements of type `element`, `[batch, M, N]`. A
/// single matrix B is shared by every matrix of A.
///
/// # Errors
/// When the shapes of A, B, C and `out` do not match, or memory is insufficient.
pub fn scaled_mma(
    a: &BlockScaled,
    b: &BlockScaled,
    epilogue: Epilogue,
    element: ElementType,
    out: &mut [u8],
) -> Result<(), ScaledMmaError> {
    run(ScaledMmaKernel::available(a, b)[0], a, b, epilogue, element, out)
}

/// Like [`scaled_mma`], with a given kernel, for comparing kernels.
///
/// # Errors
/// As [`scaled_mma`], and when the kernel is not one of [`ScaledMmaKernel::available`].
pub fn scaled_mma_with(
    kernel: ScaledMmaKernel,
    a: &BlockScaled,
    b: &BlockScaled,
    epilogue: Epilogue,
    element: ElementType,
    out: &mut [u8],
) -> Result<(), ScaledMmaError> {
    if !ScaledMmaKernel::available(a, b).contains(&kernel) {
        return Err(ScaledMmaError::Kernel(kernel));
    }
    run(kernel, a, b, epilogue, element, out)
}

fn run(
    kernel: ScaledMmaKernel,
    a: &BlockScaled,
    b: &BlockScaled,
    epilogue: Epilogue,
    element: ElementType,
    out: &mut [u8],
) -> Result<(), ScaledMmaError> {
    let (a_shape, b_shape) = (a.shape(), b.shape());
    let is_shared = b_shape.batch == 1;
    if (a_shape.k, a_shape.block) != (b_shape.k, b_shape.block)
        || !(is_shared || a_shape.batch == b_shape.batch)
    {
        return Err(ScaledMmaError::Shapes { a: a_shape, b: b_shape });
    }
    let n = b_shape.rows;
    let elements = a.all_rows().saturating_mul(n);
    let c_size = epilogue.c.map(|(bytes, element)| ("C", element, bytes.len()));
    for (what, element, found) in c_size.into_iter().chain([("D", element, out.len())]) {
        let expected = elements.saturating_mul(element.storage_bits()) / 8;
        if found != expected || !(n * element.storage_bits()).is_multiple_of(8) {
            return Err(ScaledMmaError::Size { what, expected, found });
        }
    }
    if elements == 0 {
        return Ok(());
    }

    // With a shared B, the batch is one tall matrix.
    let (groups, group_rows) = if is_shared { (1, a.all_rows()) } else { (a_shape.batch, a_shape.rows) };
    let (width, row_group) = (kernel.tile_columns(), kernel.row_group(a_shape.k));
    let row_bytes = n * element.storage_bits() / 8;
    let padded = n.min(COLUMN_GROUP).next_multiple_of(width);
    let mut tiles = zeroed(padded.saturating_mul(group_rows.min(row_group)))?;
    for group in 0..groups {
        let end = (group + 1) * group_rows;
        for start in (group * group_rows..end).step_by(row_group) {
            let rows = start..end.min(start + row_group);
            let out = &mut out[rows.start * row_bytes..rows.end * row_bytes];
            for first_column in (0..n).step_by(COLUMN_GROUP) {
                let columns = first_column..n.min(first_column + COLUMN_GROUP);
                let b_rows = group * n + columns.start..group * n + columns.end;
                let tiles = &mut tiles[..columns.len().next_multiple_of(width) * rows.len()];
                accumulate(kernel, a, rows.clone(), b, b_rows, tiles)?;
                let tiles = Tiles { values: tiles, width, n, columns };
                finish_rows(epilogue, Codec::plain(element), rows.start, &tiles, out);
            }
        }
    }
    Ok(())
}

/// Computes the accumulators of some rows of A and of B, in tiles.
fn accumulate(
    kernel: ScaledMmaKernel,
    a: &BlockScaled,
    a_rows: Range<usize>,
    b: &BlockScaled,
    b_rows: Range<usize>,
    tiles: &mut [f32],
) -> Result<(), NoMemory> {
    match kernel {
        #[cfg(target_arch = "x86_64")]
        ScaledMmaKernel::Vnni => vnni::accumulate(a, a_rows, b, b_rows, tiles),
        ScaledMmaKernel::Double => panels::accumulate::<f64>(a, a_rows, b, b_rows, tiles),
        _ => panels::accumulate::<f32>(a, a_rows, b, b_rows, tiles),
    }
}

/// Dequantizes a block-scaled matrix to row-major f32, which [`scaled_mma`] avoids storing. Exact for FP4 with e4m3
/// scales; otherwise a product beyond f32's range is rounded.
pub fn dequantize(operand: &BlockScaled) -> Vec<f32> {
    let mut values = vec![0f32; operand.all_rows() * operand.shape().k];
    dequantize_into(operand, &mut values);
    values
}

/// Like [`dequantize`], into an existing buffer.
///
/// # Panics
/// Unless `out` has as many elements as the operand.
pub fn dequantize_into(operand: &BlockScaled, out: &mut [f32]) {
    let k = operand.shape().k;
    assert_eq!(out.len(), operand.all_rows() * k, "one f32 for each element");
    if k > 0 {
        let decoder = Decoder::<f32>::new(operand);
        for_each_chunk(out, k, |row, out| decoder.row(operand, row, 0, out));
    }
}

/// Accumulators of some columns of D as consecutive tiles of `width` columns; the last tile may extend beyond the
/// columns.
struct Tiles<'a> {
    values: &'a [f32],
    width: usize,
    /// Columns of D.
    n: usize,
    columns: Range<usize>,
}

impl Tiles<'_> {
    /// Copies `out.len()` accumulators of a row, from column `first` of these on.
    fn read(&self, row: usize, first: usize, out: &mut [f32]) {
        let rows = self.values.len() / self.columns.len().next_multiple_of(self.width);
        for (index, part) in out.chunks_mut(self.width).enumerate() {
            let tile = &self.values[(first / self.width + index) * rows * self.width..];
            part.copy_from_slice(&tile[row * self.width..][..part.len()]);
        }
    }
}

/// Applies the epilogue to the accumulators, and writes their columns of the rows in `out`, which start at row
/// `first_row` of D.
fn finish_rows(epilogue: Epilogue, codec: Codec, first_row: usize, tiles: &Tiles, out: &mut [u8]) {
    let bits = codec.element.storage_bits();
    let (n, columns) = (tiles.n, &tiles.columns);
    for_each_chunk(out, n * bits / 8, |row, out| {
        let out = &mut out[columns.start * bits / 8..columns.end * bits / 8];
        for_each_chunk(out, EPILOGUE_COLUMNS * bits / 8, |piece, out| {
            let first = piece * EPILOGUE_COLUMNS;
            let mut row_values = [0f32; EPILOGUE_COLUMNS];
            let row_values = &mut row_values[..EPILOGUE_COLUMNS.min(columns.len() - first)];
            tiles.read(row, first, row_values);
            if let Some(alpha) = epilogue.alpha {
                row_values.iter_mut().for_each(|value| *value *= alpha);
            }
            if let Some((c, element)) = epilogue.c {
                let mut c_values = [0f32; EPILOGUE_COLUMNS];
                let c_values = &mut c_values[..row_values.len()];
                let start = (first_row + row) * n + columns.start + first;
                Codec::plain(element).read(c, start, 1, c_values);
                let beta = epilogue.beta.unwrap_or(1.0);
                for (value, c) in row_values.iter_mut().zip(c_values) {
                    *value = beta.mul_add(*c, *value);
                }
            }
            codec.write(row_values, out);
        });
    });
}
