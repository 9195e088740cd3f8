//! Typing rules of the ops that keep or broadcast the shape: elementwise ops, softmax and layer_norm.

use super::{ARITHMETIC, ARITHMETIC_OR_I32, BOOLEAN, Elements, INTEGER, Site, Slot, number_text};
use crate::ops::BinaryKind;
use crate::types::ElementType;
use crate::verify::VerifyErrorKind as Kind;

const F32_OR_E8M0: Elements = Elements {
    has: |element| matches!(element, ElementType::F32 | ElementType::F8E8M0FNU),
    text: "f32 or f8E8M0FNU",
};
const F32_OR_I32_OR_E8M0: Elements = Elements {
    has: |element| matches!(element, ElementType::F32 | ElementType::I32 | ElementType::F8E8M0FNU),
    text: "f32, i32 or f8E8M0FNU",
};

pub(super) fn convert(site: &mut Site<'_>) {
    let (operand, result) = (site.operand(0), site.result(0));
    site.require_result_shape(result, operand.shape());
    match result.ty.element {
        // Converts scales to arithmetic types only: as `f8E4M3FN` without a layout they would be read as signed.
        _ if operand.ty.layout.is_some() => site.require_result_among(result, ARITHMETIC),
        ElementType::F8E8M0FNU => {
            site.require_element(operand, ARITHMETIC);
        }
        ElementType::I1 => {
            let (mnemonic, value, ty) = (site.mnemonic(), site.name(result), site.ty(result));
            site.errors.push(Kind::TargetElement { mnemonic, value, ty });
        }
        ElementType::F4E2M1FN
        | ElementType::F6E2M3FN
        | ElementType::F6E3M2FN
        | ElementType::F8E4M3FN
        | ElementType::F8E5M2
        | ElementType::F16
        | ElementType::BF16
        | ElementType::F32
        | ElementType::I32 => {}
    }
}

pub(super) fn bitcast(site: &mut Site<'_>) {
    let (operand, result) = (site.operand(0), site.result(0));
    site.require_result_shape(result, operand.shape());
    match operand.ty.element {
        ElementType::I32 => {
            site.require_result_among(result, F32_OR_E8M0);
        }
        _ => {
            if site.require_element(operand, F32_OR_I32_OR_E8M0) {
                site.require_result_element(result, ElementType::I32);
            }
        }
    }
}

pub(super) fn bitwise(site: &mut Site<'_>) {
    let (left, right, result) = (site.operand(0), site.operand(1), site.result(0));
    for operand in [left, right] {
        site.require_element(operand, INTEGER);
    }
    site.require_result_element(result, ElementType::I32);
    if let Some(shape) = site.broadcast(&[left.shape(), right.shape()]) {
        site.require_result_shape(result, &shape);
    }
}

pub(super) fn unary(site: &mut Site<'_>) {
    same_type(site);
}

pub(super) fn clamp(site: &mut Site<'_>, min: f64, max: f64) {
    same_type(site);
    if min.is_nan() || max.is_nan() || min > max {
        site.errors.push(Kind::ClampBounds { min: number_text(min), max: number_text(max) });
    }
}

pub(super) fn softmax(site: &mut Site<'_>, axis: u32) {
    site.require_axis(site.operand(0), axis);
    same_type(site);
}

/// Requires an arithmetic operand and a result of the same type.
fn same_type(site: &mut Site<'_>) {
    let (operand, result) = (site.operand(0), site.result(0));
    if site.require_element(operand, ARITHMETIC) {
        site.require_result_element(result, operand.ty.element);
    }
    site.require_result_shape(result, operand.shape());
}

pub(super) fn binary(site: &mut Site<'_>, kind: BinaryKind) {
    let (left, right, result) = (site.operand(0), site.operand(1), site.result(0));
    let element = match kind {
        BinaryKind::Div | BinaryKind::Pow => site.join(&[left, right], ARITHMETIC),
        BinaryKind::Add | BinaryKind::Sub | BinaryKind::Mul | BinaryKind::Max | BinaryKind::Min => {
            join_or_i32(site, left, right)
        }
    };
    if let Some(element) = element {
        site.require_result_element(result, element);
    }
    if let Some(shape) = site.broadcast(&[left.shape(), right.shape()]) {
        site.require_result_shape(result, &shape);
    }
}

pub(super) fn compare(site: &mut Site<'_>) {
    let (left, right, result) = (site.operand(0), site.operand(1), site.result(0));
    join_or_i32(site, left, right);
    site.require_result_element(result, ElementType::I1);
    if let Some(shape) = site.broadcast(&[left.shape(), right.shape()]) {
        site.require_result_shape(result, &shape);
    }
}

pub(super) fn select(site: &mut Site<'_>) {
    let (condition, then, otherwise) = (site.operand(0), site.operand(1), site.operand(2));
    let result = site.result(0);
    site.require_element(condition, BOOLEAN);
    if let Some(element) = join_or_i32(site, then, otherwise) {
        site.require_result_element(result, element);
    }
    if let Some(shape) = site.broadcast(&[condition.shape(), then.shape(), otherwise.shape()]) {
        site.require_result_shape(result, &shape);
    }
}

/// The element type of two operands: the join of arithmetic types, or `i32` for two `i32`. Otherwise reports an error
/// and returns `None`.
fn join_or_i32(site: &mut Site<'_>, left: Slot<'_>, right: Slot<'_>) -> Option<ElementType> {
    let integers = [left, right].map(|slot| slot.ty.element == ElementType::I32);
    match integers {
        [true, true] => Some(ElementType::I32),
        [false, false] => site.join(&[left, right], ARITHMETIC_OR_I32),
        _ => {
            site.require_same_element(left, right);
            None
        }
    }
}

pub(super) fn layer_norm(site: &mut Site<'_>, eps: f64) {
    let (x, weight, bias) = (site.operand(0), site.operand(1), site.operand(2));
    let result = site.result(0);
    if !(eps.is_finite() && eps >= 0.0) {
        site.errors.push(Kind::Eps { eps: number_text(eps) });
    }
    if let Some(element) = site.join(&[x, weight, bias], ARITHMETIC) {
        site.require_result_element(result, element);
    }
    if site.require_rank(x, 1) {
        let channels = std::slice::from_ref(x.last());
        site.require_operand_shape(weight, channels);
        site.require_operand_shape(bias, channels);
    }
    site.require_result_shape(result, x.shape());
}
