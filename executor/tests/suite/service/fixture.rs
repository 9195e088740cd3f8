//! Shared by the tests of the service: a stand-in compiler that counts its builds, a cache, and other processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fourfold_executor::cache::{Cache, CacheOptions};
use fourfold_executor::service::{CompileService, Event, Outcome, Request, ServiceOptions};
use fourfold_executor::toolchain::{Cutlass, Origin, Toolchain};
use fourfold_executor::{BuildInput, BuildOptions, Cancel};
use tempfile::TempDir;

pub const KERNEL: &str = "stand_in_sm100_128x128x256";

pub fn stand_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins").join(name)
}

/// The roles of the stand-in kernel, as members of its metadata.
const ROLES: &str = r#""extents":["L","M","N","K"],"operands":[{"role":"a","element":"f4E2M1FN","extents":["L","M","K"]},{"role":"sfa","element":"f8E4M3FN"},{"role":"b","element":"f4E2M1FN","extents":["L","N","K"]},{"role":"sfb","element":"f8E4M3FN"}],"scalars":[],"outputs":[{"role":"y0","element":"f32","extents":["L","M","N"]}]"#;

/// The metadata of the stand-in kernel.
pub fn metadata() -> String {
    format!(
        r#"{{"abi":{},"target":"sm_100a","kernel":"{KERNEL}","tile":[128,128,256],"cluster":[1,1,1],"stages":5,"shared_memory":223232,"threads":256,"signature":"nvfp4 d=f32",{ROLES},"emulated":false,"hash":"00ff"}}"#,
        fourfold_executor::kernel::ABI_VERSION
    )
}

/// A source that the stand-in compiler compiles; each number gives a different source.
pub fn good(number: usize) -> String {
    source("compile", number, "")
}

/// Like [`good`], for a kernel whose text includes CUTLASS.
pub fn good_with_cutlass(number: usize) -> String {
    source("compile", number, "#if 0\n#include \"cutlass/gemm.h\"\n#endif")
}

/// A source that makes the stand-in compiler behave as `behave` says.
pub fn source(behave: &str, number: usize, defines: &str) -> String {
    let body = fs::read_to_string(stand_in("kernel.c")).unwrap();
    let metadata = metadata();
    let sass = "// sass: UTCOMMA.4X gdesc[UR48]\n// sass: EXIT\n";
    format!("// behave: {behave}\n{sass}// number {number}\n#define METADATA {metadata:?}\n{defines}\n{body}")
}

/// A cache, a compiler and a folder for temporary files.
pub struct Bench {
    pub folder: TempDir,
}

impl Bench {
    /// A bench with the stand-in compiler.
    pub fn new() -> Bench {
        Bench::with(&format!("exec '{}' \"$@\"", stand_in("nvcc.sh").display()))
    }

    /// A bench whose compiler counts the build and then runs `compiler`.
    pub fn with(compiler: &str) -> Bench {
        let bench = Bench { folder: tempfile::tempdir().unwrap() };
        for name in ["temp", "cutlass/include", "cutlass/tools/util/include"] {
            fs::create_dir_all(bench.path(name)).unwrap();
        }
        bench.compiler(compiler);
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces the compiler.
    pub fn compiler(&self, body: &str) {
        let script = format!("#!/bin/sh\npwd >> '{}'\n{body}\n", self.path("count").display());
        let new = self.path("nvcc.new");
        fs::write(&new, script).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, self.path("nvcc")).unwrap();
    }

    /// The number of builds started, each in its own folder.
    pub fn builds(&self) -> usize {
        let text = fs::read_to_string(self.path("count")).unwrap_or_default();
        let mut folders: Vec<&str> = text.lines().collect();
        folders.sort_unstable();
        folders.dedup();
        folders.len()
    }

    pub fn cache(&self) -> Cache {
        Cache::open(&CacheOptions::new(self.path("cache"))).unwrap()
    }

    pub fn options(&self) -> ServiceOptions {
        options(self.folder.path())
    }

    pub fn service(&self) -> CompileService {
        CompileService::new(self.options())
    }

    /// Names below a folder of the cache.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path("cache/kernels").join(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Checks that no build folder, lock or process remains, and that every visible entry verifies.
    #[track_caller]
    pub fn assert_clean(&self) {
        // The next service removes the leftovers of killed processes.
        drop(self.service());
        assert_eq!(self.names("tmp"), Vec::<String>::new());
        let locks: Vec<String> =
            self.names("locks").into_iter().filter(|name| !name.starts_with("slot-")).collect();
        assert_eq!(locks, Vec::<String>::new());
        assert_eq!(fs::read_dir(self.path("temp")).unwrap().count(), 0);
        let cache = self.cache();
        for name in self.names("entries") {
            let lookup = cache.get(&name.parse().unwrap());
            assert!(lookup.artifact.is_some() && lookup.notes.is_empty(), "{name}: {:?}", lookup.notes);
        }
        self.assert_no_processes();
    }

    /// Checks that no process runs in a folder of this bench; killed ones get a moment to exit.
    #[track_caller]
    pub fn assert_no_processes(&self) {
        let started = Instant::now();
        while !processes_in(self.folder.path()).is_empty() {
            assert!(started.elapsed() < Duration::from_secs(3), "{:?}", processes_in(self.folder.path()));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The service options for the bench in this folder, for use in other processes too.
pub fn options(folder: &Path) -> ServiceOptions {
    let toolchain = Toolchain {
        nvcc: folder.join("nvcc"),
        include: Vec::new(),
        libraries: Vec::new(),
        cutlass: Some(Cutlass {
            path: folder.join("cutlass"),
            version: "4.5.0".to_owned(),
            origin: Origin::Named("--cutlass"),
        }),
        cuobjdump: Some(stand_in("cuobjdump.sh")),
        nvcc_version: "13.0.88".to_owned(),
        nvcc_origin: Origin::Named("--nvcc"),
        allow_known_bad: false,
        passed_over: Vec::new(),
    };
    ServiceOptions {
        cache: Some(Cache::open(&CacheOptions::new(folder.join("cache"))).unwrap()),
        toolchain: Ok(Arc::new(toolchain)),
        build: BuildOptions { time_limit: Duration::from_secs(120), ..BuildOptions::default() },
        jobs: None,
        retry_known_bad: false,
    }
}

pub fn input(text: &str) -> BuildInput<'_> {
    BuildInput {
        text,
        kernel: KERNEL,
        prelude: None,
        target: "sm_100a",
        architecture: "100a",
        opcode: "UTCOMMA",
        stages: Some(5),
        translation: None,
    }
}

pub fn request(service: &CompileService, text: &str) -> Request {
    service.request(&input(text))
}

/// Requests a kernel, and returns the outcome with all events.
pub fn get(service: &CompileService, text: &str) -> (Outcome, Vec<Event>) {
    let events = Mutex::new(Vec::new());
    let outcome = service
        .get(&request(service, text), &Cancel::new(), &|event| events.lock().unwrap().push(event.clone()));
    (outcome, events.into_inner().unwrap())
}

/// The processes that work in a folder or below it.
pub fn processes_in(folder: &Path) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let place = entry.ok()?.path();
            let cwd = fs::read_link(place.join("cwd")).ok()?;
            cwd.starts_with(folder).then(|| format!("{} in {}", place.display(), cwd.display()))
        })
        .collect()
}

/// A command that runs this test in a copy of this program, with these arguments.
pub fn other(test: &str, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("FOURFOLD_TEST_OTHER", words.join("\n"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The arguments, in the copy.
pub fn role() -> Option<Vec<String>> {
    let words = std::env::var("FOURFOLD_TEST_OTHER").ok()?;
    Some(words.split('\n').map(str::to_owned).collect())
}
