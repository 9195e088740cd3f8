//! Append-only files.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{FileError, open_checked, text_of};

/// A regular file to which only this process appends.
#[derive(Debug)]
pub struct AppendFile {
    file: File,
    path: PathBuf,
}

impl AppendFile {
    /// Opens or creates a file, and returns its content: UTF-8 text of at most `limit` bytes.
    ///
    /// # Errors
    /// When the file cannot be written or read, is not a regular file, exceeds the limit, is not text, or is open in
    /// another process.
    pub fn open(path: &Path, limit: u64) -> Result<(AppendFile, String), FileError> {
        let failed = |path, source| FileError::Write { path, source };
        let mut options = OpenOptions::new();
        let (file, _) = open_checked(path, options.read(true).append(true).create(true), failed)?;
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FileError::Locked { path: path.to_owned() }),
            // Some file systems do not support locks.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(failed(path.to_owned(), error)),
        }
        let text = text_of(&file, path, limit)?;
        Ok((AppendFile { file, path: path.to_owned() }, text))
    }

    /// Truncates the file to `bytes` bytes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn cut(&mut self, bytes: u64) -> Result<(), FileError> {
        let cut = self.file.set_len(bytes).and_then(|()| self.file.seek(SeekFrom::End(0)));
        cut.map(|_| ()).map_err(|source| FileError::Write { path: self.path.clone(), source })
    }

    /// Appends bytes with one write, and syncs them to disk.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        written.map_err(|source| FileError::Write { path: self.path.clone(), source })
    }
}

/// Locks a file, retrying for a short time: a process that a killed sweep was just starting, such as a compiler,
/// holds the file until its `exec`.
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
