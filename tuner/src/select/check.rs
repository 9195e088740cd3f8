//! An independent check of selections, from the matrix alone.

use super::{Goal, Margin, Proof, Selection};
use crate::matrix::Matrix;

/// The tolerance for sums in different orders.
const ROUNDING: f64 = 1e-9;

/// Checks that a selection meets its goal and that its fields are correct. Of the proof, only contradictions are
/// detected. Shares no code with the selection algorithms.
///
/// # Errors
/// The first mistake, as a message without trailing period.
pub fn check(matrix: &Matrix, selection: &Selection, goal: Goal) -> Result<(), String> {
    let Selection { kernels, assignment, uncovered, .. } = selection;
    if let Some(pair) = kernels.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(format!("kernels {} and {} are not in ascending order", pair[0], pair[1]));
    }
    if let Some(kernel) = kernels.iter().find(|kernel| **kernel >= matrix.kernels.len()) {
        return Err(format!("kernel {kernel} does not exist"));
    }
    if assignment.len() != matrix.problems.len() {
        return Err(format!("{} problems are assigned, not {}", assignment.len(), matrix.problems.len()));
    }
    if let Goal::Best { kernels: most } = goal
        && kernels.len() > most
    {
        return Err(format!("{} kernels are selected, more than {most}", kernels.len()));
    }

    let (mut worst, mut sum, mut weights) = (None::<f64>, 0.0, 0.0);
    let mut unserved = Vec::new();
    for (problem, weighted) in matrix.problems.iter().enumerate() {
        let row = &matrix.cells[problem * matrix.kernels.len()..][..matrix.kernels.len()];
        let time = |kernel: usize| row[kernel].and_then(|cell| cell.median_us);
        let named = || format!("problem {problem}, {}", weighted.problem);

        let fastest = least_of(kernels.iter().filter_map(|kernel| time(*kernel)));
        let of_assigned = match assignment[problem] {
            None => None,
            Some(kernel) if !kernels.contains(&kernel) => {
                return Err(format!("{} is assigned kernel {kernel}, which is not selected", named()));
            }
            Some(kernel) => {
                Some(time(kernel).ok_or_else(|| format!("{} is assigned a kernel without a time", named()))?)
            }
        };
        if of_assigned != fastest {
            return Err(format!(
                "{} takes {of_assigned:?} us with its kernel, but {fastest:?} us with another selected kernel",
                named()
            ));
        }
        if fastest.is_none() {
            unserved.push(problem);
        }

        let times = row.iter().flatten().filter_map(|cell| Some((cell.median_us?, cell.noise)));
        let Some((least, least_noise)) = least_of(times) else { continue };
        let efficiency = fastest.map_or(0.0, |fastest| least / fastest);
        worst = Some(worst.map_or(efficiency, |worst| worst.min(efficiency)));
        sum += weighted.weight * efficiency;
        weights += weighted.weight;

        let Goal::Fewest { min_efficiency, margin } = goal else { continue };
        let suffices = |kernel: &usize| {
            row[*kernel].is_some_and(|cell| {
                let margin = match margin {
                    Margin::Given(margin) => margin,
                    Margin::Noise => least_noise + cell.noise,
                };
                cell.median_us.is_some_and(|time| least / time >= min_efficiency - margin)
            })
        };
        if !kernels.iter().any(suffices) {
            return Err(format!("{} has no selected kernel of efficiency {min_efficiency}", named()));
        }
    }

    if *uncovered != unserved {
        return Err(format!(
            "the uncovered problems are {unserved:?}, but the selection states {uncovered:?}"
        ));
    }
    let mean = worst.map(|_| sum / weights);
    for (what, said, is) in [("worst", selection.worst, worst), ("mean", selection.mean, mean)] {
        let equal = match (said, is) {
            (Some(said), Some(is)) => (said - is).abs() <= ROUNDING,
            (said, is) => said == is,
        };
        if !equal {
            return Err(format!("the {what} efficiency is {is:?}, but the selection states {said:?}"));
        }
    }
    let mean_found = mean.unwrap_or(0.0);
    match goal {
        Goal::Fewest { .. } => {
            possible(selection.proof, kernels.len() as f64, |bound| bound <= kernels.len() as f64)?;
            if let Some(ties) = selection.ties {
                possible(ties, mean_found, |bound| bound >= mean_found - ROUNDING)?;
            }
            Ok(())
        }
        Goal::Best { .. } => possible(selection.proof, mean_found, |bound| bound >= mean_found - ROUNDING),
    }
}

/// Returns the least of some times; `None` without one.
fn least_of<T: PartialOrd>(times: impl Iterator<Item = T>) -> Option<T> {
    times.reduce(|least, time| if time < least { time } else { least })
}

fn possible(proof: Proof, is: f64, holds: impl Fn(f64) -> bool) -> Result<(), String> {
    let Proof::Incumbent { found, bound } = proof else { return Ok(()) };
    if (found - is).abs() > ROUNDING {
        return Err(format!("the proof states {found}, but the selection has {is}"));
    }
    if !holds(bound) {
        return Err(format!("the selection has {is}, which is beyond the bound of {bound}"));
    }
    Ok(())
}
