//! Prepared calls.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::{Addresses, Kernel, Status, answer};

/// The launch parameters of one call, freed on drop.
///
/// A prepared call belongs to one device. Its launches share a workspace, so the device must run them one after the
/// other. Their parameters are host memory that a launch copies, so they may change while it is in flight. The call keeps
/// its kernel's library loaded, but does not know when the device is done: see [`Prepared::launch`].
#[derive(Debug)]
pub struct Prepared {
    handle: NonNull<c_void>,
    kernel: Kernel,
}

// SAFETY: the handle is plain host memory with a unique pointer, and is not tied to a thread.
unsafe impl Send for Prepared {}

impl Prepared {
    /// # Safety
    /// `handle` must come from `kernel`'s `fourfold_prepare`, and have no other owner.
    pub(super) unsafe fn new(handle: NonNull<c_void>, kernel: Kernel) -> Prepared {
        Prepared { handle, kernel }
    }

    /// The kernel of this call.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Replaces all addresses.
    ///
    /// # Errors
    /// When the kernel refuses an address; the old ones then stay.
    ///
    /// # Safety
    /// As for [`Kernel::prepare`]. Launches in flight keep the addresses that they were launched with.
    pub unsafe fn update_addresses(&mut self, addresses: &Addresses) -> Result<(), Status> {
        let symbols = self.kernel.symbols();
        answer(|message, size| {
            // SAFETY: the handle is live until drop; the buffers are ours; the caller vouches for the addresses.
            unsafe { (symbols.update_pointers)(self.handle.as_ptr(), addresses, message, size) }
        })
    }

    /// Enqueues the kernel on a stream (a `CUstream`, null for the default one). Does not wait for the device.
    ///
    /// # Errors
    /// When the launch itself fails.
    ///
    /// # Safety
    /// The device and context of [`Kernel::prepare`] must be current, and the stream must belong to them. Until the
    /// device is done, every pointer and the workspace must stay valid. Work that uses the workspace, such as another
    /// launch of this call, must be ordered before or after this launch, as on one stream. Neither the call nor the last handle of its kernel may be dropped before, since unloading a library removes its code
    /// from the device.
    pub unsafe fn launch(&mut self, stream: *mut c_void) -> Result<(), Status> {
        // SAFETY: the handle is live until drop; the caller vouches for the stream.
        let code = unsafe { (self.kernel.symbols().launch)(self.handle.as_ptr(), stream) };
        if code == 0 { Ok(()) } else { Err(Status { code, message: String::new() }) }
    }

    /// Returns the first fault of this call's launches since the last query, and forgets it. Results of launches with a
    /// fault are wrong.
    ///
    /// A fault is an index outside its axis ([`Status::INDEX`]), or what emulated instructions do not allow. The
    /// emulation keeps one state for all calls of its kernel.
    ///
    /// # Safety
    /// The context of the launches must be current, and none may be running. The workspace must be valid.
    pub unsafe fn fault(&mut self) -> Option<Status> {
        let function = self.kernel.symbols().fault?;
        // SAFETY: the handle is live until drop; the buffer is live and not kept; the caller vouches for the context.
        answer(|message, size| unsafe { function(self.handle.as_ptr(), message, size) }).err()
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again. The contract of `launch` ensures that no launch is in
        // flight.
        unsafe { (self.kernel.symbols().destroy)(self.handle.as_ptr()) }
    }
}
