//! JSON files beside a model.

use std::path::Path;

use fourfold_executor::read_input;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::error::Category;

use crate::error::ImportError;

/// The maximum number of objects in a file. In memory, one takes 600 bytes or more.
const MAX_OBJECTS: usize = 1 << 17;

/// Reads the JSON object of a configuration: of at most `limit` bytes, and of few objects.
///
/// # Errors
/// As [`object`], and when the file has too many objects.
pub(crate) fn configuration(path: &Path, limit: u64) -> Result<Value, ImportError> {
    let text = read_input(path, limit)?;
    if text.bytes().filter(|byte| *byte == b'{').count() > MAX_OBJECTS {
        let reason = format!("it has more than {MAX_OBJECTS} objects, the limit of a configuration");
        return Err(ImportError::Malformed { path: path.to_owned(), reason });
    }
    parsed(path, &text)
}

/// Reads a JSON object of at most `limit` bytes. The parser limits the depth to 128.
///
/// # Errors
/// When the file cannot be read, is longer, or is no JSON object of the type's form.
pub(crate) fn object<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<T, ImportError> {
    parsed(path, &read_input(path, limit)?)
}

fn parsed<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ImportError> {
    let malformed = |reason: String| ImportError::Malformed { path: path.to_owned(), reason };
    if !text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok() {
        return Err(malformed("it is not a JSON object".to_owned()));
    }
    serde_json::from_str(text).map_err(|source| match source.classify() {
        Category::Data => malformed(source.to_string()),
        _ => ImportError::Json { path: path.to_owned(), source },
    })
}
