//! Converts a grown kernel to an expression for the rules.

use std::collections::HashMap;

use egg::{Id, RecExpr};
use fourfold_ir::{Dim, Op, OpKind, Program, ScaleLayout, TensorType, Value};

use crate::attribute::Leaf;
use crate::expression::{Class, Expression, Member, Source, Type, TypeEnvironment};
use crate::geometry::{operand_shape, reduced_shape};
use crate::grow::Grown;
use crate::language::{Attribute, KernelTerm, SinkAttribute};
use crate::legality::{quantized, readable_matrices, reductions, writable};
use crate::pair::Pair;
use crate::properties::{is_sink, splat};

/// A grown kernel in the form that rules rewrite.
pub(crate) struct Region {
    /// The value of each leaf of the expression.
    pub(crate) leaves: Vec<Value>,
    /// The expression, with one member per op.
    pub(crate) expression: Expression,
}

/// Converts a grown kernel to a region.
pub(crate) fn region(program: &Program, grown: &Grown<'_>) -> Region {
    let module = program.module();
    let root = &grown.root;
    let mut nodes = ExpressionBuilder {
        nodes: RecExpr::default(),
        leaves: Vec::new(),
        terms: HashMap::new(),
        members: Vec::new(),
    };
    let operands = &root.operands;
    let scaled_mma = [
        Some(operands.a),
        operands.sfa,
        Some(operands.b),
        Some(operands.sfb),
        operands.alpha,
        operands.c,
        operands.beta,
    ]
    .map(|operand| match operand {
        Some(value) => nodes.leaf(value).1,
        None => nodes.nodes.add(KernelTerm::Absent),
    });
    let term = nodes.nodes.add(KernelTerm::ScaledMma(scaled_mma));
    let mut halves = Vec::new();
    match root.pair {
        None => {
            nodes.terms.insert(root.result, (0, term));
        }
        Some(Pair { values: [even, odd], .. }) => {
            halves = vec![nodes.nodes.add(KernelTerm::Even(term)), nodes.nodes.add(KernelTerm::Odd(term))];
            nodes.terms.extend([(even, (0, halves[0])), (odd, (0, halves[1]))]);
        }
    }
    let results = root.pair.map_or(vec![root.result], |pair| pair.values.to_vec());
    nodes.members.push(Member {
        term,
        sink: false,
        operands: Vec::new(),
        tensors: 1,
        seen: results.into_iter().any(|result| is_seen(program, result, &grown.ops)),
        halves,
    });
    for op in &grown.ops[1..] {
        nodes.add(program, *op, &grown.ops);
    }
    let types = TypeEnvironment {
        leaves: nodes
            .leaves
            .iter()
            .map(|leaf| leaf_type(program, *leaf, &root.d(module).shape, &grown.ops))
            .collect(),
        accumulator: module.ty(root.result).element,
        has_linear_sfa: root.matmul.sfa_layout == Some(ScaleLayout::Linear),
        writable: writable(root),
        matrices: readable_matrices(root),
        quantized: quantized(root),
        reductions: reductions(root),
    };
    let ExpressionBuilder { nodes, leaves, members, .. } = nodes;
    Region { leaves, expression: Expression { nodes, members, types } }
}

/// Returns whether a value of a kernel with these ops must be written: it is an output of the program, or
/// used outside. An unused value also must be, so that every kernel writes something.
fn is_seen(program: &Program, value: Value, ops: &[Op]) -> bool {
    let users = program.facts().users(value);
    program.facts().is_output(value)
        || users.is_empty()
        || MOST_OPERANDS * ops.len() < users.len()
        || users.iter().any(|user| ops.binary_search(user).is_err())
}

/// The maximum number of operands of an elementwise op.
const MOST_OPERANDS: usize = 3;

struct ExpressionBuilder {
    nodes: RecExpr<KernelTerm>,
    leaves: Vec<Value>,
    /// The member and term of each value defined inside.
    terms: HashMap<Value, (usize, Id)>,
    members: Vec<Member>,
}

impl ExpressionBuilder {
    fn leaf(&mut self, value: Value) -> (usize, Id) {
        let known = self.leaves.iter().position(|leaf| *leaf == value);
        let index = known.unwrap_or_else(|| {
            self.leaves.push(value);
            self.leaves.len() - 1
        });
        (index, self.nodes.add(KernelTerm::Leaf(Leaf(index))))
    }

    fn add(&mut self, program: &Program, op: Op, ops: &[Op]) {
        let module = program.module();
        let operation = &module.ops[op];
        let attribute =
            attribute(program, op).map(|attribute| self.nodes.add(KernelTerm::Attribute(attribute)));
        let mut sources = Vec::new();
        let mut operands = Vec::new();
        for value in &operation.operands {
            let (source, term) = match self.terms.get(value) {
                Some((member, term)) => (Source::Member(*member), *term),
                None => {
                    let (leaf, term) = self.leaf(*value);
                    (Source::Leaf(leaf), term)
                }
            };
            sources.push(source);
            operands.push(term);
        }
        let node = match (&operation.kind, attribute, &operands[..]) {
            (OpKind::Unary(_), Some(function), &[x]) => KernelTerm::Unary([function, x]),
            (OpKind::Binary(_), Some(function), &[x, y]) => KernelTerm::Binary([function, x, y]),
            (OpKind::Compare(_), Some(predicate), &[x, y]) => KernelTerm::Compare([predicate, x, y]),
            (OpKind::Clamp { .. }, Some(bounds), &[x]) => KernelTerm::Clamp([bounds, x]),
            (OpKind::Convert, Some(element), &[x]) => KernelTerm::Convert([element, x]),
            (OpKind::Select, None, &[condition, x, y]) => KernelTerm::Select([condition, x, y]),
            (OpKind::Reduce { .. }, Some(how), &[x]) => KernelTerm::Reduce([how, x]),
            (OpKind::BlockQuantize { .. }, Some(format), &[x, global]) => {
                KernelTerm::Quantize([format, x, global])
            }
            (OpKind::BlockQuantize { .. }, Some(format), &[x]) => {
                let absent = self.nodes.add(KernelTerm::Absent);
                KernelTerm::Quantize([format, x, absent])
            }
            _ => unreachable!("growth adds no other op"),
        };
        let term = self.nodes.add(node);
        let sink = is_sink(&operation.kind);
        if !sink {
            self.terms.insert(operation.results[0], (self.members.len(), term));
        }
        self.members.push(Member {
            term,
            sink,
            operands: sources,
            tensors: operation.results.len(),
            seen: sink || is_seen(program, operation.results[0], ops),
            halves: Vec::new(),
        });
    }
}

/// The attribute that distinguishes an op from others of its term.
fn attribute(program: &Program, op: Op) -> Option<Attribute> {
    let module = program.module();
    let operation = &module.ops[op];
    let result = |index: usize| module.ty(operation.results[index]).element;
    match operation.kind {
        OpKind::Unary(kind) => Some(Attribute::Unary(kind)),
        OpKind::Binary(kind) => Some(Attribute::Binary(kind)),
        OpKind::Compare(predicate) => Some(Attribute::Predicate(predicate)),
        OpKind::Clamp { min, max } => Some(Attribute::Bounds([min.to_bits(), max.to_bits()])),
        OpKind::Convert => Some(Attribute::Element(result(0))),
        OpKind::Reduce { kind, ref axes, .. } => {
            let rank = module.ty(operation.operands[0]).rank();
            reduced_shape(axes, rank).map(|shape| Attribute::Own(SinkAttribute::Reduction(kind, shape)))
        }
        OpKind::BlockQuantize { block, scale_rounding, formula } => {
            let (element, scale) = (result(0), result(1));
            let format = SinkAttribute::Blocks { element, scale, block, scale_rounding, formula };
            Some(Attribute::Own(format))
        }
        _ => None,
    }
}

fn leaf_type(program: &Program, leaf: Value, d: &[Dim], ops: &[Op]) -> Type {
    let module = program.module();
    let ty = module.ty(leaf);
    Type {
        element: Some(ty.element),
        class: operand_class(ty, d),
        inlined: splat(program, leaf).is_some() && !is_seen_constant(program, leaf, ops),
    }
}

/// The class of an external value for a `scaled_mma` with a result of shape `d`.
fn operand_class(ty: &TensorType, d: &[Dim]) -> Class {
    match ty.layout {
        Some(ScaleLayout::Blocked) => Class::BlockedScales,
        Some(ScaleLayout::Linear) => Class::LinearScales,
        None => operand_shape(&ty.shape, d).map_or(Class::Other, Class::Operand),
    }
}

/// Returns whether a constant must also exist outside: for ops outside, or for a sink, which reads it from
/// memory.
fn is_seen_constant(program: &Program, constant: Value, ops: &[Op]) -> bool {
    let users = program.facts().users(constant);
    let at_the_end = |user: &Op| is_sink(&program.module().ops[*user].kind);
    is_seen(program, constant, ops) || users.iter().any(at_the_end)
}
