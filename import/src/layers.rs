//! The layers of known architectures, read into blocks: those that cannot be have a reason.

use std::collections::BTreeMap;

use crate::below;
use crate::blocks::{Block, Norms};
use crate::checkpoint::Checkpoint;
use crate::fields::stored;
use crate::groups::ByName;
use crate::imported::{LeftOut, LeftOutCode};
use crate::linear::{Linear, Stored};
use crate::settings;

/// The form of the layers of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bert,
    Llama,
}

/// The linears of a layer of each form. A path that ends in another one comes after it.
const PARTS: [(Form, &[&str]); 2] = [
    (
        Form::Bert,
        &[
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
        ],
    ),
    (
        Form::Llama,
        &[
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        ],
    ),
];

/// The layer that a linear is a part of, and its form.
fn layer_of(linear: &str) -> Option<(&str, Form)> {
    PARTS.iter().find_map(|(form, parts)| {
        let layer = parts.iter().find_map(|part| linear.strip_suffix(part)?.strip_suffix('.'))?;
        // Cross-attention is no layer of its own.
        (!layer.ends_with("crossattention")).then_some((layer, *form))
    })
}

/// Finds the blocks of a model whose architecture is known and whose linears are all quantized, and the layers that
/// have no program.
pub(crate) fn find<'a>(linears: &ByName<'a>, checkpoint: &Checkpoint) -> (Vec<Block<'a>>, Vec<LeftOut>) {
    let layers: BTreeMap<&str, Form> = linears.keys().filter_map(|name| layer_of(name)).collect();
    let (mut blocks, mut left_out) = (Vec::new(), Vec::new());
    // The settings are those of every layer.
    let settings = settings::of_block(&checkpoint.config);
    for (layer, form) in layers {
        let reader = LayerReader { linears, checkpoint, layer };
        let block = reader.architecture(form).and_then(|architecture| {
            settings.clone()?;
            match form {
                Form::Bert => reader.bert(),
                Form::Llama => reader.llama(architecture),
            }
        });
        match block.and_then(|block| reader.checked(block)) {
            Ok(block) => blocks.push(block),
            Err(reason) => {
                let (name, code) = (layer.to_owned(), LeftOutCode::UnsupportedBlock);
                left_out.push(LeftOut { name, code, message: format!("no block is built: {reason}") });
            }
        }
    }
    (blocks, left_out)
}

/// Reads a layer.
struct LayerReader<'a, 'b> {
    linears: &'b ByName<'a>,
    checkpoint: &'b Checkpoint,
    layer: &'b str,
}

impl<'a, 'b> LayerReader<'a, 'b> {
    /// The architecture of the model, if its layers have this form.
    fn architecture(&self, form: Form) -> Result<&'b str, String> {
        let Some(architecture) = self.checkpoint.config["model_type"].as_str() else {
            return Err("no configuration states the architecture (`model_type`)".to_owned());
        };
        let known = match architecture {
            "bert" | "roberta" | "xlm-roberta" => Some(Form::Bert),
            "llama" | "mistral" | "qwen2" | "qwen3" => Some(Form::Llama),
            _ => None,
        };
        match known {
            Some(known) if known == form => Ok(architecture),
            _ => Err(format!("no block of this form is known for the architecture `{architecture}`")),
        }
    }

    fn linear(&self, name: &str) -> Result<&'a Linear, String> {
        let linear = self.linears.get(&*format!("{}.{name}", self.layer)).copied();
        linear.ok_or_else(|| format!("`{name}` is not imported"))
    }

    /// A tensor of an arithmetic type and this shape.
    fn plain(&self, name: &str, field: &str, extent: u64) -> Result<Stored, String> {
        let tensors = self.checkpoint.modules.get(&format!("{}.{name}", self.layer));
        let tensor = tensors.and_then(|tensors| tensors.get(field));
        let tensor = tensor.ok_or_else(|| format!("it has no tensor `{name}.{field}`"))?;
        stored(tensor, &[extent]).map_err(|_| format!("`{name}.{field}` is {}", tensor.form()))
    }

    fn positive(&self, key: &str) -> Option<u64> {
        self.checkpoint.config[key].as_u64().filter(|count| *count > 0)
    }

    fn eps(&self, key: &str) -> Result<f64, String> {
        let eps = self.checkpoint.config[key].as_f64();
        let eps = eps.filter(|eps| *eps >= 0.0 && (*eps as f32).is_finite());
        eps.ok_or_else(|| {
            format!("the configuration states no number `{key}` that is finite and not negative")
        })
    }

    fn heads(&self) -> Result<u64, String> {
        let message = "the configuration states no positive `num_attention_heads`";
        self.positive("num_attention_heads").ok_or_else(|| message.to_owned())
    }

    fn bert(&self) -> Result<Block<'a>, String> {
        let of = |name: &str| self.linear(name);
        let attention = [
            of("attention.self.query")?,
            of("attention.self.key")?,
            of("attention.self.value")?,
            of("attention.output.dense")?,
        ];
        if self.checkpoint.config["is_decoder"] == true {
            return Err("the setting `is_decoder` is true".to_owned());
        }
        let (hidden, heads) = (attention[0].k, self.heads()?);
        let norm = |name: &str| -> Result<[Stored; 2], String> {
            Ok([self.plain(name, "weight", hidden)?, self.plain(name, "bias", hidden)?])
        };
        let norms = ["attention.output.LayerNorm", "output.LayerNorm"];
        let block = Block {
            name: self.layer.to_owned(),
            attention,
            heads,
            kv_heads: heads,
            head_dim: attention[0].n / heads,
            gate: None,
            up: of("intermediate.dense")?,
            down: of("output.dense")?,
            function: settings::of_feed_forward(&self.checkpoint.config, self.layer)?,
            eps: self.eps("layer_norm_eps")?,
            norms: Norms::After([norm(norms[0])?, norm(norms[1])?]),
            norm_modules: norms.map(|name| format!("{}.{name}", self.layer)).to_vec(),
            quantizes_cache: false,
        };
        self.check_biases(&block.linears(), true, "the architecture")?;
        Ok(block)
    }

    fn llama(&self, architecture: &str) -> Result<Block<'a>, String> {
        let config = &self.checkpoint.config;
        let of = |name: &str| self.linear(name);
        let attention = [
            of("self_attn.q_proj")?,
            of("self_attn.k_proj")?,
            of("self_attn.v_proj")?,
            of("self_attn.o_proj")?,
        ];
        let (hidden, heads) = (attention[0].k, self.heads()?);
        let head_dim = self.positive("head_dim").unwrap_or(attention[0].n / heads);
        settings::check_extent(config, "query_pre_attn_scalar", head_dim)?;
        let norm = |name: &str, extent: u64| self.plain(name, "weight", extent);
        let mut norm_modules = vec!["input_layernorm", "post_attention_layernorm"];
        let mut of_heads = None;
        if architecture == "qwen3" {
            of_heads = Some([norm("self_attn.q_norm", head_dim)?, norm("self_attn.k_norm", head_dim)?]);
            norm_modules.extend(["self_attn.q_norm", "self_attn.k_norm"]);
        }
        let block = Block {
            name: self.layer.to_owned(),
            attention,
            heads,
            kv_heads: self.positive("num_key_value_heads").unwrap_or(heads),
            head_dim,
            gate: Some(of("mlp.gate_proj")?),
            up: of("mlp.up_proj")?,
            down: of("mlp.down_proj")?,
            function: settings::of_feed_forward(config, self.layer)?,
            eps: self.eps("rms_norm_eps")?,
            norms: Norms::Before {
                norms: [norm("input_layernorm", hidden)?, norm("post_attention_layernorm", hidden)?],
                heads: of_heads,
            },
            norm_modules: norm_modules.iter().map(|name| format!("{}.{name}", self.layer)).collect(),
            quantizes_cache: false,
        };
        let states = |key: &str| config[key] == true;
        let (q_k_v, of_o) = match architecture {
            "qwen2" => (true, false),
            "llama" | "qwen3" => (states("attention_bias"), states("attention_bias")),
            _ => (false, false),
        };
        self.check_biases(&attention[..3], q_k_v, "`attention_bias`")?;
        self.check_biases(&attention[3..], of_o, "`attention_bias`")?;
        let of_mlp = architecture == "llama" && states("mlp_bias");
        self.check_biases(&block.linears()[4..], of_mlp, "`mlp_bias`")?;
        Ok(block)
    }

    /// Fails if the biases of linears are not as the configuration or the architecture states.
    fn check_biases(&self, linears: &[&Linear], expected: bool, statement: &str) -> Result<(), String> {
        let Some(linear) = linears.iter().find(|linear| linear.bias.is_some() != expected) else {
            return Ok(());
        };
        let name = linear.name.strip_prefix(self.layer).unwrap_or(&linear.name).trim_start_matches('.');
        let [found, stated] = if expected { ["no bias", "one"] } else { ["a bias", "none"] };
        Err(format!("`{name}` has {found}, but {statement} states {stated}"))
    }

    /// Checks the extents, and that every tensor below the layer is used.
    fn checked(&self, mut block: Block<'a>) -> Result<Block<'a>, String> {
        let (config, hidden) = (&self.checkpoint.config, block.attention[0].k);
        settings::check_extent(config, "hidden_size", hidden)?;
        settings::check_extent(config, "intermediate_size", block.up.n)?;
        if !block.fits(hidden) {
            return Err("the extents of its linears do not fit the numbers of heads".to_owned());
        }
        let fields = ["weight", "bias"];
        let fields = if matches!(block.norms, Norms::After(_)) { &fields[..] } else { &fields[..1] };
        let of_norm =
            |norm: &String| fields.iter().map(|field| format!("{norm}.{field}")).collect::<Vec<_>>();
        let norms: Vec<String> = block.norm_modules.iter().flat_map(of_norm).collect();
        let linears = block.linears();
        below::check(self.checkpoint, (self.layer, self.layer), linears.iter().copied(), &norms)?;
        block.quantizes_cache = settings::quantizes_cache(config, &self.checkpoint.hf_quant_config)
            || below::has_cache_scale(self.checkpoint, self.layer);
        Ok(block)
    }
}
