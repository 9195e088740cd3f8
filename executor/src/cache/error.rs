//! Why the cache does not work, and why it does not use an entry.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::transient::Transient;

/// Why the cache as a whole, or one change of it, does not work. Builds go on without it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A folder of the cache is not what it must be.
    #[error("the cache folder `{}` is refused: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file or folder could not be read or written.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Disk {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// An entry is in the way that can neither be used nor removed.
    #[error("entry {key} cannot be replaced: {reason}")]
    InTheWay {
        /// The entry.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tier that this program cannot read, or was built without.
    #[error("the tier `{tier}` cannot be used: {reason}")]
    Tier {
        /// A folder or a URL, without what may be secret in it.
        tier: String,
        /// Why not.
        reason: String,
    },
    /// Entries cannot be pushed to where they were to be.
    #[error("kernels cannot be pushed there: {reason}")]
    Target {
        /// Why not.
        reason: String,
    },
    /// No variable says where the cache could be.
    #[error("there is no place for the cache of kernels: {reason}")]
    NoPlace {
        /// What was looked for.
        reason: String,
    },
    /// An environment variable has a value that it cannot have.
    #[error("{variable} cannot be used: {reason}")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A value that says no size.
    #[error("`{value}` is no size; write a number of bytes, or one with a unit such as 500M or 4GiB")]
    Size {
        /// The value.
        value: String,
    },
    /// No entry, or more than one, is meant.
    #[error("no entry, or more than one, begins with `{key}`")]
    NoEntry {
        /// What was asked for.
        key: String,
    },
}

impl CacheError {
    /// The stable code that reports and tests use.
    pub fn code(&self) -> &'static str {
        match self {
            CacheError::Folder { .. } => "cache_folder_refused",
            CacheError::Disk { .. } => "cache_disk",
            CacheError::InTheWay { .. } => "cache_entry_in_the_way",
            CacheError::Tier { .. } => "cache_tier",
            CacheError::Target { .. } => "cache_target",
            CacheError::NoPlace { .. } => "cache_no_place",
            CacheError::Variable { .. } => "cache_variable",
            CacheError::Size { .. } => "cache_size",
            CacheError::NoEntry { .. } => "cache_no_entry",
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            CacheError::Folder { .. } => {
                "Make it a folder of your own that nobody else can write to, or name another with FOURFOLD_CACHE_DIR"
            }
            CacheError::Disk { source, .. } if ran_out(source) => {
                "Make room, for example with `fourfold cache prune --to 1GiB`, or name another folder with \
                 FOURFOLD_CACHE_DIR"
            }
            CacheError::Disk { .. } => {
                "Make the folder writable, or name another with FOURFOLD_CACHE_DIR; until then every process builds \
                 its own kernels"
            }
            CacheError::InTheWay { .. } => "Remove the entry by hand",
            CacheError::Tier { .. } => "Correct FOURFOLD_CACHE_TIERS, or unset it",
            CacheError::Target { .. } => {
                "Name a folder that is there, or a URL where this program was built with the feature object-store"
            }
            CacheError::NoPlace { .. } => "Set FOURFOLD_CACHE_DIR to a folder that can be written",
            CacheError::Variable { .. } => "Correct the variable, or unset it",
            CacheError::Size { .. } => "Correct the size",
            CacheError::NoEntry { .. } => "`fourfold cache list` prints what there is",
        }
    }
}

/// Makes an error of one from the system.
pub(super) fn disk<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> CacheError + 'a {
    move |source| CacheError::Disk { action, path: path.to_owned(), source }
}

pub(super) fn ran_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// An entry that was not used, or a tier that could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The entry: a key, or the name of what lies where entries do.
    pub entry: String,
    /// The tier it was found in, without what may be secret in its name; `None` for this machine's cache.
    pub tier: Option<String>,
    /// What is wrong with it.
    pub reason: Reason,
    /// What was done about it.
    pub action: Action,
}

/// What is wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It, or something in it, is not a plain folder or a plain file: a link, a pipe, a device.
    #[error("{what} is {found}")]
    Kind {
        /// Which: `the entry`, or a file by its name.
        what: String,
        /// What it is instead of what it should be.
        found: &'static str,
    },
    /// Somebody else owns it.
    #[error("{what} belongs to user {user}")]
    ForeignOwner {
        /// Which.
        what: String,
        /// The number of the owner.
        user: u32,
    },
    /// Others may write to it.
    #[error("{what} can be written by other users")]
    Writable {
        /// Which.
        what: String,
    },
    /// It has no name that an entry could have.
    #[error("it has no name of an entry")]
    Name,
    /// The manifest is not one.
    #[error("its manifest is damaged: {why}")]
    Manifest {
        /// Why.
        why: String,
    },
    /// It was written by another version of this program.
    #[error("its format is version {found}, and version {expected} is needed")]
    OldFormat {
        /// Its version.
        found: u64,
        /// Ours.
        expected: u64,
    },
    /// It was built for another version of the interface.
    #[error("its kernel has version {found} of the kernel interface, and version {expected} is needed")]
    OldAbi {
        /// Its version.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// It is another kernel's entry.
    #[error("it is the entry of another kernel, {found}")]
    OtherKey {
        /// The key in it.
        found: String,
    },
    /// Something is in it that is not in its manifest.
    #[error("{name} does not belong into it")]
    Unexpected {
        /// The name.
        name: String,
    },
    /// Something is in its manifest that is not in it.
    #[error("{name} is missing")]
    Missing {
        /// The name.
        name: String,
    },
    /// A file is too short or too long.
    #[error("{name} has {found} bytes, and {expected} are expected")]
    Size {
        /// The file.
        name: String,
        /// Its size.
        found: u64,
        /// What the manifest says.
        expected: u64,
    },
    /// A file holds other bytes than were written.
    #[error("{name} is damaged: its hash is not that of the manifest")]
    Hash {
        /// The file.
        name: String,
    },
    /// A file has the right hash and makes no sense.
    #[error("{name} cannot be understood: {why}")]
    Content {
        /// The file.
        name: String,
        /// Why.
        why: String,
    },
    /// It could not be read.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// Which.
        what: String,
        /// Why.
        why: String,
        /// Whether that may pass, so that the entry is left as it is.
        passing: bool,
    },
    /// The tier did not answer, or answered with an error.
    #[error("the tier cannot be asked: {why}")]
    Unreachable {
        /// Why.
        why: String,
    },
    /// Its bytes are those that were written, and this machine cannot load it: it lacks a library, or a version of one.
    #[error("it cannot be loaded here: {why}")]
    Load {
        /// Why.
        why: String,
    },
    /// It was built with a version of a tool that is known to build wrong kernels for its target.
    #[error("it was built with {tool} {version}, {why}")]
    KnownBad {
        /// The tool.
        tool: &'static str,
        /// Its version.
        version: String,
        /// The entry of the list.
        why: String,
    },
    /// It is good, and could not be kept in this machine's cache.
    #[error("it is used and cannot be kept: {why}")]
    NotKept {
        /// Why.
        why: String,
    },
}

impl Reason {
    /// The stable code that reports and tests use.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::Kind { .. } => "kind",
            Reason::ForeignOwner { .. } => "foreign_owner",
            Reason::Writable { .. } => "writable",
            Reason::Name => "name",
            Reason::Manifest { .. } => "manifest",
            Reason::OldFormat { .. } => "old_format",
            Reason::OldAbi { .. } => "old_abi",
            Reason::OtherKey { .. } => "other_key",
            Reason::Unexpected { .. } => "unexpected",
            Reason::Missing { .. } => "missing",
            Reason::Size { .. } => "size",
            Reason::Hash { .. } => "hash",
            Reason::Content { .. } => "content",
            Reason::Unreadable { .. } => "unreadable",
            Reason::Unreachable { .. } => "unreachable",
            Reason::Load { .. } => "load",
            Reason::KnownBad { .. } => "known_bad",
            Reason::NotKept { .. } => "not_kept",
        }
    }

    pub(super) fn unreadable(what: &str, error: &io::Error) -> Reason {
        // Who may not read an entry of its own will not be able to later.
        let passing = error.kind() != io::ErrorKind::PermissionDenied && Transient::of(error).is_some();
        Reason::Unreadable { what: what.to_owned(), why: error.to_string(), passing }
    }

    pub(super) fn passes(&self) -> bool {
        matches!(self, Reason::Unreadable { passing: true, .. })
    }
}

/// What was done about a refused entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "done", rename_all = "snake_case")]
pub enum Action {
    /// Nothing: it was only looked at, or is not ours to change.
    Left,
    /// It is gone.
    Removed,
    /// It could not be removed and lies elsewhere now.
    SetAside {
        /// Where.
        path: PathBuf,
    },
    /// It could be neither removed nor set aside.
    Stuck {
        /// Why.
        why: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = &self.entry;
        match (&self.tier, &self.reason) {
            (Some(tier), Reason::Unreachable { why }) => {
                return write!(f, "tier `{tier}` cannot be asked: {why}");
            }
            (tier, Reason::NotKept { why }) => {
                let tier = tier.as_deref().unwrap_or("build");
                return write!(f, "the kernel from `{tier}` is used and cannot be kept in the cache: {why}");
            }
            (Some(tier), reason) => write!(f, "entry {entry} of tier `{tier}` is refused: {reason}")?,
            (None, reason) => write!(f, "entry {entry} of the cache is refused: {reason}")?,
        }
        match &self.action {
            Action::Left => Ok(()),
            Action::Removed => write!(f, "; it is removed"),
            Action::SetAside { path } => write!(f, "; it is set aside as `{}`", path.display()),
            Action::Stuck { why } => write!(f, "; it cannot be removed: {why}"),
        }
    }
}
