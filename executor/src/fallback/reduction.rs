//! Reductions along axes: in f64 with ascending indices, one thread per result.

use fourfold_ir::scalar;
use fourfold_ir::{BinaryKind, ReduceKind, Tensor, UnaryKind};

use super::codec::Codec;
use super::memory::zeroed;
use super::view::View;
use super::{FallbackError, ResultType, movement, no_memory};
use crate::parallel::try_for_each_chunk;

/// Results per step; even.
const CHUNK: usize = 256;

/// Elements read at a time.
const PIECE: usize = 512;

/// Reduces some axes.
pub(super) fn reduce(
    kind: ReduceKind,
    axes: &[u32],
    x: &Tensor,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let is_reduced = |axis: &usize| axes.contains(&(*axis as u32));
    let kept = View::of_axes(x.dims(), (0..x.dims().len()).filter(|axis| !is_reduced(axis)));
    let reduced = View::of_axes(x.dims(), (0..x.dims().len()).filter(is_reduced));
    let fold = Fold { kind, count: reduced.count() };
    let (from, to) = (Codec::of(x), Codec::plain(result.element));
    result.fill(CHUNK, |start, out| {
        let mut values = [fold.of_nothing(); CHUNK];
        let values = &mut values[..out.len() * 8 / to.element.storage_bits()];
        let mut piece = [0f64; PIECE];
        kept.runs(start..start + values.len(), |results| {
            let values = &mut values[results.at..results.at + results.len];
            // Reads along the longer run: adjacent results, or the terms of one result.
            let runs_along_results = results.stride == 1 && results.len > 1;
            reduced.runs(0..reduced.count(), |terms| {
                if runs_along_results {
                    for term in 0..terms.len {
                        let piece = &mut piece[..values.len()];
                        from.read(x.bytes(), results.start + terms.start + term * terms.stride, 1, piece);
                        values.iter_mut().zip(piece).for_each(|(value, x)| fold.add(value, *x));
                    }
                    return;
                }
                for (index, value) in values.iter_mut().enumerate() {
                    let start = results.start + index * results.stride + terms.start;
                    for done in (0..terms.len).step_by(PIECE) {
                        let piece = &mut piece[..PIECE.min(terms.len - done)];
                        from.read(x.bytes(), start + done * terms.stride, terms.stride, piece);
                        piece.iter().for_each(|x| fold.add(value, *x));
                    }
                }
            });
        });
        values.iter_mut().for_each(|value| *value = fold.finish(*value));
        to.write(values, out);
    })
}

/// The combining function of a reduction.
#[derive(Clone, Copy)]
struct Fold {
    kind: ReduceKind,
    /// The number of elements per result.
    count: usize,
}

impl Fold {
    fn of_nothing(self) -> f64 {
        match self.kind {
            ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        }
    }

    #[inline]
    fn add(self, value: &mut f64, x: f64) {
        *value = match self.kind {
            ReduceKind::Sum | ReduceKind::Mean => *value + x,
            ReduceKind::Max => scalar::binary(BinaryKind::Max, *value, x),
            ReduceKind::Min => scalar::binary(BinaryKind::Min, *value, x),
            ReduceKind::Amax => scalar::binary(BinaryKind::Max, *value, x.abs()),
        };
    }

    fn finish(self, value: f64) -> f64 {
        if self.kind == ReduceKind::Mean { value / self.count as f64 } else { value }
    }
}

/// Computes exp(x - max) / sum along one axis.
pub(super) fn softmax(axis: usize, x: &Tensor, result: ResultType) -> Result<Tensor, FallbackError> {
    if x.count() == 0 {
        return result.zeros();
    }
    let extent = x.dims()[axis];
    let lines = View::of_axes(x.dims(), (0..x.dims().len()).filter(|other| *other != axis));
    let stride: usize = x.dims()[axis + 1..].iter().product();
    let from = Codec::of(x);
    let line = |position: usize, values: &mut [f64]| {
        from.read(x.bytes(), lines.index(position), stride, values);
        let max = values.iter().fold(f64::NEG_INFINITY, |max, x| scalar::binary(BinaryKind::Max, max, *x));
        let mut sum = 0.0;
        for value in values.iter_mut() {
            *value = scalar::unary(UnaryKind::Exp, *value - max);
            sum += *value;
        }
        values.iter_mut().for_each(|value| *value /= sum);
    };
    if stride == 1 {
        return by_rows(result, extent, line);
    }
    // Along an outer axis, lines are computed contiguously and then interleaved.
    let outer: usize = x.dims()[..axis].iter().product();
    let line_dims = vec![outer, stride, extent];
    let lines_type = ResultType { dims: line_dims.clone(), element: result.element, layout: None };
    let lines = by_rows(lines_type, extent, line)?;
    movement::copy(&lines, &View::of_axes(&line_dims, [0, 2, 1]), result)
}

/// Computes (x - mean) / sqrt(var + eps) · weight + bias over the last axis, with the biased variance.
pub(super) fn layer_norm(
    eps: f64,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    result: ResultType,
) -> Result<Tensor, FallbackError> {
    let extent = x.dims().last().copied().unwrap_or(1);
    let (weights, biases) = (values_of(weight)?, values_of(bias)?);
    let from = Codec::of(x);
    by_rows(result, extent, |row, values| {
        from.read(x.bytes(), row * extent, 1, values);
        let count = values.len() as f64;
        let mean = values.iter().fold(0.0, |sum, x| sum + x) / count;
        let variance = values.iter().fold(0.0, |sum, x| sum + (x - mean) * (x - mean)) / count;
        let deviation = (variance + eps).sqrt();
        for ((value, weight), bias) in values.iter_mut().zip(&weights).zip(&biases) {
            *value = (*value - mean) / deviation * weight + bias;
        }
    })
}

/// Creates a tensor from rows of `extent` elements, each computed by `compute(row, values)`.
fn by_rows(
    result: ResultType,
    extent: usize,
    compute: impl Fn(usize, &mut [f64]) + Sync,
) -> Result<Tensor, FallbackError> {
    let codec = Codec::plain(result.element);
    let mut tensor = result.zeros()?;
    if tensor.count() == 0 {
        return Ok(tensor);
    }
    let row_bytes = extent * codec.element.storage_bits() / 8;
    let scratch = || zeroed::<f64>(extent);
    try_for_each_chunk(tensor.bytes_mut(), row_bytes, scratch, |values, row, out| {
        let values = values.as_mut().map_err(|error| *error)?;
        compute(row, values);
        codec.write(values, out);
        Ok(())
    })
    .map_err(|error| no_memory(codec.element, &[extent], error))?;
    Ok(tensor)
}

/// The values of a tensor without a layout.
fn values_of(tensor: &Tensor) -> Result<Vec<f64>, FallbackError> {
    let mut values =
        zeroed(tensor.count()).map_err(|error| no_memory(tensor.element(), tensor.dims(), error))?;
    Codec::of(tensor).read(tensor.bytes(), 0, 1, &mut values);
    Ok(values)
}
