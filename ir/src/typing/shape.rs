//! Typing rules of the ops that change the shape or create elements.

use super::{ARITHMETIC, Site, Slot, UNPACKED, number_text};
use crate::ops::ConstantValue;
use crate::types::{Dim, ElementType, Shape, dim_product};
use crate::verify::VerifyErrorKind as Kind;

/// The maximum number of elements of a constant. Larger ones should be params, because a program is text.
const MAX_CONSTANT: u64 = 1 << 24;

pub(super) fn reshape(site: &mut Site<'_>) {
    let (operand, result) = (site.operand(0), site.result(0));
    site.require_result_element(result, operand.ty.element);
    // The verifier bounds constants, so the products do not overflow.
    if dim_product(operand.shape()) != dim_product(result.shape()) {
        let (from, to) = (site.shape_text(operand.shape()), site.shape_text(result.shape()));
        site.errors.push(Kind::ElementCount { from, to });
    }
}

pub(super) fn transpose(site: &mut Site<'_>, permutation: &[u32]) {
    let (operand, result) = (site.operand(0), site.result(0));
    site.require_element(operand, UNPACKED);
    site.require_result_element(result, operand.ty.element);
    match permuted(operand.shape(), permutation) {
        Some(shape) => site.require_result_shape(result, &shape),
        None => {
            let (value, ty) = (site.name(operand), site.ty(operand));
            site.errors.push(Kind::Permutation { permutation: permutation.to_vec(), value, ty });
        }
    }
}

/// Permutes a shape; `None` if `permutation` is not a permutation of its axes.
fn permuted(shape: &[Dim], permutation: &[u32]) -> Option<Shape> {
    let mut taken = vec![false; shape.len()];
    for &axis in permutation {
        let taken = taken.get_mut(axis as usize)?;
        if std::mem::replace(taken, true) {
            return None;
        }
    }
    let all = taken.into_iter().all(|taken| taken);
    all.then(|| permutation.iter().map(|axis| shape[*axis as usize].clone()).collect())
}

pub(super) fn broadcast(site: &mut Site<'_>) {
    let (operand, result) = (site.operand(0), site.result(0));
    site.require_element(operand, UNPACKED);
    site.require_result_element(result, operand.ty.element);
    if let Some(shape) = site.broadcast(&[operand.shape(), result.shape()]) {
        site.require_result_shape(result, &shape);
    }
}

pub(super) fn reduce(site: &mut Site<'_>, axes: &[u32], keep_dims: bool) {
    let (operand, result) = (site.operand(0), site.result(0));
    if site.require_element(operand, ARITHMETIC) {
        site.require_result_element(result, operand.ty.element);
    }
    if reducible(site, operand, axes) {
        let reduced = |index: usize| axes.iter().any(|axis| *axis as usize == index);
        let kept = operand.shape().iter().enumerate().filter(|(index, _)| keep_dims || !reduced(*index));
        let shape: Shape =
            kept.map(|(index, dim)| if reduced(index) { Dim::fixed(1) } else { dim.clone() }).collect();
        site.require_result_shape(result, &shape);
    }
}

fn reducible(site: &mut Site<'_>, operand: Slot<'_>, axes: &[u32]) -> bool {
    if axes.is_empty() {
        site.errors.push(Kind::NoAxes {});
        return false;
    }
    if !axes.is_sorted_by(|before, after| before < after) {
        site.errors.push(Kind::AxesOrder { axes: axes.to_vec() });
        return false;
    }
    axes.last().is_some_and(|last| site.require_axis(operand, *last))
}

pub(super) fn constant(site: &mut Site<'_>, value: &ConstantValue) {
    let result = site.result(0);
    let element = result.ty.element;
    // Checked per extent, because the product of [0, M] has no symbol.
    let extents: Option<Vec<u64>> = result.shape().iter().map(Dim::as_fixed).collect();
    let Some(extents) = extents else {
        let (value, ty) = (site.name(result), site.ty(result));
        site.errors.push(Kind::ConstantShape { value, ty });
        return;
    };
    let count = extents.into_iter().fold(1, u64::saturating_mul);
    if count > MAX_CONSTANT {
        site.errors.push(Kind::ConstantTooLarge { count, limit: MAX_CONSTANT });
        return;
    }
    let values = match value {
        ConstantValue::Splat(value) => std::slice::from_ref(value),
        ConstantValue::Dense(values) => {
            if values.len() as u64 != count {
                site.errors.push(Kind::ConstantCount { expected: count, found: values.len() });
            }
            values
        }
    };
    if let Some(position) = values.iter().position(|value| !is_value_of(element, *value)) {
        let value = number_text(values[position]);
        site.errors.push(Kind::ConstantValue { position, value, element });
    }
}

pub(super) fn is_value_of(element: ElementType, value: f64) -> bool {
    match element {
        ElementType::I1 => value == 0.0 || value == 1.0,
        ElementType::I32 => {
            value.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&value)
        }
        // Any number rounds as `convert` does. `f8E8M0FNU` does not occur, because a constant has no layout.
        ElementType::F4E2M1FN
        | ElementType::F6E2M3FN
        | ElementType::F6E3M2FN
        | ElementType::F8E4M3FN
        | ElementType::F8E5M2
        | ElementType::F8E8M0FNU
        | ElementType::F16
        | ElementType::BF16
        | ElementType::F32 => true,
    }
}
