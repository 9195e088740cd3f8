//! Host tensors: bytes with an element type, run-time extents and, for scales, a layout.

use crate::memory::{NoMemory, check_memory, copy_bytes};
use crate::numeric;
use crate::types::{ElementType, ScaleLayout};

/// A dense row-major tensor. FP4 is packed two per byte, low nibble = even index of the last axis, and FP6 four in three
/// bytes. Blocked scales are one padded buffer per matrix, batch outermost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    element: ElementType,
    dims: Vec<usize>,
    layout: Option<ScaleLayout>,
    bytes: Vec<u8>,
}

/// An error from creating a tensor of a given type and shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The number of bytes does not fit the shape.
    #[error("a {element} tensor of shape {dims:?} takes {expected} bytes, not {found}")]
    Size {
        /// The element type.
        element: ElementType,
        /// The shape.
        dims: Vec<usize>,
        /// Bytes of the shape.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A last extent that splits bytes of FP4 or FP6, or blocked scales of rank below two.
    #[error("a {element} tensor cannot have the shape {dims:?}: {reason}")]
    Shape {
        /// The element type.
        element: ElementType,
        /// The shape.
        dims: Vec<usize>,
        /// The violated rule.
        reason: &'static str,
    },
    /// The shape exceeds a size limit.
    #[error("a {element} tensor cannot have the shape {dims:?}: {reason}")]
    TooLarge {
        /// The element type.
        element: ElementType,
        /// The shape.
        dims: Vec<usize>,
        /// The exceeded limit.
        reason: &'static str,
    },
    /// The tensor, or a temporary needed to create it, exceeds the available memory.
    #[error("a {element} tensor of shape {dims:?} takes {bytes} bytes, more than the available memory")]
    Memory {
        /// The element type.
        element: ElementType,
        /// The shape.
        dims: Vec<usize>,
        /// Bytes needed.
        bytes: usize,
    },
}

impl TensorError {
    /// The error for a tensor that exceeds the available memory.
    pub(crate) fn memory(element: ElementType, dims: &[usize], NoMemory { bytes }: NoMemory) -> TensorError {
        TensorError::Memory { element, dims: dims.to_vec(), bytes }
    }

    /// Returns true for a size or memory limit, which a smaller tensor would meet.
    pub fn is_resource_limit(&self) -> bool {
        matches!(self, TensorError::TooLarge { .. } | TensorError::Memory { .. })
    }
}

impl Tensor {
    /// Creates a tensor from its bytes.
    ///
    /// # Errors
    /// As [`Tensor::byte_len`], and if the number of bytes differs from it.
    pub fn new(
        element: ElementType,
        dims: Vec<usize>,
        layout: Option<ScaleLayout>,
        bytes: Vec<u8>,
    ) -> Result<Tensor, TensorError> {
        let expected = Tensor::byte_len(element, &dims, layout)?;
        if bytes.len() != expected {
            return Err(TensorError::Size { element, dims, expected, found: bytes.len() });
        }
        Ok(Tensor { element, dims, layout, bytes })
    }

    /// The size of a tensor in bytes, padding included.
    ///
    /// # Errors
    /// For FP4 of rank 0 or with an odd last extent, for FP6 with one that is no multiple of four, for blocked scales of rank below 2, and for 2^48 or more elements
    /// or blocked bytes.
    pub fn byte_len(
        element: ElementType,
        dims: &[usize],
        layout: Option<ScaleLayout>,
    ) -> Result<usize, TensorError> {
        let wrong = |reason| TensorError::Shape { element, dims: dims.to_vec(), reason };
        let too_large =
            || TensorError::TooLarge { element, dims: dims.to_vec(), reason: "it exceeds the address space" };
        let product = |dims: &[usize]| {
            dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim)).filter(|n| *n < 1 << 48)
        };
        if layout == Some(ScaleLayout::Blocked) {
            let [batch @ .., rows, columns] = dims else {
                return Err(wrong("blocked scales need a rank of at least 2"));
            };
            product(dims).ok_or_else(too_large)?;
            return product(batch)
                .and_then(|batch| batch.checked_mul(numeric::checked_blocked_len(*rows, *columns)?))
                .filter(|n| *n < 1 << 48)
                .ok_or_else(too_large);
        }
        let count = product(dims).ok_or_else(too_large)?;
        let packed = element.packed_count();
        if packed > 1 && !dims.last().is_some_and(|last| last.is_multiple_of(packed)) {
            return Err(wrong(if packed == 2 {
                "FP4 is packed in pairs along the last axis, so its extent must be even"
            } else {
                "four elements of FP6 take three bytes along the last axis, so its extent must be a multiple of four"
            }));
        }
        count.checked_mul(element.storage_bits()).map(|bits| bits / 8).ok_or_else(too_large)
    }

    /// Creates a tensor of zero bytes: the value zero, or 2^-127 for `f8E8M0FNU`.
    ///
    /// # Errors
    /// As [`Tensor::byte_len`], and if the size exceeds the available memory.
    pub fn zeros(
        element: ElementType,
        dims: Vec<usize>,
        layout: Option<ScaleLayout>,
    ) -> Result<Tensor, TensorError> {
        let count = Tensor::byte_len(element, &dims, layout)?;
        check_memory(count).map_err(|error| TensorError::memory(element, &dims, error))?;
        let bytes = vec![0; count];
        Ok(Tensor { element, dims, layout, bytes })
    }

    /// Creates a tensor from values in logical row-major order, for any layout. Rounds each value once to the element
    /// type, as `convert` does.
    ///
    /// # Errors
    /// As [`Tensor::byte_len`], and if the number of values does not fit the shape or the size exceeds the available
    /// memory.
    pub fn from_f64(
        element: ElementType,
        dims: Vec<usize>,
        layout: Option<ScaleLayout>,
        values: &[f64],
    ) -> Result<Tensor, TensorError> {
        check_memory(values.len().saturating_mul(element.storage_bits().div_ceil(8)))
            .map_err(|error| TensorError::memory(element, &dims, error))?;
        let codes = match element {
            ElementType::F4E2M1FN => values.iter().map(|v| numeric::e2m1_from_f64(*v)).collect(),
            ElementType::F6E2M3FN => values.iter().map(|v| numeric::e2m3_from_f64(*v)).collect(),
            ElementType::F6E3M2FN => values.iter().map(|v| numeric::e3m2_from_f64(*v)).collect(),
            ElementType::F8E4M3FN => values.iter().map(|v| numeric::e4m3_from_f64(*v)).collect(),
            ElementType::F8E5M2 => values.iter().map(|v| numeric::e5m2_from_f64(*v)).collect(),
            ElementType::F8E8M0FNU => values
                .iter()
                .map(|v| numeric::e8m0_from_f32(*v as f32, numeric::ScaleRounding::Floor))
                .collect(),
            ElementType::F16 => le_bytes(values, |v| numeric::f64_to_f16_bits(v).to_le_bytes()),
            ElementType::BF16 => le_bytes(values, |v| numeric::f64_to_bf16_bits(v).to_le_bytes()),
            ElementType::F32 => le_bytes(values, |v| (v as f32).to_le_bytes()),
            // `as` truncates, so round first; it saturates and maps NaN to 0 as CUDA's cvt.rni does.
            ElementType::I32 => le_bytes(values, |v| (v.round_ties_even() as i32).to_le_bytes()),
            ElementType::I1 => values.iter().map(|v| u8::from(*v != 0.0)).collect(),
        };
        Tensor::from_codes(element, dims, layout, codes)
    }

    /// Creates a tensor from codes in logical row-major order: one byte per element for types of at most 8 bits,
    /// little-endian bytes for wider ones. Packs FP4 and FP6, and converts scales to their layout.
    ///
    /// # Errors
    /// As [`Tensor::byte_len`], and if the number of codes does not fit the shape or the size exceeds the available
    /// memory.
    pub fn from_codes(
        element: ElementType,
        dims: Vec<usize>,
        layout: Option<ScaleLayout>,
        codes: Vec<u8>,
    ) -> Result<Tensor, TensorError> {
        let expected = Tensor::byte_len(element, &dims, layout)?;
        let count: usize = dims.iter().product();
        let code_bytes = count * element.storage_bits().div_ceil(8);
        if codes.len() != code_bytes {
            return Err(TensorError::Size { element, dims, expected: code_bytes, found: codes.len() });
        }
        let is_packed = element.packed_count() > 1;
        if is_packed || layout == Some(ScaleLayout::Blocked) {
            check_memory(expected).map_err(|error| TensorError::memory(element, &dims, error))?;
        }
        let bytes = if is_packed {
            numeric::pack_codes(&codes, element.storage_bits())
        } else if let (Some(ScaleLayout::Blocked), [batch @ .., rows, columns]) = (layout, dims.as_slice()) {
            numeric::linear_to_blocked(&codes, batch.iter().product(), *rows, *columns).map_err(|_| {
                TensorError::Size { element, dims: dims.clone(), expected, found: codes.len() }
            })?
        } else {
            codes
        };
        Tensor::new(element, dims, layout, bytes)
    }

    /// Creates an `f32` tensor.
    ///
    /// # Errors
    /// If the number of values does not fit the shape, or the size exceeds the available memory.
    pub fn from_f32(dims: Vec<usize>, values: &[f32]) -> Result<Tensor, TensorError> {
        check_memory(size_of_val(values))
            .map_err(|error| TensorError::memory(ElementType::F32, &dims, error))?;
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor::new(ElementType::F32, dims, None, bytes)
    }

    /// Copies the tensor. Unlike [`Clone`], returns an error instead of aborting if memory is short.
    ///
    /// # Errors
    /// If the copy exceeds the available memory.
    pub fn try_clone(&self) -> Result<Tensor, TensorError> {
        let (element, layout, dims) = (self.element, self.layout, self.dims.clone());
        match copy_bytes(&self.bytes) {
            Ok(bytes) => Ok(Tensor { element, dims, layout, bytes }),
            Err(error) => Err(TensorError::memory(element, &dims, error)),
        }
    }

    /// The element type.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The extents, in elements.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The layout; `Some` for scales only.
    pub fn layout(&self) -> Option<ScaleLayout> {
        self.layout
    }

    /// The bytes in memory order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes in memory order, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The number of elements, padding excluded.
    pub fn count(&self) -> usize {
        self.dims.iter().product()
    }

    /// The codes in logical row-major order, FP4 and FP6 unpacked: one byte per element for types of at most 8 bits,
    /// little-endian bytes for wider ones.
    pub fn to_codes(&self) -> Vec<u8> {
        if self.element.packed_count() > 1 {
            let bits = self.element.storage_bits();
            return (0..self.count()).map(|index| numeric::code_at(&self.bytes, index, bits)).collect();
        }
        if let (Some(ScaleLayout::Blocked), [batch @ .., rows, columns]) = (self.layout, self.dims.as_slice())
        {
            return numeric::blocked_to_linear(&self.bytes, batch.iter().product(), *rows, *columns)
                .expect("the constructor checked the size");
        }
        self.bytes.clone()
    }

    /// The exact values in logical row-major order. `f8E4M3FN` with a layout is a scale and is read unsigned.
    pub fn to_f64(&self) -> Vec<f64> {
        self.map_values(f64::from, |v| v)
    }

    /// The values as f32 in logical row-major order. Exact, except that `i32` is rounded.
    pub fn to_f32(&self) -> Vec<f32> {
        self.map_values(|v| v, |v| v as f32)
    }

    fn map_values<T>(&self, from_f32: impl Fn(f32) -> T, from_f64: impl Fn(f64) -> T) -> Vec<T> {
        let bytes_as =
            |decode: fn(u8) -> f32| self.to_codes().into_iter().map(|c| from_f32(decode(c))).collect();
        let (pairs, _) = self.bytes.as_chunks::<2>();
        let (quads, _) = self.bytes.as_chunks::<4>();
        match self.element {
            ElementType::F4E2M1FN => bytes_as(numeric::e2m1_to_f32),
            ElementType::F6E2M3FN => bytes_as(numeric::e2m3_to_f32),
            ElementType::F6E3M2FN => bytes_as(numeric::e3m2_to_f32),
            ElementType::F8E4M3FN if self.layout.is_some() => bytes_as(numeric::ue4m3_to_f32),
            ElementType::F8E4M3FN => bytes_as(numeric::e4m3_to_f32),
            ElementType::F8E5M2 => bytes_as(numeric::e5m2_to_f32),
            ElementType::F8E8M0FNU => bytes_as(numeric::e8m0_to_f32),
            ElementType::F16 => {
                pairs.iter().map(|b| from_f32(numeric::f16_bits_to_f32(u16::from_le_bytes(*b)))).collect()
            }
            ElementType::BF16 => {
                pairs.iter().map(|b| from_f32(numeric::bf16_bits_to_f32(u16::from_le_bytes(*b)))).collect()
            }
            ElementType::F32 => quads.iter().map(|b| from_f32(f32::from_le_bytes(*b))).collect(),
            ElementType::I32 => quads.iter().map(|b| from_f64(f64::from(i32::from_le_bytes(*b)))).collect(),
            ElementType::I1 => self.bytes.iter().map(|b| from_f32(f32::from(u8::from(*b != 0)))).collect(),
        }
    }
}

fn le_bytes<const N: usize>(values: &[f64], encode: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|v| encode(*v)).collect()
}
