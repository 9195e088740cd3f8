//! Verifies the kernels of programs on the GPU that is here: each program's inputs, each kernel, one row.
//!
//! Kernels run as they are on a GPU of their target, and those of the sm_120 family emulated on a Hopper GPU. Every
//! kernel's result is compared, also where the program uses it only itself. Outputs are NaN before each run. Seeded
//! blocked scales have finite garbage as padding; where K leaves padding beside a row's own scales, each kernel runs once
//! more with NaN there and must show it: a kernel that does not could not have seen garbage either.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fourfold_codegen::{EMULATOR, capabilities};
use fourfold_executor::device::discover;
use fourfold_executor::{Ran, RunOptions};
use fourfold_ir::{Program, ScaleLayout, Tensor, bind, sample};
use fourfold_scheduler::KernelPlan;

use crate::backend::{Backend, DeviceChoice, Options};
use crate::compiled::{CompileOptions, Compiled};
use crate::error::Error;
use crate::expectations::Scope;
use crate::replay::{Inputs, Loaded, data_inputs, data_of, load, plan, replay_compiled, sampled_inputs};
use crate::report::{Report, SegmentReport, VerifyReport, VerifyRow, kernel_name};

/// How programs are verified.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// What is planned for, and where it runs. When no target is named: that of the GPU if it has kernels, and the
    /// emulated one on a Hopper GPU otherwise.
    pub backend: Options,
    /// How kernels are built.
    pub compile: CompileOptions,
    /// The data file of every program, over the one that it names.
    pub data: Option<PathBuf>,
}

/// A program with all the inputs that it is run on.
struct Candidate {
    name: String,
    loaded: Loaded,
    inputs: Vec<Inputs>,
}

/// Verifies the programs at `paths`: files, and folders with all files ending in `.fir` in and below them. Programs in
/// folders that are invalid or of which no op becomes a kernel are left out and counted.
///
/// # Errors
/// When a path or one of its programs or data cannot be read, or as [`Backend::new`]. What a kernel does wrong is in
/// the report.
pub fn verify(
    paths: &[PathBuf],
    options: &VerifyOptions,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<VerifyReport, Error> {
    let backend = Backend::new(&local(&options.backend))?;
    let mut report = VerifyReport::new(&backend);
    let mut candidates = Vec::new();
    let mut plans = Vec::new();
    for path in paths {
        let is_folder = path.is_dir();
        for file in programs(path)? {
            let loaded = match load(&file) {
                Ok(loaded) => loaded,
                // Folders hold invalid programs on purpose; a file that is named must be right.
                Err(Error::Program { .. }) if is_folder => {
                    report.invalid += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let planned = plan(&backend, &loaded)?;
            if planned.partition().kernels().next().is_none() {
                report.without_kernels += 1;
                continue;
            }
            let inputs = all_inputs(&loaded, options.data.as_deref())?;
            if inputs.is_empty() {
                report.without_inputs += 1;
                continue;
            }
            let name = file.strip_prefix(path).ok().filter(|name| !name.as_os_str().is_empty());
            let name = name.unwrap_or(&file).display().to_string();
            candidates.push(Candidate { name, loaded, inputs });
            plans.push(planned);
        }
    }
    let compiled = backend.compile_all(plans, &options.compile, progress);
    let total: usize = candidates.iter().map(|candidate| candidate.inputs.len()).sum();
    let mut done = 0;
    for (candidate, compiled) in candidates.iter().zip(&compiled) {
        for inputs in &candidate.inputs {
            done += 1;
            progress(&format!("running {done} of {total}: {}, {}", candidate.name, inputs.describe()));
            report.rows.extend(rows(candidate, compiled, inputs));
        }
    }
    report.finish();
    Ok(report)
}

/// The options with the target that suits the GPU.
fn local(options: &Options) -> Options {
    let mut options = options.clone();
    if options.target.is_some() || options.emulate || options.device == DeviceChoice::None {
        return options;
    }
    let ordinal = match options.device {
        DeviceChoice::Ordinal(ordinal) => ordinal,
        _ => 0,
    };
    let gpus = discover().unwrap_or_default();
    let own = gpus.get(ordinal).and_then(|gpu| gpu.target());
    let has_kernels =
        |target: &str| capabilities(target).is_some_and(|capabilities| !capabilities.formats.is_empty());
    options.emulate = own == Some(EMULATOR) && !has_kernels(EMULATOR);
    options
}

/// The programs at a path, in order of their names.
fn programs(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if path.is_dir() { Ok(fourfold_executor::files_below(path, "fir")?) } else { Ok(vec![path.to_owned()]) }
}

/// The data, or every recipe.
fn all_inputs(loaded: &Loaded, data: Option<&Path>) -> Result<Vec<Inputs>, Error> {
    if let Some(data) = data_of(loaded, data) {
        return Ok(vec![data_inputs(data, &[], &loaded.program)?]);
    }
    loaded.header.samples.iter().map(|recipe| sampled_inputs(recipe.clone(), &loaded.program)).collect()
}

/// What one run shows: a row for each kernel's result, and for program outputs that are not what they should be.
fn rows(candidate: &Candidate, compiled: &Compiled, inputs: &Inputs) -> Vec<VerifyRow> {
    let failed = |error: &Error| VerifyRow::error(&candidate.name, &inputs.describe(), error);
    let report = match replay_compiled(&candidate.loaded, compiled, inputs, Scope::KernelResults) {
        Ok(report) => report,
        Err(error) => return vec![failed(&error)],
    };
    let mut rows = Vec::new();
    for output in &report.outputs {
        // A value that was fused away was not computed by what ran.
        if output.source != "run" {
            continue;
        }
        let segment = output.segment.map(|segment| &report.segments[segment]);
        let is_kernel = segment.is_some_and(|segment| segment.kind == "kernel");
        if !is_kernel && output.ok {
            continue;
        }
        let plan = output.segment.and_then(|segment| plan_of(compiled, segment));
        rows.push(VerifyRow {
            fixture: candidate.name.clone(),
            inputs: inputs.describe(),
            value: output.name.clone(),
            kernel: segment.and_then(|segment| segment.kernel.clone()),
            extents: plan.and_then(|plan| extents(plan, &report, compiled.planned().program())),
            ran: segment.map_or("not_run", |segment| segment.ran),
            reason: segment.and_then(|segment| segment.reason.clone()),
            message: segment.and_then(|segment| segment.message.clone()),
            rule: output.rule.clone(),
            against: output.expected.clone(),
            mismatches: output.mismatches,
            moved_roundings: output.moved_roundings,
            max_abs_err: output.max_abs_err,
            max_rel_err: output.max_rel_err,
            worst: output
                .worst
                .as_ref()
                .map(|worst| format!("{:?}: {}, expected {}", worst.index, worst.got, worst.want)),
            seconds: segment.and_then(|segment: &SegmentReport| segment.kernel_seconds.or(segment.seconds)),
            ok: output.ok,
        });
    }
    for note in &report.notes {
        rows.push(VerifyRow::note(&candidate.name, &inputs.describe(), note));
    }
    if compiled.device().is_some() {
        match nan_rows(candidate, compiled, inputs, &report) {
            Ok(more) => rows.extend(more),
            Err(error) => rows.push(failed(&error)),
        }
    }
    rows
}

fn plan_of(compiled: &Compiled, segment: usize) -> Option<&KernelPlan> {
    compiled.planned().partition().segments[segment].kernel()
}

/// L x M x N x K of one run.
fn extents(plan: &KernelPlan, report: &Report, program: &Program) -> Option<[u64; 4]> {
    let mut symbols = fourfold_ir::SymbolValues::default();
    for (symbol, name) in program.module().symbols.iter() {
        if let Some(extent) = report.symbols.get(name) {
            symbols.set(symbol, *extent);
        }
    }
    let mut extents = [0; 4];
    for (slot, dim) in extents.iter_mut().zip([&plan.batch, &plan.m, &plan.n, &plan.k]) {
        *slot = dim.evaluate(&symbols)?;
    }
    Some(extents)
}

/// Runs again with NaN as the padding of blocked scales. Where padding lies beside the scales of a row, it meets
/// operands that are zero there, and zero times NaN is NaN: every element of the result must be NaN.
fn nan_rows(
    candidate: &Candidate,
    compiled: &Compiled,
    inputs: &Inputs,
    report: &Report,
) -> Result<Vec<VerifyRow>, Error> {
    let Inputs::Sampled { tensors, recipe } = inputs else { return Ok(Vec::new()) };
    let program = compiled.planned().program();
    let module = program.module();
    let is_padded = |name: &str| {
        tensors.get(name).is_some_and(|tensor| {
            tensor.layout() == Some(ScaleLayout::Blocked)
                && tensor.count() > 0
                && tensor.dims().last().is_some_and(|columns| !columns.is_multiple_of(4))
        })
    };
    let concerned: Vec<(usize, &KernelPlan)> = compiled
        .planned()
        .partition()
        .kernels()
        .filter(|(segment, plan)| {
            let is_given = |value| module.defining_op(value).is_none() && is_padded(module.name_of(value));
            let ran = report.segments[*segment].ran;
            [plan.sfa, plan.sfb].into_iter().any(is_given) && (ran == "kernel" || ran == "emulated")
        })
        .collect();
    if concerned.is_empty() {
        return Ok(Vec::new());
    }
    let mut poisoned: HashMap<String, Tensor> = tensors.clone();
    for tensor in poisoned.values_mut() {
        sample::fill_padding_with_nan(tensor);
    }
    let bound = bind::bind_given(program, &poisoned, &recipe.symbols)?;
    let run = compiled.run_bound(&bound, &RunOptions { keep_all: true, poison: false, locate: true })?;
    let mut rows = Vec::new();
    for (segment, plan) in concerned {
        let Some(result) = run.value(plan.output).filter(|result| result.count() > 0) else { continue };
        let values = result.to_f64();
        let mismatches = values.iter().filter(|value| !value.is_nan()).count();
        let ran = &run.segments[segment];
        rows.push(VerifyRow {
            fixture: candidate.name.clone(),
            inputs: format!("{}, NaN padding", inputs.describe()),
            value: module.name_of(plan.output).to_owned(),
            kernel: Some(kernel_name(plan)),
            extents: extents(plan, report, program),
            ran: ran.ran.as_str(),
            reason: ran.reason.as_ref().map(|reason| reason.code.to_owned()),
            message: ran.reason.as_ref().map(|reason| reason.message.clone()),
            rule: "every element is NaN".to_owned(),
            against: "NaN".to_owned(),
            mismatches,
            moved_roundings: 0,
            max_abs_err: 0.0,
            max_rel_err: 0.0,
            worst: None,
            seconds: ran.kernel_seconds.or(Some(ran.seconds)),
            ok: mismatches == 0 && matches!(ran.ran, Ran::Kernel | Ran::Emulated),
        });
    }
    Ok(rows)
}
