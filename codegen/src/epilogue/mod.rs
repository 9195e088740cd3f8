//! The epilogue of a kernel as data, independent of names in the program: steps, operands and outputs. Also
//! its device code, shared by all backends.

pub(crate) mod body;
pub(crate) mod formula;
mod functions;
mod name;
pub(crate) mod outputs;
mod planned;

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{BinaryKind, ElementType, OperandShape, Predicate, ReduceKind, ScaleRounding, UnaryKind};
use fourfold_scheduler::EpilogueRef;

pub use self::functions::device_functions;
pub(crate) use self::outputs::e2m1_functions;
pub use self::outputs::{
    edge_functions, edges_type, even_functions, formula_functions, formula_type, output_functions,
    quantization_functions, scale_functions,
};
pub(crate) use self::planned::of_plan;

/// The epilogue of a kernel: alpha · acc, then fma(beta, C, ·), the rounding of the `scaled_mma`, and the
/// steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// True if it pairs columns: it combines each even column of the product, the accumulator, and the odd column after it
    /// into one column of D. There is then no C.
    pub pair: bool,
    /// True if the sum is multiplied by alpha.
    pub alpha: bool,
    /// The element type of C, if any.
    pub c: Option<ElementType>,
    /// True if C is multiplied by beta.
    pub beta: bool,
    /// The element type to which the `scaled_mma` rounds.
    pub accumulator: ElementType,
    /// The steps, each after its operands.
    pub steps: Vec<Step>,
    /// The operands of the steps and outputs.
    pub operands: Vec<Operand>,
    /// The outputs. The first of kind [`OutputKind::Value`] is D, which CUTLASS kernels write as their own D.
    pub outputs: Vec<Output>,
}

/// One output of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// The value that the output is made from: the accumulator or a step.
    pub of: EpilogueRef,
    /// The form in which it is written.
    pub kind: OutputKind,
}

/// The form in which a value `[L, M, N]` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputKind {
    /// The value itself.
    Value,
    /// The value quantized in blocks along N.
    Quantized {
        /// The position of the per-tensor scale among the operands.
        global: Option<usize>,
        /// The element type of the codes.
        element: ElementType,
        /// Elements per scale: 16 for NVFP4, 32 for MX.
        block: u32,
        /// The rounding of an MX scale; absent exactly for NVFP4.
        scale_rounding: Option<ScaleRounding>,
        /// The formula of NVFP4; the default for MX.
        formula: Nvfp4Formula,
    },
    /// The elements, reduced.
    Reduced {
        /// The reduction.
        kind: ReduceKind,
        /// The shape of the result.
        shape: OperandShape,
    },
}

/// One step of an epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The function.
    pub kind: StepKind,
    /// The operands.
    pub operands: Vec<EpilogueRef>,
    /// The element type to which the step rounds.
    pub element: ElementType,
}

/// The function of a step. Numbers are the bits of an f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// The same number for every element.
    Constant(u32),
    /// A function of one operand.
    Unary(UnaryKind),
    /// A function of two operands.
    Binary(BinaryKind),
    /// min(max(x, lower), upper). The bounds have the step's element type. Rounding is monotonic, so clamping
    /// to rounded bounds equals rounding the clamped value.
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
    /// Rounds, nothing else.
    Convert,
}

/// An operand of an epilogue, broadcast to D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Its broadcast to D.
    pub shape: OperandShape,
    /// Its element type.
    pub element: ElementType,
}

impl Epilogue {
    /// The element type of CUTLASS's destination: D's, or an 8-bit placeholder if no output is D.
    pub fn destination(&self) -> ElementType {
        self.d().map_or(ElementType::F8E4M3FN, |d| self.element(self.outputs[d].of))
    }

    /// The position of D among the outputs: the first of kind value.
    pub(crate) fn d(&self) -> Option<usize> {
        self.outputs.iter().position(|output| output.kind == OutputKind::Value)
    }

    /// Returns whether D is the only output and is made from the last step.
    pub(crate) fn is_plain(&self) -> bool {
        self.outputs == [Output { of: self.last(), kind: OutputKind::Value }]
    }

    /// The last computed value.
    pub(crate) fn last(&self) -> EpilogueRef {
        self.steps.len().checked_sub(1).map_or(EpilogueRef::Accumulator, EpilogueRef::Step)
    }

    /// The element type of the accumulator, a step or an operand.
    pub fn element(&self, value: EpilogueRef) -> ElementType {
        match value {
            EpilogueRef::Accumulator | EpilogueRef::Odd => self.accumulator,
            EpilogueRef::Step(step) => self.steps[step].element,
            EpilogueRef::Operand(operand) => self.operands[operand].element,
        }
    }

    /// The longest quantized block: the columns that a thread needs at once where one thread has a whole row.
    pub fn longest_block(&self) -> Option<u32> {
        let blocks = self.outputs.iter().filter_map(|output| match output.kind {
            OutputKind::Quantized { block, .. } => Some(block),
            _ => None,
        });
        blocks.max()
    }

    /// The element type of the matrix that is CUTLASS's source: C, or the first matrix operand.
    pub fn source(&self) -> Option<ElementType> {
        self.c.or_else(|| self.source_operand().map(|operand| self.operands[operand].element))
    }

    /// The position of the operand that is the source; `None` if C is.
    pub(crate) fn source_operand(&self) -> Option<usize> {
        let first = || self.operands.iter().position(|operand| operand.shape == OperandShape::Matrix);
        if self.c.is_some() { None } else { first() }
    }

    /// The number of operand fragments in registers, each as large as a thread's fragment of the accumulator.
    pub(crate) fn fragments(&self) -> usize {
        let is_fragment =
            |operand: &&Operand| matches!(operand.shape, OperandShape::Row | OperandShape::Matrix);
        self.operands.iter().filter(is_fragment).count() + usize::from(self.c.is_some())
    }

    /// The bits per tile column that row operands take in shared memory.
    pub(crate) fn row_bits(&self) -> u64 {
        let rows = self.operands.iter().filter(|operand| operand.shape == OperandShape::Row);
        rows.map(|row| row.element.storage_bits() as u64).sum()
    }

    /// Returns whether a step reads an operand. The output's own code reads the scale of a quantized tensor.
    pub(crate) fn is_read(&self, operand: usize) -> bool {
        self.steps.iter().any(|step| step.operands.contains(&EpilogueRef::Operand(operand)))
    }

    /// Returns whether all outputs are values, which any thread may write for any columns.
    pub(crate) fn only_values(&self) -> bool {
        self.outputs.iter().all(|output| output.kind == OutputKind::Value)
    }
}
