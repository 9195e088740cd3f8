//! What is rewritten without a graph of terms, as it is about ops with two results and about ops that several regions
//! share: swizzles of quantized scales, and equal swizzles.

use std::collections::HashMap;

use fourfold_ir::{Op, OpKind, ScaleLayout, Value};

use super::draft::{Draft, Note};

/// A rule that is applied here, for the list of rules.
pub(crate) struct SharingRule {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
}

/// Every rule of this module. Their positions follow those of the other rules.
pub(crate) const SHARING_RULES: &[SharingRule] = &[
    SharingRule {
        name: "equal-swizzles-are-one",
        why: "the same scales in the same layout are the same bytes",
    },
    SharingRule {
        name: "quantize-gives-blocked-scales",
        why: "block_quantize writes the same scales in either layout, and zero into the padding as a swizzle does",
    },
];

/// Applies both; true when something changed. `first` is the position of the first of the rules.
pub(crate) fn share(draft: &mut Draft, first: usize) -> bool {
    let merged = merge_swizzles(draft, first);
    let quantized = quantize_blocked(draft, first + 1);
    merged || quantized
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

/// Of equal swizzles only the first is used. One that gives an output stays, for its name, as does one that nothing
/// uses.
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

/// A `block_quantize` whose linear scales only swizzles use writes them blocked.
fn quantize_blocked(draft: &mut Draft, rule: usize) -> bool {
    let mut changed = false;
    for swizzle in swizzles(draft) {
        let (scales, blocked) = (draft.module.ops[swizzle].operands[0], draft.module.ops[swizzle].results[0]);
        let Some((quantize, OpKind::BlockQuantize { .. })) = draft.definition(scales) else { continue };
        let is_alone = !draft.is_output(scales) && draft.users(scales).len() == 1;
        if !is_alone || draft.module.ty(scales).layout != Some(ScaleLayout::Linear) {
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
