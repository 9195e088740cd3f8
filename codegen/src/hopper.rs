//! The kernels of sm_90a: which tiles a source holds, and which of them a call gets.
//!
//! A tile is some rows of A by some rows of B. One library holds several tiles and takes one for each call, from the
//! extents: [`CHOICES`] is written into the source as it stands here, and read there.

use std::fmt;

use fourfold_ir::BlockFormat;
use serde::Serialize;

use crate::defaults::Extents;

/// The target that these kernels are of.
pub const TARGET: &str = "sm_90a";

/// Rows of A at most of a tile that a kernel for few of them computes, warp by warp. Larger tiles are of warpgroups.
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
pub const TILES: [Tile; 7] = [
    few(1),
    few(8),
    few(16),
    Tile::new(64, 128),
    Tile::new(64, 256),
    Tile::new(128, 128),
    Tile::new(128, 256),
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
        if !self.is_few() && self.rows == 256 { TILE_K } else { 2 * TILE_K }
    }

    /// Whether there is a kernel of this tile for a format: that for one row of A wants scales that fp32 multiplies
    /// exactly.
    pub fn takes(self, format: BlockFormat) -> bool {
        takes(format) && (self.tokens > 1 || format == BlockFormat::NVFP4)
    }

    /// Whether a thread gets 32 columns of a row, as it must where something other than values is written.
    pub const fn has_wide_rows(self) -> bool {
        self.is_few() || self.rows == 256
    }

    /// The tile of as many rows of A whose threads get wide rows.
    const fn wide(self) -> Tile {
        if self.has_wide_rows() { self } else { Tile::new(self.tokens, 256) }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_few() { write!(f, "{}", self.tokens) } else { write!(f, "{}x{}", self.tokens, self.rows) }
    }
}

/// A bound that every extent meets.
pub const ANY: u32 = i32::MAX as u32;

/// Which tile a problem gets that exceeds none of these extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Rows of A at most.
    pub max_m: u32,
    /// Rows of B at most.
    pub max_n: u32,
    /// K at most.
    pub max_k: u32,
    /// Which tile; where a thread must have wide rows, the wide one of as many rows of A.
    pub tile: Tile,
    /// Blocks that share a tile, each with a part of K: 1, 2, 4 or 8, of which a call gets no more than its tile has use
    /// for. With 0 as many as the device has room for, and as leave each two steps along K.
    pub cluster: u32,
}

const fn up_to(max_m: u32, max_n: u32, tile: Tile) -> Choice {
    Choice { max_m, max_n, max_k: ANY, tile, cluster: 0 }
}

/// A kernel for few rows of A has these in shared memory, for all of K in eight blocks.
const fn few_up_to(max_m: u32, max_k: u32) -> Choice {
    Choice { max_m, max_n: ANY, max_k, tile: few(max_m), cluster: 0 }
}

/// The first line that a problem meets is its choice; the last is met by all.
///
/// Measured on an H200, over operands larger than its caches (`bench/gemm/NOTES.md`): 128 rows of A have tiles of 128 rows
/// of B up to the K where the better use of shared memory by 256 outweighs that more blocks share a tile.
pub const CHOICES: &[Choice] = &[
    few_up_to(1, 8 * 16384),
    few_up_to(8, 8 * 4096),
    few_up_to(16, 8 * 4096),
    up_to(64, ANY, Tile::new(64, 128)),
    up_to(128, 4096, Tile::new(64, 128)),
    Choice { max_k: 6144, ..up_to(128, ANY, Tile::new(128, 128)) },
    up_to(ANY, ANY, Tile::new(128, 256)),
];

/// What a kernel of sm_90a is built from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// What A and B are.
    pub format: BlockFormat,
    /// The tiles that the source holds: some of [`TILES`], the smallest first.
    pub variants: Vec<Tile>,
}

impl Configuration {
    /// A readable name: `sm90_x8_16_64x128_128x256`.
    pub fn name(&self) -> String {
        let variants: Vec<String> = self.variants.iter().map(Tile::to_string).collect();
        format!("sm90_x{}", variants.join("_"))
    }

    /// The largest tile: M, N and K.
    pub fn tile(&self) -> [u32; 3] {
        self.variants.last().map_or([0; 3], |tile| [tile.tokens, tile.rows, TILE_K])
    }

    /// Rows of A at most that a call may have; `None` where there is no bound. A kernel for few has all of them in a tile.
    pub fn most_rows(&self) -> Option<u32> {
        self.variants.last().filter(|tile| tile.is_few()).map(|tile| tile.tokens)
    }

    /// The matrix instruction of the largest tile: that of warpgroups, or of warps where all tiles are for few rows.
    pub fn opcode(&self) -> &'static str {
        if self.most_rows().is_some() { "HMMA.16816" } else { "HGMMA" }
    }

    /// The lines of the table whose tiles the source holds, with the position of the tile: of one that it holds only as
    /// the wide one of as many rows of A, that one's.
    pub fn choices(&self) -> impl Iterator<Item = (&'static Choice, usize)> + '_ {
        let position = |tile: Tile| self.variants.iter().position(|variant| *variant == tile);
        CHOICES.iter().filter_map(move |choice| {
            Some((choice, position(choice.tile).or_else(|| position(choice.tile.wide()))?))
        })
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.format, self.name())
    }
}

/// The formats that the kernel decodes.
pub fn takes(format: BlockFormat) -> bool {
    [BlockFormat::NVFP4, BlockFormat::MXFP4].contains(&format)
}

/// What a kernel for a problem is built from, and in one sentence why: with every tile that a call can get, of which
/// the extents are known that are fixed, and whether all that is written is values. `None` for a format that has no
/// kernels.
pub fn choose(format: BlockFormat, problem: Extents, only_values: bool) -> Option<(Configuration, String)> {
    if !takes(format) {
        return None;
    }
    let extents =
        |choice: &Choice| [(problem.m, choice.max_m), (problem.n, choice.max_n), (problem.k, choice.max_k)];
    let within = |extent: u64, most: u32| extent <= u64::from(most) || most == ANY;
    let mut variants = Vec::new();
    for choice in CHOICES.iter().filter(|choice| choice.tile.takes(format)) {
        let mut extents = extents(choice).into_iter();
        if extents.clone().any(|(extent, most)| extent.is_some_and(|extent| !within(extent, most))) {
            continue;
        }
        variants.push(if only_values { choice.tile } else { choice.tile.wide() });
        if extents.all(|(extent, most)| extent.map_or(most == ANY, |extent| within(extent, most))) {
            break;
        }
    }
    variants.sort_unstable();
    variants.dedup();
    let why = match (problem.m, &variants[..]) {
        (Some(m), [tile]) => format!("M = {m} gets tiles of {} rows of A by {} of B", tile.tokens, tile.rows),
        (Some(m), _) => format!("M = {m}, and which tile it gets is known with N and K"),
        (None, _) => "M is unknown, so each call gets one of several tiles".to_owned(),
    };
    Some((Configuration { format, variants }, why))
}

#[cfg(test)]
mod tests {
    use fourfold_ir::ElementType;

    use super::*;

    const UNKNOWN: Extents = Extents { m: None, n: None, k: None };

    #[test]
    fn the_table_is_met_by_every_problem_and_names_tiles_and_clusters_that_exist() {
        let last = CHOICES.last().expect("a line");
        assert_eq!((last.max_m, last.max_n, last.max_k), (ANY, ANY, ANY));
        for choice in CHOICES {
            assert!(TILES.contains(&choice.tile) && TILES.contains(&choice.tile.wide()), "{choice:?}");
            assert!([0, 1, 2, 4, 8].contains(&choice.cluster), "{choice:?}");
            assert!(choice.max_m <= ANY && choice.max_n <= ANY && choice.max_k <= ANY, "{choice:?}");
        }
    }

    #[test]
    fn a_source_holds_the_tiles_that_a_call_can_get() {
        for (format, only_values) in
            [(BlockFormat::NVFP4, true), (BlockFormat::MXFP4, true), (BlockFormat::NVFP4, false)]
        {
            let of = |choice: &Choice| if only_values { choice.tile } else { choice.tile.wide() };
            let choose = |problem| choose(format, problem, only_values).expect("a format of the target");
            let (all, why) = choose(UNKNOWN);
            let lines: Vec<&Choice> = CHOICES.iter().filter(|choice| choice.tile.takes(format)).collect();
            let mut tiles: Vec<Tile> = lines.iter().copied().map(of).collect();
            tiles.sort_unstable();
            tiles.dedup();
            assert_eq!((all.format, &all.variants), (format, &tiles));
            assert!(all.name().starts_with("sm90_x") && !why.is_empty());
            assert_eq!(all.choices().count(), lines.len());
            assert!(only_values || all.variants.iter().all(|tile| tile.has_wide_rows()), "{all}");
            // Whatever the table says, a call is served by what its own extents, or fewer of them, have built.
            for m in [0, 1, 8, 9, 16, 17, 64, 65, 128, 4096, u64::from(ANY), u64::MAX] {
                let met = lines.iter().find(|choice| m <= u64::from(choice.max_m) || choice.max_m == ANY);
                let (fixed, _) = choose(Extents { m: Some(m), ..UNKNOWN });
                assert!(fixed.variants.contains(&of(met.expect("a line"))), "{m}: {fixed}");
                assert!(fixed.variants.iter().all(|tile| all.variants.contains(tile)), "{m}: {fixed}");
                let (known, why) = choose(Extents { m: Some(m), n: Some(4096), k: Some(4096) });
                assert_eq!(known.variants.len(), 1, "{m}: {known}");
                assert!(!why.is_empty() && !why.ends_with('.'), "{why}");
            }
        }
        let mxfp8 = BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 };
        assert_eq!(choose(mxfp8, UNKNOWN, true), None);
    }
}
