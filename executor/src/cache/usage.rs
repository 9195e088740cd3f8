//! Usage tracking: which entries are in use, and the time of each entry's last use.
//!
//! Each entry has a file in `use/`, whose modification time is the time of last use. A user of the entry holds a
//! shared lock on it, which the kernel releases when the process ends. Eviction takes an exclusive lock and removes
//! the file with the entry. After acquiring a lock, check that the path still names the locked file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;

/// Time limit for waiting on an eviction, or on other short work under a lock.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// Marks an entry as used now, and as in use while the result lives.
pub(super) fn begin(file: &Path) -> io::Result<File> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let lock = open(file, true)?;
        if try_until(deadline, || lock.try_lock_shared())? && is_still(&lock, file) {
            // A failed update only affects eviction order.
            let _ = lock.set_modified(SystemTime::now());
            return Ok(lock);
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "another process holds the lock"));
        }
    }
}

/// Locks an entry for removal; `None` while it is in use.
pub(super) fn claim(file: &Path) -> io::Result<Option<File>> {
    let lock = open(file, true)?;
    match lock.try_lock() {
        Ok(()) => Ok(is_still(&lock, file).then_some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Returns true while a process uses the entry.
pub(super) fn is_in_use(file: &Path) -> bool {
    // The check holds the lock for a moment; a process starting to use the entry retries.
    let Ok(lock) = open(file, false) else { return false };
    matches!(lock.try_lock(), Err(TryLockError::WouldBlock))
}

/// Protects an entry from eviction without updating its time of use. `None` if it cannot be locked.
pub(super) fn hold(file: &Path) -> Option<File> {
    let lock = open(file, false).ok()?;
    lock.try_lock_shared().is_ok().then_some(lock)
}

/// The time of the entry's last use.
pub(super) fn last_use(file: &Path, entry: &Path) -> SystemTime {
    let time = |path: &Path| fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    time(file).or_else(|_| time(entry)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Takes a lock for short work; `false` at the time limit.
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

/// Opens a lock file.
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
    if opened.metadata()?.is_file() { Ok(opened) } else { Err(io::Error::other("it is not a regular file")) }
}

fn is_still(lock: &File, file: &Path) -> bool {
    let (Ok(held), Ok(named)) = (lock.metadata(), fs::symlink_metadata(file)) else { return false };
    (held.dev(), held.ino()) == (named.dev(), named.ino())
}
