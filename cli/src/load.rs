//! Reads programs from files, and their inputs from data files or a seed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fourfold_executor::{DataFile, DataSources, OpenSources, OtherTensors, TEXT_LIMIT, read_input};
use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{Diagnostic, Program, Tensor, Value};

use crate::error::Error;
use crate::header::{self, Header};
use crate::unused::{Unused, unused};

/// A program read from a file.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The file.
    pub file: PathBuf,
    /// The text.
    pub source: String,
    /// The directives of the text.
    pub header: Header,
    /// The program.
    pub program: Program,
}

/// The inputs of a run.
#[derive(Debug)]
pub(crate) enum Inputs {
    Data {
        described: String,
        data: DataFile,
        symbols: Vec<(String, u64)>,
        /// The tensors of `--data` files that the program does not use.
        unused: Vec<Unused>,
    },
    Sampled {
        recipe: Recipe,
        tensors: HashMap<String, Tensor>,
    },
}

/// Reads and verifies a program; `-` is the standard input.
///
/// # Errors
/// Fails if the file cannot be read, or with every error in its text.
pub fn load(file: &Path) -> Result<Loaded, Error> {
    load_text(file, read_input(file, TEXT_LIMIT)?)
}

/// Parses and verifies a text that was read from `file`.
pub(crate) fn load_text(file: &Path, source: String) -> Result<Loaded, Error> {
    let invalid = |diagnostics: Vec<Diagnostic>, source_text: String| Error::Program {
        file: file.to_owned(),
        source_text,
        diagnostics,
    };
    let program = match fourfold_ir::load(&source) {
        Ok((program, _)) => program,
        Err(diagnostics) => return Err(invalid(diagnostics, source)),
    };
    match header::read(&source, &program) {
        Ok(header) => Ok(Loaded { file: file.to_owned(), source, header, program }),
        Err(diagnostics) => Err(invalid(diagnostics, source)),
    }
}

impl Loaded {
    /// Replaces tolerances that the program states.
    pub(crate) fn replace_tolerances(&mut self, given: &[(Option<String>, f64)]) -> Result<(), Error> {
        self.header.replace_tolerances(given, &self.program).map_err(Error::Missing)
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

    /// Returns the tensors by name, and the given extents of symbols.
    pub(crate) fn tensors(&self) -> (&HashMap<String, Tensor>, &[(String, u64)]) {
        match self {
            Inputs::Data { data, symbols, .. } => (&data.inputs, symbols),
            Inputs::Sampled { tensors, recipe } => (tensors, &recipe.symbols),
        }
    }

    /// Returns the `--data` file at a position if the program uses none of its tensors.
    pub(crate) fn unused_file(&self, position: usize) -> Option<&Unused> {
        match self {
            Inputs::Data { unused, .. } => {
                unused.iter().find(|unused| unused.position == position && unused.is_whole)
            }
            Inputs::Sampled { .. } => None,
        }
    }

    /// Returns the name of the inputs in reports.
    pub(crate) fn describe(&self) -> String {
        match self {
            Inputs::Data { described, .. } => described.clone(),
            Inputs::Sampled { recipe, .. } => describe_recipe(recipe),
        }
    }
}

/// Returns the sources of the program's tensors: those that its directives name, and the given files.
pub(crate) fn sources_of(loaded: &Loaded, given: &[PathBuf]) -> DataSources {
    let folder = loaded.file.parent().unwrap_or(Path::new("."));
    DataSources {
        files: loaded.header.data.iter().map(|file| folder.join(file)).collect(),
        references: loaded.header.tensors.clone(),
        folder: folder.to_owned(),
        given: given.to_vec(),
    }
}

/// Reads the program's tensors. `described` is the name of the inputs in reports [default: the files]. If the program
/// refers to tensors in place, its first `; sample:` line draws the inputs without a tensor: a checkpoint has weights,
/// but no activations.
///
/// # Errors
/// Also fails if the program uses no tensor of a `--data` file.
pub(crate) fn data_inputs(
    sources: &DataSources,
    symbols: &[(String, u64)],
    loaded: &Loaded,
    described: Option<String>,
) -> Result<Inputs, Error> {
    let opened = sources.open(loaded.program.module())?;
    match unused(&opened, &loaded.program, &loaded.header).iter().find(|unused| unused.is_whole) {
        Some(unused) => Err(unused.refusal(&loaded.program, &loaded.header)),
        None => opened_inputs(sources, &opened, symbols, loaded, described),
    }
}

/// Reads tensors like [`data_inputs`], from `--data` files that several programs share.
pub(crate) fn shared_inputs(sources: &DataSources, loaded: &Loaded) -> Result<Inputs, Error> {
    opened_inputs(sources, &sources.open(loaded.program.module())?, &[], loaded, None)
}

fn opened_inputs(
    sources: &DataSources,
    opened: &OpenSources<'_>,
    symbols: &[(String, u64)],
    loaded: &Loaded,
    described: Option<String>,
) -> Result<Inputs, Error> {
    let other: Vec<&str> = loaded.header.expected.iter().map(|expected| expected.tensor.as_str()).collect();
    let missing = opened.missing();
    let recipe = loaded.header.samples.first();
    let recipe = recipe.filter(|_| !missing.is_empty() && !sources.references.is_empty());
    let only_given = opened.only_given();
    if recipe.is_some() && !only_given.is_empty() {
        return Err(missing_inputs(&missing, &only_given, loaded));
    }
    let recipe = recipe.map(|recipe| with_symbols(recipe.clone(), symbols));
    let (drawn, symbols) = match &recipe {
        Some(recipe) => {
            let is_missing = |name: &str| missing.contains(&name);
            (sample::some_inputs(&loaded.program, recipe, &is_missing)?, recipe.symbols.as_slice())
        }
        None => (HashMap::new(), symbols),
    };
    let data = opened.read(symbols, OtherTensors::Named(&other), drawn)?;
    let described = described.unwrap_or_else(|| match &recipe {
        Some(recipe) => {
            let names: Vec<String> = missing.iter().map(|name| format!("%{name}")).collect();
            let seeded = describe_recipe(recipe);
            format!("{}; {} {seeded}", describe_files(&data.files), names.join(", "))
        }
        None => describe_files(&data.files),
    });
    let unused = unused(opened, &loaded.program, &loaded.header);
    Ok(Inputs::Data { described, data, symbols: symbols.to_vec(), unused })
}

/// Returns the error for data that have some of the inputs that a sample line draws. Drawn inputs beside given ones
/// would make a run that has no meaning, and mostly has no consistent extents.
fn missing_inputs(missing: &[&str], given: &[&str], loaded: &Loaded) -> Error {
    let module = loaded.program.module();
    let listed = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("%{name}")).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
            _ => names.concat(),
        }
    };
    let inputs = module.inputs.iter().filter(|input| missing.contains(&module.name_of(**input)));
    let typed =
        |input: &Value| format!("%{}: {}", module.name_of(*input), module.display_type(module.ty(*input)));
    Error::MissingInputs {
        missing: format!("{} {}", listed(missing), if missing.len() == 1 { "is" } else { "are" }),
        given: listed(given),
        types: inputs.map(typed).collect::<Vec<_>>().join(", "),
    }
}

fn describe_recipe(recipe: &Recipe) -> String {
    format!("seeded, rule {}, seed {}", recipe.rule.name(), recipe.seed)
}

/// Replaces extents of symbols.
pub(crate) fn with_symbols(mut recipe: Recipe, symbols: &[(String, u64)]) -> Recipe {
    for (name, extent) in symbols {
        recipe.symbols.retain(|(known, _)| known != name);
        recipe.symbols.push((name.clone(), *extent));
    }
    recipe
}

/// Lists the files of a program's tensors. A checkpoint may have many, so only the first ones are named.
pub(crate) fn describe_files(files: &[PathBuf]) -> String {
    const NAMED: usize = 3;
    let named: Vec<String> = files.iter().take(NAMED).map(|file| file.display().to_string()).collect();
    match files.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

pub(crate) fn sampled_inputs(recipe: Recipe, program: &Program) -> Result<Inputs, Error> {
    let tensors = sample::inputs(program, &recipe)?;
    Ok(Inputs::Sampled { recipe, tensors })
}
