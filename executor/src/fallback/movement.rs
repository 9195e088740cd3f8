//! Ops that move elements without changing them.

use fourfold_ir::numeric;
use fourfold_ir::{ElementType, SliceRange, Tensor};

use super::view::{Run, View, row_major_strides};
use super::{FallbackError, ResultType};

/// Elements moved per step; even, so that FP4 falls on whole bytes.
const CHUNK: usize = 1 << 14;

/// Elements per cache line, for most types.
const TILE: usize = 16;

/// The same elements in row-major order under another shape.
pub(super) fn reshape(x: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    let mut tensor = result.zeros()?;
    tensor.bytes_mut().copy_from_slice(x.bytes());
    Ok(tensor)
}

/// Copies the first operand whose end is at least the extent, or the last operand.
pub(super) fn choose(
    operands: &[&Tensor],
    axis: u32,
    ends: &[u32],
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let extent = result.dims.get(axis as usize).copied().unwrap_or_default() as u64;
    let position = ends.iter().position(|end| extent <= u64::from(*end)).unwrap_or(operands.len() - 1);
    let missing = FallbackError::Internal { reason: "a choose has an end for each operand but the last" };
    reshape(operands.get(position).ok_or(missing)?, result)
}

/// Transposes: result axis i is operand axis `permutation[i]`.
pub(super) fn transpose(
    x: &Tensor,
    permutation: &[u32],
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let view = View::of_axes(x.dims(), permutation.iter().map(|axis| *axis as usize));
    copy(x, &view, result)
}

/// Repeats extents of 1 and adds leading extents.
pub(super) fn broadcast(x: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    let view = View::broadcast(x.dims(), &result.dims);
    copy(x, &view, result)
}

/// Takes ranges of some axes.
pub(super) fn slice(x: &Tensor, ranges: &[SliceRange], result: ResultType) -> Result<Tensor, FallbackError> {
    let (mut from, mut to) = (x.dims().to_vec(), result.dims.clone());
    let mut ranges = ranges.to_vec();
    // Along the last axis, FP4 is sliced in whole bytes.
    let is_packed = x.element() == ElementType::F4E2M1FN;
    let last = from.len().saturating_sub(1);
    if is_packed {
        (from[last], to[last]) = (from[last] / 2, to[last] / 2);
        for range in ranges.iter_mut().filter(|range| range.axis as usize == last) {
            (range.start, range.end) = (range.start / 2, range.end / 2);
        }
    }
    let mut strides = row_major_strides(&from);
    let mut base = 0usize;
    for range in &ranges {
        let stride = &mut strides[range.axis as usize];
        // Saturates only if the axis of the result has at most one element, or if the tensor is empty.
        base = base.saturating_add(stride.saturating_mul(range.start as usize));
        *stride = stride.saturating_mul(range.step as usize);
    }
    let view = View::strided(base, to.into_iter().zip(strides));
    if is_packed {
        let bytes = (x.bytes(), 8);
        return result.fill(CHUNK, |start, out| copy_runs_of(bytes, &view, start / 2, out));
    }
    copy(x, &view, result)
}

/// Copies the elements of a view.
pub(super) fn copy(x: &Tensor, view: &View, result: ResultType) -> Result<Tensor, FallbackError> {
    let bits = x.element().storage_bits();
    match view.inner() {
        // Each row gathers a column: processing several rows at a time reuses their shared cache lines.
        (columns, 2..) if bits >= 8 && columns >= TILE => result.fill(columns * TILE, |start, out| {
            let width = bits / 8;
            for column in (0..columns).step_by(2 * TILE) {
                for (row, out) in out.chunks_mut(columns * width).enumerate() {
                    let end = (column + 2 * TILE).min(columns);
                    copy_runs(x, view, start + row * columns + column, &mut out[column * width..end * width]);
                }
            }
        }),
        _ => result.fill(CHUNK, |start, out| copy_runs(x, view, start, out)),
    }
}

/// Copies the elements at positions from `start` on, until `out` is full.
pub(super) fn copy_runs(x: &Tensor, view: &View, start: usize, out: &mut [u8]) {
    copy_runs_of((x.bytes(), x.element().storage_bits()), view, start, out);
}

/// Copies elements of `bits` bits.
fn copy_runs_of((bytes, bits): (&[u8], usize), view: &View, start: usize, out: &mut [u8]) {
    view.runs(start..start + out.len() * 8 / bits, |run| match (bits, run.stride) {
        (8.., 1) => {
            let width = bits / 8;
            let from = &bytes[run.start * width..][..run.len * width];
            out[run.at * width..][..run.len * width].copy_from_slice(from);
        }
        (16, _) => copy_strided::<2>(bytes, run, out),
        (32, _) => copy_strided::<4>(bytes, run, out),
        (8, _) => copy_strided::<1>(bytes, run, out),
        _ => {
            for index in 0..run.len {
                copy_element(bits, bytes, run.start + index * run.stride, out, run.at + index);
            }
        }
    });
}

fn copy_strided<const WIDTH: usize>(from: &[u8], run: Run, to: &mut [u8]) {
    let from = from.as_chunks::<WIDTH>().0;
    let to = &mut to.as_chunks_mut::<WIDTH>().0[run.at..][..run.len];
    for (index, to) in to.iter_mut().enumerate() {
        *to = from[run.start + index * run.stride];
    }
}

/// Copies one element of `bits` bits.
#[inline]
pub(super) fn copy_element(bits: usize, from: &[u8], from_index: usize, to: &mut [u8], to_index: usize) {
    if bits < 8 {
        numeric::set_e2m1(to, to_index, numeric::e2m1_at(from, from_index));
    } else {
        let width = bits / 8;
        to[to_index * width..][..width].copy_from_slice(&from[from_index * width..][..width]);
    }
}
