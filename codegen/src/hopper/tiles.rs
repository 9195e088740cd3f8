//! The tiles of the kernels of sm_90a: a part of D, M by N.

use std::fmt;

use fourfold_ir::BlockFormat;
use serde::Serialize;

/// The target that these kernels are of.
pub const TARGET: &str = "sm_90a";

/// M at most of a tile that a small-M kernel computes. It has no loop over M.
pub const SMALL_M: u32 = 16;

/// What is decoded of K at a time.
pub const TILE_K: u32 = 128;

/// What a block of the grid computes of D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Tile {
    /// Along M: rows of A.
    pub m: u32,
    /// Along N: rows of B. A small-M kernel splits N evenly across the SMs instead.
    pub n: u32,
}

/// What a tile may be, all that the kernel's text has, the smallest first.
pub const TILES: [Tile; 10] = [
    small_m(1),
    small_m(2),
    small_m(8),
    small_m(16),
    Tile::new(64, 128),
    Tile::new(64, 256),
    Tile::new(128, 64),
    Tile::new(128, 128),
    Tile::new(128, 256),
    Tile::new(256, 128),
];

const fn small_m(m: u32) -> Tile {
    Tile::new(m, 128)
}

impl Tile {
    /// A tile of M by N.
    pub const fn new(m: u32, n: u32) -> Tile {
        Tile { m, n }
    }

    /// Whether a small-M kernel computes it.
    pub const fn is_small_m(self) -> bool {
        self.m <= SMALL_M
    }

    /// What is loaded of K at a time: no block that shares a tile has less.
    pub const fn step(self) -> u32 {
        if self.is_small_m() || self.n == 64 { 2 * TILE_K } else { TILE_K }
    }

    /// Whether its operands are multiplied as e4m3, without their scales, by warpgroups; else as fp16 or bf16.
    pub const fn uses_e4m3(self) -> bool {
        self.m < 8
    }

    /// Whether a kernel of its own may keep A in registers, a chunk of K in each warp.
    pub const fn may_keep_a_in_registers(self) -> bool {
        self.m == SMALL_M
    }

    /// Whether there is a kernel of this tile for a format: e4m3 wants scales that fp32 multiplies exactly.
    pub fn takes(self, format: BlockFormat) -> bool {
        takes(format) && (!self.uses_e4m3() || format == BlockFormat::NVFP4)
    }

    /// Whether a thread gets 32 columns of a row, as it must where something other than values is written.
    pub const fn has_wide_rows(self) -> bool {
        self.is_small_m() || self.n == 256
    }

    /// The tile whose threads get wide rows, with the same M, or with 128, the largest M of such a tile.
    pub const fn wide(self) -> Tile {
        let m = if self.m > 128 { 128 } else { self.m };
        if self.has_wide_rows() { self } else { Tile::new(m, 256) }
    }

    /// K at most of a small-M tile: a cluster of eight keeps A in shared memory, for all of K.
    pub const fn max_k(self) -> u32 {
        if self.uses_e4m3() { 8 * 16384 } else { 8 * 4096 }
    }

    /// CTAs at most of a cluster that shares a tile, each with a part of K.
    pub const fn max_cluster(self) -> u32 {
        if self.is_small_m() {
            8
        } else if self.n == 64 {
            2
        } else {
            4
        }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_small_m() { write!(f, "{}", self.m) } else { write!(f, "{}x{}", self.m, self.n) }
    }
}

/// Why no kernel of sm_90a can be forced to a tile and a number of blocks that share it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForcedError {
    /// The kernel does not decode the format, or has no such tile of it.
    #[error("there is no {m}x{n} tile for {format}; those that there are: {known}")]
    NoTile {
        /// The format.
        format: BlockFormat,
        /// M of the tile.
        m: u32,
        /// N of the tile.
        n: u32,
        /// All tiles of the format, as M by N.
        known: String,
    },
    /// So many blocks cannot share the tile.
    #[error("{cluster} blocks cannot share a tile {tile}: {} can, and 0 leaves it to each call", clusters(*tile))]
    Cluster {
        /// The tile.
        tile: Tile,
        /// The blocks.
        cluster: u32,
    },
}

fn clusters(tile: Tile) -> &'static str {
    match tile.max_cluster() {
        2 => "1 or 2",
        4 => "1, 2 or 4",
        _ => "1, 2, 4 or 8",
    }
}

/// Whether there is a kernel of this tile, shared by so many blocks or, with 0, as many as a call finds best.
///
/// # Errors
/// When there is none.
pub fn check(format: BlockFormat, tile: Tile, cluster: u32) -> Result<(), ForcedError> {
    let known = TILES.iter().filter(|known| known.takes(format));
    if !known.clone().any(|known| *known == tile) {
        let Tile { m, n } = tile;
        let known: Vec<String> = known.map(|tile| format!("{}x{}", tile.m, tile.n)).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(ForcedError::NoTile { format, m, n, known });
    }
    let can = cluster == 0 || (cluster.is_power_of_two() && cluster <= tile.max_cluster());
    if can { Ok(()) } else { Err(ForcedError::Cluster { tile, cluster }) }
}

/// The formats that the kernel decodes.
pub fn takes(format: BlockFormat) -> bool {
    [BlockFormat::NVFP4, BlockFormat::MXFP4].contains(&format)
}
