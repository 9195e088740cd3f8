//! A device that is in use.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::context::{Context, Entered};
use super::driver::check;
use super::gpu::{describe, handle};
use super::{Buffer, DeviceError, Gpu, Stream};

/// A device that is in use. Clones are the same device; the primary context is kept until the last of them, and of
/// the buffers, streams, events and graphs that came from them, is dropped.
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
    /// Takes a device into use.
    ///
    /// # Errors
    /// Those of [`super::discover`], [`DeviceError::NoSuchDevice`], or the driver's own.
    pub fn open(ordinal: usize) -> Result<Device, DeviceError> {
        let gpu = describe(ordinal)?;
        let context = Arc::new(Context::retain(handle(ordinal)?)?);
        let stream = Stream::create(&context)?;
        Ok(Device { open: Arc::new(Open { gpu, stream, context }) })
    }

    /// What it is.
    pub fn gpu(&self) -> &Gpu {
        &self.open.gpu
    }

    /// The stream that the device comes with. It does not wait for the default stream.
    pub fn stream(&self) -> &Stream {
        &self.open.stream
    }

    /// Another stream.
    ///
    /// # Errors
    /// The driver's own.
    pub fn new_stream(&self) -> Result<Stream, DeviceError> {
        Stream::create(&self.open.context)
    }

    /// A host's stream: a `CUstream`, null for the default one. It is not destroyed when the result is dropped.
    ///
    /// # Safety
    /// It must be a stream of this device's primary context, and live for as long as the result is used.
    pub unsafe fn borrow_stream(&self, stream: *mut c_void) -> Stream {
        // SAFETY: the caller vouches for it.
        unsafe { Stream::borrow(&self.open.context, stream) }
    }

    /// New memory of so many bytes, whose content is undefined. Its address is a multiple of 256.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or the driver's own.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        Buffer::new(&self.open.context, bytes)
    }

    /// The bytes of memory that nobody has, as the driver counts them: other processes take memory too.
    ///
    /// # Errors
    /// The driver's own.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and both sizes are live.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free as u64)
    }

    /// Waits for everything that was put on this device, by whomever.
    ///
    /// # Errors
    /// The driver's own, that of earlier work included.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let _current = self.enter()?;
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Whether a stream belongs to this device.
    pub(crate) fn owns(&self, stream: &Stream) -> bool {
        self.open.context.is(stream.context())
    }

    /// Makes the context current until the result is dropped.
    pub(crate) fn enter(&self) -> Result<Entered, DeviceError> {
        self.open.context.enter()
    }
}
