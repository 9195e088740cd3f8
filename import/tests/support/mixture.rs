//! Synthetic checkpoints with a mixture of experts, and the result of their published formulas in f64.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::Result;

/// The producer of a checkpoint, and so the names and forms of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// NVFP4 with activations: `weight`, `weight_scale`, `weight_scale_2`, `input_scale`.
    ModelOpt,
    /// NVFP4 weights only.
    ModelOptWeights,
    /// NVFP4 with activations: `weight_packed`, and scales that divide.
    CompressedTensors,
    /// MXFP4 with activations: `weight`, `weight_scale`.
    ModelOptMx,
    /// MXFP4 weights only, stacked, with gate and up in turn.
    GptOss,
}

/// The architecture of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    Mixtral,
    /// True if weights are normalized.
    Qwen3(bool),
    GptOss,
}

/// A weight `[N, K]`, quantized.
#[derive(Clone, Debug)]
struct Matrix {
    n: usize,
    k: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    global: f32,
    input: f32,
    bias: Vec<f32>,
}

/// Gate, up and down of an expert.
type Expert = [Matrix; 3];

/// A mixture of experts.
#[derive(Clone, Debug)]
pub(crate) struct Mixture {
    pub(crate) format: Format,
    pub(crate) architecture: Architecture,
    pub(crate) top: usize,
    pub(crate) hidden: usize,
    inner: usize,
    router: Vec<f32>,
    router_bias: Vec<f32>,
    experts: Vec<Expert>,
}

/// The numbers of a linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }

    /// A bf16 between -1 and 1 with few bits.
    pub(crate) fn number(&mut self) -> f32 {
        (self.below(255) as f32 - 127.0) / 128.0
    }
}

const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn e2m1(code: u8) -> f64 {
    let value = E2M1[usize::from(code & 7)];
    if code & 8 != 0 { -value } else { value }
}

/// An unsigned e4m3 number.
fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3), f64::from(code & 7));
    if exponent == 0 { mantissa * 2f64.powi(-9) } else { (8.0 + mantissa) * 2f64.powi(exponent - 10) }
}

/// The nearest of ascending numbers; of two, the one at an even place.
fn nearest(value: f64, numbers: impl Iterator<Item = f64>) -> f64 {
    let mut best = (f64::INFINITY, 0.0, 0);
    for (at, number) in numbers.enumerate() {
        let distance = (value - number).abs();
        if distance < best.0 || distance == best.0 && at % 2 == 0 {
            best = (distance, number, at);
        }
    }
    best.1
}

/// A row after quantization to NVFP4 with a global scale.
fn quantized(row: &[f64], global: f32) -> Vec<f64> {
    let mut values = Vec::new();
    for block in row.chunks(16) {
        let block: Vec<f32> = block.iter().map(|value| *value as f32).collect();
        let amax = block.iter().fold(0f32, |amax, value| amax.max(value.abs()));
        let scale = nearest(f64::from(amax / 6.0 / global), (0..0x7F).map(e4m3)) as f32;
        let step = scale * global;
        values.extend(block.iter().map(|value| {
            let magnitude = if step == 0.0 { 0.0 } else { f64::from(value.abs() / step) };
            nearest(magnitude, E2M1.into_iter()) * f64::from(step) * f64::from(value.signum())
        }));
    }
    values
}

/// A row after quantization to MXFP4, with scales that are rounded up.
fn quantized_mx(row: &[f64]) -> Vec<f64> {
    let mut values = Vec::new();
    for block in row.chunks(32) {
        let amax = block.iter().fold(0f64, |amax, value| amax.max(value.abs()));
        let scale = 2f64.powi((amax / 6.0).log2().ceil() as i32);
        values.extend(
            block
                .iter()
                .map(|value| nearest((value / scale).abs(), E2M1.into_iter()) * scale * value.signum()),
        );
    }
    values
}

fn bf16(value: f64) -> f64 {
    let bits = (value as f32).to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) & 0xFFFF_0000;
    f64::from(f32::from_bits(rounded))
}

impl Format {
    fn is_mx(self) -> bool {
        matches!(self, Format::ModelOptMx | Format::GptOss)
    }
}

impl Matrix {
    fn new(random: &mut Random, (n, k): (usize, usize), format: Format, has_bias: bool) -> Matrix {
        let is_mx = format.is_mx();
        let block = if is_mx { 32 } else { 16 };
        let mut draw = |count: usize, first: u64, range: u64| -> Vec<u8> {
            (0..count).map(|_| (first + random.below(range)) as u8).collect()
        };
        let codes = draw(n * k, 0, 16);
        let scales = if is_mx { draw(n * k / block, 121, 5) } else { draw(n * k / block, 0x28, 24) };
        let global = (1 + random.below(7)) as f32 / 32.0;
        let input = (1 + random.below(7)) as f32 / 512.0;
        let bias = (0..if has_bias { n } else { 0 }).map(|_| random.number()).collect();
        Matrix { n, k, codes, scales, global, input, bias }
    }

    fn at(&self, row: usize, column: usize, is_mx: bool) -> f64 {
        let block = if is_mx { 32 } else { 16 };
        let scale = self.scales[(row * self.k + column) / block];
        let scale =
            if is_mx { 2f64.powi(i32::from(scale) - 127) } else { e4m3(scale) * f64::from(self.global) };
        e2m1(self.codes[row * self.k + column]) * scale
    }

    /// The product with a row, and the bias.
    fn product(&self, x: &[f64], format: Format) -> Vec<f64> {
        let is_mx = format.is_mx();
        let x = match format {
            Format::ModelOpt => quantized(x, self.input),
            Format::CompressedTensors => quantized(x, 1.0 / (1.0 / self.input)),
            Format::ModelOptMx => quantized_mx(x),
            Format::ModelOptWeights | Format::GptOss => x.iter().map(|value| bf16(*value)).collect(),
        };
        let sum = |row: usize| (0..self.k).map(|column| x[column] * self.at(row, column, is_mx)).sum::<f64>();
        (0..self.n).map(|row| sum(row) + self.bias.get(row).map_or(0.0, |bias| f64::from(*bias))).collect()
    }

    fn packed(&self) -> Vec<u8> {
        self.codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect()
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
    scores.iter().map(|score| (score - largest).exp() / sum).collect()
}

/// The largest scores and their places, in descending order.
fn greatest(scores: &[f64], count: usize) -> Vec<(usize, f64)> {
    let mut all: Vec<(usize, f64)> = scores.iter().copied().enumerate().collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    all.truncate(count);
    all
}

impl Mixture {
    pub(crate) fn new(
        format: Format,
        architecture: Architecture,
        (experts, top): (usize, usize),
        (hidden, inner): (usize, usize),
        seed: u64,
    ) -> Mixture {
        let mut random = Random(seed);
        let has_bias = architecture == Architecture::GptOss;
        let router = (0..experts * hidden).map(|_| random.number()).collect();
        let router_bias = (0..experts).map(|_| random.number()).collect();
        let mut expert = || {
            let shapes = [(inner, hidden), (inner, hidden), (hidden, inner)];
            let [gate, mut up, down] = shapes.map(|shape| Matrix::new(&mut random, shape, format, has_bias));
            // Calibration sees one input of both.
            up.input = gate.input;
            [gate, up, down]
        };
        let experts = (0..experts).map(|_| expert()).collect();
        Mixture { format, architecture, top, hidden, inner, router, router_bias, experts }
    }

    /// Gives x the same global scale in every expert.
    pub(crate) fn share_input_scales(&mut self) {
        let first = self.experts[0].each_ref().map(|matrix| matrix.input);
        for expert in &mut self.experts {
            expert.iter_mut().zip(first).for_each(|(matrix, input)| matrix.input = input);
        }
    }

    /// Gives gate and up of each expert the same global scale, as exporters that fuse them do.
    pub(crate) fn share_global_scales(&mut self) {
        for [gate, up, _] in &mut self.experts {
            up.global = gate.global;
        }
    }

    /// The path of the block.
    pub(crate) fn path(&self) -> &'static str {
        match self.architecture {
            Architecture::Mixtral => "model.layers.3.block_sparse_moe",
            _ => "model.layers.3.mlp",
        }
    }

    pub(crate) fn config(&self) -> Value {
        let (name, inner) = match self.architecture {
            Architecture::Mixtral => ("mixtral", "intermediate_size"),
            Architecture::Qwen3(_) => ("qwen3_moe", "moe_intermediate_size"),
            Architecture::GptOss => ("gpt_oss", "intermediate_size"),
        };
        let mut config = json!({"model_type": name, "hidden_act": "silu", "hidden_size": self.hidden,
            inner: self.inner, "num_experts_per_tok": self.top, "torch_dtype": "bfloat16"});
        let count = if name == "qwen3_moe" { "num_experts" } else { "num_local_experts" };
        config[count] = self.experts.len().into();
        if let Architecture::Qwen3(is_normalized) = self.architecture {
            config["norm_topk_prob"] = is_normalized.into();
        }
        if self.architecture == Architecture::GptOss {
            config["swiglu_limit"] = 7.0.into();
        }
        let activations = json!({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
            "symmetric": true, "dynamic": "local"});
        let weights = json!({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
            "symmetric": true, "dynamic": false});
        config["quantization_config"] = match self.format {
            Format::ModelOpt => json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            Format::ModelOptWeights => json!({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}),
            Format::ModelOptMx => json!({"quant_method": "modelopt", "quant_algo": "MXFP4"}),
            Format::GptOss => json!({"quant_method": "mxfp4"}),
            Format::CompressedTensors => json!({"quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized", "ignore": ["re:.*gate$"], "config_groups": {"group_0":
                {"targets": ["Linear"], "weights": weights, "input_activations": activations}}}),
        };
        config
    }

    /// The tensors: name, dtype, shape and bytes.
    pub(crate) fn tensors(&self) -> Vec<Entry> {
        let bf16s = |values: &[f32]| -> Vec<u8> {
            values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
        };
        let (path, count) = (self.path(), self.experts.len());
        let has_bias = self.architecture == Architecture::GptOss;
        let router = format!("{path}.{}", if has_bias { "router" } else { "gate" });
        let weight = bf16s(&self.router);
        let mut entries = vec![(format!("{router}.weight"), "BF16", vec![count, self.hidden], weight)];
        if has_bias {
            entries.push((format!("{router}.bias"), "BF16", vec![count], bf16s(&self.router_bias)));
        }
        if self.format == Format::GptOss {
            entries.extend(self.stacked(&bf16s));
            return entries;
        }
        let names = match self.architecture {
            Architecture::Mixtral => ["w1", "w3", "w2"],
            _ => ["gate_proj", "up_proj", "down_proj"],
        };
        for (index, expert) in self.experts.iter().enumerate() {
            for (matrix, name) in expert.iter().zip(names) {
                let of = |field: &str| format!("{path}.experts.{index}.{name}.{field}");
                let is_ct = self.format == Format::CompressedTensors;
                let scalar = |value: f32| {
                    let value = if is_ct { 1.0 / value } else { value };
                    (value.to_le_bytes().to_vec(), if is_ct { vec![1] } else { vec![] })
                };
                let fields = match is_ct {
                    true => ["weight_packed", "weight_global_scale", "input_global_scale"],
                    false => ["weight", "weight_scale_2", "input_scale"],
                };
                let (n, k) = (matrix.n, matrix.k);
                entries.push((of(fields[0]), "U8", vec![n, k / 2], matrix.packed()));
                if self.format == Format::ModelOptMx {
                    entries.push((of("weight_scale"), "U8", vec![n, k / 32], matrix.scales.clone()));
                    continue;
                }
                entries.push((of("weight_scale"), "F8_E4M3", vec![n, k / 16], matrix.scales.clone()));
                let (bytes, shape) = scalar(matrix.global);
                entries.push((of(fields[1]), "F32", shape, bytes));
                if self.format != Format::ModelOptWeights {
                    let (bytes, shape) = scalar(matrix.input);
                    entries.push((of(fields[2]), "F32", shape, bytes));
                }
            }
        }
        entries
    }

    /// The stacked tensors of gpt-oss.
    fn stacked(&self, bf16s: &dyn Fn(&[f32]) -> Vec<u8>) -> Vec<Entry> {
        let count = self.experts.len();
        let mut entries = Vec::new();
        let part = |field: &str| format!("{}.experts.{field}", self.path());
        let rows = |parts: [(Vec<u8>, usize); 2]| -> Vec<u8> {
            let [gate, up] =
                parts.map(|(bytes, width)| bytes.chunks(width).map(<[u8]>::to_vec).collect::<Vec<_>>());
            gate.into_iter().zip(up).flat_map(|(gate, up)| [gate, up].concat()).collect()
        };
        let (mut codes, mut scales, mut bias) = (Vec::new(), Vec::new(), Vec::new());
        let [mut down_codes, mut down_scales, mut down_bias] = [Vec::new(), Vec::new(), Vec::new()];
        for [gate, up, down] in &self.experts {
            codes.extend(rows([gate, up].map(|matrix| (matrix.packed(), matrix.k / 2))));
            scales.extend(rows([gate, up].map(|matrix| (matrix.scales.clone(), matrix.k / 32))));
            bias.extend(rows([gate, up].map(|matrix| (bf16s(&matrix.bias), 2))));
            down_codes.extend(down.packed());
            down_scales.extend(&down.scales);
            down_bias.extend(bf16s(&down.bias));
        }
        let (hidden, inner) = (self.hidden, self.inner);
        for (name, n, k, parts) in [
            ("gate_up_proj", 2 * inner, hidden, [codes, scales, bias]),
            ("down_proj", hidden, inner, [down_codes, down_scales, down_bias]),
        ] {
            let [codes, scales, bias] = parts;
            entries.push((part(&format!("{name}_blocks")), "U8", vec![count, n, k / 32, 16], codes));
            entries.push((part(&format!("{name}_scales")), "U8", vec![count, n, k / 32], scales));
            entries.push((part(&format!("{name}_bias")), "BF16", vec![count, n], bias));
        }
        entries
    }

    /// Writes the checkpoint. With several shards, neighbouring tensors are in different ones.
    pub(crate) fn write(&self, folder: &Path, shards: usize) -> Result<()> {
        write_model(folder, &self.config(), &self.tensors(), shards)
    }

    /// The result for a row of x.
    pub(crate) fn expected(&self, x: &[f64]) -> Vec<f64> {
        let score = |expert: usize| {
            let weights = &self.router[expert * self.hidden..][..self.hidden];
            let sum: f64 = weights.iter().zip(x).map(|(weight, x)| f64::from(*weight) * x).sum();
            match self.architecture {
                Architecture::GptOss => sum + f64::from(self.router_bias[expert]),
                _ => sum,
            }
        };
        let scores: Vec<f64> = (0..self.experts.len()).map(score).collect();
        let chosen = match self.architecture {
            Architecture::GptOss => {
                let best = greatest(&scores, self.top);
                let weights = softmax(&best.iter().map(|(_, score)| *score).collect::<Vec<_>>());
                best.iter().zip(weights).map(|((expert, _), weight)| (*expert, weight)).collect()
            }
            Architecture::Mixtral | Architecture::Qwen3(true) => {
                let best = greatest(&softmax(&scores), self.top);
                let sum: f64 = best.iter().map(|(_, weight)| weight).sum();
                best.into_iter().map(|(expert, weight)| (expert, weight / sum)).collect()
            }
            Architecture::Qwen3(false) => greatest(&softmax(&scores), self.top),
        };
        let mut y = vec![0.0; self.hidden];
        for (expert, weight) in chosen {
            let [gate, up, down] = &self.experts[expert];
            let pairs = gate.product(x, self.format).into_iter().zip(up.product(x, self.format));
            let hidden: Vec<f64> = pairs.map(|(gate, up)| self.gated(gate, up)).collect();
            let out = down.product(&hidden, self.format);
            y.iter_mut().zip(out).for_each(|(y, out)| *y += weight * out);
        }
        y
    }

    fn gated(&self, gate: f64, up: f64) -> f64 {
        if self.architecture != Architecture::GptOss {
            return gate * sigmoid(gate) * up;
        }
        let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
        gate * sigmoid(1.702 * gate) * (up + 1.0)
    }
}

/// A tensor of a file: name, dtype, shape and bytes.
pub(crate) type Entry = (String, &'static str, Vec<usize>, Vec<u8>);

/// Writes a model with these tensors.
pub(crate) fn write_model(folder: &Path, config: &Value, entries: &[Entry], shards: usize) -> Result<()> {
    fs::write(folder.join("config.json"), config.to_string())?;
    let mut index = serde_json::Map::new();
    for shard in 0..shards {
        let file = match shards {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{shards:05}.safetensors", shard + 1),
        };
        let own: Vec<&Entry> = entries.iter().skip(shard).step_by(shards).collect();
        let (mut header, mut at) = (serde_json::Map::new(), 0);
        for (name, dtype, shape, bytes) in &own {
            let end = at + bytes.len();
            header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}));
            index.insert(name.clone(), file.clone().into());
            at = end;
        }
        let header = Value::Object(header).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        own.iter().for_each(|(.., data)| bytes.extend(data));
        fs::write(folder.join(&file), bytes)?;
    }
    if shards > 1 {
        let index = json!({"metadata": {}, "weight_map": index});
        fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;
    }
    Ok(())
}
