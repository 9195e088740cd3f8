//! Checks of arguments that several ops have.

use crate::error::Error;
use crate::module::Operand;
use crate::programs::{Format, Left};
use crate::shim::{Element, Tensor, shim};

/// The extents of a tensor, at least one.
pub fn extents(
    tensor: &Tensor,
    name: &str,
    ranks: std::ops::RangeInclusive<usize>,
) -> Result<Vec<usize>, Error> {
    let sizes = tensor.sizes()?;
    if !ranks.contains(&sizes.len()) {
        let (least, most) = (ranks.start(), ranks.end());
        let expected = if least == most { least.to_string() } else { format!("{least} to {most}") };
        return Err(Error::argument(format!("{name} has the shape {sizes:?}; expected {expected} axes")));
    }
    Ok(sizes.into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect())
}

/// A tensor of one number in f32.
pub fn number(tensor: Tensor, name: &str) -> Result<Operand, Error> {
    let sizes = tensor.sizes()?;
    if tensor.element()? != Element::Float32 || sizes.iter().product::<i64>() != 1 {
        return Err(Error::argument(format!("{name} must be one float32 number; its shape is {sizes:?}")));
    }
    Ok(Operand::shaped(tensor, vec![1]))
}

/// The word of a floating-point type.
fn word(element: Element, what: &str) -> Result<&'static str, Error> {
    let word = match element {
        Element::Float16 | Element::BFloat16 | Element::Float32 => element.word(),
        _ => None,
    };
    word.ok_or_else(|| {
        Error::argument(format!("{what} is {element:?}; expected float16, bfloat16 or float32"))
    })
}

/// The word of a floating-point tensor's element type.
pub fn float(tensor: &Tensor, name: &str) -> Result<&'static str, Error> {
    word(tensor.element()?, name)
}

/// The word of the dtype of a result.
pub fn out_dtype(number: i32) -> Result<&'static str, Error> {
    word(shim()?.element(number)?, "out_dtype")
}

/// The formats of A and B. Without scales, A has 16-bit numbers, and the format is that of B.
pub fn formats(a: &Tensor, has_scales: bool, name: &str, swizzled: bool) -> Result<(Left, Format), Error> {
    if has_scales {
        let (format, b) = Format::pair(name)?;
        return Ok((Left::Blocks { format, swizzled }, b));
    }
    let format = Format::named(name)?;
    match a.element()? {
        element @ (Element::Float16 | Element::BFloat16) => {
            let word = element.word().ok_or_else(|| Error::Bug("a float has no word".to_owned()))?;
            Ok((Left::Dense(word), format))
        }
        other => Err(Error::argument(format!(
            "a has no scales and is {other:?}; expected float16 or bfloat16. Convert a, or quantize it and pass its \
             scales as sfa"
        ))),
    }
}
