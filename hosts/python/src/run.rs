//! Calls of a program on tensors of torch.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use fourfold::ir::Value;
use fourfold_capi::abi::{DEVICE_CPU, DataType, ExecuteArgs, TensorDevice, TensorView};

use crate::device;
use crate::error::{Error, check};
use crate::module::{Extents, Module, Operand, Setting, api, module, storage, storage_dims};
use crate::shim::{Place, Tensor};

/// Runs a program, and returns its outputs. Tensors on the host run on the fallback. Tensors on a GPU run there or not
/// at all.
pub fn call(text: &str, operands: Vec<Operand>) -> Result<Vec<Tensor>, Error> {
    call_with(text, operands, None)
}

/// Runs a program whose kernels a file of dispatch tables selects.
pub fn call_with(
    text: &str,
    operands: Vec<Operand>,
    dispatch: Option<Arc<str>>,
) -> Result<Vec<Tensor>, Error> {
    let first = operands.first().ok_or_else(|| Error::argument("a program needs at least one input"))?;
    let place = first.tensor.place()?;
    let compiled = module(text, &Setting { place, dispatch })?;
    let operands = operands
        .into_iter()
        .map(|operand| Ok(Operand { tensor: operand.tensor.contiguous()?, dims: operand.dims }))
        .collect::<Result<Vec<Operand>, Error>>()?;
    let extents = compiled.extents(&operands)?;
    let outputs = allocate(&compiled, &extents)?;
    match place {
        Place::Host => on_host(&compiled, &extents, &operands, &outputs)?,
        Place::Cuda(ordinal) => device::launch(&compiled, &extents, &operands, &outputs, ordinal)?,
    }
    Ok(outputs)
}

fn allocate(compiled: &Module, extents: &Extents) -> Result<Vec<Tensor>, Error> {
    let module = compiled.program.module();
    (module.outputs.iter().zip(&extents.outputs))
        .map(|(value, dims)| {
            let ty = module.ty(*value);
            Tensor::empty(&storage_dims(ty, dims), storage(ty.element), compiled.place)
        })
        .collect()
}

/// A tensor in the form of the C interface. FP4 has one element for each code.
fn view(compiled: &Module, value: Value, tensor: &Tensor, shape: &mut [i64]) -> Result<TensorView, Error> {
    let ty = compiled.program.module().ty(value);
    let (code, bits, lanes) = tensor.element()?.dlpack();
    let is_packed = ty.element == fourfold::ir::ElementType::F4E2M1FN;
    if let (true, Some(last)) = (is_packed, shape.last_mut()) {
        *last /= 2;
    }
    Ok(TensorView {
        data: tensor.address()?,
        device: TensorDevice { kind: DEVICE_CPU, id: 0 },
        ndim: i32::try_from(shape.len()).unwrap_or(i32::MAX),
        dtype: DataType { code, bits, lanes },
        shape: shape.as_mut_ptr(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    })
}

fn shapes(dims: &[Vec<usize>]) -> Vec<Vec<i64>> {
    let one = |dims: &Vec<usize>| dims.iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect();
    dims.iter().map(one).collect()
}

fn on_host(
    compiled: &Module,
    extents: &Extents,
    operands: &[Operand],
    outputs: &[Tensor],
) -> Result<(), Error> {
    let module = compiled.program.module();
    let (mut input_shapes, mut output_shapes) = (shapes(&extents.inputs), shapes(&extents.outputs));
    let inputs = (module.inputs.iter().zip(operands).zip(&mut input_shapes))
        .map(|((value, operand), shape)| view(compiled, *value, &operand.tensor, shape))
        .collect::<Result<Vec<TensorView>, Error>>()?;
    let results = (module.outputs.iter().zip(outputs).zip(&mut output_shapes))
        .map(|((value, tensor), shape)| view(compiled, *value, tensor, shape))
        .collect::<Result<Vec<TensorView>, Error>>()?;
    let symbols = compiled.symbols(extents);
    let args = ExecuteArgs {
        struct_size: size_of::<ExecuteArgs>(),
        ext: ptr::null_mut(),
        module: compiled.handle,
        inputs: inputs.as_ptr(),
        outputs: results.as_ptr(),
        input_count: inputs.len(),
        output_count: results.len(),
        stream: ptr::null_mut::<c_void>(),
        symbols: symbols.as_ptr(),
        symbol_count: symbols.len(),
    };
    // SAFETY: the struct and the tensors are live. The sizes of their memory were checked.
    unsafe { check(api(), (api().execute)(&raw const args)) }
}
