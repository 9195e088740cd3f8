//! The environment of the compiler and of what it starts: an allow list, and what of it a key holds.
//!
//! nvcc, its parts and the host's compiler read dozens of variables that change what they make (`PTXAS_FLAGS`, `CPATH`,
//! `COMPILER_PATH`, ...). None is passed on. The tools get `LC_ALL`, `TMPDIR` and `PATH`, whose values are ours, and
//! `FOURFOLD_TOOLCHAIN`, which none of them reads. A host compiler that is not the system's also gets `LD_LIBRARY_PATH`.
//! The caller decides on the host compiler alone: the one that `NVCC_CCBIN` names, else `g++` on `PATH`.

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

/// The host compiler that counts as the system's when it lies there.
const HOST_COMPILER: &str = "g++";
/// The most bytes that a host compiler may have.
const LARGEST_COMPILER: u64 = 1 << 30;
/// The time a host compiler may take to print its version.
const VERSION_LIMIT: Duration = Duration::from_secs(60);

/// The part of the caller's environment that the tools of a build see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolEnvironment {
    /// The host compiler; a bare name is one that was named and is not there.
    host: Option<PathBuf>,
    /// Identifies a host compiler that is not the system's; empty for the system's.
    identity: String,
    /// `LD_LIBRARY_PATH` for a host compiler that is not the system's.
    library_path: Option<OsString>,
    /// The caller's environment: its `PATH`, `FOURFOLD_TOOLCHAIN` and the variables of a launcher.
    search: Environment,
}

impl ToolEnvironment {
    /// The tools' view of this environment. Asks a host compiler that is not the system's for its version.
    pub fn new(environment: &Environment) -> ToolEnvironment {
        let host = match &environment.nvcc_ccbin {
            Some(named) => environment.host_compilers().into_iter().next().or_else(|| Some(named.into())),
            None => environment.find_program(HOST_COMPILER),
        };
        // nvcc would have taken a relative path from its own working directory, which is none of the caller's.
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

    /// The tools' view of the environment of this process.
    pub fn from_process() -> ToolEnvironment {
        ToolEnvironment::new(&Environment::from_process())
    }

    /// The part of it that keys hold: nothing for the system's own `g++`, as for its C library, so that machines without a
    /// compiler find what others built; else the host compiler's version, a digest of its program, and one of
    /// `LD_LIBRARY_PATH`, which is then passed on.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// A program by its name alone, as the caller would find it.
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

    /// The arguments that name the host compiler to nvcc.
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

    /// Has a command run in the folder of a build with the constructed environment; `first` are relative folders that
    /// are searched before the system's.
    pub(super) fn apply(&self, command: &mut Command, folder: &Path, first: &[&Path]) {
        command.current_dir(folder).env_clear().env("LC_ALL", "C").env("TMPDIR", TEMPORARY);
        let mut path = OsString::new();
        for folder in first {
            path.push(folder);
            path.push(":");
        }
        if !self.identity.is_empty() && self.host.as_deref().is_some_and(has_folder) {
            // Its assembler and its linker lie beside it.
            path.push(Path::new(super::links::LINKS).join(HOST));
            path.push(":");
        }
        path.push(SYSTEM);
        command.env("PATH", path);
        name_toolchain(command, &self.search);
        self.add_library_path(command);
    }

    /// As [`apply`](Self::apply), for a program that starts the compiler: it gets its own settings too, and its
    /// temporary files lie where it likes, because what it starts to stay must not remember a folder that vanishes.
    pub(super) fn apply_to_launcher(&self, command: &mut Command, folder: &Path) {
        self.apply(command, folder, &[]);
        command.env_remove("TMPDIR");
        for (name, value) in &self.search.launcher {
            // The compiler gets it too, and pastes it into commands for a shell.
            if name != "TMPDIR" || is_plain(value) {
                command.env(name, value);
            }
        }
    }
}

/// The link to the folder of the host compiler.
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
