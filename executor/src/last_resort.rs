//! Ends a program in good order when a small allocation fails.
//!
//! Allocations of a tensor's size are fallible and become typed errors. Any other failed allocation, in the standard
//! library or a dependency, ends a Rust process by SIGABRT. A program that installs [`Allocator`] and calls
//! [`report_memory_exhaustion`] ends with an exit code and a report of its own instead. It is for command lines: a
//! library must change neither a host's allocator nor its signal handlers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::stdio::report_descriptor;

/// The system's allocator. It notes which thread was refused memory, so that an abort can be told from others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

thread_local! {
    /// Allocations of this thread until a failed one counts as coped with; 0 where none failed lately.
    static REFUSED: Cell<u8> = const { Cell::new(0) };
}

impl Allocator {
    /// Whoever copes with a failure allocates again, so the note does not outlive it by much. The standard library allocates
    /// a few times for its own message before it aborts.
    fn noted(pointer: *mut u8) -> *mut u8 {
        const COPED_AFTER: u8 = 64;
        if pointer.is_null() {
            REFUSED.set(COPED_AFTER);
        } else if REFUSED.get() > 0 {
            REFUSED.set(REFUSED.get() - 1);
        }
        pointer
    }
}

// SAFETY: every method is the system allocator's.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        Self::noted(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        Self::noted(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        Self::noted(unsafe { System.realloc(pointer, layout, size) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The texts and the exit code of a process whose memory runs out.
struct Ending {
    stdout: String,
    stderr: String,
    code: u8,
}

static ENDING: OnceLock<Ending> = OnceLock::new();

/// A thread is writing the report. Others that run out of memory meanwhile must not write another.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

const SIGABRT: c_int = 6;

unsafe extern "C" {
    fn signal(number: c_int, handler: usize) -> usize;
    fn write(descriptor: c_int, bytes: *const c_void, count: usize) -> isize;
    fn _exit(code: c_int) -> !;
    fn pause() -> c_int;
}

/// Has a failed allocation end this process with `code`, after writing `stdout` to the standard output, also while
/// [`stdout_on_stderr`](crate::stdout_on_stderr) is in force, and `stderr` to the standard error. It needs [`Allocator`]
/// as the global allocator. Only the first call counts. Other causes of SIGABRT keep their effect.
pub fn report_memory_exhaustion(stdout: String, stderr: String, code: u8) {
    if ENDING.set(Ending { stdout, stderr, code }).is_ok() {
        let handler: extern "C" fn(c_int) = on_abort;
        // SAFETY: the handler calls nothing that a signal handler must not call.
        unsafe { signal(SIGABRT, handler as usize) };
    }
}

/// Runs on the thread that aborts, before the system ends the process. A return lets it.
extern "C" fn on_abort(_: c_int) {
    let Some(ending) = ENDING.get() else { return };
    if REFUSED.get() == 0 {
        return;
    }
    while IS_ENDING.swap(true, Ordering::Relaxed) {
        // SAFETY: it may be called by a signal handler. The other thread ends the process.
        unsafe { pause() };
    }
    let texts = [(2, &ending.stderr), (report_descriptor(), &ending.stdout)];
    for (descriptor, text) in texts {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            // SAFETY: the bytes are those of a slice.
            let written = unsafe { write(descriptor, left.as_ptr().cast(), left.len()) };
            let Some(rest) = usize::try_from(written).ok().and_then(|written| left.get(written..)) else {
                break;
            };
            left = rest;
        }
    }
    // SAFETY: it ends the process without running anything of it.
    unsafe { _exit(c_int::from(ending.code)) }
}
