//! The next process removes the leftovers of dead processes, and leaves the folders of living ones alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fourfold_executor::cache::{Cache, Swept};
use fourfold_executor::{CacheOptions, Kernel};

use super::fixture::{Bench, as_other, built, built_in, key, other_process};

#[test]
fn orphaned_compilers_are_killed_and_their_folders_removed() {
    let bench = Bench::new();
    let tmp = fs::canonicalize(bench.cache.temporary()).unwrap();
    let inside = || {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let works_inside = |process: &fs::DirEntry| {
            fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&tmp))
        };
        processes.filter(works_inside).count()
    };
    let asleep = |folder: &Path| {
        Command::new("sleep")
            .arg("60")
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    let folder = tmp.join("fourfold-orphaned");
    fs::create_dir_all(folder.join("tmp")).unwrap();
    let owner = fs::File::create_new(folder.join("owner")).unwrap();
    owner.lock().unwrap();
    let mut compiler = asleep(&folder.join("tmp"));
    // Its owner lives: nothing is touched.
    assert_eq!((bench.cache.sweep(), bench.names("tmp").len()), (Swept::default(), 1));
    assert_eq!((inside(), compiler.try_wait().unwrap()), (1, None));
    drop(owner);
    // A process of ours in another folder, and one in a folder with a similar name.
    let neighbour = bench.folder.path().join("fourfold-neighbour");
    fs::create_dir(&neighbour).unwrap();
    let mut bystander = asleep(&neighbour);
    assert_eq!(bench.cache.sweep(), Swept { folders: 1, processes: 1 });
    assert_eq!((compiler.wait().unwrap().code(), inside()), (None, 0));
    assert_eq!(bench.names("tmp"), Vec::<String>::new());
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn strangers_in_the_folder_for_temporary_files_are_left_alone() {
    let bench = Bench::new();
    let tmp = bench.cache.temporary();
    fs::write(tmp.join("note"), "x").unwrap();
    fs::create_dir(tmp.join("mine")).unwrap();
    fs::write(tmp.join("fourfold-file"), "x").unwrap();
    std::os::unix::fs::symlink("/etc", tmp.join("fourfold-link")).unwrap();
    // Dead folders: one without an owner file, and one whose owner file is not locked.
    fs::create_dir_all(tmp.join("fourfold-a/tmp")).unwrap();
    fs::create_dir(tmp.join("fourfold-b")).unwrap();
    fs::write(tmp.join("fourfold-b/owner"), "process 1\n").unwrap();
    let living = built_in("living", Some(tmp));
    assert_eq!(bench.cache.sweep(), Swept { folders: 2, processes: 0 });
    let name = living.library().parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let mut expected = ["fourfold-file", "fourfold-link", "mine", "note"].map(str::to_owned).to_vec();
    expected.push(name);
    expected.sort();
    assert_eq!(bench.names("tmp"), expected);
    assert!(Path::new("/etc/passwd").exists());
    // An entry whose removal was interrupted by the death of its process.
    let aside = bench.cache.folder().join("entries/.refused-1-0-00ff");
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join("kernel.so"), "x").unwrap();
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o500)).unwrap();
    assert_eq!(bench.cache.verify(false).unwrap(), []);
    assert!(!aside.exists());
    Kernel::load(&living).unwrap();
}

#[test]
fn after_a_kill_at_any_moment_every_visible_entry_is_whole_and_nothing_is_stuck() {
    const KILLS: u32 = 60;
    const KEYS: u32 = 6;
    if let Some(folder) = as_other() {
        let cache = Cache::open(&CacheOptions { capacity: 60_000, ..CacheOptions::new(&folder) }).unwrap();
        let artifact = cache.get(&key(1000)).artifact.unwrap();
        fs::write(Path::new(&folder).join("ready"), "").unwrap();
        for number in (0..KEYS).cycle() {
            let kept = cache.insert(&key(number), &artifact).unwrap();
            Kernel::load(&kept).unwrap();
        }
    }
    let name = test_name!(after_a_kill_at_any_moment_every_visible_entry_is_whole_and_nothing_is_stuck);
    let bench = Bench::new();
    let artifact = bench.cache.insert(&key(1000), &built("first")).unwrap();
    let mut inserted = 0;
    for round in 0..KILLS {
        let mut other = other_process(name, bench.folder.path().to_str().unwrap());
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::remove_file(bench.folder.path().join("ready")).is_err() {
            assert!(Instant::now() < deadline, "the other process does not start");
            thread::sleep(Duration::from_micros(100));
        }
        thread::sleep(Duration::from_micros(u64::from(round) * 337 % 9000));
        other.kill().unwrap();
        other.wait().unwrap();
        inserted += bench.names("entries").len() - 1;
        for name in bench.names("entries").iter().filter(|name| !name.starts_with('.')) {
            let lookup = bench.cache.get(&name.parse().unwrap());
            assert!(lookup.artifact.is_some() && lookup.notes.is_empty(), "{:?}", lookup.notes);
        }
        drop(bench.cache.insert(&key(round % KEYS), &artifact).unwrap());
    }
    assert!(inserted > 0);
    bench.cache.sweep();
    bench.assert_whole();
}
