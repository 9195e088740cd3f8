//! What a sweep measured, as problems by kernels.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::parameters::Parameters;
use crate::problem::{Problem, Weighted};
use crate::record::{Machine, Record, State};
use crate::records::{Conflict, identities};

/// Problems by kernels, of one generator family on one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// The rows, each with how much it counts.
    pub problems: Vec<Weighted>,
    /// The columns.
    pub kernels: Vec<Kernel>,
    /// Row by row; `None` where nothing is known.
    pub cells: Vec<Option<Cell>>,
    /// Where it was measured.
    pub machine: Option<Machine>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// What names it in records.
    pub id: String,
    /// The generator's name.
    pub generator: String,
    /// What it is built for.
    pub target: String,
    /// A readable name, not unique.
    pub name: String,
    /// What it is built from.
    pub parameters: Parameters,
}

/// What is known of a kernel on a problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What became of it.
    pub state: State,
    /// Microseconds a call, the median over all that was measured; only of right kernels.
    pub median_us: Option<f64>,
    /// What share of the time differs from one measurement to the next.
    pub noise: f64,
}

impl Matrix {
    /// What is known of a kernel on a problem, by their positions.
    pub fn cell(&self, problem: usize, kernel: usize) -> Option<&Cell> {
        self.cells[problem * self.kernels.len() + kernel].as_ref()
    }

    /// The time of a kernel on a problem; `None` where it is not right, or nothing is known.
    pub fn time_us(&self, problem: usize, kernel: usize) -> Option<f64> {
        self.cell(problem, kernel)?.median_us
    }

    /// The least time on a problem of all kernels that are right.
    pub fn best_us(&self, problem: usize) -> Option<f64> {
        (0..self.kernels.len()).filter_map(|kernel| self.time_us(problem, kernel)).min_by(f64::total_cmp)
    }

    /// The least time on a problem over that of a kernel: 1 for the best, in full precision.
    pub fn efficiency(&self, problem: usize, kernel: usize) -> Option<f64> {
        Some(self.best_us(problem)? / self.time_us(problem, kernel)?)
    }
}

/// Records that are not of one matrix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MatrixError {
    /// What is fast on one machine need not be fast on another.
    #[error(
        "records of two machines, {one} and {other}: times of both are not comparable; keep the records of one `machine`"
    )]
    Machines {
        /// A machine.
        one: String,
        /// Another one.
        other: String,
    },
    /// What is in the caches when a call begins has a say in which kernel is fast.
    #[error(
        "records with two states of the caches, `{one}` and `{other}`: times of both are not comparable; keep the \
         records of one `timing.l2`"
    )]
    Caches {
        /// A policy.
        one: String,
        /// Another one.
        other: String,
    },
    /// Kernels of different targets have different interfaces, and none can stand in for another.
    #[error(
        "records of kernels for two targets, `{one}` and `{other}`: none can stand in for the other; keep the records \
         of one `target`"
    )]
    Targets {
        /// A target.
        one: String,
        /// Another one.
        other: String,
    },
    /// Kernels that compute different things cannot stand in for each other.
    #[error(
        "records of two kinds of work, `{one}` and `{other}`: none can stand in for the other; keep the records of one \
         `workload`"
    )]
    Work {
        /// What some compute.
        one: String,
        /// What others do.
        other: String,
    },
    /// One id is given to different kernels.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// A record says that it was measured, and does not say where.
    #[error(
        "the record of kernel {kernel} on {problem} has a time and no `machine`: remove it, or measure it again"
    )]
    Nowhere {
        /// The kernel.
        kernel: String,
        /// The problem.
        problem: Problem,
    },
    /// A record says that it was measured, and its time is none.
    #[error(
        "the record of kernel {kernel} on {problem} is `{state:?}`, and its median is {found}: no time above 0; remove \
         it, or measure it again"
    )]
    Time {
        /// The kernel.
        kernel: String,
        /// The problem.
        problem: Problem,
        /// What it says about the kernel.
        state: State,
        /// What it says instead of a time.
        found: String,
    },
    /// A weight is not above 0.
    #[error("the weight of {problem} is {weight}: give one above 0, or leave the problem out")]
    Weight {
        /// The problem.
        problem: Problem,
        /// Its weight.
        weight: f64,
    },
}

impl Matrix {
    /// What records say. The rows are the weighted problems, whose weights add up where one is listed twice; without any,
    /// all problems met, in their order, each of weight 1. The columns are all kernels that were tried on a problem, by
    /// generator, name and id, so that the order of records has no say.
    ///
    /// A cell's time is the median over all measurements of it, but of a kernel that was once wrong there, or failed, or
    /// refused, there is none.
    ///
    /// # Errors
    /// When the records are not comparable, or contradict each other or themselves.
    pub fn from_records(records: &[Record], weights: &[Weighted]) -> Result<Matrix, MatrixError> {
        identities(records.iter().map(|record| ("the records", record)))?;
        let tried: Vec<(Problem, &Record)> =
            records.iter().filter_map(|record| Some((record.problem?, record))).collect();
        let machine = one_place(&tried)?;

        let problems = rows(&tried, weights)?;
        let mut columns: Vec<&Record> = tried.iter().map(|&(_, record)| record).collect();
        let order = |record: &Record| (record.generator.clone(), record.name.clone(), record.kernel.clone());
        columns.sort_by_cached_key(|record| (record.kernel.clone(), order(record)));
        columns.dedup_by_key(|record| &record.kernel);
        columns.sort_by_cached_key(|record| order(record));

        let row: BTreeMap<Problem, usize> =
            problems.iter().enumerate().map(|(row, weighted)| (weighted.problem, row)).collect();
        let column: BTreeMap<&str, usize> =
            columns.iter().enumerate().map(|(column, record)| (&*record.kernel, column)).collect();
        let mut of_cells: Vec<Vec<&Record>> = vec![Vec::new(); problems.len() * columns.len()];
        for (problem, record) in tried {
            if let (Some(row), Some(column)) = (row.get(&problem), column.get(&*record.kernel)) {
                of_cells[row * columns.len() + column].push(record);
            }
        }
        let cells = of_cells.iter().map(|records| cell(records)).collect();
        let kernels = columns.into_iter().map(kernel).collect();
        Ok(Matrix { problems, kernels, cells, machine })
    }
}

/// The one machine of records; that they have one target and one policy, and times where they must.
fn one_place(tried: &[(Problem, &Record)]) -> Result<Option<Machine>, MatrixError> {
    let (mut machine, mut l2, mut target, mut work) = (None, None, None, None);
    for &(problem, record) in tried {
        if let Some((one, other)) = differs(&mut target, &record.target) {
            return Err(MatrixError::Targets { one: one.clone(), other: other.clone() });
        }
        if let Some(found) = &record.workload
            && let Some((one, other)) = differs(&mut work, found)
        {
            return Err(MatrixError::Work { one: one.clone(), other: other.clone() });
        }
        if let Some(found) = &record.machine
            && let Some((one, other)) = differs(&mut machine, found)
        {
            return Err(MatrixError::Machines { one: words(one), other: words(other) });
        }
        if let Some(timing) = &record.timing {
            if let Some((one, other)) = differs(&mut l2, &timing.l2) {
                return Err(MatrixError::Caches { one: one.clone(), other: other.clone() });
            }
            if record.machine.is_none() {
                return Err(MatrixError::Nowhere { kernel: record.kernel.clone(), problem });
            }
        }
        let median = record.timing.as_ref().map(|timing| timing.median_us);
        let is_time = |median: f64| median.is_finite() && median > 0.0;
        let fits = match record.state {
            State::Good => median.is_some_and(is_time),
            State::Slow => median.is_none_or(is_time),
            _ => true,
        };
        if !fits {
            let found = median.map_or("absent".to_owned(), |median| median.to_string());
            let (kernel, state) = (record.kernel.clone(), record.state);
            return Err(MatrixError::Time { kernel, problem, state, found });
        }
    }
    Ok(machine.cloned())
}

/// The first and this one, where they differ.
fn differs<'a, T: PartialEq>(first: &mut Option<&'a T>, this: &'a T) -> Option<(&'a T, &'a T)> {
    let first = *first.get_or_insert(this);
    (first != this).then_some((first, this))
}

fn words(machine: &Machine) -> String {
    let Machine { gpu, sms, driver, l2_bytes } = machine;
    format!("`{gpu}` ({sms} SMs, {l2_bytes} bytes of L2, driver {driver})")
}

fn rows(tried: &[(Problem, &Record)], weights: &[Weighted]) -> Result<Vec<Weighted>, MatrixError> {
    if weights.is_empty() {
        let met: BTreeSet<Problem> = tried.iter().map(|&(problem, _)| problem).collect();
        return Ok(met.into_iter().map(|problem| Weighted { problem, weight: 1.0 }).collect());
    }
    let mut rows: Vec<Weighted> = Vec::new();
    let mut row: BTreeMap<Problem, usize> = BTreeMap::new();
    for &Weighted { problem, weight } in weights {
        if !weight.is_finite() || weight <= 0.0 {
            return Err(MatrixError::Weight { problem, weight });
        }
        match row.get(&problem) {
            Some(&row) => rows[row].weight += weight,
            None => {
                row.insert(problem, rows.len());
                rows.push(Weighted { problem, weight });
            }
        }
    }
    Ok(rows)
}

fn kernel(record: &Record) -> Kernel {
    Kernel {
        id: record.kernel.clone(),
        generator: record.generator.clone(),
        target: record.target.clone(),
        name: record.name.clone(),
        parameters: record.parameters.clone(),
    }
}

/// What counts where records of a cell disagree: the first of these.
const WORST_FIRST: [State; 10] = [
    State::Wrong,
    State::LaunchError,
    State::NoMma,
    State::CompileError,
    State::Invalid,
    State::Refused,
    State::Good,
    State::Slow,
    State::Built,
    State::Deferred,
];

/// What all records of a cell say together.
fn cell(records: &[&Record]) -> Option<Cell> {
    let state = WORST_FIRST.into_iter().find(|state| records.iter().any(|record| record.state == *state))?;
    if !matches!(state, State::Good | State::Slow) {
        return Some(Cell { state, median_us: None, noise: 0.0 });
    }
    let timings = || records.iter().filter_map(|record| record.timing.as_ref());
    let mut medians: Vec<f64> = timings().map(|timing| timing.median_us).collect();
    medians.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (medians.first(), medians.last()) else {
        return Some(Cell { state, median_us: None, noise: 0.0 });
    };
    let middle = medians.len() / 2;
    let median =
        if medians.len() % 2 == 1 { medians[middle] } else { (medians[middle - 1] + medians[middle]) / 2.0 };
    let dispersion = timings().map(|timing| timing.dispersion).fold(0.0, f64::max);
    Some(Cell { state, median_us: Some(median), noise: dispersion.max((most - least) / median) })
}
