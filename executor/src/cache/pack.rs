//! Packs: files that hold built kernels, and serve as tiers.
//!
//! A pack is a safetensors file. Each file of an entry is a tensor of bytes, named `KEY/NAME`, such as
//! `0f3a…/kernel.so`. The manifest of each entry has the hashes of its files, as in every tier.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;

use serde::Serialize;

use super::entry::Contents;
use super::error::CacheError;
use super::key::CacheKey;
use super::manifest::MANIFEST;
use crate::build::Artifact;
use crate::causes::chain;
use crate::data::{DataFile, RawTensor, SafetensorsFile, write_data};

/// The contents of a written pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Packed {
    /// The number of distinct kernels.
    pub kernels: usize,
    /// The total size of their files in bytes.
    pub bytes: u64,
}

/// Checks that a pack can be written to a path: its folder exists, and the path is absent or a pack.
///
/// # Errors
/// [`CacheError::Pack`] with the problem.
pub fn check_pack_place(path: &Path) -> Result<(), CacheError> {
    let failed = |reason: String| CacheError::Pack { path: path.to_owned(), reason };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(failed(format!("the folder `{}` does not exist", folder.display())));
    }
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error.to_string())),
        Ok(_) if is_pack(path) => Ok(()),
        Ok(_) => Err(failed("it exists and is not a pack, so it is not replaced".to_owned())),
    }
}

/// True if every tensor of a safetensors file is named as a file of an entry.
fn is_pack(path: &Path) -> bool {
    let is_file = |name: &str| name.split_once('/').is_some_and(|(key, _)| key.parse::<CacheKey>().is_ok());
    SafetensorsFile::open(path).is_ok_and(|file| file.tensors().iter().all(|tensor| is_file(&tensor.name)))
}

/// Writes kernels into one file, which serves as a read-only tier ([`CacheOptions::tiers`](super::CacheOptions::tiers)).
/// A kernel given twice is written once. The file is written atomically, and replaces an existing one:
/// see [`check_pack_place`].
///
/// # Errors
/// [`CacheError::Pack`] when a library cannot be read or the file cannot be written.
pub fn write_pack(path: &Path, kernels: &[(CacheKey, &Artifact)]) -> Result<Packed, CacheError> {
    let failed = |reason: String| CacheError::Pack { path: path.to_owned(), reason };
    let mut files = HashMap::new();
    let mut known = BTreeSet::new();
    for (key, artifact) in kernels.iter().filter(|(key, _)| known.insert(*key)) {
        let Contents { manifest, files: contents, .. } = Contents::of(*key, artifact)
            .map_err(|error| failed(format!("cannot read `{}`: {error}", artifact.library().display())))?;
        let of_entry = contents.into_iter().chain([(MANIFEST.to_owned(), manifest.to_text().into_bytes())]);
        files.extend(of_entry.map(|(name, bytes)| {
            let tensor = RawTensor { dtype: "U8".to_owned(), dims: vec![bytes.len()], bytes };
            (format!("{key}/{name}"), tensor)
        }));
    }
    let bytes = files.values().map(|file| file.bytes.len() as u64).sum();
    let data = DataFile { other: files, ..DataFile::default() };
    write_data(path, &data).map_err(|error| failed(chain(&error)))?;
    Ok(Packed { kernels: known.len(), bytes })
}
