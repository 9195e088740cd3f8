//! The records of a sweep, one JSON object per line. Lines are only appended; several records of the same kernel and
//! problem are all used.

use fourfold_executor::service::has_passed;
use serde::{Deserialize, Serialize};

use crate::generator::Broken;
use crate::parameters::Parameters;
use crate::problem::Problem;

/// The record version. Readers reject other versions.
pub const SCHEMA: u32 = 1;

/// The outcome of a kernel, or of a kernel on a problem. Each failure has its own state, so that a missing time is
/// never taken for a slow one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The combination breaks a validity rule. It was not compiled, except to confirm the rule.
    Invalid,
    /// The compiler rejected the kernel.
    CompileError,
    /// The kernel was not built or not run for an unrelated reason: time, memory or disk space ran out, or the compiler
    /// crashed. The next sweep tries it again.
    Deferred,
    /// The compiled kernel lacks its MMA instruction.
    NoMma,
    /// The kernel compiled and loads. It was not run.
    Built,
    /// The kernel does not support the problem.
    Refused,
    /// The launch or the execution failed.
    LaunchError,
    /// A result is wrong.
    Wrong,
    /// The kernel is correct, but so much slower than the best one that it was not timed.
    Slow,
    /// The kernel is correct and was timed.
    Good,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The version, [`SCHEMA`].
    pub schema: u32,
    /// The kernel's id: a hash of generator, target, parameters, source, compiler and options. An invalid kernel has no
    /// source; its id hashes the generator, target, parameters and CUTLASS version.
    pub kernel: String,
    /// The generator's name.
    pub generator: String,
    /// The target.
    pub target: String,
    /// A readable name, not unique.
    pub name: String,
    /// All parameters with their values, defaults included.
    pub parameters: Parameters,
    /// The problem; absent if the record is about building the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// The computation and the kind of data, if the kernel was run. Different workloads are not comparable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The outcome.
    pub state: State,
    /// The reason, as text; absent on success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The broken rules; for a valid kernel, the recommendations that it does not follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<Broken>,
    /// The build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// The times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
    /// The comparison of the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// The machine that ran the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The time of the record, in seconds since 1970.
    pub at: u64,
}

impl Record {
    /// Returns [`Record::state`], or [`State::Deferred`] for a compile error that is unrelated to the kernel. Earlier
    /// versions recorded such failures as compile errors.
    pub fn known_state(&self) -> State {
        let failure = self.build.as_ref().and_then(|build| build.failure.as_deref());
        let words = self.message.as_deref().unwrap_or_default();
        match (self.state, failure) {
            (State::CompileError, Some(code)) if has_passed(code, words) => State::Deferred,
            (state, _) => state,
        }
    }
}

/// The build of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// The compiler's version.
    pub nvcc: String,
    /// The version of CUTLASS.
    pub cutlass: String,
    /// The cache key.
    pub key: String,
    /// True if the kernel was compiled now; false if it was found in a cache.
    pub compiled: bool,
    /// Compile time in seconds, also if the kernel was found in a cache.
    pub seconds: f64,
    /// Registers per thread.
    pub registers: Option<u32>,
    /// Bytes of register spill stores.
    pub spill_stores: Option<u64>,
    /// Mainloop stages.
    pub stages: Option<u32>,
    /// Bytes of shared memory per CTA.
    pub shared_memory: Option<u64>,
    /// The failure code, if the build failed.
    pub failure: Option<String>,
    /// The compiler's output, if the build failed.
    pub log: Option<String>,
}

/// The times of a kernel, in microseconds per call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The samples: each is the time of one graph replay, divided by its calls.
    pub samples_us: Vec<f64>,
    /// The median.
    pub median_us: f64,
    /// The minimum.
    pub min_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// Half of the interquartile range, divided by the median.
    pub dispersion: f64,
    /// Calls per replay.
    pub calls: u32,
    /// Copies of all operands and outputs, which the calls use in rotation.
    pub copies: u32,
    /// The cache policy: `rotating` if the copies exceed three times the L2 size, else `warm`.
    pub l2: String,
    /// The SM clock before and after, in MHz, if the driver reports it.
    pub clocks_mhz: Option<[u32; 2]>,
}

/// The comparison of results with the reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The kind of data and of comparison.
    pub rule: String,
    /// Bytes compared, over all copies.
    pub bytes: u64,
    /// Bytes that differ.
    pub wrong: u64,
    /// The first difference: output, byte, value found and value expected.
    pub first: Option<String>,
}

/// The machine that ran a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Machine {
    /// The GPU's name.
    pub gpu: String,
    /// The number of SMs.
    pub sms: u32,
    /// The driver's version.
    pub driver: String,
    /// The size of the L2 cache in bytes.
    pub l2_bytes: u64,
}
