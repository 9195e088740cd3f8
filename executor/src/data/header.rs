//! Says what is wrong with a file that is not valid safetensors, naming the tensor where the header does.

use std::path::Path;

use safetensors::tensor::{SafeTensorError, TensorInfo};
use serde_json::Value;

use super::error::DataError;

/// Bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

/// The key of the header that is not a tensor.
const METADATA_KEY: &str = "__metadata__";

/// What makes the file invalid, given what the library found.
pub(super) fn explain(path: &Path, bytes: &[u8], error: SafeTensorError) -> DataError {
    let not_safetensors = |reason: String| DataError::NotSafetensors { path: path.to_owned(), reason };
    let Some(length) = bytes.first_chunk::<LENGTH_BYTES>().map(|length| u64::from_le_bytes(*length)) else {
        return not_safetensors(format!("it has {} bytes, fewer than the length of a header", bytes.len()));
    };
    let header = usize::try_from(length)
        .ok()
        .and_then(|length| bytes.get(LENGTH_BYTES..length.checked_add(LENGTH_BYTES)?));
    let Some(header) = header else {
        return not_safetensors(format!(
            "its first 8 bytes announce a header of {length} bytes, more than the file has ({})",
            bytes.len()
        ));
    };
    let entries = match serde_json::from_slice(header) {
        Ok(Value::Object(entries)) => entries,
        Ok(_) => return not_safetensors("its header is not a JSON object".to_owned()),
        Err(error) => return not_safetensors(format!("its header is not JSON: {error}")),
    };
    let mut end = 0;
    for (tensor, entry) in entries.into_iter().filter(|(tensor, _)| tensor != METADATA_KEY) {
        let wrong =
            |reason: String| DataError::Entry { path: path.to_owned(), tensor: tensor.clone(), reason };
        match serde_json::from_value::<TensorInfo>(entry) {
            Err(error) => return wrong(error.to_string()),
            Ok(info) => match check_entry(&info) {
                Err(reason) => return wrong(reason),
                Ok(tensor_end) => end = tensor_end.max(end),
            },
        }
    }
    let expected = (LENGTH_BYTES as u64).saturating_add(length).saturating_add(end as u64);
    if expected != bytes.len() as u64 {
        return DataError::Length { path: path.to_owned(), expected, found: bytes.len() as u64 };
    }
    not_safetensors(error.to_string())
}

/// Where a tensor's bytes end, when its entry agrees with itself.
fn check_entry(info: &TensorInfo) -> Result<usize, String> {
    let (start, end) = info.data_offsets;
    let (dtype, shape) = (info.dtype, &info.shape);
    let count = shape.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim));
    let Some(bits) = count.and_then(|count| count.checked_mul(dtype.bitsize())) else {
        return Err(format!("a {dtype} tensor of shape {shape:?} is larger than memory can be"));
    };
    if !bits.is_multiple_of(8) {
        return Err(format!("a {dtype} tensor of shape {shape:?} does not fill whole bytes"));
    }
    if end.checked_sub(start) != Some(bits / 8) {
        let expected = bits / 8;
        return Err(format!(
            "a {dtype} tensor of shape {shape:?} takes {expected} bytes, not those from {start} to {end}"
        ));
    }
    Ok(end)
}
