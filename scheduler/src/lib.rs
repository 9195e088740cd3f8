//! Partitions dataflow graphs into fused kernel segments, with a reason for every op that is left out.
//!
//! - [`normalize`] rewrites a program, so that products of dequantized operands become `scaled_mma`.
//! - [`partition()`] grows a kernel from every `scaled_mma` that the target accepts. The kernel absorbs the elementwise
//!   ops, block quantizations and reductions that follow, as far as the target's epilogue supports them. All other ops
//!   go to device or fallback segments, each with a [`Rejection`].
//! - [`check()`] verifies a partition independently of the partitioner's code.
//! - [`violated`] checks the extents of one call against a plan's constraints, before launch.
//!
//! The crate sees a target only as [`fourfold_ir::Capabilities`]. The crate has no optional features, does no I/O and
//! has no `unsafe`.
//!
//! ```
//! use fourfold_scheduler::{NormalizeOptions, check, normalize, partition};
//!
//! let source = "fir 1
//! func @layer(%a: tensor<[37, 64], f4E2M1FN>, %sfa: tensor<[37, 4], f8E4M3FN, blocked>,
//!     param %b: tensor<[24, 64], f4E2M1FN>, param %sfb: tensor<[24, 4], f8E4M3FN, blocked>) {
//!   %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>
//!   %y = relu %d : tensor<[37, 24], f32>
//!   return %y
//! }
//! ";
//! let (program, _) = fourfold_ir::load(source).expect("a valid program");
//! let normalized = normalize(&program, &NormalizeOptions::default());
//! let capabilities = fourfold_codegen::capabilities("sm_120a").expect("a known target");
//!
//! let partition = partition(normalized.program(), &capabilities);
//! let (_, plan) = partition.kernels().next().expect("a kernel");
//! assert_eq!(plan.epilogue.len(), 1);
//! assert!(partition.decisions.iter().all(|decision| decision.rejection.is_none()));
//! assert_eq!(check(normalized.program(), &capabilities, &partition), Ok(()));
//! ```
#![forbid(unsafe_code)]

mod attribute;
mod check;
mod columns;
mod constraints;
mod dataflow;
mod device;
mod explain;
mod expression;
mod geometry;
mod grow;
mod language;
mod legality;
mod mma;
mod moves;
mod normalize;
mod pair;
mod partition;
mod plan;
mod plan_builder;
mod properties;
mod prove;
mod quantize;
mod reason;
mod region;
mod root;
mod rows;
mod trim;

pub use check::{CheckError, check};
pub use constraints::violated;
pub use normalize::{
    Fate, NormalizeOptions, NormalizeRule, Normalized, Origin, Step, normalize, normalize_for,
    normalize_rules,
};
pub use partition::partition;
pub use plan::{
    BlockQuantizePlan, ChoosePlan, ColumnPlan, ColumnProgram, ConstantPlan, Constraint, Decision,
    EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep, Groups, KernelOutput, MAX_MOVE_AXES,
    MAX_MOVE_OFFSETS, MAX_MOVE_OPERANDS, MAX_PAD_AXES, MmaPlan, MovePlan, MoveProgram, OutputKind,
    PairedColumns, Partition, Plan, Repeat, Roles, RowInput, RowOperand, RowOutput, RowOutputKind, RowPlan,
    RowProgram, RowRef, RowShape, RowStep, RowStepKind, ScaledMmaPlan, Segment, SegmentKind, Tier, ViewPlan,
};
pub use reason::{ReasonCode, Rejection};
