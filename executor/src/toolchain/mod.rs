//! Finds the CUDA compiler and CUTLASS, or installs them.
//!
//! nvcc and CUTLASS are looked for independently, each in this order: what an option names; a carried folder that
//! an option names; `FOURFOLD_NVCC`, `FOURFOLD_CUTLASS`; `FOURFOLD_TOOLCHAIN`; `CUDA_HOME`, `CUTLASS_PATH`; nvcc on
//! `PATH`; the cache folder, into which [`provision`] installs the pinned packages. What is named and does not exist
//! is an error. What other programs share (`CUDA_HOME`, `PATH`, `CUTLASS_PATH`) and is too old, or known to be bad
//! ([`KNOWN_BAD`]) for what is to be built, is passed over, and said to be.

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
pub use version::{OLDEST_CUTLASS, OLDEST_NVCC, Version, needs_cutlass, oldest_nvcc_for};

#[cfg(test)]
mod tests;
