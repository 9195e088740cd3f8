//! Whole blocks of known architectures: BERT-like encoders, Llama, Mistral, Qwen2 and Qwen3.
//!
//! A block takes `%x` `[M, H]`, the M positions of one sequence, and `%mask` `[M, M]`, which is added to the scores of
//! attention. All but BERT-like encoders also take `%cos` and `%sin` `[M, D]`, the rotary embedding of each position. Between the
//! quantizations, everything is f32.

use std::collections::BTreeMap;

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, OpKind, ReduceKind, SliceRange, TensorType, UnaryKind, Value,
};

use crate::below;
use crate::checkpoint::Checkpoint;
use crate::error::ImportError;
use crate::fields::stored;
use crate::groups::ByName;
use crate::imported::{ImportedProgram, LeftOut, LeftOutCode, ProgramKind};
use crate::linear::{Linear, Stored};
use crate::options::ImportOptions;
use crate::program::{Activations, Draft};
use crate::settings;

const F32: ElementType = ElementType::F32;

/// A block of a known architecture.
pub(crate) struct Block<'a> {
    /// The path of the layer.
    pub(crate) name: String,
    /// q, k, v and the output of attention.
    attention: [&'a Linear; 4],
    heads: u64,
    /// The heads of k and v, which divide those of q.
    kv_heads: u64,
    head_dim: u64,
    gate: Option<&'a Linear>,
    up: &'a Linear,
    down: &'a Linear,
    function: UnaryKind,
    eps: f64,
    norms: Norms,
    /// The paths of the norms.
    pub(crate) norm_modules: Vec<String>,
    /// True if the model quantizes the key-value cache, which the program does not have.
    quantizes_cache: bool,
}

/// The norms of a block.
enum Norms {
    /// Layer norms, weight and bias, after attention and after the feed-forward block.
    After([[Stored; 2]; 2]),
    /// Root-mean-square norms before attention and before the feed-forward block; those of q and k per head.
    Before { norms: [Stored; 2], heads: Option<[Stored; 2]> },
}

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

impl<'a> Block<'a> {
    /// The linears: q, k, v, o, then those of the feed-forward block.
    fn linears(&self) -> Vec<&'a Linear> {
        self.attention.into_iter().chain(self.gate).chain([self.up, self.down]).collect()
    }

    /// Returns true if the extents of the linears agree with the configuration.
    fn fits(&self, hidden: u64) -> bool {
        let [q, k, v, o] = self.attention;
        let is_sized = |linear: &Linear, heads: u64| heads.checked_mul(self.head_dim) == Some(linear.n);
        let is_rotated = matches!(self.norms, Norms::Before { .. });
        [q, k, v, self.up].iter().all(|linear| linear.k == hidden)
            && is_sized(q, self.heads)
            && is_sized(k, self.kv_heads)
            && is_sized(v, self.kv_heads)
            && self.heads.is_multiple_of(self.kv_heads)
            && (!is_rotated || self.head_dim.is_multiple_of(2))
            && (o.k, o.n) == (q.n, hidden)
            && self.gate.is_none_or(|gate| (gate.n, gate.k) == (self.up.n, hidden))
            && (self.down.k, self.down.n) == (self.up.n, hidden)
    }
}

/// Builds the program of a block.
///
/// # Errors
/// When the program is not valid.
pub(crate) fn program(
    block: &Block<'_>,
    types: Activations,
    options: &ImportOptions,
) -> Result<ImportedProgram, ImportError> {
    let mut draft = Draft::new(&block.name);
    let m = draft.builder.symbol(&options.m);
    let hidden = block.attention[0].k;
    let ty = TensorType::new(vec![m.clone(), Dim::fixed(hidden)], types.input);
    let x = draft.builder.input("x", ty);
    let mask = draft.builder.input("mask", TensorType::new(vec![m.clone(), m.clone()], F32));
    let x = draft.converted("x.f32", x, F32);
    let mut body = Body { draft, block, m, mask };
    let y = match &block.norms {
        Norms::After([first, second]) => {
            let attended = body.attention(x, None, None);
            let residual = body.binary("attention.residual", BinaryKind::Add, attended, x);
            let x = body.layer_norm("attention.normed", residual, first);
            let fed = body.feed_forward(x);
            let residual = body.binary("mlp.residual", BinaryKind::Add, fed, x);
            body.layer_norm("mlp.normed", residual, second)
        }
        Norms::Before { norms: [first, second], heads } => {
            let rotary = ["cos", "sin"].map(|name| {
                let shape = vec![body.m.clone(), Dim::fixed(block.head_dim)];
                body.draft.builder.input(name, TensorType::new(shape, F32))
            });
            let normed = body.rms_norm("attention.normed", x, first);
            let attended = body.attention(normed, heads.as_ref(), Some(rotary));
            let x = body.binary("attention.residual", BinaryKind::Add, x, attended);
            let normed = body.rms_norm("mlp.normed", x, second);
            let fed = body.feed_forward(normed);
            body.binary("mlp.residual", BinaryKind::Add, x, fed)
        }
    };
    let mut draft = body.draft;
    // A convert to f32 names the result, too.
    let y = draft.builder.convert("y", y, types.output);
    draft.note(&["%mask is added to the scores of attention: 0 to attend, -inf not to.".to_owned()]);
    if block.quantizes_cache {
        draft.note(&["The model quantizes its key-value cache; this program does not.".to_owned()]);
    }
    draft.finish(&block.name, ProgramKind::Block, &[y])
}

/// The program of a block in the making.
struct Body<'a, 'b> {
    draft: Draft,
    block: &'a Block<'b>,
    m: Dim,
    mask: Value,
}

impl Body<'_, '_> {
    fn op(&mut self, name: &str, kind: OpKind, operands: &[Value], shape: Vec<Dim>) -> Value {
        self.draft.builder.op(kind, operands, &[(name, TensorType::new(shape, F32))])[0]
    }

    fn binary(&mut self, name: &str, kind: BinaryKind, left: Value, right: Value) -> Value {
        self.draft.builder.binary(name, kind, left, right)
    }

    fn shape(&self, value: Value) -> Vec<Dim> {
        self.draft.builder.ty(value).shape.clone()
    }

    fn scalar(&mut self, name: &str, value: f64) -> Value {
        self.op(name, OpKind::Constant(ConstantValue::Splat(value)), &[], Vec::new())
    }

    fn stored(&mut self, name: &str, stored: &Stored) -> Value {
        let value = self.draft.stored(name, stored);
        self.draft.converted(&format!("{name}.f32"), value, F32)
    }

    fn layer_norm(&mut self, name: &str, x: Value, [weight, bias]: &[Stored; 2]) -> Value {
        let weight = self.stored(&format!("{name}.weight"), weight);
        let bias = self.stored(&format!("{name}.bias"), bias);
        let (kind, shape) = (OpKind::LayerNorm { eps: self.block.eps }, self.shape(x));
        self.op(name, kind, &[x, weight, bias], shape)
    }

    /// x / sqrt(mean(x²) + eps) · weight over the last axis.
    fn rms_norm(&mut self, name: &str, x: Value, weight: &Stored) -> Value {
        let weight = self.stored(&format!("{name}.weight"), weight);
        let square = self.binary(&format!("{name}.square"), BinaryKind::Mul, x, x);
        let mut shape = self.shape(x);
        let axis = shape.len() - 1;
        shape[axis] = Dim::fixed(1);
        let kind = OpKind::Reduce { kind: ReduceKind::Mean, axes: vec![axis as u32], keep_dims: true };
        let mean = self.op(&format!("{name}.mean"), kind, &[square], shape);
        let eps = self.scalar(&format!("{name}.eps"), self.block.eps);
        let shifted = self.binary(&format!("{name}.shifted"), BinaryKind::Add, mean, eps);
        let factor = self.draft.builder.unary(&format!("{name}.factor"), UnaryKind::Rsqrt, shifted);
        let scaled = self.binary(&format!("{name}.scaled"), BinaryKind::Mul, x, factor);
        self.binary(name, BinaryKind::Mul, scaled, weight)
    }

    /// `[M, heads · D]` to `[heads, M, D]`, or `[heads, D, M]` for the transposed v.
    fn by_head(&mut self, name: &str, x: Value, heads: u64, permutation: [u32; 3]) -> Value {
        let shape = [self.m.clone(), Dim::fixed(heads), Dim::fixed(self.block.head_dim)];
        let split = self.op(&format!("{name}.split"), OpKind::Reshape, &[x], shape.to_vec());
        let permuted = permutation.iter().map(|axis| shape[*axis as usize].clone()).collect();
        let kind = OpKind::Transpose { permutation: permutation.to_vec() };
        self.op(&format!("{name}.heads"), kind, &[split], permuted)
    }

    /// Repeats each head of k or v for the heads of q that share it.
    fn repeated(&mut self, name: &str, x: Value) -> Value {
        let (kv_heads, heads) = (self.block.kv_heads, self.block.heads);
        if kv_heads == heads {
            return x;
        }
        let [_, rest @ ..] = &self.shape(x)[..] else { return x };
        let shape = |first: &[u64]| -> Vec<Dim> {
            first.iter().map(|extent| Dim::fixed(*extent)).chain(rest.iter().cloned()).collect()
        };
        let (apart, wide, joined) =
            (shape(&[kv_heads, 1]), shape(&[kv_heads, heads / kv_heads]), shape(&[heads]));
        let apart = self.op(&format!("{name}.apart"), OpKind::Reshape, &[x], apart);
        let wide = self.op(&format!("{name}.wide"), OpKind::Broadcast, &[apart], wide);
        self.op(&format!("{name}.repeated"), OpKind::Reshape, &[wide], joined)
    }

    /// x · cos + rotate(x) · sin, where rotate exchanges the halves of a head and negates the first.
    fn rotated(&mut self, name: &str, x: Value, [cos, sin]: [Value; 2]) -> Value {
        let (shape, d) = (self.shape(x), self.block.head_dim);
        let mut half = shape.clone();
        half[2] = Dim::fixed(d / 2);
        let part = |start: u64| OpKind::Slice {
            ranges: vec![SliceRange { axis: 2, start, end: start + d / 2, step: 1 }],
        };
        let first = self.op(&format!("{name}.first"), part(0), &[x], half.clone());
        let second = self.op(&format!("{name}.second"), part(d / 2), &[x], half);
        let negated = self.draft.builder.unary(&format!("{name}.negated"), UnaryKind::Neg, second);
        let concat = OpKind::Concat { axis: 2 };
        let turned = self.op(&format!("{name}.turned"), concat, &[negated, first], shape);
        let along = self.binary(&format!("{name}.along"), BinaryKind::Mul, x, cos);
        let across = self.binary(&format!("{name}.across"), BinaryKind::Mul, turned, sin);
        self.binary(&format!("{name}.rotated"), BinaryKind::Add, along, across)
    }

    /// Attention with its output linear.
    fn attention(&mut self, x: Value, norms: Option<&[Stored; 2]>, rotary: Option<[Value; 2]>) -> Value {
        let block = self.block;
        let [q, k, v, o] = block.attention;
        let [mut q, mut k, v] = [("q", q), ("k", k), ("v", v)]
            .map(|(name, linear)| self.draft.linear(linear, x, &format!("{name}."), F32, name));
        q = self.by_head("q", q, block.heads, [1, 0, 2]);
        k = self.by_head("k", k, block.kv_heads, [1, 0, 2]);
        let v = self.by_head("v", v, block.kv_heads, [1, 2, 0]);
        if let Some([of_q, of_k]) = norms {
            q = self.rms_norm("q.normed", q, of_q);
            k = self.rms_norm("k.normed", k, of_k);
        }
        if let Some(rotary) = rotary {
            q = self.rotated("q", q, rotary);
            k = self.rotated("k", k, rotary);
        }
        let (k, v) = (self.repeated("k", k), self.repeated("v", v));
        let scores = self.draft.builder.mma("scores", q, k, F32);
        let factor = self.scalar("scores.factor", 1.0 / (block.head_dim as f64).sqrt());
        let scaled = self.binary("scores.scaled", BinaryKind::Mul, scores, factor);
        let masked = self.binary("scores.masked", BinaryKind::Add, scaled, self.mask);
        let shape = self.shape(masked);
        let weights = self.op("attention.weights", OpKind::Softmax { axis: 2 }, &[masked], shape);
        let context = self.draft.builder.mma("context", weights, v, F32);
        let [heads, m, d] = &self.shape(context)[..] else { return context };
        let by_row = vec![m.clone(), heads.clone(), d.clone()];
        let joined = vec![m.clone(), Dim::fixed(block.heads * block.head_dim)];
        let kind = OpKind::Transpose { permutation: vec![1, 0, 2] };
        let context = self.op("context.rows", kind, &[context], by_row);
        let context = self.op("context.joined", OpKind::Reshape, &[context], joined);
        self.draft.linear(o, context, "o.", F32, "attention")
    }

    fn feed_forward(&mut self, x: Value) -> Value {
        let Block { gate, up, down, function, .. } = *self.block;
        self.draft.feed_forward(x, gate, up, function, down, F32, "mlp")
    }
}
