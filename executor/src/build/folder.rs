//! The folder that holds a kernel's files: a build's temporary folder, which is always removed, or a cache entry.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use rustix::fs::OFlags;

use crate::temporary::{forget_temporary, register_temporary, remove};

/// A kernel's files, kept while in use.
#[derive(Debug)]
pub(crate) struct Folder {
    place: Place,
    /// The expected hash of the library at load time; `None` until it is verified.
    library: Option<blake3::Hash>,
}

#[derive(Debug)]
enum Place {
    /// Removed with its contents on drop; `inner` is `None` only during drop.
    Temporary { inner: Option<tempfile::TempDir>, _owner: File },
    /// Protected from eviction by the lock. `None` if the cache is read-only.
    Entry { path: PathBuf, _in_use: Option<File> },
}

/// The locked file that shows that a temporary folder's owner is alive. It names the owner's process.
pub(crate) const OWNER: &str = "owner";
/// The lock file beside a swept folder of temporary folders, taken to make or sweep them.
pub(crate) const SWEEP_LOCK: &str = "sweep.lock";
/// The name prefix of temporary folders.
pub(crate) const PREFIX: &str = "fourfold-";

impl Folder {
    /// Creates a private folder in `parent`, or in the system's temporary folder.
    pub(crate) fn new(parent: Option<&Path>) -> io::Result<Folder> {
        Folder::called(parent, None)
    }

    /// Like [`Folder::new`], with a name that ends in `name` unless that is taken.
    pub(crate) fn called(parent: Option<&Path>, name: Option<&str>) -> io::Result<Folder> {
        let make = |parent: &Path| {
            if let Some(name) = name {
                let made =
                    tempfile::Builder::new().prefix(PREFIX).rand_bytes(0).suffix(name).tempdir_in(parent);
                match made {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => return made,
                }
            }
            tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)
        };
        // Blocks sweeping while the new folder has no owner file yet.
        let mut creating = None;
        let inner = match parent {
            Some(parent) => {
                let parent = std::path::absolute(parent)?;
                creating = lock_against_sweeping(&parent);
                make(&parent)?
            }
            None => make(&std::env::temp_dir())?,
        };
        let mut owner =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(inner.path().join(OWNER))?;
        // On a file system without locks nobody can detect the missing lock.
        let _ = owner.try_lock();
        drop(creating);
        writeln!(owner, "process {}", std::process::id())?;
        // Last: a failure above removes the folder and must leave nothing registered.
        register_temporary(inner.path());
        Ok(Folder { place: Place::Temporary { inner: Some(inner), _owner: owner }, library: None })
    }

    /// A cache entry whose library has this hash.
    pub(crate) fn entry(path: PathBuf, in_use: Option<File>, library: blake3::Hash) -> Folder {
        Folder { place: Place::Entry { path, _in_use: in_use }, library: Some(library) }
    }

    /// Sets the expected hash of the library at load time.
    pub(crate) fn expect_library(&mut self, library: blake3::Hash) {
        self.library = Some(library);
    }

    pub(crate) fn path(&self) -> &Path {
        match &self.place {
            Place::Temporary { inner, .. } => inner.as_ref().map_or(Path::new(""), |inner| inner.path()),
            Place::Entry { path, .. } => path,
        }
    }

    /// Returns true for a cache entry.
    pub(crate) fn is_entry(&self) -> bool {
        matches!(self.place, Place::Entry { .. })
    }

    /// Checks that the library is unchanged since it was verified.
    pub(crate) fn check_library(&self, library: &Path) -> Result<(), String> {
        let Some(expected) = self.library else { return Ok(()) };
        let bytes = fs::read(library).map_err(|error| error.to_string())?;
        if blake3::hash(&bytes) == expected {
            Ok(())
        } else {
            Err("it changed after it was verified".to_owned())
        }
    }
}

/// Blocks sweeping of a folder of temporary folders; unswept folders have no lock file. If locking fails, the
/// unprotected window is short.
fn lock_against_sweeping(parent: &Path) -> Option<File> {
    const ATTEMPTS: usize = 500;
    const PAUSE: Duration = Duration::from_millis(2);
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = parent.with_file_name(SWEEP_LOCK);
    let lock = OpenOptions::new().read(true).write(true).custom_flags(flags).open(file).ok()?;
    for _ in 0..ATTEMPTS {
        match lock.try_lock_shared() {
            Ok(()) => return Some(lock),
            Err(fs::TryLockError::WouldBlock) => thread::sleep(PAUSE),
            Err(fs::TryLockError::Error(_)) => return None,
        }
    }
    None
}

impl Drop for Folder {
    fn drop(&mut self) {
        let Place::Temporary { inner, .. } = &mut self.place else { return };
        let Some(inner) = inner.take() else { return };
        forget_temporary(inner.path());
        remove(inner.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_its_contents_vanish_even_when_the_work_panics() {
        let parent = tempfile::tempdir().unwrap();
        let result = std::panic::catch_unwind(|| {
            let folder = Folder::new(Some(parent.path())).unwrap();
            fs::create_dir(folder.path().join("tmp")).unwrap();
            fs::write(folder.path().join("tmp/kernel.ptx"), "x").unwrap();
            assert!(folder.path().file_name().unwrap().to_str().unwrap().starts_with("fourfold-"));
            // Unwinds without printing a panic message.
            std::panic::resume_unwind(Box::new(()))
        });
        assert!(result.is_err());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
