//! Compares one value with its expectation.

use std::cell::Cell;
use std::collections::HashMap;

use fourfold_ir::memory::{NoMemory, check_memory};
use fourfold_ir::{Entity, Op, OpKind, Tensor, Value};

use super::{Comparer, Expectation};
use crate::compare::{Comparison, Rounding, Tolerance, Wanted, compare, compare_or, largest};
use crate::error::Error;
use crate::precision::Precision;
use crate::report::{OutputReport, WorstReport};
use crate::tolerance::{Moved, moved};
use crate::unused_rows::without_unused_rows;

impl Comparer<'_> {
    pub(super) fn compare_one(&self, expectation: &Expectation<'_>) -> Result<OutputReport, Error> {
        let Expectation { value, against, want, tolerance: (tolerance, rule) } = expectation;
        let (got, source) = self.computed(*value)?;
        let want: &dyn Wanted = *want;
        let defined = self.defined(*value, got, want);
        let got = defined.as_ref().unwrap_or(got);
        check_room_to_compare(self.original.module().name_of(*value), want)?;
        let operand = self.converted_operand(*value);
        let unrounded = || self.computed(operand?).ok().map(|(tensor, _)| tensor.clone());
        let rounding = self.rounding(*value, tolerance, &unrounded);
        let (comparison, rule) = self.compare_moved(*value, (got, want), (tolerance, rule.clone()), rounding);
        let place = (self.original.module().name_of(*value), self.segment_of_original(*value));
        Ok(self.report(place, against, want, &(tolerance.clone(), rule), source, comparison))
    }

    /// Compares two computations of a value, one of which may be contracted, and returns the rule it applied.
    /// Elements beyond the tolerance may differ by as much as contraction moves them, unless the program states
    /// the tolerance.
    pub(super) fn compare_moved(
        &self,
        value: Value,
        (got, want): (&Tensor, &dyn Wanted),
        (tolerance, rule): (&Tolerance, String),
        rounding: Rounding<'_>,
    ) -> (Comparison, String) {
        let comparison = compare(got, want, tolerance, rounding);
        let states = self.header.tolerance_of(self.original.module().name_of(value)).is_some();
        if comparison.ok || states || !matches!(tolerance, Tolerance::Relative(relative) if *relative > 0.0) {
            return (comparison, rule);
        }
        let Some(moved) = self.moved().and_then(|moved| moved.get(&value)) else { return (comparison, rule) };
        let beyond = Cell::new(0);
        let allows = |index: usize, got: f64, want: f64| {
            beyond.set(beyond.get() + usize::from(moved.is_beyond(index)));
            moved.allows(index, got, want)
        };
        let with_moved = compare_or(got, want, tolerance, rounding, &allows);
        let rule = match (beyond.get(), with_moved.mismatches < comparison.mismatches) {
            (0, false) => return (comparison, rule),
            (0, true) => format!("{rule}, or the effect of contraction"),
            (count, _) => {
                format!(
                    "{rule}, or the effect of contraction ({count} outside the range that its rules assume)"
                )
            }
        };
        (with_moved, rule)
    }

    /// Bounds the change that contraction makes to values of the original; `None` without contraction, or without
    /// interpreted values.
    fn moved(&self) -> Option<&HashMap<Value, Moved>> {
        if !self.contracted.contains(&true) {
            return None;
        }
        let values = self.interpreted().ok()?;
        let is_contracted = |op: Op| self.contracted[op.index()];
        Some(self.moved.get_or_init(|| moved(self.original, values, &is_contracted)))
    }

    /// Returns the rounding that may legitimately differ. `unrounded` returns the operand of a conversion.
    pub(super) fn rounding<'r>(
        &self,
        value: Value,
        tolerance: &Tolerance,
        unrounded: &'r dyn Fn() -> Option<Tensor>,
    ) -> Rounding<'r> {
        match self.precisions[value.index()] {
            Precision::Exact => Rounding::Same,
            _ if *tolerance == Tolerance::Relative(0.0) => Rounding::Same,
            Precision::Inexact { .. } if self.converted_operand(value).is_some() => {
                Rounding::Converted(unrounded)
            }
            Precision::Inexact { .. } => Rounding::OneStep,
        }
    }

    pub(super) fn report(
        &self,
        (name, segment): (&str, Option<usize>),
        against: &str,
        want: &dyn Wanted,
        (tolerance, rule): &(Tolerance, String),
        source: &'static str,
        comparison: Comparison,
    ) -> OutputReport {
        let (relative, may_differ) = match tolerance {
            Tolerance::Relative(relative) => (Some(*relative), None),
            Tolerance::Each(each) => {
                let (bound, magnitude) = (largest(each), largest(&want.values()));
                (Some(if bound == 0.0 { 0.0 } else { bound / magnitude }), None)
            }
            Tolerance::Count(count) => (None, Some(*count)),
        };
        OutputReport {
            name: name.to_owned(),
            segment,
            rule: rule.clone(),
            expected: against.to_owned(),
            source,
            elements: want.count(),
            max_abs_err: comparison.max_abs_err,
            max_rel_err: comparison.max_rel_err,
            tolerance: relative,
            may_differ,
            mismatches: comparison.mismatches,
            moved_roundings: comparison.moved_roundings,
            moved_max_abs_err: comparison.moved_max_abs_err,
            worst: comparison.worst.map(|worst| WorstReport {
                index: worst.index,
                got: worst.got.to_string(),
                want: worst.want.to_string(),
            }),
            error: None,
            loose: false,
            unbounded: comparison.unbounded,
            ok: comparison.ok,
        }
    }

    /// Returns a value of the original and its source: the run, or the interpreter if the value was rewritten
    /// away or fused away inside a kernel segment.
    pub(super) fn computed(&self, value: Value) -> Result<(&Tensor, &'static str), Error> {
        if let Some(ran) = self.normalized.value(value)
            && !self.is_fused_away(ran)
            && let Some(tensor) = self.run.value(ran)
        {
            return Ok((tensor, "run"));
        }
        Ok((&self.interpreted()?[value.index()], "interpreter"))
    }

    /// Returns `got` with the expected elements in rows that no group uses; `None` if the value has no such rows.
    fn defined(&self, value: Value, got: &Tensor, want: &dyn Wanted) -> Option<Tensor> {
        let inputs = &self.original.module().inputs;
        let tensor = |counts: &Value| match inputs.iter().position(|input| input == counts) {
            Some(position) => Some(self.bound.inputs[position]),
            None => Some(self.computed(*counts).ok()?.0),
        };
        let counts: Option<Vec<&Tensor>> = self.counts[value.index()].iter().map(tensor).collect();
        without_unused_rows(got, want, &counts?)
    }

    fn is_fused_away(&self, value: Value) -> bool {
        let Some(op) = self.program.module().defining_op(value) else { return false };
        let segment = &self.partition.segments[self.partition.decisions[op.index()].segment];
        segment.plan().is_some() && !segment.outputs.contains(&value)
    }

    /// Returns the operand if a conversion defines the value.
    pub(super) fn converted_operand(&self, value: Value) -> Option<Value> {
        let module = self.original.module();
        let operation = &module.ops[module.defining_op(value)?];
        (operation.kind == OpKind::Convert).then(|| operation.operands[0])
    }
}

/// Fails if memory does not suffice to compare a value with `want`: both in f64, the codes of both, and the
/// unrounded operand.
pub(super) fn check_room_to_compare(name: &str, want: &dyn Wanted) -> Result<(), Error> {
    const EACH: usize = 40;
    let no_memory = |NoMemory { bytes }| Error::Memory { what: format!("the comparison of %{name}"), bytes };
    check_memory(want.count().saturating_mul(EACH)).map_err(no_memory)
}
