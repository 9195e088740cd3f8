//! Block-scaled FP4 as tract holds it, in tensors of bytes, and conversions between tensors of tract and Fourfold.

use fourfold::ir::{ElementType, ScaleLayout, Tensor as FourfoldTensor};
use tract_core::internal::*;

use crate::error::Error;

/// A format of block-scaled FP4.
///
/// tract has no FP4 or FP8 types. Codes are a `U8` tensor `[.., K/2]`: two codes per byte, the even k in the low
/// nibble. Scales are a `U8` tensor `[.., K/block]`, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Blocks of 16 with `f8E4M3FN` scales.
    Nvfp4,
    /// Blocks of 32 with `f8E8M0FNU` scales.
    Mxfp4,
}

impl Format {
    /// The number of elements that share a scale.
    pub fn block(self) -> usize {
        match self {
            Format::Nvfp4 => 16,
            Format::Mxfp4 => 32,
        }
    }

    /// The name in ONNX files: `nvfp4` or `mxfp4`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Nvfp4 => "nvfp4",
            Format::Mxfp4 => "mxfp4",
        }
    }

    /// Returns the format with this name.
    pub fn from_name(name: &str) -> Option<Format> {
        [Format::Nvfp4, Format::Mxfp4].into_iter().find(|format| format.name() == name)
    }

    pub(crate) fn scale_element(self) -> ElementType {
        match self {
            Format::Nvfp4 => ElementType::F8E4M3FN,
            Format::Mxfp4 => ElementType::F8E8M0FNU,
        }
    }
}

/// The meaning of a tract tensor in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// `F32` or `F16`, as it is.
    Number,
    /// Packed FP4 codes.
    Codes,
    /// Row-major scales.
    Scales(Format),
}

/// The element type of numbers of this type; `None` for types that Fourfold does not compute with.
pub(crate) fn number_element(datum: DatumType) -> Option<ElementType> {
    match datum {
        DatumType::F32 => Some(ElementType::F32),
        DatumType::F16 => Some(ElementType::F16),
        _ => None,
    }
}

impl Form {
    /// The element type of a tensor of type `datum` in this form.
    pub(crate) fn element(self, datum: DatumType) -> Option<ElementType> {
        match self {
            Form::Number => number_element(datum),
            Form::Codes => (datum == DatumType::U8).then_some(ElementType::F4E2M1FN),
            Form::Scales(format) => (datum == DatumType::U8).then_some(format.scale_element()),
        }
    }

    pub(crate) fn layout(self) -> Option<ScaleLayout> {
        matches!(self, Form::Scales(_)).then_some(ScaleLayout::Linear)
    }

    /// Copies a tensor of tract.
    pub(crate) fn import(self, tensor: &Tensor) -> Result<FourfoldTensor, Error> {
        self.import_as(tensor, tensor.shape().to_vec())
    }

    /// Copies a tensor of tract, with all extents but the last as one.
    pub(crate) fn import_rows(self, tensor: &Tensor) -> Result<FourfoldTensor, Error> {
        let dims = match tensor.shape() {
            [leading @ .., last] if leading.len() > 1 => vec![leading.iter().product(), *last],
            dims => dims.to_vec(),
        };
        self.import_as(tensor, dims)
    }

    fn import_as(self, tensor: &Tensor, mut dims: Vec<usize>) -> Result<FourfoldTensor, Error> {
        let datum = tensor.datum_type();
        let element = self
            .element(datum)
            .ok_or_else(|| Error::Tensor(format!("a {datum:?} tensor was given where {self:?} is needed")))?;
        if self == Form::Codes
            && let Some(last) = dims.last_mut()
        {
            *last *= 2;
        }
        let plain = tensor.try_as_plain_ram().map_err(Error::Tract)?;
        FourfoldTensor::new(element, dims, self.layout(), plain.as_bytes().to_vec())
            .map_err(|error| Error::Tensor(error.to_string()))
    }

    /// The shape of a tensor of Fourfold in tract.
    pub(crate) fn shape(self, tensor: &FourfoldTensor) -> Vec<usize> {
        let mut dims = tensor.dims().to_vec();
        if self == Form::Codes
            && let Some(last) = dims.last_mut()
        {
            *last /= 2;
        }
        dims
    }

    /// Copies a tensor of Fourfold to a tensor of tract with this shape. Blocked scales become row-major.
    pub(crate) fn export(self, tensor: &FourfoldTensor, shape: &[usize]) -> Result<Tensor, Error> {
        let datum = match tensor.element() {
            ElementType::F32 => DatumType::F32,
            ElementType::F16 => DatumType::F16,
            _ => DatumType::U8,
        };
        let linear = matches!(self, Form::Scales(_)).then(|| tensor.to_codes());
        let bytes = linear.as_deref().unwrap_or(tensor.bytes());
        let mut copy = Tensor::zero_dt(datum, shape).map_err(Error::Tract)?;
        let mut plain = copy.try_as_plain_ram_mut().map_err(Error::Tract)?;
        let target = plain.as_bytes_mut();
        if target.len() != bytes.len() {
            let (found, wanted) = (bytes.len(), target.len());
            return Err(Error::Tensor(format!("{shape:?} of {datum:?} takes {wanted} bytes, not {found}")));
        }
        target.copy_from_slice(bytes);
        Ok(copy)
    }
}
