//! The typing rule of `grouped_scaled_mma` and `masked_scaled_mma`.

use super::matmul::{checked_block, require_blocks, require_formats};
use super::{ARITHMETIC, Elements, INTEGER, Site, Slot};
use crate::ops::GroupedScaledMma;
use crate::program::{BlockFormat, Matmul};
use crate::types::{Dim, ElementType, ScaleLayout};
use crate::verify::VerifyErrorKind as Kind;

const SINGLE: Elements = Elements { has: |element| element == ElementType::F32, text: "f32" };

pub(super) fn grouped_scaled_mma(site: &mut Site<'_>, mma: GroupedScaledMma) -> Option<Matmul> {
    let mut positions = 0..mma.operand_count();
    let mut take =
        |present: bool| if present { positions.next().and_then(|at| site.find_operand(at)) } else { None };
    let (a, sfa, b, sfb, offsets) = (take(true), take(!mma.weight_only), take(true), take(true), take(true));
    let alpha = take(mma.alpha);
    let (Some(a), Some(b), Some(sfb), Some(offsets)) = (a, b, sfb, offsets) else { return None };

    let block = checked_block(site, mma.block);
    require_formats(site, (a, sfa), (b, sfb), mma.block);
    if let Some(sfa) = sfa.filter(|sfa| !mma.masked && sfa.ty.layout == Some(ScaleLayout::Blocked)) {
        let (value, ty) = (site.name(sfa), site.ty(sfa));
        site.errors.push(Kind::GroupedLayout { value, ty });
    }
    site.require_element(offsets, INTEGER);
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
        if let Some(sfa) = sfa {
            require_blocks(site, a, sfa, block);
        }
        require_blocks(site, b, sfb, block);
    }
    site.require_operand_shape(offsets, std::slice::from_ref(groups));
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
        format: BlockFormat { a: a.ty.element, b: b.ty.element, scale: sfb.ty.element, block: mma.block },
        sfa_layout: sfa.and_then(|sfa| sfa.ty.layout),
        sfb_layout: sfb.ty.layout?,
    })
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
