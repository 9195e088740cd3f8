//! The one way in which commands read and write files: regular files only, and no more of them than a limit.
//!
//! A device may never end and a pipe may never begin, so neither is opened. Where a command takes text, `-` names the
//! standard input, which is read to the same limit.

mod append;
mod write;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use serde::Serializer;

pub use self::append::AppendFile;
pub use self::write::write_file;

/// The longest text that is read of a program, a manifest, a table or a list of problems, in bytes.
pub const TEXT_LIMIT: u64 = 64 << 20;
/// The longest file of records that is read, in bytes.
pub const RECORDS_LIMIT: u64 = 1 << 30;
/// The name that stands for the standard input or output.
pub const STANDARD_STREAM: &str = "-";

/// The reason a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be opened or read.
    #[error("cannot read {}", named(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It is a folder, a pipe or a device.
    #[error("`{}` is not a regular file", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The file is longer than any of its kind.
    #[error("{} has more than {limit} bytes, the most that is read", named(path))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The most bytes that are read.
        limit: u64,
    },
    /// The file is not text.
    #[error("{} is not UTF-8 text: the byte at offset {offset} does not belong to a character", named(path))]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is not part of a character.
        offset: usize,
    },
    /// Another process adds to the file.
    #[error("`{}` is being written by another process", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Two inputs are the standard input.
    #[error("`-` is given twice, and the standard input can be read once")]
    StandardInputTwice,
}

impl FileError {
    /// The system's error, if there is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            FileError::Read { source, .. } | FileError::Write { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn named(path: &Path) -> String {
    match is_standard_stream(path) {
        true => "the standard input".to_owned(),
        false => format!("`{}`", path.display()),
    }
}

/// Serializes a path as text, in which whatever is no UTF-8 is replaced: JSON can say nothing else.
///
/// # Errors
/// When the serializer takes no text.
pub fn serialize_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Returns whether a path means the standard input or output: `-`. A file of this name is `./-`.
pub fn is_standard_stream(path: &Path) -> bool {
    path.as_os_str() == STANDARD_STREAM
}

/// The text of a file of at most [`TEXT_LIMIT`] bytes.
///
/// # Errors
/// When the file cannot be read, is not a regular file, is longer, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    let (file, _) = open_regular(path)?;
    text_of(file, path, TEXT_LIMIT)
}

/// The text of a file, or for `-` of the standard input, of at most `limit` bytes.
///
/// # Errors
/// As [`read_text`], and when the standard input was read before.
pub fn read_input(path: &Path, limit: u64) -> Result<String, FileError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if !is_standard_stream(path) {
        let (file, _) = open_regular(path)?;
        return text_of(file, path, limit);
    }
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(FileError::StandardInputTwice);
    }
    text_of(io::stdin().lock(), path, limit)
}

/// The files with this extension in a folder and all folders below it, in order of their paths. Links to folders are
/// not followed.
///
/// # Errors
/// When a folder cannot be read.
pub fn files_below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |source| FileError::Read { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            if entry.file_type().map_err(failed)?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Opens a regular file to read it, and says how long it is.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64), FileError> {
    let mut options = OpenOptions::new();
    open_checked(path, options.read(true), |path, source| FileError::Read { path, source })
}

/// A digest of a regular file of at most `limit` bytes.
pub(crate) fn hash_of(path: &Path, limit: u64) -> Result<blake3::Hash, FileError> {
    let (file, length) = open_regular(path)?;
    let mut hasher = blake3::Hasher::new();
    let read = io::copy(&mut file.take(limit.saturating_add(1)), &mut hasher);
    let read = read.map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    if length.max(read) > limit {
        return Err(FileError::TooLong { path: path.to_owned(), limit });
    }
    Ok(hasher.finalize())
}

/// Opens a file if it is a regular one.
fn open_checked(
    path: &Path,
    options: &mut OpenOptions,
    failed: fn(PathBuf, io::Error) -> FileError,
) -> Result<(File, u64), FileError> {
    let failed = |source| failed(path.to_owned(), source);
    // Looked at before it is opened, which may do something to a device; and after, as it may be another then.
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err(FileError::NotRegular { path: path.to_owned() }),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // Not even a pipe that was put there meanwhile is waited for.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(FileError::NotRegular { path: path.to_owned() });
    }
    Ok((file, metadata.len()))
}

/// Text of at most `limit` bytes.
fn text_of(source: impl Read, path: &Path, limit: u64) -> Result<String, FileError> {
    let mut bytes = Vec::new();
    // What is read to the end reports that there is no memory for it.
    let read = source.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLong { path: path.to_owned(), limit });
    }
    String::from_utf8(bytes).map_err(|error| FileError::NotText {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
}

#[cfg(test)]
mod tests;
