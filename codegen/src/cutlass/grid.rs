//! The launch grid of a CUTLASS kernel, and its limits.

use super::configuration::{Cluster, Configuration, Family, Raster, TileScheduler};
pub use crate::targets::{MAX_GRID_YZ, MAX_TILES};

/// The largest grid extent along x.
const MAX_GRID_X: u64 = i32::MAX as u64;

/// The grid of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The tiles of D as the scheduler numbers them, padded to whole clusters and bands. `None` on overflow.
    pub tiles: Option<u64>,
    /// CTAs along x, y and z; `None` if the scheduler launches one CTA per SM.
    pub blocks: Option<[u64; 3]>,
}

/// Computes the grid for extents L, M and N as CUTLASS does.
pub fn grid(configuration: &Configuration, [l, m, n]: [u64; 3]) -> Grid {
    let [m, n] = if configuration.swapped { [n, m] } else { [m, n] };
    let [tile_m, tile_n, _] = configuration.tile.map(|extent| u64::from(extent).max(1));
    let [cluster_m, cluster_n] = match configuration.cluster {
        Cluster::Static(extents) => extents.map(|extent| u64::from(extent).max(1)),
        Cluster::Dynamic => [1, 1],
    };
    let sms = u64::from(configuration.sms.count());
    let clusters = [(m.div_ceil(tile_m) * sms).div_ceil(cluster_m), n.div_ceil(tile_n).div_ceil(cluster_n)];
    let band = u64::from(configuration.order.swizzle).max(1);
    let [in_bands_m, in_bands_n] = clusters.map(|clusters| clusters.next_multiple_of(band));
    let tiles =
        (in_bands_m * cluster_m).checked_mul(in_bands_n * cluster_n).and_then(|tiles| tiles.checked_mul(l));
    let along_m = [clusters[0] * cluster_m, clusters[1] * cluster_n, l];
    let along_n = [clusters[1] * cluster_m, clusters[0] * cluster_n, l];
    let blocks = match configuration.scheduler {
        TileScheduler::Default => match configuration.order.raster {
            Raster::AlongM => Some(along_m),
            Raster::AlongN => Some(along_n),
            // The axis with more tiles takes x, unless the other would exceed the limit on y.
            Raster::Heuristic => {
                Some(if clusters[1] <= clusters[0] && along_n[1] <= MAX_GRID_YZ { along_n } else { along_m })
            }
        },
        TileScheduler::SplitK(splits) => Some([along_m[0], along_m[1], l.saturating_mul(u64::from(splits))]),
        TileScheduler::StaticPersistent | TileScheduler::StreamK => None,
    };
    Grid { tiles, blocks }
}

/// Checks that the driver can launch the grid for extents L, M and N.
///
/// # Errors
/// Names the limit that is exceeded, as a sentence without its period.
pub fn launches(configuration: &Configuration, extents: [u64; 3]) -> Result<(), String> {
    let Grid { tiles, blocks } = grid(configuration, extents);
    if tiles.is_none_or(|tiles| MAX_TILES < tiles) {
        return Err(format!("D has more than {MAX_TILES} tiles"));
    }
    match blocks {
        Some([x, y, z]) if MAX_GRID_X < x || MAX_GRID_YZ < y || MAX_GRID_YZ < z => {
            Err(format!("the grid is ({x}, {y}, {z}); a launch allows at most {MAX_GRID_YZ} along y and z"))
        }
        _ => Ok(()),
    }
}

/// Checks that the driver can launch every problem that a plan permits, under the scheduler of a table's
/// kernel. `extents` are the fixed L, M and N; `most` bounds the others.
///
/// # Errors
/// Names the limit that may be exceeded, as a sentence without its period.
pub(crate) fn launches_all(
    configuration: &Configuration,
    extents: [Option<u64>; 3],
    most: [u64; 3],
) -> Result<(), String> {
    if configuration.scheduler == TileScheduler::StreamK || configuration.family != Family::Sm120 {
        // An Sm100 plan already states the limits of its default scheduler. The CTAs of stream-K depend on
        // the split of K: the kernel itself refuses a call with too many.
        return Ok(());
    }
    // The plan itself limits the total number of tiles.
    let [l, m, n] = [0, 1, 2].map(|at| extents[at].unwrap_or(most[at]));
    match grid(configuration, [l, m, n]).blocks {
        Some([_, y, z]) if MAX_GRID_YZ < y || MAX_GRID_YZ < z => Err(format!(
            "a problem may need a grid of {y} by {z} CTAs along y and z; a launch allows at most {MAX_GRID_YZ}"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use fourfold_ir::BlockFormat;

    use super::*;
    use crate::cutlass::configuration::TileOrder;
    use crate::cutlass::defaults;
    use crate::targets::TARGETS;

    fn usual(family: Family, tile: [u32; 3]) -> Configuration {
        defaults::usual(family, BlockFormat::NVFP4, tile).expect("a format with defaults")
    }

    fn blocks(configuration: &Configuration, extents: [u64; 3]) -> [u64; 3] {
        grid(configuration, extents).blocks.expect("a scheduler whose grid follows from the extents")
    }

    #[test]
    fn the_grid_of_sm100_has_tiles_of_m_of_n_and_matrices_in_whole_clusters() {
        let one = usual(Family::Sm100, [128, 128, 256]);
        assert_eq!(blocks(&one, [7, 257, 385]), [3, 4, 7]);
        // As many tiles along M as along N, or more: M lies along y, as long as it fits.
        assert_eq!(blocks(&one, [7, 385, 257]), [3, 4, 7]);
        assert_eq!(blocks(&one, [1, 65_535 * 128, 128]), [1, 65_535, 1]);
        assert_eq!(blocks(&one, [1, 65_536 * 128, 128]), [65_536, 1, 1]);
        let two = usual(Family::Sm100, [256, 256, 256]);
        assert_eq!(blocks(&two, [1, 257, 1024]), [4, 4, 1]);
        let wide = Configuration { cluster: Cluster::Static([2, 4]), ..two };
        assert_eq!(blocks(&wide, [1, 257, 1280]), [4, 8, 1]);
        assert_eq!(grid(&wide, [1, 257, 1280]).tiles, Some(32));
        let along_n =
            Configuration { order: TileOrder { raster: Raster::AlongN, swizzle: 1 }, ..one.clone() };
        assert_eq!(blocks(&along_n, [1, 65_536 * 128, 128]), [1, 65_536, 1]);
        let swapped = Configuration { swapped: true, ..one };
        assert_eq!(blocks(&swapped, [1, 385, 257]), [3, 4, 1]);
    }

    #[test]
    fn a_problem_is_launched_up_to_the_limits_and_not_beyond() {
        let small = usual(Family::Sm100, [128, 64, 256]);
        for (extents, too_many) in [
            ([65_535, 1, 8], [65_536, 1, 8]),
            ([1, 1, 65_535 * 64], [1, 1, 65_535 * 64 + 1]),
            ([1, 1 << 31, 64], [65_536, 1, 64]),
            ([1, 128 * 8, 64 * 65_535], [1, 128 * 32_769, 64 * 65_535]),
        ] {
            assert_eq!(launches(&small, extents), Ok(()), "{extents:?}");
            assert!(launches(&small, too_many).is_err(), "{too_many:?}");
        }
        let persistent = usual(Family::Sm120, [128, 128, 128]);
        assert_eq!(launches(&persistent, [1 << 22, 128, 128]), Ok(()));
        assert_eq!(launches(&persistent, [1, 128, 128 * MAX_TILES]), Ok(()));
        assert!(launches(&persistent, [1, 128, 128 * MAX_TILES + 1]).is_err());
    }

    /// Every problem that a plan permits is launched by the target's default kernels, with any cluster in a
    /// table.
    #[test]
    fn what_a_plan_admits_is_launched() {
        for target in TARGETS {
            let (Some(family), Some(capabilities)) =
                (defaults::family(target.name), crate::targets::capabilities(target.name))
            else {
                continue;
            };
            let admitted = capabilities.formats[0].grid;
            let tiles: &[[u32; 3]] = match family {
                Family::Sm120 => &[[128, 8, 128], [128, 32, 128], [128, 128, 128]],
                Family::Sm100 | Family::Sm103 => &[[128, 64, 256], [128, 128, 256], [256, 256, 256]],
            };
            let clusters: &[[u32; 2]] = match family {
                Family::Sm120 => &[[1, 1]],
                Family::Sm100 | Family::Sm103 => &[[2, 1], [4, 4], [2, 4]],
            };
            let [rows, columns] = admitted.tile;
            let rest = admitted.max_tiles / (admitted.max_columns.min(1 << 29) / columns).max(1);
            let extremes = [
                [admitted.max_matrices.min(1 << 22), 1, 1],
                [1, 1, admitted.max_columns],
                [1, rows * rest, admitted.max_columns.min(1 << 29)],
                [1, 1 << 29, columns * (admitted.max_tiles / ((1 << 29) / rows))],
                [admitted.max_matrices.min(1 << 22), rows, columns * (admitted.max_tiles / (1 << 22))],
            ];
            for (tile, cluster) in tiles.iter().flat_map(|tile| clusters.iter().map(move |it| (tile, it))) {
                let usual = usual(family, *tile);
                let configuration = Configuration { cluster: Cluster::Static(*cluster), ..usual };
                for [l, m, n] in extremes {
                    assert!(admitted.tiles(l, m, n).is_some_and(|tiles| tiles <= admitted.max_tiles));
                    assert_eq!(launches(&configuration, [l, m, n]), Ok(()), "{configuration} {l} {m} {n}");
                }
            }
        }
    }

    #[test]
    fn a_scheduler_that_a_table_names_must_launch_all_that_a_plan_admits() {
        let own =
            Configuration { scheduler: TileScheduler::Default, ..usual(Family::Sm120, [128, 128, 128]) };
        let most = [1 << 31, 1 << 31, 1 << 31];
        assert_eq!(launches_all(&own, [Some(1), None, Some(4096)], most), Ok(()));
        assert!(launches_all(&own, [None, Some(128), Some(4096)], most).is_err());
        assert!(launches_all(&own, [Some(1), Some(128), None], most).is_err());
        let usual = usual(Family::Sm120, [128, 128, 128]);
        assert_eq!(launches_all(&usual, [None; 3], most), Ok(()));
    }
}
