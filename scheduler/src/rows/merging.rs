//! Merges whole regions: one into the only region that uses its values, and siblings that read the same matrix.

use fourfold_ir::{Entity, Op, Value};

use super::forming::{Former, Unit, is_in, written};
use super::shapes::Place;
use crate::plan::RowShape;

impl Former<'_> {
    /// Merges each region into the only region that uses its values, if both have one space. A region reads units of
    /// smaller depth only, and nothing else waits for the merged one.
    pub(super) fn merge_into_users(&mut self) {
        let mut order: Vec<usize> = (0..self.regions.len()).collect();
        order.sort_by_key(|region| {
            std::cmp::Reverse((self.regions[*region].stage, self.regions[*region].depth))
        });
        for region in order {
            if let Some(user) = self.only_reader(region)
                && self.can_merge_into(region, user)
            {
                self.merge(region, user);
                let (program, places, merged) = (self.program, &self.places, &self.merged);
                let is_inside = |value: Value| is_in(program, places, merged, value, &[user]);
                self.regions[user].reads.retain(|(value, _)| !is_inside(*value));
            }
        }
    }

    /// The only region of the same stage whose ops use the values of a region.
    fn only_reader(&self, region: usize) -> Option<usize> {
        let module = self.program.module();
        let facts = self.program.facts();
        let mut only = None;
        for op in &self.regions[region].ops {
            for value in &module.ops[*op].results {
                if facts.is_output(*value) || facts.users(*value).is_empty() {
                    return None;
                }
                for user in facts.users(*value) {
                    let Unit::Region(of) = self.places[user.index()] else { return None };
                    let of = self.root(of);
                    if of != region && *only.get_or_insert(of) != of {
                        return None;
                    }
                }
            }
        }
        only.filter(|user| self.regions[*user].stage == self.regions[region].stage)
    }

    fn can_merge_into(&self, region: usize, user: usize) -> bool {
        let (from, into) = (&self.regions[region], &self.regions[user]);
        if from.space != into.space || from.is_static != into.is_static || from.ops.is_empty() {
            return false;
        }
        let reads_well = |op: &Op| {
            let Some(needs) = self.needs(*op, &into.space) else { return false };
            needs.reads.iter().enumerate().all(|(at, (value, place))| {
                !self.is_in(*value, &[region]) || self.can_read(*op, at, *value, place, &into.space)
            })
        };
        self.has_room(&[region, user], std::iter::empty(), 0, None) && into.ops.iter().all(reads_well)
    }

    /// Merges regions of one stage, depth and space that read the same matrix, so that it is read once. None of them
    /// waits for another.
    pub(super) fn merge_siblings(&mut self) {
        // By value: groups of regions.
        let mut readers: Vec<Vec<Vec<usize>>> = vec![Vec::new(); self.program.module().values.len()];
        let mut order: Vec<(Value, usize)> = Vec::new();
        for (position, region) in self.regions.iter().enumerate().filter(|(_, region)| !region.ops.is_empty())
        {
            for (value, _) in region.reads.iter().filter(|(_, place)| *place == Place::of(RowShape::Matrix)) {
                let groups = &mut readers[value.index()];
                let same = |group: &Vec<usize>| {
                    let other = &self.regions[group[0]];
                    (other.stage, other.depth, other.is_static)
                        == (region.stage, region.depth, region.is_static)
                        && other.space == region.space
                };
                match groups.iter().rposition(same) {
                    Some(group) => groups[group].push(position),
                    None => {
                        order.push((*value, groups.len()));
                        groups.push(vec![position]);
                    }
                }
            }
        }
        let groups =
            order.into_iter().map(|(value, group)| std::mem::take(&mut readers[value.index()][group]));
        let groups: Vec<Vec<usize>> = groups.filter(|group| group.len() > 1).collect();
        for group in groups {
            let mut into = self.root(group[0]);
            for other in &group[1..] {
                let other = self.root(*other);
                if other == into {
                    continue;
                }
                let mut ops = [&self.regions[into].ops[..], &self.regions[other].ops[..]].concat();
                ops.sort_unstable();
                let fits = written(self.program, &ops) <= self.capability.max_outputs;
                if fits && self.has_room(&[into, other], std::iter::empty(), 0, None) {
                    self.merge(other, into);
                } else {
                    into = other;
                }
            }
        }
    }
}
