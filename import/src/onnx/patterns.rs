//! Quantization that a graph spells out, as one node.
//!
//! The scales of `block_quantize` come from the block, as in TensorRT's quantizer. A graph of standard operators
//! computes them from the largest magnitude of each block, and passes them to QuantizeLinear. Both give the same bits,
//! except for blocks of zeros: the graph divides 0 by 0 there, and the quantizer writes zeros.

use std::collections::{BTreeMap, HashMap};

use rten_onnx::onnx::DataType;

use super::model::{Attribute, Model, Node};

/// The largest magnitude of FP4.
const FP4_MAX: f32 = 6.0;
/// The block of NVFP4.
const BLOCK: i64 = 16;

/// Replaces each quantization to NVFP4 that the graph spells out by TensorRT's quantizer. Returns their number.
pub(super) fn join_quantizers(model: &mut Model) -> usize {
    let matches: Vec<Match> = {
        let graph = Graph { model, producers: model.producers() };
        model.nodes.iter().enumerate().filter_map(|(at, node)| graph.quantizer(at, node)).collect()
    };
    let mut dropped = vec![false; model.nodes.len()];
    let mut joined = 0;
    for found in matches {
        // Two quantizers may share their scales; then only the first can define them.
        if dropped[found.quantize] || model.nodes[found.cast].domain == "trt" {
            continue;
        }
        let int = |value: i64| Attribute::Int(value);
        let attributes = BTreeMap::from([
            ("axis".to_owned(), int(-1)),
            ("block_size".to_owned(), int(BLOCK)),
            ("scale_type".to_owned(), int(i64::from(DataType::FLOAT8E4M3FN.0))),
        ]);
        let (quantize, cast) = (&model.nodes[found.quantize], &model.nodes[found.cast]);
        let node = Node {
            name: quantize.name.clone(),
            op: "TRT_FP4DynamicQuantize".to_owned(),
            domain: "trt".to_owned(),
            inputs: vec![found.x, found.global],
            outputs: vec![quantize.outputs[0].clone(), cast.outputs[0].clone()],
            attributes,
        };
        // The readers of the scales follow the cast, as the readers of the codes do.
        model.nodes[found.cast] = node;
        dropped[found.quantize] = true;
        joined += 1;
    }
    let mut at = 0;
    model.nodes.retain(|_| {
        at += 1;
        !dropped[at - 1]
    });
    joined
}

/// The nodes and tensors of a quantization that is spelled out.
struct Match {
    quantize: usize,
    cast: usize,
    x: String,
    global: String,
}

struct Graph<'m> {
    model: &'m Model,
    producers: HashMap<&'m str, usize>,
}

impl<'m> Graph<'m> {
    fn producer(&self, tensor: Option<&str>, op: &str) -> Option<(usize, &'m Node)> {
        let at = *self.producers.get(tensor?)?;
        let node = &self.model.nodes[at];
        node.is("", op).then_some((at, node))
    }

    /// Matches e4m3(max|block| / 6 / g) · g as the scale of a QuantizeLinear to FP4.
    fn quantizer(&self, at: usize, node: &'m Node) -> Option<Match> {
        let is_fp4 = node.int("output_dtype") == Some(i64::from(DataType::FLOAT4E2M1.0));
        let along_last = node.int("axis") == Some(-1);
        if !node.is("", "QuantizeLinear") || !is_fp4 || !along_last || node.int("block_size") != Some(BLOCK) {
            return None;
        }
        if node.input(2).is_some() || node.int("saturate") == Some(0) {
            return None;
        }
        let x = node.input(0)?;
        let (_, scale) = self.producer(node.input(1), "DequantizeLinear")?;
        if scale.int("block_size").unwrap_or(0) != 0 || scale.input(2).is_some() {
            return None;
        }
        let global = scale.input(1)?;
        if self.model.stored(global)?.count() != 1 {
            return None;
        }
        let (cast_at, cast) = self.producer(scale.input(0), "Cast")?;
        let to_e4m3 = cast.int("to") == Some(i64::from(DataType::FLOAT8E4M3FN.0));
        if !to_e4m3 || cast.int("saturate") == Some(0) {
            return None;
        }
        let (_, by_global) = self.producer(cast.input(0), "Div")?;
        let (_, by_six) = self.producer(by_global.input(0), "Div")?;
        if by_global.input(1) != Some(global) || self.number(by_six.input(1)?)? != FP4_MAX {
            return None;
        }
        let (_, largest) = self.producer(by_six.input(0), "ReduceMax")?;
        let source = self.blocks(largest)?;
        (source == x).then(|| Match {
            quantize: at,
            cast: cast_at,
            x: x.to_owned(),
            global: global.to_owned(),
        })
    }

    /// Matches the largest magnitude of each block. Returns the tensor that is cut into blocks.
    fn blocks(&self, largest: &'m Node) -> Option<&'m str> {
        let axes = match largest.ints("axes") {
            Some(axes) => axes.to_vec(),
            None => self.list(largest.input(1)?)?,
        };
        let (_, first) =
            self.producer(largest.input(0), "Abs").or_else(|| self.producer(largest.input(0), "Reshape"))?;
        let (_, second) = self.producer(first.input(0), if first.op == "Abs" { "Reshape" } else { "Abs" })?;
        let reshape = if first.op == "Abs" { second } else { first };
        let shape = self.list(reshape.input(1)?)?;
        let last = i64::try_from(shape.len()).ok()? - 1;
        let is_last = matches!(axes[..], [axis] if axis == -1 || axis == last);
        let drops = largest.int("keepdims") == Some(0);
        (is_last && drops && shape.last() == Some(&BLOCK)).then(|| second.input(0)).flatten()
    }

    fn list(&self, tensor: &str) -> Option<Vec<i64>> {
        let stored = self.model.stored(tensor).filter(|stored| stored.count() <= 64)?;
        stored.integers(&self.model.files).ok()?
    }

    fn number(&self, tensor: &str) -> Option<f32> {
        let stored = self.model.stored(tensor).filter(|stored| stored.count() == 1)?;
        stored.tensor(&self.model.files).ok()?.to_f32().first().copied()
    }
}
