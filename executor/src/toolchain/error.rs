//! Why there is no toolchain, whose fault that is, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use super::flaw::Flaw;
use super::known_bad::KnownBad;
use super::version::Version;
use crate::transient::Transient;

/// The variables that other programs use, too: what they name is passed over where it will not do.
pub(super) const CUDA_HOME: &str = "CUDA_HOME";
pub(super) const PATH: &str = "PATH";
pub(super) const CUTLASS_PATH: &str = "CUTLASS_PATH";
/// See [`CUDA_HOME`].
const SHARED: [&str; 3] = [CUDA_HOME, PATH, CUTLASS_PATH];

/// Whose fault a missing toolchain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolchainFault {
    /// An option or a variable names something that is not what it should be.
    Request,
    /// Something is missing on, or wrong with, this machine.
    Machine,
    /// The packages could not be had.
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

/// Why there is no toolchain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolchainError {
    /// Something was named and is not there, or is something else.
    #[error("{named} names `{}`, {problem}", path.display())]
    Named {
        /// The option or the variable.
        named: &'static str,
        /// What it names.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Something was named and is too old.
    #[error("{named} names `{}`, which is {what} {found}; Fourfold needs {needed} or newer", path.display())]
    TooOld {
        /// The option or the variable.
        named: &'static str,
        /// `nvcc` or `CUTLASS`.
        what: &'static str,
        /// What it names.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The oldest that would do.
        needed: Version,
    },
    /// The only version found is known to be bad for a target.
    #[error("{named} names `{}`, which is {} {found}, {bad}", path.display(), bad.tool.name())]
    KnownBad {
        /// The option or the variable.
        named: &'static str,
        /// The path that it names.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The entry of the list.
        bad: &'static KnownBad,
    },
    /// Nothing was named and nothing was found.
    #[error("there is no {what}{}", passed_over_text(passed_over))]
    NotFound {
        /// `nvcc` or `CUTLASS`.
        what: &'static str,
        /// What was found and could not be used, with the reason.
        passed_over: Vec<String>,
    },
    /// No variable says where the cache is.
    #[error(
        "there is no place for the cache: FOURFOLD_CACHE_DIR is unset, and neither XDG_CACHE_HOME nor HOME is an absolute path"
    )]
    NoCacheFolder,
    /// The cache cannot be read or written.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Cache {
        /// What was tried: `create`, `lock` and so on.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file system of the cache is full.
    #[error("the file system of `{}` is full: {words}", path.display())]
    DiskFull {
        /// The cache folder.
        path: PathBuf,
        /// What the system or the package client said.
        words: String,
    },
    /// There are no packages for this processor.
    #[error("there are no compiler packages for {architecture} processors")]
    Architecture {
        /// The processor.
        architecture: &'static str,
    },
    /// There is no `python3` on PATH.
    #[error("there is no python3 on PATH, and its package client is what installs the compiler")]
    NoPython,
    /// `python3` has no package client.
    #[error("python3 has no pip, its package client: {words}")]
    NoPip {
        /// What `python3` said.
        words: String,
    },
    /// The packages could not be reached.
    #[error("the packages could not be reached; pip said: {words}")]
    Offline {
        /// The client's own words.
        words: String,
    },
    /// The client's source does not offer the pinned packages to this client.
    #[error("the pinned packages are not on offer; pip said: {words}")]
    NotOffered {
        /// The client's own words.
        words: String,
    },
    /// A package is not the one that was pinned.
    #[error("a package is not the one that is pinned; pip said: {words}")]
    HashMismatch {
        /// The client's own words.
        words: String,
    },
    /// The client failed otherwise.
    #[error("pip ended with {ending} and said: {words}")]
    Pip {
        /// How it ended.
        ending: String,
        /// Its own words.
        words: String,
    },
    /// The client reported success and something is missing.
    #[error("pip reported success, but {reason}")]
    Incomplete {
        /// What is missing.
        reason: String,
    },
    /// Processes, open files or memory ran out when something was looked at.
    #[error("`{}`: {problem}", path.display())]
    Shortage {
        /// What was looked at.
        path: PathBuf,
        /// What ran out.
        shortage: Transient,
        /// The problem in words.
        problem: String,
    },
    /// A carried folder is not whole, or holds something else.
    #[error("the toolchain in `{}` cannot be used: {reason}", path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl ToolchainError {
    /// The error for something that an option or a variable names.
    pub(super) fn of_named(named: &'static str, path: &Path, flaw: Flaw) -> ToolchainError {
        let (path, problem) = (path.to_owned(), flaw.problem);
        match flaw.shortage {
            Some(shortage) => ToolchainError::Shortage { path, shortage, problem },
            None => ToolchainError::Named { named, path, problem },
        }
    }

    /// The error for a folder that was installed or carried.
    pub(super) fn of_folder(path: &Path, flaw: Flaw) -> ToolchainError {
        let (path, problem) = (path.to_owned(), flaw.problem);
        match flaw.shortage {
            Some(shortage) => ToolchainError::Shortage { path, shortage, problem },
            None => ToolchainError::Damaged { path, reason: problem },
        }
    }

    /// Whose fault it is.
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

    /// The stable code that reports and tests use: one of [`FAILURE_CODES`](crate::service::FAILURE_CODES).
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

    /// What to do about it, as a sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            ToolchainError::Named { .. } => "name one that exists, or do not name any",
            ToolchainError::TooOld { .. } => {
                "name a newer one, or none: `fourfold toolchain install` gets the pinned one"
            }
            ToolchainError::KnownBad { .. } => {
                "run `fourfold toolchain install` and name no other; --allow-known-bad (FOURFOLD_ALLOW_KNOWN_BAD) uses it all the same"
            }
            ToolchainError::NotFound { .. } => {
                "run `fourfold toolchain install`, or name one with --nvcc and --cutlass (FOURFOLD_NVCC, FOURFOLD_CUTLASS)"
            }
            ToolchainError::NoCacheFolder => "set FOURFOLD_CACHE_DIR to a folder that can be written",
            ToolchainError::Cache { .. } => "set FOURFOLD_CACHE_DIR to a folder that can be written",
            ToolchainError::DiskFull { .. } => {
                "free 600 MB there, or set FOURFOLD_CACHE_DIR to a folder with more room"
            }
            ToolchainError::Architecture { .. } => "install a CUDA toolkit and name it with FOURFOLD_NVCC",
            ToolchainError::NoPython | ToolchainError::NoPip { .. } => {
                "install python3 with pip, or bring a toolchain from another machine: `fourfold toolchain install --from DIR`"
            }
            ToolchainError::Offline { .. } => {
                "check the network and pip's settings, or bring a toolchain from another machine: `fourfold toolchain install --from DIR`"
            }
            ToolchainError::NotOffered { .. } => {
                "update pip (20.3 or newer), or check which package index it is set to use"
            }
            ToolchainError::HashMismatch { .. } | ToolchainError::Incomplete { .. } => {
                "check which package index pip is set to use: what it delivered is not used"
            }
            ToolchainError::Pip { .. } => "run `python3 -m pip --version` and mend what pip complains about",
            ToolchainError::Shortage { .. } => {
                "run it again when processes, open files and memory are to be had"
            }
            ToolchainError::Damaged { .. } => {
                "run `fourfold toolchain install` on a machine with a network, and copy the folder that it prints"
            }
        }
    }

    /// Returns whether nothing was named and nothing was found that will do: installing the pinned packages helps.
    pub fn is_absence(&self) -> bool {
        match self {
            ToolchainError::NotFound { .. } => true,
            ToolchainError::KnownBad { named, .. } => SHARED.contains(named),
            _ => false,
        }
    }

    /// A failure of the file system; a full disk is told apart.
    pub(super) fn from_io(action: &'static str, path: &Path, source: io::Error) -> ToolchainError {
        if source.kind() == io::ErrorKind::StorageFull || source.kind() == io::ErrorKind::QuotaExceeded {
            return ToolchainError::DiskFull { path: path.to_owned(), words: source.to_string() };
        }
        ToolchainError::Cache { action, path: path.to_owned(), source }
    }
}

fn passed_over_text(passed_over: &[String]) -> String {
    if passed_over.is_empty() {
        String::new()
    } else {
        format!(" that can be used: {}", passed_over.join("; "))
    }
}
