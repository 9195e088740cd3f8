//! Extents and shapes of a `scaled_mma`: the extents of one launch, the bytes of its scales, and how a tensor
//! broadcasts to D. Pure arithmetic on dimensions.

use fourfold_ir::{Dim, FormatCapability, GridCapability, Matmul, OperandShape};

/// The result of a divisibility test on an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Divides {
    /// A multiple for all values of the symbols.
    Always,
    /// A multiple for some values of the symbols.
    AtRunTime,
    /// Fixed, and not a multiple.
    Never,
}

impl Divides {
    pub(crate) fn of(dim: &Dim, multiple: u64) -> Divides {
        match (dim.is_multiple_of(multiple), dim.as_fixed()) {
            (true, _) => Divides::Always,
            (false, None) => Divides::AtRunTime,
            (false, Some(_)) => Divides::Never,
        }
    }
}

/// The multiple to which the blocked layout pads the rows of a matrix.
pub(crate) const SCALE_ROWS: u64 = 128;

/// Returns whether the kernel flattens the batch and M into one matrix of L*M rows.
pub(crate) fn flattens(matmul: &Matmul) -> bool {
    !matmul.b_batched && matmul.batch.as_fixed() != Some(1)
}

/// The extents of one launch, each with its name and limit. [`crate::root`] refuses an L*M beyond 64 bits.
pub(crate) fn extent_limits(matmul: &Matmul, capability: &FormatCapability) -> Vec<(&'static str, Dim, u64)> {
    let Matmul { batch, m, n, k, .. } = matmul;
    let GridCapability { max_matrices, max_columns, .. } = capability.grid;
    let most = capability.max_extent;
    let mut limits = if flattens(matmul) {
        batch.times(m).map(|rows| vec![("L*M", rows, most)]).unwrap_or_default()
    } else {
        vec![("L", batch.clone(), most.min(max_matrices)), ("M", m.clone(), most)]
    };
    limits.extend([("N", n.clone(), most.min(max_columns)), ("K", k.clone(), most)]);
    let padded = matmul.group_scales.iter().filter(|_| !matmul.masked);
    limits.extend(padded.map(|[_, rows]| ("P", rows.clone(), most)));
    limits
        .extend(matmul.groups.iter().map(|groups| ("E", groups.clone(), capability.max_groups.unwrap_or(0))));
    limits
}

/// The extents of D in one launch: matrices, rows and columns. The blocked scales of a quantized D have the
/// same extents. `None` beyond 64 bits.
pub(crate) fn launched_extents(matmul: &Matmul) -> Option<[Dim; 3]> {
    let Matmul { batch, m, n, .. } = matmul;
    match flattens(matmul) {
        true => Some([Dim::fixed(1), batch.times(m)?, n.clone()]),
        false => Some([batch.clone(), m.clone(), n.clone()]),
    }
}

/// The number of tiles of D, or of the result of a `scatter_add`; `None` beyond 64 bits or for an unknown extent.
pub(crate) fn tile_count([matrices, rows, columns]: [Option<u64>; 3], tile: [u64; 2]) -> Option<u64> {
    let [tile_rows, tile_columns] = tile.map(|extent| extent.max(1));
    let of_matrix = rows?.div_ceil(tile_rows).checked_mul(columns?.div_ceil(tile_columns))?;
    of_matrix.checked_mul(matrices?)
}

/// An upper bound on the tiles of D in any call. The limit on scale bytes bounds symbolic extents, and the limits on
/// extents the rows of an A without scales. `None` beyond 64 bits.
pub(crate) fn max_tile_count(matmul: &Matmul, capability: &FormatCapability) -> Option<u64> {
    let [matrices, rows, columns] = launched_extents(matmul)?;
    let [tile_rows, tile_columns] = capability.grid.tile.map(|extent| extent.max(1));
    let k = matmul.k.as_fixed().unwrap_or(1).max(1);
    let scale_tile = scale_bytes([Some(1), Some(SCALE_ROWS), Some(k)], matmul.format.block)?;
    // The maximum number of 128-row blocks of an operand over all its matrices.
    let blocks = capability.max_scale_bytes / scale_tile;
    let of_extent = |extent: Option<u64>, tile: u64| match extent {
        Some(extent) => Some(extent.div_ceil(tile)),
        None => blocks.checked_mul(SCALE_ROWS.div_ceil(tile)),
    };
    let all_rows = if matmul.sfa_layout.is_some() {
        match matrices.as_fixed() {
            Some(matrices) => matrices.checked_mul(of_extent(rows.as_fixed(), tile_rows)?)?,
            None => of_extent(None, tile_rows)?,
        }
    } else {
        let matrices = matrices.as_fixed().unwrap_or(capability.grid.max_matrices);
        matrices.checked_mul(rows.as_fixed().unwrap_or(capability.max_extent).div_ceil(tile_rows))?
    };
    all_rows.checked_mul(of_extent(columns.as_fixed(), tile_columns)?)
}

/// The name of the blocked scales of groups, which have other rows than A.
const GROUP_SCALES: &str = "A's groups";

/// The operands with blocked scales, and A also with those of groups. Each entry has a name, the number of scale matrices,
/// the rows of one, and K.
pub(crate) fn scale_operands(matmul: &Matmul) -> Vec<(&'static str, [Dim; 3])> {
    let Matmul { batch, m, n, k, group_scales, .. } = matmul;
    let one = Dim::fixed(1);
    let a = if matmul.sfa_layout.is_none() {
        None
    } else if flattens(matmul) {
        // [`crate::root`] refuses an L*M beyond 64 bits.
        batch.times(m).map(|rows| [one.clone(), rows, k.clone()])
    } else {
        Some([batch.clone(), m.clone(), k.clone()])
    };
    let b_matrices = match &matmul.groups {
        Some(groups) => groups.clone(),
        None if matmul.b_batched => batch.clone(),
        None => one,
    };
    let of_groups = group_scales.as_ref().map(|[matrices, rows]| [matrices.clone(), rows.clone(), k.clone()]);
    let b = [b_matrices, n.clone(), k.clone()];
    let of_groups = of_groups.map(|of_groups| (GROUP_SCALES, of_groups));
    a.map(|a| ("A", a)).into_iter().chain(of_groups).chain([("B", b)]).collect()
}

/// Bytes of blocked scales for this many matrices, rows and K; `None` beyond 64 bits or for an unknown
/// extent.
pub(crate) fn scale_bytes([matrices, rows, k]: [Option<u64>; 3], block: u32) -> Option<u64> {
    let columns = k?.div_ceil(u64::from(block)).checked_next_multiple_of(4)?;
    rows?.checked_next_multiple_of(SCALE_ROWS)?.checked_mul(columns)?.checked_mul(matrices?)
}

/// Classifies a shape by its broadcast to D; `None` if an epilogue cannot read it. If D has one row, a vector
/// of N elements is both a row and a matrix: it is classified as a row.
pub(crate) fn operand_shape(shape: &[Dim], d: &[Dim]) -> Option<OperandShape> {
    fn is_one(dim: &Dim) -> bool {
        dim.as_fixed() == Some(1)
    }
    fn significant(shape: &[Dim]) -> &[Dim] {
        let ones = shape.iter().take_while(|dim| is_one(dim)).count();
        &shape[ones..]
    }
    let [rows @ .., n] = d else { return None };
    if d.len() < shape.len() {
        return None;
    }
    match shape {
        _ if shape.iter().all(is_one) => Some(OperandShape::Scalar),
        [ones @ .., last] if last == n && ones.iter().all(is_one) => Some(OperandShape::Row),
        [of_rows @ .., one] if is_one(one) && significant(of_rows) == significant(rows) => {
            Some(OperandShape::Column)
        }
        _ => (significant(shape) == significant(d)).then_some(OperandShape::Matrix),
    }
}

/// The shape of the result of reducing D, of this rank, along these axes.
pub(crate) fn reduced_shape(axes: &[u32], rank: usize) -> Option<OperandShape> {
    let last = rank.checked_sub(1)?;
    let is_range = |from: usize, to: usize| axes.iter().map(|axis| *axis as usize).eq(from..to);
    if is_range(0, rank) {
        Some(OperandShape::Scalar)
    } else if is_range(0, last) {
        Some(OperandShape::Row)
    } else {
        is_range(last, rank).then_some(OperandShape::Column)
    }
}

#[cfg(test)]
mod tests {
    use fourfold_ir::{Dim, Entity, OperandShape, Symbol};

    use super::{operand_shape, reduced_shape};

    #[test]
    fn a_shape_lies_beside_d_in_one_way() {
        use OperandShape::{Column, Matrix, Row, Scalar};
        let m = Dim::symbol(Symbol::from_index(0));
        let dims = |dims: &[u64]| -> Vec<Dim> {
            dims.iter().map(|dim| if *dim == 0 { m.clone() } else { Dim::fixed(*dim) }).collect()
        };
        // 0 stands for the symbol M.
        type Operands<'a> = &'a [(&'a [u64], Option<OperandShape>)];
        let cases: &[(&[u64], Operands)] = &[
            (
                &[0, 72],
                &[
                    (&[], Some(Scalar)),
                    (&[1, 1], Some(Scalar)),
                    (&[72], Some(Row)),
                    (&[1, 72], Some(Row)),
                    (&[0, 1], Some(Column)),
                    (&[0, 72], Some(Matrix)),
                    (&[1, 1, 72], None),
                    (&[1, 1, 1], None),
                    (&[0], None),
                    (&[1, 0], None),
                    (&[71], None),
                ],
            ),
            (
                &[3, 0, 72],
                &[
                    (&[1, 1, 72], Some(Row)),
                    (&[3, 1, 72], None),
                    (&[0, 72], None),
                    (&[1, 0, 72], None),
                    (&[0, 1], None),
                    (&[3, 1, 1], None),
                    (&[3, 0, 1], Some(Column)),
                    (&[3, 0, 72], Some(Matrix)),
                ],
            ),
            (&[1, 0, 72], &[(&[0, 1], Some(Column)), (&[0, 72], Some(Matrix)), (&[1, 0, 1], Some(Column))]),
            (&[1, 72], &[(&[1, 72], Some(Row)), (&[1, 1], Some(Scalar)), (&[72, 1], None)]),
        ];
        for (d, operands) in cases {
            for (operand, expected) in *operands {
                assert_eq!(operand_shape(&dims(operand), &dims(d)), *expected, "{operand:?} beside {d:?}");
            }
        }
    }

    #[test]
    fn a_reduction_leaves_a_scalar_a_row_or_a_column() {
        let cases: [(&[u32], usize, Option<OperandShape>); 8] = [
            (&[0, 1], 2, Some(OperandShape::Scalar)),
            (&[0], 2, Some(OperandShape::Row)),
            (&[1], 2, Some(OperandShape::Column)),
            (&[0, 1], 3, Some(OperandShape::Row)),
            (&[2], 3, Some(OperandShape::Column)),
            (&[0, 1, 2], 3, Some(OperandShape::Scalar)),
            (&[1], 3, None),
            (&[0, 2], 3, None),
        ];
        for (axes, rank, expected) in cases {
            assert_eq!(reduced_shape(axes, rank), expected, "{axes:?} of {rank}");
        }
    }
}
