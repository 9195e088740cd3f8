//! A function of one number per block, written out op by op: the largest magnitude of the block, or its scale.

use std::collections::HashMap;

use fourfold_ir::{
    BinaryKind, BitwiseKind, ConstantValue, ElementType, Module, Op, OpKind, Predicate, UnaryKind, Value,
    dim_product, scalar,
};

use super::range::{self, Range};

/// The maximum number of nodes, so that the time is linear.
const MOST_NODES: usize = 96;

/// A function as a graph without cycles. Operands precede their users.
pub(crate) struct Chain<'m> {
    module: &'m Module,
    nodes: Vec<Node>,
    known: HashMap<Value, usize>,
    /// The argument: a reduction's result, or scales.
    argument: Option<Value>,
    /// The kind of values that may be the argument.
    source: Source,
    /// The ops of the function.
    pub(crate) ops: Vec<Op>,
}

/// The kind of an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The result of a reduction.
    Reduction,
    /// Linear scales in `f8E8M0FNU`.
    Powers,
}

struct Node {
    kind: NodeKind,
    operands: Vec<usize>,
    element: ElementType,
    /// True if the value is the same number for every block.
    is_uniform: bool,
}

#[derive(Clone, Copy)]
enum NodeKind {
    Argument,
    Number(f64),
    Convert,
    Bitcast,
    Unary(UnaryKind),
    Binary(BinaryKind),
    Bitwise(BitwiseKind),
    Clamp(f64, f64),
    Compare(Predicate),
    Select,
}

/// The op at which a function of one number per block ends.
pub(crate) struct NotAFunction(pub(crate) Option<Op>);

impl<'m> Chain<'m> {
    pub(crate) fn new(module: &'m Module, source: Source) -> Chain<'m> {
        Chain { module, nodes: Vec::new(), known: HashMap::new(), argument: None, source, ops: Vec::new() }
    }

    /// The argument that the added values have in common.
    pub(crate) fn argument(&self) -> Option<Value> {
        self.argument
    }

    /// Returns whether some value is rounded to this type.
    pub(crate) fn rounds_to(&self, element: ElementType) -> bool {
        self.nodes.iter().any(|node| matches!(node.kind, NodeKind::Convert) && node.element == element)
    }

    /// Adds a value and everything that it follows from. Returns its node.
    pub(crate) fn add(&mut self, value: Value) -> Result<usize, NotAFunction> {
        if let Some(known) = self.known.get(&value) {
            return Ok(*known);
        }
        let ty = self.module.ty(value);
        let op = self.module.defining_op(value);
        let kind = op.map(|op| &self.module.ops[op].kind);
        let is_argument = match self.source {
            Source::Reduction => matches!(kind, Some(OpKind::Reduce { .. })),
            Source::Powers => ty.element == ElementType::F8E8M0FNU,
        };
        let node = if is_argument {
            if self.argument.is_some_and(|argument| argument != value) {
                return Err(NotAFunction(op));
            }
            self.argument = Some(value);
            self.push(NodeKind::Argument, Vec::new(), ty.element)
        } else {
            let op = op.ok_or(NotAFunction(None))?;
            if !matches!(kind, Some(OpKind::Constant(_))) {
                self.ops.push(op);
            }
            self.of_op(value, op)?
        };
        self.known.insert(value, node);
        Ok(node)
    }

    fn of_op(&mut self, value: Value, op: Op) -> Result<usize, NotAFunction> {
        let operation = &self.module.ops[op];
        let element = self.module.ty(value).element;
        let kind = match &operation.kind {
            OpKind::Reshape | OpKind::Broadcast => {
                let operand = self.operand(operation.operands[0], value, op)?;
                return Ok(operand);
            }
            OpKind::Constant(value) => NodeKind::Number(number(value).ok_or(NotAFunction(Some(op)))?),
            OpKind::Convert => NodeKind::Convert,
            OpKind::Bitcast => NodeKind::Bitcast,
            OpKind::Unary(kind) => NodeKind::Unary(*kind),
            OpKind::Binary(kind) => NodeKind::Binary(*kind),
            OpKind::Bitwise(kind) => NodeKind::Bitwise(*kind),
            OpKind::Clamp { min, max } => NodeKind::Clamp(*min, *max),
            OpKind::Compare(predicate) => NodeKind::Compare(*predicate),
            OpKind::Select => NodeKind::Select,
            _ => return Err(NotAFunction(Some(op))),
        };
        // f8E4M3FN with a layout is read without its sign.
        let is_signed = |value: &Value| {
            let ty = self.module.ty(*value);
            ty.layout.is_some() && ty.element != ElementType::F8E8M0FNU
        };
        if operation.operands.iter().any(is_signed) {
            return Err(NotAFunction(Some(op)));
        }
        let operands: Result<Vec<usize>, NotAFunction> =
            operation.operands.iter().map(|operand| self.operand(*operand, value, op)).collect();
        let operands = operands?;
        if self.nodes.len() >= MOST_NODES {
            return Err(NotAFunction(Some(op)));
        }
        Ok(self.push(kind, operands, element))
    }

    /// The node of an operand. Each element of the result follows from the element at the same position.
    fn operand(&mut self, operand: Value, result: Value, op: Op) -> Result<usize, NotAFunction> {
        let node = self.add(operand)?;
        let count = |value: Value| dim_product(&self.module.ty(value).shape);
        if !self.nodes[node].is_uniform && (count(operand).is_none() || count(operand) != count(result)) {
            return Err(NotAFunction(Some(op)));
        }
        Ok(node)
    }

    fn push(&mut self, kind: NodeKind, operands: Vec<usize>, element: ElementType) -> usize {
        let is_argument = matches!(kind, NodeKind::Argument);
        let is_uniform = !is_argument && operands.iter().all(|operand| self.nodes[*operand].is_uniform);
        self.nodes.push(Node { kind, operands, element, is_uniform });
        self.nodes.len() - 1
    }

    /// Evaluates every node for arguments in a range. With `exactly`, logarithms, products and quotients in f32 are not
    /// rounded.
    pub(crate) fn evaluate(&self, argument: Range, exactly: bool, results: &mut Vec<Range>) {
        results.clear();
        for node in &self.nodes {
            let operand = |index: usize| results[node.operands[index]];
            let element = node.element;
            let is_dropped = exactly && element == ElementType::F32;
            let result = match node.kind {
                NodeKind::Argument => argument,
                NodeKind::Number(number) => Range::of(element, scalar::round_to(element, number)),
                NodeKind::Convert => range::convert(operand(0), element),
                NodeKind::Bitcast => {
                    range::bitcast(operand(0), self.nodes[node.operands[0]].element, element)
                }
                NodeKind::Unary(kind) => {
                    let kept = !(is_dropped && kind == UnaryKind::Log2);
                    range::unary(kind, operand(0), kept.then_some(element))
                }
                NodeKind::Binary(kind) => {
                    let kept = !(is_dropped && matches!(kind, BinaryKind::Mul | BinaryKind::Div));
                    range::binary(kind, operand(0), operand(1), kept.then_some(element))
                }
                NodeKind::Bitwise(kind) => range::bitwise(kind, operand(0), operand(1)),
                NodeKind::Clamp(min, max) => range::clamp(operand(0), [min, max], element),
                NodeKind::Compare(predicate) => {
                    let same = node.operands[0] == node.operands[1];
                    range::compare(predicate, operand(0), operand(1), same)
                }
                NodeKind::Select => range::select(operand(0), operand(1), operand(2)),
            };
            results.push(result);
        }
    }
}

/// The number that every element of a constant is.
fn number(value: &ConstantValue) -> Option<f64> {
    match value {
        ConstantValue::Splat(number) => Some(*number),
        ConstantValue::Dense(numbers) => {
            let first = *numbers.first()?;
            numbers.iter().all(|number| number.to_bits() == first.to_bits()).then_some(first)
        }
    }
}
