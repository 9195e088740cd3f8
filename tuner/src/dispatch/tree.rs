//! Grows the decision tree, and converts it to rules.

use std::collections::BTreeSet;

use fourfold_codegen::dispatch::{Bounds, Condition, Kernel, Tiles};

use super::guess::{Guess, guesses};
use super::{LearnOptions, Measured, Takes, extents, meets};
use crate::problem::Problem;

/// A rule: upper bounds, and the position of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bounded {
    pub bounds: Condition,
    pub kernel: usize,
}

/// The outcome of the rules for a problem.
pub(super) struct Given {
    /// The position of the rule; `None` for the default.
    pub rule: Option<usize>,
    /// The fraction of time lost.
    pub loss: f64,
}

/// The quantity that a split bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Feature {
    M,
    N,
    K,
    /// The number of tiles of this M and N.
    Tiles([u64; 2]),
}

/// A split of problems by an upper bound.
struct Split {
    /// The weighted loss of the sides that have a kernel.
    cost: f64,
    /// The number of sides without a kernel, which must be split further.
    unserved: usize,
    /// The bounds of the inner side. The outer side keeps the bounds of both.
    inside: Condition,
    yes: Vec<usize>,
    no: Vec<usize>,
}

/// A problem on which the tree is grown.
struct Point {
    problem: Problem,
    weight: f64,
    /// The fraction of time that each kernel loses.
    losses: Vec<Option<f64>>,
}

/// The cost of a kernel on some problems.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Problems without a time of this kernel.
    lost: usize,
    /// The weighted loss on the others.
    sum: f64,
}

pub(super) struct Tree<'a> {
    measured: Measured<'a>,
    takes: &'a Takes<'a>,
    options: LearnOptions,
    /// Per kernel: no rule may name it.
    banned: &'a [bool],
    /// Per kernel: the largest M, N and K that it supports; `None` without a limit.
    limits: Vec<[Option<u64>; 3]>,
    /// The measured problems in their order, then the estimated ones.
    points: Vec<Point>,
    total_weight: f64,
}

/// Extents at which constraints are probed, in addition to the bounds: small, large, and not multiples of a tile.
const PROBES: [&[u64]; 3] = [
    &[1, 7, 16, 128, 129, 4096, 65_536, 1 << 20],
    &[8, 32, 264, 4096, 65_536, 1 << 20],
    &[32, 96, 256, 4096, 65_536, 1 << 20],
];
/// The largest extent: kernels use 32-bit signed integers.
const MOST: u64 = i32::MAX as u64;
/// Limits of M, N and K are searched in multiples of these, which meet every alignment constraint.
const STEPS: [u64; 3] = [1, 256, 256];
/// The loss of a kernel without an estimate on an estimated problem.
const UNKNOWN: f64 = 3.0;
/// Costs that differ by less are equal, because the sums are rounded.
const SAME: f64 = 1e-9;

impl<'a> Tree<'a> {
    pub fn new(
        measured: Measured<'a>,
        takes: &'a Takes<'a>,
        options: LearnOptions,
        banned: &'a [bool],
    ) -> Tree<'a> {
        let known = measured.problems.iter().zip(measured.times).map(|(weighted, times)| {
            let best = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            let losses = times.iter().map(|time| time.map(|time| time / best - 1.0)).collect();
            Point { problem: weighted.problem, weight: weighted.weight, losses }
        });
        let mut points: Vec<Point> = known.collect();
        let weight: f64 = measured.problems.iter().map(|it| it.weight).sum();
        let guessed = options.processors.map_or(Vec::new(), |count| guesses(measured, takes, count));
        let each = options.guessed_weight * weight / guessed.len().max(1) as f64;
        points.extend(guessed.into_iter().map(|Guess { problem, losses }| {
            let losses = losses.into_iter().map(|loss| Some(loss.unwrap_or(UNKNOWN))).collect();
            Point { problem, weight: each, losses }
        }));
        let total_weight = points.iter().map(|it| it.weight).sum();
        let mut tree = Tree { measured, takes, options, banned, limits: Vec::new(), points, total_weight };
        tree.limits = (0..measured.kernels.len())
            .map(|kernel| [0, 1, 2].map(|axis| tree.limit(kernel, axis)))
            .collect();
        tree
    }

    pub fn measured(&self) -> Measured<'a> {
        self.measured
    }

    fn kernel(&self, kernel: usize) -> &'a Kernel {
        &self.measured.kernels[kernel]
    }

    /// Returns true if a kernel supports a problem, or if no kernel does.
    fn takes_or_none_does(&self, kernel: usize, problem: &Problem) -> bool {
        (self.takes)(self.kernel(kernel), problem).is_ok()
            || self.measured.kernels.iter().all(|kernel| (self.takes)(kernel, problem).is_err())
    }

    /// The largest extent along an axis that a kernel supports; `None` if no kernel supports a larger one.
    fn limit(&self, kernel: usize, axis: usize) -> Option<u64> {
        let at = |steps: u64| {
            let mut extents = STEPS;
            extents[axis] = steps * STEPS[axis];
            self.takes_or_none_does(kernel, &Problem::new(extents[0], extents[1], extents[2]))
        };
        let most = MOST / STEPS[axis];
        // The first unsupported power of two bounds the binary search.
        let mut above = 1;
        while above <= most && at(above) {
            above *= 2;
        }
        if above > most {
            return None;
        }
        let mut below = above / 2;
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if at(middle) { below = middle } else { above = middle }
        }
        Some(below * STEPS[axis])
    }

    /// Narrows bounds to a kernel's limits.
    fn within_limits(&self, kernel: usize, bounds: &Condition) -> Condition {
        let [m, n, k] = self.limits[kernel];
        let features = [(Feature::M, m), (Feature::N, n), (Feature::K, k)];
        features.into_iter().fold(*bounds, |bounds, (feature, limit)| {
            limit.and_then(|limit| narrowed(&bounds, feature, limit)).unwrap_or(bounds)
        })
    }

    /// Returns true if a kernel supports the problems within bounds. Probes the corners and extents between them.
    pub fn is_taken(&self, kernel: usize, bounds: &Condition) -> bool {
        let along = |axis: usize, bounds: Option<Bounds>| {
            let most = bounds.and_then(|it| it.max).unwrap_or(MOST);
            let corner = if most < STEPS[axis] { most } else { most / STEPS[axis] * STEPS[axis] };
            let probes = PROBES[axis].iter().copied().filter(move |probe| *probe <= most);
            probes.chain([most, corner]).filter(|extent| *extent > 0).collect::<BTreeSet<u64>>()
        };
        let [ms, ns, ks] = [along(0, bounds.m), along(1, bounds.n), along(2, bounds.k)];
        let problems = ms.iter().flat_map(|m| ns.iter().map(move |n| (*m, *n)));
        let mut problems = problems.flat_map(|(m, n)| ks.iter().map(move |k| Problem::new(m, n, *k)));
        problems.all(|problem| !meets(bounds, &problem) || self.takes_or_none_does(kernel, &problem))
    }

    /// The kernel that supports every problem and has the smallest worst-case loss, then the smallest total loss.
    pub fn default(&self) -> Option<usize> {
        let always = Condition::default();
        let cost = |kernel: usize| {
            // A problem without a time has an infinite loss.
            let losses = self.known().iter().map(|it| it.losses[kernel].unwrap_or(f64::INFINITY));
            (losses.clone().fold(0.0, f64::max), losses.filter(|loss| loss.is_finite()).sum::<f64>())
        };
        let all = 0..self.measured.kernels.len();
        let takes_all = |kernel: &usize| {
            let is_for_small_m = self.kernel(*kernel).is_for_small_m();
            !is_for_small_m && self.limits[*kernel] == [None; 3] && self.is_taken(*kernel, &always)
        };
        let by_cost = |one: &usize, other: &usize| {
            let (one, other) = (cost(*one), cost(*other));
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
        };
        all.filter(takes_all).min_by(by_cost)
    }

    /// The measured problems.
    fn known(&self) -> &[Point] {
        &self.points[..self.measured.problems.len()]
    }

    /// The cost of each kernel on some problems.
    fn costs(&self, points: &[usize]) -> Vec<Cost> {
        let mut costs = vec![Cost::default(); self.measured.kernels.len()];
        for point in points {
            self.add(&mut costs, *point);
        }
        costs
    }

    fn add(&self, costs: &mut [Cost], point: usize) {
        let Point { weight, losses, .. } = &self.points[point];
        for (cost, loss) in costs.iter_mut().zip(losses) {
            match loss {
                Some(loss) => cost.sum += loss * weight,
                None => cost.lost += 1,
            }
        }
    }

    /// The cheapest kernel that has times for all measured problems, and its cost; infinite if there is none. The cost
    /// includes problems beyond the kernel's limits, although its rule will exclude them. Otherwise no single split
    /// would improve on a kernel that is limited along two extents.
    fn best(&self, costs: &[Cost]) -> (f64, Option<usize>) {
        let able = (0..costs.len()).filter(|kernel| costs[*kernel].lost == 0 && !self.banned[*kernel]);
        let best = able.min_by(|one, other| costs[*one].sum.total_cmp(&costs[*other].sum));
        best.map_or((f64::INFINITY, None), |kernel| (costs[kernel].sum.max(0.0), Some(kernel)))
    }

    fn value(&self, feature: Feature, point: usize) -> u64 {
        let problem = &self.points[point].problem;
        match feature {
            Feature::M => problem.m,
            Feature::N => problem.n,
            Feature::K => problem.k,
            Feature::Tiles(of) => {
                let tiles = Tiles { of, at_least: None, at_most: None };
                tiles.count(extents(problem)).unwrap_or(u64::MAX)
            }
        }
    }

    /// The quantities to split by: M, N, K and, if enabled, the number of tiles of each kernel's tile size.
    fn features(&self) -> Vec<Feature> {
        let mut features = vec![Feature::M, Feature::N, Feature::K];
        if self.options.counts_tiles {
            let sizes: BTreeSet<[u64; 2]> = self
                .measured
                .kernels
                .iter()
                .map(|kernel| match kernel {
                    Kernel::Cutlass(it) => [u64::from(it.tile[0]), u64::from(it.tile[1])],
                    Kernel::Hopper(it) => it.tile.map(u64::from),
                })
                .collect();
            features.extend(sizes.into_iter().map(Feature::Tiles));
        }
        features
    }

    /// The candidate bounds for some problems: geometric means of neighbouring values, and limits of kernels. For
    /// numbers of tiles, only measured problems are used, because the estimated ones have too many values.
    fn thresholds(&self, feature: Feature, points: &[usize]) -> BTreeSet<u64> {
        let axis = match feature {
            Feature::M => Some(0),
            Feature::N => Some(1),
            Feature::K => Some(2),
            Feature::Tiles(_) => None,
        };
        let counts = |point: &&usize| axis.is_some() || **point < self.known().len();
        let values: BTreeSet<u64> =
            points.iter().filter(counts).map(|point| self.value(feature, *point)).collect();
        let values: Vec<u64> = values.into_iter().collect();
        let mean = |pair: &[u64]| (pair[0] as f64 * pair[1] as f64).sqrt() as u64;
        let mut thresholds: BTreeSet<u64> =
            values.windows(2).map(|pair| mean(pair).clamp(pair[0], pair[1] - 1)).collect();
        let (Some(axis), Some(first)) = (axis, values.first()) else { return thresholds };
        let limits = self.limits.iter().filter_map(|limits| limits[axis]);
        // A limit at or above all values separates no problems, but a kernel may need it as a bound.
        thresholds.extend(limits.filter(|limit| first <= limit && *limit < MOST));
        thresholds
    }

    /// The rules: the leaves of the tree in order, pruned. The first rule that matches applies, so upper bounds
    /// suffice.
    pub fn rules(&self, default: usize) -> Vec<Bounded> {
        let all: Vec<usize> = (0..self.points.len()).collect();
        let mut rules = Vec::new();
        self.grow(&all, Condition::default(), self.measured.problems.len() * 2 + 8, &mut rules);
        // The last leaf has no bounds. Its rule requires known extents; problems with unknown ones get the default.
        for rule in &mut rules {
            if rule.bounds == Condition::default() {
                let known = Some(Bounds::default());
                rule.bounds = Condition { m: known, n: known, k: known, ..Condition::default() };
            }
        }
        self.prune(&mut rules, default);
        rules
    }

    fn grow(&self, points: &[usize], bounds: Condition, depth: usize, rules: &mut Vec<Bounded>) {
        if points.is_empty() {
            return;
        }
        let (cost, kernel) = self.best(&self.costs(points));
        let loses = |kernel: usize, it: usize| {
            self.points[it].losses[kernel].is_none_or(|loss| loss > self.options.margin)
        };
        let known = || points.iter().copied().filter(|it| *it < self.known().len());
        let is_good = kernel.is_some_and(|kernel| !known().any(|it| loses(kernel, it)));
        let is_done = depth == 0 || (is_good && cost <= self.gain());
        let split = if is_done { None } else { self.split(points, &bounds) };
        if let Some(split) = split
            && (!is_good || (split.unserved == 0 && cost - split.cost > self.gain()))
        {
            self.grow(&split.yes, split.inside, depth - 1, rules);
            self.grow(&split.no, bounds, depth - 1, rules);
        } else if let Some(kernel) = kernel {
            let able = self.within_limits(kernel, &bounds);
            let beyond: Vec<usize> =
                points.iter().copied().filter(|point| !meets(&able, &self.points[*point].problem)).collect();
            if beyond.len() < points.len() {
                rules.push(Bounded { bounds: able, kernel });
                self.grow(&beyond, bounds, depth.saturating_sub(1), rules);
            }
        }
    }

    /// The weighted loss that a rule must save.
    fn gain(&self) -> f64 {
        self.options.gain * self.total_weight
    }

    /// The cheapest split. Ties go to M, then N, K, and numbers of tiles.
    fn split(&self, points: &[usize], bounds: &Condition) -> Option<Split> {
        let all = self.costs(points);
        // Sides without a kernel, cost, quantity, bounds of the inner side, problems inside.
        let mut best: Option<(usize, f64, Feature, Condition, usize)> = None;
        let mut ordered: Vec<(u64, usize)> = Vec::new();
        for feature in self.features() {
            ordered.clear();
            ordered.extend(points.iter().map(|point| (self.value(feature, *point), *point)));
            ordered.sort_unstable();
            let (mut inside_costs, mut count) = (self.costs(&[]), 0);
            for threshold in self.thresholds(feature, points) {
                while let Some((_, point)) = ordered.get(count).filter(|(value, _)| *value <= threshold) {
                    self.add(&mut inside_costs, *point);
                    count += 1;
                }
                let Some(inside) = narrowed(bounds, feature, threshold) else { continue };
                let outside_costs: Vec<Cost> = all
                    .iter()
                    .zip(&inside_costs)
                    .map(|(all, inside)| Cost { lost: all.lost - inside.lost, sum: all.sum - inside.sum })
                    .collect();
                let sides = [&inside_costs, &outside_costs].map(|costs| self.best(costs));
                let [one, other] = sides.map(|(_, kernel)| kernel.is_none());
                let is_all = count == points.len();
                if count == 0 || (is_all && one) {
                    continue;
                }
                let unserved = usize::from(one) + usize::from(other && !is_all);
                let cost: f64 =
                    sides.into_iter().filter(|(_, kernel)| kernel.is_some()).map(|(cost, _)| cost).sum();
                let is_better = best.as_ref().is_none_or(|(least_unserved, least, ..)| {
                    unserved < *least_unserved || (unserved == *least_unserved && cost < least - SAME)
                });
                if is_better {
                    best = Some((unserved, cost, feature, inside, count));
                }
            }
        }
        let (unserved, cost, feature, inside, count) = best?;
        ordered.clear();
        ordered.extend(points.iter().map(|point| (self.value(feature, *point), *point)));
        ordered.sort_unstable();
        let mut yes: Vec<usize> = ordered.iter().map(|(_, point)| *point).collect();
        let no = yes.split_off(count);
        Some(Split { cost, unserved, inside, yes, no })
    }

    /// The outcome of the rules for each measured problem.
    pub fn given(&self, rules: &[Bounded], default: usize) -> Vec<Given> {
        self.given_of(self.known(), rules, default)
    }

    fn given_of(&self, points: &[Point], rules: &[Bounded], default: usize) -> Vec<Given> {
        let of = |point: &Point| {
            let rule = rules.iter().position(|rule| meets(&rule.bounds, &point.problem));
            let kernel = rule.map_or(default, |rule| rules[rule].kernel);
            Given { rule, loss: point.losses[kernel].unwrap_or(f64::INFINITY) }
        };
        points.iter().map(of).collect()
    }

    /// Removes rules that are not worth it: without such a rule, no measured problem loses more than before or than the
    /// margin, and the total loss grows by no more than `gain`.
    fn prune(&self, rules: &mut Vec<Bounded>, default: usize) {
        let weighted = |given: &[Given]| -> f64 {
            given.iter().zip(&self.points).map(|(it, point)| it.loss * point.weight).sum()
        };
        let known = self.known().len();
        for position in (0..rules.len()).rev() {
            let mut without = rules.clone();
            without.remove(position);
            let [before, after] =
                [&*rules, &without].map(|rules| self.given_of(&self.points, rules, default));
            let mut pairs = before.iter().zip(&after).take(known);
            let none_loses = pairs.all(|(one, other)| other.loss <= one.loss.max(self.options.margin));
            if none_loses && weighted(&after) - weighted(&before) <= self.gain() {
                *rules = without;
            }
        }
    }
}

/// Adds an upper bound; `None` if it changes nothing or the condition already bounds tiles of another size.
fn narrowed(bounds: &Condition, feature: Feature, most: u64) -> Option<Condition> {
    let mut narrowed = *bounds;
    let lower = |bounds: Option<Bounds>| {
        let most = bounds.and_then(|it| it.max).map_or(most, |max| max.min(most));
        Some(Bounds::up_to(most))
    };
    match feature {
        Feature::M => narrowed.m = lower(bounds.m),
        Feature::N => narrowed.n = lower(bounds.n),
        Feature::K => narrowed.k = lower(bounds.k),
        Feature::Tiles(of) => {
            let most = match bounds.tiles {
                Some(tiles) if tiles.of != of => return None,
                Some(tiles) => tiles.at_most.map_or(most, |it| it.min(most)),
                None => most,
            };
            narrowed.tiles = Some(Tiles { of, at_least: None, at_most: Some(most) });
        }
    }
    (narrowed != *bounds).then_some(narrowed)
}
