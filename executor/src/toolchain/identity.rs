//! CUTLASS identity: distinguishes versions and modified headers, so that cached kernels are not mixed up.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::{fs, io};

use super::locate::Toolchain;
use super::pins::Part;
use super::tree::{self, CUTLASS, Depth};
use crate::files::hash_of;
use crate::parallel;
use crate::transient::Transient;

/// A CUTLASS identity, with the header files' state when it was determined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CutlassState {
    /// The identity in cache keys.
    pub identity: String,
    /// A hash of the headers' names, sizes and times. A different one means that they were modified, perhaps back and
    /// forth.
    fingerprint: blake3::Hash,
}

/// The identity in keys of kernels built without CUTLASS.
pub const NO_CUTLASS: &str = "none";

impl Toolchain {
    /// The identity of this CUTLASS in cache keys: its version if it is the pinned package; otherwise its version and
    /// a digest of header names and contents; [`NO_CUTLASS`] without CUTLASS. The digest takes about 50 ms on two
    /// cores. A process repeats it only if a header's size or times change.
    pub fn cutlass_identity(&self) -> String {
        self.cutlass_state().identity
    }

    /// The current identity. Checks every header's metadata, and reads the headers if any changed.
    pub(crate) fn cutlass_state(&self) -> CutlassState {
        static KNOWN: LazyLock<Mutex<BTreeMap<PathBuf, CutlassState>>> = LazyLock::new(Mutex::default);
        let Some(cutlass) = &self.cutlass else {
            return CutlassState { identity: NO_CUTLASS.to_owned(), fingerprint: fingerprint(&[]) };
        };
        let include = cutlass.include();
        // Held throughout, so that concurrent callers compute it once.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken before reading: changes during reading are noticed next time.
        let fingerprint = fingerprint(&include);
        if let Some(state) = known.get(&cutlass.path).filter(|state| state.fingerprint == fingerprint) {
            return state.clone();
        }
        let (identity, passes) = if is_pinned(&cutlass.path) {
            (cutlass.version.clone(), false)
        } else {
            let (digest, passes) = digest(&include);
            (format!("{}+{digest}", cutlass.version), passes)
        };
        let state = CutlassState { identity, fingerprint };
        // A digest that lacks a header because of a transient error is not stored. The next call then finds a
        // difference, and no kernel stays in the cache under this key.
        if !passes {
            known.insert(cutlass.path.clone(), state.clone());
        }
        state
    }
}

/// The maximum size of a header, in bytes.
const LARGEST_HEADER: u64 = 64 << 20;

fn is_pinned(cutlass: &Path) -> bool {
    cutlass.ends_with(CUTLASS)
        && cutlass
            .ancestors()
            .nth(Path::new(CUTLASS).components().count())
            .is_some_and(|root| tree::check(root, Part::Cutlass, Depth::Quick).is_ok())
}

/// Hashes the metadata of the files in some folders, without reading their contents.
fn fingerprint(folders: &[PathBuf]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for root in folders {
        let mut files = Vec::new();
        let _ = collect(root, &mut Vec::new(), &mut files);
        files.sort_by(|left, right| left.0.cmp(&right.0));
        for (file, it) in files {
            let name = file.as_os_str().as_encoded_bytes();
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name);
            hasher.update(&it.len().to_le_bytes()).update(&it.ino().to_le_bytes());
            // Includes the change time, since a copy may set its own modification time.
            for time in [it.mtime(), it.mtime_nsec(), it.ctime(), it.ctime_nsec()] {
                hasher.update(&time.to_le_bytes());
            }
        }
    }
    hasher.finalize()
}

/// Digests the files in some folders, independently of the folders' location. Returns true if a file was unreadable
/// for a transient reason.
fn digest(folders: &[PathBuf]) -> (String, bool) {
    let mut passes = false;
    let mut hasher = blake3::Hasher::new_derive_key("fourfold headers v1");
    for (position, root) in folders.iter().enumerate() {
        let mut files = Vec::new();
        passes |= collect(root, &mut Vec::new(), &mut files);
        let mut files: Vec<PathBuf> = files.into_iter().map(|(file, _)| file).collect();
        files.sort();
        // An unreadable header cannot be compiled either; that is part of the identity.
        let hashes = parallel::map(&files, |file| match hash_of(file, LARGEST_HEADER) {
            Ok(hash) => (*hash.as_bytes(), false),
            Err(error) => ([0; 32], error.io().and_then(Transient::of).is_some()),
        });
        for (file, (hash, passed)) in files.iter().zip(&hashes) {
            passes |= passed;
            let name = file.strip_prefix(root).unwrap_or(file).as_os_str().as_encoded_bytes();
            hasher.update(&(position as u64).to_le_bytes()).update(&(name.len() as u64).to_le_bytes());
            hasher.update(name).update(hash);
        }
    }
    (hasher.finalize().to_hex()[..32].to_owned(), passes)
}

/// Collects the files in a folder. `above` lists its parents, which ends cycles of links. Returns true if something
/// was unreadable for a transient reason.
fn collect(folder: &Path, above: &mut Vec<(u64, u64)>, files: &mut Vec<(PathBuf, fs::Metadata)>) -> bool {
    let passes = |error: &io::Error| Transient::of(error).is_some();
    let metadata = match fs::metadata(folder) {
        Ok(metadata) => metadata,
        Err(error) => return passes(&error),
    };
    let identity = (metadata.dev(), metadata.ino());
    if above.contains(&identity) {
        return false;
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return passes(&error),
    };
    above.push(identity);
    let mut any = false;
    for entry in entries {
        // Follows links, as the compiler does.
        match entry.and_then(|entry| Ok((entry.path(), fs::metadata(entry.path())?))) {
            Ok((path, metadata)) if metadata.is_dir() => any |= collect(&path, above, files),
            Ok((path, metadata)) if metadata.is_file() => files.push((path, metadata)),
            Ok(_) => {}
            Err(error) => any |= passes(&error),
        }
    }
    above.pop();
    any
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_changed_header_changes_the_digest_and_the_place_does_not() {
        let make = |content: &str| {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("include/cutlass")).unwrap();
            fs::write(root.path().join("include/cutlass/gemm.h"), content).unwrap();
            fs::write(root.path().join("include/empty.h"), "").unwrap();
            symlink(root.path().join("include"), root.path().join("include/cutlass/round")).unwrap();
            root
        };
        let of = |root: &Path| digest(&[root.join("include"), root.join("tools")]).0;
        let first = make("a");
        // The cycle ends, and contributes nothing.
        let plain = of(first.path());
        assert_eq!(plain.len(), 32);
        fs::remove_file(first.path().join("include/cutlass/round")).unwrap();
        assert_eq!(of(first.path()), plain);
        let second = make("a");
        assert_eq!(of(second.path()), plain);
        fs::write(second.path().join("include/cutlass/gemm.h"), "b").unwrap();
        assert_ne!(of(second.path()), plain);
        fs::write(second.path().join("include/cutlass/gemm.h"), "a").unwrap();
        fs::rename(second.path().join("include/empty.h"), second.path().join("include/void.h")).unwrap();
        assert_ne!(of(second.path()), plain);
    }
}
