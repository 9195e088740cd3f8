//! An entry that differs from its manifest is refused, removed and reported, and can be written again.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use fourfold_executor::cache::{Action, Cache, CacheError, Verified};
use fourfold_executor::{Artifact, Kernel, LoadError};

use super::fixture::{Bench, built, key, open_up};

const FILES: [&str; 5] = ["build.log", "kernel.cu", "kernel.so", "manifest.json", "metadata.json"];
/// A user that is not this one.
const STRANGER: u32 = 65_534;

/// Damages an entry; afterwards it must be refused for this reason, and then work again.
#[track_caller]
fn check(artifact: &Artifact, damage: &str, code: &str, act: impl Fn(&Bench, &Path)) {
    let bench = Bench::new();
    drop(bench.cache.insert(&key(1), artifact).unwrap());
    let entry = bench.entry(&key(1));
    open_up(&entry);
    act(&bench, &entry);
    let verified: Vec<Verified> = bench.cache.verify(false).unwrap();
    let refused: Vec<_> = verified.iter().filter_map(|entry| entry.refusal.as_ref()).collect();
    assert_eq!(refused.iter().map(|refusal| refusal.reason.code()).collect::<Vec<_>>(), [code], "{damage}");
    let lookup = bench.cache.get(&key(1));
    assert!(lookup.artifact.is_none(), "{damage} was not noticed");
    let [note] = lookup.notes.as_slice() else { panic!("{damage}: {:?}", lookup.notes) };
    assert_eq!((note.reason.code(), &note.action), (code, &Action::Removed), "{damage}: {note}");
    assert!(note.to_string().contains(&key(1).to_string()) && !note.to_string().ends_with('.'));
    assert!(entry.symlink_metadata().is_err(), "{damage} is still there");
    let fresh = bench.cache.insert(&key(1), artifact).unwrap();
    assert_eq!(Kernel::load(&fresh).unwrap().metadata(), artifact.metadata());
    drop(fresh);
    bench.assert_whole();
}

/// Replaces text in the manifest.
fn edit(entry: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(entry.join("manifest.json")).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(entry.join("manifest.json"), text.replacen(from, to, 1)).unwrap();
}

fn is_root(reason: &str) -> bool {
    // Root alone can give files away.
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped for lack of root: {reason}");
    }
    is_root
}

#[test]
fn every_file_is_refused_when_it_is_truncated_emptied_extended_removed_or_no_file() {
    let artifact = built("first");
    for file in FILES {
        let manifest = file == "manifest.json";
        let code = if manifest { "manifest" } else { "size" };
        check(&artifact, &format!("{file} truncated"), code, |_, entry| {
            let bytes = fs::read(entry.join(file)).unwrap();
            fs::write(entry.join(file), &bytes[..bytes.len() - 1]).unwrap();
        });
        check(&artifact, &format!("{file} emptied"), code, |_, entry| {
            fs::write(entry.join(file), "").unwrap();
        });
        check(&artifact, &format!("{file} extended"), code, |_, entry| {
            let mut bytes = fs::read(entry.join(file)).unwrap();
            bytes.push(b'\n');
            fs::write(entry.join(file), bytes).unwrap();
        });
        check(&artifact, &format!("{file} removed"), "missing", |_, entry| {
            fs::remove_file(entry.join(file)).unwrap();
        });
        check(&artifact, &format!("{file} a link to itself elsewhere"), "kind", |bench, entry| {
            fs::rename(entry.join(file), bench.folder.path().join("moved")).unwrap();
            symlink(bench.folder.path().join("moved"), entry.join(file)).unwrap();
        });
        check(&artifact, &format!("{file} a pipe"), "kind", |_, entry| {
            fs::remove_file(entry.join(file)).unwrap();
            assert!(Command::new("mkfifo").arg(entry.join(file)).status().unwrap().success());
        });
        check(&artifact, &format!("{file} a folder"), "kind", |_, entry| {
            fs::remove_file(entry.join(file)).unwrap();
            fs::create_dir(entry.join(file)).unwrap();
        });
        check(&artifact, &format!("{file} writable by all"), "writable", |_, entry| {
            fs::set_permissions(entry.join(file), fs::Permissions::from_mode(0o666)).unwrap();
        });
        if is_root("a file of another user") {
            check(&artifact, &format!("{file} another user's"), "foreign_owner", |_, entry| {
                chown(entry.join(file), Some(STRANGER), None).unwrap();
            });
        }
    }
}

#[test]
fn an_entry_that_is_a_link_a_file_another_users_or_open_to_others_is_refused() {
    let artifact = built("first");
    check(&artifact, "a linked entry", "kind", |bench, entry| {
        fs::rename(entry, bench.folder.path().join("moved")).unwrap();
        symlink(bench.folder.path().join("moved"), entry).unwrap();
    });
    check(&artifact, "a dangling link", "kind", |_, entry| {
        fs::remove_dir_all(entry).unwrap();
        symlink("nowhere", entry).unwrap();
    });
    check(&artifact, "a file", "kind", |_, entry| {
        fs::remove_dir_all(entry).unwrap();
        fs::write(entry, "x").unwrap();
    });
    check(&artifact, "a pipe", "kind", |_, entry| {
        fs::remove_dir_all(entry).unwrap();
        assert!(Command::new("mkfifo").arg(entry).status().unwrap().success());
    });
    check(&artifact, "an empty folder", "missing", |_, entry| {
        fs::remove_dir_all(entry).unwrap();
        fs::create_dir(entry).unwrap();
    });
    check(&artifact, "an entry that all may write to", "writable", |_, entry| {
        fs::set_permissions(entry, fs::Permissions::from_mode(0o777)).unwrap();
    });
    check(&artifact, "something beside its files", "unexpected", |_, entry| {
        fs::write(entry.join("kernel.so.bak"), "x").unwrap();
    });
    check(&artifact, "ten thousand strangers", "unexpected", |_, entry| {
        (0..10_000).for_each(|number| fs::write(entry.join(format!("x{number}")), "").unwrap());
    });
    if is_root("an entry of another user") {
        check(&artifact, "another user's entry", "foreign_owner", |_, entry| {
            chown(entry, Some(STRANGER), None).unwrap();
        });
    }
}

#[test]
fn swapped_entries_and_swapped_libraries_are_refused() {
    let (first, second) = (built("first"), built("second"));
    let swap = |left: &Path, right: &Path| {
        let aside = left.with_extension("aside");
        fs::rename(left, &aside).unwrap();
        fs::rename(right, left).unwrap();
        fs::rename(aside, right).unwrap();
    };
    let refused = |bench: &Bench| {
        [1, 2].map(|number| {
            let lookup = bench.cache.get(&key(number));
            assert!(lookup.artifact.is_none());
            assert_eq!(lookup.notes[0].action, Action::Removed);
            lookup.notes[0].reason.code()
        })
    };
    for what in ["", "kernel.so", "metadata.json"] {
        let bench = Bench::new();
        drop(bench.cache.insert(&key(1), &first).unwrap());
        drop(bench.cache.insert(&key(2), &second).unwrap());
        let [left, right] = [1, 2].map(|number| bench.entry(&key(number)));
        open_up(&left);
        open_up(&right);
        // The libraries and metadata of two kernels may differ in size or not, because metadata contain build times.
        let size = |entry: &Path| fs::metadata(entry.join(what)).unwrap().len();
        let expected = match what {
            "" => "other_key",
            _ if size(&left) == size(&right) => "hash",
            _ => "size",
        };
        if what.is_empty() {
            swap(&left, &right);
        } else {
            swap(&left.join(what), &right.join(what));
        }
        assert_eq!(refused(&bench), [expected; 2], "{what}");
        assert_eq!(bench.cache.insert(&key(1), &first).unwrap().kernel(), "first");
        assert_eq!(bench.cache.insert(&key(2), &second).unwrap().kernel(), "second");
        bench.assert_whole();
    }
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    const POSITIONS: usize = 97;
    let bench = Bench::new();
    drop(bench.cache.insert(&key(1), &built("first")).unwrap());
    let entry = bench.entry(&key(1));
    open_up(&entry);
    let mut flips = 0;
    for file in FILES {
        let path = entry.join(file);
        let bytes = fs::read(&path).unwrap();
        // Every byte of the manifest, because all other checks depend on it.
        let positions: Vec<usize> = if file == "manifest.json" {
            (0..bytes.len()).collect()
        } else {
            (0..POSITIONS).map(|step| step * (bytes.len() - 1) / (POSITIONS - 1)).collect()
        };
        for position in positions {
            let mut damaged = bytes.clone();
            damaged[position] ^= 1 << (position % 8);
            fs::write(&path, &damaged).unwrap();
            let verified = bench.cache.verify(false).unwrap();
            assert!(verified[0].refusal.is_some(), "bit {} of byte {position} of {file}", position % 8);
            flips += 1;
        }
        fs::write(&path, &bytes).unwrap();
        assert!(bench.cache.verify(false).unwrap()[0].refusal.is_none());
    }
    assert!(flips > 1000);
}

#[test]
fn a_manifest_that_lies_or_leads_elsewhere_is_refused() {
    let artifact = built("first");
    let lie = |damage: &str, code: &str, from: &str, to: &str| {
        check(&artifact, damage, code, |_, entry| edit(entry, from, to));
    };
    lie("an old format", "old_format", "\"format\": 1", "\"format\": 0");
    lie("a later format", "old_format", "\"format\": 1", "\"format\": 2");
    lie("an old interface", "old_abi", "\"abi\": 6", "\"abi\": 4");
    lie("another key", "other_key", &key(1).to_string(), &key(2).to_string());
    lie("a key in capitals", "manifest", &key(1).to_string(), &key(1).to_string().to_uppercase());
    lie("a file above", "manifest", "\"kernel.so\"", "\"../kernel.so\"");
    lie("an absolute file", "manifest", "\"kernel.cu\"", "\"/etc/passwd\"");
    lie("an unknown file", "manifest", "\"kernel.cu\"", "\"kernel.cv\"");
    lie("another order", "manifest", "\"build.log\"", "\"prelude.cuh\"");
    lie("an unknown field", "manifest", "\"abi\": 6", "\"abi\": 6, \"b\": 1");
    lie("a space more", "manifest", "\"abi\": 6", "\"abi\":  6");
    lie("a huge number", "manifest", "\"abi\": 6", "\"abi\": 99999999999999999999");
    check(&artifact, "a huge file", "manifest", |_, entry| {
        let text = fs::read_to_string(entry.join("manifest.json")).unwrap();
        let size = fs::metadata(entry.join("kernel.so")).unwrap().len();
        let text = text.replace(&format!("\"size\": {size}"), "\"size\": 999999999999");
        fs::write(entry.join("manifest.json"), text).unwrap();
    });
    check(&artifact, "a huge manifest", "manifest", |_, entry| {
        fs::File::create(entry.join("manifest.json")).unwrap().set_len(1 << 40).unwrap();
    });
    check(&artifact, "nested arrays", "manifest", |_, entry| {
        fs::write(entry.join("manifest.json"), "[".repeat(16_000)).unwrap();
    });
}

#[test]
fn metadata_of_another_interface_or_without_sense_is_refused_though_its_hash_is_right() {
    let artifact = built("first");
    for (from, to) in [
        ("\"abi\": 6", "\"abi\": 4"),
        ("\"kernel\"", "\"colonel\""),
        ("\"target\"", "\"\\u00ff"),
        ("\"operands\"", "\"operators\""),
        ("\"role\"", "\"rule\""),
        ("\"scalars\": []", "\"scalars\": [4]"),
    ] {
        check(&artifact, to, "content", |_, entry| {
            let path = entry.join("metadata.json");
            let old = fs::read(&path).unwrap();
            let new = String::from_utf8(old.clone()).unwrap().replacen(from, to, 1).into_bytes();
            fs::write(&path, &new).unwrap();
            let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
            edit(entry, &hash(&old), &hash(&new));
            if old.len() != new.len() {
                edit(entry, &format!("\"size\": {}", old.len()), &format!("\"size\": {}", new.len()));
            }
        });
    }
}

#[test]
fn a_library_that_changes_after_it_was_found_is_not_loaded() {
    let bench = Bench::new();
    let artifact = bench.cache.insert(&key(1), &built("first")).unwrap();
    open_up(&bench.entry(&key(1)));
    let mut bytes = fs::read(artifact.library()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(artifact.library(), &bytes).unwrap();
    let error = Kernel::load(&artifact).unwrap_err();
    assert!(matches!(error, LoadError::Changed { .. }) && error.code() == "library_changed", "{error}");
    fs::remove_file(artifact.library()).unwrap();
    assert!(matches!(Kernel::load(&artifact).unwrap_err(), LoadError::NotFound { .. }));
    // It cannot be inserted again as a good kernel either.
    assert!(bench.cache.insert(&key(2), &artifact).is_err());
}

#[test]
fn strangers_where_entries_lie_are_named_and_removed_on_request_only() {
    let bench = Bench::new();
    drop(bench.cache.insert(&key(1), &built("first")).unwrap());
    let entries = bench.cache.folder().join("entries");
    fs::write(entries.join("notes.txt"), "x").unwrap();
    symlink("/etc", entries.join("etc")).unwrap();
    fs::create_dir(entries.join(key(2).to_string().to_uppercase())).unwrap();
    assert_eq!(bench.cache.list().unwrap().len(), 1);
    let codes = |found: &[Verified]| {
        found.iter().filter_map(|entry| Some(entry.refusal.as_ref()?.reason.code())).collect::<Vec<_>>()
    };
    assert_eq!(codes(&bench.cache.verify(false).unwrap()), ["name"; 3]);
    assert_eq!(bench.names("entries").len(), 4);
    assert_eq!(codes(&bench.cache.verify(true).unwrap()), ["name"; 3]);
    assert!(Path::new("/etc/passwd").exists());
    bench.assert_whole();
    assert_eq!(bench.names("entries").len(), 1);
}

#[test]
fn folders_of_the_cache_that_are_links_files_or_another_users_are_refused() {
    let refused = |act: &dyn Fn(&Path)| {
        let bench = Bench::new();
        act(bench.cache.folder());
        match Cache::open(&bench.options) {
            Err(error @ CacheError::Folder { .. }) => {
                assert!(error.code() == "cache_folder_refused" && !error.remedy().is_empty());
                error.to_string()
            }
            other => panic!("{other:?}"),
        }
    };
    for name in ["", "entries", "use", "tmp"] {
        let words = refused(&|folder| {
            let place = folder.join(name);
            let moved = folder.with_file_name("moved");
            fs::rename(&place, &moved).unwrap();
            symlink(moved, if name.is_empty() { folder.to_owned() } else { place }).unwrap();
        });
        assert!(words.contains("symbolic link"), "{words}");
        if is_root("a folder of another user") {
            let words = refused(&|folder| chown(folder.join(name), Some(STRANGER), None).unwrap());
            assert!(words.contains("65534"), "{words}");
        }
    }
    let words = refused(&|folder| {
        fs::set_permissions(folder.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    });
    assert!(words.contains("every user"), "{words}");
    // A group with other members is refused, too. The owner's private group and a sticky folder are accepted.
    if is_root("a folder of another group") {
        let give = |folder: &Path, group, mode| {
            chown(folder, None, Some(group)).unwrap();
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        };
        let words = refused(&|folder| give(folder.parent().unwrap(), STRANGER, 0o770));
        assert!(words.contains("group 65534") && words.contains("chmod g-w"), "{words}");
        for (group, mode) in [(0, 0o770), (STRANGER, 0o1770), (STRANGER, 0o750)] {
            let bench = Bench::new();
            give(bench.folder.path(), group, mode);
            Cache::open(&bench.options).unwrap();
        }
    }
    // Closes a folder that other users could only enter.
    let bench = Bench::new();
    fs::set_permissions(bench.cache.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    Cache::open(&bench.options).unwrap();
    assert_eq!(fs::metadata(bench.cache.folder()).unwrap().permissions().mode() & 0o777, 0o700);
}
