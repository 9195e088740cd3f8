//! Ops that copy blocks of bytes from several places: `concat`, `gather` and `pad`. FP4 is moved in whole bytes.

use std::ops::Range;

use fourfold_ir::{ElementType, PadAmount, Tensor};

use super::codec::Codec;
use super::view::row_major_strides;
use super::{FallbackError, ResultType};

/// Elements written per step; even, so that FP4 falls on whole bytes.
const CHUNK: usize = 1 << 14;

/// The number of bytes of some elements of a type; an even number for FP4.
fn byte_count(element: ElementType, dims: &[usize]) -> usize {
    // Saturates only for an empty tensor, whose elements are never accessed.
    let count = dims.iter().fold(1usize, |count, dim| count.saturating_mul(*dim));
    match element {
        ElementType::F4E2M1FN => count / 2,
        _ => count.saturating_mul(element.storage_bits() / 8),
    }
}

/// The position of the first byte of a chunk.
fn first_byte(element: ElementType, start: usize) -> usize {
    start * element.storage_bits() / 8
}

/// Joins operands along an axis.
pub(super) fn concat(operands: &[&Tensor], axis: usize, result: ResultType) -> Result<Tensor, FallbackError> {
    let element = result.element;
    // A row is one index of the axes before `axis`. Each operand has one part of it.
    let mut ends = Vec::with_capacity(operands.len());
    let mut row_bytes = 0;
    for operand in operands {
        row_bytes = byte_count(element, &operand.dims()[axis..]).saturating_add(row_bytes);
        ends.push(row_bytes);
    }
    result.fill(CHUNK, |start, mut out| {
        let mut at = first_byte(element, start);
        while !out.is_empty() {
            let (row, within) = (at / row_bytes, at % row_bytes);
            let index = ends.partition_point(|end| *end <= within);
            let begin = if index == 0 { 0 } else { ends[index - 1] };
            let len = (ends[index] - within).min(out.len());
            let from = row * (ends[index] - begin) + within - begin;
            let part;
            (part, out) = out.split_at_mut(len);
            part.copy_from_slice(&operands[index].bytes()[from..][..len]);
            at += len;
        }
    })
}

/// Takes slices of x along an axis.
pub(super) fn gather(
    x: &Tensor,
    indices: &Tensor,
    axis: u32,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let extent = x.dims()[axis as usize];
    let (indices, _) = indices.bytes().as_chunks::<4>();
    let place = |index: &[u8; 4]| usize::try_from(i32::from_le_bytes(*index)).ok().filter(|at| *at < extent);
    if let Some(position) = indices.iter().position(|index| place(index).is_none()) {
        let index = i32::from_le_bytes(indices[position]);
        return Err(FallbackError::Index { position, index, axis, extent });
    }
    let element = result.element;
    let slice_bytes = byte_count(element, &x.dims()[axis as usize + 1..]);
    result.fill(CHUNK, |start, mut out| {
        let mut at = first_byte(element, start);
        while !out.is_empty() {
            let (slice, within) = (at / slice_bytes, at % slice_bytes);
            let (row, position) = (slice / indices.len(), slice % indices.len());
            // Every index was checked above.
            let index = i32::from_le_bytes(indices[position]) as usize;
            let from = (row * extent + index) * slice_bytes + within;
            let len = (slice_bytes - within).min(out.len());
            let part;
            (part, out) = out.split_at_mut(len);
            part.copy_from_slice(&x.bytes()[from..][..len]);
            at += len;
        }
    })
}

/// Adds elements of one value before and after some axes.
pub(super) fn pad(
    x: &Tensor,
    amounts: &[PadAmount],
    value: f64,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let padding = Padding::new(x, amounts, value, &result);
    result.fill(CHUNK, |start, out| {
        let units = padding.units(start)..padding.units(start) + out.len() / padding.unit.len();
        padding.fill(x.bytes(), units, out);
    })
}

/// The places of an operand's elements in the padded result. FP4 is counted in bytes.
struct Padding {
    /// The bytes of one added element, or of two in FP4.
    unit: Vec<u8>,
    /// The elements in one unit.
    per_unit: usize,
    /// The operand's extents and strides, in units; at least one axis.
    from: Vec<usize>,
    strides: Vec<usize>,
    /// Units before the operand along each axis.
    low: Vec<usize>,
    /// The result's extents, in units.
    to: Vec<usize>,
}

impl Padding {
    fn new(x: &Tensor, amounts: &[PadAmount], value: f64, result: &ResultType) -> Padding {
        let per_unit = if result.element == ElementType::F4E2M1FN { 2 } else { 1 };
        let mut unit = vec![0; result.element.storage_bits() * per_unit / 8];
        Codec::plain(result.element).write(&[value; 2][..per_unit], &mut unit);
        let mut low = vec![0; x.dims().len()];
        for amount in amounts {
            low[amount.axis as usize] = amount.low as usize;
        }
        let (mut from, mut to) = (x.dims().to_vec(), result.dims.clone());
        if from.is_empty() {
            (from, to, low) = (vec![1], vec![1], vec![0]);
        }
        for dims in [&mut from, &mut to, &mut low] {
            if let Some(last) = dims.last_mut() {
                *last /= per_unit;
            }
        }
        Padding { unit, per_unit, strides: row_major_strides(&from), from, low, to }
    }

    fn units(&self, elements: usize) -> usize {
        elements / self.per_unit
    }

    /// Writes a range of units.
    fn fill(&self, from: &[u8], units: Range<usize>, mut out: &mut [u8]) {
        let width = self.unit.len();
        let last = self.to.len() - 1;
        let mut at = units.start;
        while at < units.end {
            let column = at % self.to[last];
            let len = (self.to[last] - column).min(units.end - at);
            let row;
            (row, out) = out.split_at_mut(len * width);
            let source = self.source(at / self.to[last]);
            // The units of this run that come from the operand.
            let clip = |place: usize| place.clamp(column, column + len) - column;
            let taken = match source {
                Some(_) => clip(self.low[last])..clip(self.low[last] + self.from[last]),
                None => 0..0,
            };
            let (before, rest) = row.split_at_mut(taken.start * width);
            let (inside, after) = rest.split_at_mut(taken.len() * width);
            for added in before.chunks_exact_mut(width).chain(after.chunks_exact_mut(width)) {
                added.copy_from_slice(&self.unit);
            }
            if let Some(source) = source.filter(|_| !taken.is_empty()) {
                let first = (source + column + taken.start - self.low[last]) * width;
                inside.copy_from_slice(&from[first..][..inside.len()]);
            }
            at += len;
        }
    }

    /// The operand's first unit of a row of the result; `None` if the row is outside the operand.
    fn source(&self, row: usize) -> Option<usize> {
        let outer = self.to.len() - 1;
        let (mut rest, mut source) = (row, 0);
        for axis in (0..outer).rev() {
            let place = (rest % self.to[axis]).checked_sub(self.low[axis]);
            source += place.filter(|place| *place < self.from[axis])? * self.strides[axis];
            rest /= self.to[axis];
        }
        Some(source)
    }
}
