//! Decides which compiler and which CUTLASS are used.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::cache::cache_folder;
use super::error::ToolchainError;
use super::provision::{provision, provisioned_folder};
use super::tree::{self, Depth};
use super::version::{OLDEST_CUTLASS, OLDEST_NVCC, Version, cutlass_version, nvcc_version, oldest_nvcc_for};
use crate::environment::{Environment, is_program};

/// What the caller asks for; the default asks for nothing and installs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolchainOptions {
    /// The compiler to use (`--nvcc`).
    pub nvcc: Option<PathBuf>,
    /// The CUTLASS to use (`--cutlass`).
    pub cutlass: Option<PathBuf>,
    /// A toolchain that [`provision`] made on another machine, used where it lies (`--from`).
    pub from: Option<PathBuf>,
    /// Whether to install the pinned packages when nothing is found.
    pub provision: bool,
}

/// Where a part of a toolchain came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An option or a variable, by its name, such as `--nvcc`, `CUDA_HOME` or `PATH`.
    Named(&'static str),
    /// The packages in the cache folder.
    Provisioned,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Named(name) => f.write_str(name),
            Origin::Provisioned => f.write_str("provisioned"),
        }
    }
}

/// A compiler and a CUTLASS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler.
    pub nvcc: PathBuf,
    /// Folders that nvcc needs as `-I`, in order.
    pub include: Vec<PathBuf>,
    /// Folders that nvcc needs as `-L`, in order.
    pub libraries: Vec<PathBuf>,
    /// The CUTLASS: a folder with `include/` and `tools/util/include/`.
    pub cutlass: PathBuf,
    /// What reads opcodes from a binary; it finds `nvdisasm` beside itself or on `PATH`.
    pub cuobjdump: Option<PathBuf>,
    /// The version of nvcc, such as `13.0.88`.
    pub nvcc_version: String,
    /// The version of CUTLASS, such as `4.2.0`.
    pub cutlass_version: String,
    /// Where nvcc came from.
    pub nvcc_origin: Origin,
    /// Where CUTLASS came from.
    pub cutlass_origin: Origin,
    /// What was found and not used, each with the reason, for people.
    pub passed_over: Vec<String>,
}

impl Toolchain {
    /// The include folders of CUTLASS.
    pub fn cutlass_include(&self) -> [PathBuf; 2] {
        [self.cutlass.join("include"), self.cutlass.join("tools/util/include")]
    }

    /// Whether this nvcc compiles for a target, by the target's name (`sm_100a` or `100a`).
    pub fn supports(&self, target: &str) -> bool {
        let version = Version::parse(&self.nvcc_version);
        oldest_nvcc_for(target).is_some_and(|oldest| version.is_some_and(|version| version >= oldest))
    }
}

/// Finds a toolchain; installs one when the options allow it and there is none.
///
/// # Errors
/// When something that is named does not exist or is too old, when nothing is found, or when installing fails.
pub fn locate(options: &ToolchainOptions, environment: &Environment) -> Result<Toolchain, ToolchainError> {
    locate_with_progress(options, environment, &mut |_| {})
}

/// As [`locate`]; `progress` gets lines for people while packages are installed.
///
/// # Errors
/// As [`locate`].
pub fn locate_with_progress(
    options: &ToolchainOptions,
    environment: &Environment,
    progress: &mut dyn FnMut(&str),
) -> Result<Toolchain, ToolchainError> {
    let mut search = Search::new(options, environment);
    let mut nvcc = search.nvcc();
    let mut cutlass = search.cutlass();
    let absent = |part: &Result<Found, _>| matches!(part, Err(ToolchainError::NotFound { .. }));
    // A compiler without a disassembler does not do: no kernel is used before its opcodes were seen.
    let blind = nvcc.as_ref().is_ok_and(|nvcc| search.cuobjdump(&nvcc.path).is_none());
    if options.provision && (absent(&nvcc) || absent(&cutlass) || blind) {
        provision(&cache_folder(environment)?, environment, progress)?;
        search = Search::new(options, environment);
        nvcc = search.nvcc();
        cutlass = search.cutlass();
    }
    let (nvcc, cutlass) = (nvcc?, cutlass?);
    let [include, libraries] = toolkit_folders(&nvcc.path);
    let cuobjdump = search.cuobjdump(&nvcc.path);
    Ok(Toolchain {
        include,
        libraries,
        cuobjdump,
        nvcc: nvcc.path,
        cutlass: cutlass.path,
        nvcc_version: nvcc.version.to_string(),
        cutlass_version: cutlass.version.to_string(),
        nvcc_origin: nvcc.origin,
        cutlass_origin: cutlass.origin,
        passed_over: search.passed_over,
    })
}

/// A part that was found.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) version: Version,
    pub(super) origin: Origin,
}

/// One search: what it may use, and what it passed over.
pub(super) struct Search<'a> {
    options: &'a ToolchainOptions,
    environment: &'a Environment,
    passed_over: Vec<String>,
}

impl<'a> Search<'a> {
    pub(super) fn new(options: &'a ToolchainOptions, environment: &'a Environment) -> Search<'a> {
        Search { options, environment, passed_over: Vec::new() }
    }

    pub(super) fn nvcc(&mut self) -> Result<Found, ToolchainError> {
        if let Some(nvcc) = &self.options.nvcc {
            return named_nvcc("--nvcc", absolute(nvcc));
        }
        if let Some(folder) = &self.options.from {
            return carried("--from", folder).and_then(|root| named_nvcc("--from", tree_nvcc(&root)));
        }
        if let Some(nvcc) = &self.environment.fourfold_nvcc {
            return named_nvcc("FOURFOLD_NVCC", absolute(nvcc));
        }
        if let Some(folder) = &self.environment.fourfold_toolchain {
            let name = "FOURFOLD_TOOLCHAIN";
            return carried(name, folder).and_then(|root| named_nvcc(name, tree_nvcc(&root)));
        }
        let mut passed_over = Vec::new();
        let mut shared = Vec::new();
        if let Some(folder) = &self.environment.cuda_home {
            let folder = absolute(folder);
            if !folder.is_dir() {
                let problem = "which is not a folder".to_owned();
                return Err(ToolchainError::Named { named: "CUDA_HOME", path: folder, problem });
            }
            // A toolkit without a compiler is what machines have that only run programs.
            let nvcc = folder.join("bin/nvcc");
            if is_program(&nvcc) {
                shared.push(("CUDA_HOME", nvcc));
            } else {
                passed_over.push(format!("CUDA_HOME names `{}`, which has no bin/nvcc", folder.display()));
            }
        }
        shared.extend(self.environment.find_program("nvcc").map(|nvcc| ("PATH", nvcc)));
        for (name, nvcc) in shared {
            match named_nvcc(name, nvcc) {
                Ok(found) => {
                    self.passed_over.extend(passed_over);
                    return Ok(found);
                }
                Err(error) => passed_over.push(error.to_string()),
            }
        }
        let provisioned = self.provisioned(&mut passed_over);
        self.passed_over.extend(passed_over.clone());
        let root = provisioned.ok_or(ToolchainError::NotFound { what: "nvcc", passed_over })?;
        named_nvcc("the cache", tree_nvcc(&root)).map(|found| Found { origin: Origin::Provisioned, ..found })
    }

    pub(super) fn cutlass(&mut self) -> Result<Found, ToolchainError> {
        let environment = self.environment;
        if let Some(cutlass) = &self.options.cutlass {
            return named_cutlass("--cutlass", cutlass.as_os_str().to_owned());
        }
        if let Some(folder) = &self.options.from {
            return carried("--from", folder).and_then(|root| named_cutlass("--from", root.into()));
        }
        if let Some(cutlass) = &environment.fourfold_cutlass {
            return named_cutlass("FOURFOLD_CUTLASS", cutlass.clone());
        }
        if let Some(folder) = &environment.fourfold_toolchain {
            let name = "FOURFOLD_TOOLCHAIN";
            return carried(name, folder).and_then(|root| named_cutlass(name, root.into()));
        }
        let mut passed_over = Vec::new();
        if let Some(cutlass) = &environment.cutlass_path {
            match named_cutlass("CUTLASS_PATH", cutlass.clone()) {
                // Another program's CUTLASS may be too old for us; one that is not there is a mistake.
                Err(error @ ToolchainError::TooOld { .. }) => passed_over.push(error.to_string()),
                result => return result,
            }
        }
        let provisioned = self.provisioned(&mut passed_over);
        self.passed_over.extend(passed_over.clone());
        let root = provisioned.ok_or(ToolchainError::NotFound { what: "CUTLASS", passed_over })?;
        named_cutlass("the cache", root.into()).map(|found| Found { origin: Origin::Provisioned, ..found })
    }

    /// Beside nvcc, on `PATH`, or in the cache.
    pub(super) fn cuobjdump(&self, nvcc: &Path) -> Option<PathBuf> {
        let beside =
            |nvcc: &Path| nvcc.parent().map(|bin| bin.join("cuobjdump")).filter(|file| is_program(file));
        beside(nvcc)
            .or_else(|| beside(&nvcc.canonicalize().ok()?))
            .or_else(|| self.environment.find_program("cuobjdump"))
            .or_else(|| beside(&tree_nvcc(&self.provisioned(&mut Vec::new())?)))
    }

    /// The provisioned tree, when it is there and whole.
    fn provisioned(&self, passed_over: &mut Vec<String>) -> Option<PathBuf> {
        let place = provisioned_folder(&cache_folder(self.environment).ok()?);
        match tree::check(&place, Depth::Quick) {
            Ok(()) => Some(place),
            Err(reason) => {
                if place.exists() {
                    passed_over.push(format!("the toolchain in `{}`: {reason}", place.display()));
                }
                None
            }
        }
    }
}

fn tree_nvcc(root: &Path) -> PathBuf {
    root.join(tree::CUDA).join("bin/nvcc")
}

fn carried(named: &'static str, folder: impl Into<OsString>) -> Result<PathBuf, ToolchainError> {
    let path = absolute(folder);
    if !path.is_dir() {
        return Err(ToolchainError::Named { named, path, problem: "which is not a folder".to_owned() });
    }
    match tree::check(&path, Depth::Quick) {
        Ok(()) => Ok(path),
        Err(reason) => Err(ToolchainError::Damaged { path, reason }),
    }
}

fn named_nvcc(named: &'static str, path: PathBuf) -> Result<Found, ToolchainError> {
    if !is_program(&path) {
        let problem = if path.is_dir() {
            "which is a folder; name the program in it"
        } else if path.exists() {
            "which cannot be executed"
        } else {
            "which does not exist"
        };
        return Err(ToolchainError::Named { named, path, problem: problem.to_owned() });
    }
    match nvcc_version(&path) {
        Err(problem) => Err(ToolchainError::Named { named, path, problem }),
        Ok(found) if found < OLDEST_NVCC => {
            Err(ToolchainError::TooOld { named, what: "nvcc", path, found, needed: OLDEST_NVCC })
        }
        Ok(version) => Ok(Found { path, version, origin: Origin::Named(named) }),
    }
}

fn named_cutlass(named: &'static str, folder: OsString) -> Result<Found, ToolchainError> {
    let folder = absolute(folder);
    let Some(path) =
        [folder.clone(), folder.join(tree::CUTLASS), folder.join("source")].into_iter().find(|root| {
            root.join("include/cutlass/version.h").is_file() && root.join("include/cute/tensor.hpp").is_file()
        })
    else {
        let problem = if folder.is_dir() {
            "which holds no CUTLASS: there is neither include/cutlass nor cutlass_library/source/include/cutlass"
        } else {
            "which is not a folder"
        };
        return Err(ToolchainError::Named { named, path: folder, problem: problem.to_owned() });
    };
    if !path.join("tools/util/include").is_dir() {
        let problem = "which holds CUTLASS without tools/util/include".to_owned();
        return Err(ToolchainError::Named { named, path, problem });
    }
    match cutlass_version(&path) {
        None => {
            let problem = "whose include/cutlass/version.h says no version".to_owned();
            Err(ToolchainError::Named { named, path, problem })
        }
        Some(found) if found < OLDEST_CUTLASS => {
            Err(ToolchainError::TooOld { named, what: "CUTLASS", path, found, needed: OLDEST_CUTLASS })
        }
        Some(version) => Ok(Found { path, version, origin: Origin::Named(named) }),
    }
}

/// Compilers run in folders of their own, where a relative path would mean something else.
fn absolute(path: impl Into<OsString>) -> PathBuf {
    let path = PathBuf::from(path.into());
    std::path::absolute(&path).unwrap_or(path)
}

/// The `-I` and `-L` folders of the toolkit that a compiler belongs to. nvcc of the Python packages looks for
/// libraries in `lib64`, which they do not have.
fn toolkit_folders(nvcc: &Path) -> [Vec<PathBuf>; 2] {
    let real = nvcc.canonicalize().unwrap_or_else(|_| nvcc.to_owned());
    // A distribution's nvcc lies in /usr/bin; its headers are found without our help, and -I must not reorder them.
    let root = real.parent().and_then(Path::parent).filter(|root| *root != Path::new("/usr"));
    let existing = |names: &[&str], needs: &str| -> Vec<PathBuf> {
        let folders = names.iter().filter_map(|name| Some(root?.join(name)));
        folders.filter(|folder| folder.join(needs).exists()).collect()
    };
    let mut include = existing(&["include"], "cuda_runtime.h");
    include.extend(existing(&["include/cccl"], "cuda/std"));
    [include, existing(&["lib64", "lib"], "libcudart_static.a")]
}
