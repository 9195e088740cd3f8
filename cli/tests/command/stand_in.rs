//! The command line on a machine with a GPU: debug mode, the doctor's self-test, and bundles of runs that fail on the
//! device. The driver, the compiler and the kernels are stand-ins that really compute.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::machine::Machine;
use serde_json::Value;

/// Two kernels with an op between them that is in no kernel.
const PROGRAM: &str = "fir 1
; sample: exact seed=5 M=37
func @two(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[64, 96], f4E2M1FN>, param %sfb: tensor<[64, 6], f8E4M3FN, blocked>, %g: tensor<[], f32>,
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

/// The position of the last segment with a `scaled_mma`.
fn second_product(report: &Value) -> usize {
    let segments = report["segments"].as_array().expect("segments");
    segments.iter().rposition(|segment| segment["kind"] == "kernel").expect("a product")
}

/// One product, whose kernel the stand-in compiler builds.
const ONE_PRODUCT: &str = "fir 1
; sample: exact seed=5 M=37
func @one(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[64, 96], f4E2M1FN>, param %sfb: tensor<[64, 6], f8E4M3FN, blocked>
) {
  %h = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 64], f32>
  return %h
}
";

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("it is there")).expect("an object")
}

#[test]
fn the_self_test_builds_a_kernel_and_runs_it() {
    let machine = Machine::with_program(PROGRAM, "");
    for (device, target) in [("0", "sm_100a"), ("1", "sm_90a")] {
        let output = machine.run(device, &["doctor", "--self-test", "--json"]);
        let report = json(&output);
        let test = &report["self_test"];
        assert_eq!((output.status.code(), &test["state"]), (Some(0), &"passed".into()), "{report}");
        assert_eq!((&test["target"], &test["ran"]), (&target.into(), &"kernel".into()));
        assert!(test["build_seconds"].is_number() && test["kernel_seconds"].is_number(), "{test}");
        let gpus = report["gpus"].as_array().expect("GPUs");
        assert_eq!((gpus.len(), &gpus[0]["native"][0]), (2, &"sm_100a".into()));
        assert_eq!(gpus[1]["native"], serde_json::json!(["sm_90a"]));
        assert_eq!(gpus[1]["emulated"], serde_json::json!(["sm_120a", "sm_121a", "sm_100a", "sm_103a"]));
        let of_target = |target: &Value| (target["name"] == "sm_90a").then(|| target.clone());
        let hopper = report["targets"].as_array().and_then(|targets| targets.iter().find_map(of_target));
        let hopper = hopper.expect("a target");
        assert_eq!((&hopper["state"], &hopper["runs"]), (&"ok".into(), &"native".into()), "{hopper}");
        let capabilities = fourfold::codegen::capabilities("sm_90a").expect("a target");
        let formats: Vec<String> = capabilities.formats.iter().map(|it| it.format.to_string()).collect();
        assert_eq!(formats[..2], ["nvfp4", "mxfp4"]);
        assert_eq!(hopper["formats"], serde_json::json!(formats));
    }
    // A kernel that writes nothing leaves NaN; one that the device rejects reports the error.
    for (define, words) in [("-DWRITES_NOTHING", "elements are wrong"), ("-DRUN_STATUS=719", "719")] {
        let output = Machine::with_program(PROGRAM, define).run("0", &["doctor", "--self-test", "--json"]);
        let report = json(&output);
        let test = &report["self_test"];
        assert_eq!((output.status.code(), &test["state"]), (Some(3), &"failed".into()), "{test}");
        assert!(
            test["detail"].as_str().expect("words").contains(words) && test["remedy"].is_string(),
            "{test}"
        );
    }
}

#[test]
fn a_hopper_runs_its_own_kernels_and_others_emulated_where_it_is_asked_to() {
    let machine = Machine::with_program(PROGRAM, "");
    // The padding lies below the last row only, and these kernels do not read it.
    machine.write("program.fir", &PROGRAM.replace(", 96]", ", 128]").replace(", 6]", ", 8]"));
    let file = machine.name("program.fir");
    for command in ["replay", "verify"] {
        for (options, target, ran) in [
            (&[][..], "sm_90a", "kernel"),
            (&["--target", "sm_90a"], "sm_90a", "kernel"),
            (&["--emulate"], "sm_120a", "emulated"),
            (&["--emulate", "--target", "sm_121a"], "sm_121a", "emulated"),
        ] {
            let arguments = [&[command, &file, "--require-kernels", "--json"][..], options].concat();
            let output = machine.run("1", &arguments);
            let report = json(&output);
            assert_eq!((output.status.code(), &report["target"]), (Some(0), &target.into()), "{report}");
            let rows = report[if command == "verify" { "rows" } else { "segments" }].as_array();
            let ways: Vec<&str> = rows.expect("rows").iter().filter_map(|row| row["ran"].as_str()).collect();
            assert!(ways.contains(&ran), "{ways:?}");
            assert!(ways.iter().all(|way| [ran, "fallback"].contains(way)), "{ways:?}");
            // Only a Hopper's own kernels are known to ignore NaN there.
            let with_nan = report["rows"].to_string().matches("NaN padding").count();
            assert_eq!(with_nan, if command == "verify" && ran == "kernel" { 2 } else { 0 }, "{report}");
        }
        // A target of another GPU is emulated only on request.
        let output =
            machine.run("1", &[command, &file, "--target", "sm_120a", "--require-kernels", "--json"]);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    }
}

/// A quantization between ops that no epilogue computes.
const QUANTIZATION: &str = "fir 1
; sample: normal seed=7 M=37
func @quantization(%x: tensor<[M, 64], f32>, %g: tensor<[], f32>) {
  %q, %sq = block_quantize %x, %g {block = 16} : tensor<[M, 64], f4E2M1FN>, tensor<[M, 4], f8E4M3FN, blocked>
  return %q, %sq
}
";

#[test]
fn a_segment_of_the_device_tier_is_run_compared_and_required() {
    let run = |defines: &str| {
        let machine = Machine::with_program(QUANTIZATION, defines);
        let converts = "echo '        /*0010*/  F2FP.SATFINITE.E2M1 R1, R2, R3 ;'";
        machine.script("cuobjdump", converts);
        let file = machine.name("program.fir");
        let output = machine.run("0", &["verify", &file, "--require-device", "--json"]);
        (output.status.code(), json(&output), said(&output))
    };
    let (code, report, said) = run("");
    assert_eq!((code, &report["ok"]), (Some(0), &true.into()), "{report}\n{said}");
    let counts = (&report["device_segments"], &report["ran_device_segments"], &report["off_device"]);
    assert_eq!(counts, (&1.into(), &1.into(), &serde_json::json!([])), "{report}");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "codes and scales: {report}");
    for row in rows {
        assert_eq!((&row["kind"], &row["plan"]), (&"device".into(), &"block_quantize".into()), "{row}");
        assert_eq!((&row["ran"], &row["sizes"]), (&"kernel".into(), &"L=1 M=37 K=64".into()), "{row}");
        assert!(row["rule"].as_str().is_some_and(|rule| rule.starts_with("bit-equal")), "{row}");
    }
    // A kernel that writes nothing, and one that spoils a byte of a scale.
    for (defines, wrong) in [("-DWRITES_NOTHING", 2), ("-DSPOIL=0", 1)] {
        let (code, report, _) = run(defines);
        let rows = report["rows"].as_array().expect("rows");
        let found = rows.iter().filter(|row| row["ok"] == false).count();
        assert_eq!((code, found), (Some(1), wrong), "{defines}: {report}");
    }
    // A kernel that the device refuses runs on the fallback.
    let (code, report, said) = run("-DPREPARE_STATUS=1");
    assert_eq!((code, &report["ran_device_segments"]), (Some(3), &0.into()), "{report}");
    assert!(said.contains("--require-device: 1 of 1 segments planned for the GPU"), "{said}");
}

#[test]
fn a_kernel_that_was_built_and_cannot_be_dumped_is_no_failure_of_the_kernel() {
    let machine = Machine::with_program(ONE_PRODUCT, "");
    let file = machine.name("program.fir");
    let output = machine.run("0", &["compile", &file, "--dump", "/proc/none", "--json"]);
    let report = json(&output);
    let kernel = &report["kernels"][0];
    assert_eq!((output.status.code(), &report["ok"]), (Some(3), &false.into()), "{report}");
    assert!(kernel["error"].is_null() && kernel["resources"].is_object(), "{kernel}");
    assert!(kernel["dump_error"].as_str().is_some_and(|why| why.contains("/proc/none")), "{kernel}");
    let output = machine.run("0", &["compile", &file, "--dump", &machine.name("dump"), "--json"]);
    assert_eq!((output.status.code(), &json(&output)["ok"]), (Some(0), &true.into()), "{}", said(&output));
}

#[test]
fn debug_mode_shows_what_each_launch_was_given() {
    let machine = Machine::with_program(PROGRAM, "");
    let (file, bundle) = (machine.name("program.fir"), machine.name("bundle"));
    let usual = machine.run("0", &["replay", &file, "--json"]);
    assert_eq!(usual.status.code(), Some(0), "{}", said(&usual));
    let segments = json(&usual)["segments"].clone();
    assert!(segments.as_array().expect("segments").iter().all(|segment| segment["launch"].is_null()));

    let output = machine.run("0", &["replay", &file, "--debug", "--json", "--bundle", &bundle]);
    let report = json(&output);
    assert_eq!((output.status.code(), &report["ran_kernels"]), (Some(0), &2.into()), "{report}");
    let launch = &report["segments"][second_product(&report)]["launch"];
    assert_eq!((&launch["extents"], &launch["sm_count"]), (&serde_json::json!([1, 37, 72, 64]), &148.into()));
    let arguments = launch["arguments"].as_array().expect("arguments");
    assert_eq!((&arguments[0]["role"], &arguments[0]["value"]), (&"a".into(), &"q".into()));
    assert!(arguments[0]["address"].as_str().expect("text").starts_with("0x"), "{launch}");
    assert_eq!(launch["workspace"]["poison"], 255);
    let text = String::from_utf8(machine.run("0", &["replay", &file, "--debug"]).stdout).expect("text");
    assert!(text.contains("launch of segment 0: ") && text.contains(" y0 "), "{text}");

    let command = fs::read_to_string(machine.path("bundle/kernels/0/command.txt")).expect("a command");
    assert!(command.contains("-lineinfo"), "{command}");
    let again = json(&machine.run("0", &["replay", &bundle, "--json"]));
    assert_eq!((&again["ok"], &again["ran_kernels"]), (&true.into(), &2.into()), "{again}");
    assert!(again["segments"][0]["launch"].is_object(), "the bundle is in debug mode");
    // On another device it is compared within the tolerance of roundings.
    let elsewhere = json(&machine.run("none", &["replay", &bundle, "--json"]));
    assert_eq!((&elsewhere["ok"], &elsewhere["ran_kernels"]), (&true.into(), &0.into()), "{elsewhere}");

    let verified = machine.run("0", &["verify", &file, "--debug", "--json"]);
    let launches = json(&verified)["launches"].as_array().cloned().expect("launches");
    let multiplies = |launch: &&Value| launch["launch"]["arguments"].to_string().contains("\"sfa\"");
    assert_eq!(launches.iter().filter(multiplies).count(), 2, "{}", said(&verified));
}

/// A kernel without any bound: within the error of the sum, each divisor may be zero.
const NEAR_A_POLE: &str = "fir 1
; sample: normal seed=5 M=37
func @pole(
    %a: tensor<[M, 128], f4E2M1FN>, %sfa: tensor<[M, 8], f8E4M3FN, blocked>,
    param %b: tensor<[64, 128], f4E2M1FN>, param %sfb: tensor<[64, 8], f8E4M3FN, blocked>
) {
  %p = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 64], f32>
  %zero = sub %p, %p : tensor<[M, 64], f32>
  %tiny = constant {value = 1e-9} : tensor<[], f32>
  %near = add %zero, %tiny : tensor<[M, 64], f32>
  %y = reciprocal %near : tensor<[M, 64], f32>
  return %y
}
";

#[test]
fn a_value_without_a_bound_is_not_called_wrong_and_still_gives_exit_1() {
    let run = |defines: &str, command: &str| {
        let machine = Machine::with_program(NEAR_A_POLE, defines);
        let file = machine.name("program.fir");
        let output = machine.run("0", &[command, &file, "--require-kernels"]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let report = json(&machine.run("0", &[command, &file, "--json"]));
        let rows = report[if command == "verify" { "rows" } else { "outputs" }].as_array().cloned();
        let row = rows.expect("rows").swap_remove(0);
        assert_eq!((&report["ok"], &row["ok"]), (&false.into(), &false.into()), "{report}");
        assert!(row.get("unbounded").is_none(), "the keys of the object are as they were");
        (String::from_utf8(output.stdout).expect("text"), row)
    };
    let (table, row) = run("", "verify");
    assert_eq!(row["mismatches"], 0, "{row}");
    assert!(table.contains("  no bound\n") && !table.contains("WRONG"), "{table}");
    assert!(table.contains("1 with too many elements without a bound"), "{table}");
    let (report, row) = run("", "replay");
    assert_eq!(row["mismatches"], 0, "{row}");
    assert!(report.contains("NO BOUND") && !report.contains("MISMATCH"), "{report}");
    assert!(report.contains("2368 without a bound, more than 1 in 50"), "{report}");

    // A kernel that writes nothing is wrong, with or without a bound.
    let (table, row) = run("-DWRITES_NOTHING", "verify");
    assert_eq!(row["mismatches"], 2368, "{row}");
    assert!(table.contains("WRONG"), "{table}");
    let (report, _) = run("-DWRITES_NOTHING", "replay");
    assert!(report.contains("MISMATCH") && !report.contains("NO BOUND"), "{report}");
}

#[test]
fn a_run_that_fails_on_the_device_is_kept_and_replayed_elsewhere() {
    let machine = Machine::with_program(PROGRAM, "-DRUN_STATUS=719");
    let (file, bundle) = (machine.name("program.fir"), machine.name("bundle"));
    let output = machine.run("0", &["replay", &file, "--debug", "--json", "--bundle", &bundle]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let error = json(&output);
    assert_eq!((&error["fault"], &error["launch"]["segment"]), (&"device".into(), &0.into()), "{error}");
    let shown = said(&output);
    assert!(
        shown.contains("in segment 0 (%h = scaled_mma): ") && shown.contains("launch of segment 0: "),
        "{shown}"
    );
    assert!(shown.contains("the bundle lacks outputs.safetensors: the run failed"), "{shown}");
    assert_eq!(read(&machine.path("bundle/error.json"))["launch"], error["launch"]);

    let elsewhere = machine.run("none", &["replay", &bundle, "--json"]);
    assert_eq!(elsewhere.status.code(), Some(0), "{}", said(&elsewhere));
    let notes = json(&elsewhere)["notes"].to_string();
    assert!(notes.contains("the recorded run failed, and this one did not"), "{notes}");
    assert_eq!(machine.run("0", &["replay", &bundle]).status.code(), Some(3), "here it fails again");

    // A bundle of one segment: its inputs come from the fallback, because the device is lost.
    let second = second_product(&json(&elsewhere)).to_string();
    let output = machine.run("0", &["replay", &file, "--bundle", &bundle, "--segment", &second]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        said(&output).contains("the bundle lacks the inputs of the segment in that run"),
        "{}",
        said(&output)
    );
    let report = json(&machine.run("none", &["replay", &bundle, "--json"]));
    assert_eq!((&report["ok"], &report["kernels"]), (&true.into(), &1.into()), "{report}");
}
