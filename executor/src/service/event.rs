//! Progress events of the compile service.

use std::fmt;
use std::sync::Arc;

use super::Failure;

/// The origin of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Already live in this process.
    Memory,
    /// Read from the local cache.
    Cache,
    /// Fetched from this cache tier, named without credentials.
    Tier(String),
    /// Compiled now.
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

/// A progress event. Its `Display` form is one line for users.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// This many distinct kernels were requested. Each ends with [`Event::Hit`], [`Event::Finished`] or
    /// [`Event::Failed`].
    Needed {
        /// The number of distinct kernels.
        kernels: usize,
    },
    /// A kernel was available without compiling.
    Hit {
        /// The kernel's name.
        kernel: Arc<str>,
        /// The kernel's origin.
        source: Source,
    },
    /// A kernel waits for another build or for a build slot.
    Waiting {
        /// The kernel's name.
        kernel: Arc<str>,
        /// A description of the owner or resource waited for.
        owner: String,
    },
    /// The compiler started on a kernel.
    Started {
        /// The kernel's name.
        kernel: Arc<str>,
        /// The kernel's target.
        target: Arc<str>,
    },
    /// A kernel was compiled.
    Finished {
        /// The kernel's name.
        kernel: Arc<str>,
        /// The seconds that the compiler took.
        seconds: f64,
    },
    /// A kernel could not be built or loaded.
    Failed {
        /// The kernel's name.
        kernel: Arc<str>,
        /// The failure.
        failure: Arc<Failure>,
    },
    /// A cache entry was refused.
    Refused {
        /// The kernel's name.
        kernel: Arc<str>,
        /// A full sentence: the entry, the problem and the action taken.
        reason: String,
    },
    /// Any other message for the user.
    Note(String),
}

impl Event {
    /// The kernel that the event concerns.
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

    /// Returns true for the last event of a kernel.
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
