//! The typing rule of each op.

use crate::types::{Dim, Shape};

/// The shape of two operands that broadcast as in NumPy: aligned at the last extent, where one of two extents is 1
/// or they are equal. `None` when they are not.
pub fn broadcast_shape(left: &[Dim], right: &[Dim]) -> Option<Shape> {
    let one = Dim::fixed(1);
    let rank = left.len().max(right.len());
    let extent = |shape: &[Dim], index: usize| match (index + shape.len()).checked_sub(rank) {
        Some(index) => shape[index].clone(),
        None => one.clone(),
    };
    (0..rank)
        .map(|index| match (extent(left, index), extent(right, index)) {
            (left, right) if left == right => Some(left),
            (left, right) if left == one => Some(right),
            (left, right) if right == one => Some(left),
            _ => None,
        })
        .collect()
}
