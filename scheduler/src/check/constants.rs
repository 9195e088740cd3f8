//! Matches one segment of a constant against its plan.

use fourfold_ir::{Capabilities, OpKind, Program};

use super::CheckError;
use crate::plan::{ConstantPlan, Segment};

pub(super) fn check(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &ConstantPlan,
    errors: &mut Vec<CheckError>,
) {
    let operation = &program.module().ops[plan.op];
    let is_constant = matches!(operation.kind, OpKind::Constant(_));
    if segment.ops != [plan.op] || operation.results != [plan.result] || !is_constant {
        let what = "the op or the result of the plan is not the constant of the segment".to_owned();
        errors.push(CheckError::Shape { segment: index, what });
    }
    if capabilities.device.moves.is_none() {
        let rule = format!("{} has no constants", capabilities.target);
        errors.push(CheckError::Capability { segment: index, rule });
    }
}
