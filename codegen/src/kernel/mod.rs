//! From a plan to the source of its kernel.
//!
//! [`specify`] reduces a plan to everything its kernel depends on, without names of the program or extents:
//! equal specifications are equal kernels. [`emit`] fills the template. Both are pure functions.

mod emit;
mod emulation;
mod functions;
#[cfg(test)]
mod tests;

use fourfold_ir::{ElementType, Program, UnaryKind};
use fourfold_scheduler::{EpilogueKind, KernelPlan};

pub use self::emit::{ABI_VERSION, KernelSource, emit};
pub use self::emulation::{EMULATED_TARGETS, EMULATOR, emulate};
pub use self::functions::device_functions;
use crate::configuration::{Configuration, CutlassVersion};
use crate::defaults::{self, Extents};
use crate::targets::Target;

/// Everything that a kernel depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSpec {
    /// What it is compiled for.
    pub target: &'static Target,
    /// Tile, cluster, schedules, stages.
    pub configuration: Configuration,
    /// What follows the accumulator.
    pub epilogue: Epilogue,
}

/// What follows the accumulator: alpha · acc, then fma(beta, C, ·), then the roundings and steps in order.
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
    /// What follows it.
    pub steps: Vec<Step>,
}

/// One step of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// What it computes.
    pub kind: StepKind,
    /// What it rounds to.
    pub element: ElementType,
}

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Adds a vector of N elements of this type to every row.
    ColumnBias(ElementType),
    /// Applies a function.
    Activation(UnaryKind),
    /// Only rounds.
    Convert,
}

impl Epilogue {
    /// The element type of D.
    pub fn output(&self) -> ElementType {
        self.steps.last().map_or(self.accumulator, |step| step.element)
    }

    /// The element type of the bias, where there is one.
    pub fn bias(&self) -> Option<ElementType> {
        self.steps.iter().find_map(|step| match step.kind {
            StepKind::ColumnBias(element) => Some(element),
            _ => None,
        })
    }

    /// A readable name: `alpha_bias_gelu_bf16`.
    pub fn name(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.alpha.then(|| "alpha".to_owned()));
        parts.extend(self.c.map(|c| format!("c{c}")));
        parts.extend(self.beta.then(|| "beta".to_owned()));
        if self.accumulator != ElementType::F32 && !self.steps.is_empty() {
            parts.push(self.accumulator.to_string());
        }
        for step in &self.steps {
            match step.kind {
                StepKind::ColumnBias(element) => parts.push(format!("bias{element}")),
                StepKind::Activation(kind) => parts.push(kind.name().to_owned()),
                StepKind::Convert => {}
            }
        }
        parts.push(self.output().to_string());
        parts.join("_")
    }
}

impl KernelSpec {
    /// A readable name: `nvfp4_scaled_mm_sm100_128x128x256_1sm_c1x1_alpha_bias_gelu_bf16`. Not unique; see
    /// [`KernelSource::hash`].
    pub fn name(&self) -> String {
        let format = self.configuration.block_format().map_or(String::new(), |format| format!("{format}_"));
        format!("{format}scaled_mm_{}_{}", self.configuration.name(), self.epilogue.name())
    }

    /// What the kernel reads and writes: `nvfp4 alpha c=bf16 beta bias=f16 d=bf16`, where what follows the format and
    /// comes before `d` is there only if the kernel has it. A library says it of itself, and whoever calls it compares
    /// it with the plan: a kernel of another signature would read or write memory that is not meant for it.
    pub fn signature(&self) -> String {
        let epilogue = &self.epilogue;
        let mut parts = vec![self.configuration.block_format().map_or("mixed".to_owned(), |f| f.to_string())];
        parts.extend(epilogue.alpha.then(|| "alpha".to_owned()));
        parts.extend(epilogue.c.map(|c| format!("c={c}")));
        parts.extend(epilogue.beta.then(|| "beta".to_owned()));
        parts.extend(epilogue.bias().map(|bias| format!("bias={bias}")));
        parts.push(format!("d={}", epilogue.output()));
        parts.join(" ")
    }
}

/// The specification of a plan's kernel with the configuration that the default rule chooses for its extents, and
/// why it was chosen. `None` for a target or a format without kernels, which no plan is made for.
pub fn specify(
    program: &Program,
    plan: &KernelPlan,
    target: &'static Target,
    cutlass: CutlassVersion,
) -> Option<(KernelSpec, String)> {
    let family = defaults::family(target.name)?;
    // One B for every matrix of A flattens the batch into M.
    let rows = if plan.b_batched { plan.m.as_fixed() } else { plan.m.times(&plan.batch)?.as_fixed() };
    let extents = Extents { m: rows, n: plan.n.as_fixed(), k: plan.k.as_fixed() };
    let (configuration, why) = defaults::choose(family, plan.format, cutlass, extents)?;
    let epilogue = epilogue(program, plan);
    let configuration = configuration.with_elements(epilogue.c, epilogue.output());
    Some((KernelSpec { target, configuration, epilogue }, why))
}

fn epilogue(program: &Program, plan: &KernelPlan) -> Epilogue {
    let element = |value| program.module().ty(value).element;
    let steps = plan
        .epilogue
        .iter()
        .map(|step| Step {
            kind: match &step.kind {
                EpilogueKind::ColumnBias(value) => StepKind::ColumnBias(element(*value)),
                EpilogueKind::Activation(kind) => StepKind::Activation(*kind),
                EpilogueKind::Convert => StepKind::Convert,
            },
            element: step.element,
        })
        .collect();
    Epilogue {
        alpha: plan.alpha.is_some(),
        c: plan.c.map(element),
        beta: plan.beta.is_some(),
        accumulator: plan.accumulator,
        steps,
    }
}
