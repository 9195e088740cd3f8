//! An installed toolchain as a folder: what must be in it, the marker that says that it is whole, and copies of it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::{Value, json};

use super::pins::PINS;

/// The CUDA part of a tree.
pub(super) const CUDA: &str = "nvidia/cu13";
/// The CUTLASS part of a tree.
pub(super) const CUTLASS: &str = "cutlass_library/source";
/// Written last: a tree without it was interrupted.
pub(super) const MARKER: &str = "fourfold-toolchain.json";
/// Programs of a tree, which must be executable.
const PROGRAM_FOLDERS: [&str; 2] = ["nvidia/cu13/bin", "nvidia/cu13/nvvm/bin"];
/// Files without which no kernel can be built; their sizes are compared at every use.
pub(super) const ESSENTIAL: &[&str] = &[
    "nvidia/cu13/bin/nvcc",
    "nvidia/cu13/bin/nvcc.profile",
    "nvidia/cu13/bin/cudafe++",
    "nvidia/cu13/bin/fatbinary",
    "nvidia/cu13/bin/nvlink",
    "nvidia/cu13/bin/ptxas",
    "nvidia/cu13/bin/cuobjdump",
    "nvidia/cu13/bin/nvdisasm",
    "nvidia/cu13/nvvm/bin/cicc",
    "nvidia/cu13/nvvm/libdevice/libdevice.10.bc",
    "nvidia/cu13/include/cuda_runtime.h",
    "nvidia/cu13/include/crt/host_config.h",
    "nvidia/cu13/include/cccl/cuda/std/type_traits",
    "nvidia/cu13/lib/libcudart_static.a",
    "nvidia/cu13/lib/libcudadevrt.a",
    "cutlass_library/source/include/cutlass/version.h",
    "cutlass_library/source/include/cutlass/cutlass.h",
    "cutlass_library/source/include/cute/tensor.hpp",
    "cutlass_library/source/tools/util/include/cutlass/util/packed_stride.hpp",
];

/// How closely a tree is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// The marker and the sizes of the essential files: some twenty calls.
    Quick,
    /// Also the number of files and their bytes.
    Full,
}

/// Whether this is a whole tree of this version's packages for this processor; if not, why.
pub(super) fn check(root: &Path, depth: Depth) -> Result<(), String> {
    if !root.is_dir() {
        return Err("it is not a folder".to_owned());
    }
    let text = fs::read_to_string(root.join(MARKER)).map_err(|_| {
        format!("it has no {MARKER}: `fourfold toolchain install` did not make it, or did not finish")
    })?;
    let marker: Value = serde_json::from_str(&text).map_err(|_| format!("its {MARKER} is damaged"))?;
    if marker["architecture"] != std::env::consts::ARCH {
        return Err(format!("it is for {} processors", marker["architecture"].as_str().unwrap_or("other")));
    }
    if marker["packages"] != packages() {
        return Err("it holds other packages than this version of Fourfold is pinned to".to_owned());
    }
    for name in ESSENTIAL {
        let size = fs::metadata(root.join(name)).map_err(|_| format!("`{name}` is missing"))?.len();
        if marker["essential"][name].as_u64() != Some(size) {
            return Err(format!("`{name}` is {size} bytes long, which it was not when it was installed"));
        }
    }
    if depth == Depth::Full {
        let (files, bytes) = inventory(root).map_err(|error| format!("it cannot be read: {error}"))?;
        if marker["files"].as_u64() != Some(files) || marker["bytes"].as_u64() != Some(bytes) {
            return Err(format!("its {files} files of {bytes} bytes are not those that were installed"));
        }
    }
    Ok(())
}

/// Finishes a tree: programs become executable, and the marker is written. The error names what is missing.
pub(super) fn seal(root: &Path) -> io::Result<Result<(), String>> {
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
    let mut essential = BTreeMap::new();
    for name in ESSENTIAL {
        match fs::metadata(root.join(name)) {
            Ok(metadata) => essential.insert(*name, metadata.len()),
            Err(_) => return Ok(Err(format!("`{name}` is missing"))),
        };
    }
    let (files, bytes) = inventory(root)?;
    let marker = json!({
        "architecture": std::env::consts::ARCH,
        "packages": packages(),
        "files": files,
        "bytes": bytes,
        "essential": essential,
    });
    fs::write(root.join(MARKER), format!("{marker:#}\n"))?;
    Ok(Ok(()))
}

/// Copies a tree without its marker into an empty folder; files are linked where the file system allows it.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for file in files(from)? {
        let name = file.strip_prefix(from).map_err(io::Error::other)?;
        let copy = to.join(name);
        if let Some(folder) = copy.parent() {
            fs::create_dir_all(folder)?;
        }
        // A link fails across file systems, and where the system protects other users' files.
        if fs::hard_link(&file, &copy).is_err() {
            fs::copy(&file, &copy)?;
        }
    }
    Ok(())
}

/// The number of files below a folder and their bytes, without the marker.
pub(super) fn inventory(root: &Path) -> io::Result<(u64, u64)> {
    let files = files(root)?;
    let mut bytes = 0;
    for file in &files {
        bytes += file.symlink_metadata()?.len();
    }
    Ok((files.len() as u64, bytes))
}

/// The files below a folder, without the marker. The packages hold no links, and a carried folder may not bring any:
/// they would lead out of it.
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

fn packages() -> Value {
    PINS.iter().map(|pin| format!("{}=={}", pin.name, pin.version)).collect()
}
