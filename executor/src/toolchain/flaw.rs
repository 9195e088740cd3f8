//! What is wrong with a tool or a folder that was found.

use std::io;
use std::path::Path;

use super::error::ToolchainError;
use crate::transient::Transient;

/// The reason something that was found cannot be used.
#[derive(Clone, Debug)]
pub(super) struct Flaw {
    /// What is wrong with it, as the end of a sentence.
    pub(super) problem: String,
    /// The shortage, where that and not the thing itself is the reason: it passes.
    pub(super) shortage: Option<Transient>,
}

impl Flaw {
    /// A flaw of the thing itself.
    pub(super) fn of(problem: impl Into<String>) -> Flaw {
        Flaw { problem: problem.into(), shortage: None }
    }

    /// An error of the system, which may be that processes, files or memory ran out.
    pub(super) fn of_system(problem: String, error: &io::Error) -> Flaw {
        let is_shortage =
            |kind: &Transient| matches!(kind, Transient::OutOfProcesses | Transient::OutOfMemory);
        Flaw { problem, shortage: Transient::of(error).filter(is_shortage) }
    }

    /// The error for something that an option or a variable names.
    pub(super) fn of_named(self, named: &'static str, path: &Path) -> ToolchainError {
        let path = path.to_owned();
        match self.shortage {
            Some(shortage) => ToolchainError::Shortage { path, shortage, problem: self.problem },
            None => ToolchainError::Named { named, path, problem: self.problem },
        }
    }

    /// The error for a folder that was installed or carried.
    pub(super) fn of_folder(self, path: &Path) -> ToolchainError {
        let path = path.to_owned();
        match self.shortage {
            Some(shortage) => ToolchainError::Shortage { path, shortage, problem: self.problem },
            None => ToolchainError::Damaged { path, reason: self.problem },
        }
    }
}
