//! Columns and what they are worth to rows: the data of a facility location problem.

use super::bits::Bits;

/// What columns are worth to rows, and what they must have.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) rows: usize,
    /// By column, then row: not below 0.
    pub(super) worth: Vec<Vec<f64>>,
    /// How many columns there may be.
    pub(super) most: usize,
    /// How many rows the cover has that is asked for, and which of them each column has. Else 0.
    pub(super) required: usize,
    pub(super) has: Vec<Bits>,
}

/// By how much rows have more with a column besides; in four sums, as the compiler may not reorder one.
pub(super) fn gain(best: &[f64], column: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (best, column) = (best.chunks(4), column.chunks(4));
    for (best, column) in best.zip(column) {
        for ((sum, best), worth) in sums.iter_mut().zip(best).zip(column) {
            *sum += (worth - best).max(0.0);
        }
    }
    sums.iter().sum()
}
