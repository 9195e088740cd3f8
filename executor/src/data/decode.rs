//! Converts stored bytes to tensors of an element type.

use fourfold_ir::{ElementType, ScaleLayout, Tensor, TensorError, numeric};

use super::allocation::zeros;
use super::dtype;
use super::error::TensorDataError;
use super::gguf::Blocks;
use super::reference::TensorEncoding;

/// A limit on extents, which keeps all computed sizes far from overflow.
const MAX_EXTENT: usize = 1 << 48;

/// Fails if a tensor of this dtype and shape cannot hold the element type.
pub(super) fn check_dtype(dtype: &str, dims: &[usize], element: ElementType) -> Result<(), TensorDataError> {
    // A huge extent is possible only beside a zero, where the size does not bound it.
    if dims.iter().any(|dim| *dim >= MAX_EXTENT) {
        return Err(TensorDataError::TooLarge { shape: dims.to_vec() });
    }
    if dtype::accepted(element).contains(&dtype) {
        return Ok(());
    }
    Err(TensorDataError::Dtype {
        element,
        accepted: dtype::accepted(element).join(" or "),
        found: dtype.to_owned(),
    })
}

/// Returns a stored shape in elements of a type.
pub(super) fn logical_dims(
    dtype: &str,
    dims: &[usize],
    element: ElementType,
) -> Result<Vec<usize>, TensorDataError> {
    check_dtype(dtype, dims, element)?;
    let mut logical = dims.to_vec();
    if element.is_fp6() {
        let odd = || TensorDataError::OddFp6 { shape: dims.to_vec() };
        let last = logical.last_mut().ok_or_else(odd)?;
        let groups = last.is_multiple_of(3).then_some(*last / 3).ok_or_else(odd)?;
        *last = groups.checked_mul(4).ok_or_else(|| TensorDataError::TooLarge { shape: dims.to_vec() })?;
    }
    if element == ElementType::F4E2M1FN {
        let last = logical.last_mut().ok_or(TensorDataError::OddFp4 { shape: Vec::new() })?;
        let packed = match dtype {
            "U8" => 2,
            "U32" => 8,
            _ => 1,
        };
        *last = last.checked_mul(packed).ok_or_else(|| TensorDataError::TooLarge { shape: dims.to_vec() })?;
        if !last.is_multiple_of(2) {
            return Err(TensorDataError::OddFp4 { shape: dims.to_vec() });
        }
    }
    Ok(logical)
}

/// Fails if an encoding has no meaning for a tensor of this dtype and element type.
pub(super) fn check_encoding(
    encoding: Option<TensorEncoding>,
    dtype: &str,
    element: ElementType,
) -> Result<(), TensorDataError> {
    match encoding {
        Some(TensorEncoding::HighNibbleFirst) if element != ElementType::F4E2M1FN || dtype != "U8" => {
            let (encoding, found) = (TensorEncoding::HighNibbleFirst, dtype.to_owned());
            Err(TensorDataError::Encoding { encoding, element, found })
        }
        Some(TensorEncoding::Transposed) if !dtype::is_byte(dtype) => {
            let (encoding, found) = (TensorEncoding::Transposed, dtype.to_owned());
            Err(TensorDataError::Encoding { encoding, element, found })
        }
        // A range of bytes whose blocks have this element is accepted before.
        Some(encoding @ (TensorEncoding::GgufMxfp4 | TensorEncoding::GgufNvfp4)) => {
            let found = dtype.to_owned();
            Err(TensorDataError::Encoding { encoding, element, found })
        }
        _ => Ok(()),
    }
}

/// Creates a tensor from bytes of a dtype that can hold its element type.
pub(super) fn decode(
    dtype: &str,
    mut bytes: Vec<u8>,
    encoding: Option<TensorEncoding>,
    (element, dims, layout): (ElementType, Vec<usize>, Option<ScaleLayout>),
) -> Result<Tensor, TensorDataError> {
    if encoding == Some(TensorEncoding::HighNibbleFirst) {
        bytes.iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
    }
    if encoding == Some(TensorEncoding::Transposed) {
        bytes = transposed(element, &dims, &bytes)?;
    }
    let memory = |count: usize| TensorError::Memory { element, dims: dims.clone(), bytes: count };
    if let Some(blocks) = Blocks::of(encoding) {
        bytes = blocks.take(element, &bytes).map_err(memory)?;
    }
    let bytes = match (element, dtype) {
        (ElementType::I1, _) => {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            bytes
        }
        (ElementType::F32, "BF16") => {
            let widen = |b| numeric::bf16_bits_to_f32(u16::from_le_bytes(b)).to_le_bytes();
            converted(&bytes, widen).map_err(memory)?
        }
        (ElementType::F32, "F16") => {
            let widen = |b| numeric::f16_bits_to_f32(u16::from_le_bytes(b)).to_le_bytes();
            converted(&bytes, widen).map_err(memory)?
        }
        (ElementType::F32, "F64") => {
            converted(&bytes, |b| numeric::f64_to_f32(f64::from_le_bytes(b)).to_le_bytes()).map_err(memory)?
        }
        (ElementType::F16, "F64") => {
            let round = |b| numeric::f64_to_f16_bits(f64::from_le_bytes(b)).to_le_bytes();
            converted(&bytes, round).map_err(memory)?
        }
        (ElementType::BF16, "F64") => {
            let round = |b| numeric::f64_to_bf16_bits(f64::from_le_bytes(b)).to_le_bytes();
            converted(&bytes, round).map_err(memory)?
        }
        _ => bytes,
    };
    Ok(Tensor::new(element, dims, layout, bytes)?)
}

/// Exchanges the last two axes of bytes, which become a row-major tensor of extents `dims`.
fn transposed(element: ElementType, dims: &[usize], bytes: &[u8]) -> Result<Vec<u8>, TensorError> {
    let [.., rows, columns] = *dims else { return Ok(bytes.to_vec()) };
    let columns = if element.packed_count() > 1 { columns * element.storage_bits() / 8 } else { columns };
    let memory = || TensorError::Memory { element, dims: dims.to_vec(), bytes: bytes.len() };
    let mut result = zeros(bytes.len() as u64).ok_or_else(memory)?;
    let size = (rows * columns).max(1);
    for (to, from) in result.chunks_exact_mut(size).zip(bytes.chunks_exact(size)) {
        for (row, to) in to.chunks_exact_mut(columns).enumerate() {
            for (column, to) in to.iter_mut().enumerate() {
                *to = from[column * rows + row];
            }
        }
    }
    Ok(result)
}

/// Converts each value; the error is the size in bytes that memory lacks.
fn converted<const M: usize, const N: usize>(
    bytes: &[u8],
    convert: impl Fn([u8; M]) -> [u8; N],
) -> Result<Vec<u8>, usize> {
    let (values, _) = bytes.as_chunks::<M>();
    let count = values.len() * N;
    let mut result = zeros(count as u64).ok_or(count)?;
    for (to, value) in result.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *to = convert(*value);
    }
    Ok(result)
}
