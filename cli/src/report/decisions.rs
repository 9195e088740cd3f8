//! The decision on each op and the justification of each kernel.

use std::collections::BTreeSet;

use fourfold::Planned;
use fourfold_ir::{Entity, Op, OpKind};
use fourfold_scheduler::{
    Decision, EpilogueKind, Fate, Origin, OutputKind, Partition, ScaledMmaPlan, Segment, Step,
};

use super::DecisionReport;

/// Returns one decision for each op of the original, in order, and one for each op that normalization inserted.
pub(super) fn decisions(planned: &Planned) -> Vec<DecisionReport> {
    let (original, module) = (planned.original().module(), planned.program().module());
    let (normalized, partition) = (planned.normalized(), planned.partition());
    let of = |op: Op| &partition.decisions[op.index()];
    let own = original.ops.keys().map(|op| {
        let label = original.op_label(op);
        match normalized.fate(op) {
            Fate::Kept(new) => report(label, of(*new), message(partition, *new, of(*new))),
            Fate::Part { op: new, steps } => {
                let became = module.op_label(*new);
                let by = steps_text(steps);
                let rest = message(partition, *new, of(*new));
                let text = format!("became {became} by {by}; {rest}");
                DecisionReport { became: Some(became), ..report(label, of(*new), text) }
            }
            Fate::Gone { steps } => {
                let why = if steps.is_empty() { String::new() } else { format!(" ({})", steps_text(steps)) };
                DecisionReport {
                    op: label,
                    segment: None,
                    code: None,
                    message: format!("removed: nothing uses its result{why}"),
                    advice: None,
                    became: None,
                    inserted: false,
                }
            }
        }
    });
    let inserted = module.ops.keys().filter_map(|op| match normalized.origin(op) {
        Origin::Made { from, steps } if from.is_empty() => {
            let rest = message(partition, op, of(op));
            let text = format!("inserted by {}; {rest}", steps_text(steps));
            Some(DecisionReport { inserted: true, ..report(module.op_label(op), of(op), text) })
        }
        _ => None,
    });
    own.chain(inserted).collect()
}

fn report(op: String, decision: &Decision, message: String) -> DecisionReport {
    DecisionReport {
        op,
        segment: Some(decision.segment),
        code: decision.rejection.as_ref().map(|rejection| rejection.code.as_str()),
        message,
        advice: decision.rejection.as_ref().map(|rejection| rejection.code.advice()),
        became: None,
        inserted: false,
    }
}

fn message(partition: &Partition, op: Op, decision: &Decision) -> String {
    match &decision.rejection {
        Some(rejection) => rejection.message.clone(),
        None => accepted_message(partition, op, decision.segment),
    }
}

fn accepted_message(partition: &Partition, op: Op, segment: usize) -> String {
    let plan = partition.segments.get(segment).and_then(|segment| segment.kernel());
    let role = match plan {
        Some(plan) if plan.root == op => "root",
        Some(plan) if plan.pair.as_ref().is_some_and(|pair| [pair.even, pair.odd].contains(&op)) => {
            "half of the product"
        }
        Some(plan) => match plan.epilogue.iter().find(|step| step.op == op).map(|step| &step.kind) {
            Some(EpilogueKind::Constant { .. }) => "constant",
            Some(EpilogueKind::Convert) => "conversion",
            Some(_) => "epilogue",
            // Ops without a step are outputs, such as reductions.
            None => "output",
        },
        None => "part",
    };
    format!("{role} of the kernel of segment {segment}")
}

/// Returns the ops of the normalized program that lost a rounding, each with the rules that drop it.
pub(super) fn contracted(planned: &Planned) -> Vec<String> {
    let module = planned.program().module();
    let line = |(op, rules): (Op, Vec<&str>)| {
        let rules: BTreeSet<&str> = rules.into_iter().collect();
        format!("{} by {}", module.op_label(op), rules.into_iter().collect::<Vec<_>>().join(", "))
    };
    planned.normalized().contracted().map(line).collect()
}

/// Returns the rules that justify a kernel: those of normalization, then those that fuse its ops.
pub(super) fn proof(planned: &Planned, segment: &Segment, plan: &ScaledMmaPlan) -> Vec<String> {
    let (original, module) = (planned.original().module(), planned.program().module());
    let mut lines = Vec::new();
    // Rewrites that made the ops of the segment, and those that inserted ops for it to read.
    let inserted = segment.inputs.iter().filter_map(|value| module.defining_op(*value));
    let is_inserted =
        |op: &Op| matches!(planned.normalized().origin(*op), Origin::Made { from, .. } if from.is_empty());
    for op in inserted.filter(is_inserted).chain(segment.ops.iter().copied()) {
        let Origin::Made { from, steps } = planned.normalized().origin(op) else { continue };
        let from: Vec<String> = from.iter().map(|op| original.op_label(*op)).collect();
        let from = if from.is_empty() { "inserted".to_owned() } else { from.join(", ") };
        lines.push(format!("{}: {from} -> {}", steps_text(steps), module.op_label(op)));
    }
    // The plan lists a rule for each op in order, constants left out, then one for each value that is written as
    // it is, in the same order.
    let members = segment.ops.iter().filter(|op| !matches!(module.ops[**op].kind, OpKind::Constant(_)));
    let mut written: Vec<Op> = plan
        .outputs
        .iter()
        .filter_map(|output| match output.kind {
            OutputKind::Value { value } => module.defining_op(value),
            OutputKind::Quantized { .. } | OutputKind::Reduced { .. } => None,
        })
        .collect();
    written.sort_by_key(|op| op.index());
    let about = members.copied().chain(written);
    lines.extend(plan.proof.iter().zip(about).map(|(rule, op)| format!("{rule}: {}", module.op_label(op))));
    lines
}

fn steps_text(steps: &[Step]) -> String {
    let text =
        |step: &Step| if step.contract { format!("{} (contract)", step.rule) } else { step.rule.to_owned() };
    steps.iter().map(text).collect::<Vec<_>>().join(", ")
}
