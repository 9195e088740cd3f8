//! Segments of the device tier on the command line: what must run there, and the memory between them.

use serde_json::Value;

use super::commands::{exit_code, fixture, fourfold, json, text};

/// A standalone quantization, which is a segment of the device tier.
const QUANTIZATION: &str = "fir 1
; sample: normal seed=7 M=5
func @quantization(%x: tensor<[M, 64], f32>, %g: tensor<[], f32>) {
  %r = relu %x : tensor<[M, 64], f32>
  %q, %sq = block_quantize %r, %g {block = 16} : tensor<[M, 64], f4E2M1FN>, tensor<[M, 4], f8E4M3FN, blocked>
  return %q, %sq
}
";

#[test]
fn explain_prints_the_memory_plan_of_a_program_without_fallback() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("layers.fir");
    let source = "fir 1
func @layers(
    %x: tensor<[M, 64], f4E2M1FN>, %sx: tensor<[M, 4], f8E4M3FN, blocked>,
    param %w1: tensor<[96, 64], f4E2M1FN>, param %sw1: tensor<[96, 4], f8E4M3FN, blocked>,
    param %w2: tensor<[64, 96], f4E2M1FN>, param %sw2: tensor<[64, 6], f8E4M3FN, blocked>,
    param %g: tensor<[], f32>
) {
  %a = scaled_mma %x, %sx, %w1, %sw1 {block = 16} : tensor<[M, 96], f32>
  %q, %sq = block_quantize %a, %g {block = 16} : tensor<[M, 96], f4E2M1FN>, tensor<[M, 6], f8E4M3FN, blocked>
  %y = scaled_mma %q, %sq, %w2, %sw2 {block = 16} : tensor<[M, 64], f32>
  return %y
}
";
    std::fs::write(&file, source).expect("it can be written");
    let file = file.display().to_string();
    let explain = |arguments: &[&str]| {
        fourfold(&[&["explain", &file, "--target", "sm_100a", "--memory"], arguments].concat())
    };
    let memory = &json(&explain(&["--symbol", "M=37", "--json"]))["memory"];
    // Codes of 37 rows of 48 bytes, and one block of 128 rows of scales.
    let expected = serde_json::json!([
        { "value": "q", "offset": 0, "bytes": 1776, "first": 0, "last": 1 },
        { "value": "sq", "offset": 1792, "bytes": 1024, "first": 0, "last": 1 },
    ]);
    assert_eq!((&memory["bytes"], &memory["steps"], &memory["parts"]), (&2816.into(), &2.into(), &expected));
    let shown = text(&explain(&["--symbol", "M=37"]).stdout);
    assert!(shown.contains("memory: 2816 bytes without workspaces; 2816 are live at once"), "{shown}");
    let output = explain(&[]);
    assert_eq!(exit_code(&output), 2);
    assert!(text(&output.stderr).contains("`--symbol M=EXTENT`"), "{}", text(&output.stderr));
    assert_eq!(exit_code(&explain(&["--symbol", "K=3"])), 2, "there is no such symbol");
    assert_eq!(exit_code(&fourfold(&["explain", &file, "--symbol", "M=3"])), 2, "only for --memory");
    let other =
        json(&fourfold(&["explain", &file, "--target", "cpu", "--memory", "--symbol", "M=3", "--json"]));
    assert_eq!(other["memory"]["reason"], "fallback_segment");
    assert!(json(&fourfold(&["explain", &file, "--json"]))["memory"].is_null());
}

#[test]
fn required_device_segments_that_did_not_run_give_exit_3_and_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("quantization.fir").display().to_string();
    std::fs::write(&file, QUANTIZATION).expect("a file");
    let arguments = ["verify", &file, "--target", "sm_120a", "--device", "none", "--json"];
    let output = fourfold(&arguments);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!((&report["ok"], &report["left_out"]), (&true.into(), &serde_json::json!([])), "{report}");
    assert_eq!((&report["kernels"], &report["ran_device_segments"]), (&0.into(), &0.into()), "{report}");
    let planned = report["device_segments"].as_u64().expect("a number");
    let off = report["off_device"].as_array().expect("a list");
    assert!(planned >= 1 && off.len() as u64 == planned, "{report}");
    let quantizes = |off: &&Value| off["ops"].to_string().contains("block_quantize");
    let named = off.iter().find(quantizes).expect("the segment is listed");
    assert_eq!(
        (&named["reason"], &named["fixture"]),
        (&"no_device".into(), &file.as_str().into()),
        "{named}"
    );
    let rows = report["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["value"] == "q").expect("a row for the codes");
    assert_eq!(
        (&row["kind"], &row["ran"], &row["mismatches"]),
        (&"device".into(), &"fallback".into(), &0.into())
    );
    assert!(
        row["plan"].is_string() && row["sizes"].as_str().is_some_and(|sizes| sizes.contains("M=5")),
        "{row}"
    );

    let output = fourfold(&[&arguments[..], &["--require-device"]].concat());
    assert_eq!((exit_code(&output), &json(&output)["ok"]), (3, &false.into()), "{}", text(&output.stderr));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("error: --require-device: ") && stderr.contains("block_quantize"), "{stderr}");
    // Nothing of the device tier was planned, which does not meet the requirement either.
    let none = fixture("shapes/exact_m1.fir").display().to_string();
    let output = fourfold(&["verify", &none, "--target", "cpu", "--require-device"]);
    assert_eq!(exit_code(&output), 3);
    assert!(text(&output.stderr).contains("no device segment was planned"), "{}", text(&output.stderr));
    assert_eq!(exit_code(&fourfold(&["verify", &none, "--target", "cpu"])), 0);
}

#[test]
fn a_segment_without_elements_needs_no_gpu() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("empty.fir").display().to_string();
    std::fs::write(&file, QUANTIZATION.replace("M=5", "M=0")).expect("a file");
    let output =
        fourfold(&["verify", &file, "--target", "sm_120a", "--device", "none", "--require-device", "--json"]);
    let report = json(&output);
    assert_eq!((exit_code(&output), &report["off_device"]), (0, &serde_json::json!([])), "{report}");
    assert_eq!(report["device_segments"], report["ran_device_segments"], "{report}");
}
