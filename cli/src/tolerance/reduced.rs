//! Bounds a reduction, given the intervals of its elements.

use fourfold_ir::{BinaryKind, ElementType, OperandShape, ReduceKind, scalar};

use super::interval::{Interval, UNKNOWN};
use super::ulp;
use super::within::Bounds;

/// The intervals of the results of a reduction.
pub(super) struct Reduced {
    kind: ReduceKind,
    shape: OperandShape,
    columns: usize,
    slots: Vec<Slot>,
}

/// The interval of one result.
#[derive(Clone, Copy)]
struct Slot {
    ends: Interval,
    /// The sum of the largest magnitudes.
    magnitude: f64,
    count: f64,
}

impl Reduced {
    /// Creates the reduction of no elements. `columns` is the number of columns of its operand.
    pub(super) fn new(kind: ReduceKind, shape: OperandShape, columns: usize, results: usize) -> Reduced {
        let of_nothing = match kind {
            ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        };
        let slot = Slot { ends: [of_nothing; 2], magnitude: 0.0, count: 0.0 };
        Reduced { kind, shape, columns, slots: vec![slot; results] }
    }

    /// Adds the element at this position in row-major order.
    pub(super) fn add(&mut self, index: usize, [low, high]: Interval) {
        let slot = match self.shape {
            OperandShape::Scalar => 0,
            OperandShape::Row => index % self.columns,
            OperandShape::Column => index / self.columns,
            OperandShape::Matrix => index,
        };
        let Some(slot) = self.slots.get_mut(slot) else { return };
        let [least, most] = magnitudes([low, high]);
        let of = |kind, ends: Interval| {
            [scalar::binary(kind, slot.ends[0], ends[0]), scalar::binary(kind, slot.ends[1], ends[1])]
        };
        slot.ends = match self.kind {
            ReduceKind::Max => of(BinaryKind::Max, [low, high]),
            ReduceKind::Min => of(BinaryKind::Min, [low, high]),
            ReduceKind::Amax => of(BinaryKind::Max, [least, most]),
            ReduceKind::Sum | ReduceKind::Mean => of(BinaryKind::Add, [low, high]),
        };
        slot.magnitude += most;
        slot.count += 1.0;
    }

    /// Returns the bounds of each result, where `want` is expected. Sums are in f32, in an order that the kernel
    /// chooses.
    pub(super) fn bounds(&self, want: &[f64]) -> Bounds {
        // No magnitude is negative.
        let range = if self.kind == ReduceKind::Amax { [0.0, f64::INFINITY] } else { UNKNOWN };
        let mut bounds = Bounds::with_capacity(want.len());
        for (slot, want) in self.slots.iter().zip(want) {
            let unit = slot.count * 2f64.powi(-24);
            let order = slot.magnitude * unit / (1.0 - unit);
            let (ends, extra) = match self.kind {
                ReduceKind::Max | ReduceKind::Min | ReduceKind::Amax => (slot.ends, 0.0),
                ReduceKind::Sum => (slot.ends, order + ulp(*want)),
                ReduceKind::Mean => {
                    (slot.ends.map(|end| end / slot.count), order / slot.count + 2.0 * ulp(*want))
                }
            };
            bounds.push(ElementType::F32, [ends[0] - extra, ends[1] + extra], *want, range);
        }
        bounds
    }
}

/// Returns true if every order of combining gives the same bits.
pub(super) fn is_exact(kind: ReduceKind) -> bool {
    match kind {
        ReduceKind::Max | ReduceKind::Min | ReduceKind::Amax => true,
        ReduceKind::Sum | ReduceKind::Mean => false,
    }
}

/// Returns the least and the largest magnitude in an interval.
pub(super) fn magnitudes([low, high]: Interval) -> Interval {
    if low.is_nan() || high.is_nan() {
        return [f64::NAN; 2];
    }
    let most = low.abs().max(high.abs());
    let spans_zero = low <= 0.0 && 0.0 <= high;
    [if spans_zero { 0.0 } else { low.abs().min(high.abs()) }, most]
}
