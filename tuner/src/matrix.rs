//! The matrix of a sweep's results: problems × kernels.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::parameters::Parameters;
use crate::problem::{Problem, Weighted};
use crate::record::{Machine, Record, State};
use crate::records::{Conflict, identities};

/// The results of kernels of one target and workload on one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    /// The rows, with their weights.
    pub problems: Vec<Weighted>,
    /// The columns.
    pub kernels: Vec<Kernel>,
    /// The cells in row-major order; `None` without a record.
    pub cells: Vec<Option<Cell>>,
    /// The machine that measured the times.
    pub machine: Option<Machine>,
}

/// A column: one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// The id in records.
    pub id: String,
    /// The generator's name.
    pub generator: String,
    /// The target.
    pub target: String,
    /// A readable name, not unique.
    pub name: String,
    /// All parameters.
    pub parameters: Parameters,
}

/// A cell: one kernel on one problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The outcome.
    pub state: State,
    /// Microseconds per call, the median over all measurements; only of correct kernels.
    pub median_us: Option<f64>,
    /// The relative spread of the measurements.
    pub noise: f64,
}

impl Matrix {
    /// The cell of a kernel on a problem, by position; `None` without a record.
    pub fn cell(&self, problem: usize, kernel: usize) -> Option<&Cell> {
        self.cells[problem * self.kernels.len() + kernel].as_ref()
    }

    /// The time of a kernel on a problem in microseconds; `None` if the kernel is incorrect or was not timed.
    pub fn time_us(&self, problem: usize, kernel: usize) -> Option<f64> {
        self.cell(problem, kernel)?.median_us
    }

    /// The best time on a problem, in microseconds.
    pub fn best_us(&self, problem: usize) -> Option<f64> {
        (0..self.kernels.len()).filter_map(|kernel| self.time_us(problem, kernel)).min_by(f64::total_cmp)
    }

    /// The efficiency of a kernel on a problem: the best time divided by the kernel's, 1 for the best kernel.
    pub fn efficiency(&self, problem: usize, kernel: usize) -> Option<f64> {
        Some(self.best_us(problem)? / self.time_us(problem, kernel)?)
    }
}

/// An error from building a matrix: records that are not comparable, or malformed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MatrixError {
    /// The records are from different machines.
    #[error(
        "records of two machines, {one} and {other}, are not comparable; keep the records of one `machine`"
    )]
    Machines {
        /// A machine.
        one: String,
        /// Another one.
        other: String,
    },
    /// The records were measured with different cache policies.
    #[error(
        "records of two cache policies, `{one}` and `{other}`, are not comparable; keep the records of one `timing.l2`"
    )]
    Caches {
        /// A policy.
        one: String,
        /// Another one.
        other: String,
    },
    /// The kernels have different targets.
    #[error(
        "records of two targets, `{one}` and `{other}`, are not comparable; keep the records of one `target`"
    )]
    Targets {
        /// A target.
        one: String,
        /// Another one.
        other: String,
    },
    /// The kernels compute different workloads.
    #[error(
        "records of two workloads, `{one}` and `{other}`, are not comparable; keep the records of one `workload`"
    )]
    Work {
        /// A workload.
        one: String,
        /// Another one.
        other: String,
    },
    /// Different kernels have the same id.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// A record has a time, but no machine.
    #[error(
        "the record of kernel {kernel} on {problem} has a time and no `machine`; remove it, or measure it again"
    )]
    Nowhere {
        /// The kernel.
        kernel: String,
        /// The problem.
        problem: Problem,
    },
    /// A record of a timed kernel has no valid time.
    #[error(
        "the record of kernel {kernel} on {problem} is `{state:?}`, but its median is {found}, not a time above 0; \
         remove it, or measure it again"
    )]
    Time {
        /// The kernel.
        kernel: String,
        /// The problem.
        problem: Problem,
        /// The recorded state.
        state: State,
        /// The recorded median.
        found: String,
    },
    /// A weight is not above 0.
    #[error("the weight of {problem} is {weight}; use a weight above 0, or remove the problem")]
    Weight {
        /// The problem.
        problem: Problem,
        /// Its weight.
        weight: f64,
    },
}

impl Matrix {
    /// Builds a matrix from records. The order of records does not matter.
    ///
    /// - Rows: the weighted problems; duplicates are merged by adding their weights. If `weights` is empty, all
    ///   problems of the records, sorted, with weight 1.
    /// - Columns: all kernels tried on a problem, sorted by generator, name and id.
    /// - Cells: the median over all measurements. There is no time if any record of the cell is wrong, failed or
    ///   refused.
    ///
    /// # Errors
    /// If the records are not comparable, contradictory or malformed.
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

/// Checks that the records are comparable and have valid times. Returns their machine.
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

/// Compares a value with the first one; returns both if they differ.
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

/// The precedence of states: the first of these that occurs in the records of a cell is the cell's state.
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

/// Combines the records of a cell.
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
