//! Keeps built kernels on disk, for every process of this user: found by what they are made of, verified at every use.
//!
//! Below the cache folder lies `kernels/`, which only this user may enter:
//!
//! - `entries/KEY/` is one kernel: library, source, log, what it costs, and a manifest of their hashes. It is written
//!   whole in a folder of its own, becomes visible by one rename, and is read-only from then on;
//! - `use/KEY` says when the entry was used last, and is locked while it is in use;
//! - `tmp/` holds the folders of running builds and inserts.
//!
//! What this machine lacks is looked for in tiers: folders or object stores with the same entries, which a fleet shares.
//! They are only read, verified by their manifests, never by who owns what, and copied into the cache. A manifest shows
//! that an entry is whole, not who made it: a tier is code that will run, and is to be trusted like a compiler.
//!
//! Nothing that is found is believed: links, other users' files and whatever differs from its manifest by a byte are
//! refused, removed and reported, and the kernel is built again. The library is verified once more right before it is
//! loaded. What all this guards against are accidents and other users; who can write to this user's files can do
//! anything in this user's name anyway.

mod entry;
mod error;
mod evict;
mod key;
mod manifest;
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

/// Where the cache is, how large it may grow, and where else kernels are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// The cache folder; kernels lie in `kernels` below it.
    pub folder: PathBuf,
    /// How many bytes the entries may have together. Those in use stay, even where they have more.
    pub capacity: u64,
    /// Further places with entries, which are only read: folders, or URLs of object stores.
    pub tiers: Vec<String>,
    /// Use kernels, too, that were built with versions that are known to be bad for their targets.
    pub allow_known_bad: bool,
}

impl CacheOptions {
    /// Some two thousand kernels.
    pub const CAPACITY: u64 = 4 << 30;

    /// A cache in this folder, of the usual size and alone.
    pub fn new(folder: impl Into<PathBuf>) -> CacheOptions {
        CacheOptions {
            folder: folder.into(),
            capacity: CacheOptions::CAPACITY,
            tiers: Vec::new(),
            allow_known_bad: false,
        }
    }

    /// The cache that the environment asks for.
    ///
    /// # Errors
    /// When no variable says where it could be, or `FOURFOLD_CACHE_SIZE` is no size.
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
            // One that is no text is refused by itself when it is asked.
            let tiers = tiers.to_string_lossy();
            options.tiers =
                tiers.split(',').map(str::trim).filter(|tier| !tier.is_empty()).map(str::to_owned).collect();
        }
        Ok(options)
    }
}

/// Built kernels on disk. Clones share it.
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

/// What the names of entries begin with that are set aside until they are removed.
const ASIDE: &str = ".refused-";

/// What a look into the cache found.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The kernel.
    pub artifact: Option<Artifact>,
    /// Where it came from.
    pub origin: Origin,
    /// What was refused on the way.
    pub notes: Vec<Refusal>,
}

/// Where a kernel came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This machine's cache.
    Local,
    /// A tier, by its name, without what may be secret in it.
    Tier(String),
}

impl Cache {
    /// Opens the cache, and creates what is missing of it.
    ///
    /// # Errors
    /// When the folder cannot be made, belongs to somebody else, is a link, or can be written by others. A folder that
    /// cannot be written to is none: what is in it is used. A tier that this program cannot read is no error either: it
    /// is noted when it is asked ([`check_tier`]).
    pub fn open(options: &CacheOptions) -> Result<Cache, CacheError> {
        let folder = std::path::absolute(&options.folder).map_err(disk("find", &options.folder))?;
        create_private(&folder)?;
        check_outer(&folder)?;
        let kernels = folder.join("kernels");
        for place in places(&kernels) {
            create_private(&place)?;
            check_inner(&place)?;
        }
        // Before any folder is made in `tmp`. Where it cannot be written, nobody makes or sweeps any.
        let _ = usage::open(&kernels.join(SWEEP_LOCK), true);
        let tiers = options.tiers.iter().map(|name| Tier::open_or_refuse(name)).collect();
        Ok(Cache::of(kernels, options, tiers))
    }

    /// The cache as it is, to be looked at: nothing is created, changed or removed, not even what dead processes left.
    /// `None` where there is none yet.
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

    /// How many bytes it may have.
    pub fn capacity(&self) -> u64 {
        self.inner.capacity
    }

    /// The folder with everything about kernels.
    pub fn folder(&self) -> &Path {
        &self.inner.kernels
    }

    /// The tiers as they were given, with whatever is secret in them.
    pub(crate) fn tier_places(&self) -> Vec<&str> {
        self.inner.tiers.iter().map(Tier::place).collect()
    }

    /// The folder for the temporary folders of builds.
    pub fn temporary(&self) -> PathBuf {
        self.inner.kernels.join("tmp")
    }

    /// Removes what dead processes left, and kills the compilers that they left, as far as that can be done.
    pub fn sweep(&self) -> Swept {
        self.try_sweep().unwrap_or_default()
    }

    /// As [`Cache::sweep`].
    ///
    /// # Errors
    /// When something cannot be looked at or locked, as on file systems without locks. What is left stays there.
    pub fn try_sweep(&self) -> Result<Swept, CacheError> {
        self.remove_leftovers();
        let temporary = self.temporary();
        temp::sweep(&temporary).map_err(disk("put in order", &temporary))
    }

    /// Looks a kernel up, here and then in the tiers, and marks it as used now. Every byte of it is verified; an entry
    /// that is refused here is removed, and each refusal is reported. It takes as long as reading the entry, or at most
    /// some seconds for each tier that does not answer.
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

    /// Keeps a built kernel. Where another process was first, it is that process's entry which is returned.
    ///
    /// # Errors
    /// When the entry cannot be written. The kernel itself is good, and can be used without the cache.
    pub fn insert(&self, key: &CacheKey, built: &Artifact) -> Result<Artifact, CacheError> {
        let contents = Contents::of(*key, built).map_err(disk("read the library", built.library()))?;
        self.publish(key, &contents)
    }

    /// The entry of this machine.
    fn local(&self, key: &CacheKey, notes: &mut Vec<Refusal>) -> Option<Artifact> {
        let path = self.entry(key);
        // Before its file of use is made: what is not there must not leave one.
        fs::symlink_metadata(&path).ok()?;
        // Without a lock, where the cache cannot be written to, nobody of this machine could remove the entry either.
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

    /// Refuses an entry of this machine that was built with what is known to be bad.
    fn admit(&self, path: &Path, contents: Contents) -> Result<Contents, Unusable> {
        match (self.objection(&contents), Identity::at(path)) {
            (None, _) => Ok(contents),
            (Some(reason), Ok(identity)) => Err(Unusable::Refused(reason, identity)),
            (Some(_), Err(_)) => Err(Unusable::Absent),
        }
    }

    /// Returns the reason whole contents are not used.
    fn objection(&self, contents: &Contents) -> Option<Reason> {
        if self.inner.allow_known_bad { None } else { contents.known_bad() }
    }

    /// Writes an entry and makes it visible.
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
            let staging = Folder::new(Some(&temporary)).map_err(disk("make a folder in", &temporary))?;
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
            // In use before it is visible, so that nobody removes it before it was of any use.
            let use_file = self.use_file(key);
            let _in_use = usage::begin(&use_file).map_err(disk("lock", &use_file))?;
            match fs::rename(&staged, &path) {
                Ok(()) => {
                    // Nothing is added to an entry any more. A folder that stays writable is verified all the same.
                    let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o500));
                    let _ = entry::sync_folder(&entries);
                }
                Err(error) if is_taken(&error) => {}
                Err(error) => return Err(disk("rename into place", &path)(error)),
            }
            if let Some(artifact) = self.local(key, &mut notes) {
                self.keep_within_bound();
                return Ok(artifact);
            }
            if !staged.exists() {
                break;
            }
            // An entry that cannot be read makes way for one that was just built.
            if notes.last().is_some_and(|note| note.reason.passes())
                && let Ok(identity) = Identity::at(&path)
            {
                self.discard(&path, identity);
            }
        }
        let reason = notes.pop().map_or_else(|| "it vanishes".to_owned(), |note| note.reason.to_string());
        Err(CacheError::InTheWay { key: key.to_string(), reason })
    }

    /// Takes away what lies where an entry does, unless something else has taken its place meanwhile.
    fn discard(&self, path: &Path, identity: Identity) -> Action {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Beside it, because another user's folder can be renamed but not moved.
        let aside = self.entries().join(format!("{ASIDE}{}-{count}-{name:.16}", std::process::id()));
        if let Err(error) = fs::rename(path, &aside) {
            return match error.kind() {
                io::ErrorKind::NotFound => Action::Removed,
                _ => Action::Stuck { why: error.to_string() },
            };
        }
        if Identity::at(&aside).ok() != Some(identity) {
            // Somebody has replaced it by another entry a moment ago; if a third is there by now, that one stays.
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

/// Makes a folder and what is missing above it, for this user only.
fn create_private(folder: &Path) -> Result<(), CacheError> {
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(disk("create", folder))
}

/// The cache folder itself may be reached through links, and must be this user's or the system's: who owns it, or may
/// write to it, could put another in its place. That goes for its group too, unless it is the owner's private one.
fn check_outer(folder: &Path) -> Result<(), CacheError> {
    let refused = |reason: String| CacheError::Folder { path: folder.to_owned(), reason };
    let metadata = fs::metadata(folder).map_err(disk("look at", folder))?;
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        return Err(refused(format!("it belongs to user {}", metadata.uid())));
    }
    // Whoever may write to a folder may rename what others have there, unless it is sticky.
    let mode = if metadata.mode() & 0o1000 == 0 { metadata.mode() } else { 0 };
    if mode & 0o002 != 0 {
        return Err(refused("every user can write to it; `chmod o-w` ends that".to_owned()));
    }
    // A user's private group has the number of the user, and no other member.
    if mode & 0o020 != 0 && metadata.gid() != metadata.uid() {
        let group = metadata.gid();
        return Err(refused(format!("everybody in group {group} can write to it; `chmod g-w` ends that")));
    }
    Ok(())
}

/// The folders below it are closed to others besides; one that is open is closed.
fn check_inner(folder: &Path) -> Result<(), CacheError> {
    if check_own(folder)?.mode() & 0o077 != 0 {
        let close = || File::open(folder)?.set_permissions(fs::Permissions::from_mode(0o700));
        let closed: io::Result<()> = close();
        if let Err(error) = closed {
            let reason = format!("others can enter it, and that cannot be changed: {error}");
            return Err(CacheError::Folder { path: folder.to_owned(), reason });
        }
    }
    Ok(())
}

/// The folders below it are real ones, and this user's.
fn check_own(folder: &Path) -> Result<fs::Metadata, CacheError> {
    let refused = |reason: String| CacheError::Folder { path: folder.to_owned(), reason };
    let metadata = fs::symlink_metadata(folder).map_err(disk("look at", folder))?;
    if metadata.is_symlink() {
        return Err(refused("it is a symbolic link".to_owned()));
    }
    if !metadata.is_dir() {
        return Err(refused("it is no folder".to_owned()));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused(format!("it belongs to user {}", metadata.uid())));
    }
    Ok(metadata)
}

/// Whether a rename failed because something is there already.
fn is_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
}
