//! The two ways in which a session runs a call: as one prepared program, or segment by segment.

use fourfold_ir::bind::concrete_dims;
use fourfold_ir::{Entity, SymbolValues, Tensor, Value};

use super::staging::{Slots, Staging};
use super::{
    DeviceTensor, MAX_SHAPES, Ready, Session, SessionError, SessionInput, SessionRun, Shape, without_device,
};
use crate::device::{DeviceError, Stream};
use crate::run::call::bytes;
use crate::run::live::Live;
use crate::run::runner::Runner;
use crate::run::values::Values;
use crate::run::{ALIAS, BUILDING, DEVICE_MEMORY, Preparation, Refused, RunError, RunOptions};

type Outputs<'a, 'b> = &'a [Option<DeviceTensor<'b>>];

impl Session {
    /// Launches the prepared program for these extents, or returns the reason that there is none.
    pub(super) fn launch(
        &mut self,
        symbols: &SymbolValues,
        inputs: &[SessionInput<'_>],
        outputs: Outputs<'_, '_>,
    ) -> Result<Result<Vec<Option<Tensor>>, Refused>, SessionError> {
        if let Some(refused) = self.repeated(outputs) {
            return Ok(Err(refused));
        }
        let position = match self.shapes.iter().position(|shape| shape.symbols == *symbols) {
            Some(position) => position,
            None => match self.prepare_shape(symbols, inputs, outputs) {
                Ok(position) => position,
                Err(refused) => return Ok(Err(refused)),
            },
        };
        let mut shape = self.shapes.remove(position);
        let mut staging = std::mem::take(&mut self.staging);
        let launched = match &mut shape.state {
            Ok(ready) => self.launch_ready(symbols, ready, &mut staging, inputs, outputs),
            Err(refused) => Ok(Err(refused.clone())),
        };
        self.staging = staging;
        self.shapes.push(shape);
        launched
    }

    /// Prepares the program for these extents, and returns its position. Reasons that may pass are not kept.
    fn prepare_shape(
        &mut self,
        symbols: &SymbolValues,
        inputs: &[SessionInput<'_>],
        outputs: Outputs<'_, '_>,
    ) -> Result<usize, Refused> {
        let mut state = self.ready(symbols, inputs, outputs);
        if let Err(refused) = &state
            && refused.code == DEVICE_MEMORY
            && !(self.shapes.is_empty() && self.spare.1.is_empty())
        {
            self.shapes.clear();
            self.spare.1.clear();
            state = self.ready(symbols, inputs, outputs);
        }
        if let Err(refused) = &state
            && [BUILDING, DEVICE_MEMORY].contains(&refused.code)
        {
            return Err(refused.clone());
        }
        if self.shapes.len() >= MAX_SHAPES {
            self.shapes.remove(0);
        }
        self.shapes.push(Shape { symbols: symbols.clone(), state });
        Ok(self.shapes.len() - 1)
    }

    fn ready(
        &self,
        symbols: &SymbolValues,
        inputs: &[SessionInput<'_>],
        outputs: Outputs<'_, '_>,
    ) -> Result<Ready, Refused> {
        let place = self.place.as_ref().ok_or_else(without_device)?;
        let machine = place.machine();
        let preparation =
            Preparation::beside(&self.program, &self.partition, symbols, &machine, &self.residents)?;
        let (mut of_inputs, mut of_outputs) = self.slots(symbols);
        let addresses = self
            .addresses(inputs, outputs, &mut of_inputs, &mut of_outputs)
            .map_err(|error| Refused::device(&error, None))?;
        // SAFETY: each address is that of our own buffer, or of memory that the caller lends to this call. Before a
        // later call, all addresses of lent memory are replaced.
        let prepared = unsafe { preparation.bind_all(addresses).build() }?;
        Ok(Ready { prepared, inputs: of_inputs, outputs: of_outputs })
    }

    /// The slots of inputs, and those of outputs. An output that is returned twice has the slot of its first position,
    /// and one that no call computes has none.
    fn slots(&self, symbols: &SymbolValues) -> (Slots, Slots) {
        let size = |value: Value| {
            usize::try_from(bytes(&self.program, value, symbols).unwrap_or(u64::MAX)).unwrap_or(usize::MAX)
        };
        let inputs = self.inputs.iter().map(|value| size(*value)).collect();
        let outputs = self.program.module().outputs.iter().zip(&self.first_outputs).enumerate();
        let outputs =
            outputs.map(
                |(position, (value, first))| {
                    if *first == position && self.is_computed(*value) { size(*value) } else { 0 }
                },
            );
        (Slots::new(inputs), Slots::new(outputs.collect()))
    }

    /// The addresses of inputs and computed outputs. Tensors on the host have slots.
    fn addresses(
        &self,
        inputs: &[SessionInput<'_>],
        outputs: Outputs<'_, '_>,
        of_inputs: &mut Slots,
        of_outputs: &mut Slots,
    ) -> Result<Vec<(Value, u64)>, DeviceError> {
        let computed = &self.program.module().outputs;
        let mut addresses = Vec::with_capacity(inputs.len() + computed.len());
        let Some(place) = &self.place else { return Ok(addresses) };
        for (position, (value, input)) in self.inputs.iter().zip(inputs).enumerate() {
            let address = match input {
                SessionInput::Host(_) => of_inputs.address(&place.device, position)?,
                SessionInput::Device(tensor) => tensor.address(),
            };
            addresses.push((*value, address));
        }
        for (position, value) in computed.iter().enumerate() {
            if self.first_outputs[position] == position && self.is_computed(*value) {
                let address = match outputs.get(position) {
                    Some(Some(tensor)) => tensor.address(),
                    _ => of_outputs.address(&place.device, position)?,
                };
                addresses.push((*value, address));
            }
        }
        Ok(addresses)
    }

    /// The refusal of an output that is written to the caller's memory and returned twice.
    fn repeated(&self, outputs: Outputs<'_, '_>) -> Option<Refused> {
        let module = self.program.module();
        let twice = |value: &Value| module.outputs.iter().filter(|other| *other == value).count() > 1;
        let on_device = outputs.iter().zip(&module.outputs).filter(|(output, _)| output.is_some());
        let (_, value) = on_device.into_iter().find(|(_, value)| twice(value))?;
        let message = format!("the program returns `%{}` twice", module.name_of(*value));
        Some(Refused::new(ALIAS, None, message))
    }

    /// True if a call computes the value.
    fn is_computed(&self, value: Value) -> bool {
        self.program.module().defining_op(value).is_some() && self.residents.tensor(value).is_none()
    }

    fn launch_ready(
        &self,
        symbols: &SymbolValues,
        ready: &mut Ready,
        staging: &mut Staging,
        inputs: &[SessionInput<'_>],
        outputs: Outputs<'_, '_>,
    ) -> Result<Result<Vec<Option<Tensor>>, Refused>, SessionError> {
        let Some(place) = &self.place else { return Ok(Err(without_device())) };
        let Ready { prepared, inputs: of_inputs, outputs: of_outputs } = ready;
        let addresses = match self.addresses(inputs, outputs, of_inputs, of_outputs) {
            Ok(addresses) => addresses,
            Err(error) => return Ok(Err(Refused::device(&error, None))),
        };
        if !prepared.has_addresses(&addresses) {
            // SAFETY: as in `ready`. Nothing is in flight: each call waits at its end.
            if let Err(refused) = unsafe { prepared.update_addresses(&addresses.into_iter().collect()) } {
                return Ok(Err(refused));
            }
        }
        let module = self.program.module();
        let stream = &place.stream;
        let mut staged = staging.stage(&place.device, of_inputs, of_outputs);
        let mut results: Vec<Option<Tensor>> = vec![None; module.outputs.len()];
        let is_returned = |position: &usize| {
            !matches!(outputs.get(*position), Some(Some(_))) && self.is_computed(module.outputs[*position])
        };
        let returned = (0..module.outputs.len()).filter(is_returned);
        let firsts = returned.clone().filter(|position| self.first_outputs[*position] == *position);
        // Waits before the tensors and addresses of this call are given back, even after an error.
        let flight = Landing(stream);
        let on_host = inputs.iter().enumerate().filter_map(|(position, input)| match input {
            SessionInput::Host(tensor) => Some((position, tensor.bytes())),
            SessionInput::Device(_) => None,
        });
        // SAFETY: `addresses` has provided the memory. The tensors are borrowed until `flight` has landed.
        unsafe { staged.upload(stream, of_inputs, on_host) }?;
        // SAFETY: nothing is in flight, and all memory is valid until `flight` has landed.
        unsafe { prepared.launch(stream) }?;
        // SAFETY: as for the uploads.
        unsafe { staged.download(stream, of_outputs, firsts.clone()) }?;
        // The host clears the memory of results, which touches its pages, while the device works.
        for position in returned.clone() {
            results[position] = Some(self.room(module.outputs[position], symbols)?);
        }
        for position in firsts.filter(|position| !staged.holds(of_outputs, *position)) {
            let Some(tensor) = &mut results[position] else { continue };
            // SAFETY: as for the uploads; the result is not touched until `flight` has landed.
            unsafe { staged.download_directly(stream, of_outputs, position, tensor.bytes_mut()) }?;
        }
        flight.land()?;
        for position in returned {
            let first = self.first_outputs[position];
            let (before, from) = results.split_at_mut(position);
            let Some(tensor) = &mut from[0] else { continue };
            if let Some(bytes) = staged.downloaded(of_outputs, first) {
                tensor.bytes_mut().copy_from_slice(bytes);
            } else if let Some(Some(original)) = before.get(first) {
                tensor.bytes_mut().copy_from_slice(original.bytes());
            }
        }
        // SAFETY: nothing is in flight.
        match unsafe { prepared.fault() }? {
            None => {}
            Some(RunError::Device { source: source @ DeviceError::Emulation { .. }, .. }) => {
                return Err(source.into());
            }
            Some(error) => return Err(error.into()),
        }
        self.give_others(symbols, inputs, outputs, &mut results)?;
        Ok(Ok(results))
    }

    /// A tensor for an output.
    fn room(&self, value: Value, symbols: &SymbolValues) -> Result<Tensor, RunError> {
        let (module, segment) = (self.program.module(), self.partition.segments.len());
        let ty = module.ty(value);
        let name = || module.name_of(value).to_owned();
        let dims =
            concrete_dims(ty, symbols).ok_or_else(|| RunError::Partition { segment, value: name() })?;
        let no_memory = |_| RunError::Memory {
            segment,
            value: name(),
            bytes: bytes(&self.program, value, symbols).unwrap_or(u64::MAX),
        };
        let len = Tensor::byte_len(ty.element, &dims, ty.layout).map_err(no_memory)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| RunError::Memory {
            segment,
            value: name(),
            bytes: len as u64,
        })?;
        bytes.resize(len, 0);
        Tensor::new(ty.element, dims, ty.layout, bytes).map_err(no_memory)
    }

    /// Gives the outputs that no call computes: inputs, and values that depend on params only.
    fn give_others(
        &self,
        symbols: &SymbolValues,
        inputs: &[SessionInput<'_>],
        outputs: Outputs<'_, '_>,
        results: &mut [Option<Tensor>],
    ) -> Result<(), SessionError> {
        let Some(place) = &self.place else { return Ok(()) };
        let stream = &place.stream;
        for (position, value) in self.program.module().outputs.iter().enumerate() {
            if self.is_computed(*value) {
                continue;
            }
            let input = self.inputs.iter().position(|input| input == value).map(|at| &inputs[at]);
            let host = self.residents.tensor(*value).or(match input {
                Some(SessionInput::Host(tensor)) => Some(*tensor),
                _ => None,
            });
            match (outputs.get(position), host, input) {
                (Some(Some(to)), Some(tensor), _) => {
                    // SAFETY: the caller lends the memory, which is as large.
                    unsafe { stream.upload_at(to.address(), tensor.bytes()) }?;
                }
                (Some(Some(to)), None, Some(SessionInput::Device(from)))
                    if from.address() != to.address() =>
                {
                    let flight = Landing(stream);
                    // SAFETY: as above. Tensors of one size at different addresses that overlap are the caller's error,
                    // for which the result is undefined but no other memory is touched.
                    unsafe { stream.copy_at(from.address(), to.address(), from.bytes()) }?;
                    flight.land()?;
                }
                (Some(Some(_)), ..) => {}
                (_, Some(tensor), _) => {
                    let mut copy = self.room(*value, symbols)?;
                    copy.bytes_mut().copy_from_slice(tensor.bytes());
                    results[position] = Some(copy);
                }
                (_, None, Some(SessionInput::Device(from))) => {
                    let mut copy = self.room(*value, symbols)?;
                    let flight = Landing(stream);
                    // SAFETY: the caller lends the memory, which is as large; the copy is not touched meanwhile.
                    unsafe { stream.enqueue_download(from.address(), copy.bytes_mut()) }?;
                    flight.land()?;
                    results[position] = Some(copy);
                }
                (_, None, _) => {}
            }
        }
        Ok(())
    }

    /// Runs segment by segment.
    pub(super) fn run_segments(
        &mut self,
        symbols: &SymbolValues,
        inputs: &[SessionInput<'_>],
        outputs: Outputs<'_, '_>,
        refused: Refused,
    ) -> Result<SessionRun, SessionError> {
        let module = self.program.module();
        let (of, spare) = std::mem::take(&mut self.spare);
        let spare = if of == *symbols { spare } else { Vec::new() };
        let machine = self.place.as_ref().map(|place| place.machine());
        let host = self.inputs.iter().zip(inputs).filter_map(|(value, input)| match input {
            SessionInput::Host(tensor) => Some((*value, *tensor)),
            SessionInput::Device(_) => None,
        });
        let values = Values::new(&self.program, symbols, host, &module.outputs, false);
        let options = RunOptions::default();
        let mut runner =
            Runner::new(&self.program, &self.partition, symbols, options, machine.as_ref(), values)
                .with_residents(&self.residents)
                .with_live(Live::of(&self.program, &self.partition, symbols))
                .with_buffers(spare);
        for (value, input) in self.inputs.iter().zip(inputs) {
            if let (SessionInput::Device(tensor), Some(machine)) = (input, &machine) {
                // SAFETY: the caller lends the memory to this call.
                unsafe { runner.take_from_device(*value, tensor.address(), tensor.bytes(), machine) }?;
            }
        }
        let mut segments = Vec::with_capacity(self.partition.segments.len());
        for position in 0..self.partition.segments.len() {
            segments.push(runner.segment(position)?);
        }
        for &output in &module.outputs {
            runner.give_back(output)?;
        }
        let (mut values, caused, spare) = runner.finish_with_buffers()?;
        for (segment, caused) in segments.iter_mut().zip(caused) {
            (segment.moved, segment.synchronized) = (caused.moved, caused.synchronized);
        }
        self.spare = (symbols.clone(), spare);
        let mut results = Vec::with_capacity(module.outputs.len());
        for (position, value) in module.outputs.iter().enumerate() {
            // An output may be returned twice.
            let again = module.outputs[position + 1..].contains(value);
            let tensor = &mut values[value.index()];
            let tensor = match (again, &*tensor) {
                (true, Some(tensor)) => {
                    let mut copy = self.room(*value, symbols)?;
                    copy.bytes_mut().copy_from_slice(tensor.bytes());
                    Some(copy)
                }
                _ => tensor.take(),
            };
            match (outputs.get(position), &self.place, tensor) {
                (Some(Some(to)), Some(place), Some(tensor)) => {
                    // SAFETY: the caller lends the memory, which is as large.
                    unsafe { place.stream.upload_at(to.address(), tensor.bytes()) }?;
                    results.push(None);
                }
                (_, _, tensor) => results.push(tensor),
            }
        }
        Ok(SessionRun { outputs: results, refused: Some(refused), segments })
    }
}

/// Waits for a stream on drop, so that memory lent to its work may be given back.
struct Landing<'a>(&'a Stream);

impl Landing<'_> {
    /// Waits for the stream.
    fn land(self) -> Result<(), DeviceError> {
        let stream = self.0;
        std::mem::forget(self);
        stream.synchronize()
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let _ = self.0.synchronize();
    }
}
