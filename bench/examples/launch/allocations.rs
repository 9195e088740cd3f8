//! Counts allocations of this process: those of Rust through its allocator, and all others, including the
//! driver's and the CUDA runtime's, by interposing the functions of the C library.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static RUST: AtomicU64 = AtomicU64::new(0);
static ALL: AtomicU64 = AtomicU64::new(0);

/// The number of allocations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocations {
    /// Allocations of Rust.
    pub rust: u64,
    /// All allocations, Rust included.
    pub all: u64,
}

impl Allocations {
    /// Returns the counts since the process began.
    pub fn now() -> Allocations {
        Allocations { rust: RUST.load(Relaxed), all: ALL.load(Relaxed) }
    }

    /// Adds the allocations since `before`.
    pub fn add_since(&mut self, before: Allocations) {
        let now = Allocations::now();
        self.rust += now.rust - before.rust;
        self.all += now.all - before.all;
    }
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is forwarded to the system's allocator; counting neither allocates nor fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        RUST.fetch_add(1, Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which the system's allocator shares.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; the system's allocator allocated the memory.
        unsafe { System.dealloc(memory, layout) }
    }
}

// The dynamic linker prefers an executable's functions to those of libraries, so every `malloc` of the process
// calls the functions below. These are glibc's internal names; `free` is not replaced.
unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

// SAFETY: here and below: the function meets the C library's specification of its name.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    ALL.fetch_add(1, Relaxed);
    // SAFETY: here and below: the caller upholds the contract of the forwarded function.
    unsafe { __libc_malloc(size) }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    ALL.fetch_add(1, Relaxed);
    // SAFETY: as above.
    unsafe { __libc_calloc(count, size) }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    ALL.fetch_add(1, Relaxed);
    // SAFETY: as above.
    unsafe { __libc_realloc(memory, size) }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    ALL.fetch_add(1, Relaxed);
    // SAFETY: as above.
    unsafe { __libc_memalign(alignment, size) }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    ALL.fetch_add(1, Relaxed);
    // SAFETY: as above.
    unsafe { __libc_memalign(alignment, size) }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    const INVALID: c_int = 22;
    const NO_MEMORY: c_int = 12;
    ALL.fetch_add(1, Relaxed);
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return INVALID;
    }
    // SAFETY: as above.
    let memory = unsafe { __libc_memalign(alignment, size) };
    if memory.is_null() {
        return NO_MEMORY;
    }
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { result.write(memory) };
    0
}
