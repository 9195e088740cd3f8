//! `verify --report` on a machine with a GPU: the contents of the file, its privacy, and paths that cannot be written.
//! The driver, the compiler and the kernels are stand-ins that really compute.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::machine::Machine;
use serde_json::Value;

/// One product. Small operands with large padding give few launches that compute little.
const GOOD: &str = "fir 1
; sample: exact seed=5 M=1
func @good(
    %a: tensor<[M, 512], f4E2M1FN>, %sfa: tensor<[M, 32], f8E4M3FN, blocked>,
    param %b: tensor<[16, 512], f4E2M1FN>, param %sfb: tensor<[16, 32], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 16], f32>
  return %d
}
";

/// The product scaled, with a bias per column.
const SCALED: &str = "fir 1
; sample: exact seed=6 M=1
func @scaled(
    %a: tensor<[M, 512], f4E2M1FN>, %sfa: tensor<[M, 32], f8E4M3FN, blocked>,
    param %b: tensor<[16, 512], f4E2M1FN>, param %sfb: tensor<[16, 32], f8E4M3FN, blocked>,
    %alpha: tensor<[], f32>, %bias: tensor<[16], f32>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha {block = 16} : tensor<[M, 16], f32>
  %y = add %d, %bias : tensor<[M, 16], f32>
  return %y
}
";

const USER: &str = "somebody";

/// A machine whose user has a home, with programs there: two good ones, one that its kernel refuses, an invalid one.
fn machine(defines: &str) -> Machine {
    let machine = Machine::new(defines);
    fs::create_dir_all(machine.path(&format!("home/{USER}/my programs/deep"))).expect("a folder");
    let refused = GOOD.replace(", 512]", ", 160]").replace(", 32]", ", 10]");
    machine.write(&programs("good.fir"), GOOD);
    machine.write(&programs("scaled.fir"), SCALED);
    machine.write(&programs("deep/refused.fir"), &refused);
    machine.write(&programs("broken.fir"), &GOOD.replace("block = 16", "block = 7"));
    machine
}

fn programs(name: &str) -> String {
    format!("home/{USER}/my programs/{name}")
}

/// Runs `verify --report` on the programs of the machine's user.
fn verify(machine: &Machine, more: &[&str]) -> Output {
    command(machine, more).output().expect("the program starts")
}

fn command(machine: &Machine, more: &[&str]) -> Command {
    let (folder, report) = (machine.name(&programs("")), machine.name("report.json"));
    let tools = ["--nvcc", &machine.name("nvcc"), "--cutlass", &machine.name("cutlass")];
    let mut command = machine.command("0");
    command.env("HOME", machine.path(&format!("home/{USER}"))).env("USER", USER);
    command.args(["verify", &folder, "--report", &report]).args(more).args(tools);
    command
}

/// Reads the report, which must be free of private data.
fn report(machine: &Machine) -> Value {
    let text = fs::read_to_string(machine.path("report.json")).expect("the report is written");
    let object: Value = serde_json::from_str(&text).expect("an object");
    assert_eq!((&object["format"], &object["format_version"]), (&"fourfold verify report".into(), &1.into()));
    for private in [machine.name(""), USER.to_owned(), "my programs".to_owned()] {
        assert!(!text.contains(private.trim_end_matches('/')), "the report contains `{private}`:\n{text}");
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    assert!(host.len() < 4 || !text.contains(host), "the report contains the host's name:\n{text}");
    let mut strings = Vec::new();
    collect(&object, &mut strings);
    for string in strings {
        let begins = |(at, _): (usize, &str)| {
            let before = string[..at].chars().next_back();
            let behind = string[at + 1..].chars().next();
            before.is_none_or(|c| " `'\"(=:\n".contains(c)) && behind.is_some_and(char::is_alphanumeric)
        };
        assert!(!string.match_indices('/').any(begins), "an absolute path: {string}");
    }
    let left: Vec<_> = fs::read_dir(machine.path("")).expect("a folder").flatten().collect();
    let is_temporary = |name: &str| name.starts_with(".fourfold-");
    assert!(!left.iter().any(|entry| is_temporary(&entry.file_name().to_string_lossy())), "{left:?}");
    object
}

fn collect<'a>(value: &'a Value, strings: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => strings.push(text),
        Value::Array(values) => values.iter().for_each(|value| collect(value, strings)),
        Value::Object(object) => object.values().for_each(|value| collect(value, strings)),
        _ => {}
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn list<'a>(object: &'a Value, key: &str) -> &'a Vec<Value> {
    object[key].as_array().unwrap_or_else(|| panic!("{key} of {object}"))
}

/// The entry of a program in a list of the report.
fn of<'a>(object: &'a Value, key: &str, program: &str) -> &'a Value {
    let found = list(object, key).iter().find(|entry| entry["program"] == program);
    found.unwrap_or_else(|| panic!("{program} in {key} of {object}"))
}

#[test]
fn a_report_describes_the_machine_the_kernels_the_comparisons_and_the_times() {
    let machine = machine("");
    let output = verify(&machine, &["--json"]);
    // The invalid program is bad input.
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains(&format!("wrote {}", machine.name("report.json"))), "{}", said(&output));
    let (printed, report) = (json(&output), report(&machine));
    assert_eq!((&report["state"], &report["exit_code"]), (&"finished".into(), &2.into()));
    assert_eq!(report["fourfold"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["gpu"]["capability"], serde_json::json!([10, 0]));
    for key in ["name", "sm_count", "memory_bytes", "l2_bytes", "driver"] {
        assert!(!report["gpu"][key].is_null(), "{key}: {}", report["gpu"]);
    }
    assert_eq!(report["host"]["architecture"], std::env::consts::ARCH);
    assert_eq!(
        (&report["toolchain"]["nvcc"], &report["toolchain"]["cutlass"]),
        (&"13.1.115".into(), &"4.5.0".into())
    );
    assert_eq!((&report["options"]["target"], &report["options"]["device"]), (&Value::Null, &0.into()));

    // Every row that is printed is in the file.
    let (rows, expected) = (list(&report["verify"], "rows"), list(&printed, "rows"));
    assert_eq!(rows.len(), expected.len());
    for (row, expected) in rows.iter().zip(expected) {
        for key in ["fixture", "inputs", "value", "segment", "kernel", "ran", "rule", "mismatches", "ok"] {
            assert_eq!(row[key], expected[key], "{row}");
        }
    }
    let broken = rows.iter().find(|row| row["fixture"] == "broken.fir").expect("a row");
    assert_eq!((&broken["ok"], &broken["fault"]), (&false.into(), &"invalid_input".into()), "{broken}");

    let kernel = of(&report, "kernels", "good.fir");
    assert_eq!((&kernel["target"], &kernel["kind"]), (&"sm_100a".into(), &"kernel".into()), "{kernel}");
    assert_eq!(kernel["nvcc"], "13.1.115", "{kernel}");
    assert!(kernel["cutlass"].as_str().is_some_and(|version| version.starts_with("4.5.0")), "{kernel}");
    assert_eq!(kernel["resources"]["opcodes"]["UTCOMMA.4X"], 1, "{kernel}");
    assert!(kernel["hash"].as_str().is_some_and(|hash| hash.len() > 8), "{kernel}");
    assert!(kernel["failure"].is_null() && kernel["unavailable"].is_null(), "{kernel}");

    let run = of(&report, "runs", "good.fir");
    assert_eq!(
        (&run["ran"], &run["segment"], &run["kernel"]),
        (&"kernel".into(), &0.into(), &kernel["kernel"])
    );
    assert_eq!(run["extents"], serde_json::json!({ "L": 1, "M": 1, "N": 16, "K": 512 }));
    assert!(run["compared_us"].as_f64().is_some_and(|time| time > 0.0), "{run}");
    let timing = &run["timing"];
    assert_eq!((&timing["state"], &timing["message"]), (&"timed".into(), &Value::Null), "{timing}");
    assert!(timing["median_us"].as_f64().is_some_and(|time| time > 0.0), "{timing}");
    assert!(list(timing, "samples_us").len() >= 5 && timing["launches"].as_u64() >= Some(20), "{timing}");

    let scaled = of(&report, "runs", "scaled.fir");
    assert_eq!((&scaled["ran"], &scaled["timing"]["state"]), (&"kernel".into(), &"timed".into()), "{scaled}");

    let refused = of(&report, "runs", "deep/refused.fir");
    assert_eq!((&refused["ran"], &refused["timing"]), (&"fallback".into(), &Value::Null), "{refused}");
    assert!(refused["reason"].is_string() && refused["message"].is_string(), "{refused}");
}

#[test]
fn a_report_holds_what_failed() {
    // A kernel that writes nothing leaves NaN, in the timed launches too.
    let wrong = machine("-DWRITES_NOTHING");
    let output = verify(&wrong, &["--require-kernels"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let object = report(&wrong);
    let rows = list(&object["verify"], "rows");
    let row = rows.iter().find(|row| row["fixture"] == "good.fir").expect("a row");
    assert_eq!((&row["ok"], &row["mismatches"], &row["ran"]), (&false.into(), &16.into(), &"kernel".into()));
    let timing = &of(&object, "runs", "good.fir")["timing"];
    assert_eq!(timing["state"], "differs", "{timing}");
    assert!(timing["message"].as_str().is_some_and(|it| it.contains("unchanged by the call")), "{timing}");

    // A kernel whose later launches write nothing passes the comparison, and differs when it is timed.
    let unsteady = machine("-DRIGHT_RUNS=3");
    let output = verify(&unsteady, &[]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let object = report(&unsteady);
    let rows = list(&object["verify"], "rows");
    assert!(rows.iter().all(|row| row["ok"] == (row["fixture"] != "broken.fir")), "{rows:?}");
    assert_eq!(of(&object, "runs", "good.fir")["timing"]["state"], "differs", "{object}");

    // A device that is lost ends the verification, and nothing is timed.
    let lost = machine("-DRUN_STATUS=719");
    let output = verify(&lost, &[]);
    let object = report(&lost);
    assert_eq!(output.status.code(), Some(object["exit_code"].as_i64().expect("a code") as i32));
    assert_eq!(object["state"], "finished");
    let rows = list(&object["verify"], "rows");
    let row = rows.iter().find(|row| row["fixture"] == "good.fir").expect("a row");
    assert_eq!((&row["fault"], &row["segment"]), (&"device".into(), &0.into()), "{row}");
    assert!(row["message"].as_str().is_some_and(|it| it.contains("719")), "{row}");
}

#[test]
fn a_report_holds_the_compiler_s_error_without_its_folders() {
    let machine = machine("");
    let header = machine.name(&format!("home/{USER}/include/atom.hpp"));
    let body = format!(
        r#"case "$1" in --version | --dryrun) echo 'Cuda compilation tools, release 13.1, V13.1.115'; exit 0;; esac
echo '{header}(12): error: "{USER}" is undefined' >&2
exit 1"#
    );
    machine.script("nvcc", &body);
    let output = verify(&machine, &["--require-kernels"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let report = report(&machine);
    let failure = &of(&report, "kernels", "good.fir")["failure"];
    assert_eq!(failure["code"], "compile_error", "{failure}");
    assert!(
        failure["log"].as_str().is_some_and(|log| log.contains("atom.hpp(12): error: \"<user>\" is")),
        "{failure}"
    );
    let run = of(&report, "runs", "good.fir");
    assert_eq!((&run["ran"], &run["reason"]), (&"fallback".into(), &"compile_error".into()), "{run}");
}

#[test]
fn a_run_that_ends_the_process_is_named() {
    let machine = machine("'-DRUN_STATUS=(abort(),0)'");
    let output = verify(&machine, &[]);
    assert_eq!(output.status.signal(), Some(6), "{}", said(&output));
    let report = report(&machine);
    assert_eq!((&report["state"], &report["exit_code"]), (&"verifying".into(), &Value::Null), "{report}");
    assert_eq!(report["running"]["program"], "good.fir", "{report}");
    assert_eq!(report["running"]["inputs"], "seeded, rule exact, seed 5");
    assert!(of(&report, "kernels", "good.fir")["hash"].is_string(), "the kernels are listed before the run");
}

#[test]
fn a_run_that_hangs_is_named_after_an_interrupt() {
    let machine = machine("'-DRUN_STATUS=({for(;;){}0;})'");
    let mut command = command(&machine, &[]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    let is_running = || {
        let text = fs::read(machine.path("report.json")).unwrap_or_default();
        serde_json::from_slice::<Value>(&text).is_ok_and(|report| report["running"]["program"] == "good.fir")
    };
    let begun = Instant::now();
    while !is_running() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the run begins");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The kernel may begin only now: the file names the program before that.
    let interrupt = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(interrupt.expect("the signal is sent").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let report = report(&machine);
    assert_eq!((&report["state"], &report["running"]["program"]), (&"verifying".into(), &"good.fir".into()));
}

#[test]
fn a_command_that_fails_leaves_its_error() {
    let machine = machine("");
    let output = verify(&machine, &["--target", "sm_1"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let report = report(&machine);
    assert_eq!((&report["state"], &report["error"]["fault"]), (&"failed".into(), &"unsupported".into()));
    assert!(report["error"]["message"].as_str().is_some_and(|it| it.contains("sm_1")), "{report}");
}

#[test]
fn a_path_that_cannot_be_written_is_refused_before_the_run() {
    let machine = machine("");
    machine.write("precious.json", "precious");
    for (path, code, fault, help) in [
        (machine.name("absent/report.json"), 3, "environment", "folder that exists"),
        (machine.name("precious.json/report.json"), 3, "environment", "folder that exists"),
        (machine.name("precious.json"), 2, "invalid_input", "name another file"),
        (machine.name("home"), 2, "invalid_input", "name another file"),
        ("-".to_owned(), 2, "invalid_input", "./-"),
    ] {
        let file = machine.name(&programs("good.fir"));
        let output = machine.run("0", &["verify", &file, "--report", &path, "--json"]);
        assert_eq!(output.status.code(), Some(code), "{path}: {}", said(&output));
        let (error, shown) = (json(&output), said(&output));
        assert_eq!((&error["fault"], &error["ok"]), (&fault.into(), &false.into()), "{error}");
        assert!(error["help"].as_str().is_some_and(|text| text.contains(help)), "{error}");
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(lines[0].starts_with("error: ") && (path == "-" || lines[0].contains(&path)), "{shown}");
        assert!(lines[1].starts_with("note: ") && lines[1].contains(&format!("fault: {fault}")), "{shown}");
        assert!(lines[2].starts_with("help: ") && lines[2].contains(help), "{shown}");
        assert!(!machine.path("nvcc.calls").exists(), "nothing was built");
    }
    assert_eq!(fs::read_to_string(machine.path("precious.json")).expect("it is there"), "precious");
}

#[test]
fn a_machine_without_a_gpu_can_write_a_report() {
    let machine = machine("");
    let (file, path) = (machine.name(&programs("good.fir")), machine.name("report.json"));
    let output = machine.run("none", &["verify", &file, "--report", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let report = report(&machine);
    assert_eq!((&report["gpu"], &report["options"]["device"]), (&Value::Null, &"none".into()));
    let run = of(&report, "runs", "good.fir");
    assert_eq!((&run["ran"], &run["reason"]), (&"fallback".into(), &"no_device".into()), "{run}");
    assert_eq!(of(&report, "kernels", "good.fir")["unavailable"]["code"], "no_device");
}
