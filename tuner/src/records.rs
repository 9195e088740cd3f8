//! Reads record files, and merges those of several machines or runs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::problem::Problem;
use crate::record::{Record, SCHEMA};

/// The contents of a record file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// The records, in file order.
    pub records: Vec<Record>,
    /// An incomplete last line, left by a writer that was killed. Remove it before appending to the file.
    pub torn: Option<Torn>,
}

/// An incomplete last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The line, from 1.
    pub line: usize,
    /// The part that was written.
    pub text: String,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Torn { line, text } = self;
        write!(f, "line {line} has no end ({} bytes were written) and is ignored", text.len())
    }
}

/// A line that is not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The record has another version.
    #[error(
        "line {line}: the record has schema {found}, but only schema {SCHEMA} is supported; read it with the version \
         that wrote it, or sweep again"
    )]
    Schema {
        /// The line, from 1.
        line: usize,
        /// The version found.
        found: u64,
    },
    /// The line is not a JSON object with the fields of a record.
    #[error("line {line}, column {column}: not a record: {message}; restore the file, or remove the line")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The column, from 1; 0 for the whole line.
        column: usize,
        /// The JSON parser's message.
        message: String,
    },
}

/// The fields that records of every version have.
#[derive(Deserialize)]
struct Version {
    schema: u64,
}

/// Parses records, one per line. Skips blank lines, and returns an incomplete last line separately.
///
/// # Errors
/// Returns the first line that is not a record of this version.
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
                // A prefix of a JSON object never parses, so a line that parses is complete.
                Err(_) if !whole.ends_with('\n') && error.is_eof() => {
                    lines.torn = Some(Torn { line, text: json.to_owned() });
                }
                _ => return Err(not_a_record(line, &error)),
            },
        }
    }
    Ok(lines)
}

/// Converts the parser's error. Removes its line number, which refers to a text of one line.
fn not_a_record(line: usize, error: &serde_json::Error) -> ReadError {
    let message = error.to_string();
    let message = match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    };
    ReadError::Line { line, column: error.column(), message }
}

/// Two records with the same id for different kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "kernel {kernel} has {what} {one} and {other}; one record was edited by hand or written by a faulty version: \
     remove it, or sweep the kernel again"
)]
pub struct Conflict {
    /// The id.
    pub kernel: String,
    /// The field that differs: `generator`, `target` or `parameters`.
    pub what: &'static str,
    /// The field in one record.
    pub one: Box<Claim>,
    /// The field in the other record.
    pub other: Box<Claim>,
}

/// The value of a field, and the file of its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The value.
    pub value: String,
    /// The file name.
    pub file: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` in {}", self.value, self.file)
    }
}

/// Merges the records of several named files, in the order given. Drops records that are equal in every field, such as
/// those of a file that was copied and continued.
///
/// # Errors
/// If two records have the same id for different kernels.
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

/// Checks that an id always names the same kernel. Takes records with their file names, and returns the first record of
/// each id.
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
