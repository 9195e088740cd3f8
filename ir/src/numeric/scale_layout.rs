//! Converts block scales, one byte each, between the layout in checkpoints (linear) and the layout that the hardware
//! reads (blocked).
//!
//! *Linear* is `[rows, cols]`, row-major, without padding. *Blocked* divides that matrix into tiles of 128 rows and
//! 4 columns, and pads the last ones. A tile is 512 bytes; tiles are stored row-major. Inside a tile, rows r, r+32,
//! r+64 and r+96 share a line of 16 bytes, four scales each:
//!
//! ```text
//! offset(r, c) = ((r/128)*ceil(cols/4) + c/4)*512 + (r%32)*16 + ((r%128)/32)*4 + c%4
//! ```
//!
//! This is CuTe's scale-factor atom of shape ((32,4),(V,4)) and stride ((16,4),(0,1)). Each matrix of a batch is
//! padded separately. Conversion writes zero padding, because a NaN there poisons a whole tile, and ignores padding
//! that it reads.

use thiserror::Error;

/// Rows of a tile of blocked scales.
pub const TILE_ROWS: usize = 128;
/// Columns (scales along K) of a tile.
const TILE_COLS: usize = 4;
/// Bytes of a tile.
const TILE_BYTES: usize = TILE_ROWS * TILE_COLS;
/// Lines of a tile. Rows `TILE_LINES` apart share a line.
const TILE_LINES: usize = 32;
/// Bytes of a line: four rows of `TILE_COLS` scales.
const LINE_BYTES: usize = TILE_BYTES / TILE_LINES;

/// An error from converting scales to the other layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The source's size does not fit its shape.
    #[error("scales of this shape take {expected} bytes, found {found}")]
    SizeMismatch {
        /// Bytes of the shape in the source's layout.
        expected: usize,
        /// Bytes in the source.
        found: usize,
    },
    /// The size of the shape exceeds the address space.
    #[error("{batch} scale matrices of {rows} x {cols} exceed the address space")]
    TooLarge {
        /// Number of matrices.
        batch: usize,
        /// Rows of a matrix.
        rows: usize,
        /// Columns of a matrix.
        cols: usize,
    },
}

/// The bytes of one blocked matrix of `rows` x `cols` scales: `rows` rounded up to a multiple of 128, times `cols`
/// rounded up to a multiple of 4.
///
/// # Panics
///
/// If the product exceeds `usize`; use [`checked_blocked_len`] for unchecked sizes.
pub fn blocked_len(rows: usize, cols: usize) -> usize {
    checked_blocked_len(rows, cols).expect("a scale matrix of this shape exceeds the address space")
}

/// Computes [`blocked_len`]; `None` if it exceeds `usize`.
pub fn checked_blocked_len(rows: usize, cols: usize) -> Option<usize> {
    rows.checked_next_multiple_of(TILE_ROWS)?.checked_mul(cols.checked_next_multiple_of(TILE_COLS)?)
}

/// The byte offset of the scale of row `r` and column `c` in a blocked matrix with `cols` columns.
///
/// `r` and `c` may lie in the padding, up to the end of the tile.
#[inline]
pub fn blocked_offset(r: usize, c: usize, cols: usize) -> usize {
    let tile = (r / TILE_ROWS) * cols.div_ceil(TILE_COLS) + c / TILE_COLS;
    let line = r % TILE_LINES;
    let row_in_line = (r % TILE_ROWS) / TILE_LINES;
    tile * TILE_BYTES + line * LINE_BYTES + row_in_line * TILE_COLS + c % TILE_COLS
}

/// Converts `batch` consecutive linear matrices of `rows` x `cols` scales to blocked matrices, [`blocked_len`] bytes
/// apart, with zero padding.
///
/// # Errors
///
/// [`LayoutError::SizeMismatch`] unless `src` has `batch * rows * cols` bytes, [`LayoutError::TooLarge`] if the size
/// of the result exceeds `usize`.
pub fn linear_to_blocked(src: &[u8], batch: usize, rows: usize, cols: usize) -> Result<Vec<u8>, LayoutError> {
    let sizes = Sizes::new(batch, rows, cols)?;
    sizes.check(src, sizes.linear)?;
    let mut blocked = vec![0; sizes.blocked];
    for_each_run(batch, rows, cols, |linear_at, blocked_at, len| {
        blocked[blocked_at..blocked_at + len].copy_from_slice(&src[linear_at..linear_at + len]);
    });
    Ok(blocked)
}

/// Converts `batch` blocked matrices of `rows` x `cols` scales, [`blocked_len`] bytes apart in `src`, to consecutive
/// linear matrices. Ignores padding.
///
/// # Errors
///
/// [`LayoutError::SizeMismatch`] unless `src` has `batch * blocked_len(rows, cols)` bytes,
/// [`LayoutError::TooLarge`] if that exceeds `usize`.
pub fn blocked_to_linear(src: &[u8], batch: usize, rows: usize, cols: usize) -> Result<Vec<u8>, LayoutError> {
    let sizes = Sizes::new(batch, rows, cols)?;
    sizes.check(src, sizes.blocked)?;
    let mut linear = vec![0; sizes.linear];
    for_each_run(batch, rows, cols, |linear_at, blocked_at, len| {
        linear[linear_at..linear_at + len].copy_from_slice(&src[blocked_at..blocked_at + len]);
    });
    Ok(linear)
}

/// Bytes of a whole batch in either layout.
struct Sizes {
    linear: usize,
    blocked: usize,
}

impl Sizes {
    fn new(batch: usize, rows: usize, cols: usize) -> Result<Self, LayoutError> {
        checked_blocked_len(rows, cols)
            .and_then(|matrix| matrix.checked_mul(batch))
            // The linear size is at most the padded one, so these products do not overflow.
            .map(|blocked| Self { linear: batch * (rows * cols), blocked })
            .ok_or(LayoutError::TooLarge { batch, rows, cols })
    }

    fn check(&self, src: &[u8], expected: usize) -> Result<(), LayoutError> {
        if src.len() == expected {
            Ok(())
        } else {
            Err(LayoutError::SizeMismatch { expected, found: src.len() })
        }
    }
}

/// Calls `visit(linear offset, blocked offset, length)` for every run of bytes that is contiguous in both layouts:
/// the columns of one row in one tile.
fn for_each_run(batch: usize, rows: usize, cols: usize, mut visit: impl FnMut(usize, usize, usize)) {
    // A batch of empty matrices takes no bytes and may be huge: do not loop over it.
    if rows == 0 || cols == 0 {
        return;
    }
    for matrix in 0..batch {
        let blocked_start = matrix * blocked_len(rows, cols);
        for row in 0..rows {
            let linear_start = (matrix * rows + row) * cols;
            for col in (0..cols).step_by(TILE_COLS) {
                let len = TILE_COLS.min(cols - col);
                visit(linear_start + col, blocked_start + blocked_offset(row, col, cols), len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;
    use proptest::prelude::*;

    /// A second definition of the layout, without an offset formula: pad to [Mt*128, KT*4], view as
    /// [Mt, 4, 32, KT, 4], swap axes 1 and 3 with their strides, make contiguous.
    fn swizzle_by_reshape(src: &[u8], rows: usize, cols: usize) -> Vec<u8> {
        let (row_tiles, col_tiles) = (rows.div_ceil(128), cols.div_ceil(4));
        let width = col_tiles * 4;
        let mut padded = vec![0; row_tiles * 128 * width];
        for row in 0..rows {
            padded[row * width..][..cols].copy_from_slice(&src[row * cols..][..cols]);
        }

        let mut shape = [row_tiles, 4, 32, col_tiles, 4];
        let mut strides = [128 * width, 32 * width, width, 4, 1];
        shape.swap(1, 3);
        strides.swap(1, 3);

        let mut contiguous = Vec::with_capacity(padded.len());
        let mut index = [0; 5];
        while contiguous.len() < padded.len() {
            contiguous.push(padded[index.iter().zip(strides).map(|(i, stride)| i * stride).sum::<usize>()]);
            for axis in (0..5).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        contiguous
    }

    /// Bytes that differ between neighbours in both directions and are never zero, so that padding is visible.
    fn marked(len: usize) -> Vec<u8> {
        (0..len).map(|i| 1 + (i * 37 % 251) as u8).collect()
    }

    #[track_caller]
    fn check(batch: usize, rows: usize, cols: usize) {
        let linear = marked(batch * rows * cols);
        let blocked = linear_to_blocked(&linear, batch, rows, cols).unwrap();

        let expected: Vec<u8> = (0..batch)
            .flat_map(|matrix| swizzle_by_reshape(&linear[matrix * rows * cols..][..rows * cols], rows, cols))
            .collect();
        assert_eq!(blocked, expected, "batch {batch}, {rows} x {cols}");

        let nonzero = blocked.iter().filter(|&&byte| byte != 0).count();
        assert_eq!(nonzero, linear.len(), "everything but the scales is zero");
        assert_eq!(blocked_to_linear(&blocked, batch, rows, cols).unwrap(), linear);
    }

    #[test]
    fn blocked_is_the_padded_reshape_with_two_axes_swapped() {
        for rows in [1, 31, 32, 33, 127, 128, 129, 200, 256, 300] {
            for cols in [1, 3, 4, 5, 8, 17, 64] {
                check(1, rows, cols);
                check(3, rows, cols);
            }
        }
    }

    #[test]
    fn an_empty_batch_or_matrix_is_empty() {
        for (batch, rows, cols) in
            [(0, 5, 5), (3, 0, 5), (3, 5, 0), (0, 0, 0), (usize::MAX, usize::MAX / 2, 0)]
        {
            assert_eq!(linear_to_blocked(&[], batch, rows, cols), Ok(vec![]));
            assert_eq!(blocked_to_linear(&[], batch, rows, cols), Ok(vec![]));
        }
        assert_eq!([blocked_len(0, 4), blocked_len(4, 0)], [0, 0]);
    }

    #[test]
    fn rows_thirty_two_apart_share_a_line_of_sixteen_bytes() {
        assert_eq!([0, 32, 64, 96].map(|row| blocked_offset(row, 0, 4)), [0, 4, 8, 12]);
        assert_eq!([0, 1, 31].map(|row| blocked_offset(row, 3, 4)), [3, 19, 499]);
    }

    #[test]
    fn tiles_follow_one_another_along_the_columns_first() {
        // Nine columns are three tiles wide.
        assert_eq!([4, 8].map(|col| blocked_offset(0, col, 9)), [512, 1024]);
        assert_eq!(blocked_offset(128, 0, 9), 3 * 512);
    }

    #[test]
    fn matrices_of_a_batch_are_padded_each_by_itself() {
        let blocked = linear_to_blocked(&[7, 9], 2, 1, 1).unwrap();
        assert_eq!(blocked.len(), 2 * 512);
        assert_eq!([blocked[0], blocked[512]], [7, 9]);
    }

    #[test]
    fn padding_may_hold_anything_when_it_is_read() {
        let (rows, cols) = (130, 5);
        let linear = marked(rows * cols);
        let mut blocked = linear_to_blocked(&linear, 1, rows, cols).unwrap();
        blocked.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 0x7F);
        assert_eq!(blocked_to_linear(&blocked, 1, rows, cols).unwrap(), linear);
    }

    #[test]
    fn a_source_of_the_wrong_size_is_refused_with_both_sizes() {
        let error = linear_to_blocked(&[0; 11], 1, 3, 4).unwrap_err();
        assert_eq!(error, LayoutError::SizeMismatch { expected: 12, found: 11 });
        assert_eq!(error.to_string(), "scales of this shape take 12 bytes, found 11");
        let error = blocked_to_linear(&[0; 512], 2, 3, 4).unwrap_err();
        assert_eq!(error, LayoutError::SizeMismatch { expected: 1024, found: 512 });
    }

    #[test]
    fn a_shape_without_a_size_is_an_error_and_not_an_overflow() {
        let huge = usize::MAX;
        assert_eq!(checked_blocked_len(huge, 1), None);
        assert_eq!(checked_blocked_len(1, huge), None);
        assert_eq!(checked_blocked_len(huge / 256, 512), None);
        assert_eq!(checked_blocked_len(1, 1), Some(512));
        for (batch, rows, cols) in [(1, huge, 1), (huge, 1, 1), (2, huge / 8, 4)] {
            let error = LayoutError::TooLarge { batch, rows, cols };
            assert_eq!(linear_to_blocked(&[0], batch, rows, cols), Err(error));
            assert_eq!(blocked_to_linear(&[0], batch, rows, cols), Err(error));
        }
    }

    proptest! {
        #![proptest_config(oracle::cases(64))]
        #[test]
        fn any_ragged_shape_is_the_padded_reshape(
            batch in 0usize..4,
            rows in 0usize..400,
            cols in 0usize..40,
        ) {
            check(batch, rows, cols);
        }

        #[test]
        fn offsets_of_a_padded_matrix_are_a_permutation_of_its_bytes(
            rows in 1usize..300,
            cols in 1usize..20,
        ) {
            let len = blocked_len(rows, cols);
            prop_assert_eq!(Some(len), checked_blocked_len(rows, cols));
            let mut seen = vec![false; len];
            for r in 0..rows.next_multiple_of(128) {
                for c in 0..cols.next_multiple_of(4) {
                    let offset = blocked_offset(r, c, cols);
                    prop_assert!(!std::mem::replace(&mut seen[offset], true), "({}, {}) collides", r, c);
                }
            }
            prop_assert!(seen.into_iter().all(|seen| seen));
        }
    }
}
