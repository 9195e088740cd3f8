//! Cache health: contents, refused entries, and space.

use std::path::PathBuf;
use std::time::SystemTime;

use rustix::fs::{Access, access, statvfs};
use serde::Serialize;

use super::failure_store::count_lasting;
use crate::cache::{Cache, CacheError, CacheOptions, EntryInfo, Refusal, unix_seconds};
use crate::toolchain::obstacle;

/// The state of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheHealth {
    /// The `kernels` folder.
    #[serde(serialize_with = "crate::files::serialize_path")]
    pub folder: PathBuf,
    /// The number of kernels, refused ones included.
    pub entries: usize,
    /// The total size of their files, in bytes.
    pub bytes: u64,
    /// The maximum total size, in bytes.
    pub capacity: u64,
    /// The number of kernels in use by a process.
    pub in_use: usize,
    /// The time of the last use of any kernel.
    #[serde(serialize_with = "unix_seconds_if_any")]
    pub last_use: Option<SystemTime>,
    /// True if every byte was verified; otherwise kernels were only counted and measured.
    pub verified: bool,
    /// Refused entries with reasons; empty unless verified.
    pub refused: Vec<Refusal>,
    /// The number of kernels with a lasting failure, under any compiler of this machine, present or past.
    pub known_bad: usize,
    /// True if kernels can be added.
    pub writable: bool,
    /// The free space for this user, in bytes; `None` if the file system does not report it.
    pub free_bytes: Option<u64>,
}

impl CacheHealth {
    /// Inspects a cache without changing it. Returns `None` if it does not exist yet. With `verify`, reads all of it.
    ///
    /// # Errors
    /// As [`Cache::look`], and when the folder cannot be read.
    pub fn of(options: &CacheOptions, verify: bool) -> Result<Option<CacheHealth>, CacheError> {
        Cache::look(options)?.map(|cache| cache.health(verify)).transpose()
    }
}

impl Cache {
    /// Inspects the cache without changing it; see [`CacheHealth::of`].
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn health(&self, verify: bool) -> Result<CacheHealth, CacheError> {
        let entries: Vec<EntryInfo> = self.inventory(false)?;
        let found = if verify { self.inspect()? } else { Vec::new() };
        let refused = found.into_iter().filter_map(|found| found.refusal).collect();
        let folder = self.folder().to_owned();
        let known_bad = count_lasting(&folder.join("failures"));
        // Missing folders are created on demand.
        let places = ["", "entries", "use", "tmp"].map(|name| folder.join(name));
        let mut places = places.iter().filter(|place| place.exists());
        let free = statvfs(&folder).ok().map(|found| found.f_bavail.saturating_mul(found.f_frsize));
        Ok(CacheHealth {
            entries: entries.len(),
            bytes: entries.iter().map(|entry| entry.bytes).sum(),
            capacity: self.capacity(),
            in_use: entries.iter().filter(|entry| entry.in_use).count(),
            last_use: entries.iter().map(|entry| entry.last_use).max(),
            verified: verify,
            refused,
            known_bad,
            writable: places.all(|place| access(place, Access::WRITE_OK).is_ok())
                && obstacle(&folder).is_none_or(|found| found.prevents_loading()),
            free_bytes: free,
            folder,
        })
    }
}

fn unix_seconds_if_any<S: serde::Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => unix_seconds(time, serializer),
        None => serializer.serialize_none(),
    }
}
