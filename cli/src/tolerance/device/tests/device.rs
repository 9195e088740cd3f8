//! A device that computes a row program in f32: 32 threads per row, each of which sums its elements in ascending order,
//! then pairs of threads. Functions are a given number of ulp off.

use fourfold_ir::{BinaryKind, ReduceKind, numeric, scalar};

use super::*;
use crate::precision::is_correctly_rounded;

/// Returns the values that the device writes. Functions are off by this relative error.
pub(super) fn computed(case: &Case, error: f64) -> Written {
    let Plan::Row(plan) = &case.plan else { panic!("a row kernel") };
    case.with_ops(|run| {
        let extent = |dim: &Dim| dim.evaluate(run.symbols).expect("an extent") as usize;
        let (rows, columns) = (extent(&plan.batch) * extent(&plan.m), extent(&plan.k));
        let operands: Vec<Vec<f64>> = plan
            .operands
            .iter()
            .map(|operand| run.operand(operand.value).expect("an operand").to_f64())
            .collect();
        let mut found: Vec<Vec<f64>> = vec![Vec::new(); plan.program.outputs.len()];
        for row in 0..rows {
            let steps = steps_of_row(plan, &operands, (row, columns), error);
            for (output, found) in plan.program.outputs.iter().zip(&mut found) {
                let RowRef::Step(step) = output.of else { panic!("a step") };
                found.extend(&steps[step]);
            }
        }
        let written = plan.program.outputs.iter().zip(&found);
        let mut values = plan.written.iter();
        let mut all = Written::new();
        for (output, found) in written {
            let value = *values.next().expect("a value");
            let ty = run.program.module().ty(value);
            let dims = bind::concrete_dims(ty, run.symbols).expect("extents");
            match output.kind {
                RowOutputKind::Value => {
                    all.insert(value, tensor(ty.element, &dims, found));
                }
                RowOutputKind::Quantized { global, .. } => {
                    let global = global.map_or(1.0, |operand| operands[operand][0] as f32);
                    let scales = *values.next().expect("scales");
                    let (codes, scale_codes) = quantized(found, global);
                    let ty = run.program.module().ty(scales);
                    let scale_dims = bind::concrete_dims(ty, run.symbols).expect("extents");
                    let of = |element, dims, layout, codes| {
                        Tensor::from_codes(element, dims, layout, codes).expect("the shape")
                    };
                    all.insert(value, of(ElementType::F4E2M1FN, dims, None, codes));
                    all.insert(scales, of(ty.element, scale_dims, ty.layout, scale_codes));
                }
            }
        }
        all
    })
}

fn quantized(values: &[f64], global: f32) -> (Vec<u8>, Vec<u8>) {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let mut codes = vec![0; values.len()];
    let blocks = values.chunks(16).zip(codes.chunks_mut(16));
    let scales = blocks.map(|(values, codes)| numeric::quantize_nvfp4_block(values, global, codes)).collect();
    (codes, scales)
}

fn steps_of_row(
    plan: &RowPlan,
    operands: &[Vec<f64>],
    (row, columns): (usize, usize),
    error: f64,
) -> Vec<Vec<f64>> {
    let program = &plan.program;
    let mut steps: Vec<Vec<f64>> = Vec::new();
    for step in &program.steps {
        let at = |of: RowRef, column: usize| match of {
            RowRef::Step(step) => steps[step][if steps[step].len() == 1 { 0 } else { column }],
            RowRef::Operand(operand) => {
                operands[operand][match program.operands[operand].shape {
                    RowShape::Scalar => 0,
                    RowShape::Row => column,
                    RowShape::Column => row,
                    _ => row * columns + column,
                }]
            }
        };
        let count = if step.shape == RowShape::Matrix { columns } else { 1 };
        let round = |x: f64| scalar::round_to(step.element, scalar::round_to(ElementType::F32, x));
        let value = |column: usize| {
            let x = |index: usize| at(step.operands[index], column);
            match step.kind {
                RowStepKind::Constant(bits) => f64::from(f32::from_bits(bits)),
                RowStepKind::Unary(kind) => {
                    let off = if is_correctly_rounded(kind) { 0.0 } else { error };
                    round(scalar::unary(kind, x(0)) * (1.0 + off))
                }
                RowStepKind::Binary(kind) => round(scalar::binary(kind, x(0), x(1))),
                RowStepKind::Convert => round(x(0)),
                RowStepKind::Reduce(kind) => {
                    let elements: Vec<f64> =
                        (0..columns).map(|column| at(step.operands[0], column)).collect();
                    round(reduced(kind, &elements))
                }
                other => panic!("{other:?} is not part of these tests"),
            }
        };
        let computed = (0..count).map(value).collect();
        steps.push(computed);
    }
    steps
}

/// Combines a row in the order of a warp.
fn reduced(kind: ReduceKind, elements: &[f64]) -> f64 {
    let (binary, nothing) = match kind {
        ReduceKind::Sum | ReduceKind::Mean => (BinaryKind::Add, 0.0),
        ReduceKind::Max => (BinaryKind::Max, f64::NEG_INFINITY),
        ReduceKind::Min => (BinaryKind::Min, f64::INFINITY),
        ReduceKind::Amax => (BinaryKind::Max, 0.0),
    };
    let of = |x: f64| if kind == ReduceKind::Amax { x.abs() } else { x };
    let combine = |a, b| scalar::round_to(ElementType::F32, scalar::binary(binary, a, b));
    let of_thread =
        |thread: usize| elements.iter().skip(thread).step_by(32).fold(nothing, |a, b| combine(a, of(*b)));
    let mut parts: Vec<f64> = (0..32).map(of_thread).collect();
    while parts.len() > 1 {
        let half = parts.len() / 2;
        parts = (0..half).map(|part| combine(parts[part], parts[part + half])).collect();
    }
    if kind == ReduceKind::Mean {
        let reciprocal = scalar::round_to(ElementType::F32, 1.0 / elements.len() as f64);
        return scalar::round_to(ElementType::F32, parts[0] * reciprocal);
    }
    parts[0]
}
