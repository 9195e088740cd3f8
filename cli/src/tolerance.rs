//! Compares a kernel's results, element by element, with its ops evaluated on the same operands.
//!
//! A kernel sums in f32 in an order of its own: |error| ≤ γ_K·|alpha|·Σ|a·b| + 4 ulp with γ_K = K·2^-24/(1 -
//! K·2^-24). If every order gives the same sum, the error is zero, and results have the interpreter's bits,
//! except for the sign of zero and for functions within 4 ulp. The error is carried through the epilogue
//! ([`interval`]), reductions ([`reduced`]), and codes and scales ([`blocks`]), few of which may differ.

mod blocks;
mod contracted;
mod interval;
mod product;
mod reduced;
mod within;

use std::collections::HashMap;

use fourfold_executor::fallback::{self, FallbackError};
use fourfold_executor::{Run, RunError};
use fourfold_ir::memory::{NoMemory, check_memory};
use fourfold_ir::sample::Rule;
use fourfold_ir::{Bound, ElementType, Op, Program, SymbolValues, Tensor, TensorError, Value, interpret_op};
use fourfold_scheduler::{
    EpilogueKind, EpilogueRef, EpilogueStep, KernelOutput, OutputKind, Partition, ScaledMmaPlan,
};

use self::blocks::{BlockRule, Blocks, compare_blocks};
pub(crate) use self::contracted::{Moved, moved};
use self::interval::{Intervals, UNKNOWN};
use self::reduced::Reduced;
use self::within::{Bounds, free_text};
use crate::compare::{Comparison, MOVED_ONE_IN, Rounding, Tolerance, Verdict, compare, compare_by};
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

/// A kernel segment of one run.
pub(crate) struct KernelRun<'a> {
    /// The program.
    pub(crate) program: &'a Program,
    /// The position of the segment.
    pub(crate) segment: usize,
    /// The ops of the segment, in program order.
    pub(crate) ops: &'a [Op],
    /// The plan of the kernel.
    pub(crate) plan: &'a ScaledMmaPlan,
    /// The extents of this run.
    pub(crate) symbols: &'a SymbolValues,
    /// The rule of seeded inputs.
    pub(crate) rule: Option<Rule>,
    /// The operands of the kernel, by value.
    pub(crate) operands: HashMap<Value, &'a Tensor>,
    /// True if the segment is small enough for the interpreter.
    pub(crate) interpret: bool,
}

/// The name of equality in reports. Zeros may differ in sign: the sign of a sum of exact zeros depends on the
/// order and the hardware, and later steps pass it on. Codes of zero must have equal signs.
pub(crate) const BIT_EQUAL: &str = "bit-equal";

/// The values that ops define.
type Values = HashMap<Value, Tensor>;

/// Returns the value that a kernel wrote.
type Got<'a> = dyn Fn(Value) -> Option<&'a Tensor> + 'a;

impl<'a> KernelRun<'a> {
    /// Creates the comparison of a kernel segment in a run that kept every value.
    ///
    /// # Errors
    /// Fails if the segment is not a kernel, or an operand was not kept.
    pub(crate) fn of(
        program: &'a Program,
        partition: &'a Partition,
        segment: usize,
        bound: &'a Bound<'a>,
        run: &'a Run,
        rule: Option<Rule>,
    ) -> Result<KernelRun<'a>, Error> {
        let planned = &partition.segments[segment];
        let plan = planned.kernel().ok_or_else(|| missing(&format!("segment {segment}")))?;
        let module = program.module();
        let mut operands = HashMap::new();
        for &value in &planned.inputs {
            let tensor = match module.inputs.iter().position(|input| *input == value) {
                Some(position) => bound.inputs[position],
                None => run.value(value).ok_or_else(|| missing(module.name_of(value)))?,
            };
            operands.insert(value, tensor);
        }
        let symbols = &bound.symbols;
        Ok(KernelRun { program, segment, ops: &planned.ops, plan, symbols, rule, operands, interpret: true })
    }

    /// Compares every value that the kernel wrote.
    ///
    /// # Errors
    /// Fails if an op cannot be evaluated on these operands, memory is insufficient, or a value was not kept.
    pub(crate) fn compare<'g>(&self, got: &Got<'g>) -> Result<Vec<Compared>, Error> {
        self.check_room()?;
        let values = self.evaluate(Values::new())?;
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
        let module = self.program.module();
        let root = module.ops[self.plan.root].results[0];
        let dims = fourfold_ir::bind::concrete_dims(module.ty(root), self.symbols);
        let dims = dims.ok_or_else(|| missing(module.name_of(root)))?;
        self.check_room()?;
        let nan = vec![f64::NAN; dims.iter().product()];
        let nan =
            Tensor::from_f64(module.ty(root).element, dims, None, &nan).map_err(|e| self.no_tensor(e))?;
        let values = self.evaluate(Values::from([(root, nan)]))?;
        let mut compared = Vec::new();
        for output in &self.plan.outputs {
            match output.kind {
                OutputKind::Value { value } | OutputKind::Reduced { value, .. } => {
                    let (got, want) = (self.got(got, value)?, self.take(&values, value)?);
                    let pairs = got.to_f64().into_iter().zip(want.to_f64());
                    let verdict = |(got, want): (f64, f64)| Verdict::of(!want.is_nan() || got.is_nan());
                    let verdicts: Vec<Verdict> = pairs.map(verdict).collect();
                    let comparison = compare_by(got, &want, &verdicts);
                    compared.push(of_nan(value, want, "every element is NaN", comparison));
                }
                OutputKind::Quantized { codes, scales, .. } => {
                    for (value, rule) in [(codes, "codes of NaN"), (scales, "scales of NaN, zero padding")] {
                        let (got, want) = (self.got(got, value)?, self.take(&values, value)?);
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
        const EACH_OPERAND: usize = 16;
        const EACH_RESULT: usize = 256;
        let module = self.program.module();
        let ty = module.ty(module.ops[self.plan.root].results[0]);
        let dims = fourfold_ir::bind::concrete_dims(ty, self.symbols).unwrap_or_default();
        let results = dims.iter().fold(EACH_RESULT, |bytes, dim| bytes.saturating_mul(*dim));
        let operands = self.operands.values().map(|tensor| tensor.count().saturating_mul(EACH_OPERAND));
        check_memory(operands.fold(results, usize::saturating_add)).map_err(|NoMemory { bytes }| {
            Error::Memory { what: format!("the comparison of segment {}", self.segment), bytes }
        })
    }

    /// Compares an output with the interpreter's bits.
    fn compare_bits<'g>(
        &self,
        output: &KernelOutput,
        values: &Values,
        got: &Got<'g>,
    ) -> Result<Vec<Compared>, Error> {
        let bits = |value: Value, tolerance: Tolerance, rule: &str| -> Result<Compared, Error> {
            let (got, want) = (self.got(got, value)?, self.take(values, value)?);
            let comparison = compare(got, &want, &tolerance, Rounding::Same);
            Ok(self.compared(value, want, tolerance, rule.to_owned(), comparison))
        };
        match output.kind {
            OutputKind::Value { value } | OutputKind::Reduced { value, .. } => {
                Ok(vec![bits(value, Tolerance::Relative(0.0), BIT_EQUAL)?])
            }
            OutputKind::Quantized { codes, scales, .. } => {
                let of_codes = bits(codes, Tolerance::Count(0), BIT_EQUAL)?;
                let of_scales = bits(scales, Tolerance::Count(0), "bit-equal, zero padding")?;
                let comparison = of_scales.comparison.with_padding_of(self.got(got, scales)?);
                Ok(vec![of_codes, Compared { comparison, ..of_scales }])
            }
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
                let want = self.take(values, *value)?;
                let bounds = match self.step(output.of) {
                    None => self.of_sum(values, intervals, &want)?,
                    Some((position, step)) => self.of_step(values, intervals, &want, position, step)?,
                };
                Ok(vec![self.within(*value, want, bounds, bound, got)?])
            }
            OutputKind::Reduced { value, kind, shape, .. } => {
                let want = self.take(values, *value)?;
                let mut reduced = Reduced::new(*kind, *shape, intervals.columns, want.count());
                for index in 0..intervals.sum.len() {
                    reduced.add(index, intervals.value(output.of, index, &mut steps));
                }
                let bounds = reduced.bounds(&want.to_f64());
                Ok(vec![self.within(*value, want, bounds, bound, got)?])
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
                let want = (self.take(values, *codes)?, self.take(values, *scales)?);
                let of_blocks = compare_blocks(
                    rule,
                    Blocks { codes: self.got(got, *codes)?, scales: self.got(got, *scales)? },
                    Blocks { codes: &want.0, scales: &want.1 },
                    |index| intervals.value(output.of, index, &mut steps),
                );
                let name = |what: &str, free: usize, want: &Tensor| {
                    let free = free_text(free, want.count());
                    format!("{what} of {bound}{free}, 1 in {MOVED_ONE_IN} moved")
                };
                let none = || Tolerance::Count(0);
                let of_codes = name("codes", of_blocks.free_codes, &want.0);
                let of_scales = format!("{}, zero padding", name("scales", of_blocks.free_scales, &want.1));
                Ok(vec![
                    self.compared(*codes, want.0, none(), of_codes, of_blocks.codes),
                    self.compared(*scales, want.1, none(), of_scales, of_blocks.scales),
                ])
            }
        }
    }

    /// Compares a value with bounds for each element. Near a pole an interval is unbounded. Only a few elements may be,
    /// and the rule in the report states their number.
    fn within<'g>(
        &self,
        value: Value,
        want: Tensor,
        bounds: Bounds,
        bound: &str,
        got: &Got<'g>,
    ) -> Result<Compared, Error> {
        let (comparison, free) = bounds.compare(self.got(got, value)?, &want);
        let rule = format!("{bound}{}", free_text(free, want.count()));
        Ok(self.compared(value, want, Tolerance::Each(bounds.distances), rule, comparison))
    }

    fn compared(
        &self,
        value: Value,
        want: Tensor,
        tolerance: Tolerance,
        rule: String,
        comparison: Comparison,
    ) -> Compared {
        let by = if self.interpret { "interpreter" } else { "fallback" };
        Compared { value, want, tolerance, rule, by, comparison }
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
        let operands = &self.program.module().ops[step.op].operands;
        let of = |(reference, value): (&EpilogueRef, &Value)| {
            let points = match reference {
                EpilogueRef::Operand(_) => Vec::new(),
                EpilogueRef::Accumulator | EpilogueRef::Step(_) => {
                    let points = self.take(values, *value)?.to_f64();
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
        let root = self.take(values, self.program.module().ops[plan.root].results[0])?;
        let columns = root.dims().last().copied().unwrap_or(1);
        let sum = if error.is_some() { self.sum(values)?.to_f64() } else { root.to_f64() };
        let operands = plan.operands.iter().map(|operand| Ok(self.operand(operand.value)?.to_f64()));
        let operands: Vec<Vec<f64>> = operands.collect::<Result<_, Error>>()?;
        Ok(Intervals { plan, sum, error, operands, columns })
    }

    /// Returns the step that a reference names; `None` for the sum.
    fn step(&self, of: EpilogueRef) -> Option<(usize, &EpilogueStep)> {
        match of {
            EpilogueRef::Step(position) => Some((position, self.plan.epilogue.get(position)?)),
            EpilogueRef::Accumulator | EpilogueRef::Operand(_) => None,
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

    /// Evaluates the ops, on top of the given values.
    fn evaluate(&self, mut values: Values) -> Result<Values, Error> {
        let module = self.program.module();
        for &op in self.ops {
            let operation = &module.ops[op];
            if operation.results.iter().all(|result| values.contains_key(result)) {
                continue;
            }
            let operands: Option<Vec<&Tensor>> = operation
                .operands
                .iter()
                .map(|value| values.get(value).or_else(|| self.operands.get(value).copied()))
                .collect();
            let operands = operands.ok_or_else(|| missing(&module.op_label(op)))?;
            let results = if self.interpret {
                interpret_op(self.program, op, &operands, self.symbols)?
            } else {
                fallback::run_op(self.program, op, &operands, self.symbols)
                    .map_err(|source| self.failed(op, source))?
            };
            values.extend(operation.results.iter().copied().zip(results));
        }
        Ok(values)
    }

    fn take(&self, values: &Values, value: Value) -> Result<Tensor, Error> {
        values.get(&value).cloned().ok_or_else(|| missing(self.program.module().name_of(value)))
    }

    fn got<'g>(&self, got: &Got<'g>, value: Value) -> Result<&'g Tensor, Error> {
        got(value).ok_or_else(|| missing(self.program.module().name_of(value)))
    }

    fn operand(&self, value: Value) -> Result<&Tensor, Error> {
        self.operands.get(&value).copied().ok_or_else(|| missing(self.program.module().name_of(value)))
    }

    fn failed(&self, op: Op, source: FallbackError) -> Error {
        let op = self.program.module().op_label(op);
        Error::Run(RunError::Op { op, segment: self.segment, source })
    }

    fn no_tensor(&self, error: TensorError) -> Error {
        self.failed(self.plan.root, FallbackError::Tensor(error))
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
