//! `grouped_scaled_mma` and `masked_scaled_mma`, one block-scaled product for each group of rows, and the scales of groups:
//! `padded_ends` and `group_scales`.

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
    /// `i32` `[E]`: the end of each group in a blocked sfa, which has whole tiles for each group.
    pub sfa_ends: Option<&'a Tensor>,
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
    let GroupedOperands { a, sfa, b, sfb, offsets, alpha, sfa_ends } = operands;
    let &[groups, n, _] = b.dims() else {
        return Err(FallbackError::Internal { reason: "B has rank 3" });
    };
    let (rows, k, parts) = match *a.dims() {
        [rows, k] => (rows, k, ends(offsets, rows)?),
        [_, rows, k] => (groups * rows, k, counted(offsets, rows)?),
        _ => return Err(FallbackError::Internal { reason: "A has rank 2 or 3" }),
    };
    let tiles = match sfa.zip(sfa_ends) {
        None => Vec::new(),
        Some((sfa, sfa_ends)) => tiles(&parts, sfa_ends, sfa.dims().first().copied().unwrap_or(0))?,
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
            let a = match sfa.zip(tiles.get(group)) {
                Some((sfa, first)) => {
                    let of_tile =
                        numeric::checked_blocked_len(numeric::TILE_ROWS, k / block).unwrap_or(usize::MAX);
                    let bytes = numeric::checked_blocked_len(shape.rows, k / block).unwrap_or(usize::MAX);
                    let scales = sfa.bytes().get(first.saturating_mul(of_tile)..).unwrap_or_default();
                    let scales = scales.get(..bytes).unwrap_or(scales);
                    let codes = part(a.bytes(), (begin, shape.rows, rows));
                    operand((codes, a.element()), Some((scales, sfa)), shape)?
                }
                None => rows_of_a(a, sfa, (group, groups), (begin, rows), shape)?,
            };
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
    let (a, sfa, b, sfb, offsets, named) = match (attributes.weight_only, operands) {
        (false, [a, sfa, b, sfb, offsets, named @ ..]) => (*a, Some(*sfa), *b, *sfb, *offsets, named),
        (true, [a, b, sfb, offsets, named @ ..]) => (*a, None, *b, *sfb, *offsets, named),
        _ => {
            return Err(FallbackError::Internal { reason: "a grouped_scaled_mma has its operands" });
        }
    };
    let mut named = named.iter().copied();
    let mut take = |present: bool| if present { named.next() } else { None };
    let (alpha, sfa_ends) = (take(attributes.alpha), take(attributes.sfa_ends));
    let operands = GroupedOperands { a, sfa, b, sfb, offsets, alpha, sfa_ends };
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

/// Computes `padded_ends`.
pub(super) fn padded_ends(
    offsets: &Tensor,
    multiple: u32,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let parts = ends(offsets, i32::MAX as usize)?;
    let mut tensor = result.zeros()?;
    let mut padded = 0u64;
    let places = tensor.bytes_mut().as_chunks_mut::<4>().0.iter_mut();
    for (position, (part, place)) in parts.into_iter().zip(places).enumerate() {
        // Each term is below 2^33, and there are fewer than 2^28 groups.
        padded += (part.len() as u64).div_ceil(u64::from(multiple)) * u64::from(multiple);
        let Ok(end) = i32::try_from(padded) else {
            let (end, most) = (padded as i64, i32::MAX as usize);
            return Err(FallbackError::PaddedEnd { position, end, multiple, least: 0, most });
        };
        *place = end.to_le_bytes();
    }
    Ok(tensor)
}

/// Computes `group_scales`: one run of blocked scales for each group, and zeros elsewhere.
pub(super) fn group_scales(
    scales: &Tensor,
    offsets: &Tensor,
    sfa_ends: &Tensor,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let (&[rows, columns], &[padded_rows, _]) = (scales.dims(), &result.dims[..]) else {
        return Err(FallbackError::Internal { reason: "scales of groups have rank 2" });
    };
    let parts = ends(offsets, rows)?;
    let tiles = tiles(&parts, sfa_ends, padded_rows)?;
    let mut tensor = result.zeros()?;
    let of_tile = numeric::checked_blocked_len(numeric::TILE_ROWS, columns).unwrap_or(usize::MAX);
    for (part, tile) in parts.into_iter().zip(tiles) {
        let Some(out) = tensor.bytes_mut().get_mut(tile.saturating_mul(of_tile)..) else { continue };
        for (index, row) in part.enumerate() {
            for (column, scale) in scales.bytes()[row * columns..][..columns].iter().enumerate() {
                out[numeric::blocked_offset(index, column, columns)] = *scale;
            }
        }
    }
    Ok(tensor)
}

/// Returns the linear scales of `rows` rows in groups, from blocked ones with whole tiles for each group. Rows of no group
/// have scales of 0. `offsets` and `sfa_ends` are the ends of the groups among the rows and in `sfa`.
///
/// # Errors
/// If ends are invalid, or memory is insufficient.
pub fn scales_of_rows(
    sfa: &Tensor,
    rows: usize,
    [offsets, sfa_ends]: [&Tensor; 2],
) -> Result<Tensor, FallbackError> {
    let &[padded_rows, columns] = sfa.dims() else {
        return Err(FallbackError::Internal { reason: "scales of groups have rank 2" });
    };
    let parts = ends(offsets, rows)?;
    let tiles = tiles(&parts, sfa_ends, padded_rows)?;
    let layout = Some(ScaleLayout::Linear);
    let mut tensor = ResultType { element: sfa.element(), dims: vec![rows, columns], layout }.zeros()?;
    for (part, tile) in parts.into_iter().zip(tiles) {
        for (index, row) in part.enumerate() {
            for (column, scale) in tensor.bytes_mut()[row * columns..][..columns].iter_mut().enumerate() {
                let at = numeric::blocked_offset(tile * numeric::TILE_ROWS + index, column, columns);
                *scale = sfa.bytes()[at];
            }
        }
    }
    Ok(tensor)
}

/// The first tile of each group in blocked scales of `most` rows. A group ends with a tile, after all of its rows.
fn tiles(parts: &[Range<usize>], sfa_ends: &Tensor, most: usize) -> Result<Vec<usize>, FallbackError> {
    const MULTIPLE: u32 = numeric::TILE_ROWS as u32;
    let (sfa_ends, _) = sfa_ends.bytes().as_chunks::<4>();
    let mut first = 0i64;
    let checked = parts.iter().zip(sfa_ends).enumerate().map(|(position, (part, bytes))| {
        let end = i64::from(i32::from_le_bytes(*bytes));
        let least = first + part.len() as i64;
        if end < least || end > most as i64 || end % i64::from(MULTIPLE) != 0 {
            return Err(FallbackError::PaddedEnd { position, end, multiple: MULTIPLE, least, most });
        }
        let tile = first as usize / numeric::TILE_ROWS;
        first = end;
        Ok(tile)
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
