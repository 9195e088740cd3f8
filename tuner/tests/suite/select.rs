//! Tests of selections: compared with all subsets of small matrices, with greedy selections, and on known difficult
//! cases. Also tests matrices built from records.

mod records;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fourfold_tuner::matrix::{Cell, Kernel, Matrix};
use fourfold_tuner::parameters::Parameters;
use fourfold_tuner::problem::{Problem, Weighted};
use fourfold_tuner::record::State;
use fourfold_tuner::select::{Goal, Margin, Proof, SelectError, Selection, best_of, check, minimum_set};

const LIMIT: Duration = Duration::from_secs(5);

/// Reproducible pseudorandom numbers (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        ((self.bits() >> 11) % limit as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// A matrix of these cells.
fn matrix(problems: usize, kernels: usize, mut cell: impl FnMut(usize, usize) -> Option<Cell>) -> Matrix {
    let kernel = |number: usize| Kernel {
        id: format!("{number:04}"),
        generator: "g".to_owned(),
        target: "sm_100a".to_owned(),
        name: format!("kernel {number}"),
        parameters: Parameters::default(),
    };
    Matrix {
        problems: (0..problems)
            .map(|row| Weighted { problem: Problem::new(128, 128, 256 * (row as u64 + 1)), weight: 1.0 })
            .collect(),
        kernels: (0..kernels).map(kernel).collect(),
        cells: (0..problems * kernels).map(|at| cell(at / kernels, at % kernels)).collect(),
        machine: None,
    }
}

fn good(median_us: f64) -> Option<Cell> {
    Some(Cell { state: State::Good, median_us: Some(median_us), noise: 0.0 })
}

/// A small matrix with ties, missing and wrong cells, rows where every kernel failed, and weights.
fn random_matrix(random: &mut Random) -> Matrix {
    let (problems, kernels) = (1 + random.below(16), 1 + random.below(14));
    let (missing, grid) = (random.below(5) * 15, random.percent(40));
    let spread = [0.15, 0.15, 0.6][random.below(3)];
    let failed: Vec<bool> = (0..problems).map(|_| random.percent(6)).collect();
    let mut matrix = matrix(problems, kernels, |row, _| {
        if random.percent(missing) {
            return None;
        }
        if failed[row] || random.percent(5) {
            let state = [State::Wrong, State::LaunchError, State::Refused][random.below(3)];
            return Some(Cell { state, median_us: None, noise: 0.0 });
        }
        let share = if grid { random.below(5) as f64 / 4.0 } else { random.unit() };
        let median_us = Some((1.0 + row as f64) * (1.0 + spread * share));
        Some(Cell { state: State::Good, median_us, noise: 0.02 * random.unit() })
    });
    for weighted in &mut matrix.problems {
        weighted.weight = [1.0, 1.0, 2.5, 40.0][random.below(4)];
    }
    matrix
}

/// For each problem that some kernel supports: its weight, each kernel's efficiency, and a bit mask of the kernels that
/// suffice.
struct AllSubsets {
    kernels: usize,
    rows: Vec<(f64, Vec<f64>, u32)>,
}

impl AllSubsets {
    fn new(matrix: &Matrix, min_efficiency: f64, margin: Margin) -> AllSubsets {
        let kernels = matrix.kernels.len();
        let rows = (0..matrix.problems.len()).filter_map(|problem| {
            let of = |kernel: usize| {
                let cell = matrix.cell(problem, kernel)?;
                Some((cell.median_us?, cell.noise))
            };
            let best = (0..kernels).filter_map(of).min_by(|a, b| a.partial_cmp(b).expect("numbers"))?;
            let efficiency = |kernel: usize| of(kernel).map_or(0.0, |(time, _)| best.0 / time);
            let suffices = |kernel: &usize| {
                of(*kernel).is_some_and(|(_, noise)| {
                    let margin = match margin {
                        Margin::Noise => best.1 + noise,
                        Margin::Given(margin) => margin,
                    };
                    efficiency(*kernel) >= min_efficiency - margin
                })
            };
            let suffice = (0..kernels).filter(suffices).fold(0, |bits, kernel| bits | 1 << kernel);
            let weight = matrix.problems[problem].weight;
            Some((weight, (0..kernels).map(efficiency).collect(), suffice))
        });
        AllSubsets { kernels, rows: rows.collect() }
    }

    fn subsets(&self) -> impl Iterator<Item = u32> + use<> {
        0..1 << self.kernels
    }

    fn mean(&self, subset: u32) -> f64 {
        let chosen = |kernel: &usize| subset >> kernel & 1 == 1;
        let best =
            |row: &[f64]| (0..self.kernels).filter(chosen).map(|kernel| row[kernel]).fold(0.0, f64::max);
        let weights: f64 = self.rows.iter().map(|(weight, ..)| weight).sum();
        self.rows.iter().map(|(weight, row, _)| weight * best(row)).sum::<f64>() / weights
    }

    /// The size of the smallest sufficient subsets, and the largest mean efficiency of one of them.
    fn fewest(&self) -> (u32, f64) {
        let suffices = |subset: &u32| self.rows.iter().all(|(.., suffice)| subset & suffice != 0);
        let sets: Vec<u32> = self.subsets().filter(suffices).collect();
        let size = sets.iter().map(|subset| subset.count_ones()).min().expect("all kernels suffice");
        let smallest = sets.into_iter().filter(|subset| subset.count_ones() == size);
        (size, smallest.map(|subset| self.mean(subset)).fold(0.0, f64::max))
    }

    fn best_of(&self, most: u32) -> f64 {
        let few = self.subsets().filter(|subset| subset.count_ones() <= most);
        few.map(|subset| self.mean(subset)).fold(0.0, f64::max)
    }

    fn greedy_mean(&self, most: usize) -> f64 {
        let mut chosen = 0;
        for _ in 0..most {
            let with = (0..self.kernels).map(|kernel| chosen | 1 << kernel);
            chosen = with.max_by(|a, b| self.mean(*a).total_cmp(&self.mean(*b))).expect("a kernel");
        }
        self.mean(chosen)
    }
}

/// The size of a greedy cover.
fn greedy_size(mut rows: Vec<u64>, kernels: usize) -> usize {
    let mut size = 0;
    while !rows.is_empty() {
        let suffices_for = |kernel: &usize| rows.iter().filter(|row| **row >> kernel & 1 == 1).count();
        let most = (0..kernels).max_by_key(suffices_for).expect("a kernel");
        rows.retain(|row| row >> most & 1 == 0);
        size += 1;
    }
    size
}

#[test]
fn equals_all_subsets() {
    let begun = Instant::now();
    let (mut greedy_larger, mut greedy_worse, mut failed_rows) = (0, 0, 0);
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let matrix = random_matrix(&mut random);
        let min_efficiency = [1.0, 0.95, 0.95, 0.9][random.below(4)];
        let margin = if random.percent(50) { Margin::Noise } else { Margin::Given(0.0) };
        let subsets = AllSubsets::new(&matrix, min_efficiency, margin);
        failed_rows += matrix.problems.len() - subsets.rows.len();

        let fewest = minimum_set(&matrix, min_efficiency, margin, LIMIT).expect("a selection");
        check(&matrix, &fewest, Goal::Fewest { min_efficiency, margin }).expect("the selection is valid");
        let (size, mean) = subsets.fewest();
        assert_eq!(fewest.kernels.len() as u32, size, "seed {seed}");
        assert_eq!((fewest.proof, fewest.ties), (Proof::Optimal, Some(Proof::Optimal)), "seed {seed}");
        if let Some(found) = fewest.mean {
            assert!((found - mean).abs() < 1e-9, "seed {seed}: {found} and {mean}");
        }
        let rows = subsets.rows.iter().map(|(.., suffice)| u64::from(*suffice)).collect();
        let greedy = greedy_size(rows, matrix.kernels.len());
        assert!(fewest.kernels.len() <= greedy, "seed {seed}");
        greedy_larger += usize::from(fewest.kernels.len() < greedy);

        let most = 1 + random.below(4);
        let best = best_of(&matrix, most, LIMIT).expect("a selection");
        check(&matrix, &best, Goal::Best { kernels: most }).expect("the selection is valid");
        assert_eq!(best.proof, Proof::Optimal, "seed {seed}");
        assert_eq!(best.mean.is_none(), subsets.rows.is_empty(), "seed {seed}");
        if let Some(found) = best.mean {
            let mean = subsets.best_of(most as u32);
            assert!((found - mean).abs() < 1e-9, "seed {seed}: {found} and {mean}");
            let greedy = subsets.greedy_mean(most);
            assert!(found >= greedy - 1e-12, "seed {seed}");
            greedy_worse += usize::from(found > greedy + 1e-9);
        }
        let unserved: Vec<usize> =
            (0..matrix.problems.len()).filter(|problem| matrix.best_us(*problem).is_none()).collect();
        assert_eq!(fewest.uncovered, unserved, "seed {seed}");
    }
    println!(
        "2000 instances in {:.1?}: greedy is larger in {greedy_larger}, worse in {greedy_worse}; {failed_rows} rows \
         without a kernel",
        begun.elapsed()
    );
    assert!(greedy_larger > 20 && greedy_worse > 20 && failed_rows > 20, "the instances test too little");
}

#[test]
fn a_kernel_for_the_first_problem_only_is_found() {
    // Only the first kernel suffices for the first problem, and it suffices for no other.
    let matrix = matrix(4, 3, |problem, kernel| match (problem, kernel) {
        (0, 0) => good(1.0),
        (0, _) => good(2.0),
        (_, 0) => good(9.0),
        (_, 1) => good(3.0),
        (_, _) => good(3.01),
    });
    let selection = minimum_set(&matrix, 0.95, Margin::Given(0.0), LIMIT).expect("a selection");
    // Of the two that suffice for the others, the better one is selected.
    assert_eq!(selection.kernels, [0, 1]);
    assert_eq!(selection.assignment, [Some(0), Some(1), Some(1), Some(1)]);
    assert_eq!((selection.worst, selection.mean), (Some(1.0), Some(1.0)));
    assert_eq!((selection.proof, selection.ties), (Proof::Optimal, Some(Proof::Optimal)));
}

#[test]
fn nothing_is_rounded() {
    // 0.9499 rounds to 0.95, but is less than required.
    let two = |efficiency: f64| {
        matrix(2, 2, move |problem, kernel| good(if problem == kernel { 1.0 } else { 1.0 / efficiency }))
    };
    let size = |matrix: &Matrix, margin: Margin| {
        minimum_set(matrix, 0.95, margin, LIMIT).expect("a selection").kernels.len()
    };
    assert_eq!(size(&two(0.9499), Margin::Given(0.0)), 2);
    assert_eq!(size(&two(0.9499), Margin::Given(0.001)), 1);
    assert_eq!(size(&two(0.9501), Margin::Given(0.0)), 1);
    let mut noisy = two(0.93);
    assert_eq!(size(&noisy, Margin::Noise), 2);
    for cell in noisy.cells.iter_mut().flatten() {
        cell.noise = 0.0101;
    }
    assert_eq!(size(&noisy, Margin::Noise), 1);
}

#[test]
fn what_nothing_serves_is_said() {
    let wrong = Some(Cell { state: State::Wrong, median_us: None, noise: 0.0 });
    let some = matrix(3, 2, |problem, kernel| match (problem, kernel) {
        (1, _) => wrong,
        (2, 0) => None,
        _ => good(1.0 + kernel as f64),
    });
    let fewest = minimum_set(&some, 0.95, Margin::Noise, LIMIT).expect("a selection");
    assert_eq!((&fewest.kernels[..], &fewest.uncovered[..]), (&[0, 1][..], &[1][..]));
    assert_eq!(fewest.assignment, [Some(0), None, Some(1)]);
    // The kernel that supports more problems. Problems that no kernel supports do not count.
    let best = best_of(&some, 1, LIMIT).expect("a selection");
    assert_eq!((&best.kernels[..], &best.uncovered[..]), (&[1][..], &[1][..]));
    assert_eq!((best.worst, best.mean), (Some(0.5), Some(0.75)));
    // A problem supported only by kernels that are not selected has the efficiency 0.
    let apart = matrix(3, 3, |problem, kernel| if problem == kernel { good(1.0) } else { None });
    let best = best_of(&apart, 2, LIMIT).expect("a selection");
    assert_eq!((best.kernels.len(), best.uncovered.len(), best.worst), (2, 1, Some(0.0)));
    assert!(best.mean.is_some_and(|mean| (mean - 2.0 / 3.0).abs() < 1e-12));

    for nothing in [matrix(3, 2, |_, _| wrong), matrix(3, 2, |_, _| None), matrix(0, 2, |_, _| None)] {
        let problems: Vec<usize> = (0..nothing.problems.len()).collect();
        for selection in [minimum_set(&nothing, 0.95, Margin::Noise, LIMIT), best_of(&nothing, 2, LIMIT)] {
            let selection = selection.expect("a selection");
            assert_eq!((selection.kernels.len(), selection.worst, selection.mean), (0, None, None));
            assert_eq!((selection.uncovered, selection.proof), (problems.clone(), Proof::Optimal));
        }
    }
    assert!(best_of(&Matrix::default(), 2, LIMIT).expect("a selection").kernels.is_empty());
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let one = matrix(1, 1, |_, _| good(1.0));
    for efficiency in [0.0, -1.0, 1.01, f64::NAN] {
        let error = minimum_set(&one, efficiency, Margin::Noise, LIMIT).expect_err("no efficiency");
        assert!(error.to_string().contains("give one above 0 and at most 1"), "{error}");
    }
    for margin in [-0.1, f64::NAN, f64::INFINITY] {
        let error = minimum_set(&one, 0.95, Margin::Given(margin), LIMIT).expect_err("no margin");
        assert!(matches!(error, SelectError::Margin(_)), "{error}");
    }
    assert_eq!(best_of(&one, 0, LIMIT), Err(SelectError::Kernels));
    let cannot_be = [
        Matrix { cells: Vec::new(), ..one.clone() },
        matrix(1, 1, |_, _| good(0.0)),
        matrix(1, 1, |_, _| good(f64::NAN)),
        matrix(1, 1, |_, _| Some(Cell { state: State::Good, median_us: Some(1.0), noise: f64::NAN })),
        Matrix { problems: vec![Weighted { problem: Problem::new(1, 1, 1), weight: 0.0 }], ..one },
    ];
    for matrix in cannot_be {
        let error = best_of(&matrix, 1, LIMIT).expect_err("no matrix");
        assert!(matches!(error, SelectError::Matrix(_)), "{error}");
    }
}

#[test]
fn the_checker_sees_what_is_not_so() {
    let two = matrix(2, 3, |problem, kernel| match (problem, kernel) {
        (0, 0) | (1, 1) => good(1.0),
        (_, 2) => None,
        _ => good(2.0),
    });
    let goal = Goal::Fewest { min_efficiency: 0.95, margin: Margin::Given(0.0) };
    let right = minimum_set(&two, 0.95, Margin::Given(0.0), LIMIT).expect("a selection");
    assert_eq!(check(&two, &right, goal), Ok(()));
    type Change = fn(&mut Selection);
    let changes: [(Change, &str); 12] = [
        (|selection| selection.kernels = vec![1, 0], "not in ascending order"),
        (|selection| selection.kernels = vec![0, 1, 3], "kernel 3 does not exist"),
        (|selection| selection.assignment = vec![None], "1 problems are assigned"),
        (|selection| selection.assignment[0] = Some(2), "not selected"),
        (|selection| selection.assignment[0] = Some(1), "with another"),
        (|selection| selection.assignment[0] = None, "with another"),
        (|selection| selection.uncovered = vec![0], "uncovered problems are"),
        (|selection| selection.worst = Some(0.9), "worst efficiency"),
        (|selection| selection.mean = None, "mean efficiency"),
        (|selection| selection.proof = Proof::Incumbent { found: 2.0, bound: 2.5 }, "beyond the bound"),
        (|selection| selection.proof = Proof::Incumbent { found: 3.0, bound: 2.0 }, "the proof states 3"),
        (|selection| selection.ties = Some(Proof::Incumbent { found: 1.0, bound: 0.9 }), "beyond the bound"),
    ];
    for (change, says) in changes {
        let mut selection = right.clone();
        change(&mut selection);
        let said = check(&two, &selection, goal).expect_err("the selection is wrong");
        assert!(said.contains(says), "{said}");
    }
    let one = best_of(&two, 1, LIMIT).expect("a selection");
    assert!(
        check(&two, &one, goal)
            .expect_err("the selection does not cover a problem")
            .contains("has no selected kernel of efficiency 0.95")
    );
    assert!(check(&two, &right, Goal::Best { kernels: 1 }).expect_err("too many").contains("more than 1"));
}

#[test]
fn proofs_are_said() {
    assert_eq!(Proof::Optimal.to_string(), "optimal");
    assert_eq!(Proof::Incumbent { found: 16.0, bound: 9.548 }.to_string(), "incumbent 16, bound 9.54");
    assert_eq!(
        Proof::Incumbent { found: 0.95, bound: 0.96121 }.to_string(),
        "incumbent 0.9500, bound 0.9613"
    );
}

/// 200 problems and 60 kernels. A given percentage of the efficiencies is above 0.95, or all are uniform above 0.85.
fn large(seed: u64, density: Option<usize>) -> Matrix {
    let mut random = Random::new(seed);
    matrix(200, 60, |_, _| {
        let efficiency = match density {
            None => 0.85 + 0.15 * random.unit(),
            Some(density) if random.percent(density) => 0.955 + 0.045 * random.unit(),
            Some(_) => 0.3 + 0.6 * random.unit(),
        };
        good(10.0 / efficiency)
    })
}

/// A start time in wall-clock and CPU time, so that other tests that run at the same time do not matter.
struct Begun(Instant, Option<Duration>);

impl Begun {
    fn now() -> Begun {
        Begun(Instant::now(), Begun::on_processor())
    }

    /// The CPU time of this thread, if the system provides it.
    fn on_processor() -> Option<Duration> {
        let status = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Some(Duration::from_nanos(status.split_whitespace().next()?.parse().ok()?))
    }

    fn seconds(&self) -> (f64, f64) {
        let wall = self.0.elapsed();
        let busy = self.1.and_then(|before| Some(Begun::on_processor()? - before)).unwrap_or(wall);
        (wall.as_secs_f64(), busy.as_secs_f64())
    }
}

/// The seconds that a search takes on this machine. Searches count steps, so the same search takes longer on a slower
/// machine. This one uses all of its steps.
fn longest_search() -> f64 {
    static SECONDS: OnceLock<f64> = OnceLock::new();
    *SECONDS.get_or_init(|| {
        let matrix = large(0, None);
        let begun = Begun::now();
        best_of(&matrix, 8, Duration::ZERO).expect("a selection");
        begun.seconds().1
    })
}

/// Checks that the selection ended in time and its bound is valid. Prints the details. A selection takes at most
/// `searches` searches, and [`LIMIT`] for the solver.
fn honest(what: &str, searches: u32, begun: &Begun, selection: &Selection) {
    let (wall, busy) = begun.seconds();
    let most = LIMIT.as_secs_f64() + 1.5 * f64::from(searches) * longest_search() + 0.5;
    let Selection { kernels, proof, ties, worst, mean, .. } = selection;
    let ties = ties.map_or("-".to_owned(), |ties| ties.to_string());
    println!(
        "{what}: {} kernels, {proof}; ties {ties}; worst {worst:.4?}, mean {mean:.6?}; {wall:.2} s, busy {busy:.2} s",
        kernels.len()
    );
    assert!(busy <= most, "{what}: {busy} s, and {most} s are allowed");
    if let Proof::Incumbent { found, bound } = proof {
        assert!(found.is_finite() && bound.is_finite() && found != bound);
    }
}

#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes a minute; it is in the second tier")]
fn large_instances_end_in_time() {
    for (what, density) in [("18 %", Some(18)), ("random", None)] {
        for seed in 0..2 {
            let matrix = large(seed, density);
            let begun = Begun::now();
            let selection = minimum_set(&matrix, 0.95, Margin::Given(0.0), LIMIT).expect("a selection");
            honest(&format!("{what}, fewest"), 2, &begun, &selection);
            let sufficing = |problem: usize| {
                let suffices =
                    |kernel: &usize| matrix.efficiency(problem, *kernel).is_some_and(|e| e >= 0.95);
                (0..60).filter(suffices).fold(0, |bits, kernel| bits | 1 << kernel)
            };
            let greedy = greedy_size((0..200).map(sufficing).collect(), 60);
            assert!(selection.kernels.len() <= greedy, "{} and greedy {greedy}", selection.kernels.len());
            for most in [3, 8] {
                let begun = Begun::now();
                let selection = best_of(&matrix, most, LIMIT).expect("a selection");
                honest(&format!("{what}, best of {most}"), 1, &begun, &selection);
            }
        }
    }
}

/// Times of tiles that run in waves, with noise. Many kernels are similar, as in real measurements.
fn waves(problems: usize, kernels: usize) -> Matrix {
    let mut random = Random::new(7);
    let edges = [64.0, 128.0, 256.0];
    let tiles: Vec<[f64; 4]> = (0..kernels)
        .map(|_| {
            let splits = [1.0, 2.0, 4.0, 8.0][random.below(4)];
            [edges[random.below(3)], edges[random.below(3)], splits, 0.9 + 0.2 * random.unit()]
        })
        .collect();
    let extents: Vec<[f64; 3]> = (0..problems)
        .map(|_| {
            let m = [16.0, 64.0, 128.0, 256.0, 512.0, 2048.0][random.below(6)];
            [m, 1024.0 * (1 + random.below(16)) as f64, 1024.0 * (1 + random.below(16)) as f64]
        })
        .collect();
    matrix(problems, kernels, |problem, kernel| {
        let ([m, n, k], [rows, columns, splits, quality]) = (extents[problem], tiles[kernel]);
        let waves = ((m / rows).ceil() * (n / columns).ceil() * splits / 148.0).ceil();
        let time = 2.0 + waves * (rows * columns / 16384.0).powf(0.85) * k / splits * 1e-3 + 0.3 * splits;
        good(quality * time * (1.0 + 0.02 * random.unit()))
    })
}

#[test]
fn what_measurements_are_like_is_proven() {
    let matrix = waves(100, 400);
    for min_efficiency in [0.9, 0.95, 0.98] {
        let begun = Begun::now();
        let selection = minimum_set(&matrix, min_efficiency, Margin::Given(0.0), LIMIT).expect("a selection");
        honest(&format!("100 x 400, at least {min_efficiency}"), 2, &begun, &selection);
        assert_eq!((selection.proof, selection.ties), (Proof::Optimal, Some(Proof::Optimal)));
    }
    for most in [2, 4, 8] {
        let begun = Begun::now();
        let selection = best_of(&matrix, most, LIMIT).expect("a selection");
        honest(&format!("100 x 400, best of {most}"), 1, &begun, &selection);
        assert_eq!(selection.proof, Proof::Optimal);
    }
}
