//! The settings of a model that change what its blocks compute.
//!
//! A configuration has hundreds of keys, so an unknown one decides nothing. A key that is known to change a block must
//! have its neutral value.

use fourfold_ir::UnaryKind;
use serde_json::Value;

use self::Neutral::{One, True, Unset, Words, Zero};

/// The values of a setting that change nothing, beside null.
enum Neutral {
    /// False, or empty.
    Unset,
    /// False, or 0.
    Zero,
    /// 1, or a list of 1.
    One,
    True,
    Words(&'static [&'static str]),
}

/// The settings of feed-forward blocks.
const FEED_FORWARD: &[(&str, Neutral)] = &[
    ("activation_sparsity_pattern", Unset),
    ("gate_multiplier", One),
    ("mlp_multiplier", One),
    ("mlp_multipliers", One),
    ("swiglu_alpha", Unset),
    ("swiglu_limit", Unset),
    ("swiglu_limits", Unset),
];

/// The settings of mixtures of experts.
const EXPERTS: &[(&str, Neutral)] = &[
    ("moe_router_use_sigmoid", Unset),
    ("n_group", One),
    ("n_shared_experts", Zero),
    ("num_shared_experts", Zero),
    ("routed_scaling_factor", One),
    ("router_scaling_factor", One),
    ("scoring_func", Words(&["softmax"])),
    ("shared_expert_intermediate_size", Zero),
    ("topk_group", One),
    ("use_routing_bias", Unset),
];

/// The settings of whole blocks.
const BLOCK: &[(&str, Neutral)] = &[
    ("add_cross_attention", Unset),
    ("alibi", Unset),
    ("apply_layernorm_1p", Unset),
    ("apply_residual_connection_post_layernorm", Unset),
    ("attention_in_multiplier", One),
    ("attention_k_eq_v", Unset),
    ("attention_multiplier", Unset),
    ("attention_out_multiplier", One),
    ("attention_output_gate", Unset),
    ("attention_scale", Unset),
    ("attention_scaling", Unset),
    ("attention_sink", Unset),
    ("attn_logit_softcap", Unset),
    ("attn_logit_softcapping", Unset),
    ("attn_output_gate", Unset),
    ("attn_scale", Unset),
    ("attn_temperature_tuning", Unset),
    ("auto_map", Unset),
    ("block_types", Unset),
    ("cla_share_factor", One),
    ("clip_qkv", Unset),
    ("cross_attention_hidden_size", Unset),
    ("gated_attention", Unset),
    ("is_encoder_decoder", Unset),
    ("key_multiplier", One),
    ("layernorm_zero_centered_gamma", Unset),
    ("layers_block_type", Unset),
    ("mup_attn_multiplier", One),
    ("no_rope_layer_interval", Zero),
    ("no_rope_layers", One),
    ("norm_after", Unset),
    ("normalize_before", Unset),
    ("num_kv_shared_layers", Zero),
    ("parallel_attn", Unset),
    ("partial_rotary_factor", One),
    ("position_embedding_type", Words(&["absolute", "rope"])),
    ("post_norm", Unset),
    ("pre_layer_norm", Unset),
    ("pre_norm", Unset),
    ("qk_layernorm", Unset),
    ("qk_norm", Unset),
    ("residual_multiplier", One),
    ("residual_scale", One),
    ("rms_norm_add_unit_offset", Unset),
    ("rope_interleave", Unset),
    ("rope_interleaved", Unset),
    ("rope_is_neox_style", True),
    ("rotary_pct", One),
    ("scale_attn_by_inverse_layer_idx", Unset),
    ("scale_attn_weights", True),
    ("scale_depth", Unset),
    ("softmax_scale", Unset),
    ("use_alibi", Unset),
    ("use_attention_sinks", Unset),
    ("use_cla", Unset),
    ("use_output_gate", Unset),
    ("use_parallel_residual", Unset),
    ("use_post_norm", Unset),
    ("use_qk_norm", Unset),
];

/// The keys of activation functions.
const FUNCTIONS: [&str; 4] = ["hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function"];

/// The parts of the paths of modules that a nested configuration is of.
const TOWERS: [(&str, &[&str]); 3] = [
    ("text_config", &["language_model", "text_model", "text_encoder", "llm"]),
    ("vision_config", &["vision_tower", "vision_model", "visual", "vision_encoder", "vit"]),
    ("audio_config", &["audio_tower", "audio_model", "audio_encoder"]),
];

impl Neutral {
    fn has(&self, value: &Value) -> bool {
        let is = |value: &Value, number: f64| value.as_f64() == Some(number);
        match (self, value) {
            (_, Value::Null) => true,
            (Unset | Zero, Value::Bool(false)) | (True, Value::Bool(true)) => true,
            (Unset, Value::Array(values)) => values.is_empty(),
            (Unset, Value::Object(object)) => object.is_empty(),
            (Zero, value) => is(value, 0.0),
            (One, Value::Array(values)) => values.iter().all(|value| is(value, 1.0)),
            (One, value) => is(value, 1.0),
            (Words(words), value) => value.as_str().is_some_and(|value| words.contains(&value)),
            _ => false,
        }
    }
}

/// The first key of a list whose value is not neutral, in words.
fn first_of(list: &[(&str, Neutral)], config: &Value) -> Result<(), String> {
    match list.iter().find(|(key, neutral)| !neutral.has(&config[*key])) {
        Some((key, _)) => Err(setting(key, &config[*key])),
        None => Ok(()),
    }
}

/// A setting in words. Long values are not shown.
fn setting(key: &str, value: &Value) -> String {
    const LONGEST: usize = 60;
    match value.to_string() {
        text if text.len() <= LONGEST => format!("the setting `{key}` is {text}"),
        _ => format!("the setting `{key}` has a value that changes it"),
    }
}

/// Fails if a setting changes the feed-forward block of a module in a way that its program would not have. Returns the
/// activation function.
pub(crate) fn of_feed_forward(config: &Value, module: &str) -> Result<UnaryKind, String> {
    let scopes = scopes(config, module);
    scopes.iter().try_for_each(|(_, scope)| first_of(FEED_FORWARD, scope))?;
    let mut stated = scopes.iter().flat_map(|(place, scope)| {
        let names = FUNCTIONS.into_iter().filter_map(|key| Some((key, scope[key].as_str()?)));
        names.map(move |(key, name)| (format!("{place}{key}"), name))
    });
    let Some((key, name)) = stated.next() else {
        return Err("the configuration states no `hidden_act`".to_owned());
    };
    let Some(function) = function_named(name) else {
        return Err(format!("the function `{name}` of `{key}` has no equivalent"));
    };
    match stated.find(|(_, other)| function_named(other) != Some(function)) {
        Some((other_key, other)) => Err(format!("`{key}` is `{name}`, but `{other_key}` is `{other}`")),
        None => Ok(function),
    }
}

/// The parts of a configuration that may be of a module, with their prefixes in messages.
fn scopes<'a>(config: &'a Value, module: &str) -> Vec<(String, &'a Value)> {
    let is_part = |(_, parts): &&(&str, &[&str])| module.split('.').any(|part| parts.contains(&part));
    let tower = TOWERS.iter().find(is_part).filter(|(key, _)| config[*key].is_object());
    if let Some((key, _)) = tower {
        return vec![(format!("{key}."), &config[*key])];
    }
    let nested = config.as_object().into_iter().flatten();
    let nested = nested.filter(|(key, value)| {
        key.ends_with("_config") && *key != "quantization_config" && value.is_object()
    });
    std::iter::once((String::new(), config))
        .chain(nested.map(|(key, value)| (format!("{key}."), value)))
        .collect()
}

/// The activation function of this name.
fn function_named(name: &str) -> Option<UnaryKind> {
    match name {
        "silu" | "swish" => Some(UnaryKind::Silu),
        "gelu" | "gelu_python" => Some(UnaryKind::Gelu),
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Some(UnaryKind::GeluTanh),
        "relu" => Some(UnaryKind::Relu),
        _ => None,
    }
}

/// Fails if a setting changes mixtures of experts in a way that their programs would not have.
pub(crate) fn of_experts(config: &Value) -> Result<(), String> {
    first_of(EXPERTS, config)
}

/// Fails if a setting changes blocks in a way that their programs would not have.
pub(crate) fn of_block(config: &Value) -> Result<(), String> {
    first_of(BLOCK, config)?;
    let rotary = ["rope_parameters", "rope_scaling"];
    let partial = rotary.iter().map(|place| &config[*place]["partial_rotary_factor"]);
    if let Some(factor) = partial.into_iter().find(|factor| !One.has(factor)) {
        return Err(setting("partial_rotary_factor", factor));
    }
    // Masks and rotary embeddings are inputs of a block.
    let known = ["full_attention", "sliding_attention"];
    let types = &config["layer_types"];
    let is_known = |ty: &Value| ty.as_str().is_some_and(|ty| known.contains(&ty));
    if !types.is_null() && !types.as_array().is_some_and(|types| types.iter().all(is_known)) {
        return Err("the setting `layer_types` has another type than full or sliding attention".to_owned());
    }
    Ok(())
}

/// Fails if a stated extent is not that of the tensors.
pub(crate) fn check_extent(config: &Value, key: &str, extent: u64) -> Result<(), String> {
    let stated = &config[key];
    if stated.is_null() || *stated == extent {
        return Ok(());
    }
    Err(format!("{}, but the tensors have {extent}", setting(key, stated)))
}

/// Returns true if the model quantizes its key-value cache.
pub(crate) fn quantizes_cache(config: &Value, hf_quant_config: &Value) -> bool {
    let quantization = &config["quantization_config"];
    let stated = [
        &quantization["kv_cache_scheme"],
        &quantization["kv_cache_quant_config"],
        &hf_quant_config["quantization"]["kv_cache_quant_algo"],
    ];
    stated.into_iter().any(|stated| !Unset.has(stated))
}

#[cfg(test)]
mod tests {
    use fourfold_ir::UnaryKind;
    use serde_json::{Value, json};

    use super::{of_block, of_feed_forward};

    #[track_caller]
    fn check_block(config: &Value, part: Option<&str>) {
        match (of_block(config), part) {
            (Ok(()), None) => {}
            (Err(reason), Some(part)) => assert!(reason.contains(part), "{reason}"),
            (found, _) => panic!("{config}: {found:?}"),
        }
    }

    #[test]
    fn a_neutral_setting_changes_no_block() {
        check_block(&json!({}), None);
        check_block(
            &json!({"residual_multiplier": 1.0, "no_rope_layers": [1, 1], "use_qk_norm": false, "clip_qkv": null,
                "position_embedding_type": "absolute", "rope_scaling": {"factor": 8.0}, "sliding_window": 4,
                "layer_types": ["full_attention", "sliding_attention"], "a_key_of_nobody": 7}),
            None,
        );
    }

    #[test]
    fn a_setting_that_changes_a_block_is_named() {
        for (key, value) in [
            ("position_embedding_type", json!("relative_key")),
            ("add_cross_attention", json!(true)),
            ("attn_logit_softcapping", json!(50.0)),
            ("partial_rotary_factor", json!(0.5)),
            ("attention_multiplier", json!(0.01)),
            ("residual_multiplier", json!(0.2)),
            ("clip_qkv", json!(8)),
            ("use_qk_norm", json!(true)),
            ("rope_interleaved", json!(true)),
            ("use_parallel_residual", json!(true)),
            ("no_rope_layers", json!([1, 0])),
            ("layer_types", json!(["full_attention", "linear_attention"])),
            ("layer_types", json!(7)),
            ("auto_map", json!({"AutoModel": "modeling.X"})),
            ("normalize_before", json!(true)),
        ] {
            check_block(&json!({ key: value }), Some(key));
        }
        check_block(
            &json!({"rope_parameters": {"partial_rotary_factor": 0.25}}),
            Some("partial_rotary_factor"),
        );
    }

    #[test]
    fn a_feed_forward_block_has_the_function_of_its_tower() {
        let config = json!({"text_config": {"hidden_act": "silu"}, "vision_config": {"hidden_act": "gelu"}});
        let of = |module: &str| of_feed_forward(&config, module);
        assert_eq!(of("language_model.model.layers.0.mlp"), Ok(UnaryKind::Silu));
        assert_eq!(of("vision_tower.transformer.layers.0.mlp"), Ok(UnaryKind::Gelu));
        assert!(of("model.layers.0.mlp").is_err_and(|reason| reason.contains("`vision_config.hidden_act`")));
        for (config, part) in [
            (json!({}), "no `hidden_act`"),
            (json!({"hidden_act": "quick_gelu"}), "`quick_gelu`"),
            (json!({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}), "hidden_activation"),
            (json!({"hidden_act": "silu", "swiglu_limit": 7.0}), "swiglu_limit"),
            (json!({"hidden_act": "silu", "mlp_multipliers": [0.5, 1.0]}), "mlp_multipliers"),
        ] {
            let found = of_feed_forward(&config, "model.layers.0.mlp");
            assert!(found.as_ref().is_err_and(|reason| reason.contains(part)), "{config}: {found:?}");
        }
        let agreeing = json!({"hidden_act": "gelu_new", "hidden_activation": "gelu_pytorch_tanh"});
        assert_eq!(of_feed_forward(&agreeing, "mlp"), Ok(UnaryKind::GeluTanh));
    }
}
