//! Learns a dispatch table from measured times. The table also covers problems without measurements.
//!
//! [`learn`] grows a decision tree over M, N, K and the number of tiles. It minimizes the time lost relative to the
//! fastest kernel, and writes the tree as ordered rules of upper bounds.
//!
//! Many bounds separate a few measured problems, but most of these bounds are wrong for other problems. Therefore the
//! tree is also grown on estimated problems, at and between the measured extents, with times from the cost model in
//! `guess.rs`. Measurements alone decide which kernels a rule may name for a measured problem. A bound is the
//! geometric mean of two extents, or a kernel's own limit. [`check_total`] checks a table on any problems.

mod guess;
mod tree;
mod work;

use fourfold_codegen::Extents;
use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::dispatch::{Condition, Flaw, Kernel, Otherwise, Rule, Table};
use fourfold_ir::BlockFormat;

use self::tree::{Bounded, Tree};
use crate::problem::{Problem, Weighted};

/// A check of a kernel's constraints: the error is the reason why the kernel does not support the problem.
pub type Takes<'a> = dyn Fn(&Kernel, &Problem) -> Result<(), String> + 'a;

/// The header of a table: targets, formats and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The targets, all of one family.
    pub targets: Vec<String>,
    /// The formats of A and B.
    pub formats: Vec<BlockFormat>,
    /// The origin of the times, as a comment.
    pub note: String,
}

/// Measured times of the selected kernels.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// The problems with their weights.
    pub problems: &'a [Weighted],
    /// The kernels.
    pub kernels: &'a [Kernel],
    /// The time of each kernel, per problem; `None` if the kernel is incorrect or was not timed.
    pub times: &'a [Vec<Option<f64>>],
}

/// Options of [`learn`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnOptions {
    /// The loss that a measured problem may have, as a fraction of the best kernel's time.
    pub margin: f64,
    /// The weighted mean loss that a rule must save if no problem loses more than `margin` without it.
    pub gain: f64,
    /// True if rules may bound the number of tiles. sm_90a kernels dispatch per call by extents only.
    pub counts_tiles: bool,
    /// The number of SMs of the measured device. If absent, no times are estimated.
    pub processors: Option<u32>,
    /// The total weight of the estimated problems, relative to that of the measured ones.
    pub guessed_weight: f64,
}

impl Default for LearnOptions {
    fn default() -> LearnOptions {
        LearnOptions { margin: 0.02, gain: 0.0005, counts_tiles: true, processors: None, guessed_weight: 4.0 }
    }
}

/// An error of [`learn`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LearnError {
    /// The times are not one row per problem with one entry per kernel.
    #[error(
        "row {row} of the times has {found} entries, but there are {problems} problems and {kernels} kernels"
    )]
    Shape {
        /// Number of problems.
        problems: usize,
        /// Number of kernels.
        kernels: usize,
        /// The wrong row, or the number of rows.
        row: usize,
        /// Entries in the row.
        found: usize,
    },
    /// A time or a weight is not a finite number above 0.
    #[error("{problem}: the time or weight {number} is not above 0; measure the problem again, or remove it")]
    Number {
        /// The problem.
        problem: Problem,
        /// The number.
        number: f64,
    },
    /// No kernel has a time for a problem.
    #[error("no kernel has a time for {0}; select a kernel that supports it, or remove the problem")]
    Unserved(Problem),
    /// No kernel supports every problem, so the table has no default.
    #[error(
        "none of the {0} kernels supports every problem, so the table has no default; select another one that does"
    )]
    NoDefault(usize),
    /// No rule separates a problem from others and assigns it a kernel that was timed on it.
    #[error(
        "no rule assigns {0} a kernel that was timed on it; select a kernel that supports it and similar problems"
    )]
    Inseparable(Problem),
    /// The table has an unreachable rule: a bug in Fourfold.
    #[error("the learnt table is invalid: {0}")]
    Flawed(Flaw),
}

/// A learnt table, and the time it loses.
#[derive(Clone, Debug, PartialEq)]
pub struct Learnt {
    /// The table.
    pub table: Table,
    /// The weighted mean loss over the measured problems: time over that of the fastest kernel, minus 1.
    pub mean_loss: f64,
    /// The largest loss, with its problem.
    pub worst: Option<(Problem, f64)>,
}

/// Learns a dispatch table from measured times.
///
/// # Errors
/// If the times are malformed, or no table covers every problem.
pub fn learn(
    subject: Subject,
    measured: Measured<'_>,
    takes: &Takes<'_>,
    options: LearnOptions,
) -> Result<Learnt, LearnError> {
    check_times(measured)?;
    let mut banned = vec![false; measured.kernels.len()];
    // If a rule would give a kernel unsupported problems within its extents, no rule may name that kernel.
    loop {
        let tree = Tree::new(measured, takes, options, &banned);
        let default = tree.default().ok_or(LearnError::NoDefault(measured.kernels.len()))?;
        let rules = tree.rules(default);
        let beyond = rules.iter().find(|rule| !tree.is_taken(rule.kernel, &rule.bounds));
        if let Some(rule) = beyond {
            banned[rule.kernel] = true;
            continue;
        }
        return describe(subject, &tree, rules, default);
    }
}

fn check_times(Measured { problems, kernels, times }: Measured<'_>) -> Result<(), LearnError> {
    let shape =
        |row, found| LearnError::Shape { problems: problems.len(), kernels: kernels.len(), row, found };
    if times.len() != problems.len() {
        return Err(shape(times.len(), 0));
    }
    for (row, (times, Weighted { problem, weight })) in times.iter().zip(problems).enumerate() {
        if times.len() != kernels.len() {
            return Err(shape(row, times.len()));
        }
        let is_none = |number: &f64| !(number.is_finite() && *number > 0.0);
        if let Some(number) = times.iter().flatten().chain([weight]).copied().find(is_none) {
            return Err(LearnError::Number { problem: *problem, number });
        }
        if times.iter().all(Option::is_none) {
            return Err(LearnError::Unserved(*problem));
        }
    }
    Ok(())
}

/// Converts rules to a table, with the loss of each rule as its `why`.
fn describe(
    subject: Subject,
    tree: &Tree<'_>,
    rules: Vec<Bounded>,
    default: usize,
) -> Result<Learnt, LearnError> {
    let measured = tree.measured();
    let given = tree.given(&rules, default);
    if let Some(lost) = given.iter().position(|it| it.loss.is_infinite()) {
        return Err(LearnError::Inseparable(measured.problems[lost].problem));
    }
    let rule = |(position, rule): (usize, &Bounded)| {
        let losses = given.iter().filter(|it| it.rule == Some(position)).map(|it| it.loss);
        let (count, worst) = losses.fold((0, 0.0), |(count, worst), loss| (count + 1, f64::max(worst, loss)));
        let problems = if count == 1 { "problem" } else { "problems" };
        let why = match count {
            0 => "estimated for problems without measurements".to_owned(),
            _ => format!("measured: {count} {problems}, largest loss {:.1} %", worst * 100.0),
        };
        Rule { when: rule.bounds, kernel: measured.kernels[rule.kernel], why }
    };
    let weight: f64 = measured.problems.iter().map(|it| it.weight).sum();
    let lost: f64 = given.iter().zip(measured.problems).map(|(it, problem)| it.loss * problem.weight).sum();
    let mean_loss = if weight > 0.0 { lost / weight } else { 0.0 };
    let worst = given
        .iter()
        .zip(measured.problems)
        .map(|(it, weighted)| (weighted.problem, it.loss))
        .max_by(|one, other| one.1.total_cmp(&other.1));
    let table = Table {
        rules: rules.iter().enumerate().map(rule).collect(),
        default: Otherwise {
            kernel: measured.kernels[default],
            why: "smallest worst-case loss of the kernels that support every problem".to_owned(),
        },
        targets: subject.targets,
        formats: subject.formats,
        note: subject.note,
    };
    match table.rule_flaws().into_iter().next() {
        Some(flaw) => Err(LearnError::Flawed(flaw)),
        None => Ok(Learnt { table, mean_loss, worst }),
    }
}

/// The result of checking a table on many problems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Problems with an assigned kernel that supports them.
    pub dispatched: usize,
    /// Problems that no kernel of the table supports.
    pub refused: usize,
    /// The first of these, with the reason given by the table's default.
    pub first_refused: Option<(Problem, String)>,
}

/// A problem that the table assigns an unsupported kernel, although another kernel of the table supports it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table assigns {problem} to {kernel} ({place}), which does not support it: {why}")]
pub struct Gap {
    /// The problem.
    pub problem: Problem,
    /// The assigned kernel.
    pub kernel: Kernel,
    /// The rule that assigns it.
    pub place: fourfold_codegen::dispatch::Place,
    /// The reason why the kernel does not support the problem.
    pub why: String,
}

/// Checks a table on problems.
///
/// # Errors
/// Returns the first problem assigned to an unsupported kernel although another kernel of the table supports it.
pub fn check_total(
    table: &Table,
    cutlass: CutlassVersion,
    takes: &Takes<'_>,
    problems: impl IntoIterator<Item = Problem>,
) -> Result<Totals, Gap> {
    use fourfold_codegen::dispatch::Place;
    let kernels = table.kernels();
    let mut totals = Totals::default();
    for problem in problems {
        let pick = table.pick(extents(&problem), cutlass);
        match takes(pick.kernel, &problem) {
            Ok(()) => totals.dispatched += 1,
            Err(why) if kernels.iter().any(|kernel| takes(kernel, &problem).is_ok()) => {
                let place = pick.rule.map_or(Place::Default, Place::Rule);
                return Err(Gap { problem, kernel: *pick.kernel, place, why });
            }
            Err(why) => {
                totals.refused += 1;
                totals.first_refused.get_or_insert((problem, why));
            }
        }
    }
    Ok(totals)
}

/// A problem's extents, as a table's rules take them.
pub fn extents(problem: &Problem) -> Extents {
    Extents { l: Some(problem.l), m: Some(problem.m), n: Some(problem.n), k: Some(problem.k) }
}

/// Returns true if a problem meets bounds, which must not depend on the CUTLASS version.
fn meets(bounds: &Condition, problem: &Problem) -> bool {
    bounds.holds(extents(problem), CutlassVersion::PINNED)
}

#[cfg(test)]
mod tests;
