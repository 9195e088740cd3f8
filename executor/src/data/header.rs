//! Parses the header of a safetensors file; errors name the tensor.
//!
//! The file starts with the length of the header, a JSON object with an entry for each tensor. The tensors follow
//! contiguously. The `safetensors` crate accepts repeated names and keeps the last one; here they are an error, as is
//! everything that crate rejects.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::Dtype;
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

/// A tensor in the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Its first byte, from the start of the file.
    pub(super) start: u64,
    /// The byte after its last.
    pub(super) end: u64,
}

/// Reads the tensors of a file of `length` bytes, in file order.
pub(super) fn read(path: &Path, file: &File, length: u64) -> Result<Vec<Entry>, DataError> {
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
    let mut entries = parse(path, &header)?;
    for entry in &entries {
        check_entry(entry).map_err(|reason| wrong(path, &entry.name, reason))?;
    }
    entries.sort_by_key(|entry| (entry.start, entry.end));
    check_places(path, &entries, LENGTH_BYTES + announced, length)?;
    for entry in &mut entries {
        entry.start += LENGTH_BYTES + announced;
        entry.end += LENGTH_BYTES + announced;
    }
    Ok(entries)
}

fn wrong(path: &Path, tensor: &str, reason: String) -> DataError {
    DataError::Entry { path: path.to_owned(), tensor: tensor.to_owned(), reason }
}

/// Parses the entries of a header, with offsets into the data.
fn parse(path: &Path, header: &[u8]) -> Result<Vec<Entry>, DataError> {
    let not_safetensors = |reason: String| DataError::NotSafetensors { path: path.to_owned(), reason };
    let mut reader = Reader::default();
    let mut json = serde_json::Deserializer::from_slice(header);
    let parsed = json.deserialize_any(&mut reader).and_then(|()| json.end());
    let Reader { entries, key, repeated, .. } = reader;
    match (parsed, repeated, key) {
        (_, Some(tensor), _) => Err(DataError::RepeatedEntry { path: path.to_owned(), tensor }),
        (Ok(()), ..) => Ok(entries),
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
    entries: Vec<Entry>,
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
                map.next_value::<Option<HashMap<String, String>>>()?;
            } else {
                let TensorInfo { dtype, shape, data_offsets: (start, end) } = map.next_value()?;
                self.entries.push(Entry { name, dtype, shape, start: start as u64, end: end as u64 });
            }
            self.key = None;
        }
        Ok(())
    }
}

/// Checks that an entry's dtype, shape and size are consistent.
fn check_entry(entry: &Entry) -> Result<(), String> {
    let Entry { dtype, shape, start, end, .. } = entry;
    let count = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim));
    let Some(bits) = count.and_then(|count| count.checked_mul(dtype.bitsize())) else {
        return Err(format!("a {dtype} tensor of shape {shape:?} exceeds the address space"));
    };
    if !bits.is_multiple_of(8) {
        return Err(format!("a {dtype} tensor of shape {shape:?} does not fill whole bytes"));
    }
    let expected = bits as u64 / 8;
    if end.checked_sub(*start) != Some(expected) {
        return Err(format!(
            "a {dtype} tensor of shape {shape:?} takes {expected} bytes, but its offsets are {start} to {end}"
        ));
    }
    Ok(())
}

/// Checks that tensors, sorted by offset, cover the rest of the file exactly once.
fn check_places(path: &Path, entries: &[Entry], data: u64, length: u64) -> Result<(), DataError> {
    let wrong_length = |last: Option<&Entry>| DataError::Length {
        path: path.to_owned(),
        tensor: last.map(|entry| entry.name.clone()),
        expected: data.saturating_add(last.map_or(0, |entry| entry.end)),
        found: length,
    };
    let last = entries.iter().max_by_key(|entry| entry.end);
    if last.is_some_and(|entry| entry.end > length - data) {
        return Err(wrong_length(last));
    }
    let mut before: Option<&Entry> = None;
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
