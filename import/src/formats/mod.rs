//! The quantization formats of checkpoints, and the linears that they describe.
//!
//! The configuration and the header decide the producer. Without them, only names that one producer uses decide.

mod compressed_tensors;
mod modelopt;
mod others;
mod patterns;
pub(crate) mod torchao;
mod weights;

use std::collections::BTreeMap;

use fourfold_ir::ElementType;
use serde_json::Value;

use self::compressed_tensors::CompressedTensors;
use self::modelopt::ModelOpt;
use self::patterns::Patterns;
use crate::checkpoint::{Checkpoint, Tensor, Tensors};
use crate::fields::{Fields, Refusal, arithmetic, named_type};
use crate::imported::{LeftOut, LeftOutCode};
use crate::linear::Linear;

/// The last parts of the names of tensors that scale the key-value cache.
pub(crate) const KV_SCALES: [&str; 4] = ["k_scale", "v_scale", "q_scale", "prob_scale"];

/// The name endings of stacked experts, after the name of the projection.
const GPT_OSS_BLOCKS: &str = "_blocks";

/// The producer of a checkpoint.
enum Producer<'a> {
    ModelOpt(ModelOpt<'a>),
    CompressedTensors(CompressedTensors<'a>),
    TorchAo,
    /// With the modules that are not quantized.
    Quark(Patterns<'a>),
    Mlx,
    /// With the description in the header.
    Comfy(Result<Value, Refusal>),
    GptOss,
    /// The signs of two producers, in words.
    Contradictory(String),
    /// A producer that is known, but not imported.
    Unsupported(String),
    /// Nothing names the producer.
    Unknown,
}

/// The linears of a checkpoint, and what was left out.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) linears: Vec<Linear>,
    pub(crate) left_out: Vec<LeftOut>,
}

impl Reading {
    pub(crate) fn leave_out(&mut self, name: &str, code: LeftOutCode, message: impl Into<String>) {
        self.left_out.push(LeftOut { name: name.to_owned(), code, message: message.into() });
    }

    pub(crate) fn add(&mut self, name: &str, read: Result<Vec<Linear>, Refusal>) {
        match read.and_then(|linears| linears.iter().try_for_each(check_extents).map(|()| linears)) {
            Ok(linears) => self.linears.extend(linears),
            Err(refusal) => self.leave_out(name, refusal.code, refusal.message),
        }
    }
}

/// Refuses a linear whose extents exceed those of the program language.
fn check_extents(linear: &Linear) -> Result<(), Refusal> {
    const LARGEST: u64 = 1 << 40;
    const MOST: u64 = 1 << 46;
    let Linear { n, k, .. } = *linear;
    let fits = n <= LARGEST && k <= LARGEST && n.checked_mul(k).is_some_and(|count| count <= MOST);
    let message = || format!("its weight is [{n}, {k}], which exceeds the largest tensor of a program");
    if fits { Ok(()) } else { Err(Refusal::new(LeftOutCode::WrongShape, message())) }
}

/// Reads the linears of a checkpoint.
pub(crate) fn read(checkpoint: &Checkpoint) -> Reading {
    let producer = producer(checkpoint);
    let mut reading = Reading { left_out: checkpoint.left_out.clone(), ..Reading::default() };
    for (module, tensors) in &checkpoint.modules {
        let mut fields = Fields::new(module, tensors);
        for field in KV_SCALES {
            if let Some(tensor) = fields.take(field) {
                let message = "it scales the key-value cache, which no linear uses";
                reading.leave_out(&tensor.name, LeftOutCode::KvCacheScale, message);
            }
        }
        if !is_quantized(tensors) {
            leave_out_plain(&mut reading, module, tensors);
        } else if is_embedding(module) {
            let message = "it is an embedding, which is no linear";
            reading.leave_out(module, LeftOutCode::NotALinear, message);
        } else if let Some(stacked) = stacked(&producer, tensors) {
            read_stacked(&producer, fields, &stacked, &mut reading);
        } else if checkpoint.modules.contains_key(&format!("{module}.weight_quantizer")) {
            let message = format!("`{module}.weight_quantizer` holds a low-rank part of the weight");
            reading.leave_out(module, LeftOutCode::UnsupportedFormat, message);
        } else if let Some(below) = tensor_below(checkpoint, module) {
            let message = format!("the tensor `{below}` below it is not part of the format");
            reading.leave_out(module, LeftOutCode::UnknownFormat, message);
        } else {
            let read = read_linear(&producer, checkpoint, fields);
            reading.add(module, read.map(|linear| vec![linear]));
        }
    }
    reading
}

fn read_linear(
    producer: &Producer<'_>,
    checkpoint: &Checkpoint,
    fields: Fields<'_>,
) -> Result<Linear, Refusal> {
    match producer {
        Producer::ModelOpt(modelopt) => modelopt.read(fields),
        Producer::CompressedTensors(compressed) => compressed.read(fields),
        Producer::TorchAo => torchao::read(&checkpoint.metadata, fields),
        Producer::Quark(excluded) => others::quark(checkpoint, excluded, fields),
        Producer::Mlx => others::mlx(checkpoint, fields),
        Producer::Comfy(description) => others::comfy(description, fields),
        Producer::GptOss => {
            let message = format!("`{}` has no `_blocks` and `_scales`", fields.module());
            Err(Refusal::new(LeftOutCode::UnknownFormat, message))
        }
        Producer::Contradictory(signs) => Err(weights::contradiction(signs)),
        Producer::Unsupported(method) => {
            Err(weights::unsupported(format!("the quantization method `{method}`")))
        }
        // Only compressed-tensors uses this name.
        Producer::Unknown if fields.peek("weight_packed").is_some() => {
            CompressedTensors::new(checkpoint).read(fields)
        }
        Producer::Unknown => Err(unknown(&fields)),
    }
}

/// The refusal of a module whose producer nothing names.
fn unknown(fields: &Fields<'_>) -> Refusal {
    let module = fields.module();
    let message = match fields.peek("weight").filter(|_| fields.dtype("weight_scale") == "F8_E4M3") {
        Some(weight) => format!(
            "`{}` ({}) may be of ModelOpt or of comfy-kitchen, which order nibbles and scales differently; \
             add the config.json of the model",
            weight.name,
            weight.form()
        ),
        None => {
            format!("no configuration names the producer of `{module}`; add the config.json of the model")
        }
    };
    Refusal::new(LeftOutCode::AmbiguousFormat, message)
}

/// The names of the projections that a module stacks for all experts.
fn stacked(producer: &Producer<'_>, tensors: &Tensors) -> Option<Vec<String>> {
    let names: Vec<String> = tensors
        .iter()
        .filter_map(|(field, tensor)| match producer {
            Producer::ModelOpt(_) => {
                (tensor.dtype == "U8" && tensor.shape.len() == 3).then(|| field.to_owned())
            }
            _ => field.strip_suffix(GPT_OSS_BLOCKS).map(str::to_owned),
        })
        .collect();
    (!names.is_empty()).then_some(names)
}

fn read_stacked(producer: &Producer<'_>, mut fields: Fields<'_>, names: &[String], reading: &mut Reading) {
    let module = fields.module();
    for name in names {
        let read = match producer {
            Producer::ModelOpt(modelopt) => modelopt.read_experts(&mut fields, name),
            Producer::GptOss | Producer::Unknown => others::gpt_oss(&mut fields, name),
            Producer::Contradictory(signs) => Err(weights::contradiction(signs)),
            _ => Err(Refusal::new(
                LeftOutCode::Contradiction,
                format!("`{module}` has the form of gpt-oss, but the configuration names another producer"),
            )),
        };
        reading.add(&format!("{module}.{name}"), read);
    }
    if let Err(refusal) = fields.finish() {
        reading.leave_out(module, LeftOutCode::UnusedTensor, refusal.message);
    }
}

/// Returns true if a module has a tensor that only quantized modules have.
fn is_quantized(tensors: &Tensors) -> bool {
    tensors.iter().any(|(field, tensor)| {
        let is_kv = KV_SCALES.contains(&field);
        let is_named = ["weight_scale", "weight_packed", "_weight_qdata"].contains(&field);
        !is_kv && (is_named || arithmetic(&tensor.dtype).is_none() && tensor.shape.len() > 1)
    })
}

/// The last parts of the names of embeddings.
const EMBEDDINGS: [&str; 10] = [
    "embed_tokens",
    "embed_positions",
    "embed_in",
    "tok_embeddings",
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "embeddings",
    "wte",
    "wpe",
];

/// Returns true for the name of an embedding: a table of rows, which no multiplication reads.
fn is_embedding(module: &str) -> bool {
    EMBEDDINGS.contains(&module.rsplit('.').next().unwrap_or(module))
}

/// The first tensor of the modules below one, such as `lora_A`.
fn tensor_below<'a>(checkpoint: &'a Checkpoint, module: &str) -> Option<&'a str> {
    let prefix = format!("{module}.");
    let (below, tensors) = checkpoint.modules.range(prefix.clone()..).next()?;
    let tensor = tensors.values().next()?;
    below.starts_with(&prefix).then_some(&*tensor.name)
}

/// Leaves out a module whose tensors are not quantized.
fn leave_out_plain(reading: &mut Reading, module: &str, tensors: &Tensors) {
    let others: Vec<&Tensor> =
        tensors.iter().filter(|(field, _)| !KV_SCALES.contains(field)).map(|(_, tensor)| tensor).collect();
    let (Some(first), weight) = (others.first(), tensors.get("weight")) else { return };
    let last = module.rsplit('.').next().unwrap_or(module);
    match weight {
        Some(weight) if weight.shape.len() < 2 || last.contains("embed") => {
            let message = format!("`{}` ({}) is no weight of a linear", weight.name, weight.form());
            reading.leave_out(module, LeftOutCode::NotALinear, message);
        }
        Some(weight) => {
            let message = format!("`{}` is {}, which is not quantized", weight.name, weight.form());
            reading.leave_out(module, LeftOutCode::NotQuantized, message);
        }
        None => {
            let belong = match others.len() - 1 {
                0 => "belongs".to_owned(),
                more => format!("and {more} more belong"),
            };
            let message = format!("`{}` ({}) {belong} to no linear", first.name, first.form());
            let name = if module.is_empty() { &first.name } else { module };
            reading.leave_out(name, LeftOutCode::UnusedTensor, message);
        }
    }
}

/// The signs of producers: the place of each, and the name of the producer.
fn signs(checkpoint: &Checkpoint) -> Vec<(&'static str, &str)> {
    let config = &checkpoint.config;
    let mut signs = Vec::new();
    fn add<'a>(signs: &mut Vec<(&'static str, &'a str)>, place: &'static str, name: Option<&'a str>) {
        signs.extend(name.map(|name| (place, name)));
    }
    let places = [
        ("config.json", &config["quantization_config"]),
        ("quantization_config.json", &checkpoint.quantization_config),
    ];
    for (file, place) in places {
        add(&mut signs, file, place["quant_method"].as_str());
        add(&mut signs, file, place["producer"]["name"].as_str());
    }
    let of_modelopt = &checkpoint.hf_quant_config;
    let named = of_modelopt["producer"]["name"].as_str();
    let unnamed = of_modelopt["quantization"].is_object().then_some("modelopt");
    add(&mut signs, "hf_quant_config.json", named.or(unnamed));
    add(&mut signs, "config.json", config["quantization"].is_object().then_some("mlx"));
    let header = &checkpoint.metadata;
    let is_comfy = header.contains_key(others::COMFY_KEY);
    add(&mut signs, "the header", is_comfy.then_some("comfy-kitchen"));
    add(&mut signs, "the header", torchao::is_described(header).then_some("torchao"));
    signs
}

fn producer(checkpoint: &Checkpoint) -> Producer<'_> {
    let signs = signs(checkpoint);
    let Some((place, name)) = signs.first().copied() else { return Producer::Unknown };
    if let Some((other_place, other)) = signs.iter().find(|(_, other)| *other != name) {
        return Producer::Contradictory(format!(
            "{place} has the form of `{name}`, but {other_place} that of `{other}`"
        ));
    }
    let places = [&checkpoint.config["quantization_config"], &checkpoint.quantization_config];
    match name {
        "modelopt" => Producer::ModelOpt(ModelOpt::new(checkpoint)),
        "compressed-tensors" => Producer::CompressedTensors(CompressedTensors::new(checkpoint)),
        "auto-round" if is_compressed(places) => {
            Producer::CompressedTensors(CompressedTensors::new(checkpoint))
        }
        "torchao" => Producer::TorchAo,
        "quark" => Producer::Quark(Patterns::new([&places[0]["exclude"]])),
        "mxfp4" => Producer::GptOss,
        "mlx" => Producer::Mlx,
        "comfy-kitchen" => Producer::Comfy(others::comfy_description(checkpoint)),
        other => Producer::Unsupported(other.to_owned()),
    }
}

/// Returns true if AutoRound packed the weights as compressed-tensors does.
fn is_compressed(places: [&Value; 2]) -> bool {
    let format = places.iter().find_map(|place| place.get("packing_format")?.as_str());
    format.is_some_and(|format| format.contains("llm_compressor"))
}

/// The type of the model's activations: that of its configuration, else that of most of its plain tensors.
pub(crate) fn model_type(checkpoint: &Checkpoint) -> ElementType {
    let config = &checkpoint.config;
    let stated = [config, &config["text_config"]]
        .into_iter()
        .flat_map(|place| [&place["dtype"], &place["torch_dtype"]])
        .find_map(|dtype| named_type(dtype.as_str()?));
    if let Some(stated) = stated.or_else(|| torchao::original_type(&checkpoint.metadata)) {
        return stated;
    }
    let mut counts: BTreeMap<ElementType, usize> = BTreeMap::new();
    for tensor in checkpoint.modules.values().flat_map(|tensors| tensors.values()) {
        // Scales of whole tensors are f32 in every model.
        if let Some(element) = arithmetic(&tensor.dtype).filter(|_| tensor.shape.iter().any(|dim| *dim > 1)) {
            *counts.entry(element).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(ElementType::BF16, |(element, _)| element)
}
