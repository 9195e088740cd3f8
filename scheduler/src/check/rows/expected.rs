//! The steps that an op requires of a row kernel.

use fourfold_ir::{
    BinaryKind, ElementType, Module, Op, OpKind, QuantizedFormat, ReduceKind, RowCapability, UnaryKind, Value,
};

use super::{Checked, Checker, require};
use crate::plan::{RowOutput, RowOutputKind, RowRef, RowShape, RowStepKind};

/// The bits of a number: of an f32 that holds it exactly, or of an integer.
pub(super) fn bits(element: ElementType, number: f64) -> u32 {
    match element {
        ElementType::I32 => number as i32 as u32,
        ElementType::I1 => u32::from(number != 0.0),
        _ => {
            let rounded = fourfold_ir::scalar::round_to(element, number);
            if rounded.is_nan() { 0x7FC0_0000 } else { (rounded as f32).to_bits() }
        }
    }
}

/// The kind of the only step of an elementwise op; `None` for other ops.
pub(super) fn kind(module: &Module, op: Op) -> Option<RowStepKind> {
    let operation = &module.ops[op];
    Some(match operation.kind {
        OpKind::Convert => RowStepKind::Convert,
        OpKind::Bitcast => RowStepKind::Bitcast,
        OpKind::Unary(kind) => RowStepKind::Unary(kind),
        OpKind::Binary(kind) => RowStepKind::Binary(kind),
        OpKind::Bitwise(kind) => RowStepKind::Bitwise(kind),
        OpKind::Compare(predicate) => RowStepKind::Compare(predicate),
        OpKind::Select => RowStepKind::Select,
        OpKind::BlockDequantize { .. } => RowStepKind::Dequantize,
        OpKind::Clamp { min, max } => {
            let element = module.ty(operation.operands[0]).element;
            RowStepKind::Clamp { lower: bits(element, min), upper: bits(element, max) }
        }
        _ => return None,
    })
}

/// Takes one step of an op that is several, and compares what it reads: earlier steps of the op, or a value.
fn take(
    checker: &mut Checker<'_>,
    kind: RowStepKind,
    element: ElementType,
    shape: RowShape,
    reads: &[Read],
) -> Result<usize, String> {
    let step = checker.step(kind, element)?;
    let found = &checker.plan.program.steps[step];
    require(found.shape == shape && found.operands.len() == reads.len(), || {
        format!("step {step} is another")
    })?;
    for (of, read) in found.operands.iter().zip(reads) {
        match read {
            Read::Step(expected) => {
                require(*of == RowRef::Step(*expected), || format!("step {step} reads another"))?
            }
            Read::Matrix(value) => checker.matrix(*of, *value)?,
        }
    }
    Ok(step)
}

/// A value that a step reads.
enum Read {
    Step(usize),
    Matrix(Value),
}

/// max, subtract, exp, sum, reciprocal, multiply.
pub(super) fn softmax(checker: &mut Checker<'_>, x: Value, result: Value) -> Result<usize, String> {
    use RowShape::{Column, Matrix};
    let f32 = ElementType::F32;
    let element = checker.module.ty(result).element;
    let max = take(checker, RowStepKind::Reduce(ReduceKind::Max), f32, Column, &[Read::Matrix(x)])?;
    let sub = RowStepKind::Binary(BinaryKind::Sub);
    let shifted = take(checker, sub, f32, Matrix, &[Read::Matrix(x), Read::Step(max)])?;
    let power = take(checker, RowStepKind::Unary(UnaryKind::Exp), f32, Matrix, &[Read::Step(shifted)])?;
    let sum = take(checker, RowStepKind::Reduce(ReduceKind::Sum), f32, Column, &[Read::Step(power)])?;
    let reciprocal = RowStepKind::Unary(UnaryKind::Reciprocal);
    let factor = take(checker, reciprocal, f32, Column, &[Read::Step(sum)])?;
    let mul = RowStepKind::Binary(BinaryKind::Mul);
    take(checker, mul, element, Matrix, &[Read::Step(power), Read::Step(factor)])
}

/// mean, subtract, square, mean, add eps, reciprocal root, multiply, times weight, plus bias.
pub(super) fn layer_norm(
    checker: &mut Checker<'_>,
    operands: &[Value],
    eps: f64,
    result: Value,
) -> Result<usize, String> {
    use RowShape::{Column, Matrix, Scalar};
    let f32 = ElementType::F32;
    let &[x, weight, bias] = operands else { return Err("another number of operands".into()) };
    let element = checker.module.ty(result).element;
    let binary = RowStepKind::Binary;
    let mean = RowStepKind::Reduce(ReduceKind::Mean);
    let average = take(checker, mean, f32, Column, &[Read::Matrix(x)])?;
    let centered =
        take(checker, binary(BinaryKind::Sub), f32, Matrix, &[Read::Matrix(x), Read::Step(average)])?;
    let square =
        take(checker, binary(BinaryKind::Mul), f32, Matrix, &[Read::Step(centered), Read::Step(centered)])?;
    let variance = take(checker, mean, f32, Column, &[Read::Step(square)])?;
    let eps = take(checker, RowStepKind::Constant(bits(f32, eps)), f32, Scalar, &[])?;
    let sum = take(checker, binary(BinaryKind::Add), f32, Column, &[Read::Step(variance), Read::Step(eps)])?;
    let factor = take(checker, RowStepKind::Unary(UnaryKind::Rsqrt), f32, Column, &[Read::Step(sum)])?;
    let normal =
        take(checker, binary(BinaryKind::Mul), f32, Matrix, &[Read::Step(centered), Read::Step(factor)])?;
    let scaled = scale(checker, BinaryKind::Mul, f32, normal, weight, x)?;
    scale(checker, BinaryKind::Add, element, scaled, bias, x)
}

/// A step of an earlier step and a value that is broadcast along the rows of another.
fn scale(
    checker: &mut Checker<'_>,
    kind: BinaryKind,
    element: ElementType,
    step: usize,
    value: Value,
    like: Value,
) -> Result<usize, String> {
    let taken = checker.step(RowStepKind::Binary(kind), element)?;
    let found = &checker.plan.program.steps[taken];
    let fits = found.operands.len() == 2 && found.operands[0] == RowRef::Step(step);
    require(fits && found.shape == RowShape::Matrix, || format!("step {taken} is another"))?;
    checker.reads(taken, 1, value, like)?;
    Ok(taken)
}

/// Compares a quantized output with its op.
pub(super) fn quantized(checker: &Checker<'_>, op: Op, output: &RowOutput) -> Checked {
    let operation = &checker.module.ops[op];
    let (OpKind::BlockQuantize { block, scale_rounding, formula }, &[codes, scales], [values, scale @ ..]) =
        (&operation.kind, &operation.results[..], &operation.operands[..])
    else {
        return Err("it does not quantize".into());
    };
    let (codes, scales) = (checker.module.ty(codes), checker.module.ty(scales));
    let RowOutputKind::Quantized { format, layout, global, scale_rounding: rounding, formula: by } =
        output.kind
    else {
        return Err("a quantization is written as a value".into());
    };
    let meant = QuantizedFormat { element: codes.element, scale: scales.element, block: *block };
    let global_value = global.and_then(|operand| checker.plan.operands.get(operand)).map(|input| input.value);
    let is_scalar = global.is_none_or(|operand| {
        checker.plan.program.operands.get(operand).is_some_and(|operand| operand.shape == RowShape::Scalar)
    });
    let same =
        format == meant && Some(layout) == scales.layout && rounding == *scale_rounding && by == *formula;
    require(same && global_value == scale.first().copied() && is_scalar, || "it quantizes otherwise".into())?;
    checker.matrix(output.of, *values)?;
    checker.lm(*values)
}

/// Checks that the target computes an op in rows.
pub(super) fn supported(module: &Module, rules: &RowCapability, op: Op) -> Checked {
    let operation = &module.ops[op];
    let element = |value: &Value| module.ty(*value).element;
    let has = match operation.kind {
        OpKind::Unary(kind) => rules.unary.contains(&kind),
        OpKind::Binary(kind) => rules.binary.contains(&kind),
        OpKind::Bitwise(kind) => rules.bitwise.contains(&kind),
        OpKind::Reduce { kind, .. } => rules.reductions.contains(&kind),
        OpKind::BlockQuantize { block, .. } => rules.quantized.iter().any(|format| {
            format.block == block
                && format.element == element(&operation.results[0])
                && format.scale == element(&operation.results[1])
        }),
        OpKind::BlockDequantize { block } => rules.dequantized.iter().any(|format| {
            format.block == block
                && format.element == element(&operation.operands[0])
                && format.scale == element(&operation.operands[1])
        }),
        _ => true,
    };
    let typed = operation
        .operands
        .iter()
        .chain(&operation.results)
        .all(|value| rules.elements.contains(&element(value)));
    require(has && typed, || format!("{} is not computed in rows", module.op_label(op)))
}
