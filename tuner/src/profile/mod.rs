//! Profiles of one launch with NVIDIA's tools `ncu` and `compute-sanitizer`.
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

pub use report::{LIBRARY_CALL, Launched, PlainRun, Report, ToolUse, Traffic};

use std::fmt;

use serde::Serialize;

/// The profiled launch among all launches of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Prefixes of the mangled (Itanium ABI) names of the run's generated kernels. Those of the segment come first.
    names: Vec<String>,
    /// Number of prefixes of the segment; `None` if the segment is a call of the vendor's library.
    own: Option<usize>,
    /// Number of generated kernels launched before it.
    before: usize,
    /// Number of library calls before it. Each launches an unknown number of kernels.
    calls: usize,
}

/// The name prefix of every Fourfold kernel, used if a library states no names.
const ANY_KERNEL: &str = "_ZN8fourfold6kernel";

impl Selection {
    /// Selects the generated kernel of a segment.
    ///
    /// - `own`: kernel names stated by the segment's library, separated by spaces;
    /// - `others`: names stated by the other libraries of the run;
    /// - `before`: number of generated kernels launched before it.
    ///
    /// Ignores words that are not C++ identifiers.
    pub fn new<'a>(own: &str, others: impl IntoIterator<Item = &'a str>, before: usize) -> Selection {
        let mut names = words(own);
        let count = names.len();
        add(&mut names, others);
        Selection { names, own: Some(count), before, calls: 0 }
    }

    /// Selects the first kernel of a library call, after `before` generated kernels and `calls` other library calls.
    /// `generated` are the names stated by the libraries of the run's generated kernels.
    pub fn library_call<'a>(
        generated: impl IntoIterator<Item = &'a str>,
        before: usize,
        calls: usize,
    ) -> Selection {
        let mut names = vec![ANY_KERNEL.to_owned()];
        add(&mut names, generated);
        Selection { names, own: None, before, calls }
    }

    /// Adds the number of library calls before the segment.
    #[must_use]
    pub fn after_library_calls(self, calls: usize) -> Selection {
        Selection { calls, ..self }
    }

    /// The number of generated kernels launched before it.
    pub fn before(&self) -> usize {
        self.before
    }

    /// The number of all kernels launched before it; `None` if library calls precede it.
    pub fn before_of_all(&self) -> Option<usize> {
        (self.calls == 0).then_some(self.before)
    }

    /// Checks that ncu can select the launch.
    ///
    /// # Errors
    /// For a library call after another one: neither a name nor a position identifies its kernel.
    pub fn measurable(&self) -> Result<(), Trouble> {
        if self.own.is_some() || self.calls == 0 {
            return Ok(());
        }
        let calls = if self.calls == 1 { "1 call".to_owned() } else { format!("{} calls", self.calls) };
        Err(Trouble::new(
            "ncu",
            "unknown_launch",
            format!(
                "the segment is a call of cuBLASLt after {calls} of it, each of which launches an unknown number of \
                 kernels"
            ),
            "profile the first plain mma of a program, or a program with this mma alone",
        ))
    }

    /// Returns true if a mangled name is that of a kernel of the segment. Every kernel that is not generated may be
    /// that of a library call.
    pub fn holds(&self, name: &str) -> bool {
        let begins = |names: &[String]| names.iter().any(|own| name.starts_with(own.as_str()));
        match self.own {
            Some(own) => begins(&self.names[..own]),
            None => !begins(&self.names),
        }
    }

    /// The ncu filter that matches exactly the generated kernels of the run; `None` for a library call, whose kernel
    /// has an unknown name.
    fn expression(&self) -> Option<String> {
        self.own.map(|_| format!("regex:^({})", self.names.join("|")))
    }
}

/// Adds the names that are not there yet.
fn add<'a>(names: &mut Vec<String>, more: impl IntoIterator<Item = &'a str>) {
    for name in more.into_iter().flat_map(words) {
        if !names.contains(&name) {
            names.push(name);
        }
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
