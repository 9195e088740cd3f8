//! Imports the node tests of the ONNX standard and compares their results.
//!
//! They are not part of this repository: the Python package `onnx` generates them. The variable
//! FOURFOLD_TEST_ONNX_NODES names their folder, so the test runs on request only.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use fourfold_executor::TensorSource;
use fourfold_import::{ImportOptions, ProgramKind, import};
use fourfold_ir::{ElementType, Entity, ScaleLayout, Tensor, TensorType, bind, interpret, verify};
use rten_onnx::onnx::{DataType, ModelProto, TensorProto};
use rten_onnx::protobuf::{DecodeMessage, ValueReader};

/// The outcome of one test.
#[derive(Debug, PartialEq)]
enum Outcome {
    Equal,
    /// Refused, with the reason.
    Refused(String),
    Wrong(String),
}

fn tensor_of(path: &Path) -> Option<TensorProto> {
    TensorProto::decode(ValueReader::from_buf(std::fs::read(path).ok()?)).ok()
}

fn dims_of(tensor: &TensorProto) -> Vec<usize> {
    tensor.dims.iter().map(|dim| *dim as usize).collect()
}

/// The numbers of a tensor; `None` for text and for types that no program has.
fn numbers(tensor: &TensorProto) -> Option<Vec<f64>> {
    let ty = tensor.data_type?;
    let raw = tensor.raw_data.as_ref().map(|raw| raw.borrow().clone()).unwrap_or_default();
    let dims = dims_of(tensor);
    let count: usize = dims.iter().product();
    let of = |element| {
        let stored: Vec<u8> = match tensor.int32_data.is_empty() {
            true => raw.clone(),
            false if element == ElementType::F4E2M1FN => {
                tensor.int32_data.iter().map(|value| *value as u8).collect()
            }
            false => return None,
        };
        let dims = if element == ElementType::F4E2M1FN { vec![2 * stored.len()] } else { vec![count] };
        Some(Tensor::new(element, dims, None, stored).ok()?.to_f64().into_iter().take(count).collect())
    };
    match ty {
        DataType::FLOAT if !tensor.float_data.is_empty() => {
            Some(tensor.float_data.iter().map(|value| f64::from(*value)).collect())
        }
        DataType::FLOAT => of(ElementType::F32),
        DataType::FLOAT16 => of(ElementType::F16),
        DataType::BFLOAT16 => of(ElementType::BF16),
        DataType::FLOAT4E2M1 => of(ElementType::F4E2M1FN),
        DataType::FLOAT8E4M3FN => of(ElementType::F8E4M3FN),
        DataType::FLOAT8E5M2 => of(ElementType::F8E5M2),
        DataType::BOOL => of(ElementType::I1),
        DataType::INT32 => of(ElementType::I32),
        DataType::INT64 => {
            let (chunks, _) = raw.as_chunks::<8>();
            let values = match tensor.int64_data.is_empty() {
                true => chunks.iter().map(|chunk| i64::from_le_bytes(*chunk) as f64).collect(),
                false => tensor.int64_data.iter().map(|value| *value as f64).collect(),
            };
            Some(values)
        }
        _ => None,
    }
}

/// A tensor of the type that a program takes.
fn typed(ty: &TensorType, tensor: &TensorProto) -> Option<Tensor> {
    let numbers = numbers(tensor)?;
    let layout = ty.layout.filter(|layout| *layout == ScaleLayout::Linear);
    Tensor::from_f64(ty.element, dims_of(tensor), layout, &numbers).ok()
}

fn close(found: f64, expected: f64, element: ElementType) -> bool {
    let step = match element {
        ElementType::F16 => 2e-3,
        ElementType::BF16 => 2e-2,
        _ => 1e-4,
    };
    found == expected
        || (found.is_nan() && expected.is_nan())
        || (found - expected).abs() <= step * expected.abs().max(1.0)
}

/// Imports a test, with its inputs at the extents of its data, and runs it.
fn outcome(folder: &Path) -> Outcome {
    let refused = |reason: &str| Outcome::Refused(reason.to_owned());
    let path = folder.join("model.onnx");
    let imported = match import(&path, &ImportOptions::default()) {
        Ok(imported) => imported,
        Err(error) => return refused(&error.to_string()),
    };
    let Some(graph) = imported.programs.iter().find(|program| program.kind == ProgramKind::Graph) else {
        let reason = imported.left_out.first().map_or("nothing", |left_out| left_out.message.as_str());
        return refused(reason);
    };
    let model = std::fs::read(&path).ok().and_then(|bytes| ModelProto::parse_buf(&bytes).ok());
    let Some(model) = model.and_then(|model| model.graph) else { return refused("no model") };
    let program = verify(graph.module.clone()).expect("an imported program is valid");
    let module = program.module();
    let data = folder.join("test_data_set_0");
    let mut tensors: HashMap<String, Tensor> = graph.data.iter().cloned().collect();
    let bytes = std::fs::read(&path).unwrap_or_default();
    for reference in &graph.tensors {
        let TensorSource::Bytes { start, end, .. } = &reference.source else { continue };
        let ty = module.ty(program.facts().value_named(&reference.input).expect("the input exists"));
        let dims = ty.shape.iter().map(|dim| dim.as_fixed().unwrap_or(0) as usize).collect();
        let part = bytes[*start as usize..*end as usize].to_vec();
        let tensor = Tensor::new(ty.element, dims, ty.layout, part).expect("the bytes fit");
        tensors.insert(reference.input.clone(), tensor);
    }
    let is_given: Vec<_> =
        module.inputs.iter().filter(|value| !tensors.contains_key(module.name_of(**value))).collect();
    let mut used = is_given.into_iter();
    let mut given = Vec::new();
    let stored: Vec<_> = model.initializer.iter().filter_map(|tensor| tensor.name.clone()).collect();
    let is_stored = |name: &Option<String>| name.as_ref().is_some_and(|name| stored.contains(name));
    for (at, info) in model.input.iter().enumerate().filter(|(_, info)| !is_stored(&info.name)) {
        given.push((info.name.clone().unwrap_or_default(), data.join(format!("input_{at}.pb"))));
    }
    // Inputs keep their order; those that nothing reads are dropped.
    let mut missing = given.len() - module.inputs.len().min(given.len());
    let mut next = used.next();
    for (name, path) in &given {
        let Some(value) = next else { break };
        let same = module.name_of(*value).trim_start_matches('v') == name.trim_start_matches('v');
        if !same && missing > 0 {
            missing -= 1;
            continue;
        }
        let Some(tensor) = tensor_of(path).and_then(|tensor| typed(module.ty(*value), &tensor)) else {
            return refused("the test has data of another type");
        };
        tensors.insert(module.name_of(*value).to_owned(), tensor);
        next = used.next();
    }
    let bound = match bind::bind(&program, &tensors) {
        Ok(bound) => bound,
        Err(error) => return refused(&format!("bind: {error}")),
    };
    let values = match interpret(&program, &bound) {
        Ok(values) => values,
        Err(error) => return Outcome::Wrong(error.to_string()),
    };
    for (at, output) in module.outputs.iter().enumerate() {
        let Some(expected) = tensor_of(&data.join(format!("output_{at}.pb"))) else { continue };
        let (dims, Some(expected)) = (dims_of(&expected), numbers(&expected)) else { continue };
        let found = &values[output.index()];
        if found.dims() != dims {
            return Outcome::Wrong(format!("output {at} has the shape {:?}, not {dims:?}", found.dims()));
        }
        let element = found.element();
        let found = found.to_f64();
        if let Some(position) = (0..found.len()).find(|at| !close(found[*at], expected[*at], element)) {
            return Outcome::Wrong(format!(
                "output {at} has {} at {position}, not {}",
                found[position], expected[position]
            ));
        }
    }
    Outcome::Equal
}

fn tests_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the folder can be listed").path())
        .filter(|path| path.join("model.onnx").exists())
        .collect();
    found.sort();
    found
}

#[test]
#[ignore = "needs the node tests of the package onnx, in the folder FOURFOLD_TEST_ONNX_NODES"]
fn node_tests_of_the_standard_have_the_expected_results_or_are_refused() {
    let folder =
        std::env::var_os("FOURFOLD_TEST_ONNX_NODES").expect("FOURFOLD_TEST_ONNX_NODES names a folder");
    let (mut equal, mut wrong) = (0, Vec::new());
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in tests_in(Path::new(&folder)) {
        let name = test.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match outcome(&test) {
            Outcome::Equal => equal += 1,
            Outcome::Refused(reason) => {
                let reason = reason.rsplit(": ").next().unwrap_or_default().to_owned();
                reasons.entry(reason).or_default().push(name);
            }
            Outcome::Wrong(reason) => wrong.push(format!("{name}: {reason}")),
        }
    }
    for (reason, tests) in &reasons {
        println!("{:4} {reason}: {}", tests.len(), tests[..tests.len().min(4)].join(" "));
    }
    println!("{equal} equal, {} refused", reasons.values().map(Vec::len).sum::<usize>());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
