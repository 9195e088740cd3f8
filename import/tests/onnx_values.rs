//! Imports graphs of single operators, and compares their values with those of the standard.

#[path = "support/onnx_file.rs"]
mod onnx_file;

use std::collections::HashMap;
use std::path::Path;

use fourfold_executor::{DataSources, OtherTensors};
use fourfold_import::{Import, ImportOptions, import};
use fourfold_ir::{ElementType, Entity, Tensor, bind, interpret, verify};
use rten_onnx::onnx::{DataType, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};

use onnx_file::{from_domain, model_of, node, tensor, value};

/// A graph from `x` to `y`, both f32.
fn graph(opset: i64, nodes: Vec<NodeProto>, stored: Vec<TensorProto>, dims: &[usize]) -> ModelProto {
    let dims: Vec<Result<i64, &str>> = dims.iter().map(|dim| Ok(*dim as i64)).collect();
    let input = value("x", DataType::FLOAT, &dims);
    let mut output = value("y", DataType::FLOAT, &[]);
    if let Some(tensor) = output.r#type.as_mut().and_then(|ty| ty.tensor_type.as_mut()) {
        tensor.shape = None;
    }
    let opset = OperatorSetIdProto { domain: None, version: Some(opset) };
    ModelProto { opset_import: vec![opset], ..model_of(nodes, stored, input, output) }
}

fn imported(path: &Path, model: &ModelProto) -> Import {
    std::fs::write(path, model.write_buf().expect("it can be encoded")).expect("it can be written");
    import(path, &ImportOptions::default()).expect("the file is well-formed")
}

/// The extents and values of `y`, or the reason that the graph is left out.
fn result(model: &ModelProto, dims: &[usize], x: &[f64]) -> Result<(Vec<usize>, Vec<f64>), String> {
    let folder = tempfile::tempdir().expect("a folder can be created");
    let imported = imported(&folder.path().join("model.onnx"), model);
    let Some(found) = imported.programs.into_iter().next() else {
        return Err(imported.left_out[0].message.clone());
    };
    let sources = DataSources { references: found.tensors, ..DataSources::default() };
    let read = sources.read(&found.module, &[], OtherTensors::Named(&[])).expect("the tensors can be read");
    let mut tensors: HashMap<String, Tensor> = read.inputs;
    tensors.extend(found.data);
    let x = Tensor::from_f64(ElementType::F32, dims.to_vec(), None, x).expect("x fits");
    tensors.insert("x".to_owned(), x);
    let program = verify(found.module).expect("an imported program is valid");
    let values = interpret(&program, &bind::bind(&program, &tensors).expect("the tensors fit"));
    let y = &values.expect("the program runs")[program.module().outputs[0].index()];
    Ok((y.dims().to_vec(), y.to_f64()))
}

#[track_caller]
fn check(model: &ModelProto, (dims, x): (&[usize], &[f64]), (expected_dims, expected): (&[usize], &[f64])) {
    let (found_dims, found) = result(model, dims, x).expect("the graph is imported");
    assert_eq!(found_dims, expected_dims);
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found}, not {expected}");
    }
    assert_eq!(found.len(), expected.len());
}

fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, DataType::FLOAT, dims, &bytes)
}

fn integers(name: &str, values: &[i64]) -> TensorProto {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, DataType::INT64, &[values.len() as i64], &bytes)
}

fn with(op: &str, inputs: &[&str], attributes: &[(&str, i64)]) -> NodeProto {
    from_domain("", op, inputs, &["y"], attributes)
}

#[test]
fn a_reduction_without_axes_still_applies_its_functions() {
    let x = [-3.0, 0.5, 2.0];
    let each = |function: fn(f64) -> f64| x.map(function).to_vec();
    let noop = [("noop_with_empty_axes", 1)];
    for (op, expected) in [
        ("ReduceL1", each(f64::abs)),
        ("ReduceL2", each(f64::abs)),
        ("ReduceSumSquare", each(|x| x * x)),
        ("ReduceLogSumExp", x.to_vec()),
        ("ReduceSum", x.to_vec()),
        ("ReduceMean", x.to_vec()),
        ("ReduceMax", x.to_vec()),
        ("ReduceMin", x.to_vec()),
    ] {
        let model = graph(18, vec![with(op, &["x"], &noop)], vec![], &[3]);
        check(&model, (&[3], &x), (&[3], &expected));
        // A scalar has no axes either.
        let model = graph(18, vec![with(op, &["x"], &[])], vec![], &[]);
        check(&model, (&[], &x[..1]), (&[], &expected[..1]));
    }
    let model = graph(18, vec![with("ReduceLogSum", &["x"], &noop)], vec![], &[2]);
    check(&model, (&[2], &[1.0, 2.5]), (&[2], &[0.0, 2.5f64.ln()]));
    // An empty list of axes is as none.
    let axes = vec![integers("axes", &[])];
    let model = graph(18, vec![with("ReduceL1", &["x", "axes"], &noop)], axes, &[3]);
    check(&model, (&[3], &x), (&[3], &each(f64::abs)));
}

#[test]
fn a_logarithm_of_a_sum_of_exponentials_does_not_overflow() {
    let x = [1000.0, 1000.0, -1.0, 0.5, f64::NEG_INFINITY, f64::NEG_INFINITY];
    let log2 = 2f64.ln();
    let small = ((-1f64).exp() + 0.5f64.exp()).ln();
    let axes = || vec![integers("axes", &[1])];
    for (keep, dims) in [(1, &[2, 1][..]), (0, &[2])] {
        let node = with("ReduceLogSumExp", &["x", "axes"], &[("keepdims", keep)]);
        let model = graph(18, vec![node], axes(), &[2, 2]);
        check(&model, (&[2, 2], &x[..4]), (dims, &[1000.0 + log2, small]));
    }
    let model = graph(18, vec![with("ReduceLogSumExp", &["x", "axes"], &[])], axes(), &[1, 2]);
    assert_eq!(result(&model, &[1, 2], &x[4..]).expect("it is imported").1, [f64::NEG_INFINITY]);
}

#[test]
fn a_remainder_of_integers_has_the_sign_of_the_divisor_or_of_the_dividend() {
    for (fmod, expected) in [(0, [2.0, -2.0, 2.0, -1.0]), (1, [-1.0, 1.0, -1.0, 2.0])] {
        let nodes = vec![
            from_domain("", "Mod", &["a", "b"], &["r"], &[("fmod", fmod)]),
            from_domain("", "Cast", &["r"], &["f"], &[("to", 1)]),
            node("Add", &["x", "f"], &["y"]),
        ];
        let stored = vec![integers("a", &[-7, 7, -1, 5]), integers("b", &[3, -3, 3, -3])];
        check(&graph(21, nodes, stored, &[4]), (&[4], &[0.0; 4]), (&[4], &expected));
    }
}

#[test]
fn old_opsets_align_the_second_operand_at_an_axis() {
    let x = [8.0, 6.0, 4.0, 2.0];
    let expected = |function: fn(f64, f64) -> f64| -> Vec<f64> {
        x.iter().enumerate().map(|(at, x)| function(*x, [1.0, 2.0][at / 2])).collect()
    };
    let aligned = [("broadcast", 1), ("axis", 0)];
    for (op, function) in [
        ("Add", (|a, b| a + b) as fn(f64, f64) -> f64),
        ("Sub", |a, b| a - b),
        ("Mul", |a, b| a * b),
        ("Div", |a, b| a / b),
        ("Pow", f64::powf),
    ] {
        let b = || vec![floats("b", &[2], &[1.0, 2.0])];
        let model = graph(6, vec![with(op, &["x", "b"], &aligned)], b(), &[2, 2]);
        check(&model, (&[2, 2], &x), (&[2, 2], &expected(function)));
        // Without the attribute, and in new opsets, the last axes are aligned.
        let last: Vec<f64> = x.iter().enumerate().map(|(at, x)| function(*x, [1.0, 2.0][at % 2])).collect();
        for (opset, attributes) in [(6, &aligned[..1]), (13, &aligned[..])] {
            let model = graph(opset, vec![with(op, &["x", "b"], attributes)], b(), &[2, 2]);
            check(&model, (&[2, 2], &x), (&[2, 2], &last));
        }
    }
    // A negative axis, an operand of several axes, one of one element, and integers that are known.
    let of = |axis: i64| [("broadcast", 1), ("axis", axis)];
    let ones = [1.0; 8];
    let b = vec![floats("b", &[2, 2], &[1.0, 2.0, 3.0, 4.0])];
    let model = graph(6, vec![with("Add", &["x", "b"], &of(-3))], b, &[2, 2, 2]);
    check(&model, (&[2, 2, 2], &ones), (&[2, 2, 2], &[2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]));
    let one = vec![floats("b", &[1], &[2.0])];
    let model = graph(6, vec![with("Pow", &["x", "b"], &of(0))], one, &[2, 2]);
    check(&model, (&[2, 2], &x), (&[2, 2], &[64.0, 36.0, 16.0, 4.0]));
    let nodes = vec![
        from_domain("", "Reshape", &["a", "shape"], &["m"], &[]),
        from_domain("", "Add", &["m", "b"], &["s"], &of(0)),
        from_domain("", "Cast", &["s"], &["f"], &[("to", 1)]),
        node("Add", &["x", "f"], &["y"]),
    ];
    let stored = vec![integers("a", &[1, 2, 3, 4]), integers("shape", &[2, 2]), integers("b", &[10, 20])];
    check(&graph(6, nodes, stored, &[2, 2]), (&[2, 2], &[0.0; 4]), (&[2, 2], &[11.0, 12.0, 23.0, 24.0]));
    let b = vec![floats("b", &[2], &[1.0, 2.0])];
    let model = graph(6, vec![with("Add", &["x", "b"], &of(2))], b, &[2, 2]);
    assert!(result(&model, &[2, 2], &x).expect_err("there is no such axis").contains("node `y` (Add)"));
}

#[test]
fn the_first_opsets_join_along_axis_1() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let model = |opset| graph(opset, vec![node("Concat", &["x", "x"], &["y"])], vec![], &[2, 2]);
    check(&model(1), (&[2, 2], &x), (&[2, 4], &[1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]));
    let reason = result(&model(13), &[2, 2], &x).expect_err("the axis is required");
    assert!(reason.contains("node `y` (Concat): it states no axis"), "{reason}");
}

#[test]
fn an_exponent_of_one_element_may_add_axes() {
    let x = [4.0, 9.0];
    for (exponent, expected) in [
        (1.0, x),
        (2.0, [16.0, 81.0]),
        (3.0, [64.0, 729.0]),
        (0.5, [2.0, 3.0]),
        (-1.0, [0.25, 1.0 / 9.0]),
        (1.5, [8.0, 27.0]),
    ] {
        for (of_exponent, dims) in [(&[][..], &[2][..]), (&[1], &[2]), (&[1, 1], &[1, 2])] {
            let stored = vec![floats("e", of_exponent, &[exponent])];
            let model = graph(15, vec![node("Pow", &["x", "e"], &["y"])], stored, &[2]);
            check(&model, (&[2], &x), (dims, &expected));
        }
    }
}

#[test]
fn casts_to_integers_cut_off_the_fraction() {
    let x = [1.7, -1.7, 2.5, -0.5, 0.25];
    let cut = [1.0, -1.0, 2.0, 0.0, 0.0];
    let nodes = |through: &[i64]| {
        let names: Vec<String> = (0..through.len()).map(|at| format!("c{at}")).collect();
        let mut nodes = Vec::new();
        for (at, to) in through.iter().enumerate() {
            let from = if at == 0 { "x" } else { names[at - 1].as_str() };
            nodes.push(from_domain("", "Cast", &[from], &[&names[at]], &[("to", *to)]));
        }
        nodes.push(from_domain("", "Cast", &[&names[through.len() - 1]], &["y"], &[("to", 1)]));
        nodes
    };
    let int32 = i64::from(DataType::INT32.0);
    for through in [vec![int32], vec![i64::from(DataType::BFLOAT16.0), int32]] {
        check(&graph(21, nodes(&through), vec![], &[5]), (&[5], &x), (&[5], &cut));
    }
    // E4M3 has 1.75 for 1.7.
    let through = [i64::from(DataType::FLOAT8E4M3FN.0), int32];
    check(&graph(21, nodes(&through), vec![], &[5]), (&[5], &x), (&[5], &cut));
}

#[test]
fn integers_become_truth_values() {
    let cast = |from, to, ty: DataType| from_domain("", "Cast", &[from], &[to], &[("to", i64::from(ty.0))]);
    let nodes = vec![
        cast("x", "i", DataType::INT32),
        cast("i", "b", DataType::BOOL),
        cast("b", "y", DataType::FLOAT),
    ];
    check(&graph(21, nodes, vec![], &[3]), (&[3], &[0.5, 2.0, -1.0]), (&[3], &[0.0, 1.0, 1.0]));
}

#[test]
fn a_weight_of_a_norm_has_the_shape_of_the_channels() {
    let weight = |dims: &[i64]| {
        let norm = with("LayerNormalization", &["x", "w"], &[("axis", 1)]);
        graph(17, vec![norm], vec![floats("w", dims, &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0])], &[1, 3, 2])
    };
    let x = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0];
    let expected: Vec<f64> = [1.0, -1.0, 2.0, -2.0, 3.0, -3.0].map(|y| y / 1.00001f64.sqrt()).to_vec();
    for dims in [&[3, 2][..], &[1, 3, 2]] {
        check(&weight(dims), (&[1, 3, 2], &x), (&[1, 3, 2], &expected));
    }
    let reason = result(&weight(&[2, 3]), &[1, 3, 2], &x).expect_err("the shape differs");
    assert!(reason.contains("node `y` (LayerNormalization): a weight does not have"), "{reason}");
}

#[test]
fn a_program_detects_that_its_file_was_written_again() {
    let folder = tempfile::tempdir().expect("a folder can be created");
    let path = folder.path().join("model.onnx");
    let add = || vec![node("Add", &["x", "w"], &["y"])];
    let weight = |value: f32| vec![floats("w", &[2], &[1.0, value])];
    let found = imported(&path, &graph(21, add(), weight(2.0), &[2])).programs.remove(0);
    assert!(found.tensors[0].to_string().contains(" blake3 "), "{}", found.tensors[0]);
    let sources = DataSources { references: found.tensors, ..DataSources::default() };
    let read =
        || sources.read(&found.module, &[], OtherTensors::Named(&[])).map(|data| data.inputs["w"].to_f32());
    assert_eq!(read().expect("nothing changed"), [1.0, 2.0]);
    // Another value in the same place; and another node, which moves the weight.
    let moved = vec![node("Relu", &["x"], &["x.positive"]), node("Add", &["x.positive", "w"], &["y"])];
    for model in [graph(21, add(), weight(3.0), &[2]), graph(21, moved, weight(2.0), &[2])] {
        std::fs::write(&path, model.write_buf().expect("it can be encoded")).expect("it can be written");
        let error = read().expect_err("the file changed").to_string();
        assert!(
            error.contains("model.onnx` has changed") && error.contains("import the model again"),
            "{error}"
        );
    }
}

#[test]
fn files_of_another_format_in_the_folder_are_reported() {
    let folder = tempfile::tempdir().expect("a folder can be created");
    imported(&folder.path().join("model.onnx"), &graph(21, vec![node("Relu", &["x"], &["y"])], vec![], &[2]));
    std::fs::write(folder.path().join("part-1.safetensors"), b"").expect("it can be written");
    let imported = import(folder.path(), &ImportOptions::default()).expect("the folder holds a model");
    assert_eq!(imported.programs.len(), 1);
    let left_out: Vec<_> =
        imported.left_out.iter().map(|left| (left.name.as_str(), left.code.name())).collect();
    assert_eq!(left_out, [("part-1.safetensors", "other_model")]);
}
