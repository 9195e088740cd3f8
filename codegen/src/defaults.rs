//! Which configurations an NVFP4 kernel is built with when nothing was tuned, and which of them a problem gets.
//!
//! None of the thresholds was measured on a Blackwell GPU: they follow from how many output tiles there are for how
//! many SMs, and from how often the main loop runs.

use fourfold_ir::ElementType;

use crate::configuration::{
    Cluster, Configuration, CutlassVersion, Epilogue, EpilogueSchedule, Family, Format, Kind, Mainloop,
    Operand, OperatorClass, Sms, Stages, TileScheduler,
};

/// Extents of a problem as far as they are known when its kernel is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Rows of A and D.
    pub m: Option<u64>,
    /// Rows of B, columns of D.
    pub n: Option<u64>,
    /// What is summed over.
    pub k: Option<u64>,
}

/// The family whose kernels a target runs by default; `None` where there is none.
pub fn family(target: &str) -> Option<Family> {
    match target {
        "sm_100a" | "sm_103a" => Some(Family::Sm100),
        "sm_120a" | "sm_121a" => Some(Family::Sm120),
        _ => None,
    }
}

/// The default configurations for NVFP4 under this CUTLASS, the usual one first, with D in bf16 and without C.
/// Sm103 has none of its own: its GPU runs those of Sm100.
///
/// None spills a register in a plain linear combination; Sm120 128x64x128 is absent because it does.
pub fn defaults(family: Family, cutlass: CutlassVersion) -> Vec<Configuration> {
    match family {
        Family::Sm100 | Family::Sm103 => {
            vec![
                sm100([128, 128, 256], Sms::One),
                sm100([128, 64, 256], Sms::One),
                sm100([256, 256, 256], Sms::Two),
            ]
        }
        Family::Sm120 => {
            let widths = NARROW.iter().filter(|(_, since)| cutlass >= *since).map(|(n, _)| [128, *n, 128]);
            let tiles = [[128, 128, 128], [128, 128, 256], [128, 128, 64]];
            tiles.into_iter().chain(widths).map(sm120).collect()
        }
    }
}

/// The default for a problem, and in one sentence why. An unknown extent counts as large, but never as large enough
/// for what needs a proof. Total: every problem gets a configuration that [`defaults`] lists.
pub fn choose(family: Family, cutlass: CutlassVersion, problem: Extents) -> (Configuration, String) {
    match family {
        Family::Sm100 | Family::Sm103 => choose_sm100(problem),
        Family::Sm120 => choose_sm120(cutlass, problem),
    }
}

/// Narrow tiles of Sm120, widest first, and the CUTLASS that has them.
const NARROW: [(u32, CutlassVersion); 3] = [
    (32, CutlassVersion::new(4, 5, 0)),
    (16, CutlassVersion::new(4, 6, 0)),
    (8, CutlassVersion::new(4, 6, 0)),
];
/// SMs of a B200; other GPUs of either family have about as many (84 to 188).
const TYPICAL_SMS: u64 = 148;
/// Rows from which a tile of 256 wastes little.
const MANY_ROWS: u64 = 512;
/// K up to which a tile K of 128 would run the main loop twice or less.
const SHORT_K: u64 = 256;
/// K from which fewer, longer steps are worth their two stages.
const LONG_K: u64 = 2048;

fn choose_sm100(problem: Extents) -> (Configuration, String) {
    if let Some(tiles) = few_tiles(problem) {
        let why = format!("{tiles} tiles of 128x128 leave some of {TYPICAL_SMS} SMs idle, so tile N is 64");
        return (sm100([128, 64, 256], Sms::One), why);
    }
    match (problem.m, problem.n) {
        (Some(m), Some(n)) if m >= MANY_ROWS && n.is_multiple_of(256) => {
            let why = format!("M = {m} is large and N = {n} fills tiles of 256, so two SMs share a tile");
            (sm100([256, 256, 256], Sms::Two), why)
        }
        (None, _) => (sm100([128, 128, 256], Sms::One), "M is unknown, so the usual tile".to_owned()),
        _ => {
            let why = format!("M is below {MANY_ROWS} or N no known multiple of 256, so the usual tile");
            (sm100([128, 128, 256], Sms::One), why)
        }
    }
}

fn choose_sm120(cutlass: CutlassVersion, problem: Extents) -> (Configuration, String) {
    let narrow = NARROW.iter().filter(|(_, since)| cutlass >= *since).map(|(n, _)| *n);
    if let Some(n) = problem.n
        && let Some(width) = narrow.clone().rfind(|width| n <= u64::from(*width))
    {
        return (sm120([128, width, 128]), format!("N = {n} fits into one tile of {width} columns"));
    }
    if let Some(tiles) = few_tiles(problem)
        && let Some(width) = narrow.max()
    {
        let why =
            format!("{tiles} tiles of 128x128 leave some of {TYPICAL_SMS} SMs idle, so tile N is {width}");
        return (sm120([128, width, 128]), why);
    }
    match problem.k {
        Some(k) if k <= SHORT_K => (sm120([128, 128, 64]), format!("K = {k} is short, so tile K is 64")),
        Some(k) if k >= LONG_K => (sm120([128, 128, 256]), format!("K = {k} is long, so tile K is 256")),
        Some(k) => (sm120([128, 128, 128]), format!("K = {k} is neither short nor long, so the usual tile")),
        None => (sm120([128, 128, 128]), "K is unknown, so the usual tile".to_owned()),
    }
}

/// The number of 128x128 output tiles where it is known and too small to occupy the SMs.
fn few_tiles(problem: Extents) -> Option<u64> {
    let tiles = problem.m?.div_ceil(128).saturating_mul(problem.n?.div_ceil(128));
    (tiles < TYPICAL_SMS).then_some(tiles)
}

fn sm100(tile: [u32; 3], sms: Sms) -> Configuration {
    Configuration {
        family: Family::Sm100,
        cluster: Cluster::Static([sms.count(), 1]),
        sms,
        mainloop: Mainloop::Sm100(Kind::Nvf4),
        epilogue: Epilogue {
            schedule: EpilogueSchedule::Tma,
            sms,
            grouped: false,
            // The builder's own choice at N = 256 spills and costs two stages.
            tile: (tile[1] == 256).then_some([128, 32]),
            class: OperatorClass::BlockScaledTensorOp,
        },
        scheduler: TileScheduler::Default,
        ..sm120(tile)
    }
}

fn sm120(tile: [u32; 3]) -> Configuration {
    Configuration {
        family: Family::Sm120,
        a: Operand::k_major(Format::Nvfp4),
        b: Operand::k_major(Format::Nvfp4),
        tile,
        cluster: Cluster::Static([1, 1]),
        sms: Sms::One,
        mainloop: Mainloop::Auto,
        grouped: false,
        epilogue: Epilogue {
            schedule: EpilogueSchedule::Auto,
            sms: Sms::One,
            grouped: false,
            tile: None,
            class: OperatorClass::BlockScaledTensorOp,
        },
        stages: Stages::Auto,
        // The family's own scheduler needs a Blackwell instruction, so shipped and emulated source would differ.
        scheduler: TileScheduler::StaticPersistent,
        c: None,
        d: ElementType::BF16,
        d_row_major: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::check;
    use crate::stages::{budget, stages};

    const VERSIONS: [CutlassVersion; 4] = [
        CutlassVersion::PINNED,
        CutlassVersion::new(4, 5, 1),
        CutlassVersion::new(4, 6, 0),
        CutlassVersion::new(4, 7, 0),
    ];
    const TARGETS: [&str; 4] = ["sm_100a", "sm_103a", "sm_120a", "sm_121a"];
    const RESULTS: [ElementType; 3] = [ElementType::F16, ElementType::BF16, ElementType::F32];

    #[test]
    fn every_default_passes_every_rule_for_its_targets_with_any_c_and_d() {
        for (target, cutlass) in TARGETS.into_iter().flat_map(|t| VERSIONS.map(|v| (t, v))) {
            for configuration in defaults(family(target).expect(target), cutlass) {
                for (c, d) in RESULTS.into_iter().flat_map(|d| {
                    [None, Some(ElementType::F16), Some(ElementType::BF16), Some(ElementType::F32)]
                        .map(|c| (c, d))
                }) {
                    let configuration = configuration.with_elements(c, d);
                    assert_eq!(check(&configuration, cutlass, target), Ok(()), "{configuration} {c:?} {d:?}");
                    let budget = budget(&configuration, cutlass).expect("a formula covers every default");
                    // A column bias kept in shared memory, 512 bytes in f32, must not cost the last stages.
                    assert!((budget.capacity - budget.reserved - 512) / budget.stage >= 2, "{configuration}");
                }
            }
        }
    }

    #[test]
    fn the_defaults_of_the_pinned_version_are_three_of_each_family_by_name_and_stages() {
        let list = |family| -> Vec<(String, Option<u32>)> {
            let pinned = CutlassVersion::PINNED;
            defaults(family, pinned)
                .iter()
                .map(|configuration| configuration.with_elements(Some(ElementType::BF16), ElementType::BF16))
                .map(|configuration| (configuration.name(), stages(&configuration, pinned)))
                .collect()
        };
        assert_eq!(
            list(Family::Sm100),
            [
                ("sm100_128x128x256_1sm_c1x1".to_owned(), Some(5)),
                ("sm100_128x64x256_1sm_c1x1".to_owned(), Some(7)),
                ("sm100_256x256x256_2sm_c2x1_e128x32".to_owned(), Some(5)),
            ]
        );
        assert_eq!(
            list(Family::Sm120),
            [
                ("sm120_128x128x128_c1x1".to_owned(), Some(4)),
                ("sm120_128x128x256_c1x1".to_owned(), Some(2)),
                ("sm120_128x128x64_c1x1".to_owned(), Some(9)),
            ]
        );
    }

    #[test]
    fn every_problem_gets_a_listed_default_and_a_reason() {
        let extents =
            [0, 1, 8, 9, 16, 32, 37, 64, 91, 130, 256, 257, 384, 511, 512, 2048, 8192, 28672, u64::MAX];
        let extents: Vec<_> = extents.into_iter().map(Some).chain([None]).collect();
        let mut chosen = std::collections::BTreeSet::new();
        for (family, cutlass) in
            [Family::Sm100, Family::Sm103, Family::Sm120].into_iter().flat_map(|f| VERSIONS.map(|v| (f, v)))
        {
            let listed = defaults(family, cutlass);
            for &m in &extents {
                for (&n, &k) in extents.iter().flat_map(|n| extents.iter().map(move |k| (n, k))) {
                    let (configuration, why) = choose(family, cutlass, Extents { m, n, k });
                    assert!(listed.contains(&configuration), "{configuration} for {m:?} {n:?} {k:?}");
                    assert!(!why.is_empty() && !why.ends_with('.'), "{why}");
                    chosen.insert(configuration.name());
                }
            }
        }
        assert_eq!(chosen.len(), 9, "every default is chosen for something: {chosen:?}");
    }

    #[test]
    fn the_choice_follows_rows_columns_and_depth() {
        let name = |family, cutlass, m, n, k| choose(family, cutlass, Extents { m, n, k }).0.name();
        let pinned = CutlassVersion::PINNED;
        let sm100 = |m, n, k| name(Family::Sm100, pinned, m, n, k);
        assert_eq!(sm100(None, Some(1536), Some(384)), "sm100_128x128x256_1sm_c1x1");
        assert_eq!(sm100(Some(91), Some(1536), Some(384)), "sm100_128x64x256_1sm_c1x1");
        assert_eq!(sm100(Some(8192), Some(8192), Some(8192)), "sm100_256x256x256_2sm_c2x1_e128x32");
        assert_eq!(sm100(Some(8192), Some(8200), Some(8192)), "sm100_128x128x256_1sm_c1x1");
        assert_eq!(sm100(Some(8192), None, None), "sm100_128x128x256_1sm_c1x1");
        let sm120 = |cutlass, m, n, k| name(Family::Sm120, cutlass, m, n, k);
        assert_eq!(sm120(pinned, None, Some(1536), Some(384)), "sm120_128x128x128_c1x1");
        assert_eq!(sm120(pinned, Some(91), Some(8), Some(256)), "sm120_128x128x64_c1x1");
        assert_eq!(sm120(pinned, Some(91), Some(384), Some(2048)), "sm120_128x128x256_c1x1");
        let newer = CutlassVersion::new(4, 6, 0);
        assert_eq!(sm120(newer, None, Some(8), Some(2048)), "sm120_128x8x128_c1x1");
        assert_eq!(sm120(newer, Some(4096), Some(16), None), "sm120_128x16x128_c1x1");
        assert_eq!(sm120(newer, Some(1), Some(4096), Some(4096)), "sm120_128x32x128_c1x1");
        assert_eq!(sm120(newer, None, Some(4096), Some(4096)), "sm120_128x128x256_c1x1");
        assert_eq!(
            sm120(CutlassVersion::new(4, 5, 1), Some(4096), Some(8), Some(512)),
            "sm120_128x32x128_c1x1"
        );
    }
}
