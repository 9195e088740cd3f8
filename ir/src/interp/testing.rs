//! Helpers of the interpreter's tests: build and run programs of one op.

use std::collections::HashMap;

use super::{InterpretError, interpret};
use crate::bind::bind;
use crate::module::Module;
use crate::ops::OpKind;
use crate::tensor::Tensor;
use crate::types::{Dim, ElementType, ScaleLayout, TensorType};
use crate::verify::verify;

/// A type with known extents.
pub(super) fn ty(dims: &[usize], element: ElementType) -> TensorType {
    TensorType::new(dims.iter().map(|dim| Dim::fixed(*dim as u64)).collect(), element)
}

/// A scale type with known extents.
pub(super) fn scales_ty(dims: &[usize], element: ElementType, layout: ScaleLayout) -> TensorType {
    TensorType { layout: Some(layout), ..ty(dims, element) }
}

/// A tensor of these values.
pub(super) fn tensor(element: ElementType, dims: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(element, dims.to_vec(), None, values).unwrap()
}

/// An f32 tensor of these values.
pub(super) fn f32s(dims: &[usize], values: &[f64]) -> Tensor {
    tensor(ElementType::F32, dims, values)
}

/// Runs a program of one op on these operands and returns its results.
#[track_caller]
pub(super) fn run_all(kind: OpKind, operands: &[&Tensor], results: &[TensorType]) -> Vec<Tensor> {
    try_run(kind, operands, results).unwrap()
}

/// Runs a program of one op with one result.
#[track_caller]
pub(super) fn run(kind: OpKind, operands: &[&Tensor], result: TensorType) -> Tensor {
    run_all(kind, operands, &[result]).remove(0)
}

/// Runs a program of one op on these operands.
pub(super) fn try_run(
    kind: OpKind,
    operands: &[&Tensor],
    results: &[TensorType],
) -> Result<Vec<Tensor>, InterpretError> {
    let mut module = Module::new("main");
    let mut tensors = HashMap::new();
    let inputs: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(index, operand)| {
            let name = format!("x{index}");
            tensors.insert(name.clone(), (*operand).clone());
            let ty = TensorType { layout: operand.layout(), ..ty(operand.dims(), operand.element()) };
            module.push_input(name, ty, false)
        })
        .collect();
    let named = results.iter().enumerate().map(|(index, ty)| (format!("y{index}"), ty.clone())).collect();
    let op = module.push_op(kind, inputs, named);
    module.outputs.clone_from(&module.ops[op].results);
    let program = verify(module).unwrap_or_else(|invalid| panic!("{:?}", invalid.errors));
    let bound = bind(&program, &tensors).unwrap();
    Ok(interpret(&program, &bound)?.split_off(operands.len()))
}
