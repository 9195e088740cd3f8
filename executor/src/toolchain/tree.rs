//! An installed toolchain on disk: required files, the marker of a complete part, and copying.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::{Value, json};

use super::flaw::Flaw;
use super::pins::{PINNED, Part};
use super::version::cutlass_version;
use crate::causes::chain;
use crate::files::read_text;

/// The CUDA toolkit's path in a toolchain.
pub(super) const CUDA: &str = "nvidia/cu13";
/// The CUTLASS path in a toolchain.
pub(super) const CUTLASS: &str = "cutlass";
/// The path of CUTLASS in an installed `cutlass_library`.
pub(super) const CUTLASS_LIBRARY: &str = "cutlass_library/source";
/// The marker file of each part, written last. A part without it was interrupted.
pub(super) const MARKER: &str = "fourfold-toolchain.json";
/// Folders of compiler programs, which must be executable.
const PROGRAM_FOLDERS: [&str; 2] = ["nvidia/cu13/bin", "nvidia/cu13/nvvm/bin"];
/// Files required by every build; their sizes are checked at each use.
pub(super) const ESSENTIAL: &[(Part, &str)] = &[
    (Part::Compiler, "nvidia/cu13/bin/nvcc"),
    (Part::Compiler, "nvidia/cu13/bin/nvcc.profile"),
    (Part::Compiler, "nvidia/cu13/bin/cudafe++"),
    (Part::Compiler, "nvidia/cu13/bin/fatbinary"),
    (Part::Compiler, "nvidia/cu13/bin/nvlink"),
    (Part::Compiler, "nvidia/cu13/bin/ptxas"),
    (Part::Compiler, "nvidia/cu13/bin/cuobjdump"),
    (Part::Compiler, "nvidia/cu13/bin/nvdisasm"),
    (Part::Compiler, "nvidia/cu13/nvvm/bin/cicc"),
    (Part::Compiler, "nvidia/cu13/nvvm/libdevice/libdevice.10.bc"),
    (Part::Compiler, "nvidia/cu13/include/cuda_runtime.h"),
    (Part::Compiler, "nvidia/cu13/include/crt/host_config.h"),
    (Part::Compiler, "nvidia/cu13/include/cccl/cuda/std/type_traits"),
    (Part::Compiler, "nvidia/cu13/lib/libcudart_static.a"),
    (Part::Compiler, "nvidia/cu13/lib/libcudadevrt.a"),
    (Part::Cutlass, "cutlass/include/cutlass/version.h"),
    (Part::Cutlass, "cutlass/include/cutlass/cutlass.h"),
    (Part::Cutlass, "cutlass/include/cute/tensor.hpp"),
    (Part::Cutlass, "cutlass/tools/util/include/cutlass/util/packed_stride.hpp"),
];
/// The CUTLASS licence, extracted from its headers.
pub(super) const CUTLASS_LICENSE: &str = "cutlass/LICENSE.txt";

/// The thoroughness of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// The marker and the essential files' sizes: about twenty system calls.
    Quick,
    /// Also the number and total size of files.
    Full,
}

/// Checks that a part is complete and consists of this version's packages for this processor.
pub(super) fn check(root: &Path, part: Part, depth: Depth) -> Result<(), Flaw> {
    let folder = root.join(part.folder());
    let marker = read_marker(root, part)?;
    if marker["architecture"] != std::env::consts::ARCH {
        let architecture = marker["architecture"].as_str().unwrap_or("other");
        return Err(Flaw::of(format!("it is for {architecture} processors")));
    }
    if marker["packages"] != packages(part) {
        return Err(Flaw::of("its packages are not the ones pinned by this version of Fourfold"));
    }
    for name in essential(part) {
        let missing = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Flaw::of(format!("`{name}` is missing")),
            _ => Flaw::of_system(format!("`{name}` cannot be inspected: {error}"), &error),
        };
        let size = fs::metadata(root.join(name)).map_err(missing)?.len();
        if marker["essential"][name].as_u64() != Some(size) {
            let problem = format!("`{name}` has {size} bytes, not its size at installation");
            return Err(Flaw::of(problem));
        }
    }
    if depth == Depth::Full {
        let unread = |error: io::Error| Flaw::of_system(format!("it cannot be read: {error}"), &error);
        let (files, bytes) = inventory(&folder).map_err(unread)?;
        if marker["files"].as_u64() != Some(files) || marker["bytes"].as_u64() != Some(bytes) {
            let problem = format!("its {files} files of {bytes} bytes are not the installed ones");
            return Err(Flaw::of(problem));
        }
    }
    Ok(())
}

/// Reads the marker of a complete part.
fn read_marker(root: &Path, part: Part) -> Result<Value, Flaw> {
    let folder = root.join(part.folder());
    let text = match (read_text(&folder.join(MARKER)), folder.metadata()) {
        (Ok(text), _) => text,
        (Err(error), _) if error.io().is_none_or(|error| error.kind() != io::ErrorKind::NotFound) => {
            let problem = chain(&error);
            return Err(error.io().map_or_else(
                || Flaw::of(problem.clone()),
                |source| Flaw::of_system(problem.clone(), source),
            ));
        }
        (Err(_), Ok(_)) => {
            return Err(Flaw::of(format!(
                "its `{}` has no {MARKER}: `fourfold toolchain install` was interrupted, or is of another version",
                part.folder()
            )));
        }
        (Err(_), Err(_)) => {
            let (folder, name) = (part.folder(), part.name());
            return Err(Flaw::of(format!("it has no `{folder}`: {name} is not installed there")));
        }
    };
    serde_json::from_str(&text).map_err(|_| Flaw::of(format!("its {MARKER} is corrupt")))
}

/// Completes a part: makes programs executable, writes CUTLASS's licence file, and writes the marker. The inner error
/// names a missing item.
pub(super) fn seal(root: &Path, part: Part) -> io::Result<Result<(), String>> {
    let prepared = match part {
        Part::Compiler => make_executable(root)?,
        Part::Cutlass => finish_cutlass(root)?,
    };
    if let Err(reason) = prepared {
        return Ok(Err(reason));
    }
    let mut essential_sizes = BTreeMap::new();
    for name in essential(part) {
        match fs::metadata(root.join(name)) {
            Ok(metadata) => essential_sizes.insert(name, metadata.len()),
            Err(_) => return Ok(Err(format!("`{name}` is missing"))),
        };
    }
    let folder = root.join(part.folder());
    let (files, bytes) = inventory(&folder)?;
    let marker = json!({
        "architecture": std::env::consts::ARCH,
        "packages": packages(part),
        "files": files,
        "bytes": bytes,
        "essential": essential_sizes,
    });
    fs::write(folder.join(MARKER), format!("{marker:#}\n"))?;
    Ok(Ok(()))
}

fn make_executable(root: &Path) -> io::Result<Result<(), String>> {
    for folder in PROGRAM_FOLDERS {
        let Ok(entries) = fs::read_dir(root.join(folder)) else {
            return Ok(Err(format!("`{folder}` is missing")));
        };
        for entry in entries {
            let path = entry?.path();
            let mode = path.metadata()?.permissions().mode();
            if path.is_file() && mode & 0o111 != 0o111 {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode | 0o755))?;
            }
        }
    }
    Ok(Ok(()))
}

/// Writes the licence file: the package has CUTLASS's licence only in each header's first comment. Also checks that
/// the headers' version is the one that cache keys use.
fn finish_cutlass(root: &Path) -> io::Result<Result<(), String>> {
    let found = cutlass_version(&root.join(CUTLASS)).map(|version| version.to_string());
    if found.as_deref() != Some(PINNED.cutlass) {
        let found = found.unwrap_or_else(|| "none".to_owned());
        return Ok(Err(format!("the CUTLASS headers state version {found}, not {}", PINNED.cutlass)));
    }
    let header = fs::read_to_string(root.join(CUTLASS).join("include/cutlass/version.h"))?;
    let Some(license) = license_of(&header) else {
        return Ok(Err("the CUTLASS headers state no licence".to_owned()));
    };
    fs::write(root.join(CUTLASS_LICENSE), license)?;
    Ok(Ok(()))
}

/// The first comment of a header, if it is a licence.
fn license_of(header: &str) -> Option<String> {
    let comment = header.strip_prefix("/*")?.split_once("*/")?.0;
    let lines = comment.lines().map(|line| line.trim_start_matches(' ').trim_start_matches('*').trim());
    let text = lines.collect::<Vec<_>>().join("\n");
    let text = text.trim();
    (text.contains("Copyright") && text.contains("Redistribution")).then(|| format!("{text}\n"))
}

fn essential(part: Part) -> impl Iterator<Item = &'static str> {
    ESSENTIAL.iter().filter(move |(of, _)| *of == part).map(|(_, name)| *name)
}

/// Copies a part without its marker into an empty folder. Uses hard links if the file system allows it.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for file in files(from)? {
        let name = file.strip_prefix(from).map_err(io::Error::other)?;
        let copy = to.join(name);
        if let Some(folder) = copy.parent() {
            fs::create_dir_all(folder)?;
        }
        // Hard links fail across file systems, and where the system protects other users' files.
        if fs::hard_link(&file, &copy).is_err() {
            fs::copy(&file, &copy)?;
        }
    }
    Ok(())
}

/// The number and total size of the files in a folder, without the marker.
pub(super) fn inventory(root: &Path) -> io::Result<(u64, u64)> {
    let files = files(root)?;
    let mut bytes = 0;
    for file in &files {
        bytes += file.symlink_metadata()?.len();
    }
    Ok((files.len() as u64, bytes))
}

/// The files in a folder, without the marker. Links are an error: packages contain none, and those of a carried
/// folder would lead out of it.
fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            } else {
                let path = entry.path();
                return Err(io::Error::other(format!("`{}` is neither a file nor a folder", path.display())));
            }
        }
    }
    found.retain(|file| *file != root.join(MARKER));
    Ok(found)
}

fn packages(part: Part) -> Value {
    part.packages().map(|pin| format!("{}=={}", pin.name, pin.version)).collect()
}
