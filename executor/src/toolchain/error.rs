//! Toolchain errors, the party at fault, and remedies.

use std::io;
use std::path::{Path, PathBuf};

use super::flaw::Flaw;
use super::known_bad::KnownBad;
use super::version::Version;
use crate::transient::Transient;

/// Variables that other programs use too. Unsuitable tools that they name are skipped rather than rejected.
pub(super) const CUDA_HOME: &str = "CUDA_HOME";
pub(super) const PATH: &str = "PATH";
pub(super) const CUTLASS_PATH: &str = "CUTLASS_PATH";
/// See [`CUDA_HOME`].
const SHARED: [&str; 3] = [CUDA_HOME, PATH, CUTLASS_PATH];

/// The party at fault for a missing toolchain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolchainFault {
    /// An option or variable names something unusable.
    Request,
    /// Something is missing on this machine or wrong with it.
    Machine,
    /// The packages could not be downloaded.
    Network,
}

impl ToolchainFault {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ToolchainFault::Request => "request",
            ToolchainFault::Machine => "machine",
            ToolchainFault::Network => "network",
        }
    }
}

/// The reason that there is no toolchain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolchainError {
    /// A named tool is missing or unusable.
    #[error("{named} names `{}`, {problem}", path.display())]
    Named {
        /// The option or variable.
        named: &'static str,
        /// The path that it names.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// A named tool is too old.
    #[error("{named} names `{}`, which is {what} {found}; Fourfold needs {needed} or newer", path.display())]
    TooOld {
        /// The option or variable.
        named: &'static str,
        /// `nvcc` or `CUTLASS`.
        what: &'static str,
        /// The path that it names.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The oldest supported version.
        needed: Version,
    },
    /// The only version found is known to be bad for a target.
    #[error("{named} names `{}`, which is {} {found}, {bad}", path.display(), bad.tool.name())]
    KnownBad {
        /// The option or variable.
        named: &'static str,
        /// The path that it names.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The list entry.
        bad: &'static KnownBad,
    },
    /// No tool was named or found.
    #[error("no usable {what} was found{}", passed_over_text(passed_over))]
    NotFound {
        /// `nvcc` or `CUTLASS`.
        what: &'static str,
        /// Tools that were found but are unusable, with reasons.
        passed_over: Vec<String>,
    },
    /// No variable determines the cache folder.
    #[error(
        "no folder for the cache: FOURFOLD_CACHE_DIR is unset, and neither XDG_CACHE_HOME nor HOME is absolute"
    )]
    NoCacheFolder,
    /// A file operation in the cache failed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Cache {
        /// The action that failed, such as `create` or `lock`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file system of the cache is full.
    #[error("the file system of `{}` is full: {words}", path.display())]
    DiskFull {
        /// The cache folder.
        path: PathBuf,
        /// The message of the system or of pip.
        words: String,
    },
    /// No packages exist for this processor.
    #[error("there are no compiler packages for {architecture} processors")]
    Architecture {
        /// The processor.
        architecture: &'static str,
    },
    /// `python3` is not on `PATH`.
    #[error("python3, whose pip installs the compiler, is not on PATH")]
    NoPython,
    /// `python3` has no pip.
    #[error("python3 has no pip, which installs the compiler: {words}")]
    NoPip {
        /// The output of `python3`.
        words: String,
    },
    /// The packages could not be reached.
    #[error("cannot reach the package index; pip reported: {words}")]
    Offline {
        /// pip's message.
        words: String,
    },
    /// The package index does not offer the pinned packages to this pip.
    #[error("the package index does not offer the pinned packages; pip reported: {words}")]
    NotOffered {
        /// pip's message.
        words: String,
    },
    /// A package's hash is not the pinned one.
    #[error("a package does not have its pinned hash; pip reported: {words}")]
    HashMismatch {
        /// pip's message.
        words: String,
    },
    /// pip failed in another way.
    #[error("pip failed with {ending} and reported: {words}")]
    Pip {
        /// The exit status, in words.
        ending: String,
        /// pip's message.
        words: String,
    },
    /// pip reported success, but files are missing.
    #[error("pip reported success, but {reason}")]
    Incomplete {
        /// The missing item.
        reason: String,
    },
    /// Processes, open files or memory ran out during a check.
    #[error("`{}`: {problem}", path.display())]
    Shortage {
        /// The path being checked.
        path: PathBuf,
        /// The exhausted resource.
        shortage: Transient,
        /// A description of the problem.
        problem: String,
    },
    /// A carried toolchain folder is incomplete or has other content.
    #[error("cannot use the toolchain in `{}`: {reason}", path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },
}

impl ToolchainError {
    /// Creates the error for a path that an option or variable names.
    pub(super) fn of_named(named: &'static str, path: &Path, flaw: Flaw) -> ToolchainError {
        let (path, problem) = (path.to_owned(), flaw.problem);
        match flaw.shortage {
            Some(shortage) => ToolchainError::Shortage { path, shortage, problem },
            None => ToolchainError::Named { named, path, problem },
        }
    }

    /// Creates the error for an installed or carried folder.
    pub(super) fn of_folder(path: &Path, flaw: Flaw) -> ToolchainError {
        let (path, problem) = (path.to_owned(), flaw.problem);
        match flaw.shortage {
            Some(shortage) => ToolchainError::Shortage { path, shortage, problem },
            None => ToolchainError::Damaged { path, reason: problem },
        }
    }

    /// The party at fault.
    pub fn fault(&self) -> ToolchainFault {
        match self {
            ToolchainError::Named { .. } | ToolchainError::TooOld { .. } | ToolchainError::Damaged { .. } => {
                ToolchainFault::Request
            }
            ToolchainError::Offline { .. }
            | ToolchainError::NotOffered { .. }
            | ToolchainError::HashMismatch { .. }
            | ToolchainError::Incomplete { .. } => ToolchainFault::Network,
            ToolchainError::KnownBad { .. } if !self.is_absence() => ToolchainFault::Request,
            _ => ToolchainFault::Machine,
        }
    }

    /// A stable code for reports and tests, one of [`FAILURE_CODES`](crate::service::FAILURE_CODES).
    pub fn code(&self) -> &'static str {
        match self {
            ToolchainError::NotFound { .. } => "toolchain_missing",
            ToolchainError::Named { path, .. } if !path.exists() => "toolchain_missing",
            ToolchainError::Named { .. } => "toolchain_unusable",
            ToolchainError::TooOld { .. } => "toolchain_too_old",
            ToolchainError::KnownBad { .. } => "toolchain_known_bad",
            ToolchainError::NoCacheFolder => "no_cache_folder",
            ToolchainError::Cache { .. } => "cache_unusable",
            ToolchainError::DiskFull { .. } => "disk_full",
            ToolchainError::Architecture { .. } => "no_packages",
            ToolchainError::NoPython => "no_python",
            ToolchainError::NoPip { .. } => "no_pip",
            ToolchainError::Offline { .. } => "offline",
            ToolchainError::NotOffered { .. } => "packages_not_offered",
            ToolchainError::HashMismatch { .. } => "package_mismatch",
            ToolchainError::Pip { .. } => "pip_failed",
            ToolchainError::Incomplete { .. } => "packages_incomplete",
            ToolchainError::Shortage { shortage, .. } => shortage.code(),
            ToolchainError::Damaged { .. } => "toolchain_damaged",
        }
    }

    /// The remedy, as a sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            ToolchainError::Named { .. } => "name one that works, or drop the option or variable",
            ToolchainError::TooOld { .. } => {
                "name a newer one, or run `fourfold toolchain install` and name none"
            }
            ToolchainError::KnownBad { .. } => {
                "run `fourfold toolchain install` and name no other version, or pass --allow-known-bad \
                 (FOURFOLD_ALLOW_KNOWN_BAD)"
            }
            ToolchainError::NotFound { .. } => {
                "run `fourfold toolchain install`, or use --nvcc and --cutlass (FOURFOLD_NVCC, FOURFOLD_CUTLASS)"
            }
            ToolchainError::NoCacheFolder => "set FOURFOLD_CACHE_DIR to a writable folder",
            ToolchainError::Cache { .. } => "set FOURFOLD_CACHE_DIR to a writable folder",
            ToolchainError::DiskFull { .. } => {
                "free 600 MB there, or set FOURFOLD_CACHE_DIR to a folder with more space"
            }
            ToolchainError::Architecture { .. } => "install a CUDA toolkit and set FOURFOLD_NVCC to its nvcc",
            ToolchainError::NoPython | ToolchainError::NoPip { .. } => {
                "install python3 with pip, or copy a toolchain from another machine with `fourfold toolchain install \
                 --from DIR`"
            }
            ToolchainError::Offline { .. } => {
                "check the network and pip's settings, or copy a toolchain from another machine with `fourfold \
                 toolchain install --from DIR`"
            }
            ToolchainError::NotOffered { .. } => {
                "update pip to 20.3 or newer, or check the package index that it is configured to use"
            }
            ToolchainError::HashMismatch { .. } | ToolchainError::Incomplete { .. } => {
                "check the package index that pip is configured to use; its packages were not installed"
            }
            ToolchainError::Pip { .. } => "run `python3 -m pip --version` and fix what it reports",
            ToolchainError::Shortage { .. } => "free processes, open files or memory, then run it again",
            ToolchainError::Damaged { .. } => {
                "run `fourfold toolchain install` on a machine with a network, and copy the folder that it prints"
            }
        }
    }

    /// Returns true if no usable tool was named or found, so that installing the pinned packages helps.
    pub fn is_absence(&self) -> bool {
        match self {
            ToolchainError::NotFound { .. } => true,
            ToolchainError::KnownBad { named, .. } => SHARED.contains(named),
            _ => false,
        }
    }

    /// Wraps a file system error; reports a full disk as [`ToolchainError::DiskFull`].
    pub(super) fn from_io(action: &'static str, path: &Path, source: io::Error) -> ToolchainError {
        if source.kind() == io::ErrorKind::StorageFull || source.kind() == io::ErrorKind::QuotaExceeded {
            return ToolchainError::DiskFull { path: path.to_owned(), words: source.to_string() };
        }
        ToolchainError::Cache { action, path: path.to_owned(), source }
    }
}

fn passed_over_text(passed_over: &[String]) -> String {
    if passed_over.is_empty() { String::new() } else { format!(": {}", passed_over.join("; ")) }
}
