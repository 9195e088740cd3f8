//! The data of a facility location problem: the worth of columns (kernels) to rows (problems).

use super::bits::Bits;

/// A facility location problem, optionally with a required cover.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) rows: usize,
    /// The worth by column, then row; at least 0.
    pub(super) worth: Vec<Vec<f64>>,
    /// The maximum number of columns of a choice.
    pub(super) most: usize,
    /// Number of rows to be covered; 0 without a required cover.
    pub(super) required: usize,
    /// Per column, the rows that it covers.
    pub(super) has: Vec<Bits>,
}

/// The gain of adding a column to the best worth of each row. Uses four sums, because the compiler may not reorder
/// floating-point additions.
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
