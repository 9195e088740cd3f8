//! `grouped_mm`: rows sorted by expert, each multiplied with the matrix of its expert.

use crate::arguments::{extents, float, formats, out_dtype};
use crate::error::Error;
use crate::module::Operand;
use crate::programs::{Format, GroupedMm, Left};
use crate::run::call;
use crate::shim::{Element, Tensor};
use crate::stack::{Arguments, Results};

/// T, E, N and K.
fn multiplied(a: &Tensor, left: Left, b: &Tensor, format: Format) -> Result<[usize; 4], Error> {
    let (rows, columns) = (extents(a, "a", 2..=2)?, extents(b, "b", 3..=3)?);
    let packed = match left {
        Left::Blocks { format, .. } => format.packed,
        Left::Dense(_) => 1,
    };
    let k = rows[1] * packed;
    if columns[2] * format.packed != k {
        let stored = |packed| if packed == 2 { "K/2" } else { "K" };
        return Err(Error::argument(format!(
            "a has the shape {rows:?} and b {columns:?}; expected [T, {}] and [E, N, {}]",
            stored(packed),
            stored(format.packed)
        )));
    }
    if !k.is_multiple_of(format.block) {
        return Err(Error::argument(format!("K is {k}, no multiple of the block, {}", format.block)));
    }
    Ok([rows[0], columns[0], columns[1], k])
}

/// One i32 number for each of `count` items.
fn integers(tensor: Tensor, name: &str, count: usize, items: &str) -> Result<Operand, Error> {
    let sizes = tensor.sizes()?;
    if !tensor.element().is_ok_and(|element| element == Element::Int32) {
        return Err(Error::argument(format!("{name} is not int32; pass {name}.to(torch.int32)")));
    }
    if sizes.len() != 1 || usize::try_from(sizes[0]) != Ok(count) {
        return Err(Error::argument(format!(
            "{name} has the shape {sizes:?}; expected [{count}], one number for each {items}"
        )));
    }
    Ok(Operand::new(tensor))
}

/// One float32 number, or one for each expert, and the number of them.
fn alphas(tensor: Tensor, experts: usize) -> Result<(Operand, usize), Error> {
    let sizes = tensor.sizes()?;
    let count = usize::try_from(sizes.iter().product::<i64>()).unwrap_or(0);
    if tensor.element()? != Element::Float32 || sizes.len() > 1 || (count != 1 && count != experts) {
        return Err(Error::argument(format!(
            "alpha must be one float32 number, or {experts}, one for each expert; its shape is {sizes:?}"
        )));
    }
    Ok((Operand::shaped(tensor, vec![count]), count))
}

/// The op.
pub fn grouped_mm(mut arguments: Arguments) -> Result<Results, Error> {
    let (a, sfa) = (arguments.tensor()?, arguments.optional()?);
    let (b, sfb, ends) = (arguments.tensor()?, arguments.tensor()?, arguments.tensor()?);
    let (alpha, bias, expert) = (arguments.optional()?, arguments.optional()?, arguments.optional()?);
    let (name, swizzled_b) = (arguments.text()?, arguments.switch()?);
    let (activation, out) = (arguments.text()?, out_dtype(arguments.dtype()?)?);
    let (left, format) = formats(&a, sfa.is_some(), &name, false)?;
    let [rows, experts, n, k] = multiplied(&a, left, &b, format)?;
    let blocks = k / format.block;
    let mut operands = vec![Operand::new(a)];
    operands.extend(sfa.map(|sfa| Operand::shaped(sfa, vec![rows, blocks])));
    operands.extend([Operand::new(b), Operand::shaped(sfb, vec![experts, n, blocks])]);
    operands.push(integers(ends, "ends", experts, "expert")?);
    let alpha = alpha.map(|alpha| alphas(alpha, experts)).transpose()?;
    let count = alpha.as_ref().map(|(_, count)| *count);
    operands.extend(alpha.map(|(operand, _)| operand));
    let element = bias.as_ref().map(|bias| float(bias, "bias")).transpose()?;
    match (bias, expert) {
        (Some(bias), Some(expert)) => {
            operands.extend([Operand::new(bias), integers(expert, "expert", rows, "row")?]);
        }
        (None, None) => {}
        _ => {
            let message = "bias and expert, the expert of each row, are given together; \
                           fourfold.torch.grouped_mm computes expert";
            return Err(Error::argument(message));
        }
    }
    let program = GroupedMm {
        a: left,
        format,
        experts,
        n,
        k,
        swizzled_b,
        alphas: count,
        bias: element,
        activation,
        out,
    };
    Ok(Results::Tensors(call(&program.program()?, operands)?))
}
