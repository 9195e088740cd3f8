//! Matrix multiplications, and linears on NVFP4 weights of torchao.

use fourfold_ir::{
    BinaryKind, Dim, ElementType, OpKind, ReduceKind, ScaleLayout, ScaledMmaOptions, Shape, TensorType,
    Value, broadcast_shape, dim_product,
};

use super::arguments::{Arguments, Reason};
use super::builder::{BLOCK, Entry, Nvfp4Weight, QuantizedActivation, Scheme, Translator, scales_type};
use crate::formats::torchao::activation_formula;

/// The largest magnitude of a tensor over its per-tensor scale: the largest scale times the largest code.
const RANGE: f64 = 448.0 * 6.0;

/// Translates an op of this family; `None` if it belongs to another.
pub(super) fn translate(
    t: &mut Translator<'_>,
    op: &str,
    arguments: Arguments<'_>,
) -> Result<Option<Entry>, Reason> {
    let value = match op {
        "linear.default" => linear(t, arguments)?,
        "matmul.default" | "mm.default" | "bmm.default" => matmul(t, arguments)?,
        "addmm.default" => {
            let result = t.result(arguments.node)?.element;
            for (position, name) in [(3, "beta"), (4, "alpha")] {
                if arguments.number(position, name)?.is_some_and(|factor| factor != 1.0) {
                    return Err(format!("has `{name}` other than 1"));
                }
            }
            let addend = t.tensor(arguments.get(0, "input")?)?;
            let (a, b) = (t.tensor(arguments.get(1, "mat1")?)?, t.tensor(arguments.get(2, "mat2")?)?);
            let b = k_major(t, b)?;
            let product = t.builder.mma("", a, b, ElementType::F32);
            let addend = t.widened(addend)?;
            t.rounded(&arguments.node.name, result, |b, name| {
                b.binary(name, BinaryKind::Add, product, addend)
            })
        }
        _ => return Ok(None),
    };
    Ok(Some(Entry::Tensor(value)))
}

/// A product with torch's rules: vectors are rows on the left and columns on the right, and batches broadcast.
fn matmul(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let (a, b) = (t.tensor(arguments.get(0, "input")?)?, t.tensor(arguments.get(1, "mat2")?)?);
    let name = &arguments.node.name;
    let (a_ty, b_ty) = (t.builder.ty(a).clone(), t.builder.ty(b).clone());
    let has_vector = a_ty.rank() == 1 || b_ty.rank() == 1;
    let a = if a_ty.rank() == 1 { row(t, a) } else { a };
    let b = if b_ty.rank() == 1 { row(t, b) } else { k_major(t, b)? };
    let (a, b) = same_batch(t, a, b)?;
    if !has_vector {
        return Ok(t.builder.mma(name, a, b, result.element));
    }
    let value = t.builder.mma("", a, b, result.element);
    Ok(t.builder.op(OpKind::Reshape, &[value], &[(name, result)])[0])
}

/// A vector as a matrix of one row.
fn row(t: &mut Translator<'_>, x: Value) -> Value {
    let mut ty = t.builder.ty(x).clone();
    ty.shape.insert(0, Dim::fixed(1));
    t.builder.op(OpKind::Reshape, &[x], &[("", ty)])[0]
}

/// Repeats K-major operands, so that their leading extents agree. A right operand without any is shared by all.
fn same_batch(t: &mut Translator<'_>, a: Value, b: Value) -> Result<(Value, Value), Reason> {
    let leading = |value: Value| {
        let shape = &t.builder.ty(value).shape;
        shape.len().checked_sub(2).map(|rank| shape[..rank].to_vec())
    };
    let (Some(a_batch), Some(b_batch)) = (leading(a), leading(b)) else {
        return Err("multiplies by a scalar".to_owned());
    };
    if b_batch.is_empty() || a_batch == b_batch {
        return Ok((a, b));
    }
    let batch = broadcast_shape(&a_batch, &b_batch).ok_or("has leading extents that do not broadcast")?;
    let mut repeated = |value: Value| {
        let mut ty = t.builder.ty(value).clone();
        let shape: Shape = batch.iter().chain(&ty.shape[ty.rank() - 2..]).cloned().collect();
        if shape == ty.shape {
            return value;
        }
        ty.shape = shape;
        t.builder.op(OpKind::Broadcast, &[value], &[("", ty)])[0]
    };
    Ok((repeated(a), repeated(b)))
}

/// Exchanges the last two axes of the right operand `[.., K, N]`.
pub(super) fn k_major(t: &mut Translator<'_>, b: Value) -> Result<Value, Reason> {
    let mut ty = t.builder.ty(b).clone();
    let rank = ty.rank();
    if rank < 2 {
        return Err("multiplies by a vector".to_owned());
    }
    ty.shape.swap(rank - 2, rank - 1);
    let mut permutation: Vec<u32> = (0..rank as u32).collect();
    permutation.swap(rank - 2, rank - 1);
    Ok(t.builder.op(OpKind::Transpose { permutation }, &[b], &[("", ty)])[0])
}

fn linear(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let x = t.tensor(arguments.get(0, "input")?)?;
    let bias = match arguments.find(2, "bias") {
        Some(bias) => {
            let bias = t.tensor(bias)?;
            Some(t.widened(bias)?)
        }
        None => None,
    };
    let name = &arguments.node.name;
    match t.entry(arguments.get(1, "weight")?)?.clone() {
        Entry::Nvfp4(weight) if weight.scheme != Scheme::WeightOnly => {
            quantized_linear(t, name, x, &weight, bias, &result)
        }
        Entry::Nvfp4(weight) => {
            let weight = dequantized(t, &weight)?;
            plain_linear(t, name, x, weight, bias, result)
        }
        _ => {
            let weight = t.tensor(arguments.get(1, "weight")?)?;
            plain_linear(t, name, x, weight, bias, result)
        }
    }
}

fn plain_linear(
    t: &mut Translator<'_>,
    name: &str,
    x: Value,
    weight: Value,
    bias: Option<Value>,
    result: TensorType,
) -> Result<Value, Reason> {
    let is_vector = t.builder.ty(x).rank() == 1;
    let (x, inner) = if is_vector { (row(t, x), "") } else { (x, name) };
    let element = result.element;
    let value = match bias {
        None => t.builder.mma(inner, x, weight, element),
        Some(bias) => {
            let product = t.builder.mma("", x, weight, ElementType::F32);
            t.rounded(inner, element, |b, name| b.binary(name, BinaryKind::Add, product, bias))
        }
    };
    Ok(if is_vector { t.builder.op(OpKind::Reshape, &[value], &[(name, result)])[0] } else { value })
}

/// The weight in the type of dequantized values, as torchao's `dequantize` computes it.
fn dequantized(t: &mut Translator<'_>, weight: &Nvfp4Weight) -> Result<Value, Reason> {
    let ty = TensorType::new(t.builder.ty(weight.codes).shape.clone(), ElementType::F32);
    let mut operands = vec![weight.codes, weight.scales];
    operands.extend(weight.per_tensor_scale);
    let value = t.builder.op(OpKind::BlockDequantize { block: BLOCK }, &operands, &[("", ty)])[0];
    if weight.element == ElementType::F32 {
        return Ok(value);
    }
    Ok(t.builder.convert("", value, weight.element))
}

/// Multiplies a quantized activation by an NVFP4 weight, with torchao's roundings. The product is rounded to the
/// activation's type. It is multiplied by the per-tensor scales in that type, and rounded. Then the bias is added.
fn quantized_linear(
    t: &mut Translator<'_>,
    name: &str,
    x: Value,
    weight: &Nvfp4Weight,
    bias: Option<Value>,
    result: &TensorType,
) -> Result<Value, Reason> {
    let a = quantized(t, x, weight.scheme)?;
    let sfb = match t.builder.ty(weight.scales).layout {
        Some(ScaleLayout::Blocked) => weight.scales,
        _ => t.builder.swizzle_scales("", weight.scales, ScaleLayout::Blocked),
    };
    let factor = match (a.per_tensor_scale, weight.per_tensor_scale) {
        (Some(a), Some(b)) => Some(t.builder.binary("", BinaryKind::Mul, a, b)),
        (a, b) => a.or(b),
    };
    let element = result.element;
    let codes = (a.codes, a.scales, weight.codes, sfb);
    let product = |t: &mut Translator<'_>, element: ElementType| {
        let (a, sfa, b, sfb) = codes;
        t.builder.scaled_mma("", a, sfa, b, sfb, BLOCK, element, ScaledMmaOptions::default())
    };
    let mut value = match factor {
        None => {
            let mut value = product(t, if bias.is_some() { ElementType::F32 } else { element });
            if let Some(bias) = bias {
                value = t.rounded("", element, |b, name| b.binary(name, BinaryKind::Add, value, bias));
            }
            value
        }
        Some(factor) => {
            let value = product(t, element);
            let factor =
                if element == ElementType::F32 { factor } else { t.builder.convert("", factor, element) };
            let mut value = scaled(t, BinaryKind::Mul, value, factor, element)?;
            if let Some(bias) = bias {
                value = scaled(t, BinaryKind::Add, value, bias, element)?;
            }
            value
        }
    };
    let shaped = TensorType { shape: result.shape.clone(), ..t.builder.ty(value).clone() };
    if shaped != *t.builder.ty(value) {
        value = t.builder.op(OpKind::Reshape, &[value], &[(name, shaped)])[0];
    }
    Ok(value)
}

/// Computes in f32 and rounds to `element`.
fn scaled(
    t: &mut Translator<'_>,
    kind: BinaryKind,
    left: Value,
    right: Value,
    element: ElementType,
) -> Result<Value, Reason> {
    let (left, right) = (t.widened(left)?, t.widened(right)?);
    Ok(t.rounded("", element, |b, name| b.binary(name, kind, left, right)))
}

/// Quantizes an activation once for all linears that share it.
fn quantized(t: &mut Translator<'_>, x: Value, scheme: Scheme) -> Result<QuantizedActivation, Reason> {
    if let Some(known) = t.quantized.get(&(x, scheme)) {
        return Ok(*known);
    }
    let wide = t.widened(x)?;
    let shape = t.builder.ty(wide).shape.clone();
    let Some((k, rows)) = shape.split_last() else { return Err("quantizes a scalar".to_owned()) };
    let rows = dim_product(rows).ok_or("has too many rows")?;
    let blocks = k.divided_by(BLOCK.into()).ok_or("has K that is not a multiple of 16")?;
    let flat = TensorType::new([rows.clone(), k.clone()].into(), ElementType::F32);
    let per_tensor_scale = match scheme {
        Scheme::WeightOnly | Scheme::Blocks => None,
        Scheme::Static(scale) => Some(scale),
        Scheme::Dynamic => {
            let axes = (0..shape.len() as u32).collect();
            let kind = OpKind::Reduce { kind: ReduceKind::Amax, axes, keep_dims: false };
            let scalar = TensorType::new(Shape::new(), ElementType::F32);
            let amax = t.builder.op(kind, &[wide], &[("", scalar)])[0];
            let range = t.constant(RANGE);
            Some(t.builder.binary("", BinaryKind::Div, amax, range))
        }
    };
    let flattened = if flat == *t.builder.ty(wide) {
        wide
    } else {
        t.builder.op(OpKind::Reshape, &[wide], &[("", flat)])[0]
    };
    let codes = TensorType::new([rows.clone(), k.clone()].into(), ElementType::F4E2M1FN);
    let scales = scales_type([rows, blocks].into(), true);
    let g = match per_tensor_scale {
        Some(scale) => scale,
        None => t.constant(1.0),
    };
    let kind = OpKind::BlockQuantize { block: BLOCK, scale_rounding: None, formula: activation_formula() };
    let results = t.builder.op(kind, &[flattened, g], &[("", codes), ("", scales)]);
    let made = QuantizedActivation { codes: results[0], scales: results[1], per_tensor_scale };
    t.quantized.insert((x, scheme), made);
    Ok(made)
}
