//! Linear scales of A, for targets whose kernels read them: the swizzle before a `scaled_mma` is dropped, and with it a
//! launch.

use fourfold_ir::{BlockFormat, Capabilities, Op, OpKind, Value, ValueDef};

use super::NormalizeRule;
use super::draft::Draft;

/// All rules of this module. Their positions follow those of the rules for pairs.
pub(crate) const LINEAR_SCALES_RULES: &[NormalizeRule] = &[NormalizeRule {
    name: "kernel-reads-linear-scales",
    why: "swizzle_scales keeps every scale, and scaled_mma reads the scale of a block from either layout",
    contract: false,
}];

/// The formats for which a target's kernels read a linear sfa.
pub(crate) fn formats(capabilities: &Capabilities) -> Vec<BlockFormat> {
    let formats = capabilities.formats.iter().filter(|rules| rules.has_linear_scales);
    formats.map(|rules| rules.format).collect()
}

/// Makes products read the operand of a swizzle that only they use; returns true if something changed. Scales of a
/// `param` stay swizzled, which happens once. `rule` is the position of the rule of this module.
pub(crate) fn read_linear(draft: &mut Draft, formats: &[BlockFormat], rule: usize) -> bool {
    if formats.is_empty() {
        return false;
    }
    let swizzles: Vec<(Op, Value, Value)> = draft
        .module
        .ops
        .iter()
        .filter(|(op, operation)| operation.kind == OpKind::SwizzleScales && !draft.note(*op).gone)
        .filter_map(|(op, operation)| Some((op, *operation.operands.first()?, *operation.results.first()?)))
        .filter(|(_, linear, blocked)| {
            !draft.is_output(*blocked)
                && !matches!(draft.module.values[*linear].def, ValueDef::Input { param: true, .. })
                && draft.users(*blocked).iter().all(|user| reads(draft, formats, *user, *blocked))
        })
        .collect();
    for (swizzle, linear, blocked) in &swizzles {
        for user in draft.users(*blocked).clone() {
            draft.set_operand(user, SFA, *linear);
        }
        draft.remove_unused([*swizzle]);
        draft.note_mut(*swizzle).reasons = vec![rule];
    }
    !swizzles.is_empty()
}

/// The position of sfa among the operands of a `scaled_mma`.
const SFA: usize = 1;

/// Returns whether an op is a product of one of these formats that uses a value as its sfa only.
fn reads(draft: &Draft, formats: &[BlockFormat], op: Op, sfa: Value) -> bool {
    let operation = &draft.module.ops[op];
    let OpKind::ScaledMma(attributes) = operation.kind else { return false };
    let [a, scales, b, ref others @ ..] = operation.operands[..] else { return false };
    let element = |value: Value| draft.module.ty(value).element;
    let format =
        BlockFormat { a: element(a), b: element(b), scale: element(scales), block: attributes.block };
    !attributes.weight_only && scales == sfa && !others.contains(&sfa) && formats.contains(&format)
}
