//! Sweeps: checks, builds, verifies and times combinations, and records the outcome of each.
//!
//! - A sweep can be killed at any time. Recorded work is not repeated, and compiled kernels are in the kernel cache.
//! - A sweep can be split into shards. Shard i of n takes every n-th kernel when only compiling, else every n-th
//!   problem, so that all times of a problem are from one machine.

mod build;
mod plan;
mod run;

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fourfold_codegen::KernelSource;
use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_executor::Cancel;
use fourfold_executor::device::DeviceError;
use fourfold_executor::service::{CompileService, Event, Failure, Request};

use crate::problem::Problem;
use crate::record::{Record, State};

pub use build::{BuildOptions, build};
pub use plan::{Done, Planned, Task, plan};
pub use run::{RunOptions, machine, run};

/// The means to build kernels.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// The compile service.
    pub service: &'a CompileService,
    /// The CUTLASS version for which kernels are configured.
    pub cutlass: CutlassVersion,
    /// Creates the service's request for a source.
    pub request: &'a (dyn Fn(&KernelSource) -> Request + Sync),
    /// Cancels the sweep.
    pub cancel: &'a Cancel,
}

impl fmt::Debug for Tools<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tools").field("cutlass", &self.cutlass).finish_non_exhaustive()
    }
}

/// One of several machines that share a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The shard, from 1.
    index: usize,
    /// Number of shards.
    count: usize,
}

impl Shard {
    /// The whole sweep as one shard.
    pub const ALL: Shard = Shard { index: 1, count: 1 };

    /// Returns true if the item at this position belongs to the shard.
    pub fn has(self, position: usize) -> bool {
        position % self.count == self.index - 1
    }
}

impl Default for Shard {
    fn default() -> Shard {
        Shard::ALL
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let error = || format!("`{text}` is not a shard; write i/n with i from 1 to n, such as 1/4");
        let (index, count) = text.split_once('/').ok_or_else(error)?;
        let shard =
            Shard { index: index.parse().map_err(|_| error())?, count: count.parse().map_err(|_| error())? };
        if (1..=shard.count).contains(&shard.index) { Ok(shard) } else { Err(error()) }
    }
}

/// Progress of a sweep.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Told<'a> {
    /// The work of the build step.
    Needed {
        /// Kernels to build.
        kernels: usize,
        /// Kernels recorded before.
        done: usize,
    },
    /// The work of the run step.
    Runs {
        /// Runs to do, each of one kernel on one problem.
        runs: usize,
        /// Runs recorded before.
        done: usize,
    },
    /// An event of the compile service.
    Build(&'a Event),
    /// A new record.
    Recorded(&'a Record),
}

/// The receiver of records. An error from it ends the sweep.
pub type Sink<'a> = dyn FnMut(&Record) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// An error that ended a sweep. Records written before remain valid.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// No kernel can be built on this machine. Nothing is recorded, because the kernels are not at fault.
    #[error("kernels cannot be built on this machine: {}: {}", failure.code, failure.message)]
    Toolchain {
        /// The failure of the compile service.
        failure: Arc<Failure>,
    },
    /// A record could not be written.
    #[error("a record cannot be written")]
    Sink {
        /// The receiver's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The device failed and cannot run other kernels.
    #[error(
        "the device failed while {kernel} ran on {problem}; the failure is recorded, run the sweep again to continue"
    )]
    Device {
        /// The kernel.
        kernel: String,
        /// The problem.
        problem: Problem,
        /// The driver's error.
        source: Box<DeviceError>,
    },
    /// The sweep was cancelled.
    #[error("interrupted; run the sweep again to continue")]
    Cancelled,
}

/// Number of kernels per state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub std::collections::BTreeMap<State, usize>);

impl Counts {
    /// Counts a kernel.
    pub fn add(&mut self, state: State) {
        *self.0.entry(state).or_default() += 1;
    }

    /// The number of kernels in a state.
    pub fn of(&self, state: State) -> usize {
        self.0.get(&state).copied().unwrap_or(0)
    }
}
