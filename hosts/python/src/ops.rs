//! The ops: each checks its arguments, writes a program and runs it.

use crate::arguments::{extents, float, number, out_dtype};
pub use crate::by_m::scaled_mm_by_m;
use crate::error::Error;
pub use crate::grouped::grouped_mm;
pub use crate::kernels::scaled_mm_kernel;
use crate::module::Operand;
use crate::product::{ProductOptions, Tensors, product};
use crate::programs::{self, Format, Quantized};
use crate::run::call;
use crate::shim::Tensor;
use crate::stack::{Arguments, Results};

type Outcome = Result<Results, Error>;

/// `segment(str ir, Tensor[] tensors) -> Tensor[]`
pub fn segment(mut arguments: Arguments) -> Outcome {
    let (text, tensors) = (arguments.text()?, arguments.tensors()?);
    Ok(Results::List(call(&text, tensors.into_iter().map(Operand::new).collect())?))
}

/// `scaled_mm`: a block-scaled product with alpha, bias and activation.
pub fn scaled_mm(mut arguments: Arguments) -> Outcome {
    let tensors = Tensors::take(&mut arguments)?;
    let product = product(tensors, ProductOptions::take(&mut arguments)?)?;
    Ok(Results::Tensors(call(&product.program.program(None)?, product.operands)?))
}

/// `scaled_mm_quantized`: the same, with a quantized result.
pub fn scaled_mm_quantized(mut arguments: Arguments) -> Outcome {
    let tensors = Tensors::take(&mut arguments)?;
    let scale = arguments.optional()?;
    let mut product = product(tensors, ProductOptions::take(&mut arguments)?)?;
    let quantized = Quantized {
        format: Format::named(&arguments.text()?)?,
        swizzled: arguments.switch()?,
        has_scale: scale.is_some(),
        rounding: "floor".to_owned(),
    };
    if let Some(scale) = scale {
        product.operands.push(number(scale, "scale")?);
    }
    Ok(Results::Tensors(call(&product.program.program(Some(&quantized))?, product.operands)?))
}

/// The extents of a matrix or a batch of them: the leading ones as text with the symbol M, and the last.
fn rows(tensor: &Tensor, name: &str) -> Result<(Vec<String>, usize), Error> {
    let extents = extents(tensor, name, 2..=3)?;
    let mut leading: Vec<String> = extents[..extents.len() - 2].iter().map(ToString::to_string).collect();
    leading.push("M".to_owned());
    Ok((leading, extents[extents.len() - 1]))
}

/// `quantize`: codes and scales of a matrix.
pub fn quantize(mut arguments: Arguments) -> Outcome {
    let (x, scale) = (arguments.tensor()?, arguments.optional()?);
    let quantized = Quantized {
        format: Format::named(&arguments.text()?)?,
        swizzled: arguments.switch()?,
        has_scale: scale.is_some(),
        rounding: arguments.text()?,
    };
    let (leading, columns) = rows(&x, "x")?;
    let program = programs::quantize(&leading, columns, float(&x, "x")?, &quantized)?;
    let mut operands = vec![Operand::new(x)];
    if let Some(scale) = scale {
        operands.push(number(scale, "scale")?);
    }
    Ok(Results::Tensors(call(&program, operands)?))
}

/// `dequantize`: the numbers of codes and scales.
pub fn dequantize(mut arguments: Arguments) -> Outcome {
    let (codes, scales, scale) = (arguments.tensor()?, arguments.tensor()?, arguments.optional()?);
    let (format, swizzled) = (Format::named(&arguments.text()?)?, arguments.switch()?);
    let out = out_dtype(arguments.dtype()?)?;
    let (leading, stored) = rows(&codes, "codes")?;
    let columns = stored * format.packed;
    if !columns.is_multiple_of(format.block) {
        return Err(Error::argument(format!("K is {columns}, no multiple of the block, {}", format.block)));
    }
    let mut dims = extents(&codes, "codes", 2..=3)?;
    dims.pop();
    dims.push(columns / format.block);
    let program = programs::dequantize(&leading, columns, format, swizzled, scale.is_some(), out)?;
    let mut operands = vec![Operand::new(codes), Operand::shaped(scales, dims)];
    if let Some(scale) = scale {
        operands.push(number(scale, "scale")?);
    }
    Ok(Results::Tensors(call(&program, operands)?))
}

/// `quantize_dynamic`: codes, scales and per-tensor scale of a matrix in NVFP4.
pub fn quantize_dynamic(mut arguments: Arguments) -> Outcome {
    let (x, swizzled) = (arguments.tensor()?, arguments.switch()?);
    let (leading, columns) = rows(&x, "x")?;
    let program = programs::quantize_dynamic(&leading, columns, float(&x, "x")?, swizzled)?;
    Ok(Results::Tensors(call(&program, vec![Operand::new(x)])?))
}

/// The axes of a tensor, from 0.
fn axes(given: &[i64], rank: usize) -> Result<Vec<usize>, Error> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let mut axes = Vec::with_capacity(given.len());
    for axis in given {
        let from_front = if *axis < 0 { axis + signed } else { *axis };
        match usize::try_from(from_front) {
            Ok(place) if place < rank && !axes.contains(&place) => axes.push(place),
            _ => {
                return Err(Error::argument(format!(
                    "the axes {given:?} do not fit a tensor of {rank} axes"
                )));
            }
        }
    }
    Ok(axes)
}

/// `reduce`: elements combined along axes.
pub fn reduce(mut arguments: Arguments) -> Outcome {
    let (x, kind) = (arguments.tensor()?, arguments.text()?);
    let (given, keep_dims) = (arguments.ints()?, arguments.switch()?);
    let extents = extents(&x, "x", 1..=8)?;
    let mut axes = axes(&given, extents.len())?;
    axes.sort_unstable();
    let program = programs::reduce(&extents, float(&x, "x")?, &kind, &axes, keep_dims)?;
    Ok(Results::Tensors(call(&program, vec![Operand::new(x)])?))
}

/// `softmax`: normalized exponentials along an axis.
pub fn softmax(mut arguments: Arguments) -> Outcome {
    let (x, given) = (arguments.tensor()?, arguments.int()?);
    let extents = extents(&x, "x", 1..=8)?;
    let axes = axes(&[given], extents.len())?;
    let program = programs::softmax(&extents, float(&x, "x")?, axes[0]);
    Ok(Results::Tensors(call(&program, vec![Operand::new(x)])?))
}

/// `softmax_backward`: the gradient of softmax.
pub fn softmax_backward(mut arguments: Arguments) -> Outcome {
    let (grad, y, given) = (arguments.tensor()?, arguments.tensor()?, arguments.int()?);
    let extents = extents(&y, "y", 1..=8)?;
    let axes = axes(&[given], extents.len())?;
    let program = programs::softmax_backward(&extents, float(&y, "y")?, axes[0]);
    Ok(Results::Tensors(call(&program, vec![Operand::new(grad), Operand::new(y)])?))
}

/// `copy_transpose`: the tensor with its axes permuted, in compact memory.
pub fn copy_transpose(mut arguments: Arguments) -> Outcome {
    let (x, given) = (arguments.tensor()?, arguments.ints()?);
    let extents = extents(&x, "x", 1..=8)?;
    let axes = axes(&given, extents.len())?;
    if axes.len() != extents.len() {
        return Err(Error::argument(format!("{given:?} is no permutation of {} axes", extents.len())));
    }
    let element = x.element()?;
    let word = element.word().ok_or_else(|| {
        Error::argument(format!("x is {element:?}; expected float16, bfloat16, float32 or int32"))
    })?;
    let program = programs::copy_transpose(&extents, word, &axes);
    Ok(Results::Tensors(call(&program, vec![Operand::new(x)])?))
}
