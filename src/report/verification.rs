//! What `verify` says: one row for each kernel's result in each run.

use std::fmt;

use serde::Serialize;

use crate::backend::{Backend, Execution};
use crate::error::Error;

/// The report of a verification. The keys are an interface: they are added to, not changed.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Whether every row is.
    pub ok: bool,
    /// What was planned for.
    pub target: String,
    /// Where kernels ran; null where they could not.
    pub device: Option<String>,
    /// Whether their matrix instruction was emulated.
    pub emulated: bool,
    /// Why kernels could not run here.
    pub reason: Option<String>,
    /// Results of kernels that were planned.
    pub kernels: usize,
    /// Results of kernels that really ran as one.
    pub ran_kernels: usize,
    /// In order of files and inputs.
    pub rows: Vec<VerifyRow>,
    /// Files in folders that are no valid programs; some are so on purpose.
    pub invalid: usize,
    /// Programs of which no op becomes a kernel.
    pub without_kernels: usize,
    /// Programs that name neither data nor a sample.
    pub without_inputs: usize,
}

/// One result of one run.
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
    /// What is demanded.
    pub rule: String,
    /// What it was compared with.
    pub against: String,
    /// Elements that do not meet the rule.
    pub mismatches: usize,
    /// Elements of a 16-bit type that were rounded the other way, as the rule allows.
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
            rows: Vec::new(),
            invalid: 0,
            without_kernels: 0,
            without_inputs: 0,
        }
    }

    /// Counts what the rows say.
    pub(crate) fn finish(&mut self) {
        self.ok = self.rows.iter().all(|row| row.ok);
        let kernels = || self.rows.iter().filter(|row| row.kernel.is_some());
        self.kernels = kernels().count();
        self.ran_kernels = kernels().filter(|row| row.ran == "kernel" || row.ran == "emulated").count();
    }
}

impl VerifyRow {
    /// A run that failed.
    pub(crate) fn error(fixture: &str, inputs: &str, error: &Error) -> VerifyRow {
        VerifyRow { ok: false, ..VerifyRow::empty(fixture, inputs, error.message()) }
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
            rule: String::new(),
            against: String::new(),
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
    fn cells(&self) -> [String; 8] {
        let extents = self.extents.map_or(String::new(), |[l, m, n, k]| format!("{l}x{m}x{n}x{k}"));
        // A seed without its word, and a file without its folder.
        let inputs =
            self.inputs.strip_prefix("seeded, rule ").unwrap_or(&self.inputs).replace(", seed ", " ");
        let inputs = inputs.rsplit('/').next().unwrap_or(&inputs).to_owned();
        [
            self.fixture.clone(),
            inputs,
            self.kernel.as_ref().map_or_else(|| "-".to_owned(), |kernel| kernel.replace("_scaled_mm", "")),
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
        const HEADER: [&str; 8] =
            ["fixture", "inputs", "kernel", "LxMxNxK", "ran as", "rule", "mismatches", "time"];
        let cells: Vec<[String; 8]> = self.rows.iter().map(VerifyRow::cells).collect();
        let mut widths = HEADER.map(|title| title.chars().count());
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |row: &[String; 8]| -> String {
            let mut text = String::new();
            for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                // Numbers stand to the right.
                text += &if index >= 6 { format!("{pad}{cell}  ") } else { format!("{cell}{pad}  ") };
            }
            text.trim_end().to_owned()
        };
        writeln!(f, "{}", line(&HEADER.map(str::to_owned)))?;
        for (row, cells) in self.rows.iter().zip(&cells) {
            writeln!(f, "{}{}", line(cells), if row.ok { "" } else { "  WRONG" })?;
            if let Some(worst) = row.worst.as_ref().filter(|_| !row.ok) {
                writeln!(f, "    %{}, worst {worst}", row.value)?;
            }
            let is_plain = row.reason.as_deref() == Some(fourfold_executor::NO_DEVICE);
            if let Some(message) = row.message.as_ref().filter(|_| !is_plain) {
                writeln!(f, "    {message}")?;
            }
        }
        let met = self.rows.iter().filter(|row| row.ok).count();
        writeln!(
            f,
            "\n{met} of {} rows as demanded, {} of {} results from a kernel; left out: {} programs without a kernel, {} without \
             inputs, {} invalid ones",
            self.rows.len(),
            self.ran_kernels,
            self.kernels,
            self.without_kernels,
            self.without_inputs,
            self.invalid
        )
    }
}
