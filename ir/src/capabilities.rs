//! Capabilities of a target's kernels as plain data. The scheduler depends on nothing else of a target.

use crate::ops::{BinaryKind, BitwiseKind, ReduceKind, UnaryKind};
use crate::program::BlockFormat;
use crate::types::ElementType;

/// The kernels of one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// The target's name, such as `sm_100a`.
    pub target: String,
    /// One entry per operand format that the target's kernels support; empty for `cpu`.
    pub formats: Vec<FormatCapability>,
    /// The formats that the target's kernels support, but not their emulation; empty unless kernels are emulated.
    pub not_emulated: Vec<BlockFormat>,
    /// The rules for a standalone `block_quantize` kernel; `None` if the target has none.
    pub block_quantize: Option<BlockQuantizeCapability>,
    /// The other segments of the device tier. `DeviceCapability::default()` has none.
    pub device: DeviceCapability,
}

/// The segments of the device tier besides a standalone `block_quantize`.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DeviceCapability {
    /// The rules for row kernels; `None` if the target has none.
    pub rows: Option<RowCapability>,
    /// The rules for moves; `None` if the target has none. A target with moves also takes views, which are `reshape`
    /// without a copy, and constants.
    pub moves: Option<MoveCapability>,
    /// The rules for plain `mma`; `None` if the target has no library for it.
    pub mma: Option<MmaCapability>,
    /// The rules for reductions along other axes than the last, and over whole tensors; `None` if the target has none.
    pub columns: Option<ColumnCapability>,
}

/// The limits of a row kernel: elementwise steps and reductions along the last axis.
#[derive(Clone, Debug, PartialEq)]
pub struct RowCapability {
    /// The element types that a kernel reads, writes and rounds to.
    pub elements: Vec<ElementType>,
    /// Functions of one operand.
    pub unary: Vec<UnaryKind>,
    /// Functions of two operands.
    pub binary: Vec<BinaryKind>,
    /// Functions of the bits of two i32.
    pub bitwise: Vec<BitwiseKind>,
    /// Reductions along the last axis.
    pub reductions: Vec<ReduceKind>,
    /// The formats of `block_quantize` that it writes, linear or blocked.
    pub quantized: Vec<QuantizedFormat>,
    /// The formats of `block_dequantize` that it reads, linear or blocked.
    pub dequantized: Vec<QuantizedFormat>,
    /// The maximum number of steps, constants excluded.
    pub max_steps: usize,
    /// The maximum number of tensors read.
    pub max_operands: usize,
    /// The maximum number of tensors read with fewer rows than the kernel computes.
    pub max_repeats: usize,
    /// The maximum number of tensors written. Codes and their scales are two tensors.
    pub max_outputs: usize,
    /// The largest number of rows, and of elements of a row.
    pub max_extent: u64,
    /// The limit on the bytes of scales, computed as if padded to the blocked layout.
    pub max_scale_bytes: u64,
}

/// The limits of a kernel that copies elements, computes the ends of padded groups, or routes rows.
#[derive(Clone, Debug, PartialEq)]
pub struct MoveCapability {
    /// The element types.
    pub elements: Vec<ElementType>,
    /// The largest extent of one axis. Adjacent axes that move together are one axis.
    pub max_extent: u64,
    /// The largest number of groups of a `padded_ends`, `group_scales` or `group_rows`.
    pub max_groups: u64,
    /// The largest number of ids of a `group_rows`, or of indices of a `scatter_add`.
    pub max_positions: u64,
    /// The largest product of k and the last extent of a `top_k`.
    pub max_examined: u64,
    /// The largest number of rows of a `top_k`.
    pub max_ranked_rows: u64,
    /// Rows and columns of the tile of the result that one CTA of a `scatter_add` computes.
    pub sum_tile: [u64; 2],
    /// The largest number of tiles of that size.
    pub max_sum_tiles: u64,
}

/// The reductions that a column kernel computes: along any axes, of long tensors to few elements.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnCapability {
    /// The element types, of which operand and result have the same.
    pub elements: Vec<ElementType>,
    /// The reductions.
    pub reductions: Vec<ReduceKind>,
    /// The largest extent of one axis. Adjacent axes that are all reduced, or all kept, are one axis.
    pub max_extent: u64,
}

/// The plain `mma` that the vendor's library computes with f32 accumulation.
#[derive(Clone, Debug, PartialEq)]
pub struct MmaCapability {
    /// The element types of A, B and D.
    pub elements: Vec<[ElementType; 3]>,
    /// The largest extent: L, M, N and K, or L·M if one B serves a batch.
    pub max_extent: u64,
}

/// The `block_quantize` ops that a standalone kernel computes.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockQuantizeCapability {
    /// The element types of the values.
    pub inputs: Vec<ElementType>,
    /// The formats of codes and scales.
    pub formats: Vec<QuantizedFormat>,
    /// The largest extent.
    pub max_extent: u64,
    /// The limit on the bytes of the scales, computed as if padded to the blocked layout.
    pub max_scale_bytes: u64,
    /// Base pointers of values, codes and scales are multiples of this, in bytes.
    pub pointer_alignment: u32,
    /// True if this kernel is faster than an epilogue that quantizes. The op then stays outside of epilogues.
    pub is_faster: bool,
}

/// The element types of codes and scales, and the values that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizedFormat {
    /// The element type of the codes.
    pub element: ElementType,
    /// The element type of the scales.
    pub scale: ElementType,
    /// Elements per scale.
    pub block: u32,
}

impl Capabilities {
    /// The entry for a format; `None` if no kernel supports it.
    pub fn format(&self, format: BlockFormat) -> Option<&FormatCapability> {
        self.formats.iter().find(|capability| capability.format == format)
    }
}

/// The limits of one format's kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatCapability {
    /// The format.
    pub format: BlockFormat,
    /// K must be a multiple of this many elements.
    pub k_multiple: u64,
    /// The largest extent: L, M, N and K, or L·M if a shared B makes the batch one matrix.
    pub max_extent: u64,
    /// The limits of one launch.
    pub grid: GridCapability,
    /// The largest buffer of blocked scales of one operand in bytes, padding and batch included.
    pub max_scale_bytes: u64,
    /// Alignment in bytes of the base pointers of A and B.
    pub operand_alignment: [u32; 2],
    /// Alignment in bytes of the base pointers of scales, C, D and the epilogue's vectors and matrices.
    pub pointer_alignment: u32,
    /// True if one launch computes several matrices (L > 1).
    pub batched: bool,
    /// True if kernels of a `scaled_mma` read a linear sfa as well as a blocked one.
    pub has_linear_scales: bool,
    /// The largest E of a `grouped_scaled_mma`; absent if the target has no kernel for it.
    pub max_groups: Option<u64>,
    /// True if kernels compute a `masked_scaled_mma` of at most as many groups.
    pub has_masked: bool,
    /// True if kernels of groups also read a blocked sfa, with whole tiles or a matrix for each group.
    pub has_group_scales: bool,
    /// Element types of the tensors that a kernel writes, each with its multiple of N.
    pub outputs: Vec<OutputCapability>,
    /// Element types of C, each with its multiple of N.
    pub c: Vec<OutputCapability>,
    /// The steps that may follow the multiplication in its kernel.
    pub epilogue: EpilogueCapability,
    /// The limits of an epilogue that pairs columns; `None` if no epilogue does.
    pub pairs: Option<PairCapability>,
}

/// The limits of an epilogue that pairs columns: it combines each even column of the product and the odd column after it
/// into one column of D. Its other limits are those of [`EpilogueCapability`], with N the columns of D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairCapability {
    /// The largest number of elements per scale of a quantized output.
    pub max_block: u32,
    /// The largest fixed M for which an epilogue that quantizes pairs is faster than a kernel of its own, even if
    /// [`BlockQuantizeCapability::is_faster`] says otherwise of epilogues in general.
    pub max_quantized_m: u64,
}

impl FormatCapability {
    /// The entry for an output of this element type.
    pub fn output(&self, element: ElementType) -> Option<OutputCapability> {
        self.outputs.iter().copied().find(|output| output.element == element)
    }

    /// The entry for a C of this element type.
    pub fn c(&self, element: ElementType) -> Option<OutputCapability> {
        self.c.iter().copied().find(|c| c.element == element)
    }
}

/// The grid limits of one launch. They hold for every kernel of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridCapability {
    /// The largest L.
    pub max_matrices: u64,
    /// The largest N.
    pub max_columns: u64,
    /// M and N of the smallest tile of D that a CTA computes.
    pub tile: [u64; 2],
    /// The maximum number of tiles of that size, over all matrices.
    pub max_tiles: u64,
}

impl GridCapability {
    /// The number of tiles of `matrices` matrices of `rows` × `columns`; `None` if it exceeds 64 bits.
    pub fn tiles(&self, matrices: u64, rows: u64, columns: u64) -> Option<u64> {
        let [tile_rows, tile_columns] = self.tile.map(|extent| extent.max(1));
        matrices.checked_mul(rows.div_ceil(tile_rows))?.checked_mul(columns.div_ceil(tile_columns))
    }
}

/// An element type of an `[.., M, N]` tensor that a kernel reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputCapability {
    /// The element type.
    pub element: ElementType,
    /// N must be a multiple of this many elements.
    pub n_multiple: u64,
}

/// The limits of a kernel's epilogue: a DAG of elementwise steps on the result of the multiplication, and the
/// tensors written from it.
#[derive(Clone, Debug, PartialEq)]
pub struct EpilogueCapability {
    /// Element types that a step may round to. Comparisons give `i1`, which only `select` accepts. Values of 8 bits
    /// can only be written or converted to a wider type.
    pub elements: Vec<ElementType>,
    /// Functions of one operand.
    pub unary: Vec<UnaryKind>,
    /// Functions of two operands.
    pub binary: Vec<BinaryKind>,
    /// True if `clamp` is supported.
    pub clamp: bool,
    /// True if `compare` and `select` are supported.
    pub select: bool,
    /// Tensors that the epilogue may read in addition to C, one entry per shape. Splat constants are not operands:
    /// they are compiled into the kernel.
    pub operands: Vec<OperandCapability>,
    /// The maximum number of steps, constants excluded.
    pub max_steps: usize,
    /// Block-scaled formats that the epilogue can write: codes, and one scale per block along N, blocked.
    pub quantized: Vec<QuantizedCapability>,
    /// Reductions of an f32 value to a scalar, a row or a column.
    pub reductions: Vec<ReduceKind>,
    /// The maximum number of tensors written. Codes and their scales are two tensors.
    pub max_outputs: usize,
}

/// A block-scaled format that an epilogue can write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizedCapability {
    /// Element type of the codes.
    pub element: ElementType,
    /// Element type of the scales.
    pub scale: ElementType,
    /// Elements per scale.
    pub block: u32,
    /// N must be a multiple of this many elements.
    pub n_multiple: u64,
}

impl EpilogueCapability {
    /// The entry for operands of a shape; `None` if the epilogue reads none.
    pub fn operand(&self, shape: OperandShape) -> Option<&OperandCapability> {
        self.operands.iter().find(|operand| operand.shape == shape)
    }

    /// The entry for codes and scales of these element types with `block` codes per scale; `None` if the epilogue
    /// cannot write them.
    pub fn quantized(
        &self,
        element: ElementType,
        scale: ElementType,
        block: u32,
    ) -> Option<QuantizedCapability> {
        let same =
            |rule: &&QuantizedCapability| (rule.element, rule.scale, rule.block) == (element, scale, block);
        self.quantized.iter().find(same).copied()
    }
}

/// Operands of one shape that an epilogue reads.
#[derive(Clone, Debug, PartialEq)]
pub struct OperandCapability {
    /// The shape.
    pub shape: OperandShape,
    /// Element types, each with its multiple of N.
    pub elements: Vec<OutputCapability>,
    /// The maximum number of operands of this shape.
    pub most: usize,
}

impl OperandCapability {
    /// The entry for an element type.
    pub fn element(&self, element: ElementType) -> Option<OutputCapability> {
        self.elements.iter().copied().find(|rule| rule.element == element)
    }
}

/// The shape of an epilogue operand relative to D, `[.., M, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperandShape {
    /// One element: `[]`, `[1]`, `[1, 1]`.
    Scalar,
    /// One element per column, shared by all rows and matrices: `[N]` or `[1, .., 1, N]`.
    Row,
    /// One element per row: `[.., M, 1]`.
    Column,
    /// The shape of D.
    Matrix,
}

impl OperandShape {
    /// Every shape.
    pub const ALL: [OperandShape; 4] =
        [OperandShape::Scalar, OperandShape::Row, OperandShape::Column, OperandShape::Matrix];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OperandShape::Scalar => "scalar",
            OperandShape::Row => "row",
            OperandShape::Column => "column",
            OperandShape::Matrix => "matrix",
        }
    }
}

impl std::fmt::Display for OperandShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
