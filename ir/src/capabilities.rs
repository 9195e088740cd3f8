//! What a target's kernels can take, as plain data: the scheduler decides from this alone.

use crate::ops::{BinaryKind, ReduceKind, UnaryKind};
use crate::program::BlockFormat;
use crate::types::ElementType;

/// What one target takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// The target's name, such as `sm_100a`.
    pub target: String,
    /// One entry per format that the target has kernels for; none for `cpu`.
    pub formats: Vec<FormatCapability>,
    /// The rules for a `block_quantize` as a kernel of its own; `None` where there is no such kernel.
    pub block_quantize: Option<BlockQuantizeCapability>,
}

/// The `block_quantize` ops that a kernel of their own computes.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockQuantizeCapability {
    /// The element types of the values.
    pub inputs: Vec<ElementType>,
    /// The formats of codes and scales.
    pub formats: Vec<QuantizedFormat>,
    /// No extent exceeds this.
    pub max_extent: u64,
    /// The scales, counted as if padded to the blocked layout, take no more bytes than this.
    pub max_scale_bytes: u64,
    /// Base pointers of values, codes and scales are multiples of this, in bytes.
    pub pointer_alignment: u32,
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
    /// The entry for a format.
    pub fn format(&self, format: BlockFormat) -> Option<&FormatCapability> {
        self.formats.iter().find(|capability| capability.format == format)
    }
}

/// What the kernels of one format take.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatCapability {
    /// The format.
    pub format: BlockFormat,
    /// K is a multiple of this.
    pub k_multiple: u64,
    /// No extent exceeds this.
    pub max_extent: u64,
    /// The limits of one launch.
    pub grid: GridCapability,
    /// The blocked scales of an operand, padding and batch included, take no more bytes than this.
    pub max_scale_bytes: u64,
    /// Base pointers of A, B, C, D and the epilogue's vectors and matrices are multiples of this, in bytes.
    pub pointer_alignment: u32,
    /// Whether one launch takes several matrices (L > 1).
    pub batched: bool,
    /// The element types that written values may have.
    pub outputs: Vec<OutputCapability>,
    /// The element types that C may have, with their rule for N.
    pub c: Vec<OutputCapability>,
    /// What may follow the multiplication in its kernel.
    pub epilogue: EpilogueCapability,
}

impl FormatCapability {
    /// The rule for an output element type.
    pub fn output(&self, element: ElementType) -> Option<OutputCapability> {
        self.outputs.iter().copied().find(|output| output.element == element)
    }

    /// The rule for an element type of C.
    pub fn c(&self, element: ElementType) -> Option<OutputCapability> {
        self.c.iter().copied().find(|c| c.element == element)
    }
}

/// The limits of the grid of one launch, for every kernel of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridCapability {
    /// The most matrices (L).
    pub max_matrices: u64,
    /// The largest N.
    pub max_columns: u64,
    /// Rows and columns of the smallest tile of D that a block computes.
    pub tile: [u64; 2],
    /// The most tiles of that size, in all matrices.
    pub max_tiles: u64,
}

impl GridCapability {
    /// The tiles of so many matrices of so many rows and columns; `None` beyond 64 bits.
    pub fn tiles(&self, matrices: u64, rows: u64, columns: u64) -> Option<u64> {
        let [tile_rows, tile_columns] = self.tile.map(|extent| extent.max(1));
        matrices.checked_mul(rows.div_ceil(tile_rows))?.checked_mul(columns.div_ceil(tile_columns))
    }
}

/// An element type that an `[.., M, N]` tensor of the kernel may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputCapability {
    /// The element type.
    pub element: ElementType,
    /// N is a multiple of this.
    pub n_multiple: u64,
}

/// What the epilogue of a kernel computes: a DAG of elementwise steps from the result of the multiplication, and what
/// is written of them.
#[derive(Clone, Debug, PartialEq)]
pub struct EpilogueCapability {
    /// The element types that a step may round to. Comparisons give `i1`, which only `select` takes; values of 8 bits
    /// are written or converted to wider ones.
    pub elements: Vec<ElementType>,
    /// The functions of one operand.
    pub unary: Vec<UnaryKind>,
    /// The functions of two operands.
    pub binary: Vec<BinaryKind>,
    /// Whether there is `clamp`.
    pub clamp: bool,
    /// Whether there are `compare` and `select`.
    pub select: bool,
    /// What it reads besides, one entry for each shape that it reads. Splat constants are no operands: they become
    /// part of the kernel.
    pub operands: Vec<OperandCapability>,
    /// There are at most so many steps, constants not counted.
    pub max_steps: usize,
    /// The formats in which it can write a value as codes with a scale for each block of N, in the blocked layout.
    pub quantized: Vec<QuantizedCapability>,
    /// How it combines the elements of an f32 value to a scalar, a row or a column.
    pub reductions: Vec<ReduceKind>,
    /// It writes at most so many tensors. Codes and their scales are two.
    pub max_outputs: usize,
}

/// A format in which a value is written in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizedCapability {
    /// Of the codes.
    pub element: ElementType,
    /// Of the scales.
    pub scale: ElementType,
    /// Elements per scale.
    pub block: u32,
    /// N is a multiple of this.
    pub n_multiple: u64,
}

impl EpilogueCapability {
    /// The rule for operands of a shape; `None` when there may be none.
    pub fn operand(&self, shape: OperandShape) -> Option<&OperandCapability> {
        self.operands.iter().find(|operand| operand.shape == shape)
    }

    /// The rule for codes and scales of these element types, so many codes to a scale; `None` when they are not written.
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
    /// Their element types, with what each asks of N.
    pub elements: Vec<OutputCapability>,
    /// There are at most so many.
    pub most: usize,
}

impl OperandCapability {
    /// The rule for an element type.
    pub fn element(&self, element: ElementType) -> Option<OutputCapability> {
        self.elements.iter().copied().find(|rule| rule.element == element)
    }
}

/// The shape of an epilogue's operand beside D, `[.., M, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperandShape {
    /// One element: `[]`, `[1]`, `[1, 1]`.
    Scalar,
    /// One element for each column, the same for every row and matrix: `[N]` under leading extents of 1.
    Row,
    /// One element for each row: `[.., M, 1]`.
    Column,
    /// The shape of D.
    Matrix,
}

impl OperandShape {
    /// Every shape.
    pub const ALL: [OperandShape; 4] =
        [OperandShape::Scalar, OperandShape::Row, OperandShape::Column, OperandShape::Matrix];

    /// The name that reports use.
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
