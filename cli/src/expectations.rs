//! Compares a run with the tensors of its data and with the interpreter.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fourfold::Planned;
use fourfold_executor::{Ran, Run};
use fourfold_ir::sample::Rule;
use fourfold_ir::{Bound, Entity, Op, Program, Tensor, Value};
use fourfold_scheduler::{Fate, Normalized, Partition, Plan};

use crate::compare::{Tolerance, Wanted, tolerance_text};
use crate::error::Error;
use crate::header::Header;
use crate::load::Inputs;
use crate::precision::{Precision, precisions};
use crate::recorded::Recorded;
use crate::report::OutputReport;
use crate::tolerance::{BIT_EQUAL, Compared, Moved, SegmentOps, compare_plan};
use crate::unused::Unused;
use crate::unused_rows::counts_of_values;

mod codes;
mod interpreted;
mod one;
mod want;

use self::interpreted::interpreted;
pub(crate) use self::interpreted::{NotInterpreted, check_work};
use self::one::check_room_to_compare;

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
        let (mut outputs, covered) = self.compare_data(inputs, scope, notes)?;
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

    /// Compares the values with an expectation in the data. Returns the reports and these values.
    fn compare_data(
        &self,
        inputs: &Inputs,
        scope: Scope,
        notes: &mut Vec<String>,
    ) -> Result<(Vec<OutputReport>, Vec<Value>), Error> {
        let mut outputs = Vec::new();
        let mut covered = Vec::new();
        let Inputs::Data { described, data, unused, .. } = inputs else {
            if let Some(expected) = self.header.expected.first() {
                let name = &expected.value;
                notes.push(format!(
                    "%{name} is not compared with `{}`: the inputs are seeded",
                    expected.tensor
                ));
            }
            return Ok((outputs, covered));
        };
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
        Ok((outputs, covered))
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

    fn interpreted(&self) -> Result<&[Tensor], NotInterpreted> {
        let evaluate = || interpreted(self.original, self.bound);
        self.interpreted.get_or_init(evaluate).as_deref().map_err(Clone::clone)
    }
}

#[cfg(test)]
mod tests;
