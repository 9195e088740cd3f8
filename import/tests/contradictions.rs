//! Checkpoints whose files contradict each other, and files that no loader reads: never another number in silence.

#[path = "support/synthetic.rs"]
mod synthetic;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use fourfold_import::{Import, ImportOptions, LeftOutCode, import, write};
use serde_json::{Value, json};

use synthetic::{Entry, NVFP4, check_left_out, import_entries, import_files, modelopt, safetensors};

use LeftOutCode::{Contradiction, InvalidScale, NotALinear, UnknownFormat, UnsupportedFormat};

/// The reason that module `a` of files is left out.
#[track_caller]
fn check_files(files: &[(&str, &[u8])], code: LeftOutCode, part: &str) {
    let imported = import_files(files).expect("the files are valid");
    assert!(imported.programs.is_empty(), "{:?}", imported.programs);
    let left = imported.left_out.iter().find(|left| left.name == "a").expect("a is left out");
    assert!(left.code == code && left.message.contains(part), "{left:?} does not contain {part}");
}

#[test]
fn signs_of_two_producers_are_a_contradiction() {
    let comfy = r#"{"_quantization_metadata":"{\"layers\":{\"a\":{\"format\":\"nvfp4\"}}}"}"#;
    let torchao = r#"{"a.weight":"{\"_type\":\"NVFP4Tensor\"}"}"#;
    let hf = r#"{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"W4A16_NVFP4"}}"#;
    let unnamed = r#"{"quantization":{"quant_algo":"W4A16_NVFP4"}}"#;
    let (nvfp4, mlx) =
        (modelopt("W4A16_NVFP4"), r#"{"quantization":{"mode":"nvfp4","bits":4,"group_size":16}}"#);
    let ct = r#"{"quantization_config":{"quant_method":"compressed-tensors"}}"#;
    for (header, file, text) in [
        (comfy, "hf_quant_config.json", hf),
        (comfy, "hf_quant_config.json", unnamed),
        (comfy, "config.json", &nvfp4),
        (comfy, "config.json", mlx),
        (comfy, "config.json", ct),
        (torchao, "config.json", &nvfp4),
        (torchao, "hf_quant_config.json", hf),
    ] {
        let data = safetensors(&NVFP4, Some(header));
        let files = [("model.safetensors", &data[..]), (file, text.as_bytes())];
        check_files(&files, Contradiction, "the header");
    }
    let data = safetensors(&NVFP4, None);
    let files = [
        ("model.safetensors", &data[..]),
        ("config.json", ct.as_bytes()),
        ("hf_quant_config.json", hf.as_bytes()),
    ];
    check_files(&files, Contradiction, "hf_quant_config.json");
}

#[test]
fn groups_of_modelopt_agree_with_its_algorithm() {
    let weights = json!({"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16});
    let check = |algorithm: &str, group: Value, part: &str| {
        let config = json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm,
            "config_groups": {"group_0": group}}});
        if part.is_empty() {
            let imported = import_entries(&config.to_string(), &NVFP4);
            assert_eq!(imported.programs.len(), 1, "{:?}", imported.left_out);
        } else {
            check_left_out(&config.to_string(), &NVFP4, Contradiction, part);
        }
    };
    let with = |key: &str, value: Value| {
        let mut changed = weights.clone();
        changed[key] = value;
        changed
    };
    check("NVFP4", json!({"weights": weights, "input_activations": weights, "targets": ["Linear"]}), "");
    check("NVFP4", json!({"weights": weights, "targets": ["Linear"]}), "no `input_activations`");
    for (key, value) in [("group_size", json!(32)), ("type", json!("int")), ("num_bits", json!(8))] {
        let part = format!("`{key}` {value}");
        check("NVFP4", json!({"weights": with(key, value.clone()), "input_activations": weights}), &part);
        check("NVFP4", json!({"weights": weights, "input_activations": with(key, value)}), &part);
    }
    check(
        "NVFP4",
        json!({"weights": weights, "input_activations": with("dynamic", json!(true))}),
        "`dynamic`",
    );
    let hf =
        json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 32}});
    let data = safetensors(&NVFP4, None);
    let files =
        [("model.safetensors", &data[..]), ("hf_quant_config.json", &hf.to_string().into_bytes()[..])];
    check_files(&files, Contradiction, "group size 32");
    let hf =
        json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "rotate": true}});
    let files =
        [("model.safetensors", &data[..]), ("hf_quant_config.json", &hf.to_string().into_bytes()[..])];
    check_files(&files, UnsupportedFormat, "`rotate`");
}

/// A linear of compressed-tensors in NVFP4.
const PACKED: [Entry<'static>; 4] = [
    ("a.weight_packed", "U8", &[32, 16]),
    ("a.weight_scale", "F8_E4M3", &[32, 2]),
    ("a.weight_global_scale", "F32", &[1]),
    ("a.input_global_scale", "F32", &[1]),
];

/// The configuration of [`PACKED`], with the settings at `path` changed.
fn compressed(path: &[&str], value: Value) -> String {
    let of = |dynamic: Value| {
        json!({"actorder": null, "dynamic": dynamic, "group_size": 16, "num_bits": 4,
        "strategy": "tensor_group", "symmetric": true, "type": "float"})
    };
    let group = json!({"format": "nvfp4-pack-quantized", "input_activations": of(json!("local")),
        "output_activations": null, "targets": ["Linear"], "weights": of(json!(false))});
    let mut config = json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": [],
        "config_groups": {"group_0": group}, "sparsity_config": {}, "transform_config": {}});
    let mut at = &mut config;
    for key in path {
        at = &mut at[*key];
    }
    *at = value;
    json!({ "quantization_config": config }).to_string()
}

#[test]
fn settings_of_compressed_tensors_are_honoured_or_refused() {
    let group = ["config_groups", "group_0"];
    let at = |more: &[&'static str]| group.iter().copied().chain(more.iter().copied()).collect::<Vec<_>>();
    let outputs = json!({"num_bits": 8, "type": "float"});
    for (path, value) in [
        (vec!["ignore"], json!(["b", "re:.*b_proj", "lm_head"])),
        (vec!["format"], json!("mixed-precision")),
        (at(&["targets"]), json!(["re:^a$"])),
        (at(&["weights", "actorder"]), json!("static")),
    ] {
        let imported = import_entries(&compressed(&path, value.clone()), &PACKED);
        assert_eq!(imported.programs.len(), 1, "{path:?} {value}: {:?}", imported.left_out);
    }
    for (path, value, code, part) in [
        (at(&["output_activations"]), outputs, UnsupportedFormat, "`output_activations`"),
        (at(&["weights", "symmetric"]), json!(false), UnsupportedFormat, "`symmetric` false"),
        (at(&["input_activations", "symmetric"]), json!(false), UnsupportedFormat, "`symmetric` false"),
        (at(&["weights", "actorder"]), json!("group"), UnsupportedFormat, "`actorder`"),
        (at(&["weights", "strategy"]), json!("channel"), UnsupportedFormat, "`strategy`"),
        (at(&["input_activations", "dynamic"]), json!(true), UnsupportedFormat, "`dynamic` true"),
        (at(&["input_activations", "strategy"]), json!("token"), UnsupportedFormat, "`strategy` \"token\""),
        (at(&["format"]), json!("dense"), Contradiction, "`dense`"),
        (vec!["format"], json!("dense"), Contradiction, "`dense`"),
        (at(&["targets"]), json!(["re:.*nothing"]), Contradiction, "targets `a`"),
        (at(&["targets"]), json!(["Embedding"]), Contradiction, "targets `a`"),
        (vec!["ignore"], json!(["re:^a"]), Contradiction, "`re:^a`"),
        (vec!["ignore"], json!(["a"]), Contradiction, "ignores `a`"),
        (vec!["ignore"], json!(["Linear"]), Contradiction, "`Linear`"),
        (vec!["transform_config"], json!([{"type": "hadamard"}]), UnsupportedFormat, "`transform_config`"),
        (vec!["transform_config"], json!({"config_groups": {}}), UnsupportedFormat, "`transform_config`"),
    ] {
        check_left_out(&compressed(&path, value), &PACKED, code, part);
    }
    // A pattern of another language decides nothing, but is noted.
    let imported = import_entries(&compressed(&["ignore"], json!(["re:^(?!x).*"])), &PACKED);
    assert!(imported.programs[0].notes.iter().any(|note| note.contains("re:^(?!x).*")));
}

#[test]
fn settings_of_quark_are_honoured_or_refused() {
    const ENTRIES: [Entry<'static>; 2] = [("a.weight", "U8", &[32, 16]), ("a.weight_scale", "U8", &[32, 1])];
    let config = |path: &[&str], value: Value| {
        let spec = |is_dynamic: bool| {
            json!({"ch_axis": -1, "dtype": "fp4", "group_size": 32, "is_dynamic": is_dynamic,
            "is_scale_quant": false, "qscheme": "per_group", "round_method": "half_even",
            "scale_calculation_mode": "even", "scale_format": "e8m0", "symmetric": null})
        };
        let mut config = json!({"quant_method": "quark", "exclude": ["lm_head"], "algo_config": null,
            "layer_type_quant_config": {}, "softmax_quant_spec": null,
            "global_quant_config": {"bias": null, "input_tensors": spec(true), "output_tensors": null,
                "weight": spec(false)}});
        let mut at = &mut config;
        for key in path {
            at = &mut at[*key];
        }
        *at = value;
        json!({ "quantization_config": config }).to_string()
    };
    for algorithms in [Value::Null, json!([]), json!([{"name": "gptq"}])] {
        let imported = import_entries(&config(&["algo_config"], algorithms), &ENTRIES);
        assert_eq!(imported.programs.len(), 1, "{:?}", imported.left_out);
    }
    let global = "global_quant_config";
    for (path, value, part) in [
        (&["algo_config"][..], json!([{"name": "rotation", "r1": true}]), "`rotation`"),
        (&["algo_config"], json!({"name": "rotation"}), "`rotation`"),
        (&["layer_type_quant_config"], json!({"Linear": {}}), "`layer_type_quant_config`"),
        (&["layer_quant_config"], json!({"a": {}}), "`layer_quant_config`"),
        (&["softmax_quant_spec"], json!({"dtype": "fp8_e4m3"}), "`softmax_quant_spec`"),
        (&[global, "output_tensors"], json!({"dtype": "fp8_e4m3"}), "`output_tensors`"),
        (&[global, "weight", "ch_axis"], json!(0), "`ch_axis` 0"),
        (&[global, "input_tensors", "ch_axis"], json!(0), "`ch_axis` 0"),
        (&[global, "input_tensors", "is_dynamic"], json!(false), "`is_dynamic` false"),
        (&[global, "input_tensors", "qscheme"], json!("per_tensor"), "`qscheme`"),
        (&[global, "input_tensors", "scale_calculation_mode"], json!("other"), "scale calculation"),
    ] {
        check_left_out(&config(path, value), &ENTRIES, UnsupportedFormat, part);
    }
    check_left_out(&config(&["exclude"], json!(["a*"])), &ENTRIES, Contradiction, "excludes `a`");
    check_left_out(&config(&["exclude"], json!(["re:a"])), &ENTRIES, Contradiction, "excludes `a`");
}

#[test]
fn a_stored_scale_of_activations_is_not_one_of_each_call() {
    let kwargs =
        |is_dynamic: bool| json!({"_data": {"use_dynamic_per_tensor_scale": is_dynamic, "block_size": 16}});
    let entries: [Entry<'_>; 4] = [
        ("a._weight_qdata", "U8", &[32, 16]),
        ("a._weight_scale", "F8_E4M3", &[32, 2]),
        ("a._weight_per_tensor_scale", "F32", &[]),
        ("a._weight_act_per_tensor_scale", "F32", &[]),
    ];
    let header = |is_dynamic: bool| {
        let data = json!({"block_size": 16, "act_quant_kwargs": kwargs(is_dynamic)});
        let tensor = json!({"_type": "NVFP4Tensor", "_data": data});
        json!({"a.weight": tensor.to_string()}).to_string()
    };
    let config = br#"{"quantization_config":{"quant_method":"torchao"}}"#;
    let data = safetensors(&entries, Some(&header(false)));
    let files = [("model.safetensors", &data[..]), ("config.json", &config[..])];
    assert_eq!(import_files(&files).unwrap().programs.len(), 1);
    let data = safetensors(&entries, Some(&header(true)));
    let files = [("model.safetensors", &data[..]), ("config.json", &config[..])];
    check_files(&files, Contradiction, "`a._weight_act_per_tensor_scale`");
}

#[test]
fn a_scale_of_a_tensor_is_positive_and_finite() {
    let check = |config: &str, entries: &[Entry<'_>], at_end: usize, value: f32, part: &str| {
        let mut data = safetensors(entries, None);
        let at = data.len() - at_end;
        data[at..at + 4].copy_from_slice(&value.to_le_bytes());
        check_files(
            &[("model.safetensors", &data[..]), ("config.json", config.as_bytes())],
            InvalidScale,
            part,
        );
    };
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, -1.0] {
        check(&modelopt("NVFP4"), &NVFP4, 4, value, "`a.input_scale`");
        check(&modelopt("NVFP4"), &NVFP4, 8, value, "`a.weight_scale_2`");
        let config = compressed(&["ignore"], json!([]));
        check(&config, &PACKED, 4, value, "`a.input_global_scale`");
        check(&config, &PACKED, 8, value, "`a.weight_global_scale`");
    }
    // The factor is the reciprocal.
    check(&compressed(&["ignore"], json!([])), &PACKED, 4, 1e-39, "`a.input_global_scale`");
}

/// The left-out entry with a name.
#[track_caller]
fn left<'a>(imported: &'a Import, name: &str, code: LeftOutCode) -> &'a str {
    let left = imported.left_out.iter().find(|left| left.name == name);
    let left = left.unwrap_or_else(|| panic!("{name} is not reported: {:?}", imported.left_out));
    assert_eq!(left.code, code, "{left:?}");
    &left.message
}

#[test]
fn an_index_beside_an_unsharded_model_is_not_read() {
    let config = modelopt("NVFP4");
    let (data, other) = (safetensors(&NVFP4, None), safetensors(&NVFP4[..2], None));
    let index = "model.safetensors.index.json";
    let map = |shard: &str, names: &[&str]| {
        let map: serde_json::Map<_, _> =
            names.iter().map(|name| ((*name).to_owned(), Value::from(shard))).collect();
        json!({ "weight_map": map }).to_string().into_bytes()
    };
    let names = NVFP4.map(|(name, ..)| name);
    let stale = map("model-00001-of-00001.safetensors", &names[..2]);
    let imported = import_files(&[
        ("config.json", config.as_bytes()),
        ("model.safetensors", &data),
        ("model-00001-of-00001.safetensors", &other),
        (index, &stale),
    ])
    .unwrap();
    assert_eq!(imported.programs.len(), 1, "{:?}", imported.left_out);
    assert!(left(&imported, index, LeftOutCode::UnusedFile).contains("`model.safetensors`"));
    // An index that lists model.safetensors itself is read.
    let files = [("config.json", config.as_bytes()), ("model.safetensors", &data[..])];
    let own = map("model.safetensors", &names);
    let imported = import_files(&[files[0], files[1], (index, &own)]).unwrap();
    assert!(imported.programs.len() == 1 && imported.left_out.is_empty(), "{:?}", imported.left_out);
    let part = map("model.safetensors", &names[..3]);
    let imported = import_files(&[files[0], files[1], (index, &part)]).unwrap();
    let message = left(&imported, "model.safetensors", LeftOutCode::UnusedTensor);
    assert!(message.contains("`a.input_scale`"), "{message}");
}

#[test]
fn a_configuration_that_cannot_be_read_is_not_missing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), safetensors(&NVFP4, None)).unwrap();
    for name in ["config.json", "hf_quant_config.json", "quantization_config.json"] {
        for target in ["/nonexistent/blob", name] {
            symlink(target, folder.path().join(name)).unwrap();
            let error = import(folder.path(), &ImportOptions::default()).expect_err("the link leads nowhere");
            assert!(error.to_string().contains(name), "{error}");
            fs::remove_file(folder.path().join(name)).unwrap();
        }
    }
}

#[test]
fn a_configuration_has_a_limit() {
    let large = format!("{{\"a\":[{}1]}}", r#"{"":1},"#.repeat(600_000));
    let data = safetensors(&NVFP4, None);
    let error = import_files(&[("config.json", large.as_bytes()), ("model.safetensors", &data)]);
    let error = error.expect_err("it is above the limit").to_string();
    assert!(error.contains("config.json") && error.contains("4194304"), "{error}");
    let many = format!("{{\"a\":[{}1]}}", r#"{"":1},"#.repeat(200_000));
    let error = import_files(&[("config.json", many.as_bytes()), ("model.safetensors", &data)]);
    assert!(error.expect_err("it has too many objects").to_string().contains("objects"));
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    let error = import_files(&[("config.json", deep.as_bytes()), ("model.safetensors", &data)]);
    assert!(error.expect_err("it is too deep").to_string().contains("config.json"));
}

#[test]
fn an_embedding_is_no_linear_and_nothing_below_a_linear_is_ignored() {
    let renamed = NVFP4.map(|(name, dtype, shape)| (name.replace("a.", "model.embed_tokens."), dtype, shape));
    let entries: Vec<Entry<'_>> =
        renamed.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, *shape)).collect();
    let imported = import_entries(&modelopt("NVFP4"), &entries);
    assert!(imported.programs.is_empty());
    left(&imported, "model.embed_tokens", NotALinear);
    let lora: Vec<Entry<'_>> =
        NVFP4.iter().copied().chain([("a.lora_A.weight", "BF16", &[8, 32][..])]).collect();
    check_left_out(&modelopt("NVFP4"), &lora, UnknownFormat, "`a.lora_A.weight`");
}

#[test]
fn every_name_has_a_file_of_its_own_and_no_link_is_followed() {
    let long = "x".repeat(400);
    let names = ["Up", "up", long.as_str()];
    let entries: Vec<(String, &str, &[u64])> = names
        .iter()
        .flat_map(|module| {
            NVFP4.map(|(name, dtype, shape)| (format!("{module}.{}", &name["a.".len()..]), dtype, shape))
        })
        .collect();
    let entries: Vec<Entry<'_>> =
        entries.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, *shape)).collect();
    let imported = import_entries(&modelopt("NVFP4"), &entries);
    assert_eq!(imported.programs.len(), 3, "{:?}", imported.left_out);
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    fs::write(&target, "kept").unwrap();
    let output = folder.path().join("programs");
    fs::create_dir(&output).unwrap();
    symlink(&target, output.join("Up.fir")).unwrap();
    symlink("/nonexistent/x", output.join("up.fir")).unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.json"), modelopt("NVFP4")).unwrap();
    fs::write(model.join("model.safetensors"), safetensors(&entries, None)).unwrap();
    let imported = import(&model, &ImportOptions::default()).unwrap();
    let written = write(&imported, &output).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
    assert!(!output.join("Up.fir").is_symlink());
    let stems: std::collections::BTreeSet<String> =
        written.iter().map(|program| file_text(&program.file).to_ascii_lowercase()).collect();
    assert!(stems.len() == 3 && stems.iter().all(|stem| stem.len() <= 255), "{stems:?}");
    assert!(written.iter().any(|program| program.name == long), "the name is whole");
}

fn file_text(path: &Path) -> String {
    path.file_name().expect("a file").to_string_lossy().into_owned()
}

#[test]
fn a_message_about_many_extents_is_short() {
    let extents = vec![1; 100_000];
    let entries: Vec<Entry<'_>> = vec![NVFP4[0], ("a.weight_scale", "F8_E4M3", &extents), NVFP4[2], NVFP4[3]];
    let imported = import_entries(&modelopt("NVFP4"), &entries);
    assert!(imported.left_out.iter().all(|left| left.message.len() < 300));
    left(&imported, "a", LeftOutCode::WrongShape);
}
