//! A device's primary context, shared with other libraries in the process.

use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUdevice};

use super::DeviceError;
use super::driver::check;

/// A retained primary context.
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
    pub(super) fn retain(device: CUdevice) -> Result<Context, DeviceError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the device is one of the driver's, and the handle is live.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        Ok(Context { raw, device })
    }

    /// Returns true for the same context. A device opened twice has one primary context.
    pub(super) fn is(&self, other: &Context) -> bool {
        self.raw == other.raw
    }

    /// Makes the context current until the result is dropped, then restores the previous one: a host may use several
    /// devices and expect its own.
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
        // SAFETY: it was retained once. Buffers, streams, events and graphs hold it, so none is left.
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
            // SAFETY: this thread pushed the context, and everything pushed after it has been popped, since guards
            // drop in reverse order.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
