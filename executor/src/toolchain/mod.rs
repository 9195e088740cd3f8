//! Finding and installing the CUDA compiler and CUTLASS.
//!
//! nvcc and CUTLASS are searched independently, in this order:
//!
//! 1. the path that an option names;
//! 2. a carried toolchain folder that an option names;
//! 3. `FOURFOLD_NVCC`, `FOURFOLD_CUTLASS`;
//! 4. `FOURFOLD_TOOLCHAIN`;
//! 5. `CUDA_HOME`, `CUTLASS_PATH`;
//! 6. nvcc on `PATH`;
//! 7. the cache folder, where [`provision`] installs the pinned packages.
//!
//! A named path that does not exist is an error. Tools shared with other programs (`CUDA_HOME`, `PATH`,
//! `CUTLASS_PATH`) are skipped, with a note, if they are too old or known to be bad ([`KNOWN_BAD`]) for the targets.

mod cache;
mod diagnose;
mod error;
mod flaw;
mod folder;
mod identity;
mod known_bad;
mod locate;
mod pins;
mod pip;
mod provision;
mod roots;
mod tree;
mod version;

pub use cache::cache_folder;
pub use diagnose::{Diagnosis, Finding, FindingState, TargetFinding, diagnose};
pub use error::{ToolchainError, ToolchainFault};
pub use folder::{Obstacle, obstacle};
pub use identity::NO_CUTLASS;
pub use known_bad::{KNOWN_BAD, KnownBad, Tool, all_known_bad, known_bad};
pub use locate::{Cutlass, Origin, Toolchain, ToolchainOptions, locate, locate_with_progress};
pub use pins::{ARCHITECTURES, PINNED, Part, Pin, Pinned};
pub use provision::{parts_for, provision, provision_from, provisioned_folder};
pub(crate) use roots::toolkit_roots;
pub use version::{OLDEST_CUTLASS, OLDEST_NVCC, Version, needs_cutlass, oldest_nvcc_for};

#[cfg(test)]
mod tests;
