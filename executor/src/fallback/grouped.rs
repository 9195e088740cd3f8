//! `grouped_scaled_mma` and `masked_scaled_mma`: one block-scaled product for each group of rows.

use std::ops::Range;

use fourfold_ir::{ElementType, GroupedScaledMma, ScaleLayout, Tensor, numeric};

use super::{BlockScaled, BlockScaledShape, Epilogue, FallbackError, ResultType, scaled_mma};

/// The operands of a `grouped_scaled_mma`, or of a `masked_scaled_mma`, whose A has a matrix for each group.
#[derive(Clone, Copy, Debug)]
pub struct GroupedOperands<'a> {
    /// A, `[T, K]` or `[E, M, K]`.
    pub a: &'a Tensor,
    /// The scales of A; `None` for an A without.
    pub sfa: Option<&'a Tensor>,
    /// B, `[E, N, K]`.
    pub b: &'a Tensor,
    /// The scales of B.
    pub sfb: &'a Tensor,
    /// `i32` `[E]`: the end of each group of rows, or the number of its rows.
    pub offsets: &'a Tensor,
    /// One number, or one for each group.
    pub alpha: Option<&'a Tensor>,
}

/// Multiplies each group of rows of A with its matrix of B. The result is `[T, N]` or `[E, M, N]`; rows of no group are 0.
/// A scale is that of `block` elements along K.
///
/// # Errors
/// If a rank or a size does not fit, an offset is above the number of rows, a count exceeds M, or memory is
/// insufficient.
pub fn grouped_scaled_mma(
    operands: GroupedOperands<'_>,
    block: u32,
    element: ElementType,
) -> Result<Tensor, FallbackError> {
    let GroupedOperands { a, sfa, b, sfb, offsets, alpha } = operands;
    let &[groups, n, _] = b.dims() else {
        return Err(FallbackError::Internal { reason: "B has rank 3" });
    };
    let (rows, k, parts) = match *a.dims() {
        [rows, k] => (rows, k, ends(offsets, rows)?),
        [_, rows, k] => (groups * rows, k, counted(offsets, rows)?),
        _ => return Err(FallbackError::Internal { reason: "A has rank 2 or 3" }),
    };
    let block = block as usize;
    let alphas = alpha.map(Tensor::to_f32);
    let mut dims = a.dims().to_vec();
    dims.pop();
    dims.push(n);
    let mut tensor = ResultType { element, dims, layout: None }.zeros()?;
    let row_bytes = n * element.storage_bits() / 8;
    for (group, Range { start: begin, end }) in parts.into_iter().enumerate() {
        if begin < end {
            let shape = BlockScaledShape { batch: 1, rows: end - begin, k, block };
            let a = rows_of_a(a, sfa, (group, groups), (begin, rows), shape)?;
            let shape = BlockScaledShape { batch: 1, rows: n, k, block };
            let matrix = (group, 1, groups);
            let scales = Some((part(sfb.bytes(), matrix), sfb));
            let b = operand((part(b.bytes(), matrix), b.element()), scales, shape)?;
            let alpha =
                alphas.as_ref().and_then(|alphas| alphas.get(if alphas.len() == 1 { 0 } else { group }));
            let epilogue = Epilogue { alpha: alpha.copied(), ..Epilogue::default() };
            let out = &mut tensor.bytes_mut()[begin * row_bytes..end * row_bytes];
            scaled_mma(&a, &b, epilogue, element, out)?;
        }
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

/// The rows of the groups, whose ends ascend to at most the number of rows.
fn ends(offsets: &Tensor, rows: usize) -> Result<Vec<Range<usize>>, FallbackError> {
    let mut least = 0;
    let (offsets, _) = offsets.bytes().as_chunks::<4>();
    let checked = offsets.iter().enumerate().map(|(position, bytes)| {
        let offset = i32::from_le_bytes(*bytes);
        match usize::try_from(offset) {
            Ok(end) if offset >= least && end <= rows => {
                let begin = least as usize;
                least = offset;
                Ok(begin..end)
            }
            _ => Err(FallbackError::Offset { position, offset, least, rows }),
        }
    });
    checked.collect()
}

/// The rows of the groups over all matrices of `rows` rows. Counts are at most these.
fn counted(counts: &Tensor, rows: usize) -> Result<Vec<Range<usize>>, FallbackError> {
    let (counts, _) = counts.bytes().as_chunks::<4>();
    let checked = counts.iter().enumerate().map(|(position, bytes)| {
        let count = i32::from_le_bytes(*bytes);
        match usize::try_from(count) {
            Ok(number) if number <= rows => Ok(position * rows..position * rows + number),
            _ => Err(FallbackError::GroupCount { position, count, rows }),
        }
    });
    checked.collect()
}

/// The rows of A of a group, from row `begin` of `rows` over all matrices.
fn rows_of_a<'a>(
    a: &'a Tensor,
    sfa: Option<&'a Tensor>,
    (group, groups): (usize, usize),
    (begin, rows): (usize, usize),
    shape: BlockScaledShape,
) -> Result<BlockScaled<'a>, FallbackError> {
    let units = (begin, shape.rows, rows);
    let scales = sfa.map(|sfa| match sfa.layout() {
        Some(ScaleLayout::Blocked) => {
            // A group begins with the first row of its matrix, whose scales are stored for 128 rows at a time.
            let of_matrix = part(sfa.bytes(), (group, 1, groups));
            let bytes = numeric::checked_blocked_len(shape.rows, shape.k / shape.block).unwrap_or(usize::MAX);
            (of_matrix.get(..bytes).unwrap_or(of_matrix), sfa)
        }
        _ => (part(sfa.bytes(), units), sfa),
    });
    operand((part(a.bytes(), units), a.element()), scales, shape)
}

/// Returns units of a buffer of equal units: the first of them, the number taken, and the number of all.
fn part(bytes: &[u8], (first, taken, units): (usize, usize, usize)) -> &[u8] {
    let each = bytes.len() / units;
    &bytes[first * each..(first + taken) * each]
}

/// An operand of these bytes and scales. The tensor states the type of the scales.
fn operand<'a>(
    data: (&'a [u8], ElementType),
    scales: Option<(&'a [u8], &Tensor)>,
    shape: BlockScaledShape,
) -> Result<BlockScaled<'a>, FallbackError> {
    let Some((bytes, scales)) = scales else { return Ok(BlockScaled::unscaled(data, shape)?) };
    let Some(layout) = scales.layout() else {
        return Err(FallbackError::Internal { reason: "scales have a layout" });
    };
    Ok(BlockScaled::new(data, (bytes, scales.element(), layout), shape)?)
}
