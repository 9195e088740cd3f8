//! Collects what may run together with a `scaled_mma`: the elementwise ops behind it, up to wherever all paths from it
//! meet in one value.
//!
//! Ops are visited in program order, so that all of an op's operands that depend on the `scaled_mma` were visited
//! before it. An op that is visited while no other is waiting lies on every path: there the region can end, with that
//! op's result as its only output, and whatever else its ops read cannot depend on the `scaled_mma`.

use std::collections::{BTreeSet, HashMap};

use egg::{Id, RecExpr};
use fourfold_ir::{ConstantValue, Dim, Op, OpKind, Program, Value};

use crate::language::{Attribute, Fir, Leaf};
use crate::rewrite::{Expression, Type, TypeEnvironment, operand_class};
use crate::root::{Root, readable_matrices, writable};

/// A `scaled_mma` with what follows it.
pub(crate) struct Region {
    /// The `scaled_mma`, then what follows it, in program order.
    pub(crate) ops: Vec<Op>,
    /// The values that the leaves of the expression stand for.
    pub(crate) leaves: Vec<Value>,
    /// The region as rules see it.
    pub(crate) expression: Expression,
}

/// The region of a root. An op for which `taken` holds is in a kernel already, and ends it.
pub(crate) fn region(program: &Program, root: &Root<'_>, taken: impl Fn(Op) -> bool) -> Region {
    let module = program.module();
    let d = &module.ty(root.result).shape;
    let mut nodes = Nodes { nodes: RecExpr::default(), leaves: Vec::new(), terms: HashMap::new() };
    let operands = &root.operands;
    let scaled_mma = [
        Some(operands.a),
        Some(operands.sfa),
        Some(operands.b),
        Some(operands.sfb),
        operands.alpha,
        operands.c,
        operands.beta,
    ]
    .map(|operand| match operand {
        Some(value) => nodes.leaf(value),
        None => nodes.nodes.add(Fir::Absent),
    });
    let term = nodes.nodes.add(Fir::ScaledMma(scaled_mma));
    nodes.terms.insert(root.result, term);
    let mut region = Grown { ops: vec![root.op], terms: vec![term], cuts: vec![1], waiting: BTreeSet::new() };

    let most = root.capability.epilogue.max_steps + 1;
    let mut open = region.opens(program, root.result, most);
    while open
        && region.ops.len() < most
        && let Some(op) = region.waiting.pop_first()
        && !taken(op)
        && let [result] = module.ops[op].results[..]
        && module.ty(result).shape == *d
        && module.ty(result).layout.is_none()
        && let Some(term) = nodes.term(program, op)
    {
        nodes.terms.insert(result, term);
        region.ops.push(op);
        region.terms.push(term);
        if region.waiting.is_empty() {
            region.cuts.push(region.ops.len());
        }
        open = region.opens(program, result, most);
    }

    let types = TypeEnvironment {
        leaves: nodes.leaves.iter().map(|leaf| leaf_type(program, *leaf, d, &region.ops)).collect(),
        accumulator: module.ty(root.result).element,
        writable: writable(root.capability, &root.matmul.n),
        matrices: readable_matrices(root.capability, &root.matmul.n),
    };
    let Grown { ops, terms, cuts, .. } = region;
    Region { ops, leaves: nodes.leaves, expression: Expression { nodes: nodes.nodes, terms, cuts, types } }
}

struct Grown {
    ops: Vec<Op>,
    /// By op.
    terms: Vec<Id>,
    cuts: Vec<usize>,
    /// The ops that use what was visited.
    waiting: BTreeSet<Op>,
}

impl Grown {
    /// Lets the users of a value wait. False when the value is seen in another way, or by more ops than a kernel has,
    /// so that it cannot be inside one.
    fn opens(&mut self, program: &Program, value: Value, most: usize) -> bool {
        let users = program.facts().users(value);
        let unseen = users.is_empty() && !self.waiting.is_empty();
        if program.facts().is_output(value) || unseen || users.len() > MOST_OPERANDS * most {
            return false;
        }
        self.waiting.extend(users);
        true
    }
}

/// Of an elementwise op.
const MOST_OPERANDS: usize = 3;

struct Nodes {
    nodes: RecExpr<Fir>,
    leaves: Vec<Value>,
    /// The terms of values that are inside.
    terms: HashMap<Value, Id>,
}

impl Nodes {
    fn leaf(&mut self, value: Value) -> Id {
        let known = self.leaves.iter().position(|leaf| *leaf == value);
        let index = known.unwrap_or_else(|| {
            self.leaves.push(value);
            self.leaves.len() - 1
        });
        self.nodes.add(Fir::Leaf(Leaf(index)))
    }

    /// The term of an op; `None` for one that no rule speaks of.
    fn term(&mut self, program: &Program, op: Op) -> Option<Id> {
        let module = program.module();
        let operation = &module.ops[op];
        let element = module.ty(*operation.results.first()?).element;
        let attribute = match operation.kind {
            OpKind::Unary(kind) => Some(Attribute::Unary(kind)),
            OpKind::Binary(kind) => Some(Attribute::Binary(kind)),
            OpKind::Compare(predicate) => Some(Attribute::Predicate(predicate)),
            OpKind::Clamp { min, max } => Some(Attribute::Bounds([min.to_bits(), max.to_bits()])),
            OpKind::Convert => Some(Attribute::Element(element)),
            OpKind::Select => None,
            _ => return None,
        };
        let attribute = attribute.map(|attribute| self.nodes.add(Fir::Attribute(attribute)));
        let operands: Vec<Id> = operation
            .operands
            .iter()
            .map(|value| match self.terms.get(value) {
                Some(term) => *term,
                None => self.leaf(*value),
            })
            .collect();
        let node = match (&operation.kind, attribute, &operands[..]) {
            (OpKind::Unary(_), Some(function), &[x]) => Fir::Unary([function, x]),
            (OpKind::Binary(_), Some(function), &[x, y]) => Fir::Binary([function, x, y]),
            (OpKind::Compare(_), Some(predicate), &[x, y]) => Fir::Compare([predicate, x, y]),
            (OpKind::Clamp { .. }, Some(bounds), &[x]) => Fir::Clamp([bounds, x]),
            (OpKind::Convert, Some(element), &[x]) => Fir::Convert([element, x]),
            (OpKind::Select, None, &[condition, x, y]) => Fir::Select([condition, x, y]),
            _ => return None,
        };
        Some(self.nodes.add(node))
    }
}

fn leaf_type(program: &Program, leaf: Value, d: &[Dim], ops: &[Op]) -> Type {
    let module = program.module();
    let ty = module.ty(leaf);
    Type {
        element: Some(ty.element),
        class: operand_class(ty, d),
        inlined: splat(program, leaf).and_then(|_| inlined(program, leaf, ops)),
    }
}

/// The value of a leaf that is one number everywhere.
pub(crate) fn splat(program: &Program, leaf: Value) -> Option<(Op, f64)> {
    let module = program.module();
    let op = module.defining_op(leaf)?;
    match module.ops[op].kind {
        OpKind::Constant(ConstantValue::Splat(value)) if module.ty(leaf).element.is_arithmetic() => {
            Some((op, value))
        }
        _ => None,
    }
}

/// How many of the ops contain every user of a constant, so that it needs to exist nowhere else.
fn inlined(program: &Program, constant: Value, ops: &[Op]) -> Option<usize> {
    let users = program.facts().users(constant);
    if program.facts().is_output(constant) || users.len() > MOST_OPERANDS * ops.len() {
        return None;
    }
    let positions = users.iter().map(|user| ops.binary_search(user).ok());
    positions.collect::<Option<Vec<_>>>()?.into_iter().max().map(|last| last + 1)
}
