//! Replays a program from a file: plan it, run it on its data, compare every expected value.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fourfold_codegen::configuration::CutlassVersion;
use fourfold_executor::toolchain::ToolchainOptions;
use fourfold_executor::{
    BuildOptions, DataFile, Ran, RawTensor, Run, RunOptions, read_tensors_given, read_text,
};
use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{
    Bound, Diagnostic, Dim, Entity, InterpretError, OpKind, Program, ScaleLayout, Tensor, Value, bind,
    interpret, text,
};
use fourfold_scheduler::Partition;

use crate::backend::{Backend, Options, Planned};
use crate::compare::{Rounding, Tolerance, compare};
use crate::error::{Error, Fault};
use crate::header::{self, Header};
use crate::kernels::{
    BuildFailure, PlannedKernel, build_kernels, cutlass_version, planned_kernels, toolchain,
};
use crate::precision::{Precision, precisions};
use crate::report::{OutputReport, Report, ResourceReport, WorstReport};

/// The interpreter is not asked for more multiplications than this: some ten seconds.
const MOST_PRODUCTS: f64 = 2e10;
/// Nor for values of more elements.
const MOST_ELEMENTS: f64 = 1.5e8;

/// How a program is replayed.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// What is planned for; the default when absent.
    pub target: Option<String>,
    /// The data file; the one that the program names when absent.
    pub data: Option<PathBuf>,
    /// Build the kernels that would run, with this toolchain.
    pub build: Option<ToolchainOptions>,
    /// How to build them.
    pub build_options: BuildOptions,
    /// Extents of symbols: for seeded inputs over those of the program's `sample` line, for data as a condition.
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
    Data { file: PathBuf, data: DataFile, symbols: Vec<(String, u64)> },
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
    match header::read(&source_text, &program) {
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
    let mut report = Report::of_plan(&file.display().to_string(), planned.program(), planned.partition());
    describe_kernels(&mut report, &planned_kernels(&planned, CutlassVersion::PINNED));
    Ok(report)
}

/// Plans a program, builds its kernels if asked to, runs it and compares every expected value. `progress` is told
/// of what takes long.
///
/// # Errors
/// When the program or its data are not valid, or the target unknown. A mismatch is no error: see [`Report::ok`].
pub fn replay(
    file: &Path,
    options: &ReplayOptions,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Report, Error> {
    let loaded = load(file)?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let data = options.data.clone().or_else(|| Some(folder.join(loaded.header.data.as_ref()?)));
    let inputs = match data {
        Some(data) => data_inputs(data, &options.symbols, &loaded.program)?,
        None => {
            let unsaid = || Recipe { rule: Rule::Normal, seed: 0, symbols: Vec::new() };
            let recipe = loaded.header.samples.first().cloned().unwrap_or_else(unsaid);
            sampled_inputs(with_symbols(recipe, &options.symbols), &loaded.program)?
        }
    };
    replay_inputs(&loaded, options, &inputs, progress)
}

/// Replays a program on seeded inputs.
///
/// # Errors
/// As [`replay`].
pub fn replay_sample(loaded: &Loaded, target: Option<&str>, recipe: &Recipe) -> Result<Report, Error> {
    let options = ReplayOptions { target: target.map(str::to_owned), ..ReplayOptions::default() };
    replay_inputs(loaded, &options, &sampled_inputs(recipe.clone(), &loaded.program)?, &|_| {})
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

fn data_inputs(file: PathBuf, symbols: &[(String, u64)], program: &Program) -> Result<Inputs, Error> {
    let data = read_tensors_given(&file, program.module(), symbols)?;
    Ok(Inputs::Data { file, data, symbols: symbols.to_vec() })
}

fn sampled_inputs(recipe: Recipe, program: &Program) -> Result<Inputs, Error> {
    let tensors = sample::inputs(program, &recipe)?;
    Ok(Inputs::Sampled { recipe, tensors })
}

fn replay_inputs(
    loaded: &Loaded,
    options: &ReplayOptions,
    inputs: &Inputs,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Report, Error> {
    let (planned, _) = plan(loaded, options.target.as_deref())?;
    let program = planned.program();
    let mut report = Report::of_plan(&loaded.file.display().to_string(), program, planned.partition());
    let (tensors, given) = match inputs {
        Inputs::Data { data, symbols, .. } => (&data.inputs, symbols),
        Inputs::Sampled { tensors, recipe } => (tensors, &recipe.symbols),
    };
    report.inputs = Some(match inputs {
        Inputs::Data { file, .. } => file.display().to_string(),
        Inputs::Sampled { recipe, .. } => {
            format!("seeded, rule {}, seed {}", recipe.rule.name(), recipe.seed)
        }
    });

    let bound = bind::bind_given(program, tensors, given)?;
    for (symbol, name) in program.module().symbols.iter() {
        if let Some(extent) = bound.symbols.get(symbol) {
            report.symbols.insert(name.clone(), extent);
        }
    }
    let run_options = RunOptions { keep_all: true, ..RunOptions::default() };
    let run = fourfold_executor::run(program, planned.partition(), &bound, &run_options, None)?;
    for (segment, ran) in report.segments.iter_mut().zip(&run.segments) {
        segment.ran = ran.ran.as_str();
        if let Some(reason) = &ran.reason {
            segment.reason = Some(reason.code.to_owned());
            segment.message = Some(reason.message.clone());
        }
        segment.seconds = Some(ran.seconds);
        let as_kernel = segment.kind == "kernel" && matches!(ran.ran, Ran::Kernel | Ran::Emulated);
        report.ran_kernels += usize::from(as_kernel);
    }

    match &options.build {
        None => describe_kernels(&mut report, &planned_kernels(&planned, CutlassVersion::PINNED)),
        Some(tools) => build_into(&mut report, &planned, tools, &options.build_options, progress),
    }

    let comparer = Comparer {
        program,
        partition: planned.partition(),
        header: &loaded.header,
        run: &run,
        bound: &bound,
        precisions: precisions(
            program,
            match inputs {
                Inputs::Data { .. } => None,
                Inputs::Sampled { recipe, .. } => Some(recipe.rule),
            },
        ),
        interpreted: OnceCell::new(),
    };
    report.outputs = comparer.compare_all(inputs, &mut report.notes)?;
    report.ok = report.outputs.iter().all(|output| output.ok);
    Ok(report)
}

/// Says how each kernel is configured.
fn describe_kernels(report: &mut Report, kernels: &[PlannedKernel]) {
    for kernel in kernels {
        let segment = &mut report.segments[kernel.segment];
        segment.configuration = Some(kernel.spec.configuration.name());
        segment.why = Some(kernel.why.clone());
    }
}

/// Builds every kernel; one that cannot be built has that as its reason.
fn build_into(
    report: &mut Report,
    planned: &Planned,
    tools: &ToolchainOptions,
    options: &BuildOptions,
    progress: &(dyn Fn(&str) + Sync),
) {
    let fail = |report: &mut Report, segment: usize, failure: &BuildFailure| {
        let segment = &mut report.segments[segment];
        segment.reason = Some(failure.code.to_owned());
        segment.message = Some(format!("{} (fault: {})", failure.message, failure.fault));
    };
    let toolchain = match toolchain(tools, &mut |line| progress(line)) {
        Ok(toolchain) => toolchain,
        Err(error) => {
            let failure = BuildFailure::from(&error);
            let kernels = planned_kernels(planned, CutlassVersion::PINNED);
            describe_kernels(report, &kernels);
            kernels.iter().for_each(|kernel| fail(report, kernel.segment, &failure));
            return;
        }
    };
    let kernels = planned_kernels(planned, cutlass_version(&toolchain));
    describe_kernels(report, &kernels);
    for built in build_kernels(kernels, &toolchain, options, progress) {
        match &built.outcome {
            Ok(artifact) => {
                let resources = ResourceReport::from(artifact.resources());
                report.segments[built.planned.segment].resources = Some(resources);
            }
            Err(failure) => fail(report, built.planned.segment, failure),
        }
    }
}

struct Comparer<'a> {
    program: &'a Program,
    partition: &'a Partition,
    header: &'a Header,
    run: &'a Run,
    bound: &'a Bound<'a>,
    precisions: Vec<Precision>,
    interpreted: OnceCell<Result<Vec<Tensor>, NotInterpreted>>,
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
        if let Inputs::Data { file, data, .. } = inputs {
            for (name, stored) in &data.expected {
                let Some(value) = self.program.facts().value_named(name) else {
                    notes.push(format!("expected.{name} is not compared: the program has no value %{name}"));
                    continue;
                };
                let against = format!("expected.{name}");
                let want = self.stored_as(value, stored, None, &against)?;
                covered.push(value);
                let tolerance = self.tolerance(value);
                outputs.push(self.compare_one(&Expectation { value, against, want: &want, tolerance })?);
            }
            for expected in &self.header.expected {
                let value = self.value_named(&expected.value)?;
                let stored = data.other.get(&expected.tensor).ok_or_else(|| {
                    let (file, name) = (file.display(), &expected.tensor);
                    Error::Missing(format!(
                        "{file} has no tensor `{name}`, with which %{} is compared",
                        expected.value
                    ))
                })?;
                let want = self.stored_as(value, stored, expected.layout, &expected.tensor)?;
                covered.push(value);
                let tolerance = Tolerance::Count(expected.may_differ);
                let against = expected.tensor.clone();
                outputs.push(self.compare_one(&Expectation { value, against, want: &want, tolerance })?);
            }
        } else if let Some(expected) = self.header.expected.first() {
            let name = &expected.value;
            notes.push(format!("%{name} is not compared with `{}`: the inputs are seeded", expected.tensor));
        }
        for &value in &self.program.module().outputs {
            if covered.contains(&value) {
                continue;
            }
            let interpreted = match self.interpreted() {
                Ok(values) => values,
                Err(error) => {
                    let error = Error::from(error);
                    if error.fault() != Fault::ResourceLimit {
                        return Err(error);
                    }
                    let name = self.program.module().name_of(value);
                    notes.push(format!("%{name} is not compared: {error}"));
                    continue;
                }
            };
            let want = &interpreted[value.index()];
            let (against, tolerance) = ("interpreter".to_owned(), self.tolerance(value));
            outputs.push(self.compare_one(&Expectation { value, against, want, tolerance })?);
        }
        Ok(outputs)
    }

    fn value_named(&self, name: &str) -> Result<Value, Error> {
        let value = self.program.facts().value_named(name);
        value.ok_or_else(|| Error::Missing(format!("the program has no value %{name}")))
    }

    /// What the file states, else what the value's precision allows.
    fn tolerance(&self, value: Value) -> Tolerance {
        let name = self.program.module().name_of(value);
        let stated = self.header.tolerance_of(name);
        Tolerance::Relative(stated.unwrap_or_else(|| self.precisions[value.index()].tolerance()))
    }

    fn compare_one(&self, expectation: &Expectation<'_>) -> Result<OutputReport, Error> {
        let Expectation { value, against, want, tolerance } = expectation;
        let (got, source) = self.computed(*value)?;
        let operand = self.converted_operand(*value);
        let unrounded = || self.computed(operand?).ok().map(|(tensor, _)| tensor.clone());
        let rounding = match self.precisions[value.index()] {
            Precision::Exact => Rounding::Same,
            Precision::Inexact { .. } if operand.is_some() => Rounding::Converted(&unrounded),
            Precision::Inexact { .. } => Rounding::OneStep,
        };
        let comparison = compare(got, want, *tolerance, rounding);
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

    /// The operand of the conversion that defines the value, when one does.
    fn converted_operand(&self, value: Value) -> Option<Value> {
        let module = self.program.module();
        let operation = &module.ops[module.defining_op(value)?];
        (operation.kind == OpKind::Convert).then(|| operation.operands[0])
    }

    fn interpreted(&self) -> Result<&[Tensor], NotInterpreted> {
        let evaluate = || {
            check_work(self.program, self.bound)?;
            interpret(self.program, self.bound).map_err(NotInterpreted::Failed)
        };
        self.interpreted.get_or_init(evaluate).as_deref().map_err(Clone::clone)
    }

    /// A stored tensor in the type of a value. Values of arithmetic types may be stored in another one; scales have
    /// the layout that is stated, or that of the value, or are linear where only that fits.
    fn stored_as(
        &self,
        value: Value,
        stored: &RawTensor,
        layout: Option<ScaleLayout>,
        name: &str,
    ) -> Result<Tensor, Error> {
        let module = self.program.module();
        let ty = module.ty(value);
        let dims = bind::concrete_dims(ty, &self.bound.symbols).ok_or_else(|| {
            Error::Missing(format!("the shape of %{} has no value in this run", module.name_of(value)))
        })?;
        let layouts = match (ty.layout, layout) {
            (None, _) => vec![None],
            (Some(_), Some(stated)) => vec![Some(stated)],
            (Some(own), None) => vec![Some(own), Some(ScaleLayout::Linear)],
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

/// Why there are no interpreted values; kept, so that each comparison can say so.
#[derive(Clone)]
enum NotInterpreted {
    TooMuchWork { op: String },
    Failed(InterpretError),
}

impl From<NotInterpreted> for Error {
    fn from(reason: NotInterpreted) -> Error {
        match reason {
            NotInterpreted::TooMuchWork { op } => Error::TooMuchWork { op },
            NotInterpreted::Failed(error) => Error::Interpret(error),
        }
    }
}

/// Refuses what the interpreter, which is simple and not fast, would take too long for.
fn check_work(program: &Program, bound: &Bound<'_>) -> Result<(), NotInterpreted> {
    let module = program.module();
    let extent = |dim: &Dim| dim.evaluate(&bound.symbols).map_or(f64::INFINITY, |extent| extent as f64);
    let elements = |value: Value| module.ty(value).shape.iter().map(extent).product::<f64>();
    let mut products = 0.0;
    for (op, operation) in module.ops.iter() {
        let depth = match operation.kind {
            OpKind::Mma | OpKind::ScaledMma(_) => {
                module.ty(operation.operands[0]).shape.last().map_or(1.0, extent)
            }
            _ => 1.0,
        };
        let largest =
            operation.operands.iter().chain(&operation.results).map(|v| elements(*v)).fold(0.0, f64::max);
        products += operation.results.iter().map(|result| elements(*result) * depth).sum::<f64>();
        if largest > MOST_ELEMENTS || products > MOST_PRODUCTS {
            return Err(NotInterpreted::TooMuchWork { op: module.op_label(op) });
        }
    }
    Ok(())
}
