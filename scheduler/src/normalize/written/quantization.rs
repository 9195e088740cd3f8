//! Matches a block quantization written out op by op, from its conversion to FP4 backwards.

use std::borrow::Cow;

use fourfold_ir::numeric::{CodeFormula, Nvfp4Formula, ScaleMin, Scaling};
use fourfold_ir::{BinaryKind, ElementType, Module, Op, OpKind, ReduceKind, UnaryKind, Value};

use super::values::Graph;

/// The maximum number of bounds and scalings on one path, so that the time is linear.
const MOST_OPS: usize = 8;

/// A quantization that equals a `block_quantize`.
pub(crate) struct Quantization {
    /// The values, as a tensor that has whole blocks along its last axis.
    pub(crate) values: Value,
    /// The per-tensor scale, as the program uses it.
    pub(crate) global: Option<Value>,
    pub(crate) formula: Nvfp4Formula,
    /// The conversion to scales.
    pub(crate) scales: Op,
    /// All matched ops.
    pub(crate) ops: Vec<Op>,
}

/// The op of a written-out quantization that no `block_quantize` contains.
pub(crate) struct Difference {
    pub(crate) op: Op,
    pub(crate) expected: Cow<'static, str>,
}

/// The way in which a per-tensor scale enters.
#[derive(Clone, Copy)]
enum Global {
    None,
    Divides(Value),
    Multiplies(Value),
}

/// The scale of a block before it is rounded.
struct Scale {
    scale_min: ScaleMin,
    amax: Scaling,
    global: Global,
    /// The values behind moves and conversions.
    values: Value,
}

/// Matches the quantization that ends in this conversion to FP4.
pub(crate) fn quantization(module: &Module, anchor: Op) -> Result<Quantization, Difference> {
    let mut graph = Graph::new(module);
    graph.matched.push(anchor);
    let codes = codes(&mut graph, anchor)?;
    let scale = scale(&mut graph, codes.scales)?;
    let differs = |expected: &'static str| Difference { op: codes.op, expected: expected.into() };
    let behind = graph.moved(codes.values);
    if behind.last() != Some(&scale.values) {
        return Err(differs("the values whose largest magnitudes give the scales"));
    }
    let has_blocks = |value: &&Value| {
        let ty = module.ty(**value);
        let whole = ty.shape.last().is_some_and(|last| last.is_multiple_of(16) && last.as_fixed() != Some(0));
        ty.element.is_arithmetic() && ty.rank() >= 2 && whole
    };
    let Some(values) = behind.iter().rev().find(has_blocks).copied() else {
        return Err(differs("values with at least two axes"));
    };
    let (global, scaling) = match scale.global {
        Global::None => (None, Scaling::Divide),
        Global::Divides(g) => (Some(g), Scaling::Divide),
        Global::Multiplies(g) => (Some(g), Scaling::Multiply),
    };
    let agrees = match (codes.formula, scale.global, codes.global) {
        (CodeFormula::ReciprocalScale, Global::Divides(g), Global::Multiplies(factor)) => {
            graph.is_reciprocal(factor, g)
        }
        (CodeFormula::ReciprocalScale, Global::Multiplies(g), Global::Multiplies(factor)) => {
            graph.same_scalar(factor, g)
        }
        (CodeFormula::ReciprocalScale, ..) => false,
        (_, Global::None, Global::None) => true,
        (_, Global::Divides(g), Global::Multiplies(factor))
        | (_, Global::Multiplies(g), Global::Divides(factor)) => graph.same_scalar(factor, g),
        _ => false,
    };
    if !agrees {
        let expected = "the per-tensor scale of the scales, which enters the codes inversely";
        return Err(Difference { op: codes.global_op, expected: expected.into() });
    }
    let formula = Nvfp4Formula {
        scale_min: scale.scale_min,
        amax: scale.amax,
        global: scaling,
        codes: codes.formula,
        guard: false,
        ..Nvfp4Formula::DEFAULT
    };
    let mut ops = graph.matched;
    ops.sort_unstable();
    ops.dedup();
    let scales = module.defining_op(codes.scales).unwrap_or(anchor);
    Ok(Quantization { values, global, formula, scales, ops })
}

/// The computation of codes from values and scales.
struct Codes {
    /// The quotient or product.
    op: Op,
    values: Value,
    formula: CodeFormula,
    global: Global,
    /// The op in which the per-tensor scale enters.
    global_op: Op,
    /// The converted scales.
    scales: Value,
}

fn codes(graph: &mut Graph<'_>, anchor: Op) -> Result<Codes, Difference> {
    const QUOTIENT: &str =
        "a quotient of the values and their step, or a product with its reciprocal, in f32";
    let operand = graph.module.ops[anchor].operands[0];
    let (scaled, _) = bounded(graph, operand, [-6.0, 6.0])?;
    let found = graph.definition(scaled).filter(|_| graph.ty(scaled).element == ElementType::F32);
    let Some((op, operation)) = found else {
        return Err(Difference { op: anchor, expected: QUOTIENT.into() });
    };
    graph.matched.push(op);
    let full = &graph.ty(scaled).shape;
    let (values, per_block) = match (&operation.kind, &operation.operands[..]) {
        (OpKind::Binary(BinaryKind::Div), &[left, right]) => (left, graph.per_block(right, full, 16)),
        (OpKind::Binary(BinaryKind::Mul), &[left, right]) => match graph.per_block(right, full, 16) {
            Some(factor) => (left, Some(factor)),
            None => (right, graph.per_block(left, full, 16)),
        },
        _ => return Err(Difference { op, expected: QUOTIENT.into() }),
    };
    let Some(per_block) = per_block else {
        let expected = "one step per block of 16 along the last axis";
        return Err(Difference { op, expected: expected.into() });
    };
    if operation.kind == OpKind::Binary(BinaryKind::Div) {
        let (scales, global, global_op) = step(graph, per_block, op)?;
        return Ok(Codes { op, values, formula: CodeFormula::Quotient, global, global_op, scales });
    }
    let factor = graph.flat(per_block);
    let found = graph.definition(factor).filter(|_| graph.ty(factor).element == ElementType::F32);
    let Some((factor_op, operation)) = found else {
        return Err(Difference { op, expected: "the reciprocal of a step in f32".into() });
    };
    graph.matched.push(factor_op);
    let divisor = match (&operation.kind, &operation.operands[..]) {
        (OpKind::Unary(UnaryKind::Reciprocal), &[divisor]) => divisor,
        (OpKind::Binary(BinaryKind::Div), &[one, divisor]) if graph.number(one) == Some(1.0) => divisor,
        (OpKind::Binary(BinaryKind::Div), &[numerator, divisor]) if graph.ty(numerator).is_scalar() => {
            let scales = graph.flat(divisor);
            let formula = CodeFormula::ReciprocalScale;
            let global = Global::Multiplies(numerator);
            return Ok(Codes { op, values, formula, global, global_op: factor_op, scales });
        }
        _ => return Err(Difference { op: factor_op, expected: "the reciprocal of a step".into() }),
    };
    let (scales, global, global_op) = step(graph, divisor, factor_op)?;
    Ok(Codes { op, values, formula: CodeFormula::ReciprocalStep, global, global_op, scales })
}

/// The scales of a step, and the op in which the per-tensor scale enters it.
fn step(graph: &mut Graph<'_>, value: Value, user: Op) -> Result<(Value, Global, Op), Difference> {
    const STEP: &str = "scales in f8E4M3FN, perhaps scaled in f32 by one number per tensor";
    let value = graph.flat(value);
    if is_fp8(graph, value) {
        return Ok((value, Global::None, user));
    }
    let found = graph.definition(value).filter(|_| graph.ty(value).element == ElementType::F32);
    let Some((op, operation)) = found else { return Err(Difference { op: user, expected: STEP.into() }) };
    graph.matched.push(op);
    let differs = Err(Difference { op, expected: STEP.into() });
    let (OpKind::Binary(kind), &[left, right]) = (&operation.kind, &operation.operands[..]) else {
        return differs;
    };
    let [left_flat, right_flat] = [left, right].map(|side| graph.flat(side));
    let (scales, side, global) = match kind {
        BinaryKind::Mul if is_fp8(graph, left_flat) => (left_flat, left, right),
        BinaryKind::Mul if is_fp8(graph, right_flat) => (right_flat, right, left),
        BinaryKind::Div if is_fp8(graph, left_flat) => (left_flat, left, right),
        _ => return differs,
    };
    if !graph.is_uniform(global, side, value) || graph.scalar(global).is_none() {
        return differs;
    }
    let global = if *kind == BinaryKind::Mul { Global::Multiplies(global) } else { Global::Divides(global) };
    Ok((scales, global, op))
}

fn is_fp8(graph: &Graph<'_>, value: Value) -> bool {
    let ty = graph.ty(value);
    ty.element == ElementType::F8E4M3FN && ty.layout.is_none()
}

fn scale(graph: &mut Graph<'_>, scales: Value) -> Result<Scale, Difference> {
    let converted = graph.definition(scales).filter(|(_, operation)| operation.kind == OpKind::Convert);
    let Some((convert, operation)) = converted.filter(|_| is_fp8(graph, scales)) else {
        let op = graph.module.defining_op(scales).or(graph.matched.last().copied());
        let op = op.unwrap_or(graph.matched[0]);
        return Err(Difference { op, expected: "scales converted to f8E4M3FN".into() });
    };
    graph.matched.push(convert);
    let (t, least) = bounded(graph, operation.operands[0], [f64::NEG_INFINITY, 448.0])?;
    let Some(scale_min) = ScaleMin::new(least as f32) else {
        return Err(Difference { op: convert, expected: "a lower bound of at most 448".into() });
    };
    let (amax, factors) = factors(graph, t, convert)?;
    let (inner, outer) = match factors[..] {
        [inner] => (inner, None),
        [outer, inner] => (inner, Some(outer)),
        _ => {
            return Err(Difference {
                op: convert,
                expected: "amax / 6, perhaps scaled by one number per tensor".into(),
            });
        }
    };
    let sixth = f64::from(1.0f32 / 6.0);
    let scaling = match (inner.kind, graph.number(inner.by)) {
        (BinaryKind::Div, Some(6.0)) => Scaling::Divide,
        (BinaryKind::Mul, Some(number)) if number.to_bits() == sixth.to_bits() => Scaling::Multiply,
        _ => return Err(Difference { op: inner.op, expected: "amax / 6 or amax · rn(1/6)".into() }),
    };
    let is_scalar = |graph: &mut Graph<'_>, factor: Factor| graph.scalar(factor.by).is_some();
    let global = match outer {
        Some(factor) if !is_scalar(graph, factor) => {
            return Err(Difference {
                op: factor.op,
                expected: "a per-tensor scale of shape [] or [1]".into(),
            });
        }
        None => Global::None,
        Some(Factor { kind: BinaryKind::Div, by, .. }) => Global::Divides(by),
        Some(Factor { by, .. }) => Global::Multiplies(by),
    };
    let values = magnitudes(graph, amax, 16)?;
    Ok(Scale { scale_min, amax: scaling, global, values })
}

/// A factor on the path from amax to the scale.
#[derive(Clone, Copy)]
struct Factor {
    op: Op,
    kind: BinaryKind,
    by: Value,
}

/// The reduction behind uniform factors, and the factors, the outermost first.
fn factors(graph: &mut Graph<'_>, t: Value, user: Op) -> Result<(Op, Vec<Factor>), Difference> {
    const SCALED: &str = "the largest magnitude of a block, scaled in f32 by one number per tensor";
    let (mut current, mut user, mut found) = (graph.flat(t), user, Vec::new());
    loop {
        let Some((op, operation)) = graph.definition(current) else {
            return Err(Difference { op: user, expected: SCALED.into() });
        };
        graph.matched.push(op);
        let differs = Difference { op, expected: SCALED.into() };
        let (kind, x, by) = match (&operation.kind, &operation.operands[..]) {
            (OpKind::Reduce { .. }, _) => return Ok((op, found)),
            (OpKind::Binary(BinaryKind::Div), &[x, by]) => (BinaryKind::Div, x, by),
            (OpKind::Binary(BinaryKind::Mul), &[left, right]) => {
                let (x, by) = match [left, right].map(|side| graph.ty(side).is_scalar()) {
                    [true, false] => (right, left),
                    [false, true] => (left, right),
                    _ if leads_to_reduction(graph, left) => (left, right),
                    _ => (right, left),
                };
                (BinaryKind::Mul, x, by)
            }
            _ => return Err(differs),
        };
        let is_f32 = graph.ty(current).element == ElementType::F32;
        if !is_f32 || !graph.is_uniform(by, x, current) || found.len() > 2 {
            return Err(differs);
        }
        found.push(Factor { op, kind, by });
        (current, user) = (graph.flat(x), op);
    }
}

/// Returns whether a value is a reduction, behind at most two factors.
fn leads_to_reduction(graph: &mut Graph<'_>, value: Value) -> bool {
    let mut open = vec![(value, 2)];
    let length = graph.matched.len();
    let mut leads = false;
    while let Some((value, left)) = open.pop() {
        let flat = graph.flat(value);
        let Some((_, operation)) = graph.definition(flat) else { continue };
        match operation.kind {
            OpKind::Reduce { .. } => leads = true,
            OpKind::Binary(_) if left > 0 => {
                open.extend(operation.operands.iter().map(|operand| (*operand, left - 1)));
            }
            _ => {}
        }
    }
    graph.matched.truncate(length);
    leads
}

/// The values whose largest magnitudes per block a reduction finds, behind moves and conversions.
pub(crate) fn magnitudes(graph: &mut Graph<'_>, reduction: Op, block: u64) -> Result<Value, Difference> {
    let operation = &graph.module.ops[reduction];
    let OpKind::Reduce { kind, axes, .. } = &operation.kind else {
        return Err(Difference { op: reduction, expected: "a reduction".into() });
    };
    let operand = operation.operands[0];
    let shape = &graph.ty(operand).shape;
    let is_last = axes.len() == 1 && axes[0] as usize + 1 == shape.len();
    if !is_last || shape.last().and_then(fourfold_ir::Dim::as_fixed) != Some(block) {
        return Err(Difference {
            op: reduction,
            expected: format!("blocks of {block} along the last axis").into(),
        });
    }
    if !matches!(kind, ReduceKind::Max | ReduceKind::Amax) {
        return Err(Difference {
            op: reduction,
            expected: "the largest magnitude: max of abs, or amax".into(),
        });
    }
    let flat = graph.flat(operand);
    match graph.definition(flat) {
        Some((op, operation)) if operation.kind == OpKind::Unary(UnaryKind::Abs) => {
            graph.matched.push(op);
            Ok(graph.flat(operation.operands[0]))
        }
        _ if *kind == ReduceKind::Amax => Ok(flat),
        _ => Err(Difference { op: reduction, expected: "the largest magnitude: max of abs, or amax".into() }),
    }
}

/// The value behind bounds that a conversion also imposes, and the largest lower bound. An upper bound must be at least
/// `most`. A lower bound must be at most `least`, unless that is minus infinity.
pub(crate) fn bounded(
    graph: &mut Graph<'_>,
    value: Value,
    [least, most]: [f64; 2],
) -> Result<(Value, f64), Difference> {
    let (mut current, mut lower) = (value, f64::NEG_INFINITY);
    for _ in 0..MOST_OPS {
        let Some((op, operation)) = graph.definition(current) else { break };
        let (below, above, operand) = match (&operation.kind, &operation.operands[..]) {
            (OpKind::Reshape, &[x]) => (f64::NEG_INFINITY, f64::INFINITY, x),
            (OpKind::Convert, &[x]) if graph.ty(x).element == graph.ty(current).element => {
                (f64::NEG_INFINITY, f64::INFINITY, x)
            }
            (OpKind::Clamp { min, max }, &[x]) => (*min, *max, x),
            (OpKind::Unary(UnaryKind::Relu), &[x]) => (0.0, f64::INFINITY, x),
            (OpKind::Binary(kind @ (BinaryKind::Max | BinaryKind::Min)), &[left, right]) => {
                let (x, bound) = match graph.number(right) {
                    Some(bound) => (left, bound),
                    None => match graph.number(left) {
                        Some(bound) => (right, bound),
                        None => break,
                    },
                };
                let other = if x == left { right } else { left };
                if bound.is_nan() || !graph.is_uniform(other, x, current) {
                    return Err(Difference { op, expected: "a bound that is one number".into() });
                }
                match kind {
                    BinaryKind::Max => (bound, f64::INFINITY, x),
                    _ => (f64::NEG_INFINITY, bound, x),
                }
            }
            _ => break,
        };
        if graph.ty(operand).element != ElementType::F32 {
            break;
        }
        if above < most {
            return Err(Difference { op, expected: format!("an upper bound of at least {most}").into() });
        }
        if least.is_finite() && below > least {
            return Err(Difference { op, expected: format!("a lower bound of at most {least}").into() });
        }
        // The bound has the type of the value. Of two zeros, +0 is the larger.
        let below = f64::from(below as f32);
        lower = fourfold_ir::scalar::binary(BinaryKind::Max, lower, below);
        graph.matched.push(op);
        current = operand;
    }
    Ok((current, lower))
}
