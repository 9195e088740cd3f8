//! Types of kernels: what can be generated, and what must come of it.
//!
//! A type is a folder here and a line in [`GENERATORS`]. It brings its parameters, the rules that say before any compiler
//! runs which combinations are valid, its source (from `codegen`'s templates or its own), and the binding of a problem to
//! the C interface that all kernels have, with the reference that its results are held against.

pub mod block_quantize;
mod scaled_mma;

use std::fmt;

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::cutlass::configuration::Family;
use fourfold_codegen::{KernelSource, Target, dispatch};
use fourfold_executor::kernel;
use serde::{Deserialize, Serialize};

use self::scaled_mma::{Cutlass, Hopper};
use crate::parameters::Parameters;
use crate::problem::Problem;

/// Every type of kernel, by name.
pub static GENERATORS: &[&dyn Generator] = &[
    &Cutlass { name: "scaled_mma.sm100", family: Family::Sm100, targets: &["sm_100a", "sm_103a"] },
    &Cutlass { name: "scaled_mma.sm120", family: Family::Sm120, targets: &["sm_120a", "sm_121a"] },
    &Hopper,
    &block_quantize::BlockQuantize,
];

/// The type of this name.
pub fn generator(name: &str) -> Option<&'static dyn Generator> {
    GENERATORS.iter().copied().find(|generator| generator.name() == name)
}

/// A type of kernel.
pub trait Generator: fmt::Debug + Sync {
    /// Its name in manifests and records: `scaled_mma.sm100`.
    fn name(&self) -> &'static str;

    /// What its kernels compute, in a sentence.
    fn about(&self) -> &'static str;

    /// The targets that its kernels are built for.
    fn targets(&self) -> &'static [&'static str];

    /// Its parameters, in the order in which people read them.
    fn parameters(&self) -> &'static [Parameter];

    /// The kernel of a combination of values; a parameter without one has its default.
    ///
    /// # Errors
    /// Every rule that the combination breaks, so that no compiler need be asked.
    fn configure(
        &self,
        parameters: &Parameters,
        target: &'static Target,
        cutlass: CutlassVersion,
    ) -> Result<Box<dyn Configured>, Vec<Broken>>;

    /// The kernel of a combination that breaks rules, to see what becomes of it; `None` where its values cannot be read,
    /// or the type has no such kernels.
    fn unchecked(&self, _: &Parameters, _: &'static Target) -> Option<Box<dyn Configured>> {
        None
    }
}

/// A parameter of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in manifests and records.
    pub name: &'static str,
    /// What it is, with its unit.
    pub about: &'static str,
    /// What it may be, in words or by example.
    pub values: &'static str,
    /// What it is where a manifest does not say.
    pub default: &'static str,
}

/// A rule that a combination breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The rule's number or name.
    pub rule: String,
    /// What it demands.
    pub demands: String,
    /// What was found instead.
    pub found: String,
    /// What the compiler says, or what goes wrong, without it.
    pub prevents: String,
    /// Whether the compiler refuses what breaks it; else it says nothing, or is not asked.
    pub refused: bool,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {}; found {}", self.rule, self.demands, self.found)
    }
}

/// A kernel that breaks no rule.
pub trait Configured: fmt::Debug + Send + Sync {
    /// A readable name, not unique.
    fn name(&self) -> String;

    /// Its source.
    fn source(&self) -> KernelSource;

    /// Whether it computes a problem.
    ///
    /// # Errors
    /// Why it refuses, as a sentence without its end.
    fn takes(&self, problem: &Problem) -> Result<(), String>;

    /// What a call for a problem is given and what must come out, from seeded data with the same bits on every machine.
    /// Two kernels that agree in [`workload_key`](Self::workload_key) have the same.
    ///
    /// # Errors
    /// When the reference cannot be computed, as a sentence without its end.
    fn workload(&self, problem: &Problem, seed: u64) -> Result<Workload, String>;

    /// What a workload depends on besides problem and seed: formats, types of outputs.
    fn workload_key(&self) -> String;

    /// Bytes that must move and operations that must be done, whatever the kernel.
    fn work(&self, problem: &Problem) -> Work;

    /// What a dispatch table calls it; `None` where tables have no word for it.
    fn entry(&self) -> Option<dispatch::Kernel> {
        None
    }

    /// What is not as it is best done: it works all the same.
    fn advice(&self, _: CutlassVersion) -> Vec<Broken> {
        Vec::new()
    }
}

/// The least that a problem costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes read and written, each once.
    pub bytes: u64,
    /// Operations: a multiplication and an addition count two.
    pub flops: u64,
}

/// One call: its extents, what it reads, and what it must write.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The extents in the kernel's order.
    pub extents: kernel::Extents,
    /// The bytes that it reads in each role.
    pub inputs: Vec<(String, Vec<u8>)>,
    /// What it must write, in the order of the interface: all bytes, padding included.
    pub expected: Vec<Vec<u8>>,
    /// What the data is, and why equality of bytes may be demanded.
    pub rule: &'static str,
}
