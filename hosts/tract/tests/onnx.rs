//! ONNX files written here, loaded by tract's own loader with the ops of this crate.

mod common;

use common::{Matrix, bias, cpu, exact_activations, floats, fourfold, run};
use fourfold_tract::{Error, Fate, Format, onnx};
use prost::Message;
use tract_core::internal::*;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, type_proto,
};
use tract_onnx::tract_hir::infer::InferenceModelExt;

const K: usize = 64;
const N: usize = 96;
const OUT: usize = 40;

fn node(op: &str, domain: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, &str)]) -> NodeProto {
    let attribute = |(name, value): &(&str, &str)| AttributeProto {
        name: (*name).to_owned(),
        r#type: AttributeType::String as i32,
        s: value.as_bytes().to_vec(),
        ..Default::default()
    };
    NodeProto {
        op_type: op.to_owned(),
        domain: domain.to_owned(),
        name: format!("{}.node", outputs[0]),
        input: inputs.iter().map(|name| (*name).to_owned()).collect(),
        output: outputs.iter().map(|name| (*name).to_owned()).collect(),
        attribute: attributes.iter().map(attribute).collect(),
        ..Default::default()
    }
}

fn initializer(name: &str, tensor: &Tensor) -> TensorProto {
    let data_type = match tensor.datum_type() {
        DatumType::U8 => DataType::Uint8,
        DatumType::F32 => DataType::Float,
        other => panic!("{other:?}"),
    };
    TensorProto {
        name: name.to_owned(),
        data_type: data_type as i32,
        dims: tensor.shape().iter().map(|extent| *extent as i64).collect(),
        raw_data: tensor.try_as_plain_ram().unwrap().as_bytes().to_vec(),
        ..Default::default()
    }
}

fn value(name: &str, data_type: DataType, dims: &[Option<usize>]) -> ValueInfoProto {
    let dim = dims.iter().map(|extent| {
        let value = match extent {
            Some(extent) => dimension::Value::DimValue(*extent as i64),
            None => dimension::Value::DimParam("M".to_owned()),
        };
        Dimension { value: Some(value), ..Default::default() }
    });
    let shape = Some(TensorShapeProto { dim: dim.collect() });
    let tensor = type_proto::Tensor { elem_type: data_type as i32, shape };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(ty), ..Default::default() }
}

/// Two linears in MXFP4 and NVFP4, the first from dequantized matrices, around a ReduceMax, a Sub and a MatMul.
fn file() -> ModelProto {
    let first = Matrix::random(Format::Mxfp4, 1, N, K);
    let second = Matrix::random(Format::Nvfp4, 2, OUT, N);
    let square: Vec<f32> = (0..N * N).map(|index| if index % (N + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let square = Tensor::from_shape(&[N, N], &square).unwrap();
    let nodes = vec![
        node("BlockQuantize", "fourfold", &["x"], &["q1", "s1"], &[("format", "mxfp4")]),
        node("BlockDequantize", "fourfold", &["q1", "s1"], &["a"], &[("format", "mxfp4")]),
        node("BlockDequantize", "fourfold", &["w1", "sf1"], &["b"], &[("format", "mxfp4")]),
        node("Transpose", "", &["b"], &["bt"], &[]),
        node("MatMul", "", &["a", "bt"], &["product"], &[]),
        node("Add", "", &["product", "bias"], &["biased"], &[]),
        node("Relu", "", &["biased"], &["hidden"], &[]),
        node("ReduceMax", "", &["hidden"], &["largest"], &[]),
        node("Sub", "", &["hidden", "largest"], &["shifted"], &[]),
        node("MatMul", "", &["shifted", "square"], &["middle"], &[]),
        node("BlockQuantize", "fourfold", &["middle", "g"], &["q2", "s2"], &[]),
        node("ScaledMm", "fourfold", &["q2", "s2", "w2", "sf2", "alpha"], &["scaled"], &[]),
        node("Sigmoid", "", &["scaled"], &["gate"], &[]),
        node("Mul", "", &["scaled", "gate"], &["y"], &[]),
    ];
    let row = bias(3, N).into_shape(&[N]).unwrap();
    let graph = GraphProto {
        name: "mlp".to_owned(),
        node: nodes,
        initializer: vec![
            initializer("w1", &first.codes),
            initializer("sf1", &first.scales),
            initializer("w2", &second.codes),
            initializer("sf2", &second.scales),
            initializer("bias", &row),
            initializer("square", &square),
            initializer("g", &tensor0(4f32)),
            initializer("alpha", &tensor0(1f32 / 1024.0)),
        ],
        input: vec![value("x", DataType::Float, &[None, Some(K)])],
        output: vec![
            value("y", DataType::Float, &[None, Some(OUT)]),
            value("middle", DataType::Float, &[None, Some(N)]),
            value("scaled", DataType::Float, &[None, Some(OUT)]),
        ],
        ..Default::default()
    };
    let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.to_owned(), version };
    ModelProto {
        ir_version: 8,
        opset_import: vec![opset("", 13), opset("fourfold", 1)],
        graph: Some(graph),
        ..Default::default()
    }
}

fn load(file: &ModelProto) -> TractResult<TypedModel> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, file.encode_to_vec())?;
    onnx().model_for_path(&path)?.into_typed()
}

#[test]
fn a_file_runs_at_several_sizes() -> TractResult<()> {
    let model = load(&file())?;
    let mut rewritten = model.clone().into_decluttered()?;
    let report = fourfold("sm_90a").rewrite(&mut rewritten)?;
    let text = report.to_string();
    assert_eq!(report.segments.len(), 2, "{text}");
    let computed = report.nodes.iter().filter(|node| matches!(node.fate, Fate::Segment(_)));
    let names: Vec<&str> = computed.map(|node| node.op.as_str()).collect();
    assert_eq!(names, ["EinSum", "Add", "Max", "ScaledMm", "Silu"], "{text}");
    let prepared = fourfold("sm_90a").prepare(model.clone())?;
    let reference = cpu().prepare(model)?;
    for rows in [1, 3, 7, 130, 0] {
        let x = exact_activations(rows as u64, rows, K).into_tvalue();
        let (got, want) = (prepared.run(tvec!(x.clone()))?, reference.run(tvec!(x))?);
        assert_eq!(got[0].shape(), [rows, OUT]);
        // All sums before the second linear are exact in f32.
        assert_eq!(floats(&got[1]), floats(&want[1]), "M = {rows}");
        assert_eq!(floats(&got[2]), floats(&want[2]), "M = {rows}");
        let pairs = floats(&got[0]).into_iter().zip(floats(&want[0]));
        for ((got, want), x) in pairs.zip(floats(&want[2])) {
            let exact = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            let error = (f64::from(got) - exact).abs();
            assert!(error <= 4.0 * 2f64.powi(-23) * exact.abs(), "M = {rows}, x = {x}: {got}, not {exact}");
            // tract approximates sigmoid within 1e-6.
            assert!((got - want).abs() <= 1e-6 * x.abs().max(1.0), "M = {rows}, x = {x}: {got}, not {want}");
        }
        let distinct: std::collections::BTreeSet<u32> = floats(&got[0]).iter().map(|y| y.to_bits()).collect();
        assert!(rows == 0 || distinct.len() > 20, "M = {rows}: {} distinct values", distinct.len());
    }
    Ok(())
}

#[test]
fn nodes_that_do_not_fit_are_typed_errors() {
    type Change = fn(&mut NodeProto);
    let changes: [(&str, &str, Change); 8] = [
        ("another domain", "scaled.node", |node| node.domain = "other".to_owned()),
        ("no domain", "q1.node", |node| node.domain.clear()),
        ("an unknown format", "a.node", |node| node.attribute[0].s = b"nvfp3".to_vec()),
        ("too few inputs", "scaled.node", |node| node.input.truncate(3)),
        ("no inputs", "a.node", |node| node.input.clear()),
        ("no global scale", "q2.node", |node| node.input.truncate(1)),
        ("blocks of another format", "q1.node", |node| node.attribute.clear()),
        ("codes in place of scales", "scaled.node", |node| node.input[3] = "w2".to_owned()),
    ];
    for (what, name, change) in changes {
        let mut file = file();
        let nodes = &mut file.graph.as_mut().unwrap().node;
        change(nodes.iter_mut().find(|node| node.name == name).unwrap());
        let error = load(&file).expect_err(what);
        let is_typed = error.chain().any(|cause| matches!(cause.downcast_ref(), Some(Error::Op { .. })));
        assert!(is_typed, "{what}: {error:#}");
    }
}

#[test]
fn hostile_files_are_errors() {
    let bytes = file().encode_to_vec();
    for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        let loaded = onnx().model_for_read(&mut &bytes[..length]).and_then(|model| model.into_typed());
        loaded.expect_err("the file is cut");
    }
    let mut file = file();
    file.graph.as_mut().unwrap().initializer[0].raw_data.truncate(10);
    load(&file).expect_err("an initializer is cut");
}

#[test]
fn tract_refuses_fp4_initializers() {
    let mut file = file();
    // FLOAT4E2M1
    file.graph.as_mut().unwrap().initializer[0].data_type = 23;
    load(&file).expect_err("tract has no FP4");
}

#[test]
fn a_model_without_these_ops_is_unchanged() -> TractResult<()> {
    let mut file = file();
    let graph = file.graph.as_mut().unwrap();
    graph.node = vec![node("MatMul", "", &["x", "w"], &["p"], &[]), node("Relu", "", &["p"], &["y"], &[])];
    let weight = Matrix::random(Format::Nvfp4, 5, K, OUT * 4 / 5 * 2).dense();
    let columns = weight.shape()[1];
    graph.initializer = vec![initializer("w", &weight)];
    graph.output = vec![value("y", DataType::Float, &[None, Some(columns)])];
    let model = load(&file)?;
    let mut rewritten = model.clone().into_decluttered()?;
    let before = rewritten.nodes().len();
    let report = fourfold("sm_90a").rewrite(&mut rewritten)?;
    assert!(report.segments.is_empty() && rewritten.nodes().len() == before, "{report}");
    assert_eq!(report.nodes.len(), 2, "{report}");
    let x = exact_activations(1, 3, K);
    let got = run(&fourfold("sm_90a"), &model, std::slice::from_ref(&x))?;
    assert_eq!(floats(&got[0]), floats(&run(cpu(), &model, &[x])?[0]));
    Ok(())
}
