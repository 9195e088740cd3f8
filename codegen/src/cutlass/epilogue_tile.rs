//! The part of a CTA's tile that an epilogue handles at a time: its columns, and what operands and blocks make of it.

use super::configuration::{Configuration, EpilogueSchedule, Family, OperatorClass};

impl Configuration {
    /// The same kernel with an epilogue tile that leaves room in registers for parts of so many operands, each as large
    /// as a thread's part of the accumulator. On Sm100 a thread has one row of the epilogue tile.
    pub(crate) fn for_operands(mut self, operands: usize) -> Configuration {
        const MOST_OF_32_COLUMNS: usize = 3;
        if self.family != Family::Sm120 && MOST_OF_32_COLUMNS < operands {
            self.epilogue.tile = Some([128, 16]);
        }
        self
    }

    /// The same kernel with an epilogue tile as wide as a block of this length. On Sm100 a thread has one row of the
    /// epilogue tile, and with it all of a block; on Sm120 warps tell each other.
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

/// Columns of the epilogue tile.
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

/// Columns of the epilogue tile that the builder of Sm100 decides for.
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

/// Bits of an element of C (or of D where there is none) and of D.
pub(super) fn output_bits(configuration: &Configuration) -> (u64, u64) {
    let d = configuration.d.storage_bits() as u64;
    (configuration.c.map_or(d, |c| c.storage_bits() as u64), d)
}
