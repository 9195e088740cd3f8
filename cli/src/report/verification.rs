//! What `verify` says: one row for each value that a kernel wrote in each run.

use std::fmt;

use fourfold::{Backend, Execution, Fault};
use fourfold_executor::LaunchRecord;
use serde::Serialize;

use crate::error::{Error, exit_code};

/// The report of a verification. The keys are an interface: they are added to, not changed.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Whether every row is, and every planned kernel ran where all are required.
    pub ok: bool,
    /// What was planned for.
    pub target: String,
    /// Where kernels ran; null where they could not.
    pub device: Option<String>,
    /// Whether their matrix instruction was emulated.
    pub emulated: bool,
    /// Why kernels could not run here.
    pub reason: Option<String>,
    /// Kernel segments that were planned, counted anew for each of a program's inputs.
    pub kernels: usize,
    /// Those of them that really ran as a kernel.
    pub ran_kernels: usize,
    /// Rows in which at least one element was compared.
    pub compared: usize,
    /// In order of files and inputs.
    pub rows: Vec<VerifyRow>,
    /// Programs that were not run.
    pub left_out: Vec<LeftOutFile>,
    /// What each launch was given, in debug mode.
    pub launches: Vec<VerifyLaunch>,
}

/// One launch of one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyLaunch {
    /// The program's file, below the folder that was given.
    pub fixture: String,
    /// Where the inputs came from.
    pub inputs: String,
    /// What it was given.
    pub launch: LaunchRecord,
}

/// A program that was not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOutFile {
    /// Its file, below the folder that was given.
    pub file: String,
    /// Why.
    pub why: LeftOut,
}

/// Why a program was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// It says of itself that it is invalid.
    Invalid,
    /// None of its ops becomes a kernel of the target.
    NoKernel,
    /// It names neither data nor a sample.
    NoInputs,
}

/// One value of one run.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyRow {
    /// The program's file, below the folder that was given.
    pub fixture: String,
    /// Where the inputs came from.
    pub inputs: String,
    /// The value that was compared.
    pub value: String,
    /// The kernel that computed it; null for what the fallback computed.
    pub kernel: Option<String>,
    /// L, M, N and K of this run.
    pub extents: Option<[u64; 4]>,
    /// `kernel`, `emulated`, `fallback` or `not_run`.
    pub ran: &'static str,
    /// The code of why it did not run as a kernel.
    pub reason: Option<String>,
    /// The same for people; also what went wrong, and what could not be compared.
    pub message: Option<String>,
    /// Whose fault it was that the run failed; null for a run that did not.
    pub fault: Option<Fault>,
    /// What is demanded.
    pub rule: String,
    /// What it was compared with.
    pub against: String,
    /// How many elements were compared.
    pub elements: usize,
    /// Those of them that do not meet the rule.
    pub mismatches: usize,
    /// Elements of a narrow type that were rounded the other way, and codes and scales that moved, as the rule allows.
    pub moved_roundings: usize,
    /// The largest difference.
    pub max_abs_err: f64,
    /// The same over the largest magnitude.
    pub max_rel_err: f64,
    /// The worst element.
    pub worst: Option<String>,
    /// The time of the kernel on the device, or of the segment on the CPU.
    pub seconds: Option<f64>,
    /// Whether the rule is met.
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
            compared: 0,
            rows: Vec::new(),
            left_out: Vec::new(),
            launches: Vec::new(),
        }
    }

    pub(crate) fn leave_out(&mut self, file: String, why: LeftOut) {
        self.left_out.push(LeftOutFile { file, why });
    }

    /// Says whether all is well.
    pub(crate) fn finish(&mut self) {
        self.ok = self.rows.iter().all(|row| row.ok);
        self.compared = self.rows.iter().filter(|row| row.elements > 0).count();
    }

    /// The exit code of the command line: 0 when every row is as demanded, 1 when a result is wrong, else that of the
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
    /// A run that failed.
    pub(crate) fn error(fixture: &str, inputs: &str, error: &Error) -> VerifyRow {
        let fault = Some(error.fault());
        let launch = error.launch().map_or_else(String::new, |launch| format!("\n{launch}"));
        let message = format!("{}{launch}", error.message());
        VerifyRow { ok: false, fault, ..VerifyRow::empty(fixture, inputs, message) }
    }

    /// An expectation that does not fit its value.
    pub(crate) fn unfit(fixture: &str, inputs: &str, value: &str, why: &str) -> VerifyRow {
        let fault = Some(Fault::InvalidInput);
        let row = VerifyRow::empty(fixture, inputs, why.to_owned());
        VerifyRow { ok: false, fault, value: value.to_owned(), ..row }
    }

    /// Something that was not compared.
    pub(crate) fn note(fixture: &str, inputs: &str, note: &str) -> VerifyRow {
        VerifyRow { ok: true, ..VerifyRow::empty(fixture, inputs, note.to_owned()) }
    }

    fn empty(fixture: &str, inputs: &str, message: String) -> VerifyRow {
        VerifyRow {
            fixture: fixture.to_owned(),
            inputs: inputs.to_owned(),
            value: String::new(),
            kernel: None,
            extents: None,
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
            ok: true,
        }
    }

    /// The cells of the table.
    fn cells(&self) -> [String; 9] {
        let extents = self.extents.map_or(String::new(), |[l, m, n, k]| format!("{l}x{m}x{n}x{k}"));
        // A seed without its word, and a file without its folder.
        let inputs =
            self.inputs.strip_prefix("seeded, rule ").unwrap_or(&self.inputs).replace(", seed ", " ");
        let inputs = inputs.rsplit('/').next().unwrap_or(&inputs).to_owned();
        [
            self.fixture.clone(),
            inputs,
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
        const HEADER: [&str; 9] =
            ["fixture", "inputs", "kernel", "value", "LxMxNxK", "ran as", "rule", "mismatches", "time"];
        let cells: Vec<[String; 9]> = self.rows.iter().map(VerifyRow::cells).collect();
        let mut widths = HEADER.map(|title| title.chars().count());
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |row: &[String; 9]| -> String {
            let mut text = String::new();
            for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                // Numbers stand to the right.
                text += &if index >= 7 { format!("{pad}{cell}  ") } else { format!("{cell}{pad}  ") };
            }
            text.trim_end().to_owned()
        };
        writeln!(f, "{}", line(&HEADER.map(str::to_owned)))?;
        for (row, cells) in self.rows.iter().zip(&cells) {
            writeln!(f, "{}{}", line(cells), if row.ok { "" } else { "  WRONG" })?;
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
        writeln!(
            f,
            "\n{met} of {rows} rows as demanded; {ran} of {kernels} kernel segments ran as a kernel"
        )?;
        if self.compared == 0 {
            writeln!(f, "nothing was compared")?;
        }
        let count = |why| self.left_out.iter().filter(|left| left.why == why).count();
        writeln!(
            f,
            "left out: {} programs without a kernel, {} without inputs, {} that are invalid on purpose",
            count(LeftOut::NoKernel),
            count(LeftOut::NoInputs),
            count(LeftOut::Invalid)
        )
    }
}
