//! Compares the plan of an op that is no fixed copy with the op: `padded_ends`, `group_scales`, `group_rows`,
//! `scatter_add` or `top_k`. The extents of the plan must be those of the op's types.

use fourfold_ir::{Dim, MoveCapability, OpKind, Program, dim_product};

use crate::check::known;
use crate::plan::{Constraint, MovePlan, MoveProgram};

/// Returns whether a plan is of a program that [`check`] compares.
pub(super) fn follows_from_data(plan: &MovePlan) -> bool {
    matches!(
        plan.program,
        MoveProgram::PaddedEnds
            | MoveProgram::GroupScales
            | MoveProgram::GroupRows
            | MoveProgram::ScatterAdd { .. }
            | MoveProgram::TopK { .. }
    )
}

/// Compares the operands and numbers of a plan with those of its op.
pub(super) fn check(program: &Program, plan: &MovePlan) -> Result<(), String> {
    let module = program.module();
    let operation = &module.ops[plan.op];
    let dim = |operand: usize, axis: usize| {
        let shape = &module.ty(*operation.operands.get(operand)?).shape;
        shape.get(axis).cloned()
    };
    let elements = [operation.operands[0], plan.results[0]].map(|value| module.ty(value).element);
    let first_of_result = module.ty(plan.results[0]).shape.first().cloned();
    let last_of_operand = module.ty(operation.operands[0]).shape.last().cloned();
    let expected: Option<Vec<Dim>> = match (&operation.kind, plan.program) {
        (OpKind::PaddedEnds { multiple }, MoveProgram::PaddedEnds) => {
            [dim(0, 0), Some(Dim::fixed(u64::from(*multiple)))].into_iter().collect()
        }
        (OpKind::GroupScales, MoveProgram::GroupScales) => {
            let padded = first_of_result;
            [dim(0, 0), dim(0, 1), dim(1, 0), padded].into_iter().collect()
        }
        (OpKind::GroupRows { groups }, MoveProgram::GroupRows) => {
            let count = dim_product(&module.ty(operation.operands[0]).shape);
            [count, last_of_operand, Some(Dim::fixed(u64::from(*groups)))].into_iter().collect()
        }
        (OpKind::ScatterAdd, MoveProgram::ScatterAdd { from, to }) if [from, to] == elements => {
            let row = module.ty(operation.operands[0]).shape.get(1..).and_then(dim_product);
            [dim(1, 0), first_of_result, row].into_iter().collect()
        }
        (OpKind::TopK { k }, MoveProgram::TopK { element }) if element == elements[0] => {
            let rows = module.ty(operation.operands[0]).shape.split_last();
            let rows = rows.and_then(|(_, rows)| dim_product(rows));
            [rows, last_of_operand, Some(Dim::fixed(u64::from(*k)))].into_iter().collect()
        }
        _ => return Err("the program of the plan is not that of the op".to_owned()),
    };
    if plan.operands != operation.operands {
        return Err("the operands of the plan are not those of the op".to_owned());
    }
    match expected {
        Some(expected) if plan.extents == expected => Ok(()),
        _ => Err("the extents of the plan differ from those of the types of the op".to_owned()),
    }
}

/// The most rows of the result of a `scatter_add` whose tiles are one launch, as far as its columns are known.
pub(super) fn most_rows(rules: &MoveCapability, plan: &MovePlan) -> u64 {
    let [_, width] = rules.sum_tile;
    match plan.extents.get(2).and_then(known) {
        Some(columns) if columns > 0 => rules.max_extent.min(rules.max_sum_tiles / columns.div_ceil(width)),
        _ => rules.max_extent,
    }
}

/// The limit on the tiles of a `scatter_add` whose columns are a symbol.
pub(super) fn tiles(rules: &MoveCapability, plan: &MovePlan) -> Option<Constraint> {
    let (MoveProgram::ScatterAdd { .. }, [_, rows, columns]) = (plan.program, &plan.extents[..]) else {
        return None;
    };
    let (rows, columns) = (rows.clone(), columns.clone());
    let (tile, limit) = (rules.sum_tile, rules.max_sum_tiles);
    known(&columns).is_none().then(|| Constraint::Tiles {
        matrices: Dim::fixed(1),
        rows,
        columns,
        tile,
        limit,
    })
}
