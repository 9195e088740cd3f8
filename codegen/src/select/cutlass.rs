//! Selection of CUTLASS kernels, and the configurations of kernels that a table names.

use fourfold_ir::BlockFormat;

use super::tables::default_tables;
use crate::cutlass::CutlassVersion;
use crate::cutlass::configuration::{
    Cluster, Configuration, EpilogueSchedule, Family, Mainloop, Stages, TileScheduler,
};
use crate::cutlass::defaults;
use crate::dispatch::{Collectives, EpilogueName, Kernel, ScheduleName, SchedulerName, Table};
use crate::extents::Extents;
use crate::groups::Groups;

impl Collectives {
    /// The configuration, with a bf16 D and no C. `None` if the family has no kernels for the format.
    pub fn configuration(&self, family: Family, format: BlockFormat) -> Option<Configuration> {
        let mut configuration = defaults::usual(family, format, self.tile)?;
        if let Some(cluster) = self.cluster {
            configuration.cluster = Cluster::Static(cluster);
        }
        if let Some(schedule) = self.schedule {
            configuration.mainloop = match schedule {
                ScheduleName::Cooperative => Mainloop::Cooperative,
                ScheduleName::Pingpong => Mainloop::Pingpong,
                ScheduleName::CpAsync => Mainloop::Sm100MixedTmaCpAsync,
            };
        }
        if self.epilogue == Some(EpilogueName::NoSmem) {
            configuration.epilogue.schedule = EpilogueSchedule::NoSmem;
        }
        if self.epilogue_tile.is_some() {
            configuration.epilogue.tile = self.epilogue_tile;
        }
        if let Some(stages) = self.stages {
            configuration.stages = Stages::Fixed(stages);
        }
        if let Some(scheduler) = self.scheduler {
            configuration.scheduler = match scheduler {
                SchedulerName::Own => TileScheduler::Default,
                SchedulerName::Static => TileScheduler::StaticPersistent,
                SchedulerName::StreamK => TileScheduler::StreamK,
            };
        }
        Some(configuration)
    }
}

impl Kernel {
    /// The configuration of a CUTLASS kernel, with a bf16 D and no C. `None` if the family has no kernels for
    /// the format, or for another kind of kernel.
    pub fn configuration(&self, family: Family, format: BlockFormat) -> Option<Configuration> {
        match self {
            Kernel::Cutlass(collectives) => collectives.configuration(family, format),
            Kernel::Hopper(_) => None,
        }
    }
}

/// The default configurations for a format under this CUTLASS version, the most general first, with a bf16 D
/// and no C. Empty for a format without kernels. Sm103 runs Sm100's defaults.
///
/// With a plain linear combination they spill at most [`spills`](defaults::spills) bytes.
pub fn defaults(family: Family, format: BlockFormat, cutlass: CutlassVersion) -> Vec<Configuration> {
    let Some(table) = table(family, format) else { return Vec::new() };
    let reached = table.rules.iter().filter(|rule| rule.when.cutlass.is_none_or(|least| least <= cutlass));
    let mut kernels = vec![&table.default.kernel];
    for kernel in reached.map(|rule| &rule.kernel) {
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
    }
    kernels.into_iter().filter_map(|kernel| kernel.configuration(family, format)).collect()
}

/// The default configuration for a problem, and the reason as one sentence. An unknown extent is treated as
/// large, but satisfies no condition. `None` for formats without defaults.
pub fn choose(
    family: Family,
    format: BlockFormat,
    cutlass: CutlassVersion,
    problem: Extents,
) -> Option<(Configuration, String)> {
    let pick = table(family, format)?.pick(problem, cutlass);
    Some((pick.kernel.configuration(family, format)?, pick.why))
}

/// The configuration for groups of rows, and the reason as one sentence. `None` for formats without kernels.
pub fn choose_of_groups(
    family: Family,
    format: BlockFormat,
    groups: Groups,
) -> Option<(Configuration, String)> {
    defaults::usual_of_groups(family, format, groups)
        .map(|it| (it, "the rows of each group are data, so the default tile of groups".to_owned()))
}

/// The default table of a family.
fn table(family: Family, format: BlockFormat) -> Option<&'static Table> {
    let target = match family {
        Family::Sm100 | Family::Sm103 => "sm_100a",
        Family::Sm120 => "sm_120a",
    };
    default_tables().find(target, format)
}

#[cfg(test)]
mod tests {
    use fourfold_ir::ElementType;

    use super::*;
    use crate::cutlass::defaults::{family, has_room, operands, with_room};
    use crate::cutlass::rules::check;
    use crate::cutlass::stages::{budget, stages};
    use crate::targets::{BLACKWELL_GROUPS, formats};

    const V42: CutlassVersion = CutlassVersion::new(4, 2, 0);
    const V45: CutlassVersion = CutlassVersion::new(4, 5, 0);
    const VERSIONS: [CutlassVersion; 5] =
        [V42, CutlassVersion::PINNED, V45, CutlassVersion::new(4, 6, 0), CutlassVersion::new(4, 7, 0)];
    const TARGETS: [&str; 4] = ["sm_100a", "sm_103a", "sm_120a", "sm_121a"];
    const FORMATS: [BlockFormat; 2] = [BlockFormat::NVFP4, BlockFormat::MXFP4];
    /// FP6 and FP8 in any combination with each other and FP4.
    fn of_bytes() -> Vec<BlockFormat> {
        formats()
            .into_iter()
            .filter(|format| !FORMATS.contains(format) && operands(*format).is_some())
            .collect()
    }

    const RESULTS: [ElementType; 3] = [ElementType::F16, ElementType::BF16, ElementType::F32];

    #[test]
    fn every_default_passes_every_rule_for_its_targets_with_any_c_and_d() {
        for (target, cutlass) in TARGETS.into_iter().flat_map(|t| VERSIONS.map(|v| (t, v))) {
            let family = family(target).expect(target);
            for configuration in formats().into_iter().flat_map(|format| defaults(family, format, cutlass)) {
                for (c, d) in RESULTS.into_iter().flat_map(|d| {
                    [None, Some(ElementType::F16), Some(ElementType::BF16), Some(ElementType::F32)]
                        .map(|c| (c, d))
                }) {
                    let configuration = configuration.with_elements(c, d);
                    assert_eq!(check(&configuration, cutlass, target), Ok(()), "{configuration} {c:?} {d:?}");
                    let budget = budget(&configuration, cutlass).expect("a formula covers every default");
                    // A column bias in shared memory, 512 bytes in f32, must not cost the last stages.
                    assert!((budget.capacity - budget.reserved - 512) / budget.stage >= 2, "{configuration}");
                    // Nor do as many f32 rows as an epilogue may have, after tile K is shortened.
                    let rows = 3 * 4 * u64::from(configuration.tile[1]);
                    let (held, _) = with_room(configuration, rows, cutlass);
                    assert!(has_room(&held, rows, cutlass), "{held} {c:?} {d:?}");
                }
            }
        }
    }

    /// The widest Sm100 default of each format, and its stages.
    const WIDE: [(&str, u32); 2] =
        [("sm100_256x256x256_2sm_c2x1_e128x64", 4), ("sm100_256x256x256_2sm_c2x1_e128x32", 5)];

    #[test]
    fn the_defaults_of_each_version_by_name_and_stages() {
        let list = |family, format, cutlass| -> Vec<(String, Option<u32>)> {
            defaults(family, format, cutlass)
                .iter()
                .map(|configuration| configuration.with_elements(Some(ElementType::BF16), ElementType::BF16))
                .map(|configuration| (configuration.name(), stages(&configuration, cutlass)))
                .collect()
        };
        for ((format, (wide, stages)), cutlass) in
            FORMATS.into_iter().zip(WIDE).flat_map(|it| [V42, V45].map(|cutlass| (it, cutlass)))
        {
            assert_eq!(
                list(Family::Sm100, format, cutlass),
                [
                    ("sm100_128x128x256_1sm_c1x1".to_owned(), Some(5)),
                    ("sm100_128x64x256_1sm_c1x1".to_owned(), Some(7)),
                    (wide.to_owned(), Some(stages)),
                ]
            );
        }
        let sm120 = |format, cutlass, expected: &[(&str, u32)]| {
            let expected: Vec<_> =
                expected.iter().map(|(tile, stages)| (format!("sm120_{tile}_c1x1"), Some(*stages))).collect();
            assert_eq!(list(Family::Sm120, format, cutlass), expected, "{format} {cutlass}");
        };
        sm120(BlockFormat::NVFP4, V42, &[("128x128x128", 4), ("128x128x256", 2)]);
        let narrow = [("128x128x128", 4), ("128x32x128", 7), ("128x64x128", 6), ("128x128x256", 2)];
        sm120(BlockFormat::NVFP4, V45, &narrow);
        // Half as many scales leave room for one more stage.
        sm120(BlockFormat::MXFP4, V42, &[("128x128x128", 5), ("128x128x256", 2)]);
        let narrow = [("128x128x128", 5), ("128x32x256", 3), ("128x64x128", 6), ("128x128x256", 2)];
        sm120(BlockFormat::MXFP4, V45, &narrow);
        for format in of_bytes() {
            for cutlass in [V42, V45] {
                assert_eq!(
                    list(Family::Sm100, format, cutlass),
                    [
                        ("sm100_128x128x128_1sm_c1x1".to_owned(), Some(5)),
                        ("sm100_128x64x128_1sm_c1x1".to_owned(), Some(8)),
                        ("sm100_256x256x128_2sm_c2x1_e128x32".to_owned(), Some(5)),
                    ]
                );
            }
            sm120(format, V42, &[("128x128x128", 2)]);
            sm120(format, V45, &[("128x128x128", 2), ("128x32x128", 4), ("128x64x128", 3)]);
        }
    }

    #[test]
    fn kernels_of_groups_pass_every_rule_with_any_c_and_d() {
        let groups = Groups { has_alphas: true, masked: false, blocked: false };
        for (target, format) in
            TARGETS.into_iter().flat_map(|it| formats().into_iter().map(move |format| (it, format)))
        {
            let family = family(target).expect(target);
            let chosen = choose_of_groups(family, format, groups);
            assert_eq!(chosen.is_some(), BLACKWELL_GROUPS.contains(&format), "{target} {format}");
            let Some((configuration, why)) = chosen else { continue };
            assert!(
                configuration.name().ends_with("_grouped") && !why.ends_with('.'),
                "{configuration} {why}"
            );
            assert_eq!((configuration.block_format(), configuration.groups), (Some(format), Some(groups)));
            for (c, d) in
                RESULTS.into_iter().flat_map(|d| [None, Some(ElementType::F16), Some(d)].map(|c| (c, d)))
            {
                let configuration = configuration.with_elements(c, d);
                for cutlass in VERSIONS {
                    assert_eq!(check(&configuration, cutlass, target), Ok(()), "{configuration} {c:?} {d:?}");
                    let rows = 3 * 4 * u64::from(configuration.tile[1]);
                    assert!(has_room(&configuration, rows, cutlass), "{configuration} {c:?} {d:?}");
                }
            }
        }
    }

    #[test]
    fn the_defaults_of_a_format_are_built_from_that_format() {
        for family in [Family::Sm100, Family::Sm103, Family::Sm120] {
            for (format, cutlass) in formats().into_iter().flat_map(|f| VERSIONS.map(|v| (f, v))) {
                for configuration in defaults(family, format, cutlass) {
                    assert_eq!(configuration.block_format(), Some(format), "{configuration}");
                }
            }
            let nvfp8 = BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::NVFP4 };
            let any = Extents { l: None, m: None, n: None, k: None };
            assert_eq!(defaults(family, nvfp8, CutlassVersion::PINNED), []);
            assert_eq!(choose(family, nvfp8, CutlassVersion::PINNED, any), None);
        }
    }

    #[test]
    fn every_problem_gets_a_listed_default_and_a_reason() {
        let extents =
            [0, 1, 8, 9, 16, 32, 37, 64, 91, 130, 256, 257, 384, 511, 512, 2048, 8192, 28672, u64::MAX];
        let extents: Vec<_> = extents.into_iter().map(Some).chain([None]).collect();
        let bytes = of_bytes().into_iter().map(|format| (format, 6));
        for (format, count) in [(BlockFormat::NVFP4, 9), (BlockFormat::MXFP4, 7)].into_iter().chain(bytes) {
            let mut chosen = std::collections::BTreeSet::new();
            for (family, cutlass) in [Family::Sm100, Family::Sm103, Family::Sm120]
                .into_iter()
                .flat_map(|f| VERSIONS.map(|v| (f, v)))
            {
                let listed = defaults(family, format, cutlass);
                for &m in &extents {
                    for (&n, &k) in extents.iter().flat_map(|n| extents.iter().map(move |k| (n, k))) {
                        let (configuration, why) =
                            choose(family, format, cutlass, Extents { l: Some(1), m, n, k })
                                .expect("it has defaults");
                        assert!(listed.contains(&configuration), "{configuration} for {m:?} {n:?} {k:?}");
                        assert!(!why.is_empty() && !why.ends_with('.'), "{why}");
                        chosen.insert(configuration.name());
                    }
                }
            }
            assert_eq!(chosen.len(), count, "every default of {format} is chosen for something: {chosen:?}");
        }
    }

    #[test]
    fn the_choice_follows_rows_columns_and_depth() {
        let name = |family, format, cutlass, m, n, k| {
            choose(family, format, cutlass, Extents { l: Some(1), m, n, k })
                .expect("it has defaults")
                .0
                .name()
        };
        let old = V42;
        for (format, (wide, _)) in FORMATS.into_iter().zip(WIDE) {
            let sm100 = |m, n, k| name(Family::Sm100, format, old, m, n, k);
            assert_eq!(sm100(None, Some(1536), Some(384)), "sm100_128x128x256_1sm_c1x1");
            assert_eq!(sm100(Some(91), Some(1536), Some(384)), "sm100_128x64x256_1sm_c1x1");
            assert_eq!(sm100(Some(8192), Some(8192), Some(8192)), wide);
            assert_eq!(sm100(Some(8192), Some(8200), Some(8192)), "sm100_128x128x256_1sm_c1x1");
            assert_eq!(sm100(Some(8192), None, None), "sm100_128x128x256_1sm_c1x1");
        }
        let sm120 = |cutlass, m, n, k| name(Family::Sm120, BlockFormat::NVFP4, cutlass, m, n, k);
        assert_eq!(sm120(old, None, Some(1536), Some(384)), "sm120_128x128x128_c1x1");
        assert_eq!(sm120(old, Some(91), Some(8), Some(256)), "sm120_128x128x128_c1x1");
        assert_eq!(sm120(old, Some(91), Some(384), Some(2048)), "sm120_128x128x256_c1x1");
        let (newer, between) = (CutlassVersion::new(4, 6, 0), V45);
        assert_eq!(sm120(newer, None, Some(8), Some(2048)), "sm120_128x8x128_c1x1");
        assert_eq!(sm120(newer, Some(4096), Some(16), None), "sm120_128x16x128_c1x1");
        assert_eq!(sm120(newer, Some(1), Some(4096), Some(4096)), "sm120_128x32x128_c1x1");
        assert_eq!(sm120(newer, None, Some(4096), Some(4096)), "sm120_128x128x256_c1x1");
        assert_eq!(sm120(between, Some(4096), Some(8), Some(512)), "sm120_128x32x128_c1x1");
        let mx120 = |cutlass, m, n, k| name(Family::Sm120, BlockFormat::MXFP4, cutlass, m, n, k);
        assert_eq!(mx120(old, Some(91), Some(8), Some(256)), "sm120_128x128x128_c1x1");
        assert_eq!(mx120(old, None, Some(1536), Some(4096)), "sm120_128x128x256_c1x1");
        assert_eq!(mx120(newer, None, Some(8), Some(2048)), "sm120_128x32x256_c1x1");
        assert_eq!(mx120(between, Some(1), Some(4096), Some(96)), "sm120_128x32x256_c1x1");
    }
}
