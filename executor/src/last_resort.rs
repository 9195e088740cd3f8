//! Orderly exit when a small allocation fails.
//!
//! Tensor-sized allocations are fallible and become typed errors. Any other failed allocation, in the standard
//! library or a dependency, ends a Rust process with SIGABRT. A program that installs [`Allocator`] and calls
//! [`report_memory_exhaustion`] instead exits with its own code and report. This is for command lines only: a library
//! must not change its host's allocator or signal handlers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::stdio::report_descriptor;

/// The system's allocator, which also records failed allocations per thread, to distinguish the resulting abort from
/// others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

thread_local! {
    /// This thread's remaining allocations until a failed one counts as handled; 0 without a recent failure.
    static REFUSED: Cell<u8> = const { Cell::new(0) };
}

impl Allocator {
    /// Records or ages a failure. Code that handles a failure allocates again, so the record expires soon. The
    /// standard library allocates a few times for its message before it aborts.
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

// SAFETY: every method delegates to the system's allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        Self::noted(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        Self::noted(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        Self::noted(unsafe { System.realloc(pointer, layout, size) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The report and exit code for memory exhaustion.
struct Ending {
    stdout: String,
    stderr: String,
    code: u8,
}

static ENDING: OnceLock<Ending> = OnceLock::new();

/// Set while a thread writes the report, so that other threads do not write another one.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

const SIGABRT: c_int = 6;

unsafe extern "C" {
    fn signal(number: c_int, handler: usize) -> usize;
    fn write(descriptor: c_int, bytes: *const c_void, count: usize) -> isize;
    fn _exit(code: c_int) -> !;
    fn pause() -> c_int;
}

/// Makes a failed allocation end this process with `code`. Writes `stdout` to standard output, even under
/// [`stdout_on_stderr`](crate::stdout_on_stderr), and `stderr` to standard error. Requires [`Allocator`] as the
/// global allocator. Later calls have no effect. Other causes of SIGABRT, and other panics, are unaffected.
///
/// A new thread also needs memory that no allocator provides: its signal stack. The standard library panics without it,
/// before the thread runs anything. That panic ends the process likewise.
pub fn report_memory_exhaustion(stdout: String, stderr: String, code: u8) {
    if ENDING.set(Ending { stdout, stderr, code }).is_err() {
        return;
    }
    let handler: extern "C" fn(c_int) = on_abort;
    // SAFETY: the handler calls only async-signal-safe functions.
    unsafe { signal(SIGABRT, handler as usize) };
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| match ENDING.get() {
        Some(ending) if info.payload_as_str().is_some_and(lacks_signal_stack) => end(ending),
        _ => usual(info),
    }));
}

/// Returns true for the standard library's message in a thread without memory for a signal stack.
fn lacks_signal_stack(message: &str) -> bool {
    ["failed to allocate an alternative stack", "failed to set up alternative stack guard page"]
        .iter()
        .any(|start| message.starts_with(start))
}

/// Runs on the aborting thread, before the system ends the process; returning lets it proceed.
extern "C" fn on_abort(_: c_int) {
    let Some(ending) = ENDING.get() else { return };
    if REFUSED.get() != 0 {
        end(ending);
    }
}

/// Writes the report and ends the process. Async-signal-safe.
fn end(ending: &Ending) -> ! {
    while IS_ENDING.swap(true, Ordering::Relaxed) {
        // SAFETY: `pause` is async-signal-safe. The other thread ends the process.
        unsafe { pause() };
    }
    let texts = [(2, &ending.stderr), (report_descriptor(), &ending.stdout)];
    for (descriptor, text) in texts {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            // SAFETY: pointer and length are those of a slice.
            let written = unsafe { write(descriptor, left.as_ptr().cast(), left.len()) };
            let Some(rest) = usize::try_from(written).ok().and_then(|written| left.get(written..)) else {
                break;
            };
            left = rest;
        }
    }
    // SAFETY: it ends the process without running any of its code.
    unsafe { _exit(c_int::from(ending.code)) }
}
