//! Caches and toolchains in folders with any name: each works, no name is executed, and no tool sees a name.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fourfold_executor::cache::{Cache, CacheOptions};
use fourfold_executor::environment::Environment;
use fourfold_executor::service::{CompileService, Failure, ServiceOptions, Source};
use fourfold_executor::toolchain::{ToolchainOptions, locate};
use fourfold_executor::{BuildFault, BuildOptions};

use super::fixture::{get, good, metadata, stand_in};

/// Folder names: every possible byte, text with a meaning to shells, lists or the dynamic linker, and mixtures of
/// these.
fn names() -> Vec<OsString> {
    const WORDS: [&str; 44] = [
        "$(touch PWNED)",
        "`touch PWNED`",
        "\";touch PWNED;\"",
        "';touch PWNED;'",
        "\ntouch PWNED\n",
        "&touch PWNED&",
        "|touch PWNED|",
        ";touch PWNED;",
        "$(touch${IFS}PWNED)",
        "\\$(touch PWNED)",
        "\"$(touch PWNED)\"",
        "$HOME",
        "$LIB",
        "$ORIGIN",
        "${PLATFORM}",
        "a$ORIGIN b",
        "${",
        "$(",
        "-o",
        "--help",
        "-Xcompiler=-O0",
        "@response",
        "~",
        "~root",
        "*",
        "?",
        "[a-z]",
        "{a,b}",
        "k=v",
        "A=B C=D",
        "%s%n",
        "!!",
        "#",
        " leading",
        "trailing ",
        "...",
        ".hidden",
        "größe",
        "漢字",
        "🦀",
        "e\u{301}",
        "\u{202e}txt",
        "a\u{a0}b\u{2028}c",
        "nvcc",
    ];
    let mut names: Vec<OsString> = WORDS.iter().map(OsString::from).collect();
    let every = (1..=255u8).filter(|byte| *byte != b'/' && !byte.is_ascii_alphanumeric());
    names.extend(every.map(|byte| OsString::from_vec(vec![b'a', byte, b'b'])));
    names.push(OsString::from("x".repeat(200)));
    let mut state = 7u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match state.to_be_bytes()[0] {
            0 | b'/' => b'$',
            byte => byte,
        }
    };
    while names.len() < 300 {
        names.push(OsString::from_vec((0..40).map(|_| byte()).collect()));
    }
    names
}

/// A compiler that pastes paths into shell commands as nvcc does: its own path, its folder for temporary files, the
/// folders it searches, its arguments and the real path of the source. It rejects paths that another tool would split.
const COMPILER: &str = r#"
case "$1" in --version | --dryrun) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0 ;; esac
paste() {
    sh -c ": \"$1\"" || { echo "error: the shell refuses $1"; exit 1; }
    case "$1" in "" | *[!A-Za-z0-9._+/,=-]*) echo "error: no plain name: $1"; exit 1 ;; esac
}
for last; do paste "$last"; done
paste "$0"
paste "$TMPDIR"
paste "$(realpath "$last")"
for folder in $(echo "$PATH" | tr : ' '); do paste "$folder"; done
[ -d "$TMPDIR" ] && [ -f "$(dirname "$0")/beside" ] || { echo "error: something is not where it should be"; exit 1; }
[ ! -e PWNED ] || { echo "error: a name was run"; exit 1; }
"#;

struct Setting {
    folder: tempfile::TempDir,
    /// A library that was built before.
    library: PathBuf,
}

impl Setting {
    fn new() -> Setting {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("kernel.c"), folder.path().join("library.so"));
        let body = fs::read_to_string(stand_in("kernel.c")).unwrap();
        fs::write(&source, format!("#define METADATA {:?}\n{body}", metadata())).unwrap();
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        assert!(compiled.unwrap().success());
        Setting { folder, library }
    }

    /// Options for a cache and a toolchain in a folder of this name.
    fn options(&self, name: &OsStr) -> ServiceOptions {
        let place = self.folder.path().join("places").join(name);
        self.options_in(&place, &place, "nvcc")
    }

    fn options_in(&self, place: &Path, cache: &Path, nvcc: &str) -> ServiceOptions {
        for folder in ["cutlass/include/cutlass", "cutlass/include/cute", "cutlass/tools/util/include", "bin"]
        {
            fs::create_dir_all(place.join(folder)).unwrap();
        }
        let version = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n";
        fs::write(place.join("cutlass/include/cutlass/version.h"), version).unwrap();
        fs::write(place.join("cutlass/include/cute/tensor.hpp"), "").unwrap();
        fs::write(place.join("bin/beside"), "").unwrap();
        let script = |name: &str, text: String| {
            let path = place.join("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let done = format!("echo started >> '{}'\n", self.count().display());
        let copy = format!("cp '{}' kernel.so", self.library.display());
        let nvcc = script(nvcc, format!("{}{done}{copy}", COMPILER));
        script(
            "cuobjdump",
            "echo '        /*0010*/                   UTCOMMA.4X gdesc ;   /* 0x00 */'".to_owned(),
        );
        let search = ToolchainOptions {
            nvcc: Some(nvcc),
            cutlass: Some(place.join("cutlass")),
            ..ToolchainOptions::default()
        };
        let toolchain = locate(&search, &Environment::default()).unwrap();
        ServiceOptions {
            cache: Some(Cache::open(&CacheOptions::new(cache.join("cache"))).unwrap()),
            toolchain: Ok(Arc::new(toolchain)),
            build: BuildOptions::default(),
            jobs: Some(4),
            retry_known_bad: false,
        }
    }

    fn count(&self) -> PathBuf {
        self.folder.path().join("count")
    }

    fn refuse(&self, options: ServiceOptions) -> Arc<Failure> {
        let failure = get(&CompileService::new(options), &good(1)).0.expect_err("it must be refused");
        assert!(!self.count().exists(), "something was started: {failure}");
        failure
    }
}

/// The files with this name below a folder.
fn called(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(called(&entry.path(), name));
        } else if entry.file_name() == name {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn caches_and_toolchains_with_300_names_work_and_nothing_in_a_name_runs() {
    let (setting, names) = (Setting::new(), names());
    assert_eq!(names.len(), 300);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let options = setting.options(name);
                    let built = get(&CompileService::new(options.clone()), &good(1)).0;
                    let built = built.unwrap_or_else(|failure| panic!("{name:?}: {failure:?}"));
                    assert_eq!(built.kernel().unwrap().metadata().threads, 256, "{name:?}");
                    assert!(built.artifact().library().as_os_str().as_bytes().ends_with(b"kernel.so"));
                    drop(built);
                    let (again, events) = get(&CompileService::new(options), &good(1));
                    let again = again.unwrap_or_else(|failure| panic!("{name:?}: {failure:?}"));
                    assert!(matches!(again.source(), Source::Cache), "{name:?}: {events:?}");
                }
            });
        }
    });
    let started = fs::read_to_string(setting.count()).unwrap().lines().count();
    assert_eq!(started, names.len(), "each was built once");
    assert_eq!(called(setting.folder.path(), "PWNED"), Vec::<PathBuf>::new());
    assert!(!Path::new("PWNED").exists());
}

#[test]
fn a_compiler_whose_own_name_is_not_plain_is_refused_before_it_starts() {
    for name in ["nv cc", "$(touch PWNED)", "-nvcc", "nvcc\n"] {
        let setting = Setting::new();
        let place = setting.folder.path().join("place");
        let failure = setting.refuse(setting.options_in(&place, &place, name));
        assert_eq!(
            (failure.code, failure.fault(), failure.lasting),
            ("unsafe_path", BuildFault::Environment, false)
        );
        assert!(failure.message.contains(name), "{failure}");
    }
}

#[test]
fn launchers_and_debug_mode_refuse_folders_that_tools_would_stumble_over() {
    for name in ["$(touch PWNED)", "quo\"te", "new\nline", "with space"] {
        let setting = Setting::new();
        let (place, cache) = (setting.folder.path().join("place"), setting.folder.path().join(name));
        let mut options = setting.options_in(&place, &cache, "nvcc");
        let mut debug = options.clone();
        debug.build.debug = true;
        options.build.launcher = Some(stand_in("launcher.sh"));
        for options in [options, debug] {
            let failure = setting.refuse(options);
            assert_eq!((failure.code, failure.lasting), ("unsafe_path", false), "{failure:?}");
            assert!(failure.message.contains(name), "{failure}");
        }
        assert_eq!(called(setting.folder.path(), "PWNED"), Vec::<PathBuf>::new());
    }
}
