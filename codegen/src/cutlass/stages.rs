//! The number of mainloop stages that fit in shared memory, computed before compilation.
//!
//! The formula reproduces every dense and grouped Sm100 and Sm120 number in `fixtures/combos.jsonl`, for both
//! CUTLASS versions there. Other element types and epilogue tiles follow CUTLASS's builders. It covers the
//! plain linear combination. An epilogue that keeps a bias or another tensor in shared memory adds bytes:
//! [`Budget::slack`] is the number that fits before a stage is lost. The built kernel's actual number is read
//! back.

use super::configuration::{Configuration, EpilogueSchedule, Family, Kind, Stages};
use super::epilogue_tile::{output_bits, sm100_automatic_columns};
use super::version::CutlassVersion;

/// The shared memory of one CTA, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The hardware's capacity.
    pub capacity: u64,
    /// The bytes of the epilogue and of the kernel's own state.
    pub reserved: u64,
    /// The bytes of one stage, including its barriers.
    pub stage: u64,
}

impl Budget {
    /// The number of whole stages that fit, possibly 0.
    pub fn stages(&self) -> u32 {
        u32::try_from(self.capacity.saturating_sub(self.reserved) / self.stage).unwrap_or(u32::MAX)
    }

    /// The bytes that can still be reserved before a stage is lost.
    pub fn slack(&self) -> u64 {
        self.capacity.saturating_sub(self.reserved) % self.stage
    }
}

/// The number of stages of a kernel: the explicit number, or as many as fit (possibly 0). `None` if neither
/// formula nor table covers the configuration, as for most of Sm103.
pub fn stages(configuration: &Configuration, cutlass: CutlassVersion) -> Option<u32> {
    match configuration.stages {
        Stages::Fixed(stages) => Some(stages),
        Stages::Auto => automatic_stages(configuration, cutlass),
    }
}

/// The number of stages that fit, regardless of the configuration's own. `None` as for [`stages`].
pub fn automatic_stages(configuration: &Configuration, cutlass: CutlassVersion) -> Option<u32> {
    match configuration.family {
        Family::Sm103 => sm103_stages(configuration),
        Family::Sm100 | Family::Sm120 => Some(budget(configuration, cutlass)?.stages()),
    }
}

/// The shared-memory budget. `None` on Sm103, whose two pipelines have no formula, and if the epilogue tile
/// does not divide the CTA tile.
pub fn budget(configuration: &Configuration, cutlass: CutlassVersion) -> Option<Budget> {
    let capacity = match configuration.family {
        Family::Sm100 => 232_448,
        Family::Sm120 => 101_376,
        Family::Sm103 => return None,
    };
    // Too large for any shared memory, and for the products below.
    if configuration.tile.iter().any(|extent| *extent > 1 << 16) {
        return Some(Budget { capacity, reserved: capacity, stage: u64::MAX });
    }
    let reserved = match configuration.family {
        Family::Sm100 => sm100_reserved(configuration, cutlass)?,
        Family::Sm120 | Family::Sm103 => sm120_reserved(configuration)?,
    };
    Some(Budget { capacity, reserved, stage: stage_bytes(configuration) + pipeline_bytes(cutlass) })
}

const KIB: u64 = 1024;

/// The bytes of A, B and both scale tiles. Each CTA of a pair loads half of A and half of B, but all scales
/// of B.
fn stage_bytes(configuration: &Configuration) -> u64 {
    let [m, n, k] = configuration.tile.map(u64::from);
    let sms = u64::from(configuration.sms.count());
    let bits = match configuration.kind() {
        Kind::Nvf4 | Kind::Mxf4 => 4,
        // TMA unpacks every element into a byte.
        Kind::Mxf8f6f4 => 8,
    };
    let vector = u64::from(configuration.a.format.scale_vector());
    let scales = |rows: u64| rows.next_multiple_of(128) * k.div_ceil(vector).next_multiple_of(4);
    (m / sms + n / sms) * k * bits / 8 + scales(m / sms) + scales(n)
}

/// The bytes that the builder reserves for the barriers of a stage: 16 before pipelines were aligned.
fn pipeline_bytes(cutlass: CutlassVersion) -> u64 {
    if aligned_pipelines(cutlass) { 128 } else { 16 }
}

/// Returns whether pipelines are aligned: since 4.2.2, 4.3.6 and 4.4.0.
fn aligned_pipelines(cutlass: CutlassVersion) -> bool {
    let since = match (cutlass.major, cutlass.minor) {
        (4, 2) => CutlassVersion::new(4, 2, 2),
        (4, 3) => CutlassVersion::new(4, 3, 6),
        _ => CutlassVersion::new(4, 4, 0),
    };
    cutlass >= since
}

/// The number of epilogue tiles in a CTA tile; `None` if they do not divide it.
fn epilogue_tiles(configuration: &Configuration, [rows, columns]: [u64; 2]) -> Option<u64> {
    let [m, n, _] = configuration.cta_tile().map(u64::from);
    let divides = rows > 0 && columns > 0 && m.is_multiple_of(rows) && n.is_multiple_of(columns);
    divides.then(|| (m / rows) * (n / columns))
}

/// The bytes of epilogue storage beside its tiles: twice the alignment of their swizzle.
fn epilogue_rounding(columns: u64, bits: u64) -> u64 {
    2 * (columns * bits / 8).clamp(16, 128) * 8
}

fn sm100_reserved(configuration: &Configuration, cutlass: CutlassVersion) -> Option<u64> {
    let epilogue = if configuration.epilogue.schedule == EpilogueSchedule::NoSmem {
        KIB
    } else {
        sm100_epilogue_bytes(configuration)?
    };
    let tensor_maps = match (configuration.groups.is_some(), aligned_pipelines(cutlass)) {
        (false, _) => 0,
        (true, true) => 9 * KIB / 2,
        (true, false) => KIB,
    };
    Some(epilogue + KIB / 2 + tensor_maps)
}

/// The bytes of C and D tiles in flight. D reuses C's buffers if C is wider than 8 bits.
fn sm100_epilogue_bytes(configuration: &Configuration) -> Option<u64> {
    let (c_bits, d_bits) = output_bits(configuration);
    let tile = match configuration.epilogue.tile {
        Some(tile) => tile.map(u64::from),
        None => [128, sm100_automatic_columns(configuration)],
    };
    let tiles = epilogue_tiles(configuration, tile)?;
    let bytes = |bits: u64| tile[0] * tile[1] * bits / 8;
    let (c_stages, d_stages) = (tiles.min(4), tiles.min(2));
    let tiles_in_flight = match configuration.c {
        None => d_stages * bytes(d_bits),
        Some(_) if c_bits > 8 => c_stages.max(d_stages + 1) * bytes(c_bits.max(d_bits)),
        Some(_) => c_stages * bytes(c_bits) + d_stages * bytes(d_bits),
    };
    Some(tiles_in_flight + epilogue_rounding(tile[1], c_bits.max(d_bits)))
}

fn sm120_reserved(configuration: &Configuration) -> Option<u64> {
    let n = u64::from(configuration.tile[1]);
    let (c_bits, d_bits) = output_bits(configuration);
    let tile = configuration.epilogue.tile.map_or([64, n.min(32)], |tile| tile.map(u64::from));
    let tiles = epilogue_tiles(configuration, tile)?;
    let bytes = |bits: u64| tile[0] * tile[1] * bits / 8;
    let d_stages = tiles.min(2);
    let epilogue = match configuration.c {
        None => d_stages * bytes(d_bits),
        Some(_) if c_bits == d_bits && d_bits > 8 => tiles.min(2).max(d_stages + 1) * bytes(d_bits),
        Some(_) => d_stages * (bytes(c_bits) + bytes(d_bits)),
    };
    // Fitted to builds with the narrowest tiles.
    let kernel = match n {
        ..=8 => 3 * KIB,
        9..=16 => 2 * KIB,
        _ => epilogue_rounding(tile[1], c_bits.max(d_bits)),
    };
    Some(epilogue + kernel)
}

/// Measured in builds with a 16-bit C and D.
fn sm103_stages(configuration: &Configuration) -> Option<u32> {
    let sixteen = output_bits(configuration) == (16, 16) && configuration.c.is_some();
    if !sixteen
        || configuration.groups.is_some()
        || configuration.epilogue.tile.is_some()
        || configuration.tile[2] != 768
    {
        return None;
    }
    match (configuration.epilogue.schedule, configuration.sms.count(), configuration.tile[1]) {
        (EpilogueSchedule::NoSmem, 1, 128) => Some(6),
        (EpilogueSchedule::NoSmem, ..) => None,
        (_, 1, 128) | (_, 2, 192) => Some(5),
        (_, 1, 192) | (_, 2, 256) => Some(3),
        (_, 1, 256) => Some(2),
        (_, 2, 128) => Some(7),
        _ => None,
    }
}
