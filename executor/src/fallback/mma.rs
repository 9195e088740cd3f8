//! Plain matrix multiplication in f32, in f64 where f32 overflows.

use std::borrow::Cow;

use fourfold_ir::{ElementType, Tensor};
use gemm::Parallelism;
use rayon::prelude::*;

use super::codec::Codec;
use super::memory::{NoMemory, zeroed};
use super::{FallbackError, ResultType, no_memory};

/// Elements that one step converts.
const CHUNK: usize = 1 << 14;

/// Elements that one step computes in f64.
const EXACT_CHUNK: usize = 64;

/// D = A·Bᵀ for every matrix of A; a B of rank two serves all of them.
pub(super) fn mma(a: &Tensor, b: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    let ([batch @ .., m, k], [b_batch @ .., n, _]) = (a.dims(), b.dims()) else {
        return Err(FallbackError::Internal { reason: "operands of a multiplication have rank two or more" });
    };
    let (m, n, k) = (*m, *n, *k);
    let batch: usize = batch.iter().product();
    // One B for all makes the batch one tall matrix.
    let (matrices, m) = if b_batch.is_empty() { (1, batch * m) } else { (batch, m) };
    let codec = Codec::plain(result.element);
    let mut tensor = result.zeros()?;
    if matrices * m * n == 0 {
        return Ok(tensor);
    }
    let no_memory_for = |dims: [usize; 2]| move |error| no_memory(ElementType::F32, &dims, error);
    let mut product = zeroed(m * n).map_err(no_memory_for([m, n]))?;
    for (index, out) in tensor.bytes_mut().chunks_mut(m * n * codec.element.storage_bits() / 8).enumerate() {
        let a = to_f32(a, index * m * k, m * k).map_err(no_memory_for([m, k]))?;
        let b = to_f32(b, index * n * k, n * k).map_err(no_memory_for([n, k]))?;
        gemm_f32([m, n, k], &a, &b, &mut product);
        let all_finite = out
            .par_chunks_mut(CHUNK * codec.element.storage_bits() / 8)
            .zip(product.par_chunks(CHUNK))
            .map(|(out, values)| {
                codec.write(values, out);
                values.iter().fold(true, |all, value| all & value.is_finite())
            })
            .reduce(|| true, |left, right| left && right);
        if !all_finite {
            write_overflowed([n, k], &a, &b, &product, codec, out);
        }
    }
    Ok(tensor)
}

/// Computes what overflowed in f32 as the definition does: in f64 with ascending k, rounded once. A finite product
/// needs nothing: infinity and NaN stay in a sum, so that no part of it was beyond the range.
fn write_overflowed([n, k]: [usize; 2], a: &[f32], b: &[f32], product: &[f32], codec: Codec, out: &mut [u8]) {
    let bytes = codec.element.storage_bits() / 8;
    out.par_chunks_mut(EXACT_CHUNK * bytes).zip(product.par_chunks(EXACT_CHUNK)).enumerate().for_each(
        |(chunk, (out, product))| {
            for (index, out) in
                out.chunks_mut(bytes).enumerate().filter(|(index, _)| !product[*index].is_finite())
            {
                let element = chunk * EXACT_CHUNK + index;
                let (row, column) = (element / n, element % n);
                codec.write(&[dot(&a[row * k..][..k], &b[column * k..][..k])], out);
            }
        },
    );
}

/// Σ_k a·b in f64, k ascending.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    const PIECE: usize = 256;
    let mut sum = 0.0;
    for (a, b) in a.chunks(PIECE).zip(b.chunks(PIECE)) {
        sum = a.iter().zip(b).fold(sum, |sum, (a, b)| sum + f64::from(*a) * f64::from(*b));
        if sum.is_nan() {
            break;
        }
    }
    sum
}

/// product = a · bᵀ for row-major a `[m, k]`, b `[n, k]` and product `[m, n]`, on all threads of the current pool.
///
/// # Panics
/// When a slice does not have the size of its shape.
pub fn gemm_f32([m, n, k]: [usize; 3], a: &[f32], b: &[f32], product: &mut [f32]) {
    assert!(a.len() == m * k && b.len() == n * k && product.len() == m * n);
    // SAFETY: the strides are those of the row-major matrices [m, k], [n, k] (read transposed) and [m, n], whose
    // sizes are asserted above; the destination is borrowed mutably.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            product.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            1,
            k as isize,
            b.as_ptr(),
            k as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}

/// Some elements as f32, in place where they are already.
fn to_f32(tensor: &Tensor, start: usize, count: usize) -> Result<Cow<'_, [f32]>, NoMemory> {
    if tensor.element() == ElementType::F32 && cfg!(target_endian = "little") {
        // SAFETY: any four bytes are an f32.
        let (head, values, _) = unsafe { tensor.bytes()[4 * start..][..4 * count].align_to::<f32>() };
        if head.is_empty() && values.len() == count {
            return Ok(Cow::Borrowed(values));
        }
    }
    let codec = Codec::of(tensor);
    let mut values = zeroed(count)?;
    values
        .par_chunks_mut(CHUNK)
        .enumerate()
        .for_each(|(index, out)| codec.read(tensor.bytes(), start + index * CHUNK, 1, out));
    Ok(Cow::Owned(values))
}
