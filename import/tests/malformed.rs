//! Malformed, hostile and contradictory checkpoints: a located error or a reason, without a panic.

#[path = "support/synthetic.rs"]
mod synthetic;

use std::os::unix::fs::FileExt;
use std::path::Path;

use fourfold_import::{ImportError, ImportOptions, LeftOutCode, import};

use synthetic::{Entry, NVFP4, check_left_out, import_entries, import_files, modelopt, safetensors};

/// The entries with one replaced, or removed if it has no dtype.
fn with<'a>(entries: &[Entry<'a>], entry: Entry<'a>) -> Vec<Entry<'a>> {
    let others = entries.iter().filter(|(name, ..)| *name != entry.0).copied();
    others.chain((!entry.1.is_empty()).then_some(entry)).collect()
}

#[test]
fn a_valid_linear_is_imported() {
    let imported = import_entries(&modelopt("NVFP4"), &NVFP4);
    assert_eq!(imported.programs.len(), 1, "{:?}", imported.left_out);
}

#[test]
fn tensors_that_do_not_fit_the_format_are_named() {
    use LeftOutCode::{
        Contradiction, MissingTensor, UnknownFormat, UnsupportedFormat, WrongDtype, WrongShape,
    };
    let nvfp4 = modelopt("NVFP4");
    for (entry, code, part) in [
        (("a.weight_scale_2", "", &[][..]), MissingTensor, "`a.weight_scale_2`"),
        (("a.input_scale", "", &[]), MissingTensor, "`a.input_scale`"),
        (("a.weight_scale", "", &[]), MissingTensor, "`a.weight_scale`"),
        (("a.weight_scale", "F8_E4M3", &[32, 3]), WrongShape, "[32, 3], expected [32, 2]"),
        (("a.weight_scale", "F8_E4M3", &[128, 4]), WrongShape, "`a.weight_scale`"),
        (("a.weight_scale", "F32", &[32, 2]), WrongDtype, "`a.weight_scale` is F32"),
        (("a.weight", "U8", &[32, 7]), WrongShape, "multiple of 16"),
        (("a.weight", "U8", &[32, 0]), WrongShape, "not empty"),
        (("a.weight", "U8", &[4, 8, 16]), MissingTensor, "`a.weight_weight_scale`"),
        (("a.weight", "I32", &[32, 16]), WrongDtype, "`a.weight` is I32"),
        (("a.weight_scale_2", "F32", &[2]), WrongShape, "one element"),
        (("a.weight_scale_2", "U8", &[1]), WrongDtype, "`a.weight_scale_2` is U8"),
        (("a.bias", "BF16", &[31]), WrongShape, "[31], expected [32]"),
        (("a.pre_quant_scale", "BF16", &[31]), WrongShape, "`a.pre_quant_scale`"),
        (("a.zero_point", "BF16", &[32]), UnknownFormat, "`a.zero_point`"),
        (("a.weight_quantizer._svdquant_lora_a", "BF16", &[4, 32]), UnsupportedFormat, "weight_quantizer"),
    ] {
        let entries = with(&NVFP4, entry);
        let data = safetensors(&entries, None);
        let imported =
            import_files(&[("config.json", nvfp4.as_bytes()), ("model.safetensors", &data)]).unwrap();
        let is_stacked = entry.2.len() == 3;
        let name = if is_stacked { "a.weight" } else { "a" };
        let left = imported.left_out.iter().find(|left| left.name == name).expect("it is left out");
        assert!(imported.programs.is_empty());
        assert!(left.code == code && left.message.contains(part), "{entry:?}: {left:?}, not {code} {part}");
    }
    check_left_out(&modelopt("MXFP4"), &NVFP4, Contradiction, "E4M3 scales per 16");
    check_left_out(&modelopt("W4A8_NVFP4_FP8"), &NVFP4, Contradiction, "per 32");
    check_left_out(&modelopt("NEW"), &NVFP4, UnsupportedFormat, "`NEW`");
    check_left_out(&modelopt("MIXED_PRECISION"), &NVFP4, Contradiction, "`quantized_layers`");
    let ignored =
        r#"{"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["a*"]}}"#;
    check_left_out(ignored, &NVFP4, Contradiction, "excludes `a`");
    check_left_out(r#"{"quantization_config":{"quant_method":"gptq"}}"#, &NVFP4, UnsupportedFormat, "`gptq`");
    check_left_out("{}", &NVFP4, LeftOutCode::AmbiguousFormat, "comfy-kitchen");
}

#[test]
fn experts_of_mixtral_become_feed_forward_blocks() {
    let linear =
        |name: &str| NVFP4.map(|(field, dtype, _)| (field.replace("a.", &format!("e.0.{name}.")), dtype));
    let entries: Vec<(String, &str, Vec<u64>)> = ["w1", "w2", "w3"]
        .into_iter()
        .flat_map(linear)
        .map(|(name, dtype)| {
            let shape = if name.ends_with(".weight") {
                vec![32, 16]
            } else if name.ends_with(".weight_scale") {
                vec![32, 2]
            } else {
                Vec::new()
            };
            (name, dtype, shape)
        })
        .collect();
    let entries: Vec<Entry<'_>> =
        entries.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, &shape[..])).collect();
    let config = modelopt("NVFP4").replacen('{', r#"{"hidden_act":"silu","#, 1);
    let imported = import_entries(&config, &entries);
    let names: Vec<&str> = imported.programs.iter().map(|program| program.name.as_str()).collect();
    assert_eq!(names, ["e.0.w1", "e.0.w2", "e.0.w3", "e.0.gate_up", "e.0"], "{:?}", imported.left_out);
}

#[test]
fn configurations_of_the_wrong_form_are_no_panic() {
    for config in [
        "{}",
        r#"{"quantization_config":null}"#,
        r#"{"quantization_config":[]}"#,
        r#"{"quantization_config":{"quant_method":7}}"#,
        r#"{"quantization_config":{"quant_method":"modelopt"}}"#,
        r#"{"quantization_config":{"quant_method":"modelopt","quant_algo":[],"ignore":{"a":1}}}"#,
        r#"{"quantization_config":{"quant_method":"compressed-tensors","config_groups":[]}}"#,
        r#"{"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"g":7}}}"#,
        r#"{"quantization_config":{"quant_method":"quark","global_quant_config":7,"exclude":7}}"#,
        r#"{"quantization_config":{"quant_method":"torchao"}}"#,
        r#"{"quantization":{"mode":7,"group_size":"x"}}"#,
        r#"{"quantization_config":{"quant_method":"mxfp4"},"dtype":7,"text_config":[1]}"#,
    ] {
        let imported = import_entries(config, &NVFP4);
        assert!(imported.programs.is_empty() && !imported.left_out.is_empty(), "{config}");
    }
}

#[track_caller]
fn check_error(files: &[(&str, &[u8])], parts: &[&str]) {
    let error = import_files(files).expect_err("the import fails");
    let text = fourfold_executor::chain(&error);
    for part in parts {
        assert!(text.contains(part), "`{text}` does not contain `{part}`");
    }
}

#[test]
fn files_that_are_malformed_are_named() {
    let data = safetensors(&NVFP4, None);
    let model = ("model.safetensors", &data[..]);
    let index = "model.safetensors.index.json";
    check_error(&[], &["holds no model"]);
    check_error(&[("config.json", b"{"), model], &["config.json` is not JSON"]);
    check_error(&[("config.json", b"[1]"), model], &["config.json`: it is not a JSON object"]);
    check_error(&[("config.json", b"\xff"), model], &["config.json", "UTF-8"]);
    check_error(&[("hf_quant_config.json", &[b'['; 100_000]), model], &["hf_quant_config.json` is not JSON"]);
    check_error(&[("model.safetensors", b"12345678")], &["model.safetensors"]);
    check_error(&[("model.safetensors", &data[..data.len() - 1])], &["model.safetensors"]);
    check_error(&[(index, b"{}"), model], &["no object `weight_map`"]);
    check_error(&[(index, br#"{"weight_map":{"a":7}}"#), model], &["the shard of `a` is 7"]);
    check_error(&[(index, br#"{"weight_map":{"a":"../x"}}"#), model], &["`../x`, which is not the name"]);
    check_error(&[(index, br#"{"weight_map":{"a":"/etc/passwd"}}"#), model], &["`/etc/passwd`"]);
    check_error(&[(index, br#"{"weight_map":{"a":"none.safetensors"}}"#)], &["none.safetensors"]);
    check_error(&[(index, br#"{"weight_map":{}}"#), model], &["`weight_map` is empty"]);
    check_error(&[(index, br#"{"weight_map":[1]}"#), model], &[index, "expected a map"]);
    let missing = br#"{"weight_map":{"b.weight":"model.safetensors"}}"#;
    check_error(&[(index, missing), model], &["assigns the tensor `b.weight` to `model.safetensors`"]);
    let twice = [("x.safetensors", &data[..]), ("y.safetensors", &data[..])];
    check_error(&twice, &["both hold the tensor `a.weight`"]);
    let entry = |name: &str, start: u64| {
        format!(r#""{name}":{{"dtype":"U8","shape":[4],"data_offsets":[{start},{}]}}"#, start + 4)
    };
    let overlap = format!("{{{},{}}}", entry("a", 0), entry("b", 2));
    let mut bytes = (overlap.len() as u64).to_le_bytes().to_vec();
    bytes.extend(overlap.as_bytes());
    bytes.extend([0; 6]);
    check_error(&[("model.safetensors", &bytes)], &["model.safetensors", "`a`", "`b`"]);
    let huge = br#"{"a":{"dtype":"U8","shape":[4294967296,4294967296,16],"data_offsets":[0,4]}}"#;
    let mut bytes = (huge.len() as u64).to_le_bytes().to_vec();
    bytes.extend(huge);
    check_error(&[("model.safetensors", &bytes)], &["model.safetensors", "`a`"]);
}

#[test]
fn a_sparse_file_costs_its_header_and_a_tensor_beyond_all_programs_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), modelopt("NVFP4")).unwrap();
    // 72 GiB; and 9 TiB with more rows than a program may have.
    for (n, k, expected) in [(1u64 << 20, 1u64 << 17, 1), ((1 << 40) + 128, 16, 0)] {
        let sizes = [n * k / 2, n * k / 16, 4, 4];
        let shapes = [vec![n, k / 2], vec![n, k / 16], vec![], vec![]];
        let (mut parts, mut at) = (Vec::new(), 0);
        for (((name, dtype, _), size), shape) in NVFP4.iter().zip(sizes).zip(shapes) {
            let end = at + size;
            parts.push(format!(
                "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"
            ));
            at = end;
        }
        let header = format!("{{{}}}", parts.join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        if file.set_len(bytes.len() as u64 + at).is_err() {
            // The file system has no files of this size, so there is no such model either.
            continue;
        }
        // The scales at the end are 1.
        file.write_all_at(&[1f32.to_le_bytes(); 2].concat(), bytes.len() as u64 + at - 8).unwrap();
        let imported = import(folder.path(), &ImportOptions::default()).unwrap();
        assert_eq!(imported.programs.len(), expected, "{:?}", imported.left_out);
        let is_large = |left: &fourfold_import::LeftOut| left.message.contains("exceeds the largest tensor");
        assert_eq!(imported.left_out.iter().any(is_large), expected == 0, "{:?}", imported.left_out);
    }
}

#[test]
fn a_source_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = ImportOptions::default();
    let text = folder.path().join("model.txt");
    std::fs::write(&text, "").unwrap();
    assert!(matches!(import(&text, &options), Err(ImportError::UnknownSource { .. })));
    for path in ["none", "none.safetensors"] {
        let error = import(&folder.path().join(path), &options).expect_err("it does not exist");
        assert!(error.to_string().contains(path), "{error}");
    }
    assert!(import(Path::new("/dev/null"), &options).is_err());
}

#[test]
fn a_pattern_selects_programs_or_fails_with_an_example() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), modelopt("NVFP4")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), safetensors(&NVFP4, None)).unwrap();
    let select = |pattern: &str| {
        let select = Some(pattern.to_owned());
        import(folder.path(), &ImportOptions { select, ..ImportOptions::default() })
    };
    assert_eq!(select("a*").unwrap().programs.len(), 1);
    let error = select("b*").expect_err("nothing is selected");
    assert!(error.to_string().contains("such as `a`"), "{error}");
}

#[test]
fn names_become_file_names_and_values_of_the_language() {
    let entries: Vec<(String, &str, &[u64])> = ["a/b", "a_b", "ünï", "a b;c"]
        .iter()
        .flat_map(|module| {
            NVFP4.iter().map(move |(name, dtype, shape)| {
                (format!("{module}.{}", name.trim_start_matches("a.")), *dtype, *shape)
            })
        })
        .collect();
    let entries: Vec<Entry<'_>> =
        entries.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, *shape)).collect();
    let imported = import_entries(&modelopt("NVFP4"), &entries);
    assert_eq!(imported.programs.len(), 3, "{:?}", imported.left_out);
    assert!(imported.left_out.iter().any(|left| left.code == LeftOutCode::NameCollision));
}

/// A generator of numbers, for mutations.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn mutated_models_are_imported_or_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models");
    let mut random = Random(36);
    let (mut imported, mut refused) = (0, 0);
    let mut cases: Vec<_> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The folders of ONNX files have no checkpoint; `onnx_hostile.rs` mutates those.
    cases.retain(|case| case.join("model.safetensors").is_file());
    cases.sort();
    assert!(cases.len() >= 10, "{} checkpoints", cases.len());
    for case in cases {
        let read = |name: &str| std::fs::read(case.join(name)).ok();
        let model = read("model.safetensors").expect("the case has a model");
        let length = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
        let config = read("config.json");
        for _ in 0..200 {
            let (mut model, mut config) = (model.clone(), config.clone());
            for _ in 0..=random.below(3) {
                let target = match &mut config {
                    Some(config) if random.below(3) == 0 => &mut config[..],
                    _ => &mut model[..8 + length],
                };
                let at = random.below(target.len());
                target[at] = match random.below(4) {
                    0 => random.below(256) as u8,
                    1 => b'0' + random.below(10) as u8,
                    2 => target[random.below(target.len())],
                    _ => target[at] ^ 1 << random.below(8),
                };
            }
            let mut files = vec![("model.safetensors", &model[..])];
            files.extend(config.as_ref().map(|config| ("config.json", &config[..])));
            match import_files(&files) {
                Ok(_) => imported += 1,
                Err(error) => {
                    assert!(!matches!(error, ImportError::InvalidProgram { .. }), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(imported > 100 && refused > 100, "{imported} imported, {refused} refused");
}
