//! Prepared calls, and graphs that replay them.

use std::ops::Range;

use super::sets::{Half, Sets};
use super::{Refusal, Stop};
use crate::device::{DeviceError, Event, Graph};
use crate::kernel::{Device, Kernel, Prepared};

/// The prepared calls of both halves. Each has its own workspace, and is recorded or launched at most once between
/// synchronizations. A graph contains each of its calls once.
#[derive(Debug)]
pub(super) struct Calls<'a> {
    sets: &'a Sets<'a>,
    lead: Vec<Prepared>,
    timed: Vec<Prepared>,
}

impl<'a> Calls<'a> {
    /// Prepares all calls. The kernel must be for the device, and the sets must meet its requirements for this
    /// problem.
    pub(super) fn prepare(kernel: &Kernel, device: &Device, sets: &'a Sets<'a>) -> Result<Calls<'a>, Stop> {
        let mut calls = Calls { sets, lead: Vec::new(), timed: Vec::new() };
        let _current = sets.device.enter()?;
        for half in [Half::Lead, Half::Timed] {
            for number in 0..sets.calls {
                let (workspace, size) = sets.workspace(half, number);
                let addresses = sets.addresses(half, number % sets.copies);
                let (extents, stream) = (&sets.call.extents, sets.stream.raw());
                // SAFETY: the context is current, and the stream belongs to it. `admit` has compared the length of
                // every operand and output with the kernel's own requirements. The sets hold that much of each, with
                // a workspace for each call, and outlive it.
                let prepared =
                    unsafe { kernel.prepare(device, extents, &addresses, workspace, size, stream) };
                match prepared {
                    Ok(prepared) => calls.half(half).push(prepared),
                    Err(status) => {
                        // The kernel has one status for almost every error; the driver knows more.
                        sets.stream.synchronize()?;
                        return Err(match status.cuda_error() {
                            None => Refusal { code: status.name(), message: status.to_string() }.into(),
                            Some(_) => Stop::launch(DeviceError::Launch { status }),
                        });
                    }
                }
            }
        }
        // A kernel may have cleared its workspace on this stream.
        sets.stream.synchronize()?;
        Ok(calls)
    }

    fn half(&mut self, half: Half) -> &mut Vec<Prepared> {
        match half {
            Half::Lead => &mut self.lead,
            Half::Timed => &mut self.timed,
        }
    }

    /// Launches some calls of a half and waits for them. Returns the total time in microseconds.
    pub(super) fn run(&mut self, half: Half, calls: Range<usize>) -> Result<f64, Stop> {
        let stream = self.sets.stream;
        let start = stream.record()?;
        self.put(half, calls).map_err(Stop::launch)?;
        let end = stream.record()?;
        Ok(microseconds(&start, &end)?)
    }

    /// Enqueues some calls of a half on the stream, which is private. The caller synchronizes before it reuses them, or
    /// records them. After an error nothing more is launched.
    fn put(&mut self, half: Half, calls: Range<usize>) -> Result<(), DeviceError> {
        let sets = self.sets;
        let _current = sets.device.enter()?;
        for prepared in &mut self.half(half)[calls] {
            // SAFETY: the context is current, and the stream belongs to it. No launch of this call is in flight. Its
            // memory lives in the sets; it and the sets live until `drop` has synchronized the stream.
            unsafe { prepared.launch(sets.stream.raw()) }
                .map_err(|status| sets.stream.fault().unwrap_or(DeviceError::Launch { status }))?;
        }
        Ok(())
    }

    /// Records all calls of each half as a graph. The lead graph first poisons the outputs of the timed half.
    pub(super) fn record(mut self, poison: u8) -> Result<Replays<'a>, Stop> {
        let sets = self.sets;
        let lead = sets.stream.capture(|| {
            sets.poison(Half::Timed, poison)?;
            self.put(Half::Lead, 0..sets.calls)
        });
        let lead = lead.map_err(Stop::launch)?;
        let timed = sets.stream.capture(|| self.put(Half::Timed, 0..sets.calls)).map_err(Stop::launch)?;
        Ok(Replays { calls: self, lead, timed })
    }
}

impl Drop for Calls<'_> {
    fn drop(&mut self) {
        // If this fails the device is lost, and nothing runs on it.
        let _ = self.sets.stream.synchronize();
    }
}

/// The recorded calls.
#[derive(Debug)]
pub(super) struct Replays<'a> {
    calls: Calls<'a>,
    lead: Graph,
    timed: Graph,
}

impl Replays<'_> {
    /// Replays both halves, and returns the microseconds per call of the timed half. The host launches the timed half
    /// while the lead half runs, so launch overhead is not measured.
    pub(super) fn replay(&mut self) -> Result<f64, Stop> {
        let sets = self.calls.sets;
        // SAFETY: the recorded work is as valid as when it was recorded: calls and sets live. Both graphs were
        // synchronized after their last launch, and each has its own calls.
        unsafe { self.lead.launch(sets.stream) }.map_err(Stop::launch)?;
        let start = sets.stream.record()?;
        // SAFETY: as above.
        unsafe { self.timed.launch(sets.stream) }.map_err(Stop::launch)?;
        let end = sets.stream.record()?;
        Ok(microseconds(&start, &end)? / sets.calls as f64)
    }
}

/// Waits for both events and returns the microseconds between them.
fn microseconds(start: &Event, end: &Event) -> Result<f64, DeviceError> {
    Ok(f64::from(start.elapsed_ms(end)?) * 1e3)
}
