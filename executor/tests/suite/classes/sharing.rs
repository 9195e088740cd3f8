//! Several processes, and several machines, with one cache.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fourfold_executor::Kernel;
use fourfold_executor::cache::{Cache, CacheOptions};
use fourfold_executor::service::{CompileService, ServiceOptions};

use crate::cache::fixture as cache;
use crate::service::fixture::{Bench, get, good, request, source, stand_in};

/// A slow compiler, so that concurrent lookups find an unfinished build.
fn slow() -> String {
    format!("sleep 0.3; exec '{}' \"$@\"", stand_in("nvcc.sh").display())
}

/// DeepEP#683. The process that loses a rename race uses the entry of the winner.
#[test]
fn a_lost_rename_race_gives_the_winners_entry() {
    let bench = cache::Bench::new();
    let others = Cache::open(&bench.options).unwrap();
    let winner = bench.cache.insert(&cache::key(1), &cache::built("first")).unwrap();
    let loser = others.insert(&cache::key(1), &cache::built("second")).unwrap();
    assert_eq!(loser.library(), winner.library());
    assert_eq!(Kernel::load(&loser).unwrap().metadata().kernel, "first");
    drop((winner, loser));
    bench.assert_whole();
}

/// triton#11512, pytorch#173679. A tier, or the cache itself, loses a file: the kernel is built, and nothing fails.
#[test]
fn files_that_a_shared_cache_lacks_cost_a_build() {
    let (bench, tier) = (Bench::new(), tempfile::tempdir().unwrap());
    let built = get(&bench.service(), &good(1)).0.unwrap();
    let key = request(&bench.service(), &good(1)).key();
    let tier_name = tier.path().to_str().unwrap().to_owned();
    assert!(bench.cache().push(&tier_name, &[key]).unwrap()[0].outcome.is_ok());
    drop(built);
    let names: Vec<String> = fs::read_dir(bench.path("cache/kernels/entries").join(key.to_string()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.len() >= 2);
    for name in &names {
        // A file vanishes from the cache, and an NFS client keeps the open file under another name.
        let entry = bench.path("cache/kernels/entries").join(key.to_string());
        cache::open_up(&entry);
        fs::rename(entry.join(name), entry.join(".nfs0000000000000001")).unwrap();
        assert!(get(&bench.service(), &good(1)).0.is_ok(), "{name}");
        bench.assert_clean();
        // The same, for a tier that another machine reads.
        let other = Bench::new();
        let lacking = tempfile::tempdir().unwrap();
        let copy = lacking.path().join(key.to_string());
        fs::create_dir(&copy).unwrap();
        for kept in names.iter().filter(|kept| *kept != name) {
            fs::copy(tier.path().join(key.to_string()).join(kept), copy.join(kept)).unwrap();
        }
        let mut place = CacheOptions::new(other.path("cache"));
        place.tiers = vec![lacking.path().to_str().unwrap().to_owned()];
        let options = ServiceOptions { cache: Some(Cache::open(&place).unwrap()), ..other.options() };
        assert!(get(&CompileService::new(options), &good(1)).0.is_ok(), "{name}");
        assert_eq!(other.builds(), 1);
    }
}

/// flashinfer#4062. A compiler that fails, or succeeds and writes nothing, an empty file, garbage or half a library.
#[test]
fn a_failed_or_empty_build_is_never_published() {
    let bench = Bench::new();
    for (number, behave) in
        ["source_error", "silent", "nothing", "empty", "garbage", "truncated_elf", "crash"].iter().enumerate()
    {
        assert!(get(&bench.service(), &source(behave, number, "")).0.is_err(), "{behave}");
        assert_eq!(bench.names("entries"), Vec::<String>::new(), "{behave}");
    }
    assert!(get(&bench.service(), &good(1)).0.is_ok());
    assert_eq!(bench.names("entries").len(), 1);
    bench.assert_clean();
}

/// flashinfer#1467. A lookup during a build finds either no entry or a complete one.
#[test]
fn a_load_never_sees_a_build_under_way() {
    let bench = Bench::with(&slow());
    let key = request(&bench.service(), &good(1)).key();
    let is_built = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(get(&bench.service(), &good(1)).0.is_ok());
            is_built.store(true, Ordering::Release);
        });
        let (cache, mut looks) = (bench.cache(), 0);
        while !is_built.load(Ordering::Acquire) {
            let lookup = cache.get(&key);
            assert!(lookup.notes.is_empty(), "{:?}", lookup.notes);
            if let Some(artifact) = lookup.artifact {
                Kernel::load(&artifact).unwrap();
            }
            looks += 1;
        }
        assert!(looks > 10, "the build took as long as that: {looks}");
    });
    bench.assert_clean();
}

/// flashinfer#3777. Someone deletes the lock files of a build: others may build too, and all get the kernel.
#[test]
fn a_deleted_lock_file_costs_at_most_a_second_build() {
    let bench = Bench::with(&slow());
    let locks = bench.path("cache/kernels/locks");
    thread::scope(|scope| {
        scope.spawn(|| assert!(get(&bench.service(), &good(1)).0.is_ok()));
        let started = Instant::now();
        while bench.builds() == 0 {
            assert!(started.elapsed() < Duration::from_secs(60), "no build begins");
            thread::sleep(Duration::from_millis(2));
        }
        fs::set_permissions(&locks, fs::Permissions::from_mode(0o700)).unwrap();
        for lock in fs::read_dir(&locks).unwrap() {
            fs::remove_file(lock.unwrap().path()).unwrap();
        }
        assert!(get(&bench.service(), &good(1)).0.is_ok());
    });
    assert!(bench.builds() <= 2, "{}", bench.builds());
    assert_eq!(bench.names("entries").len(), 1);
    bench.assert_clean();
}
