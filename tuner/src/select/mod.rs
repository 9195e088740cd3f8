//! Which kernels to keep: the fewest that lose little anywhere, or so many that lose least on the whole.
//!
//! Both are solved exactly where that can be done in the time given, and the result says whether it was. First what needs
//! no search is decided: kernels that another replaces, problems that others imply. A greedy choice, improved, is the
//! beginning; then all choices that could be better are tried, as long as that takes a fixed number of steps; what is
//! still open then goes to the solver of integer programs, with a limit of time. Whatever comes out is checked by
//! [`check`], which shares nothing with this.

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

/// What is taken off the efficiency that is asked for, because measurements differ from one to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Margin {
    /// The noise of the kernel's measurement and of the best one's, added.
    Noise,
    /// Always the same: 0.01 admits 0.94 where 0.95 is asked for.
    Given(f64),
}

/// What a selection is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// As few kernels as possible, such that each problem that any serves has one of this efficiency, less the margin.
    Fewest {
        /// The least time of all over the kernel's, above 0 and at most 1.
        min_efficiency: f64,
        /// See there.
        margin: Margin,
    },
    /// At most so many kernels, with the largest mean efficiency.
    Best {
        /// How many, at least 1.
        kernels: usize,
    },
}

/// Whether there is none better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Proof {
    /// There is none.
    Optimal,
    /// Nobody knows.
    Incumbent {
        /// What was found: a number of kernels, or a mean efficiency.
        found: f64,
        /// What none can be better than.
        bound: f64,
    },
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proof::Incumbent { found, bound } = *self else { return f.write_str("optimal") };
        // A bound is rounded away from what was found, so that what is printed holds.
        if bound < found {
            write!(f, "incumbent {found}, bound {}", (bound * 100.0).floor() / 100.0)
        } else {
            write!(f, "incumbent {found:.4}, bound {:.4}", (bound * 1e4).ceil() / 1e4)
        }
    }
}

/// Chosen kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Their positions in the matrix, in order.
    pub kernels: Vec<usize>,
    /// For each problem the chosen kernel that takes least time; `None` where none serves it.
    pub assignment: Vec<Option<usize>>,
    /// Whether no other selection is better at what was asked for: fewer kernels, or a larger mean efficiency.
    pub proof: Proof,
    /// Of the fewest kernels: whether as many others have no larger mean efficiency. Absent where their number is not
    /// proven, or was given.
    pub ties: Option<Proof>,
    /// The least efficiency on a problem that any kernel of the matrix serves; 0 where the chosen do not serve it. `None`
    /// where there is no such problem, here and for the mean.
    pub worst: Option<f64>,
    /// The mean of the same efficiencies, weighted.
    pub mean: Option<f64>,
    /// The problems that no chosen kernel serves. Of some of them the matrix may have no kernel that is right.
    pub uncovered: Vec<usize>,
}

/// Why there is no selection.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SelectError {
    /// Efficiencies lie between 0 and 1.
    #[error("an efficiency of at least {0} is asked for: give one above 0 and at most 1, such as 0.95")]
    Efficiency(f64),
    /// A margin widens what is admitted.
    #[error("the margin is {0}: give 0 or more, such as 0.01")]
    Margin(f64),
    /// None is no selection.
    #[error("at most 0 kernels are asked for: give 1 or more")]
    Kernels,
    /// A matrix that was not made of records.
    #[error("the matrix cannot be: {0}; make it with `Matrix::from_records`")]
    Matrix(String),
    /// Neither what was found nor a greedy choice passes the check.
    #[error(
        "this is a fault of Fourfold, please report it with the records: the selection fails its check: {0}"
    )]
    Internal(String),
}

/// How much may be spent on a proof.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Of trying what could be better, before the solver is asked. A step is a few nanoseconds at most.
    steps: u64,
    /// Of the solver.
    time: Duration,
}

/// Of each of the two searches there can be. Counted and not timed, so that they end alike on every machine.
const STEPS: u64 = 300_000_000;

/// The fewest kernels such that each problem has one of them whose efficiency is at least `min_efficiency`, less the
/// margin; of as many kernels those with the largest mean efficiency. The solver, where it is needed, ends after `limit`.
///
/// # Errors
/// On an efficiency or a margin that cannot be, and a matrix that cannot be. What no kernel serves is not an error.
pub fn minimum_set(
    matrix: &Matrix,
    min_efficiency: f64,
    margin: Margin,
    limit: Duration,
) -> Result<Selection, SelectError> {
    select(matrix, Goal::Fewest { min_efficiency, margin }, Effort { steps: STEPS, time: limit })
}

/// At most `kernels` kernels with the largest mean efficiency, weighted; a problem that they do not serve counts 0. The
/// solver, where it is needed, ends after `limit`.
///
/// # Errors
/// When none may be chosen, and on a matrix that cannot be. What no kernel serves is not an error.
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
    // What is plain to see right is better than nothing; of what it misses nothing is known.
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
    // The second search may find fewer, where the first did not prove its number.
    let found = located.columns.len() as f64;
    let proof = if found <= bound { Proof::Optimal } else { Proof::Incumbent { found, bound } };
    table.selection(located.columns, proof, ties)
}

fn best(table: &Table, kernels: usize, effort: Effort) -> Selection {
    let located = table.location(kernels).best(&[], effort);
    let proof = table.mean_proof(&located);
    table.selection(table.used(&located.columns), proof, None)
}

/// Always the kernel that adds most, without anything else.
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
