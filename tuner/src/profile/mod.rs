//! Profiles of one kernel with NVIDIA's tools `ncu` and `compute-sanitizer`.
//!
//! This module starts no process:
//! - [`ncu`] and [`sanitizer`] build a tool's arguments and interpret its output;
//! - [`raw`] parses the table that ncu exports;
//! - [`metrics`] lists the reported columns of each chip;
//! - [`Report`] combines everything.
//!
//! A missing number is null, with its name and the reason; it is never 0.

mod csv;
pub mod metrics;
pub mod ncu;
pub mod raw;
mod report;
pub mod sanitizer;

pub use report::{Launched, PlainRun, Report, ToolUse, Traffic};

use std::fmt;

use serde::Serialize;

/// The profiled kernel among all kernels that a run launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Prefixes of the run's mangled (Itanium ABI) kernel names. Those of the segment come first.
    names: Vec<String>,
    /// Number of prefixes of the segment.
    own: usize,
    /// Number of kernels launched before it.
    before: usize,
}

/// The name prefix of every Fourfold kernel, used if a library states no names.
const ANY_KERNEL: &str = "_ZN8fourfold6kernel";

impl Selection {
    /// Selects the kernel of a segment.
    ///
    /// - `own`: kernel names stated by the segment's library, separated by spaces;
    /// - `others`: names stated by the other libraries of the run;
    /// - `before`: number of kernels launched before it.
    ///
    /// Ignores words that are not C++ identifiers.
    pub fn new<'a>(own: &str, others: impl IntoIterator<Item = &'a str>, before: usize) -> Selection {
        let mut names = words(own);
        let count = names.len();
        for name in others.into_iter().flat_map(words) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Selection { names, own: count, before }
    }

    /// The number of kernels launched before it.
    pub fn before(&self) -> usize {
        self.before
    }

    /// Returns true if a mangled name is that of a kernel of the segment.
    pub fn holds(&self, name: &str) -> bool {
        self.names[..self.own].iter().any(|own| name.starts_with(own.as_str()))
    }

    /// The ncu filter that matches exactly the kernels of the run.
    fn expression(&self) -> String {
        format!("regex:^({})", self.names.join("|"))
    }
}

/// Splits the names stated by a library; [`ANY_KERNEL`] if it states none.
fn words(entry: &str) -> Vec<String> {
    // The names become part of a regular expression.
    let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let names: Vec<String> = entry.split_whitespace().filter(is_name).map(str::to_owned).collect();
    if names.is_empty() { vec![ANY_KERNEL.to_owned()] } else { names }
}

/// The reason why a part of a report is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// The missing part: `ncu`, `memcheck`, `build`, …
    pub part: String,
    /// A stable code.
    pub code: &'static str,
    /// The error.
    pub message: String,
    /// The remedy.
    pub remedy: String,
}

impl Trouble {
    /// Creates the reason for a missing part.
    pub fn new(
        part: impl Into<String>,
        code: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Trouble {
        Trouble { part: part.into(), code, message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trouble { part, code, message, remedy } = self;
        write!(f, "{part}: {code}: {message}\n  help: {remedy}")
    }
}

/// A release of NVIDIA's tools: year and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

impl Release {
    /// Parses the output of a tool's `--version`, such as `Version 2025.3.1.0 (build 36398880)`.
    pub fn parse(text: &str) -> Option<Release> {
        let (_, rest) = text.split_once("Version ")?;
        let mut numbers = rest.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
        Some(Release(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The first release of ncu and compute-sanitizer that supports a compute capability. It is the one of the first CUDA
/// release that compiles for it: 11.8, 12.8 or 12.9.
pub fn oldest_release(capability: (u32, u32)) -> Option<Release> {
    match capability {
        (9, 0) => Some(Release(2022, 3)),
        (10, 0) | (12, 0) => Some(Release(2025, 1)),
        (10, 3) | (12, 1) => Some(Release(2025, 2)),
        _ => None,
    }
}

/// Checks that a tool supports a compute capability. `version` is the output of its `--version`. Returns the release;
/// `None` if the output cannot be parsed.
///
/// # Errors
/// If the release is too old.
pub fn check_release(part: &str, version: &str, capability: (u32, u32)) -> Result<Option<Release>, Trouble> {
    let release = Release::parse(version);
    if let (Some(found), Some(oldest)) = (release, oldest_release(capability))
        && found < oldest
    {
        let (major, minor) = capability;
        return Err(Trouble::new(
            part,
            "tool_too_old",
            format!(
                "release {found} does not support compute capability {major}.{minor}, which needs {oldest}"
            ),
            format!("install release {oldest} or newer, and pass its path or put it first on PATH"),
        ));
    }
    Ok(release)
}
