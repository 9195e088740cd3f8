//! Checks that a folder allows kernels to be kept, built and loaded there, without changing it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, mkdirat, openat, statvfs, unlinkat};
use rustix::io::Errno;

/// The reason a folder cannot be used, or only in part.
#[derive(Debug)]
pub enum Obstacle {
    /// It is not there, and cannot be made.
    CannotBeMade {
        /// The existing path at which creating it fails.
        above: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// Nothing can be written there.
    NotWritable {
        /// The reason.
        error: io::Error,
    },
    /// Nothing that lies there can be run or loaded: its file system is mounted with `noexec`.
    NoExec,
}

impl Obstacle {
    /// Returns whether this keeps even a library that lies there from being loaded.
    pub fn prevents_loading(&self) -> bool {
        matches!(self, Obstacle::NoExec)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::CannotBeMade { above, error } => {
                write!(f, "it cannot be made in `{}`: {error}", above.display())
            }
            Obstacle::NotWritable { error } => write!(f, "this user may not write there: {error}"),
            Obstacle::NoExec => {
                f.write_str("no kernel can be loaded from there: its file system is mounted noexec")
            }
        }
    }
}

/// The obstacle in the way of keeping and loading kernels in a folder, which need not be there yet.
///
/// If it is not there, the folder above it is asked. Nothing is changed, but on file systems that know no unnamed
/// files: there an empty folder is made and removed at once.
pub fn obstacle(folder: &Path) -> Option<Obstacle> {
    let mut place = folder;
    loop {
        match place.metadata() {
            Ok(metadata) if metadata.is_dir() => break,
            Ok(_) => return Some(cannot_be_made(place, io::ErrorKind::NotADirectory.into())),
            // Below a file there is nothing either.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Some(cannot_be_made(place, error)),
        }
        match place.parent() {
            Some(above) => place = above,
            None => return Some(cannot_be_made(place, io::ErrorKind::NotFound.into())),
        }
    }
    if statvfs(place).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        // A file system such as /proc is mounted so, too, and nothing can be made there at all.
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

/// Makes a file without a name, which is gone when it is closed. Bits of permissions say too little: a quota, a mount or
/// an access list may be in the way, and root may do anything but write to /proc.
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
            assert!(found.to_string().contains("cannot be made"), "{found}");
        }
    }
}
