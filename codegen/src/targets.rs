//! The table of targets: the capabilities that the scheduler plans with and the generator must support.

use fourfold_ir::{
    BinaryKind, BlockFormat, BlockQuantizeCapability, Capabilities, DeviceCapability, ElementType,
    EpilogueCapability, FormatCapability, GridCapability, OperandCapability, OperandShape, OutputCapability,
    PairCapability, QuantizedCapability, QuantizedFormat, ReduceKind, UnaryKind,
};

use crate::device_tier::device_capability;

/// A target, for which kernels are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The name, as options and reports spell it.
    pub name: &'static str,
    /// The hardware, and its way of running a `scaled_mma`.
    pub hardware: &'static str,
    /// The supported formats. Every plan within a format's rules compiles and runs.
    pub(crate) formats: &'static [BlockFormat],
    /// The limits of one launch of its kernels.
    grid: GridCapability,
    /// The most shared memory of a CTA, in bytes. An SM has 1 KiB more.
    pub(crate) shared_memory: u32,
    /// The most CTAs of a cluster that row kernels use; 1 if clusters of this target were not examined.
    pub(crate) cluster_ctas: u32,
    /// True if kernels have TMA spread FP4 and FP6 over bytes, except FP4 beside FP4.
    spreads_codes: bool,
    /// The formats with kernels of groups of rows (`grouped_scaled_mma`).
    group_formats: &'static [BlockFormat],
    /// True if these kernels exist for `masked_scaled_mma`, too.
    has_masked: bool,
    /// True if a standalone `block_quantize` kernel is faster than an epilogue that quantizes.
    quantizes_apart: bool,
    /// True if an epilogue pairs columns.
    pairs: bool,
    /// True if kernels read linear scales of A as well as blocked ones.
    reads_linear_scales: bool,
}

/// The largest grid extent along y and z (CUDA Programming Guide, technical specifications). Along x it is
/// 2^31-1.
pub const MAX_GRID_YZ: u64 = 65_535;

/// The maximum number of tiles of D in a CUTLASS kernel. Some of its schedulers number them with an `int`.
pub const MAX_TILES: u64 = i32::MAX as u64;

/// CUTLASS's default scheduler on Sm100. The grid is (tiles along M, tiles along N, L), with tiles along N
/// rounded up to clusters of up to 4. A cluster of 4x4 makes 16 CTAs of a single tile.
const SM100_GRID: GridCapability = GridCapability {
    max_matrices: MAX_GRID_YZ,
    max_columns: MAX_GRID_YZ / 4 * 4 * 64,
    tile: [128, 64],
    max_tiles: MAX_TILES / 16,
};

/// CUTLASS's static persistent scheduler. The grid has one CTA per SM, and tiles are numbered with 32 bits.
const SM120_GRID: GridCapability = GridCapability {
    max_matrices: MAX_EXTENT,
    max_columns: MAX_EXTENT,
    tile: [128, 8],
    max_tiles: MAX_TILES,
};

/// Hopper kernels. The grid lies along x, with at most 8 CTAs per tile.
const SM90_GRID: GridCapability = GridCapability {
    max_matrices: MAX_EXTENT,
    max_columns: MAX_EXTENT,
    tile: [64, 64],
    max_tiles: i32::MAX as u64 / 8,
};

/// The functions of one operand that epilogues compute: those whose device code was measured.
pub const UNARY_FUNCTIONS: [UnaryKind; 13] = [
    UnaryKind::Neg,
    UnaryKind::Abs,
    UnaryKind::Exp,
    UnaryKind::Sqrt,
    UnaryKind::Rsqrt,
    UnaryKind::Reciprocal,
    UnaryKind::Tanh,
    UnaryKind::Erf,
    UnaryKind::Sigmoid,
    UnaryKind::Relu,
    UnaryKind::Gelu,
    UnaryKind::GeluTanh,
    UnaryKind::Silu,
];

/// The functions of two operands that epilogues compute.
pub const BINARY_FUNCTIONS: [BinaryKind; 6] =
    [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Div, BinaryKind::Max, BinaryKind::Min];

/// The formats of Blackwell's kernels: NVFP4, and FP4, FP6 and FP8 with MX scales in any combination.
const BLACKWELL: [BlockFormat; 1 + MX_ELEMENTS.len() * MX_ELEMENTS.len()] = {
    let mut formats = [BlockFormat::NVFP4; 1 + MX_ELEMENTS.len() * MX_ELEMENTS.len()];
    let mut index = 1;
    while index < formats.len() {
        let (a, b) = ((index - 1) / MX_ELEMENTS.len(), (index - 1) % MX_ELEMENTS.len());
        formats[index] = mx(MX_ELEMENTS[a], MX_ELEMENTS[b]);
        index += 1;
    }
    formats
};

/// The elements that Blackwell multiplies with MX scales.
const MX_ELEMENTS: [ElementType; 5] = [
    ElementType::F4E2M1FN,
    ElementType::F6E2M3FN,
    ElementType::F6E3M2FN,
    ElementType::F8E4M3FN,
    ElementType::F8E5M2,
];

/// The formats of Hopper's kernels: FP4 by FP4, FP8 with MX scales by either, and 16 bits by FP4 and FP8.
const HOPPER: &[BlockFormat] = &[
    BlockFormat::NVFP4,
    BlockFormat::MXFP4,
    BlockFormat::NVFP4.weight_only(ElementType::BF16),
    BlockFormat::NVFP4.weight_only(ElementType::F16),
    BlockFormat::MXFP4.weight_only(ElementType::BF16),
    BlockFormat::MXFP4.weight_only(ElementType::F16),
    mx(ElementType::BF16, ElementType::F8E4M3FN),
    mx(ElementType::BF16, ElementType::F8E5M2),
    mx(ElementType::F16, ElementType::F8E4M3FN),
    mx(ElementType::F16, ElementType::F8E5M2),
    mx(ElementType::F4E2M1FN, ElementType::F8E4M3FN),
    mx(ElementType::F4E2M1FN, ElementType::F8E5M2),
    mx(ElementType::F8E4M3FN, ElementType::F4E2M1FN),
    mx(ElementType::F8E5M2, ElementType::F4E2M1FN),
    mx(ElementType::F8E4M3FN, ElementType::F8E4M3FN),
    mx(ElementType::F8E4M3FN, ElementType::F8E5M2),
    mx(ElementType::F8E5M2, ElementType::F8E4M3FN),
    mx(ElementType::F8E5M2, ElementType::F8E5M2),
];

/// The formats of Hopper's kernels of groups: FP4 weights, and an A of one term.
pub(crate) const HOPPER_GROUPS: &[BlockFormat] = &[
    BlockFormat::NVFP4,
    BlockFormat::MXFP4,
    BlockFormat::NVFP4.weight_only(ElementType::BF16),
    BlockFormat::NVFP4.weight_only(ElementType::F16),
    BlockFormat::MXFP4.weight_only(ElementType::BF16),
    mx(ElementType::F8E4M3FN, ElementType::F4E2M1FN),
    mx(ElementType::F8E5M2, ElementType::F4E2M1FN),
];

/// The formats of Blackwell's kernels of groups: FP4 weights beside FP4 and e4m3.
pub(crate) const BLACKWELL_GROUPS: &[BlockFormat] =
    &[BlockFormat::NVFP4, BlockFormat::MXFP4, mx(ElementType::F8E4M3FN, ElementType::F4E2M1FN)];

/// A pair of elements with MX scales.
const fn mx(a: ElementType, b: ElementType) -> BlockFormat {
    BlockFormat { a, b, ..BlockFormat::MXFP4 }
}

impl Target {
    /// The largest L, M and N in a plan for this target.
    pub(crate) fn most_extents(&self) -> [u64; 3] {
        [self.grid.max_matrices, MAX_EXTENT, self.grid.max_columns]
    }
}

/// All targets. A format is listed only if every plan within its rules generates, compiles and runs.
pub const TARGETS: &[Target] = &[
    Target {
        name: "sm_100a",
        hardware: "B200, GB200: block-scaled tensor cores (tcgen05)",
        formats: &BLACKWELL,
        grid: SM100_GRID,
        shared_memory: 232_448,
        cluster_ctas: 8,
        spreads_codes: true,
        group_formats: BLACKWELL_GROUPS,
        has_masked: true,
        quantizes_apart: false,
        pairs: false,
        reads_linear_scales: false,
    },
    Target {
        name: "sm_103a",
        hardware: "B300, GB300: block-scaled tensor cores (tcgen05)",
        formats: &BLACKWELL,
        grid: SM100_GRID,
        shared_memory: 232_448,
        cluster_ctas: 8,
        spreads_codes: true,
        group_formats: BLACKWELL_GROUPS,
        has_masked: true,
        quantizes_apart: false,
        pairs: false,
        reads_linear_scales: false,
    },
    Target {
        name: "sm_120a",
        hardware: "RTX 50, RTX PRO Blackwell: block-scaled tensor cores (mma.sync)",
        formats: &BLACKWELL,
        grid: SM120_GRID,
        shared_memory: 101_376,
        cluster_ctas: 1,
        spreads_codes: true,
        group_formats: BLACKWELL_GROUPS,
        has_masked: true,
        quantizes_apart: false,
        pairs: false,
        reads_linear_scales: false,
    },
    Target {
        name: "sm_121a",
        hardware: "DGX Spark: block-scaled tensor cores (mma.sync)",
        formats: &BLACKWELL,
        grid: SM120_GRID,
        shared_memory: 101_376,
        cluster_ctas: 1,
        spreads_codes: true,
        group_formats: BLACKWELL_GROUPS,
        has_masked: true,
        quantizes_apart: false,
        pairs: false,
        reads_linear_scales: false,
    },
    Target {
        name: "sm_90a",
        hardware: "H100, H200: FP4 is decoded exactly for 16-bit tensor cores (wgmma)",
        formats: HOPPER,
        grid: SM90_GRID,
        shared_memory: 232_448,
        cluster_ctas: 8,
        spreads_codes: false,
        group_formats: HOPPER_GROUPS,
        has_masked: true,
        // On Hopper, threads that multiply also compute the epilogue, and only wide tiles hold whole blocks. A Llama MLP
        // of 2048 rows took 1206 µs with a quantizing epilogue on an H100, and 1089 µs with a kernel of its own.
        quantizes_apart: true,
        pairs: true,
        reads_linear_scales: true,
    },
    Target {
        name: "cpu",
        hardware: "any CPU: no kernel is planned, every op runs on the fallback",
        formats: &[],
        grid: SM120_GRID,
        shared_memory: 0,
        cluster_ctas: 1,
        spreads_codes: false,
        group_formats: &[],
        has_masked: false,
        quantizes_apart: false,
        pairs: false,
        reads_linear_scales: false,
    },
];

/// Finds a target by name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Finds a format with kernels for any target by its name, such as `bf16 x nvfp4`.
pub fn format(name: &str) -> Option<BlockFormat> {
    formats().into_iter().find(|format| format.to_string() == name)
}

/// The formats with kernels for any target, each once.
pub(crate) fn formats() -> Vec<BlockFormat> {
    let mut formats: Vec<BlockFormat> = Vec::new();
    for format in TARGETS.iter().flat_map(|target| target.formats) {
        if !formats.contains(format) {
            formats.push(*format);
        }
    }
    formats
}

/// The capabilities of a target, for planning; `None` for an unknown target.
pub fn capabilities(target: &str) -> Option<Capabilities> {
    let target = self::target(target)?;
    Some(Capabilities {
        target: target.name.to_owned(),
        formats: target.formats.iter().map(|format| format_capability(*format, target)).collect(),
        not_emulated: Vec::new(),
        block_quantize: (!target.formats.is_empty())
            .then(|| block_quantize_capability(target.quantizes_apart)),
        device: match target.formats {
            [] => DeviceCapability::default(),
            _ => device_capability(&row_formats()),
        },
    })
}

/// TMA moves at least 16 bytes, from 16-byte aligned addresses.
const TMA_BYTES: u32 = 16;
/// Kernels index extents with 32-bit signed integers.
const MAX_EXTENT: u64 = i32::MAX as u64;
/// Scale layouts have 32-bit offsets; offsets into A, B, C and D have 64 bits.
const MAX_SCALE_BYTES: u64 = i32::MAX as u64;

/// The alignment of operands.
struct OperandRules {
    /// The multiple of K.
    k_multiple: u64,
    /// The alignment of the addresses of A and B, in bytes.
    bytes: [u32; 2],
}

impl OperandRules {
    fn of(format: BlockFormat, target: &Target) -> OperandRules {
        let bits = [format.a, format.b].map(|element| element.storage_bits() as u32);
        if target.spreads_codes && !matches!(bits, [4, 4] | [8, 8]) {
            // cuTensorMapEncodeTiled requires both of the types that are spread, which are those of fewer than 8 bits.
            return OperandRules {
                k_multiple: 128,
                bytes: bits.map(|bits| if bits < 8 { 32 } else { TMA_BYTES }),
            };
        }
        let elements = bits.map(|bits| TMA_BYTES * 8 / bits);
        // K also consists of whole blocks.
        let multiple = elements[0].max(elements[1]).max(format.block);
        OperandRules { k_multiple: u64::from(multiple), bytes: [TMA_BYTES; 2] }
    }
}

/// The alignment of the addresses of A and B for a target's kernels, in bytes.
pub(crate) fn operand_alignment(format: BlockFormat, target: &Target) -> [u32; 2] {
    OperandRules::of(format, target).bytes
}

/// The largest number of groups of rows of a kernel: each CTA keeps their ends in shared memory.
pub(crate) const MAX_GROUPS: u64 = 512;

/// Returns whether an element of A is the sum of two operands on sm_90a: fp16 does not hold the scales of MX, and bf16 not
/// all bits of f16.
pub fn has_two_terms(format: BlockFormat) -> bool {
    format.a == ElementType::F16 && format.scale == ElementType::F8E8M0FNU
}

fn format_capability(format: BlockFormat, target: &Target) -> FormatCapability {
    let OperandRules { k_multiple, bytes } = OperandRules::of(format, target);
    let bits = |element: ElementType| element.storage_bits() as u64;
    let elements_per_tma = |element| u64::from(TMA_BYTES) * 8 / bits(element);
    let with_rule = |element| OutputCapability { element, n_multiple: elements_per_tma(element) };
    let results = [ElementType::F16, ElementType::BF16, ElementType::F32];
    let matrices = results.map(with_rule).to_vec();
    // Steps may round to these types by conversion, but no operand has them.
    let narrow = [ElementType::F8E4M3FN, ElementType::F8E5M2];
    FormatCapability {
        format,
        k_multiple,
        max_extent: MAX_EXTENT,
        grid: target.grid,
        max_scale_bytes: MAX_SCALE_BYTES,
        operand_alignment: bytes,
        pointer_alignment: TMA_BYTES,
        batched: true,
        has_linear_scales: target.reads_linear_scales && !format.is_weight_only(),
        max_groups: target.group_formats.contains(&format).then_some(MAX_GROUPS),
        has_masked: target.has_masked && target.group_formats.contains(&format),
        has_group_scales: target.group_formats.contains(&format) && !format.is_weight_only(),
        outputs: matrices.iter().copied().chain(narrow.map(with_rule)).collect(),
        c: matrices.clone(),
        epilogue: EpilogueCapability {
            elements: results.into_iter().chain(narrow).collect(),
            unary: UNARY_FUNCTIONS.to_vec(),
            binary: BINARY_FUNCTIONS.to_vec(),
            clamp: true,
            select: true,
            operands: OperandShape::ALL.map(|shape| operand_capability(shape, &matrices)).to_vec(),
            max_steps: MAX_STEPS,
            quantized: quantized_capabilities(),
            // Maxima do not depend on the order of elements. Sums of floats do.
            reductions: vec![ReduceKind::Amax, ReduceKind::Max],
            max_outputs: MAX_OUTPUTS,
        },
        pairs: target
            .pairs
            .then_some(PairCapability { max_block: MAX_PAIR_BLOCK, max_quantized_m: MAX_QUANTIZED_M }),
    }
}

/// The capability of the standalone `block_quantize` kernel. Each CTA has at least one scale, so the limit on
/// scale bytes bounds the grid.
fn block_quantize_capability(is_faster: bool) -> BlockQuantizeCapability {
    BlockQuantizeCapability {
        inputs: vec![ElementType::BF16, ElementType::F16, ElementType::F32],
        formats: quantized_formats().to_vec(),
        max_extent: MAX_EXTENT,
        max_scale_bytes: MAX_SCALE_BYTES,
        pointer_alignment: TMA_BYTES,
        is_faster,
    }
}

/// The formats that row kernels quantize and dequantize: NVFP4, and MX with any element type.
fn row_formats() -> Vec<QuantizedFormat> {
    let fp6 = [ElementType::F6E2M3FN, ElementType::F6E3M2FN].map(mx_blocks);
    [&quantized_formats()[..], &fp6].concat()
}

/// The formats to which other kernels quantize: those without FP6.
fn quantized_formats() -> [QuantizedFormat; 4] {
    let nvfp4 = QuantizedFormat { element: ElementType::F4E2M1FN, scale: ElementType::F8E4M3FN, block: 16 };
    let [fp4, e4m3, e5m2] =
        [ElementType::F4E2M1FN, ElementType::F8E4M3FN, ElementType::F8E5M2].map(mx_blocks);
    [nvfp4, fp4, e4m3, e5m2]
}

fn mx_blocks(element: ElementType) -> QuantizedFormat {
    QuantizedFormat { element, scale: ElementType::F8E8M0FNU, block: 32 }
}

/// The quantized formats that an epilogue writes.
fn quantized_capabilities() -> Vec<QuantizedCapability> {
    let capability = |QuantizedFormat { element, scale, block }: QuantizedFormat| {
        let n_multiple = (u64::from(TMA_BYTES) * 8 / element.storage_bits() as u64).max(u64::from(block));
        QuantizedCapability { element, scale, block, n_multiple }
    };
    quantized_formats().map(capability).to_vec()
}

/// The maximum number of output tensors. Both families build a kernel with this many, all quantized, and every other
/// part of an epilogue at its limit (`fixtures/outputs/dag_out_largest.fir`; on Sm100 it spills).
const MAX_OUTPUTS: usize = 4;

/// The largest block of a quantized output whose columns are pairs: a thread of sm_90a has 32 columns of the product.
const MAX_PAIR_BLOCK: u32 = 16;

/// The largest M of a small-M kernel, whose epilogue is cheap. A gated layer of (M, 2 · 14336, 4096) with NVFP4 output took
/// 21.4 and 29.3 µs in one kernel for M = 1 and 16 on an H200, and 23.1 and 30.2 µs in two. For M = 128, it took 61.6 and
/// 56.1 µs.
const MAX_QUANTIZED_M: u64 = 16;

/// The maximum number of steps of an epilogue. Every default builds with this many, and with the most operands.
const MAX_STEPS: usize = 32;

/// The rules for an epilogue operand. TMA reads matrices, whose rows are as long as D's, so N must meet the
/// same multiples.
fn operand_capability(shape: OperandShape, matrices: &[OutputCapability]) -> OperandCapability {
    let most = match shape {
        OperandShape::Scalar => 8,
        // Each row takes shared memory, which is scarce on Sm120.
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::cutlass::{CutlassVersion, defaults};
    use crate::{hopper, select};

    #[test]
    fn every_gpu_takes_its_formats_under_the_same_rules() {
        for name in ["sm_100a", "sm_103a", "sm_120a", "sm_121a", "sm_90a"] {
            let capabilities = capabilities(name).expect(name);
            assert_eq!(capabilities.target, name);
            for format in [BlockFormat::NVFP4, BlockFormat::MXFP4] {
                assert!(capabilities.format(format).is_some(), "{name} {format}");
            }
            for rules in &capabilities.formats {
                assert_eq!((rules.pointer_alignment, rules.batched), (16, true));
                assert_eq!(rules.max_extent, 2_147_483_647);
                let multiple = |element| rules.output(element).map(|output| output.n_multiple);
                assert_eq!(multiple(ElementType::F16), Some(8));
                assert_eq!(multiple(ElementType::BF16), Some(8));
                assert_eq!(multiple(ElementType::F32), Some(4));
                assert_eq!(multiple(ElementType::F8E4M3FN), Some(16));
                assert_eq!(multiple(ElementType::F8E5M2), Some(16));
                assert_eq!(multiple(ElementType::F4E2M1FN), None);
                assert_eq!(rules.c(ElementType::F8E4M3FN), None);
                let blocks = rules.epilogue.quantized.iter();
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
                assert!(rules.epilogue.max_outputs <= crate::MAX_OUTPUTS);
                assert_eq!(rules.c(ElementType::F32).map(|c| c.n_multiple), Some(4));
                assert_eq!(rules.epilogue.unary, UNARY_FUNCTIONS);
                assert_eq!(rules.epilogue.binary, BINARY_FUNCTIONS);
                for shape in OperandShape::ALL {
                    let rule = rules.epilogue.operand(shape).expect("every shape is read");
                    let multiple = |element| rule.element(element).map(|rule| rule.n_multiple);
                    let matrix = shape == OperandShape::Matrix;
                    assert_eq!(multiple(ElementType::F16), Some(if matrix { 8 } else { 1 }));
                    assert_eq!(multiple(ElementType::F32), Some(if matrix { 4 } else { 1 }));
                    assert_eq!(multiple(ElementType::I32), None);
                    assert_eq!(multiple(ElementType::F8E4M3FN), None);
                }
            }
        }
    }

    /// The alignments of operands are those that CUTLASS's rules require, in elements.
    #[test]
    fn blackwell_takes_mx_elements_in_any_combination_with_the_alignments_of_the_rules() {
        for name in ["sm_100a", "sm_103a", "sm_120a", "sm_121a"] {
            let capabilities = capabilities(name).expect(name);
            let formats: BTreeSet<String> =
                capabilities.formats.iter().map(|rules| rules.format.to_string()).collect();
            assert_eq!(formats.len(), 26, "{formats:?}");
            for format in ["nvfp4", "mxfp4", "mxfp6", "mxfp4 x mxfp6_e3m2", "mxfp6_e3m2 x mxfp8_e5m2"] {
                assert!(formats.contains(format), "{format} of {formats:?}");
            }
            for rules in &capabilities.formats {
                let format = rules.format;
                let operands = defaults::operands(format).expect("the format has defaults");
                let bits = operands.map(|operand| operand.format.bits());
                let (k, bytes) = match bits {
                    [4, 4] | [8, 8] => (32, [16, 16]),
                    [8, _] => (128, [16, 32]),
                    [_, 8] => (128, [32, 16]),
                    _ => (128, [32, 32]),
                };
                assert_eq!((rules.k_multiple, rules.operand_alignment), (k, bytes), "{name} {format}");
                for (operand, bytes) in operands.into_iter().zip(bytes) {
                    assert!(k.is_multiple_of(u64::from(operand.alignment)), "{name} {format}");
                    // Every row begins at an aligned address, too.
                    let row = k * u64::from(operand.format.bits()) / 8;
                    assert!(row.is_multiple_of(u64::from(bytes)), "{name} {format}");
                }
            }
        }
        for rules in capabilities("sm_90a").expect("a target").formats {
            assert_eq!((rules.k_multiple, rules.operand_alignment), (32, [16, 16]));
        }
    }

    #[test]
    fn hopper_takes_fp4_fp8_and_16_bits_beside_fp4_and_fp8() {
        let hopper = capabilities("sm_90a").expect("a target");
        let fp8 = [ElementType::F8E4M3FN, ElementType::F8E5M2];
        assert_eq!(hopper.formats.len(), 18);
        let fp4 = ElementType::F4E2M1FN;
        let of_a = |a| [fp4, fp8[0], fp8[1]].map(|b| (a, b));
        let all = [fp4, fp8[0], fp8[1], ElementType::BF16, ElementType::F16];
        for (a, b) in all.into_iter().flat_map(of_a) {
            let rules = hopper.format(BlockFormat { a, b, ..BlockFormat::MXFP4 }).expect("a format");
            assert_eq!((rules.k_multiple, rules.pointer_alignment), (32, 16));
        }
        let nvfp4 = |a| hopper.format(BlockFormat::NVFP4.weight_only(a)).is_some();
        assert!(nvfp4(ElementType::BF16) && nvfp4(ElementType::F16));
    }

    #[test]
    fn every_format_of_every_target_has_defaults_and_no_other_has() {
        let cutlass = CutlassVersion::PINNED;
        for target in TARGETS {
            for format in &formats() {
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
