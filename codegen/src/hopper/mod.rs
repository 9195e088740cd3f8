//! Hopper kernels, for sm_90a, written without CUTLASS. One library holds several tiles and selects one per
//! call by its extents, with a table in the source.

mod configuration;
pub(crate) mod template;
mod tiles;

pub use self::configuration::{ANY, Choice, Configuration};
pub use self::template::{HEAD, KERNEL, row_output_functions};
pub use self::tiles::{ForcedError, SMALL_M, TARGET, TILE_K, TILES, Tile, check, takes};
pub use crate::targets::has_two_terms;

/// Returns whether a target has an instruction that converts to e2m1. Hopper has none.
pub(crate) fn has_e2m1_conversion(target: &crate::targets::Target) -> bool {
    target.name != TARGET
}
