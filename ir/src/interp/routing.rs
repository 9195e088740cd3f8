//! Ops that route rows to groups and back.

use std::cmp::Ordering;

use super::movement::code_bytes;
use crate::scalar;
use crate::tensor::Tensor;
use crate::types::ElementType;

/// The codes of the k greatest elements of each row, in descending order, and their indices.
pub(super) fn top_k(x: &Tensor, k: usize) -> (Vec<u8>, Vec<f64>) {
    let (values, codes, width) = (x.to_f64(), x.to_codes(), code_bytes(x.element()));
    let columns = x.dims().last().copied().unwrap_or(1);
    let (mut taken, mut indices) = (Vec::new(), Vec::new());
    for (row, values) in values.chunks(columns).enumerate() {
        let mut order: Vec<usize> = (0..columns).collect();
        // The sort is stable, so the first of equal elements stays first.
        order.sort_by(|left, right| descending(values[*left], values[*right]));
        for index in &order[..k] {
            taken.extend(&codes[(row * columns + index) * width..][..width]);
            indices.push(*index as f64);
        }
    }
    (taken, indices)
}

/// NaN comes first.
fn descending(left: f64, right: f64) -> Ordering {
    right.partial_cmp(&left).unwrap_or_else(|| right.is_nan().cmp(&left.is_nan()))
}

/// The positions of ids in the order of their groups, their rows, and the ends of the groups. Every id is that of a
/// group.
pub(super) fn group_rows(ids: &Tensor, groups: usize) -> [Vec<f64>; 3] {
    let columns = ids.dims().last().copied().unwrap_or(1);
    let ids: Vec<usize> = ids.to_f64().into_iter().map(|id| id as usize).collect();
    let mut positions: Vec<usize> = (0..ids.len()).collect();
    // The sort is stable, so the positions of a group ascend.
    positions.sort_by_key(|position| ids[*position]);
    let mut counts = vec![0; groups];
    ids.iter().for_each(|id| counts[*id] += 1);
    let ends = counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end as f64)
    });
    let ends = ends.collect();
    let rows = positions.iter().map(|position| (position / columns) as f64).collect();
    [positions.iter().map(|position| *position as f64).collect(), rows, ends]
}

/// The ends of groups if each is padded to a multiple of rows. Ends ascend from 0.
pub(super) fn padded_ends(ends: &Tensor, multiple: u32) -> Vec<f64> {
    let (mut end_before, mut padded) = (0, 0);
    let ends = ends.to_f64().into_iter().map(|end| {
        padded += (end as u64 - end_before).next_multiple_of(u64::from(multiple));
        end_before = end as u64;
        padded as f64
    });
    ends.collect()
}

/// Scales of rows in groups, moved to the rows of padded groups among `rows`. Other rows are 0.
pub(super) fn group_scales(scales: &Tensor, ends: &Tensor, sfa_ends: &Tensor, rows: usize) -> Vec<u8> {
    let (codes, columns) = (scales.to_codes(), scales.dims()[1]);
    let mut moved = vec![0; rows * columns];
    for (row, place) in padded_rows(ends, sfa_ends) {
        moved[place * columns..][..columns].copy_from_slice(&codes[row * columns..][..columns]);
    }
    moved
}

/// The scales of `rows` rows in groups, from those of padded groups. Rows of no group have scales of 0.
pub(super) fn scales_of_rows(sfa: &Tensor, ends: &Tensor, sfa_ends: &Tensor, rows: usize) -> Vec<u8> {
    let (codes, columns) = (sfa.to_codes(), sfa.dims()[1]);
    let mut linear = vec![0; rows * columns];
    for (row, place) in padded_rows(ends, sfa_ends) {
        linear[row * columns..][..columns].copy_from_slice(&codes[place * columns..][..columns]);
    }
    linear
}

/// The rows of all groups, each with its place among those of padded groups.
fn padded_rows(ends: &Tensor, sfa_ends: &Tensor) -> Vec<(usize, usize)> {
    let (mut begin, mut padded) = (0, 0);
    let mut rows = Vec::new();
    for (end, padded_end) in ends.to_f64().into_iter().zip(sfa_ends.to_f64()) {
        rows.extend((begin..end as usize).map(|row| (row, padded + row - begin)));
        (begin, padded) = (end as usize, padded_end as usize);
    }
    rows
}

/// The sums of rows of x at their indices, each a row of `dims`, in f32. Every index is below `dims[0]`.
pub(super) fn scatter_add(x: &Tensor, indices: &Tensor, dims: &[usize]) -> Vec<f64> {
    let (values, indices) = (x.to_f64(), indices.to_f64());
    let columns: usize = dims[1..].iter().product();
    let mut sums: Vec<Option<f64>> = vec![None; dims[0] * columns];
    for (row, index) in indices.iter().enumerate() {
        for column in 0..columns {
            let (sum, addend) =
                (&mut sums[*index as usize * columns + column], values[row * columns + column]);
            // The sum of two f32 in f64, rounded to f32, is their sum in f32.
            *sum = Some(sum.map_or(addend, |sum| scalar::round_to(ElementType::F32, sum + addend)));
        }
    }
    sums.into_iter().map(|sum| sum.unwrap_or(0.0)).collect()
}

#[cfg(test)]
mod tests;
