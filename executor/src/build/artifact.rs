//! Built kernels: library, source, compiler log and resource usage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::{Folder, LIBRARY, Phase};
use crate::kernel::{Files, Kernel, LoadError, Metadata};

/// A built kernel. Its files are a cache entry, locked until the last artifact and loaded kernel drop; or a temporary
/// folder, removed then.
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
    pub(super) built_with: Option<BuiltWith>,
}

/// The tools that built a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltWith {
    /// The version of nvcc, such as `13.1.115`.
    pub nvcc: String,
    /// The CUTLASS version, optionally with a digest of its headers; or `none`.
    pub cutlass: String,
}

/// The parts of an artifact, apart from the library in its folder.
pub(crate) struct Parts {
    pub(crate) folder: Folder,
    pub(crate) kernel: String,
    pub(crate) source: String,
    pub(crate) prelude: Option<String>,
    pub(crate) log: String,
    pub(crate) resources: Resources,
    pub(crate) metadata: Metadata,
    pub(crate) built_with: Option<BuiltWith>,
}

/// Resource usage of a built kernel, read from the binary and the compiler's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers per thread. This and the next four are `None` if ptxas reported nothing.
    pub registers: Option<u32>,
    /// Bytes of spill stores per thread.
    pub spill_stores: Option<u32>,
    /// Bytes of spill loads per thread.
    pub spill_loads: Option<u32>,
    /// Bytes of stack per thread.
    pub stack: Option<u32>,
    /// Named barriers.
    pub barriers: Option<u32>,
    /// Bytes of shared memory per CTA.
    pub shared_memory: u64,
    /// Threads per CTA.
    pub threads: u32,
    /// Pipeline stages of the mainloop, if the kernel has any.
    pub stages: Option<u32>,
    /// Counts of matrix instructions, scale copies and the required instruction, by full opcode.
    pub opcodes: BTreeMap<String, usize>,
    /// Count of all instructions.
    pub instructions: usize,
    /// Count of `BPT.TRAP` instructions.
    pub traps: usize,
    /// The size of the library in bytes.
    pub library_bytes: u64,
    /// Wall-clock time of the compiler.
    #[serde(with = "seconds")]
    pub compile_time: Duration,
    /// Wall-clock time of the disassembler.
    #[serde(with = "seconds")]
    pub census_time: Duration,
    /// The time of each compiler phase, if reported. Phases may overlap.
    pub phases: Vec<Phase>,
}

impl Artifact {
    /// The path of the shared library.
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

    /// The text that the compiler read before the source. Only emulated kernels have one.
    pub fn prelude(&self) -> Option<&str> {
        self.prelude.as_deref()
    }

    /// The compiler's output.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The kernel's resource usage.
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// The kernel's self-description.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Writes source, library and log into `folder` as `<kernel>_<hash>.cu`, `.so` and `.log`, and returns their
    /// paths. Creates the folder. The hash keeps files apart, since kernel names are not unique. Files of an emulated
    /// kernel start with `<kernel>_<hash>.emulated`; a fourth file, `.cuh`, holds its prelude.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn dump(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let files = DumpedKernel {
            kernel: &self.kernel,
            hash: &self.metadata.hash,
            source: &self.source,
            library: Some(&self.library),
            log: Some(&self.log),
            prelude: self.prelude.as_deref(),
        };
        files.write(folder)
    }

    /// The tools that built the kernel, if known.
    pub fn tools(&self) -> Option<&BuiltWith> {
        self.built_with.as_ref()
    }

    /// Records the tools that built the kernel.
    pub(crate) fn built_with(self, tools: BuiltWith) -> Artifact {
        Artifact { built_with: Some(tools), ..self }
    }

    /// Returns true if the files are a cache entry.
    pub fn is_cached(&self) -> bool {
        self.folder.is_entry()
    }

    pub(crate) fn from_parts(parts: Parts) -> Artifact {
        let Parts { folder, kernel, source, prelude, log, resources, metadata, built_with } = parts;
        let library = folder.path().join(LIBRARY);
        let folder = Arc::new(folder);
        Artifact { folder, library, kernel, source, prelude, log, resources, metadata, built_with }
    }

    pub(crate) fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    /// Reads the library, after verifying that it is unchanged since it was built or found in the cache.
    pub(crate) fn read_library(&self) -> io::Result<Vec<u8>> {
        self.folder.check_library(&self.library).map_err(io::Error::other)?;
        fs::read(&self.library)
    }
}

/// The files of a kernel, built or not, to be written for inspection.
#[derive(Clone, Copy, Debug)]
pub struct DumpedKernel<'a> {
    /// The kernel's readable name.
    pub kernel: &'a str,
    /// The hash that makes the file names unique.
    pub hash: &'a str,
    /// The source.
    pub source: &'a str,
    /// The path of the library, if built.
    pub library: Option<&'a Path>,
    /// The compiler's output.
    pub log: Option<&'a str>,
    /// The text that the compiler reads before the source. Only emulated kernels have one.
    pub prelude: Option<&'a str>,
}

impl DumpedKernel<'_> {
    /// Writes the files into `folder`, named as by [`Artifact::dump`], and returns their paths.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        fs::create_dir_all(folder)?;
        let stem: String = format!("{}_{}", self.kernel, self.hash)
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' })
            .collect();
        let stem = if self.prelude.is_some() { format!("{stem}.emulated") } else { stem };
        let mut paths = Vec::new();
        let mut add = |extension: &str, write: &dyn Fn(&Path) -> io::Result<()>| {
            paths.push(folder.join(format!("{stem}.{extension}")));
            replace(&paths[paths.len() - 1], write)
        };
        add("cu", &|file| fs::write(file, self.source))?;
        if let Some(library) = self.library {
            add("so", &|file| fs::copy(library, file).map(|_| ()))?;
        }
        for (extension, text) in [("log", self.log), ("cuh", self.prelude)] {
            if let Some(text) = text {
                add(extension, &|file| fs::write(file, text))?;
            }
        }
        Ok(paths)
    }
}

/// Serializes durations as seconds, a form that other programs read too.
pub(crate) mod seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Replaces a file atomically. A library loaded from an earlier dump must not change under its mapping.
fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::Builder::new().prefix(".fourfold-").tempfile_in(folder)?.into_temp_path();
    write(&temporary)?;
    // Temporary files are private; dumped files are readable by everyone with access to the folder.
    let mut permissions = fs::metadata(&temporary)?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    fs::set_permissions(&temporary, permissions)?;
    temporary.persist(path).map_err(|error| error.error)
}

impl Kernel {
    /// Loads a built kernel, and keeps its files while it is loaded. The library is verified again first.
    ///
    /// # Errors
    /// When the library is missing, has changed, cannot be loaded, or describes itself differently than the artifact.
    pub fn load(artifact: &Artifact) -> Result<Kernel, LoadError> {
        let path = artifact.library();
        artifact.folder().check_library(path).map_err(|reason| match path.exists() {
            true => LoadError::Changed { path: path.to_owned(), reason },
            false => LoadError::NotFound { path: path.to_owned() },
        })?;
        let files: Files = Arc::<Folder>::clone(artifact.folder());
        let kernel = Kernel::from_parts(path, Some(files))?;
        if kernel.metadata() == artifact.metadata() {
            return Ok(kernel);
        }
        let reason = "it differs from the metadata stored with the library".to_owned();
        Err(LoadError::BadMetadata { path: path.to_owned(), reason })
    }
}
