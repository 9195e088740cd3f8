//! Why an op is not in a kernel: stable codes that scripts may rely on, each with what to do about it.

use std::fmt;

use fourfold_ir::ElementType;

macro_rules! define_codes {
    ($($(#[$attr:meta])* $variant:ident = $text:literal, $advice:literal;)*) => {
        /// Why an op is not in a kernel segment. The text of a code never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ReasonCode { $($(#[$attr])* $variant,)* }

        impl ReasonCode {
            /// Every code.
            pub const ALL: &'static [ReasonCode] = &[$(ReasonCode::$variant,)*];

            /// The stable text.
            pub fn as_str(self) -> &'static str {
                match self { $(ReasonCode::$variant => $text,)* }
            }

            /// What the author of the program can do about it.
            pub fn advice(self) -> &'static str {
                match self { $(ReasonCode::$variant => $advice,)* }
            }
        }
    };
}

define_codes! {
    /// A plain `mma`, which the scaled-mma scheduler never takes.
    NotScaledMma = "not_scaled_mma",
        "quantize both operands in blocks and multiply with scaled_mma, or leave it to the host's own GEMM";
    /// The op neither is a `scaled_mma` nor directly uses the result of a kernel.
    NoScaledMmaProducer = "no_scaled_mma_producer",
        "nothing to do: only a scaled_mma and what follows it, elementwise, quantizing or reducing, run in a kernel";
    /// The op follows a kernel, but no epilogue computes it, or not with these attributes.
    UnsupportedEpilogueOp = "unsupported_epilogue_op",
        "keep it as a separate op, or give it the form that the message names";
    /// With the op the kernel would write more than it can, because its values are seen elsewhere too; or another operand
    /// of the op is computed outside from values that the kernel has to write first.
    ValueEscapes = "value_escapes",
        "use or return fewer of the values between, or recompute one where it is needed";
    /// A or B has a batch that the kernel cannot walk.
    OperandLayout = "operand_layout",
        "give B the batch of A, or make M a multiple of 128 so that the batch can be flattened";
    /// A scale operand is not in the blocked layout.
    ScaleLayout = "scale_layout",
        "convert the scales with swizzle_scales; for weights once, as a param";
    /// The scales' element type and block are none that hardware multiplies.
    ScaleDtype = "scale_dtype",
        "use f8E4M3FN scales per 16 (NVFP4) or f8E8M0FNU scales per 32 (MX)";
    /// K is not a multiple of what the format needs.
    KAlignment = "k_alignment",
        "pad K with zero codes to the multiple that the message names";
    /// N is not a multiple of what an output or C type needs.
    NAlignment = "n_alignment",
        "pad N to the multiple that the message names, or choose a wider output type";
    /// An extent is zero, or larger than a kernel can index.
    ExtentRange = "extent_range",
        "split the operand, or drop the empty multiplication";
    /// The target has no kernel for this format.
    TargetLacksFormat = "target_lacks_format",
        "choose another target, or quantize to a format that it has";
    /// The kernel cannot compute or write a result, or read a C, of this element type.
    OutputDtype = "output_dtype",
        "let the scaled_mma or the last convert give an element type that the message names, and convert C to one";
    /// Another operand of the op is not of a shape or type that an epilogue reads beside D, or makes the result larger.
    OperandShape = "operand_shape",
        "give it as a scalar, one element per column ([N] or [1, N]), one per row ([.., M, 1]) or in D's shape, in f16, bf16 or f32";
    /// The kernel has as many steps or operands of a shape as it may have.
    EpilogueLimit = "epilogue_limit",
        "nothing to do: the rest runs after the kernel; fewer, simpler ops would fit";
    /// Nothing is planned for this target.
    CpuTarget = "cpu_target",
        "choose a GPU target to plan kernels";
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A reason with the particulars of one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The stable code.
    pub code: ReasonCode,
    /// For people: what was found and what was expected.
    pub message: String,
}

impl Rejection {
    /// A reason with its particulars.
    pub fn new(code: ReasonCode, message: impl Into<String>) -> Rejection {
        Rejection { code, message: message.into() }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

/// Element types as a message lists them: `f16, bf16 or f32`.
pub(crate) fn element_list(elements: impl IntoIterator<Item = ElementType>) -> String {
    let names: Vec<_> = elements.into_iter().map(ElementType::name).collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The message for blocked scales that take too many bytes.
pub(crate) fn scale_message(name: &str, limit: u64) -> String {
    format!("the scales of {name} take more than {limit} bytes; expected at most as many")
}

/// The message for a D of too many tiles.
pub(crate) fn tile_message(found: Option<u64>, [rows, columns]: [u64; 2], limit: u64) -> String {
    match found {
        Some(found) => format!("D has {found} tiles of {rows}x{columns}; expected at most {limit}"),
        None => format!(
            "how many tiles of {rows}x{columns} D has is not known or takes more than 64 bits; expected at most {limit}"
        ),
    }
}
