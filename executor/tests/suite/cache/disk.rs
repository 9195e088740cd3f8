//! A full disk and an unwritable cache folder: existing entries are used, and new builds work without the cache.

use std::fs;
use std::path::Path;
use std::process::Command;

use fourfold_executor::cache::{Cache, CacheError, Prune};
use fourfold_executor::{CacheOptions, Kernel};
use tempfile::TempDir;

use super::fixture::{built, key};

/// A small, separate file system; `None` with the reason where none can be mounted.
struct Mount {
    folder: TempDir,
}

impl Mount {
    fn new(options: &str) -> Option<Mount> {
        let folder = tempfile::tempdir().unwrap();
        let output =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(folder.path()).output();
        match output {
            Ok(output) if output.status.success() => Some(Mount { folder }),
            Ok(output) => {
                eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                eprintln!("skipped: mount: {error}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn remount(&self, options: &str) {
        let status =
            Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(self.path()).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

#[test]
fn a_full_disk_is_reported_leaves_nothing_half_done_and_is_freed_where_that_helps() {
    let Some(mount) = Mount::new("size=300k,mode=700") else { return };
    let cache = Cache::open(&CacheOptions::new(mount.path())).unwrap();
    let artifact = built("first");
    let mut held = Vec::new();
    let error = loop {
        match cache.insert(&key(held.len() as u32), &artifact) {
            Ok(kept) => held.push(kept),
            Err(error) => break error,
        }
        assert!(held.len() < 100);
    };
    assert!(held.len() >= 2);
    assert!(
        matches!(&error, CacheError::Disk { source, .. } if source.kind() == std::io::ErrorKind::StorageFull),
        "{error}"
    );
    assert!(error.remedy().contains("prune"), "{}", error.remedy());
    assert_eq!(fs::read_dir(cache.temporary()).unwrap().count(), 0);
    assert!(cache.verify(false).unwrap().iter().all(|entry| entry.refusal.is_none()));
    assert_eq!(cache.list().unwrap().len(), held.len());
    // The kernel itself is unaffected.
    Kernel::load(&artifact).unwrap();
    // Once other entries are no longer in use, they are evicted to make room.
    let count = held.len() as u32;
    drop(held);
    let kept = cache.insert(&key(count), &artifact).unwrap();
    assert_eq!(Kernel::load(&kept).unwrap().metadata(), artifact.metadata());
    assert!(cache.list().unwrap().len() < count as usize + 1);
}

#[test]
fn a_cache_that_cannot_be_written_to_is_read() {
    let Some(mount) = Mount::new("size=4m,mode=700") else { return };
    let options = CacheOptions::new(mount.path());
    let artifact = built("first");
    drop(Cache::open(&options).unwrap().insert(&key(1), &artifact).unwrap());
    mount.remount("ro");
    let cache = Cache::open(&options).unwrap();
    let found = cache.get(&key(1));
    assert_eq!(found.notes, []);
    let kernel = Kernel::load(&found.artifact.unwrap()).unwrap();
    assert_eq!(kernel.metadata(), artifact.metadata());
    assert!(cache.get(&key(2)).artifact.is_none());
    let error = cache.insert(&key(2), &artifact).unwrap_err();
    assert!(matches!(&error, CacheError::Disk { .. }) && error.remedy().contains("writable"), "{error}");
    Kernel::load(&artifact).unwrap();
    assert_eq!(cache.prune(&Prune::default()).unwrap_err().code(), "cache_disk");
    assert!(cache.verify(true).unwrap().iter().all(|entry| entry.refusal.is_none()));
    assert_eq!(cache.list().unwrap().len(), 1);
    drop(kernel);
}

#[test]
fn a_cache_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Cache::open(&CacheOptions::new(file.join("cache"))).unwrap_err();
    assert!(error.to_string().contains("file"), "{error}");
    assert_eq!(Cache::open(&CacheOptions::new(&file)).unwrap_err().code(), "cache_disk");
}

#[test]
fn a_cache_that_is_removed_while_it_is_open_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&CacheOptions::new(folder.path())).unwrap();
    let artifact = built("first");
    let kept = cache.insert(&key(1), &artifact).unwrap();
    let kernel = Kernel::load(&kept).unwrap();
    fs::remove_dir_all(cache.folder()).unwrap();
    assert!(cache.get(&key(1)).artifact.is_none());
    let again = cache.insert(&key(1), &artifact).unwrap();
    assert_eq!(Kernel::load(&again).unwrap().metadata(), kernel.metadata());
}
