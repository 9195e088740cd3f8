//! The party at fault for a missing kernel.

use serde::{Deserialize, Serialize};

/// The party at fault when a kernel is not built or loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildFault {
    /// The compiler, its headers or its libraries are missing, broken or too old.
    Toolchain,
    /// Fourfold: the generated source is wrong, or was built for the wrong architecture.
    #[serde(rename = "bug", alias = "our_bug")]
    OurBug,
    /// Time, memory, disk space, processes or file handles ran out.
    ResourceLimit,
    /// The machine: its host compiler, permissions or processes.
    Environment,
    /// The caller: it no longer wants the kernel.
    Caller,
}

impl BuildFault {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            BuildFault::Toolchain => "toolchain",
            BuildFault::OurBug => "bug",
            BuildFault::ResourceLimit => "resource_limit",
            BuildFault::Environment => "environment",
            BuildFault::Caller => "caller",
        }
    }
}
