//! The command line as people and scripts use it: exit codes, the JSON object, damaged input.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;

/// The cache of these tests, so that they neither read nor change another one.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/cli-cache");

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

pub fn fourfold(arguments: &[&str]) -> Output {
    // Without a GPU, the tests show the same on every machine.
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
    command.args(arguments).env("FOURFOLD_DEVICE", "none").env("FOURFOLD_CACHE_DIR", CACHE);
    command.env_remove("FOURFOLD_CACHE_TIERS").env_remove("FOURFOLD_CACHE_SIZE");
    command.output().expect("the program starts")
}

pub fn exit_code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {}", text(&output.stderr)))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", text(&output.stdout), text(&output.stderr)))
}

/// Writes the data of `minilm_ffn` with some tensors changed; the file lives as long as the folder.
fn edited_data(folder: &Path, name: &str, edit: impl Fn(&str, &mut Vec<usize>, &mut Vec<u8>)) -> String {
    let bytes = std::fs::read(fixture("minilm_ffn0.safetensors")).expect("the data can be read");
    let tensors = SafeTensors::deserialize(&bytes).expect("the data are well-formed");
    let mut edited = Vec::new();
    for (name, view) in tensors.iter() {
        let (mut shape, mut data) = (view.shape().to_vec(), view.data().to_vec());
        edit(name, &mut shape, &mut data);
        edited.push((name.to_owned(), view.dtype(), shape, data));
    }
    let views = edited.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("the edit kept the size right"))
    });
    let file = folder.join(name);
    std::fs::write(&file, safetensors::serialize(views, None).expect("it serializes"))
        .expect("it can be written");
    file.display().to_string()
}

fn path(name: &str) -> String {
    fixture(name).display().to_string()
}

#[test]
fn replay_matches_every_expected_tensor_and_says_what_ran() {
    let output = fourfold(&["replay", &path("minilm_ffn.fir"), "--json"]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!(report["ok"], true);
    assert_eq!(report["target"], "sm_100a");
    assert_eq!(report["device"], Value::Null);
    assert_eq!((&report["kernels"], &report["ran_kernels"]), (&Value::from(2), &Value::from(0)));
    let kernels: Vec<&Value> =
        report["segments"].as_array().expect("segments").iter().filter(|s| s["kind"] == "kernel").collect();
    assert_eq!(kernels.len(), 2);
    for kernel in kernels {
        assert_eq!(
            (&kernel["ran"], &kernel["reason"]),
            (&Value::from("fallback"), &Value::from("no_device"))
        );
    }
    let limits = [("fc1", 1e-5), ("gelu", 1e-5), ("gelu_bf16", 1e-5), ("fc2", 1e-4), ("out", 1e-5)];
    for (name, limit) in limits {
        let outputs = report["outputs"].as_array().expect("outputs");
        let output = outputs.iter().find(|output| output["name"] == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(output["ok"], true, "{name}");
        assert!(output["tolerance"].as_f64().expect("a tolerance") <= limit, "{name}");
        // fc1 and gelu are fused away inside the first kernel segment, and fc2 inside the second.
        let source = if ["fc1", "gelu", "fc2"].contains(&name) { "interpreter" } else { "run" };
        assert_eq!(output["source"], source, "{name}");
    }
    let ops = report["decisions"].as_array().expect("decisions");
    assert_eq!(ops.len(), 12);
    assert!(ops.iter().any(|d| d["op"] == "%fc1.product = scaled_mma" && d["code"].is_null()));
    assert!(ops.iter().any(|d| d["op"] == "%out = layer_norm" && d["code"].is_string()));
}

#[test]
fn numbers_that_an_op_does_not_accept_are_bad_input_and_no_bug() {
    let grouped = "%ends = constant {value = [3, 2]} : tensor<[2], i32>
  %y = grouped_scaled_mma %x, %w, %s, %ends {block = 16} : tensor<[5, 8], f32>";
    let routed = "%ids = constant {value = [0, 3, 1, 1, 0]} : tensor<[5, 1], i32>
  %p, %r, %y = group_rows %ids {groups = 2} : tensor<[5], i32>, tensor<[5], i32>, tensor<[2], i32>";
    let padded = "%ends = constant {value = [2, 2147483647]} : tensor<[2], i32>
  %y = padded_ends %ends {multiple = 1024} : tensor<[2], i32>";
    let in_scales = "%ends = constant {value = [2, 5]} : tensor<[2], i32>
  %in_sfa = constant {value = [100, 256]} : tensor<[2], i32>
  %a, %sfa.linear = block_quantize %x {block = 32, scale_rounding = floor} : tensor<[5, 32], f4E2M1FN>, \
  tensor<[5, 1], f8E8M0FNU, linear>
  %y = group_scales %sfa.linear, %ends, %in_sfa : tensor<[256, 1], f8E8M0FNU, blocked>";
    for (body, message) in [
        (padded, "the end of padded group 1 is 2147484672; expected a multiple of 1024"),
        (in_scales, "the end of padded group 0 is 100; expected a multiple of 128 from 2 to 256"),
        (grouped, "offset 2, element 1 of the offsets, is outside 3..=5"),
        (routed, "id 3, element 1 of the ids, is not one of 2 groups"),
    ] {
        let program = format!(
            "fir 1\n; sample: normal seed=0\nfunc @main(%x: tensor<[5, 32], bf16>, %w: tensor<[2, 8, 32], f4E2M1FN>, \
             %s: tensor<[2, 8, 2], f8E4M3FN, blocked>) {{\n  {body}\n  return %y\n}}\n"
        );
        let file = tempfile::Builder::new().suffix(".fir").tempfile().expect("a file");
        std::fs::write(file.path(), program).expect("it can be written");
        let output = fourfold(&["replay", file.path().to_str().expect("a name"), "--target", "cpu"]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
}

#[test]
fn replay_prints_a_summary_and_with_v_the_whole_report() {
    let file = path("minilm_ffn.fir");
    let summary = text(&fourfold(&["replay", &file]).stdout);
    // Seven segments, five expectations, and what is said about the run.
    assert!(summary.lines().count() <= 18, "{summary}");
    let verbose_only =
        ["justified by", "requires that", "decisions:", "L=1 M=M N=1536 K=384", "unsupported_epilogue_op"];
    assert!(verbose_only.iter().all(|words| !summary.contains(words)), "{summary}");
    // The summary names the tier of each segment, the reason, each comparison and the verdict.
    let ran = |line: &str| {
        line.contains("nvfp4_scaled_mm+alpha+add+gelu>bf16 ") && line.contains("  ran on the fallback")
    };
    assert!(summary.lines().any(ran), "{summary}");
    for words in [
        "0 of 2 kernel segments ran as a kernel",
        "no_device: no GPU of target sm_100a was found",
        "row+mean+sub+mul+mean+add+rsqrt",
        "%gelu_bf16  against expected.gelu_bf16",
        "ok: 5 of 5 expectations met",
    ] {
        assert!(summary.contains(words), "{words}: {summary}");
    }
    for option in ["-v", "--verbose"] {
        let report = text(&fourfold(&["replay", &file, option]).stdout);
        assert!(verbose_only.iter().all(|words| report.contains(words)), "{report}");
        assert!(report.ends_with("ok: 5 of 5 expectations met\n"), "{report}");
    }
    let plan = text(&fourfold(&["explain", &file]).stdout);
    assert!(verbose_only.iter().all(|words| plan.contains(words)), "{plan}");
    let object = |arguments: &[&str]| json(&fourfold(arguments))["decisions"].clone();
    assert_eq!(object(&["replay", &file, "--json"]), object(&["replay", &file, "-v", "--json"]));
}

#[test]
fn replay_runs_the_same_layer_cut_to_37_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = edited_data(folder.path(), "cut.safetensors", |_, shape, data| {
        if shape.len() == 2 && shape[0] == 91 {
            data.truncate(data.len() / 91 * 37);
            shape[0] = 37;
        }
    });
    let output = fourfold(&["replay", &path("minilm_ffn.fir"), "--data", &data, "--json"]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stdout));
    assert_eq!(json(&output)["symbols"]["M"], 37);
}

#[test]
fn an_error_of_a_thousandth_in_one_element_gives_exit_1_and_names_it() {
    for (name, columns) in [("fc1", 1536), ("gelu", 1536), ("fc2", 384), ("out", 384)] {
        let folder = tempfile::tempdir().expect("a folder");
        let (row, column) = (53, 211);
        let data = edited_data(folder.path(), "wrong.safetensors", |tensor, _, data| {
            if tensor == format!("expected.{name}") {
                let (values, _) = data.as_chunks_mut::<4>();
                let largest = values.iter().map(|v| f32::from_le_bytes(*v).abs()).fold(0.0, f32::max);
                let element = &mut values[row * columns + column];
                *element = (f32::from_le_bytes(*element) + largest * 1e-3).to_le_bytes();
            }
        });
        let output = fourfold(&["replay", &path("minilm_ffn.fir"), "--data", &data]);
        assert_eq!(exit_code(&output), 1, "{name}");
        let said = text(&output.stdout);
        assert!(said.contains("[53, 211]") && said.contains("MISMATCH"), "{name}: {said}");
        let report = json(&fourfold(&["replay", &path("minilm_ffn.fir"), "--data", &data, "--json"]));
        let outputs = report["outputs"].as_array().expect("outputs");
        let wrong: Vec<&Value> = outputs.iter().filter(|output| output["ok"] == false).collect();
        assert_eq!(wrong.len(), 1, "{name}");
        assert_eq!((&wrong[0]["name"], &wrong[0]["mismatches"]), (&Value::from(name), &Value::from(1)));
    }
}

#[test]
fn one_step_of_a_bf16_expectation_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let largest = std::cell::Cell::new(0);
    let data = edited_data(folder.path(), "wrong.safetensors", |tensor, _, data| {
        if tensor == "expected.gelu_bf16" {
            // One step of the largest element: a step of a tiny one is far below 1e-5 of the largest.
            let (values, _) = data.as_chunks_mut::<2>();
            let magnitude = |bits: &[u8; 2]| u16::from_le_bytes(*bits) & 0x7FFF;
            let index = (0..values.len()).max_by_key(|i| magnitude(&values[*i])).expect("it has elements");
            values[index] = (u16::from_le_bytes(values[index]) + 1).to_le_bytes();
            largest.set(index);
        }
    });
    let output = fourfold(&["replay", &path("minilm_ffn.fir"), "--data", &data]);
    let said = text(&output.stdout);
    assert_eq!(exit_code(&output), 1, "{said}");
    let index = format!("[{}, {}]", largest.get() / 1536, largest.get() % 1536);
    assert!(said.contains(&index), "{index}: {said}");
}

#[test]
fn damaged_data_give_exit_2_and_name_the_tensor() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(fixture("minilm_ffn0.safetensors")).expect("the data can be read");
    let damaged = folder.path().join("damaged.safetensors");
    let run = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).expect("it can be written");
        fourfold(&["replay", &path("minilm_ffn.fir"), "--data", &damaged.display().to_string()])
    };
    for length in [0, 1, 7, 8, 100, 2000, whole.len() / 2, whole.len() - 1] {
        let output = run(&whole[..length]);
        assert_eq!(exit_code(&output), 2, "cut to {length} bytes");
        assert!(text(&output.stderr).contains("damaged.safetensors"), "{}", text(&output.stderr));
    }
    let mut hostile = whole.clone();
    hostile[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(exit_code(&run(&hostile)), 2);

    type Edit = fn(&mut Vec<usize>, &mut Vec<u8>);
    let cases: [(&str, Edit); 3] = [
        ("fc1.weight", |shape, data| {
            shape[0] -= 1;
            data.truncate(data.len() - shape[1]);
        }),
        ("x", |shape, _| shape.swap(0, 1)),
        ("expected.out", |shape, data| {
            shape[0] = 90;
            data.truncate(90 * 384 * 4);
        }),
    ];
    for (tensor, edit) in cases {
        let data = edited_data(folder.path(), "inconsistent.safetensors", |name, shape, data| {
            if name == tensor {
                edit(shape, data);
            }
        });
        let output = fourfold(&["replay", &path("minilm_ffn.fir"), "--data", &data]);
        assert_eq!(exit_code(&output), 2, "{tensor}");
        assert!(text(&output.stderr).contains(tensor), "{tensor}: {}", text(&output.stderr));
    }
}

#[test]
fn an_expectation_of_a_wrong_shape_names_both_shapes_and_the_other_values_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = edited_data(folder.path(), "shape.safetensors", |name, shape, data| {
        if name == "expected.out" {
            shape[0] = 90;
            data.truncate(90 * 384 * 4);
        }
    });
    let file = path("minilm_ffn.fir");
    let bundle = folder.path().join("bundle").display().to_string();
    let output = fourfold(&["replay", &file, "--data", &data, "--bundle", &bundle, "--json"]);
    assert_eq!(exit_code(&output), 2, "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!((&report["ok"], &report["fault"]), (&false.into(), &"invalid_input".into()));
    let outputs = report["outputs"].as_array().expect("outputs");
    let unfit: Vec<&Value> = outputs.iter().filter(|output| output["error"].is_string()).collect();
    assert_eq!((unfit.len(), &unfit[0]["name"], &unfit[0]["ok"]), (1, &"out".into(), &false.into()));
    let words = "`expected.out` is F32 of shape [90, 384], but %out is f32 of shape [91, 384]";
    assert!(unfit[0]["error"].as_str().expect("words").contains(words), "{}", unfit[0]);
    assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    for name in ["fc1", "gelu", "fc2", "gelu_bf16"] {
        assert!(
            outputs.iter().any(|output| output["name"] == name && output["ok"] == true),
            "{name}: {report}"
        );
    }
    // The interpreter is the reference instead.
    let with_interpreter = |output: &&Value| output["name"] == "out" && output["expected"] == "interpreter";
    assert_eq!(outputs.iter().filter(with_interpreter).count(), 1, "{report}");
    assert!(Path::new(&bundle).join("outputs.safetensors").is_file(), "what the run gave is kept");
    let output = fourfold(&["verify", &file, "--data", &data, "--json"]);
    assert_eq!(exit_code(&output), 2, "{}", text(&output.stderr));
    let rows = json(&output)["rows"].as_array().cloned().expect("rows");
    let is_unfit = |row: &&Value| row["fault"] == "invalid_input" && row["value"] == "out";
    assert_eq!(rows.iter().filter(is_unfit).count(), 1, "{rows:?}");
    assert!(rows.iter().any(|row| row["value"] == "gelu_bf16" && row["ok"] == true), "{rows:?}");
}

#[test]
fn a_folder_without_programs_is_no_success() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("below")).expect("a folder");
    std::fs::write(folder.path().join("note.txt"), "").expect("a file");
    let name = folder.path().display().to_string();
    for arguments in
        [&["verify", &name, "--json"][..], &["verify", &path("shapes/exact_m1.fir"), &name, "--json"]]
    {
        let output = fourfold(arguments);
        assert_eq!(exit_code(&output), 2, "{}", text(&output.stderr));
        let object = json(&output);
        assert_eq!((&object["ok"], &object["fault"]), (&false.into(), &"invalid_input".into()), "{object}");
        let error = object["error"].as_str().expect("words");
        assert!(error.contains(&name) && error.contains(".fir"), "{error}");
    }
    // If no program has a kernel, the report says that nothing was compared.
    let output = fourfold(&["verify", &path("reject/k_alignment.fir")]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("nothing was compared"), "{}", text(&output.stdout));
    assert_eq!(json(&fourfold(&["verify", &path("reject/k_alignment.fir"), "--json"]))["compared"], 0);
}

#[test]
fn a_replay_that_compares_nothing_says_so_and_is_only_right_where_there_is_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, source: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, source).expect("it can be written");
        file.display().to_string()
    };
    // A product too large for the interpreter.
    let large = write(
        "large.fir",
        "fir 1
; sample: exact seed=1
func @f(%a: tensor<[4096, 1300], f32>, %b: tensor<[4096, 1300], f32>) {
  %d = mma %a, %b : tensor<[4096, 4096], f32>
  return %d
}
",
    );
    let output = fourfold(&["replay", &large, "--json"]);
    assert_eq!(exit_code(&output), 3, "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!((&report["ok"], &report["fault"]), (&false.into(), &"resource_limit".into()), "{report}");
    assert_eq!((&report["compared"], report["notes"].as_array().map(Vec::len)), (&0.into(), Some(1)));
    let said = text(&fourfold(&["replay", &large]).stdout);
    assert!(said.contains("NOTHING WAS COMPARED") && said.contains("expected.NAME"), "{said}");
    let rows = write(
        "rows.fir",
        "fir 1
func @f(%x: tensor<[M], f32>) {
  %y = neg %x : tensor<[M], f32>
  return %y
}
",
    );
    let report = json(&fourfold(&["replay", &rows, "--symbol", "M=3", "--json"]));
    assert_eq!((&report["ok"], &report["compared"]), (&true.into(), &1.into()), "the interpreter counts");
    let output = fourfold(&["replay", &rows, "--symbol", "M=0", "--json"]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    assert_eq!((&json(&output)["ok"], &json(&output)["compared"]), (&true.into(), &0.into()));
    let said = text(&fourfold(&["replay", &rows, "--symbol", "M=0"]).stdout);
    assert!(said.contains("nothing was compared: no value has elements"), "{said}");
    // The error on a symbol without an extent names the option that sets it.
    let output = fourfold(&["replay", &rows]);
    assert_eq!(exit_code(&output), 2);
    let said = text(&output.stderr);
    assert!(said.contains("`M`") && said.contains("--symbol M=EXTENT"), "{said}");
}

#[test]
fn a_directive_that_is_nearly_right_is_an_error_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("near.fir");
    let source = "fir 1
; smaple: exact seed=1 M=3
func @f(%x: tensor<[M], f32>) {
  return %x
}
";
    std::fs::write(&file, source).expect("it can be written");
    let output = fourfold(&["explain", &file.display().to_string(), "--json"]);
    assert_eq!(exit_code(&output), 2, "{}", text(&output.stderr));
    let diagnostic = &json(&output)["diagnostics"][0];
    assert_eq!((&diagnostic["code"], &diagnostic["line"]), (&"bad_directive".into(), &2.into()));
    assert!(diagnostic["message"].as_str().expect("words").contains("`sample`"), "{diagnostic}");
}

#[test]
fn an_error_names_its_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = edited_data(folder.path(), "short.safetensors", |name, shape, data| {
        if name == "ln.weight" {
            shape[0] = 380;
            data.truncate(380 * 4);
        }
    });
    let output = fourfold(&["replay", &path("minilm_ffn.fir"), "--data", &data]);
    let said = text(&output.stderr);
    assert!(said.contains("`ln.weight`") && said.contains("[384]") && said.contains("[380]"), "{said}");
    let said = text(&fourfold(&["replay", "no_such_file.fir"]).stderr);
    assert!(said.contains("No such file"), "{said}");
    let said = text(&fourfold(&["explain", env!("CARGO_MANIFEST_DIR")]).stderr);
    assert!(said.contains("not a regular file"), "{said}");
}

#[test]
fn a_given_extent_must_be_that_of_the_data() {
    let file = path("minilm_ffn.fir");
    assert_eq!(exit_code(&fourfold(&["replay", &file, "--symbol", "M=91"])), 0);
    for wrong in ["M=3", "Q=3"] {
        let output = fourfold(&["replay", &file, "--symbol", wrong]);
        assert_eq!(exit_code(&output), 2, "{wrong}: {}", text(&output.stdout));
    }
}

#[test]
fn narrow_results_of_inexact_sums_are_compared_within_their_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("narrow.fir");
    let source = "fir 1
; sample: normal seed=1
func @f(%a: tensor<[256, 512], bf16>, %b: tensor<[264, 512], bf16>) {
  %d = mma %a, %b : tensor<[256, 264], bf16>
  %wide = mma %a, %b : tensor<[256, 264], f32>
  %narrow = convert %wide : tensor<[256, 264], bf16>
  %y = neg %narrow : tensor<[256, 264], bf16>
  return %d, %y
}
";
    std::fs::write(&file, source).expect("it can be written");
    let report = json(&fourfold(&["replay", &file.display().to_string(), "--json"]));
    assert_eq!(report["ok"], true, "{report}");
    let strict = source.replace("; sample", "; tolerance: 0\n; sample");
    std::fs::write(&file, strict).expect("it can be written");
    assert_eq!(exit_code(&fourfold(&["replay", &file.display().to_string()])), 1, "nothing is hidden");
}

#[test]
fn flipped_header_bytes_never_crash() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(fixture("minilm_ffn0.safetensors")).expect("the data can be read");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let file = folder.path().join("flipped.safetensors");
    let program = folder.path().join("tiny.fir");
    std::fs::write(&program, "fir 1\nfunc @f(%ln.weight: tensor<[384], f32>) {\n  %y = neg %ln.weight : tensor<[384], f32>\n  return %y\n}\n")
        .expect("it can be written");
    for step in 0..60 {
        let mut bytes = whole.clone();
        let at = step * (header - 1) / 59;
        bytes[at] ^= 1 << (step % 8);
        std::fs::write(&file, bytes).expect("it can be written");
        let output =
            fourfold(&["replay", &program.display().to_string(), "--data", &file.display().to_string()]);
        assert!([0, 1, 2].contains(&exit_code(&output)), "byte {at}: {}", text(&output.stderr));
    }
}

#[test]
fn bad_programs_give_exit_2_with_line_and_column() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bad.fir");
    let source =
        "fir 1\nfunc @f(%x: tensor<[4], f32>) {\n  %y = relu %z : tensor<[4], f32>\n  return %y\n}\n";
    std::fs::write(&file, source).expect("it can be written");
    let name = file.display().to_string();
    let output = fourfold(&["replay", &name]);
    assert_eq!(exit_code(&output), 2);
    assert!(text(&output.stderr).contains("bad.fir:3:13"), "{}", text(&output.stderr));
    let output = fourfold(&["explain", &name, "--json"]);
    assert_eq!(exit_code(&output), 2);
    let report = json(&output);
    assert_eq!((&report["ok"], &report["diagnostics"][0]["line"]), (&Value::from(false), &Value::from(3)));

    std::fs::write(&file, [b'f', 0xFF, 0xFE]).expect("it can be written");
    assert_eq!(exit_code(&fourfold(&["explain", &name])), 2, "not UTF-8");
    assert_eq!(exit_code(&fourfold(&["explain", "no_such_file.fir"])), 2);
    assert_eq!(exit_code(&fourfold(&["explain", &path("attention.fir"), "--target", "sm_42"])), 2);
    assert_eq!(exit_code(&fourfold(&["replay"])), 2, "a usage error");
}

#[test]
fn explain_says_that_plain_mma_is_left_alone() {
    let output = fourfold(&["explain", &path("attention.fir")]);
    assert_eq!(exit_code(&output), 0);
    assert!(text(&output.stdout).contains("not_scaled_mma"));
    let report = json(&fourfold(&["explain", &path("attention.fir"), "--json"]));
    assert_eq!(report["kernels"], 0);
    let codes = report["decisions"].as_array().expect("decisions").iter();
    assert_eq!(codes.filter(|decision| decision["code"] == "not_scaled_mma").count(), 6);
}

#[test]
fn required_kernels_that_did_not_run_give_exit_3() {
    let file = path("shapes/exact_m91.fir");
    assert_eq!(exit_code(&fourfold(&["replay", &file])), 0);
    assert_eq!(exit_code(&fourfold(&["replay", &file, "--require-kernels"])), 3);
    assert_eq!(
        exit_code(&fourfold(&["replay", &file, "--require-kernels", "--target", "cpu"])),
        0,
        "none planned"
    );
    let report = json(&fourfold(&["replay", &file, "--require-kernels", "--json"]));
    assert_eq!((&report["ok"], &report["fault"]), (&false.into(), &"environment".into()));
}

#[test]
fn the_program_says_its_own_name_and_version() {
    let output = fourfold(&["--version"]);
    assert_eq!(text(&output.stdout), format!("fourfold {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_extent_is_given_once_and_quoted_text_controls_no_terminal() {
    let file = path("shapes/exact_symbolic_m.fir");
    let output = fourfold(&["replay", &file, "--symbol", "M=2", "--symbol", "M=3"]);
    assert_eq!(exit_code(&output), 2);
    assert!(text(&output.stderr).contains("--symbol `M` is given twice"), "{}", text(&output.stderr));
    let output = fourfold(&["explain", "\u{1b}[31mno.fir"]);
    assert!(text(&output.stderr).contains("\\u{1b}[31mno.fir"), "{}", text(&output.stderr));
}

#[test]
fn verify_without_a_gpu_runs_on_the_fallback_and_says_so() {
    let files = ["shapes/exact_m1", "shapes/exact_symbolic_m", "shapes/two_kernels", "reject/k_alignment"]
        .map(|name| path(&format!("{name}.fir")));
    let mut arguments = vec!["verify", "--target", "sm_120a", "--json"];
    arguments.extend(files.iter().map(String::as_str));
    let output = fourfold(&arguments);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    let report = json(&output);
    let number = |key: &str| report[key].as_u64().expect(key);
    assert_eq!(
        (&report["ok"], &report["device"], &report["emulated"]),
        (&true.into(), &Value::Null, &false.into())
    );
    assert_eq!((number("kernels"), number("ran_kernels")), (7, 0));
    let left_out = serde_json::json!([{ "file": files[3], "why": "no_kernel" }]);
    assert_eq!(report["left_out"], left_out);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(
        rows.len(),
        8,
        "one kernel at M = 1, one at four sizes, two in a row, the first with codes and scales"
    );
    for row in rows {
        assert_eq!((&row["ran"], &row["reason"]), (&"fallback".into(), &"no_device".into()), "{row}");
        assert_eq!(row["mismatches"], 0);
        assert!(row["rule"].is_string() && row["seconds"].is_number() && row["extents"].is_array(), "{row}");
    }
    assert_eq!(rows[0]["extents"], serde_json::json!([1, 1, 72, 96]));
    arguments.push("--require-kernels");
    let output = fourfold(&arguments);
    assert_eq!((exit_code(&output), &json(&output)["ok"]), (3, &false.into()));
    // Nothing was planned and nothing ran, which does not meet the requirement either.
    let output = fourfold(&["verify", &files[3], "--require-kernels"]);
    assert_eq!(exit_code(&output), 3);
    assert!(text(&output.stderr).contains("no kernel was planned"), "{}", text(&output.stderr));
    assert_eq!(exit_code(&fourfold(&["verify", &files[3]])), 0);
}

#[test]
fn verify_leaves_invalid_programs_of_a_folder_out_and_refuses_one_that_is_named() {
    let output = fourfold(&["verify", &path("errors"), "--json"]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    let left_out = json(&output)["left_out"].as_array().cloned().expect("a list");
    assert!(left_out.len() >= 50 && left_out.iter().all(|left| left["why"] == "invalid"), "{left_out:?}");
    // Programs that do not declare themselves invalid are reported: one that is, and others whose inputs cannot be had.
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");
    let good = std::fs::read_to_string(path("shapes/exact_m1.fir")).expect("a program");
    let sample = good.lines().find(|line| line.starts_with("; sample:")).expect("its inputs");
    write("broken.fir", "fir 1\nfunc @broken(");
    write("data.fir", &good.replace(sample, "; data: absent.safetensors"));
    std::os::unix::fs::symlink("nowhere", folder.path().join("dangling.fir")).expect("a link");
    write("extent.fir", &good.replace(sample, "; sample: exact seed=1").replace("<[1, ", "<[M, "));
    write("good.fir", &good);
    let output = fourfold(&["verify", &folder.path().display().to_string(), "--target", "sm_120a", "--json"]);
    assert_eq!(exit_code(&output), 2, "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!(report["ok"], false);
    let words = ["broken.fir:2:14", "cannot read", "absent.safetensors", "`M`"];
    for (row, words) in words.into_iter().enumerate() {
        let row = &report["rows"][row];
        assert_eq!(row["fault"], "invalid_input", "{row}");
        assert!(row["message"].as_str().is_some_and(|it| it.contains(words)), "{row}");
    }
    assert_eq!(report["rows"][4]["ok"], true, "the others are verified");
    // Of several folders, a row names the file with its folder.
    let other = tempfile::tempdir().expect("a folder");
    std::fs::write(other.path().join("broken.fir"), "fir 1\nfunc @broken(").expect("a file");
    let folders = [&folder, &other].map(|folder| folder.path().display().to_string());
    let output = fourfold(&["verify", &folders[0], &folders[1], "--target", "sm_120a", "--json"]);
    let named = |row: &Value| folders.clone().map(|folder| row["fixture"] == format!("{folder}/broken.fir"));
    let rows = json(&output)["rows"].as_array().cloned().expect("rows");
    assert_eq!(rows.iter().filter(|row| named(row).contains(&true)).count(), 2, "{rows:?}");
    let named = folder.path().join("extent.fir").display().to_string();
    assert_eq!(exit_code(&fourfold(&["verify", &named])), 2);
    assert_eq!(exit_code(&fourfold(&["verify", &path("errors/syntax.fir")])), 2);
    assert_eq!(exit_code(&fourfold(&["verify", &path("absent")])), 2);
}

#[test]
fn a_wrong_result_of_verify_gives_exit_1_and_names_the_element() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = edited_data(folder.path(), "wrong.safetensors", |name, _, data| {
        if name == "expected.gelu_bf16" {
            data[2 * 1700 + 1] ^= 0x80;
        }
    });
    let output = fourfold(&["verify", &path("minilm_ffn.fir"), "--data", &data]);
    assert_eq!(exit_code(&output), 1, "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("WRONG") && table.contains("%gelu_bf16, worst [1, 164]"), "{table}");
}

#[test]
fn a_gpu_that_is_not_there_and_a_target_that_cannot_be_emulated_are_refused() {
    let file = path("shapes/exact_m1.fir");
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = fourfold(&[&["replay", &file], arguments].concat());
        assert_eq!(exit_code(&output), code, "{arguments:?}");
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    };
    refused(&["--device", "4711"], 3, "");
    refused(&["--device", "first"], 2, "expected the number of a GPU or `none`");
    refused(&["--emulate", "--target", "sm_90a"], 2, "kernels for sm_120a, sm_121a, sm_100a, sm_103a can");
    let output = fourfold(&["replay", &file, "--emulate", "--json"]);
    assert_eq!(json(&output)["target"], "sm_120a");
}

#[test]
fn a_dispatch_table_replaces_the_default_and_one_that_is_none_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("it can be written");
        file.display().to_string()
    };
    let table = "schema = 1\n[[table]]\ntargets = [\"sm_100a\"]\nformats = [\"nvfp4\"]\n[table.default]\n\
                 kernel = { tile = [128, 192, 256] }\nwhy = \"measured with M = {m}\"\n";
    let (good, bad) = (write("good.toml", table), write("bad.toml", &table.replace("tile", "tiles")));
    let file = path("shapes/exact_m91.fir");
    let kernel = |arguments: &[&str]| {
        let report = json(&fourfold(&[&["explain", &file, "--json"], arguments].concat()));
        let kernels = report["segments"].as_array().expect("segments").iter();
        let found = kernels.filter(|segment| !segment["configuration"].is_null());
        let found: Vec<_> = found.map(|it| (it["configuration"].clone(), it["why"].clone())).collect();
        found.into_iter().next().expect("a kernel")
    };
    let (configuration, why) = kernel(&["--target", "sm_100a", "--dispatch", &good]);
    assert_eq!(configuration, "sm100_128x192x256_1sm_c1x1");
    assert_eq!(why, "measured with M = 91");
    for target in ["sm_120a", "sm_90a"] {
        let (own, usual) = (["--target", target, "--dispatch", &good], ["--target", target]);
        assert_eq!(kernel(&own), kernel(&usual), "it is for another target");
    }
    for command in ["explain", "replay", "verify", "compile"] {
        let output = fourfold(&[command, &file, "--target", "sm_100a", "--dispatch", &bad]);
        assert_eq!(exit_code(&output), 2, "{command}");
        let said = text(&output.stderr);
        assert!(said.contains("bad.toml: table 1, the default: `kernel`: unknown field `tiles`"), "{said}");
    }
    let missing = fourfold(&["explain", &file, "--dispatch", "/nowhere/table.toml"]);
    assert_eq!(exit_code(&missing), 2);
    assert!(text(&missing.stderr).contains("/nowhere/table.toml"), "{}", text(&missing.stderr));
}

#[test]
fn sm_90a_plans_kernels_of_its_own() {
    let file = path("shapes/exact_m1.fir");
    for command in ["explain", "replay", "verify"] {
        let report = json(&fourfold(&[command, &file, "--target", "sm_90a", "--json"]));
        let found = (&report["ok"], &report["target"], &report["kernels"]);
        assert_eq!(found, (&true.into(), &"sm_90a".into(), &1.into()), "{report}");
    }
}

#[test]
fn the_doctor_finds_a_choice_of_gpu_that_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for (device, words) in [
        ("banana", Some("expected the number of a GPU or `none`")),
        ("4711", Some("this machine has no GPU of this number")),
        ("none", None),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
        command.args(["doctor", "--json"]).env("FOURFOLD_DEVICE", device);
        let output = command.env("FOURFOLD_CACHE_DIR", folder.path()).output().expect("the program starts");
        let report = json(&output);
        let findings = report["findings"].as_array().expect("findings");
        let found = findings.iter().find(|finding| finding["name"] == "device");
        assert_eq!(found.is_some(), words.is_some(), "{device}: {report}");
        if let (Some(found), Some(words)) = (found, words) {
            assert!(found["detail"].as_str().expect("words").contains(words), "{found}");
            assert!(found["state"] == "note" && found["remedy"].is_string(), "{found}");
        }
    }
}

#[test]
fn a_symbol_can_be_given() {
    let report =
        json(&fourfold(&["replay", &path("shapes/exact_symbolic_m.fir"), "--symbol", "M=17", "--json"]));
    assert_eq!((&report["symbols"]["M"], &report["ok"]), (&Value::from(17), &Value::from(true)));
}

#[test]
fn every_command_shows_an_example() {
    for command in ["replay", "explain", "verify", "compile", "doctor"] {
        let output = fourfold(&[command, "--help"]);
        assert_eq!(exit_code(&output), 0);
        assert!(text(&output.stdout).contains("Example"), "{command}");
    }
}

#[test]
fn commands_offer_what_does_something() {
    let help = |command: &[&str]| text(&fourfold(&[command, &["--help"]].concat()).stdout);
    let which = help(&["toolchain", "which"]);
    assert!(which.contains("--nvcc") && which.contains("--cutlass"), "{which}");
    for option in ["--time-limit", "--retry", "--jobs", "--launcher", "--no-cache"] {
        assert!(!which.contains(option) && help(&["compile"]).contains(option), "{option}");
    }
    let doctor = help(&["doctor"]);
    assert!(doctor.contains("--time-limit") && !doctor.contains("--retry"), "{doctor}");
    assert_eq!(exit_code(&fourfold(&["doctor", "--launcher", "sccache"])), 2, "it is of the self-test only");
    for command in [&[][..], &["replay"], &["compile"], &["verify"], &["doctor"]] {
        let said = help(command).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("130"), "{said}");
    }
}

#[test]
fn explain_says_what_became_of_each_op_of_a_quantized_graph_and_proves_it() {
    let output = fourfold(&["explain", &path("minilm_ffn_qdq.fir"), "--json"]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    let report = json(&output);
    assert_eq!(report["kernels"], 2);
    let decisions = report["decisions"].as_array().expect("decisions");
    let decision = |op: &str| {
        decisions.iter().find(|decision| decision["op"] == op).unwrap_or_else(|| panic!("{op} is there"))
    };
    let product = decision("%fc1.product = mma");
    let segment = product["segment"].as_u64().expect("a segment") as usize;
    assert_eq!(product["became"], "%fc1.product = scaled_mma");
    assert_eq!(report["segments"][segment]["kind"], "kernel");
    assert!(product["message"].as_str().expect("a message").starts_with("became %fc1.product = scaled_mma"));
    assert_eq!(decision("%fc1.a = block_dequantize")["segment"], product["segment"]);
    assert_eq!(decision("%fc1.product.alpha = mul")["inserted"], true);
    assert_eq!(decision("%fc1 = add")["became"], Value::Null);
    // Each product contributes its scaled_mma and its alpha.
    assert_eq!(report["contracted"].as_array().map(Vec::len), Some(4));
    let proof = report["segments"][segment]["proof"].as_array().expect("a proof");
    let proof: Vec<&str> = proof.iter().filter_map(Value::as_str).collect();
    assert!(proof[0].starts_with("factors-of-dequantized-are-alpha (contract): inserted -> "), "{proof:?}");
    assert!(
        proof.contains(
            &"factors-of-dequantized-are-alpha (contract): %fc1.a = block_dequantize, %fc1.b = block_dequantize, \
              %fc1.product = mma -> %fc1.product = scaled_mma"
        ),
        "{proof:?}"
    );
    assert!(proof.contains(&"unary-joins: %gelu = gelu"), "{proof:?}");
    assert_eq!(proof.last(), Some(&"result-is-written: %gelu_bf16 = convert"));

    let shown = text(&fourfold(&["explain", &path("minilm_ffn_qdq.fir"), "--proof"]).stdout);
    assert!(proof.iter().all(|step| shown.contains(step)), "{shown}");
    let short = text(&fourfold(&["explain", &path("minilm_ffn_qdq.fir")]).stdout);
    assert!(short.contains("justified by scaled_mma-is-root") && !short.contains(proof[0]), "{short}");
}

#[test]
fn roundings_are_dropped_only_where_that_is_allowed() {
    let source = std::fs::read_to_string(fixture("minilm_ffn_qdq.fir")).expect("the program can be read");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("strict.fir");
    let data = format!("; data: {}\n", path("minilm_ffn0.safetensors"));
    let strict =
        source.replace("; allow: contract\n", "").replace("; data: minilm_ffn0.safetensors\n", &data);
    std::fs::write(&file, strict).expect("it can be written");
    let file = file.display().to_string();
    let kernels = |arguments: &[&str]| {
        let output = fourfold(arguments);
        assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
        json(&output)["kernels"].clone()
    };
    for command in ["explain", "replay"] {
        assert_eq!(kernels(&[command, &file, "--json"]), 0);
        assert_eq!(kernels(&[command, &file, "--json", "--contract"]), 2);
    }
    assert_eq!(kernels(&["verify", &file, "--json"]), 0);
    assert_eq!(kernels(&["verify", &file, "--json", "--contract"]), 2);
}

/// The role of each op in a kernel, and the rules that fuse the ops.
#[test]
fn explain_names_the_op_of_each_rule_where_outputs_are_reduced_and_quantized() {
    let source = "fir 1
func @f(
    %a: tensor<[37, 96], f4E2M1FN>, %sfa: tensor<[37, 6], f8E4M3FN, blocked>,
    param %b: tensor<[96, 96], f4E2M1FN>, param %sfb: tensor<[96, 6], f8E4M3FN, blocked>, %g: tensor<[], f32>
) {
  %p = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 96], f32>
  %two = constant {value = 2.0} : tensor<[], f32>
  %d = mul %p, %two : tensor<[37, 96], f32>
  %x = relu %d : tensor<[37, 96], f32>
  %m = reduce %x {axes = [0, 1], kind = amax} : tensor<[], f32>
  %nv, %snv = block_quantize %x, %g {block = 16} : tensor<[37, 96], f4E2M1FN>, tensor<[37, 6], f8E4M3FN, blocked>
  %h = convert %x : tensor<[37, 96], bf16>
  return %nv, %snv, %m, %h
}
";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("outputs.fir");
    std::fs::write(&file, source).expect("it can be written");
    let file = file.display().to_string();
    let output = fourfold(&["explain", &file, "--target", "sm_120a", "--json"]);
    assert_eq!(exit_code(&output), 0, "{}", text(&output.stderr));
    let report = json(&output);
    let proof = report["segments"][0]["proof"].as_array().expect("a proof");
    let proof: Vec<&str> = proof.iter().filter_map(Value::as_str).collect();
    assert_eq!(
        proof,
        [
            "scaled_mma-is-root: %p = scaled_mma",
            "binary-joins-with-operand: %d = mul",
            "unary-joins: %x = relu",
            "reduce-joins: %m = reduce",
            "quantize-joins: %nv, %snv = block_quantize",
            "convert-joins: %h = convert",
            "result-is-written: %h = convert",
        ]
    );
    for (op, message) in [
        ("%m = reduce", "output of the kernel of segment 0"),
        ("%nv, %snv = block_quantize", "output of the kernel of segment 0"),
        ("%h = convert", "conversion of the kernel of segment 0"),
        ("%two = constant", "constant of the kernel of segment 0"),
    ] {
        let decisions = report["decisions"].as_array().expect("decisions");
        let decision = decisions.iter().find(|decision| decision["op"] == op);
        assert_eq!(decision.unwrap_or_else(|| panic!("{op}: {decisions:?}"))["message"], message, "{op}");
    }
}
