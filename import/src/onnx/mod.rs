//! ONNX files become programs: one of the whole graph, and one of each linear.
//!
//! ```text
//! reader <- proto <- stored <- model <- patterns, linears
//! integers, names, problem <- translate <- this module
//! ```
//!
//! `model` decodes a file with `rten-onnx`, within bounds, and checks it: every tensor has one definition, the nodes
//! have an order. `patterns` joins quantization that a graph spells out. `translate` writes each node as ops of a
//! program; integer arithmetic on shapes is computed at once, with symbols for named extents. `linears` finds the
//! products with a constant weight.
//!
//! Weights stay in the file. The importer computes only with numbers that it needs, and copies only numbers that the
//! file holds in protobuf's encoding. It hashes the bytes that programs refer to, because nothing else in the file
//! would show that they have moved.

mod graph;
mod integers;
mod linears;
mod model;
mod names;
mod patterns;
mod problem;
mod proto;
mod reader;
mod stored;
mod translate;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use fourfold_executor::{RangeHash, TensorReference};
use fourfold_ir::{Dim, ElementType, TensorType};

pub use self::graph::{OnnxGraph, OnnxGraphError};
use self::linears::Linear;
use self::model::{Input, Model, Node};
use self::problem::{Problem, refused};
use self::stored::element_of;
use self::translate::{Finished, Source, Translator, Wanted};
use crate::error::ImportError;
use crate::imported::{Import, ImportedProgram, LeftOut, LeftOutCode, ProgramKind};
use crate::options::ImportOptions;

/// The maximum number of outputs of a graph.
const MAX_OUTPUTS: usize = 1 << 16;

/// Imports an ONNX file. `prefix` precedes the names of its linears.
///
/// # Errors
/// When the file cannot be read or is malformed.
pub(crate) fn import(path: &Path, prefix: &str, options: &ImportOptions) -> Result<Import, ImportError> {
    let mut model = Model::load(path)?;
    let joined = patterns::join_quantizers(&mut model);
    let mut notes = model.notes.clone();
    if !model.producer.is_empty() {
        notes.insert(0, format!("The file was written by {}.", problem::shown(&model.producer)));
    }
    if joined > 0 {
        notes.push(format!(
            "The graph spells out {joined} quantizations to NVFP4; blocks of zeros become zeros."
        ));
    }
    let model = model;
    let stem =
        path.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let mut linears = linears::find(&model);
    for linear in &mut linears {
        linear.name = format!("{prefix}{}", linear.name);
        if linear.name == stem {
            linear.name = format!("{stem}.linear");
        }
    }
    let mut import = Import::default();
    let (mut types, mut hashes) = (HashMap::new(), Hashes::new());
    let wide = options.output_type == Some(ElementType::F32);
    let whole = graph(&model, &stem, wide, options, &linears, &mut types);
    if options.selects(&stem) {
        add(&mut import, &model, &stem, ProgramKind::Graph, whole, &notes, &mut hashes)?;
    } else if let Err(Problem::Failed(error)) = whole {
        return Err(error);
    }
    for linear in linears.iter().filter(|linear| options.selects(&linear.name)) {
        if !linear.is_quantized {
            let message = format!("the weight of `{}` is not quantized", linear.name);
            let name = linear.name.clone();
            import.left_out.push(LeftOut { name, code: LeftOutCode::NotQuantized, message });
            continue;
        }
        let program = single(&model, linear, wide, options, &types);
        add(&mut import, &model, &linear.name, ProgramKind::Linear, program, &notes, &mut hashes)?;
    }
    if let Some(pattern) =
        options.select.as_ref().filter(|_| import.programs.is_empty() && import.left_out.is_empty())
    {
        return Err(ImportError::SelectsNothing {
            pattern: pattern.clone(),
            count: linears.len() + 1,
            example: stem,
        });
    }
    Ok(import)
}

/// The hashes of stored tensors that programs refer to, by position. Each tensor is read once.
type Hashes = HashMap<usize, RangeHash>;

/// Adds a program, or leaves it out.
fn add(
    import: &mut Import,
    model: &Model,
    name: &str,
    kind: ProgramKind,
    program: Result<Finished, Problem>,
    notes: &[String],
    hashes: &mut Hashes,
) -> Result<(), ImportError> {
    let finished = match program {
        Ok(finished) => finished,
        Err(Problem::Failed(error)) => return Err(error),
        Err(Problem::Refused(mut left_out)) => {
            left_out.message = format!("{}: {}", name, left_out.message);
            name.clone_into(&mut left_out.name);
            import.left_out.push(left_out);
            return Ok(());
        }
    };
    let original = |op: usize| finished.originals.get(op).copied().unwrap_or(op);
    let module = match finished.origins.verified(finished.module, original) {
        Ok(program) => program.module().clone(),
        Err((code, reason)) => {
            let (name, message) = (name.to_owned(), format!("{name}: {reason}"));
            import.left_out.push(LeftOut { name, code, message });
            return Ok(());
        }
    };
    let (mut tensors, mut data) = (Vec::new(), Vec::new());
    for (input, source) in finished.params {
        match source {
            Source::Values(tensor) => data.push((input, tensor)),
            Source::Stored(at) => {
                let Some((file, start, end)) = model.stored[at].in_place() else { continue };
                let Some(text) = file.to_str() else {
                    return Err(ImportError::PathText { path: file.to_owned() });
                };
                let hash = match hashes.get(&at) {
                    Some(hash) => *hash,
                    None => model.files.hash(file, start, end)?,
                };
                hashes.insert(at, hash);
                tensors.push(TensorReference::bytes(input, start, end, text).checked(hash));
            }
        }
    }
    let notes = notes.iter().cloned().chain(finished.notes).collect();
    import.programs.push(ImportedProgram { name: name.to_owned(), kind, module, tensors, data, notes });
    Ok(())
}

/// Translates the whole graph. Records the types of the inputs of linears.
fn graph(
    model: &Model,
    name: &str,
    wide: bool,
    options: &ImportOptions,
    linears: &[Linear],
    types: &mut HashMap<String, ElementType>,
) -> Result<Finished, Problem> {
    if model.outputs.is_empty() || model.outputs.len() > MAX_OUTPUTS {
        let message = format!("the graph has {} outputs", model.outputs.len());
        return refused(name, LeftOutCode::UnsupportedFormat, message);
    }
    let mut translator = Translator::new(model, name, wide);
    let mut names = names::Names::default();
    let wanted: Vec<Wanted> = model
        .outputs
        .iter()
        .map(|output| Wanted {
            tensor: output.name.clone(),
            name: names.like(&output.name),
            element: options.output_type.or_else(|| element_of(output.ty)),
        })
        .collect();
    translator.reserve(&wanted);
    let live = live_nodes(model);
    let read: HashSet<&str> = live
        .iter()
        .flat_map(|node| node.inputs.iter().map(String::as_str))
        .chain(model.outputs.iter().map(|output| output.name.as_str()))
        .collect();
    for input in model.inputs.iter().filter(|input| read.contains(input.name.as_str())) {
        translator.input(input, options.input_type)?;
    }
    let mut result = Ok(());
    for node in live {
        result = translator.node(node);
        if result.is_err() {
            break;
        }
    }
    // A linear may stand before the node that is refused.
    for linear in linears {
        if let Some(element) = translator.element_named(&linear.x) {
            types.insert(linear.x.clone(), element);
        }
    }
    result?;
    translator.finish(&wanted)
}

/// The nodes that an output needs, in order.
fn live_nodes(model: &Model) -> Vec<&Node> {
    let mut needed: HashSet<&str> = model.outputs.iter().map(|output| output.name.as_str()).collect();
    let mut live: Vec<&Node> = Vec::new();
    for node in model.nodes.iter().rev() {
        if node.outputs.iter().any(|output| needed.contains(output.as_str())) {
            needed.extend(node.inputs.iter().map(String::as_str));
            live.push(node);
        }
    }
    live.reverse();
    live
}

/// Translates one linear, with input `%x` and result `%y`.
fn single(
    model: &Model,
    linear: &Linear,
    wide: bool,
    options: &ImportOptions,
    types: &HashMap<String, ElementType>,
) -> Result<Finished, Problem> {
    let mut translator = Translator::new(model, &linear.name, wide);
    let stated =
        model.outputs.iter().find(|output| output.name == linear.y).and_then(|output| element_of(output.ty));
    let element = options.output_type.or(stated);
    let wanted = vec![Wanted { tensor: linear.y.clone(), name: "y".to_owned(), element }];
    translator.reserve(&wanted);
    let declared = |input: &&Input| input.name == linear.x;
    let model_type = types
        .get(&linear.x)
        .copied()
        .or_else(|| model.inputs.iter().find(declared).and_then(|input| element_of(input.ty)))
        .filter(|element| element.is_arithmetic())
        .unwrap_or(ElementType::F32);
    let m = translator.symbol(&options.m)?;
    let shape = vec![m, Dim::fixed(linear.k)];
    translator.x(&linear.x, TensorType::new(shape, options.input_type.unwrap_or(model_type)));
    for at in &linear.nodes {
        translator.node(&model.nodes[*at])?;
    }
    translator.finish(&wanted)
}
