//! The launch of one call, and the calls in flight.

use fourfold_ir::Value;
use fourfold_scheduler::Plan;

use super::Runner;
use crate::device::{Buffer, DeviceError, Stream};
use crate::kernel::Status;
use crate::run::call::{Call, unprepared};
use crate::run::launch::{Launch, Unready};
use crate::run::record::{LaunchPlace, LaunchRecord};
use crate::run::{Machine, RunError, RunReason};

impl<'a> Runner<'a> {
    /// Enqueues a call on the stream, or returns the reason that it cannot be prepared.
    pub(super) fn launch(
        &mut self,
        position: usize,
        call: &Call<'_>,
        memory: &Memory,
        machine: &'a Machine<'a>,
    ) -> Result<Result<Option<f64>, RunReason>, RunError> {
        let stream = machine.stream();
        let written = |value: Value| call.roles.written.iter().position(|written| *written == value);
        let address = |value: Value| match written(value) {
            Some(index) => memory.written.get(index).map(Buffer::address),
            None => self.values.on_device(value).map(Buffer::address),
        };
        let failed = |source| self.device_error(position, source);
        let _current = machine.device().enter().map_err(failed)?;
        if let Some(byte) = self.options.poison {
            for (buffer, bytes) in memory.written.iter().zip(&call.written_bytes) {
                stream.fill(buffer, 0, size(*bytes), byte).map_err(failed)?;
            }
            if self.options.debug && call.workspace > 0 {
                stream.fill(&memory.workspace, 0, size(call.workspace), byte).map_err(failed)?;
            }
        }
        // SAFETY: the context is current, and the stream belongs to it. `admit` has checked that the operands have the
        // sizes that the kernel takes; `check_operand` and `upload`, that the buffers have those sizes. Buffers and
        // workspace live at least until they are retired. After that, only later work on the same stream reuses them,
        // or they are freed, which waits for the device. Earlier work on the stream no longer needs the memory that
        // this call gets.
        let launch = unsafe { Launch::of(call, address, memory.workspace.address(), stream) };
        let mut launch = match launch {
            Ok(launch) => launch,
            Err(Unready::Missing) => return Err(self.missing(position, call.roles.written[0])),
            Err(Unready::Refused(status)) => {
                let reason = unprepared(status, stream.synchronize()).map_err(failed)?;
                self.caused[position].synchronized = true;
                return Ok(Err(reason));
            }
        };
        let start = self.options.locate.then(|| stream.record()).transpose().map_err(failed)?;
        // SAFETY: as for preparing. It is launched once. `Flight` keeps it until the stream has been synchronized,
        // and the machine, which is borrowed for longer, keeps its kernel loaded.
        unsafe { launch.launch(stream) }.map_err(failed)?;
        let finds_faults = launch.finds_faults();
        if finds_faults {
            stream.synchronize().map_err(failed)?;
            // SAFETY: the context is current, and the call's only launch has ended. Its workspace is not yet retired.
            if let Some(status) = unsafe { launch.fault() } {
                return Err(self.fault(position, status));
            }
        }
        let measured = start.map(|start| {
            let end = stream.record()?;
            stream.synchronize()?;
            Ok(f64::from(start.elapsed_ms(&end)?) / 1e3)
        });
        let measured = measured.transpose().map_err(failed);
        self.caused[position].synchronized |= self.options.locate || finds_faults;
        self.flight.take_off(stream, launch, position);
        Ok(Ok(measured?))
    }

    /// The error of a launch that ended with a fault.
    fn fault(&mut self, position: usize, status: Status) -> RunError {
        if status.code != Status::INDEX {
            return self.device_error(position, DeviceError::Emulation { status });
        }
        // The fallback finds the same index, and names the op and the axis.
        let partition = self.partition;
        match self.fallback(position, &partition.segments[position].ops) {
            Err(error) => error,
            Ok(()) => self.device_error(position, DeviceError::Launch { status }),
        }
    }

    pub(super) fn record_of(
        &self,
        segment: usize,
        plan: &Plan,
        call: &Call<'_>,
        memory: &Memory,
        machine: &Machine<'_>,
    ) -> LaunchRecord {
        let (gpu, poison) = (machine.device().gpu(), self.options.poison);
        let place = LaunchPlace { segment, gpu, workspace: &memory.workspace, poison };
        LaunchRecord::of(self.program, plan, self.symbols, call, &place, |value| {
            match call.roles.written.iter().position(|written| *written == value) {
                Some(index) => memory.written.get(index),
                None => self.values.on_device(value),
            }
        })
    }
}

/// The memory of a call besides its operands.
pub(super) struct Memory {
    /// One buffer for each value written.
    pub(super) written: Vec<Buffer>,
    pub(super) workspace: Buffer,
}

/// Calls that may be in flight. They are kept until the stream is synchronized, since their kernels must stay loaded.
#[derive(Default)]
pub(super) struct Flight<'a> {
    pub(super) stream: Option<&'a Stream>,
    calls: Vec<Launch>,
    /// The segment of the last launch.
    pub(super) last: usize,
}

impl<'a> Flight<'a> {
    fn take_off(&mut self, stream: &'a Stream, call: Launch, segment: usize) {
        self.stream = Some(stream);
        self.calls.push(call);
        self.last = segment;
    }

    /// Waits for all calls.
    pub(super) fn land(&mut self) -> Result<(), DeviceError> {
        let waited = self.stream.take().map_or(Ok(()), Stream::synchronize);
        self.calls.clear();
        waited
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let _ = self.land();
    }
}

/// Converts a device size to a host size. Sizes come from tensors or kernels.
pub(super) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
