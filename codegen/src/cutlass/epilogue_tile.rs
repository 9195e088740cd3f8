//! The epilogue tile: the part of a CTA's tile per epilogue step, and its adjustment to operands and blocks.

use super::configuration::{Configuration, EpilogueSchedule, Family, OperatorClass};

impl Configuration {
    /// Shrinks the epilogue tile to leave registers for this many operand fragments, each as large as a
    /// thread's fragment of the accumulator. On Sm100 a thread has one row of the epilogue tile.
    pub(crate) fn for_operands(mut self, operands: usize) -> Configuration {
        const MOST_OF_32_COLUMNS: usize = 3;
        if self.family != Family::Sm120 && MOST_OF_32_COLUMNS < operands {
            self.epilogue.tile = Some([128, 16]);
        }
        self
    }

    /// Widens the epilogue tile to the length of a quantized block. On Sm100 a thread has one row of the
    /// epilogue tile, and so a whole block; on Sm120 warps exchange data.
    pub fn for_blocks(mut self, block: Option<u32>) -> Configuration {
        let columns = epilogue_columns(&self);
        if let Some(block) = block
            && self.family != Family::Sm120
            && columns < u64::from(block)
        {
            self.epilogue.tile = Some([128, block]);
        }
        self
    }
}

/// The columns of the epilogue tile.
pub(super) fn epilogue_columns(configuration: &Configuration) -> u64 {
    match (configuration.epilogue.tile, configuration.family) {
        (Some([_, columns]), _) => u64::from(columns),
        (None, Family::Sm120) => u64::from(configuration.tile[1]).min(32),
        (None, Family::Sm100 | Family::Sm103)
            if configuration.epilogue.schedule == EpilogueSchedule::NoSmem =>
        {
            u64::from(configuration.tile[1]).min(64)
        }
        (None, Family::Sm100 | Family::Sm103) => sm100_automatic_columns(configuration),
    }
}

/// The columns of the epilogue tile that the Sm100 builder chooses.
pub(super) fn sm100_automatic_columns(configuration: &Configuration) -> u64 {
    let n = u64::from(configuration.tile[1]);
    let (c_bits, d_bits) = output_bits(configuration);
    let columns = match c_bits.max(d_bits) {
        _ if n == 256 && configuration.epilogue.class == OperatorClass::BlockScaledTensorOp => 128,
        4 if configuration.c.is_none() => 64,
        _ if configuration.c.is_none() => 32,
        32 if n <= 128 => 16,
        32 => 32,
        16 if n <= 128 => 32,
        _ => 64,
    };
    columns.min(n)
}

/// The bits per element of C (of D if there is no C) and of D.
pub(super) fn output_bits(configuration: &Configuration) -> (u64, u64) {
    let d = configuration.d.storage_bits() as u64;
    (configuration.c.map_or(d, |c| c.storage_bits() as u64), d)
}
