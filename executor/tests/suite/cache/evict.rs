//! Eviction above the capacity: the least recently used entries first, and never one in use.

use std::fs;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fourfold_executor::cache::{Cache, CacheKey, Prune};
use fourfold_executor::kernel::{Device, Extents};
use fourfold_executor::{CacheOptions, Kernel};

use super::fixture::{Bench, as_other, built, finish, key, other_process};

const DEVICE: Device = Device { sm_count: 3, max_active_clusters: 1 };

fn keys(cache: &Cache) -> Vec<CacheKey> {
    let mut keys: Vec<_> = cache.list().unwrap().into_iter().map(|entry| entry.key).collect();
    keys.sort();
    keys
}

fn sorted(numbers: impl IntoIterator<Item = u32>) -> Vec<CacheKey> {
    let mut keys: Vec<_> = numbers.into_iter().map(key).collect();
    keys.sort();
    keys
}

/// Sets the time of an entry's last use to so many seconds ago.
fn age(bench: &Bench, number: u32, seconds: u64) {
    let file = fs::File::options()
        .write(true)
        .open(bench.cache.folder().join("use").join(key(number).to_string()))
        .unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

#[test]
fn the_bound_is_kept_and_the_longest_unused_go_first() {
    let bench = Bench::new();
    let artifact = built("first");
    for number in 0..5 {
        drop(bench.cache.insert(&key(number), &artifact).unwrap());
    }
    let size = bench.cache.list().unwrap()[0].bytes;
    assert!(bench.cache.list().unwrap().iter().all(|entry| entry.bytes == size && !entry.in_use));
    for (number, seconds) in [(0, 50), (1, 10), (2, 40), (3, 30), (4, 20)] {
        age(&bench, number, seconds);
    }
    // A lookup counts as a use.
    assert!(bench.cache.get(&key(0)).artifact.is_some());
    let listed: Vec<_> = bench.cache.list().unwrap().into_iter().map(|entry| entry.key).collect();
    assert_eq!(listed, [0, 1, 4, 3, 2].map(key));
    let bounded =
        Cache::open(&CacheOptions { capacity: 4 * size + size / 2, ..bench.options.clone() }).unwrap();
    drop(bounded.insert(&key(5), &artifact).unwrap());
    assert_eq!(keys(&bounded), sorted([0, 1, 4, 5]));
    // Verifying and listing do not count as a use.
    assert!(bounded.verify(false).unwrap().iter().all(|entry| entry.refusal.is_none()));
    assert!(bounded.list().unwrap().iter().any(|entry| entry.key == key(4)));
    drop(bounded.insert(&key(6), &artifact).unwrap());
    assert_eq!(keys(&bounded), sorted([0, 1, 5, 6]));
    assert_eq!(bench.names("use").len(), 4);
    // Entries in use stay even with a capacity of 0.
    let nothing = Cache::open(&CacheOptions { capacity: 0, ..bench.options.clone() }).unwrap();
    let kept = nothing.insert(&key(7), &artifact).unwrap();
    assert_eq!(keys(&nothing), sorted([7]));
    assert_eq!(Kernel::load(&kept).unwrap().metadata(), artifact.metadata());
    bench.assert_whole();
}

#[test]
fn entries_are_pruned_by_size_by_age_and_altogether() {
    let bench = Bench::new();
    let artifact = built("first");
    for number in 0..6 {
        drop(bench.cache.insert(&key(number), &artifact).unwrap());
        age(&bench, number, 1000 * u64::from(number));
    }
    let size = bench.cache.list().unwrap()[0].bytes;
    let pruned = bench
        .cache
        .prune(&Prune { older_than: Some(Duration::from_secs(4500)), ..Prune::default() })
        .unwrap();
    assert_eq!(pruned.removed.iter().map(|entry| entry.key).collect::<Vec<_>>(), [key(5)]);
    assert_eq!(
        (pruned.removed[0].kernel.as_deref(), pruned.removed[0].target.as_deref()),
        (Some("first"), Some("sm_100a"))
    );
    assert_eq!(pruned.bytes, 5 * size);
    let pruned = bench.cache.prune(&Prune { to: Some(2 * size), ..Prune::default() }).unwrap();
    assert_eq!(pruned.removed.iter().map(|entry| entry.key).collect::<Vec<_>>(), [4, 3, 2].map(key));
    let held = bench.cache.get(&key(0)).artifact.unwrap();
    let pruned = bench.cache.prune(&Prune { all: true, ..Prune::default() }).unwrap();
    assert_eq!((pruned.removed.len(), pruned.in_use.len(), pruned.bytes), (1, 1, size));
    assert!(pruned.in_use[0].in_use && pruned.in_use[0].key == key(0));
    drop(held);
    assert_eq!(bench.cache.prune(&Prune { all: true, ..Prune::default() }).unwrap().bytes, 0);
    assert_eq!((bench.names("entries").len(), bench.names("use").len()), (0, 0));
}

#[test]
fn a_kernel_that_another_process_has_loaded_stays() {
    if let Some(folder) = as_other() {
        let cache = Cache::open(&CacheOptions::new(&folder)).unwrap();
        let kernel = Kernel::load(&cache.get(&key(1)).artifact.unwrap()).unwrap();
        let extents = Extents::of_product(1, 37, 130, 64);
        let before = kernel.query(&DEVICE, &extents).unwrap();
        fs::write(format!("{folder}/ready"), "").unwrap();
        // Waits until the other process has tried.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(kernel.query(&DEVICE, &extents).unwrap(), before);
        assert!(kernel.path().exists());
        return;
    }
    let name = test_name!(a_kernel_that_another_process_has_loaded_stays);
    let bench = Bench::new();
    drop(bench.cache.insert(&key(1), &built("first")).unwrap());
    drop(bench.cache.insert(&key(2), &built("second")).unwrap());
    let mut other = other_process(name, bench.folder.path().to_str().unwrap());
    let deadline = Instant::now() + Duration::from_secs(20);
    while !bench.folder.path().join("ready").exists() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
    let all = Prune { all: true, ..Prune::default() };
    let pruned = bench.cache.prune(&all).unwrap();
    assert_eq!((pruned.removed.len(), pruned.in_use.len()), (1, 1));
    assert_eq!(pruned.in_use[0].key, key(1));
    assert!(bench.entry(&key(1)).join("kernel.so").exists());
    drop(other.stdin.take());
    finish(other);
    assert_eq!(bench.cache.prune(&all).unwrap().removed.len(), 1);
}

#[test]
fn readers_see_whole_entries_or_none_while_others_evict_and_insert() {
    const READERS: usize = 3;
    let bench = Bench::new();
    let artifact = built("first");
    let (stop, found) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for number in 0..3 {
                        let lookup = bench.cache.get(&key(number));
                        assert_eq!(lookup.notes, []);
                        if let Some(artifact) = lookup.artifact {
                            found.fetch_add(1, Ordering::Relaxed);
                            let kernel = Kernel::load(&artifact).unwrap();
                            assert!(kernel.path().exists());
                        }
                    }
                }
            });
        }
        let until = Instant::now() + Duration::from_millis(700);
        let mut removed = 0;
        while Instant::now() < until {
            for number in 0..3 {
                bench.cache.insert(&key(number), &artifact).unwrap();
            }
            removed += bench.cache.prune(&Prune { all: true, ..Prune::default() }).unwrap().removed.len();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(removed > 0);
    });
    assert!(found.load(Ordering::Relaxed) > 0);
    bench.assert_whole();
}

#[test]
fn a_key_is_resolved_from_digits_that_tell_it_apart() {
    let bench = Bench::new();
    let artifact = built("first");
    drop(bench.cache.insert(&key(1), &artifact).unwrap());
    drop(bench.cache.insert(&key(2), &artifact).unwrap());
    let text = key(1).to_string();
    assert_eq!(bench.cache.resolve(&text).unwrap(), key(1));
    assert_eq!(bench.cache.resolve(&text[..20]).unwrap(), key(1));
    for wrong in ["", "x", "../", &key(3).to_string()] {
        assert_eq!(bench.cache.resolve(wrong).unwrap_err().code(), "cache_no_entry");
    }
}
