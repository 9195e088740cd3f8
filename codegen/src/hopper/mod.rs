//! The kernels of sm_90a, which are our own. One library holds several tiles and takes one for each call, from the extents:
//! lines of a table are written into the source, and read there.

mod configuration;
pub(crate) mod template;
mod tiles;

pub use self::configuration::{ANY, Choice, Configuration};
pub use self::template::{HEAD, KERNEL, row_output_functions};
pub use self::tiles::{ForcedError, SMALL_M, TARGET, TILE_K, TILES, Tile, check, takes};
