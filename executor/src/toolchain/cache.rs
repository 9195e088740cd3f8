//! The cache folder: where it is, and how folders in it come to be.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::error::ToolchainError;
use crate::environment::Environment;

/// The folder that keeps the toolchain and built kernels: `FOURFOLD_CACHE_DIR`, else `fourfold` in the user's cache
/// folder. It need not exist yet.
///
/// # Errors
/// When no variable says where it could be.
pub fn cache_folder(environment: &Environment) -> Result<PathBuf, ToolchainError> {
    if let Some(folder) = &environment.fourfold_cache_dir {
        return std::path::absolute(folder)
            .map_err(|error| ToolchainError::from_io("make an absolute path of", Path::new(folder), error));
    }
    // The specification of XDG_CACHE_HOME has relative values ignored.
    let user = environment.xdg_cache_home.as_ref().map(PathBuf::from).filter(|folder| folder.is_absolute());
    user.or_else(|| Some(Path::new(environment.home.as_ref()?).join(".cache")))
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("fourfold"))
        .ok_or(ToolchainError::NoCacheFolder)
}

/// Makes a folder and what is missing above it, for this user only: what lies here is loaded and run.
pub(super) fn create_private(folder: &Path) -> Result<(), ToolchainError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| ToolchainError::from_io("create", folder, error))
}
