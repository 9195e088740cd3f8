//! Runs a partitioned program, segment by segment.

use std::time::Instant;

use fourfold_ir::{Bound, Entity, Op, Program, SymbolValues, Tensor, Value};
use fourfold_scheduler::{KernelPlan, Partition};

use crate::fallback::{self, FallbackError};

/// How to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// Keep every value, not only program outputs.
    pub keep_all: bool,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Run {
    /// By value index: the program outputs, or every value that is not an input
    /// when all are kept. An input is there only if the program returns it.
    pub values: Vec<Option<Tensor>>,
    /// One for each segment of the partition.
    pub segments: Vec<SegmentRun>,
}

impl Run {
    /// The tensor of a value, if it was kept.
    pub fn value(&self, value: Value) -> Option<&Tensor> {
        self.values.get(value.index())?.as_ref()
    }
}

/// What became of one segment.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentRun {
    /// How it ran.
    pub ran: Ran,
    /// Why a segment that was planned as a kernel did not run as one.
    pub reason: Option<RunReason>,
    /// Wall-clock time.
    pub seconds: f64,
}

/// How a segment ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ran {
    /// As its kernel, on a device of the target.
    Kernel,
    /// As its kernel with the target's instructions emulated, on another device.
    Emulated,
    /// On the CPU, op by op.
    Fallback,
    /// Not at all.
    NotRun,
}

impl Ran {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Ran::Kernel => "kernel",
            Ran::Emulated => "emulated",
            Ran::Fallback => "fallback",
            Ran::NotRun => "not_run",
        }
    }
}

/// Why a kernel did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReason {
    /// A stable code: `no_device`, or that of the constraint that the call does not meet.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// The code of a kernel that has no device to run on.
pub const NO_DEVICE: &str = "no_device";

/// Why a program could not be run on these inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// There are too few or too many inputs.
    #[error("`@{program}` takes {expected} inputs, not {found}")]
    Inputs {
        /// The program.
        program: String,
        /// How many it has.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// The partition does not belong to the program: an op comes before one whose result it uses, or is missing.
    #[error(
        "the partition is not one of this program: segment {segment} needs `%{value}` before it is computed"
    )]
    Partition {
        /// The position of the segment; the number of segments for a program output.
        segment: usize,
        /// The value that is not there.
        value: String,
    },
    /// An op failed.
    #[error("`{op}` in segment {segment}: {source}")]
    Op {
        /// The op, as `%name = mnemonic`.
        op: String,
        /// The position of its segment.
        segment: usize,
        /// Why.
        source: FallbackError,
    },
}

/// Runs the segments in order. There is no device yet: every segment runs on the fallback, one that was planned as
/// a kernel with the reason why. A value is dropped after its last use unless it is to be kept.
///
/// # Errors
/// When the inputs or the partition are not this program's, or an op cannot be computed on these inputs.
pub fn run(
    program: &Program,
    partition: &Partition,
    bound: &Bound<'_>,
    options: &RunOptions,
) -> Result<Run, RunError> {
    let module = program.module();
    if bound.inputs.len() != module.inputs.len() {
        return Err(RunError::Inputs {
            program: module.name.clone(),
            expected: module.inputs.len(),
            found: bound.inputs.len(),
        });
    }
    let mut values = Values::new(program, bound, options);
    let mut segments = Vec::with_capacity(partition.segments.len());
    for (index, segment) in partition.segments.iter().enumerate() {
        let start = Instant::now();
        for &op in &segment.ops {
            run_op(program, bound, index, op, &mut values)?;
        }
        let reason = segment.kernel().map(|plan| why_not_as_kernel(partition, plan, &bound.symbols));
        segments.push(SegmentRun { ran: Ran::Fallback, reason, seconds: start.elapsed().as_secs_f64() });
    }
    for &output in &module.outputs {
        values.keep_output(output).ok_or_else(|| RunError::Partition {
            segment: partition.segments.len(),
            value: module.name_of(output).to_owned(),
        })?;
    }
    Ok(Run { values: values.computed, segments })
}

fn why_not_as_kernel(partition: &Partition, plan: &KernelPlan, symbols: &SymbolValues) -> RunReason {
    if let Some(rejection) = fourfold_scheduler::violated(plan, symbols) {
        return RunReason { code: rejection.code.as_str(), message: rejection.message };
    }
    let target = &partition.target;
    let format = plan.format;
    RunReason {
        code: NO_DEVICE,
        message: format!("no GPU of target {target} was found: the {format} kernel ran on the CPU"),
    }
}

fn run_op(
    program: &Program,
    bound: &Bound<'_>,
    segment: usize,
    op: Op,
    values: &mut Values<'_>,
) -> Result<(), RunError> {
    let module = program.module();
    let operation = &module.ops[op];
    let operands: Vec<&Tensor> = operation
        .operands
        .iter()
        .map(|&value| {
            values
                .get(value)
                .ok_or_else(|| RunError::Partition { segment, value: module.name_of(value).to_owned() })
        })
        .collect::<Result<_, _>>()?;
    let results = fallback::run_op(program, op, &operands, &bound.symbols)
        .map_err(|source| RunError::Op { op: module.op_label(op), segment, source })?;
    for (&value, tensor) in operation.results.iter().zip(results) {
        values.computed[value.index()] = Some(tensor);
    }
    values.drop_unused(&operation.operands, &operation.results);
    Ok(())
}

/// The tensors of a run: inputs borrowed, the rest owned for as long as it is used.
struct Values<'a> {
    inputs: Vec<Option<&'a Tensor>>,
    computed: Vec<Option<Tensor>>,
    /// Uses to come.
    uses: Vec<usize>,
    kept: Vec<bool>,
}

impl<'a> Values<'a> {
    fn new(program: &Program, bound: &Bound<'a>, options: &RunOptions) -> Values<'a> {
        let module = program.module();
        let count = module.values.len();
        let mut inputs = vec![None; count];
        for (&value, &tensor) in module.inputs.iter().zip(&bound.inputs) {
            inputs[value.index()] = Some(tensor);
        }
        let mut kept = vec![options.keep_all; count];
        for value in &module.outputs {
            kept[value.index()] = true;
        }
        let uses = module.values.keys().map(|value| program.facts().users(value).len()).collect();
        Values { inputs, computed: vec![None; count], uses, kept }
    }

    fn get(&self, value: Value) -> Option<&Tensor> {
        self.inputs[value.index()].or(self.computed[value.index()].as_ref())
    }

    /// Counts the uses of an op's operands and drops what no op uses any more, unused results among them.
    fn drop_unused(&mut self, operands: &[Value], results: &[Value]) {
        for value in operands {
            self.uses[value.index()] = self.uses[value.index()].saturating_sub(1);
        }
        for value in operands.iter().chain(results) {
            let index = value.index();
            if self.uses[index] == 0 && !self.kept[index] {
                self.computed[index] = None;
            }
        }
    }

    /// Makes sure that a program output is there; an input that the program returns is copied.
    fn keep_output(&mut self, output: Value) -> Option<()> {
        let index = output.index();
        if self.computed[index].is_none() {
            self.computed[index] = Some(self.inputs[index]?.clone());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
