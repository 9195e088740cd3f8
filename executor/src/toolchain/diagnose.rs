//! Diagnosis: checks everything that building kernels requires, and names remedies for missing parts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::cache::cache_folder;
use super::error::ToolchainError;
use super::folder::obstacle;
use super::known_bad::{KnownBad, Tool, all_known_bad};
use super::locate::{Found, Search, ToolchainOptions};
use super::tree;
use super::version::{COMPILED_TARGETS, Version};
use crate::environment::{Environment, HOST_COMPILERS};
use crate::process::run_tool;

/// The outcome of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingState {
    /// Present and usable.
    Ok,
    /// Missing or unusable, which prevents building kernels.
    Missing,
    /// Worth knowing, but kernels can be built.
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

/// The result of one check.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The item checked, such as `nvcc`.
    pub name: &'static str,
    /// The outcome.
    pub state: FindingState,
    /// The item found, or the problem with it.
    pub detail: String,
    /// The remedy.
    pub remedy: Option<String>,
}

/// The findings for one target.
#[derive(Clone, Debug)]
pub struct TargetFinding {
    /// The target.
    pub target: &'static str,
    /// The reason that this nvcc and CUTLASS cannot build for the target; `None` if they can.
    pub problem: Option<String>,
    /// The remedy.
    pub remedy: Option<String>,
}

/// The results of all checks.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The findings, in order of use.
    pub findings: Vec<Finding>,
    /// One finding for each compiled target.
    pub targets: Vec<TargetFinding>,
    /// The version of the nvcc that would be used.
    pub nvcc: Option<Version>,
    /// The requested targets.
    wanted: Vec<String>,
}

impl Diagnosis {
    /// Returns true if kernels can be built now, for the targets of [`ToolchainOptions::targets`] if any are given.
    pub fn can_build(&self) -> bool {
        let is_wanted = |target: &&TargetFinding| self.wanted.iter().any(|wanted| wanted == target.target);
        self.findings.iter().all(|finding| finding.state != FindingState::Missing)
            && self.targets.iter().filter(is_wanted).all(|target| target.problem.is_none())
    }
}

/// Time limit for printing a program's version.
const VERSION_LIMIT: Duration = Duration::from_secs(60);
const MIB: f64 = (1 << 20) as f64;

/// Runs all checks. Changes nothing and needs no network.
pub fn diagnose(options: &ToolchainOptions, environment: &Environment) -> Diagnosis {
    let mut search = Search::new(options, environment);
    let nvcc = search.nvcc();
    let cutlass = search.cutlass();
    let beside = nvcc.as_ref().map_or(Path::new(""), |found| &found.path);
    let cuobjdump = search.cuobjdump(beside);
    let needs_packages = nvcc.is_err() || cutlass.is_err() || cuobjdump.is_none();
    let version = nvcc.as_ref().ok().map(|found| found.version);
    // Report skipped tools only beside the ones used; without those, the error names them.
    let passed_over = if needs_packages { Vec::new() } else { search.passed_over().to_vec() };
    let targets: Vec<TargetFinding> =
        COMPILED_TARGETS.iter().map(|(target, _)| of_target(&mut search, target)).collect();
    let is_allowed = search.allows_known_bad();
    let mut findings = vec![
        part(Tool::Nvcc, nvcc.map(Some), is_allowed, &targets),
        part(Tool::Cutlass, cutlass, is_allowed, &targets),
        disassembler(cuobjdump),
        host_compiler(environment),
        package_client(environment, needs_packages),
    ];
    findings.extend(cache(environment));
    findings.extend(passed_over.into_iter().map(|detail| Finding {
        name: "not used",
        state: FindingState::Note,
        detail,
        remedy: Some("no action needed: another one is used".to_owned()),
    }));
    Diagnosis { findings, targets, nvcc: version, wanted: options.targets.clone() }
}

fn of_target(search: &mut Search<'_>, target: &'static str) -> TargetFinding {
    search.turn_to(target);
    let compiler = search.nvcc().and_then(|found| search.check_targets(found));
    let error = compiler.err().or_else(|| search.cutlass().err());
    let problem = error.as_ref().map(ToString::to_string);
    TargetFinding { target, problem, remedy: error.map(|error| error.remedy().to_owned()) }
}

/// The finding for a tool: found, not needed, or missing.
fn part(
    tool: Tool,
    found: Result<Option<Found>, ToolchainError>,
    is_allowed: bool,
    targets: &[TargetFinding],
) -> Finding {
    let name = tool.name();
    let found = match found {
        Ok(Some(found)) => found,
        Ok(None) => {
            let detail = "not installed; kernels for sm_90a do not need it".to_owned();
            let remedy =
                Some("run `fourfold toolchain install` to build kernels for other targets".to_owned());
            return Finding { name, state: FindingState::Note, detail, remedy };
        }
        Err(error) => {
            let remedy = Some(error.remedy().to_owned());
            return Finding { name, state: FindingState::Missing, detail: error.to_string(), remedy };
        }
    };
    let mut detail = format!("{} in {} ({})", found.version, found.path.display(), found.origin);
    let bad: Vec<&KnownBad> = all_known_bad(tool, found.version).collect();
    for bad in &bad {
        detail += &format!("\n{bad}");
    }
    let has_problem = |target: &TargetFinding| {
        target.problem.is_some() && bad.iter().any(|bad| bad.is_about(target.target))
    };
    let remedy = if bad.is_empty() {
        None
    } else if is_allowed {
        Some("omit --allow-known-bad (FOURFOLD_ALLOW_KNOWN_BAD) to use another one for these targets")
    } else if targets.iter().any(has_problem) {
        Some("run `fourfold toolchain install`; these targets then use the installed one")
    } else {
        Some("no action needed: these targets use another one")
    };
    let state = if remedy.is_none() { FindingState::Ok } else { FindingState::Note };
    Finding { name, state, detail, remedy: remedy.map(str::to_owned) }
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
            detail:
                "not found beside nvcc, on PATH or in the cache; no kernel is used before it is disassembled"
                    .to_owned(),
            remedy: Some("run `fourfold toolchain install`".to_owned()),
        },
    }
}

fn host_compiler(environment: &Environment) -> Finding {
    let by = if environment.nvcc_ccbin.is_some() { "NVCC_CCBIN" } else { "PATH" };
    let mut detail = Vec::new();
    let mut state = FindingState::Ok;
    for wanted in wanted_host_programs(environment) {
        let said = wanted.found.as_deref().map(|program| first_line(program, &["--version"], environment));
        let line = match (&wanted.found, said) {
            (Some(program), Some(Ok(line))) => format!("{line} in {} ({by})", program.display()),
            (found, said) => {
                state = FindingState::Missing;
                match (found, said) {
                    (Some(program), Some(Err(problem))) => {
                        format!("`{}` ({by}) {problem}", program.display())
                    }
                    _ => format!("nvcc requires `{}`, which was not found", wanted.shown.display()),
                }
            }
        };
        detail.push(line);
    }
    let remedy = "install gcc and g++, or name a host compiler with NVCC_CCBIN".to_owned();
    let remedy = (state != FindingState::Ok).then_some(remedy);
    Finding { name: "host compiler", state, detail: detail.join("\n"), remedy }
}

/// A host program that nvcc calls.
struct Wanted {
    /// The name that nvcc uses.
    shown: PathBuf,
    found: Option<PathBuf>,
}

/// All host programs that nvcc calls. Each must exist.
fn wanted_host_programs(environment: &Environment) -> Vec<Wanted> {
    let file = |file: PathBuf| Wanted { found: file.exists().then(|| file.clone()), shown: file };
    match environment.nvcc_ccbin.as_ref().map(PathBuf::from) {
        None => HOST_COMPILERS
            .iter()
            .map(|name| Wanted { shown: name.into(), found: environment.find_program(name) })
            .collect(),
        Some(chosen) if chosen.components().count() <= 1 => {
            let found = environment.find_program(&chosen);
            vec![Wanted { shown: chosen, found }]
        }
        Some(chosen) if chosen.is_dir() => {
            HOST_COMPILERS.iter().map(|name| file(chosen.join(name))).collect()
        }
        Some(chosen) => vec![file(chosen)],
    }
}

fn package_client(environment: &Environment, needed: bool) -> Finding {
    let said = match environment.find_program("python3") {
        None => Err("python3 is not on PATH".to_owned()),
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

/// The cache folder, and the temporary folder, where builds happen if the cache is unusable.
fn cache(environment: &Environment) -> Vec<Finding> {
    let (cache, is_usable) = cache_place(environment);
    let temporary = std::env::temp_dir();
    let mut findings = vec![cache];
    if let Some(found) = obstacle(&temporary) {
        // With a usable cache, builds do not use this folder.
        let state = if is_usable { FindingState::Note } else { FindingState::Missing };
        let detail = format!("{}: {found}", temporary.display());
        let remedy =
            Some("set TMPDIR to a writable folder on a file system that allows execution".to_owned());
        findings.push(Finding { name: "temporary files", state, detail, remedy });
    }
    findings
}

/// The finding for the cache folder, and whether kernels can be built there.
fn cache_place(environment: &Environment) -> (Finding, bool) {
    let name = "cache";
    let finding = |state, detail, remedy: Option<&str>| Finding {
        name,
        state,
        detail,
        remedy: remedy.map(str::to_owned),
    };
    let folder = match cache_folder(environment) {
        Ok(folder) => folder,
        Err(error) => return (finding(FindingState::Note, error.to_string(), Some(error.remedy())), false),
    };
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        let detail = format!("`{shown}` is not a folder");
        return (finding(FindingState::Note, detail, Some("set FOURFOLD_CACHE_DIR to another")), false);
    }
    if let Some(found) = obstacle(&folder) {
        let state = if found.prevents_loading() { FindingState::Missing } else { FindingState::Note };
        let remedy = "set FOURFOLD_CACHE_DIR to a writable folder on a file system that allows execution";
        return (finding(state, format!("{shown}: {found}"), Some(remedy)), false);
    }
    let metadata = match fs::metadata(&folder) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return (finding(FindingState::Ok, format!("{shown} (not created yet)"), None), true);
        }
        Err(error) => {
            let detail = format!("`{shown}` cannot be read: {error}");
            return (
                finding(FindingState::Note, detail, Some("set FOURFOLD_CACHE_DIR to a readable folder")),
                false,
            );
        }
    };
    let mode = metadata.permissions().mode() & 0o777;
    let size = match tree::inventory(&folder) {
        Ok((files, bytes)) => format!("{files} files, {:.0} MiB, mode {mode:03o}", bytes as f64 / MIB),
        Err(error) => format!("mode {mode:03o}; {error}"),
    };
    if mode & 0o022 != 0 {
        let detail = format!("{shown} ({size}) is writable by other users, and kernels in it are executed");
        return (finding(FindingState::Note, detail, Some(&format!("run `chmod go-w {shown}`"))), false);
    }
    (finding(FindingState::Ok, format!("{shown} ({size})"), None), true)
}

/// The first line that a program prints, or the problem with running it.
fn first_line(program: &Path, arguments: &[&str], environment: &Environment) -> Result<String, String> {
    let mut command = Command::new(program);
    // `python3 -m` searches the current folder first, which may be anyone's.
    command.args(arguments).current_dir("/");
    if let Some(path) = &environment.path {
        command.env("PATH", path);
    }
    let run = run_tool(&mut command, VERSION_LIMIT).map_err(|error| format!("cannot be run: {error}"))?;
    let line = run.log.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
    let line: String = line.chars().take(200).collect();
    if run.succeeded() { Ok(line) } else { Err(format!("ended with {}: {line}", run.ending())) }
}
