//! Plain matrix multiplication in f32, repeated in f64 where f32 overflows.

use std::borrow::Cow;

use fourfold_ir::{ElementType, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};

use gemm::Parallelism;

use super::codec::Codec;
use super::memory::{NoMemory, check_gemm, zeroed};
use super::{FallbackError, ResultType, no_memory};
use crate::parallel::{Threads, for_each_chunk};

/// Elements converted per step.
const CHUNK: usize = 1 << 14;

/// Elements computed in f64 per step.
const EXACT_CHUNK: usize = 64;

/// D = A·Bᵀ for every matrix of A. A rank-two B is shared by all of them.
pub(super) fn mma(a: &Tensor, b: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    let ([batch @ .., m, k], [b_batch @ .., n, _]) = (a.dims(), b.dims()) else {
        return Err(FallbackError::Internal { reason: "operands of a multiplication have rank two or more" });
    };
    let (m, n, k) = (*m, *n, *k);
    let batch: usize = batch.iter().product();
    // With a shared B, the batch is one tall matrix.
    let (matrices, m) = if b_batch.is_empty() { (1, batch * m) } else { (batch, m) };
    let codec = Codec::plain(result.element);
    let mut tensor = result.zeros()?;
    if matrices * m * n == 0 {
        return Ok(tensor);
    }
    let no_memory_for = |dims: [usize; 2]| move |error| no_memory(ElementType::F32, &dims, error);
    let mut product = zeroed(m * n).map_err(no_memory_for([m, n]))?;
    check_gemm(most_packed([m, n, k])).map_err(no_memory_for([n, k]))?;
    for (index, out) in tensor.bytes_mut().chunks_mut(m * n * codec.element.storage_bits() / 8).enumerate() {
        let a = to_f32(a, index * m * k, m * k).map_err(no_memory_for([m, k]))?;
        let b = to_f32(b, index * n * k, n * k).map_err(no_memory_for([n, k]))?;
        gemm_f32([m, n, k], &a, &b, &mut product);
        let all_finite = AtomicBool::new(true);
        for_each_chunk(out, CHUNK * codec.element.storage_bits() / 8, |index, out| {
            let values = &product[index * CHUNK..];
            let values = &values[..CHUNK.min(values.len())];
            codec.write(values, out);
            if !values.iter().fold(true, |all, value| all & value.is_finite()) {
                all_finite.store(false, Ordering::Relaxed);
            }
        });
        if !all_finite.into_inner() {
            write_overflowed([n, k], &a, &b, &product, codec, out);
        }
    }
    Ok(tensor)
}

/// Recomputes elements that overflowed in f32 as defined: in f64 with ascending k, rounded once. Finite elements are
/// correct, since infinity and NaN persist in a sum: no partial sum overflowed.
fn write_overflowed([n, k]: [usize; 2], a: &[f32], b: &[f32], product: &[f32], codec: Codec, out: &mut [u8]) {
    let bytes = codec.element.storage_bits() / 8;
    for_each_chunk(out, EXACT_CHUNK * bytes, |chunk, out| {
        let product = &product[chunk * EXACT_CHUNK..];
        for (index, out) in
            out.chunks_mut(bytes).enumerate().filter(|(index, _)| !product[*index].is_finite())
        {
            let element = chunk * EXACT_CHUNK + index;
            let (row, column) = (element / n, element % n);
            codec.write(&[dot(&a[row * k..][..k], &b[column * k..][..k])], out);
        }
    });
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

/// An upper bound of `gemm`'s allocation for packed operands. It packs panels of depth at most 512 along K: all of B,
/// and twice its block of A's rows, which the L2 cache bounds.
fn most_packed([m, n, k]: [usize; 3]) -> usize {
    const MOST_DEPTH: usize = 512;
    const MOST_ROWS: usize = 4096;
    const MARGIN: usize = 64;
    let rows = n.saturating_add(m.min(MOST_ROWS)).saturating_add(MARGIN);
    k.min(MOST_DEPTH).saturating_mul(rows).saturating_mul(size_of::<f32>())
}

/// product = a · bᵀ for row-major a `[m, k]`, b `[n, k]` and product `[m, n]`. Runs on the caller's thread pool if it
/// is in one, else on this process's pool, or on the calling thread if no thread can be created.
///
/// # Panics
/// When a slice does not have its shape's size.
pub fn gemm_f32(shape @ [m, n, k]: [usize; 3], a: &[f32], b: &[f32], product: &mut [f32]) {
    assert!(a.len() == m * k && b.len() == n * k && product.len() == m * n);
    match Threads::here() {
        Some(threads) => threads.run(|| gemm_with(shape, a, b, product, Parallelism::Rayon(0))),
        None => gemm_with(shape, a, b, product, Parallelism::None),
    }
}

fn gemm_with([m, n, k]: [usize; 3], a: &[f32], b: &[f32], product: &mut [f32], parallelism: Parallelism) {
    // SAFETY: the strides are those of the row-major matrices [m, k], [n, k] (read transposed) and [m, n], whose
    // sizes the only caller asserts. The destination is borrowed mutably.
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
            parallelism,
        );
    }
}

/// Reads elements as f32; borrows them if they are f32 already.
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
    for_each_chunk(&mut values, CHUNK, |index, out| {
        codec.read(tensor.bytes(), start + index * CHUNK, 1, out);
    });
    Ok(Cow::Owned(values))
}
