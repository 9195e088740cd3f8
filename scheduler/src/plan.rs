//! The types of a partition: segments in the order in which they run, kernel plans, and a decision for every op.

mod interface;

use fourfold_ir::{
    BinaryKind, BlockFormat, Dim, ElementType, Op, OperandShape, Predicate, QuantizedFormat, ReduceKind,
    ScaleLayout, ScaleRounding, UnaryKind, Value,
};

use crate::reason::{ReasonCode, Rejection};

/// A program cut into segments.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The target that it was made for.
    pub target: String,
    /// In an order in which they can run: a segment uses inputs and results of earlier segments only.
    pub segments: Vec<Segment>,
    /// One for each op, by op index.
    pub decisions: Vec<Decision>,
}

impl Partition {
    /// The segments of the kernel tier with their positions: one `scaled_mma` each.
    pub fn kernels(&self) -> impl Iterator<Item = (usize, &ScaledMmaPlan)> {
        self.segments.iter().enumerate().filter_map(|(index, segment)| Some((index, segment.kernel()?)))
    }

    /// The segments that run as generated kernels, of the kernel and the device tier, with their positions.
    pub fn plans(&self) -> impl Iterator<Item = (usize, &Plan)> {
        self.segments.iter().enumerate().filter_map(|(index, segment)| Some((index, segment.plan()?)))
    }
}

/// Ops that run together.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// In program order.
    pub ops: Vec<Op>,
    /// Values that it uses and does not define, ascending.
    pub inputs: Vec<Value>,
    /// Values that it defines and that a later segment or the program's caller uses, ascending. Empty for a
    /// segment whose results nobody uses.
    pub outputs: Vec<Value>,
    /// How it runs.
    pub kind: SegmentKind,
}

impl Segment {
    /// The plan of a segment that runs as a generated kernel.
    pub fn plan(&self) -> Option<&Plan> {
        match &self.kind {
            SegmentKind::Kernel(plan) => Some(plan),
            SegmentKind::Fallback => None,
        }
    }

    /// The plan of a segment of the kernel tier.
    pub fn kernel(&self) -> Option<&ScaledMmaPlan> {
        self.plan().and_then(Plan::scaled_mma)
    }

    /// The tier that the segment runs on where nothing prevents it.
    pub fn tier(&self) -> Tier {
        self.plan().map_or(Tier::Fallback, Plan::tier)
    }
}

/// How a segment runs.
#[derive(Clone, Debug, PartialEq)]
pub enum SegmentKind {
    /// As one generated kernel, or on the fallback when that is not possible at run time.
    Kernel(Box<Plan>),
    /// On the fallback, op by op.
    Fallback,
}

/// The plan of one generated kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// A `scaled_mma` with its epilogue.
    ScaledMma(ScaledMmaPlan),
    /// A `block_quantize` by itself.
    BlockQuantize(BlockQuantizePlan),
}

/// The tier of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// A generated kernel rooted at one `scaled_mma`.
    Kernel,
    /// Everything else that stays on the GPU.
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

/// The values of one call, each under its role in the kernel's C interface.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Roles {
    /// The tensors that the kernel reads. A value that it reads in two roles is there twice.
    pub operands: Vec<(String, Value)>,
    /// The f32 numbers that it reads.
    pub scalars: Vec<(String, Value)>,
    /// The tensors that it writes, `y0` first, codes before their scales.
    pub outputs: Vec<(String, Value)>,
}

/// One fused kernel: its outputs are what the steps of the epilogue make of alpha · A·Bᵀ + beta · C, with each rounding
/// that the program states. D is what the steps compute, `[.., M, N]`.
///
/// When `b_batched` is false and the batch is not 1, the kernel *flattens*: it multiplies the one matrix of
/// L·M rows that A, its scales, C and D are in memory, with the one B. The plan still states L and M apart, M is
/// then a multiple of 128, and L·M is what must not exceed the largest extent.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledMmaPlan {
    /// The `scaled_mma`.
    pub root: Op,
    /// The format of operands and scales.
    pub format: BlockFormat,
    /// L, the number of matrices.
    pub batch: Dim,
    /// Rows of D; usually symbolic.
    pub m: Dim,
    /// Columns of D.
    pub n: Dim,
    /// The summed extent.
    pub k: Dim,
    /// Whether B and its scales are one per matrix of A; otherwise one for all.
    pub b_batched: bool,
    /// A, `[.., M, K]`.
    pub a: Value,
    /// Blocked scales of A.
    pub sfa: Value,
    /// B, `[.., N, K]`.
    pub b: Value,
    /// Blocked scales of B.
    pub sfb: Value,
    /// f32 scalar.
    pub alpha: Option<Value>,
    /// `[.., M, N]`.
    pub c: Option<Value>,
    /// f32 scalar.
    pub beta: Option<Value>,
    /// The element type that the `scaled_mma` itself rounds to, before the epilogue.
    pub accumulator: ElementType,
    /// What follows: each step after those that it uses.
    pub epilogue: Vec<EpilogueStep>,
    /// What the steps read besides, in the order of their first use, and then what the outputs read.
    pub operands: Vec<EpilogueOperand>,
    /// What it writes, in the order of the ops that define it, at least one: every value of it that is seen outside
    /// or that nobody uses, and the results of ops that end the epilogue.
    pub outputs: Vec<KernelOutput>,
    /// The names of the rewrites that turned the ops into this kernel, in order.
    pub proof: Vec<String>,
    /// What a call must meet for the kernel to be launched.
    pub constraints: Vec<Constraint>,
}

/// A `block_quantize` of values `[L, M, K]` as a kernel of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockQuantizePlan {
    /// The op.
    pub op: Op,
    /// The values, `[.., M, K]`.
    pub values: Value,
    /// The f32 scale of the tensor; present exactly for NVFP4.
    pub global: Option<Value>,
    /// The codes, `[.., M, K]`, packed.
    pub codes: Value,
    /// The scales, `[.., M, K / block]`.
    pub scales: Value,
    /// The element type of the values.
    pub input: ElementType,
    /// The element types of codes and scales, and the values that share a scale.
    pub format: QuantizedFormat,
    /// The rounding of MX scales; absent exactly for NVFP4.
    pub scale_rounding: Option<ScaleRounding>,
    /// The layout of the scales.
    pub layout: ScaleLayout,
    /// L, the product of the leading extents.
    pub batch: Dim,
    /// Rows of one matrix.
    pub m: Dim,
    /// Values of one row.
    pub k: Dim,
    /// The conditions on a call.
    pub constraints: Vec<Constraint>,
}

impl ScaledMmaPlan {
    /// The values that it writes, in the order in which a call gives their addresses: codes before their scales.
    pub fn written(&self) -> impl Iterator<Item = Value> + '_ {
        self.outputs
            .iter()
            .flat_map(|output| match output.kind {
                OutputKind::Value { value } | OutputKind::Reduced { value, .. } => [Some(value), None],
                OutputKind::Quantized { codes, scales, .. } => [Some(codes), Some(scales)],
            })
            .flatten()
    }

    /// The ops that it stands for, in no particular order: the root, the steps, and the ops of outputs.
    pub fn ops(&self) -> impl Iterator<Item = Op> + '_ {
        let of_outputs = self.outputs.iter().filter_map(|output| match output.kind {
            OutputKind::Value { .. } => None,
            OutputKind::Quantized { op, .. } | OutputKind::Reduced { op, .. } => Some(op),
        });
        std::iter::once(self.root).chain(self.epilogue.iter().map(|step| step.op)).chain(of_outputs)
    }
}

/// One result of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelOutput {
    /// What it is made of: the accumulator or a step.
    pub of: EpilogueRef,
    /// What is written.
    pub kind: OutputKind,
}

/// What a kernel writes of a value `[.., M, N]` that it has computed.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputKind {
    /// The value, row-major.
    Value {
        /// The value.
        value: Value,
    },
    /// Its blocks of the last axis, quantized: what `block_quantize` gives.
    Quantized {
        /// The op.
        op: Op,
        /// `[.., M, N]`, packed.
        codes: Value,
        /// `[.., M, N / block]` in the blocked layout, with zeros as padding.
        scales: Value,
        /// The per-tensor scale of NVFP4, one of the scalars among [`ScaledMmaPlan::operands`], by its position.
        global: Option<usize>,
        /// Element type of the codes.
        element: ElementType,
        /// Elements per scale.
        block: u32,
        /// How an MX scale is rounded; absent exactly for NVFP4.
        scale_rounding: Option<ScaleRounding>,
    },
    /// Its elements, combined.
    Reduced {
        /// The op.
        op: Op,
        /// The result.
        value: Value,
        /// How.
        kind: ReduceKind,
        /// What is left: a scalar, a row (one for each column of D), or a column (one for each row of D).
        shape: OperandShape,
    },
}

/// One step of an epilogue, and the op that it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct EpilogueStep {
    /// The op.
    pub op: Op,
    /// What it computes.
    pub kind: EpilogueKind,
    /// What of, in the order of the op's operands.
    pub operands: Vec<EpilogueRef>,
    /// The element type that it rounds to; `i1` exactly for comparisons.
    pub element: ElementType,
}

/// What a step of an epilogue computes.
#[derive(Clone, Debug, PartialEq)]
pub enum EpilogueKind {
    /// The same number for every element.
    Constant {
        /// As an f32, which holds it exactly.
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
    /// The second operand where the first holds, else the third.
    Select,
    /// Only rounds to the element type.
    Convert,
}

/// What a step is computed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueRef {
    /// The result of the `scaled_mma`.
    Accumulator,
    /// The result of an earlier step, by its position.
    Step(usize),
    /// One of [`ScaledMmaPlan::operands`], by its position.
    Operand(usize),
}

/// A value that an epilogue reads, broadcast to D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpilogueOperand {
    /// The value.
    pub value: Value,
    /// How it lies beside D.
    pub shape: OperandShape,
    /// Its element type.
    pub element: ElementType,
}

/// A condition on the run-time extents or pointers of a call, checked before launch: extents by
/// [`crate::violated`], pointers by whoever has them.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// The extent is a multiple.
    Multiple {
        /// What the extent is: `K` or `N`.
        name: &'static str,
        /// The extent.
        dim: Dim,
        /// What it must be a multiple of.
        of: u64,
        /// The reason given when it is not.
        code: ReasonCode,
    },
    /// The extent is at most this.
    AtMost {
        /// What the extent is: `L`, `M`, `N`, `K`, or `L*M` when the batch is flattened.
        name: &'static str,
        /// The extent.
        dim: Dim,
        /// The largest extent.
        limit: u64,
    },
    /// The blocked scales of an operand, or of a quantized output, take at most so many bytes.
    ScaleBytes {
        /// `A`, `B` or `D`.
        name: &'static str,
        /// How many matrices have scales of their own.
        matrices: Dim,
        /// Rows of one.
        rows: Dim,
        /// The extent of the rows: K, of an output N.
        k: Dim,
        /// Elements of it per scale.
        block: u32,
        /// The most bytes, padding and batch included.
        limit: u64,
    },
    /// D has at most so many tiles, in all matrices: what one launch takes.
    Tiles {
        /// The number of matrices that one launch computes: L, or 1 when the batch is flattened.
        matrices: Dim,
        /// Rows of one: M, or L*M.
        rows: Dim,
        /// Columns of one: N.
        columns: Dim,
        /// Rows and columns of a tile.
        tile: [u64; 2],
        /// The most tiles.
        limit: u64,
    },
    /// The extent is at least one.
    NotEmpty {
        /// What the extent is: `K` or `N`, and `M` or `L` where a reduction of nothing is not zero.
        name: &'static str,
        /// The extent.
        dim: Dim,
    },
    /// The base pointer of this value is a multiple of so many bytes.
    PointerAlignment {
        /// The operand or output.
        value: Value,
        /// In bytes.
        bytes: u32,
    },
}

/// The segment of one op, and the reason why no kernel of a `scaled_mma` computes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The position of its segment.
    pub segment: usize,
    /// Why the op is in no segment of the kernel tier; `None` when it is in one. An op of the device tier has a reason.
    pub rejection: Option<Rejection>,
}
