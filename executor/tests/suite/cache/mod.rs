//! The kernel cache: storing and finding kernels, refusing damaged ones, and removing old ones.

mod disk;
mod evict;
pub(crate) mod fixture;
mod keep;
mod refuse;
mod sweep;
mod tiers;
