//! The configuration of an sm_90a source: its tiles, and the table that selects one of them for each call.

use std::borrow::Cow;
use std::fmt;

use fourfold_ir::BlockFormat;

use crate::groups::Groups;

use super::tiles::{ForcedError, TILE_K, Tile, check};

/// An upper bound that every extent satisfies.
pub const ANY: u32 = i32::MAX as u32;

/// A line of the selection table: the tile for problems within these bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The largest M.
    pub max_m: u32,
    /// The largest N.
    pub max_n: u32,
    /// The largest K.
    pub max_k: u32,
    /// The tile, or its [`wide`](Tile::wide) tile if threads must have wide rows.
    pub tile: Tile,
    /// The cluster size: CTAs that share a tile, each with a part of K: 1, 2, 4 or 8.
    ///
    /// A call gets at most one CTA per K-step. For small M, it gets at least as many CTAs as are needed to hold A in
    /// shared memory. With 0, it gets the largest number that fits on the device and leaves each CTA two K-steps. With
    /// 0 and an e4m3 tile, it gets the number that minimizes the work per CTA.
    pub cluster: u32,
}

/// The configuration of an sm_90a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// The format of A and B.
    pub format: BlockFormat,
    /// The groups of rows; absent in a `scaled_mma`. A bound on M in the table is then one on the mean rows of a group.
    pub groups: Option<Groups>,
    /// True if the kernel has no groups and reads linear scales of A.
    pub linear_sfa: bool,
    /// The tiles in the source, a subset of [`TILES`](super::TILES), the smallest first.
    pub variants: Vec<Tile>,
    /// The selection table: the default one unless overridden. The source holds the lines for its tiles.
    pub table: Cow<'static, [Choice]>,
}

impl Configuration {
    /// A kernel with one tile for all calls. A small-M tile takes calls up to its own M.
    ///
    /// `cluster` CTAs share a tile wherever K is long enough (see [`Choice::cluster`]); with 0 each call
    /// decides. If an output is not a value, the tile must be a [`wide`](Tile::wide) one.
    ///
    /// # Errors
    /// No such kernel exists.
    pub fn forced(format: BlockFormat, tile: Tile, cluster: u32) -> Result<Configuration, ForcedError> {
        check(format, tile, cluster)?;
        let max_m = if tile.is_small_m() { tile.m } else { ANY };
        let line = Choice { max_m, max_n: ANY, max_k: ANY, tile, cluster };
        Ok(Configuration {
            format,
            groups: None,
            linear_sfa: false,
            variants: vec![tile],
            table: Cow::Owned(vec![line]),
        })
    }

    /// A readable name, such as `sm90_x8_16_64x128_128x256`, with `_c2` if two CTAs share each tile.
    pub fn name(&self) -> String {
        let named = |tile: &Tile| match self.groups {
            // Tiles of groups have an extent along N for any M.
            Some(_) => format!("{}x{}", tile.m, tile.n),
            None => tile.to_string(),
        };
        let variants: Vec<String> = self.variants.iter().map(named).collect();
        let cluster = match self.table[..] {
            [Choice { cluster, .. }] if cluster > 0 => format!("_c{cluster}"),
            _ => String::new(),
        };
        let layout = match self.groups {
            Some(groups) if groups.blocked => "_blocked",
            None if self.linear_sfa => "_linear",
            _ => "",
        };
        let grouped = match self.groups {
            Some(groups) if groups.masked => "_masked",
            Some(_) => "_grouped",
            None => "",
        };
        format!("sm90{grouped}{layout}_x{}{cluster}", variants.join("_"))
    }

    /// The largest tile: M, N and K.
    pub fn tile(&self) -> [u32; 3] {
        self.variants.last().map_or([0; 3], |tile| [tile.m, tile.n, TILE_K])
    }

    /// The largest M of a call; `None` if unbounded. A small-M kernel has all of M in one tile.
    pub fn max_m(&self) -> Option<u32> {
        self.variants.last().filter(|tile| self.groups.is_none() && tile.is_small_m()).map(|tile| tile.m)
    }

    /// The SASS name of the largest tile's MMA instruction: warpgroup MMA, warp MMA if all tiles are for
    /// small M, or e4m3 MMA.
    pub fn opcode(&self) -> &'static str {
        match self.variants.last().filter(|_| self.groups.is_none()) {
            Some(tile) if tile.uses_e4m3() => "QGMMA",
            Some(tile) if tile.is_small_m() => "HMMA.16816",
            _ => "HGMMA",
        }
    }

    /// The table lines for the source's tiles, each with the position of its tile. A tile that the source
    /// holds only in its [`wide`](Tile::wide) form has that form's position.
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
