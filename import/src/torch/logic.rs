//! Constants, comparisons and choices: masks and position numbers, as models compute them.

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, OpKind, Predicate, ReduceKind, Shape, TensorType, Value,
};
use serde_json::Value as Json;

use super::arguments::{Arguments, Reason, number};
use super::builder::{Entry, Translator, axis};
use super::movement::integers;

/// Translates an op of this family; `None` if it belongs to another.
pub(super) fn translate(
    t: &mut Translator<'_>,
    op: &str,
    arguments: Arguments<'_>,
) -> Result<Option<Entry>, Reason> {
    if let Some((name, "Scalar" | "Tensor")) = op.split_once('.')
        && let Some(predicate) = Predicate::from_name(name)
    {
        return compare(t, arguments, predicate).map(Entry::Tensor).map(Some);
    }
    let value = match op {
        "arange.default" => arange(t, arguments, [None, Some(0), None])?,
        "arange.start" => arange(t, arguments, [Some(0), Some(1), None])?,
        "arange.start_step" => arange(t, arguments, [Some(0), Some(1), Some(2)])?,
        "full.default" | "full_like.default" => {
            filled(t, arguments, scalar(arguments.get(1, "fill_value")?)?)?
        }
        "scalar_tensor.default" => filled(t, arguments, scalar(arguments.get(0, "s")?)?)?,
        "zeros.default" | "zeros_like.default" => filled(t, arguments, 0.0)?,
        "ones.default" | "ones_like.default" => filled(t, arguments, 1.0)?,
        "tril.default" => triangle(t, arguments, Predicate::Le)?,
        "triu.default" => triangle(t, arguments, Predicate::Ge)?,
        "where.self" | "where.ScalarOther" | "where.ScalarSelf" | "where.Scalar" => {
            let condition = t.tensor(arguments.get(0, "condition")?)?;
            choose(t, arguments, condition, arguments.get(1, "input")?, arguments.get(2, "other")?)?
        }
        "masked_fill.Scalar" | "masked_fill.Tensor" => {
            let mask = t.tensor(arguments.get(1, "mask")?)?;
            choose(t, arguments, mask, arguments.get(2, "value")?, arguments.get(0, "input")?)?
        }
        "logical_and.default" | "bitwise_and.Tensor" | "__and__.Tensor" => {
            both(t, arguments, BinaryKind::Mul)?
        }
        "logical_or.default" | "bitwise_or.Tensor" | "__or__.Tensor" => both(t, arguments, BinaryKind::Max)?,
        "logical_not.default" | "bitwise_not.default" => negated(t, arguments)?,
        "any.dim" => reduced(t, arguments, ReduceKind::Max)?,
        "all.dim" => reduced(t, arguments, ReduceKind::Min)?,
        _ => return Ok(None),
    };
    Ok(Some(Entry::Tensor(value)))
}

/// A number or a boolean.
fn scalar(value: &Json) -> Result<f64, Reason> {
    let number = number(value).or_else(|| value.as_bool().map(f64::from));
    number.ok_or_else(|| format!("has {value} where a number is expected"))
}

/// Consecutive numbers, whose bounds must be known.
fn arange(
    t: &mut Translator<'_>,
    arguments: Arguments<'_>,
    positions: [Option<usize>; 3],
) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let mut bounds = [0.0, 0.0, 1.0];
    for ((bound, position), name) in bounds.iter_mut().zip(positions).zip(["start", "end", "step"]) {
        if let Some(value) = position.and_then(|position| arguments.find(position, name)) {
            *bound = number(value).ok_or("counts to an extent that depends on symbols")?;
        }
    }
    let [start, _, step] = bounds;
    let count = result.shape.first().and_then(Dim::as_fixed).filter(|_| result.rank() == 1);
    let count = count.ok_or("counts to an extent that depends on symbols")?;
    t.list(count)?;
    let values: Vec<f64> = (0..count).map(|at| start + at as f64 * step).collect();
    if count == 0 || !(result.element.is_arithmetic() || result.element == ElementType::I32) {
        return Err(format!("has {count} elements of type {}", result.element));
    }
    let value = match values[..] {
        [value] => ConstantValue::Splat(value),
        _ => ConstantValue::Dense(values),
    };
    Ok(t.builder.op(OpKind::Constant(value), &[], &[(&arguments.node.name, result)])[0])
}

/// A tensor of one number. A constant has a fixed shape, so that symbols need a broadcast.
fn filled(t: &mut Translator<'_>, arguments: Arguments<'_>, number: f64) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let name = &arguments.node.name;
    let kind = OpKind::Constant(ConstantValue::Splat(number));
    if result.shape.iter().all(|dim| dim.as_fixed().is_some()) {
        return Ok(t.builder.op(kind, &[], &[(name, result)])[0]);
    }
    let one = TensorType::new(Shape::new(), result.element);
    let one = t.builder.op(kind, &[], &[("", one)])[0];
    Ok(t.builder.op(OpKind::Broadcast, &[one], &[(name, result)])[0])
}

/// The elements of the last two axes for which column - row has this relation to the diagonal; 0 elsewhere.
fn triangle(t: &mut Translator<'_>, arguments: Arguments<'_>, keeps: Predicate) -> Result<Value, Reason> {
    let x = t.tensor(arguments.get(0, "input")?)?;
    let ty = t.builder.ty(x).clone();
    let diagonal = match arguments.find(1, "diagonal") {
        Some(_) => arguments.integer(1, "diagonal")?,
        None => 0,
    };
    let [.., rows, columns] = &ty.shape[..] else { return Err("has fewer than two axes".to_owned()) };
    let mask = relation(t, rows, columns, diagonal, keeps)?;
    let kind = OpKind::Constant(ConstantValue::Splat(0.0));
    let zero = t.builder.op(kind, &[], &[("", TensorType::new(Shape::new(), ty.element))])[0];
    chosen(t, &arguments.node.name, [mask, x, zero], ty.element)
}

/// True where column has this relation to row + diagonal.
pub(super) fn relation(
    t: &mut Translator<'_>,
    rows: &Dim,
    columns: &Dim,
    diagonal: i64,
    predicate: Predicate,
) -> Result<Value, Reason> {
    let (Some(row_count), Some(column_count)) = (rows.as_fixed(), columns.as_fixed()) else {
        return Err("has a mask whose extents depend on symbols".to_owned());
    };
    t.list(row_count.saturating_add(column_count))?;
    let below = (0..row_count).map(|row| row as f64 + diagonal as f64).collect();
    let below = integers(t, [rows.clone(), Dim::fixed(1)].into(), below);
    let across =
        integers(t, [columns.clone()].into(), (0..column_count).map(|column| column as f64).collect());
    let ty = TensorType::new([rows.clone(), columns.clone()].into(), ElementType::I1);
    Ok(t.builder.op(OpKind::Compare(predicate), &[across, below], &[("", ty)])[0])
}

fn compare(t: &mut Translator<'_>, arguments: Arguments<'_>, predicate: Predicate) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let operands = [arguments.get(0, "input")?, arguments.get(1, "other")?];
    let operands = if t.are_integers(&operands)? {
        [t.integer_or_tensor(operands[0])?, t.integer_or_tensor(operands[1])?]
    } else {
        [t.number_or_tensor(operands[0])?, t.number_or_tensor(operands[1])?]
    };
    Ok(t.builder.op(OpKind::Compare(predicate), &operands, &[(&arguments.node.name, result)])[0])
}

/// Chooses between two tensors or numbers, in the element type of the result.
fn choose(
    t: &mut Translator<'_>,
    arguments: Arguments<'_>,
    condition: Value,
    then: &Json,
    otherwise: &Json,
) -> Result<Value, Reason> {
    if t.builder.ty(condition).element != ElementType::I1 {
        return Err("has a condition that is not boolean".to_owned());
    }
    let element = t.result(arguments.node)?.element;
    let mut operands = [condition; 3];
    for (operand, argument) in operands[1..].iter_mut().zip([then, otherwise]) {
        *operand = match number(argument) {
            Some(number) => {
                let kind = OpKind::Constant(ConstantValue::Splat(number));
                t.builder.op(kind, &[], &[("", TensorType::new(Shape::new(), element))])[0]
            }
            None => {
                let value = t.tensor(argument)?;
                t.converted("", value, element)?
            }
        };
    }
    chosen(t, &arguments.node.name, operands, element)
}

/// Selects. Operands of type i1 are selected as numbers, because `select` chooses between numbers.
fn chosen(
    t: &mut Translator<'_>,
    name: &str,
    [condition, then, otherwise]: [Value; 3],
    element: ElementType,
) -> Result<Value, Reason> {
    let is_boolean = element == ElementType::I1;
    let [then, otherwise] = if is_boolean {
        [t.converted("", then, ElementType::I32)?, t.converted("", otherwise, ElementType::I32)?]
    } else {
        [then, otherwise]
    };
    let shape = [condition, then, otherwise].into_iter().try_fold(Shape::new(), |shape, operand| {
        fourfold_ir::broadcast_shape(&shape, &t.builder.ty(operand).shape)
    });
    let shape = shape.ok_or("combines shapes that do not broadcast")?;
    let selected = if is_boolean { ElementType::I32 } else { element };
    let ty = TensorType::new(shape, selected);
    let first = if is_boolean { "" } else { name };
    let value = t.builder.op(OpKind::Select, &[condition, then, otherwise], &[(first, ty)])[0];
    if is_boolean { t.converted(name, value, element) } else { Ok(value) }
}

/// A tensor of truth values.
fn boolean(t: &mut Translator<'_>, argument: &Json) -> Result<Value, Reason> {
    let value = t.tensor(argument)?;
    match t.builder.ty(value).element {
        ElementType::I1 => Ok(value),
        element => Err(format!("takes a tensor of type {element} as truth values")),
    }
}

/// Conjunction as a product of 0 and 1, disjunction as their maximum.
fn both(t: &mut Translator<'_>, arguments: Arguments<'_>, kind: BinaryKind) -> Result<Value, Reason> {
    let mut operands = [boolean(t, arguments.get(0, "input")?)?, boolean(t, arguments.get(1, "other")?)?];
    for operand in &mut operands {
        *operand = t.converted("", *operand, ElementType::I32)?;
    }
    let [left, right] = operands;
    let value = t.builder.binary("", kind, left, right);
    t.converted(&arguments.node.name, value, ElementType::I1)
}

fn negated(t: &mut Translator<'_>, arguments: Arguments<'_>) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let x = boolean(t, arguments.get(0, "input")?)?;
    let x = t.converted("", x, ElementType::I32)?;
    let zero = integers(t, Shape::new(), vec![0.0]);
    Ok(t.builder.op(OpKind::Compare(Predicate::Eq), &[x, zero], &[(&arguments.node.name, result)])[0])
}

/// The largest or smallest truth value along an axis.
fn reduced(t: &mut Translator<'_>, arguments: Arguments<'_>, kind: ReduceKind) -> Result<Value, Reason> {
    let result = t.result(arguments.node)?;
    let x = boolean(t, arguments.get(0, "input")?)?;
    let x = t.converted("", x, ElementType::F32)?;
    let axes = vec![axis(arguments.integer(1, "dim")?, t.builder.ty(x).rank())?];
    let keep_dims = arguments.flag(2, "keepdim")?;
    let ty = TensorType::new(result.shape, ElementType::F32);
    let value = t.builder.op(OpKind::Reduce { kind, axes, keep_dims }, &[x], &[("", ty)])[0];
    t.converted(&arguments.node.name, value, ElementType::I1)
}
