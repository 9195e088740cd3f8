//! A graph of ONNX Runtime, read once. It is valid only during the call that passes it.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::ptr;

use ort_sys::{
    ONNXTensorElementDataType, OrtGraph, OrtNode, OrtOpAttr, OrtOpAttrType, OrtValue, OrtValueInfo,
};

use crate::api::{Api, Type, call, text};
use crate::error::ProviderError;

/// The largest attribute that is read: the weights of an EPContext.
const MAX_ATTRIBUTE: usize = i32::MAX as usize;

/// A graph. Values have names, which are unique; an omitted input or output has an empty one.
pub struct Graph {
    /// In an order in which each node follows those that it reads.
    pub nodes: Vec<Node>,
    pub values: HashMap<String, Value>,
    /// The outputs of the graph.
    pub outputs: HashSet<String>,
    /// The versions of the operators of each domain.
    pub opsets: Vec<(String, i64)>,
    pub ir_version: i64,
    /// The file of the model; empty for a model in memory.
    pub model_path: PathBuf,
}

/// A node.
pub struct Node {
    pub raw: *const OrtNode,
    pub name: String,
    pub op: String,
    pub domain: String,
    pub inputs: Vec<String>,
    /// Values that subgraphs of the node read.
    pub implicit_inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attributes: Vec<(String, Attribute)>,
}

/// A value.
pub struct Value {
    raw: *const OrtValueInfo,
    /// `None` if it is no tensor.
    pub ty: Option<Type>,
    /// True if it is an initializer that no caller replaces.
    pub is_constant: bool,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Int(i64),
    Float(f32),
    Text(Vec<u8>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    /// A tensor, a subgraph or a list of texts.
    Other,
}

impl Node {
    /// The node's name, or that of its first output, and its operator, for messages.
    pub fn label(&self) -> String {
        let name =
            if self.name.is_empty() { self.outputs.first().map_or("", String::as_str) } else { &self.name };
        format!("node `{name}` ({})", self.op)
    }

    /// True for an operator of the standard domain.
    pub fn is(&self, op: &str) -> bool {
        self.op == op && (self.domain.is_empty() || self.domain == "ai.onnx")
    }

    /// True for an operator of ONNX Runtime.
    pub fn is_microsoft(&self, op: &str) -> bool {
        self.op == op && self.domain == "com.microsoft"
    }

    /// An attribute that is text.
    pub fn text(&self, name: &str) -> Option<&[u8]> {
        self.attributes.iter().find_map(|(known, value)| match value {
            Attribute::Text(text) if known == name => Some(text.as_slice()),
            _ => None,
        })
    }

    /// An attribute that is an integer.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.attributes.iter().find_map(|(known, value)| match value {
            Attribute::Int(value) if known == name => Some(*value),
            _ => None,
        })
    }
}

/// Calls a function of the table that fills a list, after the function that counts it.
macro_rules! list {
    ($api:expr, $object:expr, $count:ident, $fill:ident, $ty:ty) => {{
        let mut count = 0usize;
        call!($api, $count($object, &raw mut count))?;
        let mut list: Vec<$ty> = vec![ptr::null(); count];
        call!($api, $fill($object, list.as_mut_ptr().cast(), count))?;
        list
    }};
}

impl Graph {
    /// Reads a graph.
    ///
    /// # Safety
    /// The graph is live, and stays so as long as the result is used.
    pub unsafe fn read(api: Api, graph: *const OrtGraph) -> Result<Graph, ProviderError> {
        let mut read = Graph {
            nodes: Vec::new(),
            values: HashMap::new(),
            outputs: HashSet::new(),
            opsets: Vec::new(),
            ir_version: 0,
            model_path: PathBuf::new(),
        };
        // SAFETY: the caller vouches for the graph, which owns its nodes and values; lists have the stated lengths.
        unsafe {
            call!(api, Graph_GetOnnxIRVersion(graph, &raw mut read.ir_version))?;
            read.model_path = model_path(api, graph)?;
            let mut count = 0;
            call!(api, Graph_GetNumOperatorSets(graph, &raw mut count))?;
            let (mut domains, mut versions) = (vec![ptr::null::<c_char>(); count], vec![0i64; count]);
            call!(api, Graph_GetOperatorSets(graph, domains.as_mut_ptr(), versions.as_mut_ptr(), count))?;
            read.opsets = domains.into_iter().map(|domain| text(domain)).zip(versions).collect();
            for output in list!(api, graph, Graph_GetNumOutputs, Graph_GetOutputs, *const OrtValueInfo) {
                let name = read.value(api, output)?;
                read.outputs.insert(name);
            }
            for node in list!(api, graph, Graph_GetNumNodes, Graph_GetNodes, *const OrtNode) {
                let node = read.node(api, node)?;
                read.nodes.push(node);
            }
        }
        read.sort();
        Ok(read)
    }

    /// Reads the names of the inputs and outputs of a node.
    ///
    /// # Safety
    /// The node is live.
    pub unsafe fn ends(api: Api, node: *const OrtNode) -> Result<(Vec<String>, Vec<String>), ProviderError> {
        // SAFETY: the caller vouches for the node, which owns its values.
        unsafe {
            let inputs = list!(api, node, Node_GetNumInputs, Node_GetInputs, *const OrtValueInfo);
            let outputs = list!(api, node, Node_GetNumOutputs, Node_GetOutputs, *const OrtValueInfo);
            let name = |value: *const OrtValueInfo| match value.is_null() {
                true => Ok(String::new()),
                false => api.value_name(value),
            };
            let names = |values: Vec<_>| values.into_iter().map(name).collect::<Result<Vec<String>, _>>();
            Ok((names(inputs)?, names(outputs)?))
        }
    }

    unsafe fn node(&mut self, api: Api, raw: *const OrtNode) -> Result<Node, ProviderError> {
        let [mut name, mut op, mut domain] = [ptr::null::<c_char>(); 3];
        let (mut inputs, mut outputs, mut implicit_inputs) = (Vec::new(), Vec::new(), Vec::new());
        let mut attributes = Vec::new();
        // SAFETY: the node belongs to a live graph.
        unsafe {
            call!(api, Node_GetName(raw, &raw mut name))?;
            call!(api, Node_GetOperatorType(raw, &raw mut op))?;
            call!(api, Node_GetDomain(raw, &raw mut domain))?;
            for value in list!(api, raw, Node_GetNumInputs, Node_GetInputs, *const OrtValueInfo) {
                inputs.push(self.value(api, value)?);
            }
            for value in
                list!(api, raw, Node_GetNumImplicitInputs, Node_GetImplicitInputs, *const OrtValueInfo)
            {
                implicit_inputs.push(self.value(api, value)?);
            }
            for value in list!(api, raw, Node_GetNumOutputs, Node_GetOutputs, *const OrtValueInfo) {
                outputs.push(self.value(api, value)?);
            }
            for raw in list!(api, raw, Node_GetNumAttributes, Node_GetAttributes, *const OrtOpAttr) {
                let mut name = ptr::null();
                call!(api, OpAttr_GetName(raw, &raw mut name))?;
                attributes.push((text(name), attribute(api, raw)?));
            }
            let (name, op, domain) = (text(name), text(op), text(domain));
            Ok(Node { raw, name, op, domain, inputs, implicit_inputs, outputs, attributes })
        }
    }

    /// Records a value, and returns its name.
    unsafe fn value(&mut self, api: Api, raw: *const OrtValueInfo) -> Result<String, ProviderError> {
        if raw.is_null() {
            return Ok(String::new());
        }
        // SAFETY: the value belongs to a live graph.
        unsafe {
            let name = api.value_name(raw)?;
            if !name.is_empty() && !self.values.contains_key(&name) {
                let mut is_constant = false;
                call!(api, ValueInfo_IsConstantInitializer(raw, &raw mut is_constant))?;
                let ty = api.value_type(raw)?;
                self.values.insert(name.clone(), Value { raw, ty, is_constant });
            }
            Ok(name)
        }
    }

    /// Orders nodes behind those that they read. ONNX Runtime promises no order.
    fn sort(&mut self) {
        let producers = self.producers();
        let mut order = Vec::with_capacity(self.nodes.len());
        // 0: not visited, 1: its inputs are being visited, 2: in order.
        let mut state = vec![0u8; self.nodes.len()];
        for root in 0..self.nodes.len() {
            let mut stack = vec![root];
            while let Some(&at) = stack.last() {
                let before = if state[at] == 0 { self.nodes[at].reads() } else { Vec::new() };
                let before = before.into_iter().filter_map(|name| producers.get(name).copied());
                let open: Vec<usize> = before.filter(|before| state[*before] == 0 && *before != at).collect();
                if state[at] == 0 && !open.is_empty() {
                    state[at] = 1;
                    stack.extend(open);
                    continue;
                }
                stack.pop();
                if state[at] != 2 {
                    state[at] = 2;
                    order.push(at);
                }
            }
        }
        let mut nodes: Vec<Option<Node>> = std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
        self.nodes = order.into_iter().filter_map(|at| nodes[at].take()).collect();
    }

    /// The position of the node that computes each value.
    pub fn producers(&self) -> HashMap<String, usize> {
        let outputs = self.nodes.iter().enumerate();
        outputs
            .flat_map(|(at, node)| node.outputs.iter().map(move |name| (name.clone(), at)))
            .filter(|(name, _)| !name.is_empty())
            .collect()
    }

    /// The element type of a value; 0 if it is no tensor.
    pub fn element(&self, name: &str) -> i32 {
        self.values.get(name).and_then(|value| value.ty.as_ref()).map_or(0, |ty| ty.element)
    }

    pub fn is_constant(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| value.is_constant)
    }

    /// The type and the bytes of an initializer.
    ///
    /// # Safety
    /// The graph is live, and the name is that of a constant.
    pub unsafe fn constant(&self, api: Api, name: &str) -> Result<Option<(Type, *const u8)>, ProviderError> {
        let Some(value) = self.values.get(name).filter(|value| value.is_constant) else { return Ok(None) };
        let mut tensor: *const OrtValue = ptr::null();
        // SAFETY: the caller vouches for the graph, which owns its initializers.
        unsafe {
            call!(api, ValueInfo_GetInitializerValue(value.raw, &raw mut tensor))?;
            if tensor.is_null() { Ok(None) } else { api.tensor(tensor).map(Some) }
        }
    }
}

impl Node {
    /// The values that the node and its subgraphs read.
    pub fn reads(&self) -> Vec<&str> {
        let all = self.inputs.iter().chain(&self.implicit_inputs).map(String::as_str);
        all.filter(|name| !name.is_empty()).collect()
    }
}

unsafe fn model_path(api: Api, graph: *const OrtGraph) -> Result<PathBuf, ProviderError> {
    let mut path = ptr::null();
    // SAFETY: the graph is live, and owns the path.
    unsafe {
        call!(api, Graph_GetModelPath(graph, &raw mut path))?;
        #[cfg(windows)]
        {
            use std::os::windows::ffi::OsStringExt;
            let length = (0..).take_while(|at| !path.is_null() && *path.add(*at) != 0).count();
            Ok(std::ffi::OsString::from_wide(crate::api::slice(path, length)).into())
        }
        #[cfg(not(windows))]
        Ok(PathBuf::from(text(path)))
    }
}

unsafe fn attribute(api: Api, raw: *const OrtOpAttr) -> Result<Attribute, ProviderError> {
    use OrtOpAttrType::{
        ORT_OP_ATTR_FLOAT, ORT_OP_ATTR_FLOATS, ORT_OP_ATTR_INT, ORT_OP_ATTR_INTS, ORT_OP_ATTR_STRING,
    };
    let mut kind = 0i32;
    // SAFETY: the attribute is live; the enum is written to an integer of its size.
    unsafe { call!(api, OpAttr_GetType(raw, (&raw mut kind).cast()))? };
    let known =
        [ORT_OP_ATTR_INT, ORT_OP_ATTR_INTS, ORT_OP_ATTR_FLOAT, ORT_OP_ATTR_FLOATS, ORT_OP_ATTR_STRING];
    let Some(kind) = known.into_iter().find(|known| *known as i32 == kind) else {
        return Ok(Attribute::Other);
    };
    let mut size = 0usize;
    // SAFETY: without a buffer, the call states the size, and fails.
    unsafe {
        let status = (api.ort.ReadOpAttr)(raw, kind, ptr::null_mut::<c_void>(), 0, &raw mut size);
        let _ = api.checked("ReadOpAttr", status);
    }
    if size > MAX_ATTRIBUTE {
        return Ok(Attribute::Other);
    }
    let mut bytes = vec![0u8; size];
    if size > 0 {
        // SAFETY: the buffer has the stated size.
        unsafe { call!(api, ReadOpAttr(raw, kind, bytes.as_mut_ptr().cast(), size, &raw mut size))? };
    }
    bytes.truncate(size);
    let ints = |bytes: &[u8]| {
        let chunks = bytes.as_chunks::<8>().0.iter();
        chunks.map(|chunk| i64::from_ne_bytes(*chunk)).collect::<Vec<i64>>()
    };
    let floats = |bytes: &[u8]| {
        let chunks = bytes.as_chunks::<4>().0.iter();
        chunks.map(|chunk| f32::from_ne_bytes(*chunk)).collect::<Vec<f32>>()
    };
    Ok(match kind {
        ORT_OP_ATTR_INT => Attribute::Int(ints(&bytes).first().copied().unwrap_or(0)),
        ORT_OP_ATTR_FLOAT => Attribute::Float(floats(&bytes).first().copied().unwrap_or(0.0)),
        ORT_OP_ATTR_INTS => Attribute::Ints(ints(&bytes)),
        ORT_OP_ATTR_FLOATS => Attribute::Floats(floats(&bytes)),
        _ => Attribute::Text(bytes),
    })
}

/// Element types by their names in ONNX Runtime.
pub mod element {
    use super::ONNXTensorElementDataType as Type;

    pub const FLOAT: i32 = Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT as i32;
    pub const FLOAT16: i32 = Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 as i32;
    pub const BFLOAT16: i32 = Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 as i32;
    pub const UINT8: i32 = Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 as i32;
    pub const FLOAT8E4M3FN: i32 = Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN as i32;
    pub const FLOAT8E5M2: i32 = Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2 as i32;
    pub const FLOAT4E2M1: i32 = Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1 as i32;
    pub const FLOAT8E8M0: i32 = Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0 as i32;

    /// True for the types that pass between regions and other providers.
    pub fn is_float(element: i32) -> bool {
        matches!(element, FLOAT | FLOAT16 | BFLOAT16)
    }

    /// True for the types of quantized values.
    pub fn is_quantized(element: i32) -> bool {
        matches!(element, FLOAT4E2M1 | FLOAT8E4M3FN | FLOAT8E5M2 | FLOAT8E8M0)
    }

    /// The size of an element in bits; `None` for types that no program has.
    pub fn bits(element: i32) -> Option<u64> {
        Some(match element {
            FLOAT4E2M1 => 4,
            // uint8, int8, bool and the 8-bit floats.
            UINT8 | 3 | 9 | FLOAT8E4M3FN | FLOAT8E5M2 | FLOAT8E8M0 => 8,
            FLOAT16 | BFLOAT16 => 16,
            // f32, int32.
            FLOAT | 6 => 32,
            // int64, f64.
            7 | 11 => 64,
            _ => return None,
        })
    }
}
