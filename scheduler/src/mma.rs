//! Placeholder until the branch of plain products is merged.
use crate::plan::MmaPlan;
use fourfold_ir::{MmaCapability, Op, Program};
pub(crate) fn plan_mma(_: &Program, _: &MmaCapability, _: Op) -> Option<MmaPlan> {
    None
}
