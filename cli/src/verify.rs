//! Verifies programs on this machine's GPU: one row for each value that a segment of the kernel or the device tier
//! writes, for each of a program's inputs.
//!
//! Kernels run natively on a GPU of their target; with `--emulate`, kernels of Blackwell targets run emulated on
//! Hopper. Every value that a segment writes is compared, even if only the program itself uses it. Outputs are
//! filled with NaN before each run.
//!
//! Padding of seeded blocked scales is finite garbage. If K leaves padding beside the scales of a row, each kernel
//! runs once more with NaN there, and its results must contain NaN. A kernel without NaN does not read the padding, so
//! the garbage did not test it either. On sm_90a, NaN below the last row must not affect results.
//!
//! With [`VerifyOptions::graphs`], each program is also captured in a CUDA graph and replayed on other inputs.
//!
//! With [`VerifyOptions::report`], every kernel that ran is also timed, after all comparisons, and a file describes
//! the machine, the kernels, the comparisons and the times.

mod graphs;
mod padding;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fourfold::{Backend, CompileOptions, Compiled, Options};
use fourfold_executor::service::Event;
use fourfold_executor::{HOST_OPERAND, NOT_CHOSEN, Run, RunError, RunOptions, chain};
use fourfold_ir::text::{self, Directive};
use fourfold_ir::{Bound, Program, SymbolValues, bind};
use fourfold_scheduler::{Plan, ScaledMmaPlan};

use crate::error::Error;
use crate::expectations::{NORMALIZED, Scope};
use crate::load::{Inputs, Loaded, load, sampled_inputs, shared_inputs, sources_of};
use crate::report::{LeftOut, OffDevice, Report, SegmentReport, VerifyLaunch, VerifyReport, VerifyRow};
use crate::report_file::{ReportFile, RunEntry, State, TimingEntry, describe_options, time};
use crate::run::{plan, replay_compiled};
use graphs::graph_rows;
use padding::nan_rows;

/// Options of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// The target and the device.
    pub backend: Options,
    /// Options of the compiler.
    pub compile: CompileOptions,
    /// Data files for every program, as in [`ReplayOptions::data`](crate::replay::ReplayOptions::data).
    pub data: Vec<PathBuf>,
    /// True if each program is also captured in a CUDA graph, and replayed on the inputs of other seeds.
    pub graphs: bool,
    /// The file that receives the report with the machine, the kernels and their times. It must not exist yet.
    pub report: Option<PathBuf>,
}

/// A program with every set of inputs it runs on.
struct Candidate {
    name: String,
    loaded: Loaded,
    inputs: Vec<Inputs>,
}

/// Verifies the programs at `paths`: files, and folders with every `.fir` file below them. The report lists
/// skipped programs: those without a kernel, those without inputs, and, in folders, those that declare themselves
/// invalid (`; test: error`).
///
/// # Errors
/// Fails if a path or its data cannot be read, no program uses a data file, a folder has no program, a named program
/// is invalid, the report file cannot be created, or [`Backend::new`] fails. Wrong results, a failing device, and
/// programs of a folder that cannot be read, are invalid or lack their own inputs are reported, not returned. If a later
/// write of the report file fails, [`VerifyReport::report_error`] says so.
pub fn verify(
    paths: &[PathBuf],
    options: &VerifyOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<VerifyReport, Error> {
    let mut file = match &options.report {
        Some(path) => {
            let about =
                describe_options(paths.len(), &options.backend, &options.compile, !options.data.is_empty());
            let named: Vec<PathBuf> =
                paths.iter().chain(&options.data).chain([path]).map(PathBuf::clone).collect();
            Some(ReportFile::create(path, about, &named)?)
        }
        None => None,
    };
    match (verify_with(paths, options, progress, &mut file), file) {
        (Ok(report), Some(file)) => {
            let failure = file.into_failure();
            Ok(VerifyReport { report_error: failure.map(|error| error.message()), ..report })
        }
        (Err(error), Some(mut file)) => {
            file.fail(&error);
            Err(error)
        }
        (outcome, None) => outcome,
    }
}

fn verify_with(
    paths: &[PathBuf],
    options: &VerifyOptions,
    progress: &(dyn Fn(&Event) + Sync),
    file: &mut Option<ReportFile>,
) -> Result<VerifyReport, Error> {
    let backend = Backend::new(&options.backend)?;
    let mut report = VerifyReport::new(&backend);
    if let Some(file) = file {
        file.describe_device(&backend, options.backend.device);
    }
    let mut candidates = Vec::new();
    let mut plans = Vec::new();
    for path in paths {
        let is_folder = path.is_dir();
        for program in programs(path)? {
            // Of several folders, names below them may be the same.
            let below = program.strip_prefix(path).ok().filter(|name| !name.as_os_str().is_empty());
            let name = below.filter(|_| paths.len() == 1).unwrap_or(&program).display().to_string();
            let loaded = match load(&program) {
                Ok(loaded) => loaded,
                // Folders hold invalid programs on purpose; a file that is named must be valid.
                Err(error) if is_folder => {
                    if is_invalid_on_purpose(&error) {
                        report.leave_out(name, LeftOut::Invalid);
                    } else {
                        report.rows.push(VerifyRow::error(&name, "", &error));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let planned = plan(&backend, &loaded)?;
            let partition = planned.partition();
            let (kernels, segments) = (partition.kernels().count(), partition.plans().count());
            if segments == 0 {
                report.leave_out(name, LeftOut::NoKernel);
                continue;
            }
            let inputs = match all_inputs(&loaded, &options.data) {
                Ok(inputs) => inputs,
                // The inputs that the file itself asks for. Those of `--data` are for all programs.
                Err(error) if is_folder && options.data.is_empty() => {
                    report.rows.push(VerifyRow::error(&name, "", &error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if inputs.is_empty() {
                report.leave_out(name, LeftOut::NoInputs);
                continue;
            }
            report.kernels += kernels * inputs.len();
            report.device_segments += (segments - kernels) * inputs.len();
            candidates.push(Candidate { name, loaded, inputs });
            plans.push(planned);
        }
    }
    refuse_unused(&candidates, options.data.len())?;
    checkpoint(file, State::Building, None, &mut report);
    let compiled = backend.compile_all(plans, &options.compile, progress);
    if let Some(file) = file {
        file.describe_toolchain(&backend, &options.compile.toolchain);
        candidates.iter().zip(&compiled).for_each(|(candidate, it)| file.add_kernels(&candidate.name, it));
    }
    let total: usize = candidates.iter().map(|candidate| candidate.inputs.len()).sum();
    let mut done = 0;
    'programs: for (position, (candidate, compiled)) in candidates.iter().zip(&compiled).enumerate() {
        for (set, inputs) in candidate.inputs.iter().enumerate() {
            done += 1;
            let described = inputs.describe();
            progress(&Event::Note(format!("running {done} of {total}: {}, {described}", candidate.name)));
            checkpoint(file, State::Verifying, Some((&candidate.name, &described)), &mut report);
            let verified = verify_run(candidate, compiled, inputs, &mut report).and_then(|run| {
                if options.graphs {
                    report.rows.extend(graph_rows(candidate, compiled, inputs)?);
                }
                Ok(run)
            });
            match verified {
                Ok(run) => {
                    if let Some(file) = file {
                        file.runs.extend(run_entries(candidate, compiled, inputs, &run, (position, set)));
                    }
                }
                Err(error) => {
                    report.rows.push(VerifyRow::error(&candidate.name, &described, &error));
                    if is_end_of_device(&error) {
                        // Every later run would fail too and tell nothing new.
                        break 'programs;
                    }
                }
            }
        }
    }
    time_kernels(&candidates, &compiled, file, &mut report, progress);
    checkpoint(file, State::Finished, None, &mut report);
    report.finish();
    Ok(report)
}

/// Fails if no program uses any tensor of a `--data` file. `count` is the number of these files.
fn refuse_unused(candidates: &[Candidate], count: usize) -> Result<(), Error> {
    for position in 0..count {
        let refusals = candidates.iter().map(|candidate| {
            let unused = candidate.inputs.iter().find_map(|inputs| inputs.unused_file(position))?;
            Some(unused.refusal(&candidate.loaded.program, &candidate.loaded.header))
        });
        // The error is about the first program. `None` if one of them uses the file.
        let refusals: Option<Vec<Error>> = refusals.collect();
        if let Some(refusal) = refusals.and_then(|refusals| refusals.into_iter().next()) {
            return Err(refusal);
        }
    }
    Ok(())
}

/// Writes the report file, if one was requested. It names the program and the inputs that run next.
fn checkpoint(
    file: &mut Option<ReportFile>,
    state: State,
    running: Option<(&str, &str)>,
    report: &mut VerifyReport,
) {
    if let Some(file) = file {
        report.finish();
        file.enter(state, running, report);
    }
}

/// Returns an entry of the report file for each kernel segment of a run.
fn run_entries(
    candidate: &Candidate,
    compiled: &Compiled,
    inputs: &Inputs,
    run: &Report,
    place: (usize, usize),
) -> Vec<RunEntry> {
    let symbols = symbols_of(run, compiled.planned().program());
    let entry = |(segment, ran): (usize, &SegmentReport)| {
        let plan = compiled.planned().partition().segments[segment].plan()?;
        Some(RunEntry {
            program: candidate.name.clone(),
            inputs: inputs.describe(),
            symbols: run.symbols.clone(),
            segment,
            kernel: ran.kernel.clone(),
            extents: plan.extents(&symbols).map(BTreeMap::from_iter),
            ran: ran.ran,
            reason: ran.reason.clone(),
            message: ran.message.clone(),
            compared_us: ran.kernel_seconds.map(|seconds| seconds * 1e6),
            timing: None,
            place,
        })
    };
    run.segments.iter().enumerate().filter_map(entry).collect()
}

/// Times every kernel that was launched, for the report file. All comparisons are done by then, so a kernel that
/// fails here changes no verdict.
fn time_kernels(
    candidates: &[Candidate],
    compiled: &[Compiled],
    file: &mut Option<ReportFile>,
    report: &mut VerifyReport,
    progress: &(dyn Fn(&Event) + Sync),
) {
    let entries = file.iter().flat_map(|file| &file.runs);
    let places: BTreeSet<(usize, usize)> =
        entries.filter(|entry| entry.compared_us.is_some()).map(|entry| entry.place).collect();
    let total = places.len();
    for (done, place) in places.into_iter().enumerate() {
        let (candidate, compiled) = (&candidates[place.0], &compiled[place.0]);
        let (inputs, described) = (&candidate.inputs[place.1], candidate.inputs[place.1].describe());
        progress(&Event::Note(format!("timing {} of {total}: {}, {described}", done + 1, candidate.name)));
        checkpoint(file, State::Timing, Some((&candidate.name, &described)), report);
        let entries = file.iter_mut().flat_map(|file| &mut file.runs);
        let launched = entries.filter(|entry| entry.place == place && entry.compared_us.is_some());
        if time_run(compiled, inputs, launched).is_err() {
            return;
        }
    }
}

/// The device cannot run anything any more.
struct DeviceLost;

/// Runs a program again and times its launched kernels on the operands of that run.
fn time_run<'a>(
    compiled: &Compiled,
    inputs: &Inputs,
    entries: impl Iterator<Item = &'a mut RunEntry>,
) -> Result<(), DeviceLost> {
    let (tensors, given) = inputs.tensors();
    let options = RunOptions::default().keep_all(true).poison(0xFF).locate(true);
    let run = || -> Result<(Bound<'_>, Run), Error> {
        let bound = bind::bind_given(compiled.planned().program(), tensors, given)?;
        let run = compiled.run_normalized(&bound, &options)?;
        Ok((bound, run))
    };
    let run = run();
    for entry in entries {
        let failed = |message: String| Some(TimingEntry::without("device_failed", message));
        match &run {
            Ok((bound, run)) => match time(compiled, entry.segment, bound, run) {
                Ok(timing) => entry.timing = Some(timing),
                Err(error) => {
                    entry.timing = failed(chain(&error));
                    if error.is_sticky() {
                        return Err(DeviceLost);
                    }
                }
            },
            Err(error) => entry.timing = failed(error.message()),
        }
    }
    match &run {
        Err(error) if is_end_of_device(error) => Err(DeviceLost),
        _ => Ok(()),
    }
}

/// Returns true if an invalid program declares itself invalid.
fn is_invalid_on_purpose(error: &Error) -> bool {
    let Error::Program { source_text, .. } = error else { return false };
    let says_so = |directive: &Directive| directive.key == "test" && directive.value == "error";
    text::directives(source_text).iter().any(says_so)
}

/// Returns true if the device cannot run anything any more.
fn is_end_of_device(error: &Error) -> bool {
    match error {
        Error::Run(RunError::Device { source, .. }) => source.is_sticky(),
        Error::Backend(error) => matches!(&**error, fourfold::Error::Device(source) if source.is_sticky()),
        _ => false,
    }
}

/// Returns the programs at a path, sorted by name; at least one: the file itself, or all below a folder.
///
/// # Errors
/// If a folder cannot be read, or has no programs.
pub fn programs(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let programs = fourfold_executor::files_below(path, "fir")?;
    if programs.is_empty() { Err(Error::NoPrograms { folder: path.to_owned() }) } else { Ok(programs) }
}

/// Returns the data, or every recipe of seeded inputs.
fn all_inputs(loaded: &Loaded, data: &[PathBuf]) -> Result<Vec<Inputs>, Error> {
    let sources = sources_of(loaded, data);
    if !sources.is_empty() {
        return Ok(vec![shared_inputs(&sources, loaded)?]);
    }
    loaded.header.samples.iter().map(|recipe| sampled_inputs(recipe.clone(), &loaded.program)).collect()
}

/// Adds the rows of one run: one for each value that a kernel wrote, and one for every other value that is wrong.
/// Returns the report of the run.
fn verify_run(
    candidate: &Candidate,
    compiled: &Compiled,
    inputs: &Inputs,
    report: &mut VerifyReport,
) -> Result<Report, Error> {
    let run = replay_compiled(&candidate.loaded, compiled, inputs, Scope::DeviceResults)?;
    report.ran_kernels += run.ran_kernels;
    count_segments(candidate, inputs, &run, report);
    report.launches.extend(run.segments.iter().filter_map(|segment| {
        let launch = segment.launch.clone()?;
        Some(VerifyLaunch { fixture: candidate.name.clone(), inputs: inputs.describe(), launch })
    }));
    for output in &run.outputs {
        if let Some(error) = &output.error {
            report.rows.push(VerifyRow::unfit(&candidate.name, &inputs.describe(), &output.name, error));
            continue;
        }
        // A value that was fused away was not computed by the run. An error of normalization is reported all the
        // same.
        let is_wrongly_normalized = !output.ok && output.rule.starts_with(NORMALIZED);
        if output.source != "run" && !is_wrongly_normalized {
            continue;
        }
        let segment = output.segment.map(|segment| &run.segments[segment]);
        let plan = output.segment.and_then(|segment| compiled.planned().partition().segments[segment].plan());
        if plan.is_none() && output.ok {
            continue;
        }
        let program = compiled.planned().program();
        let extents = plan.and_then(Plan::scaled_mma).and_then(|plan| extents(plan, &run, program));
        let is_empty = match extents {
            Some([l, m, ..]) => l == 0 || m == 0,
            None => plan.is_some() && output.elements == 0,
        };
        let message = segment.and_then(|segment| segment.message.clone());
        let message = message.or_else(|| is_empty.then(|| "empty: nothing was launched".to_owned()));
        report.rows.push(VerifyRow {
            fixture: candidate.name.clone(),
            inputs: inputs.describe(),
            segment: output.segment,
            value: output.name.clone(),
            kernel: segment.and_then(|segment| segment.kernel.clone()),
            kind: plan.map(|plan| plan.tier().name()),
            plan: plan.map(Plan::kind_name),
            extents,
            sizes: plan.filter(|_| extents.is_none()).and_then(|plan| sizes(plan, &run, program)),
            ran: segment.map_or("not_run", |segment| segment.ran),
            reason: segment.and_then(|segment| segment.reason.clone()),
            message,
            fault: None,
            rule: output.rule.clone(),
            against: output.expected.clone(),
            elements: output.elements,
            mismatches: output.mismatches,
            moved_roundings: output.moved_roundings,
            max_abs_err: output.max_abs_err,
            max_rel_err: output.max_rel_err,
            worst: output
                .worst
                .as_ref()
                .map(|worst| format!("{:?}: {}, expected {}", worst.index, worst.got, worst.want)),
            seconds: segment.and_then(|segment| segment.kernel_seconds.or(segment.seconds)),
            unbounded: output.unbounded,
            ok: output.ok,
        });
    }
    for note in &run.notes {
        report.rows.push(VerifyRow::note(&candidate.name, &inputs.describe(), note));
    }
    if compiled.device().is_some() {
        report.rows.extend(nan_rows(candidate, compiled, inputs, &run)?);
    }
    Ok(run)
}

/// Counts the segments of the device tier that ran on the GPU, and lists the segments of either tier that did not. A
/// segment whose results have no elements needs no GPU, nor does a view of a value on the host.
fn count_segments(candidate: &Candidate, inputs: &Inputs, run: &Report, report: &mut VerifyReport) {
    for (position, segment) in run.segments.iter().enumerate() {
        let mut results = run.outputs.iter().filter(|output| output.segment == Some(position)).peekable();
        let is_empty = results.peek().is_some() && results.all(|output| output.elements == 0);
        if segment.reason.as_deref() == Some(NOT_CHOSEN) {
            let planned =
                if segment.kind == "kernel" { &mut report.kernels } else { &mut report.device_segments };
            *planned -= usize::from(segment.kind != "fallback");
            continue;
        }
        // A view takes no time, so it stays where its operand is.
        let is_view = segment.reason.as_deref() == Some(HOST_OPERAND);
        let is_done = matches!(segment.ran, "kernel" | "emulated") || is_empty || is_view;
        report.ran_device_segments += usize::from(segment.kind == "device" && is_done);
        if segment.kind != "fallback" && !is_done {
            report.off_device.push(OffDevice {
                fixture: candidate.name.clone(),
                inputs: inputs.describe(),
                segment: position,
                ops: segment.ops.clone(),
                reason: segment.reason.clone(),
                message: segment.message.clone(),
            });
        }
    }
}

/// Returns the extents of the symbols in one run.
fn symbols_of(report: &Report, program: &Program) -> SymbolValues {
    let mut symbols = SymbolValues::default();
    for (symbol, name) in program.module().symbols.iter() {
        if let Some(extent) = report.symbols.get(name) {
            symbols.set(symbol, *extent);
        }
    }
    symbols
}

/// Returns L, M, N and K of one run.
fn extents(plan: &ScaledMmaPlan, report: &Report, program: &Program) -> Option<[u64; 4]> {
    let symbols = symbols_of(report, program);
    let mut extents = [0; 4];
    for (slot, dim) in extents.iter_mut().zip([&plan.batch, &plan.m, &plan.n, &plan.k]) {
        *slot = dim.evaluate(&symbols)?;
    }
    Some(extents)
}

/// Returns the extents of one run of a segment of the device tier, as `L=1 M=37 K=64`.
fn sizes(plan: &Plan, report: &Report, program: &Program) -> Option<String> {
    let extents = plan.extents(&symbols_of(report, program))?;
    let named: Vec<String> = extents.into_iter().map(|(name, extent)| format!("{name}={extent}")).collect();
    Some(named.join(" "))
}
