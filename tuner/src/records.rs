//! Lines of records: read with the number of what cannot be, and joined from the files of several machines or runs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::problem::Problem;
use crate::record::{Record, SCHEMA};

/// What a text holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// The records, in the order of their lines.
    pub records: Vec<Record>,
    /// What was left of the last line by a writer that was killed. It says nothing, and whoever appends must cut it off.
    pub torn: Option<Torn>,
}

/// A last line that has no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Its number, from 1.
    pub line: usize,
    /// What there is of it.
    pub text: String,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Torn { line, text } = self;
        write!(f, "line {line} has no end ({} bytes of it were written) and is ignored", text.len())
    }
}

/// A line that is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is of another version.
    #[error(
        "line {line}: a record of schema {found}, and this version reads {SCHEMA}: read it with the version that wrote \
         it, or sweep again"
    )]
    Schema {
        /// Its number, from 1.
        line: usize,
        /// What it says.
        found: u64,
    },
    /// It is no JSON object with what a record has.
    #[error("line {line}, column {column}: no record: {message}; restore the file, or remove the line")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Where in it, from 1; 0 where it is about the whole line.
        column: usize,
        /// What is wrong.
        message: String,
    },
}

/// The part of a record that every version has.
#[derive(Deserialize)]
struct Version {
    schema: u64,
}

/// The records of a text, one a line. Blank lines are skipped.
///
/// # Errors
/// The first line that is no record of this version. The last one may be torn: it is returned, not refused.
pub fn read(text: &str) -> Result<Lines, ReadError> {
    let mut lines = Lines::default();
    for (position, whole) in text.split_inclusive('\n').enumerate() {
        let (line, json) = (position + 1, whole.trim());
        if json.is_empty() {
            continue;
        }
        match serde_json::from_str::<Record>(json) {
            Ok(record) if record.schema == SCHEMA => lines.records.push(record),
            Ok(record) => return Err(ReadError::Schema { line, found: record.schema.into() }),
            Err(error) => match serde_json::from_str::<Version>(json) {
                Ok(version) if version.schema != u64::from(SCHEMA) => {
                    return Err(ReadError::Schema { line, found: version.schema });
                }
                // No beginning of an object is an object: what can be read at all was written to its end.
                Err(_) if !whole.ends_with('\n') && error.is_eof() => {
                    lines.torn = Some(Torn { line, text: json.to_owned() });
                }
                _ => return Err(not_a_record(line, &error)),
            },
        }
    }
    Ok(lines)
}

/// The library counts lines within what it was given, which is one.
fn not_a_record(line: usize, error: &serde_json::Error) -> ReadError {
    let message = error.to_string();
    let message = match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    };
    ReadError::Line { line, column: error.column(), message }
}

/// Two records that give one id to different kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "kernel {kernel} has {what} {one} and {other}: an id names one kernel, so one of both was changed by hand or \
     written by a faulty version; leave it out, or sweep it again"
)]
pub struct Conflict {
    /// The id.
    pub kernel: String,
    /// What differs: `generator`, `target` or `parameters`.
    pub what: &'static str,
    /// What it is in one of them.
    pub one: Box<Claim>,
    /// What it is in the other.
    pub other: Box<Claim>,
}

/// What a record says, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What it says.
    pub value: String,
    /// The name of the file.
    pub file: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` in {}", self.value, self.file)
    }
}

/// The records of several files, each with its name, in the order given. Those that are equal in everything are one, as
/// when a file was copied and then continued.
///
/// # Errors
/// When two of them give one id to different kernels.
pub fn merge(files: &[(&str, Vec<Record>)]) -> Result<Vec<Record>, Conflict> {
    let named = || files.iter().flat_map(|(name, records)| records.iter().map(move |record| (*name, record)));
    identities(named())?;
    let mut seen: BTreeMap<(&str, Option<Problem>, u64), Vec<&Record>> = BTreeMap::new();
    let mut merged = Vec::new();
    for (_, record) in named() {
        let alike = seen.entry((&record.kernel, record.problem, record.at)).or_default();
        if !alike.contains(&record) {
            alike.push(record);
            merged.push(record.clone());
        }
    }
    Ok(merged)
}

/// The first record of each kernel, by id, of records with the name of where they are from.
pub(crate) fn identities<'a>(
    records: impl Iterator<Item = (&'a str, &'a Record)>,
) -> Result<BTreeMap<&'a str, &'a Record>, Conflict> {
    let mut first: BTreeMap<&str, (&str, &Record)> = BTreeMap::new();
    for (name, record) in records {
        let (first_name, known) = *first.entry(&record.kernel).or_insert((name, record));
        let (what, one, other) = if known.generator != record.generator {
            ("generator", known.generator.clone(), record.generator.clone())
        } else if known.target != record.target {
            ("target", known.target.clone(), record.target.clone())
        } else if known.parameters != record.parameters {
            ("parameters", known.parameters.to_string(), record.parameters.to_string())
        } else {
            continue;
        };
        let claim = |value: String, file: &str| Box::new(Claim { value, file: file.to_owned() });
        let (one, other) = (claim(one, first_name), claim(other, name));
        return Err(Conflict { kernel: record.kernel.clone(), what, one, other });
    }
    Ok(first.into_iter().map(|(id, (_, record))| (id, record)).collect())
}
