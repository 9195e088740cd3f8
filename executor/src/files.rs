//! Reads files, and finds them.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Why a text file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be opened or read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a folder, a pipe or a device.
    #[error("`{}` is not a regular file", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The file is not text.
    #[error("`{}` is not UTF-8 text: the byte at offset {offset} does not belong to a character", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is not part of a character.
        offset: usize,
    },
}

/// The text of a file.
///
/// # Errors
/// When the file cannot be read, is not a regular file, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    let bytes = read_regular(path)
        .map_err(|source| FileError::Read { path: path.to_owned(), source })?
        .ok_or_else(|| FileError::NotRegular { path: path.to_owned() })?;
    String::from_utf8(bytes).map_err(|error| FileError::NotText {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
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

/// The bytes of a file; `None` for what is not a regular file: a device may never end, and a pipe may never begin.
pub(crate) fn read_regular(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Asked before it is opened, because opening a pipe waits for its other end.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    fs::read(path).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program.fir");
        fs::write(&path, "fir 1 ; größer\n").unwrap();
        assert_eq!(read_text(&path).unwrap(), "fir 1 ; größer\n");
    }

    #[test]
    fn a_missing_file_and_bytes_that_are_no_text_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program.fir");
        assert!(matches!(read_text(&path), Err(FileError::Read { path: found, .. }) if found == path));
        fs::write(&path, b"fir 1\n\xFF").unwrap();
        let error = read_text(&path).unwrap_err();
        assert!(matches!(&error, FileError::NotText { offset: 6, .. }));
        assert!(error.to_string().contains("program.fir"));
    }

    #[test]
    fn files_below_a_folder_are_found_in_order() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("b/c")).unwrap();
        for name in ["z.fir", "b/a.fir", "b/c/x.fir", "b/a.txt", "fir"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = files_below(folder.path(), "fir").unwrap();
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(folder.path()).unwrap()).collect();
        assert_eq!(names, ["b/a.fir", "b/c/x.fir", "z.fir"].map(Path::new));
        let error = files_below(&folder.path().join("absent"), "fir").unwrap_err();
        assert!(error.to_string().contains("absent"));
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = vec![folder.path().to_owned()];
        if cfg!(unix) {
            let pipe = folder.path().join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            // A link is what it leads to.
            let link = folder.path().join("link");
            #[cfg(unix)]
            std::os::unix::fs::symlink(&pipe, &link).unwrap();
            paths.extend([pipe, link, PathBuf::from("/dev/zero")]);
        }
        for path in paths {
            let error = read_text(&path).unwrap_err();
            assert!(matches!(&error, FileError::NotRegular { path: found } if *found == path));
            assert_eq!(error.to_string(), format!("`{}` is not a regular file", path.display()));
        }
    }
}
