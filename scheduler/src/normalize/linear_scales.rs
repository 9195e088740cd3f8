//! The layout of the scales of products, for a target. Where its kernels read linear scales of A, the swizzle before a
//! `scaled_mma` is dropped, which saves a launch. Other linear scales are swizzled, if the target has kernels for the
//! format.

use std::collections::HashMap;

use fourfold_ir::{
    BlockFormat, Capabilities, FormatCapability, Matmul, Op, OpKind, Program, ScaleLayout, TensorType, Value,
    ValueDef,
};

use super::NormalizeRule;
use super::draft::{Draft, Note};
use crate::root::refusal;

/// All rules of this module. Their positions follow those of the rules for pairs.
pub(crate) const LINEAR_SCALES_RULES: &[NormalizeRule] = &[
    NormalizeRule {
        name: "kernel-reads-linear-scales",
        why: "swizzle_scales keeps every scale, and scaled_mma reads the scale of a block from either layout",
        contract: false,
    },
    NormalizeRule {
        name: "kernel-reads-blocked-scales",
        why: "swizzle_scales keeps every scale, and scaled_mma reads the scale of a block from either layout",
        contract: false,
    },
];

/// The formats for which a target has kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layouts<'a>(&'a [FormatCapability]);

impl<'a> Layouts<'a> {
    pub(crate) fn of(capabilities: &'a Capabilities) -> Layouts<'a> {
        Layouts(&capabilities.formats)
    }

    /// The scales of a product for whose format the target has kernels; `None` for other ops.
    fn scales(&self, draft: &Draft, op: Op) -> Option<Scales<'a>> {
        let operation = &draft.module.ops[op];
        let OpKind::ScaledMma(attributes) = operation.kind else { return None };
        let positions = if attributes.weight_only { [None, Some(2)] } else { [Some(1), Some(3)] };
        let element = |position: usize| Some(draft.module.ty(*operation.operands.get(position)?).element);
        let (of_b, block) = (positions[1]?, attributes.block);
        let format = BlockFormat { a: element(0)?, b: element(of_b - 1)?, scale: element(of_b)?, block };
        let capability = self.0.iter().find(|rules| rules.format == format)?;
        Some(Scales { positions, capability })
    }
}

/// The positions of the scales of A and of B among the operands of a product.
struct Scales<'a> {
    positions: [Option<usize>; 2],
    capability: &'a FormatCapability,
}

impl Scales<'_> {
    fn reads_linear_a(&self) -> bool {
        self.capability.has_linear_scales
    }

    /// Returns whether a kernel may compute the product if its scales have a layout that kernels read. Those of A
    /// count as having the layout `sfa`, if it is given.
    fn may_have_kernel(&self, program: &Program, op: Op, sfa: Option<ScaleLayout>) -> bool {
        let module = program.module();
        // A product that normalization made has no facts.
        let Some(matmul) = module.ops.get(op).and_then(|_| program.facts().matmul(op)) else { return true };
        let Some(operands) = module.scaled_mma_operands(op) else { return true };
        let matmul = Matmul { sfa_layout: matmul.sfa_layout.map(|own| sfa.unwrap_or(own)), ..matmul.clone() };
        refusal(module, &matmul, operands.c, self.capability).is_none()
    }
}

/// Removes a swizzle that only products use, as their sfa: they read its operand. Returns true if something changed.
/// Scales of a `param` stay swizzled, which happens once. `rule` is the position of the first rule of this module.
pub(crate) fn read_linear(draft: &mut Draft, layouts: &Layouts<'_>, rule: usize) -> bool {
    let live = draft.module.ops.keys().filter(|op| !draft.note(*op).gone);
    let swizzles: Vec<(Op, Value, Value)> =
        live.filter_map(|op| dropped(draft, layouts, op).map(|[from, to]| (op, from, to))).collect();
    for (swizzle, linear, blocked) in &swizzles {
        for user in draft.users(*blocked).clone() {
            draft.set_operand(user, SFA, *linear);
        }
        draft.remove_unused([*swizzle]);
        draft.note_mut(*swizzle).reasons = vec![rule];
    }
    !swizzles.is_empty()
}

/// The linear and the blocked scales of a swizzle that is dropped; `None` for other ops.
fn dropped(draft: &Draft, layouts: &Layouts<'_>, op: Op) -> Option<[Value; 2]> {
    let operation = &draft.module.ops[op];
    let (&[linear], &[blocked]) = (&operation.operands[..], &operation.results[..]) else { return None };
    let is_dropped = operation.kind == OpKind::SwizzleScales
        && !draft.is_output(blocked)
        && draft.module.ty(linear).layout == Some(ScaleLayout::Linear)
        && !matches!(draft.module.values[linear].def, ValueDef::Input { param: true, .. })
        && draft.users(blocked).iter().all(|user| reads(draft, layouts, *user, blocked));
    is_dropped.then_some([linear, blocked])
}

/// The position of sfa among the operands of a `scaled_mma`.
const SFA: usize = 1;

/// Returns whether an op is a product whose kernel reads a linear sfa, and uses a value as its sfa only.
fn reads(draft: &Draft, layouts: &Layouts<'_>, op: Op, sfa: Value) -> bool {
    let reads_linear = layouts.scales(draft, op).is_some_and(|scales| scales.reads_linear_a());
    let operands = &draft.module.ops[op].operands;
    let uses = operands.iter().filter(|operand| **operand == sfa).count();
    reads_linear && operands.get(SFA) == Some(&sfa) && uses == 1
}

/// Swizzles linear scales that the target's kernels do not read, of the products of `program` that may have a kernel.
/// Returns true if something changed. `rule` is the position of the second rule of this module.
pub(crate) fn swizzle(draft: &mut Draft, program: &Program, layouts: &Layouts<'_>, rule: usize) -> bool {
    let mut wanted = Vec::new();
    let mut quantized: HashMap<Value, bool> = HashMap::new();
    let mut layouts_of_a: HashMap<Value, Option<ScaleLayout>> = HashMap::new();
    for (op, operation) in draft.module.ops.iter().filter(|(op, _)| !draft.note(*op).gone) {
        let Some(found) = layouts.scales(draft, op) else { continue };
        // The layout that the scales of A will have. Many products may share them.
        let sfa = operation.operands.get(SFA).and_then(|sfa| {
            let swizzle = || dropped(draft, layouts, draft.module.defining_op(*sfa)?);
            *layouts_of_a.entry(*sfa).or_insert_with(|| swizzle().map(|_| ScaleLayout::Linear))
        });
        if !found.may_have_kernel(program, op, sfa) {
            continue;
        }
        for (index, position) in found.positions.into_iter().enumerate() {
            let Some(position) = position else { continue };
            let scales = operation.operands[position];
            if draft.module.ty(scales).layout != Some(ScaleLayout::Linear) {
                continue;
            }
            let of_a = index == 0;
            let mut is_quantized = || {
                *quantized
                    .entry(scales)
                    .or_insert_with(|| is_only_multiplied(draft, program, layouts, scales))
            };
            if !(of_a && found.reads_linear_a()) || is_quantized() {
                wanted.push((op, position, scales));
            }
        }
    }
    let mut swizzled: HashMap<Value, Value> = HashMap::new();
    for (op, position, scales) in &wanted {
        let blocked = *swizzled.entry(*scales).or_insert_with(|| {
            let ty = TensorType { layout: Some(ScaleLayout::Blocked), ..draft.module.ty(*scales).clone() };
            let name = format!("{}.blocked", draft.module.name_of(*scales));
            let made = Some((Vec::new(), vec![rule]));
            let note = Note { position: draft.note(*op).position, made, ..Note::default() };
            let swizzle = draft.add(OpKind::SwizzleScales, vec![*scales], &name, ty, note);
            draft.module.ops[swizzle].results[0]
        });
        draft.set_operand(*op, *position, blocked);
    }
    !wanted.is_empty()
}

/// Returns whether a `block_quantize` of the program makes these scales for products only, which also take blocked
/// ones. It then writes blocked ones instead (`sharing.rs`), and may join the kernel before it.
fn is_only_multiplied(draft: &Draft, program: &Program, layouts: &Layouts<'_>, scales: Value) -> bool {
    let multiplies = |op: &Op| {
        let Some(found) = layouts.scales(draft, *op) else { return false };
        let operands = &draft.module.ops[*op].operands;
        let as_scales = found.positions.into_iter().flatten().filter(|at| operands[*at] == scales).count();
        operands.iter().filter(|operand| **operand == scales).count() == as_scales
            && found.may_have_kernel(program, *op, Some(ScaleLayout::Blocked))
    };
    matches!(draft.definition(scales), Some((_, OpKind::BlockQuantize { .. })))
        && !draft.is_output(scales)
        && draft.users(scales).iter().all(multiplies)
}
