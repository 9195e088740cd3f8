//! `fourfold cache`, as people and scripts use it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use fourfold_executor::cache::{Cache, CacheKey, KeyParts};
use fourfold_executor::kernel::ABI_VERSION;
use fourfold_executor::{BuildInput, BuildOptions, BuildTools, CacheOptions, ToolEnvironment, build};
use serde_json::Value;

struct Bench {
    folder: tempfile::TempDir,
    cache: Cache,
}

impl Bench {
    /// A cache with three kernels from the stand-in compiler.
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&CacheOptions::new(folder.path())).unwrap();
        for number in 0..3 {
            insert(&cache, number);
        }
        Bench { folder, cache }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
        command.arg("cache").args(arguments).env("FOURFOLD_CACHE_DIR", self.folder.path());
        command.env_remove("FOURFOLD_CACHE_SIZE").env_remove("FOURFOLD_CACHE_TIERS").output().unwrap()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str], code: i32) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    #[track_caller]
    fn text(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }
}

fn key(number: u32) -> CacheKey {
    CacheKey::new(&KeyParts {
        source: "source",
        prelude: None,
        kernel: "kernel",
        target: "sm_100a",
        architecture: "100a",
        opcode: "UTCOMMA",
        stages: None,
        flags: &[],
        nvcc: "13.0.88",
        cutlass: "4.2.0",
        host: "x86_64-linux",
        host_compiler: "",
        abi: number,
    })
}

fn insert(cache: &Cache, number: u32) {
    let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/stand_ins");
    let kernel = format!("kernel_{number}");
    let metadata = format!(
        r#"{{"abi":{ABI_VERSION},"target":"sm_100a","kernel":"{kernel}","tile":[128,128,256],"cluster":[1,1,1],"shared_memory":1,"threads":256,"extents":[],"operands":[],"scalars":[],"outputs":[],"emulated":false}}"#
    );
    let body = fs::read_to_string(stand_ins.join("kernel.c")).unwrap();
    let input = BuildInput {
        text: &format!("// behave: compile\n// sass: UTCOMMA x\n#define METADATA {metadata:?}\n{body}"),
        kernel: &kernel,
        prelude: None,
        target: "sm_100a",
        architecture: "100a",
        opcode: "UTCOMMA",
        stages: None,
        translation: None,
    };
    let cuobjdump = stand_ins.join("cuobjdump.sh");
    let tools = BuildTools {
        nvcc: &stand_ins.join("nvcc.sh"),
        include: vec![],
        libraries: vec![],
        cuobjdump: Some(&cuobjdump),
        environment: ToolEnvironment::default(),
    };
    drop(cache.insert(&key(number), &build(&input, &tools, &BuildOptions::default()).unwrap()).unwrap());
}

#[test]
fn the_cache_is_listed_verified_repaired_and_pruned() {
    let bench = Bench::new();
    let held = bench.cache.get(&key(1)).artifact.unwrap();
    let listed = bench.json(&["list"], 0);
    let entries = listed["entries"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry["kernel"].as_str().unwrap()).collect();
    assert_eq!(names, ["kernel_1", "kernel_2", "kernel_0"]);
    assert_eq!(entries[0]["key"], key(1).to_string());
    assert_eq!([&entries[0]["in_use"], &entries[1]["in_use"]], [&Value::Bool(true), &Value::Bool(false)]);
    let text = bench.text(&["list"], 0);
    assert!(
        text.contains("3 kernels, ") && text.contains("KiB") && text.contains("sm_100a  kernel_1  in use"),
        "{text}"
    );

    assert_eq!(bench.json(&["verify"], 0)["verified"], 3);
    let library = bench.cache.folder().join("entries").join(key(2).to_string()).join("kernel.so");
    fs::set_permissions(&library, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&library, "x").unwrap();
    let verified = bench.json(&["verify"], 1);
    assert_eq!((&verified["ok"], &verified["verified"]), (&Value::Bool(false), &Value::from(2)));
    assert_eq!(verified["refused"][0]["refusal"]["reason"]["code"], "size");
    let text = bench.text(&["verify", "--repair"], 1);
    assert!(text.contains("kernel.so has 1 bytes") && text.contains("it was removed"), "{text}");
    assert_eq!(bench.json(&["verify"], 0)["verified"], 2);

    let pruned = bench.json(&["prune", "--all"], 0);
    assert_eq!(pruned["removed"][0]["kernel"], "kernel_0");
    assert_eq!(pruned["in_use"][0]["kernel"], "kernel_1");
    assert!(
        bench
            .text(&["prune", "--older-than", "0"], 0)
            .contains("kernel_1  in use stays because it is in use")
    );
    drop(held);
    let text = bench.text(&["prune", "--to", "1K"], 0);
    assert!(text.contains("removed 1 kernel, ") && text.contains("0 B are left"), "{text}");
    assert_eq!(bench.json(&["list"], 0)["entries"].as_array().unwrap().len(), 0);
}

#[test]
fn kernels_are_pushed_to_a_folder_by_key_or_all() {
    let bench = Bench::new();
    let shared = tempfile::tempdir().unwrap();
    let to = shared.path().to_str().unwrap();
    let digits = key(1).to_string()[..16].to_owned();
    let pushed = bench.json(&["push", "--to", to, &digits], 0);
    assert_eq!(
        (&pushed["entries"][0]["done"], &pushed["entries"][0]["key"]),
        (&Value::from("written"), &Value::from(key(1).to_string()))
    );
    let text = bench.text(&["push", "--to", to, "--all"], 0);
    assert!(text.contains("already present") && text.contains("2 of 3 written to"), "{text}");
    assert_eq!(fs::read_dir(to).unwrap().count(), 3);
}

#[test]
fn every_kernel_is_pushed_where_none_is_named() {
    let bench = Bench::new();
    let shared = tempfile::tempdir().unwrap();
    let text = bench.text(&["push", "--to", shared.path().to_str().unwrap()], 0);
    assert!(text.contains("3 of 3 written to"), "{text}");
    assert_eq!(fs::read_dir(shared.path()).unwrap().count(), 3);
}

#[test]
fn a_kernel_that_is_refused_is_exit_1_and_one_that_cannot_be_written_exit_3() {
    let bench = Bench::new();
    // No user can create a folder there.
    let pushed = bench.json(&["push", "--to", "/proc"], 3);
    assert_eq!(pushed["ok"], false);
    let said = |entry: &Value| entry["error"].as_str().is_some_and(|error| !error.is_empty());
    assert!(pushed["entries"].as_array().unwrap().iter().all(said), "{pushed}");
    let library = bench.cache.folder().join("entries").join(key(2).to_string()).join("kernel.so");
    fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&library, "damaged").unwrap();
    let shared = tempfile::tempdir().unwrap();
    let digits = key(2).to_string();
    let pushed = bench.json(&["push", "--to", shared.path().to_str().unwrap(), &digits], 1);
    assert!(pushed["entries"][0]["error"].as_str().unwrap().contains("the entry is rejected"), "{pushed}");
}

#[test]
fn what_to_do_is_said_of_what_is_wrong() {
    let bench = Bench::new();
    assert_eq!(bench.json(&["prune", "--all"], 0)["ok"], true);
    // The place is checked even if there is nothing to push.
    let missing = bench.folder.path().join("missing").display().to_string();
    for (to, words) in [(missing.as_str(), "the folder does not exist"), ("", "its name is empty")] {
        let error = bench.json(&["push", "--to", to, "--all"], 2);
        assert!(error["error"].as_str().unwrap().contains(words), "{error}");
        let remedy = error["remedy"].as_str().unwrap();
        assert!(
            remedy.contains("an existing folder") && !remedy.contains("FOURFOLD_CACHE_TIERS"),
            "{remedy}"
        );
    }
    let with = |remove: &[&str], name: &str, value: &str, code: i32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
        command.args(["cache", "list"]).env(name, value);
        for name in remove {
            command.env_remove(name);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    };
    let said = with(&[], "FOURFOLD_CACHE_SIZE", "banana", 2);
    assert!(said.contains("invalid value of FOURFOLD_CACHE_SIZE: `banana` is not a size"), "{said}");
    let said = with(&["HOME", "XDG_CACHE_HOME", "FOURFOLD_CACHE_SIZE"], "FOURFOLD_CACHE_DIR", "", 3);
    assert!(
        said.contains("cannot locate the kernel cache") && said.contains("set FOURFOLD_CACHE_DIR"),
        "{said}"
    );
}

#[test]
fn wrong_arguments_say_what_is_wrong_and_a_refused_folder_what_to_do() {
    let bench = Bench::new();
    for (arguments, words) in [
        (&["prune"][..], "--to"),
        (&["prune", "--to", "much"], "not a size"),
        (&["prune", "--all", "--to", "1G"], "cannot be used with"),
        (&["push", "--to", "/tmp", "--all", "0123"], "cannot be used with"),
        (&["push", "--to", "/tmp", "0123"], "starts with `0123`"),
    ] {
        let text = bench.text(arguments, 2);
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
    if cfg!(not(feature = "object-store")) {
        assert!(bench.text(&["push", "--to", "s3://bucket", "--all"], 2).contains("`object-store`"));
    }
    let kernels = bench.cache.folder();
    fs::rename(kernels, kernels.with_file_name("moved")).unwrap();
    std::os::unix::fs::symlink("moved", kernels).unwrap();
    let error = bench.json(&["list"], 3);
    assert_eq!(error["code"], "cache_folder_refused");
    assert!(error["error"].as_str().unwrap().contains("symbolic link"));
    assert!(error["remedy"].as_str().unwrap().contains("FOURFOLD_CACHE_DIR"));
    for command in ["list", "verify", "prune", "push"] {
        assert!(bench.text(&[command, "--help"], 0).contains("Example"), "{command}");
    }
}
