//! The segments and ops of a call: those whose results it needs, with the operands that its extents choose.

use std::ops::Range;

use fourfold_ir::{Entity, Op, OpKind, Program, SymbolValues, Value};
use fourfold_scheduler::{ChoosePlan, Partition, Plan, ViewPlan};

use super::{NOT_CHOSEN, RunReason};

/// The segments and ops that a call runs.
#[derive(Debug)]
pub(super) struct Live {
    /// By segment: true if it runs.
    segments: Vec<bool>,
    /// By op: true if it runs on the fallback.
    ops: Vec<bool>,
}

impl Live {
    /// All of it.
    pub(super) fn all(program: &Program, partition: &Partition) -> Live {
        Live { segments: vec![true; partition.segments.len()], ops: vec![true; program.module().ops.len()] }
    }

    /// Returns what the outputs need at these extents. A program without a `choose` runs all of its ops.
    pub(super) fn of(program: &Program, partition: &Partition, symbols: &SymbolValues) -> Live {
        let module = program.module();
        if !module.ops.values().any(|operation| matches!(operation.kind, OpKind::Choose { .. })) {
            return Live::all(program, partition);
        }
        let mut live =
            Live { segments: vec![false; partition.segments.len()], ops: vec![false; module.ops.len()] };
        let mut needed = vec![false; module.values.len()];
        let need = |values: &[Value], needed: &mut Vec<bool>| {
            values.iter().for_each(|value| needed[value.index()] = true);
        };
        need(&module.outputs, &mut needed);
        for (position, segment) in partition.segments.iter().enumerate().rev() {
            let is_needed =
                |values: &[Value], needed: &[bool]| values.iter().any(|value| needed[value.index()]);
            // A kernel computes all of its ops, so it needs all of its operands.
            if let Some(plan) = segment.plan()
                && !matches!(plan, Plan::Choose(_))
            {
                if is_needed(&segment.outputs, &needed) {
                    live.segments[position] = true;
                    segment.ops.iter().for_each(|op| live.ops[op.index()] = true);
                    need(&segment.inputs, &mut needed);
                }
                continue;
            }
            for op in segment.ops.iter().rev() {
                let operation = &module.ops[*op];
                if is_needed(&operation.results, &needed) {
                    live.segments[position] = true;
                    live.ops[op.index()] = true;
                    match chosen(program, *op, symbols) {
                        Some(value) => need(&[value], &mut needed),
                        None => need(&operation.operands, &mut needed),
                    }
                }
            }
        }
        live
    }

    /// True if a segment runs.
    pub(super) fn has_segment(&self, position: usize) -> bool {
        self.segments.get(position).copied().unwrap_or(true)
    }

    /// The views among these segments that run.
    pub(super) fn views(
        &self,
        partition: &Partition,
        segments: Range<usize>,
        symbols: &SymbolValues,
    ) -> Vec<ViewPlan> {
        let plans = segments.filter(|position| self.has_segment(*position)).filter_map(|position| {
            let segment = partition.segments.get(position)?;
            view_of(segment.plan()?, symbols)
        });
        plans.collect()
    }

    /// True if an op runs when its segment runs on the fallback.
    pub(super) fn has_op(&self, op: Op) -> bool {
        self.ops.get(op.index()).copied().unwrap_or(true)
    }
}

/// The operand that an op chooses with these extents; `None` if it is no `choose`.
pub(super) fn chosen(program: &Program, op: Op, symbols: &SymbolValues) -> Option<Value> {
    ChoosePlan::of(program, op)?.chosen(symbols)
}

/// The view that a plan is with these extents.
pub(super) fn view_of(plan: &Plan, symbols: &SymbolValues) -> Option<ViewPlan> {
    match plan {
        Plan::View(view) => Some(view.clone()),
        Plan::Choose(choice) => choice.view(symbols),
        _ => None,
    }
}

/// The reason that a segment does not run.
pub(super) fn not_chosen() -> RunReason {
    let message = "the extents of this call choose other values than its results".to_owned();
    RunReason { code: NOT_CHOSEN, message }
}
