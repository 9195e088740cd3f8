//! Allocation that can fail.

/// Allocates `count` zero bytes; `None` if memory is insufficient.
pub(super) fn zeros(count: u64) -> Option<Vec<u8>> {
    let count = usize::try_from(count).ok()?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(count).ok()?;
    bytes.resize(count, 0);
    Some(bytes)
}
