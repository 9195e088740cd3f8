//! Packs: files that hold built kernels, and serve as tiers.
//!
//! A pack is a safetensors file. Each file of an entry is a tensor of bytes, named `KEY/NAME`, such as
//! `0f3a…/kernel.so`. The manifest of each entry has the hashes of its files, as in every tier.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde::Serialize;

use super::entry::Contents;
use super::error::CacheError;
use super::key::CacheKey;
use super::manifest::MANIFEST;
use crate::build::Artifact;
use crate::causes::chain;
use crate::data::{DataFile, RawTensor, write_data};

/// The contents of a written pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Packed {
    /// The number of distinct kernels.
    pub kernels: usize,
    /// The total size of their files in bytes.
    pub bytes: u64,
}

/// Writes kernels into one file, which serves as a read-only tier ([`CacheOptions::tiers`](super::CacheOptions::tiers)).
/// A kernel given twice is written once. The file is written atomically, and replaces an existing one.
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
