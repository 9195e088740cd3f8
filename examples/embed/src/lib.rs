//! A small graph compiler that embeds Fourfold: its own graph, its own ops, its own executor.
//!
//! It knows five ops. `Linear` and `Gelu` it hands over; `Quantize`, `RmsNorm` and `Add` Fourfold never sees, what they
//! read leaves the module that it gets, and what they give are inputs of it. With `Claim::KernelsOnly` it gets back which of its nodes each kernel
//! replaces, and calls that kernel instead of running them itself. What is not claimed it runs on its own.

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

/// What a node computes. Everything has rows, whose number is known only when the model runs.
#[derive(Debug)]
pub enum Node {
    /// The model's input, with so many columns.
    Input(usize),
    /// Block-scaled FP4 of another node's result.
    Quantize(NodeId),
    /// A quantized operand times a quantized weight, plus a bias.
    Linear(NodeId, Weights),
    /// The activation.
    Gelu(NodeId),
    /// Each row over its root mean square.
    RmsNorm(NodeId),
    /// The sum of two results.
    Add(NodeId, NodeId),
}

/// A model: nodes in an order in which they can run. The last is the result.
#[derive(Debug, Default)]
pub struct Graph {
    /// Each uses earlier ones only.
    pub nodes: Vec<Node>,
}

/// What a node gives at run time.
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
            _ => anyhow::bail!("node {id} gives no rows"),
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
        _ => anyhow::bail!("the model gives no rows"),
    }
}

/// A model of which Fourfold runs what it claims.
pub struct Model {
    graph: Graph,
    compiled: Compiled,
    claimed: Vec<ClaimedSegment>,
    /// Which tensor of which node a value of Fourfold's module is.
    origins: HashMap<Value, Origin>,
    /// Parameters, which do not change from run to run.
    params: HashMap<Value, Tensor>,
    /// For each node the claimed segment that computes it, or computes what follows from it alone.
    segment_of: HashMap<NodeId, usize>,
}

#[derive(Clone, Copy, Debug)]
enum Origin {
    Rows(NodeId),
    Codes(NodeId),
    Scales(NodeId),
}

/// What a run of a model shows besides its result: each claimed segment, in the order in which they ran.
pub type Trace = Vec<SegmentRun>;

impl Model {
    /// Hands the graph over and compiles what is claimed.
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
                // The host's own: whatever of Fourfold's it uses leaves the module here.
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

    /// The nodes that Fourfold runs.
    pub fn claimed_nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.segment_of.keys().copied().collect();
        nodes.sort_unstable();
        nodes
    }

    /// Runs the model: claimed segments as one call each, the rest with the host's own ops.
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
                // Nodes have one operand each, so that what a segment reads is there when its first node's turn comes.
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
            .map(|(value, given)| given.as_ref().or_else(|| self.params.get(value)).context("no tensor"))
            .collect::<Result<_>>()?;
        let (results, run) =
            self.compiled.run_segment(claim.segment, &inputs, symbols, &RunOptions::default())?;
        let datum = |(value, result): (&Value, &Tensor)| {
            let Some(Origin::Rows(id)) = self.origins.get(value) else {
                anyhow::bail!("a segment gives what is no node's result")
            };
            let values: Vec<f32> = result.to_f64().iter().map(|value| *value as f32).collect();
            let columns = *result.dims().last().context("rows and columns")?;
            Ok((*id, Datum::Rows(Activations { rows, columns, values })))
        };
        Ok((claim.outputs.iter().zip(&results).map(datum).collect::<Result<_>>()?, run))
    }
}

fn tensor_of(origin: Origin, data: &HashMap<NodeId, Datum>) -> Result<Tensor> {
    let (Origin::Rows(id) | Origin::Codes(id) | Origin::Scales(id)) = origin;
    Ok(match (origin, data.get(&id).context("a node that has not run")?) {
        (Origin::Codes(_), Datum::Codes(codes)) => codes.code_tensor()?,
        (Origin::Scales(_), Datum::Codes(codes)) => codes.scale_tensor()?,
        (_, Datum::Rows(rows)) => Tensor::from_f32(vec![rows.rows, rows.columns], &rows.values)?,
        _ => anyhow::bail!("node {id} gives something else"),
    })
}

/// What Fourfold's module has come to know of the graph.
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
