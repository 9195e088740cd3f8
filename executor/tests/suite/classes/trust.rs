//! Native code is loaded only from trusted owners and folders.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use fourfold_executor::cache::{Cache, CacheError, CacheOptions};
use fourfold_executor::environment::Environment;
use fourfold_executor::toolchain::cache_folder;
use fourfold_executor::{Kernel, LoadError};

use crate::cache::fixture::{Bench, built, key, open_up};
use crate::service::fixture::{self as service_fixture, get, good};

/// A user other than this one.
const STRANGER: u32 = 65_534;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped for want of root: what belongs to another user");
    }
    is_root
}

/// cutlass#3404. Without a variable that names it, there is no cache folder. The cache is never below the working
/// directory, and files with the names of a cache there are ignored.
#[test]
fn the_working_directory_is_no_cache() {
    let none = Environment::default();
    assert!(cache_folder(&none).is_err());
    let relative = Environment {
        xdg_cache_home: Some("cache".into()),
        home: Some("home".into()),
        ..Environment::default()
    };
    assert!(cache_folder(&relative).is_err(), "as the specification of XDG_CACHE_HOME wants it");
    let planted = service_fixture::Bench::new();
    drop(get(&planted.service(), &good(1)).0.unwrap());
    let bench = service_fixture::Bench::new();
    let words =
        [planted.path("cache"), bench.folder.path().to_owned()].map(|path| path.display().to_string());
    let output = service_fixture::other(test_name!(a_process_in_a_planted_folder), &[&words[1]])
        .current_dir(&words[0])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(bench.builds(), 1, "the kernel was built, not taken from the working directory");
}

/// The other process of the test above.
#[test]
fn a_process_in_a_planted_folder() {
    let Some(words) = service_fixture::role() else { return };
    assert!(Path::new("kernels/entries").is_dir(), "the working directory looks like a cache");
    let service =
        fourfold_executor::service::CompileService::new(service_fixture::options(Path::new(&words[0])));
    assert!(get(&service, &good(1)).0.is_ok());
}

#[track_caller]
fn refuse(options: &CacheOptions, words: &str) {
    match Cache::open(options) {
        Err(error @ CacheError::Folder { .. }) => assert!(error.to_string().contains(words), "{error}"),
        other => panic!("{words}: {other:?}"),
    }
}

/// unsloth-zoo#906. A cache folder that is a link, has another owner or is writable by others is refused. A link above
/// the cache may lead anywhere, because the owner of the folder and of every entry is checked.
#[test]
fn links_foreign_owners_and_open_folders_are_refused() {
    let bench = Bench::new();
    drop(bench.cache.insert(&key(1), &built("first")).unwrap());
    let folder = bench.folder.path();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    refuse(&bench.options, "writable by every user");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    let (entries, moved) = (bench.cache.folder().join("entries"), folder.join("moved"));
    fs::rename(&entries, &moved).unwrap();
    symlink(&moved, &entries).unwrap();
    refuse(&bench.options, "symbolic link");
    fs::remove_file(&entries).unwrap();
    fs::rename(&moved, &entries).unwrap();
    let above = tempfile::tempdir().unwrap();
    symlink(folder, above.path().join("link")).unwrap();
    let through_link = CacheOptions::new(above.path().join("link"));
    assert!(Cache::open(&through_link).unwrap().get(&key(1)).artifact.is_some(), "the folder is this user's");
    if is_root() {
        chown(folder, Some(STRANGER), None).unwrap();
        refuse(&bench.options, "belongs to user 65534");
        refuse(&through_link, "belongs to user 65534");
        // The outer folder is given back, but the inner one still belongs to a stranger.
        chown(folder, Some(0), None).unwrap();
        let place = bench.cache.folder().to_owned();
        chown(&place, Some(STRANGER), None).unwrap();
        refuse(&through_link, "belongs to user 65534");
        chown(&place, Some(0), None).unwrap();
    }
    assert!(Cache::open(&bench.options).unwrap().get(&key(1)).artifact.is_some());
}

/// unsloth-zoo#906. Between the check of an entry and its load the library is replaced, in place or by another file.
#[test]
fn what_was_checked_is_what_is_loaded() {
    for in_place in [true, false] {
        let bench = Bench::new();
        for (number, name) in [(1, "first"), (2, "second")] {
            drop(bench.cache.insert(&key(number), &built(name)).unwrap());
        }
        let artifact = bench.cache.get(&key(1)).artifact.unwrap();
        let (entry, other) = (bench.entry(&key(1)), bench.entry(&key(2)).join("kernel.so"));
        open_up(&entry);
        if in_place {
            fs::copy(&other, entry.join("kernel.so")).unwrap();
        } else {
            fs::remove_file(entry.join("kernel.so")).unwrap();
            symlink(&other, entry.join("kernel.so")).unwrap();
        }
        let loaded = Kernel::load(&artifact);
        assert!(loaded.is_err(), "in place: {in_place}");
        if in_place {
            assert!(matches!(loaded, Err(LoadError::Changed { .. })), "{loaded:?}");
        }
    }
}

/// unsloth-zoo#906. A user who can write an entry can write its hashes too. An entry is trusted because of
/// its owner, and because no other user can write to it.
#[test]
fn a_right_hash_does_not_make_a_strangers_entry_ours() {
    let bench = Bench::new();
    drop(bench.cache.insert(&key(1), &built("first")).unwrap());
    let entry = bench.entry(&key(1));
    // Every byte matches the manifest.
    open_up(&entry);
    assert!(bench.cache.get(&key(1)).artifact.is_some());
    for name in ["", "kernel.so"] {
        let path = if name.is_empty() { entry.clone() } else { entry.join(name) };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let lookup = bench.cache.get(&key(1));
        assert!(lookup.artifact.is_none() && lookup.notes.len() == 1, "{name}: {:?}", lookup.notes);
        drop(bench.cache.insert(&key(1), &built("first")).unwrap());
        open_up(&entry);
        if is_root() {
            let path = if name.is_empty() { entry.clone() } else { entry.join(name) };
            chown(path, Some(STRANGER), None).unwrap();
            assert!(bench.cache.get(&key(1)).artifact.is_none(), "{name}");
            drop(bench.cache.insert(&key(1), &built("first")).unwrap());
            open_up(&entry);
        }
    }
}
