//! The plan of a row kernel: elementwise ops and reductions along the last axis, row by row.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{
    BinaryKind, BitwiseKind, Dim, ElementType, Op, Predicate, QuantizedFormat, ReduceKind, ScaleLayout,
    ScaleRounding, UnaryKind, Value,
};

use super::Constraint;

/// The plan of a row kernel.
///
/// The kernel computes values `[L, M, K]` row by row, K elements at a time. It reads every row of an operand once.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPlan {
    /// The ops that the kernel computes, ascending.
    pub ops: Vec<Op>,
    /// L, the number of matrices: the product of all extents but the last two.
    pub batch: Dim,
    /// M, the rows of one matrix.
    pub m: Dim,
    /// K, the elements of one row.
    pub k: Dim,
    /// The computation, without names and extents.
    pub program: RowProgram,
    /// The values of [`RowProgram::operands`], with the rows that they repeat.
    pub operands: Vec<RowInput>,
    /// The values that [`RowProgram::outputs`] writes, in order: codes before their scales.
    pub written: Vec<Value>,
    /// The conditions that a call must meet before the kernel is launched.
    pub constraints: Vec<Constraint>,
}

impl RowPlan {
    /// The names of the extents of each [`Repeat`] in the C interface: `each`, then `rows`.
    pub const REPEAT_EXTENTS: [[&'static str; 2]; 4] =
        [["R0", "P0"], ["R1", "P1"], ["R2", "P2"], ["R3", "P3"]];
}

/// A value that a row kernel reads.
#[derive(Clone, Debug, PartialEq)]
pub struct RowInput {
    /// The value.
    pub value: Value,
    /// The rows that the value has, exactly where [`RowOperand::repeats`] is true.
    pub repeat: Option<Repeat>,
}

/// An operand with fewer rows than the kernel computes. Row r of all L·M reads row `r / each % rows` of the operand.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeat {
    /// The number of consecutive rows that share one row of the operand.
    pub each: Dim,
    /// The rows of the operand.
    pub rows: Dim,
}

/// The computation of a row kernel, independent of names and extents. Equal computations have equal kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowProgram {
    /// The values that the kernel reads.
    pub operands: Vec<RowOperand>,
    /// The steps, each after its operands.
    pub steps: Vec<RowStep>,
    /// The outputs, at least one.
    pub outputs: Vec<RowOutput>,
}

/// A value that a row kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowOperand {
    /// Its broadcast to `[L, M, K]`.
    pub shape: RowShape,
    /// Its element type.
    pub element: ElementType,
    /// True if a matrix or column has fewer rows, which are found by a [`Repeat`].
    pub repeats: bool,
}

/// The broadcast of a value to the `[L, M, K]` of a row kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowShape {
    /// One element.
    Scalar,
    /// One element per column, shared by all rows: `[K]`.
    Row,
    /// One element per row: `[L, M]`.
    Column,
    /// `[L, M, K]`.
    Matrix,
    /// The scales of blocks along K: `[L, M, K / block]`.
    Scales {
        /// Elements per scale.
        block: u32,
        /// The layout.
        layout: ScaleLayout,
    },
}

impl std::fmt::Display for RowShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RowShape::Scalar => f.write_str("scalar"),
            RowShape::Row => f.write_str("row"),
            RowShape::Column => f.write_str("column"),
            RowShape::Matrix => f.write_str("matrix"),
            RowShape::Scales { block, layout } => write!(f, "scales/{block}-{layout}"),
        }
    }
}

/// One step of a row kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowStep {
    /// The function.
    pub kind: RowStepKind,
    /// The operands.
    pub operands: Vec<RowRef>,
    /// The element type to which the step rounds; `i1` for comparisons.
    pub element: ElementType,
    /// Its broadcast to `[L, M, K]`: that of its operands together, or a column for a reduction.
    pub shape: RowShape,
}

/// The function of a step. Numbers are the bits of an f32, or of an i32 where the step's element type is i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowStepKind {
    /// The same number for every element; 0 or 1 for i1.
    Constant(u32),
    /// A function of one operand.
    Unary(UnaryKind),
    /// A function of two operands.
    Binary(BinaryKind),
    /// A function of the bits of two i32.
    Bitwise(BitwiseKind),
    /// The bits as another element type, as `bitcast`.
    Bitcast,
    /// Code times scale, times the f32 scalar of a third operand if present, as `block_dequantize`. The scales are an
    /// operand of shape [`RowShape::Scales`].
    Dequantize,
    /// min(max(x, lower), upper), NaN propagates. The bounds have the step's element type.
    Clamp {
        /// Lower bound.
        lower: u32,
        /// Upper bound.
        upper: u32,
    },
    /// A comparison.
    Compare(Predicate),
    /// The second operand where the first is true, otherwise the third.
    Select,
    /// Rounds to the element type, nothing else.
    Convert,
    /// Combines the elements of each row.
    Reduce(ReduceKind),
}

/// A value that a step or an output uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowRef {
    /// One of [`RowProgram::operands`], by its position.
    Operand(usize),
    /// The result of an earlier step, by its position.
    Step(usize),
}

/// An output of a row kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowOutput {
    /// The value that is written.
    pub of: RowRef,
    /// The form in which it is written.
    pub kind: RowOutputKind,
}

/// The form in which a row kernel writes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOutputKind {
    /// The value itself: `[L, M, K]`, or `[L, M]` for a column.
    Value,
    /// The value quantized in blocks along K, as by `block_quantize`.
    Quantized {
        /// The element types of codes and scales, and the number of elements per scale.
        format: QuantizedFormat,
        /// The layout of the scales.
        layout: ScaleLayout,
        /// The per-tensor f32 scale: the position of a scalar operand.
        global: Option<usize>,
        /// The rounding of an MX scale; absent exactly for NVFP4.
        scale_rounding: Option<ScaleRounding>,
        /// The formula of NVFP4; the default for MX.
        formula: Nvfp4Formula,
    },
}

impl RowProgram {
    /// The shape of an operand or a step.
    pub fn shape(&self, value: RowRef) -> RowShape {
        match value {
            RowRef::Operand(operand) => self.operands[operand].shape,
            RowRef::Step(step) => self.steps[step].shape,
        }
    }

    /// The element type of an operand or a step.
    pub fn element(&self, value: RowRef) -> ElementType {
        match value {
            RowRef::Operand(operand) => self.operands[operand].element,
            RowRef::Step(step) => self.steps[step].element,
        }
    }
}

impl RowProgram {
    /// A description of the operands, steps and outputs, which the generated library also reports.
    ///
    /// An example is `row x0=matrix:bf16 x1=row:bf16 s0=mul(x0,x0):f32 s1=mean(s0):f32 y=s1`.
    pub fn signature(&self) -> String {
        let mut words = vec!["row".to_owned()];
        let operands = self.operands.iter().enumerate();
        words.extend(operands.map(|(index, it)| {
            let repeats = if it.repeats { "%" } else { "" };
            format!("x{index}={}{repeats}:{}", it.shape, it.element)
        }));
        for (index, step) in self.steps.iter().enumerate() {
            let kind = match step.kind {
                RowStepKind::Constant(bits) => format!("{bits:08x}"),
                RowStepKind::Unary(kind) => kind.to_string(),
                RowStepKind::Binary(kind) => kind.to_string(),
                RowStepKind::Bitwise(kind) => kind.to_string(),
                RowStepKind::Bitcast => "bitcast".to_owned(),
                RowStepKind::Dequantize => "dequantize".to_owned(),
                RowStepKind::Clamp { lower, upper } => format!("clamp_{lower:08x}_{upper:08x}"),
                RowStepKind::Compare(predicate) => predicate.name().to_owned(),
                RowStepKind::Select => "select".to_owned(),
                RowStepKind::Convert => "convert".to_owned(),
                RowStepKind::Reduce(kind) => kind.name().to_owned(),
            };
            let operands: Vec<String> = step.operands.iter().map(|operand| operand.to_string()).collect();
            words.push(format!("s{index}={kind}({}):{}", operands.join(","), step.element));
        }
        for output in &self.outputs {
            words.push(match output.kind {
                RowOutputKind::Value => format!("y={}", output.of),
                RowOutputKind::Quantized { format, layout, global, scale_rounding, formula } => {
                    let rounding = super::rounding::rounding_suffix(scale_rounding, formula);
                    let global = global.map_or(String::new(), |operand| format!("*x{operand}"));
                    let QuantizedFormat { element, scale, block } = format;
                    format!("q={element}:{scale}/{block}{rounding}{global}@{} {layout}", output.of)
                }
            });
        }
        words.join(" ")
    }
}

impl std::fmt::Display for RowRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RowRef::Operand(operand) => write!(f, "x{operand}"),
            RowRef::Step(step) => write!(f, "s{step}"),
        }
    }
}
