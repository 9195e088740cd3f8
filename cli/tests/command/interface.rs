//! The interface for scripts: the keys of reports, exit codes, reason and failure codes, and environment
//! variables. The list in `cli/tests/interface.txt` only grows; a line that disappears breaks a script.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use fourfold_executor::environment::VARIABLES;
use fourfold_executor::service::FAILURE_CODES;
use fourfold_import::LeftOutCode;
use fourfold_scheduler::ReasonCode;
use serde_json::Value;

/// Programs with data, with seeds and symbols, with kernels, other ops and several outputs.
const PROGRAMS: [&str; 3] = ["minilm_ffn.fir", "outputs/dag_out_gated.fir", "shapes/exact_symbolic_m.fir"];

fn report(command: &str, program: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(program);
    let output = Command::new(env!("CARGO_BIN_EXE_fourfold"))
        .args([command, "--json", "--target", "sm_120a", "--device", "none"])
        .arg(&file)
        .env("FOURFOLD_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/interface-cache"))
        .output()
        .expect("the program starts");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{command} {program}: {error}"))
}

/// The report of `import`.
fn import_report(model: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(model);
    let output = Command::new(env!("CARGO_BIN_EXE_fourfold"))
        .args(["import", "--json", "--target", "sm_120a", "--device", "none", "-o"])
        .args([folder.path(), &source])
        .output()
        .expect("the program starts");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("import {model}: {error}"))
}

/// The file of `verify --report`.
fn verify_report(program: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, path) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(program), "report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_fourfold"))
        .args(["verify", "--target", "sm_120a", "--device", "none", "--report", path])
        .arg(file.canonicalize().expect("the program is there"))
        .env("FOURFOLD_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/interface-cache"))
        .current_dir(folder.path())
        .output()
        .expect("the program starts");
    let text = std::fs::read(folder.path().join(path)).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    serde_json::from_slice(&text).expect("an object")
}

/// Collects the keys of an object and of all objects in it, as paths.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        // The keys of this object are names of the program.
        Value::Object(_) if path.ends_with(".symbols") => {}
        Value::Object(object) => {
            for (key, value) in object {
                let path = format!("{path}.{key}");
                keys(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, &format!("{path}[]"), found)),
        _ => {}
    }
}

fn interface() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for program in PROGRAMS {
        for command in ["replay", "explain"] {
            keys(&report(command, program), command, &mut found);
        }
    }
    keys(&verify_report(PROGRAMS[2]), "report", &mut found);
    keys(&import_report("ct-mxfp4"), "import", &mut found);
    found.extend(LeftOutCode::ALL.iter().map(|code| format!("left_out {code}")));
    let help = Command::new(env!("CARGO_BIN_EXE_fourfold")).arg("--help").output().expect("it starts");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let codes = help.split("Exit codes: ").nth(1).expect("the help lists the exit codes");
    for code in codes.split(", ").filter_map(|part| part.split_whitespace().next()?.parse::<u8>().ok()) {
        found.insert(format!("exit code {code}"));
    }
    found.extend(ReasonCode::ALL.iter().map(|code| format!("reason {code}")));
    found.extend(FAILURE_CODES.iter().map(|failure| format!("failure {}", failure.code)));
    found.extend(VARIABLES.iter().map(|variable| format!("variable {}", variable.name)));
    found
}

#[test]
fn scripts_find_what_they_rely_on() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interface.txt");
    let found = interface();
    assert!(found.len() > 150, "the list is a list: {found:?}");
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        // Lines are added and never dropped. Dropping one takes an edit by hand.
        let listed = std::fs::read_to_string(&file).unwrap_or_default();
        let lines: BTreeSet<&str> = listed.lines().chain(found.iter().map(String::as_str)).collect();
        let text: String = lines.into_iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&file, text).expect("the list can be written");
    }
    let listed = std::fs::read_to_string(&file).expect("the list is there");
    let missing: Vec<&str> = listed.lines().filter(|line| !found.contains(*line)).collect();
    assert!(missing.is_empty(), "scripts may rely on these, and they are gone: {missing:#?}");
    let listed: BTreeSet<&str> = listed.lines().collect();
    let new: Vec<&String> = found.iter().filter(|line| !listed.contains(line.as_str())).collect();
    assert!(new.is_empty(), "not in the list yet; FOURFOLD_BLESS=1 cargo test adds them: {new:#?}");
}
