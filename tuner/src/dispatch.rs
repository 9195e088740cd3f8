//! A dispatch table from what was measured, which also says what a problem gets that nobody measured.
//!
//! [`learn`] grows a decision tree over M, N, K and numbers of tiles, by the time that is lost to the fastest kernel, and
//! writes it down as ordered rules of upper bounds. A few measured problems are told apart by many bounds, of which most are
//! wrong for others. So the tree is grown by guessed problems as well, on and between the measured extents, with the times
//! that `guess.rs` makes of the measured ones; what was measured decides which kernels a rule may name for it. A bound lies at
//! the geometric mean of two extents, or where a kernel's own limit is. [`check_total`] asks a table about any problems.

mod guess;
mod tree;
mod work;

use fourfold_codegen::Extents;
use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::dispatch::{Condition, Flaw, Kernel, Otherwise, Rule, Table};
use fourfold_ir::BlockFormat;

use self::tree::{Bounded, Tree};
use crate::problem::{Problem, Weighted};

/// Whether a kernel takes a problem, and else why not.
pub type Takes<'a> = dyn Fn(&Kernel, &Problem) -> Result<(), String> + 'a;

/// What a table is for, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The targets, all of one kind.
    pub targets: Vec<String>,
    /// The formats of A and B.
    pub formats: Vec<BlockFormat>,
    /// Where the times were measured, for people.
    pub note: String,
}

/// Times of the chosen kernels.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// The problems, each with how much it counts.
    pub problems: &'a [Weighted],
    /// The kernels.
    pub kernels: &'a [Kernel],
    /// Problem by problem the time of each kernel; `None` where it is not right, or nothing is known.
    pub times: &'a [Vec<Option<f64>>],
}

/// How rules are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnOptions {
    /// The share of the best kernel's time that a measured problem may lose.
    pub margin: f64,
    /// The weighted mean share that a rule must gain to be there where no problem loses more than the margin.
    pub gain: f64,
    /// Whether rules count tiles. Kernels that choose at each call, those of sm_90a, know extents only.
    pub counts_tiles: bool,
    /// How many SMs the device has on which was measured. Without, nothing is guessed.
    pub processors: Option<u32>,
    /// How much all guessed problems count, over all measured ones.
    pub guessed_weight: f64,
}

impl Default for LearnOptions {
    fn default() -> LearnOptions {
        LearnOptions { margin: 0.02, gain: 0.0005, counts_tiles: true, processors: None, guessed_weight: 4.0 }
    }
}

/// Why there is no table.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LearnError {
    /// The times do not have a row for each problem with a time for each kernel.
    #[error("there are {problems} problems and {kernels} kernels, and row {row} of the times has {found}")]
    Shape {
        /// How many problems there are.
        problems: usize,
        /// How many kernels there are.
        kernels: usize,
        /// The row, or how many there are.
        row: usize,
        /// How many times it has.
        found: usize,
    },
    /// A time or a weight that is none.
    #[error("{problem}: a time or weight of {number} is not above 0: measure it again, or leave it out")]
    Number {
        /// The problem.
        problem: Problem,
        /// The number.
        number: f64,
    },
    /// A problem that no kernel serves.
    #[error("none of the kernels has a time for {0}: choose one that serves it, or leave the problem out")]
    Unserved(Problem),
    /// No kernel takes every problem and has a time for one at least.
    #[error("none of the {0} kernels takes every problem, so there is no default: choose one more that does")]
    NoDefault(usize),
    /// No rule tells a problem from others so that it gets a kernel that has a time for it.
    #[error(
        "no rule gives {0} a kernel that has a time for it: choose one that serves it and what is like it"
    )]
    Inseparable(Problem),
    /// The table has a rule that is never reached: a bug of ours.
    #[error("the learnt table is not sound: {0}")]
    Flawed(Flaw),
}

/// A table, and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Learnt {
    /// The table.
    pub table: Table,
    /// The weighted mean of the share of time lost to the fastest of the kernels, over the measured problems.
    pub mean_loss: f64,
    /// The largest share lost, and where.
    pub worst: Option<(Problem, f64)>,
}

/// Learns a table from times.
///
/// # Errors
/// When the times are none, or no table can take every problem.
pub fn learn(
    subject: Subject,
    measured: Measured<'_>,
    takes: &Takes<'_>,
    options: LearnOptions,
) -> Result<Learnt, LearnError> {
    check_times(measured)?;
    let mut banned = vec![false; measured.kernels.len()];
    // A kernel that a rule would give more than it takes, other than beyond an extent, is left out of rules.
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

/// Writes rules down, with what each is worth.
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
            0 => "guessed of problems that nobody measured, from what others took".to_owned(),
            _ => format!("measured: of {count} {problems} none loses more than {:.1} %", worst * 100.0),
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
            why: "of the kernels that take every problem it loses least where it loses most".to_owned(),
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

/// What a table says to many problems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Problems that get a kernel that takes them.
    pub dispatched: usize,
    /// Problems that no kernel of the table takes, as they are beyond what a call may ask.
    pub refused: usize,
    /// The first of them, with what the table's default says.
    pub first_refused: Option<(Problem, String)>,
}

/// A problem that gets a kernel that does not take it, though another of the table would.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} gets {kernel} ({place}), which does not take it: {why}")]
pub struct Gap {
    /// The problem.
    pub problem: Problem,
    /// What it gets.
    pub kernel: Kernel,
    /// By which rule.
    pub place: fourfold_codegen::dispatch::Place,
    /// Why that does not take it.
    pub why: String,
}

/// Asks a table about problems.
///
/// # Errors
/// The first that gets a kernel that does not take it, while another does.
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

/// The extents by which a table picks.
pub fn extents(problem: &Problem) -> Extents {
    Extents { l: Some(problem.l), m: Some(problem.m), n: Some(problem.n), k: Some(problem.k) }
}

/// Whether a problem meets bounds that ask nothing of CUTLASS.
fn meets(bounds: &Condition, problem: &Problem) -> bool {
    bounds.holds(extents(problem), CutlassVersion::PINNED)
}

#[cfg(test)]
mod tests;
