//! Tests of the integer-program solver, which the public functions use only on instances too large for a reference.

use core::time::Duration;

use super::{Effort, Goal, Margin, Proof, Selection, check, greedy, select};
use crate::matrix::{Cell, Kernel, Matrix};
use crate::parameters::Parameters;
use crate::problem::{Problem, Weighted};
use crate::record::State;
use crate::select::table::Table;

const SEARCH: Effort = Effort { steps: super::STEPS, time: Duration::ZERO };
const SOLVER: Effort = Effort { steps: 0, time: Duration::from_secs(60) };
const NEITHER: Effort = Effort { steps: 0, time: Duration::ZERO };

/// A matrix of random times, 30 % of them missing.
fn matrix(seed: u64) -> Matrix {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut unit = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let (problems, kernels) = (4 + (unit() * 20.0) as usize, 4 + (unit() * 14.0) as usize);
    let kernel = |number: usize| Kernel {
        id: number.to_string(),
        generator: String::new(),
        target: String::new(),
        name: String::new(),
        parameters: Parameters::default(),
    };
    Matrix {
        problems: (0..problems)
            .map(|row| Weighted { problem: Problem::new(1, 1, row as u64 + 1), weight: 1.0 + unit() })
            .collect(),
        kernels: (0..kernels).map(kernel).collect(),
        cells: (0..problems * kernels)
            .map(|_| {
                let time = 1.0 + 0.2 * unit();
                (unit() < 0.7).then_some(Cell { state: State::Good, median_us: Some(time), noise: 0.0 })
            })
            .collect(),
        machine: None,
    }
}

const GOALS: [Goal; 4] = [
    Goal::Fewest { min_efficiency: 0.95, margin: Margin::Given(0.0) },
    Goal::Fewest { min_efficiency: 0.98, margin: Margin::Given(0.0) },
    Goal::Best { kernels: 2 },
    Goal::Best { kernels: 4 },
];

fn is_optimal(selection: &Selection) -> bool {
    selection.proof == Proof::Optimal && selection.ties.is_none_or(|ties| ties == Proof::Optimal)
}

#[test]
fn the_solver_and_the_search_agree() {
    for seed in 0..100 {
        let matrix = matrix(seed);
        for goal in GOALS {
            let searched = select(&matrix, goal, SEARCH).expect("a selection");
            let solved = select(&matrix, goal, SOLVER).expect("a selection");
            assert!(
                is_optimal(&searched) && is_optimal(&solved),
                "seed {seed}, {goal:?}: {searched:?}, {solved:?}"
            );
            if let Goal::Fewest { .. } = goal {
                assert_eq!(searched.kernels.len(), solved.kernels.len(), "seed {seed}, {goal:?}");
            }
            let (Some(one), Some(other)) = (searched.mean, solved.mean) else {
                panic!("seed {seed}: no mean")
            };
            // The solver's tolerance.
            assert!((one - other).abs() < 1e-6, "seed {seed}, {goal:?}: {one} and {other}");
        }
    }
}

#[test]
fn nothing_is_called_optimal_that_nobody_proved() {
    let mut open = 0;
    for seed in 0..100 {
        let matrix = matrix(seed);
        for goal in GOALS {
            let best = select(&matrix, goal, SEARCH).expect("a selection");
            let found = select(&matrix, goal, NEITHER).expect("a selection");
            let (is, bound_holds) = match (goal, found.proof) {
                (Goal::Fewest { .. }, proof) => {
                    let least = best.kernels.len();
                    let holds = |bound: f64| bound <= least as f64;
                    (
                        found.kernels.len() == least,
                        matches!(proof, Proof::Incumbent { bound, .. } if holds(bound)),
                    )
                }
                (Goal::Best { .. }, proof) => {
                    let (Some(most), Some(mean)) = (best.mean, found.mean) else {
                        panic!("seed {seed}: no mean")
                    };
                    let holds = |bound: f64| bound >= most - 1e-12;
                    (mean >= most - 1e-9, matches!(proof, Proof::Incumbent { bound, .. } if holds(bound)))
                }
            };
            assert!(bound_holds || (is && found.proof == Proof::Optimal), "seed {seed}, {goal:?}: {found:?}");
            if let (Some(Proof::Optimal), Some(mean)) = (found.ties, found.mean) {
                assert!(
                    best.mean.is_some_and(|most| mean >= most - 1e-9),
                    "seed {seed}, {goal:?}: {found:?}"
                );
            }
            open += usize::from(!is_optimal(&found));
        }
    }
    assert!(open > 100, "every instance is decided without a search: {open}");
}

#[test]
fn a_greedy_choice_is_right_too() {
    for seed in 0..100 {
        let matrix = matrix(seed);
        let table = Table::of(&matrix).expect("a table");
        for goal in GOALS {
            let plain = greedy(&table, goal);
            check(&matrix, &plain, goal).expect("the selection is valid");
            assert!(matches!(plain.proof, Proof::Incumbent { .. }), "{plain:?}");
        }
    }
}
