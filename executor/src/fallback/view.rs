//! Index mapping of broadcast or permuted operands, as runs of equal stride.

use std::ops::Range;

/// A row-major index space over a tensor's elements, with a stride per axis; 0 repeats the element. Adjacent axes
/// that one stride describes are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The index of the first element.
    base: usize,
    dims: Vec<usize>,
    strides: Vec<usize>,
}

/// Elements at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The position of the first element within the requested range.
    pub(crate) at: usize,
    /// The index of the first element in the tensor.
    pub(crate) start: usize,
    /// The distance between elements.
    pub(crate) stride: usize,
    /// The number of elements.
    pub(crate) len: usize,
}

impl View {
    /// Broadcasts a tensor of shape `from` to the shape `to`, as NumPy does. The shapes must be compatible.
    pub(crate) fn broadcast(from: &[usize], to: &[usize]) -> View {
        let added = to.len() - from.len();
        let strides = row_major_strides(from);
        let axis_stride = |axis: usize| match axis.checked_sub(added) {
            Some(axis) if from[axis] != 1 => strides[axis],
            _ => 0,
        };
        View::new(to.iter().copied().zip((0..to.len()).map(axis_stride)))
    }

    /// Reorders the axes of a tensor of shape `from`: axis i is `axes[i]`. Omitted axes are fixed at index 0.
    pub(crate) fn of_axes(from: &[usize], axes: impl IntoIterator<Item = usize>) -> View {
        let strides = row_major_strides(from);
        View::new(axes.into_iter().map(|axis| (from[axis], strides[axis])))
    }

    /// The first element has the index `base`; each axis has an extent and a stride.
    pub(crate) fn strided(base: usize, axes: impl IntoIterator<Item = (usize, usize)>) -> View {
        View { base, ..View::new(axes.into_iter()) }
    }

    fn new(axes: impl Iterator<Item = (usize, usize)>) -> View {
        let (mut dims, mut strides) = (Vec::<usize>::new(), Vec::<usize>::new());
        for (dim, stride) in axes {
            match dim {
                0 => return View { base: 0, dims: vec![0], strides: vec![0] },
                1 => continue,
                _ => {}
            }
            match (dims.last_mut(), strides.last_mut()) {
                (Some(last), Some(last_stride)) if *last_stride == stride.saturating_mul(dim) => {
                    // Saturates beyond a tensor's maximum size, which is refused before the view is used.
                    *last = last.saturating_mul(dim);
                    *last_stride = stride;
                }
                _ => {
                    dims.push(dim);
                    strides.push(stride);
                }
            }
        }
        if dims.is_empty() {
            (dims, strides) = (vec![1], vec![0]);
        }
        View { base: 0, dims, strides }
    }

    /// The number of positions.
    pub(crate) fn count(&self) -> usize {
        self.dims.iter().fold(1, |count, dim| count.saturating_mul(*dim))
    }

    /// The extent and stride of the innermost axis.
    pub(crate) fn inner(&self) -> (usize, usize) {
        let last = "a view has at least one axis";
        (*self.dims.last().expect(last), *self.strides.last().expect(last))
    }

    /// The tensor index of one position.
    pub(crate) fn index(&self, position: usize) -> usize {
        let mut rest = position;
        let mut index = self.base;
        for (dim, stride) in self.dims.iter().zip(&self.strides).rev() {
            index += rest % dim * stride;
            rest /= dim;
        }
        index
    }

    /// Visits the runs of a range of positions, in order.
    pub(crate) fn runs(&self, range: Range<usize>, mut visit: impl FnMut(Run)) {
        let (inner, stride) = self.inner();
        let mut at = range.start;
        while at < range.end {
            let len = (inner - at % inner).min(range.end - at);
            visit(Run { at: at - range.start, start: self.index(at), stride, len });
            at += len;
        }
    }
}

/// Row-major strides, in elements.
pub(crate) fn row_major_strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; dims.len()];
    for axis in (1..dims.len()).rev() {
        // Saturates only for an empty tensor, whose elements are never accessed.
        strides[axis - 1] = strides[axis].saturating_mul(dims[axis]);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(view: &View, range: Range<usize>) -> Vec<usize> {
        let mut indices = Vec::new();
        view.runs(range, |run| {
            assert_eq!(run.at, indices.len());
            indices.extend((0..run.len).map(|index| run.start + index * run.stride));
        });
        indices
    }

    #[test]
    fn axes_that_one_stride_describes_are_merged() {
        let merged = |dims: &[usize], strides: &[usize]| View {
            base: 0,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
        };
        assert_eq!(View::broadcast(&[3, 4, 5], &[3, 4, 5]), merged(&[60], &[1]));
        assert_eq!(View::broadcast(&[1], &[3, 4]), merged(&[12], &[0]));
        assert_eq!(View::broadcast(&[4, 5], &[3, 4, 5]), merged(&[3, 20], &[0, 1]));
        assert_eq!(View::broadcast(&[], &[]), merged(&[1], &[0]));
    }

    #[test]
    fn a_row_vector_repeats_down_and_a_column_across() {
        assert_eq!(indices(&View::broadcast(&[3], &[2, 3]), 0..6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(indices(&View::broadcast(&[2, 1], &[2, 3]), 1..5), [0, 0, 1, 1]);
        assert_eq!(indices(&View::broadcast(&[2, 1, 2], &[2, 2, 2]), 0..8), [0, 1, 0, 1, 2, 3, 2, 3]);
    }

    #[test]
    fn permuted_axes_walk_the_tensor_in_the_new_order() {
        let view = View::of_axes(&[2, 3], [1, 0]);
        assert_eq!(indices(&view, 0..6), [0, 3, 1, 4, 2, 5]);
        assert_eq!(indices(&view, 3..5), [4, 2]);
        assert_eq!(View::of_axes(&[2, 3, 4], [0, 1, 2]), View { base: 0, dims: vec![24], strides: vec![1] });
    }

    #[test]
    fn a_strided_view_begins_at_its_base() {
        // Rows 1 and 3 of [4, 5], columns 0 and 2.
        let view = View::strided(5, [(2, 10), (2, 2)]);
        assert_eq!(indices(&view, 0..4), [5, 7, 15, 17]);
        assert_eq!(indices(&View::strided(7, []), 0..1), [7]);
        assert!(indices(&View::strided(7, [(0, 1)]), 0..0).is_empty());
    }

    #[test]
    fn an_empty_view_has_no_runs() {
        let view = View::broadcast(&[0, 4], &[0, 4]);
        assert_eq!(view.count(), 0);
        assert!(indices(&view, 0..0).is_empty());
    }
}
