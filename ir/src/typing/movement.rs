//! Typing rules of the ops that take, join or add elements along axes.

use super::shape::is_value_of;
use super::{INTEGER, NO_FP6, Site, Slot, number_text};
use crate::ops::{PadAmount, SliceRange};
use crate::types::{Dim, ElementType, Shape};
use crate::verify::VerifyErrorKind as Kind;

pub(super) fn slice(site: &mut Site<'_>, ranges: &[SliceRange]) {
    let (operand, result) = (site.operand(0), site.result(0));
    site.require_element(operand, NO_FP6);
    site.require_result_element(result, operand.ty.element);
    let axes: Vec<u32> = ranges.iter().map(|range| range.axis).collect();
    if !require_axes(site, operand, &axes) {
        return;
    }
    let mut shape = operand.shape().to_vec();
    let mut fits = true;
    for range in ranges {
        let SliceRange { axis, start, end, step } = *range;
        let (value, ty) = (site.name(operand), site.ty(operand));
        let error = match shape[axis as usize].as_fixed() {
            None => Some(Kind::SliceSymbol { axis, value, ty }),
            Some(extent) if step == 0 || start > end || end > extent => {
                Some(Kind::SliceRange { axis, start, end, step, value, ty })
            }
            Some(_) => None,
        };
        fits &= error.is_none();
        site.errors.extend(error);
        shape[axis as usize] = Dim::fixed(range.extent());
        let whole_bytes = start % 2 == 0 && end % 2 == 0 && step == 1;
        require_whole_bytes(site, operand, axis, whole_bytes);
    }
    if fits {
        site.require_result_shape(result, &shape);
    }
}

pub(super) fn concat(site: &mut Site<'_>, axis: u32) {
    let (first, result) = (site.operand(0), site.result(0));
    site.require_element(first, NO_FP6);
    site.require_result_element(result, first.ty.element);
    if !site.require_axis(first, axis) {
        return;
    }
    let at = axis as usize;
    let mut sum = Some(Dim::fixed(0));
    let mut fits = true;
    for position in 0..site.operation.operands.len() {
        let operand = site.operand(position);
        site.require_same_element(first, operand);
        if first.ty.layout.is_some() && operand.ty.layout.is_none() {
            let (mnemonic, value, ty) = (site.mnemonic(), site.name(operand), site.ty(operand));
            site.errors.push(Kind::ExpectedScales { mnemonic, operand: operand.role, value, ty });
        }
        let mut expected = first.shape().to_vec();
        if let Some(extent) = operand.shape().get(at).filter(|_| operand.ty.rank() == expected.len()) {
            expected[at] = extent.clone();
            sum = sum.and_then(|sum| sum.plus(extent));
        }
        fits &= operand.shape() == expected;
        site.require_operand_shape(operand, &expected);
    }
    if !fits {
        return;
    }
    let mut shape = first.shape().to_vec();
    match sum {
        Some(sum) => {
            shape[at] = sum;
            site.require_result_shape(result, &shape);
        }
        None => {
            let operands = 0..site.operation.operands.len();
            let extents: Vec<&Dim> = operands.map(|position| &site.operand(position).shape()[at]).collect();
            refuse_sum(site, axis, &extents);
        }
    }
}

pub(super) fn choose(site: &mut Site<'_>, axis: u32, ends: &[u32]) {
    let (first, result) = (site.operand(0), site.result(0));
    site.require_result_element(result, first.ty.element);
    site.require_result_shape(result, first.shape());
    let operands = site.operation.operands.len();
    for position in 1..operands {
        let operand = site.operand(position);
        site.require_same_element(first, operand);
        site.require_operand_shape(operand, first.shape());
    }
    if ends.len() + 1 != operands || !ends.is_sorted_by(|before, after| before < after) {
        site.errors.push(Kind::ChooseEnds { ends: ends.to_vec(), operands });
    }
    site.require_axis(first, axis);
}

pub(super) fn gather(site: &mut Site<'_>, axis: u32) {
    let (x, indices, result) = (site.operand(0), site.operand(1), site.result(0));
    site.require_element(indices, INTEGER);
    site.require_element(x, NO_FP6);
    site.require_result_element(result, x.ty.element);
    if !site.require_axis(x, axis) {
        return;
    }
    require_whole_bytes(site, x, axis, false);
    let (before, rest) = x.shape().split_at(axis as usize);
    let shape: Shape = before.iter().chain(indices.shape()).chain(&rest[1..]).cloned().collect();
    site.require_result_shape(result, &shape);
}

pub(super) fn pad(site: &mut Site<'_>, amounts: &[PadAmount], value: f64) {
    let (operand, result) = (site.operand(0), site.result(0));
    let element = operand.ty.element;
    site.require_element(operand, NO_FP6);
    site.require_result_element(result, element);
    // Scales were refused before, so the element type is not `f8E8M0FNU`.
    if !is_value_of(element, value) {
        site.errors.push(Kind::PadValue { value: number_text(value), element });
    }
    let axes: Vec<u32> = amounts.iter().map(|amount| amount.axis).collect();
    if !require_axes(site, operand, &axes) {
        return;
    }
    let mut shape = operand.shape().to_vec();
    let mut fits = true;
    for PadAmount { axis, low, high } in amounts {
        let extent = &shape[*axis as usize];
        let added = [Dim::fixed(*low), Dim::fixed(*high)];
        match extent.plus(&added[0]).and_then(|sum| sum.plus(&added[1])) {
            Some(sum) => shape[*axis as usize] = sum,
            None => {
                fits = false;
                refuse_sum(site, *axis, &[&added[0], extent, &added[1]]);
            }
        }
        require_whole_bytes(site, operand, *axis, low % 2 == 0 && high % 2 == 0);
    }
    if fits {
        site.require_result_shape(result, &shape);
    }
}

/// Requires distinct, ascending axes of a value.
fn require_axes(site: &mut Site<'_>, slot: Slot<'_>, axes: &[u32]) -> bool {
    if !axes.is_sorted_by(|before, after| before < after) {
        site.errors.push(Kind::AxesOrder { axes: axes.to_vec() });
        return false;
    }
    axes.last().is_none_or(|last| site.require_axis(slot, *last))
}

/// Requires whole bytes of FP4 if `axis` is the last axis.
fn require_whole_bytes(site: &mut Site<'_>, slot: Slot<'_>, axis: u32, whole_bytes: bool) {
    let is_last = axis as usize + 1 == slot.ty.rank();
    if slot.ty.element == ElementType::F4E2M1FN && is_last && !whole_bytes {
        let (mnemonic, value, ty) = (site.mnemonic(), site.name(slot), site.ty(slot));
        site.errors.push(Kind::PackedAxis { mnemonic, value, ty });
    }
}

fn refuse_sum(site: &mut Site<'_>, axis: u32, extents: &[&Dim]) {
    const MOST: usize = 4;
    let mut terms: Vec<String> =
        extents.iter().take(MOST).map(|dim| site.module.display_dim(dim).to_string()).collect();
    if extents.len() > MOST {
        terms.push("..".to_owned());
    }
    let (mnemonic, sum) = (site.mnemonic(), terms.join(" + "));
    site.errors.push(Kind::ExtentSum { mnemonic, axis, sum });
}
