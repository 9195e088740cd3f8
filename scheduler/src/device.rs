//! Plans the segments of the device tier: regions of row kernels, standalone quantizations, column kernels, moves, views,
//! choices, constants and plain `mma`.

use fourfold_ir::{Capabilities, Entity, Op, OpKind, Program};

use crate::columns::{self, is_column, plan_column};
use crate::mma::plan_mma;
use crate::moves::{self, plan_move};
use crate::plan::{ChoosePlan, ConstantPlan, Plan};
use crate::quantize::{self, plan_block_quantize};
use crate::rows::{self, form, plan_rows};

/// The plans of the device tier for the ops for which `is_free` holds; the others are in kernels. `stages` has the number
/// of kernels before each op.
pub(crate) fn plan_device(
    program: &Program,
    capabilities: &Capabilities,
    stages: &[usize],
    is_free: &dyn Fn(Op) -> bool,
) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut taken = vec![false; program.module().ops.len()];
    let columns = capabilities.device.columns.as_ref();
    let is_apart = |op: Op| columns.is_some_and(|capability| is_column(program, capability, op));
    if let Some(capability) = &capabilities.device.rows {
        for (space, ops) in form(program, capability, stages, is_free, &is_apart).regions {
            // These have kernels of their own.
            let is_alone = |op: Op| {
                let kind = &program.module().ops[op].kind;
                matches!(kind, OpKind::BlockQuantize { .. } | OpKind::Broadcast)
                    && plan_alone(program, capabilities, op).is_some()
            };
            let plan = match ops[..] {
                [op] if is_alone(op) => None,
                _ => plan_rows(program, capability, &space, ops).map(Plan::Row),
            };
            for op in plan.iter().flat_map(Plan::ops) {
                taken[op.index()] = true;
            }
            plans.extend(plan);
        }
    }
    for op in program.module().ops.keys().filter(|op| is_free(*op)) {
        if !taken[op.index()] {
            plans.extend(plan_alone(program, capabilities, op));
        }
    }
    plans
}

/// The plan of an op that is in no region.
fn plan_alone(program: &Program, capabilities: &Capabilities, op: Op) -> Option<Plan> {
    let quantize = || {
        let capability = capabilities.block_quantize.as_ref()?;
        plan_block_quantize(program, capability, op).map(Plan::BlockQuantize)
    };
    let column = || plan_column(program, capabilities.device.columns.as_ref()?, op).map(Plan::Column);
    let moves = || plan_move(program, capabilities.device.moves.as_ref()?, op);
    let choose = || {
        capabilities.device.moves.as_ref()?;
        ChoosePlan::of(program, op).map(Plan::Choose)
    };
    let mma = || plan_mma(program, capabilities.device.mma.as_ref()?, op).map(Plan::Mma);
    // Constants that are not part of a row kernel: those with several values, or with blocked scales.
    let constant = || {
        let operation = &program.module().ops[op];
        let is_constant =
            matches!(operation.kind, OpKind::Constant(_)) && capabilities.device.moves.is_some();
        is_constant.then(|| Plan::Constant(ConstantPlan { op, result: operation.results[0] }))
    };
    quantize().or_else(column).or_else(moves).or_else(choose).or_else(mma).or_else(constant)
}

/// The extent that keeps an op of the fallback out of the device tier, worded for a message. `None` if no kernel of
/// that tier computes the op with any extents.
pub(crate) fn exceeded(program: &Program, capabilities: &Capabilities, op: Op) -> Option<String> {
    let Capabilities { block_quantize, device, .. } = capabilities;
    let moves = || moves::exceeded(program, device.moves.as_ref()?, op);
    let column = || columns::exceeded(program, device.columns.as_ref()?, op);
    let quantize = || quantize::exceeded(program, block_quantize.as_ref()?, op);
    let row = || rows::exceeded(program, device.rows.as_ref()?, op);
    moves().or_else(column).or_else(quantize).or_else(row)
}
