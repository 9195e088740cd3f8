//! Benchmarks one kernel on one problem, and verifies everything that it writes.
//!
//! [`measure`] takes a loaded kernel, a call's operands and every expected output byte. It copies them to its own
//! memory, with so many copies that together they exceed three times the L2 cache. A kernel never gets less memory
//! than it declares to read ([`kernel::Metadata::operands`](crate::kernel::Metadata::operands)) and write
//! ([`Kernel::query`]).
//!
//! 1. Outputs are poisoned, each copy is called, and every byte of every copy is compared, with a guard area after
//!    each output. Only correct kernels are timed.
//! 2. At least [`LEAST_CALLS`] calls, which rotate through the copies, are recorded as one graph. The graph is
//!    replayed at least [`LEAST_REPLAYS`] times.
//! 3. Before each replay, its outputs are poisoned with a different byte than at first. So a byte that happens to
//!    equal one poison cannot hide that it was not written.
//! 4. Then as many other calls run, with their own outputs. They bring the caches into a steady state and keep the
//!    device busy while the host launches the replay.
//! 5. After the last replay, all of its outputs are compared again.
//!
//! Launches of a prepared call share its workspace ([`Prepared`](crate::kernel::Prepared)). So each call in a graph is
//! separate, with its own workspace, and a graph is launched again only after synchronization.
//!
//! Limits that the caller must handle:
//!
//! - A kernel that does not end makes the call wait forever. Run unknown kernels in a process that can be killed.
//! - A kernel that makes the device fail destroys its context ([`DeviceError::is_sticky`]). Restart the process.
//! - The driver does not report current clock rates. Clocks are warmed up, but may still vary. To compare two
//!   kernels, alternate between them, and check that the first one's time repeats.
//! - Below about 3 µs, the time per call is mostly the gap between two launches of a graph.

mod calls;
mod captured;
mod programs;
mod reads;
mod sets;
mod timing;

use std::fmt;
use std::time::{Duration, Instant};

pub use captured::Captured;
pub use programs::{CaptureError, Flaw, LastOutputs, Rotation, Rounds};
pub use timing::{Summary, Timing, summary};

use crate::device::{Device, DeviceError, Gpu};
use crate::kernel::{self, Extents, Kernel, MAX_OUTPUTS, Requirements, Status};
use crate::run::check_target;
use calls::Calls;
use sets::{Comparison, Half, Sets};

/// The minimum number of calls recorded as one graph.
pub const LEAST_CALLS: usize = 20;

/// The maximum number of calls that can be requested.
pub const MOST_CALLS: usize = 4096;

/// The minimum number of replays.
pub const LEAST_REPLAYS: usize = 5;

/// The minimum number of copies of all operands and outputs.
pub const LEAST_COPIES: usize = 4;

/// The maximum number of copies. For a small problem they may be less than three times L2.
pub const MOST_COPIES: usize = 1024;

/// The code of a [`Refusal`] of data that does not match the kernel's inputs and outputs.
pub const CALL_MISMATCH: &str = "call_mismatch";

/// The code of a [`Refusal`] of a problem without elements.
pub const EMPTY_PROBLEM: &str = "empty_problem";

/// One call: extents, inputs, and expected outputs.
#[derive(Clone, Copy, Debug)]
pub struct CallData<'a> {
    /// The extents, in the kernel's order.
    pub extents: Extents,
    /// The input bytes of each role, once each, in any order.
    pub inputs: &'a [(String, Vec<u8>)],
    /// The expected outputs in the interface's order, complete with padding.
    pub expected: &'a [Vec<u8>],
}

impl CallData<'_> {
    /// The bytes read and written.
    fn bytes(&self) -> u64 {
        let read = self.inputs.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        read + self.expected.iter().map(|bytes| bytes.len() as u64).sum::<u64>()
    }
}

/// Measurement settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasureOptions {
    /// Calls per replay, from [`LEAST_CALLS`] to [`MOST_CALLS`]; rounded up to a multiple of the number of copies.
    pub calls: usize,
    /// Replays, as far as the time limit allows; at least [`LEAST_REPLAYS`].
    pub replays: usize,
    /// The time that the kernel runs before it is measured, until clocks are steady.
    pub warm_up: Duration,
    /// Stop after verification if the kernel's estimated time per call exceeds this many microseconds. The estimate
    /// is made before warming up, when the device is slower, so leave a margin.
    pub quick_us: Option<f64>,
    /// Time limit for warming up and replaying. A kernel that exceeds it even with [`LEAST_REPLAYS`] replays is not
    /// measured.
    pub time_limit: Duration,
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions {
            calls: LEAST_CALLS,
            replays: 15,
            warm_up: Duration::from_millis(200),
            quick_us: None,
            time_limit: Duration::from_secs(10),
        }
    }
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The kernel is correct and was timed.
    Good {
        /// The timing.
        timing: Timing,
        /// The bytes compared, over all copies, before and after.
        compared: u64,
    },
    /// The calls made were correct, but too slow to be timed.
    Slow {
        /// Estimated microseconds per call.
        estimate_us: f64,
        /// The bytes compared, over all copies called.
        compared: u64,
    },
    /// Nothing was launched.
    Refused(Refusal),
    /// The launch failed while the device is healthy: [`DeviceError::Launch`], or the driver's error.
    LaunchFailed(DeviceError),
    /// The kernel wrote wrong bytes, or outside its outputs.
    Wrong(Wrong),
}

/// The reason that nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Refusal {
    /// A stable code: the kernel's status ([`Status::name`]), [`NO_DEVICE`](crate::NO_DEVICE) for a kernel of another
    /// target, [`CALL_MISMATCH`], or [`EMPTY_PROBLEM`].
    pub code: &'static str,
    /// A message for the user.
    pub message: String,
}

/// The first wrong byte, and the number of wrong bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The index of the output.
    pub output: usize,
    /// The copy of the output.
    pub copy: usize,
    /// The byte's position; beyond the output's end for a write to the guard area.
    pub byte: u64,
    /// The output's size, in bytes.
    pub bytes: u64,
    /// The byte found.
    pub found: u8,
    /// The expected byte.
    pub expected: u8,
    /// True if the byte still has its value from before the call.
    pub unwritten: bool,
    /// The number of wrong bytes, over all outputs, copies and guard areas.
    pub wrong: u64,
    /// The output bytes compared so far.
    pub compared: u64,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { output, byte, bytes, found, expected, wrong, compared, .. } = self;
        if byte < bytes {
            write!(f, "byte {byte} of {bytes} of output {output} is {found:#04x}, expected {expected:#04x}")?;
        } else {
            write!(f, "{found:#04x} was written {} bytes past the end of output {output}", byte - bytes)?;
        }
        let unwritten = if self.unwritten { " (unchanged by the call)" } else { "" };
        write!(f, "{unwritten}; {wrong} of {compared} compared bytes are wrong")
    }
}

/// Measures a kernel on a device, on a private stream; nothing else should use the device meanwhile. Returns when all
/// work is complete; leaves nothing on the device.
///
/// # Errors
/// [`DeviceError::OutOfMemory`] when [`LEAST_COPIES`] copies do not fit; the driver's error; or any error that the
/// kernel caused, see [`DeviceError::is_sticky`].
pub fn measure(
    kernel: &Kernel,
    device: &Device,
    call: CallData<'_>,
    options: &MeasureOptions,
) -> Result<Outcome, DeviceError> {
    match try_measure(kernel, device, call, options) {
        Ok(outcome) | Err(Stop::Outcome(outcome)) => Ok(outcome),
        Err(Stop::Device(error)) => Err(error),
    }
}

/// The outputs' content before the first calls: NaN in every float format.
const FIRST_POISON: u8 = 0xFF;

/// The outputs' content before timed calls: a different byte, since an expected byte can equal only one of them.
const POISON: u8 = 0x7F;

fn try_measure(
    kernel: &Kernel,
    device: &Device,
    call: CallData<'_>,
    options: &MeasureOptions,
) -> Result<Outcome, Stop> {
    let sm_count = i32::try_from(device.gpu().sm_count).unwrap_or(i32::MAX);
    // Unused by generated kernels: see `kernel::Device::max_active_clusters`.
    let described = kernel::Device { sm_count, max_active_clusters: 0 };
    let requirements = admit(kernel, &described, device.gpu(), &call)?;
    let stream = device.new_stream()?;
    let least_calls = options.calls.clamp(LEAST_CALLS, MOST_CALLS);
    let sets = Sets::place(device, &stream, call, kernel.metadata(), &requirements, least_calls)?;
    let mut calls = Calls::prepare(kernel, &described, &sets)?;
    let mut comparison = Comparison::default();
    let slow = |estimate_us, comparison: &Comparison| {
        Ok(Outcome::Slow { estimate_us, compared: comparison.compared })
    };
    // Time for the estimate and the minimum of replays, each of both halves.
    let fits = |us: f64| {
        us * 1e-6 * (2 * sets.calls * (1 + LEAST_REPLAYS)) as f64 <= options.time_limit.as_secs_f64()
    };

    for half in [Half::Lead, Half::Timed] {
        sets.poison(half, FIRST_POISON)?;
    }
    let first = calls.run(Half::Lead, 0..1)?;
    // The very first call may have waited for the driver.
    let first = first.min(calls.run(Half::Lead, 1..2)?);
    if !fits(first) {
        sets.compare(Half::Lead, 2, FIRST_POISON, &mut comparison)?;
        right(&comparison)?;
        return slow(first, &comparison);
    }
    calls.run(Half::Lead, 2..sets.calls)?;
    calls.run(Half::Timed, 0..sets.calls)?;
    for half in [Half::Lead, Half::Timed] {
        sets.compare(half, sets.copies, FIRST_POISON, &mut comparison)?;
    }
    right(&comparison)?;

    let mut replays = calls.record(POISON)?;
    let mut estimate = replays.replay()?;
    let too_slow = |us: f64| options.quick_us.is_some_and(|quick| us > quick) || !fits(us);
    if too_slow(estimate) {
        estimate = estimate.min(replays.replay()?);
        if too_slow(estimate) {
            return slow(estimate, &comparison);
        }
    }
    let begun = Instant::now();
    while begun.elapsed() < options.warm_up.min(options.time_limit) {
        replays.replay()?;
    }
    let mut samples = Vec::new();
    while samples.len() < LEAST_REPLAYS
        || (samples.len() < options.replays && begun.elapsed() < options.time_limit)
    {
        samples.push(replays.replay()?);
    }
    sets.compare(Half::Timed, sets.copies, POISON, &mut comparison)?;
    right(&comparison)?;
    let summary = timing::summary(&samples);
    let timing = Timing {
        samples_us: samples,
        median_us: summary.median,
        min_us: summary.min,
        p90_us: summary.p90,
        dispersion: summary.dispersion,
        calls: sets.calls,
        copies: sets.copies,
        rotation_bytes: sets.rotation_bytes(),
        l2_bytes: device.gpu().l2_bytes,
    };
    Ok(Outcome::Good { timing, compared: comparison.compared })
}

fn right(comparison: &Comparison) -> Result<(), Stop> {
    comparison.wrong().map_or(Ok(()), |wrong| Err(Stop::Outcome(Outcome::Wrong(wrong))))
}

/// Checks that the kernel is for the device and takes the problem, and that the call has exactly the inputs and
/// outputs that it requires. A kernel is never launched on smaller memory.
fn admit(
    kernel: &Kernel,
    described: &kernel::Device,
    gpu: &Gpu,
    call: &CallData<'_>,
) -> Result<Requirements, Refusal> {
    let metadata = kernel.metadata();
    check_target(metadata, gpu).map_err(|reason| Refusal { code: reason.code, message: reason.message })?;
    if metadata.is_empty(&call.extents) {
        let message = "a problem without elements needs no launch".to_owned();
        return Err(Refusal { code: EMPTY_PROBLEM, message });
    }
    let refused = |status: Status| Refusal { code: status.name(), message: status.to_string() };
    let requirements = kernel.query(described, &call.extents).map_err(refused)?;
    let mismatch = |message| Refusal { code: CALL_MISMATCH, message };
    let reads = reads::reads(metadata, &call.extents, &requirements).map_err(mismatch)?;
    check_inputs(&reads, call.inputs).map_err(mismatch)?;
    check_outputs(&requirements, call.expected).map_err(mismatch)?;
    Ok(requirements)
}

fn check_inputs(reads: &[(String, u64)], inputs: &[(String, Vec<u8>)]) -> Result<(), String> {
    for (position, (role, _)) in inputs.iter().enumerate() {
        if inputs[..position].iter().any(|(other, _)| other == role) {
            return Err(format!("the call passes `{role}` twice"));
        }
        if !reads.iter().any(|(read, _)| read == role) {
            return Err(format!("the call passes `{role}`, which the kernel does not read"));
        }
    }
    for (role, bytes) in reads {
        let given = inputs.iter().find(|(given, _)| given == role);
        let given = given.map_or(0, |(_, given)| given.len() as u64);
        if given != *bytes {
            return Err(format!("the kernel reads {bytes} bytes of `{role}`, but the call passes {given}"));
        }
    }
    Ok(())
}

fn check_outputs(requirements: &Requirements, expected: &[Vec<u8>]) -> Result<(), String> {
    if expected.len() > MAX_OUTPUTS {
        return Err(format!("{} outputs are expected, more than the kernel ABI allows", expected.len()));
    }
    for (output, bytes) in requirements.outputs.iter().enumerate() {
        let given = expected.get(output).map_or(0, |expected| expected.len() as u64);
        if given != *bytes {
            return Err(format!(
                "the kernel writes {bytes} bytes of output {output}, but {given} are expected"
            ));
        }
    }
    Ok(())
}

/// The number of copies of `set` bytes that exceed three times L2, within bounds.
fn copies_beyond_l2(set: u64, l2: u64) -> usize {
    let needed =
        (3 * l2).checked_div(set).map_or(MOST_COPIES, |all| usize::try_from(all).unwrap_or(MOST_COPIES));
    needed.saturating_add(1).clamp(LEAST_COPIES, MOST_COPIES)
}

fn exceeds_l2(bytes: u64, l2: u64) -> bool {
    bytes > 3 * l2
}

/// An early end of a measurement.
enum Stop {
    Outcome(Outcome),
    Device(DeviceError),
}

impl Stop {
    /// A failed launch: attributed to the kernel, unless the device is lost or out of memory.
    fn launch(error: DeviceError) -> Stop {
        match error {
            DeviceError::Launch { .. } | DeviceError::Cuda { .. } if !error.is_sticky() => {
                Stop::Outcome(Outcome::LaunchFailed(error))
            }
            error => Stop::Device(error),
        }
    }
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Stop {
        Stop::Device(error)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Outcome(Outcome::Refused(refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_exceed_three_times_l2_within_bounds() {
        let copies = [0, 1, 999, 1000, 60_000_000, u64::MAX].map(|set| copies_beyond_l2(set, 1_000_000));
        assert_eq!(copies, [MOST_COPIES, MOST_COPIES, MOST_COPIES, MOST_COPIES, 4, 4]);
        for (set, expected) in [(10_000, 301), (2_999_999, 4), (500_000, 7), (500_001, 6)] {
            assert_eq!(copies_beyond_l2(set, 1_000_000), expected);
            assert!(exceeds_l2(set * expected as u64, 1_000_000));
        }
        assert!(!exceeds_l2(3_000_000, 1_000_000));
    }

    #[test]
    fn what_is_wrong_is_said_in_words() {
        let wrong = Wrong {
            output: 1,
            copy: 2,
            byte: 12,
            bytes: 64,
            found: 0xFF,
            expected: 0x3C,
            unwritten: true,
            wrong: 5,
            compared: 640,
        };
        assert_eq!(
            wrong.to_string(),
            "byte 12 of 64 of output 1 is 0xff, expected 0x3c (unchanged by the call); \
             5 of 640 compared bytes are wrong"
        );
        let behind = Wrong { byte: 66, found: 0, unwritten: false, ..wrong };
        assert_eq!(
            behind.to_string(),
            "0x00 was written 2 bytes past the end of output 1; 5 of 640 compared bytes are wrong"
        );
    }
}
