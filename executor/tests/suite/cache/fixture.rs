//! Shared by the tests of the cache: kernels from the stand-in compiler, caches in temporary folders, other processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fourfold_executor::cache::{Cache, CacheKey, CacheOptions, KeyParts};
use fourfold_executor::kernel::ABI_VERSION;
use fourfold_executor::{Artifact, BuildInput, BuildOptions, BuildTools, ToolEnvironment, build};
use tempfile::TempDir;

pub fn stand_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins").join(name)
}

/// The roles of the stand-in kernel, as members of its metadata.
const ROLES: &str = r#""extents":["L","M","N","K"],"operands":[{"role":"a","element":"f4E2M1FN","extents":["L","M","K"]},{"role":"sfa","element":"f8E4M3FN"},{"role":"b","element":"f4E2M1FN","extents":["L","N","K"]},{"role":"sfb","element":"f8E4M3FN"}],"scalars":[],"outputs":[{"role":"y0","element":"f32","extents":["L","M","N"]}]"#;

/// A built kernel of this name.
pub fn built(kernel: &str) -> Artifact {
    built_in(kernel, None)
}

/// A built kernel, whose temporary folder lies in `temp_dir`.
pub fn built_in(kernel: &str, temp_dir: Option<PathBuf>) -> Artifact {
    let metadata = format!(
        r#"{{"abi":{ABI_VERSION},"target":"sm_100a","kernel":"{kernel}","tile":[128,128,256],"cluster":[1,1,1],"stages":5,"shared_memory":223232,"threads":256,"signature":"nvfp4 d=f32",{ROLES},"emulated":false,"hash":"00ff"}}"#
    );
    let body = fs::read_to_string(stand_in("kernel.c")).unwrap();
    let text =
        format!("// behave: compile\n// sass: UTCOMMA.4X gdesc\n#define METADATA {metadata:?}\n{body}");
    let input = BuildInput {
        text: &text,
        kernel,
        prelude: None,
        target: "sm_100a",
        architecture: "100a",
        opcode: "UTCOMMA",
        stages: Some(5),
        translation: None,
    };
    let (nvcc, cuobjdump) = (stand_in("nvcc.sh"), stand_in("cuobjdump.sh"));
    let tools = BuildTools {
        nvcc: &nvcc,
        include: vec![],
        libraries: vec![],
        cuobjdump: Some(&cuobjdump),
        environment: ToolEnvironment::default(),
    };
    build(&input, &tools, &BuildOptions { temp_dir, ..BuildOptions::default() }).unwrap()
}

pub fn key(number: u32) -> CacheKey {
    CacheKey::new(&KeyParts {
        source: "source",
        prelude: None,
        kernel: "kernel",
        target: "sm_100a",
        architecture: "100a",
        opcode: "UTCOMMA",
        stages: Some(5),
        flags: &[],
        nvcc: "13.0.88",
        cutlass: "4.2.0",
        host: "x86_64-linux",
        host_compiler: "",
        abi: number,
    })
}

/// A cache in its own temporary folder.
pub struct Bench {
    pub folder: TempDir,
    pub options: CacheOptions,
    pub cache: Cache,
}

impl Bench {
    pub fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let options = CacheOptions::new(folder.path());
        let cache = Cache::open(&options).unwrap();
        Bench { folder, options, cache }
    }

    pub fn entry(&self, key: &CacheKey) -> PathBuf {
        self.cache.folder().join("entries").join(key.to_string())
    }

    /// The entries of a folder below `kernels`.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.cache.folder().join(folder)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Checks that no temporary folder remains and that every visible entry verifies.
    #[track_caller]
    pub fn assert_whole(&self) {
        assert_eq!(self.names("tmp"), Vec::<String>::new());
        for name in self.names("entries") {
            let lookup = self.cache.get(&name.parse().unwrap());
            assert!(lookup.artifact.is_some() && lookup.notes.is_empty(), "{name}: {:?}", lookup.notes);
        }
    }
}

/// Makes an entry writable, so that a test can damage it.
pub fn open_up(entry: &Path) {
    fs::set_permissions(entry, fs::Permissions::from_mode(0o700)).unwrap();
    for file in fs::read_dir(entry).unwrap() {
        fs::set_permissions(file.unwrap().path(), fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// Runs the test `name` of this program in another process, with `what` in the variable `FOURFOLD_TEST_OTHER`.
pub fn other_process(name: &str, what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env("FOURFOLD_TEST_OTHER", what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The value that [`other_process`] passed, if it started this process.
pub fn as_other() -> Option<String> {
    std::env::var("FOURFOLD_TEST_OTHER").ok()
}

/// Waits for a process of [`other_process`].
#[track_caller]
pub fn finish(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}
