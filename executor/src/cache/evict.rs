//! Listing, verifying and evicting entries. Entries in use stay; the others go least recently used first.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::entry::{self, Contents, Identity, Trust, Unusable};
use super::error::{Action, CacheError, Reason, Refusal, disk};
use super::key::CacheKey;
use super::{Cache, usage};

/// One entry, as `cache list` prints it, unverified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryInfo {
    /// The entry's key.
    pub key: CacheKey,
    /// The kernel's readable name; `None` if the entry does not record one.
    pub kernel: Option<String>,
    /// The kernel's target, such as `sm_120a`.
    pub target: Option<String>,
    /// The size of the entry's files, in bytes.
    pub bytes: u64,
    /// The time of the last use.
    #[serde(serialize_with = "unix_seconds")]
    pub last_use: SystemTime,
    /// True while a process uses the entry.
    pub in_use: bool,
}

/// The verification result of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// The entry's key, or the name of a foreign file among the entries.
    pub entry: String,
    /// The size of the entry's files, in bytes.
    pub bytes: u64,
    /// The refusal, if the entry does not verify.
    pub refusal: Option<Refusal>,
}

/// Selects entries to remove. Entries in use always stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prune {
    /// Remove least recently used entries until at most this many bytes are left.
    pub to: Option<u64>,
    /// Remove entries unused for longer than this.
    pub older_than: Option<Duration>,
    /// Remove all entries.
    pub all: bool,
}

/// The result of pruning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Entries removed, in removal order.
    pub removed: Vec<EntryInfo>,
    /// Selected entries that stay because they are in use.
    pub in_use: Vec<EntryInfo>,
    /// Selected entries that could not be removed.
    pub stuck: Vec<EntryInfo>,
    /// The size of the remaining entries, in bytes.
    pub bytes: u64,
}

impl Cache {
    /// Lists the entries, most recently used first.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<EntryInfo>, CacheError> {
        let mut entries = self.inventory(true)?;
        entries.sort_by(|left, right| right.last_use.cmp(&left.last_use).then(left.key.cmp(&right.key)));
        Ok(entries)
    }

    /// Verifies every byte of every entry, and reports foreign files among the entries. With `repair`, removes
    /// refused entries. Leftovers of earlier refusals are removed in either case, and reported only if that fails.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn verify(&self, repair: bool) -> Result<Vec<Verified>, CacheError> {
        self.remove_leftovers();
        self.verify_names(self.names()?, repair)
    }

    /// Like [`Cache::verify`] without `repair`, but changes nothing and ignores leftovers.
    pub(crate) fn inspect(&self) -> Result<Vec<Verified>, CacheError> {
        let is_aside = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with(super::ASIDE));
        let names = self.names()?.into_iter().filter(|name| !is_aside(name)).collect();
        self.verify_names(names, false)
    }

    fn verify_names(&self, mut names: Vec<OsString>, repair: bool) -> Result<Vec<Verified>, CacheError> {
        names.sort();
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let path = self.entries().join(&name);
            let key = name.to_str().and_then(|name| name.parse::<CacheKey>().ok());
            let in_use = key.map(|key| self.use_file(&key)).and_then(|file| usage::hold(&file));
            let bytes = entry::size(&path);
            let result = match key {
                Some(key) => {
                    Contents::read(&path, &key, Trust::Owner).and_then(|contents| self.admit(&path, contents))
                }
                None => match Identity::at(&path) {
                    Ok(identity) => Err(Unusable::Refused(Reason::Name, identity)),
                    Err(_) => Err(Unusable::Absent),
                },
            };
            drop(in_use);
            let refusal = match result {
                Ok(_) => None,
                // Another process has just removed it.
                Err(Unusable::Absent) => continue,
                Err(Unusable::Refused(reason, identity)) => {
                    let repair = repair && !reason.passes();
                    let action = if repair { self.discard(&path, identity) } else { Action::Left };
                    let entry = entry::printable(&name.to_string_lossy());
                    Some(Refusal { entry, tier: None, reason, action })
                }
            };
            found.push(Verified { entry: entry::printable(&name.to_string_lossy()), bytes, refusal });
        }
        Ok(found)
    }

    /// Removes the selected entries, least recently used first, and the leftovers of dead processes.
    ///
    /// # Errors
    /// When the folder cannot be read or locked.
    pub fn prune(&self, which: &Prune) -> Result<Pruned, CacheError> {
        self.sweep();
        self.remove_entries(which, true)
    }

    /// Finds the entry whose key starts with these digits.
    ///
    /// # Errors
    /// When none or several match, or the folder cannot be read.
    pub fn resolve(&self, digits: &str) -> Result<CacheKey, CacheError> {
        let none = || CacheError::NoEntry { key: entry::printable(digits) };
        let names = self.names()?;
        let keys = names.iter().filter_map(|name| name.to_str());
        let mut fitting = keys.filter(|name| name.starts_with(digits)).filter_map(|name| name.parse().ok());
        match (fitting.next(), fitting.next()) {
            (Some(key), None) if !digits.is_empty() => Ok(key),
            _ => Err(none()),
        }
    }

    /// Evicts entries above the capacity. Failures are ignored: they do not affect the kernel being served.
    pub(super) fn keep_within_bound(&self) {
        let _ = self.remove_entries(&Prune { to: Some(self.inner.capacity), ..Prune::default() }, false);
    }

    /// Frees space for `bytes` bytes on a full disk. Returns true if something was removed.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        let total: u64 =
            self.inventory(false).map_or(0, |entries| entries.iter().map(|entry| entry.bytes).sum());
        let to = total.saturating_sub(bytes.saturating_mul(2));
        self.remove_entries(&Prune { to: Some(to), ..Prune::default() }, false)
            .is_ok_and(|pruned| !pruned.removed.is_empty())
    }

    fn remove_entries(&self, which: &Prune, described: bool) -> Result<Pruned, CacheError> {
        let _lock = self.lock_removal()?;
        self.remove_leftovers();
        let mut entries = self.inventory(described)?;
        entries.sort_by(|left, right| left.last_use.cmp(&right.last_use).then(left.key.cmp(&right.key)));
        let now = SystemTime::now();
        let mut pruned = Pruned { bytes: entries.iter().map(|entry| entry.bytes).sum(), ..Pruned::default() };
        for info in entries {
            let age = now.duration_since(info.last_use).unwrap_or_default();
            let is_old = which.older_than.is_some_and(|limit| age > limit);
            let is_excess = which.to.is_some_and(|limit| pruned.bytes > limit);
            if !(which.all || is_old || is_excess) {
                continue;
            }
            match self.evict(&info) {
                Eviction::Gone => {
                    pruned.bytes -= info.bytes;
                    pruned.removed.push(info);
                }
                Eviction::InUse => pruned.in_use.push(EntryInfo { in_use: true, ..info }),
                Eviction::Stuck => pruned.stuck.push(info),
            }
        }
        self.remove_stray_use_files();
        Ok(pruned)
    }

    pub(crate) fn inventory(&self, described: bool) -> Result<Vec<EntryInfo>, CacheError> {
        let mut entries = Vec::new();
        for name in self.names()? {
            let Some(key) = name.to_str().and_then(|name| name.parse::<CacheKey>().ok()) else { continue };
            let path = self.entry(&key);
            let description = if described { entry::describe(&path) } else { None };
            let (kernel, target) = description.unzip();
            let use_file = self.use_file(&key);
            entries.push(EntryInfo {
                key,
                kernel,
                target,
                bytes: entry::size(&path),
                last_use: usage::last_use(&use_file, &path),
                in_use: usage::is_in_use(&use_file),
            });
        }
        Ok(entries)
    }

    fn names(&self) -> Result<Vec<OsString>, CacheError> {
        let entries = self.entries();
        let listed = match fs::read_dir(&entries) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(disk("read", &entries))?,
        };
        Ok(listed.filter_map(|entry| Some(entry.ok()?.file_name())).collect())
    }

    fn evict(&self, info: &EntryInfo) -> Eviction {
        let path = self.entry(&info.key);
        let use_file = self.use_file(&info.key);
        let Ok(identity) = Identity::at(&path) else { return Eviction::Gone };
        let claim = match usage::claim(&use_file) {
            Ok(Some(claim)) => claim,
            Ok(None) => return Eviction::InUse,
            Err(_) => return Eviction::Stuck,
        };
        let action = self.discard(&path, identity);
        // Removes the time of last use as well. A process waiting for the lock sees the file gone and makes a new
        // one.
        let _ = fs::remove_file(&use_file);
        drop(claim);
        match action {
            Action::Stuck { .. } | Action::Left => Eviction::Stuck,
            Action::Removed | Action::SetAside { .. } => Eviction::Gone,
        }
    }

    /// Serializes eviction: two concurrent evictions would remove twice as much as needed.
    fn lock_removal(&self) -> Result<File, CacheError> {
        let path = self.inner.kernels.join("removal.lock");
        let lock = usage::open(&path, true).map_err(disk("open", &path))?;
        let got = usage::lock_within(&lock, false, usage::PATIENCE).map_err(disk("lock", &path))?;
        if got {
            return Ok(lock);
        }
        let source = io::Error::new(io::ErrorKind::TimedOut, "another process holds the lock");
        Err(CacheError::Disk { action: "lock", path, source })
    }

    /// Removes refused entries that were renamed aside earlier.
    pub(super) fn remove_leftovers(&self) {
        for name in self.names().unwrap_or_default() {
            if name.to_str().is_some_and(|name| name.starts_with(super::ASIDE)) {
                let _ = entry::remove(&self.entries().join(name));
            }
        }
    }

    fn remove_stray_use_files(&self) {
        let Ok(files) = fs::read_dir(self.inner.kernels.join("use")) else { return };
        let entries: HashSet<_> = self.names().unwrap_or_default().into_iter().collect();
        let stray = files.filter_map(Result::ok).filter(|file| !entries.contains(&file.file_name()));
        let files: Vec<PathBuf> = stray.map(|file| file.path()).collect();
        for file in files {
            // A held file belongs to a process about to publish its entry.
            if let Ok(Some(_claim)) = usage::claim(&file) {
                let _ = fs::remove_file(&file);
            }
        }
    }
}

enum Eviction {
    Gone,
    InUse,
    Stuck,
}

pub(crate) fn unix_seconds<S: serde::Serializer>(
    time: &SystemTime,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs())
}
