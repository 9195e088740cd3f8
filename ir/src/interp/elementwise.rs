//! Elementwise ops: applies a function of [`crate::scalar`] to each element.

use std::borrow::Cow;

use crate::ops::{BinaryKind, BitwiseKind, ConstantValue, Predicate, UnaryKind};
use crate::scalar;
use crate::tensor::Tensor;
use crate::types::ElementType;

use super::movement::{broadcast_indices, code_bytes};

/// The values of a constant of shape `dims`.
pub(super) fn constant(value: &ConstantValue, dims: &[usize]) -> Vec<f64> {
    match value {
        ConstantValue::Splat(value) => vec![*value; dims.iter().product()],
        ConstantValue::Dense(values) => values.clone(),
    }
}

/// Applies a function to each element.
pub(super) fn unary(kind: UnaryKind, operand: &Tensor) -> Vec<f64> {
    operand.to_f64().into_iter().map(|x| scalar::unary(kind, x)).collect()
}

/// Broadcasts both operands to `dims` and applies a function to each pair of elements.
pub(super) fn binary(kind: BinaryKind, left: &Tensor, right: &Tensor, dims: &[usize]) -> Vec<f64> {
    let is_integer = left.element() == ElementType::I32;
    let (left, right) = (broadcast_values(left, dims), broadcast_values(right, dims));
    if is_integer {
        let function = |(a, b)| scalar::integer(kind, a as i32, b as i32).map(f64::from);
        return left
            .zip(right)
            .map(|pair| function(pair).expect("the verifier refuses other kinds"))
            .collect();
    }
    left.zip(right).map(|(a, b)| scalar::binary(kind, a, b)).collect()
}

/// Broadcasts both operands to `dims` and applies a function to the bits of each pair of elements.
pub(super) fn bitwise(kind: BitwiseKind, left: &Tensor, right: &Tensor, dims: &[usize]) -> Vec<f64> {
    let pairs = broadcast_values(left, dims).zip(broadcast_values(right, dims));
    pairs.map(|(a, b)| f64::from(scalar::bitwise(kind, a as i32, b as i32))).collect()
}

/// Returns the codes of elements of another type with the same bits.
pub(super) fn bitcast(operand: &Tensor, element: ElementType) -> Vec<u8> {
    let words = |operand: &Tensor| -> Vec<i32> {
        let values = operand.to_f64().into_iter();
        match operand.element() {
            ElementType::F32 => values.map(|x| scalar::bits_of(x as f32)).collect(),
            ElementType::F8E8M0FNU => operand.to_codes().into_iter().map(i32::from).collect(),
            _ => values.map(|x| x as i32).collect(),
        }
    };
    let words = words(operand).into_iter();
    match element {
        ElementType::F32 => words.flat_map(|word| scalar::of_bits(word).to_le_bytes()).collect(),
        ElementType::F8E8M0FNU => words.map(|word| word as u8).collect(),
        _ => words.flat_map(i32::to_le_bytes).collect(),
    }
}

/// Clamps each element.
pub(super) fn clamp(operand: &Tensor, min: f64, max: f64) -> Vec<f64> {
    operand.to_f64().into_iter().map(|x| scalar::clamp(x, min, max)).collect()
}

/// Broadcasts both operands to `dims`, compares each pair of elements and returns `i1` codes.
pub(super) fn compare(predicate: Predicate, left: &Tensor, right: &Tensor, dims: &[usize]) -> Vec<u8> {
    let (left, right) = (broadcast_values(left, dims), broadcast_values(right, dims));
    left.zip(right).map(|(a, b)| u8::from(scalar::compare(predicate, a, b))).collect()
}

/// Broadcasts all operands to `dims` and returns the codes of `then` where the condition holds, else of `otherwise`.
/// Nothing is rounded: `element` is the join of both types. An operand of that type is copied bit for bit.
pub(super) fn select(
    condition: &Tensor,
    then: &Tensor,
    otherwise: &Tensor,
    element: ElementType,
    dims: &[usize],
) -> Vec<u8> {
    let (then, otherwise) = (widened(then, element), widened(otherwise, element));
    let width = code_bytes(element);
    let conditions = condition.to_codes();
    let (then_codes, otherwise_codes) = (then.to_codes(), otherwise.to_codes());
    let indices = |tensor: &Tensor| broadcast_indices(tensor.dims(), dims);
    let choices = indices(&then).into_iter().zip(indices(&otherwise));
    indices(condition)
        .into_iter()
        .zip(choices)
        .flat_map(|(condition, (then, otherwise))| {
            if conditions[condition] != 0 {
                &then_codes[then * width..][..width]
            } else {
                &otherwise_codes[otherwise * width..][..width]
            }
        })
        .copied()
        .collect()
}

fn widened(tensor: &Tensor, element: ElementType) -> Cow<'_, Tensor> {
    if tensor.element() == element {
        return Cow::Borrowed(tensor);
    }
    let widened = Tensor::from_f64(element, tensor.dims().to_vec(), None, &tensor.to_f64());
    Cow::Owned(widened.expect("every arithmetic tensor may have any shape"))
}

fn broadcast_values(tensor: &Tensor, dims: &[usize]) -> impl Iterator<Item = f64> + use<> {
    let values = tensor.to_f64();
    broadcast_indices(tensor.dims(), dims).into_iter().map(move |index| values[index])
}
