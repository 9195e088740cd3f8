//! Takes combinations through validity, the compiler and the device, and says of each what became of it.
//!
//! A sweep can be killed at any time: whatever was recorded is not done again, and whatever was compiled and not recorded is
//! in the cache of kernels. It can be split: shard i of n takes every n-th kernel where nothing is run, and else every n-th
//! problem, so that all times of a problem come from one machine.

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

/// What builds kernels.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// The service.
    pub service: &'a CompileService,
    /// What kernels are configured for.
    pub cutlass: CutlassVersion,
    /// What the service is asked for a source.
    pub request: &'a (dyn Fn(&KernelSource) -> Request + Sync),
    /// Ends it.
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
    /// From 1.
    index: usize,
    /// How many there are.
    count: usize,
}

impl Shard {
    /// All of it.
    pub const ALL: Shard = Shard { index: 1, count: 1 };

    /// Whether the shard has what is at this position.
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
        let error = || format!("`{text}` is no shard: write i/n with i from 1 to n, such as 1/4");
        let (index, count) = text.split_once('/').ok_or_else(error)?;
        let shard =
            Shard { index: index.parse().map_err(|_| error())?, count: count.parse().map_err(|_| error())? };
        if (1..=shard.count).contains(&shard.index) { Ok(shard) } else { Err(error()) }
    }
}

/// What happens in a sweep.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Told<'a> {
    /// So many kernels are to be built, and so many were recorded before.
    Needed {
        /// To be built.
        kernels: usize,
        /// Recorded.
        done: usize,
    },
    /// So many kernels are to be run on a problem each, and so many were before.
    Runs {
        /// To be run.
        runs: usize,
        /// Recorded.
        done: usize,
    },
    /// What the compile service says.
    Build(&'a Event),
    /// Something was recorded.
    Recorded(&'a Record),
}

/// Where records go. What it returns as an error ends the sweep.
pub type Sink<'a> = dyn FnMut(&Record) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// Why a sweep ended before its end. What was recorded stays true.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Kernels cannot be built here, whatever they are: no fault of theirs, and nothing is recorded.
    #[error("kernels cannot be built here: {}: {}", failure.code, failure.message)]
    Toolchain {
        /// Why.
        failure: Arc<Failure>,
    },
    /// A record could not be kept.
    #[error("what was found out cannot be kept")]
    Sink {
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The device can do nothing any more.
    #[error("{kernel} on {problem} made the device fail, which is recorded: run it again to go on behind it")]
    Device {
        /// The kernel.
        kernel: String,
        /// The problem.
        problem: Problem,
        /// What the driver says.
        source: Box<DeviceError>,
    },
    /// It was to end.
    #[error("interrupted: run it again to go on")]
    Cancelled,
}

/// How many kernels came to what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub std::collections::BTreeMap<State, usize>);

impl Counts {
    /// Counts one more.
    pub fn add(&mut self, state: State) {
        *self.0.entry(state).or_default() += 1;
    }

    /// How many came to this.
    pub fn of(&self, state: State) -> usize {
        self.0.get(&state).copied().unwrap_or(0)
    }
}
