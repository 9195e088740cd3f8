//! Problems with tools and folders that were found.

use std::io;

use crate::transient::Transient;

/// The reason that something found is unusable.
#[derive(Clone, Debug)]
pub(super) struct Flaw {
    /// The problem, as the end of a sentence.
    pub(super) problem: String,
    /// The resource shortage that caused the problem, which is then transient.
    pub(super) shortage: Option<Transient>,
}

impl Flaw {
    /// A problem with the item itself.
    pub(super) fn of(problem: impl Into<String>) -> Flaw {
        Flaw { problem: problem.into(), shortage: None }
    }

    /// A system error, which may be a shortage of processes, files or memory.
    pub(super) fn of_system(problem: String, error: &io::Error) -> Flaw {
        let is_shortage =
            |kind: &Transient| matches!(kind, Transient::OutOfProcesses | Transient::OutOfMemory);
        Flaw { problem, shortage: Transient::of(error).filter(is_shortage) }
    }
}
