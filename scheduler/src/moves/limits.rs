//! The limits of the kernels of moves on the extents of a call.

use fourfold_ir::{Dim, MoveCapability, Program};

use crate::geometry::tile_count;
use crate::plan::{Constraint, MoveProgram};
use crate::reason::extent_message;

/// The extent beyond a limit, worded for a message; `None` if every fixed extent is within its limit.
pub(super) fn exceeded_by(
    program: &Program,
    capability: &MoveCapability,
    copy: MoveProgram,
    extents: &[Dim],
) -> Option<String> {
    let module = program.module();
    for (name, dim) in limited(copy, extents) {
        let limit = limit_of(copy, name, extents, capability);
        if dim.as_fixed().is_some_and(|extent| limit < extent) {
            let name = meaning(copy, name).map_or(name.to_owned(), |meaning| format!("{name} ({meaning})"));
            return Some(extent_message(&name, module.display_dim(dim), limit));
        }
    }
    let (MoveProgram::TopK { .. }, [_, columns, taken]) = (copy, extents) else { return None };
    let examined = columns.times(taken).and_then(|examined| examined.as_fixed());
    let fits = examined.is_some_and(|examined| examined <= capability.max_examined);
    (!fits).then(|| {
        let found = format!("{} * {}", module.display_dim(columns), module.display_dim(taken));
        extent_message("C * K (the elements of a row and those taken)", found, capability.max_examined)
    })
}

/// The conditions that do not hold for all symbol values.
pub(super) fn constraints(
    capability: &MoveCapability,
    copy: MoveProgram,
    extents: &[Dim],
) -> Vec<Constraint> {
    let mut constraints: Vec<Constraint> = limited(copy, extents)
        .filter(|(_, dim)| dim.as_fixed().is_none())
        .map(|(name, dim)| {
            let limit = limit_of(copy, name, extents, capability);
            Constraint::AtMost { name, dim: dim.clone(), limit }
        })
        .collect();
    if let (MoveProgram::ScatterAdd { .. }, [_, rows, columns]) = (copy, extents)
        && columns.as_fixed().is_none()
    {
        constraints.push(Constraint::Tiles {
            matrices: Dim::fixed(1),
            rows: rows.clone(),
            columns: columns.clone(),
            tile: capability.sum_tile,
            limit: capability.max_sum_tiles,
        });
    }
    constraints
}

/// The extents that have a limit, with their names.
fn limited(copy: MoveProgram, extents: &[Dim]) -> impl Iterator<Item = (&'static str, &Dim)> {
    copy.extent_names().into_iter().zip(extents).filter(|(name, _)| is_limited(name))
}

/// Returns whether a limit on this number of a call bounds memory. Strides, offsets and paddings are smaller than an
/// extent, and F is no extent.
fn is_limited(name: &str) -> bool {
    !matches!(name.as_bytes(), [b'S' | b'P' | b'O', _] | [b'F'])
}

/// Returns the limit of an extent.
fn limit_of(copy: MoveProgram, name: &str, extents: &[Dim], capability: &MoveCapability) -> u64 {
    match (copy, name) {
        (MoveProgram::PaddedEnds | MoveProgram::GroupScales | MoveProgram::GroupRows, "E") => {
            capability.max_groups
        }
        (MoveProgram::GroupRows | MoveProgram::ScatterAdd { .. }, "M") => capability.max_positions,
        (MoveProgram::TopK { .. }, "M") => capability.max_ranked_rows.min(capability.max_extent),
        // [`constraints`] limits the tiles of unknown columns.
        (MoveProgram::ScatterAdd { .. }, "N") => {
            let of_row = tile_count([Some(1), Some(1), extents[2].as_fixed()], capability.sum_tile);
            let rows = of_row.and_then(|tiles| capability.max_sum_tiles.checked_div(tiles));
            rows.map_or(capability.max_extent, |rows| rows.min(capability.max_extent))
        }
        _ => capability.max_extent,
    }
}

/// The meaning of an extent, if its op has a name for it.
fn meaning(copy: MoveProgram, name: &str) -> Option<&'static str> {
    Some(match (copy, name) {
        (MoveProgram::PaddedEnds | MoveProgram::GroupScales | MoveProgram::GroupRows, "E") => "the groups",
        (MoveProgram::GroupRows, "M") => "the ids",
        (MoveProgram::ScatterAdd { .. }, "M") => "the indices",
        (MoveProgram::ScatterAdd { .. }, "N") => "the rows of the result",
        (MoveProgram::Gather, "C") => "the indices",
        (MoveProgram::TopK { .. } | MoveProgram::GroupScales, "M") => "the rows",
        (MoveProgram::TopK { .. } | MoveProgram::ScatterAdd { .. }, "C") => "the elements of a row",
        (MoveProgram::Strided { .. }, "E") => "the elements of the operand",
        (MoveProgram::Strided { .. } | MoveProgram::Pad { .. }, _) => {
            "an axis, or several that move together"
        }
        _ => return None,
    })
}
