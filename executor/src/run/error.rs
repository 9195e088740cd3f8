//! Errors of running a program.

use super::LaunchRecord;
use crate::device::DeviceError;
use crate::fallback::FallbackError;
use crate::kernel::Status;

/// The reason that a program could not run on these inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The number of inputs is wrong.
    #[error("`@{program}` takes {expected} inputs, not {found}")]
    Inputs {
        /// The program.
        program: String,
        /// The number of inputs of the program or segment.
        expected: usize,
        /// The number of inputs given.
        found: usize,
    },
    /// An input of a kernel or of a single segment does not have its value's type.
    #[error("`%{value}` in segment {segment} is {expected}, but its tensor is {found}")]
    Input {
        /// The segment that reads it.
        segment: usize,
        /// The value.
        value: String,
        /// The value's type, with the extents of this run.
        expected: String,
        /// The tensor's type.
        found: String,
    },
    /// The partition has no segment with this index.
    #[error("the partition has no segment {segment}; it has {count}")]
    NoSuchSegment {
        /// The requested index.
        segment: usize,
        /// The number of segments.
        count: usize,
    },
    /// The partition does not match the program: an op is missing, or precedes one whose result it uses.
    #[error(
        "the partition does not match the program: segment {segment} reads `%{value}` before it is computed"
    )]
    Partition {
        /// The position of the segment; the number of segments for a program output.
        segment: usize,
        /// The value that is not yet computed.
        value: String,
    },
    /// An op failed.
    #[error("`{op}` in segment {segment}: {source}")]
    Op {
        /// The op, as `%name = mnemonic`.
        op: String,
        /// The position of its segment.
        segment: usize,
        /// The fallback's error.
        source: FallbackError,
    },
    /// The host is out of memory for a kernel's result, or for an input that the program returns.
    #[error("cannot allocate the {bytes} bytes of `%{value}` of segment {segment}")]
    Memory {
        /// The segment that computed it; the number of segments for an input.
        segment: usize,
        /// The value.
        value: String,
        /// The required size, in bytes.
        bytes: u64,
    },
    /// The device failed.
    #[error("kernel {kernel} in segment {segment}{}: {source} ({})", list(&place.ops), source.remedy())]
    Device {
        /// The position of the segment. Launches are asynchronous: unless
        /// [`RunOptions::locate`](super::RunOptions::locate) is set, an earlier segment may be at fault.
        segment: usize,
        /// The kernel's name.
        kernel: String,
        /// The device's error.
        source: DeviceError,
        /// Details of the location.
        place: Box<FaultPlace>,
    },
}

impl RunError {
    /// True for an index of a `gather` outside its axis that a kernel found.
    pub(super) fn is_bad_index(&self) -> bool {
        let RunError::Device { source: DeviceError::Launch { status }, .. } = self else { return false };
        status.code == Status::INDEX
    }
}

/// The segment in which the device failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlace {
    /// The ops of the segment, as `%name = mnemonic`.
    pub ops: Vec<String>,
    /// The launch's arguments, in debug mode.
    pub launch: Option<LaunchRecord>,
}

/// Lists the first few ops in parentheses; a segment may have many.
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
