//! Atomic file writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{FileError, open_checked};
use crate::temporary::{forget_temporary, register_temporary};

/// Writes a file, or replaces a regular one, atomically. A link to it stays a link.
///
/// A file is overwritten in place if its folder accepts no new files, or if it is a mount point itself.
///
/// # Errors
/// When the file cannot be written, or the path exists and is not a regular file.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write(path, bytes, Flush::Wait)
}

/// Writes a file as [`write_file`] does, but does not wait for the disk, and replaces a link by the file. For one of
/// many files with names that the program chooses, and that can be made again after a power failure.
///
/// # Errors
/// As [`write_file`].
pub fn write_generated_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_symlink());
    if is_link {
        let failed = |source| FileError::Write { path: path.to_owned(), source };
        return place(path, None, bytes, (Occupied::Replace, Flush::Later)).map_err(failed);
    }
    write(path, bytes, Flush::Later)
}

/// Removes a symbolic link, so that a new file does not change the one that it leads to.
///
/// # Errors
/// When the link cannot be removed.
pub fn remove_link(path: &Path) -> Result<(), FileError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_symlink() => {
            fs::remove_file(path).map_err(|source| FileError::Write { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, bytes: &[u8], sync: Flush) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    // Opened first: a file without write permission must not be replaced either.
    let there =
        match open_checked(path, options.write(true), |path, source| FileError::Write { path, source }) {
            Ok((file, _)) => Some(file),
            Err(FileError::Write { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
    let Some(mut file) = there else {
        return place(path, None, bytes, (Occupied::Replace, sync)).map_err(failed);
    };
    let actual = fs::canonicalize(path).map_err(failed)?;
    match place(&actual, Some(&file), bytes, (Occupied::Replace, sync)) {
        Err(error) if is_of_the_folder(&error) => {
            let written = file.set_len(0).and_then(|()| file.write_all(bytes)).and_then(|()| file.sync_all());
            written.map_err(failed)
        }
        done => done.map_err(failed),
    }
}

/// Writes a new file atomically.
///
/// # Errors
/// When the file cannot be written, or the path exists: as a file, a folder or a link, even a broken one.
pub fn create_file(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => FileError::Exists { path: path.to_owned() },
        _ => FileError::Write { path: path.to_owned(), source },
    };
    // A folder that accepts no files need not hide that the path is in use.
    match fs::symlink_metadata(path) {
        Ok(_) => Err(FileError::Exists { path: path.to_owned() }),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        Err(_) => place(path, None, bytes, (Occupied::Fail, Flush::Wait)).map_err(failed),
    }
}

/// Returns true if the folder rejects a new file, though the old one may be writable.
fn is_of_the_folder(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy)
}

/// The rule for a path that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupied {
    Fail,
    Replace,
}

/// The time at which a file reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Wait,
    Later,
}

/// Moves a new file into place, with the permissions of the existing one.
fn place(
    path: &Path,
    there: Option<&File>,
    bytes: &[u8],
    (occupied, sync): (Occupied, Flush),
) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.map_or_else(|| PathBuf::from("."), Path::to_owned);
    let mut builder = tempfile::Builder::new();
    // Temporary files are private by default; the umask still applies.
    builder.prefix(".fourfold-").permissions(fs::Permissions::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(without_path)?;
    let temporary = file.path().to_owned();
    register_temporary(&temporary);
    let written = (|| {
        if let Some(there) = there {
            file.as_file().set_permissions(there.metadata()?.permissions())?;
        }
        file.write_all(bytes)?;
        // Some file systems report a full disk only now.
        if sync == Flush::Wait {
            file.as_file().sync_all()?;
        }
        let placed = match occupied {
            Occupied::Fail => file.persist_noclobber(path),
            Occupied::Replace => file.persist(path),
        };
        placed.map(|_| ()).map_err(|error| error.error)
    })();
    forget_temporary(&temporary);
    written
}

/// The system's error without the temporary file's name.
fn without_path(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { error.kind().into() }
}
