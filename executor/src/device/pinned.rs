//! Page-locked host memory.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::DeviceError;
use super::context::Context;
use super::driver::{check, error};

/// Page-locked host memory, freed on drop. The device copies from and to it directly, so that copies of any size are
/// asynchronous. It must not be dropped or accessed while a copy that uses it is in flight.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    len: usize,
    context: Arc<Context>,
}

// SAFETY: this is plain host memory with one owner, and is not tied to a thread.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates zeros. `len` must not be 0.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Pinned, DeviceError> {
        let _current = context.enter()?;
        let mut start = ptr::null_mut();
        // SAFETY: the context is current, and the pointer is live.
        match unsafe { sys::cuMemHostAlloc(&mut start, len, 0) } {
            CUresult::CUDA_SUCCESS => {}
            failed => return Err(error("cuMemHostAlloc", failed)),
        }
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| error("cuMemHostAlloc", CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        // SAFETY: the driver has allocated as many bytes.
        unsafe { start.write_bytes(0, len) };
        Ok(Pinned { start, len, context: Arc::clone(context) })
    }

    /// The length, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A part of the bytes, which no copy in flight writes.
    pub(crate) fn part(&self, part: Range<usize>) -> &[u8] {
        assert!(part.start <= part.end && part.end <= self.len, "the part lies within the memory");
        // SAFETY: the part is initialized, within the memory, and borrowed. Copies read at most.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(part.start), part.len()) }
    }

    /// A part of the bytes, mutable, which no copy in flight uses.
    pub(crate) fn part_mut(&mut self, part: Range<usize>) -> &mut [u8] {
        assert!(part.start <= part.end && part.end <= self.len, "the part lies within the memory");
        // SAFETY: as above, and it is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().add(part.start), part.len()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: the memory is ours, and no copy is in flight.
        let _ = check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) });
    }
}
