//! Looks at everything that building kernels needs, and says what is missing and what to do about it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::cache::cache_folder;
use super::error::ToolchainError;
use super::locate::{Found, Search, ToolchainOptions};
use super::tree;
use super::version::Version;
use crate::environment::Environment;
use crate::process::run_tool;

/// What became of one thing that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingState {
    /// It is there and will do.
    Ok,
    /// It is missing, or will not do, and kernels cannot be built without it.
    Missing,
    /// Kernels can be built, but someone should know.
    Note,
}

impl FindingState {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            FindingState::Ok => "ok",
            FindingState::Missing => "missing",
            FindingState::Note => "note",
        }
    }
}

/// One thing that was looked for.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it is, such as `nvcc`.
    pub name: &'static str,
    /// What became of it.
    pub state: FindingState,
    /// What was found, or why it will not do.
    pub detail: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// Everything that was looked for.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The findings, in the order of their use.
    pub findings: Vec<Finding>,
    /// The version of the nvcc that would be used.
    pub nvcc: Option<Version>,
}

impl Diagnosis {
    /// Whether kernels could be built now.
    pub fn can_build(&self) -> bool {
        self.findings.iter().all(|finding| finding.state != FindingState::Missing)
    }
}

/// How long a program may take to say its version.
const VERSION_LIMIT: Duration = Duration::from_secs(60);
const MIB: f64 = (1 << 20) as f64;

/// Looks for everything; changes nothing and needs no network.
pub fn diagnose(options: &ToolchainOptions, environment: &Environment) -> Diagnosis {
    let mut search = Search::new(options, environment);
    let nvcc = search.nvcc();
    let cutlass = search.cutlass();
    let beside = nvcc.as_ref().map_or(Path::new(""), |found| &found.path);
    let cuobjdump = search.cuobjdump(beside);
    let needs_packages = nvcc.is_err() || cutlass.is_err() || cuobjdump.is_none();
    let version = nvcc.as_ref().ok().map(|found| found.version);
    let findings = vec![
        part("nvcc", nvcc),
        part("CUTLASS", cutlass),
        disassembler(cuobjdump),
        host_compiler(environment),
        package_client(environment, needs_packages),
        cache(environment),
    ];
    Diagnosis { findings, nvcc: version }
}

fn part(name: &'static str, found: Result<Found, ToolchainError>) -> Finding {
    match found {
        Ok(found) => {
            let detail = format!("{} in {} ({})", found.version, found.path.display(), found.origin);
            Finding { name, state: FindingState::Ok, detail, remedy: None }
        }
        Err(error) => Finding {
            name,
            state: FindingState::Missing,
            detail: error.to_string(),
            remedy: Some(error.remedy().to_owned()),
        },
    }
}

fn disassembler(found: Option<PathBuf>) -> Finding {
    let name = "cuobjdump";
    match found {
        Some(path) => {
            Finding { name, state: FindingState::Ok, detail: path.display().to_string(), remedy: None }
        }
        None => Finding {
            name,
            state: FindingState::Missing,
            detail: "neither beside nvcc, on PATH nor in the cache; no kernel is used before its opcodes were seen"
                .to_owned(),
            remedy: Some("run `fourfold toolchain install`".to_owned()),
        },
    }
}

fn host_compiler(environment: &Environment) -> Finding {
    let (chosen, by) = match &environment.nvcc_ccbin {
        Some(compiler) => (PathBuf::from(compiler), "NVCC_CCBIN"),
        None => (PathBuf::from(HOST_COMPILERS[0]), "PATH"),
    };
    let program = host_programs(environment).into_iter().next();
    let said = program.as_deref().map(|program| first_line(program, &["--version"], environment));
    let (state, detail) = match (program, said) {
        (Some(program), Some(Ok(line))) => {
            (FindingState::Ok, format!("{line} in {} ({by})", program.display()))
        }
        (Some(program), Some(Err(problem))) => {
            (FindingState::Missing, format!("`{}` ({by}) {problem}", program.display()))
        }
        _ => {
            (FindingState::Missing, format!("there is no `{}` on PATH, and nvcc needs it", chosen.display()))
        }
    };
    let remedy = "install g++, or name a host compiler with NVCC_CCBIN".to_owned();
    Finding { name: "host compiler", state, detail, remedy: (state != FindingState::Ok).then_some(remedy) }
}

/// What nvcc calls for the host's code where nothing else is named: the first compiles, and the other is asked about
/// itself.
const HOST_COMPILERS: [&str; 2] = ["g++", "gcc"];

/// The programs that nvcc would use as host compiler, those that are there or are named.
pub(crate) fn host_programs(environment: &Environment) -> Vec<PathBuf> {
    match environment.nvcc_ccbin.as_ref().map(PathBuf::from) {
        None => HOST_COMPILERS.iter().filter_map(|name| environment.find_program(name)).collect(),
        Some(chosen) if chosen.components().count() <= 1 => {
            environment.find_program(&chosen).into_iter().collect()
        }
        // nvcc takes the folder of a compiler as well.
        Some(chosen) if chosen.is_dir() => HOST_COMPILERS.iter().map(|name| chosen.join(name)).collect(),
        Some(chosen) => vec![chosen],
    }
}

fn package_client(environment: &Environment, needed: bool) -> Finding {
    let said = match environment.find_program("python3") {
        None => Err("there is no python3 on PATH".to_owned()),
        // `pip VERSION from FOLDER (python VERSION)`
        Some(python) => first_line(&python, &["-m", "pip", "--version"], environment)
            .map_err(|problem| format!("`{} -m pip` {problem}", python.display())),
    };
    let use_ =
        if needed { "needed to install the toolchain" } else { "not needed: the toolchain is complete" };
    let (state, detail) = match said {
        Ok(line) => (FindingState::Ok, line),
        Err(problem) if needed => (FindingState::Missing, format!("{problem}; {use_}")),
        Err(problem) => (FindingState::Note, format!("{problem}; {use_}")),
    };
    let remedy = ToolchainError::NoPython.remedy().to_owned();
    let remedy = (state != FindingState::Ok).then_some(remedy);
    Finding { name: "python3 with pip", state, detail, remedy }
}

fn cache(environment: &Environment) -> Finding {
    let name = "cache";
    let folder = match cache_folder(environment) {
        Ok(folder) => folder,
        Err(error) => {
            let remedy = Some(error.remedy().to_owned());
            return Finding { name, state: FindingState::Note, detail: error.to_string(), remedy };
        }
    };
    let shown = folder.display();
    let note =
        |detail, remedy: String| Finding { name, state: FindingState::Note, detail, remedy: Some(remedy) };
    let metadata = match fs::metadata(&folder) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let detail = format!("{shown} (not there yet)");
            return Finding { name, state: FindingState::Ok, detail, remedy: None };
        }
        Err(error) => {
            return note(format!("`{shown}` cannot be read: {error}"), "set FOURFOLD_CACHE_DIR".to_owned());
        }
    };
    if !metadata.is_dir() {
        return note(format!("`{shown}` is not a folder"), "set FOURFOLD_CACHE_DIR to another".to_owned());
    }
    let mode = metadata.permissions().mode() & 0o777;
    let size = match tree::inventory(&folder) {
        Ok((files, bytes)) => format!("{files} files, {:.0} MiB, mode {mode:03o}", bytes as f64 / MIB),
        Err(error) => format!("mode {mode:03o}; {error}"),
    };
    if mode & 0o022 != 0 {
        let detail = format!("{shown} ({size}) can be written by others, and what lies there is run");
        return note(detail, format!("chmod go-w {shown}"));
    }
    Finding { name, state: FindingState::Ok, detail: format!("{shown} ({size})"), remedy: None }
}

/// The first line that a program prints, or what is wrong with it.
fn first_line(program: &Path, arguments: &[&str], environment: &Environment) -> Result<String, String> {
    let mut command = Command::new(program);
    // `python3 -m` looks into the current folder first, which may be anyone's.
    command.args(arguments).current_dir("/");
    if let Some(path) = &environment.path {
        command.env("PATH", path);
    }
    let run = run_tool(&mut command, VERSION_LIMIT).map_err(|error| format!("cannot be run: {error}"))?;
    let line = run.log.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
    let line: String = line.chars().take(200).collect();
    if run.succeeded() { Ok(line) } else { Err(format!("ended with {}: {line}", run.ending())) }
}
