//! Compilers that fail, for real: `replay --build` still gives the right outputs, says why no kernel was built in the
//! compiler's own words, and leaves nothing behind.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A program with one kernel, the folder for temporary files of a run, and what stands in for the toolchain.
struct Setting {
    folder: tempfile::TempDir,
}

impl Setting {
    fn new() -> Setting {
        let setting = Setting { folder: tempfile::tempdir().expect("a folder") };
        for name in
            ["bin", "temp", "cutlass/include/cutlass", "cutlass/include/cute", "cutlass/tools/util/include"]
        {
            std::fs::create_dir_all(setting.path(name)).expect("a folder");
        }
        // Enough to be recognized as CUTLASS, and nothing that could be compiled.
        let version = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n";
        std::fs::write(setting.path("cutlass/include/cutlass/version.h"), version).expect("a file");
        std::fs::write(setting.path("cutlass/include/cutlass/cutlass.h"), "#include <no_such_header.h>\n")
            .expect("a file");
        std::fs::write(setting.path("cutlass/include/cute/tensor.hpp"), "").expect("a file");
        setting.script("bin/cuobjdump", "echo 'no opcodes here'");
        setting
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.path(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a script");
    }

    /// A compiler that says its version and otherwise does this.
    fn compiler(&self, body: &str) -> PathBuf {
        let version = "echo 'Cuda compilation tools, release 13.0, V13.0.88'";
        self.script("bin/nvcc", &format!("case \"$1\" in --version) {version}; exit 0;; esac\n{body}"));
        self.path("bin/nvcc")
    }

    fn replay(&self, nvcc: &Path, cutlass: &Path, more: &[&str]) -> Output {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gemm/epilogue_full.fir");
        let mut command = fourfold();
        command.args(["replay", "--build", "--json"]).arg(program);
        command.arg("--nvcc").arg(nvcc).arg("--cutlass").arg(cutlass).args(more);
        command.env("TMPDIR", self.path("temp")).output().expect("the program starts")
    }

    /// Right outputs, a reason with these words, and nothing left in the folder for temporary files.
    fn check(&self, output: &Output, code: &str, words: &[&str]) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert_eq!(report["ok"], true);
        assert!(!report["outputs"].as_array().expect("outputs").is_empty());
        let segments = report["segments"].as_array().expect("segments");
        let kernel = segments.iter().find(|segment| segment["kind"] == "kernel").expect("a kernel segment");
        let message = kernel["message"].as_str().expect("a message");
        assert_eq!(kernel["reason"], code, "{message}");
        assert_eq!(kernel["ran"], "fallback");
        for word in words {
            assert!(message.contains(word), "`{word}` in: {message}");
        }
        let left: Vec<_> = std::fs::read_dir(self.path("temp")).expect("the folder").collect();
        assert!(left.is_empty(), "{left:?} was left behind");
    }
}

fn fourfold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
    command.env("FOURFOLD_DEVICE", "none");
    command
}

/// The real compiler, installed where the tests of kernels need it too.
fn real_compiler() -> PathBuf {
    let output = fourfold().args(["toolchain", "install", "--json"]).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = fourfold().args(["toolchain", "which", "--json"]).output().expect("the program starts");
    let toolchain: Value = serde_json::from_slice(&output.stdout).expect("an object");
    PathBuf::from(toolchain["nvcc"]["path"].as_str().expect("a path"))
}

#[test]
fn a_missing_header_is_named_by_the_real_compiler() {
    let setting = Setting::new();
    let output = setting.replay(&real_compiler(), &setting.path("cutlass"), &[]);
    setting.check(&output, "compile_error", &["no_such_header.h", "fault: toolchain"]);
}

#[test]
fn a_wrong_flag_is_named_by_the_real_compiler() {
    let setting = Setting::new();
    let compiler = setting.compiler(&format!("exec {} --no-such-flag \"$@\"", real_compiler().display()));
    let output = setting.replay(&compiler, &setting.path("cutlass"), &[]);
    setting.check(&output, "compile_error", &["no-such-flag"]);
}

#[test]
fn a_compiler_that_hangs_is_stopped_with_its_children() {
    let setting = Setting::new();
    let compiler = setting.compiler("sleep 4242 & sleep 4242");
    let output = setting.replay(&compiler, &setting.path("cutlass"), &["--time-limit", "1"]);
    setting.check(&output, "compile_timeout", &["1 s"]);
    let running = Command::new("pgrep").args(["-f", "sleep 4242"]).output();
    if let Ok(running) = running {
        assert!(running.stdout.is_empty(), "a child is left: {}", String::from_utf8_lossy(&running.stdout));
    }
}

#[test]
fn a_compiler_that_crashes_is_told_from_one_that_refuses() {
    let setting = Setting::new();
    let compiler = setting.compiler("echo 'internal trouble'; kill -SEGV $$");
    setting.check(
        &setting.replay(&compiler, &setting.path("cutlass"), &[]),
        "compiler_crashed",
        &["signal 11"],
    );
}

#[test]
fn a_flood_of_output_is_bounded_and_its_first_error_found() {
    let setting = Setting::new();
    let compiler = setting.compiler(
        "echo 'kernel.cu(7): error: identifier \"quux\" is undefined'; yes noise | head -c 100000000; exit 2",
    );
    setting.check(&setting.replay(&compiler, &setting.path("cutlass"), &[]), "compile_error", &["quux"]);
}

#[test]
fn a_compiler_that_writes_nothing_is_not_believed() {
    let setting = Setting::new();
    let compiler = setting.compiler("exit 0");
    setting.check(&setting.replay(&compiler, &setting.path("cutlass"), &[]), "no_output", &[]);
}

#[test]
fn a_compiler_that_is_not_there_is_a_reason_too() {
    let setting = Setting::new();
    let output = setting.replay(&setting.path("bin/none"), &setting.path("cutlass"), &[]);
    setting.check(&output, "toolchain_missing", &["bin/none"]);
}
