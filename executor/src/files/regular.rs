//! Regular files that are read in parts.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{FileError, RangeHash, open_regular};

/// An open regular file, which is read in parts. So a file may be larger than memory.
///
/// ```
/// use fourfold_executor::{RegularFile, write_file};
///
/// let path = std::env::temp_dir().join("fourfold-doc-regular");
/// write_file(&path, b"0123456789")?;
///
/// let file = RegularFile::open(&path)?;
/// assert_eq!(file.length(), 10);
/// assert_eq!(file.read(2, 3)?, b"234");
/// assert!(file.read(9, 2).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RegularFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl RegularFile {
    /// Opens a regular file.
    ///
    /// # Errors
    /// When the file cannot be opened, or is a folder, pipe or device.
    pub fn open(path: &Path) -> Result<RegularFile, FileError> {
        let (file, length) = open_regular(path)?;
        Ok(RegularFile { path: path.to_owned(), file, length })
    }

    /// The path that the file was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size in bytes when the file was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns true if the file is in the folder of `other` or below it. Symbolic links are followed, as in caches that
    /// keep both files in another folder.
    ///
    /// # Errors
    /// When a path no longer leads to a file.
    pub fn is_beside(&self, other: &RegularFile) -> Result<bool, FileError> {
        let real = |path: &Path| {
            fs::canonicalize(path).map_err(|source| FileError::Read { path: path.to_owned(), source })
        };
        let folder = other.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let (file, model) = (real(&self.path)?, real(&other.path)?);
        let is_in = |folder: Option<&Path>| folder.is_some_and(|folder| file.starts_with(folder));
        Ok(is_in(model.parent()) || is_in(Some(&real(folder.unwrap_or(Path::new(".")))?)))
    }

    /// Reads `count` bytes from the byte `start` on.
    ///
    /// # Errors
    /// When the file has fewer bytes, cannot be read, or memory is insufficient.
    pub fn read(&self, start: u64, count: u64) -> Result<Vec<u8>, FileError> {
        let failed = |source| FileError::Read { path: self.path.clone(), source };
        if start.checked_add(count).is_none_or(|end| end > self.length) {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        let mut bytes = Vec::new();
        let count = usize::try_from(count).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        bytes.try_reserve_exact(count).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        bytes.resize(count, 0);
        self.file.read_exact_at(&mut bytes, start).map_err(failed)?;
        Ok(bytes)
    }

    /// A buffered reader of the whole file, for parsers. It ends where the file ended when it was opened.
    pub fn reader(&self) -> impl Read + Seek + '_ {
        BufReader::new(Cursor { file: self, position: 0 })
    }

    /// Hashes the bytes from `start` to before `end` with BLAKE3, part by part.
    ///
    /// # Errors
    /// When the file has fewer bytes, or cannot be read.
    pub fn hash(&self, start: u64, end: u64) -> Result<RangeHash, FileError> {
        let failed = |source| FileError::Read { path: self.path.clone(), source };
        if end > self.length {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        RangeHash::of(&self.file, start, end).map_err(failed)
    }
}

/// Reads a file from its start, for parsers that take a reader.
#[derive(Debug)]
struct Cursor<'a> {
    file: &'a RegularFile,
    position: u64,
}

impl Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.file.length.saturating_sub(self.position)).unwrap_or(usize::MAX);
        let count = rest.min(buffer.len());
        self.file.file.read_exact_at(&mut buffer[..count], self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.file.length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

impl fmt::Debug for RegularFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RegularFile");
        shown.field("path", &self.path).field("length", &self.length).finish_non_exhaustive()
    }
}
