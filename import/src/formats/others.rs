//! Quark, MLX, comfy-kitchen, and the MXFP4 experts of gpt-oss.

use fourfold_executor::TensorEncoding;
use fourfold_ir::{ElementType, ScaleLayout, ScaleRounding};
use serde_json::Value;

use super::patterns::Patterns;
use super::weights::{
    BlockScales, block_scaled, blocks_of, contradiction, fp4_extents, header_json, is_filled, unsupported,
};
use crate::checkpoint::Checkpoint;
use crate::fields::{
    Fields, Refusal, at, matrix, require_dtype, require_shape, stored_as, times, wrong_shape,
};
use crate::imported::LeftOutCode;
use crate::linear::{Activation, Convention, Linear, Scales, Weight};

const FP4: ElementType = ElementType::F4E2M1FN;

/// The keys of a Quark configuration that change linears or blocks in ways that are not imported.
const QUARK_KEYS: [&str; 3] = ["layer_quant_config", "layer_type_quant_config", "softmax_quant_spec"];

/// The algorithms of Quark that change stored weights only.
const QUARK_ALGORITHMS: [&str; 5] = ["awq", "gptq", "gptaq", "smooth", "autosmoothquant"];

/// The reason that a Quark configuration cannot be read.
fn quark_refusal(config: &Value) -> Option<String> {
    if let Some(key) = QUARK_KEYS.into_iter().find(|key| is_filled(&config[*key])) {
        return Some(format!("`{key}` of the configuration is not empty"));
    }
    let algorithms = match &config["algo_config"] {
        Value::Array(algorithms) => &algorithms[..],
        Value::Null => &[],
        one => std::slice::from_ref(one),
    };
    for algorithm in algorithms.iter().filter(|algorithm| is_filled(algorithm)) {
        let name = algorithm["name"].as_str().unwrap_or("without a name");
        if !QUARK_ALGORITHMS.contains(&name) {
            return Some(format!("the algorithm `{name}` in `algo_config` of the configuration"));
        }
    }
    let global = &config["global_quant_config"];
    ["output_tensors", "bias"]
        .into_iter()
        .find(|key| is_filled(&global[*key]))
        .map(|key| format!("`{key}` of `global_quant_config`"))
}

/// The first attribute of a Quark specification that differs from those of MXFP4 along K.
fn differs_from_mxfp4(spec: &Value, is_dynamic: bool) -> Option<String> {
    let is = |key: &str, expected: &[Value]| expected.contains(&spec[key]);
    let all: [(&str, &[Value]); 10] = [
        ("dtype", &["fp4".into()]),
        ("group_size", &[32.into()]),
        ("scale_format", &["e8m0".into()]),
        ("ch_axis", &[(-1).into(), Value::Null]),
        ("qscheme", &["per_group".into(), Value::Null]),
        ("is_dynamic", &[is_dynamic.into(), Value::Null]),
        ("symmetric", &[true.into(), Value::Null]),
        ("is_scale_quant", &[false.into(), Value::Null]),
        ("mx_element_dtype", &[Value::Null]),
        ("round_method", &["half_even".into(), Value::Null]),
    ];
    let (key, _) = all.into_iter().find(|(key, expected)| !is(key, expected))?;
    Some(format!("`{key}` {}", spec[key]))
}

/// Reads a linear of AMD Quark: `weight` and E8M0 scales in `weight_scale`.
pub(super) fn quark(
    checkpoint: &Checkpoint,
    excluded: &Patterns<'_>,
    mut fields: Fields<'_>,
) -> Result<Linear, Refusal> {
    let module = fields.module();
    let config = &checkpoint.config["quantization_config"];
    if let Some(reason) = quark_refusal(config) {
        return Err(unsupported(reason));
    }
    if excluded.of(module).is_some() {
        let message = format!("the configuration excludes `{module}`, but its weight is quantized");
        return Err(contradiction(message));
    }
    let global = &config["global_quant_config"];
    if let Some(attribute) = differs_from_mxfp4(&global["weight"], false) {
        return Err(unsupported(format!("`{module}` with Quark weights of {attribute}")));
    }
    let input = &global["input_tensors"];
    let activation = match input["scale_calculation_mode"].as_str() {
        _ if input.is_null() => Activation::Plain,
        mode => match (mode, differs_from_mxfp4(input, true)) {
            (_, Some(attribute)) => {
                return Err(unsupported(format!("`{module}` with Quark activations of {attribute}")));
            }
            (Some("even"), None) => Activation::Mx(FP4, ScaleRounding::Even),
            (Some("floor"), None) => Activation::Mx(FP4, ScaleRounding::Floor),
            _ => return Err(unsupported(format!("the scale calculation of the activations of `{module}`"))),
        },
    };
    let (codes, scales) = (fields.need("weight")?, fields.need("weight_scale")?);
    let extents @ [n, k] = fp4_extents(codes)?;
    let codes = (codes, codes.reference());
    let weight = block_scaled(codes, FP4, extents, (scales, &["U8"]), BlockScales::MX, None)?;
    let (name, bias) = (module.to_owned(), fields.bias(n)?);
    fields.finish()?;
    Ok(Linear { name, n, k, weight, activation, input_factor: None, bias, notes: Vec::new() })
}

/// Reads a linear of MLX: `weight` in 32-bit words, and `scales` in bytes.
pub(super) fn mlx(checkpoint: &Checkpoint, mut fields: Fields<'_>) -> Result<Linear, Refusal> {
    let module = fields.module();
    let places = [&checkpoint.config["quantization"], &checkpoint.config["quantization_config"]];
    let config = places.into_iter().find(|place| place.is_object()).unwrap_or(&Value::Null);
    // A layer may have a mode of its own.
    let config = config.get(module).filter(|layer| layer.is_object()).unwrap_or(config);
    let mode = config["mode"].as_str().unwrap_or("affine");
    let (format, size) = match mode {
        "nvfp4" => (BlockScales::NVFP4, 16),
        "mxfp4" => (BlockScales::MX, 32),
        _ => return Err(unsupported(format!("`{module}` in the MLX mode `{mode}`"))),
    };
    if config["group_size"] != size || config["bits"] != 4 {
        let message = format!("the mode `{mode}` of `{module}` has 4 bits and groups of {size}");
        return Err(contradiction(message));
    }
    let (codes, scales) = (fields.need("weight")?, fields.need("scales")?);
    require_dtype(codes, &["U32"])?;
    let [n, words] = matrix(codes)?;
    let extents @ [n, k] = [n, times(codes, words, 8)?];
    let codes = (codes, codes.reference());
    let weight = block_scaled(codes, FP4, extents, (scales, &["U8"]), format, None)?;
    let (name, bias) = (module.to_owned(), fields.bias(n)?);
    fields.finish()?;
    let activation = Activation::Plain;
    Ok(Linear { name, n, k, weight, activation, input_factor: None, bias, notes: Vec::new() })
}

/// The key of comfy-kitchen's description in the header.
pub(super) const COMFY_KEY: &str = "_quantization_metadata";

/// The description of comfy-kitchen in the header, or the reason that it cannot be read.
pub(super) fn comfy_description(checkpoint: &Checkpoint) -> Result<Value, Refusal> {
    let text = checkpoint.metadata.get(COMFY_KEY).map_or("", String::as_str);
    header_json(text, &format!("`{COMFY_KEY}` of the header"))
}

/// Reads a linear of comfy-kitchen: ModelOpt's names, but the high nibble first and blocked scales.
pub(super) fn comfy(description: &Result<Value, Refusal>, mut fields: Fields<'_>) -> Result<Linear, Refusal> {
    let module = fields.module();
    let value = description.as_ref().map_err(Refusal::clone)?;
    match value["layers"][module]["format"].as_str() {
        Some("nvfp4") => {}
        Some(other) => return Err(unsupported(format!("`{module}` in the format `{other}`"))),
        None => {
            let message = format!("`{COMFY_KEY}` of the header does not name `{module}`");
            return Err(Refusal::new(LeftOutCode::AmbiguousFormat, message));
        }
    }
    let (codes, scales) = (fields.need("weight")?, fields.need("weight_scale")?);
    let extents @ [n, k] = fp4_extents(codes)?;
    let global = fields.need_scalar("weight_scale_2", Convention::Multiply)?;
    let codes = (codes, codes.reference().encoded(TensorEncoding::HighNibbleFirst));
    let (scales, format) = ((scales, &["F8_E4M3"][..]), BlockScales::NVFP4.blocked());
    let weight = block_scaled(codes, FP4, extents, scales, format, Some(global))?;
    let (name, bias) = (module.to_owned(), fields.bias(n)?);
    fields.finish()?;
    let activation = Activation::Plain;
    Ok(Linear { name, n, k, weight, activation, input_factor: None, bias, notes: Vec::new() })
}

/// Reads the MXFP4 experts of gpt-oss that are stacked under `field`: `_blocks` `[E, N, K/32, 16]` and `_scales`.
pub(super) fn gpt_oss(fields: &mut Fields<'_>, field: &str) -> Result<Vec<Linear>, Refusal> {
    let module = fields.module();
    let blocks = fields.need(&format!("{field}_blocks"))?;
    let scales = fields.need(&format!("{field}_scales"))?;
    let bias = fields.take(&format!("{field}_bias"));
    require_dtype(blocks, &["U8"])?;
    require_dtype(scales, &["U8"])?;
    let [experts, n, groups, 16] = blocks.shape[..] else {
        return Err(wrong_shape(blocks, "[E, N, K/32, 16]"));
    };
    if experts == 0 || n == 0 || groups == 0 {
        return Err(wrong_shape(blocks, "[E, N, K/32, 16], not empty"));
    }
    let k = times(blocks, groups, 32)?;
    require_shape(scales, &[experts, n, blocks_of(blocks, k, 32)?])?;
    if let Some(bias) = bias {
        require_shape(bias, &[experts, n])?;
    }
    let expert = |expert: u64| -> Result<Linear, Refusal> {
        let scales = Scales::Block {
            reference: at(scales, expert),
            element: ElementType::F8E8M0FNU,
            block: 32,
            layout: ScaleLayout::Linear,
            global: None,
        };
        Ok(Linear {
            name: format!("{module}.{expert}.{field}"),
            n,
            k,
            weight: Weight { codes: at(blocks, expert), element: FP4, scales },
            activation: Activation::Plain,
            input_factor: None,
            bias: bias.map(|bias| stored_as(bias, at(bias, expert), vec![n])).transpose()?,
            notes: Vec::new(),
        })
    };
    (0..experts).map(expert).collect()
}
