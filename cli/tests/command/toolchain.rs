//! `fourfold toolchain` and `fourfold doctor` on machines without tools, and on one with a fake toolkit.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program with only the given environment.
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
        assert_eq!(finding["state"] == "ok", finding["remedy"].is_null(), "{finding}");
    }
    let variables = report["variables"].as_array().expect("variables");
    assert!(variables.iter().any(|variable| variable["name"] == "FOURFOLD_NVCC"));
    let (code, report) = outcome(&fourfold(folder.path(), &[], &["doctor", "--self-test", "--json"]));
    assert_eq!((code, &report["self_test"]["state"]), (Some(3), &"not_run".into()));
    let text = fourfold(folder.path(), &[], &["doctor"]);
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains("missing  nvcc") && text.contains("-> run `fourfold toolchain install`"), "{text}");
    assert!(text.contains("sm_121a") && text.contains("FOURFOLD_CACHE_DIR"), "{text}");

    let which = fourfold(folder.path(), &[], &["toolchain", "which"]);
    assert_eq!(which.status.code(), Some(3));
    assert!(
        errors(&which).contains("error: no usable nvcc was found\nhelp: run `fourfold toolchain install`")
    );
    let (code, report) = outcome(&fourfold(folder.path(), &[], &["toolchain", "install", "--json"]));
    assert_eq!((code, &report["fault"]), (Some(3), &Value::from("toolchain")));
    assert!(report["error"].as_str().expect("a message").contains("python3"));
}

#[test]
fn the_doctor_finds_the_matrix_library() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/stand_ins/libcublaslt.c");
    let compile = |name: &str, version: &str| {
        let path = folder.path().join(name);
        let compiler = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", version, "-o"])
            .arg(&path)
            .arg(&source)
            .status();
        assert!(compiler.expect("there is a C compiler").success());
        path.display().to_string()
    };
    let finding = |variables: &[(&str, &str)]| {
        let (_, report) = outcome(&fourfold(folder.path(), variables, &["doctor", "--json"]));
        let findings = report["findings"].as_array().expect("findings");
        findings.iter().find(|finding| finding["name"] == "cuBLASLt").expect("it is there").clone()
    };
    let supported = compile("libcublasLt.so.13", "-DVERSION=130102");
    let home = folder.path().display().to_string();
    // It is named, in a named folder, or found by the system's loader.
    for variable in
        [("FOURFOLD_CUBLASLT", &supported), ("FOURFOLD_CUBLASLT", &home), ("LD_LIBRARY_PATH", &home)]
    {
        let found = finding(&[(variable.0, variable.1)]);
        assert_eq!((&found["state"], &found["remedy"]), (&"ok".into(), &Value::Null), "{found}");
        assert_eq!(found["detail"], Value::from(format!("13.1.2, {supported}")));
    }
    let old = compile("old.so", "-DVERSION=111103");
    let found = finding(&[("FOURFOLD_CUBLASLT", &old)]);
    assert_eq!(found["state"], "note", "kernels can be built without it");
    let detail = format!(
        "cuBLASLt 11.11.3 in `{old}` is not supported; expected version 12 or 13; mma runs on the CPU"
    );
    assert_eq!(found["detail"], Value::from(detail));
    assert!(found["remedy"].as_str().expect("a remedy").contains("FOURFOLD_CUBLASLT"), "{found}");
    let text = fourfold(folder.path(), &[("FOURFOLD_CUBLASLT", &supported)], &["doctor"]);
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains(&format!("ok       cuBLASLt          13.1.2, {supported}\n")), "{text}");
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
    write("bin/gcc", "#!/bin/sh\necho 'gcc 13.3.0'\n");
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
    assert_eq!([state("sm_90a"), state("sm_100a")], ["ok", "ok"]);
    // The tools do not know these targets, or are known to be bad for them.
    assert_eq!([state("sm_103a"), state("sm_120a"), state("sm_121a")], ["missing", "missing", "missing"]);
    let findings = report["findings"].as_array().expect("findings");
    let nvcc = findings.iter().find(|finding| finding["name"] == "nvcc").expect("it is there");
    assert_eq!(nvcc["state"], "note", "{nvcc}");
    assert!(nvcc["detail"].as_str().expect("words").contains("known to be bad for sm_120a"), "{nvcc}");
    let (code, report) =
        outcome(&fourfold(folder.path(), &variables, &["doctor", "--target", "sm_120a", "--json"]));
    assert_eq!((code, &report["ok"]), (Some(3), &Value::Bool(false)), "{report}");
    assert_eq!(state("cpu"), "none");
}

#[test]
fn the_doctor_says_how_the_cache_of_kernels_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let name = cache.display().to_string();
    let variables = [
        ("FOURFOLD_CACHE_DIR", name.as_str()),
        ("FOURFOLD_CACHE_TIERS", "https://me:hunter2@host/kernels?sig=hunter2"),
    ];
    let doctor = || {
        let (_, report) = outcome(&fourfold(folder.path(), &variables, &["doctor", "--json"]));
        assert!(!report.to_string().contains("hunter2"), "{report}");
        let findings = report["findings"].as_array().expect("findings").iter();
        let finding =
            findings.clone().find(|finding| finding["name"] == "kernel cache").expect("it is there");
        (finding.clone(), report["cache"].clone())
    };
    // Examining creates nothing.
    let (finding, health) = doctor();
    assert_eq!((&finding["state"], &health), (&"ok".into(), &Value::Null), "{finding}");
    assert!(finding["detail"].as_str().expect("words").contains("no kernels yet") && !cache.exists());

    let (_, report) = outcome(&fourfold(folder.path(), &variables, &["doctor", "--json"]));
    let tier = report["findings"].as_array().expect("findings").iter().find(|it| it["name"] == "kernel tier");
    // Object stores need a feature.
    if let Some(tier) = tier {
        assert!(tier["state"] == "note" && tier["remedy"].is_string(), "{tier}");
        assert!(tier["detail"].as_str().expect("words").contains("https://...@host/kernels?..."), "{tier}");
    }

    // A stray file among the entries.
    let entry = cache.join("kernels/entries").join("7".repeat(64));
    fs::create_dir_all(&entry).expect("a folder");
    for path in [&cache, &cache.join("kernels"), &cache.join("kernels/entries")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("it can be changed");
    }
    fs::write(entry.join("kernel.so"), "no library").expect("it can be written");
    let (finding, health) = doctor();
    assert_eq!(finding["state"], "note", "{finding}");
    assert_eq!(finding["remedy"].as_str().map(|text| text.contains("cache verify --repair")), Some(true));
    assert!(finding["detail"].as_str().expect("words").contains("1 rejected: 7777"), "{finding}");
    assert_eq!((&health["entries"], health["refused"].as_array().map(Vec::len)), (&1.into(), Some(1)));
    assert!(health["free_bytes"].is_u64() && health["writable"] == true, "{health}");
    assert!(entry.join("kernel.so").exists(), "it is left as it was");
    assert_eq!((&health["verified"], &health["known_bad"]), (&true.into(), &0.into()));
    // Examining neither creates, closes nor removes anything, and counts only failures that last.
    let kernels = cache.join("kernels");
    let aside = kernels.join("entries/.refused-1-0-00ff");
    for folder in [&aside, &kernels.join("failures")] {
        fs::create_dir_all(folder).expect("a folder");
    }
    fs::set_permissions(&kernels, fs::Permissions::from_mode(0o755)).expect("it can be changed");
    for (digit, lasting) in [("1", true), ("2", false)] {
        let failure = serde_json::json!({
            "code": "compile_error", "fault": "toolchain", "message": "", "remedy": "",
            "first_error": null, "log": null, "lasting": lasting,
        });
        let record = serde_json::json!({ "failure": failure, "toolchain": "", "at": 1 });
        let file = kernels.join("failures").join(format!("{}.json", digit.repeat(64)));
        fs::write(file, record.to_string()).expect("it can be written");
    }
    let (finding, health) = doctor();
    assert!(finding["detail"].as_str().expect("words").contains("1 recorded build failures"), "{finding}");
    assert_eq!((&health["known_bad"], health["refused"].as_array().map(Vec::len)), (&1.into(), Some(1)));
    assert!(aside.exists() && !kernels.join("use").exists() && !kernels.join("tmp").exists());
    let mode = fs::metadata(&kernels).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);

    // A folder that others may write to is not used at all.
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).expect("it can be changed");
    let (finding, health) = doctor();
    assert_eq!((&finding["state"], &health), (&"note".into(), &Value::Null), "{finding}");
    assert!(
        finding["remedy"].is_string() && finding["detail"].as_str().expect("words").contains("not cached")
    );
}

#[test]
fn the_doctor_names_what_a_cache_folder_cannot_do() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), "").expect("it can be written");
    let below_a_file = folder.path().join("file/cache").display().to_string();
    let check = |report: &Value, state: &str, words: &str| {
        for name in ["cache", "kernel cache"] {
            let findings = report["findings"].as_array().expect("findings");
            let finding = findings.iter().find(|finding| finding["name"] == name).expect("it is there");
            assert_eq!(
                (&finding["state"], finding["remedy"].is_string()),
                (&state.into(), true),
                "{finding}"
            );
            assert!(finding["detail"].as_str().expect("words").contains(words), "{finding}");
        }
    };
    let output = fourfold(folder.path(), &[("FOURFOLD_CACHE_DIR", "/proc/fourfold")], &["doctor", "--json"]);
    check(&outcome(&output).1, "note", "cannot be created in `/proc`");
    let output = fourfold(folder.path(), &[("FOURFOLD_CACHE_DIR", &below_a_file)], &["doctor", "--json"]);
    check(&outcome(&output).1, "note", "ot a directory");
    // A mount of its own, if this user may create one; with kernels in it the result is the same.
    let mount = folder.path().join("mount");
    fs::create_dir(&mount).expect("a folder");
    for first in ["true", "mkdir -p -m 700 $0/kernels/entries"] {
        let mounted = format!("mount -t tmpfs -o noexec,mode=700 none $0 && {first}");
        let script = format!("{mounted} && FOURFOLD_CACHE_DIR=$0 $1 doctor --json");
        let program = Path::new(env!("CARGO_BIN_EXE_fourfold"));
        let output =
            Command::new("unshare").args(["-rm", "sh", "-c", &script]).args([&*mount, program]).output();
        match output {
            Ok(output) if !output.stdout.is_empty() => {
                check(&outcome(&output).1, "missing", "mounted noexec");
            }
            _ => eprintln!("no file system can be mounted here: noexec is not tried"),
        }
    }
    // Run as a user without write access there; root has it.
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("it can be changed");
    if fs::write(closed.join("probe"), "").is_err() {
        let name = closed.display().to_string();
        let output = fourfold(folder.path(), &[("FOURFOLD_CACHE_DIR", name.as_str())], &["doctor", "--json"]);
        assert!(outcome(&output).1.to_string().contains("this user cannot write to it"));
    }
}

#[test]
fn an_index_that_does_not_answer_is_offline_however_often_pip_retries() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("bin")).expect("a folder");
    let python = folder.path().join("bin/python3");
    // pip's message depends on its retries: without any, it does not mention the connection.
    let script = "#!/bin/sh\ncase \"$*\" in *'pip download'*) ;; *) exit 0;; esac\n\
        case \"${PIP_RETRIES-5}\" in 0) ;; *) echo 'WARNING: Retrying (Retry(total=0)) after connection broken by \
        NewConnectionError: [Errno 111] Connection refused: /simple/nvidia-cuda-nvcc/';; esac\n\
        echo 'ERROR: Could not find a version that satisfies the requirement nvidia-cuda-nvcc (from versions: none)'\n\
        echo 'ERROR: No matching distribution found for nvidia-cuda-nvcc'\nexit 1\n";
    fs::write(&python, script).expect("it can be written");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("it can be changed");
    for retries in ["", "0", "1", "none"] {
        let variables = [("PIP_RETRIES", retries), ("PIP_INDEX_URL", "http://127.0.0.1:9/simple")];
        let (code, report) =
            outcome(&fourfold(folder.path(), &variables, &["toolchain", "install", "--json"]));
        assert_eq!((code, &report["code"]), (Some(3), &"offline".into()), "{retries}: {report}");
    }
}

#[test]
fn a_host_is_examined_instead_of_the_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("bin")).expect("a folder");
    let examined = |arguments: &[&str]| {
        let output = fourfold(folder.path(), &[], &[&["doctor", "--json", "--host"], arguments].concat());
        let (code, report) = outcome(&output);
        (code, report["findings"][0]["state"].clone(), report["findings"][0]["detail"].clone())
    };
    let missing = "not installed; tested with 1.0.0";
    assert_eq!(examined(&["c"]), (Some(3), "missing".into(), missing.into()));
    for (version, state, detail) in
        [("1.0.0", "ok", "1.0.0, as tested"), ("1.4.0", "note", "1.4.0; tested with 1.0.0")]
    {
        let tool = folder.path().join("bin/pkg-config");
        fs::write(&tool, format!("#!/bin/sh\necho {version}\n")).expect("it can be written");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("it can be changed");
        assert_eq!(examined(&["c"]), (Some(0), state.into(), detail.into()));
    }
    let python = folder.path().join("bin/python3");
    let versions = r#"{"fourfold": "0.1.0", "numpy": "2.4.6", "torch": "2.11.0", "torchao": null}"#;
    fs::write(&python, format!("#!/bin/sh\necho '@ {versions}'\n")).expect("it can be written");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("it can be changed");
    let (code, report) = outcome(&fourfold(folder.path(), &[], &["doctor", "--json", "--host", "torch"]));
    let findings = report["findings"].as_array().expect("findings");
    let states: Vec<&str> = findings.iter().filter_map(|finding| finding["state"].as_str()).collect();
    assert_eq!((code, states), (Some(0), vec!["ok", "ok", "ok", "note"]), "{report}");
    let odd = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"py\xff");
    let odd = Command::new(env!("CARGO_BIN_EXE_fourfold"))
        .args(["doctor", "--json", "--host", "torch", "--python"])
        .arg(odd)
        .output()
        .expect("the program starts");
    let (code, report) = outcome(&odd);
    assert_eq!((code, report["python"].as_str()), (Some(3), Some("py\u{fffd}")), "{report}");
    let unknown = fourfold(folder.path(), &[], &["doctor", "--host", "fortran"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", errors(&unknown));
    assert!(
        errors(&unknown).contains("the hosts are c, torch, onnxruntime, tract, vllm"),
        "{}",
        errors(&unknown)
    );
    let both = fourfold(folder.path(), &[], &["doctor", "--host", "c", "--self-test"]);
    assert_eq!(both.status.code(), Some(2), "{}", errors(&both));
}
