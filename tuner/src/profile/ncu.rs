//! ncu, the profiler of kernels: its arguments, what its failures mean, and the numbers of a report.

use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;

use super::metrics::{self, Chip, METRICS, SECTIONS, Unit};
use super::raw::{self, RawKernel};
use super::{Selection, Trouble};

/// What is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// What is shown, and no more.
    Curated,
    /// Everything that ncu knows, for its own viewer. It takes many more runs of the kernel.
    Full,
}

/// The option of newer releases that leaves the tensor cores' boost alone. By default they set it while they measure.
pub const BOOST_OPTION: &str = "--pipeline-boost-state";

/// How ncu is asked.
#[derive(Clone, Debug)]
pub struct Collect<'a> {
    /// Whose counters.
    pub chip: Chip,
    /// Of which kernel.
    pub selection: &'a Selection,
    /// What.
    pub set: Set,
    /// The report to write.
    pub report: &'a Path,
    /// Counters that are not asked for, as this ncu refuses them.
    pub refused: &'a [String],
    /// Whether this release has [`BOOST_OPTION`].
    pub has_boost_option: bool,
}

impl Collect<'_> {
    /// The arguments, before the program and its own. They change no setting of the card: clocks stay as they are.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: &str| arguments.extend([name.into(), value.into()]);
        // A user's file would add options of its own.
        option("--config-file", "off");
        option("--target-processes", "application-only");
        option("--clock-control", "none");
        if self.has_boost_option {
            option(BOOST_OPTION, "dynamic");
        }
        // Kernels of CUTLASS share a function name: only the mangled one tells ours.
        option("--kernel-name-base", "mangled");
        option("--kernel-name", &self.selection.expression());
        option("--launch-skip", &self.selection.before().to_string());
        option("--launch-count", "1");
        option("--apply-rules", "no");
        if self.set == Set::Full {
            option("--set", "full");
        }
        for section in SECTIONS {
            option("--section", section);
        }
        let asked: Vec<String> =
            metrics::counters(self.chip).filter(|name| !self.refused.contains(name)).collect();
        option("--metrics", &asked.join(","));
        arguments.extend(["--force-overwrite".into(), "--export".into(), self.report.into()]);
        arguments
    }
}

/// The arguments that print a report as [`raw`] reads it.
pub fn import_arguments(report: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--import".into(), report.into()];
    let rest = ["--csv", "--page", "raw", "--print-kernel-base", "mangled"];
    arguments.extend(rest.map(OsString::from));
    arguments
}

/// The counters that ncu refused by name, by what it printed: those that this release does not know of the chip.
pub fn refused(log: &str) -> Vec<String> {
    let lists = log.lines().filter_map(|line| {
        let line = line.strip_prefix("==ERROR== ")?;
        if let Some(name) = line.strip_prefix("Failed to find metric ") {
            return Some(name);
        }
        let (_, names) = line.strip_prefix("Failed to access the following ")?.split_once(": ")?;
        Some(names)
    });
    let names = lists.flat_map(|list| list.split(',')).map(|name| name.trim().trim_end_matches('.'));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// What it says, and what that means: the first that the log holds counts.
const FAILURES: &[(&[&str], &str, &str, &str)] = &[
    (
        &["ERR_NVGPUCTRPERM"],
        "counters_forbidden",
        "the driver keeps the GPU's counters from this user",
        "run as root, or in a container with CAP_SYS_ADMIN, or have the administrator load the driver's module with \
         NVreg_RestrictProfilingToAdminUsers=0; where that cannot be had, the sanitizer's tools need no counters",
    ),
    (
        &["LibraryNotLoaded", "driver is not compatible", "failed to connect to the CUDA driver"],
        "profiler_library",
        "ncu cannot use the driver's profiler library here",
        "take the ncu of the driver's CUDA version; in a container, have the driver's libraries with the capability \
         `compute,utility` there; a sandbox may forbid it",
    ),
    (
        &["concurrently collecting profiling data"],
        "counters_taken",
        "another tool is using the GPU's counters",
        "stop it, or pause it (`dcgmi profile --pause`), and try again",
    ),
    (
        &["unrecognised option", "unrecognized option"],
        "tool_too_old",
        "this ncu does not know an option that it was given",
        "install the ncu of CUDA 12.8 or newer, and name it with --ncu",
    ),
    (
        &["The application returned an error code"],
        "run_failed",
        "the run under ncu failed",
        "see how the run alone fares: `fourfold replay` with the same options; `--keep DIR` keeps all that was printed",
    ),
    (
        &["No kernels were profiled"],
        "no_kernel",
        "the run under ncu launched no such kernel",
        "if `fourfold replay --require-kernels` runs it, please report the program",
    ),
];

/// Whether it measured nothing, which it does not call a failure.
pub fn measured_nothing(log: &str) -> bool {
    log.lines().any(|line| line.starts_with("==WARNING== No kernels were profiled"))
}

/// Why ncu failed, by all that was printed and how it ended (`exit code 1`).
pub fn diagnose(log: &str, ending: &str) -> Trouble {
    let found = FAILURES.iter().find(|(words, ..)| words.iter().any(|word| log.contains(word)));
    let said: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix("==ERROR== ")).take(3).collect();
    let said = match said[..] {
        [] => String::new(),
        _ => format!(": {}", said.join(" ")),
    };
    match found {
        Some((_, code, meaning, remedy)) => {
            Trouble::new("ncu", code, format!("{meaning} ({ending}{said})"), *remedy)
        }
        None => Trouble::new(
            "ncu",
            "tool_failed",
            format!("it ended with {ending}{said}"),
            "`--keep DIR` keeps all that it printed, and the command",
        ),
    }
}

/// A number that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// What it is.
    pub key: &'static str,
    /// What it is called in text.
    #[serde(skip)]
    pub title: &'static str,
    /// The profiler's name for it on this chip; null where the chip does not count that.
    pub metric: Option<&'static str>,
    /// What it is measured in.
    pub unit: Unit,
    /// Null where it is missing.
    pub value: Option<f64>,
    /// Why it is.
    pub missing: Option<String>,
}

/// A reason for which warps do not issue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stall {
    /// The reason.
    pub reason: &'static str,
    /// The profiler's name for it.
    pub metric: String,
    /// Warps that wait for it, on average, whenever an instruction is issued.
    pub warps: Option<f64>,
    /// Why that is not known.
    pub missing: Option<String>,
}

/// What ncu measured of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counters {
    /// Whose counters.
    pub chip: Chip,
    /// The mangled name of the kernel.
    pub kernel: String,
    /// Every number of the table.
    pub metrics: Vec<Measured>,
    /// Every reason: those with the most warps first, those of which nothing is known last.
    pub stalls: Vec<Stall>,
}

impl Counters {
    /// The number of this key.
    pub fn value(&self, key: &str) -> Option<f64> {
        self.metrics.iter().find(|measured| measured.key == key)?.value
    }

    /// What was asked for and is not there, each name with why.
    pub fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        let metrics = self.metrics.iter().filter_map(|it| Some((it.metric?, it.missing.as_deref()?)));
        let stalls = self.stalls.iter().filter_map(|it| Some((it.metric.as_str(), it.missing.as_deref()?)));
        metrics.chain(stalls)
    }
}

/// The numbers of the kernel that was selected, from what ncu printed of its report.
///
/// # Errors
/// When that is no such page, or is not of this kernel alone.
pub fn read(page: &str, chip: Chip, selection: &Selection) -> Result<Counters, Trouble> {
    const REMEDY: &str =
        "`--keep DIR` keeps the report, which ncu's own viewer opens; please report what it says";
    let unreadable = |message: String| Trouble::new("ncu", "unreadable_report", message, REMEDY);
    let kernels =
        raw::parse(page).map_err(|error| unreadable(format!("ncu's page cannot be read: {error}")))?;
    match &kernels[..] {
        [kernel] if selection.holds(&kernel.name) => Ok(counters(kernel, chip)),
        [kernel] => {
            Err(unreadable(format!("ncu measured `{}`, which is not the segment's kernel", kernel.name)))
        }
        _ => Err(unreadable(format!("ncu's page is of {} kernels, and one was asked for", kernels.len()))),
    }
}

/// The numbers of a row.
fn counters(kernel: &RawKernel, chip: Chip) -> Counters {
    let measure = |metric: &metrics::Metric| {
        let name = metric.name(chip);
        let found = match name {
            Some(name) => kernel.value(name, metric.unit),
            None => Err(format!("{} does not count that", chip.name())),
        };
        let (value, missing) = split(found);
        Measured { key: metric.key, title: metric.title, metric: name, unit: metric.unit, value, missing }
    };
    let stall = |reason: &'static str| {
        let metric = metrics::stall_metric(reason);
        let (warps, missing) = split(kernel.value(&metric, Unit::Count));
        Stall { reason, metric, warps, missing }
    };
    let mut stalls: Vec<Stall> = metrics::stalls(chip).map(stall).collect();
    // Absent is less than any number, so that it comes last.
    stalls.sort_by(|a, b| b.warps.partial_cmp(&a.warps).unwrap_or(std::cmp::Ordering::Equal));
    Counters { chip, kernel: kernel.name.clone(), metrics: METRICS.iter().map(measure).collect(), stalls }
}

fn split(found: Result<f64, String>) -> (Option<f64>, Option<String>) {
    match found {
        Ok(value) => (Some(value), None),
        Err(why) => (None, Some(why)),
    }
}
