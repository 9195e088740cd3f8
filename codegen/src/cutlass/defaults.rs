//! Default configurations, for tables that name only a tile.

use fourfold_ir::{BlockFormat, ElementType};

use super::configuration::{
    Cluster, Configuration, Epilogue, EpilogueSchedule, Family, Format, Kind, Mainloop, Operand,
    OperatorClass, Sms, Stages, TileOrder, TileScheduler,
};
use super::stages;
use super::version::CutlassVersion;
use crate::groups::Groups;
use crate::targets;

/// The family of a target's default kernels; `None` if it has none.
pub fn family(target: &str) -> Option<Family> {
    match target {
        "sm_100a" | "sm_103a" => Some(Family::Sm100),
        "sm_120a" | "sm_121a" => Some(Family::Sm120),
        _ => None,
    }
}

/// The maximum register spills, in bytes, of a default kernel with a plain linear combination and a row. Only Sm120's
/// tile N of 64 spills, and only with nvcc 13.0, not with 13.1.115. Sm120's kernels of groups spill between tiles, and not
/// in the mainloop.
pub fn spills(configuration: &Configuration) -> u32 {
    match (configuration.family, configuration.tile[1]) {
        (Family::Sm120, _) if configuration.groups.is_some() => 96,
        (Family::Sm120, 64) => 12,
        _ => 0,
    }
}

/// The formats of A and B of a default kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    a: Format,
    b: Format,
}

impl Pair {
    /// NVFP4, or FP4, FP6 and FP8 with MX scales in any combination.
    fn of(format: BlockFormat) -> Option<Pair> {
        if format == BlockFormat::NVFP4 {
            return Some(Pair { a: Format::Nvfp4, b: Format::Nvfp4 });
        }
        let pair = Pair { a: Format::mx(format.a)?, b: Format::mx(format.b)? };
        (format.scale == ElementType::F8E8M0FNU && format.block == 32).then_some(pair)
    }

    fn kind(self) -> Kind {
        Kind::of(self.a, self.b)
    }

    fn operands(self) -> [Operand; 2] {
        [self.a, self.b].map(|format| Operand::k_major(format, self.kind()))
    }
}

/// A and B of a format, K-major, with their alignments; `None` for a format without default kernels.
pub fn operands(format: BlockFormat) -> Option<[Operand; 2]> {
    Pair::of(format).map(Pair::operands)
}

/// The default kernel of a family for a tile, with a bf16 D and no C; `None` for a format without defaults.
pub(crate) fn usual(family: Family, format: BlockFormat, tile: [u32; 3]) -> Option<Configuration> {
    let pair = Pair::of(format)?;
    Some(match family {
        Family::Sm100 | Family::Sm103 => sm100(pair, tile),
        Family::Sm120 => sm120(pair, tile),
    })
}

/// The default kernel of a family for groups of rows, with a bf16 D and no C; `None` for a format without one. Groups
/// of any number of rows share it, and tiles of 128 columns leave two stages beside any epilogue.
pub(crate) fn usual_of_groups(family: Family, format: BlockFormat, groups: Groups) -> Option<Configuration> {
    if !targets::BLACKWELL_GROUPS.contains(&format) {
        return None;
    }
    let is_of_bytes = Pair::of(format)?.kind() == Kind::Mxf8f6f4;
    let tile_k = if family == Family::Sm120 || is_of_bytes { 128 } else { 256 };
    let dense = usual(family, format, [128, 128, tile_k])?;
    // Sm120's builder recognizes groups by the layouts.
    let epilogue = Epilogue { grouped: family != Family::Sm120, ..dense.epilogue };
    Some(Configuration {
        groups: Some(groups),
        epilogue,
        // The only scheduler of groups.
        scheduler: TileScheduler::Default,
        ..dense
    })
}

/// Returns whether the epilogue's row operands leave room for the required stages: the fixed number, or the
/// minimum.
pub(crate) fn has_room(configuration: &Configuration, vector_bytes: u64, cutlass: CutlassVersion) -> bool {
    /// The granularity of the epilogue's shared storage, in bytes.
    const ROUNDING: u64 = 1024;
    let fewest = match (configuration.stages, configuration.family) {
        (Stages::Fixed(stages), _) => stages,
        (Stages::Auto, Family::Sm120) => 2,
        (Stages::Auto, Family::Sm100 | Family::Sm103) => 1,
    };
    stages::budget(configuration, cutlass).is_none_or(|budget| {
        let reserved = budget.reserved + vector_bytes.next_multiple_of(ROUNDING);
        stages::Budget { reserved, ..budget }.stages() >= fewest
    })
}

/// Shortens tile K if the epilogue's row operands leave a default kernel fewer than the two stages that Sm120
/// needs. Returns the configuration, and the reason if it was shortened.
pub(crate) fn with_room(
    chosen: Configuration,
    vector_bytes: u64,
    cutlass: CutlassVersion,
) -> (Configuration, Option<String>) {
    const SHORT: u32 = 128;
    let [m, n, k] = chosen.tile;
    if has_room(&chosen, vector_bytes, cutlass) || chosen.family != Family::Sm120 || k <= SHORT {
        return (chosen, None);
    }
    let why =
        format!("the epilogue's row operands leave no room for two stages of K = {k}, so tile K is {SHORT}");
    (Configuration { tile: [m, n, SHORT], ..chosen }, Some(why))
}

fn sm100(pair: Pair, tile: [u32; 3]) -> Configuration {
    // Rule 7 permits no other number of SMs.
    let sms = if tile[0] == 256 { Sms::Two } else { Sms::One };
    Configuration {
        family: Family::Sm100,
        cluster: Cluster::Static([sms.count(), 1]),
        sms,
        mainloop: Mainloop::Sm100(pair.kind()),
        epilogue: Epilogue {
            schedule: EpilogueSchedule::Tma,
            sms,
            grouped: false,
            // The builder's choice at N = 256 spills and costs stages. With 32 columns, NVFP4 scales do not
            // fit in tensor memory (rule 34).
            tile: (tile[1] == 256).then_some(match pair.kind() {
                Kind::Nvf4 => [128, 64],
                Kind::Mxf4 | Kind::Mxf8f6f4 => [128, 32],
            }),
            class: OperatorClass::BlockScaledTensorOp,
        },
        scheduler: TileScheduler::Default,
        ..sm120(pair, tile)
    }
}

fn sm120(pair: Pair, tile: [u32; 3]) -> Configuration {
    let [a, b] = pair.operands();
    Configuration {
        family: Family::Sm120,
        a,
        b,
        tile,
        cluster: Cluster::Static([1, 1]),
        sms: Sms::One,
        mainloop: Mainloop::Auto,
        groups: None,
        epilogue: Epilogue {
            schedule: EpilogueSchedule::Auto,
            sms: Sms::One,
            grouped: false,
            tile: None,
            class: OperatorClass::BlockScaledTensorOp,
        },
        stages: Stages::Auto,
        // The default scheduler needs a Blackwell instruction, so emulated source would differ from shipped
        // source.
        scheduler: TileScheduler::StaticPersistent,
        c: None,
        d: ElementType::BF16,
        d_row_major: true,
        order: TileOrder::default(),
        swapped: false,
    }
}
