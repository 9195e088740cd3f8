//! Replays a program from a file or a bundle: plans it, runs it on its data, compares every expected value.

use std::path::{Component, Path, PathBuf};

use fourfold::kernels::planned_kernels;
use fourfold::{Backend, CompileOptions, DeviceChoice, Event, Options, chain};
use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_executor::{SealedWriter, is_standard_stream, plan_memory};
use fourfold_ir::bind::symbols_given;
use fourfold_ir::sample::{Recipe, Rule};

use crate::bundle::{self, Bundle, BundleOptions};
use crate::error::{BundleError, Error};
use crate::expectations::Scope;
pub use crate::load::{Loaded, load};
use crate::load::{data_inputs, sampled_inputs, sources_of, with_symbols};
use crate::report::{MemoryReport, Report};
pub use crate::run::{ReplayOptions, plan};
use crate::run::{Stages, describe_kernels, replay_compiled, run_stages};

/// Plans a program and checks the plan, without running it.
///
/// # Errors
/// Fails if the program is invalid or [`Backend::new`] fails.
pub fn explain(file: &Path, options: &Options) -> Result<Report, Error> {
    let loaded = load(file)?;
    let backend = Backend::new(options)?;
    let planned = plan(&backend, &loaded)?;
    let mut report = Report::of_plan(&file.display().to_string(), &planned);
    describe_kernels(&mut report, &planned_kernels(&planned, CutlassVersion::PINNED, backend.emulates()));
    Ok(report)
}

/// Plans like [`explain`], and plans the memory of intermediates for these extents of symbols. Other symbols have the
/// extents of the program's first `; sample:` line.
///
/// # Errors
/// Fails like [`explain`], or if a symbol is unknown or has no extent. A program that cannot be prepared is no error:
/// see [`MemoryReport::reason`](crate::MemoryReport::reason).
pub fn explain_memory(file: &Path, options: &Options, symbols: &[(String, u64)]) -> Result<Report, Error> {
    let loaded = load(file)?;
    let planned = plan(&Backend::new(options)?, &loaded)?;
    let (program, partition) = (planned.program(), planned.partition());
    let module = program.module();
    let sampled = loaded.header.samples.first().map(|recipe| recipe.symbols.clone()).unwrap_or_default();
    let is_given = |name: &str| symbols.iter().any(|(given, _)| given == name);
    let known = |name: &str| module.symbols.values().any(|symbol| symbol == name);
    let sampled = sampled.into_iter().filter(|(name, _)| !is_given(name) && known(name));
    let given: Vec<(String, u64)> = symbols.iter().cloned().chain(sampled).collect();
    let values = symbols_given(module, &given)?;
    let mut report = explain(file, options)?;
    for (symbol, name) in module.symbols.iter() {
        report.symbols.extend(values.get(symbol).map(|extent| (name.clone(), extent)));
    }
    report.memory = Some(MemoryReport::of(module, plan_memory(program, partition, &values)));
    Ok(report)
}

/// Plans a program, builds its kernels if they can run here, runs it and compares every expected value. A folder
/// is a bundle ([`mod@crate::bundle`]), and its recorded outputs are compared as well. `progress` receives the
/// events of long steps.
///
/// # Errors
/// Fails if the program, its data or the bundle are invalid, or [`Backend::new`] fails. A mismatch is not an
/// error: see [`Report::ok`].
pub fn replay(
    file: &Path,
    options: &ReplayOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<Report, Error> {
    replay_stages(file, options, progress, &mut Stages::default())
}

/// Replays like [`replay`] and records how far it came in `stages`.
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
    loaded.replace_tolerances(&options.tolerances)?;
    let sources = sources_of(loaded, &options.data);
    stages.sources = (!sources.is_empty()).then(|| sources.clone());
    let read = |loaded: &Loaded| match sources.is_empty() {
        false => data_inputs(&sources, &options.symbols, loaded, None),
        true => {
            let unsaid = || Recipe { rule: Rule::Normal, seed: 0, symbols: Vec::new() };
            let recipe = loaded.header.samples.first().cloned().unwrap_or_else(unsaid);
            sampled_inputs(with_symbols(recipe, &options.symbols), &loaded.program)
        }
    };
    run_stages(&options.backend, &options.compile, None, progress, stages, &read)
}

/// Replays a program on seeded inputs, on the fallback.
///
/// # Errors
/// Fails like [`replay`].
pub fn replay_sample(loaded: &Loaded, target: Option<&str>, recipe: &Recipe) -> Result<Report, Error> {
    let target = target.unwrap_or(fourfold::DEFAULT_TARGET);
    let backend = Backend::new(&Options::default().target(target).device(DeviceChoice::None))?;
    let inputs = sampled_inputs(recipe.clone(), &loaded.program)?;
    let compiled = backend.compile(plan(&backend, loaded)?, &CompileOptions::default(), &|_| {});
    replay_compiled(loaded, &compiled, &inputs, Scope::Outputs)
}

/// A replay that was kept as a bundle.
#[derive(Debug)]
pub struct Bundled {
    /// The report or the error of the replay.
    pub outcome: Result<Report, Error>,
    /// The bundle, or the error of writing it.
    pub bundle: Result<Bundle, BundleError>,
}

/// Replays a program or a bundle and keeps the replay as a bundle, whether it succeeds or fails.
///
/// # Errors
/// Fails before running anything if the folder holds anything but an unmodified bundle, or the program has
/// no such segment. [`Bundled`] holds later errors.
pub fn replay_bundled(
    file: &Path,
    options: &ReplayOptions,
    kept: &BundleOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<Bundled, Error> {
    let folder = without_parents(&kept.folder);
    let writer = SealedWriter::begin(&folder, bundle::FORMAT).map_err(BundleError::from)?;
    let mut stages = Stages { segment: kept.segment, ..Stages::default() };
    let mut outcome = replay_stages(file, options, progress, &mut stages);
    if let Err(Error::Bundle(BundleError::NoSuchSegment { .. })) = &outcome {
        return Err(outcome.expect_err("it is an error"));
    }
    let written = bundle::write(writer, file, options, kept, &stages, &outcome, progress);
    if let Ok(report) = &mut outcome {
        report.bundle = written.as_ref().ok().cloned();
        report.bundle_error = written.as_ref().err().map(|error| chain(error));
    }
    Ok(Bundled { outcome, bundle: written })
}

/// Returns the path without `..`, which could only be resolved if everything before it existed.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain = std::path::absolute(&plain).unwrap_or(plain);
                plain = plain.canonicalize().unwrap_or(plain);
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}
