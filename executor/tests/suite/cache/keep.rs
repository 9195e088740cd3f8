//! Kernels are kept, found, shared between processes, and not evicted while in use.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fourfold_executor::cache::{Cache, Origin};
use fourfold_executor::{CacheOptions, Kernel};

use super::fixture::{Bench, as_other, built, finish, key, other_process};

#[test]
fn a_kernel_is_found_as_it_was_built_and_its_entry_is_read_only() {
    let bench = Bench::new();
    assert!(bench.cache.get(&key(1)).artifact.is_none());
    assert_eq!(bench.names("use"), Vec::<String>::new());
    let artifact = built("first");
    let kept = bench.cache.insert(&key(1), &artifact).unwrap();
    assert!(kept.is_cached() && !artifact.is_cached());
    let found = bench.cache.get(&key(1));
    assert_eq!((found.origin, found.notes), (Origin::Local, vec![]));
    for copy in [&kept, &found.artifact.unwrap()] {
        assert_eq!(copy.resources(), artifact.resources());
        assert_eq!(copy.metadata(), artifact.metadata());
        assert_eq!(copy.source(), artifact.source());
        assert_eq!((copy.log(), copy.kernel(), copy.prelude()), (artifact.log(), "first", None));
        assert!(copy.library().starts_with(bench.entry(&key(1))));
        assert_eq!(Kernel::load(copy).unwrap().metadata().kernel, "first");
    }
    drop(artifact);
    let mode = |path: &std::path::Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&bench.entry(&key(1))), 0o500);
    for name in ["kernel.so", "kernel.cu", "build.log", "metadata.json", "manifest.json"] {
        assert_eq!(mode(&bench.entry(&key(1)).join(name)), 0o400, "{name}");
    }
    for folder in ["", "entries", "use", "tmp"] {
        assert_eq!(mode(&bench.cache.folder().join(folder)), 0o700, "{folder}");
    }
    bench.assert_whole();
}

#[test]
fn a_second_insert_gets_the_first_entry() {
    let bench = Bench::new();
    bench.cache.insert(&key(1), &built("first")).unwrap();
    let second = bench.cache.insert(&key(1), &built("second")).unwrap();
    assert_eq!(second.kernel(), "first");
    bench.assert_whole();
}

#[test]
fn many_processes_insert_one_key_and_share_one_entry() {
    if let Some(folder) = as_other() {
        let cache = Cache::open(&CacheOptions::new(folder)).unwrap();
        let artifact = built("shared");
        for number in 0..8 {
            let kept = cache.insert(&key(number), &artifact).unwrap();
            assert!(kept.is_cached());
            Kernel::load(&kept).unwrap();
        }
        return;
    }
    let name = test_name!(many_processes_insert_one_key_and_share_one_entry);
    let bench = Bench::new();
    let folder = bench.folder.path().to_str().unwrap();
    let others: Vec<_> = (0..12).map(|_| other_process(name, folder)).collect();
    for other in others {
        finish(other);
    }
    assert_eq!(bench.names("entries").len(), 8);
    bench.assert_whole();
}
