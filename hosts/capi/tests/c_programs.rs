//! C and C++ programs against the header: they compile with all warnings as errors, agree with the library on the
//! layout of structs, and run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fourfold_capi::abi;
use tempfile::TempDir;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixture(name: &str) -> PathBuf {
    package().join("../../fixtures").join(name)
}

/// The folder of the library under its installed names, to link to and to load from.
fn library() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    // Test binaries are in `deps`, and so is the library that cargo built for them; its copy is one level up.
    let binary = std::env::current_exe().expect("a path");
    let deps = binary.parent().expect("a folder");
    let built = deps.join("libfourfold_capi.so");
    assert!(built.is_file(), "{} is built before the tests", built.display());
    for name in ["libfourfold.so", "libfourfold.so.1"] {
        std::os::unix::fs::symlink(&built, folder.path().join(name)).expect("a link");
    }
    folder
}

/// The languages, with their compilers.
const LANGUAGES: [(&str, &[&str]); 2] =
    [("cc", &["-std=c11"]), ("c++", &["-x", "c++", "-std=c++17", "-Wno-deprecated"])];

const WARNINGS: [&str; 7] =
    ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"];

fn compile(compiler: usize, source: &str, program: &Path, libraries: &[&str]) {
    let (name, flags) = LANGUAGES[compiler];
    let output = Command::new(name)
        .args(flags)
        .args(WARNINGS)
        .arg("-O1")
        .arg("-I")
        .arg(package().join("include"))
        .arg(package().join(source))
        .args(["-x", "none", "-o"])
        .arg(program)
        .args(libraries)
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{name} {source}:\n{}", String::from_utf8_lossy(&output.stderr));
}

fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("a program");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

#[test]
fn structs_have_the_layout_of_the_header() {
    macro_rules! layouts {
        ($($name:ident = $ty:ident.$last:ident)*) => {
            [$((stringify!($name), size_of::<abi::$ty>(), std::mem::offset_of!(abi::$ty, $last))),*]
        };
    }
    let known = layouts! {
        fourfold_version = Version.minor
        fourfold_str = Str.len
        fourfold_option = OptionEntry.value
        fourfold_tensor = TensorView.byte_offset
        fourfold_decision = Decision.message
        fourfold_segment = Segment.name
        fourfold_port = Port.bytes
        fourfold_symbol = SymbolExtent.extent
        fourfold_backend_create_args = BackendCreateArgs.backend
        fourfold_query_support_args = QuerySupportArgs.segment_count
        fourfold_compile_args = CompileArgs.module
        fourfold_module_wait_args = ModuleWaitArgs.reserved
        fourfold_module_info_args = ModuleInfoArgs.compat
        fourfold_execute_args = ExecuteArgs.symbol_count
        fourfold_session_create_args = SessionCreateArgs.session
        fourfold_session_run_args = SessionRunArgs.reserved
        fourfold_prepare_args = PrepareArgs.prepared
        fourfold_launch_args = LaunchArgs.stream
        fourfold_api = Api.prepared_destroy
    };
    let folder = tempfile::tempdir().expect("a folder");
    for language in 0..LANGUAGES.len() {
        let program = folder.path().join("layout");
        compile(language, "tests/layout.c", &program, &[]);
        let printed = succeeds(&mut Command::new(&program));
        let mut printed: HashMap<&str, Vec<usize>> = printed
            .lines()
            .map(|line| {
                let (name, numbers) = line.split_once(' ').expect("a name and numbers");
                (name, numbers.split(' ').map(|number| number.parse().expect("a number")).collect())
            })
            .collect();
        for (name, size, last) in known {
            assert_eq!(printed.remove(name), Some(vec![size, last]), "{name}");
        }
        assert!(printed.is_empty(), "the library does not know {printed:?}");
    }
}

#[test]
fn a_block_of_a_transformer_runs_from_c() {
    let folder = library();
    let places = [fixture("minilm_ffn.fir"), fixture("minilm_ffn0.safetensors")];
    let link = ["-L", folder.path().to_str().expect("a path"), "-lfourfold", "-lm"];
    let mut printed = Vec::new();
    for language in 0..LANGUAGES.len() {
        let program = folder.path().join("minilm");
        compile(language, "examples/minilm.c", &program, &link);
        printed.push(succeeds(Command::new(&program).args(&places).env("LD_LIBRARY_PATH", folder.path())));
    }
    println!("{}", printed[0]);
    assert_eq!(printed[0], printed[1]);
    let lines = |start: &str| printed[0].lines().filter(|line| line.trim_start().starts_with(start)).count();
    assert_eq!((lines("kernel"), lines("device"), lines("fallback")), (7, 5, 0));
    assert_eq!((lines("execute:"), lines("session")), (1, 2));
}

/// Adds the stand-in driver and the stand-in cuBLASLt, whose device memory is host memory.
fn add_stand_ins(folder: &Path) {
    let sources = package().join("../../executor/tests/stand_ins");
    for (source, library, name) in [
        ("libcuda.c", "libcuda.so", "-Wl,-soname,libcuda.so"),
        ("libcublaslt.c", "libcublasLt.so.13", "-Wl,-soname,libcublasLt.so.13"),
    ] {
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-shared", "-fPIC", name, "-o"]).arg(folder.join(library));
        succeeds(compiler.arg(sources.join(source)).arg("-lm"));
    }
    std::os::unix::fs::symlink("libcuda.so", folder.join("libcuda.so.1")).expect("a link");
}

/// Two products, whose intermediate needs a workspace. No kernel has to be built for them.
const CHAIN: &str = "fir 1
func @chain(%x: tensor<[M, 32], bf16>, param %w0: tensor<[48, 32], bf16>, param %w1: tensor<[40, 48], bf16>) {
  %h = mma %x, %w0 : tensor<[M, 48], bf16>
  %y = mma %h, %w1 : tensor<[M, 40], f32>
  return %y
}
";

/// The example of the GPU on the stand-in driver, ready to run.
fn graph_example(folder: &Path, wrapper: &[&str], language: usize) -> Command {
    let (program, chain) = (folder.join("graph"), folder.join("chain.fir"));
    let link = ["-L", folder.to_str().expect("a path"), "-lfourfold", "-lm", "-ldl"];
    compile(language, "examples/graph.c", &program, &link);
    std::fs::write(&chain, CHAIN).expect("a file");
    let mut command = match wrapper {
        [] => Command::new(&program),
        [name, arguments @ ..] => {
            let mut command = Command::new(name);
            command.args(arguments).arg(&program);
            command
        }
    };
    command.arg(&chain).args(["1000", "M=37"]).env("LD_LIBRARY_PATH", folder);
    command.env("FOURFOLD_CUBLASLT", folder.join("libcublasLt.so.13"));
    command
}

#[test]
fn launches_and_graphs_run_from_c() {
    let folder = library();
    add_stand_ins(folder.path());
    for language in 0..LANGUAGES.len() {
        let printed = succeeds(&mut graph_example(folder.path(), &[], language));
        assert!(printed.contains("3 launches in flight: error 0\n"), "{printed}");
        assert!(
            printed.contains("1000 replays of 20 graphs: error 0, free memory changed by 0 bytes"),
            "{printed}"
        );
    }
}

/// Finds leaks and invalid accesses, wherever valgrind is installed.
const VALGRIND: [&str; 5] = [
    "valgrind",
    "--error-exitcode=9",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,indirect",
    "-q",
];

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes half a minute; it is in the second tier")]
fn valgrind_finds_nothing_in_a_run() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("valgrind is not installed");
        return;
    }
    let with_driver = library();
    add_stand_ins(with_driver.path());
    succeeds(&mut graph_example(with_driver.path(), &VALGRIND, 0));
    let folder = library();
    let program = folder.path().join("minilm");
    let link = ["-L", folder.path().to_str().expect("a path"), "-lfourfold", "-lm"];
    compile(0, "examples/minilm.c", &program, &link);
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect",
        "-q",
    ]);
    valgrind.arg(&program).args([fixture("minilm_ffn.fir"), fixture("minilm_ffn0.safetensors")]);
    let printed = succeeds(valgrind.env("LD_LIBRARY_PATH", folder.path()));
    assert!(printed.contains("session:"), "{printed}");
}

#[test]
fn one_symbol_is_exported_and_only_system_libraries_are_needed() {
    let folder = library();
    let path = folder.path().join("libfourfold.so");
    let symbols = succeeds(Command::new("nm").args(["-D", "--defined-only"]).arg(&path));
    let symbols: Vec<&str> = symbols.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(symbols, ["fourfold_plugin_query"]);
    let dynamic = succeeds(Command::new("readelf").arg("-dW").arg(&path));
    assert!(dynamic.contains("soname: [libfourfold.so.1]"), "{dynamic}");
    let system = ["libc.so", "libm.so", "libgcc_s.so", "ld-linux"];
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        assert!(system.iter().any(|name| line.contains(name)), "{line}");
    }
}
