//! Shapes of the values of a row kernel: their place in the rows and columns that it computes.

use fourfold_ir::{Dim, ScaleLayout, dim_product};

use crate::plan::{Repeat, RowShape};

/// The rows and columns that a row kernel computes. Its matrices have this many elements, row after row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Space {
    /// L·M, the rows of all matrices.
    pub(crate) rows: Dim,
    /// K, the elements of one row.
    pub(crate) k: Dim,
}

impl Space {
    /// The space of a shape, whose last `axes` axes are the columns; `None` beyond 64 bits.
    pub(crate) fn of(shape: &[Dim], axes: usize) -> Option<Space> {
        let (rows, k) = shape.split_at(shape.len().checked_sub(axes)?);
        Some(Space { rows: dim_product(rows)?, k: dim_product(k)? })
    }

    /// The space of an elementwise op with this result: rows along the last axis.
    pub(crate) fn of_elements(shape: &[Dim]) -> Option<Space> {
        Space::of(shape, shape.len().min(1))
    }

    /// The place of a value with this shape, if it has one: all elements, one per row, one per column, or one.
    pub(crate) fn class(&self, shape: &[Dim]) -> Option<RowShape> {
        let count = dim_product(shape)?;
        let is_one = |dim: &Dim| dim.as_fixed() == Some(1);
        if count == self.rows.times(&self.k)? {
            Some(RowShape::Matrix)
        } else if is_one(&count) {
            Some(RowShape::Scalar)
        } else if shape.last() == Some(&self.k) && shape[..shape.len() - 1].iter().all(is_one) {
            Some(RowShape::Row)
        } else {
            (count == self.rows).then_some(RowShape::Column)
        }
    }

    /// The place at which an op with a result of shape `result` reads an operand, which broadcasts to it.
    pub(crate) fn read(&self, operand: &[Dim], result: &[Dim]) -> Option<Place> {
        let is_one = |dim: &Dim| dim.as_fixed() == Some(1);
        let class = self.class(result)?;
        let ones = |shape: &[Dim]| shape.iter().take_while(|dim| is_one(dim)).count();
        let same = operand[ones(operand)..] == result[ones(result)..];
        if same {
            return Some(Place::of(class));
        }
        if operand.iter().all(is_one) {
            return Some(Place::of(RowShape::Scalar));
        }
        // Other operands repeat along rows or columns, which must be the kernel's.
        if class != RowShape::Matrix || Space::of_elements(result)? != *self {
            return None;
        }
        let (rows, last) = (&result[..result.len() - 1], operand.last()?);
        let shape = match last {
            last if *last == self.k => RowShape::Matrix,
            last if is_one(last) => RowShape::Column,
            _ => return None,
        };
        let of_rows = &operand[..operand.len() - 1];
        if of_rows.iter().all(is_one) {
            return Some(Place::of(if shape == RowShape::Matrix { RowShape::Row } else { RowShape::Scalar }));
        }
        let of_rows = &of_rows[ones(of_rows)..];
        // Aligned at the end, some trailing axes repeat, and the axes before them are the result's.
        let trailing = of_rows.iter().rev().take_while(|dim| is_one(dim)).count();
        let (own, after) = (&of_rows[..of_rows.len() - trailing], &rows[rows.len() - trailing..]);
        let before = rows.len() - trailing;
        if before < own.len() || rows[before - own.len()..before] != *own {
            return None;
        }
        let repeat = Repeat { each: dim_product(after)?, rows: dim_product(own)? };
        let whole = repeat.rows == self.rows && is_one(&repeat.each);
        Some(Place { shape, repeat: (!whole).then_some(repeat) })
    }

    /// Returns whether a value with the place `found` can serve where `wanted` is read.
    pub(crate) fn serves(&self, found: RowShape, wanted: RowShape) -> bool {
        use RowShape::{Column, Matrix, Row, Scalar};
        let one = |dim: &Dim| dim.as_fixed() == Some(1);
        found == wanted
            || match (found, wanted) {
                (Column, Scalar) | (Matrix, Row) => one(&self.rows),
                (Row, Scalar) | (Matrix, Column) => one(&self.k),
                (Matrix, Scalar) => one(&self.rows) && one(&self.k),
                _ => false,
            }
    }
}

/// The place at which a kernel reads a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) shape: RowShape,
    /// Present if the value has fewer rows.
    pub(crate) repeat: Option<Repeat>,
}

impl Place {
    pub(crate) fn of(shape: RowShape) -> Place {
        Place { shape, repeat: None }
    }

    /// The scales of blocks.
    pub(crate) fn scales(block: u32, layout: ScaleLayout) -> Place {
        Place::of(RowShape::Scales { block, layout })
    }
}

/// L and M of a shape `[.., M, K]`; `None` beyond 64 bits.
pub(crate) fn matrices(shape: &[Dim]) -> Option<[Dim; 2]> {
    match shape {
        [leading @ .., m, _] => Some([dim_product(leading)?, m.clone()]),
        _ => Some([Dim::fixed(1), Dim::fixed(1)]),
    }
}
