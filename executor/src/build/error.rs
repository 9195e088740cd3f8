//! Why a kernel was not built, and whose fault it was.

use std::io;
use std::path::PathBuf;

use crate::kernel::LoadError;

/// Whose fault it is that a kernel was not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BuildFault {
    /// The compiler, its headers or its libraries are missing, broken or too old.
    Toolchain,
    /// Ours: the generated source is wrong, or was built for the wrong architecture.
    OurBug,
    /// Time, memory or disk space ran out.
    ResourceLimit,
    /// The machine: its host compiler, permissions or processes.
    Environment,
}

impl BuildFault {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            BuildFault::Toolchain => "toolchain",
            BuildFault::OurBug => "our_bug",
            BuildFault::ResourceLimit => "resource_limit",
            BuildFault::Environment => "environment",
        }
    }
}

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
        /// What those words say about whose fault it is.
        fault: BuildFault,
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
    /// The compiler, or one of its children, was ended by a signal.
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
    },
    /// An emulated kernel holds paths that would stop it at run time.
    #[error("the built kernel holds {count} traps: something in it is not emulated")]
    Traps {
        /// How many.
        count: usize,
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
    },
    /// The library was built and cannot be loaded.
    #[error("the built library cannot be loaded: {0}")]
    Load(#[source] LoadError),
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
    /// The stable code that reports and tests use.
    pub fn code(&self) -> &'static str {
        match self {
            BuildError::ToolMissing { .. } => "toolchain_missing",
            BuildError::Spawn { .. } => "toolchain_unusable",
            BuildError::Compile { .. } => "compile_error",
            BuildError::Timeout { .. } => "compile_timeout",
            BuildError::Signal { .. } => "compiler_crashed",
            BuildError::NothingWritten { .. } => "no_output",
            BuildError::Inspect { .. } => "inspect_error",
            BuildError::Census { .. } => "no_mma",
            BuildError::Traps { .. } => "not_emulated",
            BuildError::Disagrees { .. } => "metadata_mismatch",
            BuildError::Load(_) => "load_error",
            BuildError::Disk { .. } => "disk",
        }
    }

    /// Whose fault it is.
    pub fn fault(&self) -> BuildFault {
        match self {
            BuildError::ToolMissing { .. }
            | BuildError::NothingWritten { .. }
            | BuildError::Inspect { .. } => BuildFault::Toolchain,
            BuildError::Compile { fault, .. } => *fault,
            BuildError::Timeout { .. } => BuildFault::ResourceLimit,
            BuildError::Signal { signal: SIGKILL, .. } => BuildFault::ResourceLimit,
            BuildError::Signal { .. } => BuildFault::Toolchain,
            BuildError::Census { .. } | BuildError::Traps { .. } | BuildError::Disagrees { .. } => {
                BuildFault::OurBug
            }
            BuildError::Load(error) if error.is_our_bug() => BuildFault::OurBug,
            BuildError::Load(_) => BuildFault::Toolchain,
            BuildError::Disk { source, .. } if ran_out(source) => BuildFault::ResourceLimit,
            BuildError::Spawn { .. } | BuildError::Disk { .. } => BuildFault::Environment,
        }
    }

    /// What the compiler printed, where it ran.
    pub fn log(&self) -> Option<&str> {
        match self {
            BuildError::Compile { log, .. }
            | BuildError::Timeout { log_tail: log, .. }
            | BuildError::Signal { log, .. }
            | BuildError::NothingWritten { log, .. } => Some(log),
            _ => None,
        }
    }
}

const SIGKILL: i32 = 9;

fn ran_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory
    )
}

fn said(line: &Option<String>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!("; it said: {line}"))
}

fn list(opcodes: &[String]) -> String {
    if opcodes.is_empty() { "none".to_owned() } else { opcodes.join(", ") }
}
