//! A tier in one file: a pack of kernels, which [`write_pack`](crate::cache::write_pack) wrote.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Store;
use crate::cache::entry::Contents;
use crate::cache::error::Reason;
use crate::cache::key::CacheKey;
use crate::cache::manifest::{LONGEST_MANIFEST, MANIFEST, Manifest};
use crate::causes::chain;
use crate::data::SafetensorsFile;

pub(super) struct PackStore {
    path: PathBuf,
}

impl PackStore {
    pub(super) fn new(path: PathBuf) -> PackStore {
        PackStore { path }
    }

    fn open(&self) -> Result<SafetensorsFile, String> {
        SafetensorsFile::open(&self.path).map_err(|error| chain(&error))
    }
}

/// Reads one file of an entry, of at most `longest` bytes; `None` if it is absent.
fn read(pack: &SafetensorsFile, key: &CacheKey, name: &str, longest: u64) -> Result<Option<Vec<u8>>, Reason> {
    let Some(stored) = pack.find(&format!("{key}/{name}")) else { return Ok(None) };
    let found = stored.end.saturating_sub(stored.start);
    if found > longest {
        return Err(Reason::Size { name: name.to_owned(), found, expected: longest });
    }
    let read = pack.read(stored).map_err(|error| Reason::Unreachable { why: chain(&error) })?;
    Ok(Some(read.bytes))
}

impl Store for PackStore {
    fn fetch(&self, key: &CacheKey) -> Result<Option<Contents>, Reason> {
        let pack = self.open().map_err(|why| Reason::Unreachable { why })?;
        let Some(manifest) = read(&pack, key, MANIFEST, LONGEST_MANIFEST)? else { return Ok(None) };
        let manifest = Manifest::parse(&manifest, key)?;
        let mut files = BTreeMap::new();
        for record in &manifest.files {
            let missing = || Reason::Missing { name: record.name.clone() };
            let bytes = read(&pack, key, &record.name, record.size)?.ok_or_else(missing)?;
            files.insert(record.name.clone(), bytes);
        }
        Contents::new(manifest, files).map(Some)
    }

    fn reach(&self) -> Result<(), String> {
        self.open().map(drop)
    }

    fn push(&self, _: &Contents, _: bool) -> Result<(), String> {
        Err("a pack is written as a whole, by `fourfold pack`".to_owned())
    }
}
