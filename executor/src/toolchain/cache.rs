//! The cache folder: its location, and creation of folders in it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::error::ToolchainError;
use crate::environment::Environment;

/// The folder of the toolchain and the built kernels: `FOURFOLD_CACHE_DIR`, or `fourfold` in the user's cache folder.
/// It need not exist yet.
///
/// # Errors
/// When no variable determines it.
pub fn cache_folder(environment: &Environment) -> Result<PathBuf, ToolchainError> {
    if let Some(folder) = &environment.fourfold_cache_dir {
        return std::path::absolute(folder)
            .map_err(|error| ToolchainError::from_io("resolve the path", Path::new(folder), error));
    }
    // The XDG specification says to ignore relative values.
    let user = environment.xdg_cache_home.as_ref().map(PathBuf::from).filter(|folder| folder.is_absolute());
    user.or_else(|| Some(Path::new(environment.home.as_ref()?).join(".cache")))
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("fourfold"))
        .ok_or(ToolchainError::NoCacheFolder)
}

/// Creates a folder and its missing parents, accessible to this user only: files in it are loaded and run.
pub(super) fn create_private(folder: &Path) -> Result<(), ToolchainError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| ToolchainError::from_io("create", folder, error))
}
