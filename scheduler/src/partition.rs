//! Cuts a program into segments: a kernel per accepted `scaled_mma`, device kernels, and fallback segments by
//! stage.

use std::collections::{HashMap, HashSet};

use fourfold_ir::{BlockFormat, Capabilities, Entity, Module, Op, OpKind, Program, Value};

use crate::dataflow::{Stages, stages};
use crate::device::{exceeded, plan_device};
use crate::explain::{Obstacle, Producer, Rank, explain};
use crate::geometry::Divides;
use crate::grow::{Growth, grow};
use crate::normalize::near_miss;
use crate::plan::{ChoosePlan, Decision, Partition, Plan, ScaledMmaPlan, Segment, SegmentKind};
use crate::plan_builder::build_plan;
use crate::prove::Prover;
use crate::quantize::is_faster_alone;
use crate::reason::{ReasonCode, Rejection, element_list};
use crate::region::region;
use crate::root::Root;

/// Partitions a program into segments, in an order in which they can run.
///
/// Each `scaled_mma` that the target accepts becomes a kernel. The kernel takes as many of the following ops
/// as its epilogue computes, without a `block_quantize` that the target computes faster alone. It writes every value
/// that is used outside. A plain `mma` never becomes a kernel. Other ops become segments of the device tier where the
/// target has them: row and column kernels, moves, views, constants, a library's `mma`. The rest go to fallback
/// segments. Each op outside the kernel tier has a [`Rejection`].
///
/// The result depends on the arguments only. The time is proportional to the size of the program.
pub fn partition(program: &Program, capabilities: &Capabilities) -> Partition {
    let kernels = Kernels::find(program, capabilities);
    let units = Units::of(program, capabilities, &kernels);
    let stages = stages(program, &units.unit_of);
    let ops = program.module().ops.keys();
    let rejections: Vec<_> =
        ops.map(|op| kernels.rejection(program, capabilities, &units, &stages, op)).collect();
    let (segments, segment_of) = segments(program, kernels.plans, units, &stages);
    let decisions = segment_of
        .into_iter()
        .zip(rejections)
        .map(|(segment, rejection)| Decision { segment, rejection })
        .collect();
    Partition { target: capabilities.target.clone(), segments, decisions }
}

/// The kernels of a program, in the order of their roots.
struct Kernels<'a> {
    plans: Vec<ScaledMmaPlan>,
    /// By plan.
    roots: Vec<Root<'a>>,
    /// By op.
    kernel_of: Vec<Option<usize>>,
    rejected_roots: HashMap<Op, Rejection>,
    /// By op and root.
    late: HashMap<(Op, Op), Value>,
    /// The roots that grew but have no kernel: those that pair columns, and the number of others.
    dead_pairs: Vec<Op>,
    dead: usize,
}

impl<'a> Kernels<'a> {
    fn find(program: &'a Program, capabilities: &'a Capabilities) -> Kernels<'a> {
        let mut provers = HashMap::new();
        let mut unpaired = HashSet::new();
        let mut rejected_roots = HashMap::new();
        loop {
            let growth = grow(program, capabilities, rejected_roots, &unpaired);
            let kernels = Kernels::of(program, growth, &mut provers);
            if kernels.dead == 0 && kernels.dead_pairs.is_empty() {
                return kernels;
            }
            // Ops taken by a root without a kernel may join another kernel. Each round rejects another root, or its pair.
            unpaired.extend(kernels.dead_pairs);
            rejected_roots = kernels.rejected_roots;
        }
    }

    fn of(program: &Program, growth: Growth<'a>, provers: &mut HashMap<BlockFormat, Prover>) -> Kernels<'a> {
        let module = program.module();
        let Growth { kernels: grown, rejected_roots, late } = growth;
        let mut kernels = Kernels {
            plans: Vec::new(),
            roots: Vec::new(),
            kernel_of: vec![None; module.ops.len()],
            rejected_roots,
            late,
            dead_pairs: Vec::new(),
            dead: 0,
        };
        for grown in grown {
            let root = grown.root;
            let region = region(program, &grown);
            let prover =
                provers.entry(root.capability.format).or_insert_with(|| Prover::new(root.capability));
            match prover.largest_kernel(region.expression.clone()) {
                Some(found) => kernels.add(root, build_plan(program, &grown, &region, found)),
                None if root.pair.is_some() => kernels.dead_pairs.push(root.op),
                None => {
                    kernels.rejected_roots.insert(root.op, unwritable(module, &root));
                    kernels.dead += 1;
                }
            }
        }
        kernels
    }

    fn add(&mut self, root: Root<'a>, plan: ScaledMmaPlan) {
        for op in plan.ops() {
            self.kernel_of[op.index()] = Some(self.plans.len());
        }
        self.plans.push(plan);
        self.roots.push(root);
    }

    fn rejection(
        &self,
        program: &Program,
        capabilities: &Capabilities,
        units: &Units,
        stages: &Stages,
        op: Op,
    ) -> Option<Rejection> {
        let module = program.module();
        if self.kernel_of[op.index()].is_some() {
            return None;
        }
        let operation = &module.ops[op];
        let label = module.op_label(op);
        match operation.kind {
            OpKind::Mma => {
                let what =
                    "a plain mma never becomes a kernel; expected scaled_mma, whose operands have scales";
                return Some(Rejection::new(ReasonCode::NotScaledMma, format!("{label}: {what}")));
            }
            OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_) => {
                return self.rejected_roots.get(&op).cloned();
            }
            OpKind::Choose { .. } => {
                let what = choice(program, op)?;
                return Some(Rejection::new(ReasonCode::Choice, format!("{label}: {what}")));
            }
            OpKind::Convert => {
                if let Some(message) = near_miss(program, op) {
                    let code = ReasonCode::WrittenQuantization;
                    return Some(Rejection::new(code, format!("{label}: {message}")));
                }
            }
            _ => {}
        }
        let defining_ops = || operation.operands.iter().filter_map(|operand| module.defining_op(*operand));
        let mut closest: Option<Obstacle> = None;
        for kernel in defining_ops().filter_map(|producer| self.kernel_of[producer.index()]) {
            let found = self.obstacle(program, capabilities, units, stages, op, kernel);
            if closest.as_ref().is_none_or(|closest| closest.rank < found.rank) {
                closest = Some(found);
            }
        }
        let never_joins = closest.as_ref().is_none_or(|closest| closest.rank == Rank::Kind);
        if never_joins
            && units.unit_of[op.index()].is_none()
            && let Some(message) = exceeded(program, capabilities, op)
        {
            return Some(Rejection::new(ReasonCode::ExtentRange, format!("{label}: {message}")));
        }
        if let Some(Obstacle { code, message, .. }) = closest {
            return Some(Rejection::new(code, format!("{label}: {message}")));
        }
        let refused = defining_ops().find_map(|op| Some((op, self.rejected_roots.get(&op)?.code)));
        let found = match refused {
            Some((producer, code)) => format!("{} is not in a kernel ({code})", module.op_label(producer)),
            None => "no operand comes from a kernel".to_owned(),
        };
        let what = format!("{found}; expected the result of a scaled_mma in a kernel");
        Some(Rejection::new(ReasonCode::NoScaledMmaProducer, format!("{label}: {what}")))
    }

    /// Finds the obstacle that keeps an op out of one of these kernels.
    fn obstacle(
        &self,
        program: &Program,
        capabilities: &Capabilities,
        units: &Units,
        stages: &Stages,
        op: Op,
        kernel: usize,
    ) -> Obstacle {
        let (plan, root) = (&self.plans[kernel], &self.roots[kernel]);
        let has = |op: Op| self.kernel_of[op.index()] == Some(kernel);
        let is_faster_alone = !root.quantizes_pairs() && is_faster_alone(program, capabilities, op);
        let late = self.late.get(&(op, root.op)).copied();
        let stage = stages.ops[root.op.index()];
        let before = |value: Value| {
            program.module().defining_op(value).is_none_or(|op| {
                let by_kernel = usize::from(units.unit_of[op.index()].is_some());
                stages.ops[op.index()] + by_kernel <= stage
            })
        };
        explain(program, op, Producer { plan, root, has: &has, is_faster_alone, late, before: &before })
    }
}

/// The units that run on the GPU: those of the kernel tier, then those of the device tier.
struct Units {
    /// The plans of the device tier.
    device: Vec<Plan>,
    /// By op: its unit's position, or `None` for an op on the fallback.
    unit_of: Vec<Option<usize>>,
}

impl Units {
    fn of(program: &Program, capabilities: &Capabilities, kernels: &Kernels<'_>) -> Units {
        let before = stages(program, &kernels.kernel_of);
        let is_free = |op: Op| kernels.kernel_of[op.index()].is_none();
        let device = plan_device(program, capabilities, &before.ops, &is_free);
        let mut unit_of = kernels.kernel_of.clone();
        for (position, plan) in device.iter().enumerate() {
            for op in plan.ops() {
                unit_of[op.index()] = Some(kernels.plans.len() + position);
            }
        }
        Units { device, unit_of }
    }
}

/// The values of a `choose`, each with the extents that choose it: `M <= 64 takes %few, greater ones %many`.
fn choice(program: &Program, op: Op) -> Option<String> {
    let module = program.module();
    let plan = ChoosePlan::of(program, op)?;
    let (last, others) = plan.operands.split_last()?;
    let extent = module.display_dim(&plan.extent).to_string();
    let taken = others.iter().zip(&plan.ends);
    let mut parts: Vec<String> =
        taken.map(|(value, end)| format!("{extent} <= {end} takes %{}", module.name_of(*value))).collect();
    parts.push(format!("a greater one %{}", module.name_of(*last)));
    Some(parts.join(", "))
}

/// The reason why no kernel with this root can write its result.
fn unwritable(module: &Module, root: &Root<'_>) -> Rejection {
    let element = module.ty(root.result).element;
    let label = module.op_label(root.op);
    match root.capability.output(element) {
        Some(rule) if Divides::of(&root.matmul.n, rule.n_multiple) == Divides::Never => {
            let n = module.display_dim(&root.matmul.n);
            let what = format!("N is {n}; expected a multiple of {} for a {element} result", rule.n_multiple);
            Rejection::new(ReasonCode::NAlignment, format!("{label}: {what}"))
        }
        _ => {
            let known = element_list(root.capability.outputs.iter().map(|output| output.element));
            let what = format!("the result is {element}; expected {known}");
            Rejection::new(ReasonCode::OutputDtype, format!("{label}: {what}"))
        }
    }
}

/// The segments in order, and the segment of each op. A stage has its fallback segment first, then kernels,
/// then device kernels. A path between two ops of a fallback segment passes no kernel, because that would
/// raise the stage.
fn segments(
    program: &Program,
    kernels: Vec<ScaledMmaPlan>,
    units: Units,
    stages: &Stages,
) -> (Vec<Segment>, Vec<usize>) {
    let module = program.module();
    let stage_of = &stages.ops;
    let count = stage_of.iter().max().map_or(0, |last| last + 1);
    let mut fallbacks = vec![Vec::new(); count];
    for op in module.ops.keys().filter(|op| units.unit_of[op.index()].is_none()) {
        fallbacks[stage_of[op.index()]].push(op);
    }
    let mut plans: Vec<Vec<Plan>> = vec![Vec::new(); count];
    for plan in kernels.into_iter().map(Plan::ScaledMma).chain(units.device) {
        plans[stage_of[plan.root().index()]].push(plan);
    }

    let mut cut: Vec<(Vec<Op>, SegmentKind)> = Vec::new();
    for (fallback, plans) in fallbacks.into_iter().zip(plans) {
        if !fallback.is_empty() {
            cut.push((fallback, SegmentKind::Fallback));
        }
        cut.extend(plans.into_iter().map(|plan| (sorted(plan.ops()), SegmentKind::Kernel(Box::new(plan)))));
    }
    let mut segment_of = vec![0; module.ops.len()];
    for (index, (ops, _)) in cut.iter().enumerate() {
        for op in ops {
            segment_of[op.index()] = index;
        }
    }
    let segments = cut
        .into_iter()
        .enumerate()
        .map(|(index, (ops, kind))| {
            let inside = |op: Op| segment_of[op.index()] == index;
            let operands = ops.iter().flat_map(|op| &module.ops[*op].operands).copied();
            let inputs = operands.filter(|value| !module.defining_op(*value).is_some_and(inside)).collect();
            let results = ops.iter().flat_map(|op| &module.ops[*op].results).copied();
            let outputs = results
                .filter(|value| {
                    let facts = program.facts();
                    facts.is_output(*value) || facts.users(*value).iter().any(|user| !inside(*user))
                })
                .collect();
            Segment { inputs: sorted(inputs), outputs: sorted(outputs), ops, kind }
        })
        .collect();
    (segments, segment_of)
}

/// Sorts entities in ascending order and removes duplicates.
fn sorted<E: Entity + Ord>(mut entities: Vec<E>) -> Vec<E> {
    entities.sort_unstable();
    entities.dedup();
    entities
}
