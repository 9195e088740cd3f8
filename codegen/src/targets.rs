//! The table of targets: data that the scheduler decides from and that the generator is held to.

use fourfold_ir::{
    BinaryKind, BlockFormat, BlockQuantizeCapability, Capabilities, ElementType, EpilogueCapability,
    FormatCapability, GridCapability, OperandCapability, OperandShape, OutputCapability, QuantizedCapability,
    QuantizedFormat, ReduceKind, UnaryKind,
};

/// What kernels are planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The name, as options and reports spell it.
    pub name: &'static str,
    /// The hardware that runs it, and how a `scaled_mma` runs there.
    pub hardware: &'static str,
    /// The formats that it takes: there are kernels, and what a plan makes of them is promised to run right.
    formats: &'static [BlockFormat],
    /// The limits of one launch of its kernels.
    grid: GridCapability,
}

/// The most blocks along y and z of a grid (CUDA Programming Guide, technical specifications). Along x there are 2^31-1.
pub const MAX_GRID_YZ: u64 = 65_535;

/// The most tiles of D that a kernel of CUTLASS's collectives has: some of its schedulers count them in an `int`.
pub const MAX_TILES: u64 = i32::MAX as u64;

/// CUTLASS's default scheduler on Sm100: the grid is (tiles of M, tiles of N, L), tiles of N in whole clusters of up to 4.
/// A cluster of 4x4 makes 16 blocks of a single tile.
const SM100_GRID: GridCapability = GridCapability {
    max_matrices: MAX_GRID_YZ,
    max_columns: MAX_GRID_YZ / 4 * 4 * 64,
    tile: [128, 64],
    max_tiles: MAX_TILES / 16,
};

/// CUTLASS's static persistent scheduler: the grid has a block for each SM, which counts all tiles in 32 bits.
const SM120_GRID: GridCapability = GridCapability {
    max_matrices: MAX_EXTENT,
    max_columns: MAX_EXTENT,
    tile: [128, 8],
    max_tiles: MAX_TILES,
};

/// Our own kernels: a grid along x, with at most 8 blocks for each tile.
const SM90_GRID: GridCapability = GridCapability {
    max_matrices: MAX_EXTENT,
    max_columns: MAX_EXTENT,
    tile: [64, 64],
    max_tiles: i32::MAX as u64 / 8,
};

/// What the generator has kernels for: FP4 by FP4. The formats with an FP8 operand have none yet.
const FP4: &[BlockFormat] = &[BlockFormat::NVFP4, BlockFormat::MXFP4];

impl Target {
    /// The most matrices, rows and columns of D that a plan for it has.
    pub(crate) fn most_extents(&self) -> [u64; 3] {
        [self.grid.max_matrices, MAX_EXTENT, self.grid.max_columns]
    }
}

/// Every target. A format is listed only when every plan within its rules generates, compiles and runs.
pub const TARGETS: &[Target] = &[
    Target {
        name: "sm_100a",
        hardware: "B200, GB200: block-scaled tensor cores (tcgen05)",
        formats: FP4,
        grid: SM100_GRID,
    },
    Target {
        name: "sm_103a",
        hardware: "B300, GB300: block-scaled tensor cores (tcgen05)",
        formats: FP4,
        grid: SM100_GRID,
    },
    Target {
        name: "sm_120a",
        hardware: "RTX 50, RTX PRO Blackwell: block-scaled tensor cores (mma.sync)",
        formats: FP4,
        grid: SM120_GRID,
    },
    Target {
        name: "sm_121a",
        hardware: "DGX Spark: block-scaled tensor cores (mma.sync)",
        formats: FP4,
        grid: SM120_GRID,
    },
    Target {
        name: "sm_90a",
        hardware: "H100, H200: FP4 is decoded, exactly, to what 16-bit tensor cores take (wgmma)",
        formats: FP4,
        grid: SM90_GRID,
    },
    Target {
        name: "cpu",
        hardware: "any processor: nothing is planned, every op runs on the fallback",
        formats: &[],
        grid: SM120_GRID,
    },
];

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// What the kernels of a target take; `None` for an unknown target.
pub fn capabilities(target: &str) -> Option<Capabilities> {
    let target = self::target(target)?;
    Some(Capabilities {
        target: target.name.to_owned(),
        formats: target.formats.iter().map(|format| format_capability(*format, target.grid)).collect(),
        block_quantize: (!target.formats.is_empty()).then(block_quantize_capability),
    })
}

/// TMA moves 16 bytes at least, from addresses that are multiples of as many.
const TMA_BYTES: u32 = 16;
/// An extent is a 32-bit signed integer in kernels.
const MAX_EXTENT: u64 = i32::MAX as u64;
/// So is an offset into scales, whose layout is made of 32-bit extents; offsets into A, B, C and D have 64 bits.
const MAX_SCALE_BYTES: u64 = i32::MAX as u64;

fn format_capability(format: BlockFormat, grid: GridCapability) -> FormatCapability {
    let bits = |element: ElementType| element.storage_bits() as u64;
    let elements_per_tma = |element| u64::from(TMA_BYTES) * 8 / bits(element);
    let with_rule = |element| OutputCapability { element, n_multiple: elements_per_tma(element) };
    let results = [ElementType::F16, ElementType::BF16, ElementType::F32];
    let matrices = results.map(with_rule).to_vec();
    // Steps round to these by converting, and nothing is read in them.
    let narrow = [ElementType::F8E4M3FN, ElementType::F8E5M2];
    FormatCapability {
        format,
        k_multiple: elements_per_tma(format.a).max(elements_per_tma(format.b)),
        max_extent: MAX_EXTENT,
        grid,
        max_scale_bytes: MAX_SCALE_BYTES,
        pointer_alignment: TMA_BYTES,
        batched: true,
        outputs: matrices.iter().copied().chain(narrow.map(with_rule)).collect(),
        c: matrices.clone(),
        epilogue: EpilogueCapability {
            elements: results.into_iter().chain(narrow).collect(),
            unary: UnaryKind::ALL.to_vec(),
            binary: BinaryKind::ALL.to_vec(),
            clamp: true,
            select: true,
            operands: OperandShape::ALL.map(|shape| operand_capability(shape, &matrices)).to_vec(),
            max_steps: MAX_STEPS,
            quantized: quantized_capabilities(),
            // Their result does not depend on the order, which sums of floats do.
            reductions: vec![ReduceKind::Amax, ReduceKind::Max],
            max_outputs: MAX_OUTPUTS,
        },
    }
}

/// The kernel of a `block_quantize` by itself. A CTA has at least one scale, so the bytes of scales bound the grid.
fn block_quantize_capability() -> BlockQuantizeCapability {
    BlockQuantizeCapability {
        inputs: vec![ElementType::BF16, ElementType::F16, ElementType::F32],
        formats: quantized_formats().to_vec(),
        max_extent: MAX_EXTENT,
        max_scale_bytes: MAX_SCALE_BYTES,
        pointer_alignment: TMA_BYTES,
    }
}

/// The formats that kernels quantize to: NVFP4, and MX with any element.
fn quantized_formats() -> [QuantizedFormat; 4] {
    let mx = |element| QuantizedFormat { element, scale: ElementType::F8E8M0FNU, block: 32 };
    let nvfp4 = QuantizedFormat { element: ElementType::F4E2M1FN, scale: ElementType::F8E4M3FN, block: 16 };
    [nvfp4, mx(ElementType::F4E2M1FN), mx(ElementType::F8E4M3FN), mx(ElementType::F8E5M2)]
}

/// The formats that an epilogue writes.
fn quantized_capabilities() -> Vec<QuantizedCapability> {
    let capability = |QuantizedFormat { element, scale, block }: QuantizedFormat| {
        let n_multiple = (u64::from(TMA_BYTES) * 8 / element.storage_bits() as u64).max(u64::from(block));
        QuantizedCapability { element, scale, block, n_multiple }
    };
    quantized_formats().map(capability).to_vec()
}

/// The most tensors that a kernel writes. With as many, all of them blocks, and everything else that an epilogue may have,
/// both families build (`fixtures/outputs/dag_out_largest.fir`; on Sm100 it spills).
const MAX_OUTPUTS: usize = 4;

/// The most steps of an epilogue. With as many, and as many operands as there may be, every default builds.
const MAX_STEPS: usize = 32;

/// TMA reads matrices, and their rows are as long as those of D: what D asks of N, they ask.
fn operand_capability(shape: OperandShape, matrices: &[OutputCapability]) -> OperandCapability {
    let most = match shape {
        OperandShape::Scalar => 8,
        // Each takes shared memory, of which Sm120 has little.
        OperandShape::Row => 3,
        OperandShape::Column => 4,
        OperandShape::Matrix => 3,
    };
    let any_n = |rule: &OutputCapability| OutputCapability { n_multiple: 1, ..*rule };
    let elements = match shape {
        OperandShape::Matrix => matrices.to_vec(),
        _ => matrices.iter().map(any_n).collect(),
    };
    OperandCapability { shape, elements, most }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cutlass::{CutlassVersion, defaults};
    use crate::{hopper, select};

    #[test]
    fn every_gpu_takes_both_fp4_formats_under_the_same_rules() {
        for name in ["sm_100a", "sm_103a", "sm_120a", "sm_121a", "sm_90a"] {
            let capabilities = capabilities(name).expect(name);
            assert_eq!(capabilities.target, name);
            assert_eq!(capabilities.formats.len(), 2);
            for format in [BlockFormat::NVFP4, BlockFormat::MXFP4] {
                let fp4 = capabilities.format(format).expect(name);
                assert_eq!((fp4.k_multiple, fp4.max_extent), (32, 2_147_483_647));
                assert_eq!((fp4.pointer_alignment, fp4.batched), (16, true));
                let multiple = |element| fp4.output(element).map(|output| output.n_multiple);
                assert_eq!(multiple(ElementType::F16), Some(8));
                assert_eq!(multiple(ElementType::BF16), Some(8));
                assert_eq!(multiple(ElementType::F32), Some(4));
                assert_eq!(multiple(ElementType::F8E4M3FN), Some(16));
                assert_eq!(multiple(ElementType::F8E5M2), Some(16));
                assert_eq!(multiple(ElementType::F4E2M1FN), None);
                assert_eq!(fp4.c(ElementType::F8E4M3FN), None);
                let blocks = fp4.epilogue.quantized.iter();
                let blocks: Vec<_> = blocks.map(|it| (it.element, it.block, it.n_multiple)).collect();
                assert_eq!(
                    blocks,
                    [
                        (ElementType::F4E2M1FN, 16, 32),
                        (ElementType::F4E2M1FN, 32, 32),
                        (ElementType::F8E4M3FN, 32, 32),
                        (ElementType::F8E5M2, 32, 32)
                    ]
                );
                assert!(fp4.epilogue.max_outputs <= crate::MAX_OUTPUTS);
                assert_eq!(fp4.c(ElementType::F32).map(|c| c.n_multiple), Some(4));
                assert_eq!(fp4.epilogue.unary, UnaryKind::ALL);
                assert_eq!(fp4.epilogue.binary, BinaryKind::ALL);
                for shape in OperandShape::ALL {
                    let rule = fp4.epilogue.operand(shape).expect("every shape is read");
                    let multiple = |element| rule.element(element).map(|rule| rule.n_multiple);
                    let matrix = shape == OperandShape::Matrix;
                    assert_eq!(multiple(ElementType::F16), Some(if matrix { 8 } else { 1 }));
                    assert_eq!(multiple(ElementType::F32), Some(if matrix { 4 } else { 1 }));
                    assert_eq!(multiple(ElementType::I32), None);
                    assert_eq!(multiple(ElementType::F8E4M3FN), None);
                }
            }
            let mxfp8 = BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 };
            assert_eq!(capabilities.format(mxfp8), None);
        }
    }

    #[test]
    fn every_format_of_every_target_has_defaults_and_no_other_has() {
        let cutlass = CutlassVersion::PINNED;
        for target in TARGETS {
            for format in FP4 {
                let defaults = defaults::family(target.name)
                    .map(|family| select::cutlass::defaults(family, *format, cutlass));
                let has_defaults = defaults.is_some_and(|defaults| !defaults.is_empty())
                    || (target.name == hopper::TARGET && hopper::takes(*format));
                assert_eq!(target.formats.contains(format), has_defaults, "{} {format}", target.name);
            }
        }
    }

    #[test]
    fn targets_without_kernels_take_nothing_and_unknown_targets_do_not_exist() {
        assert_eq!(capabilities("cpu").map(|c| c.formats.len()), Some(0));
        assert_eq!(capabilities("sm_100"), None);
    }
}
