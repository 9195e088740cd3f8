//! Typing rules of the multiplications, of block quantization and dequantization, and of `swizzle_scales`.

use super::{ARITHMETIC, BLOCK_DATA, HALF, Site, Slot};
use crate::numeric::Nvfp4Formula;
use crate::ops::{ScaleRounding, ScaledMma};
use crate::program::{BlockFormat, Matmul};
use crate::types::{Dim, ElementType, Shape, dim_product};
use crate::verify::VerifyErrorKind as Kind;

pub(super) fn scaled_mma(site: &mut Site<'_>, mma: ScaledMma) -> Option<Matmul> {
    let mut positions = 0..;
    let mut take =
        |present: bool| if present { positions.next().and_then(|at| site.find_operand(at)) } else { None };
    let (a, sfa, b, sfb) = (take(true)?, take(!mma.weight_only), take(true)?, take(true)?);
    let (alpha, c, beta) = (take(mma.alpha), take(mma.c), take(mma.beta));
    let result = site.result(0);

    let block = checked_block(site, mma.block);
    require_formats(site, (a, sfa), (b, sfb), mma.block);
    for scalar in [alpha, beta].into_iter().flatten() {
        site.require_scalar(scalar);
    }
    if mma.beta && !mma.c {
        site.errors.push(Kind::BetaWithoutC {});
    }
    site.require_result_among(result, ARITHMETIC);
    let shape = matmul_shape(site, a, b)?;
    if let Some(block) = block {
        if let Some(sfa) = sfa {
            require_blocks(site, a, sfa, block);
        }
        require_blocks(site, b, sfb, block);
    }
    if let Some(c) = c {
        site.require_element(c, ARITHMETIC);
        site.require_operand_shape(c, &shape);
    }
    site.require_result_shape(result, &shape);

    let [batch @ .., m, k] = a.shape() else { return None };
    let [b_batch @ .., n, _] = b.shape() else { return None };
    Some(Matmul {
        batch: dim_product(batch)?,
        m: m.clone(),
        n: n.clone(),
        k: k.clone(),
        b_batched: !b_batch.is_empty(),
        groups: None,
        masked: false,
        group_scales: None,
        format: BlockFormat { a: a.ty.element, b: b.ty.element, scale: sfb.ty.element, block: mma.block },
        sfa_layout: sfa.and_then(|sfa| sfa.ty.layout),
        sfb_layout: sfb.ty.layout?,
    })
}

/// Requires element types of data and scales that form a format. A of 16 bits has no scales.
pub(super) fn require_formats(
    site: &mut Site<'_>,
    (a, sfa): (Slot<'_>, Option<Slot<'_>>),
    (b, sfb): (Slot<'_>, Slot<'_>),
    block: u32,
) {
    let scaled_a = match sfa {
        None => {
            require_unscaled(site, a);
            None
        }
        Some(sfa) if a.ty.element.is_half() => {
            let (mnemonic, value, ty) = (site.mnemonic(), site.name(a), site.ty(a));
            site.errors.push(Kind::ScalesUnexpected { mnemonic, value, ty, scales: site.name(sfa) });
            None
        }
        Some(sfa) => Some((a, sfa)),
    };
    for (data, scales) in scaled_a.into_iter().chain([(b, sfb)]) {
        let is_data = site.require_element(data, BLOCK_DATA);
        if require_scales(site, scales) && is_data {
            require_format(site, data, scales, block);
        }
    }
    if let Some(sfa) = sfa.filter(|sfa| sfa.ty.element.is_scale() && sfb.ty.element.is_scale()) {
        site.require_same_element(sfa, sfb);
    }
}

/// Requires an A of 16 bits, which needs no scales. Block-scaled data without scales has an error of its own, because
/// the operand that is missing is sfa.
fn require_unscaled(site: &mut Site<'_>, a: Slot<'_>) {
    if a.ty.element.is_block_data() {
        let (mnemonic, value, ty) = (site.mnemonic(), site.name(a), site.ty(a));
        site.errors.push(Kind::ScalesMissing { mnemonic, value, ty });
    } else {
        site.require_element(a, HALF);
    }
}

pub(super) fn mma(site: &mut Site<'_>) {
    let (a, b, result) = (site.operand(0), site.operand(1), site.result(0));
    let (a_fits, b_fits) = (site.require_element(a, ARITHMETIC), site.require_element(b, ARITHMETIC));
    if a_fits && b_fits {
        site.require_same_element(a, b);
    }
    site.require_result_among(result, ARITHMETIC);
    if let Some(shape) = matmul_shape(site, a, b) {
        site.require_result_shape(result, &shape);
    }
}

/// The shape `[.., M, N]`; reports an error and returns `None` if a or b is not a matrix. A mismatch of K or the batch
/// is reported, but the shape is still returned, so that the result gets no second error.
fn matmul_shape(site: &mut Site<'_>, a: Slot<'_>, b: Slot<'_>) -> Option<Shape> {
    let (a_fits, b_fits) = (site.require_rank(a, 2), site.require_rank(b, 2));
    let ([batch @ .., m, a_k], [b_batch @ .., n, b_k]) = (a.shape(), b.shape()) else { return None };
    if !(a_fits && b_fits) {
        return None;
    }
    let mismatched = |site: &Site<'_>| (site.name(a), site.ty(a), site.name(b), site.ty(b));
    if a_k != b_k {
        let (a, a_ty, b, b_ty) = mismatched(site);
        site.errors.push(Kind::KMismatch { a, a_ty, b, b_ty });
    }
    if !b_batch.is_empty() && b_batch != batch {
        let (a, a_ty, b, b_ty) = mismatched(site);
        site.errors.push(Kind::BatchMismatch { a, a_ty, b, b_ty });
    }
    Some(batch.iter().chain([m, n]).cloned().collect())
}

pub(super) fn swizzle_scales(site: &mut Site<'_>) {
    let (operand, result) = (site.operand(0), site.result(0));
    // FP8 numbers without a layout become scales, or scales become such numbers; the bytes are those of linear scales.
    let is_plain = |slot: Slot<'_>| slot.ty.element == ElementType::F8E4M3FN && slot.ty.layout.is_none();
    let from_scales = (is_plain(operand) && !is_plain(result)) || require_scales(site, operand);
    let to_scales = (is_plain(result) && !is_plain(operand)) || require_scales(site, result);
    if from_scales && to_scales {
        site.require_result_element(result, operand.ty.element);
        if let Some(layout) = operand.ty.layout.filter(|layout| Some(*layout) == result.ty.layout) {
            site.errors.push(Kind::SwizzleNothing { layout });
        }
    }
    site.require_result_shape(result, operand.shape());
}

pub(super) fn block_quantize(
    site: &mut Site<'_>,
    block: u32,
    scale_rounding: Option<ScaleRounding>,
    formula: Nvfp4Formula,
) {
    let (v, codes, scales) = (site.operand(0), site.result(0), site.result(1));
    let global = site.find_operand(1);
    let checked = checked_block(site, block);
    site.require_element(v, ARITHMETIC);
    site.require_result_among(codes, BLOCK_DATA);
    if let Some(global) = global {
        site.require_scalar(global);
    }
    if require_scales(site, scales) {
        let (data, scale) = (codes.ty.element, scales.ty.element);
        let mx = scale == ElementType::F8E8M0FNU;
        let written = if mx { block == 32 } else { data == ElementType::F4E2M1FN && block == 16 };
        if data.is_block_data() && checked.is_some() && !written {
            site.errors.push(Kind::Format { data, scale, block });
        }
        match (mx, scale_rounding) {
            (true, None) => site.errors.push(Kind::ScaleRoundingMissing { scale }),
            (false, Some(_)) => site.errors.push(Kind::ScaleRoundingUnexpected { scale }),
            (true, Some(_)) | (false, None) => {}
        }
        let nvfp4 = Nvfp4Formula { mx: Nvfp4Formula::DEFAULT.mx, ..formula };
        if mx && nvfp4 != Nvfp4Formula::DEFAULT {
            site.errors.push(Kind::FormulaUnexpected { scale });
        }
        if !mx && nvfp4 != formula {
            site.errors.push(Kind::EdgesUnexpected { scale });
        }
        match (mx, global) {
            // A written-out formula has no g; this equals a g of 1.
            (false, None) if !formula.guard => {}
            (false, None) => site.errors.push(Kind::GlobalScaleMissing { scale }),
            (true, Some(_)) => site.errors.push(Kind::GlobalScaleUnexpected { scale }),
            (false, Some(_)) | (true, None) => {}
        }
    }
    site.require_result_shape(codes, v.shape());
    if let Some(block) = checked.filter(|_| site.require_rank(v, 2)) {
        require_blocks(site, v, scales, block);
    }
}

pub(super) fn block_dequantize(site: &mut Site<'_>, block: u32) {
    let (codes, scales, result) = (site.operand(0), site.operand(1), site.result(0));
    let checked = checked_block(site, block);
    let is_data = site.require_element(codes, BLOCK_DATA);
    if require_scales(site, scales) && is_data {
        require_format(site, codes, scales, block);
    }
    if let Some(global) = site.find_operand(2) {
        site.require_scalar(global);
    }
    site.require_result_among(result, ARITHMETIC);
    site.require_result_shape(result, codes.shape());
    if let Some(block) = checked.filter(|_| site.require_rank(codes, 2)) {
        require_blocks(site, codes, scales, block);
    }
}

pub(super) fn checked_block(site: &mut Site<'_>, block: u32) -> Option<u32> {
    if !matches!(block, 16 | 32) {
        site.errors.push(Kind::BlockSize { found: block });
        return None;
    }
    Some(block)
}

pub(super) fn require_scales(site: &mut Site<'_>, slot: Slot<'_>) -> bool {
    let right = slot.ty.element.is_scale() && slot.ty.layout.is_some();
    if !right {
        let (mnemonic, value, ty) = (site.mnemonic(), site.name(slot), site.ty(slot));
        site.errors.push(Kind::ExpectedScales { mnemonic, operand: slot.role, value, ty });
    }
    right
}

/// Requires FP4 data for `f8E4M3FN` scales. The scheduler checks which formats the hardware multiplies.
fn require_format(site: &mut Site<'_>, data: Slot<'_>, scales: Slot<'_>, block: u32) {
    let (data, scale) = (data.ty.element, scales.ty.element);
    if data != ElementType::F4E2M1FN && scale == ElementType::F8E4M3FN {
        site.errors.push(Kind::Format { data, scale, block });
    }
}

/// Requires whole blocks along the last axis of `data`, and one scale per block.
pub(super) fn require_blocks(site: &mut Site<'_>, data: Slot<'_>, scales: Slot<'_>, block: u32) {
    let [outer @ .., last] = data.shape() else { return };
    let Some(blocks) = last.divided_by(u64::from(block)) else {
        let (value, ty) = (site.name(data), site.ty(data));
        site.errors.push(Kind::BlockMultiple { value, ty, block });
        return;
    };
    let expected: Vec<Dim> = outer.iter().chain([&blocks]).cloned().collect();
    // A `scales` operand without a layout has already been reported.
    if scales.ty.layout.is_some() && scales.shape() != expected {
        let (value, ty, data) = (site.name(scales), site.ty(scales), site.name(data));
        site.errors.push(Kind::ScaleShape { value, ty, data, expected: site.shape_text(&expected) });
    }
}
