//! Default configurations, for tables that name only a tile.

use fourfold_ir::{BlockFormat, ElementType};

use super::configuration::{
    Cluster, Configuration, Epilogue, EpilogueSchedule, Family, Format, Kind, Mainloop, Operand,
    OperatorClass, Sms, Stages, TileOrder, TileScheduler,
};
use super::stages;
use super::version::CutlassVersion;

/// The family of a target's default kernels; `None` if it has none.
pub fn family(target: &str) -> Option<Family> {
    match target {
        "sm_100a" | "sm_103a" => Some(Family::Sm100),
        "sm_120a" | "sm_121a" => Some(Family::Sm120),
        _ => None,
    }
}

/// The maximum register spills, in bytes, of a default kernel with a plain linear combination and a row. Only Sm120's
/// tile N of 64 spills, and only with nvcc 13.0, not with 13.1.115.
pub fn spills(configuration: &Configuration) -> u32 {
    match (configuration.family, configuration.tile[1]) {
        (Family::Sm120, 64) => 12,
        _ => 0,
    }
}

/// The formats with default kernels: FP4 by FP4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fp4 {
    Nv,
    Mx,
}

impl Fp4 {
    fn of(format: BlockFormat) -> Option<Fp4> {
        match format {
            BlockFormat::NVFP4 => Some(Fp4::Nv),
            BlockFormat::MXFP4 => Some(Fp4::Mx),
            _ => None,
        }
    }

    fn operand(self) -> Operand {
        Operand::k_major(match self {
            Fp4::Nv => Format::Nvfp4,
            Fp4::Mx => Format::Mxfp4,
        })
    }

    fn kind(self) -> Kind {
        match self {
            Fp4::Nv => Kind::Nvf4,
            Fp4::Mx => Kind::Mxf4,
        }
    }
}

/// The default kernel of a family for a tile, with a bf16 D and no C; `None` for a format without defaults.
pub(crate) fn usual(family: Family, format: BlockFormat, tile: [u32; 3]) -> Option<Configuration> {
    let fp4 = Fp4::of(format)?;
    Some(match family {
        Family::Sm100 | Family::Sm103 => sm100(fp4, tile),
        Family::Sm120 => sm120(fp4, tile),
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

fn sm100(fp4: Fp4, tile: [u32; 3]) -> Configuration {
    // Rule 7 permits no other number of SMs.
    let sms = if tile[0] == 256 { Sms::Two } else { Sms::One };
    Configuration {
        family: Family::Sm100,
        cluster: Cluster::Static([sms.count(), 1]),
        sms,
        mainloop: Mainloop::Sm100(fp4.kind()),
        epilogue: Epilogue {
            schedule: EpilogueSchedule::Tma,
            sms,
            grouped: false,
            // The builder's choice at N = 256 spills and costs stages. With 32 columns, NVFP4 scales do not
            // fit in tensor memory (rule 34).
            tile: (tile[1] == 256).then_some(match fp4 {
                Fp4::Nv => [128, 64],
                Fp4::Mx => [128, 32],
            }),
            class: OperatorClass::BlockScaledTensorOp,
        },
        scheduler: TileScheduler::Default,
        ..sm120(fp4, tile)
    }
}

fn sm120(fp4: Fp4, tile: [u32; 3]) -> Configuration {
    Configuration {
        family: Family::Sm120,
        a: fp4.operand(),
        b: fp4.operand(),
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
