//! Cache entries on disk: written atomically, and verified byte by byte when read.
//!
//! Reads follow no links and never block. Anything but a regular file is refused unopened, and no file is read beyond
//! the size that its manifest records.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::Reason;
use super::key::CacheKey;
use super::manifest::{LIBRARY, LOG, LONGEST_MANIFEST, MANIFEST, METADATA, Manifest, PRELUDE, SOURCE};
use crate::build::{Artifact, BuiltWith, Folder, Parts, Resources};
use crate::kernel::Metadata;
use crate::toolchain::{Tool, Version, known_bad};

/// The content of an entry.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub(super) manifest: Manifest,
    pub(super) files: BTreeMap<String, Vec<u8>>,
    description: Description,
}

/// Ownership policy for accepted entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Accepts entries owned by this user and writable by nobody else.
    Owner,
    /// Accepts any owner, as long as the manifest verifies: a tier belongs to its operator.
    Manifest,
}

/// Device and inode, which distinguish a folder from a later one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

/// The reason that an entry has no contents.
#[derive(Debug)]
pub(super) enum Unusable {
    /// The entry does not exist.
    Absent,
    /// The entry exists and is refused.
    Refused(Reason, Identity),
}

/// Stored description of a kernel: everything except its source and log.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Description {
    kernel: String,
    metadata: Metadata,
    resources: Resources,
    /// The tools that built it; absent in entries of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    built_with: Option<BuiltWith>,
}

impl Contents {
    /// Collects the entry contents of a built kernel.
    pub(super) fn of(key: CacheKey, built: &Artifact) -> io::Result<Contents> {
        let description = Description {
            kernel: built.kernel().to_owned(),
            metadata: built.metadata().clone(),
            resources: built.resources().clone(),
            built_with: built.tools().cloned(),
        };
        let mut described = serde_json::to_string_pretty(&description).map_err(io::Error::other)?;
        described.push('\n');
        let mut files = vec![
            (LIBRARY, built.read_library()?),
            (SOURCE, built.source().as_bytes().to_vec()),
            (LOG, built.log().as_bytes().to_vec()),
            (METADATA, described.into_bytes()),
        ];
        files.extend(built.prelude().map(|prelude| (PRELUDE, prelude.as_bytes().to_vec())));
        let manifest = Manifest::new(key, &files);
        let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
        Ok(Contents { manifest, files, description })
    }

    /// Checks each file against its manifest record, then checks that text and metadata parse.
    pub(super) fn new(manifest: Manifest, files: BTreeMap<String, Vec<u8>>) -> Result<Contents, Reason> {
        for record in &manifest.files {
            let missing = || Reason::Missing { name: record.name.clone() };
            let bytes = files.get(&record.name).ok_or_else(missing)?;
            record.check(bytes)?;
            if [SOURCE, PRELUDE, LOG].contains(&record.name.as_str())
                && let Err(error) = std::str::from_utf8(bytes)
            {
                return Err(Reason::Content { name: record.name.clone(), why: error.to_string() });
            }
        }
        let content = |why: String| Reason::Content { name: METADATA.to_owned(), why };
        let described = files.get(METADATA).map_or(&[][..], Vec::as_slice);
        let description: Description =
            serde_json::from_slice(described).map_err(|error| content(error.to_string()))?;
        if description.metadata.abi != manifest.abi {
            return Err(content(format!("it describes kernel ABI version {}", description.metadata.abi)));
        }
        Ok(Contents { manifest, files, description })
    }

    /// Reads the entry `key` at `path`.
    pub(super) fn read(path: &Path, key: &CacheKey, trust: Trust) -> Result<Contents, Unusable> {
        let stat = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Err(Unusable::Absent),
            Err(error) => {
                let nothing = Identity { device: 0, inode: 0 };
                return Err(Unusable::Refused(Reason::unreadable("the entry", &error.into()), nothing));
            }
        };
        let refused = |reason| Unusable::Refused(reason, Identity::of(&stat));
        check_stat("the entry", &stat, FileType::Directory, trust).map_err(refused)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match openat(CWD, path, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Err(Unusable::Absent),
            Err(error) => return Err(refused(Reason::unreadable("the entry", &error.into()))),
        };
        match Contents::read_folder(&folder, key, trust) {
            Ok(contents) => Ok(contents),
            // Eviction renames the whole entry away before it deletes files, so a vanished entry is absent, not
            // corrupt.
            Err(_) if gone(path, &stat) => Err(Unusable::Absent),
            Err(reason) => Err(refused(reason)),
        }
    }

    fn read_folder(folder: &OwnedFd, key: &CacheKey, trust: Trust) -> Result<Contents, Reason> {
        let names = list(folder)?;
        let bytes = read_file(folder, MANIFEST, LONGEST_MANIFEST, trust)?;
        let manifest = Manifest::parse(&bytes, key)?;
        if let Some(name) =
            names.into_iter().find(|name| name.as_str() != MANIFEST && manifest.file(name).is_none())
        {
            return Err(Reason::Unexpected { name });
        }
        let mut files = BTreeMap::new();
        for record in &manifest.files {
            files.insert(record.name.clone(), read_file(folder, &record.name, record.size, trust)?);
        }
        Contents::new(manifest, files)
    }

    /// Writes an entry into an empty folder. The manifest comes last.
    pub(super) fn write(&self, folder: &Path, mode: u32) -> io::Result<()> {
        let manifest = self.manifest.to_text();
        let files = self.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
        for (name, bytes) in files.chain([(MANIFEST, manifest.as_bytes())]) {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(mode).open(folder.join(name))?;
            file.write_all(bytes)?;
            // Sync before the entry becomes visible. Otherwise a power failure leaves a truncated entry that is
            // refused and rebuilt.
            file.sync_all()?;
        }
        sync_folder(folder)
    }

    /// Turns the contents into an artifact whose files lie in `folder`.
    pub(super) fn into_artifact(mut self, folder: Folder) -> Artifact {
        let mut text = |name: &str| {
            let bytes = self.files.remove(name)?;
            Some(String::from_utf8(bytes).expect("contents with text that is not UTF-8 are rejected"))
        };
        let (source, prelude, log) = (text(SOURCE), text(PRELUDE), text(LOG));
        let Description { kernel, metadata, resources, built_with } = self.description;
        Artifact::from_parts(Parts {
            folder,
            kernel,
            source: source.unwrap_or_default(),
            prelude,
            log: log.unwrap_or_default(),
            resources,
            metadata,
            built_with,
        })
    }

    /// Returns a reason if the entry was built with a tool version known to be bad for its target.
    pub(super) fn known_bad(&self) -> Option<Reason> {
        let BuiltWith { nvcc, cutlass } = self.description.built_with.as_ref()?;
        let Metadata { target, emulated, .. } = &self.description.metadata;
        // Emulated kernels are compiled for Hopper.
        let targets = [Some(target.as_str()), emulated.then_some("sm_90a")];
        [(Tool::Nvcc, nvcc), (Tool::Cutlass, cutlass)].into_iter().find_map(|(tool, version)| {
            let bad = known_bad(tool, Version::parse(version)?, targets.into_iter().flatten())?;
            let (tool, version) = (tool.name(), version.clone());
            Some(Reason::KnownBad { tool, version, why: bad.to_string() })
        })
    }

    /// The total size of the files, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.size).sum()
    }

    /// The library's bytes.
    pub(super) fn library(&self) -> &[u8] {
        self.files.get(LIBRARY).map_or(&[], Vec::as_slice)
    }

    /// The library's hash.
    pub(super) fn library_hash(&self) -> blake3::Hash {
        let record = self.manifest.file(LIBRARY);
        let hash = record.and_then(|record| blake3::Hash::from_hex(&record.blake3).ok());
        hash.expect("a manifest is only made or parsed with a library that has a hash")
    }
}

impl Identity {
    #[allow(clippy::unnecessary_cast, reason = "the types differ between processors")]
    fn of(stat: &Stat) -> Identity {
        Identity { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }

    /// The identity of the file at `path`; does not follow a link.
    pub(super) fn at(path: &Path) -> io::Result<Identity> {
        Ok(Identity::of(&statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?))
    }
}

/// Syncs a folder, so that renames in it survive a power failure. Ignored on file systems that cannot sync folders.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

/// Removes the file or folder at `path`; removes a link itself, not its target.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return fs::remove_file(path);
    }
    // Entries are read-only, and deleting files requires write access to their folder.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(folder) = openat(CWD, path, flags, Mode::empty()) {
        let _ = rustix::fs::fchmod(&folder, Mode::RWXU);
    }
    fs::remove_dir_all(path)
}

/// The size of a file, or of the files in a folder, in bytes; follows no links.
pub(super) fn size(path: &Path) -> u64 {
    // Above the file count of any entry; bounds the walk of an unknown folder.
    const MOST: usize = 1000;
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let files = fs::read_dir(path).into_iter().flatten().take(MOST).filter_map(Result::ok);
    files.filter_map(|file| Some(fs::symlink_metadata(file.path()).ok()?.len())).sum()
}

/// Reads the kernel's name and target for display, unverified.
pub(super) fn describe(path: &Path) -> Option<(String, String)> {
    const LONGEST: u64 = 1 << 20;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(CWD, path, flags, Mode::empty()).ok()?;
    let size = u64::try_from(statat(&folder, METADATA, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_size).ok()?;
    let bytes = read_file(&folder, METADATA, size.min(LONGEST), Trust::Owner).ok()?;
    let description: Description = serde_json::from_slice(&bytes).ok()?;
    Some((printable(&description.kernel), printable(&description.metadata.target)))
}

fn gone(path: &Path, stat: &Stat) -> bool {
    Identity::at(path).ok() != Some(Identity::of(stat))
}

/// Lists the names in an entry. Stops at more names than an entry can have, before they fill memory.
fn list(folder: &OwnedFd) -> Result<Vec<String>, Reason> {
    const MOST: usize = 16;
    let unreadable = |error: Errno| Reason::unreadable("the entry", &error.into());
    let mut names = Vec::new();
    for entry in Dir::read_from(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if is_dots(entry.file_name()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if names.len() == MOST {
            return Err(Reason::Unexpected { name: printable(&name) });
        }
        names.push(printable(&name));
    }
    Ok(names)
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Escapes and shortens an untrusted name for use in messages.
pub(super) fn printable(name: &str) -> String {
    name.escape_default().take(100).collect()
}

/// Reads one file of an entry: at most `expected` bytes plus one, which reveals a file that is too long.
fn read_file(folder: &OwnedFd, name: &str, expected: u64, trust: Trust) -> Result<Vec<u8>, Reason> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Reason::Missing { name: name.to_owned() },
        _ => Reason::unreadable(name, &error),
    };
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| unreadable(error.into()))?;
    check_stat(name, &stat, FileType::RegularFile, trust)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty()).map_err(|error| unreadable(error.into()))?;
    // Check the open file again: it may have been replaced after the first check.
    let stat = fstat(&file).map_err(|error| unreadable(error.into()))?;
    check_stat(name, &stat, FileType::RegularFile, trust)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let is_manifest = name == MANIFEST;
    if size > expected || (!is_manifest && size != expected) {
        return Err(if is_manifest {
            Reason::Manifest { why: format!("it has {size} bytes, above the limit") }
        } else {
            Reason::Size { name: name.to_owned(), found: size, expected }
        });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0).saturating_add(1));
    File::from(file).take(expected.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn check_stat(what: &str, stat: &Stat, wanted: FileType, trust: Trust) -> Result<(), Reason> {
    let found = FileType::from_raw_mode(stat.st_mode);
    if found != wanted {
        let found = match found {
            FileType::Symlink => "a symbolic link",
            FileType::Directory => "a folder",
            FileType::RegularFile => "a file",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            _ => "a file of unknown type",
        };
        return Err(Reason::Kind { what: what.to_owned(), found });
    }
    if trust == Trust::Manifest {
        return Ok(());
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Reason::ForeignOwner { what: what.to_owned(), user: stat.st_uid });
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return Err(Reason::Writable { what: what.to_owned() });
    }
    Ok(())
}
