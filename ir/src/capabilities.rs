//! What a target's kernels can take, as plain data: the scheduler decides from this alone.

use crate::ops::UnaryKind;
use crate::program::BlockFormat;
use crate::types::ElementType;

/// What one target takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// The target's name, such as `sm_100a`.
    pub target: String,
    /// One entry per format that the target has kernels for; none for `cpu`.
    pub formats: Vec<FormatCapability>,
}

impl Capabilities {
    /// The entry for a format.
    pub fn format(&self, format: BlockFormat) -> Option<&FormatCapability> {
        self.formats.iter().find(|capability| capability.format == format)
    }
}

/// What the kernels of one format take.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatCapability {
    /// The format.
    pub format: BlockFormat,
    /// K is a multiple of this.
    pub k_multiple: u64,
    /// No extent exceeds this.
    pub max_extent: u64,
    /// The blocked scales of an operand, padding and batch included, take no more bytes than this.
    pub max_scale_bytes: u64,
    /// Base pointers of A, B, C and D are multiples of this, in bytes.
    pub pointer_alignment: u32,
    /// Whether one launch takes several matrices (L > 1).
    pub batched: bool,
    /// The element types that D may have.
    pub outputs: Vec<OutputCapability>,
    /// The element types that C may have, with their rule for N.
    pub c: Vec<OutputCapability>,
    /// The element types that a per-column bias may have.
    pub bias: Vec<ElementType>,
    /// The activations that the epilogue has.
    pub activations: Vec<UnaryKind>,
}

impl FormatCapability {
    /// The rule for an output element type.
    pub fn output(&self, element: ElementType) -> Option<OutputCapability> {
        self.outputs.iter().copied().find(|output| output.element == element)
    }

    /// The rule for an element type of C.
    pub fn c(&self, element: ElementType) -> Option<OutputCapability> {
        self.c.iter().copied().find(|c| c.element == element)
    }
}

/// An element type that an `[.., M, N]` tensor of the kernel may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputCapability {
    /// The element type.
    pub element: ElementType,
    /// N is a multiple of this.
    pub n_multiple: u64,
}
