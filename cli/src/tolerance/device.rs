//! Compares the results of a segment of the device tier with its ops evaluated on the same operands.
//!
//! - A move, a view, a choice, a constant and a standalone `block_quantize` copy or compute exactly: every bit must be equal.
//! - A plain `mma` sums in f32, in an order of the library's ([`mma`]).
//! - A column kernel computes extremes exactly, and sums in f32 ([`columns`]).
//! - A row kernel has the interpreter's bits where every step is exact. Otherwise an interval follows each element
//!   through the steps of the plan ([`row`]). It contains the interpreter's value too, so a wrong plan shows.

mod columns;
mod integers;
mod mma;
mod outputs;
mod row;
mod step;
mod sum;
#[cfg(test)]
mod tests;

use fourfold_ir::{Tensor, Value};
use fourfold_scheduler::{ChoosePlan, MoveProgram, Plan};

use super::{Compared, Got, SegmentOps, Values};
use crate::compare::{Comparison, Tolerance, Verdict, compare_by};
use crate::error::Error;

/// The rule of elements that are copied.
const SAME_BITS: &str = "every bit";

/// Compares every value that a segment of the device tier wrote.
///
/// # Errors
/// Fails if an op cannot be evaluated on these operands, memory is insufficient, or a value was not kept.
pub(super) fn compare_device<'g>(
    run: &SegmentOps<'_>,
    plan: &Plan,
    got: &Got<'g>,
) -> Result<Vec<Compared>, Error> {
    check_room(run, plan)?;
    if let Plan::Choose(plan) = plan {
        return Ok(vec![same_as_chosen(run, plan, got)?]);
    }
    let values = run.evaluate(Values::new())?;
    match plan {
        Plan::Mma(plan) => Ok(vec![mma::compare_mma(run, plan, &values, got)?]),
        Plan::Column(plan) => Ok(vec![columns::compare_column(run, plan, &values, got)?]),
        Plan::Row(plan) => outputs::compare_rows(run, plan, &values, got),
        Plan::BlockQuantize(plan) => run.equal_blocks(plan.codes, plan.scales, &values, got),
        Plan::Move(plan) if matches!(plan.program, MoveProgram::ScatterAdd { .. }) => {
            Ok(vec![run.equal_value(plan.results[0], &values, got)?])
        }
        Plan::Move(plan) => plan.results.iter().map(|result| same_bits(run, *result, &values, got)).collect(),
        Plan::View(plan) => Ok(vec![same_bits(run, plan.result, &values, got)?]),
        Plan::Choose(plan) => Ok(vec![same_as_chosen(run, plan, got)?]),
        Plan::Constant(plan) => Ok(vec![same_bits(run, plan.result, &values, got)?]),
        Plan::ScaledMma(plan) => super::KernelRun { run: run.clone(), plan }.compare(got),
    }
}

/// Fails if memory does not suffice: results in f64 with their intervals, and a tensor for each op.
fn check_room(run: &SegmentOps<'_>, plan: &Plan) -> Result<(), Error> {
    const EACH_WRITTEN: usize = 96;
    const EACH_RESULT: usize = 8;
    let written = plan.written().into_iter().map(|value| run.count(value).saturating_mul(EACH_WRITTEN));
    let module = run.program.module();
    let results = run.ops.iter().flat_map(|op| &module.ops[*op].results);
    let results = results.map(|value| run.count(*value).saturating_mul(EACH_RESULT));
    run.check_room(written.chain(results).fold(0, usize::saturating_add))
}

/// Compares a choice with the operand that the extents choose. The others may not exist.
fn same_as_chosen<'g>(run: &SegmentOps<'_>, plan: &ChoosePlan, got: &Got<'g>) -> Result<Compared, Error> {
    let mut values = Values::new();
    if let Some(chosen) = plan.chosen(run.symbols) {
        values.insert(plan.result, run.operand(chosen)?.clone());
    }
    same_bits(run, plan.result, &values, got)
}

/// Compares a copy: the payload of NaN, the sign of zero and every bit of a scale must be kept.
fn same_bits<'g>(
    run: &SegmentOps<'_>,
    value: Value,
    values: &Values,
    got: &Got<'g>,
) -> Result<Compared, Error> {
    let (got, want) = (run.got(got, value)?, run.take(values, value)?);
    let comparison = compare_bits(got, &want);
    Ok(run.compared(value, want, Tolerance::Count(0), SAME_BITS.to_owned(), comparison))
}

fn compare_bits(got: &Tensor, want: &Tensor) -> Comparison {
    let width = got.element().storage_bits().div_ceil(8);
    let (got_codes, want_codes) = (got.to_codes(), want.to_codes());
    let pairs = got_codes.chunks(width).zip(want_codes.chunks(width));
    let verdicts: Vec<Verdict> = pairs.map(|(got, want)| Verdict::of(got == want)).collect();
    compare_by(got, want, &verdicts).with_padding_of(got)
}
