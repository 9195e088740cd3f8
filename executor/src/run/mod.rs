//! Runs a partitioned program segment by segment: kernels on the device, the rest on the fallback.
//!
//! A kernel segment that cannot run as a kernel runs on the fallback, and its [`SegmentRun`] has the reason. Checks
//! happen in a fixed order: run-time constraints, device, kernel availability, the kernel's device and
//! [`signature`](fourfold_scheduler::Plan::signature), the kernel's own refusal, device memory. Nothing is launched
//! before all checks pass; failures after that are errors. A view shares the memory of its operand, and a plain `mma`
//! calls the vendor's library.
//!
//! A [`Preparation`] performs these checks once, for a program without fallback segments or for one segment, and
//! builds launches that can be repeated. A [`Session`] runs a program repeatedly, with resident params.

mod branches;
mod call;
mod codes;
mod error;
mod homes;
mod launch;
mod layout;
mod live;
mod machine;
mod memory;
mod pending;
mod preparation;
mod prepared;
mod record;
mod refused;
mod residents;
mod roles;
mod runner;
mod session;
#[cfg(test)]
mod tests;
mod values;

use fourfold_ir::{Bound, Entity, Program, SymbolValues, Tensor, Value};
use fourfold_scheduler::Partition;

use self::live::Live;
use crate::service::Wait;

pub(crate) use call::check_target;
pub use codes::{
    ALIAS, BUILDING, DEVICE_ERROR, DEVICE_MEMORY, FALLBACK_SEGMENT, HOST_OPERAND, KERNEL_REFUSED,
    MISSING_ADDRESS, NO_DEVICE, NO_SUCH_SEGMENT, NOT_BUILT, NOT_CHOSEN, POINTER_ALIGNMENT, WORKSPACE_SIZE,
};
pub use error::{FaultPlace, RunError};
pub(crate) use layout::Outside;
pub use machine::{Kernels, Machine, SegmentKernel};
pub use memory::{MemoryContent, MemoryPart, MemoryPlan, PART_ALIGNMENT, plan_memory};
pub use pending::PendingKernel;
pub use preparation::Preparation;
pub use prepared::PreparedProgram;
pub use record::{LaunchArgument, LaunchRecord, LaunchWorkspace};
pub use refused::Refused;
pub(crate) use roles::pointer;
use runner::Runner;
pub use session::{DeviceTensor, Session, SessionError, SessionInput, SessionRun};
use values::Values;

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// Keep every value, not only program outputs. Values that a kernel fuses away never exist, and neither do those
    /// that a `choose` does not take.
    pub keep_all: bool,
    /// Fill a kernel's results with this byte before the launch, padding of scales included, which reveals unwritten
    /// elements. Bytes of 0xFF are NaN.
    pub poison: Option<u8>,
    /// Synchronize after each kernel and time it. An error is then attributed to the right segment.
    pub locate: bool,
    /// Debug mode: enables `poison` (0xFF by default) and `locate`, poisons workspaces too, and records the arguments
    /// of each launch ([`SegmentRun::launch`], and in [`RunError::Device`] those of the failed kernel). Off, it costs
    /// nothing.
    pub debug: bool,
    /// Time that the whole call may wait for kernels being built. Segments whose kernels are not ready by then run on
    /// the fallback.
    pub wait: Wait,
}

impl RunOptions {
    /// Sets [`RunOptions::keep_all`].
    #[must_use]
    pub fn keep_all(mut self, keep_all: bool) -> RunOptions {
        self.keep_all = keep_all;
        self
    }

    /// Sets [`RunOptions::poison`].
    #[must_use]
    pub fn poison(mut self, poison: impl Into<Option<u8>>) -> RunOptions {
        self.poison = poison.into();
        self
    }

    /// Sets [`RunOptions::locate`].
    #[must_use]
    pub fn locate(mut self, locate: bool) -> RunOptions {
        self.locate = locate;
        self
    }

    /// Sets [`RunOptions::debug`].
    #[must_use]
    pub fn debug(mut self, debug: bool) -> RunOptions {
        self.debug = debug;
        self
    }

    /// Sets [`RunOptions::wait`].
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> RunOptions {
        self.wait = wait;
        self
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Tensors by value index: program outputs, or with `keep_all` every value except inputs. An input is present
    /// only if the program returns it.
    pub values: Vec<Option<Tensor>>,
    /// One record for each segment of the partition.
    pub segments: Vec<SegmentRun>,
}

impl Run {
    /// The tensor of a value, if kept.
    pub fn value(&self, value: Value) -> Option<&Tensor> {
        self.values.get(value.index())?.as_ref()
    }
}

/// A record of one segment's execution.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentRun {
    /// The tier that ran it.
    pub ran: Ran,
    /// The reason that a segment planned as a kernel ran elsewhere.
    pub reason: Option<RunReason>,
    /// Wall-clock time on the host, in seconds. Unless `locate` is set, a kernel may still be running at its end.
    pub seconds: f64,
    /// The kernel's time on the device, in seconds, if it ran with `locate`. `None` for an empty problem.
    pub kernel_seconds: Option<f64>,
    /// The transfers that it caused.
    pub moved: Moved,
    /// True if it made the host wait for the device: for operands to arrive, for results needed on the host, for
    /// timing, or for memory. A kernel whose operands and results stay on the device is launched without waiting.
    pub synchronized: bool,
    /// The launch's arguments, in debug mode. Present even if the kernel could not be prepared and the fallback ran.
    pub launch: Option<Box<LaunchRecord>>,
}

/// Bytes moved between host and device. A transfer is attributed to the segment that needs the value on the other
/// side. A result returned to the caller is attributed to the segment that computed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes moved to the device.
    pub to_device: u64,
    /// Bytes moved to the host.
    pub to_host: u64,
}

/// The tier that ran a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ran {
    /// A kernel, a library call or a view, on a device of the target.
    Kernel,
    /// A kernel with emulated instructions, on a device of another target.
    Emulated,
    /// The CPU, op by op.
    Fallback,
    /// None: a [`Session`] has its results, which depend on params and constants only.
    Resident,
    /// None: it did not run. Its results are not chosen ([`NOT_CHOSEN`]), or the run ended before.
    NotRun,
}

impl Ran {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Ran::Kernel => "kernel",
            Ran::Emulated => "emulated",
            Ran::Fallback => "fallback",
            Ran::Resident => "resident",
            Ran::NotRun => "not_run",
        }
    }
}

/// The reason that a kernel did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReason {
    /// A stable code: [`NO_DEVICE`], [`NOT_BUILT`], [`BUILDING`], [`KERNEL_REFUSED`], [`DEVICE_MEMORY`],
    /// [`HOST_OPERAND`], the code of an unmet constraint, or the code given in [`SegmentKernel::Unavailable`].
    pub code: &'static str,
    /// A message for the user.
    pub message: String,
}

/// Runs the segments in order, kernels on `machine` if given. A value moves only when needed on the other side, and
/// is dropped after its last use unless kept. The device is idle when this returns, even with an error. Since results
/// are delivered on the host, the call waits at its end, and earlier where [`SegmentRun::synchronized`] says so. A
/// [`Preparation`] builds launches that do not wait.
///
/// # Errors
/// When the inputs or the partition do not match the program, an op cannot be computed on these inputs, or the device
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
    let live = Live::of(program, partition, &bound.symbols);
    let mut runner =
        Runner::new(program, partition, &bound.symbols, *options, machine, values).with_live(live);
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

/// Runs one segment, for a host that runs the others itself. Inputs and results are in the segment's own order. The
/// rules of [`run`] apply; nothing stays on the device.
///
/// # Errors
/// When the segment does not exist, an input does not have its value's type under these symbol values, an op cannot
/// be computed, or the device fails.
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
