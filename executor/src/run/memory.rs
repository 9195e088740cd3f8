//! The memory plan of a prepared program: intermediates and workspaces share memory by liveness.
//!
//! A part is live from the step that first writes it to the step that last reads it. Two parts may share memory if
//! no step is in both of their lifetimes: steps on the caller's stream run in order. Parts of steps on the second
//! stream ([`Branches`]) are live in every step.
//!
//! Programmatic dependent launch keeps this order. A kernel launched with it may begin before the previous kernel has
//! ended, but executes `griddepcontrol.wait` before it reads or writes memory that an earlier launch uses. According
//! to the PTX ISA, this instruction waits until all prerequisite grids have completed and their memory operations are
//! visible. A grid completes only after its own wait, so each wait covers all earlier launches on its
//! stream, not only the previous one. Events order the two streams. `griddepcontrol.launch_dependents` allows the next
//! grid to start; it does not end that grid's wait.

use std::cmp::Reverse;
use std::collections::HashMap;

use fourfold_ir::{Program, SymbolValues, Value};
use fourfold_scheduler::{ConstantPlan, Partition, Plan, ReasonCode};

use super::branches::Branches;
use super::call::bytes;
use super::homes::Homes;
use super::live::{Live, view_of};
use super::{FALLBACK_SEGMENT, Refused};

/// The alignment of each part, equal to that of driver allocations.
pub const PART_ALIGNMENT: u64 = 256;

/// The layout of a prepared program's own memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The parts, in the order in which steps first use them.
    pub parts: Vec<MemoryPart>,
    /// The number of steps.
    pub steps: usize,
    /// The steps that run on a second stream, beside the others, in ascending order.
    pub second_stream: Vec<usize>,
    /// The size of the memory, in bytes.
    pub bytes: u64,
}

/// A part of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// Its content.
    pub content: MemoryContent,
    /// The offset in bytes, a multiple of [`PART_ALIGNMENT`].
    pub offset: u64,
    /// The size in bytes, without padding.
    pub bytes: u64,
    /// The first step that uses it.
    pub first: usize,
    /// The last step that uses it.
    pub last: usize,
}

/// The content of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryContent {
    /// A value that is neither an input nor an output, with its views.
    Value(Value),
    /// The workspace of a segment's kernel.
    Workspace {
        /// The segment's position.
        segment: usize,
    },
    /// A result that does not depend on any element, copied at each launch.
    Constant(Value),
    /// A constant of the program, written once.
    Stored(Value),
}

impl MemoryPart {
    /// The size in bytes, with padding.
    fn padded(&self) -> u64 {
        self.bytes.checked_next_multiple_of(PART_ALIGNMENT).unwrap_or(u64::MAX)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.padded())
    }

    /// True if both are live in one step.
    fn overlaps(&self, other: &MemoryPart) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl MemoryPlan {
    /// The largest number of bytes that are live in one step. No plan needs less.
    pub fn live_bytes(&self) -> u64 {
        // By step: the bytes of parts that begin there, and of those that ended before.
        let mut changes = vec![(0u64, 0u64); self.steps + 2];
        for part in &self.parts {
            changes[part.first].0 = changes[part.first].0.saturating_add(part.padded());
            changes[part.last + 1].1 = changes[part.last + 1].1.saturating_add(part.padded());
        }
        let (mut live, mut most) = (0u64, 0);
        for (begun, ended) in changes {
            live = live.saturating_sub(ended).saturating_add(begun);
            most = most.max(live);
        }
        most
    }

    /// The bytes of all parts, as if none shared memory.
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().map(MemoryPart::padded).fold(0, u64::saturating_add)
    }
}

/// The lifetimes of parts, in the order of the steps that first use them.
#[derive(Default)]
pub(super) struct Lifetimes {
    parts: Vec<MemoryPart>,
    of_value: HashMap<Value, usize>,
    /// The parts that are live in every step.
    kept: Vec<usize>,
    branches: Branches,
}

impl Lifetimes {
    fn add(&mut self, content: MemoryContent, bytes: u64, step: usize) -> usize {
        self.parts.push(MemoryPart { content, offset: 0, bytes, first: step, last: step });
        self.parts.len() - 1
    }

    /// Records that a step writes a value, which gets a part unless it is in the caller's memory.
    pub(super) fn write(&mut self, value: Value, bytes: u64, step: usize, is_outside: bool) {
        self.branches.write(step, value, bytes);
        if !is_outside {
            let part = self.add(MemoryContent::Value(value), bytes, step);
            self.of_value.insert(value, part);
        }
    }

    /// Records that a step reads a value. Values without a part are in the caller's memory.
    pub(super) fn read(&mut self, value: Value, bytes: u64, step: usize) {
        self.branches.read(step, value, bytes);
        if let Some(part) = self.of_value.get(&value) {
            self.parts[*part].last = step;
        }
    }

    /// Records a write that adds no part.
    pub(super) fn fill(&mut self, value: Value, bytes: u64, step: usize) {
        self.branches.write(step, value, bytes);
    }

    /// Records that a step launches a kernel, or calls the vendor's library.
    pub(super) fn launch(&mut self, step: usize) {
        self.branches.launch(step);
    }

    /// Adds the workspace of a step's kernel, and returns its part. If `kept`, its content lasts between launches.
    pub(super) fn workspace(&mut self, segment: usize, bytes: u64, step: usize, kept: bool) -> usize {
        let part = self.add(MemoryContent::Workspace { segment }, bytes, step);
        if kept {
            self.kept.push(part);
        }
        part
    }

    /// Adds a constant, which is live in every step, and returns its part.
    pub(super) fn constant(&mut self, value: Value, bytes: u64) -> usize {
        let part = self.add(MemoryContent::Constant(value), bytes, 0);
        self.kept.push(part);
        part
    }

    /// Adds a constant of the program, which is live in every step, and returns its part.
    pub(super) fn stored(&mut self, value: Value, bytes: u64) -> usize {
        let part = self.add(MemoryContent::Stored(value), bytes, 0);
        self.kept.push(part);
        part
    }

    /// Assigns an offset to each part: the largest first, each in the smallest gap that fits between the parts that
    /// are live together with it.
    pub(super) fn assign(self, steps: usize) -> MemoryPlan {
        let second_stream = self.branches.second_stream(steps);
        let mut parts = self.parts;
        let unordered =
            (0..parts.len()).filter(|part| second_stream.binary_search(&parts[*part].first).is_ok());
        for part in unordered.chain(self.kept).collect::<Vec<_>>() {
            (parts[part].first, parts[part].last) = (0, steps.saturating_sub(1));
        }
        let mut order: Vec<usize> = (0..parts.len()).filter(|part| parts[*part].bytes > 0).collect();
        order.sort_by_key(|part| (Reverse(parts[*part].padded()), parts[*part].first, *part));
        // The parts with an offset, by offset.
        let mut placed: Vec<usize> = Vec::with_capacity(order.len());
        for part in order {
            let offset = best_fit(&parts, &placed, &parts[part]);
            parts[part].offset = offset;
            placed.insert(placed.partition_point(|other| parts[*other].offset <= offset), part);
        }
        let bytes = placed.iter().map(|part| parts[*part].end()).max().unwrap_or(0);
        MemoryPlan { parts, steps, second_stream, bytes }
    }
}

/// The offset of the smallest gap for a part, or of the end of all parts that are live together with it.
fn best_fit(parts: &[MemoryPart], placed: &[usize], part: &MemoryPart) -> u64 {
    let mut best: Option<(u64, u64)> = None;
    let mut end = 0;
    for other in placed.iter().map(|other| &parts[*other]).filter(|other| other.overlaps(part)) {
        let gap = other.offset.saturating_sub(end);
        if part.padded() <= gap && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, end));
        }
        end = end.max(other.end());
    }
    best.map_or(end, |(_, offset)| offset)
}

/// Plans the memory of a program's intermediates, without kernels. Workspaces are missing: only kernels know their
/// sizes.
///
/// # Errors
/// When a segment runs on the fallback, or a value has no size: an extent is missing or too large.
pub fn plan_memory(
    program: &Program,
    partition: &Partition,
    symbols: &SymbolValues,
) -> Result<MemoryPlan, Refused> {
    let module = program.module();
    let segments = 0..partition.segments.len();
    let live = Live::of(program, partition, symbols);
    let views = live.views(partition, segments, symbols);
    let homes = Homes::of(&views, &module.inputs, &module.outputs);
    let mut lifetimes = Lifetimes::default();
    let mut steps = 0;
    for (position, segment) in partition.segments.iter().enumerate() {
        if !live.has_segment(position) {
            continue;
        }
        let plan = segment.plan().ok_or_else(|| on_fallback(position))?;
        if let Some(view) = view_of(plan, symbols) {
            if let Some((from, to)) = homes.copy(&view) {
                let bytes = size(program, to, symbols, Some(position))?;
                if bytes > 0 {
                    lifetimes.read(from, bytes, steps);
                    lifetimes.write(to, bytes, steps, true);
                    steps += 1;
                }
            }
            continue;
        }
        if let Plan::Constant(ConstantPlan { result, .. }) = plan {
            let bytes = size(program, *result, symbols, Some(position))?;
            lifetimes.stored(*result, bytes);
            if homes.is_outside(*result) && bytes > 0 {
                lifetimes.fill(homes.home(*result), bytes, steps);
                steps += 1;
            }
            continue;
        }
        let roles = plan.roles();
        for (_, value) in roles.operands.iter().chain(&roles.scalars) {
            let bytes = bytes(program, *value, symbols).unwrap_or(0);
            lifetimes.read(homes.home(*value), bytes, steps);
        }
        for value in plan.written() {
            let bytes = size(program, value, symbols, Some(position))?;
            lifetimes.write(homes.home(value), bytes, steps, homes.is_outside(value));
        }
        lifetimes.launch(steps);
        steps += 1;
    }
    Ok(lifetimes.assign(steps))
}

/// The refusal of a segment that runs on the fallback.
pub(super) fn on_fallback(position: usize) -> Refused {
    let message = format!("segment {position} runs on the fallback; run such programs with `run`");
    Refused::new(FALLBACK_SEGMENT, Some(position), message)
}

/// Returns the bytes of a value.
///
/// # Errors
/// If the extent of one of its symbols is missing, or if no tensor can be that large.
pub(super) fn size(
    program: &Program,
    value: Value,
    symbols: &SymbolValues,
    segment: Option<usize>,
) -> Result<u64, Refused> {
    bytes(program, value, symbols).ok_or_else(|| {
        let (module, name) = (program.module(), program.module().name_of(value));
        let mut used = module.ty(value).shape.iter().flat_map(|dim| dim.symbols());
        let message = match used.find(|symbol| symbols.get(**symbol).is_none()) {
            Some(symbol) => {
                let symbol = &module.symbols[*symbol];
                format!("`%{name}` has no size without an extent of the symbol `{symbol}`; give it one")
            }
            None => format!("`%{name}` is too large: with these extents, its bytes exceed the address space"),
        };
        Refused::new(ReasonCode::ExtentRange.as_str(), segment, message)
    })
}

#[cfg(test)]
mod tests {
    use fourfold_ir::Entity;
    use proptest::prelude::*;

    use super::*;

    /// Up to 40 steps, each of which writes up to 3 values of these sizes, and reads values written before.
    fn programs() -> impl Strategy<Value = Vec<(Vec<u64>, Vec<usize>, u64)>> {
        let bytes = prop_oneof![Just(0), 1..5000u64, Just(256), Just(257), Just(1 << 20)];
        let step = (prop::collection::vec(bytes, 0..3), prop::collection::vec(0..100usize, 0..4), 0..3000u64);
        prop::collection::vec(step, 0..40)
    }

    fn planned(steps: &[(Vec<u64>, Vec<usize>, u64)]) -> MemoryPlan {
        let mut lifetimes = Lifetimes::default();
        let mut values = 0;
        for (step, (written, read, workspace)) in steps.iter().enumerate() {
            for value in read.iter().filter(|_| values > 0) {
                lifetimes.read(Value::from_index(value % values), 1, step);
            }
            for bytes in written {
                lifetimes.write(Value::from_index(values), *bytes, step, false);
                values += 1;
            }
            lifetimes.workspace(step, *workspace, step, step % 7 == 3);
            if step % 3 > 0 {
                lifetimes.launch(step);
            }
        }
        if values > 0 {
            lifetimes.constant(Value::from_index(values), 5);
        }
        lifetimes.assign(steps.len())
    }

    proptest! {
        #[test]
        fn parts_that_are_live_together_do_not_overlap(steps in programs()) {
            let plan = planned(&steps);
            for (index, part) in plan.parts.iter().enumerate() {
                prop_assert!(part.offset % PART_ALIGNMENT == 0 && part.first <= part.last);
                prop_assert!(part.bytes == 0 || part.offset + part.bytes <= plan.bytes);
                for other in plan.parts[..index].iter().filter(|other| other.overlaps(part)) {
                    let apart = part.offset + part.bytes <= other.offset || other.offset + other.bytes <= part.offset;
                    prop_assert!(apart || part.bytes == 0 || other.bytes == 0, "{part:?} and {other:?}");
                }
            }
            prop_assert!(plan.live_bytes() <= plan.bytes && plan.bytes <= plan.total_bytes());
            // Some byte is in use at the end of the memory.
            prop_assert!(plan.bytes == 0 || plan.parts.iter().any(|part| part.end() == plan.bytes));
        }
    }

    #[test]
    fn a_chain_needs_two_values_at_once() {
        const STEPS: usize = 50;
        let mut lifetimes = Lifetimes::default();
        for step in 0..STEPS {
            if step > 0 {
                lifetimes.read(Value::from_index(step - 1), 1000, step);
            }
            lifetimes.write(Value::from_index(step), 1000, step, false);
        }
        let plan = lifetimes.assign(STEPS);
        assert_eq!((plan.bytes, plan.live_bytes(), plan.total_bytes()), (2048, 2048, 50 * 1024));
    }

    #[test]
    fn sizes_beyond_64_bits_end_in_a_plan_that_no_device_holds() {
        let mut lifetimes = Lifetimes::default();
        for value in 0..3 {
            lifetimes.write(Value::from_index(value), u64::MAX - 7, 0, false);
        }
        let plan = lifetimes.assign(1);
        assert_eq!((plan.bytes, plan.live_bytes(), plan.total_bytes()), (u64::MAX, u64::MAX, u64::MAX));
    }
}
