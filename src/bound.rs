//! What a kernel's result must be: the meaning of the ops that it stands for, on the very operands that it got, and how
//! far it may lie from that, element by element.
//!
//! A kernel sums in f32 in an order of its own: |error| ≤ γ_K·|alpha|·Σ|a·b| + 4 ulp with γ_K = K·2^-24/(1 - K·2^-24).
//! Where every order gives the same sum there is no error, and but for functions that are within 4 ulp the result has
//! the interpreter's bits. What follows the sum carries its error on: it is evaluated at both ends.

use std::collections::HashMap;

use fourfold_executor::RunError;
use fourfold_executor::fallback::{self, BlockScaled, BlockScaledShape, Epilogue, FallbackError, scaled_mma};
use fourfold_ir::sample::Rule;
use fourfold_ir::{
    ElementType, Op, OpKind, Program, ScaleLayout, SymbolValues, Tensor, TensorError, UnaryKind, Value,
    interpret_op,
};
use fourfold_scheduler::{EpilogueKind, KernelPlan};

use crate::compare::Tolerance;
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
        let values = self.evaluate(None)?;
        let want = self.take(&values, self.plan.output)?;
        let last = self.before_last_rounding();
        let unrounded = last.and_then(|value| values.get(&value).cloned());
        let is_inexact_function = self.plan.epilogue.iter().any(|step| match step.kind {
            EpilogueKind::Activation(kind) => !is_correctly_rounded(kind),
            _ => false,
        });
        let measured = unrounded.as_ref().unwrap_or(&want);
        let Some(error) = self.accumulation_error()? else {
            let (tolerance, rule) = if is_inexact_function {
                let each = measured.to_f64().iter().map(|value| ULPS * ulp(*value)).collect();
                (Tolerance::Each(each), "4 ulp of f32".to_owned())
            } else {
                (Tolerance::Relative(0.0), BIT_EQUAL.to_owned())
            };
            return Ok(Reference { want, tolerance, rule, unrounded, by });
        };
        let sum = self.sum(&values)?;
        let mut each: Vec<f64> = measured.to_f64().iter().map(|value| ULPS * ulp(*value)).collect();
        let mut narrow_sum = None;
        if self.plan.epilogue.is_empty() {
            each.iter_mut().zip(&error).for_each(|(each, error)| *each += error);
            if self.plan.accumulator != ElementType::F32 {
                narrow_sum = Some(sum);
            }
        } else {
            for sign in [-1.0, 1.0] {
                let moved: Vec<f64> =
                    sum.to_f64().iter().zip(&error).map(|(sum, error)| sum + sign * error).collect();
                let element = self.plan.accumulator;
                let root = Tensor::from_f64(element, sum.dims().to_vec(), None, &moved)
                    .map_err(|error| self.no_tensor(error))?;
                let values = self.evaluate(Some(root))?;
                let end = self.take(&values, last.unwrap_or(self.plan.output))?;
                for (index, (end, at)) in end.to_f64().iter().zip(measured.to_f64()).enumerate() {
                    let distance = (end - at).abs() + ULPS * ulp(at);
                    // NaN is met by NaN alone, and infinity by itself.
                    each[index] = each[index].max(distance);
                }
            }
        }
        Ok(Reference {
            want,
            tolerance: Tolerance::Each(each),
            rule: "γ_K·Σ|a·b| + 4 ulp".to_owned(),
            unrounded: narrow_sum.or(unrounded),
            by,
        })
    }

    /// The values that the ops define; with the result of the `scaled_mma` replaced, if another is given.
    fn evaluate(&self, root: Option<Tensor>) -> Result<HashMap<Value, Tensor>, Error> {
        let module = self.program.module();
        let mut values: HashMap<Value, Tensor> = HashMap::new();
        let mut root = root;
        for &op in self.ops {
            let operation = &module.ops[op];
            let results = match root.take() {
                Some(root) if op == self.plan.root => vec![root],
                given => {
                    root = given;
                    let operands: Option<Vec<&Tensor>> = operation
                        .operands
                        .iter()
                        .map(|value| values.get(value).or_else(|| self.operands.get(value).copied()))
                        .collect();
                    let operands = operands.ok_or_else(|| missing(&module.op_label(op)))?;
                    if self.interpret {
                        interpret_op(self.program, op, &operands, self.symbols)?
                    } else {
                        fallback::run_op(self.program, op, &operands, self.symbols)
                            .map_err(|source| self.failed(op, source))?
                    }
                }
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

    /// The operand of a last conversion.
    fn before_last_rounding(&self) -> Option<Value> {
        let module = self.program.module();
        let operation = &module.ops[module.defining_op(self.plan.output)?];
        (operation.kind == OpKind::Convert).then(|| operation.operands[0])
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
