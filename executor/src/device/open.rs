//! Open devices.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::context::{Context, Entered};
use super::driver::check;
use super::gpu::{describe, handle};
use super::{Buffer, DeviceError, Gpu, Pinned, Stream};

/// An open device. Clones share it. The primary context is retained until the last clone, and the last buffer,
/// stream, event and graph made from it, are dropped.
#[derive(Clone, Debug)]
pub struct Device {
    open: Arc<Open>,
}

#[derive(Debug)]
struct Open {
    gpu: Gpu,
    stream: Stream,
    context: Arc<Context>,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// The errors of [`super::discover`], [`DeviceError::NoSuchDevice`], or the driver's error.
    pub fn open(ordinal: usize) -> Result<Device, DeviceError> {
        let gpu = describe(ordinal)?;
        let context = Arc::new(Context::retain(handle(ordinal)?)?);
        let stream = Stream::create(&context)?;
        Ok(Device { open: Arc::new(Open { gpu, stream, context }) })
    }

    /// The device's properties.
    pub fn gpu(&self) -> &Gpu {
        &self.open.gpu
    }

    /// The device's own stream. It does not synchronize with the default stream.
    pub fn stream(&self) -> &Stream {
        &self.open.stream
    }

    /// Creates another stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new_stream(&self) -> Result<Stream, DeviceError> {
        Stream::create(&self.open.context)
    }

    /// Borrows a host's stream: a `CUstream`, null for the default stream. Dropping the result does not destroy it.
    ///
    /// # Safety
    /// It must be a stream of this device's primary context, and live for as long as the result is used.
    pub unsafe fn borrow_stream(&self, stream: *mut c_void) -> Stream {
        // SAFETY: the caller vouches for it.
        unsafe { Stream::borrow(&self.open.context, stream) }
    }

    /// Allocates uninitialized memory. The address is a multiple of 256.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or the driver's error.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        Buffer::new(&self.open.context, bytes)
    }

    /// Allocates page-locked host memory.
    pub(crate) fn alloc_pinned(&self, bytes: usize) -> Result<Pinned, DeviceError> {
        Pinned::new(&self.open.context, bytes)
    }

    /// The free memory in bytes, as the driver reports it. Other processes allocate memory too.
    ///
    /// # Errors
    /// The driver's error.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and both sizes are live.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free as u64)
    }

    /// Waits for all work on this device, including other users' work in this context.
    ///
    /// # Errors
    /// The driver's error, which may stem from earlier work.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let _current = self.enter()?;
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Returns true if a stream belongs to this device.
    pub(crate) fn owns(&self, stream: &Stream) -> bool {
        self.open.context.is(stream.context())
    }

    /// Checks that a buffer belongs to this device and has at least this size.
    pub(crate) fn check_buffer(&self, buffer: &Buffer, bytes: usize) -> Result<(), DeviceError> {
        buffer.part(0, bytes, &self.open.context).map(drop)
    }

    /// Makes the context current until the result is dropped.
    pub(crate) fn enter(&self) -> Result<Entered, DeviceError> {
        self.open.context.enter()
    }
}
