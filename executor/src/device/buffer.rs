//! Device memory.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::DeviceError;
use super::context::Context;
use super::driver::{check, error};

/// Device memory, freed on drop. Freeing waits for the device, so work that uses the memory may still be in flight.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    len: usize,
    context: Arc<Context>,
}

impl Buffer {
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Buffer, DeviceError> {
        let mut address = 0;
        // The driver refuses to allocate nothing.
        if len > 0 {
            let _current = context.enter()?;
            // SAFETY: the context is current, and the address is live.
            match unsafe { sys::cuMemAlloc_v2(&mut address, len) } {
                CUresult::CUDA_SUCCESS => {}
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Err(DeviceError::OutOfMemory { bytes: len as u64 });
                }
                failed => return Err(error("cuMemAlloc", failed)),
            }
        }
        Ok(Buffer { address, len, context: Arc::clone(context) })
    }

    /// The length, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address; 0 if empty.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The address of a part, for work in this context. Work of another context is refused: freeing would not wait
    /// for it.
    pub(super) fn part(&self, offset: usize, bytes: usize, of: &Context) -> Result<u64, DeviceError> {
        if !self.context.is(of) {
            return Err(DeviceError::OtherDevice { what: "buffer" });
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= self.len => Ok(self.address + offset as u64),
            _ => Err(DeviceError::Range { offset, bytes, len: self.len }),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // An error belongs to earlier work, or the context is gone together with its memory.
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: the memory is ours, and no valid copy of its address remains. Unlike freeing to a pool, this call
        // first waits for work in flight.
        let _ = check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) });
    }
}
