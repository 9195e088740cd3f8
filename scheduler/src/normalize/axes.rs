//! The axes of reductions, for a target. Kernels compute a `softmax` along the last axis, and a `reduce` along at
//! most two groups of axes. Transposes bring other axes there.

use std::collections::HashMap;

use fourfold_ir::{Capabilities, Dim, ElementType, Op, OpKind, ReduceKind, TensorType, Value, dim_product};

use super::NormalizeRule;
use super::draft::{Draft, Note};
use crate::plan::MAX_MOVE_AXES;

/// All rules of this module. Their positions follow those of the rules for the layout of scales.
pub(crate) const AXES_RULES: &[NormalizeRule] = &[
    NormalizeRule {
        name: "softmax-along-last-axis",
        why: "a transpose moves elements, and softmax treats each vector along its axis alone",
        contract: false,
    },
    NormalizeRule {
        name: "reduction-along-fewer-groups",
        why: "a transpose moves elements, and the elements combined into one result keep their order",
        contract: false,
    },
];

/// The softmaxes and reductions that a target computes along some axes, if it also transposes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reductions {
    softmax: Vec<ElementType>,
    /// The largest number of rows, and of elements of one, of a softmax.
    max_extent: u64,
    reduce: Vec<ElementType>,
    kinds: Vec<ReduceKind>,
}

impl Reductions {
    pub(crate) fn of(capabilities: &Capabilities) -> Reductions {
        let device = &capabilities.device;
        let Some(moves) = &device.moves else { return Reductions::default() };
        let movable = |elements: &[ElementType]| -> Vec<ElementType> {
            elements.iter().copied().filter(|element| moves.elements.contains(element)).collect()
        };
        let columns = device.columns.as_ref();
        Reductions {
            softmax: device.rows.as_ref().map(|rows| movable(&rows.elements)).unwrap_or_default(),
            max_extent: device.rows.as_ref().map_or(0, |rows| rows.max_extent),
            reduce: columns.map(|columns| movable(&columns.elements)).unwrap_or_default(),
            kinds: columns.map(|columns| columns.reductions.clone()).unwrap_or_default(),
        }
    }
}

/// Transposes the operands of softmaxes and reductions along axes for which the target has no kernel. Returns true if
/// something changed. `rule` is the position of the first rule of this module.
pub(crate) fn transpose_axes(draft: &mut Draft, reductions: &Reductions, rule: usize) -> bool {
    let live: Vec<Op> = draft.module.ops.keys().filter(|op| !draft.note(*op).gone).collect();
    let mut changed = false;
    let mut made = Made::new();
    for op in live {
        let operation = &draft.module.ops[op];
        let (&[x], &[_]) = (&operation.operands[..], &operation.results[..]) else { continue };
        let ty = draft.module.ty(x);
        match operation.kind.clone() {
            OpKind::Softmax { axis } if reductions.softmax.contains(&ty.element) => {
                if let Some(permutation) = to_last(axis, ty.rank())
                    && fits(&ty.shape, axis, reductions.max_extent)
                {
                    softmax_along_last(draft, &mut made, op, permutation, rule);
                    changed = true;
                }
            }
            OpKind::Reduce { kind, axes, keep_dims }
                if reductions.reduce.contains(&ty.element) && reductions.kinds.contains(&kind) =>
            {
                let reduction = Reduction { op, kind, axes, keep_dims };
                changed |= reduce_along_fewer(draft, &mut made, reduction, rule + 1);
            }
            _ => {}
        }
    }
    changed
}

/// The transposed values, by operand and permutation.
type Made = HashMap<(Value, Vec<u32>), Value>;

/// Returns whether the vectors along an axis, and their number, are within a limit, as far as they are known.
fn fits(shape: &[Dim], axis: u32, limit: u64) -> bool {
    let others = shape.iter().enumerate().filter(|(other, _)| *other != axis as usize);
    let others: Vec<Dim> = others.map(|(_, extent)| extent.clone()).collect();
    let is_within = |dim: &Dim| dim.as_fixed().is_none_or(|extent| extent <= limit);
    is_within(&shape[axis as usize]) && dim_product(&others).is_some_and(|others| is_within(&others))
}

/// The permutation that makes an axis the last one; `None` if it is.
fn to_last(axis: u32, rank: usize) -> Option<Vec<u32>> {
    let rank = rank as u32;
    (axis + 1 < rank).then(|| (0..rank).filter(|other| *other != axis).chain([axis]).collect())
}

fn softmax_along_last(draft: &mut Draft, made: &mut Made, op: Op, permutation: Vec<u32>, rule: usize) {
    let operation = &draft.module.ops[op];
    let (x, y) = (operation.operands[0], operation.results[0]);
    let mut writer = Writer { position: draft.note(op).position, draft, made, rule };
    let last = permutation.len() as u32 - 1;
    let inverse = (0..=last).map(|axis| position_of(&permutation, axis)).collect();
    let lines = writer.transposed(x, permutation.clone());
    let shape =
        permutation.iter().map(|axis| writer.draft.module.ty(y).shape[*axis as usize].clone()).collect();
    let ty = TensorType { shape, ..writer.draft.module.ty(y).clone() };
    let name = format!("{}.lines", writer.draft.module.name_of(y));
    let note = writer.note(vec![op]);
    let softmax = writer.draft.add(OpKind::Softmax { axis: last }, vec![lines], &name, ty, note);
    let result = writer.draft.module.ops[softmax].results[0];
    let note = writer.note(Vec::new());
    draft.redefine(&[y], OpKind::Transpose { permutation: inverse }, vec![result], note);
    draft.note_mut(op).successor = Some(softmax);
    draft.remove_unused([op]);
}

/// A reduction and its attributes.
struct Reduction {
    op: Op,
    kind: ReduceKind,
    axes: Vec<u32>,
    keep_dims: bool,
}

/// Merges groups of reduced axes until two are left. Returns false if no transpose is needed.
fn reduce_along_fewer(draft: &mut Draft, made: &mut Made, reduction: Reduction, rule: usize) -> bool {
    let Reduction { op, kind, mut axes, keep_dims } = reduction;
    let operation = &draft.module.ops[op];
    let (x, y) = (operation.operands[0], operation.results[0]);
    let permutation = to_two_groups(draft.module.ty(x).clone(), &mut axes);
    if permutation.is_sorted() {
        return false;
    }
    let mut writer = Writer { position: draft.note(op).position, draft, made, rule };
    let x = writer.transposed(x, permutation);
    let (from, inserted) = (writer.note(vec![op]), writer.note(Vec::new()));
    let kind = OpKind::Reduce { kind, axes: axes.clone(), keep_dims };
    let made = if keep_dims {
        // Extents of 1 are at other places now.
        let mut ty = TensorType { shape: draft.module.ty(x).shape.clone(), ..draft.module.ty(y).clone() };
        axes.iter().for_each(|axis| ty.shape[*axis as usize] = Dim::fixed(1));
        let name = format!("{}.reduced", draft.module.name_of(y));
        let made = draft.add(kind, vec![x], &name, ty, from);
        let result = draft.module.ops[made].results[0];
        draft.redefine(&[y], OpKind::Reshape, vec![result], inserted);
        made
    } else {
        draft.redefine(&[y], kind, vec![x], from)
    };
    draft.note_mut(op).successor = Some(made);
    draft.remove_unused([op]);
    true
}

/// The permutation that leaves at most two groups of reduced axes. `axes` become those of the transposed value.
fn to_two_groups(mut ty: TensorType, axes: &mut [u32]) -> Vec<u32> {
    let mut permutation: Vec<u32> = (0..ty.rank() as u32).collect();
    while let Some(next) = first_beside_second(&ty, axes) {
        axes.iter_mut().for_each(|axis| *axis = position_of(&next, *axis));
        axes.sort_unstable();
        ty.shape = next.iter().map(|axis| ty.shape[*axis as usize].clone()).collect();
        permutation = next.iter().map(|axis| permutation[*axis as usize]).collect();
    }
    permutation
}

/// The permutation that brings the first group of reduced axes beside the second one; `None` if there are at most two
/// groups. Axes with an extent of 1 are in no group.
fn first_beside_second(ty: &TensorType, axes: &[u32]) -> Option<Vec<u32>> {
    let rank = ty.rank() as u32;
    let long = (0..rank).filter(|axis| ty.shape[*axis as usize].as_fixed() != Some(1));
    // By group: whether it is reduced, and its first axis.
    let mut groups: Vec<(bool, u32)> = Vec::new();
    for axis in long {
        let is_reduced = axes.contains(&axis);
        if groups.last().is_none_or(|(last, _)| *last != is_reduced) {
            groups.push((is_reduced, axis));
        }
    }
    let mut starts = groups.iter().enumerate().filter(|(_, (is_reduced, _))| *is_reduced);
    let (Some((first, (_, from))), Some((_, (_, to))), Some(_)) =
        (starts.next(), starts.next(), starts.next())
    else {
        return None;
    };
    // The kept axes between the two groups come first.
    let (_, between) = groups[first + 1];
    Some((0..*from).chain(between..*to).chain(*from..between).chain(*to..rank).collect())
}

/// The number of runs of axes that stay beside each other.
fn runs(permutation: &[u32]) -> usize {
    1 + permutation.windows(2).filter(|pair| pair[1] != pair[0] + 1).count()
}

fn position_of(permutation: &[u32], axis: u32) -> u32 {
    permutation.iter().position(|other| *other == axis).unwrap_or_default() as u32
}

/// Adds the ops that replace one op.
struct Writer<'a> {
    draft: &'a mut Draft,
    made: &'a mut Made,
    position: usize,
    rule: usize,
}

impl Writer<'_> {
    fn note(&self, from: Vec<Op>) -> Note {
        Note { position: self.position, made: Some((from, vec![self.rule])), ..Note::default() }
    }

    /// The value with its axes permuted. If it is a transposed value, both permutations become one where a kernel
    /// takes that. It may be the identity.
    fn transposed(&mut self, x: Value, permutation: Vec<u32>) -> Value {
        let joined = match self.draft.definition(x) {
            Some((op, OpKind::Transpose { permutation: before })) => {
                let both: Vec<u32> = permutation.iter().map(|axis| before[*axis as usize]).collect();
                (runs(&both) <= MAX_MOVE_AXES).then(|| (self.draft.module.ops[op].operands[0], both))
            }
            _ => None,
        };
        let (x, permutation) = joined.unwrap_or((x, permutation));
        if permutation.is_sorted() {
            return x;
        }
        let key = (x, permutation.clone());
        if let Some(known) = self.made.get(&key) {
            return *known;
        }
        let of = self.draft.module.ty(x);
        let shape = permutation.iter().map(|axis| of.shape[*axis as usize].clone()).collect();
        let ty = TensorType { shape, ..of.clone() };
        let name = format!("{}.transposed", self.draft.module.name_of(x));
        let note = self.note(Vec::new());
        let op = self.draft.add(OpKind::Transpose { permutation }, vec![x], &name, ty, note);
        let result = self.draft.module.ops[op].results[0];
        self.made.insert(key, result);
        result
    }
}

#[cfg(test)]
mod tests {
    use fourfold_ir::ElementType;

    use super::*;

    #[test]
    fn a_kernel_transposes_every_operand_to_two_groups() {
        // The rank of a tensor is at most 8.
        for mask in 0u32..1 << 8 {
            let shape = (2..10).map(Dim::fixed).collect();
            let ty = TensorType::new(shape, ElementType::F32);
            let reduced: Vec<u32> = (0..8).filter(|axis| mask >> axis & 1 == 1).collect();
            let mut axes = reduced.clone();
            let permutation = to_two_groups(ty, &mut axes);
            // Elements that one result combines keep their order.
            let found: Vec<u32> = axes.iter().map(|axis| permutation[*axis as usize]).collect();
            assert_eq!(found, reduced, "{mask:08b}");
            assert!(runs(&axes) <= 2 && runs(&permutation) <= MAX_MOVE_AXES, "{mask:08b}: {permutation:?}");
        }
    }
}
