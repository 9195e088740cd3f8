//! The choice of tile and cluster that a source of sm_90a makes for a call, compared with the table of `codegen`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::hopper::{ANY, Configuration, TARGET, TILES, Tile};
use fourfold::codegen::select::hopper::choices;
use fourfold::codegen::{Design, KernelSpec, ScaledMmaSpec};
use fourfold::ir::BlockFormat;
use fourfold::kernels::planned_kernels;
use fourfold_tests::backend;
use fourfold_tests::random::Random;

const HARNESS: &str = include_str!("tiles/plan.cc");

const PROGRAM: &str = "fir 1
func @main(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sfb: tensor<[72, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 72], f32>
  return %d
}
";

/// L, M, N, K and the SMs of a device.
type Case = [u64; 5];

/// The choice of a source for a case: the launch, and the properties of the selected kernel.
#[derive(Debug)]
struct Plan {
    tile_m: u64,
    cluster: u64,
    grid: [u64; 3],
    tile_n: u64,
    ctas_per_sm: u64,
    max_cluster: u64,
    /// For a small-M kernel: the unit in which N is divided among CTAs, and the most units and elements of A per CTA.
    unit_n: u64,
    max_units: u64,
    max_elements: u64,
    /// The maximum number of units of a CTA whose warps keep A in registers, and true if they do.
    max_regs_units: u64,
    is_small_m_regs: bool,
    /// Clusters that help with tiles of the last round: their number, the helped tiles, the splits of each, and
    /// the K-steps of each split.
    helpers: u64,
    helped: u64,
    per_tile: u64,
    split: u64,
    /// The slabs of A decoded in advance: tiles along M in all matrices and the first of these, slabs along K and
    /// the first of these.
    slabs: [u64; 4],
}

fn plans(name: &str, spec: &ScaledMmaSpec, cases: &[Case]) -> Vec<Plan> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiles");
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    let source = spec.emit().text;
    let begin = "constexpr int kVariantCount = ";
    let plan = source.split_once(begin).expect("the source has tiles").1;
    let plan =
        plan.split_once("// Computes parameters from a problem and its plan").expect("the plan ends").0;
    let is_mx = spec.configuration.block_format() == Some(BlockFormat::MXFP4);
    let text = HARNESS.replace("IS_MX", &is_mx.to_string()).replace("PLAN", &format!("{begin}{plan}"));
    let (file, program) = (folder.join(format!("{name}.cc")), folder.join(name));
    std::fs::write(&file, text).expect("the file can be written");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-Wall", "-Werror", "-o"]).args([&program, &file]);
    let compiled = compiler.output().expect("g++ starts");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let line = |case: &Case| case.map(|extent| extent.to_string()).join(" ");
    let input: Vec<String> = cases.iter().map(line).collect();
    child
        .stdin
        .take()
        .expect("the stream is piped")
        .write_all(input.join("\n").as_bytes())
        .expect("the program reads its input");
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "its division: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("numbers");
    let plan = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [
            tile_m,
            cluster,
            x,
            y,
            z,
            tile_n,
            ctas_per_sm,
            max_cluster,
            ref of_small_m @ ..,
            helpers,
            helped,
            per_tile,
            split,
            all_tiles,
            first_tiles,
            along_k,
            first_along_k,
        ] = numbers[..]
        else {
            panic!("{line}")
        };
        let [unit_n, max_units, max_elements, max_regs_units, is_small_m_regs] =
            of_small_m.try_into().expect("twenty-one numbers");
        let grid = [x, y, z];
        Plan {
            tile_m,
            cluster,
            grid,
            tile_n,
            ctas_per_sm,
            max_cluster,
            unit_n,
            max_units,
            max_elements,
            max_regs_units,
            is_small_m_regs: is_small_m_regs == 1,
            helpers,
            helped,
            per_tile,
            split,
            slabs: [all_tiles, first_tiles, along_k, first_along_k],
        }
    };
    let plans: Vec<_> = lines.lines().map(plan).collect();
    assert_eq!(plans.len(), cases.len());
    plans
}

fn cases() -> Vec<Case> {
    let mut random = Random::new(0x711E);
    let bounds =
        choices(BlockFormat::NVFP4).iter().flat_map(|choice| [choice.max_m, choice.max_n, choice.max_k]);
    let mut extents: Vec<u64> = bounds.filter(|bound| *bound != ANY).map(u64::from).collect();
    extents.extend(extents.clone().iter().map(|bound| bound + 1));
    extents.extend([1, 7, 11, 13, 16, 100, 128, 129, 256, 257, 2048, 4096, 8192, 28672]);
    // A bound shared by many lines is tested as often as any other.
    extents.sort_unstable();
    extents.dedup();
    let mut cases = vec![[1, 1, 8192, 8192, 132], [1, 128, 7168, 16384, 132], [1, 8192, 8192, 8192, 132]];
    // With N above 4096, four CTAs share a tile on large devices only.
    cases.extend([[1, 96, 7168, 2048, 264], [1, 144, 8192, 8192, 528]]);
    // M = 2, with four CTAs that share K.
    cases.push([1, 2, 1024, 8192, 132]);
    // K that only the tiles with M = 1 and 2 have room for.
    cases.extend([1, 7, 132].map(|sms| [1, 1, 16384, 53248, sms]));
    cases.extend((0..4000).map(|_| {
        let k = 32 * random.pick(&[1, 3, 4, 5, 7, 8, 9, 16, 31, 32, 64, 128, 224, 512]);
        let sms = random.pick(&[1, 7, 78, 114, 132, 264]);
        [random.pick(&[1, 1, 1, 2, 5]), random.pick(&extents), random.pick(&extents), k, sms]
    }));
    cases
}

/// Returns specifications of the program's kernel with these tiles, one per format.
fn specs(variants: Option<&[Tile]>) -> [ScaledMmaSpec; 2] {
    [PROGRAM.to_owned(), PROGRAM.replace("6], f8E4M3FN", "3], f8E8M0FNU").replace("16}", "32}")].map(|text| {
        let (program, _) = fourfold::ir::load(&text).unwrap_or_else(|errors| panic!("{}", errors[0].message));
        let planned = backend(TARGET).expect("a target").plan(program);
        let all = planned_kernels(&planned, CutlassVersion::PINNED, false).remove(0).spec;
        let KernelSpec::ScaledMma(all) = all else { panic!("{all:?}") };
        let Design::Hopper(configuration) = &all.configuration else { panic!("{:?}", all.configuration) };
        let variants = variants.unwrap_or(&configuration.variants).to_vec();
        let configuration = Configuration { variants, ..configuration.clone() };
        ScaledMmaSpec { configuration: configuration.into(), ..all }
    })
}

/// Checks that a plan can be launched: every tile has a CTA, every CTA of a cluster has a part of K, and
/// everything that must run concurrently fits on the device.
fn check_plan(case: &Case, plan: &Plan) {
    let name = format!("{case:?}: {plan:?}");
    let [l, m, n, k, sms] = *case;
    let Plan { tile_m, cluster, grid: [x, y, z], tile_n, ctas_per_sm, max_cluster, .. } = *plan;
    let tile = Tile::new(tile_m as u32, tile_n as u32);
    assert!(TILES.contains(&tile), "{name}");
    assert!([1, 2, 4, 8].contains(&cluster) && cluster <= max_cluster && max_cluster <= 8, "{name}");
    // Each CTA computes the K-steps of its rank's share.
    let blocks = k.div_ceil(u64::from(tile.step()));
    assert!((0..cluster).all(|rank| blocks * rank / cluster < blocks * (rank + 1) / cluster), "{name}");
    assert_eq!([y, z], [1, 1], "{name}");
    assert!(x > 0 && x < 1 << 31 && x % cluster == 0, "{name}");
    if tile.is_small_m() {
        assert_eq!(plan.helpers, 0, "{name}");
        // There is no loop over M, and N is divided among the CTAs of each matrix.
        assert!(m <= tile_m && x % (l * cluster) == 0, "{name}");
        let of_block = 128 / plan.unit_n;
        let units = n / 128 * of_block + (n % 128).div_ceil(plan.unit_n / 4).min(of_block);
        let ctas = x / (l * cluster);
        let fewest = units.div_ceil(plan.max_units);
        assert!(ctas <= units && units.div_ceil(ctas) <= plan.max_units, "{name}");
        assert!(ctas <= fewest.max(1).max(sms / cluster / l), "{name}");
        assert!(m * blocks.div_ceil(cluster) * u64::from(tile.step()) <= plan.max_elements, "{name}");
        if plan.is_small_m_regs {
            // Most of a CTA's 16 warps have a chunk of K, and none has two. The sums fit, and there are no more
            // CTAs than the units for each require.
            let (chunks, most) = (blocks.div_ceil(cluster), units.div_ceil(ctas));
            assert!(cluster <= 2 && (13..=16).contains(&chunks) && most <= plan.max_regs_units, "{name}");
            assert!(tile_m == 16 && n % 32 == 0 && units.div_ceil(most) == ctas, "{name}");
        }
        return;
    }
    let tiles = l * m.div_ceil(tile_m) * n.div_ceil(tile_n);
    check_slabs(case, plan);
    // A CTA loops over tiles if it has an SM for itself; otherwise it has one tile.
    let takes_turns = ctas_per_sm == 1 && cluster == 1;
    let Plan { helpers, helped, per_tile, split, .. } = *plan;
    if helpers == 0 {
        assert_eq!(x, if takes_turns { tiles.min(sms) } else { tiles * cluster }, "{name}");
        assert_eq!([helped, per_tile, split], [0; 3], "{name}");
        return;
    }
    // Helpers have no tile in the last round, all of which runs concurrently.
    let room = if cluster > 2 { sms * 7 / 8 } else { sms } / cluster;
    assert!(ctas_per_sm == 1 && tile.n > 64, "{name}");
    assert!(takes_turns || tiles <= room, "{name}");
    assert_eq!([x, helpers + helped, helped], [room * cluster, room, tiles % room], "{name}");
    // Every CTA of a cluster keeps a part of K, and both helpers and helped CTAs have less work than without
    // help.
    let own = blocks.checked_sub(per_tile * split).expect("a split fits the K-steps");
    let each = (helped * per_tile).div_ceil(helpers * cluster);
    assert!(own >= cluster && split > 0 && per_tile > 0, "{name}");
    assert!(own.div_ceil(cluster) < blocks.div_ceil(cluster) && each * split * cluster < blocks, "{name}");
}

/// Checks that the part of A decoded in advance is the part that the first tiles need first, or all of A if no warp
/// decodes the rest later.
fn check_slabs(case: &Case, plan: &Plan) {
    const GROUP: u64 = 32;
    let name = format!("{case:?}: {plan:?}");
    let [l, m, n, k, _] = *case;
    let [all_tiles, first_tiles, along_k, first_along_k] = plan.slabs;
    let (tiles_m, tiles_n) = (m.div_ceil(plan.tile_m), n.div_ceil(plan.tile_n));
    assert_eq!([all_tiles, along_k], [l * tiles_m, k.div_ceil(1024)], "{name}");
    if plan.tile_m < 256 || plan.cluster > 1 {
        assert_eq!([first_tiles, first_along_k], [all_tiles, along_k], "{name}");
        return;
    }
    assert_eq!(first_along_k, along_k.min(2), "{name}");
    // The position of a tile along M, in the order in which CTAs take tiles.
    let along_m = |tile: u64| {
        let (batch, inside) = (tile / (tiles_m * tiles_n), tile % (tiles_m * tiles_n));
        let group = inside / (tiles_m * GROUP);
        let width = GROUP.min(tiles_n - group * GROUP);
        batch * tiles_m + (inside - group * tiles_m * GROUP) / width
    };
    let at_once = plan.grid[0].min(l * tiles_m * tiles_n);
    let needed = (0..at_once).map(along_m).max().expect("the problem has tiles") + 1;
    // With several matrices, the last of the first tiles may be decoded as a whole.
    let most = if at_once > tiles_m * tiles_n { needed.next_multiple_of(tiles_m) } else { needed };
    assert!((needed..=most).contains(&first_tiles), "{name}: {needed}");
}

/// Long tiles get help: one case of each kind.
#[test]
fn clusters_without_a_tile_help_those_with_one() {
    let [spec, _] = specs(None);
    // The first contest shape; fewer tiles than SMs for each; more tiles than SMs; too little work; no idle SM.
    let cases: [Case; 5] = [
        [1, 128, 7168, 16384, 132],
        [1, 40, 4096, 14336, 132],
        [1, 2560, 5120, 4096, 132],
        [1, 128, 6144, 256, 132],
        [1, 8448, 16384, 4096, 132],
    ];
    let seen: Vec<_> = plans("helped", &spec, &cases)
        .iter()
        .zip(&cases)
        .map(|(plan, case)| {
            check_plan(case, plan);
            [plan.cluster, plan.helpers, plan.helped, plan.per_tile, plan.split]
        })
        .collect();
    assert_eq!(
        seen,
        [[2, 10, 56, 1, 16], [2, 34, 32, 2, 28], [1, 128, 4, 4, 7], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    );
}

#[test]
fn a_call_gets_the_first_line_that_it_meets_and_as_many_blocks_as_there_is_room_for() {
    let cases = cases();
    for (format, spec) in [BlockFormat::NVFP4, BlockFormat::MXFP4].into_iter().zip(specs(None)) {
        let name = if format == BlockFormat::NVFP4 { "nvfp4" } else { "mxfp4" };
        let lines: Vec<_> = choices(format).iter().filter(|choice| choice.tile.takes(format)).collect();
        let (mut met, mut held) = (BTreeSet::new(), BTreeSet::new());
        for (case, plan) in cases.iter().zip(plans(name, &spec, &cases)) {
            let [l, m, n, k, sms] = *case;
            check_plan(case, &plan);
            let meets = |(extent, most): (u64, u32)| extent <= u64::from(most);
            let choice = lines
                .iter()
                .find(|it| [(m, it.max_m), (n, it.max_n), (k, it.max_k)].into_iter().all(meets))
                .expect("the last line has no condition");
            assert_eq!([plan.tile_m, plan.tile_n], [choice.tile.m, choice.tile.n].map(u64::from), "{case:?}");
            met.insert((choice.tile, plan.cluster));
            held.insert((plan.is_small_m_regs, plan.cluster));
            if choice.tile.is_small_m() {
                continue;
            }
            if choice.cluster > 0 {
                assert!(plan.cluster <= u64::from(choice.cluster), "{case:?}: {plan:?}");
                continue;
            }
            let tiles = l * m.div_ceil(plan.tile_m) * n.div_ceil(plan.tile_n);
            let blocks = k.div_ceil(u64::from(choice.tile.step()));
            let fits = |cluster: u64| {
                // Larger clusters with SMs of their own leave an eighth of the SMs idle.
                let room =
                    if cluster > 2 && plan.ctas_per_sm == 1 { sms * 7 / 8 } else { sms * plan.ctas_per_sm };
                cluster <= plan.max_cluster && tiles * cluster <= room && 2 * cluster <= blocks
            };
            let most = [8, 4, 2].into_iter().find(|cluster| fits(*cluster)).unwrap_or(1);
            assert_eq!(plan.cluster, most, "{case:?}: {plan:?}");
        }
        assert!([(true, 1), (true, 2)].iter().all(|it| held.contains(it)), "{held:?}");
        for tile in lines.iter().map(|choice| choice.tile) {
            // With M of 9 to 16, the table takes tiles of 64x128 for a K that more than two CTAs would share. So no call
            // gets 16x128 tiles with more; forced sources do.
            let most = if tile.m == 16 { 2 } else { u64::from(tile.max_cluster().min(4)) };
            for cluster in [1, 2, 4] {
                let is_met = met.contains(&(tile, cluster));
                assert!(is_met || cluster > most, "{tile} by {cluster}: {met:?}");
                assert!(!is_met || cluster <= most, "{tile} by {cluster}: {met:?}");
            }
        }
    }
}

/// With small M, CTAs share K as the table states. They do not if sharing would leave too few SMs to run all CTAs
/// concurrently: with several matrices, or on a GPU with fewer SMs than the measured one.
#[test]
fn blocks_share_k_where_all_run_at_once() {
    let expected = [
        ([1, 16, 8192, 2048, 132], 2),
        ([2, 16, 8192, 2048, 132], 1),
        ([1, 16, 8192, 2048, 114], 1),
        ([2, 9, 4096, 2048, 132], 2),
        ([4, 9, 4096, 2048, 132], 1),
        // Several rounds, with and without sharing.
        ([8, 16, 8192, 2048, 132], 2),
        // One CTA holds A for all of K, unless there would be too few CTAs.
        ([1, 16, 8192, 4096, 132], 1),
        ([1, 16, 2048, 4096, 132], 2),
        // An N that is not a multiple of this load's width.
        ([1, 16, 4104, 4096, 132], 2),
        // A occupies the shared memory of two CTAs.
        ([2, 16, 8192, 8192, 132], 2),
        ([1, 8, 8192, 8192, 132], 2),
        // One or two tile_n, with B in steps of 64. The choice was the fastest on an H200: all of K in one CTA,
        // or the cluster with the fewest steps of 64 rows for each.
        ([1, 1, 8192, 8192, 132], 1),
        ([1, 2, 8192, 8192, 132], 1),
        ([1, 1, 6144, 14336, 132], 1),
        ([1, 1, 14336, 4096, 132], 1),
        ([1, 1, 4096, 2048, 132], 1),
        ([1, 1, 4096, 14336, 132], 2),
        ([1, 2, 10240, 8192, 132], 2),
        ([1, 1, 28672, 4096, 132], 2),
        ([1, 1, 5120, 8192, 132], 4),
        ([1, 1, 1024, 14336, 132], 4),
        ([1, 1, 2048, 14336, 132], 2),
        // Several matrices leave no CTAs to share K, and a long K needs more shared memory.
        ([4, 1, 4096, 14336, 132], 1),
        ([1, 2, 8192, 28672, 132], 2),
    ];
    let cases: Vec<Case> = expected.iter().map(|(case, _)| *case).collect();
    let [spec, _] = specs(None);
    for ((case, cluster), plan) in expected.iter().zip(plans("at_once", &spec, &cases)) {
        check_plan(case, &plan);
        assert_eq!(plan.cluster, *cluster, "{case:?}: {plan:?}");
    }
}

/// A kernel made for some extents accepts all through its interface, except that a small-M kernel accepts no
/// larger M.
#[test]
fn a_source_without_the_best_tile_takes_one_that_it_has() {
    for tile in TILES {
        let mut cases = cases();
        cases.retain(|[_, m, _, k, _]| {
            !tile.is_small_m() || (*m <= u64::from(tile.m) && *k <= u64::from(tile.max_k(BlockFormat::NVFP4)))
        });
        assert!(cases.len() > 50, "{tile}: {}", cases.len());
        let [nvfp4, mxfp4] = specs(Some(&[tile]));
        for (name, format, spec) in
            [("one", BlockFormat::NVFP4, nvfp4), ("one_mx", BlockFormat::MXFP4, mxfp4)]
        {
            if !tile.takes(format) {
                continue;
            }
            for (case, plan) in cases.iter().zip(plans(&format!("{name}_{tile}"), &spec, &cases)) {
                assert_eq!([plan.tile_m, plan.tile_n], [tile.m, tile.n].map(u64::from), "{case:?}");
                check_plan(case, &plan);
            }
        }
    }
}

/// A kernel forced to one tile accepts the extents of the tile, with the forced cluster wherever each CTA has a
/// part of K.
#[test]
fn a_forced_source_has_one_tile_and_as_many_blocks_share_it_as_it_is_told() {
    let forced = |spec: &ScaledMmaSpec, tile: Tile, cluster: u32| {
        let format = spec.configuration.block_format().expect("a format");
        let configuration = Configuration::forced(format, tile, cluster).expect("a tile");
        ScaledMmaSpec { configuration: configuration.into(), ..spec.clone() }
    };
    for (format, spec) in [BlockFormat::NVFP4, BlockFormat::MXFP4].into_iter().zip(specs(None)) {
        for tile in TILES.into_iter().filter(|tile| tile.takes(format)) {
            let mut cases = cases();
            cases.retain(|[_, m, _, k, _]| {
                !tile.is_small_m()
                    || (*m <= u64::from(tile.m) && *k <= u64::from(tile.max_k(BlockFormat::NVFP4)))
            });
            for cluster in [1, 2, 4, 8].into_iter().filter(|cluster| *cluster <= tile.max_cluster()) {
                let name = format!("forced_{}_{tile}_{cluster}", format.block);
                let mut shared = 0;
                for (case, plan) in cases.iter().zip(plans(&name, &forced(&spec, tile, cluster), &cases)) {
                    assert_eq!([plan.tile_m, plan.tile_n], [tile.m, tile.n].map(u64::from), "{case:?}");
                    assert_eq!(plan.max_cluster, u64::from(tile.max_cluster()), "{case:?}");
                    check_plan(case, &plan);
                    let [_, m, _, k, _] = *case;
                    let steps = k.div_ceil(u64::from(tile.step()));
                    let wanted = (0..=cluster.ilog2()).rev().map(|bits| 1 << bits);
                    let parts =
                        wanted.into_iter().find(|parts| *parts <= steps).expect("one CTA can hold all of K");
                    // Small M may need the room of more CTAs.
                    let needs = |parts: u64| {
                        m * steps.div_ceil(parts) * u64::from(tile.step()) > plan.max_elements
                            && 2 * parts <= steps
                    };
                    let mut most = parts;
                    while tile.is_small_m() && most < plan.max_cluster && needs(most) {
                        most *= 2;
                    }
                    assert_eq!(plan.cluster, most, "{case:?}: {plan:?}");
                    shared += usize::from(plan.cluster == u64::from(cluster));
                }
                assert!(shared > 20, "{name}: {shared}");
            }
        }
    }
}
