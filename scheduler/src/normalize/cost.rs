//! The cost of a term, including everything below it.
//!
//! Costs are compared field by field, in this order:
//! 1. Multiplications that have no kernel (`mma`).
//! 2. Ops. An elementwise op outside of kernels counts twice: reshaping its operand is worth a kernel.
//! 3. Elements that elementwise ops compute.
//! 4. Bytes moved between ops.
//! 5. Ops that the program does not yet contain.
//!
//! A term used twice contributes twice.

use std::collections::HashMap;

use egg::{CostFunction, Id};
use fourfold_ir::{Dim, TensorType};

use super::language::{Term, Terms, type_of};

/// The cost of a term and everything below it. Fields are compared from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Cost {
    multiplications: u64,
    ops: u64,
    elements: u64,
    bytes: u64,
    created: u64,
    /// True unless the term ends a chain of ops that a kernel computes. The next op then reads it from
    /// memory.
    unfused: bool,
}

pub(crate) struct Costs<'a> {
    pub(crate) egraph: &'a Terms,
    /// The terms that rules added.
    pub(crate) created: &'a HashMap<Term, usize>,
}

impl CostFunction<Term> for Costs<'_> {
    type Cost = Cost;

    fn cost<C: FnMut(Id) -> Cost>(&mut self, term: &Term, mut costs: C) -> Cost {
        let mut cost = Cost { unfused: true, ..Cost::default() };
        if let Term::Leaf(leaf) = term {
            // A constant is an op that disappears with its last user.
            cost.ops = u64::from(self.egraph.analysis.leaves[leaf.0].splat.is_some());
        }
        if !term.is_op() {
            return cost;
        }
        let mut joins = matches!(term, Term::ScaledMma(_));
        for operand in term.operands() {
            let below = costs(*operand);
            cost.multiplications = cost.multiplications.saturating_add(below.multiplications);
            cost.ops = cost.ops.saturating_add(below.ops);
            cost.elements = cost.elements.saturating_add(below.elements);
            cost.bytes = cost.bytes.saturating_add(below.bytes);
            cost.created = cost.created.saturating_add(below.created);
            joins |= term.is_elementwise() && !below.unfused;
        }
        let weight = if term.is_elementwise() && !joins { 2 } else { 1 };
        cost.ops = cost.ops.saturating_add(weight);
        cost.multiplications = cost.multiplications.saturating_add(u64::from(matches!(term, Term::Mma(_))));
        cost.created = cost.created.saturating_add(u64::from(self.created.contains_key(term)));
        let result = self.egraph.lookup(term.clone());
        if term.is_elementwise() {
            let computed = result.and_then(|class| type_of(self.egraph, class)).map_or(0, elements);
            cost.elements = cost.elements.saturating_add(computed);
        }
        if !joins {
            let moved = |class: Id| type_of(self.egraph, class).map_or(0, bytes);
            let read = term.operands().iter().map(|operand| moved(*operand)).fold(0, u64::saturating_add);
            let written = result.map_or(0, moved);
            cost.bytes = cost.bytes.saturating_add(read).saturating_add(written);
        }
        cost.unfused = !joins;
        cost
    }
}

/// The approximate number of bytes in a value.
fn bytes(ty: &TensorType) -> u64 {
    elements(ty).saturating_mul(ty.element.storage_bits() as u64).div_ceil(8)
}

/// The approximate number of elements in a value.
fn elements(ty: &TensorType) -> u64 {
    /// The assumed value of a symbol.
    const USUAL: u64 = 256;
    let extent =
        |dim: &Dim| dim.symbols().iter().fold(dim.constant(), |extent, _| extent.saturating_mul(USUAL));
    ty.shape.iter().map(extent).fold(1, u64::saturating_mul)
}
