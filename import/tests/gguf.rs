//! Imports GGUF files, well-formed and not. The tests of `checkpoints.rs` compare the values of linears.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fourfold_executor::{DataSources, OtherTensors};
use fourfold_import::{Import, ImportError, ImportOptions, LeftOutCode, import};
use fourfold_ir::ElementType;

const MUTATIONS: usize = 2000;

const F32: u32 = 0;
const Q8_0: u32 = 8;
const MXFP4: u32 = 39;
const NVFP4: u32 = 40;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models").join(name).join("model.gguf")
}

/// A tensor: its name, extents, type and size in bytes.
type Tensor<'a> = (&'a str, &'a [u64], u32, usize);

/// The bytes of a file with tensors of zeros.
fn file(metadata: &[(&str, u32)], tensors: &[Tensor<'_>]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    bytes.extend(3u32.to_le_bytes());
    bytes.extend([tensors.len() as u64, metadata.len() as u64].map(u64::to_le_bytes).concat());
    for (key, value) in metadata {
        text(&mut bytes, key);
        // The type 4 is u32.
        bytes.extend([4, *value].map(u32::to_le_bytes).concat());
    }
    let mut offset = 0usize;
    for (name, extents, ty, size) in tensors {
        text(&mut bytes, name);
        bytes.extend((extents.len() as u32).to_le_bytes());
        bytes.extend(extents.iter().flat_map(|extent| extent.to_le_bytes()));
        bytes.extend(ty.to_le_bytes());
        bytes.extend((offset as u64).to_le_bytes());
        offset += size.next_multiple_of(32);
    }
    bytes.resize(bytes.len().next_multiple_of(32) + offset, 0);
    bytes
}

/// Imports a folder with these files.
fn imported(files: &[Vec<u8>]) -> Result<Import, ImportError> {
    let folder = tempfile::tempdir().expect("a folder can be created");
    for (at, bytes) in files.iter().enumerate() {
        std::fs::write(folder.path().join(format!("part{at}.gguf")), bytes).expect("it can be written");
    }
    import(folder.path(), &ImportOptions::default())
}

fn names(imported: &Import) -> Vec<&str> {
    imported.programs.iter().map(|program| program.name.as_str()).collect()
}

#[test]
fn a_program_detects_that_the_tensors_of_its_file_moved() {
    let folder = tempfile::tempdir().expect("a folder can be created");
    let path = folder.path().join("model.gguf");
    let linear = ("blk.0.ffn_up.weight", &[64, 2][..], NVFP4, 72);
    std::fs::write(&path, file(&[], &[linear])).expect("it can be written");
    let mut imported = import(&path, &ImportOptions::default()).expect("the file is valid");
    let program = imported.programs.remove(0);
    let sources = DataSources { references: program.tensors, ..DataSources::default() };
    let read = || sources.read(&program.module, &[("M".to_owned(), 1)], OtherTensors::Named(&[]));
    read().expect("nothing changed");
    std::fs::write(&path, file(&[], &[("first", &[4], F32, 16), linear])).expect("it can be written");
    let error = read().expect_err("the file changed").to_string();
    assert!(error.contains("model.gguf` has changed") && error.contains("import the model again"), "{error}");
}

#[test]
fn linears_and_single_experts_become_programs() {
    let imported =
        import(&fixture("gguf-nvfp4-qwen3-moe"), &ImportOptions::default()).expect("the file is valid");
    let attention = ["attn_k", "attn_output", "attn_q", "attn_v"].map(|name| format!("blk.0.{name}"));
    let experts = ["ffn_down_exps", "ffn_gate_exps", "ffn_up_exps"]
        .into_iter()
        .flat_map(|name| (0..4).map(move |expert| format!("blk.0.{name}.{expert}")));
    assert_eq!(names(&imported), attention.into_iter().chain(experts).collect::<Vec<String>>());
    for program in &imported.programs {
        let module = &program.module;
        assert_eq!(module.ty(module.outputs[0]).element, ElementType::F32);
        assert!(program.data.is_empty(), "nothing is copied");
        assert!(program.notes.iter().any(|note| note.contains("x is multiplied as it is")));
    }
    let codes: BTreeMap<&str, LeftOutCode> =
        imported.left_out.iter().map(|left| (left.name.as_str(), left.code)).collect();
    assert_eq!(codes["token_embd"], LeftOutCode::NotQuantized);
    assert_eq!(codes["blk.0.attn_norm"], LeftOutCode::NotALinear);
    let options = ImportOptions { select: Some("*_exps.2".to_owned()), ..ImportOptions::default() };
    let selected = import(&fixture("gguf-mxfp4-moe"), &options).expect("the file is valid");
    assert_eq!(names(&selected), ["blk.0.ffn_down_exps.2", "blk.0.ffn_gate_exps.2", "blk.0.ffn_up_exps.2"]);
    let options = ImportOptions { select: Some("none".to_owned()), ..ImportOptions::default() };
    let error = import(&fixture("gguf-mxfp4-moe"), &options).expect_err("nothing is selected");
    assert!(matches!(error, ImportError::SelectsNothing { .. }), "{error}");
}

#[test]
fn modules_that_do_not_fit_are_left_out() {
    let weight: Tensor<'_> = ("a.weight", &[64, 8], NVFP4, 8 * 36);
    for (tensors, code, part) in [
        (vec![("a.weight", &[64, 8][..], Q8_0, 8 * 68)], LeftOutCode::UnsupportedFormat, "Q8_0"),
        (vec![("a.weight", &[64, 8], F32, 8 * 256)], LeftOutCode::NotQuantized, "F32"),
        (vec![("a.weight", &[64], F32, 256)], LeftOutCode::NotALinear, "not a matrix"),
        (vec![("a.bias", &[64], F32, 256)], LeftOutCode::UnusedTensor, "no weight"),
        (vec![("a.weight", &[64], MXFP4, 34)], LeftOutCode::WrongShape, "expected a matrix"),
        (vec![("a.weight", &[32, 2, 2, 2], MXFP4, 8 * 17)], LeftOutCode::WrongShape, "[32, 2, 2, 2]"),
        (vec![("a.weight", &[64, 0], MXFP4, 0)], LeftOutCode::WrongShape, "[64, 0]"),
        (vec![weight, ("a.zero", &[8], F32, 32)], LeftOutCode::UnknownFormat, "`a.zero`"),
        (vec![weight, ("a.scale", &[2], F32, 8)], LeftOutCode::WrongShape, "`a.scale`"),
        (vec![weight, ("a.bias", &[64], F32, 256)], LeftOutCode::WrongShape, "expected [8]"),
        (vec![weight, ("a.bias", &[64], Q8_0, 68)], LeftOutCode::WrongDtype, "`a.bias` is Q8_0"),
    ] {
        let imported = imported(&[file(&[], &tensors)]).unwrap_or_else(|error| panic!("{part}: {error}"));
        assert!(imported.programs.is_empty(), "{part}");
        let left = &imported.left_out[0];
        assert!(left.code == code && left.message.contains(part), "{left:?}, not {code} with {part}");
    }
}

#[test]
fn factors_are_finite_and_not_negative() {
    let experts = |factors: [f32; 2]| {
        let tensors: [Tensor<'_>; 2] =
            [("a.weight", &[64, 8, 2], NVFP4, 2 * 8 * 36), ("a.scale", &[2], F32, 8)];
        let mut bytes = file(&[], &tensors);
        // The tensor begins at the last multiple of 32.
        let start = bytes.len() - 32;
        bytes[start..start + 8].copy_from_slice(&factors.map(f32::to_le_bytes).concat());
        imported(&[bytes]).expect("the file is well-formed")
    };
    assert_eq!(experts([0.5, 0.0]).programs.len(), 2);
    for (factors, part) in [
        ([-0.5, 1.0], "the factor of expert 0 in `a.scale` is -0.5; expected a finite number"),
        ([0.5, f32::NAN], "the factor of expert 1 in `a.scale` is NaN"),
        ([0.5, f32::INFINITY], "the factor of expert 1 in `a.scale` is inf"),
    ] {
        let imported = experts(factors);
        assert!(imported.programs.is_empty(), "{part}");
        let left = &imported.left_out[0];
        assert!(left.code == LeftOutCode::InvalidScale && left.message.contains(part), "{left:?}");
    }
}

#[test]
fn files_of_one_model_are_read_together() {
    let weight = || file(&[("split.count", 2)], &[("a.weight", &[64, 8], NVFP4, 8 * 36)]);
    let scale = file(&[("split.count", 2)], &[("a.scale", &[1], F32, 4), ("a.bias", &[8], F32, 32)]);
    let together = imported(&[weight(), scale]).expect("the parts are one model");
    let inputs: Vec<&str> = together.programs[0].tensors.iter().map(|tensor| tensor.input.as_str()).collect();
    assert_eq!(inputs, ["w", "w.scale", "w.global", "bias"]);
    let error = imported(&[weight()]).expect_err("a part is missing").to_string();
    assert!(error.contains("part0.gguf") && error.contains("one of 2 files"), "{error}");
    let error = imported(&[weight(), weight()]).expect_err("both have the tensor").to_string();
    assert!(error.contains("both hold the tensor `a.weight`"), "{error}");
}

#[test]
fn malformed_files_have_an_error() {
    let whole = file(&[("a.b", 1)], &[("a.weight", &[64, 8], NVFP4, 8 * 36)]);
    imported(std::slice::from_ref(&whole)).expect("the file is valid");
    for length in 0..whole.len() - 1 {
        let error = imported(&[whole[..length].to_vec()]).expect_err("the file is cut").to_string();
        assert!(error.contains("part0.gguf"), "{error}");
    }
    // Rows that end within a block, overlapping tensors, and extents that overflow.
    for tensors in [
        vec![("a.weight", &[32, 8][..], NVFP4, 4 * 36)],
        vec![("a.weight", &[64, 8], NVFP4, 0), ("b.weight", &[64, 8], NVFP4, 8 * 36)],
        vec![("a.weight", &[1 << 29, 1 << 29, 1 << 29], NVFP4, 64)],
        vec![("a.weight", &[1 << 20, 1 << 20], NVFP4, 64)],
    ] {
        let error = imported(&[file(&[], &tensors)]).expect_err("the file is malformed").to_string();
        assert!(error.contains("not a GGUF file"), "{error}");
    }
}

/// A sequence of numbers that depends on the seed only.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Changes a header in one to four places.
fn mutate(bytes: &mut Vec<u8>, header: usize, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(header.min(bytes.len()).max(1));
        let end = |size: usize| (at + size).min(bytes.len());
        match numbers.below(7) {
            0 if numbers.below(8) == 0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end(numbers.below(64)))),
            2 => {
                let copied = bytes[at..end(numbers.below(200))].to_vec();
                bytes.splice(at..at, copied);
            }
            3 => {
                let numbers = [u64::MAX, 1 << 63, 1 << 40, 0, 1][numbers.below(5)].to_le_bytes();
                let end = end(8);
                bytes[at..end].copy_from_slice(&numbers[..end - at]);
            }
            _ if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
            _ => {}
        }
    }
}

#[test]
fn mutated_files_import_or_have_an_error() {
    let originals = ["gguf-nvfp4-qwen3-moe", "gguf-mxfp4-moe"]
        .map(|name| std::fs::read(fixture(name)).expect("it is there"));
    let folder = tempfile::tempdir().expect("a folder can be created");
    let path = folder.path().join("model.gguf");
    let mut numbers = Numbers(0x5EED);
    let (mut failed, mut whole) = (0, 0);
    for round in 0..MUTATIONS {
        let mut bytes = originals[round % originals.len()].clone();
        mutate(&mut bytes, 2600, &mut numbers);
        std::fs::write(&path, &bytes).expect("the file can be written");
        let started = Instant::now();
        match import(&path, &ImportOptions::default()) {
            Err(error) => {
                failed += 1;
                assert!(error.to_string().contains("model.gguf"), "{error}");
            }
            Ok(imported) => {
                whole += 1;
                assert!(imported.left_out.iter().all(|left| !left.message.is_empty()));
            }
        }
        assert!(started.elapsed() < Duration::from_secs(20), "round {round} takes {:?}", started.elapsed());
    }
    println!("{failed} failed, {whole} whole");
    assert!(failed > 500 && whole > 50, "the mutations reach every stage");
}
