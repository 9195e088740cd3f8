//! Installs the pinned toolchain into the cache: once and atomically, even with concurrent processes.
//!
//! The toolchain has parts (compiler, CUTLASS), and only the required parts are installed. One process holds the lock
//! and works in a folder beside the final one. Each part then appears there by a single rename; other processes wait
//! and find it installed. The operating system releases the lock when its owner ends. A killed owner leaves only a
//! partial folder, which the next installation removes.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::cache::create_private;
use super::error::ToolchainError;
use super::pins::{ARCHITECTURES, Part, key};
use super::pip::Python;
use super::tree::{self, Depth};
use super::version::needs_cutlass;
use crate::environment::Environment;

/// The folder of this version's provisioned toolchain inside a cache folder; it may not exist.
pub fn provisioned_folder(cache: &Path) -> PathBuf {
    cache.join("toolchain").join(key())
}

/// The parts that kernels for these targets need; all parts if no target is named.
pub fn parts_for<T: AsRef<str>>(targets: &[T]) -> Vec<Part> {
    let is_needed = |part: &Part| match part {
        Part::Compiler => true,
        Part::Cutlass => targets.is_empty() || targets.iter().any(|target| needs_cutlass(target.as_ref())),
    };
    Part::ALL.into_iter().filter(is_needed).collect()
}

/// Ensures that these parts of the pinned toolchain are in the cache folder, and returns the toolchain's folder.
///
/// Downloads them with pip, run by the `python3` on the environment's `PATH`. Reports progress to `progress`, one
/// line at a time.
///
/// # Errors
/// When the cache is not writable, pip is missing, or pip cannot get the packages; the error quotes pip's message.
/// Nothing partial is left.
pub fn provision(
    cache: &Path,
    parts: &[Part],
    environment: &Environment,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, ToolchainError> {
    install(cache, parts, progress, &mut |work, tree, parts, progress| {
        let architecture = std::env::consts::ARCH;
        if !ARCHITECTURES.contains(&architecture) {
            return Err(ToolchainError::Architecture { architecture });
        }
        let python = Python::find(environment, work)?;
        let sum = |size: fn(Part) -> u32| parts.iter().map(|part| size(*part)).sum::<u32>();
        let names = parts.iter().map(|part| part.name()).collect::<Vec<_>>().join(" and ");
        let (download, installed) = (sum(Part::download_mb), sum(Part::installed_mb));
        progress(&format!("installing {names} with pip: {download} MB to download, {installed} MB on disk"));
        python.fill(parts, tree, cache, progress)
    })
}

/// Like [`provision`], but copies the parts from a folder that [`provision`] made elsewhere.
///
/// # Errors
/// When a part is incomplete, consists of other packages or is for another processor; or when the cache is not
/// writable.
pub fn provision_from(
    carried: &Path,
    cache: &Path,
    parts: &[Part],
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, ToolchainError> {
    // Checked even if the cache already has the parts: the caller wants to know whether the folder is good.
    for part in parts {
        tree::check(carried, *part, Depth::Full).map_err(|flaw| ToolchainError::of_folder(carried, flaw))?;
    }
    install(cache, parts, progress, &mut |_, tree, parts, progress| {
        progress(&format!("copying the toolchain from {}", carried.display()));
        for part in parts {
            tree::copy(&carried.join(part.folder()), &tree.join(part.folder()))
                .map_err(|error| ToolchainError::from_io("copy the toolchain to", tree, error))?;
        }
        Ok(())
    })
}

/// Fills a tree. Arguments: a working folder for scratch files, the empty tree inside it, the parts, and a progress
/// callback.
type Fill<'a> = &'a mut dyn FnMut(&Path, &Path, &[Part], &mut dyn FnMut(&str)) -> Result<(), ToolchainError>;

fn install(
    cache: &Path,
    parts: &[Part],
    progress: &mut dyn FnMut(&str),
    fill: Fill<'_>,
) -> Result<PathBuf, ToolchainError> {
    let place = provisioned_folder(cache);
    let lacking = |parts: &[Part]| -> Vec<Part> {
        let lacks = |part: &Part| tree::check(&place, *part, Depth::Full).is_err();
        parts.iter().copied().filter(lacks).collect()
    };
    if lacking(parts).is_empty() {
        return Ok(place);
    }
    let home = cache.join("toolchain");
    create_private(&home)?;
    let _lock = lock(&home, progress)?;
    let parts = lacking(parts);
    if parts.is_empty() {
        return Ok(place);
    }
    for part in &parts {
        if let Err(flaw) = tree::check(&place, *part, Depth::Full)
            && place.join(part.folder()).exists()
        {
            progress(&format!("reinstalling {} in {}: {}", part.name(), place.display(), flaw.problem));
        }
    }
    remove_leftovers(&home);

    let work = tempfile::Builder::new()
        .prefix(&partial_prefix())
        .tempdir_in(&home)
        .map_err(|error| ToolchainError::from_io("create a folder in", &home, error))?;
    let tree = work.path().join("tree");
    create_private(&tree)?;
    fill(work.path(), &tree, &parts, progress)?;
    for part in &parts {
        tree::seal(&tree, *part)
            .map_err(|error| ToolchainError::from_io("write", &tree, error))?
            .map_err(|reason| ToolchainError::Incomplete { reason })?;
    }
    create_private(&place)?;
    let rename = |from: &Path, to: &Path| {
        fs::rename(from, to).map_err(|error| ToolchainError::from_io("rename a folder to", to, error))
    };
    for part in parts {
        let (new, old) = (tree.join(part.folder()), place.join(part.folder()));
        if old.exists() {
            rename(&old, &work.path().join(format!("damaged-{}", part.folder())))?;
        }
        rename(&new, &old)?;
    }
    progress(&format!("the toolchain is in {}", place.display()));
    Ok(place)
}

fn lock(home: &Path, progress: &mut dyn FnMut(&str)) -> Result<File, ToolchainError> {
    let path = home.join(format!("{}.lock", key()));
    let failed = |error| ToolchainError::from_io("lock", &path, error);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress("another process is installing the toolchain; waiting for it");
            file.lock().map_err(failed)?;
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    Ok(file)
}

fn partial_prefix() -> String {
    format!(".partial-{}-", key())
}

/// Removes leftovers of dead lock owners. Failures do not prevent the installation.
fn remove_leftovers(home: &Path) {
    let prefix = partial_prefix();
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
