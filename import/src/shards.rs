//! The index of a sharded checkpoint, which assigns tensors to shards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::ImportError;
use crate::json;

/// The maximum size of an index in bytes. A model of a trillion parameters has one of 20 MB.
const LIMIT: u64 = 64 << 20;

/// The tensors of each shard, by the name of its file.
pub(crate) struct Index {
    pub(crate) shards: BTreeMap<String, BTreeSet<String>>,
}

/// The JSON object of an index. Other keys are skipped.
#[derive(Deserialize)]
struct Content {
    weight_map: Option<BTreeMap<String, Shard>>,
}

/// The shard of a tensor.
enum Shard {
    Named(String),
    /// A value that is no text, in words.
    Other(String),
}

impl Index {
    /// Reads an index.
    ///
    /// # Errors
    /// When the file cannot be read, has another form, assigns no tensor, or names a file elsewhere.
    pub(crate) fn read(path: &Path) -> Result<Index, ImportError> {
        let content: Content = json::object(path, LIMIT)?;
        let malformed = |reason: String| ImportError::Malformed { path: path.to_owned(), reason };
        let map = content.weight_map.ok_or_else(|| malformed("it has no object `weight_map`".to_owned()))?;
        if map.is_empty() {
            return Err(malformed(
                "its `weight_map` is empty, so it assigns no tensor to a shard".to_owned(),
            ));
        }
        let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (tensor, shard) in map {
            let shard = match shard {
                Shard::Named(shard) => shard,
                Shard::Other(shard) => {
                    return Err(malformed(format!("the shard of `{tensor}` is {shard}, not a file name")));
                }
            };
            if !is_file_name(&shard) {
                return Err(ImportError::ShardPath { path: path.to_owned(), tensor, shard });
            }
            shards.entry(shard).or_default().insert(tensor);
        }
        Ok(Index { shards })
    }
}

/// Returns true for the name of a file in the same folder.
fn is_file_name(name: &str) -> bool {
    let path = Path::new(name);
    !name.contains(['/', '\\', '\0']) && path.file_name().is_some_and(|file| file == path.as_os_str())
}

impl<'de> Deserialize<'de> for Shard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shard, D::Error> {
        deserializer.deserialize_any(ShardVisitor)
    }
}

/// Keeps a text, and skips other values without storing them.
struct ShardVisitor;

impl<'de> Visitor<'de> for ShardVisitor {
    type Value = Shard;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a file")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Shard, E> {
        Ok(Shard::Named(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Shard, E> {
        Ok(Shard::Other(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Shard, E> {
        Ok(Shard::Other(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Shard, E> {
        Ok(Shard::Other(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Shard, E> {
        Ok(Shard::Other(value.to_string()))
    }

    fn visit_unit<E: Error>(self) -> Result<Shard, E> {
        Ok(Shard::Other("null".to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Shard, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Shard::Other("a list".to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shard, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Shard::Other("an object".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::is_file_name;

    #[test]
    fn a_shard_is_a_file_beside_its_index() {
        assert!(is_file_name("model-00001-of-00002.safetensors"));
        for name in ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "a/", "x\0"] {
            assert!(!is_file_name(name), "{name:?}");
        }
    }
}
