//! The refusal to prepare a program or a segment.

use crate::device::DeviceError;

/// The reason a program or a segment cannot be prepared. Nothing was launched, and nothing is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Refused {
    /// A stable code: one of the following, the code of a constraint, or the code of a build or load failure.
    ///
    /// [`FALLBACK_SEGMENT`](super::FALLBACK_SEGMENT), [`NO_SUCH_SEGMENT`](super::NO_SUCH_SEGMENT),
    /// [`NOT_BUILT`](super::NOT_BUILT), [`BUILDING`](super::BUILDING), [`NO_DEVICE`](super::NO_DEVICE),
    /// [`KERNEL_REFUSED`](super::KERNEL_REFUSED), [`POINTER_ALIGNMENT`](super::POINTER_ALIGNMENT),
    /// [`WORKSPACE_SIZE`](super::WORKSPACE_SIZE), [`DEVICE_MEMORY`](super::DEVICE_MEMORY),
    /// [`DEVICE_ERROR`](super::DEVICE_ERROR), [`MISSING_ADDRESS`](super::MISSING_ADDRESS), [`ALIAS`](super::ALIAS).
    pub code: &'static str,
    /// The segment at fault, if any.
    pub segment: Option<usize>,
    /// A message for the user.
    pub message: String,
}

impl Refused {
    pub(super) fn new(code: &'static str, segment: Option<usize>, message: impl Into<String>) -> Refused {
        Refused { code, segment, message: message.into() }
    }

    pub(super) fn device(error: &DeviceError, segment: Option<usize>) -> Refused {
        Refused::new(error.code(), segment, format!("{error} ({})", error.remedy()))
    }
}
