//! What runs together: which ops become one kernel, which go to the fallback, and why.
//!
//! [`partition()`] grows a kernel from every `scaled_mma` that the target takes, over the elementwise ops behind it and
//! what quantizes or reduces their values, as far as the epilogue reaches and can write what is seen outside, and leaves
//! the rest to the fallback with a reason for each op. [`check()`] proves a partition again from scratch.
//! Targets are known here only as [`fourfold_ir::Capabilities`].
#![forbid(unsafe_code)]

mod attribute;
mod check;
mod constraints;
mod dataflow;
mod explain;
mod expression;
mod geometry;
mod grow;
mod language;
mod legality;
mod normalize;
mod partition;
mod plan;
mod plan_builder;
mod properties;
mod prove;
mod quantize;
mod reason;
mod region;
mod root;
mod trim;

pub use check::{CheckError, check};
pub use constraints::violated;
pub use normalize::{
    Fate, NormalizeOptions, NormalizeRule, Normalized, Origin, Step, normalize, normalize_rules,
};
pub use partition::partition;
pub use plan::{
    BlockQuantizePlan, Constraint, Decision, EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep,
    KernelOutput, OutputKind, Partition, Plan, Roles, ScaledMmaPlan, Segment, SegmentKind, Tier,
};
pub use reason::{ReasonCode, Rejection};
