//! A device that computes a row program in f32: 32 threads per row, each of which sums its elements in ascending order,
//! then pairs of threads. Functions have a given relative error.

use fourfold_ir::numeric::{self, MxElement};
use fourfold_ir::{BinaryKind, ReduceKind, scalar};

use super::*;
use crate::precision::is_correctly_rounded;

/// Returns the values that the device writes for a case. Functions are off by this relative error.
pub(super) fn computed(case: &Case, error: f64) -> Written {
    let Plan::Row(plan) = &case.plan else { panic!("a row kernel") };
    case.with_ops(|run| written_by(&run, plan, error))
}

/// Returns the values that the device writes for a segment.
pub(super) fn written_by(run: &SegmentOps<'_>, plan: &RowPlan, error: f64) -> Written {
    let extent = |dim: &Dim| dim.evaluate(run.symbols).expect("an extent") as usize;
    let (rows, columns) = (extent(&plan.batch) * extent(&plan.m), extent(&plan.k));
    let operands: Vec<Operand> = plan
        .operands
        .iter()
        .map(|operand| Operand {
            values: run.operand(operand.value).expect("an operand").to_f64(),
            repeat: operand.repeat.as_ref().map(|repeat| [extent(&repeat.each), extent(&repeat.rows)]),
        })
        .collect();
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); plan.program.outputs.len()];
    for row in 0..rows {
        let device = Row { plan, operands: &operands, row, columns, error };
        let steps = device.steps();
        for (output, found) in plan.program.outputs.iter().zip(&mut found) {
            let count = if plan.program.shape(output.of) == RowShape::Column { 1 } else { columns };
            found.extend((0..count).map(|column| device.at(&steps, output.of, column)));
        }
    }
    let mut values = plan.written.iter();
    let mut all = Written::new();
    for (output, found) in plan.program.outputs.iter().zip(&found) {
        let value = *values.next().expect("a value");
        let (element, dims, layout) = type_of(run, value);
        match output.kind {
            RowOutputKind::Value => {
                let written = Tensor::from_f64(element, dims, layout, found).expect("the shape");
                all.insert(value, written);
            }
            RowOutputKind::Quantized { .. } => {
                let scales = *values.next().expect("scales");
                let (codes, scale_codes) = quantized(output, &operands, found);
                let of = |(element, dims, layout), codes| {
                    Tensor::from_codes(element, dims, layout, codes).expect("the shape")
                };
                all.insert(value, of((element, dims, layout), codes));
                all.insert(scales, of(type_of(run, scales), scale_codes));
            }
        }
    }
    all
}

fn type_of(run: &SegmentOps<'_>, value: Value) -> (ElementType, Vec<usize>, Option<ScaleLayout>) {
    let ty = run.program.module().ty(value);
    (ty.element, bind::concrete_dims(ty, run.symbols).expect("extents"), ty.layout)
}

fn quantized(output: &RowOutput, operands: &[Operand], values: &[f64]) -> (Vec<u8>, Vec<u8>) {
    let RowOutputKind::Quantized { format, global, scale_rounding, formula, .. } = output.kind else {
        panic!("blocks")
    };
    let global = global.map_or(1.0, |operand| operands[operand].values[0] as f32);
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let element = MxElement::of(format.element).expect("block data");
    let mut codes = vec![0; values.len()];
    let blocks = values.chunks(format.block as usize).zip(codes.chunks_mut(format.block as usize));
    let scales = blocks.map(|(values, codes)| match scale_rounding {
        None => numeric::quantize_nvfp4_block_by(formula, values, global, codes),
        Some(rounding) => numeric::quantize_mx_block_by((rounding, formula.mx), values, element, codes),
    });
    let scales = scales.collect();
    (codes, scales)
}

struct Operand {
    values: Vec<f64>,
    repeat: Option<[usize; 2]>,
}

/// One row of a kernel.
struct Row<'a> {
    plan: &'a RowPlan,
    operands: &'a [Operand],
    row: usize,
    columns: usize,
    error: f64,
}

impl Row<'_> {
    fn at(&self, steps: &[Vec<f64>], of: RowRef, column: usize) -> f64 {
        match of {
            RowRef::Step(step) => steps[step][if steps[step].len() == 1 { 0 } else { column }],
            RowRef::Operand(operand) => {
                let shape = self.plan.program.operands[operand].shape;
                let Operand { values, repeat } = &self.operands[operand];
                let row = repeat.map_or(self.row, |[each, rows]| self.row / each % rows);
                values[match shape {
                    RowShape::Scalar => 0,
                    RowShape::Row => column,
                    RowShape::Column => row,
                    RowShape::Matrix => row * self.columns + column,
                    RowShape::Scales { block, .. } => {
                        row * (self.columns / block as usize) + column / block as usize
                    }
                }]
            }
        }
    }

    fn steps(&self) -> Vec<Vec<f64>> {
        let mut steps: Vec<Vec<f64>> = Vec::new();
        for step in &self.plan.program.steps {
            let count = if matches!(step.shape, RowShape::Row | RowShape::Matrix) { self.columns } else { 1 };
            let computed = (0..count).map(|column| self.step(&steps, step, column)).collect();
            steps.push(computed);
        }
        steps
    }

    fn step(&self, steps: &[Vec<f64>], step: &RowStep, column: usize) -> f64 {
        let x = |index: usize| self.at(steps, step.operands[index], column);
        let round = |x: f64| scalar::round_to(step.element, scalar::round_to(F32, x));
        let number = |bits: u32| match step.element {
            ElementType::I32 => f64::from(bits as i32),
            ElementType::I1 => f64::from(bits),
            _ => f64::from(f32::from_bits(bits)),
        };
        let integers = || [x(0) as i32, x(1) as i32];
        match step.kind {
            RowStepKind::Constant(bits) => number(bits),
            RowStepKind::Unary(kind) => {
                let off = if is_correctly_rounded(kind) { 0.0 } else { self.error };
                round(scalar::unary(kind, x(0)) * (1.0 + off))
            }
            RowStepKind::Binary(kind) if step.element == ElementType::I32 => {
                let [a, b] = integers();
                f64::from(scalar::integer(kind, a, b).expect("integers have this function"))
            }
            RowStepKind::Binary(kind) => {
                let off = if kind == BinaryKind::Pow { self.error } else { 0.0 };
                round(scalar::binary(kind, x(0), x(1)) * (1.0 + off))
            }
            RowStepKind::Bitwise(kind) => {
                let [a, b] = integers();
                f64::from(scalar::bitwise(kind, a, b))
            }
            RowStepKind::Bitcast => match (self.plan.program.element(step.operands[0]), step.element) {
                (F32, _) => f64::from(scalar::bits_of(x(0) as f32)),
                (ElementType::I32, F32) => f64::from(scalar::of_bits(x(0) as i32)),
                (ElementType::I32, _) => f64::from(numeric::e8m0_to_f32(x(0) as i32 as u8)),
                (from, to) => panic!("no bitcast from {from} to {to}"),
            },
            RowStepKind::Dequantize => {
                let global = step.operands.get(2).map_or(1.0, |_| x(2));
                scalar::round_to(step.element, x(0) * x(1) * global)
            }
            RowStepKind::Clamp { lower, upper } => scalar::clamp(x(0), number(lower), number(upper)),
            RowStepKind::Compare(predicate) => f64::from(u8::from(scalar::compare(predicate, x(0), x(1)))),
            RowStepKind::Select => x(if x(0) == 0.0 { 2 } else { 1 }),
            RowStepKind::Convert if step.element == ElementType::I1 => x(0),
            RowStepKind::Convert => scalar::round_to(step.element, x(0)),
            RowStepKind::Reduce(kind) => {
                let elements: Vec<f64> =
                    (0..self.columns).map(|column| self.at(steps, step.operands[0], column)).collect();
                round(reduced(kind, &elements))
            }
        }
    }
}

const F32: ElementType = ElementType::F32;

/// Combines a row in the order of a warp.
fn reduced(kind: ReduceKind, elements: &[f64]) -> f64 {
    let (binary, nothing) = match kind {
        ReduceKind::Sum | ReduceKind::Mean => (BinaryKind::Add, 0.0),
        ReduceKind::Max => (BinaryKind::Max, f64::NEG_INFINITY),
        ReduceKind::Min => (BinaryKind::Min, f64::INFINITY),
        ReduceKind::Amax => (BinaryKind::Max, 0.0),
    };
    let of = |x: f64| if kind == ReduceKind::Amax { x.abs() } else { x };
    let combine = |a, b| scalar::round_to(F32, scalar::binary(binary, a, b));
    let of_thread =
        |thread: usize| elements.iter().skip(thread).step_by(32).fold(nothing, |a, b| combine(a, of(*b)));
    let mut parts: Vec<f64> = (0..32).map(of_thread).collect();
    while parts.len() > 1 {
        let half = parts.len() / 2;
        parts = (0..half).map(|part| combine(parts[part], parts[part + half])).collect();
    }
    if kind == ReduceKind::Mean {
        let reciprocal = scalar::round_to(F32, 1.0 / elements.len() as f64);
        return scalar::round_to(F32, parts[0] * reciprocal);
    }
    parts[0]
}
