//! A built kernel: its library, source and log in a folder of their own, and what the binary costs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use super::Folder;
use crate::kernel::Metadata;

/// A built kernel. Its files vanish when the last artifact and the last kernel loaded from it are dropped.
#[derive(Clone, Debug)]
pub struct Artifact {
    pub(super) folder: Arc<Folder>,
    pub(super) library: PathBuf,
    pub(super) kernel: String,
    pub(super) source: String,
    pub(super) prelude: Option<String>,
    pub(super) log: String,
    pub(super) resources: Resources,
    pub(super) metadata: Metadata,
}

/// What a built kernel costs, as read back from the binary and from the compiler's report on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    /// Registers per thread; `None` if the compiler did not report its resources, as for the four that follow.
    pub registers: Option<u32>,
    /// Bytes of spill stores per thread.
    pub spill_stores: Option<u32>,
    /// Bytes of spill loads per thread.
    pub spill_loads: Option<u32>,
    /// Bytes of stack per thread.
    pub stack: Option<u32>,
    /// Named barriers.
    pub barriers: Option<u32>,
    /// Bytes of shared memory per block.
    pub shared_memory: u64,
    /// Threads per block.
    pub threads: u32,
    /// Stages of the main loop, where the kernel has one.
    pub stages: Option<u32>,
    /// Its matrix instructions and scale copies, by full opcode.
    pub opcodes: BTreeMap<String, usize>,
    /// All its instructions.
    pub instructions: usize,
    /// Its `BPT.TRAP` instructions.
    pub traps: usize,
    /// The size of the library in bytes.
    pub library_bytes: u64,
    /// Wall-clock time of the compiler.
    pub compile_time: Duration,
    /// Wall-clock time of the disassembler.
    pub census_time: Duration,
}

impl Artifact {
    /// The shared library.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// The kernel's readable name.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// The source that was compiled.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the compiler printed.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// What the kernel costs.
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// What the library says about itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Writes the source, the library and the log into `folder`, which is created, as `<kernel>_<hash>.cu`, `.so` and
    /// `.log`, and returns their paths: names of kernels are readable, and not unique. An emulated kernel is called
    /// `<kernel>_<hash>.emulated`, and what the compiler read before its source is a fourth file, `.cuh`.
    ///
    /// # Errors
    /// When one of them cannot be written.
    pub fn dump(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        fs::create_dir_all(folder)?;
        let stem: String = format!("{}_{}", self.kernel, self.metadata.hash)
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' })
            .collect();
        let stem = if self.prelude.is_some() { format!("{stem}.emulated") } else { stem };
        let mut paths: Vec<PathBuf> =
            ["cu", "so", "log"].map(|extension| folder.join(format!("{stem}.{extension}"))).into();
        replace(&paths[0], |file| fs::write(file, &self.source))?;
        replace(&paths[1], |file| fs::copy(&self.library, file).map(|_| ()))?;
        replace(&paths[2], |file| fs::write(file, &self.log))?;
        if let Some(prelude) = &self.prelude {
            let path = folder.join(format!("{stem}.cuh"));
            replace(&path, |file| fs::write(file, prelude))?;
            paths.push(path);
        }
        Ok(paths)
    }

    pub(crate) fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }
}

/// Replaces a file as a whole. A library that is loaded from an earlier dump must not change under its mapping.
fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::Builder::new().prefix(".fourfold-").tempfile_in(folder)?.into_temp_path();
    write(&temporary)?;
    // A temporary file is private; what is dumped is for whoever may read the folder.
    let mut permissions = fs::metadata(&temporary)?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    fs::set_permissions(&temporary, permissions)?;
    temporary.persist(path).map_err(|error| error.error)
}
