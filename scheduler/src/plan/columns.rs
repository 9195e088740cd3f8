//! The plan of a reduction along other axes than the last, or over a whole tensor.

use fourfold_ir::{Dim, ElementType, Op, ReduceKind, Value};

use super::Constraint;

/// The plan of a column kernel: one `reduce`, along any axes.
///
/// The operand is `[O, A, B, C, I]` in memory, and A and C are reduced. The result is `[O, B, I]`. Adjacent axes that
/// are all reduced, or all kept, are one axis. Axes of one index belong to their neighbors. With one reduced axis,
/// that is C, and A and B are 1.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnPlan {
    /// The op.
    pub op: Op,
    /// The reduction, without names and extents.
    pub program: ColumnProgram,
    /// The value that the kernel reads.
    pub operand: Value,
    /// The value that it writes.
    pub result: Value,
    /// O, A, B, C and I, in the order of [`ColumnPlan::EXTENTS`].
    pub extents: [Dim; 5],
    /// The conditions that a call must meet before the kernel is launched.
    pub constraints: Vec<Constraint>,
}

/// A reduction, independent of names and extents. Equal reductions have equal kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColumnProgram {
    /// The reduction.
    pub kind: ReduceKind,
    /// The element type of operand and result.
    pub element: ElementType,
}

impl ColumnPlan {
    /// The names of the extents in the C interface.
    pub const EXTENTS: [&str; 5] = ["O", "A", "B", "C", "I"];
}

impl ColumnProgram {
    /// A description of the reduction, such as `column sum bf16`, which the generated library also reports.
    pub fn signature(&self) -> String {
        format!("column {} {}", self.kind, self.element)
    }
}
