//! The values of a run: their location, on host or device, and their lifetime.

use std::sync::Arc;

use fourfold_ir::bind::concrete_dims;
use fourfold_ir::{Entity, Program, SymbolValues, Tensor, Value};

use super::record::describe;
use super::residents::Residents;
use super::{Machine, RunError};
use crate::device::{Buffer, DeviceError};

/// The tensors of a run. Inputs are borrowed; other values are owned until their last use. A value may be in both
/// places.
pub(super) struct Values<'a> {
    program: &'a Program,
    symbols: &'a SymbolValues,
    inputs: Vec<Option<&'a Tensor>>,
    host: Vec<Option<Tensor>>,
    /// A value and its views share one buffer.
    device: Vec<Option<Arc<Buffer>>>,
    /// The segment that computed the value on the device.
    made_by: Vec<Option<usize>>,
    /// Remaining uses.
    uses: Vec<usize>,
    kept: Vec<bool>,
    /// Buffers without a value. Work in flight may still use them, so only later work on the same stream may reuse
    /// them.
    retired: Vec<Buffer>,
    /// The host waited for the device since this was last taken.
    waited: bool,
}

impl<'a> Values<'a> {
    pub(super) fn new(
        program: &'a Program,
        symbols: &'a SymbolValues,
        given: impl Iterator<Item = (Value, &'a Tensor)>,
        outputs: &[Value],
        keep_all: bool,
    ) -> Values<'a> {
        let module = program.module();
        let count = module.values.len();
        let mut inputs = vec![None; count];
        for (value, tensor) in given {
            inputs[value.index()] = Some(tensor);
        }
        let mut kept = vec![keep_all; count];
        for value in outputs {
            kept[value.index()] = true;
        }
        let uses = module.values.keys().map(|value| program.facts().users(value).len()).collect();
        Values {
            program,
            symbols,
            inputs,
            host: vec![None; count],
            device: (0..count).map(|_| None).collect(),
            made_by: vec![None; count],
            uses,
            kept,
            retired: Vec::new(),
            waited: false,
        }
    }

    /// Adds the values that stay the same in every call.
    pub(super) fn reside(&mut self, residents: &'a Residents) {
        for (value, tensor) in residents.on_host() {
            self.inputs[value.index()] = Some(tensor);
        }
        for (value, buffer) in residents.on_device() {
            self.device[value.index()] = Some(Arc::clone(buffer));
        }
    }

    /// Uses these buffers before allocating others.
    pub(super) fn reuse(&mut self, buffers: Vec<Buffer>) {
        self.retired.extend(buffers);
    }

    /// The value on the host, if present.
    pub(super) fn on_host(&self, value: Value) -> Option<&Tensor> {
        self.inputs[value.index()].or(self.host[value.index()].as_ref())
    }

    /// The value on the device, if present.
    pub(super) fn on_device(&self, value: Value) -> Option<&Buffer> {
        self.device[value.index()].as_deref()
    }

    /// The segment that computed the value on the device.
    pub(super) fn made_by(&self, value: Value) -> Option<usize> {
        self.made_by[value.index()]
    }

    pub(super) fn set_on_host(&mut self, value: Value, tensor: Tensor) {
        self.host[value.index()] = Some(tensor);
    }

    /// Stores a result of a segment's kernel.
    pub(super) fn set_on_device(&mut self, value: Value, buffer: Buffer, segment: usize) {
        self.made_by[value.index()] = Some(segment);
        self.device[value.index()] = Some(Arc::new(buffer));
    }

    /// Makes `result` a view of `operand` by sharing its buffer. Returns `false`, and does nothing, if the operand is
    /// not on the device.
    pub(super) fn share_on_device(&mut self, operand: Value, result: Value, segment: usize) -> bool {
        let Some(buffer) = self.device[operand.index()].clone() else { return false };
        self.made_by[result.index()] = Some(segment);
        self.device[result.index()] = Some(buffer);
        true
    }

    /// Returns and clears whether the host waited for the device.
    pub(super) fn take_waited(&mut self) -> bool {
        std::mem::take(&mut self.waited)
    }

    /// Allocates device memory for the values that are only on the host, once for each.
    pub(super) fn room_for(
        &mut self,
        values: impl Iterator<Item = Value>,
        machine: &Machine<'_>,
    ) -> Result<Vec<(Value, Buffer)>, DeviceError> {
        let mut room: Vec<(Value, Buffer)> = Vec::new();
        for value in values {
            if self.on_device(value).is_some() || room.iter().any(|(other, _)| *other == value) {
                continue;
            }
            let Some(bytes) = self.on_host(value).map(|tensor| tensor.bytes().len()) else { continue };
            match self.take(bytes, machine) {
                Ok(buffer) => room.push((value, buffer)),
                Err(error) => {
                    room.into_iter().for_each(|(_, buffer)| self.retire(buffer));
                    return Err(error);
                }
            }
        }
        Ok(room)
    }

    /// Copies values to the device memory allocated for them, and waits once. Returns the bytes copied.
    pub(super) fn upload(
        &mut self,
        room: Vec<(Value, Buffer)>,
        machine: &Machine<'_>,
    ) -> Result<u64, DeviceError> {
        let copies: Vec<(&Buffer, usize, &[u8])> = room
            .iter()
            .filter_map(|(value, buffer)| Some((buffer, 0, self.on_host(*value)?.bytes())))
            .collect();
        let bytes = copies.iter().map(|(_, _, bytes)| bytes.len() as u64).sum();
        machine.stream().upload_all(&copies)?;
        self.waited |= bytes > 0;
        for (value, buffer) in room {
            self.device[value.index()] = Some(Arc::new(buffer));
        }
        Ok(bytes)
    }

    /// Copies a value to the host, if it is only on the device. Returns the bytes copied.
    pub(super) fn download(&mut self, value: Value, machine: &Machine<'_>) -> Result<u64, RunError> {
        if self.on_host(value).is_some() {
            return Ok(0);
        }
        let Some(buffer) = &self.device[value.index()] else { return Ok(0) };
        let segment = self.made_by[value.index()].unwrap_or_default();
        let name = || self.program.module().name_of(value).to_owned();
        let ty = self.program.module().ty(value);
        let sized = concrete_dims(ty, self.symbols)
            .and_then(|dims| Some((Tensor::byte_len(ty.element, &dims, ty.layout).ok()?, dims)));
        // Cannot fail: the kernel was called with these extents.
        let Some((len, dims)) = sized else { return Err(RunError::Partition { segment, value: name() }) };
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(len).is_err() {
            return Err(RunError::Memory { segment, value: name(), bytes: len as u64 });
        }
        bytes.resize(len, 0);
        let device = |source| RunError::Device {
            segment,
            kernel: machine.kernel_name(segment),
            source,
            // The caller adds the ops.
            place: Box::default(),
        };
        machine.stream().download(buffer, 0, &mut bytes).map_err(device)?;
        self.waited |= len > 0;
        let tensor = Tensor::new(ty.element, dims, ty.layout, bytes)
            .map_err(|_| RunError::Partition { segment, value: name() })?;
        self.host[value.index()] = Some(tensor);
        Ok(len as u64)
    }

    /// Device memory of at least `bytes` bytes, reusing a retired buffer if one fits.
    pub(super) fn take(&mut self, bytes: usize, machine: &Machine<'_>) -> Result<Buffer, DeviceError> {
        let fits = |buffer: &Buffer| bytes <= buffer.len() && buffer.len() / 2 <= bytes;
        let best = (0..self.retired.len())
            .filter(|index| fits(&self.retired[*index]))
            .min_by_key(|index| self.retired[*index].len());
        if let Some(index) = best {
            return Ok(self.retired.swap_remove(index));
        }
        match machine.device().alloc(bytes) {
            Err(DeviceError::OutOfMemory { .. }) if !self.retired.is_empty() => {
                // Freeing waits for the device.
                self.waited = true;
                self.retired.clear();
                machine.device().alloc(bytes)
            }
            result => result,
        }
    }

    /// Makes memory available to later work on the same stream.
    pub(super) fn retire(&mut self, buffer: Buffer) {
        if !buffer.is_empty() {
            self.retired.push(buffer);
        }
    }

    /// Records the uses of an op's operands, and drops values without remaining uses, unused results included.
    pub(super) fn drop_unused(&mut self, operands: &[Value], results: &[Value]) {
        for value in operands {
            self.uses[value.index()] = self.uses[value.index()].saturating_sub(1);
        }
        for value in operands.iter().chain(results) {
            let index = value.index();
            if self.uses[index] > 0 {
                continue;
            }
            if !self.kept[index] {
                self.host[index] = None;
            }
            // Kept values are needed on the host; once there, their device copy is not.
            if (!self.kept[index] || self.on_host(*value).is_some())
                && let Some(buffer) = self.device[index].take()
                // Otherwise a view still uses the buffer, or the value that it is a view of.
                && let Some(buffer) = Arc::into_inner(buffer)
            {
                self.retire(buffer);
            }
        }
    }

    /// Ensures that a program output is on the host; copies an input that the program returns. `false` if the value
    /// exists nowhere.
    pub(super) fn keep_output(&mut self, segment: usize, output: Value) -> Result<bool, RunError> {
        let index = output.index();
        if self.host[index].is_some() {
            return Ok(true);
        }
        let Some(input) = self.inputs[index] else { return Ok(false) };
        let no_memory = |_| RunError::Memory {
            segment,
            value: self.program.module().name_of(output).to_owned(),
            bytes: input.bytes().len() as u64,
        };
        self.host[index] = Some(input.try_clone().map_err(no_memory)?);
        Ok(true)
    }

    /// The values on the host, by value index, and the buffers that nothing else holds.
    pub(super) fn into_parts(self) -> (Vec<Option<Tensor>>, Vec<Buffer>) {
        let mut buffers = self.retired;
        buffers.extend(self.device.into_iter().flatten().filter_map(Arc::into_inner));
        (self.host, buffers)
    }

    /// Checks that a kernel's operand has its value's type.
    pub(super) fn check_operand(&self, segment: usize, value: Value) -> Result<(), RunError> {
        match self.on_host(value) {
            Some(tensor) => check_type(self.program, self.symbols, segment, value, tensor),
            None => Ok(()),
        }
    }
}

/// Checks that a tensor has a value's type under these symbol values.
pub(super) fn check_type(
    program: &Program,
    symbols: &SymbolValues,
    segment: usize,
    value: Value,
    tensor: &Tensor,
) -> Result<(), RunError> {
    let module = program.module();
    let ty = module.ty(value);
    let dims = concrete_dims(ty, symbols);
    let fits = (ty.element, ty.layout) == (tensor.element(), tensor.layout())
        && dims.as_deref() == Some(tensor.dims());
    if fits {
        return Ok(());
    }
    let expected = match &dims {
        Some(dims) => describe(ty.element, dims, ty.layout),
        None => module.display_type(ty).to_string(),
    };
    let found = describe(tensor.element(), tensor.dims(), tensor.layout());
    Err(RunError::Input { segment, value: module.name_of(value).to_owned(), expected, found })
}
