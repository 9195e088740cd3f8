//! Rewrites without an e-graph: swizzles of quantized scales, because `block_quantize` has two results; equal swizzles,
//! because several regions share them; and broadcast operands, because the e-graph has no term for a broadcast.

use std::collections::HashMap;

use fourfold_ir::{Op, OpKind, Operation, ScaleLayout, Shape, Value, broadcast_shape};

use super::draft::{Draft, Note};

/// A rule of this module, as listed by [`super::normalize_rules`].
pub(crate) struct SharingRule {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
}

/// All rules of this module. Their positions follow those of the e-graph's rules.
pub(crate) const SHARING_RULES: &[SharingRule] = &[
    SharingRule {
        name: "equal-swizzles-are-one",
        why: "the same scales in the same layout are the same bytes",
    },
    SharingRule {
        name: "quantize-gives-blocked-scales",
        why: "block_quantize writes the same scales in either layout, and zero into the padding as a swizzle does",
    },
    SharingRule {
        name: "operand-repeats-itself",
        why: "an elementwise op repeats its operands as a broadcast does, and the result has the same shape",
    },
];

/// Applies the rules; returns true if something changed. `first` is the position of the first rule.
pub(crate) fn share(draft: &mut Draft, first: usize) -> bool {
    let merged = merge_swizzles(draft, first);
    let quantized = quantize_blocked(draft, first + 1);
    let repeated = repeat(draft, first);
    merged || quantized || repeated
}

/// Makes elementwise ops read the operand of a broadcast, which kernels read as a row or a scalar. `first` is the
/// position of the first rule of this module.
pub(crate) fn repeat(draft: &mut Draft, first: usize) -> bool {
    let rule = first + 2;
    let is_elementwise =
        |kind: &OpKind| matches!(kind, OpKind::Binary(_) | OpKind::Compare(_) | OpKind::Select);
    let is_candidate =
        |(op, operation): &(Op, &Operation)| is_elementwise(&operation.kind) && !draft.note(*op).gone;
    let candidates = draft.module.ops.iter().filter(is_candidate);
    let candidates: Vec<(Op, Value)> =
        candidates.filter_map(|(op, operation)| Some((op, *operation.results.first()?))).collect();
    let mut changed = false;
    for (op, result) in candidates {
        for position in 0..draft.module.ops[op].operands.len() {
            let operand = draft.module.ops[op].operands[position];
            let Some((broadcast, OpKind::Broadcast)) = draft.definition(operand) else { continue };
            let mut operands = draft.module.ops[op].operands.clone();
            operands[position] = draft.module.ops[broadcast].operands[0];
            let shapes = operands.iter().map(|operand| &draft.module.ty(*operand).shape);
            let joined =
                shapes.into_iter().try_fold(Shape::new(), |joined, shape| broadcast_shape(&joined, shape));
            if joined.as_ref() != Some(&draft.module.ty(result).shape) {
                continue;
            }
            draft.set_operand(op, position, operands[position]);
            draft.remove_unused([broadcast]);
            if draft.note(broadcast).gone {
                draft.note_mut(broadcast).reasons = vec![rule];
            }
            changed = true;
        }
    }
    changed
}

fn swizzles(draft: &Draft) -> Vec<Op> {
    let mut swizzles: Vec<Op> = draft
        .module
        .ops
        .iter()
        .filter(|(op, operation)| !draft.note(*op).gone && operation.kind == OpKind::SwizzleScales)
        .map(|(op, _)| op)
        .collect();
    swizzles.sort_by_key(|op| (draft.note(*op).position, *op));
    swizzles
}

/// Replaces equal swizzles by the first. A swizzle that defines an output stays, to keep the name, as does an
/// unused one.
fn merge_swizzles(draft: &mut Draft, rule: usize) -> bool {
    let mut known: HashMap<(Value, Option<ScaleLayout>), Op> = HashMap::new();
    let mut changed = false;
    for op in swizzles(draft) {
        let (operand, result) = (draft.module.ops[op].operands[0], draft.module.ops[op].results[0]);
        let first = *known.entry((operand, draft.module.ty(result).layout)).or_insert(op);
        if first == op || draft.users(result).is_empty() {
            continue;
        }
        let by = draft.module.ops[first].results[0];
        draft.replace(result, by);
        if !draft.is_output(result) {
            let note = draft.note_mut(op);
            note.successor = Some(first);
            note.reasons = vec![rule];
            draft.remove_unused([op]);
        }
        changed = true;
    }
    changed
}

/// Makes a `block_quantize` write blocked scales if its linear scales are only swizzled.
fn quantize_blocked(draft: &mut Draft, rule: usize) -> bool {
    let mut changed = false;
    for swizzle in swizzles(draft) {
        let (scales, blocked) = (draft.module.ops[swizzle].operands[0], draft.module.ops[swizzle].results[0]);
        let Some((quantize, OpKind::BlockQuantize { .. })) = draft.definition(scales) else { continue };
        let is_alone = !draft.is_output(scales) && draft.users(scales).len() == 1;
        let layouts = [scales, blocked].map(|value| draft.module.ty(value).layout);
        if !is_alone || layouts != [Some(ScaleLayout::Linear), Some(ScaleLayout::Blocked)] {
            continue;
        }
        let note = Note {
            position: draft.note(quantize).position,
            made: Some((vec![quantize, swizzle], vec![rule])),
            ..Note::default()
        };
        let codes = draft.module.ops[quantize].results[0];
        let (kind, operands) = {
            let operation = &draft.module.ops[quantize];
            (operation.kind.clone(), operation.operands.clone())
        };
        let made = draft.redefine(&[codes, blocked], kind, operands, note);
        for op in [quantize, swizzle] {
            let note = draft.note_mut(op);
            note.successor = Some(made);
            note.reasons.clear();
        }
        draft.remove_unused([swizzle, quantize]);
        changed = true;
    }
    changed
}
