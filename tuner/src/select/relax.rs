//! An upper bound of the worth of a choice of columns, by Lagrangian relaxation.
//!
//! A price per row replaces the constraint that a row takes one column. Then columns no longer compete for rows, and
//! the best choice is the columns with the highest scores. For any prices, its value bounds the worth of every choice.
//! A subgradient method searches the prices with the smallest bound.

use super::columns::Location;

/// The maximum number of price updates.
const ROUNDS: u64 = 400;

/// The relaxation at the best prices found.
#[derive(Clone, Debug)]
pub(super) struct Relaxed {
    /// The sum of the prices.
    pub(super) base: f64,
    /// The score of each column, at least 0. `base` plus the scores of a choice's columns bounds its worth.
    pub(super) scores: Vec<f64>,
    /// An upper bound of the worth of any choice.
    pub(super) bound: f64,
    /// Per column: a choice with it may be worth more than the known one.
    pub(super) may_gain: Vec<bool>,
}

impl Relaxed {
    /// Computes the bound within `steps` steps. `known` is the worth of a known choice.
    pub(super) fn of(location: &Location, known: f64, steps: u64) -> Relaxed {
        let columns = location.worth.len();
        let cost = (columns * location.rows).max(1) as u64;
        let mut prices: Vec<f64> = (0..location.rows)
            .map(|row| location.worth.iter().map(|column| column[row]).fold(0.0, f64::max))
            .collect();
        let mut rewards = vec![0.0; location.required];
        let mut best = at(location, &prices, &rewards);
        best.exclude(location.most, known);
        let (mut pace, mut in_vain) = (1.0, 0);
        for _ in 0..ROUNDS.min(steps / cost) {
            let mut now = at(location, &prices, &rewards);
            let order = now.order();
            let chosen = &order[..location.most.min(columns)];
            now.may_gain.clone_from(&best.may_gain);
            now.exclude(location.most, known);
            let gained = best.bound - now.bound;
            best.may_gain.clone_from(&now.may_gain);
            if gained > 0.0 {
                best = now.clone();
            }
            in_vain = if gained > 1e-6 * best.bound { 0 } else { in_vain + 1 };
            if in_vain == 15 {
                (pace, in_vain) = (pace / 2.0, 0);
            }
            // Lowers the price of rows that no chosen column wants, and raises it for rows that several want.
            let serving = |row: usize| {
                chosen.iter().filter(|column| location.worth[**column][row] > prices[row]).count()
            };
            let down: Vec<f64> = (0..location.rows).map(|row| 1.0 - serving(row) as f64).collect();
            let having =
                |row: usize| chosen.iter().filter(|column| location.has[**column].contains(row)).count();
            let less: Vec<f64> = (0..location.required).map(|row| having(row) as f64 - 1.0).collect();
            let length: f64 = down.iter().chain(&less).map(|part| part * part).sum();
            if length == 0.0 || now.bound <= known {
                break;
            }
            let step = pace * (now.bound - known).max(1e-6 * now.bound) / length;
            prices.iter_mut().zip(&down).for_each(|(price, part)| *price = (*price - step * part).max(0.0));
            rewards
                .iter_mut()
                .zip(&less)
                .for_each(|(reward, part)| *reward = (*reward - step * part).max(0.0));
        }
        best
    }

    /// The columns in descending order of score.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.scores.len()).collect();
        order.sort_by(|a, b| self.scores[*b].total_cmp(&self.scores[*a]));
        order
    }

    /// Excludes each column that cannot belong to a better choice. Putting it in place of the lowest-scored of the best
    /// `most` columns lowers the bound to `known` or below.
    fn exclude(&mut self, most: usize, known: f64) {
        let last = self.order().get(most.wrapping_sub(1)).map_or(0.0, |column| self.scores[*column]);
        for (column, may_gain) in self.may_gain.iter_mut().enumerate() {
            *may_gain &= self.bound - (last - self.scores[column]).max(0.0) > known;
        }
    }
}

/// Evaluates the relaxation at prices of rows and rewards for covering required rows.
fn at(location: &Location, prices: &[f64], rewards: &[f64]) -> Relaxed {
    let score = |column: usize| {
        let surplus = super::columns::gain(prices, &location.worth[column]);
        surplus + location.has[column].iter().map(|row| rewards[row]).sum::<f64>()
    };
    let scores: Vec<f64> = (0..location.worth.len()).map(score).collect();
    let base = prices.iter().sum::<f64>() - rewards.iter().sum::<f64>();
    let mut relaxed = Relaxed { base, bound: base, may_gain: vec![true; scores.len()], scores };
    relaxed.bound +=
        relaxed.order().iter().take(location.most).map(|column| relaxed.scores[*column]).sum::<f64>();
    relaxed
}
