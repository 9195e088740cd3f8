//! The folder that a kernel's files lie in: the temporary one of a build, removed on every way out of it, or an entry
//! of the cache.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use rustix::fs::OFlags;

use crate::temporary::{forget_temporary, register_temporary, remove};

/// The files of a kernel, for as long as anybody uses them.
#[derive(Debug)]
pub(crate) struct Folder {
    place: Place,
    /// What the library must be when it is loaded; `None` until it was verified.
    library: Option<blake3::Hash>,
}

#[derive(Debug)]
enum Place {
    /// Removed with all its contents when it is dropped. The inner folder is `None` only while that happens.
    Temporary { inner: Option<tempfile::TempDir>, _owner: File },
    /// In use for as long as the lock is held. There is none where the cache cannot be written to.
    Entry { path: PathBuf, _in_use: Option<File> },
}

/// The locked file in a temporary folder that shows that its owner lives. Its text says who that is.
pub(crate) const OWNER: &str = "owner";
/// Beside a folder for temporary folders that is swept: the file that is locked for making and for sweeping them.
pub(crate) const SWEEP_LOCK: &str = "sweep.lock";
/// What the names of temporary folders begin with.
pub(crate) const PREFIX: &str = "fourfold-";

impl Folder {
    /// A fresh private folder in `parent`, or in the system's folder for temporary files.
    pub(crate) fn new(parent: Option<&Path>) -> io::Result<Folder> {
        Folder::called(parent, None)
    }

    /// As [`Folder::new`], but its name ends so as long as no other has that name.
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
        // While this is held nobody looks for folders without an owner: this one has none for a moment.
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
        // Where files cannot be locked, nobody can find out that this one is not.
        let _ = owner.try_lock();
        drop(creating);
        writeln!(owner, "process {}", std::process::id())?;
        // Last: what fails above removes the folder, and leaves nothing here.
        register_temporary(inner.path());
        Ok(Folder { place: Place::Temporary { inner: Some(inner), _owner: owner }, library: None })
    }

    /// An entry of the cache, whose library has this hash.
    pub(crate) fn entry(path: PathBuf, in_use: Option<File>, library: blake3::Hash) -> Folder {
        Folder { place: Place::Entry { path, _in_use: in_use }, library: Some(library) }
    }

    /// Says what the library here must be when it is loaded.
    pub(crate) fn expect_library(&mut self, library: blake3::Hash) {
        self.library = Some(library);
    }

    pub(crate) fn path(&self) -> &Path {
        match &self.place {
            Place::Temporary { inner, .. } => inner.as_ref().map_or(Path::new(""), |inner| inner.path()),
            Place::Entry { path, .. } => path,
        }
    }

    /// Whether the kernel is one that the cache keeps.
    pub(crate) fn is_entry(&self) -> bool {
        matches!(self.place, Place::Entry { .. })
    }

    /// Whether the library is still what it was when the kernel was found; if not, why.
    pub(crate) fn check_library(&self, library: &Path) -> Result<(), String> {
        let Some(expected) = self.library else { return Ok(()) };
        let bytes = fs::read(library).map_err(|error| error.to_string())?;
        if blake3::hash(&bytes) == expected {
            Ok(())
        } else {
            Err("it is no longer the file that was verified".to_owned())
        }
    }
}

/// Keeps sweepers out of a folder for temporary folders; one that nobody sweeps has no file for that. Where it fails, the
/// moment that it is for is short.
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
            // Unwinds without the message of a panic.
            std::panic::resume_unwind(Box::new(()))
        });
        assert!(result.is_err());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
