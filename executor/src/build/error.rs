//! Why a kernel was not built, and whose fault it was.

use std::io;
use std::path::PathBuf;

use super::log::ToolCause;
use crate::fault::BuildFault;
use crate::kernel::LoadError;
use crate::transient::Transient;

/// Why a kernel was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A program that the build needs is not there.
    #[error("`{tool}` is missing: {}", path.as_ref().map_or("none was given".into(), |path| path.display().to_string()))]
    ToolMissing {
        /// Its name.
        tool: &'static str,
        /// Where it was expected.
        path: Option<PathBuf>,
    },
    /// The compiler is too old for the target.
    #[error("nvcc {found} does not compile for {target}{}", needed.as_ref().map_or(String::new(), |version| format!(", which takes {version} or newer")))]
    Unsupported {
        /// The target.
        target: String,
        /// The compiler's version.
        found: String,
        /// The oldest version that would do; `None` when no version that is known does.
        needed: Option<String>,
    },
    /// A program, or a folder that a launcher must see, has a name that a shell would read something into.
    #[error("the path of the {what} `{}` has characters that a shell would read", path.display())]
    UnsafePath {
        /// The kind of thing.
        what: &'static str,
        /// Its path.
        path: PathBuf,
    },
    /// A program could not be started or watched.
    #[error("cannot run `{tool}`: {source}")]
    Spawn {
        /// Its name.
        tool: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The compiler refused the kernel.
    #[error("the compiler failed: {first_error}")]
    Compile {
        /// Its first error, in its own words.
        first_error: String,
        /// The cause that those words give.
        cause: ToolCause,
        /// All that it printed; the middle of a very long log is left out.
        log: String,
    },
    /// A program did not end in time and was stopped with all its children.
    #[error("`{tool}` did not end within {seconds} s{}", said(last_line))]
    Timeout {
        /// Its name.
        tool: &'static str,
        /// The limit.
        seconds: f64,
        /// The last thing it said.
        last_line: Option<String>,
        /// The end of what it printed.
        log_tail: String,
    },
    /// The build was ended because its caller wished so.
    #[error("`{tool}` was stopped after {seconds:.0} s: the build was cancelled")]
    Cancelled {
        /// What ran then.
        tool: &'static str,
        /// How long it had run.
        seconds: f64,
    },
    /// The compiler, the disassembler, or one of their children, was ended by a signal.
    #[error("`{tool}` was ended by signal {signal}{}", said(last_line))]
    Signal {
        /// Its name.
        tool: &'static str,
        /// The signal: 9 is usually the kernel's out-of-memory killer, 11 a crash.
        signal: i32,
        /// What it said about it, or the last thing it said.
        last_line: Option<String>,
        /// All that it printed.
        log: String,
    },
    /// The compiler claimed success and wrote no library.
    #[error("the compiler reported success, but {found}{}", said(last_line))]
    NothingWritten {
        /// What was found in the library's place.
        found: String,
        /// The last thing the compiler said.
        last_line: Option<String>,
        /// All that it printed.
        log: String,
    },
    /// The library could not be disassembled.
    #[error("cannot inspect the built library: {first_error}")]
    Inspect {
        /// What the disassembler said.
        first_error: String,
        /// The cause that those words give.
        cause: ToolCause,
        /// The end of what it printed.
        log: String,
    },
    /// The library lacks its matrix instruction, which is what a wrong architecture compiles to.
    #[error("the built kernel holds no {expected}; its matrix instructions are {}", list(found))]
    Census {
        /// The opcode that it must contain.
        expected: String,
        /// The matrix instructions that it contains.
        found: Vec<String>,
        /// How many instructions it has.
        instructions: usize,
        /// All that the compiler printed.
        log: String,
    },
    /// An emulated kernel holds paths that would stop it at run time.
    #[error("the built kernel holds {count} traps: something in it is not emulated")]
    Traps {
        /// How many.
        count: usize,
        /// All that the compiler printed.
        log: String,
    },
    /// The built library says something else about itself than its source was planned with.
    #[error("the built kernel's {what} is {found}, and it was planned with {expected}")]
    Disagrees {
        /// Which property.
        what: &'static str,
        /// As planned.
        expected: String,
        /// As built.
        found: String,
        /// All that the compiler printed.
        log: String,
    },
    /// The library was built and cannot be loaded.
    #[error("the built library cannot be loaded: {source}")]
    Load {
        /// Why not.
        source: LoadError,
        /// All that the compiler printed.
        log: String,
    },
    /// A file or folder could not be written or read.
    #[error("cannot {action}: {source}")]
    Disk {
        /// What was tried.
        action: String,
        /// Why not.
        source: io::Error,
    },
}

impl BuildError {
    /// The stable code that reports and tests use: one of [`FAILURE_CODES`](crate::service::FAILURE_CODES).
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
            BuildError::Traps { .. } => "not_emulated",
            BuildError::Disagrees { .. } => "metadata_mismatch",
            BuildError::Load { source, .. } => source.code(),
            BuildError::Disk { source, .. } => Transient::of(source).map_or("disk", Transient::code),
        }
    }

    /// Whose fault it is.
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
            BuildError::Census { .. } | BuildError::Traps { .. } | BuildError::Disagrees { .. } => {
                BuildFault::OurBug
            }
            BuildError::Load { source, .. } if source.is_our_bug() => BuildFault::OurBug,
            BuildError::Load { source, .. } => match (source.transient(), source) {
                (Some(transient), _) => transient.fault(),
                // The disk, or somebody else: the compiler had done its work.
                (None, LoadError::NotFound { .. } | LoadError::Changed { .. }) => BuildFault::Environment,
                (None, _) => BuildFault::Toolchain,
            },
            BuildError::Spawn { source, .. } | BuildError::Disk { source, .. } => {
                Transient::of(source).map_or(BuildFault::Environment, Transient::fault)
            }
            BuildError::UnsafePath { .. } => BuildFault::Environment,
        }
    }

    /// Whether the same compiler would fail so again on the same source: it is remembered then.
    pub fn is_lasting(&self) -> bool {
        match self {
            BuildError::Compile { cause, .. } | BuildError::Inspect { cause, .. } => cause.is_lasting(),
            BuildError::NothingWritten { .. }
            | BuildError::Census { .. }
            | BuildError::Traps { .. }
            | BuildError::Disagrees { .. } => true,
            BuildError::Load { source, .. } => source.is_our_bug(),
            _ => false,
        }
    }

    /// Returns whether a failure that lasts is no evidence about the source or the target: no diagnostic about either was
    /// recognized. A second attempt in a fresh folder shows whether it lasts.
    pub fn is_doubtful(&self) -> bool {
        match self {
            BuildError::NothingWritten { .. } => true,
            BuildError::Compile { cause, .. } | BuildError::Inspect { cause, .. } => {
                cause.is_lasting() && *cause != ToolCause::Source && self.code() != "target_unsupported"
            }
            _ => false,
        }
    }

    /// The first thing that the compiler complained about, in its own words.
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

    /// What the compiler printed, where it ran; of a disassembler that failed, the end of what that printed.
    pub fn log(&self) -> Option<&str> {
        match self {
            BuildError::Compile { log, .. }
            | BuildError::Timeout { log_tail: log, .. }
            | BuildError::Signal { log, .. }
            | BuildError::NothingWritten { log, .. }
            | BuildError::Inspect { log, .. }
            | BuildError::Census { log, .. }
            | BuildError::Traps { log, .. }
            | BuildError::Disagrees { log, .. }
            | BuildError::Load { log, .. } => Some(log),
            _ => None,
        }
    }
}

/// What a program that starts the compiler is called where it is missing.
pub(crate) const LAUNCHER: &str = "launcher";

const SIGKILL: i32 = 9;

/// A compiler or a disassembler has one way to fail, and says why in words only.
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

fn said(line: &Option<String>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!("; it said: {line}"))
}

fn list(opcodes: &[String]) -> String {
    if opcodes.is_empty() { "none".to_owned() } else { opcodes.join(", ") }
}
