//! Integers that ops use as the ends or the rows of groups, or as indices. Most others would make the run fail.

use super::SplitMix64;
use crate::bind::concrete_dims;
use crate::entities::{Op, Value};
use crate::numeric::TILE_ROWS;
use crate::ops::OpKind;
use crate::program::Program;
use crate::types::{ElementType, SymbolValues};

/// The numbers that the users of a value accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbers {
    /// Ends of groups: they ascend, and the last is at most this number of rows.
    Ends(usize),
    /// Rows of groups, each at most this number.
    Counts(usize),
    /// Ends of groups in scales of this many rows. Each group has the same number of tiles of 128 rows, or almost.
    PaddedEnds(usize),
    /// Indices below an extent.
    Below(usize),
}

impl Numbers {
    /// The numbers that both accept.
    fn and(self, other: Numbers) -> Numbers {
        match (self, other) {
            (Numbers::Ends(one), Numbers::Ends(other)) => Numbers::Ends(one.min(other)),
            (Numbers::Below(one), Numbers::Below(other)) => Numbers::Below(one.min(other)),
            (Numbers::PaddedEnds(one), Numbers::PaddedEnds(other)) => Numbers::PaddedEnds(one.min(other)),
            (Numbers::PaddedEnds(rows), _) | (_, Numbers::PaddedEnds(rows)) => Numbers::PaddedEnds(rows),
            (Numbers::Counts(one), Numbers::Counts(other)) => Numbers::Counts(one.min(other)),
            (Numbers::Counts(one), Numbers::Ends(other)) | (Numbers::Ends(one), Numbers::Counts(other)) => {
                Numbers::Ends(one.min(other))
            }
            (Numbers::Counts(rows), Numbers::Below(extent))
            | (Numbers::Below(extent), Numbers::Counts(rows)) => {
                Numbers::Counts(rows.min(extent.saturating_sub(1)))
            }
            (Numbers::Ends(rows), Numbers::Below(extent)) | (Numbers::Below(extent), Numbers::Ends(rows)) => {
                Numbers::Ends(rows.min(extent.saturating_sub(1)))
            }
        }
    }
}

/// The numbers that the users of an `i32` accept; `None` if they accept every number. A `reshape` accepts what its
/// users accept.
pub(super) fn accepted(program: &Program, value: Value, symbols: &SymbolValues) -> Option<Numbers> {
    let module = program.module();
    if module.ty(value).element != ElementType::I32 {
        return None;
    }
    let extent_of = |value: Value, axis: usize| concrete_dims(module.ty(value), symbols)?.get(axis).copied();
    let mut found: Option<Numbers> = None;
    for op in program.facts().users(value) {
        let operation = &module.ops[*op];
        let operand = |at: usize| operation.operands.get(at).copied();
        let is_operand = |at: usize| operand(at) == Some(value);
        let numbers = match &operation.kind {
            OpKind::GroupedScaledMma(mma) if is_operand(mma.positional().len() - 1) => {
                let (axis, numbers): (_, fn(usize) -> Numbers) =
                    if mma.masked { (1, Numbers::Counts) } else { (0, Numbers::Ends) };
                operand(0).and_then(|a| extent_of(a, axis)).map(numbers)
            }
            OpKind::GroupedScaledMma(mma) if mma.sfa_ends && operation.operands.last() == Some(&value) => {
                operand(1).and_then(|sfa| extent_of(sfa, 0)).map(Numbers::PaddedEnds)
            }
            OpKind::GroupScales if is_operand(1) => {
                operand(0).and_then(|scales| extent_of(scales, 0)).map(Numbers::Ends)
            }
            OpKind::GroupScales if is_operand(2) => {
                extent_of(operation.results[0], 0).map(Numbers::PaddedEnds)
            }
            OpKind::Gather { axis } if is_operand(1) => {
                operand(0).and_then(|x| extent_of(x, *axis as usize)).map(Numbers::Below)
            }
            OpKind::GroupRows { groups } => Some(Numbers::Below(*groups as usize)),
            OpKind::ScatterAdd if is_operand(1) => extent_of(operation.results[0], 0).map(Numbers::Below),
            OpKind::Reshape => accepted(program, operation.results[0], symbols),
            _ => None,
        };
        found = match (found, numbers) {
            (Some(found), Some(numbers)) => Some(found.and(numbers)),
            (found, numbers) => found.or(numbers),
        };
    }
    // `padded_ends` accepts any number of rows. Other users have rows.
    let is_padded = |op: &Op| matches!(module.ops[*op].kind, OpKind::PaddedEnds { .. });
    let of_padded = || {
        let padded = program.facts().users(value).iter().any(is_padded);
        extent_of(value, 0).filter(|_| padded).map(|groups| Numbers::Ends(groups.saturating_mul(100)))
    };
    found.or_else(of_padded)
}

/// Draws `count` numbers. `seed` is that of the recipe, which selects the [distribution](super::Distribution).
pub(super) fn draw(numbers: Numbers, count: usize, seed: u64, random: &mut SplitMix64) -> Vec<u8> {
    let numbers: Vec<usize> = match numbers {
        // An extent of 0 accepts no index, and gives 0.
        Numbers::Below(extent) => {
            (0..count).map(|_| random.below(extent.min(1 << 31) as u64) as usize).collect()
        }
        Numbers::Ends(rows) => {
            let sizes = Distribution::of_seed(seed).sizes(count, rows, random);
            let ends = sizes.into_iter().scan(0, |end, size| {
                *end += size;
                Some(*end)
            });
            ends.collect()
        }
        Numbers::PaddedEnds(rows) => {
            (1..=count).map(|end| end * (rows / TILE_ROWS) / count * TILE_ROWS).collect()
        }
        Numbers::Counts(rows) => Distribution::of_seed(seed).counts(count, rows, random),
    };
    let code = |number: usize| i32::try_from(number).unwrap_or(i32::MAX).to_le_bytes();
    numbers.into_iter().flat_map(code).collect()
}

/// The sizes of drawn groups. The seed of a recipe modulo 5 selects one, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Seeds 0, 5, ..: all groups have the same number of rows; the first ones have one more if rows remain. With as
    /// many rows as groups, each has one.
    Equal,
    /// Seeds 1, 6, ..: each row has a random group.
    Uniform,
    /// Seeds 2, 7, ..: one random group has all rows.
    One,
    /// Seeds 3, 8, ..: each row has a random group out of a random half of all groups, and the others are empty.
    Sparse,
    /// Seeds 4, 9, ..: one row for each group as long as there are rows. Further rows belong to no group.
    Single,
}

impl Distribution {
    /// Every distribution, in the order of seeds.
    pub const ALL: [Distribution; 5] = [
        Distribution::Equal,
        Distribution::Uniform,
        Distribution::One,
        Distribution::Sparse,
        Distribution::Single,
    ];

    /// The distribution of a seed.
    pub fn of_seed(seed: u64) -> Distribution {
        Distribution::ALL[(seed % Distribution::ALL.len() as u64) as usize]
    }

    /// Rows of groups that have a matrix of `rows` rows each.
    fn counts(self, groups: usize, rows: usize, random: &mut SplitMix64) -> Vec<usize> {
        let mut below = |extent: usize| random.below(extent as u64) as usize;
        match self {
            Distribution::Equal => vec![rows; groups],
            Distribution::Uniform => (0..groups).map(|_| below(rows + 1)).collect(),
            Distribution::One => {
                let one = if groups == 0 { 0 } else { below(groups) };
                (0..groups).map(|group| if group == one { rows } else { 0 }).collect()
            }
            Distribution::Sparse => {
                (0..groups).map(|_| if below(2) == 0 { 0 } else { below(rows + 1) }).collect()
            }
            Distribution::Single => vec![rows.min(1); groups],
        }
    }

    fn sizes(self, groups: usize, rows: usize, random: &mut SplitMix64) -> Vec<usize> {
        let mut sizes = vec![0; groups];
        if groups == 0 {
            return sizes;
        }
        let mut group = |groups: usize| random.below(groups as u64) as usize;
        match self {
            Distribution::Equal => {
                let more = rows % groups;
                sizes
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, size)| *size = rows / groups + usize::from(at < more));
            }
            Distribution::Uniform => (0..rows).for_each(|_| sizes[group(groups)] += 1),
            Distribution::One => sizes[group(groups)] = rows,
            Distribution::Sparse => {
                let mut order: Vec<usize> = (0..groups).collect();
                (1..groups).rev().for_each(|at| order.swap(at, group(at + 1)));
                order.truncate(groups.div_ceil(2));
                (0..rows).for_each(|_| sizes[order[group(order.len())]] += 1);
            }
            Distribution::Single => sizes.iter_mut().take(rows).for_each(|size| *size = 1),
        }
        sizes
    }
}
