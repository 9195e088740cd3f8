//! Runs a partitioned program, segment by segment: kernels on a device where there is one, the rest on the fallback.
//!
//! A kernel segment that cannot run as one runs on the fallback, and its [`SegmentRun`] says why. The order in which
//! that is found out is fixed: a run-time constraint, no device, a kernel that could not be had, one for another
//! device or with another [`signature`](fourfold_scheduler::Plan::signature) than its plan, the kernel's own refusal, the device's memory.
//! Only when nothing of this applies is anything launched, and what fails then is an error. [`prepare`] is for
//! partitions of kernels only, and [`prepare_segment`] for one kernel: they check all that once, and what they give is
//! launched as often as one likes.

mod call;
mod codes;
mod error;
mod layout;
mod machine;
mod pending;
mod preparation;
mod prepared;
mod record;
mod refused;
mod roles;
mod runner;
#[cfg(test)]
mod tests;
mod values;

use fourfold_ir::{Bound, Entity, Program, SymbolValues, Tensor, Value};
use fourfold_scheduler::Partition;

use crate::service::Wait;

pub(crate) use call::check_target;
pub use codes::{
    ALIAS, BUILDING, DEVICE_ERROR, DEVICE_MEMORY, FALLBACK_SEGMENT, KERNEL_REFUSED, MISSING_ADDRESS,
    NO_DEVICE, NO_SUCH_SEGMENT, NOT_BUILT, POINTER_ALIGNMENT, WORKSPACE_SIZE,
};
pub use error::{FaultPlace, RunError};
pub use machine::{Machine, SegmentKernel};
pub use pending::PendingKernel;
pub use preparation::Preparation;
pub use prepared::PreparedProgram;
pub use record::{LaunchArgument, LaunchRecord, LaunchWorkspace};
pub use refused::Refused;
pub(crate) use roles::pointer;
use runner::Runner;
use values::Values;

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// Keep every value, not only program outputs. What a kernel fuses away is never there.
    pub keep_all: bool,
    /// Fill a kernel's results with this byte before it is launched, the padding of scales included: what it does not
    /// write is seen. Bytes of 0xFF are NaN.
    pub poison: Option<u8>,
    /// Wait for each kernel and measure it: an error then belongs to the segment that it is reported for.
    pub locate: bool,
    /// Look for a fault: everything above for kernels is on, poison being 0xFF unless another byte is given, workspaces
    /// are poisoned as well, and what each launch was given is kept ([`SegmentRun::launch`]; [`RunError::Device`] has
    /// that of the kernel that failed). Off, it costs nothing.
    pub debug: bool,
    /// How long the whole call may wait for kernels that are still being built. What is not there by then runs on the
    /// fallback.
    pub wait: Wait,
}

impl RunOptions {
    /// Keeps every value.
    #[must_use]
    pub fn keep_all(mut self, keep_all: bool) -> RunOptions {
        self.keep_all = keep_all;
        self
    }

    /// Fills a kernel's results with this byte before it is launched.
    #[must_use]
    pub fn poison(mut self, poison: impl Into<Option<u8>>) -> RunOptions {
        self.poison = poison.into();
        self
    }

    /// Waits for each kernel and measures it.
    #[must_use]
    pub fn locate(mut self, locate: bool) -> RunOptions {
        self.locate = locate;
        self
    }

    /// Runs in debug mode.
    #[must_use]
    pub fn debug(mut self, debug: bool) -> RunOptions {
        self.debug = debug;
        self
    }

    /// Waits this long for kernels that are being built.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> RunOptions {
        self.wait = wait;
        self
    }
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
    /// Wall-clock time on the host. A kernel may still have been running at its end, unless `locate` was asked for.
    pub seconds: f64,
    /// The kernel's own time on the device, when it ran as one and `locate` was asked for. An empty problem has none.
    pub kernel_seconds: Option<f64>,
    /// What it caused to move.
    pub moved: Moved,
    /// Whether the host waited for the device on account of it: for its operands to arrive or, where the host needs
    /// them or the caller gets them, for its results; to measure it; or for memory. A kernel whose operands are on the
    /// device, and whose results stay there, is launched without waiting.
    pub synchronized: bool,
    /// What its kernel was given, in debug mode; also where the kernel would not be prepared and the fallback ran.
    pub launch: Option<Box<LaunchRecord>>,
}

/// Bytes between the host and the device. A value is moved when a segment needs it where it is not, and counts for
/// that segment; a result that the caller gets counts for the segment that made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// To the device.
    pub to_device: u64,
    /// To the host.
    pub to_host: u64,
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
    /// A stable code: [`NO_DEVICE`], [`NOT_BUILT`], [`BUILDING`], [`KERNEL_REFUSED`], [`DEVICE_MEMORY`], that of the constraint that
    /// the call does not meet, or that of the [`SegmentKernel::Unavailable`] that was given.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// Runs the segments in order, kernels on the machine if there is one. A value is moved only when it is needed on
/// the other side, and dropped after its last use unless it is to be kept. Everything on the device is done when
/// this returns, whatever it returns: as results are given on the host, it has always waited at the end, and before
/// that where [`SegmentRun::synchronized`] says so. A [`Preparation`] builds launches that do not wait.
///
/// # Errors
/// When the inputs or the partition are not this program's, an op cannot be computed on these inputs, or the device
/// fails. A kernel that does not run is no error: see [`SegmentRun::reason`].
pub fn run(
    program: &Program,
    partition: &Partition,
    bound: &Bound<'_>,
    options: &RunOptions,
    machine: Option<&Machine<'_>>,
) -> Result<Run, RunError> {
    let module = program.module();
    if bound.inputs.len() != module.inputs.len() {
        return Err(RunError::Inputs {
            program: module.name.clone(),
            expected: module.inputs.len(),
            found: bound.inputs.len(),
        });
    }
    let inputs = module.inputs.iter().copied().zip(bound.inputs.iter().copied());
    let values = Values::new(program, &bound.symbols, inputs, &module.outputs, options.keep_all);
    let mut runner = Runner::new(program, partition, &bound.symbols, *options, machine, values);
    let mut segments = Vec::with_capacity(partition.segments.len());
    for position in 0..partition.segments.len() {
        segments.push(runner.segment(position)?);
    }
    for &output in &module.outputs {
        runner.give_back(output)?;
    }
    if options.keep_all {
        for value in module.values.keys() {
            runner.bring_back(value)?;
        }
    }
    let (values, caused) = runner.finish()?;
    for (segment, caused) in segments.iter_mut().zip(caused) {
        (segment.moved, segment.synchronized) = (caused.moved, caused.synchronized);
    }
    Ok(Run { values, segments })
}

/// Runs one segment, for a host that runs the rest itself: its results from its inputs, both in the order in which
/// the segment lists them. The rules are those of [`run`]; nothing stays on the device.
///
/// # Errors
/// When there is no such segment, an input is not of its value's type under these symbol values, an op cannot be
/// computed, or the device fails.
pub fn run_segment(
    program: &Program,
    partition: &Partition,
    segment: usize,
    inputs: &[&Tensor],
    symbols: &SymbolValues,
    options: &RunOptions,
    machine: Option<&Machine<'_>>,
) -> Result<(Vec<Tensor>, SegmentRun), RunError> {
    let count = partition.segments.len();
    let planned = partition.segments.get(segment).ok_or(RunError::NoSuchSegment { segment, count })?;
    if inputs.len() != planned.inputs.len() {
        return Err(RunError::Inputs {
            program: program.module().name.clone(),
            expected: planned.inputs.len(),
            found: inputs.len(),
        });
    }
    let named = planned.inputs.iter().copied().zip(inputs.iter().copied());
    for (value, tensor) in named.clone() {
        values::check_type(program, symbols, segment, value, tensor)?;
    }
    let values = Values::new(program, symbols, named, &planned.outputs, false);
    let mut runner = Runner::new(program, partition, symbols, *options, machine, values);
    let mut ran = runner.segment(segment)?;
    for &output in &planned.outputs {
        runner.give_back(output)?;
    }
    let (mut values, caused) = runner.finish()?;
    (ran.moved, ran.synchronized) = (caused[segment].moved, caused[segment].synchronized);
    let outputs = planned
        .outputs
        .iter()
        .map(|output| {
            values[output.index()].take().ok_or_else(|| RunError::Partition {
                segment,
                value: program.module().name_of(*output).to_owned(),
            })
        })
        .collect::<Result<_, _>>()?;
    Ok((outputs, ran))
}
