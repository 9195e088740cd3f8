//! Finds the reasons to reject a `scaled_mma` that actually hold.

use fourfold_ir::{
    BlockFormat, Capabilities, Dim, ElementType, FormatCapability, Module, Op, OpKind, ScaleLayout,
    ScaledMmaOperands, TensorType, dim_product,
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

    let extents = Extents {
        rules,
        block,
        batch: batch.as_ref(),
        m,
        n,
        k,
        b_leading,
        is_grouped,
        flattened,
        has_sfa: sfa.is_some(),
        padded_rows: sfa.filter(|_| sfa_ends.is_some()).and_then(|sfa| sfa.shape.first()),
        masked_scales: sfa
            .filter(|sfa| masked && !is_linear(sfa))
            .and_then(|sfa| sfa.shape.first_chunk::<2>()),
    };
    holds(extents.are_out_of_range(), ReasonCode::ExtentRange);

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

/// The extents of a product that a target multiplies by `rules`.
struct Extents<'a> {
    rules: &'a FormatCapability,
    block: u32,
    /// L; `None` if it is too large.
    batch: Option<&'a Dim>,
    m: &'a Dim,
    n: &'a Dim,
    k: &'a Dim,
    b_leading: &'a [Dim],
    is_grouped: bool,
    /// One B is multiplied by all matrices of A as if they were one.
    flattened: bool,
    has_sfa: bool,
    /// The rows of an sfa that is blocked per group.
    padded_rows: Option<&'a Dim>,
    /// The matrices and rows of a blocked sfa of masked groups.
    masked_scales: Option<&'a [Dim; 2]>,
}

impl Extents<'_> {
    /// Returns true if an extent, the number of tiles, or the bytes of scales certainly have a value that no kernel
    /// takes.
    fn are_out_of_range(&self) -> bool {
        let Extents { rules, m, n, k, .. } = *self;
        let rows = self.batch.and_then(|batch| batch.times(m));
        let exceeds = |dim: Option<&Dim>, most: u64| {
            let most = most.min(rules.max_extent);
            dim.is_none_or(|dim| known(dim).is_some_and(|extent| extent > most))
        };
        let beyond = |dim: Option<&Dim>| exceeds(dim, rules.max_extent);
        let too_many_rows = if self.flattened {
            beyond(rows.as_ref())
        } else {
            exceeds(self.batch, rules.grid.max_matrices) || beyond(Some(m))
        };
        let of = |dim: Option<&Dim>| dim.and_then(known);
        let launched = if self.flattened { [Some(1), of(rows.as_ref())] } else { [of(self.batch), known(m)] };
        let tiles = kernel::tiles([launched[0], launched[1], known(n)], rules.grid.tile);

        [n, k].into_iter().any(|dim| known(dim) == Some(0))
            || exceeds(Some(n), rules.grid.max_columns)
            || beyond(Some(k))
            || too_many_rows
            || self.padded_rows.is_some_and(|rows| beyond(Some(rows)))
            || tiles.is_some_and(|tiles| tiles > u128::from(rules.grid.max_tiles))
            || self.scales_are_out_of_range(rows.as_ref())
    }

    /// Returns true if sfa or sfb has more bytes than a kernel can address. `rows` are those of all matrices of A.
    fn scales_are_out_of_range(&self, rows: Option<&Dim>) -> bool {
        let beyond = |rows: Option<&Dim>, matrices: Option<&Dim>| {
            let (Some(rows), Some(k), Some(matrices)) =
                (rows.and_then(known), known(self.k), matrices.and_then(known))
            else {
                return false;
            };
            let tiles = u128::from(rows.div_ceil(128)) * u128::from(k.div_ceil(4 * u64::from(self.block)));
            tiles * 512 * u128::from(matrices) > u128::from(self.rules.max_scale_bytes)
        };
        let single = Dim::fixed(1);
        let of_a = if self.flattened { (rows, Some(&single)) } else { (Some(self.m), self.batch) };
        let matrices_of_b = match self.b_leading {
            [] => Some(&single),
            [groups] if self.is_grouped => Some(groups),
            _ => self.batch,
        };
        (self.has_sfa && beyond(of_a.0, of_a.1))
            || self.padded_rows.is_some_and(|rows| beyond(Some(rows), Some(&single)))
            || self.masked_scales.is_some_and(|[matrices, rows]| beyond(Some(rows), Some(matrices)))
            || beyond(Some(self.n), matrices_of_b)
    }
}
