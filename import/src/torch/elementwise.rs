//! Elementwise functions, reductions and norms.

use fourfold_ir::{BinaryKind, ElementType, OpKind, ReduceKind, Shape, TensorType, UnaryKind, Value};

use super::arguments::{Arguments, Reason};
use super::builder::{Entry, Translator, axis, element};

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
        "relu.default" => unary(t, arguments, UnaryKind::Relu)?,
        "silu.default" => unary(t, arguments, UnaryKind::Silu)?,
        "gelu.default" => gelu(t, arguments)?,
        "add.Tensor" | "add.Scalar" => binary(t, arguments, BinaryKind::Add)?,
        "sub.Tensor" | "sub.Scalar" => binary(t, arguments, BinaryKind::Sub)?,
        "mul.Tensor" | "mul.Scalar" => binary(t, arguments, BinaryKind::Mul)?,
        "div.Tensor" | "div.Scalar" => binary(t, arguments, BinaryKind::Div)?,
        "maximum.default" => binary(t, arguments, BinaryKind::Max)?,
        "minimum.default" => binary(t, arguments, BinaryKind::Min)?,
        "pow.Tensor_Scalar" => power(t, arguments)?,
        "clamp.default" => clamp(t, arguments)?,
        "to.dtype" | "_to_copy.default" => convert(t, arguments)?,
        "mean.dim" => reduce(t, arguments, ReduceKind::Mean)?,
        "sum.dim_IntList" => reduce(t, arguments, ReduceKind::Sum)?,
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
    let left = t.number_or_tensor(arguments.get(0, "input")?)?;
    let mut right = t.number_or_tensor(arguments.get(1, "other")?)?;
    if let Some(alpha) = arguments.number(2, "alpha")?.filter(|alpha| *alpha != 1.0) {
        let alpha = t.constant(alpha);
        right = t.builder.binary("", BinaryKind::Mul, right, alpha);
    }
    let value = t.rounded(&arguments.node.name, result.element, |b, name| b.binary(name, kind, left, right));
    Ok(Entry::Tensor(value))
}

/// Powers that torch computes by products and roots.
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
        return Err(format!("has the exponent {exponent}"));
    };
    Ok(Entry::Tensor(value))
}

fn clamp(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    let min = arguments.number(1, "min")?.unwrap_or(f64::NEG_INFINITY);
    let max = arguments.number(2, "max")?.unwrap_or(f64::INFINITY);
    let x = t.tensor(arguments.get(0, "input")?)?;
    let ty = t.builder.ty(x).clone();
    if ty.element != result.element {
        return Err("changes the element type".to_owned());
    }
    let kind = OpKind::Clamp { min, max };
    Ok(Entry::Tensor(t.builder.op(kind, &[x], &[(&arguments.node.name, ty)])[0]))
}

fn convert(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Entry, Reason> {
    let dtype = arguments.get(1, "dtype")?.get("dtype").and_then(|dtype| dtype.as_str());
    let element = element(dtype.ok_or("has no element type")?)?;
    let x = t.tensor(arguments.get(0, "input")?)?;
    if t.builder.ty(x).element == element {
        return Ok(Entry::Tensor(x));
    }
    Ok(Entry::Tensor(t.builder.convert(&arguments.node.name, x, element)))
}

fn reduce(t: &mut Translator<'_>, arguments: Arguments<'_>, kind: ReduceKind) -> Result<Entry, Reason> {
    let result = t.result(arguments.node)?;
    let x = t.tensor(arguments.get(0, "input")?)?;
    let x = t.widened(x)?;
    let rank = t.builder.ty(x).rank();
    let axes = arguments.integers(1, "dim")?.unwrap_or_default();
    let mut axes = axes.into_iter().map(|of| axis(of, rank)).collect::<Result<Vec<u32>, Reason>>()?;
    axes.sort_unstable();
    // Torch reduces all axes if none is named.
    if axes.is_empty() {
        axes = (0..rank as u32).collect();
    }
    let keep_dims = arguments.flag(2, "keepdim")?;
    let reduced = TensorType::new(result.shape.clone(), ElementType::F32);
    let kind = OpKind::Reduce { kind, axes, keep_dims };
    let value =
        t.rounded(&arguments.node.name, result.element, |b, name| b.op(kind, &[x], &[(name, reduced)])[0]);
    Ok(Entry::Tensor(value))
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
    ty.shape[last] = fourfold_ir::Dim::fixed(1);
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
