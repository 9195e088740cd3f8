//! NVIDIA ModelOpt: `weight`, `weight_scale`, `weight_scale_2`, `input_scale`, `pre_quant_scale`.
//!
//! Scales multiply. The algorithm decides the treatment of activations, since the tensors do not.

use fourfold_executor::{AxisSlice, TensorEncoding};
use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{ElementType, ScaleLayout, ScaleRounding};
use serde_json::Value;

use super::patterns::Patterns;
use super::weights::{
    BlockScales, block_scaled, blocks_of, contradiction, fp4_extents, fp8, is_filled, unsupported,
};
use crate::checkpoint::{Checkpoint, Tensor};
use crate::fields::{
    Fields, Refusal, join, require_dtype, require_shape, scalar, stored, stored_as, times, wrong_shape,
};
use crate::imported::LeftOutCode;
use crate::linear::{Activation, Convention, Linear, Scales, Weight};

use Convention::Multiply;

/// The configuration of a ModelOpt export.
pub(super) struct ModelOpt<'a> {
    /// In upper case.
    algorithm: String,
    /// The algorithm in the other file, if it differs.
    other: Option<String>,
    /// The algorithms of layers, with `MIXED_PRECISION`.
    layers: Option<&'a serde_json::Map<String, Value>>,
    /// The modules that are not quantized.
    ignored: Patterns<'a>,
    /// The groups of config.json: their targets, and their settings.
    groups: Vec<(Patterns<'a>, &'a Value)>,
    /// The size of blocks in hf_quant_config.json.
    group_size: &'a Value,
    /// The reason that no module can be read.
    refused: Option<String>,
}

/// The weights and activations of an algorithm.
struct Expected {
    /// The form of the weights in words.
    form: &'static str,
    bits: u64,
    /// The number of weights that share a scale; `None` if all do.
    block: Option<u64>,
    /// The bits of quantized activations.
    activations: Option<u64>,
}

impl<'a> ModelOpt<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint) -> ModelOpt<'a> {
        let places = [&checkpoint.config["quantization_config"], &checkpoint.hf_quant_config["quantization"]];
        let algorithms: Vec<String> = places
            .iter()
            .filter_map(|place| Some(place.get("quant_algo")?.as_str()?.to_ascii_uppercase()))
            .collect();
        let algorithm = algorithms.first().cloned().unwrap_or_default();
        let lists = [&places[0]["ignore"], &places[1]["exclude_modules"]];
        let groups = places[0].get("config_groups").and_then(Value::as_object);
        let groups = groups.into_iter().flat_map(serde_json::Map::values);
        ModelOpt {
            other: algorithms.get(1).filter(|other| **other != algorithm).cloned(),
            algorithm,
            layers: places.iter().find_map(|place| place.get("quantized_layers")?.as_object()),
            ignored: Patterns::new(lists),
            groups: groups.map(|group| (Patterns::new([&group["targets"]]), group)).collect(),
            group_size: &places[1]["group_size"],
            refused: places.iter().find_map(|place| {
                let keys = ["rotate", "rotation", "has_zero_point"];
                let key = keys.into_iter().find(|key| is_enabled(&place[*key]))?;
                Some(format!("`{key}` of the configuration"))
            }),
        }
    }

    /// Checks that what the configuration states beside the algorithm agrees with it.
    fn check_groups(&self, algorithm: &str, expected: &Expected, module: &str) -> Result<(), Refusal> {
        let layer = self.layers.map_or(&Value::Null, |layers| &layers[module]);
        for size in [self.group_size, &layer["group_size"]] {
            if size.as_u64().is_some_and(|size| Some(size) != expected.block && size != 0)
                && !(self.algorithm == "MIXED_PRECISION" && std::ptr::eq(size, self.group_size))
            {
                let message = format!("the configuration states `{algorithm}` and the group size {size}");
                return Err(contradiction(message));
            }
        }
        let mut groups = self.groups.iter().filter(|(targets, group)| {
            !is_filled(&group["targets"]) || targets.linears().is_some() || targets.of(module).is_some()
        });
        let mut first = None;
        let agrees = groups.any(|(_, group)| match group_differs(group, expected) {
            None => true,
            Some(difference) => {
                first.get_or_insert(difference);
                false
            }
        });
        match first {
            Some(difference) if !agrees => Err(contradiction(format!(
                "the configuration states `{algorithm}`, but its group for `{module}` has {difference}"
            ))),
            _ => Ok(()),
        }
    }

    /// The algorithm of a module, in upper case.
    fn algorithm(&self, module: &str) -> Result<String, Refusal> {
        if let Some(other) = &self.other {
            let first = &self.algorithm;
            let message = format!("config.json states `{first}`, but hf_quant_config.json states `{other}`");
            return Err(contradiction(message));
        }
        if let Some(reason) = &self.refused {
            return Err(unsupported(reason));
        }
        if self.ignored.of(module).is_some() {
            let message = format!("the configuration excludes `{module}`, but its weight is quantized");
            return Err(contradiction(message));
        }
        if self.algorithm != "MIXED_PRECISION" {
            return Ok(self.algorithm.clone());
        }
        let layer = self.layers.and_then(|layers| layers.get(module)?.get("quant_algo")?.as_str());
        layer.map(str::to_ascii_uppercase).ok_or_else(|| {
            contradiction(format!("`quantized_layers` does not name `{module}`, but its weight is quantized"))
        })
    }

    pub(super) fn read(&self, mut fields: Fields<'_>) -> Result<Linear, Refusal> {
        let module = fields.module();
        let algorithm = self.algorithm(module)?;
        let weight = fields.need("weight")?;
        let scale = fields.need("weight_scale")?;
        let ([n, k], weight) = match weight.dtype.as_str() {
            "U8" => fp4(&mut fields, weight, scale)?,
            "F8_E4M3" => fp8(weight, scale)?,
            _ => {
                require_dtype(weight, &["U8", "F8_E4M3"])?;
                return Err(unsupported(format!("`{}`", weight.name)));
            }
        };
        let activation = self.activation(&algorithm, &weight, &mut fields)?;
        let input_factor = fields.take("pre_quant_scale");
        let linear = Linear {
            name: module.to_owned(),
            n,
            k,
            weight,
            activation,
            input_factor: input_factor.map(|tensor| stored(tensor, &[k])).transpose()?,
            bias: fields.bias(n)?,
            notes: Vec::new(),
        };
        fields.finish()?;
        Ok(linear)
    }

    /// The activation of an algorithm. Fails if the algorithm has other weights.
    fn activation(
        &self,
        algorithm: &str,
        weight: &Weight,
        fields: &mut Fields<'_>,
    ) -> Result<Activation, Refusal> {
        let form = form_of(weight);
        let expected = expected(algorithm)?;
        if form != expected.form {
            let (module, expected) = (fields.module(), expected.form);
            let message = format!("`{module}` has {form}, but `{algorithm}` has {expected}");
            return Err(contradiction(message));
        }
        self.check_groups(algorithm, &expected, fields.module())?;
        Ok(match algorithm {
            "NVFP4" | "NVFP4_AWQ" => {
                Activation::Nvfp4(fields.need_scalar("input_scale", Multiply)?, Nvfp4Formula::DEFAULT)
            }
            "W4A8_NVFP4_FP8" | "FP8" => Activation::Fp8(fields.need_scalar("input_scale", Multiply)?),
            "MXFP4" => Activation::Mx(ElementType::F4E2M1FN, ScaleRounding::Ceil),
            "MXFP8" => Activation::Mx(ElementType::F8E4M3FN, ScaleRounding::Ceil),
            _ => Activation::Plain,
        })
    }

    /// Reads the experts of `module`, stacked under `field`: codes `[E, K/2, N]`, packed along K.
    pub(super) fn read_experts(&self, fields: &mut Fields<'_>, field: &str) -> Result<Vec<Linear>, Refusal> {
        let module = fields.module();
        let algorithm = self.algorithm(module)?;
        let codes = fields.need(field)?;
        let mut part = |suffix: &str| (fields.take(&format!("{field}{suffix}")), format!("{field}{suffix}"));
        let (scales, global, input, bias) =
            (part("_weight_scale"), part("_weight_scale_2"), part("_input_scale"), part("_bias"));
        let need = |(tensor, field): (Option<&'_ Tensor>, String)| {
            tensor.cloned().ok_or_else(|| {
                let message = format!("the tensor `{}` is missing", join(module, &field));
                Refusal::new(LeftOutCode::MissingTensor, message)
            })
        };
        require_dtype(codes, &["U8"])?;
        let [experts, bytes, n] = codes.shape[..] else {
            return Err(wrong_shape(codes, "[E, K/2, N]"));
        };
        if experts == 0 || bytes == 0 || n == 0 || !matches!(algorithm.as_str(), "NVFP4" | "W4A16_NVFP4") {
            return Err(unsupported(format!("`{}` {} with `{algorithm}`", codes.name, codes.form())));
        }
        self.check_groups(&algorithm, &expected(&algorithm)?, module)?;
        let k = times(codes, bytes, 2)?;
        let (scales, global) = (need(scales)?, scalar(&need(global)?, Multiply)?);
        require_dtype(&scales, &["F8_E4M3"])?;
        require_shape(&scales, &[experts, blocks_of(codes, k, 16)?, n])?;
        let activation = match algorithm.as_str() {
            "NVFP4" => Activation::Nvfp4(scalar(&need(input)?, Multiply)?, Nvfp4Formula::DEFAULT),
            _ => Activation::Plain,
        };
        if let Some(bias) = bias.0 {
            require_shape(bias, &[experts, n])?;
        }
        let expert = |expert: u64| -> Result<Linear, Refusal> {
            let at = |tensor: &Tensor| tensor.reference().sliced(vec![AxisSlice::Index(expert)]);
            let transposed = |tensor: &Tensor| at(tensor).encoded(TensorEncoding::Transposed);
            let weight = Weight {
                codes: transposed(codes),
                element: ElementType::F4E2M1FN,
                scales: Scales::Block {
                    reference: transposed(&scales),
                    element: ElementType::F8E4M3FN,
                    block: 16,
                    layout: ScaleLayout::Linear,
                    global: Some(global.clone()),
                },
            };
            let bias = bias.0.map(|bias| stored_as(bias, at(bias), vec![n])).transpose()?;
            let name = format!("{module}.{expert}.{field}");
            let activation = activation.clone();
            Ok(Linear { name, n, k, weight, activation, input_factor: None, bias, notes: Vec::new() })
        };
        (0..experts).map(expert).collect()
    }
}

/// The weights and activations of an algorithm.
fn expected(algorithm: &str) -> Result<Expected, Refusal> {
    let (form, bits, block, activations) = match algorithm {
        "NVFP4" | "NVFP4_AWQ" => ("FP4 with E4M3 scales per 16", 4, Some(16), Some(4)),
        "W4A16_NVFP4" => ("FP4 with E4M3 scales per 16", 4, Some(16), None),
        "W4A8_NVFP4_FP8" => ("FP4 with E4M3 scales per 32", 4, Some(32), Some(8)),
        "MXFP4" => ("FP4 with E8M0 scales per 32", 4, Some(32), Some(4)),
        "MXFP8" => ("FP8 with E8M0 scales per 32", 8, Some(32), Some(8)),
        "FP8" => ("FP8 with one scale", 8, None, Some(8)),
        other => return Err(unsupported(format!("the algorithm `{other}`"))),
    };
    Ok(Expected { form, bits, block, activations })
}

/// The first setting of a group that contradicts an algorithm.
fn group_differs(group: &Value, expected: &Expected) -> Option<String> {
    let setting = |part: &str, key: &str, value: Value| {
        let stated = &group[part][key];
        (!stated.is_null() && *stated != value).then(|| format!("`{key}` {stated} in `{part}`"))
    };
    let block = expected.block.map_or(Value::Null, Value::from);
    let (weights, inputs) = ("weights", "input_activations");
    let of_weights = setting(weights, "type", "float".into())
        .or_else(|| setting(weights, "num_bits", expected.bits.into()))
        .or_else(|| setting(weights, "group_size", block.clone()))
        .or_else(|| setting(weights, "dynamic", false.into()));
    let has_inputs = is_filled(&group[inputs]);
    let of_inputs = || match expected.activations {
        None => has_inputs.then(|| format!("`{inputs}`")),
        Some(_) if !has_inputs => Some(format!("no `{inputs}`")),
        Some(bits) => {
            // MX activations have no stored scale, so they may be called dynamic.
            let is_fixed = expected.form.contains("E4M3") || expected.block.is_none();
            let of_block = bits == expected.bits;
            setting(inputs, "type", "float".into())
                .or_else(|| setting(inputs, "num_bits", bits.into()))
                .or_else(|| of_block.then(|| setting(inputs, "group_size", block.clone())).flatten())
                .or_else(|| is_fixed.then(|| setting(inputs, "dynamic", false.into())).flatten())
        }
    };
    let of_outputs = || is_filled(&group["output_activations"]).then(|| "`output_activations`".to_owned());
    of_weights.or_else(of_inputs).or_else(of_outputs)
}

/// Returns true for a setting that is on: true, or an object whose `enable` is not false.
fn is_enabled(setting: &Value) -> bool {
    is_filled(setting) && setting["enable"] != false
}

fn fp4(fields: &mut Fields<'_>, weight: &Tensor, scale: &Tensor) -> Result<([u64; 2], Weight), Refusal> {
    let extents @ [n, k] = fp4_extents(weight)?;
    let codes = (weight, weight.reference());
    let element = ElementType::F4E2M1FN;
    if scale.dtype == "U8" {
        let weight = block_scaled(codes, element, extents, (scale, &["U8"]), BlockScales::MX, None)?;
        return Ok((extents, weight));
    }
    // W4A8 has one E4M3 scale per 32 elements, every other algorithm per 16.
    let block = if k.is_multiple_of(32) && scale.shape == [n, k / 32] { 32 } else { 16 };
    let format = BlockScales { block, ..BlockScales::NVFP4 };
    let global = fields.need_scalar("weight_scale_2", Multiply)?;
    let weight = block_scaled(codes, element, extents, (scale, &["F8_E4M3"]), format, Some(global))?;
    Ok((extents, weight))
}

/// The form of a weight in words, as in [`Expected`].
fn form_of(weight: &Weight) -> &'static str {
    match (weight.element, &weight.scales) {
        (_, Scales::Tensor(_)) => "FP8 with one scale",
        (ElementType::F4E2M1FN, Scales::Block { element: ElementType::F8E8M0FNU, .. }) => {
            "FP4 with E8M0 scales per 32"
        }
        (ElementType::F4E2M1FN, Scales::Block { block: 32, .. }) => "FP4 with E4M3 scales per 32",
        (ElementType::F4E2M1FN, Scales::Block { .. }) => "FP4 with E4M3 scales per 16",
        (_, Scales::Block { .. }) => "FP8 with E8M0 scales per 32",
    }
}
