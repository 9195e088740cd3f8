//! What kernels would take for problems that nobody measured, from what they took for those that somebody did.
//!
//! A kernel begins; then its blocks compute tiles in waves, as many at a time as the device has room for. A wave takes its
//! time for each step along K, and for what it does once. So there are few numbers to a kernel,
//!
//! ```text
//! time = begin + waves * (once + share of K * (step + step of a row * rows))
//! ```
//!
//! and its measurements give them, by least squares of relative errors, none below 0. What is left over counts for problems
//! that are like the measured one. Of five kernels on an H200, from twelve problems, times on six others are off by 3.3 % on
//! average, two of 22 by 10 and 21 % (`tests.rs`): good enough to say which of two splits that serve the measured problems
//! alike serves others as well, and nothing else is asked of it.

use std::collections::BTreeSet;

use fourfold_codegen::dispatch::Kernel;

use super::work::Work;
use super::{Measured, Takes};
use crate::problem::Problem;

/// Problems that nobody measured.
pub(super) struct Guess {
    pub problem: Problem,
    /// The share of time that each kernel would lose; `None` where it does not take the problem, or nothing is known of it.
    pub losses: Vec<Option<f64>>,
}

/// Guesses on the extents of the measured problems, all combined, between them, and a little beyond.
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

/// What is known of each kernel.
pub(super) fn estimates(measured: Measured<'_>, processors: u32) -> Vec<Option<Estimate>> {
    let all = |begin: Option<f64>| -> Vec<Option<Estimate>> {
        let one = |(position, kernel): (usize, &Kernel)| {
            let rows = measured.problems.iter().zip(measured.times);
            let times = rows.filter_map(|(weighted, times)| Some((weighted.problem, times[position]?)));
            Estimate::of(*kernel, &times.collect::<Vec<_>>(), processors, begin)
        };
        measured.kernels.iter().enumerate().map(one).collect()
    };
    // How a kernel begins is much the same for all: where one's measurements are too few to say, those of the others do.
    let alone = all(None);
    let sure = alone.iter().flatten().filter(|it| it.residuals.len() > TERMS);
    let mut begins: Vec<f64> = sure.map(|it| it.coefficients[0]).filter(|begin| *begin > 0.0).collect();
    begins.sort_by(f64::total_cmp);
    match begins.get(begins.len() / 2) {
        Some(begin) => all(Some(*begin)),
        None => alone,
    }
}

/// All combinations of extents.
fn combined(measured: Measured<'_>) -> Vec<Problem> {
    // N and K are multiples that every kernel takes.
    let ms = between(measured.problems.iter().map(|it| it.problem.m), 1);
    let ns = between(measured.problems.iter().map(|it| it.problem.n), 256);
    let ks = between(measured.problems.iter().map(|it| it.problem.k), 256);
    let pairs = ms.iter().flat_map(|m| ns.iter().map(move |n| (*m, *n)));
    pairs.flat_map(|(m, n)| ks.iter().map(move |k| Problem::new(m, n, *k))).collect()
}

/// Extents, their geometric means, half of the least, and twice the largest.
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

/// How many numbers there are to a kernel.
const TERMS: usize = 4;
/// K is counted in these, so that all numbers are of like size.
const DEPTH: f64 = 4096.0;
/// How much the common begin counts, in measurements. It decides where those leave it open.
const BEGIN_COUNTS: f64 = 0.1;
/// How many doublings of an extent what is left over of a measurement reaches, and how many measurements without any are
/// held against it.
const REACH: f64 = 1.0;
const AGAINST: f64 = 0.25;

/// What is known of a kernel's times.
pub(super) struct Estimate {
    kernel: Kernel,
    processors: u32,
    /// Begin, once a wave, a step, a row's step.
    coefficients: [f64; TERMS],
    /// The logarithm of what each measurement was over the estimate.
    residuals: Vec<(Problem, f64)>,
}

impl Estimate {
    /// By a kernel's measurements; `None` if there are none.
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

    /// What it would take for a problem.
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

/// The squares of the doublings between the extents of two problems.
fn distance(one: &Problem, other: &Problem) -> f64 {
    let doublings = |one: u64, other: u64| (one as f64 / other as f64).log2();
    [doublings(one.m, other.m), doublings(one.n, other.n), doublings(one.k, other.k)]
        .map(|it| it * it)
        .iter()
        .sum()
}

/// What the numbers of a kernel are multiplied with.
fn terms(kernel: &Kernel, problem: &Problem, processors: u32) -> [f64; TERMS] {
    let Work { waves, shares_of_k, rows } = Work::of(kernel, problem, processors);
    let steps = problem.k as f64 / DEPTH / f64::from(shares_of_k);
    [1.0, waves, waves * steps, waves * steps * rows]
}

/// Coefficients, none below 0, with which each row's sum is nearest 1, by least squares; each row with how much it counts.
fn fitted(rows: &[([f64; TERMS], f64)]) -> [f64; TERMS] {
    /// Keeps coefficients down that no row says anything of.
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
