//! Every failure, provoked for real: its code, the party at fault, the remedy, and that no files remain.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fourfold_executor::service::{CompileService, FAILURE_CODES, Failure, ServiceOptions};
use fourfold_executor::toolchain::{Toolchain, ToolchainError, ToolchainOptions, locate};
use fourfold_executor::{BuildError, BuildFault, BuildOptions};

use super::fixture::{Bench, get, good, source, stand_in};

/// Returns the failure of a build, and checks that the build left nothing behind.
#[track_caller]
fn fail(bench: &Bench, text: &str) -> Arc<Failure> {
    fail_with(bench, bench.options(), text)
}

#[track_caller]
fn fail_with(bench: &Bench, options: ServiceOptions, text: &str) -> Arc<Failure> {
    let failure = get(&CompileService::new(options), text).0.expect_err("it must fail");
    bench.assert_clean();
    failure
}

#[track_caller]
fn check(failure: &Failure, code: &str, fault: BuildFault, lasting: bool, words: &str) {
    assert_eq!((failure.code, failure.fault(), failure.lasting), (code, fault, lasting), "{failure}");
    assert!(failure.message.contains(words), "`{failure}` does not say `{words}`");
    let known = FAILURE_CODES.iter().find(|known| known.code == code).expect("it is listed");
    assert_eq!(failure.remedy(), known.remedy);
}

/// Options with another toolchain.
fn with(bench: &Bench, change: impl FnOnce(&mut Toolchain)) -> ServiceOptions {
    let options = bench.options();
    let mut toolchain = Toolchain::clone(options.toolchain.as_ref().unwrap());
    change(&mut toolchain);
    ServiceOptions { toolchain: Ok(Arc::new(toolchain)), ..options }
}

#[test]
fn a_toolchain_that_lacks_something_or_is_too_old_for_the_target() {
    let bench = Bench::new();
    let options = with(&bench, |toolchain| toolchain.nvcc = bench.path("no_nvcc"));
    check(
        &fail_with(&bench, options, &good(1)),
        "toolchain_missing",
        BuildFault::Toolchain,
        false,
        "no_nvcc",
    );
    let options = with(&bench, |toolchain| toolchain.cuobjdump = None);
    check(
        &fail_with(&bench, options, &good(1)),
        "toolchain_missing",
        BuildFault::Toolchain,
        false,
        "cuobjdump",
    );
    let options = with(&bench, |toolchain| toolchain.nvcc = stand_in("kernel.c"));
    check(
        &fail_with(&bench, options, &good(1)),
        "toolchain_unusable",
        BuildFault::Environment,
        false,
        "cannot run `nvcc`",
    );
    let options = with(&bench, |toolchain| toolchain.nvcc_version = "12.4.1".to_owned());
    let failure = fail_with(&bench, options, &good(1));
    check(
        &failure,
        "target_unsupported",
        BuildFault::Toolchain,
        false,
        "nvcc 12.4.1 does not support sm_100a",
    );
    let words = "nvcc fatal   : Unsupported gpu architecture 'compute_100a'";
    let bench = Bench::with(&format!("echo \"{words}\"; exit 1"));
    check(&fail(&bench, &good(1)), "target_unsupported", BuildFault::Toolchain, true, words);
    let named = |path: &Path| {
        let options = ToolchainOptions { nvcc: Some(path.to_owned()), ..ToolchainOptions::default() };
        locate(&options, &Default::default()).unwrap_err()
    };
    assert_eq!(named(&bench.path("no_nvcc")).code(), "toolchain_missing");
    assert_eq!(named(&stand_in("kernel.c")).code(), "toolchain_unusable");
    let old = Bench::with("echo 'Cuda compilation tools, release 11.8, V11.8.89'");
    let error = named(&old.path("nvcc"));
    assert!(matches!(error, ToolchainError::TooOld { .. }) && error.code() == "toolchain_too_old", "{error}");
}

#[test]
fn a_compiler_that_refuses_says_so_in_its_own_words_and_the_whole_log_is_kept() {
    let bench = Bench::new();
    let failure = fail(&bench, &source("source_error", 1, ""));
    let words = "kernel.cu(40): error: identifier \"frobnicate\" is undefined";
    check(&failure, "compile_error", BuildFault::OurBug, true, words);
    assert_eq!(failure.first_error.as_deref(), Some(words));
    let records = bench.names("failures");
    assert_eq!(records.len(), 1);
    let record = fs::read_to_string(bench.path("cache/kernels/failures").join(&records[0])).unwrap();
    assert!(record.contains("never referenced"), "the log before the error: {record}");
    let failure = fail(&bench, &source("missing_header", 1, ""));
    check(&failure, "compile_error", BuildFault::Toolchain, true, "cutlass/gemm/device/gemm.h");
    let failure = fail(&bench, &source("flood", 1, ""));
    check(&failure, "compile_error", BuildFault::OurBug, true, "lost in the middle");
    assert!(failure.log.as_ref().unwrap().len() < 1 << 20);
}

#[test]
fn a_compiler_that_hangs_crashes_or_runs_out_of_memory() {
    let bench = Bench::new();
    let mut options = bench.options();
    options.build.time_limit = Duration::from_secs(1);
    let failure = fail_with(&bench, options, &source("hang service", 1, ""));
    check(
        &failure,
        "compile_timeout",
        BuildFault::ResourceLimit,
        false,
        "limit of 1 s; its last output: still thinking",
    );
    let failure = fail(&bench, &source("crash", 1, ""));
    check(&failure, "compiler_crashed", BuildFault::Toolchain, false, "signal 11");
    let failure = fail(&bench, &source("child_crash", 1, ""));
    check(&failure, "compiler_crashed", BuildFault::Toolchain, false, "'cicc' died due to signal 11");
    let failure = fail(&bench, &source("killed", 1, ""));
    check(&failure, "out_of_memory", BuildFault::ResourceLimit, false, "signal 9");
    let bench = Bench::with(
        "echo 'cc: internal compiler error: Segmentation fault signal terminated program cc1'; exit 4",
    );
    check(
        &fail(&bench, &good(1)),
        "compiler_crashed",
        BuildFault::Toolchain,
        false,
        "internal compiler error",
    );
    // A compiler that really runs out of memory.
    let bench = Bench::new();
    let large = "#define A(x) x,x,x,x,x,x,x,x,x,x\nint large[] = { A(A(A(A(A(A(1)))))) };\n";
    fs::write(bench.path("large.c"), large).unwrap();
    let large = bench.path("large.c");
    bench.compiler(&format!("ulimit -v 100000; exec cc -shared -fPIC -o kernel.so '{}'", large.display()));
    check(&fail(&bench, &good(1)), "out_of_memory", BuildFault::ResourceLimit, false, "memory");
    for (kind, code) in [
        (std::io::ErrorKind::OutOfMemory, "out_of_memory"),
        (std::io::ErrorKind::WouldBlock, "out_of_processes"),
    ] {
        let error = BuildError::Spawn { tool: "nvcc", source: kind.into() };
        assert_eq!((error.code(), error.fault()), (code, BuildFault::ResourceLimit));
    }
    for words in [
        "cicc: out of memory",
        "virtual memory exhausted: Cannot allocate memory",
        "terminate called: std::bad_alloc: out of memory",
    ] {
        let bench = Bench::with(&format!("echo '{words}' >&2; exit 1"));
        check(&fail(&bench, &good(1)), "out_of_memory", BuildFault::ResourceLimit, false, words);
    }
}

#[test]
fn a_binary_that_is_not_what_was_planned() {
    let bench = Bench::new();
    let no_mma = good(1).replace("// sass: UTCOMMA.4X", "// sass: HMMA.16816");
    check(&fail(&bench, &no_mma), "no_mma", BuildFault::OurBug, true, "has no UTCOMMA");
    check(&fail(&bench, &source("nothing", 1, "")), "no_output", BuildFault::Toolchain, true, "no library");
    let failure = fail(&bench, &format!("{}// sass_fails\n", good(1)));
    check(&failure, "inspect_error", BuildFault::Toolchain, true, "cubin");
    let failure = fail(&bench, &source("truncated_elf", 1, ""));
    check(&failure, "dlopen_error", BuildFault::Toolchain, false, "kernel.so");
    let old = fail(&bench, &source("compile", 1, "#define OLD\n#define ABI 2"));
    check(&old, "abi_mismatch", BuildFault::OurBug, true, "kernel ABI version 2");
    let failure = fail(&bench, &good(1).replace("\\\"threads\\\":256,", ""));
    check(&failure, "bad_metadata", BuildFault::OurBug, true, "threads");
    let failure = fail(&bench, &good(1).replace("\\\"stages\\\":5", "\\\"stages\\\":4"));
    check(&failure, "metadata_mismatch", BuildFault::OurBug, true, "number of stages");
}

#[test]
fn a_full_disk_is_told_from_a_compiler_that_refuses() {
    let bench = Bench::with("echo 'kernel.cu: fatal error: cannot write: No space left on device'; exit 1");
    check(&fail(&bench, &good(1)), "disk_full", BuildFault::ResourceLimit, false, "No space left");
    let disk = bench.path("disk");
    fs::create_dir(&disk).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&disk).output();
    if !mount.is_ok_and(|mount| mount.status.success()) {
        println!("not tried on a full file system: this user may not mount one");
        return;
    }
    let unmount = Unmount(disk.clone());
    let filled = Bench::new();
    let text = format!("{}{}", good(1), "// filling\n".repeat(20_000));
    let build = BuildOptions { temp_dir: Some(disk.clone()), ..BuildOptions::default() };
    let failure = fail_with(&filled, ServiceOptions { build, ..filled.options() }, &text);
    check(&failure, "disk_full", BuildFault::ResourceLimit, false, "cannot write the source");
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "nothing is left on it");
    drop(unmount);
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn what_says_nothing_about_the_kernel_is_not_remembered() {
    let output = "<built-in>: fatal error: when writing output to kernel.cpp4.ii:";
    for (words, code, fault) in [
        (format!("{output} Disk quota exceeded"), "disk_full", BuildFault::ResourceLimit),
        (format!("{output} No space left on device"), "disk_full", BuildFault::ResourceLimit),
        (format!("{output} Stale file handle"), "disk", BuildFault::Environment),
        (format!("{output} Input/output error"), "disk", BuildFault::Environment),
        (format!("{output} Read-only file system"), "disk", BuildFault::Environment),
        ("sh: 0: Cannot fork".to_owned(), "out_of_processes", BuildFault::ResourceLimit),
        (
            "g++: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily unavailable".to_owned(),
            "out_of_processes",
            BuildFault::ResourceLimit,
        ),
        (
            "cc1plus: fatal error: x.h: Too many open files".to_owned(),
            "out_of_processes",
            BuildFault::ResourceLimit,
        ),
        ("Killed".to_owned(), "out_of_memory", BuildFault::ResourceLimit),
        (
            "cc1plus: out of memory allocating 65536 bytes".to_owned(),
            "out_of_memory",
            BuildFault::ResourceLimit,
        ),
        // Regardless of earlier output.
        (
            format!("kernel.cu: error: half a file\n{output} Stale file handle"),
            "disk",
            BuildFault::Environment,
        ),
    ] {
        let compiler = format!("exec '{}' \"$@\"", stand_in("nvcc.sh").display());
        let bench = Bench::new();
        fs::write(bench.path("words"), format!("{words}\n")).unwrap();
        let (said, done) = (bench.path("words"), bench.path("done"));
        bench.compiler(&format!(
            "[ -e '{done}' ] || {{ : > '{done}'; cat '{said}' >&2; exit 1; }}\n{compiler}",
            done = done.display(),
            said = said.display()
        ));
        let failure = fail(&bench, &good(1));
        check(&failure, code, fault, false, words.lines().last().unwrap());
        // The same compiler succeeds a moment later.
        assert!(get(&bench.service(), &good(1)).0.is_ok(), "{words}");
        assert_eq!(bench.builds(), 2, "{words}");
    }
}

#[test]
fn a_shell_that_reports_a_signal_is_believed() {
    for (status, code, fault) in
        [(137, "out_of_memory", BuildFault::ResourceLimit), (139, "compiler_crashed", BuildFault::Toolchain)]
    {
        let bench = Bench::with(&format!("exit {status}"));
        check(&fail(&bench, &good(1)), code, fault, false, &format!("signal {}", status - 128));
    }
}

#[test]
fn a_failure_in_words_that_nobody_knows_is_tried_once_more_and_then_remembered() {
    for body in
        ["echo 'cicc: something odd' >&2; exit 1", "exit 3", "exit 0", "echo 'nvcc error   : odd'; exit 1"]
    {
        // A transient failure: the second attempt, in another folder, succeeds.
        let bench = Bench::new();
        let once = bench.path("once");
        let good_compiler = format!("exec '{}' \"$@\"", stand_in("nvcc.sh").display());
        bench.compiler(&format!(
            "[ -e '{once}' ] || {{ : > '{once}'; {body}; }}\n{good_compiler}",
            once = once.display()
        ));
        let (outcome, events) = get(&bench.service(), &good(1));
        assert!(outcome.is_ok(), "{body}: {events:?}");
        assert_eq!(bench.builds(), 2, "{body}");
        let notes = events.iter().filter(|event| event.to_string().contains("once more")).count();
        assert_eq!(notes, 1, "{events:?}");
        bench.assert_clean();
        // A lasting failure is remembered after two attempts.
        let bench = Bench::with(body);
        let failure = fail(&bench, &good(1));
        assert!(failure.lasting && bench.builds() == 2, "{body}: {failure:?}");
        let failure = fail(&bench, &good(1));
        assert!(failure.remembered && bench.builds() == 2, "{body}: {failure:?}");
    }
    // A diagnostic about the source needs no second attempt.
    let bench = Bench::with("echo 'kernel.cu(7): error: no such thing'; exit 2");
    check(&fail(&bench, &good(1)), "compile_error", BuildFault::OurBug, true, "no such thing");
    assert_eq!(bench.builds(), 1);
}

#[test]
fn a_folder_that_somebody_removes_while_the_compiler_runs_is_not_the_kernel_s_fault() {
    for removed in ["rm -r \"$PWD\"", "rm kernel.cu", "rm -r \"$TMPDIR\""] {
        let bench =
            Bench::with(&format!("{removed}; echo 'nvcc fatal   : Could not open output file'; exit 1"));
        let failure = fail(&bench, &good(1));
        check(&failure, "disk", BuildFault::Environment, false, "was removed while a tool ran in it");
        assert!(failure.message.contains("Could not open output file"), "{failure}");
    }
}

#[test]
fn what_an_earlier_version_took_for_a_bug_is_tried_again() {
    let bench = Bench::with("echo 'kernel.cu(7): error: no such thing'; exit 2");
    assert!(fail(&bench, &good(1)).lasting);
    let records = bench.path("cache/kernels/failures");
    let record = fs::read_dir(records).unwrap().next().unwrap().unwrap().path();
    let old = fs::read_to_string(&record).unwrap();
    let words = "<built-in>: fatal error: when writing output to kernel.cpp4.ii: Disk quota exceeded";
    fs::write(&record, old.replace("kernel.cu(7): error: no such thing", words)).unwrap();
    assert!(!fail(&bench, &good(1)).remembered);
    assert_eq!(bench.builds(), 2);
}
