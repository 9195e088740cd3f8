//! JSON files beside a model.

use std::path::Path;

use fourfold_executor::read_input;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

use crate::error::ImportError;

/// Reads a JSON object of at most `limit` bytes. The parser limits the depth to 128.
///
/// # Errors
/// When the file cannot be read, is longer, or is no JSON object of the type's form.
pub(crate) fn object<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<T, ImportError> {
    let text = read_input(path, limit)?;
    let malformed = |reason: String| ImportError::Malformed { path: path.to_owned(), reason };
    if !text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(&text).is_ok() {
        return Err(malformed("it is not a JSON object".to_owned()));
    }
    serde_json::from_str(&text).map_err(|source| match source.classify() {
        Category::Data => malformed(source.to_string()),
        _ => ImportError::Json { path: path.to_owned(), source },
    })
}
