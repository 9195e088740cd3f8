//! Tensors in their stored form.

use fourfold_ir::memory::{NoMemory, copy_bytes};
use fourfold_ir::{ElementType, ScaleLayout, Tensor, TensorError};

use super::decode::{check_dtype, decode, logical_dims};
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
    /// halves the last extent and FP4 in 32-bit words divides it by 8, and that blocked scales may have any shape of
    /// the same size. Narrower floats are widened, and `F64` is rounded to nearest even.
    ///
    /// # Errors
    /// When the dtype cannot hold the element type, the shape differs, or memory is insufficient for a copy.
    pub fn as_type(
        &self,
        element: ElementType,
        dims: &[usize],
        layout: Option<ScaleLayout>,
    ) -> Result<Tensor, TensorDataError> {
        let expected_bytes = Tensor::byte_len(element, dims, layout)?;
        if layout == Some(ScaleLayout::Blocked) {
            check_dtype(&self.dtype, &self.dims, element)?;
            check_blocked(dims, expected_bytes as u64, self.bytes.len() as u64, &self.dims)?;
        } else {
            let found = logical_dims(&self.dtype, &self.dims, element)?;
            if found != dims {
                return Err(TensorDataError::Shape { expected: dims.to_vec(), found });
            }
        }
        let no_memory = |NoMemory { bytes }| TensorError::Memory { element, dims: dims.to_vec(), bytes };
        let bytes = copy_bytes(&self.bytes).map_err(no_memory)?;
        decode(&self.dtype, bytes, None, (element, dims.to_vec(), layout))
    }

    /// The tensor in its dtype's own element type, without a layout; `None` for bytes, and for dtypes that the IR
    /// lacks.
    pub fn as_stored(&self) -> Option<Tensor> {
        let element = dtype::natural_element(&self.dtype)?;
        self.as_type(element, &self.dims, None).ok()
    }

    /// The values of an `F64` tensor in row-major order; `None` for another dtype.
    pub fn as_f64(&self) -> Option<Vec<f64>> {
        let (values, rest) = self.bytes.as_chunks::<8>();
        let is_f64 = self.dtype == "F64" && rest.is_empty();
        is_f64.then(|| values.iter().map(|value| f64::from_le_bytes(*value)).collect())
    }
}

/// Fails unless blocked scales have the bytes of their padded extents.
pub(super) fn check_blocked(
    dims: &[usize],
    expected: u64,
    found: u64,
    shape: &[usize],
) -> Result<(), TensorDataError> {
    if expected == found {
        return Ok(());
    }
    let (dims, shape) = (dims.to_vec(), shape.to_vec());
    Err(TensorDataError::BlockedSize { dims, expected, found, shape })
}
