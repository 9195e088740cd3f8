//! Synthetic checkpoints.

use fourfold_import::{Import, ImportError, ImportOptions, LeftOutCode, import, write};

/// A tensor of a synthetic file: name, dtype, shape.
pub(crate) type Entry<'a> = (&'a str, &'a str, &'a [u64]);

fn bits(dtype: &str) -> u64 {
    match dtype {
        "F32" | "U32" | "I32" => 32,
        "BF16" => 16,
        _ => 8,
    }
}

/// The header and the bytes of a safetensors file: f32 scalars are 1, everything else is zero.
pub(crate) fn safetensors(entries: &[Entry<'_>], metadata: Option<&str>) -> Vec<u8> {
    let (mut parts, mut at) = (Vec::new(), 0);
    if let Some(metadata) = metadata {
        parts.push(format!("\"__metadata__\":{metadata}"));
    }
    for (name, dtype, shape) in entries {
        let size = shape.iter().product::<u64>() * bits(dtype) / 8;
        parts.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{}]}}",
            at + size
        ));
        at += size;
    }
    let header = format!("{{{}}}", parts.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    for (_, dtype, shape) in entries {
        match (*dtype, shape.iter().product::<u64>()) {
            ("F32", 1) => bytes.extend(1f32.to_le_bytes()),
            (_, count) => bytes.resize(bytes.len() + (count * bits(dtype) / 8) as usize, 0),
        }
    }
    bytes
}

/// A linear of ModelOpt in NVFP4.
pub(crate) const NVFP4: [Entry<'static>; 4] = [
    ("a.weight", "U8", &[32, 16]),
    ("a.weight_scale", "F8_E4M3", &[32, 2]),
    ("a.weight_scale_2", "F32", &[]),
    ("a.input_scale", "F32", &[]),
];

pub(crate) fn modelopt(algorithm: &str) -> String {
    format!(r#"{{"quantization_config":{{"quant_method":"modelopt","quant_algo":"{algorithm}"}}}}"#)
}

/// Imports a folder with these files.
pub(crate) fn import_files(files: &[(&str, &[u8])]) -> Result<Import, ImportError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let imported = import(folder.path(), &ImportOptions::default());
    if let Ok(imported) = &imported {
        write(imported, &folder.path().join("programs")).unwrap();
    }
    imported
}

pub(crate) fn import_entries(config: &str, entries: &[Entry<'_>]) -> Import {
    let data = safetensors(entries, None);
    import_files(&[("config.json", config.as_bytes()), ("model.safetensors", &data)]).unwrap()
}

/// The reason that module `a` is left out.
#[track_caller]
pub(crate) fn check_left_out(config: &str, entries: &[Entry<'_>], code: LeftOutCode, part: &str) {
    let imported = import_entries(config, entries);
    assert!(imported.programs.is_empty(), "{:?}", imported.programs);
    let left = imported.left_out.iter().find(|left| left.name == "a").expect("a is left out");
    assert_eq!(left.code, code, "{left:?}");
    assert!(left.message.contains(part), "{left:?} does not contain {part}");
}
