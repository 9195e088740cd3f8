//! Benchmarks a prepared program over rotating sets of inputs and outputs, and a copy of as many bytes beside it.
//!
//! [`Rotation::new`] allocates sets of all inputs and outputs that together exceed three times the L2 cache, at least
//! [`LEAST_COPIES`] of them. Params and other resident values are shared by all sets. It records two graphs with as
//! many calls each. A replay poisons the outputs of the timed graph, launches the lead graph, and then times the other
//! one. So caches are in a steady state, and the host launches the timed graph while the device is busy.
//!
//! Launches of a prepared program share its workspace, so each call of a graph is a program of its own with its own
//! workspace. A graph is launched again only after synchronization.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fourfold_ir::Value;

use super::sets::{FILLER, GUARD, Places};
use super::{LEAST_CALLS, LEAST_COPIES, LEAST_REPLAYS, MOST_CALLS, exceeds_l2};
use crate::device::{Buffer, Device, DeviceError, Event, Graph, Stream};
use crate::run::{Outside, Preparation, PreparedProgram, Refused};

/// The maximum number of sets. For tiny problems they may be less than three times L2.
const MOST_SETS: usize = 2048;

/// The content of outputs before each replay.
const POISON: u8 = 0x7F;

/// The reason that a program cannot be captured in a graph.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The program cannot be prepared.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The device failed, or its memory does not suffice for [`LEAST_COPIES`] sets.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An input is missing or has another size.
    #[error("`%{name}` takes {needed} bytes, but {found} are given")]
    Input {
        /// The input.
        name: String,
        /// Its size in bytes.
        needed: u64,
        /// The bytes given; 0 if it is missing.
        found: usize,
    },
    /// The preparation has addresses of the caller's memory, whose size is unknown.
    #[error("the preparation to capture has addresses already")]
    Bound,
}

/// The bytes of each output.
pub type LastOutputs = Vec<(Value, Vec<u8>)>;

/// The outputs of the last replay are not those of one program on equal inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Two sets with equal inputs have different outputs.
    #[error("byte {byte} of `%{name}` differs between set 0 and set {set}, whose inputs are equal")]
    Different {
        /// The output.
        name: String,
        /// The set.
        set: usize,
        /// The first byte that differs.
        byte: usize,
    },
    /// Memory behind an output was written.
    #[error("{past} bytes past the end of `%{name}` were written in set {set}")]
    Overrun {
        /// The output.
        name: String,
        /// The set.
        set: usize,
        /// The distance from the end of the output.
        past: usize,
    },
}

/// The lengths of one round of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounds {
    /// The time that the graphs are replayed before they are timed.
    pub warm_up: Duration,
    /// The timed replays, as far as the limit allows; at least [`LEAST_REPLAYS`].
    pub replays: usize,
    /// The time limit of a round.
    pub limit: Duration,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds { warm_up: Duration::from_millis(200), replays: 15, limit: Duration::from_secs(10) }
    }
}

/// A recorded sequence of calls: one half leads, the other is timed.
#[derive(Debug)]
struct Halves {
    lead: Graph,
    timed: Graph,
}

/// A prepared program with its sets, recorded as graphs.
///
/// The fields are dropped in order: graphs before the programs that they launch, and those before their memory.
#[derive(Debug)]
pub struct Rotation {
    program: Halves,
    copy: Halves,
    programs: Vec<PreparedProgram>,
    stream: Stream,
    memory: Sets,
    _workspace: Buffer,
    calls: usize,
    kernels: usize,
    l2_bytes: u64,
}

/// The memory of all sets.
#[derive(Debug)]
struct Sets {
    count: usize,
    inputs: Vec<Outside>,
    outputs: Vec<Outside>,
    input_places: Places,
    output_places: Places,
    given: Buffer,
    /// The outputs of the lead half, then those of the timed half.
    written: Buffer,
    /// The sources, then the targets of the copies.
    scratch: Buffer,
    /// The bytes of one copy, which reads and writes as many.
    copied: usize,
    /// The bytes of one call.
    bytes: u64,
}

impl Rotation {
    /// Prepares the program at the addresses of each set, and records the graphs. `prepare` is called for each call
    /// of a graph; the values that it leaves without address are the inputs and outputs. `inputs` has the bytes of
    /// each input, the same for every set. `shared` is the number of bytes of resident values that each call reads from
    /// memory, since they exceed the L2 cache: they are counted and copied. `calls` is the minimum number of calls per
    /// graph.
    ///
    /// # Errors
    /// If the program is refused, an input does not fit, or the device fails.
    pub fn new<'p>(
        device: &Device,
        inputs: &HashMap<Value, &[u8]>,
        shared: u64,
        calls: usize,
        prepare: &dyn Fn() -> Result<Preparation<'p>, Refused>,
    ) -> Result<Rotation, CaptureError> {
        let stream = device.new_stream()?;
        let first = prepare()?;
        let outside = first.unbound().cloned().collect();
        let memory = Sets::place(device, &stream, outside, inputs, shared)?;
        let calls = calls.clamp(LEAST_CALLS, MOST_CALLS).next_multiple_of(memory.count);
        let own = first.workspace_size();
        let workspaces = Places::of([own]);
        let workspace = device.alloc(workspaces.times(2 * calls))?;
        let mut programs = Vec::with_capacity(2 * calls);
        for half in 0..2 {
            for call in 0..calls {
                let addresses = memory.addresses(half, call % memory.count);
                let preparation = prepare()?;
                memory.check(&preparation)?;
                let at = workspace.address() + workspaces.times(half * calls + call) as u64;
                let preparation = preparation.bind_all(addresses).workspace(at, own);
                // SAFETY: `check` has compared each value with its part of the sets. Other values have the memory of
                // a session, which the program keeps. Sets and workspaces outlive the program; each call has its own
                // workspace, and `build` refuses a preparation that needs a larger one.
                programs.push(unsafe { preparation.build() }?);
            }
        }
        stream.synchronize()?;
        let (lead, timed) = programs.split_at_mut(calls);
        let record = |programs: &mut [PreparedProgram], poison: bool| {
            stream.capture(|| {
                if poison {
                    memory.poison(&stream)?;
                }
                for program in programs {
                    // SAFETY: programs and sets outlive the graph, and each program is in one graph, once. `replay`
                    // waits for a graph before it launches it again.
                    unsafe { program.launch(&stream) }?;
                }
                Ok(())
            })
        };
        let program = Halves { lead: record(lead, true)?, timed: record(timed, false)? };
        let copies = || stream.capture(|| memory.copy(&stream, calls));
        let copy = Halves { lead: copies()?, timed: copies()? };
        let kernels = programs.first().map_or(0, PreparedProgram::kernels);
        let l2_bytes = device.gpu().l2_bytes;
        Ok(Rotation {
            program,
            copy,
            programs,
            stream,
            memory,
            _workspace: workspace,
            calls,
            kernels,
            l2_bytes,
        })
    }

    /// Warms up and replays the program. Returns the microseconds per call of each replay.
    ///
    /// # Errors
    /// The driver's error, or any error that a kernel caused.
    pub fn program_round(&mut self, rounds: &Rounds) -> Result<Vec<f64>, DeviceError> {
        round(rounds, || replay(&self.program, &self.stream, self.calls))
    }

    /// Warms up and replays device-to-device copies that together read and write as many bytes as a call. Returns the
    /// microseconds per copy of each replay.
    ///
    /// # Errors
    /// The driver's error.
    pub fn copy_round(&mut self, rounds: &Rounds) -> Result<Vec<f64>, DeviceError> {
        round(rounds, || replay(&self.copy, &self.stream, self.calls))
    }

    /// The outputs of the last replay, which are the same in every set. Guard areas after the outputs are checked.
    ///
    /// # Errors
    /// The driver's error; or a flaw, as the inner error.
    pub fn last_outputs(&self) -> Result<Result<LastOutputs, Flaw>, DeviceError> {
        let sets = &self.memory;
        let mut first = LastOutputs::new();
        for set in 0..sets.count {
            for (place, output) in sets.outputs.iter().enumerate() {
                let bytes = usize::try_from(output.bytes).unwrap_or(usize::MAX);
                let mut found = vec![0; bytes + GUARD as usize];
                self.stream.download(&sets.written, sets.output(1, set, place), &mut found)?;
                let name = || output.name.clone();
                if let Some(past) = found[bytes..].iter().position(|byte| *byte != POISON) {
                    return Ok(Err(Flaw::Overrun { name: name(), set, past }));
                }
                found.truncate(bytes);
                let Some((_, expected)) = first.get(place) else {
                    first.push((output.value, found));
                    continue;
                };
                if *expected != found {
                    let byte = expected.iter().zip(&found).position(|(a, b)| a != b).unwrap_or(0);
                    return Ok(Err(Flaw::Different { name: name(), set, byte }));
                }
            }
        }
        Ok(Ok(first))
    }

    /// The number of sets.
    pub fn sets(&self) -> usize {
        self.memory.count
    }

    /// The calls of each graph.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// The kernels and library calls of one call of the program.
    pub fn kernels(&self) -> usize {
        self.kernels
    }

    /// The bytes of the inputs and outputs of one call, and the shared bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// The bytes of the workspace of one call, intermediates included.
    pub fn workspace_bytes(&self) -> u64 {
        self.programs.first().map_or(0, |program| program.workspace().1)
    }

    /// Returns true if the sets exceed three times the L2 cache.
    pub fn is_rotating(&self) -> bool {
        exceeds_l2(self.bytes().saturating_mul(self.memory.count as u64), self.l2_bytes)
    }
}

impl Drop for Rotation {
    fn drop(&mut self) {
        // If this fails the device is lost, and nothing runs on it.
        let _ = self.stream.synchronize();
    }
}

impl Sets {
    /// Allocates sets that exceed three times L2, or repeatedly half as many if they do not fit, and uploads the
    /// inputs.
    fn place(
        device: &Device,
        stream: &Stream,
        outside: Vec<Outside>,
        given: &HashMap<Value, &[u8]>,
        shared: u64,
    ) -> Result<Sets, CaptureError> {
        let (outputs, inputs): (Vec<_>, Vec<_>) = outside.into_iter().partition(|value| value.is_output);
        for input in &inputs {
            let found = given.get(&input.value).map_or(0, |bytes| bytes.len());
            if found as u64 != input.bytes {
                return Err(CaptureError::Input { name: input.name.clone(), needed: input.bytes, found });
            }
        }
        let values = inputs.iter().chain(&outputs).map(|value| value.bytes);
        let bytes = values.fold(shared, u64::saturating_add);
        let mut count = sets_beyond_l2(bytes, device.gpu().l2_bytes);
        let copied = usize::try_from(bytes / 2).unwrap_or(usize::MAX).max(1);
        let copies = Places::of([copied as u64]);
        let input_places = Places::of(inputs.iter().map(|value| value.bytes));
        let output_places = Places::of(outputs.iter().map(|value| value.bytes.saturating_add(GUARD)));
        let alloc = |count: usize| {
            let inputs = device.alloc(input_places.times(count))?;
            let outputs = device.alloc(output_places.times(2 * count))?;
            Ok((inputs, outputs, device.alloc(copies.times(2 * count))?))
        };
        let (buffer, written, scratch) = loop {
            match alloc(count) {
                Err(DeviceError::OutOfMemory { .. }) if count > LEAST_COPIES => {
                    count = (count / 2).max(LEAST_COPIES);
                }
                other => break other?,
            }
        };
        for buffer in [&buffer, &written, &scratch] {
            stream.fill(buffer, 0, buffer.len(), FILLER)?;
        }
        for (input, offset) in inputs.iter().zip(&input_places.offsets) {
            stream.upload(&buffer, *offset, given[&input.value])?;
        }
        for set in 1..count {
            stream.copy(&buffer, 0, &buffer, set * input_places.stride, input_places.stride)?;
        }
        stream.synchronize()?;
        Ok(Sets {
            count,
            inputs,
            outputs,
            input_places,
            output_places,
            given: buffer,
            written,
            scratch,
            copied,
            bytes,
        })
    }

    /// The offset of an output of a half's set.
    fn output(&self, half: usize, set: usize, place: usize) -> usize {
        (half * self.count + set) * self.output_places.stride + self.output_places.offsets[place]
    }

    /// The addresses of a set's inputs and of the outputs of one half.
    fn addresses(&self, half: usize, set: usize) -> Vec<(Value, u64)> {
        let at = |buffer: &Buffer, offset: usize| buffer.address() + offset as u64;
        let inputs =
            self.inputs.iter().zip(&self.input_places.offsets).map(|(input, offset)| {
                (input.value, at(&self.given, set * self.input_places.stride + offset))
            });
        let outputs = self.outputs.iter().enumerate();
        let outputs =
            outputs.map(|(place, output)| (output.value, at(&self.written, self.output(half, set, place))));
        inputs.chain(outputs).collect()
    }

    /// Fails unless the values without address are those of the sets, with their sizes, and the caller has given no
    /// other address.
    fn check(&self, preparation: &Preparation<'_>) -> Result<(), CaptureError> {
        if preparation.has_given() {
            return Err(CaptureError::Bound);
        }
        for outside in preparation.unbound() {
            let mut known = self.inputs.iter().chain(&self.outputs);
            let found = known.find(|known| known.value == outside.value).map_or(0, |known| known.bytes);
            if found != outside.bytes {
                let found = usize::try_from(found).unwrap_or(usize::MAX);
                let name = outside.name.clone();
                return Err(CaptureError::Input { name, needed: outside.bytes, found });
            }
        }
        Ok(())
    }

    /// Poisons the outputs of the timed half, guard areas included.
    fn poison(&self, stream: &Stream) -> Result<(), DeviceError> {
        let half = self.output_places.times(self.count);
        stream.fill(&self.written, half, half, POISON)
    }

    /// Enqueues copies that rotate through the sets.
    fn copy(&self, stream: &Stream, calls: usize) -> Result<(), DeviceError> {
        let half = self.scratch.len() / 2;
        let stride = half / self.count;
        for call in 0..calls {
            let from = call % self.count * stride;
            stream.copy(&self.scratch, from, &self.scratch, half + from, self.copied)?;
        }
        Ok(())
    }
}

/// The number of sets of `bytes` that exceed three times L2, within bounds.
fn sets_beyond_l2(bytes: u64, l2: u64) -> usize {
    let needed = (3 * l2).checked_div(bytes).and_then(|sets| usize::try_from(sets).ok());
    needed.unwrap_or(MOST_SETS).saturating_add(1).clamp(LEAST_COPIES, MOST_SETS)
}

/// Warms up and replays. Both the warm-up and the replays end at the limit, after the minimum number of replays.
fn round(
    rounds: &Rounds,
    mut replay: impl FnMut() -> Result<f64, DeviceError>,
) -> Result<Vec<f64>, DeviceError> {
    let begun = Instant::now();
    // The first replay may wait for the driver, so it is never a sample.
    replay()?;
    while begun.elapsed() < rounds.warm_up.min(rounds.limit) {
        replay()?;
    }
    let mut samples = Vec::new();
    while samples.len() < LEAST_REPLAYS || (samples.len() < rounds.replays && begun.elapsed() < rounds.limit)
    {
        samples.push(replay()?);
    }
    Ok(samples)
}

/// Launches the lead half and the timed half, and returns the microseconds per call of the timed one.
fn replay(halves: &Halves, stream: &Stream, calls: usize) -> Result<f64, DeviceError> {
    // SAFETY: the programs, the sets and the graphs are members of one `Rotation`, which waits before it drops them.
    // Each graph was waited for after its last launch, and the two have no program in common.
    unsafe { halves.lead.launch(stream) }?;
    let start: Event = stream.record()?;
    // SAFETY: as above.
    unsafe { halves.timed.launch(stream) }?;
    let end = stream.record()?;
    Ok(f64::from(start.elapsed_ms(&end)?) * 1e3 / calls as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_exceed_three_times_l2_within_bounds() {
        assert_eq!([0, 1, u64::MAX].map(|bytes| sets_beyond_l2(bytes, 1 << 20)), [MOST_SETS, MOST_SETS, 4]);
        for (bytes, sets) in [(1 << 20, 4), (1 << 19, 7), (100_000, 32)] {
            assert_eq!(sets_beyond_l2(bytes, 1 << 20), sets);
            assert!(exceeds_l2(bytes * sets as u64, 1 << 20));
        }
    }

    #[test]
    fn a_round_has_its_replays_and_ends_at_its_limit() {
        let count = |rounds: Rounds| {
            let mut calls = 0;
            let samples = round(&rounds, || {
                calls += 1;
                Ok(f64::from(calls))
            });
            (samples.expect("no device").len(), calls)
        };
        let none = Duration::ZERO;
        let (samples, calls) = count(Rounds { warm_up: none, replays: 15, limit: Duration::from_secs(60) });
        assert_eq!((samples, calls), (15, 16));
        assert_eq!(count(Rounds { warm_up: none, replays: 15, limit: none }), (LEAST_REPLAYS, 6));
    }
}
