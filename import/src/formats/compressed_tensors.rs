//! compressed-tensors, as llm-compressor and AutoRound write it: `weight_packed`, `weight_scale`,
//! `weight_global_scale`, `input_global_scale`.
//!
//! Global scales of NVFP4 divide; every other scale multiplies.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{ElementType, ScaleRounding};
use serde_json::Value;

use super::weights::{BlockScales, block_scaled, contradiction, fp4_extents, fp8, unsupported};
use crate::checkpoint::Checkpoint;
use crate::fields::{Fields, Refusal, require_dtype};
use crate::imported::LeftOutCode;
use crate::linear::{Activation, Convention, Linear, Scales};

/// The configuration of a checkpoint.
pub(super) struct CompressedTensors<'a> {
    groups: Groups<'a>,
    ignored: Vec<&'a str>,
    /// The reason that no module can be read.
    refused: Option<String>,
}

/// The sources of the treatment of activations.
enum Groups<'a> {
    /// `config_groups` of compressed-tensors.
    Listed(Vec<&'a Value>),
    /// The configuration of AutoRound, which has one group.
    AutoRound(&'a Value),
    /// There is no configuration.
    Unknown,
}

/// The treatment of activations that a group states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stated {
    Plain,
    /// Quantized like the weights.
    Quantized,
    /// Quantized with other bits, or with one scale per row.
    Other,
}

/// The form of a module's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Nvfp4,
    Mxfp4,
    Mxfp8,
    Fp8,
}

impl Form {
    fn bits(self) -> u64 {
        if matches!(self, Form::Nvfp4 | Form::Mxfp4) { 4 } else { 8 }
    }

    fn group_size(self) -> Option<u64> {
        match self {
            Form::Nvfp4 => Some(16),
            Form::Mxfp4 | Form::Mxfp8 => Some(32),
            Form::Fp8 => None,
        }
    }
}

impl<'a> CompressedTensors<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint) -> CompressedTensors<'a> {
        let places = [&checkpoint.config["quantization_config"], &checkpoint.quantization_config];
        let config = places.into_iter().find(|place| place.is_object());
        let Some(config) = config else {
            return CompressedTensors { groups: Groups::Unknown, ignored: Vec::new(), refused: None };
        };
        let groups = match config.get("config_groups").and_then(Value::as_object) {
            Some(groups) => Groups::Listed(groups.values().collect()),
            None => Groups::AutoRound(config),
        };
        let is_filled =
            |key: &str| config.get(key).and_then(Value::as_object).is_some_and(|object| !object.is_empty());
        let refused = ["transform_config", "sparsity_config"].into_iter().find(|key| is_filled(key));
        let ignored = config.get("ignore").and_then(Value::as_array).into_iter().flatten();
        CompressedTensors {
            groups,
            ignored: ignored.filter_map(Value::as_str).collect(),
            refused: refused.map(|key| format!("`{key}` of the configuration is not empty")),
        }
    }

    pub(super) fn read(&self, mut fields: Fields<'_>) -> Result<Linear, Refusal> {
        let module = fields.module();
        if let Some(reason) = &self.refused {
            return Err(unsupported(reason));
        }
        if self.ignored.contains(&module) {
            let message = format!("the configuration ignores `{module}`, but its weight is quantized");
            return Err(contradiction(message));
        }
        let scale = fields.need("weight_scale")?;
        let (form, [n, k], weight) = if let Some(packed) = fields.take("weight_packed") {
            let extents = fp4_extents(packed)?;
            let (codes, element) = ((packed, packed.reference()), ElementType::F4E2M1FN);
            if scale.dtype == "U8" {
                let format = BlockScales::MX;
                let weight = block_scaled(codes, element, extents, (scale, &["U8"]), format, None)?;
                (Form::Mxfp4, extents, weight)
            } else {
                let global = fields.need_scalar("weight_global_scale", Convention::Divide)?;
                let (scales, format) = ((scale, &["F8_E4M3"][..]), BlockScales::NVFP4);
                let weight = block_scaled(codes, element, extents, scales, format, Some(global))?;
                (Form::Nvfp4, extents, weight)
            }
        } else {
            let weight = fields.need("weight")?;
            require_dtype(weight, &["F8_E4M3"])?;
            let (extents, weight) = fp8(weight, scale)?;
            let is_mx = matches!(weight.scales, Scales::Block { .. });
            (if is_mx { Form::Mxfp8 } else { Form::Fp8 }, extents, weight)
        };
        let activation = self.activation(form, &mut fields)?;
        let (name, bias) = (module.to_owned(), fields.bias(n)?);
        fields.finish()?;
        Ok(Linear { name, n, k, weight, activation, input_factor: None, bias, notes: Vec::new() })
    }

    fn activation(&self, form: Form, fields: &mut Fields<'_>) -> Result<Activation, Refusal> {
        let scale = match form {
            Form::Nvfp4 => Some(("input_global_scale", Convention::Divide)),
            Form::Fp8 => Some(("input_scale", Convention::Multiply)),
            Form::Mxfp4 | Form::Mxfp8 => None,
        };
        let has_scale = scale.is_some_and(|(field, _)| fields.peek(field).is_some());
        let stated = self.stated(form, scale.map(|_| has_scale), fields.module())?;
        Ok(match (stated, form) {
            (Stated::Plain, _) => Activation::Plain,
            (Stated::Other, _) => {
                return Err(unsupported(format!("the activations of `{}`", fields.module())));
            }
            (Stated::Quantized, Form::Mxfp4) => Activation::Mx(ElementType::F4E2M1FN, ScaleRounding::Even),
            (Stated::Quantized, Form::Mxfp8) => Activation::Mx(ElementType::F8E4M3FN, ScaleRounding::Even),
            (Stated::Quantized, Form::Nvfp4) => {
                let global = fields.need_scalar("input_global_scale", Convention::Divide)?;
                Activation::Nvfp4(global, Nvfp4Formula::DEFAULT)
            }
            (Stated::Quantized, Form::Fp8) => {
                Activation::Fp8(fields.need_scalar("input_scale", Convention::Multiply)?)
            }
        })
    }

    /// The treatment that the groups of this form state. `has_scale` decides among several, for forms whose quantized
    /// activations have a stored scale.
    fn stated(&self, form: Form, has_scale: Option<bool>, module: &str) -> Result<Stated, Refusal> {
        let mut stated: Vec<Stated> = match &self.groups {
            Groups::Listed(groups) => groups.iter().filter_map(|group| of_group(group, form)).collect(),
            Groups::AutoRound(config) => of_autoround(config, form)?.into_iter().collect(),
            Groups::Unknown => match has_scale {
                Some(true) => vec![Stated::Quantized],
                Some(false) => vec![Stated::Plain],
                None => {
                    let message =
                        format!("no configuration states if the activations of `{module}` are quantized");
                    return Err(Refusal::new(LeftOutCode::AmbiguousFormat, message));
                }
            },
        };
        stated.dedup();
        let quantized = has_scale.map(|has| if has { Stated::Quantized } else { Stated::Plain });
        match (stated[..].first(), quantized) {
            (None, _) => Err(contradiction(format!(
                "no group of the configuration has the weights of `{module}` ({form:?})"
            ))),
            (Some(one), _) if stated.len() == 1 => Ok(*one),
            (Some(_), Some(quantized)) if stated.contains(&quantized) => Ok(quantized),
            _ => Err(Refusal::new(
                LeftOutCode::AmbiguousFormat,
                format!("groups of the configuration differ in the activations of `{module}`"),
            )),
        }
    }
}

/// The treatment of activations in a group; `None` if its weights have another form.
fn of_group(group: &Value, form: Form) -> Option<Stated> {
    let weights = group.get("weights")?;
    let is_float = weights["type"] == "float";
    if !is_float || weights["num_bits"] != form.bits() {
        return None;
    }
    let size = |arguments: &Value| arguments.get("group_size").and_then(Value::as_u64);
    if size(weights) != form.group_size() {
        return None;
    }
    let activations = &group["input_activations"];
    if !activations.is_object() {
        return Some(Stated::Plain);
    }
    let same = activations["type"] == "float"
        && activations["num_bits"] == form.bits()
        && size(activations) == form.group_size();
    // FP8 activations that are dynamic have one scale per row.
    let is_static =
        form != Form::Fp8 || activations["dynamic"] == false && activations["strategy"] == "tensor";
    Some(if same && is_static { Stated::Quantized } else { Stated::Other })
}

/// The treatment of activations in AutoRound's configuration; `None` if its weights have another form.
fn of_autoround(config: &Value, form: Form) -> Result<Option<Stated>, Refusal> {
    let data_type = config["data_type"].as_str().unwrap_or_default();
    let fits = match form {
        Form::Nvfp4 => data_type.starts_with("nv_fp"),
        Form::Mxfp4 | Form::Mxfp8 => data_type.starts_with("mx_fp"),
        Form::Fp8 => data_type.starts_with("fp"),
    };
    let bits = config["bits"].as_u64();
    if !fits || bits.is_some_and(|bits| bits != form.bits()) {
        return Ok(None);
    }
    Ok(Some(match config["act_bits"].as_u64() {
        Some(bits) if bits >= 16 => Stated::Plain,
        Some(bits) if bits == form.bits() && form == Form::Nvfp4 => Stated::Quantized,
        // AutoRound's exponent rule is not that of compressed-tensors in every version.
        _ => Stated::Other,
    }))
}
