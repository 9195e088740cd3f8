//! Branches of a prepared program: the connected components of its steps. Short branches run on a second stream,
//! concurrently with the others.
//!
//! A launch of a few rows takes microseconds and leaves most of the GPU idle. So two branches take less time at once
//! than one after the other. Launches that move much memory fill the GPU alone, and stay on one stream.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use fourfold_ir::Value;
use petgraph::unionfind::UnionFind;

/// The most bytes that all steps on the second stream read and write. An H200 moves as many in four microseconds,
/// about as long as a launch takes. No other limit was measured.
const MOST_BYTES: u64 = 16 << 20;

/// The steps of a prepared program, with the memory that they have in common.
#[derive(Default)]
pub(super) struct Branches {
    steps: Vec<Step>,
    /// By value that a step writes: that step.
    writers: HashMap<Value, usize>,
    /// Pairs of steps, of which one writes a value that the other reads or writes.
    related: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Default)]
struct Step {
    launches: usize,
    bytes: u64,
}

impl Branches {
    fn step(&mut self, step: usize) -> &mut Step {
        if self.steps.len() <= step {
            self.steps.resize(step + 1, Step::default());
        }
        &mut self.steps[step]
    }

    fn touch(&mut self, step: usize, value: Value, bytes: u64) {
        let used = self.step(step);
        used.bytes = used.bytes.saturating_add(bytes);
        if let Some(writer) = self.writers.get(&value) {
            self.related.push((*writer, step));
        }
    }

    /// Records that a step reads a value. Every step that writes it was recorded before.
    pub(super) fn read(&mut self, step: usize, value: Value, bytes: u64) {
        self.touch(step, value, bytes);
    }

    /// Records that a step writes a value.
    pub(super) fn write(&mut self, step: usize, value: Value, bytes: u64) {
        self.touch(step, value, bytes);
        self.writers.entry(value).or_insert(step);
    }

    /// Records that a step launches a kernel, or calls the vendor's library.
    pub(super) fn launch(&mut self, step: usize) {
        self.step(step).launches += 1;
    }

    /// The steps for the second stream, in ascending order; none if all depend on each other, or if the shorter
    /// branches move much memory. `steps` is the number of all steps.
    pub(super) fn second_stream(mut self, steps: usize) -> Vec<usize> {
        self.steps.resize(steps, Step::default());
        let mut union = UnionFind::new(steps);
        for (one, other) in self.related.into_iter().filter(|(one, other)| *one.max(other) < steps) {
            union.union(one, other);
        }
        // By the representative of a branch: what its steps do together.
        let mut branches: HashMap<usize, Step> = HashMap::new();
        for (index, step) in self.steps.iter().enumerate() {
            let branch = branches.entry(union.find(index)).or_default();
            branch.launches += step.launches;
            branch.bytes = branch.bytes.saturating_add(step.bytes);
        }
        let mut order: Vec<(usize, Step)> = branches.into_iter().collect();
        order.sort_by_key(|(first, branch)| (Reverse((branch.launches, branch.bytes)), *first));
        let (mut of_first, mut of_second) = (Step::default(), Step::default());
        let mut second = HashSet::new();
        for (representative, branch) in order {
            let bytes = of_second.bytes.saturating_add(branch.bytes);
            let is_second =
                branch.launches > 0 && of_second.launches < of_first.launches && bytes <= MOST_BYTES;
            let stream = if is_second { &mut of_second } else { &mut of_first };
            stream.launches += branch.launches;
            stream.bytes = stream.bytes.saturating_add(branch.bytes);
            if is_second {
                second.insert(representative);
            }
        }
        (0..steps).filter(|step| second.contains(&union.find(*step))).collect()
    }
}

#[cfg(test)]
mod tests {
    use fourfold_ir::Entity;

    use super::*;

    /// Each step reads some values, and writes the value of its own number, all of this many bytes.
    fn second_stream(steps: &[&[usize]], bytes: u64) -> Vec<usize> {
        let mut branches = Branches::default();
        for (step, reads) in steps.iter().enumerate() {
            for value in *reads {
                branches.read(step, Value::from_index(*value), bytes);
            }
            branches.write(step, Value::from_index(step), bytes);
            branches.launch(step);
        }
        branches.second_stream(steps.len())
    }

    #[test]
    fn the_shorter_of_two_branches_is_on_the_second_stream() {
        const INPUT: usize = 100;
        assert_eq!(second_stream(&[&[INPUT], &[INPUT], &[0], &[1], &[3]], 1000), [0, 2]);
        assert_eq!(second_stream(&[&[INPUT], &[INPUT]], 1000).len(), 1);
        // Each takes the stream with fewer launches.
        assert_eq!(second_stream(&[&[], &[0], &[1], &[], &[3], &[], &[]], 1000), [3, 4, 5]);
    }

    #[test]
    fn steps_that_depend_on_each_other_stay_on_one_stream() {
        assert_eq!(second_stream(&[&[], &[0], &[0], &[1, 2]], 1000), [0usize; 0]);
        assert_eq!(second_stream(&[&[], &[], &[0, 1]], 1000), [0usize; 0]);
        assert_eq!(second_stream(&[], 1000), [0usize; 0]);
        assert_eq!(second_stream(&[&[]], 1000), [0usize; 0]);
    }

    #[test]
    fn branches_that_move_much_memory_stay_on_one_stream() {
        assert_eq!(second_stream(&[&[], &[]], MOST_BYTES).len(), 1);
        assert_eq!(second_stream(&[&[], &[]], MOST_BYTES + 1), [0usize; 0]);
        assert_eq!(second_stream(&[&[], &[]], u64::MAX), [0usize; 0]);
        assert_eq!(second_stream(&[&[], &[], &[], &[]], MOST_BYTES / 2 + 1).len(), 1);
    }

    #[test]
    fn steps_that_write_one_value_depend_on_each_other() {
        let mut branches = Branches::default();
        let value = Value::from_index(7);
        for step in 0..3 {
            branches.write(step, value, 8);
            branches.launch(step);
        }
        branches.write(3, Value::from_index(8), 8);
        // A copy alone is no reason for a second stream.
        assert_eq!(branches.second_stream(4), [0usize; 0]);
    }
}
