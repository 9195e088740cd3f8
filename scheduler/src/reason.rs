//! Reason codes: stable names of the reasons why an op is not in a kernel. Scripts may rely on them.

use std::fmt;

use fourfold_ir::{Dim, ElementType, Module};

use crate::geometry::scale_bytes;

macro_rules! define_codes {
    ($($(#[$attr:meta])* $variant:ident = $text:literal, $advice:literal;)*) => {
        /// The reason why an op is not in a kernel segment. The text of a code never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ReasonCode { $($(#[$attr])* $variant,)* }

        impl ReasonCode {
            /// All codes.
            pub const ALL: &'static [ReasonCode] = &[$(ReasonCode::$variant,)*];

            /// The stable text.
            pub fn as_str(self) -> &'static str {
                match self { $(ReasonCode::$variant => $text,)* }
            }

            /// A remedy for the author of the program.
            pub fn advice(self) -> &'static str {
                match self { $(ReasonCode::$variant => $advice,)* }
            }
        }
    };
}

define_codes! {
    /// The op is a plain `mma`, which never becomes a kernel.
    NotScaledMma = "not_scaled_mma",
        "block-quantize both operands and multiply with scaled_mma, allow contract rules for a dequantized mma, or use the host's own GEMM";
    /// The op is a `grouped_scaled_mma` or `masked_scaled_mma`, for which the target has no kernel.
    GroupedUnsupported = "grouped_unsupported",
        "nothing to do: the fallback runs it; kernels take FP4 weights";
    /// The op is not a `scaled_mma`, and it uses no result of a kernel.
    NoScaledMmaProducer = "no_scaled_mma_producer",
        "nothing to do: a kernel runs a scaled_mma and the elementwise ops, quantizations and reductions after it";
    /// The op uses a kernel's result, but no epilogue computes it, or not with these attributes.
    UnsupportedEpilogueOp = "unsupported_epilogue_op",
        "keep it as a separate op, or rewrite it to a form that the message names";
    /// With the op, the kernel would have too many outputs, because its values are also used elsewhere. Or
    /// another operand is computed outside from values that the kernel must write first.
    ValueEscapes = "value_escapes",
        "use or return fewer intermediate values, or recompute one where it is needed";
    /// A or B has a batch that the kernel does not support.
    OperandLayout = "operand_layout",
        "give B the batch of A, make M a multiple of 128, or give A linear scales (sm_90a)";
    /// A scale operand is not in the blocked layout.
    ScaleLayout = "scale_layout",
        "insert swizzle_scales (for weights once, as a param); normalization inserts it, except for groups of rows";
    /// No hardware multiplies a format with this scale type and block.
    ScaleDtype = "scale_dtype",
        "use f8E4M3FN scales per 16 (NVFP4) or f8E8M0FNU scales per 32 (MX)";
    /// K is not a multiple that the format requires.
    KAlignment = "k_alignment",
        "pad K with zero codes to the multiple that the message names";
    /// N is not a multiple that an output or the type of C requires.
    NAlignment = "n_alignment",
        "pad N to the multiple that the message names, or choose a wider output type";
    /// An extent is zero or exceeds a limit of kernels.
    ExtentRange = "extent_range",
        "split the operand, or drop the empty multiplication";
    /// The target has no kernel for this format.
    TargetLacksFormat = "target_lacks_format",
        "choose another target, or quantize to a format that this one supports";
    /// The target has kernels for this format, but they cannot be emulated.
    FormatNotEmulated = "format_not_emulated",
        "run without emulation, on a GPU of the target, or quantize to a format that emulation supports";
    /// A has 16 bits, and every kernel of the target takes a block-scaled A.
    WeightOnly = "weight_only",
        "quantize A with block_quantize: to MXFP8 for MX weights (W4A8), to NVFP4 for NVFP4 weights (W4A4)";
    /// The kernel cannot compute or write this element type, or read it as C.
    OutputDtype = "output_dtype",
        "give C and the result of the scaled_mma or of the last convert an element type that the message names";
    /// Another operand has a shape or type that no epilogue reads, or makes the result larger than D.
    OperandShape = "operand_shape",
        "pass it in f16, bf16 or f32: as a scalar, a row ([N] or [1, N]), a column ([.., M, 1]), or in D's shape";
    /// The kernel already has the most steps, or the most operands of a shape.
    EpilogueLimit = "epilogue_limit",
        "nothing to do: the remaining ops run after the kernel; a shorter epilogue would fit";
    /// The target quantizes faster in a kernel of its own than in an epilogue.
    FasterAlone = "faster_alone",
        "nothing to do: a kernel of the device tier quantizes the result";
    /// The op chooses between values by an extent.
    Choice = "choice",
        "nothing to do: it takes no time, and segments that compute other values only do not run";
    /// The op ends a block quantization written out op by op, which differs from every `block_quantize`.
    WrittenQuantization = "written_quantization",
        "change the op that the message names to the expected form, or use block_quantize";
    /// The target is `cpu`, for which nothing is planned.
    CpuTarget = "cpu_target",
        "choose a GPU target to plan kernels";
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A reason code with the details of one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The stable code.
    pub code: ReasonCode,
    /// For people: the value found and the value expected.
    pub message: String,
}

impl Rejection {
    /// Makes a reason from a code and a message.
    pub fn new(code: ReasonCode, message: impl Into<String>) -> Rejection {
        Rejection { code, message: message.into() }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

/// Lists element types for a message: `f16, bf16 or f32`.
pub(crate) fn element_list(elements: impl IntoIterator<Item = ElementType>) -> String {
    let names: Vec<_> = elements.into_iter().map(ElementType::name).collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The message for an extent beyond a limit.
pub(crate) fn extent_message(name: &str, found: impl fmt::Display, limit: u64) -> String {
    format!("{name} is {found}; expected at most {limit}")
}

/// The first extent beyond a limit, worded for a message.
pub(crate) fn exceeded_extent<'a>(
    module: &Module,
    extents: impl IntoIterator<Item = (&'a str, &'a Dim)>,
    limit: u64,
) -> Option<String> {
    let beyond = |dim: &Dim| dim.as_fixed().is_some_and(|extent| limit < extent);
    let (name, dim) = extents.into_iter().find(|(_, dim)| beyond(dim))?;
    Some(extent_message(name, module.display_dim(dim), limit))
}

/// The message for blocked scales of a tensor of L matrices of M rows of K elements, if all extents are fixed and the
/// scales have more bytes than the limit.
pub(crate) fn exceeded_scales(extents: [&Dim; 3], block: u32, limit: u64) -> Option<String> {
    let known = extents.map(Dim::as_fixed);
    let is_known = known.iter().all(Option::is_some);
    let fits = !is_known || scale_bytes(known, block).is_some_and(|bytes| bytes <= limit);
    (!fits).then(|| scale_message("a block-scaled tensor", limit))
}

/// The message for blocked scales beyond the byte limit.
pub(crate) fn scale_message(name: &str, limit: u64) -> String {
    format!("the scales of {name} are too large; expected at most {limit} bytes")
}

/// The message for a result beyond the tile limit.
pub(crate) fn tile_message(found: Option<u64>, [rows, columns]: [u64; 2], limit: u64) -> String {
    match found {
        Some(found) => format!("the result has {found} tiles of {rows}x{columns}; expected at most {limit}"),
        None => format!(
            "the number of {rows}x{columns} tiles of the result is unknown or exceeds 64 bits; expected at most {limit}"
        ),
    }
}
