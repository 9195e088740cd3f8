//! The search for a compiler and CUTLASS.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::cache::cache_folder;
use super::error::{CUDA_HOME, CUTLASS_PATH, PATH, ToolchainError};
use super::flaw::Flaw;
use super::known_bad::{KnownBad, Tool, known_bad};
use super::pins::Part;
use super::provision::{parts_for, provision, provisioned_folder};
use super::tree::{self, Depth};
use super::version::{
    OLDEST_CUTLASS, OLDEST_NVCC, Version, cutlass_version, needs_cutlass, nvcc_version, oldest_nvcc_for,
    toolkit_root,
};
use crate::environment::{Environment, is_program};

/// Search options. By default, nothing is named and nothing installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolchainOptions {
    /// The compiler to use (`--nvcc`).
    pub nvcc: Option<PathBuf>,
    /// The CUTLASS to use (`--cutlass`).
    pub cutlass: Option<PathBuf>,
    /// A toolchain folder that [`provision`] made on another machine, used in place (`--from`).
    pub from: Option<PathBuf>,
    /// Install the pinned packages if nothing is found.
    pub provision: bool,
    /// The targets to build for. For an emulated kernel, both its target and the architecture it is compiled for.
    /// Only tools suitable for all of them are chosen, and CUTLASS is required only if one needs it. If empty, the
    /// first compiler found is chosen, and CUTLASS is required.
    pub targets: Vec<String>,
    /// Accept versions known to be bad for a target (`--allow-known-bad`, `FOURFOLD_ALLOW_KNOWN_BAD`).
    pub allow_known_bad: bool,
}

/// The origin of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An option or variable, such as `--nvcc`, `CUDA_HOME` or `PATH`.
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

/// A compiler, with CUTLASS if found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler.
    pub nvcc: PathBuf,
    /// Folders that nvcc needs as `-I`, in order.
    pub include: Vec<PathBuf>,
    /// Folders that nvcc needs as `-L`, in order.
    pub libraries: Vec<PathBuf>,
    /// CUTLASS. Kernels for sm_90a do not need it.
    pub cutlass: Option<Cutlass>,
    /// The disassembler. It finds `nvdisasm` beside itself or on `PATH`.
    pub cuobjdump: Option<PathBuf>,
    /// The version of nvcc, such as `13.1.115`.
    pub nvcc_version: String,
    /// The origin of nvcc.
    pub nvcc_origin: Origin,
    /// Use it even for targets that its versions are known to be bad for.
    pub allow_known_bad: bool,
    /// Tools that were found but not used, with reasons, for display.
    pub passed_over: Vec<String>,
}

/// A CUTLASS installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cutlass {
    /// A folder with `include/` and `tools/util/include/`.
    pub path: PathBuf,
    /// Its version, such as `4.5.0`.
    pub version: String,
    /// The origin.
    pub origin: Origin,
}

impl Cutlass {
    /// Its include folders.
    pub fn include(&self) -> [PathBuf; 2] {
        [self.path.join("include"), self.path.join("tools/util/include")]
    }
}

impl Toolchain {
    /// The include folders of CUTLASS; empty without CUTLASS.
    pub fn cutlass_include(&self) -> Vec<PathBuf> {
        self.cutlass.iter().flat_map(Cutlass::include).collect()
    }

    /// Returns true if this nvcc compiles for a target (`sm_100a` or `100a`).
    pub fn supports(&self, target: &str) -> bool {
        let version = Version::parse(&self.nvcc_version);
        oldest_nvcc_for(target).is_some_and(|oldest| version.is_some_and(|version| version >= oldest))
    }

    /// The known-bad entry that excludes this toolchain for these targets, with the tool and its version. `None` if
    /// `allow_known_bad` is set.
    pub fn known_bad(&self, targets: &[&str]) -> Option<(Tool, String, &'static KnownBad)> {
        if self.allow_known_bad {
            return None;
        }
        let nvcc = Some((Tool::Nvcc, &self.nvcc_version));
        let cutlass = self.cutlass.as_ref().map(|cutlass| (Tool::Cutlass, &cutlass.version));
        let needs_cutlass = targets.iter().any(|target| needs_cutlass(target));
        nvcc.into_iter().chain(cutlass.filter(|_| needs_cutlass)).find_map(|(tool, version)| {
            let bad = known_bad(tool, Version::parse(version)?, targets.iter().copied())?;
            Some((tool, version.clone(), bad))
        })
    }
}

/// Finds a toolchain, or installs one if there is none and the options allow it.
///
/// # Errors
/// When a named tool does not exist, is too old or is known to be bad for a target; when nothing is found; or when
/// installing fails.
pub fn locate(options: &ToolchainOptions, environment: &Environment) -> Result<Toolchain, ToolchainError> {
    locate_with_progress(options, environment, &mut |_| {})
}

/// Like [`locate`]; reports installation progress to `progress`, one line at a time.
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
    let is_absent = nvcc.as_ref().is_err_and(ToolchainError::is_absence)
        || cutlass.as_ref().is_err_and(ToolchainError::is_absence);
    // A compiler without a disassembler is unusable: no kernel is used before its opcodes are checked.
    let is_blind = nvcc.as_ref().is_ok_and(|nvcc| search.cuobjdump(&nvcc.path).is_none());
    if options.provision && (is_absent || is_blind) {
        let parts = parts_for(&options.targets);
        provision(&cache_folder(environment)?, &parts, environment, progress)?;
        search = Search::new(options, environment);
        nvcc = search.nvcc();
        cutlass = search.cutlass();
    }
    let (nvcc, cutlass) = (nvcc?, cutlass?);
    let cuobjdump = search.cuobjdump(&nvcc.path);
    let [include, libraries] = toolkit_folders(search.toolkit(&nvcc.path));
    let cutlass = cutlass.map(|found| Cutlass {
        path: found.path,
        version: found.version.to_string(),
        origin: found.origin,
    });
    Ok(Toolchain {
        include,
        libraries,
        cutlass,
        cuobjdump,
        nvcc: behind_links(nvcc.path),
        nvcc_version: nvcc.version.to_string(),
        nvcc_origin: nvcc.origin,
        allow_known_bad: search.allows_known_bad(),
        passed_over: search.passed_over,
    })
}

/// A tool that was found.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) version: Version,
    pub(super) origin: Origin,
}

/// A search, with the tools that it skipped.
pub(super) struct Search<'a> {
    options: &'a ToolchainOptions,
    environment: &'a Environment,
    targets: Vec<String>,
    /// Cached results of `nvcc --version`.
    versions: HashMap<PathBuf, Result<Version, Flaw>>,
    /// Cached toolkit folders of compilers.
    toolkits: HashMap<PathBuf, Option<PathBuf>>,
    passed_over: Vec<String>,
}

impl<'a> Search<'a> {
    pub(super) fn new(options: &'a ToolchainOptions, environment: &'a Environment) -> Search<'a> {
        let targets = options.targets.clone();
        Search {
            options,
            environment,
            targets,
            versions: HashMap::new(),
            toolkits: HashMap::new(),
            passed_over: Vec::new(),
        }
    }

    /// Restarts the search for another target.
    pub(super) fn turn_to(&mut self, target: &str) {
        self.targets = vec![target.to_owned()];
        self.passed_over.clear();
    }

    /// Tools found but not used so far, with reasons.
    pub(super) fn passed_over(&self) -> &[String] {
        &self.passed_over
    }

    pub(super) fn allows_known_bad(&self) -> bool {
        self.options.allow_known_bad || self.environment.allows_known_bad()
    }

    pub(super) fn needs_cutlass(&self) -> bool {
        parts_for(&self.targets).contains(&Part::Cutlass)
    }

    pub(super) fn nvcc(&mut self) -> Result<Found, ToolchainError> {
        if let Some(nvcc) = &self.options.nvcc {
            return self.named_nvcc("--nvcc", absolute(nvcc));
        }
        if let Some(folder) = &self.options.from {
            let root = carried("--from", folder, Part::Compiler)?;
            return self.named_nvcc("--from", tree_nvcc(&root));
        }
        if let Some(nvcc) = &self.environment.fourfold_nvcc {
            return self.named_nvcc("FOURFOLD_NVCC", absolute(nvcc));
        }
        if let Some(folder) = &self.environment.fourfold_toolchain {
            let name = "FOURFOLD_TOOLCHAIN";
            let root = carried(name, folder, Part::Compiler)?;
            return self.named_nvcc(name, tree_nvcc(&root));
        }
        let mut passed_over = Vec::new();
        let mut shared = Vec::new();
        if let Some(folder) = &self.environment.cuda_home {
            let folder = absolute(folder);
            if !folder.is_dir() {
                let problem = "which is not a folder".to_owned();
                return Err(ToolchainError::Named { named: CUDA_HOME, path: folder, problem });
            }
            // Machines that only run programs have a toolkit without a compiler.
            let nvcc = folder.join("bin/nvcc");
            if is_program(&nvcc) {
                shared.push((CUDA_HOME, nvcc));
            } else {
                passed_over.push(format!("CUDA_HOME names `{}`, which has no bin/nvcc", folder.display()));
            }
        }
        shared.extend(self.environment.find_program("nvcc").map(|nvcc| (PATH, nvcc)));
        let mut bad = None;
        for (name, nvcc) in shared {
            match self.named_nvcc(name, nvcc).and_then(|found| self.check_targets(found)) {
                Ok(found) => {
                    self.passed_over.extend(passed_over);
                    return Ok(found);
                }
                Err(error) => {
                    passed_over.push(error.to_string());
                    bad = bad.or(matches!(error, ToolchainError::KnownBad { .. }).then_some(error));
                }
            }
        }
        let provisioned = self.provisioned(Part::Compiler, &mut passed_over);
        self.passed_over.extend(passed_over.clone());
        let absent = bad.unwrap_or(ToolchainError::NotFound { what: "nvcc", passed_over });
        let root = provisioned.ok_or(absent)?;
        let found = self.named_nvcc("the cache", tree_nvcc(&root))?;
        Ok(Found { origin: Origin::Provisioned, ..found })
    }

    /// Finds CUTLASS. `None` if there is none and no target needs it.
    pub(super) fn cutlass(&mut self) -> Result<Option<Found>, ToolchainError> {
        match self.find_cutlass() {
            Err(error) if error.is_absence() && !self.needs_cutlass() => Ok(None),
            result => result.map(Some),
        }
    }

    fn find_cutlass(&mut self) -> Result<Found, ToolchainError> {
        let environment = self.environment;
        if let Some(cutlass) = &self.options.cutlass {
            return self.named_cutlass("--cutlass", cutlass.as_os_str().to_owned());
        }
        if let Some(folder) = &self.options.from {
            return self.carried_cutlass("--from", folder.as_os_str());
        }
        if let Some(cutlass) = &environment.fourfold_cutlass {
            return self.named_cutlass("FOURFOLD_CUTLASS", cutlass.clone());
        }
        if let Some(folder) = &environment.fourfold_toolchain {
            return self.carried_cutlass("FOURFOLD_TOOLCHAIN", folder);
        }
        let mut passed_over = Vec::new();
        let mut bad = None;
        if let Some(cutlass) = &environment.cutlass_path {
            match self.named_cutlass(CUTLASS_PATH, cutlass.clone()) {
                // Another program's CUTLASS may be too old, so skip it; a missing one is an error if a target needs
                // it.
                Err(error)
                    if !self.needs_cutlass()
                        || matches!(
                            error,
                            ToolchainError::TooOld { .. } | ToolchainError::KnownBad { .. }
                        ) =>
                {
                    passed_over.push(error.to_string());
                    bad = matches!(error, ToolchainError::KnownBad { .. }).then_some(error);
                }
                result => return result,
            }
        }
        let provisioned = self.provisioned(Part::Cutlass, &mut passed_over);
        self.passed_over.extend(passed_over.clone());
        let absent = bad.unwrap_or(ToolchainError::NotFound { what: "CUTLASS", passed_over });
        let root = provisioned.ok_or(absent)?;
        let found = self.named_cutlass("the cache", root.join(tree::CUTLASS).into())?;
        Ok(Found { origin: Origin::Provisioned, ..found })
    }

    fn carried_cutlass(&self, named: &'static str, folder: &OsStr) -> Result<Found, ToolchainError> {
        // A toolchain may be carried without CUTLASS if no target needs it.
        if !self.needs_cutlass() && !Path::new(folder).join(tree::CUTLASS).exists() {
            return Err(ToolchainError::NotFound { what: "CUTLASS", passed_over: Vec::new() });
        }
        let root = carried(named, folder, Part::Cutlass)?;
        self.named_cutlass(named, root.join(tree::CUTLASS).into())
    }

    /// Finds cuobjdump: beside nvcc, in the toolkit of the nvcc that a wrapper starts, on `PATH`, or in the cache.
    pub(super) fn cuobjdump(&mut self, nvcc: &Path) -> Option<PathBuf> {
        let beside =
            |nvcc: &Path| nvcc.parent().map(|bin| bin.join("cuobjdump")).filter(|file| is_program(file));
        beside(nvcc)
            .or_else(|| beside(&nvcc.canonicalize().ok()?))
            .or_else(|| beside(&self.toolkit(nvcc)?.join("bin/nvcc")))
            .or_else(|| self.environment.find_program("cuobjdump"))
            .or_else(|| beside(&tree_nvcc(&self.provisioned(Part::Compiler, &mut Vec::new())?)))
    }

    /// The toolkit of a compiler.
    fn toolkit(&mut self, nvcc: &Path) -> Option<PathBuf> {
        let real = nvcc.canonicalize().unwrap_or_else(|_| nvcc.to_owned());
        let beside = real.parent().and_then(Path::parent).map(Path::to_owned);
        match beside {
            Some(root) if HEADERS.iter().any(|header| root.join(header).exists()) => Some(root),
            // A wrapper script lies outside its toolkit but can report it.
            beside => {
                let ask = || toolkit_root(nvcc, self.environment);
                self.toolkits.entry(nvcc.to_owned()).or_insert_with(ask).clone().or(beside)
            }
        }
    }

    /// The provisioned toolchain, if this part of it is complete.
    fn provisioned(&self, part: Part, passed_over: &mut Vec<String>) -> Option<PathBuf> {
        let place = provisioned_folder(&cache_folder(self.environment).ok()?);
        match tree::check(&place, part, Depth::Quick) {
            Ok(()) => Some(place),
            Err(flaw) => {
                if place.join(part.folder()).exists() {
                    passed_over.push(format!("the toolchain in `{}`: {}", place.display(), flaw.problem));
                }
                None
            }
        }
    }

    fn named_nvcc(&mut self, named: &'static str, path: PathBuf) -> Result<Found, ToolchainError> {
        if !is_program(&path) {
            let flaw = match path.metadata() {
                Ok(metadata) if metadata.is_dir() => Flaw::of("which is a folder; name the program in it"),
                Ok(_) => Flaw::of("which cannot be executed"),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Flaw::of("which does not exist"),
                Err(error) => Flaw::of_system(format!("which cannot be inspected: {error}"), &error),
            };
            return Err(ToolchainError::of_named(named, &path, flaw));
        }
        let version = self
            .versions
            .entry(path.clone())
            .or_insert_with(|| nvcc_version(&path, self.environment))
            .clone();
        match version {
            Err(flaw) => Err(ToolchainError::of_named(named, &path, flaw)),
            Ok(found) if found < OLDEST_NVCC => {
                Err(ToolchainError::TooOld { named, what: "nvcc", path, found, needed: OLDEST_NVCC })
            }
            Ok(version) => {
                let found = Found { path, version, origin: Origin::Named(named) };
                self.check_known_bad(named, Tool::Nvcc, found)
            }
        }
    }

    /// Checks that a compiler is new enough for the targets. A shared one that is not is skipped; a named one fails
    /// when used.
    pub(super) fn check_targets(&self, found: Found) -> Result<Found, ToolchainError> {
        match self.targets.iter().filter_map(|target| oldest_nvcc_for(target)).max() {
            Some(needed) if found.version < needed => {
                let Found { path, version, origin } = found;
                let named = match origin {
                    Origin::Named(named) => named,
                    Origin::Provisioned => "the cache",
                };
                Err(ToolchainError::TooOld { named, what: "nvcc", path, found: version, needed })
            }
            _ => Ok(found),
        }
    }

    fn check_known_bad(
        &self,
        named: &'static str,
        tool: Tool,
        found: Found,
    ) -> Result<Found, ToolchainError> {
        if self.allows_known_bad() || tool == Tool::Cutlass && !self.needs_cutlass() {
            return Ok(found);
        }
        match known_bad(tool, found.version, self.targets.iter().map(String::as_str)) {
            None => Ok(found),
            Some(bad) => Err(ToolchainError::KnownBad { named, path: found.path, found: found.version, bad }),
        }
    }

    fn named_cutlass(&self, named: &'static str, folder: OsString) -> Result<Found, ToolchainError> {
        let folder = absolute(folder);
        let places = [tree::CUTLASS, tree::CUTLASS_LIBRARY, "source"].map(|name| folder.join(name));
        let is_cutlass = |root: &PathBuf| {
            root.join("include/cutlass/version.h").is_file() && root.join("include/cute/tensor.hpp").is_file()
        };
        let Some(path) = [folder.clone()].into_iter().chain(places).find(is_cutlass) else {
            let problem = if folder.is_dir() {
                "which contains neither include/cutlass nor cutlass_library/source/include/cutlass"
            } else {
                "which is not a folder"
            };
            return Err(ToolchainError::Named { named, path: folder, problem: problem.to_owned() });
        };
        if !path.join("tools/util/include").is_dir() {
            let problem = "which contains CUTLASS without tools/util/include".to_owned();
            return Err(ToolchainError::Named { named, path, problem });
        }
        match cutlass_version(&path) {
            None => {
                let problem = "whose include/cutlass/version.h states no version".to_owned();
                Err(ToolchainError::Named { named, path, problem })
            }
            Some(found) if found < OLDEST_CUTLASS => {
                Err(ToolchainError::TooOld { named, what: "CUTLASS", path, found, needed: OLDEST_CUTLASS })
            }
            Some(version) => {
                let found = Found { path, version, origin: Origin::Named(named) };
                self.check_known_bad(named, Tool::Cutlass, found)
            }
        }
    }
}

fn tree_nvcc(root: &Path) -> PathBuf {
    root.join(tree::CUDA).join("bin/nvcc")
}

fn carried(named: &'static str, folder: impl Into<OsString>, part: Part) -> Result<PathBuf, ToolchainError> {
    let path = absolute(folder);
    check_folder(&path).map_err(|flaw| ToolchainError::of_named(named, &path, flaw))?;
    match tree::check(&path, part, Depth::Quick) {
        Ok(()) => Ok(path),
        Err(flaw) => Err(ToolchainError::of_folder(&path, flaw)),
    }
}

fn check_folder(path: &Path) -> Result<(), Flaw> {
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Flaw::of_system(format!("which cannot be inspected: {error}"), &error))
        }
        _ => Err(Flaw::of("which is not a folder")),
    }
}

/// Makes a path absolute, since compilers run in other folders.
fn absolute(path: impl Into<OsString>) -> PathBuf {
    let path = PathBuf::from(path.into());
    std::path::absolute(&path).unwrap_or(path)
}

/// Resolves a link to nvcc, which looks for its parts relative to the path it is started by. Wrapper scripts and
/// launchers keep their names: only a program with `nvcc.profile` beside it is nvcc itself.
fn behind_links(nvcc: PathBuf) -> PathBuf {
    const PROFILE: &str = "nvcc.profile";
    match nvcc.canonicalize() {
        Ok(real) if !nvcc.with_file_name(PROFILE).exists() && real.with_file_name(PROFILE).exists() => real,
        _ => nvcc,
    }
}

/// The `-I` and `-L` folders of a toolkit. nvcc from the Python packages looks for libraries in `lib64`, which those
/// lack.
fn toolkit_folders(root: Option<PathBuf>) -> [Vec<PathBuf>; 2] {
    // A distribution's nvcc is in /usr/bin. The host compiler finds its headers by default, and -I must not reorder
    // them.
    let root = root.filter(|root| root != Path::new("/usr"));
    let existing = |names: &[&str], needs: &str| -> Vec<PathBuf> {
        let folders = names.iter().filter_map(|name| Some(root.as_ref()?.join(name)));
        folders.filter(|folder| folder.join(needs).exists()).collect()
    };
    let mut include = existing(&["include"], "cuda_runtime.h");
    include.extend(existing(&["include/cccl"], "cuda/std"));
    [include, existing(&["lib64", "lib"], "libcudart_static.a")]
}

/// Files that identify a toolkit's root.
const HEADERS: [&str; 2] = ["include/cuda_runtime.h", "targets/x86_64-linux/include/cuda_runtime.h"];
