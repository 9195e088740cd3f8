//! The programs whose kernels are simulated.

use fourfold::ir::{BlockFormat, ElementType};

/// The text of a program, parameterized by L, M, N and K.
pub struct Program {
    pub name: &'static str,
    pub format: BlockFormat,
    pub signature: &'static str,
    pub text: &'static str,
    /// The inputs besides A, B and their scales, in the order of the kernel's interface: C, alpha, beta and operands.
    pub c: &'static str,
    pub alpha: &'static str,
    pub operands: &'static [&'static str],
    /// The bytes with which the interface expects each output to be filled.
    pub fills: &'static [u8],
}

/// The byte that fills outputs, to find elements that were never written.
pub const UNWRITTEN: u8 = 0xEE;

const WEIGHT_ONLY: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %alpha: tensor<[], f32>, %c: tensor<[L, M, N], bf16>, %row: tensor<[N], f32>, %column: tensor<[L, M, 1], f16>
) {
  %d = scaled_mma %a, %b, %sfb, alpha = %alpha, c = %c {block = BLOCK} : tensor<[L, M, N], f32>
  %x = add %d, %row : tensor<[L, M, N], f32>
  %y = mul %x, %column : tensor<[L, M, N], f32>
  %z = convert %y : tensor<[L, M, N], bf16>
  return %y, %z
}
";

const VALUES: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], SCALES>,
    %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %alpha: tensor<[], f32>, %c: tensor<[L, M, N], bf16>, %row: tensor<[N], f32>, %column: tensor<[L, M, 1], f16>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha, c = %c {block = BLOCK} : tensor<[L, M, N], f32>
  %x = add %d, %row : tensor<[L, M, N], f32>
  %y = mul %x, %column : tensor<[L, M, N], f32>
  %z = convert %y : tensor<[L, M, N], bf16>
  return %y, %z
}
";

/// Scales of A are linear.
const LINEAR_VALUES: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], LINEAR>,
    %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %alpha: tensor<[], f32>, %c: tensor<[L, M, N], bf16>, %row: tensor<[N], f32>, %column: tensor<[L, M, 1], f16>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha, c = %c {block = BLOCK} : tensor<[L, M, N], f32>
  %x = add %d, %row : tensor<[L, M, N], f32>
  %y = mul %x, %column : tensor<[L, M, N], f32>
  %z = convert %y : tensor<[L, M, N], bf16>
  return %y, %z
}
";

pub const BLOCKS: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], SCALES>,
    %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>, %g: tensor<[], f32>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = BLOCK} : tensor<[L, M, N], f32>
  %y = relu %d : tensor<[L, M, N], f32>
  %narrow = convert %y : tensor<[L, M, N], f16>
  %q, %s = block_quantize %narrow, %g {block = 16} : tensor<[L, M, N], f4E2M1FN>, tensor<[L, M, P], f8E4M3FN, blocked>
  %amax = reduce %y {axes = [2], keep_dims = true, kind = amax} : tensor<[L, M, 1], f32>
  return %narrow, %q, %s, %amax
}
";

/// F is half of N. The even columns of the product are the gate.
const PAIR_VALUES: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], SCALES>,
    %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %alpha: tensor<[], f32>, %row: tensor<[F], f32>, %column: tensor<[L, M, 1], f16>, %matrix: tensor<[L, M, F], bf16>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha {block = BLOCK} : tensor<[L, M, N], f32>
  %gate = slice %d {axes = [2], starts = [0], ends = [N], steps = [2]} : tensor<[L, M, F], f32>
  %up = slice %d {axes = [2], starts = [1], ends = [N], steps = [2]} : tensor<[L, M, F], f32>
  %biased = add %gate, %row : tensor<[L, M, F], f32>
  %activated = relu %biased : tensor<[L, M, F], f32>
  %x = mul %up, %column : tensor<[L, M, F], f32>
  %y = mul %activated, %x : tensor<[L, M, F], f32>
  %sum = add %y, %matrix : tensor<[L, M, F], f32>
  %z = convert %sum : tensor<[L, M, F], bf16>
  return %y, %z
}
";

/// Blocks of 16 columns, each a pair of columns of the product.
pub const PAIR_BLOCKS: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], SCALES>,
    %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>, %g: tensor<[], f32>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = BLOCK} : tensor<[L, M, N], f32>
  %gate = slice %d {axes = [2], starts = [0], ends = [N], steps = [2]} : tensor<[L, M, F], f32>
  %up = slice %d {axes = [2], starts = [1], ends = [N], steps = [2]} : tensor<[L, M, F], f32>
  %activated = relu %gate : tensor<[L, M, F], f32>
  %y = mul %activated, %up : tensor<[L, M, F], f32>
  %narrow = convert %y : tensor<[L, M, F], f16>
  %q, %s = block_quantize %narrow, %g {block = 16} : tensor<[L, M, F], f4E2M1FN>, tensor<[L, M, P], f8E4M3FN, blocked>
  %amax = reduce %y {axes = [2], keep_dims = true, kind = amax} : tensor<[L, M, 1], f32>
  %max = reduce %y {axes = [0, 1], kind = max} : tensor<[F], f32>
  return %q, %s, %amax, %max
}
";

/// Programs that pair the columns of a product.
pub const PAIR_PROGRAMS: [Program; 4] = [
    pair_values(
        "nvfp4_pair_values",
        BlockFormat::NVFP4,
        "nvfp4 pair alpha row=f32 column=f16 matrix=bf16 d=f32@s3 d=bf16",
    ),
    pair_values(
        "mxfp4_pair_values",
        BlockFormat::MXFP4,
        "mxfp4 pair alpha row=f32 column=f16 matrix=bf16 d=f32@s3 d=bf16",
    ),
    pair_values(
        "mxfp8_mxfp4_pair_values",
        BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        "mxfp8 x mxfp4 pair alpha row=f32 column=f16 matrix=bf16 d=f32@s3 d=bf16",
    ),
    Program {
        name: "nvfp4_pair_blocks",
        format: BlockFormat::NVFP4,
        signature: "nvfp4 pair scalar=f32 q=f4E2M1FN:f8E4M3FN/16*x0 amax=column@s1 max=row@s1",
        text: PAIR_BLOCKS,
        c: "",
        alpha: "",
        operands: &["g"],
        fills: &[UNWRITTEN, 0, 0, 0xFF],
    },
];

/// A program of `PAIR_VALUES`.
const fn pair_values(name: &'static str, format: BlockFormat, signature: &'static str) -> Program {
    Program {
        name,
        format,
        signature,
        text: PAIR_VALUES,
        c: "",
        alpha: "alpha",
        operands: &["row", "column", "matrix"],
        fills: &[UNWRITTEN; 2],
    }
}

pub const PROGRAMS: [Program; 8] = [
    Program {
        name: "nvfp4_values",
        format: BlockFormat::NVFP4,
        signature: "nvfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
        text: VALUES,
        c: "c",
        alpha: "alpha",
        operands: &["row", "column"],
        fills: &[UNWRITTEN; 2],
    },
    Program {
        name: "mxfp4_values",
        format: BlockFormat::MXFP4,
        signature: "mxfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
        text: VALUES,
        c: "c",
        alpha: "alpha",
        operands: &["row", "column"],
        fills: &[UNWRITTEN; 2],
    },
    Program {
        name: "nvfp4_blocks",
        format: BlockFormat::NVFP4,
        signature: "nvfp4 scalar=f32 d=f16 q=f4E2M1FN:f8E4M3FN/16*x0 amax=column@s0",
        text: BLOCKS,
        c: "",
        alpha: "",
        operands: &["g"],
        fills: &[UNWRITTEN, UNWRITTEN, 0, 0],
    },
    mx(
        "mxfp8_mxfp4_values",
        ElementType::F8E4M3FN,
        ElementType::F4E2M1FN,
        "mxfp8 x mxfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    mx(
        "mxfp8_values",
        ElementType::F8E4M3FN,
        ElementType::F8E4M3FN,
        "mxfp8 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    mx(
        "mxfp8_e5m2_values",
        ElementType::F8E5M2,
        ElementType::F8E5M2,
        "mxfp8_e5m2 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    mx(
        "mxfp4_mxfp8_values",
        ElementType::F4E2M1FN,
        ElementType::F8E4M3FN,
        "mxfp4 x mxfp8 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    mx(
        "mxfp4_mxfp8_e5m2_values",
        ElementType::F4E2M1FN,
        ElementType::F8E5M2,
        "mxfp4 x mxfp8_e5m2 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
];

/// Programs of `LINEAR_VALUES`: each way of loading scales, and each width of A.
pub const LINEAR_PROGRAMS: [Program; 3] = [
    values(
        "nvfp4_linear_values",
        BlockFormat::NVFP4,
        LINEAR_VALUES,
        "nvfp4 linear alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "mxfp8_mxfp4_linear_values",
        BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        LINEAR_VALUES,
        "mxfp8 x mxfp4 linear alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "mxfp4_mxfp8_linear_values",
        BlockFormat { b: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        LINEAR_VALUES,
        "mxfp4 x mxfp8 linear alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
];

/// Programs of `WEIGHT_ONLY`.
pub const WEIGHT_ONLY_PROGRAMS: [Program; 7] = [
    values(
        "bf16_nvfp4_values",
        BlockFormat::NVFP4.weight_only(ElementType::BF16),
        WEIGHT_ONLY,
        "bf16 x nvfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "f16_nvfp4_values",
        BlockFormat::NVFP4.weight_only(ElementType::F16),
        WEIGHT_ONLY,
        "f16 x nvfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "bf16_mxfp4_values",
        BlockFormat::MXFP4.weight_only(ElementType::BF16),
        WEIGHT_ONLY,
        "bf16 x mxfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "bf16_mxfp8_values",
        BlockFormat { a: ElementType::BF16, b: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        WEIGHT_ONLY,
        "bf16 x mxfp8 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "bf16_mxfp8_e5m2_values",
        BlockFormat { a: ElementType::BF16, b: ElementType::F8E5M2, ..BlockFormat::MXFP4 },
        WEIGHT_ONLY,
        "bf16 x mxfp8_e5m2 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "f16_mxfp4_values",
        BlockFormat::MXFP4.weight_only(ElementType::F16),
        WEIGHT_ONLY,
        "f16 x mxfp4 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
    values(
        "f16_mxfp8_values",
        BlockFormat { a: ElementType::F16, b: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        WEIGHT_ONLY,
        "f16 x mxfp8 alpha c=bf16 row=f32 column=f16 d=f32@s1 d=bf16",
    ),
];

impl Program {
    /// Returns whether outputs have blocks.
    pub fn has_blocks(&self) -> bool {
        [BLOCKS, PAIR_BLOCKS].contains(&self.text)
    }

    /// Returns whether the epilogue pairs columns.
    pub fn pairs(&self) -> bool {
        self.text.contains("steps = [2]")
    }

    /// The FP8 type of A, or else of B.
    pub fn fp8(&self) -> Option<ElementType> {
        [self.format.a, self.format.b]
            .into_iter()
            .find(|it| [ElementType::F8E4M3FN, ElementType::F8E5M2].contains(it))
    }
}

/// A program of `VALUES` with MX scales.
const fn mx(name: &'static str, a: ElementType, b: ElementType, signature: &'static str) -> Program {
    values(name, BlockFormat { a, b, ..BlockFormat::MXFP4 }, VALUES, signature)
}

/// A program of `VALUES`, `LINEAR_VALUES` or `WEIGHT_ONLY`.
const fn values(
    name: &'static str,
    format: BlockFormat,
    text: &'static str,
    signature: &'static str,
) -> Program {
    Program {
        name,
        format,
        signature,
        text,
        c: "c",
        alpha: "alpha",
        operands: &["row", "column"],
        fills: &[UNWRITTEN; 2],
    }
}
