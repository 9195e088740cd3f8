//! A `scaled_mma` and what follows it as an expression: what rules rewrite, and what trimming decides on.

use egg::{Id, RecExpr};
use fourfold_ir::{ElementType, FormatCapability, OperandShape, QuantizedCapability, ReduceKind};

use crate::language::KernelTerm;

/// A region as rules see it. Canonical: equal regions have equal expressions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expression {
    /// The nodes.
    pub(crate) nodes: RecExpr<KernelTerm>,
    /// The ops, the `scaled_mma` first; each after those that it uses.
    pub(crate) members: Vec<Member>,
    /// The types.
    pub(crate) types: TypeEnvironment,
}

/// An op of a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    /// Its term.
    pub(crate) term: Id,
    /// Whether no other member can use its results.
    pub(crate) sink: bool,
    /// Its operands; empty for the `scaled_mma`.
    pub(crate) operands: Vec<Source>,
    /// How many results it has.
    pub(crate) tensors: usize,
    /// Whether a result has to be written even when every member is in the kernel.
    pub(crate) seen: bool,
}

/// An operand of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The result of an earlier member.
    Member(usize),
    /// A value from outside.
    Leaf(usize),
}

/// Everything besides its nodes and the target that the rewriting of a region depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TypeEnvironment {
    /// By leaf.
    pub(crate) leaves: Vec<Type>,
    /// The element type of the `scaled_mma`.
    pub(crate) accumulator: ElementType,
    /// The element types of results whose rule for N this region's N can meet.
    pub(crate) writable: Vec<ElementType>,
    /// The element types of matrices whose rule for N this region's N can meet.
    pub(crate) matrices: Vec<ElementType>,
    /// The formats of blocks whose rule for N this region's N can meet.
    pub(crate) quantized: Vec<QuantizedCapability>,
    /// The reductions that this region's M and L allow.
    pub(crate) reductions: Vec<ReduceKind>,
}

/// The type of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Type {
    /// `None` for a term that is no value.
    pub(crate) element: Option<ElementType>,
    /// Its role in a kernel.
    pub(crate) class: Class,
    /// Set for a leaf that is one number everywhere and that only steps of the region use.
    pub(crate) inlined: bool,
}

/// The role that a term can have in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// A value of a shape that an epilogue can have beside D.
    Operand(OperandShape),
    /// Scales in the blocked layout.
    BlockedScales,
    /// Another value from outside.
    Other,
    /// The result of an op of the region, of the shape of D.
    Computed,
    /// Not a value: an absent operand or an attribute.
    NoValue,
}

/// The facts that rules proved about a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proved {
    /// It is a value of the kernel.
    pub(crate) lifted: bool,
    /// Its results can be written.
    pub(crate) writable: bool,
}

/// Whether an epilogue can read a value from outside, constants aside.
pub(crate) fn is_readable(ty: Type, capability: &FormatCapability, types: &TypeEnvironment) -> bool {
    let (Class::Operand(shape), Some(element)) = (ty.class, ty.element) else { return false };
    let fits_n = shape != OperandShape::Matrix || types.matrices.contains(&element);
    fits_n && capability.epilogue.operand(shape).is_some_and(|rule| rule.element(element).is_some())
}
