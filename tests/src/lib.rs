//! What the tests share: where the repository is, seeded randomness, a generator of valid programs, and what is demanded
//! of a kernel that was built.
#![forbid(unsafe_code)]

pub mod built;
pub mod check;
pub mod dags;
pub mod generate;
pub mod random;
pub mod structure;

use std::path::{Path, PathBuf};

use fourfold::{Backend, DeviceChoice, Error, Options};

/// Options that plan for a target and keep off the GPU, so that a test shows the same on every machine.
pub fn options(target: &str) -> Options {
    Options::default().target(target).device(DeviceChoice::None)
}

/// A backend with these [`options`].
///
/// # Errors
/// When there is no such target.
pub fn backend(target: &str) -> Result<Backend, Error> {
    Backend::new(&options(target))
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every `.fir` file under `fixtures/`, sorted.
///
/// # Errors
/// When a folder cannot be listed.
pub fn fixtures() -> anyhow::Result<Vec<PathBuf>> {
    Ok(fourfold::executor::files_below(&repository().join("fixtures"), "fir")?)
}
