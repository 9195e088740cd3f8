//! Conditions that the integers of an op must meet.

use super::{InterpretError, routing};
use crate::numeric::TILE_ROWS;
use crate::tensor::Tensor;

/// Checks that every id of a `group_rows` is that of a group.
pub(super) fn check_groups(place: &str, ids: &Tensor, groups: u32) -> Result<(), InterpretError> {
    let ids = ids.to_f64();
    match ids.iter().position(|id| !(0.0..f64::from(groups)).contains(id)) {
        None => Ok(()),
        Some(position) => {
            let (place, id) = (place.to_owned(), ids[position] as i32);
            Err(InterpretError::Group { place, position, id, groups })
        }
    }
}

/// Checks that every count of a `masked_scaled_mma` is one of rows of a matrix.
pub(super) fn check_counts(place: &str, counts: &Tensor, rows: usize) -> Result<(), InterpretError> {
    let counts = counts.to_f64();
    match counts.iter().position(|count| !(0.0..=rows as f64).contains(count)) {
        None => Ok(()),
        Some(position) => {
            let count = counts[position] as i32;
            Err(InterpretError::GroupCount { place: place.to_owned(), position, count, rows })
        }
    }
}

/// Checks that offsets ascend from 0 to at most the number of rows.
pub(super) fn check_offsets(place: &str, offsets: &Tensor, rows: usize) -> Result<(), InterpretError> {
    let mut least = 0.0;
    for (position, offset) in offsets.to_f64().into_iter().enumerate() {
        if !(least..=rows as f64).contains(&offset) {
            let (place, offset, least) = (place.to_owned(), offset as i32, least as i32);
            return Err(InterpretError::Offset { place, position, offset, least, rows });
        }
        least = offset;
    }
    Ok(())
}

/// Checks that every index is within the axis, even if the result has no elements.
pub(super) fn check_indices(
    place: &str,
    indices: &Tensor,
    axis: u32,
    extent: usize,
) -> Result<(), InterpretError> {
    let indices = indices.to_f64();
    match indices.iter().position(|index| !(0.0..extent as f64).contains(index)) {
        None => Ok(()),
        Some(position) => {
            let (place, index) = (place.to_owned(), indices[position] as i32);
            Err(InterpretError::Index { place, position, index, axis, extent })
        }
    }
}

/// Checks the operands of a `padded_ends`: ends that ascend from 0, and padded ends that an `i32` holds.
pub(super) fn check_padded(place: &str, ends: &Tensor, multiple: u32) -> Result<(), InterpretError> {
    check_offsets(place, ends, i32::MAX as usize)?;
    let padded = routing::padded_ends(ends, multiple);
    let most = i32::MAX as usize;
    match padded.iter().position(|end| *end > most as f64) {
        None => Ok(()),
        Some(position) => {
            let (place, end) = (place.to_owned(), padded[position] as i64);
            Err(InterpretError::PaddedEnd { place, position, end, multiple, least: 0, most })
        }
    }
}

/// Checks that each group of scales has whole tiles of 128 rows for its rows, and ends within `rows` rows. The ends of
/// the groups themselves are right.
pub(super) fn check_sfa_ends(
    place: &str,
    ends: &Tensor,
    sfa_ends: &Tensor,
    rows: usize,
) -> Result<(), InterpretError> {
    let (mut end_before, mut least) = (0, 0);
    for (position, (end, padded)) in ends.to_f64().into_iter().zip(sfa_ends.to_f64()).enumerate() {
        let (end, padded) = (end as i64, padded as i64);
        least += end - end_before;
        if padded < least || padded > rows as i64 || padded % TILE_ROWS as i64 != 0 {
            let (place, multiple) = (place.to_owned(), TILE_ROWS as u32);
            return Err(InterpretError::PaddedEnd {
                place,
                position,
                end: padded,
                multiple,
                least,
                most: rows,
            });
        }
        (end_before, least) = (end, padded);
    }
    Ok(())
}
