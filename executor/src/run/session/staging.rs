//! Copies of a call between host tensors and device memory, through page-locked memory.
//!
//! The host copies a tensor of up to [`STAGED_LIMIT`] bytes to page-locked memory, and the device copies it from there
//! in stream order; for outputs, the other way round. Adjacent tensors share one copy. From pageable memory, the driver
//! copies each tensor through buffers of its own, and a download returns only when the device is done. Larger tensors
//! are left to the driver. It overlaps its two copies of a tensor, which then outweighs the fixed cost.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;

use crate::device::{Buffer, Device, DeviceError, Pinned, Stream};
use crate::run::PART_ALIGNMENT;

/// The size of the largest tensor that is staged, in bytes.
const STAGED_LIMIT: usize = 1 << 20;

/// The largest total size of the staged inputs, and of the staged outputs, of a call, in bytes.
const TOTAL_LIMIT: usize = 16 << 20;

/// The size of a copy that begins while the host prepares the next one, in bytes.
const PIECE: usize = 256 << 10;

/// The device memory for the inputs, or the outputs, of a call whose tensors are on the host.
///
/// Small tensors share one allocation, at their offsets in page-locked memory.
#[derive(Debug)]
pub(super) struct Slots {
    sizes: Vec<usize>,
    /// The offset of each small tensor.
    offsets: Vec<Option<usize>>,
    /// The size of all small tensors, in bytes.
    bytes: usize,
    small: Option<Buffer>,
    /// The memory of large tensors, by position.
    large: HashMap<usize, Buffer>,
}

impl Slots {
    /// Lays out tensors of these sizes in bytes, without allocating. A size of 0 needs no memory.
    pub(super) fn new(sizes: Vec<usize>) -> Slots {
        let mut bytes = 0usize;
        let offset = |size: &usize| {
            let offset = bytes.next_multiple_of(PART_ALIGNMENT as usize);
            let is_small = (1..=STAGED_LIMIT).contains(size) && offset + size <= TOTAL_LIMIT;
            is_small.then(|| {
                bytes = offset + size;
                offset
            })
        };
        let offsets = sizes.iter().map(offset).collect();
        Slots { sizes, offsets, bytes, small: None, large: HashMap::new() }
    }

    /// The device address of a tensor. Its memory is allocated when it is first asked for.
    pub(super) fn address(&mut self, device: &Device, position: usize) -> Result<u64, DeviceError> {
        match self.offsets[position] {
            Some(_) if self.small.is_none() => self.small = Some(device.alloc(self.bytes)?),
            None if self.sizes[position] > 0 && !self.large.contains_key(&position) => {
                self.large.insert(position, device.alloc(self.sizes[position])?);
            }
            _ => {}
        }
        Ok(self.known(position))
    }

    /// The device address of a tensor whose address was asked for; 0 without memory.
    fn known(&self, position: usize) -> u64 {
        match self.offsets[position] {
            Some(offset) => self.base() + offset as u64,
            None => self.large.get(&position).map_or(0, Buffer::address),
        }
    }

    /// The device address of the small tensors.
    fn base(&self) -> u64 {
        self.small.as_ref().map_or(0, Buffer::address)
    }
}

/// The page-locked memory of a session. It grows to what the largest call needs, and is kept.
#[derive(Debug, Default)]
pub(super) struct Staging {
    memory: Option<Pinned>,
    /// True if the driver refused to allocate. It is not asked again, since an allocation is slow.
    refused: bool,
}

impl Staging {
    /// Provides page-locked memory for a call. No copy may be in flight. If the driver refuses, tensors are copied from
    /// and to pageable memory.
    pub(super) fn stage(&mut self, device: &Device, inputs: &Slots, outputs: &Slots) -> Staged<'_> {
        let outputs_at = inputs.bytes.next_multiple_of(PART_ALIGNMENT as usize);
        let bytes = outputs_at + outputs.bytes;
        if bytes > self.memory.as_ref().map_or(0, Pinned::len) && !self.refused {
            match device.alloc_pinned(bytes.next_power_of_two()) {
                Ok(memory) => self.memory = Some(memory),
                Err(_) => self.refused = true,
            }
        }
        Staged { memory: self.memory.as_mut().filter(|memory| memory.len() >= bytes), outputs_at }
    }
}

/// The page-locked memory of one call.
pub(super) struct Staged<'a> {
    memory: Option<&'a mut Pinned>,
    /// The offset of outputs.
    outputs_at: usize,
}

impl Staged<'_> {
    /// Enqueues the uploads of tensors by position.
    ///
    /// # Safety
    /// The slots have the memory of these positions, and the tensors fit. Both stay valid, and nothing is uploaded
    /// again, until the stream is synchronized.
    pub(super) unsafe fn upload<'t>(
        &mut self,
        stream: &Stream,
        slots: &Slots,
        tensors: impl Iterator<Item = (usize, &'t [u8])>,
    ) -> Result<(), DeviceError> {
        let Some(memory) = self.memory.as_deref_mut() else {
            for (position, bytes) in tensors {
                // SAFETY: the caller vouches for the memory.
                unsafe { stream.enqueue_upload(slots.known(position), bytes) }?;
            }
            return Ok(());
        };
        let send = |memory: &Pinned, part: Range<usize>| {
            let to = slots.base() + part.start as u64;
            // SAFETY: the small tensors have memory up to the end of this part. The host does not change the part
            // before the stream is synchronized.
            unsafe { stream.enqueue_upload(to, memory.part(part)) }
        };
        // Written, and not yet enqueued.
        let mut part = 0..0;
        for (position, bytes) in tensors {
            let Some(offset) = slots.offsets[position] else {
                // SAFETY: as above.
                unsafe { stream.enqueue_upload(slots.known(position), bytes) }?;
                continue;
            };
            if !follows(&part, offset) {
                send(memory, mem::replace(&mut part, offset..offset))?;
            }
            for (index, piece) in bytes.chunks(PIECE).enumerate() {
                let start = offset + index * PIECE;
                part.end = start + piece.len();
                memory.part_mut(start..part.end).copy_from_slice(piece);
                if part.len() >= PIECE {
                    let end = part.end;
                    send(memory, mem::replace(&mut part, end..end))?;
                }
            }
        }
        send(memory, part)
    }

    /// True if a tensor of these slots is copied through page-locked memory.
    pub(super) fn holds(&self, slots: &Slots, position: usize) -> bool {
        self.memory.is_some() && slots.offsets[position].is_some()
    }

    /// Enqueues the downloads of outputs by position, except for those that [`holds`](Self::holds) excludes.
    ///
    /// # Safety
    /// The slots have the memory of these positions, and it stays valid until the stream is synchronized.
    pub(super) unsafe fn download(
        &mut self,
        stream: &Stream,
        slots: &Slots,
        positions: impl Iterator<Item = usize>,
    ) -> Result<(), DeviceError> {
        let Some(memory) = self.memory.as_deref_mut() else { return Ok(()) };
        let outputs_at = self.outputs_at;
        let mut receive = |part: Range<usize>| {
            let from = slots.base() + part.start as u64;
            let part = outputs_at + part.start..outputs_at + part.end;
            // SAFETY: the small tensors have memory up to the end of this part. The host does not touch the part before
            // the stream is synchronized.
            unsafe { stream.enqueue_download(from, memory.part_mut(part)) }
        };
        let mut part = 0..0;
        for position in positions {
            let Some(offset) = slots.offsets[position] else { continue };
            if !follows(&part, offset) {
                receive(mem::replace(&mut part, offset..offset))?;
            }
            part.end = offset + slots.sizes[position];
        }
        receive(part)
    }

    /// Enqueues the download of an output that [`holds`](Self::holds) excludes.
    ///
    /// # Safety
    /// As for [`Staged::download`]; and nothing touches the bytes before the stream is synchronized.
    pub(super) unsafe fn download_directly(
        &self,
        stream: &Stream,
        slots: &Slots,
        position: usize,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for the memory.
        unsafe { stream.enqueue_download(slots.known(position), bytes) }
    }

    /// An output that [`Staged::download`] has copied. The stream must have been synchronized.
    pub(super) fn downloaded(&self, slots: &Slots, position: usize) -> Option<&[u8]> {
        let (memory, offset) = (self.memory.as_deref()?, slots.offsets[position]?);
        let start = self.outputs_at + offset;
        Some(memory.part(start..start + slots.sizes[position]))
    }
}

/// True if a tensor at an offset follows a part without another tensor between them.
fn follows(part: &Range<usize>, offset: usize) -> bool {
    !part.is_empty() && part.end.next_multiple_of(PART_ALIGNMENT as usize) == offset
}
