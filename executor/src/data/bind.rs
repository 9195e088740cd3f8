//! Binds tensors to a program's inputs.

use std::collections::HashMap;
use std::path::PathBuf;

use fourfold_ir::bind::{concrete_dims, solve_symbols};
use fourfold_ir::{BindError, Dim, Module, ScaleLayout, SymbolValues, Tensor, Value};

use super::error::{DataError, TensorDataError};
use super::place::Place;

/// Reads the tensors of inputs, in addition to those in `drawn`. Those whose extents follow from the other inputs come second: blocked scales, whose
/// stored shape is padded, and ranges of bytes, which have no shape. `files` are the data files, for errors.
pub(super) fn bind_inputs(
    files: &[PathBuf],
    module: &Module,
    given: &[(String, u64)],
    places: Vec<(Value, Place<'_>)>,
    drawn: HashMap<String, Tensor>,
) -> Result<HashMap<String, Tensor>, DataError> {
    let mut inputs = drawn;
    let mut later = Vec::new();
    for (input, place) in places {
        let mut fitting = place.fit(module, input)?;
        match fitting.dims.take() {
            Some(dims) => {
                inputs.insert(module.name_of(input).to_owned(), fitting.read(module, dims)?);
            }
            None => later.push(fitting),
        }
    }
    let needs_symbols = |input: Value| {
        let ty = module.ty(input);
        ty.layout == Some(ScaleLayout::Blocked) || ty.shape.iter().any(|dim| dim.as_fixed().is_none())
    };
    if later.is_empty() {
        return Ok(inputs);
    }
    let symbols = match later.iter().any(|fitting| needs_symbols(fitting.input)) {
        true => {
            let is_found = |input| {
                inputs.contains_key(module.name_of(input)) || later.iter().any(|it| it.input == input)
            };
            symbols_of(files, module, given, &inputs, &is_found)?
        }
        false => SymbolValues::default(),
    };
    for fitting in later {
        let input = fitting.input;
        let too_large = || TensorDataError::TooLarge { shape: fitting.stored_shape() };
        let dims = concrete_dims(module.ty(input), &symbols);
        let dims = dims.ok_or_else(|| fitting.place.misfit(module, input, too_large()))?;
        inputs.insert(module.name_of(input).to_owned(), fitting.read(module, dims)?);
    }
    Ok(inputs)
}

/// Solves the symbols from given values and the inputs bound so far.
fn symbols_of(
    files: &[PathBuf],
    module: &Module,
    given: &[(String, u64)],
    inputs: &HashMap<String, Tensor>,
    is_found: &dyn Fn(Value) -> bool,
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
        let missing = module
            .inputs
            .iter()
            .copied()
            .find(|&input| module.ty(input).layout != Some(ScaleLayout::Blocked) && !is_found(input));
        match (&source, missing) {
            (BindError::Undetermined { .. }, Some(input)) => DataError::MissingInput {
                files: files.to_vec(),
                input: module.name_of(input).to_owned(),
                ty: module.display_type(module.ty(input)).to_string(),
            },
            _ => DataError::Bind { files: files.to_vec(), source: Box::new(source) },
        }
    };
    let symbols = solve_symbols(&known, &shapes, given).map_err(fault)?;
    let mut used = module.inputs.iter().flat_map(|input| &module.ty(*input).shape).flat_map(Dim::symbols);
    match used.find(|symbol| symbols.get(**symbol).is_none()) {
        None => Ok(symbols),
        Some(symbol) => Err(fault(BindError::Undetermined { name: module.symbols[*symbol].clone() })),
    }
}
