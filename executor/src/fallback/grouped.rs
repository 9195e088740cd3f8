//! `grouped_scaled_mma`: one block-scaled product for each group of rows.

use fourfold_ir::{ElementType, GroupedScaledMma, Tensor};

use super::{BlockScaled, BlockScaledShape, Epilogue, FallbackError, ResultType, scaled_mma};

/// The operands of a `grouped_scaled_mma`.
#[derive(Clone, Copy, Debug)]
pub struct GroupedOperands<'a> {
    /// A, `[T, K]`.
    pub a: &'a Tensor,
    /// The scales of A; `None` for an A without.
    pub sfa: Option<&'a Tensor>,
    /// B, `[E, N, K]`.
    pub b: &'a Tensor,
    /// The scales of B.
    pub sfb: &'a Tensor,
    /// The end of each group of rows, `i32` `[E]`.
    pub offsets: &'a Tensor,
    /// One number, or one for each group.
    pub alpha: Option<&'a Tensor>,
}

/// Multiplies each group of rows of A with its matrix of B. The result is `[T, N]`; rows of no group are 0. A scale is that
/// of `block` elements along K.
///
/// # Errors
/// When a rank or a size does not fit, an offset is not a place among the rows, or memory is insufficient.
pub fn grouped_scaled_mma(
    operands: GroupedOperands<'_>,
    block: u32,
    element: ElementType,
) -> Result<Tensor, FallbackError> {
    let GroupedOperands { a, sfa, b, sfb, offsets, alpha } = operands;
    let (&[rows, k], &[groups, n, _]) = (a.dims(), b.dims()) else {
        return Err(FallbackError::Internal { reason: "A has rank 2 and B has rank 3" });
    };
    let ends = ends(offsets, rows)?;
    let block = block as usize;
    let alphas = alpha.map(Tensor::to_f32);
    let mut tensor = ResultType { element, dims: vec![rows, n], layout: None }.zeros()?;
    let row_bytes = n * element.storage_bits() / 8;
    let mut begin = 0;
    for (group, &end) in ends.iter().enumerate() {
        let count = end - begin;
        if count > 0 {
            let shape = BlockScaledShape { batch: 1, rows: count, k, block };
            let a = operand(a, sfa, (begin, rows), shape)?;
            let shape = BlockScaledShape { batch: 1, rows: n, k, block };
            let b = operand(b, Some(sfb), (group, groups), shape)?;
            let alpha =
                alphas.as_ref().and_then(|alphas| alphas.get(if alphas.len() == 1 { 0 } else { group }));
            let epilogue = Epilogue { alpha: alpha.copied(), ..Epilogue::default() };
            let out = &mut tensor.bytes_mut()[begin * row_bytes..end * row_bytes];
            scaled_mma(&a, &b, epilogue, element, out)?;
        }
        begin = end;
    }
    Ok(tensor)
}

/// Computes the op.
pub(super) fn run_grouped_scaled_mma(
    attributes: GroupedScaledMma,
    operands: &[&Tensor],
    element: ElementType,
) -> Result<Tensor, FallbackError> {
    let (a, sfa, b, sfb, offsets, alpha) = match (attributes.weight_only, operands) {
        (false, [a, sfa, b, sfb, offsets, alpha @ ..]) => (*a, Some(*sfa), *b, *sfb, *offsets, alpha),
        (true, [a, b, sfb, offsets, alpha @ ..]) => (*a, None, *b, *sfb, *offsets, alpha),
        _ => {
            return Err(FallbackError::Internal { reason: "a grouped_scaled_mma has its operands" });
        }
    };
    let operands = GroupedOperands { a, sfa, b, sfb, offsets, alpha: alpha.first().copied() };
    grouped_scaled_mma(operands, attributes.block, element)
}

/// The ends of the groups, which ascend to at most the number of rows.
fn ends(offsets: &Tensor, rows: usize) -> Result<Vec<usize>, FallbackError> {
    let mut least = 0;
    let (offsets, _) = offsets.bytes().as_chunks::<4>();
    let checked = offsets.iter().enumerate().map(|(position, bytes)| {
        let offset = i32::from_le_bytes(*bytes);
        match usize::try_from(offset) {
            Ok(end) if offset >= least && end <= rows => {
                least = offset;
                Ok(end)
            }
            _ => Err(FallbackError::Offset { position, offset, least, rows }),
        }
    });
    checked.collect()
}

/// The part of an operand that begins at unit `first` of `units` equal ones: rows of A, or matrices of B.
fn operand<'a>(
    data: &'a Tensor,
    scales: Option<&'a Tensor>,
    (first, units): (usize, usize),
    shape: BlockScaledShape,
) -> Result<BlockScaled<'a>, FallbackError> {
    // A matrix of B is one unit; a group of A is as many as it has rows.
    let taken = if data.dims().len() == 3 { 1 } else { shape.rows };
    let part = |bytes: &'a [u8]| {
        let each = bytes.len() / units;
        &bytes[first * each..(first + taken) * each]
    };
    let of_data = (part(data.bytes()), data.element());
    let Some(scales) = scales else { return Ok(BlockScaled::unscaled(of_data, shape)?) };
    let Some(layout) = scales.layout() else {
        return Err(FallbackError::Internal { reason: "scales have a layout" });
    };
    Ok(BlockScaled::new(of_data, (part(scales.bytes()), scales.element(), layout), shape)?)
}
