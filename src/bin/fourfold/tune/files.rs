//! Files of records.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fourfold_tuner::record::Record;
use fourfold_tuner::records::{self, Lines};

/// The records of a file.
pub fn read(path: &Path) -> Result<Lines> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    records::read(&text).with_context(|| path.display().to_string())
}

/// A file that records are added to, by this process alone.
pub struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    /// Opens a file, or makes one; what a killed writer left of a last line is cut off. Also gives what it holds.
    pub fn open(path: &Path) -> Result<(Log, Lines)> {
        let name = || path.display().to_string();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot write to {}", name()))?;
        match lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "{} is being written by another sweep: give this one a file of its own with --out",
                    name()
                )
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", name()));
            }
        }
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(|| format!("cannot read {}", name()))?;
        let lines = records::read(&text).with_context(name)?;
        let whole = match &lines.torn {
            Some(_) => text.rfind('\n').map_or(0, |end| end + 1),
            None => text.len(),
        };
        file.set_len(whole as u64).with_context(|| format!("cannot shorten {}", name()))?;
        file.seek(SeekFrom::End(0)).with_context(|| format!("cannot append to {}", name()))?;
        if whole > 0 && !text[..whole].ends_with('\n') {
            file.write_all(b"\n").with_context(|| format!("cannot append to {}", name()))?;
        }
        Ok((Log { file, path: path.to_owned() }, lines))
    }

    /// Adds a record, as one write, and waits until it is on the disk.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record).context("a record")?;
        line.push(b'\n');
        let path = &self.path;
        self.file.write_all(&line).with_context(|| format!("cannot append to {}", path.display()))?;
        self.file.sync_data().with_context(|| format!("cannot append to {}", path.display()))
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

/// Writes a whole file.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
