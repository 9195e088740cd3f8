//! The JSON form of a torch.export graph, as `import/torch/fourfold_export.py` writes it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;

/// The value of `format` in the file.
pub(super) const FORMAT: &str = "fourfold.torch";

/// The version of the form.
pub(super) const VERSION: u32 = 1;

/// A graph: nodes in topological order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Graph {
    pub format: String,
    pub version: u32,
    /// The safetensors file beside the graph that holds all tensors.
    pub tensors: String,
    pub inputs: Vec<Input>,
    pub parameters: Vec<Parameter>,
    pub nodes: Vec<Node>,
    pub outputs: Vec<Json>,
}

/// An argument of the graph.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    pub name: String,
    #[serde(rename = "type")]
    pub ty: TensorMeta,
}

/// A parameter, buffer or constant. It has either `tensor` and `type`, or `nvfp4`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameter {
    pub name: String,
    pub tensor: Option<String>,
    #[serde(rename = "type")]
    pub ty: Option<TensorMeta>,
    pub nvfp4: Option<Nvfp4>,
}

/// An NVFP4 tensor of torchao: the names of its parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nvfp4 {
    /// U8 `[N, K/2]`, low nibble first.
    pub codes: String,
    /// F8_E4M3, `[N, K/16]` or in blocked layout.
    pub scales: String,
    /// True if the scales are in blocked layout.
    pub swizzled: bool,
    /// F32 scalar, multiplied.
    pub per_tensor_scale: Option<String>,
    /// The quantization of the other operand; none for weight-only tensors.
    pub activation: Option<Activation>,
    /// The shape in elements, and the type of dequantized values.
    #[serde(rename = "type")]
    pub ty: TensorMeta,
}

/// The quantization of an activation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Activation {
    /// True if each call computes the per-tensor scale from its largest magnitude.
    pub dynamic: bool,
    /// F32 scalar.
    pub per_tensor_scale: Option<String>,
}

/// One operation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub name: String,
    pub op: String,
    pub args: Vec<Json>,
    pub kwargs: BTreeMap<String, Json>,
    /// A tensor type, a list of them, an extent, or null.
    #[serde(rename = "type")]
    pub ty: Json,
}

/// The type of a tensor: torch's name of the element type, and extents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorMeta {
    pub dtype: String,
    pub shape: Vec<Extent>,
}

/// A number, or a product of numbers and symbols such as `4*B*S`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Extent {
    Number(u64),
    Text(String),
}
