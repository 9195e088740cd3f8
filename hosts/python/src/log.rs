//! The log of Python backends, which must be silent before Python ends.
//!
//! Kernels that are built in the background log from threads of their own. A call into an interpreter that is being
//! finalized ends the thread in a way that ends the process. So Python closes the log before.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fourfold_capi::abi::{LogFn, Str};

static IS_CLOSED: AtomicBool = AtomicBool::new(false);
/// The calls of log functions that have not returned.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// The longest wait for log functions that have not returned.
const PATIENCE: Duration = Duration::from_secs(10);

/// Passes a line to the log function at `user`, unless the log is closed.
///
/// # Safety
/// `user` is a function of type [`LogFn`] that takes any pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourfold_python_log(user: *mut c_void, level: i32, line: Str) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    if !IS_CLOSED.load(Ordering::SeqCst) && !user.is_null() {
        // SAFETY: the caller vouches for the function.
        unsafe {
            let function = std::mem::transmute::<*mut c_void, LogFn>(user);
            function(std::ptr::null_mut(), level, line);
        }
    }
    CALLS.fetch_sub(1, Ordering::SeqCst);
}

/// Ends logging, and waits for log functions that are running. The caller must not hold Python's lock.
#[unsafe(no_mangle)]
pub extern "C" fn fourfold_python_close_log() {
    IS_CLOSED.store(true, Ordering::SeqCst);
    let started = Instant::now();
    while CALLS.load(Ordering::SeqCst) > 0 && started.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
}
