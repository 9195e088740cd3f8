//! Streams and files of commands: one JSON object on every exit, an exit code for files that cannot be written,
//! and only regular files and standard streams.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::machine::Machine;
use serde_json::Value;

const PROGRAM: &str = "fir 1
; sample: exact seed=1 M=3
func @f(%x: tensor<[M], f32>) {
  %y = neg %x : tensor<[M], f32>
  return %y
}
";

/// One kernel on one problem.
const MANIFEST: &str = r#"
schema = 1
[[sweep]]
generator = "scaled_mma.sm100"
targets = ["sm_100a"]
base = { d = "f32", tile = "128x64x256" }
[problems]
list = [{ problem = "1x4096x32" }]
"#;

fn machine() -> Machine {
    let machine = Machine::new("");
    machine.write("program.fir", PROGRAM);
    machine.write("some.toml", MANIFEST);
    machine.write("file", "");
    machine
}

/// A machine with the records of a sweep.
fn machine_with_records() -> Machine {
    let machine = machine();
    let (manifest, out) = (machine.name("some.toml"), machine.name("r.jsonl"));
    let output = machine.run("0", &["sweep", "--manifest", &manifest, "--out", &out, "--replays", "5"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    machine
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the program with bounded memory and time, so that it cannot run forever.
fn bounded(machine: &Machine, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 8000000; exec timeout 60 \"$0\" \"$@\"", env!("CARGO_BIN_EXE_fourfold")]);
    command.args(arguments).current_dir(machine.path(".")).stdin(Stdio::null());
    command.env("FOURFOLD_DEVICE", "0").env("FOURFOLD_CACHE_DIR", machine.path("cache"));
    command.env("FOURFOLD_NVCC", machine.path("nvcc")).env("FOURFOLD_CUTLASS", machine.path("cutlass"));
    command.env("LD_LIBRARY_PATH", machine.path(""));
    command
}

fn run(machine: &Machine, arguments: &[&str]) -> Output {
    bounded(machine, arguments).output().expect("the program starts")
}

/// Runs the program with this text as its standard input.
fn run_on(machine: &Machine, arguments: &[&str], input: &str) -> Output {
    let mut command = bounded(machine, arguments);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the program starts");
    // The program may end before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

/// Returns the one object on the standard output.
#[track_caller]
fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

#[test]
fn wrong_arguments_print_one_object_where_json_is_among_them() {
    let machine = machine();
    for arguments in [
        &["replay", "program.fir", "--json", "--device", "foo"][..],
        &["replay", "program.fir", "--json", "--symbol", "M="],
        &["replay", "program.fir", "--json", "--target", "sm_999"],
        &["replay", "--json"],
        &["explain", "--json"],
        &["compile", "program.fir", "--json", "--time-limit", "1.5"],
        &["compile", "program.fir", "--json", "--jobs", "0"],
        &["verify", "--json", "--nope"],
        &["profile", "--json"],
        &["profile", "-", "--json"],
        &["doctor", "--json", "--launcher", "x"],
        &["toolchain", "which", "--json", "extra"],
        &["toolchain", "--json"],
        &["cache", "prune", "--json", "--to", "5Q"],
        &["cache", "prune", "--json"],
        &["cache", "--json"],
        &["sweep", "--json", "--manifest", "some.toml", "--compile-only", "--shard", "2/1"],
        &["merge", "--json", "r.jsonl"],
        &["merge", "--json", "program.fir", "--out", "-"],
        &["select", "--json"],
        &["heatmap", "--json", "r.jsonl", "--width", "x"],
        &["nonsense", "--json"],
        &["--json"],
        &["replay", "program.fir", "--json=yes"],
    ] {
        let output = run(&machine, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        let object = object(&output);
        assert_eq!(object["ok"], false, "{arguments:?}: {object}");
        assert!(object["fault"].is_string(), "{arguments:?}: {object}");
        let error = object["error"].as_str().expect("an error");
        assert!(!error.is_empty() && !error.contains('\n') && !error.contains("Usage"), "{error}");
        assert!(!output.stderr.is_empty(), "people are told, too: {arguments:?}");
    }
    let said_of = |arguments: &[&str]| object(&run(&machine, arguments))["error"].to_string();
    let device = said_of(&["replay", "program.fir", "--json", "--device", "foo"]);
    assert!(device.contains("'foo' for '--device") && device.contains("`none`"), "{device}");
    let missing = said_of(&["replay", "--json"]);
    assert!(missing.contains("not provided: <FILE>"), "{missing}");
}

#[test]
fn help_stays_text_and_json_after_two_dashes_is_a_name() {
    let machine = machine();
    for arguments in [&["--help", "--json"][..], &["replay", "--json", "--help"], &["--version"]] {
        let output = run(&machine, arguments);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(!output.stdout.is_empty() && !output.stdout.starts_with(b"{"), "{}", said(&output));
    }
    for arguments in [&["replay"][..], &[], &["explain", "--", "--json", "more"]] {
        let output = run(&machine, arguments);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{}", said(&output));
    }
}

/// Starts the program with signals enabled, and sends one when `is_time` returns true.
fn interrupted(machine: &Machine, arguments: &[&str], signal: &str, is_time: &dyn Fn() -> bool) -> Output {
    // The tests may themselves run with interrupts ignored, like a background job of a script.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_fourfold")]).args(arguments);
    command.current_dir(machine.path(".")).stdin(Stdio::piped());
    command.env("FOURFOLD_DEVICE", "none").env("FOURFOLD_CACHE_DIR", machine.path("cache"));
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let started = Instant::now();
    while !is_time() {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _input = child.stdin.take();
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("there is kill").success());
    child.wait_with_output().expect("it ends")
}

#[test]
fn an_interrupt_prints_one_object_too() {
    let machine = machine();
    let begun = machine.path("begun");
    let version = "case \"$1\" in --version | --dryrun) echo 'release 13.0, V13.0.88'; exit 0;; esac";
    machine.script("nvcc", &format!("{version}\n: > '{}'; sleep 4244", begun.display()));
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/shapes/exact_m1.fir");
    let fixture = fixture.display().to_string();
    let (nvcc, cutlass) = (machine.name("nvcc"), machine.name("cutlass"));
    let tools = ["--nvcc", &nvcc, "--cutlass", &cutlass];
    let sweep = ["sweep", "--manifest", "some.toml", "--compile-only", "--out", "s.jsonl"];
    // The standard output of this command is kept from libraries meanwhile.
    let replay = ["replay", &fixture, "--target", "sm_100a", "--build"];
    for (command, signal) in [(&sweep[..], "-TERM"), (&sweep, "-HUP"), (&replay, "-TERM"), (&replay, "-INT")]
    {
        let _ = fs::remove_file(&begun);
        let is_time = || begun.exists();
        let output = interrupted(&machine, &[command, &tools, &["--json"]].concat(), signal, &is_time);
        assert_eq!(output.status.code(), Some(130), "{command:?} {signal}: {}", said(&output));
        let object = object(&output);
        assert_eq!((&object["ok"], &object["fault"]), (&false.into(), &"interrupted".into()), "{object}");
        assert!(object["error"].is_string(), "{object}");
    }
    let _ = fs::remove_file(&begun);
    let output = interrupted(&machine, &[&sweep[..], &tools].concat(), "-TERM", &|| begun.exists());
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0), "{}", said(&output));
    // A command that waits for its input.
    let started = Instant::now();
    let is_time = || started.elapsed() > Duration::from_millis(500);
    let output = interrupted(&machine, &["explain", "-", "--json"], "-TERM", &is_time);
    assert_eq!((output.status.code(), &object(&output)["fault"]), (Some(130), &"interrupted".into()));
}

/// The arguments of every command, which would end with 0, 1 or 3.
const COMMANDS: [&[&str]; 16] = [
    &["explain", "program.fir"],
    &["replay", "program.fir"],
    &["compile", "program.fir"],
    &["verify", "program.fir"],
    &["profile", "one.fir"],
    &["doctor"],
    &["toolchain", "which"],
    &["toolchain", "install", "--from", "nowhere"],
    &["cache", "list"],
    &["cache", "verify"],
    &["cache", "prune", "--to", "1G"],
    &["cache", "push", "--to", "."],
    &["sweep", "--manifest", "some.toml", "--compile-only", "--shard", "9/9", "--out", "s.jsonl"],
    &["merge", "r.jsonl", "--out", "merged.jsonl"],
    &["select", "r.jsonl"],
    &["heatmap", "r.jsonl"],
];

const ONE_KERNEL: &str = "fir 1
; sample: exact seed=5
func @one(
    %a: tensor<[37, 96], f4E2M1FN>, %sfa: tensor<[37, 6], f8E4M3FN, blocked>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sfb: tensor<[72, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 72], f32>
  return %d
}
";

#[test]
fn a_report_that_cannot_be_printed_is_exit_3_of_every_command() {
    let machine = machine_with_records();
    machine.write("one.fir", ONE_KERNEL);
    let full = || File::options().write(true).open("/dev/full").expect("it is there");
    let run_full = |arguments: &[&str]| {
        bounded(&machine, arguments).stdout(full()).output().expect("the program starts")
    };
    for command in COMMANDS {
        for json in [&[][..], &["--json"]] {
            let output = run_full(&[command, json].concat());
            // Without --json, the error is on stderr only.
            if json.is_empty() && command == ["toolchain", "install", "--from", "nowhere"] {
                continue;
            }
            assert_eq!(output.status.code(), Some(3), "{command:?} {json:?}: {}", said(&output));
        }
    }
    for arguments in [&["--help"][..], &["sweep", "--help"], &["--version"], &["replay", "--json"]] {
        let output = run_full(arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains("cannot write the report"), "{arguments:?}: {}", said(&output));
    }
    // Nobody reads any further, which is no error.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = bounded(&machine, &["explain", "program.fir"]).stdout(writer).output();
    assert_eq!(output.expect("it starts").status.code(), Some(0));
    // Messages beside the report do not decide the exit code.
    for (arguments, code) in
        [(&["explain", "absent.fir"][..], 2), (&["explain"], 2), (&["compile", "one.fir", "--no-cache"], 0)]
    {
        let output = bounded(&machine, arguments).stderr(full()).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_exit_3_of_every_command() {
    let machine = machine_with_records();
    machine.write("one.fir", ONE_KERNEL);
    let cases: [(&[&str], &str); 9] = [
        (&["replay", "program.fir"], "--bundle"),
        (&["compile", "one.fir"], "--dump"),
        (&["sweep", "--manifest", "some.toml", "--compile-only"], "--out"),
        (&["merge", "r.jsonl"], "--out"),
        (&["select", "r.jsonl"], "--table"),
        (&["heatmap", "r.jsonl"], "--html"),
        (&["heatmap", "r.jsonl"], "--svg"),
        (&["heatmap", "r.jsonl"], "--png"),
        (&["profile", "one.fir"], "--keep"),
    ];
    for (command, option) in cases {
        // A file is in the way of the folder; no user may write below the other path.
        for place in ["file/below", "/proc/1/nowhere/below"] {
            let output = run(&machine, &[command, &[option, place, "--json"][..]].concat());
            assert_eq!(output.status.code(), Some(3), "{command:?} {option} {place}: {}", said(&output));
            assert_eq!(object(&output)["ok"], false, "{command:?} {option} {place}");
        }
    }
    // A file in a folder that does not exist.
    for (command, option) in cases[2..8].iter().copied() {
        let output = run(&machine, &[command, &[option, "absent/file"][..]].concat());
        assert_eq!(output.status.code(), Some(3), "{command:?} {option}: {}", said(&output));
    }
    let mut command = bounded(&machine, &["toolchain", "install", "--json"]);
    let output = command.env("FOURFOLD_CACHE_DIR", machine.path("file/below")).output().expect("it starts");
    assert_eq!((output.status.code(), &object(&output)["ok"]), (Some(3), &false.into()), "{}", said(&output));
    for arguments in [&["cache", "list", "--json"][..], &["cache", "push", "--to", ".", "--json"]] {
        let mut command = bounded(&machine, arguments);
        let output =
            command.env("FOURFOLD_CACHE_DIR", machine.path("file/below")).output().expect("it starts");
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn devices_and_pipes_are_refused_at_once_by_every_command() {
    let machine = machine_with_records();
    machine.write("one.fir", ONE_KERNEL);
    assert!(Command::new("mkfifo").arg(machine.path("fifo")).status().expect("there is mkfifo").success());
    let sweep = ["sweep", "--manifest", "some.toml", "--compile-only"];
    // PLACE stands for the device.
    let mut cases: Vec<Vec<&str>> = vec![
        vec!["explain", "PLACE"],
        vec!["replay", "PLACE"],
        vec!["compile", "PLACE"],
        vec!["verify", "PLACE"],
        vec!["profile", "PLACE"],
        vec!["replay", "program.fir", "--data", "PLACE"],
        vec!["verify", "one.fir", "--data", "PLACE"],
        vec!["explain", "program.fir", "--dispatch", "PLACE"],
        vec!["sweep", "--manifest", "PLACE", "--compile-only"],
        [&sweep[..], &["--problems", "PLACE"]].concat(),
        [&sweep[..], &["--out", "PLACE"]].concat(),
        vec!["merge", "PLACE", "--out", "m.jsonl"],
        vec!["merge", "r.jsonl", "--out", "PLACE"],
        vec!["select", "PLACE"],
        vec!["select", "r.jsonl", "--weights", "PLACE"],
        vec!["select", "r.jsonl", "--unseen", "PLACE"],
        vec!["select", "r.jsonl", "--table", "PLACE"],
        vec!["heatmap", "PLACE"],
    ];
    cases.extend(["--html", "--svg", "--png"].map(|option| vec!["heatmap", "r.jsonl", option, "PLACE"]));
    for case in cases {
        for place in ["/dev/zero", "/dev/full", "fifo"] {
            let arguments: Vec<&str> =
                case.iter().map(|word| if *word == "PLACE" { place } else { *word }).collect();
            let output = run(&machine, &arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
            let words = format!("`{place}` is not a regular file");
            assert!(said(&output).contains(&words), "{arguments:?}: {}", said(&output));
        }
    }
    // A bundle is a folder.
    let output = run(&machine, &["replay", "program.fir", "--bundle", "fifo"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    // Files named by a manifest are read in the same way.
    for (key, value) in [("files", "\"fifo\""), ("graphs", "{ file = \"fifo\" }")] {
        let manifest = MANIFEST.replace("[problems]", &format!("[problems]\n{key} = [{value}]"));
        machine.write("named.toml", &manifest);
        let output =
            run(&machine, &["sweep", "--manifest", "named.toml", "--compile-only", "--out", "n.jsonl"]);
        assert_eq!(output.status.code(), Some(2), "{key}: {}", said(&output));
        assert!(said(&output).contains("fifo` is not a regular file"), "{key}: {}", said(&output));
    }
}

#[test]
fn names_that_are_no_text_work_and_are_shown() {
    let machine = machine_with_records();
    machine.write("one.fir", ONE_KERNEL);
    let odd = OsStr::from_bytes(b"odd\xFFname");
    let folder = machine.path(".").join(odd);
    fs::create_dir(&folder).expect("a folder");
    for name in ["program.fir", "one.fir", "r.jsonl", "some.toml"] {
        fs::copy(machine.path(name), folder.join(name)).expect("it is there");
    }
    let compiling = ["sweep", "--compile-only", "--manifest", "ODD/some.toml", "--out", "ODD/s.jsonl"];
    for arguments in [
        &["explain", "ODD/program.fir"][..],
        &["replay", "ODD/program.fir", "--bundle", "ODD/bundle"],
        &["compile", "ODD/one.fir", "--dump", "ODD/dump"],
        &["verify", "ODD/program.fir"],
        &["cache", "list"],
        &["cache", "verify"],
        &["cache", "prune", "--to", "1G"],
        &["toolchain", "which"],
        &["doctor"],
        &compiling,
        &["merge", "ODD/r.jsonl", "--out", "ODD/m.jsonl"],
        &["select", "ODD/r.jsonl", "--table", "ODD/t.toml"],
        &["heatmap", "ODD/r.jsonl", "--svg", "ODD/map.svg", "--html", "ODD/map.html"],
    ] {
        let mut command = bounded(&machine, &[]);
        for argument in arguments {
            let mut name = OsString::new();
            match argument.strip_prefix("ODD") {
                Some(rest) => [odd, OsStr::new(rest)].iter().for_each(|part| name.push(part)),
                None => name.push(argument),
            }
            command.arg(name);
        }
        let output = command.arg("--json").env("FOURFOLD_CACHE_DIR", folder.join("cache")).output();
        let output = output.expect("the program starts");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", said(&output));
        assert_eq!(object(&output)["ok"], true, "{arguments:?}");
    }
}

#[test]
fn names_of_records_control_no_terminal() {
    let machine = machine_with_records();
    let records = fs::read_to_string(machine.path("r.jsonl")).expect("records");
    let first: Value = serde_json::from_str(records.lines().next().expect("a line")).expect("a record");
    let name = first["name"].as_str().expect("a name");
    let odd = records.replace(&format!("\"name\":\"{name}\""), "\"name\":\"\\u001b[31mred\"");
    assert_ne!(odd, records);
    for command in ["select", "heatmap"] {
        let output = run_on(&machine, &[command, "-"], &odd);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(!output.stdout.contains(&0x1b), "{}", said(&output));
    }
    let output = run_on(&machine, &["select", "-"], &odd);
    assert!(said(&output).contains("\\u{1b}[31mred"), "{}", said(&output));
}

#[test]
fn a_dash_is_the_standard_input_or_output() {
    let machine = machine_with_records();
    let records = fs::read_to_string(machine.path("r.jsonl")).expect("records");
    for command in ["explain", "replay", "compile"] {
        let output = run_on(&machine, &[command, "-", "--json"], PROGRAM);
        assert_eq!(
            (output.status.code(), &object(&output)["ok"]),
            (Some(0), &true.into()),
            "{}",
            said(&output)
        );
    }
    let output = run_on(&machine, &["select", "-"], &records);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let output = run_on(&machine, &["merge", "-", "--out", "-"], &records);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let merged = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(merged.lines().count(), records.lines().count(), "the file alone: {merged}");
    let output = run_on(&machine, &["select", "r.jsonl", "--table", "-"], "");
    assert!(output.stdout.starts_with(b"schema = 1"), "{}", said(&output));
    for (arguments, words) in [
        (&["merge", "-", "-", "--out", "m.jsonl"][..], "`-` is given twice"),
        (&["heatmap", "r.jsonl", "--svg", "-", "--html", "-"], "`-` is given twice"),
        (&["merge", "r.jsonl", "--out", "-", "--json"], "--json prints its object on the standard output"),
        (&["sweep", "--manifest", "some.toml", "--compile-only", "--out", "-"], "--out must be a file"),
        (&["sweep", "--manifest", "-", "--compile-only"], "--out"),
    ] {
        let input = if arguments[0] == "merge" { records.as_str() } else { MANIFEST };
        let output = run_on(&machine, arguments, input);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{arguments:?}: {}", said(&output));
    }
    // Input is read up to a limit.
    let zero = File::open("/dev/zero").expect("it is there");
    let output = bounded(&machine, &["explain", "-"]).stdin(zero).output().expect("it starts");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("the standard input has more than"), "{}", said(&output));
    // A reader that closes the pipe early has read enough.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = bounded(&machine, &["merge", "r.jsonl", "--out", "-"]).stdout(writer).output();
    assert_eq!(output.expect("it starts").status.code(), Some(0));
}
