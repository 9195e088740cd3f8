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
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fourfold::{Claim, CompileOptions, Event, Options};
use fourfold_codegen::dispatch::Tables;
use fourfold_executor::{Sealed, SealedFormat, read_tensors, read_tensors_given, read_text};
use fourfold_ir::sample::{Recipe, Rule};
use fourfold_ir::{Module, Program};
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

/// What bundles are.
pub(crate) const FORMAT: SealedFormat = SealedFormat { name: "Fourfold bundle", version: 1 };
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

/// A bundle that is whole.
pub(crate) struct Opened {
    folder: PathBuf,
    sealed: Sealed,
    about: About,
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
