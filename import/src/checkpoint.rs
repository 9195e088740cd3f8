//! The tensors and the configuration of a checkpoint, without the tensors' data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use fourfold_executor::{SafetensorsFile, StoredTensor, TensorReference, files_in, is_present};
use serde_json::Value;

use crate::error::ImportError;
use crate::imported::{LeftOut, LeftOutCode};
use crate::json;
use crate::shards::Index;

/// The maximum size of a configuration file in bytes. The JSON parser limits its depth to 128.
const CONFIG_LIMIT: u64 = 4 << 20;
/// The maximum number of extents that a message shows.
const SHOWN_EXTENTS: usize = 8;

/// The name ending of an index, which assigns tensors to shards.
const INDEX: &str = ".safetensors.index.json";
/// The name of an unsharded checkpoint.
const MODEL: &str = "model.safetensors";

/// A checkpoint: the headers of its files, and its configuration.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    /// The tensors by module, and by the last part of their names.
    pub(crate) modules: BTreeMap<String, Tensors>,
    /// The maps `__metadata__` of the headers, joined.
    pub(crate) metadata: BTreeMap<String, String>,
    /// config.json; null if it is missing.
    pub(crate) config: Value,
    /// hf_quant_config.json; null if it is missing.
    pub(crate) hf_quant_config: Value,
    /// quantization_config.json; null if it is missing.
    pub(crate) quantization_config: Value,
    /// Files and tensors that are not read.
    pub(crate) left_out: Vec<LeftOut>,
}

/// The tensors of a module, by the last part of their names. A header may have a module per tensor, and a map would
/// take ten times as much memory.
#[derive(Debug)]
pub(crate) struct Tensors(Vec<(String, Tensor)>);

impl Tensors {
    pub(crate) fn get(&self, field: &str) -> Option<&Tensor> {
        let at = self.0.binary_search_by(|(name, _)| name.as_str().cmp(field)).ok()?;
        Some(&self.0[at].1)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> + Clone {
        self.0.iter().map(|(field, tensor)| (field.as_str(), tensor))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Tensor> {
        self.0.iter().map(|(_, tensor)| tensor)
    }
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
        format!("{} {}", self.dtype, extents_text(&self.shape))
    }
}

/// A shape for messages, shortened if it has many extents.
pub(crate) fn extents_text(shape: &[u64]) -> String {
    match shape.get(..SHOWN_EXTENTS) {
        Some(first) if shape.len() > SHOWN_EXTENTS => {
            let first = format!("{first:?}");
            format!("{}, … {} extents]", first.trim_end_matches(']'), shape.len())
        }
        _ => format!("{shape:?}"),
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
        let files = files_in(folder, "safetensors")?;
        let model = folder.join(MODEL);
        let is_named = files.contains(&model);
        if let Some(path) = index {
            let index = Index::read(path)?;
            if !is_named || index.shards.keys().all(|shard| shard == MODEL) {
                checkpoint.add_shards(folder, path, &index)?;
                checkpoint.sort();
                return Ok(Some(checkpoint));
            }
            // As in Hugging Face's loader.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let message = format!("`{MODEL}` is read in place of the shards that it lists");
            checkpoint.leave_out(&name, LeftOutCode::UnusedFile, message);
        }
        let files = if is_named { vec![model] } else { files };
        if files.is_empty() || !(any || is_named) {
            return Ok(None);
        }
        let mut owners = BTreeMap::new();
        for file in &files {
            checkpoint.add_file(file, None, &mut owners)?;
        }
        checkpoint.sort();
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
        checkpoint.sort();
        Ok(checkpoint)
    }

    fn configured(folder: &Path) -> Result<Checkpoint, ImportError> {
        let read = |name: &str| {
            let path = folder.join(name);
            if is_present(&path)? { json::configuration(&path, CONFIG_LIMIT) } else { Ok(Value::Null) }
        };
        Ok(Checkpoint {
            config: read("config.json")?,
            hf_quant_config: read("hf_quant_config.json")?,
            quantization_config: read("quantization_config.json")?,
            ..Checkpoint::default()
        })
    }

    /// Sorts the tensors of each module, so that they can be found.
    fn sort(&mut self) {
        for tensors in self.modules.values_mut() {
            tensors.0.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
            tensors.0.shrink_to_fit();
        }
    }

    fn leave_out(&mut self, name: &str, code: LeftOutCode, message: String) {
        self.left_out.push(LeftOut { name: name.to_owned(), code, message });
    }

    /// Adds the shards of an index.
    fn add_shards(&mut self, folder: &Path, path: &Path, index: &Index) -> Result<(), ImportError> {
        let mut owners = BTreeMap::new();
        for (shard, tensors) in &index.shards {
            let wanted: BTreeSet<&str> = tensors.iter().map(String::as_str).collect();
            let file = self.add_file(&folder.join(shard), Some(&wanted), &mut owners)?;
            if let Some(tensor) = tensors.iter().find(|tensor| file.find(tensor).is_none()) {
                let (path, tensor, shard) = (path.to_owned(), tensor.clone(), shard.clone());
                return Err(ImportError::NotInShard { path, tensor, shard });
            }
            let mut others = file.tensors().iter().filter(|stored| !wanted.contains(stored.name.as_str()));
            if let Some(first) = others.next() {
                let count = 1 + others.count();
                let message =
                    format!("the index does not list {count} of its tensors, such as `{}`", first.name);
                self.leave_out(shard, LeftOutCode::UnusedTensor, message);
            }
        }
        Ok(())
    }

    /// Adds the tensors of a file, only those of `wanted` if it is given.
    fn add_file(
        &mut self,
        path: &Path,
        wanted: Option<&BTreeSet<&str>>,
        owners: &mut BTreeMap<Rc<str>, Rc<str>>,
    ) -> Result<SafetensorsFile, ImportError> {
        let file = SafetensorsFile::open(path)?;
        let text = path.to_str().ok_or_else(|| ImportError::PathText { path: path.to_owned() })?;
        let shown: Rc<str> = text.into();
        for stored in file.tensors() {
            if wanted.is_some_and(|wanted| !wanted.contains(stored.name.as_str())) {
                continue;
            }
            let name: Rc<str> = stored.name.as_str().into();
            if let Some(first) = owners.insert(name.clone(), shown.clone()) {
                let (first, second, tensor) = (PathBuf::from(&*first), path.to_owned(), stored.name.clone());
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
            // Sorted when every file is read.
            let tensors = self.modules.entry(module.to_owned());
            let tensors = tensors.or_insert_with(|| Tensors(Vec::with_capacity(1)));
            tensors.0.push((field.to_owned(), tensor));
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

#[cfg(test)]
mod tests {
    use super::extents_text;

    #[test]
    fn a_message_shows_few_extents() {
        assert_eq!(extents_text(&[]), "[]");
        assert_eq!(extents_text(&[2; 8]), "[2, 2, 2, 2, 2, 2, 2, 2]");
        assert_eq!(extents_text(&[1; 100_000]), "[1, 1, 1, 1, 1, 1, 1, 1, … 100000 extents]");
    }
}
