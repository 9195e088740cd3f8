//! Errors of planning, compiling and running, each attributed to a [`Fault`].

use fourfold_executor::device::DeviceError;
use fourfold_executor::fallback::FallbackError;
use fourfold_executor::{RunError, SessionError};
use fourfold_ir::{BindError, Diagnostic};
use serde::Serialize;

/// The party at fault for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The program or its data are malformed.
    InvalidInput,
    /// The request exceeds the features of this version.
    Unsupported,
    /// The machine ran out of memory, disk, threads, processes or open files.
    ResourceLimit,
    /// The GPU or its driver failed.
    Device,
    /// Files or folders of this machine are missing, unreadable or unwritable.
    Environment,
    /// Fourfold has a bug.
    Bug,
}

impl Fault {
    /// The fault's name in reports.
    ///
    /// ```
    /// assert_eq!(fourfold::Fault::InvalidInput.name(), "invalid_input");
    /// ```
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

/// The reason that a program was not planned, compiled or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The module does not verify.
    #[error("the module `@{name}` is invalid: {}", first_message(diagnostics))]
    Module {
        /// The module's name.
        name: String,
        /// Every error in the module, in order.
        diagnostics: Vec<Diagnostic>,
    },
    /// The tensors do not fit the program's inputs.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The target does not exist.
    #[error("unknown target `{name}`; the targets are {known}")]
    UnknownTarget {
        /// The requested target.
        name: String,
        /// The known targets, comma-separated.
        known: String,
    },
    /// The target has no emulation.
    #[error("kernels for `{name}` cannot be emulated; kernels for {known} can")]
    NotEmulated {
        /// The target.
        name: String,
        /// The targets with emulation, comma-separated.
        known: String,
    },
    /// The requested GPU is unusable.
    #[error("{0}: {remedy}", remedy = .0.remedy())]
    Device(DeviceError),
    /// Some ops are not claimed, so the program cannot run as a whole.
    #[error("`{op}` is not claimed: the host runs the ops outside claimed segments")]
    Unclaimed {
        /// The op, as `%name = mnemonic`.
        op: String,
    },
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The tensors of a session do not fit the program.
    #[error(transparent)]
    Session(Box<SessionError>),
    /// The partition failed the independent checker.
    #[error("bug: the partition is invalid: {0}; please report the program")]
    Partition(String),
}

impl Error {
    /// The party at fault.
    ///
    /// ```
    /// # use fourfold::{Backend, DeviceChoice, Fault, Options};
    /// let options = Options::default().target("sm_1a").device(DeviceChoice::None);
    /// assert_eq!(Backend::new(&options).unwrap_err().fault(), Fault::Unsupported);
    /// ```
    pub fn fault(&self) -> Fault {
        match self {
            Error::UnknownTarget { .. } | Error::NotEmulated { .. } => Fault::Unsupported,
            Error::Device(_) => Fault::Device,
            Error::Run(error) => run_fault(error),
            Error::Partition(_) => Fault::Bug,
            Error::Module { .. } | Error::Bind(_) | Error::Unclaimed { .. } | Error::Session(_) => {
                Fault::InvalidInput
            }
        }
    }
}

/// The party at fault for a failed run.
pub fn run_fault(error: &RunError) -> Fault {
    match error {
        RunError::Device { .. } => Fault::Device,
        RunError::Partition { .. } => Fault::Bug,
        RunError::Memory { .. } => Fault::ResourceLimit,
        RunError::Op { source, .. } => match source {
            FallbackError::Memory { .. } | FallbackError::Extents { .. } | FallbackError::Tensor(_) => {
                Fault::ResourceLimit
            }
            FallbackError::Index { .. }
            | FallbackError::Offset { .. }
            | FallbackError::GroupCount { .. }
            | FallbackError::PaddedEnd { .. }
            | FallbackError::Group { .. } => Fault::InvalidInput,
            // Anything else is impossible here: the tensors were bound to a verified program.
            _ => Fault::Bug,
        },
        // The rest comes from the caller's tensors, symbols or segment index.
        _ => Fault::InvalidInput,
    }
}

fn first_message(diagnostics: &[Diagnostic]) -> &str {
    diagnostics.first().map_or("no reason given", |diagnostic| diagnostic.message.as_str())
}
