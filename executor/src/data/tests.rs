//! Tests of data files: binding, rejection and messages.

use std::fs;
use std::path::PathBuf;

use fourfold_ir::{Dim, ElementType, ScaleLayout, Symbol, TensorType};

use super::*;

/// `%x: f4 [M, 64]`, `%sx: blocked e4m3 [M, 4]`, `%s: linear e8m0 [3, 2]`, `%bias: f32 [8]`, `%flag: i1 [3]`.
fn module() -> Module {
    let mut module = Module::new("main");
    let m = module.intern_symbol("M");
    let fixed = |extents: &[u64]| extents.iter().map(|extent| Dim::fixed(*extent)).collect::<Vec<_>>();
    let rows = |columns: u64| vec![Dim::symbol(m), Dim::fixed(columns)];
    module.push_input("x", TensorType::new(rows(64), ElementType::F4E2M1FN), false);
    let blocked = TensorType::scales(rows(4), ElementType::F8E4M3FN, ScaleLayout::Blocked);
    module.push_input("sx", blocked, false);
    let linear = TensorType::scales(fixed(&[3, 2]), ElementType::F8E8M0FNU, ScaleLayout::Linear);
    module.push_input("s", linear, true);
    module.push_input("bias", TensorType::new(fixed(&[8]), ElementType::F32), true);
    module.push_input("flag", TensorType::new(fixed(&[3]), ElementType::I1), false);
    module
}

/// A file with this header, padded as the format requires, and a number of data bytes 0, 1, 2 ...
fn write_raw(path: &Path, header: &str, data: usize) {
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend((0..data).map(|index| index as u8));
    fs::write(path, bytes).unwrap();
}

/// Reads a file with one entry, `dtype` and `shape` as JSON, and `data` bytes.
#[track_caller]
fn read_one(name: &str, dtype: &str, shape: &str, data: usize) -> Result<DataFile, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let entry = format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{data}]}}}}"#);
    write_raw(&path, &entry, data);
    read_tensors(&path, &module())
}

/// The message with its causes, as the command line prints it.
fn chain(error: &DataError) -> String {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    message
}

#[track_caller]
fn check_error(result: Result<DataFile, DataError>, parts: &[&str]) {
    let message = chain(&result.unwrap_err());
    for part in parts.iter().chain(&["data.safetensors"]) {
        assert!(message.contains(part), "`{message}` does not contain `{part}`");
    }
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let codes = |count: usize, limit: usize| (0..count).map(|index| (index * 7 % limit) as u8).collect();
    let tensor = |element, dims: &[usize], layout, codes| {
        Tensor::from_codes(element, dims.to_vec(), layout, codes).unwrap()
    };
    let x = tensor(ElementType::F4E2M1FN, &[37, 64], None, codes(37 * 64, 16));
    let sx = tensor(ElementType::F8E4M3FN, &[37, 4], Some(ScaleLayout::Blocked), codes(37 * 4, 127));
    let s = tensor(ElementType::F8E8M0FNU, &[3, 2], Some(ScaleLayout::Linear), codes(6, 256));
    let bias = Tensor::from_f32(vec![8], &[0.5, -1.0, 2.0, 3.5, f32::INFINITY, -0.0, 1e-40, 7.0]).unwrap();
    let flag = tensor(ElementType::I1, &[3], None, vec![1, 0, 1]);
    let result = Tensor::from_f64(ElementType::BF16, vec![2], None, &[1.5, -2.0]).unwrap();
    let tensors = [
        ("x", &x),
        ("sx", &sx),
        ("s", &s),
        ("bias", &bias),
        ("flag", &flag),
        ("expected.y", &result),
        ("expected.acts", &x),
        ("note", &bias),
    ];
    write_tensors(&path, &tensors).unwrap();
    let data = read_tensors(&path, &module()).unwrap();
    assert_eq!(data.inputs.len(), 5);
    for (name, tensor) in &tensors[..5] {
        assert_eq!(&data.inputs[*name], *tensor, "{name}");
    }
    let names: Vec<&str> = data.expected.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["acts", "y"]);
    // The file stores FP4 as bytes; the input type makes them FP4.
    assert_eq!((data.expected[0].1.dtype.as_str(), data.expected[0].1.as_stored()), ("U8", None));
    assert_eq!(data.expected[0].1.as_type(ElementType::F4E2M1FN, &[37, 64], None), Ok(x.clone()));
    assert_eq!(data.expected[1].1.as_stored().as_ref(), Some(&result));
    assert_eq!(data.other["note"].as_stored().as_ref(), Some(&bias));
    // The file does not depend on the order of tensors, and replaces an existing one.
    let first = fs::read(&path).unwrap();
    let reversed: Vec<(&str, &Tensor)> = tensors.iter().rev().copied().collect();
    write_tensors(&path, &reversed).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
}

#[test]
fn fp4_binds_from_bytes_and_from_its_own_dtype() {
    for (dtype, shape) in [("U8", "[5,32]"), ("F4", "[5,64]")] {
        let data = read_one("x", dtype, shape, 160).unwrap();
        let x = &data.inputs["x"];
        assert_eq!((x.element(), x.dims()), (ElementType::F4E2M1FN, &[5, 64][..]));
        assert_eq!(x.to_codes()[2 * 18..][..4], [2, 1, 3, 1], "bytes 0x12 and 0x13, low nibble first");
    }
}

#[test]
fn scales_bind_from_bytes() {
    let data = read_one("s", "U8", "[3,2]", 6).unwrap();
    assert_eq!(data.inputs["s"].layout(), Some(ScaleLayout::Linear));
    assert_eq!(data.inputs["s"].to_codes(), [0, 1, 2, 3, 4, 5]);
    assert!(read_one("s", "F8_E8M0", "[3,2]", 6).is_ok());
}

#[test]
fn a_flag_is_zero_or_one() {
    assert_eq!(read_one("flag", "BOOL", "[3]", 3).unwrap().inputs["flag"].bytes(), [0, 1, 1]);
}

/// A file with `x` of `rows` rows and `sx` of the given shape.
fn read_blocked(rows: usize, shape: &str, size: usize) -> Result<DataFile, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let (x, end) = (rows * 32, rows * 32 + size);
    let header = format!(
        r#"{{"x":{{"dtype":"U8","shape":[{rows},32],"data_offsets":[0,{x}]}},
            "sx":{{"dtype":"F8_E4M3","shape":{shape},"data_offsets":[{x},{end}]}}}}"#
    );
    write_raw(&path, &header, end);
    read_tensors(&path, &module())
}

#[test]
fn blocked_scales_take_their_extents_from_the_other_inputs() {
    for (rows, shape) in [(37, "[128,4]"), (128, "[128,4]"), (130, "[256,4]"), (130, "[2,1,32,4,4]")] {
        let size = if rows > 128 { 1024 } else { 512 };
        let data = read_blocked(rows, shape, size).unwrap();
        assert_eq!(data.inputs["sx"].dims(), [rows, 4]);
        assert_eq!(data.inputs["sx"].bytes().len(), size);
    }
    check_error(read_blocked(130, "[128,4]", 512), &["`sx`", "[128, 4], 512 bytes", "[130, 4] take 1024"]);
}

#[test]
fn blocked_scales_alone_do_not_say_how_many_rows_there_are() {
    check_error(read_one("sx", "F8_E4M3", "[128,4]", 512), &["no tensor for the input `%x: tensor<[M, 64]"]);
}

#[test]
fn a_scalar_may_be_stored_with_or_without_an_extent() {
    for (ty, shape, dims) in [("tensor<[], f32>", "[1]", &[][..]), ("tensor<[1], f32>", "[]", &[1])] {
        let source = format!("fir 1\nfunc @f(%alpha: {ty}) {{\n  return %alpha\n}}\n");
        let module = fourfold_ir::text::parse(&source).unwrap().module;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.safetensors");
        let header = format!(r#"{{"alpha":{{"dtype":"F32","shape":{shape},"data_offsets":[0,4]}}}}"#);
        write_raw(&path, &header, 4);
        assert_eq!(read_tensors(&path, &module).unwrap().inputs["alpha"].dims(), dims, "{ty} from {shape}");
    }
}

#[test]
fn a_tensor_unlike_its_input_is_named_with_what_was_expected() {
    check_error(read_one("bias", "U8", "[32]", 32), &["`bias`", "U8", "f32 is stored as F32"]);
    check_error(read_one("bias", "I64", "[8]", 64), &["`bias`", "I64"]);
    check_error(read_one("bias", "F32", "[9]", 36), &["`%bias: tensor<[8], f32>`", "[9]", "not [8]"]);
    check_error(read_one("bias", "F32", "[2,4]", 32), &["[2, 4]", "not [8]"]);
    check_error(read_one("x", "U8", "[5,33]", 165), &["[5, 66] in elements", "[M, 64]"]);
    check_error(read_one("x", "U8", "[]", 1), &["`x`", "must be even"]);
    check_error(read_one("s", "F8_E4M3", "[3,2]", 6), &["`s`", "F8_E8M0 or U8"]);
}

#[test]
fn odd_fp4_is_refused_whole_or_in_its_rows() {
    check_error(read_one("x", "F4", "[3,5]", 8), &["`x`", "F4 tensor of shape [3, 5]", "whole bytes"]);
    check_error(read_one("x", "F4", "[2,5]", 5), &["`x`", "[2, 5]", "must be even"]);
}

#[test]
fn an_unknown_dtype_names_the_tensor() {
    check_error(read_one("bias", "F7", "[8]", 32), &["`bias`", "F7"]);
}

#[test]
fn a_file_that_is_no_safetensors_file_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        read_tensors(&path, &module())
    };
    check_error(read(b""), &["0 bytes"]);
    check_error(read(b"fir 1\nfunc"), &["not a safetensors file", "announce a header"]);
    check_error(read(&u64::MAX.to_le_bytes()), &["announce a header of 18446744073709551615 bytes"]);
    check_error(read(b"\x04\0\0\0\0\0\0\0{\"x\""), &["not JSON"]);
    check_error(read(b"\x02\0\0\0\0\0\0\0[]"), &["not a JSON object"]);
    let missing = folder.path().join("absent").join("data.safetensors");
    check_error(read_tensors(&missing, &module()), &["cannot read"]);
}

#[test]
fn a_truncated_file_says_how_much_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let header = r#"{"bias":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}"#;
    for (data, found) in [(31, 103), (33, 105)] {
        write_raw(&path, header, data);
        check_error(read_tensors(&path, &module()), &["describes 104 bytes", &format!("has {found}")]);
    }
    write_raw(&path, header, 32);
    assert!(read_tensors(&path, &module()).is_ok());
}

#[test]
fn hostile_headers_are_refused_without_memory_or_panic() {
    let huge = u64::MAX;
    check_error(
        read_one("bias", "F32", &format!("[{huge},4]"), 32),
        &["`bias`", "exceeds the address space"],
    );
    check_error(read_one("bias", "F32", "[1000000000000]", 32), &["`bias`", "4000000000000 bytes"]);
    // The size does not bound an extent beside a zero.
    check_error(read_one("x", "U8", &format!("[0,{huge}]"), 0), &["`x`", "exceeds the address space"]);
    check_error(read_one("x", "F4", &format!("[{huge},0]"), 0), &["`x`", "exceeds the address space"]);
    check_error(read_blocked(0, &format!("[{huge},0]"), 0), &["`sx`", "exceeds the address space"]);
    assert!(read_one("other", "F32", &format!("[{huge},0]"), 0).is_ok());
    let offsets = r#"{"bias":{"dtype":"F32","shape":[8],"data_offsets":[18446744073709551615,3]}}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    write_raw(&path, offsets, 32);
    check_error(read_tensors(&path, &module()), &["`bias`", "takes 32 bytes"]);
}

/// Reads a file with this header and as many bytes of data.
#[track_caller]
fn read_header(header: &str, data: usize) -> Result<DataFile, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    write_raw(&path, header, data);
    read_tensors(&path, &module())
}

/// The entry of a tensor of bytes.
fn entry(name: &str, start: usize, end: usize) -> String {
    format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, end - start)
}

#[test]
fn two_entries_of_one_name_are_refused() {
    let header = format!("{{{},{}}}", entry("a", 0, 4), entry("a", 4, 8));
    check_error(read_header(&header, 8), &["two entries for the tensor `a`"]);
    // The repetition is reported even if the second entry overlaps the first or is itself invalid.
    for second in [entry("a", 0, 4), r#""a":{"dtype":"F7"}"#.to_owned(), r#""a":7"#.to_owned()] {
        check_error(read_header(&format!("{{{},{second}}}", entry("a", 0, 4)), 4), &["two entries", "`a`"]);
    }
    let twice = r#"{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    check_error(read_header(twice, 4), &["entry for the tensor `a`", "duplicate field `dtype`"]);
}

#[test]
fn tensors_that_share_bytes_are_both_named() {
    for (first, second) in [((0, 4), (2, 6)), ((0, 6), (2, 4)), ((0, 4), (0, 6))] {
        let header = format!("{{{},{}}}", entry("b", second.0, second.1), entry("a", first.0, first.1));
        check_error(read_header(&header, 6), &["`a` and `b` overlap", &format!("byte {}", second.0)]);
    }
}

#[test]
fn bytes_of_no_tensor_are_named_with_what_lies_beside_them() {
    let header = format!("{{{},{}}}", entry("a", 0, 4), entry("b", 6, 8));
    check_error(read_header(&header, 8), &["bytes 4 to 6", "no tensor", "`b`"]);
    check_error(read_header(&format!("{{{}}}", entry("a", 2, 4)), 4), &["bytes 0 to 2", "`a`"]);
    check_error(read_header(&format!("{{{}}}", entry("a", 0, 4)), 5), &["describes", "`a`", "the file has"]);
    check_error(read_header("{}", 1), &["describes 16 bytes, but the file has 17"]);
}

#[test]
fn a_tensor_that_ends_beyond_the_file_is_named() {
    let header = format!("{{{},{}}}", entry("a", 0, 4), entry("b", 4, 4000));
    check_error(read_header(&header, 8), &["truncated or damaged", "up to the end of the tensor `b`"]);
    // The truncation is reported, although there is also a hole before the tensor.
    check_error(read_header(&format!("{{{}}}", entry("b", 4000, 4004)), 8), &["truncated", "`b`"]);
}

#[test]
fn an_entry_that_is_none_names_its_tensor() {
    check_error(read_header(r#"{"a":7}"#, 0), &["entry for the tensor `a`", "invalid type"]);
    check_error(read_header(r#"{"a":{"dtype":"U8","shape":[1]}}"#, 1), &["`a`", "data_offsets"]);
    check_error(read_header(r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#, 1), &["`a`", "-1"]);
    check_error(read_one("a", "F32", "[2]", 4), &["`a`", "[2] takes 8 bytes, but its offsets are 0 to 4"]);
    check_error(read_header(r#"{"__metadata__":{"a":1}}"#, 0), &["`__metadata__`", "invalid type"]);
    check_error(read_header("{} x", 0), &["not JSON", "trailing characters"]);
}

#[test]
fn a_header_of_a_length_that_none_has_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    // A sparse file with as many bytes as its header announces.
    let file = fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &(1u64 << 33).to_le_bytes(), 0).unwrap();
    file.set_len(1 << 34).unwrap();
    check_error(read_tensors(&path, &module()), &["a header of 8589934592 bytes", "above the limit"]);
}

#[test]
fn a_tensor_that_memory_has_no_room_for_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    // More than a process can address, even with overcommitted memory.
    let bytes = 1u64 << 48;
    let header = format!(r#"{{"a":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    write_raw(&path, &header, 0);
    // Only on file systems with sparse files, where it uses no disk space.
    if fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(8 + header.len() as u64 + bytes)
        .is_ok()
    {
        check_error(read_tensors(&path, &module()), &["cannot allocate", "`a`"]);
    }
}

/// The `safetensors` crate accepts every file accepted here, with the same tensors, and also repeated names.
#[test]
fn changed_headers_are_judged_as_the_library_judges_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let header = format!("{{{},{},{}}}  ", entry("one", 0, 4), entry("two", 4, 10), entry("ten", 10, 10));
    write_raw(&path, &header, 10);
    let whole = fs::read(&path).unwrap();
    let (mut accepted, mut refused) = (0, 0);
    for at in 0..8 + header.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            fs::write(&path, &bytes).unwrap();
            let (ours, library) =
                (read_tensors(&path, &module()), safetensors::SafeTensors::deserialize(&bytes));
            match (ours, library) {
                (Ok(data), Ok(library)) => {
                    accepted += 1;
                    assert_eq!(data.other.len(), library.len(), "byte {at}, bit {bit}");
                    for (name, view) in library.iter() {
                        assert_eq!(data.other[name].bytes, view.data(), "byte {at}, bit {bit}");
                    }
                }
                (Err(DataError::RepeatedEntry { .. }), _) | (Err(_), Err(_)) => refused += 1,
                (ours, library) => panic!("byte {at}, bit {bit}: {ours:?}, {:?}", library.map(|_| ())),
            }
        }
    }
    assert!(accepted > 10 && refused > 500, "{accepted} accepted, {refused} refused");
}

#[test]
fn two_tensors_of_one_name_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let tensor = Tensor::from_f32(vec![1], &[1.0]).unwrap();
    let error = write_tensors(&path, &[("a", &tensor), ("b", &tensor), ("a", &tensor)]).unwrap_err();
    assert!(matches!(error, DataError::DuplicateName { tensor, .. } if tensor == "a"));
    assert!(!path.exists());
    let nowhere = folder.path().join("absent").join("data.safetensors");
    assert!(matches!(write_tensors(&nowhere, &[("a", &tensor)]), Err(DataError::Write { .. })));
}

#[test]
fn contradicting_inputs_are_reported_when_scales_depend_on_them() {
    let mut module = module();
    let m: Symbol = module.intern_symbol("M");
    module.push_input("rows", TensorType::new(vec![Dim::symbol(m)], ElementType::F32), false);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let rows = Tensor::from_f32(vec![4], &[1.0; 4]).unwrap();
    let x = Tensor::zeros(ElementType::F4E2M1FN, vec![5, 64], None).unwrap();
    let sx = Tensor::zeros(ElementType::F8E4M3FN, vec![5, 4], Some(ScaleLayout::Blocked)).unwrap();
    write_tensors(&path, &[("x", &x), ("sx", &sx), ("rows", &rows)]).unwrap();
    check_error(read_tensors(&path, &module), &["`%rows`", "M = 5"]);
}

#[test]
fn a_folder_or_a_device_is_no_data_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = vec![folder.path().to_owned()];
    if cfg!(unix) {
        paths.push(PathBuf::from("/dev/zero"));
    }
    for path in paths {
        let error = read_tensors(&path, &module()).unwrap_err();
        assert!(matches!(&error, DataError::NotRegular { path: found } if *found == path));
        assert_eq!(error.to_string(), format!("`{}` is not a regular file", path.display()));
    }
}

#[test]
fn given_symbols_say_the_extents_of_blocked_scales() {
    let mut module = Module::new("main");
    let [b, s] = ["B", "S"].map(|name| module.intern_symbol(name));
    let shape = |columns| vec![Dim::product(1, vec![b, s]), Dim::fixed(columns)];
    module.push_input("x", TensorType::new(shape(64), ElementType::F4E2M1FN), false);
    let scales = TensorType::scales(shape(4), ElementType::F8E4M3FN, ScaleLayout::Blocked);
    module.push_input("sx", scales, false);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.safetensors");
    let entries = r#"{"x":{"dtype":"U8","shape":[6,32],"data_offsets":[0,192]},"sx":{"dtype":"U8","shape":[128,4],"data_offsets":[192,704]}}"#;
    write_raw(&path, entries, 704);
    check_error(read_tensors(&path, &module), &["no given shape determines the symbol `B`"]);
    let given = |b, s| [("B".to_owned(), b), ("S".to_owned(), s)];
    let data = read_tensors_given(&path, &module, &given(2, 3)[..1]).unwrap();
    assert_eq!(data.inputs["sx"].dims(), [6, 4]);
    check_error(read_tensors_given(&path, &module, &given(4, 3)), &["with B = 4, S = 3"]);
}
