//! The cost of a term with everything below it.
//!
//! Compared first is the number of multiplications that no kernel takes (`mma`), then that of ops, then the elements
//! that elementwise ops compute, then the bytes moved between ops, then the number of ops that the program does not have
//! yet. A term used twice counts twice.

use std::collections::HashMap;

use egg::{CostFunction, Id};
use fourfold_ir::{Dim, TensorType};

use super::language::{Term, Terms, type_of};

/// What a term costs with everything below it, compared from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Cost {
    multiplications: u64,
    ops: u64,
    elements: u64,
    bytes: u64,
    created: u64,
    /// Not the end of a chain of ops that a kernel computes, so that what follows reads it from memory.
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
            // A constant is an op that goes with its last user.
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
        cost.ops = cost.ops.saturating_add(1);
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

/// About how many bytes a value has.
fn bytes(ty: &TensorType) -> u64 {
    elements(ty).saturating_mul(ty.element.storage_bits() as u64).div_ceil(8)
}

/// About how many elements a value has.
fn elements(ty: &TensorType) -> u64 {
    /// What an extent is taken for that is known at run time only.
    const USUAL: u64 = 256;
    let extent =
        |dim: &Dim| dim.symbols().iter().fold(dim.constant(), |extent, _| extent.saturating_mul(USUAL));
    ty.shape.iter().map(extent).fold(1, u64::saturating_mul)
}
