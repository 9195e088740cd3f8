//! Reads programs from files, and their inputs from a data file or a seed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fourfold_executor::{DataFile, TEXT_LIMIT, read_input, read_tensors_given};
use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{Diagnostic, Program, Tensor};

use crate::error::Error;
use crate::header::{self, Header};

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
    Data { file: PathBuf, data: DataFile, symbols: Vec<(String, u64)> },
    Sampled { recipe: Recipe, tensors: HashMap<String, Tensor> },
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

    /// Returns the name of the inputs in reports.
    pub(crate) fn describe(&self) -> String {
        match self {
            Inputs::Data { file, .. } => file.display().to_string(),
            Inputs::Sampled { recipe, .. } => {
                format!("seeded, rule {}, seed {}", recipe.rule.name(), recipe.seed)
            }
        }
    }
}

/// Returns the data file: the given one, else the one that the program names.
pub(crate) fn data_of(loaded: &Loaded, given: Option<&Path>) -> Option<PathBuf> {
    let folder = loaded.file.parent().unwrap_or(Path::new("."));
    given.map(Path::to_owned).or_else(|| Some(folder.join(loaded.header.data.as_ref()?)))
}

pub(crate) fn data_inputs(
    file: PathBuf,
    symbols: &[(String, u64)],
    program: &Program,
) -> Result<Inputs, Error> {
    let data = read_tensors_given(&file, program.module(), symbols)?;
    Ok(Inputs::Data { file, data, symbols: symbols.to_vec() })
}

pub(crate) fn sampled_inputs(recipe: Recipe, program: &Program) -> Result<Inputs, Error> {
    let tensors = sample::inputs(program, &recipe)?;
    Ok(Inputs::Sampled { recipe, tensors })
}
