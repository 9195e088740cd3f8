//! The types of a partition: segments in run order, kernel plans, and a decision for every op.

mod choose;
mod columns;
mod interface;
mod mma;
mod moves;
mod rounding;
mod row;

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{
    BinaryKind, BlockFormat, Dim, ElementType, Op, OperandShape, Predicate, QuantizedFormat, ReduceKind,
    ScaleLayout, ScaleRounding, UnaryKind, Value,
};

pub use self::choose::ChoosePlan;
pub use self::columns::{ColumnPlan, ColumnProgram};
pub use self::mma::MmaPlan;
pub use self::moves::{
    MAX_MOVE_AXES, MAX_MOVE_OFFSETS, MAX_MOVE_OPERANDS, MAX_PAD_AXES, MovePlan, MoveProgram,
};
pub use self::row::{
    Repeat, RowInput, RowOperand, RowOutput, RowOutputKind, RowPlan, RowProgram, RowRef, RowShape, RowStep,
    RowStepKind,
};
use crate::reason::{ReasonCode, Rejection};

/// A program cut into segments.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The name of the target.
    pub target: String,
    /// The segments in run order: each uses only program inputs and results of earlier segments.
    pub segments: Vec<Segment>,
    /// The decisions, by op index.
    pub decisions: Vec<Decision>,
}

impl Partition {
    /// The segments of the kernel tier, one `scaled_mma` each, with their positions.
    pub fn kernels(&self) -> impl Iterator<Item = (usize, &ScaledMmaPlan)> {
        self.segments.iter().enumerate().filter_map(|(index, segment)| Some((index, segment.kernel()?)))
    }

    /// The segments of the kernel and the device tier, with their positions.
    pub fn plans(&self) -> impl Iterator<Item = (usize, &Plan)> {
        self.segments.iter().enumerate().filter_map(|(index, segment)| Some((index, segment.plan()?)))
    }
}

/// Ops that run together.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The ops, in program order.
    pub ops: Vec<Op>,
    /// The values that the segment uses but does not define, ascending.
    pub inputs: Vec<Value>,
    /// The values that the segment defines and a later segment or the caller uses, ascending. Empty if
    /// nothing uses its results.
    pub outputs: Vec<Value>,
    /// The way the segment runs.
    pub kind: SegmentKind,
}

impl Segment {
    /// The plan, if the segment is of the kernel or the device tier.
    pub fn plan(&self) -> Option<&Plan> {
        match &self.kind {
            SegmentKind::Kernel(plan) => Some(plan),
            SegmentKind::Fallback => None,
        }
    }

    /// The plan, if the segment is of the kernel tier.
    pub fn kernel(&self) -> Option<&ScaledMmaPlan> {
        self.plan().and_then(Plan::scaled_mma)
    }

    /// The tier on which the segment runs unless something prevents it at run time.
    pub fn tier(&self) -> Tier {
        self.plan().map_or(Tier::Fallback, Plan::tier)
    }
}

/// The way a segment runs.
#[derive(Clone, Debug, PartialEq)]
pub enum SegmentKind {
    /// On the GPU, or on the fallback if no launch is possible at run time.
    Kernel(Box<Plan>),
    /// On the fallback, op by op.
    Fallback,
}

/// The plan of a segment on the GPU: one generated kernel, one library call, a view, or a constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// A `scaled_mma` with its epilogue.
    ScaledMma(ScaledMmaPlan),
    /// A standalone `block_quantize`.
    BlockQuantize(BlockQuantizePlan),
    /// Elementwise ops and reductions along the last axis.
    Row(RowPlan),
    /// Elements copied to other places.
    Move(MovePlan),
    /// A reduction along other axes than the last, or over a whole tensor.
    Column(ColumnPlan),
    /// A plain `mma`, computed by the vendor's library.
    Mma(MmaPlan),
    /// A `reshape`, or another move that changes no byte: the same memory under another type.
    View(ViewPlan),
    /// A `choose`: the memory of the operand that an extent chooses.
    Choose(ChoosePlan),
    /// A constant that no kernel computes: memory that is written once.
    Constant(ConstantPlan),
}

/// The plan of a constant in device memory. It is written when a program is prepared, as a param is, and takes no time
/// afterwards. Kernels read it as any other value.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstantPlan {
    /// The op.
    pub op: Op,
    /// The result.
    pub result: Value,
}

/// The plan of a move that changes no byte, such as a `reshape`. It takes no time: its result is the memory of its operand,
/// and both have as many bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewPlan {
    /// The op.
    pub op: Op,
    /// The operand.
    pub operand: Value,
    /// The result.
    pub result: Value,
}

/// The tier of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// A generated kernel rooted at one `scaled_mma`.
    Kernel,
    /// Any other segment that stays on the GPU.
    Device,
    /// The CPU.
    Fallback,
}

impl Tier {
    /// The name in reports: `kernel`, `device` or `fallback`.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Kernel => "kernel",
            Tier::Device => "device",
            Tier::Fallback => "fallback",
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The values of one call, named by their roles in the kernel's C interface.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Roles {
    /// The tensors that the kernel reads. A value with two roles is listed twice.
    pub operands: Vec<(String, Value)>,
    /// The f32 scalars that the kernel reads.
    pub scalars: Vec<(String, Value)>,
    /// The tensors that the kernel writes, `y0` first, codes before their scales.
    pub outputs: Vec<(String, Value)>,
}

/// The groups of rows of a `grouped_scaled_mma` or `masked_scaled_mma`.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// The end of each group, `[E]`, ascending; or the rows of each.
    pub offsets: Value,
    /// True if each group has a matrix of A of its own, and `offsets` has its rows. M counts the rows of all matrices.
    pub masked: bool,
    /// E, the number of groups.
    pub count: Dim,
    /// The matrices and the rows of an sfa that is blocked for each group; `None` beside linear scales.
    pub scales: Option<[Dim; 2]>,
    /// The end of each group among the rows of sfa, `[E]`, ascending, if it has whole tiles for each.
    pub sfa_ends: Option<Value>,
    /// True if alpha has a value for each group. Otherwise it is a scalar.
    pub has_alphas: bool,
}

/// The plan of one fused kernel.
///
/// The kernel computes alpha · A·Bᵀ + beta · C, applies the steps of the epilogue, and writes the outputs. It
/// keeps every rounding that the program states. D, `[.., M, N]`, is the result of the steps.
///
/// If `b_batched` is false and the batch is not 1, the kernel *flattens*: it multiplies one matrix of L·M
/// rows by the shared B. A, its scales, C and D are contiguous in memory, so this is the same product. The
/// plan still states L and M separately. M is then a multiple of 128 if A or an output has scales, and the limit on
/// extents applies to L·M.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledMmaPlan {
    /// The `scaled_mma`, `grouped_scaled_mma` or `masked_scaled_mma`.
    pub root: Op,
    /// The format of operands and scales.
    pub format: BlockFormat,
    /// L, the number of matrices.
    pub batch: Dim,
    /// M, the rows of D; usually symbolic.
    pub m: Dim,
    /// N, the columns of D.
    pub n: Dim,
    /// K, the summed extent.
    pub k: Dim,
    /// True if each matrix of A has its own B and scales; false if one B serves all.
    pub b_batched: bool,
    /// The groups of rows, each with a matrix of B `[E, N, K]`, if the root is a `grouped_scaled_mma`. L is then 1.
    pub groups: Option<Groups>,
    /// A, `[.., M, K]`.
    pub a: Value,
    /// The scales of A; absent beside a 16-bit A.
    pub sfa: Option<Value>,
    /// True if `sfa` is linear: of groups without whole tiles, or without groups if the target's kernels read it.
    pub linear_sfa: bool,
    /// B, `[.., N, K]`.
    pub b: Value,
    /// The blocked scales of B.
    pub sfb: Value,
    /// The scale of the product, an f32 scalar or one for each group.
    pub alpha: Option<Value>,
    /// C, `[.., M, N]`.
    pub c: Option<Value>,
    /// The scale of C, an f32 scalar; 1 if absent.
    pub beta: Option<Value>,
    /// The element type to which the `scaled_mma` itself rounds, before the epilogue.
    pub accumulator: ElementType,
    /// The even and the odd columns of the product, if the epilogue pairs them. D then has half as many columns.
    pub pair: Option<PairedColumns>,
    /// The steps of the epilogue, each after its operands.
    pub epilogue: Vec<EpilogueStep>,
    /// The external operands of the epilogue: first those of the steps, in order of first use, then those of
    /// the outputs.
    pub operands: Vec<EpilogueOperand>,
    /// The outputs, at least one, in the order of the ops that define them. They are the values that are used
    /// outside or nowhere, and the results of ops that end the epilogue.
    pub outputs: Vec<KernelOutput>,
    /// The names of the rewrites that prove these ops to be one kernel, in order.
    pub proof: Vec<String>,
    /// The conditions that a call must meet before the kernel is launched.
    pub constraints: Vec<Constraint>,
}

/// The halves of a product that an epilogue pairs: [`EpilogueRef::Accumulator`] is an even column of the product, and
/// [`EpilogueRef::Odd`] the next odd one.
#[derive(Clone, Debug, PartialEq)]
pub struct PairedColumns {
    /// The `slice` that takes the even columns.
    pub even: Op,
    /// The `slice` that takes the odd columns.
    pub odd: Op,
    /// The columns of D, half of N.
    pub columns: Dim,
}

/// The plan of a standalone `block_quantize` of values `[L, M, K]`.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockQuantizePlan {
    /// The op.
    pub op: Op,
    /// The values, `[.., M, K]`.
    pub values: Value,
    /// The per-tensor f32 scale; absent for MX, and for a formula without guards where it is 1.
    pub global: Option<Value>,
    /// The codes, `[.., M, K]`, packed.
    pub codes: Value,
    /// The scales, `[.., M, K / block]`.
    pub scales: Value,
    /// The element type of the values.
    pub input: ElementType,
    /// The element types of codes and scales, and the number of elements per scale.
    pub format: QuantizedFormat,
    /// The rounding of MX scales; absent exactly for NVFP4.
    pub scale_rounding: Option<ScaleRounding>,
    /// The formula of NVFP4; the default for MX.
    pub formula: Nvfp4Formula,
    /// The layout of the scales.
    pub layout: ScaleLayout,
    /// L, the product of the leading extents.
    pub batch: Dim,
    /// M, the rows of one matrix.
    pub m: Dim,
    /// K, the values of one row.
    pub k: Dim,
    /// The conditions that a call must meet before the kernel is launched.
    pub constraints: Vec<Constraint>,
}

impl ScaledMmaPlan {
    /// The values that the kernel writes, in the order of their addresses in a call: codes before their
    /// scales.
    pub fn written(&self) -> impl Iterator<Item = Value> + '_ {
        self.outputs
            .iter()
            .flat_map(|output| match output.kind {
                OutputKind::Value { value } | OutputKind::Reduced { value, .. } => [Some(value), None],
                OutputKind::Quantized { codes, scales, .. } => [Some(codes), Some(scales)],
            })
            .flatten()
    }

    /// The values of alpha, if it has one for each group.
    pub fn alphas(&self) -> Option<Value> {
        self.alpha.filter(|_| self.groups.as_ref().is_some_and(|groups| groups.has_alphas))
    }

    /// The ends of groups in sfa, and P, the number of its rows, if it has whole tiles for each group.
    pub fn padded(&self) -> Option<(Value, &Dim)> {
        let groups = self.groups.as_ref()?;
        Some((groups.sfa_ends?, &groups.scales.as_ref()?[1]))
    }

    /// The columns of D: N, or half of it if the epilogue pairs columns.
    pub fn columns(&self) -> &Dim {
        self.pair.as_ref().map_or(&self.n, |pair| &pair.columns)
    }

    /// The ops that the kernel computes, in no particular order: the root, the halves of a pair, the steps, and the ops of
    /// outputs.
    pub fn ops(&self) -> impl Iterator<Item = Op> + '_ {
        let of_outputs = self.outputs.iter().filter_map(|output| match output.kind {
            OutputKind::Value { .. } => None,
            OutputKind::Quantized { op, .. } | OutputKind::Reduced { op, .. } => Some(op),
        });
        let halves = self.pair.iter().flat_map(|pair| [pair.even, pair.odd]);
        std::iter::once(self.root)
            .chain(halves)
            .chain(self.epilogue.iter().map(|step| step.op))
            .chain(of_outputs)
    }
}

/// One output of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelOutput {
    /// The value that the output is made from: the accumulator or a step.
    pub of: EpilogueRef,
    /// The form in which it is written.
    pub kind: OutputKind,
}

/// The form in which a kernel writes a computed value `[.., M, N]`.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputKind {
    /// The value, row-major.
    Value {
        /// The value.
        value: Value,
    },
    /// The value quantized in blocks along N, as by `block_quantize`.
    Quantized {
        /// The op.
        op: Op,
        /// `[.., M, N]`, packed.
        codes: Value,
        /// `[.., M, N / block]` in the blocked layout, with zeros as padding.
        scales: Value,
        /// The per-tensor scale of NVFP4: the position of a scalar in [`ScaledMmaPlan::operands`].
        global: Option<usize>,
        /// Element type of the codes.
        element: ElementType,
        /// Elements per scale.
        block: u32,
        /// The rounding of an MX scale; absent exactly for NVFP4.
        scale_rounding: Option<ScaleRounding>,
        /// The formula of NVFP4; the default for MX.
        formula: Nvfp4Formula,
    },
    /// The elements, reduced.
    Reduced {
        /// The op.
        op: Op,
        /// The result.
        value: Value,
        /// The reduction.
        kind: ReduceKind,
        /// The shape of the result: a scalar, a row (one element per column of D), or a column (one per row
        /// of D).
        shape: OperandShape,
    },
}

/// One step of an epilogue, and the op that it computes.
#[derive(Clone, Debug, PartialEq)]
pub struct EpilogueStep {
    /// The op.
    pub op: Op,
    /// The function.
    pub kind: EpilogueKind,
    /// The operands, in the order of the op's.
    pub operands: Vec<EpilogueRef>,
    /// The element type to which the step rounds; `i1` exactly for comparisons.
    pub element: ElementType,
}

/// The function of an epilogue step.
#[derive(Clone, Debug, PartialEq)]
pub enum EpilogueKind {
    /// The same number for every element.
    Constant {
        /// The bits of the number as an f32, which holds it exactly.
        bits: u32,
    },
    /// A function of one operand.
    Unary(UnaryKind),
    /// A function of two operands.
    Binary(BinaryKind),
    /// min(max(x, min), max), NaN propagates.
    Clamp {
        /// Lower bound.
        min: f64,
        /// Upper bound.
        max: f64,
    },
    /// A comparison.
    Compare(Predicate),
    /// The second operand where the first is true, otherwise the third.
    Select,
    /// Rounds to the element type, nothing else.
    Convert,
}

/// An operand of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueRef {
    /// The result of the `scaled_mma`, or an even column of it if the epilogue pairs columns.
    Accumulator,
    /// The odd column of the result that follows the even one, if the epilogue pairs columns.
    Odd,
    /// The result of an earlier step, by its position.
    Step(usize),
    /// One of [`ScaledMmaPlan::operands`], by its position.
    Operand(usize),
}

/// An external value that an epilogue reads, broadcast to D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpilogueOperand {
    /// The value.
    pub value: Value,
    /// Its broadcast to D.
    pub shape: OperandShape,
    /// Its element type.
    pub element: ElementType,
}

/// A condition on the extents or pointers of a call, checked before launch. [`crate::violated`] checks
/// extents; the caller checks pointers.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// The extent is a multiple of a number.
    Multiple {
        /// The extent's name: `K` or `N`.
        name: &'static str,
        /// The extent.
        dim: Dim,
        /// The divisor.
        of: u64,
        /// The reason code if the extent is not a multiple.
        code: ReasonCode,
    },
    /// The extent does not exceed a limit.
    AtMost {
        /// The extent's name: `L`, `M`, `N`, `K`, or `L*M` for a flattened batch.
        name: &'static str,
        /// The extent.
        dim: Dim,
        /// The largest extent.
        limit: u64,
    },
    /// The blocked scales of an operand or a quantized output do not exceed a number of bytes.
    ScaleBytes {
        /// `A`, `B` or `D`.
        name: &'static str,
        /// The number of scale matrices.
        matrices: Dim,
        /// The rows of one matrix.
        rows: Dim,
        /// The columns of one matrix, in elements: K, or N for an output.
        k: Dim,
        /// The number of elements per scale.
        block: u32,
        /// The maximum number of bytes, including padding and the batch.
        limit: u64,
    },
    /// The tiles of D over all matrices, or of the result of a `scatter_add`, fit in one launch.
    Tiles {
        /// The number of matrices in one launch: L, or 1 for a flattened batch.
        matrices: Dim,
        /// The rows of one matrix: M, or L*M for a flattened batch.
        rows: Dim,
        /// The columns of one matrix: N.
        columns: Dim,
        /// The rows and columns of a tile.
        tile: [u64; 2],
        /// The maximum number of tiles.
        limit: u64,
    },
    /// The extent is at least one.
    NotEmpty {
        /// The extent's name: `K` or `N`, or `M` or `L` if an empty reduction would not be zero.
        name: &'static str,
        /// The extent.
        dim: Dim,
    },
    /// The base pointer of a value is aligned.
    PointerAlignment {
        /// The operand or output.
        value: Value,
        /// The alignment in bytes.
        bytes: u32,
    },
}

/// The segment of one op, and the reason why the op is not in the kernel tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The position of its segment.
    pub segment: usize,
    /// The reason why the op is in no segment of the kernel tier; `None` if it is in one. An op of the device
    /// tier has a reason.
    pub rejection: Option<Rejection>,
}
