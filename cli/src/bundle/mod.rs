//! Bundles: folders that hold everything needed to replay a run on another machine.
//!
//! A bundle holds the program, its inputs and outputs, the source and build command of each kernel, the report
//! and a description of the machine. It is written even if the run failed or was wrong, and lists the files it
//! lacks. It is written as a whole or not at all; a bundle with missing or changed files is rejected
//! ([`fourfold_executor::Sealed`]).
//!
//! | file | contents |
//! |---|---|
//! | `README.txt` | instructions for a replay |
//! | `program.fir` | the program; with `--segment`, that segment as a program of its own |
//! | `data.safetensors` | the inputs, and every other tensor of the data file |
//! | `outputs.safetensors` | the outputs of the run |
//! | `report.json`, `error.json` | the report or the error |
//! | `environment.json` | the report of `fourfold doctor --json`, without verifying the cache |
//! | `kernels/N/` | `kernel.cu`, `command.txt`, `kernel.json` and the compiler's output for segment N |
//! | `whole/` | with `--segment`, the whole program and its report |

mod kernels;
mod write;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fourfold::{Claim, CompileOptions, Event, Options};
use fourfold_codegen::dispatch::Tables;
use fourfold_executor::{DataSources, Sealed, SealedFormat, read_tensors, read_text};
use fourfold_ir::Module;
use fourfold_ir::sample::{Recipe, Rule};
use serde::{Deserialize, Serialize};

pub use crate::error::BundleError;
use crate::error::Error;
use crate::load::{Inputs, Loaded, data_inputs, load_text};
use crate::recorded::{Recorded, RecordedRun};
use crate::report::Report;
pub use crate::report::{Bundle, Lack};
use crate::run::{ReplayOptions, Stages, run_stages};
use crate::version::Version;
pub(crate) use write::write;

/// The format of bundles.
pub(crate) const FORMAT: SealedFormat = SealedFormat { name: "Fourfold bundle", version: 1 };
const PROGRAM: &str = "program.fir";
const DATA: &str = "data.safetensors";
const OUTPUTS: &str = "outputs.safetensors";

/// The place and the contents of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleOptions {
    /// The folder. It must be absent, empty, or an unmodified bundle, which is replaced.
    pub folder: PathBuf,
    /// The segment to extract as a program of its own; `None` keeps the whole program.
    pub segment: Option<usize>,
}

/// The description of a bundle, stored in its manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct About {
    /// The version that wrote the bundle.
    fourfold: Version,
    /// The file that was replayed.
    file: String,
    /// The segment of that file that the bundle's program consists of; `None` for the whole program.
    segment: Option<usize>,
    options: RunAs,
    inputs: Option<GivenInputs>,
    /// The outcome of the run; null if it failed.
    recorded: Option<RecordedRun>,
    /// The error of a failed run.
    error: Option<String>,
    lacks: Vec<Lack>,
}

/// The options of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RunAs {
    target: Option<String>,
    emulate: bool,
    contract: bool,
    kernels_only: bool,
    /// The claim, unless `kernels_only` states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<String>,
    build_anyway: bool,
    debug: bool,
    /// The tolerances that replaced those of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tolerances: Vec<(Option<String>, f64)>,
    /// The text of the dispatch tables, unless they are the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dispatch: Option<String>,
}

/// The inputs of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GivenInputs {
    /// The name of the inputs in reports.
    described: String,
    /// The recipe of seeded inputs.
    seeded: Option<Seeded>,
    symbols: Vec<(String, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seeded {
    rule: String,
    seed: u64,
}

/// A bundle that passed verification.
pub(crate) struct Opened {
    folder: PathBuf,
    sealed: Sealed,
    about: About,
}

/// Opens a bundle and verifies that it is complete and unchanged.
pub(crate) fn open(folder: &Path) -> Result<Opened, BundleError> {
    let sealed = Sealed::open(folder, FORMAT)?;
    let about = serde_json::from_value(sealed.about().clone())
        .map_err(|error| BundleError::About { folder: folder.to_owned(), reason: error.to_string() })?;
    Ok(Opened { folder: folder.to_owned(), sealed, about })
}

/// Replays a bundle on its own inputs and compares with its recorded outputs.
pub(crate) fn replay_opened(
    file: &Path,
    opened: &Opened,
    options: &ReplayOptions,
    progress: &(dyn Fn(&Event) + Sync),
    stages: &mut Stages,
) -> Result<Report, Error> {
    let mut loaded = load_text(file, read_text(&opened.path(PROGRAM)?)?)?;
    loaded.replace_tolerances(&opened.about.options.tolerances)?;
    loaded.replace_tolerances(&options.tolerances)?;
    let recorded = opened.recorded()?;
    stages.loaded = Some(loaded);
    let sources = opened.sources(options)?;
    stages.sources = Some(sources.clone());
    let (backend, compile) = opened.options(options)?;
    let read = |loaded: &Loaded| opened.inputs(options, &sources, loaded);
    let mut report = run_stages(&backend, &compile, recorded.as_ref(), progress, stages, &read)?;
    if let Some(error) = &opened.about.error {
        report.notes.push(format!("the recorded run failed, and this one did not: {error}"));
    }
    Ok(report)
}

impl Opened {
    fn path(&self, name: &'static str) -> Result<PathBuf, BundleError> {
        let lacks = || BundleError::Lacks { folder: self.folder.clone(), name };
        self.sealed.path(name).ok_or_else(lacks)
    }

    /// Merges the given options with those of the bundle. A given target also replaces emulation.
    fn options(&self, given: &ReplayOptions) -> Result<(Options, CompileOptions), BundleError> {
        let (said, backend) = (&self.about.options, &given.backend);
        let named = said.claim.as_deref().and_then(Claim::from_name);
        let claim = if said.kernels_only { Claim::KernelsOnly } else { named.unwrap_or(backend.claim) };
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
        let backend = backend
            .clone()
            .emulate(backend.emulate || (backend.target.is_none() && said.emulate))
            .maybe_target(backend.target.clone().or_else(|| said.target.clone()))
            .contract(backend.contract || said.contract)
            .claim(claim)
            .dispatch(dispatch);
        let compile = given
            .compile
            .clone()
            .build_anyway(given.compile.build_anyway || said.build_anyway)
            .debug(given.compile.debug || said.debug);
        Ok((backend, compile))
    }

    /// Returns the sources of the tensors. The data of the bundle have every tensor that the program refers to.
    fn sources(&self, options: &ReplayOptions) -> Result<DataSources, BundleError> {
        let given = options.data.clone();
        let files = match self.sealed.path(DATA) {
            None if given.is_empty() => vec![self.path(DATA)?],
            own => own.into_iter().collect(),
        };
        Ok(DataSources { files, given, folder: self.folder.clone(), ..DataSources::default() })
    }

    fn inputs(
        &self,
        options: &ReplayOptions,
        sources: &DataSources,
        loaded: &Loaded,
    ) -> Result<Inputs, Error> {
        let said = self.about.inputs.as_ref();
        let mut symbols = said.map_or_else(Vec::new, |said| said.symbols.clone());
        symbols.retain(|(name, _)| options.symbols.iter().all(|(given, _)| given != name));
        symbols.extend(options.symbols.iter().cloned());
        if !options.data.is_empty() {
            return data_inputs(sources, &symbols, loaded, None);
        }
        // The recorded report uses this name.
        let described = said.map_or_else(|| DATA.to_owned(), |said| said.described.clone());
        let inputs = data_inputs(sources, &symbols, loaded, Some(described))?;
        let unknown = |reason: String| BundleError::About { folder: self.folder.clone(), reason };
        match said.and_then(|said| said.seeded.as_ref()) {
            Some(Seeded { rule, seed }) => {
                let rule = Rule::from_name(rule)
                    .ok_or_else(|| unknown(format!("unknown rule `{rule}` of seeded inputs")))?;
                let recipe = Recipe { rule, seed: *seed, symbols };
                match inputs {
                    Inputs::Data { data, .. } => Ok(Inputs::Sampled { recipe, tensors: data.inputs }),
                    sampled @ Inputs::Sampled { .. } => Ok(sampled),
                }
            }
            None => Ok(inputs),
        }
    }

    /// Returns the recorded outputs, if the run had any.
    fn recorded(&self) -> Result<Option<Recorded>, Error> {
        let (Some(run), Some(path)) = (&self.about.recorded, self.sealed.path(OUTPUTS)) else {
            return Ok(None);
        };
        // With a module without inputs, every tensor is returned as stored, by name.
        let data = read_tensors(&path, &Module::new(""))?;
        let mut tensors = data.other;
        tensors.extend(data.expected.into_iter().map(|(name, tensor)| (format!("expected.{name}"), tensor)));
        Ok(Some(Recorded { run: run.clone(), ok: run.ok, tensors }))
    }
}
