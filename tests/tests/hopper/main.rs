//! Simulates sm_90a kernels on the host, from the text of a generated source. All threads of a cluster run, and
//! instructions without a C++ equivalent are replaced. If sums are exact, results equal the interpreter's bit for bit.
//!
//! Only a GPU can show that instructions behave as simulated here, and that memory accesses which no barrier orders
//! are ordered.

mod decoding;
mod faults;
mod groups;
mod masked;
mod padded;
mod programs;
mod simulation;

use std::collections::BTreeSet;

use fourfold::codegen::hopper::{SMALL_M, Tile};
use fourfold::ir::ElementType;
use fourfold_tests::random::Random;

use self::programs::{LINEAR_PROGRAMS, PAIR_PROGRAMS, PROGRAMS, Program, WEIGHT_ONLY_PROGRAMS};
use self::simulation::{Case, Launch};

/// The number of random cases.
const RANDOM: usize = 12;

/// Returns extents at the edges of tiles, of scales and of K, for every tile and every cluster size.
fn cases(program: &Program) -> Vec<Case> {
    let mut cases = vec![
        // Small M.
        [1, 1, 32, 32, 132],
        [3, 1, 160, 288, 132],
        [1, 1, 288, 1056, 132],
        [1, 1, 96, 2208, 132],
        [1, 1, 64, 4224, 132],
        [1, 1, 416, 8352, 1],
        [1, 1, 64, 4224, 4],
        [1, 1, 64, 14336, 132],
        [1, 2, 288, 1056, 132],
        [3, 2, 160, 288, 5],
        [2, 5, 160, 96, 132],
        [1, 8, 288, 160, 132],
        [1, 3, 64, 512, 132],
        [1, 8, 128, 1024, 1],
        [1, 6, 64, 1152, 132],
        [1, 7, 160, 2048, 132],
        [1, 8, 288, 5120, 1],
        [1, 5, 64, 8352, 1],
        [1, 9, 96, 480, 132],
        [3, 16, 160, 1056, 132],
        [1, 12, 64, 2208, 132],
        [1, 5, 64, 4224, 132],
        [1, 12, 64, 4224, 132],
        [1, 11, 32, 96, 132],
        [1, 16, 288, 2208, 1],
        [1, 10, 64, 4256, 1],
        // Warps keep A in registers: one CTA, and two that share K; with idle warps.
        [1, 7, 160, 4096, 2],
        [3, 16, 96, 3488, 1],
        [1, 16, 256, 8160, 2],
        [1, 9, 32, 6784, 2],
        [2, 13, 96, 6784, 2],
        // Tiled: several tiles per CTA, and clusters that share a tile.
        [1, 17, 32, 32, 132],
        [2, 64, 288, 96, 132],
        [1, 40, 416, 256, 1],
        [1, 64, 544, 416, 2],
        [1, 33, 96, 512, 132],
        [1, 50, 160, 1024, 8],
        [1, 64, 256, 2112, 132],
        [1, 129, 64, 160, 132],
        [3, 200, 544, 288, 5],
        [1, 100, 2336, 160, 3],
        [1, 128, 288, 512, 132],
        [1, 65, 256, 1056, 5],
        [2, 130, 64, 2080, 132],
        // Tiles with helpers.
        [1, 40, 288, 1056, 2],
        [1, 40, 544, 1056, 2],
        [1, 40, 96, 4128, 4],
        [1, 40, 288, 2080, 3],
        [1, 130, 96, 2080, 3],
        [1, 300, 96, 2080, 3],
        // A decoded while tiles are computed.
        [2, 300, 288, 2080, 1],
        [3, 20, 160, 3104, 2],
    ];
    if !program.has_blocks() {
        // Outputs with blocks restrict N further.
        cases.extend([
            [1, 1, 8, 32, 132],
            [2, 13, 24, 96, 132],
            [1, 70, 264, 224, 132],
            [1, 20, 40, 352, 132],
        ]);
    }
    let mut random = Random::new(0x90A);
    for _ in 0..RANDOM {
        let m = random.pick(&[1, 7, 8, 9, 16, 17, 31, 63, 64, 65, 127, 128, 129, 190, 257]);
        let k = 32 * random.pick(&[1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33, 63, 64]);
        let n = 32 * (1 + random.below(20) as u64);
        cases.push([random.pick(&[1, 1, 1, 2, 3]), m, n, k, random.pick(&[1, 2, 7, 24, 132])]);
    }
    if program.pairs() {
        // D has half as many columns as the product.
        cases.iter_mut().for_each(|[_, _, n, ..]| *n *= 2);
    }
    cases
}

fn check_all(program: &Program) {
    let simulation = program.build(program.name, program.tiles(), None);
    let mut met = BTreeSet::new();
    for (seed, case) in cases(program).into_iter().enumerate() {
        let mut check = |tile| met.insert(program.check(&simulation, case, tile, seed as u64));
        check(None);
        let is_small_m = case[1] <= u64::from(SMALL_M);
        for tile in program.tiles().into_iter().filter(|tile| tile.is_small_m() == is_small_m) {
            if !is_small_m || case[1] <= u64::from(tile.m) {
                check(Some(tile));
            }
        }
    }
    for tile in program.tiles() {
        let most = tile.max_cluster();
        for cluster in [1, 2, 4, 8].into_iter().filter(|cluster| *cluster <= most) {
            let is_met = met.iter().any(|it| (it.tile, it.cluster) == (tile, cluster));
            assert!(is_met, "{tile} shared by {cluster}: {met:?}");
        }
    }
    // Every tile with helpers: single CTAs and clusters, several splits of a tile, several splits of a CTA, and after
    // whole tiles.
    for tile in program.tiles().into_iter().filter(|tile| !tile.is_small_m() && tile.n > 64) {
        let helped: Vec<&Launch> = met.iter().filter(|it| it.tile == tile && it.helpers > 0).collect();
        let has = |what: &str, is_so: &dyn Fn(&Launch) -> bool| {
            assert!(helped.iter().any(|it| is_so(it)), "{tile}: {what}: {helped:?}");
        };
        has("alone", &|it| it.cluster == 1);
        has("shared", &|it| it.cluster > 1);
        has("several splits of a tile", &|it| it.per_tile > 1);
        has("several splits for a CTA", &|it| it.helped > it.helpers * it.cluster);
        has("behind whole tiles", &|it| it.tiles > it.helped);
    }
    // For large M, nothing of A, some slabs, or whole tiles are decoded late.
    for tile in program.tiles().into_iter().filter(|tile| tile.m == 256) {
        let left: BTreeSet<_> =
            met.iter().filter(|it| it.tile == tile).map(|it| [it.left_tiles, it.left_slabs]).collect();
        let has = |what: [bool; 2]| left.iter().any(|it| it.map(|left| left > 0) == what);
        assert!([[false, false], [false, true], [true, true]].into_iter().all(has), "{tile}: {left:?}");
    }
}

/// Checks every third case, with the tile that the table selects and with another one: for formats that share most of
/// their code with those of [`check_all`].
fn check_some(program: &Program) {
    let simulation = program.build(program.name, program.tiles(), None);
    for (seed, case) in cases(program).into_iter().enumerate().skip(program.name.len() % 3).step_by(3) {
        let (m, is_small_m) = (case[1], case[1] <= u64::from(SMALL_M));
        let takes = |tile: &Tile| tile.is_small_m() == is_small_m && (!is_small_m || m <= u64::from(tile.m));
        let tiles: Vec<Tile> = program.tiles().into_iter().filter(takes).collect();
        program.check(&simulation, case, None, seed as u64);
        program.check(&simulation, case, Some(tiles[seed % tiles.len()]), seed as u64);
    }
}

#[test]
fn values_of_nvfp4_are_the_interpreter_s() {
    check_all(&PROGRAMS[0]);
}

#[test]
fn values_of_mxfp4_are_the_interpreter_s() {
    check_all(&PROGRAMS[1]);
}

#[test]
fn blocks_and_reductions_are_the_interpreter_s() {
    check_all(&PROGRAMS[2]);
}

#[test]
fn values_of_mxfp8_by_mxfp4_are_the_interpreter_s() {
    check_some(&PROGRAMS[3]);
}

#[test]
fn values_of_mxfp8_are_the_interpreter_s() {
    PROGRAMS[4..].iter().for_each(check_some);
}

#[test]
fn values_of_linear_scales_are_the_interpreter_s() {
    LINEAR_PROGRAMS.iter().for_each(check_some);
}

#[test]
fn values_of_weight_only_products_of_bf16_are_the_interpreter_s() {
    check_weight_only(ElementType::BF16);
}

#[test]
fn values_of_weight_only_products_of_f16_are_the_interpreter_s() {
    check_weight_only(ElementType::F16);
}

fn check_weight_only(a: ElementType) {
    WEIGHT_ONLY_PROGRAMS.iter().filter(|program| program.format.a == a).for_each(check_some);
}

#[test]
fn pairs_of_columns_are_the_interpreter_s() {
    PAIR_PROGRAMS.iter().for_each(check_some);
}
