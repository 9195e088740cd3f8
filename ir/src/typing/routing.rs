//! Typing rules of the ops that route rows to groups and back.

use super::{ARITHMETIC, INTEGER, Site};
use crate::types::{Dim, ElementType, Shape, dim_product};
use crate::verify::VerifyErrorKind as Kind;

pub(super) fn top_k(site: &mut Site<'_>, k: u32) {
    let (x, values, indices) = (site.operand(0), site.result(0), site.result(1));
    if site.require_element(x, ARITHMETIC) {
        site.require_result_element(values, x.ty.element);
    }
    site.require_result_element(indices, ElementType::I32);
    if !site.require_rank(x, 1) {
        return;
    }
    if k == 0 || x.last().as_fixed().is_none_or(|extent| extent < u64::from(k)) {
        let (value, ty) = (site.name(x), site.ty(x));
        site.errors.push(Kind::TopK { k, value, ty });
        return;
    }
    let mut shape: Shape = x.shape().to_vec();
    shape.pop();
    shape.push(Dim::fixed(u64::from(k)));
    site.require_result_shape(values, &shape);
    site.require_result_shape(indices, &shape);
}

pub(super) fn group_rows(site: &mut Site<'_>, groups: u32) {
    let ids = site.operand(0);
    let [positions, rows, ends] = [0, 1, 2].map(|position| site.result(position));
    site.require_element(ids, INTEGER);
    for result in [positions, rows, ends] {
        site.require_result_element(result, ElementType::I32);
    }
    if groups == 0 {
        site.errors.push(Kind::NoGroups {});
    }
    if !site.require_rank(ids, 2) {
        return;
    }
    // The verifier bounds constants, so the product does not overflow.
    let Some(count) = dim_product(ids.shape()) else { return };
    site.require_result_shape(positions, std::slice::from_ref(&count));
    site.require_result_shape(rows, &[count]);
    site.require_result_shape(ends, &[Dim::fixed(u64::from(groups))]);
}

pub(super) fn padded_ends(site: &mut Site<'_>, multiple: u32) {
    let (ends, result) = (site.operand(0), site.result(0));
    site.require_element(ends, INTEGER);
    site.require_result_element(result, ElementType::I32);
    if multiple == 0 {
        site.errors.push(Kind::NoMultiple {});
    }
    if site.require_rank(ends, 1) {
        site.require_operand_shape(ends, &ends.shape()[ends.shape().len() - 1..]);
        site.require_result_shape(result, ends.shape());
    }
}

pub(super) fn scatter_add(site: &mut Site<'_>) {
    let (x, indices, result) = (site.operand(0), site.operand(1), site.result(0));
    site.require_element(x, ARITHMETIC);
    site.require_element(indices, INTEGER);
    site.require_result_among(result, ARITHMETIC);
    if !site.require_rank(x, 1) {
        return;
    }
    let (count, row) = x.shape().split_at(1);
    site.require_operand_shape(indices, count);
    // The number of rows of the result is that of its type.
    let Some(rows) = result.shape().first() else {
        site.require_result_shape(result, x.shape());
        return;
    };
    let shape: Shape = std::iter::once(rows).chain(row).cloned().collect();
    site.require_result_shape(result, &shape);
}
