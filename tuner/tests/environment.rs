//! Tests that a real build depends neither on its folder nor on the caller's environment, except for what is part of
//! the kernel's cache key.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::{KernelSource, target};
use fourfold_executor::cache::{Cache, CacheOptions};
use fourfold_executor::environment::Environment;
use fourfold_executor::service::{CompileService, Request, ServiceOptions, Source};
use fourfold_executor::toolchain::{Toolchain, ToolchainOptions, locate};
use fourfold_executor::{BuildInput, BuildOptions, Cancel};
use fourfold_tuner::generator::generator;
use fourfold_tuner::parameters::Parameters;

/// A small kernel.
fn source(on: &str) -> KernelSource {
    let generator = generator("block_quantize").expect("the generator exists");
    let target = target(on).expect("a target");
    let configured = generator.configure(&Parameters::default(), target, CutlassVersion::PINNED);
    configured.unwrap_or_else(|broken| panic!("{broken:?}")).source()
}

fn toolchain() -> Toolchain {
    let options = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
    locate(&options, &Environment::from_process())
        .unwrap_or_else(|error| panic!("{error}\n{}", error.remedy()))
}

fn service(cache: &Path, toolchain: Toolchain) -> CompileService {
    CompileService::new(ServiceOptions {
        cache: Some(Cache::open(&CacheOptions::new(cache.to_owned())).expect("a cache")),
        toolchain: Ok(Arc::new(toolchain)),
        build: BuildOptions::default(),
        jobs: Some(2),
        retry_known_bad: false,
    })
}

fn request(service: &CompileService, source: &KernelSource) -> Request {
    service.request(&BuildInput {
        text: &source.text,
        kernel: &source.kernel,
        prelude: source.prelude,
        target: source.target,
        architecture: source.architecture,
        opcode: source.opcode,
        stages: None,
        translation: None,
    })
}

/// The outcome of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    key: String,
    /// A digest of the library, or the build's error.
    library: Result<String, String>,
    /// True if the kernel was compiled now.
    compiled: bool,
    log: String,
}

fn make(cache: &Path, toolchain: Toolchain, source: &KernelSource) -> Made {
    let service = service(cache, toolchain);
    let request = request(&service, source);
    let outcome = service.get(&request, &Cancel::new(), &|_| {});
    let key = request.key().to_string();
    match outcome {
        Ok(built) => {
            let bytes = fs::read(built.artifact().library()).expect("the library");
            let compiled = *built.source() == Source::Compiler;
            let log = built.artifact().log().to_owned();
            Made { key, library: Ok(blake3::hash(&bytes).to_hex().to_string()), compiled, log }
        }
        Err(failure) => Made {
            key,
            library: Err(failure.message.clone()),
            compiled: !failure.remembered,
            log: String::new(),
        },
    }
}

/// Not a separate test: the part that runs in a copy of this program with another environment.
#[test]
fn in_another_environment() {
    let Ok(words) = std::env::var("FOURFOLD_TEST_OTHER") else { return };
    let made = make(Path::new(&words), toolchain(), &source("sm_90a"));
    let (library, why) = match made.library {
        Ok(library) => (library, String::new()),
        Err(why) => (String::new(), why.replace('\n', " ")),
    };
    println!("\nmade {} {} [{library}] {why}", made.key, made.compiled);
}

/// Builds in a copy of this program with additional environment variables.
fn make_with(cache: &Path, variables: &[(&str, &OsStr)]) -> Made {
    let path = concat!(module_path!(), "::in_another_environment");
    let (_, test) = path.split_once("::").expect("a path begins with the crate");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env("FOURFOLD_TEST_OTHER", cache).envs(variables.iter().copied());
    let output = command.output().expect("the copy starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line =
        said.lines().find_map(|line| line.strip_prefix("made ")).unwrap_or_else(|| panic!("{output:?}"));
    let (head, why) = line.split_once("] ").expect("a line");
    let (head, library) = head.split_once(" [").expect("a line");
    let (key, compiled) = head.split_once(' ').expect("a line");
    let library = if library.is_empty() { Err(why.to_owned()) } else { Ok(library.to_owned()) };
    Made { key: key.to_owned(), library, compiled: compiled == "true", log: String::new() }
}

/// Environment variables, each of which would break or change a build if it were passed on.
fn poisons(folder: &Path) -> Vec<(&'static str, OsString)> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a file");
        path
    };
    write("include/cuda.h", "#error the wrong header\n");
    write("include/cstdint", "#error the wrong header\n");
    for tool in ["as", "ld", "cc1plus", "collect2"] {
        write(&format!("tools/{tool}"), "#!/bin/sh\necho the wrong tool >&2\nexit 1\n");
    }
    let usual = Environment::from_process().find_program("g++").expect("g++ is on PATH");
    write("wrapped/g++", &format!("#!/bin/sh\nexec '{}' -DUNWANTED \"$@\"\n", usual.display()));
    write("broken/g++", "#!/bin/sh\necho 'kernel.cu(1): error: the wrong compiler'\nexit 1\n");
    write("libraries/libmpfr.so.6", "no library");
    let preload = write(
        "preload.c",
        "#include <stdlib.h>\n#include <string.h>\nextern char *program_invocation_short_name;\n\
         __attribute__((constructor)) static void begin(void) {\n\
         if (!strcmp(program_invocation_short_name, \"cicc\")) _Exit(1); }\n",
    );
    let preloaded = folder.join("preload.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-D_GNU_SOURCE", "-shared", "-fPIC", "-o"]).args([&preloaded, &preload]);
    let compiled = compiler.status().expect("cc starts");
    assert!(compiled.success());
    let text = |text: &str| OsString::from(text);
    let place = |name: &str| folder.join(name).into_os_string();
    let after = |before: &str, name: &str| {
        [OsString::from(before), place(name)].iter().map(OsString::as_os_str).collect()
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    vec![
        ("PTXAS_FLAGS", text("-O0")),
        ("CPATH", place("include")),
        ("C_INCLUDE_PATH", place("include")),
        ("CPLUS_INCLUDE_PATH", place("include")),
        ("INCLUDES", after("-I", "include")),
        ("SYSTEM_INCLUDES", after("-I", "include")),
        ("CUDAFE_FLAGS", text("--no_such_flag")),
        ("LIBRARIES", text("-lno_such_library")),
        ("LIBRARY_PATH", place("libraries")),
        ("GCC_EXEC_PREFIX", place("tools/")),
        ("COMPILER_PATH", place("tools")),
        ("NVCC_CCBIN", place("wrapped/g++")),
        ("NVCC_CCBIN", place("broken/g++")),
        ("PATH", [place("broken"), path].join(OsStr::new(":"))),
        ("LD_PRELOAD", preloaded.into_os_string()),
        ("LD_LIBRARY_PATH", place("libraries")),
        ("NVCC_APPEND_FLAGS", text("--no-such-flag")),
        ("NVCC_PREPEND_FLAGS", text("-Xptxas=-O0")),
        ("CICC_PATH", place("tools")),
        ("DEPENDENCIES_OUTPUT", place("dependencies")),
        ("TMPDIR", text("/tmp/$(touch PWNED)")),
    ]
}

#[test]
fn a_variable_of_the_caller_changes_the_key_or_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let caches = folder.path().join("caches");
    let clean = make_with(&caches.join("clean"), &[]);
    let expected = clean.library.clone().expect("the build works without the variables");
    let mut keys = BTreeMap::new();
    for (number, (name, value)) in poisons(&folder.path().join("poisons")).into_iter().enumerate() {
        let cache = caches.join(number.to_string());
        let with = make_with(&cache, &[(name, &value)]);
        assert!(with.compiled, "{name}: {with:?}");
        if with.key == clean.key {
            assert_eq!(with.library.as_ref(), Ok(&expected), "{name}={}", value.display());
        } else {
            assert!(["NVCC_CCBIN", "PATH"].contains(&name), "{name} must not affect the key: {with:?}");
            *keys.entry(name).or_insert(0) += 1;
            // The outcome under the variable is neither reused nor remembered without it.
            let without = make_with(&cache, &[]);
            assert_eq!((&without.key, without.library.as_ref()), (&clean.key, Ok(&expected)), "{name}");
            assert!(without.compiled, "{name}");
        }
    }
    assert_eq!(keys, BTreeMap::from([("NVCC_CCBIN", 2), ("PATH", 1)]));
    assert!(!folder.path().join("poisons/dependencies").exists() && !Path::new("PWNED").exists());
}

#[test]
fn the_same_key_gives_the_same_bytes_in_any_folder_and_each_kernel_is_compiled_once() {
    let folder = tempfile::tempdir().expect("a folder");
    for target in ["sm_90a", "sm_100a"] {
        let source = source(target);
        let made = ["plain", "another/and deeper $(touch PWNED)"]
            .map(|name| make(&folder.path().join(name).join(target), toolchain(), &source));
        assert!(made[0].compiled && made[1].compiled && made[0].library.is_ok(), "{made:?}");
        assert_eq!((&made[0].key, &made[0].library), (&made[1].key, &made[1].library));
        assert!(!made[0].log.contains("two-pass compilation failed"), "{}", made[0].log);
    }
}

/// Each build takes some seconds.
#[test]
#[ignore = "it runs the real compiler 20 times"]
fn the_real_compiler_works_in_20_folders_of_any_name() {
    let random = |seed: u64| {
        let mut state = seed;
        let byte = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match state.to_be_bytes()[0] {
                0 | b'/' => b'$',
                byte => byte,
            }
        };
        OsString::from_vec((0..40).map(byte).collect())
    };
    let printable: Vec<u8> = (b' '..=b'~').filter(|byte| *byte != b'/').collect();
    let control: Vec<u8> = (1..b' ').chain([127]).collect();
    let mut names: Vec<OsString> = [
        "$(touch PWNED)",
        "`touch PWNED`",
        "\";touch PWNED;\"",
        "';touch PWNED;'",
        "\ntouch PWNED\n",
        "a,b:c;d",
        "$LIB",
        "$ORIGIN",
        "-o",
        "@file",
        "größe 漢字 🦀",
        " a ",
    ]
    .map(OsString::from)
    .into();
    names.extend([
        OsString::from_vec(printable),
        OsString::from_vec(control),
        OsString::from_vec((128..=255).collect()),
    ]);
    names.extend((1..=5).map(random));
    assert_eq!(names.len(), 20);
    let folder = tempfile::tempdir().expect("a folder");
    let (real, source) = (toolchain(), source("sm_90a"));
    let root = real.nvcc.ancestors().nth(2).expect("a toolkit");
    let expected = make(&folder.path().join("plain"), real.clone(), &source);
    let place = folder.path().join("place");
    fs::create_dir(&place).expect("a folder");
    let mut lies = place.join("cuda");
    copy(root, &lies);
    for name in names {
        // The toolkit's folder and the cache get this name.
        let moved = place.join(&name);
        fs::rename(&lies, &moved).expect("the folder can be renamed");
        lies = moved;
        let search = ToolchainOptions {
            nvcc: Some(lies.join("bin/nvcc")),
            cutlass: real.cutlass.as_ref().map(|cutlass| cutlass.path.clone()),
            ..ToolchainOptions::default()
        };
        let toolchain = locate(&search, &Environment::default()).expect("the toolchain can be located");
        assert!(toolchain.include[0].as_os_str().as_bytes().ends_with(b"/include"));
        let made = make(&folder.path().join("caches").join(&name), toolchain, &source);
        assert_eq!((&made.library, made.compiled), (&expected.library, true), "{name:?}");
    }
    assert_eq!(find(folder.path(), "PWNED"), Vec::<PathBuf>::new());
}

/// Copies a folder. Hard-links its files where possible.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to).expect("the file can be copied");
        }
    }
}

fn find(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(find(&entry.path(), name));
        } else if entry.file_name() == name {
            found.push(entry.path());
        }
    }
    found
}
