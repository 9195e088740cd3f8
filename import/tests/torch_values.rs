//! Imports small torch graphs, and compares their values with those of torch in eager mode.

use std::collections::HashMap;
use std::path::Path;

use fourfold_executor::{DataSources, OtherTensors, write_tensors};
use fourfold_import::{Import, ImportError, ImportOptions, import, write};
use fourfold_ir::{ElementType, Entity, Tensor, bind, interpret, load, verify};
use serde_json::{Value as Json, json};

/// The type of a tensor.
fn ty(dtype: &str, shape: &[u64]) -> Json {
    json!({ "dtype": dtype, "shape": shape })
}

fn f32s(shape: &[u64]) -> Json {
    ty("float32", shape)
}

fn of(name: &str) -> Json {
    json!({ "node": name })
}

fn node(name: &str, op: &str, args: &[Json], ty: Json) -> Json {
    json!({ "name": name, "op": format!("aten.{op}"), "args": args, "kwargs": {}, "type": ty })
}

/// A graph with inputs, stored tensors and outputs.
struct Graph {
    inputs: Vec<(&'static str, Json)>,
    nodes: Vec<Json>,
    outputs: Vec<Json>,
    weights: Vec<(&'static str, Json, Tensor)>,
}

impl Graph {
    /// A graph from `x` to `y`.
    fn new(x: Json, nodes: Vec<Json>) -> Graph {
        Graph { inputs: vec![("x", x)], nodes, outputs: vec![of("y")], weights: Vec::new() }
    }

    fn json(&self) -> Json {
        let inputs: Vec<Json> =
            self.inputs.iter().map(|(name, ty)| json!({ "name": name, "type": ty })).collect();
        let weights: Vec<Json> = self
            .weights
            .iter()
            .map(|(name, ty, _)| json!({ "name": name, "tensor": name, "type": ty }))
            .collect();
        json!({
            "format": "fourfold.torch", "version": 1, "tensors": "weights.safetensors",
            "inputs": inputs, "parameters": weights, "nodes": self.nodes, "outputs": self.outputs,
        })
    }

    fn import(&self, folder: &Path) -> Result<Import, ImportError> {
        let tensors: Vec<(&str, &Tensor)> =
            self.weights.iter().map(|(name, _, tensor)| (*name, tensor)).collect();
        write_tensors(&folder.join("weights.safetensors"), &tensors).expect("the tensors can be written");
        std::fs::write(folder.join("graph.json"), self.json().to_string()).expect("it can be written");
        import(folder, &ImportOptions::default())
    }

    /// The extents and values of each output.
    fn results(&self, inputs: &[Tensor]) -> Vec<(Vec<usize>, Vec<f64>)> {
        let folder = tempfile::tempdir().expect("a folder can be created");
        let mut imported = self.import(folder.path()).expect("the graph is well-formed");
        assert_eq!(imported.left_out, []);
        let found = imported.programs.remove(0);
        let sources = DataSources { references: found.tensors, ..DataSources::default() };
        let read = sources.read(&found.module, &[], OtherTensors::Named(&[]));
        let mut tensors: HashMap<String, Tensor> = read.expect("the tensors can be read").inputs;
        let names = self.inputs.iter().map(|(name, _)| (*name).to_owned());
        tensors.extend(names.zip(inputs.iter().cloned()));
        let program = verify(found.module).expect("an imported program is valid");
        let values = interpret(&program, &bind::bind(&program, &tensors).expect("the tensors fit"));
        let values = values.expect("the program runs");
        let outputs = program.module().outputs.iter();
        outputs.map(|output| &values[output.index()]).map(|y| (y.dims().to_vec(), y.to_f64())).collect()
    }

    /// The code and the message with which the graph is left out.
    fn reason(&self) -> (&'static str, String) {
        let folder = tempfile::tempdir().expect("a folder can be created");
        let imported = self.import(folder.path()).expect("the graph is well-formed");
        assert!(imported.programs.is_empty());
        (imported.left_out[0].code.name(), imported.left_out[0].message.clone())
    }
}

fn tensor(dims: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(ElementType::F32, dims.to_vec(), None, values).expect("the values fit")
}

/// Compares with values, where NaN equals NaN.
#[track_caller]
fn check(graph: &Graph, inputs: &[Tensor], (dims, expected): (&[usize], &[f64])) {
    let (found_dims, found) = graph.results(inputs).remove(0);
    assert_eq!(found_dims, dims);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let is_equal = found == expected
            || (found.is_nan() && expected.is_nan())
            || (found - expected).abs() <= 1e-6 * expected.abs().max(1.0);
        assert!(is_equal, "{found}, not {expected}");
    }
}

/// Converts `x` through types, and back to f32.
fn through(dtypes: &[&str], count: u64) -> Graph {
    let mut nodes = Vec::new();
    let mut from = "x".to_owned();
    for (at, dtype) in dtypes.iter().enumerate() {
        let name = format!("c{at}");
        nodes.push(node(&name, "to.dtype", &[of(&from), json!({ "dtype": dtype })], ty(dtype, &[count])));
        from = name;
    }
    nodes.push(node("y", "_to_copy.default", &[of(&from)], f32s(&[count])));
    Graph::new(f32s(&[count]), nodes)
}

#[test]
fn conversions_to_integers_cut_off_the_fraction() {
    let x = tensor(&[6], &[1.7, -1.7, 2.5, -0.5, 0.25, -3.0]);
    let cut = [1.0, -1.0, 2.0, 0.0, 0.0, -3.0];
    for dtypes in [&["int64"][..], &["int32"], &["bfloat16", "int64"], &["float16", "int32"]] {
        check(&through(dtypes, 6), std::slice::from_ref(&x), (&[6], &cut));
    }
    // E4M3 has 1.75 for 1.7.
    check(&through(&["float8_e4m3fn", "int64"], 6), std::slice::from_ref(&x), (&[6], &cut));
    let truth = [1.0; 6];
    check(&through(&["bool"], 6), std::slice::from_ref(&x), (&[6], &truth));
    check(&through(&["float8_e5m2", "bool"], 6), std::slice::from_ref(&x), (&[6], &truth));
    let folder = tempfile::tempdir().expect("a folder can be created");
    let imported = through(&["int64"], 6).import(folder.path()).expect("the graph is well-formed");
    assert!(imported.programs[0].notes[0].contains("limit values to the range of i32"));
}

#[test]
fn conversions_to_e4m3_overflow_to_nan() {
    let nan = f64::NAN;
    let x = tensor(&[7], &[448.0, 464.0, 464.1, -500.0, f64::INFINITY, 1.7, nan]);
    let expected = [448.0, 448.0, nan, nan, nan, 1.75, nan];
    check(&through(&["float8_e4m3fn"], 7), &[x], (&[7], &expected));
    // A value that was clamped cannot overflow, so that the quantization stays as torch wrote it.
    let mut graph = through(&["float8_e4m3fn"], 2);
    graph.nodes.insert(0, node("l", "clamp.default", &[of("x"), json!(-448.0), json!(448.0)], f32s(&[2])));
    graph.nodes[1]["args"][0] = of("l");
    check(&graph, &[tensor(&[2], &[900.0, -900.0])], (&[2], &[448.0, -448.0]));
    let folder = tempfile::tempdir().expect("a folder can be created");
    assert_eq!(graph.import(folder.path()).expect("it is well-formed").programs[0].module.ops.len(), 3);
}

#[test]
fn numpy_t_reverses_all_axes() {
    let x: Vec<f64> = (0..24).map(f64::from).collect();
    let reversed: Vec<f64> = (0..24).map(|at| f64::from(at % 2 * 12 + at / 2 % 3 * 4 + at / 6)).collect();
    let exchanged: Vec<f64> = (0..24).map(|at| f64::from(at / 12 * 12 + at % 3 * 4 + at / 3 % 4)).collect();
    for (op, shape, dims, expected) in [
        ("numpy_T.default", [4, 3, 2], [4, 3, 2], &reversed),
        ("mT.default", [2, 4, 3], [2, 4, 3], &exchanged),
    ] {
        let graph = Graph::new(f32s(&[2, 3, 4]), vec![node("y", op, &[of("x")], f32s(&shape))]);
        check(&graph, &[tensor(&[2, 3, 4], &x)], (&dims, expected));
    }
}

#[test]
fn attention_of_a_masked_row_is_zero() {
    let q = f32s(&[1, 1, 2, 2]);
    let call = [of("x"), of("x"), of("x"), of("m")];
    let nodes = vec![node("y", "scaled_dot_product_attention.default", &call, q.clone())];
    let x = tensor(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let never = f64::NEG_INFINITY;
    let numbers = tensor(&[2, 2], &[0.0, never, never, never]);
    let truth = Tensor::from_f64(ElementType::I1, vec![2, 2], None, &[1.0, 0.0, 0.0, 0.0]).expect("it fits");
    for (dtype, mask) in [("float32", numbers), ("bool", truth)] {
        let mut graph = Graph::new(q.clone(), nodes.clone());
        graph.inputs.push(("m", ty(dtype, &[2, 2])));
        check(&graph, &[x.clone(), mask], (&[1, 1, 2, 2], &[1.0, 2.0, 0.0, 0.0]));
    }
}

#[test]
fn bounds_in_the_wrong_order_give_the_upper_one() {
    let clamp = |min: Json, max: Json| {
        Graph::new(f32s(&[3]), vec![node("y", "clamp.default", &[of("x"), min, max], f32s(&[3]))])
    };
    let x = [tensor(&[3], &[-5.0, 0.0, f64::NAN])];
    check(&clamp(json!(1.0), json!(-1.0)), &x, (&[3], &[-1.0, -1.0, f64::NAN]));
    let (code, message) = clamp(json!({ "number": "nan" }), json!(1.0)).reason();
    assert_eq!(code, "unsupported_operator");
    assert!(message.contains("node `y` (aten.clamp.default) has NaN as a bound"), "{message}");
}

#[test]
fn products_broadcast_their_batches_and_take_vectors() {
    let x: Vec<f64> = (1..5).map(f64::from).collect();
    let w: Vec<f64> = (1..9).map(f64::from).collect();
    let matmul = |x: &[u64], w: &[u64], y: &[u64]| {
        let nodes = vec![node("y", "matmul.default", &[of("x"), of("w")], f32s(y))];
        let mut graph = Graph::new(f32s(x), nodes);
        graph.inputs.push(("w", f32s(w)));
        graph
    };
    // [1, 2, 2] · [2, 2, 2], both ways.
    let (one, two) = (tensor(&[1, 2, 2], &x), tensor(&[2, 2, 2], &w));
    let product = [7.0, 10.0, 15.0, 22.0, 19.0, 22.0, 43.0, 50.0];
    let graph = matmul(&[1, 2, 2], &[2, 2, 2], &[2, 2, 2]);
    check(&graph, &[one.clone(), two.clone()], (&[2, 2, 2], &product));
    let product = [7.0, 10.0, 15.0, 22.0, 23.0, 34.0, 31.0, 46.0];
    let graph = matmul(&[2, 2, 2], &[1, 2, 2], &[2, 2, 2]);
    check(&graph, &[two.clone(), one], (&[2, 2, 2], &product));
    let product = [7.0, 10.0, 15.0, 22.0, 19.0, 22.0, 43.0, 50.0];
    let graph = matmul(&[2, 2], &[2, 2, 2], &[2, 2, 2]);
    check(&graph, &[tensor(&[2, 2], &x), two.clone()], (&[2, 2, 2], &product));
    // Vectors.
    let v = tensor(&[2], &[1.0, 10.0]);
    check(&matmul(&[2], &[2], &[]), &[v.clone(), v.clone()], (&[], &[101.0]));
    check(&matmul(&[2, 2], &[2], &[2]), &[tensor(&[2, 2], &x), v.clone()], (&[2], &[21.0, 43.0]));
    check(&matmul(&[2], &[2, 2, 2], &[2, 2]), &[v.clone(), two], (&[2, 2], &[31.0, 42.0, 75.0, 86.0]));
    let mut linear =
        Graph::new(f32s(&[2]), vec![node("y", "linear.default", &[of("x"), of("w"), of("b")], f32s(&[2]))]);
    linear.weights.push(("w", f32s(&[2, 2]), tensor(&[2, 2], &x)));
    linear.weights.push(("b", f32s(&[2]), tensor(&[2], &[0.5, -0.5])));
    check(&linear, std::slice::from_ref(&v), (&[2], &[21.5, 42.5]));
    linear.nodes = vec![node("y", "linear.default", &[of("x"), of("w")], f32s(&[2]))];
    check(&linear, &[v], (&[2], &[21.0, 43.0]));
    let (code, message) = matmul(&[2, 2, 2], &[3, 2, 2], &[3, 2, 2]).reason();
    assert_eq!(code, "unsupported_operator");
    assert!(message.contains("node `y` (aten.matmul.default) has leading extents"), "{message}");
}

#[test]
fn an_output_may_be_returned_twice() {
    let mut graph = Graph::new(f32s(&[2]), vec![node("y", "relu.default", &[of("x")], f32s(&[2]))]);
    graph.outputs = vec![of("y"), of("y")];
    let results = graph.results(&[tensor(&[2], &[-1.0, 2.0])]);
    assert_eq!(results, vec![(vec![2], vec![0.0, 2.0]); 2]);
}

#[test]
fn a_graph_that_gives_no_valid_program_is_left_out_with_its_node() {
    for (shape, op, arguments, result, code, part) in [
        (&[2, 3][..], "view.default", vec![of("x")], &[5][..], "wrong_shape", "number of elements"),
        (&[2, 3], "expand.default", vec![of("x")], &[2, 4], "wrong_shape", "broadcast"),
        (&[2, 3], "permute.default", vec![of("x"), json!([0, 0])], &[2, 3], "wrong_shape", "permutation"),
        (&[2, 3], "add.Tensor", vec![of("x"), of("w")], &[2, 3], "wrong_shape", "broadcast"),
        (&[2, 3], "mm.default", vec![of("x"), of("w")], &[2, 4], "wrong_shape", "differ"),
    ] {
        let relu = node("first", "relu.default", &[of("x")], f32s(shape));
        let mut graph = Graph::new(f32s(shape), vec![relu, node("y", op, &arguments, f32s(result))]);
        graph.inputs.push(("w", f32s(&[4, 5])));
        let (found, message) = graph.reason();
        let named = format!("node `y` (aten.{op})");
        assert!(message.contains(&named) && message.contains(part), "{message}, not {part}");
        assert_eq!(found, code, "{message}");
    }
}

#[test]
fn a_constant_index_outside_an_axis_is_left_out() {
    let count = |end: u64| node("i", "arange.default", &[json!(end)], ty("int64", &[end]));
    let take = |end: u64| node("y", "index_select.default", &[of("x"), json!(0), of("i")], f32s(&[end]));
    check(
        &Graph::new(f32s(&[3]), vec![count(2), take(2)]),
        &[tensor(&[3], &[5.0, 6.0, 7.0])],
        (&[2], &[5.0, 6.0]),
    );
    let (code, message) = Graph::new(f32s(&[3]), vec![count(4), take(4)]).reason();
    assert_eq!(code, "unsupported_operator");
    assert_eq!(message, "node `y` (aten.index_select.default): it takes index 3 of 3");
}

#[test]
fn tensors_that_the_file_lacks_are_an_error_of_the_import() {
    let weight = tensor(&[2], &[1.0, 2.0]);
    let add = vec![node("y", "add.Tensor", &[of("x"), of("w")], f32s(&[2]))];
    let graph = |shape: &[u64]| Graph {
        weights: vec![("w", f32s(shape), weight.clone())],
        ..Graph::new(f32s(&[2]), add.clone())
    };
    let folder = tempfile::tempdir().expect("a folder can be created");
    assert_eq!(graph(&[2]).import(folder.path()).expect("all tensors exist").left_out, []);
    let error = graph(&[1]).import(folder.path()).expect_err("the shape differs");
    let error = fourfold_executor::chain(&error);
    assert!(error.contains("weights.safetensors") && error.contains("`%w"), "{error}");
    let mut json = graph(&[2]).json();
    for (key, value, part) in [("tensor", "z", "no tensor `z`"), ("", "none.safetensors", "cannot read")] {
        match key {
            "" => json["tensors"] = value.into(),
            key => json["parameters"][0][key] = value.into(),
        }
        std::fs::write(folder.path().join("graph.json"), json.to_string()).expect("it can be written");
        let error = import(folder.path(), &ImportOptions::default()).expect_err("it is missing");
        let error = fourfold_executor::chain(&error);
        assert!(error.contains(part), "{error}, not {part}");
    }
}

#[test]
fn an_extent_of_zero_times_a_symbol_is_zero() {
    let x = json!({ "dtype": "float32", "shape": ["0*M"] });
    let graph = Graph::new(x.clone(), vec![node("y", "relu.default", &[of("x")], x)]);
    let folder = tempfile::tempdir().expect("a folder can be created");
    let imported = graph.import(folder.path()).expect("the graph is well-formed");
    assert_eq!(imported.left_out, []);
    let written = write(&imported, folder.path()).expect("the program can be written");
    let text = std::fs::read_to_string(&written[0].file).expect("it can be read");
    assert!(text.contains("; sample: normal seed=0\n"), "{text}");
    assert!(load(&text).is_ok(), "{text}");
}
