//! Products, as extents and element types.

use std::fmt;

use fourfold_ir::ElementType;

/// A product D `[L, M, N]` = A `[L, M, K]` · B `[L, N, K]`ᵀ of row-major matrices, without elements between rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulProblem {
    /// L, the number of matrices.
    pub l: i64,
    /// M, the rows of one matrix of D.
    pub m: i64,
    /// N, the columns of D.
    pub n: i64,
    /// K, the summed extent.
    pub k: i64,
    /// The element types of A, B and D.
    pub elements: [ElementType; 3],
    /// True if each matrix of A has its own B. If false, all L·M rows are multiplied by one B `[N, K]`.
    pub b_batched: bool,
}

impl fmt::Display for MatmulProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatmulProblem { l, m, n, k, elements: [a, b, d], b_batched } = self;
        let shared = if *b_batched { "" } else { " with one B" };
        write!(f, "mma a={a} b={b} d={d} of L={l} M={m} N={n} K={k}{shared}")
    }
}
