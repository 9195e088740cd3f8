//! torchao: `_weight_qdata`, `_weight_scale`, `_weight_per_tensor_scale`, `_weight_act_per_tensor_scale`.
//!
//! The header of the file describes each tensor in JSON. Scales multiply, and their layout is blocked.

use std::collections::BTreeMap;

use fourfold_ir::numeric::{CodeFormula, Nvfp4Formula, ScaleMin};
use fourfold_ir::{ElementType, ScaleRounding};
use serde_json::Value;

use super::weights::{BlockScales, block_scaled, contradiction, fp4_extents, header_json, unsupported};
use crate::fields::{Fields, Refusal, join, matrix, named_type, require_dtype, scalar};
use crate::imported::LeftOutCode;
use crate::linear::{Activation, Convention, Linear};

use Convention::Multiply;

/// The name of the type that stands for an unquantized tensor.
const PLAIN: &str = "Tensor";

/// The formula of torchao's activations: scales are at least 2^-6, values are multiplied by the reciprocal of their
/// scale, and nothing guards zeros.
pub(crate) fn activation_formula() -> Nvfp4Formula {
    Nvfp4Formula {
        scale_min: ScaleMin::new(2f32.powi(-6)).unwrap_or_default(),
        codes: CodeFormula::ReciprocalScale,
        guard: false,
        ..Nvfp4Formula::DEFAULT
    }
}

/// The description of a tensor in the header: its type and its attributes.
fn description(metadata: &BTreeMap<String, String>, tensor: &str) -> Result<(String, Value), Refusal> {
    let Some(text) = metadata.get(tensor) else {
        let message = format!("the header does not describe the tensor `{tensor}`");
        return Err(Refusal::new(LeftOutCode::AmbiguousFormat, message));
    };
    let value = header_json(text, &format!("the description of `{tensor}` in the header"))?;
    let ty = value["_type"].as_str().unwrap_or_default().to_owned();
    Ok((ty, value["_data"].clone()))
}

/// Returns true if a header describes tensors of torchao.
pub(super) fn is_described(metadata: &BTreeMap<String, String>) -> bool {
    let is_one = |text: &String| {
        text.contains("\"_type\"") && (text.contains("NVFP4Tensor") || text.contains("MXTensor"))
    };
    metadata.contains_key("tensor_names") && metadata.values().any(|text| text.contains("\"_type\""))
        || metadata.values().any(is_one)
}

/// The type of the tensors before quantization.
pub(super) fn original_type(metadata: &BTreeMap<String, String>) -> Option<ElementType> {
    metadata.values().filter(|text| text.contains("orig_dtype")).find_map(|text| {
        let value = header_json(text, "").ok()?;
        named_type(value["_data"]["orig_dtype"]["_data"].as_str()?)
    })
}

pub(super) fn read(metadata: &BTreeMap<String, String>, mut fields: Fields<'_>) -> Result<Linear, Refusal> {
    let module = fields.module();
    let tensor = join(module, "weight");
    let (ty, data) = description(metadata, &tensor)?;
    let codes = fields.need("_weight_qdata")?;
    let scales = fields.need("_weight_scale")?;
    let global = fields.take("_weight_per_tensor_scale");
    let global = global.map(|tensor| scalar(tensor, Multiply)).transpose()?;
    let is_blocked = data["is_swizzled_scales"] == true;
    let layout = |format: BlockScales| if is_blocked { format.blocked() } else { format };
    let (element, extents) = match (ty.as_str(), data["elem_dtype"]["_data"].as_str()) {
        ("NVFP4Tensor", _) | ("MXTensor", Some("float4_e2m1fn_x2")) => {
            (ElementType::F4E2M1FN, fp4_extents(codes)?)
        }
        ("MXTensor", Some("float8_e4m3fn")) => {
            require_dtype(codes, &["F8_E4M3"])?;
            (ElementType::F8E4M3FN, matrix(codes)?)
        }
        (PLAIN, _) => {
            return Err(contradiction(format!("the header calls `{tensor}` a plain tensor")));
        }
        _ => return Err(unsupported(format!("`{tensor}` is a torchao {ty}"))),
    };
    let format = if ty == "NVFP4Tensor" { BlockScales::NVFP4 } else { BlockScales::MX };
    if data["block_size"] != format.block {
        return Err(unsupported(format!("`{tensor}` with the block size {}", data["block_size"])));
    }
    let dtypes: &[&str] = if ty == "NVFP4Tensor" { &["F8_E4M3"] } else { &["F8_E8M0", "U8"] };
    let codes = (codes, codes.reference());
    let weight = block_scaled(codes, element, extents, (scales, dtypes), layout(format), global)?;
    let activation = if ty == "NVFP4Tensor" {
        nvfp4(&data["act_quant_kwargs"], &tensor, &mut fields)?
    } else {
        mx(&data["act_quant_kwargs"], &tensor, element)?
    };
    let ([n, k], name, bias) = (extents, module.to_owned(), fields.bias(extents[0])?);
    fields.finish()?;
    Ok(Linear { name, n, k, weight, activation, input_factor: None, bias, notes: Vec::new() })
}

fn nvfp4(arguments: &Value, tensor: &str, fields: &mut Fields<'_>) -> Result<Activation, Refusal> {
    let scale = fields.take("_weight_act_per_tensor_scale");
    let arguments = &arguments["_data"];
    match (arguments.is_object(), scale) {
        (false, None) => Ok(Activation::Plain),
        (false, Some(scale)) => Err(contradiction(format!(
            "the header states no quantized activations, but there is `{}`",
            scale.name
        ))),
        (true, Some(scale)) if arguments["use_dynamic_per_tensor_scale"] == true => {
            Err(contradiction(format!(
                "the header states a scale of each call for the activations, but there is `{}`",
                scale.name
            )))
        }
        (true, Some(scale)) => Ok(Activation::Nvfp4(scalar(scale, Multiply)?, activation_formula())),
        (true, None) if arguments["use_dynamic_per_tensor_scale"] == true => {
            Ok(Activation::Nvfp4OfCall(activation_formula()))
        }
        (true, None) => Err(unsupported(format!("`{tensor}` whose activations have no global scale"))),
    }
}

fn mx(arguments: &Value, tensor: &str, element: ElementType) -> Result<Activation, Refusal> {
    let arguments = &arguments["_data"];
    if !arguments.is_object() {
        return Ok(Activation::Plain);
    }
    let codes = match arguments["elem_dtype"]["_data"].as_str() {
        Some("float4_e2m1fn_x2") => ElementType::F4E2M1FN,
        Some("float8_e4m3fn") => ElementType::F8E4M3FN,
        _ => return Err(unsupported(format!("the activations of `{tensor}`"))),
    };
    let mode = arguments["scaling_mode"]["_data"].as_str().unwrap_or_default();
    let rounding = match (mode, codes) {
        ("RCEIL", _) => ScaleRounding::Ceil,
        ("FLOOR", _) => ScaleRounding::Floor,
        ("EVEN", ElementType::F4E2M1FN) => ScaleRounding::Even,
        _ => return Err(unsupported(format!("the scaling mode `{mode}` of `{tensor}`"))),
    };
    if codes != element || arguments["block_size"] != 32 {
        return Err(unsupported(format!("activations of `{tensor}` that differ from its weights")));
    }
    Ok(Activation::Mx(codes, rounding))
}
