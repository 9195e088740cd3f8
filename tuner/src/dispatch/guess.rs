//! A cost model that estimates a kernel's time for problems without measurements.
//!
//! A kernel has a fixed start-up time. Then its CTAs compute tiles in waves. Each wave costs a fixed time, and a time
//! per step along K. In small-M kernels a step takes longer with more rows of A. Four non-negative coefficients per
//! kernel result:
//!
//! ```text
//! time = begin + waves * (once + share of K * (step + step of a row * rows))
//! ```
//!
//! They are fitted to the kernel's measurements by least squares of relative errors. The residual of a measurement
//! corrects the estimates of similar problems.
//!
//! Accuracy, for five kernels on an H200 fitted to twelve problems: on six other problems the mean error is 3.3 %, and
//! the two largest of 22 errors are 10 % and 21 % (`tests.rs`). That suffices to choose between splits that serve the
//! measured problems equally well, the only use of these estimates.

use std::collections::BTreeSet;

use fourfold_codegen::dispatch::Kernel;

use super::work::Work;
use super::{Measured, Takes};
use crate::problem::Problem;

/// The estimated losses on a problem without measurements.
pub(super) struct Guess {
    pub problem: Problem,
    /// The loss of each kernel; `None` if it does not support the problem or has no measurements.
    pub losses: Vec<Option<f64>>,
}

/// Estimates for all combinations of the measured extents, of extents between them, and of extents slightly beyond.
pub(super) fn guesses(measured: Measured<'_>, takes: &Takes<'_>, processors: u32) -> Vec<Guess> {
    let estimates = estimates(measured, processors);
    let guess = |problem: Problem| {
        let time = |(kernel, estimate): (&Kernel, &Option<Estimate>)| {
            let estimate = estimate.as_ref().filter(|_| takes(kernel, &problem).is_ok())?;
            Some(estimate.time(&problem))
        };
        let times: Vec<Option<f64>> = measured.kernels.iter().zip(&estimates).map(time).collect();
        let best = times.iter().flatten().copied().reduce(f64::min)?;
        Some(Guess { problem, losses: times.iter().map(|time| time.map(|it| it / best - 1.0)).collect() })
    };
    let is_measured = |problem: &Problem| measured.problems.iter().any(|it| it.problem == *problem);
    combined(measured).into_iter().filter(|problem| !is_measured(problem)).filter_map(guess).collect()
}

/// The cost model of each kernel.
pub(super) fn estimates(measured: Measured<'_>, processors: u32) -> Vec<Option<Estimate>> {
    let all = |begin: Option<f64>| -> Vec<Option<Estimate>> {
        let one = |(position, kernel): (usize, &Kernel)| {
            let rows = measured.problems.iter().zip(measured.times);
            let times = rows.filter_map(|(weighted, times)| Some((weighted.problem, times[position]?)));
            Estimate::of(*kernel, &times.collect::<Vec<_>>(), processors, begin)
        };
        measured.kernels.iter().enumerate().map(one).collect()
    };
    // Start-up times are similar for all kernels, so a kernel with too few measurements uses the median of the others.
    let alone = all(None);
    let sure = alone.iter().flatten().filter(|it| it.residuals.len() > TERMS);
    let mut begins: Vec<f64> = sure.map(|it| it.coefficients[0]).filter(|begin| *begin > 0.0).collect();
    begins.sort_by(f64::total_cmp);
    match begins.get(begins.len() / 2) {
        Some(begin) => all(Some(*begin)),
        None => alone,
    }
}

/// All combinations of the extents given by [`between`].
fn combined(measured: Measured<'_>) -> Vec<Problem> {
    // Every kernel supports N and K that are multiples of 256.
    let ms = between(measured.problems.iter().map(|it| it.problem.m), 1);
    let ns = between(measured.problems.iter().map(|it| it.problem.n), 256);
    let ks = between(measured.problems.iter().map(|it| it.problem.k), 256);
    let pairs = ms.iter().flat_map(|m| ns.iter().map(move |n| (*m, *n)));
    pairs.flat_map(|(m, n)| ks.iter().map(move |k| Problem::new(m, n, *k))).collect()
}

/// The extents, the geometric means of neighbours, half of the smallest, and twice the largest.
fn between(extents: impl Iterator<Item = u64>, multiple: u64) -> Vec<u64> {
    let known: BTreeSet<u64> = extents.collect();
    let (Some(least), Some(most)) = (known.first().copied(), known.last().copied()) else {
        return Vec::new();
    };
    let round = |extent: u64| (extent / multiple * multiple).max(multiple);
    let pairs = known.iter().zip(known.iter().skip(1));
    let mut all: BTreeSet<u64> = pairs.map(|(a, b)| round((*a as f64 * *b as f64).sqrt() as u64)).collect();
    all.extend([round(least / 2), most.saturating_mul(2)]);
    all.extend(known);
    all.into_iter().collect()
}

/// The number of coefficients of a kernel.
const TERMS: usize = 4;
/// The unit of K, which gives all coefficients a similar size.
const DEPTH: f64 = 4096.0;
/// The weight of the common start-up time, in measurements. It matters only if the measurements leave it undetermined.
const BEGIN_COUNTS: f64 = 0.1;
/// The distance over which a residual applies, in doublings of an extent.
const REACH: f64 = 1.0;
/// The weight of a zero residual, in measurements, that damps the correction.
const AGAINST: f64 = 0.25;

/// The cost model of a kernel.
pub(super) struct Estimate {
    kernel: Kernel,
    processors: u32,
    /// Times of start-up, a wave, a step, and a row's step.
    coefficients: [f64; TERMS],
    /// For each measurement, the logarithm of time over estimate.
    residuals: Vec<(Problem, f64)>,
}

impl Estimate {
    /// Fits the model to a kernel's measurements; `None` if there are none.
    fn of(
        kernel: Kernel,
        measured: &[(Problem, f64)],
        processors: u32,
        begin: Option<f64>,
    ) -> Option<Estimate> {
        let row = |(problem, time): &(Problem, f64)| terms(&kernel, problem, processors).map(|it| it / time);
        let mut rows: Vec<([f64; TERMS], f64)> = measured.iter().map(|it| (row(it), 1.0)).collect();
        if rows.is_empty() {
            return None;
        }
        if let Some(begin) = begin {
            rows.push(([1.0 / begin, 0.0, 0.0, 0.0], BEGIN_COUNTS));
        }
        let mut estimate =
            Estimate { kernel, processors, coefficients: fitted(&rows), residuals: Vec::new() };
        let residual = |(problem, time): &(Problem, f64)| (*problem, (time / estimate.plain(problem)).ln());
        estimate.residuals = measured.iter().map(residual).filter(|(_, it)| it.is_finite()).collect();
        Some(estimate)
    }

    fn plain(&self, problem: &Problem) -> f64 {
        let terms = terms(&self.kernel, problem, self.processors);
        terms.iter().zip(self.coefficients).map(|(term, coefficient)| term * coefficient).sum()
    }

    /// The estimated time for a problem.
    pub fn time(&self, problem: &Problem) -> f64 {
        let (mut sum, mut count) = (0.0, AGAINST);
        for (measured, residual) in &self.residuals {
            let counts = (-distance(measured, problem) / (2.0 * REACH * REACH)).exp();
            sum += counts * residual;
            count += counts;
        }
        self.plain(problem) * (sum / count).exp()
    }
}

/// The squared distance of two problems, in doublings of M, N and K.
fn distance(one: &Problem, other: &Problem) -> f64 {
    let doublings = |one: u64, other: u64| (one as f64 / other as f64).log2();
    [doublings(one.m, other.m), doublings(one.n, other.n), doublings(one.k, other.k)]
        .map(|it| it * it)
        .iter()
        .sum()
}

/// The factors of a kernel's coefficients for a problem.
fn terms(kernel: &Kernel, problem: &Problem, processors: u32) -> [f64; TERMS] {
    let Work { waves, shares_of_k, rows } = Work::of(kernel, problem, processors);
    let steps = problem.k as f64 / DEPTH / f64::from(shares_of_k);
    [1.0, waves, waves * steps, waves * steps * rows]
}

/// Fits non-negative coefficients by weighted least squares, so that each row's sum is close to 1. A row comes with its
/// weight.
fn fitted(rows: &[([f64; TERMS], f64)]) -> [f64; TERMS] {
    /// Keeps coefficients small that no row determines.
    const RIDGE: f64 = 1e-4;
    const ROUNDS: usize = 2000;
    let product =
        |i: usize, j: usize| -> f64 { rows.iter().map(|(row, counts)| row[i] * row[j] * counts).sum() };
    let normal: [[f64; TERMS]; TERMS] = std::array::from_fn(|i| {
        std::array::from_fn(|j| product(i, j) * if i == j { 1.0 + RIDGE } else { 1.0 })
    });
    let right: [f64; TERMS] = std::array::from_fn(|i| rows.iter().map(|(row, counts)| row[i] * counts).sum());
    let mut coefficients = [0.0; TERMS];
    for _ in 0..ROUNDS {
        for i in (0..TERMS).filter(|i| normal[*i][*i] > 0.0) {
            let others: f64 = (0..TERMS).filter(|j| *j != i).map(|j| normal[i][j] * coefficients[j]).sum();
            coefficients[i] = f64::max(0.0, (right[i] - others) / normal[i][i]);
        }
    }
    coefficients
}
