//! What a sweep measured, as problems by kernels.

use serde::{Deserialize, Serialize};

use crate::parameters::Parameters;
use crate::problem::Weighted;
use crate::record::{Machine, State};

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
