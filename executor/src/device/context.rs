//! A device that is in use: its primary context, which other libraries in the process share.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUcontext, CUdevice};

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

/// A primary context that is retained.
#[derive(Debug)]
pub(super) struct Context {
    raw: CUcontext,
    device: CUdevice,
}

// SAFETY: a context may be used from every thread on which it is current, and `enter` makes it so.
unsafe impl Send for Context {}
// SAFETY: the driver does its own locking.
unsafe impl Sync for Context {}

impl Context {
    fn retain(device: CUdevice) -> Result<Context, DeviceError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the device is one of the driver's, and the handle is live.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        Ok(Context { raw, device })
    }

    /// Whether they are the same: a device that is opened twice has its one primary context.
    pub(super) fn is(&self, other: &Context) -> bool {
        self.raw == other.raw
    }

    /// Makes the context current until the result is dropped. What was current before is so again afterwards: a host
    /// may have several devices and expect its own.
    pub(super) fn enter(&self) -> Result<Entered, DeviceError> {
        let mut current = ptr::null_mut();
        // SAFETY: the driver is initialized, and the handle is live.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: the context is retained.
            check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.raw) })?;
        }
        Ok(Entered { pushed, _of_this_thread: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once; buffers, streams, events and graphs hold it, so there are none any more.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A context is current on this thread until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Entered {
    pushed: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = ptr::null_mut();
            // SAFETY: this thread pushed a context, and what was pushed after it has been popped: guards are dropped
            // in reverse order.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
