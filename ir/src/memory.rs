//! Checks that memory is there before it is taken: Rust's collections end the process when they get none.

use std::hint::black_box;

/// There is not enough memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes are more than there is memory")]
pub struct NoMemory {
    /// Bytes that were needed; `usize::MAX` when more than the address space has.
    pub bytes: usize,
}

/// Fails when the allocator cannot provide `bytes` now. Nothing stays allocated, so another thread may still take the
/// memory: the check is for work whose temporary arrays cannot fail one by one.
///
/// # Errors
/// When the allocator refuses.
pub fn check_memory(bytes: usize) -> Result<(), NoMemory> {
    let mut room: Vec<u8> = Vec::new();
    // Page-table and heap overhead of splitting the room into several arrays.
    const SLACK: usize = 256 << 10;
    let asked = if bytes < SLACK { bytes } else { bytes.saturating_add(SLACK) };
    room.try_reserve_exact(asked).map_err(|_| NoMemory { bytes })?;
    // Otherwise the compiler may drop the allocation, which nobody uses, and with it the answer.
    black_box(&room);
    Ok(())
}

/// A copy of `bytes`.
///
/// # Errors
/// When there is no memory for it.
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
