//! Scaled dot-product attention.

use fourfold_ir::{BinaryKind, Dim, ElementType, OpKind, Predicate, ReduceKind, TensorType, Value};

use super::arguments::{Arguments, Reason};
use super::builder::{Entry, Translator};
use super::linear::k_major;
use super::logic::relation;
use super::movement::each_repeated;

/// Translates an op of this family; `None` if it belongs to another.
pub(super) fn translate(
    t: &mut Translator<'_>,
    op: &str,
    arguments: Arguments<'_>,
) -> Result<Option<Entry>, Reason> {
    match op {
        "scaled_dot_product_attention.default" => attention(t, arguments).map(Entry::Tensor).map(Some),
        _ => Ok(None),
    }
}

/// softmax(q · kᵀ · scale + mask) · v, with probabilities rounded to the type of v.
fn attention(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    if arguments.number(4, "dropout_p")?.is_some_and(|p| p != 0.0) {
        return Err("drops elements at random: export the model in evaluation mode".to_owned());
    }
    let tensor = |t: &Translator<'_>, position, name| t.tensor(arguments.get(position, name)?);
    let (q, mut k, mut v) = (tensor(t, 0, "query")?, tensor(t, 1, "key")?, tensor(t, 2, "value")?);
    if arguments.flag(7, "enable_gqa")? {
        (k, v) = (repeated_heads(t, q, k)?, repeated_heads(t, q, v)?);
    }
    let result = t.result(arguments.node)?.element;
    let depth = t.builder.ty(q).shape.last().and_then(|depth| depth.as_fixed());
    let scale = match (arguments.number(6, "scale")?, depth) {
        (Some(scale), _) => scale,
        (None, Some(depth)) if depth > 0 => 1.0 / (depth as f64).sqrt(),
        _ => return Err("has a head size that is not known".to_owned()),
    };
    let products = t.builder.mma("", q, k, ElementType::F32);
    let scale = t.constant(f64::from(scale as f32));
    let mut scores = t.builder.binary("", BinaryKind::Mul, products, scale);
    if let Some(mask) = arguments.find(3, "attn_mask") {
        scores = masked(t, scores, t.tensor(mask)?)?;
    }
    if arguments.flag(5, "is_causal")? {
        let shape = t.builder.ty(scores).shape.clone();
        let [.., rows, columns] = &shape[..] else { return Err("has no rows of scores".to_owned()) };
        let mask = relation(t, rows, columns, 0, Predicate::Le)?;
        scores = masked(t, scores, mask)?;
    }
    let ty = t.builder.ty(scores).clone();
    let axis = (ty.rank() as u32).checked_sub(1).ok_or("has no rows of scores")?;
    let mut probabilities = t.builder.op(OpKind::Softmax { axis }, &[scores], &[("", ty)])[0];
    if arguments.find(3, "attn_mask").is_some() {
        probabilities = without_masked_rows(t, scores, probabilities);
    }
    let element = t.builder.ty(v).element;
    let probabilities = if element == ElementType::F32 {
        probabilities
    } else {
        t.builder.convert("", probabilities, element)
    };
    let v = k_major(t, v)?;
    Ok(t.builder.mma(&arguments.node.name, probabilities, v, result))
}

/// Repeats each head of the keys or values for the query heads that share it.
fn repeated_heads(t: &mut Translator<'_>, q: Value, x: Value) -> Result<Value, Reason> {
    let heads = |value: Value| {
        let shape = &t.builder.ty(value).shape;
        shape.len().checked_sub(3).map(|axis| (axis, shape[axis].clone()))
    };
    let (Some((_, wanted)), Some((axis, given))) = (heads(q), heads(x)) else {
        return Err("has no heads".to_owned());
    };
    match (wanted.as_fixed(), given.as_fixed()) {
        (Some(wanted), Some(given)) if given > 0 && wanted % given == 0 => {
            each_repeated(t, x, axis, &Dim::fixed(wanted / given))
        }
        _ => Err("has heads that do not divide the query heads".to_owned()),
    }
}

/// The probabilities, with zeros in rows whose scores are all -inf, as torch 2.5 and later have them.
fn without_masked_rows(t: &mut Translator<'_>, scores: Value, probabilities: Value) -> Value {
    let ty = t.builder.ty(scores).clone();
    let axis = ty.rank() - 1;
    let mut row = ty.clone();
    row.shape[axis] = Dim::fixed(1);
    let kind = OpKind::Reduce { kind: ReduceKind::Max, axes: vec![axis as u32], keep_dims: true };
    let max = t.builder.op(kind, &[scores], &[("", row.clone())])[0];
    let [never, zero] = [f64::NEG_INFINITY, 0.0].map(|number| t.constant(number));
    let is_masked = TensorType { element: ElementType::I1, ..row };
    let is_masked = t.builder.op(OpKind::Compare(Predicate::Eq), &[max, never], &[("", is_masked)])[0];
    t.builder.op(OpKind::Select, &[is_masked, zero, probabilities], &[("", ty)])[0]
}

/// Adds a mask of numbers, or replaces the scores where a boolean mask is false.
fn masked(t: &mut Translator<'_>, scores: Value, mask: Value) -> Result<Value, Reason> {
    if t.builder.ty(mask).element != ElementType::I1 {
        let mask = t.widened(mask)?;
        return Ok(t.builder.binary("", BinaryKind::Add, scores, mask));
    }
    let ty = TensorType { ..t.builder.ty(scores).clone() };
    let never = t.constant(f64::NEG_INFINITY);
    Ok(t.builder.op(OpKind::Select, &[mask, scores, never], &[("", ty)])[0])
}
