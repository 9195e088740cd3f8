//! The primary context of a device, which other libraries in the process share.

use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUdevice};

use super::DeviceError;
use super::driver::check;

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
    pub(super) fn retain(device: CUdevice) -> Result<Context, DeviceError> {
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
