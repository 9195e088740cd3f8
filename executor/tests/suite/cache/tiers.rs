//! Tiers: entries are verified by their manifests and copied into the cache, and a failing tier causes no error.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fourfold_executor::Kernel;
use fourfold_executor::cache::{
    Action, Cache, CacheError, Origin, PushError, PushResult, Pushed, check_tier,
};

use super::fixture::{Bench, built, key};

/// A separate cache that uses a tier.
fn with_tier(tier: &str) -> Bench {
    let mut bench = Bench::new();
    bench.options.tiers = vec![tier.to_owned()];
    bench.cache = Cache::open(&bench.options).unwrap();
    bench
}

/// A folder with one entry, pushed.
fn tier() -> tempfile::TempDir {
    let source = Bench::new();
    drop(source.cache.insert(&key(1), &built("first")).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let pushed = source.cache.push(folder.path().to_str().unwrap(), &[key(1), key(2)]).unwrap();
    assert_eq!(pushed[0], PushResult { key: key(1), outcome: Ok(Pushed::Written) });
    assert_eq!(pushed[1].outcome, Err(PushError::Absent));
    folder
}

fn name(folder: &Path) -> &str {
    folder.to_str().unwrap()
}

#[test]
fn a_kernel_from_a_shared_folder_becomes_one_of_this_machine() {
    let tier = tier();
    let entry = tier.path().join(key(1).to_string());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&entry), mode(&entry.join("kernel.so"))), (0o755, 0o444));
    // The tier belongs to another user and cannot be written to.
    if rustix::process::geteuid().is_root() {
        for file in fs::read_dir(&entry).unwrap() {
            chown(file.unwrap().path(), Some(65_534), None).unwrap();
        }
        chown(&entry, Some(65_534), None).unwrap();
    }
    fs::set_permissions(tier.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let bench = with_tier(name(tier.path()));
    let found = bench.cache.get(&key(1));
    assert_eq!((&found.origin, found.notes), (&Origin::Tier(name(tier.path()).to_owned()), vec![]));
    let artifact = found.artifact.unwrap();
    assert!(artifact.is_cached() && artifact.library().starts_with(bench.entry(&key(1))));
    assert_eq!(Kernel::load(&artifact).unwrap().metadata().kernel, "first");
    assert_eq!(bench.cache.get(&key(1)).origin, Origin::Local);
    assert!(bench.cache.get(&key(2)).artifact.is_none());
    drop(artifact);
    bench.assert_whole();
    fs::set_permissions(tier.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn what_does_not_verify_in_a_tier_is_refused_said_and_left_where_it_is() {
    let check = |code: &str, act: &dyn Fn(&Path)| {
        let tier = tier();
        let entry = tier.path().join(key(1).to_string());
        act(&entry);
        let bench = with_tier(name(tier.path()));
        let started = Instant::now();
        let found = bench.cache.get(&key(1));
        assert!(started.elapsed() < Duration::from_secs(2));
        assert!(found.artifact.is_none());
        let [note] = found.notes.as_slice() else { panic!("{:?}", found.notes) };
        assert_eq!((note.reason.code(), &note.action), (code, &Action::Left), "{note}");
        assert!(note.to_string().contains(name(tier.path())), "{note}");
        assert!(entry.symlink_metadata().is_ok());
        assert_eq!(bench.names("entries"), Vec::<String>::new());
        // A process with a good entry replaces it.
        drop(bench.cache.insert(&key(1), &built("first")).unwrap());
        assert_eq!(bench.cache.push(name(tier.path()), &[key(1)]).unwrap()[0].outcome, Ok(Pushed::Replaced));
        assert_eq!(bench.cache.push(name(tier.path()), &[key(1)]).unwrap()[0].outcome, Ok(Pushed::Present));
        let other = with_tier(name(tier.path()));
        assert!(other.cache.get(&key(1)).artifact.is_some());
        assert_eq!(fs::read_dir(tier.path()).unwrap().count(), 1);
    };
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::remove_file(path).unwrap();
        fs::write(path, bytes).unwrap();
    };
    check("hash", &|entry| flip(&entry.join("kernel.so")));
    check("manifest", &|entry| {
        let bytes = fs::read(entry.join("manifest.json")).unwrap();
        fs::remove_file(entry.join("manifest.json")).unwrap();
        fs::write(entry.join("manifest.json"), &bytes[..bytes.len() - 3]).unwrap();
    });
    check("missing", &|entry| fs::remove_file(entry.join("kernel.cu")).unwrap());
    check("unexpected", &|entry| fs::write(entry.join("x"), "x").unwrap());
    check("kind", &|entry| {
        fs::remove_file(entry.join("kernel.so")).unwrap();
        symlink("/etc/passwd", entry.join("kernel.so")).unwrap();
    });
    check("kind", &|entry| {
        fs::remove_file(entry.join("manifest.json")).unwrap();
        assert!(Command::new("mkfifo").arg(entry.join("manifest.json")).status().unwrap().success());
    });
    check("kind", &|entry| {
        fs::rename(entry, entry.with_extension("moved")).unwrap();
        symlink(entry.with_extension("moved"), entry).unwrap();
        // Removed before the entries of the tier are counted.
        fs::remove_dir_all(entry.with_extension("moved")).unwrap();
    });
    check("other_key", &|entry| {
        let text = fs::read_to_string(entry.join("manifest.json")).unwrap();
        fs::remove_file(entry.join("manifest.json")).unwrap();
        fs::write(entry.join("manifest.json"), text.replace(&key(1).to_string(), &key(2).to_string()))
            .unwrap();
    });
}

#[test]
fn a_copy_under_way_is_no_entry_yet() {
    let tier = tier();
    fs::remove_file(tier.path().join(key(1).to_string()).join("manifest.json")).unwrap();
    let found = with_tier(name(tier.path())).cache.get(&key(1));
    assert!(found.artifact.is_none() && found.notes.is_empty(), "{:?}", found.notes);
}

#[test]
fn a_tier_that_is_not_there_is_said_once_and_then_left_alone_for_a_while() {
    let tier = tier();
    let mut bench = Bench::new();
    bench.options.tiers = vec!["/nonexistent/share".to_owned(), name(tier.path()).to_owned()];
    bench.cache = Cache::open(&bench.options).unwrap();
    let found = bench.cache.get(&key(1));
    assert_eq!(found.notes.len(), 1);
    assert_eq!(found.notes[0].reason.code(), "unreachable");
    assert!(found.notes[0].to_string().contains("/nonexistent/share"));
    // The next tier was queried nevertheless.
    assert_eq!(found.origin, Origin::Tier(name(tier.path()).to_owned()));
    assert!(bench.cache.get(&key(2)).notes.is_empty());
}

#[test]
fn a_kernel_from_a_tier_that_cannot_be_kept_is_used_all_the_same() {
    let tier = tier();
    let bench = with_tier(name(tier.path()));
    // A folder in place of the use file cannot be locked, even by root.
    fs::create_dir(bench.cache.folder().join("use").join(key(1).to_string())).unwrap();
    let found = bench.cache.get(&key(1));
    assert_eq!(found.notes.iter().map(|note| note.reason.code()).collect::<Vec<_>>(), ["not_kept"]);
    let artifact = found.artifact.unwrap();
    assert!(!artifact.is_cached());
    let kernel = Kernel::load(&artifact).unwrap();
    assert_eq!(kernel.metadata().kernel, "first");
    let path = kernel.path().to_owned();
    drop(artifact);
    assert!(path.exists());
    drop(kernel);
    assert!(!path.exists());
}

#[test]
fn a_tier_that_cannot_be_read_at_all_is_a_note_and_the_others_and_the_cache_are_used() {
    let good = tier();
    let wrong = if cfg!(feature = "object-store") {
        vec!["gopher://x/y", "http://example.com/kernels", "s3://", "memory:///", " "]
    } else {
        vec!["s3://bucket/kernels", "https://example.com/kernels", "file:///srv/kernels", " "]
    };
    for tier in wrong {
        let mut bench = Bench::new();
        drop(bench.cache.insert(&key(3), &built("third")).unwrap());
        bench.options.tiers = vec![tier.to_owned(), name(good.path()).to_owned()];
        let cache = Cache::open(&bench.options).unwrap();
        let local = cache.get(&key(3));
        assert!(local.artifact.is_some() && local.notes.is_empty(), "{:?}", local.notes);
        let found = cache.get(&key(1));
        assert_eq!(found.origin, Origin::Tier(name(good.path()).to_owned()));
        let [note] = found.notes.as_slice() else { panic!("{tier}: {:?}", found.notes) };
        assert!(note.reason.code() == "unreachable" && note.to_string().contains(tier), "{note}");
        assert!(cache.get(&key(2)).notes.is_empty(), "it is said once");
        // Naming the tier in a command is an error.
        let error = check_tier(tier).unwrap_err();
        assert!(matches!(&error, CacheError::Tier { .. }) && error.to_string().contains(tier), "{error}");
        assert!(
            tier == " " || cfg!(feature = "object-store") || error.to_string().contains("`object-store`")
        );
        assert_eq!(cache.push(tier, &[key(3)]).unwrap_err().code(), "cache_target");
    }
}

#[test]
fn what_may_be_secret_in_the_name_of_a_tier_is_never_said() {
    // An unknown scheme, and one that needs a feature or an unreachable host.
    for tier in ["gopher://me:hunter2@host/k?sig=s3cr", "https://me:hunter2@127.0.0.1:1/k?sig=s3cr"] {
        let mut bench = Bench::new();
        drop(bench.cache.insert(&key(3), &built("third")).unwrap());
        bench.options.tiers = vec![tier.to_owned()];
        let cache = Cache::open(&bench.options).unwrap();
        let note = cache.get(&key(1)).notes.remove(0);
        let mut said = vec![note.to_string(), format!("{note:?}"), format!("{cache:?}")];
        said.push(match cache.push(tier, &[key(3)]) {
            Ok(results) => format!("{results:?}"),
            Err(error) => format!("{error} {error:?}"),
        });
        said.extend(check_tier(tier).err().map(|error| format!("{error} {error:?}")));
        for text in said {
            assert!(!text.contains("hunter2") && !text.contains("s3cr"), "{text}");
        }
        assert!(note.tier.unwrap().contains("://...@"));
    }
}

#[cfg(feature = "object-store")]
mod object_store {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::PathBuf;
    use std::thread;

    use super::*;

    /// Serves the files of a folder, and nothing else, until the program ends.
    fn serve(folder: PathBuf) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/some/where", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let folder = folder.clone();
                thread::spawn(move || answer(stream.unwrap(), &folder));
            }
        });
        url
    }

    fn answer(mut stream: TcpStream, folder: &Path) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        let request = lines.next()?.ok()?;
        while !lines.next()?.ok()?.is_empty() {}
        let path = request.split(' ').nth(1)?.strip_prefix("/some/where/")?.to_owned();
        match fs::read(folder.join(path)) {
            Ok(bytes) => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", bytes.len()).ok()?;
                write!(stream, "Last-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\nConnection: close\r\n\r\n")
                    .ok()?;
                stream.write_all(&bytes).ok()
            }
            Err(_) => {
                write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    .ok()
            }
        }
    }

    #[test]
    fn kernels_are_pushed_to_a_url_and_found_there() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}", name(folder.path()));
        let source = Bench::new();
        drop(source.cache.insert(&key(1), &built("first")).unwrap());
        let push = || source.cache.push(&url, &[key(1)]).unwrap().remove(0).outcome.unwrap();
        assert_eq!([push(), push()], [Pushed::Written, Pushed::Present]);
        let library = folder.path().join(key(1).to_string()).join("kernel.so");
        let served = serve(folder.path().to_owned());
        for tier in [&url, &served] {
            let bench = with_tier(tier);
            let found = bench.cache.get(&key(1));
            assert_eq!((&found.origin, found.notes), (&Origin::Tier(tier.clone()), vec![]));
            assert_eq!(Kernel::load(&found.artifact.unwrap()).unwrap().metadata().kernel, "first");
            let absent = bench.cache.get(&key(2));
            assert!(absent.artifact.is_none() && absent.notes.is_empty(), "{:?}", absent.notes);
            bench.assert_whole();
        }
        let mut bytes = fs::read(&library).unwrap();
        bytes[1000] ^= 1;
        fs::write(&library, &bytes).unwrap();
        for tier in [&url, &served] {
            let found = with_tier(tier).cache.get(&key(1));
            assert!(found.artifact.is_none());
            assert_eq!(found.notes[0].reason.code(), "hash");
        }
        bytes.extend([0; 100]);
        fs::write(&library, &bytes).unwrap();
        for tier in [&url, &served] {
            assert_eq!(with_tier(tier).cache.get(&key(1)).notes[0].reason.code(), "size");
        }
        assert_eq!(push(), Pushed::Replaced);
        assert!(with_tier(&served).cache.get(&key(1)).artifact.is_some());
    }

    #[test]
    fn a_store_that_cannot_be_reached_is_a_miss_and_a_note_soon() {
        // Bound and closed again, so that nothing listens there.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let bench = with_tier(&format!("http://127.0.0.1:{port}/kernels"));
        let started = Instant::now();
        let found = bench.cache.get(&key(1));
        assert!(found.artifact.is_none());
        assert_eq!(found.notes[0].reason.code(), "unreachable");
        assert!(bench.cache.get(&key(2)).notes.is_empty());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
