//! Facility location: chooses at most a given number of columns such that the sum over rows of each row's best worth is
//! maximal. Optionally, the columns must also form a cover.

use core::time::Duration;

use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOptions, SolveOutcome};

use super::Effort;
use super::bits::Bits;
use super::columns::{Location, gain};
use super::cover::Cover;
use super::relax::Relaxed;

/// The maximum number of variables of an integer program. With more, the solver hardly finishes the relaxation in an
/// acceptable time.
const MOST_VARIABLES: usize = 40_000;

/// A choice of columns.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) columns: Vec<usize>,
    /// The total worth.
    pub(super) worth: f64,
    /// An upper bound of the worth of any choice.
    pub(super) bound: f64,
    pub(super) proven: bool,
}

impl Location {
    /// Requires that choices form a cover.
    pub(super) fn require(&mut self, cover: &Cover) {
        let rows: Vec<usize> = cover.essence().iter().collect();
        self.required = rows.len();
        let has =
            |column: &Bits| Bits::of(rows.len(), (0..rows.len()).filter(|row| column.contains(rows[*row])));
        self.has = cover.columns.iter().map(has).collect();
    }

    /// A greedy choice: always adds the column with the largest gain.
    pub(super) fn greedy(&self) -> Vec<usize> {
        self.filled(Vec::new())
    }

    /// Finds the best choice. `start` must form a cover if one is required.
    pub(super) fn best(&self, start: &[usize], effort: Effort) -> Located {
        let stands_for = self.dominators();
        let kept: Vec<usize> =
            (0..self.worth.len()).filter(|column| stands_for[*column] == *column).collect();
        let position = |column: usize| kept.partition_point(|other| *other < stands_for[column]);
        let mut start: Vec<usize> = start.iter().map(|column| position(*column)).collect();
        start.sort_unstable();
        start.dedup();
        let reduced = Location {
            worth: kept.iter().map(|column| self.worth[*column].clone()).collect(),
            has: kept.iter().map(|column| self.has[*column].clone()).collect(),
            ..*self
        };
        let located = reduced.best_of_undominated(start, effort);
        Located { columns: located.columns.iter().map(|position| kept[*position]).collect(), ..located }
    }

    fn best_of_undominated(&self, start: Vec<usize>, effort: Effort) -> Located {
        let mut columns = self.swapped(self.filled(start));
        let mut worth = self.worth_of(&columns);
        let relaxed = Relaxed::of(self, worth, effort.steps);
        let every: Vec<usize> =
            relaxed.order().into_iter().filter(|column| relaxed.may_gain[*column]).collect();
        let mut bound = self.by_counting().min(relaxed.bound);
        let mut search = Search {
            location: self,
            relaxed,
            margin: 1e-12 * self.rows as f64,
            best: (columns.clone(), worth),
            path: Vec::new(),
            steps: effort.steps,
        };
        let open = Bits::of(self.required, 0..self.required);
        let mut proven = search.go(&vec![0.0; self.rows], 0.0, &open, self.most, &every);
        (columns, worth) = search.best;
        if !proven {
            let solved = self.solve(&columns, effort.time);
            bound = bound.min(solved.bound);
            if let Some(other) = solved.columns.filter(|other| self.is_choice(other)) {
                let other_worth = self.worth_of(&other);
                // The solver proves its own solution, within its tolerance. If a better one is known, that is no proof.
                proven = solved.proven && other_worth >= worth - 1e-6;
                if other_worth > worth {
                    (columns, worth) = (other, other_worth);
                }
            }
        }
        let bound = if proven { worth } else { bound.max(worth) };
        Located { columns, worth, bound, proven }
    }

    /// For each column, an undominated column that is worth at least as much to every row and covers at least as much;
    /// the column itself if there is none.
    fn dominators(&self) -> Vec<usize> {
        let columns = 0..self.worth.len();
        let no_less = |one: usize, other: usize| {
            self.has[other].is_within(&self.has[one])
                && self.worth[one].iter().zip(&self.worth[other]).all(|(one, other)| one >= other)
        };
        let mut stands_for: Vec<usize> = columns
            .clone()
            .map(|column| {
                let replaces = |other: &usize| {
                    *other != column
                        && no_less(*other, column)
                        && (*other < column || !no_less(column, *other))
                };
                columns.clone().find(replaces).unwrap_or(column)
            })
            .collect();
        for column in columns {
            while stands_for[column] != stands_for[stands_for[column]] {
                stands_for[column] = stands_for[stands_for[column]];
            }
        }
        stands_for
    }

    /// The worth of a choice.
    fn worth_of(&self, columns: &[usize]) -> f64 {
        self.best_worth(columns).iter().sum()
    }

    /// The best worth of a choice to each row.
    fn best_worth(&self, columns: &[usize]) -> Vec<f64> {
        columns.iter().fold(vec![0.0; self.rows], |best, column| better(&best, &self.worth[*column]))
    }

    fn is_choice(&self, columns: &[usize]) -> bool {
        let open = Bits::of(self.required, 0..self.required);
        let left = columns.iter().fold(open, |open, column| open.without(&self.has[*column]));
        columns.len() <= self.most && left.is_empty()
    }

    /// Extends a choice greedily, until it is full or no column gains.
    fn filled(&self, mut columns: Vec<usize>) -> Vec<usize> {
        let mut best = self.best_worth(&columns);
        while columns.len() < self.most {
            let most = (0..self.worth.len())
                .map(|column| (column, gain(&best, &self.worth[column])))
                .rev()
                .max_by(|(_, a), (_, b)| a.total_cmp(b));
            let Some((column, _)) = most.filter(|(_, gain)| *gain > 0.0) else { break };
            best = better(&best, &self.worth[column]);
            columns.push(column);
        }
        columns
    }

    /// Improves a choice by exchanging single columns, until no exchange gains.
    fn swapped(&self, mut columns: Vec<usize>) -> Vec<usize> {
        let mut worth = self.worth_of(&columns);
        // Every round gains, so the loop would end by itself; after 100 rounds the choice is a good enough start.
        for _ in 0..100 {
            let Some((better, more)) = self.swap(&columns, worth) else { break };
            (columns, worth) = (better, more);
        }
        columns
    }

    fn swap(&self, columns: &[usize], worth: f64) -> Option<(Vec<usize>, f64)> {
        let mut found: Option<(Vec<usize>, f64)> = None;
        for position in 0..columns.len() {
            let mut other = columns.to_vec();
            other.swap_remove(position);
            let rest = self.best_worth(&other);
            let rest_worth: f64 = rest.iter().sum();
            for column in 0..self.worth.len() {
                let more = rest_worth + gain(&rest, &self.worth[column]);
                let best = found.as_ref().map_or(worth, |(_, best)| *best);
                if more > best * (1.0 + 1e-12) {
                    let candidate = [&other[..], &[column]].concat();
                    if self.is_choice(&candidate) {
                        found = Some((candidate, more));
                    }
                }
            }
        }
        found
    }

    /// Two upper bounds of the worth: each row's best over all columns, and the sum of the largest columns without
    /// overlap.
    fn by_counting(&self) -> f64 {
        let every: Vec<usize> = (0..self.worth.len()).collect();
        let mut alone: Vec<f64> = self.worth.iter().map(|column| column.iter().sum()).collect();
        alone.sort_by(|a, b| b.total_cmp(a));
        alone.iter().take(self.most).sum::<f64>().min(self.worth_of(&every))
    }

    /// Solves the problem as an integer program, starting from a known choice. Each row descends from its best worth
    /// to the first chosen column. Each step down is a variable that costs the worth lost.
    fn solve(&self, known: &[usize], time: Duration) -> Solved {
        let nothing = Solved { columns: None, bound: f64::INFINITY, proven: false };
        if time.is_zero() {
            return nothing;
        }
        let ladders: Vec<Vec<(f64, Vec<usize>)>> = (0..self.rows).map(|row| self.ladder(row)).collect();
        if ladders.iter().map(Vec::len).sum::<usize>() + self.worth.len() > MOST_VARIABLES {
            return nothing;
        }
        let mut program = Problem::new(OptimizationDirection::Minimize);
        let chosen: Vec<_> = self.worth.iter().map(|_| program.add_binary_var(0.0)).collect();
        let all: Vec<_> = chosen.iter().map(|variable| (*variable, 1.0)).collect();
        program.add_constraint(all, ComparisonOp::Le, self.most as f64);
        for row in 0..self.required {
            let having: Vec<_> =
                (0..self.has.len()).filter(|column| self.has[*column].contains(row)).collect();
            let having: Vec<_> = having.into_iter().map(|column| (chosen[column], 1.0)).collect();
            program.add_constraint(having, ComparisonOp::Ge, 1.0);
        }
        let mut at_best = 0.0;
        for ladder in &ladders {
            at_best += ladder.first().map_or(0.0, |(worth, _)| *worth);
            let mut above = None;
            for (rung, (worth, columns)) in ladder.iter().enumerate() {
                let below = ladder.get(rung + 1).map_or(0.0, |(worth, _)| *worth);
                let down = program.add_var(worth - below, (0.0, 1.0));
                let mut sum: Vec<_> = columns.iter().map(|column| (chosen[*column], 1.0)).collect();
                sum.push((down, 1.0));
                sum.extend(above.map(|above| (above, -1.0)));
                program.add_constraint(sum, ComparisonOp::Ge, if above.is_none() { 1.0 } else { 0.0 });
                above = Some(down);
            }
        }
        let mut options = SolveOptions::default();
        options.time_limit = Some(time);
        let start = |column: usize| if known.contains(&column) { 1.0 } else { 0.0 };
        options.warm_start =
            Some(chosen.iter().enumerate().map(|(column, variable)| (*variable, start(column))).collect());
        let Ok(outcome) = program.solve_with(options) else { return nothing };
        let columns = match &outcome {
            SolveOutcome::Interrupted(_) => None,
            SolveOutcome::Solution(solution) => {
                let is_chosen = |column: &usize| solution.var_value(chosen[*column]) > 0.5;
                Some((0..chosen.len()).filter(is_chosen).collect())
            }
        };
        let bound = outcome.stats().best_bound.map_or(f64::INFINITY, |loss| at_best - loss);
        Solved { columns, bound, proven: outcome.is_optimal() }
    }

    /// The distinct worths of a row in descending order, each with its columns.
    fn ladder(&self, row: usize) -> Vec<(f64, Vec<usize>)> {
        let mut order: Vec<usize> =
            (0..self.worth.len()).filter(|column| self.worth[*column][row] > 0.0).collect();
        order.sort_by(|a, b| self.worth[*b][row].total_cmp(&self.worth[*a][row]));
        let mut ladder: Vec<(f64, Vec<usize>)> = Vec::new();
        for column in order {
            let worth = self.worth[column][row];
            match ladder.last_mut() {
                Some((same, columns)) if *same == worth => columns.push(column),
                _ => ladder.push((worth, vec![column])),
            }
        }
        ladder
    }
}

/// The solver's result.
struct Solved {
    columns: Option<Vec<usize>>,
    bound: f64,
    proven: bool,
}

fn better(best: &[f64], column: &[f64]) -> Vec<f64> {
    best.iter().zip(column).map(|(best, worth)| best.max(*worth)).collect()
}

/// A branch-and-bound search over all choices.
struct Search<'a> {
    location: &'a Location,
    /// Improvements by less count as equal.
    margin: f64,
    relaxed: Relaxed,
    best: (Vec<usize>, f64),
    path: Vec<usize>,
    steps: u64,
}

impl Search<'_> {
    /// Searches the choices that extend `path` by at most `left` columns of `allowed`, which is sorted by score.
    /// Returns false if the steps run out.
    fn go(&mut self, best: &[f64], worth: f64, open: &Bits, left: usize, allowed: &[usize]) -> bool {
        if open.is_empty() && worth > self.best.1 + self.margin {
            self.best = (self.path.clone(), worth);
        }
        if left == 0 || allowed.is_empty() {
            return true;
        }
        let scores =
            self.path.iter().chain(allowed.iter().take(left)).map(|column| self.relaxed.scores[*column]);
        if self.relaxed.base + scores.sum::<f64>() <= self.best.1 + self.margin {
            return true;
        }
        if !self.spend(allowed.len() * (1 + self.location.required)) {
            return false;
        }
        if !self.can_close(open, left, allowed) {
            return true;
        }
        if !self.spend(allowed.len() * self.location.rows) {
            return false;
        }
        let mut gains: Vec<(f64, usize)> =
            allowed.iter().map(|column| (gain(best, &self.location.worth[*column]), *column)).collect();
        gains.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let margin = self.margin;
        let no_more = |gains: &[(f64, usize)], known: f64| {
            worth + gains.iter().take(left).map(|(gain, _)| gain).sum::<f64>() <= known + margin
        };
        if no_more(&gains, self.best.1) {
            return true;
        }
        let row = self.least_choice(open, allowed);
        let mut tried: Vec<usize> = Vec::new();
        for (position, &(gain, column)) in gains.iter().enumerate() {
            match row {
                Some(row) if !self.location.has[column].contains(row) => continue,
                // The remaining columns cannot gain more in any combination.
                None if no_more(&gains[position..], self.best.1) => return true,
                _ => {}
            }
            tried.push(column);
            let rest: Vec<usize> = allowed.iter().copied().filter(|column| !tried.contains(column)).collect();
            self.path.push(column);
            let open = open.without(&self.location.has[column]);
            let ended =
                self.go(&better(best, &self.location.worth[column]), worth + gain, &open, left - 1, &rest);
            self.path.pop();
            if !ended {
                return false;
            }
        }
        true
    }

    /// Uses up steps. Returns false if there are too few.
    fn spend(&mut self, steps: usize) -> bool {
        let rest = self.steps.checked_sub(steps as u64);
        self.steps = rest.unwrap_or(0);
        rest.is_some()
    }

    /// Returns true if `left` columns could cover the open rows, if they did not overlap.
    fn can_close(&self, open: &Bits, left: usize, allowed: &[usize]) -> bool {
        if open.is_empty() {
            return true;
        }
        let mut counts: Vec<usize> =
            allowed.iter().map(|column| self.location.has[*column].common(open)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts.iter().take(left).sum::<usize>() >= open.count()
    }

    /// The open row that the fewest columns cover.
    fn least_choice(&self, open: &Bits, allowed: &[usize]) -> Option<usize> {
        let choices =
            |row: &usize| allowed.iter().filter(|column| self.location.has[**column].contains(*row)).count();
        open.iter().min_by_key(choices)
    }
}
