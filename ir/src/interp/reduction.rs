//! Ops that combine elements along axes, in f64 with ascending indices.

use crate::ops::{BinaryKind, ReduceKind};
use crate::scalar;
use crate::tensor::Tensor;

use super::movement::{row_major_strides, strided_indices};

/// Combines the elements along `axes`. The result is the same with and without `keep_dims`.
pub(super) fn reduce(kind: ReduceKind, operand: &Tensor, axes: &[u32]) -> Vec<f64> {
    let is_reduced = |axis: usize| axes.contains(&(axis as u32));
    let kept: Vec<usize> = operand
        .dims()
        .iter()
        .enumerate()
        .map(|(axis, dim)| if is_reduced(axis) { 1 } else { *dim })
        .collect();
    // A stride of 0 along the reduced axes maps each element to the slot of its kept indices.
    let mut slot_strides = row_major_strides(&kept);
    for (axis, stride) in slot_strides.iter_mut().enumerate() {
        if is_reduced(axis) {
            *stride = 0;
        }
    }
    let of_nothing = match kind {
        ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax => 0.0,
        ReduceKind::Max => f64::NEG_INFINITY,
        ReduceKind::Min => f64::INFINITY,
    };
    let mut slots = vec![of_nothing; kept.iter().product()];
    for (slot, x) in strided_indices(operand.dims(), &slot_strides).into_iter().zip(operand.to_f64()) {
        slots[slot] = match kind {
            ReduceKind::Sum | ReduceKind::Mean => slots[slot] + x,
            ReduceKind::Max => scalar::binary(BinaryKind::Max, slots[slot], x),
            ReduceKind::Min => scalar::binary(BinaryKind::Min, slots[slot], x),
            ReduceKind::Amax => scalar::binary(BinaryKind::Max, slots[slot], x.abs()),
        };
    }
    if kind == ReduceKind::Mean {
        let count: usize = axes.iter().map(|axis| operand.dims()[*axis as usize]).product();
        for slot in &mut slots {
            *slot /= count as f64;
        }
    }
    slots
}

/// Computes exp(x - max) / sum along an axis. A NaN makes its whole line NaN, as does an infinite maximum (inf - inf).
pub(super) fn softmax(operand: &Tensor, axis: usize) -> Vec<f64> {
    let mut values = operand.to_f64();
    let strides = row_major_strides(operand.dims());
    let (extent, stride) = (operand.dims()[axis], strides[axis]);
    let mut line_dims = operand.dims().to_vec();
    line_dims[axis] = 1;
    for start in strided_indices(&line_dims, &strides) {
        let line = || (0..extent).map(|index| start + index * stride);
        let max =
            line().fold(f64::NEG_INFINITY, |max, index| scalar::binary(BinaryKind::Max, max, values[index]));
        let mut sum = 0.0;
        for index in line() {
            values[index] = libm::exp(values[index] - max);
            sum += values[index];
        }
        for index in line() {
            values[index] /= sum;
        }
    }
    values
}

/// Computes (x - mean) / sqrt(var + eps) · weight + bias over the last axis, with the biased variance.
pub(super) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Vec<f64> {
    let mut values = x.to_f64();
    let (weight, bias) = (weight.to_f64(), bias.to_f64());
    // `weight` has the extent of the last axis; `chunks_mut` needs at least 1, even if there are no elements.
    let extent = weight.len().max(1);
    for row in values.chunks_mut(extent) {
        let count = row.len() as f64;
        let mean = row.iter().fold(0.0, |sum, x| sum + x) / count;
        let variance = row.iter().fold(0.0, |sum, x| sum + (x - mean) * (x - mean)) / count;
        let deviation = (variance + eps).sqrt();
        for ((x, weight), bias) in row.iter_mut().zip(&weight).zip(&bias) {
            *x = (*x - mean) / deviation * weight + bias;
        }
    }
    values
}
