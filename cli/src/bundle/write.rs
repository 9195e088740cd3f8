//! Writes a bundle of a replay at the stage it reached.

use std::path::Path;

use fourfold::{Claim, Compiled};
use fourfold_executor::device::DeviceError;
use fourfold_executor::environment::Environment;
use fourfold_executor::fallback::processor;
use fourfold_executor::service::Event;
use fourfold_executor::{DataFile, DataSources, RunError, RunOptions, SealedError, SealedWriter};
use fourfold_ir::{Bound, Program, Tensor, Value, bind};
use serde_json::json;

use super::kernels::write_kernels;
use super::writing::Writing;
use super::{
    About, Bundle, BundleError, BundleOptions, DATA, GivenInputs, Lack, OUTPUTS, PROGRAM, RunAs, Seeded,
};
use crate::doctor::look;
use crate::error::Error;
use crate::extract::{cut_out, extents_of};
use crate::load::{Inputs, Loaded, describe_files, load_text};
use crate::recorded::RecordedRun;
use crate::report::Report;
use crate::run::{ReplayOptions, Stages, run_stages};
use crate::version::Version;

/// Writes a bundle.
pub(crate) fn write(
    folder: SealedWriter,
    file: &Path,
    options: &ReplayOptions,
    bundle: &BundleOptions,
    stages: &Stages,
    outcome: &Result<Report, Error>,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<Bundle, BundleError> {
    let mut writing = Writing { folder, lacks: Vec::new() };
    let about = match bundle.segment {
        None => write_run(&mut writing, options, stages, outcome)?,
        Some(segment) => match cut(&mut writing, segment, options, stages, outcome, progress) {
            Ok((cut, outcome_of_cut)) => {
                write_report(&mut writing, "whole/", stages, outcome)?;
                let about = write_run(&mut writing, options, &cut, &outcome_of_cut)?;
                About { segment: Some(segment), ..about }
            }
            Err(BundleError::Cut { segment, reason }) => {
                writing
                    .lack(format!("segment {segment} alone (this bundle holds the whole program)"), reason);
                write_run(&mut writing, options, stages, outcome)?
            }
            Err(error) => return Err(error),
        },
    };
    let about = About { file: file.display().to_string(), ..about };
    let environment = Environment::from_process();
    writing.json("environment.json", &look(&options.compile.toolchain, &environment, false))?;
    writing.folder.write("README.txt", readme(&about, &writing.lacks).as_bytes())?;
    let about = About { lacks: writing.lacks.clone(), ..about };
    let about = serde_json::to_value(&about)
        .map_err(|error| BundleError::About { folder: bundle.folder.clone(), reason: error.to_string() })?;
    let folder = writing.folder.seal(about)?;
    Ok(Bundle { folder, lacks: writing.lacks })
}

/// Writes the program and its report or error to a folder of the bundle.
fn write_report(
    writing: &mut Writing,
    folder: &str,
    stages: &Stages,
    outcome: &Result<Report, Error>,
) -> Result<(), BundleError> {
    let name = |name: &str| format!("{folder}{name}");
    let source = match (&stages.loaded, outcome) {
        (Some(loaded), _) => &loaded.source,
        (None, Err(Error::Program { source_text, .. })) => source_text,
        _ => return Err(BundleError::NoProgram),
    };
    writing.folder.write(&name(PROGRAM), source.as_bytes())?;
    match outcome {
        Ok(report) => writing.json(&name("report.json"), report)?,
        Err(error) => {
            let object = json!({
                "ok": false,
                "fault": error.fault().name(),
                "error": error.message(),
                "rendered": error.render(),
                "launch": error.launch(),
            });
            writing.json(&name("error.json"), &object)?;
        }
    }
    Ok(())
}

/// Writes the program, its inputs, its outputs and its kernels.
fn write_run(
    writing: &mut Writing,
    options: &ReplayOptions,
    stages: &Stages,
    outcome: &Result<Report, Error>,
) -> Result<About, BundleError> {
    write_report(writing, "", stages, outcome)?;
    let inputs = write_inputs(writing, DATA, stages)?;
    let recorded = match (outcome, &stages.run, &stages.compiled) {
        (Ok(report), Some(run), Some(compiled)) => {
            let planned = compiled.planned();
            let value = |output: Value| Some((output, run.value(planned.normalized().value(output)?)?));
            let module = planned.original().module();
            let mut tensors: Vec<(&str, &Tensor)> = Vec::new();
            for (output, tensor) in module.outputs.iter().filter_map(|output| value(*output)) {
                let name = module.name_of(output);
                if !tensors.iter().any(|(known, _)| *known == name) {
                    tensors.push((name, tensor));
                }
            }
            writing.folder.write_tensors(OUTPUTS, &tensors)?;
            Some(RecordedRun {
                ok: report.ok,
                device: report.device.clone(),
                processor: processor(),
                ran: report.segments.iter().map(|segment| segment.ran.to_owned()).collect(),
            })
        }
        _ => {
            writing.lack(OUTPUTS, "the run failed");
            None
        }
    };
    write_kernels(writing, options, stages)?;
    let (backend, compile) = (&options.backend, &options.compile);
    let planned_for = stages.backend.as_ref();
    let claim = planned_for.map_or(backend.claim, |backend| backend.claim());
    let debug = compile.debug || stages.compiled.as_ref().is_some_and(Compiled::is_in_debug_mode);
    Ok(About {
        fourfold: Version::own(),
        file: String::new(),
        segment: None,
        options: RunAs {
            target: planned_for
                .map(|backend| backend.capabilities().target.clone())
                .or(backend.target.clone()),
            emulate: planned_for.map_or(backend.emulate, |backend| backend.emulates()),
            contract: planned_for.map_or(backend.contract, |backend| backend.contracts()),
            kernels_only: claim == Claim::KernelsOnly,
            claim: (claim == Claim::Device).then(|| claim.name().to_owned()),
            build_anyway: compile.build_anyway,
            tolerances: options.tolerances.clone(),
            debug,
            // Left out if TOML cannot express the tables, which were then not read from TOML either.
            dispatch: planned_for
                .map_or(backend.dispatch.as_ref(), |backend| backend.dispatch())
                .and_then(|tables| tables.to_text().ok()),
        },
        inputs,
        recorded,
        error: outcome.as_ref().err().map(Error::message),
        lacks: Vec::new(),
    })
}

/// Writes the inputs: a single data file unchanged, even an invalid one; tensors of several files, those that
/// directives refer to, and seeded inputs as a new data file.
fn write_inputs(
    writing: &mut Writing,
    name: &str,
    stages: &Stages,
) -> Result<Option<GivenInputs>, BundleError> {
    match (&stages.inputs, &stages.sources) {
        (Some(inputs), _) => {
            let (tensors, symbols) = inputs.tensors();
            let seeded = match inputs {
                Inputs::Data { data, .. } => {
                    match data.files.as_slice() {
                        [file] if !data.has_references => writing.folder.copy(name, file)?,
                        _ => writing.folder.write_data(name, data)?,
                    }
                    None
                }
                Inputs::Sampled { recipe, .. } => {
                    let mut tensors: Vec<(&str, &Tensor)> =
                        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
                    tensors.sort_unstable_by_key(|(name, _)| *name);
                    writing.folder.write_tensors(name, &tensors)?;
                    Some(Seeded { rule: recipe.rule.name().to_owned(), seed: recipe.seed })
                }
            };
            Ok(Some(GivenInputs { described: inputs.describe(), seeded, symbols: symbols.to_vec() }))
        }
        (None, Some(sources)) => {
            let DataSources { files, references, given, .. } = sources;
            let single = match (given.as_slice(), files.as_slice()) {
                ([file], _) | ([], [file]) if references.is_empty() => Some(file),
                _ => None,
            };
            // The file could not be used; the reader of the bundle must see it as it was.
            match single.map(|file| writing.folder.copy(name, file)) {
                Some(Ok(())) => {}
                Some(Err(SealedError::Disk { source, .. })) => writing.lack(name, source.to_string()),
                Some(Err(error)) => return Err(error.into()),
                None => {
                    writing.lack(name, "the tensors lie in several files, one of which could not be used")
                }
            }
            let described = describe_files(&[&files[..], given].concat());
            Ok(Some(GivenInputs { described, seeded: None, symbols: Vec::new() }))
        }
        (None, None) => {
            writing.lack(name, "the replay failed before inputs were read");
            Ok(None)
        }
    }
}

/// Replays one segment of the replayed program as a program of its own.
fn cut(
    writing: &mut Writing,
    segment: usize,
    options: &ReplayOptions,
    whole: &Stages,
    outcome: &Result<Report, Error>,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<(Stages, Result<Report, Error>), BundleError> {
    let failed = |reason: String| BundleError::Cut { segment, reason };
    let parts = (&whole.loaded, &whole.backend, &whole.inputs, &whole.compiled);
    let (Some(loaded), Some(backend), Some(inputs), Some(compiled)) = parts else {
        return Err(failed("the replay failed before segments were planned".to_owned()));
    };
    let (program, partition) = (compiled.planned().program(), compiled.planned().partition());
    let count = partition.segments.len();
    let planned = partition.segments.get(segment).ok_or(BundleError::NoSuchSegment { segment, count })?;
    let (tensors, given) = inputs.tensors();
    let bound =
        bind::bind_given(program, tensors, given).map_err(|error| failed(Error::from(error).message()))?;

    // The segment's actual inputs, or, if the run failed, those that the fallback computes.
    let computed = match &whole.run {
        Some(_) => None,
        None => {
            let why = "the run failed; the bundle holds the inputs that the fallback computes";
            writing.lack("the inputs of the segment in that run", why);
            let options = RunOptions::default().keep_all(true);
            let run = fourfold_executor::run(program, partition, &bound, &options, None);
            Some(run.map_err(|error| failed(Error::from(error).message()))?)
        }
    };
    let run = whole.run.as_ref().or(computed.as_ref());
    let mut data = DataFile::default();
    for &input in &planned.inputs {
        let tensor = input_of(program, &bound, input)
            .or_else(|| run?.value(input))
            .ok_or_else(|| failed(format!("its input %{} is unknown", program.module().name_of(input))))?;
        let copy = tensor.try_clone().map_err(|error| failed(error.to_string()))?;
        data.inputs.insert(program.module().name_of(input).to_owned(), copy);
    }
    let contract = backend.contracts() || loaded.header.allow.contract;
    let source = cut_out(program, planned, &loaded.header, contract, DATA);
    let loaded = load_text(&loaded.file, source).map_err(|error| failed(error.render()))?;
    let symbols = extents_of(loaded.program.module(), program.module(), &bound.symbols);
    let mut stages = Stages { loaded: Some(loaded), ..Stages::default() };
    let inputs = Inputs::Data { described: DATA.to_owned(), data, symbols, unused: Vec::new() };
    if let Err(error) = outcome
        && is_end_of_device(error)
    {
        let why = format!("this process lost the device: {}", error.message());
        stages.inputs = Some(inputs);
        return Ok((stages, Err(Error::Missing(why))));
    }
    let backend = &options.backend;
    let place = backend
        .clone()
        .target(partition.target.clone())
        .emulate(whole.backend.as_ref().map_or(backend.emulate, |backend| backend.emulates()));
    let inputs = std::cell::Cell::new(Some(inputs));
    let taken = |_: &Loaded| {
        inputs.take().ok_or_else(|| Error::Missing("the inputs of the segment were already used".to_owned()))
    };
    let outcome = run_stages(&place, &options.compile, None, progress, &mut stages, &taken);
    let kernel_of =
        |compiled: &Compiled| compiled.configured().first().map(|kernel| kernel.source.hash.clone());
    let original =
        compiled.configured().iter().find(|kernel| kernel.segment == segment).map(|k| k.source.hash.clone());
    if planned.kernel().is_some() && original != stages.compiled.as_ref().and_then(kernel_of) {
        writing.lack("the same kernel", "the extracted segment is planned as a different kernel");
    }
    Ok((stages, outcome))
}

fn input_of<'a>(program: &Program, bound: &Bound<'a>, value: Value) -> Option<&'a Tensor> {
    let position = program.module().inputs.iter().position(|input| *input == value)?;
    bound.inputs.get(position).copied()
}

fn is_end_of_device(error: &Error) -> bool {
    matches!(error, Error::Run(RunError::Device { source, .. }) if DeviceError::is_sticky(source))
}

fn readme(about: &About, lacks: &[Lack]) -> String {
    let Version { version, described } = &about.fourfold;
    let described = described.as_ref().map_or(String::new(), |text| format!(" ({text})"));
    let what = match about.segment {
        Some(segment) => format!("segment {segment} of {} as a program of its own", about.file),
        None => about.file.clone(),
    };
    let how = match (&about.recorded, &about.error) {
        (Some(run), _) => {
            let device = run.device.as_deref().unwrap_or("the CPU");
            let verdict = if run.ok { "every expectation was met" } else { "an expectation was NOT met" };
            format!("It ran on {device}, and {verdict}.")
        }
        (None, Some(error)) => format!("It failed: {error}"),
        (None, None) => "It was not run.".to_owned(),
    };
    let target = about.options.target.as_deref().unwrap_or("the default target");
    let emulated = if about.options.emulate { ", emulated" } else { "" };
    let lacks: String = lacks.iter().map(|Lack { what, why }| format!("  {what}: {why}\n")).collect();
    let lacks = if lacks.is_empty() { "  nothing\n".to_owned() } else { lacks };
    format!(
        "A replay of {what},
for {target}{emulated}, by Fourfold {version}{described}.
{how}

To replay this folder, DIR, on any machine:

  fourfold replay DIR

The replay plans the program for the same target with the same options and runs it on the same inputs: on a
GPU that can run it, else on the CPU. It compares the outputs with the expectations and with the outputs of
the recorded run. --target NAME plans for another target, --device none uses no GPU, --data FILE reads other
inputs, --debug prints the arguments of each launch.

manifest.json has the hash of every file. A bundle with a missing or changed file is rejected.
manifest.b3 has the hash of manifest.json in the format of `b3sum --check`.

kernels/N/command.txt builds the kernel of segment N. environment.json describes the machine's toolchain and
GPUs, and the environment variables that Fourfold reads; it holds no other variables.

This bundle lacks:
{lacks}"
    )
}
