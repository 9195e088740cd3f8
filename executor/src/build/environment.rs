//! The tools' environment: an allow list, and the part of it that enters cache keys.
//!
//! nvcc, its parts and the host compiler read dozens of variables that change their output (`PTXAS_FLAGS`, `CPATH`,
//! `COMPILER_PATH`, ...). None is passed on. Tools get `LC_ALL`, `TMPDIR` and `PATH` with values set here, and
//! `FOURFOLD_TOOLCHAIN`, which none of them reads. A non-system host compiler also gets `LD_LIBRARY_PATH`. The caller
//! chooses only the host compiler: `NVCC_CCBIN`, or else `g++` on `PATH`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::links::Links;
use super::{BuildError, TEMPORARY};
use crate::environment::{Environment, is_program};
use crate::files::hash_of;
use crate::isolation::{SYSTEM, is_plain, name_toolchain};
use crate::process::run_tool;

/// The name of the system's host compiler.
const HOST_COMPILER: &str = "g++";
/// The maximum size of a host compiler, in bytes.
const LARGEST_COMPILER: u64 = 1 << 30;
/// Time limit for printing a host compiler's version.
const VERSION_LIMIT: Duration = Duration::from_secs(60);

/// The part of the caller's environment that the tools of a build see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolEnvironment {
    /// The host compiler. A bare name means that the named compiler was not found.
    host: Option<PathBuf>,
    /// Identifies a non-system host compiler; empty for the system's.
    identity: String,
    /// `LD_LIBRARY_PATH` for a non-system host compiler.
    library_path: Option<OsString>,
    /// The caller's environment: `PATH`, `FOURFOLD_TOOLCHAIN` and launcher variables.
    search: Environment,
}

impl ToolEnvironment {
    /// Derives the tools' environment. Runs a non-system host compiler with `--version`.
    pub fn new(environment: &Environment) -> ToolEnvironment {
        let host = match &environment.nvcc_ccbin {
            Some(named) => environment.host_compilers().into_iter().next().or_else(|| Some(named.into())),
            None => environment.find_program(HOST_COMPILER),
        };
        // nvcc would resolve a relative path against its own working directory, not the caller's.
        let host = host
            .map(|host| if has_folder(&host) { std::path::absolute(&host).unwrap_or(host) } else { host });
        let mut tools = ToolEnvironment {
            identity: String::new(),
            library_path: None,
            search: environment.clone(),
            host,
        };
        if let Some(host) = tools.host.clone().filter(|host| !is_the_systems(host)) {
            tools.library_path = environment.ld_library_path.clone();
            tools.identity = tools.identify(&host);
        }
        tools
    }

    /// Derives the tools' environment from this process's.
    pub fn from_process() -> ToolEnvironment {
        ToolEnvironment::new(&Environment::from_process())
    }

    /// The part that enters cache keys. Empty for the system's `g++`, whose version is ignored like that of the C
    /// library, so that machines without a compiler find entries built elsewhere. Otherwise the host compiler's
    /// version, and a digest of its program and of `LD_LIBRARY_PATH`, which is passed on.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Finds a program by name on the caller's `PATH`.
    pub(super) fn find(&self, name: &OsStr) -> Option<PathBuf> {
        self.search.find_program(name)
    }

    fn identify(&self, host: &Path) -> String {
        let mut command = Command::new(host);
        command.arg("--version").current_dir("/").env_clear().env("PATH", SYSTEM).env("LC_ALL", "C");
        self.add_library_path(&mut command);
        let version = match run_tool(&mut command, VERSION_LIMIT) {
            Ok(run) if run.succeeded() => run.log.lines().next().unwrap_or_default().trim().to_owned(),
            Ok(run) => run.ending(),
            Err(error) => error.to_string(),
        };
        let program = hash_of(host, LARGEST_COMPILER).map_or([0; 32], |hash| *hash.as_bytes());
        let libraries = self.library_path.as_deref().unwrap_or_default();
        let mut digest = blake3::Hasher::new();
        digest.update(&program).update(libraries.as_encoded_bytes());
        format!("{version} {:.32}", digest.finalize().to_hex())
    }

    fn add_library_path(&self, command: &mut Command) {
        if let Some(libraries) = &self.library_path {
            command.env("LD_LIBRARY_PATH", libraries);
        }
    }

    /// The arguments that select nvcc's host compiler.
    pub(super) fn host_arguments(&self, links: &Links<'_>) -> Result<Vec<OsString>, BuildError> {
        let Some(host) = &self.host else { return Ok(Vec::new()) };
        let name = if has_folder(host) {
            links.program(HOST, host)?
        } else if is_plain(host.as_os_str()) {
            host.clone()
        } else {
            return Err(BuildError::UnsafePath { what: "host compiler", path: host.clone() });
        };
        Ok(vec!["-ccbin".into(), name.into()])
    }

    /// Makes a command run in the build folder with the constructed environment. `first` are relative folders
    /// searched before the system's.
    pub(super) fn apply(&self, command: &mut Command, folder: &Path, first: &[&Path]) {
        command.current_dir(folder).env_clear().env("LC_ALL", "C").env("TMPDIR", TEMPORARY);
        let mut path = OsString::new();
        for folder in first {
            path.push(folder);
            path.push(":");
        }
        if !self.identity.is_empty() && self.host.as_deref().is_some_and(has_folder) {
            // Its assembler and linker are in the same folder.
            path.push(Path::new(super::links::LINKS).join(HOST));
            path.push(":");
        }
        path.push(SYSTEM);
        command.env("PATH", path);
        name_toolchain(command, &self.search);
        self.add_library_path(command);
    }

    /// Like [`apply`](Self::apply), for a launcher. It also gets its own variables, and the default `TMPDIR`: a
    /// server that it leaves running must not depend on a temporary build folder.
    pub(super) fn apply_to_launcher(&self, command: &mut Command, folder: &Path) {
        self.apply(command, folder, &[]);
        command.env_remove("TMPDIR");
        for (name, value) in &self.search.launcher {
            // The compiler inherits it and pastes it into shell commands.
            if name != "TMPDIR" || is_plain(value) {
                command.env(name, value);
            }
        }
    }
}

/// The name of the link to the host compiler's folder.
const HOST: &str = "host";

fn has_folder(program: &Path) -> bool {
    program.components().count() > 1
}

fn is_the_systems(host: &Path) -> bool {
    let system = std::env::split_paths(SYSTEM)
        .map(|folder| folder.join(HOST_COMPILER))
        .find(|program| is_program(program));
    let same = |system: PathBuf| Some(system.canonicalize().ok()? == host.canonicalize().ok()?);
    system.and_then(same).unwrap_or(false)
}
