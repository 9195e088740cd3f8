//! What the service tells those who wait.

use std::fmt;
use std::sync::Arc;

use super::Failure;

/// Where a kernel came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This process had it.
    Memory,
    /// The cache had it.
    Cache,
    /// A tier of the cache had it: which, without what may be secret in its name.
    Tier(String),
    /// It was compiled.
    Compiler,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Memory => f.write_str("memory"),
            Source::Cache => f.write_str("the cache"),
            Source::Tier(tier) => f.write_str(tier),
            Source::Compiler => f.write_str("the compiler"),
        }
    }
}

/// Something that happened. Displayed, it is a line for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// So many different kernels are needed: each ends as [`Event::Hit`], [`Event::Finished`] or [`Event::Failed`].
    Needed {
        /// How many.
        kernels: usize,
    },
    /// A kernel was there already.
    Hit {
        /// Its name.
        kernel: Arc<str>,
        /// Where it came from.
        source: Source,
    },
    /// A kernel waits for somebody else.
    Waiting {
        /// Its name.
        kernel: Arc<str>,
        /// For whom.
        owner: String,
    },
    /// The compiler was started for it.
    Started {
        /// Its name.
        kernel: Arc<str>,
        /// Its target.
        target: Arc<str>,
    },
    /// It was compiled.
    Finished {
        /// Its name.
        kernel: Arc<str>,
        /// How long the compiler took.
        seconds: f64,
    },
    /// It cannot be had.
    Failed {
        /// Its name.
        kernel: Arc<str>,
        /// Why.
        failure: Arc<Failure>,
    },
    /// Something in the cache was refused, and is not used.
    Refused {
        /// The name of the kernel that it was for.
        kernel: Arc<str>,
        /// What was refused, why, and what was done about it: a whole sentence.
        reason: String,
    },
    /// Something else that people should know.
    Note(String),
}

impl Event {
    /// The kernel that it is about.
    pub fn kernel(&self) -> Option<&Arc<str>> {
        match self {
            Event::Needed { .. } | Event::Note(_) => None,
            Event::Hit { kernel, .. }
            | Event::Waiting { kernel, .. }
            | Event::Started { kernel, .. }
            | Event::Finished { kernel, .. }
            | Event::Failed { kernel, .. }
            | Event::Refused { kernel, .. } => Some(kernel),
        }
    }

    /// Whether it is the last event of its kernel.
    pub fn is_end(&self) -> bool {
        matches!(self, Event::Hit { .. } | Event::Finished { .. } | Event::Failed { .. })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Needed { kernels: 1 } => f.write_str("1 kernel is needed"),
            Event::Needed { kernels } => write!(f, "{kernels} kernels are needed"),
            Event::Hit { kernel, source } => write!(f, "{kernel} from {source}"),
            Event::Waiting { kernel, owner } => write!(f, "{kernel} waits for {owner}"),
            Event::Started { kernel, target } => write!(f, "building {kernel} for {target}"),
            Event::Finished { kernel, seconds } => write!(f, "built {kernel} in {seconds:.0} s"),
            Event::Failed { kernel, failure } => write!(f, "{kernel}: {}", failure.message),
            Event::Refused { kernel, reason } => write!(f, "{kernel}: {reason}"),
            Event::Note(text) => f.write_str(text),
        }
    }
}
