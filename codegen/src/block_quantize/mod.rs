//! Standalone block quantization: the kernel of a `block_quantize` outside every epilogue.
//!
//! Values `[L, M, K]` become codes (FP4 packed) and one scale per block of a row, with the interpreter's
//! bits. Each thread holds consecutive values of a block. The threads of a block exchange its largest
//! magnitude, and each computes the scale. The arithmetic is the device code that also quantizes in
//! epilogues.

mod template;

use std::fmt;

use fourfold_ir::numeric::{MxEdges, Nvfp4Formula};
use fourfold_ir::{ElementType, ScaleLayout, ScaleRounding};

pub(crate) use self::template::STORE;
use self::template::emit;
use crate::source::{Interface, KernelSource, Role};
use crate::targets::Target;

/// The parameters of a block quantization kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// The element type of the values: bf16, f16 or f32.
    pub input: ElementType,
    /// The format of the codes and scales.
    pub format: Format,
    /// The layout of the scales.
    pub layout: ScaleLayout,
    /// The way in which the padding of blocked scales becomes zero.
    pub padding: Padding,
    /// Threads per CTA.
    pub threads: u32,
    /// Consecutive values per thread.
    pub values: u32,
    /// Blocks of values that one thread handles at once, `threads / rows` threads apart.
    pub turns: u32,
    /// Rows per CTA.
    pub rows: u32,
}

/// The format to which values are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// f4E2M1FN codes with an f8E4M3FN scale per 16, under one f32 scale per tensor.
    Nvfp4,
    /// The same types by a formula other than the default, perhaps without a scale per tensor.
    Nvfp4By {
        /// The formula.
        formula: Nvfp4Formula,
        /// True if the tensor has an f32 scale.
        has_global: bool,
    },
    /// Codes of this element type (f4E2M1FN, f8E4M3FN or f8E5M2) with an f8E8M0FNU scale per 32.
    Mx(ElementType, ScaleRounding),
    /// The same with other edges than the default.
    MxBy {
        /// The element type of the codes.
        element: ElementType,
        /// The rounding of scales.
        rounding: ScaleRounding,
        /// The edges.
        edges: MxEdges,
    },
}

/// The way in which scales beyond the last row and column become zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Threads without values write the zeros.
    Kernel,
    /// A memset clears all scales before the kernel, in calls with padding.
    Memset,
}

/// The specification of one block quantization kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockQuantizeSpec {
    /// The target that the kernel is compiled for.
    pub target: &'static Target,
    /// The kernel's parameters.
    pub configuration: Configuration,
}

impl Format {
    /// The number of values per scale: 16 or 32.
    pub fn block(self) -> u32 {
        match self {
            Format::Nvfp4 | Format::Nvfp4By { .. } => 16,
            Format::Mx(..) | Format::MxBy { .. } => 32,
        }
    }

    /// Returns whether the tensor has an f32 scale.
    pub fn has_global(self) -> bool {
        matches!(self, Format::Nvfp4 | Format::Nvfp4By { has_global: true, .. })
    }

    /// The element type of the scales.
    pub fn scale(self) -> ElementType {
        match self {
            Format::Nvfp4 | Format::Nvfp4By { .. } => ElementType::F8E4M3FN,
            Format::Mx(..) | Format::MxBy { .. } => ElementType::F8E8M0FNU,
        }
    }

    /// The element type of the codes.
    pub fn element(self) -> ElementType {
        match self {
            Format::Nvfp4 | Format::Nvfp4By { .. } => ElementType::F4E2M1FN,
            Format::Mx(element, _) | Format::MxBy { element, .. } => element,
        }
    }

    /// The rounding of MX scales; absent for NVFP4.
    pub fn scale_rounding(self) -> Option<ScaleRounding> {
        match self {
            Format::Nvfp4 | Format::Nvfp4By { .. } => None,
            Format::Mx(_, rounding) | Format::MxBy { rounding, .. } => Some(rounding),
        }
    }

    /// The formula of NVFP4, and the edges of MX.
    pub fn formula(self) -> Nvfp4Formula {
        match self {
            Format::Nvfp4By { formula, .. } => formula,
            Format::MxBy { edges, .. } => Nvfp4Formula { mx: edges, ..Nvfp4Formula::DEFAULT },
            Format::Nvfp4 | Format::Mx(..) => Nvfp4Formula::DEFAULT,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (element, rounding) = match self {
            Format::Nvfp4 => return f.write_str("nvfp4"),
            Format::Nvfp4By { formula, has_global } => {
                return write!(f, "nvfp4_{formula}{}", if *has_global { "" } else { "_noglobal" });
            }
            Format::Mx(element, rounding) | Format::MxBy { element, rounding, .. } => (element, rounding),
        };
        let element = match element {
            ElementType::F8E4M3FN => "mxfp8_e4m3",
            ElementType::F8E5M2 => "mxfp8_e5m2",
            _ => "mxfp4",
        };
        write!(f, "{element}_{}", rounding.name())?;
        match self {
            Format::MxBy { .. } => write!(f, "_{}", self.formula()),
            _ => Ok(()),
        }
    }
}

impl Configuration {
    /// The default parameters for values of this type: 256 threads with 8 values each, 4 rows, 2 blocks at
    /// once.
    pub fn usual(input: ElementType, format: Format, layout: ScaleLayout) -> Configuration {
        Configuration {
            input,
            format,
            layout,
            padding: Padding::Kernel,
            threads: 256,
            values: 8,
            turns: 2,
            rows: 4,
        }
    }

    /// The tile of a CTA in elements: rows, 1, and values per row.
    pub fn tile(&self) -> [u32; 3] {
        [self.rows, 1, self.threads / self.rows * self.values * self.turns]
    }

    /// A readable name, such as `quantize_bf16_nvfp4_blocked_t256v8x2r4`.
    pub fn name(&self) -> String {
        let Configuration { input, format, layout, padding, threads, values, turns, rows } = self;
        let padding = match padding {
            Padding::Kernel => "",
            Padding::Memset => "_memset",
        };
        format!("quantize_{input}_{format}_{layout}_t{threads}v{values}x{turns}r{rows}{padding}")
    }
}

impl BlockQuantizeSpec {
    /// The signature, which equals the plan's: `block_quantize values=bf16 global q=f4E2M1FN:f8E4M3FN/16
    /// blocked`.
    pub fn signature(&self) -> String {
        let Configuration { input, format, layout, .. } = self.configuration;
        let global = if format.has_global() { " global" } else { "" };
        let rounding = match format.scale_rounding() {
            None if format.formula() == Nvfp4Formula::DEFAULT => String::new(),
            None => format!(":{}", format.formula()),
            Some(rounding) if format.formula() == Nvfp4Formula::DEFAULT => {
                format!(":{}", rounding.name())
            }
            Some(rounding) => format!(":{}_{}", rounding.name(), format.formula()),
        };
        let (element, scale, block) = (format.element(), format.scale(), format.block());
        format!("block_quantize values={input}{global} q={element}:{scale}/{block}{rounding} {layout}")
    }

    /// The roles of a call: `values` `[L, M, K]`, the scalar `global` for NVFP4, then codes and scales.
    pub fn interface(&self) -> Interface {
        let Configuration { input, format, .. } = self.configuration;
        Interface {
            extents: vec!["L", "M", "K"],
            operands: vec![Role::tensor("values", input, &["L", "M", "K"])],
            scalars: if format.has_global() { vec!["global"] } else { Vec::new() },
            outputs: vec![
                Role::tensor("y0", format.element(), &["L", "M", "K"]),
                Role::padded_scales("y1", format.scale()),
            ],
        }
    }

    /// Emits the source of the kernel.
    pub fn emit(&self) -> KernelSource {
        emit(self)
    }
}
