//! Types of kernels that can be swept.
//!
//! A type is a folder in this module and an entry in [`GENERATORS`]. It defines:
//! - its parameters, and the rules that reject invalid combinations before a compiler runs;
//! - the source, from `codegen`'s templates or its own;
//! - the data of a problem: the arguments of the kernel's C interface, and the expected outputs.

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

/// Looks up a type by name.
pub fn generator(name: &str) -> Option<&'static dyn Generator> {
    GENERATORS.iter().copied().find(|generator| generator.name() == name)
}

/// A type of kernel.
pub trait Generator: fmt::Debug + Sync {
    /// The name in manifests and records, such as `scaled_mma.sm100`.
    fn name(&self) -> &'static str;

    /// A one-line description of the computation.
    fn about(&self) -> &'static str;

    /// The supported targets.
    fn targets(&self) -> &'static [&'static str];

    /// The parameters, in display order.
    fn parameters(&self) -> &'static [Parameter];

    /// Configures a kernel from parameter values. Missing parameters have their defaults.
    ///
    /// # Errors
    /// Returns every rule that the combination breaks.
    fn configure(
        &self,
        parameters: &Parameters,
        target: &'static Target,
        cutlass: CutlassVersion,
    ) -> Result<Box<dyn Configured>, Vec<Broken>>;

    /// Configures a kernel that breaks rules, to confirm that the compiler rejects it. `None` if its values cannot be
    /// parsed or the type does not support this.
    fn unchecked(&self, _: &Parameters, _: &'static Target) -> Option<Box<dyn Configured>> {
        None
    }
}

/// A parameter of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name in manifests and records.
    pub name: &'static str,
    /// The meaning, with its unit.
    pub about: &'static str,
    /// The allowed values, in words or by example.
    pub values: &'static str,
    /// The default value.
    pub default: &'static str,
}

/// A rule that a combination breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The rule's number or name.
    pub rule: String,
    /// The requirement.
    pub demands: String,
    /// The value found.
    pub found: String,
    /// The compiler error or malfunction that the rule prevents.
    pub prevents: String,
    /// True if the compiler rejects kernels that break the rule.
    pub refused: bool,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {}; found {}", self.rule, self.demands, self.found)
    }
}

/// A configured kernel.
pub trait Configured: fmt::Debug + Send + Sync {
    /// A readable name, not unique.
    fn name(&self) -> String;

    /// The generated source.
    fn source(&self) -> KernelSource;

    /// Checks that the kernel supports a problem.
    ///
    /// # Errors
    /// The violated constraint, as a message without trailing period.
    fn takes(&self, problem: &Problem) -> Result<(), String>;

    /// The inputs and expected outputs of a call. The data is seeded and has the same bits on every machine. Kernels
    /// with the same [`workload_key`](Self::workload_key) have the same workload.
    ///
    /// # Errors
    /// If the kernel does not support the problem or the reference cannot be computed, as a message without trailing
    /// period.
    fn workload(&self, problem: &Problem, seed: u64) -> Result<Workload, String>;

    /// The properties that determine a workload, besides problem and seed: formats and output types.
    fn workload_key(&self) -> String;

    /// The minimal bytes and operations of a problem, the same for every kernel.
    fn work(&self, problem: &Problem) -> Work;

    /// The kernel's entry in a dispatch table; `None` if tables cannot express it.
    fn entry(&self) -> Option<dispatch::Kernel> {
        None
    }

    /// Recommendations that the kernel does not follow. It works nevertheless.
    fn advice(&self, _: CutlassVersion) -> Vec<Broken> {
        Vec::new()
    }
}

/// The minimal cost of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes read and written, each once.
    pub bytes: u64,
    /// Arithmetic operations. A multiply-add is two.
    pub flops: u64,
}

/// One call: extents, inputs and expected outputs.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The extents in the kernel's order.
    pub extents: kernel::Extents,
    /// The bytes that it reads in each role.
    pub inputs: Vec<(String, Vec<u8>)>,
    /// The expected outputs, in the order of the interface: all bytes, padding included.
    pub expected: Vec<Vec<u8>>,
    /// The kind of data and of comparison.
    pub rule: &'static str,
}
