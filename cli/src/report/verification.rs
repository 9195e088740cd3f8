//! The report of `verify`: one row for each value that a segment on the GPU wrote in each run.

use std::fmt;

use fourfold::{Backend, Execution, Fault};
use fourfold_executor::{LaunchRecord, RunError};
use serde::Serialize;

use crate::error::{Error, exit_code};

/// The report of a verification. Its keys are a stable interface: keys may be added, never changed.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// True if every row is right and what `--require-kernels` and `--require-device` demand is met.
    pub ok: bool,
    /// The target of the plan.
    pub target: String,
    /// The GPU on which kernels ran; null if none could run.
    pub device: Option<String>,
    /// True if the matrix instruction of the kernels was emulated.
    pub emulated: bool,
    /// The reason why no kernel can run here.
    pub reason: Option<String>,
    /// The number of planned kernel segments, counted once per set of inputs of a program whose extents choose them.
    pub kernels: usize,
    /// The number of kernel segments that ran as a kernel.
    pub ran_kernels: usize,
    /// The number of planned segments of the device tier, counted once per set of inputs of a program.
    pub device_segments: usize,
    /// The number of these that ran on the GPU, or need none: their results have no elements, or are views of values on the
    /// host.
    pub ran_device_segments: usize,
    /// The segments of the kernel and the device tier that ran on the fallback.
    pub off_device: Vec<OffDevice>,
    /// The number of rows in which at least one element was compared.
    pub compared: usize,
    /// The rows, in the order of files and inputs.
    pub rows: Vec<VerifyRow>,
    /// The programs that were not run.
    pub left_out: Vec<LeftOutFile>,
    /// The arguments of each launch, in debug mode.
    pub launches: Vec<VerifyLaunch>,
    /// The reason why the requested report file is not complete; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report_error: Option<String>,
}

/// One launch of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyLaunch {
    /// The program's file, relative to the given folder.
    pub fixture: String,
    /// The origin of the inputs.
    pub inputs: String,
    /// The arguments of the launch.
    pub launch: LaunchRecord,
}

/// A segment of one run that was planned for the GPU and ran on the fallback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OffDevice {
    /// The program's file, relative to the given folder.
    pub fixture: String,
    /// The origin of the inputs.
    pub inputs: String,
    /// The position of the segment.
    pub segment: usize,
    /// The ops of the segment.
    pub ops: Vec<String>,
    /// The reason code.
    pub reason: Option<String>,
    /// The reason as text.
    pub message: Option<String>,
}

/// A program that was not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOutFile {
    /// The file, relative to the given folder.
    pub file: String,
    /// The reason.
    pub why: LeftOut,
}

/// Reasons for not running a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// The program declares itself invalid (`; test: error`).
    Invalid,
    /// No op of the program is planned for the GPU.
    NoKernel,
    /// The program names neither data nor a sample.
    NoInputs,
}

/// One value of one run.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyRow {
    /// The program's file, relative to the given folder.
    pub fixture: String,
    /// The origin of the inputs.
    pub inputs: String,
    /// The position of the segment that computed the value, or that failed; null if none did.
    pub segment: Option<usize>,
    /// The compared value.
    pub value: String,
    /// The kernel, library call or view that computed it; null for a value of the fallback.
    pub kernel: Option<String>,
    /// The tier of the segment: `kernel` or `device`; null for the fallback.
    pub kind: Option<&'static str>,
    /// The kind of the plan: `scaled_mma`, `block_quantize`, `row`, `move`, `mma` or `view`; null for the fallback.
    pub plan: Option<&'static str>,
    /// L, M, N and K of this run; null for a segment of the device tier.
    pub extents: Option<[u64; 4]>,
    /// The named extents of a segment of the device tier, such as `L=1 M=37 K=64`.
    pub sizes: Option<String>,
    /// `kernel`, `emulated`, `fallback` or `not_run`.
    pub ran: &'static str,
    /// The reason code if the segment did not run as a kernel.
    pub reason: Option<String>,
    /// The reason as text; also the error of a failed run, or a note on a value that was not compared.
    pub message: Option<String>,
    /// The fault of a failed run; null if the run did not fail.
    pub fault: Option<Fault>,
    /// The rule that the elements must meet.
    pub rule: String,
    /// The reference: a tensor of the data, `interpreter` or `fallback`.
    pub against: String,
    /// The number of compared elements.
    pub elements: usize,
    /// The number of compared elements that break the rule.
    pub mismatches: usize,
    /// The number of elements of a narrow type that were rounded the other way, and of codes and scales that
    /// moved, within the rule.
    pub moved_roundings: usize,
    /// The largest difference.
    pub max_abs_err: f64,
    /// The largest difference over the largest magnitude.
    pub max_rel_err: f64,
    /// The worst element.
    pub worst: Option<String>,
    /// The time of the kernel on the device, or of the segment on the CPU.
    pub seconds: Option<f64>,
    /// True if no element is wrong, but too few have a bound for the value to count as right. Then `ok` is false.
    #[serde(skip)]
    pub unbounded: bool,
    /// True if the rule is met and, for a run with NaN padding, the kernel ran.
    pub ok: bool,
}

impl VerifyReport {
    pub(crate) fn new(backend: &Backend) -> VerifyReport {
        let execution = backend.execution();
        VerifyReport {
            ok: true,
            target: backend.capabilities().target.clone(),
            device: execution.as_ref().ok().map(|(gpu, _)| gpu.to_string()),
            emulated: matches!(execution, Ok((_, Execution::Emulated))),
            reason: execution.err().map(|reason| reason.message),
            kernels: 0,
            ran_kernels: 0,
            device_segments: 0,
            ran_device_segments: 0,
            off_device: Vec::new(),
            compared: 0,
            rows: Vec::new(),
            left_out: Vec::new(),
            launches: Vec::new(),
            report_error: None,
        }
    }

    pub(crate) fn leave_out(&mut self, file: String, why: LeftOut) {
        self.left_out.push(LeftOutFile { file, why });
    }

    /// Sets the totals.
    pub(crate) fn finish(&mut self) {
        self.ok = self.rows.iter().all(|row| row.ok);
        self.compared = self.rows.iter().filter(|row| row.elements > 0).count();
    }

    /// Returns true if segments of the device tier were planned, and every segment planned for the GPU ran there.
    pub fn is_on_device(&self) -> bool {
        self.device_segments > 0
            && self.off_device.is_empty()
            && self.rows.iter().all(|row| row.fault.is_none())
    }

    /// Returns the exit code: 0 if every row is right, 1 if a value is wrong or lacks bounds, else that of the
    /// first run that failed.
    pub fn exit_code(&self) -> u8 {
        let wrong = |row: &&VerifyRow| !row.ok && row.fault.is_none();
        let failed = self.rows.iter().find_map(|row| row.fault);
        match (self.rows.iter().find(wrong), failed) {
            (Some(_), _) => 1,
            (None, Some(fault)) => exit_code(fault),
            (None, None) => 0,
        }
    }
}

impl VerifyRow {
    /// A row for a run that failed.
    pub(crate) fn error(fixture: &str, inputs: &str, error: &Error) -> VerifyRow {
        let fault = Some(error.fault());
        let launch = error.launch().map_or_else(String::new, |launch| format!("\n{launch}"));
        let message = format!("{}{launch}", error.detailed());
        let segment = match error {
            Error::Run(RunError::Device { segment, .. } | RunError::Op { segment, .. }) => Some(*segment),
            _ => None,
        };
        VerifyRow { ok: false, fault, segment, ..VerifyRow::empty(fixture, inputs, message) }
    }

    /// A row for an expectation that does not fit its value.
    pub(crate) fn unfit(fixture: &str, inputs: &str, value: &str, why: &str) -> VerifyRow {
        let fault = Some(Fault::InvalidInput);
        let row = VerifyRow::empty(fixture, inputs, why.to_owned());
        VerifyRow { ok: false, fault, value: value.to_owned(), ..row }
    }

    /// A row for a value that was not compared.
    pub(crate) fn note(fixture: &str, inputs: &str, note: &str) -> VerifyRow {
        VerifyRow { ok: true, ..VerifyRow::empty(fixture, inputs, note.to_owned()) }
    }

    fn empty(fixture: &str, inputs: &str, message: String) -> VerifyRow {
        VerifyRow {
            fixture: fixture.to_owned(),
            inputs: inputs.to_owned(),
            segment: None,
            value: String::new(),
            kernel: None,
            kind: None,
            plan: None,
            extents: None,
            sizes: None,
            ran: "not_run",
            reason: None,
            message: Some(message),
            fault: None,
            rule: String::new(),
            against: String::new(),
            elements: 0,
            mismatches: 0,
            moved_roundings: 0,
            max_abs_err: 0.0,
            max_rel_err: 0.0,
            worst: None,
            seconds: None,
            unbounded: false,
            ok: true,
        }
    }

    /// The word at the end of the row: nothing if it is right, `WRONG` only if the result is wrong.
    fn verdict(&self) -> &'static str {
        let ran = matches!(self.ran, "kernel" | "emulated");
        match self.ok {
            true => "",
            false if self.fault.is_some() => "  FAILED",
            false if self.unbounded => "  no bound",
            // A run with NaN padding that fell back says nothing about the kernel.
            false if !ran && self.mismatches == 0 && self.moved_roundings == 0 => "  not run",
            false => "  WRONG",
        }
    }

    /// Returns the cells of the table.
    fn cells(&self) -> [String; 10] {
        let extents = self.extents.map(|[l, m, n, k]| format!("{l}x{m}x{n}x{k}"));
        let extents = extents.or_else(|| self.sizes.clone()).unwrap_or_default();
        // Shortens seeded inputs to rule and seed, and a data file to its name.
        let inputs =
            self.inputs.strip_prefix("seeded, rule ").unwrap_or(&self.inputs).replace(", seed ", " ");
        let inputs = inputs.rsplit('/').next().unwrap_or(&inputs).to_owned();
        [
            self.fixture.clone(),
            inputs,
            self.kind.unwrap_or("-").to_owned(),
            self.kernel.as_ref().map_or_else(|| "-".to_owned(), |kernel| kernel.replace("_scaled_mm", "")),
            if self.value.is_empty() { String::new() } else { format!("%{}", self.value) },
            extents,
            self.ran.to_owned(),
            self.rule.clone(),
            self.mismatches.to_string(),
            self.seconds.map_or(String::new(), |seconds| format!("{:.1} µs", seconds * 1e6)),
        ]
    }
}

/// The table for people.
impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match (&self.device, self.emulated) {
            (Some(device), true) => format!("emulated on {device}"),
            (Some(device), false) => format!("on {device}"),
            (None, _) => "on the fallback".to_owned(),
        };
        writeln!(f, "{} kernels {place}", self.target)?;
        if let Some(reason) = &self.reason {
            writeln!(f, "{reason}")?;
        }
        writeln!(f)?;
        const HEADER: [&str; 10] = [
            "fixture",
            "inputs",
            "kind",
            "kernel",
            "value",
            "LxMxNxK",
            "ran as",
            "rule",
            "mismatches",
            "time",
        ];
        let cells: Vec<[String; 10]> = self.rows.iter().map(VerifyRow::cells).collect();
        let mut widths = HEADER.map(|title| title.chars().count());
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |row: &[String; 10]| -> String {
            let mut text = String::new();
            for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                // Numbers are aligned to the right.
                text += &if index >= 8 { format!("{pad}{cell}  ") } else { format!("{cell}{pad}  ") };
            }
            text.trim_end().to_owned()
        };
        writeln!(f, "{}", line(&HEADER.map(str::to_owned)))?;
        for (row, cells) in self.rows.iter().zip(&cells) {
            writeln!(f, "{}{}", line(cells), row.verdict())?;
            if let Some(worst) = row.worst.as_ref().filter(|_| !row.ok) {
                writeln!(f, "    %{}, worst {worst}", row.value)?;
            }
            if row.moved_roundings > 0 {
                let (moved, elements) = (row.moved_roundings, row.elements);
                writeln!(f, "    {moved} of {elements} moved")?;
            }
            let is_plain = row.reason.as_deref() == Some(fourfold_executor::NO_DEVICE);
            if let Some(message) = row.message.as_ref().filter(|_| !is_plain) {
                writeln!(f, "    {message}")?;
            }
        }
        for VerifyLaunch { fixture, inputs, launch } in &self.launches {
            writeln!(f, "\n{fixture}, {inputs}: {launch}")?;
        }
        let met = self.rows.iter().filter(|row| row.ok).count();
        let (rows, ran, kernels) = (self.rows.len(), self.ran_kernels, self.kernels);
        let unbounded = match self.rows.iter().filter(|row| row.unbounded).count() {
            0 => String::new(),
            count => format!(", {count} with too many elements without a bound"),
        };
        writeln!(
            f,
            "\n{met} of {rows} rows are right{unbounded}; {ran} of {kernels} kernel segments ran as a kernel"
        )?;
        if self.device_segments > 0 {
            let (ran, planned) = (self.ran_device_segments, self.device_segments);
            writeln!(f, "{ran} of {planned} device segments ran on the GPU or needed none")?;
        }
        if self.compared == 0 {
            writeln!(f, "nothing was compared")?;
        }
        let count = |why| self.left_out.iter().filter(|left| left.why == why).count();
        writeln!(
            f,
            "skipped: {} programs without a kernel, {} without inputs, {} marked invalid",
            count(LeftOut::NoKernel),
            count(LeftOut::NoInputs),
            count(LeftOut::Invalid)
        )
    }
}
