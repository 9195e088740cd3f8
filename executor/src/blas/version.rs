//! Versions of the library.

use std::fmt;

/// A version of cuBLASLt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlasVersion {
    /// The major version.
    pub major: u64,
    /// The minor version.
    pub minor: u64,
    /// The patch.
    pub patch: u64,
}

impl BlasVersion {
    /// Decodes the number that `cublasLtGetVersion` returns.
    pub(super) fn of(number: usize) -> BlasVersion {
        let number = number as u64;
        BlasVersion { major: number / 10_000, minor: number / 100 % 100, patch: number % 100 }
    }

    pub(super) fn is_supported(self) -> bool {
        matches!(self.major, 12 | 13)
    }
}

impl fmt::Display for BlasVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
