//! Folders: listing, creation, and relative paths between them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::FileError;

/// Lists the files with this extension in a folder, without its subfolders, sorted by path.
///
/// # Errors
/// When the folder cannot be read.
pub fn files_in(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, FileError> {
    let failed = |source| FileError::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|found| found == extension) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns true if a path is in use, even by a link that leads nowhere.
///
/// # Errors
/// When the folder of the path cannot be searched.
pub fn is_present(path: &Path) -> Result<bool, FileError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(source) => Err(FileError::Read { path: path.to_owned(), source }),
    }
}

/// Creates a folder and its parents, unless they exist.
///
/// # Errors
/// When a folder cannot be created.
pub fn create_folder(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(|source| FileError::Write { path: path.to_owned(), source })
}

/// Returns the path of a file relative to a folder. Both must exist. A link in the place of the file is kept, because
/// the name of the file is the one that users know.
///
/// # Errors
/// When the folder, or the folder of the file, cannot be read.
pub fn path_from(folder: &Path, file: &Path) -> Result<PathBuf, FileError> {
    let real = |path: &Path| {
        fs::canonicalize(path).map_err(|source| FileError::Read { path: path.to_owned(), source })
    };
    let (parent, name) = match (file.parent(), file.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
        (Some(parent), Some(name)) => (parent, name),
        _ => return real(file),
    };
    let (from, to) = (real(folder)?, real(parent)?);
    let shared = from.components().zip(to.components()).take_while(|(left, right)| left == right).count();
    let mut relative: PathBuf = from.components().skip(shared).map(|_| Component::ParentDir).collect();
    relative.extend(to.components().skip(shared));
    relative.push(name);
    Ok(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_leads_from_the_folder_to_the_file() {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("out/deep"), root.path().join("model"));
        create_folder(&from).unwrap();
        create_folder(&to).unwrap();
        for (folder, file, expected) in [
            (from.as_path(), to.join("m.safetensors"), "../../model/m.safetensors"),
            (to.as_path(), to.join("m.safetensors"), "m.safetensors"),
            (root.path(), to.join("../model/m.safetensors"), "model/m.safetensors"),
        ] {
            assert_eq!(path_from(folder, &file).unwrap(), Path::new(expected));
        }
        assert!(path_from(&root.path().join("none"), &to.join("m")).is_err());
    }

    #[test]
    fn a_link_that_leads_nowhere_is_present() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("link");
        assert!(!is_present(&link).unwrap());
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(is_present(&link).unwrap() && !link.exists());
    }

    #[test]
    fn the_files_of_a_folder_are_listed_without_subfolders() {
        let root = tempfile::tempdir().unwrap();
        for name in ["b.x", "a.x", "c.y", "deep/d.x"] {
            let path = root.path().join(name);
            create_folder(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        create_folder(&root.path().join("folder.x")).unwrap();
        let names = [root.path().join("a.x"), root.path().join("b.x")];
        assert_eq!(files_in(root.path(), "x").unwrap(), names);
        assert!(files_in(&root.path().join("none"), "x").is_err());
    }
}
