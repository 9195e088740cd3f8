//! The bytes that a slice takes of a stored tensor.

use super::error::TensorDataError;
use super::header::StoredTensor;
use super::slice::AxisSlice;

/// The elements that a slice takes of a stored tensor.
#[derive(Debug)]
pub(super) struct Selection {
    /// The extents, without removed axes, in elements of the dtype.
    pub(super) dims: Vec<usize>,
    /// The size in bytes.
    pub(super) size: u64,
    /// The first byte, from the start of the tensor.
    first: u64,
    /// The bytes of each contiguous run.
    run: u64,
    /// The axes outside a run that have several indices, outermost first: their number, and their distance in bytes.
    outer: Vec<(u64, u64)>,
}

/// Runs of at least this size are read one by one, and so are runs at least this far apart.
const FAR: u64 = 4096;
/// The bytes that are read at once for runs that are close together.
const WINDOW: u64 = 64 << 10;

impl Selection {
    /// Applies a slice to a tensor.
    pub(super) fn new(tensor: &StoredTensor, slice: &[AxisSlice]) -> Result<Selection, TensorDataError> {
        let shape = &tensor.shape;
        if slice.len() > shape.len() {
            return Err(TensorDataError::SliceRank { axes: slice.len(), shape: shape.clone() });
        }
        let mut dims = Vec::new();
        let mut taken = Vec::new();
        for (axis, &extent) in shape.iter().enumerate() {
            let slice = slice.get(axis).copied().unwrap_or(AxisSlice::Whole);
            let (start, count, step) = indices(slice, extent as u64)
                .ok_or_else(|| TensorDataError::SliceBounds { axis, slice, shape: shape.clone() })?;
            // At most the extent, which is a `usize`.
            dims.extend((!matches!(slice, AxisSlice::Index(_))).then_some(count as usize));
            taken.push((start, count, step));
        }
        let empty = Selection { dims, size: 0, first: 0, run: 0, outer: Vec::new() };
        if taken.iter().any(|(_, count, _)| *count == 0) {
            return Ok(empty);
        }
        // No extent is zero, so every product is bounded by the tensor's bits, which the header's check computed.
        let bits = tensor.bits as u64;
        let (mut stride, mut run, mut first, mut outer) = (bits, bits, 0, Vec::new());
        let mut is_run = true;
        for ((start, count, step), extent) in taken.into_iter().zip(shape).rev() {
            first += start * stride;
            if is_run && step == 1 {
                run = count * stride;
            } else if count > 1 {
                outer.push((count, step * stride));
            }
            is_run &= step == 1 && count == *extent as u64;
            stride *= *extent as u64;
        }
        let is_whole = |bits: u64| bits.is_multiple_of(8);
        if !is_whole(run) || !is_whole(first) || !outer.iter().all(|(_, distance)| is_whole(*distance)) {
            return Err(TensorDataError::SliceInByte { dtype: tensor.dtype.clone() });
        }
        outer.reverse();
        let outer: Vec<(u64, u64)> =
            outer.into_iter().map(|(count, distance)| (count, distance / 8)).collect();
        let size = outer.iter().map(|(count, _)| count).product::<u64>() * (run / 8);
        Ok(Selection { size, first: first / 8, run: run / 8, outer, ..empty })
    }

    /// Reads the elements into `bytes`, which has their size. `read` reads bytes from an offset into the tensor.
    pub(super) fn read<E>(
        &self,
        bytes: &mut [u8],
        read: impl Fn(&mut [u8], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if bytes.is_empty() {
            return Ok(());
        }
        let last = self.outer.iter().map(|(count, distance)| (count - 1) * distance).sum::<u64>();
        let end = self.first + last + self.run;
        let is_near = self.run < FAR && self.outer.last().is_some_and(|(_, distance)| *distance < FAR);
        let (mut window, mut window_start) = (Vec::new(), 0);
        let mut at = vec![0; self.outer.len()];
        // A run is part of `bytes`, so its size is a `usize`.
        for run in bytes.chunks_mut(self.run as usize) {
            let offset: u64 = at.iter().zip(&self.outer).map(|(at, (_, distance))| at * distance).sum();
            let offset = self.first + offset;
            if is_near {
                if offset < window_start || offset + self.run > window_start + window.len() as u64 {
                    window.resize(WINDOW.min(end - offset) as usize, 0);
                    window_start = offset;
                    read(&mut window, offset)?;
                }
                let from = (offset - window_start) as usize;
                run.copy_from_slice(&window[from..from + run.len()]);
            } else {
                read(run, offset)?;
            }
            for (at, (count, _)) in at.iter_mut().zip(&self.outer).rev() {
                *at += 1;
                if *at < *count {
                    break;
                }
                *at = 0;
            }
        }
        Ok(())
    }
}

/// The first index, the number of indices and their distance; `None` if one is outside the extent.
fn indices(slice: AxisSlice, extent: u64) -> Option<(u64, u64, u64)> {
    match slice {
        AxisSlice::Whole => Some((0, extent, 1)),
        AxisSlice::Index(index) => (index < extent).then_some((index, 1, 1)),
        AxisSlice::Range { start, end, step } => {
            let count = end.checked_sub(start)?.div_ceil(step.max(1));
            let step = if count > 1 { step } else { 1 };
            (end <= extent).then_some((start, count, step))
        }
    }
}
