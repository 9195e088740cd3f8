//! Finds the reasons to reject a `scaled_mma` that actually hold.

use fourfold_ir::{
    BlockFormat, Capabilities, Dim, ElementType, Module, Op, OpKind, ScaleLayout, ScaledMmaOperands,
    TensorType, dim_product,
};

use super::{kernel, known, may_divide};
use crate::reason::ReasonCode;

/// The reason codes that hold for a `scaled_mma` on a target, given its own result type. Empty when nothing
/// prevents a kernel.
pub(super) fn holding(module: &Module, capabilities: &Capabilities, op: Op) -> Vec<ReasonCode> {
    let mut codes = Vec::new();
    let mut holds = |condition: bool, code| {
        if condition && !codes.contains(&code) {
            codes.push(code);
        }
    };
    holds(capabilities.target == "cpu", ReasonCode::CpuTarget);
    let (block, masked) = match module.ops[op].kind {
        OpKind::ScaledMma(mma) => (mma.block, false),
        OpKind::GroupedScaledMma(mma) => (mma.block, mma.masked),
        _ => return vec![ReasonCode::OperandLayout],
    };
    let (Some(operands), Some(&result)) = (module.scaled_mma_operands(op), module.ops[op].results.first())
    else {
        return vec![ReasonCode::OperandLayout];
    };
    let is_grouped = operands.offsets.is_some();
    let ScaledMmaOperands { a, sfa, b, sfb, sfa_ends, c, .. } = operands;
    let (a, b) = (module.ty(a), module.ty(b));
    let (sfa, sfb) = (sfa.map(|sfa| module.ty(sfa)), module.ty(sfb));
    let format = BlockFormat { a: a.element, b: b.element, scale: sfb.element, block };
    holds(!format.is_standard(), ReasonCode::ScaleDtype);
    let is_linear = |ty: &TensorType| ty.layout != Some(ScaleLayout::Blocked);
    let rules = capabilities.format(format);
    let takes_blocked = (sfa_ends.is_some() || masked) && rules.is_some_and(|rules| rules.has_group_scales);
    let wrong_a = sfa.is_some_and(|sfa| match is_grouped {
        true => !is_linear(sfa) && !takes_blocked,
        false => is_linear(sfa) && !rules.is_some_and(|rules| rules.has_linear_scales),
    });
    let wrong_layout = wrong_a || is_linear(sfb);
    let Some(rules) = rules else {
        let not_emulated = capabilities.not_emulated.contains(&format);
        let narrow = match format.scale {
            ElementType::F8E8M0FNU => ElementType::F8E4M3FN,
            _ => ElementType::F4E2M1FN,
        };
        let weight_only = [ElementType::F16, ElementType::BF16].contains(&format.a)
            && capabilities.format(BlockFormat { a: narrow, ..format }).is_some()
            && capabilities.formats.iter().all(|rules| rules.format.a.is_block_data());
        let lacks = match (not_emulated, weight_only) {
            (true, _) => ReasonCode::FormatNotEmulated,
            (false, true) => ReasonCode::WeightOnly,
            (false, false) => ReasonCode::TargetLacksFormat,
        };
        holds(format.is_standard(), lacks);
        holds(wrong_layout, ReasonCode::ScaleLayout);
        return codes;
    };
    let ([leading @ .., rows, k], [b_leading @ .., n, _]) = (&a.shape[..], &b.shape[..]) else {
        return vec![ReasonCode::OperandLayout];
    };
    // The matrices of groups are consecutive rows of one.
    let (leading, m) = if masked {
        (&[][..], dim_product(&[leading, std::slice::from_ref(rows)].concat()))
    } else {
        (leading, Some(rows.clone()))
    };
    let Some(m) = &m else { return vec![ReasonCode::OperandLayout] };
    if is_grouped {
        let has_kernels = rules.max_groups.is_some() && (rules.has_masked || !masked);
        holds(!has_kernels, ReasonCode::GroupedUnsupported);
        let groups = b_leading.first().and_then(known);
        let exceeds =
            groups.is_some_and(|groups| groups == 0 || rules.max_groups.is_some_and(|most| most < groups));
        holds(exceeds, ReasonCode::ExtentRange);
    }
    let batch = dim_product(leading);
    let one_matrix = batch.as_ref().and_then(known) == Some(1);
    let flattened = b_leading.is_empty() && !one_matrix;
    holds(!is_grouped && !b_leading.is_empty() && !one_matrix && !rules.batched, ReasonCode::OperandLayout);
    let pads_rows = sfa.is_some_and(|sfa| !(is_linear(sfa) && rules.has_linear_scales));
    holds(flattened && pads_rows && !m.constant().is_multiple_of(128), ReasonCode::OperandLayout);

    let rows = batch.as_ref().and_then(|batch| batch.times(m));
    let exceeds = |dim: Option<&Dim>, most: u64| {
        let most = most.min(rules.max_extent);
        dim.is_none_or(|dim| known(dim).is_some_and(|extent| extent > most))
    };
    let beyond = |dim: Option<&Dim>| exceeds(dim, rules.max_extent);
    holds([n, k].into_iter().any(|dim| known(dim) == Some(0)), ReasonCode::ExtentRange);
    holds(exceeds(Some(n), rules.grid.max_columns) || beyond(Some(k)), ReasonCode::ExtentRange);
    let too_many_rows = if flattened {
        beyond(rows.as_ref())
    } else {
        exceeds(batch.as_ref(), rules.grid.max_matrices) || beyond(Some(m))
    };
    let padded_rows = sfa.filter(|_| sfa_ends.is_some()).and_then(|sfa| sfa.shape.first());
    holds(too_many_rows || padded_rows.is_some_and(|rows| beyond(Some(rows))), ReasonCode::ExtentRange);
    let of = |dim: Option<&Dim>| dim.and_then(known);
    let launched = if flattened { [Some(1), of(rows.as_ref())] } else { [of(batch.as_ref()), known(m)] };
    let tiles = kernel::tiles([launched[0], launched[1], known(n)], rules.grid.tile);
    holds(tiles.is_some_and(|tiles| tiles > u128::from(rules.grid.max_tiles)), ReasonCode::ExtentRange);

    let scales_beyond = |rows: Option<&Dim>, matrices: Option<&Dim>| {
        let (Some(rows), Some(k), Some(matrices)) =
            (rows.and_then(known), known(k), matrices.and_then(known))
        else {
            return false;
        };
        let tiles = u128::from(rows.div_ceil(128)) * u128::from(k.div_ceil(4 * u64::from(block)));
        tiles * 512 * u128::from(matrices) > u128::from(rules.max_scale_bytes)
    };
    let masked_scales =
        sfa.filter(|sfa| masked && !is_linear(sfa)).and_then(|sfa| sfa.shape.first_chunk::<2>());
    let single = Dim::fixed(1);
    let own = batch.as_ref();
    let of_a = if flattened { (rows.as_ref(), Some(&single)) } else { (Some(m), own) };
    let of_b = match b_leading {
        [] => (Some(n), Some(&single)),
        [groups] if is_grouped => (Some(n), Some(groups)),
        _ => (Some(n), own),
    };
    let of_a = (sfa.is_some() && scales_beyond(of_a.0, of_a.1))
        || padded_rows.is_some_and(|rows| scales_beyond(Some(rows), Some(&single)))
        || masked_scales.is_some_and(|[matrices, rows]| scales_beyond(Some(rows), Some(matrices)));
    holds(of_a || scales_beyond(of_b.0, of_b.1), ReasonCode::ExtentRange);

    holds(!may_divide(k, rules.k_multiple), ReasonCode::KAlignment);
    let c = c.map(|c| (module.ty(c).element, &rules.c));
    for (element, allowed) in c.into_iter().chain([(module.ty(result).element, &rules.outputs)]) {
        match allowed.iter().find(|entry| entry.element == element) {
            None => holds(true, ReasonCode::OutputDtype),
            Some(entry) => holds(!may_divide(n, entry.n_multiple), ReasonCode::NAlignment),
        }
    }
    holds(wrong_layout, ReasonCode::ScaleLayout);
    codes
}
