//! Flaws of tools and folders that were found: the problem in words, and whether it passes.

use std::io;

use crate::transient::Transient;

/// The reason something that was found cannot be used.
#[derive(Clone, Debug)]
pub(super) struct Flaw {
    /// The problem, as the end of a sentence.
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
}
