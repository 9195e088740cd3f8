//! What follows the accumulator of a kernel, without names of the program: the steps, what they read and what is
//! written, as data; and its device code, which the kernels of all backends share.

pub(crate) mod body;
pub(crate) mod formula;
mod functions;
mod name;
pub(crate) mod outputs;
mod planned;

use fourfold_ir::{BinaryKind, ElementType, OperandShape, Predicate, ReduceKind, ScaleRounding, UnaryKind};
use fourfold_scheduler::EpilogueRef;

pub use self::functions::device_functions;
pub use self::outputs::{output_functions, quantization_functions, scale_functions};
pub(crate) use self::planned::of_plan;

/// What follows the accumulator: alpha · acc, then fma(beta, C, ·), the rounding of the `scaled_mma`, and the steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Whether the sum is multiplied by alpha.
    pub alpha: bool,
    /// The element type of C, where there is one.
    pub c: Option<ElementType>,
    /// Whether C is multiplied by beta.
    pub beta: bool,
    /// What the `scaled_mma` rounds to.
    pub accumulator: ElementType,
    /// What follows it, each step after those that it uses.
    pub steps: Vec<Step>,
    /// What the steps and the outputs read.
    pub operands: Vec<Operand>,
    /// What is written. The first value among them is D, which CUTLASS writes where there is CUTLASS.
    pub outputs: Vec<Output>,
}

/// One output of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// What it is made of: the accumulator or a step.
    pub of: EpilogueRef,
    /// What is written of that.
    pub kind: OutputKind,
}

/// What is written of a value `[L, M, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputKind {
    /// All of it.
    Value,
    /// The blocks of its rows, quantized.
    Quantized {
        /// The position of the operand that is the tensor's own scale.
        global: Option<usize>,
        /// The element type of the codes.
        element: ElementType,
        /// Elements per scale: 16 for NVFP4, 32 for MX.
        block: u32,
        /// How an MX scale is rounded; absent exactly for NVFP4.
        scale_rounding: Option<ScaleRounding>,
    },
    /// Its elements, combined.
    Reduced {
        /// How.
        kind: ReduceKind,
        /// What is left.
        shape: OperandShape,
    },
}

/// One step of an epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// What it computes.
    pub kind: StepKind,
    /// What of.
    pub operands: Vec<EpilogueRef>,
    /// What it rounds to.
    pub element: ElementType,
}

/// What a step computes. Numbers are the bits of an f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// The same number for every element.
    Constant(u32),
    /// A function of one operand.
    Unary(UnaryKind),
    /// A function of two operands.
    Binary(BinaryKind),
    /// min(max(x, lower), upper). The bounds are of the step's element type: rounding is monotonic, so that what
    /// lies between rounded bounds is what is rounded between the bounds.
    Clamp {
        /// Lower bound.
        lower: u32,
        /// Upper bound.
        upper: u32,
    },
    /// A comparison.
    Compare(Predicate),
    /// The second operand where the first holds, else the third.
    Select,
    /// Only rounds.
    Convert,
}

/// What an epilogue reads, broadcast to D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// How it lies beside D.
    pub shape: OperandShape,
    /// Its element type.
    pub element: ElementType,
}

impl Epilogue {
    /// The element type of what CUTLASS writes, or is told that it does: that of D, or 8 bits where nothing is D.
    pub fn destination(&self) -> ElementType {
        self.d().map_or(ElementType::F8E4M3FN, |d| self.element(self.outputs[d].of))
    }

    /// The position of D among the outputs: the first that is a value.
    pub(crate) fn d(&self) -> Option<usize> {
        self.outputs.iter().position(|output| output.kind == OutputKind::Value)
    }

    /// Whether D is all that is written, and the last that is computed.
    pub(crate) fn is_plain(&self) -> bool {
        self.outputs == [Output { of: self.last(), kind: OutputKind::Value }]
    }

    /// What is computed last.
    pub(crate) fn last(&self) -> EpilogueRef {
        self.steps.len().checked_sub(1).map_or(EpilogueRef::Accumulator, EpilogueRef::Step)
    }

    /// The element type of what a step, an operand or the accumulator is.
    pub fn element(&self, value: EpilogueRef) -> ElementType {
        match value {
            EpilogueRef::Accumulator => self.accumulator,
            EpilogueRef::Step(step) => self.steps[step].element,
            EpilogueRef::Operand(operand) => self.operands[operand].element,
        }
    }

    /// Columns that a thread must have of a row at a time, where a row is in one thread: the longest block.
    pub fn longest_block(&self) -> Option<u32> {
        let blocks = self.outputs.iter().filter_map(|output| match output.kind {
            OutputKind::Quantized { block, .. } => Some(block),
            _ => None,
        });
        blocks.max()
    }

    /// The element type of the matrix that is read as CUTLASS reads its source: C, or the first matrix among the
    /// operands.
    pub fn source(&self) -> Option<ElementType> {
        self.c.or_else(|| self.source_operand().map(|operand| self.operands[operand].element))
    }

    /// The position of the operand that is read as the source.
    pub(crate) fn source_operand(&self) -> Option<usize> {
        let first = || self.operands.iter().position(|operand| operand.shape == OperandShape::Matrix);
        if self.c.is_some() { None } else { first() }
    }

    /// How many operands a thread has a part of in registers, as large as its part of the accumulator.
    pub(crate) fn fragments(&self) -> usize {
        let is_fragment =
            |operand: &&Operand| matches!(operand.shape, OperandShape::Row | OperandShape::Matrix);
        self.operands.iter().filter(is_fragment).count() + usize::from(self.c.is_some())
    }

    /// Bits that the rows take in shared memory for each column of a tile.
    pub(crate) fn row_bits(&self) -> u64 {
        let rows = self.operands.iter().filter(|operand| operand.shape == OperandShape::Row);
        rows.map(|row| row.element.storage_bits() as u64).sum()
    }

    /// Whether a step reads an operand. The scale of a quantized tensor is read by whoever writes it.
    pub(crate) fn is_read(&self, operand: usize) -> bool {
        self.steps.iter().any(|step| step.operands.contains(&EpilogueRef::Operand(operand)))
    }

    /// Whether all that is written is values, which a thread may have any columns of.
    pub(crate) fn only_values(&self) -> bool {
        self.outputs.iter().all(|output| output.kind == OutputKind::Value)
    }
}
