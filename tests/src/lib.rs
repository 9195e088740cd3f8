//! What the tests share: where the repository is, seeded randomness, and a generator of valid programs.
#![forbid(unsafe_code)]

pub mod generate;
pub mod random;

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every `.fir` file under `fixtures/`, sorted.
///
/// # Errors
/// When a folder cannot be listed.
pub fn fixtures() -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![repository().join("fixtures")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "fir") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
