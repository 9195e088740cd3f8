//! compressed-tensors, as llm-compressor and AutoRound write it: `weight_packed`, `weight_scale`,
//! `weight_global_scale`, `input_global_scale`.
//!
//! Global scales of NVFP4 divide; every other scale multiplies.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{ElementType, ScaleRounding};
use serde_json::Value;

use super::patterns::Patterns;
use super::weights::{BlockScales, block_scaled, contradiction, fp4_extents, fp8, is_filled, unsupported};
use crate::checkpoint::Checkpoint;
use crate::fields::{Fields, Refusal, require_dtype};
use crate::imported::LeftOutCode;
use crate::linear::{Activation, Convention, Linear, Scales};

/// The configuration of a checkpoint.
pub(super) struct CompressedTensors<'a> {
    groups: Groups<'a>,
    ignored: Patterns<'a>,
    /// The reason that no module can be read.
    refused: Option<String>,
}

/// The sources of the treatment of activations.
enum Groups<'a> {
    /// `config_groups` of compressed-tensors.
    Listed(Vec<Group<'a>>),
    /// The configuration of AutoRound, which has one group.
    AutoRound(&'a Value),
    /// There is no configuration.
    Unknown,
}

/// A group of the configuration.
struct Group<'a> {
    config: &'a Value,
    /// The storage formats of the group and of the whole configuration.
    formats: [&'a Value; 2],
    targets: Patterns<'a>,
}

/// The treatment of activations that a group states.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stated {
    Plain,
    /// Quantized like the weights.
    Quantized,
    /// In another way: the setting that differs.
    Other(String),
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

    /// The names of the storage formats with weights of this form.
    fn formats(self) -> &'static [&'static str] {
        match self {
            Form::Nvfp4 => &["nvfp4-pack-quantized"],
            Form::Mxfp4 => &["mxfp4-pack-quantized"],
            Form::Mxfp8 => &["mxfp8-quantized", "mxfp8-pack-quantized"],
            Form::Fp8 => &["float-quantized", "naive-quantized"],
        }
    }

    /// The strategy of weights, and that of activations that are quantized like them.
    fn strategy(self) -> &'static str {
        match self {
            Form::Nvfp4 => "tensor_group",
            Form::Mxfp4 | Form::Mxfp8 => "group",
            Form::Fp8 => "tensor",
        }
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
            let ignored = Patterns::default();
            return CompressedTensors { groups: Groups::Unknown, ignored, refused: None };
        };
        let group = |group: &'a Value| Group {
            config: group,
            formats: [&group["format"], &config["format"]],
            targets: Patterns::new([&group["targets"]]),
        };
        let groups = match config.get("config_groups").and_then(Value::as_object) {
            Some(groups) => Groups::Listed(groups.values().map(group).collect()),
            None => Groups::AutoRound(config),
        };
        let keys = ["transform_config", "sparsity_config", "hadamard_config", "rotation_config"];
        let refused = keys.into_iter().find(|key| is_filled(&config[*key]));
        CompressedTensors {
            groups,
            ignored: Patterns::new([&config["ignore"]]),
            refused: refused.map(|key| format!("`{key}` of the configuration is not empty")),
        }
    }

    pub(super) fn read(&self, mut fields: Fields<'_>) -> Result<Linear, Refusal> {
        let module = fields.module();
        if let Some(reason) = &self.refused {
            return Err(unsupported(reason));
        }
        if let Some(pattern) = self.ignored.of(module).or_else(|| self.ignored.linears()) {
            let message =
                format!("the configuration ignores `{module}` by `{pattern}`, but its weight is quantized");
            return Err(contradiction(message));
        }
        let unknown = self.ignored.unknown.iter();
        let notes = unknown.map(|pattern| format!("The pattern `{pattern}` of `ignore` is not evaluated."));
        let notes = notes.collect();
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
        Ok(Linear { name, n, k, weight, activation, input_factor: None, bias, notes })
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
            (Stated::Other(setting), _) => {
                return Err(unsupported(format!("the activations of `{}`: {setting}", fields.module())));
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
            Groups::Listed(groups) => {
                let stated = groups.iter().filter(|group| group.has(module));
                let stated = stated.filter_map(|group| of_group(group, form));
                stated.collect::<Result<_, _>>()?
            }
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
                "no group of the configuration targets `{module}` and has its weights ({form:?})"
            ))),
            (Some(one), _) if stated.len() == 1 => Ok(one.clone()),
            (Some(_), Some(quantized)) if stated.contains(&quantized) => Ok(quantized),
            _ => Err(Refusal::new(
                LeftOutCode::AmbiguousFormat,
                format!("groups of the configuration differ in the activations of `{module}`"),
            )),
        }
    }
}

impl Group<'_> {
    /// Returns true if the group targets a module.
    fn has(&self, module: &str) -> bool {
        let targets = &self.targets;
        !is_filled(&self.config["targets"])
            || targets.linears().is_some()
            || targets.of(module).is_some()
            // An expression that is not understood may match.
            || targets.unknown.is_some()
    }
}

/// The treatment of activations in a group; `None` if its weights have another form.
fn of_group(group: &Group<'_>, form: Form) -> Option<Result<Stated, Refusal>> {
    let weights = group.config.get("weights")?;
    if weights["type"] != "float" || weights["num_bits"] != form.bits() {
        return None;
    }
    let size = |arguments: &Value| arguments.get("group_size").and_then(Value::as_u64);
    if size(weights) != form.group_size() {
        return None;
    }
    let mut formats = group.formats.iter().filter_map(|format| format.as_str());
    if let Some(format) =
        formats.find(|format| *format != "mixed-precision" && !form.formats().contains(format))
    {
        let message =
            format!("the configuration states the storage format `{format}`, but weights are {form:?}");
        return Some(Err(contradiction(message)));
    }
    if let Some(setting) = differs(weights, form, &[false.into(), Value::Null]) {
        return Some(Err(unsupported(format!("weights with {setting}"))));
    }
    if is_filled(&group.config["output_activations"]) {
        return Some(Ok(Stated::Other("`output_activations` of the configuration".to_owned())));
    }
    let activations = &group.config["input_activations"];
    if !activations.is_object() {
        return Some(Ok(Stated::Plain));
    }
    if activations["type"] != "float" || activations["num_bits"] != form.bits() {
        let (bits, ty) = (&activations["num_bits"], &activations["type"]);
        return Some(Ok(Stated::Other(format!("`num_bits` {bits}, `type` {ty}"))));
    }
    if size(activations) != form.group_size() {
        return Some(Ok(Stated::Other(format!("`group_size` {}", activations["group_size"]))));
    }
    let dynamic: &[Value] = match form {
        Form::Nvfp4 => &["local".into(), Value::Null],
        Form::Mxfp4 | Form::Mxfp8 => &[true.into(), Value::Null],
        // FP8 activations that are dynamic have one scale per row.
        Form::Fp8 => &[false.into()],
    };
    Some(Ok(differs(activations, form, dynamic).map_or(Stated::Quantized, Stated::Other)))
}

/// The setting of weights or activations that differs from those of a form.
fn differs(arguments: &Value, form: Form, dynamic: &[Value]) -> Option<String> {
    let strategy: &[Value] = &[form.strategy().into(), Value::Null];
    // A static order of quantization is that of the stored columns.
    let order: &[Value] = &["weight".into(), "static".into(), false.into(), Value::Null];
    let all = [
        ("symmetric", &[true.into(), Value::Null][..]),
        ("actorder", order),
        ("strategy", strategy),
        ("dynamic", dynamic),
        ("block_structure", &[Value::Null]),
    ];
    let (key, _) = all.into_iter().find(|(key, expected)| !expected.contains(&arguments[*key]))?;
    Some(format!("`{key}` {}", arguments[key]))
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
    let size = form.group_size().map_or(Value::Null, Value::from);
    let act_size =
        if config["act_bits"].as_u64().is_some_and(|bits| bits < 16) { size.clone() } else { Value::Null };
    for (key, expected) in [
        ("sym", Value::from(true)),
        ("act_sym", true.into()),
        ("group_size", size),
        ("act_group_size", act_size),
    ] {
        let is_stated = !config[key].is_null() && !expected.is_null();
        if is_stated && config[key] != expected {
            return Err(unsupported(format!("`{key}` {} of the configuration", config[key])));
        }
    }
    Ok(Some(match config["act_bits"].as_u64() {
        Some(bits) if bits >= 16 => Stated::Plain,
        Some(bits) if bits == form.bits() && form == Form::Nvfp4 => Stated::Quantized,
        // AutoRound's exponent rule is not that of compressed-tensors in every version.
        bits => Stated::Other(format!("`act_bits` {bits:?} of AutoRound")),
    }))
}
