//! The plan of a plain `mma`, which a library computes.

use fourfold_ir::{Dim, ElementType, Op, Value};

use super::Constraint;

/// The plan of a plain `mma` on the device: a call of the vendor's library. D `[L, M, N]` is A `[L, M, K]` times the
/// transpose of B `[L, N, K]`, with f32 accumulation.
///
/// If `b_batched` is false, one B serves all matrices, and the call multiplies one matrix of L·M rows.
#[derive(Clone, Debug, PartialEq)]
pub struct MmaPlan {
    /// The op.
    pub op: Op,
    /// A, `[.., M, K]`.
    pub a: Value,
    /// B, `[.., N, K]`.
    pub b: Value,
    /// D, `[.., M, N]`.
    pub d: Value,
    /// The element types of A, B and D.
    pub elements: [ElementType; 3],
    /// L, the number of matrices.
    pub batch: Dim,
    /// M, the rows of one matrix of D.
    pub m: Dim,
    /// N, the columns of D.
    pub n: Dim,
    /// K, the summed extent.
    pub k: Dim,
    /// True if each matrix of A has its own B.
    pub b_batched: bool,
    /// The conditions that a call must meet before the library is called.
    pub constraints: Vec<Constraint>,
}

impl MmaPlan {
    /// A description of the call, such as `mma a=bf16 b=bf16 d=f32 batched`.
    pub fn signature(&self) -> String {
        let [a, b, d] = self.elements;
        format!("mma a={a} b={b} d={d}{}", if self.b_batched { " batched" } else { "" })
    }
}
