//! `fourfold import`, and replays of what it writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;
use serde_json::Value;

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name)
}

fn fourfold(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fourfold"))
        .args(arguments)
        .env("FOURFOLD_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/import-cache"))
        .output()
        .expect("the program starts")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Writes `x` and `expected.y` of a linear.
fn write_oracle(model: &Path, name: &str, file: &Path) {
    let bytes = fs::read(model.join("expected.safetensors")).expect("the expectations");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let of = |suffix: &str| tensors.tensor(&format!("{name}.{suffix}")).expect("the tensor");
    let views = [("x", of("x")), ("expected.y", of("y"))];
    fs::write(file, safetensors::serialize(views, None).expect("it serializes")).expect("it is written");
}

#[test]
fn an_imported_linear_replays_on_the_tensors_of_the_model() {
    let folder = tempfile::tempdir().expect("a folder");
    // Slices, transposed experts, blocked scales, a high nibble that comes first.
    for (case, name, kernels) in [
        ("gptoss-mxfp4", "model.layers.0.mlp.experts.2.gate_up_proj", 0),
        ("modelopt-nvfp4-gpt-oss", "model.layers.0.mlp.experts.3.down_proj", 1),
        ("torchao-nvfp4-static", "model.layers.0.mlp.up_proj", 1),
        ("comfy-nvfp4", "model.layers.0.self_attn.o_proj", 0),
    ] {
        let (source, output) = (model(case), folder.path().join(case));
        let imported = fourfold(&[
            &"import",
            &source,
            &"-o",
            &output,
            &"--select",
            &name,
            &"--input-type",
            &"f32",
            &"--output-type",
            &"f32",
            &"--target",
            &"sm_100a",
            &"--device",
            &"none",
            &"--json",
        ]);
        assert_eq!(imported.status.code(), Some(0), "{imported:?}");
        let report = json(&imported);
        let program = &report["programs"][0];
        assert_eq!(report["programs"].as_array().map(Vec::len), Some(1));
        assert_eq!((&program["name"], &program["kind"]), (&Value::from(name), &Value::from("linear")));
        assert_eq!(program["kernels"], kernels, "{case}");
        let codes = program["codes"].as_array().expect("a list");
        assert!(kernels == 1 || codes.contains(&Value::from("not_scaled_mma")), "{case}: {codes:?}");
        let oracle = folder.path().join("oracle.safetensors");
        write_oracle(&source, name, &oracle);
        let file = program["file"].as_str().expect("a path");
        let replayed = fourfold(&[
            &"replay",
            &file,
            &"--data",
            &oracle,
            &"--tolerance",
            &"y=1e-5",
            &"--device",
            &"none",
            &"--json",
        ]);
        assert_eq!(replayed.status.code(), Some(0), "{case}: {replayed:?}");
        assert_eq!(json(&replayed)["outputs"][0]["expected"], "expected.y", "{case}");
    }
}

#[test]
fn what_is_left_out_is_listed_and_what_is_wrong_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("programs");
    let source = model("ct-nvfp4-mixed-fp8");
    let imported = fourfold(&[&"import", &source, &"-o", &output, &"--device", &"none", &"--m", &"rows"]);
    assert_eq!(imported.status.code(), Some(0), "{imported:?}");
    let text = String::from_utf8_lossy(&imported.stdout).into_owned();
    assert!(text.contains("left out lm_head: `lm_head.weight` is BF16 [48, 192], which is not quantized"));
    assert!(text.contains("linear model.layers.0.self_attn.q_proj: no kernel (not_scaled_mma), "), "{text}");
    let last = text.lines().last().expect("a line");
    assert!(last.contains(" programs with ") && last.contains(" kernels on "), "{last}");
    let program = fs::read_to_string(output.join("model.layers.0.mlp.up_proj.fir")).expect("the program");
    assert!(program.contains("%x: tensor<[rows, 192], bf16>"), "{program}");

    let missing = folder.path().join("none");
    let wrong = folder.path().join("wrong");
    fs::create_dir(&wrong).expect("a folder");
    fs::write(wrong.join("model.safetensors"), "12345678").expect("a file");
    let config = source.join("config.json");
    let standard_input = Path::new("-");
    let cases: [(&Path, &[&str], &str); 6] = [
        (&config, &[], "config.json` is not a torch.export graph: "),
        (standard_input, &[], "a model cannot be read from the standard input: name a folder or a file"),
        (&missing, &[], "none"),
        (&wrong, &[], "model.safetensors"),
        (&source, &["--select", "zzz"], "`zzz` selects none"),
        (&source, &["--m", "4"], "`4` is not a symbol"),
    ];
    for (source, more, part) in cases {
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"import", &source, &"-o", &output, &"--json"];
        arguments.extend(more.iter().map(|argument| argument as &dyn AsRef<std::ffi::OsStr>));
        let failed = fourfold(&arguments);
        let report = json(&failed);
        assert_eq!((failed.status.code(), &report["ok"]), (Some(2), &Value::from(false)), "{report}");
        assert!(report["error"].as_str().is_some_and(|error| error.contains(part)), "{report}");
    }
}

#[test]
fn programs_of_an_earlier_import_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("programs");
    let source = model("torchao-nvfp4-static");
    let import = |glob: &str| {
        let imported = fourfold(&[
            &"import",
            &source,
            &"-o",
            &output,
            &"--select",
            &glob,
            &"--device",
            &"none",
            &"--json",
        ]);
        assert_eq!(imported.status.code(), Some(0), "{imported:?}");
        (json(&imported)["other_files"].clone(), String::from_utf8_lossy(&imported.stderr).into_owned())
    };
    let (count, errors) = import("*.up_proj");
    assert!(count == 0 && !errors.contains("note"), "{errors}");
    let (count, errors) = import("*.down_proj");
    assert!(count == 1 && errors.contains("programs has another .fir file, which"), "{errors}");
    fs::write(output.join("other.fir"), "").expect("a file");
    fs::write(output.join("other.txt"), "").expect("a file");
    let (count, errors) = import("*.up_proj");
    assert!(count == 2 && errors.contains("programs has 2 other .fir files, which"), "{errors}");

    // The same names: nothing is left over. One program has no plural.
    let again = fourfold(&[&"import", &source, &"-o", &folder.path().join("one"), &"--select", &"*.up_proj"]);
    let text = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(text.contains("\n1 program with 1 kernel on "), "{text}");
}

#[test]
fn an_import_without_programs_gives_exit_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, output) = (folder.path().join("float"), folder.path().join("programs"));
    fs::create_dir(&source).expect("a folder");
    let weight =
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1, 2], &[0; 8]).expect("a tensor");
    let file = safetensors::serialize([("layer.weight", weight)], None).expect("it serializes");
    fs::write(source.join("model.safetensors"), file).expect("a file");
    let imported = fourfold(&[&"import", &source, &"-o", &output, &"--device", &"none", &"--json"]);
    let (report, errors) = (json(&imported), String::from_utf8_lossy(&imported.stderr).into_owned());
    assert_eq!((imported.status.code(), &report["ok"]), (Some(2), &Value::from(false)), "{report}");
    assert_eq!(report["left_out"][0]["code"], "not_quantized", "{report}");
    assert!(errors.contains("error: nothing was imported: every part of "), "{errors}");
}

#[test]
fn a_configuration_above_the_limit_is_bad_input_and_a_name_takes_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, output) = (folder.path().join("model"), folder.path().join("programs"));
    fs::create_dir(&source).expect("a folder");
    let view = |bytes: &'static [u8]| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![2, 2], bytes).expect("a tensor")
    };
    let tensors = [("a\nleft out b.weight", view(&[0; 4]))];
    let bytes = safetensors::serialize(tensors, None).expect("it serializes");
    fs::write(source.join("model.safetensors"), bytes).expect("it is written");
    let import = || fourfold(&[&"import", &source, &"-o", &output, &"--device", &"none"]);
    let imported = import();
    let text = String::from_utf8_lossy(&imported.stdout).into_owned();
    assert!(text.contains("left out a\\nleft out b:") && !text.contains("\nleft out b"), "{text}");
    fs::write(source.join("config.json"), "[".repeat(5 << 20)).expect("it is written");
    let failed = import();
    let error = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(2), "{error}");
    assert!(error.contains("config.json") && error.contains("size limit"), "{error}");
}
