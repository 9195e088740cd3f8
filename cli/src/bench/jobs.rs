//! The measurements of suites: one for each case, element type and size.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use fourfold_ir::sample::Rule;
use fourfold_ir::{Program, load};

use super::suites::{Peer, Place, Suite};
use crate::error::Error;

/// One program at one size.
#[derive(Clone, Debug)]
pub struct Job {
    /// The suite.
    pub suite: String,
    /// The case.
    pub case: String,
    /// The element type that replaces `{type}`, if any.
    pub element: Option<String>,
    /// The extents, by name.
    pub size: BTreeMap<String, u64>,
    /// The position of its program in [`Jobs::programs`].
    pub program: usize,
    /// The extents of the program's symbols.
    pub symbols: Vec<(String, u64)>,
    /// The symbol of the rows, if the program has it.
    pub rows: Option<String>,
    /// The distribution of inputs.
    pub rule: Rule,
    /// Inputs whose elements all have one value.
    pub constants: BTreeMap<String, f64>,
    /// The peer.
    pub peer: Option<Peer>,
}

impl Job {
    /// Returns the element type and the extents, such as `bf16 M=128 N=4096`.
    pub fn size_text(&self) -> String {
        let size = self.size.iter().map(|(name, extent)| format!("{name}={extent}"));
        self.element.iter().cloned().chain(size).collect::<Vec<_>>().join(" ")
    }
}

/// Measurements with their distinct programs.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    /// The measurements, in the order of the suites.
    pub jobs: Vec<Job>,
    /// The distinct programs.
    pub programs: Vec<Program>,
}

/// Returns the measurements of some suites, or of all without names. With `quick`, only the first and the last size of
/// each case and type.
///
/// # Errors
/// If a suite is unknown, or a program with its sizes is invalid.
pub fn jobs(suites: &[Suite], names: &[String], quick: bool) -> Result<Jobs, Error> {
    if let Some(unknown) = names.iter().find(|name| !suites.iter().any(|suite| suite.name == **name)) {
        let known: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        return Err(Error::Missing(format!("there is no suite `{unknown}`; there are {}", known.join(", "))));
    }
    let mut found = Jobs::default();
    let mut known: HashMap<String, usize> = HashMap::new();
    for suite in suites.iter().filter(|suite| names.is_empty() || names.contains(&suite.name)) {
        for case in &suite.cases {
            let place = Place { file: &suite.file, suite: &suite.name, case: Some(&case.name) };
            let types: Vec<Option<&String>> = match case.types.is_empty() {
                true => vec![None],
                false => case.types.iter().map(Some).collect(),
            };
            for element in types {
                let last = case.sizes.len().saturating_sub(1);
                let wanted = |position: usize| !quick || position == 0 || position == last;
                for (_, size) in case.sizes.iter().enumerate().filter(|(position, _)| wanted(*position)) {
                    let source = substitute(&place, &case.program, element, size)?;
                    let program = match known.get(&source) {
                        Some(program) => *program,
                        None => {
                            let file = format!("{} ({}/{})", suite.file, suite.name, case.name);
                            found.programs.push(parsed(file.into(), &source)?);
                            known.insert(source, found.programs.len() - 1);
                            found.programs.len() - 1
                        }
                    };
                    let symbols = symbols(&place, &found.programs[program], &case.program, size)?;
                    let inputs = &found.programs[program].module().inputs;
                    let module = found.programs[program].module();
                    let is_input = |name: &String| inputs.iter().any(|input| module.name_of(*input) == name);
                    if let Some(unknown) = case.constants.keys().find(|name| !is_input(name)) {
                        let reason = format!("the program has no input %{unknown}");
                        return Err(place.wrong("constants", reason, "name inputs of the program"));
                    }
                    let is_symbol = |rows: &String| symbols.iter().any(|(name, _)| name == rows);
                    if let Some(unknown) = case.rows.as_ref().filter(|rows| !is_symbol(rows)) {
                        let reason = format!("the program has no symbol {unknown}");
                        return Err(place.wrong(
                            "rows",
                            reason,
                            "name a symbol that the program uses as such",
                        ));
                    }
                    found.jobs.push(Job {
                        suite: suite.name.clone(),
                        case: case.name.clone(),
                        element: element.cloned(),
                        size: size.clone(),
                        program,
                        symbols,
                        rows: case.rows.clone(),
                        rule: case.rule,
                        constants: case.constants.clone(),
                        peer: case.peer.clone(),
                    });
                }
            }
        }
    }
    Ok(found)
}

/// Parses and verifies a program.
fn parsed(file: PathBuf, source: &str) -> Result<Program, Error> {
    let source_text = || source.to_owned();
    match load(source) {
        Ok((program, _)) => Ok(program),
        Err(diagnostics) => Err(Error::Program { file, source_text: source_text(), diagnostics }),
    }
}

/// Replaces `{type}`, `{N}` and `{N/16}` for each name N of a size. Other braces are those of attributes.
fn substitute(
    place: &Place<'_>,
    program: &str,
    element: Option<&String>,
    size: &BTreeMap<String, u64>,
) -> Result<String, Error> {
    let mut text = String::with_capacity(program.len());
    let mut rest = program;
    while let Some(open) = rest.find('{') {
        text.push_str(&rest[..open]);
        rest = &rest[open..];
        let inner = rest.find('}').map(|close| &rest[1..close]);
        let replaced = match inner {
            Some("type") => element.cloned(),
            Some(inner) => quotient(place, inner, size)?.map(|extent| extent.to_string()),
            None => None,
        };
        let taken = match &replaced {
            Some(replacement) => {
                text.push_str(replacement);
                inner.map_or(1, |inner| inner.len() + 2)
            }
            None => {
                text.push('{');
                1
            }
        };
        rest = &rest[taken..];
    }
    text.push_str(rest);
    Ok(text)
}

/// Evaluates `N` or `N/16`; `None` if it is neither.
fn quotient(place: &Place<'_>, text: &str, size: &BTreeMap<String, u64>) -> Result<Option<u64>, Error> {
    let (name, divisor) = text.split_once('/').map_or((text, None), |(name, by)| (name, Some(by)));
    let Some(extent) = size.get(name) else { return Ok(None) };
    let Some(divisor) = divisor else { return Ok(Some(*extent)) };
    let wrong = |reason: String| {
        place.wrong("program", reason, "divide by a number that divides the extent of every size")
    };
    let number: Option<u64> = divisor.parse().ok().filter(|divisor| *divisor > 0);
    let number = number.ok_or_else(|| wrong(format!("{{{text}}} does not divide by a positive number")))?;
    if !extent.is_multiple_of(number) {
        return Err(wrong(format!("{{{text}}} is not whole for {name} = {extent}")));
    }
    Ok(Some(extent / number))
}

/// Returns the extents of the program's symbols. Every name of a size must be a symbol or a placeholder.
fn symbols(
    place: &Place<'_>,
    program: &Program,
    text: &str,
    size: &BTreeMap<String, u64>,
) -> Result<Vec<(String, u64)>, Error> {
    let names: Vec<&String> = program.module().symbols.iter().map(|(_, name)| name).collect();
    let mut symbols = Vec::new();
    for name in &names {
        let extent = size.get(*name).ok_or_else(|| {
            let reason = format!("the symbol {name} of the program has no extent");
            place.wrong(
                "sizes",
                reason,
                "give each symbol an extent in `symbols` or in every entry of `sizes`",
            )
        })?;
        symbols.push(((*name).clone(), *extent));
    }
    let is_used = |name: &String| {
        names.contains(&name) || text.contains(&format!("{{{name}}}")) || text.contains(&format!("{{{name}/"))
    };
    if let Some(unused) = size.keys().find(|name| !is_used(name)) {
        let reason = format!("the program does not use {unused}");
        return Err(place.wrong("sizes", reason, "remove it, or use it as a symbol or as a placeholder"));
    }
    Ok(symbols)
}
