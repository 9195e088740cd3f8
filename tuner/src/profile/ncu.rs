//! ncu (Nsight Compute): its arguments, its failures, and the numbers of its reports.

use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;

use super::metrics::{self, Chip, METRICS, SECTIONS, Unit};
use super::raw::{self, RawKernel};
use super::{Selection, Trouble};

/// The set of metrics to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// The reported metrics only.
    Curated,
    /// All metrics, for ncu's own viewer. Requires many more replays of the kernel.
    Full,
}

/// The option of newer releases for the tensor cores' boost state, which ncu changes by default while it measures.
pub const BOOST_OPTION: &str = "--pipeline-boost-state";

/// A collection by ncu.
#[derive(Clone, Debug)]
pub struct Collect<'a> {
    /// The chip.
    pub chip: Chip,
    /// The kernel.
    pub selection: &'a Selection,
    /// The metrics.
    pub set: Set,
    /// The report file to write.
    pub report: &'a Path,
    /// Counters to leave out, because this ncu rejects them.
    pub refused: &'a [String],
    /// True if this release has [`BOOST_OPTION`].
    pub has_boost_option: bool,
}

impl Collect<'_> {
    /// The arguments that precede the program and its arguments. They change no setting of the GPU, clocks included.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: &str| arguments.extend([name.into(), value.into()]);
        // A user's configuration file could add options.
        option("--config-file", "off");
        option("--target-processes", "application-only");
        option("--clock-control", "none");
        if self.has_boost_option {
            option(BOOST_OPTION, "dynamic");
        }
        // CUTLASS kernels share a function name; only mangled names identify Fourfold's.
        option("--kernel-name-base", "mangled");
        if let Some(names) = self.selection.expression() {
            option("--kernel-name", &names);
        }
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

/// The counters that ncu rejected by name in its log, because this release does not know them.
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

/// Known failures: texts in the log, code, message and remedy. The first match applies.
const FAILURES: &[(&[&str], &str, &str, &str)] = &[
    (
        &["ERR_NVGPUCTRPERM"],
        "counters_forbidden",
        "the driver does not permit this user to access the GPU's counters",
        "run as root, or in a container with CAP_SYS_ADMIN, or load the driver's module with \
         NVreg_RestrictProfilingToAdminUsers=0; the sanitizer's tools need no counters",
    ),
    (
        &["LibraryNotLoaded", "driver is not compatible", "failed to connect to the CUDA driver"],
        "profiler_library",
        "ncu cannot use the driver's profiler library here",
        "use the ncu of the driver's CUDA version; in a container, mount the driver's libraries with the capabilities \
         `compute,utility`; a sandbox may forbid profiling",
    ),
    (
        &["concurrently collecting profiling data"],
        "counters_taken",
        "another tool is using the GPU's counters",
        "stop or pause that tool (`dcgmi profile --pause`), and try again",
    ),
    (
        &["unrecognised option", "unrecognized option"],
        "tool_too_old",
        "this ncu does not support an option",
        "install the ncu of CUDA 12.8 or newer, and pass its path with --ncu",
    ),
    (
        &["The application returned an error code"],
        "run_failed",
        "the run under ncu failed",
        "run `fourfold replay` with the same options; `--keep DIR` keeps the output",
    ),
    (
        &["No kernels were profiled"],
        "no_kernel",
        "the run under ncu did not launch the kernel",
        "if `fourfold replay --require-kernels` runs it, please report the program",
    ),
];

/// Returns true if ncu profiled no kernel, which it reports only as a warning.
pub fn measured_nothing(log: &str) -> bool {
    log.lines().any(|line| line.starts_with("==WARNING== No kernels were profiled"))
}

/// Diagnoses a failure of ncu from its log and its ending, such as `exit code 1`.
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
            format!("ncu ended with {ending}{said}"),
            "pass `--keep DIR` to keep its output and the command",
        ),
    }
}

/// A measured number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The key.
    pub key: &'static str,
    /// The title in text reports.
    #[serde(skip)]
    pub title: &'static str,
    /// The profiler's name on this chip; null if the chip has no such counter.
    pub metric: Option<&'static str>,
    /// The unit.
    pub unit: Unit,
    /// The value; null if it is missing.
    pub value: Option<f64>,
    /// The reason why the value is missing.
    pub missing: Option<String>,
}

/// A stall reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stall {
    /// The reason.
    pub reason: &'static str,
    /// The profiler's name of its counter.
    pub metric: String,
    /// Average number of warps stalled for it per issued instruction.
    pub warps: Option<f64>,
    /// The reason why the value is missing.
    pub missing: Option<String>,
}

/// The measurements of a kernel by ncu.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counters {
    /// The chip.
    pub chip: Chip,
    /// The mangled name of the kernel.
    pub kernel: String,
    /// Every metric of the table.
    pub metrics: Vec<Measured>,
    /// Every stall reason, in descending order of warps; missing values come last.
    pub stalls: Vec<Stall>,
}

impl Counters {
    /// The value of a metric, by key.
    pub fn value(&self, key: &str) -> Option<f64> {
        self.metrics.iter().find(|measured| measured.key == key)?.value
    }

    /// The missing metrics, each with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        let metrics = self.metrics.iter().filter_map(|it| Some((it.metric?, it.missing.as_deref()?)));
        let stalls = self.stalls.iter().filter_map(|it| Some((it.metric.as_str(), it.missing.as_deref()?)));
        metrics.chain(stalls)
    }
}

/// Reads the numbers of the selected kernel from ncu's raw page.
///
/// # Errors
/// If the page cannot be parsed, or does not contain exactly this kernel.
pub fn read(page: &str, chip: Chip, selection: &Selection) -> Result<Counters, Trouble> {
    const REMEDY: &str =
        "pass `--keep DIR` to keep the report, open it in ncu's viewer, and please report the problem";
    let unreadable = |message: String| Trouble::new("ncu", "unreadable_report", message, REMEDY);
    let kernels =
        raw::parse(page).map_err(|error| unreadable(format!("ncu's page cannot be read: {error}")))?;
    match &kernels[..] {
        [kernel] if selection.holds(&kernel.name) => Ok(counters(kernel, chip)),
        [kernel] => {
            Err(unreadable(format!("ncu measured `{}`, which is not the segment's kernel", kernel.name)))
        }
        _ => Err(unreadable(format!("ncu's page has {} kernels instead of one", kernels.len()))),
    }
}

/// The numbers of one row.
fn counters(kernel: &RawKernel, chip: Chip) -> Counters {
    let measure = |metric: &metrics::Metric| {
        let name = metric.name(chip);
        let found = match name {
            Some(name) => kernel.value(name, metric.unit),
            None => Err(format!("{} has no such counter", chip.name())),
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
    // `None` is less than any number, so missing values come last.
    stalls.sort_by(|a, b| b.warps.partial_cmp(&a.warps).unwrap_or(std::cmp::Ordering::Equal));
    Counters { chip, kernel: kernel.name.clone(), metrics: METRICS.iter().map(measure).collect(), stalls }
}

fn split(found: Result<f64, String>) -> (Option<f64>, Option<String>) {
    match found {
        Ok(value) => (Some(value), None),
        Err(why) => (None, Some(why)),
    }
}
