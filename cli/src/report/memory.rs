//! The memory plan of a program's intermediates, as `explain --memory` reports it.

use std::fmt;

use fourfold_executor::{MemoryContent, MemoryPlan, Refused};
use fourfold_ir::Module;
use serde::Serialize;

/// The memory that a prepared program needs besides inputs, outputs and the workspaces of kernels.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// The size in bytes; null if the program cannot be prepared.
    pub bytes: Option<u64>,
    /// The largest number of bytes that are live in one step.
    pub live_bytes: u64,
    /// The bytes of all intermediates, as if none shared memory.
    pub total_bytes: u64,
    /// The number of launches, library calls and copies.
    pub steps: usize,
    /// The steps that run on a second stream, beside the others. Their intermediates are live in every step.
    pub second_stream: Vec<usize>,
    /// The intermediates, in the order in which they are written.
    pub parts: Vec<MemoryPartReport>,
    /// The reason code if the program cannot be prepared.
    pub reason: Option<&'static str>,
    /// The reason as text.
    pub message: Option<String>,
}

/// One intermediate.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryPartReport {
    /// The value, with its views.
    pub value: String,
    /// The offset in bytes.
    pub offset: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The step that writes it.
    pub first: usize,
    /// The last step that reads it.
    pub last: usize,
}

impl MemoryReport {
    /// Reports a plan of a program, or the reason that there is none.
    pub(crate) fn of(module: &Module, planned: Result<MemoryPlan, Refused>) -> MemoryReport {
        let plan = match planned {
            Ok(plan) => plan,
            Err(Refused { code, message, .. }) => {
                let (reason, message) = (Some(code), Some(message));
                let parts = Vec::new();
                return MemoryReport {
                    bytes: None,
                    live_bytes: 0,
                    total_bytes: 0,
                    steps: 0,
                    second_stream: Vec::new(),
                    parts,
                    reason,
                    message,
                };
            }
        };
        let part = |part: &fourfold_executor::MemoryPart| match part.content {
            MemoryContent::Value(value) | MemoryContent::Constant(value) | MemoryContent::Stored(value) => {
                Some(MemoryPartReport {
                    value: module.name_of(value).to_owned(),
                    offset: part.offset,
                    bytes: part.bytes,
                    first: part.first,
                    last: part.last,
                })
            }
            MemoryContent::Workspace { .. } => None,
        };
        MemoryReport {
            bytes: Some(plan.bytes),
            live_bytes: plan.live_bytes(),
            total_bytes: plan.total_bytes(),
            steps: plan.steps,
            second_stream: plan.second_stream,
            parts: plan.parts.iter().filter_map(part).collect(),
            reason: None,
            message: None,
        }
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(bytes) = self.bytes else {
            return writeln!(f, "\nmemory: none: {}", self.message.as_deref().unwrap_or_default());
        };
        let MemoryReport { live_bytes, total_bytes, steps, second_stream, .. } = self;
        let second: Vec<String> = second_stream.iter().map(usize::to_string).collect();
        let beside = match second.is_empty() {
            true => String::new(),
            false => format!("; on a second stream: {}", second.join(", ")),
        };
        writeln!(
            f,
            "\nmemory: {bytes} bytes without workspaces; {live_bytes} are live at once, {total_bytes} in all \
             ({steps} steps{beside})"
        )?;
        let width = self.parts.iter().map(|part| part.value.chars().count()).max().unwrap_or(0);
        for MemoryPartReport { value, offset, bytes, first, last } in &self.parts {
            writeln!(f, "  %{value:<width$}  {bytes:>12} bytes at {offset:>12}, steps {first} to {last}")?;
        }
        Ok(())
    }
}
