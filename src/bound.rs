//! How far a kernel's result may lie from the interpreter's, element by element.
//!
//! A kernel sums in f32 in an order of its own: |error| ≤ γ_K·|alpha|·Σ|a·b| + 4 ulp with γ_K = K·2^-24/(1 - K·2^-24).
//! Where every order gives the same sum there is no error, and but for functions that are within 4 ulp the result has
//! the interpreter's bits.

use fourfold_executor::fallback::{BlockScaled, BlockScaledShape, Epilogue, ScaledMmaError, scaled_mma};
use fourfold_ir::sample::Rule;
use fourfold_ir::{ElementType, Entity, Program, ScaleLayout, Tensor, UnaryKind, Value};
use fourfold_scheduler::{EpilogueKind, KernelPlan};

use crate::precision::is_exact_product;

/// What a kernel's result must satisfy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KernelBound {
    /// The interpreter's bits.
    Same,
    /// At most so many units in the last place of f32 away, before the rounding to the result's type.
    Ulps(f64),
    /// At most so far away, element by element, before the rounding to the result's type.
    Each(Vec<f64>),
    /// No bound is derived: an inexact sum goes through a function that may stretch its error.
    Unknown,
}

/// The bound of a kernel's result. `values` are the interpreter's, by value index; `rule` is that of seeded inputs.
///
/// # Errors
/// When memory does not suffice for Σ|a·b|.
pub(crate) fn kernel_bound(
    program: &Program,
    plan: &KernelPlan,
    values: &[Tensor],
    rule: Option<Rule>,
) -> Result<KernelBound, ScaledMmaError> {
    let mut is_inexact_function = false;
    let mut may_stretch = false;
    for step in &plan.epilogue {
        if let EpilogueKind::Activation(kind) = step.kind {
            is_inexact_function |= !is_correctly_rounded(kind);
            may_stretch |= !matches!(kind, UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Relu);
        }
    }
    let exact = |sums: &[f32]| is_exact_in_any_order(program, plan, rule, sums);
    if is_exact_product(program, rule, plan.root) {
        return Ok(if is_inexact_function { KernelBound::Ulps(4.0) } else { KernelBound::Same });
    }
    let sums = magnitudes(program, plan, values)?;
    if exact(&sums) {
        return Ok(if is_inexact_function { KernelBound::Ulps(4.0) } else { KernelBound::Same });
    }
    if may_stretch {
        return Ok(KernelBound::Unknown);
    }
    let value =
        |value: Option<Value>| value.and_then(|value| values[value.index()].to_f64().first().copied());
    let alpha = value(plan.alpha).unwrap_or(1.0).abs();
    let k = *values[plan.a.index()].dims().last().unwrap_or(&0) as f64;
    let unit = k * 2f64.powi(-24);
    let gamma = unit / (1.0 - unit);
    let results = values[plan.output.index()].to_f64();
    let each = sums.iter().zip(results);
    Ok(KernelBound::Each(
        each.map(|(sum, result)| gamma * alpha * f64::from(*sum) + 4.0 * ulp(result)).collect(),
    ))
}

/// The distance of neighbours in f32.
pub(crate) fn ulp(value: f64) -> f64 {
    const LEAST: i32 = -126;
    let exponent = ((value.abs().to_bits() >> 52) as i32) - 1023;
    2f64.powi(exponent.clamp(LEAST, 127) - 23)
}

/// Whether the device and the CPU give the same bits.
pub(crate) fn is_correctly_rounded(kind: UnaryKind) -> bool {
    use UnaryKind::{Abs, Neg, Reciprocal, Relu, Sqrt};
    matches!(kind, Neg | Abs | Relu | Sqrt | Reciprocal)
}

/// Whether every partial sum is a whole number of units that f32 can hold: contest-rule products are multiples of 1/4
/// (1/16 with power-of-two scales), and no partial sum exceeds the sum of magnitudes.
fn is_exact_in_any_order(program: &Program, plan: &KernelPlan, rule: Option<Rule>, sums: &[f32]) -> bool {
    let defined = |value: Value| program.module().defining_op(value).is_some();
    if rule != Some(Rule::Contest) || [plan.a, plan.sfa, plan.b, plan.sfb].into_iter().any(defined) {
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
fn magnitudes(program: &Program, plan: &KernelPlan, values: &[Tensor]) -> Result<Vec<f32>, ScaledMmaError> {
    let block = program.facts().matmul(plan.root).map_or(16, |matmul| matmul.format.block as usize);
    let [a, b] = [plan.a, plan.b].map(|value| without_signs(&values[value.index()]));
    let shape = |tensor: &Tensor| match tensor.dims() {
        [batch @ .., rows, k] => {
            BlockScaledShape { batch: batch.iter().product(), rows: *rows, k: *k, block }
        }
        _ => BlockScaledShape { batch: 0, rows: 0, k: 0, block },
    };
    let (a_shape, b_shape) = (shape(&values[plan.a.index()]), shape(&values[plan.b.index()]));
    let mut out = vec![0; a_shape.batch * a_shape.rows * b_shape.rows * size_of::<f32>()];
    let refused = |_| ScaledMmaError::Shapes { a: a_shape, b: b_shape };
    let operand = |codes, data: Value, scales: Value, shape| {
        let scales = &values[scales.index()];
        let layout = scales.layout().unwrap_or(ScaleLayout::Linear);
        let element = values[data.index()].element();
        BlockScaled::new((codes, element), (scales.bytes(), scales.element(), layout), shape).map_err(refused)
    };
    let a = operand(&a, plan.a, plan.sfa, a_shape)?;
    let b = operand(&b, plan.b, plan.sfb, b_shape)?;
    scaled_mma(&a, &b, Epilogue::default(), ElementType::F32, &mut out)?;
    Ok(out
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect())
}

/// The codes with every sign cleared.
fn without_signs(tensor: &Tensor) -> Vec<u8> {
    let mask = if tensor.element() == ElementType::F4E2M1FN { 0x77 } else { 0x7F };
    tensor.bytes().iter().map(|byte| byte & mask).collect()
}
