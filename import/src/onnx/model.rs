//! A checked model: nodes in order, each tensor defined once, constants as stored tensors.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};

use fourfold_executor::{RegularFile, chain};
use rten_onnx::onnx::DataType;
use rten_onnx::protobuf::DecodeMessage;

use super::problem::shown;
use super::proto;
use super::reader::Reader;
use super::stored::{Files, Stored, floats, integers};
use crate::error::ImportError;

/// The maximum number of values of a list attribute.
const MAX_LIST: u64 = 1 << 16;
/// The maximum size of a text attribute.
const MAX_TEXT: u64 = 1 << 16;
/// The first opset with FP4 types.
const FP4_OPSET: i64 = 23;
/// The first IR version with FP4 types.
const FP4_IR: i64 = 11;

/// A checked model.
pub(super) struct Model {
    pub(super) files: Files,
    pub(super) producer: String,
    /// In an order in which each node follows the nodes that it reads.
    pub(super) nodes: Vec<Node>,
    /// Initializers and constants.
    pub(super) stored: Vec<Stored>,
    /// Positions in `stored`, by name.
    pub(super) stored_by_name: HashMap<String, usize>,
    /// Inputs that no initializer defines.
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Input>,
    /// Repaired defects, one sentence each.
    pub(super) notes: Vec<String>,
    opsets: HashMap<String, i64>,
}

/// An input or output.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) ty: DataType,
    /// `None` if the model states no shape.
    pub(super) shape: Option<Vec<Extent>>,
}

/// A stated extent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Extent {
    Fixed(u64),
    Named(String),
    Unknown,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) op: String,
    pub(super) domain: String,
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
    pub(super) attributes: BTreeMap<String, Attribute>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attribute {
    Int(i64),
    Float(f32),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    /// The position of a stored tensor.
    Tensor(usize),
    Graph,
    /// A list of texts, a type, or a reference to an attribute of a function.
    Other,
}

impl Node {
    /// A name for messages: the op, and the node's name or first output.
    pub(super) fn label(&self) -> String {
        let name =
            if self.name.is_empty() { self.outputs.first().map_or("", String::as_str) } else { &self.name };
        format!("node `{}` ({})", shown(name), self.operator())
    }

    /// The op with its domain, such as `trt::TRT_FP4QDQ`.
    pub(super) fn operator(&self) -> String {
        match self.domain.as_str() {
            "" => shown(&self.op),
            domain => format!("{}::{}", shown(domain), shown(&self.op)),
        }
    }

    /// The op if it is of the standard domain, else the op after its domain.
    pub(super) fn is(&self, domain: &str, op: &str) -> bool {
        self.op == op && self.domain == domain
    }

    /// An input; `None` if it is omitted.
    pub(super) fn input(&self, position: usize) -> Option<&str> {
        self.inputs.get(position).map(String::as_str).filter(|name| !name.is_empty())
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        match self.attributes.get(name) {
            Some(Attribute::Int(value)) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attributes.get(name) {
            Some(Attribute::Ints(values)) => Some(values),
            _ => None,
        }
    }

    pub(super) fn float(&self, name: &str) -> Option<f32> {
        match self.attributes.get(name) {
            Some(Attribute::Float(value)) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.attributes.get(name) {
            Some(Attribute::Text(value)) => Some(value),
            _ => None,
        }
    }
}

impl Model {
    /// Reads and checks a model.
    pub(super) fn load(path: &Path) -> Result<Model, ImportError> {
        let file = RegularFile::open(path)?;
        let wrong = |reason: String| ImportError::Malformed { path: path.to_owned(), reason };
        let decoded = proto::Model::decode(Reader::new(&file));
        let decoded = decoded.map_err(|error| wrong(format!("it is not an ONNX file: {error}")))?;
        let graph =
            decoded.graph.ok_or_else(|| wrong("it is not an ONNX file: it has no graph".to_owned()))?;
        if decoded.has_functions {
            return Err(wrong("it defines functions, which are not supported; inline them".to_owned()));
        }
        if graph.has_sparse {
            return Err(wrong("it has sparse initializers, which are not supported".to_owned()));
        }
        let mut opsets = HashMap::new();
        for opset in decoded.opsets {
            opsets.insert(standard(opset.domain), opset.version);
        }
        let mut builder = Building {
            files: Files::new(file),
            stored: Vec::new(),
            by_name: HashMap::new(),
            nodes: Vec::new(),
            producers: HashMap::new(),
            notes: Vec::new(),
        };
        builder.defects(decoded.ir_version, &opsets, &graph);
        for tensor in graph.initializers {
            let name = tensor.name.clone();
            builder.store(&name, tensor).map_err(wrong)?;
        }
        for node in graph.nodes {
            builder.node(node).map_err(wrong)?;
        }
        let inputs = graph.inputs.into_iter().filter(|input| !builder.by_name.contains_key(&input.name));
        let inputs = inputs.map(input).collect::<Result<Vec<Input>, String>>().map_err(wrong)?;
        let outputs = graph.outputs.into_iter().map(input).collect::<Result<Vec<Input>, String>>();
        let outputs = outputs.map_err(wrong)?;
        builder.check_names(&inputs, &outputs).map_err(wrong)?;
        builder.sort().map_err(wrong)?;
        Ok(Model {
            files: builder.files,
            producer: decoded.producer.unwrap_or_default(),
            nodes: builder.nodes,
            stored: builder.stored,
            stored_by_name: builder.by_name,
            inputs,
            outputs,
            notes: builder.notes,
            opsets,
        })
    }

    /// The version of the operators of a domain; `None` if the model does not state it.
    pub(super) fn opset(&self, domain: &str) -> Option<i64> {
        self.opsets.get(domain).copied()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.files.model.path().to_owned()
    }

    /// The stored tensor with this name.
    pub(super) fn stored(&self, name: &str) -> Option<&Stored> {
        self.stored_by_name.get(name).map(|at| &self.stored[*at])
    }

    /// The position of the node that defines each tensor.
    pub(super) fn producers(&self) -> HashMap<&str, usize> {
        let mut producers = HashMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for output in node.outputs.iter().filter(|output| !output.is_empty()) {
                producers.insert(output.as_str(), at);
            }
        }
        producers
    }
}

/// The domain of the standard operators has two names.
fn standard(domain: String) -> String {
    if domain == "ai.onnx" { String::new() } else { domain }
}

fn input(info: proto::ValueInfo) -> Result<Input, String> {
    let name = shown(&info.name);
    let Some(tensor) = info.ty.and_then(|ty| ty.tensor) else {
        return Err(format!("`{name}` is not a tensor, but a sequence, map or optional value"));
    };
    let extent = |extent: proto::Extent| match (extent.value, extent.param) {
        (Some(value), _) => match u64::try_from(value) {
            Ok(value) => Ok(Extent::Fixed(value)),
            // Some exporters write -1 for an unknown extent.
            Err(_) if value == -1 => Ok(Extent::Unknown),
            Err(_) => Err(format!("`{name}` has the extent {value}")),
        },
        (None, Some(param)) if !param.is_empty() => Ok(Extent::Named(param)),
        _ => Ok(Extent::Unknown),
    };
    let shape = tensor.shape.map(|shape| shape.dims.into_iter().map(extent).collect::<Result<Vec<_>, _>>());
    Ok(Input { name: info.name.clone(), ty: DataType(tensor.element), shape: shape.transpose()? })
}

/// A model while it is read.
struct Building {
    files: Files,
    stored: Vec<Stored>,
    by_name: HashMap<String, usize>,
    nodes: Vec<Node>,
    /// The node that defines each tensor.
    producers: HashMap<String, usize>,
    notes: Vec<String>,
}

impl Building {
    /// Notes versions that are too low for the types in use, and domains without a version.
    fn defects(&mut self, ir: Option<i64>, opsets: &HashMap<String, i64>, graph: &proto::Graph) {
        let fp4 = |tensor: &proto::Tensor| tensor.data_type == DataType::FLOAT4E2M1.0;
        if graph.initializers.iter().any(fp4) {
            if let Some(ir) = ir.filter(|ir| *ir < FP4_IR) {
                self.notes
                    .push(format!("Repaired: the file states IR version {ir}, but FP4 needs {FP4_IR}."));
            }
            if let Some(opset) = opsets.get("").filter(|opset| **opset < FP4_OPSET) {
                self.notes
                    .push(format!("Repaired: the file states opset {opset}, but FP4 needs {FP4_OPSET}."));
            }
        }
        let domains: HashSet<&str> = graph.nodes.iter().map(|node| node.domain.as_str()).collect();
        let mut missing: Vec<&str> = domains
            .into_iter()
            .filter(|domain| !opsets.contains_key(&standard((*domain).to_owned())))
            .collect();
        missing.sort_unstable();
        for domain in missing {
            let name = if domain.is_empty() { "the standard operators".to_owned() } else { shown(domain) };
            self.notes.push(format!("Repaired: the file states no opset of {name}; the latest is assumed."));
        }
    }

    fn store(&mut self, name: &str, tensor: proto::Tensor) -> Result<usize, String> {
        let stored = Stored::of(name, tensor, &mut self.files)?;
        self.add(stored)
    }

    fn add(&mut self, stored: Stored) -> Result<usize, String> {
        let at = self.stored.len();
        if self.by_name.insert(stored.name.clone(), at).is_some() {
            return Err(format!("two constants have the name `{}`", shown(&stored.name)));
        }
        self.stored.push(stored);
        Ok(at)
    }

    fn node(&mut self, node: proto::Node) -> Result<(), String> {
        let mut made = Node {
            name: node.name,
            op: node.op,
            domain: standard(node.domain),
            inputs: node.inputs,
            outputs: node.outputs,
            attributes: BTreeMap::new(),
        };
        let is_constant = made.is("", "Constant");
        for attribute in node.attributes {
            let (name, label) = (attribute.name.clone(), made.label());
            // The tensor of a constant is stored with the name of its result.
            let stored_as = match made.outputs.first() {
                Some(output) if is_constant && name == "value" => output.clone(),
                _ => format!("{label}.{name}.{}", self.stored.len()),
            };
            let value =
                self.attribute(attribute, &stored_as).map_err(|reason| format!("{label}: {reason}"))?;
            if made.attributes.insert(name.clone(), value).is_some() {
                return Err(format!("{label}: the attribute `{}` is given twice", shown(&name)));
            }
        }
        if is_constant && self.constant(&made)? {
            return Ok(());
        }
        let at = self.nodes.len();
        for output in made.outputs.iter().filter(|output| !output.is_empty()) {
            if let Some(first) = self.producers.get(output) {
                if (Node { name: String::new(), ..made.clone() })
                    == (Node { name: String::new(), ..self.nodes[*first].clone() })
                {
                    self.notes.push(format!("Repaired: {} occurs twice.", made.label()));
                    return Ok(());
                }
                return Err(format!(
                    "{} and {} both define `{}`",
                    self.nodes[*first].label(),
                    made.label(),
                    shown(output)
                ));
            }
        }
        for output in made.outputs.iter().filter(|output| !output.is_empty()) {
            self.producers.insert(output.clone(), at);
        }
        self.nodes.push(made);
        Ok(())
    }

    fn attribute(&mut self, attribute: proto::Attribute, stored_as: &str) -> Result<Attribute, String> {
        let file = &self.files.model;
        let named = |reason: String| format!("attribute `{}`: {reason}", shown(&attribute.name));
        if attribute.has_graph {
            return Ok(Attribute::Graph);
        }
        if attribute.is_reference {
            return Ok(Attribute::Other);
        }
        // proto3 writers omit a value of zero.
        Ok(match attribute.kind {
            1 => Attribute::Float(attribute.float.unwrap_or(0.0)),
            2 => Attribute::Int(attribute.int.unwrap_or(0)),
            3 => {
                let Some(span) = attribute.string else { return Ok(Attribute::Text(String::new())) };
                if span.length > MAX_TEXT {
                    return Err(named(format!("its text has more than {MAX_TEXT} bytes")));
                }
                let bytes = file.read(span.start, span.length).map_err(|error| named(chain(&error)))?;
                let text = String::from_utf8(bytes).map_err(|_| named("its text is not UTF-8".to_owned()))?;
                Attribute::Text(text)
            }
            4 => match attribute.tensor {
                Some(tensor) => Attribute::Tensor(self.store(stored_as, *tensor)?),
                None => return Err(named("it has no tensor".to_owned())),
            },
            6 => {
                let values = floats(&attribute.floats, file).map_err(named)?;
                if values.len() as u64 > MAX_LIST {
                    return Err(named(format!("it has more than {MAX_LIST} values")));
                }
                Attribute::Floats(values)
            }
            7 => Attribute::Ints(integers(&attribute.ints, file, MAX_LIST).map_err(named)?),
            _ => Attribute::Other,
        })
    }

    /// Stores the value of a constant. Returns false for one of a form that is refused as a node.
    fn constant(&mut self, node: &Node) -> Result<bool, String> {
        let [output] = &node.outputs[..] else { return Ok(false) };
        let (name, value) = match node.attributes.iter().next() {
            Some((name, value)) if node.attributes.len() == 1 => (name.as_str(), value),
            _ => return Ok(false),
        };
        let floats =
            |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let ints = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let stored = match (name, value) {
            ("value", Attribute::Tensor(_)) => return Ok(true),
            ("value_float", Attribute::Float(value)) => {
                Stored::here(output, Vec::new(), DataType::FLOAT, floats(&[*value]))
            }
            ("value_int", Attribute::Int(value)) => {
                Stored::here(output, Vec::new(), DataType::INT64, ints(&[*value]))
            }
            ("value_floats", Attribute::Floats(values)) => {
                Stored::here(output, vec![values.len() as u64], DataType::FLOAT, floats(values))
            }
            ("value_ints", Attribute::Ints(values)) => {
                Stored::here(output, vec![values.len() as u64], DataType::INT64, ints(values))
            }
            _ => return Ok(false),
        };
        self.add(stored)?;
        Ok(true)
    }

    /// Checks that every tensor that is read has one definition.
    fn check_names(&self, inputs: &[Input], outputs: &[Input]) -> Result<(), String> {
        let mut names = HashSet::new();
        for input in inputs {
            if input.name.is_empty() || !names.insert(input.name.as_str()) {
                return Err(format!("two inputs have the name `{}`", shown(&input.name)));
            }
        }
        for node in &self.nodes {
            for output in &node.outputs {
                if names.contains(output.as_str()) || self.by_name.contains_key(output) {
                    return Err(format!(
                        "{} defines `{}`, which an input or a constant defines too",
                        node.label(),
                        shown(output)
                    ));
                }
            }
        }
        let is_defined = |name: &str| {
            names.contains(name) || self.by_name.contains_key(name) || self.producers.contains_key(name)
        };
        for node in &self.nodes {
            let mut inputs = node.inputs.iter().filter(|name| !name.is_empty());
            if let Some(name) = inputs.find(|name| !is_defined(name)) {
                return Err(format!("{} reads `{}`, which nothing defines", node.label(), shown(name)));
            }
        }
        match outputs.iter().find(|output| !is_defined(&output.name)) {
            Some(output) => Err(format!("nothing defines the output `{}`", shown(&output.name))),
            None => Ok(()),
        }
    }

    /// Orders the nodes, with as few moves as possible.
    fn sort(&mut self) -> Result<(), String> {
        let mut missing: Vec<usize> = Vec::with_capacity(self.nodes.len());
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut is_sorted = true;
        for (at, node) in self.nodes.iter().enumerate() {
            let producers: HashSet<usize> =
                node.inputs.iter().filter_map(|input| self.producers.get(input).copied()).collect();
            is_sorted &= producers.iter().all(|producer| *producer < at);
            missing.push(producers.len());
            for producer in producers {
                readers[producer].push(at);
            }
        }
        if is_sorted {
            return Ok(());
        }
        let mut ready: VecDeque<usize> = (0..missing.len()).filter(|at| missing[*at] == 0).collect();
        let mut order = Vec::with_capacity(missing.len());
        while let Some(at) = ready.pop_front() {
            order.push(at);
            for reader in &readers[at] {
                missing[*reader] -= 1;
                if missing[*reader] == 0 {
                    ready.push_back(*reader);
                }
            }
        }
        if let Some(at) = missing.iter().position(|count| *count > 0) {
            return Err(format!("the graph has a cycle: {} depends on itself", self.nodes[at].label()));
        }
        let mut nodes: Vec<Option<Node>> = std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        self.nodes = order.into_iter().filter_map(|at| nodes[at].take()).collect();
        self.notes.push("Repaired: the file lists nodes before the nodes that they read.".to_owned());
        Ok(())
    }
}
