//! Files that lines are added to.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{FileError, open_checked, text_of};

/// A regular file that this process alone adds to.
#[derive(Debug)]
pub struct AppendFile {
    file: File,
    path: PathBuf,
}

impl AppendFile {
    /// Opens a file, or makes one, and gives what it holds: UTF-8 text of at most `limit` bytes.
    ///
    /// # Errors
    /// When it cannot be written or read, is not a regular file, is longer, is not text, or another process has it open.
    pub fn open(path: &Path, limit: u64) -> Result<(AppendFile, String), FileError> {
        let failed = |path, source| FileError::Write { path, source };
        let mut options = OpenOptions::new();
        let (file, _) = open_checked(path, options.read(true).append(true).create(true), failed)?;
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FileError::Locked { path: path.to_owned() }),
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(failed(path.to_owned(), error)),
        }
        let text = text_of(&file, path, limit)?;
        Ok((AppendFile { file, path: path.to_owned() }, text))
    }

    /// Cuts the file after so many bytes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn cut(&mut self, bytes: u64) -> Result<(), FileError> {
        let cut = self.file.set_len(bytes).and_then(|()| self.file.seek(SeekFrom::End(0)));
        cut.map(|_| ()).map_err(|source| FileError::Write { path: self.path.clone(), source })
    }

    /// Adds bytes, as one write, and waits until they are on the disk.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        written.map_err(|source| FileError::Write { path: self.path.clone(), source })
    }
}

/// Locks a file, if nobody else has it for long: what a killed sweep was just about to start, a compiler say, has the file
/// until it runs.
fn lock(file: &File) -> Result<(), TryLockError> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}
