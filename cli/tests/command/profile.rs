//! `fourfold profile` with stand-ins for the GPU's driver, the compiler, the kernels, ncu and compute-sanitizer.
//! The tools are scripts that run their command and print what the real tools print.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

/// Two kernels, segments 0 and 2, with an op between them that is in no kernel.
const PROGRAM: &str = "fir 1
; sample: exact seed=5 M=37
func @two(
    %a: tensor<[M, 128], f4E2M1FN>, %sfa: tensor<[M, 8], f8E4M3FN, blocked>,
    param %b: tensor<[64, 128], f4E2M1FN>, param %sfb: tensor<[64, 8], f8E4M3FN, blocked>, %g: tensor<[], f32>,
    param %w: tensor<[72, 64], f4E2M1FN>, param %sfw: tensor<[72, 4], f8E4M3FN, blocked>
) {
  %h = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 64], f32>
  %mean = reduce %h {axes = [1], keep_dims = true, kind = mean} : tensor<[M, 1], f32>
  %centred = sub %h, %mean : tensor<[M, 64], f32>
  %q, %sq = block_quantize %centred, %g {block = 16} : tensor<[M, 64], f4E2M1FN>, tensor<[M, 4], f8E4M3FN, blocked>
  %d = scaled_mma %q, %sq, %w, %sfw {block = 16} : tensor<[M, 72], f32>
  return %d
}
";

/// The beginning of every ncu script: it logs its arguments and answers queries.
const NCU: &str = r#"here=$(dirname "$0")
case "$1" in
--version) printf 'NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1) (public-release)\n'; exit;;
--help) echo '  --pipeline-boost-state arg (=stable)  Control the Tensor Core boost state.'; exit;;
esac
echo "$*" >> "$here/ncu.calls"
metrics=; report=
until test $# = 0; do case "$1" in
--import) cat "$here/page.csv"; exit;;
--force-overwrite) shift;;
--metrics) metrics=$2; shift 2;;
--export) report=$2; shift 2;;
--*) shift 2;;
*) break;;
esac; done
"#;

/// An ncu that works: it runs the program and writes a report.
const MEASURE: &str = r#"echo "==PROF== Connected to process 1 ($1)"
"$@"; code=$?
echo '==PROF== Disconnected from process 1'
test $code = 0 || { echo "==ERROR== The application returned an error code ($code)."; exit $code; }
echo report > "$report"
"#;

/// The beginning of every compute-sanitizer script.
const SANITIZER: &str = r#"here=$(dirname "$0")
case "$1" in
--version) printf 'NVIDIA (R) Compute Sanitizer\nCopyright (c) 2020-2025 NVIDIA Corporation\nVersion 2025.3.1.0 (build 1)\n'; exit;;
--help) exit;;
esac
echo "$*" >> "$here/sanitizer.calls"
until test $# = 0; do case "$1" in
--tool) tool=$2; shift 2;;
--error-exitcode) found=$2; shift 2;;
--*) shift 2;;
*) break;;
esac; done
echo '========= COMPUTE-SANITIZER'
"#;

/// A compute-sanitizer that finds nothing.
const CLEAN: &str = r#""$@"; code=$?
case $tool in
racecheck) echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)';;
*) echo '========= ERROR SUMMARY: 0 errors';;
esac
exit $code
"#;

/// A machine with profilers and two GPUs; the tests use the Hopper.
struct Machine(crate::machine::Machine);

impl Deref for Machine {
    type Target = crate::machine::Machine;

    fn deref(&self) -> &crate::machine::Machine {
        &self.0
    }
}

impl Machine {
    /// Creates one whose compiler builds kernels with these definitions, and whose tools work and find nothing.
    fn new(defines: &str) -> Machine {
        let machine = Machine(crate::machine::Machine::with_program(PROGRAM, defines));
        machine.ncu(MEASURE);
        machine.sanitizer(CLEAN);
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tuner/tests/data/raw_gh100_base.csv");
        fs::copy(page, machine.path("page.csv")).expect("the page is there");
        machine
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn ncu(&self, body: &str) {
        self.script("ncu", &format!("{NCU}{body}"));
    }

    fn sanitizer(&self, body: &str) {
        self.script("compute-sanitizer", &format!("{SANITIZER}{body}"));
    }

    /// Builds row kernels that negate, gathers, and a library for plain products.
    fn device_tier(&self) {
        let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/stand_ins");
        let plain = self.read("nvcc");
        let (gemm, row) = (stand_ins.join("gemm.c"), stand_ins.join("row.c"));
        let (gemm, row) = (gemm.display().to_string(), row.display().to_string());
        let before =
            plain.split_once("exec cc").expect("it compiles").0.trim_start_matches("#!/bin/sh\n").to_owned();
        let after =
            plain.split_once("exec cc").expect("it compiles").1.replace(&format!("'{gemm}'"), "$source");
        let choice = format!(
            "source='{gemm}'\ncase $(says signature) in row*) source='{row} -DRESULT=-x0[i]';; \
             'move gather') source='{row} -DGATHER';; esac\n"
        );
        self.script("nvcc", &format!("{before}{choice}exec cc{after}"));
        let library = std::process::Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .args([self.path("libcublasLt.so.13"), stand_ins.join("libcublaslt.c")])
            .arg("-lm")
            .status();
        assert!(library.expect("there is a C compiler").success());
    }

    fn profile(&self, device: &str, more: &[&str]) -> Output {
        let mut command = self.command(device);
        command.args(["profile", &self.name("program.fir"), "--ncu", &self.name("ncu")]);
        command.args(["--sanitizer", &self.name("compute-sanitizer")]).args(more);
        command.args(["--nvcc", &self.name("nvcc"), "--cutlass", &self.name("cutlass")]);
        let library = self.path("libcublasLt.so.13");
        if library.exists() {
            command.env("FOURFOLD_CUBLASLT", library);
        }
        command.env_remove("FOURFOLD_CACHE_TIERS").env_remove("FOURFOLD_CACHE_SIZE");
        command.output().expect("the program starts")
    }

    /// Returns the exit code and the object of a profile on the Hopper.
    fn json(&self, more: &[&str]) -> (i32, Value) {
        let output = self.profile("1", &[&["--json"], more].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let object = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        (output.status.code().expect("it ends by itself"), object)
    }
}

/// Returns the codes of the troubles, each with its part.
fn troubles(report: &Value) -> Vec<String> {
    let troubles = report["troubles"].as_array().unwrap_or_else(|| panic!("a list: {report}")).iter();
    troubles
        .map(|it| {
            assert!(it["message"].as_str().is_some_and(|text| !text.is_empty()), "{it}");
            assert!(it["remedy"].as_str().is_some_and(|text| !text.is_empty()), "{it}");
            format!("{}: {}", it["part"].as_str().unwrap(), it["code"].as_str().unwrap())
        })
        .collect()
}

fn metric<'a>(report: &'a Value, key: &str) -> &'a Value {
    let metrics = report["counters"]["metrics"].as_array().expect("there are counters");
    metrics.iter().find(|it| it["key"] == key).unwrap_or_else(|| panic!("{key} is there"))
}

#[test]
fn every_tool_runs_the_program_with_its_kernels_from_the_cache_and_looks_at_one_launch() {
    let machine = Machine::new("");
    let kept = machine.name("kept");
    let tools = ["ncu", "memcheck", "racecheck", "initcheck", "synccheck"];
    let mut arguments = vec!["--segment", "2", "--keep", &kept];
    arguments.extend(tools.iter().flat_map(|tool| ["--tool", tool]));
    let (code, report) = machine.json(&arguments);
    assert_eq!((code, &report["ok"], troubles(&report).len()), (0, &json!(true), 0), "{report}");
    assert_eq!((&report["target"], &report["chip"]), (&json!("sm_90a"), &json!("gh100")));
    assert_eq!(report["plain"]["ok"], true);
    let launched: Vec<&Value> =
        report["plain"]["launched"].as_array().unwrap().iter().map(|it| &it["segment"]).collect();
    assert_eq!(launched, [&json!(0), &json!(2)]);

    assert_eq!(metric(&report, "duration")["value"], 180.16);
    assert_eq!(report["counters"]["stalls"][0]["reason"], "gmma");
    // A is 37 x 64 codes in pairs, its scales one tile of 128 x 4; B 72 x 64, and D 37 x 72 in f32.
    let traffic = &report["traffic"];
    let counted = (37 * 64 / 2 + 128 * 4 + 72 * 64 / 2 + 128 * 4, 37 * 72 * 4);
    assert_eq!(
        (&traffic["counted_read"], &traffic["counted_written"]),
        (&json!(counted.0), &json!(counted.1))
    );
    let ratio = traffic["read_ratio"].as_f64().expect("a number");
    assert!((ratio - 86_690_304.0 / f64::from(counted.0)).abs() < 1e-6, "{ratio}");

    let checks = report["checks"].as_array().unwrap();
    let found: Vec<_> = checks.iter().map(|it| (&it["tool"], &it["errors"], &it["exit_code"])).collect();
    assert_eq!(found.len(), 4);
    for ((tool, errors, exit), expected) in found.into_iter().zip(&tools[1..]) {
        assert_eq!((tool, errors, exit), (&json!(expected), &json!(0), &json!(0)));
    }

    // The compiler ran before the tools, not under them. Both products have the same kernel; the quantization between
    // has its own.
    let compiled = machine.read("nvcc.calls").matches("-fatbin").count();
    assert_eq!(compiled, 2, "{}", machine.read("nvcc.calls"));
    let calls = machine.read("ncu.calls");
    let call = calls.lines().next().expect("it was called");
    for part in [
        "--clock-control none",
        "--pipeline-boost-state dynamic",
        "--kernel-name-base mangled --kernel-name regex:^(_ZN8fourfold6kernel) --launch-skip 1 --launch-count 1",
        " replay ",
        "--require-kernels --target sm_90a --device 1",
    ] {
        assert!(call.contains(part), "{part}: {call}");
    }
    let calls = machine.read("sanitizer.calls");
    let skips: Vec<bool> =
        calls.lines().map(|call| call.contains("--launch-skip 1 --launch-count 1")).collect();
    assert_eq!(skips, [true, true, false, true], "{calls}");
    assert!(calls.lines().next().unwrap().contains("--report-api-errors no"));

    assert_eq!(report["kept"], kept);
    for file in
        ["ncu.ncu-rep", "ncu.log", "ncu.command", "ncu-import.log", "memcheck.log", "initcheck.command"]
    {
        assert!(machine.path("kept").join(file).is_file(), "{file}");
    }
    assert!(machine.read("kept/memcheck.log").contains("expectations met"), "the run's own report");
}

#[test]
fn without_a_wish_it_is_the_first_kernel_and_people_read_a_table() {
    let machine = Machine::new("");
    let output = machine.profile("1", &[]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("segment 0: nvfp4_scaled_mm"), "{text}");
    assert!(text.contains("run without tools: results as expected"), "{text}");
    assert!(text.contains("180.16 µs") && text.contains("gmma 7.120"), "{text}");
    assert!(machine.read("ncu.calls").contains("--launch-skip 0 "));
    assert!(machine.read("sanitizer.calls").is_empty(), "ncu alone is asked unless tools are named");
}

#[test]
fn what_cannot_be_had_is_named_and_the_rest_is_done() {
    let machine = Machine::new("");
    let both = ["--tool", "ncu", "--tool", "memcheck"];
    let error = |text: &str| format!("echo '==ERROR== {text}'\nexit 1\n");
    for (ncu, code) in [
        (
            error(
                "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters",
            ),
            "counters_forbidden",
        ),
        (error("Failed to initialize the profiler: LibraryNotLoaded."), "profiler_library"),
        (error("unrecognised option. Use --help for further details."), "tool_too_old"),
        ("\"$@\"\necho '==WARNING== No kernels were profiled.'\n".to_owned(), "no_kernel"),
        ("kill -SEGV $$\n".to_owned(), "tool_failed"),
        (MEASURE.replace("\"$@\"; code=$?", "code=3"), "run_failed"),
    ] {
        machine.ncu(&ncu);
        let (exit, report) = machine.json(&both);
        assert_eq!(troubles(&report), [format!("ncu: {code}")], "{report}");
        assert_eq!((exit, &report["ok"], &report["counters"]), (3, &json!(false), &Value::Null));
        assert_eq!(report["checks"][0]["errors"], 0, "memcheck ran nevertheless");
    }

    // Tools that are missing, too old for the GPU, or too slow.
    fs::remove_file(machine.path("ncu")).unwrap();
    let (exit, report) = machine.json(&both);
    assert_eq!((exit, troubles(&report)), (3, vec!["ncu: no_tool".to_owned()]), "{report}");
    assert_eq!(report["checks"][0]["errors"], 0);
    machine.script("ncu", "echo Version 2021.1.0");
    assert_eq!(troubles(&machine.json(&both).1), ["ncu: tool_too_old"]);
    machine.ncu("sleep 60\n");
    let (exit, report) = machine.json(&["--limit", "1"]);
    assert_eq!((exit, troubles(&report)), (3, vec!["ncu: tool_stopped".to_owned()]), "{report}");
}

#[test]
fn numbers_are_those_of_the_segments_kernel_or_absent() {
    let machine = Machine::new("");
    // A counter that this ncu does not know is dropped, and the rest is measured.
    machine.ncu(&format!(
        "case $metrics in *pipe_tma.sum*) echo '==ERROR== Failed to find metric sm__inst_executed_pipe_tma.sum'; exit 1;; esac\n{MEASURE}"
    ));
    let page = machine.read("page.csv");
    machine.write("page.csv", &page.replace("\"sm__inst_executed_pipe_tma.sum\"", "\"other\""));
    let (exit, report) = machine.json(&[]);
    assert_eq!((exit, machine.read("ncu.calls").lines().count()), (0, 3), "{report}");
    let tma = metric(&report, "tma_instructions");
    assert!(tma["value"].is_null() && tma["missing"].is_string(), "{tma}");
    assert_eq!(tma["metric"], "sm__inst_executed_pipe_tma.sum");
    // A counter that it refuses twice ends the profile.
    machine.ncu("echo '==ERROR== Failed to find metric sm__inst_executed_pipe_tma.sum'\nexit 1\n");
    assert_eq!(troubles(&machine.json(&[]).1), ["ncu: tool_failed"]);

    machine.ncu(MEASURE);
    let other = page.replace("_ZN8fourfold6kernel", "_ZN7cutlass13device_kernel");
    for page in ["", "\"ID\",\"Kernel Name\"\n", &other] {
        machine.write("page.csv", page);
        let (exit, report) = machine.json(&[]);
        assert_eq!((exit, troubles(&report)), (3, vec!["ncu: unreadable_report".to_owned()]), "{report}");
        assert!(report["counters"].is_null() && report["traffic"]["read_ratio"].is_null(), "{report}");
    }
}

#[test]
fn errors_that_a_tool_finds_are_a_failure_and_a_tool_that_breaks_is_none() {
    let machine = Machine::new("");
    let tool = ["--tool", "memcheck", "--tool", "racecheck"];
    machine.sanitizer(
        "\"$@\"\necho '========= Invalid __global__ write of size 4 bytes'\ncase $tool in racecheck) echo \
         '========= RACECHECK SUMMARY: 3 hazards displayed (0 errors, 3 warnings)'; exit 0;; esac\n\
         echo '========= ERROR SUMMARY: 1 error'\nexit $found\n",
    );
    let (exit, report) = machine.json(&tool);
    let checks = &report["checks"];
    assert_eq!((exit, &report["ok"], troubles(&report).len()), (1, &json!(false), 0), "{report}");
    assert_eq!((&checks[0]["errors"], &checks[0]["exit_code"]), (&json!(1), &json!(86)));
    assert_eq!(checks[0]["first"][0], "Invalid __global__ write of size 4 bytes");
    assert_eq!((&checks[1]["errors"], &checks[1]["warnings"]), (&json!(0), &json!(3)));

    machine.sanitizer(
        "echo '========= Error: Device not supported.'\necho '========= ERROR SUMMARY: 2 errors'\nexit 86\n",
    );
    let (exit, report) = machine.json(&tool);
    assert_eq!(
        (exit, troubles(&report)),
        (3, ["memcheck", "racecheck"].map(|tool| format!("{tool}: tool_too_old")).into())
    );
    machine.sanitizer("exit 0\n");
    assert_eq!(troubles(&machine.json(&tool[..2]).1), ["memcheck: no_summary"]);
}

#[test]
fn a_kernel_that_fails_is_looked_at_nevertheless() {
    let machine = Machine::new("-DRUN_STATUS=719");
    machine.sanitizer("\"$@\"\necho '========= Invalid __shared__ read of size 16 bytes'\necho '========= ERROR SUMMARY: 4 errors'\nexit 3\n");
    let (exit, report) = machine.json(&["--tool", "memcheck", "--tool", "ncu", "--segment", "2"]);
    assert_eq!((exit, &report["plain"]["ok"]), (1, &Value::Null), "{report}");
    assert!(report["plain"]["error"].as_str().is_some_and(|why| why.contains("719")), "{report}");
    assert_eq!(report["checks"][0]["errors"], 4);
    assert_eq!(troubles(&report), ["ncu: run_failed"]);
    assert!(
        machine.read("sanitizer.calls").contains("--launch-skip 2 "),
        "planned kernels count where none is known to run, and so does the row kernel"
    );
}

/// A row kernel, a move, a view, a plain product, and a `scaled_mma` that sm_90a has no kernel for.
const DEVICE: &str = "fir 1
; sample: exact seed=5 M=37 R=6
; tensor: i = bytes 0:24 in \"indices\"
func @device(
    %x: tensor<[M, 64], f32>, %i: tensor<[R], i32>, param %w: tensor<[48, 64], f32>,
    %a: tensor<[M, 48], f4E2M1FN>, %sfa: tensor<[M, 3], f8E4M3FN, blocked>,
    param %b: tensor<[32, 48], f4E2M1FN>, param %sfb: tensor<[32, 3], f8E4M3FN, blocked>
) {
  %n = neg %x : tensor<[M, 64], f32>
  %rows = gather %n, %i {axis = 0} : tensor<[R, 64], f32>
  %v = reshape %rows : tensor<[1, R, 64], f32>
  %p = mma %n, %w : tensor<[M, 48], f32>
  %q = mma %p, %p : tensor<[M, M], f32>
  %s = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 32], f32>
  return %v, %q, %s
}
";

/// Returns the position of the segment that computes a value.
fn segment_of(machine: &Machine, value: &str) -> String {
    let mut command = machine.command("1");
    command.args(["explain", &machine.name("program.fir"), "--json", "--target", "sm_90a"]);
    let output = command.output().expect("the program starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let segments = report["segments"].as_array().expect("segments");
    let computes = |segment: &Value| segment["ops"].to_string().contains(&format!("%{value} = "));
    segments.iter().position(computes).expect("a segment").to_string()
}

#[test]
fn segments_of_the_device_tier_are_examined_too() {
    let machine = Machine::new("");
    machine.write("program.fir", DEVICE);
    let indices: Vec<u8> = [3i32, 0, 36, 36, 7, 12].iter().flat_map(|index| index.to_le_bytes()).collect();
    fs::write(machine.path("indices"), indices).expect("it can be written");
    machine.device_tier();
    let [row, rows, view, product, second, fallback] =
        ["n", "rows", "v", "p", "q", "s"].map(|value| segment_of(&machine, value));
    let calls = |name: &str| {
        let calls = machine.read(name);
        let measures = calls.lines().rfind(|call| !call.starts_with("--import"));
        measures.unwrap_or_default().to_owned()
    };
    let tools = ["--tool", "ncu", "--tool", "memcheck"];
    let profile = |segment: &str| machine.json(&[&["--segment", segment][..], &tools].concat());

    // A row kernel reads and writes all of its matrix.
    let (code, report) = profile(&row);
    assert_eq!((code, troubles(&report).len()), (0, 0), "{report}");
    assert_eq!((&report["kernel"], &report["library"]), (&json!("row+neg>f32"), &Value::Null));
    let matrix = 37 * 64 * 4;
    let traffic = &report["traffic"];
    assert_eq!((&traffic["counted_read"], &traffic["counted_written"]), (&json!(matrix), &json!(matrix)));
    let ratio = traffic["read_ratio"].as_f64().expect("a number");
    assert!((ratio - 86_690_304.0 / f64::from(matrix)).abs() < 1e-6, "{ratio}");
    assert!(calls("ncu.calls").contains("--kernel-name regex:^(_ZN8fourfold6kernel) --launch-skip 0 "));

    // A gather reads the rows that it copies, and the indices. The row kernel was launched before.
    let (code, report) = profile(&rows);
    assert_eq!((code, &report["kernel"]), (0, &json!("move:gather")), "{report}");
    let copied = 6 * 64 * 4;
    let traffic = &report["traffic"];
    assert_eq!(
        (&traffic["counted_read"], &traffic["counted_written"]),
        (&json!(copied + 6 * 4), &json!(copied))
    );
    assert!(calls("sanitizer.calls").contains("--launch-skip 1 --launch-count 1"));
    let launched: Vec<&Value> = report["plain"]["launched"].as_array().unwrap().iter().collect();
    assert_eq!(launched.len(), 4, "the view launches nothing: {report}");

    // A plain product is a call of the library, whose kernel has a name of its own.
    let (code, report) = profile(&product);
    assert_eq!((code, troubles(&report)), (3, vec!["ncu: unreadable_report".to_owned()]), "{report}");
    let page = machine.read("page.csv").replace("_ZN8fourfold6kernel", "nvjet_sm90_");
    machine.write("page.csv", &page);
    let (code, report) = profile(&product);
    assert_eq!((code, troubles(&report).len()), (0, 0), "{report}");
    assert_eq!((&report["kernel"], &report["library"]), (&json!("mma"), &json!("cublasLtMatmul")));
    let counted = &report["traffic"]["counted_read"];
    assert_eq!(counted, &json!(matrix + 48 * 64 * 4));
    let call = calls("ncu.calls");
    assert!(!call.contains("--kernel-name ") && call.contains(" --launch-skip 2 "), "{call}");
    let output = machine.profile("1", &["--segment", &product]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(": mma, a call of cublasLtMatmul, whose first kernel is examined\n"), "{text}");
    // After a call, the kernels before a launch are not known.
    let (code, report) = profile(&second);
    assert_eq!((code, troubles(&report)), (3, vec!["ncu: unknown_launch".to_owned()]), "{report}");
    assert_eq!((&report["checks"][0]["watched"], &report["checks"][0]["errors"]), (&json!("all"), &json!(0)));
    assert!(!calls("sanitizer.calls").contains("--launch-skip"));

    let there = [&row, &rows, &product, &second].map(String::as_str).join(", ");
    for (segment, why) in [
        (&view, "it is a view, so `%v` has the memory of `%rows` and nothing is launched".to_owned()),
        (&fallback, "it runs on the fallback (".to_owned()),
        (&"9".to_owned(), "the program has 6 segments, numbered from 0".to_owned()),
    ] {
        let output = machine.profile("1", &["--segment", segment]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("segment {segment} is not a kernel: {why}")), "{said}");
        assert!(said.contains(&format!("; the kernels are segments {there}")), "{said}");
    }
    // Without a wish and without a kernel segment, it is the first generated kernel.
    let (_, report) = machine.json(&["--tool", "memcheck"]);
    assert_eq!(report["segment"].to_string(), row);
}

#[test]
fn bad_input_and_a_machine_without_a_gpu_are_told_apart_before_anything_is_built() {
    let machine = Machine::new("");
    for (more, words) in [
        (
            &["--segment", "9"][..],
            "segment 9 is not a kernel: the program has 3 segments, numbered from 0; the kernels are segments 0, 1, 2",
        ),
        (&["--target", "cpu"], "no op of the program becomes a kernel"),
        (&["--target", "sm_1"], "unknown target `sm_1`"),
    ] {
        let output = machine.profile("1", more);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{words}: {said}");
    }
    for (device, target) in [("none", "sm_90a"), ("1", "sm_120a")] {
        let output = machine.profile(device, &["--json", "--target", target]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("an object");
        assert_eq!(output.status.code(), Some(3), "{report}");
        assert_eq!(troubles(&report), ["device: no_device"]);
        assert!(report["plain"].is_null() && report["counters"].is_null(), "{report}");
    }
    assert!(!machine.path("nvcc.calls").exists() && !machine.path("ncu.calls").exists());
    // A folder that cannot be created is reported before anything is built.
    machine.write("file", "");
    let (exit, report) = machine.json(&["--keep", &machine.name("file/below")]);
    assert_eq!((exit, troubles(&report)), (3, vec!["folder: no_folder".to_owned()]));
    assert!(!machine.path("nvcc.calls").exists());
}
