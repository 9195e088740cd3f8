//! Waves, split of K and tile utilization of a launch, as input of the cost model.
//!
//! The functions mirror how sm_90a kernels plan a launch (`plan_small_m` and `plan_variant` of
//! `codegen/src/hopper/device/plan.cuh`). A difference makes estimates worse, but no result wrong.

use fourfold_codegen::dispatch::{Kernel, SchedulerName, Shared};

use crate::problem::Problem;

/// The work of a launch.
pub(super) struct Work {
    /// Waves of tiles.
    pub waves: f64,
    /// CTAs that split the K of a tile.
    pub shares_of_k: u32,
    /// The fraction of the tile's M that the problem uses, for kernels in which the rest costs nothing; else 0.
    pub rows: f64,
}

/// Elements of K that a small-M kernel loads at a time.
const CHUNK: u64 = 256;
/// The K-step of tiles for large M.
const STEP: u64 = 128;
/// The granularity at which small-M kernels split N across CTAs.
const UNIT: u64 = 32;
/// The N that a CTA of a small-M kernel with e4m3 operands computes at a time.
const AT_ONCE: u64 = 64;

impl Work {
    pub fn of(kernel: &Kernel, problem: &Problem, processors: u32) -> Work {
        let processors = u64::from(processors.max(1));
        match kernel {
            Kernel::Cutlass(it) => {
                let waves = tiles([it.tile[0], it.tile[1]], problem) as f64 / processors as f64;
                // Stream-K fills the last wave.
                let is_shared = it.scheduler == Some(SchedulerName::StreamK);
                Work { waves: if is_shared { waves } else { waves.ceil() }, shares_of_k: 1, rows: 0.0 }
            }
            Kernel::Hopper(it) if it.tile().is_small_m() => small_m(*it, problem, processors),
            Kernel::Hopper(it) => tiled(*it, problem, processors),
        }
    }
}

fn tiles(tile: [u32; 2], problem: &Problem) -> u64 {
    let [rows, columns] = tile.map(|extent| u64::from(extent.max(1)));
    problem.m.div_ceil(rows).saturating_mul(problem.n.div_ceil(columns)).saturating_mul(problem.l)
}

/// The number of clusters that run at a time. Clusters of more than two CTAs leave about an eighth of the SMs idle.
fn room(processors: u64, blocks: u64) -> u64 {
    let processors = if blocks > 2 { processors * 7 / 8 } else { processors };
    (processors / blocks).max(1)
}

/// The work of a kernel for large M. If the table does not fix the cluster size, it is the largest that fits one wave.
/// In the last wave, idle CTAs compute the last K steps of other tiles.
fn tiled(shared: Shared, problem: &Problem, processors: u64) -> Work {
    let tiles = tiles(shared.tile, problem);
    let mut blocks = match u64::from(shared.cluster) {
        0 => u64::from(shared.tile().max_cluster()),
        blocks => blocks,
    };
    while shared.cluster == 0 && blocks > 1 && tiles > room(processors, blocks) {
        blocks /= 2;
    }
    let (room, steps) = (room(processors, blocks), problem.k.div_ceil(STEP).max(1));
    let (whole, rest) = (tiles / room, tiles % room);
    let is_helped = shared.tile[1] > 64 && (blocks == 1 || whole == 0);
    let last = if is_helped { helped(steps, rest, room, blocks) } else { rest.min(1) as f64 };
    Work { waves: whole as f64 + last, shares_of_k: blocks as u32, rows: 0.0 }
}

/// The duration of a last wave of `tiles` tiles with `steps` K-steps each, as a fraction of a full wave
/// (`plan_split_k`).
fn helped(steps: u64, tiles: u64, room: u64, blocks: u64) -> f64 {
    /// The times of storing and of adding a split, in K-steps.
    const STORE_COST: i64 = 3;
    const ADD_COST: i64 = 2;
    const MAX_SPLITS: i64 = 16;
    if tiles == 0 {
        return 0.0;
    }
    let [steps, tiles, room, blocks] =
        [steps, tiles, room, blocks].map(|it| it.try_into().unwrap_or(i64::MAX >> 24));
    let helpers = (room - tiles) * blocks;
    let max_splits = if helpers == 0 { 0 } else { (helpers / tiles).clamp(1, MAX_SPLITS) };
    let times = (1..=max_splits).filter_map(|per_tile| {
        let each = (tiles * per_tile + helpers - 1) / helpers;
        let split = (steps + (ADD_COST * per_tile - each * STORE_COST) * blocks) / (per_tile + each * blocks);
        let split = split.min((steps - blocks) / per_tile);
        let own = steps - per_tile * split + ADD_COST * per_tile * blocks;
        (split > 0).then(|| own.max(each * (split + STORE_COST) * blocks))
    });
    let least = times.min().filter(|least| *least < steps - steps / 16).unwrap_or(steps);
    least as f64 / steps as f64
}

/// The work of a small-M kernel. N is split across CTAs; a CTA holds at most `max_units` units. K is split across a
/// cluster large enough to hold A in shared memory. With e4m3 operands a CTA computes 64 of N at a time, and the
/// cluster size minimizes the work per CTA.
fn small_m(shared: Shared, problem: &Problem, processors: u64) -> Work {
    let (elements, max_units) = match shared.tile[0] {
        1 => (16_384, 16),
        2 => (32_768, 8),
        8 => (32_768, 16),
        _ => (65_536, 4),
    };
    let uses_e4m3 = shared.tile().uses_e4m3();
    let at_once = if uses_e4m3 { AT_ONCE } else { UNIT };
    let most = u64::from(shared.tile().max_cluster());
    let units = problem.n.div_ceil(UNIT).max(1);
    let chunks_of = |blocks: u64| problem.k.div_ceil(CHUNK * blocks);
    let fits = |blocks: u64| problem.m * chunks_of(blocks) * CHUNK <= elements;
    let rows_of_each = |blocks: u64| {
        let room = room(processors, blocks);
        let shares = room.min(units).max(units.div_ceil(max_units));
        shares.div_ceil(room) * (units.div_ceil(shares) * UNIT).next_multiple_of(at_once)
    };
    // Reducing over a cluster costs as much as some chunks of these rows.
    let chunks = |blocks: u64| {
        let sharing = match blocks {
            1 => 0,
            2 => 4,
            4 => 6,
            _ => 12,
        };
        rows_of_each(blocks) / at_once * chunks_of(blocks) + sharing
    };
    let mut blocks = 1;
    while blocks < most && (blocks < u64::from(shared.cluster) || !fits(blocks)) {
        blocks *= 2;
    }
    if shared.cluster == 0 && uses_e4m3 {
        let more = std::iter::successors(Some(blocks), |blocks| Some(blocks * 2));
        let each_has_some = |blocks: &u64| *blocks <= most && *blocks <= chunks_of(1).max(1);
        blocks = more.take_while(each_has_some).min_by_key(|blocks| chunks(*blocks)).unwrap_or(blocks);
    }
    while shared.cluster == 0 && !uses_e4m3 && blocks < most && units <= room(processors, blocks * 2) {
        blocks *= 2;
    }
    Work {
        waves: rows_of_each(blocks) as f64 / f64::from(shared.tile[1].max(1)),
        shares_of_k: blocks as u32,
        rows: problem.m as f64 / f64::from(shared.tile[0].max(1)),
    }
}
