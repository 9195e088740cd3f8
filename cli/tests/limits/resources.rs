//! Exhausted threads, processes, open files and memory. Every command ends with the right values, or with exit
//! code 3 and an object with the reason. Nothing panics, aborts or hangs.
//!
//! Limits on processes do not apply to root, so a test that runs as root starts the program as `nobody`.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::machine::Machine;
use fourfold::ir::memory;
use serde_json::Value;

/// A user without processes.
const NOBODY: u32 = 65534;

/// Longer than any of these commands takes on a busy machine.
const HANGS: Duration = Duration::from_secs(120);

/// A kernel, followed by ops that the fallback computes in parallel.
const PROGRAM: &str = "fir 1
; sample: exact seed=5 M=37
func @two(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[64, 96], f4E2M1FN>, param %sfb: tensor<[64, 6], f8E4M3FN, blocked>, %g: tensor<[], f32>,
    param %w: tensor<[72, 64], bf16>, %x: tensor<[M, 64], bf16>
) {
  %h = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 64], f32>
  %q, %sq = block_quantize %h, %g {block = 16} : tensor<[M, 64], f4E2M1FN>, tensor<[M, 4], f8E4M3FN, blocked>
  %plain = mma %x, %w : tensor<[M, 72], f32>
  %soft = softmax %plain {axis = 0} : tensor<[M, 72], f32>
  %t = transpose %soft {permutation = [1, 0]} : tensor<[72, M], f32>
  return %h, %q, %sq, %t
}
";

/// A machine whose folders belong to the user that runs the commands.
struct Bounded {
    machine: Machine,
    program: PathBuf,
    is_root: bool,
}

/// The outcome of a command under a limit.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Bounded {
    fn new() -> Bounded {
        let machine = Machine::with_program(PROGRAM, "");
        let program = machine.path("fourfold");
        fs::copy(env!("CARGO_BIN_EXE_fourfold"), &program).expect("a copy that anybody can start");
        let open =
            |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        open(&program);
        open(&machine.path("."));
        let is_root =
            fs::metadata("/proc/self").map(|it| std::os::unix::fs::MetadataExt::uid(&it)).expect("proc") == 0;
        for name in ["cache", "temp"] {
            fs::create_dir(machine.path(name)).expect("a folder");
            if is_root {
                chown(machine.path(name), Some(NOBODY), Some(NOBODY)).expect("root may");
            }
        }
        Bounded { machine, program, is_root }
    }

    /// Runs the program under `ulimit FLAG VALUE`, as a user to whom the limit applies.
    #[track_caller]
    fn run(&self, (flag, value): (&str, u64), arguments: &[&str]) -> Ended {
        let [stdout, stderr] = ["stdout", "stderr"].map(|name| self.machine.path(name));
        let file = |path: &Path| Stdio::from(File::create(path).expect("a file"));
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit \"$0\" \"$1\" && shift && exec \"$@\"", flag, &value.to_string()]);
        command.arg(&self.program).args(arguments);
        command.env("FOURFOLD_DEVICE", "none").env("HOME", "/nonexistent").env_remove("RUST_BACKTRACE");
        command
            .env("FOURFOLD_CACHE_DIR", self.machine.path("cache"))
            .env("TMPDIR", self.machine.path("temp"));
        command.stdin(Stdio::null()).stdout(file(&stdout)).stderr(file(&stderr));
        if self.is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.spawn().expect("bash starts");
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("it is ours") {
                break status;
            }
            if started.elapsed() > HANGS {
                child.kill().expect("it is ours");
                panic!("ulimit {flag} {value}: {arguments:?} hangs");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).expect("a file")).into_owned();
        Ended { status, stdout: text(&stdout), stderr: text(&stderr) }
    }

    /// Runs a command with `--json` and checks its exit.
    #[track_caller]
    fn check(&self, limit: (&str, u64), arguments: &[&str]) -> (i32, Value) {
        let ended = self.run(limit, &[arguments, &["--json"]].concat());
        let what =
            || format!("ulimit {} {}: {arguments:?}: {}\n{}", limit.0, limit.1, ended.status, ended.stderr);
        let code =
            ended.status.code().unwrap_or_else(|| panic!("signal {:?}: {}", ended.status.signal(), what()));
        assert!([0, 3].contains(&code), "{}", what());
        assert!(!ended.stderr.contains("panicked"), "{}", what());
        let report: Value = serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: `{}`; {}", ended.stdout, what()));
        assert!(report.is_object(), "{}", what());
        if code == 3 {
            assert_ne!(report["ok"], true, "{report}; {}", what());
        }
        (code, report)
    }

    /// Runs every command that a user waits for and returns the number of successes.
    #[track_caller]
    fn check_all(&self, limit: (&str, u64)) -> usize {
        let program = self.machine.name("program.fir");
        let tools = ["--nvcc", &self.machine.name("nvcc"), "--cutlass", &self.machine.name("cutlass")];
        let with_tools = |arguments: &[&str]| -> Vec<String> {
            arguments.iter().chain(&tools).map(|argument| (*argument).to_owned()).collect()
        };
        let commands = [
            vec!["explain".to_owned(), program.clone()],
            vec!["replay".to_owned(), program.clone()],
            with_tools(&["replay", &program, "--build"]),
            with_tools(&["verify", &program]),
            with_tools(&["compile", &program, "--target", "sm_100a"]),
            with_tools(&["doctor"]),
        ];
        let mut ended_well = 0;
        for command in &commands {
            let (code, report) = self.check(limit, &command.iter().map(String::as_str).collect::<Vec<_>>());
            ended_well += usize::from(code == 0);
            if command[0] == "replay" && code == 0 {
                let outputs = report["outputs"].as_array().expect("a list");
                assert_eq!(outputs.len(), 4, "{report}");
                assert!(outputs.iter().all(|output| output["ok"] == true), "{report}");
            }
            if code == 3 && ["explain", "replay"].contains(&command[0].as_str()) {
                let fault = report["fault"].as_str().expect("a fault");
                assert!(["resource_limit", "environment"].contains(&fault), "{report}");
            }
        }
        ended_well
    }

    /// Returns the smallest limit, in steps, under which the program loads and prints its version.
    fn least(&self, flag: &str, candidates: impl Iterator<Item = u64>) -> u64 {
        let mut candidates = candidates;
        let loads = |limit: &u64| self.run((flag, *limit), &["--version"]).status.success();
        candidates.find(loads).expect("under some limit the program starts")
    }
}

#[test]
fn without_threads_and_processes_the_caller_does_everything() {
    let bounded = Bounded::new();
    // The user may already have tasks, unless it is `nobody`, so the limit may strike anywhere.
    for tasks in [1, 2, 3, 4, 5, 6, 8, 12, 20] {
        let ended_well = bounded.check_all(("-u", tasks));
        assert!(ended_well >= 2, "explain and replay need no second thread");
    }
    // Without any thread, the outputs are still computed and right.
    let (code, report) = bounded.check(("-u", 1), &["replay", &bounded.machine.name("program.fir")]);
    assert_eq!((code, &report["ok"]), (0, &Value::Bool(true)), "{report}");
    let (_, compiled) = bounded.check(
        ("-u", 1),
        &[
            "compile",
            &bounded.machine.name("program.fir"),
            "--nvcc",
            &bounded.machine.name("nvcc"),
            "--cutlass",
            &bounded.machine.name("cutlass"),
        ],
    );
    let error = &compiled["kernels"][0]["error"];
    assert!(error.is_null() || error["fault"] != "bug", "{compiled}");
    assert!(bounded.check_all(("-u", 4096)) >= 5, "the doctor may miss something that this machine lacks");
}

#[test]
fn without_open_files_commands_say_so() {
    let bounded = Bounded::new();
    let least = bounded.least("-n", 3..20);
    for more in 0..12 {
        bounded.check_all(("-n", least + more));
    }
    assert!(bounded.check_all(("-n", 256)) >= 4);
}

#[test]
fn a_shortage_is_no_fault_of_the_toolchain_that_was_named() {
    let bounded = Bounded::new();
    let tools = ["--nvcc", &bounded.machine.name("nvcc"), "--cutlass", &bounded.machine.name("cutlass")];
    let arguments = [&["toolchain", "which"], &tools[..]].concat();
    for limit in [("-u", 1), ("-n", 5)] {
        let (code, report) = bounded.check(limit, &arguments);
        assert_eq!((code, &report["code"]), (3, &"out_of_processes".into()), "{report}");
    }
    assert_eq!(bounded.check(("-u", 4096), &arguments).0, 0);
}

#[test]
fn files_beyond_the_limit_on_their_size_are_failures_of_writing() {
    let bounded = Bounded::new();
    let program = bounded.machine.name("program.fir");
    let tools = ["--nvcc", &bounded.machine.name("nvcc"), "--cutlass", &bounded.machine.name("cutlass")];
    let bundle = bounded.machine.name("temp/bundle");
    let compile = [&["compile", &program, "--target", "sm_100a"], &tools[..]].concat();
    // The report fits, and the data do not.
    for kib in [16, 20, 24] {
        let replay = ["replay", &program, "--symbol", "M=6000", "--bundle", &bundle];
        let (code, report) = bounded.check(("-f", kib), &replay);
        assert!(code == 3 && report["bundle_error"].is_string(), "{report}");
        bounded.check(("-f", kib), &compile);
    }
}

#[test]
fn without_memory_commands_say_so() {
    const MIB: u64 = 1 << 10;
    let bounded = Bounded::new();
    let least = bounded.least("-v", (1..200).map(|it| it * 4 * MIB));
    let mut first_right = None;
    for more in [0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512] {
        let limit = ("-v", least + more * MIB);
        let (code, _) = bounded.check(limit, &["replay", &bounded.machine.name("program.fir")]);
        first_right = first_right.or((code == 0).then_some(more));
        bounded.check_all(limit);
    }
    assert!(first_right.is_some_and(|more| more <= 192), "this program is small: {first_right:?}");
}

/// Extents of symbols come from the user and decide the sizes of tensors.
#[test]
fn tensors_beyond_memory_are_a_resource_limit() {
    let bounded = Bounded::new();
    let program = bounded.machine.name("program.fir");
    for extent in ["1000000000", "100000000000", "18446744073709551615"] {
        let symbol = format!("M={extent}");
        let (code, report) = bounded.check(("-v", 4 << 20), &["replay", &program, "--symbol", &symbol]);
        assert_eq!((code, &report["fault"]), (3, &"resource_limit".into()), "{report}");
    }
    // The size fits in memory without the limit, so allocations fail one after the other.
    for mib in [100, 150, 200, 300, 400, 600] {
        let limit = ("-v", mib << 10);
        let (code, report) = bounded.check(limit, &["replay", &program, "--symbol", "M=60000"]);
        if code == 3 {
            assert_eq!(report["fault"], "resource_limit", "{report}");
        }
    }
}

#[test]
fn a_host_gets_an_error_of_the_library_and_no_abort() {
    assert!(memory::check_memory(1 << 60).is_err());
}
