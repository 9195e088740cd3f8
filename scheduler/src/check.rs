//! Verifies a partition from scratch, without sharing code with the partitioner.
//!
//! For the partition, [`check`] verifies:
//! - Every op is in exactly one segment, and its decision names that segment.
//! - The ops of a segment are in program order.
//! - The segments can run in their order, so each segment is convex.
//! - Inputs and outputs are exactly the values that cross a segment's boundary.
//! - An op has a reason exactly when it is in no kernel. The reason of a `scaled_mma` holds.
//!
//! For each kernel, [`kernel`] verifies:
//! - Its ops are one `scaled_mma`, the steps of its epilogue, and its sinks.
//! - The plan states what the ops compute.
//! - The kernel writes every value that is used outside.
//! - The target accepts the kernel.
//! - The constraints are exactly the target's.
//!
//! For a plain `mma`, [`mma`] verifies that the plan states the op, that the target's library accepts it, and that its
//! constraints are exactly the library's.
//!
//! Not verified: whether a longer kernel was possible, whether a reason is the most helpful one, the reasons
//! of other ops, and the rule names in a proof.

use fourfold_ir::{Capabilities, Dim, Entity, Op, OpKind, Program, Value};

use crate::plan::{Constraint, Decision, Partition, Plan, Segment, Tier};
use crate::reason::ReasonCode;

mod block_quantize;
mod columns;
mod constants;
mod epilogue;
mod kernel;
mod mma;
mod moves;
mod outputs;
mod pair;
mod refusal;
mod rows;

/// One defect of a partition. Every defect is a bug of the partitioner, never of the program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// The partition was made for another target.
    #[error("the partition is for {found}, not for {expected}")]
    Target {
        /// The target of the partition.
        found: String,
        /// The target of the capabilities.
        expected: String,
    },
    /// A segment contains an op that is not in the program.
    #[error("segment {segment} contains {op}, which is not in the program")]
    UnknownOp {
        /// The position of the segment.
        segment: usize,
        /// The op.
        op: Op,
    },
    /// A segment has no ops.
    #[error("segment {segment} is empty")]
    Empty {
        /// The position of the segment.
        segment: usize,
    },
    /// A segment's ops are not in program order.
    #[error("the ops of segment {segment} are not in program order")]
    OpOrder {
        /// The position of the segment.
        segment: usize,
    },
    /// An op is in no segment, or in more than one.
    #[error("{op} is in {count} segments, not in one")]
    Cover {
        /// The op.
        op: Op,
        /// The number of segments that contain it.
        count: usize,
    },
    /// The number of decisions is not the number of ops.
    #[error("the partition has {found} decisions for {expected} ops")]
    Decisions {
        /// The number of decisions.
        found: usize,
        /// The number of ops.
        expected: usize,
    },
    /// A decision names a segment that does not contain the op.
    #[error("the decision on {op} names segment {segment}, which does not contain it")]
    DecisionSegment {
        /// The op.
        op: Op,
        /// The segment that the decision names.
        segment: usize,
    },
    /// An op outside every kernel has no reason, or an op inside a kernel has one.
    #[error("{op} is {} a kernel, but its reason is {found:?}", if *.in_kernel { "in" } else { "outside" })]
    Reason {
        /// The op.
        op: Op,
        /// True for an op in a kernel.
        in_kernel: bool,
        /// The code of its reason.
        found: Option<ReasonCode>,
    },
    /// A segment uses a value that no earlier segment defines.
    #[error("segment {segment} uses {value}, which no earlier segment defines")]
    NotRunnable {
        /// The position of the segment.
        segment: usize,
        /// The value.
        value: Value,
    },
    /// A segment's inputs or outputs are not the values that cross its boundary.
    #[error("the {boundary} of segment {segment} are {found:?}, not {expected:?}")]
    Boundary {
        /// The position of the segment.
        segment: usize,
        /// `inputs` or `outputs`.
        boundary: &'static str,
        /// The values that the segment lists.
        found: Vec<Value>,
        /// The values that cross the boundary.
        expected: Vec<Value>,
    },
    /// The ops of a kernel are not the `scaled_mma`, the steps and the sinks of its plan.
    #[error("the ops of kernel segment {segment} do not match its plan: {what}")]
    Shape {
        /// The position of the segment.
        segment: usize,
        /// The difference, for a message.
        what: String,
    },
    /// A value inside a kernel is used outside, but the kernel does not write it.
    #[error("kernel segment {segment} does not write {value}, which is used outside it")]
    Escape {
        /// The position of the segment.
        segment: usize,
        /// The value.
        value: Value,
    },
    /// A field of a plan contradicts the ops.
    #[error("`{field}` of the plan of segment {segment} is {found}, not {expected}")]
    Field {
        /// The position of the segment.
        segment: usize,
        /// The field's name.
        field: &'static str,
        /// The value in the plan.
        found: String,
        /// The value that the ops require.
        expected: String,
    },
    /// The target does not accept the kernel.
    #[error("the target does not support the kernel of segment {segment}: {rule}")]
    Capability {
        /// The position of the segment.
        segment: usize,
        /// The violation, for a message.
        rule: String,
    },
    /// The kernel needs a condition that is neither provable nor one of its constraints.
    #[error("the plan of segment {segment} lacks the constraint {needed:?}")]
    Constraint {
        /// The position of the segment.
        segment: usize,
        /// The missing constraint.
        needed: Constraint,
    },
    /// A constraint is stronger than the kernel needs, so it would refuse valid calls.
    #[error("the plan of segment {segment} has the unnecessary constraint {found:?}")]
    ExtraConstraint {
        /// The position of the segment.
        segment: usize,
        /// The superfluous constraint.
        found: Constraint,
    },
    /// The reason that keeps a `scaled_mma` out of every kernel does not hold.
    #[error("{op} is rejected with {found}, but the reasons that hold are {holds:?}")]
    Refusal {
        /// The op.
        op: Op,
        /// The code of its reason.
        found: ReasonCode,
        /// The codes that hold.
        holds: Vec<ReasonCode>,
    },
}

/// Checks a partition of a program for a target.
///
/// # Errors
/// All defects of the partition.
pub fn check(
    program: &Program,
    capabilities: &Capabilities,
    partition: &Partition,
) -> Result<(), Vec<CheckError>> {
    let mut errors = Vec::new();
    if partition.target != capabilities.target {
        errors.push(CheckError::Target {
            found: partition.target.clone(),
            expected: capabilities.target.clone(),
        });
    }
    let owners = cover(program, partition, &mut errors);
    decisions(program, capabilities, partition, &owners, &mut errors);
    for (index, segment) in partition.segments.iter().enumerate() {
        if segment.ops.iter().any(|op| program.module().ops.get(*op).is_none()) {
            continue;
        }
        boundary(program, index, segment, &owners, &mut errors);
        match segment.plan() {
            None => {}
            Some(Plan::ScaledMma(plan)) => {
                kernel::check(program, capabilities, index, segment, plan, &mut errors);
            }
            Some(Plan::BlockQuantize(plan)) => {
                block_quantize::check(program, capabilities, index, segment, plan, &mut errors);
            }
            Some(Plan::Row(plan)) => rows::check(program, capabilities, index, segment, plan, &mut errors),
            Some(Plan::Mma(plan)) => mma::check(program, capabilities, index, segment, plan, &mut errors),
            Some(Plan::Move(plan)) => moves::check(program, capabilities, index, segment, plan, &mut errors),
            Some(Plan::Column(plan)) => {
                columns::check(program, capabilities, index, segment, plan, &mut errors);
            }
            Some(Plan::View(plan)) => {
                moves::check_view(program, capabilities, index, segment, plan, &mut errors);
            }
            Some(Plan::Choose(plan)) => {
                moves::check_choose(program, capabilities, index, segment, plan, &mut errors);
            }
            Some(Plan::Constant(plan)) => {
                constants::check(program, capabilities, index, segment, plan, &mut errors);
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Lists, for each op, the segments that contain it.
fn cover(program: &Program, partition: &Partition, errors: &mut Vec<CheckError>) -> Vec<Vec<usize>> {
    let mut owners = vec![Vec::new(); program.module().ops.len()];
    for (segment, Segment { ops, .. }) in partition.segments.iter().enumerate() {
        if ops.is_empty() {
            errors.push(CheckError::Empty { segment });
        }
        if !ops.is_sorted_by(|before, after| before < after) {
            errors.push(CheckError::OpOrder { segment });
        }
        for &op in ops {
            match owners.get_mut(op.index()) {
                Some(owners) => owners.push(segment),
                None => errors.push(CheckError::UnknownOp { segment, op }),
            }
        }
    }
    for (op, owners) in program.module().ops.keys().zip(&owners) {
        if owners.len() != 1 {
            errors.push(CheckError::Cover { op, count: owners.len() });
        }
    }
    owners
}

fn decisions(
    program: &Program,
    capabilities: &Capabilities,
    partition: &Partition,
    owners: &[Vec<usize>],
    errors: &mut Vec<CheckError>,
) {
    let (found, expected) = (partition.decisions.len(), owners.len());
    if found != expected {
        errors.push(CheckError::Decisions { found, expected });
    }
    for ((op, operation), decision) in program.module().ops.iter().zip(&partition.decisions) {
        let Decision { segment, rejection } = decision;
        if !owners[op.index()].contains(segment) {
            errors.push(CheckError::DecisionSegment { op, segment: *segment });
            continue;
        }
        let in_kernel = partition.segments[*segment].tier() == Tier::Kernel;
        let found = rejection.as_ref().map(|rejection| rejection.code);
        let plain = operation.kind == OpKind::Mma;
        let fits = match found {
            None => in_kernel,
            Some(code) => {
                let choice = matches!(operation.kind, OpKind::Choose { .. });
                let agree = choice == (code == ReasonCode::Choice);
                !in_kernel && agree && plain == (code == ReasonCode::NotScaledMma)
            }
        };
        if !fits {
            errors.push(CheckError::Reason { op, in_kernel, found });
        }
        let is_root = matches!(operation.kind, OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_));
        if let (true, Some(found), false) = (is_root, found, in_kernel) {
            let holds = refusal::holding(program.module(), capabilities, op);
            if !holds.contains(&found) {
                errors.push(CheckError::Refusal { op, found, holds });
            }
        }
    }
}

fn boundary(
    program: &Program,
    index: usize,
    segment: &Segment,
    owners: &[Vec<usize>],
    errors: &mut Vec<CheckError>,
) {
    let module = program.module();
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    for op in &segment.ops {
        let operation = &module.ops[*op];
        for &operand in &operation.operands {
            let definition = module.defining_op(operand);
            if definition.is_some_and(|op| segment.ops.contains_sorted(op)) {
                continue;
            }
            inputs.push(operand);
            let runs_before = |op: Op| owners[op.index()].first().is_some_and(|owner| *owner < index);
            if !definition.is_none_or(runs_before) {
                errors.push(CheckError::NotRunnable { segment: index, value: operand });
            }
        }
        for &result in &operation.results {
            let used_outside =
                program.facts().users(result).iter().any(|user| !segment.ops.contains_sorted(*user));
            if used_outside || program.facts().is_output(result) {
                outputs.push(result);
            }
        }
    }
    for (boundary, found, mut expected) in
        [("inputs", &segment.inputs, inputs), ("outputs", &segment.outputs, outputs)]
    {
        expected.sort_unstable();
        expected.dedup();
        if *found != expected {
            errors.push(CheckError::Boundary { segment: index, boundary, found: found.clone(), expected });
        }
    }
}

/// Returns the value of an extent without symbols.
fn known(dim: &Dim) -> Option<u64> {
    dim.symbols().is_empty().then(|| dim.constant())
}

fn may_divide(dim: &Dim, of: u64) -> bool {
    known(dim).is_none_or(|extent| extent.is_multiple_of(of))
}

trait ContainsSorted {
    fn contains_sorted(&self, op: Op) -> bool;
}

impl ContainsSorted for [Op] {
    /// Returns whether an ascending list contains this op. A list out of order is reported as its own error.
    fn contains_sorted(&self, op: Op) -> bool {
        self.binary_search(&op).is_ok()
    }
}
