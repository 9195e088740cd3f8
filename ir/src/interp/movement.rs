//! Ops that move elements unchanged. They copy codes, so they are the same for every element type.

use crate::ops::{PadAmount, SliceRange};
use crate::tensor::Tensor;
use crate::types::ElementType;

/// Transposes: result axis i is operand axis `permutation[i]`.
pub(super) fn transpose(operand: &Tensor, permutation: &[u32]) -> Vec<u8> {
    let strides = row_major_strides(operand.dims());
    let axes = || permutation.iter().map(|axis| *axis as usize);
    let dims: Vec<usize> = axes().map(|axis| operand.dims()[axis]).collect();
    let strides: Vec<usize> = axes().map(|axis| strides[axis]).collect();
    picked(operand, &strided_indices(&dims, &strides))
}

/// Repeats extents of 1 and adds leading extents.
pub(super) fn broadcast(operand: &Tensor, dims: &[usize]) -> Vec<u8> {
    picked(operand, &broadcast_indices(operand.dims(), dims))
}

/// Takes ranges of some axes; `dims` is the result's shape.
pub(super) fn slice(operand: &Tensor, ranges: &[SliceRange], dims: &[usize]) -> Vec<u8> {
    let mut strides = row_major_strides(operand.dims());
    let mut first = 0;
    for range in ranges {
        let stride = &mut strides[range.axis as usize];
        first += range.start as usize * *stride;
        // A step beyond the extent takes one element, whose stride does not matter.
        *stride = stride.saturating_mul(range.step as usize);
    }
    let indices: Vec<usize> =
        strided_indices(dims, &strides).into_iter().map(|index| first + index).collect();
    picked(operand, &indices)
}

/// The position of the operand that an extent chooses.
pub(super) fn chosen(ends: &[u32], extent: usize) -> usize {
    ends.iter().filter(|end| (**end as usize) < extent).count()
}

/// Joins operands along an axis.
pub(super) fn concat(operands: &[&Tensor], axis: usize) -> Vec<u8> {
    let width = code_bytes(operands[0].element());
    let outer: usize = operands[0].dims()[..axis].iter().product();
    let parts: Vec<(Vec<u8>, usize)> = operands
        .iter()
        .map(|operand| (operand.to_codes(), operand.dims()[axis..].iter().product::<usize>() * width))
        .collect();
    let rows = (0..outer).flat_map(|row| parts.iter().map(move |(codes, len)| &codes[row * len..][..*len]));
    rows.flatten().copied().collect()
}

/// Takes slices of x along an axis. Every index is within it.
pub(super) fn gather(x: &Tensor, indices: &[f64], axis: usize) -> Vec<u8> {
    let (codes, extent) = (x.to_codes(), x.dims()[axis]);
    let outer: usize = x.dims()[..axis].iter().product();
    let len = x.dims()[axis + 1..].iter().product::<usize>() * code_bytes(x.element());
    let slices = (0..outer).flat_map(|row| indices.iter().map(move |index| row * extent + *index as usize));
    slices.flat_map(|slice| &codes[slice * len..][..len]).copied().collect()
}

/// Adds elements of one value before and after some axes; `dims` is the result's shape.
pub(super) fn pad(operand: &Tensor, amounts: &[PadAmount], value: f64, dims: &[usize]) -> Vec<u8> {
    let (codes, width) = (operand.to_codes(), code_bytes(operand.element()));
    // Two elements, because FP4 is packed in pairs.
    let value = if value.is_nan() { f64::NAN } else { value };
    let padding = Tensor::from_f64(operand.element(), vec![2], None, &[value; 2]);
    let padding = padding.expect("every type but scales may have the shape [2]").to_codes();
    let mut padded = padding[..width].repeat(dims.iter().product());
    let strides = row_major_strides(dims);
    let first: usize = amounts.iter().map(|amount| amount.low as usize * strides[amount.axis as usize]).sum();
    let places = strided_indices(operand.dims(), &strides);
    for (place, code) in places.into_iter().zip(codes.chunks(width)) {
        padded[(first + place) * width..][..width].copy_from_slice(code);
    }
    padded
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

fn picked(operand: &Tensor, indices: &[usize]) -> Vec<u8> {
    let (codes, width) = (operand.to_codes(), code_bytes(operand.element()));
    indices.iter().flat_map(|index| &codes[index * width..][..width]).copied().collect()
}

#[cfg(test)]
mod tests;
