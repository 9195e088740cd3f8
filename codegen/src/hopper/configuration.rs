//! What a source for sm_90a is built from: the tiles that it holds, and the lines by which each call gets one of them.

use std::borrow::Cow;
use std::fmt;

use fourfold_ir::BlockFormat;

use super::tiles::{ForcedError, TILE_K, Tile, check};

/// A bound that every extent meets.
pub const ANY: u32 = i32::MAX as u32;

/// Which tile a problem gets that exceeds none of these extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// M at most.
    pub max_m: u32,
    /// N at most.
    pub max_n: u32,
    /// K at most.
    pub max_k: u32,
    /// Which tile; where a thread must have wide rows, the [`wide`](Tile::wide) one in its place.
    pub tile: Tile,
    /// Blocks that share a tile, each with a part of K: 1, 2, 4 or 8, of which a call gets no more than there are steps
    /// along K, and with small M no fewer than A needs room. With 0 as many as the device has room for, and as
    /// leave each two steps along K; of a tile of e4m3 as many as leave each the least to do.
    pub cluster: u32,
}

/// What a kernel of sm_90a is built from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// What A and B are.
    pub format: BlockFormat,
    /// The tiles that the source holds: some of [`TILES`](super::TILES), the smallest first.
    pub variants: Vec<Tile>,
    /// The table of which the source gets the lines that its tiles are for: the default one, unless another is wanted.
    pub table: Cow<'static, [Choice]>,
}

impl Configuration {
    /// The kernel of one tile for all calls that it takes: of a small-M tile those whose M is no larger.
    /// `cluster` blocks share a tile wherever K is long enough, as [`Choice::cluster`] says; with 0 each call decides.
    /// Where something other than values is written, the tile must be a [`wide`](Tile::wide) one.
    ///
    /// # Errors
    /// When there is no such kernel.
    pub fn forced(format: BlockFormat, tile: Tile, cluster: u32) -> Result<Configuration, ForcedError> {
        check(format, tile, cluster)?;
        let max_m = if tile.is_small_m() { tile.m } else { ANY };
        let line = Choice { max_m, max_n: ANY, max_k: ANY, tile, cluster };
        Ok(Configuration { format, variants: vec![tile], table: Cow::Owned(vec![line]) })
    }

    /// A readable name: `sm90_x8_16_64x128_128x256`, and with `_c2` where two blocks share each tile.
    pub fn name(&self) -> String {
        let variants: Vec<String> = self.variants.iter().map(Tile::to_string).collect();
        let cluster = match self.table[..] {
            [Choice { cluster, .. }] if cluster > 0 => format!("_c{cluster}"),
            _ => String::new(),
        };
        format!("sm90_x{}{cluster}", variants.join("_"))
    }

    /// The largest tile: M, N and K.
    pub fn tile(&self) -> [u32; 3] {
        self.variants.last().map_or([0; 3], |tile| [tile.m, tile.n, TILE_K])
    }

    /// M at most of a call; `None` where there is no bound. A small-M kernel has all of M in a tile.
    pub fn max_m(&self) -> Option<u32> {
        self.variants.last().filter(|tile| tile.is_small_m()).map(|tile| tile.m)
    }

    /// The matrix instruction of the largest tile: that of warpgroups, or of warps where all tiles are for small M, or that of
    /// e4m3.
    pub fn opcode(&self) -> &'static str {
        match self.variants.last() {
            Some(tile) if tile.uses_e4m3() => "QGMMA",
            Some(tile) if tile.is_small_m() => "HMMA.16816",
            _ => "HGMMA",
        }
    }

    /// The lines of the table whose tiles the source holds, with the position of the tile: of one that it holds only as
    /// its [`wide`](Tile::wide) one, that one's.
    pub fn choices(&self) -> impl Iterator<Item = (&Choice, usize)> {
        let position = |tile: Tile| self.variants.iter().position(|variant| *variant == tile);
        self.table.iter().filter_map(move |choice| {
            Some((choice, position(choice.tile).or_else(|| position(choice.tile.wide()))?))
        })
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.format, self.name())
    }
}
