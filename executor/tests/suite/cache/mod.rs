//! The cache of kernels: what is kept and found again, what is refused, what is removed and when.

mod disk;
mod evict;
pub(crate) mod fixture;
mod keep;
mod refuse;
mod sweep;
mod tiers;
