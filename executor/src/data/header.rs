//! Parses the header of a safetensors file; errors name the tensor.
//!
//! The file starts with the length of the header, a JSON object with an entry for each tensor. The tensors follow
//! contiguously. The `safetensors` crate accepts repeated names and keeps the last one; here they are an error, as is
//! everything that crate rejects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::tensor::TensorInfo;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::error::Category;

use super::error::DataError;

/// The size of the length field before the header, in bytes.
const LENGTH_BYTES: u64 = 8;
/// The maximum size of a header in bytes, the same as in the `safetensors` crate.
const LONGEST_HEADER: u64 = 100_000_000;
/// The header key that is not a tensor.
const METADATA_KEY: &str = "__metadata__";

/// A tensor of a safetensors file, as its header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredTensor {
    /// The name.
    pub name: String,
    /// The dtype's name, such as `F8_E4M3`.
    pub dtype: String,
    /// The size of an element, in bits.
    pub bits: usize,
    /// The shape, in elements of the dtype.
    pub shape: Vec<usize>,
    /// The first byte, from the start of the file.
    pub start: u64,
    /// The byte after the last, from the start of the file.
    pub end: u64,
}

/// A valid header.
pub(super) struct Header {
    /// The tensors, in file order.
    pub(super) tensors: Vec<StoredTensor>,
    /// The map `__metadata__`.
    pub(super) metadata: BTreeMap<String, String>,
}

/// Reads the header of a file of `length` bytes.
pub(super) fn read(path: &Path, file: &File, length: u64) -> Result<Header, DataError> {
    let not_safetensors = |reason: String| DataError::NotSafetensors { path: path.to_owned(), reason };
    let failed = |source: io::Error| DataError::Read { path: path.to_owned(), source };
    if length < LENGTH_BYTES {
        let reason = format!("it has {length} bytes, fewer than the {LENGTH_BYTES} of the header length");
        return Err(not_safetensors(reason));
    }
    let mut announced = [0; LENGTH_BYTES as usize];
    file.read_exact_at(&mut announced, 0).map_err(failed)?;
    let announced = u64::from_le_bytes(announced);
    let said = format!("its first 8 bytes announce a header of {announced} bytes");
    if announced > length - LENGTH_BYTES {
        return Err(not_safetensors(format!("{said}, but the file has {length}")));
    }
    if announced > LONGEST_HEADER {
        return Err(not_safetensors(format!("{said}, above the limit of {LONGEST_HEADER}")));
    }
    // Bounded by LONGEST_HEADER.
    let mut header = vec![0; announced as usize];
    file.read_exact_at(&mut header, LENGTH_BYTES).map_err(failed)?;
    let mut header = parse(path, &header)?;
    for entry in &header.tensors {
        check_entry(entry).map_err(|reason| wrong(path, &entry.name, reason))?;
    }
    header.tensors.sort_by_key(|entry| (entry.start, entry.end));
    check_places(path, &header.tensors, LENGTH_BYTES + announced, length)?;
    for entry in &mut header.tensors {
        entry.start += LENGTH_BYTES + announced;
        entry.end += LENGTH_BYTES + announced;
    }
    Ok(header)
}

fn wrong(path: &Path, tensor: &str, reason: String) -> DataError {
    DataError::Entry { path: path.to_owned(), tensor: tensor.to_owned(), reason }
}

/// Parses the entries of a header, with offsets into the data.
fn parse(path: &Path, header: &[u8]) -> Result<Header, DataError> {
    let not_safetensors = |reason: String| DataError::NotSafetensors { path: path.to_owned(), reason };
    let mut reader = Reader::default();
    let mut json = serde_json::Deserializer::from_slice(header);
    let parsed = json.deserialize_any(&mut reader).and_then(|()| json.end());
    let Reader { entries, metadata, key, repeated, .. } = reader;
    match (parsed, repeated, key) {
        (_, Some(tensor), _) => Err(DataError::RepeatedEntry { path: path.to_owned(), tensor }),
        (Ok(()), ..) => Ok(Header { tensors: entries, metadata }),
        (Err(error), _, key) => Err(match (error.classify(), key) {
            (Category::Data, Some(tensor)) => wrong(path, &tensor, without_place(&error)),
            (Category::Data, None) => not_safetensors("its header is not a JSON object".to_owned()),
            _ => not_safetensors(format!("its header is not JSON: {error}")),
        }),
    }
}

/// The error without line and column, which are meaningless in a binary file.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// Collects header entries, and detects repeated keys, which a map would lose.
#[derive(Default)]
struct Reader {
    entries: Vec<StoredTensor>,
    metadata: BTreeMap<String, String>,
    names: BTreeSet<String>,
    /// The key whose entry is being read.
    key: Option<String>,
    /// A repeated key.
    repeated: Option<String>,
}

impl<'de> Visitor<'de> for &mut Reader {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an entry for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if !self.names.insert(name.clone()) {
                self.repeated = Some(name);
                return Err(A::Error::custom("a name is repeated"));
            }
            self.key = Some(name.clone());
            if name == METADATA_KEY {
                self.metadata = map.next_value::<Option<BTreeMap<String, String>>>()?.unwrap_or_default();
            } else {
                let TensorInfo { dtype, shape, data_offsets: (start, end) } = map.next_value()?;
                let (start, end) = (start as u64, end as u64);
                let (dtype, bits) = (dtype.to_string(), dtype.bitsize());
                self.entries.push(StoredTensor { name, dtype, bits, shape, start, end });
            }
            self.key = None;
        }
        Ok(())
    }
}

/// Checks that an entry's dtype, shape and size are consistent.
fn check_entry(entry: &StoredTensor) -> Result<(), String> {
    let StoredTensor { dtype, bits, shape, start, end, .. } = entry;
    let shown = || shape_text(shape);
    let count = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim));
    let Some(bits) = count.and_then(|count| count.checked_mul(*bits)) else {
        return Err(format!("a {dtype} tensor of shape {} exceeds the address space", shown()));
    };
    if !bits.is_multiple_of(8) {
        return Err(format!("a {dtype} tensor of shape {} does not fill whole bytes", shown()));
    }
    let expected = bits as u64 / 8;
    if end.checked_sub(*start) != Some(expected) {
        return Err(format!(
            "a {dtype} tensor of shape {} takes {expected} bytes, but its offsets are {start} to {end}",
            shown()
        ));
    }
    Ok(())
}

/// A shape for messages, shortened if it has many extents.
fn shape_text(shape: &[usize]) -> String {
    const SHOWN: usize = 8;
    match shape.get(..SHOWN) {
        Some(first) if shape.len() > SHOWN => {
            let first = format!("{first:?}");
            format!("{}, … {} extents]", first.trim_end_matches(']'), shape.len())
        }
        _ => format!("{shape:?}"),
    }
}

/// Checks that tensors, sorted by offset, cover the rest of the file exactly once.
fn check_places(path: &Path, entries: &[StoredTensor], data: u64, length: u64) -> Result<(), DataError> {
    let wrong_length = |last: Option<&StoredTensor>| DataError::Length {
        path: path.to_owned(),
        tensor: last.map(|entry| entry.name.clone()),
        expected: data.saturating_add(last.map_or(0, |entry| entry.end)),
        found: length,
    };
    let last = entries.iter().max_by_key(|entry| entry.end);
    if last.is_some_and(|entry| entry.end > length - data) {
        return Err(wrong_length(last));
    }
    let mut before: Option<&StoredTensor> = None;
    for entry in entries {
        let end = before.map_or(0, |before| before.end);
        if let Some(before) = before.filter(|before| entry.start < before.end) {
            return Err(DataError::Overlap {
                path: path.to_owned(),
                first: before.name.clone(),
                end: before.end,
                second: entry.name.clone(),
                start: entry.start,
            });
        }
        if entry.start > end {
            let (path, tensor) = (path.to_owned(), entry.name.clone());
            return Err(DataError::Hole { path, start: end, end: entry.start, tensor });
        }
        before = Some(entry);
    }
    if last.map_or(0, |entry| entry.end) != length - data { Err(wrong_length(last)) } else { Ok(()) }
}
