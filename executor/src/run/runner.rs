//! The runner: executes each segment as its kernel, or on the fallback with a reason.

use std::time::Instant;

use fourfold_ir::{Op, Program, SymbolValues, Tensor, Value};
use fourfold_scheduler::{ConstantPlan, Partition, Plan, ViewPlan};

use super::call::{Call, Work, admit, results_of_nothing};
use super::live::{Live, chosen, not_chosen, view_of};
use super::record::LaunchRecord;
use super::residents::Residents;
use super::values::Values;
use super::{
    DEVICE_MEMORY, HOST_OPERAND, Machine, Moved, NO_DEVICE, Ran, RunError, RunOptions, RunReason, SegmentRun,
};
use crate::device::{Buffer, DeviceError};
use crate::fallback;

mod submit;

use submit::{Flight, Memory, size};

/// A run in progress.
pub(super) struct Runner<'a> {
    /// Declared first: its drop waits for the device, so that nothing is in flight when a run returns.
    flight: Flight<'a>,
    program: &'a Program,
    partition: &'a Partition,
    symbols: &'a SymbolValues,
    options: RunOptions,
    machine: Option<&'a Machine<'a>>,
    /// The deadline for kernels being built; `None` waits forever.
    deadline: Option<Instant>,
    values: Values<'a>,
    /// Transfers and waits by segment.
    caused: Vec<Caused>,
    /// In debug mode, the arguments of the current segment's launch.
    record: Option<Box<LaunchRecord>>,
    residents: Option<&'a Residents>,
    live: Live,
}

/// Transfers and waits attributed to a segment so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Caused {
    pub(super) moved: Moved,
    /// The host waited for the device.
    pub(super) synchronized: bool,
}

/// The result of trying to run a segment as planned.
enum Attempt {
    /// It ran; `settled` if the uses of its operands are recorded already.
    Ran {
        emulated: bool,
        kernel_seconds: Option<f64>,
        settled: bool,
    },
    Not(RunReason),
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        program: &'a Program,
        partition: &'a Partition,
        symbols: &'a SymbolValues,
        mut options: RunOptions,
        machine: Option<&'a Machine<'a>>,
        values: Values<'a>,
    ) -> Runner<'a> {
        if options.debug {
            options.locate = true;
            options.poison.get_or_insert(0xFF);
        }
        let caused = vec![Caused::default(); partition.segments.len()];
        let (flight, deadline) = (Flight::default(), options.wait.deadline());
        let record = None;
        let residents = None;
        let live = Live::all(program, partition);
        Runner {
            flight,
            program,
            partition,
            symbols,
            options,
            machine,
            deadline,
            values,
            caused,
            record,
            residents,
            live,
        }
    }

    /// Skips what computes values that these extents do not choose.
    pub(super) fn with_live(mut self, live: Live) -> Runner<'a> {
        self.live = live;
        self
    }

    /// Skips what depends on params and constants only.
    pub(super) fn with_residents(mut self, residents: &'a Residents) -> Runner<'a> {
        self.values.reside(residents);
        self.residents = Some(residents);
        self
    }

    /// Uses these buffers before allocating others.
    pub(super) fn with_buffers(mut self, buffers: Vec<Buffer>) -> Runner<'a> {
        self.values.reuse(buffers);
        self
    }

    /// Copies a value from the caller's device memory.
    ///
    /// # Safety
    /// The address points to `bytes` bytes of the machine's device, which stay valid until the run is finished.
    pub(super) unsafe fn take_from_device(
        &mut self,
        value: Value,
        address: u64,
        bytes: usize,
        machine: &'a Machine<'a>,
    ) -> Result<(), DeviceError> {
        let buffer = self.values.take(bytes, machine)?;
        if bytes > 0 {
            // SAFETY: the buffer is as large, and lives until the stream is synchronized: `flight` waits first.
            unsafe { machine.stream().copy_at(address, buffer.address(), bytes) }?;
            self.flight.stream = Some(machine.stream());
        }
        self.values.set_on_device(value, buffer, 0);
        Ok(())
    }

    /// Runs a segment. Its transfers and waits are filled in at the end.
    pub(super) fn segment(&mut self, position: usize) -> Result<SegmentRun, RunError> {
        let start = Instant::now();
        let segment = &self.partition.segments[position];
        if self.residents.is_some_and(|residents| residents.skips_segment(position)) {
            let Caused { moved, synchronized } = Caused::default();
            let (ran, reason, kernel_seconds, launch) = (Ran::Resident, None, None, None);
            return Ok(SegmentRun { ran, reason, seconds: 0.0, kernel_seconds, moved, synchronized, launch });
        }
        if !self.live.has_segment(position) {
            segment.ops.iter().for_each(|op| self.drop_unused(*op));
            let Caused { moved, synchronized } = Caused::default();
            let (ran, reason, kernel_seconds, launch) = (Ran::NotRun, Some(not_chosen()), None, None);
            return Ok(SegmentRun { ran, reason, seconds: 0.0, kernel_seconds, moved, synchronized, launch });
        }
        let view = segment.plan().and_then(|plan| view_of(plan, self.symbols));
        let attempt = match segment.plan() {
            Some(_) if let Some(view) = &view => Some(self.view(position, view)),
            Some(Plan::Constant(plan)) => Some(self.constant(position, plan)?),
            Some(plan) => Some(self.kernel(position, plan)?),
            None => None,
        };
        let (ran, reason, kernel_seconds) = match attempt {
            Some(Attempt::Ran { emulated, kernel_seconds, settled }) => {
                for &op in segment.ops.iter().filter(|_| !settled) {
                    self.drop_unused(op);
                }
                (if emulated { Ran::Emulated } else { Ran::Kernel }, None, kernel_seconds)
            }
            Some(Attempt::Not(reason)) => {
                self.fallback(position, &segment.ops)?;
                (Ran::Fallback, Some(reason), None)
            }
            None => {
                self.fallback(position, &segment.ops)?;
                (Ran::Fallback, None, None)
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        self.caused[position].synchronized |= self.values.take_waited();
        let Caused { moved, synchronized } = Caused::default();
        let launch = self.record.take();
        Ok(SegmentRun { ran, reason, seconds, kernel_seconds, moved, synchronized, launch })
    }

    /// Ensures that a program output is on the host.
    pub(super) fn give_back(&mut self, output: Value) -> Result<(), RunError> {
        self.bring_back(output)?;
        let end = self.partition.segments.len();
        if self.values.keep_output(end, output)? { Ok(()) } else { Err(self.missing(end, output)) }
    }

    /// Ensures that a value is on the host, if a kernel computed it.
    pub(super) fn bring_back(&mut self, value: Value) -> Result<(), RunError> {
        match self.values.made_by(value) {
            Some(segment) => self.bring_for(segment, value),
            None => Ok(()),
        }
    }

    /// Waits for the device. Returns the host values, and each segment's transfers and waits.
    pub(super) fn finish(self) -> Result<(Vec<Option<Tensor>>, Vec<Caused>), RunError> {
        let (values, caused, _) = self.finish_with_buffers()?;
        Ok((values, caused))
    }

    /// As [`Runner::finish`], and returns the buffers for another run.
    #[allow(clippy::type_complexity, reason = "three lists of one run")]
    pub(super) fn finish_with_buffers(
        mut self,
    ) -> Result<(Vec<Option<Tensor>>, Vec<Caused>, Vec<Buffer>), RunError> {
        let last = self.flight.last;
        if self.flight.stream.is_some() {
            self.caused[last].synchronized = true;
        }
        self.flight.land().map_err(|source| self.device_error(last, source))?;
        let (values, buffers) = self.values.into_parts();
        Ok((values, self.caused, buffers))
    }

    fn fallback(&mut self, position: usize, ops: &[Op]) -> Result<(), RunError> {
        let module = self.program.module();
        let segment = &self.partition.segments[position];
        for &op in ops {
            if !self.live.has_op(op) {
                self.drop_unused(op);
                continue;
            }
            let operation = &module.ops[op];
            let is_known = || operation.results.iter().all(|result| self.values.on_host(*result).is_some());
            if self.residents.is_some_and(|residents| residents.skips_op(segment, op, is_known())) {
                continue;
            }
            // Other operands than the chosen one may not exist. It stands in for them.
            let chosen = chosen(self.program, op, self.symbols);
            let read = |value: Value| chosen.unwrap_or(value);
            for &operand in &operation.operands {
                self.bring_for(position, read(operand))?;
            }
            let operands: Vec<&Tensor> = operation
                .operands
                .iter()
                .map(|&value| read(value))
                .map(|value| self.values.on_host(value).ok_or_else(|| self.missing(position, value)))
                .collect::<Result<_, _>>()?;
            let results = fallback::run_op(self.program, op, &operands, self.symbols)
                .map_err(|source| RunError::Op { op: module.op_label(op), segment: position, source })?;
            for (&value, tensor) in operation.results.iter().zip(results) {
                self.values.set_on_host(value, tensor);
            }
            self.values.drop_unused(&operation.operands, &operation.results);
        }
        Ok(())
    }

    /// Records the uses of an op's operands.
    fn drop_unused(&mut self, op: Op) {
        let operation = &self.program.module().ops[op];
        self.values.drop_unused(&operation.operands, &operation.results);
    }

    fn kernel(&mut self, position: usize, plan: &Plan) -> Result<Attempt, RunError> {
        let (program, partition, symbols) = (self.program, self.partition, self.symbols);
        let admitted = admit(program, partition, position, plan, symbols, self.machine, self.deadline);
        let call = match admitted {
            Ok(call) => call,
            Err(reason) => return Ok(Attempt::Not(reason)),
        };
        // Without a machine, nothing is admitted.
        let Some(machine) = self.machine else { return Err(self.missing(position, plan.written()[0])) };
        let emulated = call.is_emulated();
        for value in call.roles.reads() {
            self.values.check_operand(position, value)?;
        }
        match &call.work {
            Work::Kernel { .. } | Work::Product(_) => {}
            Work::Nothing { .. } => {
                let op = || self.program.module().op_label(plan.root());
                let results = results_of_nothing(self.program, plan, self.symbols)
                    .map_err(|source| RunError::Op { op: op(), segment: position, source })?;
                results.into_iter().for_each(|(value, tensor)| self.values.set_on_host(value, tensor));
                return Ok(Attempt::Ran { emulated, kernel_seconds: None, settled: false });
            }
            Work::Fallback { .. } => {
                self.fallback(position, &partition.segments[position].ops)?;
                return Ok(Attempt::Ran { emulated, kernel_seconds: None, settled: true });
            }
        }
        let memory = match self.place(position, &call, machine)? {
            Ok(memory) => memory,
            Err(reason) => return Ok(Attempt::Not(reason)),
        };
        if self.options.debug {
            self.record = Some(Box::new(self.record_of(position, plan, &call, &memory, machine)));
        }
        let launched = self.launch(position, &call, &memory, machine)?;
        // Later work on the stream runs after this kernel, so the workspace can be reused.
        self.values.retire(memory.workspace);
        match launched {
            Ok(kernel_seconds) => {
                for (value, buffer) in call.roles.written.iter().zip(memory.written) {
                    self.values.set_on_device(*value, buffer, position);
                }
                Ok(Attempt::Ran { emulated, kernel_seconds, settled: false })
            }
            Err(reason) => {
                memory.written.into_iter().for_each(|buffer| self.values.retire(buffer));
                Ok(Attempt::Not(reason))
            }
        }
    }

    /// Uploads a constant.
    fn constant(&mut self, position: usize, plan: &ConstantPlan) -> Result<Attempt, RunError> {
        let Some(machine) = self.machine else {
            let message = format!(
                "no GPU of target {} was found: the constant `%{}` is on the CPU",
                self.partition.target,
                self.program.module().name_of(plan.result)
            );
            return Ok(Attempt::Not(RunReason { code: NO_DEVICE, message }));
        };
        self.fallback(position, &[plan.op])?;
        let mut upload = || {
            let room = self.values.room_for(std::iter::once(plan.result), machine)?;
            self.values.upload(room, machine)
        };
        match upload() {
            Ok(bytes) => {
                self.caused[position].moved.to_device += bytes;
                Ok(Attempt::Ran { emulated: false, kernel_seconds: None, settled: true })
            }
            // Kernels that read it upload it, or report the same.
            Err(error @ DeviceError::OutOfMemory { .. }) => {
                let message = format!("{error}: the constant stays on the CPU");
                Ok(Attempt::Not(RunReason { code: DEVICE_MEMORY, message }))
            }
            Err(error) => Err(self.device_error(position, error)),
        }
    }

    /// Shares the operand's device memory with a view of it. A value on the host has none; its view stays there.
    fn view(&mut self, position: usize, plan: &ViewPlan) -> Attempt {
        if self.values.share_on_device(plan.operand, plan.result, position) {
            return Attempt::Ran { emulated: false, kernel_seconds: None, settled: false };
        }
        let name = |value: Value| self.program.module().name_of(value);
        let (result, operand) = (name(plan.result), name(plan.operand));
        Attempt::Not(match self.machine {
            Some(_) => RunReason {
                code: HOST_OPERAND,
                message: format!(
                    "`%{result}` is a view of `%{operand}`, which is on the host: it stays there"
                ),
            },
            None => RunReason {
                code: NO_DEVICE,
                message: format!(
                    "no GPU of target {} was found: the view `%{result}` is on the CPU",
                    self.partition.target
                ),
            },
        })
    }

    /// Allocates memory for a call and uploads its operands. If memory runs out, returns a reason and moves nothing.
    fn place(
        &mut self,
        position: usize,
        call: &Call<'_>,
        machine: &Machine<'_>,
    ) -> Result<Result<Memory, RunReason>, RunError> {
        let nowhere =
            |value: &Value| self.values.on_device(*value).is_none() && self.values.on_host(*value).is_none();
        if let Some(value) = call.roles.reads().find(nowhere) {
            return Err(self.missing(position, value));
        }
        let mut place = || {
            let written = call.written_bytes.iter().map(|bytes| self.values.take(size(*bytes), machine));
            let written = written.collect::<Result<Vec<_>, _>>()?;
            let workspace = self.values.take(size(call.workspace), machine)?;
            let operands = self.values.room_for(call.roles.reads(), machine)?;
            self.caused[position].moved.to_device += self.values.upload(operands, machine)?;
            Ok(Memory { written, workspace })
        };
        match place() {
            Ok(memory) => Ok(Ok(memory)),
            Err(error @ DeviceError::OutOfMemory { .. }) => {
                // The partial allocations are freed, which waits for the device.
                self.caused[position].synchronized = true;
                let message = format!("{error}: the kernel ran on the CPU");
                Ok(Err(RunReason { code: DEVICE_MEMORY, message }))
            }
            Err(error) => Err(self.device_error(position, error)),
        }
    }

    /// Moves a value to the host for a segment or the caller.
    fn bring_for(&mut self, segment: usize, value: Value) -> Result<(), RunError> {
        if let Some(machine) = self.machine {
            let bytes = self.values.download(value, machine).map_err(|error| self.located(error))?;
            let waited = self.values.take_waited();
            if let Some(caused) = self.caused.get_mut(segment) {
                caused.moved.to_host += bytes;
                caused.synchronized |= waited;
            }
        }
        Ok(())
    }

    fn missing(&self, segment: usize, value: Value) -> RunError {
        RunError::Partition { segment, value: self.program.module().name_of(value).to_owned() }
    }

    fn device_error(&self, segment: usize, source: DeviceError) -> RunError {
        let kernel = self.machine.map_or_else(String::new, |machine| machine.kernel_name(segment));
        self.located(RunError::Device { segment, kernel, source, place: Box::default() })
    }

    /// Adds the segment's ops to a device error, and the launch's arguments if recorded.
    fn located(&self, mut error: RunError) -> RunError {
        if let RunError::Device { segment, place, .. } = &mut error {
            let module = self.program.module();
            let planned = self.partition.segments.get(*segment);
            place.ops =
                planned.into_iter().flat_map(|planned| &planned.ops).map(|op| module.op_label(*op)).collect();
            place.launch = self.record.as_deref().filter(|record| record.segment == *segment).cloned();
        }
        error
    }
}
