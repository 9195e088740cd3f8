//! Cache errors, and reasons for refusing an entry.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::transient::Transient;

/// A failure of the cache, or of one operation on it. Builds continue without the cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A folder of the cache has the wrong type, owner or permissions.
    #[error("cannot use the cache folder `{}`: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The problem with the folder.
        reason: String,
    },
    /// A file or folder could not be read or written.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Disk {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// An unusable entry cannot be removed to make room.
    #[error("cannot replace cache entry {key}: {reason}")]
    InTheWay {
        /// The entry.
        key: String,
        /// The problem with the entry.
        reason: String,
    },
    /// This program cannot read the tier, or was built without support for it.
    #[error("cannot use the cache tier `{tier}`: {reason}")]
    Tier {
        /// The folder or URL, with credentials removed.
        tier: String,
        /// The problem with the tier.
        reason: String,
    },
    /// A pack cannot be written.
    #[error("cannot write the pack `{}`: {reason}", path.display())]
    Pack {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Entries cannot be pushed to this destination.
    #[error("cannot push kernels to this destination: {reason}")]
    Target {
        /// The problem with the destination.
        reason: String,
    },
    /// No environment variable determines the cache folder.
    #[error("cannot locate the kernel cache: {reason}")]
    NoPlace {
        /// The reason that none does.
        reason: String,
    },
    /// An environment variable has an invalid value.
    #[error("invalid value of {variable}: {reason}")]
    Variable {
        /// The variable's name.
        variable: &'static str,
        /// The problem with the value.
        reason: String,
    },
    /// The text is not a size.
    #[error(
        "`{value}` is not a size; expected a number of bytes, or a number with a unit, such as 500M or 4GiB"
    )]
    Size {
        /// The value.
        value: String,
    },
    /// A key prefix matches no entry, or several.
    #[error("no cache entry, or more than one, has a key that starts with `{key}`")]
    NoEntry {
        /// The key prefix.
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
            CacheError::Pack { .. } => "cache_pack",
            CacheError::Target { .. } => "cache_target",
            CacheError::NoPlace { .. } => "cache_no_place",
            CacheError::Variable { .. } => "cache_variable",
            CacheError::Size { .. } => "cache_size",
            CacheError::NoEntry { .. } => "cache_no_entry",
        }
    }

    /// Advice for the user.
    pub fn remedy(&self) -> &'static str {
        match self {
            CacheError::Folder { .. } => {
                "make it a folder that you own and only you can write to, or set FOURFOLD_CACHE_DIR to another"
            }
            CacheError::Disk { source, .. } if ran_out(source) => {
                "free disk space, for example with `fourfold cache prune --to 1GiB`, or set FOURFOLD_CACHE_DIR to \
                 another folder"
            }
            CacheError::Disk { .. } => {
                "make the folder writable, or set FOURFOLD_CACHE_DIR to another; until then every process builds \
                 its own kernels"
            }
            CacheError::InTheWay { .. } => "remove the entry manually",
            CacheError::Tier { .. } => "correct or unset FOURFOLD_CACHE_TIERS",
            CacheError::Pack { .. } => "name a file in a writable folder with enough space",
            CacheError::Target { .. } => {
                "name an existing folder, or a URL if this program was built with the feature object-store"
            }
            CacheError::NoPlace { .. } => "set FOURFOLD_CACHE_DIR to a writable folder",
            CacheError::Variable { .. } => "correct or unset the variable",
            CacheError::Size { .. } => "give a size such as 500M or 4GiB",
            CacheError::NoEntry { .. } => "run `fourfold cache list` to see the keys",
        }
    }
}

/// Wraps a system error as [`CacheError::Disk`].
pub(super) fn disk<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> CacheError + 'a {
    move |source| CacheError::Disk { action, path: path.to_owned(), source }
}

pub(super) fn ran_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// An entry that was refused, or a tier that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The entry's key, or the name of a foreign file among the entries.
    pub entry: String,
    /// The tier that held the entry, with credentials removed; `None` for the local cache.
    pub tier: Option<String>,
    /// The problem with the entry.
    pub reason: Reason,
    /// The action taken.
    pub action: Action,
}

/// The problem with an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The entry, or a file in it, has the wrong type, such as a link, pipe or device.
    #[error("{what} is {found}")]
    Kind {
        /// `the entry`, or the file's name.
        what: String,
        /// The type found.
        found: &'static str,
    },
    /// Another user owns it.
    #[error("{what} belongs to user {user}")]
    ForeignOwner {
        /// `the entry`, or the file's name.
        what: String,
        /// The owner's user ID.
        user: u32,
    },
    /// Other users can write to it.
    #[error("{what} is writable by other users")]
    Writable {
        /// `the entry`, or the file's name.
        what: String,
    },
    /// The name is not a cache key.
    #[error("its name is not a cache key")]
    Name,
    /// The manifest is malformed.
    #[error("its manifest is corrupt: {why}")]
    Manifest {
        /// The parser's message.
        why: String,
    },
    /// Another version of Fourfold wrote the entry.
    #[error("it has format version {found}, but version {expected} is required")]
    OldFormat {
        /// The entry's format version.
        found: u64,
        /// The supported format version.
        expected: u64,
    },
    /// The kernel has another ABI version.
    #[error("it has kernel ABI version {found}, but version {expected} is required")]
    OldAbi {
        /// The kernel's ABI version.
        found: u32,
        /// The supported ABI version.
        expected: u32,
    },
    /// The manifest records another kernel's key.
    #[error("its manifest records another key, {found}")]
    OtherKey {
        /// The recorded key.
        found: String,
    },
    /// The folder has a file that its manifest does not list.
    #[error("its manifest does not list {name}")]
    Unexpected {
        /// The name.
        name: String,
    },
    /// A file listed in the manifest is missing.
    #[error("{name} is missing")]
    Missing {
        /// The name.
        name: String,
    },
    /// A file's size differs from its manifest record.
    #[error("{name} has {found} bytes, but its manifest records {expected}")]
    Size {
        /// The file.
        name: String,
        /// The file's size, in bytes.
        found: u64,
        /// The recorded size, in bytes.
        expected: u64,
    },
    /// A file's hash differs from its manifest record.
    #[error("{name} is corrupt: its hash differs from the manifest")]
    Hash {
        /// The file.
        name: String,
    },
    /// A file has the recorded hash but does not parse.
    #[error("cannot parse {name}: {why}")]
    Content {
        /// The file.
        name: String,
        /// The parser's message.
        why: String,
    },
    /// The entry could not be read.
    #[error("cannot read {what}: {why}")]
    Unreadable {
        /// `the entry`, or the file's name.
        what: String,
        /// The system's message.
        why: String,
        /// True for a transient error: the entry is left in place.
        passing: bool,
    },
    /// The tier did not answer, or answered with an error.
    #[error("the tier is unreachable: {why}")]
    Unreachable {
        /// The tier's message.
        why: String,
    },
    /// The entry is intact, but this machine cannot load it: a shared library, or a version of one, is missing.
    #[error("this machine cannot load it: {why}")]
    Load {
        /// The loader's message.
        why: String,
    },
    /// The entry was built with a tool version known to build wrong kernels for its target.
    #[error("it was built with {tool} {version}, {why}")]
    KnownBad {
        /// The tool.
        tool: &'static str,
        /// The tool's version.
        version: String,
        /// The known-bad entry's text.
        why: String,
    },
    /// The entry is used, but could not be stored in the local cache.
    #[error("it is used, but cannot be stored in the cache: {why}")]
    NotKept {
        /// The error that prevented storing it.
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
        // A permission error on an own entry does not go away by itself.
        let passing = error.kind() != io::ErrorKind::PermissionDenied && Transient::of(error).is_some();
        Reason::Unreadable { what: what.to_owned(), why: error.to_string(), passing }
    }

    pub(super) fn passes(&self) -> bool {
        matches!(self, Reason::Unreadable { passing: true, .. })
    }
}

/// The action taken on a refused entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "done", rename_all = "snake_case")]
pub enum Action {
    /// Left in place: only inspected, or not ours to change.
    Left,
    /// Removed.
    Removed,
    /// Could not be deleted, and was renamed instead.
    SetAside {
        /// The new path.
        path: PathBuf,
    },
    /// Could be neither deleted nor renamed.
    Stuck {
        /// The system's message.
        why: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = &self.entry;
        match (&self.tier, &self.reason) {
            (Some(tier), Reason::Unreachable { why }) => {
                return write!(f, "cache tier `{tier}` is unreachable: {why}");
            }
            (tier, Reason::NotKept { why }) => {
                let tier = tier.as_deref().unwrap_or("build");
                return write!(
                    f,
                    "the kernel from `{tier}` is used, but cannot be stored in the cache: {why}"
                );
            }
            (Some(tier), reason) => write!(f, "entry {entry} of cache tier `{tier}` is rejected: {reason}")?,
            (None, reason) => write!(f, "cache entry {entry} is rejected: {reason}")?,
        }
        match &self.action {
            Action::Left => Ok(()),
            Action::Removed => write!(f, "; it was removed"),
            Action::SetAside { path } => write!(f, "; it was renamed to `{}`", path.display()),
            Action::Stuck { why } => write!(f, "; it cannot be removed: {why}"),
        }
    }
}
