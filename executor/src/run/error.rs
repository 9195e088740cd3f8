//! Why a program could not be run.

use super::LaunchRecord;
use crate::device::DeviceError;
use crate::fallback::FallbackError;

/// Why a program could not be run on these inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// There are too few or too many inputs.
    #[error("`@{program}` takes {expected} inputs, not {found}")]
    Inputs {
        /// The program.
        program: String,
        /// How many it, or its segment, has.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// An input that a kernel reads, or that a single segment is given, is not of its value's type.
    #[error("`%{value}` in segment {segment} is {expected}, but its tensor is {found}")]
    Input {
        /// The segment that needs it.
        segment: usize,
        /// The value.
        value: String,
        /// Its type with the extents of this run.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The partition has no such segment.
    #[error("there is no segment {segment}; the partition has {count}")]
    NoSuchSegment {
        /// What was asked for.
        segment: usize,
        /// How many there are, counted from 0.
        count: usize,
    },
    /// The partition does not belong to the program: an op comes before one whose result it uses, or is missing.
    #[error(
        "the partition is not one of this program: segment {segment} needs `%{value}` before it is computed"
    )]
    Partition {
        /// The position of the segment; the number of segments for a program output.
        segment: usize,
        /// The value that is not there.
        value: String,
    },
    /// An op failed.
    #[error("`{op}` in segment {segment}: {source}")]
    Op {
        /// The op, as `%name = mnemonic`.
        op: String,
        /// The position of its segment.
        segment: usize,
        /// Why.
        source: FallbackError,
    },
    /// The host has no memory for what a kernel computed, or for an input that the program returns.
    #[error("`%{value}` of segment {segment} takes {bytes} bytes, more than there is memory")]
    Memory {
        /// The segment that made it; the number of segments for an input.
        segment: usize,
        /// The value.
        value: String,
        /// Bytes that it takes.
        bytes: u64,
    },
    /// The device failed.
    #[error("kernel {kernel} in segment {segment}{}: {source} ({})", list(&place.ops), source.remedy())]
    Device {
        /// The position of the segment. Kernels run behind the host's back: unless `locate` was asked for, an earlier
        /// one may be to blame.
        segment: usize,
        /// The name of its kernel.
        kernel: String,
        /// Why.
        source: DeviceError,
        /// What else is known of where it was.
        place: Box<FaultPlace>,
    },
}

/// What is known of the segment in which the device failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlace {
    /// The ops of the segment, as `%name = mnemonic`.
    pub ops: Vec<String>,
    /// What its kernel was given, in debug mode.
    pub launch: Option<LaunchRecord>,
}

/// The first few ops in parentheses; a segment may have many.
fn list(ops: &[String]) -> String {
    const SHOWN: usize = 4;
    let more = ops.len().saturating_sub(SHOWN);
    let shown = ops[..ops.len() - more].join("; ");
    match (ops.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" ({shown})"),
        (false, more) => format!(" ({shown}; and {more} more)"),
    }
}
