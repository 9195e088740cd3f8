//! Safe relative names for all paths that a build uses: symbolic links in the build folder.
//!
//! nvcc pastes the paths of its folder, headers, libraries and temporary files into shell commands, and some tools
//! split paths at commas or colons. Links hide the real paths from them. Since link names are the same in every
//! build, no machine-specific path ends up in the result.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{BuildError, disk};
use crate::isolation::is_plain;

/// The folder of links, inside the build folder.
pub(super) const LINKS: &str = "links";

/// The links of one build.
#[derive(Debug)]
pub(super) struct Links<'a> {
    folder: &'a Path,
}

impl<'a> Links<'a> {
    /// Creates the folder of links.
    pub(super) fn new(folder: &'a Path) -> Result<Links<'a>, BuildError> {
        fs::create_dir(folder.join(LINKS)).map_err(disk("create the folder for symbolic links"))?;
        Ok(Links { folder })
    }

    /// Links to a folder, and returns its name relative to the build folder. The target need not exist.
    pub(super) fn folder(&self, name: &str, target: &Path) -> Result<PathBuf, BuildError> {
        let target = std::path::absolute(target).map_err(disk("determine the working directory"))?;
        let link = Path::new(LINKS).join(name);
        match symlink(&target, self.folder.join(&link)) {
            Ok(()) => Ok(link),
            // Without link support, a path without shell metacharacters is used directly.
            Err(error) if lacks_links(&error) && is_plain(target.as_os_str()) => Ok(target),
            Err(error) if lacks_links(&error) => Err(BuildError::UnsafePath { what: "folder", path: target }),
            Err(error) => Err(disk("create a symbolic link to a toolchain folder")(error)),
        }
    }

    /// Names a program through a link to its folder, since programs look for others beside themselves.
    pub(super) fn program(&self, name: &str, program: &Path) -> Result<PathBuf, BuildError> {
        let unsafe_path = || BuildError::UnsafePath { what: "program", path: program.to_owned() };
        let file = program.file_name().filter(|file| is_plain(file)).ok_or_else(unsafe_path)?;
        let parent = program.parent().ok_or_else(unsafe_path)?;
        Ok(self.folder(name, parent)?.join(file))
    }
}

fn lacks_links(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn whatever_a_folder_is_called_its_link_has_a_plain_name() {
        let build = tempfile::tempdir().unwrap();
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join(OsStr::from_bytes(b"$(touch x), \"y\":\n\xFF"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("tool"), "it").unwrap();
        let links = Links::new(build.path()).unwrap();
        let program = links.program("tools", &folder.join("tool")).unwrap();
        assert_eq!(program, Path::new("links/tools/tool"));
        assert_eq!(fs::read_to_string(build.path().join(program)).unwrap(), "it");
        let error = links.program("more", &folder.join("to ol")).unwrap_err();
        assert!(matches!(&error, BuildError::UnsafePath { .. }) && error.code() == "unsafe_path", "{error}");
    }
}
