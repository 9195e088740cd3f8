//! Calls that are prepared, and graphs of them that are replayed.

use std::ops::Range;

use super::sets::{Half, Sets};
use super::{Refusal, Stop};
use crate::device::{DeviceError, Event, Graph};
use crate::kernel::{Device, Kernel, Prepared};

/// The prepared calls of both halves. Each is recorded or launched at most once before the stream is waited for, as it may
/// have one launch in flight: a graph has as many of them as it has calls.
#[derive(Debug)]
pub(super) struct Calls<'a> {
    sets: &'a Sets<'a>,
    lead: Vec<Prepared>,
    timed: Vec<Prepared>,
}

impl<'a> Calls<'a> {
    /// The kernel must be one for the device, and the sets have what it asks for this problem.
    pub(super) fn prepare(kernel: &Kernel, device: &Device, sets: &'a Sets<'a>) -> Result<Calls<'a>, Stop> {
        let mut calls = Calls { sets, lead: Vec::new(), timed: Vec::new() };
        let _current = sets.device.enter()?;
        for half in [Half::Lead, Half::Timed] {
            for number in 0..sets.calls {
                let (workspace, size) = sets.workspace(half, number);
                let addresses = sets.addresses(half, number % sets.copies);
                let (extents, stream) = (&sets.call.extents, sets.stream.raw());
                // SAFETY: the context is current and the stream one of its. `admit` has compared the length of every
                // operand with what the kernel says that it reads, and of every output with what it says that it
                // writes; the sets have that much of each, with a workspace for each call, and outlive it.
                let prepared =
                    unsafe { kernel.prepare(device, extents, &addresses, workspace, size, stream) };
                match prepared {
                    Ok(prepared) => calls.half(half).push(prepared),
                    Err(status) => {
                        // The kernel has one answer for almost everything; the driver knows more.
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

    /// Launches some calls of a half, waits for them, and gives the microseconds that all of them took.
    pub(super) fn run(&mut self, half: Half, calls: Range<usize>) -> Result<f64, Stop> {
        let stream = self.sets.stream;
        let start = stream.record()?;
        self.put(half, calls).map_err(Stop::launch)?;
        let end = stream.record()?;
        Ok(microseconds(&start, &end)?)
    }

    /// Puts some calls of a half on the stream, which nobody else knows. Whoever uses this waits for the stream before
    /// it is used again, or records it; when it fails nothing more is launched.
    fn put(&mut self, half: Half, calls: Range<usize>) -> Result<(), DeviceError> {
        let sets = self.sets;
        let _current = sets.device.enter()?;
        for prepared in &mut self.half(half)[calls] {
            // SAFETY: the context is current and the stream one of its. No launch of this call is in flight. What it
            // was prepared with lives in the sets, and it itself, until `drop` has waited for the stream.
            unsafe { prepared.launch(sets.stream.raw()) }
                .map_err(|status| sets.stream.fault().unwrap_or(DeviceError::Launch { status }))?;
        }
        Ok(())
    }

    /// Records all calls of each half as a graph. That of the lead first sets all bytes of the other's outputs.
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
        // When it fails the device is lost, and nothing runs on it.
        let _ = self.sets.stream.synchronize();
    }
}

/// Recorded calls.
#[derive(Debug)]
pub(super) struct Replays<'a> {
    calls: Calls<'a>,
    lead: Graph,
    timed: Graph,
}

impl Replays<'_> {
    /// Replays both halves and gives the microseconds of one call of the second. The host is done with launching it
    /// before the first ends: what it needs for that is not measured.
    pub(super) fn replay(&mut self) -> Result<f64, Stop> {
        let sets = self.calls.sets;
        // SAFETY: what was recorded may be launched, as it was when it was recorded: the calls and the sets live, and
        // both graphs were waited for when they were last launched, each with calls of its own.
        unsafe { self.lead.launch(sets.stream) }.map_err(Stop::launch)?;
        let start = sets.stream.record()?;
        // SAFETY: as above.
        unsafe { self.timed.launch(sets.stream) }.map_err(Stop::launch)?;
        let end = sets.stream.record()?;
        Ok(microseconds(&start, &end)? / sets.calls as f64)
    }
}

/// Waits for both.
fn microseconds(start: &Event, end: &Event) -> Result<f64, DeviceError> {
    Ok(f64::from(start.elapsed_ms(end)?) * 1e3)
}
