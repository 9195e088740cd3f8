//! The Python package client: downloads the pinned packages, unaffected by the user's other settings.
//!
//! pip gets a constructed environment. Only the settings in `PIP_OPTIONS` are kept, from variables and configuration
//! files: package indexes, network access and certificates. Hashes protect the content.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::cache::create_private;
use super::error::ToolchainError;
use super::pins::{Part, requirements, unpack_plan};
use crate::environment::{Environment, PIP_OPTIONS};
use crate::process::{ToolRun, run_tool, run_tool_watched};

/// The time limit of pip: twice the time of 184 MB at 1 Mbit/s.
const PIP_LIMIT: Duration = Duration::from_secs(50 * 60);
/// The time limit for printing its settings.
const SETTINGS_LIMIT: Duration = Duration::from_secs(60);
/// The time limit of unpacking.
const UNPACK_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The variables that locate pip's configuration files.
const SETTINGS_VARIABLES: [&str; 3] = ["PIP_CONFIG_FILE", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"];
/// The script that takes files from wheels.
const UNPACK: &str = include_str!("unpack.py");

/// This machine's Python, run in a working folder.
pub(super) struct Python<'a> {
    program: PathBuf,
    environment: &'a Environment,
    work: &'a Path,
}

impl<'a> Python<'a> {
    /// The `python3` on the environment's `PATH`.
    pub(super) fn find(environment: &'a Environment, work: &'a Path) -> Result<Python<'a>, ToolchainError> {
        let program = environment.find_program("python3").ok_or(ToolchainError::NoPython)?;
        Ok(Python { program, environment, work })
    }

    /// Downloads these parts, and unpacks the required files into `tree`.
    pub(super) fn fill(
        &self,
        parts: &[Part],
        tree: &Path,
        cache: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), ToolchainError> {
        let in_work = |name: &str| self.work.join(name);
        let write = |name: &str, text: &str| {
            fs::write(in_work(name), text)
                .map_err(|error| ToolchainError::from_io("write", &in_work(name), error))
        };
        write("requirements.txt", &requirements(parts))?;
        write("plan.json", &unpack_plan(parts).to_string())?;
        write("unpack.py", UNPACK)?;
        for folder in ["scratch", "wheels"] {
            create_private(&in_work(folder))?;
        }
        let mut download = self.download();
        let run = run_tool_watched(&mut download, PIP_LIMIT, None, &mut |line| {
            if let Some(package) = line.trim_start().strip_prefix("Collecting ") {
                progress(&format!("getting {}", package.split_whitespace().next().unwrap_or(package)));
            }
        })
        .map_err(|_| ToolchainError::NoPython)?;
        if !run.succeeded() {
            return Err(failure(&run, cache));
        }
        progress("unpacking");
        let mut unpack = self.command();
        unpack.arg("-I").args(["unpack.py", "plan.json", "wheels"]).arg(tree);
        let run = run_tool(&mut unpack, UNPACK_LIMIT).map_err(|_| ToolchainError::NoPython)?;
        if run.succeeded() { Ok(()) } else { Err(failure(&run, cache)) }
    }

    /// The download command without its last arguments.
    fn download(&self) -> Command {
        let mut command = self.command();
        command
            .args(["-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"])
            // Headers and programs do not depend on the Python version. A variable, because old versions of pip lack
            // the option.
            .env("PIP_IGNORE_REQUIRES_PYTHON", "1")
            .args(["--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off"])
            // Only verbose output says why an index did not answer.
            .arg("--verbose")
            .args(["--dest", "wheels", "-r", "requirements.txt"])
            .envs(self.settings())
            .env("PIP_CONFIG_FILE", "/dev/null");
        command
    }

    /// Python in the working folder, with only those user variables that running it and reaching an index require.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear();
        command.envs(self.environment.path.iter().map(|path| ("PATH", path)));
        command.envs(self.environment.home.iter().map(|home| ("HOME", home)));
        let passed = self.environment.pip_variables.iter().filter(|(name, _)| !name.starts_with("PIP_"));
        command.envs(passed.filter(|(name, _)| !SETTINGS_VARIABLES.contains(name)).cloned());
        command
            // `python3 -m` would import a `pip.py` from the user's current folder.
            .current_dir(self.work)
            // Outside the cache, a killed pip would leave its temporary files behind.
            .env("TMPDIR", self.work.join("scratch"))
            // The output of pip and of the system is parsed.
            .env("LC_ALL", "C.UTF-8")
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// The effective settings as variables. The environment takes precedence over configuration files.
    fn settings(&self) -> BTreeMap<OsString, OsString> {
        let mut found = BTreeMap::new();
        let mut ask = self.command();
        let theirs = self.environment.pip_variables.iter();
        ask.envs(theirs.filter(|(name, _)| SETTINGS_VARIABLES.contains(name)).cloned());
        ask.args(["-m", "pip", "config", "list", "--no-input", "--disable-pip-version-check"]);
        // If pip cannot list its settings, assume none; other problems show at the download.
        if let Ok(run) = run_tool(&mut ask, SETTINGS_LIMIT)
            && run.succeeded()
        {
            for (name, value) in configured(&run.log) {
                found.insert(variable(name).into(), value.into());
            }
        }
        let set = self.environment.pip_variables.iter();
        let set = set.filter(|(name, _)| PIP_OPTIONS.iter().any(|option| variable(option) == *name));
        found.extend(set.map(|(name, value)| (OsString::from(name), value.clone())));
        // Without retries, pip does not report that nothing answered.
        if let Some(retries) = found.get_mut(OsStr::new("PIP_RETRIES"))
            && retries.to_str().and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(0) == 0
        {
            *retries = "1".into();
        }
        found
    }
}

/// The environment variable of a pip option.
fn variable(option: &str) -> String {
    format!("PIP_{}", option.to_uppercase().replace('-', "_"))
}

/// Parses the relevant options from `pip config list`, such as `global.index-url='https://…'`. Settings of `download`
/// take precedence over those of `install`, and those over global ones.
fn configured(list: &str) -> BTreeMap<&'static str, String> {
    let mut found = BTreeMap::new();
    for section in ["global.", "install.", "download."] {
        for line in list.lines() {
            let Some((option, value)) = line.trim().strip_prefix(section).and_then(|it| it.split_once('='))
            else {
                continue;
            };
            if let (Some(known), Some(value)) =
                (PIP_OPTIONS.iter().find(|known| **known == option), unquoted(value))
            {
                found.insert(*known, value);
            }
        }
    }
    found
}

/// Parses a Python string literal.
fn unquoted(literal: &str) -> Option<String> {
    let quote = literal.chars().next().filter(|quote| ['\'', '"'].contains(quote))?;
    let inner = literal.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut text = String::new();
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match (letter, letter == '\\') {
            (_, false) => text.push(letter),
            (_, true) => match letters.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                plain @ ('\\' | '\'' | '"') => text.push(plain),
                _ => return None,
            },
        }
    }
    Some(text)
}

/// Infers the cause from pip's output.
fn failure(run: &ToolRun, cache: &Path) -> ToolchainError {
    let words = words(&run.log);
    let said = |texts: &[&str]| texts.iter().any(|text| run.log.contains(text));
    if said(&["No module named pip"]) {
        ToolchainError::NoPip { words }
    } else if said(&["No space left on device", "Disk quota exceeded"]) {
        ToolchainError::DiskFull { path: cache.to_owned(), words }
    } else if said(&["DO NOT MATCH THE HASHES", "has the pinned hash"]) {
        ToolchainError::HashMismatch { words }
    } else if said(&[
        "Failed to establish a new connection",
        "Temporary failure in name resolution",
        "Name or service not known",
        "Max retries exceeded",
        "connection broken by",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ProxyError",
        "SSLError",
    ]) || run.log.lines().any(is_unanswered)
    {
        ToolchainError::Offline { words }
    } else if said(&["No matching distribution found", "Could not find a version that satisfies"]) {
        ToolchainError::NotOffered { words }
    } else {
        ToolchainError::Pip { ending: run.ending(), words }
    }
}

/// Returns true if a line says that an index was unreachable. A client error (4xx) means that it was reached.
fn is_unanswered(line: &str) -> bool {
    line.contains(UNREACHED) && !line.contains("Client Error")
}

/// pip's message for a page that it did not get.
const UNREACHED: &str = "Could not fetch URL";

/// The relevant lines of a log: from the first error on, or else the last few.
fn words(log: &str) -> String {
    const LINES: usize = 12;
    const LETTERS: usize = 1500;
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // Retry warnings describe the network problem; the error after them only says that nothing was found.
    let matters = |line: &&str| {
        line.starts_with("ERROR") || line.starts_with("WARNING: Retrying") || line.starts_with(UNREACHED)
    };
    let errors = lines.iter().position(matters);
    let start = errors.unwrap_or(lines.len().saturating_sub(4));
    let text = lines[start..].iter().take(LINES).copied().collect::<Vec<_>>().join("\n");
    if text.is_empty() { "nothing".to_owned() } else { text.chars().take(LETTERS).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_configuration_files_only_what_concerns_the_index_counts() {
        let list = "\
:env:.index-url='https://environment'
download.retries='7'
global.cert='/etc/ca \\'corp\\'.pem'
global.extra-index-url='\\nhttps://one\\nhttps://two'
global.index-url='https://global/simple'
global.target='/elsewhere'
install.index-url=\"https://install/simple\"
install.no-binary=':all:'
global.proxy=unquoted
";
        let found = configured(list);
        let expected = [
            ("cert", "/etc/ca 'corp'.pem"),
            ("extra-index-url", "\nhttps://one\nhttps://two"),
            ("index-url", "https://install/simple"),
            ("retries", "7"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name, value.to_owned())).into());
    }

    #[test]
    fn an_index_that_does_not_answer_is_told_from_one_that_lacks_the_packages() {
        let lacks = "ERROR: No matching distribution found for nvidia-nvvm==13.1.115";
        let page = "  Could not fetch URL https://host/simple/nvidia-nvvm/:";
        for (line, offline) in [
            ("", false),
            ("404 Client Error: Not Found for url: https://host - skipping", false),
            ("403 Client Error: Forbidden for url: https://host - skipping", false),
            ("503 Server Error: Service Unavailable for url: https://host - skipping", true),
            ("connection error: [Errno 111] Connection refused - skipping", true),
            ("timed out - skipping", true),
        ] {
            let log = if line.is_empty() { lacks.to_owned() } else { format!("{page} {line}\n{lacks}") };
            let run = ToolRun { status: None, cancelled: false, log, log_truncated: false, seconds: 0.0 };
            let error = failure(&run, Path::new("/cache"));
            assert_eq!(error.code(), if offline { "offline" } else { "packages_not_offered" }, "{line}");
            assert!(error.to_string().contains(line), "{error}");
        }
    }
}
