//! Replays a program from a file: plan it, run it on its data, compare every expected value.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fourfold_codegen::configuration::CutlassVersion;
use fourfold_executor::{DataFile, Ran, RunOptions, read_tensors_given, read_text};
use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{Diagnostic, Program, Tensor, bind, text};

use crate::backend::{Backend, DeviceChoice, Options, Planned};
use crate::compiled::{CompileOptions, Compiled};
use crate::error::Error;
use crate::expectations::{Comparer, Scope};
use crate::header::{self, Header};
use crate::kernels::{PlannedKernel, planned_kernels};
use crate::report::{Report, ResourceReport};

/// How a program is replayed.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// What is planned for, and where it runs.
    pub backend: Options,
    /// How kernels are built.
    pub compile: CompileOptions,
    /// The data file; the one that the program names when absent.
    pub data: Option<PathBuf>,
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
pub(crate) enum Inputs {
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

impl Inputs {
    /// The rule of seeded inputs.
    pub(crate) fn rule(&self) -> Option<Rule> {
        match self {
            Inputs::Data { .. } => None,
            Inputs::Sampled { recipe, .. } => Some(recipe.rule),
        }
    }

    /// The tensors by name, and the extents that were given for symbols.
    pub(crate) fn tensors(&self) -> (&HashMap<String, Tensor>, &[(String, u64)]) {
        match self {
            Inputs::Data { data, symbols, .. } => (&data.inputs, symbols),
            Inputs::Sampled { tensors, recipe } => (tensors, &recipe.symbols),
        }
    }

    /// What a report calls them.
    pub(crate) fn describe(&self) -> String {
        match self {
            Inputs::Data { file, .. } => file.display().to_string(),
            Inputs::Sampled { recipe, .. } => {
                format!("seeded, rule {}, seed {}", recipe.rule.name(), recipe.seed)
            }
        }
    }
}

/// Plans a program and proves the plan, without running it.
///
/// # Errors
/// When the program is not valid, or as [`Backend::new`].
pub fn explain(file: &Path, options: &Options) -> Result<Report, Error> {
    let loaded = load(file)?;
    let backend = Backend::new(options)?;
    let planned = plan(&backend, &loaded)?;
    let mut report = Report::of_plan(&file.display().to_string(), &planned);
    describe_kernels(&mut report, &planned_kernels(&planned, CutlassVersion::PINNED, backend.emulates()));
    Ok(report)
}

/// Plans a program, builds its kernels if they can run here, runs it and compares every expected value. `progress` is
/// told of what takes long.
///
/// # Errors
/// When the program or its data are not valid, or as [`Backend::new`]. A mismatch is no error: see [`Report::ok`].
pub fn replay(
    file: &Path,
    options: &ReplayOptions,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Report, Error> {
    let loaded = load(file)?;
    let backend = Backend::new(&options.backend)?;
    let inputs = match data_of(&loaded, options.data.as_deref()) {
        Some(data) => data_inputs(data, &options.symbols, &loaded.program)?,
        None => {
            let unsaid = || Recipe { rule: Rule::Normal, seed: 0, symbols: Vec::new() };
            let recipe = loaded.header.samples.first().cloned().unwrap_or_else(unsaid);
            sampled_inputs(with_symbols(recipe, &options.symbols), &loaded.program)?
        }
    };
    replay_inputs(&loaded, &backend, &options.compile, &inputs, progress)
}

/// Replays a program on seeded inputs, on the fallback.
///
/// # Errors
/// As [`replay`].
pub fn replay_sample(loaded: &Loaded, target: Option<&str>, recipe: &Recipe) -> Result<Report, Error> {
    let target = Some(target.unwrap_or(crate::DEFAULT_TARGET).to_owned());
    let backend = Backend::new(&Options { target, device: DeviceChoice::None, ..Options::default() })?;
    let inputs = sampled_inputs(recipe.clone(), &loaded.program)?;
    replay_inputs(loaded, &backend, &CompileOptions::default(), &inputs, &|_| {})
}

/// The data file: the one that is given, else the one that the program names.
pub(crate) fn data_of(loaded: &Loaded, given: Option<&Path>) -> Option<PathBuf> {
    let folder = loaded.file.parent().unwrap_or(Path::new("."));
    given.map(Path::to_owned).or_else(|| Some(folder.join(loaded.header.data.as_ref()?)))
}

/// Plans a program as its comments allow, and proves the plan.
///
/// # Errors
/// A bug of ours, with everything that is wrong with the plan.
pub fn plan(backend: &Backend, loaded: &Loaded) -> Result<Planned, Error> {
    let planned = backend.plan_with(loaded.program.clone(), &loaded.header.allow);
    backend.check(&planned)?;
    Ok(planned)
}

fn with_symbols(mut recipe: Recipe, symbols: &[(String, u64)]) -> Recipe {
    for (name, extent) in symbols {
        recipe.symbols.retain(|(known, _)| known != name);
        recipe.symbols.push((name.clone(), *extent));
    }
    recipe
}

pub(crate) fn data_inputs(
    file: PathBuf,
    symbols: &[(String, u64)],
    program: &Program,
) -> Result<Inputs, Error> {
    let data = read_tensors_given(&file, program.module(), symbols)?;
    Ok(Inputs::Data { file, data, symbols: symbols.to_vec() })
}

pub(crate) fn sampled_inputs(recipe: Recipe, program: &Program) -> Result<Inputs, Error> {
    let tensors = sample::inputs(program, &recipe)?;
    Ok(Inputs::Sampled { recipe, tensors })
}

fn replay_inputs(
    loaded: &Loaded,
    backend: &Backend,
    options: &CompileOptions,
    inputs: &Inputs,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Report, Error> {
    let compiled = backend.compile(plan(backend, loaded)?, options, progress);
    replay_compiled(loaded, &compiled, inputs, Scope::Outputs)
}

/// Runs a compiled program and compares. Kernels write over NaN, and are waited for one by one, so that what one does
/// not write is seen and an error belongs to its segment.
pub(crate) fn replay_compiled(
    loaded: &Loaded,
    compiled: &Compiled,
    inputs: &Inputs,
    scope: Scope,
) -> Result<Report, Error> {
    let planned = compiled.planned();
    let program = planned.program();
    let mut report = Report::of_plan(&loaded.file.display().to_string(), planned);
    report.device = compiled.gpu().map(ToString::to_string);
    report.inputs = Some(inputs.describe());
    let (tensors, given) = inputs.tensors();
    let bound = bind::bind_given(program, tensors, given)?;
    for (symbol, name) in program.module().symbols.iter() {
        if let Some(extent) = bound.symbols.get(symbol) {
            report.symbols.insert(name.clone(), extent);
        }
    }
    let run =
        compiled.run_normalized(&bound, &RunOptions { keep_all: true, poison: Some(0xFF), locate: true })?;
    for (segment, ran) in report.segments.iter_mut().zip(&run.segments) {
        segment.ran = ran.ran.as_str();
        if let Some(reason) = &ran.reason {
            segment.reason = Some(reason.code.to_owned());
            segment.message = Some(reason.message.clone());
        }
        segment.seconds = Some(ran.seconds);
        segment.kernel_seconds = ran.kernel_seconds;
        segment.bytes_to_device = ran.moved.to_device;
        segment.bytes_to_host = ran.moved.to_host;
        let as_kernel = segment.kind == "kernel" && matches!(ran.ran, Ran::Kernel | Ran::Emulated);
        report.ran_kernels += usize::from(as_kernel);
    }
    describe_kernels(&mut report, compiled.configured());
    for built in compiled.built() {
        if let Ok(artifact) = &built.outcome {
            let resources = ResourceReport::from(artifact.resources());
            report.segments[built.planned.segment].resources = Some(resources);
        }
    }
    let comparer = Comparer::new(planned, &loaded.header, inputs, &bound, &run);
    report.outputs = comparer.compare_all(inputs, scope, &mut report.notes)?;
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
