//! Derives the required outputs of a kernel from the ops, and compares them with the plan.

use std::collections::HashMap;

use fourfold_ir::{ElementType, FormatCapability, Op, OpKind, OperandShape, ReduceKind, ScaleLayout, Value};

use super::kernel::Checker;
use super::{CheckError, ContainsSorted, known, may_divide};
use crate::plan::{EpilogueKind, EpilogueRef, KernelOutput, OutputKind, Segment};

impl Checker<'_> {
    /// Checks the outputs: the values used outside or nowhere, and the results of sinks, in the order of the
    /// ops. Returns false if they differ.
    pub(super) fn outputs(&mut self, segment: &Segment, inside: &[Value]) -> bool {
        let (plan, module) = (self.plan, self.module);
        let constant = |step: usize| matches!(plan.epilogue[step].kind, EpilogueKind::Constant { .. });
        let references: HashMap<Value, EpilogueRef> = inside
            .iter()
            .enumerate()
            .filter(|(position, _)| *position == 0 || !constant(position - 1))
            .map(|(position, value)| {
                let step = position.checked_sub(1).map(EpilogueRef::Step);
                (*value, step.unwrap_or(EpilogueRef::Accumulator))
            })
            .chain(self.odd().map(|odd| (odd, EpilogueRef::Odd)))
            .collect();
        let mut expected: Vec<KernelOutput> = Vec::new();
        for &op in &segment.ops {
            let operation = &module.ops[op];
            let kind = match &operation.kind {
                OpKind::BlockQuantize { .. } | OpKind::Reduce { .. } => self.end(op),
                _ => {
                    let value = operation.results[0];
                    // The product of a pair is used by its halves only, as [`Checker::halves`] checks.
                    let seen = (plan.pair.is_none() || op != plan.root) && self.is_seen(segment, value);
                    if seen && !plan.written().any(|written| written == value) {
                        self.errors.push(CheckError::Escape { segment: self.index, value });
                    }
                    if let Some(of) = references.get(&value).filter(|_| seen) {
                        expected.push(KernelOutput { of: *of, kind: OutputKind::Value { value } });
                    }
                    continue;
                }
            };
            let of = operation.operands.first().and_then(|operand| references.get(operand).copied());
            match (of, kind) {
                (Some(of), Some(kind)) => expected.push(KernelOutput { of, kind }),
                _ => self.shape(format!("{op} is not a valid sink of the epilogue")),
            }
        }
        self.field("outputs", &plan.outputs, &expected);
        plan.outputs == expected
    }

    fn is_seen(&self, segment: &Segment, value: Value) -> bool {
        let users = self.program.facts().users(value);
        let outside = users.iter().any(|user| !segment.ops.contains_sorted(*user));
        self.program.facts().is_output(value) || users.is_empty() || outside
    }

    /// The output that a sink op writes; `None` for an op that is no sink.
    fn end(&self, op: Op) -> Option<OutputKind> {
        let module = self.module;
        let operation = &module.ops[op];
        match (&operation.kind, &operation.results[..]) {
            (OpKind::BlockQuantize { block, scale_rounding, formula }, &[codes, scales]) => {
                let operand = |value| self.plan.operands.iter().position(|operand| operand.value == value);
                let global = match operation.operands.get(1) {
                    None => None,
                    Some(global) => Some(operand(*global)?),
                };
                Some(OutputKind::Quantized {
                    op,
                    codes,
                    scales,
                    global,
                    element: module.ty(codes).element,
                    block: *block,
                    scale_rounding: *scale_rounding,
                    formula: *formula,
                })
            }
            (OpKind::Reduce { kind, axes, .. }, &[value]) => {
                let rank = module.ty(*operation.operands.first()?).shape.len();
                let reduced: Vec<bool> = (0..rank).map(|axis| axes.contains(&(axis as u32))).collect();
                let (last, rows) = reduced.split_last()?;
                let rows_reduced = rows.iter().all(|reduced| *reduced);
                let rows_kept = !rows.iter().any(|reduced| *reduced);
                let shape = match last {
                    true if rows_reduced => OperandShape::Scalar,
                    true if rows_kept => OperandShape::Column,
                    false if rows_reduced => OperandShape::Row,
                    _ => return None,
                };
                Some(OutputKind::Reduced { op, value, kind: *kind, shape })
            }
            _ => None,
        }
    }

    /// Checks the outputs against the target's rules.
    pub(super) fn output_capability(&mut self, rules: &FormatCapability) {
        let (plan, module) = (self.plan, self.module);
        let count = plan.written().count();
        self.rule((1..=rules.epilogue.max_outputs).contains(&count), || {
            format!("the number of written tensors is {count}")
        });
        let root = self.even().unwrap_or(module.ops[plan.root].results[0]);
        for output in &plan.outputs {
            let of = match output.of {
                EpilogueRef::Accumulator => Some(root),
                EpilogueRef::Odd => self.odd(),
                EpilogueRef::Step(step) => plan.epilogue.get(step).map(|step| module.ops[step.op].results[0]),
                EpilogueRef::Operand(_) => None,
            };
            let Some(of) = of else {
                return self.shape("the source of an output is not a value of the kernel");
            };
            let element = module.ty(of).element;
            match output.kind {
                OutputKind::Value { .. } => {
                    let rule = rules.outputs.iter().find(|rule| rule.element == element);
                    self.rule(rule.is_some(), || format!("an output of type {element} is not supported"));
                    self.rule(rule.is_none_or(|rule| may_divide(plan.columns(), rule.n_multiple)), || {
                        format!("N is not aligned for a {element} output")
                    });
                }
                OutputKind::Quantized { scales, global, element: codes, block, .. } => {
                    self.rule(is_arithmetic(element), || format!("quantizing {element} is not supported"));
                    let rule = quantized_rule(rules, codes, module.ty(scales).element, block);
                    self.rule(rule.is_some(), || {
                        format!("a {codes} output with one scale per {block} is not supported")
                    });
                    self.rule(rule.is_none_or(|multiple| may_divide(plan.columns(), multiple)), || {
                        format!("N is not aligned for a {codes} output")
                    });
                    let blocked = module.ty(scales).layout == Some(ScaleLayout::Blocked);
                    self.rule(blocked, || "the layout of written scales is not blocked".to_owned());
                    let scalar = global.and_then(|global| plan.operands.get(global)).is_none_or(|global| {
                        (global.shape, global.element) == (OperandShape::Scalar, ElementType::F32)
                    });
                    self.rule(scalar, || "a per-tensor scale is not an f32 scalar".to_owned());
                }
                OutputKind::Reduced { kind, .. } => {
                    self.rule(rules.epilogue.reductions.contains(&kind), || {
                        format!("the reduction {kind} is not supported")
                    });
                    self.rule(element == ElementType::F32, || format!("reducing {element} is not supported"));
                    let empty = known(&plan.m) == Some(0) || known(&plan.batch) == Some(0);
                    self.rule(!empty || kind == ReduceKind::Amax, || {
                        format!("the {kind} is over zero elements")
                    });
                }
            }
        }
    }

    /// The multiples of N that the outputs require.
    pub(super) fn written_multiples(&self, rules: &FormatCapability) -> Vec<u64> {
        let module = self.module;
        let multiple = |output: &KernelOutput| match output.kind {
            OutputKind::Value { value } => {
                let element = module.ty(value).element;
                rules.outputs.iter().find(|rule| rule.element == element).map(|rule| rule.n_multiple)
            }
            OutputKind::Quantized { scales, element, block, .. } => {
                quantized_rule(rules, element, module.ty(scales).element, block)
            }
            OutputKind::Reduced { .. } => None,
        };
        self.plan.outputs.iter().filter_map(multiple).collect()
    }
}

fn is_arithmetic(element: ElementType) -> bool {
    [ElementType::F16, ElementType::BF16, ElementType::F32].contains(&element)
}

/// The multiple of N that this format of quantized blocks requires.
fn quantized_rule(
    rules: &FormatCapability,
    element: ElementType,
    scale: ElementType,
    block: u32,
) -> Option<u64> {
    let mut known = rules.epilogue.quantized.iter();
    let rule = known.find(|rule| rule.element == element && rule.scale == scale && rule.block == block);
    rule.map(|rule| rule.n_multiple)
}
