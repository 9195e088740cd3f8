//! Bundles: a replay as a folder, with everything that it takes to replay it on another machine.
//!
//! A bundle holds the program, its inputs, what the run gave, the source and command line of each kernel, the report and
//! one on the machine. It is written also when the run failed or was wrong, and says what it then lacks. It is written
//! whole or not at all, and what is missing or was changed since is refused ([`fourfold_executor::Sealed`]).
//!
//! | file | what it is |
//! |---|---|
//! | `README.txt` | how to replay it |
//! | `program.fir` | the program, as it was; with a segment chosen, that segment as a program of its own |
//! | `data.safetensors` | its inputs, and what the data file has besides |
//! | `outputs.safetensors` | what the run gave |
//! | `report.json`, `error.json` | the report, or what went wrong |
//! | `environment.json` | what `fourfold doctor --json` says of the machine, the cache of kernels not verified |
//! | `kernels/N/` | of segment N `kernel.cu`, `command.txt`, `kernel.json`, and what the compiler printed |
//! | `whole/` | with a segment chosen, the whole program and its report |

mod kernels;
mod write;

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use fourfold_codegen::dispatch::Tables;
use fourfold_executor::service::Event;
use fourfold_executor::{
    Ran, RawTensor, Sealed, SealedError, SealedFormat, SealedWriter, read_tensors, read_tensors_given,
    read_text,
};
use fourfold_ir::sample::{Recipe, Rule};
use fourfold_ir::{Module, Program};
use serde::{Deserialize, Serialize};

use crate::backend::{Claim, Options};
use crate::doctor::Version;
use crate::error::Error;
use crate::kernels::chain;
use crate::replay::{
    Inputs, Loaded, ReplayOptions, Stages, data_inputs, load_text, replay_stages, run_stages,
};
use crate::report::Report;
use crate::service::CompileOptions;

/// What bundles are.
const FORMAT: SealedFormat = SealedFormat { name: "Fourfold bundle", version: 1 };
const PROGRAM: &str = "program.fir";
const DATA: &str = "data.safetensors";
const OUTPUTS: &str = "outputs.safetensors";

/// Where a replay is kept, and what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleOptions {
    /// The folder: one that is not there, is empty, or is a bundle to which nothing was added, which is replaced.
    pub folder: PathBuf,
    /// The segment that becomes a program of its own; the whole program when absent.
    pub segment: Option<usize>,
}

/// A replay that was kept.
#[derive(Debug)]
pub struct Bundled {
    /// What the replay gave.
    pub outcome: Result<Report, Error>,
    /// The bundle, or why there is none.
    pub bundle: Result<Bundle, BundleError>,
}

/// A bundle that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// Its folder.
    #[serde(serialize_with = "fourfold_executor::serialize_path")]
    pub folder: PathBuf,
    /// What it could not be given.
    pub lacks: Vec<Lack>,
}

/// Something that a bundle could not be given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// The file, or what it would have been.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// Why a bundle could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Its folder or files.
    #[error(transparent)]
    Folder(#[from] SealedError),
    /// What a bundle says of itself is not what bundles say.
    #[error("`{}` is a bundle that does not say how it is replayed: {reason}", folder.display())]
    About {
        /// The bundle.
        folder: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A bundle lacks what a replay needs.
    #[error("the bundle `{}` lacks `{name}`", folder.display())]
    Lacks {
        /// The bundle.
        folder: PathBuf,
        /// The file.
        name: &'static str,
    },
    /// The segment that was to be cut out is not there.
    #[error("there is no segment {segment}; the program has {count}")]
    NoSuchSegment {
        /// What was asked for.
        segment: usize,
        /// How many there are, counted from 0.
        count: usize,
    },
    /// The segment that was to be cut out could not be.
    #[error("segment {segment} could not be cut out: {reason}")]
    Cut {
        /// The segment.
        segment: usize,
        /// Why not.
        reason: String,
    },
    /// There was nothing to be kept: the program itself could not be read.
    #[error("there is no bundle, as the program could not be read")]
    NoProgram,
}

/// What a bundle says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    /// What wrote it.
    fourfold: Version,
    /// The file that was replayed.
    file: String,
    /// The segment of it that the bundle's program is.
    segment: Option<usize>,
    options: RunAs,
    inputs: Option<GivenInputs>,
    /// What became of the run; null when it failed.
    recorded: Option<RecordedRun>,
    /// Why it failed.
    error: Option<String>,
    lacks: Vec<Lack>,
}

/// How the program was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RunAs {
    target: Option<String>,
    emulate: bool,
    contract: bool,
    kernels_only: bool,
    build_anyway: bool,
    debug: bool,
    /// The text of the tables that say which kernel a problem gets, where these are not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dispatch: Option<String>,
}

/// What the inputs were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GivenInputs {
    /// What a report calls them.
    described: String,
    /// For seeded ones.
    seeded: Option<Seeded>,
    symbols: Vec<(String, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seeded {
    rule: String,
    seed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedRun {
    /// Whether every expectation was met.
    ok: bool,
    device: Option<String>,
    /// What computed what no kernel did; null where that is not known.
    #[serde(default)]
    processor: Option<String>,
    /// How each segment ran.
    ran: Vec<String>,
}

/// What a run gave that a bundle keeps.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    run: RecordedRun,
    /// Whether every expectation was met.
    pub(crate) ok: bool,
    /// The program's outputs.
    pub(crate) tensors: HashMap<String, RawTensor>,
}

impl Recorded {
    /// Whether another run ran each segment as this one did, on such a device, and on such a processor where one had a
    /// part in it. If not, and that is not to be seen in the report, it is said why.
    pub(crate) fn ran_as(&self, report: &Report, processor: Option<&str>) -> Result<(), Option<String>> {
        let ran = report.segments.iter().map(|segment| segment.ran);
        if self.run.device != report.device || !ran.eq(self.run.ran.iter().map(String::as_str)) {
            return Err(None);
        }
        let is_on_device = |ran: &str| [Ran::Kernel.as_str(), Ran::Emulated.as_str()].contains(&ran);
        if self.run.ran.iter().all(|ran| is_on_device(ran)) {
            return Ok(());
        }
        match (self.run.processor.as_deref(), processor) {
            (Some(then), Some(now)) if then == now => Ok(()),
            (then, now) => {
                let [then, now] = [then, now].map(|name| name.unwrap_or("one of which nothing is known"));
                Err(Some(format!(
                    "what was recorded ran on another processor, and sums are rounded in another order there: {then}; \
                     this is {now}"
                )))
            }
        }
    }
}

/// A bundle that is whole.
pub(crate) struct Opened {
    folder: PathBuf,
    sealed: Sealed,
    about: About,
}

/// Replays a program, or a bundle, and keeps the replay as a bundle, whatever becomes of it.
///
/// # Errors
/// When the folder is somebody's, or the program has no such segment: nothing is run then. See [`Bundled`] for what goes
/// wrong later.
pub fn replay_bundled(
    file: &Path,
    options: &ReplayOptions,
    bundle: &BundleOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<Bundled, Error> {
    let folder = without_parents(&bundle.folder);
    let writer = SealedWriter::begin(&folder, FORMAT).map_err(BundleError::from)?;
    let mut stages = Stages { segment: bundle.segment, ..Stages::default() };
    let mut outcome = replay_stages(file, options, progress, &mut stages);
    if let Err(Error::Bundle(BundleError::NoSuchSegment { .. })) = &outcome {
        return Err(outcome.expect_err("it is an error"));
    }
    let written = write::write(writer, file, options, bundle, &stages, &outcome, progress);
    if let Ok(report) = &mut outcome {
        report.bundle = written.as_ref().ok().cloned();
        report.bundle_error = written.as_ref().err().map(|error| chain(error));
    }
    Ok(Bundled { outcome, bundle: written })
}

/// The path without its `..`, which would only mean something once what is before them is there.
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

/// Opens a bundle, and makes sure that it is whole.
pub(crate) fn open(folder: &Path) -> Result<Opened, BundleError> {
    let sealed = Sealed::open(folder, FORMAT)?;
    let about = serde_json::from_value(sealed.about().clone())
        .map_err(|error| BundleError::About { folder: folder.to_owned(), reason: error.to_string() })?;
    Ok(Opened { folder: folder.to_owned(), sealed, about })
}

/// Replays a bundle on what its own run had, and compares with what that gave.
pub(crate) fn replay_opened(
    file: &Path,
    opened: &Opened,
    options: &ReplayOptions,
    progress: &(dyn Fn(&Event) + Sync),
    stages: &mut Stages,
) -> Result<Report, Error> {
    let loaded = load_text(file, read_text(&opened.path(PROGRAM)?)?)?;
    let recorded = opened.recorded()?;
    stages.loaded = Some(loaded);
    stages.data = Some(options.data.clone().map_or_else(|| opened.path(DATA), Ok)?);
    let (backend, compile) = opened.options(options)?;
    let read = |loaded: &Loaded| opened.inputs(options, &loaded.program);
    let mut report = run_stages(&backend, &compile, recorded.as_ref(), progress, stages, &read)?;
    if let Some(error) = &opened.about.error {
        report.notes.push(format!("the run that was recorded failed, and this one did not: {error}"));
    }
    Ok(report)
}

impl Opened {
    fn path(&self, name: &'static str) -> Result<PathBuf, BundleError> {
        let lacks = || BundleError::Lacks { folder: self.folder.clone(), name };
        self.sealed.path(name).ok_or_else(lacks)
    }

    /// What is said now, over what the bundle says. A target that is named also replaces whether it is emulated.
    fn options(&self, given: &ReplayOptions) -> Result<(Options, CompileOptions), BundleError> {
        let (said, backend) = (&self.about.options, &given.backend);
        let claim = if said.kernels_only { Claim::KernelsOnly } else { backend.claim };
        let dispatch = match (&backend.dispatch, &said.dispatch) {
            (None, Some(text)) => {
                let tables = Tables::parse(text).map_err(|error| BundleError::About {
                    folder: self.folder.clone(),
                    reason: error.to_string(),
                })?;
                Some(Arc::new(tables))
            }
            (given, _) => given.clone(),
        };
        let backend = Options {
            emulate: backend.emulate || (backend.target.is_none() && said.emulate),
            target: backend.target.clone().or_else(|| said.target.clone()),
            contract: backend.contract || said.contract,
            claim,
            dispatch,
            ..backend.clone()
        };
        let compile = CompileOptions {
            build_anyway: given.compile.build_anyway || said.build_anyway,
            debug: given.compile.debug || said.debug,
            ..given.compile.clone()
        };
        Ok((backend, compile))
    }

    fn inputs(&self, options: &ReplayOptions, program: &Program) -> Result<Inputs, Error> {
        let said = self.about.inputs.as_ref();
        let mut symbols = said.map_or_else(Vec::new, |said| said.symbols.clone());
        symbols.retain(|(name, _)| options.symbols.iter().all(|(given, _)| given != name));
        symbols.extend(options.symbols.iter().cloned());
        if let Some(data) = &options.data {
            return data_inputs(data.clone(), &symbols, program);
        }
        let data = read_tensors_given(&self.path(DATA)?, program.module(), &symbols)?;
        let unknown = |reason: String| BundleError::About { folder: self.folder.clone(), reason };
        match said.and_then(|said| said.seeded.as_ref()) {
            Some(Seeded { rule, seed }) => {
                let rule = Rule::from_name(rule)
                    .ok_or_else(|| unknown(format!("there is no rule `{rule}` of seeded inputs")))?;
                let recipe = Recipe { rule, seed: *seed, symbols };
                Ok(Inputs::Sampled { recipe, tensors: data.inputs })
            }
            None => {
                // As the recorded report calls it.
                let file = said.map_or_else(|| PathBuf::from(DATA), |said| PathBuf::from(&said.described));
                Ok(Inputs::Data { file, data, symbols })
            }
        }
    }

    /// What the recorded run gave, if it gave anything.
    fn recorded(&self) -> Result<Option<Recorded>, Error> {
        let (Some(run), Some(path)) = (&self.about.recorded, self.sealed.path(OUTPUTS)) else {
            return Ok(None);
        };
        // No module has these as inputs, so every tensor is as it was stored, by its name.
        let data = read_tensors(&path, &Module::new(""))?;
        let mut tensors = data.other;
        tensors.extend(data.expected.into_iter().map(|(name, tensor)| (format!("expected.{name}"), tensor)));
        Ok(Some(Recorded { run: run.clone(), ok: run.ok, tensors }))
    }
}
