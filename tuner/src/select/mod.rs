//! Selects the kernels to keep: the fewest that reach a given efficiency on every problem ([`minimum_set`]), or a given
//! number with the largest mean efficiency ([`best_of`]).
//!
//! Both problems are solved to proven optimality if the limits allow; [`Proof`] states the outcome. The steps are:
//! 1. remove dominated kernels and implied problems;
//! 2. improve a greedy choice by local search;
//! 3. search all better choices by branch and bound, within a fixed number of steps;
//! 4. solve the remaining problem as an integer program, within a time limit;
//! 5. check the result with [`check`], which shares no code with the other steps.

use core::time::Duration;
use std::fmt;

use crate::matrix::Matrix;

mod bits;
mod check;
mod columns;
mod cover;
mod location;
mod relax;
mod table;
#[cfg(test)]
mod tests;

pub use check::check;

use cover::Covered;
use table::Table;

/// A tolerance, subtracted from the required efficiency, for noise of the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Margin {
    /// The sum of the noise of the kernel's measurement and of the best kernel's.
    Noise,
    /// A fixed tolerance: 0.01 admits 0.94 if 0.95 is required.
    Given(f64),
}

/// The goal of a selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The fewest kernels such that each problem has a selected kernel of at least this efficiency, less the margin.
    /// Problems that no kernel supports are ignored.
    Fewest {
        /// The required efficiency, best time over the kernel's time; above 0 and at most 1.
        min_efficiency: f64,
        /// The tolerance.
        margin: Margin,
    },
    /// At most this many kernels, with the largest mean efficiency.
    Best {
        /// The maximum number of kernels, at least 1.
        kernels: usize,
    },
}

/// The proof of optimality of a selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Proof {
    /// No selection is better.
    Optimal,
    /// The search ended before optimality was proven.
    Incumbent {
        /// The value found: a number of kernels, or a mean efficiency.
        found: f64,
        /// A bound on the value of any selection.
        bound: f64,
    },
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proof::Incumbent { found, bound } = *self else { return f.write_str("optimal") };
        // Rounds the bound away from the value found, so that the printed bound holds.
        if bound < found {
            write!(f, "incumbent {found}, bound {}", (bound * 100.0).floor() / 100.0)
        } else {
            write!(f, "incumbent {found:.4}, bound {:.4}", (bound * 1e4).ceil() / 1e4)
        }
    }
}

/// Selected kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The positions of the selected kernels in the matrix, ascending.
    pub kernels: Vec<usize>,
    /// For each problem, the fastest selected kernel; `None` if no selected kernel supports it.
    pub assignment: Vec<Option<usize>>,
    /// The proof that no selection has fewer kernels ([`Goal::Fewest`]) or a larger mean efficiency ([`Goal::Best`]).
    pub proof: Proof,
    /// For [`Goal::Fewest`] with a proven number of kernels: the proof that no selection of that size has a larger mean
    /// efficiency.
    pub ties: Option<Proof>,
    /// The smallest efficiency over the problems that some kernel of the matrix supports; 0 for one that is not
    /// covered. `None` without such problems.
    pub worst: Option<f64>,
    /// The weighted mean of the same efficiencies; `None` without such problems.
    pub mean: Option<f64>,
    /// The problems that no selected kernel supports, including those that no kernel of the matrix supports.
    pub uncovered: Vec<usize>,
}

/// An error of a selection.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SelectError {
    /// The efficiency is not above 0 and at most 1.
    #[error("the minimum efficiency is {0}; give one above 0 and at most 1, such as 0.95")]
    Efficiency(f64),
    /// The margin is negative or not finite.
    #[error("the margin is {0}; give 0 or more, such as 0.01")]
    Margin(f64),
    /// The number of kernels is 0.
    #[error("the maximum number of kernels is 0; give 1 or more")]
    Kernels,
    /// The matrix is inconsistent.
    #[error("the matrix is inconsistent: {0}; create it with `Matrix::from_records`")]
    Matrix(String),
    /// Neither the selection nor a greedy one passes the check: a bug in Fourfold.
    #[error("the selection fails its check, a bug in Fourfold: {0}; please report it with the records")]
    Internal(String),
}

/// The effort allowed for a proof.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Steps of the branch-and-bound search. A step takes at most a few nanoseconds.
    steps: u64,
    /// Time of the integer-program solver.
    time: Duration,
}

/// The steps of each of the two searches. Steps are counted, not timed, so that results do not depend on the machine.
const STEPS: u64 = 300_000_000;

/// Selects the fewest kernels such that each problem has a selected kernel of at least `min_efficiency`, less the
/// margin. Of selections of that size, finds one with the largest mean efficiency. The integer-program solver, if it
/// is needed, stops after `limit`.
///
/// # Errors
/// If the efficiency, the margin or the matrix is invalid. Problems that no kernel supports are not an error.
pub fn minimum_set(
    matrix: &Matrix,
    min_efficiency: f64,
    margin: Margin,
    limit: Duration,
) -> Result<Selection, SelectError> {
    select(matrix, Goal::Fewest { min_efficiency, margin }, Effort { steps: STEPS, time: limit })
}

/// Selects at most `kernels` kernels with the largest weighted mean efficiency. A problem that is not covered has the
/// efficiency 0. The integer-program solver, if it is needed, stops after `limit`.
///
/// # Errors
/// If `kernels` is 0 or the matrix is invalid. Problems that no kernel supports are not an error.
pub fn best_of(matrix: &Matrix, kernels: usize, limit: Duration) -> Result<Selection, SelectError> {
    select(matrix, Goal::Best { kernels }, Effort { steps: STEPS, time: limit })
}

fn select(matrix: &Matrix, goal: Goal, effort: Effort) -> Result<Selection, SelectError> {
    match goal {
        Goal::Fewest { min_efficiency, .. } if !(min_efficiency > 0.0 && min_efficiency <= 1.0) => {
            return Err(SelectError::Efficiency(min_efficiency));
        }
        Goal::Fewest { margin: Margin::Given(margin), .. } if !(margin >= 0.0 && margin.is_finite()) => {
            return Err(SelectError::Margin(margin));
        }
        Goal::Best { kernels: 0 } => return Err(SelectError::Kernels),
        _ => {}
    }
    let table = Table::of(matrix).map_err(SelectError::Matrix)?;
    let found = match goal {
        Goal::Fewest { min_efficiency, margin } => fewest(&table, min_efficiency, margin, effort),
        Goal::Best { kernels } => best(&table, kernels, effort),
    };
    let Err(fault) = check(matrix, &found, goal) else { return Ok(found) };
    // If the check fails, a greedy selection without proof is better than none.
    let plain = greedy(&table, goal);
    check(matrix, &plain, goal).map_err(|_| SelectError::Internal(fault))?;
    Ok(plain)
}

fn fewest(table: &Table, min_efficiency: f64, margin: Margin, effort: Effort) -> Selection {
    let cover = table.cover(min_efficiency, margin);
    let Covered { columns, bound, proven, spent } = cover.fewest(effort);
    let left = if proven { effort.time.saturating_sub(spent) } else { Duration::ZERO };
    let mut location = table.location(columns.len());
    location.require(&cover);
    let located = location.best(&columns, Effort { time: left, ..effort });
    let ties = proven.then(|| table.mean_proof(&located));
    // If the first search did not prove its number, the second may find fewer kernels.
    let found = located.columns.len() as f64;
    let proof = if found <= bound { Proof::Optimal } else { Proof::Incumbent { found, bound } };
    table.selection(located.columns, proof, ties)
}

fn best(table: &Table, kernels: usize, effort: Effort) -> Selection {
    let located = table.location(kernels).best(&[], effort);
    let proof = table.mean_proof(&located);
    table.selection(table.used(&located.columns), proof, None)
}

/// A greedy selection without improvement or proof.
fn greedy(table: &Table, goal: Goal) -> Selection {
    let kernels = match goal {
        Goal::Fewest { min_efficiency, margin } => table.cover(min_efficiency, margin).greedy(),
        Goal::Best { kernels } => table.location(kernels).greedy(),
    };
    let (found, bound) = match goal {
        Goal::Fewest { .. } => (kernels.len() as f64, f64::from(u8::from(!kernels.is_empty()))),
        Goal::Best { .. } => (0.0, 1.0),
    };
    let mut selection = table.selection(kernels, Proof::Incumbent { found, bound }, None);
    if let (Goal::Best { .. }, Some(mean)) = (goal, selection.mean) {
        selection.proof = Proof::Incumbent { found: mean, bound };
    }
    selection
}
