//! The host compiler under nvcc.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fourfold_executor::BuildFault;
use fourfold_executor::service::CompileService;

use crate::service::fixture::{Bench, get, good, options, other, role, stand_in};

/// The message of nvcc's header for a GCC that is too new.
const UNSUPPORTED: &str = "/opt/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc \
                           versions later than 15 are not supported! The nvcc flag '-allow-unsupported-compiler' can \
                           be used to override this version check";

/// Reports of GCC 16. The machine's compiler is at fault, not our source. The failure is not remembered for another
/// compiler, nor for this one after it is replaced.
#[test]
fn a_refused_host_compiler_is_named_and_does_not_last() {
    let bench =
        Bench::with(&format!("g++ --check || exit 1\nexec '{}' \"$@\"", stand_in("nvcc.sh").display()));
    let compiler = |folder: &str, body: &str| {
        fs::create_dir_all(bench.path(folder)).unwrap();
        let path = bench.path(folder).join("g++");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    compiler("gcc16", &format!("echo \"{UNSUPPORTED}\"; exit 1"));
    compiler("gcc15", "exit 0");
    let path = std::env::var("PATH").unwrap();
    let build = |folder: &str, expected: &str| {
        let output = other(
            test_name!(a_build_with_what_is_on_the_path),
            &[bench.folder.path().to_str().unwrap(), expected],
        )
        .env("PATH", format!("{}:{path}", bench.path(folder).display()))
        .env_remove("NVCC_CCBIN")
        .output()
        .unwrap();
        assert!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stdout));
    };
    build("gcc16", "refused");
    // The user installs an older compiler beside it, or in its place.
    build("gcc15", "built");
    fs::remove_dir_all(bench.path("cache")).unwrap();
    build("gcc16", "refused");
    compiler("gcc16", "exit 0");
    build("gcc16", "built");
}

/// The other processes of the test above.
#[test]
fn a_build_with_what_is_on_the_path() {
    let Some(words) = role() else { return };
    let service = CompileService::new(options(Path::new(&words[0])));
    match (get(&service, &good(1)).0, words[1].as_str()) {
        (Ok(_), "built") => {}
        (Err(failure), "refused") => {
            assert_eq!(failure.fault, BuildFault::Environment, "{failure}");
            assert!(failure.to_string().contains("unsupported GNU version"), "{failure}");
            assert!(!failure.lasting, "a machine's compiler may be replaced at any time");
        }
        (outcome, expected) => panic!("{expected}: {outcome:?}"),
    }
}
