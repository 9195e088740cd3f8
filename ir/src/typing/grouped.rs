//! The typing rules of `grouped_scaled_mma`, `masked_scaled_mma` and `group_scales`.

use super::matmul::{checked_block, require_blocks, require_formats, require_scales};
use super::{ARITHMETIC, Elements, INTEGER, Site, Slot};
use crate::ops::{GroupedScaledMma, OpKind};
use crate::program::{BlockFormat, Matmul};
use crate::types::{Dim, ElementType, ScaleLayout};
use crate::verify::VerifyErrorKind as Kind;

const SINGLE: Elements = Elements { has: |element| element == ElementType::F32, text: "f32" };

pub(super) fn grouped_scaled_mma(site: &mut Site<'_>, mma: GroupedScaledMma) -> Option<Matmul> {
    let mut positions = 0..mma.operand_count();
    let mut take =
        |present: bool| if present { positions.next().and_then(|at| site.find_operand(at)) } else { None };
    let (a, sfa, b, sfb, offsets) = (take(true), take(!mma.weight_only), take(true), take(true), take(true));
    let (alpha, sfa_ends) = (take(mma.alpha), take(mma.sfa_ends));
    let (Some(a), Some(b), Some(sfb), Some(offsets)) = (a, b, sfb, offsets) else { return None };

    let block = checked_block(site, mma.block);
    require_formats(site, (a, sfa), (b, sfb), mma.block);
    let is_blocked = sfa.is_some_and(|sfa| sfa.ty.layout == Some(ScaleLayout::Blocked));
    match (sfa, sfa_ends) {
        (_, Some(ends)) if mma.masked || !is_blocked => {
            site.errors.push(Kind::SfaEndsUnexpected { mnemonic: site.mnemonic(), value: site.name(ends) });
        }
        (Some(sfa), None) if is_blocked && !mma.masked => {
            let (value, ty) = (site.name(sfa), site.ty(sfa));
            site.errors.push(Kind::GroupedLayout { value, ty });
        }
        _ => {}
    }
    if let Some(ends) = sfa_ends {
        require_whole_tiles(site, ends);
    }
    site.require_result_among(site.result(0), ARITHMETIC);
    let a_rank = if mma.masked { 3 } else { 2 };
    let (a_fits, b_fits) = (require_exact_rank(site, a, a_rank), require_exact_rank(site, b, 3));
    let ([of_a @ .., rows, a_k], [groups, n, b_k], true) = (a.shape(), b.shape(), a_fits && b_fits) else {
        return None;
    };
    if mma.masked && of_a != std::slice::from_ref(groups) {
        let (a, a_ty, b, b_ty) = (site.name(a), site.ty(a), site.name(b), site.ty(b));
        site.errors.push(Kind::BatchMismatch { a, a_ty, b, b_ty });
    }
    if a_k != b_k {
        let (a, a_ty, b, b_ty) = (site.name(a), site.ty(a), site.name(b), site.ty(b));
        site.errors.push(Kind::KMismatch { a, a_ty, b, b_ty });
    }
    if let Some(block) = block {
        match (sfa, sfa_ends) {
            (Some(sfa), Some(_)) => require_blocks_of_groups(site, a, sfa, block),
            (Some(sfa), None) => require_blocks(site, a, sfa, block),
            (None, _) => {}
        }
        require_blocks(site, b, sfb, block);
    }
    for ends in [Some(offsets), sfa_ends].into_iter().flatten() {
        site.require_element(ends, INTEGER);
        site.require_operand_shape(ends, std::slice::from_ref(groups));
    }
    if let Some(alpha) = alpha {
        site.require_element(alpha, SINGLE);
        if alpha.ty.rank() > 1 || !alpha.ty.is_scalar() {
            site.require_operand_shape(alpha, std::slice::from_ref(groups));
        }
    }
    let shape: Vec<Dim> = of_a.iter().chain([rows, n]).cloned().collect();
    site.require_result_shape(site.result(0), &shape);
    Some(Matmul {
        batch: Dim::fixed(1),
        m: if mma.masked { groups.times(rows)? } else { rows.clone() },
        n: n.clone(),
        k: a_k.clone(),
        b_batched: false,
        groups: Some(groups.clone()),
        masked: mma.masked,
        group_scales: sfa.filter(|_| is_blocked).and_then(|sfa| match sfa.shape() {
            [rows, _] => Some([Dim::fixed(1), rows.clone()]),
            [matrices, rows, _] => Some([matrices.clone(), rows.clone()]),
            _ => None,
        }),
        format: BlockFormat { a: a.ty.element, b: b.ty.element, scale: sfb.ty.element, block: mma.block },
        sfa_layout: sfa.and_then(|sfa| sfa.ty.layout),
        sfb_layout: sfb.ty.layout?,
    })
}

pub(super) fn group_scales(site: &mut Site<'_>) {
    let [scales, ends, sfa_ends] = [0, 1, 2].map(|position| site.operand(position));
    let result = site.result(0);
    for ends in [ends, sfa_ends] {
        site.require_element(ends, INTEGER);
    }
    require_whole_tiles(site, sfa_ends);
    if require_scales(site, scales) && require_scales(site, result) {
        site.require_result_element(result, scales.ty.element);
        if (scales.ty.layout, result.ty.layout) != (Some(ScaleLayout::Linear), Some(ScaleLayout::Blocked)) {
            site.errors.push(Kind::GroupScalesLayout { from: site.ty(scales), to: site.ty(result) });
        }
    }
    if !(require_exact_rank(site, scales, 2) && require_exact_rank(site, ends, 1)) {
        return;
    }
    site.require_operand_shape(sfa_ends, ends.shape());
    // The number of rows of the result is that of its type.
    let rows = result.shape().first().unwrap_or(&scales.shape()[0]);
    site.require_result_shape(result, &[rows.clone(), scales.last().clone()]);
}

/// Requires that ends made by `padded_ends` pad each group to whole tiles of the blocked layout.
fn require_whole_tiles(site: &mut Site<'_>, sfa_ends: Slot<'_>) {
    const TILE: u32 = 128;
    let Some(op) = site.module.defining_op(sfa_ends.value) else { return };
    match site.module.ops[op].kind {
        OpKind::PaddedEnds { multiple } if !multiple.is_multiple_of(TILE) => {
            let (mnemonic, value) = (site.mnemonic(), site.name(sfa_ends));
            site.errors.push(Kind::PaddedMultiple { mnemonic, value, multiple });
        }
        _ => {}
    }
}

/// Requires one scale per block in each row of scales, whose rows are those of padded groups.
fn require_blocks_of_groups(site: &mut Site<'_>, a: Slot<'_>, sfa: Slot<'_>, block: u32) {
    let Some(blocks) = a.last().divided_by(u64::from(block)) else {
        let (value, ty) = (site.name(a), site.ty(a));
        site.errors.push(Kind::BlockMultiple { value, ty, block });
        return;
    };
    match sfa.shape() {
        [_, found] if *found == blocks => {}
        shape => {
            let rows = shape.first().cloned().unwrap_or(Dim::fixed(1));
            let (value, ty, data) = (site.name(sfa), site.ty(sfa), site.name(a));
            let expected = site.shape_text(&[rows, blocks]);
            site.errors.push(Kind::ScaleShape { value, ty, data, expected });
        }
    }
}

/// Requires a rank, and states the shape without the leading extents that exceed it.
fn require_exact_rank(site: &mut Site<'_>, slot: Slot<'_>, rank: usize) -> bool {
    if !site.require_rank(slot, rank) {
        return false;
    }
    let shape = slot.shape();
    site.require_operand_shape(slot, &shape[shape.len() - rank..]);
    shape.len() == rank
}
