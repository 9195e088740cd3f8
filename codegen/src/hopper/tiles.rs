//! The tiles of sm_90a kernels: M and N extents of a part of D.

use std::fmt;

use fourfold_ir::{BlockFormat, ElementType};
use serde::Serialize;

use crate::targets::has_two_terms;

/// The target of these kernels.
pub const TARGET: &str = "sm_90a";

/// The largest M of a small-M tile. A small-M kernel has no loop over M.
pub const SMALL_M: u32 = 16;

/// The extent along K that is decoded at a time.
pub const TILE_K: u32 = 128;

/// The part of D that one CTA computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Tile {
    /// The extent along M.
    pub m: u32,
    /// The extent along N. A small-M kernel splits N evenly across SMs instead.
    pub n: u32,
}

/// All tiles in the kernel's text, the smallest first.
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

    /// Returns whether a small-M kernel computes the tile.
    pub const fn is_small_m(self) -> bool {
        self.m <= SMALL_M
    }

    /// The K-step in elements: no CTA that shares a tile has less of K.
    pub const fn step(self) -> u32 {
        if self.is_small_m() || self.n == 64 { 2 * TILE_K } else { TILE_K }
    }

    /// Returns whether operands are multiplied as e4m3, without their scales, by warpgroup MMA. Otherwise
    /// they are multiplied as fp16 or bf16.
    pub const fn uses_e4m3(self) -> bool {
        self.m < 8
    }

    /// Returns whether a separate kernel may keep A in registers, with a chunk of K per warp. B is FP4.
    pub fn may_keep_a_in_registers(self, format: BlockFormat) -> bool {
        self.m == SMALL_M && format.b == ElementType::F4E2M1FN && !has_two_terms(format)
    }

    /// Returns whether the tile supports a format. The e4m3 tiles need scales that fp32 multiplies exactly. With
    /// stages of an 8-bit B, a tile of 256 rows exceeds shared memory. Its warps that decode A have too few registers for
    /// two terms.
    pub fn takes(self, format: BlockFormat) -> bool {
        let has_room = self.m <= 128 || (format.b == ElementType::F4E2M1FN && !has_two_terms(format));
        takes(format) && has_room && (!self.uses_e4m3() || format == BlockFormat::NVFP4)
    }

    /// Returns whether a thread has 32 columns of a row, as outputs other than values require.
    pub const fn has_wide_rows(self) -> bool {
        self.is_small_m() || self.n == 256
    }

    /// The tile with wide rows and the same M, up to 128, the largest M of such a tile.
    pub const fn wide(self) -> Tile {
        let m = if self.m > 128 { 128 } else { self.m };
        if self.has_wide_rows() { self } else { Tile::new(m, 256) }
    }

    /// The largest K of a small-M tile: a cluster of eight CTAs keeps all of A in shared memory.
    pub fn max_k(self, format: BlockFormat) -> u32 {
        if self.uses_e4m3() {
            8 * 16384
        } else if has_two_terms(format) {
            8 * 2048
        } else {
            8 * 4096
        }
    }

    /// The maximum register spills, in bytes, with a plain linear combination and a row, with nvcc 13.1.115. Tiles
    /// of 256 rows decode A in few registers while they multiply, and gain more than spills cost. Kernels of FP8 spill
    /// where they compute a sum again that is not finite (`exact_sum.cuh`), which finite data does not reach.
    pub fn spills(self, format: BlockFormat) -> u32 {
        let of_rows = if self.m == 256 { 16 } else { 0 };
        let fp8 = [ElementType::F8E4M3FN, ElementType::F8E5M2];
        if self.n == 256 && (fp8.contains(&format.a) || fp8.contains(&format.b)) { 224 } else { of_rows }
    }

    /// The largest cluster that shares a tile, each CTA with a part of K.
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

/// The reason why no sm_90a kernel has a tile and cluster size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForcedError {
    /// The kernel has no such tile for the format.
    #[error("there is no {m}x{n} tile for {format}; its tiles are {known}")]
    NoTile {
        /// The format.
        format: BlockFormat,
        /// M of the tile.
        m: u32,
        /// N of the tile.
        n: u32,
        /// The format's tiles, as M by N.
        known: String,
    },
    /// The cluster size is not supported for the tile.
    #[error("a cluster of {cluster} cannot share a {tile} tile: use {}, or 0 to let each call decide", clusters(*tile))]
    Cluster {
        /// The tile.
        tile: Tile,
        /// The cluster size.
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

/// Checks that a kernel with this tile and cluster size exists. With 0 each call decides the cluster size.
///
/// # Errors
/// No such kernel exists.
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

/// Returns whether the kernel decodes a format.
pub fn takes(format: BlockFormat) -> bool {
    use ElementType::{BF16, F4E2M1FN, F8E4M3FN, F8E5M2, F16};
    let scales_of = |other: BlockFormat| (format.scale, format.block) == (other.scale, other.block);
    let (nvfp4, mx) = (scales_of(BlockFormat::NVFP4), scales_of(BlockFormat::MXFP4));
    match (format.a, format.b) {
        (F4E2M1FN | BF16, F4E2M1FN) => nvfp4 || mx,
        (F16, F4E2M1FN) => nvfp4 || mx,
        (F8E4M3FN | F8E5M2, F4E2M1FN) | (F4E2M1FN | F8E4M3FN | F8E5M2 | BF16 | F16, F8E4M3FN | F8E5M2) => mx,
        _ => false,
    }
}
