//! Checks, without changes, that kernels can be stored, built and loaded in a folder.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, mkdirat, openat, statvfs, unlinkat};
use rustix::io::Errno;

/// The reason that a folder is unusable, fully or in part.
#[derive(Debug)]
pub enum Obstacle {
    /// The folder does not exist and cannot be created.
    CannotBeMade {
        /// The existing path at which creating it fails.
        above: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The folder is not writable.
    NotWritable {
        /// The reason.
        error: io::Error,
    },
    /// The file system is mounted `noexec`, so no program can be run and no library loaded from it.
    NoExec,
}

impl Obstacle {
    /// Returns true if even an existing library cannot be loaded from the folder.
    pub fn prevents_loading(&self) -> bool {
        matches!(self, Obstacle::NoExec)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::CannotBeMade { above, error } => {
                write!(f, "it cannot be created in `{}`: {error}", above.display())
            }
            Obstacle::NotWritable { error } => write!(f, "this user cannot write to it: {error}"),
            Obstacle::NoExec => {
                f.write_str("kernels in it cannot be loaded: its file system is mounted noexec")
            }
        }
    }
}

/// Finds the obstacle to storing and loading kernels in a folder, which need not exist yet.
///
/// Checks the closest existing parent if the folder does not exist. Changes nothing, except on file systems without
/// unnamed files: there, creates an empty folder and removes it at once.
pub fn obstacle(folder: &Path) -> Option<Obstacle> {
    let mut place = folder;
    loop {
        match place.metadata() {
            Ok(metadata) if metadata.is_dir() => break,
            Ok(_) => return Some(cannot_be_made(place, io::ErrorKind::NotADirectory.into())),
            // Nothing exists below a file.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Some(cannot_be_made(place, error)),
        }
        match place.parent() {
            Some(above) => place = above,
            None => return Some(cannot_be_made(place, io::ErrorKind::NotFound.into())),
        }
    }
    if statvfs(place).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        // File systems such as /proc are mounted `noexec` too, but allow no files at all.
        return match try_to_write(place) {
            Err(error) if place != folder => Some(cannot_be_made(place, error)),
            _ => Some(Obstacle::NoExec),
        };
    }
    match try_to_write(place) {
        Ok(()) => None,
        Err(error) if place == folder => Some(Obstacle::NotWritable { error }),
        Err(error) => Some(cannot_be_made(place, error)),
    }
}

fn cannot_be_made(above: &Path, error: io::Error) -> Obstacle {
    Obstacle::CannotBeMade { above: above.to_owned(), error }
}

/// Creates an unnamed file, which vanishes when closed. Permission bits are not enough: quotas, mounts and access
/// lists matter too, and root may write anywhere but in places such as /proc.
fn try_to_write(folder: &Path) -> io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
            let name = folder.join(format!(".fourfold-probe-{}", std::process::id()));
            mkdirat(CWD, &name, Mode::RWXU)?;
            Ok(unlinkat(CWD, &name, AtFlags::REMOVEDIR)?)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_that_is_there_or_can_be_made_has_no_obstacle_and_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(obstacle(folder.path()).is_none());
        assert!(obstacle(&folder.path().join("a/b")).is_none());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_made_is_named_with_the_place_that_prevents_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for (place, above) in [(file.join("cache"), &*file), ("/proc/fourfold".into(), Path::new("/proc"))] {
            let found = obstacle(&place).expect("an obstacle");
            assert!(
                matches!(&found, Obstacle::CannotBeMade { above: named, .. } if named == above),
                "{found}"
            );
            assert!(found.to_string().contains("cannot be created"), "{found}");
        }
    }
}
