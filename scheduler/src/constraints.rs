//! Constraints on a call: conditions that must hold before a kernel is launched.

use fourfold_ir::{Dim, GridCapability, Matmul, Module, OperandShape, ScaleLayout, SymbolValues};

use crate::geometry::{
    Divides, extent_limits, launched_extents, max_tile_count, scale_bytes, scale_operands, tile_count,
};
use crate::plan::{Constraint, EpilogueOperand, KernelOutput, OutputKind};
use crate::properties::needs_rows;
use crate::reason::{ReasonCode, Rejection, scale_message, tile_message};
use crate::root::Root;

/// Returns the first constraint on extents that these symbol values violate, as the reason to run the segment
/// on the fallback. `None` means that the extents permit a launch. The caller checks pointers.
pub fn violated(constraints: &[Constraint], symbols: &SymbolValues) -> Option<Rejection> {
    constraints.iter().find_map(|constraint| {
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
            let what = format!("{name} is unknown or exceeds 64 bits; expected an extent");
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

/// A reduction stores single f32 elements, so 4-byte alignment is enough.
const REDUCTION_ALIGNMENT: u32 = 4;
/// Offsets, ends and alphas of groups are read one by one.
const WORD_ALIGNMENT: u32 = 4;

/// The constraints of a kernel that reads `read` in its epilogue and writes `outputs`. Conditions that hold
/// for all symbol values are omitted.
pub(crate) fn constraints(
    module: &Module,
    root: &Root<'_>,
    read: &[EpilogueOperand],
    outputs: &[KernelOutput],
) -> Vec<Constraint> {
    let Root { matmul, capability, .. } = root;
    let limits = extent_limits(matmul, capability)
        .into_iter()
        .filter(|(_, dim, _)| dim.as_fixed().is_none())
        .map(|(name, dim, limit)| Constraint::AtMost { name, dim, limit });
    let GridCapability { tile, max_tiles: limit, .. } = capability.grid;
    let tiles = launched_extents(matmul)
        .filter(|extents| extents.iter().any(|dim| dim.as_fixed().is_none()))
        .filter(|_| max_tile_count(matmul, capability).is_none_or(|most| limit < most))
        .map(|[matrices, rows, columns]| Constraint::Tiles { matrices, rows, columns, tile, limit });
    multiples(module, root, read, outputs)
        .into_iter()
        .chain(limits)
        .chain(tiles)
        .chain(scale_limits(root, outputs))
        .chain(not_empty(matmul, outputs))
        .chain(alignments(module, root, read, outputs))
        .collect()
}

/// The constraints that K and N be multiples.
fn multiples(
    module: &Module,
    root: &Root<'_>,
    read: &[EpilogueOperand],
    outputs: &[KernelOutput],
) -> Vec<Constraint> {
    let Root { matmul, capability, operands, .. } = root;
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
    [
        ("K", &matmul.k, capability.k_multiple, ReasonCode::KAlignment),
        ("N", &matmul.n, n_multiple, ReasonCode::NAlignment),
    ]
    .into_iter()
    .filter(|(_, dim, of, _)| Divides::of(dim, *of) != Divides::Always)
    .map(|(name, dim, of, code)| Constraint::Multiple { name, dim: dim.clone(), of, code })
    .collect()
}

/// The limits on the bytes of blocked scales, both read and written.
fn scale_limits(root: &Root<'_>, outputs: &[KernelOutput]) -> Vec<Constraint> {
    let Root { matmul, capability, .. } = root;
    let mut scaled: Vec<(&'static str, [Dim; 3], u32)> = scale_operands(matmul)
        .into_iter()
        .map(|(name, extents)| (name, extents, matmul.format.block))
        .collect();
    for output in outputs {
        if let OutputKind::Quantized { block, .. } = output.kind
            && let Some(extents) = root.launched_d()
            && !scaled.contains(&("D", extents.clone(), block))
        {
            scaled.push(("D", extents, block));
        }
    }
    let limit = capability.max_scale_bytes;
    scaled
        .into_iter()
        .filter(|(_, extents, _)| extents.iter().any(|dim| dim.as_fixed().is_none()))
        .map(|(name, [matrices, rows, k], block)| Constraint::ScaleBytes {
            name,
            matrices,
            rows,
            k,
            block,
            limit,
        })
        .collect()
}

/// The constraints that extents be at least one.
fn not_empty(matmul: &Matmul, outputs: &[KernelOutput]) -> Vec<Constraint> {
    let Matmul { batch, m, n, k, .. } = matmul;
    let rows_needed = outputs
        .iter()
        .any(|output| matches!(output.kind, OutputKind::Reduced { kind, .. } if needs_rows(kind)));
    [("N", n), ("K", k)]
        .into_iter()
        .chain([("M", m), ("L", batch)].into_iter().filter(|_| rows_needed))
        .chain(matmul.groups.iter().map(|groups| ("E", groups)))
        .filter(|(_, dim)| dim.as_fixed().is_none())
        .map(|(name, dim)| Constraint::NotEmpty { name, dim: dim.clone() })
        .collect()
}

/// The alignment constraint of every pointer, each once.
fn alignments(
    module: &Module,
    root: &Root<'_>,
    read: &[EpilogueOperand],
    outputs: &[KernelOutput],
) -> Vec<Constraint> {
    let Root { matmul, capability, operands, .. } = root;
    let alphas = operands.alpha.filter(|alpha| !module.ty(*alpha).is_scalar());
    let wide = capability.pointer_alignment;
    let vectors = read.iter().filter(|read| read.shape != OperandShape::Scalar).map(|read| read.value);
    let [of_a, of_b] = capability.operand_alignment;
    // Linear scales of an A without groups may begin at any byte.
    let is_wide = matmul.groups.is_some() || matmul.sfa_layout != Some(ScaleLayout::Linear);
    let scales_of_a = operands.sfa.filter(|_| is_wide).map(|sfa| (sfa, wide));
    let read = [Some((operands.a, of_a)), scales_of_a, Some((operands.b, of_b)), Some((operands.sfb, wide))]
        .into_iter()
        .flatten()
        .chain(operands.c.into_iter().chain(vectors).map(|value| (value, wide)))
        .chain(
            operands
                .offsets
                .into_iter()
                .chain(operands.sfa_ends)
                .chain(alphas)
                .map(|value| (value, WORD_ALIGNMENT)),
        );
    let written = outputs.iter().flat_map(|output| match output.kind {
        OutputKind::Value { value } => vec![(value, wide)],
        OutputKind::Quantized { codes, scales, .. } => vec![(codes, wide), (scales, wide)],
        OutputKind::Reduced { value, .. } => vec![(value, REDUCTION_ALIGNMENT)],
    });
    let mut pointers = Vec::new();
    for pointer in read.chain(written) {
        if !pointers.contains(&pointer) {
            pointers.push(pointer);
        }
    }
    pointers.into_iter().map(|(value, bytes)| Constraint::PointerAlignment { value, bytes }).collect()
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
