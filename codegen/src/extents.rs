//! The extents of a problem, as far as they are known when its kernel is chosen.

/// Extents of a problem as far as they are known when its kernel is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Matrices that one launch computes; 1 where a batch is rows of one matrix.
    pub l: Option<u64>,
    /// Rows of A and D.
    pub m: Option<u64>,
    /// Rows of B, columns of D.
    pub n: Option<u64>,
    /// What is summed over.
    pub k: Option<u64>,
}
