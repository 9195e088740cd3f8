//! Graphs that a host asks about: their programs, the nodes of ops, and nodes at fault.

#[path = "support/onnx_file.rs"]
mod onnx_file;

use std::error::Error;
use std::path::Path;

use fourfold_import::{OnnxGraph, OnnxGraphError};
use fourfold_ir::{ElementType, Entity, OpKind, ScaleLayout, Tensor, bind, interpret};
use rten_onnx::onnx::{DataType, NodeProto, TensorProto, ValueInfoProto};

use onnx_file::{Numbers, from_domain, model_of, node, tensor, value};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const N: usize = 48;
const K: usize = 64;
const M: usize = 3;

fn named(name: &str, mut node: NodeProto) -> NodeProto {
    node.name = Some(name.to_owned());
    node
}

/// A product of two NVFP4 matrices, the first of which is given, and the op `last` behind it.
fn nodes(last: &str) -> Vec<NodeProto> {
    let blocks = |name: &str, codes: &str, scales: &str, output: &str| {
        let attributes = [("axis", 1), ("block_size", 16)];
        named(name, from_domain("", "DequantizeLinear", &[codes, scales], &[output], &attributes))
    };
    vec![
        named("a scales", node("DequantizeLinear", &["sa", "ga"], &["saf"])),
        blocks("a", "a", "saf", "af"),
        named("b scales", node("DequantizeLinear", &["sb", "gb"], &["sbf"])),
        blocks("b", "b", "sbf", "bf"),
        named("product", from_domain("", "Gemm", &["af", "bf"], &["p"], &[("transB", 1)])),
        named("last", node(last, &["p"], &["y"])),
    ]
}

fn constants(codes: &[u8], scales: &[u8]) -> Vec<TensorProto> {
    let factor = |name| tensor(name, DataType::FLOAT, &[], &0.5f32.to_le_bytes());
    vec![
        factor("ga"),
        factor("gb"),
        tensor("b", DataType::FLOAT4E2M1, &[N as i64, K as i64], codes),
        tensor("sb", DataType::FLOAT8E4M3FN, &[N as i64, K as i64 / 16], scales),
    ]
}

fn read(
    folder: &Path,
    last: &str,
    constants: Vec<TensorProto>,
) -> Result<std::result::Result<OnnxGraph, OnnxGraphError>> {
    let inputs = |k| [Err("M"), Ok(k)];
    let a = value("a", DataType::FLOAT4E2M1, &inputs(K as i64));
    let sa: ValueInfoProto = value("sa", DataType::FLOAT8E4M3FN, &inputs(K as i64 / 16));
    let mut model = model_of(nodes(last), constants, a, value("y", DataType::FLOAT, &inputs(N as i64)));
    model.graph.as_mut().ok_or("no graph")?.input.push(sa);
    let file = folder.join("graph.onnx");
    std::fs::write(&file, model.write_buf()?)?;
    Ok(OnnxGraph::read(&file, "region"))
}

#[test]
fn a_graph_with_given_codes_and_scales_is_one_scaled_product() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut numbers = Numbers(7);
    let mut bytes = |count: usize, bound: usize, first: u8| -> Vec<u8> {
        (0..count).map(|_| first + numbers.below(bound) as u8).collect()
    };
    // Scales from 2^-3 to 2^3, all sums of which are exact.
    let (codes, scales) = (bytes(N * K / 2, 256, 0), bytes(N * K / 16, 7, 0));
    let scales: Vec<u8> = scales.into_iter().map(|step| 0x20 + 8 * step).collect();
    let graph = read(folder.path(), "Relu", constants(&codes, &scales))??;
    let module = graph.program().module();
    let names: Vec<_> =
        module.inputs.iter().map(|input| (module.name_of(*input), module.is_param(*input))).collect();
    assert_eq!(&names[..2], [("a", false), ("sa", false)]);
    assert_eq!(module.ty(module.inputs[1]).layout, Some(ScaleLayout::Linear));
    let products: Vec<_> = module
        .ops
        .iter()
        .filter(|(_, op)| matches!(op.kind, OpKind::ScaledMma(_)))
        .map(|(op, _)| op)
        .collect();
    let [product] = products[..] else { return Err("not one scaled_mma".into()) };
    assert_eq!(graph.node_of(product), Some("product"));
    let (last, _) = module.ops.iter().last().ok_or("no ops")?;
    assert_eq!(graph.node_of(last), Some("last"));
    let mut tensors = graph.params()?;
    assert_eq!(tensors["b"].bytes(), codes);
    assert_eq!(tensors["sb"].bytes(), scales);
    let a_scales = bytes(M * K / 16, 7, 0).into_iter().map(|step| 0x20 + 8 * step).collect();
    let linear = Some(ScaleLayout::Linear);
    tensors.insert(
        "a".to_owned(),
        Tensor::new(ElementType::F4E2M1FN, vec![M, K], None, bytes(M * K / 2, 256, 0))?,
    );
    tensors.insert("sa".to_owned(), Tensor::new(ElementType::F8E4M3FN, vec![M, K / 16], linear, a_scales)?);
    let dequantized = |codes: &Tensor, scales: &Tensor| -> Vec<f64> {
        let scales = scales.to_f64();
        codes.to_f64().iter().enumerate().map(|(at, code)| code * scales[at / 16] * 0.5).collect()
    };
    let (a, b) = (dequantized(&tensors["a"], &tensors["sa"]), dequantized(&tensors["b"], &tensors["sb"]));
    let expected: Vec<f64> = (0..M * N)
        .map(|at| (0..K).map(|k| a[at / N * K + k] * b[at % N * K + k]).sum::<f64>().max(0.0))
        .collect();
    let bound = bind::bind(graph.program(), &tensors)?;
    let values = interpret(graph.program(), &bound)?;
    let found = values[module.outputs[0].index()].to_f64();
    assert_eq!(found, expected);
    assert!(expected.iter().any(|value| *value > 0.0));
    Ok(())
}

#[test]
fn a_refusal_names_the_node() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let constants = constants(&[0; N * K / 2], &[0x38; N * K / 16]);
    match read(folder.path(), "Hardmax", constants)? {
        Err(OnnxGraphError::Refused { node, left_out }) => {
            assert_eq!(node.as_deref(), Some("last"), "{}", left_out.message);
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err("Hardmax has an equivalent".into()),
    }
}

#[test]
fn a_last_block_may_be_shorter() -> Result<()> {
    const K: usize = 40;
    let mut numbers = Numbers(11);
    let codes: Vec<u8> = (0..N * K / 2).map(|_| numbers.below(256) as u8).collect();
    let scales: Vec<f32> = (0..N * 3).map(|_| 2f32.powi(numbers.below(7) as i32 - 3)).collect();
    let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let constants = vec![
        tensor("b", DataType::FLOAT4E2M1, &[N as i64, K as i64], &codes),
        tensor("s", DataType::FLOAT, &[N as i64, 3], &bytes),
    ];
    let attributes = [("axis", 1), ("block_size", 16)];
    let nodes = vec![
        named("b", from_domain("", "DequantizeLinear", &["b", "s"], &["bf"], &attributes)),
        named("sum", node("Add", &["bf", "x"], &["y"])),
    ];
    let shape = [Ok(N as i64), Ok(K as i64)];
    let (x, y) = (value("x", DataType::FLOAT, &shape), value("y", DataType::FLOAT, &shape));
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("graph.onnx");
    std::fs::write(&file, model_of(nodes, constants, x, y).write_buf()?)?;
    let graph = OnnxGraph::read(&file, "region")?;
    let mut tensors = graph.params()?;
    let expected: Vec<f64> = (tensors["b"].to_f64().iter().enumerate())
        .map(|(at, code)| code * f64::from(scales[at / K * 3 + at % K / 16]))
        .collect();
    assert!(expected.iter().any(|value| *value != 0.0));
    tensors.insert("x".to_owned(), Tensor::zeros(ElementType::F32, vec![N, K], None)?);
    let values = interpret(graph.program(), &bind::bind(graph.program(), &tensors)?)?;
    assert_eq!(values[graph.program().module().outputs[0].index()].to_f64(), expected);
    Ok(())
}

/// A f16 A beside a dequantized weight: the product is weight-only, and the per-tensor scale its alpha.
#[test]
fn a_graph_with_a_dequantized_weight_of_16_bits_is_one_weight_only_product() -> Result<()> {
    let mut numbers = Numbers(13);
    let codes: Vec<u8> = (0..N * K / 2).map(|_| numbers.below(256) as u8).collect();
    let scales: Vec<u8> = (0..N * K / 16).map(|_| 0x20 + 8 * numbers.below(7) as u8).collect();
    let half = Tensor::from_f64(ElementType::F16, vec![1], None, &[0.5])?;
    let constants = vec![
        tensor("gb", DataType::FLOAT16, &[], half.bytes()),
        tensor("b", DataType::FLOAT4E2M1, &[N as i64, K as i64], &codes),
        tensor("sb", DataType::FLOAT8E4M3FN, &[N as i64, K as i64 / 16], &scales),
    ];
    let blocks = [("axis", 1), ("block_size", 16)];
    let nodes = vec![
        named("b scales", node("DequantizeLinear", &["sb", "gb"], &["sbf"])),
        named("b", from_domain("", "DequantizeLinear", &["b", "sbf"], &["bf"], &blocks)),
        named("product", from_domain("", "Gemm", &["x", "bf"], &["y"], &[("transB", 1)])),
    ];
    let x = value("x", DataType::FLOAT16, &[Err("M"), Ok(K as i64)]);
    let y = value("y", DataType::FLOAT16, &[Err("M"), Ok(N as i64)]);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("graph.onnx");
    std::fs::write(&file, model_of(nodes, constants, x, y).write_buf()?)?;
    let graph = OnnxGraph::read(&file, "region")?;
    let program = graph.program();
    let formats: Vec<String> =
        program.facts().matmuls().map(|(_, matmul)| matmul.format.to_string()).collect();
    assert_eq!(formats, ["f16 x nvfp4"]);
    let mut tensors = graph.params()?;
    let numbers: Vec<f64> = (0..M * K).map(|_| f64::from(numbers.below(33) as i32 - 16) / 8.0).collect();
    tensors.insert("x".to_owned(), Tensor::from_f64(ElementType::F16, vec![M, K], None, &numbers)?);
    let scale = tensors["sb"].to_f64();
    let b = tensors["b"].to_f64();
    let b: Vec<f64> = b.iter().enumerate().map(|(at, code)| code * scale[at / 16] * 0.5).collect();
    let sums = (0..M * N).map(|at| (0..K).map(|k| numbers[at / N * K + k] * b[at % N * K + k]).sum());
    let expected = Tensor::from_f64(ElementType::F16, vec![M, N], None, &sums.collect::<Vec<f64>>())?;
    let values = interpret(program, &bind::bind(program, &tensors)?)?;
    assert_eq!(values[program.module().outputs[0].index()].to_f64(), expected.to_f64());
    assert!(expected.to_f64().iter().any(|value| *value != 0.0));
    Ok(())
}
