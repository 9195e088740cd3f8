//! Forms regions: each op joins the region of its operands where one kernel can compute both.
//!
//! Ops are visited in an order in which they can run, stage by stage. Within a stage, every unit (a region, or an op
//! outside all regions) has a depth, and an op joins a region only if all its other operands come from units of smaller
//! depth. So a region reads only units of smaller depth, and no two units wait for each other. Regions of one depth and
//! space are merged where an op uses both.

use fourfold_ir::{Dim, Entity, Op, OpKind, Program, RowCapability, Value};

use super::needs::{Needs, needs, own_space};
use super::shapes::{Place, Space};
use crate::plan::RowShape;

/// The regions of a program.
pub(crate) struct Regions {
    /// The ops of each region, ascending, with its space.
    pub(crate) regions: Vec<(Space, Vec<Op>)>,
}

/// A region while it grows.
pub(super) struct Region {
    pub(super) space: Space,
    pub(super) stage: usize,
    pub(super) depth: usize,
    pub(super) is_static: bool,
    pub(super) ops: Vec<Op>,
    /// The values that it reads.
    pub(super) reads: Vec<(Value, Place)>,
    pub(super) steps: usize,
    pub(super) matrices: Option<[Dim; 2]>,
}

pub(super) struct Former<'a> {
    pub(super) program: &'a Program,
    pub(super) capability: &'a RowCapability,
    /// Returns whether an op has a kernel of its own.
    is_apart: &'a dyn Fn(Op) -> bool,
    /// By op: its stage.
    pub(super) stages: Vec<usize>,
    /// By op: true if it depends on params and constants only.
    pub(super) is_static: Vec<bool>,
    pub(super) regions: Vec<Region>,
    /// By region: the region that it was merged into, or itself.
    pub(super) merged: Vec<usize>,
    /// By op: its region, or its depth outside all regions.
    pub(super) places: Vec<Unit>,
    /// By value: its place, if a region defines it.
    pub(super) members: Vec<Option<RowShape>>,
}

#[derive(Clone, Copy)]
pub(super) enum Unit {
    /// In a kernel, or not visited yet.
    None,
    Region(usize),
    Alone {
        depth: usize,
    },
}

/// Forms the regions of the ops for which `is_free` holds; the others are in kernels. `stages` has the number of kernels
/// before each op. Ops for which `is_apart` holds have kernels of their own.
pub(crate) fn form(
    program: &Program,
    capability: &RowCapability,
    stages: &[usize],
    is_free: &dyn Fn(Op) -> bool,
    is_apart: &dyn Fn(Op) -> bool,
) -> Regions {
    let mut former = Former {
        program,
        capability,
        is_apart,
        stages: latest_stages(program, stages, is_free, is_apart),
        is_static: static_ops(program),
        regions: Vec::new(),
        merged: Vec::new(),
        places: vec![Unit::None; program.module().ops.len()],
        members: vec![None; program.module().values.len()],
    };
    let mut order: Vec<Op> = program.module().ops.keys().filter(|op| is_free(*op)).collect();
    order.sort_by_key(|op| (former.stages[op.index()], *op));
    for op in order {
        former.visit(op);
    }
    former.finish()
}

impl Former<'_> {
    fn visit(&mut self, op: Op) {
        let deepest = self.deepest(op);
        let depth = deepest.map_or(0, |deepest| deepest + 1);
        if (self.is_apart)(op) {
            self.places[op.index()] = Unit::Alone { depth };
            return;
        }
        let candidates = self.candidates(op, deepest);
        if let Some(&first) = candidates.first()
            && self.join(op, first, &candidates)
        {
            return;
        }
        let alone = own_space(self.program, op)
            .and_then(|space| Some((needs(self.program, self.capability, op, &space)?, space)));
        match alone {
            Some((needs, space)) => {
                let region = self.regions.len();
                self.regions.push(Region {
                    space,
                    stage: self.stages[op.index()],
                    depth,
                    is_static: self.is_static[op.index()],
                    ops: Vec::new(),
                    reads: Vec::new(),
                    steps: 0,
                    matrices: None,
                });
                self.merged.push(region);
                self.add(op, region, needs);
            }
            None => self.places[op.index()] = Unit::Alone { depth },
        }
    }

    /// The region of a value that a region of the op's stage defines, and its depth; only the depth for other units.
    fn unit(&self, op: Op, value: Value) -> Option<(usize, Option<usize>)> {
        let module = self.program.module();
        let producer = module.defining_op(value)?;
        // Nothing waits for constants, or for what depends on params only.
        let is_early = matches!(module.ops[producer].kind, OpKind::Constant(_))
            || (self.is_static[producer.index()] && !self.is_static[op.index()]);
        if is_early || self.stages[producer.index()] != self.stages[op.index()] {
            return None;
        }
        match self.places[producer.index()] {
            Unit::None => None,
            Unit::Alone { depth } => Some((depth, None)),
            Unit::Region(region) => {
                let root = self.root(region);
                Some((self.regions[root].depth, Some(root)))
            }
        }
    }

    /// The greatest depth of the op's operands within its stage.
    fn deepest(&self, op: Op) -> Option<usize> {
        let operands = &self.program.module().ops[op].operands;
        operands.iter().filter_map(|value| Some(self.unit(op, *value)?.0)).max()
    }

    /// The regions of greatest depth among the op's operands; none if another unit has that depth.
    fn candidates(&self, op: Op, deepest: Option<usize>) -> Vec<usize> {
        let mut found = Vec::new();
        for value in &self.program.module().ops[op].operands {
            match self.unit(op, *value) {
                Some((depth, region)) if Some(depth) == deepest => match region {
                    Some(region) if !found.contains(&region) => found.push(region),
                    Some(_) => {}
                    None => return Vec::new(),
                },
                _ => {}
            }
        }
        found
    }

    /// Adds an op to a region, which is merged with the other candidates. Returns false if it does not fit.
    fn join(&mut self, op: Op, region: usize, candidates: &[usize]) -> bool {
        let space = self.regions[region].space.clone();
        let is_static = self.regions[region].is_static;
        let same = |other: &usize| {
            self.regions[*other].space == space && self.regions[*other].is_static == is_static
        };
        if is_static != self.is_static[op.index()] || !candidates.iter().all(same) {
            return false;
        }
        let Some(needs) = self.needs(op, &space) else { return false };
        let inside = |value: &Value| self.is_in(*value, candidates);
        if !needs
            .reads
            .iter()
            .enumerate()
            .all(|(at, (value, place))| !inside(value) || self.can_read(op, at, *value, place, &space))
        {
            return false;
        }
        let outside = needs.reads.iter().filter(|(value, _)| !inside(value));
        if !self.has_room(candidates, outside, needs.steps, needs.matrices.as_ref()) {
            return false;
        }
        for other in candidates.iter().filter(|other| **other != region) {
            self.merge(*other, region);
        }
        self.add(op, region, needs);
        true
    }

    /// Returns whether an op can read a value that its own kernel defines.
    pub(super) fn can_read(
        &self,
        op: Op,
        position: usize,
        value: Value,
        place: &Place,
        space: &Space,
    ) -> bool {
        let kind = &self.program.module().ops[op].kind;
        // The kernel reads the scale of a tensor from memory.
        let is_global =
            position > 0 && matches!(kind, OpKind::BlockQuantize { .. } | OpKind::BlockDequantize { .. });
        let is_thin = needs_whole(kind) && self.is_thin(value);
        let serves = |found: &RowShape| place.repeat.is_none() && space.serves(*found, place.shape);
        !is_global && !is_thin && self.members[value.index()].as_ref().is_some_and(serves)
    }

    /// Returns whether one kernel can be all these regions, with more reads and steps.
    pub(super) fn has_room<'b>(
        &'b self,
        regions: &[usize],
        more: impl Iterator<Item = &'b (Value, Place)>,
        steps: usize,
        matrices: Option<&'b [Dim; 2]>,
    ) -> bool {
        let all = || regions.iter().map(|region| &self.regions[*region]);
        let mut reads: Vec<&(Value, Place)> = Vec::new();
        for read in all().flat_map(|region| &region.reads).chain(more) {
            if !reads.contains(&read) {
                reads.push(read);
            }
        }
        let steps = steps + all().map(|region| region.steps).sum::<usize>();
        let repeats = reads.iter().filter(|(_, place)| place.repeat.is_some()).count();
        let mut stated: Vec<&[Dim; 2]> = all().filter_map(|region| region.matrices.as_ref()).collect();
        stated.extend(matrices);
        stated.dedup();
        let RowCapability { max_steps, max_operands, max_repeats, .. } = *self.capability;
        steps <= max_steps && reads.len() <= max_operands && repeats <= max_repeats && stated.len() <= 1
    }

    /// The needs of an op in a region; those of a reshape whose operand has no other use, too.
    pub(super) fn needs(&self, op: Op, space: &Space) -> Option<Needs> {
        let module = self.program.module();
        let operation = &module.ops[op];
        if operation.kind != OpKind::Reshape {
            return needs(self.program, self.capability, op, space);
        }
        let operand = operation.operands[0];
        let place = self.members[operand.index()]?;
        let facts = self.program.facts();
        let is_last_use = !facts.is_output(operand) && facts.users(operand).len() == 1;
        let packed = module.ty(operand).element.storage_bits() < 8;
        (is_last_use && !packed).then(|| Needs {
            reads: vec![(operand, Place::of(place))],
            result: place,
            steps: 0,
            matrices: None,
        })
    }

    /// Returns whether a value has fewer elements in its kernel than in its type: it is broadcast.
    fn is_thin(&self, value: Value) -> bool {
        let module = self.program.module();
        module.defining_op(value).is_some_and(|op| match module.ops[op].kind {
            OpKind::Broadcast => true,
            OpKind::Reshape => self.is_thin(module.ops[op].operands[0]),
            _ => false,
        })
    }

    pub(super) fn is_in(&self, value: Value, regions: &[usize]) -> bool {
        is_in(self.program, &self.places, &self.merged, value, regions)
    }

    fn add(&mut self, op: Op, region: usize, needs: Needs) {
        let inside: Vec<bool> = needs.reads.iter().map(|(value, _)| self.is_in(*value, &[region])).collect();
        let at = &mut self.regions[region];
        for (read, inside) in needs.reads.into_iter().zip(inside) {
            if !inside && !at.reads.contains(&read) {
                at.reads.push(read);
            }
        }
        at.ops.push(op);
        at.steps += needs.steps;
        at.matrices = at.matrices.take().or(needs.matrices);
        self.places[op.index()] = Unit::Region(region);
        let operation = &self.program.module().ops[op];
        // Codes and scales are complete only after the kernel.
        if !matches!(operation.kind, OpKind::BlockQuantize { .. }) {
            for result in &operation.results {
                self.members[result.index()] = Some(needs.result);
            }
        }
    }

    pub(super) fn merge(&mut self, from: usize, into: usize) {
        self.merged[from] = into;
        let Region { ops, reads, steps, matrices, .. } = &mut self.regions[from];
        let (ops, reads, steps, matrices) =
            (std::mem::take(ops), std::mem::take(reads), std::mem::take(steps), matrices.take());
        let at = &mut self.regions[into];
        at.ops.extend(ops);
        for read in reads {
            if !at.reads.contains(&read) {
                at.reads.push(read);
            }
        }
        at.steps += steps;
        at.matrices = at.matrices.take().or(matrices);
    }

    pub(super) fn root(&self, region: usize) -> usize {
        root(&self.merged, region)
    }

    /// Splits regions with too many outputs, and gives each constant to the region of its users.
    fn finish(mut self) -> Regions {
        self.merge_into_users();
        self.merge_siblings();
        let mut regions: Vec<(Space, Vec<Op>)> = Vec::new();
        for Region { space, mut ops, .. } in self.regions {
            if ops.is_empty() {
                continue;
            }
            ops.sort_unstable();
            for ops in split(self.program, self.capability.max_outputs, ops) {
                regions.push((space.clone(), ops));
            }
        }
        let mut region_of = vec![None; self.places.len()];
        for (region, (_, ops)) in regions.iter().enumerate() {
            for op in ops {
                region_of[op.index()] = Some(region);
            }
        }
        for region in 0..regions.len() {
            if let &[op] = &regions[region].1[..]
                && let Some(user) = only_user(self.program, op, &region_of)
            {
                regions[region].1.clear();
                let ops = &mut regions[user].1;
                ops.insert(ops.partition_point(|other| *other < op), op);
            }
        }
        regions.retain(|(_, ops)| !ops.is_empty());
        Regions { regions }
    }
}

fn root(merged: &[usize], mut region: usize) -> usize {
    while merged[region] != region {
        region = merged[region];
    }
    region
}

/// Returns whether an op of these regions defines a value.
pub(super) fn is_in(
    program: &Program,
    places: &[Unit],
    merged: &[usize],
    value: Value,
    regions: &[usize],
) -> bool {
    program.module().defining_op(value).is_some_and(|producer| match places[producer.index()] {
        Unit::Region(region) => regions.contains(&root(merged, region)),
        _ => false,
    })
}

/// Returns whether an op combines elements of its operand, of which each must be there.
fn needs_whole(kind: &OpKind) -> bool {
    matches!(
        kind,
        OpKind::Reduce { .. }
            | OpKind::Softmax { .. }
            | OpKind::LayerNorm { .. }
            | OpKind::BlockQuantize { .. }
            | OpKind::BlockDequantize { .. }
    )
}

/// The region of all users of a splat constant that is not returned.
fn only_user(program: &Program, op: Op, region_of: &[Option<usize>]) -> Option<usize> {
    let operation = &program.module().ops[op];
    let OpKind::Constant(_) = operation.kind else { return None };
    let facts = program.facts();
    let value = operation.results[0];
    let mut users = facts.users(value).iter().map(|user| region_of[user.index()]);
    let first = users.next()??;
    let combines = |user: &Op| needs_whole(&program.module().ops[*user].kind);
    let inlines = !facts.is_output(value) && !facts.users(value).iter().any(combines);
    (inlines && users.all(|user| user == Some(first)) && region_of[op.index()] != Some(first))
        .then_some(first)
}

/// Cuts the ops of a region, which are in program order, into runs that write at most `most` tensors.
fn split(program: &Program, most: usize, ops: Vec<Op>) -> Vec<Vec<Op>> {
    if written(program, &ops) <= most {
        return vec![ops];
    }
    let mut runs: Vec<Vec<Op>> = Vec::new();
    let mut rest = &ops[..];
    while !rest.is_empty() {
        // One op writes at most two tensors.
        let longest =
            (1..=rest.len()).rev().find(|length| written(program, &rest[..*length]) <= most).unwrap_or(1);
        runs.push(rest[..longest].to_vec());
        rest = &rest[longest..];
    }
    runs
}

/// The number of tensors that a kernel of these ops, which are ascending, writes.
pub(super) fn written(program: &Program, ops: &[Op]) -> usize {
    let results = ops.iter().flat_map(|op| &program.module().ops[*op].results);
    results.filter(|value| is_written(program, **value, ops)).count()
}

/// Returns whether a kernel of these ops, which are ascending, must write a value: it is used outside or nowhere.
pub(super) fn is_written(program: &Program, value: Value, ops: &[Op]) -> bool {
    let facts = program.facts();
    let users = facts.users(value);
    facts.is_output(value) || users.is_empty() || users.iter().any(|user| ops.binary_search(user).is_err())
}

/// The latest stage at which each op can run. Ops of row kernels move to the stage of their first user, so that one
/// kernel computes both; the others stay.
fn latest_stages(
    program: &Program,
    stages: &[usize],
    is_free: &dyn Fn(Op) -> bool,
    is_apart: &dyn Fn(Op) -> bool,
) -> Vec<usize> {
    let module = program.module();
    let mut latest = stages.to_vec();
    let mut order: Vec<Op> = module.ops.keys().filter(|op| is_free(*op)).collect();
    order.sort_by_key(|op| std::cmp::Reverse((stages[op.index()], *op)));
    for op in order {
        let operation = &module.ops[op];
        let is_used = operation
            .results
            .iter()
            .all(|result| !program.facts().is_output(*result) && !program.facts().users(*result).is_empty());
        if is_used && !is_apart(op) && own_space(program, op).is_some() {
            let users = operation.results.iter().flat_map(|result| program.facts().users(*result));
            latest[op.index()] = users.map(|user| latest[user.index()]).min().unwrap_or(stages[op.index()]);
        }
    }
    latest
}

/// The ops that are computed once for all calls. A broadcast value would only take memory.
fn static_ops(program: &Program) -> Vec<bool> {
    let module = program.module();
    let mut is_static = module.constant_ops();
    for (op, _) in module.ops.iter().filter(|(_, operation)| operation.kind == OpKind::Broadcast) {
        is_static[op.index()] = false;
    }
    // The users of a broadcast value are computed beside it.
    for (op, operation) in module.ops.iter() {
        let producers = operation.operands.iter().filter_map(|value| module.defining_op(*value));
        is_static[op.index()] &= producers.into_iter().all(|producer| is_static[producer.index()]);
    }
    is_static
}
