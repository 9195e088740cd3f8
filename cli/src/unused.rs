//! Finds the tensors of `--data` files that a program does not use.

use std::collections::HashSet;
use std::path::PathBuf;

use fourfold_executor::{OpenSources, SafetensorsFile, TensorSource};
use fourfold_ir::Program;

use crate::error::Error;
use crate::header::Header;

/// The name prefix of expected results.
const EXPECTED: &str = "expected.";
/// The number of names in a message.
const NAMED: usize = 6;

/// The unused tensors of one `--data` file, which has at least one, or no tensor at all.
#[derive(Clone, Debug)]
pub(crate) struct Unused {
    /// The position of the file among those of `--data`.
    pub(crate) position: usize,
    file: PathBuf,
    /// The names of the tensors, each with the name that may have been meant.
    names: Vec<(String, Option<String>)>,
    /// True if the program uses no tensor of the file.
    pub(crate) is_whole: bool,
}

/// Returns the unused tensors of each `--data` file that has any. A tensor counts as used if it has the name of an
/// input, of a `; tensor:` line's tensor, of an expectation or of a `; expected:` line's tensor, even if a later file
/// replaces it.
pub(crate) fn unused(opened: &OpenSources<'_>, program: &Program, header: &Header) -> Vec<Unused> {
    let module = program.module();
    let referred = header.tensors.iter().filter_map(|reference| match &reference.source {
        TensorSource::Tensor { name, file: None, .. } => Some(name.as_str()),
        _ => None,
    });
    let inputs = module.inputs.iter().map(|input| module.name_of(*input));
    let expected = header.expected.iter().map(|expected| expected.tensor.as_str());
    let known: HashSet<&str> = inputs.chain(referred).chain(expected).collect();
    let is_value = |name: &str| program.facts().value_named(name).is_some();
    let is_used = |name: &str| known.contains(name) || name.strip_prefix(EXPECTED).is_some_and(is_value);
    let of_file = |(position, file): (usize, &SafetensorsFile)| {
        let unused = file.tensors().iter().map(|tensor| tensor.name.as_str()).filter(|name| !is_used(name));
        let meant = |name: &str| is_value(name).then(|| format!("{EXPECTED}{name}"));
        let names: Vec<_> = unused.map(|name| (name.to_owned(), meant(name))).collect();
        let is_whole = names.len() == file.tensors().len();
        Unused { position, file: file.path().to_owned(), names, is_whole }
    };
    let all = opened.given().iter().enumerate().map(of_file);
    all.filter(|unused| unused.is_whole || !unused.names.is_empty()).collect()
}

impl Unused {
    /// Returns the remark on tensors that have no effect. `None` if the report names them anyway: expectations of
    /// values that the program does not have.
    pub(crate) fn note(&self) -> Option<String> {
        let other = self.names.iter().filter(|(name, _)| !name.starts_with(EXPECTED));
        let other: Vec<String> = other.map(described).collect();
        (!other.is_empty()).then(|| {
            format!("{} has tensors that the program does not use: {}", self.file.display(), listed(&other))
        })
    }

    /// Returns the error for a file of which no tensor is used.
    pub(crate) fn refusal(&self, program: &Program, header: &Header) -> Error {
        let has: Vec<String> = self.names.iter().map(described).collect();
        let module = program.module();
        let is_stored = |name: &str| header.tensors.iter().any(|reference| reference.input == name);
        let names = module.inputs.iter().map(|input| module.name_of(*input));
        // Inputs without a tensor in the model come first: these are what a data file is for.
        let (stored, free): (Vec<&str>, Vec<&str>) = names.partition(|name| is_stored(name));
        let quoted = |names: Vec<&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
        let outputs = module.outputs.iter().map(|output| format!("`{EXPECTED}{}`", module.name_of(*output)));
        let expected = header.expected.iter().map(|expected| format!("`{}`", expected.tensor));
        Error::UnusedData {
            file: self.file.clone(),
            has: if has.is_empty() { "no tensor".to_owned() } else { listed(&has) },
            inputs: listed(&quoted([free, stored].concat())),
            expected: listed(&outputs.chain(expected).collect::<Vec<_>>()),
        }
    }
}

fn described((name, meant): &(String, Option<String>)) -> String {
    match meant {
        Some(meant) => format!("`{name}` (did you mean `{meant}`?)"),
        None => format!("`{name}`"),
    }
}

/// Joins the first names, and counts the others.
fn listed(names: &[String]) -> String {
    let first = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
