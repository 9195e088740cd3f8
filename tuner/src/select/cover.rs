//! Minimum set cover: the fewest columns that together cover all rows.

use core::time::Duration;

use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOptions, SolveOutcome};

use super::Effort;
use super::bits::Bits;

/// A set cover problem: the rows that each column covers.
#[derive(Clone, Debug)]
pub(super) struct Cover {
    pub(super) rows: usize,
    pub(super) columns: Vec<Bits>,
}

/// A cover.
#[derive(Clone, Debug)]
pub(super) struct Covered {
    pub(super) columns: Vec<usize>,
    /// A lower bound of the size of any cover; the number of columns if it is proven minimal.
    pub(super) bound: f64,
    pub(super) proven: bool,
    /// The time used by the solver.
    pub(super) spent: Duration,
}

/// A reduced problem.
struct Reduced {
    /// Columns that belong to some minimum cover.
    forced: Vec<usize>,
    rows: Bits,
    columns: Vec<usize>,
}

impl Cover {
    /// Finds a minimum cover. Every row must be covered by some column.
    pub(super) fn fewest(&self, effort: Effort) -> Covered {
        let reduced = self.reduce();
        let forced = reduced.forced.len();
        let with_forced = |columns: &[usize]| [&reduced.forced[..], columns].concat();
        let columns: Vec<Bits> =
            reduced.columns.iter().map(|column| self.columns[*column].and(&reduced.rows)).collect();
        let original =
            |chosen: &[usize]| chosen.iter().map(|position| reduced.columns[*position]).collect::<Vec<_>>();

        let mut chosen = improved(&columns, &reduced.rows, greedy(&columns, &reduced.rows));
        let least = by_counting(&columns, &reduced.rows);
        let mut search = Search { columns: &columns, rows: self.rows, steps: effort.steps };
        let mut proven = chosen.len() == least;
        while !proven {
            match search.cover(reduced.rows.clone(), chosen.len() - 1, &Bits::none(columns.len())) {
                Found::Cover(fewer) => chosen = fewer,
                Found::None => proven = true,
                Found::OutOfSteps => break,
            }
            proven |= chosen.len() == least;
        }
        let (mut bound, mut spent) =
            (if proven { chosen.len() as f64 } else { least as f64 }, Duration::ZERO);
        if !proven {
            let solved = solve(&columns, &reduced.rows, &chosen, effort.time);
            spent = solved.spent;
            let covers = |set: &[usize]| left(&columns, &reduced.rows, set).is_empty();
            if let Some(fewer) = solved.columns.filter(|set| set.len() < chosen.len() && covers(set)) {
                chosen = fewer;
            }
            bound = bound.max(solved.bound).min(chosen.len() as f64);
            proven = solved.proven_at == Some(chosen.len()) || chosen.len() == least;
            bound = if proven { chosen.len() as f64 } else { bound };
        }
        Covered { columns: with_forced(&original(&chosen)), bound: bound + forced as f64, proven, spent }
    }

    /// A greedy cover: always adds the column that covers the most open rows.
    pub(super) fn greedy(&self) -> Vec<usize> {
        greedy(&self.columns, &Bits::of(self.rows, 0..self.rows))
    }

    /// The rows that imply all others: a choice that covers them covers all rows.
    pub(super) fn essence(&self) -> Bits {
        let every: Vec<usize> = (0..self.columns.len()).collect();
        self.independent(&Bits::of(self.rows, 0..self.rows), &every)
    }

    /// Removes implied rows and dominated columns, and takes the columns that are the only one for a row.
    fn reduce(&self) -> Reduced {
        let mut rows = Bits::of(self.rows, 0..self.rows);
        let mut columns: Vec<usize> = (0..self.columns.len()).collect();
        let mut forced = Vec::new();
        loop {
            let before = (rows.count(), columns.len());
            rows = self.independent(&rows, &columns);
            columns = self.undominated(&rows, &columns);
            for row in rows.clone().iter() {
                let mut having = columns.iter().copied().filter(|column| self.columns[*column].contains(row));
                if let (Some(only), None) = (having.next(), having.next())
                    && rows.contains(row)
                {
                    forced.push(only);
                    rows = rows.without(&self.columns[only]);
                    columns.retain(|column| *column != only);
                }
            }
            if before == (rows.count(), columns.len()) {
                return Reduced { forced, rows, columns };
            }
        }
    }

    /// Removes rows that are implied by another row: every column that covers the other covers them.
    fn independent(&self, rows: &Bits, columns: &[usize]) -> Bits {
        let having: Vec<(usize, Bits)> = rows
            .iter()
            .map(|row| {
                (row, columns.iter().copied().filter(move |column| self.columns[*column].contains(row)))
            })
            .map(|(row, having)| (row, Bits::of(self.columns.len(), having)))
            .collect();
        let implied = |row: usize, set: &Bits| {
            having.iter().any(|(other, smaller)| {
                *other != row && smaller.is_within(set) && (smaller != set || *other < row)
            })
        };
        Bits::of(self.rows, having.iter().filter(|(row, set)| !implied(*row, set)).map(|(row, _)| *row))
    }

    /// Removes columns that cover no row, or only rows that another column covers.
    fn undominated(&self, rows: &Bits, columns: &[usize]) -> Vec<usize> {
        let live: Vec<(usize, Bits)> =
            columns.iter().map(|column| (*column, self.columns[*column].and(rows))).collect();
        let dominated = |column: usize, set: &Bits| {
            set.is_empty()
                || live.iter().any(|(other, larger)| {
                    *other != column && set.is_within(larger) && (larger != set || *other < column)
                })
        };
        live.iter().filter(|(column, set)| !dominated(*column, set)).map(|(column, _)| *column).collect()
    }
}

/// The rows that a set does not cover.
fn left(columns: &[Bits], rows: &Bits, set: &[usize]) -> Bits {
    set.iter().fold(rows.clone(), |left, column| left.without(&columns[*column]))
}

fn greedy(columns: &[Bits], rows: &Bits) -> Vec<usize> {
    let (mut rows, mut chosen) = (rows.clone(), Vec::new());
    while !rows.is_empty() {
        let most = (0..columns.len()).rev().max_by_key(|column| columns[*column].common(&rows));
        let Some(most) = most.filter(|column| columns[*column].common(&rows) > 0) else { break };
        rows = rows.without(&columns[most]);
        chosen.push(most);
    }
    chosen
}

/// Improves a cover: drops redundant columns, and replaces two columns by one where possible.
fn improved(columns: &[Bits], rows: &Bits, mut chosen: Vec<usize>) -> Vec<usize> {
    while let Some(fewer) = with_one_less(columns, rows, &chosen) {
        chosen = fewer;
    }
    chosen
}

fn with_one_less(columns: &[Bits], rows: &Bits, chosen: &[usize]) -> Option<Vec<usize>> {
    let without = |one: usize, other: usize| -> Vec<usize> {
        chosen.iter().copied().filter(|column| *column != one && *column != other).collect()
    };
    for (position, &one) in chosen.iter().enumerate() {
        if left(columns, rows, &without(one, one)).is_empty() {
            return Some(without(one, one));
        }
        for &other in &chosen[position + 1..] {
            let mut rest = without(one, other);
            let open = left(columns, rows, &rest);
            if let Some(both) = (0..columns.len()).find(|column| open.is_within(&columns[*column])) {
                rest.push(both);
                return Some(rest);
            }
        }
    }
    None
}

/// A lower bound of the size of a cover: the fewest columns whose row counts add up to all rows.
fn by_counting(columns: &[Bits], rows: &Bits) -> usize {
    let mut counts: Vec<usize> = columns.iter().map(|column| column.common(rows)).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let (mut sum, all) = (0, rows.count());
    counts
        .iter()
        .take_while(|count| {
            let more = sum < all;
            sum += **count;
            more
        })
        .count()
}

enum Found {
    Cover(Vec<usize>),
    None,
    OutOfSteps,
}

/// A branch-and-bound search for a cover of a given size. Branches over the columns of the row with the fewest choices.
struct Search<'a> {
    columns: &'a [Bits],
    rows: usize,
    steps: u64,
}

impl Search<'_> {
    fn cover(&mut self, open: Bits, most: usize, excluded: &Bits) -> Found {
        if open.is_empty() {
            return Found::Cover(Vec::new());
        }
        let cost = (self.columns.len() * open.count()) as u64;
        if self.steps < cost {
            return Found::OutOfSteps;
        }
        self.steps -= cost;
        let counts: Vec<usize> = (0..self.columns.len())
            .map(|column| if excluded.contains(column) { 0 } else { self.columns[column].common(&open) })
            .collect();
        let mut largest = counts.clone();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        if largest.iter().take(most).sum::<usize>() < open.count() {
            return Found::None;
        }
        let mut choices = vec![0_u32; self.rows];
        for (column, _) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.columns[column].iter().for_each(|row| choices[row] += 1);
        }
        let Some(row) = open.iter().min_by_key(|row| choices[*row]) else { return Found::None };
        let mut having: Vec<usize> = (0..self.columns.len())
            .filter(|column| counts[*column] > 0 && self.columns[*column].contains(row))
            .collect();
        having.sort_by_key(|column| std::cmp::Reverse(counts[*column]));
        let mut excluded = excluded.clone();
        for column in having {
            match self.cover(open.without(&self.columns[column]), most - 1, &excluded) {
                Found::Cover(mut set) => {
                    set.push(column);
                    return Found::Cover(set);
                }
                Found::None => excluded.insert(column),
                Found::OutOfSteps => return Found::OutOfSteps,
            }
        }
        Found::None
    }
}

/// The solver's result.
struct Solved {
    columns: Option<Vec<usize>>,
    bound: f64,
    /// The size that it proved to be minimal.
    proven_at: Option<usize>,
    spent: Duration,
}

/// Solves the problem as an integer program, starting from a known cover.
fn solve(columns: &[Bits], rows: &Bits, known: &[usize], time: Duration) -> Solved {
    if time.is_zero() {
        return Solved { columns: None, bound: 0.0, proven_at: None, spent: time };
    }
    let mut program = Problem::new(OptimizationDirection::Minimize);
    let chosen: Vec<_> = columns.iter().map(|_| program.add_binary_var(1.0)).collect();
    for row in rows.iter() {
        let having: Vec<_> = (0..columns.len())
            .filter(|column| columns[*column].contains(row))
            .map(|column| (chosen[column], 1.0))
            .collect();
        program.add_constraint(having, ComparisonOp::Ge, 1.0);
    }
    let mut options = SolveOptions::default();
    options.time_limit = Some(time);
    let start = |column: usize| if known.contains(&column) { 1.0 } else { 0.0 };
    options.warm_start =
        Some(chosen.iter().enumerate().map(|(column, variable)| (*variable, start(column))).collect());
    let Ok(outcome) = program.solve_with(options) else {
        return Solved { columns: None, bound: 0.0, proven_at: None, spent: time };
    };
    let stats = outcome.stats();
    let columns = match &outcome {
        SolveOutcome::Interrupted(_) => None,
        SolveOutcome::Solution(solution) => {
            let is_chosen = |column: &usize| solution.var_value(chosen[*column]) > 0.5;
            Some((0..columns.len()).filter(is_chosen).collect::<Vec<_>>())
        }
    };
    let proven_at = columns.as_ref().map(Vec::len).filter(|_| outcome.is_optimal());
    Solved { columns, bound: stats.best_bound.unwrap_or(0.0), proven_at, spent: stats.elapsed }
}
