//! Suites of benchmarks, read from TOML.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fourfold_executor::{TEXT_LIMIT, read_input};
use fourfold_ir::sample::Rule;
use serde::Deserialize;

use crate::error::{Error, SuiteError};

/// The name of the built-in file in messages.
const BUILT_IN: &str = "bench/suites.toml";

/// The text of the built-in suites.
const BUILT_IN_TEXT: &str = include_str!("../../../bench/suites.toml");

/// The programs that the built-in suites name by path.
const BUILT_IN_PROGRAMS: [(&str, &str); 1] =
    [("../fixtures/minilm_ffn.fir", include_str!("../../../fixtures/minilm_ffn.fir"))];

/// A named list of cases.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// The name.
    pub name: String,
    /// The purpose in one line.
    pub about: String,
    /// The file that defines it.
    pub file: String,
    /// The cases.
    pub cases: Vec<Case>,
}

/// A program with the sizes to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The name.
    pub name: String,
    /// The text of the program, with placeholders.
    pub program: String,
    /// The element types that replace `{type}`; empty without that placeholder.
    pub types: Vec<String>,
    /// The extents of the symbols and placeholders, one map for each size.
    pub sizes: Vec<BTreeMap<String, u64>>,
    /// The symbol of the rows, each of which depends on the same row of the inputs only.
    pub rows: Option<String>,
    /// The distribution of inputs.
    pub rule: Rule,
    /// Inputs whose elements all have one value.
    pub constants: BTreeMap<String, f64>,
    /// The peer in Python.
    pub peer: Option<Peer>,
}

/// The same computation in torch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Statements that run once, such as definitions of functions and weights.
    pub setup: String,
    /// The body of a function of the inputs, by name.
    pub body: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    suite: Vec<SuiteText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteText {
    name: String,
    #[serde(default)]
    about: String,
    #[serde(default)]
    case: Vec<CaseText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseText {
    name: String,
    program: String,
    #[serde(default)]
    types: Vec<String>,
    #[serde(default)]
    symbols: BTreeMap<String, Vec<u64>>,
    #[serde(default)]
    sizes: Vec<BTreeMap<String, u64>>,
    rows: Option<String>,
    rule: Option<String>,
    #[serde(default)]
    constants: BTreeMap<String, f64>,
    peer: Option<String>,
    peer_setup: Option<String>,
}

/// The maximum number of sizes of one case.
const MOST_SIZES: usize = 1024;

/// Returns the built-in suites and those of the files. A suite replaces an earlier one of the same name.
///
/// # Errors
/// If a file cannot be read, or its text is wrong.
pub fn suites(files: &[PathBuf]) -> Result<Vec<Suite>, Error> {
    let mut all = built_in()?;
    for file in files {
        let text = read_input(file, TEXT_LIMIT)?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let read = |path: &str| Ok(read_input(&folder.join(path), TEXT_LIMIT)?);
        for suite in parse(&file.display().to_string(), &text, &read)? {
            all.retain(|known| known.name != suite.name);
            all.push(suite);
        }
    }
    Ok(all)
}

/// Returns the built-in suites.
///
/// # Errors
/// Never, unless the built-in file is wrong.
pub fn built_in() -> Result<Vec<Suite>, Error> {
    let read = |path: &str| {
        let known = BUILT_IN_PROGRAMS.iter().find(|(known, _)| *known == path);
        let program = known.map(|(_, text)| (*text).to_owned());
        program.ok_or_else(|| Error::Missing(format!("{BUILT_IN} has no program `{path}`")))
    };
    parse(BUILT_IN, BUILT_IN_TEXT, &read)
}

/// Parses suites. `read` returns the text of a program by the path in the file.
///
/// # Errors
/// The first error of the text, or that of `read`.
pub fn parse(
    file: &str,
    text: &str,
    read: &dyn Fn(&str) -> Result<String, Error>,
) -> Result<Vec<Suite>, Error> {
    let parsed: FileText = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        SuiteError {
            file: file.to_owned(),
            place: format!("line {line}"),
            reason: error.message().trim().to_owned(),
            help: "bench/README.md lists the keys of suites and cases; `fourfold bench --list` prints those in use",
        }
    })?;
    let mut suites: Vec<Suite> = Vec::new();
    for suite in parsed.suite {
        let SuiteText { name, about, case: cases } = suite;
        let place = Place { file, suite: &name, case: None };
        check_name(&place, &name)?;
        if suites.iter().any(|known| known.name == name) {
            return Err(place.wrong("name", "the file has two suites of this name", "rename one of them"));
        }
        if cases.is_empty() {
            return Err(place.wrong("case", "the suite has no case", "add a `[[suite.case]]` below it"));
        }
        let mut known: Vec<Case> = Vec::new();
        for case in cases {
            let place = Place { file, suite: &name, case: Some(&case.name) };
            check_name(&place, &case.name)?;
            if known.iter().any(|known| known.name == case.name) {
                return Err(place.wrong(
                    "name",
                    "the suite has two cases of this name",
                    "rename one of them",
                ));
            }
            known.push(self::case(&place, &case, read)?);
        }
        suites.push(Suite { file: file.to_owned(), about, cases: known, name: name.clone() });
    }
    Ok(suites)
}

/// A place in a file, for errors.
pub(super) struct Place<'a> {
    pub(super) file: &'a str,
    pub(super) suite: &'a str,
    pub(super) case: Option<&'a str>,
}

impl Place<'_> {
    /// Returns the error of a key.
    pub(super) fn wrong(&self, key: &str, reason: impl Into<String>, help: &'static str) -> Error {
        let case = self.case.map_or(String::new(), |case| format!(", case `{case}`"));
        let place = format!("suite `{}`{case}, key `{key}`", self.suite);
        SuiteError { file: self.file.to_owned(), place, reason: reason.into(), help }.into()
    }
}

/// Names are parts of lines of tables and of options.
fn check_name(place: &Place<'_>, name: &str) -> Result<(), Error> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    if !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        return Ok(());
    }
    let reason = format!("{name:?} is not a name");
    Err(place.wrong("name", reason, "use 1 to 64 letters, digits, `_`, `-` and `.`"))
}

/// Checks a case and reads its program.
fn case(
    place: &Place<'_>,
    text: &CaseText,
    read: &dyn Fn(&str) -> Result<String, Error>,
) -> Result<Case, Error> {
    let inline = text.program.trim_start();
    let program = match inline.starts_with("fir ") {
        true => inline.to_owned(),
        false => read(&text.program)?,
    };
    if text.types.is_empty() == program.contains("{type}") {
        let reason = match text.types.is_empty() {
            true => "the program contains {type}, but the case lists no types",
            false => "the case lists types, but the program does not contain {type}",
        };
        return Err(place.wrong("types", reason, "list `types` exactly if the program contains {type}"));
    }
    let rule = match &text.rule {
        None => Rule::Normal,
        Some(name) => Rule::from_name(name).ok_or_else(|| {
            place.wrong("rule", format!("there is no rule `{name}`"), "use `normal`, `contest` or `exact`")
        })?,
    };
    let peer = match (&text.peer, &text.peer_setup) {
        (None, Some(_)) => {
            return Err(place.wrong(
                "peer_setup",
                "there is no `peer`",
                "add `peer`, or remove `peer_setup`",
            ));
        }
        (peer, setup) => peer
            .clone()
            .map(|body| Peer { setup: setup.clone().unwrap_or_default(), body: body.trim().to_owned() }),
    };
    Ok(Case {
        name: text.name.clone(),
        program,
        types: text.types.clone(),
        sizes: sizes(place, text)?,
        rows: text.rows.clone(),
        rule,
        constants: text.constants.clone(),
        peer,
    })
}

/// Returns the sizes of a case: those listed, or every combination of the extents.
fn sizes(place: &Place<'_>, text: &CaseText) -> Result<Vec<BTreeMap<String, u64>>, Error> {
    if !text.symbols.is_empty() && !text.sizes.is_empty() {
        let help = "keep `symbols` for every combination, or `sizes` for a list";
        return Err(place.wrong("sizes", "the case has `symbols` and `sizes`", help));
    }
    if let Some((name, _)) = text.symbols.iter().find(|(_, extents)| extents.is_empty()) {
        return Err(place.wrong("symbols", format!("`{name}` has no extent"), "list at least one extent"));
    }
    let count = text.symbols.values().try_fold(1usize, |count, extents| count.checked_mul(extents.len()));
    if count.is_none_or(|count| count > MOST_SIZES) || text.sizes.len() > MOST_SIZES {
        let reason = format!("the case has more than {MOST_SIZES} sizes");
        return Err(place.wrong("symbols", reason, "split the case"));
    }
    if !text.sizes.is_empty() {
        let names = |size: &BTreeMap<String, u64>| size.keys().cloned().collect::<Vec<_>>();
        if text.sizes.iter().any(|size| names(size) != names(&text.sizes[0])) {
            let help = "give each size the same symbols";
            return Err(place.wrong("sizes", "two sizes have different symbols", help));
        }
        return Ok(text.sizes.clone());
    }
    let mut sizes = vec![BTreeMap::new()];
    for (name, extents) in &text.symbols {
        let with = |size: &BTreeMap<String, u64>, extent: u64| {
            let mut size = size.clone();
            size.insert(name.clone(), extent);
            size
        };
        sizes = sizes.iter().flat_map(|size| extents.iter().map(|extent| with(size, *extent))).collect();
    }
    Ok(sizes)
}
