//! Collects what may run together with a `scaled_mma`: the chain of ops in which each is the only user of the one
//! before.

use egg::{Id, RecExpr};
use fourfold_ir::{BinaryKind, Op, OpKind, Program, Value};

use crate::rewrite::{Conversion, Expression, Fir, Function, Leaf, ShapeClass, Type, TypeEnvironment};
use crate::root::{Root, writable};

/// Bias, activation and conversion: no kernel has more ops after its `scaled_mma`.
const LONGEST_CHAIN: usize = 3;

/// A `scaled_mma` with the chain that follows it.
pub(crate) struct Region {
    /// The `scaled_mma`, then the chain.
    pub(crate) ops: Vec<Op>,
    /// The values that the leaves of the expression stand for.
    pub(crate) leaves: Vec<Value>,
    /// The region as rules see it.
    pub(crate) expression: Expression,
}

/// The region of a root. An op for which `taken` holds is in a kernel already, and ends it.
pub(crate) fn region(program: &Program, root: &Root<'_>, taken: impl Fn(Op) -> bool) -> Region {
    let module = program.module();
    let mut nodes = Nodes { nodes: RecExpr::default(), leaves: Vec::new() };
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
    let mut last = nodes.nodes.add(Fir::ScaledMma(scaled_mma));
    let mut prefixes = vec![nodes.nodes.as_ref().len()];
    let mut ops = vec![root.op];
    let mut value = root.result;
    while ops.len() <= LONGEST_CHAIN
        && let Some(op) = only_user(program, value)
        && !taken(op)
        && let [result] = module.ops[op].results[..]
        && let Some(node) = nodes.chain_node(program, op, value, last)
    {
        last = nodes.nodes.add(node);
        prefixes.push(nodes.nodes.as_ref().len());
        ops.push(op);
        value = result;
    }
    let d = &module.ty(root.result).shape;
    let leaf_type = |leaf: &Value| {
        let ty = module.ty(*leaf);
        Type { element: Some(ty.element), class: ShapeClass::of(ty, d) }
    };
    let types = TypeEnvironment {
        leaves: nodes.leaves.iter().map(leaf_type).collect(),
        accumulator: module.ty(root.result).element,
        writable: writable(root.capability, &root.matmul.n),
    };
    Region { ops, leaves: nodes.leaves, expression: Expression { nodes: nodes.nodes, prefixes, types } }
}

/// The op that is the only user of a value and the only way to see it.
fn only_user(program: &Program, value: Value) -> Option<Op> {
    let [first, rest @ ..] = program.facts().users(value) else { return None };
    (!program.facts().is_output(value) && rest.iter().all(|user| user == first)).then_some(*first)
}

struct Nodes {
    nodes: RecExpr<Fir>,
    leaves: Vec<Value>,
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

    /// The node of an op that uses `value`, which is the term `last`; `None` for an op that no rule speaks of.
    fn chain_node(&mut self, program: &Program, op: Op, value: Value, last: Id) -> Option<Fir> {
        let module = program.module();
        let operation = &module.ops[op];
        match (&operation.kind, &operation.operands[..]) {
            (OpKind::Binary(BinaryKind::Add), &[left, right]) => {
                let mut term = |operand| if operand == value { last } else { self.leaf(operand) };
                Some(Fir::Add([term(left), term(right)]))
            }
            (OpKind::Unary(kind), [_]) => Some(Fir::Apply(Function(*kind), [last])),
            (OpKind::Convert, [_]) => {
                Some(Fir::Convert(Conversion(module.ty(operation.results[0]).element), [last]))
            }
            _ => None,
        }
    }
}
