//! What a kernel's result must be: the meaning of the ops that it stands for, on the very operands that it got, and how
//! far it may lie from that, element by element.
//!
//! A kernel sums in f32 in an order of its own: |error| ≤ γ_K·|alpha|·Σ|a·b| + 4 ulp with γ_K = K·2^-24/(1 - K·2^-24).
//! Where every order gives the same sum there is no error, and but for functions that are within 4 ulp the result has
//! the interpreter's bits. What follows carries such errors on, step by step ([`interval`]).

mod interval;

use std::collections::HashMap;

use fourfold_executor::RunError;
use fourfold_executor::fallback::{self, BlockScaled, BlockScaledShape, Epilogue, FallbackError, scaled_mma};
use fourfold_ir::sample::Rule;
use fourfold_ir::{
    ElementType, Op, Program, ScaleLayout, SymbolValues, Tensor, TensorError, UnaryKind, Value, interpret_op,
};
use fourfold_scheduler::{EpilogueKind, EpilogueRef, EpilogueStep, KernelPlan};

use self::interval::{Element, Interval};

use crate::compare::{Comparison, Rounding, Tolerance, compare};
use crate::error::Error;
use crate::precision::is_exact_product;

/// What a kernel's result is compared with.
pub(crate) struct Reference {
    /// The result as the ops define it.
    pub(crate) want: Tensor,
    /// How far the result may lie from it, before the rounding to its type.
    pub(crate) tolerance: Tolerance,
    /// How reports call that.
    pub(crate) rule: String,
    /// The result before its last rounding, where it is known.
    pub(crate) unrounded: Option<Tensor>,
    /// `interpreter`, or `fallback` for what is too large for it.
    pub(crate) by: &'static str,
}

impl Reference {
    /// Holds what a kernel gave against it.
    pub(crate) fn compare(&self, got: &Tensor) -> Comparison {
        let operand = || self.unrounded.clone();
        let rounding = match (&self.tolerance, &self.unrounded) {
            (Tolerance::Relative(_), _) => Rounding::Same,
            (_, Some(_)) => Rounding::Converted(&operand),
            (_, None) => Rounding::OneStep,
        };
        compare(got, &self.want, &self.tolerance, rounding)
    }
}

/// A kernel segment of one run.
pub(crate) struct KernelRun<'a> {
    /// The program.
    pub(crate) program: &'a Program,
    /// The position of the segment.
    pub(crate) segment: usize,
    /// The ops that the kernel stands for, in program order.
    pub(crate) ops: &'a [Op],
    /// Its plan.
    pub(crate) plan: &'a KernelPlan,
    /// The extents of this run.
    pub(crate) symbols: &'a SymbolValues,
    /// The rule of seeded inputs.
    pub(crate) rule: Option<Rule>,
    /// The operands that it got, by value.
    pub(crate) operands: HashMap<Value, &'a Tensor>,
    /// Whether it is small enough for the interpreter.
    pub(crate) interpret: bool,
}

/// How reports call equality.
pub(crate) const BIT_EQUAL: &str = "bit-equal";

impl KernelRun<'_> {
    /// What its result must be.
    ///
    /// # Errors
    /// When an op cannot be evaluated on these operands, or memory does not suffice.
    pub(crate) fn reference(&self) -> Result<Reference, Error> {
        let by = if self.interpret { "interpreter" } else { "fallback" };
        let values = self.evaluate()?;
        let want = self.take(&values, self.plan.first_written())?;
        let error = self.accumulation_error()?;
        let is_exact = error.is_none();
        if is_exact && !self.has_inexact_function() {
            let (tolerance, rule) = (Tolerance::Relative(0.0), BIT_EQUAL.to_owned());
            return Ok(Reference { want, tolerance, rule, unrounded: None, by });
        }
        let (each, unrounded) = match self.plan.epilogue.last() {
            None => self.of_sum(&values, error.unwrap_or_default(), &want)?,
            Some(last) => self.of_steps(&values, error, &want, last)?,
        };
        let mut rule = if is_exact { "4 ulp of f32" } else { "γ_K·Σ|a·b| + 4 ulp" }.to_owned();
        // Near a pole an interval is anything: such an element is not checked, and the report must not hide it.
        let free =
            each.iter().zip(want.to_f64()).filter(|(each, want)| each.is_infinite() && want.is_finite());
        match free.count() {
            0 => {}
            count => rule += &format!(" ({count} without a bound)"),
        }
        Ok(Reference { want, tolerance: Tolerance::Each(each), rule, unrounded, by })
    }

    /// How far the elements of a result may be off that is the sum itself, and that sum where the result is narrow.
    fn of_sum(
        &self,
        values: &HashMap<Value, Tensor>,
        error: Vec<f64>,
        want: &Tensor,
    ) -> Result<(Vec<f64>, Option<Tensor>), Error> {
        let of = |(error, value): (f64, f64)| error + ULPS * ulp(value);
        let each = error.into_iter().zip(want.to_f64()).map(of).collect();
        let narrow = self.plan.accumulator != ElementType::F32;
        Ok((each, if narrow { Some(self.sum(values)?) } else { None }))
    }

    /// The same of a result that the steps of the epilogue give: before the rounding of the last step where that is
    /// narrow, together with the result before it.
    fn of_steps(
        &self,
        values: &HashMap<Value, Tensor>,
        error: Option<Vec<f64>>,
        want: &Tensor,
        last: &EpilogueStep,
    ) -> Result<(Vec<f64>, Option<Tensor>), Error> {
        let plan = self.plan;
        let sum = match &error {
            Some(_) => self.sum(values)?,
            None => self.take(values, self.program.module().ops[plan.root].results[0])?,
        };
        let sum = sum.to_f64();
        let accumulator = |index: usize| -> Interval {
            let Some(error) = &error else { return [sum[index]; 2] };
            let error = error[index] + ULPS * ulp(sum[index]);
            interval::round(plan.accumulator, [sum[index] - error, sum[index] + error])
        };
        let operands = plan.operands.iter().map(|operand| Ok(self.operand(operand.value)?.to_f64()));
        let operands: Vec<Vec<f64>> = operands.collect::<Result<_, Error>>()?;
        let columns = want.dims().last().copied().unwrap_or(1);
        let element = Element { plan, operands: &operands, columns };
        let points = self.operand_points(values, last)?;
        let narrow = last.element != ElementType::F32;
        let mut steps = Vec::new();
        let mut unrounded = Vec::with_capacity(sum.len());
        let mut each = Vec::with_capacity(sum.len());
        for (index, want) in want.to_f64().into_iter().enumerate() {
            let point = |operand: &(EpilogueRef, Vec<f64>)| match operand {
                (EpilogueRef::Operand(operand), _) => element.operand(*operand, index),
                (_, values) => values[index],
            };
            let value = interval::point(last, &points.iter().map(point).collect::<Vec<_>>());
            let ends = element.last(index, accumulator(index), &mut steps);
            let (ends, at) = if narrow { (ends, value) } else { (interval::round(last.element, ends), want) };
            let distance = (ends[1] - at).max(at - ends[0]);
            // NaN is met by NaN alone, and infinity by itself: what this is for them does not matter.
            each.push(if distance.is_nan() { f64::INFINITY } else { distance + ulp(at) });
            unrounded.push(value);
        }
        if !narrow {
            return Ok((each, None));
        }
        let unrounded = Tensor::from_f64(ElementType::F32, want.dims().to_vec(), None, &unrounded);
        Ok((each, Some(unrounded.map_err(|error| self.no_tensor(error))?)))
    }

    /// The values that a step is computed of, where they are computed themselves.
    fn operand_points(
        &self,
        values: &HashMap<Value, Tensor>,
        step: &EpilogueStep,
    ) -> Result<Vec<(EpilogueRef, Vec<f64>)>, Error> {
        let operands = &self.program.module().ops[step.op].operands;
        let count = self.take(values, self.plan.first_written())?.count();
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

    fn has_inexact_function(&self) -> bool {
        self.plan.epilogue.iter().any(|step| match step.kind {
            EpilogueKind::Unary(kind) => !is_correctly_rounded(kind),
            _ => false,
        })
    }

    /// The values that the ops define.
    fn evaluate(&self) -> Result<HashMap<Value, Tensor>, Error> {
        let module = self.program.module();
        let mut values: HashMap<Value, Tensor> = HashMap::new();
        for &op in self.ops {
            let operation = &module.ops[op];
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

    fn take(&self, values: &HashMap<Value, Tensor>, value: Value) -> Result<Tensor, Error> {
        values.get(&value).cloned().ok_or_else(|| missing(self.program.module().name_of(value)))
    }

    fn operand(&self, value: Value) -> Result<&Tensor, Error> {
        self.operands.get(&value).copied().ok_or_else(|| missing(self.program.module().name_of(value)))
    }

    /// The largest error of the sum, times alpha, for each element; `None` where no order of summation has one.
    fn accumulation_error(&self) -> Result<Option<Vec<f64>>, Error> {
        if is_exact_product(self.program, self.rule, self.plan.root) {
            return Ok(None);
        }
        let sums = self.magnitudes()?;
        if self.is_exact_in_any_order(&sums) {
            return Ok(None);
        }
        let alpha = match self.plan.alpha {
            Some(alpha) => self.operand(alpha)?.to_f64().first().copied().unwrap_or(1.0).abs(),
            None => 1.0,
        };
        let k = *self.operand(self.plan.a)?.dims().last().unwrap_or(&0) as f64;
        let unit = k * 2f64.powi(-24);
        // The fallback sums in f32 as well.
        let orders = if self.interpret { 1.0 } else { 2.0 };
        let gamma = orders * unit / (1.0 - unit);
        Ok(Some(sums.iter().map(|sum| gamma * alpha * f64::from(*sum)).collect()))
    }

    /// Whether every partial sum is a whole number of units that f32 can hold: contest-rule products are multiples of
    /// 1/4 (1/16 with power-of-two scales), and no partial sum exceeds the sum of magnitudes.
    fn is_exact_in_any_order(&self, sums: &[f32]) -> bool {
        let plan = self.plan;
        let is_made = |value: Value| self.program.module().defining_op(value).is_some();
        if self.rule != Some(Rule::Contest) || [plan.a, plan.sfa, plan.b, plan.sfb].into_iter().any(is_made) {
            return false;
        }
        let unit = match plan.format.scale {
            ElementType::F8E4M3FN => 0.25,
            _ => 0.0625,
        };
        let largest = sums.iter().copied().fold(0.0, f32::max);
        largest < unit * 2f32.powi(24)
    }

    /// Σ|a·b| for every element of D.
    fn magnitudes(&self) -> Result<Vec<f32>, Error> {
        let (a, b) = (self.operand(self.plan.a)?, self.operand(self.plan.b)?);
        self.multiply(&without_signs(a), &without_signs(b), Epilogue::default())
    }

    /// The result of the `scaled_mma` before it is rounded to its type.
    fn sum(&self, values: &HashMap<Value, Tensor>) -> Result<Tensor, Error> {
        let module = self.program.module();
        let root = self.take(values, module.ops[self.plan.root].results[0])?;
        if self.plan.accumulator == ElementType::F32 {
            return Ok(root);
        }
        let scalar = |value: Option<Value>| -> Result<Option<f32>, Error> {
            let Some(value) = value else { return Ok(None) };
            Ok(self.operand(value)?.to_f64().first().map(|value| *value as f32))
        };
        let c = match self.plan.c {
            Some(c) => Some(self.operand(c)?),
            None => None,
        };
        let epilogue = Epilogue {
            alpha: scalar(self.plan.alpha)?,
            c: c.map(|c| (c.bytes(), c.element())),
            beta: scalar(self.plan.beta)?,
        };
        let (a, b) = (self.operand(self.plan.a)?, self.operand(self.plan.b)?);
        let sums = self.multiply(a.bytes(), b.bytes(), epilogue)?;
        Tensor::from_f32(root.dims().to_vec(), &sums).map_err(|error| self.no_tensor(error))
    }

    fn multiply(&self, a: &[u8], b: &[u8], epilogue: Epilogue<'_>) -> Result<Vec<f32>, Error> {
        let plan = self.plan;
        let block = plan.format.block as usize;
        let shape = |tensor: &Tensor| match tensor.dims() {
            [batch @ .., rows, k] => {
                BlockScaledShape { batch: batch.iter().product(), rows: *rows, k: *k, block }
            }
            _ => BlockScaledShape { batch: 0, rows: 0, k: 0, block },
        };
        let (a_shape, b_shape) = (shape(self.operand(plan.a)?), shape(self.operand(plan.b)?));
        let root = |source: FallbackError| self.failed(plan.root, source);
        let mut out = vec![0; a_shape.batch * a_shape.rows * b_shape.rows * size_of::<f32>()];
        let sfa = self.operand(plan.sfa)?;
        let sfb = self.operand(plan.sfb)?;
        let scales = |scales: &Tensor| scales.layout().unwrap_or(ScaleLayout::Linear);
        let a = BlockScaled::new((a, plan.format.a), (sfa.bytes(), sfa.element(), scales(sfa)), a_shape)
            .map_err(|error| root(error.into()))?;
        let b = BlockScaled::new((b, plan.format.b), (sfb.bytes(), sfb.element(), scales(sfb)), b_shape)
            .map_err(|error| root(error.into()))?;
        scaled_mma(&a, &b, epilogue, ElementType::F32, &mut out).map_err(|error| root(error.into()))?;
        let word = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(out.chunks_exact(4).map(word).collect())
    }

    fn failed(&self, op: Op, source: FallbackError) -> Error {
        let op = self.program.module().op_label(op);
        Error::Run(RunError::Op { op, segment: self.segment, source })
    }

    fn no_tensor(&self, error: TensorError) -> Error {
        self.failed(self.plan.root, FallbackError::Tensor(error))
    }
}

/// What a function on the device may be off by.
const ULPS: f64 = 4.0;

/// The distance of neighbours in f32.
fn ulp(value: f64) -> f64 {
    const LEAST: i32 = -126;
    let exponent = ((value.abs().to_bits() >> 52) as i32) - 1023;
    2f64.powi(exponent.clamp(LEAST, 127) - 23)
}

/// Whether the device and the CPU give the same bits.
pub(crate) fn is_correctly_rounded(kind: UnaryKind) -> bool {
    use UnaryKind::{Abs, Neg, Reciprocal, Relu, Sqrt};
    matches!(kind, Neg | Abs | Relu | Sqrt | Reciprocal)
}

/// The codes with every sign cleared.
fn without_signs(tensor: &Tensor) -> Vec<u8> {
    let mask = if tensor.element() == ElementType::F4E2M1FN { 0x77 } else { 0x7F };
    tensor.bytes().iter().map(|byte| byte & mask).collect()
}

fn missing(what: &str) -> Error {
    Error::NotKept(what.to_owned())
}

#[cfg(test)]
mod tests;
