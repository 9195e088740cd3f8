//! The common part of the tests: the root of the repository, seeded randomness, a generator of valid programs,
//! and the checks of a built kernel and of its answers.
#![forbid(unsafe_code)]

pub mod answers;
pub mod built;
pub mod check;
pub mod dags;
pub mod generate;
pub mod kit;
pub mod random;
pub mod structure;
pub mod written;
pub mod written_mx;

use std::path::{Path, PathBuf};

use fourfold::{Backend, DeviceChoice, Error, Options};

/// Returns options that plan for a target and use no GPU, so that a test shows the same on every machine.
pub fn options(target: &str) -> Options {
    Options::default().target(target).device(DeviceChoice::None)
}

/// Returns a backend with these [`options`].
///
/// # Errors
/// Fails if there is no such target.
pub fn backend(target: &str) -> Result<Backend, Error> {
    Backend::new(&options(target))
}

/// Returns the root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns every `.fir` file below `fixtures/`, sorted.
///
/// # Errors
/// Fails if a folder cannot be listed.
pub fn fixtures() -> anyhow::Result<Vec<PathBuf>> {
    Ok(fourfold::executor::files_below(&repository().join("fixtures"), "fir")?)
}
