//! Turns a torch.export graph into a program.
//!
//! `import/torch/fourfold_export.py` writes the graph as JSON beside a safetensors file. Each aten op becomes ops with
//! the same roundings: torch computes elementwise ops of 16-bit tensors in f32 and rounds each result. Linears on NVFP4
//! weights of torchao become `block_quantize` and `scaled_mma`.

mod arguments;
mod attention;
mod builder;
mod elementwise;
mod graph;
mod linear;
mod logic;
mod movement;
mod nodes;
mod shape;

use std::path::{Component, Path, PathBuf};

use fourfold_executor::{DataSources, read_input};

use self::graph::{FORMAT, Graph, VERSION};
use self::nodes::translate;
use crate::error::ImportError;
use crate::imported::{Import, ImportedProgram, LeftOut, ProgramKind};
use crate::options::ImportOptions;

/// The name of the file in a folder that `fourfold_export.save` writes.
pub(crate) const GRAPH_FILE: &str = "graph.json";

/// The largest graph that is read, in bytes.
const MOST_BYTES: u64 = 32 << 20;

/// Imports a graph. What cannot be translated is left out as a whole.
///
/// # Errors
/// When the file cannot be read, or has another form.
pub(crate) fn import(path: &Path, options: &ImportOptions) -> Result<Import, ImportError> {
    let text = read_input(path, MOST_BYTES)?;
    let graph: Graph = serde_json::from_str(&text)
        .map_err(|source| ImportError::NotGraph { path: path.to_owned(), source })?;
    let malformed = |reason: String| ImportError::Malformed { path: path.to_owned(), reason };
    if graph.format != FORMAT || graph.version != VERSION {
        return Err(malformed(format!(
            "has format {:?} of version {}; expected {FORMAT:?} of version {VERSION}",
            graph.format, graph.version
        )));
    }
    let tensors = beside(path, &graph.tensors).map_err(malformed)?;
    let name = program_name(path);
    if !options.selects(&name) {
        let pattern = options.select.clone().unwrap_or_default();
        return Err(ImportError::SelectsNothing { pattern, count: 1, example: name });
    }
    let translated = match translate(&graph, &name, &tensors) {
        Ok(translated) => translated,
        Err(left_out) => return Ok(Import { programs: Vec::new(), left_out: vec![left_out] }),
    };
    // The graph comes from outside, so that a shape may not fit.
    let program = match translated.origins.verified(translated.module, |op| op) {
        Ok(program) => program,
        Err((code, message)) => {
            return Ok(Import { programs: Vec::new(), left_out: vec![LeftOut { name, code, message }] });
        }
    };
    let sources = DataSources { references: translated.tensors, ..DataSources::default() };
    sources.open(program.module())?.check_references()?;
    let program = ImportedProgram {
        name,
        kind: ProgramKind::Graph,
        module: program.module().clone(),
        tensors: sources.references,
        notes: translated.notes,
        data: Vec::new(),
    };
    Ok(Import { programs: vec![program], left_out: Vec::new() })
}

/// The path of a file beside the graph.
fn beside(path: &Path, name: &str) -> Result<PathBuf, String> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(path.with_file_name(name)),
        _ => Err(format!("names the tensors `{name}`, which is not the name of a file beside it")),
    }
}

/// The name of the program: that of its folder, or of the file if it has another name than `graph.json`.
fn program_name(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name);
    let named =
        if path.file_name().is_some_and(|name| name == GRAPH_FILE) { folder } else { path.file_stem() };
    named.map_or_else(|| "graph".to_owned(), |name| name.to_string_lossy().into_owned())
}
