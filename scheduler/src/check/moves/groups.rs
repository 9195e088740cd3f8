//! Compares a plan around padded groups with its op: `padded_ends` or `group_scales`. Both read ends, so the places of
//! bytes follow from data, and the numbers of the plan must be those of the op's types.

use fourfold_ir::{Dim, OpKind, Program};

use crate::plan::{MovePlan, MoveProgram};

/// Returns whether a plan is of a program that [`check`] compares.
pub(super) fn is_grouped(plan: &MovePlan) -> bool {
    matches!(plan.program, MoveProgram::PaddedEnds | MoveProgram::GroupScales)
}

/// Compares the operands and numbers of a plan with those of its op.
pub(super) fn check(program: &Program, plan: &MovePlan) -> Result<(), String> {
    let module = program.module();
    let operation = &module.ops[plan.op];
    let dim = |operand: usize, axis: usize| {
        let shape = &module.ty(*operation.operands.get(operand)?).shape;
        shape.get(axis).cloned()
    };
    let expected: Option<Vec<Dim>> = match (&operation.kind, plan.program) {
        (OpKind::PaddedEnds { multiple }, MoveProgram::PaddedEnds) => {
            [dim(0, 0), Some(Dim::fixed(u64::from(*multiple)))].into_iter().collect()
        }
        (OpKind::GroupScales, MoveProgram::GroupScales) => {
            let padded = module.ty(plan.result).shape.first().cloned();
            [dim(0, 0), dim(0, 1), dim(1, 0), padded].into_iter().collect()
        }
        _ => return Err("the program of the plan is not that of the op".to_owned()),
    };
    if plan.operands != operation.operands {
        return Err("the operands of the plan are not those of the op".to_owned());
    }
    match expected {
        Some(expected) if plan.extents == expected => Ok(()),
        _ => Err("the numbers of the plan are not those of the types of the op".to_owned()),
    }
}
