//! Translates nodes to ops.

mod casts;
mod elementwise;
mod experts;
mod finish;
mod moves;
mod products;
mod quantization;
mod reductions;
mod shapes;
mod state;
mod values;

use fourfold_ir::{ReduceKind, UnaryKind};
use rten_onnx::onnx::DataType;

pub(super) use self::finish::{Finished, Wanted};
use self::reductions::Before;
pub(super) use self::state::{Source, Translator};
use super::model::{Attribute, Node};
use super::problem::Problem;

impl Translator<'_> {
    /// Translates a node, whose inputs are translated.
    pub(super) fn node(&mut self, node: &Node) -> Result<(), Problem> {
        self.origins.begin(self.out.op_count(), node.label());
        if node.attributes.values().any(|value| *value == Attribute::Graph) {
            return self.refuse(node, "it has a subgraph; control flow has no equivalent");
        }
        match (node.domain.as_str(), node.op.as_str()) {
            ("", _) => match self.with_aligned_operand(node)? {
                Some(aligned) => self.standard(&aligned),
                None => self.standard(node),
            },
            ("trt", "TRT_FP4DynamicQuantize") => self.fp4_dynamic_quantize(node),
            ("trt", "TRT_FP4QDQ") => self.fp4_qdq(node),
            ("trt", "TRT_MXFP8DynamicQuantize") => self.mxfp8_dynamic_quantize(node),
            ("trt", "TRT_MXFP8DequantizeLinear") => self.mxfp8_dequantize(node),
            ("com.microsoft", "MatMulBlockQuantizedFp4Weight") => self.matmul_fp4_weight(node),
            ("com.microsoft", "QMoE") => self.qmoe(node),
            ("com.microsoft", "Gelu") => self.unary(node, UnaryKind::Gelu),
            _ => self.refuse(node, format!("the operator {} has no equivalent", node.operator())),
        }
    }

    fn standard(&mut self, node: &Node) -> Result<(), Problem> {
        let op = node.op.as_str();
        let folds = elementwise::binary_of(op).is_some()
            || elementwise::predicate_of(op).is_some()
            || matches!(op, "Mod" | "Where" | "Not" | "Neg" | "Abs" | "And" | "Or");
        if folds && self.fold_elementwise(node)? {
            return Ok(());
        }
        if let Some(kind) = elementwise::unary_of(op) {
            return self.unary(node, kind);
        }
        if let Some(kind) = elementwise::binary_of(op) {
            return self.binary(node, kind);
        }
        if let Some(predicate) = elementwise::predicate_of(op) {
            return self.compare(node, predicate);
        }
        match op {
            "Where" => self.choose(node),
            "Gelu" => self.gelu(node),
            "Swish" => self.swish(node),
            "Clip" => self.clip(node),
            "Pow" => self.power(node),
            "Cast" => {
                let to = node.int("to").and_then(|to| i32::try_from(to).ok()).unwrap_or(0);
                self.cast(node, DataType(to))
            }
            "MatMul" => self.matmul(node),
            "Gemm" => self.gemm(node),
            "QuantizeLinear" => self.quantize_linear(node),
            "DequantizeLinear" => self.dequantize_linear(node),
            "Identity" => self.same(node),
            "Dropout" => self.dropout(node),
            "Softmax" => self.softmax(node, false),
            "LogSoftmax" => self.softmax(node, true),
            "LayerNormalization" => self.layer_norm(node),
            "RMSNormalization" => self.rms_norm(node),
            "ReduceSum" => self.reduce(node, Before::Same, ReduceKind::Sum, None),
            "ReduceMean" => self.reduce(node, Before::Same, ReduceKind::Mean, None),
            "ReduceMax" => self.reduce(node, Before::Same, ReduceKind::Max, None),
            "ReduceMin" => self.reduce(node, Before::Same, ReduceKind::Min, None),
            "ReduceL1" => self.reduce(node, Before::Magnitude, ReduceKind::Sum, None),
            "ReduceL2" => self.reduce(node, Before::Square, ReduceKind::Sum, Some(UnaryKind::Sqrt)),
            "ReduceLogSumExp" => self.reduce_log_sum_exp(node),
            "ReduceLogSum" => self.reduce(node, Before::Same, ReduceKind::Sum, Some(UnaryKind::Log)),
            "ReduceSumSquare" => self.reduce(node, Before::Square, ReduceKind::Sum, None),
            "Reshape" => self.reshape(node),
            "Transpose" => self.transpose(node),
            "Squeeze" => self.squeeze(node),
            "Unsqueeze" => self.unsqueeze(node),
            "Flatten" => self.flatten(node),
            "Expand" => self.expand(node),
            "Shape" => self.shape_op(node),
            "Size" => self.size(node),
            "ConstantOfShape" => self.constant_of_shape(node),
            "Range" => self.range(node),
            "Concat" if self.fold_concat(node)? => Ok(()),
            "Gather" if self.fold_gather(node)? => Ok(()),
            "Slice" if self.fold_slice(node)? => Ok(()),
            "Concat" => self.concat(node),
            "Gather" => self.gather(node),
            "Slice" => self.slice(node),
            "Split" => self.split(node),
            "Pad" => self.pad(node),
            "Trilu" => self.triangle(node),
            _ => self.refuse(node, format!("the operator {} has no equivalent", node.operator())),
        }
    }
}
