//! Matches a `layer_norm` or a `softmax` written out op by op, from its last op.

use fourfold_ir::{BinaryKind, Dim, ElementType, Module, Op, OpKind, ReduceKind, Shape, UnaryKind, Value};

use super::values::Graph;

/// The maximum number of moves and conversions to look through, so that the time is linear.
const MOST_MOVES: usize = 8;

/// A `layer_norm` or a `softmax` that equals the matched ops, except for roundings.
pub(crate) struct Norm {
    pub(crate) kind: OpKind,
    pub(crate) x: Value,
    /// The factor and the addend of a `layer_norm`: one element for each of the last axis, in a shape of any rank.
    pub(crate) weight: Option<Value>,
    pub(crate) bias: Option<Value>,
    /// All matched ops, the last op of the program first.
    pub(crate) ops: Vec<Op>,
}

/// Matches the layer norm of which this op is the last. Its bias comes last, then its weight; either may be missing.
pub(crate) fn layer_norm(module: &Module, last: Op) -> Option<Norm> {
    let result = *module.ops[last].results.first()?;
    let mut matcher = Matcher::new(module, result)?;
    let found = (matcher.biased(result)).or_else(|| {
        matcher.matched.clear();
        matcher.weighted(result).map(|(core, weight)| (core, weight, None))
    })?;
    let (core, weight, bias) = found;
    // The op computes the variance of what it normalizes.
    let kind = OpKind::LayerNorm { eps: core.eps };
    let norm = Norm { kind, x: core.x, weight, bias, ops: matcher.matched };
    let operands = [Some(norm.x), norm.weight, norm.bias];
    let joined = operands.into_iter().flatten().map(|value| module.ty(value).element);
    let joined =
        joined.map(Some).reduce(|left, right| if left == right { left } else { left?.join(right?) })?;
    (joined == Some(module.ty(result).element) && is_computed_in_range(module, &norm.ops)).then_some(norm)
}

/// Matches the softmax of which this op is the last.
pub(crate) fn softmax(module: &Module, last: Op) -> Option<Norm> {
    let result = *module.ops[last].results.first()?;
    let mut matcher = Matcher::new(module, result)?;
    let quotient = matcher.quotient(result)?;
    let exp = matcher.unrounded(quotient.dividend);
    let shifted = matcher.unary(exp, UnaryKind::Exp)?;
    let shifted = matcher.unrounded(shifted);
    let [x, max] = matcher.binary(shifted, BinaryKind::Sub)?;
    let (axis, of) = matcher.reduced(max, ReduceKind::Max)?;
    let (axis_of_sum, summed) = matcher.reduction(quotient.row, ReduceKind::Sum)?;
    let summed = matcher.unrounded(summed);
    let is_sum = !quotient.multiplies && quotient.kept == matcher.kept(axis as usize);
    let is_same = is_sum && axis == axis_of_sum && summed == exp && matcher.is_same(of, x);
    let norm = Norm { kind: OpKind::Softmax { axis }, x, weight: None, bias: None, ops: matcher.matched };
    (is_same && module.ty(x) == module.ty(result) && is_computed_in_range(module, &norm.ops)).then_some(norm)
}

/// Returns whether every intermediate has the range of f32. In f16, squares overflow at 256.
fn is_computed_in_range(module: &Module, ops: &[Op]) -> bool {
    let results = ops.iter().flat_map(|op| &module.ops[*op].results);
    results.map(|result| module.ty(*result).element).all(has_range_of_f32)
}

fn has_range_of_f32(element: ElementType) -> bool {
    matches!(element, ElementType::F32 | ElementType::BF16)
}

/// A quotient whose divisor is one number per row.
struct Quotient {
    dividend: Value,
    /// The divisor, or the factor if `multiplies`, before it is repeated.
    row: Value,
    multiplies: bool,
    /// The shape of the row, with an extent of 1 along the axis of its repetition.
    kept: Shape,
}

/// A layer norm without weight and bias.
struct Core {
    x: Value,
    eps: f64,
}

struct Matcher<'m> {
    module: &'m Module,
    /// The shape of the result.
    full: &'m Shape,
    matched: Vec<Op>,
}

impl<'m> Matcher<'m> {
    /// `None` for a scalar, which has no axis.
    fn new(module: &'m Module, result: Value) -> Option<Matcher<'m>> {
        let full = &module.ty(result).shape;
        (!full.is_empty()).then_some(Matcher { module, full, matched: Vec::new() })
    }

    fn shape(&self, value: Value) -> &'m Shape {
        &self.module.ty(value).shape
    }

    /// Looks through conversions between f32 and bf16: their roundings are dropped.
    fn unrounded(&mut self, value: Value) -> Value {
        let mut current = value;
        for _ in 0..MOST_MOVES {
            let Some(op) = self.module.defining_op(current) else { break };
            let operation = &self.module.ops[op];
            let operand = match operation.kind {
                OpKind::Convert => operation.operands[0],
                _ => break,
            };
            if ![current, operand].iter().all(|value| has_range_of_f32(self.module.ty(*value).element)) {
                break;
            }
            self.matched.push(op);
            current = operand;
        }
        current
    }

    /// Returns whether two values are the same, except for conversions that round nothing.
    fn is_same(&self, left: Value, right: Value) -> bool {
        let source = |value: Value| {
            let mut graph = Graph::new(self.module);
            let shape = self.shape(value);
            graph.moved(value).into_iter().take_while(|moved| self.shape(*moved) == shape).last()
        };
        left == right || source(left) == source(right)
    }

    /// The operands of a binary op, which is recorded.
    fn binary(&mut self, value: Value, kind: BinaryKind) -> Option<[Value; 2]> {
        let op = self.module.defining_op(value)?;
        let operation = &self.module.ops[op];
        let (OpKind::Binary(found), &[left, right]) = (&operation.kind, &operation.operands[..]) else {
            return None;
        };
        (*found == kind).then(|| {
            self.matched.push(op);
            [left, right]
        })
    }

    /// The operand of a unary op, which is recorded.
    fn unary(&mut self, value: Value, kind: UnaryKind) -> Option<Value> {
        let op = self.module.defining_op(value)?;
        let operation = &self.module.ops[op];
        (operation.kind == OpKind::Unary(kind)).then(|| {
            self.matched.push(op);
            operation.operands[0]
        })
    }

    /// Tries a match, and forgets the ops that it recorded if it fails.
    fn attempt<T>(&mut self, run: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let known = self.matched.len();
        let found = run(self);
        if found.is_none() {
            self.matched.truncate(known);
        }
        found
    }

    /// The number that every element of a value is. Its ops are not recorded, because others may share a constant.
    fn number(&self, value: Value) -> Option<f64> {
        Graph::new(self.module).number(value)
    }

    fn is_number(&self, value: Value, number: f64) -> bool {
        self.number(value) == Some(number)
    }

    /// normalized · weight + bias.
    fn biased(&mut self, value: Value) -> Option<(Core, Option<Value>, Option<Value>)> {
        let [left, right] = self.binary(value, BinaryKind::Add)?;
        [[left, right], [right, left]].into_iter().find_map(|[product, bias]| {
            self.attempt(|matcher| {
                let bias = matcher.per_channel(bias)?;
                let product = matcher.unrounded(product);
                let (core, weight) = matcher.weighted(product)?;
                Some((core, weight, Some(bias)))
            })
        })
    }

    /// normalized · weight, or the normalized values alone.
    fn weighted(&mut self, value: Value) -> Option<(Core, Option<Value>)> {
        let with_weight = self.attempt(|matcher| {
            let [left, right] = matcher.binary(value, BinaryKind::Mul)?;
            [[left, right], [right, left]].into_iter().find_map(|[normalized, weight]| {
                matcher.attempt(|matcher| {
                    let weight = matcher.per_channel(weight)?;
                    let normalized = matcher.unrounded(normalized);
                    Some((matcher.normalized(normalized)?, Some(weight)))
                })
            })
        });
        with_weight.or_else(|| self.attempt(|matcher| Some((matcher.normalized(value)?, None))))
    }

    /// A value with one element for each of the last axis, which is repeated along the others.
    fn per_channel(&mut self, value: Value) -> Option<Value> {
        let last = self.full.last()?;
        let is_vector = |shape: &Shape| {
            let [others @ .., own] = &shape[..] else { return false };
            own == last && others.iter().all(|dim| dim.as_fixed() == Some(1))
        };
        let mut current = value;
        for _ in 0..MOST_MOVES {
            let Some(op) = self.module.defining_op(current) else { break };
            let operation = &self.module.ops[op];
            let (OpKind::Broadcast | OpKind::Reshape) = operation.kind else { break };
            let operand = operation.operands[0];
            if !is_vector(self.shape(operand)) {
                break;
            }
            self.matched.push(op);
            current = operand;
        }
        is_vector(self.shape(current)).then_some(current)
    }

    /// (x - mean) / sqrt(var + eps).
    fn normalized(&mut self, value: Value) -> Option<Core> {
        if self.shape(value) != self.full {
            return None;
        }
        let quotient = self.quotient(value)?;
        let centered = self.unrounded(quotient.dividend);
        let x = self.centered(centered)?;
        let sum = self.radicand(quotient.row, quotient.multiplies)?;
        let sum = self.unrounded(sum);
        let [left, right] = self.binary(sum, BinaryKind::Add)?;
        let (variance, eps) = match (self.number(left), self.number(right)) {
            (None, Some(eps)) => (left, eps),
            (Some(eps), None) => (right, eps),
            _ => return None,
        };
        // Without eps, a variance that underflows gives infinity here, but not in f64.
        if !(f64::from(f32::MIN_POSITIVE)..1e30).contains(&eps) {
            return None;
        }
        let square = self.mean(variance, sum)?;
        let square = self.unrounded(square);
        let of = self.square(square)?;
        let of = self.unrounded(of);
        let again = if of == centered { x } else { self.centered(of)? };
        let is_whole = quotient.kept == self.kept(self.full.len() - 1) && self.shape(x) == self.full;
        (is_whole && self.is_same(x, again)).then_some(Core { x, eps })
    }

    /// Matches a / b, a · (1 / b) or a · rsqrt(c), where b or rsqrt(c) is one number per row.
    fn quotient(&mut self, value: Value) -> Option<Quotient> {
        if let Some([dividend, divisor]) = self.attempt(|matcher| matcher.binary(value, BinaryKind::Div)) {
            let kept = self.row_shape(divisor)?;
            let row = self.per_row(divisor, &kept)?;
            return Some(Quotient { dividend, row, multiplies: false, kept });
        }
        let [left, right] = self.binary(value, BinaryKind::Mul)?;
        [[left, right], [right, left]].into_iter().find_map(|[dividend, factor]| {
            self.attempt(|matcher| {
                let kept = matcher.row_shape(factor)?;
                let row = matcher.per_row(factor, &kept)?;
                let divisor = matcher.attempt(|matcher| {
                    if let Some(divisor) = matcher.unary(row, UnaryKind::Reciprocal) {
                        return Some(divisor);
                    }
                    let [one, divisor] = matcher.binary(row, BinaryKind::Div)?;
                    matcher.is_number(one, 1.0).then_some(divisor)
                });
                let multiplies = divisor.is_none();
                let row = divisor.map_or(row, |divisor| matcher.unrounded(divisor));
                Some(Quotient { dividend, row, multiplies, kept })
            })
        })
    }

    /// The value under a square root. If `inverted`, the reciprocal of the root is taken.
    fn radicand(&mut self, value: Value, inverted: bool) -> Option<Value> {
        let root = if inverted { UnaryKind::Rsqrt } else { UnaryKind::Sqrt };
        if let Some(radicand) = self.unary(value, root) {
            return Some(radicand);
        }
        let [base, exponent] = self.binary(value, BinaryKind::Pow)?;
        self.is_number(exponent, if inverted { -0.5 } else { 0.5 }).then_some(base)
    }

    /// The x of x - mean(x).
    fn centered(&mut self, value: Value) -> Option<Value> {
        let [x, mean] = self.binary(value, BinaryKind::Sub)?;
        let kept = self.kept(self.full.len() - 1);
        let row = self.per_row(mean, &kept)?;
        let of = self.mean(row, row)?;
        self.is_same(of, x).then_some(x)
    }

    /// The values whose mean along the last axis this is. `like` has the same shape.
    fn mean(&mut self, value: Value, like: Value) -> Option<Value> {
        if self.shape(value) != self.shape(like) {
            return None;
        }
        let kept = self.shape(like).clone();
        let row = self.per_row(value, &kept)?;
        if let Some((axis, of)) = self.attempt(|matcher| matcher.reduction(row, ReduceKind::Mean)) {
            return self.is_last(axis).then_some(of);
        }
        let count = self.full.last()?.as_fixed()? as f64;
        let divided = self.attempt(|matcher| matcher.binary(row, BinaryKind::Div));
        let sum = match divided {
            Some([sum, divisor]) => self.is_number(divisor, count).then_some(sum),
            None => {
                let reciprocal = f64::from((1.0 / count) as f32);
                let [left, right] = self.binary(row, BinaryKind::Mul)?;
                let pair = [[left, right], [right, left]].into_iter();
                pair.into_iter().find(|[_, factor]| self.is_number(*factor, reciprocal)).map(|[sum, _]| sum)
            }
        }?;
        let sum = self.unrounded(sum);
        let (axis, of) = self.reduction(sum, ReduceKind::Sum)?;
        self.is_last(axis).then_some(of)
    }

    /// The values of which this is the square.
    fn square(&mut self, value: Value) -> Option<Value> {
        if let Some([left, right]) = self.attempt(|matcher| matcher.binary(value, BinaryKind::Mul)) {
            return (left == right || self.is_same(left, right)).then_some(left);
        }
        let [base, exponent] = self.binary(value, BinaryKind::Pow)?;
        self.is_number(exponent, 2.0).then_some(base)
    }

    fn is_last(&self, axis: u32) -> bool {
        axis as usize + 1 == self.full.len()
    }

    /// The axis and the operand of a reduction, from a value that is repeated along the axis.
    fn reduced(&mut self, value: Value, kind: ReduceKind) -> Option<(u32, Value)> {
        let kept = self.row_shape(value)?;
        let row = self.per_row(value, &kept)?;
        let (axis, operand) = self.reduction(row, kind)?;
        (self.kept(axis as usize) == kept).then_some((axis, operand))
    }

    /// The axis and the operand of a reduction of a tensor of the whole shape along one axis.
    fn reduction(&mut self, value: Value, wanted: ReduceKind) -> Option<(u32, Value)> {
        let op = self.module.defining_op(value)?;
        let operation = &self.module.ops[op];
        let OpKind::Reduce { kind, axes, .. } = &operation.kind else { return None };
        let (&[axis], operand) = (&axes[..], operation.operands[0]) else { return None };
        (*kind == wanted && self.shape(operand) == self.full).then(|| {
            self.matched.push(op);
            (axis, operand)
        })
    }

    /// The whole shape with an extent of 1 along an axis.
    fn kept(&self, axis: usize) -> Shape {
        let mut shape = self.full.clone();
        shape[axis] = Dim::fixed(1);
        shape
    }

    /// The shape of a value that is repeated along one axis, before it is repeated.
    fn row_shape(&self, value: Value) -> Option<Shape> {
        let mut current = value;
        for _ in 0..MOST_MOVES {
            let shape = self.shape(current);
            let axes = 0..self.full.len();
            if shape != self.full
                && let Some(axis) = axes.into_iter().find(|axis| *shape == self.kept(*axis))
            {
                return Some(self.kept(axis));
            }
            let op = self.module.defining_op(current)?;
            let operation = &self.module.ops[op];
            let (OpKind::Broadcast | OpKind::Convert) = operation.kind else { break };
            current = operation.operands[0];
        }
        // A single element per row.
        let last = self.full.len() - 1;
        (*self.shape(value) == self.kept(last)).then(|| self.kept(last))
    }

    /// Looks through roundings, the repetition along an axis, and a reshape that adds this axis. `kept` is the shape
    /// before the repetition.
    fn per_row(&mut self, value: Value, kept: &Shape) -> Option<Value> {
        if self.shape(value) != kept && self.shape(value) != self.full {
            return None;
        }
        let mut current = self.unrounded(value);
        for _ in 0..MOST_MOVES {
            let Some(op) = self.module.defining_op(current) else { break };
            let operation = &self.module.ops[op];
            let operand = match operation.kind {
                OpKind::Broadcast | OpKind::Reshape => operation.operands[0],
                _ => break,
            };
            let (from, to) = (self.shape(operand), self.shape(current));
            let is_repeated = operation.kind == OpKind::Broadcast && from == kept && to == self.full;
            let adds_axis = operation.kind == OpKind::Reshape && to == kept && without_ones(kept, from);
            if !is_repeated && !adds_axis {
                break;
            }
            self.matched.push(op);
            current = self.unrounded(operand);
        }
        Some(current)
    }
}

/// Returns whether a shape is another one without an axis of extent 1.
fn without_ones(longer: &Shape, shorter: &Shape) -> bool {
    longer.len() == shorter.len() + 1
        && (0..longer.len()).any(|axis| {
            longer[axis].as_fixed() == Some(1)
                && longer[..axis] == shorter[..axis]
                && longer[axis + 1..] == shorter[axis..]
        })
}
