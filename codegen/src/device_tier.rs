//! The device tier of GPU targets: row and column kernels, moves, and the vendor's library for plain `mma`.

use fourfold_ir::{
    BinaryKind, BitwiseKind, ColumnCapability, DeviceCapability, ElementType, MmaCapability, MoveCapability,
    QuantizedFormat, ReduceKind, RowCapability, UnaryKind,
};

/// Kernels index rows, and the elements of a row, with 32-bit signed integers.
const MAX_EXTENT: u64 = i32::MAX as u64;

/// Moves and column kernels have 64-bit offsets. Adjacent axes that move together, or are reduced together, count as one,
/// whose extent may be that of a tensor.
const MAX_JOINED_EXTENT: u64 = 1 << 40;

/// The work of a kernel grows with the square of the groups, or with groups times ids.
const MAX_GROUPS: u64 = 1 << 16;

/// A warp examines all elements of a row for each of its k greatest elements. Beyond this product of k and the row's
/// length, a row takes several milliseconds.
const MAX_EXAMINED: u64 = 1 << 24;

/// The most CTAs of a launch along x.
const MAX_GRID_X: u64 = i32::MAX as u64;

/// Columns of a row that a CTA of a `scatter_add` computes.
pub(crate) const COLUMNS_OF_SUM: u64 = 2048;

/// Rows that a CTA of a `top_k` computes, one in each warp.
pub(crate) const ROWS_OF_TOP_K: u64 = 8;

/// The device tier of every GPU target; `formats` are those of quantization kernels.
pub(crate) fn device_capability(formats: &[QuantizedFormat]) -> DeviceCapability {
    DeviceCapability {
        rows: Some(row_capability(formats)),
        moves: Some(MoveCapability {
            elements: ElementType::ALL.to_vec(),
            max_extent: MAX_JOINED_EXTENT,
            max_groups: MAX_GROUPS,
            max_positions: MAX_EXTENT,
            max_examined: MAX_EXAMINED,
            max_ranked_rows: MAX_GRID_X * ROWS_OF_TOP_K,
            sum_tile: [1, COLUMNS_OF_SUM],
            max_sum_tiles: MAX_GRID_X,
        }),
        mma: Some(mma_capability()),
        columns: Some(ColumnCapability {
            elements: vec![ElementType::F16, ElementType::BF16, ElementType::F32],
            reductions: ReduceKind::ALL.to_vec(),
            max_extent: MAX_JOINED_EXTENT,
        }),
    }
}

fn row_capability(formats: &[QuantizedFormat]) -> RowCapability {
    RowCapability {
        elements: ElementType::ALL.to_vec(),
        unary: UnaryKind::ALL.to_vec(),
        binary: BinaryKind::ALL.to_vec(),
        bitwise: BitwiseKind::ALL.to_vec(),
        reductions: ReduceKind::ALL.to_vec(),
        quantized: formats.to_vec(),
        dequantized: formats.to_vec(),
        max_steps: 64,
        max_operands: 12,
        max_repeats: 4,
        max_outputs: 4,
        max_extent: MAX_EXTENT,
        max_scale_bytes: MAX_EXTENT,
    }
}

/// Products of f16 and bf16 are exact in f32. f32 operands are multiplied in f32, not in a shorter type.
fn mma_capability() -> MmaCapability {
    let halves = [ElementType::F16, ElementType::BF16];
    let mut elements = vec![[ElementType::F32; 3]];
    for operand in halves {
        elements.extend([operand, ElementType::F32].map(|result| [operand, operand, result]));
    }
    MmaCapability { elements, max_extent: MAX_EXTENT }
}
