//! compute-sanitizer: its arguments and its summaries.

use std::ffi::OsString;

use serde::Serialize;

use super::{Selection, Trouble};

/// A tool of compute-sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Detects out-of-bounds and misaligned accesses.
    Memcheck,
    /// Detects data races in shared memory.
    Racecheck,
    /// Detects reads of uninitialized memory.
    Initcheck,
    /// Detects misuse of barriers.
    Synccheck,
}

/// The exit code for errors found, which `fourfold` itself never uses.
const ERROR_EXIT: i32 = 86;

/// The number of error lines kept.
const LINES_KEPT: usize = 12;

impl Check {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Check::Memcheck => "memcheck",
            Check::Racecheck => "racecheck",
            Check::Initcheck => "initcheck",
            Check::Synccheck => "synccheck",
        }
    }

    /// The arguments that precede the program and its arguments.
    pub fn arguments(self, selection: &Selection) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: &str| arguments.extend([name.into(), value.into()]);
        option("--tool", self.name());
        option("--target-processes", "application-only");
        option("--error-exitcode", &ERROR_EXIT.to_string());
        // API calls that may fail, such as queries for newer entry points, are not errors of the kernel. Every call
        // site checks its status.
        if self == Check::Memcheck {
            option("--report-api-errors", "no");
        }
        // initcheck must watch all launches, or memory written by other kernels would seem uninitialized.
        if self != Check::Initcheck
            && let Some(before) = selection.before_of_all()
        {
            option("--launch-skip", &before.to_string());
            option("--launch-count", "1");
        }
        arguments
    }
}

/// The findings of a tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The tool.
    pub tool: Check,
    /// The watched launches: `segment`, or `all` of the run.
    pub watched: &'static str,
    /// The tool's ending, such as `exit code 0`.
    pub ending: String,
    /// The exit code; null if the tool was killed.
    pub exit_code: Option<i32>,
    /// Errors in the summary; null without a summary.
    pub errors: Option<u64>,
    /// Warnings in racecheck's summary: potentially harmless hazards.
    pub warnings: Option<u64>,
    /// The summary line.
    pub summary: Option<String>,
    /// The first lines about errors and warnings.
    pub first: Vec<String>,
    /// True if the tool completed; otherwise a [`Trouble`] gives the reason.
    pub finished: bool,
}

impl Finding {
    /// Sets the watched launches to `all` if the tool could not count those before the segment.
    #[must_use]
    pub fn watching(self, selection: &Selection) -> Finding {
        match selection.before_of_all() {
            Some(_) => self,
            None => Finding { watched: "all", ..self },
        }
    }

    /// Returns true if the tool completed without errors.
    pub fn ok(&self) -> bool {
        self.finished && self.errors == Some(0)
    }
}

/// Log texts that mean that the tool did not work, regardless of its summary; with code and remedy.
const BROKEN: &[(&str, &str, &str)] = &[
    (
        "Device not supported",
        "tool_too_old",
        "use the compute-sanitizer of the driver's CUDA version, and pass its path with --sanitizer",
    ),
    (
        "Failed to initialize",
        "tool_failed",
        "use the compute-sanitizer of the driver's CUDA version; a container or sandbox may forbid its debugger \
         interface",
    ),
    (
        "Target application terminated before first instrumented API call",
        "tool_failed",
        "its libraries are missing or do not match the driver: use the compute-sanitizer of the driver's CUDA \
         version, and pass its path with --sanitizer",
    ),
    (
        "No attachable process found",
        "tool_failed",
        "the run did not connect to the tool: try again, and check that processes may connect to each other",
    ),
    (
        "unrecognised option",
        "tool_too_old",
        "install the compute-sanitizer of CUDA 12.8 or newer, and pass its path with --sanitizer",
    ),
];

/// Interprets a tool's log, exit code and ending (such as `exit code 0`). Returns its findings, and the reason if it
/// did not complete.
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
            trouble(code, format!("the tool failed ({ending}): {line}"), remedy)
        }
        (None, _, None) => trouble(
            "tool_stopped",
            format!("the tool ended with {ending}"),
            "raise the time limit with --limit, or use a smaller problem; the tool makes kernels many times slower",
        ),
        (None, None, Some(_)) => trouble(
            "no_summary",
            format!("the tool ended with {ending} and without a summary"),
            "pass `--keep DIR` to keep its output and the command",
        ),
        (None, Some(0), Some(code)) if ![0, ERROR_EXIT].contains(&code) => trouble(
            "run_failed",
            format!("the tool found no error, but the run ended with {ending}"),
            "run `fourfold replay` with the same options; `--keep DIR` keeps the output",
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

/// Parses the errors and warnings of a summary, such as `ERROR SUMMARY: 1 error` or `RACECHECK SUMMARY: 12 hazards
/// displayed (0 errors, 12 warnings)`.
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
