//! Tensors in place in other people's files, and data in several files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// The cache of these tests, so that they neither read nor change another one.
const CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/data-cache");

/// The middle one of three experts, in a model of two files, and a bias in a file of another kind.
const PROGRAM: &str = r#"fir 1
; data: ../model/small.safetensors
; tensor: w = "experts.w"[1] in "../model/large.safetensors"
; tensor: b = bytes 4:20 in "../model/graph.bin"
; tensor: s = "norm.scale"
; tolerance: 1e-6
; expected: w = w.copy, 0 may differ
func @expert(%x: tensor<[M, 8], f32>, param %w: tensor<[4, 8], f32>, param %b: tensor<[4], f32>, param %s: tensor<[1], f32>) {
  %y = mma %x, %w : tensor<[M, 4], f32>
  %z = relu %b : tensor<[4], f32>
  %t = neg %s : tensor<[1], f32>
  return %y, %z, %t
}
"#;

/// The rows of `x`.
const ROWS: usize = 3;

struct Place {
    folder: tempfile::TempDir,
}

type Stored<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);

/// The weight of expert `e` at row `n` and column `k`, exact in bf16.
fn weight(e: usize, n: usize, k: usize) -> f64 {
    (e * 7 + n * 3 + k) as f64 / 8.0 - 1.0
}

fn x(m: usize, k: usize) -> f64 {
    0.1 * (m + 1) as f64 - 0.3 * k as f64
}

/// The exact product, with an error in one element.
fn y(error: f64) -> Vec<f64> {
    let product = |m, n| (0..8).map(|k| x(m, k) * weight(1, n, k)).sum::<f64>();
    let mut y: Vec<f64> = (0..ROWS * 4).map(|index| product(index / 4, index % 4)).collect();
    y[5] += error * y.iter().fold(0.0, |largest, v| v.abs().max(largest));
    y
}

fn f64s(values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    values.into_iter().flat_map(f64::to_le_bytes).collect()
}

fn f32s(values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    values.into_iter().flat_map(|value| (value as f32).to_le_bytes()).collect()
}

fn bf16s(values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    values
        .into_iter()
        .flat_map(|value| ((value as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec())
        .collect()
}

fn write(path: &Path, tensors: &[Stored<'_>]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).expect("the size is right"))
    });
    fs::write(path, safetensors::serialize(views, None).expect("it serializes")).expect("it is written");
}

impl Place {
    /// The program, its model without `x`, and an oracle.
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a folder") };
        for folder in ["model", "blobs", "programs"] {
            fs::create_dir(place.path(folder)).expect("a folder");
        }
        let all = (0..3 * 4 * 8).map(|index| weight(index / 32, index / 8 % 4, index % 8));
        let middle = (0..32).map(|index| weight(1, index / 8, index % 8));
        write(&place.path("blobs/4f2a"), &[("experts.w", Dtype::BF16, &[3, 4, 8], bf16s(all))]);
        // Caches of checkpoints consist of links.
        symlink("../blobs/4f2a", place.path("model/large.safetensors")).expect("a link");
        let small = [
            ("norm.scale", Dtype::F32, &[][..], f32s([2.0])),
            ("w.copy", Dtype::F32, &[4, 8], f32s(middle)),
            ("unused", Dtype::I64, &[1], vec![0; 8]),
        ];
        write(&place.path("model/small.safetensors"), &small);
        let bias = [&[9; 4][..], &f32s([1.0, -2.0, 3.0, -4.0])].concat();
        fs::write(place.path("model/graph.bin"), bias).expect("it is written");
        fs::write(place.path("programs/expert.fir"), PROGRAM).expect("it is written");
        place.oracle("oracle.safetensors", y(0.0));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes `x` and `expected.y`, both in f64.
    fn oracle(&self, name: &str, y: Vec<f64>) {
        let x = (0..ROWS * 8).map(|index| x(index / 8, index % 8));
        let tensors =
            [("x", Dtype::F64, &[ROWS, 8][..], f64s(x)), ("expected.y", Dtype::F64, &[ROWS, 4], f64s(y))];
        write(&self.path(name), &tensors);
    }

    /// Replays the program with `--data` files, and other arguments.
    fn replay(&self, data: &[&str], more: &[&str]) -> (i32, Value) {
        self.command("replay", &self.name("programs/expert.fir"), data, more)
    }

    fn command(&self, command: &str, program: &str, data: &[&str], more: &[&str]) -> (i32, Value) {
        let mut arguments = vec![command.to_owned(), program.to_owned(), "--json".to_owned()];
        arguments.extend(data.iter().flat_map(|file| ["--data".to_owned(), self.name(file)]));
        arguments.extend(more.iter().map(|text| (*text).to_owned()));
        let output = fourfold(&arguments);
        let object = serde_json::from_slice(&output.stdout);
        (
            output.status.code().expect("an exit code"),
            object.unwrap_or_else(|error| panic!("{error}: {output:?}")),
        )
    }
}

fn fourfold(arguments: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
    command.args(arguments).env("FOURFOLD_DEVICE", "none").env("FOURFOLD_CACHE_DIR", CACHE);
    command.env_remove("FOURFOLD_CACHE_TIERS").env_remove("FOURFOLD_CACHE_SIZE");
    command.output().expect("the program starts")
}

fn output<'a>(report: &'a Value, expected: &str) -> &'a Value {
    let outputs = report["outputs"].as_array().expect("outputs");
    outputs.iter().find(|output| output["expected"] == expected).unwrap_or_else(|| panic!("{report:#}"))
}

fn error(report: &Value) -> &str {
    report["error"].as_str().unwrap_or_else(|| panic!("{report:#}"))
}

#[test]
fn weights_in_place_and_an_oracle_beside_them() {
    let place = Place::new();
    let (code, report) = place.replay(&["oracle.safetensors"], &[]);
    assert_eq!((code, &report["ok"]), (0, &true.into()), "{report:#}");
    let compared = output(&report, "expected.y");
    assert_eq!((&compared["tolerance"], &compared["elements"]), (&1e-6.into(), &12.into()));
    assert!(compared["max_abs_err"].as_f64().expect("a number") > 0.0, "x and y are rounded: {compared}");
    assert_eq!(output(&report, "w.copy")["mismatches"], 0);
    assert_eq!(report["symbols"]["M"], ROWS);
    let inputs = report["inputs"].as_str().expect("a text");
    assert!(inputs.contains("small.safetensors, ") && inputs.ends_with(" and 1 more"), "{inputs}");

    // The error of one element in f64, and tolerances of the command line.
    place.oracle("wrong.safetensors", y(1e-5));
    let (code, report) = place.replay(&["wrong.safetensors"], &[]);
    let worst = &output(&report, "expected.y")["worst"];
    assert_eq!((code, &worst["index"]), (1, &serde_json::json!([1, 1])), "{report:#}");
    for tolerance in ["1e-4", "y=1e-4", "%y=1e-4"] {
        let (code, report) = place.replay(&["wrong.safetensors"], &["--tolerance", tolerance]);
        assert_eq!((code, &output(&report, "expected.y")["tolerance"]), (0, &1e-4.into()), "{tolerance}");
    }
    let (code, _) = place.replay(&["wrong.safetensors"], &["--tolerance", "1e-4", "--tolerance", "y=1e-7"]);
    assert_eq!(code, 1);
}

#[test]
fn a_tolerance_that_names_nothing_gives_exit_2() {
    let place = Place::new();
    for (arguments, words) in [
        (&["--tolerance", "yy=1e-3"][..], "the tolerance of %yy: the program has no value %yy"),
        (&["--tolerance", "2"], "from 0 to 1"),
        (&["--tolerance", "y="], "from 0 to 1"),
        (&["--tolerance", "=1e-3"], "from 0 to 1"),
        (&["--tolerance", "y=1e-3", "--tolerance", "y=1e-4"], "--tolerance of `y` is given twice"),
        (&["--tolerance", "1e-3", "--tolerance", "1e-4"], "--tolerance is given twice"),
    ] {
        let (code, report) = place.replay(&["oracle.safetensors"], arguments);
        assert!(code == 2 && error(&report).contains(words), "{arguments:?}: {code} {report:#}");
    }
}

#[test]
fn given_files_add_and_replace() {
    let place = Place::new();
    // Every tensor by the names of the model, in given files only.
    let other = (0..96).map(|index| weight(index / 32, index / 8 % 4, index % 8) * 2.0);
    write(&place.path("scale.safetensors"), &[("norm.scale", Dtype::F32, &[1], f32s([5.0]))]);
    write(&place.path("w.safetensors"), &[("w", Dtype::F32, &[4, 8], f32s(other.take(32)))]);
    let (code, report) = place.replay(&["oracle.safetensors", "scale.safetensors"], &[]);
    assert_eq!(code, 0, "a tensor of the reference's name: {report:#}");
    // The weights that replace the model's have no expectation.
    let (code, report) = place.replay(&["w.safetensors", "oracle.safetensors"], &[]);
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(output(&report, "expected.y")["ok"], false);
    let notes = report["notes"].to_string();
    assert!(notes.contains("`w.copy` of") && notes.contains("replaces the input %w"), "{notes}");
    // The oracle's weights are those of the file before it. A later file makes its expectation stale.
    write(&place.path("x.safetensors"), &[("x", Dtype::BF16, &[1, 8], bf16s([1.0; 8]))]);
    let (code, report) = place.replay(&["oracle.safetensors", "x.safetensors"], &[]);
    assert_eq!((code, &report["symbols"]["M"]), (0, &1.into()), "{report:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("`expected.y` of") && notes.contains("x.safetensors replaces"), "{notes}");
    let (code, report) =
        place.command("verify", &place.name("programs/expert.fir"), &["oracle.safetensors"], &[]);
    assert_eq!((code, &report["ok"]), (0, &true.into()), "no kernel, so nothing to verify: {report:#}");
}

#[test]
fn what_a_reference_lacks_gives_exit_2_and_names_it() {
    let place = Place::new();
    let program = |edit: (&str, &str)| {
        let text = PROGRAM.replace(edit.0, edit.1);
        assert_ne!(text, PROGRAM, "{edit:?}");
        fs::write(place.path("programs/edited.fir"), text).expect("it is written");
        let file = place.name("programs/edited.fir");
        let (code, report) = place.command("replay", &file, &["oracle.safetensors"], &[]);
        assert_eq!(code, 2, "{edit:?}: {report:#}");
        report
    };
    for (edit, words) in [
        (
            ("experts.w", "expert.w"),
            "large.safetensors` has no tensor `expert.w`, to which the input `%w` refers; did you mean `experts.w`?",
        ),
        (("[1] in", "[3] in"), "the slice `3` of axis 0 exceeds its shape [3, 4, 8]"),
        (("[1] in", "[0:2] in"), "[2, 4, 8] in elements, not [4, 8]"),
        (("4:20", "8:24"), "graph.bin` has 20 bytes"),
        (("4:20", "4:16"), "12 bytes, but [4] f32 takes 16"),
        (("graph.bin", "absent.bin"), "cannot read"),
        (("\"norm.scale\"", "\"norm.scales\""), "small.safetensors` and `"),
        (("small.safetensors", "graph.bin"), "graph.bin` is not a safetensors file"),
        (
            ("in \"../model/large.safetensors\"", "in \"../model/large.safetensors\" as high_nibble_first"),
            "is for FP4 packed in bytes",
        ),
        (("tensor: s = \"norm.scale\"", "tensor: s = bytes 0:4 in \"/dev/zero\""), "not a regular file"),
    ] {
        let report = program(edit);
        assert!(error(&report).contains(words), "{edit:?}: {}", error(&report));
    }
    // Errors of the text have a place.
    for (edit, line, words) in [
        (("tensor: w", "tensor: v"), 3, "no input %v"),
        (("tensor: b", "tensor: y"), 4, "no input %y"),
        (("tensor: s", "tensor: b"), 5, "second `tensor` line"),
        (("[1] in", "[1 in"), 3, "ends with `]`"),
        (("tensor: s", "tensors: s"), 5, "did you mean `tensor`?"),
    ] {
        let diagnostic = &program(edit)["diagnostics"][0];
        let message = diagnostic["message"].as_str().expect("a text");
        assert!(diagnostic["line"] == line && message.contains(words), "{edit:?}: {diagnostic}");
    }
    let (code, report) = place.replay(&[], &[]);
    assert!(code == 2 && error(&report).contains("%x: tensor<[M, 8], f32>"), "{report:#}");
}

#[test]
fn a_bundle_carries_the_tensors_that_are_used() {
    let place = Place::new();
    let bundle = place.name("bundle");
    place.oracle("wrong.safetensors", y(1e-5));
    // Without kernels, nothing else can be missing.
    let given = ["--bundle", &bundle, "--tolerance", "1e-4", "--target", "cpu"];
    let (code, report) = place.replay(&["wrong.safetensors"], &given);
    assert_eq!((code, &report["bundle"]["lacks"]), (0, &serde_json::json!([])), "{report:#}");
    let data = fs::read(place.path("bundle/data.safetensors")).expect("the data");
    let tensors = SafeTensors::deserialize(&data).expect("they are well-formed");
    let mut names = tensors.names();
    names.sort();
    assert_eq!(names, ["b", "expected.y", "s", "w", "w.copy", "x"]);
    assert_eq!(tensors.tensor("w").expect("w").dtype(), Dtype::F32);
    assert_eq!(tensors.tensor("expected.y").expect("y").dtype(), Dtype::F64);
    let (_, whole) = place.replay(&["wrong.safetensors"], &given[2..]);

    // Neither the model nor the oracle is needed any more; the tolerance of the run is kept.
    fs::remove_dir_all(place.path("model")).expect("it is removed");
    fs::remove_file(place.path("wrong.safetensors")).expect("it is removed");
    let (code, again) = place.command("replay", &bundle, &[], &[]);
    assert_eq!((code, &again["inputs"]), (0, &whole["inputs"]), "{again:#}");
    assert_eq!(output(&again, "expected.y"), output(&whole, "expected.y"));
    assert_eq!(output(&again, "w.copy")["ok"], true);
    assert_eq!(place.command("replay", &bundle, &[], &["--tolerance", "1e-6"]).0, 1);
    // Other data replace tensors of the bundle; recorded outputs of other inputs differ.
    write(&place.path("s.safetensors"), &[("s", Dtype::F32, &[1], f32s([7.0]))]);
    let (code, changed) = place.command("replay", &bundle, &["s.safetensors"], &[]);
    assert_eq!(code, 1, "{changed:#}");

    let place = Place::new();
    let segment = place.name("segment");
    let (code, report) = place.replay(&["oracle.safetensors"], &["--bundle", &segment, "--segment", "0"]);
    assert_eq!(code, 0, "{report:#}");
    let program = fs::read_to_string(place.path("segment/program.fir")).expect("a program");
    assert!(program.contains("; data: data.safetensors") && !program.contains("; tensor:"), "{program}");
    fs::remove_dir_all(place.path("model")).expect("it is removed");
    assert_eq!(place.command("replay", &segment, &[], &[]).0, 0);
}

#[test]
fn a_bundle_of_unusable_files_says_what_it_lacks() {
    let place = Place::new();
    fs::remove_file(place.path("model/graph.bin")).expect("it is removed");
    let bundle = place.name("bundle");
    let (code, report) = place.replay(&["oracle.safetensors"], &["--bundle", &bundle]);
    let lacks = report["bundle"]["lacks"].to_string();
    assert!(code == 2 && lacks.contains("data.safetensors") && lacks.contains("several files"), "{report:#}");
}

#[test]
fn a_sample_line_draws_what_the_model_lacks() {
    let place = Place::new();
    let sampled = PROGRAM.replace("; tolerance", "; sample: normal seed=3 M=5\n; tolerance");
    fs::write(place.path("programs/expert.fir"), &sampled).expect("it is written");
    let (code, report) = place.replay(&[], &[]);
    assert_eq!((code, &report["symbols"]["M"]), (0, &5.into()), "{report:#}");
    let inputs = report["inputs"].as_str().expect("a text");
    assert!(inputs.ends_with("large.safetensors; %x seeded, rule normal, seed 3"), "{inputs}");
    assert_eq!(output(&report, "w.copy")["ok"], true);
    assert_eq!(place.replay(&[], &["--symbol", "M=2"]).1["symbols"]["M"], 2);
    // With an oracle nothing is missing.
    let (code, report) = place.replay(&["oracle.safetensors"], &[]);
    assert_eq!((code, &report["symbols"]["M"]), (0, &ROWS.into()), "{report:#}");
    // Beside data lines alone, a missing tensor is an error.
    let data = "fir 1\n; data: small.safetensors\n; sample: normal seed=3 M=5\n\
                func @f(%x: tensor<[M, 8], f32>) {\n  %y = relu %x : tensor<[M, 8], f32>\n  return %y\n}\n";
    fs::write(place.path("model/data.fir"), data).expect("it is written");
    let (code, report) = place.command("replay", &place.name("model/data.fir"), &[], &[]);
    assert!(code == 2 && error(&report).contains("%x"), "{report:#}");
}

#[test]
fn a_data_file_of_which_nothing_is_used_gives_exit_2() {
    let place = Place::new();
    let stray = [("y", Dtype::F32, &[ROWS, 4][..], vec![0; 48]), ("other.x", Dtype::F32, &[1], vec![0; 4])];
    write(&place.path("stray.safetensors"), &stray);
    write(&place.path("unknown.safetensors"), &[("expected.Y", Dtype::F32, &[1], vec![0; 4])]);
    write(&place.path("empty.safetensors"), &[]);
    for (file, has) in [
        ("stray.safetensors", "`other.x`, `y` (did you mean `expected.y`?)"),
        ("unknown.safetensors", "`expected.Y`"),
        ("empty.safetensors", "no tensor"),
    ] {
        // Neither the sources of the program nor another file make up for it.
        for data in [&[file][..], &["oracle.safetensors", file]] {
            let (code, report) = place.replay(data, &[]);
            let message = error(&report);
            let begin = "the program uses no tensor of ";
            assert!(code == 2 && message.starts_with(begin) && message.contains(file), "{message}");
            let takes = "its inputs are `x`, `w`, `b`, `s`, and its results `expected.y`, `expected.z`, `expected.t`, `w.copy`";
            assert!(message.contains(&format!("which has {has}; ")) && message.ends_with(takes), "{message}");
            assert!(report["help"].as_str().is_some_and(|help| help.contains("expected.NAME")), "{report:#}");
        }
    }
    let (code, report) = place.replay(&["stray.safetensors"], &["--bundle", &place.name("bundle")]);
    assert!(code == 2 && error(&report).contains("uses no tensor"), "{report:#}");
}

#[test]
fn verify_refuses_a_data_file_that_no_program_uses() {
    let place = Place::new();
    write(&place.path("stray.safetensors"), &[("stray", Dtype::F32, &[1], vec![0; 4])]);
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures");
    let program = format!("{fixtures}/shapes/exact_symbolic_m.fir");
    let (code, report) = place.command("verify", &program, &["stray.safetensors"], &[]);
    assert!(code == 2 && error(&report).contains("which has `stray`; its inputs are"), "{report:#}");
}

#[test]
fn tensors_that_are_not_used_are_noted() {
    let place = Place::new();
    let x = (0..ROWS * 8).map(|index| x(index / 8, index % 8));
    let names: Vec<String> = (0..9).map(|index| format!("layer.{index}")).collect();
    let mut tensors: Vec<Stored<'_>> =
        names.iter().map(|name| (name.as_str(), Dtype::F32, &[1][..], vec![0; 4])).collect();
    tensors.push(("x", Dtype::F64, &[ROWS, 8], f64s(x)));
    tensors.push(("y", Dtype::F64, &[ROWS, 4], f64s(y(0.5))));
    tensors.push(("expected.Y", Dtype::F64, &[ROWS, 4], f64s(y(0.5))));
    write(&place.path("some.safetensors"), &tensors);
    let (code, report) = place.replay(&["some.safetensors"], &[]);
    assert_eq!(code, 0, "{report:#}");
    let notes: Vec<&str> =
        report["notes"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let unused = notes.iter().filter(|note| note.contains("has tensors that the program does not use: "));
    let unused: Vec<&&str> = unused.collect();
    assert!(unused.len() == 1 && unused[0].contains("some.safetensors has"), "{notes:?}");
    assert!(unused[0].contains("`layer.0`, ") && unused[0].ends_with(" and 4 more"), "{notes:?}");
    assert!(notes.contains(&"expected.Y is not compared: the program has no value %Y"), "{notes:?}");
}

#[test]
fn data_with_some_of_the_drawn_inputs_name_the_missing_ones() {
    let place = Place::new();
    let text = "fir 1\n; tensor: w = \"experts.w\"[1] in \"../model/large.safetensors\"\n\
                ; sample: normal seed=0 M=3\n\
                func @f(%x: tensor<[M, 8], f32>, %mask: tensor<[M, M], f32>, %cos: tensor<[M, 4], f32>, \
                param %w: tensor<[4, 8], f32>) {\n  %p = mma %x, %w : tensor<[M, 4], f32>\n  \
                %q = mul %p, %cos : tensor<[M, 4], f32>\n  %z = relu %mask : tensor<[M, M], f32>\n  \
                return %q, %z\n}\n";
    fs::write(place.path("programs/block.fir"), text).expect("it is written");
    let block = place.name("programs/block.fir");
    assert_eq!(place.command("replay", &block, &[], &[]).0, 0, "a sample draws all of them");
    // M is that of the sample line, so drawn inputs would have the right shape.
    write(&place.path("x.safetensors"), &[("x", Dtype::F32, &[3, 8], vec![0; 96])]);
    let (code, report) = place.command("replay", &block, &["x.safetensors"], &[]);
    let message = "%mask and %cos are missing: --data has %x, so the `; sample:` line draws no other input; the program \
                   takes %mask: tensor<[M, M], f32>, %cos: tensor<[M, 4], f32>";
    assert_eq!((code, error(&report)), (2, message), "{report:#}");
    // A weight is no such input: it has another source.
    write(&place.path("w.safetensors"), &[("w", Dtype::F32, &[4, 8], vec![0; 128])]);
    let (code, report) = place.command("replay", &block, &["w.safetensors"], &[]);
    assert_eq!(code, 0, "{report:#}");
}

/// The values of %z in the program of [`an_expectation_behind_a_quantization_is_met_loosely`].
fn quantized(first: f64) -> Vec<u8> {
    f32s([first, 1.0])
}

#[test]
fn an_expectation_behind_a_quantization_is_met_loosely() {
    let place = Place::new();
    let text = "fir 1\n; data: in.safetensors\n\
                func @f(%x: tensor<[1, 2], f32>, %w: tensor<[2, 2], f32>) {\n  \
                %p = mma %x, %w : tensor<[1, 2], f32>\n  %q = convert %p : tensor<[1, 2], f8E4M3FN>\n  \
                %z = convert %q : tensor<[1, 2], f32>\n  return %z\n}\n";
    fs::write(place.path("quantized.fir"), text).expect("it is written");
    let identity = ("w", Dtype::F32, &[2, 2][..], f32s([1.0, 0.0, 0.0, 1.0]));
    write(&place.path("in.safetensors"), &[("x", Dtype::F32, &[1, 2], f32s([0.5, 1.0])), identity]);
    let program = place.name("quantized.fir");
    let replay = |first: f64, more: &[&str]| {
        write(&place.path("z.safetensors"), &[("expected.z", Dtype::F32, &[1, 2], quantized(first))]);
        place.command("replay", &program, &["z.safetensors"], more)
    };
    let verdict = |(code, report): &(i32, Value)| {
        let z = output(report, "expected.z");
        (*code, z["ok"] == true, z["loose"] == true, report["notes"].to_string())
    };
    let (code, ok, loose, notes) = verdict(&replay(0.5, &[]));
    assert!((code, ok, loose) == (0, true, false) && !notes.contains("too wide"), "{notes}");
    // A wrong program: the bound does not tell, and the report says so.
    let (code, ok, loose, notes) = verdict(&replay(0.7, &[]));
    assert_eq!((code, ok, loose), (0, true, true), "{notes}");
    assert!(
        notes.contains("%z is within 0.25 of expected.z") && notes.contains("--tolerance z=T"),
        "{notes}"
    );
    let (code, ok, loose, _) = verdict(&replay(0.76, &[]));
    assert_eq!((code, ok, loose), (1, false, false));
    // A stated tolerance is the author's.
    let (code, ok, loose, _) = verdict(&replay(0.7, &["--tolerance", "z=1e-5"]));
    assert_eq!((code, ok, loose), (1, false, false));
    let (code, ok, loose, notes) = verdict(&replay(0.7, &["--tolerance", "z=0.25"]));
    assert!((code, ok, loose) == (0, true, false) && !notes.contains("too wide"), "{notes}");

    replay(0.7439, &[]);
    let data = place.name("z.safetensors");
    let arguments = ["replay", &program, "--data", &data].map(str::to_owned);
    let text = String::from_utf8(fourfold(&arguments).stdout).expect("text");
    assert!(text.contains("error 2.44e-1 of 2.5e-1  loose\n"), "{text}");
    let last = "loose: 1 of 1 expectations met, 1 only within a bound too wide to prove much\n";
    assert!(text.ends_with(last), "{text}");
}

#[test]
fn several_data_lines_are_read_in_order() {
    let place = Place::new();
    let text = "fir 1\n; data: a.safetensors\n; data: b.safetensors\n\
                func @f(%x: tensor<[2], f32>, %z: tensor<[2], bf16>) {\n  %y = relu %x : tensor<[2], f32>\n  \
                %v = neg %z : tensor<[2], bf16>\n  return %y, %v\n}\n";
    fs::write(place.path("several.fir"), text).expect("it is written");
    let z = ("z", Dtype::F64, &[2][..], f64s([1.0 + 1.0 / 1024.0, -2.0]));
    write(&place.path("a.safetensors"), &[("x", Dtype::F32, &[2], f32s([9.0, 9.0])), z]);
    let expected = ("expected.y", Dtype::F64, &[2][..], f64s([0.1, 0.0]));
    write(&place.path("b.safetensors"), &[("x", Dtype::F64, &[2], f64s([0.1, -0.2])), expected]);
    let (code, report) = place.command("replay", &place.name("several.fir"), &[], &[]);
    // relu is exact, so its result equals the rounded expectation, bit for bit.
    assert_eq!((code, &output(&report, "expected.y")["rule"]), (0, &"bit-equal".into()), "{report:#}");
}

#[test]
fn a_result_behind_moved_codes_is_compared_on_the_codes_of_the_data() {
    let place = Place::new();
    let text = "fir 1\n; sample: normal seed=0 M=1\n; expected: x.codes = x.codes, 1 may differ\n\
                func @tie(%x: tensor<[M, 16], f32>, %g: tensor<[], f32>, %w: tensor<[1, 16], f32>) {\n  \
                %x.codes, %x.scale = block_quantize %x, %g {block = 16} : tensor<[M, 16], f4E2M1FN>, \
                tensor<[M, 1], f8E4M3FN, linear>\n  \
                %d = block_dequantize %x.codes, %x.scale {block = 16} : tensor<[M, 16], f32>\n  \
                %y = mma %d, %w : tensor<[M, 1], f32>\n  return %y\n}\n";
    fs::write(place.path("tie.fir"), text).expect("it is written");
    // The largest value is 6, so the scale is 1. 2.5 lies between the values 2 of code 4, and 3 of code 5.
    let x = f32s((0..16).map(|k| [6.0, 2.5, 1.0][k.min(2)]));
    let replay = |second: u8, y: f64| {
        let codes = [&[7 | second << 4][..], &[0x22; 7]].concat();
        let tensors = [
            ("x", Dtype::F32, &[1, 16][..], x.clone()),
            ("g", Dtype::F32, &[], f32s([1.0])),
            ("w", Dtype::F32, &[1, 16], f32s([1.0; 16])),
            ("x.codes", Dtype::U8, &[1, 8], codes),
            ("expected.y", Dtype::F64, &[1, 1], f64s([y])),
        ];
        write(&place.path("tie.safetensors"), &tensors);
        let given = ["--tolerance", "y=1e-5"];
        let (code, report) = place.command("replay", &place.name("tie.fir"), &["tie.safetensors"], &given);
        (code, output(&report, "expected.y").clone(), report["notes"].to_string())
    };
    // The run rounds 2.5 to the even code: y is 6 + 2 + 14.
    let (code, y, notes) = replay(4, 22.0);
    assert_eq!((code, &y["source"], &*notes), (0, &"run".into(), "[]"), "{y}");
    // A framework with 2.5000001 has 3.
    let (code, y, notes) = replay(5, 23.0);
    assert_eq!((code, &y["ok"], &y["source"]), (0, &true.into(), &"interpreter".into()), "{y} {notes}");
    assert!(y["rule"].as_str().is_some_and(|rule| rule.ends_with(", on the codes of the data")), "{y}");
    assert!(notes.contains("codes and scales of the data, of which 1 differs from the run's"), "{notes}");
    // A result that its own codes do not explain is wrong, and so is one with the codes of the run.
    for (second, y) in [(5, 23.5), (4, 23.0)] {
        let (code, y, notes) = replay(second, y);
        assert_eq!((code, &y["ok"], &y["source"], &*notes), (1, &false.into(), &"run".into(), "[]"), "{y}");
    }
}
