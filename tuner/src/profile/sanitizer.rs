//! compute-sanitizer, whose tools look for faults of kernels: its arguments, and what its summaries mean.

use std::ffi::OsString;

use serde::Serialize;

use super::{Selection, Trouble};

/// One of its tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Accesses out of bounds, or not aligned.
    Memcheck,
    /// Threads that race for shared memory.
    Racecheck,
    /// Reads of memory that nobody wrote.
    Initcheck,
    /// Barriers that are used wrongly.
    Synccheck,
}

/// What it exits with where it found errors, which is nothing that a run of ours exits with.
const ERROR_EXIT: i32 = 86;

/// How much of the errors themselves is kept.
const LINES_KEPT: usize = 12;

impl Check {
    /// Its name, as the tool and the command line have it.
    pub fn name(self) -> &'static str {
        match self {
            Check::Memcheck => "memcheck",
            Check::Racecheck => "racecheck",
            Check::Initcheck => "initcheck",
            Check::Synccheck => "synccheck",
        }
    }

    /// The arguments, before the program and its own.
    pub fn arguments(self, selection: &Selection) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: &str| arguments.extend([name.into(), value.into()]);
        option("--tool", self.name());
        option("--target-processes", "application-only");
        option("--error-exitcode", &ERROR_EXIT.to_string());
        // Calls that may fail, such as questions for newer entry points, are no faults of the kernel; every call's status
        // is looked at where it is made.
        if self == Check::Memcheck {
            option("--report-api-errors", "no");
        }
        // What an unwatched kernel wrote would count as written by nobody.
        if self != Check::Initcheck {
            option("--launch-skip", &selection.before().to_string());
            option("--launch-count", "1");
        }
        arguments
    }
}

/// What a tool found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The tool.
    pub tool: Check,
    /// Which launches it watched: `segment`, or `all` of the run.
    pub watched: &'static str,
    /// How it ended, in words.
    pub ending: String,
    /// Its exit code; null if it did not end by itself.
    pub exit_code: Option<i32>,
    /// Errors, as its summary counts them; null if there is no summary.
    pub errors: Option<u64>,
    /// Warnings, which only racecheck's summary counts: hazards that may be harmless.
    pub warnings: Option<u64>,
    /// Its summary.
    pub summary: Option<String>,
    /// The beginning of what it says of the errors and warnings.
    pub first: Vec<String>,
    /// Whether it did its work; else a [`Trouble`] says why not.
    pub finished: bool,
}

impl Finding {
    /// Whether it did its work and found no error.
    pub fn ok(&self) -> bool {
        self.finished && self.errors == Some(0)
    }
}

/// Lines that say that the tool could not work, whatever its summary counts.
const BROKEN: &[(&str, &str, &str)] = &[
    (
        "Device not supported",
        "tool_too_old",
        "take the compute-sanitizer of the driver's CUDA version, and name it with --sanitizer",
    ),
    (
        "Failed to initialize",
        "tool_failed",
        "take the compute-sanitizer of the driver's CUDA version; a container or sandbox may forbid its debugger interface",
    ),
    (
        "Target application terminated before first instrumented API call",
        "tool_failed",
        "its libraries do not lie beside it, or it does not fit the driver: take the compute-sanitizer of the driver's \
         CUDA version, and name it with --sanitizer",
    ),
    (
        "No attachable process found",
        "tool_failed",
        "the run did not connect to it; try again, and see that nothing keeps processes from connecting to each other",
    ),
    (
        "unrecognised option",
        "tool_too_old",
        "install the compute-sanitizer of CUDA 12.8 or newer, and name it with --sanitizer",
    ),
];

/// What a tool found, by all that was printed, its exit code, and how it ended in words; and the trouble, if it did not do
/// its work.
pub fn read(tool: Check, log: &str, exit_code: Option<i32>, ending: &str) -> (Finding, Option<Trouble>) {
    let lines = || log.lines().filter_map(|line| line.strip_prefix("=========")).map(str::trim);
    let summary = lines().rfind(|line| is_summary(tool, line));
    let (errors, warnings) = summary.map_or((None, None), counts);
    let clean = errors == Some(0) && warnings.is_none_or(|warnings| warnings == 0);
    let boring =
        |line: &&str| !line.is_empty() && !line.starts_with("COMPUTE-SANITIZER") && !is_summary(tool, line);
    let first = match clean {
        true => Vec::new(),
        false => lines().filter(boring).take(LINES_KEPT).map(str::to_owned).collect(),
    };
    let trouble =
        |code, message: String, remedy: &str| Some(Trouble::new(tool.name(), code, message, remedy));
    let broken = BROKEN
        .iter()
        .find_map(|(words, code, remedy)| Some((log.lines().find(|it| it.contains(words))?, *code, *remedy)));
    let trouble = match (broken, errors, exit_code) {
        (Some((line, code, remedy)), ..) => {
            let line = line.trim_start_matches('=').trim();
            trouble(code, format!("it could not work ({ending}): {line}"), remedy)
        }
        (None, _, None) => trouble(
            "tool_stopped",
            format!("it ended with {ending}"),
            "it makes kernels many times slower: --limit gives it more time, and a smaller problem needs less",
        ),
        (None, None, Some(_)) => trouble(
            "no_summary",
            format!("it ended with {ending} and without a summary of what it found"),
            "`--keep DIR` keeps all that it printed, and the command",
        ),
        (None, Some(0), Some(code)) if ![0, ERROR_EXIT].contains(&code) => trouble(
            "run_failed",
            format!("it found no error, and the run under it ended with {ending}"),
            "see how the run alone fares: `fourfold replay` with the same options; `--keep DIR` keeps all that was printed",
        ),
        _ => None,
    };
    let finding = Finding {
        tool,
        watched: if tool == Check::Initcheck { "all" } else { "segment" },
        ending: ending.to_owned(),
        exit_code,
        errors,
        warnings,
        summary: summary.map(str::to_owned),
        first,
        finished: trouble.is_none(),
    };
    (finding, trouble)
}

fn is_summary(tool: Check, line: &str) -> bool {
    line.starts_with("ERROR SUMMARY:") || (tool == Check::Racecheck && line.starts_with("RACECHECK SUMMARY:"))
}

/// Errors and warnings of a summary: `ERROR SUMMARY: 1 error`, or `RACECHECK SUMMARY: 12 hazards displayed (0 errors, 12
/// warnings)`.
fn counts(summary: &str) -> (Option<u64>, Option<u64>) {
    let words: Vec<&str> = summary
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let count = |what: &str| {
        words
            .windows(2)
            .find(|pair| pair[1].trim_end_matches('s') == what)
            .and_then(|pair| pair[0].parse().ok())
    };
    (count("error"), count("warning"))
}
