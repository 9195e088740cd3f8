//! Runs NVIDIA's profiling tools on one of our programs, and keeps their output.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::environment::{Environment, is_program};
use crate::files::{FileError, write_file};
use crate::process::{ToolRun, run_tool};

/// An NVIDIA tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfilerTool {
    /// ncu, of Nsight Compute: performance counters of a kernel.
    Ncu,
    /// compute-sanitizer: memory errors and races of a kernel.
    ComputeSanitizer,
}

impl ProfilerTool {
    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            ProfilerTool::Ncu => "ncu",
            ProfilerTool::ComputeSanitizer => "compute-sanitizer",
        }
    }

    /// The command-line option that names the program.
    fn option(self) -> &'static str {
        match self {
            ProfilerTool::Ncu => "--ncu",
            ProfilerTool::ComputeSanitizer => "--sanitizer",
        }
    }
}

/// An installed tool.
#[derive(Clone, Debug)]
pub struct Profiler {
    /// The program's path.
    pub path: PathBuf,
    /// The output of `--version`.
    pub version: String,
    /// The output of `--help`.
    help: String,
}

/// The reason that a tool is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ProfilerError {
    /// The named path is not a program.
    #[error("`{}` is not an executable file", path.display())]
    NoProgram {
        /// The named path.
        path: PathBuf,
    },
    /// No tool was named or found.
    #[error("{} was not found in the bin folder of CUDA_HOME or on PATH", tool.name())]
    NotFound {
        /// The tool.
        tool: ProfilerTool,
    },
    /// The program cannot be run.
    #[error("cannot run `{}`", path.display())]
    CannotRun {
        /// The program.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program does not report its version.
    #[error("`{} --version` ended with {ending} and printed {said}", path.display())]
    NoVersion {
        /// The program.
        path: PathBuf,
        /// The exit status, in words.
        ending: String,
        /// The first line of output.
        said: String,
    },
}

impl ProfilerError {
    /// The remedy.
    pub fn remedy(&self, tool: ProfilerTool) -> String {
        let (name, option) = (tool.name(), tool.option());
        match self {
            ProfilerError::NoProgram { .. } => {
                format!("name the executable file itself with {option}")
            }
            ProfilerError::NotFound { .. } => format!(
                "install the CUDA toolkit, which contains {name} (`fourfold toolchain install` does not install it), \
                 and put it on PATH or name it with {option}"
            ),
            ProfilerError::CannotRun { .. } | ProfilerError::NoVersion { .. } => {
                format!("make `{name} --version` work, or name another with {option}")
            }
        }
    }
}

/// Time limit for `--version` and `--help`.
const VERSION_LIMIT: Duration = Duration::from_secs(60);

/// Finds a tool: the given program, or that of `CUDA_HOME`, or that on `PATH`. Queries its version.
///
/// # Errors
/// When there is none, or it does not report its version.
pub fn find_profiler(
    tool: ProfilerTool,
    given: Option<&Path>,
    environment: &Environment,
) -> Result<Profiler, ProfilerError> {
    let path = match given {
        Some(path) if is_program(path) => std::path::absolute(path)
            .map_err(|source| ProfilerError::CannotRun { path: path.to_owned(), source })?,
        Some(path) => return Err(ProfilerError::NoProgram { path: path.to_owned() }),
        None => {
            let of_home =
                environment.cuda_home.as_ref().map(|home| Path::new(home).join("bin").join(tool.name()));
            of_home
                .filter(|path| path.is_absolute() && is_program(path))
                .or_else(|| environment.find_program(tool.name()))
                .ok_or(ProfilerError::NotFound { tool })?
        }
    };
    let ask = |question: &str| {
        run_tool(&mut command(&path, [OsStr::new(question)]), VERSION_LIMIT)
            .map_err(|source| ProfilerError::CannotRun { path: path.clone(), source })
    };
    let run = ask("--version")?;
    if !run.succeeded() || !run.log.contains("Version ") {
        let said = run.log.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim();
        let said = said.chars().take(200).collect();
        return Err(ProfilerError::NoVersion { path, ending: run.ending(), said });
    }
    let help = ask("--help")?.log;
    Ok(Profiler { path, version: run.log, help })
}

impl Profiler {
    /// Returns true if the tool's help mentions this option. Releases differ.
    pub fn knows(&self, option: &str) -> bool {
        self.help
            .split(|letter: char| letter.is_whitespace() || "[]=,".contains(letter))
            .any(|word| word == option)
    }

    /// Runs the tool until it ends or reaches its time limit. The program at the end of its arguments runs in the
    /// same process group.
    ///
    /// # Errors
    /// When it cannot be started or watched.
    pub fn run(&self, arguments: &[OsString], limit: Duration) -> io::Result<ToolRun> {
        run_tool(&mut command(&self.path, arguments), limit)
    }
}

/// Creates a command with the C locale, so that numbers are printed in a form that can be parsed.
fn command(path: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(path);
    command.args(arguments).env("LC_ALL", "C");
    command
}

/// The path of this program, for tools that run it again.
///
/// # Errors
/// When the system does not report it.
pub fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// A folder for tool output, permanent or temporary.
#[derive(Debug)]
pub struct ProfileFolder {
    path: PathBuf,
    temporary: Option<tempfile::TempDir>,
}

impl ProfileFolder {
    /// Creates the permanent folder, or a temporary one.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(kept: Option<&Path>) -> io::Result<ProfileFolder> {
        match kept {
            Some(path) => {
                fs::create_dir_all(path)?;
                Ok(ProfileFolder { path: std::path::absolute(path)?, temporary: None })
            }
            None => {
                let temporary = tempfile::Builder::new().prefix("fourfold-profile-").tempdir()?;
                Ok(ProfileFolder { path: temporary.path().to_owned(), temporary: Some(temporary) })
            }
        }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true for a permanent folder.
    pub fn stays(&self) -> bool {
        self.temporary.is_none()
    }

    /// Writes a file in a permanent folder; does nothing for a temporary one.
    ///
    /// # Errors
    /// When it cannot be written, or the path exists and is not a regular file.
    pub fn keep(&self, name: &str, text: &str) -> Result<(), FileError> {
        if self.stays() { write_file(&self.path.join(name), text.as_bytes()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(folder: &Path, name: &str, body: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_tool_is_the_one_that_is_given_then_of_cuda_home_then_on_path() {
        let folder = tempfile::tempdir().unwrap();
        let version = |number: u32| format!("echo 'Version {number}.1.0'");
        let given = script(folder.path(), "mine", &version(1));
        for (number, place) in [(2, "home/bin"), (3, "path")] {
            fs::create_dir_all(folder.path().join(place)).unwrap();
            script(&folder.path().join(place), "ncu", &version(number));
        }
        let path = Some(folder.path().join("path").into_os_string());
        let both = Environment {
            cuda_home: Some(folder.path().join("home").into()),
            path: path.clone(),
            ..Environment::default()
        };
        let only_path = Environment { path, ..Environment::default() };
        let release = |given: Option<&Path>, environment: &Environment| {
            find_profiler(ProfilerTool::Ncu, given, environment).unwrap().version
        };
        assert_eq!(release(Some(&given), &both), "Version 1.1.0\n");
        assert_eq!(release(None, &both), "Version 2.1.0\n");
        assert_eq!(release(None, &only_path), "Version 3.1.0\n");
        let none = find_profiler(ProfilerTool::ComputeSanitizer, None, &both).unwrap_err();
        assert!(matches!(none, ProfilerError::NotFound { .. }), "{none}");
        assert!(none.remedy(ProfilerTool::ComputeSanitizer).contains("--sanitizer"));
    }

    #[test]
    fn what_is_no_such_tool_is_refused_in_its_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::default();
        let find = |path: &Path| find_profiler(ProfilerTool::Ncu, Some(path), &environment).unwrap_err();
        assert!(matches!(find(folder.path()), ProfilerError::NoProgram { .. }));
        let text = find(&script(folder.path(), "broken", "echo no such library >&2; exit 127")).to_string();
        assert!(text.contains("exit code 127 and printed no such library"), "{text}");
        let text = find(&script(folder.path(), "other", "echo something else")).to_string();
        assert!(text.contains("printed something else"), "{text}");
    }

    #[test]
    fn an_option_is_known_if_the_help_names_it_as_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let body =
            "case $1 in --version) echo Version 1.0;; *) echo '  -c [ --launch-count ] arg (=1)';; esac";
        let tool = script(folder.path(), "ncu", body);
        let tool = find_profiler(ProfilerTool::Ncu, Some(&tool), &Environment::default()).unwrap();
        assert!(tool.knows("--launch-count") && !tool.knows("--launch") && !tool.knows("--clock-control"));
    }

    #[test]
    fn a_temporary_folder_goes_and_keeps_nothing() {
        let folder = ProfileFolder::new(None).unwrap();
        let path = folder.path().to_owned();
        folder.keep("log", "text").unwrap();
        assert!(path.is_dir() && !path.join("log").exists());
        drop(folder);
        assert!(!path.exists());
        let outer = tempfile::tempdir().unwrap();
        let kept = ProfileFolder::new(Some(&outer.path().join("a/b"))).unwrap();
        kept.keep("log", "text").unwrap();
        assert_eq!(fs::read_to_string(outer.path().join("a/b/log")).unwrap(), "text");
    }
}
