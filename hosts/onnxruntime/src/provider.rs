//! The provider of a session.

use std::ffi::c_char;
use std::ptr;

use fourfold::{Backend, Event};
use ort_sys::{OrtGraph, OrtLogger, OrtNode, OrtStatusPtr};

use crate::abi::{Ep, EpGraphSupportInfo, NodeComputeInfo, NodeFusionOptions, VERSION};
use crate::api::{Api, Level, call, slice, text};
use crate::compute::CompiledNode;
use crate::context;
use crate::error::ProviderError;
use crate::graph::{Graph, Node};
use crate::guard::{guard, guard_silently};
use crate::options::{NAME, Options};
use crate::program::{Answer, Program, RegionFile, ask, compile};
use crate::region::{Finder, Nodes};
use crate::serialize::Region;

/// A provider, which ONNX Runtime knows by its first member.
#[repr(C)]
pub struct Provider {
    base: Ep,
    api: Api,
    options: Options,
    backend: Backend,
    logger: Logger,
}

/// The logger of a session, which may be used by any thread.
#[derive(Clone, Copy)]
struct Logger(*const OrtLogger);

// SAFETY: ONNX Runtime's loggers may be used by any thread.
unsafe impl Sync for Logger {}

impl Provider {
    /// Creates a provider.
    ///
    /// # Errors
    /// When a provider option is unusable.
    pub fn new(api: Api, options: Options, logger: *const OrtLogger) -> Result<Provider, ProviderError> {
        let asked = fourfold::Options::default().device(options.device).maybe_target(options.target.clone());
        let base = Ep {
            version: VERSION,
            get_name,
            get_capability,
            compile: compile_graphs,
            release_node_compute_infos,
            get_preferred_data_layout: None,
            should_convert_data_layout_for_op: None,
            set_dynamic_options: None,
            on_run_start: None,
            on_run_end: None,
            create_allocator: None,
            create_sync_stream: None,
            get_compatibility,
        };
        Ok(Provider { base, api, options, backend: Backend::new(&asked)?, logger: Logger(logger) })
    }

    /// Gives the provider to ONNX Runtime.
    pub fn into_raw(provider: Provider) -> *mut Ep {
        Box::into_raw(Box::new(provider)).cast()
    }

    /// Takes a provider back.
    ///
    /// # Safety
    /// The pointer is one of [`Provider::into_raw`], and is not used afterwards.
    pub unsafe fn from_raw(ep: *mut Ep) -> Box<Provider> {
        // SAFETY: the caller vouches for it.
        unsafe { Box::from_raw(ep.cast()) }
    }

    /// Claims regions of a graph.
    unsafe fn claim(
        &self,
        graph: *const OrtGraph,
        info: *mut EpGraphSupportInfo,
    ) -> Result<(), ProviderError> {
        // SAFETY: the caller vouches for the graph.
        let graph = unsafe { Graph::read(self.api, graph)? };
        for node in graph.nodes.iter().filter(|node| context::is_ours(node)) {
            // SAFETY: as above.
            unsafe { self.fuse(info, &[node.raw])? };
        }
        let mut finder = Finder::new(&graph);
        for seed in finder.seeds() {
            while finder.is_free(seed) {
                // SAFETY: as above.
                let Some(nodes) = (unsafe { self.region(&mut finder, seed)? }) else { continue };
                let raw: Vec<*const OrtNode> = nodes.iter().map(|at| graph.nodes[*at].raw).collect();
                // SAFETY: as above.
                unsafe { self.fuse(info, &raw)? };
                self.log(&format!(
                    "{} and {} nodes run as one program",
                    graph.nodes[seed].label(),
                    raw.len() - 1
                ));
                finder.take(nodes);
            }
        }
        Ok(())
    }

    /// Grows a region from a node, and asks about it. Returns `None` after it has refused a node.
    unsafe fn region(&self, finder: &mut Finder<'_>, seed: usize) -> Result<Option<Nodes>, ProviderError> {
        let Some(smallest) = finder.smallest(seed) else {
            self.leave(finder, seed, "values at its border have types or shapes that no region may have");
            return Ok(None);
        };
        let nodes = finder.grown(smallest.clone());
        let (inputs, outputs) = finder.border(&nodes);
        let positions: Vec<usize> = nodes.iter().copied().collect();
        let region = Region { graph: finder.graph, nodes: &positions, inputs: &inputs, outputs: &outputs };
        // SAFETY: the caller vouches for the graph.
        let answer = unsafe { ask(self.api, &self.backend, &region)? };
        let (left, reason) = match answer {
            Answer::Refused { node, message } => {
                // Without a node at fault, the last one goes that was added.
                let last = positions.iter().copied().rev().find(|at| !smallest.contains(at));
                let node = node.filter(|at| nodes.contains(at)).or(last).unwrap_or(seed);
                // Without its operands, the seed cannot run.
                (if smallest.contains(&node) { seed } else { node }, message)
            }
            Answer::Planned { on_fallback } => {
                let is_idle = |at: &usize| !finder.is_needed(*at) && (*at == seed || !smallest.contains(at));
                let Some(node) = on_fallback.into_iter().find(is_idle) else { return Ok(Some(nodes)) };
                (node, "it would run on the fallback".to_owned())
            }
        };
        self.leave(finder, left, &reason);
        Ok(None)
    }

    /// Leaves a node to ONNX Runtime, which fails if the node is one that only this provider runs.
    fn leave(&self, finder: &mut Finder<'_>, node: usize, reason: &str) {
        let level = if finder.is_must(node) { Level::Warning } else { Level::Info };
        let message = format!("{} stays with ONNX Runtime: {reason}", finder.graph.nodes[node].label());
        self.api.log(self.logger.0, level, &message);
        finder.refuse(node);
    }

    unsafe fn fuse(
        &self,
        info: *mut EpGraphSupportInfo,
        nodes: &[*const OrtNode],
    ) -> Result<(), ProviderError> {
        let options = NodeFusionOptions { version: VERSION, drop_constant_initializers: true };
        // SAFETY: the caller vouches for the nodes; options are read during the call.
        let status =
            unsafe { (self.api.ep.add_nodes_to_fuse)(info, nodes.as_ptr(), nodes.len(), &raw const options) };
        self.api.checked("EpGraphSupportInfo_AddNodesToFuse", status)
    }

    /// Compiles a region, or loads a context. The second result is the context node to write.
    unsafe fn compile(
        &self,
        graph: *const OrtGraph,
        fused: *const OrtNode,
    ) -> Result<(CompiledNode, *mut OrtNode), ProviderError> {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the caller vouches for the graph and the node.
        let (graph, ends, name) = unsafe {
            call!(self.api, Node_GetName(fused, &raw mut name))?;
            (Graph::read(self.api, graph)?, Graph::ends(self.api, fused)?, text(name))
        };
        if let Some(node) = graph.nodes.iter().find(|node| context::is_ours(node)) {
            let program = self.program(&context::load(node, &graph, &self.options)?, &name)?;
            let inputs = positions(node, &node.inputs, &ends.0)?;
            let outputs = positions(node, &node.outputs, &ends.1)?;
            let node = self.node((name, ends.0), program, &inputs, &outputs)?;
            return Ok((node, ptr::null_mut()));
        }
        let all: Vec<usize> = (0..graph.nodes.len()).collect();
        let region = Region { graph: &graph, nodes: &all, inputs: &ends.0, outputs: &ends.1 };
        // SAFETY: as above.
        let file = unsafe { RegionFile::write(self.api, &region, false)? };
        let program = self.program(&file, &name)?;
        let same = |names: &[String]| (0..names.len()).collect::<Vec<usize>>();
        let node = self.node((name.clone(), ends.0.clone()), program, &same(&ends.0), &same(&ends.1))?;
        let context = match &self.options.context {
            // SAFETY: as above.
            Some(_) => unsafe { context::create(self.api, &file, &graph, &name, &ends, &self.options)? },
            None => ptr::null_mut(),
        };
        Ok((node, context))
    }

    /// Compiles the program of a file, and logs the reason if kernels do not run here.
    fn program(&self, file: &RegionFile, name: &str) -> Result<Program, ProviderError> {
        let program = compile(&self.backend, file, name, &|event: &Event| self.log(&event.to_string()))?;
        let partition = program.compiled.planned().partition();
        let (kernels, all) = (partition.plans().count(), partition.segments.len());
        let reason = partition.plans().find_map(|(segment, _)| program.compiled.unavailable(segment));
        let fallback =
            reason.map_or(String::new(), |reason| format!(", but run on the fallback: {}", reason.message));
        self.log(&format!("`{name}`: {kernels} of {all} segments are planned for the GPU{fallback}"));
        Ok(program)
    }

    fn node(
        &self,
        name: (String, Vec<String>),
        program: Program,
        inputs: &[usize],
        outputs: &[usize],
    ) -> Result<CompiledNode, ProviderError> {
        CompiledNode::new(self.api, name, program, inputs, outputs, self.options.panic_in_compute)
    }

    fn log(&self, message: &str) {
        self.api.log(self.logger.0, Level::Info, message);
    }
}

/// The positions of a context's values among those of its node.
fn positions(node: &Node, names: &[String], of: &[String]) -> Result<Vec<usize>, ProviderError> {
    let find = |name: &String| {
        of.iter().position(|known| known == name).ok_or_else(|| ProviderError::Context {
            node: node.name.clone(),
            message: format!("`{name}` is no input or output of the compiled node"),
        })
    };
    names.iter().map(find).collect()
}

/// The provider of a call.
///
/// # Safety
/// ONNX Runtime passes a pointer of [`Provider::into_raw`].
unsafe fn provider<'a>(this: *const Ep) -> &'a Provider {
    // SAFETY: the caller vouches for it; providers are not changed.
    unsafe { &*this.cast() }
}

unsafe extern "system" fn get_name(_: *const Ep) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "system" fn get_capability(
    this: *mut Ep,
    graph: *const OrtGraph,
    info: *mut EpGraphSupportInfo,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes its provider.
    let provider = unsafe { provider(this) };
    // SAFETY: the graph and the result are live during the call.
    guard(provider.api, || unsafe { provider.claim(graph, info) })
}

unsafe extern "system" fn compile_graphs(
    this: *mut Ep,
    graphs: *const *const OrtGraph,
    fused: *const *const OrtNode,
    count: usize,
    infos: *mut *mut NodeComputeInfo,
    contexts: *mut *mut OrtNode,
) -> OrtStatusPtr {
    // SAFETY: ONNX Runtime passes its provider.
    let provider = unsafe { provider(this) };
    guard(provider.api, || {
        // SAFETY: ONNX Runtime passes arrays of this length, whose graphs and nodes are live during the call.
        let pairs = unsafe { slice(graphs, count).iter().zip(slice(fused, count)) };
        let mut made = Made { api: provider.api, nodes: Vec::new() };
        for (graph, fused) in pairs {
            // SAFETY: as above.
            made.nodes.push(unsafe { provider.compile(*graph, *fused)? });
        }
        for (at, (node, context)) in made.nodes.drain(..).enumerate() {
            // SAFETY: as above. From now on, the nodes belong to ONNX Runtime.
            unsafe {
                *infos.add(at) = node.into_raw();
                if !context.is_null() {
                    *contexts.add(at) = context;
                }
            }
        }
        Ok(())
    })
}

/// Compiled nodes and context nodes, until ONNX Runtime takes all of them.
struct Made {
    api: Api,
    nodes: Vec<(CompiledNode, *mut OrtNode)>,
}

impl Drop for Made {
    fn drop(&mut self) {
        for (_, context) in self.nodes.iter().filter(|(_, context)| !context.is_null()) {
            // SAFETY: the node is ours.
            unsafe { (self.api.ort.ReleaseNode)(*context) };
        }
    }
}

unsafe extern "system" fn release_node_compute_infos(
    _: *mut Ep,
    infos: *mut *mut NodeComputeInfo,
    count: usize,
) {
    // SAFETY: ONNX Runtime passes nodes of `compile_graphs`, once.
    for info in unsafe { slice(infos, count) }.iter().filter(|info| !info.is_null()) {
        // SAFETY: as above.
        guard_silently(|| drop(unsafe { CompiledNode::from_raw(*info) }));
    }
}

unsafe extern "system" fn get_compatibility(_: *mut Ep, _: *const OrtGraph) -> *const c_char {
    context::COMPATIBILITY_C.as_ptr().cast()
}
