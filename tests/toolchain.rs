//! `fourfold toolchain` and `fourfold doctor` on machines that have nothing, and on one that has a fake toolkit.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program with nothing in its environment but what is given.
fn fourfold(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fourfold"))
        .args(arguments)
        .env_clear()
        .env("HOME", folder)
        .env("PATH", folder.join("bin"))
        .envs(variables.iter().copied())
        .output()
        .expect("the program starts")
}

fn outcome(output: &Output) -> (Option<i32>, Value) {
    let object = serde_json::from_slice(&output.stdout);
    (output.status.code(), object.unwrap_or_else(|error| panic!("{error}: {}", errors(output))))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_machine_with_nothing_is_told_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let doctor = fourfold(folder.path(), &[], &["doctor", "--json"]);
    let (code, report) = outcome(&doctor);
    assert_eq!((code, &report["ok"]), (Some(3), &Value::Bool(false)));
    for finding in report["findings"].as_array().expect("findings") {
        assert_eq!(finding["state"] == "missing", finding["remedy"].is_string(), "{finding}");
    }
    let variables = report["variables"].as_array().expect("variables");
    assert!(variables.iter().any(|variable| variable["name"] == "FOURFOLD_NVCC"));
    let text = fourfold(folder.path(), &[], &["doctor"]);
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains("missing  nvcc") && text.contains("-> run `fourfold toolchain install`"), "{text}");
    assert!(text.contains("sm_121a") && text.contains("FOURFOLD_CACHE_DIR"), "{text}");

    let which = fourfold(folder.path(), &[], &["toolchain", "which"]);
    assert_eq!(which.status.code(), Some(3));
    assert!(errors(&which).contains("error: there is no nvcc\nwhat to do: run `fourfold toolchain install`"));
    let (code, report) = outcome(&fourfold(folder.path(), &[], &["toolchain", "install", "--json"]));
    assert_eq!((code, &report["fault"]), (Some(3), &Value::from("toolchain")));
    assert!(report["error"].as_str().expect("a message").contains("python3"));
}

#[test]
fn what_is_named_wrongly_is_bad_input() {
    let folder = tempfile::tempdir().expect("a folder");
    for arguments in [
        &["toolchain", "which", "--nvcc", "/nonexistent/nvcc", "--json"][..],
        &["toolchain", "install", "--from", "/nonexistent/toolchain", "--json"],
    ] {
        let (code, report) = outcome(&fourfold(folder.path(), &[], arguments));
        assert_eq!((code, &report["cause"]), (Some(2), &Value::from("request")), "{report}");
        assert!(report["error"].as_str().expect("a message").contains("/nonexistent/"), "{report}");
    }
}

#[test]
fn a_toolkit_that_is_there_is_found_and_described() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("it can be made");
        fs::write(&file, text).expect("it can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it can be changed");
    };
    write("cuda/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n");
    write("cuda/bin/cuobjdump", "#!/bin/sh\n");
    write("bin/g++", "#!/bin/sh\necho 'g++ 13.3.0'\n");
    let version = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 7\n#define CUTLASS_PATCH 0\n";
    write("cutlass/include/cutlass/version.h", version);
    write("cutlass/include/cute/tensor.hpp", "");
    write("cutlass/tools/util/include/cutlass/util/packed_stride.hpp", "");
    let [cuda, cutlass] = ["cuda", "cutlass"].map(|name| folder.path().join(name).display().to_string());
    let variables = [("CUDA_HOME", cuda.as_str()), ("FOURFOLD_CUTLASS", cutlass.as_str())];

    let (code, report) = outcome(&fourfold(folder.path(), &variables, &["toolchain", "which", "--json"]));
    assert_eq!(code, Some(0));
    assert_eq!(report["nvcc"]["version"], "12.8.93");
    assert_eq!(report["nvcc"]["origin"], "CUDA_HOME");
    assert_eq!(report["cutlass"]["version"], "4.7.0");
    assert_eq!(report["cuobjdump"], format!("{cuda}/bin/cuobjdump"));

    let (code, report) = outcome(&fourfold(folder.path(), &variables, &["doctor", "--json"]));
    assert_eq!((code, &report["ok"]), (Some(0), &Value::Bool(true)), "{report}");
    let state = |name: &str| {
        let targets = report["targets"].as_array().expect("targets");
        targets.iter().find(|target| target["name"] == name).expect(name)["state"].clone()
    };
    assert_eq!([state("sm_100a"), state("sm_120a")], ["ok", "ok"]);
    assert_eq!([state("sm_103a"), state("sm_121a")], ["missing", "missing"]);
    assert_eq!(state("cpu"), "none");
}
