//! How long one kernel takes for one problem, and whether all that it writes is right.
//!
//! [`measure`] takes a loaded kernel, the operands of a call and every byte that must come out. It copies all of that to
//! memory of its own, so often that all copies together exceed three times the L2 cache, and never gives a kernel less
//! memory than it says that it reads ([`kernel::Metadata::operands`](crate::kernel::Metadata::operands)) and writes
//! ([`Kernel::query`]). The outputs are poisoned, each copy is called, and every byte of every copy is compared, with some
//! that follow the outputs. Only what is right is timed: at least [`LEAST_CALLS`] calls that take turns with the copies are
//! recorded as one graph, which is replayed at least [`LEAST_REPLAYS`] times. Before each replay its outputs are poisoned,
//! with another byte than at first, so that no byte that happens to be as expected hides that it was not written; then as
//! many other calls run, with outputs of their own, so that the caches are as they are amid such calls and the device is
//! busy while the host launches. After the last replay all of its outputs are compared again.
//!
//! A prepared call may have one launch in flight ([`Prepared`](crate::kernel::Prepared)), so each call of a graph is one
//! of its own with a workspace of its own, and a graph is launched again only when it was waited for.
//!
//! What this leaves to its caller:
//! - A kernel that does not end is waited for for ever: whoever runs unknown kernels does it in a process that can be
//!   killed.
//! - A kernel that makes the device fail takes its context along ([`DeviceError::is_sticky`]): the process must be started
//!   anew.
//! - The driver does not say how fast the clocks run. They are warmed up and nothing is known beyond that: to compare two
//!   kernels, measure them in turns and see whether the first is again as fast.
//! - Below some 3 µs a call is mostly the gap between two launches of a graph.

mod calls;
mod reads;
mod sets;
mod timing;

use std::fmt;
use std::time::{Duration, Instant};

pub use timing::Timing;

use crate::device::{Device, DeviceError, Gpu};
use crate::kernel::{self, Extents, Kernel, MAX_OUTPUTS, Requirements, Status};
use crate::run::check_target;
use calls::Calls;
use sets::{Comparison, Half, Sets};

/// The least calls that are recorded as one graph.
pub const LEAST_CALLS: usize = 20;

/// The most calls that may be asked for.
pub const MOST_CALLS: usize = 4096;

/// The least replays.
pub const LEAST_REPLAYS: usize = 5;

/// The least copies of all operands and outputs.
pub const LEAST_COPIES: usize = 4;

/// The most copies: those of a small problem may be less than three times L2.
pub const MOST_COPIES: usize = 1024;

/// The code of a [`Refusal`] of data that is not what the kernel reads and writes.
pub const CALL_MISMATCH: &str = "call_mismatch";

/// The code of a [`Refusal`] of a problem without elements.
pub const EMPTY_PROBLEM: &str = "empty_problem";

/// One call: its extents, what it reads, and what it must write.
#[derive(Clone, Copy, Debug)]
pub struct CallData<'a> {
    /// The extents in the kernel's order.
    pub extents: Extents,
    /// The bytes that it reads in each role, each once, in any order.
    pub inputs: &'a [(String, Vec<u8>)],
    /// What it must write, in the order of the interface: all bytes, padding included.
    pub expected: &'a [Vec<u8>],
}

impl CallData<'_> {
    /// Bytes that it reads and writes.
    fn bytes(&self) -> u64 {
        let read = self.inputs.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        read + self.expected.iter().map(|bytes| bytes.len() as u64).sum::<u64>()
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasureOptions {
    /// Calls of a replay; at least [`LEAST_CALLS`] and at most [`MOST_CALLS`], and then as many more as give each copy the
    /// same number of turns.
    pub calls: usize,
    /// Replays, if the time limit leaves room for them; at least [`LEAST_REPLAYS`].
    pub replays: usize,
    /// How long the kernel runs before it is measured, until clocks are steady.
    pub warm_up: Duration,
    /// Do not go on with a kernel that is right and takes more microseconds a call by a first estimate, which is made
    /// before warming up. An idle device is slower: leave room for that.
    pub quick_us: Option<f64>,
    /// How long warming up and replaying may take. A kernel that takes longer even with the least replays is not measured.
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

/// What became of a kernel on a problem.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is right, and was measured.
    Good {
        /// How long it takes.
        timing: Timing,
        /// Bytes that were compared, over all copies, before and after.
        compared: u64,
    },
    /// What was called is right, and so slow that it was not measured.
    Slow {
        /// Microseconds a call, roughly.
        estimate_us: f64,
        /// Bytes that were compared, over all copies that were called.
        compared: u64,
    },
    /// Nothing was launched.
    Refused(Refusal),
    /// It cannot be launched, and the device is well: [`DeviceError::Launch`], or what the driver says.
    LaunchFailed(DeviceError),
    /// It wrote something else than it must, or where it must not.
    Wrong(Wrong),
}

/// Why nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Refusal {
    /// A stable code: the name of the kernel's own answer ([`Status::name`]), [`NO_DEVICE`](crate::NO_DEVICE) for a kernel
    /// that is not one for the device, [`CALL_MISMATCH`], or [`EMPTY_PROBLEM`].
    pub code: &'static str,
    /// For people.
    pub message: String,
}

/// The first byte that differs, and how many do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The output, by position.
    pub output: usize,
    /// The copy that it is of.
    pub copy: usize,
    /// The byte's position; beyond the output where something was written behind it.
    pub byte: u64,
    /// Bytes of the output.
    pub bytes: u64,
    /// What is there.
    pub found: u8,
    /// What must be there.
    pub expected: u8,
    /// What is there was so before the call.
    pub unwritten: bool,
    /// Bytes that differ, over all outputs and copies, and behind them.
    pub wrong: u64,
    /// Bytes of outputs that were compared so far.
    pub compared: u64,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { output, byte, bytes, found, expected, wrong, compared, .. } = self;
        if byte < bytes {
            write!(
                f,
                "byte {byte} of {bytes} of output {output} is {found:#04x}, and must be {expected:#04x}"
            )?;
        } else {
            write!(f, "{found:#04x} was written {} bytes behind the end of output {output}", byte - bytes)?;
        }
        let unwritten = if self.unwritten { " (as before the call)" } else { "" };
        write!(f, "{unwritten}; {wrong} bytes are wrong, of {compared} that were compared")
    }
}

/// Measures a kernel on a device, with a stream of its own; nobody else should use the device meanwhile. All has happened
/// when this returns, and nothing is left on the device.
///
/// # Errors
/// [`DeviceError::OutOfMemory`] when the device has no room for [`LEAST_COPIES`] copies, the driver's own, and whatever
/// the kernel did to the device: see [`DeviceError::is_sticky`].
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

/// What outputs hold before the first calls: as numbers NaN.
const FIRST_POISON: u8 = 0xFF;

/// What outputs hold before calls that are timed: another byte, as an expected byte can be equal to one only.
const POISON: u8 = 0x7F;

fn try_measure(
    kernel: &Kernel,
    device: &Device,
    call: CallData<'_>,
    options: &MeasureOptions,
) -> Result<Outcome, Stop> {
    let sm_count = i32::try_from(device.gpu().sm_count).unwrap_or(i32::MAX);
    // As everywhere: see `kernel::Device::max_active_clusters`.
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
    // A replay of both halves for an estimate, and those that are needed.
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

/// Whether the kernel is one for the device and takes the problem, and the call has exactly what it reads and writes: no
/// kernel is launched on memory that is shorter.
fn admit(
    kernel: &Kernel,
    described: &kernel::Device,
    gpu: &Gpu,
    call: &CallData<'_>,
) -> Result<Requirements, Refusal> {
    let metadata = kernel.metadata();
    check_target(metadata, gpu).map_err(|reason| Refusal { code: reason.code, message: reason.message })?;
    if metadata.is_empty(&call.extents) {
        let message = "nothing is launched for a problem without elements".to_owned();
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
            return Err(format!("the call has `{role}` twice"));
        }
        if !reads.iter().any(|(read, _)| read == role) {
            return Err(format!("the call has `{role}`, which the kernel does not read"));
        }
    }
    for (role, bytes) in reads {
        let given = inputs.iter().find(|(given, _)| given == role);
        let given = given.map_or(0, |(_, given)| given.len() as u64);
        if given != *bytes {
            return Err(format!("the kernel reads {bytes} bytes of `{role}`, and the call has {given}"));
        }
    }
    Ok(())
}

fn check_outputs(requirements: &Requirements, expected: &[Vec<u8>]) -> Result<(), String> {
    if expected.len() > MAX_OUTPUTS {
        return Err(format!("{} outputs are expected, and no kernel has them", expected.len()));
    }
    for (output, bytes) in requirements.outputs.iter().enumerate() {
        let given = expected.get(output).map_or(0, |expected| expected.len() as u64);
        if given != *bytes {
            return Err(format!(
                "the kernel writes {bytes} bytes of output {output}, and {given} are expected"
            ));
        }
    }
    Ok(())
}

/// How many copies of so many bytes exceed three times L2, within bounds.
fn copies_beyond_l2(set: u64, l2: u64) -> usize {
    let needed =
        (3 * l2).checked_div(set).map_or(MOST_COPIES, |all| usize::try_from(all).unwrap_or(MOST_COPIES));
    needed.saturating_add(1).clamp(LEAST_COPIES, MOST_COPIES)
}

fn exceeds_l2(bytes: u64, l2: u64) -> bool {
    bytes > 3 * l2
}

/// What ends a measurement before its end.
enum Stop {
    Outcome(Outcome),
    Device(DeviceError),
}

impl Stop {
    /// A launch that failed: the kernel's fault, unless the device is lost or has no room.
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
            "byte 12 of 64 of output 1 is 0xff, and must be 0x3c (as before the call); \
             5 bytes are wrong, of 640 that were compared"
        );
        let behind = Wrong { byte: 66, found: 0, unwritten: false, ..wrong };
        assert_eq!(
            behind.to_string(),
            "0x00 was written 2 bytes behind the end of output 1; 5 bytes are wrong, of 640 that were compared"
        );
    }
}
