//! The extents of a problem, as far as they are known when its kernel is chosen.

/// Extents of a problem as far as they are known when its kernel is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Matrices that one launch computes; 1 where a batch is rows of one matrix.
    pub l: Option<u64>,
    /// M: rows of A and D.
    pub m: Option<u64>,
    /// N: rows of B, columns of D.
    pub n: Option<u64>,
    /// K: what is summed over.
    pub k: Option<u64>,
}
