//! Reads text files.

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
/// When the file cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    let bytes = fs::read(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    String::from_utf8(bytes).map_err(|error| FileError::NotText {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
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
        assert!(matches!(read_text(folder.path()), Err(FileError::Read { .. })));
    }
}
