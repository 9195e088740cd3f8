//! The plan of a row kernel: elementwise ops and reductions along the last axis, row by row.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{
    BinaryKind, Dim, ElementType, Op, OperandShape, Predicate, QuantizedFormat, ReduceKind, ScaleLayout,
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
    /// The values of [`RowProgram::operands`].
    pub operands: Vec<Value>,
    /// The values that [`RowProgram::outputs`] writes, in order: codes before their scales.
    pub written: Vec<Value>,
    /// The conditions that a call must meet before the kernel is launched.
    pub constraints: Vec<Constraint>,
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
    pub shape: OperandShape,
    /// Its element type.
    pub element: ElementType,
}

/// One step of a row kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowStep {
    /// The function.
    pub kind: RowStepKind,
    /// The operands.
    pub operands: Vec<RowRef>,
    /// The element type to which the step rounds; `i1` exactly for comparisons.
    pub element: ElementType,
    /// Its broadcast to `[L, M, K]`: the least of its operands', or a column for a reduction.
    pub shape: OperandShape,
}

/// The function of a step. Numbers are the bits of an f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowStepKind {
    /// The same number for every element.
    Constant(u32),
    /// A function of one operand.
    Unary(UnaryKind),
    /// A function of two operands.
    Binary(BinaryKind),
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
    pub fn shape(&self, value: RowRef) -> OperandShape {
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
        words.extend(operands.map(|(index, it)| format!("x{index}={}:{}", it.shape, it.element)));
        for (index, step) in self.steps.iter().enumerate() {
            let kind = match step.kind {
                RowStepKind::Constant(bits) => format!("{bits:08x}"),
                RowStepKind::Unary(kind) => kind.to_string(),
                RowStepKind::Binary(kind) => kind.to_string(),
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
                    let rounding = super::interface::rounding_suffix(scale_rounding, formula);
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
