//! The axes of reductions, for a target. Kernels compute a `softmax` along the last axis, and a `reduce` along at most two
//! groups of axes. Transposes bring other axes there.

use fourfold_ir::{Capabilities, Dim, ElementType, Op, OpKind, ReduceKind, TensorType, Value};

use super::NormalizeRule;
use super::draft::{Draft, Note};

/// All rules of this module. Their positions follow those of the rules for the layout of scales.
pub(crate) const AXES_RULES: &[NormalizeRule] = &[
    NormalizeRule {
        name: "softmax-along-last-axis",
        why: "a transpose moves elements, and softmax computes each line along its axis alone",
        contract: false,
    },
    NormalizeRule {
        name: "reduction-along-fewer-groups",
        why: "a transpose moves elements, and those of one result stay in their order",
        contract: false,
    },
];

/// The softmaxes and reductions that a target computes along some axes, if it also transposes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reductions {
    softmax: Vec<ElementType>,
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
    for op in live {
        let operation = &draft.module.ops[op];
        let (&[x], &[_]) = (&operation.operands[..], &operation.results[..]) else { continue };
        let ty = draft.module.ty(x);
        match operation.kind.clone() {
            OpKind::Softmax { axis } if reductions.softmax.contains(&ty.element) => {
                if let Some(permutation) = to_last(axis, ty.rank()) {
                    softmax_along_last(draft, op, permutation, rule);
                    changed = true;
                }
            }
            OpKind::Reduce { kind, axes, keep_dims }
                if reductions.reduce.contains(&ty.element) && reductions.kinds.contains(&kind) =>
            {
                changed |= reduce_along_fewer(draft, op, kind, axes, keep_dims, rule + 1);
            }
            _ => {}
        }
    }
    changed
}

/// The permutation that makes an axis the last one; `None` if it is.
fn to_last(axis: u32, rank: usize) -> Option<Vec<u32>> {
    let rank = rank as u32;
    (axis + 1 < rank).then(|| (0..rank).filter(|other| *other != axis).chain([axis]).collect())
}

fn softmax_along_last(draft: &mut Draft, op: Op, permutation: Vec<u32>, rule: usize) {
    let operation = &draft.module.ops[op];
    let (x, y) = (operation.operands[0], operation.results[0]);
    let mut writer = Writer { position: draft.note(op).position, draft, rule };
    let last = permutation.len() as u32 - 1;
    let inverse = (0..=last).map(|axis| position_of(&permutation, axis)).collect();
    let lines = writer.transposed(x, permutation.clone());
    let shape =
        permutation.iter().map(|axis| writer.draft.module.ty(y).shape[*axis as usize].clone()).collect();
    let ty = TensorType { shape, ..writer.draft.module.ty(y).clone() };
    let name = format!("{}.lines", writer.draft.module.name_of(y));
    let note = writer.note(vec![op]);
    let made = writer.draft.add(OpKind::Softmax { axis: last }, vec![lines], &name, ty, note);
    let result = writer.draft.module.ops[made].results[0];
    let note = writer.note(Vec::new());
    draft.redefine(&[y], OpKind::Transpose { permutation: inverse }, vec![result], note);
    draft.note_mut(op).successor = Some(made);
    draft.remove_unused([op]);
}

/// Transposes until two groups of reduced axes are left; returns false if there are no more from the beginning.
fn reduce_along_fewer(
    draft: &mut Draft,
    op: Op,
    kind: ReduceKind,
    mut axes: Vec<u32>,
    keep_dims: bool,
    rule: usize,
) -> bool {
    let operation = &draft.module.ops[op];
    let (x, y) = (operation.operands[0], operation.results[0]);
    let mut ty = draft.module.ty(x).clone();
    let mut permutation: Vec<u32> = (0..ty.rank() as u32).collect();
    while let Some(next) = first_beside_second(&ty, &axes) {
        axes = axes.iter().map(|axis| position_of(&next, *axis)).collect();
        axes.sort_unstable();
        ty.shape = next.iter().map(|axis| ty.shape[*axis as usize].clone()).collect();
        permutation = next.iter().map(|axis| permutation[*axis as usize]).collect();
    }
    if permutation.is_sorted() {
        return false;
    }
    let mut writer = Writer { position: draft.note(op).position, draft, rule };
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

fn position_of(permutation: &[u32], axis: u32) -> u32 {
    permutation.iter().position(|other| *other == axis).unwrap_or_default() as u32
}

/// Adds the ops that replace one op.
struct Writer<'a> {
    draft: &'a mut Draft,
    position: usize,
    rule: usize,
}

impl Writer<'_> {
    fn note(&self, from: Vec<Op>) -> Note {
        Note { position: self.position, made: Some((from, vec![self.rule])), ..Note::default() }
    }

    /// The value with its axes permuted. If it is a transposed value, both permutations become one, which may be none.
    fn transposed(&mut self, x: Value, permutation: Vec<u32>) -> Value {
        let (x, permutation) = match self.draft.definition(x) {
            Some((op, OpKind::Transpose { permutation: before })) => {
                let both = permutation.iter().map(|axis| before[*axis as usize]).collect();
                (self.draft.module.ops[op].operands[0], both)
            }
            _ => (x, permutation),
        };
        if permutation.is_sorted() {
            return x;
        }
        let of = self.draft.module.ty(x);
        let shape = permutation.iter().map(|axis| of.shape[*axis as usize].clone()).collect();
        let ty = TensorType { shape, ..of.clone() };
        let name = format!("{}.transposed", self.draft.module.name_of(x));
        let note = self.note(Vec::new());
        let op = self.draft.add(OpKind::Transpose { permutation }, vec![x], &name, ty, note);
        self.draft.module.ops[op].results[0]
    }
}
