//! Replays a program from a file, or from a bundle: plan it, run it on its data, compare every expected value.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_executor::fallback::processor;
use fourfold_executor::service::Event;
use fourfold_executor::{
    DataFile, Ran, Run, RunOptions, TEXT_LIMIT, is_standard_stream, read_input, read_tensors_given,
};
use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{Diagnostic, Program, Tensor, bind, text};

use crate::backend::{Backend, DeviceChoice, Options, Planned};
use crate::bundle::{self, BundleError, Recorded};
use crate::compiled::Compiled;
use crate::error::Error;
use crate::expectations::{Comparer, Scope};
use crate::header::{self, Header};
use crate::kernels::{PlannedKernel, planned_kernels};
use crate::report::{Report, ResourceReport};
use crate::service::CompileOptions;

/// How a program is replayed.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// What is planned for, and where it runs. For a bundle: what it says holds where nothing is said here.
    pub backend: Options,
    /// How kernels are built, and whether that and the run are in debug mode.
    pub compile: CompileOptions,
    /// The data file; the one that the program names, or that of the bundle, when absent.
    pub data: Option<PathBuf>,
    /// Extents of symbols: for seeded inputs over those of the program's `sample` line, for data as a condition.
    pub symbols: Vec<(String, u64)>,
}

/// A program read from a file.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Where it was read from.
    pub file: PathBuf,
    /// Its text.
    pub source: String,
    /// What its comments say about running it.
    pub header: Header,
    /// The program.
    pub program: Program,
}

/// Where a run's inputs come from.
#[derive(Debug)]
pub(crate) enum Inputs {
    Data { file: PathBuf, data: DataFile, symbols: Vec<(String, u64)> },
    Sampled { recipe: Recipe, tensors: HashMap<String, Tensor> },
}

/// How far a replay came, and what it had by then.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// The segment that is to be cut out, without which there is nothing to run.
    pub(crate) segment: Option<usize>,
    pub(crate) loaded: Option<Loaded>,
    pub(crate) backend: Option<Backend>,
    /// The data file that was to be read.
    pub(crate) data: Option<PathBuf>,
    pub(crate) inputs: Option<Inputs>,
    pub(crate) compiled: Option<Compiled>,
    /// The values of the normalized program.
    pub(crate) run: Option<Run>,
}

/// Reads and verifies a program; that of the standard input, where the file is `-`.
///
/// # Errors
/// When the file cannot be read, or with every error in its text.
pub fn load(file: &Path) -> Result<Loaded, Error> {
    load_text(file, read_input(file, TEXT_LIMIT)?)
}

/// [`load`] for a text that was read already.
pub(crate) fn load_text(file: &Path, source: String) -> Result<Loaded, Error> {
    let invalid = |diagnostics: Vec<Diagnostic>, source_text: String| Error::Program {
        file: file.to_owned(),
        source_text,
        diagnostics,
    };
    let program = match text::load(&source) {
        Ok((program, _)) => program,
        Err(diagnostics) => return Err(invalid(diagnostics, source)),
    };
    match header::read(&source, &program) {
        Ok(header) => Ok(Loaded { file: file.to_owned(), source, header, program }),
        Err(diagnostics) => Err(invalid(diagnostics, source)),
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

/// Plans a program, builds its kernels if they can run here, runs it and compares every expected value. A folder is a
/// bundle ([`mod@crate::bundle`]): what its run gave is compared as well. `progress` is told of what takes long.
///
/// # Errors
/// When the program, its data or the bundle are not valid, or as [`Backend::new`]. A mismatch is no error: see
/// [`Report::ok`].
pub fn replay(
    file: &Path,
    options: &ReplayOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<Report, Error> {
    replay_stages(file, options, progress, &mut Stages::default())
}

/// [`replay`] that says how far it came.
pub(crate) fn replay_stages(
    file: &Path,
    options: &ReplayOptions,
    progress: &(dyn Fn(&Event) + Sync),
    stages: &mut Stages,
) -> Result<Report, Error> {
    if file.is_dir() && !is_standard_stream(file) {
        let opened = bundle::open(file)?;
        return bundle::replay_opened(file, &opened, options, progress, stages);
    }
    let loaded = stages.loaded.insert(load(file)?);
    stages.data = data_of(loaded, options.data.as_deref());
    let read = |loaded: &Loaded| match data_of(loaded, options.data.as_deref()) {
        Some(data) => data_inputs(data, &options.symbols, &loaded.program),
        None => {
            let unsaid = || Recipe { rule: Rule::Normal, seed: 0, symbols: Vec::new() };
            let recipe = loaded.header.samples.first().cloned().unwrap_or_else(unsaid);
            sampled_inputs(with_symbols(recipe, &options.symbols), &loaded.program)
        }
    };
    run_stages(&options.backend, &options.compile, None, progress, stages, &read)
}

/// Replays what is loaded on the inputs that are `read`.
pub(crate) fn run_stages(
    options: &Options,
    compile: &CompileOptions,
    recorded: Option<&Recorded>,
    progress: &(dyn Fn(&Event) + Sync),
    stages: &mut Stages,
    read: &dyn Fn(&Loaded) -> Result<Inputs, Error>,
) -> Result<Report, Error> {
    let loaded = stages.loaded.as_ref().ok_or_else(|| Error::Missing("no program was read".to_owned()))?;
    let backend = stages.backend.insert(Backend::new(options)?);
    let inputs = stages.inputs.insert(read(loaded)?);
    let planned = plan(backend, loaded)?;
    let count = planned.partition().segments.len();
    if let Some(segment) = stages.segment.filter(|segment| *segment >= count) {
        return Err(BundleError::NoSuchSegment { segment, count }.into());
    }
    let compiled = stages.compiled.insert(backend.compile(planned, compile, progress));
    run_and_compare(loaded, compiled, inputs, Scope::Outputs, recorded, &mut stages.run)
}

/// Replays a program on seeded inputs, on the fallback.
///
/// # Errors
/// As [`replay`].
pub fn replay_sample(loaded: &Loaded, target: Option<&str>, recipe: &Recipe) -> Result<Report, Error> {
    let target = Some(target.unwrap_or(crate::DEFAULT_TARGET).to_owned());
    let backend = Backend::new(&Options { target, device: DeviceChoice::None, ..Options::default() })?;
    let inputs = sampled_inputs(recipe.clone(), &loaded.program)?;
    let compiled = backend.compile(plan(&backend, loaded)?, &CompileOptions::default(), &|_| {});
    replay_compiled(loaded, &compiled, &inputs, Scope::Outputs)
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

/// Runs a compiled program and compares.
pub(crate) fn replay_compiled(
    loaded: &Loaded,
    compiled: &Compiled,
    inputs: &Inputs,
    scope: Scope,
) -> Result<Report, Error> {
    run_and_compare(loaded, compiled, inputs, scope, None, &mut None)
}

/// Runs a compiled program, keeps what it gave, and compares that with what is expected and with what was recorded.
/// Kernels write over NaN, and are waited for one by one, so that what one does not write is seen and an error belongs to
/// its segment.
fn run_and_compare(
    loaded: &Loaded,
    compiled: &Compiled,
    inputs: &Inputs,
    scope: Scope,
    recorded: Option<&Recorded>,
    kept: &mut Option<Run>,
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
    let options = RunOptions { keep_all: true, poison: Some(0xFF), locate: true, ..RunOptions::default() };
    let run = &*kept.insert(compiled.run_normalized(&bound, &options)?);
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
        segment.launch = ran.launch.as_deref().cloned();
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
    let comparer = Comparer::new(planned, &loaded.header, inputs, &bound, run);
    report.outputs = comparer.compare_all(inputs, scope, &mut report.notes)?;
    if let Some(recorded) = recorded {
        let same_way = recorded.ran_as(&report, processor().as_deref());
        let compared = comparer.compare_recorded(recorded, same_way.is_ok(), &mut report.notes)?;
        report.notes.extend(same_way.err().flatten());
        report.outputs.extend(compared);
    }
    let original = planned.original().module();
    report.conclude(original.outputs.iter().any(|output| {
        let dims = bind::concrete_dims(original.ty(*output), &bound.symbols);
        dims.is_none_or(|dims| !dims.contains(&0))
    }));
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
