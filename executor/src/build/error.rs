//! Build errors, and the party at fault for each.

use std::io;
use std::path::PathBuf;

use super::log::ToolCause;
use crate::fault::BuildFault;
use crate::kernel::LoadError;
use crate::transient::Transient;

/// The reason that a kernel was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A required program is missing.
    #[error("cannot find `{tool}`{}", at(path))]
    ToolMissing {
        /// The program's name.
        tool: &'static str,
        /// The expected path.
        path: Option<PathBuf>,
    },
    /// The compiler does not support the target.
    #[error("nvcc {found} does not support {target}{}", needs(needed))]
    Unsupported {
        /// The target.
        target: String,
        /// The compiler's version.
        found: String,
        /// The oldest version that supports it, if known.
        needed: Option<String>,
    },
    /// The path of a program or folder contains shell metacharacters.
    #[error("the path of the {what} contains shell metacharacters: `{}`", path.display())]
    UnsafePath {
        /// The role of the path.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A program could not be started or watched.
    #[error("cannot run `{tool}`: {source}")]
    Spawn {
        /// The program's name.
        tool: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The compiler reported an error.
    #[error("the compiler failed: {first_error}")]
    Compile {
        /// The first error, verbatim.
        first_error: String,
        /// The cause inferred from the output.
        cause: ToolCause,
        /// The compiler's output; the middle of a very long log is omitted.
        log: String,
    },
    /// A program exceeded its time limit and was killed with its children.
    #[error("`{tool}` exceeded the time limit of {seconds} s{}", said(last_line))]
    Timeout {
        /// The program's name.
        tool: &'static str,
        /// The limit, in seconds.
        seconds: f64,
        /// The last line of output.
        last_line: Option<String>,
        /// The end of the output.
        log_tail: String,
    },
    /// The caller cancelled the build.
    #[error("`{tool}` was stopped after {seconds:.0} s: the build was cancelled")]
    Cancelled {
        /// The program that was running.
        tool: &'static str,
        /// The seconds that it had run.
        seconds: f64,
    },
    /// A signal ended the compiler, the disassembler or a child of theirs.
    #[error("`{tool}` was terminated by signal {signal}{}", said(last_line))]
    Signal {
        /// The program's name.
        tool: &'static str,
        /// The signal: 9 usually means the out-of-memory killer, 11 a crash.
        signal: i32,
        /// The message about it, or the last line of output.
        last_line: Option<String>,
        /// The complete output.
        log: String,
    },
    /// The compiler reported success but wrote no library.
    #[error("the compiler reported success, but {found}{}", said(last_line))]
    NothingWritten {
        /// A description of the file found instead.
        found: String,
        /// The compiler's last line of output.
        last_line: Option<String>,
        /// The compiler's complete output.
        log: String,
    },
    /// The disassembler failed on the library.
    #[error("cannot inspect the built library: {first_error}")]
    Inspect {
        /// The disassembler's message.
        first_error: String,
        /// The cause inferred from the output.
        cause: ToolCause,
        /// The end of the output.
        log: String,
    },
    /// The library lacks its matrix instruction, which is the result of compiling for a wrong architecture.
    #[error("the built kernel has no {expected} instruction; its matrix instructions: {}", list(found))]
    Census {
        /// The required opcode.
        expected: String,
        /// The matrix instructions found.
        found: Vec<String>,
        /// The total instruction count.
        instructions: usize,
        /// The compiler's complete output.
        log: String,
    },
    /// The translation of an emulated kernel does not understand an instruction.
    #[error("the kernel cannot be emulated: {error}")]
    Translate {
        /// The instruction, and what about it is unknown.
        error: String,
        /// The compiler's complete output.
        log: String,
    },
    /// An emulated kernel contains traps, which would stop it at run time.
    #[error("the built kernel contains {count} traps, so some of its instructions are not emulated")]
    Traps {
        /// The number of traps.
        count: usize,
        /// The compiler's complete output.
        log: String,
    },
    /// The library's self-description does not match the plan.
    #[error("the built kernel's {what} is {found}, not {expected} as planned")]
    Disagrees {
        /// The property that differs.
        what: &'static str,
        /// The planned value.
        expected: String,
        /// The library's value.
        found: String,
        /// The compiler's complete output.
        log: String,
    },
    /// The library was built but cannot be loaded.
    #[error("cannot load the built library: {source}")]
    Load {
        /// The loader's error.
        source: LoadError,
        /// The compiler's complete output.
        log: String,
    },
    /// A file or folder could not be written or read.
    #[error("cannot {action}: {source}")]
    Disk {
        /// The action that failed, as a verb phrase.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

impl BuildError {
    /// A stable code for reports and tests, one of [`FAILURE_CODES`](crate::service::FAILURE_CODES).
    pub fn code(&self) -> &'static str {
        match self {
            BuildError::ToolMissing { tool: LAUNCHER, .. } => "launcher_missing",
            BuildError::ToolMissing { .. } => "toolchain_missing",
            BuildError::Unsupported { .. } => "target_unsupported",
            BuildError::UnsafePath { .. } => "unsafe_path",
            BuildError::Spawn { source, .. } => match Transient::of(source) {
                Some(Transient::Storage) | None => "toolchain_unusable",
                Some(transient) => transient.code(),
            },
            BuildError::Compile { first_error, cause, .. } => {
                failed_code(first_error, *cause, "compile_error")
            }
            BuildError::Timeout { .. } => "compile_timeout",
            BuildError::Cancelled { .. } => "cancelled",
            BuildError::Signal { signal: SIGKILL, .. } => "out_of_memory",
            BuildError::Signal { .. } => "compiler_crashed",
            BuildError::NothingWritten { .. } => "no_output",
            BuildError::Inspect { first_error, cause, .. } => {
                failed_code(first_error, *cause, "inspect_error")
            }
            BuildError::Census { .. } => "no_mma",
            BuildError::Translate { .. } | BuildError::Traps { .. } => "not_emulated",
            BuildError::Disagrees { .. } => "metadata_mismatch",
            BuildError::Load { source, .. } => source.code(),
            BuildError::Disk { source, .. } => Transient::of(source).map_or("disk", Transient::code),
        }
    }

    /// The party at fault.
    pub fn fault(&self) -> BuildFault {
        match self {
            BuildError::ToolMissing { .. }
            | BuildError::Unsupported { .. }
            | BuildError::NothingWritten { .. } => BuildFault::Toolchain,
            BuildError::Compile { cause, .. } | BuildError::Inspect { cause, .. } => cause.fault(),
            BuildError::Timeout { .. } => BuildFault::ResourceLimit,
            BuildError::Cancelled { .. } => BuildFault::Caller,
            BuildError::Signal { signal: SIGKILL, .. } => BuildFault::ResourceLimit,
            BuildError::Signal { .. } => BuildFault::Toolchain,
            BuildError::Census { .. }
            | BuildError::Translate { .. }
            | BuildError::Traps { .. }
            | BuildError::Disagrees { .. } => BuildFault::OurBug,
            BuildError::Load { source, .. } if source.is_our_bug() => BuildFault::OurBug,
            BuildError::Load { source, .. } => match (source.transient(), source) {
                (Some(transient), _) => transient.fault(),
                // The compiler succeeded: the disk or another process is to blame.
                (None, LoadError::NotFound { .. } | LoadError::Changed { .. }) => BuildFault::Environment,
                (None, _) => BuildFault::Toolchain,
            },
            BuildError::Spawn { source, .. } | BuildError::Disk { source, .. } => {
                Transient::of(source).map_or(BuildFault::Environment, Transient::fault)
            }
            BuildError::UnsafePath { .. } => BuildFault::Environment,
        }
    }

    /// Returns true if the same compiler would fail again on the same source. Such failures are recorded.
    pub fn is_lasting(&self) -> bool {
        match self {
            BuildError::Compile { cause, .. } | BuildError::Inspect { cause, .. } => cause.is_lasting(),
            BuildError::NothingWritten { .. }
            | BuildError::Census { .. }
            | BuildError::Translate { .. }
            | BuildError::Traps { .. }
            | BuildError::Disagrees { .. } => true,
            BuildError::Load { source, .. } => source.is_our_bug(),
            _ => false,
        }
    }

    /// Returns true if a lasting failure came without a recognized diagnostic about source or target. A second
    /// attempt in a fresh folder confirms that it lasts.
    pub fn is_doubtful(&self) -> bool {
        match self {
            BuildError::NothingWritten { .. } => true,
            BuildError::Compile { cause, .. } | BuildError::Inspect { cause, .. } => {
                cause.is_lasting() && *cause != ToolCause::Source && self.code() != "target_unsupported"
            }
            _ => false,
        }
    }

    /// The compiler's first error, verbatim.
    pub fn first_error(&self) -> Option<&str> {
        match self {
            BuildError::Compile { first_error, .. } | BuildError::Inspect { first_error, .. } => {
                Some(first_error)
            }
            BuildError::Timeout { last_line, .. }
            | BuildError::Signal { last_line, .. }
            | BuildError::NothingWritten { last_line, .. } => last_line.as_deref(),
            _ => None,
        }
    }

    /// The compiler's output, if it ran. For a failed disassembler, the end of the disassembler's output.
    pub fn log(&self) -> Option<&str> {
        match self {
            BuildError::Compile { log, .. }
            | BuildError::Timeout { log_tail: log, .. }
            | BuildError::Signal { log, .. }
            | BuildError::NothingWritten { log, .. }
            | BuildError::Inspect { log, .. }
            | BuildError::Census { log, .. }
            | BuildError::Translate { log, .. }
            | BuildError::Traps { log, .. }
            | BuildError::Disagrees { log, .. }
            | BuildError::Load { log, .. } => Some(log),
            _ => None,
        }
    }
}

/// The name of the launcher in errors.
pub(crate) const LAUNCHER: &str = "launcher";

const SIGKILL: i32 = 9;

/// Compilers and disassemblers report the kind of failure only in their output.
fn failed_code(first_error: &str, cause: ToolCause, otherwise: &'static str) -> &'static str {
    match cause {
        ToolCause::Transient(transient) => transient.code(),
        ToolCause::Crash => "compiler_crashed",
        ToolCause::Toolchain if first_error.to_lowercase().contains("unsupported gpu architecture") => {
            "target_unsupported"
        }
        _ => otherwise,
    }
}

fn at(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(String::new, |path| format!(" at `{}`", path.display()))
}

fn needs(version: &Option<String>) -> String {
    version.as_ref().map_or_else(String::new, |version| format!(", which needs nvcc {version} or newer"))
}

fn said(line: &Option<String>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!("; its last output: {line}"))
}

fn list(opcodes: &[String]) -> String {
    if opcodes.is_empty() { "none".to_owned() } else { opcodes.join(", ") }
}
