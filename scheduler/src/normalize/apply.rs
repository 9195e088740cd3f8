//! Writes a rewritten region into the draft.

use fourfold_ir::{BinaryKind, Op, OpKind, ScaledMma, Value};

use super::draft::{Draft, Note};
use super::extract::{Made, MemberFate, Reference, Rewritten};
use super::language::{Attribute, OwnAttribute, Tables, Term};
use super::region::Region;

/// Writes a rewritten region into the draft.
pub(crate) fn apply(draft: &mut Draft, tables: &Tables, region: &Region, rewritten: &Rewritten) {
    let results: Vec<Value> = region.ops.iter().map(|op| draft.module.ops[*op].results[0]).collect();
    let mut made: Vec<Op> = Vec::new();
    for new in &rewritten.made {
        let operands = new.operands.iter().flatten().map(|reference| match *reference {
            Reference::Leaf(leaf) => region.leaves[leaf],
            Reference::Member(op) => results[op],
            Reference::Made(position) => draft.module.ops[made[position]].results[0],
        });
        let operands: Vec<Value> = operands.collect();
        let kind = op_kind(tables, new);
        let near = new.defines.or(new.near).map_or(region.ops[0], |op| region.ops[op]);
        let from = new.from.iter().map(|op| region.ops[*op]).collect();
        let note = Note {
            position: draft.note(near).position,
            made: Some((from, new.rules.clone())),
            ..Note::default()
        };
        made.push(match new.defines {
            Some(op) => draft.redefine(&[results[op]], kind, operands, note),
            None => {
                let name = name_of_new(draft, region, new, &kind, &operands);
                draft.add(kind, operands, &name, tables.types.get(new.ty).clone(), note)
            }
        });
    }
    for (position, fate) in rewritten.fates.iter().enumerate() {
        let op = region.ops[position];
        match fate {
            MemberFate::Kept | MemberFate::Unneeded => {}
            MemberFate::Part(new) => draft.note_mut(op).successor = Some(made[*new]),
            MemberFate::Same(reference, rules) => {
                let by = match *reference {
                    Reference::Leaf(leaf) => region.leaves[leaf],
                    Reference::Member(op) => results[op],
                    Reference::Made(position) => draft.module.ops[made[position]].results[0],
                };
                draft.replace(results[position], by);
                let successor =
                    draft.module.defining_op(by).filter(|_| !matches!(reference, Reference::Leaf(_)));
                let note = draft.note_mut(op);
                note.successor = successor;
                note.reasons = rules.clone();
            }
        }
    }
    let touched = rewritten.fates.iter().zip(&region.ops).filter(|(fate, _)| **fate != MemberFate::Kept);
    let kept_unused: Vec<Op> = touched.map(|(_, op)| *op).collect();
    draft.remove_unused(kept_unused);
}

/// The op of a new term.
fn op_kind(tables: &Tables, new: &Made) -> OpKind {
    let present = |operand: usize| new.operands.get(operand).is_some_and(Option::is_some);
    let block = new.attributes.iter().find_map(|attribute| match attribute {
        Attribute::Own(OwnAttribute::Block(block)) => Some(*block),
        _ => None,
    });
    match (&new.term, new.attributes.first()) {
        (Term::Mma(_), _) => OpKind::Mma,
        (Term::ScaledMma(_), _) => OpKind::ScaledMma(ScaledMma {
            block: block.unwrap_or_default(),
            weight_only: !present(1),
            alpha: present(4),
            c: present(5),
            beta: present(6),
        }),
        (Term::Dequantize(_), _) => OpKind::BlockDequantize { block: block.unwrap_or_default() },
        (Term::Swizzle(_), _) => OpKind::SwizzleScales,
        (Term::Reshape(_), _) => OpKind::Reshape,
        (Term::Transpose(_), Some(Attribute::Own(OwnAttribute::Permutation(permutation)))) => {
            OpKind::Transpose { permutation: tables.permutations.get(*permutation).clone() }
        }
        (Term::Convert(_), _) => OpKind::Convert,
        (Term::Unary(_), Some(Attribute::Unary(kind))) => OpKind::Unary(*kind),
        (Term::Binary(_), Some(Attribute::Binary(kind))) => OpKind::Binary(*kind),
        (Term::Clamp(_), Some(Attribute::Bounds([min, max]))) => {
            OpKind::Clamp { min: f64::from_bits(*min), max: f64::from_bits(*max) }
        }
        (Term::Compare(_), Some(Attribute::Predicate(predicate))) => OpKind::Compare(*predicate),
        (Term::Select(_), _) => OpKind::Select,
        (term, _) => unreachable!("{term:?} is not an op with its attributes"),
    }
}

/// The name of a new op, derived from its operands or the op it replaces, so that a reader recognizes it.
fn name_of_new(draft: &Draft, region: &Region, new: &Made, kind: &OpKind, operands: &[Value]) -> String {
    let operand = operands.first().map(|value| draft.module.name_of(*value).to_owned());
    let near = new.near.map(|op| {
        let data = draft.module.ops[region.ops[op]].results.first();
        data.map_or_else(String::new, |value| draft.module.name_of(*value).to_owned())
    });
    let near = near.filter(|name| !name.is_empty()).or_else(|| operand.clone()).unwrap_or_default();
    match kind {
        OpKind::SwizzleScales => {
            let layout = if new.attributes.contains(&Attribute::Own(OwnAttribute::Blocked(true))) {
                "blocked"
            } else {
                "linear"
            };
            format!("{}.{layout}", operand.unwrap_or(near))
        }
        OpKind::Reshape => format!("{}.reshaped", operand.unwrap_or(near)),
        OpKind::Transpose { .. } => format!("{}.transposed", operand.unwrap_or(near)),
        OpKind::Binary(BinaryKind::Mul) if new.from.is_empty() => format!("{near}.alpha"),
        OpKind::Binary(_) if new.from.is_empty() => format!("{near}.doubled"),
        OpKind::Unary(kind) if new.from.is_empty() => format!("{near}.{kind}"),
        OpKind::BlockDequantize { .. } => format!("{near}.dequantized"),
        OpKind::ScaledMma(_) => format!("{near}.product"),
        _ => format!("{near}.moved"),
    }
}
