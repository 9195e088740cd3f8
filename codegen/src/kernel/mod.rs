//! From a plan to the source of its kernel.
//!
//! [`specify`] reduces a plan to everything its kernel depends on, without names of the program or extents:
//! equal specifications are equal kernels. [`emit`] fills the template. Both are pure functions.

mod body;
mod cutlass;
mod emit;
mod emulation;
mod functions;
mod hopper;
mod outputs;
mod template;
#[cfg(test)]
mod tests;

use fourfold_ir::{
    BinaryKind, ElementType, OperandShape, Predicate, Program, ReduceKind, ScaleRounding, UnaryKind, scalar,
};
use fourfold_scheduler::{
    EpilogueKind, EpilogueRef, EpilogueStep, KernelOutput, KernelPlan, OutputKind as PlannedOutput,
};

pub use self::emit::{ABI_VERSION, HEAD, HOPPER_HEAD, KernelSource, MAX_OPERANDS, MAX_OUTPUTS, emit};
pub use self::emulation::{EMULATED_TARGETS, EMULATOR, emulate};
pub use self::functions::device_functions;
pub use self::hopper::{KERNEL as HOPPER_KERNEL, row_output_functions};
pub use self::outputs::{output_functions, quantization_functions, scale_functions};
pub use self::template::{Templated, emit_template};
use crate::configuration::{Configuration, CutlassVersion};
use crate::defaults::{self, Extents};
use crate::design::Design;
use crate::dispatch::Tables;
use crate::grid;
use crate::hopper as tiles;
use crate::rules;
use crate::targets::Target;

/// Everything that a kernel depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSpec {
    /// What it is compiled for.
    pub target: &'static Target,
    /// Tiles, clusters, schedules, stages.
    pub configuration: Design,
    /// What follows the accumulator.
    pub epilogue: Epilogue,
}

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
    fn row_bits(&self) -> u64 {
        let rows = self.operands.iter().filter(|operand| operand.shape == OperandShape::Row);
        rows.map(|row| row.element.storage_bits() as u64).sum()
    }

    /// A readable name: `alpha_add_gelu_bf16`.
    pub fn name(&self) -> String {
        /// A longer epilogue is named by its length.
        const NAMED: usize = 6;
        let mut parts = Vec::new();
        parts.extend(self.alpha.then(|| "alpha".to_owned()));
        parts.extend(self.c.map(|c| format!("c{c}")));
        parts.extend(self.beta.then(|| "beta".to_owned()));
        if self.accumulator != ElementType::F32 && !self.steps.is_empty() {
            parts.push(self.accumulator.to_string());
        }
        let names: Vec<&str> = self.steps.iter().filter_map(|step| step.kind.name()).collect();
        parts.extend(names.iter().take(NAMED).map(|name| (*name).to_owned()));
        if NAMED < names.len() {
            parts.push(format!("{}more", names.len() - NAMED));
        }
        parts.extend(self.outputs.iter().map(|output| outputs::name(self, output)));
        parts.join("_")
    }
}

impl StepKind {
    /// `None` for what computes nothing.
    fn name(self) -> Option<&'static str> {
        match self {
            StepKind::Constant(_) | StepKind::Convert => None,
            StepKind::Unary(kind) => Some(kind.name()),
            StepKind::Binary(kind) => Some(kind.name()),
            StepKind::Clamp { .. } => Some("clamp"),
            StepKind::Compare(predicate) => Some(predicate.name()),
            StepKind::Select => Some("select"),
        }
    }
}

impl KernelSpec {
    /// A readable name: `nvfp4_scaled_mm_sm100_128x128x256_1sm_c1x1_alpha_add_gelu_bf16`. Not unique; see
    /// [`KernelSource::hash`].
    pub fn name(&self) -> String {
        let format = self.configuration.block_format().map_or(String::new(), |format| format!("{format}_"));
        format!("{format}scaled_mm_{}_{}", self.configuration.name(), self.epilogue.name())
    }

    /// What the kernel reads and writes: `nvfp4 alpha c=bf16 beta row=f16 matrix=bf16 d=bf16`. What follows the format
    /// is there only if the kernel has it: the epilogue's operands in their order, and the outputs in theirs. These are
    /// values, `d=bf16`; codes and scales, `q=f4E2M1FN:f8E4M3FN/16*x2` with the position of the tensor's own scale among
    /// the operands, or `q=f8E5M2:f8E8M0FNU/32:floor`; and reductions, `amax=row`; each followed by `@acc` or `@s3`
    /// where it is not made of what is computed last. A library says it of itself, and whoever calls it compares it
    /// with the plan: a kernel of another signature would read or write memory that is not meant for it.
    pub fn signature(&self) -> String {
        let epilogue = &self.epilogue;
        let mut parts = vec![self.configuration.block_format().map_or("mixed".to_owned(), |f| f.to_string())];
        parts.extend(epilogue.alpha.then(|| "alpha".to_owned()));
        parts.extend(epilogue.c.map(|c| format!("c={c}")));
        parts.extend(epilogue.beta.then(|| "beta".to_owned()));
        parts
            .extend(epilogue.operands.iter().map(|operand| format!("{}={}", operand.shape, operand.element)));
        parts.extend(epilogue.outputs.iter().map(|output| outputs::signature(epilogue, output)));
        parts.join(" ")
    }
}

/// The specification of a plan's kernel with the configuration that a table has for its extents, and why it was chosen.
/// Of `tables` the one for the target and the format counts; without one, and for what its kernel cannot do, the default.
/// `None` for a target or a format without kernels, which no plan is made for.
pub fn specify(
    program: &Program,
    plan: &KernelPlan,
    target: &'static Target,
    cutlass: CutlassVersion,
    tables: Option<&Tables>,
) -> Option<(KernelSpec, String)> {
    // One B for every matrix of A flattens the batch into M.
    let rows = if plan.b_batched { plan.m.as_fixed() } else { plan.m.times(&plan.batch)?.as_fixed() };
    let matrices = if plan.b_batched { plan.batch.as_fixed() } else { Some(1) };
    let extents = Extents { l: matrices, m: rows, n: plan.n.as_fixed(), k: plan.k.as_fixed() };
    let epilogue = epilogue(program, plan);
    let table = tables.and_then(|tables| tables.find(target.name, plan.format));
    if target.name == tiles::TARGET {
        let only_values = hopper::only_values(&epilogue);
        let (configuration, why) = match table {
            Some(table) => tiles::choose_by(table, plan.format, extents, only_values, cutlass)?,
            None => tiles::choose(plan.format, extents, only_values)?,
        };
        return Some((KernelSpec { target, configuration: configuration.into(), epilogue }, why));
    }
    let family = defaults::family(target.name)?;
    let vectors = |tile: [u32; 3]| epilogue.row_bits() / 8 * u64::from(tile[1]);
    let mut refused = None;
    if let Some(table) = table {
        let pick = table.pick(extents, cutlass);
        let named = pick.kernel.configuration(family, plan.format).ok_or("it is of another kind".to_owned());
        let held = named.map(|it| fit(it, &epilogue)).and_then(|configuration| {
            rules::check(&configuration, cutlass, target.name).map_err(|broken| rules::texts(&broken))?;
            grid::launches_all(&configuration, [matrices, extents.m, extents.n], target.most_extents())?;
            match defaults::has_room(&configuration, vectors(configuration.tile), cutlass) {
                true => Ok(configuration),
                false => Err("the epilogue's vectors leave no room for its stages".to_owned()),
            }
        });
        match held {
            Ok(configuration) => {
                return Some((
                    KernelSpec { target, configuration: configuration.into(), epilogue },
                    pick.why,
                ));
            }
            Err(why) => refused = Some(format!("the table's {} cannot be it: {why}", pick.kernel)),
        }
    }
    let (configuration, why) = defaults::choose(family, plan.format, cutlass, extents)?;
    let (configuration, why) = match fit(configuration, &epilogue) {
        fitted if rules::invalid(&fitted, cutlass, target.name).is_empty() => (fitted, why),
        // The more operands an epilogue reads, the fewer columns it handles at a time, and the more tensor memory accumulators
        // take that overlap in all but these.
        fitted => {
            let unknown = Extents { l: None, m: None, n: None, k: None };
            let (usual, _) = defaults::choose(family, plan.format, cutlass, unknown)?;
            let why =
                format!("the epilogue leaves {} no room in tensor memory, so the usual tile", fitted.name());
            (fit(usual, &epilogue), why)
        }
    };
    let room = vectors(configuration.tile);
    let (configuration, shorter) = defaults::with_room(configuration, room, cutlass);
    let why = shorter.unwrap_or(why);
    let why = refused.map_or(why.clone(), |refused| format!("{why}; {refused}"));
    Some((KernelSpec { target, configuration: configuration.into(), epilogue }, why))
}

/// A configuration with what an epilogue asks of it.
fn fit(configuration: Configuration, epilogue: &Epilogue) -> Configuration {
    configuration
        .with_elements(epilogue.source(), epilogue.destination())
        .for_operands(epilogue.fragments())
        .for_blocks(epilogue.longest_block())
}

fn epilogue(program: &Program, plan: &KernelPlan) -> Epilogue {
    let element = |value| program.module().ty(value).element;
    let operands =
        plan.operands.iter().map(|operand| Operand { shape: operand.shape, element: operand.element });
    Epilogue {
        alpha: plan.alpha.is_some(),
        c: plan.c.map(element),
        beta: plan.beta.is_some(),
        accumulator: plan.accumulator,
        steps: plan.epilogue.iter().map(step).collect(),
        operands: operands.collect(),
        outputs: plan.outputs.iter().map(output).collect(),
    }
}

fn output(output: &KernelOutput) -> Output {
    let kind = match output.kind {
        PlannedOutput::Value { .. } => OutputKind::Value,
        PlannedOutput::Quantized { global, element, block, scale_rounding, .. } => {
            OutputKind::Quantized { global, element, block, scale_rounding }
        }
        PlannedOutput::Reduced { kind, shape, .. } => OutputKind::Reduced { kind, shape },
    };
    Output { of: output.of, kind }
}

fn step(step: &EpilogueStep) -> Step {
    let bound = |bound: f64| (scalar::round_to(step.element, bound) as f32).to_bits();
    let kind = match step.kind {
        EpilogueKind::Constant { bits } => StepKind::Constant(bits),
        EpilogueKind::Unary(kind) => StepKind::Unary(kind),
        EpilogueKind::Binary(kind) => StepKind::Binary(kind),
        EpilogueKind::Clamp { min, max } => StepKind::Clamp { lower: bound(min), upper: bound(max) },
        EpilogueKind::Compare(predicate) => StepKind::Compare(predicate),
        EpilogueKind::Select => StepKind::Select,
        EpilogueKind::Convert => StepKind::Convert,
    };
    Step { kind, operands: step.operands.clone(), element: step.element }
}
