//! Locks between processes: a locked file whose text says who has it. They end with their owner, however it ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;

use crate::process::Cancel;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
    path: PathBuf,
    /// Whether its file goes when it is released. Somebody who has opened it by then finds that it is no longer the
    /// file of that name, and begins anew.
    is_temporary: bool,
}

/// What became of waiting for a lock.
#[derive(Debug)]
pub(super) enum Waited {
    /// It is ours; whether somebody else had it before.
    Acquired(FileLock, bool),
    /// The wish to stop came first.
    Cancelled,
}

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(40);
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Pauses that grow.
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
    /// The lock at `path` if it is free.
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
        // Its owner may have removed it between our opening and our locking it.
        let is_current = fs::symlink_metadata(path)
            .ok()
            .zip(file.metadata().ok())
            .is_some_and(|(at_path, ours)| (at_path.dev(), at_path.ino()) == (ours.dev(), ours.ino()));
        if !is_current {
            return Ok(None);
        }
        let lock = FileLock { file, path: path.to_owned(), is_temporary };
        // Only people read it: a disk that is full does not keep anybody from locking.
        let _ = lock.sign();
        Ok(Some(lock))
    }

    /// Waits for the lock at `path`. `on_wait` is told who has it, once for each owner.
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
            // Somebody who has just got it has not signed yet.
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
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.split_whitespace().next().unwrap_or("this machine");
        self.file.set_len(0)?;
        (&self.file).write_all(format!("{} {since} {host}\n", std::process::id()).as_bytes())
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_file(&self.path);
        }
        // Closing would not do while a process that another thread is starting has a copy of the handle.
        let _ = self.file.unlock();
    }
}

/// Removes the files of locks that nobody holds: their owners were killed. Those whose names begin so stay.
pub(super) fn sweep(folder: &Path, except: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(except) {
            // To release it removes it.
            drop(FileLock::attempt(&entry.path(), true));
        }
    }
}

/// Who has a lock, in words.
fn owner(path: &Path) -> Option<String> {
    const LONGEST: u64 = 512;
    let mut text = String::new();
    File::open(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    let mut words = text.split_whitespace();
    let (pid, since) = (words.next()?, words.next()?);
    let host = words.collect::<Vec<_>>().join(" ");
    let since = UNIX_EPOCH + Duration::from_secs(since.parse().ok()?);
    let seconds = SystemTime::now().duration_since(since).map_or(0, |passed| passed.as_secs());
    Some(format!("process {pid} on {host}, which has been at it for {seconds} s"))
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
