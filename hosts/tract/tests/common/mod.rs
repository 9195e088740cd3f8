//! Data, reference values and helpers of the tests. Nothing here uses Fourfold to compute.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod two_linears;

use std::sync::Arc;

use fourfold::{DeviceChoice, Options};
use fourfold_tract::{BlockQuantize, Format, Fourfold, Report, ScaledMm};
use tract_core::internal::*;

/// A generator of numbers that differ from their neighbours.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

pub fn e2m1(code: u8) -> f64 {
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

fn scale(format: Format, byte: u8) -> f64 {
    if format == Format::Mxfp4 {
        return 2f64.powi(i32::from(byte) - 127);
    }
    let (exponent, mantissa) = (i32::from((byte >> 3) & 15), f64::from(byte & 7));
    if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7) }
}

/// A block-scaled matrix in tract's tensors.
#[derive(Clone)]
pub struct Matrix {
    pub format: Format,
    pub rows: usize,
    pub k: usize,
    pub codes: Arc<Tensor>,
    pub scales: Arc<Tensor>,
}

impl Matrix {
    /// Random codes, and scales of up to 16 (NVFP4) or 7 (MXFP4) values from 1/16 to 2.
    pub fn random(format: Format, seed: u64, rows: usize, k: usize) -> Matrix {
        let mut random = Random::new(seed);
        let codes: Vec<u8> = (0..rows * k / 2).map(|_| random.below(256) as u8).collect();
        let scales: Vec<u8> = (0..rows * k / format.block())
            .map(|_| match format {
                Format::Nvfp4 => 0x30 + random.below(17) as u8,
                Format::Mxfp4 => 124 + random.below(5) as u8,
            })
            .collect();
        Matrix {
            format,
            rows,
            k,
            codes: Arc::new(Tensor::from_shape(&[rows, k / 2], &codes).unwrap()),
            scales: Arc::new(Tensor::from_shape(&[rows, k / format.block()], &scales).unwrap()),
        }
    }

    /// The values, row-major.
    pub fn values(&self) -> Vec<f64> {
        dequantize(self.format, &self.codes, &self.scales)
    }

    /// The values as a tensor `[rows, K]`.
    pub fn dense(&self) -> Tensor {
        let values: Vec<f32> = self.values().iter().map(|value| *value as f32).collect();
        Tensor::from_shape(&[self.rows, self.k], &values).unwrap()
    }
}

/// The values of codes and scales.
pub fn dequantize(format: Format, codes: &Tensor, scales: &Tensor) -> Vec<f64> {
    let (codes, scales) = (bytes(codes), bytes(scales));
    let nibbles = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    nibbles.enumerate().map(|(i, code)| e2m1(code) * scale(format, scales[i / format.block()])).collect()
}

pub fn bytes(tensor: &Tensor) -> Vec<u8> {
    tensor.try_as_plain_ram().unwrap().as_slice::<u8>().unwrap().to_vec()
}

pub fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.cast_to::<f32>().unwrap().try_as_plain_ram().unwrap().as_slice::<f32>().unwrap().to_vec()
}

/// Activations `[rows, columns]` that NVFP4 with g = 1 represents exactly: each block has a largest element of 6 times
/// a power of two.
pub fn exact_activations(seed: u64, rows: usize, columns: usize) -> Tensor {
    let mut random = Random::new(seed);
    let mut values = Vec::with_capacity(rows * columns);
    for _ in 0..rows * columns / 16 {
        let scale = [0.5, 1.0, 2.0][random.below(3)];
        let largest = random.below(16);
        values.extend((0..16).map(|index| {
            let code = if index == largest { 7 + 8 * random.below(2) } else { random.below(16) };
            (e2m1(code as u8) * scale) as f32
        }));
    }
    Tensor::from_shape(&[rows, columns], &values).unwrap()
}

/// A row `[1, columns]` of multiples of 1/4 up to 8.
pub fn bias(seed: u64, columns: usize) -> Tensor {
    let mut random = Random::new(seed);
    let values: Vec<f32> = (0..columns).map(|_| random.below(65) as f32 / 4.0 - 8.0).collect();
    Tensor::from_shape(&[1, columns], &values).unwrap()
}

/// Fourfold without a GPU, planned for a GPU.
pub fn fourfold(target: &str) -> Fourfold {
    Fourfold::new(Options::default().target(target).device(DeviceChoice::None), Default::default())
}

/// Prepares a model for a runtime, and runs it once.
pub fn run(runtime: &dyn Runtime, model: &TypedModel, inputs: &[Tensor]) -> TractResult<Vec<Tensor>> {
    let inputs = inputs.iter().map(|input| input.clone().into_tvalue()).collect();
    let outputs = runtime.prepare(model.clone())?.run(inputs)?;
    Ok(outputs.into_iter().map(TValue::into_tensor).collect())
}

pub fn cpu() -> &'static dyn Runtime {
    runtime_for_name("cpu").unwrap().unwrap()
}

/// K of the activations of [`start`].
pub const K: usize = 64;
/// N of the weight of [`start`].
pub const N: usize = 40;

/// A model with activations `[M, K]`, quantized, and the result of `ScaledMm` with a weight of N rows and alpha 1/256.
pub struct Start {
    pub model: TypedModel,
    pub quantized: TVec<OutletId>,
    pub product: OutletId,
}

pub fn start(output: DatumType) -> TractResult<Start> {
    let mut model = TypedModel::default();
    let m = model.symbols.sym("M");
    let x = model.add_source("x", f32::fact(dims![m, K]))?;
    let g = model.add_const("g", tensor0(1f32))?;
    let format = Format::Nvfp4;
    let quantized = model.wire_node("quantize", BlockQuantize { format }, &[x, g])?;
    let weight = Matrix::random(format, 11, N, K);
    let b = model.add_const("w", weight.codes)?;
    let sfb = model.add_const("sf", weight.scales)?;
    let alpha = model.add_const("alpha", tensor0(1f32 / 256.0))?;
    let inputs = [quantized[0], quantized[1], b, sfb, alpha];
    let product = model.wire_node("mm", ScaledMm { format, output }, &inputs)?[0];
    Ok(Start { model, quantized, product })
}

pub fn rewrite(model: &TypedModel) -> TractResult<Report> {
    let mut model = model.clone().into_decluttered()?;
    Ok(fourfold("sm_90a").rewrite(&mut model)?)
}

/// Runs a model on Fourfold and on tract, and returns the values of their first outputs.
pub fn both(model: &TypedModel, rows: usize) -> TractResult<(Vec<f32>, Vec<f32>)> {
    let x = exact_activations(rows as u64 + 50, rows, K);
    let got = run(&fourfold("sm_90a"), model, std::slice::from_ref(&x))?;
    let want = run(cpu(), model, &[x])?;
    assert_eq!(got[0].shape(), want[0].shape());
    Ok((floats(&got[0]), floats(&want[0])))
}
