//! Real failures of compilers. `replay --build` still computes the right outputs, reports the compiler's own
//! words, the fault and the remedy, and leaves no files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A program with one kernel, folders for temporary files and the cache, and a stand-in toolchain.
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
        // Enough to be recognized as CUTLASS, and nothing that compiles.
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

    /// A compiler of this version with this behaviour; it counts the builds in its folder.
    fn compiler_of(&self, version: &str, body: &str) -> PathBuf {
        let says = format!("echo 'Cuda compilation tools, release {version}, V{version}'");
        let count = self.path("count");
        let count = count.display();
        self.script(
            "bin/nvcc",
            &format!("case \"$1\" in --version | --dryrun) {says}; exit 0;; esac\npwd >> '{count}'\n{body}"),
        );
        self.path("bin/nvcc")
    }

    fn compiler(&self, body: &str) -> PathBuf {
        self.compiler_of("13.0.88", body)
    }

    /// A compiler that writes this C program as the library, and a disassembler that prints the expected
    /// instruction.
    fn compiler_of_c(&self, text: &str) -> PathBuf {
        std::fs::write(self.path("library.c"), text).expect("a file");
        self.script("bin/cuobjdump", "echo '        /*0010*/   UTCOMMA.4X gdesc[UR48] ;   /* 0x0 */'");
        self.compiler(&format!("exec cc -shared -fPIC -o kernel.so '{}'", self.path("library.c").display()))
    }

    /// Returns the number of builds.
    fn builds(&self) -> usize {
        let text = std::fs::read_to_string(self.path("count")).unwrap_or_default();
        text.lines().collect::<std::collections::BTreeSet<_>>().len()
    }

    fn command(&self, nvcc: &Path, cutlass: &Path, more: &[&str]) -> Command {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/epilogue/epilogue_full.fir");
        let mut command = fourfold();
        command.args(["replay", "--build", "--json"]).arg(program);
        command.arg("--nvcc").arg(nvcc).arg("--cutlass").arg(cutlass).args(more);
        command.env("TMPDIR", self.path("temp")).env("FOURFOLD_CACHE_DIR", self.path("cache"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn replay(&self, nvcc: &Path, cutlass: &Path, more: &[&str]) -> Output {
        self.command(nvcc, cutlass, more).output().expect("the program starts")
    }

    fn compile(&self, nvcc: &Path, more: &[&str]) -> Output {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/epilogue/epilogue_full.fir");
        let mut command = fourfold();
        command
            .arg("compile")
            .arg(program)
            .arg("--nvcc")
            .arg(nvcc)
            .arg("--cutlass")
            .arg(self.path("cutlass"));
        command.args(more).env("TMPDIR", self.path("temp")).env("FOURFOLD_CACHE_DIR", self.path("cache"));
        command.output().expect("the program starts")
    }

    fn doctor(&self, nvcc: &Path, more: &[&str]) -> Output {
        let mut command = fourfold();
        command.arg("doctor").arg("--nvcc").arg(nvcc).arg("--cutlass").arg(self.path("cutlass")).args(more);
        command.env("TMPDIR", self.path("temp")).env("FOURFOLD_CACHE_DIR", self.path("cache"));
        command.output().expect("the program starts")
    }

    fn build_with(&self, nvcc: &Path, more: &[&str]) -> Output {
        self.replay(nvcc, &self.path("cutlass"), more)
    }

    /// Checks for right outputs, a reason with these words, and empty folders for temporary files.
    #[track_caller]
    fn check(&self, output: &Output, code: &str, words: &[&str]) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        assert_eq!(report["ok"], true);
        let outputs = report["outputs"].as_array().expect("outputs");
        assert!(!outputs.is_empty() && outputs.iter().all(|output| output["ok"] == true));
        let segments = report["segments"].as_array().expect("segments");
        let kernel = segments.iter().find(|segment| segment["kind"] == "kernel").expect("a kernel segment");
        let message = kernel["message"].as_str().expect("a message");
        assert_eq!(kernel["reason"], code, "{message}");
        assert_eq!(kernel["ran"], "fallback");
        for word in words {
            assert!(message.contains(word), "`{word}` in: {message}");
        }
        let listed = fourfold_executor::service::FAILURE_CODES.iter().find(|known| known.code == code);
        assert!(listed.is_some(), "`{code}` is not listed");
        self.assert_clean();
    }

    #[track_caller]
    fn assert_clean(&self) {
        for name in ["temp", "cache/kernels/tmp", "cache/kernels/locks"] {
            let Ok(entries) = std::fs::read_dir(self.path(name)) else { continue };
            let left: Vec<_> = entries
                .map(|entry| entry.expect("an entry").path())
                .filter(|path| !path.to_string_lossy().contains("/slot-"))
                .collect();
            assert!(left.is_empty(), "{left:?} was left behind");
        }
    }

    /// Checks that no process works in these folders; killed ones get a moment.
    #[track_caller]
    fn assert_no_processes(&self) {
        let started = Instant::now();
        while self.has_processes() {
            assert!(started.elapsed() < Duration::from_secs(5), "a compiler still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn has_processes(&self) -> bool {
        let links = std::fs::read_dir("/proc").expect("processes").flatten();
        links
            .filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok())
            .any(|cwd| cwd.starts_with(self.folder.path()))
    }

    fn wait_for_builds(&self, count: usize) {
        let started = Instant::now();
        while self.builds() < count {
            assert!(started.elapsed() < Duration::from_secs(30), "no build begins");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn fourfold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
    command.env("FOURFOLD_DEVICE", "none");
    for name in ["FOURFOLD_CACHE_SIZE", "FOURFOLD_CACHE_TIERS"] {
        command.env_remove(name);
    }
    command
}

/// The real compiler, in the folder that the kernel tests share.
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
    let output = setting.build_with(&real_compiler(), &[]);
    setting.check(&output, "compile_error", &["no_such_header.h", "fault: toolchain"]);
}

#[test]
fn a_wrong_flag_is_named_by_the_real_compiler() {
    let setting = Setting::new();
    let compiler = setting.compiler(&format!("exec {} --no-such-flag \"$@\"", real_compiler().display()));
    let output = setting.build_with(&compiler, &[]);
    setting.check(&output, "compile_error", &["no-such-flag"]);
}

#[test]
fn a_compiler_that_hangs_is_stopped_with_its_children() {
    let setting = Setting::new();
    let compiler = setting.compiler("sleep 4242 & sleep 4242");
    let output = setting.build_with(&compiler, &["--time-limit", "1"]);
    setting.check(&output, "compile_timeout", &["1 s", "fault: resource_limit", "--time-limit"]);
    setting.assert_no_processes();
}

#[test]
fn a_compiler_that_crashes_is_told_from_one_that_refuses_and_from_one_without_memory() {
    let setting = Setting::new();
    let compiler = setting.compiler("echo 'internal trouble'; kill -SEGV $$");
    setting.check(&setting.build_with(&compiler, &[]), "compiler_crashed", &["signal 11"]);
    let compiler = setting.compiler("kill -KILL $$");
    let words = ["signal 9", "fault: resource_limit", "--jobs"];
    setting.check(&setting.build_with(&compiler, &[]), "out_of_memory", &words);
    let compiler = setting.compiler("echo 'cc1plus: out of memory allocating 65536 bytes' >&2; exit 1");
    setting.check(&setting.build_with(&compiler, &[]), "out_of_memory", &["out of memory allocating"]);
    // None of these failures is remembered.
    assert_eq!(setting.builds(), 3);
}

#[test]
fn a_flood_of_output_is_bounded_and_its_first_error_found() {
    let setting = Setting::new();
    let compiler = setting.compiler(
        "echo 'kernel.cu(7): error: identifier \"quux\" is undefined'; yes noise | head -c 100000000; exit 2",
    );
    setting.check(&setting.build_with(&compiler, &[]), "compile_error", &["quux", "fault: bug"]);
}

#[test]
fn a_compiler_that_writes_nothing_is_not_believed() {
    let setting = Setting::new();
    let compiler = setting.compiler("exit 0");
    setting.check(&setting.build_with(&compiler, &[]), "no_output", &[]);
}

#[test]
fn a_compiler_that_is_not_there_too_old_or_no_compiler_is_a_reason_too() {
    let setting = Setting::new();
    let output = setting.build_with(&setting.path("bin/none"), &[]);
    setting.check(&output, "toolchain_missing", &["bin/none"]);
    let output = setting.build_with(&setting.path("bin"), &[]);
    setting.check(&output, "toolchain_unusable", &["which is a folder"]);
    setting.script("bin/other", "echo 'I am no compiler'");
    let output = setting.build_with(&setting.path("bin/other"), &[]);
    setting.check(&output, "toolchain_unusable", &["bin/other"]);
    let compiler = setting.compiler_of("11.8.89", "exit 1");
    setting.check(
        &setting.build_with(&compiler, &[]),
        "toolchain_too_old",
        &["11.8.89", "fourfold toolchain install"],
    );
    let compiler =
        setting.compiler("echo \"nvcc fatal   : Unsupported gpu architecture 'compute_100a'\"; exit 1");
    setting.check(&setting.build_with(&compiler, &[]), "target_unsupported", &["compute_100a"]);
    let output = setting.build_with(&compiler, &["--retry", "--launcher", "/nowhere/sccache"]);
    setting.check(&output, "launcher_missing", &["/nowhere/sccache", "--launcher"]);
    let compiler = setting.compiler_of("12.8.93", "exit 1");
    let output = setting.build_with(&compiler, &["--target", "sm_121a"]);
    setting.check(&output, "toolchain_known_bad", &["nvcc 12.8.93", "--allow-known-bad"]);
    let output = setting.build_with(&compiler, &["--target", "sm_121a", "--allow-known-bad"]);
    setting.check(&output, "target_unsupported", &["nvcc 12.8.93 does not support sm_121a"]);
}

#[test]
fn a_library_that_is_not_what_was_planned_is_not_used() {
    let setting = Setting::new();
    let compiler = setting.compiler("echo 'int nothing;' | cc -x c -shared -fPIC -o kernel.so -");
    setting.check(&setting.build_with(&compiler, &[]), "no_mma", &["UTCOMMA", "fault: bug"]);
    let compiler = setting.compiler_of_c("int absent(void); int present(void) { return absent(); }");
    setting.check(&setting.build_with(&compiler, &[]), "dlopen_error", &["undefined symbol", "absent"]);
    let compiler = setting.compiler_of_c("unsigned fourfold_abi_version(void) { return 2; }");
    setting.check(&setting.build_with(&compiler, &[]), "abi_mismatch", &["version 2"]);
    let compiler = setting.compiler_of_c("int unrelated(void) { return 1; }");
    setting.check(&setting.build_with(&compiler, &[]), "missing_symbol", &["fourfold_abi_version"]);
    setting.script("bin/cuobjdump", "echo 'cuobjdump fatal   : not in cubin format'; exit 1");
    setting.check(&setting.build_with(&compiler, &["--retry"]), "inspect_error", &["cubin"]);
}

#[test]
fn a_known_failure_is_not_tried_again_until_that_is_wished() {
    let setting = Setting::new();
    let compiler = setting.compiler("echo 'some remark'; echo 'kernel.cu(9): error: a bug of ours'; exit 1");
    for _ in 0..3 {
        let output = setting.build_with(&compiler, &[]);
        setting.check(&output, "compile_error", &["kernel.cu(9): error: a bug of ours", "fault: bug"]);
    }
    assert_eq!(setting.builds(), 1);
    let again = setting.build_with(&compiler, &[]);
    let report: Value = serde_json::from_slice(&again.stdout).expect("a report");
    assert!(report.to_string().contains("--retry tries again"), "{report}");
    setting.check(&setting.build_with(&compiler, &["--retry"]), "compile_error", &["a bug of ours"]);
    assert_eq!(setting.builds(), 2);
    // The whole log is kept with the failure.
    let folder = setting.path("cache/kernels/failures");
    let records: Vec<_> =
        std::fs::read_dir(folder).expect("records").map(|entry| entry.unwrap().path()).collect();
    let record: Value =
        serde_json::from_slice(&std::fs::read(&records[0]).expect("a record")).expect("an object");
    let log = record["failure"]["log"].as_str().expect("a log");
    assert!(
        records.len() == 1 && log.starts_with("some remark\n") && log.contains("kernel.cu(9)"),
        "{record}"
    );
    // Without the cache, nothing is remembered or looked up.
    setting.check(&setting.build_with(&compiler, &["--no-cache"]), "compile_error", &["a bug of ours"]);
    assert_eq!(setting.builds(), 3);
}

#[test]
fn what_a_broken_host_compiler_did_does_not_outlast_it() {
    let setting = Setting::new();
    let compiler = setting.compiler(
        "for word; do case \"$word\" in */badgxx) \"$word\" || exit 1;; esac; done\n\
         echo 'kernel.cu(9): error: with the usual one'; exit 1",
    );
    setting.script("bin/badgxx", "echo 'badgxx(1): error: no words that anybody knows'; exit 1");
    let build = || {
        let mut command = setting.command(&compiler, &setting.path("cutlass"), &[]);
        command.env("NVCC_CCBIN", setting.path("bin/badgxx")).output().expect("the program starts")
    };
    for _ in 0..2 {
        setting.check(&build(), "compile_error", &["no words that anybody knows"]);
    }
    assert_eq!(setting.builds(), 1, "it is remembered for that one");
    setting.check(&setting.build_with(&compiler, &[]), "compile_error", &["with the usual one"]);
    let known = "gcc: error: unrecognized command-line option '-fno-gnu-unique'";
    setting.script("bin/badgxx", &format!("echo \"{known}\"; exit 1"));
    for _ in 0..2 {
        setting.check(&build(), "compile_error", &[known, "fault: environment"]);
    }
    assert_eq!(setting.builds(), 4, "one that was changed is another, and what the machine lacks may come");
}

#[test]
fn a_full_disk_is_named_and_nothing_is_left_on_it() {
    let setting = Setting::new();
    let compiler = setting.compiler("head -c 10000000 /dev/zero > big || { echo 'fatal error: error writing to big: No space left on device'; exit 1; }; exit 0");
    std::fs::create_dir_all(setting.path("cache")).expect("a folder");
    let run = setting.command(&compiler, &setting.path("cutlass"), &[]);
    // The file system exists for this command only, which lists the files left on it.
    let script = "mount -t tmpfs -o size=1m tmpfs \"$1\" || exit 99; kernels=\"$1/kernels\"; shift; \"$@\"; code=$?; \
                  ls -A \"$kernels/tmp\" >&2 || exit 98; exit $code";
    let within = |namespace: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(namespace).args(["sh", "-c", script, "sh"]).arg(setting.path("cache"));
        command.arg(run.get_program()).args(run.get_args());
        command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env_remove("FOURFOLD_CACHE_SIZE").env_remove("FOURFOLD_CACHE_TIERS");
        command.output().ok().filter(|output| setting.builds() > 0 || output.status.code() == Some(0))
    };
    let output = within(&["-m"]).or_else(|| within(&["-rm"])).expect(
        "`unshare -m` or `unshare -rm`, which mount a small file system: run this test as root, or where users may \
         have namespaces of their own",
    );
    setting.check(&output, "disk_full", &["No space left", "fault: resource_limit", "free space"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(".fourfold") && !said.contains("fourfold-"), "something is left: {said}");
}

#[test]
fn compile_leaves_the_log_and_the_source_of_what_is_not_built_where_it_says() {
    let setting = Setting::new();
    let compiler = setting.compiler("echo 'a remark'; echo 'kernel.cu(9): error: no'; exit 1");
    let compile = |more: &[&str]| setting.compile(&compiler, more);
    let output = compile(&[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(70), "{said}");
    let (_, rest) = said.split_once("the compiler's log is in ").expect("it says where");
    let (record, _) = rest.split_once("; --dump DIR").expect("and how else");
    assert!(std::fs::read_to_string(record).expect("it is there").contains("a remark"), "{said}");
    assert!(!said.contains("this failure is recorded from an earlier build"), "{said}");
    let dump = setting.path("dump");
    let output = compile(&["--json", "--dump", &dump.display().to_string()]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let (kernel, error) = (&report["kernels"][0], &report["kernels"][0]["error"]);
    assert_eq!((&error["remembered"], &error["fault"]), (&true.into(), &"bug".into()), "{report}");
    assert_eq!(error["record"], record);
    let files: Vec<PathBuf> = kernel["files"]
        .as_array()
        .expect("files")
        .iter()
        .filter_map(|file| Some(file.as_str()?.into()))
        .collect();
    let texts: Vec<String> =
        files.iter().map(|file| std::fs::read_to_string(file).expect("a file")).collect();
    assert_eq!(texts.len(), 2, "{files:?}");
    assert!(texts[0].contains("fourfold_prepare") && texts[1].contains("a remark\nkernel.cu(9): error: no"));
    // The failure is that of the place, not of the kernel.
    let output = compile(&["--dump", "/proc/none"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("cannot write to /proc/none") && said.contains("name a writable folder with --dump")
    );
    // A log that was not kept is reported as such.
    let said = String::from_utf8_lossy(&compile(&["--no-cache"]).stdout).into_owned();
    assert!(said.contains("the compiler's log is not kept; --dump DIR"), "{said}");
}

#[test]
fn a_cache_that_cannot_be_used_costs_nothing_but_the_cache() {
    let setting = Setting::new();
    std::fs::write(setting.path("cache"), "a file where the folder should be").expect("a file");
    let compiler = setting.compiler("echo 'kernel.cu(9): error: built all the same'; exit 1");
    let output = setting.build_with(&compiler, &[]);
    setting.check(&output, "compile_error", &["built all the same"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("kernels are not cached"), "{said}");
}

#[test]
fn an_interrupt_kills_the_compiler_removes_what_it_wrote_and_says_so() {
    for (signal, more) in [("-INT", &[][..]), ("-TERM", &["--no-cache"][..]), ("-INT", &["--bundle"])] {
        let setting = Setting::new();
        let bundle = setting.path("kept/bundle").display().to_string();
        let more = if more == ["--bundle"] { vec!["--bundle", &bundle] } else { more.to_vec() };
        let compiler = setting.compiler(": > kernel.o; sleep 4243 & sleep 4243");
        let command = setting.command(&compiler, &setting.path("cutlass"), &more);
        // The tests may themselves run with interrupts ignored, like a background job of a script.
        let listening = ["env", "--default-signal=INT,TERM"];
        let child = started_by(&listening, &command).spawn().expect("it starts");
        setting.wait_for_builds(1);
        let status = interrupt(child, signal);
        assert_eq!(status, Some(130));
        let left = std::fs::read_dir(setting.path("kept")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "nothing of the bundle stays");
        setting.assert_no_processes();
        setting.assert_clean();
    }
}

#[test]
fn a_signal_that_it_was_started_to_ignore_does_not_end_it() {
    let setting = Setting::new();
    let compiler =
        setting.compiler(&format!("while ! test -e '{}'; do sleep 0.01; done", setting.path("go").display()));
    let command = setting.command(&compiler, &setting.path("cutlass"), &[]);
    // Like `nohup` does.
    let nohup = ["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""];
    let child = started_by(&nohup, &command).spawn().expect("it starts");
    setting.wait_for_builds(1);
    let signal = Command::new("kill").args(["-HUP", &child.id().to_string()]).status();
    assert!(signal.is_ok_and(|status| status.success()));
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(setting.path("go"), "").expect("a file");
    let output = child.wait_with_output().expect("it ends");
    setting.check(&output, "no_output", &[]);
}

#[test]
fn the_doctor_does_not_call_a_compiler_that_failed_its_test_well() {
    let setting = Setting::new();
    let compiler = setting.compiler("echo 'kernel.cu(5): error: no'; exit 2");
    let output = setting.doctor(&compiler, &["--self-test"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("kernel.cu(5): error: no") && said.contains("The self-test failed"), "{said}");
    assert!(!said.contains("Kernels can be built here"), "{said}");
    let said = String::from_utf8_lossy(&setting.doctor(&compiler, &[]).stdout).into_owned();
    assert!(said.contains("Kernels can be built here"), "{said}");
}

#[test]
fn a_compiler_does_not_outlive_a_program_that_is_killed_and_the_next_one_is_not_stuck() {
    let setting = Setting::new();
    let compiler = setting.compiler("sleep 4244 & sleep 4244");
    let child = setting.command(&compiler, &setting.path("cutlass"), &[]).spawn().expect("it starts");
    setting.wait_for_builds(1);
    assert_eq!(interrupt(child, "-KILL"), None);
    setting.assert_no_processes();
    let compiler = setting.compiler("exit 0");
    setting.check(&setting.build_with(&compiler, &[]), "no_output", &[]);
}

/// Returns the command, started through a shell that it replaces.
fn started_by(starter: &[&str], command: &Command) -> Command {
    let mut result = Command::new(starter[0]);
    result.args(&starter[1..]).arg(command.get_program()).args(command.get_args());
    result.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    result.stdout(Stdio::piped()).stderr(Stdio::piped());
    result
}

fn interrupt(mut child: Child, signal: &str) -> Option<i32> {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    child.wait().expect("it ends").code()
}
