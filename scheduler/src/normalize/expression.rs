//! A multiplication with its surrounding ops, as an expression.

use egg::{Id, RecExpr};

use super::language::{LeafInfo, Term};

/// A region in the form that rules rewrite. Canonical: equal regions have equal expressions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expression {
    /// The terms.
    pub(crate) nodes: RecExpr<Term>,
    /// The ops, each after its operands.
    pub(crate) ops: Vec<Member>,
    /// The properties of the leaves.
    pub(crate) leaves: Vec<LeafInfo>,
}

/// An op of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    /// Its term.
    pub(crate) term: Id,
    /// True if something outside the region uses its result, so the result must exist.
    pub(crate) exported: bool,
    /// True if the program returns its result, so the name must exist.
    pub(crate) output: bool,
    /// True if several ops, or an op and the caller, use its result.
    pub(crate) shared: bool,
}
