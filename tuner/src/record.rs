//! What a sweep found out, a JSON object a line. Lines are only ever appended: of two for the same kernel and problem both
//! count.

use fourfold_executor::service::has_passed;
use serde::{Deserialize, Serialize};

use crate::generator::Broken;
use crate::parameters::Parameters;
use crate::problem::Problem;

/// The version of the lines. A reader refuses others.
pub const SCHEMA: u32 = 1;

/// What became of a kernel, or of a kernel on a problem. States are never merged: what is missing is not slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A rule says that it cannot be right: no compiler was asked, unless to confirm that.
    Invalid,
    /// The compiler refused it.
    CompileError,
    /// It was not built or not run, for a reason that says nothing about it: time, memory or disk space ran out, or the
    /// compiler crashed. The next sweep tries it again.
    Deferred,
    /// It compiled to something without the instruction that it is made for.
    NoMma,
    /// It compiled and can be loaded. No problem was run.
    Built,
    /// It does not take this problem.
    Refused,
    /// It could not be launched, or did not end well.
    LaunchError,
    /// It wrote something else than it must.
    Wrong,
    /// It is right, and so much slower than another that it was not measured further.
    Slow,
    /// It is right, and was measured.
    Good,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What names the kernel: a hash of generator, target and parameters, of its source, of what compiles it and how. Of one
    /// that has no source, because it is invalid, of the former.
    pub kernel: String,
    /// The generator's name.
    pub generator: String,
    /// What it is built for.
    pub target: String,
    /// A readable name, not unique.
    pub name: String,
    /// All parameters with their values, defaults included.
    pub parameters: Parameters,
    /// What it was run on; absent where the line is about the kernel itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// What it computes and on which kind of data, where it was run: kernels of different work are not comparable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// What became of it.
    pub state: State,
    /// Why, for people; absent where all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The rules that it breaks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<Broken>,
    /// What the compiler made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// What was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
    /// How its results compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// When, in seconds since 1970.
    pub at: u64,
}

impl Record {
    /// [`Record::state`], or [`State::Deferred`] where an earlier version recorded as a compile error what says nothing about
    /// the kernel.
    pub fn known_state(&self) -> State {
        let failure = self.build.as_ref().and_then(|build| build.failure.as_deref());
        let words = self.message.as_deref().unwrap_or_default();
        match (self.state, failure) {
            (State::CompileError, Some(code)) if has_passed(code, words) => State::Deferred,
            (state, _) => state,
        }
    }
}

/// What the compiler made of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// The compiler's version.
    pub nvcc: String,
    /// The version of CUTLASS.
    pub cutlass: String,
    /// The name of the library in a cache.
    pub key: String,
    /// Whether it was compiled now, and not found in a cache.
    pub compiled: bool,
    /// How long the compiler took, whenever that was.
    pub seconds: f64,
    /// Registers of a thread.
    pub registers: Option<u32>,
    /// Bytes that threads write to memory because registers did not suffice.
    pub spill_stores: Option<u64>,
    /// Stages of the main loop.
    pub stages: Option<u32>,
    /// Bytes of shared memory of a block.
    pub shared_memory: Option<u64>,
    /// The code of the failure, where it failed.
    pub failure: Option<String>,
    /// What the compiler printed, where it failed.
    pub log: Option<String>,
}

/// What was measured, in microseconds a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Each replay of the recorded calls, divided by how many there are.
    pub samples_us: Vec<f64>,
    /// The median of the samples.
    pub median_us: f64,
    /// The least.
    pub min_us: f64,
    /// Nine in ten take no longer.
    pub p90_us: f64,
    /// Half of the distance between the first and the third quartile, over the median.
    pub dispersion: f64,
    /// Calls of a replay.
    pub calls: u32,
    /// Copies of all operands and outputs that calls take turns with.
    pub copies: u32,
    /// What is in the caches when a call begins: `rotating` where the copies exceed three times L2.
    pub l2: String,
    /// The clock of the SMs before and after, in MHz, where the driver says it.
    pub clocks_mhz: Option<[u32; 2]>,
}

/// How results compare with the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What the data is, and what equality is demanded.
    pub rule: String,
    /// Bytes compared, over all copies.
    pub bytes: u64,
    /// Bytes that differ.
    pub wrong: u64,
    /// The first that differs, where one does: output, byte, what was found and what was expected.
    pub first: Option<String>,
}

/// Where a kernel ran.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Machine {
    /// The GPU's name.
    pub gpu: String,
    /// Its multiprocessors.
    pub sms: u32,
    /// The driver's version.
    pub driver: String,
    /// Bytes of its L2 cache.
    pub l2_bytes: u64,
}
