//! Replays a program from a file: plan it, run it on its data, compare every expected value.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fourfold_executor::{DataFile, RawTensor, Run, RunOptions, read_tensors, read_text};
use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{
    Bound, Diagnostic, Entity, Op, OpKind, Program, ScaleLayout, Tensor, Value, bind, interpret, text,
};
use fourfold_scheduler::Partition;

use crate::backend::{Backend, Options, Planned};
use crate::compare::{Tolerance, compare};
use crate::error::Error;
use crate::header::{self, Header};
use crate::report::{OutputReport, Report, WorstReport};

/// The tolerance where neither the file nor the kind of data says otherwise, relative to the largest magnitude: f32
/// accumulation in another order typically moves a sum by 1e-7 of it, a wrong scale, layout or rounding by 1e-3.
pub const DEFAULT_TOLERANCE: f64 = 1e-5;

/// How a program is replayed.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// What is planned for; the default when absent.
    pub target: Option<String>,
    /// The data file; the one that the program names when absent.
    pub data: Option<PathBuf>,
    /// Extents for seeded inputs, over those of the program's `sample` line.
    pub symbols: Vec<(String, u64)>,
}

/// A program read from a file.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Where it was read from.
    pub file: PathBuf,
    /// What its comments say about running it.
    pub header: Header,
    /// The program.
    pub program: Program,
}

/// Where a run's inputs come from.
enum Inputs {
    Data { file: PathBuf, data: DataFile },
    Sampled { recipe: Recipe, tensors: HashMap<String, Tensor> },
}

/// Reads and verifies a program.
///
/// # Errors
/// When the file cannot be read, or with every error in its text.
pub fn load(file: &Path) -> Result<Loaded, Error> {
    let source_text = read_text(file)?;
    let invalid = |diagnostics: Vec<Diagnostic>, source_text: String| Error::Program {
        file: file.to_owned(),
        source_text,
        diagnostics,
    };
    let program = match text::load(&source_text) {
        Ok((program, _)) => program,
        Err(diagnostics) => return Err(invalid(diagnostics, source_text)),
    };
    match header::read(&source_text) {
        Ok(header) => Ok(Loaded { file: file.to_owned(), header, program }),
        Err(diagnostics) => Err(invalid(diagnostics, source_text)),
    }
}

/// Plans a program and proves the plan, without running it.
///
/// # Errors
/// When the program is not valid or the target unknown.
pub fn explain(file: &Path, target: Option<&str>) -> Result<Report, Error> {
    let loaded = load(file)?;
    let (planned, _) = plan(&loaded, target)?;
    Ok(Report::of_plan(&file.display().to_string(), planned.program(), planned.partition()))
}

/// Plans a program, runs it and compares every expected value.
///
/// # Errors
/// When the program or its data are not valid, or the target unknown. A mismatch is no error: see [`Report::ok`].
pub fn replay(file: &Path, options: &ReplayOptions) -> Result<Report, Error> {
    let loaded = load(file)?;
    let recipe = loaded.header.samples.first().cloned();
    let inputs = match (&options.data, &loaded.header.data, recipe) {
        (Some(file), _, _) => data_inputs(file.clone(), &loaded.program)?,
        (None, Some(name), None) => {
            let folder = file.parent().unwrap_or(Path::new("."));
            data_inputs(folder.join(name), &loaded.program)?
        }
        (None, _, Some(recipe)) => sampled_inputs(with_symbols(recipe, &options.symbols), &loaded.program)?,
        (None, None, None) => {
            let recipe = Recipe { rule: Rule::Normal, seed: 0, symbols: Vec::new() };
            sampled_inputs(with_symbols(recipe, &options.symbols), &loaded.program)?
        }
    };
    replay_inputs(&loaded, options.target.as_deref(), &inputs)
}

/// Replays a program on seeded inputs.
///
/// # Errors
/// As [`replay`].
pub fn replay_sample(loaded: &Loaded, target: Option<&str>, recipe: &Recipe) -> Result<Report, Error> {
    replay_inputs(loaded, target, &sampled_inputs(recipe.clone(), &loaded.program)?)
}

fn plan(loaded: &Loaded, target: Option<&str>) -> Result<(Planned, Backend), Error> {
    let backend = Backend::new(&Options { target: target.map(str::to_owned) })?;
    let planned = backend.plan(loaded.program.clone());
    backend.check(&planned)?;
    Ok((planned, backend))
}

fn with_symbols(mut recipe: Recipe, symbols: &[(String, u64)]) -> Recipe {
    for (name, extent) in symbols {
        recipe.symbols.retain(|(known, _)| known != name);
        recipe.symbols.push((name.clone(), *extent));
    }
    recipe
}

fn data_inputs(file: PathBuf, program: &Program) -> Result<Inputs, Error> {
    let data = read_tensors(&file, program.module())?;
    Ok(Inputs::Data { file, data })
}

fn sampled_inputs(recipe: Recipe, program: &Program) -> Result<Inputs, Error> {
    let tensors = sample::inputs(program, &recipe)?;
    Ok(Inputs::Sampled { recipe, tensors })
}

fn replay_inputs(loaded: &Loaded, target: Option<&str>, inputs: &Inputs) -> Result<Report, Error> {
    let (planned, _) = plan(loaded, target)?;
    let program = planned.program();
    let mut report = Report::of_plan(&loaded.file.display().to_string(), program, planned.partition());
    let tensors = match inputs {
        Inputs::Data { data, .. } => &data.inputs,
        Inputs::Sampled { tensors, .. } => tensors,
    };
    report.inputs = Some(match inputs {
        Inputs::Data { file, .. } => file.display().to_string(),
        Inputs::Sampled { recipe, .. } => {
            format!("seeded, rule {}, seed {}", recipe.rule.name(), recipe.seed)
        }
    });

    let bound = bind::bind(program, tensors)?;
    for (symbol, name) in program.module().symbols.iter() {
        if let Some(extent) = bound.symbols.get(symbol) {
            report.symbols.insert(name.clone(), extent);
        }
    }
    let run = fourfold_executor::run(program, planned.partition(), &bound, &RunOptions { keep_all: true })?;
    for (segment, ran) in report.segments.iter_mut().zip(&run.segments) {
        segment.ran = ran.ran.as_str();
        if let Some(reason) = &ran.reason {
            segment.reason = Some(reason.code.to_owned());
            segment.message = Some(reason.message.clone());
        }
        segment.seconds = Some(ran.seconds);
    }

    let comparer = Comparer {
        program,
        partition: planned.partition(),
        header: &loaded.header,
        run: &run,
        bound: &bound,
        default_tolerance: default_tolerance(&loaded.header, program, inputs),
        interpreted: OnceCell::new(),
    };
    report.outputs = comparer.compare_all(inputs, &mut report.notes)?;
    report.ok = report.outputs.iter().all(|output| output.ok);
    Ok(report)
}

/// Equality where every order of f32 accumulation gives the same sums, for the file's tolerance otherwise.
fn default_tolerance(header: &Header, program: &Program, inputs: &Inputs) -> f64 {
    let exact = match inputs {
        Inputs::Sampled { recipe, .. } => is_exact(program, recipe.rule),
        Inputs::Data { .. } => false,
    };
    header.tolerance.unwrap_or(if exact { 0.0 } else { DEFAULT_TOLERANCE })
}

/// Whether every multiplication is a `scaled_mma` of sampled operands with a K that the rule keeps exact.
fn is_exact(program: &Program, rule: Rule) -> bool {
    let module = program.module();
    let is_sampled = |value: Value| match module.defining_op(value) {
        None => true,
        Some(op) => {
            let operation = &module.ops[op];
            operation.kind == OpKind::SwizzleScales && module.defining_op(operation.operands[0]).is_none()
        }
    };
    let is_exact_product = |op: Op| {
        let (Some(matmul), Some(operands)) = (program.facts().matmul(op), module.scaled_mma_operands(op))
        else {
            return false;
        };
        let limit = rule.exact_k(matmul.format.scale).unwrap_or(0);
        matmul.k.as_fixed().is_some_and(|k| k <= limit)
            && [operands.a, operands.sfa, operands.b, operands.sfb].into_iter().all(is_sampled)
    };
    module.ops.iter().all(|(op, operation)| match operation.kind {
        OpKind::Mma => false,
        OpKind::ScaledMma(_) => is_exact_product(op),
        _ => true,
    })
}

struct Comparer<'a> {
    program: &'a Program,
    partition: &'a Partition,
    header: &'a Header,
    run: &'a Run,
    bound: &'a Bound<'a>,
    default_tolerance: f64,
    interpreted: OnceCell<Result<Vec<Tensor>, fourfold_ir::InterpretError>>,
}

/// What a value is compared with.
struct Expectation<'a> {
    value: Value,
    /// How the report names it.
    against: String,
    want: &'a Tensor,
    tolerance: Tolerance,
}

impl Comparer<'_> {
    fn compare_all(&self, inputs: &Inputs, notes: &mut Vec<String>) -> Result<Vec<OutputReport>, Error> {
        let mut outputs = Vec::new();
        let mut covered = Vec::new();
        if let Inputs::Data { file, data } = inputs {
            for (name, stored) in &data.expected {
                let Some(value) = self.program.facts().value_named(name) else {
                    notes.push(format!("expected.{name} is not compared: the program has no value %{name}"));
                    continue;
                };
                let tolerance = self.header.tolerances.get(name).copied().unwrap_or(self.default_tolerance);
                let against = format!("expected.{name}");
                let want = self.stored_as(value, stored, &against)?;
                covered.push(value);
                let tolerance = Tolerance::Relative(tolerance);
                outputs.push(self.compare_one(&Expectation { value, against, want: &want, tolerance })?);
            }
            for expected in &self.header.expected {
                let value = self.program.facts().value_named(&expected.value).ok_or_else(|| {
                    Error::Missing(format!(
                        "the program has no value %{}, of which it expects codes",
                        expected.value
                    ))
                })?;
                let stored = data.other.get(&expected.tensor).ok_or_else(|| {
                    let (file, name) = (file.display(), &expected.tensor);
                    Error::Missing(format!(
                        "{file} has no tensor `{name}`, with which %{} is compared",
                        expected.value
                    ))
                })?;
                let want = self.stored_as(value, stored, &expected.tensor)?;
                covered.push(value);
                let tolerance = Tolerance::Count(expected.may_differ);
                let against = expected.tensor.clone();
                outputs.push(self.compare_one(&Expectation { value, against, want: &want, tolerance })?);
            }
        }
        for &value in &self.program.module().outputs {
            if covered.contains(&value) {
                continue;
            }
            let name = self.program.module().name_of(value);
            let tolerance = self.header.tolerances.get(name).copied().unwrap_or(self.default_tolerance);
            let want = &self.interpreted()?[value.index()];
            let (against, tolerance) = ("interpreter".to_owned(), Tolerance::Relative(tolerance));
            outputs.push(self.compare_one(&Expectation { value, against, want, tolerance })?);
        }
        Ok(outputs)
    }

    fn compare_one(&self, expectation: &Expectation<'_>) -> Result<OutputReport, Error> {
        let Expectation { value, against, want, tolerance } = expectation;
        let (got, source) = self.computed(*value)?;
        let unrounded = || self.unrounded(*value);
        let comparison = compare(got, want, *tolerance, Some(&unrounded));
        let (relative, may_differ) = match tolerance {
            Tolerance::Relative(relative) => (Some(*relative), None),
            Tolerance::Count(count) => (None, Some(*count)),
        };
        Ok(OutputReport {
            name: self.program.module().name_of(*value).to_owned(),
            expected: against.clone(),
            source,
            max_abs_err: comparison.max_abs_err,
            max_rel_err: comparison.max_rel_err,
            tolerance: relative,
            may_differ,
            mismatches: comparison.mismatches,
            moved_roundings: comparison.moved_roundings,
            moved_max_abs_err: comparison.moved_max_abs_err,
            worst: comparison.worst.map(|worst| WorstReport {
                index: worst.index,
                got: worst.got.to_string(),
                want: worst.want.to_string(),
            }),
            ok: comparison.ok,
        })
    }

    /// The value and where it came from: what ran, unless it was fused away inside a kernel segment.
    fn computed(&self, value: Value) -> Result<(&Tensor, &'static str), Error> {
        if !self.is_fused_away(value)
            && let Some(tensor) = self.run.value(value)
        {
            return Ok((tensor, "run"));
        }
        Ok((&self.interpreted()?[value.index()], "interpreter"))
    }

    fn is_fused_away(&self, value: Value) -> bool {
        let Some(op) = self.program.module().defining_op(value) else { return false };
        let segment = &self.partition.segments[self.partition.decisions[op.index()].segment];
        segment.kernel().is_some() && !segment.outputs.contains(&value)
    }

    /// The operand of the conversion that defines the value.
    fn unrounded(&self, value: Value) -> Option<Tensor> {
        let module = self.program.module();
        let operation = &module.ops[module.defining_op(value)?];
        if operation.kind != OpKind::Convert {
            return None;
        }
        Some(self.interpreted().ok()?[operation.operands[0].index()].clone())
    }

    fn interpreted(&self) -> Result<&[Tensor], Error> {
        let result = self.interpreted.get_or_init(|| interpret(self.program, self.bound));
        result.as_deref().map_err(|error| Error::Interpret(error.clone()))
    }

    /// A stored tensor in the type of a value. Values of arithmetic types may be stored in another one, and scales
    /// in either layout.
    fn stored_as(&self, value: Value, stored: &RawTensor, name: &str) -> Result<Tensor, Error> {
        let module = self.program.module();
        let ty = module.ty(value);
        let dims = bind::concrete_dims(ty, &self.bound.symbols).ok_or_else(|| {
            Error::Missing(format!("the shape of %{} has no value in this run", module.name_of(value)))
        })?;
        let layouts = match ty.layout {
            None => [None, None],
            Some(_) => [Some(ScaleLayout::Linear), Some(ScaleLayout::Blocked)],
        };
        let as_stored = || stored.as_stored().filter(|t| t.dims() == dims && t.element().is_arithmetic());
        layouts
            .into_iter()
            .find_map(|layout| stored.as_type(ty.element, &dims, layout).ok())
            .or_else(|| as_stored().filter(|_| ty.element.is_arithmetic()))
            .ok_or_else(|| Error::Expected {
                tensor: name.to_owned(),
                found: format!("{} of shape {:?}", stored.dtype, stored.dims),
                value: module.name_of(value).to_owned(),
                expected: format!("{} of shape {dims:?}", ty.element),
            })
    }
}
