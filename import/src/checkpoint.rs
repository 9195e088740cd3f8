//! The tensors and the configuration of a checkpoint, without the tensors' data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use fourfold_executor::{SafetensorsFile, StoredTensor, TensorReference, files_in, read_text};
use serde_json::Value;

use crate::error::ImportError;

/// The name ending of an index, which assigns tensors to shards.
const INDEX: &str = ".safetensors.index.json";
/// The name of an unsharded checkpoint.
const MODEL: &str = "model.safetensors";

/// A checkpoint: the headers of its files, and its configuration.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    /// The tensors by module, and by the last part of their names.
    pub(crate) modules: BTreeMap<String, BTreeMap<String, Tensor>>,
    /// The maps `__metadata__` of the headers, joined.
    pub(crate) metadata: BTreeMap<String, String>,
    /// config.json; null if it is missing.
    pub(crate) config: Value,
    /// hf_quant_config.json; null if it is missing.
    pub(crate) hf_quant_config: Value,
    /// quantization_config.json; null if it is missing.
    pub(crate) quantization_config: Value,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    /// The whole name.
    pub(crate) name: Rc<str>,
    /// The file, as the source names it.
    file: Rc<str>,
    /// The dtype's name in safetensors files.
    pub(crate) dtype: String,
    /// The extents in elements of the dtype.
    pub(crate) shape: Vec<u64>,
    /// The bits of a scale of a whole tensor; `None` for larger tensors.
    pub(crate) bits: Option<u64>,
}

impl Tensor {
    /// Refers to the whole tensor.
    pub(crate) fn reference(&self) -> TensorReference {
        TensorReference::tensor("", &*self.name).in_file(&*self.file)
    }

    /// The dtype and the shape, for messages.
    pub(crate) fn form(&self) -> String {
        format!("{} {:?}", self.dtype, self.shape)
    }
}

impl Checkpoint {
    /// Reads the headers of a folder's safetensors files, and its configuration. `None` if it has no such files.
    /// Without `any`, the files are those of an index, or model.safetensors.
    ///
    /// # Errors
    /// When a file cannot be read or is malformed, or an index contradicts the shards.
    pub(crate) fn of_folder(folder: &Path, any: bool) -> Result<Option<Checkpoint>, ImportError> {
        let mut checkpoint = Checkpoint::configured(folder)?;
        let indices: Vec<PathBuf> = files_in(folder, "json")?
            .into_iter()
            .filter(|path| path.to_string_lossy().ends_with(INDEX))
            .collect();
        let preferred = folder.join(format!("{}{INDEX}", MODEL.trim_end_matches(".safetensors")));
        let index = indices.iter().find(|path| **path == preferred).or_else(|| indices.first());
        if let Some(index) = index {
            checkpoint.add_shards(folder, index)?;
            return Ok(Some(checkpoint));
        }
        let files = files_in(folder, "safetensors")?;
        let model = folder.join(MODEL);
        let (files, is_named) = if files.contains(&model) { (vec![model], true) } else { (files, false) };
        if files.is_empty() || !(any || is_named) {
            return Ok(None);
        }
        let mut owners = BTreeMap::new();
        for file in &files {
            checkpoint.add_file(file, None, &mut owners)?;
        }
        Ok(Some(checkpoint))
    }

    /// Reads the header of one safetensors file, and the configuration beside it.
    ///
    /// # Errors
    /// When a file cannot be read or is malformed.
    pub(crate) fn of_file(file: &Path) -> Result<Checkpoint, ImportError> {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut checkpoint = Checkpoint::configured(folder.unwrap_or(Path::new(".")))?;
        checkpoint.add_file(file, None, &mut BTreeMap::new())?;
        Ok(checkpoint)
    }

    fn configured(folder: &Path) -> Result<Checkpoint, ImportError> {
        let read = |name: &str| {
            let path = folder.join(name);
            if path.exists() { object(&path) } else { Ok(Value::Null) }
        };
        Ok(Checkpoint {
            config: read("config.json")?,
            hf_quant_config: read("hf_quant_config.json")?,
            quantization_config: read("quantization_config.json")?,
            ..Checkpoint::default()
        })
    }

    /// Adds the shards of an index.
    fn add_shards(&mut self, folder: &Path, index: &Path) -> Result<(), ImportError> {
        let content = object(index)?;
        let malformed = |reason: String| ImportError::Malformed { path: index.to_owned(), reason };
        let map = content.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| malformed("it has no object `weight_map`".to_owned()))?;
        let mut shards: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (tensor, shard) in map {
            let Some(shard) = shard.as_str() else {
                return Err(malformed(format!("the shard of `{tensor}` is {shard}, not a file name")));
            };
            if !is_file_name(shard) {
                let (path, tensor, shard) = (index.to_owned(), tensor.clone(), shard.to_owned());
                return Err(ImportError::ShardPath { path, tensor, shard });
            }
            shards.entry(shard).or_default().insert(tensor);
        }
        let mut owners = BTreeMap::new();
        for (shard, tensors) in shards {
            let file = self.add_file(&folder.join(shard), Some(&tensors), &mut owners)?;
            if let Some(tensor) = tensors.iter().find(|tensor| file.find(tensor).is_none()) {
                let (path, tensor, shard) = (index.to_owned(), (*tensor).to_owned(), shard.to_owned());
                return Err(ImportError::NotInShard { path, tensor, shard });
            }
        }
        Ok(())
    }

    /// Adds the tensors of a file, only those of `wanted` if it is given.
    fn add_file(
        &mut self,
        path: &Path,
        wanted: Option<&BTreeSet<&str>>,
        owners: &mut BTreeMap<Rc<str>, PathBuf>,
    ) -> Result<SafetensorsFile, ImportError> {
        let file = SafetensorsFile::open(path)?;
        let text = path.to_str().ok_or_else(|| ImportError::PathText { path: path.to_owned() })?;
        let shown: Rc<str> = text.into();
        for stored in file.tensors() {
            if wanted.is_some_and(|wanted| !wanted.contains(stored.name.as_str())) {
                continue;
            }
            let name: Rc<str> = stored.name.as_str().into();
            if let Some(first) = owners.insert(name.clone(), path.to_owned()) {
                let (second, tensor) = (path.to_owned(), stored.name.clone());
                return Err(ImportError::RepeatedTensor { first, second, tensor });
            }
            let (module, field) = stored.name.rsplit_once('.').unwrap_or(("", &stored.name));
            let tensor = Tensor {
                bits: bits_of_scalar(&file, stored)?,
                name,
                file: shown.clone(),
                dtype: stored.dtype.clone(),
                shape: stored.shape.iter().map(|extent| *extent as u64).collect(),
            };
            self.modules.entry(module.to_owned()).or_default().insert(field.to_owned(), tensor);
        }
        self.metadata.extend(file.metadata().iter().map(|(key, value)| (key.clone(), value.clone())));
        Ok(file)
    }
}

/// Reads a tensor of one element, if it is a scale of a whole tensor.
fn bits_of_scalar(file: &SafetensorsFile, stored: &StoredTensor) -> Result<Option<u64>, ImportError> {
    if !matches!(stored.shape[..], [] | [1]) || stored.end - stored.start > 8 {
        return Ok(None);
    }
    let raw = file.read(stored)?;
    let mut bits = [0; 8];
    bits.iter_mut().zip(&raw.bytes).for_each(|(to, byte)| *to = *byte);
    Ok(Some(u64::from_le_bytes(bits)))
}

/// Returns true for the name of a file in the same folder.
fn is_file_name(name: &str) -> bool {
    let path = Path::new(name);
    !name.contains(['/', '\\', '\0']) && path.file_name().is_some_and(|file| file == path.as_os_str())
}

/// Reads a JSON object.
fn object(path: &Path) -> Result<Value, ImportError> {
    let text = read_text(path)?;
    let value: Value =
        serde_json::from_str(&text).map_err(|source| ImportError::Json { path: path.to_owned(), source })?;
    if !value.is_object() {
        let reason = "it is not a JSON object".to_owned();
        return Err(ImportError::Malformed { path: path.to_owned(), reason });
    }
    Ok(value)
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
