//! Two FP4 linears around ops that stay with tract.

use fourfold_tract::{BlockDequantize, BlockQuantize, Format, Fourfold, ScaledMm};
use tract_core::internal::*;
use tract_core::ops::einsum::EinSum;
use tract_core::ops::math::{add, max, mul, sub};
use tract_core::ops::nn::{Reduce, Reducer};

use super::{Matrix, bias, bytes, cpu, dequantize, exact_activations, floats};

const SIZES: [usize; 5] = [1, 3, 7, 130, 0];
/// K and N of the first linear, K and N of the second.
pub const K1: usize = 64;
const N1: usize = 96;
const K2: usize = 128;
const N2: usize = 56;

/// The second linear's K columns, each the difference of two columns of the first's result.
fn differences() -> Tensor {
    let mut values = vec![0f32; N1 * K2];
    for column in 0..K2 {
        values[(column * 7 % N1) * K2 + column] += 1.0;
        values[(column * 11 + 5) % N1 * K2 + column] -= 1.0;
    }
    Tensor::from_shape(&[N1, K2], &values).unwrap()
}

fn product(axes: &str) -> EinSum {
    EinSum::new(axes.parse().unwrap(), f32::datum_type())
}

/// A linear of quantized activations: `ScaledMm`, or the product of dequantized matrices.
fn linear(
    model: &mut TypedModel,
    name: &str,
    x: OutletId,
    g: f32,
    weight: &Matrix,
    dense: bool,
) -> TractResult<(OutletId, TVec<OutletId>)> {
    let g = model.add_const(format!("{name}.g"), tensor0(g))?;
    let quantize = BlockQuantize { format: weight.format };
    let quantized = model.wire_node(format!("{name}.quantize"), quantize, &[x, g])?;
    if dense {
        let a = BlockDequantize { format: weight.format };
        let a = model.wire_node(format!("{name}.dequantize"), a, &quantized)?[0];
        let b = model.add_const(format!("{name}.w"), weight.dense())?;
        let product = model.wire_node(format!("{name}.mm"), product("mk,nk->mn"), &[a, b])?[0];
        return Ok((product, quantized));
    }
    let b = model.add_const(format!("{name}.w"), weight.codes.clone())?;
    let sfb = model.add_const(format!("{name}.sf"), weight.scales.clone())?;
    let op = ScaledMm { format: weight.format, output: f32::datum_type() };
    let inputs = [quantized[0], quantized[1], b, sfb];
    Ok((model.wire_node(format!("{name}.mm"), op, &inputs)?[0], quantized))
}

/// relu(linear(x)/2 + bias) minus the row's maximum, times a dense matrix, then another linear. Outputs: the result, the
/// second linear's input, and its codes and scales.
pub fn model(dense: bool) -> TractResult<TypedModel> {
    let mut model = TypedModel::default();
    let m = model.symbols.sym("M");
    let x = model.add_source("x", f32::fact(dims![m, K1]))?;
    let (first, _) = linear(&mut model, "fc1", x, 1.0, &Matrix::random(Format::Nvfp4, 1, N1, K1), dense)?;
    let half = model.add_const("half", tensor2(&[[0.5f32]]))?;
    let scaled = model.wire_node("scaled", mul(), &[first, half])?[0];
    let row = model.add_const("bias1", bias(2, N1))?;
    let biased = model.wire_node("biased", add(), &[scaled, row])?[0];
    let zero = model.add_const("zero", tensor2(&[[0f32]]))?;
    let hidden = model.wire_node("relu", max(), &[biased, zero])?[0];
    let largest = model.wire_node("largest", Reduce::new(tvec![1], Reducer::Max), &[hidden])?[0];
    let shifted = model.wire_node("shifted", sub(), &[hidden, largest])?[0];
    let matrix = model.add_const("differences", differences())?;
    let middle = model.wire_node("plain", product("mk,kn->mn"), &[shifted, matrix])?[0];
    let weight = Matrix::random(Format::Nvfp4, 3, N2, K2);
    let (second, quantized) = linear(&mut model, "fc2", middle, 4.0, &weight, dense)?;
    let row = model.add_const("bias2", bias(4, N2))?;
    let out = model.wire_node("out", add(), &[second, row])?[0];
    model.select_output_outlets(&[out, middle, quantized[0], quantized[1]])?;
    Ok(model)
}

/// The largest error of a sum of K products in f32, in any order and with one more rounding for the bias:
/// (K + 2) · 2^-24 · Σ|a·b| and half an ulp of the result.
fn bounds(outputs: &[Tensor], rows: usize) -> Vec<f64> {
    let weight = Matrix::random(Format::Nvfp4, 3, N2, K2);
    let (a, b) = (dequantize(Format::Nvfp4, &outputs[2], &outputs[3]), weight.values());
    let mut bounds = Vec::with_capacity(rows * N2);
    for row in a.chunks(K2).take(rows) {
        for column in b.chunks(K2) {
            let sum: f64 = row.iter().zip(column).map(|(a, b)| (a * b).abs()).sum();
            bounds.push((K2 as f64 + 2.0) * 2f64.powi(-24) * sum + 8.0 * 2f64.powi(-24));
        }
    }
    bounds
}

/// Compares the model with tract's own runtime on dequantized weights. `slack` is 1 for rounding to nearest, and 2 for hardware that truncates.
pub fn check(runtime: &Fourfold, target: &str, slack: f64) -> TractResult<()> {
    let (scaled, dense) = (model(false)?, model(true)?);
    let (prepared, reference) = (runtime.prepare(scaled.clone())?, cpu().prepare(dense)?);
    let replaced = cpu().prepare(scaled)?;
    for rows in SIZES {
        let x = exact_activations(7 + rows as u64, rows, K1);
        let call = |runnable: &dyn Runnable| -> TractResult<Vec<Tensor>> {
            let outputs = runnable.run(tvec!(x.clone().into_tvalue()))?;
            Ok(outputs.into_iter().map(TValue::into_tensor).collect())
        };
        let (got, want) = (call(&*prepared)?, call(&*reference)?);
        assert_eq!(got[0].shape(), [rows, N2], "{target}, M = {rows}");
        // Up to the second linear, every sum is exact in f32.
        assert_eq!(floats(&got[1]), floats(&want[1]), "{target}, M = {rows}");
        assert_eq!(bytes(&got[2]), bytes(&want[2]), "{target}, M = {rows}");
        assert_eq!(bytes(&got[3]), bytes(&want[3]), "{target}, M = {rows}");
        let bounds = bounds(&want, rows);
        let pairs = floats(&got[0]).into_iter().zip(floats(&want[0]));
        for (index, ((got, want), bound)) in pairs.zip(&bounds).enumerate() {
            let error = (f64::from(got) - f64::from(want)).abs();
            assert!(
                error <= slack * bound,
                "{target}, M = {rows}, {index}: {got}, not {want}, bound {bound}"
            );
        }
        let largest = floats(&want[0]).into_iter().fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(rows == 0 || largest > 100.0, "M = {rows}: the largest result is {largest}");
        // The same ops outside segments.
        let outside = call(&*replaced)?;
        for ((got, want), bound) in floats(&outside[0]).into_iter().zip(floats(&want[0])).zip(&bounds) {
            assert!(f64::from(got - want).abs() <= *bound, "{target}, M = {rows}: {got}, not {want}");
        }
    }
    Ok(())
}
