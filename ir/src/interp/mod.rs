//! The interpreter: evaluates every op by its definition in `lib.rs`. It is simple and slow.
//!
//! The function of an op computes in f64 or in exact integers. It returns values, which this module rounds once to
//! the result type, or codes, which are moved unchanged. A NaN result of f32 arithmetic is always 0x7FC00000;
//! comparisons should treat all NaNs as equal.

mod checks;
mod elementwise;
mod matmul;
mod movement;
mod quantize;
mod reduction;
mod routing;
#[cfg(test)]
mod testing;

use self::checks::{check_counts, check_groups, check_indices, check_offsets, check_padded, check_sfa_ends};
use crate::bind::{Bound, concrete_dims};
use crate::entities::{Entity, Op, Value};
use crate::memory::{NoMemory, check_memory};
use crate::module::Module;
use crate::ops::OpKind;
use crate::program::Program;
use crate::tensor::{Tensor, TensorError};
use crate::types::{ElementType, ScaleLayout, SymbolValues, TensorType};

/// The maximum number of elements of a tensor. An op keeps a few arrays of f64 or i64, so each takes up to 2 GiB.
const MAX_ELEMENTS: usize = 1 << 28;
/// The maximum size of a result in bytes: `MAX_ELEMENTS` f32. Small blocked matrices are mostly padding, so a limit on
/// elements does not suffice.
const MAX_BYTES: usize = 1 << 30;

/// An error from evaluating a verified program on given inputs. The caller is at fault: extents or tensors are wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// A symbol has no value, or an extent exceeds the address space.
    #[error("`{place}`: the symbol values determine no valid extents for {ty}")]
    Extents {
        /// The op or input, as `%name = mnemonic` or `%name`.
        place: String,
        /// The type without extents.
        ty: String,
    },
    /// A tensor would have more than 2^28 elements or, with its padding, more than 1 GiB.
    #[error("`{place}`: the shape {dims:?} exceeds the interpreter's limit of 2^28 elements or 1 GiB")]
    TooLarge {
        /// The op or input.
        place: String,
        /// The extents.
        dims: Vec<usize>,
    },
    /// The arrays of an op exceed the available memory.
    #[error("`{place}` takes {bytes} bytes, more than the available memory")]
    Memory {
        /// The op or input.
        place: String,
        /// Bytes needed.
        bytes: usize,
    },
    /// A result cannot exist with these extents, such as FP4 with an odd last extent.
    #[error("`{place}`: {source}")]
    Result {
        /// The op.
        place: String,
        /// The reason.
        source: TensorError,
    },
    /// Too few or too many tensors are given.
    #[error("`{place}` takes {expected} tensors, not {found}")]
    Count {
        /// The op or the program.
        place: String,
        /// Tensors needed.
        expected: usize,
        /// Tensors given.
        found: usize,
    },
    /// An index of a `gather` or a `scatter_add` is outside the axis.
    #[error(
        "`{place}`: index {index}, element {position} of the indices, is outside axis {axis} of extent {extent}"
    )]
    Index {
        /// The op.
        place: String,
        /// The position among the indices, in row-major order.
        position: usize,
        /// The index.
        index: i32,
        /// The axis.
        axis: u32,
        /// The axis's extent.
        extent: usize,
    },
    /// An id of a `group_rows` is not that of a group.
    #[error("`{place}`: id {id}, element {position} of the ids, is not one of {groups} groups")]
    Group {
        /// The op.
        place: String,
        /// The position among the ids, in row-major order.
        position: usize,
        /// The id.
        id: i32,
        /// The number of groups.
        groups: u32,
    },
    /// An offset of a `grouped_scaled_mma` is below the one before it or exceeds the number of rows.
    #[error("`{place}`: offset {offset}, element {position} of the offsets, is outside {least}..={rows}")]
    Offset {
        /// The op.
        place: String,
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
    #[error("`{place}`: count {count}, element {position} of the counts, is outside 0..={rows}")]
    GroupCount {
        /// The op.
        place: String,
        /// The position among the counts.
        position: usize,
        /// The count.
        count: i32,
        /// The rows of a matrix of A.
        rows: usize,
    },
    /// A padded end of a group is too small or too large, or the group after it does not begin with a tile.
    #[error(
        "`{place}`: the end of padded group {position} is {end}; expected a multiple of {multiple} from {least} to {most}"
    )]
    PaddedEnd {
        /// The op.
        place: String,
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
    /// A given tensor differs from the type in the program.
    #[error("`{place}`: `%{name}` is {expected}, but its tensor is {found}")]
    Type {
        /// The op or input.
        place: String,
        /// The value.
        name: String,
        /// Its type.
        expected: String,
        /// Extents, element type and layout of the tensor.
        found: String,
    },
}

/// Evaluates a program. Returns the tensor of every value, by value index.
///
/// # Errors
/// If the bound tensors do not fit the program (those of [`crate::bind::bind`] do), or a tensor is too large.
pub fn interpret(program: &Program, bound: &Bound<'_>) -> Result<Vec<Tensor>, InterpretError> {
    let module = program.module();
    if bound.inputs.len() != module.inputs.len() {
        let (expected, found) = (module.inputs.len(), bound.inputs.len());
        return Err(InterpretError::Count { place: format!("@{}", module.name), expected, found });
    }
    let mut tensors: Vec<Option<Tensor>> = vec![None; module.values.len()];
    for (&input, tensor) in module.inputs.iter().zip(&bound.inputs) {
        let place = format!("%{}", module.name_of(input));
        check_tensor(module, &place, input, tensor, &bound.symbols)?;
        let copy = tensor.try_clone().map_err(|source| InterpretError::of_tensor(&place, source))?;
        tensors[input.index()] = Some(copy);
    }
    for (op, operation) in module.ops.iter() {
        let operands: Vec<&Tensor> = operation
            .operands
            .iter()
            .map(|value| {
                tensors[value.index()].as_ref().expect("the verifier proved that values precede uses")
            })
            .collect();
        let results = interpret_op(program, op, &operands, &bound.symbols)?;
        for (value, tensor) in operation.results.iter().zip(results) {
            tensors[value.index()] = Some(tensor);
        }
    }
    let defined = "the verifier proved that every value is an input or a result";
    Ok(tensors.into_iter().map(|tensor| tensor.expect(defined)).collect())
}

/// Evaluates one op on the tensors of its operands. Returns the tensors of its results.
///
/// # Errors
/// If a tensor differs from its operand's type under these symbol values, or a result is too large.
pub fn interpret_op(
    program: &Program,
    op: Op,
    operands: &[&Tensor],
    symbols: &SymbolValues,
) -> Result<Vec<Tensor>, InterpretError> {
    let module = program.module();
    let operation = &module.ops[op];
    let place = module.op_label(op);
    if operands.len() != operation.operands.len() {
        let (expected, found) = (operation.operands.len(), operands.len());
        return Err(InterpretError::Count { place, expected, found });
    }
    for (&value, tensor) in operation.operands.iter().zip(operands) {
        check_tensor(module, &place, value, tensor, symbols)?;
    }
    let results: Vec<ResultType> = operation
        .results
        .iter()
        .map(|value| ResultType::new(module, &place, module.ty(*value), symbols))
        .collect::<Result<_, _>>()?;
    check_memory(most_bytes(operands, &results))
        .map_err(|NoMemory { bytes }| InterpretError::Memory { place: place.clone(), bytes })?;
    match operation.kind {
        OpKind::Gather { axis } => {
            check_indices(&place, operands[1], axis, operands[0].dims()[axis as usize])?;
        }
        OpKind::ScatterAdd => check_indices(&place, operands[1], 0, results[0].dims[0])?,
        OpKind::GroupedScaledMma(mma) => {
            let offsets = operands[mma.positional().len() - 1];
            match (mma.masked, operands[0].dims()) {
                (true, [_, rows, _]) => check_counts(&place, offsets, *rows)?,
                (_, dims) => check_offsets(&place, offsets, dims[0])?,
            }
            if let (true, Some(sfa_ends)) = (mma.sfa_ends, operands.last()) {
                check_sfa_ends(&place, offsets, sfa_ends, operands[1].dims()[0])?;
            }
        }
        OpKind::GroupRows { groups } => check_groups(&place, operands[0], groups)?,
        OpKind::PaddedEnds { multiple } => check_padded(&place, operands[0], multiple)?,
        OpKind::GroupScales => {
            check_offsets(&place, operands[1], operands[0].dims()[0])?;
            check_sfa_ends(&place, operands[1], operands[2], results[0].dims[0])?;
        }
        _ => {}
    }
    let computed = evaluate(&operation.kind, operands, &results);
    let tensors = computed.into_iter().zip(results).map(|(computed, result)| computed.into_tensor(result));
    tensors.collect::<Result<_, _>>().map_err(|source| InterpretError::of_tensor(&place, source))
}

/// An upper bound on the bytes that an op allocates. Per operand: its codes and one i64 or f64 array. Per result:
/// three arrays of indices, two of values, and the tensor itself, counting one array twice because it grows.
fn most_bytes(operands: &[&Tensor], results: &[ResultType]) -> usize {
    const EACH_OPERAND: usize = 16;
    const EACH_RESULT: usize = 48;
    let operands = operands.iter().map(|operand| operand.count().saturating_mul(EACH_OPERAND));
    let results = results.iter().map(|result| {
        let count = result.dims.iter().fold(1usize, |count, dim| count.saturating_mul(*dim));
        count.saturating_mul(EACH_RESULT)
    });
    operands.chain(results).fold(0, usize::saturating_add)
}

impl InterpretError {
    fn of_tensor(place: &str, source: TensorError) -> InterpretError {
        match source {
            TensorError::Memory { bytes, .. } => InterpretError::Memory { place: place.to_owned(), bytes },
            source => InterpretError::Result { place: place.to_owned(), source },
        }
    }
}

/// The type of a result with its extents known.
struct ResultType {
    element: ElementType,
    dims: Vec<usize>,
    layout: Option<ScaleLayout>,
}

impl ResultType {
    fn new(
        module: &Module,
        place: &str,
        ty: &TensorType,
        symbols: &SymbolValues,
    ) -> Result<ResultType, InterpretError> {
        let dims = run_time_dims(module, place, ty, symbols)?;
        // Checked before anything of that size is computed.
        let bytes = Tensor::byte_len(ty.element, &dims, ty.layout)
            .map_err(|source| InterpretError::of_tensor(place, source))?;
        if bytes > MAX_BYTES {
            return Err(InterpretError::TooLarge { place: place.to_owned(), dims });
        }
        Ok(ResultType { element: ty.element, dims, layout: ty.layout })
    }
}

/// The result of an op's function, in logical row-major order.
enum Computed {
    /// Values, not yet rounded to the result type.
    Values(Vec<f64>),
    /// Elements of the result type, in the form of [`Tensor::from_codes`].
    Codes(Vec<u8>),
}

impl Computed {
    fn into_tensor(self, result: ResultType) -> Result<Tensor, TensorError> {
        let ResultType { element, dims, layout } = result;
        match self {
            Computed::Codes(codes) => Tensor::from_codes(element, dims, layout, codes),
            Computed::Values(mut values) => {
                for value in values.iter_mut().filter(|value| value.is_nan()) {
                    *value = f64::NAN;
                }
                Tensor::from_f64(element, dims, layout, &values)
            }
        }
    }
}

/// Evaluates an op. The verifier and the checks above guarantee that its operands and results are well-typed.
fn evaluate(kind: &OpKind, operands: &[&Tensor], results: &[ResultType]) -> Vec<Computed> {
    use Computed::{Codes, Values};
    let result = &results[0];
    let dims = result.dims.as_slice();
    let computed = match kind {
        OpKind::ScaledMma(attributes) => Values(matmul::scaled_mma(*attributes, operands)),
        OpKind::GroupedScaledMma(attributes) => Values(matmul::grouped_scaled_mma(*attributes, operands)),
        OpKind::Mma => Values(matmul::mma(operands[0], operands[1])),
        OpKind::BlockQuantize { block, scale_rounding, formula } => {
            let global = operands.get(1).copied();
            let rule = quantize::BlockRule {
                block: *block as usize,
                scale_rounding: *scale_rounding,
                formula: *formula,
                element: result.element,
            };
            let (codes, scales) = quantize::block_quantize(operands[0], global, rule);
            return vec![Codes(codes), Codes(scales)];
        }
        OpKind::BlockDequantize { block } => {
            let global = operands.get(2).copied();
            Values(quantize::block_dequantize(operands[0], operands[1], global, *block as usize))
        }
        OpKind::TopK { k } => {
            let (codes, indices) = routing::top_k(operands[0], *k as usize);
            return vec![Codes(codes), Values(indices)];
        }
        OpKind::GroupRows { groups } => {
            return routing::group_rows(operands[0], *groups as usize).map(Values).into();
        }
        OpKind::PaddedEnds { multiple } => Values(routing::padded_ends(operands[0], *multiple)),
        OpKind::GroupScales => Codes(routing::group_scales(operands[0], operands[1], operands[2], dims[0])),
        OpKind::ScatterAdd => Values(routing::scatter_add(operands[0], operands[1], dims)),
        OpKind::Convert => Values(operands[0].to_f64()),
        OpKind::Bitcast => Codes(elementwise::bitcast(operands[0], result.element)),
        OpKind::Constant(value) => Values(elementwise::constant(value, dims)),
        OpKind::Unary(kind) => Values(elementwise::unary(*kind, operands[0])),
        OpKind::Binary(kind) => Values(elementwise::binary(*kind, operands[0], operands[1], dims)),
        OpKind::Bitwise(kind) => Values(elementwise::bitwise(*kind, operands[0], operands[1], dims)),
        OpKind::Clamp { min, max } => Values(elementwise::clamp(operands[0], *min, *max)),
        OpKind::Compare(predicate) => Codes(elementwise::compare(*predicate, operands[0], operands[1], dims)),
        OpKind::Select => {
            Codes(elementwise::select(operands[0], operands[1], operands[2], result.element, dims))
        }
        // `Computed::into_tensor` applies the result's layout and shape.
        OpKind::SwizzleScales | OpKind::Reshape => Codes(operands[0].to_codes()),
        OpKind::Transpose { permutation } => Codes(movement::transpose(operands[0], permutation)),
        OpKind::Broadcast => Codes(movement::broadcast(operands[0], dims)),
        OpKind::Slice { ranges } => Codes(movement::slice(operands[0], ranges, dims)),
        OpKind::Concat { axis } => Codes(movement::concat(operands, *axis as usize)),
        OpKind::Choose { axis, ends } => {
            Codes(operands[movement::chosen(ends, dims[*axis as usize])].to_codes())
        }
        OpKind::Gather { axis } => {
            Codes(movement::gather(operands[0], &operands[1].to_f64(), *axis as usize))
        }
        OpKind::Pad { amounts, value } => Codes(movement::pad(operands[0], amounts, *value, dims)),
        OpKind::Reduce { kind, axes, .. } => Values(reduction::reduce(*kind, operands[0], axes)),
        OpKind::Softmax { axis } => Values(reduction::softmax(operands[0], *axis as usize)),
        OpKind::LayerNorm { eps } => {
            Values(reduction::layer_norm(operands[0], operands[1], operands[2], *eps))
        }
    };
    vec![computed]
}

fn check_tensor(
    module: &Module,
    place: &str,
    value: Value,
    tensor: &Tensor,
    symbols: &SymbolValues,
) -> Result<(), InterpretError> {
    let ty = module.ty(value);
    let dims = run_time_dims(module, place, ty, symbols)?;
    if (tensor.element(), tensor.layout(), tensor.dims()) == (ty.element, ty.layout, dims.as_slice()) {
        return Ok(());
    }
    let describe = |element: ElementType, dims: &[usize], layout: Option<ScaleLayout>| {
        let layout = layout.map_or(String::new(), |layout| format!(", {layout}"));
        format!("{dims:?}, {element}{layout}")
    };
    Err(InterpretError::Type {
        place: place.to_owned(),
        name: module.name_of(value).to_owned(),
        expected: describe(ty.element, &dims, ty.layout),
        found: describe(tensor.element(), tensor.dims(), tensor.layout()),
    })
}

fn run_time_dims(
    module: &Module,
    place: &str,
    ty: &TensorType,
    symbols: &SymbolValues,
) -> Result<Vec<usize>, InterpretError> {
    let dims = concrete_dims(ty, symbols).ok_or_else(|| InterpretError::Extents {
        place: place.to_owned(),
        ty: module.display_type(ty).to_string(),
    })?;
    // A zero extent empties the tensor, but strides are products of the other extents.
    let count = dims.iter().try_fold(1usize, |count, dim| count.checked_mul((*dim).max(1)));
    if count.is_none_or(|count| count > MAX_ELEMENTS) {
        return Err(InterpretError::TooLarge { place: place.to_owned(), dims });
    }
    Ok(dims)
}

#[cfg(test)]
mod tests;
