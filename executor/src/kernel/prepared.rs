//! A call that is ready to launch.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::{Addresses, Kernel, Status, answer};

/// The launch parameters of one call, built once. Dropping it frees them.
///
/// It belongs to one device and has at most one launch in flight. It keeps its kernel's library loaded, and does not
/// know when the device is done: see [`Prepared::launch`].
#[derive(Debug)]
pub struct Prepared {
    handle: NonNull<c_void>,
    kernel: Kernel,
}

// SAFETY: the handle is plain host memory behind a pointer that nobody else has, and belongs to no thread.
unsafe impl Send for Prepared {}

impl Prepared {
    /// # Safety
    /// `handle` must come from `kernel`'s `fourfold_prepare`, and belong to nobody else.
    pub(super) unsafe fn new(handle: NonNull<c_void>, kernel: Kernel) -> Prepared {
        Prepared { handle, kernel }
    }

    /// The kernel that it launches.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Replaces every address.
    ///
    /// # Errors
    /// When the kernel refuses one of them; the old ones then stay.
    ///
    /// # Safety
    /// As for [`Kernel::prepare`]. No launch of this call may be in flight.
    pub unsafe fn update_addresses(&mut self, addresses: &Addresses) -> Result<(), Status> {
        let symbols = self.kernel.symbols();
        answer(|message, size| {
            // SAFETY: the handle is live until it is dropped; the buffers are ours; the caller vouches for the addresses.
            unsafe { (symbols.update_pointers)(self.handle.as_ptr(), addresses, message, size) }
        })
    }

    /// Puts the kernel on a stream (a `CUstream`, null for the default one). It does not wait for the device.
    ///
    /// # Errors
    /// When the launch itself fails.
    ///
    /// # Safety
    /// The device and context of [`Kernel::prepare`] must be current and the stream must belong to them. Until the
    /// device has finished, every pointer and the workspace must stay valid, the call must not be launched again, and
    /// neither it nor the last handle of its kernel may be dropped: unloading a library removes its code from the device.
    pub unsafe fn launch(&mut self, stream: *mut c_void) -> Result<(), Status> {
        // SAFETY: the handle is live until it is dropped; the caller vouches for the stream.
        let code = unsafe { (self.kernel.symbols().launch)(self.handle.as_ptr(), stream) };
        if code == 0 { Ok(()) } else { Err(Status { code, message: String::new() }) }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and is not used again; `launch` obliges the caller to have no launch in flight.
        unsafe { (self.kernel.symbols().destroy)(self.handle.as_ptr()) }
    }
}
