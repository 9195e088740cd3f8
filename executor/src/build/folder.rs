//! The temporary folder of one build, removed on every way out of it.

use std::path::Path;
use std::time::Duration;
use std::{fs, io, thread};

/// A private temporary folder that is removed with all its contents when it is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    /// `None` only while it is being dropped.
    inner: Option<tempfile::TempDir>,
}

impl Folder {
    /// A fresh folder in `parent`, or in the system's folder for temporary files.
    pub(super) fn new(parent: Option<&Path>) -> io::Result<Folder> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("fourfold-");
        let inner = match parent {
            Some(parent) => builder.tempdir_in(std::path::absolute(parent)?)?,
            None => builder.tempdir()?,
        };
        Ok(Folder { inner: Some(inner) })
    }

    pub(super) fn path(&self) -> &Path {
        self.inner.as_ref().map_or(Path::new(""), |inner| inner.path())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A child of a stopped compiler may create a file while the folder is being emptied.
        const ATTEMPTS: usize = 10;
        const PAUSE: Duration = Duration::from_millis(20);
        let Some(inner) = self.inner.take() else { return };
        for _ in 0..ATTEMPTS {
            match fs::remove_dir_all(inner.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
                _ => break,
            }
        }
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
