//! Finds the CUDA compiler and CUTLASS, or installs them.
//!
//! nvcc and CUTLASS are looked for independently, each in this order: what an option names; a carried folder that
//! an option names; `FOURFOLD_NVCC`, `FOURFOLD_CUTLASS`; `FOURFOLD_TOOLCHAIN`; `CUDA_HOME`, `CUTLASS_PATH`; nvcc on
//! `PATH`; the cache folder, into which [`provision`] installs the pinned packages. What is named and does not exist
//! is an error. What other programs share (`CUDA_HOME`, `PATH`) and is too old is passed over, and said to be.

mod cache;
mod diagnose;
mod error;
mod identity;
mod locate;
mod pins;
mod provision;
mod tree;
mod version;

pub use cache::cache_folder;
pub(crate) use diagnose::host_programs;
pub use diagnose::{Diagnosis, Finding, FindingState, diagnose};
pub use error::{ToolchainError, ToolchainFault};
pub use locate::{Origin, Toolchain, ToolchainOptions, locate, locate_with_progress};
pub use pins::{ARCHITECTURES, DOWNLOAD_MB, INSTALLED_MB, PINS, Pin};
pub use provision::{provision, provision_from, provisioned_folder};
pub use version::{OLDEST_CUTLASS, OLDEST_NVCC, Version, oldest_nvcc_for};

#[cfg(test)]
mod tests;
