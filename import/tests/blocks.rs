//! Groups of linears, feed-forward blocks and whole blocks equal what they consist of.

mod support;

use std::collections::HashMap;
use std::path::Path;

use fourfold_executor::{SafetensorsFile, write_tensors};
use fourfold_import::{ImportOptions, import, write};
use fourfold_ir::{ElementType, Tensor, bind, interpret};

use support::{Expected, error_of_rows, exact, fixtures, read_program};

/// Interprets a program of a folder and returns every value. `given` are the inputs without a stored tensor.
fn values_of(folder: &Path, name: &str, given: &[(&str, &Tensor)]) -> HashMap<String, Vec<f32>> {
    let select = Some(name.to_owned());
    let imported = import(folder, &ImportOptions { select, ..exact() }).expect("the checkpoint is valid");
    let output = tempfile::tempdir().expect("a folder");
    write(&imported, output.path()).expect("the programs can be written");
    let rows = given[0].1.dims()[0];
    let (program, mut inputs) =
        read_program(&output.path().join(format!("{name}.fir")), rows).expect("the program is valid");
    for (input, tensor) in given {
        inputs.insert((*input).to_owned(), tensor.try_clone().expect("memory"));
    }
    let values = interpret(&program, &bind::bind(&program, &inputs).expect("it fits")).expect("it runs");
    let module = program.module();
    let named = |(value, tensor): (_, &Tensor)| (module.name_of(value).to_owned(), tensor.to_f32());
    module.values.keys().zip(&values).map(named).collect()
}

fn matrix(columns: usize, values: &[f32]) -> Tensor {
    Tensor::from_f32(vec![values.len() / columns, columns], values).expect("it is a matrix")
}

/// The input of a linear.
fn input_of(folder: &Path, name: &str, k: usize) -> Tensor {
    let expected =
        Expected(SafetensorsFile::open(&folder.join("expected.safetensors")).expect("it is valid"));
    let x = expected.need(&format!("{name}.x")).expect("there is an input");
    matrix(k, &x.iter().map(|x| *x as f32).collect::<Vec<_>>())
}

#[test]
fn groups_and_feed_forward_blocks_equal_their_linears() {
    for case in ["modelopt-nvfp4-awq", "ct-mxfp4", "torchao-nvfp4-dynamic"] {
        let folder = fixtures().join(case);
        let attention = "model.layers.0.self_attn";
        let input = input_of(&folder, &format!("{attention}.q_proj"), 192);
        let group = values_of(&folder, &format!("{attention}.qkv"), &[("x", &input)]);
        for member in ["q_proj", "k_proj", "v_proj"] {
            let alone = values_of(&folder, &format!("{attention}.{member}"), &[("x", &input)]);
            assert_eq!(group[member], alone["y"], "{case} {member}");
        }
        let mlp = "model.layers.0.mlp";
        let input = input_of(&folder, &format!("{mlp}.gate_proj"), 192);
        let pair = values_of(&folder, &format!("{mlp}.gate_up"), &[("x", &input)]);
        let silu = |x: f32| (f64::from(x) / (1.0 + (-f64::from(x)).exp())) as f32;
        let hidden: Vec<f32> =
            pair["gate_proj"].iter().zip(&pair["up_proj"]).map(|(gate, up)| silu(*gate) * up).collect();
        let hidden = matrix(320, &hidden);
        let alone = values_of(&folder, &format!("{mlp}.down_proj"), &[("x", &hidden)]);
        assert_eq!(values_of(&folder, mlp, &[("x", &input)])["y"], alone["y"], "{case}");
    }
}

/// Attention of one sequence in f64: heads of `d` channels, with a mask and a rotary embedding.
struct Attention<'a> {
    heads: usize,
    kv_heads: usize,
    d: usize,
    mask: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Attention<'_> {
    fn rotated(&self, x: &[f32], heads: usize, m: usize, head: usize) -> Vec<f64> {
        let d = self.d;
        let at = |k: usize| f64::from(x[(m * heads + head) * d + k]);
        let turned = |k: usize| if k < d / 2 { -at(k + d / 2) } else { at(k - d / 2) };
        let factor = |factors: &[f32], k: usize| f64::from(factors[m * d + k]);
        (0..d).map(|k| at(k) * factor(self.cos, k) + turned(k) * factor(self.sin, k)).collect()
    }

    fn context(&self, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
        let (rows, d) = (q.len() / (self.heads * self.d), self.d);
        let mut context = vec![0.0; q.len()];
        for head in 0..self.heads {
            let shared = head / (self.heads / self.kv_heads);
            for m in 0..rows {
                let q = self.rotated(q, self.heads, m, head);
                let score = |n: usize| {
                    let k = self.rotated(k, self.kv_heads, n, shared);
                    let product: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                    product / (d as f64).sqrt() + f64::from(self.mask[m * rows + n])
                };
                let scores: Vec<f64> = (0..rows).map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
                for (n, score) in scores.iter().enumerate() {
                    let weight = (score - most).exp() / total;
                    for c in 0..d {
                        let v = f64::from(v[(n * self.kv_heads + shared) * d + c]);
                        context[(m * self.heads + head) * d + c] += weight * v;
                    }
                }
            }
        }
        context
    }
}

#[track_caller]
fn assert_close(what: &str, found: &[f32], expected: &[f64]) {
    let found: Vec<f64> = found.iter().map(|value| f64::from(*value)).collect();
    let error = error_of_rows(&found, expected, found.len(), &[true]);
    assert!(error < 1e-5, "{what} differs by {error:e}");
}

/// The rows of x, each normalized by `norm`, times a stored weight.
fn normed(x: &[f32], weight: &[f32], norm: fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let row = |row: &[f32]| {
        let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        norm(&row).into_iter().zip(weight).map(|(x, weight)| x * f64::from(*weight)).collect::<Vec<_>>()
    };
    x.chunks(weight.len()).flat_map(row).collect()
}

fn sum(left: &[f32], right: &[f32]) -> Vec<f64> {
    left.iter().zip(right).map(|(left, right)| f64::from(*left) + f64::from(*right)).collect()
}

#[test]
fn a_llama_block_is_its_norms_linears_and_attention() {
    let folder = fixtures().join("modelopt-nvfp4-awq");
    let layer = "model.layers.0";
    let x = input_of(&folder, &format!("{layer}.self_attn.q_proj"), 192);
    let rows = x.dims()[0];
    let mask: Vec<f32> =
        (0..rows * rows).map(|at| if at % rows > at / rows { f32::NEG_INFINITY } else { 0.0 }).collect();
    let angle = |at: usize| (at / 64) as f64 / 100_000f64.powf((at % 32) as f64 / 32.0);
    let cos: Vec<f32> = (0..rows * 64).map(|at| angle(at).cos() as f32).collect();
    let sin: Vec<f32> = (0..rows * 64).map(|at| angle(at).sin() as f32).collect();
    let tensors = [matrix(rows, &mask), matrix(64, &cos), matrix(64, &sin)];
    let given = [("x", &x), ("mask", &tensors[0]), ("cos", &tensors[1]), ("sin", &tensors[2])];
    let values = values_of(&folder, layer, &given);
    let rms = |x: &[f64]| {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter().map(|x| x / (mean + 1e-5).sqrt()).collect()
    };
    let first = normed(&x.to_f32(), &values["attention.normed.weight"], rms);
    assert_close("the first norm", &values["attention.normed"], &first);
    let of = |name: &str, x: &Tensor| values_of(&folder, &format!("{layer}.{name}"), &[("x", x)]);
    let qkv = of("self_attn.qkv", &matrix(192, &values["attention.normed"]));
    for (name, member) in [("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj")] {
        assert_eq!(values[name], qkv[member], "{member}");
    }
    let attention = Attention { heads: 3, kv_heads: 1, d: 64, mask: &mask, cos: &cos, sin: &sin };
    let context = attention.context(&values["q"], &values["k"], &values["v"]);
    assert_close("attention", &values["context.joined"], &context);
    let o = of("self_attn.o_proj", &matrix(192, &values["context.joined"]));
    assert_eq!(values["attention"], o["y"]);
    assert_close("the first sum", &values["attention.residual"], &sum(&x.to_f32(), &o["y"]));
    let second = normed(&values["attention.residual"], &values["mlp.normed.weight"], rms);
    assert_close("the second norm", &values["mlp.normed"], &second);
    let mlp = of("mlp", &matrix(192, &values["mlp.normed"]));
    assert_eq!(values["mlp"], mlp["y"]);
    assert_close("y", &values["y"], &sum(&values["attention.residual"], &mlp["y"]));
}

/// Writes a model of ModelOpt with drawn weights: linears with their extents, and vectors.
fn write_model(folder: &Path, linears: &[(&str, usize, usize)], vectors: &[(&str, usize)], config: &str) {
    let mut state = 7u64;
    let mut draw = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    for &(name, n, k) in linears {
        let codes = (0..n * k).map(|_| draw(16) as u8).collect();
        let scales = (0..n * k / 16).map(|_| 0x30 + draw(16) as u8).collect();
        let (fp4, e4m3) = (ElementType::F4E2M1FN, ElementType::F8E4M3FN);
        tensors.extend([
            (format!("{name}.weight"), Tensor::from_codes(fp4, vec![n, k], None, codes).unwrap()),
            (
                format!("{name}.weight_scale"),
                Tensor::from_codes(e4m3, vec![n, k / 16], None, scales).unwrap(),
            ),
            (format!("{name}.weight_scale_2"), Tensor::from_f32(vec![], &[0.03]).unwrap()),
            (format!("{name}.input_scale"), Tensor::from_f32(vec![], &[0.01]).unwrap()),
        ]);
    }
    for &(name, n) in vectors {
        let values: Vec<f32> = (0..n).map(|_| draw(100) as f32 / 50.0 - 0.7).collect();
        tensors.push((name.to_owned(), Tensor::from_f32(vec![n], &values).unwrap()));
    }
    let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    write_tensors(&folder.join("model.safetensors"), &named).unwrap();
    let quantized = r#""quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4"}"#;
    std::fs::write(folder.join("config.json"), format!("{{{config},{quantized}}}")).unwrap();
}

/// An encoder layer: hidden 64, 2 heads, 96 channels between.
fn write_encoder(folder: &Path) {
    let (attention, layer) = ("encoder.layer.0.attention", "encoder.layer.0");
    let linears = [
        (format!("{attention}.self.query"), 64, 64),
        (format!("{attention}.self.key"), 64, 64),
        (format!("{attention}.self.value"), 64, 64),
        (format!("{attention}.output.dense"), 64, 64),
        (format!("{layer}.intermediate.dense"), 96, 64),
        (format!("{layer}.output.dense"), 64, 96),
    ];
    let norms = [format!("{attention}.output.LayerNorm"), format!("{layer}.output.LayerNorm")];
    let mut vectors: Vec<(String, usize)> = norms
        .iter()
        .flat_map(|norm| ["weight", "bias"].map(|field| (format!("{norm}.{field}"), 64)))
        .collect();
    vectors.extend(linears.iter().map(|(name, n, _)| (format!("{name}.bias"), *n)));
    let linears = linears.each_ref().map(|(name, n, k)| (name.as_str(), *n, *k));
    let vectors: Vec<(&str, usize)> = vectors.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let config = r#""model_type":"bert","num_attention_heads":2,"hidden_act":"gelu","layer_norm_eps":1e-12"#;
    write_model(folder, &linears, &vectors, config);
}

/// Rows `[M, heads · D]` of a tensor `[heads, M, D]`.
fn by_row(x: &[f32], heads: usize, d: usize) -> Vec<f32> {
    let rows = x.len() / heads / d;
    let at = |at: usize| x[((at / d % heads) * rows + at / d / heads) * d + at % d];
    (0..x.len()).map(at).collect()
}

#[test]
fn a_qwen3_block_normalizes_q_and_k_by_head() {
    let model = tempfile::tempdir().unwrap();
    let (folder, layer) = (model.path(), "model.layers.0");
    write_model(
        folder,
        &[
            ("model.layers.0.self_attn.q_proj", 64, 64),
            ("model.layers.0.self_attn.k_proj", 32, 64),
            ("model.layers.0.self_attn.v_proj", 32, 64),
            ("model.layers.0.self_attn.o_proj", 64, 64),
            ("model.layers.0.mlp.gate_proj", 96, 64),
            ("model.layers.0.mlp.up_proj", 96, 64),
            ("model.layers.0.mlp.down_proj", 64, 96),
        ],
        &[
            ("model.layers.0.input_layernorm.weight", 64),
            ("model.layers.0.post_attention_layernorm.weight", 64),
            ("model.layers.0.self_attn.q_norm.weight", 16),
            ("model.layers.0.self_attn.k_norm.weight", 16),
        ],
        r#""model_type":"qwen3","num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
            "hidden_act":"silu","rms_norm_eps":1e-6"#,
    );
    let x: Vec<f32> = (0..5 * 64).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let draw = |count: usize| (0..count).map(|at| (at * 29 % 53) as f32 / 26.0 - 1.0).collect::<Vec<f32>>();
    let (mask, cos, sin) = (draw(25), draw(5 * 16), draw(5 * 16));
    let tensors = [matrix(64, &x), matrix(5, &mask), matrix(16, &cos), matrix(16, &sin)];
    let given = [("x", &tensors[0]), ("mask", &tensors[1]), ("cos", &tensors[2]), ("sin", &tensors[3])];
    let values = values_of(folder, layer, &given);
    let rms = |x: &[f64]| {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter().map(|x| x / (mean + 1e-6).sqrt()).collect()
    };
    let (q, k) = (by_row(&values["q.normed"], 4, 16), by_row(&values["k.normed"], 2, 16));
    assert_close("q", &q, &normed(&values["q"], &values["q.normed.weight"], rms));
    assert_close("k", &k, &normed(&values["k"], &values["k.normed.weight"], rms));
    let attention = Attention { heads: 4, kv_heads: 2, d: 16, mask: &mask, cos: &cos, sin: &sin };
    assert_close("attention", &values["context.joined"], &attention.context(&q, &k, &values["v"]));
    let left = import(folder, &ImportOptions::default()).unwrap().left_out;
    assert!(left.is_empty(), "the block has the norms: {left:?}");
}

#[test]
fn a_bert_block_is_its_norms_linears_and_attention() {
    let model = tempfile::tempdir().unwrap();
    let (folder, layer) = (model.path(), "encoder.layer.0");
    write_encoder(folder);
    let x: Vec<f32> = (0..5 * 64).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let x = matrix(64, &x);
    let rows = x.dims()[0];
    let (mask, cos, sin) = (vec![0.0; rows * rows], vec![1.0; rows * 32], vec![0.0; rows * 32]);
    let tensor = matrix(rows, &mask);
    let values = values_of(folder, layer, &[("x", &x), ("mask", &tensor)]);
    let attention = Attention { heads: 2, kv_heads: 2, d: 32, mask: &mask, cos: &cos, sin: &sin };
    let context = attention.context(&values["q"], &values["k"], &values["v"]);
    assert_close("attention", &values["context.joined"], &context);
    let of = |name: &str, x: &Tensor| values_of(folder, &format!("{layer}.{name}"), &[("x", x)]);
    let o = of("attention.output.dense", &matrix(64, &values["context.joined"]));
    assert_eq!(values["attention"], o["y"]);
    let layer_norm = |x: &[f64]| {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        x.iter().map(|x| (x - mean) / (variance + 1e-12).sqrt()).collect()
    };
    for (normed_name, residual) in
        [("attention.normed", "attention.residual"), ("mlp.normed", "mlp.residual")]
    {
        let weighted = normed(&values[residual], &values[&format!("{normed_name}.weight")], layer_norm);
        let bias = &values[&format!("{normed_name}.bias")];
        let expected: Vec<f64> =
            weighted.iter().zip(bias.iter().cycle()).map(|(x, bias)| x + f64::from(*bias)).collect();
        assert_close(normed_name, &values[normed_name], &expected);
    }
    let mlp = of("mlp", &matrix(64, &values["attention.normed"]));
    assert_eq!(values["mlp"], mlp["y"]);
    assert_close("the second sum", &values["mlp.residual"], &sum(&mlp["y"], &values["attention.normed"]));
}
