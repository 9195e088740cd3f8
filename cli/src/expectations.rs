//! Compares a run with the tensors of its data and with the interpreter.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fourfold::Planned;
use fourfold_executor::{Ran, RawTensor, Run, TensorDataError};
use fourfold_ir::memory::{NoMemory, check_memory};
use fourfold_ir::sample::Rule;
use fourfold_ir::{
    Bound, Dim, ElementType, Entity, InterpretError, Op, OpKind, Program, ScaleLayout, Tensor, TensorError,
    Value, bind, interpret,
};
use fourfold_scheduler::{Fate, Normalized, Partition, Plan};

use crate::compare::{Comparison, Rounding, Tolerance, Wanted, compare, compare_or, largest, tolerance_text};
use crate::error::Error;
use crate::header::Header;
use crate::load::Inputs;
use crate::precision::{Precision, precisions};
use crate::recorded::Recorded;
use crate::report::{OutputReport, WorstReport};
use crate::tolerance::{BIT_EQUAL, Compared, Moved, SegmentOps, compare_plan, moved};
use crate::unused::Unused;
use crate::unused_rows::{counts_of_values, without_unused_rows};

mod codes;

/// The largest number of multiplications for the interpreter: about twenty seconds.
const MOST_PRODUCTS: f64 = 2e10;
/// The largest number of elements of a value for the interpreter.
const MOST_ELEMENTS: f64 = 1.5e8;

/// The first words of the rule that compares the normalized program with the original.
pub(crate) const NORMALIZED: &str = "normalized against original";

/// The reference of the outputs that a bundle recorded.
pub(crate) const RECORDED: &str = "recorded";

/// The values to compare, besides those with an expectation in the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The program's outputs.
    Outputs,
    /// The program's outputs and every value that a segment of the kernel or the device tier writes.
    DeviceResults,
}

/// Compares values of a run. Expectations are about the original program; the run executed the normalized one.
pub(crate) struct Comparer<'a> {
    original: &'a Program,
    normalized: &'a Normalized,
    /// The normalized program.
    program: &'a Program,
    partition: &'a Partition,
    header: &'a Header,
    run: &'a Run,
    bound: &'a Bound<'a>,
    rule: Option<Rule>,
    precisions: Vec<Precision>,
    /// By value of the original: the counts of rows that are defined.
    counts: Vec<Vec<Value>>,
    /// For each op of the original, true if contraction changed it.
    contracted: Vec<bool>,
    interpreted: OnceCell<Result<Vec<Tensor>, NotInterpreted>>,
    /// Bounds on the change that contraction makes to the values of the original.
    moved: OnceCell<HashMap<Value, Moved>>,
}

/// The expectation of a value of the original.
struct Expectation<'a> {
    value: Value,
    /// The name of the reference in the report.
    against: String,
    want: &'a dyn Wanted,
    /// The tolerance and its text in the report.
    tolerance: (Tolerance, String),
}

/// A value to compare, in the original program and in the one that ran.
struct Held {
    original: Option<Value>,
    ran: Option<Value>,
}

/// Returns the op of the normalized program that computes the result of an op of the original.
fn successor(normalized: &Normalized, op: Op) -> Option<Op> {
    match normalized.fate(op) {
        Fate::Kept(op) | Fate::Part { op, .. } => Some(*op),
        Fate::Gone { .. } => None,
    }
}

fn is_on_device(ran: &Ran) -> bool {
    matches!(ran, Ran::Kernel | Ran::Emulated)
}

impl<'a> Comparer<'a> {
    /// Creates a comparer for a run of `planned` on `bound`, which was bound from `inputs`.
    pub(crate) fn new(
        planned: &'a Planned,
        header: &'a Header,
        inputs: &Inputs,
        bound: &'a Bound<'a>,
        run: &'a Run,
    ) -> Comparer<'a> {
        let (original, normalized) = (planned.original(), planned.normalized());
        let (program, partition) = (planned.program(), planned.partition());
        let rule = inputs.rule();
        let on_device = |op: Op| {
            let op = successor(normalized, op);
            op.is_some_and(|op| is_on_device(&run.segments[partition.decisions[op.index()].segment].ran))
        };
        let contracted = |op: Op| match normalized.fate(op) {
            Fate::Part { steps, .. } => steps.iter().any(|step| step.contract),
            _ => false,
        };
        let precisions = precisions(original, rule, &on_device, &contracted);
        let contracted = original.module().ops.keys().map(contracted).collect();
        let (interpreted, moved) = (OnceCell::new(), OnceCell::new());
        Comparer {
            original,
            normalized,
            program,
            partition,
            header,
            run,
            bound,
            rule,
            precisions,
            counts: counts_of_values(original),
            contracted,
            interpreted,
            moved,
        }
    }

    /// Makes every comparison. `notes` name each value that is not compared, and the reason.
    pub(crate) fn compare_all(
        &self,
        inputs: &Inputs,
        scope: Scope,
        notes: &mut Vec<String>,
    ) -> Result<Vec<OutputReport>, Error> {
        let mut outputs = Vec::new();
        let mut covered = Vec::new();
        if let Inputs::Data { described, data, unused, .. } = inputs {
            // Several programs of a verification share a file.
            if scope == Scope::Outputs {
                notes.extend(unused.iter().filter_map(Unused::note));
            }
            notes.extend(data.stale.values().cloned());
            for (name, stored) in &data.expected {
                let Some(value) = self.original.facts().value_named(name) else {
                    notes.push(format!("expected.{name} is not compared: the program has no value %{name}"));
                    continue;
                };
                let against = format!("expected.{name}");
                let Some(want) = self.fitting(value, stored, None, &against, &mut outputs)? else { continue };
                covered.push(value);
                let tolerance = self.tolerance(value);
                let want = want.for_tolerance(&tolerance.0, self.original.module().ty(value).element)?;
                let want = want.as_wanted();
                let expectation = Expectation { value, against, want, tolerance };
                let compared = self.compare_one(&expectation)?;
                let on_codes = match compared.ok {
                    true => None,
                    false => self.on_given_codes(&expectation, data, notes)?,
                };
                outputs.push(self.judged(value, on_codes.unwrap_or(compared), notes));
            }
            for expected in &self.header.expected {
                if data.stale.contains_key(&expected.tensor) {
                    continue;
                }
                let value = self.value_named(&expected.value)?;
                let stored = data.other.get(&expected.tensor).ok_or_else(|| {
                    let (file, name, value) = (described, &expected.tensor, &expected.value);
                    Error::Missing(match data.inputs.contains_key(name) {
                        true => format!(
                            "`{name}` of {file} is an input of the program and cannot be the expectation of %{value}; \
                             rename the tensor"
                        ),
                        false => format!("{file} has no tensor `{name}`, the expectation of %{value}"),
                    })
                })?;
                let fitting = self.fitting(value, stored, expected.layout, &expected.tensor, &mut outputs)?;
                let Some(want) = fitting else { continue };
                covered.push(value);
                let may_differ = expected.may_differ;
                let tolerance = (Tolerance::Count(may_differ), format!("{may_differ} codes may differ"));
                let against = expected.tensor.clone();
                let want = want.as_wanted();
                outputs.push(self.compare_one(&Expectation { value, against, want, tolerance })?);
            }
        } else if let Some(expected) = self.header.expected.first() {
            let name = &expected.value;
            notes.push(format!("%{name} is not compared with `{}`: the inputs are seeded", expected.tensor));
        }
        let mut kernels = Vec::new();
        let mut only_normalized = Vec::new();
        let mut of_segments: HashMap<usize, Vec<(Value, OutputReport)>> = HashMap::new();
        for Held { original, ran } in self.program_and_device_results(scope) {
            let is_covered = original.is_some_and(|value| covered.contains(&value));
            if let Some((value, segment)) =
                ran.and_then(|value| Some((value, self.planned_segment_of(value)?)))
                && (scope == Scope::DeviceResults || !is_covered)
            {
                let results = match of_segments.entry(segment) {
                    Entry::Occupied(compared) => compared.into_mut(),
                    Entry::Vacant(none) => none.insert(self.compare_segment(segment)?),
                };
                // Normalization may merge two values of the original into one.
                let name = original.map_or(self.program.module().name_of(value), |value| {
                    self.original.module().name_of(value)
                });
                let report = results.iter().find(|(of, _)| *of == value).map(|(_, report)| report.clone());
                kernels.extend(report.map(|report| OutputReport { name: name.to_owned(), ..report }));
                only_normalized.extend(original.filter(|_| !is_covered));
                continue;
            }
            let Some(value) = original.filter(|_| !is_covered) else { continue };
            let interpreted = match self.interpreted() {
                Ok(values) => values,
                Err(error) => {
                    let error = Error::from(error);
                    if !error.is_too_large_to_interpret() {
                        return Err(error);
                    }
                    let name = self.original.module().name_of(value);
                    notes.push(format!("%{name} is not compared: {error}"));
                    continue;
                }
            };
            let want = &interpreted[value.index()];
            let tolerance = self.tolerance(value);
            let against = "interpreter".to_owned();
            outputs.push(self.compare_one(&Expectation { value, against, want, tolerance })?);
        }
        outputs.extend(kernels);
        outputs.extend(self.compare_normalized(&only_normalized, notes)?);
        Ok(outputs)
    }

    /// Marks a met expectation of the data as loose if its tolerance follows from a quantization in the program and
    /// its error exceeds the tolerance of its own type.
    fn judged(&self, value: Value, report: OutputReport, notes: &mut Vec<String>) -> OutputReport {
        let (module, precision) = (self.original.module(), self.precisions[value.index()]);
        let is_stated = self.header.tolerance_of(module.name_of(value)).is_some();
        // A moved code is a step off, however small the other errors are.
        let error = if report.moved_roundings > 0 { f64::INFINITY } else { report.max_rel_err };
        let loose = report.ok && !is_stated && precision.proves_little(module.ty(value).element, error);
        if loose {
            let OutputReport { name, expected, .. } = &report;
            notes.push(format!(
                "%{name} is within {} of {expected}, the tolerance of a value behind an FP4 or FP8 quantization; it is \
                 too wide to prove much: pass --tolerance {name}=T",
                precision.tolerance()
            ));
        }
        OutputReport { loose, ..report }
    }

    /// Compares the outputs with those of a recorded run: bit for bit if that ran the `same_way`, else within the
    /// roundings of the values. If the recorded run was wrong, nothing is demanded and the difference becomes a
    /// note.
    pub(crate) fn compare_recorded(
        &self,
        recorded: &Recorded,
        same_way: bool,
        notes: &mut Vec<String>,
    ) -> Result<Vec<OutputReport>, Error> {
        let mut outputs: Vec<OutputReport> = Vec::new();
        for &value in &self.original.module().outputs {
            let name = self.original.module().name_of(value);
            let Some(stored) = recorded.tensors.get(name) else { continue };
            if outputs.iter().any(|known| known.name == name) {
                continue;
            }
            let Some(want) = self.fitting(value, stored, None, name, &mut outputs)? else { continue };
            let tolerance = match same_way {
                true => (Tolerance::Relative(0.0), BIT_EQUAL.to_owned()),
                false => self.tolerance(value),
            };
            let against = RECORDED.to_owned();
            let want = want.as_wanted();
            outputs.push(self.compare_one(&Expectation { value, against, want, tolerance })?);
        }
        if recorded.ok {
            return Ok(outputs);
        }
        notes.extend(outputs.iter().map(|output| match (output.ok, &output.error) {
            (true, _) => format!("%{} equals the result of the recorded run, which was wrong", output.name),
            (false, Some(error)) => {
                format!("%{} is not compared with the recorded run: {error}", output.name)
            }
            (false, None) => format!(
                "%{} differs in {} of {} elements from the result of the recorded run, which was wrong",
                output.name, output.mismatches, output.elements
            ),
        }));
        Ok(Vec::new())
    }

    /// Compares the normalized program with the original, both interpreted. It covers values for which a kernel
    /// is compared only with the normalized program.
    fn compare_normalized(
        &self,
        values: &[Value],
        notes: &mut Vec<String>,
    ) -> Result<Vec<OutputReport>, Error> {
        if values.is_empty() || !self.normalized.is_changed() {
            return Ok(Vec::new());
        }
        let interpreted =
            self.interpreted().and_then(|want| Ok((want, interpreted(self.program, self.bound)?)));
        let (want, got) = match interpreted {
            Ok(interpreted) => interpreted,
            Err(error) => {
                let error = Error::from(error);
                if !error.is_too_large_to_interpret() {
                    return Err(error);
                }
                notes.push(format!("the normalized program is not compared with the original: {error}"));
                return Ok(Vec::new());
            }
        };
        let is_exact = self.normalized.contracted().next().is_none();
        let ran = values.iter().filter_map(|value| Some((*value, self.normalized.value(*value)?)));
        ran.map(|(value, ran)| self.compare_rewritten(value, &got[ran.index()], want, is_exact)).collect()
    }

    /// Compares `got`, computed by the normalized program, with the value of the original.
    fn compare_rewritten(
        &self,
        value: Value,
        got: &Tensor,
        interpreted: &[Tensor],
        is_exact: bool,
    ) -> Result<OutputReport, Error> {
        let want = &interpreted[value.index()];
        check_room_to_compare(self.original.module().name_of(value), want)?;
        let (tolerance, rule) = match is_exact {
            true => (Tolerance::Relative(0.0), BIT_EQUAL.to_owned()),
            false => self.tolerance(value),
        };
        let operand = self.converted_operand(value);
        let unrounded = || operand.map(|operand| interpreted[operand.index()].clone());
        let rounding = self.rounding(value, &tolerance, &unrounded);
        let (comparison, rule) = self.compare_moved(value, (got, want), (&tolerance, rule), rounding);
        let place = (self.original.module().name_of(value), self.segment_of_original(value));
        let rule = (tolerance, format!("{NORMALIZED}: {rule}"));
        Ok(self.report(place, "interpreter", want, &rule, "interpreter", comparison))
    }

    /// Returns the outputs and, with [`Scope::DeviceResults`], every value that a segment on the GPU writes, each
    /// once.
    fn program_and_device_results(&self, scope: Scope) -> Vec<Held> {
        let outputs = self.original.module().outputs.iter();
        let mut values: Vec<Held> = outputs
            .map(|value| Held { original: Some(*value), ran: self.normalized.value(*value) })
            .collect();
        if scope == Scope::DeviceResults {
            for ran in self.partition.plans().flat_map(|(_, plan)| plan.written()) {
                let named = self.original.facts().value_named(self.program.module().name_of(ran));
                let original = named.filter(|value| self.normalized.value(*value) == Some(ran));
                if !values.iter().any(|known| known.ran == Some(ran)) {
                    values.push(Held { original, ran: Some(ran) });
                }
            }
        }
        values
    }

    /// Returns the segment that computes a value of the original.
    fn segment_of_original(&self, value: Value) -> Option<usize> {
        let op = successor(self.normalized, self.original.module().defining_op(value)?)?;
        Some(self.partition.decisions[op.index()].segment)
    }

    /// Returns the segment that computes a value, and its plan if it is a segment on the GPU.
    fn segment_of(&self, value: Value) -> Option<(usize, Option<&Plan>)> {
        let op = self.program.module().defining_op(value)?;
        let segment = self.partition.decisions[op.index()].segment;
        Some((segment, self.partition.segments[segment].plan()))
    }

    /// Returns the position of the segment that computed a value on the GPU in this run.
    fn planned_segment_of(&self, value: Value) -> Option<usize> {
        let (segment, plan) = self.segment_of(value)?;
        (plan.is_some_and(|plan| plan.written().contains(&value))
            && is_on_device(&self.run.segments[segment].ran))
        .then_some(segment)
    }

    /// Compares the values that a segment wrote on the GPU with its ops evaluated on the same operands; one report per
    /// value.
    fn compare_segment(&self, segment: usize) -> Result<Vec<(Value, OutputReport)>, Error> {
        let Some(plan) = self.partition.segments[segment].plan() else { return Ok(Vec::new()) };
        let run = SegmentOps::of(self.program, self.partition, segment, self.bound, self.run, self.rule)?;
        let interpret = check_work(self.program, self.bound, run.ops).is_ok();
        let compared = compare_plan(SegmentOps { interpret, ..run }, plan, &|value| self.run.value(value))?;
        let report = |compared: Compared| {
            let Compared { value, want, tolerance, rule, by, comparison } = compared;
            let name = self.program.module().name_of(value);
            (value, self.report((name, Some(segment)), by, &want, &(tolerance, rule), "run", comparison))
        };
        Ok(compared.into_iter().map(report).collect())
    }

    fn value_named(&self, name: &str) -> Result<Value, Error> {
        let value = self.original.facts().value_named(name);
        value.ok_or_else(|| Error::Missing(format!("the program has no value %{name}")))
    }

    /// Returns the tolerance that the file states, else the one that follows from the value's precision.
    fn tolerance(&self, value: Value) -> (Tolerance, String) {
        let name = self.original.module().name_of(value);
        let stated = self.header.tolerance_of(name);
        let relative = stated.unwrap_or_else(|| self.precisions[value.index()].tolerance());
        let rule = if relative == 0.0 {
            BIT_EQUAL.to_owned()
        } else {
            format!("{} of the largest", tolerance_text(relative))
        };
        (Tolerance::Relative(relative), rule)
    }

    fn compare_one(&self, expectation: &Expectation<'_>) -> Result<OutputReport, Error> {
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
    fn compare_moved(
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
    fn rounding<'r>(
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

    fn report(
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
    fn computed(&self, value: Value) -> Result<(&Tensor, &'static str), Error> {
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
    fn converted_operand(&self, value: Value) -> Option<Value> {
        let module = self.original.module();
        let operation = &module.ops[module.defining_op(value)?];
        (operation.kind == OpKind::Convert).then(|| operation.operands[0])
    }

    fn interpreted(&self) -> Result<&[Tensor], NotInterpreted> {
        let evaluate = || interpreted(self.original, self.bound);
        self.interpreted.get_or_init(evaluate).as_deref().map_err(Clone::clone)
    }

    /// Returns [`Comparer::stored_as`], or adds a report to `outputs` if the tensor does not fit the value.
    fn fitting(
        &self,
        value: Value,
        stored: &RawTensor,
        layout: Option<ScaleLayout>,
        name: &str,
        outputs: &mut Vec<OutputReport>,
    ) -> Result<Option<Want>, Error> {
        match self.stored_as(value, stored, layout, name) {
            Ok(want) => Ok(Some(want)),
            Err(error @ Error::Expected { .. }) => {
                let value = self.original.module().name_of(value);
                outputs.push(OutputReport::unfit(value, name, error.message()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Converts a stored tensor to the type of a value. A value of an arithmetic type may be stored in another
    /// one. Scales have the stated layout, else that of the value, else the linear one if only that fits.
    fn stored_as(
        &self,
        value: Value,
        stored: &RawTensor,
        layout: Option<ScaleLayout>,
        name: &str,
    ) -> Result<Want, Error> {
        let module = self.original.module();
        let ty = module.ty(value);
        let dims = bind::concrete_dims(ty, &self.bound.symbols).ok_or_else(|| {
            Error::Missing(format!("the shape of %{} is not determined in this run", module.name_of(value)))
        })?;
        let layouts = match (ty.layout, layout) {
            (None, _) => vec![None],
            (Some(_), Some(stated)) => vec![Some(stated)],
            (Some(own), None) => vec![Some(own), Some(ScaleLayout::Linear)],
        };
        if let Some(values) = stored.as_f64().filter(|_| ty.element.is_arithmetic() && stored.dims == dims) {
            return Ok(Want::F64 { dims, values });
        }
        let as_stored = || stored.as_stored().filter(|t| t.dims() == dims && t.element().is_arithmetic());
        for layout in layouts {
            match stored.as_type(ty.element, &dims, layout) {
                Ok(tensor) => return Ok(Want::Tensor(tensor)),
                Err(TensorDataError::Tensor(TensorError::Memory { bytes, .. })) => {
                    return Err(Error::Memory { what: format!("`{name}`"), bytes });
                }
                Err(_) => {}
            }
        }
        as_stored().filter(|_| ty.element.is_arithmetic()).map(Want::Tensor).ok_or_else(|| Error::Expected {
            tensor: name.to_owned(),
            found: format!("{} of shape {:?}", stored.dtype, stored.dims),
            value: module.name_of(value).to_owned(),
            expected: format!("{} of shape {dims:?}", ty.element),
        })
    }
}

/// The expected values of the data.
enum Want {
    Tensor(Tensor),
    F64 { dims: Vec<usize>, values: Vec<f64> },
}

impl Want {
    fn as_wanted(&self) -> &dyn Wanted {
        match self {
            Want::Tensor(tensor) => tensor,
            Want::F64 { values, .. } => values,
        }
    }

    /// Rounds values in f64 to the type of the value if its bits must be equal, since no result has more digits.
    fn for_tolerance(self, tolerance: &Tolerance, element: ElementType) -> Result<Want, Error> {
        match self {
            Want::F64 { dims, values } if *tolerance == Tolerance::Relative(0.0) => {
                let what = || "the rounded expectation".to_owned();
                let rounded = Tensor::from_f64(element, dims, None, &values);
                let memory = |_| Error::Memory { what: what(), bytes: std::mem::size_of_val(&values[..]) };
                rounded.map(Want::Tensor).map_err(memory)
            }
            want => Ok(want),
        }
    }
}

/// Fails if memory does not suffice to compare a value with `want`: both in f64, the codes of both, and the
/// unrounded operand.
fn check_room_to_compare(name: &str, want: &dyn Wanted) -> Result<(), Error> {
    const EACH: usize = 40;
    let no_memory = |NoMemory { bytes }| Error::Memory { what: format!("the comparison of %{name}"), bytes };
    check_memory(want.count().saturating_mul(EACH)).map_err(no_memory)
}

/// Interprets every value of a program. The original and the normalized program have the same inputs and symbols.
fn interpreted(program: &Program, bound: &Bound<'_>) -> Result<Vec<Tensor>, NotInterpreted> {
    let ops: Vec<Op> = program.module().ops.keys().collect();
    check_work(program, bound, &ops)?;
    interpret(program, bound).map_err(NotInterpreted::Failed)
}

/// The reason why interpreted values are missing. It is kept so that each comparison can report it.
#[derive(Clone)]
pub(crate) enum NotInterpreted {
    TooMuchWork { op: String },
    Failed(InterpretError),
}

impl From<NotInterpreted> for Error {
    fn from(reason: NotInterpreted) -> Error {
        match reason {
            NotInterpreted::TooMuchWork { op } => Error::TooMuchWork { op },
            NotInterpreted::Failed(error) => Error::Interpret(error),
        }
    }
}

/// Refuses work for which the interpreter, which is simple and slow, would take too long.
pub(crate) fn check_work(program: &Program, bound: &Bound<'_>, ops: &[Op]) -> Result<(), NotInterpreted> {
    let module = program.module();
    let extent = |dim: &Dim| dim.evaluate(&bound.symbols).map_or(f64::INFINITY, |extent| extent as f64);
    let elements = |value: Value| module.ty(value).shape.iter().map(extent).product::<f64>();
    let mut products = 0.0;
    for &op in ops {
        let operation = &module.ops[op];
        let depth = match operation.kind {
            OpKind::Mma | OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_) => {
                module.ty(operation.operands[0]).shape.last().map_or(1.0, extent)
            }
            _ => 1.0,
        };
        let largest =
            operation.operands.iter().chain(&operation.results).map(|v| elements(*v)).fold(0.0, f64::max);
        products += operation.results.iter().map(|result| elements(*result) * depth).sum::<f64>();
        if largest > MOST_ELEMENTS || products > MOST_PRODUCTS {
            return Err(NotInterpreted::TooMuchWork { op: module.op_label(op) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
