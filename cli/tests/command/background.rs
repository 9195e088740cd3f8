//! Kernels built in the background, as an embedding host uses them. Nothing waits, the fallback runs meanwhile,
//! and a built kernel is shared by the programs of the process and kept for the next one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fourfold::executor::cache::CacheOptions;
use fourfold::executor::service::Source;
use fourfold::executor::toolchain::ToolchainOptions;
use fourfold::executor::{BuildFault, Cancel};
use fourfold::ir::sample;
use fourfold::{Backend, CacheChoice, CompileOptions, Compiled, DeviceChoice, Event, Options, Planned, Wait};

/// A compiler that works once it is released, and a cache.
struct Workshop {
    folder: tempfile::TempDir,
}

/// Writes a library whose metadata are those of the source.
const COMPILE: &str = r#"
field() { sed -n "s/.*\\\\\"$1\\\\\":\\\\\"\([^\\\\]*\)\\\\\".*/\1/p" kernel.cu | head -n 1; }
roles=$(sed -n 's/.*\\"signature\\":\\"[^\\]*\\",\(.*\),\\"emulated\\".*/\1/p' kernel.cu | head -n 1)
cat > said.h <<END
#define METADATA "{\"abi\":ABI_NUMBER,\"target\":\"$(field target)\",\"kernel\":\"$(field kernel)\",\"tile\":[128,64,256],\"cluster\":[1,1,1],\"stages\":5,\"shared_memory\":1,\"threads\":256,\"signature\":\"$(field signature)\",$roles,\"emulated\":false,\"hash\":\"$(field hash)\"}"
END
exec cc -shared -fPIC -include said.h -o kernel.so KERNEL_C
"#;

impl Workshop {
    fn new() -> Workshop {
        let workshop = Workshop { folder: tempfile::tempdir().expect("a folder") };
        for name in ["cutlass/include/cutlass", "cutlass/include/cute", "cutlass/tools/util/include"] {
            std::fs::create_dir_all(workshop.path(name)).expect("a folder");
        }
        let version = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n";
        std::fs::write(workshop.path("cutlass/include/cutlass/version.h"), version).expect("a file");
        std::fs::write(workshop.path("cutlass/include/cute/tensor.hpp"), "").expect("a file");
        workshop.script("cuobjdump", "echo '        /*0010*/   UTCOMMA.4X gdesc[UR48] ;   /* 0x0 */'");
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/stand_ins/kernel.c");
        let compile = COMPILE
            .replace("ABI_NUMBER", &fourfold::executor::kernel::ABI_VERSION.to_string())
            .replace("KERNEL_C", &kernel.display().to_string());
        let (builds, go) = (workshop.path("builds"), workshop.path("go"));
        workshop.script(
            "nvcc",
            &format!(
                "case \"$1\" in --version | --dryrun) echo 'release 13.0, V13.0.88'; exit 0;; esac\n\
                 pwd >> '{}'; while ! test -e '{}'; do sleep 0.01; done{compile}",
                builds.display(),
                go.display()
            ),
        );
        workshop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn script(&self, name: &str, body: &str) {
        std::fs::write(self.path(name), format!("#!/bin/sh\n{body}\n")).expect("a script");
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o755)).expect("a script");
    }

    /// Releases the compiler.
    fn open(&self) {
        std::fs::write(self.path("go"), "").expect("a file");
    }

    fn builds(&self) -> usize {
        // One build may start the compiler several times, in the folder of the build.
        let folders = std::fs::read_to_string(self.path("builds")).unwrap_or_default();
        folders.lines().collect::<std::collections::BTreeSet<_>>().len()
    }

    fn options(&self) -> CompileOptions {
        CompileOptions::default()
            .toolchain(ToolchainOptions {
                nvcc: Some(self.path("nvcc")),
                cutlass: Some(self.path("cutlass")),
                ..ToolchainOptions::default()
            })
            .build_anyway(true)
            .cache(CacheChoice::At(CacheOptions::new(self.path("cache"))))
    }

    fn has_processes(&self) -> bool {
        let links = std::fs::read_dir("/proc").expect("processes").flatten();
        let mut folders = links.filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok());
        folders.any(|cwd| cwd.starts_with(self.folder.path()))
    }
}

fn planned() -> (Backend, Planned) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/epilogue/epilogue_full.fir");
    let loaded = fourfold_cli::replay::load(&file).expect("a program");
    let options = Options::default().target("sm_100a").device(DeviceChoice::None);
    let backend = Backend::new(&options).expect("a target");
    let planned = fourfold_cli::replay::plan(&backend, &loaded).expect("a plan");
    (backend, planned)
}

/// The events so far.
type Events = Arc<Mutex<Vec<Event>>>;

fn background(options: &CompileOptions) -> (Compiled, Events) {
    let (backend, planned) = planned();
    let events = Events::default();
    let seen = Arc::clone(&events);
    let listener =
        Arc::new(move |event: &Event| seen.lock().expect("no listener panics").push(event.clone()));
    (backend.compile_in_background(planned, options, listener), events)
}

fn run(compiled: &Compiled) -> fourfold::executor::Run {
    let recipe = sample::Recipe { rule: sample::Rule::Exact, seed: 21, symbols: Vec::new() };
    let inputs = sample::inputs(compiled.planned().program(), &recipe).expect("inputs");
    compiled.run(&inputs, &Default::default()).expect("a run")
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_runs_while_its_kernel_is_built_and_knows_when_it_is_there() {
    let workshop = Workshop::new();
    let started = Instant::now();
    let (compiled, events) = background(&workshop.options());
    assert!(started.elapsed() < Duration::from_secs(10), "it does not wait for the compiler");
    assert_eq!((compiled.building(), compiled.built_so_far().len()), (1, 0));
    let during = run(&compiled);
    assert_eq!(during.segments[0].ran.as_str(), "fallback");
    assert!(!compiled.wait(Wait::Never) && !compiled.wait(Wait::AtMost(Duration::from_millis(30))));
    workshop.open();
    assert!(compiled.wait(Wait::Forever));
    let built = compiled.built_so_far();
    let artifact = built[0].outcome.as_ref().expect("it is built");
    assert_eq!((compiled.building(), artifact.metadata().threads), (0, 256));
    assert_eq!(run(&compiled).values, during.values, "without a device the fallback stays");
    let events = events.lock().expect("no listener panics");
    let is = |test: fn(&Event) -> bool| events.iter().filter(|event| test(event)).count();
    assert_eq!(is(|event| matches!(event, Event::Started { .. })), 1);
    assert_eq!(is(|event| matches!(event, Event::Finished { .. })), 1, "{events:?}");
}

#[test]
fn programs_of_a_process_share_a_build_and_the_next_finds_it_in_the_cache() {
    let workshop = Workshop::new();
    let (first, _) = background(&workshop.options());
    let (second, _) = background(&workshop.options());
    workshop.open();
    assert!(first.wait(Wait::Forever) && second.wait(Wait::Forever));
    assert_eq!(workshop.builds(), 1);
    let (third, events) = background(&workshop.options());
    assert!(third.wait(Wait::Never), "it is there at once");
    let from = |events: &Events| {
        let events = events.lock().expect("no listener panics");
        events.iter().find_map(|event| match event {
            Event::Hit { source, .. } => Some(source.clone()),
            _ => None,
        })
    };
    assert_eq!(from(&events), Some(Source::Memory));
    drop((first, second, third));
    let (backend, planned) = planned();
    let events = Events::default();
    let compiled = backend.compile(planned, &workshop.options(), &|event| {
        events.lock().expect("no listener panics").push(event.clone());
    });
    assert_eq!(from(&events), Some(Source::Cache));
    assert!(compiled.built()[0].outcome.is_ok() && compiled.built_so_far().len() == 1);
    assert_eq!(workshop.builds(), 1);
    // Without the cache it is built again.
    let options = workshop.options().cache(CacheChoice::None);
    let (alone, _) = background(&options);
    assert!(alone.wait(Wait::Forever));
    assert_eq!(workshop.builds(), 2);
}

#[test]
fn dropping_the_last_program_that_wants_a_kernel_ends_its_build() {
    let workshop = Workshop::new();
    let (first, _) = background(&workshop.options());
    let (second, _) = background(&workshop.options());
    wait_for("the build begins", || workshop.builds() == 1);
    drop(first);
    std::thread::sleep(Duration::from_millis(100));
    assert!(workshop.has_processes(), "the second program still wants it");
    drop(second);
    wait_for("the compiler ends", || !workshop.has_processes());
    // A later request then gets the kernel.
    workshop.open();
    let (third, _) = background(&workshop.options());
    assert!(third.wait(Wait::Forever));
    assert!(third.built_so_far()[0].outcome.is_ok());
}

#[test]
fn a_wish_to_stop_ends_what_is_built_in_the_background() {
    let workshop = Workshop::new();
    let cancel = Cancel::new();
    let mut options = workshop.options();
    options.build.cancel = Some(cancel.clone());
    let (compiled, _) = background(&options);
    wait_for("the build begins", || workshop.builds() == 1);
    assert!(!compiled.wait(Wait::AtMost(Duration::from_millis(50))));
    cancel.cancel();
    assert!(compiled.wait(Wait::Never), "nothing is waited for any more");
    let built = compiled.built_so_far();
    assert_eq!(built[0].outcome.as_ref().expect_err("it was cancelled").code, "cancelled");
    wait_for("the compiler ends", || !workshop.has_processes());
    assert_eq!(run(&compiled).segments[0].ran.as_str(), "fallback");
    // A request that comes later does not even start.
    let (late, _) = background(&options);
    assert!(late.wait(Wait::Never));
    // The request of another program is independent.
    workshop.open();
    let (other, _) = background(&workshop.options());
    assert!(other.wait(Wait::Forever));
    assert!(other.built_so_far()[0].outcome.is_ok());
}

#[test]
fn how_many_kernels_are_needed_is_said_before_anything_of_them() {
    let workshop = Workshop::new();
    workshop.open();
    let (first, events) = background(&workshop.options());
    assert!(first.wait(Wait::Forever));
    // The event now comes at once.
    let (second, again) = background(&workshop.options());
    assert!(second.wait(Wait::Never));
    for events in [events, again] {
        let events = events.lock().expect("no listener panics");
        let needed = events.iter().position(|event| matches!(event, Event::Needed { kernels: 1 }));
        let first = events.iter().position(|event| event.kernel().is_some());
        assert!(needed.is_some() && first.is_none_or(|first| needed < Some(first)), "{events:?}");
        assert!(first.is_some(), "{events:?}");
    }
}

#[test]
fn a_failure_in_the_background_is_data_and_runs_on_the_fallback() {
    let workshop = Workshop::new();
    workshop.script(
        "nvcc",
        "case \"$1\" in --version | --dryrun) echo 'release 13.0, V13.0.88'; exit 0;; esac\n\
         echo 'kernel.cu(5): error: no'; exit 2",
    );
    let (compiled, events) = background(&workshop.options());
    assert!(compiled.wait(Wait::Forever));
    let built = compiled.built_so_far();
    let failure = built[0].outcome.as_ref().expect_err("it cannot be built");
    assert_eq!(
        (failure.code, failure.fault, failure.remembered),
        ("compile_error", BuildFault::OurBug, false)
    );
    assert_eq!(failure.first_error.as_deref(), Some("kernel.cu(5): error: no"));
    assert!(!failure.remedy.is_empty() && failure.log.as_deref() == Some("kernel.cu(5): error: no\n"));
    wait_for("its last event", || {
        events.lock().expect("no listener panics").last().is_some_and(Event::is_end)
    });
    assert_eq!(run(&compiled).segments[0].ran.as_str(), "fallback");
}
