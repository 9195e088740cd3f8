//! Installs the pinned toolchain into the cache: once, whole or not at all, however many processes ask.
//!
//! One process holds the lock and works in a folder beside the final one, which then appears by a single rename;
//! the others wait and find it done. The lock is the kernel's and ends with its owner, so an owner that dies leaves
//! only a partial folder, which the next one removes.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::cache::create_private;
use super::error::ToolchainError;
use super::pins::{ARCHITECTURES, DOWNLOAD_MB, INSTALLED_MB, PINS, key, requirements};
use super::tree::{self, Depth};
use crate::environment::Environment;
use crate::process::{ToolRun, run_tool_watched};

/// How long the package client may take: 116 MB over a line of 1 Mbit/s, twice.
const PIP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Where the provisioned toolchain of this version lies in a cache folder, there or not.
pub fn provisioned_folder(cache: &Path) -> PathBuf {
    cache.join("toolchain").join(key())
}

/// Makes sure that the pinned toolchain is in the cache folder, and returns where.
///
/// It is installed by the Python package client that `python3` on the environment's `PATH` has. `progress` gets
/// lines for people.
///
/// # Errors
/// When the cache cannot be written, the client is missing, or it cannot get the packages: its own words are kept.
/// Nothing partial is left then.
pub fn provision(
    cache: &Path,
    environment: &Environment,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, ToolchainError> {
    install(cache, progress, &mut |work, tree, progress| {
        let architecture = std::env::consts::ARCH;
        if !ARCHITECTURES.contains(&architecture) {
            return Err(ToolchainError::Architecture { architecture });
        }
        download(work, tree, cache, environment, progress)
    })
}

/// As [`provision`], from a folder that [`provision`] made elsewhere.
///
/// # Errors
/// When the folder is not whole, holds other packages or is for another processor, or when the cache cannot be
/// written.
pub fn provision_from(
    carried: &Path,
    cache: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, ToolchainError> {
    // Also when the cache has one already: who names a folder wants to know whether it is good.
    tree::check(carried, Depth::Full)
        .map_err(|reason| ToolchainError::Damaged { path: carried.to_owned(), reason })?;
    install(cache, progress, &mut |_, tree, progress| {
        progress(&format!("copying the toolchain from {}", carried.display()));
        tree::copy(carried, tree)
            .map_err(|error| ToolchainError::from_io("copy the toolchain to", tree, error))
    })
}

/// Fills a tree, given a working folder for scratch files, the empty tree inside it, and where to report.
type Fill<'a> = &'a mut dyn FnMut(&Path, &Path, &mut dyn FnMut(&str)) -> Result<(), ToolchainError>;

fn install(cache: &Path, progress: &mut dyn FnMut(&str), fill: Fill<'_>) -> Result<PathBuf, ToolchainError> {
    let place = provisioned_folder(cache);
    if tree::check(&place, Depth::Full).is_ok() {
        return Ok(place);
    }
    let home = cache.join("toolchain");
    create_private(&home)?;
    let _lock = lock(&home, progress)?;
    match tree::check(&place, Depth::Full) {
        Ok(()) => return Ok(place),
        Err(reason) if place.exists() => {
            progress(&format!("the toolchain in {} is installed anew: {reason}", place.display()));
        }
        Err(_) => {}
    }
    remove_leftovers(&home);

    let work = tempfile::Builder::new()
        .prefix(&partial_prefix())
        .tempdir_in(&home)
        .map_err(|error| ToolchainError::from_io("create a folder in", &home, error))?;
    let tree = work.path().join("tree");
    create_private(&tree)?;
    fill(work.path(), &tree, progress)?;
    tree::seal(&tree)
        .map_err(|error| ToolchainError::from_io("write", &tree, error))?
        .map_err(|reason| ToolchainError::Incomplete { reason })?;
    let rename = |from: &Path, to: &Path| {
        fs::rename(from, to).map_err(|error| ToolchainError::from_io("rename a folder to", to, error))
    };
    if place.exists() {
        rename(&place, &work.path().join("damaged"))?;
    }
    rename(&tree, &place)?;
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

/// Removes what dead owners of the lock left. Failing to is no reason not to install.
fn remove_leftovers(home: &Path) {
    let prefix = partial_prefix();
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn download(
    work: &Path,
    tree: &Path,
    cache: &Path,
    environment: &Environment,
    progress: &mut dyn FnMut(&str),
) -> Result<(), ToolchainError> {
    let python = environment.find_program("python3").ok_or(ToolchainError::NoPython)?;
    let list = work.join("requirements.txt");
    fs::write(&list, requirements()).map_err(|error| ToolchainError::from_io("write", &list, error))?;
    let scratch = work.join("scratch");
    create_private(&scratch)?;
    progress(&format!(
        "installing {} packages with pip: {DOWNLOAD_MB} MB to download, {INSTALLED_MB} MB on disk",
        PINS.len()
    ));

    let mut command = Command::new(python);
    command
        .args([
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--require-hashes",
            "--no-compile",
            "--only-binary=:all:",
        ])
        .args(["--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off"])
        .arg("--target")
        .arg(tree)
        .arg("-r")
        .arg(&list)
        // `python3 -m` would import a `pip.py` from the folder that the user happens to be in.
        .current_dir(work)
        // pip unpacks here and moves; on another file system it would copy, and when killed leave its files there.
        .env("TMPDIR", &scratch)
        // Settings that would contradict --target.
        .env("PIP_USER", "0")
        .env("PIP_REQUIRE_VIRTUALENV", "0")
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .env("PYTHONUNBUFFERED", "1");
    if let Some(path) = &environment.path {
        command.env("PATH", path);
    }
    let run = run_tool_watched(&mut command, PIP_LIMIT, None, &mut |line| {
        let line = line.trim_start();
        if let Some(package) = line.strip_prefix("Collecting ") {
            progress(&format!("getting {}", package.split_whitespace().next().unwrap_or(package)));
        } else if line.starts_with("Installing collected packages") {
            progress("unpacking");
        }
    })
    .map_err(|_| ToolchainError::NoPython)?;
    if run.succeeded() { Ok(()) } else { Err(failure(&run, cache)) }
}

/// What pip's words say about why it failed.
fn failure(run: &ToolRun, cache: &Path) -> ToolchainError {
    let words = words(&run.log);
    let said = |texts: &[&str]| texts.iter().any(|text| run.log.contains(text));
    if said(&["No module named pip"]) {
        ToolchainError::NoPip { words }
    } else if said(&["No space left on device", "Disk quota exceeded"]) {
        ToolchainError::DiskFull { path: cache.to_owned(), words }
    } else if said(&["DO NOT MATCH THE HASHES"]) {
        ToolchainError::HashMismatch { words }
    } else if said(&[
        "Failed to establish a new connection",
        "Temporary failure in name resolution",
        "Name or service not known",
        "Max retries exceeded",
        "connection broken by",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ProxyError",
        "SSLError",
    ]) {
        ToolchainError::Offline { words }
    } else if said(&["No matching distribution found", "Could not find a version that satisfies"]) {
        ToolchainError::NotOffered { words }
    } else {
        ToolchainError::Pip { ending: run.ending(), words }
    }
}

/// The lines of a log that matter: from the first that reports an error, else the last few.
fn words(log: &str) -> String {
    const LINES: usize = 12;
    const LETTERS: usize = 1500;
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // The retries say what is wrong with the network; the error after them only that nothing was found.
    let matters = |line: &&str| line.starts_with("ERROR") || line.starts_with("WARNING: Retrying");
    let errors = lines.iter().position(matters);
    let start = errors.unwrap_or(lines.len().saturating_sub(4));
    let text = lines[start..].iter().take(LINES).copied().collect::<Vec<_>>().join("\n");
    if text.is_empty() { "nothing".to_owned() } else { text.chars().take(LETTERS).collect() }
}
