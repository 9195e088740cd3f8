//! Imports ONNX files and compares graphs and linears with results computed in f64 from the stored bytes.
//!
//! `fixtures/models/onnx-standard` is always there. The variable FOURFOLD_TEST_MODELS names a folder with more of the
//! same form: what the tools wrote, and `expected.safetensors` ([README](../../fixtures/models/README.md)).

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use fourfold::{Backend, DeviceChoice, Options};
use fourfold_executor::{
    DataSources, OtherTensors, RunOptions, SafetensorsFile, TensorReference, read_text, run,
};
use fourfold_import::{Import, ImportOptions, ImportedProgram, ProgramKind, import, write};
use fourfold_ir::{
    Capabilities, ElementType, Entity, Matmul, OpKind, Program, Tensor, Value, bind, interpret, load, text,
};
use fourfold_scheduler::partition;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The relative error that is allowed where no code moved.
const EXACT: f64 = 1e-5;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models")
}

/// The folder of a case, if it is there.
fn case(name: &str) -> Option<PathBuf> {
    let more = std::env::var_os("FOURFOLD_TEST_MODELS").map(PathBuf::from);
    let folders = std::iter::once(fixtures()).chain(more);
    let found = folders.map(|folder| folder.join(name)).find(|folder| folder.exists());
    if found.is_none() {
        eprintln!("{name} is skipped: FOURFOLD_TEST_MODELS does not name a folder that has it");
    }
    found
}

/// The expected tensors of a folder.
struct Expected(SafetensorsFile);

impl Expected {
    fn of(folder: &Path) -> Result<Expected> {
        Ok(Expected(SafetensorsFile::open(&folder.join("expected.safetensors"))?))
    }

    fn need(&self, name: &str) -> Result<Vec<f64>> {
        let tensor = self.0.find(name).ok_or_else(|| format!("nothing is expected of `{name}`"))?;
        let raw = self.0.read(tensor)?;
        let values = raw.as_f64();
        let values = values.or_else(|| Some(raw.as_stored()?.to_f32().into_iter().map(f64::from).collect()));
        values.ok_or_else(|| format!("`{name}` has no numbers").into())
    }

    /// The codes of quantized activations, one per element.
    fn codes(&self, name: &str) -> Option<Vec<u8>> {
        let raw = self.0.read(self.0.find(&format!("{name}.a_codes"))?).expect("the tensor can be read");
        Some(match raw.dtype.as_str() {
            "U8" => raw.bytes.iter().flat_map(|byte| [byte & 0xF, byte >> 4]).collect(),
            _ => raw.bytes,
        })
    }
}

/// A program that was written and read again, with the tensors of its params.
struct Read {
    program: Program,
    params: HashMap<String, Tensor>,
    text: String,
}

/// Options that round neither inputs nor outputs.
fn exact() -> ImportOptions {
    let wide = Some(ElementType::F32);
    ImportOptions { input_type: wide, output_type: wide, ..ImportOptions::default() }
}

/// Imports a file, writes its programs and reads them again.
fn written(file: &Path, options: &ImportOptions) -> Result<(Import, HashMap<String, Read>)> {
    let imported = import(file, options)?;
    let output = tempfile::tempdir()?;
    let mut programs = HashMap::new();
    for program in write(&imported, output.path())? {
        programs.insert(program.name, read_program(&program.file)?);
    }
    Ok((imported, programs))
}

fn read_program(file: &Path) -> Result<Read> {
    let source = read_text(file)?;
    let (program, _) =
        load(&source).map_err(|errors| format!("{}: {:?}", errors[0].message, errors[0].op))?;
    let directives = text::directives(&source);
    let values =
        |key: &'static str| directives.iter().filter(move |found| found.key == key).map(|found| &found.value);
    let references: Vec<TensorReference> =
        values("tensor").map(|value| value.parse()).collect::<std::result::Result<_, _>>()?;
    let folder = file.parent().expect("the file is in a folder").to_owned();
    let files = values("data").map(|name| folder.join(name)).collect();
    let sources = DataSources { files, references, folder, ..DataSources::default() };
    let params = sources.read(program.module(), &[], OtherTensors::Named(&[]))?.inputs;
    Ok(Read { program, params, text: source })
}

impl Read {
    /// Runs the program on the interpreter and on the fallback, which must agree. Returns every value of the former.
    fn run(&self, x: &[f64]) -> Result<Vec<Tensor>> {
        let module = self.program.module();
        let input = module.inputs[0];
        let ty = module.ty(input);
        let fixed: usize = ty.shape.iter().filter_map(|dim| dim.as_fixed()).product::<u64>() as usize;
        let rows = x.len() / fixed;
        let dims = ty.shape.iter().map(|dim| dim.as_fixed().map_or(rows, |dim| dim as usize)).collect();
        let mut tensors = self.params.clone();
        let x = Tensor::from_f64(ty.element, dims, None, x)?;
        tensors.insert(module.name_of(input).to_owned(), x);
        let bound = bind::bind(&self.program, &tensors)?;
        let values = interpret(&self.program, &bound)?;
        let capabilities = Capabilities {
            target: "cpu".into(),
            formats: Vec::new(),
            not_emulated: Vec::new(),
            block_quantize: None,
            device: Default::default(),
        };
        let segments = partition(&self.program, &capabilities);
        let done = run(&self.program, &segments, &bound, &RunOptions::default(), None)?;
        for output in &module.outputs {
            let fallback = numbers(done.value(*output).ok_or("the run has no output")?);
            let reference = numbers(&values[output.index()]);
            let error = error_of(&fallback, &reference);
            assert!(error < EXACT, "%{} differs by {error:e} on the fallback", module.name_of(*output));
        }
        Ok(values)
    }

    fn outputs(&self, values: &[Tensor]) -> Vec<Vec<f64>> {
        self.program.module().outputs.iter().map(|output| numbers(&values[output.index()])).collect()
    }

    /// The values of codes that `block_quantize` writes, by the name of the value.
    fn codes<'a>(&'a self, values: &'a [Tensor]) -> impl Iterator<Item = (&'a str, Vec<u8>)> + 'a {
        let module = self.program.module();
        module.ops.values().filter(|op| matches!(op.kind, OpKind::BlockQuantize { .. })).map(|op| {
            let codes = op.results[0];
            (module.name_of(codes), values[codes.index()].to_codes())
        })
    }

    /// The codes that a product takes. Its name begins as given, and several products may take the same codes.
    fn codes_of_product(&self, values: &[Tensor], name: &str) -> Option<Vec<u8>> {
        let module = self.program.module();
        let is_product = |op: &&fourfold_ir::Operation| {
            matches!(op.kind, OpKind::ScaledMma(_)) && module.name_of(op.results[0]).starts_with(name)
        };
        let product = module.ops.values().find(is_product)?;
        Some(values[product.operands[0].index()].to_codes())
    }

    /// The dequantized weight of a linear, and K.
    fn weight(&self) -> Result<(Vec<f64>, usize)> {
        let module = self.program.module();
        let defining = |value: Value| module.defining_op(value).map(|op| &module.ops[op]);
        let number =
            |value: Value| self.params.get(module.name_of(value)).map(|tensor| f64::from(tensor.to_f32()[0]));
        for op in module.ops.values() {
            let (codes, scales, global) = match op.kind {
                OpKind::ScaledMma(mma) => {
                    let linear = defining(op.operands[3]).expect("the scales are swizzled").operands[0];
                    let factors = mma.alpha.then(|| defining(op.operands[4])).flatten();
                    (op.operands[2], linear, factors.and_then(|factors| number(factors.operands[1])))
                }
                OpKind::BlockDequantize { .. } => {
                    let is_factor = |op: &&fourfold_ir::Operation| {
                        op.kind == OpKind::Binary(fourfold_ir::BinaryKind::Mul)
                            && number(op.operands[1]).is_some()
                    };
                    let factor = module.ops.values().find(is_factor).and_then(|op| number(op.operands[1]));
                    (op.operands[0], op.operands[1], factor)
                }
                _ => continue,
            };
            let codes = &self.params[module.name_of(codes)];
            let scales = &self.params[module.name_of(scales)];
            let k = codes.dims()[1];
            let block = codes.dims()[0] * k / scales.to_f32().len();
            let (values, scales) = (numbers(codes), numbers(scales));
            let global = global.unwrap_or(1.0);
            let scaled = values.iter().enumerate().map(|(at, code)| code * scales[at / block] * global);
            return Ok((scaled.collect(), k));
        }
        Err("the program has no block-scaled weight".into())
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_f32().into_iter().map(f64::from).collect()
}

/// The largest error of the expected elements, relative to the largest of them.
fn error_of(found: &[f64], expected: &[f64]) -> f64 {
    assert!(found.len() >= expected.len());
    let largest = expected.iter().fold(f64::MIN_POSITIVE, |largest, value| value.abs().max(largest));
    found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max) / largest
}

/// Compares the statistics of a weight.
fn check_weight(name: &str, read: &Read, expected: &Expected) -> Result<()> {
    let (weight, k) = read.weight()?;
    let rows = || weight.chunks(k);
    let sum: Vec<f64> = rows().map(|row| row.iter().map(|w| w.abs()).sum()).collect();
    let ramp: Vec<f64> =
        rows().map(|row| row.iter().enumerate().map(|(at, w)| (at + 1) as f64 * w).sum()).collect();
    for (statistic, found) in [("w_abs", sum), ("w_ramp", ramp)] {
        let error = error_of(&found, &expected.need(&format!("{name}.{statistic}"))?);
        assert!(error < 1e-6, "{name}.{statistic} differs by {error:e}");
    }
    Ok(())
}

/// Counts the codes that differ from the expected ones.
fn moved(found: &[u8], expected: &[u8]) -> usize {
    found.iter().zip(expected).filter(|(found, expected)| found != expected).count()
}

fn w4a4(program: &Program) -> usize {
    let module = program.module();
    let is_fp4 = |value: Value| module.ty(value).element == ElementType::F4E2M1FN;
    let products = module.ops.values().filter(|op| matches!(op.kind, OpKind::ScaledMma(_)));
    products.filter(|op| is_fp4(op.operands[0]) && is_fp4(op.operands[2])).count()
}

/// Requires a kernel for each product of a format that has kernels, on every GPU target. Products of FP4 have.
fn check_kernels(imported: &Import) {
    for target in ["sm_100a", "sm_120a", "sm_90a"] {
        let options = Options::default().target(target).device(DeviceChoice::None);
        let backend = Backend::new(&options).expect("the target is known");
        for program in &imported.programs {
            let plan = backend.plan_module(program.module.clone()).expect("the program is valid");
            let kernels = plan.partition().kernels().count();
            let has_kernels =
                |(_, matmul): &(_, &Matmul)| backend.capabilities().format(matmul.format).is_some();
            let products = plan.program().facts().matmuls().filter(has_kernels).count();
            assert_eq!(kernels, products, "{} for {target}", program.name);
            // Two products of a gate and an up projection are one kernel.
            let pairs = plan.partition().kernels().filter(|(_, kernel)| kernel.pair.is_some()).count();
            assert!(w4a4(plan.original()) <= products + pairs, "{} for {target}", program.name);
        }
    }
}

fn graph_of(imported: &Import) -> &ImportedProgram {
    let is_graph = |program: &&ImportedProgram| program.kind == ProgramKind::Graph;
    imported.programs.iter().find(is_graph).unwrap_or_else(|| panic!("{:#?}", imported.left_out))
}

#[test]
fn standard_operators_in_every_spelling_have_the_expected_results() -> Result<()> {
    let folder = fixtures().join("onnx-standard");
    let expected = Expected::of(&folder)?;
    let x = expected.need("x")?;
    for (file, of, linear) in [
        ("nvfp4-weight-only", "nvfp4-weight-only", "w"),
        ("nvfp4-weight-only-int32-data", "nvfp4-weight-only", "w"),
        ("nvfp4-weight-only-gemm", "nvfp4-weight-only", "w"),
        ("nvfp4-weight-only-external", "nvfp4-weight-only", "w"),
        ("mxfp4-weight-only", "mxfp4-weight-only", "w"),
        ("nvfp4-both", "nvfp4-both", "w"),
    ] {
        let (imported, programs) = written(&folder.join(format!("{file}.onnx")), &exact())?;
        assert!(imported.left_out.is_empty(), "{file}: {:?}", imported.left_out);
        let y = expected.need(&format!("{of}.y"))?;
        for name in [file, linear] {
            let read = programs.get(name).ok_or_else(|| format!("{file} has no program `{name}`"))?;
            let values = read.run(&x)?;
            let error = error_of(&read.outputs(&values)[0], &y);
            assert!(error < EXACT, "{file}: {name} differs by {error:e}\n{}", read.text);
            let codes: Vec<_> = read.codes(&values).collect();
            match expected.codes(of) {
                Some(stated) => assert_eq!(moved(&codes[0].1, &stated), 0, "{file}: {name}"),
                None => assert!(codes.is_empty()),
            }
        }
        let has_data = graph_of(&imported).data.len();
        assert_eq!(
            has_data,
            usize::from(file.ends_with("int32-data")),
            "{file} copies only what has no bytes"
        );
        assert_eq!(w4a4(&programs[file].program), usize::from(file == "nvfp4-both"));
        check_kernels(&imported);
    }
    Ok(())
}

/// The linears of a case: the name, the tensor of its input, and the tensor of its expected result.
struct Linear {
    name: &'static str,
    x: &'static str,
    y: Option<&'static str>,
}

const fn linear(name: &'static str, x: &'static str, y: Option<&'static str>) -> Linear {
    Linear { name, x, y }
}

/// The rows for which results are expected.
const ROWS: usize = 4;

/// Checks the graph and the linears of a case with one file. Returns the programs.
fn check(folder: &Path, outputs: usize, linears: &[Linear]) -> Result<(Import, HashMap<String, Read>)> {
    let expected = Expected::of(folder)?;
    let (imported, programs) = written(&folder.join("model.onnx"), &exact())?;
    assert!(imported.left_out.is_empty(), "{:?}", imported.left_out);
    let graph = &programs["model"];
    let values = graph.run(&expected.need("x")?)?;
    let found = graph.outputs(&values);
    assert_eq!(found.len(), outputs);
    for linear in linears {
        let Some(stated) = expected.codes(linear.name) else { continue };
        let codes = graph.codes_of_product(&values, &format!("{}.MatMul_output_0", linear.name));
        let codes =
            codes.ok_or_else(|| format!("the graph does not quantize the input of {}", linear.name))?;
        assert_eq!(moved(&codes, &stated), 0, "the codes of {} in the graph", linear.name);
    }
    for (at, found) in found.iter().enumerate() {
        let error = error_of(found, &expected.need(&format!("out.{at}"))?);
        assert!(error < EXACT, "out.{at} differs by {error:e}\n{}", graph.text);
    }
    for linear in linears {
        let read = &programs[linear.name];
        if expected.need(&format!("{}.w_abs", linear.name)).is_ok() {
            check_weight(linear.name, read, &expected)?;
        }
        let x = match graph.program.facts().value_named(linear.x) {
            Some(value) => numbers(&values[value.index()]),
            None => expected.need(linear.x)?,
        };
        let values = read.run(&x)?;
        let codes: Vec<_> = read.codes(&values).collect();
        if let Some(stated) = expected.codes(linear.name) {
            assert_eq!(moved(&codes[0].1, &stated), 0, "the codes of {}", linear.name);
        }
        let Some(y) = linear.y else { continue };
        let mut y = expected.need(y)?;
        y.truncate(ROWS * y.len() / ROWS);
        let error = error_of(&read.outputs(&values)[0], &y);
        assert!(error < EXACT, "{} differs by {error:e}\n{}", linear.name, read.text);
    }
    check_kernels(&imported);
    Ok((imported, programs))
}

const ATTENTION: [Linear; 4] = [
    linear("query", "x", Some("out.0")),
    linear("key", "x", Some("out.1")),
    linear("value", "x", None),
    linear("dense", "value.Add_output_0", Some("out.2")),
];

#[test]
fn the_attention_of_modelopt_has_the_expected_results() -> Result<()> {
    let Some(folder) = case("onnx-modelopt-nvfp4-attn") else { return Ok(()) };
    let (imported, programs) = check(&folder, 3, &ATTENTION)?;
    assert_eq!(w4a4(&programs["model"].program), 4);
    assert!(imported.programs.iter().all(|program| program.data.is_empty()), "no weight is copied");
    Ok(())
}

#[test]
fn the_feed_forward_of_modelopt_has_the_expected_results() -> Result<()> {
    let Some(folder) = case("onnx-modelopt-nvfp4-ffn") else { return Ok(()) };
    let (_, programs) = check(&folder, 1, &[linear("up", "x", None), linear("down", "down.x", None)])?;
    assert_eq!(w4a4(&programs["model"].program), 2);
    let expected = Expected::of(&folder)?;
    let down = &programs["down"];
    let y = down.outputs(&down.run(&expected.need("down.x")?)?).remove(0);
    let sum: Vec<f64> = y.iter().zip(expected.need("x")?).map(|(y, x)| y + x).collect();
    let error = error_of(&sum, &expected.need("out.0")?);
    assert!(error < EXACT, "x + down differs by {error:e}");
    Ok(())
}

#[test]
fn the_weight_only_attention_of_modelopt_has_the_expected_results() -> Result<()> {
    let Some(folder) = case("onnx-modelopt-w4a16-attn") else { return Ok(()) };
    let (_, programs) = check(&folder, 3, &ATTENTION)?;
    assert_eq!(w4a4(&programs["model"].program), 0);
    Ok(())
}

#[test]
fn mxfp8_of_modelopt_has_the_expected_results() -> Result<()> {
    let Some(folder) = case("onnx-modelopt-mxfp8") else { return Ok(()) };
    let linears = [linear("query", "x", None), linear("dense", "query.Add_output_0", Some("out.0"))];
    let (_, programs) = check(&folder, 1, &linears)?;
    let is_scaled = |op: &&fourfold_ir::Operation| matches!(op.kind, OpKind::ScaledMma(_));
    assert_eq!(programs["model"].program.module().ops.values().filter(is_scaled).count(), 2);
    Ok(())
}

#[test]
fn what_modelopt_writes_unrepaired_is_repaired() -> Result<()> {
    let Some(folder) = case("onnx-modelopt-nvfp4-attn-as-written") else { return Ok(()) };
    let (imported, programs) = check(&folder, 3, &ATTENTION)?;
    assert_eq!(w4a4(&programs["model"].program), 4);
    let notes = &graph_of(&imported).notes;
    assert!(notes.iter().any(|note| note.contains("IR version 10")), "{notes:?}");
    // In the model's own types the graph mixes f16 and f32.
    let (imported, programs) = written(&folder.join("model.onnx"), &ImportOptions::default())?;
    let notes = &graph_of(&imported).notes;
    assert!(notes.iter().any(|note| note.contains("multiplies f16 and f32")), "{notes:?}");
    let expected = Expected::of(&folder)?;
    let graph = &programs["model"];
    let module = graph.program.module();
    assert_eq!(module.ty(module.outputs[0]).element, ElementType::F16);
    let values = graph.run(&expected.need("x")?)?;
    for (at, found) in graph.outputs(&values).iter().enumerate() {
        let error = error_of(found, &expected.need(&format!("out.{at}"))?);
        assert!(error < 1e-2, "out.{at} differs by {error:e}");
    }
    Ok(())
}
