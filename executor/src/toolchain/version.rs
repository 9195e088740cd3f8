//! Versions of nvcc and CUTLASS: parsing them, and the oldest supported ones.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::flaw::Flaw;
use crate::environment::Environment;
use crate::files::read_text;
use crate::isolation::isolate;
use crate::process::{ToolRun, run_tool};

/// A version of up to three numbers; missing ones are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Parses the version at the start of a text, such as `13.0.88`.
    pub fn parse(text: &str) -> Option<Version> {
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
        let mut numbers = text[..end].split('.').filter(|part| !part.is_empty()).map(str::parse);
        let first = numbers.next()?.ok()?;
        let mut next = || numbers.next().map_or(Some(0), Result::ok);
        Some(Version(first, next()?, next()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The first nvcc with Blackwell support.
pub const OLDEST_NVCC: Version = Version(12, 8, 0);
/// The oldest supported CUTLASS.
pub const OLDEST_CUTLASS: Version = Version(4, 2, 0);

/// The compiled targets, each with the first nvcc that supports it.
pub(super) const COMPILED_TARGETS: [(&str, Version); 5] = [
    ("sm_90a", Version(12, 0, 0)),
    ("sm_100a", Version(12, 8, 0)),
    ("sm_103a", Version(12, 9, 0)),
    ("sm_120a", Version(12, 8, 0)),
    ("sm_121a", Version(12, 9, 0)),
];

/// The first nvcc that compiles for a target; `None` for a target that is not compiled.
pub fn oldest_nvcc_for(target: &str) -> Option<Version> {
    let bare = target.strip_prefix("sm_").unwrap_or(target);
    let found = COMPILED_TARGETS.iter().find(|(name, _)| name.strip_prefix("sm_") == Some(bare));
    found.map(|(_, oldest)| *oldest)
}

/// Returns true if kernels for a target use CUTLASS. Kernels for sm_90a do not.
pub fn needs_cutlass(target: &str) -> bool {
    target.strip_prefix("sm_").unwrap_or(target) != "90a"
}

/// Time limit for printing a program's version.
const VERSION_LIMIT: Duration = Duration::from_secs(60);

/// Runs `nvcc --version`; the flaw quotes its output.
pub(super) fn nvcc_version(nvcc: &Path, environment: &Environment) -> Result<Version, Flaw> {
    let mut command = Command::new(nvcc);
    isolate(&mut command, environment);
    let run = run_tool(command.arg("--version"), VERSION_LIMIT)
        .map_err(|error| Flaw::of_system(format!("which cannot be run: {error}"), &error))?;
    // "Cuda compilation tools, release 13.0, V13.0.88"
    let version = run.log.split_whitespace().rev().find_map(|word| Version::parse(word.strip_prefix('V')?));
    match version {
        Some(version) if run.succeeded() => Ok(version),
        _ => {
            let said = run.log.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim();
            let said: String = said.chars().take(200).collect();
            let ending = run.ending();
            Err(Flaw::of(format!(
                "which does not report its version: --version ended with {ending} and printed {said}"
            )))
        }
    }
}

/// Asks nvcc for its toolkit's folder, which a dry run prints as `#$ TOP=folder`, because a wrapper script is outside
/// its toolkit. `None` if nvcc does not print it, or the folder does not exist.
pub(super) fn toolkit_root(nvcc: &Path, environment: &Environment) -> Option<PathBuf> {
    let mut command = Command::new(nvcc);
    isolate(&mut command, environment);
    // A script that ignores the option might write to its working directory; nobody can write to this one.
    command.current_dir("/proc").args(["--dryrun", "-c", "-x", "cu", "/dev/null"]);
    let run = run_tool(&mut command, VERSION_LIMIT).ok().filter(ToolRun::succeeded)?;
    let root = run.log.lines().find_map(|line| line.strip_prefix("#$ TOP="))?;
    Path::new(root).canonicalize().ok()
}

/// Reads the version from `include/cutlass/version.h`; `None` if the file or the version is missing.
pub(super) fn cutlass_version(cutlass: &Path) -> Option<Version> {
    let header = read_text(&cutlass.join("include/cutlass/version.h")).ok()?;
    let number = |name: &str| {
        header.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("#define") && words.next() == Some(name))
                .then(|| words.next())??
                .parse()
                .ok()
        })
    };
    Some(Version(number("CUTLASS_MAJOR")?, number("CUTLASS_MINOR")?, number("CUTLASS_PATCH")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_and_ordered_by_number() {
        assert_eq!(Version::parse("13.0.88"), Some(Version(13, 0, 88)));
        assert_eq!(Version::parse("12.8"), Some(Version(12, 8, 0)));
        assert_eq!(Version::parse("4.2.0.0"), Some(Version(4, 2, 0)));
        assert_eq!(Version::parse("13.0.88,"), Some(Version(13, 0, 88)));
        for no_version in ["", "x", ".", "99999999999999.1"] {
            assert_eq!(Version::parse(no_version), None, "{no_version}");
        }
        assert!(Version(12, 10, 0) > Version(12, 9, 1) && Version(12, 7, 99) < OLDEST_NVCC);
    }

    #[test]
    fn every_target_with_kernels_has_an_oldest_compiler() {
        for target in ["sm_100a", "sm_120a", "100a"] {
            assert_eq!(oldest_nvcc_for(target), Some(OLDEST_NVCC));
        }
        assert_eq!(oldest_nvcc_for("sm_103a"), Some(Version(12, 9, 0)));
        assert_eq!(oldest_nvcc_for("cpu"), None);
    }
}
