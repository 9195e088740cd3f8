//! Builds and loads with a stand-in compiler: every kind of failure, its report, and that no files remain.
#![allow(unsafe_code, reason = "the functions of a loaded kernel take pointers")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use fourfold_executor::kernel::{
    ABI_VERSION, Addresses, Device, Extents, Kernel, LoadError, MAX_EXTENTS, MAX_OPERANDS, MAX_OUTPUTS,
    MAX_SCALARS, Requirements, Role, Status,
};
use fourfold_executor::{
    Artifact, BuildError, BuildFault, BuildInput, BuildOptions, BuildTools, Cancel, ToolEnvironment,
    Translation, build,
};
use tempfile::TempDir;

const KERNEL: &str = "stand_in_sm100_128x128x256";
const STAGES: u32 = 5;
const GOOD_SASS: &str = "// sass: UTCOMMA.4X gdesc[UR48]\n// sass: UTCCP.T.S.4x32dp128bit tmem[UR26]\n\
                         // sass: UTCOMMA.4X gdesc[UR50]\n// sass: EXIT\n";

fn stand_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins").join(name)
}

/// The roles of the stand-in kernel, as members of its metadata.
const ROLES: &str = r#""extents":["L","M","N","K"],"operands":[{"role":"a","element":"f4E2M1FN","extents":["L","M","K"]},{"role":"sfa","element":"f8E4M3FN"},{"role":"b","element":"f4E2M1FN","extents":["L","N","K"]},{"role":"sfb","element":"f8E4M3FN"}],"scalars":[],"outputs":[{"role":"y0","element":"f32","extents":["L","M","N"]}]"#;

fn metadata() -> String {
    format!(
        r#"{{"abi":{ABI_VERSION},"target":"sm_100a","kernel":"{KERNEL}","tile":[128,128,256],"cluster":[1,1,1],"stages":{STAGES},"shared_memory":223232,"threads":256,"signature":"nvfp4 d=f32",{ROLES},"emulated":false,"hash":"00ff","later":[1]}}"#
    )
}

/// A source that the stand-in compiler understands, with the stand-in kernel as its body.
fn source(behave: &str, sass: &str, metadata: &str, defines: &str) -> String {
    let body = fs::read_to_string(stand_in("kernel.c")).unwrap();
    format!("// behave: {behave}\n{sass}#define METADATA {metadata:?}\n{defines}\n{body}")
}

fn open(library: &Path) -> Result<Kernel, LoadError> {
    // SAFETY: the library is the stand-in, which has no initializers, or a file that cannot be loaded.
    unsafe { Kernel::open(library) }
}

struct Bench {
    temp: TempDir,
    limit: Duration,
    prelude: Option<&'static str>,
    translation: Option<Translation>,
    launcher: Option<PathBuf>,
    debug: bool,
    cancel: Option<Cancel>,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            temp: tempfile::tempdir().unwrap(),
            limit: Duration::from_secs(60),
            prelude: None,
            translation: None,
            launcher: None,
            debug: false,
            cancel: None,
        }
    }

    fn build(&self, text: &str) -> Result<Artifact, BuildError> {
        self.build_with(text, &stand_in("nvcc.sh"), Some(&stand_in("cuobjdump.sh")))
    }

    fn build_with(&self, text: &str, nvcc: &Path, cuobjdump: Option<&Path>) -> Result<Artifact, BuildError> {
        let input = BuildInput {
            text,
            kernel: KERNEL,
            prelude: self.prelude,
            target: "sm_100a",
            architecture: "100a",
            opcode: "UTCOMMA",
            stages: Some(STAGES),
            translation: self.translation,
        };
        let tools = BuildTools {
            nvcc,
            include: vec!["/opt/cuda/include".into(), "include with a space; $(touch x)".into()],
            libraries: vec!["/opt/cuda/lib".into()],
            cuobjdump,
            environment: ToolEnvironment::from_process(),
        };
        build(
            &input,
            &tools,
            &BuildOptions {
                time_limit: self.limit,
                temp_dir: Some(self.temp.path().to_owned()),
                launcher: self.launcher.clone(),
                debug: self.debug,
                cancel: self.cancel.clone(),
            },
        )
    }

    fn good(&self) -> Artifact {
        self.build(&source("compile", GOOD_SASS, &metadata(), "")).unwrap()
    }

    /// Returns the error of a build, and checks that the build left nothing behind.
    #[track_caller]
    fn fail(&self, text: &str) -> BuildError {
        let error = self.build(text).expect_err("this build must fail");
        self.assert_empty();
        error
    }

    #[track_caller]
    fn assert_empty(&self) {
        let left: Vec<_> =
            fs::read_dir(self.temp.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

#[track_caller]
fn check(error: &BuildError, code: &str, fault: BuildFault, words: &str) {
    assert_eq!((error.code(), error.fault()), (code, fault), "{error}");
    assert!(error.to_string().contains(words), "`{error}` does not say `{words}`");
    assert!(!error.to_string().ends_with('.'));
}

/// Processes whose command line holds the token.
fn processes(token: &str) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .filter(|line| line.contains(token))
        .collect()
}

#[track_caller]
fn assert_no_processes(token: &str) {
    // A killed process takes a moment to vanish.
    let deadline = Instant::now() + Duration::from_secs(2);
    while !processes(token).is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(processes(token), Vec::<String>::new());
}

#[test]
fn a_kernel_is_built_and_its_resources_are_read_back() {
    let bench = Bench::new();
    let artifact = bench.good();
    let resources = artifact.resources();
    assert_eq!((resources.registers, resources.barriers, resources.stack), (Some(168), Some(8), Some(0)));
    assert_eq!((resources.spill_stores, resources.spill_loads), (Some(0), Some(0)));
    assert_eq!((resources.shared_memory, resources.threads, resources.stages), (223_232, 256, Some(STAGES)));
    let opcodes = [("UTCCP.T.S.4x32dp128bit".to_owned(), 1), ("UTCOMMA.4X".to_owned(), 2)];
    assert_eq!((&resources.opcodes, resources.instructions, resources.traps), (&opcodes.into(), 4, 0));
    assert_eq!(resources.library_bytes, fs::metadata(artifact.library()).unwrap().len());
    assert!(resources.compile_time > Duration::ZERO);
    assert!(
        artifact.log().contains("Used 168 registers") && artifact.source().starts_with("// behave: compile")
    );
    assert_eq!(artifact.kernel(), artifact.metadata().kernel);
}

#[test]
fn the_files_of_a_kernel_live_exactly_as_long_as_it_is_used() {
    let bench = Bench::new();
    let artifact = bench.good();
    let kernel = Kernel::load(&artifact).unwrap();
    drop(artifact);
    assert!(kernel.path().exists());
    let clone = kernel.clone();
    drop(kernel);
    assert_eq!(clone.metadata().stages, Some(STAGES));
    drop(clone);
    bench.assert_empty();
}

#[test]
fn a_dump_leaves_source_library_and_log_and_can_be_repeated() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a/b");
    let artifact = bench.good();
    let paths = artifact.dump(&target).unwrap();
    let loaded = open(&paths[1]).unwrap();
    assert_eq!(artifact.dump(&target).unwrap(), paths);
    assert_eq!(
        paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect::<Vec<_>>(),
        ["cu", "so", "log"].map(|extension| format!("{KERNEL}_00ff.{extension}"))
    );
    assert_eq!(fs::read_to_string(&paths[0]).unwrap(), artifact.source());
    assert_eq!(fs::read_to_string(&paths[2]).unwrap(), artifact.log());
    assert_eq!(fs::read_dir(&target).unwrap().count(), 3);
    drop(artifact);
    bench.assert_empty();
    assert_eq!(loaded.metadata().kernel, KERNEL);
}

#[test]
fn the_compiler_gets_an_argument_vector_and_no_flags_from_outside() {
    let bench = Bench::new();
    let error = bench.fail("// behave: arguments\n");
    let arguments: Vec<_> =
        error.log().unwrap().lines().filter_map(|line| line.strip_prefix("argument: ")).collect();
    for flag in fourfold_executor::FLAGS {
        assert!(arguments.contains(&flag), "{flag} is missing in {arguments:?}");
    }
    assert!(arguments.contains(&"-gencode=arch=compute_100a,code=sm_100a"));
    // Through neutral link names, in the given order.
    let arguments = arguments.join(" ");
    assert!(arguments.contains(" -I links/include0 -I links/include1 -L links/library0 "), "{arguments}");
    assert!(arguments.ends_with(" -o kernel.so -include kernel.cu -x=cu /dev/null"), "{arguments}");
    assert!(!error.log().unwrap().contains("with a space"), "{error:?}");
    let variables: Vec<_> =
        error.log().unwrap().lines().filter_map(|line| line.strip_prefix("variable: ")).collect();
    // A shell adds the last four.
    let ours = ["LC_ALL=C", "TMPDIR=tmp", "PATH=/usr/local/bin:/usr/bin:/bin:"];
    let expected = |variable: &&str| {
        ours.iter().chain(&["PWD=", "OLDPWD=", "SHLVL=", "_="]).any(|name| variable.starts_with(name))
    };
    assert!(variables.iter().all(expected), "{variables:?}");
    assert!(
        ours.iter().all(|name| variables.iter().any(|variable| variable.starts_with(name))),
        "{variables:?}"
    );
}

#[test]
fn a_launcher_gets_one_plain_compilation_and_a_missing_one_is_named() {
    let bench = Bench { launcher: Some(stand_in("launcher.sh")), ..Bench::new() };
    let artifact = bench.good();
    let launched: Vec<_> =
        artifact.log().lines().filter_map(|line| line.strip_prefix("launched: ")).collect();
    let [command] = launched[..] else { panic!("{launched:?}") };
    assert!(command.starts_with(&format!("{} -std=c++17", stand_in("nvcc.sh").display())), "{command}");
    assert!(command.ends_with(" -c -o kernel.o kernel.cu"), "{command}");
    for flag in ["--time", "-shared", "-Xlinker"] {
        assert!(!command.contains(flag), "{command}");
    }
    let phases: Vec<_> = artifact.resources().phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!((phases.as_slice(), artifact.resources().registers), (&["launcher", "link"][..], Some(168)));
    // A server that the launcher starts outlives the build.
    let own = std::env::var("TMPDIR").unwrap_or_else(|_| "unset".to_owned());
    assert!(artifact.log().contains(&format!("TMPDIR of the launcher: {own}\n")), "{}", artifact.log());
    // The launcher recognizes a source again only in the same folder.
    let place = |artifact: &Artifact| {
        let log = artifact.log();
        log.lines().find_map(|line| line.strip_prefix("in the folder ")).map(str::to_owned).unwrap()
    };
    let first = place(&artifact);
    assert_ne!(place(&bench.good()), first, "that one is in use");
    drop(artifact);
    assert_eq!(place(&bench.good()), first);
    let bench = Bench { launcher: Some("/nowhere/sccache".into()), ..Bench::new() };
    let error = bench.fail(&source("compile", GOOD_SASS, &metadata(), ""));
    check(&error, "launcher_missing", BuildFault::Toolchain, "/nowhere/sccache");
    let bench = Bench { launcher: Some("fourfold-no-such-launcher".into()), ..Bench::new() };
    let error = bench.fail(&source("compile", GOOD_SASS, &metadata(), ""));
    check(&error, "launcher_missing", BuildFault::Toolchain, "fourfold-no-such-launcher");
}

/// Makes the compiler use two passes.
const PASSES: &str = "// FOURFOLD_DEVICE FOURFOLD_HOST\n";

#[test]
fn a_source_is_compiled_in_two_passes_and_whole_where_that_fails() {
    let bench = Bench::new();
    let artifact = bench.build(&source("passes", &format!("{PASSES}{GOOD_SASS}"), &metadata(), "")).unwrap();
    assert_eq!(artifact.resources().registers, Some(96));
    let phases: Vec<_> = artifact.resources().phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(phases, ["device", "host", "link"]);
    let library = fs::read(artifact.library()).unwrap();
    assert!(library.windows(9).any(|bytes| bytes == b"the image"), "the kernel's binary is in the library");
    let text = source("no_passes", &format!("{PASSES}{GOOD_SASS}"), &metadata(), "");
    let artifact = bench.build(&text).unwrap();
    let words = ["two-pass compilation failed: kernel.cu(3): error: this pass", "compiled whole"];
    assert!(words.iter().all(|words| artifact.log().contains(words)), "{}", artifact.log());
    let launched = Bench { launcher: Some(stand_in("launcher.sh")), ..Bench::new() }.build(&text).unwrap();
    assert!(!launched.log().contains("two-pass compilation") && launched.log().contains("compiled whole"));
}

#[test]
fn device_code_is_translated_and_never_compiled_without_it() {
    let with = |translate| Bench {
        prelude: Some("// prelude"),
        translation: Some(Translation { from: "99a", version: 1, translate }),
        ..Bench::new()
    };
    let metadata = metadata().replace(r#""emulated":false"#, r#""emulated":true"#);
    let text = |behave| source(behave, &format!("{PASSES}{GOOD_SASS}"), &metadata, "");
    let bench = with(|kernel, library| Ok(format!("{kernel}behind {library}")));
    let artifact = bench.build(&text("translated")).unwrap();
    assert_eq!(artifact.resources().registers, Some(96));
    let library = fs::read(artifact.library()).unwrap();
    let translated = b"PTX of the kernel\nbehind PTX of the library";
    assert!(library.windows(translated.len()).any(|bytes| bytes == translated), "the kernel's binary");
    // A launcher would compile the whole source.
    let launched =
        Bench { launcher: Some(stand_in("launcher.sh")), ..with(|kernel, _| Ok(kernel.to_owned())) };
    launched.build(&text("translated")).unwrap();
    let error = with(|_, _| Err("line 7: unknown opcode tcgen05.shift".to_owned())).fail(&text("translated"));
    check(
        &error,
        "not_emulated",
        BuildFault::OurBug,
        "cannot be emulated: line 7: unknown opcode tcgen05.shift",
    );
    let error = with(|kernel, _| Ok(kernel.to_owned())).fail(&text("no_ptx"));
    check(&error, "compile_error", BuildFault::OurBug, "kernel.cu(5): error: no PTX");
    assert!(!error.log().unwrap().contains("compiled whole"), "{error:?}");
}

#[test]
fn a_pass_that_fails_stops_the_other_and_a_time_limit_or_a_wish_stops_both() {
    let token = format!("fourfold-passes-{}", std::process::id());
    let text =
        |behave| source(&format!("{behave} {token}"), &format!("{PASSES}{GOOD_SASS}"), &metadata(), "");
    let started = Instant::now();
    let whole = Bench::new().build(&text("stuck_pass")).unwrap();
    assert!(whole.log().contains("two-pass compilation failed: kernel.cu(4): error: no host"));
    let bench = Bench { limit: Duration::from_secs(1), ..Bench::new() };
    check(&bench.fail(&text("hang_in_passes")), "compile_timeout", BuildFault::ResourceLimit, "limit of 1 s");
    let cancel = Cancel::new();
    let bench = Bench { cancel: Some(cancel.clone()), ..Bench::new() };
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            cancel.cancel();
        });
        let error = bench.fail(&text("hang_in_passes"));
        assert!(matches!(error, BuildError::Cancelled { .. }), "{error}");
    });
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_no_processes(&token);
}

#[test]
fn a_disassembler_that_is_stopped_or_lacks_room_says_nothing_lasting_about_the_kernel() {
    use std::os::unix::fs::PermissionsExt;
    let inspected_by = |script: &str, limit: Duration| {
        let bench = Bench { limit, ..Bench::new() };
        let folder = tempfile::tempdir().unwrap();
        let cuobjdump = folder.path().join("cuobjdump");
        fs::write(&cuobjdump, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&cuobjdump, fs::Permissions::from_mode(0o755)).unwrap();
        let text = source("compile", GOOD_SASS, &metadata(), "");
        let error = bench.build_with(&text, &stand_in("nvcc.sh"), Some(&cuobjdump)).unwrap_err();
        bench.assert_empty();
        error
    };
    let limit = Duration::from_secs(60);
    let resources = BuildFault::ResourceLimit;
    let error = inspected_by("echo working; kill -KILL $$", limit);
    check(
        &error,
        "out_of_memory",
        resources,
        "`cuobjdump` was terminated by signal 9; its last output: working",
    );
    assert!(!error.is_lasting());
    let error = inspected_by("kill -SEGV $$", limit);
    check(&error, "compiler_crashed", BuildFault::Toolchain, "signal 11");
    assert!(!error.is_lasting());
    for (words, code) in [("No space left on device", "disk_full"), ("out of memory", "out_of_memory")] {
        let error = inspected_by(&format!("echo 'cuobjdump fatal   : {words}'; exit 1"), limit);
        check(&error, code, resources, words);
        assert!(!error.is_lasting());
    }
    let error = inspected_by("echo 'cuobjdump fatal   : no cubin'; exit 1", limit);
    check(&error, "inspect_error", BuildFault::Toolchain, "no cubin");
    assert!(error.is_lasting() && error.log().unwrap().contains("no cubin"));
    let error = inspected_by("exec sleep 60", Duration::from_secs(2));
    check(&error, "compile_timeout", resources, "`cuobjdump` exceeded the time limit of 2 s");
}

#[test]
fn what_is_wrong_with_a_binary_comes_with_the_compiler_s_log() {
    let bench = Bench::new();
    for (metadata, sass, defines) in [
        (metadata(), "// sass: EXIT\n", ""),
        (metadata().replace("sm_100a", "sm_120a"), GOOD_SASS, ""),
        (metadata().replace("\"threads\":256,", ""), GOOD_SASS, ""),
        (metadata(), GOOD_SASS, "#define ABI 7"),
    ] {
        let error = bench.fail(&source("compile", sass, &metadata, defines));
        assert!(error.log().is_some_and(|log| log.contains("Used 168 registers")), "{error}");
    }
}

#[test]
fn a_library_that_was_changed_after_its_build_is_not_loaded() {
    let bench = Bench::new();
    let artifact = bench.good();
    let mut bytes = fs::read(artifact.library()).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(artifact.library(), bytes).unwrap();
    let error = Kernel::load(&artifact).unwrap_err();
    assert_eq!(error.code(), "library_changed", "{error}");
}

#[test]
fn a_kernel_that_is_not_what_its_library_launches_is_refused() {
    let bench = Bench::new();
    let named = |entry: &str| metadata().replace("\"hash\"", &format!("\"entry\":\"{entry}\",\"hash\""));
    bench.build(&source("compile", GOOD_SASS, &named("_ZN7cutlass8MMA"), "")).unwrap();
    let error = bench.fail(&source("compile", GOOD_SASS, &named("_ZN8fourfold6kernelILm3072E"), ""));
    let words = "entry function is _ZN7cutlass8MMA_AtomIJNS4_17SM100_MMA_MXF4_SSE";
    check(&error, "metadata_mismatch", BuildFault::OurBug, words);
    // With several kernels, each must exist.
    let (here, missing) = ("_ZN7cutlass8MMA_Atom", "_ZN8fourfold6kernelILi16E");
    bench.build(&source("compile", GOOD_SASS, &named(&format!("{here} {here}")), "")).unwrap();
    for both in [format!("{here} {missing}"), format!("{missing} {here}")] {
        let error = bench.fail(&source("compile", GOOD_SASS, &named(&both), ""));
        check(&error, "metadata_mismatch", BuildFault::OurBug, words);
        assert!(error.to_string().contains(missing), "{error}");
    }
}

#[test]
fn debug_mode_adds_flags() {
    let bench = Bench { debug: true, ..Bench::new() };
    let error = bench.fail("// behave: arguments\n");
    for flag in ["-lineinfo", "-DCUTLASS_DEBUG_TRACE_LEVEL=1", "-DNDEBUG"] {
        assert!(error.log().unwrap().contains(&format!("argument: {flag}\n")), "{flag}");
    }
    assert!(!Bench::new().fail("// behave: arguments\n").log().unwrap().contains("-lineinfo"));
}

#[test]
fn what_the_compiler_says_first_is_reported_with_whose_fault_it_is() {
    let bench = Bench::new();
    let fail = |behave| bench.fail(&format!("// behave: {behave}\n"));
    let words = "cutlass/gemm/device/gemm.h: No such file or directory";
    check(&fail("missing_header"), "compile_error", BuildFault::Toolchain, words);
    check(&fail("wrong_flag"), "compile_error", BuildFault::Toolchain, "Unknown option '--bogus-flag'");
    let words = "kernel.cu(40): error: identifier \"frobnicate\" is undefined";
    check(&fail("source_error"), "compile_error", BuildFault::OurBug, words);
    check(&fail("silent"), "compile_error", BuildFault::Toolchain, "no output, exit code 3");
}

#[test]
fn a_compiler_that_hangs_is_stopped_with_its_children() {
    let token = format!("fourfold-hang-{}", std::process::id());
    let bench = Bench { limit: Duration::from_secs(1), ..Bench::new() };
    let started = Instant::now();
    let error = bench.fail(&format!("// behave: hang {token}\n"));
    assert!(started.elapsed() < Duration::from_secs(10));
    check(
        &error,
        "compile_timeout",
        BuildFault::ResourceLimit,
        "limit of 1 s; its last output: still thinking",
    );
    assert_no_processes(&token);
}

#[test]
fn a_child_that_outlives_the_compiler_is_stopped() {
    let token = format!("fourfold-daemon-{}", std::process::id());
    let bench = Bench::new();
    let started = Instant::now();
    let text = source(&format!("daemon {token}"), GOOD_SASS, &metadata(), "");
    assert_eq!(bench.build(&text).unwrap().resources().registers, None);
    assert!(started.elapsed() < Duration::from_secs(30));
    assert_no_processes(&token);
    bench.assert_empty();
}

#[test]
fn a_compiler_that_crashes_is_told_from_one_that_ran_out_of_memory() {
    let bench = Bench::new();
    let error = bench.fail("// behave: crash\n");
    check(&error, "compiler_crashed", BuildFault::Toolchain, "signal 11; its last output: about to crash");
    assert!(matches!(error, BuildError::Signal { signal: 11, .. }));
    let error = bench.fail("// behave: child_crash\n");
    check(&error, "compiler_crashed", BuildFault::Toolchain, "'cicc' died due to signal 11");
    check(&bench.fail("// behave: killed\n"), "out_of_memory", BuildFault::ResourceLimit, "signal 9");
}

#[test]
fn an_error_in_the_middle_of_a_hundred_megabytes_is_found_and_the_log_stays_small() {
    let bench = Bench::new();
    let error = bench.fail("// behave: flood\n");
    check(&error, "compile_error", BuildFault::OurBug, "kernel.cu(7): error: lost in the middle");
    assert!(error.log().unwrap().len() < 1 << 20);
}

#[test]
fn success_without_a_library_is_an_error() {
    let bench = Bench::new();
    let fail = |behave| bench.fail(&format!("// behave: {behave}\n"));
    check(&fail("nothing"), "no_output", BuildFault::Toolchain, "wrote no library");
    check(&fail("empty"), "no_output", BuildFault::Toolchain, "wrote an empty library");
    check(&fail("garbage"), "no_output", BuildFault::Toolchain, "not an ELF library");
}

#[test]
fn a_library_that_cannot_be_loaded_says_why() {
    let bench = Bench::new();
    let text = format!("// behave: truncated_elf\n{GOOD_SASS}");
    let error = bench.fail(&text);
    check(&error, "dlopen_error", BuildFault::Toolchain, "kernel.so");
    assert!(
        matches!(&error, BuildError::Load { source: LoadError::Open { reason, .. }, .. } if reason.contains(": ")),
        "{error:?}"
    );
}

#[test]
fn a_missing_tool_is_named() {
    let bench = Bench::new();
    let cuobjdump = stand_in("cuobjdump.sh");
    let text = source("compile", GOOD_SASS, &metadata(), "");
    let error = bench.build_with(&text, Path::new("/nowhere/nvcc"), Some(&cuobjdump)).unwrap_err();
    check(&error, "toolchain_missing", BuildFault::Toolchain, "cannot find `nvcc` at `/nowhere/nvcc`");
    let error = bench.build_with(&text, Path::new("fourfold-no-such-nvcc"), Some(&cuobjdump)).unwrap_err();
    check(&error, "toolchain_missing", BuildFault::Toolchain, "fourfold-no-such-nvcc");
    let error = bench.build_with(&text, &stand_in("nvcc.sh"), None).unwrap_err();
    check(&error, "toolchain_missing", BuildFault::Toolchain, "cannot find `cuobjdump`");
    let error = bench.build_with(&text, &stand_in("kernel.c"), Some(&cuobjdump)).unwrap_err();
    check(&error, "toolchain_unusable", BuildFault::Environment, "cannot run `nvcc`");
    bench.assert_empty();
}

#[test]
fn a_folder_that_cannot_be_used_is_the_machine_s_fault() {
    let bench = Bench::new();
    let options =
        BuildOptions { temp_dir: Some(bench.temp.path().join("absent")), ..BuildOptions::default() };
    let (nvcc, cuobjdump) = (stand_in("nvcc.sh"), stand_in("cuobjdump.sh"));
    let input = BuildInput {
        text: "",
        kernel: KERNEL,
        prelude: None,
        target: "sm_100a",
        architecture: "100a",
        opcode: "UTCOMMA",
        stages: None,
        translation: None,
    };
    let tools = BuildTools {
        nvcc: &nvcc,
        include: vec![],
        libraries: vec![],
        cuobjdump: Some(&cuobjdump),
        environment: ToolEnvironment::default(),
    };
    let error = build(&input, &tools, &options).unwrap_err();
    check(&error, "disk", BuildFault::Environment, "cannot create a temporary folder");
}

#[test]
fn a_kernel_without_its_matrix_instruction_is_refused() {
    let bench = Bench::new();
    let error =
        bench.fail(&source("compile", "// sass: HMMA.16816 R4\n// sass: BPT.TRAP 0x1\n", &metadata(), ""));
    check(
        &error,
        "no_mma",
        BuildFault::OurBug,
        "has no UTCOMMA instruction; its matrix instructions: HMMA.16816",
    );
    let error = bench.fail(&source("compile", "", &metadata(), ""));
    check(&error, "no_mma", BuildFault::OurBug, "its matrix instructions: none");
    let error = bench.fail(&source("compile", "// sass_fails\n", &metadata(), ""));
    check(
        &error,
        "inspect_error",
        BuildFault::Toolchain,
        "'kernel.so' is not in 'cubin' format (exit code 1)",
    );
}

#[test]
fn an_emulated_kernel_is_built_with_its_prelude_and_refused_with_a_trap() {
    let bench = Bench { prelude: Some("// what comes first\n"), ..Bench::new() };
    let emulated = metadata().replace("\"emulated\":false", "\"emulated\":true");
    let artifact = bench.build(&source("compile", GOOD_SASS, &emulated, "")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let paths = artifact.dump(folder.path()).unwrap();
    assert!(paths[3].ends_with(format!("{KERNEL}_00ff.emulated.cuh")), "{paths:?}");
    assert_eq!(fs::read_to_string(&paths[3]).unwrap(), "// what comes first\n");
    drop(artifact);
    let arguments = bench.fail("// behave: arguments\n");
    assert!(arguments.log().unwrap().contains("argument: -include\nargument: prelude.cuh\n"));
    let trap = format!("{GOOD_SASS}// sass: BPT.TRAP 0x1\n");
    let error = bench.fail(&source("compile", &trap, &metadata(), ""));
    check(&error, "not_emulated", BuildFault::OurBug, "contains 1 traps");
    let native = Bench::new().build(&source("compile", &trap, &metadata(), "")).unwrap();
    assert_eq!(native.resources().traps, 1, "a native kernel may hold assertions");
    // A prelude requires metadata of an emulated kernel.
    let error = bench.fail(&source("compile", GOOD_SASS, &metadata(), ""));
    let words = "kind is native, not emulated as planned";
    check(&error, "metadata_mismatch", BuildFault::OurBug, words);
    let error = Bench::new().fail(&source("compile", GOOD_SASS, &emulated, ""));
    check(&error, "metadata_mismatch", BuildFault::OurBug, "kind is emulated");
}

#[test]
fn a_kernel_that_is_not_what_was_planned_is_refused() {
    let bench = Bench::new();
    let fail =
        |from: &str, to: &str| bench.fail(&source("compile", GOOD_SASS, &metadata().replace(from, to), ""));
    let words = "number of stages is 4, not 5 as planned";
    check(&fail("\"stages\":5", "\"stages\":4"), "metadata_mismatch", BuildFault::OurBug, words);
    check(
        &fail("\"stages\":5,", ""),
        "metadata_mismatch",
        BuildFault::OurBug,
        "number of stages is not given",
    );
    check(&fail("sm_100a", "sm_120a"), "metadata_mismatch", BuildFault::OurBug, "target is sm_120a");
    check(&fail(KERNEL, "another"), "metadata_mismatch", BuildFault::OurBug, "name is another");
    check(&fail("\"threads\":256,", ""), "bad_metadata", BuildFault::OurBug, "missing field `threads`");
    check(&fail("\"emulated\":false,", ""), "bad_metadata", BuildFault::OurBug, "missing field `emulated`");
    for list in ["extents", "operands", "scalars", "outputs"] {
        let words = format!("missing field `{list}`");
        let error = fail(&format!("\"{list}\":["), "\"later\":[");
        check(&error, "bad_metadata", BuildFault::OurBug, &words);
    }
    let without_roles = fail(&format!(",{ROLES}"), "");
    check(&without_roles, "bad_metadata", BuildFault::OurBug, "missing field `extents`");
    let nameless = fail("\"role\":\"sfa\",", "");
    check(&nameless, "bad_metadata", BuildFault::OurBug, "missing field `role`");
    let untyped = fail(",\"element\":\"f8E4M3FN\"", "");
    check(&untyped, "bad_metadata", BuildFault::OurBug, "missing field `element`");
    check(
        &fail(&format!("\"abi\":{ABI_VERSION}"), "\"abi\":1"),
        "bad_metadata",
        BuildFault::OurBug,
        "states kernel ABI version 1",
    );
}

#[test]
fn the_version_is_checked_before_any_other_symbol() {
    let bench = Bench::new();
    for version in [4, 7] {
        let defines = format!("#define OLD\n#define ABI {version}");
        let error = bench.fail(&source("compile", GOOD_SASS, &metadata(), &defines));
        check(
            &error,
            "abi_mismatch",
            BuildFault::OurBug,
            &format!("has kernel ABI version {version}, but version 6 is required"),
        );
        assert!(matches!(
            error,
            BuildError::Load { source: LoadError::AbiMismatch { found, expected: 6, .. }, .. }
                if found == version
        ));
    }
    let error = bench.fail(&source("compile", GOOD_SASS, &metadata(), "#define OLD"));
    check(&error, "missing_symbol", BuildFault::OurBug, "lacks the symbol `fourfold_metadata`");
    let error = bench.fail(&format!("// behave: compile\n{GOOD_SASS}int unrelated(void) {{ return 1; }}\n"));
    check(&error, "missing_symbol", BuildFault::OurBug, "lacks the symbol `fourfold_abi_version`");
}

#[test]
fn a_missing_or_broken_library_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absent.so");
    let error = open(&path).unwrap_err();
    assert!(matches!(&error, LoadError::NotFound { path: found } if *found == path));
    assert_eq!(error.code(), "library_missing");
    fs::write(&path, "not a library").unwrap();
    let error = open(&path).unwrap_err();
    assert_eq!(error.code(), "dlopen_error");
    assert!(
        error.to_string().contains("invalid ELF header") || error.to_string().contains("too short"),
        "{error}"
    );
}

#[test]
fn a_kernel_answers_without_a_gpu() {
    let bench = Bench::new();
    let kernel = Kernel::load(&bench.good()).unwrap();
    assert_eq!((kernel.abi_version(), kernel.metadata().tile), (6, [128, 128, 256]));
    let device = Device { sm_count: 148, max_active_clusters: 3 };
    let extents = Extents::of_product(2, 37, 136, 96);
    let (mut operands, mut outputs) = ([0; MAX_OPERANDS], [0; MAX_OUTPUTS]);
    (operands[1], operands[3], operands[31]) = (2 * 128 * 8, 2 * 256 * 8, 31);
    (outputs[0], outputs[7]) = (2 * 37 * 136 * 4, 7);
    let expected = Requirements { workspace: 148 * 64 + 3, operands, outputs };
    assert_eq!(kernel.query(&device, &extents), Ok(expected));
    let refusal = kernel.query(&device, &Extents::of_product(2, -1, 136, 96)).unwrap_err();
    assert_eq!(refusal, Status { code: Status::EXTENT, message: "m is negative".to_owned() });
    assert_eq!(refusal.to_string(), "the kernel returned status 100 (extent_out_of_range): m is negative");
    let refusal = kernel.query(&device, &Extents::of_product(2, 37, 136, 48)).unwrap_err();
    assert_eq!(refusal.to_string(), "the kernel returned status 11 (invalid)");
    let endless = kernel.query(&device, &Extents::of_product(2, 37, 136, 49)).unwrap_err();
    assert!(endless.message.bytes().all(|byte| byte == b'x') && endless.message.len() >= 1000);
    let refusal = kernel.query(&device, &Extents::new(&[2, 37, 96])).unwrap_err();
    assert_eq!((refusal.code, refusal.message.as_str()), (Status::EXTENT, "the extents are L, M, N, K"));
    // ((130/128)*2 + 5/4)*512 + (130%32)*16 + ((130%128)/32)*4 + 5%4, after one matrix of 256 x 8 scales.
    let expected = 256 * 8 + (2 + 1) * 512 + 2 * 16 + 1;
    assert_eq!(kernel.scale_offset("sfb", &extents, 130, 5, 1), Some(expected));
    assert_eq!(kernel.scale_offset("sfa", &extents, 36, 4, 1), Some(128 * 8 + 512 + 4 * 16 + 4));
    for role in ["a", "y0", "", "sfa ", "SFA", "sf\0a"] {
        assert_eq!(kernel.scale_offset(role, &extents, 0, 0, 0), None, "{role:?} has no scales");
    }
}

#[test]
fn a_kernel_without_scales_lacks_the_function_for_them() {
    let bench = Bench::new();
    let artifact = bench.build(&source("compile", GOOD_SASS, &metadata(), "#define NO_SCALES")).unwrap();
    let kernel = Kernel::load(&artifact).unwrap();
    let extents = Extents::of_product(1, 37, 136, 96);
    for role in ["sfa", "sfb", "y1"] {
        assert_eq!(kernel.scale_offset(role, &extents, 0, 0, 0), None);
    }
    // The rest of the library works.
    let device = Device { sm_count: 3, max_active_clusters: 0 };
    assert_eq!(kernel.query(&device, &extents).unwrap().workspace, 3 * 64);
    assert_eq!(kernel.grid(&device, &extents), Ok(None));
}

#[test]
fn a_kernel_describes_its_call_by_role() {
    let bench = Bench::new();
    let kernel = Kernel::load(&bench.good()).unwrap();
    let metadata = kernel.metadata();
    let role = |name: &str, element: &str, extents: Option<&[&str]>| Role {
        role: name.to_owned(),
        element: element.to_owned(),
        extents: extents.map(|extents| extents.iter().map(|extent| (*extent).to_owned()).collect()),
    };
    assert_eq!(metadata.extents, ["L", "M", "N", "K"]);
    let expected = [
        role("a", "f4E2M1FN", Some(&["L", "M", "K"])),
        role("sfa", "f8E4M3FN", None),
        role("b", "f4E2M1FN", Some(&["L", "N", "K"])),
        role("sfb", "f8E4M3FN", None),
    ];
    assert_eq!(metadata.operands, expected);
    assert_eq!(metadata.outputs, [role("y0", "f32", Some(&["L", "M", "N"]))]);
    assert!(metadata.scalars.is_empty());

    let extents = Extents::of_product(2, 37, 136, 96);
    assert_eq!(extents.values(), [2, 37, 136, 96]);
    assert_eq!(["K", "L", "H"].map(|name| metadata.extent(name, &extents)), [Some(96), Some(2), None]);
    assert_eq!(metadata.elements(&metadata.operands[0], &extents), Some(2 * 37 * 96));
    assert_eq!(metadata.elements(&metadata.operands[1], &extents), None, "the kernel says the bytes");
    assert_eq!(metadata.elements(&role("x0", "f32", Some(&[])), &extents), Some(1));
    assert_eq!(metadata.elements(&role("x0", "f32", Some(&["H"])), &extents), None);
    for m in [-1, i64::MAX] {
        assert_eq!(metadata.elements(&metadata.operands[0], &Extents::of_product(2, m, 136, 96)), None);
    }
    let shorter = Extents::new(&[2, 37, 136]);
    assert_eq!((metadata.extent("K", &shorter), metadata.extent("N", &shorter)), (None, Some(136)));
    let is_empty = |l, m, n, k| metadata.is_empty(&Extents::of_product(l, m, n, k));
    assert_eq!([is_empty(0, 37, 1, 1), is_empty(1, 0, 1, 1), is_empty(1, 1, 0, 0)], [true, true, false]);
}

#[test]
fn a_call_has_room_for_so_many_addresses_and_no_more() {
    let (read, written) = ([std::ptr::null(); MAX_OPERANDS + 1], [std::ptr::null_mut(); MAX_OUTPUTS + 1]);
    let addresses = |operands: usize, scalars: usize, outputs: usize| {
        Addresses::new(&read[..operands], &read[..scalars], &written[..outputs])
    };
    assert!(addresses(0, 0, 0).is_some());
    assert!(addresses(MAX_OPERANDS, MAX_SCALARS, MAX_OUTPUTS).is_some());
    assert!(addresses(MAX_OPERANDS + 1, 0, 0).is_none());
    assert!(addresses(0, MAX_SCALARS + 1, 0).is_none());
    assert!(addresses(0, 0, MAX_OUTPUTS + 1).is_none());
    assert_eq!(Extents::new(&[3; MAX_EXTENTS]).values(), [3; MAX_EXTENTS]);
    assert!(std::panic::catch_unwind(|| Extents::new(&[3; MAX_EXTENTS + 1])).is_err());
}

#[test]
fn a_prepared_call_outlives_its_kernel_s_handle_and_is_destroyed_once() {
    let bench = Bench::new();
    let kernel = Kernel::load(&bench.good()).unwrap();
    let device = Device { sm_count: 148, max_active_clusters: 0 };
    let extents = Extents::of_product(1, 91, 128, 64);
    let null = std::ptr::null_mut();
    let (mut first, mut second, mut marks) = (0i32, 0i32, [0i32; 3]);
    let (mut scales, mut peak) = (0i32, 0i32);
    let (alpha, beta) = (2f32, 3f32);
    let operands =
        [&raw mut marks[0], &raw mut marks[1], &raw mut marks[2]].map(|mark| mark.cast_const().cast());
    let scalars = [(&raw const alpha).cast(), (&raw const beta).cast()];
    let [others, d] = [[&raw mut scales, &raw mut peak], [&raw mut first, &raw mut second]];
    let addresses = |d: *mut i32| {
        Addresses::new(&operands, &scalars, &[d.cast(), others[0].cast(), others[1].cast()]).unwrap()
    };
    let at_first = addresses(d[0]);
    // SAFETY: everything that the stand-in reads and writes is live until the end. It reads two f32, and writes an i32 to
    // each output on launch and to each operand on destruction.
    unsafe {
        let refusal = kernel.prepare(&device, &extents, &at_first, null, 0, null).unwrap_err();
        assert_eq!((refusal.code, refusal.name()), (Status::WORKSPACE, "workspace_too_small"));
        let none = Extents::of_product(1, 91, 128, 7);
        let nothing = kernel.prepare(&device, &none, &at_first, null, 64, null).unwrap_err();
        assert_eq!(nothing.code, Status::EXCEPTION);

        let mut call = kernel.prepare(&device, &extents, &at_first, null, 64, null).unwrap();
        drop(kernel);
        call.launch(null).unwrap();
        call.launch(null).unwrap();
        let without = addresses(std::ptr::null_mut());
        assert_eq!(call.update_addresses(&without).unwrap_err().message, "D is missing");
        call.update_addresses(&addresses(d[1])).unwrap();
        call.launch(null).unwrap();
        assert_eq!(call.kernel().metadata().threads, 256);
        let destroyed_early = (&raw const marks).read();
        drop(call);
        assert_eq!((destroyed_early, first, second), ([0; 3], 2, 3));
        assert_eq!((&raw const marks).read(), [-3, -2, -1], "every operand in its place");
        // Each scalar by its position: 2 and 2 * 3.
        assert_eq!((scales, peak), (30 + 8, 60 + 8), "every output and scalar in its place");
    }
    bench.assert_empty();
}
