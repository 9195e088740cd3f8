//! The input of the searches: efficiencies by kernel, for the problems that some kernel supports.

use super::bits::Bits;
use super::columns::Location;
use super::cover::Cover;
use super::location::Located;
use super::{Margin, Proof, Selection};
use crate::matrix::Matrix;

/// The problems that at least one kernel supports.
#[derive(Debug)]
pub(super) struct Table<'a> {
    matrix: &'a Matrix,
    /// The positions of the problems in the matrix.
    served: Vec<usize>,
    /// The weights, with mean 1.
    weights: Vec<f64>,
    /// The efficiency by kernel, then problem; 0 if the kernel does not support it.
    efficiency: Vec<Vec<f64>>,
    /// The relative noise of each efficiency.
    noise: Vec<Vec<f64>>,
}

impl Table<'_> {
    /// Builds the table; the error describes an inconsistent matrix.
    pub(super) fn of(matrix: &Matrix) -> Result<Table<'_>, String> {
        let (problems, kernels) = (matrix.problems.len(), matrix.kernels.len());
        if matrix.cells.len() != problems * kernels {
            return Err(format!(
                "{problems} problems and {kernels} kernels have {} cells",
                matrix.cells.len()
            ));
        }
        for weighted in &matrix.problems {
            if !(weighted.weight > 0.0 && weighted.weight.is_finite()) {
                return Err(format!("the weight of {} is {}", weighted.problem, weighted.weight));
            }
        }
        for (position, cell) in matrix.cells.iter().enumerate() {
            let Some(cell) = cell else { continue };
            let is_time = cell.median_us.is_none_or(|time| time.is_finite() && time > 0.0);
            let is_noise = cell.noise.is_finite() && cell.noise >= 0.0;
            if !(is_time && is_noise) {
                let problem = matrix.problems[position / kernels].problem;
                return Err(format!(
                    "kernel {} on {problem} is {cell:?}",
                    matrix.kernels[position % kernels].id
                ));
            }
        }
        // Of equal best times, the one with the least noise is the reference.
        let best: Vec<Option<(f64, f64)>> = (0..problems)
            .map(|problem| {
                let cells = (0..kernels).filter_map(|kernel| matrix.cell(problem, kernel));
                let times = cells.filter_map(|cell| Some((cell.median_us?, cell.noise)));
                times.min_by(|(a, a_noise), (b, b_noise)| a.total_cmp(b).then(a_noise.total_cmp(b_noise)))
            })
            .collect();
        let served: Vec<usize> = (0..problems).filter(|problem| best[*problem].is_some()).collect();
        let of = |problem: usize, kernel: usize| {
            let (least, least_noise) = best[problem]?;
            let cell = matrix.cell(problem, kernel)?;
            Some((least / cell.median_us?, least_noise + cell.noise))
        };
        let column =
            |kernel: usize| served.iter().map(move |problem| of(*problem, kernel).unwrap_or((0.0, 0.0)));
        let (efficiency, noise) = (0..kernels).map(|kernel| column(kernel).unzip()).unzip();
        let sum: f64 = served.iter().map(|problem| matrix.problems[*problem].weight).sum();
        let scale = served.len() as f64 / sum;
        let weights = served.iter().map(|problem| matrix.problems[*problem].weight * scale).collect();
        Ok(Table { matrix, served, weights, efficiency, noise })
    }

    /// The set cover problem: the problems on which each kernel has the required efficiency.
    pub(super) fn cover(&self, min_efficiency: f64, margin: Margin) -> Cover {
        let admitted = |efficiency: f64, noise: f64| {
            let margin = match margin {
                Margin::Noise => noise,
                Margin::Given(margin) => margin,
            };
            efficiency > 0.0 && efficiency >= min_efficiency - margin
        };
        let columns = self.efficiency.iter().zip(&self.noise).map(|(efficiency, noise)| {
            let rows = (0..self.served.len()).filter(|row| admitted(efficiency[*row], noise[*row]));
            Bits::of(self.served.len(), rows)
        });
        Cover { rows: self.served.len(), columns: columns.collect() }
    }

    /// The facility location problem for at most `most` kernels.
    pub(super) fn location(&self, most: usize) -> Location {
        let weigh =
            |column: &Vec<f64>| column.iter().zip(&self.weights).map(|(e, weight)| e * weight).collect();
        let columns = self.efficiency.len();
        Location {
            rows: self.served.len(),
            worth: self.efficiency.iter().map(weigh).collect(),
            most: most.min(columns),
            required: 0,
            has: vec![Bits::none(0); columns],
        }
    }

    /// The proof that no selection has a larger mean efficiency.
    pub(super) fn mean_proof(&self, located: &Located) -> Proof {
        if located.proven {
            return Proof::Optimal;
        }
        let rows = self.served.len() as f64;
        Proof::Incumbent { found: located.worth / rows, bound: (located.bound / rows).min(1.0) }
    }

    /// The given kernels that are the fastest of them for at least one problem.
    pub(super) fn used(&self, kernels: &[usize]) -> Vec<usize> {
        let mut kernels = kernels.to_vec();
        kernels.sort_unstable();
        let assigned: Vec<Option<usize>> =
            self.served.iter().map(|problem| self.assigned(*problem, &kernels)).collect();
        kernels.retain(|kernel| assigned.contains(&Some(*kernel)));
        kernels
    }

    /// The fastest of the given kernels for a problem; the first of equals.
    fn assigned(&self, problem: usize, kernels: &[usize]) -> Option<usize> {
        let times =
            kernels.iter().filter_map(|kernel| Some((*kernel, self.matrix.time_us(problem, *kernel)?)));
        Some(times.min_by(|(_, a), (_, b)| a.total_cmp(b))?.0)
    }

    /// Builds the selection of these kernels.
    pub(super) fn selection(&self, mut kernels: Vec<usize>, proof: Proof, ties: Option<Proof>) -> Selection {
        kernels.sort_unstable();
        let problems = 0..self.matrix.problems.len();
        let assignment: Vec<Option<usize>> =
            problems.clone().map(|problem| self.assigned(problem, &kernels)).collect();
        let uncovered = problems.filter(|problem| assignment[*problem].is_none()).collect();
        let efficiencies: Vec<f64> = self
            .served
            .iter()
            .enumerate()
            .map(|(row, problem)| assignment[*problem].map_or(0.0, |kernel| self.efficiency[kernel][row]))
            .collect();
        let worst = efficiencies.iter().copied().min_by(f64::total_cmp);
        let weighted: f64 = efficiencies.iter().zip(&self.weights).map(|(e, weight)| e * weight).sum();
        let mean = worst.map(|_| weighted / self.served.len() as f64);
        Selection { kernels, assignment, proof, ties, worst, mean, uncovered }
    }
}
