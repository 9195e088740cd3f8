//! The kernel cache: built kernels on disk, shared by all processes of this user and verified at every use.
//!
//! The cache folder holds `kernels/`, accessible to this user only:
//!
//! - `entries/KEY/` holds one kernel: library, source, log, resources, and a manifest with their hashes. It is staged
//!   in its own folder, published by one rename, and read-only from then on;
//! - `use/KEY` records the time of the last use, and is locked while the entry is in use;
//! - `tmp/` holds the folders of running builds and inserts.
//!
//! A kernel that is missing locally is looked up in tiers: read-only folders or object stores with the same entries,
//! shared by a fleet. A tier's entries are verified by manifest, not by owner, and copied into the local cache. A
//! manifest proves that an entry is intact, not who made it: a tier supplies code that will run, so trust it like a
//! compiler.
//!
//! Links, other users' files, and files that differ from their manifest are refused, removed, reported and rebuilt.
//! The library is verified again right before it is loaded. This guards against accidents and other users. A process
//! that can write this user's files can already act as this user.

mod entry;
mod error;
mod evict;
mod key;
mod manifest;
mod pack;
mod share;
mod shown;
mod size;
mod temp;
mod tier;
mod usage;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use error::{Action, CacheError, Reason, Refusal};
pub(crate) use evict::unix_seconds;
pub use evict::{EntryInfo, Prune, Pruned, Verified};
pub use key::{CacheKey, KeyError, KeyParts};
pub use pack::{Packed, check_pack_place, write_pack};
pub use share::{PushError, PushResult};
pub use shown::{shown_place, without_credentials};
pub use size::{human_size, parse_size};
pub use temp::Swept;
pub use tier::{Pushed, check_tier};

use crate::build::{Artifact, Folder, SWEEP_LOCK};
use crate::environment::Environment;
use crate::toolchain::cache_folder;
use entry::{Contents, Identity, Trust, Unusable};
use error::{disk, ran_out};
use tier::Tier;

/// Cache location, size limit and tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The cache folder. Kernels lie in its subfolder `kernels`.
    pub folder: PathBuf,
    /// The maximum total size of entries, in bytes. Entries in use stay even above it.
    pub capacity: u64,
    /// Read-only tiers: folders, packs ([`write_pack`]), or URLs of object stores.
    pub tiers: Vec<String>,
    /// Accept kernels built with tool versions known to be bad for their targets.
    pub allow_known_bad: bool,
}

impl CacheOptions {
    /// The default capacity, 4 GiB: about two thousand kernels.
    pub const CAPACITY: u64 = 4 << 30;

    /// A cache in this folder, with the default capacity and no tiers.
    pub fn new(folder: impl Into<PathBuf>) -> CacheOptions {
        CacheOptions {
            folder: folder.into(),
            capacity: CacheOptions::CAPACITY,
            tiers: Vec::new(),
            allow_known_bad: false,
        }
    }

    /// Reads the options from the environment.
    ///
    /// # Errors
    /// When no variable determines the folder, or `FOURFOLD_CACHE_SIZE` is not a size.
    pub fn from_environment(environment: &Environment) -> Result<CacheOptions, CacheError> {
        let folder =
            cache_folder(environment).map_err(|error| CacheError::NoPlace { reason: error.to_string() })?;
        let mut options = CacheOptions::new(folder);
        options.allow_known_bad = environment.allows_known_bad();
        if let Some(size) = &environment.fourfold_cache_size {
            options.capacity = parse_size(&size.to_string_lossy()).map_err(|error| CacheError::Variable {
                variable: "FOURFOLD_CACHE_SIZE",
                reason: error.to_string(),
            })?;
        }
        if let Some(tiers) = &environment.fourfold_cache_tiers {
            // A tier whose name is not UTF-8 is refused when it is queried.
            let tiers = tiers.to_string_lossy();
            options.tiers =
                tiers.split(',').map(str::trim).filter(|tier| !tier.is_empty()).map(str::to_owned).collect();
        }
        Ok(options)
    }
}

/// The kernel cache. Clones share one cache.
#[derive(Clone, Debug)]
pub struct Cache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kernels: PathBuf,
    capacity: u64,
    tiers: Vec<Tier>,
    allow_known_bad: bool,
}

/// The name prefix of refused entries that await removal.
const ASIDE: &str = ".refused-";

/// The result of a cache lookup.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The kernel, if one was found.
    pub artifact: Option<Artifact>,
    /// The kernel's origin.
    pub origin: Origin,
    /// Entries and tiers refused during the lookup.
    pub notes: Vec<Refusal>,
}

/// The origin of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The local cache.
    Local,
    /// A tier, by its name with credentials removed.
    Tier(String),
}

impl Cache {
    /// Opens the cache, creating missing folders.
    ///
    /// # Errors
    /// When a folder cannot be created, belongs to another user, is a link, or is writable by others. A read-only
    /// folder is no error: its entries are used. An unreadable tier is no error either: it is reported when it is
    /// queried ([`check_tier`]).
    pub fn open(options: &CacheOptions) -> Result<Cache, CacheError> {
        let folder = std::path::absolute(&options.folder).map_err(disk("find", &options.folder))?;
        create_private(&folder)?;
        check_outer(&folder)?;
        let kernels = folder.join("kernels");
        for place in places(&kernels) {
            create_private(&place)?;
            check_inner(&place)?;
        }
        // Created before any folder in `tmp`. On a read-only cache nobody makes or sweeps folders.
        let _ = usage::open(&kernels.join(SWEEP_LOCK), true);
        let tiers = options.tiers.iter().map(|name| Tier::open_or_refuse(name)).collect();
        Ok(Cache::of(kernels, options, tiers))
    }

    /// Opens the cache for inspection: creates, changes and removes nothing. Returns `None` if no cache exists yet.
    ///
    /// # Errors
    /// As [`Cache::open`].
    pub fn look(options: &CacheOptions) -> Result<Option<Cache>, CacheError> {
        let folder = std::path::absolute(&options.folder).map_err(disk("find", &options.folder))?;
        let kernels = folder.join("kernels");
        if matches!(fs::symlink_metadata(&kernels), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        check_outer(&folder)?;
        for place in places(&kernels) {
            match check_own(&place) {
                Err(CacheError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                result => {
                    result?;
                }
            }
        }
        let tiers = options.tiers.iter().map(|name| Tier::open_or_refuse(name)).collect();
        Ok(Some(Cache::of(kernels, options, tiers)))
    }

    fn of(kernels: PathBuf, options: &CacheOptions, tiers: Vec<Tier>) -> Cache {
        let CacheOptions { capacity, allow_known_bad, .. } = *options;
        Cache { inner: Arc::new(Inner { kernels, capacity, tiers, allow_known_bad }) }
    }

    /// The maximum total size of entries, in bytes.
    pub fn capacity(&self) -> u64 {
        self.inner.capacity
    }

    /// The `kernels` folder.
    pub fn folder(&self) -> &Path {
        &self.inner.kernels
    }

    /// The tiers as configured, credentials included.
    pub(crate) fn tier_places(&self) -> Vec<&str> {
        self.inner.tiers.iter().map(Tier::place).collect()
    }

    /// The folder for temporary build folders.
    pub fn temporary(&self) -> PathBuf {
        self.inner.kernels.join("tmp")
    }

    /// Removes leftovers of dead processes and kills their orphaned compilers. Errors are ignored.
    pub fn sweep(&self) -> Swept {
        self.try_sweep().unwrap_or_default()
    }

    /// Like [`Cache::sweep`], but reports errors.
    ///
    /// # Errors
    /// When a leftover cannot be inspected or locked, as on file systems without locks. It stays in place.
    pub fn try_sweep(&self) -> Result<Swept, CacheError> {
        self.remove_leftovers();
        let temporary = self.temporary();
        temp::sweep(&temporary).map_err(disk("sweep", &temporary))
    }

    /// Looks up a kernel, locally and then in the tiers, verifies every byte, and marks it as used. A refused local
    /// entry is removed; every refusal is reported. Takes as long as reading the entry, plus up to 15 seconds for
    /// each unresponsive tier.
    pub fn get(&self, key: &CacheKey) -> Lookup {
        let mut notes = Vec::new();
        if let Some(artifact) = self.local(key, &mut notes) {
            return Lookup { artifact: Some(artifact), origin: Origin::Local, notes };
        }
        if let Some((artifact, tier)) = self.ask_tiers(key, &mut notes) {
            return Lookup { artifact: Some(artifact), origin: Origin::Tier(tier), notes };
        }
        Lookup { artifact: None, origin: Origin::Local, notes }
    }

    /// Stores a built kernel. If another process was first, returns that process's entry.
    ///
    /// # Errors
    /// When the entry cannot be written. The kernel itself remains usable.
    pub fn insert(&self, key: &CacheKey, built: &Artifact) -> Result<Artifact, CacheError> {
        let contents = Contents::of(*key, built).map_err(disk("read the library", built.library()))?;
        self.publish(key, &contents)
    }

    /// Looks up a kernel locally.
    fn local(&self, key: &CacheKey, notes: &mut Vec<Refusal>) -> Option<Artifact> {
        let path = self.entry(key);
        // Checked before the use file is created: an absent entry must not leave one behind.
        fs::symlink_metadata(&path).ok()?;
        // Without a lock the cache is read-only for this machine, so nobody could remove the entry either.
        let in_use = usage::begin(&self.use_file(key)).ok();
        match Contents::read(&path, key, Trust::Owner).and_then(|contents| self.admit(&path, contents)) {
            Ok(contents) => {
                let folder = Folder::entry(path, in_use, contents.library_hash());
                Some(contents.into_artifact(folder))
            }
            Err(Unusable::Absent) => None,
            Err(Unusable::Refused(reason, identity)) => {
                let action = if reason.passes() { Action::Left } else { self.discard(&path, identity) };
                notes.push(Refusal { entry: key.to_string(), tier: None, reason, action });
                None
            }
        }
    }

    /// Refuses a local entry that was built with a known-bad tool.
    fn admit(&self, path: &Path, contents: Contents) -> Result<Contents, Unusable> {
        match (self.objection(&contents), Identity::at(path)) {
            (None, _) => Ok(contents),
            (Some(reason), Ok(identity)) => Err(Unusable::Refused(reason, identity)),
            (Some(_), Err(_)) => Err(Unusable::Absent),
        }
    }

    /// Returns the reason that intact contents are not used, if any.
    fn objection(&self, contents: &Contents) -> Option<Reason> {
        if self.inner.allow_known_bad { None } else { contents.known_bad() }
    }

    /// Writes an entry and publishes it.
    fn publish(&self, key: &CacheKey, contents: &Contents) -> Result<Artifact, CacheError> {
        const ATTEMPTS: usize = 3;
        let temporary = self.temporary();
        create_private(&temporary)?;
        let path = self.entry(key);
        let mut notes = Vec::new();
        if let Some(artifact) = self.local(key, &mut notes) {
            return Ok(artifact);
        }
        let stage = || {
            let staging = Folder::new(Some(&temporary)).map_err(disk("create a folder in", &temporary))?;
            let staged = staging.path().join("entry");
            DirBuilder::new().mode(0o700).create(&staged).map_err(disk("create", &staged))?;
            contents.write(&staged, 0o400).map_err(disk("write", &staged))?;
            Ok((staging, staged))
        };
        let (_staging, staged) = match stage() {
            Err(CacheError::Disk { source, .. }) if ran_out(&source) && self.make_room(contents.size()) => {
                stage()
            }
            result => result,
        }?;
        let entries = self.entries();
        create_private(&entries)?;
        create_private(&self.inner.kernels.join("use"))?;
        for _ in 0..ATTEMPTS {
            // Locked before it is visible, so that it is not evicted before its first use.
            let use_file = self.use_file(key);
            let _in_use = usage::begin(&use_file).map_err(disk("lock", &use_file))?;
            match fs::rename(&staged, &path) {
                Ok(()) => {
                    // Published entries are immutable. A folder whose mode cannot be changed is still verified at
                    // each use.
                    let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o500));
                    let _ = entry::sync_folder(&entries);
                }
                Err(error) if is_taken(&error) => {}
                Err(error) => return Err(disk("rename the new entry to", &path)(error)),
            }
            if let Some(artifact) = self.local(key, &mut notes) {
                self.keep_within_bound();
                return Ok(artifact);
            }
            if !staged.exists() {
                break;
            }
            // A freshly built entry replaces one that cannot be read.
            if notes.last().is_some_and(|note| note.reason.passes())
                && let Ok(identity) = Identity::at(&path)
            {
                self.discard(&path, identity);
            }
        }
        let reason = notes.pop().map_or_else(|| "it vanishes".to_owned(), |note| note.reason.to_string());
        Err(CacheError::InTheWay { key: key.to_string(), reason })
    }

    /// Removes the entry at `path`, unless another one has taken its place meanwhile.
    fn discard(&self, path: &Path, identity: Identity) -> Action {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // In the same folder: another user's folder can be renamed there, but not moved elsewhere.
        let aside = self.entries().join(format!("{ASIDE}{}-{count}-{name:.16}", std::process::id()));
        if let Err(error) = fs::rename(path, &aside) {
            return match error.kind() {
                io::ErrorKind::NotFound => Action::Removed,
                _ => Action::Stuck { why: error.to_string() },
            };
        }
        if Identity::at(&aside).ok() != Some(identity) {
            // The entry was replaced just before the rename: move it back, unless yet another has taken its place.
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            let _ = rustix::fs::renameat_with(rustix::fs::CWD, &aside, rustix::fs::CWD, path, flags);
        }
        match entry::remove(&aside) {
            Ok(()) => Action::Removed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Action::Removed,
            Err(_) => Action::SetAside { path: aside },
        }
    }

    fn entries(&self) -> PathBuf {
        self.inner.kernels.join("entries")
    }

    fn entry(&self, key: &CacheKey) -> PathBuf {
        self.entries().join(key.to_string())
    }

    fn use_file(&self, key: &CacheKey) -> PathBuf {
        self.inner.kernels.join("use").join(key.to_string())
    }
}

/// The folders of a cache.
fn places(kernels: &Path) -> [PathBuf; 4] {
    [kernels.to_owned(), kernels.join("entries"), kernels.join("use"), kernels.join("tmp")]
}

/// Creates a folder and its missing parents, accessible to this user only.
fn create_private(folder: &Path) -> Result<(), CacheError> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(disk("create", folder))
}

/// Checks the cache folder itself. It may be reached through links but must belong to this user or root: its owner,
/// and anybody with write access, could replace it. A group with write access is accepted only if it is the user's
/// private group.
fn check_outer(folder: &Path) -> Result<(), CacheError> {
    let refused = |reason: String| CacheError::Folder { path: folder.to_owned(), reason };
    let metadata = fs::metadata(folder).map_err(disk("inspect", folder))?;
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        return Err(refused(format!("it belongs to user {}", metadata.uid())));
    }
    // Write access to a folder allows renaming other users' files in it, unless the folder is sticky.
    let mode = if metadata.mode() & 0o1000 == 0 { metadata.mode() } else { 0 };
    if mode & 0o002 != 0 {
        return Err(refused("it is writable by every user; run `chmod o-w` on it".to_owned()));
    }
    // A user's private group has the user's ID and no other members.
    if mode & 0o020 != 0 && metadata.gid() != metadata.uid() {
        let group = metadata.gid();
        return Err(refused(format!("it is writable by group {group}; run `chmod g-w` on it")));
    }
    Ok(())
}

/// Checks an inner folder, and closes it to other users if it is open.
fn check_inner(folder: &Path) -> Result<(), CacheError> {
    if check_own(folder)?.mode() & 0o077 != 0 {
        let close = || File::open(folder)?.set_permissions(fs::Permissions::from_mode(0o700));
        let closed: io::Result<()> = close();
        if let Err(error) = closed {
            let reason = format!("other users can enter it, and its mode cannot be changed: {error}");
            return Err(CacheError::Folder { path: folder.to_owned(), reason });
        }
    }
    Ok(())
}

/// Checks that an inner folder is a real folder owned by this user.
fn check_own(folder: &Path) -> Result<fs::Metadata, CacheError> {
    let refused = |reason: String| CacheError::Folder { path: folder.to_owned(), reason };
    let metadata = fs::symlink_metadata(folder).map_err(disk("inspect", folder))?;
    if metadata.is_symlink() {
        return Err(refused("it is a symbolic link".to_owned()));
    }
    if !metadata.is_dir() {
        return Err(refused("it is not a folder".to_owned()));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused(format!("it belongs to user {}", metadata.uid())));
    }
    Ok(metadata)
}

/// Returns true if a rename failed because the destination exists.
fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}
