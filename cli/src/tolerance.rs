//! Compares a kernel's results, element by element, with its ops evaluated on the same operands.
//!
//! A kernel sums in f32 in an order of its own: |error| ≤ γ_K·|alpha|·Σ|a·b| + 4 ulp with γ_K = K·2^-24/(1 -
//! K·2^-24). If every order gives the same sum, the error is zero, and results have the interpreter's bits,
//! except for the sign of zero and for functions within 4 ulp. The error is carried through the epilogue
//! ([`interval`]), reductions ([`reduced`]), and codes and scales ([`blocks`]), few of which may differ.

mod blocks;
mod contracted;
mod device;
mod groups;
mod interval;
mod product;
mod reduced;
mod segment;
mod units;
mod within;

use std::collections::HashMap;

use fourfold_executor::fallback::FallbackError;
use fourfold_ir::{ElementType, Tensor, TensorError, Value};
use fourfold_scheduler::{
    EpilogueKind, EpilogueRef, EpilogueStep, KernelOutput, OutputKind, Plan, ScaledMmaPlan,
};

use self::blocks::BlockRule;
pub(crate) use self::contracted::{Moved, moved};
use self::interval::{Intervals, UNKNOWN};
use self::reduced::Reduced;
pub(crate) use self::segment::SegmentOps;
use self::within::Bounds;
use crate::compare::{Comparison, Rounding, Tolerance, Verdict, compare, compare_by};
use crate::error::Error;
use crate::precision::is_correctly_rounded;

/// The comparison of one value that a kernel wrote.
pub(crate) struct Compared {
    /// The value.
    pub(crate) value: Value,
    /// The value as the ops define it.
    pub(crate) want: Tensor,
    /// The largest difference before rounding to the type of the value.
    pub(crate) tolerance: Tolerance,
    /// The rule in words, for reports.
    pub(crate) rule: String,
    /// `interpreter`, or `fallback` if the segment is too large for it.
    pub(crate) by: &'static str,
    /// The outcome.
    pub(crate) comparison: Comparison,
}

/// A segment of the kernel tier in one run.
pub(crate) struct KernelRun<'a> {
    /// The ops and their operands.
    pub(crate) run: SegmentOps<'a>,
    /// The plan of the kernel.
    pub(crate) plan: &'a ScaledMmaPlan,
}

/// Compares every value that a segment on the GPU wrote.
///
/// # Errors
/// Fails if an op cannot be evaluated on these operands, memory is insufficient, or a value was not kept.
pub(crate) fn compare_plan<'g>(
    run: SegmentOps<'_>,
    plan: &Plan,
    got: &Got<'g>,
) -> Result<Vec<Compared>, Error> {
    match plan {
        Plan::ScaledMma(plan) => KernelRun { run, plan }.compare(got),
        _ => device::compare_device(&run, plan, got),
    }
}

/// The name of equality in reports. Zeros may differ in sign: the sign of a sum of exact zeros depends on the
/// order and the hardware, and later steps pass it on. Codes of zero must have equal signs.
pub(crate) const BIT_EQUAL: &str = "bit-equal";

/// The values that ops define.
type Values = HashMap<Value, Tensor>;

/// Returns the value that a kernel wrote.
type Got<'a> = dyn Fn(Value) -> Option<&'a Tensor> + 'a;

impl KernelRun<'_> {
    /// Compares every value that the kernel wrote.
    ///
    /// # Errors
    /// Fails if an op cannot be evaluated on these operands, memory is insufficient, or a value was not kept.
    pub(crate) fn compare<'g>(&self, got: &Got<'g>) -> Result<Vec<Compared>, Error> {
        self.check_room()?;
        let values = self.run.evaluate(Values::new())?;
        let defined = self.defined(&values, got)?;
        let got = &|value| defined.get(&value).or_else(|| got(value));
        let error = self.accumulation_error()?;
        let is_exact = |output: &&KernelOutput| {
            error.is_none() && !self.has_inexact_function(output.of) && combines_exactly(output)
        };
        let intervals = match self.plan.outputs.iter().all(|output| is_exact(&output)) {
            true => None,
            false => Some(self.intervals(&values, error.as_deref())?),
        };
        let mut compared = Vec::new();
        for output in &self.plan.outputs {
            match &intervals {
                Some(intervals) if !is_exact(&output) => {
                    compared.extend(self.compare_within(output, &values, intervals, got)?);
                }
                _ => compared.extend(self.compare_bits(output, &values, got)?),
            }
        }
        Ok(compared)
    }

    /// Compares every value that the kernel wrote with the values that follow if every element of D is NaN.
    /// Elements that are not NaN even then are not compared.
    ///
    /// # Errors
    /// Fails like [`KernelRun::compare`].
    pub(crate) fn compare_nan<'g>(&self, got: &Got<'g>) -> Result<Vec<Compared>, Error> {
        let module = self.run.program.module();
        let root = module.ops[self.plan.root].results[0];
        let dims = fourfold_ir::bind::concrete_dims(module.ty(root), self.run.symbols);
        let dims = dims.ok_or_else(|| missing(module.name_of(root)))?;
        self.check_room()?;
        let nan = vec![f64::NAN; dims.iter().product()];
        let nan =
            Tensor::from_f64(module.ty(root).element, dims, None, &nan).map_err(|e| self.no_tensor(e))?;
        let values = self.run.evaluate(Values::from([(root, nan)]))?;
        let defined = self.defined(&values, got)?;
        let got = &|value| defined.get(&value).or_else(|| got(value));
        let mut compared = Vec::new();
        for output in &self.plan.outputs {
            match output.kind {
                OutputKind::Value { value } | OutputKind::Reduced { value, .. } => {
                    let (got, want) = (self.run.got(got, value)?, self.run.take(&values, value)?);
                    let pairs = got.to_f64().into_iter().zip(want.to_f64());
                    let verdict = |(got, want): (f64, f64)| Verdict::of(!want.is_nan() || got.is_nan());
                    let verdicts: Vec<Verdict> = pairs.map(verdict).collect();
                    let comparison = compare_by(got, &want, &verdicts);
                    compared.push(of_nan(value, want, "every element is NaN", comparison));
                }
                OutputKind::Quantized { codes, scales, .. } => {
                    for (value, rule) in [(codes, "codes of NaN"), (scales, "scales of NaN, zero padding")] {
                        let (got, want) = (self.run.got(got, value)?, self.run.take(&values, value)?);
                        let comparison = compare(got, &want, &Tolerance::Count(0), Rounding::Same);
                        compared.push(of_nan(value, want, rule, comparison.with_padding_of(got)));
                    }
                }
            }
        }
        Ok(compared)
    }

    /// Fails if memory does not suffice: operands in f64, and for each element of D a few values with their
    /// bounds.
    fn check_room(&self) -> Result<(), Error> {
        const EACH_RESULT: usize = 256;
        let root = self.run.program.module().ops[self.plan.root].results[0];
        self.run.check_room(self.run.count(root).saturating_mul(EACH_RESULT))
    }

    /// Compares an output with the interpreter's bits.
    fn compare_bits<'g>(
        &self,
        output: &KernelOutput,
        values: &Values,
        got: &Got<'g>,
    ) -> Result<Vec<Compared>, Error> {
        match output.kind {
            OutputKind::Value { value } | OutputKind::Reduced { value, .. } => {
                Ok(vec![self.run.equal_value(value, values, got)?])
            }
            OutputKind::Quantized { codes, scales, .. } => self.run.equal_blocks(codes, scales, values, got),
        }
    }

    /// Compares an output, each element of which lies within an interval.
    fn compare_within<'g>(
        &self,
        output: &KernelOutput,
        values: &Values,
        intervals: &Intervals<'_>,
        got: &Got<'g>,
    ) -> Result<Vec<Compared>, Error> {
        let bound = if intervals.error.is_none() { "4 ulp of f32" } else { "γ_K·Σ|a·b| + 4 ulp" };
        let mut steps = Vec::new();
        match &output.kind {
            OutputKind::Value { value } => {
                let want = self.run.take(values, *value)?;
                let bounds = match self.step(output.of) {
                    None => self.of_sum(values, intervals, &want)?,
                    Some((position, step)) => self.of_step(values, intervals, &want, position, step)?,
                };
                Ok(vec![self.run.within(*value, want, bounds, bound, got)?])
            }
            OutputKind::Reduced { value, kind, shape, .. } => {
                let want = self.run.take(values, *value)?;
                let mut reduced = Reduced::new(*kind, *shape, intervals.columns, want.count());
                for index in 0..intervals.elements() {
                    reduced.add(index, intervals.value(output.of, index, &mut steps));
                }
                let bounds = reduced.bounds(&want.to_f64());
                Ok(vec![self.run.within(*value, want, bounds, bound, got)?])
            }
            OutputKind::Quantized {
                codes, scales, global, element, block, scale_rounding, formula, ..
            } => {
                let rule = BlockRule {
                    element: *element,
                    block: *block as usize,
                    rounding: *scale_rounding,
                    formula: *formula,
                    global: global.map_or(1.0, |operand| intervals.operand(operand, 0) as f32),
                };
                let interval = |index| intervals.value(output.of, index, &mut steps);
                let compared =
                    self.run.blocks_within([*codes, *scales], values, rule, bound, got, interval)?;
                Ok(Vec::from(compared))
            }
        }
    }

    /// Returns the bounds of a result that is the sum itself, rounded if the result is narrow.
    fn of_sum(&self, values: &Values, intervals: &Intervals<'_>, want: &Tensor) -> Result<Bounds, Error> {
        let element = self.plan.accumulator;
        let points = if element == ElementType::F32 { want.to_f64() } else { self.sum(values)?.to_f64() };
        let mut bounds = Bounds::with_capacity(want.count());
        for (index, (at, want)) in points.into_iter().zip(want.to_f64()).enumerate() {
            let error = intervals.error.map_or(0.0, |error| error[index]) + ULPS * ulp(want);
            bounds.push(element, [at - error, at + error], at, UNKNOWN);
        }
        Ok(bounds)
    }

    /// Returns the bounds of a result that a step of the epilogue computes.
    fn of_step(
        &self,
        values: &Values,
        intervals: &Intervals<'_>,
        want: &Tensor,
        position: usize,
        step: &EpilogueStep,
    ) -> Result<Bounds, Error> {
        let points = self.operand_points(values, step, want.count())?;
        let narrow = step.element != ElementType::F32;
        let mut steps = Vec::new();
        let range = if step.element == ElementType::I1 { [0.0, 1.0] } else { UNKNOWN };
        let mut bounds = Bounds::with_capacity(want.count());
        for (index, want) in want.to_f64().into_iter().enumerate() {
            let point = |operand: &(EpilogueRef, Vec<f64>)| match operand {
                (EpilogueRef::Operand(operand), _) => intervals.operand(*operand, index),
                (_, values) => values[index],
            };
            let value = interval::point(step, &points.iter().map(point).collect::<Vec<_>>());
            let ends = intervals.unrounded(position, index, &mut steps);
            let (ends, at) = if narrow { (ends, value) } else { (interval::round(step.element, ends), want) };
            let room = ulp(at);
            bounds.push(step.element, [ends[0] - room, ends[1] + room], at, range);
        }
        Ok(bounds)
    }

    /// Returns the values of a step's operands, except for operands of the plan.
    fn operand_points(
        &self,
        values: &Values,
        step: &EpilogueStep,
        count: usize,
    ) -> Result<Vec<(EpilogueRef, Vec<f64>)>, Error> {
        let operands = &self.run.program.module().ops[step.op].operands;
        let of = |(reference, value): (&EpilogueRef, &Value)| {
            let points = match reference {
                EpilogueRef::Operand(_) => Vec::new(),
                EpilogueRef::Accumulator | EpilogueRef::Odd | EpilogueRef::Step(_) => {
                    let points = self.run.take(values, *value)?.to_f64();
                    // A constant has one element.
                    if points.len() == 1 { vec![points[0]; count] } else { points }
                }
            };
            Ok((*reference, points))
        };
        step.operands.iter().zip(operands).map(of).collect()
    }

    /// Returns the intervals of every value of the kernel.
    fn intervals<'e>(&'e self, values: &Values, error: Option<&'e [f64]>) -> Result<Intervals<'e>, Error> {
        let plan = self.plan;
        let root = self.run.take(values, self.run.program.module().ops[plan.root].results[0])?;
        let columns = root.dims().last().copied().unwrap_or(1) / if plan.pair.is_some() { 2 } else { 1 };
        let sum = if error.is_some() { self.sum(values)?.to_f64() } else { root.to_f64() };
        let operands = plan.operands.iter().map(|operand| Ok(self.run.operand(operand.value)?.to_f64()));
        let operands: Vec<Vec<f64>> = operands.collect::<Result<_, Error>>()?;
        Ok(Intervals { plan, sum, error, operands, columns })
    }

    /// Returns the step that a reference names; `None` for the sum.
    fn step(&self, of: EpilogueRef) -> Option<(usize, &EpilogueStep)> {
        match of {
            EpilogueRef::Step(position) => Some((position, self.plan.epilogue.get(position)?)),
            EpilogueRef::Accumulator | EpilogueRef::Odd | EpilogueRef::Operand(_) => None,
        }
    }

    /// Returns true if a step on the way to this value is a function that the device computes within 4 ulp.
    fn has_inexact_function(&self, of: EpilogueRef) -> bool {
        let mut reached = vec![false; self.plan.epilogue.len()];
        let mut pending = vec![of];
        while let Some(of) = pending.pop() {
            if let Some((position, step)) = self.step(of)
                && !std::mem::replace(&mut reached[position], true)
            {
                pending.extend(&step.operands);
            }
        }
        self.plan.epilogue.iter().zip(reached).any(|(step, reached)| match step.kind {
            EpilogueKind::Unary(kind) => reached && !is_correctly_rounded(kind),
            _ => false,
        })
    }

    fn no_tensor(&self, error: TensorError) -> Error {
        self.run.failed(self.plan.root, FallbackError::Tensor(error))
    }
}

/// A comparison with a value that follows from D being NaN.
fn of_nan(value: Value, want: Tensor, rule: &str, comparison: Comparison) -> Compared {
    let tolerance = Tolerance::Count(0);
    Compared { value, want, tolerance, rule: rule.to_owned(), by: "NaN", comparison }
}

/// Returns true if combining exact elements is exact.
fn combines_exactly(output: &KernelOutput) -> bool {
    match output.kind {
        OutputKind::Value { .. } | OutputKind::Quantized { .. } => true,
        OutputKind::Reduced { kind, .. } => reduced::is_exact(kind),
    }
}

/// The largest error of a function on the device, in ulp.
const ULPS: f64 = 4.0;

/// Returns the distance of neighbours in f32.
fn ulp(value: f64) -> f64 {
    const LEAST: i32 = -126;
    let exponent = ((value.abs().to_bits() >> 52) as i32) - 1023;
    2f64.powi(exponent.clamp(LEAST, 127) - 23)
}

fn missing(what: &str) -> Error {
    Error::NotKept(what.to_owned())
}

#[cfg(test)]
mod tests;
