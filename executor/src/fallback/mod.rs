//! The CPU fallback: computes every op, in parallel over its results, wherever no kernel runs.
//!
//! It is independent of the interpreter, so that each checks the other; they share only the scalar functions of
//! [`fourfold_ir::scalar`] and the number formats. Results equal the interpreter's bit for bit, with all NaNs
//! considered equal. Multiplications are within the bound that `fourfold_ir` states. Results do not depend on the
//! number of threads: one thread computes each, in an order determined by the shapes.

mod codec;
mod elementwise;
mod grouped;
mod joining;
mod memory;
mod mma;
mod movement;
mod processor;
mod quantize;
mod reduction;
mod routing;
mod scaled_mma;
#[cfg(test)]
mod tests;
mod view;

use fourfold_ir::bind::concrete_dims;
use fourfold_ir::{
    ElementType, Module, Op, OpKind, Program, ScaleLayout, ScaledMma, SymbolValues, Tensor, TensorError,
    Value,
};

pub use self::grouped::{GroupedOperands, grouped_scaled_mma, scales_of_rows};
use self::memory::{NoMemory, zeroed};
pub use self::mma::gemm_f32;
pub use self::processor::processor;
pub use self::scaled_mma::{
    BlockScaled, BlockScaledShape, Epilogue, OperandError, ScaledMmaError, ScaledMmaKernel, dequantize,
    dequantize_into, scaled_mma, scaled_mma_with,
};

/// The reason that an op could not be computed. The first three variants are errors of the caller. They cannot occur
/// with a verified program, symbols solved by [`fourfold_ir::bind::bind`], and tensors of the stated types.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FallbackError {
    /// The number of tensors is wrong.
    #[error("it takes {expected} tensors, not {found}")]
    Count {
        /// The number of operands.
        expected: usize,
        /// The number of tensors given.
        found: usize,
    },
    /// A tensor does not have its operand's type.
    #[error("`%{name}` is {expected}, but its tensor is {found}")]
    Type {
        /// The operand.
        name: String,
        /// The operand's type, with the extents of this run.
        expected: String,
        /// The tensor's type.
        found: String,
    },
    /// A symbol has no value, or an extent exceeds the address space.
    #[error("the symbol values do not determine the extents of `%{name}: {ty}`")]
    Extents {
        /// The operand or result.
        name: String,
        /// Its type.
        ty: String,
    },
    /// A result's extents are invalid.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Memory is insufficient for a result or for intermediate data.
    #[error("cannot allocate {bytes} bytes for {what}")]
    Memory {
        /// The purpose of the memory: a tensor with type and shape, or an op's intermediate data.
        what: String,
        /// The bytes required; `usize::MAX` if that exceeds the address space.
        bytes: usize,
    },
    /// A `scaled_mma`'s codes and scales do not match.
    #[error(transparent)]
    Operand(#[from] OperandError),
    /// A `scaled_mma`'s operands do not match.
    #[error(transparent)]
    ScaledMma(ScaledMmaError),
    /// An index of a `gather` or a `scatter_add` is outside the axis.
    #[error("index {index}, element {position} of the indices, is outside axis {axis} of extent {extent}")]
    Index {
        /// The position among the indices, in row-major order.
        position: usize,
        /// The index.
        index: i32,
        /// The axis.
        axis: u32,
        /// The axis's extent.
        extent: usize,
    },
    /// An offset of a `grouped_scaled_mma` is below the one before it or exceeds the number of rows.
    #[error("offset {offset}, element {position} of the offsets, is outside {least}..={rows}")]
    Offset {
        /// The position among the offsets.
        position: usize,
        /// The offset.
        offset: i32,
        /// The offset before it; 0 for the first.
        least: i32,
        /// The number of rows.
        rows: usize,
    },
    /// A count of a `masked_scaled_mma` is negative or exceeds the rows of a matrix of A.
    #[error("count {count}, element {position} of the counts, is outside 0..={rows}")]
    GroupCount {
        /// The position among the counts.
        position: usize,
        /// The count.
        count: i32,
        /// The rows of a matrix of A.
        rows: usize,
    },
    /// A padded end of a group is too small or too large, or the group after it does not begin with a tile.
    #[error(
        "the end of padded group {position} is {end}; expected a multiple of {multiple} from {least} to {most}"
    )]
    PaddedEnd {
        /// The group.
        position: usize,
        /// The padded end.
        end: i64,
        /// The number of which it must be a multiple.
        multiple: u32,
        /// The least end.
        least: i64,
        /// The largest end.
        most: usize,
    },
    /// An id of a `group_rows` is not that of a group.
    #[error("id {id}, element {position} of the ids, is not one of {groups} groups")]
    Group {
        /// The position among the ids, in row-major order.
        position: usize,
        /// The id.
        id: i32,
        /// The number of groups.
        groups: u32,
    },
    /// The elements of a row of `top_k`, of the ids of a `group_rows` or of the indices of a `scatter_add` have positions
    /// beyond an `i32`.
    #[error("{count} elements are more than the 2147483647 positions of an i32")]
    Positions {
        /// The number of elements.
        count: usize,
    },
    /// The op should not have passed verification: a bug in Fourfold.
    #[error("this is a bug in Fourfold: {reason}")]
    Internal {
        /// The violated assumption.
        reason: &'static str,
    },
}

impl From<ScaledMmaError> for FallbackError {
    fn from(error: ScaledMmaError) -> FallbackError {
        match error {
            ScaledMmaError::Memory { bytes } => FallbackError::Memory {
                what: "the decoded operands and sums of a scaled_mma".to_owned(),
                bytes,
            },
            error => FallbackError::ScaledMma(error),
        }
    }
}

/// Computes an op's results from its operands.
///
/// # Errors
/// When a tensor does not have its operand's type under these symbol values, a result's extents are invalid, an index of
/// a `gather` or `scatter_add` is outside its axis, an id of a `group_rows` is not that of a group, an offset
/// of a `grouped_scaled_mma` is not a place among the rows, a count of a `masked_scaled_mma` exceeds them, or memory is
/// insufficient.
pub fn run_op(
    program: &Program,
    op: Op,
    operands: &[&Tensor],
    symbols: &SymbolValues,
) -> Result<Vec<Tensor>, FallbackError> {
    let module = program.module();
    let operation = &module.ops[op];
    if operands.len() != operation.operands.len() {
        return Err(FallbackError::Count { expected: operation.operands.len(), found: operands.len() });
    }
    for (&value, tensor) in operation.operands.iter().zip(operands) {
        check_operand(module, value, tensor, symbols)?;
    }
    let results: Vec<ResultType> = operation
        .results
        .iter()
        .map(|&value| ResultType::new(module, value, symbols))
        .collect::<Result<_, _>>()?;
    compute(&operation.kind, operands, results)
}

/// A tensor of zeros with a value's type under these symbol values.
///
/// # Errors
/// When an extent is unknown or invalid, or memory is insufficient.
pub fn zeros(program: &Program, value: Value, symbols: &SymbolValues) -> Result<Tensor, FallbackError> {
    ResultType::new(program.module(), value, symbols)?.zeros()
}

/// A result's type with the extents of this run.
#[derive(Debug)]
struct ResultType {
    element: ElementType,
    dims: Vec<usize>,
    layout: Option<ScaleLayout>,
}

impl ResultType {
    fn new(module: &Module, value: Value, symbols: &SymbolValues) -> Result<ResultType, FallbackError> {
        let ty = module.ty(value);
        let dims = concrete_dims(ty, symbols).ok_or_else(|| FallbackError::Extents {
            name: module.name_of(value).to_owned(),
            ty: module.display_type(ty).to_string(),
        })?;
        Ok(ResultType { element: ty.element, dims, layout: ty.layout })
    }

    /// Allocates a tensor of zero bytes, to be overwritten.
    fn zeros(self) -> Result<Tensor, FallbackError> {
        let ResultType { element, dims, layout } = self;
        // Extents may come from an empty tensor, whose nonzero extents are unbounded.
        match zeroed(Tensor::byte_len(element, &dims, layout)?) {
            Ok(bytes) => Ok(Tensor::new(element, dims, layout, bytes)?),
            Err(error) => Err(no_memory(element, &dims, error)),
        }
    }
}

/// The error for a tensor, or for data of its size, that does not fit in memory.
fn no_memory(element: ElementType, dims: &[usize], NoMemory { bytes }: NoMemory) -> FallbackError {
    FallbackError::Memory { what: format!("a tensor of {element} with shape {dims:?}"), bytes }
}

fn check_operand(
    module: &Module,
    value: Value,
    tensor: &Tensor,
    symbols: &SymbolValues,
) -> Result<(), FallbackError> {
    let expected = ResultType::new(module, value, symbols)?;
    if (expected.element, expected.dims.as_slice(), expected.layout)
        == (tensor.element(), tensor.dims(), tensor.layout())
    {
        return Ok(());
    }
    let describe = |element: ElementType, dims: &[usize], layout: Option<ScaleLayout>| {
        let layout = layout.map_or(String::new(), |layout| format!(", {layout}"));
        format!("{dims:?}, {element}{layout}")
    };
    Err(FallbackError::Type {
        name: module.name_of(value).to_owned(),
        expected: describe(expected.element, &expected.dims, expected.layout),
        found: describe(tensor.element(), tensor.dims(), tensor.layout()),
    })
}

fn compute(
    kind: &OpKind,
    operands: &[&Tensor],
    results: Vec<ResultType>,
) -> Result<Vec<Tensor>, FallbackError> {
    if let OpKind::BlockQuantize { block, scale_rounding, formula } = kind
        && let [v, global @ ..] = operands
    {
        let internal = FallbackError::Internal { reason: "block_quantize has two results" };
        let results: [ResultType; 2] = results.try_into().map_err(|_| internal)?;
        return quantize::block_quantize(
            *block as usize,
            (*scale_rounding, *formula),
            v,
            global.first().copied(),
            results,
        );
    }
    match (kind, operands) {
        (OpKind::TopK { k }, [x]) => return routing::top_k(x, *k as usize, results),
        (OpKind::GroupRows { groups }, [ids]) => return routing::group_rows(ids, *groups, results),
        _ => {}
    }
    let internal = FallbackError::Internal { reason: "this op has one result" };
    let [result]: [ResultType; 1] = results.try_into().map_err(|_| internal)?;
    let tensor = match (kind, operands) {
        (OpKind::ScaledMma(attributes), [_, _, _, ..]) => run_scaled_mma(*attributes, operands, result)?,
        (OpKind::GroupedScaledMma(attributes), [_, _, _, _, ..]) => {
            grouped::run_grouped_scaled_mma(*attributes, operands, result.element)?
        }
        (OpKind::PaddedEnds { multiple }, [ends]) => grouped::padded_ends(ends, *multiple, result)?,
        (OpKind::GroupScales, [scales, ends, sfa_ends]) => {
            grouped::group_scales(scales, ends, sfa_ends, result)?
        }
        (OpKind::Mma, [a, b]) => mma::mma(a, b, result)?,
        (OpKind::SwizzleScales, [scales]) => quantize::swizzle(scales, result)?,
        (OpKind::BlockDequantize { block }, [codes, scales, global @ ..]) => {
            quantize::block_dequantize(*block as usize, codes, scales, global.first().copied(), result)?
        }
        (OpKind::Convert, [x]) => elementwise::convert(x, result)?,
        (OpKind::Bitcast, [x]) => elementwise::bitcast(x, result)?,
        (OpKind::Unary(kind), [x]) => elementwise::unary(*kind, x, result)?,
        (OpKind::Binary(kind), [left, right]) => elementwise::binary(*kind, left, right, result)?,
        (OpKind::Bitwise(kind), [left, right]) => elementwise::bitwise(*kind, left, right, result)?,
        (OpKind::Clamp { min, max }, [x]) => elementwise::clamp(*min, *max, x, result)?,
        (OpKind::Compare(predicate), [left, right]) => elementwise::compare(*predicate, left, right, result)?,
        (OpKind::Select, [_, _, _]) => elementwise::select(operands, result)?,
        (OpKind::Reshape, [x]) => movement::reshape(x, result)?,
        (OpKind::Transpose { permutation }, [x]) => movement::transpose(x, permutation, result)?,
        (OpKind::Broadcast, [x]) => movement::broadcast(x, result)?,
        (OpKind::Slice { ranges }, [x]) => movement::slice(x, ranges, result)?,
        (OpKind::Concat { axis }, [_, ..]) => joining::concat(operands, *axis as usize, result)?,
        (OpKind::Choose { axis, ends }, [_, _, ..]) => movement::choose(operands, *axis, ends, result)?,
        (OpKind::Gather { axis }, [x, indices]) => joining::gather(x, indices, *axis, result)?,
        (OpKind::ScatterAdd, [x, indices]) => routing::scatter_add(x, indices, result)?,
        (OpKind::Pad { amounts, value }, [x]) => joining::pad(x, amounts, *value, result)?,
        (OpKind::Reduce { kind, axes, .. }, [x]) => reduction::reduce(*kind, axes, x, result)?,
        (OpKind::Softmax { axis }, [x]) => reduction::softmax(*axis as usize, x, result)?,
        (OpKind::LayerNorm { eps }, [x, weight, bias]) => {
            reduction::layer_norm(*eps, x, weight, bias, result)?
        }
        (OpKind::Constant(value), []) => elementwise::constant(value, result)?,
        _ => return Err(FallbackError::Internal { reason: "the op has the operands of its kind" }),
    };
    Ok(vec![tensor])
}

fn run_scaled_mma(
    attributes: ScaledMma,
    operands: &[&Tensor],
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let mut operands = operands.iter().copied();
    let mut take = |present: bool| if present { operands.next() } else { None };
    let (a, sfa, b, sfb) = (take(true), take(!attributes.weight_only), take(true), take(true));
    let (Some(a), Some(b), Some(sfb)) = (a, b, sfb) else {
        return Err(FallbackError::Internal { reason: "a scaled_mma has its positional operands" });
    };
    let (alpha, c, beta) = (take(attributes.alpha), take(attributes.c), take(attributes.beta));
    let scalar = |tensor: &Tensor| tensor.to_f32().first().copied();
    let epilogue = Epilogue {
        alpha: alpha.and_then(scalar),
        c: c.map(|c| (c.bytes(), c.element())),
        beta: beta.and_then(scalar),
    };
    let block = attributes.block as usize;
    let (a, b) = (operand(a, sfa, block)?, operand(b, Some(sfb), block)?);
    let mut tensor = result.zeros()?;
    let element = tensor.element();
    scaled_mma(&a, &b, epilogue, element, tensor.bytes_mut())?;
    Ok(tensor)
}

fn operand<'a>(
    data: &'a Tensor,
    scales: Option<&'a Tensor>,
    block: usize,
) -> Result<BlockScaled<'a>, FallbackError> {
    let [batch @ .., rows, k] = data.dims() else {
        return Err(FallbackError::Internal { reason: "an operand has rows and columns" });
    };
    let shape = BlockScaledShape { batch: batch.iter().product(), rows: *rows, k: *k, block };
    let of_data = (data.bytes(), data.element());
    let Some(scales) = scales else { return Ok(BlockScaled::unscaled(of_data, shape)?) };
    let Some(layout) = scales.layout() else {
        return Err(FallbackError::Internal { reason: "scales have a layout" });
    };
    Ok(BlockScaled::new(of_data, (scales.bytes(), scales.element(), layout), shape)?)
}
