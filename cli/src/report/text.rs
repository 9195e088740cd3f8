//! The full report as text: every segment with its constraints and justification, every decision, every comparison.

use std::fmt::{self, Write};

use super::choices::write_choices;
use super::{OutputReport, Report, SegmentReport};
use crate::compare::{rounded_up, tolerance_text};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = device(self);
        writeln!(f, "{} for {}, {device}", self.file, self.target)?;
        if let Some(inputs) = inputs(self) {
            writeln!(f, "{inputs}")?;
        }
        let (kernels, ran) = (self.kernels, self.ran_kernels);
        writeln!(f, "\nplan: {}, {ran} ran as a kernel", counted(kernels, "kernel segment"))?;
        for (index, segment) in self.segments.iter().enumerate() {
            write_segment(f, index, segment, self.show_proof)?;
        }
        if !self.contracted.is_empty() {
            writeln!(f, "\ncontracted (these ops lost a rounding that the program states):")?;
            for line in &self.contracted {
                writeln!(f, "  {line}")?;
            }
        }
        writeln!(f, "\ndecisions:")?;
        let width = self.decisions.iter().map(|d| d.op.chars().count()).max().unwrap_or(0).min(44);
        for decision in &self.decisions {
            let segment = decision.segment.map_or("-".to_owned(), |segment| segment.to_string());
            let code = decision.code.map_or(String::new(), |code| format!("{code}: "));
            // The op stands at the left, so the message need not begin with it.
            let message = decision.message.strip_prefix(&decision.op).unwrap_or(&decision.message);
            let message = message.trim_start_matches([':', ' ']);
            writeln!(f, "  {:<width$}  segment {segment:>2}  {code}{message}", decision.op)?;
        }
        write_choices(f, &self.choices, &self.target)?;
        if let Some(memory) = &self.memory {
            write!(f, "{memory}")?;
        }
        if !self.outputs.is_empty() {
            writeln!(f, "\noutputs:")?;
            write_outputs(f, &self.outputs)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        match verdict(self) {
            Some(verdict) => writeln!(f, "\n{verdict}"),
            None => Ok(()),
        }
    }
}

fn write_segment(
    f: &mut fmt::Formatter<'_>,
    index: usize,
    segment: &SegmentReport,
    show_proof: bool,
) -> fmt::Result {
    let title = match (&segment.kernel, &segment.extents) {
        (Some(kernel), Some(extents)) => format!("{kernel}  {extents}"),
        _ => counted(segment.ops.len(), "op"),
    };
    writeln!(f, "  {index:>2}  {:<8}  {title}", segment.kind)?;
    if show_proof {
        for step in &segment.proof {
            writeln!(f, "                {step}")?;
        }
    } else if !segment.rules.is_empty() {
        writeln!(f, "                justified by {}", segment.rules.join(", "))?;
    }
    if let (Some(configuration), Some(why)) = (&segment.configuration, &segment.why) {
        writeln!(f, "                as {configuration}: {why}")?;
    }
    if let Some(resources) = &segment.resources {
        writeln!(f, "                {resources}")?;
    }
    for constraint in &segment.constraints {
        writeln!(f, "                requires that {constraint}")?;
    }
    if segment.ran != "not_run" || segment.reason.is_some() {
        writeln!(f, "                {}", how_it_ran(segment))?;
    }
    if let Some(launch) = &segment.launch {
        for line in launch.to_string().lines() {
            writeln!(f, "                {line}")?;
        }
    }
    Ok(())
}

fn how_it_ran(segment: &SegmentReport) -> String {
    let mut text = ran(segment);
    if let Some(seconds) = segment.seconds.filter(|_| segment.ran != "not_run") {
        let _ = write!(text, " in {:.2} ms", seconds * 1e3);
    }
    if let Some(seconds) = segment.kernel_seconds {
        let _ = write!(text, ", of which {:.1} µs on the device", seconds * 1e6);
    }
    for (bytes, to) in [(segment.bytes_to_device, "to the device"), (segment.bytes_to_host, "to the host")] {
        if bytes > 0 {
            let _ = write!(text, ", {bytes} B moved {to}");
        }
    }
    if let Some(reason) = &segment.reason {
        let _ = write!(text, ": {reason}");
    }
    if let Some(message) = &segment.message {
        let _ = write!(text, " ({message})");
    }
    text
}

/// Says where a segment ran.
pub(super) fn ran(segment: &SegmentReport) -> String {
    match segment.ran {
        "kernel" => "ran as a kernel".to_owned(),
        "emulated" => "ran as a kernel, emulated".to_owned(),
        "not_run" => "did not run".to_owned(),
        other => format!("ran on the {other}"),
    }
}

/// Names the device.
pub(super) fn device(report: &Report) -> String {
    report.device.as_ref().map_or("no device".to_owned(), |device| format!("on {device}"))
}

/// Names the inputs and the extents of symbols; `None` for a plan that has not run.
pub(super) fn inputs(report: &Report) -> Option<String> {
    let mut text = format!("inputs: {}", report.inputs.as_ref()?);
    for (name, extent) in &report.symbols {
        let _ = write!(text, ", {name} = {extent}");
    }
    Some(text)
}

/// `1 op`, `2 ops`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Writes one line for each comparison, and a second one for each that failed.
pub(super) fn write_outputs<'a>(
    f: &mut fmt::Formatter<'_>,
    outputs: impl IntoIterator<Item = &'a OutputReport> + Clone,
) -> fmt::Result {
    let widest = |text: fn(&OutputReport) -> &str| {
        outputs.clone().into_iter().map(|output| text(output).chars().count()).max().unwrap_or(0)
    };
    let (names, expected) = (widest(|output| &output.name), widest(|output| &output.expected));
    for output in outputs {
        let (name, against, source) = (&output.name, &output.expected, output.source);
        let limit = match (output.tolerance, output.may_differ) {
            (Some(tolerance), _) => {
                // Of an error that is too large, all digits that are left out count.
                let error = output.max_rel_err;
                let error = if output.ok { error } else { rounded_up(error) };
                format!("error {error:.2e} of {}", tolerance_text(tolerance))
            }
            (None, Some(count)) => format!("{} of {count} codes differ", output.mismatches),
            (None, None) => String::new(),
        };
        let moved = match output.moved_roundings {
            0 => String::new(),
            count if output.may_differ.is_some() => format!(", {count} codes moved"),
            count => format!(", {count} roundings moved"),
        };
        if let Some(error) = &output.error {
            writeln!(f, "  %{name:<names$}  against {against:<expected$}  NOT COMPARED: {error}")?;
            continue;
        }
        let verdict = match (output.ok, output.unbounded) {
            (true, _) if output.loose => "loose",
            (true, _) => "ok",
            (false, true) => "NO BOUND",
            (false, false) => "MISMATCH",
        };
        writeln!(
            f,
            "  %{name:<names$}  against {against:<expected$}  from {source:<11}  {limit}{moved}  {verdict}"
        )?;
        match &output.worst {
            _ if output.ok => {}
            _ if output.unbounded => writeln!(f, "      rule: {}", output.rule)?,
            Some(worst) => {
                let (count, index) = (output.mismatches, &worst.index);
                let (got, want) = (&worst.got, &worst.want);
                writeln!(f, "      {count} elements differ; the worst is {index:?}: {got}, expected {want}")?;
            }
            None => {}
        }
    }
    Ok(())
}

/// The last line, which tells if every expectation is met; `None` for a plan that has not run.
pub(super) fn verdict(report: &Report) -> Option<String> {
    report.inputs.as_ref()?;
    let count = report.outputs.len();
    let met = report.outputs.iter().filter(|output| output.ok).count();
    let is_wrong = |output: &OutputReport| !output.ok && !output.unbounded;
    let loose = report.outputs.iter().filter(|output| output.ok && output.loose).count();
    let met = format!("{met} of {count} expectations met");
    Some(match report.ok {
        true if report.compared == 0 => "nothing was compared: no value has elements".to_owned(),
        true if loose > 0 => format!("loose: {met}, {loose} only within a bound too wide to prove much"),
        true => format!("ok: {met}"),
        false if count == 0 => {
            "NOTHING WAS COMPARED: give the expected results in the data, as `expected.NAME`".to_owned()
        }
        false if report.fault.is_some() => format!("NOT COMPARED: {met}"),
        false if !report.outputs.iter().any(is_wrong) => {
            format!("NO BOUND: {met}; the others have too many elements without a bound")
        }
        false => format!("MISMATCH: {met}"),
    })
}
