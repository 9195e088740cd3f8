//! Values of a quantization written out: moves and exact conversions to look through, and scalars.

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, Module, Op, OpKind, Operation, TensorType, UnaryKind, Value,
    dim_product, scalar,
};

use super::super::rules::holds_exactly;

/// The maximum number of moves and conversions to look through, so that the time is linear.
const MOST_MOVES: usize = 8;

/// A module, and the ops that were matched in it.
pub(crate) struct Graph<'m> {
    pub(crate) module: &'m Module,
    pub(crate) matched: Vec<Op>,
}

impl<'m> Graph<'m> {
    pub(crate) fn new(module: &'m Module) -> Graph<'m> {
        Graph { module, matched: Vec::new() }
    }

    pub(crate) fn ty(&self, value: Value) -> &'m TensorType {
        self.module.ty(value)
    }

    /// The defining op of a value.
    pub(crate) fn definition(&self, value: Value) -> Option<(Op, &'m Operation)> {
        let op = self.module.defining_op(value)?;
        Some((op, &self.module.ops[op]))
    }

    /// The values behind reshapes and exact conversions, from the value itself to the farthest. All have the same
    /// elements in row-major order.
    pub(crate) fn moved(&mut self, value: Value) -> Vec<Value> {
        let mut values = vec![value];
        let mut current = value;
        for _ in 0..MOST_MOVES {
            let Some((op, operation)) = self.definition(current) else { break };
            let operand = match operation.kind {
                OpKind::Reshape | OpKind::Convert => operation.operands[0],
                _ => break,
            };
            let (wide, narrow) = (self.ty(current), self.ty(operand));
            // Scales are unsigned, numbers are not.
            if narrow.layout.is_some() || !holds_exactly(wide.element, narrow.element) {
                break;
            }
            self.matched.push(op);
            values.push(operand);
            current = operand;
        }
        values
    }

    /// The farthest value of [`Graph::moved`].
    pub(crate) fn flat(&mut self, value: Value) -> Value {
        self.moved(value).last().copied().unwrap_or(value)
    }

    /// The value per block that is repeated for each element of a block, along the last axis of a tensor of this shape.
    pub(crate) fn per_block(&mut self, value: Value, full: &[Dim], block: u64) -> Option<Value> {
        let shape = &self.ty(value).shape;
        if is_repeated(shape, full, block) {
            return Some(value);
        }
        if shape != full {
            return None;
        }
        let mut current = value;
        for _ in 0..MOST_MOVES {
            let (op, operation) = self.definition(current)?;
            let operand = *operation.operands.first()?;
            self.matched.push(op);
            match operation.kind {
                OpKind::Reshape => current = operand,
                OpKind::Broadcast => {
                    let (from, to) = (&self.ty(operand).shape, &self.ty(current).shape);
                    return is_repeated(from, to, block).then_some(operand);
                }
                _ => return None,
            }
        }
        None
    }

    /// The scalar behind moves and exact conversions of a scalar.
    pub(crate) fn scalar(&mut self, value: Value) -> Option<Value> {
        let mut current = value;
        for _ in 0..MOST_MOVES {
            let Some((op, operation)) = self.definition(current) else { break };
            let (OpKind::Reshape | OpKind::Convert | OpKind::Broadcast) = operation.kind else { break };
            let operand = operation.operands[0];
            let (wide, narrow) = (self.ty(current).element, self.ty(operand));
            if narrow.layout.is_some() || !narrow.is_scalar() || !holds_exactly(wide, narrow.element) {
                break;
            }
            self.matched.push(op);
            current = operand;
        }
        (self.ty(current).is_scalar() && self.ty(current).element.is_arithmetic()).then_some(current)
    }

    /// The number that every element of a value is: a constant, or the reciprocal of one.
    pub(crate) fn number(&mut self, value: Value) -> Option<f64> {
        let base = self.scalar(value).unwrap_or(value);
        let element = self.ty(base).element;
        let (_, operation) = self.definition(base)?;
        let literal = |value: Value| {
            let (_, operation) = self.definition(value)?;
            let number = match &operation.kind {
                OpKind::Constant(ConstantValue::Splat(number)) => *number,
                OpKind::Constant(ConstantValue::Dense(numbers)) => match numbers[..] {
                    [number] => number,
                    _ => return None,
                },
                _ => return None,
            };
            let element = self.ty(value).element;
            element.is_arithmetic().then(|| scalar::round_to(element, number))
        };
        match operation.kind {
            OpKind::Constant(_) => literal(base),
            OpKind::Unary(UnaryKind::Reciprocal) => {
                Some(scalar::round_to(element, 1.0 / literal(operation.operands[0])?))
            }
            OpKind::Binary(BinaryKind::Div) => {
                let [left, right] = operation.operands[..] else { return None };
                Some(scalar::round_to(element, literal(left)? / literal(right)?))
            }
            _ => None,
        }
    }

    /// Returns whether two scalars are the same value or the same number.
    pub(crate) fn same_scalar(&mut self, left: Value, right: Value) -> bool {
        let (bases, numbers) =
            ([left, right].map(|value| self.scalar(value)), [left, right].map(|value| self.number(value)));
        let [left_number, right_number] = numbers.map(|number| number.map(f64::to_bits));
        bases[0].is_some() && bases[0] == bases[1] || left_number.is_some() && left_number == right_number
    }

    /// Returns whether one scalar is the reciprocal of another.
    pub(crate) fn is_reciprocal(&mut self, value: Value, of: Value) -> bool {
        if let (Some(value), Some(of)) = (self.number(value), self.number(of)) {
            return scalar::round_to(ElementType::F32, 1.0 / of).to_bits() == value.to_bits();
        }
        let Some(base) = self.scalar(value) else { return false };
        let Some((op, operation)) = self.definition(base) else { return false };
        let divisor = match (&operation.kind, &operation.operands[..]) {
            (OpKind::Unary(UnaryKind::Reciprocal), [divisor]) => *divisor,
            (OpKind::Binary(BinaryKind::Div), [one, divisor]) if self.number(*one) == Some(1.0) => *divisor,
            _ => return false,
        };
        self.matched.push(op);
        self.ty(base).element == ElementType::F32 && self.same_scalar(divisor, of)
    }

    /// Returns whether an operand of an elementwise op is the same number for every element, a scalar or a constant of any
    /// shape, and the result has as many elements as the other operand.
    pub(crate) fn is_uniform(&mut self, operand: Value, tensor: Value, result: Value) -> bool {
        let uniform = self.ty(operand).is_scalar() || self.number(operand).is_some();
        let count = |value: Value| dim_product(&self.ty(value).shape);
        uniform && count(tensor).is_some() && count(tensor) == count(result)
    }
}

/// Returns whether a tensor has one element per block, which is the last axis of a tensor of the shape `full`.
fn is_repeated(shape: &[Dim], full: &[Dim], block: u64) -> bool {
    match (shape, full) {
        ([rows @ .., one], [full_rows @ .., last]) => {
            rows == full_rows && one.as_fixed() == Some(1) && last.as_fixed() == Some(block)
        }
        _ => false,
    }
}
