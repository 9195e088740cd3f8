//! The memory of a measurement: copies of all operands and outputs, and workspaces.

use std::ffi::c_void;
use std::{iter, ptr};

use super::{CallData, LEAST_COPIES, Wrong, copies_beyond_l2};
use crate::device::{Buffer, Device, DeviceError, Stream};
use crate::kernel::{Addresses, Metadata, Requirements};
use crate::run::pointer;

/// The alignment of driver allocations, given to each part.
const ALIGNMENT: usize = 256;

/// Bytes after each output that must not change.
pub(super) const GUARD: u64 = 256;

/// The content of gaps between operands, and of workspaces: NaN in every format that has one.
pub(super) const FILLER: u8 = 0xFF;

/// Lead calls run before timing starts; timed calls are measured. They read the same operands and write separate
/// outputs, so that lead calls can run between poisoning the timed outputs and the timed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Lead,
    Timed,
}

/// The offsets of consecutive parts, repeated for each copy.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) offsets: Vec<usize>,
    /// The size of one copy, in bytes.
    pub(super) stride: usize,
}

impl Places {
    pub(super) fn of(lengths: impl IntoIterator<Item = u64>) -> Places {
        let mut stride = 0usize;
        let mut place = |bytes: u64| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let offset = stride;
            stride = stride.saturating_add(bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX));
            offset
        };
        let offsets = lengths.into_iter().map(&mut place).collect();
        Places { offsets, stride }
    }

    /// The size of `count` copies, in bytes. The driver refuses sizes that saturate.
    pub(super) fn times(&self, count: usize) -> usize {
        self.stride.saturating_mul(count)
    }
}

/// Copies of all operands, twice as many of the outputs, and a workspace for each call of both halves.
#[derive(Debug)]
pub(super) struct Sets<'a> {
    pub(super) device: &'a Device,
    pub(super) stream: &'a Stream,
    pub(super) call: CallData<'a>,
    metadata: &'a Metadata,
    pub(super) copies: usize,
    /// Calls per half: a multiple of the copies.
    pub(super) calls: usize,
    workspace: u64,
    places: [Places; 3],
    inputs: Buffer,
    outputs: Buffer,
    workspaces: Buffer,
}

impl<'a> Sets<'a> {
    /// Allocates copies that exceed three times L2, or repeatedly half as many if they do not fit, and uploads the
    /// operands. Sizes must match the kernel's requirements.
    pub(super) fn place(
        device: &'a Device,
        stream: &'a Stream,
        call: CallData<'a>,
        metadata: &'a Metadata,
        requirements: &Requirements,
        least_calls: usize,
    ) -> Result<Sets<'a>, DeviceError> {
        let inputs = Places::of(call.inputs.iter().map(|(_, bytes)| bytes.len() as u64));
        let outputs =
            Places::of(call.expected.iter().map(|bytes| (bytes.len() as u64).saturating_add(GUARD)));
        let workspace = Places::of([requirements.workspace]);
        let mut copies = copies_beyond_l2(call.bytes(), device.gpu().l2_bytes);
        loop {
            let calls = least_calls.next_multiple_of(copies);
            let alloc = || {
                let inputs = device.alloc(inputs.times(copies))?;
                let outputs = device.alloc(outputs.times(2 * copies))?;
                Ok((inputs, outputs, device.alloc(workspace.times(2 * calls))?))
            };
            match alloc() {
                Err(DeviceError::OutOfMemory { .. }) if copies > LEAST_COPIES => {
                    copies = (copies / 2).max(LEAST_COPIES);
                }
                Err(error) => return Err(error),
                Ok(buffers) => {
                    let places = [inputs, outputs, workspace];
                    let (inputs, outputs, workspaces) = buffers;
                    let workspace = requirements.workspace;
                    let sets = Sets {
                        device,
                        stream,
                        call,
                        metadata,
                        copies,
                        calls,
                        workspace,
                        places,
                        inputs,
                        outputs,
                        workspaces,
                    };
                    sets.upload()?;
                    return Ok(sets);
                }
            }
        }
    }

    fn upload(&self) -> Result<(), DeviceError> {
        let [places, ..] = &self.places;
        for buffer in [&self.inputs, &self.workspaces] {
            self.stream.fill(buffer, 0, buffer.len(), FILLER)?;
        }
        let first = self.call.inputs.iter().zip(&places.offsets);
        let first: Vec<_> = first.map(|((_, bytes), offset)| (&self.inputs, *offset, &bytes[..])).collect();
        self.stream.upload_all(&first)?;
        for copy in 1..self.copies {
            self.stream.copy(&self.inputs, 0, &self.inputs, copy * places.stride, places.stride)?;
        }
        Ok(())
    }

    /// The bytes of operands and outputs over all copies.
    pub(super) fn rotation_bytes(&self) -> u64 {
        self.call.bytes() * self.copies as u64
    }

    /// The addresses for a call on a copy, in the kernel's role order.
    pub(super) fn addresses(&self, half: Half, copy: usize) -> Addresses {
        let [inputs, outputs, _] = &self.places;
        let input = |role: &String| match self.call.inputs.iter().position(|(of, _)| of == role) {
            Some(place) => address(&self.inputs, copy * inputs.stride + inputs.offsets[place]).cast_const(),
            None => ptr::null(),
        };
        let operands: Vec<_> = self.metadata.operands.iter().map(|role| input(&role.role)).collect();
        let scalars: Vec<_> = self.metadata.scalars.iter().map(input).collect();
        let begin = self.begin(half, copy);
        let outputs: Vec<_> =
            outputs.offsets.iter().map(|offset| address(&self.outputs, begin + offset)).collect();
        // Cannot fail: too many arguments were refused before. Default addresses would be refused by the kernel.
        Addresses::new(&operands, &scalars, &outputs).unwrap_or_default()
    }

    /// The workspace of one call, not shared with others: address (null if empty) and size in bytes.
    pub(super) fn workspace(&self, half: Half, call: usize) -> (*mut c_void, usize) {
        let [_, _, places] = &self.places;
        let number = if half == Half::Lead { call } else { self.calls + call };
        match usize::try_from(self.workspace) {
            Ok(0) | Err(_) => (ptr::null_mut(), 0),
            Ok(bytes) => (address(&self.workspaces, number * places.stride), bytes),
        }
    }

    /// The offset of a copy's outputs.
    fn begin(&self, half: Half, copy: usize) -> usize {
        let number = if half == Half::Lead { copy } else { self.copies + copy };
        number * self.places[1].stride
    }

    /// Fills all outputs of a half, guard areas included, with a byte.
    pub(super) fn poison(&self, half: Half, byte: u8) -> Result<(), DeviceError> {
        let len = self.places[1].times(self.copies);
        self.stream.fill(&self.outputs, self.begin(half, 0), len, byte)
    }

    /// Compares the outputs of a half's first copies with the expected bytes, and their guard areas with the poison.
    pub(super) fn compare(
        &self,
        half: Half,
        copies: usize,
        poison: u8,
        comparison: &mut Comparison,
    ) -> Result<(), DeviceError> {
        let [_, places, _] = &self.places;
        let mut found = vec![0; places.stride];
        for copy in 0..copies {
            self.stream.download(&self.outputs, self.begin(half, copy), &mut found)?;
            for (output, expected) in self.call.expected.iter().enumerate() {
                let end = places.offsets.get(output + 1).copied().unwrap_or(places.stride);
                let found = &found[places.offsets[output]..end];
                comparison.add(output, copy, found, expected, poison);
            }
        }
        Ok(())
    }
}

fn address(buffer: &Buffer, offset: usize) -> *mut c_void {
    pointer(buffer.address() + offset as u64)
}

/// The result of comparisons so far.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Output bytes compared.
    pub(super) compared: u64,
    /// Wrong bytes.
    wrong: u64,
    first: Option<Wrong>,
}

impl Comparison {
    /// Compares one output. Bytes after it must still be poison.
    fn add(&mut self, output: usize, copy: usize, found: &[u8], expected: &[u8], poison: u8) {
        self.compared += expected.len() as u64;
        let (written, behind) = found.split_at(expected.len());
        if written == expected && behind.iter().all(|byte| *byte == poison) {
            return;
        }
        let bytes = expected.len() as u64;
        let all = expected.iter().copied().chain(iter::repeat(poison));
        for (byte, (found, expected)) in found.iter().copied().zip(all).enumerate() {
            if found == expected {
                continue;
            }
            let byte = byte as u64;
            let unwritten = found == poison;
            let first =
                Wrong { output, copy, byte, bytes, found, expected, unwritten, wrong: 0, compared: 0 };
            self.first.get_or_insert(first);
            self.wrong += 1;
        }
    }

    /// The first wrong byte, if any, with the totals.
    pub(super) fn wrong(&self) -> Option<Wrong> {
        let first = self.first.clone()?;
        Some(Wrong { wrong: self.wrong, compared: self.compared, ..first })
    }
}
