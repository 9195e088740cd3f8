//! Regions as programs of Fourfold.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use fourfold::ir::{Entity, Tensor, ValueDef};
use fourfold::{Backend, CompileOptions, Compiled, Event, Planned};
use fourfold_import::{OnnxGraph, OnnxGraphError};
use tempfile::TempDir;

use crate::api::Api;
use crate::error::ProviderError;
use crate::region::Nodes;
use crate::serialize::{self, Message, Region};

/// The answer to a region that is proposed.
pub enum Answer {
    /// The nodes whose ops would run on the fallback.
    Planned { on_fallback: Nodes },
    /// A node has no equivalent; its position if it is known.
    Refused { node: Option<usize>, message: String },
}

/// A file of a region.
pub struct RegionFile {
    _folder: TempDir,
    pub path: PathBuf,
}

impl RegionFile {
    /// Writes a region to the temporary folder.
    ///
    /// # Safety
    /// The graph is live.
    pub unsafe fn write(api: Api, region: &Region<'_>, holes: bool) -> Result<RegionFile, ProviderError> {
        // SAFETY: the caller vouches for the graph.
        let message = unsafe { serialize::model(api, region, holes)? };
        RegionFile::create(|file| {
            // SAFETY: as above.
            unsafe { Message::write(&message, file) }
        })
    }

    /// Creates a file with this content.
    pub fn create(content: impl FnOnce(&mut File) -> io::Result<()>) -> Result<RegionFile, ProviderError> {
        let failed = |path: &Path, source| ProviderError::File {
            action: "write",
            path: path.display().to_string(),
            source,
        };
        let folder = tempfile::Builder::new().prefix("fourfold-onnxruntime-").tempdir();
        let folder = folder.map_err(|error| failed(&std::env::temp_dir(), error))?;
        let path = folder.path().join("region.onnx");
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let written = file.and_then(|mut file| content(&mut file));
        written.map_err(|error| failed(&path, error))?;
        Ok(RegionFile { _folder: folder, path })
    }
}

/// Asks for the decisions about a region. Weights are not read.
///
/// # Safety
/// The graph is live.
pub unsafe fn ask(api: Api, backend: &Backend, region: &Region<'_>) -> Result<Answer, ProviderError> {
    // SAFETY: the caller vouches for the graph.
    let file = match unsafe { RegionFile::write(api, region, true) } {
        Err(ProviderError::Region { message, .. }) => return Ok(Answer::Refused { node: None, message }),
        file => file?,
    };
    let graph = match OnnxGraph::read(&file.path, "region") {
        Ok(graph) => graph,
        Err(OnnxGraphError::Refused { node, left_out }) => {
            let node = node.as_deref().and_then(serialize::position);
            return Ok(Answer::Refused { node, message: left_out.message });
        }
        // The importer has limits, for example of lists, that a model may exceed.
        Err(error) => return Ok(Answer::Refused { node: None, message: error.to_string() }),
    };
    let planned = backend.plan(graph.program().clone());
    Ok(Answer::Planned { on_fallback: on_fallback(&planned, &graph) })
}

/// The nodes with an op that the plan leaves to the fallback. Without a device tier, no decision says more than that
/// there is none.
fn on_fallback(planned: &Planned, graph: &OnnxGraph) -> Nodes {
    let partition = planned.partition();
    let mut nodes = Nodes::new();
    if partition.plans().next().is_none() {
        return nodes;
    }
    let planned_segments: Vec<usize> = partition.plans().map(|(segment, _)| segment).collect();
    let (original, program) = (planned.original().module(), planned.program().module());
    for (op, data) in original.ops.iter() {
        let now = data.results.first().and_then(|result| planned.normalized().value(*result));
        let Some(ValueDef::Result { op: now, .. }) = now.map(|now| program.values[now].def) else { continue };
        let segment = partition.decisions[now.index()].segment;
        let position = graph.node_of(op).and_then(serialize::position);
        if let Some(position) = position.filter(|_| !planned_segments.contains(&segment)) {
            nodes.insert(position);
        }
    }
    nodes
}

/// A compiled region with its weights.
pub struct Program {
    pub compiled: Compiled,
    pub params: HashMap<String, Tensor>,
}

/// Compiles the program of a file.
pub fn compile(
    backend: &Backend,
    file: &RegionFile,
    name: &str,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<Program, ProviderError> {
    let graph = OnnxGraph::read(&file.path, name)?;
    let params = graph.params()?;
    let planned = backend.plan(graph.program().clone());
    let compiled = backend.compile(planned, &CompileOptions::default(), progress);
    Ok(Program { compiled, params })
}
