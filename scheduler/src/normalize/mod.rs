//! Rewrites a program, before it is partitioned, into an equivalent one in which quantized products are `scaled_mma`.
//!
//! A host hands over graphs as frameworks export them: `block_dequantize`, perhaps a reshape, a plain `mma`, a scale.
//! [`crate::partition()`] never takes a plain `mma`. [`normalize`] looks at each multiplication with how its operands
//! are made and what follows it, as a term of its own small language, lets named rules add equal terms until they add
//! nothing, and takes the best. Every rule gives the interpreter's bits (of sums with K above 1188 what any order of
//! summation may give), unless [`NormalizeOptions::contract`] also lets those apply that drop a rounding.
//!
//! Regions are bounded, equal ones are rewritten once, and nothing asks the clock: the result depends on nothing but
//! the arguments, and takes time proportional to the program. Two things are plain code and not terms (`sharing.rs`):
//! ops with two results, and equal swizzles in different regions.

mod activations;
mod apply;
mod cost;
mod draft;
mod expression;
mod extract;
mod language;
mod moves;
mod products;
mod proof;
mod rebuild;
mod region;
mod rule_match;
mod rules;
mod saturate;
mod sharing;

use std::collections::HashSet;

use fourfold_ir::{Entity, Op, OpKind, Program, Value, verify};

use self::apply::apply;
use self::draft::Draft;
use self::language::{Term, Types};
use self::rebuild::rebuild;
use self::region::{region, roots};
use self::rules::RULES;
use self::saturate::Saturation;
use self::sharing::{SHARING_RULES, share};

/// What normalization may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NormalizeOptions {
    /// Also apply rules that drop a rounding which the program states.
    pub contract: bool,
}

/// A normalized program, and how it came from the original.
#[derive(Clone, Debug)]
pub struct Normalized {
    program: Program,
    changed: bool,
    fates: Vec<Fate>,
    origins: Vec<Origin>,
    values: Vec<Option<Value>>,
}

/// One application of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The rule's name.
    pub rule: &'static str,
    /// Whether it drops a rounding.
    pub contract: bool,
}

/// A rule of normalization, for lists of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormalizeRule {
    /// The name that proofs give it.
    pub name: &'static str,
    /// The reason it changes no bit; of a contract rule, which roundings it drops, and behind `Range:` what it takes to be in
    /// range. One that takes nothing so keeps every NaN and infinity.
    pub why: &'static str,
    /// Whether it drops a rounding.
    pub contract: bool,
}

/// What became of an op of the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is this op of the new program, perhaps with other operands.
    Kept(Op),
    /// This op of the new program took its part.
    Part {
        /// The op.
        op: Op,
        /// The rules that say so, in order.
        steps: Vec<Step>,
    },
    /// Nothing uses it any more.
    Gone {
        /// The rules by which its users came to do without it; empty when they are gone too.
        steps: Vec<Step>,
    },
}

/// Where an op of the new program is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is this op of the original.
    Kept(Op),
    /// It was made.
    Made {
        /// The ops of the original whose part it takes; none when it was inserted.
        from: Vec<Op>,
        /// The rules that justify it, in order.
        steps: Vec<Step>,
    },
}

impl Normalized {
    /// The new program. Its inputs, outputs and symbols are those of the original, and every value that is still there
    /// has its name.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether it differs from the original.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// What became of an op of the original.
    pub fn fate(&self, op: Op) -> &Fate {
        &self.fates[op.index()]
    }

    /// Where an op of the new program is from.
    pub fn origin(&self, op: Op) -> &Origin {
        &self.origins[op.index()]
    }

    /// The value of the new program that is this value of the original.
    pub fn value(&self, value: Value) -> Option<Value> {
        self.values.get(value.index()).copied().flatten()
    }

    /// The ops of the new program that rules justify which drop a rounding, each with those rules.
    pub fn contracted(&self) -> impl Iterator<Item = (Op, Vec<&'static str>)> {
        self.program.module().ops.keys().filter_map(|op| {
            let Origin::Made { steps, .. } = self.origin(op) else { return None };
            // What only moves elements rounds nothing, whatever made it necessary.
            let kind = &self.program.module().ops[op].kind;
            if matches!(kind, OpKind::SwizzleScales | OpKind::Reshape | OpKind::Transpose { .. }) {
                return None;
            }
            let rules: Vec<_> = steps.iter().filter(|step| step.contract).map(|step| step.rule).collect();
            (!rules.is_empty()).then_some((op, rules))
        })
    }

    /// A program as it is.
    pub fn unchanged(program: Program) -> Normalized {
        let module = program.module();
        let fates = module.ops.keys().map(Fate::Kept).collect();
        let origins = module.ops.keys().map(Origin::Kept).collect();
        let values = module.values.keys().map(Some).collect();
        Normalized { changed: false, fates, origins, values, program }
    }
}

/// Every rule of normalization, in the order in which proofs prefer them.
pub fn normalize_rules() -> impl Iterator<Item = NormalizeRule> {
    let rules =
        RULES.iter().map(|rule| NormalizeRule { name: rule.name, why: rule.why, contract: rule.contract });
    let sharing =
        SHARING_RULES.iter().map(|rule| NormalizeRule { name: rule.name, why: rule.why, contract: false });
    rules.chain(sharing)
}

/// Rewrites a program into an equivalent one in which products of block-scaled operands are `scaled_mma`. Total; the
/// result depends on nothing but the arguments.
pub fn normalize(program: &Program, options: &NormalizeOptions) -> Normalized {
    /// What a region becomes may let another one go on: each round lets all of them, and more than three were never
    /// needed.
    const MOST_ROUNDS: usize = 6;
    let mut draft = Draft::new(program);
    let mut saturation: Option<Saturation> = None;
    let mut changed = false;
    for _ in 0..MOST_ROUNDS {
        let mut again = false;
        for root in roots(&draft) {
            if draft.note(root).gone {
                continue;
            }
            let saturation = saturation.get_or_insert_with(|| Saturation::new(compiled(*options)));
            let region = region(&draft, &mut saturation.tables, root);
            if let Some(rewritten) = saturation.rewrite(&region.expression) {
                apply(&mut draft, &saturation.tables, &region, &rewritten);
                again = true;
            }
        }
        again |= share(&mut draft, RULES.len());
        changed |= again;
        if !again {
            break;
        }
    }
    let normalized = if changed { finished(program, draft) } else { None };
    normalized.unwrap_or_else(|| Normalized::unchanged(program.clone()))
}

/// The rules that may apply.
fn compiled(options: NormalizeOptions) -> Vec<egg::Rewrite<Term, Types>> {
    let rules = RULES.iter().enumerate().filter(|(_, rule)| options.contract || !rule.contract);
    rules.map(|(position, rule)| rule_match::compile(position, rule)).collect()
}

/// The new program with all that is known of it; `None` when it is not one, which is a bug of ours.
fn finished(program: &Program, mut draft: Draft) -> Option<Normalized> {
    let Some(rebuilt) = rebuild(&mut draft) else {
        debug_assert!(false, "a rule made an op depend on itself");
        return None;
    };
    let original_ops = program.module().ops.len();
    let mut new_ops = vec![None; draft.module.ops.len()];
    for (index, op) in rebuilt.ops.iter().enumerate() {
        new_ops[op.index()] = Some(Op::from_index(index));
    }
    let fates = program.module().ops.keys().map(|op| fate(&draft, &new_ops, op)).collect();
    let origins = rebuilt
        .ops
        .iter()
        .map(|op| {
            if op.index() < original_ops {
                return Origin::Kept(*op);
            }
            let (mut from, mut rules, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
            trace(&draft, *op, &mut from, &mut rules, &mut seen);
            from.sort_unstable();
            from.dedup();
            Origin::Made { from, steps: steps(&rules) }
        })
        .collect();
    let values = rebuilt.values[..program.module().values.len()].to_vec();
    let verified = match verify(rebuilt.module) {
        Ok(verified) => verified,
        Err(invalid) => {
            debug_assert!(false, "normalization made an invalid program: {:?}", invalid.errors);
            return None;
        }
    };
    Some(Normalized { program: verified, changed: true, fates, origins, values })
}

fn fate(draft: &Draft, new_ops: &[Option<Op>], op: Op) -> Fate {
    let mut current = op;
    let mut rules = Vec::new();
    // Each successor was made later, or stands for the same value: a chain has no more links than there are ops.
    for _ in 0..draft.module.ops.len() {
        let note = draft.note(current);
        if let Some(new) = new_ops[current.index()] {
            return if current == op {
                Fate::Kept(new)
            } else {
                Fate::Part { op: new, steps: steps(&rules) }
            };
        }
        rules.extend(&note.reasons);
        let Some(next) = note.successor else { break };
        rules.extend(draft.note(next).made.iter().flat_map(|(_, rules)| rules));
        current = next;
    }
    Fate::Gone { steps: steps(&rules) }
}

/// The ops of the original that a new op is from, and the rules, those of earlier rounds first.
fn trace(draft: &Draft, op: Op, from: &mut Vec<Op>, rules: &mut Vec<usize>, seen: &mut HashSet<Op>) {
    if !seen.insert(op) {
        return;
    }
    match &draft.note(op).made {
        None => from.push(op),
        Some((ops, own)) => {
            for op in ops {
                trace(draft, *op, from, rules, seen);
            }
            rules.extend(own);
        }
    }
}

/// The rules as steps, one that repeats itself once.
fn steps(rules: &[usize]) -> Vec<Step> {
    let mut rules = rules.to_vec();
    rules.dedup();
    rules
        .into_iter()
        .map(|rule| match RULES.get(rule) {
            Some(rule) => Step { rule: rule.name, contract: rule.contract },
            None => Step { rule: SHARING_RULES[rule - RULES.len()].name, contract: false },
        })
        .collect()
}
