//! Ops that take parts of tensors, and join or repeat them.

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, OpKind, PadAmount, Predicate, Shape, SliceRange, TensorType,
    Value, dim_product,
};
use serde_json::Value as Json;

use super::arguments::{Arguments, Reason};
use super::builder::{Entry, Translator, axis};

/// Translates an op of this family; `None` if it belongs to another.
pub(super) fn translate(
    t: &mut Translator<'_>,
    op: &str,
    arguments: Arguments<'_>,
) -> Result<Option<Entry>, Reason> {
    let value = match op {
        "slice.Tensor" => slice(t, arguments)?,
        "select.int" => select(t, arguments)?,
        "narrow.default" => narrow(t, arguments)?,
        "split.Tensor" | "split.sizes" | "split_with_sizes.default" | "chunk.default" | "unbind.int" => {
            return parts(t, op, arguments).map(Entry::Many).map(Some);
        }
        "cat.default" | "concat.default" => cat(t, arguments)?,
        "stack.default" => stack(t, arguments)?,
        "embedding.default" => gather(t, arguments, (0, "weight"), 0, (1, "indices"))?,
        "index_select.default" => {
            let rank = rank_of(t, arguments)?;
            let along = axis(arguments.integer(1, "dim")?, rank)?;
            gather(t, arguments, (0, "input"), along, (2, "index"))?
        }
        "index.Tensor" => index(t, arguments)?,
        "constant_pad_nd.default" => pad(t, arguments, 2)?,
        "pad.default" => {
            let mode = arguments.find(2, "mode").and_then(Json::as_str).unwrap_or("constant");
            if mode != "constant" {
                return Err(format!("has `mode` = {mode:?}"));
            }
            pad(t, arguments, 3)?
        }
        "repeat.default" => repeat(t, arguments)?,
        "repeat_interleave.self_int" => {
            let x = t.tensor(arguments.get(0, "input")?)?;
            let count = extent(arguments.integer(1, "repeats")?)?;
            let along = axis(arguments.integer(2, "dim")?, rank_of(t, arguments)?)?;
            each_repeated(t, x, along as usize, &count)?
        }
        _ => return Ok(None),
    };
    Ok(Some(Entry::Tensor(value)))
}

fn rank_of(t: &Translator<'_>, arguments: Arguments<'_>) -> Result<usize, Reason> {
    Ok(t.builder.ty(t.tensor(arguments.get(0, "input")?)?).rank())
}

fn extent(count: i64) -> Result<Dim, Reason> {
    u64::try_from(count).map(Dim::fixed).map_err(|_| format!("has the negative count {count}"))
}

/// The extent of an axis, which must not depend on symbols.
fn fixed(t: &Translator<'_>, x: Value, axis: u32) -> Result<i64, Reason> {
    let extent = t.builder.ty(x).shape[axis as usize].as_fixed();
    let extent = extent.and_then(|extent| i64::try_from(extent).ok());
    extent.ok_or_else(|| format!("takes a part of axis {axis}, whose extent depends on symbols"))
}

/// Takes a range of one axis. Torch writes the largest i64 for the end of the axis.
fn slice(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let rank = rank_of(t, arguments)?;
    let number = |position, name, default| match arguments.find(position, name) {
        Some(_) => arguments.integer(position, name),
        None => Ok(default),
    };
    let along = axis(number(1, "dim", 0)?, rank)?;
    let (start, end, step) = (number(2, "start", 0)?, number(3, "end", i64::MAX)?, number(4, "step", 1)?);
    let is_open = end >= i64::from(i32::MAX);
    if start == 0 && is_open && step == 1 {
        return Ok(x);
    }
    let all = fixed(t, x, along)?;
    let bound = |at: i64| (if at < 0 { at.saturating_add(all) } else { at }).clamp(0, all) as u64;
    let step = u64::try_from(step).ok().filter(|step| *step > 0).ok_or("takes elements backwards")?;
    let (start, end) = (bound(start), bound(end));
    Ok(taken(t, &arguments.node.name, x, SliceRange { axis: along, start, end: end.max(start), step }))
}

fn narrow(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let along = axis(arguments.integer(1, "dim")?, rank_of(t, arguments)?)?;
    let (start, count) = (arguments.integer(2, "start")?, arguments.integer(3, "length")?);
    let all = fixed(t, x, along)?;
    let start = if start < 0 { start.saturating_add(all) } else { start };
    match (u64::try_from(start), u64::try_from(count)) {
        (Ok(start), Ok(count)) if start.checked_add(count).is_some_and(|end| end <= all as u64) => {
            let range = SliceRange { axis: along, start, end: start + count, step: 1 };
            Ok(taken(t, &arguments.node.name, x, range))
        }
        _ => Err(format!("takes {count} of {all} elements from {start}")),
    }
}

fn taken(t: &mut Translator<'_>, name: &str, x: Value, range: SliceRange) -> Value {
    let mut ty = t.builder.ty(x).clone();
    let extent = Dim::fixed(range.extent());
    if range.step == 1 && ty.shape[range.axis as usize] == extent {
        return x;
    }
    ty.shape[range.axis as usize] = extent;
    t.builder.op(OpKind::Slice { ranges: vec![range] }, &[x], &[(name, ty)])[0]
}

/// Takes one index of an axis, and removes the axis.
fn select(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let along = axis(arguments.integer(1, "dim")?, rank_of(t, arguments)?)?;
    let index = arguments.integer(2, "index")?;
    selected(t, &arguments.node.name, x, along, index)
}

fn selected(t: &mut Translator<'_>, name: &str, x: Value, along: u32, index: i64) -> Result<Value, Reason> {
    let ty = t.builder.ty(x).clone();
    let mut shape = ty.shape.clone();
    shape.remove(along as usize);
    let result = TensorType { shape, ..ty.clone() };
    if ty.shape[along as usize].as_fixed().is_none() && index >= 0 {
        let index = i32::try_from(index).map_err(|_| format!("takes the index {index}"))?;
        let index = integers(t, Shape::new(), vec![f64::from(index)]);
        return Ok(t.builder.op(OpKind::Gather { axis: along }, &[x, index], &[(name, result)])[0]);
    }
    let all = fixed(t, x, along)?;
    let at = if index < 0 { index.saturating_add(all) } else { index };
    let start = u64::try_from(at).ok().filter(|_| at < all);
    let start = start.ok_or_else(|| format!("takes the index {index} of {all}"))?;
    let part = taken(t, "", x, SliceRange { axis: along, start, end: start + 1, step: 1 });
    Ok(t.builder.op(OpKind::Reshape, &[part], &[(name, result)])[0])
}

/// The parts of an axis.
fn parts(t: &mut Translator<'_>, op: &str, arguments: Arguments<'_>) -> Result<Vec<Option<Value>>, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let rank = rank_of(t, arguments)?;
    let at = if op == "unbind.int" { 1 } else { 2 };
    let along = match arguments.find(at, "dim") {
        Some(_) => axis(arguments.integer(at, "dim")?, rank)?,
        None => axis(0, rank)?,
    };
    let all = fixed(t, x, along)?;
    // A node has as many results as its type lists, so that the number of parts is bounded by the file.
    let count = arguments.node.ty.as_array().map_or(0, Vec::len);
    let name = |part: usize| format!("{}.{part}", arguments.node.name);
    if op == "unbind.int" {
        let each = (0..count).map(|part| selected(t, &name(part), x, along, part as i64).map(Some));
        return each.collect();
    }
    let size = |size: i64| u64::try_from(size).map_err(|_| format!("has a part of {size} elements"));
    let sizes = match op {
        "split.sizes" | "split_with_sizes.default" => {
            let sizes = arguments.integers(1, "split_sizes")?.unwrap_or_default();
            sizes.into_iter().map(size).collect::<Result<Vec<u64>, Reason>>()?
        }
        _ => {
            let given = size(arguments.integer(1, "split_size")?)?;
            if given == 0 {
                return Err("splits into parts without elements".to_owned());
            }
            // A chunk has the extent over the number of chunks, rounded up.
            let each = if op == "chunk.default" { (all as u64).div_ceil(given) } else { given };
            let rest = |part: usize| (all as u64).saturating_sub((part as u64).saturating_mul(each));
            (0..count).map(|part| rest(part).min(each)).collect()
        }
    };
    let total = sizes.iter().try_fold(0u64, |total, size| total.checked_add(*size));
    if sizes.len() != count || total != Some(all as u64) {
        return Err(format!("has parts that do not add up to {all} elements"));
    }
    let mut start = 0;
    let mut values = Vec::new();
    for (part, size) in sizes.into_iter().enumerate() {
        let range = SliceRange { axis: along, start, end: start + size, step: 1 };
        values.push(Some(taken(t, &name(part), x, range)));
        start += size;
    }
    Ok(values)
}

/// The tensors of a list, in the element type of the result.
fn listed(
    t: &mut Translator<'_>,
    arguments: Arguments<'_>,
    element: ElementType,
) -> Result<Vec<Value>, Reason> {
    let list = arguments.get(0, "tensors")?.as_array().ok_or("has no list of tensors")?;
    let mut values = Vec::new();
    for item in list {
        let value = t.tensor(item)?;
        values.push(t.converted("", value, element)?);
    }
    if values.is_empty() { Err("has no tensors".to_owned()) } else { Ok(values) }
}

fn cat(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let values = listed(t, arguments, result.element)?;
    let along = match arguments.find(1, "dim") {
        Some(_) => axis(arguments.integer(1, "dim")?, result.rank())?,
        None => axis(0, result.rank())?,
    };
    Ok(t.builder.op(OpKind::Concat { axis: along }, &values, &[(&arguments.node.name, result)])[0])
}

fn stack(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let along = match arguments.find(1, "dim") {
        Some(_) => axis(arguments.integer(1, "dim")?, result.rank())?,
        None => axis(0, result.rank())?,
    };
    let mut shape = result.shape.clone();
    shape[along as usize] = Dim::fixed(1);
    let single = TensorType { shape, ..result.clone() };
    let mut values = listed(t, arguments, result.element)?;
    for value in &mut values {
        *value = t.builder.op(OpKind::Reshape, &[*value], &[("", single.clone())])[0];
    }
    Ok(t.builder.op(OpKind::Concat { axis: along }, &values, &[(&arguments.node.name, result)])[0])
}

/// A constant of integers.
pub(super) fn integers(t: &mut Translator<'_>, shape: Shape, values: Vec<f64>) -> Value {
    let ty = TensorType::new(shape, ElementType::I32);
    let value = match values[..] {
        [value] => ConstantValue::Splat(value),
        _ => ConstantValue::Dense(values),
    };
    t.builder.op(OpKind::Constant(value), &[], &[("", ty)])[0]
}

/// Takes slices along one axis. An embedding has no negative indices; others may count from the end.
fn gather(
    t: &mut Translator<'_>,
    arguments: Arguments<'_>,
    (position, name): (usize, &str),
    along: u32,
    (index, index_name): (usize, &str),
) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(position, name)?)?;
    let indices = t.tensor(arguments.get(index, index_name)?)?;
    if t.builder.ty(indices).element != ElementType::I32 {
        return Err("has indices that are no integers".to_owned());
    }
    let result = TensorType { shape: t.result(arguments.node)?.shape, ..t.builder.ty(x).clone() };
    Ok(t.builder.op(OpKind::Gather { axis: along }, &[x, indices], &[(&arguments.node.name, result)])[0])
}

/// Indexing by one tensor of integers.
fn index(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let list = arguments.get(1, "indices")?.as_array().ok_or("has no list of indices")?;
    let given: Vec<(usize, &Json)> = list.iter().enumerate().filter(|(_, item)| !item.is_null()).collect();
    let [(along, indices)] = given[..] else { return Err("has indices of several axes".to_owned()) };
    let indices = t.tensor(indices)?;
    let ty = t.builder.ty(indices).clone();
    if ty.element != ElementType::I32 {
        return Err("has indices that are no integers".to_owned());
    }
    let along = axis(along as i64, t.builder.ty(x).rank())?;
    let zero = integers(t, Shape::new(), vec![0.0]);
    let all = integers(t, Shape::new(), vec![fixed(t, x, along)? as f64]);
    let is_negative = TensorType::new(ty.shape.clone(), ElementType::I1);
    let is_negative = t.builder.op(OpKind::Compare(Predicate::Lt), &[indices, zero], &[("", is_negative)])[0];
    let shifted = t.builder.binary("", BinaryKind::Add, indices, all);
    let indices = t.builder.op(OpKind::Select, &[is_negative, shifted, indices], &[("", ty)])[0];
    let result = TensorType { shape: t.result(arguments.node)?.shape, ..t.builder.ty(x).clone() };
    Ok(t.builder.op(OpKind::Gather { axis: along }, &[x, indices], &[(&arguments.node.name, result)])[0])
}

/// Adds elements before and after axes. Torch lists two numbers per axis, the last axis first.
fn pad(t: &mut Translator<'_>, arguments: Arguments<'_>, value: usize) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let rank = rank_of(t, arguments)?;
    let pads = arguments.integers(1, "pad")?.unwrap_or_default();
    let value = arguments.number(value, "value")?.unwrap_or(0.0);
    if pads.len() % 2 != 0 || pads.len() / 2 > rank {
        return Err(format!("has {} pads of {rank} axes", pads.len()));
    }
    let mut amounts = Vec::new();
    for (from_end, pair) in pads.chunks(2).enumerate() {
        let amount = |pad: i64| u64::try_from(pad).map_err(|_| format!("has the negative pad {pad}"));
        let (low, high) = (amount(pair[0])?, amount(pair[1])?);
        if low > 0 || high > 0 {
            amounts.push(PadAmount { axis: (rank - 1 - from_end) as u32, low, high });
        }
    }
    amounts.reverse();
    if amounts.is_empty() {
        return Ok(x);
    }
    let ty = TensorType { shape: t.result(arguments.node)?.shape, ..t.builder.ty(x).clone() };
    Ok(t.builder.op(OpKind::Pad { amounts, value }, &[x], &[(&arguments.node.name, ty)])[0])
}

/// Repeats a whole tensor along each axis.
fn repeat(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let mut x = t.tensor(arguments.get(0, "input")?)?;
    let counts = arguments.integers(1, "repeats")?.unwrap_or_default();
    let ty = t.builder.ty(x).clone();
    let Some(added) = counts.len().checked_sub(ty.rank()) else {
        return Err("repeats fewer axes than there are".to_owned());
    };
    if added > 0 {
        let shape = (0..added).map(|_| Dim::fixed(1)).chain(ty.shape).collect();
        let ty = TensorType { shape, ..t.builder.ty(x).clone() };
        x = t.builder.op(OpKind::Reshape, &[x], &[("", ty)])[0];
    }
    for (axis, count) in counts.into_iter().enumerate().filter(|(_, count)| *count != 1) {
        x = spread(t, x, axis, axis, &extent(count)?)?;
    }
    Ok(x)
}

/// Repeats each slice of an axis.
pub(super) fn each_repeated(
    t: &mut Translator<'_>,
    x: Value,
    axis: usize,
    count: &Dim,
) -> Result<Value, Reason> {
    spread(t, x, axis, axis + 1, count)
}

/// Inserts an axis of repetitions at `at`, next to `axis`, and merges both.
fn spread(t: &mut Translator<'_>, x: Value, axis: usize, at: usize, count: &Dim) -> Result<Value, Reason> {
    let ty = t.builder.ty(x).clone();
    if count.as_fixed() == Some(1) {
        return Ok(x);
    }
    let mut shape = ty.shape.clone();
    shape.insert(at, Dim::fixed(1));
    let mut step = |kind: OpKind, x: Value, shape: Shape| {
        let ty = TensorType { shape, ..ty.clone() };
        t.builder.op(kind, &[x], &[("", ty)])[0]
    };
    let single = step(OpKind::Reshape, x, shape.clone());
    shape[at] = count.clone();
    let repeated = step(OpKind::Broadcast, single, shape);
    let mut shape = ty.shape.clone();
    shape[axis] = dim_product([&shape[axis], count]).ok_or("has a result that is too large")?;
    Ok(step(OpKind::Reshape, repeated, shape))
}
