//! Computes the columns of tensor memory that an Sm100 kernel uses in each CTA.

use super::configuration::{Configuration, Family};
use super::epilogue_tile::epilogue_columns;

/// The columns of a CTA.
pub const CAPACITY: u64 = 512;

/// The columns of a kernel, in CUTLASS's order (`set_tmem_offsets`). CUTLASS always allocates all 512, and
/// asserts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Two stages of accumulators. At tile N = 256 they overlap in the columns of one epilogue tile.
    pub accumulators: u64,
    /// One stage of the scales of A.
    pub scales_a: u64,
    /// One stage of the scales of B, padded to 128 columns of D.
    pub scales_b: u64,
}

impl Columns {
    /// The total number of columns.
    pub fn total(&self) -> u64 {
        self.accumulators + self.scales_a + self.scales_b
    }
}

/// The columns of an Sm100 kernel; `None` for other families.
pub fn columns(configuration: &Configuration) -> Option<Columns> {
    if configuration.family != Family::Sm100 {
        return None;
    }
    let [_, n, k] = configuration.tile.map(u64::from);
    let accumulators = match n {
        256 => CAPACITY.saturating_sub(epilogue_columns(configuration)),
        _ => 2 * n,
    };
    // One column holds one scale for each of 128 rows.
    let scales = k.div_ceil(u64::from(configuration.a.format.scale_vector()));
    Some(Columns { accumulators, scales_a: scales, scales_b: n.div_ceil(128) * scales })
}

#[cfg(test)]
mod tests {
    use fourfold_ir::BlockFormat;

    use super::*;
    use crate::cutlass::defaults;

    fn total(format: BlockFormat, tile: [u32; 3], epilogue_tile: Option<u32>) -> u64 {
        let mut configuration = defaults::usual(Family::Sm100, format, tile).expect("it has defaults");
        configuration.epilogue.tile = epilogue_tile.map(|columns| [128, columns]);
        columns(&configuration).expect("Sm100 has tensor memory").total()
    }

    /// Read from the builders' PTX: with 32 columns of epilogue tile, the scales of B end at column 528.
    #[test]
    fn wide_tiles_have_the_columns_that_were_read_from_kernels() {
        let wide = [256, 256, 256];
        let of = |format| [32, 64, 128].map(|columns| total(format, wide, Some(columns)));
        assert_eq!(of(BlockFormat::NVFP4), [528, 496, 432]);
        assert_eq!(of(BlockFormat::MXFP4), [504, 472, 408]);
        // The builder's choice of epilogue tile is 128 columns wide.
        assert_eq!(total(BlockFormat::NVFP4, wide, None), 432);
        assert_eq!(total(BlockFormat::NVFP4, [128, 256, 256], Some(32)), 528);
        assert_eq!(total(BlockFormat::NVFP4, [128, 128, 256], None), 288);
        assert_eq!(total(BlockFormat::NVFP4, [128, 192, 256], None), 432);
        assert_eq!(total(BlockFormat::NVFP4, [128, 64, 256], None), 160);
    }
}
