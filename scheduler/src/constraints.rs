//! What a call must meet for a kernel to be launched.

use fourfold_ir::{Dim, FormatCapability, GridCapability, Matmul, Module, OperandShape, SymbolValues};

use crate::plan::{Constraint, EpilogueOperand, KernelOutput, KernelPlan, OutputKind};
use crate::reason::{ReasonCode, Rejection};
use crate::root::{Divides, Root, SCALE_ROWS, flattens};
use crate::legality::needs_rows;

/// The first condition on extents that these symbol values break, as the reason to run the plan's ops on the
/// fallback; `None` when the kernel may be launched as far as extents go. Pointers are for the caller to check.
pub fn violated(plan: &KernelPlan, symbols: &SymbolValues) -> Option<Rejection> {
    plan.constraints.iter().find_map(|constraint| {
        if let Constraint::ScaleBytes { name, matrices, rows, k, block, limit } = constraint {
            let bytes = scale_bytes([matrices, rows, k].map(|dim| dim.evaluate(symbols)), *block);
            let too_many = bytes.is_none_or(|bytes| *limit < bytes);
            return too_many.then(|| Rejection::new(ReasonCode::ExtentRange, scale_message(name, *limit)));
        }
        if let Constraint::Tiles { matrices, rows, columns, tile, limit } = constraint {
            let found = tile_count([matrices, rows, columns].map(|dim| dim.evaluate(symbols)), *tile);
            let too_many = found.is_none_or(|found| *limit < found);
            return too_many
                .then(|| Rejection::new(ReasonCode::ExtentRange, tile_message(found, *tile, *limit)));
        }
        let (name, dim, code) = match constraint {
            Constraint::Multiple { name, dim, code, .. } => (name, dim, *code),
            Constraint::AtMost { name, dim, .. } | Constraint::NotEmpty { name, dim } => {
                (name, dim, ReasonCode::ExtentRange)
            }
            Constraint::PointerAlignment { .. }
            | Constraint::ScaleBytes { .. }
            | Constraint::Tiles { .. } => return None,
        };
        let Some(extent) = dim.evaluate(symbols) else {
            let what = format!("{name} is not known or takes more than 64 bits; expected an extent");
            return Some(Rejection::new(ReasonCode::ExtentRange, what));
        };
        let expected = match constraint {
            Constraint::Multiple { of, .. } if !extent.is_multiple_of(*of) => format!("a multiple of {of}"),
            Constraint::AtMost { limit, .. } if *limit < extent => format!("at most {limit}"),
            Constraint::NotEmpty { .. } if extent == 0 => "at least 1".to_owned(),
            _ => return None,
        };
        Some(Rejection::new(code, format!("{name} is {extent}; expected {expected}")))
    })
}

/// A reduction gives f32 elements one by one; nothing wider than one is stored.
const REDUCTION_ALIGNMENT: u32 = 4;

/// The constraints of a kernel that writes these outputs and whose epilogue reads `read`. What holds whatever the
/// symbols are is left out.
pub(crate) fn constraints(
    module: &Module,
    root: &Root<'_>,
    read: &[EpilogueOperand],
    outputs: &[KernelOutput],
) -> Vec<Constraint> {
    let Root { matmul, capability, operands, .. } = root;
    let Matmul { batch, m, n, k, .. } = matmul;
    let read_rules = read.iter().map(|read| capability.epilogue.operand(read.shape)?.element(read.element));
    let written_rules = outputs.iter().map(|output| match output.kind {
        OutputKind::Value { value } => Some(capability.output(module.ty(value).element)?.n_multiple),
        OutputKind::Quantized { scales, element, block, .. } => {
            let rule = capability.epilogue.quantized(element, module.ty(scales).element, block);
            Some(rule?.n_multiple)
        }
        OutputKind::Reduced { .. } => None,
    });
    let c_rule = operands.c.and_then(|c| capability.c(module.ty(c).element));
    let n_multiple = read_rules
        .chain([c_rule])
        .map(|rule| Some(rule?.n_multiple))
        .chain(written_rules)
        .flatten()
        .fold(1, lcm);
    let multiples = [
        ("K", k, capability.k_multiple, ReasonCode::KAlignment),
        ("N", n, n_multiple, ReasonCode::NAlignment),
    ]
    .into_iter()
    .filter(|(_, dim, of, _)| Divides::of(dim, *of) != Divides::Always)
    .map(|(name, dim, of, code)| Constraint::Multiple { name, dim: dim.clone(), of, code });

    let limits = limited(matmul, capability)
        .into_iter()
        .filter(|(_, dim, _)| dim.as_fixed().is_none())
        .map(|(name, dim, limit)| Constraint::AtMost { name, dim, limit });
    let GridCapability { tile, max_tiles: limit, .. } = capability.grid;
    let tiles = computed(matmul)
        .filter(|extents| extents.iter().any(|dim| dim.as_fixed().is_none()))
        .filter(|_| most_tiles(matmul, capability).is_none_or(|most| limit < most))
        .map(|[matrices, rows, columns]| Constraint::Tiles { matrices, rows, columns, tile, limit });

    let mut scaled: Vec<(&'static str, [Dim; 3], u32)> = scale_operands(matmul)
        .into_iter()
        .map(|(name, extents)| (name, extents, matmul.format.block))
        .collect();
    for output in outputs {
        if let OutputKind::Quantized { block, .. } = output.kind
            && let Some(extents) = output_scales(matmul)
            && !scaled.contains(&("D", extents.clone(), block))
        {
            scaled.push(("D", extents, block));
        }
    }
    let scales = scaled
        .into_iter()
        .filter(|(_, extents, _)| extents.iter().any(|dim| dim.as_fixed().is_none()))
        .map(|(name, [matrices, rows, k], block)| {
            let limit = capability.max_scale_bytes;
            Constraint::ScaleBytes { name, matrices, rows, k, block, limit }
        });

    let rows_needed = outputs
        .iter()
        .any(|output| matches!(output.kind, OutputKind::Reduced { kind, .. } if needs_rows(kind)));
    let not_empty = [("N", n), ("K", k)]
        .into_iter()
        .chain([("M", m), ("L", batch)].into_iter().filter(|_| rows_needed))
        .filter(|(_, dim)| dim.as_fixed().is_none())
        .map(|(name, dim)| Constraint::NotEmpty { name, dim: dim.clone() });

    let wide = capability.pointer_alignment;
    let mut pointers = Vec::new();
    let vectors = read.iter().filter(|read| read.shape != OperandShape::Scalar).map(|read| read.value);
    let read = [Some(operands.a), Some(operands.sfa), Some(operands.b), Some(operands.sfb), operands.c]
        .into_iter()
        .flatten()
        .chain(vectors)
        .map(|value| (value, wide));
    let written = outputs.iter().flat_map(|output| match output.kind {
        OutputKind::Value { value } => vec![(value, wide)],
        OutputKind::Quantized { codes, scales, .. } => vec![(codes, wide), (scales, wide)],
        OutputKind::Reduced { value, .. } => vec![(value, REDUCTION_ALIGNMENT)],
    });
    for pointer in read.chain(written) {
        if !pointers.contains(&pointer) {
            pointers.push(pointer);
        }
    }
    let alignments = pointers.into_iter().map(|(value, bytes)| Constraint::PointerAlignment { value, bytes });

    multiples.chain(limits).chain(tiles).chain(scales).chain(not_empty).chain(alignments).collect()
}

/// The extents that a launch is given, with the most that each may be. Acceptance refused an L*M beyond 64 bits.
pub(crate) fn limited(matmul: &Matmul, capability: &FormatCapability) -> Vec<(&'static str, Dim, u64)> {
    let Matmul { batch, m, n, k, .. } = matmul;
    let GridCapability { max_matrices, max_columns, .. } = capability.grid;
    let most = capability.max_extent;
    let mut limited = if flattens(matmul) {
        batch.times(m).map(|rows| vec![("L*M", rows, most)]).unwrap_or_default()
    } else {
        vec![("L", batch.clone(), most.min(max_matrices)), ("M", m.clone(), most)]
    };
    limited.extend([("N", n.clone(), most.min(max_columns)), ("K", k.clone(), most)]);
    limited
}

/// The matrices, their rows and their columns that a launch computes; `None` beyond 64 bits.
pub(crate) fn computed(matmul: &Matmul) -> Option<[Dim; 3]> {
    let Matmul { batch, m, n, .. } = matmul;
    match flattens(matmul) {
        true => Some([Dim::fixed(1), batch.times(m)?, n.clone()]),
        false => Some([batch.clone(), m.clone(), n.clone()]),
    }
}

/// No call has more tiles of D than this: extents that are not fixed are bounded by the limit on the scales. `None` beyond
/// 64 bits.
fn most_tiles(matmul: &Matmul, capability: &FormatCapability) -> Option<u64> {
    let [matrices, rows, columns] = computed(matmul)?;
    let [tile_rows, tile_columns] = capability.grid.tile.map(|extent| extent.max(1));
    let k = matmul.k.as_fixed().unwrap_or(1).max(1);
    let scale_tile = scale_bytes([Some(1), Some(SCALE_ROWS), Some(k)], matmul.format.block)?;
    // Blocks of 128 rows that an operand can have, in all of its matrices.
    let blocks = capability.max_scale_bytes / scale_tile;
    let of_extent = |extent: Option<u64>, tile: u64| match extent {
        Some(extent) => Some(extent.div_ceil(tile)),
        None => blocks.checked_mul(SCALE_ROWS.div_ceil(tile)),
    };
    let all_rows = match matrices.as_fixed() {
        Some(matrices) => matrices.checked_mul(of_extent(rows.as_fixed(), tile_rows)?)?,
        None => of_extent(None, tile_rows)?,
    };
    all_rows.checked_mul(of_extent(columns.as_fixed(), tile_columns)?)
}

/// The tiles of so many matrices of so many rows and columns; `None` beyond 64 bits or for an unknown extent.
pub(crate) fn tile_count([matrices, rows, columns]: [Option<u64>; 3], tile: [u64; 2]) -> Option<u64> {
    let [tile_rows, tile_columns] = tile.map(|extent| extent.max(1));
    let of_matrix = rows?.div_ceil(tile_rows).checked_mul(columns?.div_ceil(tile_columns))?;
    of_matrix.checked_mul(matrices?)
}

pub(crate) fn tile_message(found: Option<u64>, [rows, columns]: [u64; 2], limit: u64) -> String {
    match found {
        Some(found) => format!("D has {found} tiles of {rows}x{columns}; expected at most {limit}"),
        None => format!(
            "how many tiles of {rows}x{columns} D has is not known or takes more than 64 bits; expected at most {limit}"
        ),
    }
}

/// The operands with blocked scales: how many matrices have scales of their own, the rows of one, and K.
pub(crate) fn scale_operands(matmul: &Matmul) -> Vec<(&'static str, [Dim; 3])> {
    let Matmul { batch, m, n, k, .. } = matmul;
    let one = Dim::fixed(1);
    let a = if flattens(matmul) {
        // Acceptance refused a product that does not fit.
        batch.times(m).map(|rows| [one.clone(), rows, k.clone()])
    } else {
        Some([batch.clone(), m.clone(), k.clone()])
    };
    let b_matrices = if matmul.b_batched { batch.clone() } else { one };
    let b = [b_matrices, n.clone(), k.clone()];
    a.map(|a| ("A", a)).into_iter().chain([("B", b)]).collect()
}

/// The blocked scales that a kernel writes, as [`scale_operands`] states those that it reads. `None` beyond 64 bits.
pub(crate) fn output_scales(matmul: &Matmul) -> Option<[Dim; 3]> {
    let Matmul { batch, m, n, .. } = matmul;
    if flattens(matmul) {
        Some([Dim::fixed(1), batch.times(m)?, n.clone()])
    } else {
        Some([batch.clone(), m.clone(), n.clone()])
    }
}

/// Bytes of blocked scales with this many matrices, rows and K; `None` beyond 64 bits or for an unknown extent.
pub(crate) fn scale_bytes([matrices, rows, k]: [Option<u64>; 3], block: u32) -> Option<u64> {
    let columns = k?.div_ceil(u64::from(block)).checked_next_multiple_of(4)?;
    rows?.checked_next_multiple_of(SCALE_ROWS)?.checked_mul(columns)?.checked_mul(matrices?)
}

pub(crate) fn scale_message(name: &str, limit: u64) -> String {
    format!("the scales of {name} take more than {limit} bytes; expected at most as many")
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a.checked_div(divisor).map_or(0, |factor| factor.saturating_mul(b))
}

#[cfg(test)]
mod tests {
    use super::lcm;

    #[test]
    fn lcm_is_the_least_common_multiple() {
        assert_eq!([lcm(1, 8), lcm(8, 4), lcm(4, 6), lcm(7, 7)], [8, 8, 12, 7]);
    }
}
