//! The profile report: a JSON object, and its text form.

use std::fmt;

use serde::Serialize;

use super::Trouble;
use super::metrics::{Chip, DRAM_READ, DRAM_WRITTEN, Unit};
use super::ncu::{Counters, Measured};
use super::sanitizer::Finding;

/// The library call of a plain `mma`.
pub const LIBRARY_CALL: &str = "cublasLtMatmul";

/// A profile. Its JSON keys are a stable interface: keys may be added, never changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// True if every requested part is present and nothing is wrong.
    pub ok: bool,
    /// The program's file.
    pub file: String,
    /// The target.
    pub target: String,
    /// The GPU; null without one.
    pub device: Option<String>,
    /// The chip, which determines the counters.
    pub chip: Option<Chip>,
    /// The position of the segment.
    pub segment: usize,
    /// The segment's kernel.
    pub kernel: String,
    /// [`LIBRARY_CALL`] if the segment has no generated kernel, but calls the vendor's library; else null.
    pub library: Option<&'static str>,
    /// The first run, without any tool; null if there was none.
    pub plain: Option<PlainRun>,
    /// Minimal and measured DRAM traffic.
    pub traffic: Traffic,
    /// The measurements of ncu; null without any.
    pub counters: Option<Counters>,
    /// The findings of the sanitizer's tools, one per tool.
    pub checks: Vec<Finding>,
    /// The missing parts, with reasons.
    pub troubles: Vec<Trouble>,
    /// The tools used.
    pub tools: Vec<ToolUse>,
    /// The folder with the kept output of the tools.
    pub kept: Option<String>,
}

/// A run without tools.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlainRun {
    /// True if every result is as expected; null if the run failed.
    pub ok: Option<bool>,
    /// The error of a failed run.
    pub error: Option<String>,
    /// The kernels launched, in order.
    pub launched: Vec<Launched>,
}

/// A launched kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Launched {
    /// The position of its segment.
    pub segment: usize,
    /// The kernel.
    pub kernel: String,
}

/// The minimal DRAM traffic of a kernel, with each byte moved once, and its ratio to the measured traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// Bytes of all inputs; null if the extents are unknown.
    pub counted_read: Option<u64>,
    /// Bytes of all outputs.
    pub counted_written: Option<u64>,
    /// Bytes read from DRAM, divided by `counted_read`.
    pub read_ratio: Option<f64>,
    /// Bytes written to DRAM, divided by `counted_written`. Below 1, outputs stayed in L2.
    pub written_ratio: Option<f64>,
}

impl Traffic {
    /// Compares the minimal bytes with the measured ones.
    pub fn new(read: Option<u64>, written: Option<u64>, counters: Option<&Counters>) -> Traffic {
        let ratio = |key: &str, counted: Option<u64>| {
            let counted = counted.filter(|counted| *counted > 0)?;
            Some(counters?.value(key)? / counted as f64)
        };
        Traffic {
            counted_read: read,
            counted_written: written,
            read_ratio: ratio(DRAM_READ, read),
            written_ratio: ratio(DRAM_WRITTEN, written),
        }
    }
}

/// One use of a tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolUse {
    /// The tool: `ncu`, `memcheck`, …
    pub tool: &'static str,
    /// The path of the program.
    pub path: String,
    /// The release, if known.
    pub release: Option<String>,
    /// The whole command line.
    pub command: Vec<String>,
    /// The duration in seconds.
    pub seconds: f64,
}

impl Report {
    /// The exit code: 0 if complete and correct, 1 if a result is wrong or a tool found errors, 3 if a part is missing.
    pub fn exit_code(&self) -> u8 {
        let wrong = self.plain.as_ref().is_some_and(|plain| plain.ok == Some(false));
        let found =
            self.checks.iter().any(|check| check.finished && check.errors.is_some_and(|errors| errors > 0));
        let failed = self.plain.as_ref().is_none_or(|plain| plain.ok.is_none());
        match () {
            () if wrong || found => 1,
            () if failed || !self.troubles.is_empty() => 3,
            () => 0,
        }
    }

    /// Returns the report with [`ok`](Self::ok) set.
    pub fn concluded(self) -> Report {
        Report { ok: self.exit_code() == 0, ..self }
    }
}

/// The number of stall reasons in the text.
const STALLS_SHOWN: usize = 3;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_deref().unwrap_or("no device");
        writeln!(f, "{} for {}, {device}", self.file, self.target)?;
        write!(f, "segment {}: {}", self.segment, self.kernel)?;
        match self.library {
            Some(call) => writeln!(f, ", a call of {call}, whose first kernel is examined")?,
            None => writeln!(f)?,
        }
        match &self.plain {
            None => {}
            Some(PlainRun { ok: Some(true), .. }) => writeln!(f, "run without tools: results as expected")?,
            Some(PlainRun { ok: Some(false), .. }) => {
                writeln!(f, "run without tools: a result is wrong; `fourfold replay` shows which")?;
            }
            Some(PlainRun { error, .. }) => {
                let error = error.as_deref().unwrap_or("unknown error");
                writeln!(f, "run without tools: failed: {error}")?;
            }
        }
        if let Some(counters) = &self.counters {
            self.write_counters(f, counters)?;
        }
        if !self.checks.is_empty() {
            writeln!(f, "\ncompute-sanitizer")?;
        }
        for check in &self.checks {
            write_check(f, check)?;
        }
        if !self.troubles.is_empty() {
            writeln!(f, "\nmissing")?;
        }
        for trouble in &self.troubles {
            writeln!(f, "  {}", trouble.to_string().replace('\n', "\n  "))?;
        }
        if let Some(folder) = &self.kept {
            writeln!(f, "\noutput of the tools: {folder}")?;
        }
        Ok(())
    }
}

impl Report {
    fn write_counters(&self, f: &mut fmt::Formatter<'_>, counters: &Counters) -> fmt::Result {
        let chip = counters.chip.name();
        writeln!(f, "\nncu, counters of {chip}: caches are cold and clocks are not locked, so compare")?;
        writeln!(f, "durations only with other durations of ncu")?;
        for measured in counters.metrics.iter().filter(|measured| measured.metric.is_some()) {
            let (counted, ratio) = match measured.key {
                DRAM_READ => (self.traffic.counted_read, self.traffic.read_ratio),
                DRAM_WRITTEN => (self.traffic.counted_written, self.traffic.written_ratio),
                _ => (None, None),
            };
            write!(f, "  {:<22} {:>16}", measured.title, shown(measured))?;
            if let (Some(counted), Some(ratio)) = (counted, ratio) {
                write!(f, ", {ratio:.3} of the minimal {counted} B")?;
            }
            writeln!(f)?;
        }
        let known = counters.stalls.iter().filter_map(|stall| Some((stall.reason, stall.warps?)));
        let top: Vec<String> =
            known.take(STALLS_SHOWN).map(|(reason, warps)| format!("{reason} {warps:.3}")).collect();
        if !top.is_empty() {
            writeln!(f, "  {:<22} {}", "warps stalled for", top.join(", "))?;
        }
        for (name, why) in counters.missing() {
            writeln!(f, "  missing: {name}: {why}")?;
        }
        Ok(())
    }
}

fn shown(measured: &Measured) -> String {
    match (measured.value, measured.unit) {
        (None, _) => "?".to_owned(),
        (Some(value), Unit::Microseconds) => format!("{value:.2} µs"),
        (Some(value), Unit::Percent) => format!("{value:.2} %"),
        (Some(value), Unit::Bytes) => format!("{value:.0} B"),
        (Some(value), Unit::Count) if value.fract() == 0.0 => format!("{value:.0}"),
        (Some(value), Unit::Count) => format!("{value:.3}"),
    }
}

fn write_check(f: &mut fmt::Formatter<'_>, check: &Finding) -> fmt::Result {
    let verdict = match (check.finished, check.errors) {
        (true, Some(0)) => "ok".to_owned(),
        (true, Some(1)) => "1 error".to_owned(),
        (true, Some(errors)) => format!("{errors} errors"),
        _ => "did not finish".to_owned(),
    };
    let launches = if check.watched == "all" { "all launches" } else { "the segment's launch" };
    write!(f, "  {:<10} {verdict}; {launches}, {}", check.tool.name(), check.ending)?;
    if let Some(warnings) = check.warnings.filter(|warnings| *warnings > 0) {
        write!(f, ", {warnings} warnings")?;
    }
    writeln!(f)?;
    for line in &check.first {
        writeln!(f, "             {line}")?;
    }
    Ok(())
}
