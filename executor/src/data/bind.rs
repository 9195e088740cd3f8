//! Binds a data file's tensors to a program's inputs.

use std::collections::HashMap;
use std::path::Path;

use fourfold_ir::bind::{concrete_dims, solve_symbols};
use fourfold_ir::{BindError, Dim, Module, ScaleLayout, SymbolValues, Tensor, TensorType, Value};

use super::error::{DataError, TensorDataError};
use super::raw::RawTensor;

/// Takes the tensors named as inputs. Blocked scales come second: their stored shape is padded, so their extents
/// follow from the other inputs.
pub(super) fn bind_inputs(
    path: &Path,
    module: &Module,
    given: &[(String, u64)],
    stored: &mut HashMap<String, RawTensor>,
) -> Result<HashMap<String, Tensor>, DataError> {
    let is_blocked = |value: Value| module.ty(value).layout == Some(ScaleLayout::Blocked);
    let mut inputs = HashMap::new();
    let mut blocked = Vec::new();
    for &input in &module.inputs {
        let name = module.name_of(input);
        let Some(mut tensor) = stored.remove(name) else { continue };
        if is_blocked(input) {
            blocked.push((input, tensor));
            continue;
        }
        let ty = module.ty(input);
        // Checkpoints store a scalar as rank 0 or as one element.
        match (ty.rank(), tensor.dims.as_slice()) {
            (0, [1]) => tensor.dims.clear(),
            (1, []) => tensor.dims.push(1),
            _ => {}
        }
        let tensor = dims_of_type(module, ty, &tensor)
            .and_then(|dims| tensor.into_type(ty.element, &dims, ty.layout))
            .map_err(|source| misfit(path, module, input, source))?;
        inputs.insert(name.to_owned(), tensor);
    }
    if blocked.is_empty() {
        return Ok(inputs);
    }
    let symbols = symbols_of(path, module, given, &inputs)?;
    for (input, tensor) in blocked {
        let ty = module.ty(input);
        let dims = concrete_dims(ty, &symbols);
        let tensor = dims
            .ok_or_else(|| TensorDataError::TooLarge { shape: tensor.dims.clone() })
            .and_then(|dims| tensor.into_type(ty.element, &dims, ty.layout))
            .map_err(|source| misfit(path, module, input, source))?;
        inputs.insert(module.name_of(input).to_owned(), tensor);
    }
    Ok(inputs)
}

/// The shape of a stored tensor in elements of a type, if it fits the type.
fn dims_of_type(module: &Module, ty: &TensorType, tensor: &RawTensor) -> Result<Vec<usize>, TensorDataError> {
    let dims = tensor.logical_dims(ty.element)?;
    let can_be = |(dim, extent): (&Dim, &usize)| {
        let extent = *extent as u64;
        match dim.as_fixed() {
            Some(fixed) => fixed == extent,
            // A symbolic extent's constant factor is not zero, so the division is valid.
            None => extent.is_multiple_of(dim.constant()),
        }
    };
    if dims.len() == ty.rank() && ty.shape.iter().zip(&dims).all(can_be) {
        return Ok(dims);
    }
    let fixed: Option<Vec<usize>> =
        ty.shape.iter().map(|dim| usize::try_from(dim.as_fixed()?).ok()).collect();
    Err(match fixed {
        Some(expected) => TensorDataError::Shape { expected, found: dims },
        None => {
            let expected: Vec<String> =
                ty.shape.iter().map(|dim| module.display_dim(dim).to_string()).collect();
            TensorDataError::ShapePattern { expected: expected.join(", "), found: dims }
        }
    })
}

/// Solves the symbols from given values and the inputs bound so far.
fn symbols_of(
    path: &Path,
    module: &Module,
    given: &[(String, u64)],
    inputs: &HashMap<String, Tensor>,
) -> Result<SymbolValues, DataError> {
    // A module with only the known inputs, which is all that solving needs.
    let mut known = Module::new(module.name.clone());
    known.symbols = module.symbols.clone();
    let mut shapes = Vec::new();
    for &input in &module.inputs {
        if let Some(tensor) = inputs.get(module.name_of(input)) {
            known.push_input(module.name_of(input), module.ty(input).clone(), false);
            shapes.push(tensor.dims());
        }
    }
    let fault = |source: BindError| {
        let missing = module.inputs.iter().copied().find(|&input| {
            module.ty(input).layout != Some(ScaleLayout::Blocked)
                && !inputs.contains_key(module.name_of(input))
        });
        match (&source, missing) {
            (BindError::Undetermined { .. }, Some(input)) => DataError::MissingInput {
                path: path.to_owned(),
                input: module.name_of(input).to_owned(),
                ty: module.display_type(module.ty(input)).to_string(),
            },
            _ => DataError::Bind { path: path.to_owned(), source: Box::new(source) },
        }
    };
    let symbols = solve_symbols(&known, &shapes, given).map_err(fault)?;
    let mut used = module.inputs.iter().flat_map(|input| &module.ty(*input).shape).flat_map(Dim::symbols);
    match used.find(|symbol| symbols.get(**symbol).is_none()) {
        None => Ok(symbols),
        Some(symbol) => Err(fault(BindError::Undetermined { name: module.symbols[*symbol].clone() })),
    }
}

fn misfit(path: &Path, module: &Module, input: Value, source: TensorDataError) -> DataError {
    DataError::Input {
        path: path.to_owned(),
        tensor: module.name_of(input).to_owned(),
        ty: module.display_type(module.ty(input)).to_string(),
        source: Box::new(source),
    }
}
