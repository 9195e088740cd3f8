//! The operands and options of a block-scaled product, checked, with its program.

use crate::arguments::{extents, float, formats, number, out_dtype};
use crate::error::Error;
use crate::module::Operand;
use crate::programs::{Alpha, Format, Left, ScaledMm};
use crate::shim::{Element, Tensor};
use crate::stack::Arguments;

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
#[derive(Debug)]
pub struct Product {
    /// The operands.
    pub operands: Vec<Operand>,
    /// The program.
    pub program: ScaledMm,
    /// The extents of A: M, and the matrices of a batch.
    pub rows: [usize; 2],
}

/// The tensors of a product.
#[derive(Debug)]
pub struct Tensors {
    /// A, codes or numbers.
    pub a: Tensor,
    /// Scales of A.
    pub sfa: Option<Tensor>,
    /// B.
    pub b: Tensor,
    /// Scales of B.
    pub sfb: Tensor,
    /// The factor.
    pub alpha: Option<Tensor>,
    /// The bias.
    pub bias: Option<Tensor>,
}

/// The options of a product.
#[derive(Debug)]
pub struct ProductOptions {
    /// The formats of A and B, or of B without scales of A.
    pub format: String,
    /// Scales of A and of B are swizzled.
    pub swizzled: [bool; 2],
    /// The activation.
    pub activation: String,
    /// The result type.
    pub out: &'static str,
}

impl ProductOptions {
    /// Takes the next arguments of a call.
    ///
    /// # Errors
    /// If one has another type.
    pub fn take(arguments: &mut Arguments) -> Result<ProductOptions, Error> {
        Ok(ProductOptions {
            format: arguments.text()?,
            swizzled: [arguments.switch()?, arguments.switch()?],
            activation: arguments.text()?,
            out: out_dtype(arguments.dtype()?)?,
        })
    }
}

impl Tensors {
    /// Takes the next arguments of a call.
    ///
    /// # Errors
    /// If one has another type.
    pub fn take(arguments: &mut Arguments) -> Result<Tensors, Error> {
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

/// Checks the extents of a product, and writes its program.
pub fn product(tensors: Tensors, options: ProductOptions) -> Result<Product, Error> {
    let Tensors { a, sfa, b, sfb, alpha: factor, bias } = tensors;
    let ProductOptions { format: name, swizzled: [swizzled_a, swizzled_b], activation, out } = options;
    let (left, format) = formats(&a, sfa.is_some(), &name, swizzled_a)?;
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
    let rows = [a_extents[a_rank - 2], a_extents[..a_rank - 2].iter().product()];
    Ok(Product { operands, program, rows })
}
