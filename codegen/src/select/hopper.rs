//! Selection of Hopper tiles for a source, and of the table lines written into it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use fourfold_ir::BlockFormat;

use super::tables::{default_tables, groups_tables};
use crate::cutlass::CutlassVersion;
use crate::dispatch::{Bounds, Condition, Kernel, Table};
use crate::extents::Extents;
use crate::groups::Groups;
use crate::hopper::{ANY, Choice, Configuration, TARGET, takes};
use crate::targets::HOPPER_GROUPS;

/// The lines of the default table of a format (`select/sm90.toml`); empty for formats without kernels. The first whose
/// bounds hold applies; the last always does.
pub fn choices(format: BlockFormat) -> &'static [Choice] {
    static LINES: LazyLock<HashMap<BlockFormat, Vec<Choice>>> = LazyLock::new(|| {
        let tables = default_tables().tables.iter();
        let tables = tables.filter(|table| table.targets.iter().any(|target| target == TARGET));
        let of_format = |table: &'static Table| {
            table.formats.iter().map(move |format| (*format, default_lines(table, *format)))
        };
        tables.flat_map(of_format).collect()
    });
    LINES.get(&format).map_or(&[], Vec::as_slice)
}

fn default_lines(table: &Table, format: BlockFormat) -> Vec<Choice> {
    lines(table, format, Extents { l: None, m: None, n: None, k: None }, CutlassVersion::PINNED).0
}

/// The table lines that calls of a problem can reach, and the reason if a kernel is skipped. A condition on
/// an unknown extent is checked per call if it is an upper bound; otherwise it does not hold.
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
                passed_over.get_or_insert_with(|| format!("the table's {kernel} is skipped: {why}"));
                continue;
            }
        }
        let Kernel::Hopper(shared) = kernel else { continue };
        let tile = shared.tile();
        let [tile_m, tile_k] = if tile.is_small_m() { [tile.m, tile.max_k(format)] } else { [ANY; 2] };
        let (max_m, max_k) = (max_m.min(tile_m), max_k.min(tile_k));
        lines.push(Choice { max_m, max_n, max_k, tile, cluster: shared.cluster });
    }
    (lines, passed_over)
}

/// The upper bounds under which calls of a problem meet a condition; `None` if none can, or if bounds cannot
/// express it.
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

/// Selects the configuration for a problem, and the reason as one sentence. The configuration holds every
/// tile that a call can select, given the fixed extents, and whether all outputs are values. `None` for
/// formats without kernels.
pub fn choose(format: BlockFormat, problem: Extents, only_values: bool) -> Option<(Configuration, String)> {
    choose_of(Cow::Borrowed(choices(format)), format, problem, only_values)
}

/// Selects as [`choose`] does, by the lines of a table. Lines with invalid kernels are skipped. The default
/// lines follow unless a line takes all problems.
pub(crate) fn choose_by(
    table: &Table,
    format: BlockFormat,
    problem: Extents,
    only_values: bool,
    cutlass: CutlassVersion,
) -> Option<(Configuration, String)> {
    let (mut lines, passed_over) = lines(table, format, problem, cutlass);
    if lines.last().is_none_or(|line| [line.max_m, line.max_n, line.max_k] != [ANY; 3]) {
        lines.extend_from_slice(choices(format));
    }
    let (configuration, why) = choose_of(Cow::Owned(lines), format, problem, only_values)?;
    let pick = table.pick(problem, cutlass);
    let said = match (problem.m, passed_over) {
        (_, Some(passed_over)) => passed_over,
        (Some(_), None) => pick.why,
        (None, None) => "by the rules of the table".to_owned(),
    };
    Some((configuration, format!("{why}; {said}")))
}

/// The lines of a table of `groups.toml`. The bound on M is on the mean rows of a group.
fn choices_of_groups(table: &Table) -> Vec<Choice> {
    let rules = table.rules.iter().map(|rule| (rule.when.m.and_then(|m| m.max), rule.kernel));
    let lines = rules.chain([(None, table.default.kernel)]).filter_map(|(most, kernel)| {
        let Kernel::Hopper(shared) = kernel else { return None };
        let max_m = most.and_then(|most| u32::try_from(most).ok()).unwrap_or(ANY);
        Some(Choice { max_m, max_n: ANY, max_k: ANY, tile: shared.tile(), cluster: shared.cluster })
    });
    lines.collect()
}

/// Selects the configuration for groups of rows, and the reason as one sentence. `None` for formats without kernels.
pub fn choose_of_groups(
    format: BlockFormat,
    groups: Groups,
    problem: Extents,
    count: Option<u64>,
) -> Option<(Configuration, String)> {
    if !HOPPER_GROUPS.contains(&format) {
        return None;
    }
    // Groups are assumed to use a quarter of the rows of their matrices.
    let parts = if groups.masked { 4 } else { 1 };
    let mean = problem.m.zip(count).map(|(m, count)| m.div_ceil(parts * count.max(1)));
    let of_mean = Extents { m: mean, ..problem };
    let table = groups_tables().find(TARGET, format)?;
    let (configuration, _) = choose_of(Cow::Owned(choices_of_groups(table)), format, of_mean, true)?;
    let why = match mean {
        Some(mean) => {
            let expected = if groups.masked { "expected " } else { "" };
            let why = table.pick(of_mean, CutlassVersion::PINNED).why;
            format!("{mean} {expected}rows per group: {why}")
        }
        None => "M is unknown: the mean rows of a group select its tile".to_owned(),
    };
    Some((Configuration { groups: Some(groups), ..configuration }, why))
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
        (Some(m), [tile]) => format!("M = {m}: {}x{} tiles", tile.m, tile.n),
        (Some(m), _) => format!("M = {m}: N and K of each call select its tile"),
        (None, _) => "M is unknown: the extents of each call select its tile".to_owned(),
    };
    Some((Configuration { format, groups: None, linear_sfa: false, variants, table: lines }, why))
}

#[cfg(test)]
mod tests {
    use fourfold_ir::ElementType;

    use super::*;
    use crate::dispatch::Tables;
    use crate::hopper::{ForcedError, TILES, Tile};

    const fn small_m(m: u32) -> Tile {
        Tile::new(m, 128)
    }

    const W4A8: BlockFormat = BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 };
    const FP8: BlockFormat = BlockFormat { b: ElementType::F8E5M2, ..W4A8 };
    const A4W8: BlockFormat = BlockFormat { b: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 };
    const W8A16: BlockFormat = BlockFormat { a: ElementType::BF16, ..A4W8 };
    const F16_MXFP4: BlockFormat = BlockFormat::MXFP4.weight_only(ElementType::F16);
    const W4A16: BlockFormat = BlockFormat::NVFP4.weight_only(ElementType::BF16);
    const UNKNOWN: Extents = Extents { l: None, m: None, n: None, k: None };

    #[test]
    fn the_table_is_met_by_every_problem_and_names_tiles_and_clusters_that_exist() {
        assert!(TILES.iter().all(|tile| TILES.contains(&tile.wide()) && tile.wide().has_wide_rows()));
        for format in [BlockFormat::NVFP4, W4A16, W4A8, FP8, A4W8, W8A16, F16_MXFP4] {
            let last = choices(format).last().expect("a line");
            assert_eq!((last.max_m, last.max_n, last.max_k), (ANY, ANY, ANY));
            assert!(last.tile.takes(format) && last.tile.wide().takes(format), "{last:?}");
            for choice in choices(format) {
                assert!(TILES.contains(&choice.tile) && TILES.contains(&choice.tile.wide()), "{choice:?}");
                assert!([0, 1, 2, 4, 8].contains(&choice.cluster), "{choice:?}");
                assert!(choice.max_m <= ANY && choice.max_n <= ANY && choice.max_k <= ANY, "{choice:?}");
            }
        }
    }

    #[test]
    fn a_source_holds_the_tiles_that_a_call_can_get() {
        for (format, only_values) in
            [BlockFormat::NVFP4, BlockFormat::MXFP4, W4A16, W4A8, FP8, A4W8, W8A16, F16_MXFP4]
                .into_iter()
                .flat_map(|it| [(it, true), (it, false)])
        {
            let of = |choice: &Choice| if only_values { choice.tile } else { choice.tile.wide() };
            let choose = |problem| choose(format, problem, only_values).expect("a format of the target");
            let (all, why) = choose(UNKNOWN);
            let lines: Vec<&Choice> =
                choices(format).iter().filter(|choice| choice.tile.takes(format)).collect();
            let mut tiles: Vec<Tile> = lines.iter().copied().map(of).collect();
            tiles.sort_unstable();
            tiles.dedup();
            assert_eq!((all.format, &all.variants), (format, &tiles));
            assert!(all.name().starts_with("sm90_x") && !why.is_empty());
            assert_eq!(all.choices().count(), lines.len());
            assert!(only_values || all.variants.iter().all(|tile| tile.has_wide_rows()), "{all}");
            // For every extent, the tile of a call is also in the sources for known extents.
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
        let fp6 = BlockFormat { b: ElementType::F6E2M3FN, ..BlockFormat::MXFP4 };
        assert_eq!(choose(fp6, UNKNOWN, true), None);
    }

    #[test]
    fn the_mean_rows_of_a_group_select_its_tile() {
        let choose = |format, masked, m, count| {
            let groups = Groups { has_alphas: false, masked, blocked: false };
            let problem = Extents { m, n: Some(4096), k: Some(7168), ..UNKNOWN };
            choose_of_groups(format, groups, problem, count).expect("a format of groups")
        };
        for format in HOPPER_GROUPS.iter().copied() {
            let largest = if format.is_weight_only() { 256 } else { 128 };
            let (all, why) = choose(format, false, None, Some(8));
            assert_eq!((all.variants.len(), all.choices().count()), (5, 5), "{all}");
            assert_eq!(why, "M is unknown: the mean rows of a group select its tile");
            for (m, tile) in [(0, 16), (1, 16), (128, 16), (129, 32), (257, 64), (1024, 128), (4096, largest)]
            {
                let (one, why) = choose(format, false, Some(m), Some(8));
                assert_eq!(one.variants.iter().map(|tile| tile.m).collect::<Vec<_>>(), [tile], "{m}");
                assert!(why.starts_with(&format!("{} rows per group: {tile}x", m.div_ceil(8))), "{why}");
            }
        }
        let (masked, why) = choose(BlockFormat::NVFP4, true, Some(8 * 64), Some(8));
        assert_eq!((masked.variants[0].m, masked.groups.is_some_and(|groups| groups.masked)), (16, true));
        assert!(why.starts_with("16 expected rows per group: 16x128 tiles; "), "{why}");
    }

    #[test]
    fn a_kernel_is_forced_to_a_tile_and_to_how_many_blocks_share_it() {
        for format in [BlockFormat::NVFP4, BlockFormat::MXFP4, W4A16, W4A8, FP8] {
            for (tile, cluster) in
                TILES.into_iter().flat_map(|tile| (0..=9).map(move |cluster| (tile, cluster)))
            {
                let forced = Configuration::forced(format, tile, cluster);
                let can_share = [0, 1, 2, 4, 8].contains(&cluster) && cluster <= tile.max_cluster();
                match forced {
                    Err(ForcedError::NoTile { .. }) => assert!(!tile.takes(format), "{tile}"),
                    Err(ForcedError::Cluster { .. }) => assert!(!can_share, "{tile} {cluster}"),
                    Ok(forced) => {
                        assert!(tile.takes(format) && can_share, "{tile} {cluster}");
                        let lines: Vec<_> = forced.choices().collect();
                        let max_m = if tile.is_small_m() { tile.m } else { ANY };
                        assert_eq!(lines, [(&Choice { max_m, max_n: ANY, max_k: ANY, tile, cluster }, 0)]);
                        assert_eq!(forced.max_m(), tile.is_small_m().then_some(tile.m));
                        assert_eq!(forced.name().contains("_c"), cluster > 0, "{forced}");
                    }
                }
            }
        }
        let other = Configuration::forced(BlockFormat::MXFP4, Tile::new(32, 128), 1).expect_err("no tile");
        let text = "there is no 32x128 tile for mxfp4; its tiles are 8x128, 16x128, \
                    64x128, 64x256, 128x64, 128x128, 128x256, 256x128";
        assert_eq!(other.to_string(), text);
        let eight = Configuration::forced(BlockFormat::NVFP4, Tile::new(64, 128), 8).expect_err("too many");
        let text = "a cluster of 8 cannot share a 64x128 tile: use 1, 2 or 4, or 0 to let each call decide";
        assert_eq!(eight.to_string(), text);
    }

    /// A table of rules, each a condition and a kernel.
    fn table(rules: &[(&str, &str)], default: &str) -> Table {
        let head = "schema = 1\n[[table]]\ntargets = [\"sm_90a\"]\nformats = [\"nvfp4\", \"mxfp4\"]\n";
        let rule = |(when, kernel): &(&str, &str)| {
            format!("[[table.rule]]\nwhen = {when}\nkernel = {kernel}\nwhy = \"so\"\n")
        };
        let rules: String = rules.iter().map(rule).collect();
        let text = format!("{head}{rules}[table.default]\nkernel = {default}\nwhy = \"the rest\"\n");
        Tables::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}")).tables.remove(0)
    }

    /// Lines as the largest M, N and K (0 if unbounded), the tile's M and N, and the cluster size.
    fn lines_of(configuration: &Configuration) -> Vec<[u32; 6]> {
        let most = |bound| if bound == ANY { 0 } else { bound };
        let line =
            |it: &Choice| [most(it.max_m), most(it.max_n), most(it.max_k), it.tile.m, it.tile.n, it.cluster];
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
        // The tiles bound K for small M. A minimum of M cannot be checked per call, and a line after an
        // unbounded one is unreachable.
        let [small_m, middle, rest] =
            [[8, 0, 32768, 8, 128, 4], [100, 512, 0, 64, 256, 2], [0, 0, 0, 64, 128, 1]];
        assert_eq!(lines_of(&all), [small_m, middle, rest]);
        assert_eq!(why, "M is unknown: the extents of each call select its tile; by the rules of the table");
        let (large, why) = choose(Extents { m: Some(4096), ..UNKNOWN }, true);
        assert_eq!(large.variants, [Tile::new(128, 128)]);
        assert_eq!(why, "M = 4096: 128x128 tiles; so");
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
        assert_eq!(of(BlockFormat::NVFP4, problem).0.variants, [small_m(1)]);
        let (configuration, why) = of(BlockFormat::MXFP4, problem);
        assert_eq!(configuration.variants, [small_m(8)], "by the default's lines");
        let start = "M = 1: 8x128 tiles; the table's { tile = [1, 128] } is skipped: ";
        assert!(why.starts_with(start), "{why}");
        let (all, _) = of(BlockFormat::NVFP4, UNKNOWN);
        let last = all.choices().last().expect("a line").0;
        assert_eq!((last.max_m, last.max_n, last.max_k), (ANY, ANY, ANY));
    }

    #[test]
    fn the_default_table_as_ones_own_gives_the_same_tiles_and_lines() {
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
                let table = default_tables().find(TARGET, format).expect("a table");
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
