//! Tests of cache keys.

use std::fs::{self, File, FileTimes};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fourfold_executor::service::{CompileService, ServiceOptions};
use fourfold_executor::toolchain::Toolchain;
use fourfold_executor::{BuildOptions, CacheKey};

use crate::cache::fixture as cache;
use crate::service::fixture::{Bench, get, good, good_with_cutlass, options, request};

/// flashinfer#4489, #4490. The contents alone decide whether an entry is valid. An old, intact entry is used; one with
/// another entry's library is not, although its times are unchanged.
#[test]
fn modification_times_decide_nothing() {
    let bench = cache::Bench::new();
    for (number, name) in [(1, "first"), (2, "second")] {
        drop(bench.cache.insert(&cache::key(number), &cache::built(name)).unwrap());
    }
    let library = |number| bench.entry(&cache::key(number)).join("kernel.so");
    cache::open_up(&bench.entry(&cache::key(1)));
    let now = SystemTime::now();
    for time in [SystemTime::UNIX_EPOCH, now + Duration::from_secs(1 << 20)] {
        let file = File::open(library(1)).unwrap();
        file.set_times(FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
        let lookup = bench.cache.get(&cache::key(1));
        assert!(lookup.artifact.is_some() && lookup.notes.is_empty(), "{:?}", lookup.notes);
    }
    let before = fs::metadata(library(1)).unwrap();
    fs::copy(library(2), library(1)).unwrap();
    let times = FileTimes::new().set_modified(before.modified().unwrap());
    File::options().write(true).open(library(1)).unwrap().set_times(times).unwrap();
    let lookup = bench.cache.get(&cache::key(1));
    assert!(lookup.artifact.is_none() && lookup.notes.len() == 1, "{:?}", lookup.notes);
}

fn key_with(bench: &Bench, change: impl FnOnce(&mut Toolchain, &mut BuildOptions)) -> CacheKey {
    let mut options = options(bench.folder.path());
    let mut toolchain = Toolchain::clone(options.toolchain.as_ref().unwrap());
    change(&mut toolchain, &mut options.build);
    let service = CompileService::new(ServiceOptions { toolchain: Ok(Arc::new(toolchain)), ..options });
    request(&service, &good_with_cutlass(1)).key()
}

/// tinygrad#15811. A different compiler, header, or flag that changes the binary gives a different key.
#[test]
fn toolchains_and_flags_have_keys_of_their_own() {
    let bench = Bench::new();
    let mut keys = vec![
        key_with(&bench, |_, _| {}),
        key_with(&bench, |toolchain, _| toolchain.nvcc_version = "13.0.89".to_owned()),
        // In another folder, because a process determines the version of a folder's headers once.
        key_with(&Bench::new(), |toolchain, _| {
            toolchain.cutlass.as_mut().unwrap().version = "4.2.1".to_owned();
        }),
        key_with(&bench, |_, build| build.debug = true),
    ];
    fs::write(bench.path("cutlass/include/new.hpp"), "// a header").unwrap();
    keys.push(key_with(&bench, |_, _| {}));
    fs::write(bench.path("cutlass/include/new.hpp"), "// another").unwrap();
    keys.push(key_with(&bench, |_, _| {}));
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count, "two builds that differ share a key");
}

/// DeepGEMM#388, GPTQModel#3039. The location of the toolchain, the cache and temporary files is not part of a key.
/// Neither are the number of concurrent builds and the time limit: the kernel is found and not rebuilt.
#[test]
fn install_paths_and_thread_counts_are_in_no_key() {
    let (here, elsewhere) = (Bench::new(), Bench::new());
    let key = key_with(&here, |_, _| {});
    assert_eq!(key_with(&elsewhere, |_, _| {}), key);
    assert_eq!(key_with(&here, |_, build| build.temp_dir = Some(here.path("temp"))), key);
    assert_eq!(key_with(&here, |_, build| build.time_limit = Duration::from_secs(7)), key);
    assert!(get(&here.service(), &good(1)).0.is_ok());
    let moved = ServiceOptions {
        cache: Some(here.cache()),
        jobs: Some(1),
        build: BuildOptions { temp_dir: Some(elsewhere.path("temp")), ..BuildOptions::default() },
        ..elsewhere.options()
    };
    assert!(get(&CompileService::new(moved), &good(1)).0.is_ok());
    assert_eq!((here.builds(), elsewhere.builds()), (1, 0));
}
