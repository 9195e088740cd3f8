//! Bounds the change that contraction makes to values of a program, one interval per element.
//!
//! The interval of an op whose rounding was dropped contains both the rounded and the unrounded result; an op
//! that was kept rounds the ends. Values that follow in other ways, such as sums of moved values, have no
//! interval and are compared like any inexact value.

use std::collections::HashMap;

use fourfold_ir::{BinaryKind, ElementType, Entity, Op, OpKind, Program, Tensor, Value, scalar};

use super::interval::{self, Interval};
use crate::precision::is_correctly_rounded;

/// The interval of an element outside the range that a rule assumes of factors and scales: it has no bound.
const BEYOND: Interval = [f64::INFINITY, f64::NEG_INFINITY];
/// The largest number of products that are summed again for their magnitudes: a few seconds.
const MOST_PRODUCTS: usize = 2_000_000_000;

/// The intervals of a value's elements under contraction.
#[derive(Clone, Debug)]
pub(crate) struct Moved(Vec<Interval>);

impl Moved {
    /// Returns true if contraction explains the difference of two computations of an element. It neither creates
    /// nor removes NaN, and an interval without a finite end explains nothing.
    pub(crate) fn allows(&self, index: usize, got: f64, want: f64) -> bool {
        self.0.get(index).is_some_and(|ends @ [low, high]| {
            let is_within = |x: f64| *low <= x && x <= *high;
            ends.iter().any(|end| end.is_finite()) && is_within(got) && is_within(want)
        })
    }

    /// Returns true if an element is outside the range that the rules assume.
    pub(crate) fn is_beyond(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(is_beyond)
    }
}

fn is_beyond(ends: &Interval) -> bool {
    ends[0] > ends[1]
}

/// Returns the values of a program that contraction may move. `is_contracted` returns true for the ops it
/// changed; `values` are those of the interpreter.
pub(crate) fn moved(
    program: &Program,
    values: &[Tensor],
    is_contracted: &dyn Fn(Op) -> bool,
) -> HashMap<Value, Moved> {
    let mut following = Following { program, values, moved: HashMap::new() };
    for op in program.module().ops.keys() {
        following.op(op, is_contracted(op));
    }
    following.moved.into_iter().filter_map(|(value, moved)| Some((value, Moved(moved?)))).collect()
}

struct Following<'a> {
    program: &'a Program,
    values: &'a [Tensor],
    /// The values that may differ from the interpreter's; `None` for one without a bound.
    moved: HashMap<Value, Option<Vec<Interval>>>,
}

impl Following<'_> {
    fn op(&mut self, op: Op, is_contracted: bool) {
        let operation = &self.program.module().ops[op];
        let touched = operation.operands.iter().any(|operand| self.moved.contains_key(operand));
        if !touched && !is_contracted {
            return;
        }
        let known =
            operation.operands.iter().all(|operand| self.moved.get(operand).is_none_or(Option::is_some));
        let ends = match operation.kind {
            OpKind::Mma if is_contracted => self.product(op),
            _ if known => self.elements(op, is_contracted),
            _ => None,
        };
        // Only multiplications and quantization have more results, and their further results have no interval.
        for (position, result) in operation.results.iter().enumerate() {
            self.moved.insert(*result, ends.clone().filter(|_| position == 0));
        }
    }

    /// Returns the intervals of an op that computes or moves single elements.
    fn elements(&self, op: Op, is_contracted: bool) -> Option<Vec<Interval>> {
        let module = self.program.module();
        let operation = &module.ops[op];
        let result = &self.values[operation.results.first()?.index()];
        let (dims, element) = (result.dims(), result.element());
        if !is_followed(&operation.kind) || !(element.is_arithmetic() || element == ElementType::I1) {
            return None;
        }
        let operands: Vec<Operand<'_>> = operation
            .operands
            .iter()
            .map(|operand| {
                let tensor = &self.values[operand.index()];
                let ends = self.moved.get(operand).and_then(Option::as_deref);
                let points = if ends.is_none() { tensor.to_f64() } else { Vec::new() };
                Operand { ends, points, strides: strides(&operation.kind, tensor.dims(), dims) }
            })
            .collect();
        let mut index = vec![0; dims.len()];
        let mut all = Vec::with_capacity(result.count());
        let mut row = Vec::with_capacity(operands.len());
        for flat in 0..result.count() {
            row.clear();
            let is_moved = matches!(operation.kind, OpKind::Reshape);
            row.extend(
                operands.iter().map(|operand| if is_moved { operand.at(flat) } else { operand.of(&index) }),
            );
            all.push(if row.iter().any(is_beyond) {
                BEYOND
            } else {
                rounded(element, step(&operation.kind, &row)?, is_contracted)
            });
            advance(&mut index, dims);
        }
        Some(all)
    }

    /// Returns the intervals of a product of dequantized operands, where roundings of elements, factors and the
    /// sum are dropped or moved.
    fn product(&self, op: Op) -> Option<Vec<Interval>> {
        let operation = &self.program.module().ops[op];
        let [a, b] = [operation.operands[0], operation.operands[1]];
        let (left, right) = (self.dequantized(a)?, self.dequantized(b)?);
        let result = &self.values[operation.results[0].index()];
        let [.., n, k] = *self.values[b.index()].dims() else { return None };
        let rows = result.count().checked_div(n).unwrap_or(0);
        if rows.saturating_mul(n).saturating_mul(k) > MOST_PRODUCTS {
            return None;
        }
        let [.., m, _] = *self.values[a.index()].dims() else { return None };
        let is_batched = self.values[b.index()].dims().len() > 2;
        let gamma = k as f64 * 2f64.powi(-24);
        let unit = left.unit + right.unit + left.unit * right.unit + gamma / (1.0 - gamma) + 2f64.powi(-22);
        let factor = left.factor * right.factor;
        let alpha = scalar::round_to(ElementType::F32, factor);
        let in_range =
            alpha == 0.0 && factor == 0.0 || (2f64.powi(-126)..f64::INFINITY).contains(&alpha.abs());
        let mut all = Vec::with_capacity(result.count());
        for row in 0..rows {
            let x = &left.elements[row * k..][..k];
            let matrix = if is_batched { row / m } else { 0 };
            for column in 0..n {
                let y = &right.elements[(matrix * n + column) * k..][..k];
                let (mut sum, mut magnitude) = (0.0, 0.0);
                let mut beyond = !in_range && !factor.is_nan();
                for (x, y) in x.iter().zip(y) {
                    sum += x * y;
                    magnitude += (x.abs() + left.normal) * (y.abs() + right.normal);
                    beyond |= x.is_infinite() || y.is_infinite();
                }
                // The sum is rounded before the factors are applied.
                beyond |= alpha != 0.0 && magnitude / alpha.abs() > f64::from(f32::MAX);
                let error = unit * magnitude + alpha.abs() * 2f64.powi(-149);
                let ends = interval::round(ElementType::F32, [sum - error, sum + error]);
                all.push(if beyond { BEYOND } else { interval::round(result.element(), ends) });
            }
        }
        Some(all)
    }

    /// Follows an operand of a product back to its dequantization.
    fn dequantized(&self, value: Value) -> Option<Dequantized> {
        let module = self.program.module();
        let mut found = Dequantized {
            elements: self.values[value.index()].to_f64(),
            unit: 0.0,
            normal: 0.0,
            factor: 1.0,
        };
        let mut value = value;
        loop {
            let operation = &module.ops[module.defining_op(value)?];
            let rounds = !matches!(operation.kind, OpKind::Reshape | OpKind::Transpose { .. });
            if rounds {
                let (unit, normal) = precision(module.ty(value).element)?;
                (found.unit, found.normal) = (found.unit + unit, found.normal.max(normal));
            }
            let is_scalar = |value: &&Value| module.ty(**value).is_scalar();
            let mut factor = |value: Option<&Value>| {
                let factor = value.and_then(|value| self.values[value.index()].to_f64().first().copied());
                found.factor *= factor.unwrap_or(1.0);
            };
            match operation.kind {
                OpKind::BlockDequantize { .. } => {
                    factor(operation.operands.get(2));
                    return Some(found);
                }
                OpKind::Binary(BinaryKind::Mul) => {
                    factor(operation.operands.iter().find(is_scalar));
                    value = *operation.operands.iter().find(|value| !is_scalar(value))?;
                }
                OpKind::Convert | OpKind::Reshape | OpKind::Transpose { .. } => value = operation.operands[0],
                _ => return None,
            }
        }
    }
}

/// Dequantized elements and their roundings.
struct Dequantized {
    elements: Vec<f64>,
    /// The largest error of an element relative to its magnitude, or to `normal` if it is smaller.
    unit: f64,
    normal: f64,
    /// The product of the factors other than block scales.
    factor: f64,
}

/// Returns half the distance of neighbours at 1, and the least normal number.
fn precision(element: ElementType) -> Option<(f64, f64)> {
    match element {
        ElementType::F32 => Some((2f64.powi(-24), 2f64.powi(-126))),
        ElementType::BF16 => Some((2f64.powi(-8), 2f64.powi(-126))),
        ElementType::F16 => Some((2f64.powi(-11), 2f64.powi(-14))),
        _ => None,
    }
}

/// An operand of an elementwise op.
struct Operand<'a> {
    ends: Option<&'a [Interval]>,
    points: Vec<f64>,
    /// The strides along the axes of the result.
    strides: Vec<usize>,
}

impl Operand<'_> {
    fn of(&self, index: &[usize]) -> Interval {
        self.at(index.iter().zip(&self.strides).map(|(index, stride)| index * stride).sum())
    }

    fn at(&self, flat: usize) -> Interval {
        match self.ends {
            Some(ends) => ends[flat],
            None => [self.points[flat]; 2],
        }
    }
}

/// Returns the strides of an operand along each axis of the result; 0 where it is broadcast.
fn strides(kind: &OpKind, operand: &[usize], result: &[usize]) -> Vec<usize> {
    let mut next = 1;
    let mut own = vec![0; operand.len()];
    for (stride, extent) in own.iter_mut().zip(operand).rev() {
        *stride = if *extent == 1 { 0 } else { next };
        next *= extent;
    }
    if let OpKind::Transpose { permutation } = kind {
        return permutation.iter().map(|axis| own[*axis as usize]).collect();
    }
    let leading = result.len().saturating_sub(operand.len());
    std::iter::repeat_n(0, leading).chain(own).collect()
}

fn advance(index: &mut [usize], dims: &[usize]) {
    for (index, extent) in index.iter_mut().zip(dims).rev() {
        *index += 1;
        if *index < *extent {
            return;
        }
        *index = 0;
    }
}

/// Returns true if each element of the result follows from one element of each operand.
fn is_followed(kind: &OpKind) -> bool {
    use OpKind::{Binary, Broadcast, Clamp, Compare, Convert, Reshape, Select, Transpose, Unary};
    matches!(
        kind,
        Unary(_)
            | Binary(_)
            | Clamp { .. }
            | Compare(_)
            | Select
            | Convert
            | Reshape
            | Transpose { .. }
            | Broadcast
    )
}

/// Returns the interval of a result before it is rounded; `None` for an op that is not followed.
fn step(kind: &OpKind, operands: &[Interval]) -> Option<Interval> {
    Some(match kind {
        OpKind::Unary(kind) => {
            let exact = interval::sound(interval::unary(*kind, operands[0]));
            if is_correctly_rounded(*kind) { exact } else { interval::widened(exact) }
        }
        OpKind::Binary(kind) => interval::sound(interval::binary(*kind, operands[0], operands[1])),
        OpKind::Clamp { min, max } => interval::sound(operands[0].map(|x| scalar::clamp(x, *min, *max))),
        OpKind::Compare(predicate) => interval::compare(*predicate, operands[0], operands[1]),
        OpKind::Select => interval::select(operands[0], operands[1], operands[2]),
        OpKind::Convert | OpKind::Reshape | OpKind::Transpose { .. } | OpKind::Broadcast => operands[0],
        _ => return None,
    })
}

/// Rounds an interval. If the rounding was dropped, the result contains the unrounded ends too.
fn rounded(element: ElementType, ends: Interval, is_contracted: bool) -> Interval {
    if element == ElementType::I1 {
        return ends;
    }
    let [low, high] = interval::round(element, ends);
    if is_contracted { [low.min(ends[0]), high.max(ends[1])] } else { [low, high] }
}
