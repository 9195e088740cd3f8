//! The ops: each checks its arguments, writes a program and runs it.

use crate::arguments::{extents, float, formats, number, out_dtype};
pub use crate::by_m::scaled_mm_by_m;
use crate::error::Error;
pub use crate::grouped::grouped_mm;
use crate::module::Operand;
use crate::programs::{self, Alpha, Format, Left, Quantized, ScaledMm};
use crate::run::call;
use crate::shim::{Element, Tensor};
use crate::stack::{Arguments, Results};

type Outcome = Result<Results, Error>;

/// `segment(str ir, Tensor[] tensors) -> Tensor[]`
pub fn segment(mut arguments: Arguments) -> Outcome {
    let (text, tensors) = (arguments.text()?, arguments.tensors()?);
    Ok(Results::List(call(&text, tensors.into_iter().map(Operand::new).collect())?))
}

/// One float32 number, or one for each of N columns.
fn alpha(tensor: Tensor, n: usize) -> Result<(Operand, Alpha), Error> {
    let sizes = tensor.sizes()?;
    if n == 1 || sizes.len() != 1 || usize::try_from(sizes[0]) != Ok(n) {
        return Ok((number(tensor, "alpha")?, Alpha::Number));
    }
    if tensor.element()? != Element::Float32 {
        return Err(Error::argument(format!("alpha must be one float32 number, or {n} of them")));
    }
    Ok((Operand::new(tensor), Alpha::Columns))
}

/// The operands of a product, and its program.
struct Product {
    operands: Vec<Operand>,
    program: ScaledMm,
}

/// The tensors of a product.
struct Tensors {
    a: Tensor,
    sfa: Option<Tensor>,
    b: Tensor,
    sfb: Tensor,
    alpha: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Tensors {
    fn take(arguments: &mut Arguments) -> Result<Tensors, Error> {
        Ok(Tensors {
            a: arguments.tensor()?,
            sfa: arguments.optional()?,
            b: arguments.tensor()?,
            sfb: arguments.tensor()?,
            alpha: arguments.optional()?,
            bias: arguments.optional()?,
        })
    }
}

/// The extents of A and B, and K.
fn multiplied(
    a: &Tensor,
    left: Left,
    b: &Tensor,
    format: Format,
) -> Result<(Vec<usize>, Vec<usize>, usize), Error> {
    let (a_extents, b_extents) = (extents(a, "a", 2..=3)?, extents(b, "b", 2..=3)?);
    let (a_rank, b_rank) = (a_extents.len(), b_extents.len());
    let packed = match left {
        Left::Blocks { format, .. } => format.packed,
        Left::Dense(_) => 1,
    };
    let k = a_extents[a_rank - 1] * packed;
    let is_batch = b_rank <= a_rank && (b_rank == 2 || a_extents[0] == b_extents[0]);
    if b_extents[b_rank - 1] * format.packed != k || !is_batch {
        let stored = |packed| if packed == 2 { "K/2" } else { "K" };
        return Err(Error::argument(format!(
            "a has the shape {a_extents:?} and b {b_extents:?}; expected [M, {}] and [N, {}], with a batch in front of \
             a or of both",
            stored(packed),
            stored(format.packed)
        )));
    }
    if !k.is_multiple_of(format.block) {
        return Err(Error::argument(format!("K is {k}, no multiple of the block, {}", format.block)));
    }
    Ok((a_extents, b_extents, k))
}

/// Takes the options that both products have, and checks the extents.
fn product(tensors: Tensors, arguments: &mut Arguments) -> Result<Product, Error> {
    let Tensors { a, sfa, b, sfb, alpha: factor, bias } = tensors;
    let name = arguments.text()?;
    let (swizzled_a, swizzled_b) = (arguments.switch()?, arguments.switch()?);
    let (left, format) = formats(&a, sfa.is_some(), &name, swizzled_a)?;
    let (activation, out) = (arguments.text()?, out_dtype(arguments.dtype()?)?);
    let (a_extents, b_extents, k) = multiplied(&a, left, &b, format)?;
    let (a_rank, b_rank) = (a_extents.len(), b_extents.len());
    let n = b_extents[b_rank - 2];
    let scales = |extents: &[usize], tensor: Tensor| {
        let mut dims = extents.to_vec();
        dims[extents.len() - 1] = k / format.block;
        Operand::shaped(tensor, dims)
    };
    let mut operands = vec![Operand::new(a)];
    operands.extend(sfa.map(|sfa| scales(&a_extents, sfa)));
    operands.extend([Operand::new(b), scales(&b_extents, sfb)]);
    let mut kind = Alpha::Absent;
    if let Some(tensor) = factor {
        let (operand, found) = alpha(tensor, n)?;
        operands.push(operand);
        kind = found;
    }
    let bias_type = bias.as_ref().map(|bias| float(bias, "bias")).transpose()?;
    if let Some(bias) = bias {
        operands.push(Operand::new(bias));
    }
    let batch: Vec<String> = a_extents[..a_rank - 2].iter().map(ToString::to_string).collect();
    let mut leading = batch.clone();
    leading.push("M".to_owned());
    let batch = if b_rank == 3 { batch } else { Vec::new() };
    let program = ScaledMm {
        a: left,
        format,
        leading,
        batch,
        n,
        k,
        swizzled_b,
        alpha: kind,
        bias: bias_type,
        activation,
        out,
    };
    Ok(Product { operands, program })
}

/// `scaled_mm`: a block-scaled product with alpha, bias and activation.
pub fn scaled_mm(mut arguments: Arguments) -> Outcome {
    let tensors = Tensors::take(&mut arguments)?;
    let product = product(tensors, &mut arguments)?;
    Ok(Results::Tensors(call(&product.program.program(None)?, product.operands)?))
}

/// `scaled_mm_quantized`: the same, with a quantized result.
pub fn scaled_mm_quantized(mut arguments: Arguments) -> Outcome {
    let tensors = Tensors::take(&mut arguments)?;
    let scale = arguments.optional()?;
    let mut product = product(tensors, &mut arguments)?;
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
