//! One run of a program that is loaded: plan it, compile it, run it, and compare every expected value.

use std::path::PathBuf;

use fourfold::kernels::PlannedKernel;
use fourfold::{Backend, CompileOptions, Compiled, Event, Options, Planned};
use fourfold_executor::fallback::processor;
use fourfold_executor::{Ran, Run, RunOptions};
use fourfold_ir::bind;

use crate::error::{BundleError, Error};
use crate::expectations::{Comparer, Scope};
use crate::load::{Inputs, Loaded};
use crate::recorded::Recorded;
use crate::report::{Report, ResourceReport};

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

/// Plans a program as its comments allow, and proves the plan.
///
/// # Errors
/// A bug of ours, with everything that is wrong with the plan.
pub fn plan(backend: &Backend, loaded: &Loaded) -> Result<Planned, Error> {
    let planned = backend.plan_with(loaded.program.clone(), &loaded.header.allow);
    backend.check(&planned)?;
    Ok(planned)
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
    let options = RunOptions::default().keep_all(true).poison(0xFF).locate(true);
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
pub(crate) fn describe_kernels(report: &mut Report, kernels: &[PlannedKernel]) {
    for kernel in kernels {
        let segment = &mut report.segments[kernel.segment];
        segment.configuration = Some(kernel.spec.configuration_name());
        segment.why = Some(kernel.why.clone());
    }
}
