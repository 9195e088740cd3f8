//! Elementwise functions, reductions and norms.

use fourfold_ir::{
    BinaryKind, Dim, ElementType, OpKind, ReduceKind, Shape, TensorType, UnaryKind, Value, dim_product,
};

use super::arguments::{Arguments, Reason, number};
use super::builder::{Entry, Translator, axis};

/// The largest value of f8E4M3FN.
const E4M3_MAX: f64 = 448.0;

/// Translates an op of this family; `None` if it belongs to another.
pub(super) fn translate(
    t: &mut Translator<'_>,
    op: &str,
    arguments: Arguments<'_>,
) -> Result<Option<Entry>, Reason> {
    let entry = match op {
        "neg.default" => unary(t, arguments, UnaryKind::Neg)?,
        "abs.default" => unary(t, arguments, UnaryKind::Abs)?,
        "exp.default" => unary(t, arguments, UnaryKind::Exp)?,
        "sqrt.default" => unary(t, arguments, UnaryKind::Sqrt)?,
        "rsqrt.default" => unary(t, arguments, UnaryKind::Rsqrt)?,
        "reciprocal.default" => unary(t, arguments, UnaryKind::Reciprocal)?,
        "tanh.default" => unary(t, arguments, UnaryKind::Tanh)?,
        "erf.default" => unary(t, arguments, UnaryKind::Erf)?,
        "sigmoid.default" => unary(t, arguments, UnaryKind::Sigmoid)?,
        "log.default" => unary(t, arguments, UnaryKind::Log)?,
        "sin.default" => unary(t, arguments, UnaryKind::Sin)?,
        "cos.default" => unary(t, arguments, UnaryKind::Cos)?,
        "floor.default" => unary(t, arguments, UnaryKind::Floor)?,
        "ceil.default" => unary(t, arguments, UnaryKind::Ceil)?,
        "round.default" => unary(t, arguments, UnaryKind::Round)?,
        "relu.default" => unary(t, arguments, UnaryKind::Relu)?,
        "silu.default" => unary(t, arguments, UnaryKind::Silu)?,
        "gelu.default" => gelu(t, arguments)?,
        "add.Tensor" | "add.Scalar" => binary(t, arguments, BinaryKind::Add)?,
        "sub.Tensor" | "sub.Scalar" => binary(t, arguments, BinaryKind::Sub)?,
        "mul.Tensor" | "mul.Scalar" => binary(t, arguments, BinaryKind::Mul)?,
        "div.Tensor" | "div.Scalar" => binary(t, arguments, BinaryKind::Div)?,
        "maximum.default" => binary(t, arguments, BinaryKind::Max)?,
        "minimum.default" => binary(t, arguments, BinaryKind::Min)?,
        "rsub.Tensor" | "rsub.Scalar" => reversed(t, arguments)?,
        "pow.Tensor_Scalar" => power(t, arguments)?,
        "pow.Tensor_Tensor" | "pow.Scalar" => binary(t, arguments, BinaryKind::Pow)?,
        "clamp.default" => clamp(t, arguments, [Some(1), Some(2)])?,
        "clamp_min.default" => clamp(t, arguments, [Some(1), None])?,
        "clamp_max.default" => clamp(t, arguments, [None, Some(1)])?,
        "to.dtype" | "to.dtype_layout" | "_to_copy.default" => convert(t, arguments)?,
        "mean.dim" | "mean.default" => reduce(t, arguments, ReduceKind::Mean)?,
        "sum.dim_IntList" | "sum.default" => reduce(t, arguments, ReduceKind::Sum)?,
        "var.correction" | "var.dim" => Entry::Tensor(variance(t, op, arguments)?[0]),
        "var_mean.correction" | "var_mean.dim" => Entry::Many(variance(t, op, arguments)?.map(Some).to_vec()),
        "amax.default" => reduce(t, arguments, ReduceKind::Max)?,
        "amin.default" => reduce(t, arguments, ReduceKind::Min)?,
        "softmax.int" | "_softmax.default" => softmax(t, arguments)?,
        "layer_norm.default" => Entry::Tensor(layer_norm(t, arguments, 4)?),
        "native_layer_norm.default" => Entry::Many(vec![Some(layer_norm(t, arguments, 4)?), None, None]),
        "rms_norm.default" => rms_norm(t, arguments)?,
        _ => return Ok(None),
    };
    Ok(Some(entry))
}

fn unary(t: &mut Translator<'_>, arguments: Arguments<'_>, kind: UnaryKind) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    let x = t.tensor(arguments.get(0, "input")?)?;
    let x = t.widened(x)?;
    let value = t.rounded(&arguments.node.name, result.element, |b, name| b.unary(name, kind, x));
    Ok(Entry::Tensor(value))
}

fn gelu(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Entry, Reason> {
    match arguments.find(1, "approximate").and_then(|value| value.as_str()) {
        None | Some("none") => unary(t, arguments, UnaryKind::Gelu),
        Some("tanh") => unary(t, arguments, UnaryKind::GeluTanh),
        Some(other) => Err(format!("has `approximate` = {other:?}")),
    }
}

fn binary(t: &mut Translator<'_>, arguments: Arguments<'_>, kind: BinaryKind) -> Result<Entry, Reason> {
    // An alpha is a keyword, except in the overloads for scalars.
    arguments.absent(3, "rounding_mode")?;
    let result = t.result(arguments.node)?;
    let operands = [arguments.get(0, "input")?, arguments.get(1, "other")?];
    let alpha = arguments.find(2, "alpha").filter(|alpha| number(alpha) != Some(1.0));
    let name = &arguments.node.name;
    if result.element == ElementType::I32 {
        let [left, mut right] = [t.integer_or_tensor(operands[0])?, t.integer_or_tensor(operands[1])?];
        if let Some(alpha) = alpha {
            let alpha = t.integer_or_tensor(alpha)?;
            right = t.builder.binary("", BinaryKind::Mul, right, alpha);
        }
        return Ok(Entry::Tensor(t.builder.binary(name, kind, left, right)));
    }
    let [left, mut right] = [t.number_or_tensor(operands[0])?, t.number_or_tensor(operands[1])?];
    if let Some(alpha) = alpha {
        let alpha = t.number_or_tensor(alpha)?;
        right = t.builder.binary("", BinaryKind::Mul, right, alpha);
    }
    let value = t.rounded(name, result.element, |b, name| b.binary(name, kind, left, right));
    Ok(Entry::Tensor(value))
}

/// other - alpha · input.
fn reversed(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    if arguments.number(2, "alpha")?.is_some_and(|alpha| alpha != 1.0) {
        return Err("has `alpha` other than 1".to_owned());
    }
    let (input, other) = (arguments.get(0, "input")?, arguments.get(1, "other")?);
    let name = &arguments.node.name;
    if result.element == ElementType::I32 {
        let [left, right] = [t.integer_or_tensor(other)?, t.integer_or_tensor(input)?];
        return Ok(Entry::Tensor(t.builder.binary(name, BinaryKind::Sub, left, right)));
    }
    let [left, right] = [t.number_or_tensor(other)?, t.number_or_tensor(input)?];
    let value = t.rounded(name, result.element, |b, name| b.binary(name, BinaryKind::Sub, left, right));
    Ok(Entry::Tensor(value))
}

/// A power. Torch computes some of them by products and roots.
fn power(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    let exponent = arguments.number(1, "exponent")?.ok_or("has no argument `exponent`")?;
    let x = t.tensor(arguments.get(0, "input")?)?;
    let x = t.widened(x)?;
    let name = &arguments.node.name;
    let value = if exponent == 2.0 {
        t.rounded(name, result.element, |b, name| b.binary(name, BinaryKind::Mul, x, x))
    } else if exponent == 3.0 {
        let square = t.builder.binary("", BinaryKind::Mul, x, x);
        t.rounded(name, result.element, |b, name| b.binary(name, BinaryKind::Mul, square, x))
    } else if exponent == 0.5 {
        t.rounded(name, result.element, |b, name| b.unary(name, UnaryKind::Sqrt, x))
    } else if exponent == -0.5 {
        t.rounded(name, result.element, |b, name| b.unary(name, UnaryKind::Rsqrt, x))
    } else {
        let exponent = t.constant(exponent);
        t.rounded(name, result.element, |b, name| b.binary(name, BinaryKind::Pow, x, exponent))
    };
    Ok(Entry::Tensor(value))
}

/// Limits values to bounds, whose positions may be absent.
fn clamp(
    t: &mut Translator<'_>,
    arguments: Arguments<'_>,
    [min, max]: [Option<usize>; 2],
) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    let bound = |position: Option<usize>, name: &str, none: f64| match position {
        Some(position) => Ok::<f64, Reason>(arguments.number(position, name)?.unwrap_or(none)),
        None => Ok(none),
    };
    let (min, max) = (bound(min, "min", f64::NEG_INFINITY)?, bound(max, "max", f64::INFINITY)?);
    if min.is_nan() || max.is_nan() {
        return Err("has NaN as a bound".to_owned());
    }
    // Torch applies the upper bound last.
    let min = min.min(max);
    let x = t.tensor(arguments.get(0, "input")?)?;
    let ty = t.builder.ty(x).clone();
    if ty.element != result.element {
        return Err("changes the element type".to_owned());
    }
    let kind = OpKind::Clamp { min, max };
    let value = t.builder.op(kind, &[x], &[(&arguments.node.name, ty)])[0];
    if min >= -E4M3_MAX && max <= E4M3_MAX {
        t.bounded.insert(value);
    }
    Ok(Entry::Tensor(value))
}

fn convert(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Entry, Reason> {
    // A conversion to another device or layout has no element type of its own.
    let element = t.result(arguments.node)?.element;
    let x = t.tensor(arguments.get(0, "input")?)?;
    t.converted(&arguments.node.name, x, element).map(Entry::Tensor)
}

fn reduce(t: &mut Translator<'_>, arguments: Arguments<'_>, kind: ReduceKind) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    let x = t.tensor(arguments.get(0, "input")?)?;
    let x = t.widened(x)?;
    let rank = t.builder.ty(x).rank();
    let axes = reduced_axes(arguments, rank)?;
    let keep_dims = arguments.flag(2, "keepdim")?;
    let reduced = TensorType::new(result.shape.clone(), ElementType::F32);
    let kind = OpKind::Reduce { kind, axes, keep_dims };
    let value =
        t.rounded(&arguments.node.name, result.element, |b, name| b.op(kind, &[x], &[(name, reduced)])[0]);
    Ok(Entry::Tensor(value))
}

/// The axes of a reduction. Torch reduces all axes if none is named.
fn reduced_axes(arguments: Arguments<'_>, rank: usize) -> Result<Vec<u32>, Reason> {
    let axes = arguments.integers(1, "dim")?.unwrap_or_default();
    let mut axes = axes.into_iter().map(|of| axis(of, rank)).collect::<Result<Vec<u32>, Reason>>()?;
    axes.sort_unstable();
    Ok(if axes.is_empty() { (0..rank as u32).collect() } else { axes })
}

/// The variance and the mean, the former over the number of elements less the correction.
fn variance(t: &mut Translator<'_>, op: &str, arguments: Arguments<'_>) -> Result<[Value; 2], Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let element = t.builder.ty(x).element;
    let x = t.widened(x)?;
    let ty = t.builder.ty(x).clone();
    let axes = reduced_axes(arguments, ty.rank())?;
    let keep_dims = arguments.flag(3, "keepdim")?;
    let correction = match arguments.find(2, "unbiased").filter(|_| op.ends_with(".dim")) {
        Some(_) => f64::from(arguments.flag(2, "unbiased")?),
        None => arguments.number(2, "correction")?.unwrap_or(1.0),
    };
    let is_reduced = |axis: usize| axes.contains(&(axis as u32));
    let kept = |dim: &Dim, axis: usize| if is_reduced(axis) { Dim::fixed(1) } else { dim.clone() };
    let kept: Shape = ty.shape.iter().enumerate().map(|(axis, dim)| kept(dim, axis)).collect();
    let dropped = ty.shape.iter().enumerate().filter(|(axis, _)| !is_reduced(*axis));
    let shape = if keep_dims { kept.clone() } else { dropped.map(|(_, dim)| dim.clone()).collect() };
    let reduce = |t: &mut Translator<'_>, kind: ReduceKind, x: Value, keep_dims: bool, shape: &Shape| {
        let kind = OpKind::Reduce { kind, axes: axes.clone(), keep_dims };
        t.builder.op(kind, &[x], &[("", TensorType::new(shape.clone(), ElementType::F32))])[0]
    };
    let mean = reduce(t, ReduceKind::Mean, x, true, &kept);
    let centered = t.builder.binary("", BinaryKind::Sub, x, mean);
    let square = t.builder.binary("", BinaryKind::Mul, centered, centered);
    let variance = if correction == 0.0 {
        reduce(t, ReduceKind::Mean, square, keep_dims, &shape)
    } else {
        let count = dim_product(axes.iter().map(|axis| &ty.shape[*axis as usize]));
        let count = count.and_then(|count| count.as_fixed());
        let count = count.ok_or("corrects the variance of an extent that depends on symbols")?;
        let sum = reduce(t, ReduceKind::Sum, square, keep_dims, &shape);
        let divisor = t.constant((count as f64 - correction).max(0.0));
        t.builder.binary("", BinaryKind::Div, sum, divisor)
    };
    let mean = if keep_dims { mean } else { reduce(t, ReduceKind::Mean, x, false, &shape) };
    let [variance, mean] = [variance, mean].map(|value| t.converted("", value, element));
    Ok([variance?, mean?])
}

fn softmax(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    let x = t.tensor(arguments.get(0, "input")?)?;
    let x = t.widened(x)?;
    let ty = t.builder.ty(x).clone();
    let kind = OpKind::Softmax { axis: axis(arguments.integer(1, "dim")?, ty.rank())? };
    let value = t.rounded(&arguments.node.name, result.element, |b, name| b.op(kind, &[x], &[(name, ty)])[0]);
    Ok(Entry::Tensor(value))
}

/// The last axis, over which a norm runs.
fn normalized(t: &Translator<'_>, arguments: Arguments<'_>, x: Value) -> Result<Shape, Reason> {
    let shape = &t.builder.ty(x).shape;
    let axes = arguments.integers(1, "normalized_shape")?.unwrap_or_default();
    match (&axes[..], shape.last()) {
        (&[extent], Some(last)) if u64::try_from(extent).ok() == last.as_fixed() => Ok([last.clone()].into()),
        _ => Err("does not normalize over the last axis alone".to_owned()),
    }
}

/// A factor or addend of a norm as f32; `default` everywhere if it is absent.
fn affine(
    t: &mut Translator<'_>,
    argument: Option<&serde_json::Value>,
    shape: &Shape,
    default: f64,
) -> Result<Value, Reason> {
    match argument {
        Some(argument) => {
            let value = t.tensor(argument)?;
            t.widened(value)
        }
        None => Ok(t.filled(shape.clone(), default)),
    }
}

fn layer_norm(t: &mut Translator<'_>, arguments: Arguments<'_>, eps: usize) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let element = t.builder.ty(x).element;
    let shape = normalized(t, arguments, x)?;
    let x = t.widened(x)?;
    let weight = affine(t, arguments.find(2, "weight"), &shape, 1.0)?;
    let bias = affine(t, arguments.find(3, "bias"), &shape, 0.0)?;
    let eps = arguments.number(eps, "eps")?.unwrap_or(1e-5);
    let ty = t.builder.ty(x).clone();
    Ok(t.rounded(&arguments.node.name, element, |b, name| {
        b.op(OpKind::LayerNorm { eps }, &[x, weight, bias], &[(name, ty)])[0]
    }))
}

/// x · rsqrt(mean(x²) + eps) · weight, rounded once.
fn rms_norm(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    let x = t.tensor(arguments.get(0, "input")?)?;
    let epsilon = match t.builder.ty(x).element {
        ElementType::BF16 => 2f64.powi(-7),
        ElementType::F16 => 2f64.powi(-10),
        _ => f64::from(f32::EPSILON),
    };
    let shape = normalized(t, arguments, x)?;
    let x = t.widened(x)?;
    let weight = affine(t, arguments.find(2, "weight"), &shape, 1.0)?;
    let eps = t.constant(arguments.number(3, "eps")?.unwrap_or(epsilon));
    let square = t.builder.binary("", BinaryKind::Mul, x, x);
    let mut ty = t.builder.ty(x).clone();
    let last = ty.rank() - 1;
    ty.shape[last] = Dim::fixed(1);
    let kind = OpKind::Reduce { kind: ReduceKind::Mean, axes: vec![last as u32], keep_dims: true };
    let mean = t.builder.op(kind, &[square], &[("", ty)])[0];
    let sum = t.builder.binary("", BinaryKind::Add, mean, eps);
    let factor = t.builder.unary("", UnaryKind::Rsqrt, sum);
    let scaled = t.builder.binary("", BinaryKind::Mul, x, factor);
    let value = t.rounded(&arguments.node.name, result.element, |b, name| {
        b.binary(name, BinaryKind::Mul, scaled, weight)
    });
    Ok(Entry::Tensor(value))
}
