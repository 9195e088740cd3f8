//! Sweeps from the command line, on a machine whose compiler, driver and kernels are stand-ins that really
//! compute: killed, resumed, sharded, merged, measured, selected and drawn.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::machine::Machine;
use serde_json::Value;

/// Eleven kernels of a Blackwell, two of which break a rule.
const MANIFEST: &str = r#"
schema = 1
[[sweep]]
name = "some"
generator = "scaled_mma.sm100"
targets = ["sm_100a"]
base = { d = "f32" }
product = { tile = ["128x64x256", "128x128x256", "128x96x256"], cluster = ["1x1", "1x2", "2x1"] }
list = [{ tile = "128x64x128" }, { tile = "128x192x128" }, { tile = "128x192x256" }]
exclude = [{ tile = "128x96x256", cluster = "1x2" }]
[problems]
list = [{ problem = "37x72x96" }, { problem = "1x64x128", weight = 3 }, { problem = "2x5x16x64" }]
"#;

fn machine(defines: &str) -> Machine {
    let machine = Machine::new(defines);
    machine.write("some.toml", MANIFEST);
    machine
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

fn text<'a>(record: &'a Value, key: &str) -> &'a str {
    record[key].as_str().unwrap_or_else(|| panic!("no {key}: {record}"))
}

fn count(records: &[Value], state: &str) -> usize {
    records.iter().filter(|record| record["state"] == state).count()
}

fn sweep(machine: &Machine, out: &str, more: &[&str]) -> Output {
    let (manifest, out) = (machine.name("some.toml"), machine.name(out));
    machine.run("0", &[&["sweep", "--manifest", &manifest, "--out", &out], more].concat())
}

#[test]
fn every_combination_is_recorded_once_and_what_is_invalid_says_which_rule_it_breaks() {
    let machine = machine("");
    let output = sweep(&machine, "r.jsonl", &["--compile-only", "--json"]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(report["kernels"], serde_json::json!({ "invalid": 2, "built": 9 }), "{report}");
    let lines = records(&machine.path("r.jsonl"));
    assert_eq!((lines.len(), count(&lines, "invalid"), count(&lines, "built")), (11, 2, 9));
    let distinct: BTreeSet<&str> = lines.iter().map(|record| text(record, "kernel")).collect();
    assert_eq!(distinct.len(), 11);
    for record in &lines {
        assert_eq!((&record["schema"], &record["target"]), (&1.into(), &"sm_100a".into()));
        assert_eq!(
            record["parameters"].as_object().map(|all| all.len()),
            Some(13),
            "with defaults: {record}"
        );
        let is_invalid = record["parameters"]["tile"] == "128x96x256";
        assert_eq!(record["state"] == "invalid", is_invalid, "{record}");
        if is_invalid {
            assert_eq!(
                (&record["broken"][0]["rule"], &record["build"]),
                (&"9".into(), &Value::Null),
                "{record}"
            );
            assert!(text(&record["broken"][0], "prevents").contains("TileShape_N"), "{record}");
        } else {
            assert_eq!(
                (&record["build"]["nvcc"], &record["build"]["compiled"]),
                (&"13.1.115".into(), &true.into())
            );
        }
    }
    // Nothing is left to do, and nothing is added.
    let again = json(&sweep(&machine, "r.jsonl", &["--compile-only", "--json"]));
    assert_eq!(again["kernels"], report["kernels"]);
    assert_eq!(records(&machine.path("r.jsonl")).len(), 11);
    // --confirm compiles rejected kernels; this compiler builds everything.
    let output = sweep(&machine, "c.jsonl", &["--compile-only", "--confirm", "1", "--json"]);
    let confirmed = |asked, refused| serde_json::json!({ "asked": asked, "refused": refused });
    let contradicted = json(&output);
    assert_eq!(contradicted["kernels"], report["kernels"], "{}", said(&output));
    assert_eq!((&contradicted["ok"], &contradicted["confirmed"]), (&false.into(), &confirmed(1, 0)));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let asked = |record: &Value| {
        record["state"] == "invalid" && record["build"]["failure"].is_null() && !record["build"].is_null()
    };
    assert_eq!(records(&machine.path("c.jsonl")).iter().filter(|record| asked(record)).count(), 1);
    // The finding is repeated even if nothing is left to do.
    let again = said(&sweep(&machine, "c.jsonl", &["--compile-only"]));
    assert!(again.contains("the compiler rejected 0 of 1 kernels that the rules reject"), "{again}");
    assert!(
        again.contains("the compiler builds a kernel that the rules reject: ")
            && again.contains("128x96x256"),
        "{again}"
    );
    // A compiler that rejects everything confirms the rule.
    machine.script("nvcc.real", &fs::read_to_string(machine.path("nvcc")).expect("it is there"));
    let body = format!(
        "case \"$1\" in --version | --dryrun) exec '{}' \"$@\";; esac\necho 'kernel.cu(5): error: Invalid TileShape_N.'; exit 2",
        machine.name("nvcc.real")
    );
    machine.script("nvcc", &body);
    let output = sweep(&machine, "d.jsonl", &["--compile-only", "--confirm", "2", "--json", "--no-cache"]);
    let report = json(&output);
    assert_eq!((&report["ok"], &report["confirmed"]), (&true.into(), &confirmed(2, 2)), "{}", said(&output));
}

/// Makes the compiler of a machine slower and counts its starts: a line each, with the kernel's name.
fn slow_and_counted(machine: &Machine) {
    fs::rename(machine.path("nvcc"), machine.path("nvcc.real")).expect("it is there");
    let (count, real) = (machine.name("count"), machine.name("nvcc.real"));
    // It starts three times for a kernel, one of them for the device.
    let body = format!(
        "case \"$1\" in --version | --dryrun) exec '{real}' \"$@\";; esac\n\
         case \" $* \" in *' -fatbin '*)\n\
         sed -n 's/.*\\\\\"hash\\\\\":\\\\\"\\([0-9a-f]*\\).*/\\1/p' kernel.cu | head -n 1 >> '{count}';;\nesac\n\
         sleep 0.1\nexec '{real}' \"$@\""
    );
    machine.script("nvcc", &body);
}

#[test]
fn what_was_recorded_before_a_kill_is_not_done_again() {
    let machine = machine("");
    slow_and_counted(&machine);
    let out = machine.path("r.jsonl");
    let mut kills = 0;
    let begun = Instant::now();
    loop {
        let before = records(&out).len();
        let mut command = machine.command("0");
        command.args(["sweep", "--manifest", &machine.name("some.toml"), "--out", &machine.name("r.jsonl")]);
        command.args(["--compile-only", "--jobs", "2", "--nvcc", &machine.name("nvcc")]);
        command.args(["--cutlass", &machine.name("cutlass")]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        // Killed as soon as it has added three lines.
        let ended = loop {
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                break Some(status);
            }
            if records(&out).len() >= before + 3 {
                child.kill().expect("it can be killed");
                child.wait().expect("it ends");
                break None;
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        match ended {
            Some(status) => {
                assert_eq!(status.code(), Some(0));
                break;
            }
            None => kills += 1,
        }
    }
    assert!(kills >= 1, "{kills}");
    let lines = records(&out);
    let distinct: BTreeSet<&str> = lines.iter().map(|record| text(record, "kernel")).collect();
    assert_eq!((lines.len(), distinct.len()), (11, 11), "each once");
    // A compiler started twice only for kernels that were being compiled at a kill: at most two.
    let starts = fs::read_to_string(machine.path("count")).expect("it was counted");
    let mut by_kernel = BTreeMap::<&str, usize>::new();
    starts.lines().for_each(|kernel| *by_kernel.entry(kernel).or_default() += 1);
    assert_eq!(by_kernel.len(), 9, "{by_kernel:?}");
    let repeated: usize = by_kernel.values().map(|starts| starts - 1).sum();
    assert!(repeated <= 2 * kills, "{by_kernel:?} after {kills} kills");
}

#[test]
fn a_torn_line_is_cut_off_and_two_sweeps_do_not_share_a_file() {
    let machine = machine("");
    let out = machine.path("r.jsonl");
    assert_eq!(sweep(&machine, "r.jsonl", &["--compile-only"]).status.code(), Some(0));
    let whole = fs::read_to_string(&out).expect("it is there");
    let last = whole.trim_end().rfind('\n').expect("lines") + 1;
    fs::write(&out, &whole[..last + 40]).expect("it can be written");
    let output = sweep(&machine, "r.jsonl", &["--compile-only", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("has no end"), "{}", said(&output));
    let lines = records(&out);
    let distinct: BTreeSet<&str> = lines.iter().map(|record| text(record, "kernel")).collect();
    assert_eq!((lines.len(), distinct.len()), (11, 11));
    let held = fs::File::open(&out).expect("it is there");
    held.lock().expect("nobody has it");
    let output = sweep(&machine, "r.jsonl", &["--compile-only"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("another sweep"), "{}", said(&output));
    // A killed sweep may keep the file locked for a moment.
    let moment = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(held);
    });
    let output = sweep(&machine, "r.jsonl", &["--compile-only"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    moment.join().expect("it ends");
}

#[test]
fn shards_are_disjoint_and_merged_they_are_all() {
    let machine = machine("");
    let mut all = BTreeSet::new();
    let names: Vec<String> = (1..=3).map(|shard| machine.name(&format!("{shard}.jsonl"))).collect();
    for (shard, name) in names.iter().enumerate() {
        let shard = format!("{}/3", shard + 1);
        let output = sweep(&machine, &name[name.len() - 7..], &["--compile-only", "--shard", &shard]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        for record in records(Path::new(name)) {
            assert!(all.insert(text(&record, "kernel").to_owned()), "{record} is in two shards");
        }
    }
    assert_eq!(all.len(), 11);
    let merge = |files: &[&str]| {
        let out = machine.name("all.jsonl");
        machine.command("0").arg("merge").args(files).args(["--out", &out]).output().expect("it starts")
    };
    let files: Vec<&str> = names.iter().chain([&names[0]]).map(String::as_str).collect();
    let output = merge(&files);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(records(&machine.path("all.jsonl")).len(), 11, "what is twice is kept once");
    // One id for two kernels is a conflict, and nothing is written.
    let text = fs::read_to_string(&names[0]).expect("it is there");
    machine.write("changed.jsonl", &text.replacen("\"d\":\"f32\"", "\"d\":\"f16\"", 1));
    let output = merge(&[&names[0], &machine.name("changed.jsonl")]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("parameters"), "{}", said(&output));
    for (shard, words) in [("0/3", "1/4"), ("4/3", "1/4"), ("x", "1/4")] {
        let output = sweep(&machine, "x.jsonl", &["--shard", shard]);
        assert!(output.status.code() == Some(2) && said(&output).contains(words), "{}", said(&output));
    }
}

#[test]
fn bad_manifests_and_missing_compilers_say_what_to_do_and_record_nothing() {
    let machine = machine("");
    for (manifest, words) in [
        ("schema = 2", "schema 2"),
        ("schema = ", "line 1"),
        ("schema = 1\n[[sweep]]\ngenerator = \"x\"\ntargets = []", "scaled_mma.sm100"),
        ("schema = 1\n[[sweep]]\ngenerator = \"scaled_mma.sm100\"\ntargets = [\"sm_90a\"]", "sm_103a"),
        (
            "schema = 1\n[[sweep]]\ngenerator = \"scaled_mma.sm100\"\ntargets = [\"sm_100a\"]\nbase = { tyle = 1 }",
            "epilogue_tile",
        ),
        (
            "schema = 1\n[[sweep]]\ngenerator = \"scaled_mma.sm100\"\ntargets = []",
            "`targets` is empty; name at least one",
        ),
        ("schema = 1\n[problems]\nlist = [{ problem = \"1x2x32\", weight = 1e300 }]", "from 1e-9 to 1e9"),
        ("schema = 1\n[problems]\nsuites = [\"contest\", \"sport\"]", "decode:llama-3.1-8b"),
        ("schema = 1\n[problems]\nlist = [{ problem = \"1x2\" }]", "MxNxK"),
        ("schema = 1\n[problems]\nfiles = [\"none.txt\"]", "none.txt"),
    ] {
        machine.write("some.toml", manifest);
        let output = sweep(&machine, "r.jsonl", &["--compile-only"]);
        assert_eq!(output.status.code(), Some(2), "{manifest}: {}", said(&output));
        assert!(
            said(&output).contains(words) && said(&output).contains("some.toml") || words == "none.txt",
            "{}",
            said(&output)
        );
    }
    machine.write("some.toml", MANIFEST);
    fs::remove_file(machine.path("nvcc")).expect("it is there");
    let output = sweep(&machine, "r.jsonl", &["--compile-only", "--json"]);
    assert_eq!((output.status.code(), &json(&output)["ok"]), (Some(3), &false.into()), "{}", said(&output));
    assert_eq!(count(&records(&machine.path("r.jsonl")), "compile_error"), 0);
}

#[test]
fn a_compiler_that_refuses_is_recorded_with_its_words_and_not_asked_again() {
    let machine = machine("");
    let real = fs::read_to_string(machine.path("nvcc")).expect("it is there");
    let refuses =
        "grep -q 'Int<192>' kernel.cu && { echo 'kernel.cu(7): error: no such tile'; exit 2; }\nexec cc";
    fs::write(machine.path("nvcc"), real.replacen("exec cc", refuses, 1)).expect("it can be written");
    let output = sweep(&machine, "r.jsonl", &["--compile-only", "--json"]);
    assert_eq!(json(&output)["kernels"]["compile_error"], 2, "{}", said(&output));
    let lines = records(&machine.path("r.jsonl"));
    let failed: Vec<&Value> = lines.iter().filter(|record| record["state"] == "compile_error").collect();
    assert_eq!(failed.len(), 2);
    for record in failed {
        assert_eq!(record["build"]["failure"], "compile_error", "{record}");
        assert!(
            text(&record["build"], "log").contains("no such tile")
                && text(record, "message").contains("no such tile")
        );
    }
    sweep(&machine, "r.jsonl", &["--compile-only"]);
    assert_eq!(records(&machine.path("r.jsonl")).len(), 11);
    // After the repair, --retry builds both; earlier records stay.
    machine.script("nvcc", real.trim_start_matches("#!/bin/sh\n"));
    let output = sweep(&machine, "r.jsonl", &["--compile-only", "--retry", "--json"]);
    assert_eq!(
        json(&output)["kernels"],
        serde_json::json!({ "invalid": 2, "built": 9 }),
        "{}",
        said(&output)
    );
    assert_eq!(records(&machine.path("r.jsonl")).len(), 13);
}

/// Makes the compiler of a machine run `body` first while the file `trouble` exists.
fn troubled(machine: &Machine, body: &str) {
    fs::rename(machine.path("nvcc"), machine.path("nvcc.real")).expect("it is there");
    let (trouble, real) = (machine.name("trouble"), machine.name("nvcc.real"));
    machine.script(
        "nvcc",
        &format!(
            "case \"$1\" in --version | --dryrun) exec '{real}' \"$@\";; esac\n\
             if [ -e '{trouble}' ]; then {body}; fi\nexec '{real}' \"$@\""
        ),
    );
    machine.write("trouble", "");
}

#[test]
fn what_ran_out_is_deferred_and_tried_again() {
    for (body, options, code) in [
        ("sleep 60", &["--time-limit", "1", "--jobs", "9"][..], "compile_timeout"),
        ("echo 'cc1: fatal error: kernel.ii: No space left on device'; exit 1", &[], "disk_full"),
        ("echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1", &[], "out_of_memory"),
        ("echo 'sh: 0: Cannot fork'; exit 2", &[], "out_of_processes"),
        ("kill -SEGV $$", &[], "compiler_crashed"),
    ] {
        let machine = machine("");
        troubled(&machine, body);
        let output = sweep(&machine, "r.jsonl", &[&["--compile-only", "--json"], options].concat());
        let report = json(&output);
        let counts = serde_json::json!({ "invalid": 2, "deferred": 9 });
        assert_eq!((&report["kernels"], &report["ok"]), (&counts, &false.into()), "{}", said(&output));
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        let lines = records(&machine.path("r.jsonl"));
        assert_eq!(lines.iter().filter(|record| record["build"]["failure"] == code).count(), 9, "{code}");
        // After the trouble, no option is needed.
        fs::remove_file(machine.path("trouble")).expect("it is there");
        let output = sweep(&machine, "r.jsonl", &["--compile-only"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains("9 of 9 compiled kernels"), "{}", said(&output));
    }
}

#[test]
fn what_fails_in_the_environment_ends_a_sweep_and_records_nothing() {
    let machine = machine("");
    troubled(&machine, "echo 'cc1: fatal error: kernel.ii: Stale file handle'; exit 1");
    let output = sweep(&machine, "r.jsonl", &["--compile-only"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("Stale file handle"), "{}", said(&output));
    assert_eq!(count(&records(&machine.path("r.jsonl")), "compile_error"), 0);
    fs::remove_file(machine.path("trouble")).expect("it is there");
    assert_eq!(sweep(&machine, "r.jsonl", &["--compile-only"]).status.code(), Some(0));
}

#[test]
fn records_of_earlier_versions_that_call_a_time_out_a_compile_error_are_tried_again() {
    let machine = machine("");
    assert_eq!(sweep(&machine, "r.jsonl", &["--compile-only"]).status.code(), Some(0));
    let as_failed = |failure: &str, message: &str| {
        let mut lines = records(&machine.path("r.jsonl"));
        for record in lines.iter_mut().filter(|record| record["state"] == "built") {
            record["state"] = "compile_error".into();
            record["message"] = message.into();
            record["build"]["failure"] = failure.into();
        }
        lines.iter().map(|record| format!("{record}\n")).collect::<String>()
    };
    let old = [
        ("compile_timeout", "`nvcc` exceeded the time limit of 0 s", 0, 9),
        ("out_of_memory", "`nvcc` was terminated by signal 9", 0, 9),
        ("compile_error", "the compiler failed: <built-in>: fatal error: x.ii: Disk quota exceeded", 0, 9),
        ("compile_error", "the compiler failed: kernel.cu(7): error: no such tile", 9, 0),
    ];
    for (failure, message, kept, built) in old {
        machine.write("old.jsonl", &as_failed(failure, message));
        let report = json(&sweep(&machine, "old.jsonl", &["--compile-only", "--json"]));
        let counts = &report["kernels"];
        let of = |state: &str| counts[state].as_u64().unwrap_or(0);
        assert_eq!((of("compile_error"), of("built")), (kept, built), "{failure}: {counts}");
    }
}

/// Two kernels on three problems, one of which neither takes because its K is not a multiple of 32.
const MEASURED: &str = r#"
schema = 1
[[sweep]]
generator = "scaled_mma.sm100"
targets = ["sm_100a"]
base = { d = "f32" }
product = { tile = ["128x64x256", "128x128x256"] }
[problems]
list = [{ problem = "1x4092x32" }, { problem = "1x64x80" }, { problem = "2x3x1024x32", weight = 2 }]
"#;

#[test]
fn kernels_are_measured_selected_and_drawn() {
    let machine = Machine::new("");
    machine.write("some.toml", MEASURED);
    let output = sweep(&machine, "r.jsonl", &["--replays", "5", "--json"]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(report["runs"], serde_json::json!({ "good": 4, "refused": 2 }), "{}", said(&output));
    let lines = records(&machine.path("r.jsonl"));
    let runs: Vec<&Value> = lines.iter().filter(|record| record["problem"].is_string()).collect();
    assert_eq!((lines.len(), runs.len()), (8, 6));
    for record in &runs {
        let is_refused = record["problem"] == "1x64x80";
        assert_eq!(record["state"], if is_refused { "refused" } else { "good" }, "{record}");
        if is_refused {
            assert!(text(record, "message").contains("K = 80 is not a multiple of 32"), "{record}");
            continue;
        }
        let timing = &record["timing"];
        assert!(timing["samples_us"].as_array().is_some_and(|samples| samples.len() >= 5), "{record}");
        assert!(timing["median_us"].as_f64().is_some_and(|median| median > 0.0), "{record}");
        assert!(record["check"]["bytes"].as_u64() > Some(0) && record["check"]["wrong"] == 0, "{record}");
        assert!(record["machine"]["gpu"].is_string() && record["workload"].is_string(), "{record}");
    }
    // Recorded problems are not measured again; those of another list are.
    let again = json(&sweep(&machine, "r.jsonl", &["--replays", "5", "--json"]));
    assert_eq!(again["runs"], serde_json::json!({}), "{again}");
    assert_eq!(records(&machine.path("r.jsonl")).len(), 8);
    machine.write("unseen.txt", "# nobody saw it\n2x4096x32\n");
    let unseen = machine.name("unseen.txt");
    let output = sweep(&machine, "unseen.jsonl", &["--replays", "5", "--problems", &unseen, "--json"]);
    assert_eq!(json(&output)["runs"]["good"], 2, "{}", said(&output));

    let (all, table) = (machine.name("r.jsonl"), machine.name("table.toml"));
    let command = |arguments: &[&str]| machine.command("0").args(arguments).output().expect("it starts");
    let other = machine.name("unseen.jsonl");
    machine.write("weights.txt", "1x4092x32\n2x3x1024x32 2\n");
    let weights = machine.name("weights.txt");
    let chosen = ["select", &all, "--weights", &weights, "--min-efficiency", "0.5"];
    let output = command(&[&chosen[..], &["--table", &table, "--unseen", &other, "--json"]].concat());
    let selection = json(&output);
    assert_eq!((output.status.code(), &selection["optimal"]), (Some(0), &true.into()), "{}", said(&output));
    // The stand-in is equally fast with each kernel.
    assert_eq!(selection["kernels"].as_array().map(Vec::len), Some(1), "{selection}");
    assert_eq!(selection["problems"].as_array().map(Vec::len), Some(2), "{selection}");
    assert!(selection["unseen"][0]["efficiency"].as_f64() > Some(0.5), "{selection}");
    let best = selection["unseen_best_of_chosen"][0].as_f64();
    assert!(best >= selection["unseen"][0]["efficiency"].as_f64() && best <= Some(1.0), "{selection}");
    // The dispatch table works with `compile`.
    machine.write("program.fir", PROGRAM);
    let program = machine.name("program.fir");
    let output = machine.run("0", &["compile", &program, "--dispatch", &table, "--json"]);
    let tile = selection["kernels"][0]["parameters"]["tile"].as_str().expect("a tile").to_owned();
    let compiled = json(&output);
    assert!(text(&compiled["kernels"][0], "configuration").contains(&tile), "{tile}: {}", said(&output));
    // A problem without a kernel is reported as such.
    let output = command(&["select", &all, "--min-efficiency", "0.5", "--json"]);
    assert_eq!((output.status.code(), &json(&output)["ok"]), (Some(1), &false.into()), "{}", said(&output));

    // Records are not overwritten.
    let before = fs::read(&all).expect("the records");
    for arguments in [["select", &all, "--table", &all], ["heatmap", &all, "--svg", &all]] {
        let output = command(&[&arguments[..], &["--min-efficiency", "0.5"]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("is an input of this command"), "{}", said(&output));
    }
    assert_eq!(fs::read(&all).expect("the records"), before);

    let [html, svg, png] = ["map.html", "map.svg", "map.png"].map(|name| machine.name(name));
    let output = command(&["heatmap", &all, "--html", &html, "--svg", &svg, "--png", &png, "--width", "100"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("1x4092x32"), "{}", said(&output));
    assert!(fs::read_to_string(html).is_ok_and(|page| page.contains("1x4092x32")));
    assert!(fs::read_to_string(svg).is_ok_and(|image| image.starts_with("<svg")));
    assert!(fs::read(png).is_ok_and(|image| image.starts_with(b"\x89PNG")));
}

const PROGRAM: &str = "fir 1
func @one(
    %a: tensor<[37, 96], f4E2M1FN>, %sfa: tensor<[37, 6], f8E4M3FN, blocked>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sfb: tensor<[72, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 72], f32>
  return %d
}
";

#[test]
fn a_wrong_kernel_is_never_fast_and_a_device_that_fails_is_recorded_and_passed_by() {
    let machine = Machine::new("-DWRITES_NOTHING");
    machine.write("some.toml", MEASURED);
    let output = sweep(&machine, "r.jsonl", &["--replays", "5", "--json"]);
    assert_eq!(json(&output)["runs"], serde_json::json!({ "wrong": 4, "refused": 2 }), "{}", said(&output));
    for record in records(&machine.path("r.jsonl")).iter().filter(|record| record["state"] == "wrong") {
        assert!(record["timing"].is_null() && record["check"]["wrong"].as_u64() > Some(0), "{record}");
    }
    let output = machine.command("0").args(["select", &machine.name("r.jsonl"), "--json"]).output();
    assert_ne!(output.expect("it starts").status.code(), Some(0));

    let machine = Machine::new("-DRUN_STATUS=719");
    machine.write("some.toml", MEASURED);
    // Each run ends with the kernel that made the device fail; the next run continues after it.
    for errors in 1..=4 {
        let output = sweep(&machine, "r.jsonl", &["--replays", "5", "--json"]);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        let lines = records(&machine.path("r.jsonl"));
        assert_eq!(count(&lines, "launch_error"), errors, "{}", said(&output));
    }
    let output = sweep(&machine, "r.jsonl", &["--replays", "5", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let without_gpu =
        machine.command("none").args(["sweep", "--manifest", &machine.name("some.toml")]).output();
    assert_eq!(without_gpu.expect("it starts").status.code(), Some(2));
}
