//! A multiplication with its surroundings as an expression.

use egg::{Id, RecExpr};

use super::language::{LeafInfo, Term};

/// A region as rules see it: canonical, so that equal regions are equal here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expression {
    /// The nodes.
    pub(crate) nodes: RecExpr<Term>,
    /// The ops, each after those that it uses.
    pub(crate) ops: Vec<Member>,
    /// What is known of the leaves.
    pub(crate) leaves: Vec<LeafInfo>,
}

/// An op of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    /// Its term.
    pub(crate) term: Id,
    /// Whether its result must exist: something outside the region uses it.
    pub(crate) exported: bool,
    /// Whether the program returns its result, so that the name must exist.
    pub(crate) output: bool,
    /// Whether something besides one op sees its result.
    pub(crate) shared: bool,
}
