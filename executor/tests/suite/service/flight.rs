//! One build per key within a process, and its end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fourfold_executor::Cancel;
use fourfold_executor::service::{CompileService, Event, ServiceOptions, Source};

use super::fixture::{Bench, get, good, request, source, stand_in};

fn slow(seconds: f64) -> String {
    format!("sleep {seconds}; exec '{}' \"$@\"", stand_in("nvcc.sh").display())
}

#[test]
fn threads_that_want_a_kernel_share_one_build_and_all_its_events() {
    const THREADS: usize = 16;
    let bench = Bench::new();
    let go = bench.path("go");
    // The build does not end before all requests wait for it.
    bench.compiler(&format!("while [ ! -e '{}' ]; do sleep 0.02; done; {}", go.display(), slow(0.0)));
    let service = bench.service();
    let started = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let events = Mutex::new(Vec::new());
                let tell = |event: &Event| {
                    events.lock().unwrap().push(event.clone());
                    if matches!(event, Event::Started { .. })
                        && started.fetch_add(1, Ordering::Relaxed) + 1 == THREADS
                    {
                        std::fs::write(&go, "").unwrap();
                    }
                };
                let outcome = service.get(&request(&service, &good(1)), &Cancel::new(), &tell);
                assert_eq!(outcome.unwrap().kernel().unwrap().metadata().threads, 256);
                let events = events.into_inner().unwrap();
                assert!(
                    matches!(events.as_slice(), [Event::Started { .. }, Event::Finished { .. }]),
                    "{events:?}"
                );
            });
        }
    });
    assert_eq!((bench.builds(), started.into_inner()), (1, THREADS));
    bench.assert_clean();
}

#[test]
fn a_kernel_comes_from_memory_then_from_the_cache() {
    let bench = Bench::new();
    let service = bench.service();
    let (first, events) = get(&service, &good(1));
    let first = first.unwrap();
    assert_eq!(*first.source(), Source::Compiler);
    assert!(matches!(events.as_slice(), [Event::Started { .. }, Event::Finished { .. }]), "{events:?}");
    let (again, events) = get(&service, &good(1));
    assert!(std::sync::Arc::ptr_eq(&first, &again.unwrap()));
    assert!(matches!(events.as_slice(), [Event::Hit { source: Source::Memory, .. }]), "{events:?}");
    drop(first);
    // The thread that built it may hold it for a moment longer.
    let deadline = Instant::now() + Duration::from_secs(5);
    while service.is_live(&request(&service, &good(1))) {
        assert!(Instant::now() < deadline, "nobody has it any more");
        thread::sleep(Duration::from_millis(1));
    }
    let (cached, events) = get(&service, &good(1));
    assert_eq!(*cached.unwrap().source(), Source::Cache);
    assert!(matches!(events.as_slice(), [Event::Hit { source: Source::Cache, .. }]), "{events:?}");
    let (other, _) = get(&bench.service(), &good(1));
    assert_eq!(*other.unwrap().source(), Source::Cache);
    assert_eq!(bench.builds(), 1);
}

#[test]
fn a_kernel_that_this_process_has_is_given_within_a_microsecond() {
    let bench = Bench::new();
    let service = bench.service();
    let request = request(&service, &good(1));
    let cancel = Cancel::new();
    let built = service.get(&request, &cancel, &|_| {}).unwrap();
    let mut times: Vec<Duration> = (0..2000)
        .map(|_| {
            const CALLS: u32 = 50;
            let started = Instant::now();
            for _ in 0..CALLS {
                std::hint::black_box(service.get(&request, &cancel, &|_| {}).unwrap());
            }
            started.elapsed() / CALLS
        })
        .collect();
    times.sort();
    println!("in-process hit: median {:?}, worst of 2000 batches {:?}", times[1000], times[1999]);
    assert!(times[1000] <= Duration::from_micros(1), "{:?}", times[1000]);
    drop(built);
}

#[test]
fn what_is_removed_from_the_cache_is_built_again_and_what_is_damaged_is_refused_and_said() {
    let bench = Bench::new();
    drop(get(&bench.service(), &good(1)).0.unwrap());
    let entry = bench.path("cache/kernels/entries").join(&bench.names("entries")[0]);
    let library = entry.join("kernel.so");
    let mut bytes = std::fs::read(&library).unwrap();
    bytes[1000] ^= 1;
    // The library and its folder are read-only, unless the user is root or changes that.
    use std::os::unix::fs::PermissionsExt;
    for path in [&entry, &library] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    // Replaces the file: the thread that loaded the old one may hold it for a moment longer.
    std::fs::write(bench.path("damaged"), bytes).unwrap();
    std::fs::set_permissions(bench.path("damaged"), std::fs::Permissions::from_mode(0o400)).unwrap();
    std::fs::rename(bench.path("damaged"), &library).unwrap();
    let (outcome, events) = get(&bench.service(), &good(1));
    assert_eq!(*outcome.unwrap().source(), Source::Compiler);
    assert!(events.iter().any(|event| matches!(event, Event::Refused { .. })), "{events:?}");
    assert_eq!(bench.builds(), 2);
    bench.assert_clean();
}

#[test]
fn a_build_ends_when_the_last_of_those_who_wait_goes_and_not_before() {
    let bench = Bench::with(&slow(60.0));
    let service = bench.service();
    let started = Instant::now();
    let [first, second] = [Cancel::new(), Cancel::new()];
    let text = good(1);
    thread::scope(|scope| {
        let waiters = [&first, &second].map(|cancel| {
            let (service, text) = (&service, &text);
            scope.spawn(move || service.get(&request(service, text), cancel, &|_| {}).unwrap_err().code)
        });
        while bench.builds() == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        first.cancel();
        let [one, two] = waiters;
        assert_eq!(one.join().unwrap(), "cancelled");
        thread::sleep(Duration::from_millis(100));
        assert!(!two.is_finished(), "somebody still wants it");
        second.cancel();
        assert_eq!(two.join().unwrap(), "cancelled");
    });
    assert!(started.elapsed() < Duration::from_secs(20));
    // A new request gets a build of its own, not the one that is being stopped.
    bench.compiler(&slow(0.0));
    assert!(get(&service, &text).0.is_ok());
    bench.assert_clean();
}

#[test]
fn builds_run_side_by_side_only_as_far_as_is_asked_for() {
    let bench = Bench::new();
    let folder = bench.folder.path().display().to_string();
    let body = format!(
        "mkdir '{folder}/one' || touch '{folder}/two_at_once'; sleep 0.1; rmdir '{folder}/one'; exec '{}' \"$@\"",
        stand_in("nvcc.sh").display()
    );
    bench.compiler(&body);
    let service = CompileService::new(ServiceOptions { jobs: Some(1), ..bench.options() });
    thread::scope(|scope| {
        for number in 0..4 {
            let service = &service;
            scope.spawn(move || assert!(get(service, &good(number)).0.is_ok()));
        }
    });
    assert!(!bench.path("two_at_once").exists());
    assert_eq!(bench.builds(), 4);
}

#[test]
fn a_listener_that_panics_harms_nobody_but_itself() {
    let bench = Bench::new();
    let service = bench.service();
    let pending = service.start(
        request(&service, &good(1)),
        std::sync::Arc::new(|_| {
            // Unwinds without the message of a panic.
            std::panic::resume_unwind(Box::new("listener"))
        }),
    );
    assert!(pending.wait(fourfold_executor::service::Wait::Forever).unwrap().is_ok());
    let waiter = thread::scope(|scope| {
        let panicking = scope.spawn(|| {
            let events = |_: &Event| std::panic::resume_unwind(Box::new("waiter"));
            service.get(&request(&service, &good(2)), &Cancel::new(), &events).map(|_| ())
        });
        panicking.join()
    });
    assert!(waiter.is_err());
    assert!(get(&service, &good(2)).0.is_ok());
    bench.assert_clean();
}

#[test]
fn a_cache_that_cannot_be_written_to_costs_only_the_cache() {
    let bench = Bench::new();
    let options = ServiceOptions { cache: None, ..bench.options() };
    let service = CompileService::new(options);
    let (outcome, _) = get(&service, &good(1));
    let built = outcome.unwrap();
    assert!(built.kernel().is_ok());
    // A file where the folder of locks should be.
    std::fs::remove_dir_all(bench.path("cache/kernels/locks")).unwrap_or(());
    std::fs::write(bench.path("cache/kernels/locks"), "").unwrap();
    let (outcome, events) = get(&bench.service(), &good(2));
    assert!(outcome.is_ok(), "{events:?}");
}

#[test]
fn lasting_failures_are_remembered_with_their_diagnostics_and_others_are_tried_again() {
    let bench = Bench::new();
    let text = source("source_error", 1, "");
    let (first, _) = get(&bench.service(), &text);
    let first = first.unwrap_err();
    assert_eq!((first.code, first.lasting, first.remembered), ("compile_error", true, false));
    // A new service stands for another process.
    let (second, events) = get(&bench.service(), &text);
    let second = second.unwrap_err();
    assert!(second.remembered && second.lasting);
    assert_eq!((&second.first_error, &second.log), (&first.first_error, &first.log));
    assert!(second.first_error.as_deref().unwrap().contains("frobnicate"));
    assert!(second.log.as_deref().unwrap().contains("never referenced"), "the whole log");
    assert!(matches!(events.as_slice(), [Event::Failed { .. }]), "{events:?}");
    assert_eq!(bench.builds(), 1);
    let retrying = ServiceOptions { retry_known_bad: true, ..bench.options() };
    assert!(get(&CompileService::new(retrying), &text).0.is_err());
    assert_eq!(bench.builds(), 2);
    // Another compiler of the same version may succeed, because output does not prove that the source is at fault.
    bench.compiler(&format!(
        "sed -i '1s/.*/\\/\\/ behave: compile/' kernel.cu; exec '{}' \"$@\"",
        stand_in("nvcc.sh").display()
    ));
    drop(get(&bench.service(), &text).0.unwrap());
    assert!(get(&bench.service(), &text).0.is_ok());
    assert_eq!(bench.builds(), 3);
    bench.compiler(&slow(0.0));
    for _ in 0..2 {
        assert_eq!(get(&bench.service(), &source("crash", 1, "")).0.unwrap_err().code, "compiler_crashed");
    }
    assert_eq!(bench.builds(), 5, "a crash may not come again");
    bench.assert_clean();
}

#[test]
fn without_a_compiler_a_kernel_that_the_cache_has_is_used() {
    use fourfold_executor::service::Failure;
    use fourfold_executor::toolchain::ToolchainError;
    let bench = Bench::new();
    let missing = ToolchainError::NotFound { what: "nvcc", passed_over: Vec::new() };
    let without =
        || ServiceOptions { toolchain: Err(std::sync::Arc::new(Failure::from(&missing))), ..bench.options() };
    let service = CompileService::new(without());
    let text = good(1);
    let failure = get(&service, &text).0.unwrap_err();
    assert_eq!((failure.code, failure.lasting), ("toolchain_missing", false));
    // A kernel that another machine built with the pinned toolchain.
    let with = bench.service();
    let built = with.get(&request(&with, &text), &Cancel::new(), &|_| {}).unwrap();
    let key = request(&service, &text).key();
    bench.cache().insert(&key, built.artifact()).unwrap();
    let (outcome, events) = get(&service, &text);
    assert_eq!(*outcome.unwrap().source(), Source::Cache);
    assert!(matches!(events.as_slice(), [Event::Hit { .. }]), "{events:?}");
}

#[test]
fn who_waits_is_told_for_whom() {
    let bench = Bench::with(&slow(0.5));
    // Other tests of this process build too, so this test raises the limit on concurrent builds.
    let places = || CompileService::new(ServiceOptions { jobs: Some(64), ..bench.options() });
    let [first, second] = [places(), places()];
    let told = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| assert!(get(&first, &good(1)).0.is_ok()));
        while bench.builds() == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        let (outcome, events) = get(&second, &good(1));
        assert!(outcome.is_ok());
        told.lock().unwrap().extend(events);
    });
    let told = told.into_inner().unwrap();
    let own = format!("waits for process {} on ", std::process::id());
    assert!(told.iter().any(|event| event.to_string().contains(&own)), "{told:?}");
    assert_eq!(bench.builds(), 1);
}

#[test]
fn what_another_service_has_mended_is_mended_here() {
    let bench = Bench::new();
    let text = source("source_error", 1, "");
    let lives_long = bench.service();
    assert!(get(&lives_long, &text).0.is_err_and(|failure| !failure.remembered));
    assert!(get(&lives_long, &text).0.is_err_and(|failure| failure.remembered));
    assert_eq!(bench.builds(), 1);
    bench.compiler(&format!(
        "sed -i '1s/.*/\\/\\/ behave: compile/' kernel.cu; exec '{}' \"$@\"",
        stand_in("nvcc.sh").display()
    ));
    let retrying = ServiceOptions { retry_known_bad: true, ..bench.options() };
    drop(get(&CompileService::new(retrying), &text).0.unwrap());
    assert_eq!(*get(&lives_long, &text).0.unwrap().source(), Source::Cache);
    // Without a cache the service itself remembers.
    let alone = CompileService::new(ServiceOptions { cache: None, ..bench.options() });
    bench.compiler("echo 'kernel.cu(1): error: no'; exit 1");
    let before = bench.builds();
    assert!(get(&alone, &text).0.is_err_and(|failure| !failure.remembered));
    assert!(get(&alone, &text).0.is_err_and(|failure| failure.remembered));
    assert_eq!(bench.builds(), before + 1);
}

#[test]
fn who_has_more_time_or_another_launcher_does_not_get_the_failure_of_who_has_not() {
    let bench = Bench::with(&slow(2.0));
    let mut hasty = bench.options();
    hasty.build.time_limit = Duration::from_secs(1);
    let [hasty, as_hasty] = [hasty.clone(), hasty].map(CompileService::new);
    thread::scope(|scope| {
        let first = scope.spawn(|| get(&hasty, &good(1)).0);
        while bench.builds() == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        let same = scope.spawn(|| get(&as_hasty, &good(1)).0);
        let patient = scope.spawn(|| get(&bench.service(), &good(1)).0);
        assert_eq!(first.join().unwrap().unwrap_err().code, "compile_timeout");
        assert!(patient.join().unwrap().is_ok());
        // By chance, it waited for either the build that timed out or the patient one.
        let same = same.join().unwrap();
        assert!(same.is_ok() || same.is_err_and(|failure| failure.code == "compile_timeout"));
    });
    bench.assert_clean();
}

#[test]
fn the_words_of_a_launcher_are_not_remembered() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let launcher = bench.path("launcher");
    std::fs::write(&launcher, "#!/bin/sh\necho 'sccache: error: Server startup failed'; exit 2\n").unwrap();
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut options = bench.options();
    options.build.launcher = Some(launcher);
    let failure = get(&CompileService::new(options), &good(1)).0.unwrap_err();
    assert_eq!((failure.code, failure.lasting), ("compile_error", false));
    assert!(get(&bench.service(), &good(1)).0.is_ok());
    bench.assert_clean();
}

#[test]
fn a_kernel_from_a_tier_that_cannot_be_loaded_here_is_discarded_and_built() {
    use fourfold_executor::cache::{Cache, CacheOptions};
    let (fleet, bench) = (Bench::new(), Bench::new());
    // This machine lacks a symbol that the C library of the fleet's machines has.
    let text = source(
        "compile",
        1,
        "#ifdef NEWER\nextern int newer(void);\nint fourfold_newer(void) { return newer(); }\n#endif",
    );
    let foreign = fleet.path("foreign.c");
    std::fs::write(&foreign, "int newer(void) { return 1; }\n").unwrap();
    let library = fleet.path("libnewer.so");
    let made =
        std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &foreign]).status();
    assert!(made.unwrap().success());
    fleet.compiler(&format!(
        "sed -i 's|^#ifdef NEWER|#if 1|' kernel.cu; exec cc -x c -shared -fPIC -o kernel.so kernel.cu -x none '{}'",
        library.display()
    ));
    drop(get(&fleet.service(), &text).0.unwrap());
    let key = request(&fleet.service(), &text).key();
    let tier = fleet.path("tier").display().to_string();
    std::fs::create_dir(&tier).unwrap();
    fleet.cache().push(&tier, &[key]).unwrap().remove(0).outcome.unwrap();
    std::fs::remove_file(&library).unwrap();
    let tiers = || CacheOptions { tiers: vec![tier.clone()], ..CacheOptions::new(bench.path("cache")) };
    let service = || {
        let cache = Some(Cache::open(&tiers()).unwrap());
        CompileService::new(ServiceOptions { cache, ..bench.options() })
    };
    assert_eq!(request(&service(), &text).key(), key);
    let (outcome, events) = get(&service(), &text);
    let built = outcome.unwrap();
    assert_eq!(*built.source(), Source::Compiler);
    assert!(built.kernel().is_ok());
    let refused: Vec<_> = events.iter().filter(|event| matches!(event, Event::Refused { .. })).collect();
    assert!(
        matches!(refused[..], [event] if event.to_string().contains("this machine cannot load it")),
        "{events:?}"
    );
    drop(built);
    let (outcome, events) = get(&service(), &text);
    assert_eq!(*outcome.unwrap().source(), Source::Cache, "{events:?}");
    assert_eq!(bench.builds(), 1);
    bench.assert_clean();
}
