//! A prepared program in one CUDA graph, replayed on other inputs at the same addresses.

use std::collections::HashMap;

use fourfold_ir::Value;

use super::programs::{CaptureError, LastOutputs};
use crate::device::{Buffer, Device, Graph, Stream};
use crate::run::{Outside, Preparation, PreparedProgram};

/// A program that was captured once. Everything that it computes depends on the content of its inputs, not on the
/// content at the time of the capture.
///
/// The fields are dropped in order: the graph before the program that it launches, and that before its memory.
#[derive(Debug)]
pub struct Captured {
    graph: Graph,
    _prepared: PreparedProgram,
    stream: Stream,
    inputs: Vec<(Outside, Buffer)>,
    outputs: Vec<(Outside, Buffer)>,
}

impl Captured {
    /// Allocates the inputs and outputs that have no address, prepares the program there, and captures a launch.
    ///
    /// # Errors
    /// If the preparation has addresses already, the program is refused, or the device fails.
    pub fn new(device: &Device, preparation: Preparation<'_>) -> Result<Captured, CaptureError> {
        if preparation.has_given() {
            return Err(CaptureError::Bound);
        }
        let stream = device.new_stream()?;
        let place = |outside: &Outside| -> Result<(Outside, Buffer), CaptureError> {
            let bytes = usize::try_from(outside.bytes).unwrap_or(usize::MAX);
            Ok((outside.clone(), device.alloc(bytes)?))
        };
        let placed: Vec<(Outside, Buffer)> = preparation.unbound().map(place).collect::<Result<_, _>>()?;
        let addresses = placed.iter().map(|(outside, buffer)| (outside.value, buffer.address()));
        let preparation = preparation.bind_all(addresses);
        // SAFETY: each value has a buffer of its size, which outlives the program.
        let mut prepared = unsafe { preparation.build() }?;
        stream.synchronize()?;
        // SAFETY: the program and its memory outlive the graph, and `replay` waits for each launch.
        let graph = stream.capture(|| unsafe { prepared.launch(&stream) })?;
        let (outputs, inputs) = placed.into_iter().partition(|(outside, _)| outside.is_output);
        Ok(Captured { graph, _prepared: prepared, stream, inputs, outputs })
    }

    /// Copies the inputs to their memory, fills every output with a byte, launches the graph and returns the outputs.
    ///
    /// # Errors
    /// If an input is missing or has another size, or the device fails.
    pub fn replay(
        &mut self,
        inputs: &HashMap<Value, &[u8]>,
        poison: u8,
    ) -> Result<LastOutputs, CaptureError> {
        for (input, buffer) in &self.inputs {
            let found = inputs.get(&input.value).map_or(0, |bytes| bytes.len());
            if found as u64 != input.bytes {
                return Err(CaptureError::Input { name: input.name.clone(), needed: input.bytes, found });
            }
            if found > 0 {
                self.stream.upload(buffer, 0, inputs[&input.value])?;
            }
        }
        for (output, buffer) in &self.outputs {
            if output.bytes > 0 {
                self.stream.fill(buffer, 0, buffer.len(), poison)?;
            }
        }
        // SAFETY: the program, its memory and the graph are members of this, which waits before it drops them and
        // before it launches the graph again.
        unsafe { self.graph.launch(&self.stream) }?;
        self.stream.synchronize()?;
        let mut outputs = LastOutputs::new();
        for (output, buffer) in &self.outputs {
            let mut bytes = vec![0; usize::try_from(output.bytes).unwrap_or(usize::MAX)];
            if !bytes.is_empty() {
                self.stream.download(buffer, 0, &mut bytes)?;
            }
            outputs.push((output.value, bytes));
        }
        Ok(outputs)
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // If this fails the device is lost, and nothing runs on it.
        let _ = self.stream.synchronize();
    }
}
