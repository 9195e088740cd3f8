//! A bound on what a choice of columns is worth, from prices (Lagrangian relaxation).
//!
//! Each row pays a price for being served and gives up its own worth: then columns no longer compete for rows, and the
//! best choice is the columns of the highest scores. That is worth no less than any choice, whatever the prices are; a
//! subgradient method looks for those at which it is worth least.

use super::columns::Location;

/// How often prices are changed.
const ROUNDS: u64 = 400;

/// Prices that were found, as what follows from them.
#[derive(Clone, Debug)]
pub(super) struct Relaxed {
    /// What all rows pay.
    pub(super) base: f64,
    /// What each column is worth at these prices, not below 0: a choice is worth no more than `base` and its columns'.
    pub(super) scores: Vec<f64>,
    /// No choice is worth more.
    pub(super) bound: f64,
    /// Of each column, whether a choice with it may be worth more than the one that is known.
    pub(super) may_gain: Vec<bool>,
}

impl Relaxed {
    /// The bound of a location of which a choice is known that is worth `known`, within so many steps.
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
            // The rows that many of the chosen serve pay too little, those that none serves too much.
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

    /// The columns, from the highest score.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.scores.len()).collect();
        order.sort_by(|a, b| self.scores[*b].total_cmp(&self.scores[*a]));
        order
    }

    /// Excludes the columns that bring any choice below what is known when they take the place of the last of the best.
    fn exclude(&mut self, most: usize, known: f64) {
        let last = self.order().get(most.wrapping_sub(1)).map_or(0.0, |column| self.scores[*column]);
        for (column, may_gain) in self.may_gain.iter_mut().enumerate() {
            *may_gain &= self.bound - (last - self.scores[column]).max(0.0) > known;
        }
    }
}

/// What follows from prices that rows pay, and from rewards for rows that a column must have.
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
