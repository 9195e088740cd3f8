//! Compares the outputs of the last replay with the program evaluated on the CPU.
//!
//! One more run on the device keeps every value. The outputs of the replay must have the bytes of that run, unless a
//! library of the vendor computes a product. Then each segment is compared as `verify` does: its ops are evaluated on
//! the operands of that run, and each result must lie within the bound that follows from them. Outputs are those of the
//! replay. For large extents only some rows from both ends are compared.

use std::collections::HashMap;

use fourfold::Planned;
use fourfold_executor::{NOT_CHOSEN, Ran, Run, RunReason};
use fourfold_ir::sample::Rule;
use fourfold_ir::{Bound, Entity, Module, OpKind, Symbol, Tensor, TensorError, Value};
use fourfold_scheduler::Plan;
use serde::Serialize;

use super::rows::{axes, compared, gather_all, has_zero_padding};
use crate::error::Error;
use crate::tolerance::{Compared, SegmentOps, compare_plan};
use crate::unused_rows::{counts_of_values, held, without_unused_rows};

/// The outcome of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Checked {
    /// True if every compared element is right.
    pub ok: bool,
    /// The rows that were compared; `None` if all were.
    pub rows: Option<usize>,
    /// The number of compared elements, over all segments.
    pub elements: usize,
    /// The number of wrong elements.
    pub mismatches: usize,
    /// The wrong values, in words.
    pub wrong: Vec<String>,
}

impl Checked {
    fn fail(&mut self, wrong: String) {
        self.ok = false;
        self.wrong.push(wrong);
    }
}

/// A run to compare.
pub(super) struct Comparison<'a> {
    pub(super) planned: &'a Planned,
    pub(super) bound: &'a Bound<'a>,
    /// The run that kept every value.
    pub(super) run: &'a Run,
    /// The outputs of the last replay, by value of the normalized program.
    pub(super) last: &'a [(Value, Vec<u8>)],
    /// The symbol of the rows and its extent.
    pub(super) rows: Option<(Symbol, u64)>,
    pub(super) rule: Rule,
}

impl Comparison<'_> {
    /// Makes the comparison.
    ///
    /// # Errors
    /// If an op cannot be evaluated, or memory is insufficient.
    pub(super) fn check(&self) -> Result<Checked, Error> {
        let mut checked = Checked { ok: true, ..Checked::default() };
        let module = self.planned.program().module();
        let counts = counts_of_values(self.planned.program());
        let mut last: HashMap<Value, Tensor> = HashMap::new();
        for (value, bytes) in self.last {
            let name = module.name_of(*value);
            let Some(kept) = self.run.value(*value) else { return Err(Error::NotKept(name.to_owned())) };
            let (dims, layout) = (kept.dims().to_vec(), kept.layout());
            let tensor = Tensor::new(kept.element(), dims, layout, bytes.clone());
            let tensor = tensor.map_err(|error| failed(module, *value, error))?;
            let counts = held(self.planned.program(), self.bound, self.run, &counts[value.index()]);
            let tensor = without_unused_rows(&tensor, kept, &counts).unwrap_or(tensor);
            let wrong = kept.bytes().iter().zip(tensor.bytes()).filter(|(kept, last)| kept != last).count();
            if wrong > 0 && self.is_reproducible() {
                checked.mismatches += wrong;
                checked.fail(format!("%{name}: {wrong} bytes of the last replay differ from those of a run"));
            }
            last.insert(*value, tensor);
        }
        let positions = self.rows.and_then(|(symbol, extent)| {
            let chosen = compared(module, &self.bound.symbols, symbol, extent)?;
            self.is_by_rows(symbol).then_some((symbol, chosen))
        });
        checked.rows = positions.as_ref().map(|(_, chosen)| chosen.len());
        for (segment, plan) in self.planned.partition().plans() {
            let got = |value: Value| last.get(&value).or_else(|| self.run.value(value));
            self.check_segment(segment, plan, positions.as_ref(), &got, &mut checked)?;
        }
        Ok(checked)
    }

    /// Returns true if every segment gives the same bytes in each run. The algorithm of a library may depend on the
    /// memory that it gets.
    fn is_reproducible(&self) -> bool {
        !self.planned.partition().plans().any(|(_, plan)| matches!(plan, Plan::Mma(_)))
    }

    /// Returns true if every value between segments has its rows along axes. Not so for grouped products, whose groups span all rows.
    fn is_by_rows(&self, symbol: Symbol) -> bool {
        let module = self.planned.program().module();
        if module.ops.values().any(|operation| matches!(operation.kind, OpKind::GroupedScaledMma(_))) {
            return false;
        }
        let segments = self.planned.partition().segments.iter();
        let mut values = segments.flat_map(|segment| segment.inputs.iter().chain(&segment.outputs));
        values.all(|value| axes(module, *value, symbol).is_some())
    }

    fn check_segment<'g>(
        &self,
        segment: usize,
        plan: &Plan,
        positions: Option<&(Symbol, Vec<usize>)>,
        device: &dyn Fn(Value) -> Option<&'g Tensor>,
        checked: &mut Checked,
    ) -> Result<(), Error> {
        let (program, partition) = (self.planned.program(), self.planned.partition());
        let module = program.module();
        let ran = &self.run.segments[segment];
        let is_left_out = ran.reason.as_ref().is_some_and(|reason| reason.code == NOT_CHOSEN);
        if is_left_out || matches!(plan, Plan::Choose(_)) {
            // With other extents, another operand would be selected.
            return Ok(());
        }
        // A view takes no time, so in a run it stays where its operand is.
        let is_view = matches!(plan, Plan::View(_));
        if !is_view && !matches!(ran.ran, Ran::Kernel | Ran::Emulated) {
            let why = ran.reason.as_ref().map_or("", |RunReason { message, .. }| message);
            checked.fail(format!("segment {segment} ran as {}: {why}", ran.ran.as_str()));
            return Ok(());
        }
        let mut run = SegmentOps::of(program, partition, segment, self.bound, self.run, Some(self.rule))?;
        run.interpret = false;
        let mut symbols = self.bound.symbols.clone();
        let mut operands: HashMap<Value, Tensor> = HashMap::new();
        let mut results: HashMap<Value, Tensor> = HashMap::new();
        if let Some((symbol, chosen)) = positions {
            symbols.set(*symbol, chosen.len() as u64);
            for (value, tensor) in &run.operands {
                operands.insert(*value, rows_of(module, *value, tensor, *symbol, chosen)?);
            }
            for value in plan.written() {
                let Some(tensor) = device(value) else { continue };
                results.insert(value, rows_of(module, value, tensor, *symbol, chosen)?);
                let is_padded = has_zero_padding(tensor).map_err(|error| failed(module, value, error))?;
                if !is_padded {
                    checked.fail(format!("%{}: padding of the scales is not zero", module.name_of(value)));
                }
            }
            run.operands = operands.iter().map(|(value, tensor)| (*value, tensor)).collect();
            run.symbols = &symbols;
        }
        let got = |value: Value| match positions {
            Some(_) => results.get(&value),
            None => device(value),
        };
        for Compared { value, want, rule, by, comparison, .. } in compare_plan(run, plan, &got)? {
            checked.elements += want.count();
            checked.mismatches += comparison.mismatches;
            if comparison.ok {
                continue;
            }
            let name = module.name_of(value);
            let worst = comparison.worst.as_ref().map_or_else(String::new, |worst| {
                format!("; the worst at {:?} is {}, expected {}", worst.index, worst.got, worst.want)
            });
            checked.fail(match comparison.unbounded {
                true => format!("%{name}: too few elements have a bound ({rule})"),
                false => format!(
                    "%{name}: {} of {} elements differ from the {by} by more than {rule}{worst}",
                    comparison.mismatches,
                    want.count()
                ),
            });
        }
        Ok(())
    }
}

/// Returns some rows of a value.
fn rows_of(
    module: &Module,
    value: Value,
    tensor: &Tensor,
    symbol: Symbol,
    chosen: &[usize],
) -> Result<Tensor, Error> {
    let axes = axes(module, value, symbol).unwrap_or_default();
    gather_all(tensor, &axes, chosen).map_err(|error| failed(module, value, error))
}

/// The error of a tensor of rows, which has no more elements than the tensor that it comes from.
fn failed(module: &Module, value: Value, error: TensorError) -> Error {
    match error {
        TensorError::Memory { bytes, .. } => {
            Error::Memory { what: format!("rows of %{}", module.name_of(value)), bytes }
        }
        other => Error::Missing(format!("rows of %{}: {other}", module.name_of(value))),
    }
}
