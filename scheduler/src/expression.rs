//! A `scaled_mma` and the ops that follow it, as the expression that rules rewrite and [`crate::trim`] trims.

use egg::{Id, RecExpr};
use fourfold_ir::{ElementType, FormatCapability, OperandShape, QuantizedCapability, ReduceKind};

use crate::language::KernelTerm;

/// A region in the form that rules rewrite. Canonical: equal regions have equal expressions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expression {
    /// The terms.
    pub(crate) nodes: RecExpr<KernelTerm>,
    /// The ops, the `scaled_mma` first, every op after its operands.
    pub(crate) members: Vec<Member>,
    /// The types of leaves, and the types that this region's extents permit.
    pub(crate) types: TypeEnvironment,
}

/// An op of a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    /// Its term.
    pub(crate) term: Id,
    /// True for an op whose results no other member can use.
    pub(crate) sink: bool,
    /// Its operands; empty for the `scaled_mma`.
    pub(crate) operands: Vec<Source>,
    /// The number of its results.
    pub(crate) tensors: usize,
    /// True if a result must be written even when every member is in the kernel.
    pub(crate) seen: bool,
    /// The terms that other members read instead of its own: the even and the odd columns of a `scaled_mma` whose epilogue
    /// pairs them. It is then not written itself.
    pub(crate) halves: Vec<Id>,
}

/// An operand of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The result of an earlier member.
    Member(usize),
    /// A value from outside.
    Leaf(usize),
}

/// The inputs to rewriting, apart from the terms and the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TypeEnvironment {
    /// The type of each leaf.
    pub(crate) leaves: Vec<Type>,
    /// The element type of the `scaled_mma`.
    pub(crate) accumulator: ElementType,
    /// True if the scales of A are linear.
    pub(crate) has_linear_sfa: bool,
    /// The element types of outputs whose multiple of N this region's N can satisfy.
    pub(crate) writable: Vec<ElementType>,
    /// The element types of matrix operands whose multiple of N this region's N can satisfy.
    pub(crate) matrices: Vec<ElementType>,
    /// The quantized formats whose multiple of N this region's N can satisfy.
    pub(crate) quantized: Vec<QuantizedCapability>,
    /// The reductions that this region's M and L permit.
    pub(crate) reductions: Vec<ReduceKind>,
}

/// The type of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Type {
    /// `None` for a term that is not a value.
    pub(crate) element: Option<ElementType>,
    /// Its role in a kernel.
    pub(crate) class: Class,
    /// True for a splat constant that only elementwise ops of the region use.
    pub(crate) inlined: bool,
}

/// The role that a term can have in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// An external value with a shape that an epilogue can broadcast to D.
    Operand(OperandShape),
    /// Scales in the blocked layout.
    BlockedScales,
    /// Scales in the linear layout.
    LinearScales,
    /// Any other external value.
    Other,
    /// The result of an op of the region, with the shape of D.
    Computed,
    /// Not a value: an absent operand or an attribute.
    NoValue,
}

/// The facts that rules proved about a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proved {
    /// The kernel can compute it.
    pub(crate) lifted: bool,
    /// The kernel can write its results.
    pub(crate) writable: bool,
}

/// Returns whether an epilogue can read an external value. Constants are handled separately.
pub(crate) fn is_readable(ty: Type, capability: &FormatCapability, types: &TypeEnvironment) -> bool {
    let (Class::Operand(shape), Some(element)) = (ty.class, ty.element) else { return false };
    let fits_n = shape != OperandShape::Matrix || types.matrices.contains(&element);
    fits_n && capability.epilogue.operand(shape).is_some_and(|rule| rule.element(element).is_some())
}
