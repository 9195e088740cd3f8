//! Elements of tensors by index, on sample extents: which element of a value a row kernel reads at a row and column.

use fourfold_ir::{Dim, Entity, Module, SymbolValues};

use crate::plan::{RowInput, RowPlan, RowShape};

/// The extents of a plan under some values of the symbols.
pub(super) struct Sample {
    symbols: SymbolValues,
    pub(super) rows: u64,
    pub(super) k: u64,
}

impl Sample {
    /// Several assignments of small extents, all different, to the symbols of a program. Fixed extents stay.
    pub(super) fn all(module: &Module, plan: &RowPlan) -> Vec<Sample> {
        const EXTENTS: [[u64; 4]; 3] = [[3, 5, 2, 7], [1, 4, 6, 3], [8, 1, 3, 2]];
        let sample = |extents: [u64; 4]| {
            let mut symbols = SymbolValues::default();
            for symbol in module.symbols.keys() {
                symbols.set(symbol, extents[symbol.index() % extents.len()]);
            }
            let rows = plan.batch.evaluate(&symbols)?.checked_mul(plan.m.evaluate(&symbols)?)?;
            let k = plan.k.evaluate(&symbols)?;
            Some(Sample { symbols, rows, k })
        };
        EXTENTS.into_iter().filter_map(sample).collect()
    }

    /// The extents of a shape; `None` beyond 64 bits.
    pub(super) fn dims(&self, shape: &[Dim]) -> Option<Vec<u64>> {
        shape.iter().map(|dim| dim.evaluate(&self.symbols)).collect()
    }

    /// The number of elements of a value with this place.
    pub(super) fn count(&self, shape: RowShape) -> Option<u64> {
        match shape {
            RowShape::Scalar => Some(1),
            RowShape::Row => Some(self.k),
            RowShape::Column => Some(self.rows),
            RowShape::Matrix => self.rows.checked_mul(self.k),
            RowShape::Scales { block, .. } => self.rows.checked_mul(self.k / u64::from(block.max(1))),
        }
    }

    /// The element at a row and column of a value with this place, counted row-major.
    pub(super) fn element(&self, shape: RowShape, row: u64, column: u64) -> u64 {
        match shape {
            RowShape::Scalar => 0,
            RowShape::Row => column,
            RowShape::Column => row,
            RowShape::Matrix => row * self.k + column,
            RowShape::Scales { block, .. } => {
                let block = u64::from(block.max(1));
                row * (self.k / block) + column / block
            }
        }
    }

    /// The element of an operand at a row and column; `None` if the plan's numbers are not valid.
    pub(super) fn operand(&self, input: &RowInput, shape: RowShape, row: u64, column: u64) -> Option<u64> {
        let row = match &input.repeat {
            None => row,
            Some(repeat) => {
                let (each, rows) =
                    (repeat.each.evaluate(&self.symbols)?, repeat.rows.evaluate(&self.symbols)?);
                row.checked_div(each)?.checked_rem(rows)?
            }
        };
        Some(self.element(shape, row, column))
    }

    /// Some rows and columns: the corners, and others spread over the space.
    pub(super) fn positions(&self) -> Vec<(u64, u64)> {
        const COUNT: u64 = 61;
        let (rows, k) = (self.rows, self.k);
        if rows == 0 || k == 0 {
            return Vec::new();
        }
        let corners = [(0, 0), (rows - 1, 0), (0, k - 1), (rows - 1, k - 1)];
        // The factors are coprime to most extents, so that positions do not repeat along an axis.
        let spread = (0..COUNT).map(|i| ((i * 7919 + i / 7) % rows, (i * 104_729 + i / 3) % k));
        corners.into_iter().chain(spread).collect()
    }
}

/// The coordinates of an element of a shape with these extents.
pub(super) fn coordinates(dims: &[u64], mut element: u64) -> Vec<u64> {
    let mut coordinates = vec![0; dims.len()];
    for (coordinate, extent) in coordinates.iter_mut().zip(dims).rev() {
        *coordinate = element % (*extent).max(1);
        element /= (*extent).max(1);
    }
    coordinates
}

/// The element at these coordinates, of which those at axes of extent 1 count as 0. Axes align at the end, as in NumPy.
pub(super) fn broadcast_element(dims: &[u64], coordinates: &[u64]) -> Option<u64> {
    let skipped = coordinates.len().checked_sub(dims.len())?;
    let own = dims.iter().zip(&coordinates[skipped..]);
    Some(own.fold(0, |element, (extent, at)| element * extent + if *extent == 1 { 0 } else { *at }))
}
