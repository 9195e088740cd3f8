//! What the vendor's profilers say of one kernel: what they are asked, and what their answers mean.
//!
//! Nothing is started here: [`ncu`] and [`sanitizer`] make the arguments of a tool and read what it printed, [`raw`] reads
//! the table that ncu exports, [`metrics`] says which of its columns are shown, by chip, and a [`Report`] is all of it. A
//! number that is not there is absent, with its name and why; it is never 0.

mod csv;
pub mod metrics;
pub mod ncu;
pub mod raw;
mod report;
pub mod sanitizer;

pub use report::{Launched, PlainRun, Report, ToolUse, Traffic};

use std::fmt;

use serde::Serialize;

/// The kernel that is looked at, among all that a run launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// What the names of the run's kernels begin with, in the manner of the Itanium ABI: those of the segment first.
    names: Vec<String>,
    /// How many of them are the segment's own.
    own: usize,
    /// How many kernels are launched before it.
    before: usize,
}

/// What the name of every kernel of ours begins with, where a library does not say more.
const ANY_KERNEL: &str = "_ZN8fourfold6kernel";

impl Selection {
    /// The kernel of a segment whose library says `own` of the names of its kernels, which is launched after `before`
    /// others. `others` is what their libraries say. Words that are no names are passed over.
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

    /// How many kernels are launched before it.
    pub fn before(&self) -> usize {
        self.before
    }

    /// Whether a kernel of this mangled name is the segment's.
    pub fn holds(&self, name: &str) -> bool {
        self.names[..self.own].iter().any(|own| name.starts_with(own.as_str()))
    }

    /// An expression that every kernel of the run matches, and no other.
    fn expression(&self) -> String {
        format!("regex:^({})", self.names.join("|"))
    }
}

/// The names in what a library says; the one that all have where it says nothing.
fn words(entry: &str) -> Vec<String> {
    // They become part of a regular expression.
    let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let names: Vec<String> = entry.split_whitespace().filter(is_name).map(str::to_owned).collect();
    if names.is_empty() { vec![ANY_KERNEL.to_owned()] } else { names }
}

/// Why a part of a report is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// What it happened to: `ncu`, `memcheck`, `build`, …
    pub part: String,
    /// A stable name.
    pub code: &'static str,
    /// What happened.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl Trouble {
    /// A part that is missing, and why.
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
        write!(f, "{part}: {code}: {message}\n  what to do: {remedy}")
    }
}

/// A release of the vendor's tools: a year and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

impl Release {
    /// The release that a tool's `--version` prints, as `Version 2025.3.1.0 (build 36398880)`.
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

/// The first release of ncu and compute-sanitizer that knows a GPU of this compute capability: they come with the first
/// CUDA that compiles for it, which is 11.8, 12.8 or 12.9.
pub fn oldest_release(capability: (u32, u32)) -> Option<Release> {
    match capability {
        (9, 0) => Some(Release(2022, 3)),
        (10, 0) | (12, 0) => Some(Release(2025, 1)),
        (10, 3) | (12, 1) => Some(Release(2025, 2)),
        _ => None,
    }
}

/// Whether a tool, by what its `--version` prints, knows a GPU of this compute capability; the release, if it can be read.
///
/// # Errors
/// When it is too old.
pub fn check_release(part: &str, version: &str, capability: (u32, u32)) -> Result<Option<Release>, Trouble> {
    let release = Release::parse(version);
    if let (Some(found), Some(oldest)) = (release, oldest_release(capability))
        && found < oldest
    {
        let (major, minor) = capability;
        return Err(Trouble::new(
            part,
            "tool_too_old",
            format!("it is release {found}, and a GPU of compute capability {major}.{minor} needs {oldest}"),
            format!("install release {oldest} or newer, and name its program, or put it first on PATH"),
        ));
    }
    Ok(release)
}
