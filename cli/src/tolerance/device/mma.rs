//! Compares a plain `mma`, which the vendor's library sums in f32 in an order of its own.
//!
//! |error| ≤ γ_K·Σ|a·b| + 4 ulp before the result is rounded to the type of D. If every partial sum is a whole number
//! of units that f32 can hold, every order gives the same bits.

use fourfold_executor::fallback::gemm_f32;
use fourfold_ir::memory::{NoMemory, check_memory};
use fourfold_ir::{ElementType, Tensor};
use fourfold_scheduler::MmaPlan;

use super::super::interval::UNKNOWN;
use super::super::within::Bounds;
use super::super::{Compared, Got, SegmentOps, ULPS, Values, missing, ulp};
use super::sum::lowest_bit;
use crate::error::Error;

/// Compares D.
pub(super) fn compare_mma<'g>(
    run: &SegmentOps<'_>,
    plan: &MmaPlan,
    values: &Values,
    got: &Got<'g>,
) -> Result<Compared, Error> {
    let want = run.take(values, plan.d)?;
    let sums = Sums::of(run, plan)?;
    if sums.are_exact {
        return run.equal_value(plan.d, values, got);
    }
    let [.., element] = plan.elements;
    let mut bounds = Bounds::with_capacity(want.count());
    for (index, want) in want.to_f64().into_iter().enumerate() {
        let magnitude = sums.magnitudes.get(index).copied().unwrap_or(f64::INFINITY);
        let at = match element {
            // The reference has every digit of the sum.
            ElementType::F32 => want,
            _ => sums.sums.get(index).copied().unwrap_or(f64::NAN),
        };
        let error = sums.gamma * magnitude + ULPS * ulp(at);
        let ends = [at - error, at + error];
        // A partial sum may overflow.
        let is_bounded = magnitude <= f64::from(f32::MAX) && at.is_finite();
        bounds.push(element, if is_bounded { ends } else { UNKNOWN }, at, UNKNOWN);
    }
    run.within(plan.d, want, bounds, "γ_K·Σ|a·b| + 4 ulp", got)
}

/// The sums of a product, and the sums of the magnitudes, by element of D.
struct Sums {
    sums: Vec<f64>,
    magnitudes: Vec<f64>,
    /// The largest error over the sum of magnitudes.
    gamma: f64,
    /// True if every order of summation gives the same bits.
    are_exact: bool,
}

impl Sums {
    fn of(run: &SegmentOps<'_>, plan: &MmaPlan) -> Result<Sums, Error> {
        let (a, b) = (run.operand(plan.a)?, run.operand(plan.b)?);
        let ([batch @ .., m, k], [b_batch @ .., n, _]) = (a.dims(), b.dims()) else {
            return Err(missing(run.program.module().name_of(plan.a)));
        };
        let batch: usize = batch.iter().product();
        let (matrices, m) = if b_batch.is_empty() { (1, batch * m) } else { (batch, *m) };
        let shape = [matrices, m, *n, *k];
        let unit = *k as f64 * 2f64.powi(-24);
        // Without the interpreter, the reference and these sums are in f32 as well, and each may err.
        let orders = if run.interpret { 1.0 } else { 2.0 };
        let gamma = if unit < 1.0 { orders * unit / (1.0 - unit) } else { f64::INFINITY };
        let (sums, magnitudes) = match run.interpret {
            true => in_f64(shape, a, b),
            false => in_f32(run, shape, a, b)?,
        };
        let largest = magnitudes.iter().copied().fold(0.0, f64::max);
        let are_exact = is_exact(a, b, largest);
        Ok(Sums { sums, magnitudes, gamma, are_exact })
    }
}

/// Sums in f64: beside an error in f32, that of f64 vanishes.
fn in_f64([matrices, m, n, k]: [usize; 4], a: &Tensor, b: &Tensor) -> (Vec<f64>, Vec<f64>) {
    let (a, b) = (a.to_f64(), b.to_f64());
    let count = matrices * m * n;
    let (mut sums, mut magnitudes) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for row in 0..matrices * m {
        let x = &a[row * k..][..k];
        for column in 0..n {
            let y = &b[(row / m * n + column) * k..][..k];
            let (sum, magnitude) = x
                .iter()
                .zip(y)
                .fold((0.0, 0.0), |(sum, magnitude), (x, y)| (sum + x * y, magnitude + (x * y).abs()));
            sums.push(sum);
            magnitudes.push(magnitude);
        }
    }
    (sums, magnitudes)
}

/// Sums in f32 with the fallback's multiplication, for products that take long in f64.
fn in_f32(
    run: &SegmentOps<'_>,
    [matrices, m, n, k]: [usize; 4],
    a: &Tensor,
    b: &Tensor,
) -> Result<(Vec<f64>, Vec<f64>), Error> {
    const EACH: usize = 24;
    let bytes = (matrices * m * n + a.count() + b.count()).saturating_mul(EACH);
    check_memory(bytes).map_err(|NoMemory { bytes }| Error::Memory {
        what: format!("the comparison of segment {}", run.segment),
        bytes,
    })?;
    let (mut a, mut b) = (a.to_f32(), b.to_f32());
    let multiply = |a: &[f32], b: &[f32]| -> Vec<f64> {
        let mut sums = Vec::with_capacity(matrices * m * n);
        let mut product = vec![0.0; m * n];
        for matrix in 0..matrices {
            if m * n > 0 {
                let (a, b) = (&a[matrix * m * k..][..m * k], &b[matrix * n * k..][..n * k]);
                gemm_f32([m, n, k], a, b, &mut product);
            }
            sums.extend(product.iter().map(|sum| f64::from(*sum)));
        }
        sums
    };
    let sums = multiply(&a, &b);
    a.iter_mut().chain(&mut b).for_each(|x| *x = x.abs());
    Ok((sums, multiply(&a, &b)))
}

/// Returns true if every partial sum is a whole number of units that f32 can hold, given the largest sum of magnitudes.
fn is_exact(a: &Tensor, b: &Tensor, largest: f64) -> bool {
    let unit = |tensor: &Tensor| {
        let values = tensor.to_f64().into_iter().filter(|x| *x != 0.0);
        values.map(|x| if x.is_finite() { lowest_bit(x) } else { i32::MIN / 4 }).min()
    };
    // Products of zeros only are exact.
    let (Some(a), Some(b)) = (unit(a), unit(b)) else { return largest == 0.0 };
    // The sum of magnitudes may have errors of its own, which the last factor covers.
    a + b >= -149 && largest * 1.01 <= 2f64.powi((a + b).min(1000) + 24)
}
