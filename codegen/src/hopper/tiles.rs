//! The tiles of the kernels of sm_90a. A tile is some rows of A by some rows of B.

use std::fmt;

use fourfold_ir::BlockFormat;
use serde::Serialize;

/// The target that these kernels are of.
pub const TARGET: &str = "sm_90a";

/// Rows of A at most of a tile that a kernel for few of them computes, which has no loop over them.
pub const FEW_TOKENS: u32 = 16;

/// What is decoded of K at a time.
pub const TILE_K: u32 = 128;

/// What a block of the grid computes of D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Tile {
    /// Rows of A.
    pub tokens: u32,
    /// Rows of B. With few of A all of them are shared out among the SMs, in shares of no fixed size.
    pub rows: u32,
}

/// What a tile may be, all that the kernel's text has, the smallest first.
pub const TILES: [Tile; 10] = [
    few(1),
    few(2),
    few(8),
    few(16),
    Tile::new(64, 128),
    Tile::new(64, 256),
    Tile::new(128, 64),
    Tile::new(128, 128),
    Tile::new(128, 256),
    Tile::new(256, 128),
];

const fn few(tokens: u32) -> Tile {
    Tile::new(tokens, 128)
}

impl Tile {
    /// A tile of so many rows of A and of B.
    pub const fn new(tokens: u32, rows: u32) -> Tile {
        Tile { tokens, rows }
    }

    /// Whether a kernel for few rows of A computes it.
    pub const fn is_few(self) -> bool {
        self.tokens <= FEW_TOKENS
    }

    /// What is loaded of K at a time: no block that shares a tile has less.
    pub const fn step(self) -> u32 {
        if self.is_few() || self.rows == 64 { 2 * TILE_K } else { TILE_K }
    }

    /// Whether its operands are multiplied as bytes, without their scales, by warpgroups; else as fp16 or bf16.
    pub const fn is_of_bytes(self) -> bool {
        self.tokens < 8
    }

    /// Whether warps hold its rows of A in registers where each has a chunk of K, by a kernel of its own.
    pub const fn is_held(self) -> bool {
        self.tokens == FEW_TOKENS
    }

    /// Whether there is a kernel of this tile for a format: one of bytes wants scales that fp32 multiplies exactly.
    pub fn takes(self, format: BlockFormat) -> bool {
        takes(format) && (!self.is_of_bytes() || format == BlockFormat::NVFP4)
    }

    /// Whether a thread gets 32 columns of a row, as it must where something other than values is written.
    pub const fn has_wide_rows(self) -> bool {
        self.is_few() || self.rows == 256
    }

    /// The tile whose threads get wide rows, of as many rows of A, or of 128, the most of such a tile.
    pub const fn wide(self) -> Tile {
        let tokens = if self.tokens > 128 { 128 } else { self.tokens };
        if self.has_wide_rows() { self } else { Tile::new(tokens, 256) }
    }

    /// K at most of a tile for few rows of A, which has these in shared memory, for all of K in eight blocks.
    pub const fn most_k(self) -> u32 {
        if self.is_of_bytes() { 8 * 16384 } else { 8 * 4096 }
    }

    /// Blocks at most that share a tile, each with a part of K.
    pub const fn most_cluster(self) -> u32 {
        if self.is_few() {
            8
        } else if self.rows == 64 {
            2
        } else {
            4
        }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_few() { write!(f, "{}", self.tokens) } else { write!(f, "{}x{}", self.tokens, self.rows) }
    }
}

/// Why no kernel of sm_90a can be forced to a tile and a number of blocks that share it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForcedError {
    /// The kernel does not decode the format, or has no such tile of it.
    #[error(
        "there is no tile of {tokens} rows of A by {rows} of B for {format}; those that there are: {known}"
    )]
    NoTile {
        /// The format.
        format: BlockFormat,
        /// Rows of A.
        tokens: u32,
        /// Rows of B.
        rows: u32,
        /// All tiles of the format, as rows of A by rows of B.
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
    match tile.most_cluster() {
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
        let Tile { tokens, rows } = tile;
        let known: Vec<String> = known.map(|tile| format!("{}x{}", tile.tokens, tile.rows)).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(ForcedError::NoTile { format, tokens, rows, known });
    }
    let can = cluster == 0 || (cluster.is_power_of_two() && cluster <= tile.most_cluster());
    if can { Ok(()) } else { Err(ForcedError::Cluster { tile, cluster }) }
}

/// The formats that the kernel decodes.
pub fn takes(format: BlockFormat) -> bool {
    [BlockFormat::NVFP4, BlockFormat::MXFP4].contains(&format)
}
