//! All that was found out of a kernel, as one object for scripts and as text for people.

use std::fmt;

use serde::Serialize;

use super::Trouble;
use super::metrics::{Chip, DRAM_READ, DRAM_WRITTEN, Unit};
use super::ncu::{Counters, Measured};
use super::sanitizer::Finding;

/// A profile. The keys are an interface: they are added to, not changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Whether everything that was asked for is there, and nothing is wrong.
    pub ok: bool,
    /// The program's file.
    pub file: String,
    /// What was planned for.
    pub target: String,
    /// The GPU; null where there is none to run it.
    pub device: Option<String>,
    /// The chip whose counters it has.
    pub chip: Option<Chip>,
    /// The position of the segment.
    pub segment: usize,
    /// What its kernel is.
    pub kernel: String,
    /// The run without any tool, before all others; null if it came to none.
    pub plain: Option<PlainRun>,
    /// The least that must be moved, and what was.
    pub traffic: Traffic,
    /// What ncu measured; null if it was not asked or did not measure.
    pub counters: Option<Counters>,
    /// What the sanitizer's tools found, one for each that ran.
    pub checks: Vec<Finding>,
    /// What is missing, and why.
    pub troubles: Vec<Trouble>,
    /// The tools that were used.
    pub tools: Vec<ToolUse>,
    /// The folder with everything that the tools left and printed.
    pub kept: Option<String>,
}

/// A run without tools.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlainRun {
    /// Whether every result was as expected; null if the run failed.
    pub ok: Option<bool>,
    /// Why it failed.
    pub error: Option<String>,
    /// The kernels that it launches, in order.
    pub launched: Vec<Launched>,
}

/// A kernel that a run launches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Launched {
    /// The position of its segment.
    pub segment: usize,
    /// What it is.
    pub kernel: String,
}

/// What a kernel must read and write, each byte once, and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// Bytes of all that it reads; null where the extents are not known.
    pub counted_read: Option<u64>,
    /// Bytes of all that it writes.
    pub counted_written: Option<u64>,
    /// Bytes read from DRAM over those counted.
    pub read_ratio: Option<f64>,
    /// Bytes written to DRAM over those counted. Below 1 what was written stayed in L2.
    pub written_ratio: Option<f64>,
}

impl Traffic {
    /// The counted bytes, held against those that were measured.
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

/// A tool and how it was called.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolUse {
    /// `ncu`, `memcheck`, …
    pub tool: &'static str,
    /// The program.
    pub path: String,
    /// Its release, if it says that.
    pub release: Option<String>,
    /// The whole command.
    pub command: Vec<String>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Report {
    /// 0 if everything is there and right; 1 if a result is wrong or a tool found errors; else 3, as something is missing.
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

    /// The same, with [`ok`](Self::ok) as it must be.
    pub fn concluded(self) -> Report {
        Report { ok: self.exit_code() == 0, ..self }
    }
}

/// How many reasons the text shows.
const STALLS_SHOWN: usize = 3;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_deref().unwrap_or("no device");
        writeln!(f, "{} for {}, {device}", self.file, self.target)?;
        writeln!(f, "segment {}: {}", self.segment, self.kernel)?;
        match &self.plain {
            None => {}
            Some(PlainRun { ok: Some(true), .. }) => writeln!(f, "without tools the run is as expected")?,
            Some(PlainRun { ok: Some(false), .. }) => {
                writeln!(f, "without tools already a result is wrong: `fourfold replay` says which")?;
            }
            Some(PlainRun { error, .. }) => {
                let error = error.as_deref().unwrap_or("no reason is known");
                writeln!(f, "without tools already the run fails: {error}")?;
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
            writeln!(f, "\nwhat the tools left is in {folder}")?;
        }
        Ok(())
    }
}

impl Report {
    fn write_counters(&self, f: &mut fmt::Formatter<'_>, counters: &Counters) -> fmt::Result {
        let chip = counters.chip.name();
        writeln!(
            f,
            "\nncu, counters of {chip}: caches are cold and clocks are free, so that a duration is for"
        )?;
        writeln!(f, "comparison with others of ncu only")?;
        for measured in counters.metrics.iter().filter(|measured| measured.metric.is_some()) {
            let (counted, ratio) = match measured.key {
                DRAM_READ => (self.traffic.counted_read, self.traffic.read_ratio),
                DRAM_WRITTEN => (self.traffic.counted_written, self.traffic.written_ratio),
                _ => (None, None),
            };
            write!(f, "  {:<22} {:>16}", measured.title, shown(measured))?;
            if let (Some(counted), Some(ratio)) = (counted, ratio) {
                write!(f, ", {ratio:.3} of the {counted} B that must move")?;
            }
            writeln!(f)?;
        }
        let known = counters.stalls.iter().filter_map(|stall| Some((stall.reason, stall.warps?)));
        let top: Vec<String> =
            known.take(STALLS_SHOWN).map(|(reason, warps)| format!("{reason} {warps:.3}")).collect();
        if !top.is_empty() {
            writeln!(f, "  {:<22} {}", "warps that wait for", top.join(", "))?;
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
