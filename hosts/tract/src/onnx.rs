//! Loads the ops of this crate from ONNX files.

use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use crate::error::Error;
use crate::format::Format;
use crate::ops::{BlockDequantize, BlockQuantize, ScaledMm};

/// The domain of the ops in ONNX files.
pub const DOMAIN: &str = "fourfold";

/// Adds `ScaledMm`, `BlockQuantize` and `BlockDequantize` of the domain `fourfold` to an ONNX loader.
pub fn register_ops(onnx: &mut Onnx) {
    onnx.op_register.insert("ScaledMm", scaled_mm);
    onnx.op_register.insert("BlockQuantize", block_quantize);
    onnx.op_register.insert("BlockDequantize", block_dequantize);
}

/// An ONNX loader with the ops of tract and of this crate.
pub fn onnx() -> Onnx {
    let mut onnx = tract_onnx::onnx();
    register_ops(&mut onnx);
    onnx
}

type Built = TractResult<(Box<dyn InferenceOp>, Vec<String>)>;

/// Checks the domain and the number of inputs, and reads the attribute `format`.
fn format(node: &NodeProto, op: &'static str) -> Result<Format, Error> {
    if node.domain != DOMAIN {
        let message = format!("node `{}` has the domain `{}`, not `{DOMAIN}`", node.name, node.domain);
        return Err(Error::op(op, message));
    }
    let name: Option<&str> = node.get_attr_opt("format").map_err(Error::Tract)?;
    let name = name.unwrap_or("nvfp4");
    Format::from_name(name).ok_or_else(|| {
        Error::op(op, format!("node `{}` has the format `{name}`, not `nvfp4` or `mxfp4`", node.name))
    })
}

fn check_inputs(node: &NodeProto, op: &'static str, wanted: &[usize]) -> Result<(), Error> {
    let found = node.input.iter().filter(|input| !input.is_empty()).count();
    if wanted.contains(&found) {
        return Ok(());
    }
    Err(Error::op(op, format!("node `{}` has {found} inputs, not {wanted:?}", node.name)))
}

fn scaled_mm(_context: &ParsingContext, node: &NodeProto) -> Built {
    let format = format(node, "ScaledMm")?;
    check_inputs(node, "ScaledMm", &[4, 5])?;
    let output = match node.get_attr_opt("output")?.unwrap_or("f32") {
        "f32" => DatumType::F32,
        "f16" => DatumType::F16,
        other => {
            let message = format!("node `{}` has the output type `{other}`, not `f32` or `f16`", node.name);
            return Err(Error::op("ScaledMm", message).into());
        }
    };
    Ok((expand(Loaded::ScaledMm(ScaledMm { format, output })), vec![]))
}

fn block_quantize(_context: &ParsingContext, node: &NodeProto) -> Built {
    let format = format(node, "BlockQuantize")?;
    check_inputs(node, "BlockQuantize", &[1 + usize::from(format == Format::Nvfp4)])?;
    Ok((expand(Loaded::Quantize(BlockQuantize { format })), vec![]))
}

fn block_dequantize(_context: &ParsingContext, node: &NodeProto) -> Built {
    let format = format(node, "BlockDequantize")?;
    check_inputs(node, "BlockDequantize", &[2])?;
    Ok((expand(Loaded::Dequantize(BlockDequantize { format })), vec![]))
}

/// An op before tract knows its types. Types and shapes that do not fit are found by the op's `output_facts`.
#[derive(Clone, Debug)]
enum Loaded {
    ScaledMm(ScaledMm),
    Quantize(BlockQuantize),
    Dequantize(BlockDequantize),
}

impl Loaded {
    fn op(&self) -> Box<dyn TypedOp> {
        match self {
            Loaded::ScaledMm(op) => Box::new(op.clone()),
            Loaded::Quantize(op) => Box::new(op.clone()),
            Loaded::Dequantize(op) => Box::new(op.clone()),
        }
    }
}

impl Expansion for Loaded {
    fn name(&self) -> StaticName {
        self.op().name()
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(if matches!(self, Loaded::Quantize(_)) { 2 } else { 1 })
    }

    fn runs_out_of_plan(&self) -> bool {
        !matches!(self, Loaded::Dequantize(_))
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        model.wire_node(prefix, self.op(), inputs)
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        let byte = u8::datum_type();
        match self {
            Loaded::ScaledMm(op) => {
                for input in &inputs[..4] {
                    solver.equals(&input.datum_type, byte)?;
                }
                solver.equals(&outputs[0].datum_type, op.output)?;
                solver.given_2(&inputs[0].shape, &inputs[2].shape, move |solver, mut a, b| {
                    if let (Some(last), Some(n)) = (a.last_mut(), b.first()) {
                        *last = n.clone();
                    }
                    solver.equals(&outputs[0].shape, a)
                })
            }
            Loaded::Quantize(op) => {
                for (output, elements) in outputs.iter().zip([2, op.format.block() as u64]) {
                    solver.equals(&output.datum_type, byte)?;
                    solver.given(&inputs[0].shape, move |solver, mut shape| {
                        if let Some(last) = shape.last_mut() {
                            *last = last.clone() / elements;
                        }
                        solver.equals(&output.shape, shape)
                    })?;
                }
                Ok(())
            }
            Loaded::Dequantize(_) => {
                for input in inputs {
                    solver.equals(&input.datum_type, byte)?;
                }
                solver.equals(&outputs[0].datum_type, f32::datum_type())?;
                solver.given(&inputs[0].shape, move |solver, mut shape| {
                    if let Some(last) = shape.last_mut() {
                        *last = last.clone() * 2;
                    }
                    solver.equals(&outputs[0].shape, shape)
                })
            }
        }
    }
}
