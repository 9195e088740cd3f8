//! Which entries are in use, and when each was used last.
//!
//! Every entry has a file in `use/`. Who uses the entry holds a shared lock on it, which the system takes away when the
//! process ends, however it ends; its time of modification is that of the last use. Who removes the entry takes the
//! lock alone, and removes the file with it. So whoever gets a lock must see that it is still the file of that name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;

/// How long to wait for somebody who is removing an entry, or for another short piece of work under a lock.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// Marks an entry as used now, and as in use for as long as the result lives.
pub(super) fn begin(file: &Path) -> io::Result<File> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let lock = open(file, true)?;
        if try_until(deadline, || lock.try_lock_shared())? && is_still(&lock, file) {
            // A time that cannot be set costs an entry its place in the order, nothing else.
            let _ = lock.set_modified(SystemTime::now());
            return Ok(lock);
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "somebody else keeps it locked"));
        }
    }
}

/// Takes an entry for removal; `None` while anybody uses it.
pub(super) fn claim(file: &Path) -> io::Result<Option<File>> {
    let lock = open(file, true)?;
    match lock.try_lock() {
        Ok(()) => Ok(is_still(&lock, file).then_some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether anybody uses an entry.
pub(super) fn is_in_use(file: &Path) -> bool {
    // Looking takes the lock for a moment; whoever begins to use the entry meanwhile tries again.
    let Ok(lock) = open(file, false) else { return false };
    matches!(lock.try_lock(), Err(TryLockError::WouldBlock))
}

/// Keeps an entry from being removed, without counting as a use of it. Where that cannot be, there is no lock.
pub(super) fn hold(file: &Path) -> Option<File> {
    let lock = open(file, false).ok()?;
    lock.try_lock_shared().is_ok().then_some(lock)
}

/// When an entry was used last.
pub(super) fn last_use(file: &Path, entry: &Path) -> SystemTime {
    let time = |path: &Path| fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    time(file).or_else(|_| time(entry)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Takes a lock for short work; `false` when it was not to be had in time.
pub(super) fn lock_within(lock: &File, shared: bool, limit: Duration) -> io::Result<bool> {
    try_until(Instant::now() + limit, || if shared { lock.try_lock_shared() } else { lock.try_lock() })
}

fn try_until(deadline: Instant, mut attempt: impl FnMut() -> Result<(), TryLockError>) -> io::Result<bool> {
    loop {
        match attempt() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(false),
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
        }
    }
}

/// Opens a file that is there to be locked.
pub(super) fn open(file: &Path, create: bool) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(file)?;
    if opened.metadata()?.is_file() { Ok(opened) } else { Err(io::Error::other("it is not a plain file")) }
}

fn is_still(lock: &File, file: &Path) -> bool {
    let (Ok(held), Ok(named)) = (lock.metadata(), fs::symlink_metadata(file)) else { return false };
    (held.dev(), held.ino()) == (named.dev(), named.ino())
}
