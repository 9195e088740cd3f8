//! Fallible allocation: the standard buffers would abort the process.

use std::alloc::{Layout, alloc_zeroed};
use std::hint::black_box;

pub(crate) use fourfold_ir::memory::NoMemory;

use crate::parallel::Threads;

/// A type for which zero bytes are a valid value.
///
/// # Safety
/// All bytes zero must be a valid value of the type.
pub(crate) unsafe trait Zeroed: Copy {}

// SAFETY: any bytes are a u8.
unsafe impl Zeroed for u8 {}
// SAFETY: any bytes are an f32.
unsafe impl Zeroed for f32 {}
// SAFETY: any bytes are an f64.
unsafe impl Zeroed for f64 {}

/// Allocates `len` elements of zero bytes. Like `vec![0; n]`, lets the system clear large buffers on first touch.
pub(crate) fn zeroed<T: Zeroed>(len: usize) -> Result<Vec<T>, NoMemory> {
    let layout = Layout::array::<T>(len).map_err(|_| NoMemory { bytes: usize::MAX })?;
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout is not of size zero.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() {
        return Err(NoMemory { bytes: layout.size() });
    }
    // SAFETY: the memory comes from the global allocator with the layout of `len` elements of `T`, and zero bytes
    // are valid elements.
    Ok(unsafe { Vec::from_raw_parts(pointer.cast::<T>(), len, len) })
}

/// Grows a buffer to at least `len` elements.
pub(crate) fn grow<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) -> Result<(), NoMemory> {
    if let Some(more @ 1..) = len.checked_sub(buffer.len()) {
        let no_memory = |_| NoMemory { bytes: len.saturating_mul(size_of::<T>()) };
        buffer.try_reserve_exact(more).map_err(no_memory)?;
        buffer.resize(len, value);
    }
    Ok(())
}

/// Checks that `gemm` can allocate: `packed` bytes, and one buffer per thread of the size of an L2 cache. `gemm`
/// itself cannot report a failure.
pub(crate) fn check_gemm(packed: usize) -> Result<(), NoMemory> {
    const EACH_THREAD: usize = 2 << 20;
    let threads = Threads::here().map_or(1, Threads::count);
    let mut buffers: Vec<Vec<u8>> = Vec::new();
    for bytes in std::iter::repeat_n(EACH_THREAD, threads).chain([packed]) {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(bytes).map_err(|_| NoMemory { bytes })?;
        buffers.push(buffer);
    }
    // Prevents the compiler from removing unused allocations.
    black_box(&buffers);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_and_of_the_length_asked_for() {
        assert_eq!(zeroed::<f32>(0), Ok(Vec::new()));
        assert_eq!(zeroed::<f64>(3).unwrap(), [0.0; 3]);
        let mut buffer = vec![1u8];
        grow(&mut buffer, 3, 7).unwrap();
        grow(&mut buffer, 2, 9).unwrap();
        assert_eq!(buffer, [1, 7, 7]);
    }

    #[test]
    fn more_than_there_can_be_is_an_error() {
        assert_eq!(zeroed::<f32>(usize::MAX), Err(NoMemory { bytes: usize::MAX }));
        assert_eq!(zeroed::<f32>(1 << 60), Err(NoMemory { bytes: 1 << 62 }));
        assert_eq!(grow(&mut vec![0u64], 1 << 62, 0), Err(NoMemory { bytes: usize::MAX }));
    }
}
