//! Regions of nodes that run as one program.
//!
//! A region grows from a product with a quantized operand: upwards over the nodes that dequantize its operands, then
//! downwards over elementwise nodes and further such products. It stays convex: no path leaves it and comes back.
//! Quantized values never cross its border, except inputs of the graph.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::graph::{Graph, Node, element};

/// Operators of the standard domain that follow a product in a region.
const EPILOGUE: &[&str] = &[
    "Abs",
    "Add",
    "Cast",
    "Ceil",
    "Clip",
    "Div",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Identity",
    "Log",
    "Max",
    "Min",
    "Mul",
    "Neg",
    "Pow",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tanh",
];
/// Operators that carry a dequantized operand to its product.
const CARRIERS: &[&str] = &["Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"];
/// The name of the context operator, and of the product with a packed weight.
pub const EP_CONTEXT: &str = "EPContext";
const PACKED_PRODUCT: &str = "MatMulBlockQuantizedFp4Weight";

/// A set of nodes, by position.
pub type Nodes = BTreeSet<usize>;

/// Finds regions of a graph.
pub struct Finder<'g> {
    pub graph: &'g Graph,
    producers: HashMap<String, usize>,
    consumers: HashMap<String, Vec<usize>>,
    /// The regions so far.
    regions: Vec<Nodes>,
    /// The region of each node that belongs to one.
    taken: HashMap<usize, usize>,
    /// Nodes that stay with ONNX Runtime.
    refused: HashSet<usize>,
}

impl<'g> Finder<'g> {
    pub fn new(graph: &'g Graph) -> Finder<'g> {
        let mut consumers: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            for name in node.reads() {
                consumers.entry(name.to_owned()).or_default().push(at);
            }
        }
        let producers = graph.producers();
        Finder {
            graph,
            producers,
            consumers,
            regions: Vec::new(),
            taken: HashMap::new(),
            refused: HashSet::new(),
        }
    }

    /// The nodes that regions grow from: quantized products, then nodes that only this provider can run.
    pub fn seeds(&self) -> Vec<usize> {
        let all = 0..self.graph.nodes.len();
        let products = all.clone().filter(|at| self.is_product(*at));
        products.chain(all.filter(|at| self.is_must(*at))).collect()
    }

    /// Adds a region.
    pub fn take(&mut self, nodes: Nodes) {
        self.taken.extend(nodes.iter().map(|at| (*at, self.regions.len())));
        self.regions.push(nodes);
    }

    /// Leaves a node to ONNX Runtime.
    pub fn refuse(&mut self, node: usize) {
        self.refused.insert(node);
    }

    pub fn is_free(&self, node: usize) -> bool {
        !self.taken.contains_key(&node) && !self.refused.contains(&node)
    }

    /// True for a node that no other provider on the CPU runs: one that reads or writes FP4.
    pub fn is_must(&self, at: usize) -> bool {
        let node = &self.graph.nodes[at];
        let is_fp4 = |name: &String| self.graph.element(name) == element::FLOAT4E2M1;
        node.is_microsoft(PACKED_PRODUCT)
            || (is_quantizer(node) && node.inputs.iter().take(1).chain(&node.outputs).any(is_fp4))
    }

    /// True for a product with an operand that is dequantized.
    pub fn is_product(&self, at: usize) -> bool {
        let node = &self.graph.nodes[at];
        let is_dequantized = |name: &String| self.dequantizer(name).is_some();
        node.is_microsoft(PACKED_PRODUCT)
            || ((node.is("MatMul") || node.is("Gemm")) && node.inputs.iter().take(2).any(is_dequantized))
    }

    /// The node that dequantizes a value from FP4 or FP8.
    fn dequantizer(&self, name: &str) -> Option<usize> {
        let mut name = name;
        loop {
            let at = *self.producers.get(name)?;
            let node = &self.graph.nodes[at];
            if node.is("DequantizeLinear") {
                let is_quantized = element::is_quantized(self.graph.element(node.inputs.first()?));
                return is_quantized.then_some(at);
            }
            if !is_one_of(node, CARRIERS) {
                return None;
            }
            name = node.inputs.first()?;
        }
    }

    /// The smallest region of a node: with the nodes that dequantize its operands, and no quantized value at its
    /// border.
    pub fn smallest(&self, seed: usize) -> Option<Nodes> {
        let nodes = self.group(seed, &Nodes::new())?;
        // The operands of a product may have been dequantized in another region.
        nodes.iter().any(|at| self.is_must(*at) || is_quantizer(&self.graph.nodes[*at])).then_some(nodes)
    }

    /// True for a node that runs here even on the fallback: one that no other provider runs, or a product that would
    /// have to wait for dequantized FP4 otherwise.
    pub fn is_needed(&self, at: usize) -> bool {
        let has_must = |nodes: Nodes| nodes.iter().any(|at| self.is_must(*at));
        self.is_must(at) || (self.is_product(at) && self.smallest(at).is_some_and(has_must))
    }

    /// Adds consumers to a region as long as it stays valid.
    pub fn grown(&self, mut region: Nodes) -> Nodes {
        let mut tried: HashSet<usize> = HashSet::new();
        loop {
            let next = region
                .iter()
                .flat_map(|at| self.users(*at))
                .filter(|at| self.may_join(*at) && !region.contains(at) && !tried.contains(at))
                .min();
            let Some(next) = next else { return region };
            tried.insert(next);
            if let Some(more) = self.group(next, &region) {
                region = more;
            }
        }
    }

    fn may_join(&self, at: usize) -> bool {
        let node = &self.graph.nodes[at];
        self.is_free(at) && (is_one_of(node, EPILOGUE) || is_quantizer(node) || self.is_product(at))
    }

    fn users(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let outputs = self.graph.nodes[at].outputs.iter();
        outputs.filter_map(|output| self.consumers.get(output)).flatten().copied()
    }

    /// A region with a node, the dequantization of its operands, and all nodes that share quantized values with these.
    /// `None` if that is no valid region.
    fn group(&self, seed: usize, region: &Nodes) -> Option<Nodes> {
        let mut nodes = region.clone();
        let mut open = vec![seed];
        while let Some(at) = open.pop() {
            if nodes.contains(&at) {
                continue;
            }
            if !self.is_free(at) {
                return None;
            }
            nodes.insert(at);
            let node = &self.graph.nodes[at];
            for input in &node.inputs {
                let Some(before) = self.producers.get(input) else { continue };
                let is_quantized = element::is_quantized(self.graph.element(input));
                let is_dequantized = self.dequantizer(input).is_some()
                    && (self.is_product(at) || is_quantizer(node) || is_one_of(node, CARRIERS));
                if is_quantized || (is_dequantized && self.is_free(*before)) {
                    open.push(*before);
                }
            }
            for output in &node.outputs {
                if element::is_quantized(self.graph.element(output)) {
                    open.extend(self.consumers.get(output).into_iter().flatten());
                }
            }
        }
        self.is_valid(&nodes).then_some(nodes)
    }

    /// True if a region is convex, and the values at its border have types that may cross it.
    fn is_valid(&self, nodes: &Nodes) -> bool {
        let (inputs, outputs) = self.border(nodes);
        let may_enter = |name: &String| {
            let Some(ty) = self.graph.values.get(name).and_then(|value| value.ty.as_ref()) else {
                return false;
            };
            // ONNX Runtime does not tell scalars from values of unknown rank.
            let is_shaped = !ty.shape.is_empty();
            let is_source = !self.producers.contains_key(name);
            is_shaped && (element::is_float(ty.element) || (is_source && element::is_quantized(ty.element)))
        };
        let may_leave = |name: &String| element::is_float(self.graph.element(name));
        inputs.iter().all(may_enter) && outputs.iter().all(may_leave) && self.is_convex(nodes)
    }

    /// True if no path leaves the nodes and comes back. Other regions are nodes of these paths: two of them must not wait
    /// for each other.
    fn is_convex(&self, nodes: &Nodes) -> bool {
        let mut reached: HashSet<usize> = HashSet::new();
        let leaves = |at: &usize| !nodes.contains(at);
        let mut open: Vec<usize> = nodes.iter().flat_map(|at| self.users(*at)).filter(leaves).collect();
        while let Some(at) = open.pop() {
            if !reached.insert(at) {
                continue;
            }
            for user in self.users(at) {
                if nodes.contains(&user) {
                    return false;
                }
                open.push(user);
            }
            open.extend(self.taken.get(&at).into_iter().flat_map(|region| &self.regions[*region]));
        }
        true
    }

    /// The values that a region reads and that no node of it computes, without constants; and the values that others
    /// read.
    pub fn border(&self, nodes: &Nodes) -> (Vec<String>, Vec<String>) {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for at in nodes {
            let node = &self.graph.nodes[*at];
            for input in node.inputs.iter().filter(|input| !input.is_empty()) {
                let is_inside = self.producers.get(input).is_some_and(|before| nodes.contains(before));
                if !is_inside && !self.graph.is_constant(input) && !inputs.contains(input) {
                    inputs.push(input.clone());
                }
            }
            for output in node.outputs.iter().filter(|output| !output.is_empty()) {
                let mut users = self.consumers.get(output).into_iter().flatten();
                if self.graph.outputs.contains(output) || users.any(|user| !nodes.contains(user)) {
                    outputs.push(output.clone());
                }
            }
        }
        (inputs, outputs)
    }
}

fn is_quantizer(node: &Node) -> bool {
    node.is("QuantizeLinear") || node.is("DequantizeLinear")
}

fn is_one_of(node: &Node, operators: &[&str]) -> bool {
    operators.iter().any(|op| node.is(op)) || node.is_microsoft("Gelu") && operators.contains(&"Gelu")
}
