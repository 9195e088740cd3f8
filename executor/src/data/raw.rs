//! Tensors in their stored form.

use fourfold_ir::memory::{NoMemory, copy_bytes};
use fourfold_ir::{ElementType, ScaleLayout, Tensor, TensorError};

use super::dtype;
use super::error::TensorDataError;

/// A stored tensor, whose bytes have no meaning until a type is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTensor {
    /// The dtype's name, such as `F8_E4M3`.
    pub dtype: String,
    /// The stored shape, in elements of the dtype.
    pub dims: Vec<usize>,
    /// The bytes, row-major and little-endian.
    pub bytes: Vec<u8>,
}

impl RawTensor {
    /// Interprets the bytes as a tensor of this type. The stored shape must be `dims`, except that FP4 in bytes
    /// halves the last extent, and that blocked scales may have any shape of the same size.
    ///
    /// # Errors
    /// When the dtype cannot hold the element type, the shape differs, or memory is insufficient for a copy.
    pub fn as_type(
        &self,
        element: ElementType,
        dims: &[usize],
        layout: Option<ScaleLayout>,
    ) -> Result<Tensor, TensorDataError> {
        let no_memory = |NoMemory { bytes }| TensorError::Memory { element, dims: dims.to_vec(), bytes };
        let bytes = copy_bytes(&self.bytes).map_err(no_memory)?;
        RawTensor { dtype: self.dtype.clone(), dims: self.dims.clone(), bytes }
            .into_type(element, dims, layout)
    }

    /// The tensor in its dtype's own element type, without a layout; `None` for bytes, and for dtypes that the IR
    /// lacks.
    pub fn as_stored(&self) -> Option<Tensor> {
        let element = dtype::natural_element(&self.dtype)?;
        self.as_type(element, &self.dims, None).ok()
    }

    /// Like [`RawTensor::as_type`], without a copy.
    pub(super) fn into_type(
        self,
        element: ElementType,
        dims: &[usize],
        layout: Option<ScaleLayout>,
    ) -> Result<Tensor, TensorDataError> {
        let expected_bytes = Tensor::byte_len(element, dims, layout)?;
        if layout == Some(ScaleLayout::Blocked) {
            self.check_dtype(element)?;
            if self.bytes.len() != expected_bytes {
                return Err(TensorDataError::BlockedSize {
                    dims: dims.to_vec(),
                    expected: expected_bytes,
                    found: self.bytes.len(),
                    shape: self.dims,
                });
            }
        } else {
            let found = self.logical_dims(element)?;
            if found != dims {
                return Err(TensorDataError::Shape { expected: dims.to_vec(), found });
            }
        }
        let mut bytes = self.bytes;
        if element == ElementType::I1 {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(Tensor::new(element, dims.to_vec(), layout, bytes)?)
    }

    /// The shape in elements of this type.
    pub(super) fn logical_dims(&self, element: ElementType) -> Result<Vec<usize>, TensorDataError> {
        self.check_dtype(element)?;
        let mut dims = self.dims.clone();
        if element == ElementType::F4E2M1FN {
            let last = dims.last_mut().ok_or(TensorDataError::OddFp4 { shape: Vec::new() })?;
            if self.dtype == "U8" {
                *last = last
                    .checked_mul(2)
                    .ok_or_else(|| TensorDataError::TooLarge { shape: self.dims.clone() })?;
            } else if !last.is_multiple_of(2) {
                return Err(TensorDataError::OddFp4 { shape: dims });
            }
        }
        Ok(dims)
    }

    fn check_dtype(&self, element: ElementType) -> Result<(), TensorDataError> {
        // A huge extent is possible only beside a zero, where the size does not bound it.
        if self.dims.iter().any(|dim| *dim >= MAX_EXTENT) {
            return Err(TensorDataError::TooLarge { shape: self.dims.clone() });
        }
        if dtype::accepted(element).contains(&self.dtype.as_str()) {
            return Ok(());
        }
        Err(TensorDataError::Dtype {
            element,
            accepted: dtype::accepted(element).join(" or "),
            found: self.dtype.clone(),
        })
    }
}

/// A limit on extents, which keeps all computed sizes far from overflow.
const MAX_EXTENT: usize = 1 << 48;
