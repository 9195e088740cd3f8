//! How a cache does: what it holds, what of it is refused, and whether there is room for more.

use std::path::PathBuf;
use std::time::SystemTime;

use rustix::fs::{Access, access, statvfs};
use serde::Serialize;

use super::failure_store::count_lasting;
use crate::cache::{Cache, CacheError, CacheOptions, EntryInfo, Refusal, unix_seconds};
use crate::toolchain::obstacle;

/// How a cache does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheHealth {
    /// The folder with everything about kernels.
    #[serde(serialize_with = "crate::files::serialize_path")]
    pub folder: PathBuf,
    /// How many kernels it holds, refused ones included.
    pub entries: usize,
    /// The bytes of their files.
    pub bytes: u64,
    /// How many bytes it may have.
    pub capacity: u64,
    /// How many of the kernels some process uses now.
    pub in_use: usize,
    /// When one was used last.
    #[serde(serialize_with = "unix_seconds_if_any")]
    pub last_use: Option<SystemTime>,
    /// Whether every byte of the kernels was verified, or they were only counted and measured.
    pub verified: bool,
    /// What is refused, and why; nothing where nothing was verified.
    pub refused: Vec<Refusal>,
    /// How many kernels are known not to build, by some compiler that is or was here.
    pub known_bad: usize,
    /// Whether kernels can be added.
    pub writable: bool,
    /// The bytes that the file system has left for this user; `None` if it does not say.
    pub free_bytes: Option<u64>,
}

impl CacheHealth {
    /// Looks at the cache that these options mean, and changes nothing. `None` where it does not exist yet. To `verify`
    /// takes as long as reading all of it.
    ///
    /// # Errors
    /// As [`Cache::look`], and when the folder cannot be read.
    pub fn of(options: &CacheOptions, verify: bool) -> Result<Option<CacheHealth>, CacheError> {
        Cache::look(options)?.map(|cache| cache.health(verify)).transpose()
    }
}

impl Cache {
    /// How it does; see [`CacheHealth::of`]. Nothing is changed.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn health(&self, verify: bool) -> Result<CacheHealth, CacheError> {
        let entries: Vec<EntryInfo> = self.inventory(false)?;
        let found = if verify { self.inspect()? } else { Vec::new() };
        let refused = found.into_iter().filter_map(|found| found.refusal).collect();
        let folder = self.folder().to_owned();
        let known_bad = count_lasting(&folder.join("failures"));
        // What is missing is made when it is needed.
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
