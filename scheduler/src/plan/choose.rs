//! The plan of a choice by an extent.

use fourfold_ir::{Dim, Op, OpKind, Program, SymbolValues, Value};

use super::ViewPlan;

/// The plan of a `choose`. It takes no time: with the extents of a call, it is a view of one operand. Segments that compute
/// other operands only do not run.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoosePlan {
    /// The op.
    pub op: Op,
    /// The operands.
    pub operands: Vec<Value>,
    /// The result.
    pub result: Value,
    /// The extent that chooses.
    pub extent: Dim,
    /// The largest extent of each operand but the last, ascending.
    pub ends: Vec<u32>,
}

impl ChoosePlan {
    /// The plan of an op, if it is a `choose`.
    pub fn of(program: &Program, op: Op) -> Option<ChoosePlan> {
        let operation = &program.module().ops[op];
        let OpKind::Choose { axis, ends } = &operation.kind else { return None };
        let result = operation.results[0];
        let extent = program.module().ty(result).shape.get(*axis as usize)?.clone();
        Some(ChoosePlan { op, operands: operation.operands.clone(), result, extent, ends: ends.clone() })
    }

    /// The operand that these extents choose; `None` if the extent is unknown.
    pub fn chosen(&self, symbols: &SymbolValues) -> Option<Value> {
        let extent = self.extent.evaluate(symbols)?;
        let position = self.ends.partition_point(|end| u64::from(*end) < extent);
        self.operands.get(position).copied()
    }

    /// The view that these extents choose; `None` if the extent is unknown.
    pub fn view(&self, symbols: &SymbolValues) -> Option<ViewPlan> {
        Some(ViewPlan { op: self.op, operand: self.chosen(symbols)?, result: self.result })
    }
}
