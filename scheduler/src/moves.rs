//! Placeholder until the branch of moves is merged.
use crate::plan::Plan;
use fourfold_ir::{MoveCapability, Op, Program};
pub(crate) fn plan_move(_: &Program, _: &MoveCapability, _: Op) -> Option<Plan> {
    None
}
