//! The short report of a run: where each segment ran and why, each comparison, the verdict.

use std::collections::BTreeSet;
use std::fmt;

use super::text::{counted, device, inputs, ran, verdict, write_outputs};
use super::{OutputReport, Report, SegmentReport};

/// Above this number, segments are grouped by tier and outcome.
const SEGMENTS: usize = 8;
/// Above this number, only failed and loose comparisons are listed.
const OUTPUTS: usize = 8;

/// Prints a [`Report`] in about 15 lines, or more where something failed.
pub struct Summary<'a>(pub &'a Report);

/// One line of the table of segments.
struct Row {
    /// The position of the first segment of the line.
    first: usize,
    /// The segments of the line.
    count: usize,
    kind: &'static str,
    kernel: Option<String>,
    ops: usize,
    ran: String,
    seconds: f64,
    why: String,
}

impl Row {
    fn of(report: &Report, index: usize, segment: &SegmentReport) -> Row {
        Row {
            first: index,
            count: 1,
            kind: segment.kind,
            kernel: segment.kernel.clone(),
            ops: segment.ops.len(),
            ran: ran(segment),
            seconds: segment.kernel_seconds.or(segment.seconds).unwrap_or(0.0),
            why: why(report, index, segment),
        }
    }

    fn is_like(&self, other: &Row) -> bool {
        self.kind == other.kind
            && self.kernel == other.kernel
            && self.ran == other.ran
            && self.why == other.why
    }

    fn title(&self) -> String {
        let times = if self.count == 1 { String::new() } else { format!(" x{}", self.count) };
        match &self.kernel {
            Some(kernel) => format!("{kernel}{times}"),
            None if self.count == 1 => counted(self.ops, "op"),
            None => format!("{} in {} segments", counted(self.ops, "op"), self.count),
        }
    }

    fn time(&self) -> String {
        match self.seconds {
            seconds if seconds < 1e-4 => format!("{:.1} µs", seconds * 1e6),
            seconds => format!("{:.2} ms", seconds * 1e3),
        }
    }
}

/// The reason a segment is not a kernel or did not run as one; the configuration of a kernel that did.
fn why(report: &Report, index: usize, segment: &SegmentReport) -> String {
    if let Some(reason) = &segment.reason {
        return reason.clone();
    }
    if let Some(configuration) = &segment.configuration {
        return configuration.clone();
    }
    let of_segment = report.decisions.iter().filter(|decision| decision.segment == Some(index));
    let codes: BTreeSet<&str> = of_segment.filter_map(|decision| decision.code).collect();
    codes.into_iter().collect::<Vec<_>>().join(", ")
}

fn rows(report: &Report) -> Vec<Row> {
    let is_long = report.segments.len() > SEGMENTS;
    let mut rows: Vec<Row> = Vec::new();
    for (index, segment) in report.segments.iter().enumerate() {
        let row = Row::of(report, index, segment);
        match rows.iter_mut().find(|known| is_long && known.is_like(&row)) {
            Some(known) => {
                known.count += 1;
                known.ops += row.ops;
                known.seconds += row.seconds;
            }
            None => rows.push(row),
        }
    }
    rows
}

/// Each reason that a kernel did not run as one, with its message, once.
fn reasons(report: &Report) -> BTreeSet<(&str, &str)> {
    report
        .segments
        .iter()
        .filter_map(|segment| Some((segment.reason.as_deref()?, segment.message.as_deref()?)))
        .collect()
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let (file, target, device) = (&report.file, &report.target, device(report));
        let kernels = match (report.kernels, report.ran_kernels) {
            (0, _) => "no kernel segments".to_owned(),
            (kernels, ran) => format!("{ran} of {} ran as a kernel", counted(kernels, "kernel segment")),
        };
        writeln!(f, "{file} for {target}, {device}: {kernels}")?;
        if let Some(inputs) = inputs(report) {
            writeln!(f, "{inputs}")?;
        }
        writeln!(f)?;
        let rows = rows(report);
        let titles: Vec<String> = rows.iter().map(Row::title).collect();
        let widest = |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| text.chars().count()).max();
        let title_width = widest(&mut titles.iter()).unwrap_or(0);
        let ran_width = widest(&mut rows.iter().map(|row| &row.ran)).unwrap_or(0);
        for (row, title) in rows.iter().zip(&titles) {
            let Row { first, kind, ran, why, .. } = row;
            let line = format!(
                "  {first:>2}  {kind:<8}  {title:<title_width$}  {ran:<ran_width$}  {:>9}  {why}",
                row.time()
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        for (code, message) in reasons(report) {
            writeln!(f, "{code}: {message}")?;
        }
        if !report.contracted.is_empty() {
            let ops = counted(report.contracted.len(), "op");
            writeln!(f, "contracted: {ops} lost a rounding that the program states (-v lists them)")?;
        }
        writeln!(f)?;
        let is_listed =
            |output: &&OutputReport| report.outputs.len() <= OUTPUTS || !output.ok || output.loose;
        let listed: Vec<&OutputReport> = report.outputs.iter().filter(is_listed).collect();
        write_outputs(f, listed.iter().copied())?;
        match report.outputs.len() - listed.len() {
            0 => {}
            others => writeln!(f, "  {} ok (-v lists them)", counted(others, "comparison"))?,
        }
        for note in &report.notes {
            writeln!(f, "note: {note}")?;
        }
        match verdict(report) {
            Some(verdict) => writeln!(f, "{verdict}"),
            None => Ok(()),
        }
    }
}
