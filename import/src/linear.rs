//! A linear layer of a checkpoint, described independently of its producer.

use fourfold_executor::TensorReference;
use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{ElementType, ScaleLayout, ScaleRounding};

/// A linear layer: y = x · wᵀ + bias.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// The path of the module.
    pub(crate) name: String,
    /// The number of outputs.
    pub(crate) n: u64,
    /// The number of inputs.
    pub(crate) k: u64,
    pub(crate) weight: Weight,
    pub(crate) activation: Activation,
    /// A factor for each input, applied before the quantization of x: `[K]`.
    pub(crate) input_factor: Option<Stored>,
    /// `[N]`.
    pub(crate) bias: Option<Stored>,
    pub(crate) notes: Vec<String>,
}

/// The stored weight, `[N, K]`.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) codes: TensorReference,
    /// `f4E2M1FN` or `f8E4M3FN`.
    pub(crate) element: ElementType,
    pub(crate) scales: Scales,
}

/// The scales of a weight.
#[derive(Clone, Debug)]
pub(crate) enum Scales {
    /// One per `block` elements of K, and one of the whole tensor if it is not 1.
    Block {
        reference: TensorReference,
        element: ElementType,
        block: u32,
        layout: ScaleLayout,
        global: Option<Scalar>,
    },
    /// One of the whole tensor.
    Tensor(Scalar),
}

/// The treatment of x.
#[derive(Clone, Debug)]
pub(crate) enum Activation {
    /// x is multiplied as it is.
    Plain,
    /// NVFP4 with a stored global scale.
    Nvfp4(Scalar, Nvfp4Formula),
    /// NVFP4 with the global scale amax / (6 · 448) of each call.
    Nvfp4OfCall(Nvfp4Formula),
    /// MX codes of this type.
    Mx(ElementType, ScaleRounding),
    /// FP8 codes with a stored scale of the tensor.
    Fp8(Scalar),
}

impl Activation {
    /// Returns true if both treatments of one x give the same codes and scales.
    pub(crate) fn equals(&self, other: &Activation) -> bool {
        match (self, other) {
            (Activation::Plain, Activation::Plain) => true,
            (Activation::Nvfp4(one, how), Activation::Nvfp4(other, also)) => one.equals(other) && how == also,
            (Activation::Nvfp4OfCall(how), Activation::Nvfp4OfCall(also)) => how == also,
            (Activation::Fp8(one), Activation::Fp8(other)) => one.equals(other),
            (Activation::Mx(one, how), Activation::Mx(other, also)) => one == other && how == also,
            _ => false,
        }
    }
}

/// A stored scale of a whole tensor.
#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) stored: Stored,
    pub(crate) convention: Convention,
    /// The bits of the stored element.
    pub(crate) bits: Option<u64>,
}

impl Scalar {
    /// Returns true if both scales have one value, though they may be stored twice.
    pub(crate) fn equals(&self, other: &Scalar) -> bool {
        self.convention == other.convention
            && self.stored.element == other.stored.element
            && self.bits.is_some()
            && self.bits == other.bits
    }
}

/// The use of a stored scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Convention {
    /// value = code · scale.
    Multiply,
    /// value = code / scale.
    Divide,
}

/// A stored tensor of an arithmetic type.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) reference: TensorReference,
    pub(crate) element: ElementType,
    /// The extents after slicing.
    pub(crate) shape: Vec<u64>,
}
