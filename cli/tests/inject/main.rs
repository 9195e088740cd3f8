//! Failing system calls: each of the first calls of `fourfold` fails once. The answer is right, or an error with
//! a documented exit code; nothing lasts, and the next run succeeds.
//!
//! `inject.c` makes calls fail through ptrace, because `rustix` makes calls that no library can intercept. Tools
//! that `fourfold` starts are left alone. The second tier of tests tries a few calls;
//! `cargo test --features slow --test inject -- --ignored` tries the first 400.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

#[path = "../command/machine.rs"]
mod machine;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use machine::Machine;
use serde_json::Value;

/// The error numbers of failing calls, in turn.
const ERRNOS: [(&str, i32); 7] = [
    ("EIO", 5),
    ("ENOSPC", 28),
    ("EDQUOT", 122),
    ("ESTALE", 116),
    ("EMFILE", 24),
    ("ENOMEM", 12),
    ("EAGAIN", 11),
];

/// The number of failing calls in the long tests.
const CALLS: usize = 400;
/// The number of failing calls in each short test.
const FEW: usize = 20;
/// A run that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(300);

/// A kernel, and a product of f32 as bf16, which stays on the fallback.
const PROGRAM: &str = "fir 1
; sample: exact seed=5 M=37
func @one(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sfb: tensor<[72, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 72], f32>
  %square = mma %d, %d : tensor<[M, M], bf16>
  return %d, %square
}
";

/// A kernel that the real compiler builds in seconds.
const MANIFEST: &str = r#"
schema = 1
[[sweep]]
generator = "block_quantize"
targets = ["sm_90a"]
list = [{ threads = 128, values = 8, rows = 1 }]
[problems]
list = [{ problem = "128x1x7168" }]
"#;

/// The command under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A replay that builds its kernel.
    Build,
    /// A replay whose kernel is in the cache.
    Hit,
    /// A sweep that builds its kernel with the real compiler.
    #[cfg_attr(not(feature = "tune"), allow(dead_code, reason = "there are no sweeps"))]
    Real,
}

/// A machine, the program that makes calls fail, and the command.
struct Setting {
    machine: Machine,
    arguments: Vec<String>,
    work: Work,
}

/// The outcome of a run in which a call failed.
struct Outcome {
    /// The call that failed, unless the run had fewer calls.
    failed: Option<String>,
    calls: usize,
    ending: String,
    stdout: String,
    stderr: String,
}

impl Setting {
    fn new(work: Work) -> Setting {
        let machine = Machine::with_program(PROGRAM, "");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inject/inject.c");
        let built = Command::new("cc").arg("-O1").arg("-o").arg(machine.path("inject")).arg(source).status();
        assert!(built.expect("there is a C compiler").success());
        machine.write("one.toml", MANIFEST);
        let (program, manifest) = (machine.name("program.fir"), machine.name("one.toml"));
        let mut arguments: Vec<String> = match work {
            Work::Build | Work::Hit => vec!["replay".into(), program],
            Work::Real => vec!["sweep".into(), "--manifest".into(), manifest, "--compile-only".into()],
        };
        let (nvcc, cutlass) = match work {
            Work::Build | Work::Hit => (machine.name("nvcc"), machine.name("cutlass")),
            Work::Real => real_toolchain(),
        };
        arguments.extend(["--json".into(), "--nvcc".into(), nvcc, "--cutlass".into(), cutlass]);
        let setting = Setting { machine, arguments, work };
        if work == Work::Hit {
            let output = setting.undisturbed(&setting.machine.path("warm"), &[]);
            assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        }
        setting
    }

    /// The folder for the cache and temporary files of this run.
    fn folder(&self, number: usize) -> PathBuf {
        let folder = self.machine.path(&format!("run{number}"));
        fs::create_dir_all(folder.join("tmp")).expect("a folder");
        if self.work == Work::Hit {
            let copied = Command::new("cp")
                .arg("-a")
                .arg(self.machine.path("warm/cache"))
                .arg(folder.join("cache"))
                .status();
            assert!(copied.expect("it can be copied").success());
        }
        folder
    }

    fn environment(&self, command: &mut Command, folder: &Path) {
        if self.work == Work::Real {
            command.arg("--out").arg(folder.join("records.jsonl"));
        }
        command.env("FOURFOLD_DEVICE", "0").env("LD_LIBRARY_PATH", self.machine.path(""));
        command.env("FOURFOLD_CACHE_DIR", folder.join("cache")).env("TMPDIR", folder.join("tmp"));
        command.env_remove("FOURFOLD_CACHE_TIERS").env("RUST_BACKTRACE", "0");
    }

    fn undisturbed(&self, folder: &Path, more: &[&str]) -> std::process::Output {
        fs::create_dir_all(folder.join("tmp")).expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
        command.args(&self.arguments).args(more);
        self.environment(&mut command, folder);
        command.output().expect("the program starts")
    }

    /// Runs the command with this call failing; with 0, none fails.
    fn disturbed(&self, folder: &Path, call: usize, errno: i32) -> Outcome {
        let report = folder.join("report");
        let mut command = Command::new(self.machine.path("inject"));
        command.arg(call.to_string()).arg(errno.to_string()).arg(&report);
        command.arg(env!("CARGO_BIN_EXE_fourfold")).args(&self.arguments);
        self.environment(&mut command, folder);
        let file = |name: &str| fs::File::create(folder.join(name)).expect("a file");
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let ended = wait(command.spawn().expect("it starts"));
        let read =
            |name: &str| String::from_utf8_lossy(&fs::read(folder.join(name)).expect("it is there")).into();
        let report: String = read("report");
        let line = |word: &str| report.lines().find_map(|line| line.strip_prefix(word)).map(str::to_owned);
        let ending = if !ended {
            "hangs".to_owned()
        } else {
            report.lines().last().unwrap_or("the program that has calls fail failed").to_owned()
        };
        Outcome {
            failed: line("failed "),
            calls: line("calls ").and_then(|calls| calls.parse().ok()).unwrap_or(0),
            ending,
            stdout: read("stdout"),
            stderr: read("stderr"),
        }
    }
}

/// The compiler and CUTLASS of the installed toolchain.
fn real_toolchain() -> (String, String) {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_fourfold")).args(arguments).output();
        let output = output.expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("an object")
    };
    run(&["toolchain", "install", "--json"]);
    let found = run(&["toolchain", "which", "--json"]);
    let path = |what: &str| found[what]["path"].as_str().expect("a path").to_owned();
    (path("nvcc"), path("cutlass"))
}

/// Returns true if a process ended in time. Killing it also kills the process it traces.
fn wait(mut child: Child) -> bool {
    let started = Instant::now();
    loop {
        if child.try_wait().expect("it can be waited for").is_some() {
            return true;
        }
        if started.elapsed() > LONGEST {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the defects of a run in which a call failed, and of the run after it.
fn check(setting: &Setting, folder: &Path, outcome: &Outcome) -> Result<(), String> {
    let report: Option<Value> = serde_json::from_str(&outcome.stdout).ok();
    let ok = report.as_ref().map(|report| report["ok"] == true);
    match outcome.ending.as_str() {
        "exit 0" if ok == Some(true) && is_right(setting.work, report.as_ref()) => {}
        "exit 2" | "exit 3" if ok != Some(true) && outcome.stderr.contains("error") => {}
        // A report that could not be written whole is no evidence.
        "exit 3" if outcome.stderr.contains("cannot write the report") => {}
        _ => return Err(format!("it ends with {}", outcome.ending)),
    }
    let lasting = lasting(folder);
    if !lasting.is_empty() {
        return Err(format!("it is remembered: {lasting:?}"));
    }
    let strictly: &[&str] = if setting.work == Work::Real { &[] } else { &["--require-kernels"] };
    let next = setting.undisturbed(folder, strictly);
    let said = String::from_utf8_lossy(&next.stderr);
    let report: Option<Value> = serde_json::from_slice(&next.stdout).ok();
    if next.status.code() != Some(0) || !is_right(setting.work, report.as_ref()) {
        return Err(format!("the next run ends with {}: {said}", next.status));
    }
    if said.contains("refused") {
        return Err(format!("the next run refuses what it finds: {said}"));
    }
    if setting.work == Work::Hit && !said.contains("from the cache") {
        return Err("the kernel was lost from the cache".to_owned());
    }
    let left = left_over(folder);
    if left.is_empty() { Ok(()) } else { Err(format!("{left:?} is left")) }
}

/// Returns true if a report is a success: every output is right, or the kernel was built.
fn is_right(work: Work, report: Option<&Value>) -> bool {
    if work == Work::Real {
        return report.is_some_and(|report| report["kernels"] == serde_json::json!({ "built": 1 }));
    }
    let outputs = report.and_then(|report| report["outputs"].as_array());
    outputs.is_some_and(|outputs| outputs.len() == 2 && outputs.iter().all(|output| output["ok"] == true))
}

fn names(folder: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}

/// The failures that are remembered.
fn lasting(folder: &Path) -> Vec<String> {
    let is_lasting = |name: &String| {
        let text = fs::read_to_string(name).unwrap_or_default();
        let record: Option<Value> = serde_json::from_str(&text).ok();
        record.is_some_and(|record| record["failure"]["lasting"] == true)
    };
    names(folder.join("cache/kernels/failures")).into_iter().filter(is_lasting).collect()
}

/// Returns the files left behind in the folders of the cache and of temporary files.
fn left_over(folder: &Path) -> Vec<String> {
    let kernels = folder.join("cache/kernels");
    let mut left = names(folder.join("tmp"));
    left.extend(names(kernels.join("tmp")));
    left.extend(names(kernels.join("locks")).into_iter().filter(|name| !name.contains("/slot-")));
    let entries = names(kernels.join("entries"));
    if entries.len() != 1 {
        left.extend(entries);
    }
    left
}

/// Makes each of these calls fail, two runs at a time.
fn inject(setting: &Setting, calls: &[usize]) {
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let started = Instant::now();
    let work = || {
        while let Some(&call) = calls.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (errno, number) = ERRNOS[call % ERRNOS.len()];
            let folder = setting.folder(call);
            let outcome = setting.disturbed(&folder, call, number);
            if let Err(fault) = check(setting, &folder, &outcome) {
                let what = outcome.failed.as_deref().unwrap_or("no call");
                let said: String = outcome.stderr.chars().take(1000).collect();
                let fault = format!("call {call} ({what}) answers {errno}: {fault}\n{said}");
                println!("{fault}");
                faults.lock().expect("no panic").push(fault);
            }
            fs::remove_dir_all(&folder).expect("it can be removed");
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    println!("{} calls in {:?}", calls.len(), started.elapsed());
    let faults = faults.into_inner().expect("no panic");
    assert!(faults.is_empty(), "{} of {} calls:\n{}", faults.len(), calls.len(), faults.join("\n"));
}

/// Returns the number of calls of a run in which none fails.
fn all_calls(setting: &Setting) -> usize {
    let folder = setting.folder(0);
    let outcome = setting.disturbed(&folder, 0, 0);
    check(setting, &folder, &outcome).expect("nothing failed");
    println!("{} calls", outcome.calls);
    outcome.calls
}

/// Returns this many calls, spread over a run.
fn spread(setting: &Setting, count: usize) -> Vec<usize> {
    let all = all_calls(setting);
    (0..count).map(|at| 1 + at * all / count).collect()
}

#[test]
fn a_few_calls_that_fail_while_a_kernel_is_built() {
    let setting = Setting::new(Work::Build);
    inject(&setting, &spread(&setting, FEW));
}

#[test]
fn a_few_calls_that_fail_while_a_kernel_is_in_the_cache() {
    let setting = Setting::new(Work::Hit);
    inject(&setting, &spread(&setting, FEW));
}

#[test]
#[ignore = "takes minutes"]
fn each_of_the_first_calls_fails_while_a_kernel_is_built() {
    inject(&Setting::new(Work::Build), &(1..=CALLS).collect::<Vec<_>>());
}

#[test]
#[ignore = "takes minutes"]
fn each_of_the_first_calls_fails_while_a_kernel_is_in_the_cache() {
    inject(&Setting::new(Work::Hit), &(1..=CALLS).collect::<Vec<_>>());
}

#[test]
#[cfg(feature = "tune")]
#[ignore = "starts the real compiler forty times"]
fn a_few_calls_that_fail_around_the_real_compiler() {
    let setting = Setting::new(Work::Real);
    inject(&setting, &spread(&setting, FEW));
}
