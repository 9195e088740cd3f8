//! Imports exported torch models, and compares their results with those of torch in eager mode.
//!
//! `import/torch/make_fixtures.py` made `fixtures/torch/`. On request, a test makes them again: FOURFOLD_TORCH_PYTHON is
//! then the path of a Python with torch, torchao, numpy, safetensors, onnx and onnxscript.

use std::path::{Path, PathBuf};

use fourfold::ir::bind::bind;
use fourfold::ir::{Entity, Program, Tensor, interpret, text, verify};
use fourfold::{Backend, DeviceChoice, Options};
use fourfold_executor::{DataFile, DataSources, OtherTensors};
use fourfold_import::{Import, ImportOptions, LeftOutCode, ProgramKind, import, write};

/// The models: a name, the kernels of its program, and the largest error over the largest result.
const MODELS: [(&str, usize, f64); 9] = [
    ("mlp", 2, 0.0),
    ("block", 6, 0.02),
    ("block_f32", 6, 1e-5),
    ("llama", 4, 0.02),
    ("llama_f32", 4, 1e-5),
    // Core ATen ops without quantized linears.
    ("llama_core", 0, 1e-5),
    // Ops that no other model has.
    ("parts", 0, 1e-5),
    ("parts_core", 0, 1e-5),
    ("llama_onnx", 0, 1e-5),
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/torch")
}

fn imported(folder: &Path) -> Import {
    import(folder, &ImportOptions::default()).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

/// Reads the program that the import wrote, and its data.
fn written(model: &Path, output: &Path) -> (Program, DataFile) {
    let file = model.join("model.onnx");
    let imported = if file.exists() { imported(&file) } else { imported(model) };
    // An ONNX file also lists each linear whose weight is not quantized.
    let graphs: Vec<_> =
        imported.left_out.iter().filter(|left_out| left_out.code != LeftOutCode::NotQuantized).collect();
    assert!(graphs.is_empty(), "{graphs:?}");
    let files = write(&imported, output).expect("the program can be written");
    let [file] = &files[..] else { panic!("one program, not {}", files.len()) };
    let module =
        text::parse(&std::fs::read_to_string(&file.file).unwrap()).expect("the program is valid text").module;
    let references = imported.programs[0].tensors.clone();
    let sources = DataSources {
        references,
        folder: output.to_owned(),
        given: vec![model.join("data.safetensors")],
        ..DataSources::default()
    };
    let data = sources.read(&module, &[], OtherTensors::All).unwrap_or_else(|error| panic!("{error}"));
    (verify(module).expect("the program is valid"), data)
}

/// The largest difference of the program's result from the expectation, over the largest magnitude of the latter.
fn error_of(program: &Program, data: &DataFile) -> f64 {
    let bound = bind(program, &data.inputs).unwrap();
    let tensors = interpret(program, &bound).unwrap();
    let module = program.module();
    let [(name, expected)] = &data.expected[..] else {
        panic!("one expectation, not {}", data.expected.len())
    };
    let output = module.outputs[0];
    assert_eq!(module.name_of(output), name);
    let values = |tensor: &Tensor| tensor.to_f64();
    let expected = values(&expected.as_stored().expect("a tensor"));
    let result = values(&tensors[output.index()]);
    assert_eq!(result.len(), expected.len());
    let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let errors = result.iter().zip(&expected).map(|(result, expected)| (result - expected).abs());
    errors.fold(0.0, f64::max) / largest
}

fn check(folder: &Path) {
    for (name, kernels, tolerance) in MODELS {
        let output = tempfile::tempdir().unwrap();
        let (program, data) = written(&folder.join(name), output.path());
        let error = error_of(&program, &data);
        println!("{name}: error {error:.2e}");
        assert!(error <= tolerance, "{name}: {error:e} > {tolerance:e}");
        for target in ["sm_90a", "sm_100a", "sm_120a"] {
            let backend = Backend::new(&Options::default().target(target).device(DeviceChoice::None))
                .expect("a known target");
            let plan = backend.plan_module(program.module().clone()).expect("the program is valid");
            assert_eq!(plan.partition().kernels().count(), kernels, "{name} for {target}");
        }
    }
}

#[test]
fn exported_models_give_the_results_of_eager_mode() {
    check(&fixtures());
    assert_eq!(imported(&fixtures().join("mlp")).programs[0].kind, ProgramKind::Graph);
}

#[test]
#[ignore = "needs torch and torchao: FOURFOLD_TORCH_PYTHON is the path of their Python"]
fn models_that_torch_exports_now_give_the_results_of_eager_mode() {
    let python =
        std::env::var_os("FOURFOLD_TORCH_PYTHON").expect("FOURFOLD_TORCH_PYTHON is the path of a Python");
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("torch/make_fixtures.py");
    let status = std::process::Command::new(python).arg(script).arg(folder.path()).status().unwrap();
    assert!(status.success(), "the models are exported");
    check(folder.path());
}

/// A graph with the input `x` of this type, and one node that is its output.
fn graph_of(input: &str, op: &str, args: &str, ty: &str) -> String {
    format!(
        r#"{{"format": "fourfold.torch", "version": 1, "tensors": "weights.safetensors", "parameters": [],
        "inputs": [{{"name": "x", "type": {input}}}], "outputs": [{{"node": "y"}}],
        "nodes": [{{"name": "y", "op": "{op}", "args": {args}, "kwargs": {{}}, "type": {ty}}}]}}"#
    )
}

/// Imports a graph from text.
fn import_text(graph: &str) -> Result<Import, fourfold_import::ImportError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("graph.json"), graph).unwrap();
    import(folder.path(), &ImportOptions::default())
}

#[test]
fn nodes_without_an_equivalent_are_left_out_by_name() {
    let matrix = r#"{"dtype": "float32", "shape": ["B", 6]}"#;
    for (op, args, ty, reason) in [
        (
            "aten.slice.Tensor",
            r#"[{"node": "x"}, 0, 1, 2]"#,
            matrix,
            "axis 0, whose extent depends on symbols",
        ),
        ("aten.slice.Tensor", r#"[{"node": "x"}, 1, 0, 6, -1]"#, matrix, "backwards"),
        ("aten.slice.Tensor", r#"[{"node": "x"}, 7, 0, 6]"#, matrix, "the axis 7"),
        ("aten.select.int", r#"[{"node": "x"}, 0, -1]"#, matrix, "extent depends on symbols"),
        ("aten.select.int", r#"[{"node": "x"}, 1, 6]"#, matrix, "the index 6 of 6"),
        ("aten.narrow.default", r#"[{"node": "x"}, 1, 4, 9223372036854775807]"#, matrix, "of 6 elements"),
        ("aten.split_with_sizes.default", r#"[{"node": "x"}, [4, -2], 1]"#, "[null, null]", "-2 elements"),
        (
            "aten.split_with_sizes.default",
            r#"[{"node": "x"}, [4, 4], 1]"#,
            "[null, null]",
            "do not add up to 6",
        ),
        ("aten.chunk.default", r#"[{"node": "x"}, 0, 1]"#, "[null, null]", "parts without elements"),
        ("aten.cat.default", "[[], 0]", matrix, "no tensors"),
        ("aten.embedding.default", r#"[{"node": "x"}, {"node": "x"}]"#, matrix, "no integers"),
        ("aten.index.Tensor", r#"[{"node": "x"}, [{"node": "x"}, {"node": "x"}]]"#, matrix, "several axes"),
        ("aten.constant_pad_nd.default", r#"[{"node": "x"}, [-1, 0], 0]"#, matrix, "negative pad"),
        ("aten.pad.default", r#"[{"node": "x"}, [1, 1], "reflect"]"#, matrix, "\"reflect\""),
        ("aten.repeat.default", r#"[{"node": "x"}, [2]]"#, matrix, "fewer axes"),
        (
            "aten.arange.default",
            r#"[{"node": "x"}]"#,
            r#"{"dtype": "int64", "shape": ["B"]}"#,
            "depends on symbols",
        ),
        ("aten.arange.default", "[9]", r#"{"dtype": "int64", "shape": ["B"]}"#, "depends on symbols"),
        (
            "aten.arange.default",
            "[5e12]",
            r#"{"dtype": "int64", "shape": [5000000000000]}"#,
            "more than 4194304",
        ),
        ("aten.tril.default", r#"[{"node": "x"}]"#, matrix, "depend on symbols"),
        ("aten.where.self", r#"[{"node": "x"}, 1, 0]"#, matrix, "not boolean"),
        ("aten.logical_not.default", r#"[{"node": "x"}]"#, matrix, "truth values"),
        ("aten.var.correction", r#"[{"node": "x"}, [0]]"#, matrix, "depends on symbols"),
        ("aten.cumsum.default", r#"[{"node": "x"}, 1]"#, matrix, "no equivalent"),
    ] {
        let imported =
            import_text(&graph_of(matrix, op, args, ty)).unwrap_or_else(|error| panic!("{op}: {error}"));
        let [left_out] = &imported.left_out[..] else { panic!("{op} {args} is left out") };
        assert_eq!(left_out.code, LeftOutCode::UnsupportedOperator);
        let start = format!("node `y` ({op}) ");
        assert!(
            left_out.message.starts_with(&start) && left_out.message.contains(reason),
            "{}",
            left_out.message
        );
    }
}

/// Graphs with other numbers, or without parts of the text, are imported, left out or refused.
#[test]
fn damaged_graphs_are_never_fatal() {
    const NUMBERS: [&str; 9] = [
        "0",
        "-1",
        "1e300",
        "-9223372036854775808",
        "9223372036854775807",
        "\"S\"",
        "null",
        "[]",
        "{\"node\": \"x\"}",
    ];
    let folder = tempfile::tempdir().unwrap();
    let import_beside_weights = |graph: &str| {
        std::fs::write(folder.path().join("graph.json"), graph).unwrap();
        import(folder.path(), &ImportOptions::default())
    };
    let (mut imported, mut refused) = (0, 0);
    for name in ["parts", "parts_core", "llama"] {
        let text = std::fs::read_to_string(fixtures().join(name).join("graph.json")).unwrap();
        let weights = "weights.safetensors";
        std::fs::copy(fixtures().join(name).join(weights), folder.path().join(weights)).unwrap();
        let is_number = |at: &usize| {
            let before = text[..*at].chars().last().is_some_and(|c| c == ' ');
            before && text[*at..].starts_with(|c: char| c.is_ascii_digit() || c == '-')
        };
        let places: Vec<usize> =
            (1..text.len()).filter(|at| text.is_char_boundary(*at)).filter(is_number).collect();
        for (turn, at) in places.iter().enumerate().step_by(2) {
            let rest = text[*at..].trim_start_matches(|c: char| c.is_ascii_digit() || "-+.e".contains(c));
            let graph = format!("{}{}{rest}", &text[..*at], NUMBERS[turn / 2 % NUMBERS.len()]);
            match import_beside_weights(&graph) {
                Ok(found) if found.left_out.is_empty() => imported += 1,
                Ok(found) => {
                    assert!(!found.left_out[0].message.is_empty());
                    refused += 1;
                }
                Err(_) => refused += 1,
            }
        }
        for cut in (0..text.len()).step_by(997) {
            assert!(import_beside_weights(&text[..cut]).is_err(), "{name} cut at {cut}");
        }
    }
    assert!(imported > 100 && refused > 20, "{imported} imported, {refused} refused");
}
