//! What runs together: which ops become one kernel, which go to the fallback, and why.
#![forbid(unsafe_code)]

mod partition;
mod reason;

pub use partition::{
    Constraint, Decision, EpilogueKind, EpilogueStep, KernelPlan, Partition, Segment, SegmentKind,
};
pub use reason::{ReasonCode, Rejection};
