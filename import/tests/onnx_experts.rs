//! Imports `QMoE` nodes of ONNX Runtime with FP4 weights, and compares with results computed in f64.

#[path = "support/onnx_file.rs"]
mod onnx_file;

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use fourfold::{Backend, DeviceChoice, Options};
use fourfold_executor::{RunOptions, TensorSource, run};
use fourfold_import::{Import, ImportOptions, ImportedProgram, LeftOutCode, import};
use fourfold_ir::{Capabilities, ElementType, Entity, Program, Tensor, bind, interpret, verify};
use fourfold_scheduler::partition;
use rten_onnx::onnx::{AttributeProto, AttributeType, DataType, NodeProto, TensorProto};

use onnx_file::{Numbers, from_domain, model_of, node, tensor, value};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const M: usize = 7;
const H: usize = 64;
const INNER: usize = 96;
const E: usize = 5;
const K: usize = 2;

/// The magnitudes of E2M1, by code.
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Numbers of 7 bits below 4, which bf16 represents.
fn floats(count: usize, seed: u64) -> Vec<f64> {
    let mut numbers = Numbers(seed);
    (0..count).map(|_| (numbers.below(255) as f64 - 127.0) / 32.0).collect()
}

fn bf16(dims: Vec<usize>, values: &[f64]) -> Tensor {
    Tensor::from_f64(ElementType::BF16, dims, None, values).expect("the numbers fit")
}

/// A weight of all experts: the initializers and the values `[E, N, K]`.
struct Weight {
    packed: Vec<u8>,
    scales: Vec<u8>,
    factors: Vec<f32>,
    values: Vec<f64>,
}

/// Draws a weight. Two codes of a byte are neighbors along K if `is_k_packed`, else along N.
fn weight(n: usize, k: usize, block: usize, is_k_packed: bool, seed: u64) -> Weight {
    let mut numbers = Numbers(seed);
    let codes: Vec<u8> = (0..E * n * k).map(|_| numbers.below(16) as u8).collect();
    let first = if block == 16 { 0x24 } else { 121 };
    let scales: Vec<u8> = (0..E * n * k / block).map(|_| first + numbers.below(8) as u8).collect();
    let factors: Vec<f32> = (0..E).map(|expert| 0.25 + expert as f32 * 0.125).collect();
    let scale = |byte: u8| match block {
        16 => (1.0 + f64::from(byte & 7) / 8.0) * 2f64.powi(i32::from(byte >> 3) - 7),
        _ => 2f64.powi(i32::from(byte) - 127),
    };
    let value = |at: usize| {
        let (code, sign) = (codes[at], if codes[at] & 8 == 0 { 1.0 } else { -1.0 });
        sign * E2M1[usize::from(code & 7)] * scale(scales[at / block]) * f64::from(factors[at / (n * k)])
    };
    let stored = |at: usize| match is_k_packed {
        true => codes[at],
        // [E, K, N]
        false => codes[at / (n * k) * n * k + at % n * k + at % (n * k) / n],
    };
    let packed = (0..E * n * k / 2).map(|at| stored(2 * at) | stored(2 * at + 1) << 4).collect();
    Weight { packed, values: (0..E * n * k).map(value).collect(), scales, factors }
}

/// A case, without its weights.
#[derive(Clone, Copy)]
struct Case {
    quant_type: &'static str,
    activation: &'static str,
    fusion: i64,
    /// Alpha, beta and the limit.
    numbers: Option<[f32; 3]>,
    is_normalized: bool,
    has_bias: bool,
    is_k_packed: bool,
}

const SWIGLU: Case = Case {
    quant_type: "fp4",
    activation: "swiglu",
    fusion: 1,
    numbers: Some([1.702, 1.0, 3.0]),
    is_normalized: true,
    has_bias: true,
    is_k_packed: false,
};

impl Case {
    fn block(self) -> usize {
        if self.quant_type == "nvfp4" { 16 } else { 32 }
    }

    fn wide(self) -> usize {
        if self.activation == "swiglu" { 2 * INNER } else { INNER }
    }

    fn node(self) -> NodeProto {
        let bias = |name: &'static str| if self.has_bias { name } else { "" };
        let mut inputs = vec!["x", "r", "w1", "s1", bias("b1"), "w2", "s2", bias("b2")];
        inputs.extend([""; 7]);
        inputs.extend(["g1", "g2"]);
        let prepacked = if self.is_k_packed { 1 } else { -1 };
        let mut attributes = vec![
            ("k", K as i64),
            ("normalize_routing_weights", i64::from(self.is_normalized)),
            ("expert_weight_bits", 4),
            ("weights_prepacked", prepacked),
        ];
        if self.activation == "swiglu" {
            attributes.push(("swiglu_fusion", self.fusion));
        }
        let mut node = from_domain("com.microsoft", "QMoE", &inputs, &["y"], &attributes);
        text(&mut node, "quant_type", self.quant_type);
        text(&mut node, "activation_type", self.activation);
        let names = ["activation_alpha", "activation_beta", "swiglu_limit"];
        for (name, number) in names.into_iter().zip(self.numbers.into_iter().flatten()) {
            node.attribute.push(AttributeProto {
                name: Some(name.to_owned()),
                f: Some(number),
                r#type: Some(AttributeType::FLOAT),
                ..AttributeProto::default()
            });
        }
        node
    }

    /// The function of one row.
    fn function(self, both: &[f64]) -> Vec<f64> {
        let silu = |v: f64, slope: f64| v / (1.0 + (-slope * v).exp());
        let [alpha, beta, limit] = self.numbers.unwrap_or([1.0, 0.0, f32::INFINITY]).map(f64::from);
        let gated = |at: usize| {
            let (gate, up) = match self.fusion {
                1 => (both[2 * at], both[2 * at + 1]),
                _ => (both[at], both[INNER + at]),
            };
            silu(gate.min(limit), alpha) * (up.clamp(-limit, limit) + beta)
        };
        match self.activation {
            "swiglu" => (0..INNER).map(gated).collect(),
            "silu" => both.iter().map(|v| silu(*v, 1.0)).collect(),
            "relu" => both.iter().map(|v| v.max(0.0)).collect(),
            _ => both.to_vec(),
        }
    }
}

fn text(node: &mut NodeProto, name: &str, text: &str) {
    node.attribute.retain(|attribute| attribute.name.as_deref() != Some(name));
    node.attribute.push(AttributeProto {
        name: Some(name.to_owned()),
        s: Some(text.to_owned()),
        r#type: Some(AttributeType::STRING),
        ..AttributeProto::default()
    });
}

/// The weights of both products, and their biases.
fn weights(case: Case) -> ([Weight; 2], [Vec<f64>; 2]) {
    let first = weight(case.wide(), H, case.block(), case.is_k_packed, 21);
    let second = weight(H, INNER, case.block(), case.is_k_packed, 22);
    ([first, second], [floats(E * case.wide(), 23), floats(E * H, 24)])
}

fn initializers(case: Case) -> Vec<TensorProto> {
    let (both, biases) = weights(case);
    let mut all = Vec::new();
    let scale = if case.block() == 16 { DataType::FLOAT8E4M3FN } else { DataType::UINT8 };
    for (at, (weight, [n, k])) in both.iter().zip([[case.wide(), H], [H, INNER]]).enumerate() {
        let name = |part: &str| format!("{part}{}", at + 1);
        let [e, n, k, block] = [E, n, k, case.block()].map(|extent| extent as i64);
        // Either packing states this shape.
        all.push(tensor(&name("w"), DataType::UINT8, &[e, k, n / 2], &weight.packed));
        all.push(tensor(&name("s"), scale, &[e, n, k / block], &weight.scales));
        let factors: Vec<u8> = weight.factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        all.push(tensor(&name("g"), DataType::FLOAT, &[e], &factors));
        let bias = bf16(vec![E, n as usize], &biases[at]);
        all.push(tensor(&name("b"), DataType::BFLOAT16, &[e, n], bias.bytes()));
    }
    let integer = |name: &str, number: i64| tensor(name, DataType::INT64, &[1], &number.to_le_bytes());
    all.extend([integer("start", 0), integer("end", E as i64), integer("axis", 1)]);
    all
}

/// Imports a graph with this node. The first columns of x are the scores of experts.
fn imported(case: Case, node_of: NodeProto, options: &ImportOptions) -> Result<(Import, Vec<u8>)> {
    imported_of(initializers(case), node_of, options)
}

/// Imports a graph with this node and these initializers.
fn imported_of(
    initializers: Vec<TensorProto>,
    node_of: NodeProto,
    options: &ImportOptions,
) -> Result<(Import, Vec<u8>)> {
    let scores = node("Slice", &["x", "start", "end", "axis"], &["r"]);
    let ty = |name| value(name, DataType::BFLOAT16, &[Err("M"), Ok(H as i64)]);
    let model = model_of(vec![scores, node_of], initializers, ty("x"), ty("y"));
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.write_buf()?)?;
    Ok((import(Path::new(&path), options)?, std::fs::read(&path)?))
}

/// The values of a program's output on the interpreter and on the fallback.
fn outputs(imported: &ImportedProgram, file: &[u8], x: Tensor) -> Result<[Vec<f64>; 2]> {
    let program: Program = verify(imported.module.clone()).map_err(|_| "the program is not valid")?;
    let module = program.module();
    let mut tensors: HashMap<String, Tensor> = imported.data.iter().cloned().collect();
    for reference in &imported.tensors {
        let TensorSource::Bytes { start, end, .. } = &reference.source else {
            return Err("a tensor of an ONNX file has no name".into());
        };
        let ty = module.ty(program.facts().value_named(&reference.input).ok_or("the input is missing")?);
        let dims = ty.shape.iter().map(|dim| dim.as_fixed().unwrap_or(0) as usize).collect();
        let part = file[*start as usize..*end as usize].to_vec();
        tensors.insert(reference.input.clone(), Tensor::new(ty.element, dims, ty.layout, part)?);
    }
    tensors.insert("x".to_owned(), x);
    let bound = bind::bind(&program, &tensors)?;
    let values = interpret(&program, &bound)?;
    let capabilities = Capabilities {
        target: "cpu".into(),
        formats: Vec::new(),
        not_emulated: Vec::new(),
        block_quantize: None,
        device: Default::default(),
    };
    let done = run(&program, &partition(&program, &capabilities), &bound, &RunOptions::default(), None)?;
    let output = module.outputs[0];
    Ok([values[output.index()].to_f64(), done.value(output).ok_or("the run has no output")?.to_f64()])
}

/// The result, and the bound of an error: the result of the function and the sum of a row are rounded to bf16, and the
/// rest is in f32.
fn exact(case: Case, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let ([first, second], [bias, of_second]) = weights(case);
    let (wide, unit) = (case.wide(), 2f64.powi(-9));
    let (mut y, mut bound) = (vec![0.0; M * H], vec![0.0; M * H]);
    for row in 0..M {
        let of_row = &x[row * H..][..H];
        let exponentials: Vec<f64> = of_row[..E].iter().map(|score| score.exp()).collect();
        let mut order: Vec<usize> = (0..E).collect();
        order.sort_by(|one, other| exponentials[*other].total_cmp(&exponentials[*one]).then(one.cmp(other)));
        let chosen = &order[..K];
        let sum: f64 = match case.is_normalized {
            true => chosen.iter().map(|expert| exponentials[*expert]).sum(),
            false => exponentials.iter().sum(),
        };
        for expert in chosen {
            let product = |weight: &Weight, columns: usize, n: usize, of: &[f64], bias: &[f64]| -> f64 {
                let matrix = &weight.values[(expert * columns + n) * of.len()..][..of.len()];
                let sum: f64 = matrix.iter().zip(of).map(|(w, v)| w * v).sum();
                sum + if case.has_bias { bias[expert * columns + n] } else { 0.0 }
            };
            let both: Vec<f64> = (0..wide).map(|n| product(&first, wide, n, of_row, &bias)).collect();
            let hidden = case.function(&both);
            for n in 0..H {
                let weight = exponentials[*expert] / sum;
                y[row * H + n] += weight * product(&second, H, n, &hidden, &of_second);
                let matrix = &second.values[(expert * H + n) * INNER..][..INNER];
                let spread: f64 = matrix.iter().zip(&hidden).map(|(w, v)| (w * v).abs()).sum();
                bound[row * H + n] += weight * spread * (unit + 2f64.powi(-15));
            }
        }
    }
    for (bound, y) in bound.iter_mut().zip(&y) {
        *bound += unit * (y.abs() + *bound) + 2f64.powi(-15) * y.abs() + 1e-6;
    }
    (y, bound)
}

fn wrong(found: &[f64], (exact, bound): &(Vec<f64>, Vec<f64>)) -> usize {
    assert_eq!(found.len(), exact.len());
    let pairs = found.iter().zip(exact).zip(bound);
    pairs.filter(|((found, exact), bound)| (*found - *exact).abs() > **bound).count()
}

#[test]
fn experts_in_fp4_have_the_results_of_their_numbers() -> Result<()> {
    let plain = Case { fusion: 0, numbers: None, ..SWIGLU };
    let cases = [
        SWIGLU,
        Case { fusion: 2, numbers: None, is_normalized: false, has_bias: false, ..SWIGLU },
        Case { fusion: 2, quant_type: "nvfp4", ..SWIGLU },
        Case { quant_type: "nvfp4", is_k_packed: true, ..SWIGLU },
        Case { activation: "silu", quant_type: "nvfp4", is_normalized: false, ..plain },
        Case { activation: "relu", ..plain },
        Case { activation: "identity", has_bias: false, ..plain },
    ];
    let x = floats(M * H, 25);
    let results: Vec<_> = cases.map(|case| exact(case, &x)).into_iter().collect();
    for (at, case) in cases.into_iter().enumerate() {
        let (import, file) = imported(case, case.node(), &ImportOptions::default())?;
        assert!(import.left_out.is_empty(), "{:?}", import.left_out);
        let [program] = &import.programs[..] else { return Err("there is one program".into()) };
        for found in outputs(program, &file, bf16(vec![M, H], &x))? {
            for (other, result) in results.iter().enumerate() {
                // Every other case is far away: a wrong packing, function or weight of experts would be seen.
                let count = wrong(&found, result);
                assert!(if other == at { count == 0 } else { count > M * H / 2 }, "{at}, {other}: {count}");
            }
        }
        let backend = Backend::new(&Options::default().target("sm_90a").device(DeviceChoice::None))?;
        let plan = backend.plan_module(program.module.clone())?;
        assert_eq!(plan.partition().kernels().count(), 2, "one kernel for each product");
    }
    Ok(())
}

#[test]
fn factors_of_experts_are_finite_and_not_negative() -> Result<()> {
    let with = |name: &str, expert: usize, factor: f32| {
        let mut factors = [0.25f32, 0.5, 0.75, 1.0, 1.25];
        factors[expert] = factor;
        let bytes = factors.map(f32::to_le_bytes).concat();
        let mut all = initializers(SWIGLU);
        all.retain(|tensor| tensor.name.as_deref() != Some(name));
        all.push(tensor(name, DataType::FLOAT, &[E as i64], &bytes));
        imported_of(all, SWIGLU.node(), &ImportOptions::default())
    };
    let (import, _) = with("g1", 3, 0.0)?;
    assert_eq!((import.programs.len(), import.left_out.len()), (1, 0), "an expert may have no weights");
    for (name, expert, factor, shown) in
        [("g1", 3, f32::NAN, "NaN"), ("g2", 0, -0.5, "-0.5"), ("g2", 4, f32::INFINITY, "inf")]
    {
        let (import, _) = with(name, expert, factor)?;
        let [left_out] = &import.left_out[..] else { return Err("nothing is left out".into()) };
        assert_eq!(left_out.code, LeftOutCode::InvalidScale);
        let words = format!("the factor of expert {expert} in `{name}` is {shown}; expected a finite number");
        assert!(left_out.message.contains(&words), "{}", left_out.message);
    }
    Ok(())
}

#[test]
fn other_mixtures_are_left_out_with_a_reason() -> Result<()> {
    let with = |change: &dyn Fn(&mut NodeProto)| {
        let mut node = SWIGLU.node();
        change(&mut node);
        node
    };
    let int = |name: &'static str, number: i64| {
        with(&move |node| {
            node.attribute.retain(|attribute| attribute.name.as_deref() != Some(name));
            let one = from_domain("", "", &[], &[], &[(name, number)]);
            node.attribute.extend(one.attribute);
        })
    };
    let bf16 = ImportOptions::default();
    for (node, words) in [
        (with(&|node| text(node, "quant_type", "int")), "its quant_type is `int`"),
        (with(&|node| text(node, "quant_type", "wfp4afp8")), "its quant_type is `wfp4afp8`"),
        (with(&|node| text(node, "activation_type", "gelu")), "its activation_type `gelu`"),
        (with(&|node| node.input[14] = "r".to_owned()), "its input router_weights has no equivalent"),
        (with(&|node| node.input[8] = "w1".to_owned()), "its input fc3_experts_weights"),
        (with(&|node| node.input[2] = "x".to_owned()), "its weights are not constant"),
        (with(&|node| node.input[1] = "x".to_owned()), "its router_probs do not have 5 columns"),
        (with(&|node| node.input.swap(2, 5)), "does not have the packed shape [5, 64, 96]"),
        (
            with(&|node| node.input[15] = "b2".to_owned()),
            "its factors are not f32 of [5], or its bias is not [5, 192]",
        ),
        (int("swiglu_fusion", 0), "its swiglu_fusion is neither 1 nor 2"),
        (int("swiglu_limit", 7), "its attribute swiglu_limit is not a float"),
        (int("activation_alpha", 1), "its attribute activation_alpha is not a float"),
        (with(&|node| text(node, "k", "two")), "its attribute k is not an integer"),
        (with(&|node| text(node, "normalize_routing_weights", "no")), "is not an integer"),
        (int("a_new_attribute", 1), "its attribute a_new_attribute has no equivalent"),
        (int("weights_prepacked", 2), "its attribute weights_prepacked is 2; expected -1, 0 or 1"),
        (int("block_size", 128), "its block_size is 128; expected"),
        (with(&|node| node.input[3] = "b1".to_owned()), "has the type"),
        (int("use_sparse_mixer", 1), "its attribute use_sparse_mixer is not 0"),
        (int("expert_weight_bits", 8), "its attribute expert_weight_bits is not 4"),
        (int("k", 6), "its k is 6; expected 1 to 5, the number of experts"),
        (int("k", 0), "its k is 0; expected 1 to 5"),
    ] {
        let (import, _) = imported(SWIGLU, node, &bf16)?;
        let [left_out] = &import.left_out[..] else {
            return Err(format!("nothing is left out: {words}").into());
        };
        assert!(left_out.message.contains(words), "{}\n{words}", left_out.message);
    }
    let wide = ImportOptions { input_type: Some(ElementType::F32), ..ImportOptions::default() };
    let (import, _) = imported(SWIGLU, SWIGLU.node(), &wide)?;
    assert!(import.left_out[0].message.contains("its input is f32; import f16 or bf16"));
    Ok(())
}
