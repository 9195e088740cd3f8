//! Imports exported torch models, and compares their results with those of torch in eager mode.
//!
//! `import/torch/make_fixtures.py` made `fixtures/torch/`. On request, a test makes them again: FOURFOLD_TORCH_PYTHON is
//! then the path of a Python with torch, torchao, numpy and safetensors.

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
