//! The manifest of an entry: format, key, kernel ABI version, and each file's size and hash.
//!
//! A manifest has exactly one valid text, so any changed byte is detected. File names come from a fixed list, so no
//! name leads outside the entry.

use serde::{Deserialize, Serialize};

use super::error::Reason;
use super::key::CacheKey;
use crate::kernel::ABI_VERSION;

/// The format version of entries.
pub(super) const FORMAT: u64 = 1;
/// The manifest's file name.
pub(super) const MANIFEST: &str = "manifest.json";
/// The maximum size of a manifest, in bytes.
pub(super) const LONGEST_MANIFEST: u64 = 16 << 10;
/// The maximum size of a file, in bytes. Kernels take one or two megabytes.
pub(super) const LONGEST_FILE: u64 = 256 << 20;

/// The library's file name.
pub(super) const LIBRARY: &str = "kernel.so";
/// The source's file name.
pub(super) const SOURCE: &str = "kernel.cu";
/// The file name of the text that the compiler reads before the source.
pub(super) const PRELUDE: &str = "prelude.cuh";
/// The compiler log's file name.
pub(super) const LOG: &str = "build.log";
/// The file name of the kernel's resources and self-description.
pub(super) const METADATA: &str = "metadata.json";

/// The file names of an entry without its manifest, in order, and whether each is required.
const NAMES: [(&str, bool); 5] =
    [(LOG, true), (SOURCE, true), (LIBRARY, true), (METADATA, true), (PRELUDE, false)];

/// The parsed manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: u64,
    pub(super) key: CacheKey,
    pub(super) abi: u32,
    /// Sorted by name.
    pub(super) files: Vec<FileRecord>,
}

/// One file of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRecord {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) blake3: String,
}

impl Manifest {
    /// Creates the manifest of these files.
    pub(super) fn new(key: CacheKey, files: &[(&'static str, Vec<u8>)]) -> Manifest {
        let mut records: Vec<FileRecord> =
            files.iter().map(|(name, bytes)| FileRecord::new(name, bytes)).collect();
        records.sort_by(|left, right| left.name.cmp(&right.name));
        Manifest { format: FORMAT, key, abi: ABI_VERSION, files: records }
    }

    /// The manifest's one valid text.
    pub(super) fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a manifest holds only numbers and strings");
        text.push('\n');
        text
    }

    /// Reads and checks the manifest of the entry `key`.
    pub(super) fn parse(bytes: &[u8], key: &CacheKey) -> Result<Manifest, Reason> {
        #[derive(Deserialize)]
        struct Format {
            format: u64,
        }
        let damaged = |why: &str| Reason::Manifest { why: why.to_owned() };
        let wrong = |error: serde_json::Error| Reason::Manifest { why: error.to_string() };
        // Checked first: other formats may have other fields.
        let Format { format } = serde_json::from_slice(bytes).map_err(wrong)?;
        if format != FORMAT {
            return Err(Reason::OldFormat { found: format, expected: FORMAT });
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(wrong)?;
        if manifest.to_text().as_bytes() != bytes {
            return Err(damaged("its text is not canonical"));
        }
        if manifest.key != *key {
            return Err(Reason::OtherKey { found: manifest.key.to_string() });
        }
        if manifest.abi != ABI_VERSION {
            return Err(Reason::OldAbi { found: manifest.abi, expected: ABI_VERSION });
        }
        for file in &manifest.files {
            if !NAMES.iter().any(|(name, _)| *name == file.name) {
                return Err(damaged(&format!("it lists the unknown file `{}`", file.name.escape_default())));
            }
            if file.size > LONGEST_FILE {
                return Err(damaged(&format!(
                    "{} is listed with {} bytes, above the limit",
                    file.name, file.size
                )));
            }
            if blake3::Hash::from_hex(&file.blake3).is_err() {
                return Err(damaged(&format!("{} has no valid hash", file.name)));
            }
        }
        if !manifest.files.is_sorted_by(|left, right| left.name < right.name) {
            return Err(damaged("its files are not sorted by name"));
        }
        match NAMES.iter().find(|(name, must)| *must && manifest.file(name).is_none()) {
            Some((name, _)) => Err(damaged(&format!("it does not list {name}"))),
            None => Ok(manifest),
        }
    }

    pub(super) fn file(&self, name: &str) -> Option<&FileRecord> {
        self.files.iter().find(|file| file.name == name)
    }
}

impl FileRecord {
    fn new(name: &str, bytes: &[u8]) -> FileRecord {
        let blake3 = blake3::hash(bytes).to_hex().to_string();
        FileRecord { name: name.to_owned(), size: bytes.len() as u64, blake3 }
    }

    /// Checks the file's bytes against size and hash.
    pub(super) fn check(&self, bytes: &[u8]) -> Result<(), Reason> {
        let found = bytes.len() as u64;
        if found != self.size {
            return Err(Reason::Size { name: self.name.clone(), found, expected: self.size });
        }
        if blake3::hash(bytes).to_hex().as_str() != self.blake3 {
            return Err(Reason::Hash { name: self.name.clone() });
        }
        Ok(())
    }
}
