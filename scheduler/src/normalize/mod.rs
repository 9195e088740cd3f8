//! Rewrites a program before partitioning, so that products of dequantized operands become `scaled_mma`.
//!
//! Frameworks export quantized products as `block_dequantize`, perhaps a reshape, a plain `mma`, and a scale.
//! [`crate::partition()`] makes no kernel of a plain `mma`. For each multiplication, [`normalize`]:
//! 1. Collects a region: the multiplication, the ops that make its operands, and the ops that follow.
//! 2. Lets named rules add equal terms until they add nothing.
//! 3. Extracts the cheapest form of the region.
//!
//! Every rule preserves the interpreter's bits. The one exception is a sum with K above 1188, which may take
//! the result of any order of summation. [`NormalizeOptions::contract`] additionally enables rules that drop
//! a rounding.
//!
//! Regions are bounded, equal regions are rewritten once, and no limit is a time. The result depends on the
//! arguments only. The time is proportional to the size of the program. Some rewrites are plain code, not
//! rules of the e-graph: ops with two results and equal swizzles in different regions (`sharing.rs`), quantization and
//! norms written out op by op (`written.rs`), products that the target has no kernel for (`weight_only.rs`), pairs of
//! products that an op combines (`pairs.rs`), the layout of scales (`linear_scales.rs`), and the axes of reductions
//! (`axes.rs`).

mod activations;
mod apply;
mod axes;
mod cost;
mod draft;
mod expression;
mod extract;
mod interleave;
mod language;
mod linear_scales;
mod moves;
mod pairs;
mod products;
mod proof;
mod rebuild;
mod region;
mod rule_match;
mod rules;
mod saturate;
mod sharing;
mod slices;
mod weight_only;
mod written;

use std::collections::HashSet;
use std::sync::Arc;

use fourfold_ir::{Capabilities, Entity, Op, OpKind, Program, Value, verify};

use self::apply::apply;
use self::axes::{AXES_RULES, Reductions, transpose_axes};
use self::draft::Draft;
use self::language::{Term, Types};
use self::linear_scales::{LINEAR_SCALES_RULES, Layouts, read_linear, swizzle};
use self::pairs::{PAIR_RULES, Pairs, pair};
use self::rebuild::rebuild;
use self::region::{region, roots};
use self::rules::RULES;
use self::saturate::Saturation;
use self::sharing::{SHARING_RULES, repeat, share};
use self::weight_only::{WEIGHT_ONLY_RULES, WeightOnly, lower};
pub(crate) use self::written::near_miss;
use self::written::{WRITTEN_RULES, recognize};

/// Options of normalization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NormalizeOptions {
    /// Also apply the rules that drop a rounding which the program states.
    pub contract: bool,
}

/// A normalized program, and its relation to the original.
#[derive(Clone, Debug)]
pub struct Normalized {
    program: Arc<Program>,
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
    /// True if the rule drops a rounding.
    pub contract: bool,
}

/// A rule of normalization, as listed by [`normalize_rules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormalizeRule {
    /// The name in proofs.
    pub name: &'static str,
    /// The reason why the rule changes no bit. A contract rule instead names the roundings that it drops, and
    /// after `Range:` the values that it assumes to be in range. Without `Range:` it keeps every NaN and
    /// infinity.
    pub why: &'static str,
    /// True if the rule drops a rounding.
    pub contract: bool,
}

/// The fate of an op of the original program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The op remains, as this op of the new program. Its operands may differ.
    Kept(Op),
    /// This op of the new program replaces it.
    Part {
        /// The op.
        op: Op,
        /// The rules that justify the replacement, in order.
        steps: Vec<Step>,
    },
    /// The op is removed, because nothing uses it.
    Gone {
        /// The rules that removed its uses; empty if its users are removed too.
        steps: Vec<Step>,
    },
}

/// The origin of an op of the new program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The op is this op of the original.
    Kept(Op),
    /// The op is new.
    Made {
        /// The ops of the original that it replaces; empty if it was inserted.
        from: Vec<Op>,
        /// The rules that justify it, in order.
        steps: Vec<Step>,
    },
}

impl Normalized {
    /// The new program. Inputs, outputs and symbols are the original's. Every remaining value keeps its name.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// [`Normalized::program`], for owners that outlive this.
    pub fn shared_program(&self) -> Arc<Program> {
        Arc::clone(&self.program)
    }

    /// Returns whether the program differs from the original.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// The fate of an op of the original.
    pub fn fate(&self, op: Op) -> &Fate {
        &self.fates[op.index()]
    }

    /// The origin of an op of the new program.
    pub fn origin(&self, op: Op) -> &Origin {
        &self.origins[op.index()]
    }

    /// The value of the new program that corresponds to a value of the original; `None` if it was removed.
    pub fn value(&self, value: Value) -> Option<Value> {
        self.values.get(value.index()).copied().flatten()
    }

    /// The ops of the new program that drop a rounding, each with the contract rules that justify it.
    pub fn contracted(&self) -> impl Iterator<Item = (Op, Vec<&'static str>)> {
        self.program.module().ops.keys().filter_map(|op| {
            let Origin::Made { steps, .. } = self.origin(op) else { return None };
            // An op that only moves elements rounds nothing, whichever rule inserted it.
            let kind = &self.program.module().ops[op].kind;
            if matches!(kind, OpKind::SwizzleScales | OpKind::Reshape | OpKind::Transpose { .. }) {
                return None;
            }
            let rules: Vec<_> = steps.iter().filter(|step| step.contract).map(|step| step.rule).collect();
            (!rules.is_empty()).then_some((op, rules))
        })
    }

    /// Wraps a program without rewriting it.
    pub fn unchanged(program: Program) -> Normalized {
        let module = program.module();
        let fates = module.ops.keys().map(Fate::Kept).collect();
        let origins = module.ops.keys().map(Origin::Kept).collect();
        let values = module.values.keys().map(Some).collect();
        Normalized { changed: false, fates, origins, values, program: Arc::new(program) }
    }
}

/// The positions of the first rules of each table among those of [`normalize_rules`].
const SHARING: usize = RULES.len();
const WRITTEN: usize = SHARING + SHARING_RULES.len();
const WEIGHT_ONLY: usize = WRITTEN + WRITTEN_RULES.len();
const PAIRS: usize = WEIGHT_ONLY + WEIGHT_ONLY_RULES.len();
const LINEAR_SCALES: usize = PAIRS + PAIR_RULES.len();
const AXES: usize = LINEAR_SCALES + LINEAR_SCALES_RULES.len();

/// All rules of normalization, in the order in which proofs prefer them.
pub fn normalize_rules() -> impl Iterator<Item = NormalizeRule> {
    let rules =
        RULES.iter().map(|rule| NormalizeRule { name: rule.name, why: rule.why, contract: rule.contract });
    let sharing =
        SHARING_RULES.iter().map(|rule| NormalizeRule { name: rule.name, why: rule.why, contract: false });
    let written = WRITTEN_RULES.iter().map(|rule| NormalizeRule {
        name: rule.name,
        why: rule.why,
        contract: rule.contract,
    });
    let of_target =
        WEIGHT_ONLY_RULES.iter().chain(PAIR_RULES).chain(LINEAR_SCALES_RULES).chain(AXES_RULES).copied();
    rules.chain(sharing).chain(written).chain(of_target)
}

/// Rewrites a program into an equivalent one in which products of block-scaled operands are `scaled_mma`.
/// Never fails. The result depends on the arguments only.
///
/// Products of a 16-bit value and a dequantized weight stay as they are: [`normalize_for`] rewrites them.
pub fn normalize(program: &Program, options: &NormalizeOptions) -> Normalized {
    normalize_by(program, options, Target::default())
}

/// Like [`normalize`], for a target. A product of a 16-bit value and a dequantized weight becomes a weight-only
/// `scaled_mma` if the target has a kernel for it. Otherwise a weight-only `scaled_mma` becomes an `mma` of the dequantized
/// weight, if the target's library computes it. Two products that an op combines become one of a rearranged weight, if the
/// target has a kernel for all three ([`Capabilities::formats`], `pairs`). Linear scales that kernels do not read are
/// swizzled, and a swizzle before an sfa that they read linear is dropped (`has_linear_scales`). Transposes bring the
/// axes of `softmax` and `reduce` to where the target's kernels compute them.
pub fn normalize_for(
    program: &Program,
    options: &NormalizeOptions,
    capabilities: &Capabilities,
) -> Normalized {
    let target = Target {
        weight_only: WeightOnly::of(capabilities),
        pairs: Pairs::of(capabilities),
        layouts: Layouts::of(capabilities),
        reductions: Reductions::of(capabilities),
    };
    normalize_by(program, options, target)
}

/// The parts of a target's capabilities that decide rewrites; the default has none.
#[derive(Default)]
struct Target<'a> {
    weight_only: WeightOnly,
    pairs: Pairs,
    layouts: Layouts<'a>,
    reductions: Reductions,
}

fn normalize_by(program: &Program, options: &NormalizeOptions, target: Target<'_>) -> Normalized {
    /// The maximum number of rounds. A rewritten region may enable rules in another, so each round visits all regions.
    /// No known program needs more than three.
    const MOST_ROUNDS: usize = 6;
    let mut draft = Draft::new(program);
    let mut saturation: Option<Saturation> = None;
    // Before the rounds, so that their rules see the ops that were written out, and rows that are not repeated.
    let mut changed = recognize(&mut draft, WRITTEN, options.contract);
    changed |= repeat(&mut draft, SHARING);
    let Target { weight_only, pairs, layouts, reductions } = target;
    changed |= lower(&mut draft, &weight_only, WEIGHT_ONLY, options.contract);
    changed |= swizzle(&mut draft, program, &layouts, LINEAR_SCALES + 1);
    // Rules of the rounds may merge the transposes with others.
    changed |= transpose_axes(&mut draft, &reductions, AXES);
    for _ in 0..MOST_ROUNDS {
        let mut again = false;
        for root in roots(&draft) {
            if draft.note(root).gone {
                continue;
            }
            let saturation =
                saturation.get_or_insert_with(|| Saturation::new(compiled(*options), weight_only.clone()));
            let region = region(&draft, &mut saturation.tables, root);
            if let Some(rewritten) = saturation.rewrite(&region.expression) {
                apply(&mut draft, &saturation.tables, &region, &rewritten);
                again = true;
            }
        }
        again |= share(&mut draft, SHARING);
        // A rule may have removed the difference of two quantizations.
        again |= recognize(&mut draft, WRITTEN, options.contract);
        changed |= again;
        if !again {
            break;
        }
    }
    // After the rounds: products of several forms are `scaled_mma` now.
    if pair(&mut draft, &pairs, PAIRS) {
        changed = true;
        // Both halves of a weight have the same linear scales.
        share(&mut draft, SHARING);
    }
    // Last: `share` lets `block_quantize` write blocked scales, and removes their swizzles.
    changed |= read_linear(&mut draft, &layouts, LINEAR_SCALES);
    let normalized = if changed { finished(program, draft) } else { None };
    normalized.unwrap_or_else(|| Normalized::unchanged(program.clone()))
}

/// The enabled rules, compiled for egg.
fn compiled(options: NormalizeOptions) -> Vec<egg::Rewrite<Term, Types>> {
    let rules = RULES.iter().enumerate().filter(|(_, rule)| options.contract || !rule.contract);
    rules.map(|(position, rule)| rule_match::compile(position, rule)).collect()
}

/// The new program with the fates and origins of its ops; `None` if the draft is invalid, which is a bug
/// here.
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
    Some(Normalized { program: Arc::new(verified), changed: true, fates, origins, values })
}

fn fate(draft: &Draft, new_ops: &[Option<Op>], op: Op) -> Fate {
    let mut current = op;
    let mut rules = Vec::new();
    // Each successor is newer or defines the same value, so a chain is no longer than the number of ops.
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

/// Collects the original ops that a new op replaces, and the rules, those of earlier rounds first.
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

/// The rules as steps, without consecutive duplicates.
fn steps(rules: &[usize]) -> Vec<Step> {
    let mut rules = rules.to_vec();
    rules.dedup();
    let step = |rule: usize| {
        let rule = normalize_rules().nth(rule).expect("a rule has a position");
        Step { rule: rule.name, contract: rule.contract }
    };
    rules.into_iter().map(step).collect()
}
