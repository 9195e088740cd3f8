//! Ops that route rows to groups and back: `top_k`, `group_rows` and `scatter_add`.

use std::cmp::Ordering;

use fourfold_ir::Tensor;

use super::codec::Codec;
use super::memory::grow;
use super::{FallbackError, ResultType, no_memory};

/// Elements summed per step.
const CHUNK: usize = 1024;

/// The k greatest elements of each row, in descending order, and their indices.
pub(super) fn top_k(x: &Tensor, k: usize, results: Vec<ResultType>) -> Result<Vec<Tensor>, FallbackError> {
    let internal = FallbackError::Internal { reason: "top_k has two results" };
    let [values, indices]: [ResultType; 2] = results.try_into().map_err(|_| internal)?;
    let columns = x.dims().last().copied().unwrap_or(0);
    check_positions(columns)?;
    let (mut of_row, mut order) = (Vec::new(), Vec::new());
    let no_room = |error| no_memory(x.element(), x.dims(), error);
    grow(&mut of_row, columns, 0f32).map_err(no_room)?;
    grow(&mut order, columns, 0u32).map_err(no_room)?;
    let (codec, width) = (Codec::of(x), x.element().storage_bits() / 8);
    let (mut values, mut indices) = (values.zeros()?, indices.zeros()?);
    let places =
        values.bytes_mut().chunks_mut(k * width).zip(indices.bytes_mut().chunks_mut(k * size_of::<i32>()));
    for (row, (values, indices)) in places.enumerate() {
        codec.read(x.bytes(), row * columns, 1, &mut of_row);
        order.iter_mut().zip(0..).for_each(|(place, index)| *place = index);
        let before = |left: &u32, right: &u32| {
            let [a, b] = [*left, *right].map(|index| of_row[index as usize]);
            descending(a, b).then(left.cmp(right))
        };
        // All elements differ in this order, so it need not be stable.
        order.select_nth_unstable_by(k - 1, before);
        order[..k].sort_unstable_by(before);
        let places = values.chunks_mut(width).zip(indices.as_chunks_mut::<4>().0);
        for (index, (value, place)) in order.iter().zip(places) {
            value.copy_from_slice(&x.bytes()[(row * columns + *index as usize) * width..][..width]);
            *place = (*index as i32).to_le_bytes();
        }
    }
    Ok(vec![values, indices])
}

/// NaN comes first.
fn descending(left: f32, right: f32) -> Ordering {
    right.partial_cmp(&left).unwrap_or_else(|| right.is_nan().cmp(&left.is_nan()))
}

/// Sorts ids by group: positions, their rows, and the ends of the groups.
pub(super) fn group_rows(
    ids: &Tensor,
    groups: u32,
    results: Vec<ResultType>,
) -> Result<Vec<Tensor>, FallbackError> {
    let internal = FallbackError::Internal { reason: "group_rows has three results" };
    let [positions, rows, ends]: [ResultType; 3] = results.try_into().map_err(|_| internal)?;
    let columns = ids.dims().last().copied().unwrap_or(0);
    check_positions(ids.count())?;
    let dims = ends.dims.clone();
    let sorted = Sorted::new(ids, groups as usize).map_err(|error| match error {
        SortError::Outside { position, id } => FallbackError::Group { position, id, groups },
        SortError::Memory(error) => no_memory(ends.element, &dims, error),
    })?;
    let (mut positions, mut rows, mut ends) = (positions.zeros()?, rows.zeros()?, ends.zeros()?);
    let places =
        positions.bytes_mut().as_chunks_mut::<4>().0.iter_mut().zip(rows.bytes_mut().as_chunks_mut::<4>().0);
    for ((position, row), sorted) in places.zip(&sorted.positions) {
        *position = (*sorted as i32).to_le_bytes();
        *row = ((*sorted as usize / columns) as i32).to_le_bytes();
    }
    for (place, end) in ends.bytes_mut().as_chunks_mut::<4>().0.iter_mut().zip(&sorted.ends) {
        *place = (*end as i32).to_le_bytes();
    }
    Ok(vec![positions, rows, ends])
}

/// Adds rows of x to the rows of the result at their indices.
pub(super) fn scatter_add(x: &Tensor, indices: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    check_positions(indices.count())?;
    let extent = result.dims.first().copied().unwrap_or(0);
    let columns = result.dims.iter().skip(1).fold(1usize, |count, dim| count.saturating_mul(*dim));
    let sorted = Sorted::new(indices, extent).map_err(|error| match error {
        SortError::Outside { position, id: index } => {
            FallbackError::Index { position, index, axis: 0, extent }
        }
        SortError::Memory(error) => no_memory(indices.element(), indices.dims(), error),
    })?;
    let (from, to) = (Codec::of(x), Codec::plain(result.element));
    let width = result.element.storage_bits() / 8;
    result.fill(CHUNK, |start, mut out| {
        let mut at = start;
        while !out.is_empty() {
            let (row, column) = (at / columns, at % columns);
            let len = (columns - column).min(out.len() / width);
            let (mut sums, mut addends) = ([0f32; CHUNK], [0f32; CHUNK]);
            let (sums, addends) = (&mut sums[..len], &mut addends[..len]);
            for (count, position) in sorted.group(row).iter().enumerate() {
                let first = *position as usize * columns + column;
                if count == 0 {
                    from.read(x.bytes(), first, 1, sums);
                    continue;
                }
                from.read(x.bytes(), first, 1, addends);
                sums.iter_mut().zip(&*addends).for_each(|(sum, addend)| *sum += addend);
            }
            let part;
            (part, out) = out.split_at_mut(len * width);
            to.write(sums, part);
            at += len;
        }
    })
}

fn check_positions(count: usize) -> Result<(), FallbackError> {
    i32::try_from(count).map_or(Err(FallbackError::Positions { count }), |_| Ok(()))
}

/// Positions sorted by group; those of a group ascend.
struct Sorted {
    positions: Vec<u32>,
    /// The end of each group.
    ends: Vec<u32>,
}

enum SortError {
    /// An id is not that of a group.
    Outside {
        position: usize,
        id: i32,
    },
    Memory(super::NoMemory),
}

impl Sorted {
    /// Sorts the elements of an `i32` tensor by counting.
    fn new(ids: &Tensor, groups: usize) -> Result<Sorted, SortError> {
        let (ids, _) = ids.bytes().as_chunks::<4>();
        let group =
            |id: &[u8; 4]| usize::try_from(i32::from_le_bytes(*id)).ok().filter(|group| *group < groups);
        if let Some(position) = ids.iter().position(|id| group(id).is_none()) {
            return Err(SortError::Outside { position, id: i32::from_le_bytes(ids[position]) });
        }
        let (mut positions, mut ends) = (Vec::new(), Vec::new());
        grow(&mut positions, ids.len(), 0u32).map_err(SortError::Memory)?;
        grow(&mut ends, groups, 0u32).map_err(SortError::Memory)?;
        let groups_of = || ids.iter().filter_map(group);
        groups_of().for_each(|group| ends[group] += 1);
        let mut before = 0;
        for end in &mut ends {
            // The begin of the group, which the loop below moves to its end.
            (*end, before) = (before, before + *end);
        }
        for (position, group) in groups_of().enumerate() {
            positions[ends[group] as usize] = position as u32;
            ends[group] += 1;
        }
        Ok(Sorted { positions, ends })
    }

    /// The positions of a group.
    fn group(&self, group: usize) -> &[u32] {
        let begin = group.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.positions[begin as usize..self.ends[group] as usize]
    }
}
