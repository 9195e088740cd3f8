//! Ops that move elements unchanged. They copy codes, so they are the same for every element type.

use crate::tensor::Tensor;
use crate::types::ElementType;

/// Transposes: result axis i is operand axis `permutation[i]`.
pub(super) fn transpose(operand: &Tensor, permutation: &[u32]) -> Vec<u8> {
    let strides = row_major_strides(operand.dims());
    let axes = || permutation.iter().map(|axis| *axis as usize);
    let dims: Vec<usize> = axes().map(|axis| operand.dims()[axis]).collect();
    let strides: Vec<usize> = axes().map(|axis| strides[axis]).collect();
    gather(operand, &strided_indices(&dims, &strides))
}

/// Repeats extents of 1 and adds leading extents.
pub(super) fn broadcast(operand: &Tensor, dims: &[usize]) -> Vec<u8> {
    gather(operand, &broadcast_indices(operand.dims(), dims))
}

/// For each element of a tensor of shape `to`, in row-major order: the index of its source element in a tensor of
/// shape `from`.
pub(super) fn broadcast_indices(from: &[usize], to: &[usize]) -> Vec<usize> {
    let added = to.len() - from.len();
    let strides = row_major_strides(from);
    let repeated = |axis: usize| axis < added || from[axis - added] == 1;
    let strides: Vec<usize> =
        (0..to.len()).map(|axis| if repeated(axis) { 0 } else { strides[axis - added] }).collect();
    strided_indices(to, &strides)
}

/// For each index of a tensor of shape `dims`, in row-major order: the sum of index times stride.
pub(super) fn strided_indices(dims: &[usize], strides: &[usize]) -> Vec<usize> {
    if dims.contains(&0) {
        return Vec::new();
    }
    let mut indices = vec![0];
    for (&dim, &stride) in dims.iter().zip(strides) {
        indices = indices.iter().flat_map(|base| (0..dim).map(move |index| base + index * stride)).collect();
    }
    indices
}

/// The row-major strides in elements.
pub(super) fn row_major_strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// The bytes of one element in the form of [`Tensor::to_codes`].
pub(super) fn code_bytes(element: ElementType) -> usize {
    element.storage_bits().div_ceil(8)
}

fn gather(operand: &Tensor, indices: &[usize]) -> Vec<u8> {
    let (codes, width) = (operand.to_codes(), code_bytes(operand.element()));
    indices.iter().flat_map(|index| &codes[index * width..][..width]).copied().collect()
}
