//! Finds the linears of a graph: products with a constant weight.

use std::collections::{HashMap, HashSet};

use rten_onnx::onnx::DataType;

use super::model::{Model, Node};
use super::names::word;
use super::stored::Stored;

/// The maximum number of nodes between a product and its weight, or its unquantized input.
const MAX_CHAIN: usize = 32;

/// A product with a constant weight.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    pub(super) name: String,
    /// The positions of the nodes from the input to the result, ascending.
    pub(super) nodes: Vec<usize>,
    /// The tensor that is quantized and multiplied.
    pub(super) x: String,
    /// The result, with the bias if there is one.
    pub(super) y: String,
    /// The extent of the product along K.
    pub(super) k: u64,
    /// True if the weight has a block-scaled or FP8 format.
    pub(super) is_quantized: bool,
}

/// Finds every product with a constant weight, in the order of the nodes.
pub(super) fn find(model: &Model) -> Vec<Linear> {
    let mut readers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, node) in model.nodes.iter().enumerate() {
        for input in node.inputs.iter().filter(|input| !input.is_empty()) {
            readers.entry(input).or_default().push(at);
        }
    }
    let outputs = model.outputs.iter().map(|output| output.name.as_str()).collect();
    let finder = Finder { model, producers: model.producers(), readers, outputs };
    let mut linears: Vec<Linear> = (0..model.nodes.len()).filter_map(|at| finder.linear(at)).collect();
    let mut used: HashMap<String, usize> = HashMap::new();
    for linear in &mut linears {
        let count = used.entry(linear.name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            linear.name = format!("{}_{count}", linear.name);
        }
    }
    linears
}

struct Finder<'m> {
    model: &'m Model,
    producers: HashMap<&'m str, usize>,
    readers: HashMap<&'m str, Vec<usize>>,
    outputs: HashSet<&'m str>,
}

/// The constant weight of a product.
struct Weight<'m> {
    stored: &'m Stored,
    nodes: Vec<usize>,
    is_quantized: bool,
    /// True if an odd number of transpositions follows the stored weight.
    is_transposed: bool,
}

impl<'m> Finder<'m> {
    fn linear(&self, at: usize) -> Option<Linear> {
        let node = &self.model.nodes[at];
        let is_fp4_weight = node.is("com.microsoft", "MatMulBlockQuantizedFp4Weight");
        if !is_fp4_weight && !node.is("", "MatMul") && !node.is("", "Gemm") {
            return None;
        }
        let weight = self.weight(node.input(1)?)?;
        let k = match (&weight.stored.dims[..], is_fp4_weight) {
            ([_, packed], true) => packed.checked_mul(2)?,
            ([.., rows, columns], false) => {
                let is_k_major = weight.is_transposed ^ (node.int("transB").unwrap_or(0) != 0);
                if is_k_major { *columns } else { *rows }
            }
            _ => return None,
        };
        if node.int("transA").unwrap_or(0) != 0 {
            return None;
        }
        let mut nodes = weight.nodes;
        nodes.push(at);
        let x = self.source(node.input(0)?, &mut nodes);
        let y = self.biased(node.outputs.first()?, &mut nodes);
        nodes.sort_unstable();
        nodes.dedup();
        Some(Linear {
            name: name_of(node, &weight.stored.name),
            nodes,
            x: x.to_owned(),
            y: y.to_owned(),
            k,
            is_quantized: weight.is_quantized || is_fp4_weight,
        })
    }

    /// Follows a tensor back to a stored weight, through casts, transpositions and dequantization.
    fn weight(&self, tensor: &'m str) -> Option<Weight<'m>> {
        let mut nodes = Vec::new();
        let (mut is_quantized, mut is_transposed) = (false, false);
        let mut tensor = tensor;
        for _ in 0..MAX_CHAIN {
            if let Some(stored) = self.model.stored(tensor) {
                return Some(Weight { stored, nodes, is_quantized, is_transposed });
            }
            let at = *self.producers.get(tensor)?;
            let node = &self.model.nodes[at];
            match (node.domain.as_str(), node.op.as_str()) {
                ("", "Transpose") => is_transposed = !is_transposed,
                ("", "Cast" | "Identity") | ("trt", "TRT_FP4QDQ") => {}
                ("", "DequantizeLinear") | ("trt", "TRT_MXFP8DequantizeLinear") => {
                    nodes.extend(self.scales(node.input(1)?)?);
                }
                _ => return None,
            }
            is_quantized |= node.op.contains("Dequantize") || node.op == "TRT_FP4QDQ";
            nodes.push(at);
            tensor = node.input(0)?;
        }
        None
    }

    /// The nodes that compute constant scales.
    fn scales(&self, tensor: &'m str) -> Option<Vec<usize>> {
        let mut nodes = Vec::new();
        let mut tensor = tensor;
        for _ in 0..MAX_CHAIN {
            if self.model.stored(tensor).is_some() {
                return Some(nodes);
            }
            let at = *self.producers.get(tensor)?;
            let node = &self.model.nodes[at];
            let is_known =
                matches!(node.op.as_str(), "DequantizeLinear" | "Cast" | "Identity" | "Reshape" | "Squeeze");
            if !is_known || !node.inputs[1..].iter().all(|input| self.model.stored(input).is_some()) {
                return None;
            }
            nodes.push(at);
            tensor = node.input(0)?;
        }
        None
    }

    /// Follows the left operand back to the tensor that is quantized. Adds the nodes on the way.
    fn source(&self, tensor: &'m str, nodes: &mut Vec<usize>) -> &'m str {
        let mut source = tensor;
        for _ in 0..MAX_CHAIN {
            let Some(found) = self.quantized(source, nodes).or_else(|| self.widened(source, nodes)) else {
                break;
            };
            source = found;
        }
        source
    }

    /// The input of a cast between floats.
    fn widened(&self, tensor: &str, nodes: &mut Vec<usize>) -> Option<&'m str> {
        let at = *self.producers.get(tensor)?;
        let node = &self.model.nodes[at];
        let floats = [DataType::FLOAT.0, DataType::FLOAT16.0, DataType::BFLOAT16.0].map(i64::from);
        if !node.is("", "Cast") || !node.int("to").is_some_and(|to| floats.contains(&to)) {
            return None;
        }
        let input = node.input(0)?;
        // The result of a comparison is no activation.
        let from_float = self.producers.get(input).is_none_or(|at| {
            !matches!(
                self.model.nodes[*at].op.as_str(),
                "Equal" | "Less" | "Greater" | "Not" | "Shape" | "Gather"
            )
        });
        if !from_float {
            return None;
        }
        nodes.push(at);
        Some(input)
    }

    /// The input of a quantizer whose result is dequantized.
    fn quantized(&self, tensor: &str, nodes: &mut Vec<usize>) -> Option<&'m str> {
        let at = *self.producers.get(tensor)?;
        let node = &self.model.nodes[at];
        if !matches!(node.op.as_str(), "DequantizeLinear" | "TRT_MXFP8DequantizeLinear") {
            return None;
        }
        let quantizer_at = *self.producers.get(node.input(0)?)?;
        let quantizer = &self.model.nodes[quantizer_at];
        let quantizers = ["QuantizeLinear", "TRT_FP4DynamicQuantize", "TRT_MXFP8DynamicQuantize"];
        if !quantizers.contains(&quantizer.op.as_str()) {
            return None;
        }
        let mut added = vec![at, quantizer_at];
        // The scales are constant, or come from the quantizer.
        let mut scale = node.input(1)?;
        for _ in 0..MAX_CHAIN {
            if self.model.stored(scale).is_some() || quantizer.outputs.iter().any(|output| output == scale) {
                nodes.extend(added);
                return quantizer.input(0);
            }
            let at = *self.producers.get(scale)?;
            let node = &self.model.nodes[at];
            if !node.is("", "DequantizeLinear") || self.model.stored(node.input(1)?).is_none() {
                return None;
            }
            added.push(at);
            scale = node.input(0)?;
        }
        None
    }

    /// The result of adding a constant bias, if nothing else reads the product.
    fn biased(&self, product: &'m str, nodes: &mut Vec<usize>) -> &'m str {
        let Some([reader]) = self.readers.get(product).map(Vec::as_slice) else { return product };
        let node = &self.model.nodes[*reader];
        if !node.is("", "Add") || self.outputs.contains(product) {
            return product;
        }
        let other = node.inputs.iter().find(|input| *input != product);
        let is_list = |stored: &Stored| stored.dims.iter().rev().skip(1).all(|dim| *dim == 1);
        let is_bias = other.and_then(|other| self.model.stored(other)).is_some_and(is_list);
        match node.outputs.first() {
            Some(output) if is_bias => {
                nodes.push(*reader);
                output
            }
            _ => product,
        }
    }
}

/// The name of a linear: the path of its node without the operator, or the name of its weight.
fn name_of(node: &Node, weight: &str) -> String {
    let path: Vec<&str> = node.name.split('/').filter(|part| !part.is_empty()).collect();
    let is_operator = |part: &str| {
        let base = part.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '_');
        base == node.op || part == node.op
    };
    let path: Vec<&str> = match path.split_last() {
        Some((last, rest)) if is_operator(last) => rest.to_vec(),
        _ => path,
    };
    if !path.is_empty() {
        return word(&path.join("."));
    }
    let mut name = weight;
    for suffix in ["_f4", "_quantized", "_fp4", ".weight", "_weight"] {
        name = name.strip_suffix(suffix).filter(|rest| !rest.is_empty()).unwrap_or(name);
    }
    word(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_has_the_name_of_its_module() {
        for (node, weight, expected) in [
            ("/query/MatMul", "query.weight_f4", "query"),
            ("/model/layers.0/mlp/up/MatMul_1", "w", "model.layers.0.mlp.up"),
            ("", "layers.0.up.weight_f4", "layers.0.up"),
            ("/MatMul", "w", "w"),
            ("node_linear_3", "w", "node_linear_3"),
        ] {
            let node = Node {
                name: node.to_owned(),
                op: "MatMul".to_owned(),
                domain: String::new(),
                inputs: Vec::new(),
                outputs: Vec::new(),
                attributes: std::collections::BTreeMap::new(),
            };
            assert_eq!(name_of(&node, weight), expected);
        }
    }
}
