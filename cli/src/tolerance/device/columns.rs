//! Compares the result of a column kernel. Extremes are exact. Sums are in f32, in an order of the kernel's ([`sum`]),
//! and the result is rounded to its type.

use fourfold_ir::ReduceKind;
use fourfold_scheduler::ColumnPlan;

use super::super::interval::{self, Interval};
use super::super::within::Bounds;
use super::super::{Compared, Got, SegmentOps, Values, missing};
use super::outputs::{named, push};
use super::sum::{self, Elements};
use crate::error::Error;

/// Compares the result.
pub(super) fn compare_column<'g>(
    run: &SegmentOps<'_>,
    plan: &ColumnPlan,
    values: &Values,
    got: &Got<'g>,
) -> Result<Compared, Error> {
    let (kind, element) = (plan.program.kind, plan.program.element);
    if !matches!(kind, ReduceKind::Sum | ReduceKind::Mean) {
        return run.equal_value(plan.result, values, got);
    }
    let extents = plan.extents.each_ref().map(|dim| usize::try_from(dim.evaluate(run.symbols)?).ok());
    let [Some(outer), Some(a), Some(middle), Some(c), Some(inner)] = extents else {
        return Err(missing(&format!("an extent of segment {}", run.segment)));
    };
    let operand = run.operand(plan.operand)?.to_f64();
    let want = run.take(values, plan.result)?;
    let expected = want.to_f64();
    let sizes = [[outer, a, middle, c, inner], [outer, 1, middle, 1, inner]];
    let sizes = sizes.map(|extents| extents.into_iter().try_fold(1usize, usize::checked_mul));
    if sizes != [Some(operand.len()), Some(expected.len())] {
        return Err(missing(run.program.module().name_of(plan.operand)));
    }
    const EACH: usize = size_of::<Interval>();
    run.check_room(a.saturating_mul(c).saturating_mul(EACH))?;
    let mut bounds = Bounds::with_capacity(expected.len());
    let mut ends: Vec<Interval> = Vec::with_capacity(a.saturating_mul(c));
    for (index, want) in expected.iter().enumerate() {
        let (rest, at) = (index / inner, index % inner);
        let (outer, middle_at) = (rest / middle, rest % middle);
        ends.clear();
        for a_at in 0..a {
            let run = ((outer * a + a_at) * middle + middle_at) * c;
            ends.extend((0..c).map(|c_at| [operand[(run + c_at) * inner + at]; 2]));
        }
        let elements = Elements { ends: &ends, are_products: false, are_exact_products: true };
        let unrounded = sum::reduce(kind, &elements);
        push(&mut bounds, element, [interval::round(element, unrounded), unrounded], *want);
    }
    run.within(plan.result, want, bounds, "γ_n·Σ|x|", got).map(named)
}
