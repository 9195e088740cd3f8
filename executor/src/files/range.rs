//! Hashes of ranges of bytes of files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The most bytes that are read at once.
const PART: u64 = 1 << 20;

/// The BLAKE3 hash of a range of bytes of a file, by which a change of the file is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeHash {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// The hash.
    pub blake3: [u8; 32],
}

impl RangeHash {
    /// Hashes a range of an open file, part by part.
    pub(crate) fn of(file: &File, start: u64, end: u64) -> io::Result<RangeHash> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = vec![0; end.saturating_sub(start).min(PART) as usize];
        let mut at = start;
        while at < end {
            let part = &mut bytes[..(end - at).min(PART) as usize];
            file.read_exact_at(part, at)?;
            hasher.update(part);
            at += part.len() as u64;
        }
        Ok(RangeHash { start, end, blake3: *hasher.finalize().as_bytes() })
    }
}
