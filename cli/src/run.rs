//! Runs a loaded program: plans it, compiles it, runs it and compares every expected value.

use std::path::PathBuf;

use fourfold::kernels::PlannedKernel;
use fourfold::{Backend, CompileOptions, Compiled, Event, Options, Planned};
use fourfold_executor::fallback::processor;
use fourfold_executor::{DataSources, Ran, Run, RunOptions};
use fourfold_ir::bind;

use crate::error::{BundleError, Error};
use crate::expectations::{Comparer, Scope};
use crate::load::{Inputs, Loaded};
use crate::recorded::Recorded;
use crate::report::{Report, ResourceReport};

/// Options of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// The target and the device. For a bundle, options that are unset here come from the bundle.
    pub backend: Options,
    /// Options of the compiler, and debug mode for both the build and the run.
    pub compile: CompileOptions,
    /// Data files. Their tensors add to those that the program names, or to those of the bundle, and replace tensors of
    /// the same name. Of several files, the last counts.
    pub data: Vec<PathBuf>,
    /// Tolerances of values by name. One without a name replaces every tolerance that the program states.
    pub tolerances: Vec<(Option<String>, f64)>,
    /// Extents of symbols. For seeded inputs they override those of the program's `sample` line; data must agree
    /// with them.
    pub symbols: Vec<(String, u64)>,
}

/// The state of a replay at the stage it reached.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// The segment to extract; the replay ends with an error if the plan lacks it.
    pub(crate) segment: Option<usize>,
    pub(crate) loaded: Option<Loaded>,
    pub(crate) backend: Option<Backend>,
    /// The sources of the tensors; `None` for seeded inputs, and for those of a segment.
    pub(crate) sources: Option<DataSources>,
    pub(crate) inputs: Option<Inputs>,
    pub(crate) compiled: Option<Compiled>,
    /// The values of the normalized program.
    pub(crate) run: Option<Run>,
}

/// Replays the loaded program on the inputs that `read` returns.
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

/// Plans a program, with the rewrites its `; allow:` lines permit, and checks the plan.
///
/// # Errors
/// An error that lists every flaw of the plan: a bug in Fourfold.
pub fn plan(backend: &Backend, loaded: &Loaded) -> Result<Planned, Error> {
    let planned = backend.plan_with(loaded.program.clone(), &loaded.header.allow);
    backend.check(&planned)?;
    Ok(planned)
}

/// Runs a compiled program and compares its values.
pub(crate) fn replay_compiled(
    loaded: &Loaded,
    compiled: &Compiled,
    inputs: &Inputs,
    scope: Scope,
) -> Result<Report, Error> {
    run_and_compare(loaded, compiled, inputs, scope, None, &mut None)
}

/// Runs a compiled program, keeps its values, and compares them with the expectations and with a recorded run.
/// Workspaces and outputs begin as NaN, so an element that a kernel leaves out shows. Kernels are waited for one
/// by one, so an error names its segment.
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

/// Fills in the configuration of each kernel.
pub(crate) fn describe_kernels(report: &mut Report, kernels: &[PlannedKernel]) {
    for kernel in kernels {
        let segment = &mut report.segments[kernel.segment];
        segment.configuration = Some(kernel.spec.configuration_name());
        segment.why = Some(kernel.why.clone());
    }
}
