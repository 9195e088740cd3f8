//! Checked file access for all commands: regular files only, up to a size limit.
//!
//! Devices and pipes are not opened, since they may never end or never deliver. For text inputs, `-` means standard
//! input, with the same limit.

mod append;
mod folders;
mod range;
mod regular;
mod write;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use serde::Serializer;

pub use self::append::AppendFile;
pub use self::folders::{create_folder, files_in, is_present, path_from};
pub use self::range::RangeHash;
pub use self::regular::RegularFile;
pub use self::write::{create_file, remove_link, write_file, write_generated_file};

/// The maximum size of programs, manifests, tables and problem lists, in bytes.
pub const TEXT_LIMIT: u64 = 64 << 20;
/// The maximum size of record files, in bytes.
pub const RECORDS_LIMIT: u64 = 1 << 30;
/// The name of standard input or output.
pub const STANDARD_STREAM: &str = "-";

/// The reason that a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be opened or read.
    #[error("cannot read {}", named(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path of a new file is in use.
    #[error("`{}` exists, and is not overwritten", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The path is a folder, pipe or device.
    #[error("`{}` is not a regular file", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The file exceeds the size limit.
    #[error("{} has more than {limit} bytes, the size limit", named(path))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file is not UTF-8 text.
    #[error("{} is not UTF-8 text: the byte at offset {offset} is invalid", named(path))]
    NotText {
        /// The file.
        path: PathBuf,
        /// The offset of the first invalid byte.
        offset: usize,
    },
    /// Another process is writing to the file.
    #[error("`{}` is being written by another process", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Standard input is given twice.
    #[error("`-` is given twice, but the standard input can be read only once")]
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

/// Serializes a path as text. Bytes that are not UTF-8 are replaced, since JSON cannot represent them.
///
/// # Errors
/// When the serializer fails.
pub fn serialize_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Returns true if a path means standard input or output: `-`. A file with this name is `./-`.
pub fn is_standard_stream(path: &Path) -> bool {
    path.as_os_str() == STANDARD_STREAM
}

/// Reads a text file of at most [`TEXT_LIMIT`] bytes.
///
/// # Errors
/// When the file cannot be read, is not a regular file, is longer, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    let (file, _) = open_regular(path)?;
    text_of(file, path, TEXT_LIMIT)
}

/// Reads a text file, or standard input for `-`, of at most `limit` bytes.
///
/// # Errors
/// As [`read_text`], and when standard input was read before.
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

/// Wraps an error as an I/O error, for decoders that report only those.
pub fn io_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(error)
}

/// Lists the files with this extension in a folder and its subfolders, sorted by path. Does not follow links to
/// folders.
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

/// Opens a regular file for reading, and returns its length.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64), FileError> {
    let mut options = OpenOptions::new();
    open_checked(path, options.read(true), |path, source| FileError::Read { path, source })
}

/// Hashes a regular file of at most `limit` bytes.
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

/// Opens a file if it is regular.
fn open_checked(
    path: &Path,
    options: &mut OpenOptions,
    failed: fn(PathBuf, io::Error) -> FileError,
) -> Result<(File, u64), FileError> {
    let failed = |source| failed(path.to_owned(), source);
    // Checked before opening, which may affect a device; and afterwards, since the file may have been replaced.
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err(FileError::NotRegular { path: path.to_owned() }),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // Does not block even on a pipe placed there meanwhile.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(FileError::NotRegular { path: path.to_owned() });
    }
    Ok((file, metadata.len()))
}

/// Reads text of at most `limit` bytes.
fn text_of(source: impl Read, path: &Path, limit: u64) -> Result<String, FileError> {
    let mut bytes = Vec::new();
    // Unlike other reads, `read_to_end` reports insufficient memory as an error.
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
