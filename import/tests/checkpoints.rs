//! Imports real checkpoints and compares every linear with results computed in f64 from the stored bytes.
//!
//! `fixtures/models/` holds some cases. The variable FOURFOLD_TEST_MODELS names a folder with more of the same form:
//! each subfolder is what one tool wrote, and `expected.safetensors` ([README](../../fixtures/models/README.md)).

mod support;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use fourfold::{Backend, DeviceChoice, Options};
use fourfold_executor::{RunOptions, SafetensorsFile, run};
use fourfold_import::{Import, ImportOptions, ProgramKind, import, write};
use fourfold_ir::numeric::{CodeFormula, Nvfp4Formula, ScaleMin};
use fourfold_ir::{
    Bound, Capabilities, ElementType, Entity, Matmul, OpKind, Operation, Program, Tensor, bind, interpret,
};
use fourfold_scheduler::partition;

use support::{Expected, Inputs, Result, error_of_rows, exact, fixtures, largest, read_program};

/// At most one in this many codes of distinct quantizations may move, each at a tie of f32: 7 of 58,368 do.
const ONE_IN: usize = 8_000;
/// The same for `fixtures/models/` alone: 3 of 18,176. They hold 2 of the 5 cases with ties, but a third of the codes.
const ONE_IN_OF_FIXTURES: usize = 6_000;

/// Codes of quantized activations, and those that differ from the expected ones.
#[derive(Clone, Copy, Debug, Default)]
struct Codes {
    count: usize,
    moved: usize,
}

impl Codes {
    fn add(&mut self, other: Codes) {
        self.count += other.count;
        self.moved += other.moved;
    }
}

/// The codes, scales and global scale that a quantization must give. Linears that share an input share them.
type Quantization = (Vec<u8>, Vec<u64>, Vec<u64>);

/// The counts of one folder.
#[derive(Debug, Default)]
struct Counts {
    linears: usize,
    /// Of every linear.
    codes: Codes,
    /// Of every quantization that no earlier linear had.
    distinct: Codes,
    /// Products of two FP4 operands.
    w4a4: usize,
    worst: f64,
}

/// The folders below `root` that hold `expected.safetensors`.
fn folders(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| path.join("expected.safetensors").exists())
        // The tests of `onnx.rs` check ONNX files.
        .filter(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("onnx-")))
        .collect();
    folders.sort();
    folders
}

impl Expected {
    /// The codes of quantized activations, one per element.
    fn codes(&self, name: &str) -> Option<Vec<u8>> {
        let raw = self.0.read(self.0.find(&format!("{name}.a_codes"))?).expect("the tensor can be read");
        Some(match raw.dtype.as_str() {
            "U8" => raw.bytes.iter().flat_map(|byte| [byte & 0xF, byte >> 4]).collect(),
            _ => raw.bytes,
        })
    }

    /// The quantization of the input of a linear, if there is one.
    fn quantization(&self, name: &str) -> Option<Quantization> {
        let bits = |part: &str| -> Vec<u64> {
            let numbers = self.find(&format!("{name}.{part}")).unwrap_or_default();
            numbers.into_iter().map(f64::to_bits).collect()
        };
        Some((self.codes(name)?, bits("a_scale"), bits("a_global")))
    }
}

/// The f64 quotients that a code and its scale are rounded from.
struct Quotient {
    code: f64,
    scale: f64,
    /// True if f32 may round one of them to or across a tie.
    is_at_tie: bool,
}

impl Expected {
    /// The quotient of every activation.
    fn quotients(&self, name: &str, x: &[f64], inputs: &Inputs) -> Result<Vec<Quotient>> {
        let global = self.find(&format!("{name}.a_global")).map_or(1.0, |global| global[0]);
        let scales = self.find(&format!("{name}.a_scale")).unwrap_or_else(|| vec![1.0]);
        let block = x.len() / scales.len();
        let factor = inputs.get("x.factor").map(Tensor::to_f64);
        let factor = |at: usize| factor.as_ref().map_or(1.0, |factor| factor[at % factor.len()]);
        let x: Vec<f64> = x.iter().enumerate().map(|(at, x)| x * factor(at)).collect();
        let of = |at: usize| {
            let block = at / block * block..at / block * block + block;
            let scale = largest(&x[block.clone()]) / 6.0 / global;
            let code = x[at] / (scales[block.start / block.len()] * global);
            Quotient { code, scale, is_at_tie: is_at_tie(code, 1) || is_at_tie(scale, 3) }
        };
        Ok((0..x.len()).map(of).collect())
    }
}

/// Returns true if a number is within a few roundings of f32 of a tie between numbers with `mantissa` bits. Below 1 and
/// below 2^-6, E2M1 and E4M3 are evenly spaced.
fn is_at_tie(number: f64, mantissa: i32) -> bool {
    let least = if mantissa == 1 { 1.0 } else { 2f64.powi(-6) };
    let number = number.abs();
    let unit = 2f64.powi(number.max(least).log2().floor() as i32 - mantissa);
    let distance = ((number / unit).fract() - 0.5).abs() * unit;
    distance <= 4.0 * number * f64::from(f32::EPSILON)
}

/// The dequantized weight, from the tensors of a program.
fn weight(inputs: &Inputs) -> (usize, Vec<f64>) {
    let (codes, k) = (&inputs["w"], inputs["w"].dims()[1]);
    let scales = inputs.get("w.scale").map(|scales| scales.to_f32());
    let block = scales.as_ref().map_or(k, |scales| codes.dims()[0] * k / scales.len());
    let one = |name: &str| inputs.get(name).map(|tensor| f64::from(tensor.to_f32()[0]));
    let global = one("w.global").or_else(|| one("w.global.stored"));
    let global = global.or_else(|| Some(1.0 / one("w.global.divisor")?)).unwrap_or(1.0);
    let scale = |at: usize| scales.as_ref().map_or(1.0, |scales| f64::from(scales[at / block]));
    let values = codes.to_f32().into_iter().enumerate();
    (k, values.map(|(at, code)| f64::from(code) * scale(at) * global).collect())
}

/// The value of `%y` on the fallback.
fn on_fallback(program: &Program, bound: &Bound<'_>) -> Result<Tensor> {
    let capabilities = Capabilities {
        target: "cpu".into(),
        formats: Vec::new(),
        not_emulated: Vec::new(),
        block_quantize: None,
        device: Default::default(),
    };
    let partition = partition(program, &capabilities);
    let done = run(program, &partition, bound, &RunOptions::default(), None)?;
    Ok(done.value(program.module().outputs[0]).ok_or("the run has no output")?.clone())
}

/// Compares one linear with its expectation. `seen` has the quantizations of earlier linears.
fn check_linear(
    name: &str,
    file: &Path,
    expected: &Expected,
    seen: &mut HashSet<Quantization>,
    counts: &mut Counts,
) -> Result<()> {
    let x = expected.need(&format!("{name}.x"))?;
    let rows = expected.0.find(&format!("{name}.x")).map_or(0, |tensor| tensor.shape[0]);
    let (program, mut inputs) = read_program(file, rows)?;
    let module = program.module();
    let (k, w) = weight(&inputs);
    for (statistic, of) in [
        ("w_abs", (|row: &[f64]| row.iter().map(|w| w.abs()).sum()) as fn(&[f64]) -> f64),
        ("w_ramp", |row| row.iter().enumerate().map(|(k, w)| (k + 1) as f64 * w).sum()),
    ] {
        let found: Vec<f64> = w.chunks(k).map(of).collect();
        let stated = expected.need(&format!("{name}.{statistic}"))?;
        let error = error_of_rows(&found, &stated, found.len(), &[true]);
        if error > 1e-6 {
            return Err(format!("{statistic} differs by {error:e}").into());
        }
    }
    let element = module.ty(module.inputs[0]).element;
    inputs.insert("x".to_owned(), Tensor::from_f64(element, vec![rows, k], None, &x)?);
    let bound = bind::bind(&program, &inputs)?;
    let values = interpret(&program, &bound)?;
    let mut is_compared = vec![true; rows];
    if let Some(quantization) = expected.quantization(name) {
        let stated_codes = &quantization.0;
        let mut codes = Codes { count: stated_codes.len(), moved: 0 };
        let value = |name: &str| program.facts().value_named(name).map(|value| &values[value.index()]);
        let found = value("x.codes").ok_or("the program quantizes nothing")?;
        let quotients = expected.quotients(name, &x, &inputs)?;
        for (at, (found, stated)) in found.to_codes().iter().zip(stated_codes).enumerate() {
            if found == stated {
                continue;
            }
            is_compared[at / k] = false;
            codes.moved += 1;
            if !quotients[at].is_at_tie {
                let Quotient { code, scale, .. } = quotients[at];
                return Err(format!(
                    "code {at} is {found:#x}, not {stated:#x}, but {code} of the scale {scale} is no tie"
                )
                .into());
            }
        }
        assert_eq!(found.count(), codes.count);
        counts.codes.add(codes);
        if seen.insert(quantization) {
            counts.distinct.add(codes);
        }
    }
    let y = expected.need(&format!("{name}.y"))?;
    let output = values[module.outputs[0].index()].to_f32();
    for (way, found) in [("interpreter", output), ("fallback", on_fallback(&program, &bound)?.to_f32())] {
        let found: Vec<f64> = found.into_iter().map(f64::from).collect();
        let error = error_of_rows(&found, &y, y.len() / rows, &is_compared);
        counts.worst = counts.worst.max(error);
        if error > 1e-5 {
            return Err(format!("y on the {way} differs by {error:e}").into());
        }
    }
    counts.linears += 1;
    counts.w4a4 += w4a4(&program);
    Ok(())
}

/// The number of products of two FP4 operands.
fn w4a4(program: &Program) -> usize {
    let module = program.module();
    let is_one = |operation: &Operation| {
        let is_fp4 = |at: usize| module.ty(operation.operands[at]).element == ElementType::F4E2M1FN;
        matches!(operation.kind, OpKind::ScaledMma(_)) && is_fp4(0) && is_fp4(2)
    };
    module.ops.iter().filter(|(_, operation)| is_one(operation)).count()
}

/// The name of a linear's expected tensors. Those of GGUF have the name of the weight, with the expert in brackets.
fn expected_name(folder: &Path, linear: &str) -> String {
    if !folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gguf-")) {
        return linear.to_owned();
    }
    match linear.rsplit_once('.') {
        Some((stack, expert)) if expert.parse::<u32>().is_ok() => format!("{stack}.weight[{expert}]"),
        _ => format!("{linear}.weight"),
    }
}

/// Imports a folder and checks every linear. Returns the counts, or every failure.
fn check_folder(
    folder: &Path,
    options: &ImportOptions,
    seen: &mut HashSet<Quantization>,
) -> Result<(Import, Counts)> {
    let imported = import(folder, options)?;
    let output = tempfile::tempdir()?;
    let written = write(&imported, output.path())?;
    let expected = Expected(SafetensorsFile::open(&folder.join("expected.safetensors"))?);
    let (mut counts, mut failures) = (Counts::default(), Vec::new());
    let linears = imported.programs.iter().zip(&written).filter(|(it, _)| it.kind == ProgramKind::Linear);
    for (_, program) in linears {
        let name = expected_name(folder, &program.name);
        if let Err(error) = check_linear(&name, &program.file, &expected, seen, &mut counts) {
            failures.push(format!("{}: {error}", program.name));
        }
    }
    let names: Vec<String> = written.iter().map(|program| expected_name(folder, &program.name)).collect();
    for tensor in expected.0.tensors() {
        if let Some(name) =
            tensor.name.strip_suffix(".y").filter(|name| !names.iter().any(|known| known == name))
        {
            failures.push(format!("{name} is expected, but was not imported"));
        }
    }
    if failures.is_empty() { Ok((imported, counts)) } else { Err(failures.join("\n  ").into()) }
}

#[test]
fn every_linear_of_every_checkpoint_has_the_expected_result() {
    let mut cases = folders(&fixtures());
    assert!(cases.len() >= 8, "the fixtures are there");
    let more = std::env::var_os("FOURFOLD_TEST_MODELS");
    cases.extend(more.iter().flat_map(|more| folders(Path::new(more))));
    let mut failed = Vec::new();
    let (mut codes, mut distinct) = (Codes::default(), Codes::default());
    let mut seen = HashSet::new();
    for folder in cases {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match check_folder(&folder, &exact(), &mut seen) {
            Ok((imported, counts)) => {
                println!("{name}: {counts:?}, {} left out", imported.left_out.len());
                codes.add(counts.codes);
                distinct.add(counts.distinct);
            }
            Err(error) => failed.push(format!("{name}:\n  {error}")),
        }
    }
    println!("{} of {} codes of distinct quantizations moved", distinct.moved, distinct.count);
    println!("{} of {} codes of all linears moved", codes.moved, codes.count);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let one_in = if more.is_some() { ONE_IN } else { ONE_IN_OF_FIXTURES };
    assert!(distinct.moved * one_in <= distinct.count, "{distinct:?} is more than 1 in {one_in}");
}

/// The number of weight-only products, and of others that dequantize a weight first.
fn weight_only(program: &Program) -> [usize; 2] {
    let module = program.module();
    let count = |is: fn(&OpKind) -> bool| module.ops.values().filter(|operation| is(&operation.kind)).count();
    [
        program.facts().matmuls().filter(|(_, matmul)| matmul.format.is_weight_only()).count(),
        count(|kind| matches!(kind, OpKind::BlockDequantize { .. })),
    ]
}

/// With activations of 16 bits, every product of a block-scaled weight is a `scaled_mma`.
#[test]
fn weight_only_products_have_the_expected_results() {
    let options = ImportOptions { input_type: Some(ElementType::BF16), ..exact() };
    let mut cases = folders(&fixtures());
    cases.extend(std::env::var_os("FOURFOLD_TEST_MODELS").iter().flat_map(|more| folders(Path::new(more))));
    let mut formats: BTreeMap<String, usize> = BTreeMap::new();
    for folder in cases {
        let imported = import(&folder, &options).expect("the checkpoint is valid");
        let output = tempfile::tempdir().expect("a folder");
        let written = write(&imported, output.path()).expect("the programs can be written");
        let expected = SafetensorsFile::open(&folder.join("expected.safetensors")).expect("it is there");
        let expected = Expected(expected);
        let (mut products, mut compared, mut worst) = (0, 0, 0f64);
        for (imported, program) in imported.programs.iter().zip(&written) {
            let name = expected_name(&folder, &program.name);
            let rows = expected.0.find(&format!("{name}.x")).map_or(3, |tensor| tensor.shape[0]);
            let (program, mut inputs) = read_program(&program.file, rows).expect("it was just written");
            let [count, dequantized] = weight_only(&program);
            assert_eq!(dequantized, 0, "{}: {name}", folder.display());
            products += count;
            for (_, matmul) in program.facts().matmuls() {
                *formats.entry(matmul.format.to_string()).or_default() += 1;
            }
            if count == 0 || imported.kind != ProgramKind::Linear {
                continue;
            }
            let x = expected.need(&format!("{name}.x")).expect("there is an input");
            let k = x.len() / rows;
            let tensor = Tensor::from_f64(ElementType::BF16, vec![rows, k], None, &x).expect("a matrix");
            if inputs.contains_key("x.global") || tensor.to_f64() != x {
                // FP8 codes are compared above, and other inputs have more digits.
                continue;
            }
            inputs.insert("x".to_owned(), tensor);
            let bound = bind::bind(&program, &inputs).expect("it fits");
            let y = expected.need(&format!("{name}.y")).expect("there is a result");
            let of = program.module().outputs[0];
            let interpreted = interpret(&program, &bound).expect("it is small")[of.index()].to_f64();
            let ran = on_fallback(&program, &bound).expect("it runs").to_f64();
            for found in [interpreted, ran] {
                let error = error_of_rows(&found, &y, y.len() / rows, &vec![true; rows]);
                assert!(error < 1e-5, "{}: {name} differs by {error:e}", folder.display());
                worst = worst.max(error);
            }
            compared += 1;
        }
        println!("{}: {products} weight-only, {compared} compared, worst {worst:e}", folder.display());
    }
    println!("{formats:?}");
    assert!(
        formats.get("bf16 x nvfp4") >= Some(&60) && formats.get("bf16 x mxfp4") >= Some(&20),
        "{formats:?}"
    );
}

#[test]
fn torchao_quantizes_activations_by_its_own_formula() {
    let own = Nvfp4Formula {
        scale_min: ScaleMin::new(2f32.powi(-6)).expect("the bound is valid"),
        codes: CodeFormula::ReciprocalScale,
        guard: false,
        ..Nvfp4Formula::DEFAULT
    };
    for (folder, expected) in [
        ("torchao-nvfp4-static", own),
        ("torchao-nvfp4-dynamic", own),
        ("modelopt-nvfp4-awq", Nvfp4Formula::DEFAULT),
    ] {
        let imported = import(&fixtures().join(folder), &exact()).expect("the checkpoint is valid");
        let ops = imported.programs.iter().flat_map(|program| program.module.ops.values());
        let formulas: Vec<Nvfp4Formula> = ops
            .filter_map(|op| match op.kind {
                OpKind::BlockQuantize { formula, .. } => Some(formula),
                _ => None,
            })
            .collect();
        assert!(!formulas.is_empty());
        assert!(formulas.iter().all(|formula| *formula == expected), "{folder}: {formulas:?}");
    }
}

#[test]
fn products_of_formats_with_kernels_become_kernels() {
    let backends: Vec<Backend> = ["sm_100a", "sm_120a", "sm_90a"]
        .into_iter()
        .map(|target| Backend::new(&Options::default().target(target).device(DeviceChoice::None)))
        .collect::<std::result::Result<_, _>>()
        .expect("the targets are known");
    for folder in folders(&fixtures()) {
        let imported = import(&folder, &ImportOptions::default()).expect("the checkpoint is valid");
        let mut planned: BTreeMap<String, usize> = BTreeMap::new();
        for program in &imported.programs {
            for backend in &backends {
                let plan = backend.plan_module(program.module.clone()).expect("the program is valid");
                let kernels = plan.partition().kernels().count();
                let has_kernels = |(_, matmul): &(_, &Matmul)| {
                    let format = backend.capabilities().format(matmul.format);
                    format.is_some_and(|it| matmul.groups.is_none() || it.max_groups.is_some())
                };
                let products = plan.program().facts().matmuls().filter(has_kernels).count();
                assert_eq!(kernels, products, "{}", program.name);
                // Two products of a gate and an up projection are one kernel.
                let pairs = plan.partition().kernels().filter(|(_, kernel)| kernel.pair.is_some()).count();
                assert!(w4a4(plan.original()) <= products + pairs, "{}", program.name);
                *planned.entry(backend.capabilities().target.clone()).or_default() += kernels;
            }
        }
        println!("{}: {planned:?}", folder.display());
    }
}
