//! The memory that holds each value of a prepared program.

use std::collections::{HashMap, HashSet};

use fourfold_ir::Value;
use fourfold_scheduler::ViewPlan;

/// The memory of each value: its own, or that of another value with the same bytes.
///
/// A view has the memory of its operand. If a kernel writes the operand, and a view of it is an output, then the kernel
/// writes to the output's memory. An output that is a view of an input, or of another output, is a copy.
#[derive(Debug, Default)]
pub(super) struct Homes {
    /// The value whose memory holds this one; absent for values that have their own.
    homes: HashMap<Value, Value>,
    /// The value that each view has the bytes of, which is no view.
    roots: HashMap<Value, Value>,
    /// The values in the caller's memory.
    outside: HashSet<Value>,
}

impl Homes {
    /// Finds the memory of all values, given the views among them in order.
    pub(super) fn of(views: &[ViewPlan], inputs: &[Value], outputs: &[Value]) -> Homes {
        let mut roots: HashMap<Value, Value> = HashMap::new();
        for view in views {
            let root = roots.get(&view.operand).copied().unwrap_or(view.operand);
            roots.insert(view.result, root);
        }
        let outside: HashSet<Value> = inputs.iter().chain(outputs).copied().collect();
        // The first output that is a view of a value without memory of its own.
        let mut written: HashMap<Value, Value> = HashMap::new();
        for output in outputs {
            if let Some(root) = roots.get(output)
                && !outside.contains(root)
            {
                written.entry(*root).or_insert(*output);
            }
        }
        let mut homes = HashMap::new();
        for (value, root) in &roots {
            if !outside.contains(value) {
                homes.insert(*value, written.get(root).copied().unwrap_or(*root));
            }
        }
        homes.extend(written.iter().map(|(root, output)| (*root, *output)));
        Homes { homes, roots, outside }
    }

    /// The value whose memory holds a value.
    pub(super) fn home(&self, value: Value) -> Value {
        self.homes.get(&value).copied().unwrap_or(value)
    }

    /// True if a value is in the caller's memory.
    pub(super) fn is_outside(&self, value: Value) -> bool {
        self.outside.contains(&self.home(value))
    }

    /// The copy that a view needs, from the memory of one value to that of another.
    pub(super) fn copy(&self, view: &ViewPlan) -> Option<(Value, Value)> {
        let root = self.roots.get(&view.result).copied().unwrap_or(view.operand);
        let (from, to) = (self.home(root), self.home(view.result));
        (from != to).then_some((from, to))
    }
}
