//! A small graph compiler that embeds Fourfold: its own graph, its own ops, its own executor.
//!
//! It has five ops. It hands `Linear` and `Gelu` to Fourfold and keeps `Quantize`, `RmsNorm` and `Add`: their
//! operands become outputs of Fourfold's module, their results become inputs. With `Claim::KernelsOnly`, Fourfold
//! claims the nodes that its kernels replace. The executor calls the kernel for claimed nodes and runs every
//! other node itself.

mod host;

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, ensure};
use fourfold::executor::{RunOptions, SegmentRun};
use fourfold::ir::{
    BinaryKind, Builder, Dim, ElementType, ScaleLayout, ScaledMmaOptions, SymbolValues, Tensor, TensorType,
    UnaryKind, Value,
};
use fourfold::{Backend, ClaimedSegment, CompileOptions, Compiled};

pub use host::{Activations, Quantized, Weights, add, gelu, linear, quantize, rms_norm};

/// The number of a node.
pub type NodeId = usize;

/// The op of a node. Every result has rows, whose number is known only when the model runs.
#[derive(Debug)]
pub enum Node {
    /// The model's input, with this number of columns.
    Input(usize),
    /// The block-scaled FP4 of another node's result.
    Quantize(NodeId),
    /// A quantized operand times a quantized weight, plus a bias.
    Linear(NodeId, Weights),
    /// The activation.
    Gelu(NodeId),
    /// Each row divided by its root mean square.
    RmsNorm(NodeId),
    /// The sum of two results.
    Add(NodeId, NodeId),
}

/// A model: nodes in an order in which they can run. The last node is the result.
#[derive(Debug, Default)]
pub struct Graph {
    /// The nodes; each reads earlier ones only.
    pub nodes: Vec<Node>,
}

/// The result of a node at run time.
#[derive(Clone, Debug)]
enum Datum {
    Rows(Activations),
    Codes(Quantized),
}

impl Graph {
    /// Adds a node.
    pub fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Runs every node with the host's own ops.
    pub fn run(&self, input: &Activations) -> Result<Activations> {
        let mut data: Vec<Datum> = Vec::new();
        for node in &self.nodes {
            let datum = self.run_node(node, input, |id| data.get(id).cloned())?;
            data.push(datum);
        }
        result(data.pop())
    }

    fn run_node(
        &self,
        node: &Node,
        input: &Activations,
        get: impl Fn(NodeId) -> Option<Datum>,
    ) -> Result<Datum> {
        let rows = |id: NodeId| match get(id) {
            Some(Datum::Rows(rows)) => Ok(rows),
            _ => anyhow::bail!("node {id} does not produce rows"),
        };
        Ok(match node {
            Node::Input(columns) => {
                ensure!(input.columns == *columns, "the input has {} columns, not {columns}", input.columns);
                Datum::Rows(input.clone())
            }
            Node::Quantize(id) => Datum::Codes(quantize(&rows(*id)?)),
            Node::Linear(id, weights) => match get(*id) {
                Some(Datum::Codes(codes)) => Datum::Rows(linear(&codes, weights)),
                _ => anyhow::bail!("node {id} is not quantized"),
            },
            Node::Gelu(id) => Datum::Rows(gelu(&rows(*id)?)),
            Node::RmsNorm(id) => Datum::Rows(rms_norm(&rows(*id)?)),
            Node::Add(left, right) => Datum::Rows(add(&rows(*left)?, &rows(*right)?)?),
        })
    }
}

fn result(datum: Option<Datum>) -> Result<Activations> {
    match datum {
        Some(Datum::Rows(rows)) => Ok(rows),
        _ => anyhow::bail!("the model does not produce rows"),
    }
}

/// A model with the segments that Fourfold claims.
pub struct Model {
    graph: Graph,
    compiled: Compiled,
    claimed: Vec<ClaimedSegment>,
    /// The node and tensor behind each value of Fourfold's module.
    origins: HashMap<Value, Origin>,
    /// The parameters, which are constant between runs.
    params: HashMap<Value, Tensor>,
    /// The claimed segment that computes each node, or all of its users.
    segment_of: HashMap<NodeId, usize>,
}

#[derive(Clone, Copy, Debug)]
enum Origin {
    Rows(NodeId),
    Codes(NodeId),
    Scales(NodeId),
}

/// The claimed segments of a run, in the order in which they ran.
pub type Trace = Vec<SegmentRun>;

impl Model {
    /// Hands the graph to Fourfold and compiles the claimed segments.
    pub fn compile(graph: Graph, backend: &Backend, options: &CompileOptions) -> Result<Model> {
        let mut lowered = Lowered::default();
        let mut builder = Builder::new("model");
        let m = builder.symbol("M");
        let mut values: HashMap<NodeId, Value> = HashMap::new();
        let mut outputs = Vec::new();
        for (id, node) in graph.nodes.iter().enumerate() {
            match node {
                Node::Linear(operand, weights) => {
                    values.insert(id, lowered.linear(&mut builder, &m, id, *operand, weights)?);
                }
                Node::Gelu(operand) if values.contains_key(operand) => {
                    values.insert(id, builder.unary(&format!("n{id}"), UnaryKind::Gelu, values[operand]));
                }
                // A host op: its operands become outputs of Fourfold's module.
                Node::Input(_) => {}
                Node::Gelu(operand) | Node::Quantize(operand) | Node::RmsNorm(operand) => {
                    outputs.extend(values.get(operand));
                }
                Node::Add(left, right) => {
                    outputs.extend([left, right].into_iter().flat_map(|id| values.get(id)))
                }
            }
        }
        outputs.extend(values.get(&(graph.nodes.len() - 1)));
        outputs.sort_unstable();
        outputs.dedup();
        for (id, value) in &values {
            lowered.origins.insert(*value, Origin::Rows(*id));
        }
        let planned = backend.plan_module(builder.finish(&outputs))?;
        let claimed = planned.claimed();
        let mut segment_of = HashMap::new();
        for (index, claim) in claimed.iter().enumerate() {
            let module = planned.program().module();
            for result in claim.ops.iter().flat_map(|op| &module.ops[*op].results) {
                if let Some(Origin::Rows(id)) = lowered.origins.get(result) {
                    segment_of.insert(*id, index);
                }
            }
        }
        let compiled = backend.compile(planned, options, &|_| {});
        let Lowered { origins, params } = lowered;
        Ok(Model { graph, compiled, claimed, origins, params, segment_of })
    }

    /// Returns the nodes that Fourfold runs.
    pub fn claimed_nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.segment_of.keys().copied().collect();
        nodes.sort_unstable();
        nodes
    }

    /// Runs the model: one call for each claimed segment, and the host's own ops for the rest.
    pub fn run(&self, input: &Activations) -> Result<(Activations, Trace)> {
        let mut data: HashMap<NodeId, Datum> = HashMap::new();
        let mut trace = Trace::new();
        let mut ran = HashSet::new();
        let mut symbols = SymbolValues::default();
        for (symbol, _) in self.compiled.planned().program().module().symbols.iter() {
            symbols.set(symbol, input.rows as u64);
        }
        for (id, node) in self.graph.nodes.iter().enumerate() {
            if let Some(&index) = self.segment_of.get(&id) {
                // Nodes of a segment have one operand each, so its inputs exist when the first node is reached.
                if ran.insert(index) {
                    let (outputs, run) = self.call(&self.claimed[index], &data, &symbols, input.rows)?;
                    data.extend(outputs);
                    trace.push(run);
                }
                continue;
            }
            let datum = self.graph.run_node(node, input, |id| data.get(&id).cloned())?;
            data.insert(id, datum);
        }
        Ok((result(data.remove(&(self.graph.nodes.len() - 1)))?, trace))
    }

    fn call(
        &self,
        claim: &ClaimedSegment,
        data: &HashMap<NodeId, Datum>,
        symbols: &SymbolValues,
        rows: usize,
    ) -> Result<(Vec<(NodeId, Datum)>, SegmentRun)> {
        let given: Vec<Option<Tensor>> = claim
            .inputs
            .iter()
            .map(|value| self.origins.get(value).map(|origin| tensor_of(*origin, data)).transpose())
            .collect::<Result<_>>()?;
        let inputs: Vec<&Tensor> = claim
            .inputs
            .iter()
            .zip(&given)
            .map(|(value, given)| {
                given
                    .as_ref()
                    .or_else(|| self.params.get(value))
                    .context("an input of the segment has no tensor")
            })
            .collect::<Result<_>>()?;
        let (results, run) =
            self.compiled.run_segment(claim.segment, &inputs, symbols, &RunOptions::default())?;
        let datum = |(value, result): (&Value, &Tensor)| {
            let Some(Origin::Rows(id)) = self.origins.get(value) else {
                anyhow::bail!("an output of the segment belongs to no node")
            };
            let values: Vec<f32> = result.to_f64().iter().map(|value| *value as f32).collect();
            let columns = *result.dims().last().context("an output has no columns")?;
            Ok((*id, Datum::Rows(Activations { rows, columns, values })))
        };
        Ok((claim.outputs.iter().zip(&results).map(datum).collect::<Result<_>>()?, run))
    }
}

fn tensor_of(origin: Origin, data: &HashMap<NodeId, Datum>) -> Result<Tensor> {
    let (Origin::Rows(id) | Origin::Codes(id) | Origin::Scales(id)) = origin;
    Ok(match (origin, data.get(&id).with_context(|| format!("node {id} has not run"))?) {
        (Origin::Codes(_), Datum::Codes(codes)) => codes.code_tensor()?,
        (Origin::Scales(_), Datum::Codes(codes)) => codes.scale_tensor()?,
        (_, Datum::Rows(rows)) => Tensor::from_f32(vec![rows.rows, rows.columns], &rows.values)?,
        _ => anyhow::bail!("node {id} does not produce codes and scales"),
    })
}

/// The graph's tensors behind the values of Fourfold's module, and the parameters.
#[derive(Default)]
struct Lowered {
    origins: HashMap<Value, Origin>,
    params: HashMap<Value, Tensor>,
}

impl Lowered {
    fn linear(
        &mut self,
        builder: &mut Builder,
        m: &Dim,
        id: NodeId,
        operand: NodeId,
        weights: &Weights,
    ) -> Result<Value> {
        let codes = |rows: &Dim, k: usize| {
            TensorType::new(vec![rows.clone(), Dim::fixed(k as u64)], ElementType::F4E2M1FN)
        };
        let scales = |rows: &Dim, k: usize| {
            let dims = vec![rows.clone(), Dim::fixed(k as u64 / 16)];
            TensorType::scales(dims, ElementType::F8E4M3FN, ScaleLayout::Blocked)
        };
        let (k, n) = (weights.codes.columns, Dim::fixed(weights.codes.rows as u64));
        let a = builder.input(&format!("n{id}.a"), codes(m, k));
        let sfa = builder.input(&format!("n{id}.sfa"), scales(m, k));
        let b = builder.param(&format!("n{id}.b"), codes(&n, k));
        let sfb = builder.param(&format!("n{id}.sfb"), scales(&n, k));
        let bias = builder.param(&format!("n{id}.bias"), TensorType::new(vec![n], ElementType::F32));
        self.origins.insert(a, Origin::Codes(operand));
        self.origins.insert(sfa, Origin::Scales(operand));
        let tensors = [
            (b, weights.codes.code_tensor()),
            (sfb, weights.codes.scale_tensor()),
            (bias, Tensor::from_f32(vec![weights.bias.len()], &weights.bias).map_err(anyhow::Error::from)),
        ];
        for (value, tensor) in tensors {
            self.params.insert(value, tensor?);
        }
        let options = ScaledMmaOptions::default();
        let product =
            builder.scaled_mma(&format!("n{id}.product"), a, sfa, b, sfb, 16, ElementType::F32, options);
        Ok(builder.binary(&format!("n{id}"), BinaryKind::Add, product, bias))
    }
}
