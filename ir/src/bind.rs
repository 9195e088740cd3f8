//! Binds tensors to a program's inputs by name and finds the values of its symbols.

use std::collections::HashMap;

use crate::module::Module;
use crate::program::Program;
use crate::tensor::Tensor;
use crate::types::{SymbolValues, TensorType};

/// A program's inputs for one run.
#[derive(Clone, Debug)]
pub struct Bound<'a> {
    /// The extents of the program's symbols.
    pub symbols: SymbolValues,
    /// In the order of [`Module::inputs`].
    pub inputs: Vec<&'a Tensor>,
}

/// Why tensors do not fit a program's inputs. Always the caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// An input has no tensor.
    #[error("there is no tensor for the input `%{name}: {ty}`")]
    Missing {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
    },
    /// A tensor's element type or layout is not the input's.
    #[error("`%{name}` is {ty}, but the tensor given for it is {found}")]
    Type {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
        /// What was given.
        found: String,
    },
    /// A tensor's extents cannot be those of the input's type.
    #[error("`%{name}` is {ty}, but the tensor given for it has the shape {found:?}{because}")]
    Shape {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
        /// The shape given.
        found: Vec<usize>,
        /// Which symbol already has another value, if that is why.
        because: String,
    },
    /// No input's shape determines a symbol.
    #[error("no input's shape determines the symbol `{name}`")]
    Undetermined {
        /// The symbol.
        name: String,
    },
}

/// Finds the tensor of each input and the value of each symbol. Tensors that no input names are ignored.
///
/// # Errors
/// The first input, in the order of the signature, whose tensor is missing or does not fit.
pub fn bind<'a>(program: &Program, tensors: &'a HashMap<String, Tensor>) -> Result<Bound<'a>, BindError> {
    let module = program.module();
    let mut inputs = Vec::with_capacity(module.inputs.len());
    for &input in &module.inputs {
        let data = &module.values[input];
        let ty = || module.display_type(&data.ty).to_string();
        let tensor = tensors
            .get(&data.name)
            .ok_or_else(|| BindError::Missing { name: data.name.clone(), ty: ty() })?;
        if tensor.element() != data.ty.element || tensor.layout() != data.ty.layout {
            let layout = tensor.layout().map_or(String::new(), |layout| format!(", {layout}"));
            let found = format!("{}{layout}", tensor.element());
            return Err(BindError::Type { name: data.name.clone(), ty: ty(), found });
        }
        inputs.push(tensor);
    }
    let shapes: Vec<_> = inputs.iter().map(|tensor| tensor.dims()).collect();
    let symbols = solve_symbols(module, &shapes)?;
    Ok(Bound { symbols, inputs })
}

/// Finds the value of each symbol from the shapes of the inputs, in the order of [`Module::inputs`].
///
/// # Errors
/// When a shape does not fit its input's type, or a symbol stays undetermined.
pub fn solve_symbols(module: &Module, shapes: &[&[usize]]) -> Result<SymbolValues, BindError> {
    let mut values = SymbolValues::default();
    // An extent with one unknown symbol determines it; each round settles at least one symbol or is the last.
    let mut progress = true;
    while progress {
        progress = false;
        for (&input, dims) in module.inputs.iter().zip(shapes) {
            for (dim, &extent) in module.ty(input).shape.iter().zip(*dims) {
                let mut unknown =
                    dim.symbols().iter().copied().filter(|symbol| values.get(*symbol).is_none());
                let (Some(symbol), None) = (unknown.next(), unknown.next()) else { continue };
                let known: Option<u64> = dim
                    .symbols()
                    .iter()
                    .filter_map(|symbol| values.get(*symbol))
                    .try_fold(dim.constant(), u64::checked_mul);
                // A zero factor leaves the symbol to another input.
                if let Some(known @ 1..) = known
                    && (extent as u64).is_multiple_of(known)
                {
                    values.set(symbol, extent as u64 / known);
                    progress = true;
                }
            }
        }
    }
    for (&input, dims) in module.inputs.iter().zip(shapes) {
        let data = &module.values[input];
        let fits = data.ty.rank() == dims.len()
            && data.ty.shape.iter().zip(*dims).all(|(dim, &extent)| {
                dim.evaluate(&values).is_none_or(|expected| expected == extent as u64)
                    && (dim.constant() == 0 || (extent as u64).is_multiple_of(dim.constant()))
            });
        if !fits {
            let known: Vec<String> = module
                .symbols
                .iter()
                .filter(|(symbol, _)| data.ty.shape.iter().any(|dim| dim.symbols().contains(symbol)))
                .filter_map(|(symbol, name)| Some(format!("{name} = {}", values.get(symbol)?)))
                .collect();
            let because =
                if known.is_empty() { String::new() } else { format!(", with {}", known.join(", ")) };
            let (name, ty) = (data.name.clone(), module.display_type(&data.ty).to_string());
            return Err(BindError::Shape { name, ty, found: dims.to_vec(), because });
        }
    }
    match module.symbols.iter().find(|(symbol, _)| values.get(*symbol).is_none()) {
        None => Ok(values),
        Some((_, name)) => Err(BindError::Undetermined { name: name.clone() }),
    }
}

/// The extents of a type under these symbol values; `None` when a symbol has no value or an extent is out of range.
pub fn concrete_dims(ty: &TensorType, symbols: &SymbolValues) -> Option<Vec<usize>> {
    ty.shape.iter().map(|dim| usize::try_from(dim.evaluate(symbols)?).ok()).collect()
}
