//! Blocks, feed-forward blocks and groups: one that would not compute what the model does is left out, with a reason.

#[expect(dead_code, reason = "these tests have models of their own")]
#[path = "support/synthetic.rs"]
mod synthetic;

use fourfold_import::{Import, LeftOut, LeftOutCode};
use fourfold_ir::text;
use serde_json::{Value, json};

use synthetic::{Entry, import_entries};

const LAYER: &str = "model.layers.0";

/// A model with linears of ModelOpt.
#[derive(Clone)]
struct Model {
    entries: Vec<(String, &'static str, Vec<u64>)>,
    config: Value,
}

impl Model {
    fn new(config: &Value) -> Model {
        let mut model = Model { entries: Vec::new(), config: config.clone() };
        model.config["quantization_config"] = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
        model
    }

    /// A layer of Llama: hidden 64, 4 heads of 16 and 2 of k and v, 96 channels between.
    fn llama() -> Model {
        Model::new(
            &json!({"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "hidden_size": 64, "intermediate_size": 96}),
        )
        .llama_layer(LAYER)
    }

    fn llama_layer(self, layer: &str) -> Model {
        let linears = [
            ("self_attn.q_proj", 64, 64),
            ("self_attn.k_proj", 32, 64),
            ("self_attn.v_proj", 32, 64),
            ("self_attn.o_proj", 64, 64),
            ("mlp.gate_proj", 96, 64),
            ("mlp.up_proj", 96, 64),
            ("mlp.down_proj", 64, 96),
        ];
        let model =
            linears.iter().fold(self, |model, (name, n, k)| model.linear(&format!("{layer}.{name}"), *n, *k));
        ["input_layernorm", "post_attention_layernorm"]
            .iter()
            .fold(model, |model, norm| model.tensor(&format!("{layer}.{norm}.weight"), &[64]))
    }

    /// An encoder layer: hidden 64, 2 heads, 96 channels between.
    fn bert() -> Model {
        let layer = "encoder.layer.0";
        let linears = [
            ("attention.self.query", 64, 64),
            ("attention.self.key", 64, 64),
            ("attention.self.value", 64, 64),
            ("attention.output.dense", 64, 64),
            ("intermediate.dense", 96, 64),
            ("output.dense", 64, 96),
        ];
        let model = Model::new(&json!({"model_type": "bert", "num_attention_heads": 2, "hidden_act": "gelu",
            "layer_norm_eps": 1e-12}));
        let model = linears.iter().fold(model, |model, (name, n, k)| {
            let name = format!("{layer}.{name}");
            model.linear(&name, *n, *k).tensor(&format!("{name}.bias"), &[*n])
        });
        let norms = ["attention.output.LayerNorm", "output.LayerNorm"];
        norms
            .iter()
            .flat_map(|norm| ["weight", "bias"].map(|field| format!("{layer}.{norm}.{field}")))
            .fold(model, |model, name| model.tensor(&name, &[64]))
    }

    fn linear(mut self, name: &str, n: u64, k: u64) -> Model {
        let parts = [
            ("weight", "U8", vec![n, k / 2]),
            ("weight_scale", "F8_E4M3", vec![n, k / 16]),
            ("weight_scale_2", "F32", vec![]),
            ("input_scale", "F32", vec![]),
        ];
        self.entries.extend(parts.map(|(field, dtype, shape)| (format!("{name}.{field}"), dtype, shape)));
        self
    }

    fn tensor(mut self, name: &str, shape: &[u64]) -> Model {
        self.entries.push((name.to_owned(), "BF16", shape.to_vec()));
        self
    }

    fn set(mut self, key: &str, value: Value) -> Model {
        self.config[key] = value;
        self
    }

    fn renamed(mut self, from: &str, to: &str) -> Model {
        self.entries.iter_mut().for_each(|(name, ..)| *name = name.replace(from, to));
        self
    }

    fn without(mut self, part: &str) -> Model {
        self.entries.retain(|(name, ..)| !name.contains(part));
        self
    }

    fn import(&self) -> Import {
        let entries: Vec<Entry<'_>> =
            self.entries.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, &shape[..])).collect();
        import_entries(&self.config.to_string(), &entries)
    }
}

fn has(imported: &Import, name: &str) -> bool {
    imported.programs.iter().any(|program| program.name == name)
}

/// Checks that the program `name` is left out, with a reason that contains `part`.
#[track_caller]
fn check_not_built(model: &Model, name: &str, part: &str) {
    let imported = model.import();
    assert!(!has(&imported, name), "{name} is built in spite of {part}");
    let is_it = |left: &&LeftOut| left.name == name && left.code == LeftOutCode::UnsupportedBlock;
    let left = imported.left_out.iter().find(is_it);
    let left = left.unwrap_or_else(|| panic!("{name} is not reported: {:?}", imported.left_out));
    assert!(left.message.contains(part), "{left:?} does not contain {part}");
}

#[test]
fn the_layers_of_known_architectures_are_built() {
    for (model, block, mlp) in [
        (Model::llama(), LAYER, "model.layers.0.mlp"),
        (Model::bert(), "encoder.layer.0", "encoder.layer.0.mlp"),
    ] {
        let imported = model.import();
        assert!(has(&imported, block) && has(&imported, mlp), "{:?}", imported.left_out);
        assert!(imported.left_out.is_empty(), "{:?}", imported.left_out);
    }
    // Keys of nobody, and neutral values, change nothing.
    let neutral = Model::llama()
        .set("a_key_of_nobody", json!(7))
        .set("pretraining_tp", json!(2))
        .set("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0}))
        .set("sliding_window", json!(4096))
        .set("residual_multiplier", json!(1.0))
        .set("attention_bias", json!(false))
        .tensor("model.layers.0.self_attn.rotary_emb.inv_freq", &[8]);
    assert!(has(&neutral.import(), LAYER));
}

#[test]
fn mistral_has_the_blocks_of_llama_and_qwen2_has_biases() {
    let block = |model: &Model| {
        let imported = model.import();
        let block = imported.programs.iter().find(|program| program.name == LAYER);
        text::print(&block.unwrap_or_else(|| panic!("{:?}", imported.left_out)).module)
    };
    let llama = block(&Model::llama());
    assert_eq!(block(&Model::llama().set("model_type", json!("mistral"))), llama);
    let qwen2 = [("q_proj", 64), ("k_proj", 32), ("v_proj", 32)]
        .iter()
        .fold(Model::llama().set("model_type", json!("qwen2")), |model, (name, n)| {
            model.tensor(&format!("{LAYER}.self_attn.{name}.bias"), &[*n])
        });
    assert!(block(&qwen2).contains("%q.bias"));
    check_not_built(&qwen2.without("k_proj.bias"), LAYER, "`self_attn.k_proj` has no bias");
}

#[test]
fn a_tensor_that_a_block_would_not_use_leaves_it_out() {
    for (tensor, extent) in [
        ("self_attn.q_norm.weight", 64),
        ("self_attn.sinks", 4),
        ("self_attn.attn_sub_norm.weight", 64),
        ("mlp.ffn_sub_norm.weight", 96),
        ("pre_feedforward_layernorm.weight", 64),
        ("post_feedforward_layernorm.weight", 64),
        ("input_layernorm.bias", 64),
        ("layer_scalar", 1),
    ] {
        let model = Model::llama().tensor(&format!("{LAYER}.{tensor}"), &[extent]);
        check_not_built(&model, LAYER, &format!("`{tensor}`"));
        let module = format!("{LAYER}.{tensor}").rsplit_once('.').expect("a path").0.to_owned();
        let left_out = model.import().left_out;
        let is_reported = left_out.iter().any(|left| left.name == module);
        assert!(is_reported, "{tensor} is not reported: {left_out:?}");
        if tensor.starts_with("mlp") {
            check_not_built(&model, "model.layers.0.mlp", &format!("`{tensor}`"));
        }
    }
    let bert = "encoder.layer.0";
    let distances =
        Model::bert().tensor(&format!("{bert}.attention.self.distance_embedding.weight"), &[9, 32]);
    check_not_built(&distances, bert, "`attention.self.distance_embedding.weight`");
    let adapter = Model::bert().tensor(&format!("{bert}.output.adapter.weight"), &[8, 64]);
    check_not_built(&adapter, bert, "`output.adapter.weight`");
    check_not_built(&adapter, "encoder.layer.0.mlp", "`output.adapter.weight`");
}

#[test]
fn a_setting_that_changes_a_block_leaves_it_out() {
    for (key, value) in [
        ("attn_logit_softcapping", json!(50.0)),
        ("partial_rotary_factor", json!(0.5)),
        ("query_pre_attn_scalar", json!(256)),
        ("attention_multiplier", json!(0.01)),
        ("residual_multiplier", json!(0.2)),
        ("clip_qkv", json!(8.0)),
        ("use_qk_norm", json!(true)),
        ("rope_interleaved", json!(true)),
        ("use_parallel_residual", json!(true)),
        ("no_rope_layers", json!([0])),
        ("layer_types", json!(["linear_attention"])),
        ("auto_map", json!({"AutoModelForCausalLM": "modeling.X"})),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("rms_norm_eps", Value::Null),
        ("num_attention_heads", json!(-4)),
        ("num_key_value_heads", json!(4)),
        ("hidden_size", json!(128)),
    ] {
        let part = if key == "num_key_value_heads" { "heads" } else { key };
        check_not_built(&Model::llama().set(key, value), LAYER, part);
    }
    for (key, value) in [
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
        ("add_cross_attention", json!(true)),
        ("normalize_before", json!(true)),
        ("layer_norm_eps", json!("1e-12")),
    ] {
        check_not_built(&Model::bert().set(key, value), "encoder.layer.0", key);
    }
}

#[test]
fn a_setting_that_changes_a_feed_forward_block_leaves_it_out() {
    let mlp = "model.layers.0.mlp";
    for (key, value) in [
        ("hidden_act", json!("quick_gelu")),
        ("hidden_act", Value::Null),
        ("hidden_activation", json!("gelu_pytorch_tanh")),
        ("swiglu_limit", json!(7.0)),
        ("mlp_multipliers", json!([0.5, 0.3])),
        ("mlp_bias", json!(true)),
    ] {
        let model = Model::llama().set(key, value);
        check_not_built(&model, mlp, key);
        check_not_built(&model, LAYER, key);
    }
    let towers = |module: &str| {
        Model::llama()
            .set("hidden_act", Value::Null)
            .set("model_type", json!("llava"))
            .set("text_config", json!({"hidden_act": "silu"}))
            .set("vision_config", json!({"hidden_act": "gelu"}))
            .renamed("model.layers", module)
    };
    check_not_built(&towers("model.layers"), mlp, "vision_config.hidden_act");
    for (module, function) in [("vision_tower.layers", "gelu"), ("language_model.layers", "silu")] {
        let imported = towers(module).import();
        let program = imported.programs.iter().find(|program| program.name == format!("{module}.0.mlp"));
        let printed = text::print(&program.unwrap_or_else(|| panic!("{:?}", imported.left_out)).module);
        assert!(printed.contains(&format!(" = {function} ")), "{printed}");
    }
}

#[test]
fn the_inputs_of_cross_attention_are_not_one() {
    for (from, to) in [
        ("self_attn", "encoder_attn"),
        ("self_attn", "cross_attn"),
        ("self_attn", "EncDecAttention"),
        ("layers.0.self_attn", "perceiver_resampler.layers.0.self_attn"),
        ("self_attn", "pooler.attention"),
        ("self_attn", "mixer"),
    ] {
        let model = Model::llama().renamed(from, to);
        let attention = "model.layers.0.self_attn".replace(from, to);
        check_not_built(&model, &format!("{attention}.qkv"), "q");
        assert!(has(&model.import(), &format!("{attention}.k_proj")), "its linears are imported");
    }
    check_not_built(
        &Model::llama().set("model_type", json!("detr")),
        "model.layers.0.self_attn.qkv",
        "`detr`",
    );
    let bert = Model::bert();
    let cross = bert.clone().renamed("attention.", "crossattention.");
    let mut both = bert.set("is_decoder", json!(true)).set("add_cross_attention", json!(true));
    both.entries.extend(cross.entries.into_iter().filter(|(name, ..)| name.contains("crossattention")));
    check_not_built(&both, "encoder.layer.0.crossattention.self.qkv", "`crossattention`");
    check_not_built(&both, "encoder.layer.0", "add_cross_attention");
    let unstated = both.set("add_cross_attention", Value::Null).set("is_decoder", Value::Null);
    check_not_built(&unstated, "encoder.layer.0", "`crossattention.");
    assert!(has(&unstated.import(), "encoder.layer.0.attention.self.qkv"));
}

#[test]
fn a_layer_that_is_not_built_has_a_reason() {
    let of = |key: &str, value: Value| Model::llama().set(key, value);
    check_not_built(&of("model_type", json!("gemma")), LAYER, "architecture `gemma`");
    check_not_built(&of("model_type", Value::Null), LAYER, "`model_type`");
    check_not_built(&of("model_type", json!("qwen3")), LAYER, "no tensor `self_attn.q_norm.weight`");
    check_not_built(
        &Model::llama().without("post_attention_layernorm"),
        LAYER,
        "`post_attention_layernorm.weight`",
    );
    let plain = Model::llama().without("down_proj").tensor("model.layers.0.mlp.down_proj.weight", &[64, 96]);
    check_not_built(&plain, LAYER, "`mlp.down_proj` is not imported");
    check_not_built(&plain, "model.layers.0.mlp", "`down_proj` is not imported");
    // Layers with one reason have one entry.
    let layers = (1..40).fold(of("hidden_act", json!("quick_gelu")), |model, layer| {
        model.llama_layer(&format!("model.layers.{layer}"))
    });
    let left_out = layers.import().left_out;
    let not_built: Vec<_> =
        left_out.iter().filter(|left| left.code == LeftOutCode::UnsupportedBlock).collect();
    assert_eq!(not_built.len(), 2, "{not_built:?}");
    assert!(not_built.iter().all(|left| left.message.contains("the same for 39 more")), "{not_built:?}");
}

#[test]
fn a_block_notes_that_the_model_quantizes_its_cache() {
    let mut model = Model::llama();
    model.config["quantization_config"]["kv_cache_scheme"] = json!({"num_bits": 8});
    for model in [model, Model::llama().tensor("model.layers.0.self_attn.k_scale", &[1])] {
        let imported = model.import();
        let block = imported.programs.iter().find(|program| program.name == LAYER).expect("it is built");
        assert!(block.notes.iter().any(|note| note.contains("cache")), "{:?}", block.notes);
    }
}
