//! A built kernel: its library, source and log in a folder of their own, and what the binary costs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::{Folder, LIBRARY, Phase};
use crate::kernel::{Files, Kernel, LoadError, Metadata};

/// A built kernel. Its files are those of an entry of the cache, which is in use until the last artifact and the last
/// kernel loaded from it are dropped; or they lie in a folder of their own and vanish then.
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
    /// The CUTLASS: a version, a version and a digest of its headers, or `none`.
    pub cutlass: String,
}

/// What an artifact is made of, the library being in the folder.
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

/// What a built kernel costs, as read back from the binary and from the compiler's report on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Its matrix instructions and scale copies, and the instruction that it must contain, by full opcode.
    pub opcodes: BTreeMap<String, usize>,
    /// All its instructions.
    pub instructions: usize,
    /// Its `BPT.TRAP` instructions.
    pub traps: usize,
    /// The size of the library in bytes.
    pub library_bytes: u64,
    /// Wall-clock time of the compiler.
    #[serde(with = "seconds")]
    pub compile_time: Duration,
    /// Wall-clock time of the disassembler.
    #[serde(with = "seconds")]
    pub census_time: Duration,
    /// What each phase of the compiler took, where it says so; phases may run side by side.
    pub phases: Vec<Phase>,
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

    /// What the compiler read before the source; only emulated kernels have it.
    pub fn prelude(&self) -> Option<&str> {
        self.prelude.as_deref()
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

    /// The tools that built it, where that is known.
    pub fn tools(&self) -> Option<&BuiltWith> {
        self.built_with.as_ref()
    }

    /// The same, known to be built with these tools.
    pub(crate) fn built_with(self, tools: BuiltWith) -> Artifact {
        Artifact { built_with: Some(tools), ..self }
    }

    /// Whether the cache keeps it.
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

    /// The bytes of the library, which are those that were verified if it comes from a cache.
    pub(crate) fn read_library(&self) -> io::Result<Vec<u8>> {
        self.folder.check_library(&self.library).map_err(io::Error::other)?;
        fs::read(&self.library)
    }
}

/// What there is of a kernel, built or not, for people who look for it in a folder.
#[derive(Clone, Copy, Debug)]
pub struct DumpedKernel<'a> {
    /// Its readable name.
    pub kernel: &'a str,
    /// The hash that its files are told apart by.
    pub hash: &'a str,
    /// Its source.
    pub source: &'a str,
    /// Its library.
    pub library: Option<&'a Path>,
    /// What the compiler printed.
    pub log: Option<&'a str>,
    /// What the compiler reads before the source; only emulated kernels have it.
    pub prelude: Option<&'a str>,
}

impl DumpedKernel<'_> {
    /// Writes what there is into `folder`, under the names of [`Artifact::dump`], and returns the paths.
    ///
    /// # Errors
    /// When one of the files cannot be written.
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

/// Durations as numbers of seconds, which other programs read too.
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

impl Kernel {
    /// Loads a built kernel and keeps its files for as long as it is loaded. One from the cache is verified again.
    ///
    /// # Errors
    /// When the library cannot be loaded, is not a kernel of this version, or is not what it was.
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
        let reason = "it is not what was kept beside the library".to_owned();
        Err(LoadError::BadMetadata { path: path.to_owned(), reason })
    }
}
