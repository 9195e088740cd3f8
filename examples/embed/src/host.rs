//! The host's own data and ops. They share nothing with Fourfold except the layout of the tensors handed over.

use anyhow::{Result, ensure};
use fourfold::ir::{ElementType, ScaleLayout, Tensor};

/// Row-major activations.
#[derive(Clone, Debug)]
pub struct Activations {
    /// The number of rows; M.
    pub rows: usize,
    /// The number of columns.
    pub columns: usize,
    /// The elements, row by row.
    pub values: Vec<f32>,
}

/// Block-scaled FP4: a code for each element, and an exponent of a power of two for each block of 16 columns.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The number of rows.
    pub rows: usize,
    /// The number of columns, a multiple of 16.
    pub columns: usize,
    /// The codes, one byte each.
    pub codes: Vec<u8>,
    /// The exponents, one for each block.
    pub exponents: Vec<i32>,
}

/// The parameters of a linear layer: `[N, K]` codes and a bias of N.
#[derive(Clone, Debug)]
pub struct Weights {
    /// The weight, `[N, K]`.
    pub codes: Quantized,
    /// The bias, added to every row.
    pub bias: Vec<f32>,
}

const BLOCK: usize = 16;
/// The eight magnitudes of FP4.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// The range of exponents of scales: those of normal e4m3 numbers.
const EXPONENTS: (i32, i32) = (-6, 8);

/// Quantizes with a power of two for each block, so that its largest element becomes at most 6.
pub fn quantize(x: &Activations) -> Quantized {
    let mut codes = Vec::with_capacity(x.values.len());
    let mut exponents = Vec::with_capacity(x.values.len() / BLOCK);
    for block in x.values.chunks(BLOCK) {
        let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let exponent = ((largest / 6.0).log2().ceil() as i32).clamp(EXPONENTS.0, EXPONENTS.1);
        exponents.push(exponent);
        codes.extend(block.iter().map(|value| nearest_code(*value / 2f32.powi(exponent))));
    }
    Quantized { rows: x.rows, columns: x.columns, codes, exponents }
}

fn nearest_code(value: f32) -> u8 {
    let distance = |code: &u8| (MAGNITUDES[usize::from(*code)] - value.abs()).abs();
    let magnitude = (0..8u8).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0);
    magnitude | if value < 0.0 { 8 } else { 0 }
}

impl Quantized {
    fn value(&self, row: usize, column: usize) -> f64 {
        let index = row * self.columns + column;
        let code = self.codes[index];
        let magnitude =
            f64::from(MAGNITUDES[usize::from(code & 7)]) * 2f64.powi(self.exponents[index / BLOCK]);
        if code & 8 == 0 { magnitude } else { -magnitude }
    }

    /// Returns the codes as a tensor for Fourfold.
    pub fn code_tensor(&self) -> Result<Tensor> {
        let dims = vec![self.rows, self.columns];
        Ok(Tensor::from_codes(ElementType::F4E2M1FN, dims, None, self.codes.clone())?)
    }

    /// Returns the scales as a tensor for Fourfold, in the layout that the hardware reads.
    pub fn scale_tensor(&self) -> Result<Tensor> {
        let scales: Vec<f64> = self.exponents.iter().map(|exponent| 2f64.powi(*exponent)).collect();
        let dims = vec![self.rows, self.columns / BLOCK];
        Ok(Tensor::from_f64(ElementType::F8E4M3FN, dims, Some(ScaleLayout::Blocked), &scales)?)
    }
}

/// Returns `x · wᵀ + bias`, in f64.
pub fn linear(x: &Quantized, weights: &Weights) -> Activations {
    let w = &weights.codes;
    let mut values = Vec::with_capacity(x.rows * w.rows);
    for row in 0..x.rows {
        for column in 0..w.rows {
            let sum: f64 = (0..x.columns).map(|k| x.value(row, k) * w.value(column, k)).sum();
            values.push((sum as f32) + weights.bias[column]);
        }
    }
    Activations { rows: x.rows, columns: w.rows, values }
}

/// Returns x · Φ(x). The error function is a series near 0 and a continued fraction far out.
pub fn gelu(x: &Activations) -> Activations {
    let gelu = |x: f64| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2));
    map(x, |value| gelu(f64::from(value)) as f32)
}

fn erf(x: f64) -> f64 {
    const TERMS: i32 = 60;
    let square = x * x;
    if x.abs() > 3.0 {
        let fraction = (1..TERMS).rev().fold(x.abs(), |rest, term| x.abs() + f64::from(term) / 2.0 / rest);
        let tail = (-square).exp() / (fraction * std::f64::consts::PI.sqrt());
        return x.signum() * (1.0 - tail);
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..TERMS {
        term *= -square / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// Returns the sum of two results of one shape.
///
/// # Errors
/// Fails if their shapes differ.
pub fn add(left: &Activations, right: &Activations) -> Result<Activations> {
    ensure!((left.rows, left.columns) == (right.rows, right.columns), "the shapes of the summands differ");
    let values = left.values.iter().zip(&right.values).map(|(left, right)| left + right).collect();
    Ok(Activations { rows: left.rows, columns: left.columns, values })
}

/// Divides each row by its root mean square.
pub fn rms_norm(x: &Activations) -> Activations {
    let mut values = Vec::with_capacity(x.values.len());
    for row in x.values.chunks(x.columns.max(1)) {
        let mean = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / row.len() as f64;
        values.extend(row.iter().map(|value| (f64::from(*value) / (mean + 1e-6).sqrt()) as f32));
    }
    Activations { rows: x.rows, columns: x.columns, values }
}

fn map(x: &Activations, function: impl Fn(f32) -> f32) -> Activations {
    Activations {
        rows: x.rows,
        columns: x.columns,
        values: x.values.iter().map(|value| function(*value)).collect(),
    }
}
