//! Locks between processes: a locked file whose text names the owner. The lock ends with its owner's process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;

use crate::host::host_name;
use crate::process::Cancel;

/// A lock held until it is dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
    path: PathBuf,
    /// Delete the file on release. A process that has it open by then notices that the path no longer names it, and
    /// starts over.
    is_temporary: bool,
}

/// The result of waiting for a lock.
#[derive(Debug)]
pub(super) enum Waited {
    /// Acquired; true if another process held it before.
    Acquired(FileLock, bool),
    /// Cancelled before it was acquired.
    Cancelled,
}

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(40);
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Exponentially growing pauses.
pub(super) struct BackOff(Duration);

impl BackOff {
    pub(super) fn new() -> BackOff {
        BackOff(FIRST_PAUSE)
    }

    pub(super) fn pause(&mut self) {
        thread::sleep(self.0);
        self.0 = (self.0 * 3 / 2).min(LONGEST_PAUSE);
    }
}

impl FileLock {
    /// Acquires the lock at `path` if it is free.
    pub(super) fn attempt(path: &Path, is_temporary: bool) -> io::Result<Option<FileLock>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The previous owner may have removed the file between our open and our lock.
        let is_current = fs::symlink_metadata(path)
            .ok()
            .zip(file.metadata().ok())
            .is_some_and(|(at_path, ours)| (at_path.dev(), at_path.ino()) == (ours.dev(), ours.ino()));
        if !is_current {
            return Ok(None);
        }
        let lock = FileLock { file, path: path.to_owned(), is_temporary };
        // The text is informational, so a full disk does not prevent locking.
        let _ = lock.sign();
        Ok(Some(lock))
    }

    /// Waits for the lock at `path`. Calls `on_wait` with a description of each owner.
    pub(super) fn acquire(
        path: &Path,
        cancel: &Cancel,
        on_wait: &mut dyn FnMut(String),
    ) -> io::Result<Waited> {
        let mut back_off = BackOff::new();
        let mut told = None;
        loop {
            if cancel.is_cancelled() {
                return Ok(Waited::Cancelled);
            }
            if let Some(lock) = FileLock::attempt(path, true)? {
                return Ok(Waited::Acquired(lock, told.is_some()));
            }
            // A new owner may not have signed yet.
            let owner = owner(path);
            if told.is_none() || owner.is_some() && told.as_ref() != Some(&owner) {
                let name = owner.clone().unwrap_or_else(|| "another process".to_owned());
                on_wait(name);
                told = Some(owner);
            }
            back_off.pause();
        }
    }

    fn sign(&self) -> io::Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let host = host_name().unwrap_or_else(|| "this machine".to_owned());
        self.file.set_len(0)?;
        (&self.file).write_all(format!("{} {since} {host}\n", std::process::id()).as_bytes())
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_file(&self.path);
        }
        // Closing is not enough while a process being forked by another thread has a copy of the handle.
        let _ = self.file.unlock();
    }
}

/// Removes lock files of dead owners, except names starting with `except`.
pub(super) fn sweep(folder: &Path, except: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(except) {
            // Dropping the lock removes its file.
            drop(FileLock::attempt(&entry.path(), true));
        }
    }
}

/// Describes the owner of a lock.
fn owner(path: &Path) -> Option<String> {
    const LONGEST: u64 = 512;
    let mut text = String::new();
    File::open(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    let mut words = text.split_whitespace();
    let (pid, since) = (words.next()?, words.next()?);
    let host = words.collect::<Vec<_>>().join(" ");
    let since = UNIX_EPOCH + Duration::from_secs(since.parse().ok()?);
    let seconds = SystemTime::now().duration_since(since).map_or(0, |passed| passed.as_secs());
    Some(format!("process {pid} on {host}, which started {seconds} s ago"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_named_to_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = FileLock::attempt(&path, true).unwrap().expect("it is free");
        assert!(FileLock::attempt(&path, true).unwrap().is_none());
        assert!(owner(&path).unwrap().starts_with(&format!("process {} on ", std::process::id())));
        let cancel = Cancel::new();
        let mut owners = Vec::new();
        let waited = FileLock::acquire(&path, &cancel, &mut |owner| {
            owners.push(owner);
            cancel.cancel();
        });
        assert!(matches!(waited.unwrap(), Waited::Cancelled));
        assert_eq!(owners.len(), 1);
        drop(held);
        assert!(!path.exists());
        let waited = FileLock::acquire(&path, &Cancel::new(), &mut |_| panic!("it is free"));
        assert!(matches!(waited.unwrap(), Waited::Acquired(_, false)));
    }

    #[test]
    fn many_threads_hold_a_lock_one_after_the_other() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let (inside, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let waited = FileLock::acquire(&path, &Cancel::new(), &mut |_| {}).unwrap();
                        assert!(matches!(waited, Waited::Acquired(..)));
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                        total.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 16 * 20);
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (folder.path().join("lock"), folder.path().join("elsewhere"));
        fs::write(&elsewhere, "precious").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(FileLock::attempt(&path, true).is_err());
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
    }
}
