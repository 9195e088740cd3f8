//! Sealed folders, which carry their files' hashes: written atomically, and verified when opened.
//!
//! `manifest.json` has the folder's format, and each file's size and BLAKE3 hash. `manifest.b3` has the manifest's
//! hash, in the format of `b3sum --check`. Files that the manifest does not list are ignored.
//!
//! A folder may come from an untrusted source: opening it never blocks, follows no links inside it, and reads no more
//! than the manifest announces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use fourfold_ir::Tensor;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, fstat, openat, renameat_with, statat};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use crate::data::{DataError, DataFile, write_data, write_tensors};
use crate::temporary::{forget_temporary, is_ending, register_temporary};

/// The name and version of a kind of sealed folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedFormat {
    /// The format's name.
    pub name: &'static str,
    /// The format's version.
    pub version: u32,
}

/// The reason that a sealed folder could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    /// The target folder has content that must not be lost.
    #[error("{}", occupied(folder, format, stranger.as_deref(), *is_changed))]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// The format to be written.
        format: &'static str,
        /// The file that was added or changed in a folder that otherwise has the format.
        stranger: Option<PathBuf>,
        /// True if this file was changed.
        is_changed: bool,
    },
    /// The folder does not have the expected format.
    #[error("`{}` is not a {format}: {reason}", folder.display())]
    Other {
        /// The folder.
        folder: PathBuf,
        /// The expected format.
        format: &'static str,
        /// The difference.
        reason: String,
    },
    /// Another version wrote the folder.
    #[error(
        "`{}` is a {format} of version {found}; this version of Fourfold reads version {expected}",
        folder.display()
    )]
    Version {
        /// The folder.
        folder: PathBuf,
        /// The folder's format.
        format: &'static str,
        /// The folder's version.
        found: u64,
        /// The supported version.
        expected: u32,
    },
    /// A file is missing, or is not a regular file.
    #[error("`{name}` is missing from `{}`", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The file's name in the folder.
        name: String,
    },
    /// A file has changed since it was written.
    #[error("`{name}` in `{}` was changed: {reason}", folder.display())]
    Changed {
        /// The folder.
        folder: PathBuf,
        /// The file's name in the folder.
        name: String,
        /// The difference.
        reason: String,
    },
    /// A name leads out of the folder, or is repeated.
    #[error("`{name}` is not a valid file name in `{}`", folder.display())]
    Name {
        /// The folder.
        folder: PathBuf,
        /// The name.
        name: String,
    },
    /// A file or folder could not be written or read.
    #[error("cannot {action} `{}`", path.display())]
    Disk {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Tensors could not be written.
    #[error(transparent)]
    Data(#[from] DataError),
}

fn occupied(folder: &Path, format: &str, stranger: Option<&Path>, is_changed: bool) -> String {
    let (folder, what) = (folder.display(), if is_changed { "changed" } else { "added" });
    match stranger {
        None => format!("`{folder}` is not empty and not a {format}"),
        Some(name) => {
            let name = name.display();
            format!(
                "`{folder}` is a {format} with the {what} file `{name}`, which would be lost; move the folder away, or \
                 name another"
            )
        }
    }
}

const MANIFEST: &str = "manifest.json";
const MANIFEST_HASH: &str = "manifest.b3";
/// The maximum size of a manifest in bytes, enough for thousands of files.
const LONGEST_MANIFEST: u64 = 4 << 20;
/// The maximum size of the hash line, in bytes.
const LONGEST_HASH: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: String,
    version: u64,
    about: Value,
    files: BTreeMap<String, Seal>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seal {
    bytes: u64,
    blake3: String,
}

/// A sealed folder being written, in a temporary folder beside its target. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct SealedWriter {
    target: PathBuf,
    format: SealedFormat,
    folder: Staging,
    files: BTreeMap<String, Seal>,
}

/// A writer's temporary folder. It is removed even if the program is interrupted.
#[derive(Debug)]
struct Staging {
    /// `None` once moved into place.
    inner: Option<TempDir>,
    path: PathBuf,
}

impl Staging {
    fn beside(parent: &Path) -> io::Result<Staging> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(".fourfold-").permissions(fs::Permissions::from_mode(0o777));
        let inner = builder.tempdir_in(parent)?;
        let path = inner.path().to_owned();
        register_temporary(&path);
        Ok(Staging { inner: Some(inner), path })
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the folder: it is no longer temporary.
    fn keep(mut self) {
        if let Some(inner) = self.inner.take() {
            let _ = inner.keep();
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        drop(self.inner.take());
        forget_temporary(&self.path);
    }
}

impl SealedWriter {
    /// Starts writing a folder at `target`. An empty folder is replaced, and so is one of this format, unless files in
    /// it were added or changed. Some may be missing.
    ///
    /// # Errors
    /// [`SealedError::Occupied`], or when the parent folder is not writable.
    pub fn begin(target: &Path, format: SealedFormat) -> Result<SealedWriter, SealedError> {
        let target = std::path::absolute(target).map_err(disk("find", target))?;
        check_place(&target, format)?;
        // In the same folder, so that the last step is a rename.
        let parent = target.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(disk("create", parent))?;
        let folder = Staging::beside(parent).map_err(disk("create a folder in", parent))?;
        Ok(SealedWriter { target, format, folder, files: BTreeMap::new() })
    }

    /// Adds a file; its name may include folders.
    ///
    /// # Errors
    /// When the name is invalid or already used, or the file cannot be written.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), SealedError> {
        let path = self.place(name)?;
        fs::write(&path, bytes).map_err(disk("write", &path))?;
        let seal = Seal { bytes: bytes.len() as u64, blake3: blake3::hash(bytes).to_hex().to_string() };
        self.files.insert(name.to_owned(), seal);
        Ok(())
    }

    /// Adds a copy of a file.
    ///
    /// # Errors
    /// When the name is invalid or already used, or the file cannot be read or written.
    pub fn copy(&mut self, name: &str, from: &Path) -> Result<(), SealedError> {
        if !fs::metadata(from).map_err(disk("read", from))?.is_file() {
            return Err(disk("copy", from)(io::Error::other("it is not a regular file")));
        }
        let path = self.place(name)?;
        fs::copy(from, &path).map_err(disk("copy", from))?;
        // The copied permissions may forbid removing or changing the copy.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).map_err(disk("write", &path))?;
        self.seal_file(name, &path)
    }

    /// Adds tensors, in the format of [`write_tensors`].
    ///
    /// # Errors
    /// When the name is invalid or already used, or the file cannot be written.
    pub fn write_tensors(&mut self, name: &str, tensors: &[(&str, &Tensor)]) -> Result<(), SealedError> {
        let path = self.place(name)?;
        write_tensors(&path, tensors)?;
        self.seal_file(name, &path)
    }

    /// Adds the tensors of data files, in the format of [`write_data`].
    ///
    /// # Errors
    /// When the name is invalid or already used, or the file cannot be written.
    pub fn write_data(&mut self, name: &str, data: &DataFile) -> Result<(), SealedError> {
        let path = self.place(name)?;
        write_data(&path, data)?;
        self.seal_file(name, &path)
    }

    /// Writes the manifest and publishes the folder atomically. [`Sealed::about`] returns `about`.
    ///
    /// # Errors
    /// When it cannot be written; any existing folder at its place then remains.
    pub fn seal(self, about: Value) -> Result<PathBuf, SealedError> {
        let SealedWriter { target, format, folder, files } = self;
        let manifest =
            Manifest { format: format.name.to_owned(), version: u64::from(format.version), about, files };
        let text = serde_json::to_string_pretty(&manifest)
            .map_err(|error| disk("write", folder.path())(io::Error::other(error)))?;
        if text.len() as u64 > LONGEST_MANIFEST {
            return Err(disk("write", &target)(io::Error::other("its manifest would exceed the size limit")));
        }
        let line = hash_line(&blake3::hash(text.as_bytes()).to_hex());
        for (name, text) in [(MANIFEST, text), (MANIFEST_HASH, line)] {
            let path = folder.path().join(name);
            fs::write(&path, text).map_err(disk("write", &path))?;
        }
        // A cancelled program must not publish its folder.
        if is_ending() {
            return Err(disk("write", &target)(io::ErrorKind::Interrupted.into()));
        }
        // Another process may have put something there meanwhile.
        check_place(&target, format)?;
        appear(folder, &target).map_err(disk("move the folder to", &target))?;
        Ok(target)
    }

    /// The path of a new file.
    fn place(&self, name: &str) -> Result<PathBuf, SealedError> {
        let taken = self.files.contains_key(name) || [MANIFEST, MANIFEST_HASH].contains(&name);
        if taken || !is_inside(name) {
            return Err(SealedError::Name { folder: self.target.clone(), name: name.to_owned() });
        }
        let path = self.folder.path().join(name);
        // One at a time: the writer's own folder must not be recreated after an interrupt has removed it.
        let mut folder = self.folder.path().to_owned();
        for part in Path::new(name).parent().into_iter().flat_map(Path::components) {
            folder.push(part);
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(disk("create", &folder)(error));
                }
                _ => {}
            }
        }
        Ok(path)
    }

    fn seal_file(&mut self, name: &str, path: &Path) -> Result<(), SealedError> {
        let seal = seal_of(path).map_err(disk("read", path))?;
        self.files.insert(name.to_owned(), seal);
        Ok(())
    }
}

/// A verified sealed folder.
#[derive(Clone, Debug)]
pub struct Sealed {
    folder: PathBuf,
    about: Value,
    names: Vec<String>,
}

impl Sealed {
    /// Opens a folder and verifies every file's hash.
    ///
    /// # Errors
    /// When the folder has another format or version, cannot be read, or a file is missing or changed.
    pub fn open(folder: &Path, format: SealedFormat) -> Result<Sealed, SealedError> {
        let other =
            |reason: String| SealedError::Other { folder: folder.to_owned(), format: format.name, reason };
        let text = match read_inside(folder, MANIFEST, LONGEST_MANIFEST) {
            Ok(text) => text,
            Err(Unread::Missing) => return Err(other(format!("it has no {MANIFEST}"))),
            Err(Unread::Other(reason)) => return Err(other(format!("its {MANIFEST} is invalid: {reason}"))),
            Err(Unread::Disk(error)) => return Err(disk("read", &folder.join(MANIFEST))(error)),
        };
        let fields: Value = serde_json::from_slice(&text)
            .map_err(|error| other(format!("its {MANIFEST} is corrupt: {error}")))?;
        if fields["format"] != format.name {
            return Err(other(format!("its {MANIFEST} describes another format")));
        }
        // Nothing else is known about another version, not even its hash scheme.
        if fields["version"] != format.version {
            return Err(SealedError::Version {
                folder: folder.to_owned(),
                format: format.name,
                found: fields["version"].as_u64().unwrap_or_default(),
                expected: format.version,
            });
        }
        let changed = |name: &str, reason: String| SealedError::Changed {
            folder: folder.to_owned(),
            name: name.to_owned(),
            reason,
        };
        let missing = |name: &str| SealedError::Missing { folder: folder.to_owned(), name: name.to_owned() };
        let unread = |name: &str, why: Unread| match why {
            Unread::Missing => missing(name),
            Unread::Other(reason) => changed(name, reason),
            Unread::Disk(error) => disk("read", &folder.join(name))(error),
        };
        let sealed =
            read_inside(folder, MANIFEST_HASH, LONGEST_HASH).map_err(|why| unread(MANIFEST_HASH, why))?;
        let sealed = String::from_utf8_lossy(&sealed);
        if sealed.split_whitespace().next() != Some(blake3::hash(&text).to_hex().as_str()) {
            return Err(changed(MANIFEST, format!("its hash differs from {MANIFEST_HASH}")));
        }
        let manifest: Manifest = serde_json::from_value(fields)
            .map_err(|error| other(format!("its {MANIFEST} is corrupt: {error}")))?;
        for (name, expected) in &manifest.files {
            if !is_inside(name) {
                return Err(SealedError::Name { folder: folder.to_owned(), name: name.clone() });
            }
            let (file, bytes) = open_inside(folder, name).map_err(|why| unread(name, why))?;
            if bytes != expected.bytes {
                let reason = format!("it has {bytes} bytes, not {}", expected.bytes);
                return Err(changed(name, reason));
            }
            // The file may grow while it is read.
            let read = seal_of_bytes(file.take(expected.bytes.saturating_add(1)));
            if read.map_err(|error| unread(name, error.into()))? != *expected {
                return Err(changed(name, "its hash differs from the manifest".to_owned()));
            }
        }
        let names = manifest.files.into_keys().collect();
        Ok(Sealed { folder: folder.to_owned(), about: manifest.about, names })
    }

    /// The data given to [`SealedWriter::seal`].
    pub fn about(&self) -> &Value {
        &self.about
    }

    /// The files' names, sorted.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The path of a file; `None` if the folder does not list it.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.names.iter().any(|known| known == name).then(|| self.folder.join(name))
    }
}

/// The reason that a file in a folder was not read.
enum Unread {
    Missing,
    /// Not something that a writer produces: a link, pipe, device or folder, or too long a file.
    Other(String),
    Disk(io::Error),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Unread {
        match error.kind() {
            io::ErrorKind::NotFound => Unread::Missing,
            _ => Unread::Disk(error),
        }
    }
}

/// Opens a regular file in a folder by its name, and returns its length. The folder itself may be reached through
/// links. Inside it, links are not followed, and only regular files are opened.
fn open_inside(folder: &Path, name: &str) -> Result<(File, u64), Unread> {
    let error = |errno: rustix::io::Errno| Unread::from(io::Error::from(errno));
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let check = |found: FileType, wanted: FileType, what: &str| match found == wanted {
        true => Ok(()),
        false => Err(Unread::Other(format!("{what} is not a {}", kind_name(wanted)))),
    };
    // Does not block even if the folder itself is a pipe.
    let is_folder = (OFlags::DIRECTORY | OFlags::NONBLOCK).bits().cast_signed();
    let mut place = OwnedFd::from(OpenOptions::new().read(true).custom_flags(is_folder).open(folder)?);
    let mut parts = Path::new(name).components().peekable();
    while let Some(part) = parts.next() {
        let part = Path::new(part.as_os_str());
        let (wanted, what) = match parts.peek() {
            Some(_) => (FileType::Directory, format!("its parent `{}`", part.display())),
            None => (FileType::RegularFile, "it".to_owned()),
        };
        let kind = |stat: &rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode);
        // Checked before opening, which may affect a device; and afterwards, since the file may have been replaced.
        check(kind(&statat(&place, part, AtFlags::SYMLINK_NOFOLLOW).map_err(error)?), wanted, &what)?;
        place = openat(&place, part, flags, Mode::empty()).map_err(error)?;
        check(kind(&fstat(&place).map_err(error)?), wanted, &what)?;
    }
    let file = File::from(place);
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

fn kind_name(kind: FileType) -> &'static str {
    if kind == FileType::Directory { "folder" } else { "regular file" }
}

/// Reads a file in a folder, if it has at most `longest` bytes.
fn read_inside(folder: &Path, name: &str, longest: u64) -> Result<Vec<u8>, Unread> {
    let (file, _) = open_inside(folder, name)?;
    let mut bytes = Vec::new();
    file.take(longest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        return Err(Unread::Other(format!("it has more than {longest} bytes")));
    }
    Ok(bytes)
}

/// Checks that a folder may be written here.
fn check_place(target: &Path, format: SealedFormat) -> Result<(), SealedError> {
    let occupied = |stranger: Option<PathBuf>, is_changed: bool| SealedError::Occupied {
        folder: target.to_owned(),
        format: format.name,
        stranger,
        is_changed,
    };
    let metadata = match fs::symlink_metadata(target) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(disk("read", target)(error)),
    };
    if !metadata.is_dir() {
        return Err(occupied(None, false));
    }
    if fs::read_dir(target).map_err(disk("read", target))?.next().is_none() {
        return Ok(());
    }
    let seals = seals_of(target, format).ok_or_else(|| occupied(None, false))?;
    let names = seals.keys().map(PathBuf::from).collect();
    let added = stranger(target, &names).map_err(disk("read", target))?;
    if added.is_some() {
        return Err(occupied(added, false));
    }
    for (name, seal) in &seals {
        if is_changed(target, name, seal).map_err(disk("read", &target.join(name)))? {
            return Err(occupied(Some(name.into()), true));
        }
    }
    Ok(())
}

/// Returns true if something is in the place of a file, and is not what was written there.
fn is_changed(folder: &Path, name: &str, seal: &Seal) -> io::Result<bool> {
    match open_inside(folder, name) {
        Ok((file, bytes)) => Ok(bytes != seal.bytes || seal_of_bytes(file.take(seal.bytes))? != *seal),
        Err(Unread::Missing) => Ok(false),
        Err(Unread::Other(_)) => Ok(true),
        Err(Unread::Disk(error)) => Err(error),
    }
}

/// The seals of the files that a folder of a format should have by its manifest; `None` if it does not have the format.
fn seals_of(folder: &Path, format: SealedFormat) -> Option<BTreeMap<String, Seal>> {
    let manifest = read_inside(folder, MANIFEST, LONGEST_MANIFEST).ok()?;
    let fields: Value = serde_json::from_slice(&manifest).ok()?;
    if fields["format"] != format.name {
        return None;
    }
    let mut seals: BTreeMap<String, Seal> = serde_json::from_value(fields["files"].clone()).ok()?;
    if !seals.keys().all(|name| is_inside(name)) {
        return None;
    }
    let own = seal_of_bytes(&manifest[..]).ok()?;
    // A changed manifest differs from this line.
    let line = hash_line(&own.blake3);
    seals.insert(MANIFEST.to_owned(), own);
    seals.insert(MANIFEST_HASH.to_owned(), seal_of_bytes(line.as_bytes()).ok()?);
    Some(seals)
}

/// Finds something in a folder that is neither a listed file nor a parent of one.
fn stranger(folder: &Path, names: &BTreeSet<PathBuf>) -> io::Result<Option<PathBuf>> {
    let mut folders = vec![PathBuf::new()];
    while let Some(place) = folders.pop() {
        for entry in fs::read_dir(folder.join(&place))? {
            let entry = entry?;
            let name = place.join(entry.file_name());
            let is_above = || names.iter().any(|known| known != &name && known.starts_with(&name));
            if !entry.file_type()?.is_dir() {
                if !names.contains(&name) {
                    return Ok(Some(name));
                }
            } else if is_above() {
                folders.push(name);
            } else {
                return Ok(Some(name));
            }
        }
    }
    Ok(None)
}

/// Moves a folder into place, and removes the previous one afterwards.
fn appear(folder: Staging, target: &Path) -> io::Result<()> {
    // Suffices if the target does not exist or is an empty folder.
    let renamed = fs::rename(folder.path(), target);
    match renamed {
        Ok(()) => {
            folder.keep();
            return Ok(());
        }
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        Err(error) => return Err(error),
    }
    match renameat_with(CWD, folder.path(), CWD, target, RenameFlags::EXCHANGE) {
        // The temporary folder is now the old one, and is removed as such.
        Ok(()) => Ok(()),
        // Some file systems do not support the exchange.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            let parent = target.parent().unwrap_or(Path::new("/"));
            let aside = tempfile::Builder::new().prefix(".fourfold-").tempdir_in(parent)?;
            let old = aside.path().join("old");
            fs::rename(target, &old)?;
            fs::rename(folder.path(), target).inspect_err(|_| {
                let _ = fs::rename(&old, target);
            })?;
            folder.keep();
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns true if a name stays inside the folder.
fn is_inside(name: &str) -> bool {
    !name.is_empty() && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The content of the file that has the manifest's hash.
fn hash_line(hash: &str) -> String {
    format!("{hash}  {MANIFEST}\n")
}

fn seal_of(path: &Path) -> io::Result<Seal> {
    seal_of_bytes(File::open(path)?)
}

fn seal_of_bytes(mut bytes: impl Read) -> io::Result<Seal> {
    let mut hasher = blake3::Hasher::new();
    let bytes = io::copy(&mut bytes, &mut hasher)?;
    Ok(Seal { bytes, blake3: hasher.finalize().to_hex().to_string() })
}

fn disk(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SealedError {
    let path = path.to_owned();
    move |source| SealedError::Disk { action, path, source }
}

#[cfg(test)]
mod tests;
