//! The kernels of sm_90a: which tiles a source holds, and which of them a call gets.
//!
//! A tile is some rows of A by some rows of B. One library holds several tiles and takes one for each call, from the
//! extents: [`CHOICES`], or the lines of another table, are written into the source, and read there.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use fourfold_ir::BlockFormat;
use serde::Serialize;

use crate::configuration::CutlassVersion;
use crate::defaults::Extents;
use crate::dispatch::{Bounds, Condition, Kernel, Table, default_tables};

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

/// A bound that every extent meets.
pub const ANY: u32 = i32::MAX as u32;

/// Which tile a problem gets that exceeds none of these extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// Rows of A at most.
    pub max_m: u32,
    /// Rows of B at most.
    pub max_n: u32,
    /// K at most.
    pub max_k: u32,
    /// Which tile; where a thread must have wide rows, the [`wide`](Tile::wide) one in its place.
    pub tile: Tile,
    /// Blocks that share a tile, each with a part of K: 1, 2, 4 or 8, of which a call gets no more than there are steps
    /// along K, and with few rows of A no fewer than these need room. With 0 as many as the device has room for, and as
    /// leave each two steps along K; of a tile of bytes as many as leave each the least to do.
    pub cluster: u32,
}

/// The lines of the default table (`dispatch/sm90.toml`). The first that a problem meets is its choice; the last is met by
/// all.
pub static CHOICES: LazyLock<Vec<Choice>> = LazyLock::new(|| {
    let table = default_tables().find(TARGET, BlockFormat::NVFP4).expect("the target has a default table");
    lines(table, BlockFormat::NVFP4, Extents { l: None, m: None, n: None, k: None }, CutlassVersion::PINNED).0
});

/// The lines of a table that calls of a problem can meet, and why a kernel of it is passed over, where one is. A condition
/// on an extent that is not known is asked at each call where it is an upper bound, and else does not hold.
fn lines(
    table: &Table,
    format: BlockFormat,
    problem: Extents,
    cutlass: CutlassVersion,
) -> (Vec<Choice>, Option<String>) {
    let (mut lines, mut passed_over) = (Vec::new(), None);
    let always = Condition::default();
    let rules = table.rules.iter().map(|rule| (&rule.when, rule.kernel));
    for (when, kernel) in rules.chain([(&always, table.default.kernel)]) {
        let Some([max_m, max_n, max_k]) = upper_bounds(when, problem, cutlass) else { continue };
        match kernel.valid(TARGET, format, cutlass) {
            Ok(()) => {}
            Err(why) => {
                passed_over.get_or_insert_with(|| format!("the table's {kernel} is passed over: {why}"));
                continue;
            }
        }
        let Kernel::Hopper(shared) = kernel else { continue };
        let tile = shared.tile();
        let [most_m, most_k] = if tile.is_few() { [tile.tokens, tile.most_k()] } else { [ANY; 2] };
        let (max_m, max_k) = (max_m.min(most_m), max_k.min(most_k));
        lines.push(Choice { max_m, max_n, max_k, tile, cluster: shared.cluster });
    }
    (lines, passed_over)
}

/// What calls of a problem must not exceed to meet a condition; `None` where none meets it, or none can be told to.
fn upper_bounds(when: &Condition, problem: Extents, cutlass: CutlassVersion) -> Option<[u32; 3]> {
    let Condition { tiles, cutlass: least, .. } = *when;
    let only = Condition { tiles, cutlass: least, ..Condition::default() };
    let is_met = only.holds(problem, cutlass)
        && when.extents(problem).into_iter().all(|(bounds, extent)| match (bounds, extent) {
            (Some(bounds), Some(extent)) => bounds.hold(extent),
            (Some(it), None) => it.min.unwrap_or(0) <= 1 && it.multiple_of.unwrap_or(1) == 1,
            (None, _) => true,
        });
    let most = |(bounds, _): (Option<Bounds>, _)| {
        bounds.and_then(|it| it.max).and_then(|max| u32::try_from(max).ok()).map_or(ANY, |max| max.min(ANY))
    };
    is_met.then(|| when.extents(problem).map(most))
}

/// What a kernel of sm_90a is built from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// What A and B are.
    pub format: BlockFormat,
    /// The tiles that the source holds: some of [`TILES`], the smallest first.
    pub variants: Vec<Tile>,
    /// The table of which the source gets the lines that its tiles are for: [`CHOICES`], unless another is wanted.
    pub table: Cow<'static, [Choice]>,
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

impl Configuration {
    /// The kernel of one tile for all calls that it takes: of a tile for few rows of A those with no more of them.
    /// `cluster` blocks share a tile wherever K is long enough, as [`Choice::cluster`] says; with 0 each call decides.
    /// Where something other than values is written, the tile must be a [`wide`](Tile::wide) one.
    ///
    /// # Errors
    /// When there is no such kernel.
    pub fn forced(format: BlockFormat, tile: Tile, cluster: u32) -> Result<Configuration, ForcedError> {
        check(format, tile, cluster)?;
        let max_m = if tile.is_few() { tile.tokens } else { ANY };
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
        self.variants.last().map_or([0; 3], |tile| [tile.tokens, tile.rows, TILE_K])
    }

    /// Rows of A at most that a call may have; `None` where there is no bound. A kernel for few has all of them in a tile.
    pub fn most_rows(&self) -> Option<u32> {
        self.variants.last().filter(|tile| tile.is_few()).map(|tile| tile.tokens)
    }

    /// The matrix instruction of the largest tile: that of warpgroups, or of warps where all tiles are for few rows, or that of
    /// bytes.
    pub fn opcode(&self) -> &'static str {
        match self.variants.last() {
            Some(tile) if tile.is_of_bytes() => "QGMMA",
            Some(tile) if tile.is_few() => "HMMA.16816",
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

/// The formats that the kernel decodes.
pub fn takes(format: BlockFormat) -> bool {
    [BlockFormat::NVFP4, BlockFormat::MXFP4].contains(&format)
}

/// What a kernel for a problem is built from, and in one sentence why: with every tile that a call can get, of which
/// the extents are known that are fixed, and whether all that is written is values. `None` for a format that has no
/// kernels.
pub fn choose(format: BlockFormat, problem: Extents, only_values: bool) -> Option<(Configuration, String)> {
    choose_of(Cow::Borrowed(&CHOICES), format, problem, only_values)
}

/// [`choose`] by the lines of a table. What it says of kernels that do not exist, or do not take what a rule gives them, is
/// passed over.
pub(crate) fn choose_by(
    table: &Table,
    format: BlockFormat,
    problem: Extents,
    only_values: bool,
    cutlass: CutlassVersion,
) -> Option<(Configuration, String)> {
    let (mut lines, passed_over) = lines(table, format, problem, cutlass);
    if lines.last().is_none_or(|line| [line.max_m, line.max_n, line.max_k] != [ANY; 3]) {
        lines.extend_from_slice(&CHOICES);
    }
    let (configuration, why) = choose_of(Cow::Owned(lines), format, problem, only_values)?;
    let pick = table.pick(problem, cutlass);
    let said = match (problem.m, passed_over) {
        (_, Some(passed_over)) => passed_over,
        (Some(_), None) => pick.why,
        (None, None) => "by the lines of the table".to_owned(),
    };
    Some((configuration, format!("{why}; {said}")))
}

fn choose_of(
    lines: Cow<'static, [Choice]>,
    format: BlockFormat,
    problem: Extents,
    only_values: bool,
) -> Option<(Configuration, String)> {
    if !takes(format) {
        return None;
    }
    let extents =
        |choice: &Choice| [(problem.m, choice.max_m), (problem.n, choice.max_n), (problem.k, choice.max_k)];
    let within = |extent: u64, most: u32| extent <= u64::from(most) || most == ANY;
    let mut variants = Vec::new();
    for choice in lines.iter().filter(|choice| choice.tile.takes(format)) {
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
    Some((Configuration { format, variants, table: lines }, why))
}

#[cfg(test)]
mod tests {
    use fourfold_ir::ElementType;

    use super::*;
    use crate::dispatch::Tables;

    const fn few(tokens: u32) -> Tile {
        Tile::new(tokens, 128)
    }

    const UNKNOWN: Extents = Extents { l: None, m: None, n: None, k: None };

    #[test]
    fn the_table_is_met_by_every_problem_and_names_tiles_and_clusters_that_exist() {
        assert!(TILES.iter().all(|tile| TILES.contains(&tile.wide()) && tile.wide().has_wide_rows()));
        let last = CHOICES.last().expect("a line");
        assert_eq!((last.max_m, last.max_n, last.max_k), (ANY, ANY, ANY));
        for choice in CHOICES.iter() {
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
                let (known, why) = choose(Extents { l: Some(1), m: Some(m), n: Some(4096), k: Some(4096) });
                assert_eq!(known.variants.len(), 1, "{m}: {known}");
                assert!(!why.is_empty() && !why.ends_with('.'), "{why}");
            }
        }
        let mxfp8 = BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 };
        assert_eq!(choose(mxfp8, UNKNOWN, true), None);
    }

    #[test]
    fn a_kernel_is_forced_to_a_tile_and_to_how_many_blocks_share_it() {
        for format in [BlockFormat::NVFP4, BlockFormat::MXFP4] {
            for (tile, cluster) in
                TILES.into_iter().flat_map(|tile| (0..=9).map(move |cluster| (tile, cluster)))
            {
                let forced = Configuration::forced(format, tile, cluster);
                let can_share = [0, 1, 2, 4, 8].contains(&cluster) && cluster <= tile.most_cluster();
                match forced {
                    Err(ForcedError::NoTile { .. }) => assert!(!tile.takes(format), "{tile}"),
                    Err(ForcedError::Cluster { .. }) => assert!(!can_share, "{tile} {cluster}"),
                    Ok(forced) => {
                        assert!(tile.takes(format) && can_share, "{tile} {cluster}");
                        let lines: Vec<_> = forced.choices().collect();
                        let max_m = if tile.is_few() { tile.tokens } else { ANY };
                        assert_eq!(lines, [(&Choice { max_m, max_n: ANY, max_k: ANY, tile, cluster }, 0)]);
                        assert_eq!(forced.most_rows(), tile.is_few().then_some(tile.tokens));
                        assert_eq!(forced.name().contains("_c"), cluster > 0, "{forced}");
                    }
                }
            }
        }
        let other = Configuration::forced(BlockFormat::MXFP4, Tile::new(32, 128), 1).expect_err("no tile");
        let text = "there is no tile of 32 rows of A by 128 of B for mxfp4; those that there are: 8x128, 16x128, \
                    64x128, 64x256, 128x64, 128x128, 128x256, 256x128";
        assert_eq!(other.to_string(), text);
        let eight = Configuration::forced(BlockFormat::NVFP4, Tile::new(64, 128), 8).expect_err("too many");
        let text = "8 blocks cannot share a tile 64x128: 1, 2 or 4 can, and 0 leaves it to each call";
        assert_eq!(eight.to_string(), text);
    }

    /// Of rules as what they demand and the kernel.
    fn table(rules: &[(&str, &str)], default: &str) -> Table {
        let head = "schema = 1\n[[table]]\ntargets = [\"sm_90a\"]\nformats = [\"nvfp4\", \"mxfp4\"]\n";
        let rule = |(when, kernel): &(&str, &str)| {
            format!("[[table.rule]]\nwhen = {when}\nkernel = {kernel}\nwhy = \"so\"\n")
        };
        let rules: String = rules.iter().map(rule).collect();
        let text = format!("{head}{rules}[table.default]\nkernel = {default}\nwhy = \"the rest\"\n");
        Tables::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}")).tables.remove(0)
    }

    /// Lines as M, N and K at most, rows of A and B, and blocks; of no bound 0.
    fn lines_of(configuration: &Configuration) -> Vec<[u32; 6]> {
        let most = |bound| if bound == ANY { 0 } else { bound };
        let line = |it: &Choice| {
            [most(it.max_m), most(it.max_n), most(it.max_k), it.tile.tokens, it.tile.rows, it.cluster]
        };
        configuration.choices().map(|(choice, _)| line(choice)).collect()
    }

    #[test]
    fn a_table_of_ones_own_is_what_the_source_has() {
        let rules = [
            ("{ m = { max = 8 } }", "{ tile = [8, 128], cluster = 4 }"),
            ("{ m = { max = 100 }, n = { max = 512 } }", "{ tile = [64, 256], cluster = 2 }"),
            ("{ m = { min = 2000 } }", "{ tile = [128, 128] }"),
            ("{ m = {}, n = {}, k = {} }", "{ tile = [64, 128], cluster = 1 }"),
        ];
        let table = table(&rules, "{ tile = [128, 256] }");
        let choose = |problem, only_values| {
            choose_by(&table, BlockFormat::NVFP4, problem, only_values, CutlassVersion::PINNED)
                .expect("a format")
        };
        let (all, why) = choose(UNKNOWN, true);
        // K of few rows is what these take. What is asked of the least M cannot be asked at a call, and what follows no
        // bound is not reached.
        let [few, middle, rest] =
            [[8, 0, 32768, 8, 128, 4], [100, 512, 0, 64, 256, 2], [0, 0, 0, 64, 128, 1]];
        assert_eq!(lines_of(&all), [few, middle, rest]);
        assert_eq!(why, "M is unknown, so each call gets one of several tiles; by the lines of the table");
        let (large, why) = choose(Extents { m: Some(4096), ..UNKNOWN }, true);
        assert_eq!(large.variants, [Tile::new(128, 128)]);
        assert_eq!(why, "M = 4096 gets tiles of 128 rows of A by 128 of B; so");
        let (wide, _) = choose(Extents { m: Some(4096), ..UNKNOWN }, false);
        assert_eq!(wide.variants, [Tile::new(128, 256)], "what is not a value is written by wide rows");
        let known = Extents { l: Some(1), m: Some(50), n: Some(512), k: Some(4096) };
        let (one, _) = choose(known, true);
        assert_eq!(one.variants, [Tile::new(64, 256)]);
        assert_eq!(lines_of(&one)[0], middle);
        let too_many = Extents { l: Some(1), m: Some(4), n: Some(8192), k: Some(65536) };
        assert_eq!(lines_of(&choose(too_many, true).0), [rest], "its K is beyond eight blocks");
    }

    #[test]
    fn what_a_table_says_of_kernels_that_there_are_not_is_passed_over() {
        let table = table(&[("{ m = { max = 1 } }", "{ tile = [1, 128] }")], "{ tile = [96, 128] }");
        let problem = Extents { l: Some(1), m: Some(1), n: Some(4096), k: Some(4096) };
        let of = |format, problem| {
            choose_by(&table, format, problem, true, CutlassVersion::PINNED).expect("a format of the target")
        };
        assert_eq!(of(BlockFormat::NVFP4, problem).0.variants, [few(1)]);
        let (configuration, why) = of(BlockFormat::MXFP4, problem);
        assert_eq!(configuration.variants, [few(8)], "by the default's lines");
        let start =
            "M = 1 gets tiles of 8 rows of A by 128 of B; the table's { tile = [1, 128] } is passed over: ";
        assert!(why.starts_with(start), "{why}");
        let (all, _) = of(BlockFormat::NVFP4, UNKNOWN);
        let last = all.choices().last().expect("a line").0;
        assert_eq!((last.max_m, last.max_n, last.max_k), (ANY, ANY, ANY));
    }

    #[test]
    fn the_default_table_as_ones_own_gives_the_same_tiles_and_lines() {
        let table = default_tables().find(TARGET, BlockFormat::NVFP4).expect("a table");
        let extents = [
            None,
            Some(1),
            Some(8),
            Some(16),
            Some(17),
            Some(64),
            Some(65),
            Some(128),
            Some(4097),
            Some(40_000),
        ];
        for (m, n, k) in extents
            .into_iter()
            .flat_map(|m| extents.into_iter().flat_map(move |n| extents.into_iter().map(move |k| (m, n, k))))
        {
            for (format, only_values) in [(BlockFormat::NVFP4, true), (BlockFormat::MXFP4, false)] {
                let problem = Extents { l: Some(1), m, n, k };
                let (own, _) =
                    choose_by(table, format, problem, only_values, CutlassVersion::PINNED).expect("one");
                let (usual, _) = choose(format, problem, only_values).expect("one");
                assert_eq!(own.variants, usual.variants, "{problem:?}");
                let met = |configuration: &Configuration| -> Vec<Choice> {
                    let meets =
                        |extent: Option<u64>, most: u32| extent.is_none_or(|it| it <= u64::from(most));
                    let lines = configuration.choices().map(|(choice, _)| *choice);
                    lines
                        .filter(|it| meets(m, it.max_m) && meets(n, it.max_n) && meets(k, it.max_k))
                        .collect()
                };
                assert_eq!(met(&own), met(&usual), "{problem:?}");
            }
        }
    }
}
