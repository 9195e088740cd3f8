//! A tier in a folder: entries in the cache's layout, readable by everyone with access to the folder.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;

use super::Store;
use crate::cache::entry::{self, Contents, Trust, Unusable};
use crate::cache::error::Reason;
use crate::cache::key::CacheKey;
use crate::cache::manifest::MANIFEST;

pub(super) struct FolderStore {
    folder: PathBuf,
}

impl FolderStore {
    pub(super) fn new(folder: PathBuf) -> FolderStore {
        FolderStore { folder }
    }
}

impl Store for FolderStore {
    fn fetch(&self, key: &CacheKey) -> Result<Option<Contents>, Reason> {
        match Contents::read(&self.folder.join(key.to_string()), key, Trust::Manifest) {
            Ok(contents) => Ok(Some(contents)),
            // On an unmounted share every entry looks absent.
            Err(Unusable::Absent) if !self.folder.is_dir() => {
                Err(Reason::Unreachable { why: "the folder does not exist".to_owned() })
            }
            Err(Unusable::Absent) => Ok(None),
            // The entry is being copied right now: the manifest comes last.
            Err(Unusable::Refused(Reason::Missing { name }, _)) if name == MANIFEST => Ok(None),
            Err(Unusable::Refused(reason, _)) => Err(reason),
        }
    }

    fn reach(&self) -> Result<(), String> {
        if self.folder.is_dir() { Ok(()) } else { Err("the folder does not exist".to_owned()) }
    }

    fn push(&self, contents: &Contents, _replace: bool) -> Result<(), String> {
        let said = |error: std::io::Error| error.to_string();
        DirBuilder::new().recursive(true).create(&self.folder).map_err(said)?;
        let mut builder = tempfile::Builder::new();
        let staging = builder.prefix(".push-").tempdir_in(&self.folder).map_err(said)?;
        let staged = staging.path().join("entry");
        // The parent folder's permissions control access.
        DirBuilder::new().mode(0o755).create(&staged).map_err(said)?;
        contents.write(&staged, 0o444).map_err(said)?;
        fs::set_permissions(&staged, fs::Permissions::from_mode(0o755)).map_err(said)?;
        let place = self.folder.join(contents.manifest.key.to_string());
        // The existing entry does not verify; it may be the remains of an interrupted copy.
        let aside = staging.path().join("replaced");
        match fs::rename(&place, &aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(said(error)),
            _ => {}
        }
        fs::rename(&staged, &place).map_err(said)?;
        let _ = entry::remove(&aside);
        entry::sync_folder(&self.folder).map_err(said)
    }
}
