//! Malformed and hostile ONNX files: a located error or a reason, never a panic, a hang or an unbounded allocation.

#[path = "support/onnx_file.rs"]
mod onnx_file;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fourfold_import::{Import, ImportError, ImportOptions, LeftOutCode, import};
use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataLocation, DataType, GraphProto, ModelProto, NodeProto,
    StringStringEntryProto, TensorProto,
};

use onnx_file::{Numbers, from_domain, model_of, node, tensor, value};

const MUTATIONS: usize = 2000;

fn standard(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models/onnx-standard").join(file)
}

/// Writes bytes as a model and imports it.
fn imported(bytes: &[u8]) -> Result<Import, ImportError> {
    let folder = tempfile::tempdir().expect("a folder can be created");
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, bytes).expect("the model can be written");
    import(&path, &ImportOptions::default())
}

fn import_of(model: &ModelProto) -> Result<Import, ImportError> {
    imported(&model.write_buf().expect("the model can be encoded"))
}

/// The error of a model, as text.
#[track_caller]
fn error_of(model: &ModelProto) -> String {
    import_of(model).expect_err("the model is malformed").to_string()
}

/// The reason that the graph of a model is left out.
#[track_caller]
fn reason_of(model: &ModelProto) -> String {
    let imported = import_of(model).expect("the file is well-formed");
    assert!(imported.programs.is_empty(), "{:?}", imported.programs);
    imported.left_out[0].message.clone()
}

fn external(entries: &[(&str, &str)]) -> TensorProto {
    let entry = |(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some((*key).to_owned()),
        value: Some((*value).to_owned()),
    };
    TensorProto {
        raw_data: None,
        data_location: Some(DataLocation::EXTERNAL),
        external_data: entries.iter().map(entry).collect(),
        ..tensor("w", DataType::FLOAT, &[4], &[])
    }
}

fn model(nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) -> ModelProto {
    let of = |name| value(name, DataType::FLOAT, &[Ok(4)]);
    model_of(nodes, initializers, of("x"), of("y"))
}

/// Changes a file in one to four places. Most places are near the ends, which describe the graph.
fn mutate(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(4) {
        let length = bytes.len();
        if length < 2 {
            return;
        }
        let at = match numbers.below(4) {
            0 => numbers.below(length),
            1 => numbers.below(length.min(300)),
            _ => length - 1 - numbers.below(length.min(1600)),
        };
        match numbers.below(8) {
            0 => bytes.truncate(at),
            1 => bytes[at] = 0xFF,
            2 => bytes[at] ^= 1 << numbers.below(8),
            3 => bytes[at] = numbers.below(256) as u8,
            4 => {
                let end = (at + numbers.below(64)).min(length);
                bytes.drain(at..end);
            }
            5 => {
                let end = (at + numbers.below(400)).min(length);
                let copied = bytes[at..end].to_vec();
                let to = numbers.below(length);
                bytes.splice(to..to, copied);
            }
            // A length or a number of nine bytes.
            6 => drop(bytes.splice(at..=at, [0xFF; 8].into_iter().chain([0x7F]))),
            _ => bytes[at] = bytes[at].wrapping_add(1),
        }
    }
}

#[test]
fn mutated_files_import_or_have_an_error() {
    let folder = tempfile::tempdir().expect("a folder can be created");
    let files = ["nvfp4-both.onnx", "nvfp4-weight-only-external.onnx", "nvfp4-weight-only-gemm.onnx"];
    let originals = files.map(|file| std::fs::read(standard(file)).expect("the fixture is there"));
    let data = "nvfp4-weight-only-external.data";
    std::fs::copy(standard(data), folder.path().join(data)).expect("the data can be copied");
    let path = folder.path().join("model.onnx");
    let mut numbers = Numbers(0x5EED);
    let (mut failed, mut left_out, mut whole) = (0, 0, 0);
    for round in 0..MUTATIONS {
        let mut bytes = originals[round % originals.len()].clone();
        mutate(&mut bytes, &mut numbers);
        std::fs::write(&path, &bytes).expect("the model can be written");
        let started = Instant::now();
        match import(&path, &ImportOptions::default()) {
            Err(error) => {
                failed += 1;
                assert!(
                    error.to_string().contains("model.onnx") || error.to_string().contains(data),
                    "{error}"
                );
            }
            Ok(imported) if imported.left_out.is_empty() => whole += 1,
            Ok(imported) => {
                left_out += 1;
                assert!(imported.left_out.iter().all(|left_out| !left_out.message.is_empty()));
            }
        }
        assert!(started.elapsed() < Duration::from_secs(20), "round {round} takes {:?}", started.elapsed());
    }
    println!("{failed} failed, {left_out} left out in part, {whole} whole");
    assert!(failed > 200 && left_out > 20 && whole > 50, "the mutations reach every stage");
}

#[test]
fn every_truncation_of_a_graph_has_an_error() {
    let bytes = std::fs::read(standard("nvfp4-weight-only-external.onnx")).expect("the fixture is there");
    for length in 0..bytes.len() - 8 {
        // The data is missing too, so even a whole graph has an error.
        assert!(imported(&bytes[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn protobuf_bombs_have_an_error() {
    let field = |number: u8, length: &[u8]| [&[number << 3 | 2], length].concat();
    let longest = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
    // A length beyond the file, which overflows a position; and a varint without an end.
    for bytes in
        [field(7, &longest), field(7, &[0x80; 64]), vec![0x80; 64], vec![0xFF; 4096], vec![0x3B; 100]]
    {
        let error = imported(&bytes).expect_err("the file is malformed").to_string();
        assert!(error.contains("model.onnx") && error.contains("not an ONNX file"), "{error}");
    }
    // Six million empty nodes.
    let nodes = [0x0A, 0x00].repeat(6 << 20);
    let mut length = Vec::new();
    let mut rest = nodes.len();
    while rest > 0x7F {
        length.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    length.push(rest as u8);
    let error = imported(&[field(7, &length), nodes].concat()).expect_err("the file is hostile").to_string();
    assert!(error.contains("protobuf fields"), "{error}");
}

#[test]
fn nested_graphs_are_refused_without_recursion() {
    let mut graph = GraphProto { node: vec![node("Relu", &["x"], &["z"])], ..GraphProto::default() };
    for _ in 0..200 {
        let attribute = AttributeProto {
            name: Some("then_branch".to_owned()),
            g: Some(graph),
            r#type: Some(AttributeType::GRAPH),
            ..AttributeProto::default()
        };
        let nested = NodeProto { attribute: vec![attribute], ..node("If", &["x"], &["y"]) };
        graph = GraphProto { node: vec![nested], ..GraphProto::default() };
    }
    let reason = reason_of(&model(graph.node, Vec::new()));
    assert!(reason.contains("node `y` (If)") && reason.contains("subgraph"), "{reason}");
    // Deeper than the encoder can write: each level is a field with the rest of the file.
    let mut bytes = Vec::new();
    for level in 0..60_000usize {
        let tag = [0x3A, 0x0A, 0x2A, 0x32][level.min(1 + level % 3)];
        let mut length = Vec::new();
        let mut rest = (60_000 - level) * 4;
        while rest > 0x7F {
            length.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        length.push(rest as u8);
        bytes.push(tag);
        bytes.extend(length);
    }
    assert!(imported(&bytes).is_err());
}

#[test]
fn graphs_without_an_order_or_with_two_definitions_have_an_error() {
    let cyclic = model(
        vec![node("Add", &["x", "b"], &["a"]), node("Relu", &["a"], &["b"]), node("Relu", &["b"], &["y"])],
        vec![],
    );
    assert!(error_of(&cyclic).contains("cycle: node"), "{}", error_of(&cyclic));
    let undefined = model(vec![node("Add", &["x", "z"], &["y"])], vec![]);
    assert!(error_of(&undefined).contains("node `y` (Add) reads `z`, which nothing defines"));
    let twice = model(vec![node("Relu", &["x"], &["y"]), node("Neg", &["x"], &["y"])], vec![]);
    assert!(error_of(&twice).contains("both define `y`"));
    let input = model(vec![node("Relu", &["x"], &["x"]), node("Relu", &["x"], &["y"])], vec![]);
    assert!(error_of(&input).contains("defines `x`, which an input"));
    let one = || tensor("w", DataType::FLOAT, &[1], &[0; 4]);
    let names = model(vec![node("Add", &["x", "w"], &["y"])], vec![one(), one()]);
    assert!(error_of(&names).contains("two constants have the name `w`"));
    let missing = model(vec![node("Relu", &["x"], &["z"])], vec![]);
    assert!(error_of(&missing).contains("nothing defines the output `y`"));
}

#[test]
fn defects_of_exporters_are_repaired() {
    // The same cast twice, before what it reads.
    let cast = || from_domain("", "Cast", &["a"], &["c"], &[("to", 1)]);
    let mut unsorted =
        model(vec![cast(), cast(), node("Relu", &["x"], &["a"]), node("Neg", &["c"], &["y"])], vec![]);
    unsorted.opset_import.clear();
    let imported = import_of(&unsorted).expect("the defects are repaired");
    assert!(imported.left_out.is_empty(), "{:?}", imported.left_out);
    let notes = imported.programs[0].notes.join("\n");
    for part in ["occurs twice", "before the nodes that they read", "states no opset"] {
        assert!(notes.contains(part), "{notes}");
    }
}

#[test]
fn tensors_that_do_not_fit_their_file_have_an_error() {
    let of = |tensor: TensorProto| model(vec![node("Add", &["x", "w"], &["y"])], vec![tensor]);
    for (tensor, part) in [
        (tensor("w", DataType::FLOAT, &[4], &[0; 12]), "it has 12 bytes, but its type and shape need 16"),
        (tensor("w", DataType::FLOAT, &[1 << 40, 1 << 40], &[]), "too many elements"),
        (tensor("w", DataType::FLOAT, &[i64::MAX, 4], &[]), "too many elements"),
        (tensor("w", DataType::FLOAT, &[-1], &[]), "extent -1"),
        (tensor("w", DataType::FLOAT, &[1; 40], &[0; 4]), "more than 32 numbers"),
        (external(&[]), "no location"),
        (external(&[("location", "/etc/passwd")]), "not a path below the model's folder"),
        (external(&[("location", "../secret")]), "not a path below the model's folder"),
        (external(&[("location", "a/../../secret")]), "not a path below the model's folder"),
        (external(&[("location", "a\\b")]), "not a path below the model's folder"),
        (external(&[("location", "missing.bin")]), "missing.bin"),
        (
            external(&[("location", "model.onnx"), ("offset", "18446744073709551615")]),
            "from byte 18446744073709551615",
        ),
        (external(&[("location", "model.onnx"), ("offset", "100000")]), "from byte 100000"),
        (external(&[("location", "model.onnx"), ("offset", "-1")]), "offset of its external data is `-1`"),
        (external(&[("location", "model.onnx"), ("length", "5")]), "has 5 bytes, but"),
    ] {
        let error = error_of(&of(tensor));
        assert!(error.contains("tensor `w`") && error.contains(part), "{error}");
    }
}

#[test]
fn external_data_is_not_read_through_links_that_lead_out_of_the_folder() {
    let outside = tempfile::tempdir().expect("a folder can be created");
    let secret = outside.path().join("secret.bin");
    std::fs::write(&secret, [1; 16]).expect("the file can be written");
    let folder = tempfile::tempdir().expect("a folder can be created");
    let path = folder.path().join("model.onnx");
    let model = model(vec![node("Add", &["x", "w"], &["y"])], vec![external(&[("location", "w.bin")])]);
    std::fs::write(&path, model.write_buf().expect("it can be encoded")).expect("it can be written");
    let data = folder.path().join("w.bin");
    let load = || import(&path, &ImportOptions::default()).map_err(|error| error.to_string());
    let missing = load().expect_err("there is no data");
    assert!(missing.contains("w.bin") && missing.contains("No such file or directory"), "{missing}");
    std::os::unix::fs::symlink(&secret, &data).expect("a link can be made");
    let error = load().expect_err("the link leads out");
    assert!(error.contains("tensor `w`") && error.contains("leads out of the model's folder"), "{error}");
    // A link within the folder, and a cache that keeps both files elsewhere.
    std::fs::remove_file(&data).expect("it exists");
    std::fs::write(folder.path().join("blob"), [1; 16]).expect("the file can be written");
    std::os::unix::fs::symlink("blob", &data).expect("a link can be made");
    assert_eq!(load().expect("the link stays inside").left_out, []);
    std::fs::remove_file(&data).expect("it exists");
    std::os::unix::fs::symlink(&secret, &data).expect("a link can be made");
    std::fs::rename(&path, outside.path().join("model")).expect("it can be moved");
    std::os::unix::fs::symlink(outside.path().join("model"), &path).expect("a link can be made");
    assert_eq!(load().expect("the files are together").left_out, []);
}

#[test]
fn nodes_that_give_no_valid_program_are_left_out_by_name() {
    let list = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let named = |name: &str, node: NodeProto| NodeProto { name: Some(name.to_owned()), ..node };
    let mut integers = model(vec![named("/block/halve", node("Div", &["x", "x"], &["y"]))], vec![]);
    let graph = integers.graph.as_mut().expect("there is a graph");
    graph.input = vec![value("x", DataType::INT32, &[Ok(4)])];
    graph.output = vec![value("y", DataType::INT32, &[Ok(4)])];
    let mut booleans = model(vec![named("/block/most", node("Max", &["x", "x"], &["y"]))], vec![]);
    let graph = booleans.graph.as_mut().expect("there is a graph");
    graph.input = vec![value("x", DataType::BOOL, &[Ok(4)])];
    graph.output = vec![value("y", DataType::BOOL, &[Ok(4)])];
    let index = |at: i64| vec![tensor("i", DataType::INT64, &[1], &list(&[at]))];
    let gather = || named("/block/take", from_domain("", "Gather", &["x", "i"], &["y"], &[("axis", 0)]));
    for (model, name, part) in [
        (integers, "/block/halve", "its operands are integers"),
        (booleans, "/block/most", "i1"),
        (model(vec![gather()], index(5)), "/block/take", "it takes index 5 of 4"),
        (model(vec![gather()], index(-5)), "/block/take", "it takes index -5 of 4"),
    ] {
        let imported = import_of(&model).expect("the file is well-formed");
        assert!(imported.programs.is_empty());
        let left_out = &imported.left_out[0];
        assert_eq!(left_out.code, LeftOutCode::UnsupportedOperator, "{}", left_out.message);
        assert!(left_out.message.contains(name) && left_out.message.contains(part), "{}", left_out.message);
    }
}

#[test]
fn unknown_operators_are_refused_by_name() {
    let mut unknown = node("Frobnicate", &["x"], &["y"]);
    unknown.domain = Some("org.example".to_owned());
    unknown.name = Some("/block/frob".to_owned());
    let reason = reason_of(&model(vec![unknown], vec![]));
    assert!(reason.contains("node `/block/frob` (org.example::Frobnicate)"), "{reason}");
}

#[test]
fn folded_shapes_and_symbols_are_bounded() {
    // Each concat doubles the list.
    let mut nodes = vec![node("Shape", &["x"], &["s0"])];
    for level in 0..60 {
        let (from, to) = (format!("s{level}"), format!("s{}", level + 1));
        nodes.push(from_domain("", "Concat", &[&from, &from], &[&to], &[("axis", 0)]));
    }
    nodes.push(node("Reshape", &["x", "s60"], &["y"]));
    let reason = reason_of(&model(nodes, vec![]));
    assert!(!reason.is_empty());
    // Each product squares the extent.
    let mut nodes = vec![node("Size", &["x"], &["s0"])];
    for level in 0..60 {
        let (from, to) = (format!("s{level}"), format!("s{}", level + 1));
        nodes.push(node("Mul", &[&from, &from], &[&to]));
    }
    nodes.push(node("Expand", &["x", "s60"], &["y"]));
    let mut symbolic = model(nodes, vec![]);
    let graph = symbolic.graph.as_mut().expect("there is a graph");
    graph.input = vec![value("x", DataType::FLOAT, &[Err("")])];
    let reason = reason_of(&symbolic);
    assert!(reason.contains("node `s"), "{reason}");
    // One symbol for each extent of each input.
    let inputs: Vec<String> = (0..300).map(|at| format!("x{at}")).collect();
    let names: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let mut many = model(vec![node("Sum", &names, &["y"])], vec![]);
    let graph = many.graph.as_mut().expect("there is a graph");
    graph.input = names.iter().map(|name| value(name, DataType::FLOAT, &[Err("")])).collect();
    assert!(reason_of(&many).contains("symbolic extents"), "{}", reason_of(&many));
}
