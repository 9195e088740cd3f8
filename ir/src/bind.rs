//! Binds tensors to a program's inputs by name and solves for the values of its symbols.

use std::collections::HashMap;

use crate::module::Module;
use crate::program::Program;
use crate::tensor::Tensor;
use crate::types::{Dim, SymbolValues, TensorType};

/// A program's inputs for one run.
#[derive(Clone, Debug)]
pub struct Bound<'a> {
    /// The extents of the program's symbols.
    pub symbols: SymbolValues,
    /// The tensors of the inputs, in the order of [`Module::inputs`].
    pub inputs: Vec<&'a Tensor>,
}

/// An error from binding tensors to a program's inputs. The caller is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// An input has no tensor.
    #[error("no tensor is given for the input `%{name}: {ty}`")]
    Missing {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
    },
    /// A tensor's element type or layout differs from the input's.
    #[error("`%{name}` is {ty}, but the tensor given for it is {found}")]
    Type {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
        /// Element type and layout of the tensor.
        found: String,
    },
    /// A tensor's extents do not match the shape of the input's type.
    #[error("`%{name}` is {ty}, but the tensor given for it has the shape {found:?}{because}")]
    Shape {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
        /// The shape given.
        found: Vec<usize>,
        /// The known values of the shape's symbols, as `, with M = 3`; empty without any.
        because: String,
    },
    /// No input's shape determines a symbol.
    #[error("no given shape determines the symbol `{name}`")]
    Undetermined {
        /// The symbol.
        name: String,
    },
    /// A value is given for a symbol that is not in the program.
    #[error("the program has no symbol `{name}`; {known}")]
    UnknownSymbol {
        /// The name given.
        name: String,
        /// The program's symbols, as a phrase for the message.
        known: String,
    },
    /// Two values are given for one symbol.
    #[error("the symbol `{name}` is given as {first} and as {second}")]
    GivenTwice {
        /// The symbol.
        name: String,
        /// A value.
        first: u64,
        /// Another value.
        second: u64,
    },
}

/// Finds the tensor of each input and the value of each symbol. Ignores tensors whose names match no input.
///
/// # Errors
/// Reports the first input, in signature order, whose tensor is missing or has another element type or layout.
/// If there is none, fails as [`solve_symbols`] does.
pub fn bind<'a>(program: &Program, tensors: &'a HashMap<String, Tensor>) -> Result<Bound<'a>, BindError> {
    bind_given(program, tensors, &[])
}

/// Binds like [`bind`], with the values of some symbols given by name. No shape determines symbols that occur only
/// in a product, such as `B*S`.
///
/// # Errors
/// Fails as [`bind`] and [`solve_symbols`] do.
pub fn bind_given<'a>(
    program: &Program,
    tensors: &'a HashMap<String, Tensor>,
    given: &[(String, u64)],
) -> Result<Bound<'a>, BindError> {
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
    let symbols = solve_symbols(module, &shapes, given)?;
    Ok(Bound { symbols, inputs })
}

/// Solves for the value of each symbol, given the shapes of the inputs in the order of [`Module::inputs`]. The
/// symbols in `given` start with those values. An extent with one unknown symbol determines it, unless the product
/// of the known factors is zero.
///
/// # Errors
/// Checks in this order, and reports the first failure:
/// 1. each name in `given` is a symbol and has one value;
/// 2. each input has a shape, and it fits the input's type;
/// 3. each symbol is determined.
pub fn solve_symbols(
    module: &Module,
    shapes: &[&[usize]],
    given: &[(String, u64)],
) -> Result<SymbolValues, BindError> {
    let mut values = given_values(module, given)?;
    // Terminates: each round but the last determines at least one symbol.
    let mut progress = true;
    while progress {
        progress = false;
        for (&input, dims) in module.inputs.iter().zip(shapes) {
            let shape = &module.ty(input).shape;
            // A shape of the wrong rank determines nothing, so that the error names this input and no other.
            let dims = if shape.len() == dims.len() { *dims } else { &[] };
            for (dim, &extent) in shape.iter().zip(dims) {
                let mut unknown =
                    dim.symbols().iter().copied().filter(|symbol| values.get(*symbol).is_none());
                let (Some(symbol), None) = (unknown.next(), unknown.next()) else { continue };
                // With a zero factor any value would fit: another input must determine the symbol.
                if let Some(known @ 1..) = known_factor(dim, &values)
                    && (extent as u64).is_multiple_of(known)
                {
                    values.set(symbol, extent as u64 / known);
                    progress = true;
                }
            }
        }
    }
    for (index, &input) in module.inputs.iter().enumerate() {
        let data = &module.values[input];
        let (name, ty) = (|| data.name.clone(), || module.display_type(&data.ty).to_string());
        let Some(&dims) = shapes.get(index) else {
            return Err(BindError::Missing { name: name(), ty: ty() });
        };
        let all_fit = data.ty.rank() == dims.len()
            && data.ty.shape.iter().zip(dims).all(|(dim, extent)| fits(dim, *extent as u64, &values));
        if !all_fit {
            let known: Vec<String> = module
                .symbols
                .iter()
                .filter(|(symbol, _)| data.ty.shape.iter().any(|dim| dim.symbols().contains(symbol)))
                .filter_map(|(symbol, name)| Some(format!("{name} = {}", values.get(symbol)?)))
                .collect();
            let because =
                if known.is_empty() { String::new() } else { format!(", with {}", known.join(", ")) };
            return Err(BindError::Shape { name: name(), ty: ty(), found: dims.to_vec(), because });
        }
    }
    // Other symbols are unused: the verifier rejects a symbol that no input's shape contains.
    let used = module.inputs.iter().flat_map(|input| &module.ty(*input).shape).flat_map(Dim::symbols);
    match used.copied().find(|symbol| values.get(*symbol).is_none()) {
        None => Ok(values),
        Some(symbol) => Err(BindError::Undetermined { name: module.symbols[symbol].clone() }),
    }
}

/// The values of all symbols, given by name.
///
/// # Errors
/// When a name in `given` is not a symbol or has two values, or a symbol is not given.
pub fn symbols_given(module: &Module, given: &[(String, u64)]) -> Result<SymbolValues, BindError> {
    let values = given_values(module, given)?;
    match module.symbols.iter().find(|(symbol, _)| values.get(*symbol).is_none()) {
        None => Ok(values),
        Some((_, name)) => Err(BindError::Undetermined { name: name.clone() }),
    }
}

fn given_values(module: &Module, given: &[(String, u64)]) -> Result<SymbolValues, BindError> {
    let mut values = SymbolValues::default();
    for (name, value) in given {
        let Some((symbol, _)) = module.symbols.iter().find(|(_, known)| *known == name) else {
            let known: Vec<String> = module.symbols.values().map(|name| format!("`{name}`")).collect();
            let known = if known.is_empty() {
                "it has no symbols".to_owned()
            } else {
                format!("it has {}", known.join(", "))
            };
            return Err(BindError::UnknownSymbol { name: name.clone(), known });
        };
        match values.get(symbol) {
            Some(first) if first != *value => {
                return Err(BindError::GivenTwice { name: name.clone(), first, second: *value });
            }
            _ => values.set(symbol, *value),
        }
    }
    Ok(values)
}

/// Evaluates the extents of a type under these symbol values. `None` if a symbol has no value or an extent exceeds
/// `usize`.
pub fn concrete_dims(ty: &TensorType, symbols: &SymbolValues) -> Option<Vec<usize>> {
    ty.shape.iter().map(|dim| usize::try_from(dim.evaluate(symbols)?).ok()).collect()
}

/// Returns true if a run-time extent is consistent with `dim` and the symbols known so far.
fn fits(dim: &Dim, extent: u64, values: &SymbolValues) -> bool {
    match known_factor(dim, values) {
        None => false,
        Some(0) => extent == 0,
        Some(known) if dim.symbols().iter().all(|symbol| values.get(*symbol).is_some()) => extent == known,
        Some(known) => extent.is_multiple_of(known),
    }
}

/// The product of an extent's constant and known symbols; `None` if it exceeds 64 bits.
fn known_factor(dim: &Dim, values: &SymbolValues) -> Option<u64> {
    let mut known = dim.symbols().iter().filter_map(|symbol| values.get(*symbol));
    if known.clone().any(|factor| factor == 0) {
        return Some(0);
    }
    known.try_fold(dim.constant(), u64::checked_mul)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Module;
    use crate::types::{ElementType, ScaleLayout};
    use crate::verify::verify;

    /// A module with f32 inputs `a`, `b`, ...; an extent is a product of a constant and symbols, such as `4*B*S`.
    fn module(inputs: &[&[&str]]) -> Module {
        let mut module = Module::new("main");
        for (name, dims) in ('a'..).zip(inputs) {
            let shape = dims.iter().map(|dim| parse_dim(&mut module, dim)).collect();
            module.push_input(name.to_string(), TensorType::new(shape, ElementType::F32), false);
        }
        module
    }

    fn parse_dim(module: &mut Module, text: &str) -> Dim {
        text.split('*').fold(Dim::fixed(1), |dim, factor| {
            let factor = match factor.parse() {
                Ok(constant) => Dim::fixed(constant),
                Err(_) => Dim::symbol(module.intern_symbol(factor)),
            };
            dim.times(&factor).unwrap()
        })
    }

    #[track_caller]
    fn check(inputs: &[&[&str]], shapes: &[&[usize]], expected: Result<&[u64], &str>) {
        check_given(inputs, shapes, &[], expected);
    }

    #[track_caller]
    fn check_given(
        inputs: &[&[&str]],
        shapes: &[&[usize]],
        given: &[(&str, u64)],
        expected: Result<&[u64], &str>,
    ) {
        let module = module(inputs);
        let given: Vec<_> = given.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let values = solve_symbols(&module, shapes, &given).map_err(|error| error.to_string());
        let values =
            values.map(|values| module.symbols.keys().map(|symbol| values.get(symbol).unwrap()).collect());
        assert_eq!(values, expected.map(<[u64]>::to_vec).map_err(str::to_owned));
    }

    #[test]
    fn an_extent_determines_its_only_unknown_symbol() {
        check(&[&["M", "384"]], &[&[91, 384]], Ok(&[91]));
        check(&[&["4*M"]], &[&[20]], Ok(&[5]));
        check(&[&["M", "M"]], &[&[7, 7]], Ok(&[7]));
        check(&[&["M"]], &[&[0]], Ok(&[0]));
        check(&[&[]], &[&[]], Ok(&[]));
        check(&[], &[], Ok(&[]));
    }

    #[test]
    fn a_product_is_solved_once_its_other_symbols_are() {
        check(&[&["B*S", "8"], &["2*B"]], &[&[15, 8], &[6]], Ok(&[3, 5]));
        // Three rounds: C from the last input, then B, then A.
        check(&[&["A*B*C"], &["B*C"], &["C"]], &[&[24], &[6], &[2]], Ok(&[4, 3, 2]));
    }

    #[test]
    fn given_symbols_are_known_from_the_start() {
        let product: &[&[&str]] = &[&["B*S", "8"]];
        check_given(product, &[&[6, 8]], &[("B", 2)], Ok(&[2, 3]));
        check_given(product, &[&[6, 8]], &[("S", 2), ("B", 3)], Ok(&[3, 2]));
        check_given(product, &[&[6, 8]], &[("B", 2), ("B", 2)], Ok(&[2, 3]));
        check_given(product, &[&[0, 8]], &[("B", 0), ("S", 5)], Ok(&[0, 5]));
        let refused = |because: &str| {
            format!(
                "`%a` is tensor<[B*S, 8], f32>, but the tensor given for it has the shape [6, 8], with {because}"
            )
        };
        check_given(product, &[&[6, 8]], &[("B", 4)], Err(&refused("B = 4")));
        check_given(product, &[&[6, 8]], &[("B", 2), ("S", 4)], Err(&refused("B = 2, S = 4")));
        let unknown = "the program has no symbol `M`; it has `B`, `S`";
        check_given(product, &[&[6, 8]], &[("B", 2), ("M", 4)], Err(unknown));
        check_given(&[&["8"]], &[&[8]], &[("M", 4)], Err("the program has no symbol `M`; it has no symbols"));
        let twice = "the symbol `B` is given as 2 and as 3";
        check_given(product, &[&[6, 8]], &[("B", 2), ("B", 3)], Err(twice));
    }

    #[test]
    fn a_program_whose_symbols_are_only_in_a_product_binds_with_one_given() {
        let mut module = module(&[&["B*S", "8"]]);
        module.outputs.clone_from(&module.inputs);
        let program = verify(module).unwrap();
        let x = Tensor::zeros(ElementType::F32, vec![6, 8], None).unwrap();
        let tensors = HashMap::from([("a".to_owned(), x)]);
        let undetermined = BindError::Undetermined { name: "B".to_owned() };
        assert_eq!(bind(&program, &tensors).unwrap_err(), undetermined);
        let bound = bind_given(&program, &tensors, &[("S".to_owned(), 3)]).unwrap();
        assert_eq!(
            concrete_dims(program.module().ty(program.module().inputs[0]), &bound.symbols),
            Some(vec![6, 8])
        );
    }

    #[test]
    fn a_symbol_that_only_a_vanishing_or_ambiguous_extent_mentions_is_undetermined() {
        let undetermined = |name| format!("no given shape determines the symbol `{name}`");
        check(&[&["B", "B*S"]], &[&[0, 0]], Err(&undetermined("S")));
        check(&[&["B*S"]], &[&[6]], Err(&undetermined("B")));
        check(&[&["M*M"]], &[&[9]], Err(&undetermined("M")));
        check(&[&["B", "B*S"], &["S"]], &[&[0, 0], &[5]], Ok(&[0, 5]));
    }

    #[test]
    fn a_shape_that_cannot_be_the_inputs_is_refused_with_the_reason() {
        let refused = |name: &str, ty: &str, found: &str, because: &str| {
            format!(
                "`%{name}` is tensor<{ty}, f32>, but the tensor given for it has the shape {found}{because}"
            )
        };
        check(&[&["M", "4"]], &[&[3, 5]], Err(&refused("a", "[M, 4]", "[3, 5]", ", with M = 3")));
        check(&[&["4*M"]], &[&[6]], Err(&refused("a", "[4*M]", "[6]", "")));
        check(&[&["M"], &["M"]], &[&[3], &[4]], Err(&refused("b", "[M]", "[4]", ", with M = 3")));
        // 6 is not a multiple of B = 4, so the error reports the shape, not the undetermined S.
        check(&[&["B"], &["B*S"]], &[&[4], &[6]], Err(&refused("b", "[B*S]", "[6]", ", with B = 4")));
        check(&[&["B"], &["B*S"]], &[&[0], &[6]], Err(&refused("b", "[B*S]", "[6]", ", with B = 0")));
        check(&[&["0*M"], &["M"]], &[&[1], &[2]], Err(&refused("a", "[0]", "[1]", "")));
    }

    #[test]
    fn a_shape_of_the_wrong_rank_is_itself_refused() {
        let expected = "`%b` is tensor<[M, 4], f32>, but the tensor given for it has the shape [7]";
        check(&[&["2*M"], &["M", "4"]], &[&[6], &[7]], Err(&format!("{expected}, with M = 3")));
        check(&[&["M*N"], &["M", "4"], &["N"]], &[&[6], &[7], &[3]], Err(&format!("{expected}, with M = 2")));
        check(&[&["M"], &["M"]], &[&[1]], Err("no tensor is given for the input `%b: tensor<[M], f32>`"));
    }

    #[test]
    fn an_extent_beyond_64_bits_fits_no_tensor() {
        let extent = "1099511627776*M";
        check(
            &[&["M"], &["0"], &[extent]],
            &[&[1 << 40], &[0], &[0]],
            Err(
                "`%c` is tensor<[1099511627776*M], f32>, but the tensor given for it has the shape [0], with M = \
                 1099511627776",
            ),
        );
    }

    #[test]
    fn tensors_bind_by_name_type_and_layout() {
        let mut module = Module::new("main");
        let m = Dim::symbol(module.intern_symbol("M"));
        let scales =
            |layout| TensorType::scales(vec![m.clone(), Dim::fixed(2)], ElementType::F8E4M3FN, layout);
        module.push_input("fc1.input", TensorType::new(vec![m.clone()], ElementType::F32), false);
        module.push_input("s", scales(ScaleLayout::Linear), true);
        module.outputs.clone_from(&module.inputs);
        let program = verify(module).unwrap();
        let x = Tensor::from_f32(vec![3], &[1.0, 2.0, 3.0]).unwrap();
        let s = Tensor::zeros(ElementType::F8E4M3FN, vec![3, 2], Some(ScaleLayout::Linear)).unwrap();
        let blocked = Tensor::zeros(ElementType::F8E4M3FN, vec![3, 2], Some(ScaleLayout::Blocked)).unwrap();
        let with = |tensors: &[(&str, &Tensor)]| -> HashMap<String, Tensor> {
            tensors.iter().map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone())).collect()
        };
        let given = with(&[("s", &s), ("unused", &x), ("fc1.input", &x)]);
        let bound = bind(&program, &given).unwrap();
        assert_eq!(bound.inputs, [&x, &s]);
        assert_eq!(concrete_dims(&scales(ScaleLayout::Linear), &bound.symbols), Some(vec![3, 2]));
        let refused = |tensors: &[(&str, &Tensor)]| bind(&program, &with(tensors)).unwrap_err().to_string();
        assert_eq!(refused(&[("s", &s)]), "no tensor is given for the input `%fc1.input: tensor<[M], f32>`");
        assert_eq!(
            refused(&[("fc1.input", &x), ("s", &blocked)]),
            "`%s` is tensor<[M, 2], f8E4M3FN, linear>, but the tensor given for it is f8E4M3FN, blocked"
        );
        assert_eq!(
            refused(&[("fc1.input", &x), ("s", &x)]),
            "`%s` is tensor<[M, 2], f8E4M3FN, linear>, but the tensor given for it is f32"
        );
    }
}
