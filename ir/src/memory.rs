//! Checks for available memory before it is allocated, because Rust's collections abort when allocation fails.

use std::hint::black_box;

/// An allocation that is larger than the available memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes exceed the available memory")]
pub struct NoMemory {
    /// Bytes needed; `usize::MAX` if the size exceeds the address space.
    pub bytes: usize,
}

/// Checks that the allocator can provide `bytes` now, then frees them again. Another thread may still take the
/// memory. Call it before work whose own allocations cannot report failure.
///
/// # Errors
/// If the allocator refuses.
pub fn check_memory(bytes: usize) -> Result<(), NoMemory> {
    let mut room: Vec<u8> = Vec::new();
    // Page-table and heap overhead of several arrays instead of one.
    const SLACK: usize = 256 << 10;
    let asked = if bytes < SLACK { bytes } else { bytes.saturating_add(SLACK) };
    room.try_reserve_exact(asked).map_err(|_| NoMemory { bytes })?;
    // Keeps the compiler from removing the unused allocation, and with it the check.
    black_box(&room);
    Ok(())
}

/// Copies `bytes`.
///
/// # Errors
/// If the copy exceeds the available memory.
pub fn copy_bytes(bytes: &[u8]) -> Result<Vec<u8>, NoMemory> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| NoMemory { bytes: bytes.len() })?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_beyond_the_address_space_is_refused_and_a_small_one_is_not() {
        assert_eq!(check_memory(0), Ok(()));
        assert_eq!(check_memory(1 << 20), Ok(()));
        for bytes in [usize::MAX, usize::MAX / 2, 1 << 50] {
            assert_eq!(check_memory(bytes), Err(NoMemory { bytes }));
        }
    }

    #[test]
    fn a_copy_has_the_same_bytes() {
        assert_eq!(copy_bytes(&[1, 2, 3]), Ok(vec![1, 2, 3]));
        assert_eq!(copy_bytes(&[]), Ok(vec![]));
    }
}
