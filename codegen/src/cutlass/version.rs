//! A version of CUTLASS.

use std::fmt;

/// A version of CUTLASS. Valid configurations and the number of stages depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CutlassVersion {
    /// 4 in 4.2.0.
    pub major: u32,
    /// 2 in 4.2.0.
    pub minor: u32,
    /// 0 in 4.2.0.
    pub patch: u32,
}

impl CutlassVersion {
    /// The provisioned version, for which every default is validated.
    pub const PINNED: CutlassVersion = CutlassVersion::new(4, 5, 0);

    /// `major.minor.patch`
    pub const fn new(major: u32, minor: u32, patch: u32) -> CutlassVersion {
        CutlassVersion { major, minor, patch }
    }

    /// Parses `4.2.0`. A fourth number, as in wheels, is ignored. `None` for anything else.
    pub fn parse(text: &str) -> Option<CutlassVersion> {
        let numbers: Vec<u32> =
            text.trim().split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        match numbers[..] {
            [major, minor, patch] | [major, minor, patch, _] => Some(CutlassVersion { major, minor, patch }),
            _ => None,
        }
    }
}

impl fmt::Display for CutlassVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
