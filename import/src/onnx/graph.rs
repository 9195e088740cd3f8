//! A graph as one program, for hosts that pass the nodes which they want to run together.

use std::collections::HashMap;
use std::path::Path;

use fourfold_ir::{Entity, Op, Program, Tensor};

use super::model::Model;
use super::names::word;
use super::patterns;
use super::problem::Problem;
use super::translate::Source;
use crate::error::ImportError;
use crate::imported::LeftOut;
use crate::options::ImportOptions;

/// The graph of an ONNX file as one program.
///
/// Hosts write the nodes that they want to run together as a file, and plan its program. Unlike [`crate::import()`],
/// this neither hashes weights nor imports linears, and it states the node of each op. Weights are read by
/// [`OnnxGraph::params`] only, so a host that only asks may leave them as holes of a sparse file.
///
/// Inputs and outputs of the program have the names and the order of the graph's. Names that are no words of the
/// program language are changed.
pub struct OnnxGraph {
    model: Model,
    program: Program,
    params: Vec<(String, Source)>,
    /// The name of the node of each op.
    nodes: Vec<Option<String>>,
    notes: Vec<String>,
}

/// The reason that a graph has no program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxGraphError {
    /// The file is malformed or cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A node or tensor has no equivalent.
    #[error("{}", .left_out.message)]
    Refused {
        /// The name of the node at fault, if it is known.
        node: Option<String>,
        /// The reason.
        left_out: LeftOut,
    },
}

impl OnnxGraph {
    /// Reads a file, and translates its graph into a program called `name`.
    ///
    /// # Errors
    /// When the file cannot be read or is malformed, or a node has no equivalent.
    pub fn read(path: &Path, name: &str) -> Result<OnnxGraph, OnnxGraphError> {
        let mut model = Model::load(path)?;
        patterns::join_quantizers(&mut model);
        let options = ImportOptions::default();
        let names: HashMap<String, String> =
            model.nodes.iter().map(|node| (node.label(), node.name.clone())).collect();
        let refused = |left_out: LeftOut| OnnxGraphError::Refused {
            node: names.get(&left_out.name).cloned(),
            left_out,
        };
        let finished = match super::graph(&model, name, false, &options, &[], &mut HashMap::new()) {
            Ok(finished) => finished,
            Err(Problem::Failed(error)) => return Err(error.into()),
            Err(Problem::Refused(left_out)) => return Err(refused(left_out)),
        };
        let original = |op: usize| finished.originals.get(op).copied().unwrap_or(op);
        let nodes = (0..finished.module.ops.len())
            .map(|op| finished.origins.of(original(op)).and_then(|label| names.get(label)).cloned())
            .collect();
        let program = finished.origins.verified(finished.module, original).map_err(|(code, message)| {
            let label =
                names.keys().filter(|label| message.starts_with(label.as_str())).max_by_key(|it| it.len());
            refused(LeftOut { name: label.cloned().unwrap_or_else(|| word(name)), code, message })
        })?;
        Ok(OnnxGraph { model, program, params: finished.params, nodes, notes: finished.notes })
    }

    /// The program. Its `param` inputs are the stored tensors.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The name of the node that an op was translated from; `None` for ops that convert an output.
    pub fn node_of(&self, op: Op) -> Option<&str> {
        self.nodes.get(op.index())?.as_deref()
    }

    /// Facts that the program does not state, such as repaired types, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads the tensors of the `param` inputs.
    ///
    /// # Errors
    /// When the file has changed or cannot be read, or memory runs out.
    pub fn params(&self) -> Result<HashMap<String, Tensor>, ImportError> {
        let module = self.program.module();
        let mut params = HashMap::new();
        for input in &module.inputs {
            let name = module.name_of(*input);
            let Some((_, source)) = self.params.iter().find(|(param, _)| param == name) else { continue };
            let failed = |reason: String| ImportError::Malformed { path: self.model.path(), reason };
            let tensor = match source {
                Source::Values(tensor) => tensor.try_clone().map_err(|error| failed(error.to_string()))?,
                Source::Stored(at) => {
                    let ty = module.ty(*input);
                    let dims =
                        ty.shape.iter().filter_map(|dim| dim.as_fixed()).map(|dim| dim as usize).collect();
                    let bytes = self.model.stored[*at].read(&self.model.files).map_err(failed)?;
                    Tensor::new(ty.element, dims, ty.layout, bytes)
                        .map_err(|error| failed(format!("tensor `{name}`: {error}")))?
                }
            };
            params.insert(name.to_owned(), tensor);
        }
        Ok(params)
    }
}
