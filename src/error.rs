//! Errors of planning, compiling and running, and whose fault each is.

use fourfold_executor::RunError;
use fourfold_executor::device::DeviceError;
use fourfold_executor::fallback::FallbackError;
use fourfold_ir::{BindError, Diagnostic};
use serde::Serialize;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The program or its data are not well-formed.
    InvalidInput,
    /// Something this version cannot do.
    Unsupported,
    /// Memory, size, threads, processes or open files.
    ResourceLimit,
    /// The GPU, or its driver.
    Device,
    /// This machine otherwise: its files and folders.
    Environment,
    /// Ours.
    Bug,
}

impl Fault {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::InvalidInput => "invalid_input",
            Fault::Unsupported => "unsupported",
            Fault::ResourceLimit => "resource_limit",
            Fault::Device => "device",
            Fault::Environment => "environment",
            Fault::Bug => "bug",
        }
    }
}

/// Why a program was not planned, compiled or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A module that was handed over is not a program.
    #[error("the module `@{name}` is not valid: {}", first_message(diagnostics))]
    Module {
        /// The module's name.
        name: String,
        /// Every error in it, in order.
        diagnostics: Vec<Diagnostic>,
    },
    /// Tensors do not fit the program's inputs.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There is no such target.
    #[error("there is no target `{name}`; the targets are {known}")]
    UnknownTarget {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The kernels of this target cannot be emulated.
    #[error("the kernels of `{name}` cannot be emulated; those of {known} can")]
    NotEmulated {
        /// The target.
        name: String,
        /// The targets that can be.
        known: String,
    },
    /// The GPU that was asked for cannot be used.
    #[error("{0}: {remedy}", remedy = .0.remedy())]
    Device(DeviceError),
    /// Only kernels are claimed, so the program cannot be run as a whole.
    #[error("`{op}` is not claimed: only kernel segments are, and the host runs the rest")]
    Unclaimed {
        /// The op, as `%name = mnemonic`.
        op: String,
    },
    /// The program could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The partition failed its own proof.
    #[error("bug: the partition is wrong: {0}; please report the program")]
    Partition(String),
}

impl Error {
    /// Whose fault it was.
    pub fn fault(&self) -> Fault {
        match self {
            Error::UnknownTarget { .. } | Error::NotEmulated { .. } => Fault::Unsupported,
            Error::Device(_) => Fault::Device,
            Error::Run(error) => run_fault(error),
            Error::Partition(_) => Fault::Bug,
            Error::Module { .. } | Error::Bind(_) | Error::Unclaimed { .. } => Fault::InvalidInput,
        }
    }
}

/// Whose fault a failed run is.
pub fn run_fault(error: &RunError) -> Fault {
    match error {
        RunError::Device { .. } => Fault::Device,
        RunError::Partition { .. } => Fault::Bug,
        RunError::Memory { .. } => Fault::ResourceLimit,
        RunError::Op { source, .. } => match source {
            FallbackError::Memory { .. } | FallbackError::Extents { .. } | FallbackError::Tensor(_) => {
                Fault::ResourceLimit
            }
            // The tensors were bound to a verified program.
            _ => Fault::Bug,
        },
        // The caller's tensors, symbols or segment.
        _ => Fault::InvalidInput,
    }
}

fn first_message(diagnostics: &[Diagnostic]) -> &str {
    diagnostics.first().map_or("no reason given", |diagnostic| diagnostic.message.as_str())
}
