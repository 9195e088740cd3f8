//! The extents of a problem that are known when its kernel is chosen.

/// The extents of a problem; `None` for one that is unknown when the kernel is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// L, the matrices per launch; 1 for a flattened batch.
    pub l: Option<u64>,
    /// M, the rows of A and D.
    pub m: Option<u64>,
    /// N, the rows of B and the columns of D.
    pub n: Option<u64>,
    /// K, the summed extent.
    pub k: Option<u64>,
}
